//! Ceph, as far as fencing needs it: a monitor with maps, OSDs that know some of them, wires, and
//! each process's connection.

use super::Broken;
use evenkeel_core::fencing::{Instance, Ticket};
use std::collections::VecDeque;

/// OSDs of the cluster: no two objects of a volume are on the same.
pub const OSDS: usize = 4;
/// Objects with data of a volume. The next one is its header, which has the lock.
pub const OBJECTS: usize = 3;
/// Instances that a history may have: bits of a map.
pub const INSTANCES_MAX: usize = 120;
/// After so much silence a client's watch has ended, and librbd takes its lock away by itself.
const WATCH_MS: u64 = 30_000;

/// What an operation does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Read,
    Write(u64),
    LockOwner,
    /// Whether the lock is the asker's own.
    LockCheck,
    LockBreak(Instance),
    LockAcquire,
    LockRelease,
}

/// Whose answer an operation is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asker {
    /// A client's request, and the connection that it came over.
    Client { request: u64, connection: u64 },
    /// An order of the node's rules.
    Order(Ticket),
    /// A node that was asked to let a connection in.
    Door { connection: u64 },
}

/// An operation on an object.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    pub instance: Instance,
    pub volume: usize,
    /// [`OBJECTS`] for the header.
    pub object: usize,
    pub kind: Kind,
    /// The submitter's generation. No OSD looks at it.
    pub generation: u64,
    /// The map that the submitter knew when it was sent.
    pub epoch: usize,
    pub asker: Asker,
}

/// What an OSD has answered.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Value(u64),
    Owner(Option<Instance>),
    Done,
    /// -30.
    NotOwner,
    /// -108.
    Refused,
}

/// An answer on its way back.
#[derive(Clone, Copy, Debug)]
pub struct Reply {
    pub operation: Operation,
    pub outcome: Outcome,
    /// The OSD's map.
    pub epoch: usize,
}

/// One process's connection.
#[derive(Default)]
pub struct Rados {
    pub epoch: usize,
    /// Submitted, not sent.
    pub queue: VecDeque<Operation>,
    /// Sent, by OSD.
    pub wires: [VecDeque<Operation>; OSDS],
    pub replies: VecDeque<Reply>,
    /// Wires on which nothing moves for a while.
    pub is_stalled: [bool; OSDS],
    /// Operations without an answer, by volume.
    pub owed: [u32; 2],
    /// The process is dead or has dropped the connection: nothing more is sent or received.
    pub is_over: bool,
    /// Since when nothing was heard of it.
    pub silent_since_ms: Option<u64>,
}

#[derive(Clone, Copy, Default)]
struct Object {
    value: u64,
    /// The highest generation that has executed an operation on it.
    touched: u64,
}

#[derive(Default)]
struct Stored {
    objects: [Object; OBJECTS],
    lock: Option<Instance>,
}

/// A change of the blocklist that the monitor has not committed.
#[derive(Clone, Copy)]
pub struct Pending {
    pub instance: Instance,
    /// When the entry ends; `None` to remove it.
    pub expires_ms: Option<u64>,
    /// Who waits for it: a node, its order.
    pub waiter: Option<(usize, usize, Ticket)>,
}

/// The cluster.
pub struct Ceph {
    /// By epoch, the instances on the blocklist as bits.
    maps: Vec<u128>,
    /// The entries of the last map, and when they end.
    entries: Vec<(Instance, u64)>,
    pub pending: Vec<Pending>,
    osds: [usize; OSDS],
    /// By incarnation.
    pub instances: Vec<Rados>,
    volumes: [Stored; 2],
}

/// Which bit of a map, and which of the instances.
pub fn index(instance: Instance) -> usize {
    usize::try_from(instance.incarnation).unwrap_or(usize::MAX)
}

impl Ceph {
    pub fn new() -> Self {
        Self {
            maps: vec![0],
            entries: Vec::new(),
            pending: Vec::new(),
            osds: [0; OSDS],
            instances: Vec::new(),
            volumes: Default::default(),
        }
    }

    pub fn latest(&self) -> usize {
        self.maps.len() - 1
    }

    fn names(&self, epoch: usize, instance: Instance) -> bool {
        self.maps[epoch] >> index(instance) & 1 == 1
    }

    /// Whether the monitors have committed an entry that is in force.
    pub fn is_fenced(&self, instance: Instance) -> bool {
        self.names(self.latest(), instance)
    }

    /// Whether the instance itself knows that it is fenced.
    pub fn knows_itself_fenced(&self, instance: Instance) -> bool {
        self.names(self.instances[index(instance)].epoch, instance)
    }

