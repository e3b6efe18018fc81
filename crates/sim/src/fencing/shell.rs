//! What the product's shell does with librados, librbd and etcd: executes the orders of a node's
//! rules, and tells them the answers.

use super::Broken;
use super::books::Delayed;
use super::ceph::{Asker, INSTANCES_MAX, Kind, OBJECTS, Operation, Outcome, Pending, Rados, Reply};
use super::client::Wanted;
use super::world::{World, volume_of};
use evenkeel_core::fencing::{
    Alarm, Answer, BLOCKLIST_EXPIRE_S, Cas, Fault, Generation, Input, Instance, LockOwner, Order,
    Ownership, Revision, State, Step,
};

/// How long an entry lasts where that rule is broken.
const SHORT_EXPIRE_MS: u64 = 5_000;

impl World {
    /// Executes a node's next order.
    pub fn execute(&mut self, node: usize) {
        for input in std::mem::take(&mut self.nodes[node].told) {
            self.feed(node, input);
        }
        let Some(order) = self.nodes[node].orders.pop_front() else { return };
        self.tell(|_| format!("node {node} executes {:?} {:?}", order.volume, order.step));
        match order.volume {
            None => self.execute_for_node(node, order),
            Some(id) => self.execute_for_volume(node, volume_of(id), order),
        }
    }

    fn execute_for_node(&mut self, node: usize, order: Order) {
        let volumes = 0..self.clients.len();
        match order.step {
            Step::Connect => {
                let answer = self.connect(node);
                self.answer(node, &order, answer);
            }
            Step::Register => {
                let registered = self.nodes[node].instance.map(Answer::Registered);
                let answer = registered.unwrap_or(Answer::Failed(Fault::Other(0)));
                self.answer(node, &order, answer);
                volumes.for_each(|volume| self.watch(node, volume));
            }
            Step::CloseAllClients => volumes.for_each(|volume| self.close_clients(node, volume)),
            Step::CloseRelays => {
                for volume in volumes {
                    if self.nodes[node].relays[volume].is_some() {
                        self.close_clients(node, volume);
                    }
                }
            }
            Step::Disconnect => {
                if let Some(instance) = self.nodes[node].instance.take() {
                    self.ceph.end(instance, self.now_ms);
                }
                let place = &mut self.nodes[node];
                (place.draining, place.closing) = (Vec::new(), Vec::new());
                place.is_held = [false; 2];
                self.counts.rejoins += 1;
                self.answer(node, &order, Answer::Done);
            }
            _ => {}
        }
    }

    /// A new instance, with a map that may not be the latest.
    fn connect(&mut self, node: usize) -> Answer {
        let incarnation = self.ceph.instances.len();
        if incarnation == INSTANCES_MAX {
            return Answer::Failed(Fault::Other(0));
        }
        let epoch = self.ceph.latest().saturating_sub(self.random.below(3) as usize);
        self.ceph.instances.push(Rados { epoch, ..Rados::default() });
        let id = evenkeel_core::fencing::NodeId(node as u32);
        self.nodes[node].instance = Some(Instance { node: id, incarnation: incarnation as u64 });
        Answer::Done
    }

    fn execute_for_volume(&mut self, node: usize, volume: usize, order: Order) {
        let Some(instance) = self.nodes[node].instance else { return };
        let place = &mut self.nodes[node];
        match &order.step {
            Step::Serve { generation } => {
                place.serving[volume] = Some(*generation);
                place.is_held[volume] = false;
                place.relays[volume] = None;
            }
            Step::Resume => place.is_held[volume] = false,
            Step::Drain => {
                place.is_held[volume] = true;
                place.draining.push((volume, order.ticket));
                self.settle(node);
            }
            Step::CloseImage => {
                place.serving[volume] = None;
                place.closing.push((volume, order.ticket));
                self.settle(node);
            }
            Step::Relay { to, generation } => self.relay_to(node, volume, *to, *generation),
            Step::CloseClients => self.close_clients(node, volume),
            Step::Alarm(Alarm::LockHeld { .. }) => self.breaks(Broken::FalseAlarm),
            Step::Alarm(_) | Step::Warm => {}
            _ if self.random.one_in(25) && !matches!(order.step, Step::Claim { .. }) => {
                // Its time runs out; what it asked for may happen all the same.
                if let Step::Blocklist { instance, expire_s } = order.step
                    && self.random.one_in(2)
                {
                    self.enter(instance, expire_s, None);
                }
                self.answer(node, &order, Answer::Failed(Fault::Other(0)));
            }
            Step::HoldAndCheckLock => {
                place.is_held[volume] = true;
                self.ask(instance, volume, Kind::LockCheck, &order);
            }
            Step::GetLockOwners => self.ask(instance, volume, Kind::LockOwner, &order),
            Step::BreakLock { owner } => {
                self.ask(instance, volume, Kind::LockBreak(*owner), &order);
            }
            Step::AcquireLock => self.ask(instance, volume, Kind::LockAcquire, &order),
            Step::ReleaseLock => self.ask(instance, volume, Kind::LockRelease, &order),
            _ => self.execute_elsewhere(node, volume, &order),
        }
    }

