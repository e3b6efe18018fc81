//! Limits of instances in recordings: a load that stands at one is cut by it, and what was wanted
//! is not known. What instances that are not built on the Nitro System do not carry.

use std::ops::RangeInclusive;

use evenkeel_core::instance::{self, InstanceType};
use evenkeel_core::units::MIB;
use evenkeel_core::volume::{VolumeSpec, VolumeType};

use crate::advice::ABOVE_LIMIT_PERCENT;
use crate::trace::{Interval, Trace};

/// The families of `data/instances.csv` that are not built on the Nitro System, except for bare
/// metal, which is: `DescribeInstanceTypes` has the hypervisor `xen` of each of their types, and of
/// no other in the table.
///
/// Source: `moto/ec2/resources/instance_types.json.gz` of moto 5.2.5 (2026), a dump of
/// `DescribeInstanceTypes`.
const XEN_FAMILIES: [&str; 15] =
    ["c1", "c3", "c4", "d2", "h1", "i2", "i3", "m1", "m2", "m3", "m4", "r3", "r4", "x1", "x1e"];
/// The most IOPS that such an instance achieves on a volume of io1 or io2, whatever is provisioned.
///
/// Source: EBS user guide, provisioned-iops (copy of 2026-11-30), and EC2 API reference,
/// ModifyVolume: "On other instances, you can achieve performance up to 32,000 IOPS".
const XEN_IOPS_MAX: u32 = 32_000;

/// The part of a limit, in percent, at which a load stands at it: a limit cuts a load flat.
const AT_LIMIT_PERCENT: RangeInclusive<u128> = 98..=102;
/// The least time in a row at a limit, in milliseconds, and the least number of steps of it. A load
/// that rises or falls through a limit is not at it for as long.
const STOOD_MS_MIN: u64 = 300_000;
const STOOD_STEPS_MIN: usize = 2;

/// The I/Os and bytes of a step.
#[derive(Clone, Copy)]
struct Load {
    start_ms: u64,
    length_ms: u64,
    operations: u128,
    bytes: u128,
    /// Whether a counter says that the instance delayed none.
    is_free: bool,
}

impl Load {
    fn of(trace: &Trace, interval: &Interval) -> Self {
        let [operations, bytes] = trace.source.counted(interval.requests(), interval.bytes());
        Self {
            start_ms: interval.start_ms,
            length_ms: interval.length_ms,
            operations,
            bytes,
            is_free: interval.delayed.instance == Some(false),
        }
    }

    /// Adds the load of another volume in the same step; returns whether it is the same step.
    fn takes(&mut self, other: &Self) -> bool {
        if (self.start_ms, self.length_ms) != (other.start_ms, other.length_ms) {
            return false;
        }
        self.operations = self.operations.saturating_add(other.operations);
        self.bytes = self.bytes.saturating_add(other.bytes);
        self.is_free |= other.is_free;
        true
    }

    const fn amount(&self, is_bytes: bool) -> u128 {
        if is_bytes { self.bytes } else { self.operations }
    }
}

/// A limit of an instance.
#[derive(Clone, Copy)]
struct Limit {
    per_second: u64,
    is_bytes: bool,
    /// Whether it is the most that the instance has, and not what it has when its credits are
    /// spent.
    is_most: bool,
}

impl Limit {
    fn all(instance: &InstanceType) -> [Self; 4] {
        let limit = |per_second, is_bytes, is_most| Self { per_second, is_bytes, is_most };
        [
            limit(instance.iops_max.into(), false, true),
            limit(instance.bytes_per_second_max(), true, true),
            limit(instance.baseline_iops.into(), false, false),
            limit(instance.baseline_bytes_per_second(), true, false),
        ]
    }

    /// Returns the percent of it that a load uses, rounded down.
    fn percent(&self, load: &Load) -> u128 {
        let allowed = u128::from(self.per_second) * u128::from(load.length_ms);
        load.amount(self.is_bytes) * 100_000 / allowed.max(1)
    }

    /// Returns the milliseconds in which loads stood at it.
    fn stood_ms(&self, loads: &[Load]) -> u64 {
        let is_at = |load: &Load| !load.is_free && AT_LIMIT_PERCENT.contains(&self.percent(load));
        let follows = |one: &Load, next: &Load| {
            one.start_ms.saturating_add(one.length_ms) == next.start_ms && is_at(one) == is_at(next)
        };
        let rows = loads.chunk_by(follows).filter(|row| row.first().is_some_and(is_at));
        let long = rows.filter(|row| row.len() >= STOOD_STEPS_MIN);
        let lengths = long.map(|row| row.iter().map(|load| load.length_ms).sum::<u64>());
        lengths.filter(|row_ms| *row_ms >= STOOD_MS_MIN).sum()
    }

