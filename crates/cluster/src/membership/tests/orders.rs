//! Events in any order, with answers that are repeated, late, lost, or to questions that were never
//! asked, and a model of the allowed actions.

use core::time::Duration;
use std::collections::BTreeSet;

use proptest::prelude::*;

use super::super::*;
use super::{LEADER, ms};

/// A step of a random history.
#[derive(Clone, Debug)]
enum Step {
    Wait(u64),
    ToDeadline,
    Stop,
    Fence,
    Fail,
    See(bool, bool),
    LeaderChanges,
    Join(u8),
    Start(bool),
    Store,
    Elect(u8),
    Relay(bool),
    Announced,
    Lease(u64, u8),
    EndTerm(bool),
    Resigned,
    Closed,
    /// The last answer arrives again.
    Repeat,
    /// An answer to a question that may never have been asked.
    Stray(u64, u8),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..4_000_u64).prop_map(Step::Wait),
        6 => Just(Step::ToDeadline),
        1 => Just(Step::Stop),
        2 => Just(Step::Fence),
        1 => Just(Step::Fail),
        2 => any::<(bool, bool)>().prop_map(|(others, empty)| Step::See(others, empty)),
        3 => Just(Step::LeaderChanges),
        4 => (0..8_u8).prop_map(Step::Join),
        4 => proptest::bool::weighted(0.9).prop_map(Step::Start),
        3 => Just(Step::Store),
        9 => any::<u8>().prop_map(Step::Elect),
        3 => any::<bool>().prop_map(Step::Relay),
        2 => Just(Step::Announced),
        3 => (0..4_000_u64, 0..10_u8).prop_map(|(left, what)| Step::Lease(left, what)),
        5 => any::<bool>().prop_map(Step::EndTerm),
        5 => Just(Step::Resigned),
        5 => Just(Step::Closed),
        3 => Just(Step::Repeat),
        2 => (0..40_u64, any::<u8>()).prop_map(|(question, what)| Step::Stray(question, what)),
    ]
}

/// A running control plane.
#[derive(Debug)]
struct Running {
    question: Question,
    lease: Lease,
    is_ending: bool,
    is_fleet_closed: bool,
}

/// The state of a shell that executes every action.
struct Model {
    node: Membership,
    now: Duration,
    joins: bool,
    starts: bool,
    /// Whether the data plane runs.
    is_up: bool,
    is_fenced: bool,
    closes: bool,
    asked: Option<(Question, Asked)>,
    asks_store: bool,
    starts_relay: bool,
    relays: bool,
    announces: bool,
    last: Question,
    running: Option<Running>,
    /// Leaderships of this process that were neither lost nor resigned.
    held: BTreeSet<Question>,
    resigning: BTreeSet<Question>,
    repeated: Option<Event>,
    exit: Option<Exit>,
}

impl Model {
    fn new() -> Self {
        let (node, first) = Membership::new();
        assert_eq!(first, [Action::Join]);
        Self {
            node,
            now: Duration::ZERO,
            joins: true,
            starts: false,
            is_up: false,
            is_fenced: false,
            closes: false,
            asked: None,
            asks_store: false,
            starts_relay: false,
            relays: false,
            announces: false,
            last: Question(0),
            running: None,
            held: BTreeSet::new(),
            resigning: BTreeSet::new(),
            repeated: None,
            exit: None,
        }
    }

    fn send(&mut self, event: Event) {
        for action in self.node.handle(event.clone(), self.now) {
            self.execute(action);
        }
        self.repeated = Some(event);
        self.check();
    }

