//! Every scenario that comes with the program is listed, can be read, and has a title and a source.

use super::*;
use crate::scenario::{self, Scenario, Source};
use crate::world::run;

fn read(name: &str) -> Scenario {
    read_for(name, None)
}

fn read_for(name: &str, duration_s: Option<u64>) -> Scenario {
    let file = format!("{name}.toml");
    let source = Source { duration_s, ..Source::new(&file, find(name).unwrap()) };
    scenario::read(&source).unwrap_or_else(|error| panic!("{error}"))
}

/// The part of a scenario that its test runs.
#[derive(Clone, Copy)]
pub(super) enum Part {
    /// All of it.
    All,
    /// The first runs, at their full length.
    First(usize),
    /// This number of seconds of every run.
    Seconds(u64),
}

/// Maximum number of I/Os of a scenario that every test run executes in full.
const SHORT_IOS_MAX: u64 = 40_000_000;

/// Runs a part of a scenario and asserts that its expectations are met.
pub(super) fn comes_as_expected(name: &str, part: Part) {
    let scenario = match part {
        Part::All => read(name),
        Part::First(runs) => {
            let mut scenario = read(name);
            scenario.keep(runs);
            scenario
        }
        Part::Seconds(seconds) => read_for(name, Some(seconds)),
    };
    let results = run::run(&scenario, scenario.seed, run::Method::ClosedForm, &mut |_| {}).unwrap();
    assert!(results.pass, "{}", results.to_text());
    let ios: u64 = results.cases.iter().map(|case| case.ios).sum();
    assert!(ios <= SHORT_IOS_MAX, "{name}: {ios} I/Os are too many for a test");
}

#[test]
fn every_scenario_says_where_its_figures_come_from() {
    for (name, _) in SCENARIOS {
        let scenario = read(name);
        assert!(!scenario.about.is_empty() && !scenario.source.is_empty(), "{name}");
        for case in scenario.cases {
            let judged = case.expectations.len() + case.measures.len();
            assert!(judged > 0, "{name} {}", case.label);
        }
    }
}

/// The long scenario is tested in a hundredth of its time.
#[test]
fn fio_40_has_the_runs_of_fio_4000() {
    let names = |of| read(of).cases.into_iter().map(|case| case.name).collect::<Vec<_>>();
    assert_eq!(names("fio-40"), names("fio-4000"));
}
