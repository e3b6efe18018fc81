//! The shell around a node's membership: it executes the actions late, one after the other, as
//! `src/cluster/member.rs` does, and reports their outcome.

use core::net::SocketAddr;
use core::time::Duration;
use std::collections::{BTreeSet, VecDeque};

use evenkeel_core::fencing::Door;
use evenkeel_core::fencing::order::{self, FenceStep};

use super::super::membership::{Action, Answer, Asked, Event, JoinAnswer, Lease, Question};
use super::ceph::{Asker, Instance, Kind, Object, Operation, Outcome, Pending, instances_of};
use super::etcd::{InstKey, TTL_MS};
use super::world::{Plane, Term, World};
use super::{BLOCKLIST_EXPIRE_MS, MONITOR_FAILS};

/// The present work of the shell's thread.
pub enum Job {
    /// The node takes its name, opens the store and starts its data plane.
    Start {
        incarnation: u64,
        instance: Option<Instance>,
        /// The remaining steps, after the registrations were read.
        steps: Option<VecDeque<FenceStep<Instance>>>,
        /// The open question to Ceph.
        asked: Option<u64>,
    },
    /// The data plane and the store are being closed.
    Close { asked: Option<u64>, is_unregistered: bool },
}

impl Job {
    /// Returns the process that a start has written to etcd.
    pub fn incarnation(&self) -> Option<u64> {
        match self {
            Self::Start { incarnation, .. } => Some(*incarnation),
            Self::Close { .. } => None,
        }
    }
}

impl World {
    /// Takes the next step of the shell's thread.
    pub fn shell(&mut self, node: usize) {
        if self.nodes[node].job.is_some() {
            return self.work_on_job(node);
        }
        if let Some(action) = self.nodes[node].actions.pop_front() {
            self.tell(|_| format!("node {node} executes {action:?}"));
            return self.act(node, action);
        }
        self.end_term(node);
        if let Some(event) = self.nodes[node].inbox.pop_front() {
            return self.handle(node, event);
        }
        let deadline = self.nodes[node].membership.deadline();
        if deadline.is_some_and(|deadline| deadline <= self.now()) {
            self.handle(node, Event::Time);
        }
    }

    fn handle(&mut self, node: usize, event: Event) {
        let now = self.now();
        let text = self.told.is_some().then(|| format!("node {node} learns {event:?}"));
        let place = &mut self.nodes[node];
        let before = place.actions.len();
        place.actions.extend(place.membership.handle(event, now));
        if place.actions.len() > before
            && let Some(text) = text
        {
            self.tell(|_| text);
        }
    }

    fn act(&mut self, node: usize, action: Action) {
        match action {
            Action::Join => {
                let answer = if self.fails(20) {
                    JoinAnswer::Unavailable(String::new())
                } else {
                    JoinAnswer::Joined
                };
                self.nodes[node].tell(Event::JoinAnswered(answer));
            }
            Action::Start => {
                let incarnation = self.number();
                let (instance, steps, asked) = (None, None, None);
                self.nodes[node].job = Some(Job::Start { incarnation, instance, steps, asked });
            }
            Action::Relay => self.nodes[node].tell(Event::RelayAnswered(Ok(()))),
            Action::AskStore => {
                if let Some(plane) = self.plane(node) {
                    plane.is_woken = true;
                }
            }
            Action::Ask(question, asked) => self.elect(node, question, asked),
            Action::AnnounceLeaving => {
                if let Some(inst) = &mut self.etcd.seen.insts[node] {
                    inst.is_leaving = true;
                }
                self.nodes[node].tell(Event::LeavingAnnounced);
            }
            Action::Lead(question) => self.lead(node, question),
            Action::EndTerm { question, .. } => {
                if let Some(term) = self.term(node, question) {
                    term.is_ending = true;
                }
            }
            Action::CloseFleet(question) => {
                if let Some(term) = self.term(node, question) {
                    term.fleet.close();
                }
            }
            Action::Resign(question) => {
                let won = self.nodes[node].won.remove(&question);
                let created = won.map(|(created, _)| created);
                self.etcd.leader.take_if(|key| Some(key.created) == created);
                self.nodes[node].tell(Event::ResignAnswered(question));
            }
            Action::Close => {
                if let Some(plane) = self.plane(node) {
                    plane.is_closing = true;
                }
                self.close_connections(node);
                self.nodes[node].job = Some(Job::Close { asked: None, is_unregistered: false });
            }
            Action::Exit(_) => self.die(node),
            Action::Follow(_)
            | Action::StopRelay
            | Action::SetFollows(_)
            | Action::LimitShutdown
            | Action::Log(..) => {}
        }
    }

