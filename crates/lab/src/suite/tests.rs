//! Every suite as far as virtual time goes, and what becomes of its results.

use super::compare::compare;
use super::result::{Found, Row, SCHEMA, SuiteResult};
use super::*;
use crate::bench::live::Live;
use crate::sim::run;

fn only_case(name: &str) -> Choice<'_> {
    Choice { only: Some(name), runs: None, ..Choice::default() }
}

/// A result in virtual time of one of the cases.
fn result(only: &str) -> SuiteResult {
    let (name, _) = SUITES[0];
    let suite = find(name).unwrap();
    let ready = suite.live.read(name, &only_case(only)).unwrap();
    let results =
        run::run(&ready.scenario, ready.scenario.seed, run::Method::ClosedForm, &mut |_| {})
            .unwrap();
    let mut result = SuiteResult::begin(name, &suite);
    result.add_simulated(&ready, &results);
    result
}

#[test]
fn every_point_has_its_place_and_most_have_two() {
    for (name, _) in SUITES {
        let suite = find(name).unwrap();
        assert!(suite.title.len() < 100 && !suite.asked.is_empty() && !suite.method.is_empty());
        let full = suite.simulate.read(name, &Choice::default()).unwrap();
        let live = suite.live.read(name, &Choice::default()).unwrap();
        assert_eq!(full.points.len(), suite.points(), "{name}");
        for (point, short) in full.points.iter().zip(&live.points) {
            let is_somewhere = point.comparison.is_some() || short.comparison.is_some();
            assert!(is_somewhere, "{name}: {} is measured nowhere", point.id);
            assert_eq!(point.id, short.id);
        }
        let measured = live.points.iter().filter(|point| point.comparison.is_some()).count();
        assert!(measured * 3 >= live.points.len(), "{name}: {measured} points for real");
        assert_eq!(full.times, 1, "{name}: virtual time costs nothing, so nothing is shortened");
    }
}

#[test]
fn ids_are_in_the_page_of_the_suite() {
    for (name, _) in SUITES {
        let page = format!("{}/../../docs/experiments/{name}.md", env!("CARGO_MANIFEST_DIR"));
        let page = std::fs::read_to_string(&page).unwrap();
        for point in find(name).unwrap().simulate.read(name, &Choice::default()).unwrap().points {
            let id = point.id.split(',').next().unwrap();
            assert!(page.contains(id), "{name}: the page says nothing of {id}");
        }
    }
}

#[test]
fn the_results_that_are_published_can_be_read_and_name_every_point() {
    for (name, _) in SUITES {
        let path = format!("{}/../../docs/experiments/{name}.json", env!("CARGO_MANIFEST_DIR"));
        let result = SuiteResult::from_json(&std::fs::read_to_string(path).unwrap()).unwrap();
        let ready = find(name).unwrap().simulate.read(name, &Choice::default()).unwrap();
        let ids: Vec<&str> = ready.points.iter().map(|point| point.id.as_str()).collect();
        let published: Vec<&str> = result.rows.iter().map(|row| row.id.as_str()).collect();
        assert_eq!(published, ids, "{name}: run it again");
        assert!(result.to_html().unwrap().ends_with("</html>\n"));
    }
}

#[test]
fn what_there_is_none_of_is_told() {
    let text = find("burst-and-strip").unwrap_err().to_string();
    assert!(text.contains("did you mean \"burst-and-stripe\"?"), "{text}");
    let suite = find("burst-and-stripe").unwrap();
    let text = suite.live.read("burst-and-stripe", &only_case("gp4")).unwrap_err().to_string();
    assert!(text.contains("there are \"gp2 1 x 500\", "), "{text}");
}

#[test]
fn a_short_run_is_judged_by_the_article_s_own_figures() {
    let result = result("gp2 1 x 500");
    let row = |id: &str| result.rows.iter().find(|row| row.id == id).unwrap();
    let found = row("4.13").simulated.clone().unwrap();
    let value = found.value.unwrap();
    assert!(found.pass && (3_564.0..=3_636.0).contains(&value), "{found:?}");
    assert_eq!((row("4.13").verdict(), row("4.12").verdict()), ("kept", "not run"));
    assert!(result.pass, "{}", result.to_text());
    assert!(result.to_text().contains("All "), "{}", result.to_text());
}

