//! Several nodes and an etcd in virtual time: each node is a [`Membership`] with a shell that
//! executes its actions late, pauses, dies and starts again. Random numbers decide the times.
//!
//! etcd keeps leases and compares revisions. Requests and answers take time; some are lost, and a
//! request may be applied after its sender has given up. The fleet is a model: a leader fences
//! nodes whose key is gone, gives their volumes to others, and moves volumes off nodes that leave.

use core::time::Duration;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use evenkeel_core::random::Random;

use super::super::*;
use super::ms;

/// Duration of a lease of etcd.
const TTL: Duration = Duration::from_secs(3);
/// Time between two renewals of a lease, and between two actions of a leader.
const RENEWAL: Duration = Duration::from_secs(1);
const TICK: Duration = Duration::from_millis(500);
/// Maximum time that a request waits for etcd.
const PATIENCE: Duration = Duration::from_secs(5);
/// Maximum delay of a message that is not lost, in milliseconds.
const WAY_MAX_MS: u64 = 120;
/// Maximum time until a running node detects its fence.
const FENCE_BOUND: Duration = Duration::from_millis(1_000 + 3 * WAY_MAX_MS);
const VOLUMES: usize = 6;

/// A request of a node to etcd.
#[derive(Clone, Debug)]
enum Request {
    Join,
    Elect(Question, Asked),
    Renew(Question),
    Commit(Question),
    Resign(Question),
    Appear,
    Leave,
}

#[derive(Clone, Debug)]
enum Item {
    /// The membership's deadline may have passed.
    Due,
    Event(Event),
    /// The node's view of the cluster arrives.
    See,
    /// The store answers whether the process is fenced.
    StoreAnswers,
    /// A request arrives at etcd; `true` if its answer arrives at the node.
    AtEtcd(Request, bool),
    /// A lease is renewed: that of the node, or of its term.
    RenewNode,
    RenewTerm(Question),
    /// The leader acts.
    Act(Question),
    ControlEnds(Question),
    Closed,
    /// A lease may have ended.
    Expire,
}

/// The leader's key.
#[derive(Clone, Copy, Debug)]
struct Key {
    node: usize,
    process: u64,
    question: Question,
    ends: Duration,
}

/// A term that a shell runs.
#[derive(Debug)]
struct Running {
    question: Question,
    lease: Lease,
    is_ending: bool,
}

/// A process of a node.
struct Process {
    number: u64,
    membership: Membership,
    /// Whether the data plane runs.
    is_up: bool,
    /// Time since which the store refuses it.
    fenced: Option<Duration>,
    running: Option<Running>,
    /// The known leases of its leaderships.
    leases: BTreeMap<Question, Lease>,
    is_stopping: bool,
    has_gone: bool,
}

#[derive(Default)]
struct Node {
    process: Option<Process>,
    paused_until: Duration,
    /// Time since which it has run without a pause.
    awake_since: Duration,
    /// The key with its lease in etcd: the end of the lease, and whether the node is leaving.
    presence: Option<(Duration, bool)>,
}

/// Counts of events. An event that never happens is not tested.
#[derive(Clone, Copy, Default, Debug)]
pub(super) struct Counts {
    pub(super) terms: u64,
    pub(super) commits: u64,
    pub(super) refused_commits: u64,
    pub(super) fences: u64,
    pub(super) rejoins: u64,
    pub(super) lost_leases: u64,
    pub(super) unheld_events: u64,
    pub(super) late_wins: u64,
    pub(super) stops: u64,
}

pub(super) struct World {
    now: Duration,
    random: Random,
    queue: BinaryHeap<Reverse<(Duration, u64)>>,
    items: BTreeMap<u64, (usize, u64, Item)>,
    next: u64,
    key: Option<Key>,
    nodes: Vec<Node>,
    /// The home of each volume.
    homes: [usize; VOLUMES],
    is_calm: bool,
    pub(super) counts: Counts,
    /// The printed history, if it is recorded.
    pub(super) log: Option<Vec<String>>,
    pub(super) broken: Option<String>,
}

