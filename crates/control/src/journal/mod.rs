//! The durable log of decisions: what the control plane has decided, and what of credits is not
//! leased.
//!
//! A [`Journal`] is given [`Change`]s, each whole or not at all, and gives back [`Loaded`], what
//! all changes come to. The control plane knows no more of it than this trait; files, SQL, disks
//! that are full and migrations are an implementation's own affair.
//!
//! | file | what it is |
//! | --- | --- |
//! | [`sqlite`] | one file on this machine, for one server |
//! | [`memory`] | bytes in memory, for tests |
//! | [`mod@format`] | the byte form of an event, for journals that keep bytes |
//! | `watch` | how changes reach those who follow |
//! | `conformance` | what every journal must do; each one's tests call it |
//!
//! Rules that hold for every journal:
//!
//! - **Durable.** When [`Journal::commit`] returns, the change survives `kill -9` and a power cut,
//!   as far as the place where it is kept can.
//! - **One writer.** Every commit names the revision that its decision was based on. If somebody
//!   has committed since, the commit is refused and nothing is stored: a server that slept cannot
//!   overwrite what another one has decided.
//! - **Idempotency tokens** are new when they are committed. A second commit of one is refused.
//! - **No room** is an error of its own. A commit that leads to more room (a volume is detached or
//!   deleted) is stored as long as anything can be.

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::qos::pacing::Balances;

use crate::credits::{Moment, Stop};
use crate::model::{Event, Model};

#[cfg(test)]
mod conformance;
pub mod format;
pub mod memory;
pub mod sqlite;
mod watch;

pub use watch::{Committed, QUEUE_MAX, Watch};

/// The number of commits that led to a state. It only rises.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a journal did not do what it was asked. Nothing is stored then.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JournalError {
    /// There is no room for the change; the text names the place.
    NoRoom(String),
    /// Somebody else has committed.
    Conflict {
        /// What the commit was based on.
        expected: Revision,
        /// What there is.
        found: Revision,
    },
    /// The idempotency token is there already.
    TokenTaken(String),
    /// What was changed between these revisions is not kept: load again, and watch from there.
    Compacted {
        /// Where the watcher is.
        after: Revision,
        /// The earliest revision from which a watch can begin.
        oldest: Revision,
    },
    /// The watcher did not keep up, or the journal is closed: load again, and watch from there.
    Behind,
    /// Written by a newer version of this program; the text says which.
    TooNew(String),
    /// The place where it is kept failed; the text says how.
    Failed(String),
}

impl JournalError {
    /// Whether the cause is that there is no room.
    #[must_use]
    pub const fn is_no_room(&self) -> bool {
        matches!(self, Self::NoRoom(_))
    }
}

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoom(text) | Self::TooNew(text) | Self::Failed(text) => f.write_str(text),
            Self::Conflict { expected, found } => write!(
                f,
                "another server has committed: revision {found} is there, {expected} was \
                 expected; restart this server"
            ),
            Self::TokenTaken(token) => write!(f, "the client token '{token}' is there already"),
            Self::Compacted { after, oldest } => write!(
                f,
                "changes after revision {after} are no longer kept, only those after {oldest}; \
                 load again"
            ),
            Self::Behind => f.write_str("the watch has ended before the changes did; load again"),
        }
    }
}

impl std::error::Error for JournalError {}

/// Credit balances.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Credits {
    /// Of volumes.
    pub volumes: BTreeMap<VolumeId, Balances>,
    /// Of hosts whose type bursts.
    pub hosts: BTreeMap<InstanceId, Balances>,
}

impl Credits {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.hosts.is_empty()
    }

    /// What is known of a volume.
    #[must_use]
    pub fn volume(&self, id: VolumeId) -> Balances {
        self.volumes.get(&id).copied().unwrap_or_default()
    }

    /// What is known of a host.
    #[must_use]
    pub fn host(&self, id: InstanceId) -> Balances {
        self.hosts.get(&id).copied().unwrap_or_default()
    }

    /// Puts others in the place of these, as far as there are.
    pub fn extend(&mut self, others: &Self) {
        self.volumes.extend(&others.volumes);
        self.hosts.extend(&others.hosts);
    }

    /// Makes an event true: what is gone has no credits.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::VolumeGone(id) => _ = self.volumes.remove(id),
            Event::HostGone(id) => _ = self.hosts.remove(id),
            _ => {}
        }
    }
}

/// What is stored at once.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Change {
    /// What was decided, in this order.
    pub events: Vec<Event>,
    /// What of these balances is not leased from now on; after a clean stop, all of them. Rows of
    /// others stay. Stored after the events.
    pub unleased: Credits,
    /// When the server stopped cleanly, if this is its last change. Any other change ends the state
    /// of having been stopped cleanly.
    pub stopped: Option<Moment>,
}

impl From<Vec<Event>> for Change {
    fn from(events: Vec<Event>) -> Self {
        Self { events, ..Self::default() }
    }
}

/// What all changes come to.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// Everything that exists.
    pub model: Model,
    /// What of balances is not leased.
    pub credits: Credits,
    /// How the last server stopped.
    pub stop: Stop,
    /// Where the next commit begins.
    pub revision: Revision,
}

/// A durable log of decisions. See the module's text for what holds for all of them.
pub trait Journal: Send {
    /// Reads everything.
    ///
    /// # Errors
    /// [`JournalError::TooNew`], [`JournalError::Failed`].
    fn load(&mut self) -> Result<Loaded, JournalError>;

    /// Stores a change that was decided at `expected`, and returns the revision that it makes. May
    /// block for as long as the disk or the network takes.
    ///
    /// # Errors
    /// [`JournalError::Conflict`], [`JournalError::TokenTaken`], [`JournalError::NoRoom`],
    /// [`JournalError::Failed`]; nothing was stored then.
    fn commit(&mut self, change: &Change, expected: Revision) -> Result<Revision, JournalError>;

    /// Follows all changes after a revision, in their order, by whichever writer this journal can
    /// see.
    ///
    /// # Errors
    /// [`JournalError::Compacted`] if some of them are no longer kept, [`JournalError::Failed`].
    fn watch(&mut self, after: Revision) -> Result<Watch, JournalError>;
}