    /// Steps at the monitors and at etcd.
    fn execute_elsewhere(&mut self, node: usize, volume: usize, order: &Order) {
        let answer = match &order.step {
            Step::Claim { expected, next } => Answer::Cas(self.claim(volume, *expected, next)),
            Step::ReadRecord => Answer::Record(self.books.record(volume).cloned()),
            Step::Blocklist { instance, expire_s } if self.rules.has_entry => {
                let waiter = Some((node, volume, order.ticket));
                return self.enter(*instance, *expire_s, waiter);
            }
            Step::WaitForLatestOsdMap if self.rules.waits_for_map => {
                let Some(instance) = self.nodes[node].instance else { return };
                self.ceph.teach(instance, self.ceph.latest());
                if self.ceph.knows_itself_fenced(instance) {
                    self.find_fenced(node, instance);
                }
                Answer::Done
            }
            _ => Answer::Done,
        };
        self.answer(node, order, answer);
    }

    fn enter(
        &mut self,
        instance: Instance,
        expire_s: u32,
        waiter: Option<(usize, usize, evenkeel_core::fencing::Ticket)>,
    ) {
        assert_eq!(expire_s, BLOCKLIST_EXPIRE_S, "the rules ask for another span");
        let lasts_ms = match self.rules.outlives_pauses {
            true => u64::from(expire_s) * 1_000,
            false => SHORT_EXPIRE_MS,
        };
        let expires_ms = Some(self.now_ms + lasts_ms);
        self.ceph.pending.push(Pending { instance, expires_ms, waiter });
    }

    fn claim(&mut self, volume: usize, expected: Option<Revision>, next: &Ownership) -> Cas {
        if self.random.one_in(20) {
            let delayed = Delayed { volume, expected, next: next.clone() };
            match self.random.below(3) {
                0 => drop(self.write(delayed)),
                1 => self.books.delayed.push(delayed),
                _ => {}
            }
            return Cas::Unknown;
        }
        self.write(Delayed { volume, expected, next: next.clone() })
    }

    /// A transaction arrives at etcd.
    pub fn write(&mut self, Delayed { volume, expected, next }: Delayed) -> Cas {
        let is_takeover = next.state == State::Taking && !next.before.is_empty();
        let is_move = self.books.record(volume).is_some_and(|record| {
            matches!(record.ownership.state, State::Moving { .. }) && next.before.is_empty()
        });
        let cas = self.books.write(volume, expected, next);
        if matches!(cas, Cas::Won(_)) {
            self.counts.takeovers += u64::from(is_takeover);
            self.counts.moves += u64::from(is_move);
        }
        cas
    }

    fn ask(&mut self, instance: Instance, volume: usize, kind: Kind, order: &Order) {
        let asker = Asker::Order(order.ticket);
        let (object, generation) = (OBJECTS, 0);
        self.ceph.submit(Operation { instance, volume, object, kind, generation, epoch: 0, asker });
    }

    /// A client wants to be let in: is the volume still the node's?
    pub fn knock(&mut self, node: usize, volume: usize, connection: u64) {
        let Some(instance) = self.nodes[node].instance else { return };
        if !self.rules.checks_at_door {
            return self.let_in(node, volume, connection, true);
        }
        let asker = Asker::Door { connection };
        let (object, kind, generation, epoch) = (OBJECTS, Kind::LockCheck, 0, 0);
        self.ceph.submit(Operation { instance, volume, object, kind, generation, epoch, asker });
    }

    fn let_in(&mut self, node: usize, volume: usize, connection: u64, is_owner: bool) {
        let client = &mut self.clients[volume];
        if !client.has(connection) {
            return;
        }
        match is_owner && self.nodes[node].serving[volume].is_some() {
            true => self.nodes[node].queues[volume].extend(client.resend()),
            false => client.connection = None,
        }
    }

    fn answer(&mut self, node: usize, order: &Order, answer: Answer) {
        self.feed(node, Input::Answered { volume: order.volume, ticket: order.ticket, answer });
    }

    fn relay_to(&mut self, node: usize, volume: usize, to: Instance, generation: Generation) {
        let place = &mut self.nodes[node];
        place.serving[volume] = None;
        place.is_held[volume] = false;
        let to = to.node.0 as usize;
        place.relays[volume] = (to != node).then_some((to, generation));
        if let Some(connection) = &mut self.clients[volume].connection
            && connection.path.last() == Some(&node)
            && to != node
        {
            connection.path.push(to);
        }
    }

    /// Tells what waited until nothing is under way.
    pub fn settle(&mut self, node: usize) {
        let Some(instance) = self.nodes[node].instance else { return };
        let owed = self.ceph.instances[super::ceph::index(instance)].owed;
        let place = &mut self.nodes[node];
        let is_quiet = |(volume, _): &(usize, _)| owed[*volume] == 0;
        let (drained, draining) = place.draining.drain(..).partition(is_quiet);
        let (closed, closing): (Vec<_>, Vec<_>) = place.closing.drain(..).partition(is_quiet);
        (place.draining, place.closing) = (draining, closing);
        let drained: Vec<_> = drained;
        for (volume, ticket) in drained {
            let volume = Some(super::world::id_of(volume));
            self.feed(node, Input::Answered { volume, ticket, answer: Answer::Done });
        }
        for (volume, ticket) in closed {
            let asker = Asker::Order(ticket);
            let (object, kind, generation) = (OBJECTS, Kind::LockRelease, 0);
            let epoch = 0;
            let release = Operation { instance, volume, object, kind, generation, epoch, asker };
            self.ceph.submit(release);
        }
    }

