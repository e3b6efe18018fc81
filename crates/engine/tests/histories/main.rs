//! Random histories of hosts, volumes, attachments, connections, requests and restarts, against a
//! model that is small enough to be seen to be right.
//!
//! What must hold: every request of an open connection is answered; what was answered is read back,
//! also after a restart; a volume is reached from the hosts it is attached to and from nowhere
//! else; nothing is refused that can be done; and bytes that are missing are missed.
//!
//! A history is decided by its seed: `EVENKEEL_SEED=<n>` repeats one, and a failure prints the
//! command and every step. `EVENKEEL_FUZZ_CASES=<n>` tries so many (`cargo x fuzz histories <n>`).
//! What happens at the same time inside the server differs from run to run, so a seed that failed
//! once may have to be repeated some times.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod model;
mod world;

use evenkeel_core::random::Random;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use world::World;

/// Histories of a plain run: a few seconds.
const CASES: u64 = 8;
/// Steps of each.
const STEPS: u64 = 250;
/// No history takes longer on the slowest machine: something waits for what will not come.
const HISTORY_MAX: Duration = Duration::from_secs(600);

fn number(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is no number")))
}

#[test]
fn every_history_goes_as_the_model_says() {
    let seeds = match number("EVENKEEL_SEED") {
        Some(seed) => seed..seed + 1,
        None => 1..number("EVENKEEL_FUZZ_CASES").unwrap_or(CASES) + 1,
    };
    for seed in seeds {
        let (done, is_done) = channel::<()>();
        let watch = std::thread::spawn(move || {
            if is_done.recv_timeout(HISTORY_MAX) == Err(RecvTimeoutError::Timeout) {
                eprintln!("seed {seed} does not end: repeat it with EVENKEEL_SEED={seed}");
                std::process::abort();
            }
        });
        let mut world = World::new(Random::from_state(seed), seed);
        for _ in 0..STEPS {
            world.step();
        }
        world.check_everything();
        world.restart();
        world.check_everything();
        world.end();
        drop(done);
        watch.join().unwrap();
    }
}
