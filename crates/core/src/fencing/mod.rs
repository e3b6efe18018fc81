//! Who may write to a volume when several nodes could: takeover, fencing and moves.
//!
//! The server executes [`order`] and [`Door`]. The rest is a model of nodes that take volumes over
//! by themselves, which no server executes.
//!
//! The bytes lie on Ceph, the books in etcd. Each node has one connection to Ceph at a time, an
//! [`Instance`], and Ceph's blocklist refuses every operation of an instance that is on it. The
//! rules here turn what a node learns into the next steps to execute; who executes them (over
//! librados, librbd and etcd, or the model in the simulator) decides nothing.
//!
//! ```text
//!  Input ──▶ Node ──▶ Volume ──▶ Order: Step, ticket, delay ──▶ the shell executes it
//!    ▲                                                               │
//!    └───────────────────── Answer, with the ticket ◀────────────────┘
//! ```
//!
//! # Takeover of a volume
//!
//! 1. [`Step::Claim`]: the record `o/V` from (X, generation g) to (B, g + 1, taking), compared by
//!    its revision, so that one of several takers wins.
//! 2. [`Step::NoteFence`], [`Step::Blocklist`]: what X sends later is refused. The entry must
//!    outlive every pause of X, hence [`BLOCKLIST_EXPIRE_S`].
//! 3. [`Step::WaitForLatestOsdMap`] on the instance that will do the I/O: an OSD first catches up
//!    with the map that its caller has seen, so it refuses X before B's first operation.
//! 4. [`Step::Open`], [`Step::GetLockOwners`]. Nobody has the lock: go on. X has it:
//!    [`Step::BreakLock`]. Somebody else: stop, with an alarm.
//! 5. [`Step::AcquireLock`]. It keeps `rbd` by hand and other clusters out, and protects nothing
//!    without the entry.
//! 6. [`Step::Claim`] the state serving: a taker that was itself overtaken opens no door. Then
//!    [`Step::Serve`].
//!
//! Whom to fence stands in the record ([`Ownership::before`]) until the volume is served: a taker
//! that dies leaves the list to the next one.
//!
//! # A node's life
//!
//! Connect, register ([`Step::Register`]), and only then take volumes: whoever holds a lock can be
//! named. On -108 (ESHUTDOWN, [`Fault::ShutDown`]) the instance is dead for good: close every
//! client, drop it, connect anew, register, and wait to be given volumes. No step takes back an
//! entry; [`may_remove`] has the one exception, for processes that are certainly dead.
//!
//! Absent on purpose: clocks of other nodes, leases. A suspicion may be wrong at any time; it then
//! costs a pause. `docs/internals/fencing.md` has the argument, and the model that tests it.

mod door;
mod entries;
mod node;
pub mod order;
mod record;
mod step;
#[cfg(test)]
mod tests;
mod volume;

pub use door::{Door, OwnEntry};
pub use entries::{BootId, ENTRIES_KEPT_MAX, Entry, SETTLED_AFTER, may_remove};
pub use node::{Input, NODE_VOLUMES_MAX, Node};
pub use record::{
    Generation, Instance, NodeId, Ownership, PREDECESSORS_MAX, Record, Revision, State,
    TooManyTakers,
};
pub use step::{Alarm, Answer, Cas, Fault, LockOwner, Order, Step, Ticket};

use crate::time::Duration;

/// How long a blocklist entry lasts, in seconds: a year of 365 days. The one assumption about
/// clocks is that no process resumes after a longer pause.
pub const BLOCKLIST_EXPIRE_S: u32 = 31_536_000;

/// A node whose boot-time clock jumped by more than this between two turns may have been taken for
/// dead: it asks for its locks before it submits anything.
pub const GAP_MAX: Duration = Duration::from_secs(2);

/// Attempts at one step after which an alarm is raised. The step is tried on: without a quorum of
/// the monitors there is no entry, and without an entry no takeover.
pub const ATTEMPTS_QUIET_MAX: u32 = 8;

/// The wait before the second attempt at a step; it doubles with each.
pub const RETRY_FIRST: Duration = Duration::from_ms(100);

/// The longest wait between two attempts at a step.
pub const RETRY_LONGEST: Duration = Duration::from_secs(5);
