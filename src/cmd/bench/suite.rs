//! `evenkeel bench run`: a published experiment again, live and in virtual time.

use super::super::progress::{Progress, Stages, left, second};
use super::super::{folder_of_a_run, serve, this_call};
use super::world::World;
use super::{failed, kept, print};
use crate::cli::BenchRun;
use crate::clock::{Deadline, Stopwatch};
use crate::message::{Exit, Failure};
use evenkeel_lab::bench::databases;
use evenkeel_lab::bench::fio::VolumeProgress;
use evenkeel_lab::bench::live::{self, Files};
use evenkeel_lab::bench::mounts;
use evenkeel_lab::bench::stop;
use evenkeel_lab::suite::result::SuiteResult;
use evenkeel_lab::suite::{self, Choice, Plan, Ready, Suite};
use evenkeel_sim::scenario::program::Engine;
use evenkeel_sim::text;
use evenkeel_sim::world::run;
use std::time::Duration;

/// What the folders of runs are called: those of runs that did not end well are found by it.
const FOLDERS: &str = "evenkeel-suite-";

/// Longest wait, after Ctrl-C, until a run has taken down what it had mounted.
const STOP_MAX: Duration = Duration::from_secs(60);
/// And how long for its end once the kernel answers everything with an error.
const GIVEN_UP_MAX: Duration = Duration::from_secs(10);
/// Distance of two looks whether it has.
const STOP_LOOK: Duration = Duration::from_millis(50);

pub fn run(arguments: &BenchRun) -> Result<(), Failure> {
    let name = arguments.suite.as_str();
    let suite = suite::find(name).map_err(|error| {
        failed(error).exit(Exit::NotFound).hint("`evenkeel bench ls` lists them")
    })?;
    let part = Choice { only: arguments.only.as_deref(), runs: arguments.runs, without: &[] };
    let ready = |plan: &Plan, part: &Choice<'_>| {
        plan.read(name, part).map_err(|error| failed(error).exit(Exit::Usage))
    };
    let mut result = SuiteResult::begin(name, &suite);
    result.command = this_call();
    if !arguments.live && !arguments.full {
        simulate(&ready(&suite.simulate, &part)?, &mut result)?;
    }
    let mut driven = Ok(());
    if !arguments.simulate {
        let plan = suite.for_real(arguments.full);
        let all = ready(plan, &part)?;
        let files = files(arguments, &all, &mut result);
        let without = left_out(&all, files, &mut result);
        let part = Choice { without: &without, ..part };
        driven = drive(arguments, &suite, (ready(plan, &part)?, files), &mut result);
    }
    if let Err(failure) = &driven {
        if result.simulated.is_none() || stop::is_stopped() {
            return driven;
        }
        // What came in virtual time is kept all the same.
        result.failures.push(failure.message.clone());
        result.pass = false;
    }
    let [json, html] = kept::keep(&arguments.results, &result)?;
    print(&arguments.output, &result, SuiteResult::to_text)?;
    eprintln!("result: {}\nreport: {}", json.display(), html.display());
    driven?;
    match result.pass {
        true => Ok(()),
        false if result.is_undecided() => Err(Failure::new(result.headline())
            .exit(Exit::Undecided)
            .hint("run it again on a quiet machine")),
        false => Err(Failure::new(result.headline())),
    }
}

/// Runs the workload in virtual time.
fn simulate(ready: &Ready, result: &mut SuiteResult) -> Result<(), Failure> {
    let scenario = &ready.scenario;
    let cases = scenario.cases.len();
    let bar = Progress::of_steps(cases as u64);
    let started = Stopwatch::start();
    let mut done = 0;
    let results = run::run(scenario, scenario.seed, run::Method::ClosedForm, &mut |case| {
        done += 1;
        bar.at(done, &format!("in virtual time, {done} of {cases}: {}", case.label));
    });
    let results = results.map_err(failed)?;
    bar.done();
    let ios: u64 = results.cases.iter().map(|case| case.ios).sum();
    let seconds = started.elapsed().as_secs_f64();
    eprintln!("{} I/Os in virtual time took {seconds:.1} s", text::thousands(ios));
    result.add_simulated(ready, &results);
    Ok(())
}

