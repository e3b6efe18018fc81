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
}

#[derive(Args, Debug)]
pub struct SimRun {
    /// One of `evenkeel sim ls`, or the path of a file; docs/reference/scenarios.md explains them.
    #[arg(value_name = "SCENARIO", value_hint = ValueHint::FilePath)]
    pub scenario: String,

    /// Seed of all chance. [default: the scenario's]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,

    /// Volume rules of that day, such as 2012-08. [default: the scenario's]
    #[arg(long, value_name = "DATE", value_parser = date)]
    pub as_of: Option<Date>,

    /// Where to write a report with charts.
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub html: Option<PathBuf>,
}