impl World {
    pub(super) fn new(seed: u64, is_logged: bool) -> Self {
        let mut random = Random::new(seed, 0);
        let count = 2 + usize::try_from(random.below(3)).unwrap();
        let mut world = Self {
            now: Duration::ZERO,
            random,
            queue: BinaryHeap::new(),
            items: BTreeMap::new(),
            next: 0,
            key: None,
            nodes: (0..count).map(|_| Node::default()).collect(),
            homes: std::array::from_fn(|volume| volume % count),
            is_calm: false,
            counts: Counts::default(),
            log: is_logged.then(Vec::new),
            broken: None,
        };
        (0..count).for_each(|node| world.boot(node));
        world
    }

    fn break_off(&mut self, why: String) {
        self.broken.get_or_insert(why);
    }

    fn tell(&mut self, line: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(log) = &mut self.log {
            log.push(format!("{now:?} {}", line()));
        }
    }

    fn push(&mut self, node: usize, after: Duration, item: Item) {
        let process = self.nodes[node].process.as_ref().map_or(0, |process| process.number);
        self.queue.push(Reverse((self.now + after, self.next)));
        self.items.insert(self.next, (node, process, item));
        self.next += 1;
    }

    fn way(&mut self) -> Duration {
        ms(1 + self.random.below(WAY_MAX_MS))
    }

    /// Starts a process.
    fn boot(&mut self, node: usize) {
        self.next += 1;
        let (membership, first) = Membership::new();
        self.nodes[node].process = Some(Process {
            number: self.next,
            membership,
            is_up: false,
            fenced: None,
            running: None,
            leases: BTreeMap::new(),
            is_stopping: false,
            has_gone: false,
        });
        self.nodes[node].awake_since = self.now;
        self.execute(node, first);
    }

    fn kill(&mut self, node: usize) {
        self.tell(|| format!("node {node} is killed"));
        self.nodes[node].process = None;
    }

    fn handle(&mut self, node: usize, event: Event) {
        let now = self.now;
        let Some(process) = &mut self.nodes[node].process else { return };
        let actions = process.membership.handle(event.clone(), now);
        if !actions.is_empty() || !matches!(event, Event::Time | Event::LeaseSeen(..)) {
            self.tell(|| format!("node {node}: {event:?} -> {actions:?}"));
        }
        self.execute(node, actions);
        let deadline =
            self.nodes[node].process.as_ref().and_then(|process| process.membership.deadline());
        if let Some(deadline) = deadline {
            self.push(node, deadline.saturating_sub(now), Item::Due);
        }
    }

    fn execute(&mut self, node: usize, actions: Vec<Action>) {
        for action in actions {
            self.act(node, action);
        }
    }

    /// Returns the process of a node, which exists while its actions are executed.
    fn process(&mut self, node: usize) -> &mut Process {
        self.nodes[node].process.as_mut().unwrap()
    }

    fn act(&mut self, node: usize, action: Action) {
        let way = self.way();
        match action {
            Action::Join => self.ask(node, Request::Join),
            Action::Start => {
                // Opening the store fences the earlier processes of this node, which have ended.
                self.process(node).is_up = true;
                self.process(node).fenced = None;
                self.ask(node, Request::Appear);
                self.push(node, RENEWAL, Item::RenewNode);
                let seen = self.seen(node);
                self.push(node, way, Item::Event(Event::StartAnswered(Some(seen))));
            }
            Action::AskStore => self.push(node, way, Item::StoreAnswers),
            Action::Ask(question, asked) => self.ask(node, Request::Elect(question, asked)),
            Action::AnnounceLeaving => self.ask(node, Request::Leave),
            Action::Relay => self.push(node, ms(1), Item::Event(Event::RelayAnswered(Ok(())))),
            Action::Lead(question) => self.lead(node, question),
            Action::EndTerm { question, .. } => {
                if let Some(running) = &mut self.process(node).running {
                    running.is_ending = true;
                }
                self.push(node, way, Item::ControlEnds(question));
            }
            Action::Resign(question) => {
                let process = self.process(node);
                let leads = process.membership.leads() == Some(question);
                self.counts.late_wins += u64::from(!leads && process.running.is_none());
                self.ask(node, Request::Resign(question));
            }
            Action::Close => {
                let process = self.process(node);
                process.is_up = false;
                if process.fenced.is_some() {
                    self.counts.rejoins += 1;
                }
                self.push(node, way, Item::Closed);
            }
            Action::Exit(_) => self.process(node).has_gone = true,
            Action::Follow(_)
            | Action::StopRelay
            | Action::SetFollows(_)
            | Action::CloseFleet(_)
            | Action::LimitShutdown
            | Action::Log(..) => {}
        }
    }

