//! The record of a volume's ownership, `o/V` in etcd.

use alloc::vec::Vec;
use core::fmt;

/// A node: a number given when it joins the cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

/// One connection of one process to Ceph: what a blocklist entry names, by its addresses with their
/// nonces. They are registered before the first lock, in a key that does not go with a lease:
/// whoever fences a dead node reads them after its lease has ended.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Instance {
    /// The node whose process it is.
    pub node: NodeId,
    /// Counts the node's instances over all its processes; each registration is a higher one.
    pub incarnation: u64,
}

impl fmt::Display for Instance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "node {}, incarnation {}", self.node.0, self.incarnation)
    }
}

/// Counts the owners of a volume. A statement about a volume with a lower one than is known is
/// void.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Generation(pub u64);

impl Generation {
    /// The generation of a volume's first owner.
    pub const FIRST: Self = Self(1);

    const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

/// etcd's revision of the last change of a key.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Revision(pub u64);

/// How far an owner has come.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum State {
    /// It fences whoever was there before, and takes the lock.
    Taking,
    /// It serves clients.
    Serving,
    /// It serves until it has handed the volume over.
    Moving {
        /// Who gets it.
        to: Instance,
    },
    /// It has given up because it does not reach Ceph. The next owner fences it, and waits for no
    /// suspicion.
    Abandoned,
}

/// Instances that a record may list as not surely fenced. So many takers in a row, each dead before
/// it served, is a matter for a human.
pub const PREDECESSORS_MAX: usize = 64;

/// A takeover would make [`Ownership::before`] longer than [`PREDECESSORS_MAX`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct TooManyTakers;

/// What the record says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Ownership {
    /// Whose the volume is.
    pub owner: Instance,
    /// The owner's number in the row of owners.
    pub generation: Generation,
    /// How far it is.
    pub state: State,
    /// Former owners that may still have operations on their way. The owner fences all of them
    /// before it serves; the list is empty from then on.
    pub before: Vec<Instance>,
}

impl Ownership {
    /// A volume's first owner.
    #[must_use]
    pub const fn first(owner: Instance) -> Self {
        Self { owner, generation: Generation::FIRST, state: State::Taking, before: Vec::new() }
    }

    /// What `taker` writes to take the volume over: the present owner joins those who must be
    /// fenced. The taker itself does not: its own operations are sent in order.
    ///
    /// # Errors
    /// If there were too many takers in a row.
    pub fn taken_by(&self, taker: Instance) -> Result<Self, TooManyTakers> {
        let mut before = self.before.clone();
        before.push(self.owner);
        before.sort_unstable();
        before.dedup();
        before.retain(|instance| *instance != taker);
        if before.len() > PREDECESSORS_MAX {
            return Err(TooManyTakers);
        }
        let generation = self.generation.next();
        Ok(Self { owner: taker, generation, state: State::Taking, before })
    }

    /// What the owner writes to hand the volume over, after it has drained it and released the
    /// lock: nothing of it is on its way, so nobody is to be fenced.
    #[must_use]
    pub const fn handed_to(&self, owner: Instance) -> Self {
        let generation = self.generation.next();
        Self { owner, generation, state: State::Taking, before: Vec::new() }
    }

    /// What the leader writes to begin a move; nothing unless the volume is served.
    #[must_use]
    pub fn moving_to(&self, to: Instance) -> Option<Self> {
        let is_served = self.state == State::Serving;
        is_served.then(|| Self { state: State::Moving { to }, ..self.clone() })
    }

    /// What the leader writes to call a move off that has not been handed over.
    #[must_use]
    pub fn staying(&self) -> Option<Self> {
        let moves = matches!(self.state, State::Moving { .. });
        moves.then(|| Self { state: State::Serving, ..self.clone() })
    }

    pub(super) fn serving(&self) -> Self {
        Self { state: State::Serving, before: Vec::new(), ..self.clone() }
    }

    pub(super) fn abandoned(&self) -> Self {
        Self { state: State::Abandoned, ..self.clone() }
    }

    /// Whether it is the same owner in the same generation, in whatever state.
    pub(super) fn is_tenure_of(&self, other: &Self) -> bool {
        self.owner == other.owner && self.generation == other.generation
    }
}

/// The record as it was read.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// What it says.
    pub ownership: Ownership,
    /// When it was last changed: what a [`Step::Claim`](super::Step::Claim) compares.
    pub revision: Revision,
}
