//! Random steps.

use super::Broken;
use super::ceph::{OSDS, Outcome, index};
use super::world::{World, id_of};
use evenkeel_core::fencing::{Input, Record, State};

/// The longest that a step takes.
const STEP_MS_MAX: u64 = 100;

impl World {
    /// Something happens.
    pub fn step(&mut self) {
        self.now_ms += self.random.below(STEP_MS_MAX);
        let node = self.random.below(self.nodes.len() as u64) as usize;
        let volume = self.random.below(self.clients.len() as u64) as usize;
        match self.random.below(1_000) {
            0..892 => self.step_of_work(node, volume),
            892..932 => self.commit(),
            932..936 => self.learn(node),
            936..956 => self.watch(node, volume),
            956..960 => self.apply_delayed(),
            960..972 => self.suspect(node, volume),
            972..980 => self.move_volume(node, volume),
            980..986 => self.step_of_a_process(node),
            986..989 => self.notice_gap(node),
            989..999 => self.give_up(volume),
            _ if self.random.one_in(4) && self.nodes[node].is_awake() => {
                self.feed(node, Input::StorageLost);
            }
            _ => {}
        }
        self.judge_servers();
    }

    /// Clients, nodes and OSDs do what they are there for.
    fn step_of_work(&mut self, node: usize, volume: usize) {
        let is_awake = self.nodes[node].is_awake();
        let what = self.random.below(16);
        for _ in 0..=self.random.below(8) {
            match what {
                0..4 => self.ask_for_something(volume),
                4..6 => self.deliver_somewhere(),
                6..8 if is_awake => drop(self.dispatch(node, volume)),
                8..10 if is_awake => drop(self.send(node)),
                10..12 if is_awake => drop(self.take_reply(node)),
                12 if is_awake => drop(self.relay(node, volume)),
                13..16 if is_awake => self.execute(node),
                _ => {}
            }
        }
    }

    fn step_of_a_process(&mut self, node: usize) {
        let place = &self.nodes[node];
        match (place.is_alive, place.paused_since_ms) {
            (false, _) => self.restart(node),
            (true, Some(_)) => self.wake(node),
            (true, None) if self.random.one_in(8) => self.die(node),
            (true, None) if self.random.one_in(2) => self.pause(node),
            (true, None) => self.stall(node),
        }
    }

    /// The network holds back what a process sends to an OSD, or lets it go on.
    fn stall(&mut self, node: usize) {
        if let Some(instance) = self.nodes[node].instance {
            let osd = self.random.below(OSDS as u64) as usize;
            let is_stalled = &mut self.ceph.instances[index(instance)].is_stalled[osd];
            *is_stalled = !*is_stalled;
        }
    }

    fn ask_for_something(&mut self, volume: usize) {
        if self.clients[volume].connection.is_none() {
            return self.find_home(volume);
        }
        let Some(request) = self.clients[volume].begin(&mut self.random) else { return };
        self.tell(|_| format!("client of volume {volume} asks {request:?}"));
        if let Some(connection) = &self.clients[volume].connection {
            let first = connection.path[0];
            self.nodes[first].queues[volume].push_back(request);
        }
    }

    /// The client connects to whoever has its door open. The last one may have been closed, too.
    pub fn find_home(&mut self, volume: usize) {
        let is_open = |node: &usize| {
            let place = &self.nodes[*node];
            place.is_awake() && place.serving[volume].is_some()
        };
        let open: Vec<usize> = (0..self.nodes.len()).filter(is_open).collect();
        if open.is_empty() {
            return;
        }
        let node = self.random.among(&open);
        let connection = self.clients[volume].connect(node);
        self.tell(|_| format!("client of volume {volume} connects to node {node}"));
        self.knock(node, volume, connection);
    }

    /// A node on its way is silent, or the client takes it for silent: it tries elsewhere.
    pub fn give_up(&mut self, volume: usize) {
        let Some(connection) = &self.clients[volume].connection else { return };
        let is_silent = connection.path.iter().any(|node| !self.nodes[*node].is_awake());
        if is_silent || self.random.one_in(8) {
            self.tell(|_| format!("client of volume {volume} gives its connection up"));
            self.clients[volume].connection = None;
        }
    }

    pub fn send(&mut self, node: usize) -> bool {
        let instance = self.nodes[node].instance;
        instance.is_some_and(|instance| self.ceph.send(instance))
    }