    fn term(&mut self, node: usize, question: Question) -> Option<&mut Term> {
        self.nodes[node].term.as_mut().filter(|term| term.question == question)
    }

    /// Returns whether an operation fails; one in `once_in` does.
    pub fn fails(&mut self, once_in: u64) -> bool {
        !self.is_calm() && self.random.one_in(once_in)
    }

    fn elect(&mut self, node: usize, question: Question, asked: Asked) {
        let process = self.nodes[node].process;
        let is_lost = self.fails(12);
        if is_lost && self.random.one_in(2) {
            let text = String::new();
            let answer = Answer::Unknown { text, is_no_space: false };
            return self.nodes[node].tell(Event::ElectionAnswered(question, answer));
        }
        self.etcd.expire(self.now_ms);
        let answer = match (self.etcd.leader, asked) {
            (None, Asked::Leader) => Answer::NoLeader,
            (None, Asked::Campaign) => {
                self.etcd.elect((node, process), question, self.now_ms);
                let key = self.etcd.leader.expect("it was just elected");
                self.nodes[node].won.insert(question, (key.created, key.ends_ms));
                self.counts.terms += 1;
                Answer::Leads(self.lease(node, question))
            }
            (Some(key), _) => {
                let api: Option<SocketAddr> = format!("10.0.0.{}:1", key.node).parse().ok();
                let api = api.filter(|_| key.node != node);
                Answer::Follows { api, text: format!("node {} leads", key.node) }
            }
        };
        self.nodes[node].tell(Event::ElectionAnswered(question, answer));
    }

    /// Returns the known state of a lease that a process has won.
    fn lease(&self, node: usize, question: Question) -> Lease {
        let won = self.nodes[node].won.get(&question);
        let until = Duration::from_millis(won.map_or(self.now_ms, |(_, ends_ms)| *ends_ms));
        let is_lost = won.is_none();
        Lease { until, is_lost, must_reload: false }
    }

    /// Renews the leases of a node, unless etcd does not answer.
    pub fn renew_leases(&mut self, node: usize) {
        self.nodes[node].renewed_ms = self.now_ms;
        if self.fails(25) {
            return;
        }
        let ends_ms = self.now_ms + TTL_MS;
        self.renew(node, ends_ms);
        let incarnation = self.nodes[node].plane.as_ref().map(|plane| plane.incarnation);
        let is_closing = matches!(self.nodes[node].job, Some(Job::Close { .. }));
        if incarnation.is_some() && self.etcd.seen.insts[node].is_none() && !is_closing {
            self.appear(node, true);
        }
        let Some(question) = self.nodes[node].term.as_ref().map(|term| term.question) else {
            return;
        };
        let Some((created, _)) = self.nodes[node].won.get(&question).copied() else { return };
        let mut lease = self.lease(node, question);
        if self.etcd.leads(created) {
            self.nodes[node].won.insert(question, (created, ends_ms));
            lease = self.lease(node, question);
        } else {
            lease.is_lost = true;
            self.counts.lost_leases += 1;
        }
        self.nodes[node].tell(Event::LeaseSeen(question, lease));
    }

