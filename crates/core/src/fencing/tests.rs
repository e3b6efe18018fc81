//! The rules, step by step. Whether they keep data safe, the model in the simulator asks.

use super::*;
use crate::ids::VolumeId;
use crate::random::Random;
use alloc::vec::Vec;
use std::string::ToString;
use std::vec;

const VOLUME: VolumeId = VolumeId::from_bits(7);

fn instance(node: u32, incarnation: u64) -> Instance {
    Instance { node: NodeId(node), incarnation }
}

fn record(owner: Instance, generation: u64, state: State, revision: u64) -> Record {
    let generation = Generation(generation);
    let ownership = Ownership { owner, generation, state, before: Vec::new() };
    Record { ownership, revision: Revision(revision) }
}

/// A node whose orders are looked at one after the other.
struct Bench {
    node: Node,
    me: Instance,
    orders: Vec<Order>,
}

impl Bench {
    /// Node 2, registered as its fifth incarnation.
    fn new() -> Self {
        let (node, me) = (Node::new(NodeId(2)), instance(2, 5));
        let mut bench = Self { node, me, orders: Vec::new() };
        bench.learn(Input::Start);
        bench.register(me);
        bench
    }

    fn register(&mut self, me: Instance) {
        assert_eq!(self.next(), Step::Connect);
        self.answer(Answer::Done);
        assert_eq!(self.next(), Step::Register);
        assert_eq!(self.node.instance(), None, "nothing is taken before");
        self.answer(Answer::Registered(me));
        assert_eq!(self.node.instance(), Some(me));
        self.me = me;
    }

    fn learn(&mut self, input: Input) {
        assert!(self.orders.is_empty(), "unexpected: {:?}", self.orders);
        self.orders = self.node.on(input);
    }

    /// The only order left.
    fn next(&self) -> Step {
        assert_eq!(self.orders.len(), 1, "{:?}", self.orders);
        self.orders[0].step.clone()
    }

    /// Takes an order that has no answer.
    fn told(&mut self) -> Step {
        self.orders.remove(0).step
    }

    fn answer(&mut self, answer: Answer) {
        let Order { ticket, volume, .. } = self.orders.remove(0);
        self.learn(Input::Answered { volume, ticket, answer });
    }

    /// Answers steps that must come in this order with "done".
    fn done(&mut self, steps: &[Step]) {
        for step in steps {
            assert_eq!(self.next(), *step);
            self.answer(Answer::Done);
        }
    }

    fn claim(&mut self, answer: Cas) -> (Option<Revision>, Ownership) {
        let Step::Claim { expected, next } = self.next() else { panic!("{:?}", self.orders) };
        self.answer(Answer::Cas(answer));
        (expected, next)
    }

    fn take(&mut self, record: Option<Record>) {
        self.learn(Input::Take { volume: VOLUME, record });
    }

    fn see(&mut self, record: Record) {
        self.learn(Input::Seen { volume: VOLUME, record });
    }

    fn open_as(&mut self, owner: LockOwner) {
        self.done(&[Step::WaitForLatestOsdMap, Step::Open]);
        assert_eq!(self.next(), Step::GetLockOwners);
        self.answer(Answer::Owner(owner));
    }

    /// A node that serves the volume in generation 1, with the record at revision 11.
    fn serving() -> Self {
        let mut bench = Self::new();
        bench.take(None);
        bench.claim(Cas::Won(Revision(10)));
        bench.open_as(LockOwner::Nobody);
        bench.done(&[Step::AcquireLock]);
        bench.claim(Cas::Won(Revision(11)));
        assert_eq!(bench.told(), Step::Serve { generation: Generation(1) });
        assert_eq!(bench.node.serves(VOLUME), Some(Generation(1)));
        bench
    }

    /// The same after its move to node 3 began; the record is at revision 12.
    fn moving() -> Self {
        let mut bench = Self::serving();
        bench.see(bench.record_of_mine(State::Moving { to: instance(3, 9) }, 12));
        assert_eq!(bench.node.serves(VOLUME), None);
        bench
    }