    fn deliver_somewhere(&mut self) {
        let count = self.ceph.instances.len();
        if count == 0 {
            return;
        }
        // Wires of the dead are looked at as often as those of the living.
        let first = self.random.below(count as u64) as usize;
        let osd = self.random.below(OSDS as u64) as usize;
        for index in (first..count).chain(0..first) {
            if !self.ceph.instances[index].is_stalled[osd] && self.deliver(index, osd) {
                return;
            }
        }
    }

    /// What was sent reaches its OSD, whatever has become of the sender.
    pub fn deliver(&mut self, index: usize, osd: usize) -> bool {
        let Some((reply, broken)) = self.ceph.deliver(index, osd, self.now_ms) else {
            return false;
        };
        self.counts.refused += u64::from(reply.outcome == Outcome::Refused);
        self.tell(|_| format!("osd {osd}: {reply:?}"));
        broken.into_iter().for_each(|broken| self.breaks(broken));
        true
    }

    /// The monitors propose, and tell who waited for it.
    pub fn commit(&mut self) {
        let before = self.ceph.latest();
        let waiters = self.ceph.commit(self.now_ms);
        if self.ceph.latest() > before {
            self.tell(|world| format!("the monitors' map is {}", world.ceph.latest()));
        }
        for (node, volume, ticket) in waiters {
            let answer = evenkeel_core::fencing::Answer::Done;
            let volume = Some(id_of(volume));
            self.nodes[node].told.push(Input::Answered { volume, ticket, answer });
        }
    }

    /// An OSD or a client hears of a map.
    fn learn(&mut self, node: usize) {
        let epoch = self.random.below(self.ceph.latest() as u64 + 1) as usize;
        if self.random.one_in(2) {
            let osd = self.random.below(OSDS as u64) as usize;
            return self.ceph.teach_osd(osd, epoch);
        }
        if let Some(instance) = self.nodes[node].instance
            && self.nodes[node].is_awake()
        {
            self.ceph.teach(instance, epoch);
            if self.ceph.knows_itself_fenced(instance) {
                self.find_fenced(node, instance);
            }
        }
    }

    /// A node's watch tells it of a record.
    pub fn watch(&mut self, node: usize, volume: usize) {
        if !self.nodes[node].is_awake() {
            return;
        }
        if let Some(record) = self.books.record(volume).cloned() {
            self.feed(node, Input::Seen { volume: id_of(volume), record });
        }
    }

    pub fn apply_delayed(&mut self) {
        if !self.books.delayed.is_empty() {
            let at = self.random.below(self.books.delayed.len() as u64) as usize;
            let delayed = self.books.delayed.swap_remove(at);
            self.tell(|_| format!("etcd is late with {:?}", delayed.next));
            drop(self.write(delayed));
        }
    }

    /// The volume's owner is suspected, rightly or not; sometimes two nodes act on it.
    fn suspect(&mut self, node: usize, volume: usize) {
        let owner = self.books.record(volume).map(|record| record.ownership.owner);
        let is_well = self
            .nodes
            .iter()
            .any(|place| place.is_awake() && owner.is_some() && place.rules.instance() == owner);
        if is_well && !self.random.one_in(10) {
            return;
        }
        let takers = if self.random.one_in(3) { 2 } else { 1 };
        for taker in node..node + takers {
            self.give(taker % self.nodes.len(), volume);
        }
    }

    pub fn give(&mut self, node: usize, volume: usize) {
        if self.nodes[node].is_awake() {
            let record = self.books.record(volume).cloned();
            self.feed(node, Input::Take { volume: id_of(volume), record });
        }
    }

    /// The leader begins a move, or calls one off.
    fn move_volume(&mut self, node: usize, volume: usize) {
        let Some(Record { ownership, revision }) = self.books.record(volume).cloned() else {
            return;
        };
        let to = self.nodes[node].rules.instance().filter(|to| *to != ownership.owner);
        let next = match (ownership.state, to) {
            (State::Moving { .. }, _) if self.random.one_in(8) => ownership.staying(),
            (_, Some(to)) => ownership.moving_to(to),
            _ => None,
        };
        if let Some(next) = next {
            self.tell(|_| format!("the leader writes {next:?}"));
            drop(self.books.write(volume, Some(revision), next));
        }
    }

    pub fn judge_answers(&mut self) {
        if self.clients.iter().any(|client| !client.under_way.is_empty()) {
            self.breaks(Broken::Unanswered);
        }
    }
}
