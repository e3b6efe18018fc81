//! `evenkeel sim`: scenarios in virtual time.

use crate::cli::{Sim, SimRun, SimVerb};
use crate::message::{self, Exit, Failure, Format, Item};
use evenkeel_lab::clock;
use evenkeel_lab::sim::catalogue;
use evenkeel_lab::sim::run::{self, Results};
use evenkeel_lab::sim::scenario::{self, Scenario, ScenarioError, Source};
use evenkeel_lab::text::{self, nearest};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Carries out one of the verbs.
pub fn run(arguments: &Sim) -> Result<(), Failure> {
    match &arguments.verb {
        SimVerb::Run(run) => run_scenario(run, arguments.output.format),
        SimVerb::Ls => list(arguments.output.format),
    }
}

/// A scenario of the list.
#[derive(Serialize)]
struct Listed {
    name: &'static str,
    title: String,
    runs: usize,
    simulated_s: u64,
}

impl Item for Listed {
    const SCHEMA: &'static str = "evenkeel.scenarios/1";
    const FIELD: &'static str = "scenarios";
    const COLUMNS: &'static [&'static str] = &["NAME", "RUNS", "SIMULATED", "TITLE"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.name.to_owned(),
            self.runs.to_string(),
            message::span(self.simulated_s),
            self.title.clone(),
        ]
    }
}

fn list(format: Format) -> Result<(), Failure> {
    let mut items = Vec::new();
    for (name, _) in catalogue::SCENARIOS {
        let Scenario { title, cases, .. } = read(name, None)?;
        let simulated_s = cases.iter().map(|case| case.setup.duration_ns / 1_000_000_000).sum();
        items.push(Listed { name, title, runs: cases.len(), simulated_s });
    }
    message::print(&message::listing(&items, format, "no scenarios"))
}

fn run_scenario(arguments: &SimRun, format: Format) -> Result<(), Failure> {
    let scenario = read(&arguments.scenario, arguments.as_of)?;
    let seed = arguments.seed.unwrap_or(scenario.seed);
    let runs = scenario.cases.len();
    let mut done = 0;
    let started = clock::now();
    let results = run::run(&scenario, seed, &mut |case| {
        done += 1;
        if runs > 1 && !case.pass {
            eprintln!("{done} of {runs}: {}: not as expected", case.label);
        }
    });
    let results = results.map_err(|error| Failure::new(error.to_string()).exit(Exit::Usage))?;
    tell_speed(&results, (clock::now() - started).as_secs_f64());
    if let Some(path) = &arguments.html {
        write_report(&results, path)?;
    }
    message::print(&match format {
        Format::Text => results.to_text(),
        Format::Json => results.to_json(),
        Format::Csv => results.to_csv(),
    })?;
    if results.pass {
        return Ok(());
    }
    let failure = Failure::new(results.headline());
    Err(failure.hint(format!("the same run again: {}", replay(arguments, &results))))
}

/// To standard error: it differs from run to run.
fn tell_speed(results: &Results, took_s: f64) {
    let ios: u64 = results.cases.iter().map(|case| case.ios).sum();
    let simulated_s: u64 = results.cases.iter().map(|case| case.duration_s).sum();
    eprintln!(
        "{} I/Os in {} of virtual time took {took_s:.2} s: {} I/Os per second",
        text::thousands(ios),
        message::span(simulated_s),
        text::rate(ios as f64 / took_s.max(1e-9)),
    );
}

fn write_report(results: &Results, path: &Path) -> Result<(), Failure> {
    let page = results.to_html().map_err(|error| Failure::new(error.to_string()))?;
    std::fs::write(path, page)
        .map_err(|error| Failure::new(format!("{}: {error}", path.display())))?;
    eprintln!("report: {}", path.display());
    Ok(())
}

fn replay(arguments: &SimRun, results: &Results) -> String {
    let seed = results.seed.to_string();
    let words =
        ["evenkeel", "sim", "run", &arguments.scenario, "--seed", &seed, "--as-of", &results.as_of];
    text::command_line(&words)
}

/// A scenario of the list, or of a file: anything with a dot or a slash is one.
fn read(wanted: &str, as_of: Option<evenkeel_core::volume::Date>) -> Result<Scenario, Failure> {
    if let Some(text) = catalogue::find(wanted) {
        let file = format!("{wanted}.toml");
        return scenario::read(&Source { file: &file, text, folder: None, as_of }).map_err(failure);
    }
    let names = catalogue::SCENARIOS.map(|(name, _)| name);
    if !wanted.contains(['.', '/']) {
        let failure = Failure::new(format!("no scenario is called \"{wanted}\""));
        let hint = match nearest(wanted, names.into_iter()) {
            Some(near) => format!("did you mean \"{near}\"?"),
            None => "`evenkeel sim ls` lists them; a file is named by its path".to_owned(),
        };
        return Err(failure.exit(Exit::NotFound).hint(hint));
    }
    let path = PathBuf::from(wanted);
    let text = std::fs::read_to_string(&path).map_err(|error| {
        let failure = Failure::new(format!("{wanted}: {error}")).exit(Exit::NotFound);
        failure.hint("`evenkeel sim ls` lists the scenarios that come with the program")
    })?;
    let folder = path.parent();
    scenario::read(&Source { file: wanted, text: &text, folder, as_of }).map_err(failure)
}

fn failure(error: ScenarioError) -> Failure {
    let failure = Failure::new(error.message).exit(Exit::Usage);
    match error.hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}
