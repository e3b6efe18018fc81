//! One device below several nodes: how its window is divided among them.
//!
//! Each node schedules for itself. If each had the whole window in flight, reserved requests of one
//! node would wait behind the flood of another one. So the window is divided:
//!
//! - A node's *lasting* part is its volumes' reservations, and an even part of the unreserved rest.
//!   It needs no renewal, so it holds while there is no leader.
//! - The unused part of that is *lent* to nodes on which requests wait, in even parts, for a short
//!   time. A node whose requests begin to wait has its lasting part at once; the lent part is back
//!   when the borrowers get their next parts, or when the time is over.
//!
//! So all parts together are at most the whole device, except for that moment. A node that does not
//! answer keeps its last part, and none of it is lent. A node that has never answered the present
//! leader may have volumes with any reservations: then each other node gets its reservations only,
//! which leaves room for that node.

use crate::convert::{count, exact};
use alloc::collections::BTreeMap;

use crate::fencing::NodeId;
use crate::time::{Duration, Instant};

/// Millionths in the whole.
const PPM: u64 = 1_000_000;

/// Interval at which nodes are asked for their use, and get their parts.
pub const DIVIDE_EVERY: Duration = Duration::from_ms(50);

/// Duration of a loan. A few rounds may be late.
pub const LENT_FOR: Duration = Duration::from_ms(500);

/// Time for which a node keeps the part that it has used: otherwise, the part of a node with
/// occasional waits would be lent and returned in turns, and each time its requests would wait for
/// it.
const KEPT: Duration = Duration::from_secs(1);

/// Multiple of its use that an idle node keeps at most, so that it seldom has to ask for more.
const ROOM: u64 = 2;

/// Age from which a node's report is old.
const OLD: Duration = Duration::from_ms(300);

/// Time that the leader waits for reports of nodes with volumes.
const PATIENCE: Duration = Duration::from_secs(1);

/// A node's report of its use of the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct NodeUse {
    /// Device time of the whole device, in nanoseconds per second; 0 if it is not calibrated.
    pub capacity_ns: u64,
    /// Device time that the node's volumes have reserved, likewise.
    pub reserved_ns: u64,
    /// The most requests that it had in flight since the last report.
    pub in_flight: u32,
    /// Maximum number of requests in flight on the whole device, by its estimate.
    pub window_slots: u32,
    /// Whether requests have waited for the device since the last report.
    pub has_waited: bool,
}

/// A node's part of the device, and the use of the others.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NodePart {
    /// Its part until the next one, in millionths.
    pub lasting_ppm: u32,
    /// Part that others lend it beside that, in millionths.
    pub lent_ppm: u32,
    /// Duration of the loan, from the arrival of this part.
    pub lent_for: Duration,
    /// Requests that the others have in flight.
    pub in_flight: u32,
    /// The narrowest window of the others whose requests wait, in requests on the whole device;
    /// `None` if none waits.
    pub window_slots: Option<u32>,
}

impl NodePart {
    /// The whole device: for a node that shares it with no other.
    pub const WHOLE: Self = Self {
        lasting_ppm: 1_000_000,
        lent_ppm: 0,
        lent_for: Duration::ZERO,
        in_flight: 0,
        window_slots: None,
    };

    /// One request at a time: for a node that has not got its part yet.
    pub const LEAST: Self = Self { lasting_ppm: 0, ..Self::WHOLE };
}

/// State of a node.
#[derive(Clone, Copy, Debug)]
struct Known {
    said: NodeUse,
    heard_at: Instant,
    waited_at: Option<Instant>,
    /// The most requests that it had in flight lately, and the time of that report.
    most: (u32, Instant),
}

impl Known {
    fn is_old(&self, now: Instant) -> bool {
        now.since(self.heard_at) > OLD
    }

    /// Returns whether it gets a loan.
    fn borrows(&self, now: Instant) -> bool {
        !self.is_old(now) && self.waited_at.is_some_and(|time| now.since(time) <= KEPT)
    }

    /// Returns the part of its lasting part that it keeps.
    fn keeps(&self, lasting_ppm: u64, now: Instant) -> u64 {
        if self.is_old(now) || self.borrows(now) {
            return lasting_ppm;
        }
        let slots = u64::from(self.said.window_slots.max(1));
        (u64::from(self.most.0) * ROOM * PPM).div_ceil(slots).min(lasting_ppm)
    }
}

/// The reports of all nodes; see the module's text.
#[derive(Debug)]
pub struct Division {
    since: Instant,
    known: BTreeMap<NodeId, Known>,
    /// Nodes that may have requests in flight, but have not reported yet.
    unheard: usize,
}

impl Division {
    /// Creates a division without reports.
    #[must_use]
    pub const fn new(now: Instant) -> Self {
        Self { since: now, known: BTreeMap::new(), unheard: 0 }
    }

