//! Histories of a cluster in virtual time. A failure prints its history and its seed:
//!
//! ```text
//! EVENKEEL_SEED=<n> cargo test -p evenkeel-cluster --lib in_every_history
//! EVENKEEL_FUZZ_CASES=<histories> cargo test -p evenkeel-cluster --lib in_every_history
//! ```

use super::cluster::{Counts, World};

/// Number of histories of a run without `EVENKEEL_FUZZ_CASES`.
const HISTORIES: u64 = 1_000;
/// Maximum number of lines of a history that a failure prints.
const LINES_MAX: usize = 200;

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok().map(|text| text.parse().expect("a number"))
}

fn run(seed: u64, is_logged: bool) -> World {
    let mut world = World::new(seed, is_logged);
    world.disturbed();
    if world.broken.is_none() {
        world.calm();
    }
    world
}

/// Runs the history of a seed. A history that fails runs again, with its log.
fn history(seed: u64) -> Counts {
    let world = run(seed, false);
    if let Some(broken) = world.broken {
        let log = run(seed, true).log.unwrap_or_default();
        let lines = log[log.len().saturating_sub(LINES_MAX)..].join("\n");
        panic!("{lines}\n{broken}\nreplay: EVENKEEL_SEED={seed}");
    }
    world.counts
}

#[test]
fn in_every_history_one_leader_commits_and_a_lost_lease_ends_a_term() {
    if let Some(seed) = number("EVENKEEL_SEED") {
        let world = run(seed, true);
        println!("{}\n{:?}", world.log.unwrap_or_default().join("\n"), world.counts);
        history(seed);
        return;
    }
    let mut sum = Counts::default();
    let histories = number("EVENKEEL_FUZZ_CASES").unwrap_or(HISTORIES);
    for seed in 1..=histories {
        let counts = history(seed);
        sum.terms += counts.terms;
        sum.commits += counts.commits;
        sum.refused_commits += counts.refused_commits;
        sum.fences += counts.fences;
        sum.rejoins += counts.rejoins;
        sum.lost_leases += counts.lost_leases;
        sum.unheld_events += counts.unheld_events;
        sum.late_wins += counts.late_wins;
        sum.stops += counts.stops;
    }
    println!("{histories} histories: {sum:?}");
    // An event that never happens is not tested.
    let Counts { refused_commits, fences, rejoins, lost_leases, unheld_events, stops, .. } = sum;
    for count in [refused_commits, fences, rejoins, lost_leases, unheld_events, stops] {
        assert!(count >= histories / 10, "something is rare: {sum:?}");
    }
}
