//! Three ways to choose whose request is next, without any guarantee: as they came, in turns, and
//! in proportion to weights.

use std::collections::{BTreeSet, VecDeque};

use evenkeel_core::time::Instant;

use super::windowed::{DeviceCost, Head, Order, Share};

/// First come, first served: the device's own queue, or Linux's `none` scheduler. Meant to be used
/// with a window as deep as the clients are.
#[derive(Clone, Debug, Default)]
pub struct Fifo {
    arrivals: VecDeque<u32>,
}

impl Order for Fifo {
    fn arrive(&mut self, volume: u32, _: Option<Head>) {
        self.arrivals.push_back(volume);
    }

    fn next(&mut self, _: Instant) -> Option<u32> {
        self.arrivals.front().copied()
    }

    fn served(&mut self, volume: u32, _: u32, _: Option<Head>) {
        debug_assert_eq!(self.arrivals.front(), Some(&volume));
        self.arrivals.pop_front();
    }
}

/// One request of each volume in turn, whatever its size: what QEMU's throttle groups do among
/// their members, and NVMe controllers among their submission queues.
#[derive(Clone, Debug, Default)]
pub struct RoundRobin {
    ring: VecDeque<u32>,
}

impl Order for RoundRobin {
    fn arrive(&mut self, volume: u32, head: Option<Head>) {
        if head.is_some() {
            self.ring.push_back(volume);
        }
    }

    fn next(&mut self, _: Instant) -> Option<u32> {
        self.ring.front().copied()
    }

    fn served(&mut self, _: u32, _: u32, following: Option<Head>) {
        let served = self.ring.pop_front();
        self.ring.extend(served.filter(|_| following.is_some()));
    }
}

/// Virtual time by cost and weight, as in start-time fair queueing (Goyal, Vin and Cheng, SIGCOMM
/// 1996) and, with weights of device time, Linux's `io.cost` (ASPLOS 2022) and BFQ: each volume has
/// a clock that its requests advance by their cost over its weight, and the volume furthest behind
/// is next. A volume that was idle starts where the others are. With equal weights it is fair
/// queueing by cost.
///
/// Of `io.cost` it leaves out the control of the rate by latency and the donation of unused shares.
#[derive(Clone, Debug)]
pub struct VirtualTime {
    cost: DeviceCost,
    weights: Vec<u64>,
    /// Where each volume's next request starts, in nanoseconds of cost at weight 1, times
    /// [`VirtualTime::SCALE`] so that the division by a weight loses next to nothing.
    starts: Vec<u64>,
    backlogged: BTreeSet<(u64, u32)>,
    /// Start of the request served last.
    now: u64,
}

impl VirtualTime {
    const SCALE: u64 = 1 << 8;

    /// With these shares' weights.
    #[must_use]
    pub fn new(cost: DeviceCost, shares: &[Share]) -> Self {
        Self {
            cost,
            weights: shares.iter().map(|share| u64::from(share.weight.max(1))).collect(),
            starts: vec![0; shares.len()],
            backlogged: BTreeSet::new(),
            now: 0,
        }
    }
}

impl Order for VirtualTime {
    fn arrive(&mut self, volume: u32, head: Option<Head>) {
        if head.is_some() {
            let start = &mut self.starts[volume as usize];
            *start = self.now.max(*start);
            self.backlogged.insert((*start, volume));
        }
    }

    fn next(&mut self, _: Instant) -> Option<u32> {
        self.backlogged.first().map(|(_, volume)| *volume)
    }

    fn served(&mut self, volume: u32, length: u32, following: Option<Head>) {
        let at = volume as usize;
        let start = self.starts[at];
        self.backlogged.remove(&(start, volume));
        self.now = self.now.max(start);
        self.starts[at] = start + self.cost.of(length) * Self::SCALE / self.weights[at];
        if following.is_some() {
            self.backlogged.insert((self.starts[at], volume));
        }
    }
}
