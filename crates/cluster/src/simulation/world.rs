//! The state of a history: nodes, Ceph, etcd, clients, counts, and the broken rule.

use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, Weak};

use evenkeel_core::fencing::order::Opening;
use evenkeel_core::fencing::{Door, NodeId};
use evenkeel_core::random::Random;
use evenkeel_wire::agent::session::{Leader, LeaderGeneration};

use super::super::fleet::Fleet;
use super::super::membership::{Action, Event, Membership, Question, Seen as ClusterSeen};
use super::ceph::{Ceph, Instance, Outcome, VOLUMES};
use super::client::{Client, Request};
use super::directed::Directed;
use super::etcd::{Etcd, NODES_MAX, Seen, TTL_MS};
use super::leader::Sim;
use super::shell::Job;
use super::{Broken, Counts};

/// A volume that the data plane of a node holds.
#[derive(Default)]
pub struct Held {
    /// Requests that were read from clients and not submitted.
    pub queue: VecDeque<Request>,
    /// The opening of the image, and whether its present step waits for an answer.
    pub opening: Option<(Opening, bool)>,
    /// The owner of the lock at the last query.
    pub owner: Option<Instance>,
    /// The number of the lock, once the image is open.
    pub generation: Option<u64>,
    /// Number of requests of clients that wait for Ceph.
    pub owed: u32,
    /// The number of the command that releases it; 0 at the end of the service.
    pub release: Option<u64>,
    /// Whether the lock is being released.
    pub is_unlocking: bool,
}

/// A connection that waits at the door.
pub struct Knock {
    pub volume: usize,
    pub connection: u64,
    pub question: u64,
}

/// The data plane of a node, with its connection to Ceph.
pub struct Plane {
    pub incarnation: u64,
    pub instance: Instance,
    /// The generation of a leader that etcd has confirmed to this process.
    pub confirmed: Option<LeaderGeneration>,
    pub volumes: [Option<Held>; VOLUMES],
    pub door: Door,
    pub knocks: Vec<Knock>,
    /// The question that the open read answers.
    pub look: Option<u64>,
    /// Whether a read must begin.
    pub is_woken: bool,
    /// Whether Ceph has refused an operation of it.
    pub is_shut_down: bool,
    /// Whether it refuses new connections and commands.
    pub is_closing: bool,
}

/// A term in which a node leads.
pub struct Term {
    pub question: Question,
    pub fleet: Arc<Fleet>,
    /// Whether a call of the fleet is running.
    pub is_busy: bool,
    pub is_ending: bool,
    /// Volumes that the control plane has not applied in this term.
    pub unapplied: BTreeSet<usize>,
}

/// A node and its process.
pub struct Place {
    pub is_alive: bool,
    pub paused_since_ms: Option<u64>,
    /// Identifies the process.
    pub process: u64,
    pub membership: Membership,
    pub inbox: VecDeque<Event>,
    pub actions: VecDeque<Action>,
    pub job: Option<Job>,
    pub plane: Option<Plane>,
    pub term: Option<Term>,
    /// Leaderships that were won and not resigned: the revision, and the end of the lease.
    pub won: BTreeMap<Question, (u64, u64)>,
    pub view: Seen,
    /// The highest seen generation of a leader, with the leader. It outlives the process.
    pub heard: Option<(LeaderGeneration, Leader)>,
    /// Requests that its front has read from clients of other nodes.
    pub front: VecDeque<(usize, Request)>,
    pub renewed_ms: u64,
    /// Answers to questions of the control plane and of the start.
    pub answers: BTreeMap<u64, Outcome>,
    /// The numbers of completed releases.
    pub released: BTreeSet<u64>,
    pub is_stopping: bool,
    /// Commands in its socket that apply a volume, by a leader with this generation.
    pub late: Vec<(usize, u64)>,
}

impl Place {
    pub fn is_awake(&self) -> bool {
        self.is_alive && self.paused_since_ms.is_none()
    }

    pub fn tell(&mut self, event: Event) {
        self.inbox.push_back(event);
    }

    /// Returns whether the data plane accepts requests of a volume.
    pub fn serves(&self, volume: usize) -> bool {
        let held = self.plane.as_ref().filter(|plane| !plane.is_closing);
        let held = held.and_then(|plane| plane.volumes[volume].as_ref());
        self.is_alive && held.is_some_and(|held| held.release.is_none())
    }
}

