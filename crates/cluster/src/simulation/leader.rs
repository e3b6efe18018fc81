//! The leader: the real fleet over the models of nodes, etcd and the store.
//!
//! A call of the fleet sends several requests to etcd, Ceph and nodes. The history continues while
//! the call waits for an answer, so a leader may pause, die or be replaced between two requests.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use evenkeel_control::nodes::{Nodes, State};
use evenkeel_core::fencing::NodeId;
use evenkeel_core::fencing::order::{self, FenceStep};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::Pacing;
use evenkeel_core::random::Random;
use evenkeel_core::units::ByteCount;
use evenkeel_wire::agent::session::{self, Leader, LeaderGeneration};
use evenkeel_wire::agent::{Agent, Command, CreditReport, Failed, FailedKind, Reply, VolumeState};

use super::super::fleet::{Cluster, Fleet, Node, Standing};
use super::super::homes::{Changes, Writer};
use super::super::membership::Question;
use super::super::nodes::{Inst, Member};
use super::ceph::{Instance, Kind, Outcome, Pending, VOLUMES, instances_of};
use super::etcd::InstKey;
use super::world::{World, number_of};
use super::{BLOCKLIST_EXPIRE_MS, MONITOR_FAILS};
use crate::etcd::client::EtcdError;
use crate::etcd::keys::Keys;
use crate::etcd::upkeep::MemberSeen;

/// Maximum number of steps of the history for which a call waits for an answer.
const WAIT_MAX: u32 = 2_000;
/// Time after which the connection to a silent node counts as broken.
const SILENCE_MS: u64 = 2_000;

/// Returns the id of a volume of the model.
pub fn id_of(volume: usize) -> VolumeId {
    VolumeId::from_bits(volume as u128)
}

fn volume_of(id: VolumeId) -> usize {
    usize::try_from(id.bits()).unwrap()
}

fn node_of(number: NodeId) -> usize {
    usize::try_from(number.0).unwrap() - 1
}

/// A history that nested callers advance.
pub struct Sim(Mutex<World>);

impl Sim {
    pub fn new(random: Random, steps: u64, is_told: bool) -> Arc<Self> {
        Arc::new_cyclic(|sim| Self(Mutex::new(World::new(sim.clone(), random, steps, is_told))))
    }

    pub fn world(&self) -> MutexGuard<'_, World> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Advances the history by one step.
    pub fn advance(self: &Arc<Self>) {
        let turns = self.world().advance();
        for turn in turns {
            turn.run(self);
        }
    }
}

/// A call of a fleet by its control plane.
#[derive(Clone, Copy, Debug)]
pub enum Call {
    CheckNodes,
    ApplyUnapplied,
    DrainNodes,
    /// The control plane applies the state of a volume in its journal.
    Apply(usize),
    MoveTo(usize, usize),
}

/// A call that a leader makes.
pub struct Turn {
    pub node: usize,
    pub process: u64,
    pub question: Question,
    pub fleet: Arc<Fleet>,
    pub call: Call,
}

impl Turn {
    fn run(self, sim: &Arc<Sim>) {
        let Self { node, process, question, fleet, call } = self;
        let now = sim.world().now();
        let before = fleet.counts();
        let is_done = match call {
            Call::CheckNodes => {
                fleet.check_nodes_at(now);
                true
            }
            Call::ApplyUnapplied => {
                fleet.apply_unapplied();
                true
            }
            Call::DrainNodes => {
                fleet.drain_nodes();
                true
            }
            Call::Apply(volume) => {
                matches!(fleet.call(Command::Apply(state(volume))), Reply::Done)
            }
            Call::MoveTo(volume, to) => fleet.move_to(id_of(volume), number_of(to)).is_ok(),
        };
        let after = fleet.counts();
        let mut world = sim.world();
        world.tell(|_| format!("node {node} has done {call:?}: {is_done}"));
        world.counts.moves += after.moves - before.moves;
        world.counts.takeovers += after.takeovers - before.takeovers;
        world.counts.fences += after.fences - before.fences;
        if !world.lives(node, process) {
            return;
        }
        let term = world.nodes[node].term.as_mut().filter(|term| term.question == question);
        let Some(term) = term else { return };
        term.is_busy = false;
        if let (Call::Apply(volume), true) = (call, is_done) {
            term.unapplied.remove(&volume);
        }
    }
}

fn state(volume: usize) -> VolumeState {
    VolumeState {
        id: id_of(volume),
        size: ByteCount::from_gib(1),
        pacing: Pacing::UNLIMITED,
        balances: Default::default(),
        unleased: Default::default(),
        reserved: Default::default(),
        attachments: Vec::new(),
        is_encrypted: false,
    }
}

