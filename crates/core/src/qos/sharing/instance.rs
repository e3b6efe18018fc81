//! The limits of an instance, and whose turn it is among its flows.
//!
//! A ring is served by deficit round robin in time: a quantum costs what it takes of the limit it
//! takes most of (its bytes of the limit in bytes, its I/Os of the limit in I/Os), and each turn
//! gives a flow as much as a 16 KiB request costs, in proportion to its volume's weight. So who
//! sends 256 KiB requests gets no more bytes than who sends 4 KiB ones, and a volume of 16,000 IOPS
//! gets five times as much as one of 3,000. A flow with a single small request is let in at the
//! front once a round: it waits for one quantum at most.

use super::flow::{Flow, HeldBy, NIL, at};
use super::model::InstancePacing;
use super::ring::{Place, Ring};
use crate::qos::cost::Cost;
use crate::qos::gate::{Exceeded, Gate};
use crate::qos::pacer::{Pacer, Tolerance};
use crate::qos::pacing::Balances;
use crate::qos::phase::Phase;
use crate::qos::reserves::Reserves;
use crate::request::Operation;
use crate::time::{Duration, Instant};

/// A heavier flow's turn is longer, at most by so much: who waits behind it waits no more than that
/// for each of its kind. Where weights are further apart, a light flow needs several rounds for one
/// request.
const TURN_SPREAD_MAX: u64 = 16;

/// Rounds that one I/O of 16 KiB takes of a light flow at most. Weights that are further apart than
/// any two volumes' rates count as if they were not: a round costs time, however little it gives.
const TURNS_MAX: u64 = 1_024;

/// Virtual time of one nanosecond of the limits at weight 1.
const VIRTUAL_PER_NS: u64 = 1 << 16;

/// What a turn is worth at a volume, and at an instance to a flow of the lightest weight.
pub(crate) const TURN: Cost = Cost { operations: 1, bytes: 16 << 10, guard: 0 };

/// What an instance has done.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InstanceCounters {
    /// Counted I/Os charged.
    pub operations: u64,
    /// Bytes charged.
    pub bytes: u64,
    /// Time in which the instance's limits held up the flow whose turn it was.
    pub exceeded: Exceeded,
    /// Flows that wait for the instance at present.
    pub waiting: u32,
}

/// Limits of one direction of the link.
#[derive(Debug)]
struct Link {
    read: Pacer,
    write: Pacer,
    tolerance: Tolerance,
}

impl Link {
    fn settle(&mut self, elapsed: Duration) {
        let _ = self.read.settle(elapsed, self.tolerance);
        let _ = self.write.settle(elapsed, self.tolerance);
    }
}

#[derive(Debug)]
pub(crate) struct Instance {
    gate: Gate,
    pub reserves: Reserves,
    link: Link,
    /// Of the link; and of the gate, whose limits are settled with it.
    settled_at: Instant,
    operations_per_second: Option<u64>,
    bytes_per_second: Option<u64>,
    /// Who waits: those whose next quantum goes over the writing link, and all others. Without
    /// limits of the link everybody is in the first.
    rings: [Ring; 2],
    /// Turns that ended, ever.
    turns: u32,
    /// The weights of its lightest and its heaviest flow.
    weights: (u64, u64),
    bytes: u64,
    /// A flow whose turn at its device had come when these limits were used up, and since when it
    /// waits. It may have gone since.
    pub sent_back: (u32, Instant),
    /// What held up the flow whose turn it was last.
    pub held_by: HeldBy,
}

impl Instance {
    pub fn new(now: Instant, pacing: &InstancePacing, balances: Balances) -> Self {
        let limits = pacing.as_volume();
        let tolerance = Tolerance::new(pacing.tolerance);
        let mut instance = Self {
            gate: Gate::new(now, &limits),
            reserves: Reserves::new(now, &limits, balances),
            link: Link {
                read: Pacer::full(pacing.read_bytes_per_second, tolerance),
                write: Pacer::full(pacing.write_bytes_per_second, tolerance),
                tolerance,
            },
            settled_at: now,
            operations_per_second: None,
            bytes_per_second: None,
            rings: [Ring::EMPTY, Ring::EMPTY],
            turns: 0,
            weights: (u64::MAX, 0),
            bytes: 0,
            sent_back: (NIL, now),
            held_by: HeldBy::InstanceOperations,
        };
        instance.set_rates(pacing);
        instance
    }

    /// Puts other limits in force; nothing is refilled.
    pub fn repace(&mut self, now: Instant, pacing: &InstancePacing) {
        self.reopen(now);
        self.gate.repace(&mut self.reserves, &pacing.as_volume());
        let Link { read, write, tolerance, .. } = &mut self.link;
        *tolerance = Tolerance::new(pacing.tolerance);
        read.set_rate(pacing.read_bytes_per_second, *tolerance);
        write.set_rate(pacing.write_bytes_per_second, *tolerance);
        self.set_rates(pacing);
    }

