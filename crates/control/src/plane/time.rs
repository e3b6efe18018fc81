//! Follows the wall clock: a step of it moves every deadline, so that nothing ends early.
//!
//! [`Plane::follow_clock`] runs at the start and before each check of deadlines. A step forward
//! moves the deadlines first and the server's time last, a step back the other way round. So at
//! every moment, and after a crash in between, deadlines are at their right distance or later.

use std::collections::BTreeSet;
use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use evenkeel_core::convert::saturating;
use evenkeel_core::time::UnixMs;
use tracing::{info, warn};

use super::writer::Writer;
use super::{Plane, PlaneError};
use crate::journal::{Change, Credits, Subject};
use crate::model::Event;
use crate::server_clock::{Reading, ServerClock};
use crate::server_time::{ServerTime, Step, moved};
use crate::time::Moment;
use evenkeel_os::clock;

/// Maximum time between two stores of the server's time, which is also stored with each commit.
/// After a failure of the machine, this much of the time before it may not count. Storing also
/// shows whether the journal takes changes.
const STORED_EVERY: Duration = Duration::from_mins(1);
/// Time until the next attempt after a failed store.
const STORED_AGAIN: Duration = Duration::from_secs(5);
/// Maximum number of deadlines that one commit moves: etcd limits the size of a transaction.
const MOVED_MAX: usize = 64;

/// The server's time, and a step whose deadlines are being moved.
pub(super) struct Following {
    time: ServerTime,
    /// When the time is stored next, since the boot.
    due: Duration,
    /// A step whose deadlines are not all moved yet.
    moving: Option<Moving>,
    /// The time that the server before this one has stored last.
    before: Option<UnixMs>,
}

/// A step that is in progress.
struct Moving {
    step: Step,
    /// Subjects whose deadlines are moved already.
    done: BTreeSet<Subject>,
}

/// Returns the present time by both clocks.
///
/// A test clock has no id of a boot: its file has its time after a restart, and the wall clock
/// counts.
pub(super) fn moment(clock: &ServerClock) -> Moment {
    let Reading { unix, since_boot } = clock.read();
    let ms = saturating(since_boot.as_millis());
    let id = if clock.is_test() { None } else { clock::boot_id().ok() };
    Moment { unix, boot: id.map(|id| (id, ms)) }
}

impl Following {
    /// Creates the state of a server whose start has stored this time. The server before it has
    /// stored `before`.
    pub(super) fn new(time: ServerTime, since_boot: Duration, before: Option<UnixMs>) -> Self {
        Self { time, due: since_boot.saturating_add(STORED_EVERY), moving: None, before }
    }
}

impl Plane {
    fn following(&self) -> MutexGuard<'_, Following> {
        // Each change of it is a single assignment.
        self.following.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the server's time, by which durations are counted. It does not jump with the wall
    /// clock.
    #[must_use]
    pub fn now(&self) -> UnixMs {
        self.following().time.now(self.clock.since_boot())
    }

    /// Returns the time that the server before this one has stored last, by its clock; `None` if
    /// there was none. It is not older than the last change that was committed.
    #[must_use]
    pub fn time_before(&self) -> Option<UnixMs> {
        self.following().before
    }

    /// Returns the server's time in its stored form.
    pub(super) fn moment(&self) -> Moment {
        let boot = moment(&self.clock).boot;
        Moment { unix: self.now(), boot }
    }

    /// Returns the last step of the wall clock, for as long as it is reported.
    #[must_use]
    pub fn clock_step(&self) -> Option<Step> {
        self.following().time.reported(self.clock.since_boot())
    }

    /// Moves every deadline if the wall clock was set, and stores the server's time regularly. A
    /// failure is logged, and the next call tries again.
    pub fn follow_clock(&self) {
        self.follow_clock_at(self.clock.unix_ms());
    }

    /// Follows this reading of the wall clock, as [`Self::follow_clock`] does.
    pub fn follow_clock_at(&self, wall: UnixMs) {
        let was_failing = self.journal_now().is_failing;
        if let Err(error) = self.follow(wall)
            && !was_failing
        {
            warn!(%error, "the server's time could not be stored; trying again");
        }
    }

    fn follow(&self, wall: UnixMs) -> Result<(), PlaneError> {
        let mut writer = self.writer()?;
        let boot = self.clock.since_boot();
        let begun = {
            let mut following = self.following();
            let step = following.time.step(wall, boot);
            match (&following.moving, step) {
                (Some(moving), _) => Some(moving.step),
                (None, Some(step)) => {
                    following.moving = Some(Moving { step, done: BTreeSet::new() });
                    warn_of(step);
                    if step.0 < 0 {
                        following.time.apply(step, boot);
                        following.due = boot;
                    }
                    Some(step)
                }
                (None, None) => None,
            }
        };
        if begun.is_some_and(|step| step.0 < 0) {
            self.store_time(&mut writer, boot)?;
        }
        if let Some(step) = begun {
            self.move_deadlines(&mut writer, step)?;
            let mut following = self.following();
            following.moving = None;
            if step.0 > 0 {
                following.time.apply(step, boot);
                following.due = boot;
            }
        }
        self.store_time(&mut writer, boot)
    }

    /// Moves all deadlines that this step has not moved yet.
    fn move_deadlines(&self, writer: &mut Writer, step: Step) -> Result<(), PlaneError> {
        // A step back has not been applied yet, so the server's time is still later by the step.
        let before = match step.0 {
            ..0 => Step(step.0.saturating_neg()).applied_to(self.now()),
            _ => self.now(),
        };
        let mut all = moved(&self.model(), step, before);
        if let Some(moving) = &self.following().moving {
            all.retain(|(subject, _)| !moving.done.contains(subject));
        }
        for some in all.chunks(MOVED_MAX) {
            let events: Vec<Event> = some.iter().flat_map(|(_, event)| stored(event)).collect();
            self.commit(writer, events, &Credits::default())?;
            if let Some(moving) = &mut self.following().moving {
                moving.done.extend(some.iter().map(|(subject, _)| subject.clone()));
            }
        }
        info!(step_ms = step.0, moved = all.len(), "deadlines have moved with the clock");
        Ok(())
    }

    /// Stores the server's time now.
    ///
    /// # Errors
    /// See [`PlaneError`].
    pub(super) fn store_time_now(&self) -> Result<(), PlaneError> {
        self.following().due = Duration::ZERO;
        self.follow(self.clock.unix_ms())
    }

    /// Stores the server's time, if it was not stored for a while.
    fn store_time(&self, writer: &mut Writer, boot: Duration) -> Result<(), PlaneError> {
        if self.following().due > boot {
            return Ok(());
        }
        let clock = Some(self.moment());
        let stored = writer.store(&Change { clock, ..Change::default() });
        let pause = if stored.is_ok() { STORED_EVERY } else { STORED_AGAIN };
        self.following().due = boot.saturating_add(pause);
        Ok(stored?)
    }
}

/// Returns the events that store a moved event. A journal takes a client token once, so it is
/// removed in the same commit.
fn stored(event: &Event) -> Vec<Event> {
    let dropped = match event {
        Event::Token(name, _) => Some(Event::TokenGone(name.clone())),
        _ => None,
    };
    dropped.into_iter().chain([event.clone()]).collect()
}

fn warn_of(step: Step) {
    let seconds = step.0.unsigned_abs() / 1_000;
    let direction = if step.0 > 0 { "ahead" } else { "back" };
    warn!(
        "the wall clock was set {seconds} s {direction}, or the machine was off that long; \
         deadlines move with it, so that nothing ends early. Check that the clock is right \
         (`timedatectl`), and set it if it is not"
    );
}
