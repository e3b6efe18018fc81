//! Plans: sequences of events in which a broken rule of fencing does harm, and which are rare in
//! random histories.
//!
//! A plan waits for its situation. Then it prevents random events (a process stays paused, maps and
//! messages are late) and adds others (a client gives up, a leader moves a volume). Each of these
//! may happen at random as well. The rest of the history stays random.

use evenkeel_core::random::Random;

use super::ceph::{Instance, Kind, OSDS, Object, Operation, osd_of};
use super::leader::{Call, Turn};
use super::shell::Job;
use super::world::World;

/// Maximum number of random steps for which a plan waits for its situation.
const WAITING_STEPS_MAX: u64 = 1_000;
/// Maximum number of random steps for which a plan waits for a takeover, a move or a start.
const TAKEOVER_STEPS_MAX: u64 = 1_200;
/// Maximum number of random steps for which a plan waits for a write of a client that has returned.
const RETURN_STEPS_MAX: u64 = 60;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Plan {
    /// Operations of a fenced process arrive after the next home has executed the same ones.
    LateOperations,
    /// A client returns to a fenced home that does not know of its fence, while a write of the
    /// client waits at the next home.
    ComesBack,
    /// A leader pauses just before a command, and sends it after its successor has moved the
    /// volume.
    LateCommand,
    /// The registration of a killed process arrives after the next process of its node has searched
    /// for earlier ones.
    LateRegistration,
}

/// A paused home that loses its volume.
#[derive(Clone, Copy, Debug)]
struct Former {
    node: usize,
    instance: Instance,
    volume: usize,
}

/// The stage of a plan.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Its situation has not come yet.
    Waiting,
    /// A home is paused until the next one has executed the operations that the former has not
    /// sent.
    Overtaken(Former),
    /// A home is paused until a write of its client waits at the next one.
    Lost(Former),
    /// The next home is paused with this write, and the client is at the former home.
    Returned { former: Former, next: usize, object: usize, value: u64 },
    /// A leader is paused just before it applies a volume at the node `target`.
    Caught { leader: usize, target: usize, volume: usize },
    /// A process was killed while its registration was on the wire.
    Killed { node: usize, instance: Instance },
    /// The node has two registrations, and gets a volume.
    Doubled { node: usize },
}

/// The plan of a history.
#[derive(Clone, Copy, Debug)]
pub struct Directed {
    plan: Plan,
    stage: Stage,
    /// The number of remaining random steps at which the plan begins to wait for its situation.
    begins: u64,
    /// The number of remaining random steps at which its present stage ends.
    ends: u64,
}

impl Directed {
    /// Chooses the plan of a history with `steps` random steps. Some have none.
    pub fn choose(random: &mut Random, nodes: usize, steps: u64) -> Option<Self> {
        // If only the leader can take a volume over, it has the newest map already.
        let plans: &[Option<Plan>] = match nodes {
            2 => &[Some(Plan::ComesBack), Some(Plan::LateRegistration), None],
            _ => &[
                Some(Plan::LateOperations),
                Some(Plan::LateOperations),
                Some(Plan::ComesBack),
                Some(Plan::LateCommand),
                Some(Plan::LateRegistration),
                None,
            ],
        };
        let plan = random.among(plans)?;
        let begins = match plan {
            // All nodes start in the first steps.
            Plan::LateRegistration => steps,
            _ => steps / 2 + random.below(steps / 2),
        };
        let ends = begins.saturating_sub(WAITING_STEPS_MAX);
        Some(Self { plan, stage: Stage::Waiting, begins, ends })
    }
}

impl World {
    /// Returns whether a plan decides when a node wakes and which maps it gets.
    pub fn is_held(&self, node: usize) -> bool {
        self.directed.is_some_and(|directed| match directed.stage {
            Stage::Waiting | Stage::Killed { .. } | Stage::Doubled { .. } => false,
            Stage::Overtaken(former) | Stage::Lost(former) => former.node == node,
            Stage::Returned { former, next, .. } => former.node == node || next == node,
            Stage::Caught { leader, .. } => leader == node,
        })
    }

    /// Returns whether only the plan kills or pauses processes.
    pub fn is_on_plan(&self) -> bool {
        self.directed.is_some_and(|directed| self.steps_left <= directed.begins)
    }

