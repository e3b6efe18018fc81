//! [`PlaneError`]: why a mutation failed.

use std::fmt;

use evenkeel_wire::agent::{Failed, FailedKind};

use crate::journal::JournalError;
use crate::model::Refusal;

/// Why a mutation failed.
#[derive(Debug)]
pub enum PlaneError {
    /// The model refused the command.
    Refused(Refusal),
    /// The command would be accepted; the client asked for a dry run only.
    DryRun,
    /// The data plane failed. The change is rolled back, unless the data plane has not answered
    /// yet.
    Agent(Failed),
    /// The journal failed.
    Journal(JournalError),
    /// The OS returned no random bytes for a new id.
    Random(getrandom::Error),
    /// Too many changes wait already: this many.
    Busy(usize),
    /// An earlier mutation panicked, so the state in memory is unreliable. Restart the server.
    Poisoned,
}

impl PlaneError {
    /// Returns whether the data plane has not answered yet; the tick calls it again.
    pub(super) fn is_unanswered(&self) -> bool {
        matches!(self, Self::Agent(failed) if failed.kind == FailedKind::Unanswered)
    }
}

impl fmt::Display for PlaneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => write!(f, "refused: {refusal:?}"),
            Self::DryRun => f.write_str("dry run"),
            Self::Agent(failed) => write!(f, "the data plane: {}", failed.message),
            Self::Journal(error) => write!(f, "the database: {error}"),
            Self::Random(error) => write!(f, "the OS gives no random bytes: {error}"),
            Self::Busy(count) => write!(f, "{count} changes wait already; try again"),
            Self::Poisoned => f.write_str("an earlier request crashed; restart the server"),
        }
    }
}

impl From<Refusal> for PlaneError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<JournalError> for PlaneError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

impl From<getrandom::Error> for PlaneError {
    fn from(error: getrandom::Error) -> Self {
        Self::Random(error)
    }
}
