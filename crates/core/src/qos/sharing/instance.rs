//! The limits of an instance, and the round robin among its flows.
//!
//! A ring is served by deficit round robin in time: a quantum costs its time of the limit of which
//! it takes most (its bytes at the limit in bytes, its I/Os at the limit in I/Os), and each turn
//! gives a flow the cost of a 16 KiB request, in proportion to its volume's weight. So a client
//! with 256 KiB requests gets no more bytes than one with 4 KiB requests, and a volume of 16,000
//! IOPS gets five times as much as one of 3,000. A flow with a single small request enters at the
//! front once a round: it waits for one quantum at most.

use super::flow::{Flow, Flows, HeldBy, Waits};
use super::model::InstancePacing;
use super::ring::{Place, Ring};
use crate::qos::cost::Cost;
use crate::qos::limiter::{Exceeded, Limiter};
use crate::qos::pacer::{Pacer, Tolerance};
use crate::qos::pacing::Balances;
use crate::qos::phase::Phase;
use crate::qos::reserves::Reserves;
use crate::qos::slots::{FlowSlot, InstanceSlot};
use crate::request::Operation;
use crate::time::{Duration, Instant};

/// Maximum ratio of two flows' turns. A heavier flow's turn is longer, at most by this factor,
/// which limits the wait behind each heavy flow. If weights are further apart, a light flow needs
/// several rounds for one request.
const TURN_SPREAD_MAX: u64 = 16;

/// Maximum number of rounds that one I/O of 16 KiB of a light flow takes. Weights that are further
/// apart than any two volumes' rates are treated as if they were not: a round takes processor time,
/// however little it gives.
const TURNS_MAX: u64 = 1_024;

/// Cost that a turn covers at a volume, and at an instance for a flow of the lightest weight.
pub(crate) const TURN: Cost = Cost { operations: 1, bytes: 16 << 10, guard: 0 };

/// Counters of an instance.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct InstanceCounters {
    /// Counted I/Os charged.
    pub operations: u64,
    /// Bytes charged.
    pub bytes: u64,
    /// Time in which the instance's limits delayed the flow whose turn it was.
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
    limiter: Limiter,
    pub reserves: Reserves,
    link: Link,
    /// Time at which the link, and the limiter's levels with it, were last settled.
    settled_at: Instant,
    operations_per_second: Option<u64>,
    bytes_per_second: Option<u64>,
    /// Waiting flows. The second ring has those whose next quantum goes over a writing link with a
    /// limit, the first one all others. A flow whose next quantum has changed crosses when it is
    /// examined.
    rings: [Ring; 2],
    /// Number of turns that have ended. It wraps around; then some flows are once taken for those
    /// with the latest turns.
    turns: u32,
    /// The weights of its lightest and its heaviest flow.
    weights: (u64, u64),
    bytes: u64,
    /// A flow whose turn at its device had come when these limits were used up, and the time since
    /// which it waits. The flow may be gone.
    pub sent_back: (FlowSlot, Instant),
    /// Reason for the delay of the flow whose turn was last.
    pub held_by: HeldBy,
}

impl Instance {
    pub fn new(now: Instant, pacing: &InstancePacing, balances: Balances) -> Self {
        let limits = pacing.as_volume();
        let tolerance = Tolerance::new(pacing.tolerance);
        let mut instance = Self {
            limiter: Limiter::new(now, &limits),
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
            sent_back: (FlowSlot::NONE, now),
            held_by: HeldBy::InstanceOperations,
        };
        instance.set_rates(pacing);
        instance
    }

