//! The durable log of the control plane's decisions and of the unleased part of credit balances.
//!
//! A [`Journal`] is given [`Change`]s, each of which it stores completely or not at all, and
//! returns [`Loaded`], the state after all changes. The rest of the control plane uses this trait
//! only. Files, SQL and full disks are left to the implementations. The journal of several servers,
//! in etcd, is in the crate `cluster`.
//!
//! | file | contents |
//! | --- | --- |
//! | [`sqlite`] | one file on this machine, for one server |
//! | [`memory`] | bytes in memory, for tests |
//! | [`mod@format`] | the JSON of an event, which every journal stores |
//! | `subject` | the object that an event is about, under whose key a journal stores it |
//! | [`watch`] | delivery of changes to watchers |
//! | `conformance` | the tests that every journal must pass |
//!
//! Rules that hold for every journal:
//!
//! - **Durable.** When [`Journal::commit`] returns, the change survives `kill -9` and a power cut,
//!   as far as the storage below it can guarantee that.
//! - **One writer.** Every commit names the revision on which its decision was based. If another
//!   server has committed since, the commit is refused and nothing is stored. So a server that was
//!   suspended cannot overwrite the decisions of another.
//! - **Idempotency tokens** are new when they are committed. A second commit of a token is refused.
//! - **No room** is a separate error. A commit that leads to free space (a volume is detached or
//!   deleted) is stored as long as any commit can be.

use std::collections::BTreeMap;
use std::fmt;

use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::qos::pacing::Balances;

use crate::credits::Stop;
use crate::model::{Event, Model, User};
use crate::time::Moment;

#[cfg(test)]
mod conformance;
pub mod format;
pub mod memory;
pub mod sqlite;
mod subject;
pub mod watch;

pub use subject::Subject;
pub use watch::{Committed, QUEUE_MAX, Watch};

/// The number of commits that led to a state. It never decreases.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Revision(pub u64);

impl fmt::Display for Revision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// Why a journal operation failed. Nothing is stored then, unless it says otherwise.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JournalError {
    /// There is no space for the change; the text names the place.
    NoRoom(String),
    /// Another server has committed.
    Conflict {
        /// The revision on which the commit was based.
        expected: Revision,
        /// The journal's revision.
        found: Revision,
    },
    /// The idempotency token exists already.
    TokenTaken(String),
    /// The changes between these revisions are no longer kept: load again, and watch from there.
    Compacted {
        /// The watcher's revision.
        after: Revision,
        /// The earliest revision from which a watch can begin.
        oldest: Revision,
    },
    /// The watcher did not keep up, or the journal is closed: load again, and watch from there.
    Behind,
    /// Written in another form than this program reads; the text names both forms. Nothing was
    /// changed.
    OtherForm(String),
    /// This server does not lead, or no longer leads; the text names the leader.
    Deposed(String),
    /// It is unknown whether the change is stored; the text has the reason. A later commit on the
    /// same revision shows it: it is refused if the change is stored.
    Unknown(String),
    /// Another program has written a key of the journal.
    Touched {
        /// The key.
        key: String,
        /// The revision at which it was written.
        revision: u64,
    },
    /// The storage failed; the text has the reason.
    Failed(String),
}

impl JournalError {
    /// Returns whether the cause is a lack of space.
    #[must_use]
    pub const fn is_no_room(&self) -> bool {
        matches!(self, Self::NoRoom(_))
    }
}

impl fmt::Display for JournalError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoRoom(text)
            | Self::OtherForm(text)
            | Self::Deposed(text)
            | Self::Unknown(text)
            | Self::Failed(text) => f.write_str(text),
            Self::Conflict { expected, found } => write!(
                f,
                "another server has committed: revision {found} is there, {expected} was \
                 expected; a server that serves alone must be restarted, a cluster reads the \
                 journal again"
            ),
            Self::Touched { key, revision } => write!(
                f,
                "etcd's key '{key}' was written by another program, at revision {revision}; this \
                 server reads the journal again, so try again"
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
    /// Balances of volumes.
    pub volumes: BTreeMap<VolumeId, Balances>,
    /// Balances of hosts whose type bursts.
    pub hosts: BTreeMap<InstanceId, Balances>,
}