    fn words(&self, instance: &InstanceType) -> String {
        let name = instance.name;
        let verb = if self.is_most { "has at most" } else { "sustains" };
        if self.is_bytes {
            format!("the {} MiB/s that {name} {verb}", self.per_second / MIB)
        } else {
            format!("the {} IOPS that {name} {verb}", self.per_second)
        }
    }

    /// Returns the smallest type of the family that has more than this limit.
    fn larger(&self, instance: &InstanceType) -> Option<&'static InstanceType> {
        let more = self.per_second.saturating_add(1);
        let wanted = if self.is_bytes { (0, more) } else { (more, 0) };
        larger(instance, wanted, |other| {
            if self.is_most {
                (other.iops_max.into(), other.bytes_per_second_max())
            } else {
                (other.baseline_iops.into(), other.baseline_bytes_per_second())
            }
        })
    }
}

/// Returns why more may have been wanted than was recorded, if the requests of these volumes
/// together stood at a limit of their instance; `None` if they did not, or if counters say that the
/// instance delayed none. Types that carry more are named.
#[must_use]
pub fn stood<'a>(
    traces: impl Iterator<Item = &'a Trace>,
    instance: &InstanceType,
) -> Option<String> {
    let of_trace = |trace: &'a Trace| trace.intervals.iter().map(|step| Load::of(trace, step));
    let mut loads: Vec<Load> = traces.flat_map(of_trace).collect();
    loads.sort_by_key(|load| (load.start_ms, load.length_ms));
    loads.dedup_by(|next, first| first.takes(next));
    let limits = Limit::all(instance);
    let is_above = |limit: &Limit| {
        loads.iter().any(|load| limit.is_most && limit.percent(load) > ABOVE_LIMIT_PERCENT)
    };
    if limits.iter().any(is_above) {
        return None;
    }
    let (limit, stood_ms) = limits
        .iter()
        .map(|limit| (limit, limit.stood_ms(&loads)))
        .find(|(_, stood_ms)| *stood_ms > 0)?;
    let would = match limit.larger(instance) {
        Some(larger) => format!("{} is the smallest of its family that has more", larger.name),
        None => "no type of its family has more".to_owned(),
    };
    Some(format!(
        "it stood at {} for {}, so the instance may have held requests back: {would}",
        limit.words(instance),
        evenkeel_sim::text::span(stood_ms / 1_000),
    ))
}

/// Returns whether a type is built on the Nitro System.
fn is_nitro(instance: &InstanceType) -> bool {
    let is_bare = |size: &str| size.starts_with("metal");
    let parts = instance.name.split_once('.');
    parts.is_none_or(|(family, size)| !XEN_FAMILIES.contains(&family) || is_bare(size))
}

/// Returns the most IOPS that an instance achieves on a volume of a type; `None` if that is what is
/// provisioned, or without an instance.
#[must_use]
pub fn iops_max(instance: Option<&InstanceType>, volume_type: VolumeType) -> Option<u32> {
    let has_limit = matches!(volume_type, VolumeType::Io1 | VolumeType::Io2);
    instance.filter(|instance| has_limit && !is_nitro(instance)).map(|_| XEN_IOPS_MAX)
}

/// Returns whether an instance takes volumes with Multi-Attach. Source: EC2 API reference,
/// ModifyVolume: "up to 16 Nitro-based instances".
#[must_use]
pub fn takes_multi_attach(instance: Option<&InstanceType>) -> bool {
    instance.is_none_or(is_nitro)
}

/// Returns why an instance does not carry all that a volume provides, if it is not built on the
/// Nitro System; `None` if it does.
#[must_use]
pub fn not_carried(instance: Option<&InstanceType>, spec: &VolumeSpec) -> Option<String> {
    let name = instance?.name;
    let most = iops_max(instance, spec.volume_type).filter(|most| spec.iops > Some(*most));
    if let Some(most) = most {
        let volume_type = spec.volume_type;
        return Some(format!(
            "{name} is not built on the Nitro System, and achieves at most {most} IOPS on a volume \
             of {volume_type}"
        ));
    }
    (spec.multi_attach && !takes_multi_attach(instance)).then(|| {
        format!("{name} is not built on the Nitro System, and takes no volume with Multi-Attach")
    })
}

