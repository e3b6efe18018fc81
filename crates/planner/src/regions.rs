//! Names of AWS's regions and zones: which prices apply in a zone, and which endpoint serves it.

/// The region whose lists apply where a plan names none.
pub const DEFAULT_REGION: &str = "us-east-1";

/// Returns the region whose endpoint serves a Local Zone or a Wavelength Zone, such as `us-west-2`
/// for `us-west-2-lax-1`. A region is its own.
#[must_use]
pub fn endpoint(region: &str) -> &str {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
    let mut end = 0;
    for part in region.split('-') {
        end += part.len();
        if is_number(part) {
            return &region[..end];
        }
        end += 1;
    }
    region
}

/// Returns the region whose prices apply in a zone, such as `eu-west-1` for `eu-west-1a`; `None`
/// for a zone of an Evenkeel server, `local-1a`.
///
/// A Local Zone has prices of its own, such as `us-east-1-bos-1` for `us-east-1-bos-1a`.
#[must_use]
pub fn of_zone(zone: &str) -> Option<&str> {
    let has_letter = zone.ends_with(|last: char| last.is_ascii_lowercase());
    let region = if has_letter { &zone[..zone.len() - 1] } else { zone };
    (!zone.starts_with("local-")).then_some(region)
}

/// Returns the regions that a name may mean which is none: itself in lower case, and the region of
/// a zone.
#[must_use]
pub fn meant(name: &str) -> Vec<String> {
    let lower = name.trim().to_ascii_lowercase();
    let of_zone = of_zone(&lower).map(str::to_owned);
    let mut meant: Vec<String> = [Some(lower), of_zone].into_iter().flatten().collect();
    meant.dedup();
    meant.retain(|region| region != name);
    meant
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_local_zone_has_its_own_prices_and_the_endpoint_of_its_region() {
        for (zone, region, served_by) in [
            ("eu-west-1a", "eu-west-1", "eu-west-1"),
            ("us-gov-west-1b", "us-gov-west-1", "us-gov-west-1"),
            ("us-west-2-lax-1a", "us-west-2-lax-1", "us-west-2"),
            ("us-east-1-wl1-bos-wlz-1", "us-east-1-wl1-bos-wlz-1", "us-east-1"),
        ] {
            assert_eq!(of_zone(zone), Some(region));
            assert_eq!(endpoint(region), served_by);
        }
        assert_eq!((of_zone("local-1a"), endpoint("moon")), (None, "moon"));
    }

    #[test]
    fn upper_case_and_zones_mean_a_region() {
        assert_eq!(meant("US-EAST-1"), ["us-east-1"]);
        assert_eq!(meant("us-east-1a"), ["us-east-1"]);
        assert_eq!(meant("US-East-1A"), ["us-east-1a", "us-east-1"]);
        assert!(meant("moon-1").is_empty());
    }
}