    /// Sets the nodes: for each, whether it may have requests in flight without a report. Other
    /// nodes are removed.
    pub fn set_nodes(&mut self, nodes: &BTreeMap<NodeId, bool>) {
        self.known.retain(|node, _| nodes.contains_key(node));
        let unheard =
            |(node, serves): &(&NodeId, &bool)| **serves && !self.known.contains_key(node);
        self.unheard = nodes.iter().filter(unheard).count();
    }

    /// Records a node's report.
    pub fn heard(&mut self, node: NodeId, now: Instant, said: &NodeUse) {
        let before = self.known.get(&node);
        let waited_at = said.has_waited.then_some(now).or(before.and_then(|node| node.waited_at));
        let most = before
            .map(|node| node.most)
            .filter(|(most, at)| *most > said.in_flight && now.since(*at) <= KEPT);
        let most = most.unwrap_or((said.in_flight, now));
        self.known.insert(node, Known { said: *said, heard_at: now, waited_at, most });
    }

    /// Returns a node's present part; `None` as long as it is not known.
    #[must_use]
    pub fn part(&self, node: NodeId, now: Instant) -> Option<NodePart> {
        let own = self.known.get(&node)?;
        if self.unheard > 0 && now.since(self.since) < PATIENCE {
            return None;
        }
        let capacity = self.known.values().map(|node| node.said.capacity_ns).max().unwrap_or(0);
        if capacity == 0 {
            return None;
        }
        let lasting_ppm = self.lasting(own, capacity);
        let others = || self.known.iter().filter(|(other, _)| **other != node).map(|(_, it)| it);
        let waiting = others().filter(|node| node.borrows(now));
        Some(NodePart {
            lasting_ppm: narrow(lasting_ppm),
            lent_ppm: narrow(if own.borrows(now) { self.lent(capacity, now) } else { 0 }),
            lent_for: LENT_FOR,
            in_flight: others().fold(0, |sum, it| sum.saturating_add(it.said.in_flight)),
            window_slots: waiting.map(|node| node.said.window_slots).min(),
        })
    }

    /// Returns a node's lasting part, in millionths, rounded down.
    fn lasting(&self, own: &Known, capacity: u64) -> u64 {
        let reserved: u128 =
            self.known.values().map(|node| u128::from(node.said.reserved_ns)).sum();
        let whole = u128::from(capacity).max(reserved);
        let nodes = u128::from(count(self.known.len()).max(1));
        // A node without a report may have reserved all of the rest.
        let free = if self.unheard == 0 { whole - reserved } else { 0 };
        let part = u128::from(own.said.reserved_ns) * nodes + free;
        exact(part * u128::from(PPM) / (whole * nodes), "a part is at most the whole")
    }

    /// Returns the loan of each node whose requests wait, in millionths: an even part of what the
    /// others do not use.
    fn lent(&self, capacity: u64, now: Instant) -> u64 {
        let unused = |it: &Known| {
            let lasting = self.lasting(it, capacity);
            lasting - it.keeps(lasting, now)
        };
        let pool: u64 = self.known.values().map(unused).sum();
        let borrowers = self.known.values().filter(|node| node.borrows(now)).count();
        pool / count(borrowers).max(1)
    }
}