    fn lead(&mut self, node: usize, question: Question) {
        self.counts.terms += 1;
        let is_fenced = self.process(node).fenced.is_some();
        let lease = self.process(node).leases[&question];
        self.process(node).running = Some(Running { question, lease, is_ending: false });
        let awake = self.now.saturating_sub(self.nodes[node].awake_since);
        if is_fenced && awake > FENCE_BOUND && self.fenced_for(node) > FENCE_BOUND {
            self.break_off(format!("node {node} is fenced and leads"));
        }
        self.push(node, RENEWAL, Item::RenewTerm(question));
        self.push(node, TICK, Item::Act(question));
    }

    fn fenced_for(&self, node: usize) -> Duration {
        let fenced = self.nodes[node].process.as_ref().and_then(|process| process.fenced);
        fenced.map_or(Duration::ZERO, |since| self.now - since)
    }

    /// Sends a request to etcd. It or its answer may be lost, and it may arrive after its sender
    /// has given up.
    fn ask(&mut self, node: usize, request: Request) {
        let way = self.way();
        if self.is_calm || !self.random.one_in(12) {
            return self.push(node, way, Item::AtEtcd(request, true));
        }
        if self.random.one_in(2) {
            let late = ms(self.random.below(8_000));
            self.push(node, late, Item::AtEtcd(request.clone(), false));
        }
        if let Some(event) = unanswered(&request) {
            self.push(node, PATIENCE, Item::Event(event));
        }
    }

    fn seen(&self, node: usize) -> Seen {
        let takes = |other: &Node| other.presence.is_some_and(|(_, is_leaving)| !is_leaving);
        let others = self.nodes.iter().enumerate().filter(|(number, _)| *number != node);
        let has_others = others.into_iter().any(|(_, other)| takes(other));
        Seen { has_others, is_empty: self.homes.iter().all(|home| *home != node) }
    }

    /// Notifies every node of a change of the cluster.
    fn tell_all(&mut self, of_leader: bool) {
        for node in 0..self.nodes.len() {
            let way = self.way();
            // A watch may be broken; then the node asks again at its deadline.
            if of_leader && (self.is_calm || !self.random.one_in(6)) {
                self.push(node, way, Item::Event(Event::LeaderChanged));
            } else if !of_leader {
                self.push(node, way, Item::See);
            }
        }
    }

    /// Removes the keys whose leases have ended.
    fn expire(&mut self) {
        let now = self.now;
        if self.key.is_some_and(|key| now >= key.ends) {
            self.key = None;
            self.tell_all(true);
        }
        let mut has_changed = false;
        for node in &mut self.nodes {
            has_changed |= node.presence.take_if(|(ends, _)| now >= *ends).is_some();
        }
        if has_changed {
            self.tell_all(false);
        }
    }

    /// Executes a request of a process. Returns its answer.
    fn at_etcd(&mut self, node: usize, number: u64, request: Request) -> Option<Event> {
        self.expire();
        let lives =
            self.nodes[node].process.as_ref().is_some_and(|process| process.number == number);
        let is_own = |key: &Key, question| {
            key.node == node && key.process == number && key.question == question
        };
        let now = self.now;
        match request {
            Request::Join => Some(Event::JoinAnswered(JoinAnswer::Joined)),
            Request::Appear | Request::Leave => {
                let is_leaving = matches!(request, Request::Leave);
                if lives {
                    self.nodes[node].presence = Some((now + TTL, is_leaving));
                    self.push(node, TTL, Item::Expire);
                    self.tell_all(false);
                }
                is_leaving.then_some(Event::LeavingAnnounced)
            }
            Request::Elect(question, asked) => {
                let answer = self.elect(node, number, question, asked);
                Some(Event::ElectionAnswered(question, answer))
            }
            Request::Renew(question) => {
                let until = now + TTL;
                let key = self.key.as_mut().filter(|key| is_own(key, question));
                let is_lost = key.map(|key| key.ends = until).is_none();
                self.push(node, TTL, Item::Expire);
                Some(Event::LeaseSeen(question, Lease { until, is_lost, must_reload: false }))
            }
            Request::Resign(question) => {
                if self.key.take_if(|key| is_own(key, question)).is_some() {
                    self.tell_all(true);
                }
                Some(Event::ResignAnswered(question))
            }
            Request::Commit(question) => {
                if self.key.is_some_and(|key| is_own(&key, question)) {
                    self.counts.commits += 1;
                    self.decide();
                } else {
                    self.counts.refused_commits += 1;
                }
                None
            }
        }
    }