#[test]
fn fewer_runs_leave_out_what_needs_more() {
    let name = "stripe-consistency";
    let suite = find(name).unwrap();
    let part = Choice { only: Some("m1.large rndr"), runs: Some(1), ..Choice::default() };
    let ready = suite.live.read(name, &part).unwrap();
    assert_eq!(ready.scenario.cases.len(), 4);
    let results = run::run(&ready.scenario, 1, run::Method::ClosedForm, &mut |_| {}).unwrap();
    let mut result = SuiteResult::begin(name, &suite);
    result.add_simulated(&ready, &results);
    let row = |id: &str| result.rows.iter().find(|row| row.id == id).unwrap().verdict();
    assert_eq!((row("0.5"), row("0.9"), row("0.11, rndrd")), ("kept", "kept", "not run"));
    let jobs = find("five-minute-job").unwrap();
    let part = Choice { only: None, runs: Some(2), ..Choice::default() };
    let ready = jobs.live.read("five-minute-job", &part).unwrap();
    assert_eq!(ready.scenario.cases[0].setup.duration_ns, 600_000_000_000, "two batches");
}

#[test]
fn a_page_has_every_chart_and_loads_nothing() {
    let name = "five-minute-job";
    let suite = find(name).unwrap();
    let ready = suite.live.read(name, &Choice::default()).unwrap();
    let results = run::run(&ready.scenario, 1, run::Method::ClosedForm, &mut |_| {}).unwrap();
    let mut result = SuiteResult::begin(name, &suite);
    result.add_simulated(&ready, &results);
    result.warnings.push("a <b> & c".to_owned());
    let page = result.to_html().unwrap();
    for needle in ["<script", "<link", "@import", "url(", "src=", "https://"] {
        assert!(!page.contains(needle), "{needle}");
    }
    assert!(page.contains("a &lt;b&gt; &amp; c") && page.ends_with("</html>\n"));
    for tag in ["section", "table", "tr", "td", "th", "figure", "details", "p", "dl", "svg"] {
        let open =
            page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(open, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
}

#[test]
fn databases_are_left_out_where_none_can_run() {
    let name = "batch-beside-oltp";
    let suite = find(name).unwrap();
    let part = |only| Choice { only, runs: None, without_databases: true };
    let ready = suite.live.read(name, &part(None)).unwrap();
    let names: Vec<&str> = ready.scenario.cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names, ["gp2", "gp2, twice as many waiting", "io1"]);
    let of_database = |point: &&Point| point.id.contains("PostgreSQL");
    assert!(ready.points.iter().filter(of_database).all(|point| point.comparison.is_none()));
    let text = suite.live.read(name, &part(Some("PostgreSQL"))).unwrap_err().to_string();
    assert!(text.contains("has a database on a file system"), "{text}");
}

#[test]
fn clients_beside_each_other_show_how_long_they_wait() {
    let name = "batch-beside-oltp";
    let suite = find(name).unwrap();
    let ready = suite.live.read(name, &only_case("io1")).unwrap();
    let results = run::run(&ready.scenario, 1, run::Method::ClosedForm, &mut |_| {}).unwrap();
    let mut result = SuiteResult::begin(name, &suite);
    result.add_simulated(&ready, &results);
    let configurations = &result.simulated.as_ref().unwrap().configurations;
    let names: Vec<&str> = configurations.iter().map(|of| of.name.as_str()).collect();
    assert_eq!(names, ["io1 · oltp", "io1 · log", "io1 · batch"]);
    let log = &configurations[1].runs[0];
    assert_eq!((log.latency_s, log.mean_latency_ns.len()), (1, 52));
    assert!(log.mean_latency_ns.iter().all(|ns| (1_000_000..3_000_000).contains(ns)), "{log:?}");
    assert!(result.to_html().unwrap().contains("io1: mean latency, each 1 s."));
    let alone = self::result("gp3 1 x 500").to_html().unwrap();
    assert!(!alone.contains("mean latency, each"), "nobody is beside it");
    assert!(alone.contains("share of the samples</th>") && alone.contains("\">99 %</th><td"));
}

#[test]
fn a_gate_that_fails_fails_the_result() {
    let suite = find("burst-and-stripe").unwrap();
    let ready = suite.live.read("burst-and-stripe", &only_case("gp2 1 x 500")).unwrap();
    let mut results = run::run(&ready.scenario, 1, run::Method::ClosedForm, &mut |_| {}).unwrap();
    let mut result = SuiteResult::begin("burst-and-stripe", &suite);
    results.comparisons[0].pass = false;
    result.add_simulated(&ready, &results);
    assert!(!result.pass && result.rows[0].verdict() == "BROKEN", "{}", result.to_text());
    let mut shown = ready.clone();
    (shown.points[0].is_gate, shown.points[0].is_live_gate) = (false, false);
    let mut result = SuiteResult::begin("burst-and-stripe", &suite);
    result.add_simulated(&shown, &results);
    assert!(result.pass && result.rows[0].verdict() == "shown", "{}", result.to_text());
    assert!(!SuiteResult::begin("burst-and-stripe", &suite).pass, "nothing run is no pass");
}

#[test]
fn a_program_that_fails_fails_the_result() {
    let suite = find("burst-and-stripe").unwrap();
    let ready = suite.live.read("burst-and-stripe", &only_case("gp2 1 x 500")).unwrap();
    let results = run::run(&ready.scenario, 1, run::Method::ClosedForm, &mut |_| {}).unwrap();
    let of = |failures: &[&str]| {
        let live = Live {
            results: results.clone(),
            commands: Vec::new(),
            fio: String::new(),
            stalls: Vec::new(),
            storage: Vec::new(),
            warnings: Vec::new(),
            failures: failures.iter().map(|failure| (*failure).to_owned()).collect(),
        };
        let mut result = SuiteResult::begin("burst-and-stripe", &suite);
        result.add_live(&ready, &live);
        result
    };
    assert!(of(&[]).pass && !of(&[]).to_json().unwrap().contains("failures"));
    let one = of(&["gp2 (1): dbench: no <room>"]);
    assert!(!one.pass && one.rows.iter().all(|row| row.verdict() != "BROKEN"));
    assert!(one.to_text().contains("\nfailed: gp2 (1): dbench: no <room>\n"), "{}", one.to_text());
    assert!(
        one.headline().ends_with(" what they must be. A program failed."),
        "{}",
        one.headline()
    );
    assert!(one.to_html().unwrap().contains("Failed: gp2 (1): dbench: no &lt;room&gt;"));
    assert_eq!(SuiteResult::from_json(&one.to_json().unwrap()).unwrap(), one);
    assert!(of(&["one", "two"]).headline().ends_with("2 runs of programs failed."));
}

#[test]
fn what_a_row_says_of_both_ways_of_running() {
    let found = |pass| Found { value: Some(1.0), shown: "1".to_owned(), pass };
    let (good, bad) = (Some(found(true)), Some(found(false)));
    for (gate, live_gate, live, simulated, verdict) in [
        (true, true, &good, &good, "kept"),
        (true, true, &bad, &good, "BROKEN"),
        (true, true, &good, &bad, "BROKEN"),
        (true, false, &bad, &good, "kept in virtual time"),
        (true, false, &good, &good, "kept"),
        (true, false, &good, &bad, "BROKEN"),
        (true, false, &bad, &None, "shown"),
        (false, false, &bad, &bad, "shown"),
        (true, true, &None, &None, "not run"),
    ] {
        let row = Row {
            id: "1".to_owned(),
            what: String::new(),
            published: String::new(),
            expected: String::new(),
            note: String::new(),
            gate,
            live_gate,
            live: live.clone(),
            simulated: simulated.clone(),
        };
        assert_eq!(row.verdict(), verdict, "{row:?}");
    }
}

#[test]
fn json_is_the_master() {
    let result = result("gp3 1 x 500");
    let json = result.to_json().unwrap();
    assert!(json.starts_with(&format!("{{\"schema\":\"{SCHEMA}\"")), "{}", &json[..80]);
    assert_eq!(SuiteResult::from_json(&json).unwrap(), result);
    let other = json.replacen("result/1", "result/2", 1);
    assert!(SuiteResult::from_json(&other).unwrap_err().to_string().contains("result/2"));
    let found = result.simulated.as_ref().unwrap();
    assert_eq!(found.configurations.len(), 2, "without and with the instance's limit");
    assert_eq!(found.configurations[0].runs[0].samples.len(), 40);
}

#[test]
fn results_are_compared() {
    let (one, other) = (result("gp3 1 x 500"), result("gp2 1 x 500"));
    let same = compare(&one, &one).unwrap();
    assert!(same.rows.iter().all(compare::Compared::may_be_same), "{}", same.to_text());
    assert!(same.to_text().contains("Chance explains every difference."));
    assert!(compare(&one, &other).is_err(), "no configuration in common");
    let mut slower = one.clone();
    for configuration in &mut slower.simulated.as_mut().unwrap().configurations {
        configuration.runs[0].samples.iter_mut().for_each(|ios| *ios -= *ios / 10);
    }
    let differ = compare(&one, &slower).unwrap();
    let ratio = differ.rows[0].ratio.unwrap();
    assert!((ratio - 1.0 / 0.9).abs() < 0.001 && !differ.rows[0].may_be_same(), "{ratio}");
    slower.suite = "another".to_owned();
    assert!(compare(&one, &slower).is_err());
}

#[test]
fn a_full_run_is_as_long_as_the_article_s() {
    let suite = find("stripe-consistency").unwrap();
    let full = suite.for_real(true).read("stripe-consistency", &Choice::default()).unwrap();
    let cases = &full.scenario.cases;
    assert_eq!(cases.len(), 17 * 9, "nine runs of each");
    assert!(cases.iter().all(|case| case.setup.duration_ns == 300_000_000_000));
    let other = find("burst-and-stripe").unwrap();
    assert_eq!(other.for_real(true), &other.simulate);
    assert_eq!(other.for_real(false), &other.live);
}