    /// A node submits what it has read of a client.
    pub fn dispatch(&mut self, node: usize, volume: usize) -> bool {
        let place = &mut self.nodes[node];
        let (Some(generation), Some(instance)) = (place.serving[volume], place.instance) else {
            return false;
        };
        if place.is_held[volume] {
            return false;
        }
        let Some(request) = place.queues[volume].pop_front() else { return false };
        let kind = match request.wanted {
            Wanted::Read { .. } => Kind::Read,
            Wanted::Write(value) => Kind::Write(value),
        };
        let asker = Asker::Client { request: request.id, connection: request.connection };
        let (object, generation, epoch) = (request.object, generation.0, 0);
        self.ceph.submit(Operation { instance, volume, object, kind, generation, epoch, asker });
        true
    }

    /// A node passes on what it has read of a client whose volume it has handed over. The home
    /// takes nothing from a connection that is closed.
    pub fn relay(&mut self, node: usize, volume: usize) -> bool {
        let Some((to, generation)) = self.nodes[node].relays[volume] else { return false };
        let is_newest = self
            .books
            .record(volume)
            .is_some_and(|record| record.ownership.generation == generation);
        if !is_newest || !self.nodes[to].is_alive {
            self.close_clients(node, volume);
            return false;
        }
        if self.nodes[to].rules.holds(super::world::id_of(volume)) != Some(generation) {
            return false;
        }
        let Some(request) = self.nodes[node].queues[volume].pop_front() else { return false };
        if self.clients[volume].has(request.connection) {
            self.nodes[to].queues[volume].push_back(request);
        }
        true
    }

    /// A node takes in an answer of Ceph.
    pub fn take_reply(&mut self, node: usize) -> bool {
        let Some(instance) = self.nodes[node].instance else { return false };
        let rados = &mut self.ceph.instances[super::ceph::index(instance)];
        let Some(reply) = rados.replies.pop_front() else { return false };
        rados.owed[reply.operation.volume] -= 1;
        self.ceph.teach(instance, reply.epoch);
        if reply.outcome == Outcome::Refused && !self.rules.stays_fenced {
            self.ceph.submit(reply.operation);
        }
        if reply.outcome == Outcome::Refused || self.ceph.knows_itself_fenced(instance) {
            self.find_fenced(node, instance);
        }
        if reply.outcome != Outcome::Refused {
            self.pass_on(node, &reply);
        }
        self.settle(node);
        true
    }

    /// A node finds that its instance is on the blocklist.
    pub fn find_fenced(&mut self, node: usize, instance: Instance) {
        if self.rules.stays_fenced {
            return self.feed(node, Input::IoFailed { instance, fault: Fault::ShutDown });
        }
        let removes = |it: &Pending| it.instance == instance && it.expires_ms.is_none();
        if !self.ceph.pending.iter().any(removes) {
            self.tell(|_| format!("node {node} takes itself off the blocklist"));
            self.ceph.pending.push(Pending { instance, expires_ms: None, waiter: None });
        }
    }

    fn pass_on(&mut self, node: usize, reply: &Reply) {
        let Reply { operation, outcome, .. } = reply;
        let ticket = match operation.asker {
            Asker::Order(ticket) => ticket,
            Asker::Door { connection } => {
                let is_owner = *outcome == Outcome::Owner(Some(operation.instance));
                return self.let_in(node, operation.volume, connection, is_owner);
            }
            Asker::Client { request, connection } => {
                let value = match outcome {
                    Outcome::Value(value) => *value,
                    _ => 0,
                };
                let client = &mut self.clients[operation.volume];
                let (is_new, broken) = client.answered(request, connection, value);
                self.counts.answered += u64::from(is_new);
                self.tell(|_| format!("client's request {request} is answered: {outcome:?}"));
                return broken.into_iter().for_each(|broken| self.breaks(broken));
            }
        };
        let known = |owner: Option<Instance>| owner.map_or(LockOwner::Nobody, LockOwner::Known);
        let answer = match (operation.kind, *outcome) {
            (Kind::LockCheck, Outcome::Owner(owner)) => {
                Answer::IsOwner(owner == Some(operation.instance))
            }
            (_, Outcome::Owner(owner)) => Answer::Owner(known(owner)),
            (_, Outcome::NotOwner) => Answer::Failed(Fault::NotOwner),
            _ => Answer::Done,
        };
        self.counts.breaks +=
            u64::from(matches!((operation.kind, outcome), (Kind::LockBreak(_), Outcome::Done)));
        let volume = Some(super::world::id_of(operation.volume));
        self.feed(node, Input::Answered { volume, ticket, answer });
    }
}