    fn record_of_mine(&self, state: State, revision: u64) -> Record {
        record(self.me, 1, state, revision)
    }
}

#[test]
fn a_takeover_fences_waits_breaks_locks_and_only_then_serves() {
    let mut bench = Bench::new();
    let (x, y) = (instance(1, 3), instance(4, 1));
    let mut seen = record(x, 6, State::Taking, 40);
    seen.ownership.before = vec![y];
    bench.take(Some(seen));
    let (expected, next) = bench.claim(Cas::Won(Revision(41)));
    assert_eq!(expected, Some(Revision(40)));
    let ours = Ownership {
        owner: bench.me,
        generation: Generation(7),
        state: State::Taking,
        before: vec![x, y],
    };
    assert_eq!(next, ours);
    let expire_s = BLOCKLIST_EXPIRE_S;
    for fenced in [x, y] {
        bench.done(&[
            Step::NoteFence { instance: fenced },
            Step::Blocklist { instance: fenced, expire_s },
        ]);
    }
    bench.open_as(LockOwner::Known(y));
    bench.done(&[Step::BreakLock { owner: y }]);
    assert_eq!(bench.next(), Step::GetLockOwners);
    bench.answer(Answer::Owner(LockOwner::Nobody));
    bench.done(&[Step::AcquireLock]);
    assert_eq!(bench.node.serves(VOLUME), None);
    let (expected, next) = bench.claim(Cas::Won(Revision(42)));
    assert_eq!(expected, Some(Revision(41)));
    assert_eq!(next, Ownership { state: State::Serving, before: Vec::new(), ..ours });
    assert_eq!(bench.told(), Step::Serve { generation: Generation(7) });
    assert!(bench.orders.is_empty());
}

#[test]
fn a_lock_of_others_is_never_broken() {
    for by in [LockOwner::Stranger, LockOwner::Known(instance(4, 1))] {
        let mut bench = Bench::new();
        bench.take(None);
        bench.claim(Cas::Won(Revision(1)));
        bench.open_as(by);
        assert_eq!(bench.told(), Step::Alarm(Alarm::LockHeld { by }));
        assert!(bench.orders.is_empty(), "it waits");
        bench.take(None);
        assert_eq!(bench.next(), Step::GetLockOwners);
    }
}

#[test]
fn whoever_loses_the_record_serves_nothing() {
    let others = record(instance(1, 3), 2, State::Taking, 50);
    let mut bench = Bench::new();
    bench.take(None);
    bench.claim(Cas::Lost(Some(others.clone())));
    assert_eq!(bench.told(), Step::CloseClients);
    bench.done(&[Step::CloseImage]);

    // After the lock was taken, too.
    let mut bench = Bench::new();
    bench.take(None);
    bench.claim(Cas::Won(Revision(1)));
    bench.open_as(LockOwner::Nobody);
    bench.done(&[Step::AcquireLock]);
    bench.claim(Cas::Lost(Some(others.clone())));
    assert_eq!(bench.told(), Step::CloseClients);
    bench.done(&[Step::CloseImage]);

    let mut bench = Bench::serving();
    bench.see(others);
    assert_eq!(bench.node.serves(VOLUME), None);
    assert_eq!(bench.told(), Step::CloseClients);
    // What was told before is no news.
    let old = bench.record_of_mine(State::Taking, 10);
    bench.done(&[Step::CloseImage]);
    bench.see(old);
    assert!(bench.orders.is_empty());
}

