//! A model of nodes, a store that fences, and an oracle with the exact balance of every volume and
//! host. It panics as soon as an invariant is broken.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_control::nodes::State;
use evenkeel_core::fencing::NodeId;
use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::qos::admission::{Costs, DeviceFloor, DomainFloor, LinearCost};
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::qos::sharing::division::{NodePart, NodeUse};
use evenkeel_wire::agent::{
    Agent, Capacity, Command, CreditReport, Failed, FailedKind, HostReport, HostState, Measured,
    Reply, Report, StoredSnapshot, VolumeReport, VolumeState,
};

use super::super::{Cluster, Node, Standing};
use crate::etcd::upkeep::MemberSeen;
use crate::homes::Changes;
use crate::nodes::{Inst, Member};

/// The state and the balances of a volume or a host at a process.
pub struct Held<T> {
    pub state: T,
    pub balance: u64,
    pub unleased: u64,
}

impl<T> Held<T> {
    fn new(state: T, balances: Balances, unleased: Balances, full: u64) -> Self {
        let balance = balances.operations.unwrap_or(full);
        let unleased = unleased.operations.unwrap_or(0).min(balance);
        Self { state, balance, unleased }
    }

    fn lease(&mut self, amount: u64) -> Balances {
        self.unleased = amount.min(self.balance);
        credits(self.unleased)
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Life {
    Alive,
    Paused,
    Dead,
}

/// A process of a node.
pub struct Process {
    pub node: u32,
    pub incarnation: u128,
    port: u16,
    pub life: Life,
    pub is_fenced: bool,
    pub volumes: BTreeMap<VolumeId, Held<VolumeState>>,
    pub hosts: BTreeMap<InstanceId, Held<HostState>>,
    /// Its last part of the device.
    pub part: Option<NodePart>,
}

impl Process {
    /// Returns whether it may serve clients now or later.
    pub fn may_serve(&self) -> bool {
        self.life != Life::Dead && !self.is_fenced
    }
}

/// A function that returns whether a command is of a kind.
type Kind = fn(&Command) -> bool;

#[derive(Default)]
pub struct Truth {
    /// The exact balance of each volume and host.
    pub volumes: BTreeMap<VolumeId, u64>,
    pub hosts: BTreeMap<InstanceId, u64>,
    /// The balance of each released volume, if the fleet has received it and lost nothing since.
    exact: BTreeMap<VolumeId, u64>,
}

#[derive(Default)]
pub struct Things {
    pub processes: Vec<Process>,
    /// Nodes by number: their state, and whether their lease holds.
    pub nodes: BTreeMap<u32, (State, bool)>,
    pub stored_homes: BTreeMap<VolumeId, u32>,
    /// Volumes with stored bytes.
    pub stored: BTreeSet<VolumeId>,
    pub snapshots: BTreeMap<SnapshotId, VolumeId>,
    pub truth: Truth,
    /// The nodes that were fenced, in order.
    pub fences: Vec<u32>,
    /// One of this many answers is lost; 0 loses none.
    pub faults: u64,
    pub random: u64,
    /// The next command of this kind gets no answer; `true` if it is executed.
    pub lose_next: Option<(Kind, bool)>,
    /// Index of the node that cannot open volumes: it does not have their key.
    pub keyless: Option<usize>,
    /// The id of the key that each node publishes.
    pub keys: BTreeMap<u32, String>,
}

/// The cluster.
#[derive(Default)]
pub struct World(Mutex<Things>);

pub fn credits(amount: u64) -> Balances {
    Balances { operations: Some(amount), bytes: None }
}

pub fn name(number: u32) -> String {
    format!("node-{number}")
}

fn number(name: &str) -> u32 {
    name.rsplit_once('-').unwrap().1.parse().unwrap()
}

impl World {
    pub fn new(nodes: u32) -> Arc<Self> {
        let world = Arc::new(Self::default());
        for number in 1..=nodes {
            world.things().nodes.insert(number, (State::Up, true));
            world.things().restart(number, true);
        }
        world
    }

    pub fn things(&self) -> MutexGuard<'_, Things> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Things {
    /// Returns a random number below `end`, which must not be 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % end
    }

    fn fails(&mut self) -> bool {
        let faults = self.faults;
        faults > 0 && self.below(faults) == 0
    }

    /// Starts a process of a node. It opens the store, which fences the node's earlier processes.
    pub fn restart(&mut self, node: u32, is_elsewhere: bool) {
        let count = u16::try_from(self.processes.len()).unwrap();
        let before = self.processes.iter().rfind(|it| it.node == node).map(|it| it.port);
        let port = before.filter(|_| !is_elsewhere).unwrap_or(1_000 + count);
        self.processes.iter_mut().filter(|process| process.node == node).for_each(|process| {
            process.is_fenced = true;
            process.life = Life::Dead;
        });
        let (volumes, hosts) = Default::default();
        let (incarnation, life, is_fenced) = (u128::from(count) + 1, Life::Alive, false);
        let part = None;
        let process = Process { node, incarnation, port, life, is_fenced, volumes, hosts, part };
        self.processes.push(process);
        self.nodes.get_mut(&node).unwrap().1 = true;
        self.truth.exact.clear();
    }

    pub fn newest(&mut self, node: u32) -> &mut Process {
        self.processes.iter_mut().rfind(|it| it.node == node).unwrap()
    }

    /// Forgets the balances of released volumes, which the fleet has lost.
    pub fn lose_what_is_exact(&mut self) {
        self.truth.exact.clear();
    }

    pub fn kill(&mut self, node: u32) {
        self.newest(node).life = Life::Dead;
        self.truth.exact.clear();
    }

    /// Returns the nodes that may serve a volume.
    pub fn holders(&self, id: VolumeId) -> Vec<u32> {
        let holds = |it: &&Process| it.may_serve() && it.volumes.contains_key(&id);
        self.processes.iter().filter(holds).map(|process| process.node).collect()
    }

    /// Returns the nodes that may serve volumes of a host.
    pub fn nodes_of(&self, host: InstanceId) -> BTreeSet<u32> {
        let is_attached = |held: &Held<VolumeState>| is_attached(&held.state, host);
        let serves = |it: &&Process| it.may_serve() && it.volumes.values().any(is_attached);
        self.processes.iter().filter(serves).map(|process| process.node).collect()
    }

    /// Spends up to `wanted` credits of a volume, at most the leased ones of it and of its host.
    pub fn spend(&mut self, id: VolumeId, host: usize, wanted: u64) {
        let holds = |it: &&mut Process| it.may_serve() && it.volumes.contains_key(&id);
        let Some(process) = self.processes.iter_mut().find(holds) else { return };
        let volume = process.volumes.get_mut(&id).unwrap();
        let mut amount = wanted.min(volume.balance - volume.unleased);
        let Some(by) = volume.state.attachments.iter().cycle().nth(host) else { return };
        if let Some(host) = process.hosts.get_mut(&by.host) {
            amount = amount.min(host.balance - host.unleased);
            host.balance -= amount;
            let left = self.truth.hosts.get_mut(&by.host).unwrap();
            *left = left.checked_sub(amount).expect("a host spends more than it has");
        }
        volume.balance -= amount;
        let left = self.truth.volumes.get_mut(&id).unwrap();
        *left = left.checked_sub(amount).expect("a volume spends more than it has");
    }

    /// Begins to serve a volume at a process, after checking the oracle.
    fn begins(&mut self, at: usize, state: &VolumeState) {
        let id = state.id;
        let node = self.processes[at].node;
        let holders = self.holders(id);
        assert!(holders.is_empty(), "{id} is served at {holders:?} and at {node}");
        assert_eq!(
            self.stored_homes.get(&id),
            Some(&node),
            "{id} is applied before its home is stored"
        );
        let full = state.pacing.operations.unwrap().credit.unwrap().capacity;
        let held = Held::new(state.clone(), state.balances, state.unleased, full);
        if let Some(truth) = self.truth.volumes.get(&id) {
            assert!(held.balance <= *truth, "{id} has {truth} and is given {}", held.balance);
        }
        if let Some(exact) = self.truth.exact.remove(&id) {
            assert_eq!(held.balance, exact, "{id} was released with another balance");
        }
        self.truth.volumes.insert(id, held.balance);
        self.processes[at].volumes.insert(id, held);
    }

    fn apply(&mut self, at: usize, state: VolumeState) -> Reply {
        let id = state.id;
        if !self.stored.contains(&id) {
            return failed(FailedKind::Damaged, "the bytes of the volume are missing");
        }
        if self.keyless == Some(at) {
            return failed(FailedKind::Damaged, "the key of the volume cannot be had");
        }
        if !self.processes[at].volumes.contains_key(&id) {
            self.begins(at, &state);
        }
        for host in state.attachments.iter().map(|attachment| attachment.host) {
            let before = self.processes[at].volumes.values();
            let is_new = !before.map(|held| &held.state).any(|state| is_attached(state, host));
            // The host now spends the balance at this process.
            if let Some(held) = self.processes[at].hosts.get(&host).filter(|_| is_new) {
                let truth = self.truth.hosts.get_mut(&host).unwrap();
                assert!(held.balance <= *truth, "{host} has {truth}, not {}", held.balance);
                *truth = held.balance;
            }
        }
        self.processes[at].volumes.get_mut(&id).unwrap().state = state;
        Reply::Done
    }

    fn apply_host(&mut self, at: usize, state: HostState) -> Reply {
        let id = state.id;
        if let Some(held) = self.processes[at].hosts.get_mut(&id) {
            held.state = state;
            return Reply::Done;
        }
        let full = state.pacing.operations.unwrap().credit.unwrap().capacity;
        let held = Held::new(state.clone(), state.balances, state.unleased, full);
        let truth = self.truth.hosts.entry(id).or_insert(held.balance);
        assert!(held.balance <= *truth, "{id} has {truth} and is given {}", held.balance);
        self.processes[at].hosts.insert(id, held);
        Reply::Done
    }

    fn delete(&mut self, at: usize, id: VolumeId) -> Reply {
        self.processes[at].volumes.remove(&id);
        let holders = self.holders(id);
        assert!(holders.is_empty(), "{id} is deleted while it is served at {holders:?}");
        self.stored.remove(&id);
        Reply::Done
    }

    fn release(&mut self, at: usize, id: VolumeId) -> Reply {
        let held = self.processes[at].volumes.remove(&id);
        let volumes = held.map(|held| (id, credits(held.balance))).into_iter().collect();
        Reply::Balances(CreditReport { volumes, hosts: vec![] })
    }

    fn delete_host(&mut self, at: usize, id: InstanceId) -> Reply {
        let process = &mut self.processes[at];
        let is_attached = |held: &Held<VolumeState>| is_attached(&held.state, id);
        if process.hosts.contains_key(&id) && process.volumes.values().any(is_attached) {
            return failed(FailedKind::Refused, "volumes are attached to the host");
        }
        process.hosts.remove(&id);
        Reply::Done
    }

    fn lease(&mut self, at: usize, CreditReport { volumes, hosts }: CreditReport) -> Reply {
        let process = &mut self.processes[at];
        let volume = |(id, amounts): (VolumeId, Balances)| {
            Some((id, process.volumes.get_mut(&id)?.lease(amounts.operations?)))
        };
        let volumes = volumes.into_iter().filter_map(volume).collect();
        let host = |(id, amounts): (InstanceId, Balances)| {
            Some((id, process.hosts.get_mut(&id)?.lease(amounts.operations?)))
        };
        let hosts = hosts.into_iter().filter_map(host).collect();
        Reply::Balances(CreditReport { volumes, hosts })
    }

    fn snapshots(&mut self, at: usize, set: &[(VolumeId, SnapshotId)]) -> Reply {
        let holds = |(id, _): &(VolumeId, SnapshotId)| self.processes[at].volumes.contains_key(id);
        if !set.iter().all(holds) {
            return failed(FailedKind::NotFound, "a volume is not here");
        }
        for (volume, snapshot) in set {
            assert_eq!(self.snapshots.insert(*snapshot, *volume), None, "{snapshot} is made twice");
        }
        Reply::Done
    }

    fn execute(&mut self, at: usize, command: Command) -> Reply {
        match command {
            Command::Create(state) | Command::CreateFrom(state, _) => {
                self.stored.insert(state.id);
                // If the volume moves before this is answered, the fleet does not know its balance.
                self.truth.exact.remove(&state.id);
                self.apply(at, state)
            }
            Command::Apply(state) | Command::Grow(state, _) => self.apply(at, state),
            Command::Delete(id) => self.delete(at, id),
            Command::Release(id) => self.release(at, id),
            Command::ApplyHost(state) => self.apply_host(at, state),
            Command::DeleteHost(id) => self.delete_host(at, id),
            Command::Lease(amounts) => self.lease(at, amounts),
            Command::SetBalances(id, amounts) => {
                let Some(held) = self.processes[at].volumes.get_mut(&id) else {
                    return failed(FailedKind::NotFound, "the volume is not here");
                };
                held.balance = amounts.operations.unwrap_or(held.balance);
                held.unleased = held.unleased.min(held.balance);
                self.truth.volumes.insert(id, held.balance);
                Reply::Done
            }
            Command::Report => Reply::Report(self.processes[at].report()),
            Command::ReportOf(ids) => {
                let Report { mut volumes, .. } = self.processes[at].report();
                volumes.retain(|volume| ids.contains(&volume.id));
                Reply::Report(Report { volumes, hosts: vec![] })
            }
            Command::Balances => {
                let Report { volumes, hosts } = self.processes[at].report();
                let volumes = volumes.iter().map(|volume| (volume.id, volume.balances)).collect();
                let hosts = hosts.iter().map(|host| (host.id, host.balances)).collect();
                Reply::Balances(CreditReport { volumes, hosts })
            }
            Command::Snapshot(of, id) => self.snapshots(at, &[(of, id)]),
            Command::SnapshotSet(set) => self.snapshots(at, &set),
            Command::SnapshotsOf(ids) => {
                let found = ids.iter().filter_map(|id| Some(stored(*id, *self.snapshots.get(id)?)));
                Reply::Snapshots(found.collect())
            }
            Command::DeleteSnapshot(id) => {
                if let Some(of) = self.snapshots.remove(&id) {
                    let at = self.processes[at].node;
                    let holders = self.holders(of);
                    assert!(
                        holders.is_empty() || holders == [at],
                        "{id} is a snapshot of an open volume"
                    );
                }
                Reply::Done
            }
            Command::Capacity => {
                Reply::Capacity(Capacity::Measured(Box::new(measured(at, self.processes[at].node))))
            }
            Command::Divide(part) => Reply::Use(self.processes[at].divide(part)),
            other => failed(FailedKind::Unsupported, &format!("{other:?}")),
        }
    }
}

impl Process {
    /// Reports an eighth of the device as reserved by each volume, and waiting requests if there is
    /// one.
    fn divide(&mut self, part: Option<NodePart>) -> NodeUse {
        self.part = part.or(self.part);
        let volumes = u64::try_from(self.volumes.len()).unwrap();
        NodeUse {
            capacity_ns: 8_000,
            reserved_ns: volumes * 1_000,
            in_flight: 0,
            window_slots: 10,
            has_waited: volumes > 0,
        }
    }

