//! A node while it serves: it follows or leads until it is fenced, fails or stops.

use core::net::SocketAddr;
use core::time::Duration;

use super::events::{Action, Answer, Asked, Event, Lease, Level, Question, Seen};
use super::{CLOSE_MAX, DRAIN_MAX, ELECTION_INTERVAL, LEAD_AGAIN};
use super::{RETRY, STORE_INTERVAL, UNHELD_MAX};

/// Why a node's life ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum End {
    /// The process is to stop.
    Stop {
        /// Whether no other node continues with its volumes.
        is_last: bool,
    },
    /// The store has fenced the process.
    Fenced,
    /// A part of the data plane has failed, for this reason.
    Failed(String),
}

/// The progress of a node that leaves the cluster to stop.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Leaving {
    No,
    /// The notice for the other nodes is being written to etcd.
    Announcing,
    /// Its volumes move to others, until this time at the latest.
    Draining(Duration),
}

/// Whether API requests are relayed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Relay {
    Off,
    Starting,
    On,
    /// The address must be bound at this time; an earlier attempt may have failed.
    Again(Duration),
}

/// A term in which this node leads.
#[derive(Debug)]
struct Term {
    question: Question,
    lease: Lease,
    stage: Stage,
}

/// The progress of a term.
#[derive(Debug)]
enum Stage {
    Running,
    /// The control plane is ending. If it has not ended by this time, the fleet is closed.
    Ending(Duration),
    /// The fleet is closed.
    FleetClosed,
    /// The control plane has ended with this result, and the leadership is being resigned.
    Resigning(Result<(), String>),
}

#[derive(Debug)]
pub(super) struct Life {
    /// The last question that was asked.
    pub(super) last: Question,
    seen: Seen,
    end: Option<End>,
    leaving: Leaving,
    /// Whether another node runs the control plane.
    follows: bool,
    leader: Option<SocketAddr>,
    relay: Relay,
    asked: Option<Question>,
    /// Whether the leader's key has changed since the last question was asked.
    has_changed: bool,
    /// Time of the next question.
    ask_at: Duration,
    /// Time of the next question to the store; `None` while one is open.
    store_at: Option<Duration>,
    term: Option<Term>,
    /// The last logged line about the leader.
    logged: String,
}

impl Life {
    /// Creates the state of a node that begins to serve. `end` is set if it has failed or was
    /// fenced already.
    pub(super) fn new(last: Question, seen: Seen, end: Option<End>, now: Duration) -> Self {
        Self {
            last,
            seen,
            end,
            leaving: Leaving::No,
            follows: false,
            leader: None,
            relay: Relay::Off,
            asked: None,
            has_changed: false,
            ask_at: now,
            store_at: Some(now),
            term: None,
            logged: String::new(),
        }
    }

    /// Returns the reason for the end, after the term has ended, too.
    pub(super) fn ended(&self) -> Option<End> {
        self.end.clone().filter(|_| self.term.is_none())
    }

    /// Returns the open question.
    pub(super) fn asked(&self) -> Option<Question> {
        self.asked
    }

    /// Returns the question of the term whose control plane runs.
    pub(super) fn leads(&self) -> Option<Question> {
        let runs = |term: &&Term| !matches!(term.stage, Stage::Resigning(_));
        self.term.as_ref().filter(runs).map(|term| term.question)
    }

    /// Handles an event.
    pub(super) fn absorb(&mut self, event: Event, now: Duration, actions: &mut Vec<Action>) {
        match event {
            Event::StopRequested => self.leave(actions),
            Event::LeavingAnnounced if self.leaving == Leaving::Announcing => {
                self.leaving = Leaving::Draining(now + DRAIN_MAX);
            }
            Event::StoreAnswered if self.store_at.is_none() => {
                self.store_at = Some(now + STORE_INTERVAL);
            }
            Event::Fenced => self.end = self.end.take().or(Some(End::Fenced)),
            Event::DataPlaneFailed(why) => {
                self.end = self.end.take().or(Some(End::Failed(why)));
            }
            Event::ClusterSeen(seen) => self.seen = seen,
            Event::LeaderChanged => {
                self.has_changed = true;
                self.ask_at = now;
            }
            Event::ElectionAnswered(question, answer) => {
                self.elected(question, answer, now, actions);
            }
            Event::RelayAnswered(answer) if self.relay == Relay::Starting => {
                self.relay = match answer {
                    Ok(()) => Relay::On,
                    Err(text) => {
                        self.log(text, actions);
                        Relay::Again(now + RETRY)
                    }
                };
            }
            Event::LeaseSeen(question, lease) => {
                if let Some(term) = self.term.as_mut().filter(|term| term.question == question) {
                    term.learn(lease);
                }
            }
            Event::TermEnded(question, lease, result) => {
                self.term_ended(question, lease, result, now, actions);
            }
            Event::ResignAnswered(question) => self.resigned(question, now, actions),
            // Late or repeated.
            _ => {}
        }
    }

