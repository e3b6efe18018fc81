//! Runs the cases of the bench `pacing` once and without a clock, to count instructions, which are
//! the same on each machine and in each run.
//!
//! `cargo x bench instructions` runs it under callgrind and prints instructions per I/O.

mod saturated;

use saturated::{World, burstable, provisioned};
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|a| a != "--bench").collect();
    let [way, volumes, batches] = arguments.as_slice() else {
        println!(
            "instructions: nothing to count; say `provisioned|burstable|shared VOLUMES BATCHES`"
        );
        return ExitCode::SUCCESS;
    };
    let (Ok(volumes), Ok(batches)) = (volumes.parse(), batches.parse::<u64>()) else {
        eprintln!("instructions: {volumes} and {batches} must be whole numbers");
        return ExitCode::from(2);
    };
    let mut world = match way.as_str() {
        "provisioned" => World::new(volumes, false, provisioned),
        "burstable" => World::new(volumes, false, burstable),
        "shared" => World::new(volumes, true, provisioned),
        other => {
            eprintln!("instructions: {other}: say provisioned, burstable or shared");
            return ExitCode::from(2);
        }
    };
    for _ in 0..batches {
        world.batch();
    }
    ExitCode::SUCCESS
}
