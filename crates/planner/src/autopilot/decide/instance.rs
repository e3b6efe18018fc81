//! The limits of the instance: IOPS and MiB/s that it cannot carry are never bought.

use evenkeel_core::instance::{self, InstanceType};
use evenkeel_core::units::MIB;
use evenkeel_core::volume::VolumeSpec;

use super::facts::{Facts, narrow};
use crate::fleet::alternatives::Limits;
use crate::instances::{self, larger};

/// Rates that the volumes of an instance have together.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Sum {
    pub iops: u64,
    pub bytes: u64,
}

impl Sum {
    /// Returns the sum with the limits of another volume.
    fn and(self, limits: Limits) -> Self {
        Self {
            iops: self.iops.saturating_add(limits.iops.unwrap_or(0)),
            bytes: self.bytes.saturating_add(limits.bytes.unwrap_or(0)),
        }
    }
}

/// The part of a proposal that an instance carries.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Carried {
    /// The proposal, with the limits that the instance carries.
    pub spec: VolumeSpec,
    /// Why it is less than the proposal; `None` if it is not.
    pub reason: Option<String>,
    /// A remark on a proposal that the instance carries only for a while.
    pub note: Option<String>,
}

impl Carried {
    const fn whole(spec: VolumeSpec) -> Self {
        Self { spec, reason: None, note: None }
    }
}

impl Facts<'_> {
    /// Returns the type of the host, if its limits are published.
    pub fn instance_type(&self) -> Option<&'static InstanceType> {
        instance::by_name(&self.now.instance.as_ref()?.instance_type)
    }

    /// Returns the limits of all volumes on the host but one.
    fn beside(&self, volume: &str) -> Sum {
        let host = self.now.instance.as_ref();
        let mut sum = Sum {
            iops: host.map_or(0, |host| host.other_iops),
            bytes: host.map_or(0, |host| host.other_mibps.saturating_mul(MIB)),
        };
        for member in self.members.iter().filter(|member| member.volume.id != volume) {
            sum = sum.and(self.limits(&member.volume.spec));
        }
        sum
    }
}

/// Returns the part of a proposal for a volume that its instance carries beside the others. Limits
/// never become less than the present ones.
pub fn carried(facts: &Facts<'_>, volume: &str, from: &VolumeSpec, to: VolumeSpec) -> Carried {
    let Some(host) = facts.instance_type() else { return Carried::whole(to) };
    if let Some(words) = instances::not_carried(Some(host), &to) {
        let most = instances::iops_max(Some(host), to.volume_type).max(from.iops);
        let spec = VolumeSpec { iops: to.iops.min(most), ..to };
        if spec == to || facts.policy.plan.rules.resolve(&spec.request()) != Ok(spec) {
            return Carried { reason: Some(words), ..Carried::whole(*from) };
        }
        let carried = carried(facts, volume, from, spec);
        let words = carried.reason.iter().fold(words, |words, more| format!("{words}; {more}"));
        return Carried { reason: Some(words), ..carried };
    }
    let beside = facts.beside(volume);
    let sum = beside.and(facts.limits(&to));
    let exceeds_iops = sum.iops > host.iops_max.into();
    let exceeds_bytes = sum.bytes > host.bytes_per_second_max();
    if !exceeds_iops && !exceeds_bytes {
        let note = burst_words(facts, host, sum);
        return Carried { note, ..Carried::whole(to) };
    }
    let mut spec = to;
    if exceeds_iops {
        let room = narrow(u64::from(host.iops_max).saturating_sub(beside.iops));
        spec.iops = to.iops.map(|iops| iops.min(room.max(from.iops.unwrap_or(0))));
    }
    if exceeds_bytes {
        let room = host.bytes_per_second_max().saturating_sub(beside.bytes) / MIB;
        let room = narrow(room).max(from.throughput_mibps.unwrap_or(0));
        spec.throughput_mibps = to.throughput_mibps.map(|mibps| mibps.min(room));
    }
    // A pair that the rules refuse, or a type whose limits are not bought, is not taken.
    let is_valid = facts.policy.plan.rules.resolve(&spec.request()) == Ok(spec);
    if !is_valid || spec == to {
        spec = *from;
    }
    Carried { reason: Some(words(facts, host, sum)), ..Carried::whole(spec) }
}

/// Returns whether an instance carries a further volume beside all others.
pub fn carries_beside(facts: &Facts<'_>, spec: &VolumeSpec) -> bool {
    let Some(host) = facts.instance_type() else { return true };
    let sum = facts.beside("").and(facts.limits(spec));
    sum.iops <= host.iops_max.into()
        && sum.bytes <= host.bytes_per_second_max()
        && instances::not_carried(Some(host), spec).is_none()
}

/// Returns the remark on rates that an instance has only in a burst.
fn burst_words(facts: &Facts<'_>, host: &InstanceType, sum: Sum) -> Option<String> {
    let is_sustained =
        sum.iops <= host.baseline_iops.into() && sum.bytes <= host.baseline_bytes_per_second();
    if is_sustained {
        return None;
    }
    let id = facts.now.instance.as_ref().map_or("", |instance| instance.id.as_str());
    let sustains = larger(host, (sum.iops, sum.bytes), |other| {
        (other.baseline_iops.into(), other.baseline_bytes_per_second())
    });
    let would = sustains.map_or_else(String::new, |larger| format!("; {} does", larger.name));
    Some(format!(
        "{id} ({}) sustains {} IOPS and {} MiB/s of the {} IOPS and {} MiB/s of its volumes{would}",
        host.name,
        host.baseline_iops,
        host.baseline_bytes_per_second() / MIB,
        sum.iops,
        sum.bytes.div_ceil(MIB),
    ))
}

/// Returns why an instance does not carry this, and the smallest type of its family that does.
fn words(facts: &Facts<'_>, host: &InstanceType, sum: Sum) -> String {
    let id = facts.now.instance.as_ref().map_or("", |instance| instance.id.as_str());
    let most = |other: &InstanceType| (other.iops_max.into(), other.bytes_per_second_max());
    let would = match larger(host, (sum.iops, sum.bytes), most) {
        Some(larger) => format!("{} is the smallest of its family that carries it", larger.name),
        None => "no type of its family carries it".to_owned(),
    };
    format!(
        "the volumes of {id} ({}) would have {} IOPS and {} MiB/s together, and it carries {} IOPS \
         and {} MiB/s at most: {would}",
        host.name,
        sum.iops,
        sum.bytes.div_ceil(MIB),
        host.iops_max,
        host.bytes_per_second_max() / MIB,
    )
}
