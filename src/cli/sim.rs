//! The flags of `evenkeel sim`.

use super::{Output, date};
use clap::{Args, Subcommand, ValueHint};
use evenkeel_autopilot::world::Generator;
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
    /// Simulate years of file systems under the autopilot; exit code 1 if room lacks or a rule does
    /// not hold.
    ///
    /// The agent is the one that runs on hosts; its file system, its API and its load are models.
    /// A seed determines the load and the faults, so runs with one seed are identical. Each cost is
    /// a percentage of the cost of another layout: that of a planner that knows the future, the
    /// smallest constant size that keeps the wanted room, the peak, and 1.2 times the peak.
    Autopilot(SimAutopilot),
}

#[derive(Args, Debug)]
pub struct SimAutopilot {
    /// Seed of the first world of each generator; the others follow.
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,

    /// Number of worlds of each generator.
    #[arg(long, value_name = "N", default_value_t = 10)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub worlds: u32,

    /// Years of each world.
    #[arg(long, value_name = "N", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=20))]
    pub years: u32,

    /// Kind of load; may be repeated. [default: all]
    #[arg(long, value_name = "NAME")]
    pub generator: Vec<Generator>,

    /// A policy file of the autopilot, whose first group is simulated in mode `act`. [default: the
    /// defaults of the policy]
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub policy: Option<PathBuf>,

    /// Add faults: refusals, throttling, lost answers, stuck attachments, late metrics, clocks that
    /// differ, rules that change, and ends of the agent between any two of its calls.
    #[arg(long)]
    pub faults: bool,

    /// Simulate rules of other products in the same worlds too.
    #[arg(long)]
    pub compare: bool,

    /// Write the audit of a single world to this file, as JSON lines.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub audit: Option<PathBuf>,

    /// Leave no tick of the agent out in the audit: slower, with the same decisions.
    #[arg(long, requires = "audit")]
    pub every_minute: bool,
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