    /// The monitor proposes what has gathered, and what has expired. Returns who waited for it.
    pub fn commit(&mut self, now_ms: u64) -> Vec<(usize, usize, Ticket)> {
        let changes = std::mem::take(&mut self.pending);
        let before = self.entries.len();
        self.entries.retain(|(_, expires_ms)| *expires_ms > now_ms);
        if changes.is_empty() && self.entries.len() == before {
            return Vec::new();
        }
        for change in &changes {
            self.entries.retain(|(instance, _)| *instance != change.instance);
            if let Some(expires_ms) = change.expires_ms {
                self.entries.push((change.instance, expires_ms));
            }
        }
        let map = self.entries.iter().fold(0, |map, (it, _)| map | 1 << index(*it));
        self.maps.push(map);
        changes.iter().filter_map(|change| change.waiter).collect()
    }

    /// An OSD learns of a map that the monitors have.
    pub fn teach_osd(&mut self, osd: usize, epoch: usize) {
        self.osds[osd] = self.osds[osd].max(epoch);
    }

    pub fn teach(&mut self, instance: Instance, epoch: usize) {
        let it = &mut self.instances[index(instance)];
        it.epoch = it.epoch.max(epoch);
    }

    pub fn submit(&mut self, operation: Operation) {
        let it = &mut self.instances[index(operation.instance)];
        it.owed[operation.volume] += 1;
        it.queue.push_back(operation);
    }

    /// The process puts its next operation on the wire.
    pub fn send(&mut self, instance: Instance) -> bool {
        let it = &mut self.instances[index(instance)];
        let Some(mut operation) = it.queue.pop_front() else { return false };
        operation.epoch = it.epoch;
        it.wires[osd_of(&operation)].push_back(operation);
        true
    }

    /// The OSD executes, or refuses, what comes next over a wire.
    pub fn deliver(
        &mut self,
        index: usize,
        osd: usize,
        now_ms: u64,
    ) -> Option<(Reply, Option<Broken>)> {
        let operation = self.instances[index].wires[osd].pop_front()?;
        self.osds[osd] = self.osds[osd].max(operation.epoch);
        let epoch = self.osds[osd];
        let (outcome, broken) = match self.names(epoch, operation.instance) {
            true => (Outcome::Refused, None),
            false => self.execute(&operation, now_ms),
        };
        let reply = Reply { operation, outcome, epoch };
        let it = &mut self.instances[index];
        if !it.is_over {
            it.replies.push_back(reply);
        }
        Some((reply, broken))
    }

    fn execute(&mut self, operation: &Operation, now_ms: u64) -> (Outcome, Option<Broken>) {
        if operation.object == OBJECTS {
            return (self.execute_on_lock(operation, now_ms), None);
        }
        let object = &mut self.volumes[operation.volume].objects[operation.object];
        let mut broken = (operation.generation < object.touched).then_some(Broken::LateOperation);
        object.touched = object.touched.max(operation.generation);
        let Kind::Write(value) = operation.kind else {
            return (Outcome::Value(object.value), broken);
        };
        if value < object.value {
            broken = broken.or(Some(Broken::Overwritten));
        }
        object.value = value;
        (Outcome::Done, broken)
    }

    fn execute_on_lock(&mut self, operation: &Operation, now_ms: u64) -> Outcome {
        let watch_ended = |owner: Instance| {
            let since = self.instances[index(owner)].silent_since_ms;
            since.is_some_and(|since| now_ms.saturating_sub(since) > WATCH_MS)
        };
        let lock = &mut self.volumes[operation.volume].lock;
        match (operation.kind, *lock) {
            (Kind::LockOwner | Kind::LockCheck, owner) => return Outcome::Owner(owner),
            (Kind::LockBreak(whose), Some(owner)) if whose == owner => *lock = None,
            (Kind::LockBreak(_), _) => return Outcome::NotOwner,
            (Kind::LockAcquire, Some(owner))
                if owner != operation.instance && !watch_ended(owner) =>
            {
                return Outcome::NotOwner;
            }
            (Kind::LockAcquire, _) => *lock = Some(operation.instance),
            (Kind::LockRelease, Some(owner)) if owner == operation.instance => *lock = None,
            _ => {}
        }
        Outcome::Done
    }

    /// The connection is over. What was sent is on its way yet.
    pub fn end(&mut self, instance: Instance, now_ms: u64) {
        let it = &mut self.instances[index(instance)];
        it.is_over = true;
        it.silent_since_ms.get_or_insert(now_ms);
        it.queue.clear();
        it.replies.clear();
    }
}

fn osd_of(operation: &Operation) -> usize {
    (operation.volume * (OBJECTS + 1) + operation.object) % OSDS
}
