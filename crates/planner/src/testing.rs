//! Common setup of the planner's unit tests.

use evenkeel_core::price::PriceList;
use evenkeel_core::volume::{Rules, VolumeRequest, VolumeType};

use crate::demand::{Demand, Span};
use crate::layout::Layout;
use crate::search::{Space, Tolerance, Wanted};
use crate::spread::Spread;
use crate::trace::{Clock, Columns, Interval, Kind, Trace};

/// Microseconds of a second.
pub const S: u64 = 1_000_000;

/// Returns the newest rules and prices, for Evenkeel's volumes and an instance without limits.
pub fn space(types: &[VolumeType], volumes_max: u32) -> Space {
    Space {
        rules: Rules::newest(),
        prices: PriceList::newest().into(),
        tolerance: Tolerance::Evenkeel,
        types: types.to_vec(),
        volumes_max,
        spread: Spread::STRIPED,
        instances: vec![],
    }
}

/// Returns volumes by the newest rules.
pub fn layout(volumes: u32, volume_type: VolumeType, size_gib: u32, iops: Option<u32>) -> Layout {
    let request =
        VolumeRequest { volume_type, size_gib, iops, throughput_mibps: None, multi_attach: false };
    let each = Rules::newest().resolve(&request).expect("a volume");
    Layout { volumes, ..Layout::one(each) }
}

/// Returns a demand of consecutive seconds: the requests of each, and the size of its requests in
/// KiB.
pub fn seconds(all: &[(u64, u64)]) -> Demand {
    let span = |(at, (requests, kib)): (u64, &(u64, u64))| Span {
        start_us: at * S,
        length_us: S,
        requests: *requests,
        bytes: requests * kib * 1_024,
        ..Span::default()
    };
    let spans = (0..).zip(all).map(span).filter(|span| span.requests > 0).collect();
    Demand { spans, length_us: all.len() as u64 * S, held_back: None }
}

/// Returns a trace of minutes with these numbers of requests of 4 KiB.
pub fn minutes(all: &[u64]) -> Trace {
    let minute = |(at, reads): (u64, &u64)| Interval {
        start_ms: at * 60_000,
        length_ms: 60_000,
        reads: *reads,
        read_bytes: reads * 4_096,
        ..Interval::default()
    };
    let known = Some(Kind::Sum);
    let columns = Columns { requests: known, bytes: known, ..Columns::default() };
    let intervals = (0..).zip(all).map(minute).collect();
    Trace::new("v", Clock::Unix, columns, intervals).expect("a trace")
}

/// Returns requirements: GiB, and seconds per day in which requests may wait.
pub fn wanted(capacity_gib: u64, throttled_s_per_day: u64) -> Wanted {
    Wanted {
        capacity_gib,
        throttled_us_per_day_max: throttled_s_per_day * S,
        delays: vec![],
        boots: false,
        multi_attach: false,
        monthly_max: None,
        no_less_than: None,
    }
}