    fn elect(&mut self, node: usize, process: u64, question: Question, asked: Asked) -> Answer {
        if let Some(key) = self.key {
            let api = format!("10.0.0.{}:1", key.node).parse().ok();
            let api = api.filter(|_| key.node != node);
            return Answer::Follows { api, text: format!("{key:?}") };
        }
        if asked == Asked::Leader {
            return Answer::NoLeader;
        }
        let ends = self.now + TTL;
        self.key = Some(Key { node, process, question, ends });
        self.push(node, TTL, Item::Expire);
        self.tell_all(true);
        // The holder counts from its request, which was sent at most the maximum delay earlier.
        let until = ends - ms(WAY_MAX_MS);
        Answer::Leads(Lease { until, is_lost: false, must_reload: false })
    }

    /// Acts as the present leader: fences nodes whose key is gone, gives their volumes to others,
    /// and moves volumes off nodes that leave.
    fn decide(&mut self) {
        let takes = |node: &Node| node.presence.is_some_and(|(_, is_leaving)| !is_leaving);
        let Some(to) = self.nodes.iter().position(takes) else { return };
        let mut has_changed = false;
        for volume in 0..VOLUMES {
            let home = self.homes[volume];
            if takes(&self.nodes[home]) {
                continue;
            }
            if self.nodes[home].presence.is_none() {
                self.fence(home);
            }
            self.homes[volume] = to;
            has_changed = true;
        }
        if has_changed {
            self.tell_all(false);
        }
    }

    fn fence(&mut self, node: usize) {
        let now = self.now;
        if let Some(process) = self.nodes[node].process.as_mut().filter(|process| process.is_up) {
            self.counts.fences += u64::from(process.fenced.is_none());
            process.fenced.get_or_insert(now);
            self.tell(|| format!("node {node} is fenced"));
        }
    }

    /// Handles the next item that is due by `until`. Returns whether there was one.
    fn step(&mut self, until: Duration) -> bool {
        let Some(Reverse((at, id))) = self.queue.peek().copied().filter(|next| next.0.0 <= until)
        else {
            return false;
        };
        self.queue.pop();
        self.now = at.max(self.now);
        let (node, number, item) = self.items.remove(&id).unwrap();
        if let Item::AtEtcd(request, is_heard) = item {
            let answer = self.at_etcd(node, number, request).filter(|_| is_heard);
            let lives =
                self.nodes[node].process.as_ref().is_some_and(|process| process.number == number);
            if let Some(event) = answer.filter(|_| lives) {
                let way = self.way();
                self.push(node, way, Item::Event(event));
            }
            return true;
        }
        if matches!(item, Item::Expire) {
            self.expire();
            return true;
        }
        let is_its = |process: &&Process| process.number == number && !process.has_gone;
        if self.nodes[node].process.as_ref().filter(is_its).is_none() {
            return true;
        }
        if self.now < self.nodes[node].paused_until {
            let later = self.nodes[node].paused_until;
            self.queue.push(Reverse((later, self.next)));
            self.items.insert(self.next, (node, number, item));
            self.next += 1;
            return true;
        }
        self.take(node, item);
        self.check();
        true
    }

