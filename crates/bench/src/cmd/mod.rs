//! The verbs: the published figures, each with the command that finds it again. The library
//! measures; here flags are read and results are printed.

mod clean;
mod follow;
mod nbd;
mod plan;
mod results;
mod suite;

use crate::cli::{self, BenchCluster, BenchIsolation, ClusterFigure, Verb};
use evenkeel_bench::published::cluster::Figure;
use evenkeel_bench::published::{
    Bench, Outcome, cluster, idle, instance, isolation, limits, proofs, replay, reservation,
};
use evenkeel_bench::server_process::DEVICE;
use evenkeel_bench::suite::rerun;
use evenkeel_cli::flags::Output;
use evenkeel_cli::man::{self, completions};
use evenkeel_cli::reference::Introduction;
use evenkeel_cli::store::{Bytes, StoreKind};
use evenkeel_cli::verdict::{AGAIN, Says};
use evenkeel_cli::{connect, log, runs, signals};
use evenkeel_client::output::{self, Exit, Failure, Format};
use evenkeel_core::convert::saturating;
use evenkeel_lab::{LabError, leftovers};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;
use tempfile::TempDir;

/// The parts of the reference that are not in the definition.
const INTRODUCTION: Introduction = Introduction {
    title: "The command line of evenkeel-bench",
    source: "crates/bench/src/cli.rs",
    settings: "A flag with an environment variable is a setting.\n",
};

pub fn run(verb: &Verb) -> Result<(), Failure> {
    refuse_csv(verb)?;
    match verb {
        Verb::Ls(arguments) => results::ls(arguments),
        Verb::Run(arguments) if arguments.suite == follow::NAME => {
            follow::run(None, &arguments.output)
        }
        Verb::Run(arguments) => suite::run(arguments),
        Verb::Follow(arguments) => follow::run(arguments.svg.as_deref(), &arguments.output),
        Verb::Show(arguments) => results::show(arguments),
        Verb::Compare(arguments) => results::compare(arguments),
        Verb::Nbd(arguments) => nbd::nbd(arguments),
        Verb::Limits(arguments) => measure("limits", arguments.time, &arguments.output, |bench| {
            limits::measure(bench, arguments.io.into())
        }),
        Verb::Isolation(arguments) => isolation(arguments),
        Verb::Reservation(arguments) => {
            measure("reservation", arguments.time, &arguments.output, |bench| {
                let store =
                    arguments.store.map_or_else(|| DEVICE.to_owned(), |store| store.to_string());
                reservation::measure(bench, &store)
            })
        }
        Verb::Prove(arguments) => {
            measure("bench-prove", arguments.time, &arguments.output, proofs::measure)
        }
        Verb::Instance(arguments) => {
            measure("instance", arguments.time, &arguments.output, instance::measure)
        }
        Verb::Idle(arguments) => measure("idle", arguments.time, &arguments.output, |bench| {
            idle::measure(bench, arguments.volumes)
        }),
        Verb::Replay(arguments) => {
            let seconds = seconds(arguments.time);
            if seconds > replay::SECONDS_MAX {
                let most = replay::SECONDS_MAX;
                let message =
                    format!("time: {seconds} s of a trace are too many: use {most}s at most");
                return Err(Failure::new(message).exit(Exit::Usage));
            }
            measure("replay", arguments.time, &arguments.output, |bench| {
                replay::measure(bench, arguments.io.into())
            })
        }
        Verb::Plan(arguments) => plan::run(arguments),
        Verb::Cluster(arguments) => cluster(arguments),
        Verb::Clean(arguments) => clean::run(arguments),
        Verb::Export(arguments) => nbd::export(arguments),
        Verb::Floor(arguments) => nbd::floor(arguments),
        Verb::Completions(arguments) => completions(cli::command(), arguments),
        Verb::Man(arguments) => man::run(cli::command(), &INTRODUCTION, arguments),
    }
}

/// Refuses CSV before a benchmark runs for minutes, since its results are not a list of items.
fn refuse_csv(verb: &Verb) -> Result<(), Failure> {
    let output = match verb {
        Verb::Ls(_) | Verb::Clean(_) | Verb::Export(_) | Verb::Floor(_) => return Ok(()),
        Verb::Completions(_) | Verb::Man(_) => return Ok(()),
        Verb::Run(arguments) => &arguments.output,
        Verb::Show(arguments) => &arguments.output,
        Verb::Compare(arguments) => &arguments.output,
        Verb::Nbd(arguments) => &arguments.output,
        Verb::Limits(arguments) => &arguments.output,
        Verb::Isolation(arguments) => &arguments.output,
        Verb::Reservation(arguments) => &arguments.output,
        Verb::Prove(arguments) => &arguments.output,
        Verb::Instance(arguments) => &arguments.output,
        Verb::Idle(arguments) => &arguments.output,
        Verb::Replay(arguments) => &arguments.output,
        Verb::Follow(arguments) => &arguments.output,
        Verb::Plan(arguments) => &arguments.output,
        Verb::Cluster(arguments) => &arguments.output,
    };
    if output.format != Format::Csv {
        return Ok(());
    }
    let message = "-o csv: what this benchmark finds is no list of items";
    Err(Failure::new(message).exit(Exit::Usage).hint("use -o json, or text"))
}

