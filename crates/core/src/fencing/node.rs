//! A node: the life of its instance, and its volumes.

use super::step::{Alarm, Answer, Fault, Order, Step, Ticket};
use super::volume::{Desk, Volume, delay_after};
use super::{ATTEMPTS_QUIET_MAX, GAP_MAX, Generation, Instance, NodeId, Record, State};
use crate::ids::VolumeId;
use crate::time::Duration;
use alloc::collections::BTreeMap;
use alloc::vec::Vec;

/// Volumes that a node knows: as many as a core carries.
pub const NODE_VOLUMES_MAX: usize = crate::limits::VOLUMES_PER_CORE_MAX;

/// What a node learns.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Input {
    /// The process has started, and holds the lock of its data folder.
    Start,
    /// An order was executed.
    Answered {
        /// The order's volume.
        volume: Option<VolumeId>,
        /// The order's ticket.
        ticket: Ticket,
        /// How it went.
        answer: Answer,
    },
    /// An I/O of a client has failed.
    IoFailed {
        /// The instance that it was submitted to.
        instance: Instance,
        /// Why.
        fault: Fault,
    },
    /// `CLOCK_BOOTTIME` between two turns of a reactor.
    Gap(Duration),
    /// The watch, or a read of all records at a start, tells of a volume's record.
    Seen {
        /// Whose.
        volume: VolumeId,
        /// The record.
        record: Record,
    },
    /// The node is to have the volume: its owner is suspected, has abandoned it, or there is none.
    Take {
        /// Which.
        volume: VolumeId,
        /// Its record as it was read.
        record: Option<Record>,
    },
    /// Ceph does not answer, and others seem to reach it.
    StorageLost,
}

/// Where the node's instance is in its life.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Life {
    Off,
    Connecting,
    Registering,
    Up(Instance),
    Closing,
}

/// A node of the cluster.
pub struct Node {
    id: NodeId,
    life: Life,
    volumes: BTreeMap<VolumeId, Volume>,
    /// The last ticket given out.
    tickets: u64,
    awaiting: Option<Ticket>,
    attempts: u32,
    /// The last ticket that was given out before the present instance was registered.
    before: u64,
}

impl Node {
    /// A node before its process has started.
    #[must_use]
    pub const fn new(id: NodeId) -> Self {
        Self {
            id,
            life: Life::Off,
            volumes: BTreeMap::new(),
            tickets: 0,
            awaiting: None,
            attempts: 0,
            before: 0,
        }
    }

    /// The instance under which volumes are taken and served; `None` while there is none.
    #[must_use]
    pub const fn instance(&self) -> Option<Instance> {
        match self.life {
            Life::Up(instance) => Some(instance),
            _ => None,
        }
    }

    /// The generation in which the node serves the volume's clients, if it does.
    #[must_use]
    pub fn serves(&self, volume: VolumeId) -> Option<Generation> {
        self.volumes.get(&volume)?.serves()
    }

    /// The generation in which the node holds the volume, whether it serves it yet or not: it takes
    /// connections that are relayed to it in this generation and in no other.
    #[must_use]
    pub fn holds(&self, volume: VolumeId) -> Option<Generation> {
        self.volumes.get(&volume)?.holds()
    }

    /// Takes in what the node has learnt, and gives the steps to execute, in their order.
    #[must_use]
    pub fn on(&mut self, input: Input) -> Vec<Order> {
        let mut out = Vec::new();
        match input {
            Input::Start if self.life == Life::Off => self.enter(Life::Connecting, &mut out),
            Input::Start => {}
            Input::IoFailed { instance, fault: Fault::ShutDown }
                if self.life == Life::Up(instance) =>
            {
                self.fenced(&mut out);
            }
            Input::IoFailed { .. } => {}
            Input::Answered { volume: None, ticket, answer } => {
                self.answered(ticket, &answer, &mut out);
            }
            // What a former instance was asked for.
            Input::Answered { ticket, .. } if ticket.0 <= self.before => {}
            Input::Answered { answer: Answer::Failed(Fault::ShutDown), .. } => {
                self.fenced(&mut out);
            }
            Input::Answered { volume: Some(volume), ticket, answer } => {
                self.with(volume, &mut out, |it, desk| it.answered(ticket, answer, desk));
            }
            Input::Gap(gap) => self.slept(gap, &mut out),
            Input::Seen { volume, record } => self.seen(volume, &record, &mut out),
            Input::Take { volume, record } => self.take(volume, record.as_ref(), &mut out),
            Input::StorageLost => self.each(&mut out, Volume::abandon),
        }
        out
    }

    /// The instance is on the blocklist. It is never used again: what its volumes were doing is
    /// void, their clients are sent away, and another instance begins with no volume.
    fn fenced(&mut self, out: &mut Vec<Order>) {
        let Life::Up(instance) = self.life else { return };
        self.volumes.values_mut().for_each(Volume::forget);
        self.desk(instance, None, out).order(Step::CloseAllClients, Duration::ZERO);
        self.enter(Life::Closing, out);
    }