    /// Checks that an action is allowed now, and executes it.
    fn execute(&mut self, action: Action) {
        let is_resigning = matches!(action, Action::Resign(_));
        assert!(self.exit.is_none() || is_resigning, "{action:?} after exit");
        match action {
            Action::Join => {
                assert!(!self.is_up && !self.joins);
                self.joins = true;
            }
            Action::Start => {
                assert!(!self.is_up && !self.starts && !self.is_fenced);
                self.starts = true;
            }
            Action::AskStore => {
                assert!(self.is_up && !self.asks_store);
                self.asks_store = true;
            }
            Action::Ask(question, asked) => {
                assert!(self.may_serve(), "a fenced node is no candidate");
                assert!(self.asked.is_none() && self.running.is_none() && question > self.last);
                self.asked = Some((question, asked));
                self.last = question;
            }
            Action::Lead(question) => {
                assert!(self.may_serve(), "a fenced node leads");
                assert!(self.running.is_none(), "two leaders in one node");
                assert!(self.held.contains(&question) && !self.relays);
                let lease = Lease { until: self.now, is_lost: false, must_reload: false };
                let running = Running { question, lease, is_ending: false, is_fleet_closed: false };
                self.running = Some(running);
            }
            Action::EndTerm { question, .. } => {
                let running = self.running.as_mut().unwrap();
                assert!(running.question == question && !running.is_ending);
                running.is_ending = true;
            }
            Action::CloseFleet(question) => {
                let running = self.running.as_mut().unwrap();
                assert!(running.question == question && running.is_ending);
                assert!(!std::mem::replace(&mut running.is_fleet_closed, true));
            }
            Action::Resign(question) => {
                let runs =
                    self.running.as_ref().is_some_and(|running| running.question == question);
                assert!(!runs, "the lease is given up while the control plane runs");
                self.resigning.insert(question);
            }
            Action::Relay => {
                assert!(self.may_serve() && self.running.is_none() && !self.starts_relay);
                self.starts_relay = true;
            }
            Action::StopRelay => (self.relays, self.starts_relay) = (false, false),
            Action::Follow(Some(_)) => assert!(self.may_serve() && self.running.is_none()),
            Action::AnnounceLeaving => assert!(!std::mem::replace(&mut self.announces, true)),
            Action::Close => {
                assert!(self.is_up && self.running.is_none() && !self.closes);
                assert!(self.held.is_subset(&self.resigning), "{:?} is not released", self.held);
                self.closes = true;
            }
            Action::Exit(exit) => {
                assert!(!self.is_up && self.asked.is_none());
                assert!(self.held.is_empty(), "{:?} is held after the exit", self.held);
                self.exit = Some(exit);
            }
            Action::Follow(None)
            | Action::SetFollows(_)
            | Action::LimitShutdown
            | Action::Log(..) => {}
        }
    }

    fn may_serve(&self) -> bool {
        self.is_up && !self.is_fenced && !self.closes
    }

    /// Asserts the invariants that hold after every event.
    fn check(&self) {
        let running = self.running.as_ref().map(|running| running.question);
        assert_eq!(self.node.leads(), running);
        if let Some(Running { lease, is_ending: false, .. }) = &self.running {
            let is_held = !lease.is_lost && !lease.must_reload;
            assert!(is_held && !self.is_fenced, "a term continues without a lease or a store");
            assert!(self.now < lease.until + UNHELD_MAX, "a term continues without news");
        }
        if let Some(deadline) = self.node.deadline() {
            assert!(deadline > self.now, "what is due at {deadline:?} was not done");
        }
    }

    fn answer(&mut self, what: u8) -> Answer {
        let until = self.now + ms(u64::from(what) * 20);
        let lease = Lease { until, is_lost: what == 4, must_reload: what == 8 };
        match what % 4 {
            0 => Answer::Leads(lease),
            1 => Answer::Follows {
                api: (what != 5).then(|| LEADER.parse().unwrap()),
                text: what.to_string(),
            },
            2 => Answer::Unknown { text: what.to_string(), is_no_space: what == 6 },
            _ => Answer::NoLeader,
        }
    }

    /// Answers the open question, if there is one.
    fn elect(&mut self, what: u8) {
        let Some((question, asked)) = self.asked.take() else { return };
        let what = if asked == Asked::Leader { what | 1 } else { what };
        let answer = self.answer(what);
        let Answer::Leads(lease) = answer else {
            return self.send(Event::ElectionAnswered(question, answer));
        };
        self.held.insert(question);
        for action in self.node.handle(Event::ElectionAnswered(question, answer), self.now) {
            let begins = action == Action::Lead(question);
            self.execute(action);
            if let (true, Some(running)) = (begins, &mut self.running) {
                running.lease = lease;
            }
        }
        self.check();
    }

    /// Reports a state of the running term's lease.
    fn lease(&mut self, left_ms: u64, what: u8) {
        let until = self.now + ms(left_ms);
        let Some(running) = &mut self.running else { return };
        let lease = &mut running.lease;
        lease.until = lease.until.max(until);
        lease.is_lost |= what == 8;
        lease.must_reload |= what == 9;
        let question = running.question;
        let lease = *lease;
        if lease.is_lost {
            self.held.remove(&question);
        }
        self.send(Event::LeaseSeen(question, lease));
    }

    fn end_term(&mut self, is_well: bool) {
        let Some(running) = self.running.take() else { return };
        let result = if is_well { Ok(()) } else { Err("it failed".to_owned()) };
        if running.lease.is_lost {
            self.held.remove(&running.question);
        }
        self.send(Event::TermEnded(running.question, running.lease, result));
    }

    fn resigned(&mut self) {
        if let Some(question) = self.resigning.pop_first() {
            self.held.remove(&question);
            self.send(Event::ResignAnswered(question));
        }
    }

