//! The parts of Ceph that fencing uses: a monitor with maps, OSDs that know some of the maps,
//! wires, connections of processes, and the object `evenkeel.books` of the pool.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::Broken;

/// Number of OSDs. Each object with data of a volume is on another OSD.
pub const OSDS: usize = 4;
/// Number of objects with data of a volume.
pub const OBJECTS: usize = 3;
/// Maximum number of volumes of a history.
pub const VOLUMES: usize = 2;
/// Maximum number of connections of a history, each of which is a bit of a map.
pub const INSTANCES_MAX: usize = 120;
/// Time after which the watch of a silent client ends, and librbd breaks its lock.
const WATCH_MS: u64 = 30_000;

/// The index of a connection to Ceph, in order of creation. It also represents its address.
pub type Instance = usize;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Object {
    Data(usize, usize),
    /// The header of a volume's image, which has the lock.
    Header(usize),
    /// The object `evenkeel.books` of the pool.
    Books,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    Read,
    Write(u64),
    FindOwner,
    BreakLock(Instance),
    Lock,
    Unlock,
    /// Reads the registration of the process that asks.
    OwnEntry,
    /// Lists the registrations of a node.
    Registered(usize),
    IsFenced(Instance),
    /// Records that an instance is fenced, and drops its registration.
    Note(Instance),
    /// Registers the process that asks as one of a node.
    Register(usize),
    /// Drops the registration of the process that asks.
    Leave,
}