/// A running history.
pub struct World {
    pub sim: Weak<Sim>,
    pub random: Random,
    pub now_ms: u64,
    pub ceph: Ceph,
    pub etcd: Etcd,
    pub nodes: Vec<Place>,
    pub clients: Vec<Client>,
    pub counts: Counts,
    pub broken: BTreeSet<Broken>,
    /// Number of remaining random steps.
    pub steps_left: u64,
    pub directed: Option<Directed>,
    /// The process with which an operator has locked images by hand.
    pub operator: Option<Instance>,
    /// Number of rounds of the quiet end so far.
    pub rounds: u32,
    /// Number of objects that each client has not read at the end.
    pub unread: Vec<usize>,
    pub is_finished: bool,
    pub next: u64,
    pub told: Option<Vec<String>>,
}

/// Returns the number of a node in etcd.
pub fn number_of(node: usize) -> NodeId {
    NodeId(u32::try_from(node).unwrap() + 1)
}

impl World {
    pub fn new(sim: Weak<Sim>, mut random: Random, steps: u64, is_told: bool) -> Self {
        let below = |random: &mut Random, end| usize::try_from(random.below(end)).unwrap();
        let nodes = 2 + below(&mut random, NODES_MAX as u64 - 1);
        let volumes = 1 + below(&mut random, VOLUMES as u64);
        let steps_left = steps + random.below(steps);
        let directed = Directed::choose(&mut random, nodes, steps_left);
        let mut world = Self {
            sim,
            steps_left,
            directed,
            operator: None,
            random,
            now_ms: 0,
            ceph: Ceph::new(),
            etcd: Etcd::default(),
            nodes: Vec::new(),
            clients: (0..volumes).map(|_| Client::default()).collect(),
            counts: Counts::default(),
            broken: BTreeSet::new(),
            rounds: 0,
            unread: vec![super::ceph::OBJECTS; volumes],
            is_finished: false,
            next: 1,
            told: is_told.then(Vec::new),
        };
        for node in 0..nodes {
            let place = world.process(None);
            world.nodes.push(place);
            world.tell(|_| format!("node {node} starts"));
        }
        world
    }

    /// Creates a process of a node that has seen the leader `heard`.
    fn process(&mut self, heard: Option<(LeaderGeneration, Leader)>) -> Place {
        let (membership, first) = Membership::new();
        Place {
            is_alive: true,
            paused_since_ms: None,
            process: self.number(),
            membership,
            inbox: VecDeque::new(),
            actions: VecDeque::from(first),
            job: None,
            plane: None,
            term: None,
            won: BTreeMap::new(),
            view: self.etcd.seen,
            heard,
            front: VecDeque::new(),
            renewed_ms: self.now_ms,
            answers: BTreeMap::new(),
            released: BTreeSet::new(),
            is_stopping: false,
            late: Vec::new(),
        }
    }

    /// Returns a new number.
    pub fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    pub fn below(&mut self, end: usize) -> usize {
        usize::try_from(self.random.below(end as u64)).unwrap()
    }

    pub fn now(&self) -> Duration {
        Duration::from_millis(self.now_ms)
    }

    /// Adds a line to the printed history, if the history is printed.
    pub fn tell(&mut self, line: impl FnOnce(&Self) -> String) {
        if self.told.is_some() {
            let text = format!("{:>9} ms  {}", self.now_ms, line(self));
            self.told.iter_mut().for_each(|told| told.push(text.clone()));
        }
    }

    pub fn breaks(&mut self, broken: Broken) {
        if self.broken.insert(broken) {
            self.tell(|_| format!("BROKEN: {broken}"));
        }
        self.is_finished = true;
    }

    /// Returns whether the last random step has been taken, so that nothing fails any more.
    pub fn is_calm(&self) -> bool {
        self.steps_left == 0
    }

    /// Returns whether a process of a node lives.
    pub fn lives(&self, node: usize, process: u64) -> bool {
        self.nodes[node].is_alive && self.nodes[node].process == process
    }

    pub fn plane(&mut self, node: usize) -> Option<&mut Plane> {
        self.nodes[node].plane.as_mut()
    }

    /// Returns a node's view of the others.
    pub fn seen(&self, node: usize) -> ClusterSeen {
        let view = &self.nodes[node].view;
        let takes = |number: usize| view.insts[number].is_some_and(|inst| !inst.is_leaving);
        let has_others = (0..self.nodes.len()).any(|other| other != node && takes(other));
        ClusterSeen { has_others, is_empty: view.homes.iter().all(|home| *home != Some(node)) }
    }

    /// Starts a process on a node whose last process has ended.
    pub fn boot(&mut self, node: usize) {
        let place = self.process(self.nodes[node].heard);
        self.nodes[node] = place;
        self.tell(|_| format!("node {node} starts anew"));
    }

