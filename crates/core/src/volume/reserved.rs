//! The reservation of a volume: the policy depends on its type, in the dated data.

use super::VolumeSpec;
use super::rules::{Reservation, Rules, ThroughputRule};
use crate::convert::saturating;
use crate::qos::admission::{REFERENCE_BYTES, Reserved};
use crate::qos::pacing::Limit;

impl Rules {
    /// Returns the reservation of a volume. Never fails: a volume that is invalid under these rules
    /// (it was created under others) also reserves by the policy of its type.
    ///
    /// IOPS are reserved at 16 KiB, and never more bytes than the volume's limit. Throughput is
    /// reserved in addition if it is sold by itself (gp3) or is all that is sold (st1, sc1), in
    /// I/Os of the size in which its type counts.
    #[must_use]
    pub fn reserved(&self, spec: &VolumeSpec) -> Reserved {
        let rules = self.of_or_first(spec.volume_type);
        let pacing = self.pacing(spec);
        let operations = sustained(pacing.operations);
        let bytes = sustained(pacing.bytes);
        match rules.reservation {
            Reservation::Nothing => Reserved::NOTHING,
            Reservation::Provisioned
                if matches!(rules.throughput, ThroughputRule::Provisioned { .. }) =>
            {
                reserved(operations, bytes)
            }
            Reservation::Provisioned | Reservation::Baseline => {
                let carried = operations.saturating_mul(REFERENCE_BYTES.into());
                reserved(operations, bytes.min(carried))
            }
            Reservation::BaseThroughput => {
                reserved(bytes.div_ceil(rules.counting.unit_bytes.into()), bytes)
            }
        }
    }
}

/// Returns the sustained rate of a limit, without its credits. Without a limit, nothing can be
/// reserved.
fn sustained(limit: Option<Limit>) -> u64 {
    limit.map_or(0, |limit| limit.sustained_per_second())
}

fn reserved(operations_per_second: u64, bytes_per_second: u64) -> Reserved {
    let operations_per_second = saturating(operations_per_second);
    Reserved { operations_per_second, bytes_per_second }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::units::{KIB, MIB};
    use crate::volume::VolumeType::{Gp2, Gp3, Io1, Io2, Sc1, St1, Standard};
    use crate::volume::{VolumeRequest, VolumeType};

    fn of(
        as_of: &str,
        volume_type: VolumeType,
        size_gib: u32,
        bought: (Option<u32>, Option<u32>),
    ) -> (u32, u64) {
        let (iops, throughput_mibps) = bought;
        let rules = Rules::as_of(as_of.parse().unwrap()).unwrap();
        let request =
            VolumeRequest { volume_type, size_gib, iops, throughput_mibps, multi_attach: false };
        let spec = rules.resolve(&request).unwrap_or_else(|e| panic!("{request:?}: {e}"));
        let reserved = rules.reserved(&spec);
        (reserved.operations_per_second, reserved.bytes_per_second)
    }

    #[test]
    fn each_type_reserves_by_its_policy() {
        const NOW: &str = "2026-11-21";
        let nothing = (None, None);
        let at_16_kib = |iops: u32| (iops, u64::from(iops) * 16 * KIB);
        for (as_of, volume_type, size_gib, bought, expected) in [
            (NOW, Standard, 100, nothing, (0, 0)),
            // All its IOPS; bytes at 16 KiB, within the ceiling of 1,000 and 4,000 MiB/s.
            (NOW, Io1, 1_280, (Some(64_000), None), at_16_kib(64_000)),
            (NOW, Io1, 100, (Some(100), None), at_16_kib(100)),
            (NOW, Io2, 100, (Some(100_000), None), at_16_kib(100_000)),
            // 256,000 IOPS at 16 KiB are exactly the 4,000 MiB/s of the volume's limit.
            (NOW, Io2, 256, (Some(256_000), None), (256_000, 4_000 * MIB)),
            // The part that is included at each size, and the purchased one.
            (NOW, Gp3, 1, nothing, (3_000, 125 * MIB)),
            (NOW, Gp3, 100, (Some(16_000), None), (16_000, 125 * MIB)),
            (NOW, Gp3, 100, (Some(4_000), Some(1_000)), (4_000, 1_000 * MIB)),
            // The baseline, not the burst; at 16,000 no more bytes than 250 MiB/s.
            (NOW, Gp2, 1, nothing, at_16_kib(100)),
            (NOW, Gp2, 100, nothing, at_16_kib(300)),
            (NOW, Gp2, 1_000, nothing, at_16_kib(3_000)),
            (NOW, Gp2, 16_384, nothing, (16_000, 250 * MIB)),
            // The base throughput, in I/Os of 1 MiB: 500 GiB x 40 KiB/s, 125 GiB x 12 KiB/s.
            (NOW, St1, 500, nothing, (20, 20_000 * KIB)),
            (NOW, St1, 16_384, nothing, (500, 500 * MIB)),
            (NOW, Sc1, 125, nothing, (2, 1_500 * KIB)),
            (NOW, Sc1, 16_384, nothing, (192, 192 * MIB)),
            // The rules of that day: io1 then, and gp2 up to 10,000 IOPS and 160 MiB/s.
            ("2012-08", Io1, 100, (Some(1_000), None), at_16_kib(1_000)),
            ("2017-12-06", Gp2, 16_384, nothing, (10_000, 10_000 * 16 * KIB)),
        ] {
            let found = of(as_of, volume_type, size_gib, bought);
            assert_eq!(found, expected, "{as_of} {volume_type} {size_gib} GiB {bought:?}");
        }
    }

    #[test]
    fn a_type_younger_than_the_rules_reserves_by_its_first_rules() {
        let spec = VolumeRequest {
            volume_type: Gp3,
            size_gib: 10,
            iops: None,
            throughput_mibps: None,
            multi_attach: false,
        };
        let spec = Rules::newest().resolve(&spec).unwrap();
        let old = Rules::as_of("2012-08".parse().unwrap()).unwrap();
        assert_eq!(old.reserved(&spec), Rules::newest().reserved(&spec));
    }

    /// No volume of any date reserves more than its own limits allow.
    #[test]
    fn reservation_never_exceeds_the_limits_of_the_volume() {
        for rules in Rules::all() {
            for volume_type in VolumeType::ALL {
                let Some(of_type) = rules.of(volume_type) else { continue };
                for size_gib in [of_type.size_gib_min, 500, 1_000, of_type.size_gib_max] {
                    let iops = of_type.iops_max(size_gib);
                    let request = VolumeRequest {
                        volume_type,
                        size_gib,
                        iops,
                        throughput_mibps: None,
                        multi_attach: false,
                    };
                    let spec = rules.resolve(&request).unwrap();
                    let reserved = rules.reserved(&spec);
                    let pacing = rules.pacing(&spec);
                    let at_most = |limit: Option<Limit>| limit.map_or(u64::MAX, |l| l.per_second);
                    let operations = u64::from(reserved.operations_per_second);
                    assert!(operations <= at_most(pacing.operations), "{spec:?}");
                    assert!(reserved.bytes_per_second <= at_most(pacing.bytes), "{spec:?}");
                }
            }
        }
    }
}
