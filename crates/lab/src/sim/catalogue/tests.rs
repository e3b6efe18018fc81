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

/// I/Os of a scenario that is run whole in every test.
const SHORT_IOS_MAX: u64 = 40_000_000;

/// Of long scenarios only the first runs.
fn comes_as_expected(name: &str, runs: Option<usize>) {
    let mut scenario = read(name);
    if let Some(runs) = runs {
        scenario.keep(runs);
    }
    let results = run::run(&scenario, scenario.seed, &mut |_| {}).unwrap();
    assert!(results.pass, "{}", results.to_text());
    let ios: u64 = results.cases.iter().map(|case| case.ios).sum();
    assert!(ios <= SHORT_IOS_MAX, "{name}: {ios} I/Os are too many for a test");
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
            let judged = case.expectations.len() + case.measures.len();
            assert!(judged > 0, "{name} {}", case.label);
        }
    }
}

#[test]
fn database_gp2() {
    comes_as_expected("database-gp2", None);
}

#[test]
fn database_io1() {
    comes_as_expected("database-io1", None);
}

#[test]
fn batch_beside_oltp() {
    comes_as_expected("batch-beside-oltp", None);
}

#[test]
fn fio_40() {
    comes_as_expected("fio-40", None);
}

#[test]
fn fio_4000() {
    comes_as_expected("fio-4000", Some(1));
}

#[test]
fn gp2_2000() {
    comes_as_expected("gp2-2000", None);
}

#[test]
fn gp2_500() {
    comes_as_expected("gp2-500", None);
}

#[test]
fn gp2_burst() {
    comes_as_expected("gp2-burst", Some(1));
}

#[test]
fn gp2_hour() {
    comes_as_expected("gp2-hour", Some(1));
}

#[test]
fn gp2_pair() {
    comes_as_expected("gp2-pair", None);
}

#[test]
fn hdd_burst() {
    comes_as_expected("hdd-burst", None);
}

#[test]
fn hierarchy() {
    comes_as_expected("hierarchy", None);
}

#[test]
fn instance_burst() {
    comes_as_expected("instance-burst", Some(2));
}

#[test]
fn log_writer() {
    comes_as_expected("log-writer", None);
}

#[test]
fn modify_step() {
    comes_as_expected("modify-step", None);
}

#[test]
fn piops_stripe() {
    comes_as_expected("piops-stripe", None);
}

#[test]
fn reservations() {
    comes_as_expected("reservations", None);
}

#[test]
fn sc1_sizes() {
    comes_as_expected("sc1-sizes", None);
}

#[test]
fn slow_device() {
    comes_as_expected("slow-device", None);
}

#[test]
fn smoothness() {
    comes_as_expected("smoothness", None);
}

#[test]
fn st1_large() {
    comes_as_expected("st1-large", None);
}

#[test]
fn st1_sizes() {
    comes_as_expected("st1-sizes", None);
}

#[test]
fn stalls() {
    comes_as_expected("stalls", None);
}

#[test]
fn stripe() {
    comes_as_expected("stripe", None);
}

#[test]
fn surplus() {
    comes_as_expected("surplus", None);
}

/// What is too long for a test is tested in a hundredth of the time.
#[test]
fn fio_40_has_the_runs_of_fio_4000() {
    let names = |of| read(of).cases.into_iter().map(|case| case.name).collect::<Vec<_>>();
    assert_eq!(names("fio-40"), names("fio-4000"));
}