    fn set_rates(&mut self, pacing: &InstancePacing) {
        self.operations_per_second = pacing.operations.map(|limit| limit.per_second);
        let slowest = [
            pacing.bytes.map(|limit| limit.per_second),
            pacing.read_bytes_per_second,
            pacing.write_bytes_per_second,
        ];
        self.bytes_per_second = slowest.into_iter().flatten().min();
    }

    /// Brings the limits up to `now` and closes the account of a wait.
    pub fn reopen(&mut self, now: Instant) {
        self.look(now);
        self.gate.close_account(&mut self.reserves, now);
    }

    /// Brings the limits up to `now`.
    #[inline]
    pub fn look(&mut self, now: Instant) {
        let elapsed = now.since(self.settled_at);
        if elapsed == Duration::ZERO {
            return; // several volumes at the same time are usual
        }
        self.settled_at = now;
        self.gate.settle_levels(now);
        self.link.settle(elapsed);
    }

    fn link_of(&mut self, operation: Operation) -> Option<&mut Pacer> {
        match operation {
            Operation::Read => Some(&mut self.link.read),
            Operation::Write { .. } => Some(&mut self.link.write),
            _ => None,
        }
    }

    /// Whether a quantum may go, as of the last settling. The bytes of its cost go over the link.
    #[inline]
    pub fn allows(&mut self, cost: &Cost, operation: Operation) -> bool {
        self.gate.allows(&mut self.reserves, cost)
            && (cost.bytes == 0 || self.link_of(operation).is_none_or(|link| link.is_ready()))
    }

    /// Charges a quantum that was allowed.
    #[inline]
    pub fn charge(&mut self, cost: &Cost, operation: Operation) {
        self.gate.charge(&mut self.reserves, cost);
        if let Some(link) = self.link_of(operation) {
            link.charge(cost.bytes);
        }
        self.bytes += cost.bytes;
    }

    /// Notes that the first quantum of a ring is held up from the last settling on, and by what.
    /// Returns when any ring may go on; `None` if only a change of the limits can let it.
    pub fn shut(&mut self, cost: &Cost, operation: Operation) -> Option<Instant> {
        let now = self.settled_at;
        let ring = self.ring_of(operation);
        let common = self.gate.shut(&mut self.reserves, cost);
        self.held_by = match self.gate.shut_by_bytes() {
            true => HeldBy::InstanceBytes,
            false => HeldBy::InstanceOperations,
        };
        let link = self.link_of(operation);
        let link = link.filter(|link| cost.bytes > 0 && link.rate_per_second().is_some());
        let link = link.map(|link| link.wait());
        let link_opens_at = link.map(|wait| wait.map(|wait| now + wait));
        let by_link = match (common, link_opens_at) {
            (Some(common), Some(link)) => link.is_none_or(|link| link > common),
            _ => false,
        };
        let opens_at = if by_link { link_opens_at.flatten() } else { common };
        if by_link {
            self.gate.shut_for_bytes(opens_at.unwrap_or(now));
            self.held_by = HeldBy::InstanceBytes;
        }
        if by_link {
            // Its direction had all that it may have: it is owed nothing of what both share.
            self.level(ring);
        }
        self.rings[ring].by_common_limit = !by_link;
        self.rings[ring].opens_at = opens_at;
        let waited_for = self.rings.iter().filter(|ring| ring.waiting > 0);
        waited_for.filter_map(|ring| ring.opens_at).min()
    }

    /// In which ring a quantum waits.
    pub const fn ring_of(&self, operation: Operation) -> usize {
        match operation {
            Operation::Write { .. } if self.link.write.rate_per_second().is_some() => 1,
            _ => 0,
        }
    }

    /// The ring whose turn it is, of those in `candidates` that are waited for.
    pub fn next_ring(&self, candidates: [bool; 2]) -> Option<usize> {
        let waited_for = |ring: &usize| candidates[*ring] && self.rings[*ring].waiting > 0;
        [0, 1].into_iter().filter(waited_for).min_by_key(|ring| self.rings[*ring].virtual_time)
    }

    /// Notes what a ring's flow had, as long as that is in it. Where both rings want what they
    /// share, many flows that go one way get more of it than one that goes the other: as much as if
    /// they were in one ring.
    pub fn served(&mut self, ring: usize, share_ns: u64) {
        let entry = &mut self.rings[ring];
        let step = share_ns.saturating_mul(VIRTUAL_PER_NS) / entry.weight.max(1);
        entry.virtual_time = entry.virtual_time.saturating_add(step.max(1));
        if self.rings[1 - ring].waiting == 0 {
            self.level(1 - ring); // as it will be when somebody waits there
        }
        // Only the difference counts: so there is no end of time.
        let least = self.rings[0].virtual_time.min(self.rings[1].virtual_time);
        self.rings.iter_mut().for_each(|ring| ring.virtual_time -= least);
    }