/// The process of a fleet.
#[derive(Clone)]
struct Seat {
    sim: Arc<Sim>,
    node: usize,
    process: u64,
    /// The revision of etcd that created its key.
    created: u64,
    /// Its connection to Ceph.
    instance: Instance,
}

impl Seat {
    /// Waits until `ready` returns a value. Fails if the process has ended meanwhile.
    fn wait<T>(
        &self,
        mut ready: impl FnMut(&mut World) -> Option<Result<T, String>>,
    ) -> Result<T, String> {
        let mut waits = 0;
        loop {
            {
                let mut world = self.sim.world();
                if !world.lives(self.node, self.process) || world.is_finished {
                    return Err("the process has ended".to_owned());
                }
                if world.nodes[self.node].is_awake() {
                    if let Some(found) = ready(&mut world) {
                        return found;
                    }
                    waits += 1;
                    world.hurry(self.node);
                }
            }
            if waits > WAIT_MAX {
                return Err("no answer".to_owned());
            }
            self.sim.advance();
        }
    }

    /// May advance the history before the next request.
    fn pass(&self) -> Result<(), String> {
        let mut left = {
            let mut world = self.sim.world();
            if world.is_calm() || !world.random.one_in(3) { 0 } else { world.below(12) }
        };
        self.wait(|_| {
            left = left.saturating_sub(1);
            (left == 0).then_some(Ok(()))
        })
    }

    /// Reads or changes the object `evenkeel.books`.
    fn ask(&self, kind: Kind) -> Result<Outcome, String> {
        self.pass()?;
        let number = {
            let mut world = self.sim.world();
            let number = world.number();
            world.ask_books(self.instance, kind, number);
            number
        };
        self.answer(number)
    }

    fn answer(&self, number: u64) -> Result<Outcome, String> {
        self.wait(|world| {
            if world.ceph.instances[self.instance].is_over {
                return Some(Err("the store is closed".to_owned()));
            }
            match world.nodes[self.node].answers.remove(&number)? {
                Outcome::Refused => Some(Err("this process is fenced".to_owned())),
                outcome => Some(Ok(outcome)),
            }
        })
    }

    fn execute(&self, step: FenceStep<Instance>) -> Result<(), String> {
        match step {
            FenceStep::Blocklist(instance) => self.enter(instance),
            FenceStep::Note(instance) => self.ask(Kind::Note(instance)).map(drop),
            FenceStep::WaitForLatestMap => {
                self.pass()?;
                let mut world = self.sim.world();
                let latest = world.ceph.latest();
                world.ceph.teach(self.instance, latest);
                Ok(())
            }
            FenceStep::Register(_) => Err("a node that fences does not register".to_owned()),
        }
    }

    /// Puts an instance on the blocklist of the monitors.
    fn enter(&self, instance: Instance) -> Result<(), String> {
        self.pass()?;
        let (number, is_lost) = {
            let mut world = self.sim.world();
            let number = world.number();
            let is_lost = world.fails(MONITOR_FAILS);
            let expires_ms = world.now_ms + BLOCKLIST_EXPIRE_MS;
            let waiter = Some((self.node, number)).filter(|_| !is_lost);
            if !is_lost || world.random.one_in(2) {
                world.ceph.pending.push(Pending { instance, expires_ms, waiter });
            }
            (number, is_lost)
        };
        if is_lost {
            Err("the monitors do not answer".to_owned())
        } else {
            self.answer(number).map(drop)
        }
    }

    fn leader(&self) -> (LeaderGeneration, Leader) {
        let leader = Leader { node: number_of(self.node), incarnation: self.process };
        (LeaderGeneration(self.created), leader)
    }
}

/// The cluster of the fleet.
struct Around {
    seat: Seat,
    homes: Writer,
}

impl Cluster for Around {
    fn members(&self) -> Vec<Member> {
        let world = self.seat.sim.world();
        let view = world.nodes[self.seat.node].view;
        let member = |node: usize| Member {
            name: node.to_string(),
            number: number_of(node),
            state: State::Up,
            inst: view.insts[node].map(inst),
            last: view.lasts[node].map(inst),
        };
        (0..world.nodes.len()).map(member).collect()
    }

    fn connect(&self, member: &Member) -> Result<Arc<dyn Node>, String> {
        let inst = member.inst.as_ref().or(member.last.as_ref());
        let inst = inst.ok_or("it does not live")?;
        let instance: Instance = inst.store.parse().unwrap();
        if self.seat.ask(Kind::IsFenced(instance))? == Outcome::Is(true) {
            return Err("its process was fenced".to_owned());
        }
        let (accepted, is_closed) = Default::default();
        let node = node_of(member.number);
        Ok(Arc::new(Link { seat: self.seat.clone(), node, accepted, is_closed }))
    }

