//! The server's time, by which durations are counted. Pure.
//!
//! Deadlines (of the recycle bin, locks, modifications, client tokens) are stored as times of the
//! wall clock, which may be wrong or be set. So the server does not compare them with the wall
//! clock, but with its own time:
//!
//! - **While the server runs**, its time rises with the clock that runs since the machine's boot.
//! - **At a start** within the same boot, the time down is measured by that clock, too. After a
//!   restart of the machine, or on another node, the wall clock is believed if it is at most
//!   [`DOWN_MAX_MS`] later than the time that is stored; else no time has passed.
//! - **A step** is a difference of [`STEP_MS`] or more between the two. The plane then moves every
//!   deadline by the step (see [`moved`]), and the server's time becomes the wall clock's. So the
//!   rest of each duration stays the same.
//!
//! If a step forward was really a long time without power, deadlines come later than necessary.
//! Nothing is deleted early.

use evenkeel_core::convert::saturating;
use std::time::Duration;

use evenkeel_core::time::UnixMs;

use crate::journal::Subject;
use crate::model::{
    Event, FastRestore, Host, HostState, Lock, Model, Modification, ModificationPhase, Phase,
    Snapshot, SnapshotPhase, TOKEN_LIFETIME_MS, TierOperation, Tiering, Token, Volume,
};
use crate::time::Moment;

/// Minimum difference between the wall clock and the server's time that is a step, in milliseconds:
/// more than NTP's corrections of a clock.
pub const STEP_MS: u64 = 5_000;
/// Maximum time between two boots, or two nodes, that only the wall clock shows, in milliseconds.
pub const DOWN_MAX_MS: u64 = 3_600_000;
/// Time for which a step is reported as a metric: long enough for every alert.
pub const REPORTED: Duration = Duration::from_hours(1);
/// Time for which starts of modifications are moved, in milliseconds. They count for a day at most;
/// the rest allows for a late call.
const STARTS_COUNT_MS: u64 = 48 * 3_600_000;

/// A difference between the wall clock and the server's time, in milliseconds; positive if the wall
/// clock is ahead.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Step(pub i64);

impl Step {
    /// Returns this time moved by the step; not before 1970.
    #[must_use]
    pub const fn applied_to(self, time: UnixMs) -> UnixMs {
        UnixMs(time.0.saturating_add_signed(self.0))
    }
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct ServerTime {
    /// The server's time at the moment `since_boot`.
    at: UnixMs,
    since_boot: Duration,
    /// The last step, and when it was applied.
    last: Option<(Step, Duration)>,
}

impl ServerTime {
    /// Returns the time with which a server starts, from the last stored time.
    #[must_use]
    pub fn at_start(stored: Option<&Moment>, now: &Moment, since_boot: Duration) -> Self {
        let wall = now.unix;
        let at = stored.map_or(wall, |stored| match (&stored.boot, &now.boot) {
            (Some((boot, then)), Some((same, now_ms))) if boot == same => {
                stored.unix.plus_ms(now_ms.saturating_sub(*then))
            }
            _ if (stored.unix..=stored.unix.plus_ms(DOWN_MAX_MS)).contains(&wall) => wall,
            _ => stored.unix,
        });
        Self { at, since_boot, last: None }
    }

    /// Returns the server's time.
    #[must_use]
    pub fn now(&self, since_boot: Duration) -> UnixMs {
        let passed = since_boot.saturating_sub(self.since_boot).as_millis();
        self.at.plus_ms(saturating(passed))
    }

    /// Returns the step of the wall clock, if there is one.
    #[must_use]
    pub fn step(&self, wall: UnixMs, since_boot: Duration) -> Option<Step> {
        let now = self.now(since_boot);
        let ahead: i64 = saturating(wall.ms_since(now));
        let behind: i64 = saturating(now.ms_since(wall));
        Some(Step(ahead - behind)).filter(|step| step.0.unsigned_abs() >= STEP_MS)
    }

    /// Moves the server's time by a step.
    pub fn apply(&mut self, step: Step, since_boot: Duration) {
        self.at = step.applied_to(self.now(since_boot));
        (self.since_boot, self.last) = (since_boot, Some((step, since_boot)));
    }

