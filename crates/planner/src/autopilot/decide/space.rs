//! The rules of space: when a file system grows and shrinks, by how much, and how.

use evenkeel_core::units::GIB;
use evenkeel_core::volume::{VolumeChange, VolumeSpec};

use super::brakes::is_within;
use super::facts::{Change, Facts, Member, Rule, gib_down, gib_up, percent};
use super::forecast::{self, Need};
use super::words::{self, bytes};
use super::{Brake, Braked, Decision, budget, commands, instance};
use crate::advice;
use crate::autopilot::observation::{Kind, Profile};
use crate::autopilot::operation::Operation;
use crate::autopilot::operation::room;
use crate::autopilot::policy::Keep;
use crate::autopilot::state::Axis;
use crate::bisect::{largest, least};
use crate::fleet::alternatives;

/// A file system that grows faster than this percentage of its line rate is fast.
const FAST_PERCENT: u32 = 50;
/// How many times larger its steps are.
const FAST_TIMES: u64 = 2;
/// A file system with less than this percentage of its size free is full: writers wait.
const FULL_PERCENT: u32 = 1;
/// How many times larger a step is if the last one came too late, or was refused.
const LATE_TIMES: u64 = 4;

/// The rule of growth.
pub struct Growth {
    /// Whether the file system needs room.
    pub is_wanted: bool,
    /// The change that gives it; `None` if nothing can.
    pub change: Option<Change>,
}

/// The growth that is wanted.
struct Wanted {
    /// Whether room is missing now; otherwise a schedule asks for it.
    is_short: bool,
    is_emergency: bool,
    /// Whether less than the reserve is free.
    is_late: bool,
    /// The least that gives the room back, in bytes of devices.
    least: u64,
    /// The step, in bytes of devices.
    step: u64,
    reason: String,
}

/// Returns the growth of a file system.
pub fn grow(facts: &Facts<'_>, decision: &mut Decision) -> Growth {
    let nothing = Growth { is_wanted: false, change: None };
    if !facts.policy.space.is_managed {
        return nothing;
    }
    let Some(wanted) = wanted(facts) else { return nothing };
    if let Some(brake) = unsure(facts, &wanted) {
        decision.brakes.push(brake);
        return Growth { is_wanted: true, change: None };
    }
    let size = facts.now.file_system.size_bytes;
    let most = u64::from(facts.policy.space.gib_max).saturating_mul(GIB);
    let room = gib_down(most.saturating_sub(size));
    let step_gib = gib_up(wanted.step).max(1).min(room);
    let mut tried = Vec::new();
    let mut advice = None;
    if room == 0 {
        let reason = format!("its size is {}, of at most {}", bytes(size), bytes(most));
        decision.alarms.push(format!("no growth: {reason}"));
        let braked = Braked { brake: Brake::Limit, axis: Axis::Space, is_up: true, reason };
        decision.brakes.push(braked);
    } else {
        let options = options(facts, &wanted, step_gib);
        if options.is_empty() {
            let by_hand = facts.now.file_system.kind.room_by_hand();
            let by_hand = by_hand.filter(|_| !facts.policy.space.grows_volumes);
            let reason = by_hand.unwrap_or("no volume may grow or be added");
            decision.alarms.push(format!("no growth: {}: {reason}", wanted.reason));
        }
        for option in options {
            let found = facts.check(&option);
            if found.is_empty() {
                return Growth { is_wanted: true, change: Some(option) };
            }
            tried.extend(found);
            advice = advice.or_else(|| Some(commands::of(facts, &option.operation).forward));
        }
        tried.sort_by(|a, b| (a.brake, &a.reason).cmp(&(b.brake, &b.reason)));
        tried.dedup();
    }
    if tried.iter().any(|braked| wanted.is_late || !is_passing(braked.brake)) {
        let reasons: Vec<&str> = tried.iter().map(|braked| braked.reason.as_str()).collect();
        let reasons = reasons.join("; ");
        let mut alarm = format!("no growth: {}: {reasons}", wanted.reason);
        if let Some(commands) = advice {
            alarm += &format!("; by hand: {}", commands.join(" && "));
        }
        decision.alarms.push(alarm);
    }
    decision.brakes.extend(tried);
    Growth { is_wanted: true, change: None }
}

