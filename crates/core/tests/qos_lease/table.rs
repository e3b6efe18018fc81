//! One cap of 40,000 tokens a second, eight shards, messages that take 2 to 12 us: what four loads
//! get under three schemes, over ten seconds.

use crate::schemes::{FixedGrabs, Scheme, StaticSplit, cap};
use crate::world::{Net, Rng, World};

const SHARDS: usize = 8;
const NS_PER_S: u64 = 1_000_000_000;
const SECONDS: usize = 10;
const START: u64 = NS_PER_S;
const SEED: u64 = 20_251_121;

/// What a shard does.
#[derive(Clone, Copy, PartialEq)]
enum Load {
    Idle,
    /// Always has a request of this cost.
    Hot(u64),
    /// One request of cost 1 at a time, 250 to 349 us of service each.
    DepthOne,
}

/// What the shards got: tokens by second, and how long requests of [`Load::DepthOne`] waited.
struct Outcome {
    tokens: Vec<[u64; SECONDS]>,
    waits_ns: Vec<u64>,
}

impl Outcome {
    fn per_second(&self, shards: std::ops::Range<usize>) -> f64 {
        let sum: u64 = self.tokens[shards].iter().flatten().sum();
        sum as f64 / SECONDS as f64
    }

    /// The largest distance of a second's total from `expected`, in parts of it.
    fn worst_second(&self, expected: f64) -> f64 {
        let total = |second| self.tokens.iter().map(|shard| shard[second]).sum::<u64>() as f64;
        (0..SECONDS).map(|s| (total(s) - expected).abs() / expected).fold(0.0, f64::max)
    }

    fn wait_p99_us(&self) -> f64 {
        let mut waits = self.waits_ns.clone();
        waits.sort_unstable();
        waits.get(waits.len() * 99 / 100).map_or(0.0, |&ns| ns as f64 / 1_000.0)
    }
}

struct Run<'a> {
    scheme: &'a mut dyn Scheme,
    loads: [Load; SHARDS],
    /// When the request that waits was issued.
    issued_at: [Option<u64>; SHARDS],
    /// When a shard of depth one issues its next.
    next_io: [Option<u64>; SHARDS],
    outcome: Outcome,
    now: u64,
    rng: Rng,
}

impl Run<'_> {
    fn shard(&mut self, shard: usize) {
        let cost = match self.loads[shard] {
            Load::Idle => return,
            Load::Hot(cost) => cost,
            Load::DepthOne => 1,
        };
        while self.issued_at[shard].is_some() && self.scheme.take(shard, cost, self.now) {
            // The first second is the schemes' own: full buckets are emptied.
            let second = ((self.now - START) / NS_PER_S) as usize;
            if (1..=SECONDS).contains(&second) {
                self.outcome.tokens[shard][second - 1] += cost;
            }
            if self.loads[shard] == Load::DepthOne {
                let waited = self.now - self.issued_at[shard].take().unwrap();
                self.outcome.waits_ns.push(waited);
                self.next_io[shard] = Some(self.now + self.rng.between(250_000, 349_000));
            }
        }
    }

    fn finish(mut self) -> Outcome {
        let ends_at = START + (SECONDS as u64 + 1) * NS_PER_S;
        (0..SHARDS).for_each(|shard| self.shard(shard));
        loop {
            let io = self.next_io.iter().flatten().min().copied();
            let Some(next) = io.into_iter().chain(self.scheme.next_due()).min() else { break };
            if next >= ends_at {
                break;
            }
            self.now = next;
            for shard in self.scheme.step(next) {
                self.shard(shard);
            }
            for shard in 0..SHARDS {
                if self.next_io[shard].is_some_and(|at| at <= next) {
                    self.next_io[shard] = None;
                    self.issued_at[shard] = Some(next);
                    self.shard(shard);
                }
            }
        }
        self.outcome
    }
}

