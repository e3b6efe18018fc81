//! The data plane of a node and its front: requests, openings and releases of volumes, the door.

use evenkeel_core::fencing::OwnEntry;
use evenkeel_core::fencing::order::{OpenAnswer, OpenStep, Opening};

use super::super::membership::Event;
use super::Broken;
use super::ceph::{Asker, Instance, Kind, Object, Operation, Outcome, Reply};
use super::client::Wanted;
use super::world::{Held, Knock, World};

impl World {
    /// Connects a client to a front.
    pub fn connect(&mut self, volume: usize) {
        let awake = |node: &usize| {
            let plane = self.nodes[*node].plane.as_ref();
            self.nodes[*node].is_awake() && plane.is_some_and(|plane| !plane.is_closing)
        };
        let fronts: Vec<usize> = (0..self.nodes.len()).filter(awake).collect();
        if fronts.is_empty() {
            return;
        }
        // A client often returns to a node that considers itself the home.
        let is_home = |node: &usize| self.nodes[*node].view.homes[volume] == Some(*node);
        let homes: Vec<usize> = fronts.iter().copied().filter(is_home).collect();
        let is_back = !homes.is_empty() && self.random.one_in(2);
        let front = self.random.among(if is_back { &homes } else { &fronts });
        self.connect_over(volume, front);
    }

    /// Connects a client to a front, which finds the volume's home and asks it to accept the
    /// client.
    pub fn connect_over(&mut self, volume: usize, front: usize) {
        let view = &self.nodes[front].view;
        let Some(home) = view.homes[volume] else { return };
        let is_there = home == front || view.insts[home].is_some_and(|inst| inst.is_reachable);
        // A home that hangs accepts a connection, too, and handles it when it wakes.
        if !is_there || !self.nodes[home].serves(volume) {
            return;
        }
        let connection = self.clients[volume].connect(front, home);
        self.tell(|_| format!("client {volume} connects to node {front}, its home is {home}"));
        let Some(plane) = self.plane(home) else { return };
        let question = plane.door.ask();
        plane.is_woken = true;
        plane.knocks.push(Knock { volume, connection, question });
    }

    /// Runs the thread that asks the storage whether this process may serve.
    fn ask_storage(&mut self, node: usize) {
        let Some(plane) = self.plane(node) else { return };
        if !plane.is_woken || plane.look.is_some() {
            return;
        }
        plane.is_woken = false;
        plane.look = Some(plane.door.newest());
        let instance = plane.instance;
        let (object, kind, asker) = (Object::Books, Kind::OwnEntry, Asker::Door);
        let generation = 0;
        let epoch = 0;
        self.ceph.submit(Operation { instance, object, kind, generation, epoch, asker });
    }

    fn storage_answers(&mut self, node: usize, outcome: Outcome) {
        let entry = match outcome {
            Outcome::Is(true) => OwnEntry::There,
            Outcome::Is(false) => OwnEntry::Gone,
            _ => OwnEntry::Refused,
        };
        let Some(plane) = self.plane(node) else { return };
        let Some(question) = plane.look.take() else { return };
        if entry.is_fenced() {
            self.note_shut_down(node);
            // The storage is asked again until the node closes.
            if let Some(plane) = self.plane(node) {
                plane.is_woken |= !plane.knocks.is_empty();
            }
        } else {
            plane.door.confirm(question);
        }
        self.nodes[node].tell(Event::StoreAnswered);
    }

    /// Accepts the clients whose question is answered.
    fn open_door(&mut self, node: usize) {
        let Some(plane) = self.plane(node) else { return };
        let knocks = std::mem::take(&mut plane.knocks);
        let mut left = Vec::new();
        for knock in knocks {
            let Some(plane) = self.plane(node) else { return };
            if plane.door.is_confirmed(knock.question) {
                self.let_in(node, &knock);
            } else if self.clients[knock.volume].has(knock.connection) {
                left.push(knock);
            }
        }
        if let Some(plane) = self.plane(node) {
            plane.knocks.append(&mut left);
        }
    }

