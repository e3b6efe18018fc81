//! A move of a test server's clock, and what follows from it at once: credits of the time that was
//! passed over, and deadlines that are over.

use evenkeel_core::time::UnixMs;
use evenkeel_wire::agent::VolumeReport;

use super::{Plane, PlaneError};
use crate::credits::{self, Stop};
use crate::server_clock::ClockRefusal;
use crate::time::Moment;

/// A change of a test server's clock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClockChange {
    /// Moves it ahead by this number of milliseconds.
    Advance(u64),
    /// Moves it ahead to this time.
    Set(UnixMs),
    /// Stops it.
    Freeze,
    /// Lets it run.
    Run,
}

/// Why a clock did not change, or what follows could not be done.
#[derive(Debug)]
pub enum ClockFailure {
    /// The clock is as it was.
    Refused(ClockRefusal),
    /// The clock has changed, and a later step failed; the tick tries some of them again.
    After(PlaneError),
}

impl From<ClockRefusal> for ClockFailure {
    fn from(refusal: ClockRefusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<PlaneError> for ClockFailure {
    fn from(error: PlaneError) -> Self {
        Self::After(error)
    }
}

impl Plane {
    /// Changes the clock of a test server. After a move ahead, volumes have the credits that they
    /// earn in that time without I/O, and deadlines that are over have had their effect.
    ///
    /// # Errors
    /// See [`ClockFailure`].
    pub fn change_clock(&self, change: ClockChange) -> Result<(), ClockFailure> {
        let _one = self.clock.one_change_at_a_time();
        let ms = match change {
            ClockChange::Freeze => return Ok(self.clock.set_frozen(true)?),
            ClockChange::Run => return Ok(self.clock.set_frozen(false)?),
            ClockChange::Advance(ms) => ms,
            ClockChange::Set(to) => self.ms_until(to)?,
        };
        self.clock.advance(ms)?;
        self.store_time_now()?;
        for report in self.report()?.volumes {
            self.earn(&report, ms)?;
        }
        self.maintain_now();
        Ok(())
    }

    /// Checks whether changes of the clock of a test server, made one after the other, would
    /// succeed.
    ///
    /// # Errors
    /// [`ClockRefusal`].
    pub fn check_clock(&self, changes: &[ClockChange]) -> Result<(), ClockRefusal> {
        for change in changes {
            match change {
                ClockChange::Freeze | ClockChange::Run => {}
                ClockChange::Advance(ms) => self.clock.check_advance(*ms)?,
                ClockChange::Set(to) => self.clock.check_advance(self.ms_until(*to)?)?,
            }
        }
        Ok(())
    }

    /// Returns by how much the clock is to be moved for this server to be at a time, in
    /// milliseconds. The server's time follows the machine's, and can be some milliseconds behind.
    fn ms_until(&self, to: UnixMs) -> Result<u64, ClockRefusal> {
        let now = self.now();
        if to < now { Err(ClockRefusal::Backwards { now, to }) } else { Ok(to.ms_since(now)) }
    }

    /// Adds the credits that an idle volume earns in `ms` milliseconds.
    fn earn(&self, report: &VolumeReport, ms: u64) -> Result<(), PlaneError> {
        let pacing = match self.model().volumes.get(&report.id) {
            Some(volume) => crate::reconcile::pacing(&self.settings, volume),
            None => return Ok(()),
        };
        let moment = |unix_ms| Moment { unix: UnixMs(unix_ms), boot: None };
        let stop = Stop::Clean(moment(0));
        let earned = credits::after_stop(&pacing, report.balances, &stop, &moment(ms));
        if earned == report.balances {
            return Ok(());
        }
        match self.set_balances(report.id, earned) {
            // It was deleted meanwhile.
            Err(PlaneError::Refused(_)) => Ok(()),
            other => other,
        }
    }
}