fn isolation(arguments: &BenchIsolation) -> Result<(), Failure> {
    let stores = match arguments.store {
        Some(store) => vec![store],
        None => {
            let parsed = [DEVICE, "local"].into_iter().map(str::parse::<StoreKind>);
            parsed.collect::<Result<_, _>>().map_err(Failure::new)?
        }
    };
    let store = |store: &StoreKind| isolation::Store {
        name: store.to_string(),
        is_disk: store.bytes != Bytes::Memory && store.device.is_none(),
    };
    let stores: Vec<isolation::Store> = stores.iter().map(store).collect();
    let parent = arguments.dir.clone().unwrap_or_else(std::env::temp_dir);
    measure_in(&parent, "isolation", arguments.time, &arguments.output, |bench| {
        isolation::measure(bench, &stores, arguments.rounds)
    })
}

fn cluster(arguments: &BenchCluster) -> Result<(), Failure> {
    let figure = |figure: &ClusterFigure| match figure {
        ClusterFigure::Takeover => Figure::Takeover,
        ClusterFigure::Moves => Figure::Moves,
        ClusterFigure::Throughput => Figure::Throughput,
        ClusterFigure::Control => Figure::Control,
        ClusterFigure::Many => Figure::Many,
    };
    let figures = match arguments.only.as_slice() {
        [] => Figure::ALL.to_vec(),
        only => only.iter().map(figure).collect(),
    };
    let BenchCluster { propose_ms, quick, .. } = *arguments;
    let setup = cluster::Setup { figures, propose_ms, quick };
    // The measurement determines the length of each load.
    measure("bench-cluster", Duration::ZERO, &arguments.output, |bench| {
        cluster::measure(bench, &setup)
    })
}

/// Measures a published figure in the folder of temporary files.
fn measure(
    name: &str,
    time: Duration,
    output: &Output,
    find: impl FnOnce(Bench<'_>) -> Result<Outcome, LabError>,
) -> Result<(), Failure> {
    measure_in(&std::env::temp_dir(), name, time, output, find)
}

/// Measures a published figure in a new folder, and prints it.
fn measure_in(
    parent: &Path,
    name: &str,
    time: Duration,
    output: &Output,
    find: impl FnOnce(Bench<'_>) -> Result<Outcome, LabError>,
) -> Result<(), Failure> {
    let folder = begin(parent, &format!("evenkeel-{name}-"))?;
    let found = find(Bench {
        folder: folder.path(),
        seconds: seconds(time),
        connect: connect::client_in_default_region,
        progress: &mut |line| eprintln!("{line}"),
    })?;
    conclude(output, &found)
}

/// Prints what was found, and returns its verdict as the result of the command.
fn conclude(output: &Output, found: &Outcome) -> Result<(), Failure> {
    print(output, &found.json, |_| found.text.clone())?;
    Says { broken: &found.why, gone: "the server is gone", hint: None, again: AGAIN }
        .of(found.verdict)
}

/// Logs warnings and errors, and creates a folder that is removed when it is dropped or Ctrl-C ends
/// the measurement.
fn begin(parent: &Path, prefix: &str) -> Result<TempDir, Failure> {
    log::to_stderr("warn")?;
    let folder = runs::folder(parent, prefix)?;
    signals::end_when_told_to(vec![folder.path().to_owned()])?;
    Ok(folder)
}

/// Logs warnings and errors, and creates a folder of temporary files for file systems. Ctrl-C takes
/// them down before the folder is removed.
fn begin_with_mounts(prefix: &str) -> Result<TempDir, Failure> {
    log::to_stderr("warn")?;
    let folder = runs::folder(&std::env::temp_dir(), prefix)?;
    let mounts = folder.path().to_owned();
    signals::end_when_told_to_after(vec![mounts.clone()], move || {
        for left in rerun::take_down(&mounts) {
            eprintln!("left behind: {left}");
        }
    })?;
    Ok(folder)
}

/// Removes a folder of [`begin_with_mounts`], or keeps it if a file system is left below it.
fn end_with_mounts(folder: TempDir) {
    if leftovers::is_any_below(folder.path()) {
        // Its journal has the resources that are left; the next run tries to remove them.
        eprintln!("not everything could be taken down: {} is kept", folder.keep().display());
    }
}

/// Returns a time in whole seconds, for the laboratory, which refuses too long ones.
fn seconds(time: Duration) -> u32 {
    saturating::<_, u32>(time.as_secs())
}

/// Prints the results as JSON or as text.
fn print<T: Serialize>(
    output: &Output,
    found: &T,
    words: impl FnOnce(&T) -> String,
) -> Result<(), Failure> {
    output::print(&match output.format {
        Format::Json => output::json(
            &serde_json::to_value(found).map_err(|error| Failure::new(error.to_string()))?,
        ),
        Format::Text | Format::Csv => words(found),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_definition_is_sound_and_every_verb_has_a_page() {
        cli::command().debug_assert();
        for verb in cli::command().get_subcommands() {
            let path = [verb.get_name().to_owned()];
            assert!(man::page(cli::command(), &path).unwrap().contains(".SH SYNOPSIS"), "{path:?}");
        }
    }
}
