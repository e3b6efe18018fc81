//! Random histories of hosts, volumes, attachments, connections, requests and restarts, against a
//! model that is small enough to be checked by reading.
//!
//! Each history must keep these rules: each request of an open connection is answered; acknowledged
//! data is read back, also after a restart; a volume is reached from the hosts to which it is
//! attached and from no other; nothing is refused that can be done; and missing bytes are detected.
//!
//! A history is determined by its seed: `EVENKEEL_SEED=<n>` repeats one, and a failure prints the
//! command and each step. `EVENKEEL_FUZZ_CASES=<n>` runs `n` histories (`cargo x fuzz histories
//! <n>`). The order of parallel work inside the server differs from run to run, so it may take some
//! repetitions until a seed fails again.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../support/mod.rs"]
mod support;

mod model;
mod world;

use evenkeel_core::random::Random;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use world::World;

/// Histories of a plain run, which take a few seconds.
const CASES: u64 = 8;
/// Steps of each history.
const STEPS: u64 = 250;
/// A history that takes longer, even on the slowest machine, hangs.
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