    /// Returns whether OSDs and processes get newer maps only from requests and by waiting for
    /// them.
    pub fn maps_are_late(&self) -> bool {
        self.directed.is_some_and(|directed| {
            matches!(directed.stage, Stage::Overtaken(_) | Stage::Lost(_) | Stage::Returned { .. })
        })
    }

    /// Takes the plan's next step. Returns the call that a leader makes for it.
    pub fn follow_plan(&mut self) -> Option<Turn> {
        let directed = self.directed.filter(|_| self.is_on_plan())?;
        self.rouse();
        if self.steps_left <= directed.ends {
            self.end_plan();
            return None;
        }
        match directed.stage {
            Stage::Waiting => self.begin_plan(directed.plan),
            Stage::Killed { node, instance } => self.wait_for_next_process(node, instance),
            Stage::Doubled { node } => return self.wait_for_volume(node),
            Stage::Overtaken(former) => return self.wait_for_overtaking(former),
            Stage::Lost(former) => self.wait_for_write(former),
            Stage::Returned { former, next, object, value } => {
                self.come_back(former, next, (object, value));
            }
            Stage::Caught { leader, target, volume } => {
                return self.move_meanwhile(leader, target, volume);
            }
        }
        None
    }

    /// Starts and wakes the nodes that the plan does not hold, and connects them to all OSDs.
    fn rouse(&mut self) {
        for node in 0..self.nodes.len() {
            if self.is_held(node) || !self.random.one_in(32) {
                continue;
            }
            if !self.nodes[node].is_alive {
                self.boot(node);
            } else if !self.nodes[node].is_awake() {
                self.wake(node);
            } else if let Some(instance) = self.instance(node) {
                self.ceph.instances[instance].is_stalled = [false; OSDS];
            }
        }
    }

    fn enter(&mut self, stage: Stage, steps_max: u64) {
        self.tell(|_| format!("plan: {stage:?}"));
        let ends = self.steps_left.saturating_sub(steps_max);
        if let Some(directed) = &mut self.directed {
            directed.stage = stage;
            directed.ends = ends;
        }
    }

    /// Ends the plan. The rest of the history is random.
    fn end_plan(&mut self) {
        self.tell(|_| "the plan ends".to_owned());
        let instance = match self.directed.take().map(|directed| directed.stage) {
            Some(
                Stage::Overtaken(former) | Stage::Lost(former) | Stage::Returned { former, .. },
            ) => former.instance,
            Some(Stage::Killed { instance, .. }) => instance,
            _ => return,
        };
        self.ceph.instances[instance].is_stalled = [false; OSDS];
    }

    /// Begins a plan if its situation exists.
    fn begin_plan(&mut self, plan: Plan) {
        match plan {
            Plan::LateOperations | Plan::ComesBack => self.begin_takeover(plan),
            Plan::LateRegistration => self.kill_starting(),
            // A leader is paused when it sends a command.
            Plan::LateCommand => {}
        }
    }

    /// Pauses a home that has operations of its client to send.
    fn begin_takeover(&mut self, plan: Plan) {
        let Some(former) = (0..self.clients.len()).find_map(|volume| self.serving(volume)) else {
            return;
        };
        let Former { node, instance, volume } = former;
        while self.dispatch(node, volume) {}
        if self.ceph.waiting(instance, volume).next().is_none() {
            return;
        }
        if plan == Plan::LateOperations {
            // The operations wait on wires, or in the process.
            if self.random.one_in(2) {
                while self.send(node) {}
            }
            self.enter(Stage::Overtaken(former), TAKEOVER_STEPS_MAX);
        } else {
            self.enter(Stage::Lost(former), TAKEOVER_STEPS_MAX);
        }
        self.put_to_sleep(former);
    }

    /// Pauses a home, and stops the delivery of its sent operations.
    fn put_to_sleep(&mut self, Former { node, instance, .. }: Former) {
        self.ceph.instances[instance].is_stalled = [true; OSDS];
        self.pause(node);
    }

    /// Returns the home of a volume, if it has the volume open and a client.
    fn serving(&self, volume: usize) -> Option<Former> {
        let connection = self.clients[volume].connection.filter(|connection| connection.is_open)?;
        let node = connection.home;
        let place = &self.nodes[node];
        let plane = place.plane.as_ref().filter(|plane| !plane.is_shut_down)?;
        let is_open = plane.volumes[volume].as_ref()?.generation.is_some();
        let is_home = self.etcd.seen.homes[volume] == Some(node);
        let is_serving = is_open && is_home && place.is_awake() && place.serves(volume);
        is_serving.then_some(Former { node, instance: plane.instance, volume })
    }

