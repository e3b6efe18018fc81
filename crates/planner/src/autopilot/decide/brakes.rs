//! The brakes that do not depend on a budget: each is a named reason with its figures.

use super::facts::{Change, Check, Facts, Rule};
use super::{Brake, Braked, forecast};
use crate::autopilot::operation::{Open, Operation};
use crate::autopilot::policy::Window;
use crate::format;
use crate::trace::Clock;
use evenkeel_sim::text::span;

const MINUTES_OF_DAY: u64 = 1_440;
const MINUTES_OF_WEEK: u64 = 7 * MINUTES_OF_DAY;
/// The first wait after a failure to get more, in milliseconds; it doubles with each failure.
const RETRY_UP_MS: u64 = 60_000;
/// The longest wait for that.
const RETRY_UP_MS_MAX: u64 = 900_000;
/// The wait after a failure to get less.
const RETRY_DOWN_MS: u64 = 3_600_000;
/// A growth that takes longer than this many times the actuation time is late.
const LATE_TIMES: u64 = 2;
/// The minutes of a month at half of which only growth is allowed.
const HALF: u64 = 2;

/// Returns whether no step of any operation may be executed.
pub fn is_stopped(facts: &Facts<'_>) -> bool {
    let hold = facts.state.hold.as_ref().filter(|hold| hold.until_ms > facts.now.unix_ms);
    facts.policy.is_paused || hold.is_some_and(|hold| !hold.allows_growth)
}

/// Returns the brakes of a change.
pub fn of(facts: &Facts<'_>, change: &Change) -> Vec<Braked> {
    let checks: [Check; 12] = [
        paused,
        hold,
        failures,
        managed,
        stale,
        busy,
        condition,
        window,
        opposite,
        error_budget,
        blast_radius,
        clock,
    ];
    let found = checks.into_iter().filter_map(|check| check(facts, change));
    found.map(|(brake, reason)| Braked::of(brake, change, reason)).collect()
}

fn paused(facts: &Facts<'_>, _: &Change) -> Option<(Brake, String)> {
    let reason = "the whole autopilot is paused: `evenkeel autopilot resume` ends the pause of a \
                  person, and `paused = false` that of the policy";
    facts.policy.is_paused.then(|| (Brake::Paused, reason.to_owned()))
}

fn hold(facts: &Facts<'_>, change: &Change) -> Option<(Brake, String)> {
    let hold = facts.state.hold.as_ref().filter(|hold| hold.until_ms > facts.now.unix_ms)?;
    let is_exempt = hold.allows_growth && change.rule.is_growth();
    let until = format::at(Clock::Unix, hold.until_ms);
    (!is_exempt).then(|| (Brake::Hold, format!("changes wait until {until}: {}", hold.reason)))
}

fn failures(facts: &Facts<'_>, change: &Change) -> Option<(Brake, String)> {
    let count = facts.state.failures;
    if count == 0 {
        return None;
    }
    let most = facts.policy.brakes.failures_max;
    if count >= most && !change.rule.is_growth() {
        let reason = format!(
            "{count} operations failed in a row, and from {most} on only growth is tried: \
             `evenkeel autopilot explain` shows why, `evenkeel autopilot release` ends it"
        );
        return Some((Brake::Failures, reason));
    }
    let failed = facts.state.past.iter().filter(|past| !past.is_done);
    let last_ms = failed.map(|past| past.ended_ms).max()?;
    let doubled = RETRY_UP_MS.saturating_mul(1 << count.saturating_sub(1).min(10));
    let wait_ms = if !change.rule.is_up() {
        RETRY_DOWN_MS
    } else if change.rule.is_growth() && is_urgent(facts) {
        // A way that has not failed is tried at once, and all of them as often as writers need it.
        let is_other_way =
            count % 2 == 1 && (facts.takes_another_volume() || facts.lacked_capacity());
        if is_other_way { 0 } else { RETRY_UP_MS }
    } else {
        doubled.min(RETRY_UP_MS_MAX)
    };
    let next_ms = last_ms.saturating_add(wait_ms);
    (next_ms > facts.now.unix_ms).then(|| {
        let next = format::at(Clock::Unix, next_ms);
        (Brake::Failures, format!("{count} operations failed in a row: the next try is at {next}"))
    })
}