impl Credits {
    /// Returns whether there are no balances.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.volumes.is_empty() && self.hosts.is_empty()
    }

    /// Returns the balances of a volume; empty if there are none.
    #[must_use]
    pub fn volume(&self, id: VolumeId) -> Balances {
        self.volumes.get(&id).copied().unwrap_or_default()
    }

    /// Returns the balances of a host; empty if there are none.
    #[must_use]
    pub fn host(&self, id: InstanceId) -> Balances {
        self.hosts.get(&id).copied().unwrap_or_default()
    }

    /// Adds the balances of `others`, replacing existing ones.
    pub fn extend(&mut self, others: &Self) {
        self.volumes.extend(&others.volumes);
        self.hosts.extend(&others.hosts);
    }

    /// Applies an event: removes the balances of deleted volumes and hosts.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::VolumeGone(id) => _ = self.volumes.remove(id),
            Event::HostGone(id) => _ = self.hosts.remove(id),
            _ => {}
        }
    }
}

/// The unit that is stored atomically.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Change {
    /// The decided events, in order.
    pub events: Vec<Event>,
    /// The part of these balances that is not leased from now on; after a clean stop, the whole
    /// balances. Other rows stay as they are. Stored after the events.
    pub unleased: Credits,
    /// When the server stopped cleanly, if this is its last change. Any other change removes the
    /// mark of a clean stop.
    pub stopped: Option<Moment>,
    /// The server's time at this change, by which durations are counted; `None` keeps the stored
    /// time.
    pub clock: Option<Moment>,
}

impl From<Vec<Event>> for Change {
    fn from(events: Vec<Event>) -> Self {
        Self { events, ..Self::default() }
    }
}

/// Adds a stored object to the model. The caller computes the model's index once, at the end.
pub fn fill(model: &mut Model, event: Event) {
    match event {
        Event::Volume(volume) => _ = model.volumes.insert(volume.id, volume),
        Event::Host(host) => _ = model.hosts.insert(host.id, host),
        Event::Snapshot(snapshot) => _ = model.snapshots.insert(snapshot.id, snapshot),
        Event::Token(name, token) => _ = model.tokens.insert(name, token),
        Event::Account(account) => model.account = account,
        Event::User(user) => _ = model.users.insert(User::key_of(&user.name), user),
        // Not stored under a key: these events remove the key of their object.
        Event::VolumeGone(_)
        | Event::HostGone(_)
        | Event::SnapshotGone(_)
        | Event::TokenGone(_)
        | Event::UserGone(_) => {}
    }
}

/// The state after all changes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Loaded {
    /// All volumes, hosts and tokens.
    pub model: Model,
    /// The unleased part of the balances.
    pub credits: Credits,
    /// The last server's stop.
    pub stop: Stop,
    /// The last stored time of the server; `None` if there is none.
    pub clock: Option<Moment>,
    /// The revision on which the next commit must be based.
    pub revision: Revision,
}

/// A durable log of decisions. The module documentation has the rules for all implementations.
pub trait Journal: Send {
    /// Reads the whole state.
    ///
    /// # Errors
    /// [`JournalError::OtherForm`], [`JournalError::Failed`].
    fn load(&mut self) -> Result<Loaded, JournalError>;

    /// Stores a change that was decided at revision `expected` and returns the new revision. May
    /// block for as long as the disk or the network takes.
    ///
    /// # Errors
    /// [`JournalError::Conflict`], [`JournalError::TokenTaken`], [`JournalError::NoRoom`],
    /// [`JournalError::Deposed`], [`JournalError::Touched`], [`JournalError::Failed`]: nothing was
    /// stored then.
    /// [`JournalError::Unknown`]: it may be stored.
    fn commit(&mut self, change: &Change, expected: Revision) -> Result<Revision, JournalError>;

    /// Returns a watch of all changes after a revision, in order, by any writer that this journal
    /// can observe.
    ///
    /// # Errors
    /// [`JournalError::Compacted`] if some of them are no longer kept, [`JournalError::Failed`].
    fn watch(&mut self, after: Revision) -> Result<Watch, JournalError>;
}