#[test]
fn a_write_of_the_record_without_an_answer_is_looked_up() {
    let mut bench = Bench::new();
    bench.take(None);
    bench.claim(Cas::Unknown);
    assert_eq!(bench.next(), Step::ReadRecord);
    bench.answer(Answer::Failed(Fault::Other(0)));
    assert_eq!(bench.next(), Step::ReadRecord);
    bench.answer(Answer::Record(Some(bench.record_of_mine(State::Taking, 10))));
    assert_eq!(bench.next(), Step::WaitForLatestOsdMap);

    let mut bench = Bench::new();
    bench.take(None);
    bench.claim(Cas::Unknown);
    bench.answer(Answer::Record(None));
    assert_eq!(bench.told(), Step::CloseClients);
    bench.done(&[Step::CloseImage]);
    // It arrives all the same.
    bench.see(bench.record_of_mine(State::Taking, 10));
    assert_eq!(bench.next(), Step::WaitForLatestOsdMap);
}

#[test]
fn a_fenced_node_closes_everything_and_begins_anew_with_nothing() {
    let mut bench = Bench::serving();
    let fault = Fault::ShutDown;
    let old = bench.me;
    bench.learn(Input::IoFailed { instance: old, fault });
    assert_eq!((bench.node.instance(), bench.node.serves(VOLUME)), (None, None));
    assert_eq!(bench.told(), Step::CloseAllClients);
    bench.done(&[Step::Disconnect]);
    bench.register(instance(2, 6));
    assert!(bench.orders.is_empty(), "it waits to be given volumes");
    // What the dead instance still says is nothing to the new one.
    bench.learn(Input::IoFailed { instance: old, fault });
    let late = Answer::Failed(Fault::ShutDown);
    bench.learn(Input::Answered { volume: Some(VOLUME), ticket: Ticket(3), answer: late });
    assert_eq!(bench.node.instance(), Some(instance(2, 6)));
    // Its own former instance is fenced as anybody's.
    bench.take(Some(record(old, 1, State::Serving, 11)));
    let (_, next) = bench.claim(Cas::Won(Revision(12)));
    assert_eq!((next.before, next.generation), (vec![old], Generation(2)));
    assert_eq!(bench.next(), Step::NoteFence { instance: old });
}

#[test]
fn a_move_drains_releases_and_hands_over() {
    let mut bench = Bench::moving();
    let to = instance(3, 9);
    bench.done(&[Step::Drain, Step::SendBalances, Step::ReleaseLock]);
    let (expected, next) = bench.claim(Cas::Won(Revision(13)));
    assert_eq!(expected, Some(Revision(12)));
    assert_eq!((next.owner, next.generation, next.before), (to, Generation(2), vec![]));
    assert_eq!(bench.told(), Step::Relay { to, generation: Generation(2) });
    bench.done(&[Step::CloseImage]);
    // The other side: it warms up, and takes what it is given without a fence.
    let mut bench = Bench::new();
    bench.see(record(instance(1, 1), 3, State::Moving { to: bench.me }, 20));
    assert_eq!(bench.told(), Step::Warm);
    assert_eq!(bench.node.holds(VOLUME), None);
    bench.see(record(bench.me, 4, State::Taking, 21));
    assert_eq!(bench.node.holds(VOLUME), Some(Generation(4)));
    bench.open_as(LockOwner::Nobody);
    bench.done(&[Step::AcquireLock]);
    bench.claim(Cas::Won(Revision(22)));
    assert_eq!(bench.told(), Step::Serve { generation: Generation(4) });
}

#[test]
fn a_move_that_is_called_off_leaves_the_volume_where_it_is() {
    let serves = Step::Serve { generation: Generation(1) };
    let mut bench = Bench::moving();
    bench.orders.clear();
    bench.see(bench.record_of_mine(State::Serving, 13));
    assert_eq!(bench.told(), serves);
    assert_eq!(bench.node.serves(VOLUME), Some(Generation(1)));

    // While the lock is being released, and while the record is being written.
    for is_writing in [false, true] {
        let mut bench = Bench::moving();
        bench.done(&[Step::Drain, Step::SendBalances]);
        let stays = bench.record_of_mine(State::Serving, 13);
        if is_writing {
            bench.done(&[Step::ReleaseLock]);
            bench.claim(Cas::Lost(Some(stays)));
            bench.done(&[Step::WaitForLatestOsdMap, Step::Open]);
        } else {
            let release = bench.orders.remove(0);
            bench.see(stays);
            bench.orders.push(release);
            bench.answer(Answer::Done);
        }
        assert_eq!(bench.next(), Step::GetLockOwners);
        bench.answer(Answer::Owner(LockOwner::Nobody));
        bench.done(&[Step::AcquireLock]);
        bench.claim(Cas::Won(Revision(14)));
        assert_eq!(bench.told(), serves);
    }
}

