//! Instances with several volumes: the limits of an instance type apply to all volumes attached to
//! it together, so more than that is paid for and cannot be used.

use std::collections::{BTreeMap, BTreeSet};
use std::io::BufRead;

use evenkeel_core::instance::{self, InstanceType};
use evenkeel_core::units::MIB;
use serde::Deserialize;
use serde_json::Value;

use super::alternatives::Limits;
use super::{Finding, Judged, Policy, Risk, Volume};
use crate::read::{Broken, NAMES_MAX, json_broken, slurp};
use crate::used::host_in;

const FORM: &str = "the answer of `aws ec2 describe-instances`";
/// Percent of the rate that an instance sustains from which its volumes may stand at it.
const NEAR_PERCENT: u128 = 95;

/// I/Os and bytes a second.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Rates {
    /// I/Os a second.
    pub iops: u64,
    /// Bytes a second.
    pub bytes: u64,
}

impl Rates {
    const fn add(&mut self, iops: u64, bytes: u64) {
        self.iops = self.iops.saturating_add(iops);
        self.bytes = self.bytes.saturating_add(bytes);
    }

    /// Returns whether any of the rates is above that of another.
    #[must_use]
    pub const fn exceeds(&self, other: &Self) -> bool {
        self.iops > other.iops || self.bytes > other.bytes
    }
}

/// An instance, and the sums over its volumes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Host {
    /// Its id.
    pub id: String,
    /// Its type.
    pub instance: &'static InstanceType,
    /// The number of its volumes that are judged.
    pub volumes: u32,
    /// The limits of its volumes together.
    pub before: Rates,
    /// Their limits after the advised actions.
    pub after: Rates,
    /// The peaks of its volumes together, at most: they may be at different times.
    pub asked: Rates,
}

impl Host {
    /// Returns the rates that the instance sustains.
    #[must_use]
    pub fn sustained(&self) -> Rates {
        let iops = self.instance.baseline_iops.into();
        Rates { iops, bytes: self.instance.baseline_bytes_per_second() }
    }

    /// Returns the rates of the instance's burst.
    #[must_use]
    pub fn most(&self) -> Rates {
        let iops = self.instance.iops_max.into();
        Rates { iops, bytes: self.instance.bytes_per_second_max() }
    }

    /// Returns whether its volumes ask for more than it sustains, or have limits above its own.
    #[must_use]
    pub fn is_exceeded(&self) -> bool {
        self.asked.exceeds(&self.sustained()) || self.after.exceeds(&self.most())
    }

    /// Returns whether the instance may be what holds its volumes back.
    fn is_near(&self) -> bool {
        let Rates { iops, bytes } = self.sustained();
        let near =
            |asked: u64, limit: u64| u128::from(asked) * 100 >= u128::from(limit) * NEAR_PERCENT;
        near(self.asked.iops, iops) || near(self.asked.bytes, bytes)
    }
}

/// Returns the instances whose types are known and have published limits, by their ids. `types` has
/// the types of instances by id; a list of volumes may also say them.
#[must_use]
pub fn of<'a>(
    policy: &Policy,
    all: impl Iterator<Item = (&'a Volume, &'a Judged)>,
    types: &BTreeMap<String, String>,
) -> BTreeMap<String, Host> {
    let mut hosts: BTreeMap<String, Host> = BTreeMap::new();
    for (volume, judged) in all {
        for id in ids(volume) {
            let name = types.get(&id).or(volume.instance_type.as_ref());
            let Some(instance) = name.and_then(|name| instance::by_name(name)) else { continue };
            let host = hosts.entry(id).or_insert_with_key(|id| Host {
                id: id.clone(),
                instance,
                volumes: 0,
                before: Rates::default(),
                after: Rates::default(),
                asked: Rates::default(),
            });
            host.add(policy, judged);
        }
    }
    hosts
}

/// Sets the types of the instances of volumes, each of which is attached to one. `types` has them
/// by the ids of instances.
pub fn name_types(volumes: &mut [Volume], types: &BTreeMap<String, String>) {
    for volume in volumes {
        let named: Vec<&String> = ids(volume).filter_map(|id| types.get(&id)).collect();
        if let [only] = named.as_slice() {
            volume.instance_type = Some((*only).clone());
        }
    }
}