    fn answered(&mut self, ticket: Ticket, answer: &Answer, out: &mut Vec<Order>) {
        if self.awaiting != Some(ticket) {
            return;
        }
        match (self.life, answer) {
            (Life::Connecting, Answer::Done) => self.enter(Life::Registering, out),
            (Life::Registering, Answer::Registered(instance)) if instance.node == self.id => {
                (self.life, self.awaiting, self.attempts) = (Life::Up(*instance), None, 0);
                self.before = self.tickets;
            }
            (Life::Closing, Answer::Done) => self.enter(Life::Connecting, out),
            (Life::Connecting | Life::Registering, Answer::Failed(Fault::ShutDown)) => {
                self.enter(Life::Closing, out);
            }
            _ => self.again(out),
        }
    }

    /// Others may have acted while the process slept. This narrows the window in which it finds
    /// out by being refused; it does not replace the blocklist.
    fn slept(&mut self, gap: Duration, out: &mut Vec<Order>) {
        if gap <= GAP_MAX {
            return;
        }
        if let Life::Up(instance) = self.life {
            self.desk(instance, None, out).order(Step::CloseRelays, Duration::ZERO);
            self.each(out, Volume::woke);
        }
    }

    fn seen(&mut self, volume: VolumeId, record: &Record, out: &mut Vec<Order>) {
        let Life::Up(me) = self.life else { return };
        let ownership = &record.ownership;
        let concerns_us = ownership.owner == me
            || matches!(ownership.state, State::Moving { to } if to == me)
            || self.volumes.contains_key(&volume);
        if concerns_us && self.has_room(volume, out) {
            self.with(volume, out, |it, desk| it.seen(record, desk));
        }
    }

    fn take(&mut self, volume: VolumeId, record: Option<&Record>, out: &mut Vec<Order>) {
        if self.has_room(volume, out) {
            self.with(volume, out, |it, desk| it.take(record, desk));
        }
    }

    /// Whether there is a place for the volume; what is not ours any more makes one.
    fn has_room(&mut self, volume: VolumeId, out: &mut Vec<Order>) -> bool {
        let Life::Up(instance) = self.life else { return false };
        if self.volumes.contains_key(&volume) {
            return true;
        }
        if self.volumes.len() >= NODE_VOLUMES_MAX {
            self.volumes.retain(|_, volume| !volume.is_idle());
        }
        let has_room = self.volumes.len() < NODE_VOLUMES_MAX;
        match has_room {
            true => drop(self.volumes.insert(volume, Volume::new())),
            false => {
                let alarm = Step::Alarm(Alarm::TooManyVolumes);
                self.desk(instance, Some(volume), out).order(alarm, Duration::ZERO);
            }
        }
        has_room
    }

    fn with(
        &mut self,
        volume: VolumeId,
        out: &mut Vec<Order>,
        act: impl FnOnce(&mut Volume, &mut Desk<'_>),
    ) {
        let Life::Up(me) = self.life else { return };
        let Some(it) = self.volumes.get_mut(&volume) else { return };
        let tickets = &mut self.tickets;
        act(it, &mut Desk { me, volume: Some(volume), tickets, out });
    }

    fn each(&mut self, out: &mut Vec<Order>, act: impl Fn(&mut Volume, &mut Desk<'_>)) {
        let Life::Up(me) = self.life else { return };
        for (volume, it) in &mut self.volumes {
            let tickets = &mut self.tickets;
            act(it, &mut Desk { me, volume: Some(*volume), tickets, out });
        }
    }

    fn desk<'a>(
        &'a mut self,
        me: Instance,
        volume: Option<VolumeId>,
        out: &'a mut Vec<Order>,
    ) -> Desk<'a> {
        Desk { me, volume, tickets: &mut self.tickets, out }
    }

    fn enter(&mut self, life: Life, out: &mut Vec<Order>) {
        (self.life, self.attempts) = (life, 0);
        self.issue(out);
    }

    fn again(&mut self, out: &mut Vec<Order>) {
        self.attempts = self.attempts.saturating_add(1);
        if self.attempts == ATTEMPTS_QUIET_MAX {
            let alarm = Alarm::Slow { attempts: self.attempts };
            self.own_desk(out).order(Step::Alarm(alarm), Duration::ZERO);
        }
        self.issue(out);
    }

    fn issue(&mut self, out: &mut Vec<Order>) {
        let step = match self.life {
            Life::Off | Life::Up(_) => return,
            Life::Connecting => Step::Connect,
            Life::Registering => Step::Register,
            Life::Closing => Step::Disconnect,
        };
        let delay = delay_after(self.attempts);
        self.awaiting = Some(self.own_desk(out).order(step, delay));
    }

    /// For orders that no instance gives.
    fn own_desk<'a>(&'a mut self, out: &'a mut Vec<Order>) -> Desk<'a> {
        self.desk(Instance { node: self.id, incarnation: 0 }, None, out)
    }
}
