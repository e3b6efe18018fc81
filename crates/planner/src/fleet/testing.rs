//! Volumes and traces for the unit tests of fleets.

use evenkeel_core::volume::{Rules, VolumeRequest, VolumeType};

use super::Volume;
use crate::trace::{Clock, Columns, Interval, Kind, Trace};

/// Returns a volume that is attached.
pub fn volume(
    volume_type: VolumeType,
    size_gib: u32,
    iops: Option<u32>,
    throughput_mibps: Option<u32>,
) -> Volume {
    let multi_attach = false;
    let request = VolumeRequest { volume_type, size_gib, iops, throughput_mibps, multi_attach };
    Volume {
        id: "vol-1".to_owned(),
        name: None,
        spec: Rules::newest().resolve(&request).expect("a volume"),
        attached: Some(true),
        attached_to: None,
        boots: false,
        unsettled: None,
        region: None,
        price_region: "us-east-1".to_owned(),
        zone: None,
        device: None,
        instance_type: None,
        group: None,
        used: None,
    }
}

/// Returns a trace of hours in steps of five minutes, with `per_second` requests of `kib` KiB a
/// second; the first step of each hour has `first`.
pub fn hours(hours: u64, per_second: u64, first: u64, kib: u64) -> Trace {
    let step = |at: u64| {
        let reads = if at.is_multiple_of(12) { first } else { per_second } * 300;
        Interval {
            start_ms: at * 300_000,
            length_ms: 300_000,
            reads,
            read_bytes: reads * kib * 1_024,
            ..Interval::default()
        }
    };
    let known = Some(Kind::Sum);
    let columns = Columns { requests: known, bytes: known, ..Columns::default() };
    let intervals = (0..hours * 12).map(step).collect();
    Trace::new("vol-1", Clock::Unix, columns, intervals).expect("a trace")
}
