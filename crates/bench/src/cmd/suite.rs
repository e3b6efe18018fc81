//! `evenkeel-bench run`: repeats a published experiment, live and in virtual time.

use super::{begin_with_mounts, end_with_mounts, print, results};
use crate::cli::BenchRun;
use evenkeel_bench::live;
use evenkeel_bench::suite::rerun::{Prepared, Rerun};
use evenkeel_bench::suite::result::SuiteResult;
use evenkeel_bench::suite::{self, Choice, Suite};
use evenkeel_cli::runs;
use evenkeel_cli::verdict::Says;
use evenkeel_client::output::{Exit, Failure};
use evenkeel_client::progress::{Progress, Stages, left};
use evenkeel_lab::cancel;
use evenkeel_lab::checker::Outcome;
use evenkeel_lab::fio::{self, VolumeProgress};
use evenkeel_os::clock;
use evenkeel_sim::text;

/// Prefix of the folders of runs, by which those of interrupted runs are found.
const FOLDERS: &str = "evenkeel-suite-";

pub fn run(arguments: &BenchRun) -> Result<(), Failure> {
    let name = arguments.suite.as_str();
    let suite = suite::find(name).map_err(|error| {
        Failure::from(error).exit(Exit::NotFound).hint("`evenkeel-bench ls` lists them")
    })?;
    let part = Choice { only: arguments.only.as_deref(), runs: arguments.runs, without: &[] };
    let usage = |error| Failure::from(error).exit(Exit::Usage);
    let mut rerun = Rerun::begin(name, &suite, part);
    rerun.result.command = runs::this_call("evenkeel-bench");
    if !arguments.live && !arguments.full {
        simulate(&mut rerun)?;
    }
    let mut driven = Ok(());
    if !arguments.simulate {
        let prepared = rerun.prepare(arguments.full, !arguments.no_mount, &mut |line| {
            eprintln!("{line}");
        });
        driven = drive(arguments, &suite, &prepared.map_err(usage)?, &mut rerun);
    }
    let mut result = rerun.result;
    if let Err(failure) = &driven {
        if result.simulated.is_none() || cancel::is_stopped() {
            return driven;
        }
        // The results in virtual time are kept all the same.
        result.failures.push(failure.message.clone());
        result.pass = false;
    }
    let [json, html] = results::folder(&arguments.results)?.keep(&result)?;
    print(&arguments.output, &result, SuiteResult::to_text)?;
    eprintln!("result: {}\nreport: {}", json.display(), html.display());
    driven?;
    let outcome = match result.pass {
        true => Outcome::Kept,
        false if result.is_undecided() => Outcome::Undecided,
        false => Outcome::Broken,
    };
    let headline = &result.headline();
    let again = "run it again when less runs beside it";
    Says { broken: headline, gone: headline, hint: None, again }.of(outcome)
}

/// Runs the workload in virtual time.
fn simulate(rerun: &mut Rerun<'_>) -> Result<(), Failure> {
    let ready = rerun.simulated().map_err(|error| Failure::from(error).exit(Exit::Usage))?;
    let cases = ready.scenario.cases.len();
    let bar = Progress::of_steps(cases as u64);
    let started = clock::now();
    let mut done = 0;
    let ios = rerun.simulate(&ready, &mut |case| {
        done += 1;
        bar.at(done, &format!("in virtual time, {done} of {cases}: {}", case.label));
    })?;
    bar.done();
    let seconds = started.elapsed().as_secs_f64();
    eprintln!("{} I/Os in virtual time took {seconds:.1} s", text::thousands(ios));
    Ok(())
}

/// Runs it live.
fn drive(
    arguments: &BenchRun,
    suite: &Suite,
    prepared: &Prepared,
    rerun: &mut Rerun<'_>,
) -> Result<(), Failure> {
    let folder = begin_with_mounts(FOLDERS)?;
    let cases = &prepared.ready.scenario.cases;
    let bar = Progress::new(cases.iter().map(live::length_s).sum());
    eprintln!("live: {} runs, about {}", cases.len(), left(bar.length));
    if !arguments.full {
        eprintln!("{}", suite.scaled.trim().replace('\n', " "));
    }
    let mut stages = Stages::default();
    let live = rerun.live(prepared, arguments.io.into(), folder.path(), &mut |label, volumes| {
        bar.at(stages.at(label, fio::runtime_s(volumes)), &line(label, volumes));
    });
    bar.done();
    end_with_mounts(folder);
    Ok(live?)
}

fn line(label: &str, volumes: &[VolumeProgress]) -> String {
    let iops: f64 = volumes.iter().map(|volume| volume.iops).sum();
    let label = match volumes {
        [volume] if label.is_empty() => &volume.name,
        _ => label,
    };
    let more: String = volumes
        .iter()
        .filter(|volume| !volume.told.is_empty())
        .fold(String::new(), |more, volume| more + "  " + &volume.told);
    format!("{label}  {} s  {} IOPS{more}", fio::runtime_s(volumes), text::rate(iops.round()))
}
