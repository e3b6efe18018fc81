//! Property 22: whatever becomes of messages, holders and the home, all holders together spend no
//! more in any window than the home's one bucket would give.

use std::collections::BTreeSet;

use evenkeel_core::qos::bucket::Depth;
use evenkeel_core::qos::lease::{Cap, Timing};
use evenkeel_core::time::Duration;
use proptest::prelude::*;

use crate::world::{Net, World};

const NS_PER_S: i128 = 1_000_000_000;
const MS: u64 = 1_000_000;

/// The bound, by the definition of a bucket and nothing else: the worst sum over all windows, less
/// what flows in during them.
#[derive(Default)]
struct Oracle {
    /// Of the windows that end at `at`, in token x 10^9.
    excess: i128,
    at: u64,
    worst: i128,
    tokens: u64,
}

impl Oracle {
    fn spend(&mut self, now: u64, tokens: u64, rate: u64) {
        let inflow = i128::from(rate) * i128::from(now - self.at);
        self.excess = (self.excess - inflow).max(0) + i128::from(tokens) * NS_PER_S;
        self.at = now;
        self.worst = self.worst.max(self.excess);
        self.tokens += tokens;
    }
}

#[derive(Clone, Debug)]
struct Case {
    seed: u64,
    holders: usize,
    rate: u64,
    tolerance_us: u64,
    charge_max: u64,
    clock_error_us: u64,
    lost_ppm: u32,
    twice_ppm: u32,
    late_ppm: u32,
    late_ms: u64,
    delay_us: u64,
    chaos: Chaos,
    habit: Habit,
}

/// What happens to those who run.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Chaos {
    None,
    /// Holders die; some come back, some are forgotten.
    HoldersDie,
    Stalls,
    /// The home dies for good.
    HomeDies,
    HomeReplaced,
}

/// How clients spend.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Habit {
    /// Bursts and pauses at random.
    Random,
    /// As little as keeps the lease, then all at the same instant.
    Hoard,
    Greedy,
}

fn case() -> impl Strategy<Value = Case> {
    let chaos = prop_oneof![
        Just(Chaos::None),
        Just(Chaos::HoldersDie),
        Just(Chaos::Stalls),
        Just(Chaos::HomeDies),
        Just(Chaos::HomeReplaced),
    ];
    let habit = prop_oneof![Just(Habit::Random), Just(Habit::Hoard), Just(Habit::Greedy)];
    let cap = (
        1..=6usize,
        prop_oneof![Just(100u64), Just(3_000), Just(40_000), 1..100_000u64],
        prop_oneof![Just(1_000u64), Just(5_000), Just(50_000), Just(1_000_000)],
        prop_oneof![Just(1u64), Just(4), Just(64)],
        prop_oneof![Just(0u64), Just(1_000)],
    );
    let net = (
        prop_oneof![3 => Just(0u32), 1 => Just(10_000), 1 => Just(200_000), 1 => Just(900_000)],
        prop_oneof![Just(0u32), Just(200_000), Just(1_000_000)],
        prop_oneof![Just(0u32), Just(100_000)],
        prop_oneof![Just(5u64), Just(15), Just(80)],
        prop_oneof![Just(12u64), Just(300), Just(4_000)],
    );
    (any::<u64>(), cap, net, chaos, habit).prop_map(|(seed, cap, net, chaos, habit)| Case {
        seed,
        holders: cap.0,
        rate: cap.1,
        tolerance_us: cap.2,
        charge_max: cap.3,
        clock_error_us: cap.4,
        lost_ppm: net.0,
        twice_ppm: net.1,
        late_ppm: net.2,
        late_ms: net.3,
        delay_us: net.4,
        chaos,
        habit,
    })
}

impl Case {
    fn cap(&self) -> Cap {
        let clock_error = Duration::from_us(self.clock_error_us);
        Cap {
            rate_per_second: self.rate,
            depth: Depth::time(Duration::from_us(self.tolerance_us)),
            charge_max: self.charge_max,
            timing: Timing { clock_error, ..Timing::CORES },
        }
    }

    fn net(&self) -> Net {
        Net {
            delay_ns: (1_000, self.delay_us * 1_000),
            lost_ppm: self.lost_ppm,
            twice_ppm: self.twice_ppm,
            late_ppm: self.late_ppm,
            late_ns: self.late_ms * MS,
        }
    }
}