    fn let_in(&mut self, node: usize, knock: &Knock) {
        let volume = knock.volume;
        if !self.clients[volume].has(knock.connection) {
            return;
        }
        if !self.nodes[node].serves(volume) {
            self.clients[volume].connection = None;
            return;
        }
        self.counts.let_in += 1;
        for request in self.clients[volume].resend() {
            self.take_request(volume, request);
        }
    }

    /// Delivers a client's request to its front.
    pub fn take_request(&mut self, volume: usize, request: super::client::Request) {
        let Some(connection) = self.clients[volume].connection else { return };
        if connection.front != connection.home {
            return self.nodes[connection.front].front.push_back((volume, request));
        }
        self.arrive(connection.home, volume, request);
    }

    fn arrive(&mut self, home: usize, volume: usize, request: super::client::Request) {
        let held = self.plane(home).and_then(|plane| plane.volumes[volume].as_mut());
        if let Some(held) = held.filter(|held| held.release.is_none()) {
            held.queue.push_back(request);
        }
    }

    /// Relays a request from a front to a home. Drops requests of clients that have left.
    pub fn relay(&mut self, node: usize) -> bool {
        let Some((volume, request)) = self.nodes[node].front.pop_front() else { return false };
        let connection = self.clients[volume].connection;
        if let Some(connection) = connection.filter(|it| it.id == request.connection) {
            self.arrive(connection.home, volume, request);
        }
        true
    }

    /// Submits a request of a client at its home. The first request opens the image.
    pub fn dispatch(&mut self, node: usize, volume: usize) -> bool {
        let Some(plane) = self.plane(node) else { return false };
        let instance = plane.instance;
        let Some(held) = plane.volumes[volume].as_mut() else { return false };
        if held.release.is_some() {
            return false;
        }
        let Some(generation) = held.generation else {
            if !held.queue.is_empty() && held.opening.is_none() {
                held.opening = Some((Opening::default(), false));
            }
            return false;
        };
        let Some(request) = held.queue.pop_front() else { return false };
        held.owed += 1;
        let kind = match request.wanted {
            Wanted::Read { .. } => Kind::Read,
            Wanted::Write(value) => Kind::Write(value),
        };
        let asker = Asker::Client { request: request.id, connection: request.connection };
        let object = Object::Data(volume, request.object);
        let epoch = 0;
        self.ceph.submit(Operation { instance, object, kind, generation, epoch, asker });
        true
    }

    /// Runs the threads of the data plane other than those of requests.
    pub fn look_after_plane(&mut self, node: usize) {
        self.ask_storage(node);
        self.open_door(node);
        for volume in 0..self.clients.len() {
            self.open_image(node, volume);
            self.release(node, volume);
        }
    }

    /// Takes the next step of opening an image.
    fn open_image(&mut self, node: usize, volume: usize) {
        let Some(plane) = self.plane(node) else { return };
        let instance = plane.instance;
        let Some(held) = plane.volumes[volume].as_mut() else { return };
        let Some((opening, is_asked)) = &mut held.opening else { return };
        if *is_asked {
            return;
        }
        let kind = match opening.step() {
            OpenStep::WaitForLatestMap => {
                let latest = self.ceph.latest();
                self.ceph.teach(instance, latest);
                return self.step_is_done(node, volume, OpenAnswer::Done);
            }
            OpenStep::Open => return self.step_is_done(node, volume, OpenAnswer::Done),
            OpenStep::FindOwner => Kind::FindOwner,
            OpenStep::FindFenced => Kind::IsFenced(held.owner.expect("the owner was looked for")),
            OpenStep::BreakLock => Kind::BreakLock(held.owner.expect("the owner was looked for")),
            OpenStep::Lock => Kind::Lock,
            OpenStep::Done => {
                held.opening = None;
                return;
            }
            OpenStep::Refuse => return self.refuse(node, volume),
        };
        *is_asked = true;
        let object = match kind {
            Kind::IsFenced(_) => Object::Books,
            _ => Object::Header(volume),
        };
        let (generation, epoch, asker) = (0, 0, Asker::Volume(volume));
        self.ceph.submit(Operation { instance, object, kind, generation, epoch, asker });
    }