/// Returns whether a brake of growth is no alarm, because it ends by itself soon. A pause and a
/// hold of a person are alarms: they last while the file system fills. Below the reserve each brake
/// is an alarm: the service may never carry out the growth that the brake waits for.
const fn is_passing(brake: Brake) -> bool {
    matches!(brake, Brake::Busy | Brake::Stale)
}

/// Returns why a growth waits for the next reading. The step depends on how fast the file system
/// grows, and a file system that takes no further volume cannot take another step for hours.
fn unsure(facts: &Facts<'_>, wanted: &Wanted) -> Option<Braked> {
    let is_known = facts.growth_per_s.is_some() || facts.takes_another_volume();
    if !wanted.is_short || wanted.is_late || is_known {
        return None;
    }
    let reason = "how fast it grows is known after the next reading, and the step depends on \
                  that, since no volume can be added";
    let reason = reason.to_owned();
    Some(Braked { brake: Brake::Stale, axis: Axis::Space, is_up: true, reason })
}

/// Returns the growth that is wanted; `None` if there is room enough.
fn wanted(facts: &Facts<'_>) -> Option<Wanted> {
    let file_system = &facts.now.file_system;
    let space = &facts.policy.space;
    let need = forecast::need(facts);
    // Nothing is written into a chunk that the kernel empties, and it is free again after that. The
    // reserve has room for it.
    let emptied = if facts.is_moving() { room::chunk_bytes(file_system) } else { 0 };
    let short = need.wanted().saturating_sub(file_system.free_bytes.saturating_add(emptied));
    let copies = facts.copies();
    let size = file_system.size_bytes;
    let scheduled = scheduled_bytes(facts).saturating_sub(size);
    let is_short = short > 0;
    if !is_short && scheduled < GIB {
        return None;
    }
    let least = short.saturating_mul(copies);
    let usual = percent(size, space.grow_percent)
        .max(least.saturating_mul(2))
        .max(u64::from(space.grow_gib_min).saturating_mul(GIB));
    let is_late = is_short && file_system.free_bytes < need.reserve;
    let (step, reason) = if is_short {
        let (step, why) = larger(facts, usual, is_late);
        (step, room_words(facts, need) + &why)
    } else {
        (scheduled, format!("a schedule wants {} more", bytes(scheduled)))
    };
    let step = step.max(scheduled);
    let is_emergency = is_short && file_system.free_bytes < need.urgent;
    let least = least.max(scheduled);
    Some(Wanted { is_short, is_emergency, is_late, least, step, reason })
}

/// Returns the step of a file system, and why it is larger than usual; without words if it is not.
///
/// What takes further volumes grows again as soon as room is short again, and the room that is kept
/// lasts until then. Each volume makes writers faster, so the steps of a fast one are larger. Of a
/// volume alone, the service accepts the next modification after hours.
fn larger(facts: &Facts<'_>, usual: u64, is_late: bool) -> (u64, String) {
    let is_fast = is_fast(facts);
    let rate = bytes(facts.growth_per_s.unwrap_or(0));
    let has_failed = facts.state.failures > 0;
    let (times, why) = if is_late && waits_for_room(facts) {
        // Writers that wait for room do not show how fast they are.
        (LATE_TIMES, "writers wait for room".to_owned())
    } else if is_fast && has_failed {
        (LATE_TIMES, "the last operation failed".to_owned())
    } else if is_fast {
        (FAST_TIMES, format!("it grows by {rate} a second"))
    } else if is_late && facts.growth_per_s.is_none() && !facts.takes_another_volume() {
        // The next step may be possible only after hours.
        (1, "how fast it grows is not known".to_owned())
    } else {
        return (usual, String::new());
    };
    let step = usual.saturating_mul(times);
    if facts.takes_another_volume() {
        return (step, format!("; {why}, so the step is {times} times larger"));
    }
    let size = facts.now.file_system.size_bytes;
    (step.max(size), format!("; {why}, and its size doubles, since no volume can be added"))
}

