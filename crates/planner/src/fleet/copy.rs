//! The copy of a volume to a smaller one. No volume shrinks, so a new one has the size that its
//! file systems need, and their files are copied.

use evenkeel_core::volume::{VolumeSpec, VolumeType};

use super::alternatives::{self, Bound, Limits, least_with};
use super::{Action, Finding, Judged, Policy, Volume};
use crate::advice;
use crate::bisect::least;
use crate::demand::Demand;
use crate::used::{Source, Used};

/// The least monthly saving, in millionths of the list's currency, for which a copy is named: one
/// takes a person some time.
const SAVING_MIN: u64 = 1_000_000;
const GIB: u128 = 1 << 30;

/// A smaller volume to which a volume could be copied.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Smaller {
    /// The smaller volume.
    pub spec: VolumeSpec,
    /// The monthly cost of the volume after the advised action.
    pub before: u64,
    /// Monthly cost of the smaller volume.
    pub after: u64,
    /// The used space that it has room for.
    pub used: Used,
}

impl Smaller {
    /// Returns what the copy saves each month beside the advised action.
    #[must_use]
    pub const fn saving(&self) -> u64 {
        self.before.saturating_sub(self.after)
    }
}

/// Returns the cheapest smaller volume with room for the used space of a volume: one that never
/// does less than the volume after the advised action or, of an HDD type, that is no worse under
/// the demand that `shown` has. `None` if the used space is not known, or none saves anything.
pub(super) fn smaller(
    policy: &Policy,
    volume: &Volume,
    judged: &Judged,
    shown: Option<(&Demand, &Bound)>,
) -> Option<Smaller> {
    let is_meant = !matches!(judged.finding(), Finding::NotJudged | Finding::Unattached)
        && judged.action != Action::Delete
        && !volume.boots
        && !volume.spec.multi_attach;
    let of_trace = judged.known.and_then(|known| known.used_bytes);
    let of_trace = of_trace.map(|bytes| Used { bytes, source: Source::FileSystem });
    let used = volume.used.or(of_trace).filter(|_| is_meant)?;
    let (present, before) = judged.advised();
    let gib = needed_gib(policy, used)?.max(1);
    let largest = present.size_gib.checked_sub(1)?;
    if gib > largest {
        return None;
    }
    let types: Vec<VolumeType> = alternatives::types(policy, volume).collect();
    let mut found: Vec<VolumeSpec> = Vec::new();
    for volume_type in &types {
        found.extend(of_type(policy, &present, *volume_type, gib));
    }
    if let Some((demand, bound)) = shown.filter(|_| !advice::is_ssd(present.volume_type)) {
        let spec = bound.smaller(policy, &types, demand, gib.into());
        found.extend(spec.filter(|spec| spec.size_gib <= largest));
    }
    let with_cost = |spec: VolumeSpec| Some((alternatives::monthly(policy, &spec)?, spec));
    let priced = found.into_iter().filter_map(with_cost);
    let (after, spec) = priced.min_by_key(|(cost, spec)| (*cost, spec.volume_type))?;
    let smaller = Smaller { spec, before, after, used };
    (smaller.saving() >= SAVING_MIN).then_some(smaller)
}

/// Returns the smallest volume of a type, of at least `gib`, that is smaller than a volume and
/// never does less. The size may limit what a type provides.
fn of_type(
    policy: &Policy,
    present: &VolumeSpec,
    volume_type: VolumeType,
    gib: u32,
) -> Option<VolumeSpec> {
    let from = gib.max(policy.rules.of(volume_type)?.size_gib_min);
    let largest = present.size_gib.checked_sub(1).filter(|largest| from <= *largest)?;
    let limits = Limits::of(policy, present);
    let of_size = |size_gib: u32| {
        let sized = VolumeSpec { size_gib, ..*present };
        let spec = least_with(policy, &sized, volume_type, limits)?;
        advice::never_less(policy.rules, &spec, present).then_some(spec)
    };
    least((from, largest), of_size).map(|(_, spec)| spec)
}

/// Returns the GiB of a volume that holds used space with the free part; `None` if no volume is so
/// large.
fn needed_gib(policy: &Policy, used: Used) -> Option<u32> {
    u32::try_from(gib_with_free(used.bytes, policy.free_percent)?).ok()
}

