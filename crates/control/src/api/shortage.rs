//! The texts of `InsufficientVolumeCapacity`: the short resource, the missing amount, and the
//! largest volume that would fit.

use std::fmt::Write as _;

use evenkeel_core::qos::admission::{Oversell, Resource};
use evenkeel_core::units::{ByteCount, GIB, MIB};
use evenkeel_core::volume::VolumeSpec;

use crate::model::{AccountResource, OverQuota, Shortfall, Source, SpaceShort};

/// Returns the unit in which amounts of a resource are shown.
pub(super) const fn unit(resource: Resource) -> &'static str {
    match resource {
        Resource::DeviceTime => "I/Os of 16 KiB per second",
        Resource::NetworkIn | Resource::NetworkOut => "bytes per second",
        Resource::Cpu => "ns per second",
    }
}

/// Returns the source of the capacity, in words.
const fn source(source: Source) -> &'static str {
    match source {
        Source::Calibration => "as calibrated",
        Source::Operator => "as the operator has set it",
    }
}

/// Returns the text for a shortage of capacity.
pub(super) fn capacity(shortfall: &Shortfall) -> String {
    let Shortfall { asked, oversell, source: from, row, resource, needed, left, fits, .. } =
        shortfall;
    let row = row.words().map(|words| format!(" {words}")).unwrap_or_default();
    let from_calibration = *from == Source::Calibration;
    let from = source(*from);
    let unit = unit(*resource);
    let volume_type = asked.volume_type;
    let mut text = format!(
        "There is not enough {resource}{row} left to sell ({from}) for {volume}: it reserves what \
         is worth {needed} {unit}, {left} are left, short by {}.",
        needed.saturating_sub(*left),
        volume = described(asked),
    );
    if *oversell != Oversell::NONE {
        let _ = write!(text, " This is with {volume_type} sold {oversell} times over.");
    }
    let _ = match fits {
        Some(fits) => write!(text, " What would fit is {}: ask for no more,", described(fits)),
        None => write!(text, " No {volume_type} volume would fit:"),
    };
    text.push_str(
        " choose a type that reserves less, or make room; `evenkeel volume capacity` lists what is \
         sold.",
    );
    if from_calibration {
        text.push_str(
            " If the machine was busy during its measurement, `evenkeel calibrate` repeats it; \
             `evenkeel serve --sell-iops N` sets what is sold, and `--no-guarantee` promises \
             nothing and refuses nothing.",
        );
    }
    text
}

/// Returns the text for a shortage of space.
pub(super) fn space(short: &SpaceShort) -> String {
    let SpaceShort { asked, needed, left, total, oversell } = short;
    let volume = described(asked);
    format!(
        "There is not enough space left to sell for {volume}: it takes {needed} more, {left} are \
         left of {total} that are sold {oversell} times over. Ask for no more, make room, or serve \
         with a larger --oversell-space; `evenkeel volume capacity` lists what is sold.",
        needed = gib(*needed),
        left = gib(*left),
        total = gib(*total),
    )
}

/// Returns the text for a shortage of space for snapshots.
pub(super) fn snapshot(for_sale: ByteCount, sold: ByteCount, needed: ByteCount) -> String {
    let left = ByteCount(for_sale.0.saturating_sub(sold.0));
    let text = match needed.0 {
        ..=1 => format!(
            "There is no space left to sell for a snapshot: {} of {} are sold.",
            gib(sold),
            gib(for_sale),
        ),
        _ => format!(
            "There is not enough space left to sell for a snapshot: it takes {}, because its \
             volume may overwrite everything that the two share; {} of {} are left.",
            gib(needed),
            gib(left),
            gib(for_sale),
        ),
    };
    format!(
        "{text} Make room, or serve with a larger --oversell-space; `evenkeel volume capacity` \
         lists what is sold.",
    )
}

/// Returns EC2's code for a volume beyond a quota of the account. EC2 has no quota of throughput,
/// and so only the code of limits in general.
pub(super) const fn quota_code(resource: AccountResource) -> &'static str {
    match resource {
        AccountResource::Iops => "MaxIOPSLimitExceeded",
        AccountResource::Throughput => "ResourceLimitExceeded",
        AccountResource::Size => "VolumeLimitExceeded",
    }
}

/// Returns the unit in which the use of a quota is shown.
pub(super) const fn quota_unit(resource: AccountResource) -> &'static str {
    match resource {
        AccountResource::Iops => "IOPS",
        AccountResource::Throughput => "bytes per second",
        AccountResource::Size => "GiB",
    }
}

/// Returns the text for a volume beyond a quota of the account.
pub(super) fn quota(over: &OverQuota) -> String {
    let OverQuota { resource, quota, used, wanted } = *over;
    let (shown, unit): (fn(u64) -> String, _) = match resource {
        AccountResource::Throughput => (mibps, "MiB/s"),
        other => (|amount| amount.to_string(), quota_unit(other)),
    };
    let verb = if resource == AccountResource::Size { "have" } else { "reserve" };
    format!(
        "The account has a quota of {quota} {unit}. Its other volumes {verb} {used}, and this one \
         would {verb} {wanted}, where {left} are left. Ask for no more, delete volumes, or serve \
         with higher --quotas; `evenkeel volume capacity` lists the quotas.",
        quota = shown(quota),
        used = shown(used),
        wanted = shown(wanted),
        left = shown(quota.saturating_sub(used)),
    )
}

/// Returns bytes per second in MiB/s, without decimals or with two, rounded down.
fn mibps(bytes: u64) -> String {
    let whole = bytes / MIB;
    match bytes % MIB {
        0 => whole.to_string(),
        rest => format!("{whole}.{:02}", rest * 100 / MIB),
    }
}

/// Returns bytes in GiB, rounded down to a tenth.
fn gib(bytes: ByteCount) -> String {
    let tenths = u128::from(bytes.0) * 10 / u128::from(GIB);
    format!("{}.{} GiB", tenths / 10, tenths % 10)
}

/// Describes a volume: its type, its size, its provisioned limits.
fn described(spec: &VolumeSpec) -> String {
    let article = if spec.volume_type.name().starts_with('i') { "an" } else { "a" };
    let mut text = format!("{article} {} volume of {} GiB", spec.volume_type, spec.size_gib);
    if let Some(iops) = spec.iops {
        let _ = write!(text, " with {iops} IOPS");
    }
    if let Some(mibps) = spec.throughput_mibps {
        let _ = write!(text, " and {mibps} MiB/s");
    }
    text
}
