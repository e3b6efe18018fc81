//! Every suite in virtual time, and the output of its results.

use std::collections::BTreeSet;

use super::compare::compare;
use super::result::{Found, Row, SCHEMA, SuiteResult};
use super::*;
use crate::live::{Live, Speeds};
use evenkeel_core::qos::pacing::Limit;
use evenkeel_sim::scenario::setup::{Shape, VolumeSetup};
use evenkeel_sim::world::run;

fn only_case(name: &str) -> Choice<'_> {
    Choice { only: Some(name), runs: None, ..Choice::default() }
}

/// Returns a result in virtual time of one of the cases.
fn result(only: &str) -> SuiteResult {
    let (name, _) = SUITES[0];
    simulated(name, &only_case(only)).1
}

/// Runs the live scenario of a suite in virtual time.
fn simulated(name: &str, part: &Choice<'_>) -> (Ready, SuiteResult) {
    let suite = find(name).unwrap();
    let ready = suite.live.read(name, part).unwrap();
    let results =
        run::run(&ready.scenario, ready.scenario.seed, run::Method::ClosedForm, &mut |_| {})
            .unwrap();
    let mut result = SuiteResult::begin(name, &suite);
    result.add_simulated(&ready, &results);
    (ready, result)
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
        assert!(measured * 3 >= live.points.len(), "{name}: {measured} live points");
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

/// The page lists every figure that is held to its gate in virtual time only.
#[test]
fn figures_gated_in_virtual_time_only_are_listed_on_the_page() {
    let page = include_str!("../../../../docs/experiments/README.md");
    let (_, listed) = page.split_once("## What two processors carry live").unwrap();
    let (listed, _) = listed.split_once("\n## ").unwrap();
    let mut suite = "";
    let mut found: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for row in listed.lines().filter(|line| line.starts_with("| ")).skip(2) {
        let cells: Vec<&str> = row.split('|').map(str::trim).collect();
        suite = if cells[1].is_empty() { suite } else { cells[1].trim_matches('`') };
        let ids = cells[3].split([';', ':']).map(str::trim);
        let ids = ids.filter(|id| id.starts_with(|first: char| first.is_ascii_digit()));
        found.entry(suite).or_default().extend(ids);
    }
    for (name, _) in SUITES {
        let points = find(name).unwrap().simulate.read(name, &Choice::default()).unwrap().points;
        let virtually = points.iter().filter(|point| point.is_gate && !point.is_live_gate);
        let mut virtually: Vec<&str> = virtually.map(|point| point.id.as_str()).collect();
        virtually.sort_unstable();
        let listed = found.get_mut(name).unwrap();
        listed.sort_unstable();
        assert_eq!(*listed, virtually, "{name}");
    }
}

/// If a result is older than some points, its page lists the points that were added and removed
/// since.
#[test]
fn the_results_that_are_published_can_be_read_and_name_every_point() {
    for (name, _) in SUITES {
        let read = |kind: &str| {
            let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/experiments");
            std::fs::read_to_string(format!("{folder}/{name}.{kind}")).unwrap()
        };
        let result = SuiteResult::from_json(&read("json")).unwrap();
        let page = read("md");
        let published: BTreeSet<&str> = result.rows.iter().map(|row| row.id.as_str()).collect();
        let ready = find(name).unwrap().simulate.read(name, &Choice::default()).unwrap();
        let ids: BTreeSet<&str> = ready.points.iter().map(|point| point.id.as_str()).collect();
        let since = page.split_once("\n## Since then\n").map_or("", |(_, after)| after);
        let since = since.split("\n## ").next().unwrap_or_default();
        let told: BTreeSet<&str> = since.split('`').skip(1).step_by(2).collect();
        let changed: BTreeSet<&str> = published.symmetric_difference(&ids).copied().collect();
        assert_eq!(told, changed, "{name}: run it again, or tell of it under \"Since then\"");
        // A published result has passed: at full length in virtual time, and live.
        assert!(result.pass, "{name}: {}", result.headline());
        for row in result.rows.iter().filter(|row| row.gate) {
            let is_kept = |found: &Option<Found>| found.as_ref().is_none_or(|found| found.pass);
            // Points of 128 clients need not be run, as they take longer than all others.
            let is_run = row.live.is_some() || row.simulated.is_some();
            assert!(is_run || row.id.starts_with("8, "), "{name}: {} was not run", row.id);
            assert!(is_kept(&row.simulated), "{name}: {} in virtual time", row.id);
            assert!(!row.live_gate || is_kept(&row.live), "{name}: {} live", row.id);
        }
        let page = result.to_html().unwrap();
        is_sound(&page);
        // The first of many charts are visible at once, and no chart of a rate has an axis of two
        // units.
        assert!(page.contains("<summary>The other charts, run to run") || *name != "desktop-suite");
        assert!(page.contains("Mean I/Os per second: filled live, outlined in virtual time."));
    }
}

/// Volumes, clients and requests with the same name in both scenarios of a suite are equal,
/// although one scenario is shorter. Differences have other names.
#[test]
fn a_shortened_run_has_the_volumes_and_the_requests_of_the_long_one() {
    for (name, _) in SUITES {
        let suite = find(name).unwrap();
        let full = suite.simulate.read(name, &Choice::default()).unwrap().scenario;
        let live = suite.live.read(name, &Choice::default()).unwrap().scenario;
        let mut compared = 0;
        for case in &live.cases {
            let Some(long) = full.cases.iter().find(|long| long.name == case.name) else {
                continue;
            };
            for volume in &case.setup.volumes {
                let known = long.setup.volumes.iter().find(|known| known.name == volume.name);
                let Some(known) = known else { continue };
                let text = format!("{name}: {}: {}", case.name, volume.name);
                assert_eq!(volume.spec, known.spec, "{text}");
                assert_eq!(rates(volume), rates(known), "{text}");
                compared += 1;
            }
            for client in &case.setup.clients {
                let known = long.setup.clients.iter().find(|known| known.name == client.name);
                let Some(known) = known.filter(|known| !known.is_beside()) else { continue };
                // fio's threads do not pause, as the suite's text says.
                if (name, case.name.as_str())
                    == (&"batch-beside-oltp", "gp2, twice as many waiting")
                {
                    continue;
                }
                assert_eq!(requests(client), requests(known), "{name}: {}", case.name);
                compared += 1;
            }
        }
        assert!(compared >= 10, "{name}: {compared} volumes and clients are in both");
    }
}

/// Returns the rate per second of each limit of a volume, and its baseline without credits.
fn rates(volume: &VolumeSetup) -> Vec<Option<(u64, Option<u64>)>> {
    let limits = [volume.pacing.operations, volume.pacing.bytes];
    let rate =
        |limit: Limit| (limit.per_second, limit.credit.map(|credit| credit.refill_per_second));
    limits.into_iter().map(|limit| limit.map(rate)).collect()
}

/// Returns a client's requests: name, size, share of reads, order, FUA, and requests under way.
fn requests(client: &ClientSetup) -> (&str, u32, u8, bool, bool, Option<u32>) {
    let Shape { block_bytes, read_percent, sequential, fua, .. } = client.shape;
    let at_once = match client.load {
        Load::Closed { threads, depth, .. } => Some(u32::from(threads) * u32::from(depth)),
        Load::Job { depth, .. } => Some(depth.into()),
        _ => None,
    };
    (&client.name, block_bytes, read_percent, sequential, fua, at_once)
}

#[test]
fn unknown_suite_or_case_is_an_error_with_existing_names() {
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
fn fewer_runs_leave_out_figures_that_need_more() {
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
    assert_eq!(ready.scenario.cases[0].setup.duration_ns, 120_000_000_000, "two batches");
}

#[test]
fn a_page_has_every_chart_and_loads_nothing() {
    let (_, mut result) = simulated("five-minute-job", &Choice::default());
    result.warnings.push("a <b> & c".to_owned());
    let page = result.to_html().unwrap();
    assert!(page.contains("a &lt;b&gt; &amp; c"));
    is_sound(&page);
}

/// Checks that a page loads no other files, closes every tag, and has each link's target exactly
/// once.
fn is_sound(page: &str) {
    for needle in ["<script", "<link", "@import", "url(", "src=", "https://"] {
        assert!(!page.contains(needle), "{needle}");
    }
    assert!(page.ends_with("</html>\n"));
    let tags = ["section", "nav", "h3", "table", "tr", "td", "th", "figure", "details", "summary"];
    for tag in [&tags[..], &["p", "dl", "svg"]].concat() {
        let open =
            page.matches(&format!("<{tag}>")).count() + page.matches(&format!("<{tag} ")).count();
        assert_eq!(open, page.matches(&format!("</{tag}>")).count(), "{tag}");
    }
    let links = page.split("<a href=\"#").skip(1).filter_map(|after| after.split('"').next());
    let links: Vec<&str> = links.collect();
    assert!(links.len() >= 3, "{links:?}");
    for link in links {
        assert_eq!(page.matches(&format!("<section id=\"{link}\">")).count(), 1, "{link}");
    }
}

/// The lines of a chart are the configuration's limits, and each curve has its credits.
#[test]
fn a_page_has_the_lines_the_credits_and_the_percentiles_of_each_configuration() {
    let result = result("gp2 1 x 500");
    let configuration = &result.simulated.as_ref().unwrap().configurations[0];
    let run = &configuration.runs[0];
    assert_eq!((configuration.block_bytes, run.credits.len()), (4_096, run.samples.len()));
    assert!(run.credits[0] > 50 * run.credits[37].max(1), "{:?}", run.credits);
    assert_eq!(run.quantiles_ns.len(), evenkeel_sim::figures::histogram::SHARES_PPM.len());
    assert!(run.quantiles_ns.contains(&run.latency.p99_ns), "{run:?}");
    let p95_ns = run.p95_ns().unwrap();
    assert!(run.latency.p50_ns <= p95_ns && p95_ns <= run.latency.p99_ns);
    let mibps = configuration.mibps().unwrap();
    assert!((mibps - configuration.iops.mean / 256.0).abs() < 1e-9, "4 KiB each: {mibps}");
    let page = result.to_html().unwrap();
    for needle in [
        "Lines: burst 3,000, baseline 1,500, floor 1,485.",
        "\nburst 3,000\n</text>",
        "\nfloor 1,485\n</text>",
        "I/O credits that are left, of all volumes together.",
        "Latency at each percentile",
        ">99.99 %</th>",
        "\">MiB/s</abbr></th>",
        "\">p95</abbr></th>",
    ] {
        assert!(page.contains(needle), "{needle}");
    }
    let text = result.to_text();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let head = "in virtual time: n of mean/s 95 % interval min max SD SE CoV MiB/s latency mean \
                p50 p95 p99 p99.9";
    assert!(text.lines().any(|line| words(line) == head), "{text}");
    // A result of an older program has none of it, and is still shown.
    let mut old = result.clone();
    for of in &mut old.simulated.as_mut().unwrap().configurations {
        (of.block_bytes, of.levels) = (0, Vec::new());
        for run in &mut of.runs {
            (run.quantiles_ns, run.credits) = (Vec::new(), Vec::new());
        }
    }
    let json = old.to_json().unwrap();
    assert!(!json.contains("quantiles") && !json.contains("levels"), "nothing is written of it");
    assert!(!old.to_html().unwrap().contains("Lines: burst"));
}

#[test]
fn live_only_figures_are_not_run_in_virtual_time() {
    let (ready, result) = simulated("five-minute-job", &Choice::default());
    let real = ready.points.iter().filter(|point| point.is_live_only);
    let real: Vec<&str> = real.map(|point| point.id.as_str()).collect();
    assert_eq!(real.len(), 10, "{real:?}");
    for row in &result.rows {
        let is_run = row.verdict() != "not run";
        assert_eq!(is_run, !real.contains(&row.id.as_str()), "{}", row.id);
    }
    let names = result
        .simulated
        .unwrap()
        .configurations
        .into_iter()
        .map(|configuration| configuration.name);
    assert!(names.clone().any(|name| name == "provisioned · rewrite-100"));
    assert!(!names.clone().any(|name| name.contains("reread")), "{:?}", names.collect::<Vec<_>>());
}

#[test]
fn databases_are_left_out_where_none_can_run() {
    let name = "batch-beside-oltp";
    let suite = find(name).unwrap();
    let both = [Engine::Postgres, Engine::MariaDb];
    let part = |only| Choice { only, runs: None, without: &both };
    let ready = suite.live.read(name, &part(None)).unwrap();
    let names: Vec<&str> = ready.scenario.cases.iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names, ["gp2", "gp2, twice as many waiting", "io1"]);
    let of_database = |point: &&Point| both.iter().any(|of| point.id.contains(of.name()));
    assert!(ready.points.iter().filter(of_database).all(|point| point.comparison.is_none()));
    let text = suite.live.read(name, &part(Some("PostgreSQL"))).unwrap_err().to_string();
    assert!(text.contains("has a database on a file system"), "{text}");
    let choice = Choice { only: None, runs: None, without: &both[..1] };
    let cases = suite.live.read(name, &choice).unwrap().scenario.cases;
    let names: Vec<&str> = cases[3..].iter().map(|case| case.name.as_str()).collect();
    assert_eq!(names, ["MariaDB on gp2", "MariaDB on io1"]);
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
    let names: Vec<&str> =
        configurations.iter().map(|configuration| configuration.name.as_str()).collect();
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

/// Returns a live result of these results, and nothing else.
fn driven(results: &run::Results) -> Live {
    Live {
        results: results.clone(),
        commands: Vec::new(),
        fio: String::new(),
        stalls: Vec::new(),
        storage: Vec::new(),
        programs: Vec::new(),
        warnings: Vec::new(),
        busy: Vec::new(),
        speeds: Speeds::default(),
        failures: Vec::new(),
    }
}

#[test]
fn a_program_that_fails_fails_the_result() {
    let suite = find("burst-and-stripe").unwrap();
    let ready = suite.live.read("burst-and-stripe", &only_case("gp2 1 x 500")).unwrap();
    let results = run::run(&ready.scenario, 1, run::Method::ClosedForm, &mut |_| {}).unwrap();
    let of = |failures: &[&str]| {
        let live = Live {
            programs: vec!["a 1.0".to_owned()],
            failures: failures.iter().map(|failure| (*failure).to_owned()).collect(),
            ..driven(&results)
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
        one.headline().ends_with(" what they must be. A run or a program failed."),
        "{}",
        one.headline()
    );
    assert!(one.to_html().unwrap().contains("Failed: gp2 (1): dbench: no &lt;room&gt;"));
    assert_eq!(SuiteResult::from_json(&one.to_json().unwrap()).unwrap(), one);
    assert!(of(&["one", "two"]).headline().ends_with("2 runs or programs failed."));
}

#[test]
fn verdict_of_a_row_combines_live_and_virtual_results() {
    let found = |pass| Found { value: Some(1.0), shown: "1".to_owned(), pass };
    let good = Some(found(true));
    let bad = Some(found(false));
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
            is_unsafe: false,
            live: live.clone(),
            simulated: simulated.clone(),
        };
        assert_eq!(row.verdict(), verdict, "{row:?}");
        // A busy machine excuses a figure that is broken live. It makes no figure kept.
        let is_live_only =
            verdict == "BROKEN" && simulated.as_ref().is_none_or(|simulated| simulated.pass);
        let busy = Row { is_unsafe: true, ..row };
        assert_eq!(busy.verdict(), if is_live_only { "undecided" } else { verdict }, "{busy:?}");
    }
}

#[test]
fn busy_machine_makes_broken_figures_undecided() {
    let suite = find("burst-and-stripe").unwrap();
    let ready = suite.live.read("burst-and-stripe", &only_case("gp2 1 x 500")).unwrap();
    let mut results = run::run(&ready.scenario, 1, run::Method::ClosedForm, &mut |_| {}).unwrap();
    results.comparisons[0].pass = false;
    let of = |results: &run::Results, busy: &[&str]| {
        let live =
            Live { busy: busy.iter().map(|why| (*why).to_owned()).collect(), ..driven(results) };
        let mut result = SuiteResult::begin("burst-and-stripe", &suite);
        result.add_live(&ready, &live);
        result
    };
    let quiet = of(&results, &[]);
    assert!(!quiet.pass && !quiet.is_undecided() && quiet.rows[0].verdict() == "BROKEN");
    let busy = of(&results, &["others used <50> %"]);
    assert!(!busy.pass && busy.is_undecided() && busy.rows[0].verdict() == "undecided");
    let headline = busy.headline();
    assert!(headline.starts_with("No gated figure is broken for sure. 1 of "), "{headline}");
    assert!(headline.contains("the machine was busy (others used <50> %): run it"), "{headline}");
    assert!(busy.to_html().unwrap().contains("? undecided</span>"));
    assert_eq!(SuiteResult::from_json(&busy.to_json().unwrap()).unwrap(), busy);
    // A busy machine does not excuse more than a volume's limit.
    let mut above = results.clone();
    above.comparisons[0].value = Some(6_000.0);
    assert_eq!(of(&above, &["others used 50 %"]).rows[0].verdict(), "BROKEN");
    // A figure that is broken in virtual time is broken.
    let mut both = busy.clone();
    both.add_simulated(&ready, &results);
    assert!(!both.pass && !both.is_undecided() && both.rows[0].verdict() == "BROKEN");
}

/// A processor that is slower at times excuses figures that it limits, by its own factor. It
/// excuses no others.
#[test]
fn a_slower_processor_leaves_its_programs_undecided() {
    let suite = find("five-minute-job").unwrap();
    let ready = suite.live.read("five-minute-job", &Choice::default()).unwrap();
    let mut results = run::run(&ready.scenario, 1, run::Method::ClosedForm, &mut |_| {}).unwrap();
    let mut speeds = Speeds::default();
    for program in ready.points.iter().flat_map(|point| &point.bound_by_client) {
        [1_000, 1_680].into_iter().for_each(|took_ns| speeds.note(program, took_ns));
    }
    let mut off_by = |times: f64| {
        for (point, comparison) in ready.points.iter().zip(&mut results.comparisons) {
            let low = point.comparison.as_ref().unwrap().bounds.low;
            (comparison.pass, comparison.value) = (false, Some(low.max(0.0) / times));
        }
        let mut result = SuiteResult::begin("five-minute-job", &suite);
        result.add_live(&ready, &Live { speeds: speeds.clone(), ..driven(&results) });
        result
    };
    let near = off_by(1.6);
    let far = off_by(1.8);
    let mut undecided = 0;
    let mut broken = 0;
    for (point, (near, far)) in ready.points.iter().zip(near.rows.iter().zip(&far.rows)) {
        let compared = point.comparison.as_ref().unwrap();
        let is_excused = !point.bound_by_client.is_empty() && compared.may_suffer(Some(0.001));
        assert_eq!(near.is_unsafe, is_excused, "{}", near.id);
        undecided += u32::from(near.verdict() == "undecided");
        broken += u32::from(is_excused && far.verdict() == "BROKEN");
    }
    assert!(undecided >= 5 && !near.is_undecided(), "{}", near.headline());
    assert!(near.headline().contains("by a factor of 1.68"), "{}", near.headline());
    assert!(broken >= 4, "{broken}: {}", far.headline());
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
    let one = result("gp3 1 x 500");
    let other = result("gp2 1 x 500");
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
    let repeated = |times: usize| {
        let mut result = one.clone();
        for configuration in &mut result.simulated.as_mut().unwrap().configurations {
            configuration.runs = vec![configuration.runs[0].clone(); times];
        }
        result
    };
    for (a, b) in [(3, 5), (5, 3), (3, 7), (7, 9), (10, 3)] {
        let alike = compare(&repeated(a), &repeated(b)).unwrap();
        assert!(alike.rows.iter().all(compare::Compared::may_be_same), "{}", alike.to_text());
    }
    slower.suite = "another".to_owned();
    assert!(compare(&one, &slower).is_err());
}

#[test]
fn a_full_run_is_as_long_as_the_article_s() {
    let suite = find("stripe-consistency").unwrap();
    let full = suite.live_plan(true).read("stripe-consistency", &Choice::default()).unwrap();
    let cases = &full.scenario.cases;
    assert_eq!(cases.len(), 24 * 9, "nine runs of each");
    assert!(cases.iter().all(|case| case.setup.duration_ns == 300_000_000_000));
    let simulated = suite.simulate.read("stripe-consistency", &Choice::default()).unwrap();
    assert_eq!(simulated.scenario.cases.len(), 24 * 9);
    let is_whole = |case: &scenario::Case| case.setup.duration_ns == 300_000_000_000;
    assert!(simulated.scenario.cases.iter().all(is_whole), "in virtual time, too");
    let other = find("burst-and-stripe").unwrap();
    assert_eq!(other.live_plan(true), &other.simulate);
    assert_eq!(other.live_plan(false), &other.live);
}