/// Runs it live.
fn drive(
    arguments: &BenchRun,
    suite: &Suite,
    (mut ready, files): (Ready, Files),
    result: &mut SuiteResult,
) -> Result<(), Failure> {
    serve::log_to_stderr("warn")?;
    let folder = folder_of_a_run(&std::env::temp_dir(), FOLDERS)?;
    let mounts = folder.path().to_owned();
    // The server must live until what is mounted on it is gone, and that is in use until the pass
    // that runs has ended; then its own run takes it down.
    serve::end_when_told_to_after(vec![mounts.clone()], move || {
        let deadline = Deadline::after(STOP_MAX);
        while mounts::is_any_below(&mounts) && deadline.pause(STOP_LOOK) {}
        // What a program has left to be written may take minutes.
        if mounts::is_any_below(&mounts) {
            mounts::give_up_below(&mounts);
            let deadline = Deadline::after(GIVEN_UP_MAX);
            while mounts::is_any_below(&mounts) && deadline.pause(STOP_LOOK) {}
        }
        for left in mounts::clean_below(&mounts) {
            eprintln!("left behind: {left}");
        }
    })?;
    // Some programs have no meaning without a file system.
    ready.is_part |= files == Files::None;
    let mut world = World::new(folder.path().to_owned(), arguments.io);
    let cases = &ready.scenario.cases;
    let bar = Progress::new(cases.iter().map(live::length_s).sum());
    eprintln!("live: {} runs, about {}", cases.len(), left(bar.length));
    if !arguments.full {
        eprintln!("{}", suite.scaled.trim().replace('\n', " "));
    }
    let mut stages = Stages::default();
    let live =
        live::run(&ready.scenario, &mut world, files, folder.path(), &mut |label, volumes| {
            bar.at(stages.at(label, second(volumes)), &line(label, volumes));
        });
    bar.done();
    if mounts::is_any_below(folder.path()) {
        // Its journal says what is left to be taken down, which the next run tries.
        eprintln!("not everything could be taken down: {} is kept", folder.keep().display());
    }
    result.add_live(&ready, &live.map_err(failed)?);
    Ok(())
}

/// Whether file systems are mounted for a scenario; what stands in the way is said.
fn files(arguments: &BenchRun, ready: &Ready, result: &mut SuiteResult) -> Files {
    let has_files = live::has_files(&ready.scenario);
    let has_databases = !live::engines(&ready.scenario).is_empty();
    if !has_files && !has_databases || arguments.no_mount {
        return Files::None;
    }
    match live::lacks(&ready.scenario) {
        None => Files::Mounted,
        Some(_) if !has_files => Files::None,
        Some(why) => {
            let told = format!("no file systems: {why}; their requests are made directly");
            eprintln!("skipped: {told}");
            result.warnings.push(told);
            Files::None
        }
    }
}

/// The databases of a scenario that cannot run; what stands in the way is said.
fn left_out(ready: &Ready, files: Files, result: &mut SuiteResult) -> Vec<Engine> {
    let unmounted = || mounts::probe().or_else(|| Some("nothing is to be mounted".to_owned()));
    let mut without = Vec::new();
    for engine in live::engines(&ready.scenario) {
        let why = match files {
            Files::None => unmounted(),
            Files::Mounted => databases::probe(engine),
        };
        let Some(why) = why else { continue };
        let told = format!("no {}: {why}; what needs one is left out", engine.name());
        eprintln!("skipped: {told}");
        result.warnings.push(told);
        without.push(engine);
    }
    without
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
    format!("{label}  {} s  {} IOPS{more}", second(volumes), text::rate(iops.round()))
}