/// Returns the types of instances without published limits, whose volumes are not compared with
/// any, and the number of their volumes.
#[must_use]
pub fn unknown(volumes: &[Volume], types: &BTreeMap<String, String>) -> BTreeMap<String, usize> {
    let mut unknown = BTreeMap::new();
    for volume in volumes {
        let named = |id: String| types.get(&id).or(volume.instance_type.as_ref());
        let names: BTreeSet<&String> = ids(volume).filter_map(named).collect();
        for name in names.into_iter().filter(|name| instance::by_name(name).is_none()) {
            *unknown.entry(name.clone()).or_default() += 1;
        }
    }
    unknown
}

impl Host {
    fn add(&mut self, policy: &Policy, judged: &Judged) {
        self.volumes += 1;
        let before = Limits::of(policy, &judged.present);
        let after = Limits::of(policy, &judged.advised().0);
        self.before.add(before.iops.unwrap_or(0), before.bytes.unwrap_or(0));
        self.after.add(after.iops.unwrap_or(0), after.bytes.unwrap_or(0));
        if let Some(known) = judged.known {
            self.asked.add(known.peak_iops, known.peak_bytes_per_second);
        }
    }
}

/// Returns the ids of the instances of a volume.
fn ids(volume: &Volume) -> impl Iterator<Item = String> {
    let hosts = volume.attached_to.as_deref().unwrap_or_default();
    hosts.split(|c: char| c.is_whitespace() || ",;:".contains(c)).filter_map(host_in)
}

/// Adds to throttled volumes that the limits of their instance may be the reason, so that a person
/// looks at it before more of the volume is paid for.
pub fn warn(volumes: &[Volume], judged: &mut [Judged], hosts: &BTreeMap<String, Host>) {
    for (volume, judged) in volumes.iter().zip(judged) {
        let is_throttled = judged.findings.contains(&Finding::Throttled);
        let near = ids(volume).filter_map(|id| hosts.get(&id)).find(|host| host.is_near());
        if let Some(host) = near.filter(|_| is_throttled) {
            judged.risk = judged.risk.max(Risk::Medium);
            judged.reasons.push(host.words());
        }
    }
}