    fn fence(&self, node: &str) -> Result<(), String> {
        let node: usize = node.parse().unwrap();
        self.seat.pass()?;
        {
            let mut world = self.seat.sim.world();
            let now_ms = world.now_ms;
            world.etcd.expire(now_ms);
            let lives = world.etcd.seen.insts[node].is_some();
            if world.fails(20) || lives || !world.etcd.leads(self.seat.created) {
                return Err("it is alive, or this node is not the leader".to_owned());
            }
        }
        let Outcome::Instances(bits) = self.seat.ask(Kind::Registered(node))? else {
            return Err("the books cannot be read".to_owned());
        };
        let steps = order::fence(&instances_of(bits), &self.seat.instance);
        steps.into_iter().try_for_each(|step| self.seat.execute(step))
    }

    fn store_homes(&self, changes: &Changes) -> Result<(), String> {
        let Self { seat, homes } = self;
        let written = homes.write_by(changes, |transaction| {
            let away = |text: String| EtcdError::Options(text);
            seat.pass().map_err(away)?;
            let mut world = seat.sim.world();
            let now_ms = world.now_ms;
            world.etcd.expire(now_ms);
            world.tell(|_| format!("node {} writes {:?}", seat.node, transaction.then));
            if !world.fails(10) {
                return Ok(world.etcd.execute(transaction));
            }
            match world.random.below(3) {
                0 => drop(world.etcd.execute(transaction)),
                1 => world.etcd.delayed.push(transaction.clone()),
                _ => {}
            }
            Err(away("etcd does not answer".to_owned()))
        });
        written.map_err(|error| error.to_string())
    }

    fn set_state(&self, _: &str, _: State) -> Result<bool, String> {
        Ok(false)
    }

    fn etcd(&self) -> Vec<MemberSeen> {
        Vec::new()
    }

    fn here(&self) -> NodeId {
        number_of(self.seat.node)
    }

    fn term(&self) -> u64 {
        self.seat.created
    }
}

fn inst(key: InstKey) -> Inst {
    let at = ([127, 0, 0, 1], u16::from(key.is_reachable)).into();
    Inst {
        incarnation: key.incarnation.to_string(),
        store: key.instance.to_string(),
        agent: at,
        relay: at,
        api: at,
        nbd: Vec::new(),
        is_leaving: key.is_leaving,
        version: String::new(),
        settings: BTreeMap::new(),
    }
}

/// A connection to a node's agent.
struct Link {
    seat: Seat,
    node: usize,
    accepted: Mutex<Option<u128>>,
    is_closed: AtomicBool,
}

impl Link {
    /// Returns the state of the connection, after an attempt to connect if it is broken.
    fn look(&self, world: &mut World) -> Standing {
        let away = |why: &str| Standing::Away(why.to_owned());
        if self.is_closed.load(Ordering::Acquire) {
            return away("it is closed");
        }
        let now_ms = world.now_ms;
        let leads = world.etcd.leads(self.seat.created);
        let place = &mut world.nodes[self.node];
        let is_silent = place.paused_since_ms.is_some_and(|since| now_ms - since > SILENCE_MS);
        let plane = place.plane.as_ref().filter(|plane| !plane.is_closing);
        if plane.is_none() || !place.is_alive || is_silent {
            return away("no answer");
        }
        let said = self.seat.leader();
        if let Err(verdict) = session::admit(place.heard, said) {
            return Standing::Deposed(format!("{verdict:?}"));
        }
        let Some(plane) = &mut place.plane else { return away("no answer") };
        // Each process of a node asks etcd about a generation that it has not heard.
        if plane.confirmed != Some(said.0) && !leads {
            return away("it is not known whether this node leads");
        }
        plane.confirmed = Some(said.0);
        place.heard = Some(said);
        // A new session: commands of the previous one are not executed any more.
        if place.paused_since_ms.is_none() {
            place.late.clear();
        }
        let incarnation = u128::from(plane.incarnation);
        let mut accepted = self.accepted.lock().unwrap();
        if *accepted.get_or_insert(incarnation) == incarnation {
            Standing::Up
        } else {
            Standing::New(incarnation)
        }
    }

    /// Returns an error if the command does not reach the node.
    fn reach(&self, command: &Command) -> Result<(), Failed> {
        self.seat.pass().map_err(down)?;
        if let Command::Apply(state) = command {
            let volume = volume_of(state.id);
            if self.seat.sim.world().catches(self.seat.node, self.node, volume) {
                self.seat.wait(|_| Some(Ok(()))).map_err(down)?;
            }
        }
        let mut world = self.seat.sim.world();
        if world.fails(25) {
            return Err(unanswered("the connection broke"));
        }
        match self.look(&mut world) {
            Standing::Up => Ok(()),
            _ => Err(down("the node is away".to_owned())),
        }
    }

