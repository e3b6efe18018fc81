//! The words for bytes, volumes and money in reasons.

use evenkeel_core::units::{GIB, MIB};
use evenkeel_core::volume::VolumeSpec;

/// Returns bytes in GiB with one decimal, or in MiB if that is shorter.
pub fn bytes(count: u64) -> String {
    if count.is_multiple_of(GIB) {
        return format!("{} GiB", count / GIB);
    }
    if count < GIB {
        return format!("{} MiB", count.div_ceil(MIB));
    }
    let tenths = u128::from(count) * 10 / u128::from(GIB);
    format!("{}.{} GiB", tenths / 10, tenths % 10)
}

/// Returns a volume as in layouts: `gp3 100 GiB, 3000 IOPS, 125 MiB/s`.
pub fn spec(spec: &VolumeSpec) -> String {
    let mut text = format!("{} {} GiB", spec.volume_type, spec.size_gib);
    if let Some(iops) = spec.iops {
        text += &format!(", {iops} IOPS");
    }
    if let Some(mibps) = spec.throughput_mibps {
        text += &format!(", {mibps} MiB/s");
    }
    text
}

/// Returns an amount with its currency.
pub fn money(micro: u64, currency: &str) -> String {
    format!("{} {currency}", crate::format::money(micro))
}
