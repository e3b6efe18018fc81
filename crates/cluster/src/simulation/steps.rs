//! The random steps of a history and its quiet end, in which all nodes wake, no operation fails,
//! and clients read each object once more.

use super::super::membership::Event;
use super::ceph::{OSDS, VOLUMES};
use super::leader::{Call, Turn};
use super::world::{Term, World};

/// Maximum time of a step.
const STEP_MS_MAX: u64 = 60;
/// Time of a round of the quiet end.
const ROUND_MS: u64 = 50;
/// Number of rounds after which all requests must be answered.
const ROUNDS_MAX: u32 = 2_000;
/// Time between two renewals of a lease.
const RENEWAL_MS: u64 = 1_000;

impl World {
    /// Takes one step. Returns the calls that leaders make now.
    pub fn advance(&mut self) -> Vec<Turn> {
        if self.is_finished {
            return Vec::new();
        }
        if self.steps_left > 0 {
            self.steps_left -= 1;
            return self.step().into_iter().collect();
        }
        self.round()
    }

    fn step(&mut self) -> Option<Turn> {
        self.now_ms += self.random.below(STEP_MS_MAX);
        self.time_passes();
        let planned = self.follow_plan();
        if planned.is_some() {
            return planned;
        }
        let node = self.below(self.nodes.len());
        let volume = self.below(self.clients.len());
        match self.random.below(1_000) {
            0..770 => self.step_of_work(node, volume),
            770..840 => {
                let leads = |node: &usize| self.nodes[*node].term.is_some();
                let leaders: Vec<usize> = (0..self.nodes.len()).filter(leads).collect();
                let leader = if leaders.is_empty() { node } else { self.random.among(&leaders) };
                return self.turn(leader);
            }
            840..890 => self.commit(),
            890..893 => self.learn(node),
            893..956 => self.watch(node),
            956..962 => self.apply_delayed(),
            962..972 => self.step_of_a_process(node),
            972..984 => (0..self.clients.len()).for_each(|volume| self.give_up(volume)),
            984..990 => self.apply_late(node),
            990..995 => self.wake_sometimes(node),
            995..999 => self.lock_by_hand(volume),
            _ => {}
        }
        None
    }

    /// Advances the clock: leases end or are renewed, and deadlines pass.
    fn time_passes(&mut self) {
        for node in 0..self.nodes.len() {
            if !self.nodes[node].is_awake() {
                continue;
            }
            if self.now_ms - self.nodes[node].renewed_ms >= RENEWAL_MS {
                self.renew_leases(node);
            }
        }
        self.etcd.expire(self.now_ms);
        self.judge_holders();
    }

    /// Takes a step of normal work of clients, nodes and OSDs.
    fn step_of_work(&mut self, node: usize, volume: usize) {
        let is_awake = self.nodes[node].is_awake();
        let what = self.random.below(20);
        for _ in 0..=self.random.below(8) {
            match what {
                0..3 => self.ask_for_something(volume),
                3..6 => self.deliver_somewhere(),
                6..8 if is_awake => drop(self.dispatch(node, volume)),
                8..10 if is_awake => drop(self.send(node)),
                10..12 if is_awake => drop(self.take_reply(node)),
                12 if is_awake => drop(self.relay(node)),
                13..16 if is_awake => self.look_after_plane(node),
                16.. if self.nodes[node].is_awake() => self.shell(node),
                _ => {}
            }
        }
    }

    pub fn ask_for_something(&mut self, volume: usize) {
        if self.clients[volume].connection.is_none() {
            return self.connect(volume);
        }
        let Some(request) = self.clients[volume].begin(&mut self.random) else { return };
        self.tell(|_| format!("client {volume} asks {request:?}"));
        self.take_request(volume, request);
    }

    fn deliver_somewhere(&mut self) {
        let count = self.ceph.instances.len();
        if count == 0 {
            return;
        }
        // Wires of dead processes are chosen as often as those of living ones.
        let first = self.below(count);
        let osd = self.below(OSDS);
        for instance in (first..count).chain(0..first) {
            if !self.ceph.instances[instance].is_stalled[osd] && self.deliver(instance, osd) {
                return;
            }
        }
    }

    /// Advances the work for which a leader waits.
    pub fn hurry(&mut self, node: usize) {
        if !self.random.one_in(2) {
            return;
        }
        let Some(instance) = self.instance(node) else { return };
        self.send(node);
        let osd = self.below(OSDS);
        if !self.ceph.instances[instance].is_stalled[osd] {
            self.deliver(instance, osd);
        }
        self.take_reply(node);
    }