    /// Lets a ring catch up with nothing that it did not have before the other one.
    fn level(&mut self, ring: usize) {
        let other = self.rings[1 - ring].virtual_time;
        let entry = &mut self.rings[ring];
        entry.virtual_time = entry.virtual_time.max(other);
    }

    /// What a quantum takes of the limit it takes most of; see [`Cost::share_ns`].
    pub fn share_ns(&self, cost: &Cost) -> u64 {
        cost.share_ns(self.operations_per_second, self.bytes_per_second)
    }

    /// Takes note of a flow's weight.
    pub fn weigh_in(&mut self, weight: u64) {
        let (least, most) = self.weights;
        self.weights = (least.min(weight), most.max(weight));
    }

    /// What a turn is worth to a flow of this weight, in nanoseconds.
    pub fn turn_ns(&self, weight: u64) -> u64 {
        let unit = self.share_ns(&TURN);
        let (least, most) = self.weights;
        let one_turn = least.max(most / TURN_SPREAD_MAX).max(1);
        (unit.saturating_mul(weight) / one_turn).max(unit / TURNS_MAX).max(1)
    }

    pub const fn first(&self, ring: usize) -> u32 {
        self.rings[ring].first
    }

    /// Whether a quantum that has just arrived must wait because others do: in its own ring, or in
    /// the other one for what both share.
    #[inline]
    pub fn must_wait(&self, operation: Operation) -> bool {
        let ring = self.ring_of(operation);
        let other = &self.rings[1 - ring];
        self.rings[ring].waiting > 0 || (other.waiting > 0 && other.by_common_limit)
    }

    /// Puts a flow in a ring, by when its last turn was; at the front if it is light, that was a
    /// round ago, and the first of the ring had one since.
    pub fn join(
        &mut self,
        flows: &mut [Flow],
        flow: u32,
        ring: usize,
        (weight, light): (u32, bool),
    ) {
        let round = self.rings[0].waiting + self.rings[1].waiting;
        let since = |flow: &Flow| self.turns.wrapping_sub(flow.turn_at);
        let away = since(&flows[at(flow)]);
        let first = flows.get(at(self.rings[ring].first)).map_or(0, since);
        let at_front = light && away >= round && away >= first;
        flows[at(flow)].in_turn = false;
        flows[at(flow)].resumed = false;
        // Who was away for longer is owed no more than one who was there.
        let place = if at_front { Place::First } else { Place::Behind(away.min(round)) };
        self.enter(flows, (flow, weight), ring, place);
    }

    /// Puts a flow in a ring that goes on with its turn: at the front, but for a flow with a single
    /// request there, which waits for no more than one quantum.
    pub fn resume(&mut self, flows: &mut [Flow], flow: u32, ring: usize, weight: u32) {
        let first = flows.get(at(self.rings[ring].first));
        let is_light = first.is_some_and(|first| !first.in_turn && first.requests() == 1);
        let place = if is_light { Place::Second } else { Place::First };
        self.enter(flows, (flow, weight), ring, place);
    }

    /// Puts a flow at the front of a ring: it was its turn.
    pub fn join_front(&mut self, flows: &mut [Flow], flow: u32, ring: usize, weight: u32) {
        self.enter(flows, (flow, weight), ring, Place::First);
    }

    fn enter(&mut self, flows: &mut [Flow], flow: (u32, u32), ring: usize, place: Place) {
        if self.rings[ring].waiting == 0 {
            // It catches up with nothing; and who is always back before the other ring's turn is
            // not forgiven what it had, or it would go first for ever.
            self.level(ring);
            self.rings[ring].opens_at = None;
        }
        flows[at(flow.0)].ring = u8::from(ring == 1);
        self.rings[ring].enter(flows, flow, place, self.turns);
    }

    /// Takes a flow out of its ring, which ends its turn: for the others one that it resumed ended
    /// when it was broken off.
    pub fn leave(&mut self, flows: &mut [Flow], flow: u32) {
        if flows[at(flow)].in_turn && !flows[at(flow)].resumed {
            self.note_turn(&mut flows[at(flow)]);
        }
        self.rings[usize::from(flows[at(flow)].ring)].leave(flows, flow);
    }

    /// Lets a flow go on with its turn in the other ring, or wait for one there.
    pub fn cross(&mut self, flows: &mut [Flow], flow: u32, weight: u32) {
        let Flow { ring, in_turn, .. } = flows[at(flow)];
        self.rings[usize::from(ring)].leave(flows, flow);
        let other = 1 - usize::from(ring);
        if in_turn {
            self.join_front(flows, flow, other, weight);
        } else {
            self.join(flows, flow, other, (weight, false));
        }
    }