/// Returns whether less is free than can be written before a growth makes room.
fn is_urgent(facts: &Facts<'_>) -> bool {
    facts.now.file_system.free_bytes < forecast::need(facts).urgent
}

fn managed(facts: &Facts<'_>, change: &Change) -> Option<(Brake, String)> {
    let reason = facts.unmanaged.as_ref().filter(|_| change.rule != Rule::Delete)?;
    Some((Brake::FileSystem, format!("it is only observed: {reason}")))
}

fn stale(facts: &Facts<'_>, change: &Change) -> Option<(Brake, String)> {
    let ages = &facts.now.ages;
    let most_ms = u64::from(facts.policy.brakes.stale_s).saturating_mul(1_000);
    if change.rule.is_growth() {
        return grown_since(facts);
    }
    let sources = [
        ("the file system", ages.file_system_ms),
        ("the volumes", ages.volumes_ms),
        ("the counters of requests", ages.counters_ms),
    ];
    for (name, age_ms) in sources {
        let Some(age_ms) = age_ms else {
            return Some((Brake::Stale, format!("{name} were never read")));
        };
        if age_ms > most_ms {
            let age = span(age_ms / 1_000);
            let most = span(most_ms / 1_000);
            let reason = format!("{name} were read {age} ago, and may be {most} old");
            return Some((Brake::Stale, reason));
        }
    }
    None
}

/// Growth that is repeated before its effect is read would never end.
fn grown_since(facts: &Facts<'_>) -> Option<(Brake, String)> {
    let read_ms = facts.now.unix_ms.saturating_sub(facts.now.ages.file_system_ms?);
    let grown = facts.state.past.iter().filter(|past| past.is_done && past.is_up);
    let last_ms = grown.map(|past| past.ended_ms).max()?;
    (read_ms < last_ms).then(|| {
        let reason = "the file system was read before its last growth ended".to_owned();
        (Brake::Stale, reason)
    })
}

fn clock(facts: &Facts<'_>, change: &Change) -> Option<(Brake, String)> {
    let skew_ms = facts.now.ages.clock_skew_ms?;
    let most_s = facts.policy.brakes.clock_skew_s_max;
    let is_off = skew_ms > u64::from(most_s).saturating_mul(1_000) && !change.rule.is_growth();
    is_off.then(|| {
        let skew = span(skew_ms / 1_000);
        let reason =
            format!("the clocks of the host and of the API differ by {skew}, more than {most_s} s");
        (Brake::Stale, reason)
    })
}

fn busy(facts: &Facts<'_>, change: &Change) -> Option<(Brake, String)> {
    if change.rule == Rule::Delete {
        return None;
    }
    let is_other = |open: &&Open| !matches!(open.operation, Operation::Delete { .. });
    let open: Vec<&Open> = facts.state.open.iter().filter(is_other).collect();
    if let Some(first) = open.first().filter(|_| !passes(facts, change, &open)) {
        return Some((Brake::Busy, format!("the operation {} has not ended", first.id)));
    }
    let running = facts.now.file_system.running.as_ref()?;
    // Growth only waits for the kernel at its last step.
    let is_exempt = change.rule.is_growth() || matches!(change.operation, Operation::Modify { .. });
    (!is_exempt).then(|| {
        (
            Brake::Busy,
            format!("the kernel runs an operation of the file system: {:?}", running.kind)
                .to_lowercase(),
        )
    })
}

/// Returns whether growth in an emergency need not wait for an open operation: one that only
/// changes limits of another volume, or a growth that takes much longer than it should.
fn passes(facts: &Facts<'_>, change: &Change, open: &[&Open]) -> bool {
    let [open] = open else { return false };
    if !change.rule.is_growth() || !change.is_emergency || open.cancelled {
        return false;
    }
    let Operation::Modify { volume, from, to } = &open.operation else { return false };
    let is_other = match &change.operation {
        Operation::Add { .. } => true,
        Operation::Modify { volume: own, .. } => own != volume,
        _ => false,
    };
    let late_ms = u64::from(facts.policy.space.actuation_s).saturating_mul(1_000 * LATE_TIMES);
    let is_late = facts.now.unix_ms.saturating_sub(open.since_ms) > late_ms;
    is_other && (to.size_gib == from.size_gib && from != to || is_late)
}

