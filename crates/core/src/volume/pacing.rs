//! The limits of a volume as plain numbers for the scheduler.

use super::VolumeSpec;
use super::rules::{Axis, IopsRule, Piece, Rules, ThroughputRule, TypeRules};
use crate::qos::pacing::{CreditLimit, Limit, Pacing};
use crate::units::{ByteCount, KIB, MIB};

impl Rules {
    /// Returns the limits of a volume. Never fails: a volume that is invalid under these rules (it
    /// was created under others) is also paced by the formulas of its type.
    #[must_use]
    pub fn pacing(&self, spec: &VolumeSpec) -> Pacing {
        let rules = self.of_or_first(spec.volume_type);
        Pacing {
            counting: rules.counting,
            tolerance: rules.tolerance,
            operations: operations(rules, spec),
            bytes: Some(bytes(rules, spec)),
        }
    }
}

/// Returns the limit in counted I/Os.
fn operations(rules: &TypeRules, spec: &VolumeSpec) -> Option<Limit> {
    match rules.iops {
        IopsRule::Uncounted => None,
        IopsRule::Ceiling { max } => Some(steady(max.into())),
        IopsRule::Provisioned { .. } => Some(steady(provisioned_iops(rules, spec).into())),
        IopsRule::FromSize { burst, credits, min, .. } => {
            let baseline = rules.iops.baseline(spec.size_gib).unwrap_or(min);
            Some(burstable(baseline.into(), burst.into(), credits))
        }
    }
}

/// Returns the limit in bytes.
fn bytes(rules: &TypeRules, spec: &VolumeSpec) -> Limit {
    match rules.throughput {
        ThroughputRule::Provisioned { default_mibps, .. } => {
            steady(MIB * u64::from(spec.throughput_mibps.unwrap_or(default_mibps)))
        }
        ThroughputRule::Piecewise { by, pieces, max_mibps } => {
            let iops = provisioned_iops(rules, spec);
            let amount = match by {
                Axis::SizeGib => spec.size_gib,
                Axis::Iops => iops,
            };
            let max = MIB * u64::from(max_mibps);
            steady(piece_at(pieces, amount).map_or(max, |p| p.rate.bytes_per_second(iops).min(max)))
        }
        ThroughputRule::Credits {
            base_mibps_per_tib,
            base_max_mibps,
            burst_mibps_per_tib,
            burst_max_mibps,
            credit_tib_per_tib,
        } => {
            let size_gib = u64::from(spec.size_gib);
            // One MiB/s for each TiB is one KiB/s for each GiB: exact at every size.
            let rate = |mibps_per_tib: u32, max_mibps: u32| {
                (KIB * size_gib * u64::from(mibps_per_tib)).min(MIB * u64::from(max_mibps))
            };
            let capacity = ByteCount::from_gib(spec.size_gib).0;
            burstable(
                rate(base_mibps_per_tib, base_max_mibps),
                rate(burst_mibps_per_tib, burst_max_mibps),
                capacity.saturating_mul(credit_tib_per_tib.into()),
            )
        }
    }
}

/// Returns the provisioned IOPS, or the type's minimum or default if the volume has none.
fn provisioned_iops(rules: &TypeRules, spec: &VolumeSpec) -> u32 {
    let least = match rules.iops {
        IopsRule::Provisioned { min, default, .. } => default.unwrap_or(min),
        _ => 0,
    };
    spec.iops.unwrap_or(least)
}

/// Returns the piece that applies at `at`: the first one that reaches it, or the last one.
fn piece_at(pieces: &[Piece], at: u32) -> Option<&Piece> {
    pieces.iter().find(|p| at <= p.up_to).or(pieces.last())
}

/// Returns a limit of a constant rate.
const fn steady(per_second: u64) -> Limit {
    Limit { per_second, credit: None }
}

/// Returns a limit of `base`, with up to `burst` while `credits` last. If the base is not lower
/// than the burst, there are no credits.
fn burstable(base: u64, burst: u64, credits: u64) -> Limit {
    if base >= burst {
        return steady(base);
    }
    let credit = CreditLimit { refill_per_second: base, capacity: credits };
    Limit { per_second: burst, credit: Some(credit) }
}