    /// Writes the key of the node's process.
    fn appear(&mut self, node: usize, is_reachable: bool) {
        let place = &self.nodes[node];
        let of_plane = place.plane.as_ref().map(|plane| (plane.incarnation, plane.instance));
        let of_start = match &place.job {
            Some(Job::Start { incarnation, .. }) => Some((*incarnation, 0)),
            _ => None,
        };
        let Some((incarnation, instance)) = of_plane.or(of_start) else { return };
        let is_leaving = !is_reachable || place.is_stopping;
        let ends_ms = self.now_ms + TTL_MS;
        let key = InstKey { incarnation, instance, is_reachable, is_leaving, ends_ms };
        self.etcd.seen.insts[node] = Some(key);
        if is_reachable {
            self.etcd.seen.lasts[node] = Some(key);
        }
    }

    /// Starts the control plane, which reads the homes of volumes.
    fn lead(&mut self, node: usize, question: Question) {
        let Some((created, _)) = self.nodes[node].won.get(&question).copied() else { return };
        let homes = self.etcd.seen.homes;
        let volumes: BTreeSet<usize> = (0..self.clients.len()).collect();
        let fleet = self.fleet(node, created, homes);
        let is_busy = false;
        let is_ending = false;
        let unapplied = volumes;
        self.nodes[node].term = Some(Term { question, fleet, is_busy, is_ending, unapplied });
    }

    /// Ends the control plane of a term.
    fn end_term(&mut self, node: usize) {
        let ends = |term: &mut Term| term.is_ending && !term.is_busy;
        let Some(term) = self.nodes[node].term.take_if(ends) else { return };
        term.fleet.close();
        let created = self.nodes[node].won.get(&term.question).map(|(created, _)| *created);
        let mut lease = self.lease(node, term.question);
        // A refused write has shown this process that it no longer leads.
        lease.is_lost |= created.is_some_and(|created| !self.etcd.leads(created));
        if lease.is_lost {
            self.nodes[node].won.remove(&term.question);
        }
        self.nodes[node].tell(Event::TermEnded(term.question, lease, Ok(())));
    }

    fn work_on_job(&mut self, node: usize) {
        match self.nodes[node].job.take() {
            Some(Job::Start { incarnation, instance, steps, asked }) => {
                self.nodes[node].job = Some(Job::Start { incarnation, instance, steps, asked });
                self.start(node);
            }
            Some(close) => {
                self.nodes[node].job = Some(close);
                self.close(node);
            }
            None => {}
        }
    }

    /// Sends a question of the shell to Ceph.
    fn ask_for_shell(&mut self, node: usize, instance: Instance, kind: Kind) {
        let number = self.number();
        self.set_asked(node, Some(number));
        self.ask_books(instance, kind, number);
    }

    /// Sends an operation on the object `evenkeel.books`. Its answer is stored under `number`.
    pub fn ask_books(&mut self, instance: Instance, kind: Kind, number: u64) {
        let (object, generation, epoch, asker) = (Object::Books, 0, 0, Asker::Question(number));
        self.ceph.submit(Operation { instance, object, kind, generation, epoch, asker });
    }

    /// Takes the next step of a start.
    fn start(&mut self, node: usize) {
        let Some(Job::Start { incarnation, instance, steps, asked }) = &self.nodes[node].job else {
            return;
        };
        let incarnation = *incarnation;
        let asked = *asked;
        let Some(instance) = *instance else {
            // Before the store is opened, which fences every earlier process of this name.
            if self.etcd.seen.insts[node].is_some_and(|inst| inst.incarnation != incarnation) {
                return;
            }
            self.appear(node, false);
            let behind = self.below(3);
            let made = self.ceph.connect(behind);
            if made.is_none() {
                self.steps_left = 0;
            }
            if let Some(Job::Start { instance, .. }) = &mut self.nodes[node].job {
                *instance = made;
            }
            return;
        };
        if let Some(asked) = asked {
            let Some(outcome) = self.nodes[node].answers.remove(&asked) else { return };
            return self.start_answered(node, instance, outcome);
        }
        let next = steps.as_ref().map(|steps| steps.front().cloned());
        let kind = match next {
            None => Kind::Registered(node),
            Some(Some(FenceStep::Blocklist(whom))) => return self.enter_for_start(node, whom),
            Some(Some(FenceStep::Note(whom))) => Kind::Note(whom),
            Some(Some(FenceStep::Register(_))) => Kind::Register(node),
            Some(Some(FenceStep::WaitForLatestMap)) => {
                self.ceph.teach(instance, self.ceph.latest());
                return self.start_answered(node, instance, Outcome::Done);
            }
            Some(None) => return self.started(node, incarnation, instance),
        };
        self.ask_for_shell(node, instance, kind);
    }