    fn report(&self) -> Report {
        let volume = |(id, held): (&VolumeId, &Held<VolumeState>)| VolumeReport {
            id: *id,
            balances: credits(held.balance),
            connections: 0,
            queued: 0,
            in_store: 0,
            operations: 0,
            bytes_read: 0,
            bytes_written: 0,
            flushes: 0,
            answered: Default::default(),
            exceeded: Default::default(),
            errors: Default::default(),
            contract: Default::default(),
        };
        let host = |(id, held): (&InstanceId, &Held<HostState>)| HostReport {
            id: *id,
            balances: credits(held.balance),
            counters: Default::default(),
        };
        let volumes = self.volumes.iter().map(volume).collect();
        Report { volumes, hosts: self.hosts.iter().map(host).collect() }
    }
}

/// Returns the capacity of a node: `node` processors; only nodes 1 and 2 know their network.
fn measured(at: usize, node: u32) -> Measured {
    let costs = Costs { read: LinearCost::ZERO, write: LinearCost::ZERO };
    Measured {
        calibration: "cal-1".into(),
        date: "2026-11-21T04:00:00.000Z".into(),
        device: DeviceFloor { time_ns_per_second: 8_000, costs },
        domain: DomainFloor {
            cpu_ns_per_second: Some(u64::from(node)),
            network_in_bytes_per_second: (node < 3).then_some(10),
            ..DomainFloor::UNLIMITED
        },
        nodes: Vec::new(),
        strained: Vec::new(),
        left_ppm: 900_000 - u32::try_from(at).unwrap(),
    }
}

fn is_attached(state: &VolumeState, host: InstanceId) -> bool {
    state.attachments.iter().any(|attachment| attachment.host == host)
}

fn stored(id: SnapshotId, volume: VolumeId) -> StoredSnapshot {
    StoredSnapshot {
        id,
        volume: Some(volume),
        size: Default::default(),
        data: Default::default(),
        is_complete: true,
        is_encrypted: false,
    }
}

fn failed(kind: FailedKind, message: &str) -> Reply {
    Reply::Failed(Failed { kind, message: message.to_owned() })
}

/// A connection to a node.
struct Connection {
    world: Arc<World>,
    node: u32,
    port: u16,
    accepted: Mutex<Option<u128>>,
    is_closed: Mutex<bool>,
}

impl Connection {
    /// Returns the process that answers, if there is one, and the state of the connection.
    fn process(&self, things: &Things) -> (Option<usize>, Standing) {
        if *self.is_closed.lock().unwrap() {
            return (None, Standing::Away("the connection is closed".to_owned()));
        }
        let answers = |it: &Process| {
            it.node == self.node && it.port == self.port && it.life == Life::Alive && !it.is_fenced
        };
        let Some(at) = things.processes.iter().position(answers) else {
            return (None, Standing::Away("no process answers".to_owned()));
        };
        let incarnation = things.processes[at].incarnation;
        let mut accepted = self.accepted.lock().unwrap();
        if *accepted.get_or_insert(incarnation) == incarnation {
            (Some(at), Standing::Up)
        } else {
            (None, Standing::New(incarnation))
        }
    }
}

impl Agent for Connection {
    fn call(&self, command: Command) -> Reply {
        let mut things = self.world.things();
        let (Some(at), _) = self.process(&things) else {
            return failed(FailedKind::Down, "the node is away");
        };
        let is_next = things.lose_next.is_some_and(|(is_it, _)| is_it(&command));
        if !is_next && !things.fails() {
            let released = match &command {
                Command::Release(id) => Some(*id),
                _ => None,
            };
            let reply = things.execute(at, command);
            if let (Some(id), Reply::Balances(CreditReport { volumes, .. })) = (released, &reply)
                && let Some((_, balances)) = volumes.first()
            {
                things.truth.exact.insert(id, balances.operations.unwrap());
            }
            return reply;
        }
        if let Command::Release(id) = &command {
            // The fleet does not receive the balance.
            things.truth.exact.remove(id);
        }
        let is_executed = match things.lose_next.take_if(|_| is_next) {
            Some((_, is_executed)) => is_executed,
            None => things.below(2) == 0,
        };
        if is_executed {
            let _ = things.execute(at, command);
        }
        if !is_next && self.node != 1 && things.below(4) == 0 {
            things.kill(self.node);
        }
        failed(FailedKind::Unanswered, "the connection broke")
    }
}

impl Node for Connection {
    fn standing(&self) -> Standing {
        self.process(&self.world.things()).1
    }

