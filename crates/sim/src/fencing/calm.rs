//! The end of a history: what is paused wakes, nothing dies any more, and somebody looks after
//! volumes that nobody serves. Every request must be answered then.

use super::ceph::{OBJECTS, OSDS};
use super::world::World;
use evenkeel_core::fencing::{Record, State};

/// Rounds after which all must be answered. A takeover takes some twenty.
const ROUNDS_MAX: u32 = 1_000;
/// Rounds without a server after which a volume is given to a node.
const PATIENCE: u32 = 25;
/// The same while its owner is up. Whoever takes it from a taker that is well fences that one, with
/// all its volumes, and has one more to fence: with less patience no volume is ever served.
const PATIENCE_WITH_OWNER: u32 = 200;

impl World {
    /// Runs until all is answered; what each object holds is read as well.
    pub fn calm_down(&mut self) {
        if !self.nodes.iter().any(|node| node.is_alive) {
            return;
        }
        for node in 0..self.nodes.len() {
            self.wake(node);
        }
        let mut unserved = [0; 2];
        let mut unread = vec![OBJECTS; self.clients.len()];
        for _ in 0..ROUNDS_MAX {
            self.round(&mut unserved);
            let all_answered = self.read_all(&mut unread);
            if all_answered || self.is_over() {
                return;
            }
        }
        self.judge_answers();
    }

    fn round(&mut self, unserved: &mut [u32; 2]) {
        self.now_ms += 100;
        self.commit();
        self.apply_delayed();
        for node in 0..self.nodes.len() {
            if self.nodes[node].is_awake() {
                self.notice_gap(node);
                self.turn(node);
            }
        }
        for index in 0..self.ceph.instances.len() {
            for osd in 0..OSDS {
                while !self.is_over() && self.deliver(index, osd) {}
            }
        }
        for (volume, rounds) in unserved.iter_mut().enumerate().take(self.clients.len()) {
            self.look_after(volume, rounds);
        }
        self.judge_servers();
    }

    fn turn(&mut self, node: usize) {
        for volume in 0..self.clients.len() {
            self.watch(node, volume);
            while self.dispatch(node, volume) || self.relay(node, volume) {}
        }
        for _ in 0..self.nodes[node].orders.len().max(1) {
            self.execute(node);
        }
        while self.send(node) {}
        while !self.is_over() && self.take_reply(node) {}
    }

    /// What the leader does for a volume, and its client.
    fn look_after(&mut self, volume: usize, unserved: &mut u32) {
        let home = self.servers(volume).next();
        let connection = &mut self.clients[volume].connection;
        if connection.as_ref().is_some_and(|it| it.path.last().copied() != home) && home.is_some() {
            *connection = None;
        }
        if connection.is_none() {
            self.find_home(volume);
        }
        *unserved = if home.is_some() { 0 } else { *unserved + 1 };
        let owner = self.books.record(volume).map(|record| record.ownership.owner);
        let is_up = self.nodes.iter().any(|it| owner.is_some() && it.rules.instance() == owner);
        if *unserved < if is_up { PATIENCE_WITH_OWNER } else { PATIENCE } {
            return;
        }
        *unserved = 0;
        if let Some(Record { ownership, revision }) = self.books.record(volume).cloned()
            && matches!(ownership.state, State::Moving { .. })
            && let Some(next) = ownership.staying()
        {
            drop(self.books.write(volume, Some(revision), next));
        }
        let up = |node: &usize| {
            self.nodes[*node].is_awake() && self.nodes[*node].rules.instance().is_some()
        };
        let up: Vec<usize> = (0..self.nodes.len()).filter(up).collect();
        if !up.is_empty() {
            let node = self.random.among(&up);
            self.give(node, volume);
        }
    }

    /// Once a client has all its answers, it reads its objects one after the other. Returns whether
    /// all have done so.
    fn read_all(&mut self, unread: &mut [usize]) -> bool {
        for (volume, left) in unread.iter_mut().enumerate() {
            let client = &mut self.clients[volume];
            if !client.under_way.is_empty() || *left == 0 {
                continue;
            }
            let Some(home) = client.connection.as_ref().map(|it| it.path[0]) else { continue };
            if let Some(request) = client.read(*left - 1) {
                *left -= 1;
                self.nodes[home].queues[volume].push_back(request);
            }
        }
        let is_done = |client: &super::client::Client| client.under_way.is_empty();
        unread.iter().all(|left| *left == 0) && self.clients.iter().all(is_done)
    }
}
