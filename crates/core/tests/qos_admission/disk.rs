//! A device in virtual time, for calibration and drift: channels that serve requests in the order
//! of arrival, costs, a write cache, a path to the device with a latency of its own, slowdowns and
//! stalls.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

pub const NS_PER_S: u64 = 1_000_000_000;

/// Base in nanoseconds, and nanoseconds for each KiB.
pub type Cost = (u64, u64);

pub fn service((base, per_kib): Cost, length: u32) -> u64 {
    base + u64::from(length) * per_kib / 1_024
}

#[derive(Clone, Debug)]
pub struct Disk {
    pub read: Cost,
    pub write: Cost,
    /// Bytes of the write cache, and bytes a second that leave it.
    pub cache: Option<(u64, u64)>,
    /// Time of a request outside the device, in nanoseconds.
    pub path_ns: u64,
    pub percent: u64,
    /// Time before which no request is served.
    pub stalled_until: u64,
    cached: u64,
    cached_at: u64,
    free_at: BinaryHeap<Reverse<u64>>,
}

impl Disk {
    pub fn new(channels: usize, read: Cost, write: Cost) -> Self {
        let free_at = (0..channels).map(|_| Reverse(0)).collect();
        Self {
            read,
            write,
            cache: None,
            path_ns: 0,
            percent: 100,
            stalled_until: 0,
            cached: 0,
            cached_at: 0,
            free_at,
        }
    }

    /// Returns the time at which all requests are done.
    pub fn idle_at(&self) -> u64 {
        self.free_at.iter().map(|Reverse(at)| *at).max().unwrap_or(0)
    }

    /// Returns the time at which a request that is submitted now is answered.
    pub fn give(&mut self, now: u64, is_write: bool, length: u32) -> u64 {
        let Reverse(free_at) = self.free_at.pop().unwrap();
        let begin = now.max(free_at).max(self.stalled_until);
        let cost = if is_write { self.write } else { self.read };
        let mut takes = service(cost, length) * self.percent / 100;
        if let Some((bytes, drain)) = self.cache.filter(|_| is_write) {
            let drained = u128::from(begin - self.cached_at.min(begin)) * u128::from(drain);
            let drained = u64::try_from(drained / u128::from(NS_PER_S)).unwrap();
            self.cached = self.cached.saturating_sub(drained) + u64::from(length);
            self.cached_at = begin;
            let over = u128::from(self.cached.saturating_sub(bytes)) * u128::from(NS_PER_S);
            takes += u64::try_from(over / u128::from(drain)).unwrap();
        }
        self.free_at.push(Reverse(begin + takes));
        begin + takes + self.path_ns
    }
}

/// Requests that a closed loop completed.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    pub reads: u64,
    pub writes: u64,
    /// Latencies of all requests, in the order of their ends.
    pub latencies: Vec<u64>,
}

/// A load that keeps `depth` requests in flight.
pub struct Loop {
    pub depth: u32,
    pub length: u32,
    pub writes: Writes,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Writes {
    None,
    EveryOther,
    All,
}

impl Loop {
    pub fn run(&self, disk: &mut Disk, start: u64, span: u64) -> Seen {
        let mut seen = Seen::default();
        let mut under_way = BinaryHeap::new();
        let mut count = 0_u64;
        let mut submit = |now: u64, disk: &mut Disk| {
            count += 1;
            let is_write = match self.writes {
                Writes::None => false,
                Writes::All => true,
                Writes::EveryOther => count.is_multiple_of(2),
            };
            Reverse((disk.give(now, is_write, self.length), now, is_write))
        };
        for _ in 0..self.depth {
            under_way.push(submit(start, disk));
        }
        while let Some(Reverse((end, given, is_write))) = under_way.pop() {
            if end > start + span {
                break;
            }
            *(if is_write { &mut seen.writes } else { &mut seen.reads }) += 1;
            seen.latencies.push(end - given);
            under_way.push(submit(end, disk));
        }
        seen
    }
}