/// Returns whether writers may wait for room: the file system grows, or is all but full.
fn waits_for_room(facts: &Facts<'_>) -> bool {
    let file_system = &facts.now.file_system;
    let is_full = file_system.free_bytes < percent(file_system.size_bytes, FULL_PERCENT);
    is_full || facts.growth_per_s.is_some_and(|growth| growth > 0)
}

/// Returns whether a file system grows at a large part of its line rate.
fn is_fast(facts: &Facts<'_>) -> bool {
    let least = percent(facts.line_bytes_per_s(), FAST_PERCENT);
    facts.growth_per_s.is_some_and(|growth| growth > least)
}

fn room_words(facts: &Facts<'_>, need: Need) -> String {
    let file_system = &facts.now.file_system;
    let space = &facts.policy.space;
    let jumps = file_system.dirty_limit_bytes.saturating_add(file_system.largest_jump_bytes);
    let kept = need.urgent.saturating_sub(jumps);
    let why = match space.keep {
        Keep::Hard => format!(
            "{} that the volumes can write in {} s",
            bytes(kept),
            u64::from(space.actuation_s)
        ),
        Keep::Likely => format!("{}, 1.5 times the largest growth", bytes(kept)),
    };
    let mut text =
        format!("{} are free, less than the need of {why}", bytes(file_system.free_bytes));
    if jumps > 0 {
        text += &format!(", {} of dirty pages and jumps", bytes(jumps));
    }
    text += &format!(" and {} of reserve", bytes(need.reserve));
    text
}

/// Returns the least size that a schedule asks for now, or within the actuation time.
fn scheduled_bytes(facts: &Facts<'_>) -> u64 {
    let now_ms = facts.now.unix_ms;
    let soon_ms = now_ms.saturating_add(u64::from(facts.policy.space.actuation_s) * 1_000);
    let schedules = facts.policy.schedules.iter();
    let due = schedules.filter(|schedule| {
        is_within(&schedule.window, now_ms) || is_within(&schedule.window, soon_ms)
    });
    let gib = due.filter_map(|schedule| schedule.gib_min).max().unwrap_or(0);
    u64::from(gib.min(facts.policy.space.gib_max)).saturating_mul(GIB)
}

/// Returns the ways to grow, the preferred one first: the end of a volume that the file system does
/// not use yet; a larger volume; a further volume of a btrfs; and a larger volume by the
/// modification that is kept for emergencies.
fn options(facts: &Facts<'_>, wanted: &Wanted, step_gib: u32) -> Vec<Change> {
    let members = facts.members.iter().copied();
    let mut options: Vec<Change> = members
        .filter(|member| unused_bytes(facts, member) >= GIB)
        .map(|member| {
            let spec = member.volume.spec;
            let volume = member.volume.id.clone();
            let unused = bytes(unused_bytes(facts, &member));
            let reason = format!(
                "{}: {volume} has {unused} that the file system does not use",
                wanted.reason
            );
            let operation = Operation::Modify { volume, from: spec, to: spec };
            growth(wanted, operation, reason)
        })
        .collect();
    let step_gib = less_after_refusal(facts, wanted, step_gib);
    let mut larger: Vec<Change> = by_modifying(facts, wanted, step_gib);
    let keeps_last = keeps_last(facts, &larger);
    let added = by_adding(facts, wanted, step_gib, keeps_last);
    // After a failure the next way is tried first: one call may be refused, and the other not.
    let has_failed = facts.state.failures % 2 == 1;
    if keeps_last && has_failed {
        let size = facts.now.file_system.size_bytes;
        let most = u64::from(facts.policy.space.gib_max).saturating_mul(GIB);
        let doubled = gib_down(size.min(most.saturating_sub(size)));
        larger = by_modifying(facts, wanted, step_gib.max(doubled));
    }
    let mut ways: Vec<Change> = Vec::new();
    if has_failed != keeps_last {
        ways.extend(added);
        ways.extend(larger);
    } else {
        ways.extend(larger);
        ways.extend(added);
    }
    // Soon after a step down, and by the modification that is kept, only an emergency grows.
    let urgent = ways.clone().into_iter().filter(|way| wanted.is_short && !way.is_emergency);
    options.extend(ways);
    options.extend(urgent.map(|way| Change { is_emergency: true, ..way }));
    options
}