    pub fn die(&mut self, node: usize) {
        self.tell(|_| format!("node {node} dies"));
        let is_taker = self.nodes[node].term.as_ref().is_some_and(|term| term.is_busy);
        self.counts.leaders_died_busy += u64::from(is_taker);
        if let Some(plane) = self.nodes[node].plane.take() {
            self.ceph.end(plane.instance, self.now_ms);
            self.lose_wires(plane.instance);
        }
        if let Some(term) = self.nodes[node].term.take() {
            term.fleet.close();
        }
        self.close_connections(node);
        let place = &mut self.nodes[node];
        place.is_alive = false;
        place.paused_since_ms = None;
        place.job = None;
        place.front.clear();
    }

    /// Drops the last operations in the sockets of a process, as a power failure does, in half of
    /// the cases. In the others the kernel still sends them.
    fn lose_wires(&mut self, instance: Instance) {
        if self.random.one_in(2) {
            return;
        }
        for osd in 0..super::ceph::OSDS {
            let there = self.ceph.instances[instance].wires[osd].len();
            let left = self.below(there + 1);
            self.ceph.instances[instance].wires[osd].truncate(left);
        }
    }

    /// Ends the connections over a node.
    pub fn close_connections(&mut self, node: usize) {
        for client in &mut self.clients {
            client.connection.take_if(|it| it.front == node || it.home == node);
        }
    }

    pub fn pause(&mut self, node: usize) {
        // The node dies during its work: it has submitted operations, and sent some of them.
        for volume in 0..self.clients.len() {
            while self.dispatch(node, volume) {}
        }
        self.tell(|_| format!("node {node} pauses"));
        let place = &mut self.nodes[node];
        place.paused_since_ms = Some(self.now_ms);
        if let Some(plane) = &place.plane {
            self.ceph.instances[plane.instance].silent_since_ms = Some(self.now_ms);
        }
    }

    pub fn wake(&mut self, node: usize) {
        let Some(since_ms) = self.nodes[node].paused_since_ms else { return };
        let longest_ms = self.random.among(&[500, 5_000, 20_000, 60_000, 3_600_000]);
        let more_ms = self.random.below(longest_ms);
        self.pass(more_ms);
        let slept_ms = self.now_ms - since_ms;
        self.tell(|_| format!("node {node} wakes after {slept_ms} ms"));
        self.nodes[node].paused_since_ms = None;
        if let Some(instance) = self.nodes[node].plane.as_ref().map(|plane| plane.instance) {
            let rados = &mut self.ceph.instances[instance];
            rados.silent_since_ms = None;
            if self.steps_left > 0 && self.random.one_in(2) {
                let osd = usize::try_from(self.random.below(super::ceph::OSDS as u64)).unwrap();
                rados.is_stalled[osd] = true;
            }
            self.counts.woke_with_operations += u64::from(!rados.queue.is_empty());
        }
        // A front that did not run drops its clients before it sends anything.
        if Duration::from_millis(slept_ms) > crate::simulation::FRONT_GAP_MAX {
            self.nodes[node].front.clear();
            for client in &mut self.clients {
                client.connection.take_if(|it| it.front == node);
            }
        }
        let leads = self.nodes[node].term.is_some() && slept_ms > TTL_MS;
        self.counts.leaders_slept += u64::from(leads);
    }

    /// Advances the clock. Only renewals of leases happen in this time.
    fn pass(&mut self, ms: u64) {
        self.now_ms += ms;
        let ends_ms = self.now_ms + TTL_MS;
        for node in 0..self.nodes.len() {
            if self.nodes[node].is_awake() {
                self.renew(node, ends_ms);
            }
        }
        self.etcd.expire(self.now_ms);
    }

    /// Renews the existing leases of a node.
    pub fn renew(&mut self, node: usize, ends_ms: u64) {
        let place = &mut self.nodes[node];
        place.renewed_ms = self.now_ms;
        let incarnation = place.plane.as_ref().map(|plane| plane.incarnation);
        let incarnation = incarnation.or(place.job.as_ref().and_then(Job::incarnation));
        if let Some(inst) = &mut self.etcd.seen.insts[node]
            && Some(inst.incarnation) == incarnation
        {
            inst.ends_ms = ends_ms;
        }
        if let Some(key) = &mut self.etcd.leader
            && key.node == node
            && key.process == place.process
        {
            key.ends_ms = ends_ms;
        }
    }

    /// Returns the nodes that have a volume open and are not fenced by the monitors.
    pub fn holders(&self, volume: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.nodes.len()).filter(move |node| {
            let plane = self.nodes[*node].plane.as_ref();
            let instance = plane.map(|plane| plane.instance);
            self.nodes[*node].serves(volume)
                && instance.is_some_and(|instance| !self.ceph.is_fenced(instance))
        })
    }

    pub fn judge_holders(&mut self) {
        for volume in 0..self.clients.len() {
            if self.holders(volume).nth(1).is_some() {
                self.breaks(Broken::TwoServing);
            }
        }
    }
}