    /// Ends the turn of the first flow of a ring: it goes to the end, or where it would be now, had
    /// it not resumed its turn.
    pub fn end_turn(&mut self, flows: &mut [Flow], ring: usize) {
        let first = self.rings[ring].first;
        let flow = &mut flows[at(first)];
        if flow.resumed {
            let weight = flow.ring_weight;
            self.rings[ring].leave(flows, first);
            self.join(flows, first, ring, (weight, false));
            return;
        }
        self.rings[ring].first = flow.next;
        self.note_turn(flow);
    }

    /// Counts turns that a flow had alone, in the middle of another one.
    pub const fn count_turns(&mut self, flow: &mut Flow, turns: u32) {
        self.turns = self.turns.wrapping_add(turns);
        flow.turn_at = self.turns;
    }

    const fn note_turn(&mut self, flow: &mut Flow) {
        self.count_turns(flow, 1);
        flow.in_turn = false;
    }

    pub fn counters(&self, now: Instant) -> InstanceCounters {
        InstanceCounters {
            operations: self.gate.operations_charged(),
            bytes: self.bytes,
            exceeded: self.gate.exceeded(&self.reserves, now),
            waiting: self.rings[0].waiting + self.rings[1].waiting,
        }
    }

    /// Tells what decides its future with one flow at most; `None` if it has links of a direction:
    /// then it makes a difference which way the bytes go.
    pub fn tell(&self, phase: &mut Phase) -> Option<()> {
        self.gate.tell(phase);
        self.reserves.tell(phase);
        let Ring { waiting, opens_at, .. } = self.rings[0];
        phase.words([waiting.into()]);
        if waiting > 0 {
            phase.time(opens_at.unwrap_or(phase.at()));
        }
        let has_links = [&self.link.read, &self.link.write].map(|link| link.rate_per_second());
        (has_links == [None, None]).then_some(())
    }

    pub fn balances(&mut self, now: Instant) -> Balances {
        self.reserves.settle(now);
        self.reserves.balances()
    }

    pub fn set_balances(&mut self, now: Instant, balances: Balances) {
        self.reserves.settle(now);
        self.reserves.set_balances(balances);
    }

    /// How long the credits last at these demands; the shorter of both.
    pub fn time_to_empty(&mut self, now: Instant, demand: (u64, u64)) -> Option<Duration> {
        self.reserves.settle(now);
        self.reserves.time_to_empty(demand)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qos::pacing::Limit;

    /// A direction that had all of its link is owed nothing of what both directions share.
    #[test]
    fn a_direction_held_up_by_its_link_saves_no_turns() {
        let link = Some(1_000_000);
        let pacing = InstancePacing {
            operations: Some(Limit { per_second: 1_000, credit: None }),
            read_bytes_per_second: link,
            write_bytes_per_second: link,
            ..InstancePacing::UNLIMITED
        };
        let mut instance = Instance::new(Instant::ZERO, &pacing, Balances::default());
        let mut flows = [Flow::new(0, 0, Instant::ZERO), Flow::new(1, 0, Instant::ZERO)];
        let cost = Cost { operations: 1, bytes: 256 << 10, guard: 0 };
        let write = Operation::Write { fua: false };
        instance.join(&mut flows, 0, 0, (1_000, false));
        instance.join(&mut flows, 1, 1, (1_000, false));
        instance.served(1, 1_000_000_000);
        assert_eq!(instance.next_ring([true, true]), Some(0));
        instance.charge(&cost, Operation::Read);
        assert!(instance.shut(&cost, Operation::Read).is_some());
        instance.served(0, 1_000);
        assert_eq!(instance.next_ring([true, true]), Some(1));
        assert_eq!(instance.ring_of(write), 1);
    }

    #[test]
    fn turns_follow_weights_up_to_a_bound() {
        let operations = Some(Limit { per_second: 1_000, credit: None });
        let pacing = InstancePacing { operations, ..InstancePacing::UNLIMITED };
        let mut instance = Instance::new(Instant::ZERO, &pacing, Balances::default());
        let request_ns = 1_000_000;
        instance.weigh_in(100);
        instance.weigh_in(400);
        assert_eq!((instance.turn_ns(100), instance.turn_ns(400)), (request_ns, 4 * request_ns));
        instance.weigh_in(1_600 * 100);
        assert_eq!(instance.turn_ns(160_000), TURN_SPREAD_MAX * request_ns);
        assert_eq!(instance.turn_ns(100), request_ns / 100);
        instance.weigh_in(u32::MAX.into());
        assert_eq!(instance.turn_ns(1), request_ns / TURNS_MAX);
    }
}
