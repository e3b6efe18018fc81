//! Instance types and their EBS limits, which apply to all volumes attached to one client host
//! together.
//!
//! The numbers live in `data/instances.csv`; `build.rs` checks them and turns them into the tables
//! here.

use crate::qos::pacing::{CreditLimit, Limit};
use crate::qos::sharing::InstancePacing;
use crate::time::Duration;
use crate::volume::Date;

include!(concat!(env!("OUT_DIR"), "/instances.rs"));

/// The EBS limits of one instance type. A type with a maximum above its baseline bursts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct InstanceType {
    /// Its name, `m5.large`.
    pub name: &'static str,
    /// Whether its link to EBS is dedicated from the start.
    pub ebs_optimized: EbsOptimized,
    /// Sustained bandwidth, in decimal Mbit/s.
    pub baseline_mbps: u32,
    /// Maximum bandwidth, in decimal Mbit/s.
    pub mbps_max: u32,
    /// Sustained IOPS, at 16 KiB.
    pub baseline_iops: u32,
    /// Maximum IOPS, at 16 KiB.
    pub iops_max: u32,
    /// Maximum number of volumes that may be attached to one.
    pub attachments_max: u32,
    /// Scope of the attachment limit.
    pub attachment_limit: AttachmentLimit,
}

/// Scope of the attachment limit of an instance type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AttachmentLimit {
    /// Volumes, network interfaces and NVMe disks of the instance count. The number is the rest for
    /// volumes beside one interface and all disks.
    Shared,
    /// Only volumes count.
    Dedicated,
}

/// Availability of an instance type's dedicated link to EBS.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum EbsOptimized {
    /// Always on.
    Default,
    /// Must be requested.
    Supported,
}

/// Bandwidth of an instance type on an early date, when IOPS per instance were not published.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct HistoricBandwidth {
    /// The instance type's name.
    pub name: &'static str,
    /// Date of the published value.
    pub date: Date,
    /// Dedicated bandwidth in decimal Mbit/s.
    pub mbps: u32,
}

impl InstanceType {
    /// Returns the bytes per second that it sustains.
    #[must_use]
    pub fn baseline_bytes_per_second(&self) -> u64 {
        u64::from(self.baseline_mbps) * 125_000
    }

    /// Returns the maximum bytes per second.
    #[must_use]
    pub fn bytes_per_second_max(&self) -> u64 {
        u64::from(self.mbps_max) * 125_000
    }

    /// Returns the limits of all volumes attached to one such instance together. A type that bursts
    /// may do so for [`BURST`] from a full balance, and earns credits at its baseline.
    #[must_use]
    pub fn pacing(&self) -> InstancePacing {
        InstancePacing {
            operations: Some(burst_limit(self.baseline_iops.into(), self.iops_max.into())),
            bytes: Some(burst_limit(self.baseline_bytes_per_second(), self.bytes_per_second_max())),
            ..InstancePacing::UNLIMITED
        }
    }
}

/// Duration of an instance's burst from a full balance: "at least 30 minutes, once in 24 hours"
/// (EC2 user guide, EBS-optimized instances).
pub const BURST: Duration = Duration::from_secs(1_800);

/// Returns a limit of `most` a second with credits for the part above `baseline`; without credits
/// if there is none.
#[must_use]
pub fn burst_limit(baseline: u64, most: u64) -> Limit {
    let above = most.saturating_sub(baseline);
    let credit = CreditLimit {
        refill_per_second: baseline,
        capacity: above.saturating_mul(BURST.ns / 1_000_000_000),
    };
    Limit { per_second: most, credit: Some(credit).filter(|_| above > 0) }
}

/// Returns each instance type with published EBS limits, sorted by name.
#[must_use]
pub fn all() -> &'static [InstanceType] {
    INSTANCES
}

/// Returns the instance type with this name; `None` if it has no published EBS limits.
#[must_use]
pub fn by_name(name: &str) -> Option<&'static InstanceType> {
    let found = INSTANCES.binary_search_by(|t| t.name.cmp(name)).ok()?;
    INSTANCES.get(found)
}

/// Returns the published values of early instance types, sorted by name and date.
#[must_use]
pub fn history() -> &'static [HistoricBandwidth] {
    HISTORY
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_sorted_and_each_is_found() {
        assert!(all().windows(2).all(|w| w[0].name < w[1].name));
        assert_eq!(all().len(), 1354);
        assert!(all().iter().all(|t| by_name(t.name) == Some(t)));
        for name in ["", "m5", "m5.large ", "M5.large", "zz.large"] {
            assert_eq!(by_name(name), None, "{name:?}");
        }
    }

    #[test]
    fn samples_carry_their_published_limits() {
        use EbsOptimized::{Default, Supported};
        for (name, support, base_mbps, mbps, base_iops, iops) in [
            ("t3.nano", Default, 43, 2_085, 250, 11_800),
            ("m5.large", Default, 650, 4_750, 3_600, 18_750),
            ("c4.2xlarge", Default, 1_000, 1_000, 8_000, 8_000),
            ("m1.large", Supported, 500, 500, 4_000, 4_000),
            ("m2.4xlarge", Supported, 1_000, 1_000, 8_000, 8_000),
            ("r5b.24xlarge", Default, 60_000, 60_000, 260_000, 260_000),
            ("r8gb.48xlarge", Default, 300_000, 300_000, 1_440_000, 1_440_000),
        ] {
            let t = by_name(name).unwrap();
            let found = (t.ebs_optimized, t.baseline_mbps, t.mbps_max, t.baseline_iops, t.iops_max);
            assert_eq!(found, (support, base_mbps, mbps, base_iops, iops), "{name}");
        }
        assert_eq!(by_name("m1.large").unwrap().bytes_per_second_max(), 62_500_000);
        assert_eq!(by_name("t3.nano").unwrap().baseline_bytes_per_second(), 5_375_000);
    }

    #[test]
    fn a_third_of_the_types_burst() {
        let bursting = |t: &&InstanceType| t.mbps_max > t.baseline_mbps;
        assert_eq!(all().iter().filter(bursting).count(), 532);
        assert!(
            all().iter().all(|t| (t.mbps_max > t.baseline_mbps) == (t.iops_max > t.baseline_iops))
        );
    }

    #[test]
    fn a_burst_lasts_half_an_hour() {
        let pacing = by_name("m5.large").unwrap().pacing();
        let credit = CreditLimit { refill_per_second: 3_600, capacity: 15_150 * 1_800 };
        let operations = Limit { per_second: 18_750, credit: Some(credit) };
        assert_eq!(pacing.operations, Some(operations));
        let credit = CreditLimit { refill_per_second: 81_250_000, capacity: 512_500_000 * 1_800 };
        let bytes = Limit { per_second: 593_750_000, credit: Some(credit) };
        assert_eq!(pacing.bytes, Some(bytes));
        let steady = by_name("m1.large").unwrap().pacing();
        assert_eq!(steady.bytes, Some(Limit { per_second: 62_500_000, credit: None }));
    }

    #[test]
    fn the_launch_set_of_2012_is_known() {
        let launch = "2012-09-14".parse().unwrap();
        let of_launch = |h: &&HistoricBandwidth| h.date == launch;
        let found: std::vec::Vec<_> =
            history().iter().filter(of_launch).map(|h| (h.name, h.mbps)).collect();
        assert_eq!(found, [("m1.large", 500), ("m1.xlarge", 1_000), ("m2.4xlarge", 1_000)]);
        assert_eq!(history().len(), 10);
    }
}