    /// Fails the opening of an image that a process without a fence has locked.
    fn refuse(&mut self, node: usize, volume: usize) {
        let operator = self.operator;
        let Some(plane) = self.plane(node) else { return };
        let Some(held) = plane.volumes[volume].as_mut() else { return };
        if held.owner.is_none() || held.owner != operator {
            return self.breaks(Broken::FalseAlarm);
        }
        held.opening = None;
        held.queue.clear();
        self.counts.locked_by_hand += 1;
        self.clients[volume].connection.take_if(|connection| connection.home == node);
    }

    fn step_is_done(&mut self, node: usize, volume: usize, answer: OpenAnswer) {
        let held = self.plane(node).and_then(|plane| plane.volumes[volume].as_mut());
        if let Some((opening, is_asked)) = held.and_then(|held| held.opening.as_mut()) {
            *is_asked = false;
            opening.answered(answer);
        }
    }

    fn volume_answered(&mut self, node: usize, volume: usize, (kind, outcome): (Kind, Outcome)) {
        self.counts.breaks += u64::from(matches!(kind, Kind::BreakLock(_)));
        let held = self.plane(node).and_then(|plane| plane.volumes[volume].as_mut());
        let Some(held) = held else { return };
        if kind == Kind::Unlock {
            return self.is_released(node, volume);
        }
        if outcome == Outcome::Refused {
            held.opening = None;
            held.queue.clear();
            return;
        }
        let answer = match outcome {
            Outcome::Owner(owner) => {
                held.owner = owner;
                if owner.is_some() { OpenAnswer::Locked } else { OpenAnswer::Unlocked }
            }
            Outcome::Is(true) => OpenAnswer::Fenced,
            Outcome::Is(false) => OpenAnswer::NotFenced,
            Outcome::NotOwner => OpenAnswer::Locked,
            Outcome::Locked(generation) => {
                held.generation = Some(generation);
                OpenAnswer::Done
            }
            _ => OpenAnswer::Done,
        };
        self.step_is_done(node, volume, answer);
    }

    /// Begins the release of a volume, and disconnects its clients.
    pub fn begin_release(&mut self, node: usize, volume: usize, number: u64) {
        let Some(plane) = self.plane(node) else { return };
        if let Some(held) = plane.volumes[volume].as_mut() {
            held.release = Some(number);
            held.queue.clear();
        }
        self.clients[volume].connection.take_if(|it| it.home == node);
    }

    /// Releases a volume's lock when no operation of it is open.
    fn release(&mut self, node: usize, volume: usize) {
        let Some(plane) = self.plane(node) else { return };
        let instance = plane.instance;
        let is_shut_down = plane.is_shut_down;
        let Some(held) = plane.volumes[volume].as_mut() else { return };
        let is_busy = held.owed > 0 || held.opening.is_some() || held.is_unlocking;
        if held.release.is_none() || is_busy {
            return;
        }
        if held.generation.is_none() || is_shut_down {
            return self.is_released(node, volume);
        }
        held.is_unlocking = true;
        let (object, kind, asker) = (Object::Header(volume), Kind::Unlock, Asker::Volume(volume));
        let generation = 0;
        let epoch = 0;
        self.ceph.submit(Operation { instance, object, kind, generation, epoch, asker });
    }

    fn is_released(&mut self, node: usize, volume: usize) {
        let Some(plane) = self.plane(node) else { return };
        let number = plane.volumes[volume].take().and_then(|held| held.release);
        // The lock of a fenced process may be left, so its leader gets no answer.
        if plane.is_shut_down {
            return;
        }
        self.tell(|_| format!("node {node} has released volume {volume}"));
        self.nodes[node].released.extend(number.filter(|number| *number > 0));
    }