    fn set_asked(&mut self, node: usize, to: Option<u64>) {
        match &mut self.nodes[node].job {
            Some(Job::Start { asked, .. } | Job::Close { asked, .. }) => *asked = to,
            None => {}
        }
    }

    fn enter_for_start(&mut self, node: usize, instance: Instance) {
        let expires_ms = self.now_ms + BLOCKLIST_EXPIRE_MS;
        let is_lost = self.fails(MONITOR_FAILS);
        let number = self.number();
        if !is_lost || self.random.one_in(2) {
            let waiter = Some((node, number)).filter(|_| !is_lost);
            self.ceph.pending.push(Pending { instance, expires_ms, waiter });
        }
        if is_lost { self.start_anew(node) } else { self.set_asked(node, Some(number)) }
    }

    /// Starts the process again after a failed start.
    fn start_anew(&mut self, node: usize) {
        if let Some(Job::Start { instance: Some(instance), .. }) = self.nodes[node].job {
            self.ceph.end(instance, self.now_ms);
        }
        self.nodes[node].job = None;
        self.nodes[node].actions.push_front(Action::Start);
        self.etcd.seen.insts[node] = None;
    }

    fn start_answered(&mut self, node: usize, own: Instance, outcome: Outcome) {
        self.set_asked(node, None);
        let Some(Job::Start { steps, .. }) = &mut self.nodes[node].job else { return };
        match (outcome, steps) {
            (Outcome::Refused, _) => self.start_anew(node),
            (Outcome::Instances(bits), steps) => {
                *steps = Some(order::register(&instances_of(bits), &own).into());
            }
            (_, Some(steps)) => _ = steps.pop_front(),
            (_, None) => {}
        }
    }

    fn started(&mut self, node: usize, incarnation: u64, instance: Instance) {
        let plane = Plane {
            incarnation,
            instance,
            confirmed: None,
            volumes: Default::default(),
            door: Door::default(),
            knocks: Vec::new(),
            look: None,
            is_woken: false,
            is_shut_down: false,
            is_closing: false,
        };
        self.nodes[node].plane = Some(plane);
        self.nodes[node].job = None;
        self.appear(node, true);
        self.nodes[node].view = self.etcd.seen;
        let seen = self.seen(node);
        self.nodes[node].tell(Event::StartAnswered(Some(seen)));
    }

    /// Takes the next step of a close: volumes, registration, connection, name.
    fn close(&mut self, node: usize) {
        let Some(Job::Close { asked, is_unregistered }) = self.nodes[node].job else { return };
        let Some(plane) = self.plane(node) else {
            self.nodes[node].job = None;
            return self.nodes[node].tell(Event::CloseAnswered);
        };
        for held in plane.volumes.iter_mut().flatten() {
            held.release.get_or_insert(0);
            held.queue.clear();
        }
        let instance = plane.instance;
        let is_shut_down = plane.is_shut_down;
        if plane.volumes.iter().any(Option::is_some) {
            return;
        }
        let mut is_unregistered = is_unregistered;
        if let Some(asked) = asked {
            let Some(_) = self.nodes[node].answers.remove(&asked) else { return };
            is_unregistered = true;
        }
        if !is_unregistered && !is_shut_down {
            return self.ask_for_shell(node, instance, Kind::Leave);
        }
        self.ceph.end(instance, self.now_ms);
        let place = &mut self.nodes[node];
        let incarnation = place.plane.take().map(|plane| plane.incarnation);
        place.job = None;
        place.late.clear();
        place.answers.clear();
        let is_own = |key: &mut InstKey| Some(key.incarnation) == incarnation;
        self.etcd.seen.insts[node].take_if(is_own);
        self.counts.rejoins += u64::from(is_shut_down);
        self.nodes[node].tell(Event::CloseAnswered);
    }
}
