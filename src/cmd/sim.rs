//! `evenkeel sim`: scenarios in virtual time.

mod autopilot;

use crate::cli::{Sim, SimRun, SimSwarm, SimVerb};
use evenkeel_client::output::{self, Exit, Failure, Format, Item};
use evenkeel_lab::files;
use evenkeel_lab::report::simulated;
use evenkeel_os::clock;
use evenkeel_sim::oracle::Rule;
use evenkeel_sim::scenario::catalogue;
use evenkeel_sim::scenario::{self, Files, NamedText, Scenario, ScenarioError, Source};
use evenkeel_sim::text::{self, nearest};
use evenkeel_sim::world::run::{self, Method, Results};
use evenkeel_sim::world::swarm::{self, Judged, Tally};
use serde::Serialize;
use std::path::{Path, PathBuf};

/// Executes one of the verbs.
pub fn run(arguments: &Sim) -> Result<(), Failure> {
    match &arguments.verb {
        SimVerb::Run(run) => run_scenario(run, arguments.output.format),
        SimVerb::Swarm(swarm) => run_swarm(swarm, arguments.output.format),
        SimVerb::Ls => list(arguments.output.format),
        SimVerb::Autopilot(worlds) => autopilot::run(worlds, arguments.output.format),
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
            text::span(self.simulated_s),
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
    output::print(&output::listing(&items, format, "no scenarios"))
}

/// The results for a rule of the promise in a swarm.
#[derive(Serialize)]
struct Kept {
    rule: String,
    line: u8,
    judged: u64,
    broken_worlds: u64,
}

impl Item for Kept {
    const SCHEMA: &'static str = "evenkeel.swarm/1";
    const FIELD: &'static str = "rules";
    const COLUMNS: &'static [&'static str] = &["RULE", "LINE", "JUDGED", "WORLDS THAT BROKE IT"];

    fn cells(&self) -> Vec<String> {
        vec![
            self.rule.clone(),
            self.line.to_string(),
            text::thousands(self.judged),
            text::thousands(self.broken_worlds),
        ]
    }
}

fn run_swarm(arguments: &SimSwarm, format: Format) -> Result<(), Failure> {
    let SimSwarm { seeds, seed: first } = *arguments;
    let mut tally = Tally::default();
    for seed in first..first.saturating_add(seeds) {
        let judged = swarm::judge(seed).map_err(|error| Failure::new(error.to_string()))?;
        if !judged.report.pass() {
            tell_failed(&judged);
        }
        tally.add(judged);
    }
    let items: Vec<Kept> =
        Rule::ALL.iter().enumerate().map(|(n, rule)| kept(&tally, n, *rule)).collect();
    output::print(&output::listing(&items, format, "no rules"))?;
    let failed = tally.failed_worlds;
    eprintln!(
        "{} worlds, {} I/Os, {} worlds did not keep the promise",
        text::thousands(tally.worlds),
        text::thousands(tally.ios),
        text::thousands(failed)
    );
    if failed == 0 {
        return Ok(());
    }
    Err(Failure::new(format!("{failed} of {} worlds did not keep the promise", tally.worlds)))
}

fn kept(tally: &Tally, number: usize, rule: Rule) -> Kept {
    let broke = |judged: &&Judged| judged.report.broken().contains(&rule);
    Kept {
        rule: rule.to_string(),
        line: rule.line(),
        judged: tally.judged[number],
        broken_worlds: tally.failed.iter().filter(broke).count() as u64,
    }
}

fn tell_failed(judged: &Judged) {
    let Judged { seed, world, report, .. } = judged;
    eprintln!("seed {seed}: {world}");
    for violation in report.violations().take(3) {
        eprintln!("  {violation}");
    }
    eprintln!("  again: evenkeel sim swarm --seed {seed} --seeds 1");
}

fn run_scenario(arguments: &SimRun, format: Format) -> Result<(), Failure> {
    let scenario = read(&arguments.scenario, arguments.as_of)?;
    let seed = arguments.seed.unwrap_or(scenario.seed);
    let runs = scenario.cases.len();
    let mut done = 0;
    let method = if arguments.stepwise { Method::Stepwise } else { Method::ClosedForm };
    let started = clock::now();
    let results = run::run(&scenario, seed, method, &mut |case| {
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
    output::print(&match format {
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

/// Printed to standard error, because it differs from run to run.
fn tell_speed(results: &Results, took_s: f64) {
    let ios: u64 = results.cases.iter().map(|case| case.ios).sum();
    let simulated_s: u64 = results.cases.iter().map(|case| case.duration_s).sum();
    eprintln!(
        "{} I/Os in {} of virtual time took {took_s:.2} s: {} I/Os per second",
        text::thousands(ios),
        text::span(simulated_s),
        text::rate(ios as f64 / took_s.max(1e-9)),
    );
}

fn write_report(results: &Results, path: &Path) -> Result<(), Failure> {
    let page = simulated::page(results).map_err(|error| Failure::new(error.to_string()))?;
    files::write(path, &page)?;
    eprintln!("report: {}", path.display());
    Ok(())
}

fn replay(arguments: &SimRun, results: &Results) -> String {
    let seed = results.seed.to_string();
    let words =
        ["evenkeel", "sim", "run", &arguments.scenario, "--seed", &seed, "--as-of", &results.as_of];
    text::command_line(&words)
}

/// A built-in scenario, or a file: any name with a dot or a slash is a file.
fn read(wanted: &str, as_of: Option<evenkeel_core::volume::Date>) -> Result<Scenario, Failure> {
    if let Some(text) = catalogue::find(wanted) {
        let file = format!("{wanted}.toml");
        return scenario::read(&Source { as_of, ..Source::new(&file, text) }).map_err(failure);
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
    let beside = path.parent().map(|folder| Beside { folder });
    let files = beside.as_ref().map(|beside| beside as &dyn Files);
    scenario::read(&Source { files, as_of, ..Source::new(wanted, &text) }).map_err(failure)
}

/// The files in a scenario's folder.
struct Beside<'a> {
    folder: &'a Path,
}

impl Files for Beside<'_> {
    fn read(&self, path: &str) -> Result<NamedText, String> {
        let path = self.folder.join(path);
        let name = path.display().to_string();
        match std::fs::read_to_string(&path) {
            Ok(text) => Ok(NamedText { name, text }),
            Err(error) => Err(format!("{name}: {error}")),
        }
    }
}

fn failure(error: ScenarioError) -> Failure {
    let failure = Failure::new(error.message).exit(Exit::Usage);
    match error.hint {
        Some(hint) => failure.hint(hint),
        None => failure,
    }
}