    /// Ends the client's connection to a paused home.
    fn leave(&mut self, Former { node, volume, .. }: Former) {
        if self.random.one_in(8) {
            let connection = &mut self.clients[volume].connection;
            connection.take_if(|connection| connection.home == node || connection.front == node);
        }
    }

    /// Advances the work of the home to which a client is connected.
    fn hurry_home(&mut self, volume: usize) {
        let Some(connection) = self.clients[volume].connection else { return };
        if self.nodes[connection.home].is_awake() {
            self.look_after_plane(connection.home);
            self.hurry(connection.home);
        }
    }

    /// Delivers the former home's operations after the next home has executed them.
    fn wait_for_overtaking(&mut self, former: Former) -> Option<Turn> {
        let Former { node, instance, volume } = former;
        self.hurry_home(volume);
        // The OSD with `evenkeel.books` learns of the entry from the leader.
        let is_overtaken = |operation: &Operation| {
            osd_of(operation.object) != osd_of(Object::Books) && self.ceph.is_overtaken(operation)
        };
        if !self.ceph.waiting(instance, volume).any(is_overtaken) {
            let leader = self.etcd.seen.homes[volume].filter(|home| {
                *home != node && self.nodes[*home].term.is_some() && self.nodes.len() > 2
            });
            if leader.is_none() {
                self.leave(former);
            }
            return self.move_on_from(leader?, former);
        }
        self.counts.overtaken += 1;
        self.end_plan();
        if !self.ceph.instances[instance].queue.is_empty() {
            self.wake(node);
        }
        self.let_through(instance);
        None
    }

    /// Moves a volume from the leader, which has the newest map, to a node that may not have it.
    fn move_on_from(&mut self, leader: usize, former: Former) -> Option<Turn> {
        let is_free = |node: &usize| *node != leader && *node != former.node;
        let takers: Vec<usize> = (0..self.nodes.len()).filter(is_free).collect();
        let taker = self.random.among(&takers);
        if !self.random.one_in(4) {
            return None;
        }
        self.begin_call(leader, |_| Call::MoveTo(former.volume, taker))
    }

    /// Delivers the submitted operations of a process before the OSDs get a newer map.
    fn let_through(&mut self, instance: Instance) {
        self.ceph.instances[instance].is_stalled = [false; OSDS];
        while self.ceph.send(instance) {}
        for osd in 0..OSDS {
            while !self.is_finished && self.deliver(instance, osd) {}
        }
    }

    /// Pauses the next home when it has an unsent write for an OSD that does not know of the former
    /// home's fence.
    fn wait_for_write(&mut self, former: Former) {
        self.leave(former);
        let Former { node, instance, volume } = former;
        self.hurry_home(volume);
        let Some(connection) = self.clients[volume].connection else { return };
        let next = connection.home;
        if !connection.is_open || next == node || !self.nodes[next].is_awake() {
            return;
        }
        while self.dispatch(next, volume) {}
        let Some(own) = self.instance(next) else { return };
        let rados = &self.ceph.instances[own];
        let write = |operation: &Operation| match (operation.object, operation.kind) {
            (Object::Data(found, object), Kind::Write(value)) if found == volume => {
                let osd = osd_of(operation.object);
                let is_unheard = osd != osd_of(Object::Books)
                    && rados.wires[osd].is_empty()
                    && !self.ceph.refuses(osd, instance);
                is_unheard.then_some((object, value))
            }
            _ => None,
        };
        let Some((object, value)) = rados.queue.iter().find_map(write) else { return };
        self.counts.came_back += 1;
        self.pause(next);
        self.wake(node);
        // The former home cannot read its own registration.
        let stalled = &mut self.ceph.instances[instance].is_stalled;
        *stalled = [false; OSDS];
        stalled[osd_of(Object::Books)] = true;
        self.enter(Stage::Returned { former, next, object, value }, RETURN_STEPS_MAX);
    }