/// Returns the step of a file system that takes no further volume after a refusal for want of
/// capacity. Each second try asks for half, if that is enough: there may be capacity for it. With
/// less than half, the service would accept nothing for hours, and the room would soon be used.
fn less_after_refusal(facts: &Facts<'_>, wanted: &Wanted, step_gib: u32) -> u32 {
    let failures = facts.state.failures;
    if failures.is_multiple_of(2) || facts.takes_another_volume() || !facts.lacked_capacity() {
        return step_gib;
    }
    let useful = gib_up(wanted.least).max(facts.policy.space.grow_gib_min);
    step_gib.div_ceil(2).max(useful).min(step_gib)
}

/// Returns whether the only modification that is possible now is kept: the file system grows fast,
/// and after that modification further volumes would be the only way for hours. So a further volume
/// is tried first, while there is another way if it does not come.
fn keeps_last(facts: &Facts<'_>, larger: &[Change]) -> bool {
    let possible = larger.iter().filter(|change| budget::of(facts, change).is_empty());
    is_fast(facts) && facts.takes_another_volume() && possible.count() == 1
}

fn growth(wanted: &Wanted, operation: Operation, reason: String) -> Change {
    let change = Change::new(Rule::Grow, operation, reason);
    Change { is_emergency: wanted.is_emergency, ..change }
}

/// Returns the bytes of a volume that its file system does not use: it grew, and the file system
/// did not. A device that keeps its size when its volume grows has no more than that.
fn unused_bytes(facts: &Facts<'_>, member: &Member<'_>) -> u64 {
    let end = if facts.policy.space.grows_volumes {
        u64::from(member.volume.spec.size_gib).saturating_mul(GIB)
    } else {
        member.device.device_bytes
    };
    end.saturating_sub(member.device.size_bytes)
}

/// Returns the growth of each volume by a modification: the one with the fewest modifications in 24
/// hours first, then the smallest.
fn by_modifying(facts: &Facts<'_>, wanted: &Wanted, step_gib: u32) -> Vec<Change> {
    if !facts.policy.space.grows_volumes {
        return Vec::new();
    }
    let mut members = facts.members.clone();
    let is_spread = matches!(facts.now.file_system.data, Some(Profile::Raid0 | Profile::Raid1));
    members.sort_by_key(|member| {
        let size = member.volume.spec.size_gib;
        // The smallest device limits a stripe or a mirror.
        let used = if is_spread { 0 } else { budget::used(facts, *member) };
        (used, size, member.device.devid)
    });
    let larger = members.iter().filter_map(|member| {
        let make = |gib: u32| {
            let to = resized(facts, &member.volume.spec, gib)?;
            let volume = member.volume.id.clone();
            let operation = Operation::Modify { volume, from: member.volume.spec, to };
            Some(growth(wanted, operation, wanted.reason.clone()))
        };
        affordable(facts, wanted, step_gib, make)
    });
    larger.collect()
}