    fn accept(&self, incarnation: u128) {
        self.world.things().truth.exact.clear();
        *self.accepted.lock().unwrap() = Some(incarnation);
    }

    fn close(&self) {
        *self.is_closed.lock().unwrap() = true;
    }
}

/// The cluster as the leader at node 1 sees it.
pub struct Seen(pub Arc<World>);

impl Cluster for Seen {
    fn members(&self) -> Vec<Member> {
        let mut things = self.0.things();
        let nodes: Vec<_> = things.nodes.iter().map(|(number, it)| (*number, *it)).collect();
        let member = |(number, (state, is_leased)): (u32, (State, bool))| {
            let process = things.newest(number);
            let at: SocketAddr = ([127, 0, 0, 1], process.port).into();
            let inst = Inst {
                store: String::new(),
                incarnation: process.incarnation.to_string(),
                agent: at,
                relay: at,
                api: at,
                nbd: vec![],
                is_leaving: false,
                version: String::new(),
                settings: things
                    .keys
                    .get(&number)
                    .map(|key| ("key".to_owned(), key.clone()))
                    .into_iter()
                    .collect(),
            };
            let last = Some(inst.clone());
            let inst = is_leased.then_some(inst);
            Member { name: name(number), number: NodeId(number), state, inst, last }
        };
        nodes.into_iter().map(member).collect()
    }