impl Host {
    /// Returns its limits and what its volumes ask for, as a sentence.
    fn words(&self) -> String {
        let Rates { iops, bytes } = self.sustained();
        format!(
            "its instance {} ({}) sustains {iops} IOPS and {} MiB/s for all its volumes, and the \
             peaks of {} add up to {} IOPS and {} MiB/s: the instance may be what holds it back",
            self.id,
            self.instance.name,
            bytes / MIB,
            self.volumes,
            self.asked.iops,
            self.asked.bytes / MIB,
        )
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Instance {
    instance_id: String,
    instance_type: String,
}

/// Reads the types of instances from an answer of DescribeInstances, or from a list of its
/// instances, whatever its nesting is.
///
/// # Errors
/// Returns [`Broken`] if the text is no JSON, or has no instance.
pub fn read(input: &mut dyn BufRead) -> Result<BTreeMap<String, String>, Broken> {
    let text = slurp(input, FORM)?;
    let value: Value = serde_json::from_slice(&text).map_err(|error| json_broken(&error, FORM))?;
    let mut types = BTreeMap::new();
    let mut open = vec![&value];
    while let Some(value) = open.pop() {
        if let Ok(Instance { instance_id, instance_type }) = Instance::deserialize(value) {
            types.insert(instance_id, instance_type);
            if types.len() > NAMES_MAX {
                let expected = format!("at most {NAMES_MAX} instances; split the text");
                return Err(Broken::whole("Instances", expected));
            }
            continue;
        }
        match value {
            Value::Array(items) => open.extend(items),
            Value::Object(fields) => {
                let nested = ["Reservations", "Instances"].iter();
                open.extend(nested.filter_map(|name| fields.get(*name)));
            }
            _ => {}
        }
    }
    if types.is_empty() {
        return Err(Broken::whole("no instance with InstanceId and InstanceType", FORM));
    }
    Ok(types)
}

#[cfg(test)]
mod tests {
    use evenkeel_core::volume::VolumeType::Gp3;

    use super::*;
    use crate::fleet::testing::{hours, volume};
    use crate::fleet::{Class, Evidence, judge};

    const HOST: &str = "i-0123456789abcdef0";

    fn attached(volume: Volume) -> Volume {
        Volume { attached_to: Some(HOST.to_owned()), ..volume }
    }

    /// An m5.large sustains 3,600 IOPS and 81.25 MB/s, and has 18,750 IOPS for half an hour (EC2
    /// user guide, EBS-optimized instances).
    #[test]
    fn the_volumes_of_an_instance_share_its_limits() {
        let policy = Policy::usual();
        let volumes = [
            attached(volume(Gp3, 500, None, None)),
            attached(volume(Gp3, 500, Some(16_000), Some(1_000))),
            volume(Gp3, 500, None, None),
        ];
        let busy = Evidence::Trace(Box::new(hours(14 * 24, 100, 2_990, 4)));
        let evidence = [busy, Evidence::Absent, Evidence::Absent];
        let mut judged: Vec<Judged> = volumes
            .iter()
            .zip(evidence)
            .map(|(volume, evidence)| judge(&policy, volume, evidence))
            .collect();
        let types = BTreeMap::from([(HOST.to_owned(), "m5.large".to_owned())]);
        let hosts = of(&policy, volumes.iter().zip(&judged), &types);
        let host = &hosts[HOST];
        assert_eq!((host.volumes, host.before.iops, host.after.iops), (2, 19_000, 19_600));
        assert_eq!(host.before.bytes, 1_125 * MIB);
        assert_eq!(host.asked.iops, 2_990);
        assert_eq!((host.sustained().iops, host.most().iops), (3_600, 18_750));
        assert!(host.is_exceeded(), "19,600 of 18,750 IOPS");
        // 2,990 are far enough from 3,600; with another volume they are not.
        warn(&volumes, &mut judged, &hosts);
        assert_eq!(judged[0].class(), Some(Class::SafeNow));
        let busier = BTreeMap::from([(
            HOST.to_owned(),
            Host { asked: Rates { iops: 3_420, bytes: 0 }, ..host.clone() },
        )]);
        warn(&volumes, &mut judged, &busier);
        assert_eq!((judged[0].class(), judged[1].class()), (Some(Class::AfterALook), None));
        let reason = judged[0].reasons.last().unwrap();
        assert!(reason.contains("(m5.large) sustains 3600 IOPS and 77 MiB/s"), "{reason}");
    }

    #[test]
    fn types_of_instances_are_read_from_any_nesting() {
        let instance = r#"{"InstanceId": "i-1", "InstanceType": "m5.large", "Tags": []}"#;
        for text in [
            format!(r#"{{"Reservations": [{{"Instances": [{instance}]}}]}}"#),
            format!("[[{instance}]]"),
            instance.to_owned(),
        ] {
            let types = read(&mut text.as_bytes()).unwrap();
            assert_eq!(types, BTreeMap::from([("i-1".to_owned(), "m5.large".to_owned())]));
        }
        for text in ["{}", "{\"Reservations\": []}", "nothing"] {
            let broken = read(&mut text.as_bytes()).unwrap_err().to_string();
            assert!(broken.contains("describe-instances"), "{broken}");
        }
    }

    #[test]
    fn volumes_of_one_instance_have_its_type() {
        let types = BTreeMap::from([(HOST.to_owned(), "m5.large".to_owned())]);
        let on = |hosts: &str| Volume {
            attached_to: Some(hosts.to_owned()),
            ..volume(Gp3, 500, None, None)
        };
        let mut volumes = [on(HOST), on("i-00000000000000000"), on(&format!("{HOST}, {HOST}"))];
        name_types(&mut volumes, &types);
        let named = volumes.map(|volume| volume.instance_type);
        assert_eq!(named, [Some("m5.large".to_owned()), None, None]);
    }
}
