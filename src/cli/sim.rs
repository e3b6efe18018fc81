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
    /// Run a scenario and compare it with what it expects; exit code 1 if it comes otherwise.
    ///
    /// The same seed gives the same bytes of output. The speed is told on standard error.
    Run(SimRun),
    /// List the scenarios that come with the program.
    Ls,
    /// Judge random worlds by every line of the promise; exit code 1 if one does not keep it.
    ///
    /// A world is decided by its seed: volumes, clients, instances, a device, modifications,
    /// stalls. For each that fails the command is printed that repeats it alone.
    Swarm(SimSwarm),
}

#[derive(Args, Debug)]
pub struct SimSwarm {
    /// How many worlds.
    #[arg(long, value_name = "N", default_value_t = 200)]
    #[arg(value_parser = clap::value_parser!(u64).range(1..=10_000_000))]
    pub seeds: u64,

    /// The first one's seed; the others follow.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub seed: u64,
}

#[derive(Args, Debug)]
pub struct SimRun {
    /// One of `evenkeel sim ls`, or the path of a file; docs/reference/scenarios.md explains them.
    /// `limiters` and `isolation` print other schedulers beside this one.
    #[arg(value_name = "SCENARIO", value_hint = ValueHint::FilePath)]
    pub scenario: String,

    /// Seed of all chance. [default: the scenario's]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Volume rules of that day, such as 2012-08. [default: the scenario's]
    #[arg(long, value_name = "DATE", value_parser = date)]
    pub as_of: Option<Date>,

    /// Simulate every I/O, also of one volume's steady stretches, whose seconds repeat each other
    /// exactly and are otherwise computed from the first: the same output, more slowly.
    #[arg(long)]
    pub stepwise: bool,

    /// Where to write a report with charts.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub html: Option<PathBuf>,
}
