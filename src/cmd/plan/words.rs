//! The words for costs, times and limits that all answers share.

use evenkeel_planner::layout::LimitKind;
use evenkeel_planner::neighbours::Less;

const MICRO_USD_PER_CENT: u64 = 10_000;

/// Millionths of a dollar as dollars and cents.
pub fn usd(micro: u64) -> String {
    let cents = micro.div_ceil(MICRO_USD_PER_CENT);
    format!("{}.{:02}", cents / 100, cents % 100)
}

/// Milliseconds as seconds.
pub fn seconds(ms: u64) -> String {
    match ms {
        0..10_000 => format!("{}.{}", ms / 1_000, ms % 1_000 / 100),
        _ => (ms / 1_000).to_string(),
    }
}

pub const fn limit_words(kind: LimitKind) -> &'static str {
    match kind {
        LimitKind::VolumeIops => "IOPS",
        LimitKind::VolumeBytes => "MiB/s",
        LimitKind::InstanceIops => "instance IOPS",
        LimitKind::InstanceBytes => "instance MiB/s",
    }
}

pub const fn less_words(less: Less) -> &'static str {
    match less {
        Less::Volumes => "volume",
        Less::Gib => "GiB",
        Less::Iops => "IOPS",
        Less::Mibps => "MiB/s",
    }
}
