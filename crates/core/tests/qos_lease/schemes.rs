//! Three ways to share a cap between shards, behind one trait: leases from a home, a static split,
//! and a first-come queue of fixed grabs.

use std::collections::{BTreeMap, VecDeque};

use evenkeel_core::qos::bucket::{Bucket, Depth};
use evenkeel_core::qos::lease::Cap;
use evenkeel_core::time::{Duration, Instant};

use crate::world::{Net, Rng, World};

pub trait Scheme {
    /// Whether a request of `shard` may go now.
    fn take(&mut self, shard: usize, cost: u64, now: u64) -> bool;
    /// When something happens by itself.
    fn next_due(&self) -> Option<u64>;
    /// Does what is due; whose turn it is to try again.
    fn step(&mut self, now: u64) -> Vec<usize>;
}

impl Scheme for World {
    fn take(&mut self, shard: usize, cost: u64, now: u64) -> bool {
        self.now = now;
        Self::take(self, shard, cost)
    }

    fn next_due(&self) -> Option<u64> {
        Self::next_due(self)
    }

    fn step(&mut self, now: u64) -> Vec<usize> {
        self.now = now;
        Self::step(self)
    }
}

/// Every shard has its part, whatever the others do.
pub struct StaticSplit {
    /// Bucket, when it was settled, when its request that waits may go.
    shards: Vec<(Bucket, u64, Option<u64>)>,
}

impl StaticSplit {
    pub fn new(cap: Cap, shards: usize, now: u64) -> Self {
        let part = cap.rate_per_second / shards as u64;
        let bucket = Bucket::full(part, cap.depth);
        Self { shards: vec![(bucket, now, None); shards] }
    }
}

impl Scheme for StaticSplit {
    fn take(&mut self, shard: usize, cost: u64, now: u64) -> bool {
        let (bucket, settled_at, due) = &mut self.shards[shard];
        bucket.settle(Duration::from_ns(now - *settled_at));
        *settled_at = now;
        *due = None;
        if bucket.is_ready() {
            bucket.charge(cost);
            return true;
        }
        *due = bucket.eligible_at(Instant::from_ns(now)).map(|at| at.ns);
        false
    }

    fn next_due(&self) -> Option<u64> {
        self.shards.iter().filter_map(|shard| shard.2).min()
    }

    fn step(&mut self, now: u64) -> Vec<usize> {
        let due = |&shard: &usize| self.shards[shard].2.is_some_and(|due| due <= now);
        (0..self.shards.len()).filter(due).collect()
    }
}

#[derive(Clone, Copy)]
enum Mail {
    Ask(usize, u64),
    Grant(usize, u64),
}

/// A shared bucket with one queue: a shard asks for a fixed grab (or one request, if that is more)
/// once it cannot go on, and waits for all of it, first come first served by request.
pub struct FixedGrabs {
    bucket: Bucket,
    settled_at: u64,
    grab: u64,
    queue: VecDeque<(usize, u64)>,
    /// Tokens, and whether a grab is on its way.
    shards: Vec<(u64, bool)>,
    mail: BTreeMap<(u64, u64), Mail>,
    posted: u64,
    rng: Rng,
}

impl FixedGrabs {
    pub fn new(cap: Cap, shards: usize, now: u64, seed: u64) -> Self {
        Self {
            bucket: Bucket::full(cap.rate_per_second, cap.depth),
            settled_at: now,
            grab: cap.rate_per_second / 1_000 / shards as u64,
            queue: VecDeque::new(),
            shards: vec![(0, false); shards],
            mail: BTreeMap::new(),
            posted: 0,
            rng: Rng::new(seed),
        }
    }

    fn post(&mut self, now: u64, mail: Mail) {
        let (low, high) = Net::CORES.delay_ns;
        self.posted += 1;
        self.mail.insert((now + self.rng.between(low, high), self.posted), mail);
    }
}

impl Scheme for FixedGrabs {
    fn take(&mut self, shard: usize, cost: u64, now: u64) -> bool {
        let (tokens, asked) = &mut self.shards[shard];
        if *tokens >= cost {
            *tokens -= cost;
            return true;
        }
        if !*asked {
            *asked = true;
            self.post(now, Mail::Ask(shard, cost.max(self.grab)));
        }
        false
    }

    fn next_due(&self) -> Option<u64> {
        let ready = self.bucket.eligible_at(Instant::from_ns(self.settled_at)).map(|at| at.ns);
        let served = if self.queue.is_empty() { None } else { ready };
        self.mail.keys().next().map(|key| key.0).into_iter().chain(served).min()
    }

    fn step(&mut self, now: u64) -> Vec<usize> {
        self.bucket.settle(Duration::from_ns(now - self.settled_at));
        self.settled_at = now;
        let mut touched = Vec::new();
        while let Some(entry) = self.mail.first_entry()
            && entry.key().0 <= now
        {
            match entry.remove() {
                Mail::Ask(shard, tokens) => self.queue.push_back((shard, tokens)),
                Mail::Grant(shard, tokens) => {
                    self.shards[shard] = (self.shards[shard].0 + tokens, false);
                    touched.push(shard);
                }
            }
        }
        while self.bucket.is_ready()
            && let Some((shard, tokens)) = self.queue.pop_front()
        {
            self.bucket.charge(tokens);
            self.post(now, Mail::Grant(shard, tokens));
        }
        touched
    }
}

/// The cap of the table: 40,000 tokens a second, saved for 5 ms at most.
pub fn cap() -> Cap {
    Cap {
        rate_per_second: 40_000,
        depth: Depth::time(Duration::from_ms(5)),
        charge_max: 16,
        timing: evenkeel_core::qos::lease::Timing::CORES,
    }
}