    /// Applies other limits. Nothing is refilled.
    pub fn set_limits(&mut self, now: Instant, pacing: &InstancePacing) {
        self.reopen(now);
        self.limiter.set_limits(&mut self.reserves, &pacing.as_volume());
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

    /// Empties the rings of an instance that comes from another scheduler: the flows stay there.
    pub const fn arrive(&mut self) {
        self.rings = [Ring::EMPTY, Ring::EMPTY];
        self.weights = (u64::MAX, 0);
        self.sent_back.0 = FlowSlot::NONE;
    }

    /// Settles the limits at `now`, and closes the account of a wait.
    pub fn reopen(&mut self, now: Instant) {
        self.look(now);
        self.limiter.close_account(&mut self.reserves, now);
    }

    /// Settles the limits at `now`.
    #[inline]
    pub fn look(&mut self, now: Instant) {
        let elapsed = now.since(self.settled_at);
        if elapsed == Duration::ZERO {
            return; // several volumes at the same time are usual
        }
        self.settled_at = now;
        self.limiter.settle_levels(now);
        self.link.settle(elapsed);
    }

    fn link_of(&mut self, operation: Operation) -> Option<&mut Pacer> {
        match operation {
            Operation::Read => Some(&mut self.link.read),
            Operation::Write { .. } => Some(&mut self.link.write),
            _ => None,
        }
    }

    /// Returns whether the limits allow a quantum, as of the last settling. The bytes of its cost
    /// go over the link.
    #[inline]
    pub fn allows(&mut self, cost: &Cost, operation: Operation) -> bool {
        self.limiter.allows(&mut self.reserves, cost)
            && (cost.bytes == 0 || self.link_of(operation).is_none_or(|link| link.is_ready()))
    }

    /// Charges a quantum that was allowed.
    #[inline]
    pub fn charge(&mut self, cost: &Cost, operation: Operation) {
        self.limiter.charge(&mut self.reserves, cost);
        if let Some(link) = self.link_of(operation) {
            link.charge(cost.bytes);
        }
        self.bytes += cost.bytes;
    }

    /// Records that the first quantum of a ring is delayed from the last settling on, with the
    /// reason and the end of the delay.
    pub fn throttle(&mut self, cost: &Cost, operation: Operation) {
        let now = self.settled_at;
        let ring = self.ring_of(operation);
        let common = self.limiter.throttle(&mut self.reserves, cost);
        self.held_by = if self.limiter.throttled_by_bytes() {
            HeldBy::InstanceBytes
        } else {
            HeldBy::InstanceOperations
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
            self.limiter.throttle_for_bytes(opens_at.unwrap_or(now));
            self.held_by = HeldBy::InstanceBytes;
        }
        self.rings[ring].by_common_limit = !by_link;
        self.rings[ring].opens_at = opens_at;
    }

    /// Returns when the first flow of any ring may continue; `None` if only a change of the limits
    /// allows it.
    pub fn opens_at(&self) -> Option<Instant> {
        let waited_for = self.rings.iter().filter(|ring| ring.waiting > 0);
        waited_for.filter_map(|ring| ring.opens_at).min()
    }

    /// Makes the waiting flows be examined at once.
    pub fn interrupt(&mut self) {
        let now = self.settled_at;
        self.rings.iter_mut().for_each(|ring| ring.opens_at = Some(now));
    }

    /// Returns the ring in which a quantum waits.
    pub const fn ring_of(&self, operation: Operation) -> usize {
        match operation {
            Operation::Write { .. } if self.link.write.rate_per_second().is_some() => 1,
            _ => 0,
        }
    }

    /// Returns the ring whose turn it is among the waiting rings in `candidates`: the one whose
    /// first flow's last turn is longer ago. So the rings act as one for the limits that both
    /// share, with any number of flows in each and any flow that crosses; and a direction that its
    /// own link delays saves at most one turn of each flow.
    pub fn next_ring(&self, flows: &Flows, candidates: [bool; 2]) -> Option<usize> {
        let first = |ring: usize| flows.get(self.rings[ring].first).filter(|_| candidates[ring]);
        match (first(0), first(1)) {
            (None, None) => None,
            (Some(_), None) => Some(0),
            (None, Some(_)) => Some(1),
            (Some(one), Some(other)) => Some(usize::from(self.age(other) > self.age(one))),
        }
    }

    /// Returns the number of turns that have ended since a flow's last one; the maximum for one
    /// that resumes its turn.
    const fn age(&self, flow: &Flow) -> u32 {
        if flow.in_turn && flow.resumed { u32::MAX } else { self.since_turn(flow) }
    }

    const fn since_turn(&self, flow: &Flow) -> u32 {
        self.turns.wrapping_sub(flow.turn_at)
    }

    /// Returns whether the first flow of a ring is the only one that could have a turn, among the
    /// rings in `candidates`.
    pub const fn is_alone(&self, ring: usize, candidates: [bool; 2]) -> bool {
        let other = 1 - ring;
        self.rings[ring].waiting == 1 && (self.rings[other].waiting == 0 || !candidates[other])
    }

    /// Returns whether a flow waits in a ring.
    pub fn is_waited_for(&self, ring: u8) -> bool {
        self.rings[usize::from(ring)].waiting > 0
    }

    /// Returns the number of waiting flows, in both rings.
    pub const fn waiting(&self) -> u32 {
        self.rings[0].waiting + self.rings[1].waiting
    }

    /// Asserts that both rings are consistent with the flows in them; the instance's slot is
    /// `slot`.
    ///
    /// # Panics
    /// If they are not.
    pub fn invariants(&self, flows: &Flows, slot: InstanceSlot) {
        for (number, ring) in (0..).zip(&self.rings) {
            let mut flow = ring.first;
            for _ in 0..ring.waiting {
                let Flow { instance, waits, ring, next, .. } = flows[flow];
                assert_eq!((instance, waits), (slot, Waits::AtInstance), "where {flow:?} waits");
                assert_eq!(ring, number, "the ring of attachment {flow:?}");
                assert_eq!(flows[next].previous, flow, "the one before attachment {next:?}");
                flow = next;
            }
            assert_eq!(flow, ring.first, "ring {number} of instance {slot:?}: {ring:?}");
            assert_eq!(ring.waiting == 0, ring.first.is_none(), "{ring:?}");
        }
    }

    /// Returns the time that a quantum takes of the limit of which it takes most; see
    /// [`Cost::share_ns`].
    pub fn share_ns(&self, cost: &Cost) -> u64 {
        cost.share_ns(self.operations_per_second, self.bytes_per_second)
    }

    /// Includes a flow's weight in the instance's range of weights.
    pub fn weigh_in(&mut self, weight: u64) {
        let (least, most) = self.weights;
        self.weights = (least.min(weight), most.max(weight));
    }

    /// Places a flow that comes from elsewhere behind the present ones, as if it had just had a
    /// turn.
    pub const fn welcome(&self, flow: &mut Flow) {
        flow.turn_at = self.turns;
    }

    /// Returns the value of a turn for a flow of this weight, in nanoseconds.
    pub fn turn_ns(&self, weight: u64) -> u64 {
        let unit = self.share_ns(&TURN);
        let (least, most) = self.weights;
        let one_turn = least.max(most / TURN_SPREAD_MAX).max(1);
        (unit.saturating_mul(weight) / one_turn).max(unit / TURNS_MAX).max(1)
    }

    pub const fn first(&self, ring: usize) -> FlowSlot {
        self.rings[ring].first
    }

    /// Returns whether a quantum that has just arrived must wait because others do: in its own
    /// ring, or in the other one for a limit that both share.
    #[inline]
    pub fn must_wait(&self, operation: Operation) -> bool {
        let ring = self.ring_of(operation);
        let other = &self.rings[1 - ring];
        self.rings[ring].waiting > 0 || (other.waiting > 0 && other.by_common_limit)
    }

    /// Adds a flow to a ring, at a place by its last turn. It comes to the front if it is light,
    /// its last turn was a round ago, and the first flow has had one since.
    pub fn join(&mut self, flows: &mut Flows, flow: FlowSlot, ring: usize, light: bool) {
        let round = self.waiting();
        let away = self.since_turn(&flows[flow]);
        let first = flows.get(self.rings[ring].first).map_or(0, |first| self.since_turn(first));
        let at_front = light && away >= round && away >= first;
        flows[flow].in_turn = false;
        flows[flow].resumed = false;
        // A flow that was away for longer than a round is treated like one that stayed.
        let place = if at_front { Place::First } else { Place::Behind(away.min(round)) };
        self.enter(flows, flow, ring, place);
    }

    /// Adds a flow that resumes its turn to a ring: at the front, but behind a flow with a single
    /// request, which waits for no more than one quantum.
    pub fn resume(&mut self, flows: &mut Flows, flow: FlowSlot, ring: usize) {
        let first = flows.get(self.rings[ring].first);
        let is_light = first.is_some_and(|first| !first.in_turn && first.requests() == 1);
        let place = if is_light { Place::Second } else { Place::First };
        self.enter(flows, flow, ring, place);
    }

    /// Adds a flow at the front of a ring: it was its turn.
    pub fn join_front(&mut self, flows: &mut Flows, flow: FlowSlot, ring: usize) {
        self.enter(flows, flow, ring, Place::First);
    }

    fn enter(&mut self, flows: &mut Flows, flow: FlowSlot, ring: usize, place: Place) {
        if self.rings[ring].waiting == 0 {
            self.rings[ring].opens_at = None;
        }
        flows[flow].ring = u8::from(ring == 1);
        self.rings[ring].enter(flows, flow, place, self.turns);
    }

    /// Removes a flow from its ring, which ends its turn. A resumed turn has ended for the others
    /// when it was interrupted.
    pub fn leave(&mut self, flows: &mut Flows, flow: FlowSlot) {
        if flows[flow].in_turn && !flows[flow].resumed {
            self.note_turn(&mut flows[flow]);
        }
        self.rings[usize::from(flows[flow].ring)].leave(flows, flow);
    }

    /// Moves a flow to the other ring, to continue its turn or to wait for one. Flows there with a
    /// last turn before this flow's go before it: a flow that is alone in its ring gets turn after
    /// turn, and would otherwise take each of them to the front.
    pub fn cross(&mut self, flows: &mut Flows, flow: FlowSlot) {
        let Flow { ring, in_turn, .. } = flows[flow];
        self.rings[usize::from(ring)].leave(flows, flow);
        let other = 1 - usize::from(ring);
        let first = flows.get(self.rings[other].first).map_or(0, |first| self.age(first));
        if in_turn && self.age(&flows[flow]) >= first {
            self.join_front(flows, flow, other);
            return;
        }
        if in_turn && !flows[flow].resumed {
            self.note_turn(&mut flows[flow]);
        }
        self.join(flows, flow, other, false);
    }

    /// Ends the turn of the first flow of a ring. It goes to the end, or if it had resumed its
    /// turn, to the place that it would have without that.
    pub fn end_turn(&mut self, flows: &mut Flows, ring: usize) {
        let first = self.rings[ring].first;
        let flow = &mut flows[first];
        if flow.resumed {
            self.rings[ring].leave(flows, first);
            self.join(flows, first, ring, false);
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
            operations: self.limiter.operations_charged(),
            bytes: self.bytes,
            exceeded: self.limiter.exceeded(&self.reserves, now),
            waiting: self.waiting(),
        }
    }

    /// Writes the state that determines the future with one flow at most. Returns `None` if a
    /// direction of the link has a limit: then the direction of the bytes matters.
    pub fn tell(&self, phase: &mut Phase) -> Option<()> {
        self.limiter.tell(phase);
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

    /// Leases all but `unleased` of the balances. Returns the balances that are unleased now.
    pub fn lease(&mut self, now: Instant, unleased: Balances) -> Balances {
        self.reserves.settle(now);
        self.reserves.lease(unleased)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::qos::pacing::Limit;
    use crate::qos::slots::{Table, VolumeSlot};

    fn three_flows() -> (Flows, [FlowSlot; 3]) {
        let mut flows = Flows::new();
        let flow = || Flow::new(VolumeSlot::NONE, InstanceSlot::NONE, Instant::ZERO);
        let slots = [flow(), flow(), flow()].map(|flow| flows.push(flow));
        (flows, slots)
    }

    fn with_links() -> Instance {
        let link = Some(1_000_000);
        let pacing = InstancePacing {
            operations: Some(Limit { per_second: 1_000, credit: None }),
            read_bytes_per_second: link,
            write_bytes_per_second: link,
            ..InstancePacing::UNLIMITED
        };
        Instance::new(Instant::ZERO, &pacing, Balances::default())
    }

    /// A direction may be delayed by its link for any time: each of its flows has one turn first.
    #[test]
    fn a_direction_held_up_by_its_link_saves_one_turn_for_each_flow() {
        let mut instance = with_links();
        let (mut flows, [one, other, _]) = three_flows();
        instance.join(&mut flows, one, 0, false);
        instance.join(&mut flows, other, 1, false);
        (0..9).for_each(|_| instance.end_turn(&mut flows, 0));
        assert_eq!(instance.next_ring(&flows, [true, true]), Some(1));
        instance.end_turn(&mut flows, 1);
        assert_eq!(instance.next_ring(&flows, [true, true]), Some(0));
    }

    /// Turns go around as in one ring, with any flow that crosses over.
    #[test]
    fn crossing_flow_takes_turns_as_in_one_ring() {
        let mut instance = with_links();
        let (mut flows, [first, second, third]) = three_flows();
        for (flow, ring) in [(first, 0), (second, 1), (third, 0)] {
            instance.join(&mut flows, flow, ring, false);
        }
        let mut turns: Table<FlowSlot, u32> = [0; 3].into_iter().collect();
        for nth in 0..300 {
            let ring = instance.next_ring(&flows, [true, true]).unwrap();
            let flow = instance.first(ring);
            turns[flow] += 1;
            // In the middle of its turn, or at its end.
            let crosses = flow == third && nth % 7 < 3;
            let goes_on = nth % 2 == 0;
            flows[flow].in_turn = goes_on;
            if crosses && goes_on {
                instance.cross(&mut flows, flow);
            }
            let ring = usize::from(flows[flow].ring);
            assert_eq!(instance.first(ring), flow);
            instance.end_turn(&mut flows, ring);
            if crosses && !goes_on {
                instance.cross(&mut flows, flow);
            }
        }
        let least = turns.iter().min().unwrap();
        let most = turns.iter().max().unwrap();
        assert!(most - least <= 2, "{turns:?}");
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
