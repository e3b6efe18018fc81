//! Locks, which keep snapshots from being deleted for a time.

use evenkeel_core::ids::SnapshotId;

use super::{Decision, Event, Model, Refusal, Snapshot, SnapshotPhase, UnixMs};

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;
/// Maximum number of days of a lock: EC2's.
pub const LOCK_DAYS_MAX: u32 = 36_500;
/// Maximum number of hours of a cooling-off period: EC2's.
pub const COOL_OFF_HOURS_MAX: u32 = 72;

/// The clients that may end a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockMode {
    /// Any client may unlock it.
    Governance,
    /// No client may unlock it after its cooling-off period; its time may be extended.
    Compliance,
}

impl LockMode {
    /// The name in the EC2 API.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Governance => "governance",
            Self::Compliance => "compliance",
        }
    }
}

/// A snapshot's lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lock {
    /// The clients that may end it.
    pub mode: LockMode,
    /// When it was set.
    pub created: UnixMs,
    /// Time in which a compliance lock may still be changed, in hours.
    pub cool_off_hours: u32,
    /// Its time in days, from when it was set, or from the snapshot's completion if that is later.
    /// If it was set to a date, the days until the date, rounded up.
    pub days: u32,
    /// The date, if it was set to one.
    pub until: Option<UnixMs>,
}

/// A lock at a point in time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct LockView {
    /// The name of its state in the EC2 API.
    pub state: &'static str,
    /// When its time began; `None` while the snapshot is pending.
    pub starts: Option<UnixMs>,
    /// When it ends.
    pub expires: Option<UnixMs>,
    /// When it can no longer be changed.
    pub cools_off: Option<UnixMs>,
}

impl Lock {
    /// Returns the lock at `now`, of a snapshot in this phase.
    #[must_use]
    pub fn view(&self, phase: &SnapshotPhase, now: UnixMs) -> LockView {
        let starts = match phase {
            SnapshotPhase::Completed { ended, .. } => Some(self.created.max(*ended)),
            phase if phase.is_pending() => None,
            _ => Some(self.created),
        };
        let by_days = |from: UnixMs| from.plus_ms(u64::from(self.days) * DAY_MS);
        let expires = self.until.or(starts.map(by_days));
        let cools_off = (self.cool_off_hours > 0)
            .then(|| self.created.plus_ms(u64::from(self.cool_off_hours) * HOUR_MS));
        let state = if expires.is_some_and(|expires| now >= expires) {
            "expired"
        } else if cools_off.is_some_and(|end| now < end) {
            "compliance-cooloff"
        } else {
            self.mode.name()
        };
        LockView { state, starts, expires, cools_off }
    }
}

impl Snapshot {
    /// Returns its lock at `now`, if it has one.
    #[must_use]
    pub fn lock_view(&self, now: UnixMs) -> Option<(Lock, LockView)> {
        self.lock.map(|lock| (lock, lock.view(&self.phase, now)))
    }

    /// Returns the state of the lock that keeps it from being deleted, if there is one.
    #[must_use]
    pub fn locked(&self, now: UnixMs) -> Option<&'static str> {
        self.lock_view(now).map(|(_, view)| view.state).filter(|state| *state != "expired")
    }
}

impl Model {
    pub(super) fn lock_snapshot(
        &self,
        id: SnapshotId,
        lock: &Lock,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        let snapshot = self.snapshot(id)?;
        if matches!(snapshot.phase, SnapshotPhase::Error(_)) {
            return Err(Refusal::SnapshotUnready(id, snapshot.state()));
        }
        let mut lock = *lock;
        if let Some((before, view)) = snapshot.lock_view(now)
            && view.state == LockMode::Compliance.name()
        {
            // Only a longer time is allowed, and no new cooling-off period.
            let after = Lock { created: before.created, cool_off_hours: 0, ..lock };
            let days = |lock: &Lock| now.plus_ms(u64::from(lock.days) * DAY_MS);
            // While the snapshot is pending, the time in days has not begun.
            let ends = after.view(&snapshot.phase, now).expires.unwrap_or(days(&after));
            let is_longer = ends >= view.expires.unwrap_or(days(&before));
            if lock.mode != LockMode::Compliance || lock.cool_off_hours > 0 || !is_longer {
                return Err(Refusal::LockedForGood(id, view.expires));
            }
            lock = Lock { cool_off_hours: before.cool_off_hours, ..after };
        }
        Ok(changed(Snapshot { lock: Some(lock), ..snapshot.clone() }))
    }

    pub(super) fn unlock_snapshot(&self, id: SnapshotId, now: UnixMs) -> Result<Decision, Refusal> {
        let snapshot = self.snapshot(id)?;
        match snapshot.lock_view(now) {
            None => Err(Refusal::NotLocked(id)),
            Some((_, view)) if view.state == LockMode::Compliance.name() => {
                Err(Refusal::LockedForGood(id, view.expires))
            }
            Some(_) => Ok(changed(Snapshot { lock: None, ..snapshot.clone() })),
        }
    }
}

/// Returns a decision that sets properties of a snapshot that the data plane does not have.
pub(super) fn changed(snapshot: Snapshot) -> Decision {
    Decision { events: vec![Event::Snapshot(snapshot)], ..Decision::default() }
}