/// Returns the GiB of a volume of which these bytes are used and `free_percent` is free, rounded
/// up; `None` if all of it or more is to be free.
#[must_use]
pub fn gib_with_free(used_bytes: u64, free_percent: u32) -> Option<u64> {
    let percent = u128::from(100_u32.checked_sub(free_percent)?);
    let bytes = (u128::from(used_bytes) * 100).checked_div(percent)?;
    u64::try_from(bytes.div_ceil(GIB)).ok()
}

#[cfg(test)]
mod tests {
    use evenkeel_core::volume::VolumeType::{Gp2, Gp3, Io2, Sc1, St1};

    use super::*;
    use crate::fleet::testing::{hours, volume};
    use crate::fleet::{Evidence, judge};

    fn with_used(volume: Volume, gib: u64) -> Volume {
        let used = Some(Used { bytes: gib << 30, source: Source::FileSystem });
        Volume { used, ..volume }
    }

    fn copied(volume: &Volume) -> Option<(VolumeType, u32, Option<u32>, u64)> {
        let judged = judge(&Policy::usual(), volume, Evidence::Absent);
        let smaller = judged.smaller?;
        let spec = smaller.spec;
        Some((spec.volume_type, spec.size_gib, spec.iops, smaller.saving()))
    }

    #[test]
    fn a_copy_has_the_limits_of_the_volume_and_a_free_part() {
        // 70 GiB are 70 % of 100.
        let gp3 = with_used(volume(Gp3, 500, Some(4_000), Some(250)), 70);
        assert_eq!(copied(&gp3), Some((Gp3, 100, Some(4_000), 400 * 80_000)));
        // gp2 becomes gp3 with 3,000 IOPS and 128 MiB/s, for less, and the copy of that is smaller.
        let gp2 = with_used(volume(Gp2, 100, None, None), 7);
        assert_eq!(copied(&gp2), Some((Gp3, 10, Some(3_000), 90 * 80_000)));
        // 500 IOPS of a GiB are the most of gp3, so 16,000 need 32 GiB.
        let fast = with_used(volume(Gp3, 500, Some(16_000), Some(125)), 1);
        assert_eq!(copied(&fast).unwrap().1, 32);
        let io2 = with_used(volume(Io2, 500, Some(8_000), None), 70);
        assert_eq!(copied(&io2), Some((Io2, 100, Some(8_000), 400 * 125_000)));
    }

    #[test]
    fn no_copy_is_named_without_used_space_or_a_saving() {
        let gp3 = volume(Gp3, 500, None, None);
        assert_eq!(copied(&gp3), None);
        assert_eq!(copied(&with_used(gp3.clone(), 350)), None, "350 GiB with 30 % free are 500");
        assert_eq!(copied(&with_used(volume(Gp3, 10, None, None), 1)), None, "less than a dollar");
        for other in [
            Volume { boots: true, ..gp3.clone() },
            Volume { attached: Some(false), ..gp3.clone() },
            Volume { unsettled: Some("its state is error".to_owned()), ..gp3.clone() },
        ] {
            assert_eq!(copied(&with_used(other, 10)), None);
        }
        let all_free = Policy { free_percent: 100, ..Policy::usual() };
        let judged = judge(&all_free, &with_used(gp3, 10), Evidence::Absent);
        assert_eq!(judged.smaller, None);
    }

    /// An HDD type has its throughput by its size, so only its recording shows what is enough.
    #[test]
    fn a_copy_of_an_hdd_volume_needs_its_recording() {
        let st1 = with_used(volume(St1, 4_000, None, None), 100);
        assert_eq!(copied(&st1), None);
        let quiet = Evidence::Trace(Box::new(hours(14 * 24, 1, 1, 1_024)));
        let judged = judge(&Policy::usual(), &st1, quiet);
        let smaller = judged.smaller.expect("a smaller volume");
        assert!(matches!(smaller.spec.volume_type, St1 | Sc1 | Gp3), "{smaller:?}");
        assert!(smaller.spec.size_gib >= 143 && smaller.spec.size_gib < 4_000, "{smaller:?}");
        assert!(smaller.after < smaller.before && smaller.before == judged.advised().1);
    }
}
