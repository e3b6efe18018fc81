//! What a recording of the load shows, in place of the planner's replay.
//!
//! The world knows its load exactly, so the layouts that carry it follow from its highest rates.
//! The planner's replay of recordings is tested where it is.

use evenkeel_core::units::MIB;
use evenkeel_core::volume::{VolumeRequest, VolumeSpec, VolumeType};
use evenkeel_planner::autopilot::evidence::{Evidence, Judged, Proposal};

use super::load::DAY_MS;
use super::state::{World, price};

/// Percent beyond what was recorded.
const HEADROOM_PERCENT: u64 = 20;
/// Days that a recording needs to show that less suffices.
const DAYS: u64 = 14;

/// Returns the evidence at a time.
pub(super) fn evidence(world: &World) -> Evidence {
    let volumes = world.space.volumes();
    let sizes: u64 =
        volumes.iter().filter_map(|id| world.spec(id)).map(|spec| u64::from(spec.size_gib)).sum();
    let judged = volumes.iter().filter_map(|id| {
        let spec = world.spec(id)?;
        let share = |rate: u64| {
            let part = u128::from(rate) * u128::from(spec.size_gib) / u128::from(sizes.max(1));
            let part = part * u128::from(100 + HEADROOM_PERCENT) / 100;
            u64::try_from(part).expect("invariant: a share of a rate")
        };
        Some(judge(world, id, &spec, share))
    });
    Evidence {
        made_ms: world.unix_ms(),
        digest: format!("{:016x}", world.now_ms),
        volumes: judged.collect(),
    }
}

fn judge(world: &World, id: &str, spec: &VolumeSpec, share: impl Fn(u64) -> u64) -> Judged {
    let peak = |days: u64| {
        let from_ms = world.now_ms.saturating_sub(days * DAY_MS);
        let (iops, mibps) = world.load.most(from_ms, world.now_ms);
        (share(iops.into()), share(u64::from(mibps) * MIB))
    };
    let (day_iops, day_bytes) = peak(1);
    let (iops, bytes) = peak(DAYS);
    let pacing = world.ec2.rules().pacing(spec);
    let carries = |iops: u64, bytes: u64| {
        let operations = pacing.operations.map_or(u64::MAX, |limit| limit.sustained_per_second());
        let most = pacing.bytes.map_or(u64::MAX, |limit| limit.sustained_per_second());
        iops <= operations && bytes <= most
    };
    let up = if carries(day_iops, day_bytes) {
        None
    } else {
        carrier(world, spec.volume_type, spec.size_gib, day_iops, day_bytes)
    };
    let down = (world.now_ms >= DAYS * DAY_MS)
        .then(|| carrier(world, VolumeType::Gp3, spec.size_gib, iops, bytes))
        .flatten()
        .filter(|cheaper| cheaper.monthly_micro < price(spec));
    Judged {
        volume: id.to_owned(),
        up,
        down,
        credits_empty_s: None,
        peak_iops: Some(iops),
        peak_bytes_per_s: Some(bytes),
        reasons: Vec::new(),
    }
}

/// Returns the cheapest volume of a type and size that carries these rates.
fn carrier(
    world: &World,
    volume_type: VolumeType,
    size_gib: u32,
    iops: u64,
    bytes: u64,
) -> Option<Proposal> {
    let volume_type = if volume_type == VolumeType::Gp2 { VolumeType::Gp3 } else { volume_type };
    let rules = world.ec2.rules();
    let of_type = rules.of(volume_type)?;
    let mibps = u32::try_from(bytes.div_ceil(MIB)).ok()?.max(125);
    let wanted = u32::try_from(iops).ok()?.max(3_000).max(mibps.saturating_mul(4));
    let wanted = if mibps == 125 { wanted.max(3_000) } else { wanted };
    let iops = wanted.min(of_type.iops_max(size_gib)?);
    let request = VolumeRequest {
        volume_type,
        size_gib,
        iops: Some(iops),
        throughput_mibps: Some(mibps.min(iops / 4)),
        multi_attach: false,
    };
    let spec = rules.resolve(&request).ok()?;
    Some(Proposal { spec, exceeded_s_per_day_max: 60, monthly_micro: price(&spec) })
}
