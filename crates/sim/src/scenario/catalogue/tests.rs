//! Every scenario that comes with the program is listed, can be read, and says what it shows.

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

/// How much of a scenario its test runs.
#[derive(Clone, Copy)]
pub(super) enum Part {
    /// All of it.
    All,
    /// The first runs, at their full length.
    First(usize),
    /// So many seconds of every run.
    Seconds(u64),
}

/// I/Os of a scenario that is run whole in every test.
const SHORT_IOS_MAX: u64 = 40_000_000;

/// Of long scenarios only a part is run.
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

/// What is too long for a test is tested in a hundredth of the time.
#[test]
fn fio_40_has_the_runs_of_fio_4000() {
    let names = |of| read(of).cases.into_iter().map(|case| case.name).collect::<Vec<_>>();
    assert_eq!(names("fio-40"), names("fio-4000"));
}
