//! The whole of a history: nodes, Ceph, etcd, clients, and what is found out.

use super::books::Books;
use super::ceph::Ceph;
use super::client::{Client, Request};
use super::{Broken, Counts, History, Rules};
use evenkeel_core::fencing::{Generation, Input, Instance, Node, NodeId, Order, Ticket};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::random::Random;
use std::collections::{BTreeSet, VecDeque};

/// A node: the product's rules, and what a shell around them would know.
pub struct Place {
    pub rules: Node,
    pub is_alive: bool,
    pub paused_since_ms: Option<u64>,
    /// For how long it slept, until a reactor has noticed.
    pub gap_ms: Option<u64>,
    pub orders: VecDeque<Order>,
    /// Answers of the monitors that it has not looked at.
    pub told: Vec<Input>,
    /// Volumes that wait until nothing is under way, and the orders that asked for it.
    pub draining: Vec<(usize, Ticket)>,
    pub closing: Vec<(usize, Ticket)>,
    /// What was read from clients and not submitted, by volume.
    pub queues: [VecDeque<Request>; 2],
    /// Whose door is open, and in which generation.
    pub serving: [Option<Generation>; 2],
    pub is_held: [bool; 2],
    /// To whom clients are relayed, and in which generation.
    pub relays: [Option<(usize, Generation)>; 2],
    /// The connection to Ceph.
    pub instance: Option<Instance>,
}

impl Place {
    fn new(id: usize) -> Self {
        Self {
            rules: Node::new(NodeId(id as u32)),
            is_alive: true,
            paused_since_ms: None,
            gap_ms: None,
            orders: VecDeque::new(),
            told: Vec::new(),
            draining: Vec::new(),
            closing: Vec::new(),
            queues: Default::default(),
            serving: [None; 2],
            is_held: [false; 2],
            relays: [None; 2],
            instance: None,
        }
    }

    pub fn is_awake(&self) -> bool {
        self.is_alive && self.paused_since_ms.is_none()
    }
}

/// A history under way.
pub struct World {
    pub random: Random,
    pub rules: Rules,
    pub now_ms: u64,
    pub ceph: Ceph,
    pub books: Books,
    pub nodes: Vec<Place>,
    pub clients: Vec<Client>,
    pub counts: Counts,
    pub broken: BTreeSet<Broken>,
    told: Option<Vec<String>>,
}

/// The id of a volume of the model.
pub fn id_of(volume: usize) -> VolumeId {
    VolumeId::from_bits(volume as u128)
}

/// Which volume of the model an id is.
pub fn volume_of(id: VolumeId) -> usize {
    usize::from(id.bits() != 0)
}

impl World {
    pub fn new(mut random: Random, rules: Rules, is_told: bool) -> Self {
        let nodes = 2 + random.below(3) as usize;
        let volumes = 1 + random.below(2) as usize;
        let mut world = Self {
            random,
            rules,
            now_ms: 0,
            ceph: Ceph::new(),
            books: Books::default(),
            nodes: (0..nodes).map(Place::new).collect(),
            clients: (0..volumes).map(|_| Client::default()).collect(),
            counts: Counts::default(),
            broken: BTreeSet::new(),
            told: is_told.then(Vec::new),
        };
        (0..nodes).for_each(|node| world.feed(node, Input::Start));
        world
    }

    pub fn end(self) -> History {
        let told = self.told.unwrap_or_default();
        History { broken: self.broken, counts: self.counts, told }
    }

    /// Adds a line to what is told, if anybody listens.
    pub fn tell(&mut self, line: impl FnOnce(&Self) -> String) {
        if self.told.is_some() {
            let text = format!("{:>9} ms  {}", self.now_ms, line(self));
            self.told.iter_mut().for_each(|told| told.push(text.clone()));
        }
    }

    pub fn breaks(&mut self, broken: Broken) {
        if self.broken.contains(&broken) {
            return;
        }
        self.tell(|_| format!("BROKEN: {broken}"));
        self.broken.insert(broken);
    }

    /// Whether data is lost, and there is nothing left to find out.
    pub fn is_over(&self) -> bool {
        self.broken.iter().any(|broken| broken.is_of_data())
    }

    /// Gives a node's rules an input; their orders wait to be executed.
    pub fn feed(&mut self, node: usize, input: Input) {
        let text = self.told.is_some().then(|| format!("node {node} learns {input:?}"));
        let place = &mut self.nodes[node];
        let orders = place.rules.on(input);
        let is_news = !orders.is_empty();
        place.orders.extend(orders);
        // A watch tells much that changes nothing.
        if let Some(text) = text.filter(|_| is_news) {
            self.tell(|_| text);
        }
    }