    /// Connects the client to the former home, and writes there if the home accepts it.
    fn come_back(&mut self, former: Former, next: usize, (object, value): (usize, u64)) {
        let Former { node, instance, volume } = former;
        if self.ceph.value(volume, object) > value {
            self.end_plan();
            self.wake(next);
            if let Some(own) = self.instance(next) {
                self.let_through(own);
            }
            return;
        }
        let connection = &mut self.clients[volume].connection;
        connection.take_if(|connection| connection.home != node);
        if connection.is_none() {
            self.connect_over(volume, node);
        }
        self.look_after_plane(node);
        while self.dispatch(node, volume) {}
        while self.send(node) {}
        for osd in (0..OSDS).filter(|osd| *osd != osd_of(Object::Books)) {
            while !self.is_finished && self.deliver(instance, osd) {}
        }
        while !self.is_finished && self.take_reply(node) {}
        if self.clients[volume].connection.is_some() {
            self.ask_for_something(volume);
        }
    }

    /// Pauses a leader that is about to apply a volume at the node `target`, if a plan waits for
    /// that. Returns whether it pauses the leader.
    pub fn catches(&mut self, leader: usize, target: usize, volume: usize) -> bool {
        let is_due = |directed: Directed| {
            directed.plan == Plan::LateCommand && matches!(directed.stage, Stage::Waiting)
        };
        let is_home = self.etcd.seen.homes[volume] == Some(target);
        let is_caught = self.directed.is_some_and(is_due)
            && self.is_on_plan()
            && is_home
            && leader != target
            && !self.is_calm()
            && self.nodes[leader].is_awake();
        if is_caught {
            self.pause(leader);
            self.enter(Stage::Caught { leader, target, volume }, TAKEOVER_STEPS_MAX);
        }
        is_caught
    }

    /// Moves the volume from the next leader, then wakes the former one.
    fn move_meanwhile(&mut self, leader: usize, target: usize, volume: usize) -> Option<Turn> {
        let nodes = 0..self.nodes.len();
        let others: Vec<usize> = nodes.filter(|node| *node != leader).collect();
        let serves = |node: &usize| *node != target && self.nodes[*node].serves(volume);
        if others.iter().any(serves) && !self.nodes[target].serves(volume) {
            let term = |node: &usize| self.nodes[*node].term.as_ref();
            // A call that waits for answers returns before the paused one.
            let is_busy = others.iter().filter_map(term).any(|term| term.is_busy);
            if !is_busy {
                self.counts.late_leaders += 1;
                self.end_plan();
                self.wake(leader);
            }
            return None;
        }
        if !self.random.one_in(4) {
            return None;
        }
        let next = others.iter().copied().find(|node| self.nodes[*node].term.is_some())?;
        let takers: Vec<usize> = others.into_iter().filter(|node| *node != target).collect();
        let taker = self.random.among(&takers);
        self.begin_call(next, |_| Call::MoveTo(volume, taker))
    }

    /// Kills a starting process whose registration has not arrived.
    fn kill_starting(&mut self) {
        let registers = |node: usize| {
            let instance = self.instance(node).filter(|_| self.nodes[node].is_awake())?;
            let rados = &self.ceph.instances[instance];
            let mut all = rados.queue.iter().chain(rados.wires.iter().flatten());
            let is_there = all.any(|operation| matches!(operation.kind, Kind::Register(_)));
            is_there.then_some((node, instance))
        };
        let Some((node, instance)) = (0..self.nodes.len()).find_map(registers) else { return };
        while self.send(node) {}
        self.ceph.instances[instance].is_stalled = [true; OSDS];
        self.die(node);
        self.enter(Stage::Killed { node, instance }, TAKEOVER_STEPS_MAX);
    }

    /// Delivers the registration of a process after the next process has searched for it.
    fn wait_for_next_process(&mut self, node: usize, instance: Instance) {
        let Some(Job::Start { steps: Some(_), .. }) = self.nodes[node].job else { return };
        self.counts.doubled += 1;
        self.let_through(instance);
        self.enter(Stage::Doubled { node }, TAKEOVER_STEPS_MAX);
    }

    /// Moves a volume to the node, and pauses the node when it serves the volume.
    fn wait_for_volume(&mut self, node: usize) -> Option<Turn> {
        let serves = |former: &Former| former.node == node;
        let volumes = 0..self.clients.len();
        if let Some(former) = volumes.filter_map(|volume| self.serving(volume)).find(serves) {
            self.enter(Stage::Overtaken(former), TAKEOVER_STEPS_MAX);
            self.put_to_sleep(former);
            return None;
        }
        if !self.random.one_in(8) {
            return None;
        }
        let leader = (0..self.nodes.len()).find(|other| self.nodes[*other].term.is_some())?;
        let volume = self.below(self.clients.len());
        self.begin_call(leader, |_| Call::MoveTo(volume, node))
    }
}