/// Returns a volume that is larger by a step; `None` if its type has no such size.
fn resized(facts: &Facts<'_>, spec: &VolumeSpec, step_gib: u32) -> Option<VolumeSpec> {
    let size_gib = spec.size_gib.checked_add(step_gib)?;
    let change = VolumeChange { size_gib: Some(size_gib), ..VolumeChange::default() };
    facts.policy.plan.rules.modify(spec, &change).ok()
}

/// Returns the growth by a step or, if the caps of money or the type do not allow that, by the
/// largest smaller one.
fn affordable(
    facts: &Facts<'_>,
    wanted: &Wanted,
    step_gib: u32,
    make: impl Fn(u32) -> Option<Change>,
) -> Option<Change> {
    let whole = make(step_gib);
    if let Some(whole) = whole.clone().filter(|whole| budget::is_affordable(facts, whole)) {
        return Some(whole);
    }
    let fits = |gib: u32| make(gib).filter(|change| budget::is_affordable(facts, change));
    let Some((gib, mut change)) = largest((1, step_gib), fits) else {
        // The brake of money says why.
        return whole.or_else(|| make(1));
    };
    let least = bytes(wanted.least);
    change.reason += &format!(
        "; the step is {gib} GiB instead of {step_gib} GiB, the most that the caps and the type \
         allow, of {least} that are missing"
    );
    Some(change)
}

/// Returns the growth of a btrfs by a further volume, like its smallest one.
fn by_adding(
    facts: &Facts<'_>,
    wanted: &Wanted,
    step_gib: u32,
    keeps_last: bool,
) -> Option<Change> {
    let is_meant = facts.takes_volumes();
    let like = facts.members.iter().filter(|_| is_meant);
    let like = like.min_by_key(|member| (member.volume.spec.size_gib, member.device.devid))?;
    let spec = like.volume.spec;
    let rules = facts.policy.plan.rules;
    let type_rules = rules.of(spec.volume_type)?;
    // The new volume can be written as well, so it needs room of its own.
    let line = facts.limits(&spec).bytes.unwrap_or(0);
    let line = line.saturating_add(facts.line_bytes_per_s());
    let more =
        forecast::need_at(facts, line).wanted().saturating_sub(forecast::need(facts).wanted());
    let size = facts.now.file_system.size_bytes;
    let most = u64::from(facts.policy.space.gib_max).saturating_mul(GIB);
    let room = gib_down(most.saturating_sub(size));
    let gib = step_gib.saturating_add(gib_up(more.saturating_mul(facts.copies())));
    let gib = gib.max(type_rules.size_gib_min).min(type_rules.size_gib_max);
    let why = if keeps_last {
        "one modification is left, and kept"
    } else if facts.policy.space.grows_volumes {
        "no modification is left"
    } else {
        "volumes do not grow by the policy"
    };
    // Limits that the instance does not carry are not bought again.
    let is_carried = instance::carries_beside(facts, &spec);
    let make = |gib: u32| {
        let sized = VolumeSpec { size_gib: gib, ..spec };
        let like = rules.resolve(&sized.request()).ok().filter(|_| is_carried);
        let spec = like.or_else(|| {
            let limits = alternatives::Limits::default();
            alternatives::least_with(&facts.policy.plan, &sized, spec.volume_type, limits)
        })?;
        let reason = format!("{}: {why}, so a volume is added", wanted.reason);
        Some(growth(wanted, Operation::Add { spec }, reason))
    };
    affordable(facts, wanted, gib.min(room.max(type_rules.size_gib_min)), make)
}

/// Returns the change to less space, if the file system has too much.
pub fn shrink(facts: &Facts<'_>, needs_room: bool, decision: &mut Decision) -> Option<Change> {
    let space = &facts.policy.space;
    if !space.is_managed || needs_room || facts.unmanaged.is_some() {
        return None;
    }
    let surplus = surplus(facts)?;
    let brake =
        |brake: Brake, reason: String| Braked { brake, axis: Axis::Space, is_up: false, reason };
    if let Some(reason) = cannot_shrink(facts, &surplus) {
        decision.brakes.push(brake(Brake::FileSystem, reason));
        return None;
    }
    let mut reasons = Vec::new();
    let removal = removal(facts, &surplus, &mut reasons);
    let found = removal.or_else(|| replacement(facts, &surplus, &mut reasons));
    if found.is_none() {
        for (kind, reason) in reasons {
            decision.brakes.push(brake(kind, reason));
        }
    }
    found
}