    fn take(&mut self, node: usize, item: Item) {
        match item {
            Item::Due => {
                let deadline = self.process(node).membership.deadline();
                if deadline.is_some_and(|deadline| deadline <= self.now) {
                    self.handle(node, Event::Time);
                }
            }
            Item::Event(event) => self.hear(node, event),
            Item::See => {
                let seen = self.seen(node);
                self.handle(node, Event::ClusterSeen(seen));
            }
            Item::StoreAnswers => {
                if self.process(node).fenced.is_some() {
                    self.handle(node, Event::Fenced);
                }
                self.handle(node, Event::StoreAnswered);
            }
            Item::RenewNode => {
                if self.process(node).is_up {
                    if let Some((ends, _)) = &mut self.nodes[node].presence {
                        *ends = self.now + TTL;
                        self.push(node, TTL, Item::Expire);
                    } else {
                        self.ask(node, Request::Appear);
                    }
                    self.push(node, RENEWAL, Item::RenewNode);
                }
            }
            Item::RenewTerm(question) => {
                let runs = self.process(node).running.as_ref();
                if runs.is_some_and(|running| running.question == question) {
                    self.ask(node, Request::Renew(question));
                    self.push(node, RENEWAL, Item::RenewTerm(question));
                }
            }
            Item::Act(question) => {
                let runs = self.process(node).running.as_ref();
                if runs.is_some_and(|run| run.question == question && !run.is_ending) {
                    self.ask(node, Request::Commit(question));
                    self.push(node, TICK, Item::Act(question));
                }
            }
            Item::ControlEnds(question) => {
                let process = self.process(node);
                if let Some(running) = process.running.take_if(|it| it.question == question) {
                    let ended = Event::TermEnded(question, running.lease, Ok(()));
                    self.handle(node, ended);
                }
            }
            Item::Closed => {
                self.nodes[node].presence = None;
                self.process(node).fenced = None;
                self.tell_all(false);
                self.handle(node, Event::CloseAnswered);
            }
            Item::AtEtcd(..) | Item::Expire => {}
        }
    }

    fn hear(&mut self, node: usize, event: Event) {
        let now = self.now;
        let process = self.process(node);
        match &event {
            Event::ElectionAnswered(question, Answer::Leads(lease)) => {
                process.leases.insert(*question, *lease);
            }
            Event::LeaseSeen(question, lease) => {
                let running =
                    process.running.as_mut().filter(|running| running.question == *question);
                let Some(running) = running else { return };
                running.lease.is_lost |= lease.is_lost;
                if !lease.is_lost {
                    // The holder counts from its request.
                    let until = lease.until.saturating_sub(ms(WAY_MAX_MS));
                    running.lease.until = running.lease.until.max(until);
                }
                let lease = running.lease;
                self.counts.lost_leases += u64::from(lease.is_lost);
                return self.handle(node, Event::LeaseSeen(*question, lease));
            }
            _ => {}
        }
        let is_unheld = process.running.as_ref().is_some_and(|running| now >= running.lease.until);
        self.counts.unheld_events += u64::from(is_unheld);
        self.handle(node, event);
    }

    /// Asserts the invariants that hold at any moment.
    fn check(&mut self) {
        let now = self.now;
        let mut acting = BTreeSet::new();
        let mut broken = None;
        for (number, node) in self.nodes.iter().enumerate() {
            let Some(process) = &node.process else { continue };
            let is_awake = now >= node.paused_until && !process.has_gone;
            let running = process.running.as_ref().filter(|running| !running.is_ending && is_awake);
            if let Some(running) = running {
                if now < running.lease.until && !running.lease.is_lost {
                    acting.insert(number);
                }
                // An item that is due at this instant may still be in the queue.
                let over = running.lease.until + UNHELD_MAX;
                if now > over.max(node.awake_since) {
                    broken = Some(format!("node {number} leads after {over:?}"));
                }
            }
            let fenced = process.fenced.filter(|_| process.is_up && is_awake);
            let bound = fenced.map(|since| since.max(node.awake_since) + FENCE_BOUND);
            let ends = process.running.as_ref().is_some_and(|running| running.is_ending);
            if bound.is_some_and(|bound| now > bound) && !ends {
                let resigns = process.membership.leads().is_none() && process.running.is_none();
                if !resigns || now > bound.unwrap_or_default() + PATIENCE + FENCE_BOUND {
                    broken = Some(format!("node {number} is fenced and serves"));
                }
            }
        }
        if acting.len() > 1 {
            broken = Some(format!("nodes {acting:?} lead at the same time"));
        }
        if let Some(broken) = broken {
            self.break_off(format!("{now:?}: {broken}"));
        }
    }