    /// A process starts on a node whose last one died.
    pub fn restart(&mut self, node: usize) {
        self.nodes[node] = Place::new(node);
        self.tell(|_| format!("node {node} starts anew"));
        self.feed(node, Input::Start);
    }

    pub fn die(&mut self, node: usize) {
        self.tell(|_| format!("node {node} dies"));
        let instance = self.nodes[node].instance;
        let takes = |record: &evenkeel_core::fencing::Record| {
            let taking = evenkeel_core::fencing::State::Taking;
            Some(record.ownership.owner) == instance && record.ownership.state == taking
        };
        let is_taker = (0..self.clients.len()).any(|it| self.books.record(it).is_some_and(takes));
        self.counts.takers_died += u64::from(is_taker);
        if let Some(instance) = instance {
            self.ceph.end(instance, self.now_ms);
            self.lose_wires(instance);
        }
        for volume in 0..self.clients.len() {
            self.close_clients(node, volume);
        }
        let place = &mut self.nodes[node];
        *place = Place::new(node);
        place.is_alive = false;
    }

    /// The power is gone, and with it some of what was in sockets; or the kernel sends it on.
    fn lose_wires(&mut self, instance: Instance) {
        if self.random.one_in(2) {
            return;
        }
        for wire in &mut self.ceph.instances[super::ceph::index(instance)].wires {
            let left = self.random.below(wire.len() as u64 + 1) as usize;
            wire.truncate(left);
        }
    }

    pub fn pause(&mut self, node: usize) {
        // In the middle of its work: it has submitted much, and sent some of it.
        if self.random.one_in(2) {
            for volume in 0..self.clients.len() {
                while self.dispatch(node, volume) {}
            }
        }
        self.tell(|_| format!("node {node} pauses"));
        let now_ms = self.now_ms;
        let place = &mut self.nodes[node];
        place.paused_since_ms = Some(now_ms);
        if let Some(instance) = place.instance {
            let rados = &mut self.ceph.instances[super::ceph::index(instance)];
            rados.silent_since_ms = Some(now_ms);
        }
    }

    pub fn wake(&mut self, node: usize) {
        let longest_ms = self.random.among(&[5_000, 20_000, 60_000, 3_600_000]);
        self.now_ms += 2_001 + self.random.below(longest_ms);
        let now_ms = self.now_ms;
        let place = &mut self.nodes[node];
        let Some(since_ms) = place.paused_since_ms.take() else { return };
        place.gap_ms = Some(now_ms - since_ms);
        if let Some(instance) = place.instance {
            let rados = &mut self.ceph.instances[super::ceph::index(instance)];
            rados.silent_since_ms = None;
            self.counts.woke_with_operations += u64::from(!rados.queue.is_empty());
        }
        self.tell(|_| format!("node {node} wakes after {} ms", now_ms - since_ms));
        if self.random.one_in(2) {
            self.notice_gap(node);
        }
    }

    /// A reactor compares the boot-time clock between two turns.
    pub fn notice_gap(&mut self, node: usize) {
        if let Some(ms) = self.nodes[node].gap_ms.take() {
            self.feed(node, Input::Gap(evenkeel_core::time::Duration::from_ms(ms)));
        }
    }

    /// The node closes what it has of the volume's clients.
    pub fn close_clients(&mut self, node: usize, volume: usize) {
        let place = &mut self.nodes[node];
        place.queues[volume].clear();
        place.serving[volume] = None;
        place.relays[volume] = None;
        let connection = &mut self.clients[volume].connection;
        if connection.as_ref().is_some_and(|it| it.path.contains(&node)) {
            *connection = None;
        }
    }

    /// Who serves a volume, and whether the monitors would let it.
    pub fn servers(&self, volume: usize) -> impl Iterator<Item = usize> + '_ {
        let id = id_of(volume);
        (0..self.nodes.len()).filter(move |node| {
            let place = &self.nodes[*node];
            let is_valid = |it: Instance| !self.ceph.is_fenced(it);
            place.is_alive
                && place.rules.serves(id).is_some()
                && place.rules.instance().is_some_and(is_valid)
        })
    }

    pub fn judge_servers(&mut self) {
        for volume in 0..self.clients.len() {
            if self.servers(volume).nth(1).is_some() {
                self.breaks(Broken::TwoServing);
            }
        }
    }
}