fn narrow(ppm: u64) -> u32 {
    exact(ppm.min(PPM), "at most a million")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const CAPACITY: u64 = 4_000_000_000;

    fn at(ms: u64) -> Instant {
        Instant::from_ns(ms * 1_000_000)
    }

    fn says(reserved_ns: u64, in_flight: u32, has_waited: bool) -> NodeUse {
        NodeUse { capacity_ns: CAPACITY, reserved_ns, in_flight, window_slots: 10, has_waited }
    }

    fn of(nodes: &[(u32, NodeUse)]) -> Division {
        let mut division = Division::new(at(0));
        division.set_nodes(&nodes.iter().map(|(node, _)| (NodeId(*node), true)).collect());
        nodes.iter().for_each(|(node, said)| division.heard(NodeId(*node), at(0), said));
        division.set_nodes(&nodes.iter().map(|(node, _)| (NodeId(*node), true)).collect());
        division
    }

    fn parts(division: &Division, node: u32, ms: u64) -> (u32, u32) {
        let part = division.part(NodeId(node), at(ms)).unwrap();
        (part.lasting_ppm, part.lent_ppm)
    }

    #[test]
    fn reservations_go_first_and_the_rest_is_divided_evenly() {
        let waits = says(CAPACITY / 2, 9, true);
        let division = of(&[(1, waits), (2, says(0, 9, true))]);
        assert_eq!((parts(&division, 1, 0), parts(&division, 2, 0)), ((750_000, 0), (250_000, 0)));
        let part = division.part(NodeId(1), at(0)).unwrap();
        assert_eq!((part.in_flight, part.window_slots), (9, Some(10)));
    }

    #[test]
    fn unused_part_of_an_idle_node_is_lent_until_the_node_waits() {
        let mut division = of(&[(1, says(CAPACITY / 2, 1, false)), (2, says(0, 9, true))]);
        // Node 1 has a tenth of the window in flight, and keeps twice that.
        assert_eq!(parts(&division, 1, 0), (750_000, 0));
        assert_eq!(parts(&division, 2, 0), (250_000, 550_000));
        division.heard(NodeId(1), at(100), &says(CAPACITY / 2, 5, true));
        assert_eq!(parts(&division, 2, 100), (250_000, 0));
        // It keeps its part for a second; otherwise it would be lent and returned in turns.
        for ms in (200..1_100).step_by(100) {
            division.heard(NodeId(1), at(ms), &says(CAPACITY / 2, 0, false));
            division.heard(NodeId(2), at(ms), &says(0, 9, true));
            assert_eq!(parts(&division, 2, ms), (250_000, 0), "at {ms} ms");
        }
        for ms in [1_200, 1_300] {
            division.heard(NodeId(1), at(ms), &says(CAPACITY / 2, 0, false));
            division.heard(NodeId(2), at(ms), &says(0, 9, true));
        }
        assert_eq!(parts(&division, 2, 1_300), (250_000, 750_000));
    }

    #[test]
    fn a_node_that_is_not_heard_of_lends_nothing() {
        let mut division = of(&[(1, says(CAPACITY / 2, 0, false)), (2, says(0, 9, true))]);
        division.heard(NodeId(2), at(400), &says(0, 9, true));
        assert_eq!(parts(&division, 2, 400), (250_000, 0));
        // A node without any report may have reserved everything that others have not.
        let nodes = [1, 2, 3].map(|node| (NodeId(node), true));
        division.set_nodes(&nodes.into());
        assert_eq!(division.part(NodeId(1), at(999)), None);
        assert_eq!(parts(&division, 1, 1_000), (500_000, 0));
        // A fenced node has nothing.
        let nodes = [(NodeId(1), true), (NodeId(2), true), (NodeId(3), false)];
        division.set_nodes(&nodes.into());
        assert_eq!(parts(&division, 1, 1_000), (750_000, 0));
        division.set_nodes(&[(NodeId(2), true)].into());
        assert_eq!(parts(&division, 2, 1_000), (1_000_000, 0));
        assert_eq!(division.part(NodeId(1), at(1_000)), None);
    }

    #[test]
    fn uncalibrated_device_is_not_divided() {
        let said = NodeUse { capacity_ns: 0, ..says(0, 9, true) };
        assert_eq!(of(&[(1, said)]).part(NodeId(1), at(0)), None);
    }

    fn said() -> impl Strategy<Value = NodeUse> {
        (0..2 * CAPACITY, 0..40_u32, any::<bool>())
            .prop_map(|(reserved, in_flight, has_waited)| says(reserved, in_flight, has_waited))
    }

    proptest! {
        /// Beside the rules themselves: each node has at least its reservations, whatever the
        /// others report; and the parts of waiting nodes, with the use of the others, are the
        /// device and no more.
        #[test]
        fn parts_add_up_and_floors_are_in_them(
            said in proptest::collection::vec(said(), 1..8),
            is_old in proptest::collection::vec(any::<bool>(), 8),
        ) {
            let nodes: Vec<(u32, NodeUse)> = (0..).zip(said.clone()).collect();
            let old = |node: &u32| is_old[usize::try_from(*node).unwrap()];
            let mut division = of(&nodes);
            for (node, said) in &nodes {
                if !old(node) {
                    division.heard(NodeId(*node), at(400), said);
                }
            }
            let sold: u64 = said.iter().map(|said| said.reserved_ns).sum();
            let whole = sold.max(CAPACITY);
            let mut lasting = 0;
            let mut used = 0;
            let mut lends = true;
            for (node, said) in &nodes {
                let part = division.part(NodeId(*node), at(400)).unwrap();
                let floor = u128::from(said.reserved_ns) * 1_000_000 / u128::from(whole);
                prop_assert!(u128::from(part.lasting_ppm) >= floor, "{part:?} of {said:?}");
                lasting += part.lasting_ppm;
                let is_old = old(node);
                if is_old || said.has_waited {
                    used += part.lasting_ppm + part.lent_ppm;
                } else {
                    used += (said.in_flight * 100_000).min(part.lasting_ppm);
                }
                prop_assert!(part.lent_ppm == 0 || (said.has_waited && !is_old));
                lends &= is_old || !said.has_waited;
            }
            prop_assert!(used <= 1_000_000 && lasting <= 1_000_000);
            // Nothing is lost except by rounding.
            prop_assert!(lasting + 8 >= 1_000_000, "{lasting}");
            if !lends {
                let room: u32 = nodes.iter().filter(|(node, said)| {
                    !old(node) && !said.has_waited
                }).map(|(_, said)| 100_000 * said.in_flight.min(10)).sum();
                prop_assert!(used + room + 16 >= 1_000_000, "{used} beside {room}");
            }
        }
    }
}
