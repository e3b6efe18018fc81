//! What the rules ask for, and what they are answered.

use super::{Generation, Instance, Ownership, Record, Revision};
use crate::ids::VolumeId;
use crate::time::Duration;

/// Identifies an order in its answer. Answers to orders that nobody waits for any more are ignored.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Ticket(pub u64);

/// A step to execute. Orders of one volume, and those without a volume, are begun in the order in
/// which they are given.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Order {
    /// What its answer names.
    pub ticket: Ticket,
    /// Whose step it is; `None` for the node's own.
    pub volume: Option<VolumeId>,
    /// How long to wait before it is begun: zero, but for steps that failed before.
    pub delay: Duration,
    /// What to do.
    pub step: Step,
}

/// One step. Where no answer is named, the step is done when it is begun and has none.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Connect a new RADOS instance and read its addresses (`rados_getaddrs`). [`Answer::Done`].
    Connect,
    /// Write the instance's addresses and the boot id to etcd, without a lease, under an
    /// incarnation that the node has not had yet. [`Answer::Registered`].
    Register,
    /// Close the connections of all clients of all volumes, with what was read of them and not
    /// submitted.
    CloseAllClients,
    /// Close all images and shut the instance down; late answers of it are thrown away.
    /// [`Answer::Done`].
    Disconnect,
    /// Close the connections of clients that are relayed to other nodes, with what was read of them
    /// and not passed on: while the node slept they may have sent it elsewhere again, and newer
    /// requests after it.
    CloseRelays,
    /// Write the record if its revision is still `expected` (`None`: if there is no record), in one
    /// transaction. [`Answer::Cas`].
    Claim {
        /// The revision that was read.
        expected: Option<Revision>,
        /// What to write.
        next: Ownership,
    },
    /// Read the record, linearizably. [`Answer::Record`].
    ReadRecord,
    /// Write `f/<address>` for each address of the instance: who fenced it. [`Answer::Done`].
    NoteFence {
        /// Whom.
        instance: Instance,
    },
    /// `osd blocklist add` for each address of the instance with its nonce, never a range, with
    /// `expire` [`BLOCKLIST_EXPIRE_S`](super::BLOCKLIST_EXPIRE_S). [`Answer::Done`] once the
    /// monitors have committed it. An entry that exists is renewed.
    Blocklist {
        /// Whom.
        instance: Instance,
        /// For how long, in seconds.
        expire_s: u32,
    },
    /// `rados_wait_for_latest_osdmap` on the instance that will do the I/O, also when somebody else
    /// made the entry. [`Answer::Done`].
    WaitForLatestOsdMap,
    /// Open the image, unless it is open, without taking its lock. [`Answer::Done`].
    Open,
    /// The same ahead of time, because the volume is about to be moved here. Failures are of no
    /// consequence; an image that nobody hands over is closed again after some time.
    Warm,
    /// `rbd_lock_get_owners`. [`Answer::Owner`].
    GetLockOwners,
    /// `rbd_lock_break` of this owner's lock, with `rbd_blocklist_on_break_lock` off.
    /// [`Answer::Done`].
    BreakLock {
        /// Whose.
        owner: Instance,
    },
    /// `rbd_lock_acquire`, exclusive. [`Answer::Done`].
    AcquireLock,
    /// Let clients in, those that wait and new ones, and submit what they send. If the door was
    /// open, it stays open.
    ///
    /// Each new connection is let in once `rbd_is_exclusive_lock_owner`, asked after it came, has
    /// said yes (it asks the header's OSD, which knows of the next owner before that one lets
    /// anybody in). A client may come back from a younger generation, where what it sent waits yet:
    /// an owner that does not know that it is fenced would acknowledge it, and writes after it, on
    /// OSDs that do not know either. One that is continued by [`Step::Relay`] is no new connection.
    Serve {
        /// What the agent's statements and the credits must carry.
        generation: Generation,
    },
    /// Submit nothing, and ask `rbd_is_exclusive_lock_owner`. [`Answer::IsOwner`].
    HoldAndCheckLock,
    /// Submit again.
    Resume,
    /// Submit nothing new, and wait for all that was submitted. [`Answer::Done`].
    Drain,
    /// Send the final balances of credits to the leader. [`Answer::Done`].
    SendBalances,
    /// `rbd_lock_release`. [`Answer::Done`].
    ReleaseLock,
    /// Pass on what clients send to the volume's home, beginning with what was read and not
    /// submitted. The home takes it in this generation only ([`Node::holds`](super::Node::holds));
    /// if it is another's by now, the clients' connections are closed. What waits at a node that
    /// does not hold the volume would be written when it gets it, long after the client has sent it
    /// elsewhere.
    Relay {
        /// The home.
        to: Instance,
        /// Its generation.
        generation: Generation,
    },
    /// Close the connections of the volume's clients, with what was read and not submitted, and let
    /// in no new ones until [`Step::Serve`].
    CloseClients,
    /// Wait for all that was submitted, and close the image; its lock goes with it.
    /// [`Answer::Done`].
    CloseImage,
    /// Tell a human.
    Alarm(Alarm),
}

/// Why a human is told.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Alarm {
    /// The lock is held by somebody who is not to be fenced for this volume. It is not broken; the
    /// takeover stops until the volume is given to the node again.
    LockHeld {
        /// By whom.
        by: LockOwner,
    },
    /// A step has failed so many times; it is tried on.
    Slow {
        /// How often.
        attempts: u32,
    },
    /// [`PREDECESSORS_MAX`](super::PREDECESSORS_MAX) takers in a row died; nothing is done.
    TooManyTakers,
    /// The node has [`NODE_VOLUMES_MAX`](super::NODE_VOLUMES_MAX) volumes; nothing is done.
    TooManyVolumes,
}

/// Who holds the lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LockOwner {
    /// Nobody.
    Nobody,
    /// An instance that is registered.
    Known(Instance),
    /// An address that no node has registered.
    Stranger,
}

/// Why a step or an I/O failed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// -108, ESHUTDOWN: the instance is on the blocklist, and dead for good.
    ShutDown,
    /// -30, EROFS: somebody else has the lock.
    NotOwner,
    /// Anything else, by its number, or 0 for none (a time that ran out).
    Other(i32),
}

/// The outcome of [`Step::Claim`].
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Cas {
    /// Written, at this revision.
    Won(Revision),
    /// Not written; the record as it is.
    Lost(Option<Record>),
    /// No answer came: written now, later, or never.
    Unknown,
}

/// The answer to an order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// It is done.
    Done,
    /// To [`Step::Register`]: under which name.
    Registered(Instance),
    /// To [`Step::Claim`].
    Cas(Cas),
    /// To [`Step::ReadRecord`].
    Record(Option<Record>),
    /// To [`Step::GetLockOwners`].
    Owner(LockOwner),
    /// To [`Step::HoldAndCheckLock`].
    IsOwner(bool),
    /// It failed, or its time ran out. Steps may be executed again at any time.
    Failed(Fault),
}