    fn run(&mut self, span: Duration) {
        let until = self.now + span;
        while self.broken.is_none() && self.step(until) {}
        self.now = until;
    }

    /// Causes a random disturbance.
    fn disturb(&mut self) {
        let node = usize::try_from(self.random.below(self.nodes.len() as u64)).unwrap();
        let lives = self.nodes[node].process.as_ref().is_some_and(|process| !process.has_gone);
        match self.random.below(7) {
            0..=3 if lives => {
                let span = ms(self.random.below(12_000));
                let until = self.now + span;
                self.tell(|| format!("node {node} pauses until {until:?}"));
                let node = &mut self.nodes[node];
                node.paused_until = node.paused_until.max(until);
                node.awake_since = node.paused_until;
            }
            4 if lives => self.kill(node),
            5 if lives => {
                self.counts.stops += 1;
                self.process(node).is_stopping = true;
                self.handle(node, Event::StopRequested);
            }
            _ if !lives => self.boot(node),
            _ => {}
        }
    }

    /// Disturbs the nodes for a random time.
    pub(super) fn disturbed(&mut self) {
        for _ in 0..12 {
            let span = ms(self.random.below(6_000));
            self.run(span);
            if self.broken.is_some() {
                return;
            }
            self.disturb();
        }
    }

    /// Waits until the stopping processes have ended, for a limited time.
    fn await_stopped(&mut self) {
        for _ in 0..100 {
            let stops = |process: &Process| process.is_stopping && !process.has_gone;
            if !self.nodes.iter().any(|node| node.process.as_ref().is_some_and(stops)) {
                return;
            }
            self.run(Duration::from_secs(1));
        }
    }

    /// Ends all faults, and asserts that one node leads and commits. Then stops all nodes, and
    /// asserts that they end and no leader's key is left.
    pub(super) fn calm(&mut self) {
        self.is_calm = true;
        // Time for pauses to end and for late requests to arrive.
        self.run(Duration::from_secs(15));
        self.await_stopped();
        for node in 0..self.nodes.len() {
            let lives = self.nodes[node].process.as_ref().is_some_and(|process| !process.has_gone);
            if !lives {
                self.boot(node);
            }
        }
        self.run(Duration::from_secs(20));
        let before = self.counts.commits;
        self.run(Duration::from_secs(5));
        let leads = |node: &Node| {
            node.process.as_ref().is_some_and(|process| process.membership.leads().is_some())
        };
        let leaders = self.nodes.iter().filter(|node| leads(node)).count();
        if leaders != 1 || self.counts.commits == before {
            self.break_off(format!("{leaders} nodes lead at the end, or no commit has succeeded"));
        }
        for node in 0..self.nodes.len() {
            self.process(node).is_stopping = true;
            self.handle(node, Event::StopRequested);
        }
        self.await_stopped();
        for (number, node) in self.nodes.iter().enumerate() {
            if node.process.as_ref().is_some_and(|process| !process.has_gone) {
                self.broken.get_or_insert(format!("node {number} does not stop"));
            }
        }
        if let Some(key) = self.key {
            self.break_off(format!("the leader's key exists at the end: {key:?}"));
        }
    }
}

/// Returns the event for a request that etcd has not answered.
fn unanswered(request: &Request) -> Option<Event> {
    let text = "etcd does not answer".to_owned();
    match *request {
        Request::Join => Some(Event::JoinAnswered(JoinAnswer::Unavailable(text))),
        Request::Elect(question, _) => {
            let answer = Answer::Unknown { text, is_no_space: false };
            Some(Event::ElectionAnswered(question, answer))
        }
        Request::Resign(question) => Some(Event::ResignAnswered(question)),
        Request::Leave => Some(Event::LeavingAnnounced),
        Request::Renew(_) | Request::Commit(_) | Request::Appear => None,
    }
}