    fn closed(&mut self) {
        if std::mem::take(&mut self.closes) {
            (self.is_up, self.is_fenced, self.announces) = (false, false, false);
            (self.relays, self.starts_relay, self.asks_store) = (false, false, false);
            self.send(Event::CloseAnswered);
        }
    }

    /// Advances the clock, but not past the membership's deadline.
    fn pass(&mut self, until: Duration) {
        self.now = until.min(self.node.deadline().unwrap_or(until)).max(self.now);
        self.send(Event::Time);
    }

    fn take(&mut self, step: &Step) {
        match *step {
            Step::Wait(passed) => self.pass(self.now + ms(passed)),
            Step::ToDeadline => self.pass(self.node.deadline().unwrap_or(self.now)),
            Step::Stop => self.send(Event::StopRequested),
            Step::Fence if self.is_up => {
                self.is_fenced = true;
                self.send(Event::Fenced);
            }
            Step::Fail if self.is_up => self.send(Event::DataPlaneFailed("it failed".to_owned())),
            Step::See(has_others, is_empty) => {
                self.send(Event::ClusterSeen(Seen { has_others, is_empty }));
            }
            Step::LeaderChanges => self.send(Event::LeaderChanged),
            Step::Join(what) if std::mem::take(&mut self.joins) => {
                self.send(Event::JoinAnswered(match what {
                    0 => JoinAnswer::Unavailable("it is away".to_owned()),
                    _ => JoinAnswer::Joined,
                }));
            }
            Step::Start(is_well) if std::mem::take(&mut self.starts) => {
                self.is_up = is_well;
                self.send(Event::StartAnswered(is_well.then(Seen::default)));
            }
            Step::Store if std::mem::take(&mut self.asks_store) => self.send(Event::StoreAnswered),
            Step::Elect(what) => self.elect(what),
            Step::Relay(is_well) if std::mem::take(&mut self.starts_relay) => {
                self.relays = is_well;
                let answer = if is_well { Ok(()) } else { Err("it is in use".to_owned()) };
                self.send(Event::RelayAnswered(answer));
            }
            Step::Announced if self.announces => self.send(Event::LeavingAnnounced),
            Step::Lease(left_ms, what) => self.lease(left_ms, what),
            Step::EndTerm(is_well) => self.end_term(is_well),
            Step::Resigned => self.resigned(),
            Step::Closed => self.closed(),
            Step::Repeat => self.repeat(),
            Step::Stray(question, what) => self.stray(Question(question), what),
            _ => {}
        }
    }

    /// Repeats an earlier answer.
    fn repeat(&mut self) {
        let is_answer = |event: &Event| {
            matches!(
                event,
                Event::ElectionAnswered(..)
                    | Event::TermEnded(..)
                    | Event::ResignAnswered(_)
                    | Event::LeaseSeen(..)
                    | Event::LeavingAnnounced
            )
        };
        if let Some(event) = self.repeated.clone().filter(is_answer) {
            self.send(event);
        }
    }

    /// Sends an answer to no open question. etcd may have made this process the leader.
    fn stray(&mut self, question: Question, what: u8) {
        let is_open = self.asked.is_some_and(|(asked, _)| asked == question);
        if is_open || self.held.contains(&question) {
            return;
        }
        let answer = self.answer(what);
        self.send(Event::ElectionAnswered(question, answer));
        self.send(Event::ResignAnswered(Question(question.0 + 100)));
        let lease = Lease { until: Duration::MAX, is_lost: true, must_reload: true };
        self.send(Event::LeaseSeen(Question(question.0 + 100), lease));
        self.send(Event::TermEnded(Question(question.0 + 100), lease, Ok(())));
    }

    /// Stops the process, and answers every request from now on.
    fn stop(&mut self) {
        self.send(Event::StopRequested);
        for _ in 0..200 {
            let answers = [
                Step::Join(1),
                Step::Start(true),
                Step::Store,
                Step::Elect(1),
                Step::Relay(true),
                Step::Announced,
                Step::EndTerm(true),
                Step::Resigned,
                Step::Closed,
                Step::ToDeadline,
            ];
            for step in &answers {
                if let (Step::EndTerm(_), Some(Running { is_ending: false, .. })) =
                    (step, &self.running)
                {
                    continue;
                }
                self.take(step);
            }
            if self.exit.is_some() {
                return;
            }
        }
        panic!("it does not stop");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1_500))]

    #[test]
    fn every_order_of_events_keeps_one_leader_and_releases_it_at_the_end(
        steps in proptest::collection::vec(step(), 1..120),
    ) {
        let mut model = Model::new();
        for step in &steps {
            model.take(step);
            if model.exit.is_some() {
                break;
            }
        }
        if model.exit.is_none() {
            model.stop();
        }
    }
}
