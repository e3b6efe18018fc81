//! Why a mutation failed.

use std::fmt;

use evenkeel_wire::agent::{Failed, FailedKind};

use crate::journal::JournalError;
use crate::model::Refusal;

/// Why a mutation failed.
#[derive(Debug)]
pub enum PlaneError {
    /// The model refused it.
    Refused(Refusal),
    /// It would have been done, but only a dry run was asked for.
    DryRun,
    /// The data plane failed; what was begun is taken back, unless it has not answered yet.
    Agent(Failed),
    /// The journal failed.
    Journal(JournalError),
    /// The OS gave no random bytes for a new id.
    Random(getrandom::Error),
    /// So many changes wait already.
    Busy(usize),
    /// An earlier mutation panicked; what is in memory is not to be trusted. Restart the server.
    Poisoned,
}

impl PlaneError {
    /// Whether the data plane has not answered yet, and will be asked again.
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