#[test]
fn after_a_gap_the_lock_is_asked_for_before_anything_is_submitted() {
    let mut bench = Bench::serving();
    bench.learn(Input::Gap(GAP_MAX));
    assert!(bench.orders.is_empty());
    let gap = Input::Gap(Duration::from_ms(2_001));
    bench.learn(gap.clone());
    assert_eq!(bench.told(), Step::CloseRelays);
    assert_eq!(bench.next(), Step::HoldAndCheckLock);
    bench.answer(Answer::IsOwner(true));
    assert_eq!(bench.told(), Step::Resume);
    bench.learn(gap);
    bench.told();
    bench.answer(Answer::IsOwner(false));
    assert_eq!(bench.told(), Step::CloseClients);
    assert_eq!(bench.node.serves(VOLUME), None);
    assert_eq!(bench.next(), Step::ReadRecord);
    // Nobody has taken it: somebody broke the lock by hand.
    bench.answer(Answer::Record(Some(bench.record_of_mine(State::Serving, 11))));
    bench.open_as(LockOwner::Nobody);
    bench.done(&[Step::AcquireLock]);
    assert!(matches!(bench.next(), Step::Claim { .. }));
}

#[test]
fn a_volume_without_ceph_is_given_up() {
    let mut bench = Bench::serving();
    bench.learn(Input::StorageLost);
    assert_eq!(bench.told(), Step::CloseClients);
    let (_, next) = bench.claim(Cas::Won(Revision(12)));
    assert_eq!(next.state, State::Abandoned);
    bench.done(&[Step::CloseImage]);
    bench.see(record(bench.me, 1, State::Abandoned, 12));
    assert!(bench.orders.is_empty());
}

#[test]
fn what_fails_is_tried_on_with_growing_waits_and_one_alarm() {
    let mut bench = Bench::new();
    bench.take(Some(record(instance(1, 3), 6, State::Serving, 40)));
    bench.claim(Cas::Won(Revision(41)));
    bench.done(&[Step::NoteFence { instance: instance(1, 3) }]);
    let mut delays_ms = Vec::new();
    let mut alarms = 0;
    for _ in 0..20 {
        bench.answer(Answer::Failed(Fault::Other(-110)));
        if let Step::Alarm(alarm) = bench.orders[0].step {
            assert_eq!(alarm, Alarm::Slow { attempts: 8 });
            alarms += 1;
            bench.told();
        }
        assert!(matches!(bench.next(), Step::Blocklist { .. }), "no entry, no takeover");
        delays_ms.push(bench.orders[0].delay.ns / 1_000_000);
    }
    assert_eq!(delays_ms[..8], [100, 200, 400, 800, 1_600, 3_200, 5_000, 5_000]);
    assert_eq!(alarms, 1);
}

#[test]
fn so_many_takers_may_die_and_no_more() {
    let mut ownership = Ownership::first(instance(0, 0));
    for taker in 1..=64 {
        ownership = ownership.taken_by(instance(0, taker)).unwrap();
    }
    assert_eq!(ownership.before.len(), PREDECESSORS_MAX);
    assert_eq!(ownership.taken_by(instance(0, 65)), Err(TooManyTakers));
    // One of them may try again: it fences the others, and not itself.
    let again = ownership.taken_by(instance(0, 3)).unwrap();
    assert_eq!((again.before.len(), again.before.contains(&instance(0, 3))), (64, false));
}