/// The purpose of an operation.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asker {
    Client {
        request: u64,
        connection: u64,
    },
    /// The opening or closing of the volume.
    Volume(usize),
    /// A new connection waits, or a second has passed.
    Door,
    /// The control plane, a start or a close; with the number of the question.
    Question(u64),
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Operation {
    pub instance: Instance,
    pub object: Object,
    pub kind: Kind,
    /// Number of the lock of the volume. OSDs do not use it.
    pub generation: u64,
    /// The map that the process knew when it sent the operation.
    pub epoch: usize,
    pub asker: Asker,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Outcome {
    Value(u64),
    Owner(Option<Instance>),
    Is(bool),
    /// Instances as bits.
    Instances(u128),
    /// The lock's number.
    Locked(u64),
    Done,
    /// EROFS.
    NotOwner,
    /// ESHUTDOWN.
    Refused,
}

#[derive(Clone, Copy, Debug)]
pub struct Reply {
    pub operation: Operation,
    pub outcome: Outcome,
    /// The OSD's map.
    pub epoch: usize,
}

/// The connection of one process.
#[derive(Default)]
pub struct Rados {
    pub epoch: usize,
    /// Operations that are submitted and not sent.
    pub queue: VecDeque<Operation>,
    /// Operations that are sent, by OSD.
    pub wires: [VecDeque<Operation>; OSDS],
    pub replies: VecDeque<Reply>,
    /// Whether the wire to each OSD delivers nothing now.
    pub is_stalled: [bool; OSDS],
    /// The process is dead or has dropped the connection: nothing more is sent or received.
    pub is_over: bool,
    /// Time since which the process is silent.
    pub silent_since_ms: Option<u64>,
}

#[derive(Clone, Copy, Default)]
struct Stored {
    value: u64,
    /// The highest generation that has executed an operation on it.
    touched: u64,
}

#[derive(Default)]
struct Header {
    lock: Option<Instance>,
    locks: u64,
}

/// An entry of the blocklist that the monitor has not committed.
#[derive(Clone, Copy)]
pub struct Pending {
    pub instance: Instance,
    pub expires_ms: u64,
    /// The node and number of the question that waits for it.
    pub waiter: Option<(usize, u64)>,
}

pub struct Ceph {
    /// By epoch, the instances on the blocklist as bits.
    maps: Vec<u128>,
    /// The entries of the last map, with their expiry times.
    entries: Vec<(Instance, u64)>,
    pub pending: Vec<Pending>,
    osds: [usize; OSDS],
    pub instances: Vec<Rados>,
    objects: [[Stored; OBJECTS]; VOLUMES],
    headers: [Header; VOLUMES],
    /// The node of each registered instance.
    registered: BTreeMap<Instance, usize>,
    fenced: BTreeSet<Instance>,
}

impl Ceph {
    pub fn new() -> Self {
        Self {
            maps: vec![0],
            entries: Vec::new(),
            pending: Vec::new(),
            osds: [0; OSDS],
            instances: Vec::new(),
            objects: Default::default(),
            headers: Default::default(),
            registered: BTreeMap::new(),
            fenced: BTreeSet::new(),
        }
    }

    pub fn latest(&self) -> usize {
        self.maps.len() - 1
    }

    fn names(&self, epoch: usize, instance: Instance) -> bool {
        self.maps[epoch] >> instance & 1 == 1
    }

    /// Returns whether the monitors have committed an entry that has not expired.
    pub fn is_fenced(&self, instance: Instance) -> bool {
        self.names(self.latest(), instance)
    }

    /// Returns whether the instance itself knows that it is fenced.
    pub fn knows_itself_fenced(&self, instance: Instance) -> bool {
        self.names(self.instances[instance].epoch, instance)
    }

    /// Creates an instance. Its map is `behind` maps older than the latest.
    pub fn connect(&mut self, behind: usize) -> Option<Instance> {
        let instance = self.instances.len();
        let epoch = self.latest().saturating_sub(behind);
        let is_free = instance < INSTANCES_MAX;
        is_free.then(|| {
            self.instances.push(Rados { epoch, ..Rados::default() });
            instance
        })
    }

    /// Commits the pending changes and expiries in the monitor. Returns the waiting questions.
    pub fn commit(&mut self, now_ms: u64) -> Vec<(usize, u64)> {
        let changes = std::mem::take(&mut self.pending);
        let before = self.entries.len();
        self.entries.retain(|(_, expires_ms)| *expires_ms > now_ms);
        if changes.is_empty() && self.entries.len() == before {
            return Vec::new();
        }
        for change in &changes {
            self.entries.retain(|(instance, _)| *instance != change.instance);
            self.entries.push((change.instance, change.expires_ms));
        }
        let map = self.entries.iter().fold(0, |map, (instance, _)| map | 1_u128 << instance);
        self.maps.push(map);
        changes.iter().filter_map(|change| change.waiter).collect()
    }

    /// Gives an OSD a map of the monitors.
    pub fn teach_osd(&mut self, osd: usize, epoch: usize) {
        self.osds[osd] = self.osds[osd].max(epoch);
    }

    /// Returns whether an OSD knows that an instance is fenced.
    pub fn refuses(&self, osd: usize, instance: Instance) -> bool {
        self.names(self.osds[osd], instance)
    }

    /// Returns the operations of an instance on data of a volume that no OSD has executed.
    pub fn waiting(&self, instance: Instance, volume: usize) -> impl Iterator<Item = &Operation> {
        let rados = &self.instances[instance];
        let all = rados.queue.iter().chain(rados.wires.iter().flatten());
        all.filter(
            move |operation| matches!(operation.object, Object::Data(found, _) if found == volume),
        )
    }

    /// Returns whether the holder of a later lock has changed the object of an operation.
    pub fn is_overtaken(&self, operation: &Operation) -> bool {
        match operation.object {
            Object::Data(volume, object) => {
                operation.generation < self.objects[volume][object].touched
            }
            Object::Header(_) | Object::Books => false,
        }
    }

    /// Returns the value of an object.
    pub fn value(&self, volume: usize, object: usize) -> u64 {
        self.objects[volume][object].value
    }

    /// Locks an unlocked image for a process outside of this cluster, or releases its lock.
    pub fn lock_by_hand(&mut self, volume: usize, instance: Instance) {
        let lock = &mut self.headers[volume].lock;
        *lock = match *lock {
            None => Some(instance),
            owner => owner.filter(|owner| *owner != instance),
        };
    }

    pub fn has_lock(&self, volume: usize, instance: Instance) -> bool {
        self.headers[volume].lock == Some(instance)
    }

    pub fn teach(&mut self, instance: Instance, epoch: usize) {
        let rados = &mut self.instances[instance];
        rados.epoch = rados.epoch.max(epoch);
    }

    pub fn submit(&mut self, operation: Operation) {
        let rados = &mut self.instances[operation.instance];
        if !rados.is_over {
            rados.queue.push_back(operation);
        }
    }

    /// Sends the next submitted operation of a process.
    pub fn send(&mut self, instance: Instance) -> bool {
        let rados = &mut self.instances[instance];
        let Some(mut operation) = rados.queue.pop_front() else { return false };
        operation.epoch = rados.epoch;
        rados.wires[osd_of(operation.object)].push_back(operation);
        true
    }

    /// Executes or refuses the next operation of a wire at its OSD.
    pub fn deliver(
        &mut self,
        instance: Instance,
        osd: usize,
        now_ms: u64,
    ) -> Option<(Reply, Option<Broken>)> {
        let operation = self.instances[instance].wires[osd].pop_front()?;
        self.osds[osd] = self.osds[osd].max(operation.epoch);
        let epoch = self.osds[osd];
        let (outcome, broken) = if self.names(epoch, operation.instance) {
            (Outcome::Refused, None)
        } else {
            self.execute(&operation, now_ms)
        };
        let reply = Reply { operation, outcome, epoch };
        let rados = &mut self.instances[instance];
        if !rados.is_over {
            rados.replies.push_back(reply);
        }
        Some((reply, broken))
    }

    fn execute(&mut self, operation: &Operation, now_ms: u64) -> (Outcome, Option<Broken>) {
        let (volume, object) = match operation.object {
            Object::Data(volume, object) => (volume, object),
            Object::Header(volume) => {
                let steals = matches!(operation.kind, Kind::BreakLock(owner)
                    if self.has_lock(volume, owner) && !self.is_fenced(owner));
                let outcome = self.execute_on_lock(volume, operation, now_ms);
                return (outcome, steals.then_some(Broken::StolenLock));
            }
            Object::Books => return (self.execute_on_books(operation), None),
        };
        let stored = &mut self.objects[volume][object];
        let is_late = operation.generation < stored.touched;
        stored.touched = stored.touched.max(operation.generation);
        let Kind::Write(value) = operation.kind else {
            return (Outcome::Value(stored.value), is_late.then_some(Broken::LateOperation));
        };
        let is_older = value < stored.value;
        stored.value = value;
        let late = is_late.then_some(Broken::LateOperation);
        (Outcome::Done, late.or(is_older.then_some(Broken::Overwritten)))
    }

    fn execute_on_lock(&mut self, volume: usize, operation: &Operation, now_ms: u64) -> Outcome {
        let watch_ended = |owner: Instance| {
            let since = self.instances[owner].silent_since_ms;
            since.is_some_and(|since| now_ms.saturating_sub(since) > WATCH_MS)
        };
        let Header { lock, locks } = &mut self.headers[volume];
        match (operation.kind, *lock) {
            (Kind::FindOwner, owner) => return Outcome::Owner(owner),
            (Kind::BreakLock(whose), Some(owner)) if whose == owner => *lock = None,
            (Kind::Lock, Some(owner)) if owner != operation.instance && !watch_ended(owner) => {
                return Outcome::NotOwner;
            }
            (Kind::Lock, _) => {
                *lock = Some(operation.instance);
                *locks += 1;
                return Outcome::Locked(*locks);
            }
            (Kind::Unlock, Some(owner)) if owner == operation.instance => *lock = None,
            _ => {}
        }
        Outcome::Done
    }

    fn execute_on_books(&mut self, operation: &Operation) -> Outcome {
        match operation.kind {
            Kind::OwnEntry => {
                return Outcome::Is(self.registered.contains_key(&operation.instance));
            }
            Kind::Registered(node) => {
                let of_node = self.registered.iter().filter(|(_, of)| **of == node);
                return Outcome::Instances(of_node.fold(0, |all, (it, _)| all | 1_u128 << it));
            }
            Kind::IsFenced(instance) => return Outcome::Is(self.fenced.contains(&instance)),
            Kind::Note(instance) => {
                self.fenced.insert(instance);
                self.registered.remove(&instance);
            }
            Kind::Register(node) => _ = self.registered.insert(operation.instance, node),
            Kind::Leave => _ = self.registered.remove(&operation.instance),
            _ => {}
        }
        Outcome::Done
    }

    /// Ends the connection. Sent operations still arrive.
    pub fn end(&mut self, instance: Instance, now_ms: u64) {
        let rados = &mut self.instances[instance];
        rados.is_over = true;
        rados.silent_since_ms.get_or_insert(now_ms);
        rados.queue.clear();
        rados.replies.clear();
    }
}

pub fn osd_of(object: Object) -> usize {
    match object {
        Object::Data(volume, object) => (volume * (OBJECTS + 1) + object) % OSDS,
        Object::Header(volume) => (volume * (OBJECTS + 1) + OBJECTS) % OSDS,
        Object::Books => 1,
    }
}

/// Returns the instances of a set of bits.
pub fn instances_of(bits: u128) -> Vec<Instance> {
    (0..INSTANCES_MAX).filter(|instance| bits >> instance & 1 == 1).collect()
}