    fn connect(&self, member: &Member) -> Result<Arc<dyn Node>, String> {
        if self.0.things().fails() {
            return Err("no connection".to_owned());
        }
        // The earlier process may have applied volumes without an answer.
        self.0.things().truth.exact.clear();
        let inst = member.inst.as_ref().or(member.last.as_ref());
        let world = Arc::clone(&self.0);
        let port = inst.unwrap().agent.port();
        let node = member.number.0;
        let (accepted, is_closed) = Default::default();
        Ok(Arc::new(Connection { world, node, port, accepted, is_closed }))
    }

    fn fence(&self, node: &str) -> Result<(), String> {
        let mut things = self.0.things();
        let node = number(node);
        let fails = things.fails();
        if !fails || things.below(2) == 0 {
            things.fences.push(node);
            things.truth.exact.clear();
            let all = things.processes.iter_mut().filter(|process| process.node == node);
            all.for_each(|it| it.is_fenced = true);
        }
        if fails { Err("the store does not answer".to_owned()) } else { Ok(()) }
    }

    fn store_homes(&self, changes: &Changes) -> Result<(), String> {
        let mut things = self.0.things();
        let fails = things.fails();
        if !fails || things.below(2) == 0 {
            for (id, home) in changes {
                match home {
                    Some(home) => _ = things.stored_homes.insert(*id, home.0),
                    None => _ = things.stored_homes.remove(id),
                }
            }
        }
        if fails { Err("etcd does not answer".to_owned()) } else { Ok(()) }
    }

    fn set_state(&self, node: &str, state: State) -> Result<bool, String> {
        self.0.things().nodes.get_mut(&number(node)).unwrap().0 = state;
        Ok(true)
    }

    fn term(&self) -> u64 {
        1
    }

    fn etcd(&self) -> Vec<MemberSeen> {
        vec![]
    }

    fn here(&self) -> NodeId {
        NodeId(1)
    }
}