    /// Returns the last step, for as long as it is reported.
    #[must_use]
    pub fn reported(&self, since_boot: Duration) -> Option<Step> {
        let is_recent = |(_, at): &(Step, Duration)| since_boot.saturating_sub(*at) < REPORTED;
        self.last.filter(is_recent).map(|(step, _)| step)
    }
}

/// Returns the events that move deadlines by a step, each with its subject. A step ahead moves the
/// deadlines that are after `now`, the server's time before the step. A step back moves all, so
/// that those that have passed stay so.
#[must_use]
pub fn moved(model: &Model, step: Step, now: UnixMs) -> Vec<(Subject, Event)> {
    let volumes = model.volumes.values().filter_map(|volume| moved_volume(volume, step, now));
    let snapshots =
        model.snapshots.values().filter_map(|snapshot| moved_snapshot(snapshot, step, now));
    let hosts = model.hosts.values().filter_map(|host| moved_host(host, step, now));
    let tokens = model.tokens.iter().filter_map(|(name, it)| moved_token(name, it, step, now));
    let events = volumes.map(Event::Volume);
    let events = events.chain(snapshots.map(Event::Snapshot)).chain(hosts.map(Event::Host));
    let events = events.chain(tokens);
    events.map(|event| (Subject::of(&event).0, event)).collect()
}

fn moved_volume(volume: &Volume, step: Step, now: UnixMs) -> Option<Volume> {
    let mut moved = volume.clone();
    if let Phase::Binned { until, .. } = &mut moved.phase
        && moves(*until, step, now)
    {
        *until = step.applied_to(*until);
    }
    if let Some(Modification { phase: ModificationPhase::Optimizing { since, until }, .. }) =
        &mut moved.modification
        && moves(*until, step, now)
    {
        (*since, *until) = (step.applied_to(*since), step.applied_to(*until));
    }
    for start in &mut moved.modification_starts {
        if moves(start.plus_ms(STARTS_COUNT_MS), step, now) {
            *start = step.applied_to(*start);
        }
    }
    (moved != *volume).then_some(moved)
}

fn moved_snapshot(snapshot: &Snapshot, step: Step, now: UnixMs) -> Option<Snapshot> {
    let mut moved = snapshot.clone();
    if let SnapshotPhase::Binned { until, .. } = &mut moved.phase
        && moves(*until, step, now)
    {
        *until = step.applied_to(*until);
    }
    if let Some(Tiering { last: TierOperation::TemporaryRestore { until }, .. }) =
        &mut moved.tiering
        && moves(*until, step, now)
    {
        *until = step.applied_to(*until);
    }
    for FastRestore { counted, .. } in moved.fast_restores.values_mut() {
        *counted = step.applied_to(*counted);
    }
    if (step.0 < 0 || snapshot.locked(now).is_some())
        && let Some(Lock { created, until, .. }) = &mut moved.lock
    {
        *created = step.applied_to(*created);
        *until = until.map(|until| step.applied_to(until));
        // The time in days begins with the later of the two.
        if let SnapshotPhase::Completed { ended, .. } = &mut moved.phase {
            *ended = step.applied_to(*ended);
        }
    }
    (moved != *snapshot).then_some(moved)
}

fn moved_host(host: &Host, step: Step, now: UnixMs) -> Option<Host> {
    let HostState::Terminated { at } = host.state else { return None };
    let state = HostState::Terminated { at: step.applied_to(at) };
    (step.0 < 0 || host.is_shown(now)).then(|| Host { state, ..host.clone() })
}

fn moved_token(name: &str, token: &Token, step: Step, now: UnixMs) -> Option<Event> {
    let used = step.applied_to(token.used);
    moves(token.used.plus_ms(TOKEN_LIFETIME_MS), step, now)
        .then(|| Event::Token(name.to_owned(), Token { used, ..token.clone() }))
}

/// Returns whether a step moves this deadline.
const fn moves(until: UnixMs, step: Step, now: UnixMs) -> bool {
    step.0 < 0 || until.0 > now.0
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY_MS: u64 = 86_400_000;
    const T0: UnixMs = UnixMs(1_700_000_000_000);
    const BOOTED: Duration = Duration::from_secs(1_000);

    fn moment(unix: UnixMs, boot: &str, ms: u64) -> Moment {
        Moment { unix, boot: Some((boot.to_owned(), ms)) }
    }

    fn started(stored: &Moment, now: &Moment) -> ServerTime {
        ServerTime::at_start(Some(stored), now, BOOTED)
    }

    #[test]
    fn time_within_a_boot_follows_the_boot_clock() {
        let stored = moment(T0, "a", 500_000);
        for wall in [T0.plus_ms(30 * DAY_MS), UnixMs(0), T0.plus_ms(60_000)] {
            let time = started(&stored, &moment(wall, "a", 560_000));
            assert_eq!(time.now(BOOTED), T0.plus_ms(60_000), "{wall:?}");
            assert_eq!(time.now(BOOTED + Duration::from_secs(5)), T0.plus_ms(65_000));
        }
    }

    #[test]
    fn time_after_another_boot_is_the_wall_clocks_if_it_is_an_hour_later_at_most() {
        let stored = moment(T0, "a", 500_000);
        let after = |wall| started(&stored, &moment(wall, "b", 9_000)).now(BOOTED);
        assert_eq!(after(T0.plus_ms(DOWN_MAX_MS)), T0.plus_ms(DOWN_MAX_MS));
        assert_eq!(after(T0.plus_ms(DOWN_MAX_MS + 1)), T0);
        assert_eq!(after(T0.plus_ms(30 * DAY_MS)), T0);
        assert_eq!(after(UnixMs(5)), T0);
        let first = ServerTime::at_start(None, &moment(T0, "a", 0), BOOTED);
        assert_eq!(first.now(BOOTED), T0);
    }

    #[test]
    fn a_step_is_a_difference_of_five_seconds_in_either_direction_and_is_reported_for_an_hour() {
        let mut time = ServerTime::at_start(None, &moment(T0, "a", 0), BOOTED);
        let later = BOOTED + Duration::from_secs(10);
        let wall = T0.plus_ms(10_000);
        assert_eq!(time.step(wall, later), None);
        assert_eq!(time.step(wall.plus_ms(STEP_MS - 1), later), None);
        assert_eq!(time.step(wall.plus_ms(STEP_MS), later), Some(Step(5_000)));
        assert_eq!(time.step(UnixMs(wall.0 - STEP_MS), later), Some(Step(-5_000)));
        assert!(time.step(UnixMs(u64::MAX), later).is_some());
        assert_eq!(time.reported(later), None);
        time.apply(Step(-7_000), later);
        assert_eq!(time.now(later), T0.plus_ms(3_000));
        assert_eq!(time.reported(later + Duration::from_secs(3_599)), Some(Step(-7_000)));
        assert_eq!(time.reported(later + REPORTED), None);
    }
}