#[test]
fn entries_go_only_when_their_process_is_certainly_dead() {
    let (first, boot) = (instance(2, 5), BootId(77));
    let entry = Entry { instance: instance(2, 4), boot, age: SETTLED_AFTER };
    let may = |entry, entries| may_remove(&entry, first, boot, entries);
    assert!(may(entry, 1_001));
    assert!(!may(entry, 1_000));
    assert!(!may(Entry { instance: instance(2, 5), ..entry }, 1_001), "of this process");
    assert!(!may(Entry { instance: instance(1, 4), ..entry }, 1_001), "another node's");
    assert!(!may(Entry { boot: BootId(78), ..entry }, 1_001), "a restored machine");
    assert!(!may(Entry { age: Duration::from_secs(3_599), ..entry }, 1_001));
}

#[test]
fn constants_and_words_agree() {
    assert_eq!(BLOCKLIST_EXPIRE_S, 365 * 24 * 3_600);
    assert_eq!(instance(2, 5).to_string(), "node 2, incarnation 5");
}

/// A shell that answers anything at any time, twice, late, or with what was not asked for: the
/// rules keep going, and no order is given for a volume while its instance is down.
#[test]
fn a_confused_shell_breaks_nothing() {
    let mut random = Random::new(27, 0);
    for _ in 0..300 {
        let mut node = Node::new(NodeId(2));
        let mut given: Vec<Order> = node.on(Input::Start);
        for _ in 0..200 {
            let input = confused(&mut random, &given);
            let was_up = node.instance().is_some();
            let orders = node.on(input);
            let is_up = node.instance().is_some();
            assert!(was_up || is_up || orders.iter().all(|order| order.volume.is_none()));
            given.extend(orders);
            let serves = node.serves(VOLUME);
            assert!(serves.is_none() || (is_up && serves == node.holds(VOLUME)));
        }
    }
}

fn confused(random: &mut Random, given: &[Order]) -> Input {
    let me = instance(2, random.below(4));
    let third = instance(3, random.below(3));
    let other = random.among(&[me, instance(1, 1), third]);
    let state = random.among(&[
        State::Taking,
        State::Serving,
        State::Moving { to: other },
        State::Abandoned,
    ]);
    let told = record(other, random.below(5), state, random.below(30));
    let fault = random.among(&[Fault::ShutDown, Fault::NotOwner, Fault::Other(-5)]);
    let owner = random.among(&[LockOwner::Nobody, LockOwner::Stranger, LockOwner::Known(other)]);
    let revision = Revision(random.below(30));
    let answer = match random.below(12) {
        0..4 => Answer::Done,
        4 => Answer::Registered(me),
        5 => Answer::Cas(Cas::Won(revision)),
        6 => Answer::Cas(Cas::Lost(random.one_in(2).then(|| told.clone()))),
        7 => Answer::Cas(Cas::Unknown),
        8 => Answer::Record(random.one_in(2).then(|| told.clone())),
        9 => Answer::Owner(owner),
        10 => Answer::IsOwner(random.one_in(2)),
        _ => Answer::Failed(fault),
    };
    match random.below(10) {
        0 => Input::Seen { volume: VOLUME, record: told },
        1 => Input::Take { volume: VOLUME, record: random.one_in(2).then_some(told) },
        2 => Input::Gap(Duration::from_secs(random.below(5))),
        3 if random.one_in(4) => Input::IoFailed { instance: me, fault },
        3 if random.one_in(4) => Input::StorageLost,
        _ => {
            let last = given.len() - 1;
            let at = match random.one_in(4) {
                true => usize::try_from(random.below(given.len().try_into().unwrap())).unwrap(),
                false => last,
            };
            let Order { ticket, volume, .. } = given[at];
            Input::Answered { volume, ticket, answer }
        }
    }
}