    /// Returns the call that the leader on a node makes now, if it makes one.
    fn turn(&mut self, node: usize) -> Option<Turn> {
        let what = self.random.below(20);
        let volume = self.below(self.clients.len());
        let to = self.below(self.nodes.len());
        self.begin_call(node, |term| match (what, term.unapplied.first()) {
            (10..16, Some(volume)) => Call::Apply(*volume),
            (16..18, _) => Call::ApplyUnapplied,
            (18, _) => Call::DrainNodes,
            (19, _) => Call::MoveTo(volume, to),
            _ => Call::CheckNodes,
        })
    }

    /// Begins a call of the leader on a node, unless one is running.
    pub fn begin_call(&mut self, node: usize, choose: impl FnOnce(&Term) -> Call) -> Option<Turn> {
        let place = &mut self.nodes[node];
        if !place.is_awake() {
            return None;
        }
        let process = place.process;
        let term = place.term.as_mut().filter(|term| !term.is_busy && !term.is_ending)?;
        let call = choose(term);
        term.is_busy = true;
        let question = term.question;
        let fleet = std::sync::Arc::clone(&term.fleet);
        Some(Turn { node, process, question, fleet, call })
    }

    fn step_of_a_process(&mut self, node: usize) {
        let place = &self.nodes[node];
        match (place.is_alive, place.paused_since_ms) {
            (false, _) => self.boot(node),
            (true, Some(_)) => self.wake_sometimes(node),
            (true, None) if self.is_on_plan() => {}
            (true, None) => match self.random.below(16) {
                0 | 1 => self.die(node),
                2 => self.stop(node),
                3..7 => self.pause(node),
                _ => self.stall(node),
            },
        }
    }

    /// May wake a node. Seldom wakes a home or a node with operations to send.
    fn wake_sometimes(&mut self, node: usize) {
        if self.is_held(node) {
            return;
        }
        let is_home = self.etcd.seen.homes.contains(&Some(node));
        let instance = self.instance(node);
        let has_more =
            instance.is_some_and(|instance| !self.ceph.instances[instance].queue.is_empty());
        let once_in = if is_home || has_more { 8 } else { 2 };
        if self.random.one_in(once_in) {
            self.wake(node);
        }
    }

    fn stop(&mut self, node: usize) {
        if !self.nodes[node].is_stopping {
            self.nodes[node].is_stopping = true;
            self.counts.stops += 1;
            self.nodes[node].tell(Event::StopRequested);
        }
    }

    /// Stops or resumes delivery from a process to an OSD.
    fn stall(&mut self, node: usize) {
        if let Some(instance) = self.instance(node) {
            let osd = self.below(OSDS);
            let is_stalled = &mut self.ceph.instances[instance].is_stalled[osd];
            *is_stalled = !*is_stalled;
        }
    }

    /// Locks an image as an operator does with `rbd`, or releases the lock.
    fn lock_by_hand(&mut self, volume: usize) {
        if self.operator.is_none() {
            self.operator = self.ceph.connect(0);
        }
        let Some(operator) = self.operator else { return };
        if self.ceph.has_lock(volume, operator) || self.random.one_in(2) {
            self.ceph.lock_by_hand(volume, operator);
            self.tell(|world| {
                let is_locked = world.ceph.has_lock(volume, operator);
                format!("volume {volume} is locked by hand: {is_locked}")
            });
        }
    }

    /// Ends a client's connection because a node on its way is silent, or seems to be.
    fn give_up(&mut self, volume: usize) {
        let Some(connection) = self.clients[volume].connection else { return };
        let nodes = [connection.front, connection.home];
        let is_silent = nodes.iter().any(|node| !self.nodes[*node].is_awake());
        if is_silent || self.random.one_in(8) {
            self.tell(|_| format!("client {volume} gives its connection up"));
            self.clients[volume].connection = None;
        }
    }

    /// Commits the pending changes in the monitors and answers the waiting questions.
    fn commit(&mut self) {
        let before = self.ceph.latest();
        let waiters = self.ceph.commit(self.now_ms);
        if self.ceph.latest() > before {
            self.tell(|world| format!("the monitors' map is {}", world.ceph.latest()));
        }
        for (node, number) in waiters {
            self.nodes[node].answers.insert(number, super::ceph::Outcome::Done);
        }
    }

    /// Gives an OSD or a node a newer map.
    fn learn(&mut self, node: usize) {
        if self.maps_are_late() {
            return;
        }
        let epoch = self.below(self.ceph.latest() + 1);
        if self.random.one_in(2) {
            let osd = self.below(OSDS);
            return self.ceph.teach_osd(osd, epoch);
        }
        if let Some(instance) = self.instance(node).filter(|_| self.nodes[node].is_awake()) {
            self.ceph.teach(instance, epoch);
            if self.ceph.knows_itself_fenced(instance) {
                self.note_shut_down(node);
            }
        }
    }