fn condition(facts: &Facts<'_>, change: &Change) -> Option<(Brake, String)> {
    let file_system = &facts.now.file_system;
    if change.rule.is_growth() && file_system.conditions.degraded {
        let reason = "a device is missing, or the mount is degraded or read-only";
        return Some((Brake::Condition, reason.to_owned()));
    }
    if change.rule != Rule::Shrink {
        return None;
    }
    if let Some(device) = file_system.devices.iter().find(|device| device.errors > 0) {
        let reason = format!("{} has {} errors", device.path, device.errors);
        return Some((Brake::Condition, reason));
    }
    let conditions = file_system.conditions;
    let reasons = [
        (conditions.degraded, "a device is missing, or the mount is degraded or read-only"),
        (conditions.scrub, "a scrub runs"),
        (conditions.balance, "a balance runs or is paused"),
        (conditions.snapshot_pending, "a snapshot of a volume is pending"),
        (conditions.pinned, "a mount, a swap file or another program needs a device"),
    ];
    let found = reasons.into_iter().find(|(is_so, _)| *is_so);
    found.map(|(_, reason)| (Brake::Condition, reason.to_owned()))
}

fn window(facts: &Facts<'_>, change: &Change) -> Option<(Brake, String)> {
    let windows = &facts.policy.windows;
    if change.rule != Rule::Shrink || windows.is_empty() {
        return None;
    }
    if windows.iter().any(|window| is_within(window, facts.now.unix_ms)) {
        return None;
    }
    let waits = windows.iter().filter_map(|window| until_ms(window, facts.now.unix_ms));
    let next = waits
        .min()
        .map(|wait_ms| format::at(Clock::Unix, facts.now.unix_ms.saturating_add(wait_ms)));
    let next = next.unwrap_or_else(|| "never".to_owned());
    Some((Brake::Window, format!("shrinking waits for a window of the policy: {next}")))
}

/// Returns the minute of the week, from Monday on. 1970-01-01 was a Thursday.
fn minute_of_week(unix_ms: u64) -> u64 {
    (unix_ms / 60_000 + 3 * MINUTES_OF_DAY) % MINUTES_OF_WEEK
}

/// Returns the starts of a window in the week, in minutes.
fn starts(window: &Window) -> impl Iterator<Item = u64> {
    let days = (0..7_u64).filter(|day| window.days >> day & 1 == 1);
    let from = u64::from(window.from_minute);
    days.map(move |day| (day * MINUTES_OF_DAY + from) % MINUTES_OF_WEEK)
}

/// Returns whether a time lies in a window.
pub fn is_within(window: &Window, unix_ms: u64) -> bool {
    let minute = minute_of_week(unix_ms);
    let length = u64::from(window.minutes);
    starts(window).any(|start| (minute + MINUTES_OF_WEEK - start) % MINUTES_OF_WEEK < length)
}

/// Returns the time until a window begins next; `None` if it has no day.
fn until_ms(window: &Window, unix_ms: u64) -> Option<u64> {
    let minute = minute_of_week(unix_ms);
    let wait = |start: u64| (start + MINUTES_OF_WEEK - minute - 1) % MINUTES_OF_WEEK + 1;
    let minutes = starts(window).map(wait).min()?;
    Some((minutes * 60_000).saturating_sub(unix_ms % 60_000))
}

