//! The flags of `evenkeel sim`.

use super::{Output, date};
use clap::{Args, Subcommand, ValueHint};
use evenkeel_core::volume::Date;
use std::path::PathBuf;

#[derive(Args, Debug)]
pub struct Sim {
    #[command(subcommand)]
    pub verb: SimVerb,

    #[command(flatten)]
    pub output: Output,
}

#[derive(Subcommand, Debug)]
pub enum SimVerb {
    /// Run a scenario and compare the result with its expectations; exit code 1 if one is not met.
    ///
    /// The same seed gives the same bytes of output. The speed is printed on standard error.
    Run(SimRun),
    /// List the built-in scenarios.
    Ls,
    /// Check random worlds against every line of the promise; exit code 1 if one breaks it.
    ///
    /// The seed determines the world: volumes, clients, instances, a device, modifications, stalls.
    /// For each failure the command that repeats it alone is printed.
    Swarm(SimSwarm),
}

#[derive(Args, Debug)]
pub struct SimSwarm {
    /// Number of worlds.
    #[arg(long, value_name = "N", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub seeds: u64,

    /// Seed of the first world; the others follow.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

#[derive(Args, Debug)]
pub struct SimRun {
    /// A name from `evenkeel sim ls`, or the path of a file as docs/reference/scenarios.md
    /// describes.
    #[arg(value_name = "SCENARIO", value_hint = ValueHint::FilePath)]
    pub scenario: String,

    /// Seed of the random numbers. [default: the scenario's]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Day whose volume rules apply, such as 2012-08. [default: the scenario's]
    #[arg(long, value_name = "DATE", value_parser = date)]
    pub as_of: Option<Date>,

    /// Simulate every I/O, also in steady stretches of one volume, whose seconds repeat exactly and
    /// are otherwise computed from the first. Gives the same output, more slowly.
    #[arg(long)]
    pub stepwise: bool,

    /// Write a report with charts to this file.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub html: Option<PathBuf>,
}
