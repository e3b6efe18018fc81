//! A closed loop in virtual time: clients that keep requests in flight, a device that takes its
//! time, and a reactor that wakes up late, as real ones do.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};

use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::qos::scheduler::{Io, Scheduler, SubmitError, VolumeIndex};
use evenkeel_core::request::Operation;
use evenkeel_core::time::Instant;

use crate::support::{NS_PER_S, Rng};

/// The window in which bursts are looked for.
pub const WINDOW_NS: u64 = 10_000_000;

/// How late the reactor wakes up.
#[derive(Clone, Copy)]
pub enum Lateness {
    /// Never: every poll is on time.
    None,
    /// Exponential with a mean of 15 us, and one wake-up in a thousand stalls for 1.5 ms.
    Realistic,
}

impl Lateness {
    fn ns(self, rng: &mut Rng) -> u64 {
        match self {
            Self::None => 0,
            Self::Realistic if rng.below(1_000) == 0 => 1_500_000 + rng.exponential(15_000.0),
            Self::Realistic => rng.exponential(15_000.0),
        }
    }
}

/// One client: requests of one size at random places, so many in flight.
#[derive(Clone, Copy)]
pub struct Client {
    pub pacing: Pacing,
    pub depth: u32,
    pub length: u32,
}

/// What a client's volume dispatched.
pub struct Record {
    volume: VolumeIndex,
    pub client: Client,
    /// Requests that did not fit into the queue and wait for room, as in a socket that is not read.
    held_back: u32,
    pub per_second: Vec<u64>,
    /// Most dispatches in any 10 ms after the first second.
    pub window_max: usize,
    window: VecDeque<u64>,
}

pub struct World {
    pub scheduler: Scheduler,
    pub now: u64,
    pub records: Vec<Record>,
    pub lateness_max_ns: u64,
    /// By second: how long before its start the reactor should have woken up that woke up after it.
    pub late_over_second_ns: BTreeMap<usize, u64>,
    pub rng: Rng,
    lateness: Lateness,
    /// (when, whose): requests on the device.
    in_flight: BinaryHeap<Reverse<(u64, usize)>>,
}

impl World {
    pub fn new(lateness: Lateness) -> Self {
        Self {
            scheduler: Scheduler::new(Instant::ZERO),
            now: 0,
            records: Vec::new(),
            lateness_max_ns: 0,
            late_over_second_ns: BTreeMap::new(),
            rng: Rng::from_environment(),
            lateness,
            in_flight: BinaryHeap::new(),
        }
    }

    pub fn add(&mut self, client: Client, balances: Balances) -> VolumeIndex {
        let now = Instant::from_ns(self.now);
        let volume = self.scheduler.add(now, &client.pacing, balances).unwrap();
        self.records.push(Record {
            volume,
            client,
            held_back: 0,
            per_second: Vec::new(),
            window_max: 0,
            window: VecDeque::new(),
        });
        for _ in 0..client.depth {
            // The device gives the clients their first requests, as it will all others.
            self.in_flight.push(Reverse((self.now, self.records.len() - 1)));
        }
        volume
    }

    /// Lets the world turn until `end_ns`.
    pub fn run_until(&mut self, end_ns: u64) {
        loop {
            let timeout = self.scheduler.poll_timeout().map(|timeout| timeout.ns);
            let completion = self.in_flight.peek().map(|Reverse((at, _))| *at);
            let Some(wake) = timeout.into_iter().chain(completion).min() else { return };
            if wake >= end_ns {
                self.now = self.now.max(end_ns);
                return;
            }
            let late = self.lateness.ns(&mut self.rng);
            self.now = self.now.max(wake + late);
            self.lateness_max_ns = self.lateness_max_ns.max(self.now - wake);
            let second = self.now / NS_PER_S;
            if wake / NS_PER_S < second {
                let late_ns = second * NS_PER_S - wake;
                self.late_over_second_ns.insert(usize::try_from(second).unwrap(), late_ns);
            }
            self.turn();
        }
    }

    fn turn(&mut self) {
        let now = Instant::from_ns(self.now);
        while let Some(Reverse((at, client))) = self.in_flight.peek().copied() {
            if at > self.now {
                break;
            }
            self.in_flight.pop();
            self.submit(client);
            self.drain();
        }
        if self.scheduler.poll_timeout().is_some_and(|timeout| timeout <= now) {
            self.scheduler.poll(now);
        }
        self.drain();
    }

    fn submit(&mut self, client: usize) {
        let offset = self.rng.below(1 << 20) << 20;
        let record = &mut self.records[client];
        let handle = u32::try_from(client).unwrap();
        let length = record.client.length;
        let io = Io { operation: Operation::Read, offset, length, handle };
        match self.scheduler.submit(Instant::from_ns(self.now), record.volume, io) {
            Ok(()) => {}
            Err(SubmitError::QueueFull) => record.held_back += 1,
            Err(error) => panic!("{error}"),
        }
    }

    fn drain(&mut self) {
        while let Some(dispatch) = self.scheduler.poll_output() {
            let client = usize::try_from(dispatch.handle).unwrap();
            self.records[client].count(self.now);
            if self.records[client].held_back > 0 {
                self.records[client].held_back -= 1;
                self.submit(client);
            }
            // 60 to 140 us on the device.
            let latency = 60_000 + self.rng.below(80_000);
            self.in_flight.push(Reverse((self.now + latency, client)));
        }
    }
}

impl Record {
    fn count(&mut self, now: u64) {
        let second = usize::try_from(now / NS_PER_S).unwrap();
        if self.per_second.len() <= second {
            self.per_second.resize(second + 1, 0);
        }
        self.per_second[second] += 1;
        if second > 0 {
            self.window.push_back(now);
            while self.window.front().is_some_and(|first| first + WINDOW_NS <= now) {
                self.window.pop_front();
            }
            self.window_max = self.window_max.max(self.window.len());
        }
    }
}