    /// Records that Ceph has refused an operation of this process, or its map has its fence.
    pub fn note_shut_down(&mut self, node: usize) {
        let Some(plane) = self.plane(node) else { return };
        if !std::mem::replace(&mut plane.is_shut_down, true) {
            self.tell(|_| format!("node {node} finds that it is fenced"));
            self.counts.found_fenced += 1;
            self.nodes[node].tell(Event::Fenced);
        }
    }

    /// Returns the instance of a node, also while it starts.
    pub fn instance(&self, node: usize) -> Option<Instance> {
        let place = &self.nodes[node];
        match (&place.plane, &place.job) {
            (Some(plane), _) => Some(plane.instance),
            (None, Some(super::shell::Job::Start { instance, .. })) => *instance,
            _ => None,
        }
    }

    pub fn send(&mut self, node: usize) -> bool {
        self.instance(node).is_some_and(|instance| self.ceph.send(instance))
    }

    /// Delivers an answer of Ceph to a node.
    pub fn take_reply(&mut self, node: usize) -> bool {
        let Some(instance) = self.instance(node) else { return false };
        let Some(reply) = self.ceph.instances[instance].replies.pop_front() else { return false };
        // A process that learns of a newer map must ask the monitors for it.
        let asks = self.is_calm() || self.random.one_in(6);
        if asks && !self.maps_are_late() {
            self.ceph.teach(instance, reply.epoch);
        }
        if reply.outcome == Outcome::Refused || self.ceph.knows_itself_fenced(instance) {
            self.note_shut_down(node);
        }
        let Reply { operation, outcome, .. } = reply;
        match operation.asker {
            Asker::Client { request, connection } => {
                let Object::Data(volume, _) = operation.object else { return true };
                self.client_answered(node, volume, (request, connection), outcome);
            }
            Asker::Volume(volume) => {
                self.volume_answered(node, volume, (operation.kind, outcome));
            }
            Asker::Door => self.storage_answers(node, outcome),
            Asker::Question(number) => _ = self.nodes[node].answers.insert(number, outcome),
        }
        true
    }

    fn client_answered(
        &mut self,
        node: usize,
        volume: usize,
        (request, connection): (u64, u64),
        outcome: Outcome,
    ) {
        let held = self.plane(node).and_then(|plane| plane.volumes[volume].as_mut());
        if let Some(held) = held {
            held.owed -= 1;
        }
        let value = match outcome {
            // The client gets the error that its volume is at another node.
            Outcome::Refused => {
                self.clients[volume].connection.take_if(|it| it.home == node);
                return;
            }
            Outcome::Value(value) => value,
            _ => 0,
        };
        let (is_new, broken) = self.clients[volume].answered(request, connection, value);
        self.counts.answered += u64::from(is_new);
        self.tell(|_| format!("client {volume}: request {request} is answered: {outcome:?}"));
        broken.into_iter().for_each(|broken| self.breaks(broken));
    }

    /// Delivers a sent operation to its OSD, even if its process has died.
    pub fn deliver(&mut self, instance: Instance, osd: usize) -> bool {
        let Some((reply, broken)) = self.ceph.deliver(instance, osd, self.now_ms) else {
            return false;
        };
        self.counts.refused += u64::from(reply.outcome == Outcome::Refused);
        self.tell(|_| format!("osd {osd}: {reply:?}"));
        broken.into_iter().for_each(|broken| self.breaks(broken));
        true
    }

    /// Applies a volume at a node. Returns whether that succeeded.
    pub fn apply(&mut self, node: usize, volume: usize) -> bool {
        let Some(plane) = self.plane(node).filter(|plane| !plane.is_closing) else { return false };
        match &plane.volumes[volume] {
            Some(held) => held.release.is_none(),
            None => {
                plane.volumes[volume] = Some(Held::default());
                self.tell(|_| format!("volume {volume} is applied at node {node}"));
                self.judge_holders();
                true
            }
        }
    }

    pub fn judge_answers(&mut self) {
        if self.clients.iter().any(|client| !client.under_way.is_empty()) {
            self.breaks(Broken::Unanswered);
        }
    }
}