/// Space that a file system does not need.
struct Surplus {
    /// The largest step down with the limits of today, in bytes of devices.
    step: u64,
    /// The largest step down that the policy allows, in bytes of devices.
    step_max: u64,
    /// The peak with its headroom, in bytes of files.
    peak: u64,
    reason: String,
}

fn surplus(facts: &Facts<'_>) -> Option<Surplus> {
    let file_system = &facts.now.file_system;
    let space = &facts.policy.space;
    let size = file_system.size_bytes;
    let copies = facts.copies();
    let peak = file_system.peak_used_bytes.max(file_system.used_bytes);
    let peak = percent(peak, space.peak_headroom_percent.saturating_add(100));
    let need = forecast::need(facts).wanted();
    let kept = peak.saturating_add(need).saturating_mul(copies);
    if kept >= percent(size, space.shrink_below_percent) {
        return None;
    }
    let gib_min = u64::from(space.gib_min).saturating_mul(GIB);
    let least = gib_min.max(scheduled_bytes(facts));
    let step_max = percent(size, space.shrink_step_percent_max).min(size.saturating_sub(least));
    let room = room_without(facts, peak, need);
    let reason = format!(
        "the peak of {} days with {} % is {}, and with the need of {} that is below {} % of {}",
        space.peak_days,
        space.peak_headroom_percent,
        bytes(peak),
        bytes(need),
        space.shrink_below_percent,
        bytes(size)
    );
    let step = step_max.min(room);
    (step_max >= GIB).then_some(Surplus { step, step_max, peak, reason })
}

/// Returns the bytes of devices that a file system can give up if `need` must stay free, and there
/// is room for the peak to come back.
fn room_without(facts: &Facts<'_>, peak: u64, need: u64) -> u64 {
    let file_system = &facts.now.file_system;
    let copies = facts.copies();
    let kept = peak.saturating_add(need).saturating_mul(copies);
    let above_used = peak.saturating_sub(file_system.used_bytes);
    let free = file_system.free_bytes.saturating_sub(need).saturating_sub(above_used);
    file_system.size_bytes.saturating_sub(kept).min(free.saturating_mul(copies))
}

/// Returns whether a volume is no larger than what a file system can give up with it. Its MiB/s
/// leave with it, so less room must stay free.
fn can_spare(facts: &Facts<'_>, surplus: &Surplus, member: &Member<'_>) -> bool {
    let line = facts.line_bytes_per_s_without(member.device.devid);
    let need = forecast::need_at(facts, line).wanted();
    let step = surplus.step_max.min(room_without(facts, surplus.peak, need));
    member.device.size_bytes <= step
}

/// Returns why a file system cannot shrink, with the advice for a person.
fn cannot_shrink(facts: &Facts<'_>, surplus: &Surplus) -> Option<String> {
    let file_system = &facts.now.file_system;
    let name = match file_system.kind {
        Kind::Xfs => "XFS does not shrink",
        Kind::Ext4 => "ext4 shrinks only while it is not mounted",
        Kind::Btrfs => {
            return match (file_system.data, file_system.metadata) {
                (Some(Profile::Single | Profile::Dup), Some(Profile::Single | Profile::Dup)) => {
                    None
                }
                (data, metadata) => Some(format!(
                    "a btrfs with data {data:?} and metadata {metadata:?} is not shrunk: only \
                     `single` and `dup` move from one device at a time"
                )),
            };
        }
    };
    let gib = gib_up(file_system.size_bytes.saturating_sub(surplus.step));
    let saving = facts.members.first().and_then(|member| {
        let smaller = VolumeSpec { size_gib: gib, ..member.volume.spec };
        Some(facts.monthly(&member.volume.spec)?.saturating_sub(facts.monthly(&smaller)?))
    });
    let saving = facts.money(saving.unwrap_or(0));
    Some(format!(
        "{name}: {}. A copy of its files on a volume of {gib} GiB saves {saving} a month; on a \
         btrfs the autopilot does that",
        surplus.reason
    ))
}