/// Returns the smallest type of the family of an instance whose I/Os and bytes a second, by
/// `rates`, are no less than these.
pub(crate) fn larger(
    host: &InstanceType,
    (iops, bytes): (u64, u64),
    rates: impl Fn(&InstanceType) -> (u64, u64),
) -> Option<&'static InstanceType> {
    let (own, _) = host.name.split_once('.')?;
    let carries = |other: &&InstanceType| {
        let (other_iops, other_bytes) = rates(other);
        let is_family = other.name.split_once('.').is_some_and(|(family, _)| family == own);
        is_family && other_iops >= iops && other_bytes >= bytes
    };
    instance::all().iter().filter(carries).min_by_key(|other| {
        (other.baseline_iops, other.baseline_mbps, other.iops_max, other.mbps_max, other.name)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::minutes;

    fn on(instance: &str, per_second: &[u64]) -> Option<String> {
        let all: Vec<u64> = per_second.iter().map(|rate| rate * 60).collect();
        let instance = instance::by_name(instance).expect("a type");
        stood([minutes(&all)].iter(), instance)
    }

    /// An m5.large sustains 3,600 IOPS, and has 18,750 for half an hour; an m5.xlarge 6,000.
    #[test]
    fn a_flat_line_at_what_an_instance_sustains_is_cut() {
        let flat = [3_600; 10];
        assert_eq!(
            on("m5.large", &flat).as_deref(),
            Some(
                "it stood at the 3600 IOPS that m5.large sustains for 10 min, so the instance may \
                 have held requests back: m5.xlarge is the smallest of its family that has more"
            )
        );
        // What passes through it, and what is not near it, is not cut.
        assert_eq!(on("m5.large", &[3_000, 3_600, 3_601, 3_700, 4_500, 3_600, 3_000]), None);
        assert_eq!(on("m5.xlarge", &flat), None);
        assert_eq!(on("m5.large", &[3_400; 10]), None);
        // It was recorded elsewhere.
        let mut elsewhere = flat.to_vec();
        elsewhere.push(30_000);
        assert_eq!(on("m5.large", &elsewhere), None);
        let burst = on("m5.large", &[18_700; 10]).expect("a reason");
        assert!(burst.contains("the 18750 IOPS that m5.large has at most for 10 min"), "{burst}");
        let largest = on("c4.8xlarge", &[32_000; 10]).expect("a reason");
        assert!(largest.ends_with("no type of its family has more"), "{largest}");
    }

    #[test]
    fn families_without_nitro_are_those_of_the_table() {
        let families = |is_meant: fn(&InstanceType) -> bool| {
            let types = instance::all().iter().filter(|instance| is_meant(instance));
            let families = types.filter_map(|instance| instance.name.split_once('.'));
            families.map(|(family, _)| family).collect::<std::collections::BTreeSet<_>>()
        };
        assert_eq!(families(|instance| !is_nitro(instance)), XEN_FAMILIES.into_iter().collect());
        for name in ["r5.24xlarge", "t3.nano", "c5n.metal", "m7a.large", "u-6tb1.metal"] {
            assert!(instance::by_name(name).is_none_or(is_nitro), "{name}");
        }
        let io2 = crate::testing::layout(1, VolumeType::Io2, 1_000, Some(40_000)).each;
        let on = |name| not_carried(instance::by_name(name), &io2);
        let words = "r4.16xlarge is not built on the Nitro System, and achieves at most 32000 IOPS \
                     on a volume of io2";
        assert_eq!(on("r4.16xlarge").as_deref(), Some(words));
        assert_eq!(on("r5.24xlarge"), None);
        let enough = VolumeSpec { iops: Some(32_000), ..io2 };
        assert_eq!(not_carried(instance::by_name("r4.16xlarge"), &enough), None);
        let shared = VolumeSpec { multi_attach: true, ..enough };
        let words = not_carried(instance::by_name("r4.16xlarge"), &shared).expect("a reason");
        assert!(words.ends_with("takes no volume with Multi-Attach"), "{words}");
        assert_eq!(not_carried(None, &shared), None);
    }

    #[test]
    fn volumes_stand_at_it_together_and_counters_go_before_the_estimate() {
        let host = instance::by_name("m5.large").expect("a type");
        let half = minutes(&[1_800 * 60; 10]);
        assert_eq!(stood([half.clone()].iter(), host), None);
        assert!(stood([half.clone(), half.clone()].iter(), host).is_some());
        let mut counted = half.clone();
        for interval in &mut counted.intervals {
            interval.delayed.instance = Some(false);
        }
        assert_eq!(stood([counted, half].iter(), host), None);
        // 81.25 MB/s: 19,836 requests of 4 KiB are more IOPS than it has, so they are larger.
        let mut large = minutes(&[310 * 60; 10]);
        for interval in &mut large.intervals {
            interval.read_bytes = 81_250_000 * 60;
        }
        let words = stood([large].iter(), host).expect("a reason");
        assert!(words.contains("the 77 MiB/s that m5.large sustains"), "{words}");
    }
}