    /// Begins to hand over the volumes of this node.
    pub(super) fn leave(&mut self, actions: &mut Vec<Action>) {
        if self.leaving == Leaving::No {
            self.leaving = Leaving::Announcing;
            actions.push(Action::AnnounceLeaving);
        }
    }

    fn elected(
        &mut self,
        question: Question,
        answer: Answer,
        now: Duration,
        actions: &mut Vec<Action>,
    ) {
        if self.asked != Some(question) {
            let known = self.term.as_ref().map(|term| term.question);
            let late = Event::ElectionAnswered(question, answer);
            return super::give_up_unknown(&late, known, actions);
        }
        self.asked = None;
        self.ask_at = if self.has_changed { now } else { now + ELECTION_INTERVAL };
        match answer {
            Answer::Leads(lease) => {
                let term = Term { question, lease, stage: Stage::Running };
                self.term = Some(term);
                self.set_follows(false, actions);
                self.follow(None, actions);
                self.relay_ends(actions);
                actions.push(Action::Lead(question));
                return;
            }
            Answer::Follows { api, text } => {
                self.set_follows(api.is_some(), actions);
                self.log(text, actions);
                self.follow(api, actions);
            }
            Answer::NoLeader => {
                self.ask_at = now + RETRY;
                self.set_follows(false, actions);
                self.follow(None, actions);
            }
            Answer::Unknown { text, is_no_space } => {
                self.ask_at = now + RETRY;
                // No node leads while etcd is full, so this node may clear it.
                self.set_follows(self.follows && !is_no_space, actions);
                self.log(format!("the leader is not known: {text}"), actions);
                self.follow(None, actions);
            }
        }
        if self.relay == Relay::Off {
            self.relay = Relay::Again(now);
        }
    }

    /// Stops the relay, since the control plane needs the API's address and the data folder.
    fn relay_ends(&mut self, actions: &mut Vec<Action>) {
        if self.relay != Relay::Off {
            self.relay = Relay::Off;
            actions.push(Action::StopRelay);
        }
    }

    fn set_follows(&mut self, follows: bool, actions: &mut Vec<Action>) {
        if self.follows != follows {
            self.follows = follows;
            actions.push(Action::SetFollows(follows));
        }
    }

    fn follow(&mut self, leader: Option<SocketAddr>, actions: &mut Vec<Action>) {
        if self.leader != leader {
            self.leader = leader;
            actions.push(Action::Follow(leader));
        }
    }

    /// Logs a line, unless it is the last one again.
    fn log(&mut self, text: String, actions: &mut Vec<Action>) {
        if self.logged != text {
            self.logged.clone_from(&text);
            actions.push(Action::Log(Level::Info, text));
        }
    }

    fn term_ended(
        &mut self,
        question: Question,
        lease: Lease,
        result: Result<(), String>,
        now: Duration,
        actions: &mut Vec<Action>,
    ) {
        let is_open = |term: &&mut Term| {
            term.question == question && !matches!(term.stage, Stage::Resigning(_))
        };
        let Some(term) = self.term.as_mut().filter(is_open) else { return };
        term.learn(lease);
        if term.lease.is_lost {
            // The next leader decides on the changes that this one could not store.
            if let Err(why) = result {
                let text = format!("this node is not the leader any more: {why}");
                actions.push(Action::Log(Level::Warn, text));
            }
            self.term = None;
            self.ask_at = now;
            return;
        }
        if term.lease.must_reload {
            let text = "etcd may have other data than this leader knows: it resigns, and the \
                        next leader reads everything again";
            actions.push(Action::Log(Level::Warn, text.to_owned()));
        }
        term.stage = Stage::Resigning(result);
        actions.push(Action::Resign(question));
    }

    fn resigned(&mut self, question: Question, now: Duration, actions: &mut Vec<Action>) {
        let is_resigning = |term: &mut Term| {
            term.question == question && matches!(term.stage, Stage::Resigning(_))
        };
        let Some(term) = self.term.take_if(is_resigning) else { return };
        self.ask_at = now;
        if let Stage::Resigning(Err(why)) = term.stage
            && !matches!(self.end, Some(End::Fenced | End::Failed(_)))
        {
            let text = format!("cannot run the control plane: {why}");
            actions.push(Action::Log(Level::Warn, text));
            // Another node may be able to run it.
            self.ask_at = now + LEAD_AGAIN;
        }
    }