/// Returns the removal of a volume whose data has room on the others.
fn removal(
    facts: &Facts<'_>,
    surplus: &Surplus,
    reasons: &mut Vec<(Brake, String)>,
) -> Option<Change> {
    if facts.members.len() < 2 {
        return None;
    }
    let fits = facts.members.iter().filter(|member| can_spare(facts, surplus, member));
    let mut best: Option<(u64, u64, Member<'_>)> = None;
    for member in fits {
        let room = room::to_remove(facts.policy, &facts.now.file_system, member.device.devid);
        if let Err(reason) = room {
            reasons.push((Brake::Room, format!("{}: {reason}", member.volume.id)));
            continue;
        }
        if let Err(reason) = others_carry(facts, member) {
            reasons.push((Brake::Evidence, reason));
            continue;
        }
        let saving = facts.monthly(&member.volume.spec).unwrap_or(0);
        let key = (saving, member.device.devid);
        if best.is_none_or(|(saving, devid, _)| key > (saving, devid)) {
            best = Some((key.0, key.1, *member));
        }
    }
    let (.., member) = best?;
    let volume = member.volume.id.clone();
    let reason = format!("{}: the other volumes have room for {volume}", surplus.reason);
    Some(Change::new(Rule::Shrink, Operation::Remove { volume }, reason))
}

/// Checks that each of the other volumes carries its own peak and the one of a volume that leaves:
/// the data that was in use may all move to one of them. The headroom is left out: that all moves
/// to one, and that both are busiest at once, is less likely than it.
fn others_carry(facts: &Facts<'_>, leaving: &Member<'_>) -> Result<(), String> {
    let own = Peak::of(facts, leaving)?;
    for member in &facts.members {
        if member.device.devid == leaving.device.devid {
            continue;
        }
        let sum = Peak::of(facts, member)?.and(own).without_headroom(facts);
        sum.check(facts, &member.volume.id, &member.volume.spec)?;
    }
    Ok(())
}

/// The busiest span of a volume, with the headroom.
#[derive(Clone, Copy)]
struct Peak {
    iops: u64,
    bytes_per_s: u64,
}

impl Peak {
    fn of(facts: &Facts<'_>, member: &Member<'_>) -> Result<Self, String> {
        let judged = facts.judged(&member.volume.id)?;
        if let Some(reason) = judged.reasons.first() {
            return Err(format!("{}: {reason}", member.volume.id));
        }
        match (judged.peak_iops, judged.peak_bytes_per_s) {
            (Some(iops), Some(bytes_per_s)) => Ok(Self { iops, bytes_per_s }),
            _ => Err(format!("the peak of {} is not known", member.volume.id)),
        }
    }

    const fn and(self, other: Self) -> Self {
        Self {
            iops: self.iops.saturating_add(other.iops),
            bytes_per_s: self.bytes_per_s.saturating_add(other.bytes_per_s),
        }
    }

    fn without_headroom(self, facts: &Facts<'_>) -> Self {
        let whole = u64::from(facts.policy.plan.headroom_percent) + 100;
        let part = |value: u64| value.saturating_mul(100).div_ceil(whole);
        Self { iops: part(self.iops), bytes_per_s: part(self.bytes_per_s) }
    }

    /// Checks that a volume carries it without credits.
    fn check(self, facts: &Facts<'_>, id: &str, spec: &VolumeSpec) -> Result<(), String> {
        let pacing = facts.policy.plan.rules.pacing(spec);
        let carried = pacing.operations.map_or(u64::MAX, |limit| limit.sustained_per_second());
        let carried_bytes = facts.sustained_bytes(spec);
        if self.iops <= carried && self.bytes_per_s <= carried_bytes {
            return Ok(());
        }
        Err(format!(
            "{id} would have up to {} I/Os and {} a second, and {} carries {carried} and {}",
            self.iops,
            bytes(self.bytes_per_s),
            words::spec(spec),
            bytes(carried_bytes)
        ))
    }
}

/// Returns the replacement of a volume by a smaller one with its type and limits.
fn replacement(
    facts: &Facts<'_>,
    surplus: &Surplus,
    reasons: &mut Vec<(Brake, String)>,
) -> Option<Change> {
    let mut best: Option<(u64, Change)> = None;
    for member in &facts.members {
        let with = match smaller(facts, surplus, member) {
            Ok(with) => with,
            Err(reason) => {
                let new = reason.filter(|reason| !reasons.contains(reason));
                reasons.extend(new);
                continue;
            }
        };
        let cost = |spec: &VolumeSpec| facts.monthly(spec).unwrap_or(0);
        let saving = cost(&member.volume.spec).saturating_sub(cost(&with));
        if best.as_ref().is_none_or(|(most, _)| saving > *most) {
            let volume = member.volume.id.clone();
            let reason =
                format!("{}: a smaller volume in the place of {volume} suffices", surplus.reason);
            best = Some((
                saving,
                Change::new(Rule::Shrink, Operation::Replace { volume, with }, reason),
            ));
        }
    }
    best.map(|(_, change)| change)
}

/// Returns the smaller volume that takes the place of one, or the reason why there is none.
fn smaller(
    facts: &Facts<'_>,
    surplus: &Surplus,
    member: &Member<'_>,
) -> Result<VolumeSpec, Option<(Brake, String)>> {
    let spec = member.volume.spec;
    let id = &member.volume.id;
    if surplus.step < GIB {
        return Err(None);
    }
    let after_step = member.device.size_bytes.saturating_sub(surplus.step);
    let rules = facts.policy.plan.rules;
    let least_of_type = rules.of(spec.volume_type).map_or(1, |rules| rules.size_gib_min);
    let from = gib_up(after_step).max(least_of_type).max(1);
    let to = spec.size_gib.checked_sub(1).filter(|to| from <= *to).ok_or(None)?;
    // The kernel puts chunks on the device with the most room, so each of the others may get all.
    if facts.members.len() > 1 {
        others_carry(facts, member).map_err(|reason| Some((Brake::Evidence, reason)))?;
    }
    // A baseline that follows the size needs a recording that less carries.
    let peak = Peak::of(facts, member);
    let takes_over = |size_gib: u32| {
        let size_bytes = u64::from(size_gib).saturating_mul(GIB);
        room::to_take_over(facts.policy, &facts.now.file_system, member.device, size_bytes)
    };
    takes_over(to).map_err(|reason| Some((Brake::Room, format!("{id}: {reason}"))))?;
    let make = |size_gib: u32| {
        takes_over(size_gib).ok()?;
        let with = rules.resolve(&VolumeSpec { size_gib, ..spec }.request()).ok()?;
        let is_same = advice::never_less(facts.policy.plan.rules, &with, &spec);
        let carries = || peak.as_ref().is_ok_and(|peak| peak.check(facts, id, &with).is_ok());
        (is_same || carries()).then_some(with)
    };
    let found = least((from, to), make).map(|(_, with)| with);
    found.ok_or_else(|| {
        let reason = match peak {
            Err(reason) => reason,
            Ok(peak) => match rules.resolve(&VolumeSpec { size_gib: to, ..spec }.request()) {
                Ok(with) => peak.check(facts, id, &with).err().unwrap_or_default(),
                Err(invalid) => invalid.to_string(),
            },
        };
        Some((Brake::Evidence, reason))
    })
}