/// A run of a case.
struct Run {
    case: Case,
    world: World,
    oracle: Oracle,
    waiting: Vec<Option<u64>>,
    next_io: Vec<u64>,
    /// Lives on a share, each with one charge of its own that nobody can forbid.
    lone: BTreeSet<(usize, u64)>,
    lone_since: Vec<Option<u64>>,
    replaced: u64,
    next_trouble: u64,
    ends_at: u64,
}

impl Run {
    fn new(case: Case) -> Self {
        let world = World::new(case.cap(), case.holders, case.net(), case.seed);
        let now = world.now;
        Self {
            oracle: Oracle { at: now, ..Oracle::default() },
            waiting: vec![None; case.holders],
            next_io: vec![now; case.holders],
            lone: BTreeSet::new(),
            lone_since: vec![None; case.holders],
            replaced: 0,
            next_trouble: now + 40 * MS,
            ends_at: now + 250 * MS,
            case,
            world,
        }
    }

    fn finish(mut self) -> Self {
        let mut steps = 0;
        loop {
            let io = self.next_io.iter().min().copied().unwrap();
            let next = self.world.next_due().map_or(io, |due| due.min(io)).min(self.next_trouble);
            if next > self.ends_at {
                return self;
            }
            steps = if next > self.world.now { 0 } else { steps + 1 };
            assert!(steps < 100_000, "time stands still: {:?}", self.case);
            self.world.now = next;
            for index in self.world.step() {
                self.retry(index);
            }
            if self.next_trouble <= next {
                self.trouble();
            }
            for index in 0..self.case.holders {
                if self.next_io[index] <= next {
                    self.client(index);
                }
            }
        }
    }

    fn take(&mut self, index: usize, cost: u64) -> bool {
        let now = self.world.now;
        let alone = self.world.holders[index].as_ref().is_some_and(|holder| holder.is_alone());
        if !alone {
            self.lone_since[index] = None;
        }
        let may = self.world.take(index, cost);
        if may {
            if alone {
                let since = *self.lone_since[index].get_or_insert(now);
                self.lone.insert((index, since));
            }
            self.oracle.spend(now, cost, self.case.rate);
        }
        self.waiting[index] = (!may).then_some(cost);
        may
    }

    fn retry(&mut self, index: usize) {
        while let Some(cost) = self.waiting[index] {
            if !self.take(index, cost) {
                return;
            }
            if self.case.habit == Habit::Greedy {
                self.waiting[index] = Some(self.cost());
            }
        }
    }

    fn cost(&mut self) -> u64 {
        self.world.rng.between(1, self.case.charge_max)
    }

    fn client(&mut self, index: usize) {
        let now = self.world.now;
        let gap = match self.case.habit {
            Habit::Random => {
                for _ in 0..self.world.rng.between(0, 20) {
                    let cost = self.cost();
                    if !self.take(index, cost) {
                        break;
                    }
                }
                if self.world.rng.chance_ppm(250_000) && self.world.runs(index) {
                    self.world.abandon(index);
                    self.waiting[index] = None;
                }
                let long = self.world.rng.chance_ppm(100_000);
                self.world.rng.between(0, if long { 30 * MS } else { 2 * MS })
            }
            Habit::Hoard => {
                // Every 8 ms all spend what they have; in between just enough to keep it.
                let burst = (now / MS).is_multiple_of(8);
                while self.take(index, 1) && burst {}
                if burst { MS } else { 900_000.min(8 * MS - now % (8 * MS)) }
            }
            Habit::Greedy => {
                let cost = self.waiting[index].unwrap_or_else(|| self.cost());
                self.waiting[index] = Some(cost);
                self.retry(index);
                5 * MS
            }
        };
        self.next_io[index] = now + gap;
    }

    fn trouble(&mut self) {
        let world = &mut self.world;
        let index = usize::try_from(world.rng.between(0, self.case.holders as u64 - 1)).unwrap();
        let ns = world.rng.between(0, 40 * MS);
        self.next_trouble = world.now + world.rng.between(5 * MS, 40 * MS);
        match self.case.chaos {
            Chaos::None => {}
            Chaos::HoldersDie => match world.rng.between(0, 2) {
                0 => world.holders[index] = None,
                1 if world.holders[index].is_none() => world.forget(index),
                _ => world.restart(index),
            },
            Chaos::Stalls if world.rng.chance_ppm(500_000) => world.stall_home(ns),
            Chaos::Stalls => world.stall(index, ns),
            Chaos::HomeDies => world.home = None,
            Chaos::HomeReplaced => {
                world.replace_home();
                self.replaced += 1;
            }
        }
    }

