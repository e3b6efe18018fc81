//! `evenkeel bench`: the published figures, each with the command that finds it again.

mod clean;
#[path = "../../../crates/lab/src/published/idle.rs"]
mod idle;
#[path = "../../../crates/lab/src/published/instance.rs"]
mod instance;
#[path = "../../../crates/lab/src/published/isolation.rs"]
mod isolation;
#[path = "../../../crates/lab/src/suite/kept.rs"]
mod kept;
#[path = "../../../crates/lab/src/published/limits.rs"]
mod limits;
mod nbd;
#[path = "../../../crates/lab/src/published/proofs.rs"]
mod prove;
#[path = "../../../crates/lab/src/published/replay.rs"]
mod replay;
#[path = "../../../crates/lab/src/published/reservation.rs"]
mod reservation;
#[path = "../../../crates/lab/src/bench/served.rs"]
mod served;
mod suite;
#[path = "../../../crates/lab/src/bench/data_plane.rs"]
mod world;

use super::{folder_of_a_run, serve};
use crate::cli::{BenchVerb, Output};
use crate::message::{self, Exit, Failure, Format};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

pub fn run(verb: &BenchVerb) -> Result<(), Failure> {
    refuse_csv(verb)?;
    match verb {
        BenchVerb::Ls(arguments) => kept::ls(arguments),
        BenchVerb::Run(arguments) => suite::run(arguments),
        BenchVerb::Show(arguments) => kept::show(arguments),
        BenchVerb::Compare(arguments) => kept::compare(arguments),
        BenchVerb::Nbd(arguments) => nbd::nbd(arguments),
        BenchVerb::Limits(arguments) => limits::run(arguments),
        BenchVerb::Isolation(arguments) => isolation::run(arguments),
        BenchVerb::Reservation(arguments) => reservation::run(arguments),
        BenchVerb::Prove(arguments) => prove::run(arguments),
        BenchVerb::Instance(arguments) => instance::run(arguments),
        BenchVerb::Idle(arguments) => idle::run(arguments),
        BenchVerb::Replay(arguments) => replay::run(arguments),
        BenchVerb::Clean(arguments) => clean::run(arguments),
        BenchVerb::Export(arguments) => nbd::export(arguments),
        BenchVerb::Floor(arguments) => nbd::floor(arguments),
    }
}

/// Before anything runs for minutes: what benchmarks find is no list of items.
fn refuse_csv(verb: &BenchVerb) -> Result<(), Failure> {
    let output = match verb {
        BenchVerb::Ls(_) | BenchVerb::Clean(_) | BenchVerb::Export(_) | BenchVerb::Floor(_) => {
            return Ok(());
        }
        BenchVerb::Run(of) => &of.output,
        BenchVerb::Show(of) => &of.output,
        BenchVerb::Compare(of) => &of.output,
        BenchVerb::Nbd(of) => &of.output,
        BenchVerb::Limits(of) => &of.output,
        BenchVerb::Isolation(of) => &of.output,
        BenchVerb::Reservation(of) => &of.output,
        BenchVerb::Prove(of) => &of.output,
        BenchVerb::Instance(of) => &of.output,
        BenchVerb::Idle(of) => &of.output,
        BenchVerb::Replay(of) => &of.output,
    };
    if output.format != Format::Csv {
        return Ok(());
    }
    let message = "-o csv: what this benchmark finds is no list of items";
    Err(Failure::new(message).exit(Exit::Usage).hint("use -o json, or text"))
}

/// Logs what goes wrong, and makes a folder that is gone when it is dropped or Ctrl-C ends the
/// measurement.
fn begin(parent: &Path, prefix: &str) -> Result<TempDir, Failure> {
    serve::log_to_stderr("warn")?;
    let folder = folder_of_a_run(parent, prefix)?;
    serve::end_when_told_to(vec![folder.path().to_owned()])?;
    Ok(folder)
}

/// The whole seconds of a time, as the laboratory takes them; it refuses what is too long.
fn seconds(time: Duration) -> u32 {
    u32::try_from(time.as_secs()).unwrap_or(u32::MAX)
}

/// Prints what was found: as JSON, or in words.
fn print<T: Serialize>(
    output: &Output,
    found: &T,
    words: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    message::print(&match output.format {
        Format::Json => message::json(&serde_json::to_value(found).map_err(failed)?),
        Format::Text | Format::Csv => words(found),
    })
}

/// The libraries' errors name the thing, the value and the next step themselves.
fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(error.to_string())
}
