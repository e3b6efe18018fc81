//! The words for costs, times, layouts and limits that all answers share.

use evenkeel_core::volume::VolumeSpec;
use evenkeel_planner::layout::{Layout, LimitKind};
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

/// A layout, such as `2 x gp3 100 GiB, 3000 IOPS, 125 MiB/s`.
pub fn layout_words(layout: &Layout) -> String {
    match layout.volumes {
        1 => spec_words(&layout.each),
        volumes => format!("{volumes} x {}", spec_words(&layout.each)),
    }
}

/// A volume, such as `gp3 100 GiB, 3000 IOPS, 125 MiB/s`.
pub fn spec_words(spec: &VolumeSpec) -> String {
    let VolumeSpec { volume_type, size_gib, iops, throughput_mibps, .. } = spec;
    let mut words = format!("{volume_type} {size_gib} GiB");
    if let Some(iops) = iops {
        words += &format!(", {iops} IOPS");
    }
    if let Some(mibps) = throughput_mibps {
        words += &format!(", {mibps} MiB/s");
    }
    words
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