/// Returns whether a change is opposite to one that is too recent: the time until it may be made,
/// and the reason.
pub fn opposed(facts: &Facts<'_>, change: &Change) -> Option<String> {
    let budget = &facts.policy.budget;
    let now_ms = facts.now.unix_ms;
    let opposite = facts.state.past.iter().filter(|past| {
        past.is_done && past.axis == change.rule.axis() && past.is_up != change.rule.is_up()
    });
    let waits = opposite.filter_map(|past| {
        let days = if past.is_emergency && past.is_up {
            budget.opposite_days.max(budget.after_emergency_days)
        } else {
            budget.opposite_days
        };
        let until_ms = past.ended_ms.saturating_add(u64::from(days) * facts.policy.day_ms());
        (until_ms > now_ms).then_some((until_ms, past, days))
    });
    let (until_ms, past, days) = waits.max_by_key(|(until_ms, ..)| *until_ms)?;
    let ago = span(now_ms.saturating_sub(past.ended_ms) / 1_000);
    let kind = if past.is_emergency { "an opposite emergency" } else { "the opposite change" };
    let until = format::at(Clock::Unix, until_ms);
    Some(format!("{kind} was {ago} ago, and {days} days must pass: it waits until {until}"))
}

fn opposite(facts: &Facts<'_>, change: &Change) -> Option<(Brake, String)> {
    let is_meant = match change.rule {
        // A change to more that takes back one to less is an emergency, and has no such brake.
        Rule::Shrink | Rule::Lower => true,
        Rule::Grow | Rule::Raise => !change.is_emergency,
        Rule::Undo | Rule::Scheduled | Rule::Ended | Rule::Delete => false,
    };
    if !is_meant {
        return None;
    }
    if let Some(reason) = opposed(facts, change) {
        return Some((Brake::Opposite, reason));
    }
    if change.rule != Rule::Shrink {
        return None;
    }
    let changes =
        facts.state.past.iter().filter(|past| past.axis == change.rule.axis() && past.is_done);
    let last_ms = changes.map(|past| past.ended_ms).max()?;
    let days = facts.policy.space.quiet_days;
    let until_ms = last_ms.saturating_add(u64::from(days) * facts.policy.day_ms());
    (until_ms > facts.now.unix_ms).then(|| {
        let until = format::at(Clock::Unix, until_ms);
        let reason =
            format!("the size changed less than {days} days ago: it shrinks from {until} on");
        (Brake::Opposite, reason)
    })
}

fn error_budget(facts: &Facts<'_>, change: &Change) -> Option<(Brake, String)> {
    if !matches!(change.rule, Rule::Shrink | Rule::Lower) {
        return None;
    }
    let minutes = u64::from(facts.policy.brakes.error_minutes_per_month);
    let slow_minutes = facts.state.slow_month_ms / 60_000;
    (slow_minutes.saturating_mul(HALF) >= minutes && slow_minutes > 0).then(|| {
        let reason = format!(
            "flushes were above the target for {slow_minutes} min during moves of this month: half \
             of {minutes} min is used, and only growth is allowed"
        );
        (Brake::ErrorBudget, reason)
    })
}

fn blast_radius(facts: &Facts<'_>, change: &Change) -> Option<(Brake, String)> {
    // It bounds changes that can do harm: to less, to another type, or of where data lies.
    let keeps_type = match &change.operation {
        Operation::Modify { from, to, .. } => from.volume_type == to.volume_type,
        _ => false,
    };
    let is_exempt = match change.rule {
        Rule::Grow | Rule::Undo | Rule::Delete => true,
        Rule::Raise | Rule::Scheduled => keeps_type,
        Rule::Shrink | Rule::Lower | Rule::Ended => false,
    };
    if is_exempt {
        return None;
    }
    let budget = &facts.policy.budget;
    if let Some(instance) = &facts.now.instance
        && instance.operations >= budget.operations_per_host_max
    {
        let count = instance.operations;
        let most = budget.operations_per_host_max;
        let reason = format!("{} has {count} operations, and may have {most}", instance.id);
        return Some((Brake::BlastRadius, reason));
    }
    let account = facts.now.account;
    let part = u64::from(account.fleet_volumes) * u64::from(budget.fleet_percent_per_hour_max);
    let most = (part / 100).max(1);
    let changed = account.fleet_changed_last_hour;
    (u64::from(changed) >= most).then(|| {
        let reason = format!(
            "{changed} of the fleet's {} volumes changed in the last hour, and {most} may",
            account.fleet_volumes
        );
        (Brake::BlastRadius, reason)
    })
}
