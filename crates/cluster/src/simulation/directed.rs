//! Plans: rows of events in which a broken rule of fencing does harm, and which chance alone seldom
//! puts together.
//!
//! A plan waits for its situation. From then on it holds random events back (a process stays
//! asleep, maps and messages are late) and adds others (a client gives up, a leader moves a
//! volume). Each of these may happen at random as well. The rest of the history stays random.

use evenkeel_core::random::Random;

use super::ceph::{Instance, Kind, OSDS, Object, Operation, osd_of};
use super::leader::{Call, Turn};
use super::shell::Job;
use super::world::World;

/// Random steps after which a plan ends without its situation.
const WAITING_STEPS_MAX: u64 = 1_000;
/// Random steps after which a plan ends that waits for a takeover, a move or a start.
const TAKEOVER_STEPS_MAX: u64 = 1_200;
/// Random steps after which a plan ends without a write of a client that has come back.
const RETURN_STEPS_MAX: u64 = 60;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Plan {
    /// Operations of a fenced process arrive after the next home has executed the same ones.
    LateOperations,
    /// A client comes back to a home that is fenced and does not know it, while what the client has
    /// written waits at the next home.
    ComesBack,
    /// A leader sleeps just before a command, and sends it when its successor has moved the volume.
    LateCommand,
    /// The registration of a process that was killed arrives when the next process of its node has
    /// looked for earlier ones.
    LateRegistration,
}

/// A home that loses its volume in its sleep.
#[derive(Clone, Copy, Debug)]
struct Former {
    node: usize,
    instance: Instance,
    volume: usize,
}

/// How far a plan is.
#[derive(Clone, Copy, Debug)]
enum Stage {
    /// Its situation has not come yet.
    Waiting,
    /// A home sleeps until the next one has executed what the former has not sent.
    Overtaken(Former),
    /// A home sleeps until a write of its client waits at the next one.
    Lost(Former),
    /// The next home sleeps with this write, and the client is at the former home.
    Returned { former: Former, next: usize, object: usize, value: u64 },
    /// A leader sleeps just before it applies a volume at the node `target`.
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
    /// The random steps that are left when the plan begins to look for its situation.
    begins: u64,
    /// The random steps that are left when its present stage ends.
    ends: u64,
}

impl Directed {
    /// Chooses the plan of a history with `steps` random steps. Some have none.
    pub fn choose(random: &mut Random, nodes: usize, steps: u64) -> Option<Self> {
        // Where only the leader is left to take a volume over, it has the newest map already.
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
    /// Whether a plan decides when a node wakes, and what it sees.
    pub fn is_held(&self, node: usize) -> bool {
        self.directed.is_some_and(|directed| match directed.stage {
            Stage::Waiting | Stage::Killed { .. } | Stage::Doubled { .. } => false,
            Stage::Overtaken(former) | Stage::Lost(former) => former.node == node,
            Stage::Returned { former, next, .. } => former.node == node || next == node,
            Stage::Caught { leader, .. } => leader == node,
        })
    }

    /// Whether no process dies or falls asleep but by the plan.
    pub fn is_on_plan(&self) -> bool {
        self.directed.is_some_and(|directed| self.steps_left <= directed.begins)
    }

    /// Whether OSDs and processes learn of newer maps only from requests and by waiting for them.
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

    /// Nodes that the plan does not hold start, wake, and reach all OSDs.
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

    /// From now on the history is random.
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

    /// Begins a plan if its situation is there.
    fn begin_plan(&mut self, plan: Plan) {
        match plan {
            Plan::LateOperations | Plan::ComesBack => self.begin_takeover(plan),
            Plan::LateRegistration => self.kill_starting(),
            // A leader is put to sleep when it sends a command.
            Plan::LateCommand => {}
        }
    }

    /// Puts a home to sleep that has operations of its client to send.
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
            // They wait on wires, or in the process.
            if self.random.one_in(2) {
                while self.send(node) {}
            }
            self.enter(Stage::Overtaken(former), TAKEOVER_STEPS_MAX);
        } else {
            self.enter(Stage::Lost(former), TAKEOVER_STEPS_MAX);
        }
        self.put_to_sleep(former);
    }

    /// Pauses a home, and nothing that it has sent arrives.
    fn put_to_sleep(&mut self, Former { node, instance, .. }: Former) {
        self.ceph.instances[instance].is_stalled = [true; OSDS];
        self.pause(node);
    }

    /// The home of a volume that has it open, with a client.
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

    /// The client takes a home that sleeps for lost.
    fn leave(&mut self, Former { node, volume, .. }: Former) {
        if self.random.one_in(8) {
            let connection = &mut self.clients[volume].connection;
            connection.take_if(|connection| connection.home == node || connection.front == node);
        }
    }

    /// The home that a client is connected to does its work.
    fn hurry_home(&mut self, volume: usize) {
        let Some(connection) = self.clients[volume].connection else { return };
        if self.nodes[connection.home].is_awake() {
            self.look_after_plane(connection.home);
            self.hurry(connection.home);
        }
    }

    /// Lets the former home's operations arrive when the next one has executed the same.
    fn wait_for_overtaking(&mut self, former: Former) -> Option<Turn> {
        let Former { node, instance, volume } = former;
        self.hurry_home(volume);
        // The device with the books hears of the entry from the leader.
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

    /// What a process has submitted arrives before the OSDs hear of a newer map.
    fn let_through(&mut self, instance: Instance) {
        self.ceph.instances[instance].is_stalled = [false; OSDS];
        while self.ceph.send(instance) {}
        for osd in 0..OSDS {
            while !self.is_finished && self.deliver(instance, osd) {}
        }
    }

    /// Puts the next home to sleep when it has a write that it has not sent, for an OSD that has
    /// not heard of the former home's fence.
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
        // It does not get to read its own registration.
        let stalled = &mut self.ceph.instances[instance].is_stalled;
        *stalled = [false; OSDS];
        stalled[osd_of(Object::Books)] = true;
        self.enter(Stage::Returned { former, next, object, value }, RETURN_STEPS_MAX);
    }

    /// The client asks the former home to let it in, and writes there if it does.
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

    /// Puts a leader to sleep that is about to apply a volume at the node `target`, if a plan waits
    /// for that. Returns whether it does.
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

    /// The next leader moves the volume, and the former one wakes.
    fn move_meanwhile(&mut self, leader: usize, target: usize, volume: usize) -> Option<Turn> {
        let nodes = 0..self.nodes.len();
        let others: Vec<usize> = nodes.filter(|node| *node != leader).collect();
        let serves = |node: &usize| *node != target && self.nodes[*node].serves(volume);
        if others.iter().any(serves) && !self.nodes[target].serves(volume) {
            let term = |node: &usize| self.nodes[*node].term.as_ref();
            // A call that waits for its answers returns before the one that was caught.
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

    /// Kills a process that starts, and whose registration is on its way.
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

    /// The registration of a process arrives when the next one has looked for it.
    fn wait_for_next_process(&mut self, node: usize, instance: Instance) {
        let Some(Job::Start { steps: Some(_), .. }) = self.nodes[node].job else { return };
        self.counts.doubled += 1;
        self.let_through(instance);
        self.enter(Stage::Doubled { node }, TAKEOVER_STEPS_MAX);
    }

    /// A volume moves to the node, which falls asleep when it serves it.
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
