//! Availability zones: names of one server, in an order.
//!
//! A zone places nothing: the bytes of a volume are in the same pool, whatever its zone. It decides
//! only which hosts a volume can be attached to, as on EC2.

use super::{Host, Settings};

/// Maximum number of zones of a server.
pub const ZONES_MAX: usize = 16;

impl Settings {
    /// Returns the first zone, which requests without a zone use.
    #[must_use]
    pub fn zone(&self) -> &str {
        self.zones.first().map_or("", String::as_str)
    }

    /// Returns whether the zone exists.
    #[must_use]
    pub fn has_zone(&self, name: &str) -> bool {
        self.zones.iter().any(|zone| zone == name)
    }

    /// Returns the id of a zone, in EC2's form: `use1-az1` is the first one in the region
    /// us-east-1. `None` if the zone no longer exists; a volume may have been made in it.
    #[must_use]
    pub fn zone_id(&self, name: &str) -> Option<String> {
        let number = 1 + self.zones.iter().position(|zone| zone == name)?;
        let region: String = self.region.split('-').map(abbreviated).collect();
        Some(format!("{region}-az{number}"))
    }

    /// Returns the zone that has this id.
    #[must_use]
    pub fn zone_with_id(&self, id: &str) -> Option<&str> {
        let has_id = |zone: &&String| self.zone_id(zone).is_some_and(|its| its == id);
        self.zones.iter().find(has_id).map(String::as_str)
    }
}

impl Host {
    /// Returns its zone: the one in which it was registered, or the first of the server.
    #[must_use]
    pub fn zone<'a>(&'a self, settings: &'a Settings) -> &'a str {
        self.zone.as_deref().unwrap_or(settings.zone())
    }
}

/// Returns a part of a region's name in the form of zone ids.
fn abbreviated(part: &str) -> &str {
    match part {
        "east" => "e",
        "west" => "w",
        "north" => "n",
        "south" => "s",
        "central" => "c",
        "northeast" => "ne",
        "northwest" => "nw",
        "southeast" => "se",
        "southwest" => "sw",
        "gov" => "g",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zone_ids_have_the_form_of_ec2_and_the_order_of_the_zones() {
        let zones = ["b", "a"].map(str::to_owned).to_vec();
        let of = |region: &str| {
            let settings =
                Settings { region: region.into(), zones: zones.clone(), ..Settings::default() };
            settings.zones.iter().filter_map(|zone| settings.zone_id(zone)).collect::<Vec<_>>()
        };
        assert_eq!(of("us-east-1"), ["use1-az1", "use1-az2"]);
        assert_eq!(of("ap-southeast-2"), ["apse2-az1", "apse2-az2"]);
        assert_eq!(of("local-1"), ["local1-az1", "local1-az2"]);
        let settings = Settings { zones: zones.clone(), ..Settings::default() };
        assert_eq!((settings.zone(), settings.zone_id("c")), ("b", None));
        assert_eq!(settings.zone_with_id("local1-az2"), Some("a"));
        assert_eq!(settings.zone_with_id("local1-az3"), None);
        assert_eq!(Settings { zones: vec![], ..settings }.zone(), "");
    }
}