    /// Depth, one grant (one more for each home that started anew), and one charge for each time
    /// that a holder lived on its share.
    fn bound(&self) -> i128 {
        let depth = i128::from(self.case.rate) * i128::from(self.case.tolerance_us * 1_000);
        let float = self.case.rate / 4_000;
        let grant = i128::from(self.case.charge_max + float) * NS_PER_S;
        let lone = i128::try_from(self.lone.len()).unwrap();
        let charges = lone * i128::from(self.case.charge_max) * NS_PER_S;
        depth + grant * i128::from(1 + self.replaced) + charges
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn p22_holders_never_spend_more_than_the_home_s_bucket_gives(case in case()) {
        let run = Run::new(case).finish();
        prop_assert!(run.oracle.worst <= run.bound(),
            "{} tokens in excess of the rate in some window, at most {}; {} lives alone",
            run.oracle.worst / NS_PER_S, run.bound() / NS_PER_S, run.lone.len());
    }

    /// What was lost is lost once: after the trouble the whole cap is spent again.
    #[test]
    fn p22_no_token_is_lost_for_good(case in case()) {
        let (spent, due) = spent_after_the_trouble(case);
        prop_assert!(spent >= due, "{spent} tokens in a second, {due} are due");
    }
}

/// A holder kept asking for the rest of a request whose first tokens ended before it came.
#[test]
fn p22_a_slow_cap_outlives_its_leases() {
    let case = Case {
        seed: 9_199_249_252_778_313_930,
        holders: 1,
        rate: 100,
        tolerance_us: 50_000,
        charge_max: 4,
        clock_error_us: 0,
        lost_ppm: 0,
        twice_ppm: 200_000,
        late_ppm: 0,
        late_ms: 5,
        delay_us: 4_000,
        chaos: Chaos::None,
        habit: Habit::Greedy,
    };
    let (spent, due) = spent_after_the_trouble(case);
    assert!(spent >= due, "{spent} tokens in a second, {due} are due");
}

/// Nobody knows what a holder that was lost had spent of its leases: the one that took its place
/// gave them back as if it were theirs.
#[test]
fn p22_a_new_life_gives_back_nothing_of_the_last_one() {
    for seed in [2_798_522_178_078_779_984, 705] {
        let case = Case {
            seed,
            holders: 3,
            rate: 100,
            tolerance_us: 5_000,
            charge_max: 1,
            clock_error_us: 1_000,
            lost_ppm: 200_000,
            twice_ppm: 200_000,
            late_ppm: 0,
            late_ms: 5,
            delay_us: 300,
            chaos: Chaos::HoldersDie,
            habit: Habit::Random,
        };
        let run = Run::new(case).finish();
        assert!(run.oracle.worst <= run.bound(), "{} of {}", run.oracle.worst, run.bound());
    }
}

/// What greedy holders spend in a second once `case` is over, and what they must at least: the
/// rate, but for a hundredth and two charges at the edges.
fn spent_after_the_trouble(case: Case) -> (u64, u64) {
    let kept = Case { habit: Habit::Greedy, ..case };
    let mut run = Run::new(kept).finish();
    if run.world.home.is_none() {
        run.world.replace_home();
    }
    run.world.set_net(Net::CORES);
    for index in 0..run.case.holders {
        if run.world.holders[index].is_none() {
            run.world.restart(index);
        }
    }
    (run.case.chaos, run.next_trouble) = (Chaos::None, u64::MAX);
    // Lone holders look for their home once a second; late messages and debts run out.
    run.ends_at += 2_500 * MS;
    let mut run = run.finish();
    let before = run.oracle.tokens;
    run.ends_at += 1_000 * MS;
    let run = run.finish();
    let spent = run.oracle.tokens - before;
    let slack = run.case.rate / 100 + 2 * run.case.charge_max + 2;
    (spent, run.case.rate.saturating_sub(slack))
}