fn run(scheme: &mut dyn Scheme, loads: [Load; SHARDS]) -> Outcome {
    let outcome = Outcome { tokens: vec![[0; SECONDS]; SHARDS], waits_ns: vec![] };
    let issued_at = loads.map(|load| (load != Load::Idle).then_some(START));
    let next_io = [None; SHARDS];
    Run { scheme, loads, issued_at, next_io, outcome, now: START, rng: Rng::new(SEED) }.finish()
}

/// Static split, fixed grabs, leases.
fn outcomes(loads: [Load; SHARDS]) -> [Outcome; 3] {
    [
        run(&mut StaticSplit::new(cap(), SHARDS, START), loads),
        run(&mut FixedGrabs::new(cap(), SHARDS, START, SEED), loads),
        run(&mut World::new(cap(), SHARDS, Net::CORES, SEED), loads),
    ]
}

fn near(found: f64, expected: f64) {
    let error = (found - expected).abs() / expected;
    assert!(error <= 0.01, "{found} is not within 1 % of {expected}");
}

fn print(case: &str, cells: [String; 3]) {
    let [split, grabs, leases] = cells;
    println!("{case:<34}| {split:>22} | {grabs:>22} | {leases:>22}");
}

fn head() {
    println!();
    print("tokens/s", ["static split", "fixed grabs, FIFO", "leases"].map(String::from));
}

#[test]
fn table_one_hot_shard_gets_the_whole_cap() {
    let mut loads = [Load::Idle; SHARDS];
    loads[0] = Load::Hot(1);
    let found = outcomes(loads);
    head();
    print("one hot shard, 7 idle", found.each_ref().map(|o| format!("{:.0}", o.per_second(0..1))));
    for (outcome, expected) in found.iter().zip([5_000.0, 40_000.0, 40_000.0]) {
        near(outcome.per_second(0..8), expected);
    }
}

#[test]
fn table_light_shards_do_not_wait_beside_a_hot_one() {
    let mut loads = [Load::DepthOne; SHARDS];
    loads[0] = Load::Hot(1);
    let found = outcomes(loads);
    head();
    print(
        "one hot, 7 at depth 1: total, p99",
        found.each_ref().map(|o| {
            let total = o.per_second(0..8);
            format!("{total:.0}, {:.0} us", o.wait_p99_us())
        }),
    );
    for (outcome, expected) in found.iter().zip([28_380.0, 40_000.0, 40_000.0]) {
        near(outcome.per_second(0..8), expected);
    }
    let p99 = found.each_ref().map(Outcome::wait_p99_us);
    assert!(p99[0] == 0.0 && p99[1] > 100.0 && p99[2] == 0.0, "{p99:?} us");
}

#[test]
fn table_small_requests_are_worth_as_much_as_large_ones() {
    let mut loads = [Load::Hot(1); SHARDS];
    loads[..4].fill(Load::Hot(16));
    let found = outcomes(loads);
    head();
    let cell = |o: &Outcome| {
        format!("{:.0} and {:.0} each", o.per_second(0..4) / 4.0, o.per_second(4..8) / 4.0)
    };
    print("4 of cost 16, 4 of cost 1", found.each_ref().map(cell));
    let each = [(5_000.0, 5_000.0), (7_618.0, 2_380.0), (5_000.0, 5_000.0)];
    for (outcome, (large, small)) in found.iter().zip(each) {
        for shard in 0..4 {
            near(outcome.per_second(shard..shard + 1), large);
            near(outcome.per_second(shard + 4..shard + 5), small);
        }
    }
}

#[test]
fn table_all_saturated_is_exact() {
    let found = outcomes([Load::Hot(1); SHARDS]);
    head();
    let cell = |o: &Outcome| {
        let total = o.per_second(0..8);
        format!("{total:.0}, worst {:.3} %", 100.0 * o.worst_second(40_000.0))
    };
    print("all saturated: total, second", found.each_ref().map(cell));
    for outcome in &found {
        assert!(outcome.worst_second(40_000.0) <= 0.000_5);
        for shard in 0..SHARDS {
            near(outcome.per_second(shard..shard + 1), 5_000.0);
        }
    }
}