    fn execute(&self, command: Command) -> Result<Reply, Failed> {
        self.reach(&command)?;
        match command {
            Command::Apply(state) => {
                if let Err(failed) = self.begin() {
                    // It is in the node's socket.
                    let mut world = self.seat.sim.world();
                    let late = (volume_of(state.id), self.seat.created);
                    world.nodes[self.node].late.push(late);
                    return Err(failed);
                }
                let mut world = self.seat.sim.world();
                if world.apply(self.node, volume_of(state.id)) {
                    Ok(Reply::Done)
                } else {
                    Err(unanswered("the volume is being released"))
                }
            }
            Command::Release(id) => self.release(volume_of(id)),
            command => panic!("{command:?} is not part of the model"),
        }
    }

    /// Waits until the node executes the command.
    fn begin(&self) -> Result<(), Failed> {
        let begun = self.seat.wait(|world| match self.look(world) {
            Standing::Up => world.nodes[self.node].is_awake().then_some(Ok(())),
            _ => Some(Err("the connection broke".to_owned())),
        });
        begun.map_err(|why| unanswered(&why))
    }

    fn release(&self, volume: usize) -> Result<Reply, Failed> {
        self.begin()?;
        let (number, incarnation) = {
            let mut world = self.seat.sim.world();
            let number = world.number();
            let Some(plane) = world.plane(self.node) else {
                return Err(unanswered("the node has closed"));
            };
            if plane.is_shut_down {
                return Err(unanswered("the node is fenced"));
            }
            let incarnation = plane.incarnation;
            let Some(held) = &plane.volumes[volume] else {
                return Ok(Reply::Balances(CreditReport::default()));
            };
            if held.release.is_some() {
                return Err(unanswered("the volume is being released"));
            }
            world.begin_release(self.node, volume, number);
            (number, incarnation)
        };
        let done = self.seat.wait(|world| {
            if world.nodes[self.node].released.remove(&number) {
                return Some(Ok(()));
            }
            let is_closed = self.is_closed.load(Ordering::Acquire);
            let is_there =
                world.plane(self.node).is_some_and(|plane| plane.incarnation == incarnation);
            (!is_there || is_closed).then(|| Err("the connection broke".to_owned()))
        });
        done.map_err(|why| unanswered(&why))?;
        self.seat.sim.world().counts.releases += 1;
        Ok(Reply::Balances(CreditReport::default()))
    }
}

impl Agent for Link {
    fn call(&self, command: Command) -> Reply {
        let text = format!("{command:?}");
        let reply = self.execute(command).unwrap_or_else(Reply::Failed);
        let mut world = self.seat.sim.world();
        world.tell(|_| format!("node {}: {text:.60} -> {reply:?}", self.node));
        if !matches!(reply, Reply::Failed(_)) && world.fails(25) {
            return Reply::Failed(unanswered("the connection broke"));
        }
        reply
    }
}

impl Node for Link {
    fn standing(&self) -> Standing {
        let mut world = self.seat.sim.world();
        if !world.lives(self.seat.node, self.seat.process) {
            return Standing::Away("the leader has ended".to_owned());
        }
        self.look(&mut world)
    }

    fn accept(&self, incarnation: u128) {
        *self.accepted.lock().unwrap() = Some(incarnation);
    }

    fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }
}

fn down(message: String) -> Failed {
    Failed { kind: FailedKind::Down, message }
}

fn unanswered(message: &str) -> Failed {
    Failed { kind: FailedKind::Unanswered, message: message.to_owned() }
}

impl World {
    /// Creates the fleet of a leader, with the homes in etcd.
    pub fn fleet(
        &mut self,
        node: usize,
        created: u64,
        homes: [Option<usize>; VOLUMES],
    ) -> Arc<Fleet> {
        let process = self.nodes[node].process;
        let instance = self.instance(node).expect("a node that leads has started");
        let sim = self.sim.upgrade().expect("a history has its owner");
        let seat = Seat { sim, node, process, created, instance };
        let writer = Writer::new(Keys::of("histories").expect("it is a name"), created);
        let around = Around { seat, homes: writer };
        let homes = homes.iter().enumerate();
        let homes: BTreeMap<VolumeId, NodeId> =
            homes.filter_map(|(id, home)| Some((id_of(id), number_of((*home)?)))).collect();
        let fleet = Fleet::new(Arc::new(around), homes);
        let volumes = (0..self.clients.len()).map(|volume| (id_of(volume), Vec::new()));
        fleet.expect(volumes.collect());
        Arc::new(fleet)
    }
}
