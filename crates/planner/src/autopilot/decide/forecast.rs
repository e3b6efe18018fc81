//! The room that must be free, and the time until the file system is full, as an interval.

use evenkeel_core::units::GIB;

use super::Forecast;
use super::facts::{Facts, percent};
use crate::autopilot::observation::Observation;
use crate::autopilot::policy::{Keep, Policy};
use crate::autopilot::state::{Reading, State};

/// The least time between two readings whose growth is compared, in milliseconds.
const READING_MS_MIN: u64 = 10_000;
/// The time after which a reading is replaced.
const READING_MS: u64 = 60_000;
/// The longest time between two readings whose growth is that of now, in milliseconds.
const READING_MS_MAX: u64 = 120_000;
/// The time for which growth counts as not known, in milliseconds. Later its mean counts.
const UNSURE_MS_MAX: u64 = 180_000;

/// The room that must be free, in bytes that an application can write.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Need {
    /// The bytes that can be written before a change has made room: below this, it is an emergency.
    pub urgent: u64,
    /// The reserve beside it.
    pub reserve: u64,
}

impl Need {
    pub const fn wanted(&self) -> u64 {
        self.urgent.saturating_add(self.reserve)
    }
}

/// Remembers the used bytes, and returns their growth a second since the last reading; `None` if
/// that is not known, because the last one is absent, too old, or of a clock that was set back. Of
/// an agent whose readings are always far apart, it is their mean.
pub fn read(now: &Observation, state: &mut State) -> Option<u64> {
    let reading = Reading { unix_ms: now.unix_ms, used_bytes: now.file_system.used_bytes };
    let since_ms = state.unsure_since_ms.filter(|since_ms| *since_ms <= now.unix_ms);
    let since_ms = since_ms.unwrap_or(now.unix_ms);
    let is_unsure = now.unix_ms - since_ms < UNSURE_MS_MAX;
    let Some(before) = state.reading.filter(|before| before.unix_ms <= now.unix_ms) else {
        state.reading = Some(reading);
        state.unsure_since_ms = Some(since_ms);
        return if is_unsure { None } else { Some(0) };
    };
    let passed_ms = now.unix_ms - before.unix_ms;
    if passed_ms >= READING_MS {
        state.reading = Some(reading);
    }
    if passed_ms < READING_MS_MIN {
        return None;
    }
    let is_comparable = passed_ms <= READING_MS_MAX;
    state.unsure_since_ms = if is_comparable { None } else { Some(since_ms) };
    if !is_comparable && is_unsure {
        return None;
    }
    let grown = u128::from(reading.used_bytes.saturating_sub(before.used_bytes));
    let per_s = grown * 1_000 / u128::from(passed_ms);
    Some(u64::try_from(per_s.min(u64::MAX.into())).expect("invariant: at most u64::MAX"))
}

/// Returns the room that must be free if the volumes can write `line` bytes a second.
pub fn need_at(facts: &Facts<'_>, line: u64) -> Need {
    let file_system = &facts.now.file_system;
    let space = &facts.policy.space;
    let urgent = match space.keep {
        // Bytes may have been written since the reading.
        Keep::Hard => line.saturating_mul(u64::from(space.actuation_s) + age_s(facts)),
        Keep::Likely => percent(file_system.largest_growth_bytes, 150),
    };
    let jumps = file_system.dirty_limit_bytes.saturating_add(file_system.largest_jump_bytes);
    let reserve = percent(file_system.size_bytes, space.reserve_percent)
        .max(chunks(facts))
        .max(space.reserve_bytes_min);
    Need { urgent: urgent.saturating_add(jumps), reserve }
}

/// Returns the room that must be free.
pub fn need(facts: &Facts<'_>) -> Need {
    need_at(facts, facts.line_bytes_per_s())
}

/// Returns the bytes that must be free by a policy, for the step of an operation.
#[must_use]
pub fn wanted_free_bytes(policy: &Policy, now: &Observation) -> u64 {
    let state = State::default();
    need(&Facts::new(policy, now, &state, None)).wanted()
}

/// Returns the bytes of two chunks: what a btrfs needs to move data.
pub fn chunks(facts: &Facts<'_>) -> u64 {
    if facts.is_btrfs() { 2 * GIB.min(facts.now.file_system.size_bytes / 10) } else { 0 }
}

/// Returns the age of the reading of the file system in seconds, rounded up; at most the age from
/// which it is stale.
fn age_s(facts: &Facts<'_>) -> u64 {
    let stale_s = u64::from(facts.policy.brakes.stale_s);
    facts.now.ages.file_system_ms.map_or(stale_s, |ms| ms.div_ceil(1_000)).min(stale_s)
}

/// Returns the forecast.
pub fn of(facts: &Facts<'_>) -> Forecast {
    let file_system = &facts.now.file_system;
    let line = facts.line_bytes_per_s();
    let jumps = file_system.dirty_limit_bytes.saturating_add(file_system.largest_jump_bytes);
    let room = file_system.free_bytes.saturating_sub(jumps);
    let growth = percent(file_system.largest_growth_bytes, 150);
    let likely = u128::from(file_system.free_bytes) * u128::from(facts.policy.space.actuation_s)
        / u128::from(growth.max(1));
    let likely = u64::try_from(likely.min(u64::MAX.into())).expect("invariant: at most u64::MAX");
    Forecast {
        wanted_free_bytes: need(facts).wanted(),
        full_in_s_min: room.checked_div(line),
        full_in_s_likely: (growth > 0).then_some(likely),
    }
}
