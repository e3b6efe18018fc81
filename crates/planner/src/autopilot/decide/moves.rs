//! Moves: their pace, the latency of flushes beside them, and their end if room is needed.

use evenkeel_core::units::MIB;
use evenkeel_core::volume::Date;

use super::Decision;
use super::facts::Facts;
use crate::autopilot::observation::{Observation, RunningKind, Volume, VolumeState};
use crate::autopilot::operation::Operation;
use crate::autopilot::policy::Policy;
use crate::autopilot::state::{Hold, State};
use crate::fleet::alternatives::Limits;

const DAY_MS: u64 = 86_400_000;
/// A move takes one part of this many of the free bytes a second.
const PARTS: u64 = 2;
/// A pace that is higher by less than one part of this many is not worth a call.
const PACE_PARTS: u64 = 10;

/// Returns the pace of a move in bytes a second: half of the free part of the slowest volume, and
/// the policy's least if that is more.
///
/// The free part is what a volume carries without credits, less its requests in the last minute,
/// without those of a move that runs. A volume whose requests are not known has no free part, and
/// neither has one that is used to its limit: its other requests may wait for the move.
#[must_use]
pub fn pace_bytes_per_s(policy: &Policy, now: &Observation) -> u64 {
    let running = now.file_system.running.as_ref();
    let own = running.filter(|running| is_move(running.kind));
    let own = own.and_then(|running| running.pace_bytes_per_s).unwrap_or(0);
    let attached = now.volumes.iter().filter(|volume| volume.state == VolumeState::Attached);
    let free = attached.map(|volume| free_bytes_per_s(policy, volume, own)).min().unwrap_or(0);
    (free / PARTS).max(policy.brakes.pace_bytes_per_s_min)
}

fn free_bytes_per_s(policy: &Policy, volume: &Volume, own: u64) -> u64 {
    let pacing = policy.plan.rules.pacing(&volume.spec);
    let carried = pacing.bytes.map(|limit| limit.sustained_per_second());
    let carried = carried.or(Limits::of(&policy.plan, &volume.spec).bytes).unwrap_or(u64::MAX);
    let Some(used) = volume.used_mibps else { return 0 };
    let used = u64::from(used).saturating_mul(MIB);
    if used >= carried { 0 } else { carried.saturating_sub(used.saturating_sub(own)) }
}

/// Returns whether an operation of the kernel is a move of the autopilot.
pub const fn is_move(kind: RunningKind) -> bool {
    match kind {
        RunningKind::Remove | RunningKind::Compact => true,
        RunningKind::Add | RunningKind::Foreign => false,
    }
}

/// Returns whether a move of the autopilot runs.
fn runs(now: &Observation, state: &State) -> bool {
    let running = now.file_system.running.as_ref();
    let is_running = running.is_some_and(|running| is_move(running.kind));
    is_running && state.open.iter().any(|open| moves_data(&open.operation))
}

const fn moves_data(operation: &Operation) -> bool {
    matches!(operation, Operation::Remove { .. } | Operation::Replace { .. })
}

/// Counts the windows of flushes above the target during a move, and halves its pace in each.
pub fn count(policy: &Policy, now: &Observation, state: &mut State) {
    let month = month(now.unix_ms);
    if state.slow_month != month {
        state.slow_month = month;
        state.slow_month_ms = 0;
    }
    if !runs(now, state) {
        state.window_end_ms = 0;
        state.slow_windows = 0;
        state.pace_bytes_per_s = None;
        return;
    }
    let window_ms = u64::from(policy.brakes.window_s).saturating_mul(1_000);
    if state.window_end_ms == 0 || state.window_end_ms > now.unix_ms {
        state.window_end_ms = now.unix_ms;
        return;
    }
    if now.unix_ms - state.window_end_ms < window_ms {
        return;
    }
    state.window_end_ms = now.unix_ms;
    let flush = now.file_system.flush.filter(|flush| flush.count > 0);
    let is_slow = flush.is_some_and(|flush| flush.p99_ms > policy.brakes.flush_p99_ms);
    let pace = state.pace_bytes_per_s.unwrap_or(u64::MAX);
    if is_slow {
        state.slow_windows = state.slow_windows.saturating_add(1);
        state.slow_month_ms = state.slow_month_ms.saturating_add(window_ms);
        let running = now.file_system.running.as_ref();
        let now_at = running.and_then(|running| running.pace_bytes_per_s).unwrap_or(u64::MAX);
        let halved = pace.min(now_at).min(pace_bytes_per_s(policy, now)) / 2;
        state.pace_bytes_per_s = Some(halved.max(policy.brakes.pace_bytes_per_s_min));
    } else {
        state.slow_windows = 0;
        state.pace_bytes_per_s = state.pace_bytes_per_s.map(|pace| pace.saturating_mul(2));
    }
}

fn month(unix_ms: u64) -> u32 {
    let date = Date::of_unix_day(unix_ms / DAY_MS);
    u32::from(date.year.saturating_sub(1_970)) * 12 + u32::from(date.month) - 1
}

/// Sets the pace of a move that runs, or cancels it: flushes are too slow, or room is needed.
pub fn steer(facts: &Facts<'_>, needs_room: bool, state: &mut State, decision: &mut Decision) {
    if decision.is_stopped {
        return;
    }
    let brakes = &facts.policy.brakes;
    let is_slow = brakes.cancel_after > 0 && state.slow_windows >= brakes.cancel_after;
    let reason = if needs_room {
        "the file system needs room, and the move takes it away".to_owned()
    } else if is_slow {
        format!(
            "flushes were above {} ms in {} windows of {} s in a row",
            brakes.flush_p99_ms, state.slow_windows, brakes.window_s
        )
    } else {
        pace(facts, state, decision);
        return;
    };
    let mut is_cancelled = false;
    for open in &mut state.open {
        if moves_data(&open.operation) && !open.cancelled {
            open.cancelled = true;
            is_cancelled = true;
            decision.cancels.push((open.id.clone(), reason.clone()));
        }
    }
    // Without a hold, the next move would begin as soon as this one has gone back.
    if is_cancelled {
        let hours = u64::from(brakes.hold_hours);
        let until_ms =
            facts.now.unix_ms.saturating_add(hours.saturating_mul(facts.policy.hour_ms()));
        decision.alarms.push(format!("a move was cancelled: {reason}"));
        let is_longer = state.hold.as_ref().is_some_and(|hold| hold.until_ms >= until_ms);
        if !is_longer {
            let reason = format!("a move was cancelled, since {reason}");
            state.hold = Some(Hold { until_ms, reason, allows_growth: true });
        }
    }
}

/// Sets the pace of a move that runs, if it is above the one that is due or far below it.
fn pace(facts: &Facts<'_>, state: &State, decision: &mut Decision) {
    if !runs(facts.now, state) {
        return;
    }
    let least = facts.policy.brakes.pace_bytes_per_s_min;
    let free = pace_bytes_per_s(facts.policy, facts.now);
    let due = state.pace_bytes_per_s.unwrap_or(u64::MAX).min(free).max(least);
    let running = facts.now.file_system.running.as_ref();
    let is_due = match running.and_then(|running| running.pace_bytes_per_s) {
        None => true,
        Some(pace) => pace > due || due - pace > pace / PACE_PARTS,
    };
    decision.pace_bytes_per_s = is_due.then_some(due);
}
