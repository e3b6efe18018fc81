//! Every scenario that comes with the program is listed, can be read, and comes as expected.

use super::*;
use crate::sim::run;
use crate::sim::scenario::{self, Scenario, Source};
use std::collections::BTreeSet;

fn read(name: &str) -> Scenario {
    let file = format!("{name}.toml");
    let source = Source { file: &file, text: find(name).unwrap(), folder: None, as_of: None };
    scenario::read(&source).unwrap_or_else(|error| panic!("{error}"))
}

fn comes_as_expected(name: &str) {
    let scenario = read(name);
    let results = run::run(&scenario, scenario.seed, &mut |_| {}).unwrap();
    assert!(results.pass, "{}", results.to_text());
    let checks: usize = results.cases.iter().map(|case| case.checks.len()).sum();
    assert!(checks > 0, "{name} expects nothing");
}

#[test]
fn the_list_is_the_folder() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/scenarios");
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name());
    let files: BTreeSet<String> = files.map(|name| name.into_string().unwrap()).collect();
    let listed = SCENARIOS.map(|(name, _)| format!("{name}.toml"));
    assert!(listed.is_sorted());
    assert_eq!(BTreeSet::from(listed), files);
}

#[test]
fn every_scenario_says_where_its_figures_come_from() {
    for (name, _) in SCENARIOS {
        let scenario = read(name);
        assert!(!scenario.about.is_empty() && !scenario.source.is_empty(), "{name}");
        for case in scenario.cases {
            assert!(!case.expectations.is_empty(), "{name} {}", case.label);
        }
    }
}

#[test]
fn gp2_burst() {
    comes_as_expected("gp2-burst");
}