    /// Updates a node's copy of etcd.
    fn watch(&mut self, node: usize) {
        if !self.nodes[node].is_awake() || self.is_held(node) {
            return;
        }
        let seen = self.etcd.seen;
        let before = std::mem::replace(&mut self.nodes[node].view, seen);
        if before.leader != seen.leader {
            self.nodes[node].tell(Event::LeaderChanged);
        }
        let others = self.seen(node);
        self.nodes[node].tell(Event::ClusterSeen(others));
    }

    fn apply_delayed(&mut self) {
        if !self.etcd.delayed.is_empty() {
            let at = self.below(self.etcd.delayed.len());
            let late = self.etcd.delayed.swap_remove(at);
            self.tell(|_| format!("etcd is late with {:?}", late.then));
            self.counts.late_writes += u64::from(self.etcd.execute(&late).is_done);
        }
    }

    /// Executes a command that was in a node's socket when the connection broke.
    fn apply_late(&mut self, node: usize) {
        if !self.nodes[node].is_awake() {
            return;
        }
        let Some((volume, created)) = self.nodes[node].late.pop() else { return };
        let heard = self.nodes[node].heard.map(|(generation, _)| generation.0);
        if heard == Some(created) && self.apply(node, volume) {
            self.counts.late_commands += 1;
        }
    }

    fn begin_calm(&mut self) {
        self.tell(|_| "nothing fails any more".to_owned());
        self.directed = None;
        for volume in 0..self.clients.len() {
            let locked = self.operator.filter(|operator| self.ceph.has_lock(volume, *operator));
            locked.into_iter().for_each(|operator| self.ceph.lock_by_hand(volume, operator));
        }
        for node in 0..self.nodes.len() {
            self.wake(node);
            if !self.nodes[node].is_alive {
                self.boot(node);
            }
        }
        for rados in &mut self.ceph.instances {
            rados.is_stalled = [false; OSDS];
        }
    }

    /// Takes a round of the quiet end.
    fn round(&mut self) -> Vec<Turn> {
        if self.rounds == 0 {
            self.begin_calm();
        }
        self.rounds += 1;
        self.now_ms += ROUND_MS;
        self.time_passes();
        self.commit();
        self.apply_delayed();
        for node in 0..self.nodes.len() {
            if !self.nodes[node].is_alive {
                self.boot(node);
            }
            self.watch(node);
            self.apply_late(node);
            self.round_of(node);
        }
        for instance in 0..self.ceph.instances.len() {
            for osd in 0..OSDS {
                while !self.is_finished && self.deliver(instance, osd) {}
            }
        }
        for volume in 0..self.clients.len() {
            self.look_after_client(volume);
        }
        if self.is_all_answered() {
            self.is_finished = true;
        } else if self.rounds > ROUNDS_MAX {
            self.judge_answers();
            self.is_finished = true;
        }
        if self.is_finished {
            return Vec::new();
        }
        (0..self.nodes.len()).filter_map(|node| self.turn(node)).collect()
    }

    fn round_of(&mut self, node: usize) {
        for _ in 0..8 {
            if self.nodes[node].is_alive {
                self.shell(node);
            }
        }
        self.look_after_plane(node);
        for volume in 0..VOLUMES.min(self.clients.len()) {
            while self.dispatch(node, volume) {}
        }
        while self.relay(node) {}
        while self.send(node) {}
        while !self.is_finished && self.take_reply(node) {}
    }

    /// Reconnects a client whose connection does not lead to the volume's home.
    fn look_after_client(&mut self, volume: usize) {
        let home = self.etcd.seen.homes[volume];
        let is_lost = |connection: &mut super::client::Connection| Some(connection.home) != home;
        self.clients[volume].connection.take_if(is_lost);
        let is_old = self.rounds.is_multiple_of(100);
        self.clients[volume].connection.take_if(|_| is_old);
        if self.clients[volume].connection.is_none() {
            self.connect(volume);
        }
    }

    /// Once a client has all its answers, it reads its objects one after the other. Returns whether
    /// all have done so.
    fn is_all_answered(&mut self) -> bool {
        for volume in 0..self.clients.len() {
            let client = &mut self.clients[volume];
            let left = self.unread[volume];
            if client.under_way.is_empty()
                && left > 0
                && let Some(request) = client.read(left - 1)
            {
                self.unread[volume] -= 1;
                self.take_request(volume, request);
            }
        }
        let is_done = self.clients.iter().all(|client| client.under_way.is_empty());
        is_done && self.unread.iter().all(|left| *left == 0)
    }
}