    /// Performs the steps that are due.
    pub(super) fn advance(&mut self, now: Duration, actions: &mut Vec<Action>) {
        self.decide_stop(now, actions);
        self.watch_term(now, actions);
        if self.end.is_some() {
            return;
        }
        if self.store_at.is_some_and(|time| now >= time) {
            self.store_at = None;
            actions.push(Action::AskStore);
        }
        if self.term.is_some() {
            return;
        }
        if self.asked.is_none() && now >= self.ask_at {
            self.ask(actions);
        }
        let is_due = match self.relay {
            Relay::Again(at) => now >= at,
            Relay::Off | Relay::Starting | Relay::On => false,
        };
        if is_due {
            self.relay = Relay::Starting;
            actions.push(Action::Relay);
        }
    }

    /// Ends a stopping node when it has handed over its volumes, no other node can take them, or
    /// [`DRAIN_MAX`] has passed.
    fn decide_stop(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let Leaving::Draining(until) = self.leaving else { return };
        if self.end.is_some() {
            return;
        }
        let is_late = now >= until;
        let is_last = !self.seen.has_others;
        // If all nodes stop, the leader closes the volumes of the others, too.
        let waits = self.follows && !is_late;
        if (is_last && !waits) || self.seen.is_empty || is_late {
            self.end = Some(End::Stop { is_last });
            actions.push(Action::LimitShutdown);
        }
    }

    /// Ends a term when the leadership is lost or this node ends.
    fn watch_term(&mut self, now: Duration, actions: &mut Vec<Action>) {
        let closes_volumes = self.end == Some(End::Stop { is_last: true });
        let is_over = self.end.is_some();
        let Some(term) = &mut self.term else { return };
        if let Stage::Running = term.stage
            && (is_over || term.lease.is_over(now))
        {
            actions.push(Action::EndTerm { question: term.question, closes_volumes });
            // The last node closes all volumes, and stores their balances.
            let left = if closes_volumes { CLOSE_MAX } else { Duration::ZERO };
            term.stage = Stage::Ending(now + left);
        }
        if let Stage::Ending(at) = term.stage
            && now >= at
        {
            actions.push(Action::CloseFleet(term.question));
            term.stage = Stage::FleetClosed;
        }
    }

    /// Asks about the leader. A follower that stops and has no other node to hand over to does not
    /// try to lead.
    fn ask(&mut self, actions: &mut Vec<Action>) {
        let is_last = self.leaving != Leaving::No && !self.seen.has_others;
        let asked = if is_last && self.follows { Asked::Leader } else { Asked::Campaign };
        self.last = Question(self.last.0 + 1);
        self.asked = Some(self.last);
        self.has_changed = false;
        actions.push(Action::Ask(self.last, asked));
    }

    /// Returns the time at which the next step is due.
    pub(super) fn deadline(&self) -> Option<Duration> {
        let is_over = self.end.is_some();
        let drained = match self.leaving {
            Leaving::Draining(until) if !is_over => Some(until),
            _ => None,
        };
        let term = self.term.as_ref().and_then(|term| match term.stage {
            Stage::Running => Some(term.lease.until + UNHELD_MAX),
            Stage::Ending(at) => Some(at),
            Stage::FleetClosed | Stage::Resigning(_) => None,
        });
        let is_idle = !is_over && self.term.is_none();
        let ask = Some(self.ask_at).filter(|_| is_idle && self.asked.is_none());
        let relay = match self.relay {
            Relay::Again(at) if is_idle => Some(at),
            _ => None,
        };
        let store = self.store_at.filter(|_| !is_over);
        [drained, term, ask, relay, store].into_iter().flatten().min()
    }

    /// Asserts the invariants in debug builds and tests.
    pub(super) fn check(&self) {
        debug_assert!(self.term.is_none() || self.asked.is_none(), "asks while it leads");
        debug_assert!(self.term.is_none() || !self.follows, "leads and follows");
        debug_assert!(self.term.is_none() || self.relay == Relay::Off || self.end.is_some());
    }
}

impl Term {
    /// Updates the lease. A lost lease stays lost.
    fn learn(&mut self, lease: Lease) {
        self.lease = Lease {
            until: self.lease.until.max(lease.until),
            is_lost: self.lease.is_lost || lease.is_lost,
            must_reload: self.lease.must_reload || lease.must_reload,
        };
    }
}

impl Lease {
    /// Returns whether a leader with this lease must end its term.
    fn is_over(&self, now: Duration) -> bool {
        self.is_lost || self.must_reload || now >= self.until + UNHELD_MAX
    }
}
