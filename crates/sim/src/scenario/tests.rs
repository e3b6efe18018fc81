//! Scenario files that can be read, and the errors of those that cannot.

use super::*;
use crate::scenario::compare::By;
use crate::scenario::setup::{Load, Target, WindowSetup};
use crate::world::run::Method;

const SMALL: &str = "title = \"t\"\nduration_s = 10\n[[volume]]\nname = \"v\"\niops = 1_000\n";

fn try_read(text: &str) -> Result<Scenario, ScenarioError> {
    read(&Source::new("s.toml", text))
}

/// Returns the error that `more` causes, which begins in line 6.
fn error_of(more: &str) -> String {
    let text = format!("{SMALL}{more}");
    match try_read(&text) {
        Err(error) => error.to_string(),
        Ok(_) => panic!("was read:\n{text}"),
    }
}

#[test]
fn a_small_scenario_has_its_defaults() {
    let scenario = try_read(&format!("{SMALL}[[client]]\non = \"v\"\n")).unwrap();
    assert_eq!((scenario.name.as_str(), scenario.seed), ("s", 1));
    let [Case { setup, .. }] = &scenario.cases[..] else { panic!("one case") };
    let client = &setup.clients[0];
    assert_eq!(client.target, Target::Volume(0));
    assert!(matches!(client.load, Load::Closed { threads: 1, depth: 1, .. }));
    assert_eq!(client.shape.span_bytes, 100 << 30);
    assert_eq!(setup.sample_ns, 1_000_000_000);
}

#[test]
fn volumes_follow_the_rules_of_the_day() {
    let text = "title = \"t\"\nduration_s = 1\nas_of = \"2012-08\"\n\
                [[volume]]\nname = \"v\"\ntype = \"io1\"\nsize_gib = 100\niops = 1_000\n";
    assert!(try_read(text).is_ok());
    let refused = try_read(&text.replace("1_000", "1_001")).unwrap_err().to_string();
    assert!(refused.starts_with("s.toml:6: [[volume]] type = \"io1\": by the rules of 2012-08"));
    let source = |as_of| Source { as_of, ..Source::new("s.toml", text) };
    let today = "2024-01-01".parse().unwrap();
    assert_eq!(read(&source(Some(today))).unwrap().as_of, today);
    let text = text.replace("io1", "gp4");
    assert!(try_read(&text).unwrap_err().to_string().ends_with("did you mean \"gp2\"?"));
}

#[test]
fn cases_are_listed_or_combined() {
    let labels = |text: &str| {
        let cases = try_read(text).unwrap().cases;
        cases.into_iter().map(|case| case.label).collect::<Vec<_>>()
    };
    let text = SMALL.replace("1_000", "\"$iops\"");
    let listed = "[[case]]\nname = \"slow\"\niops = 1\n[[case]]\nname = \"fast\"\niops = 2\n";
    assert_eq!(labels(&format!("{text}{listed}")), ["slow", "fast"]);
    let client = "[[client]]\non = \"v\"\ndepth = \"$depth\"\n";
    let matrix = "[matrix]\niops = [1, 2]\ndepth = [4, 8]\n";
    assert_eq!(
        labels(&format!("{text}{client}{matrix}")),
        ["depth=4 iops=1", "depth=4 iops=2", "depth=8 iops=1", "depth=8 iops=2"]
    );
    let error = |more: &str| try_read(&format!("{text}{more}")).unwrap_err().to_string();
    assert_eq!(
        error("[matrix]\niop = [1]\n"),
        "s.toml:5: $iops is not defined\n hint: did you mean \"$iop\"?"
    );
    assert_eq!(
        error("[matrix]\niops = [1]\nx = [1]\n"),
        "s.toml:8: nothing in the scenario refers to \"$x\"\n \
         hint: write \"$x\" where the value belongs, or remove it"
    );
    assert_eq!(error("[matrix]\niops = 1\n"), "s.toml:7: matrix: iops = 1: must be a list");
    assert!(error("[matrix]\niops = []\n").ends_with("0 runs; from 1 to 1024 may be asked for"));
    assert!(error("[[case]]\niops = 1\n").contains("s.toml:6: [[case]] needs a name"));
    assert!(error("[[case]]\nname = \"a\"\n[matrix]\n").contains("has [[case]] and [matrix]"));
}

/// Lines that are added to a small scenario, and the beginning of the error.
const MISTAKES: &[(&str, &str)] = &[
    (
        "seeed = 1",
        "s.toml:6: [[volume]] has no key \"seeed\"\n hint: the keys are in \
    docs/reference/scenarios.md",
    ),
    ("iop = 1", "s.toml:6: [[volume]] has no key \"iop\"\n hint: did you mean \"iops\"?"),
    ("[devise]", "s.toml:6: unknown key \"devise\"\n hint: did you mean \"device\"?"),
    ("[volume]", "s.toml:6: duplicate key"),
    ("[[client]]", "s.toml:6: [[client]] on is missing: the volumes or stripes that it uses"),
    (
        "[[client]]\non = \"w\"",
        "s.toml:7: [[client]] on = \"w\": no volume or stripe is called \"w\"\n \
    hint: did you mean \"v\"?",
    ),
    ("[[client]]\non = \"v\"\ndepth = 0", "s.toml:8: [[client]] depth = 0: must be from 1 to 1024"),
    (
        "[[client]]\non = \"v\"\ndepth = 1.5",
        "s.toml:8: [[client]] depth = 1.5: must be a whole number",
    ),
    (
        "[[client]]\non = \"v\"\nblock_kib = 0.7",
        "s.toml:8: [[client]] block_kib = 0.7: must be a multiple of 0.5",
    ),
    (
        "[[client]]\non = \"v\"\nspan_gib = 101",
        "s.toml:8: [[client]] span_gib = 101: must be at least one block and at most the \
    target's 100 GiB",
    ),
    (
        "[[client]]\non = \"v\"\niops = 5\ndepth = 1",
        "s.toml:9: [[client]] depth = 1: does not go with iops, which says when requests are \
    sent",
    ),
    (
        "[[client]]\non = \"v\"\npattern = \"rand\"",
        "s.toml:8: [[client]] pattern = \"rand\": must be one of random, sequential",
    ),
    (
        "[[client]]\non = \"v\"\ntrace = \"x.csv\"",
        "s.toml:8: [[client]] trace = \"x.csv\": only a scenario of your own may name a file",
    ),
    (
        "[[client]]\non = \"v\"\nname = \"v\"",
        "s.toml:6: client = a list: \"v\" is the name of something else, too",
    ),
    (
        "credits = 5",
        "s.toml:6: [[volume]] credits = 5: the volume has no I/O credits: it does \
    not burst",
    ),
    ("burst_iops = 500", "s.toml:6: [[volume]] burst_iops = 500: must be from 1000 to 100000000"),
    (
        "burst_iops = 5_000",
        "s.toml:3: [[volume]] burst_credits is missing: the I/O credits that pay for burst_iops",
    ),
    ("instance = \"i\"", "s.toml:6: [[volume]] instance = \"i\": no instance is called \"i\""),
    (
        "[[instance]]\nname = \"i\"\ntype = \"m5.larg\"",
        "s.toml:8: [[instance]] type = \"m5.larg\": no instance type of that name has EBS \
    limits\n hint: did you mean \"m5.large\"?",
    ),
    (
        "[[instance]]\nname = \"i\"",
        "s.toml:6: [[instance]] type is missing: a type, or iops, or mbps",
    ),
    (
        "[[stripe]]\nname = \"s\"\nvolumes = \"w-*\"",
        "s.toml:8: [[stripe]] volumes = \"w-*\": no volume is called \"w-*\"",
    ),
    (
        "[device]\nchannels = 4",
        "s.toml:6: [device] read_us is missing: what any read takes, in microseconds; or \
    ideal_us",
    ),
    (
        "[device]\nideal_us = 5\nchannels = 4",
        "s.toml:8: [device] channels = 4: an ideal device has none; remove one of them",
    ),
    (
        "[device]\nideal_us = 5\ngc_every_mib = 4",
        "s.toml:8: [device] gc_every_mib = 4: needs gc_pause_ms",
    ),
    (
        "[device]\nideal_us = 5\nstalls = [{ at_s = 1 }]",
        "s.toml:8: [[stalls]] length_ms is missing: for how long, in milliseconds",
    ),
    (
        "[poller]\npauses = [{ at_s = 1, length_ms = 9 }, { at_s = 1.001, length_ms = 1 }]",
        "s.toml:7: [poller] pauses = a list: one begins before the one before it has ended",
    ),
    ("[[change]]\nat_s = 11", "s.toml:7: [[change]] at_s = 11: must be from 0 to 10"),
    (
        "[[change]]\nat_s = 1\nvolume = \"v\"",
        "s.toml:8: [[change]] volume = \"v\": nothing is changed: name iops, size_gib, \
    credits, ...",
    ),
    (
        "[[change]]\nat_s = 1\nuntil_s = 2\nvolume = \"v\"\niops = 1",
        "s.toml:8: [[change]] until_s = 2: needs every_ms",
    ),
    (
        "[[change]]\nat_s = 1\nevery_ms = 0.01\nvolume = \"v\"\niops = 1",
        "s.toml:6: change = a list: 100001 changes; at most 100000",
    ),
    (
        "[[change]]\nat_s = 1\ndevice_percent = 130",
        "s.toml:8: [[change]] device_percent = 130: of an ideal device cannot change; give \
    [device] channels and read_us",
    ),
    (
        "[[change]]\nat_s = 1\ndevice_channels = 3",
        "s.toml:8: [[change]] device_channels = 3: of an ideal device cannot change; give \
    [device] channels and read_us",
    ),
    (
        "[[expect]]\nmetric = \"mean_iop\"",
        "s.toml:7: [[expect]] metric = \"mean_iop\": must be one of",
    ),
    (
        "[[expect]]\nmetric = \"monthly_usd\"\nof = \"v\"\nequals = 1",
        "s.toml:7: [[expect]] metric = \"monthly_usd\": is known without a run: it stands in",
    ),
    (
        "[[expect]]\nmetric = \"mean_iops\"\nof = \"v\"",
        "s.toml:6: [[expect]] equals is missing: equals, at_least or at_most",
    ),
    (
        "[[expect]]\nmetric = \"p99_ms\"\nof = [\"v\", \"v\"]\nat_most = 1",
        "s.toml:8: [[expect]] of = a list: this metric is of one volume or client: use each",
    ),
    (
        "[[expect]]\nmetric = \"falls_below\"\nof = \"v\"\nequals = 1",
        "s.toml:6: [[expect]] iops is missing: the rate that is fallen below",
    ),
    (
        "[[expect]]\nmetric = \"every_second\"\nof = \"v\"\nequals = 1\nfrom_s = 0.5",
        "s.toml:10: [[expect]] from_s = 0.5: must be a multiple of sample_s, 1 s",
    ),
    (
        "[[expect]]\nmetric = \"job_mean_iops\"\nof = \"v\"\nequals = 1",
        "s.toml:8: [[expect]] of = \"v\": \"v\" is no client with job_ios",
    ),
    (
        "[[expect]]\nmetric = \"job_mean_calls\"\nof = \"v\"\nequals = 1",
        "s.toml:8: [[expect]] of = \"v\": \"v\" is no client with job_ios",
    ),
    (
        "[[client]]\nname = \"c\"\non = \"v\"\nprogram = \"sqlit\"",
        "s.toml:9: [[client]] program = \"sqlit\": must be one of",
    ),
    (
        "[[client]]\nname = \"c\"\non = \"v\"\nprogram = \"sqlite\"\nprogram_calls = 1",
        "s.toml:9: [[client]] program = \"sqlite\": needs job_ios: those of the volume",
    ),
    (
        "[[client]]\nname = \"c\"\non = \"v\"\niops = 9\nprogram = \"sysbench\"",
        "s.toml:10: [[client]] program = \"sysbench\": needs threads that wait for each answer",
    ),
    (
        "[[client]]\nname = \"c\"\non = \"v\"\nprogram = \"pgbench\"\nprogram_calls = 20",
        "s.toml:9: [[client]] program = \"pgbench\": needs iops: those of the volume",
    ),
    (
        "[[client]]\non = \"v\"\njob_ios = 9\njob_every_s = 1\ndepth = 2\nthink_us = 5",
        "s.toml:11: [[client]] think_us = 5: goes with job_ios where depth is 1",
    ),
    (
        "[[client]]\nname = \"c\"\non = \"v\"\nprogram_calls = 1",
        "s.toml:9: [[client]] program_calls = 1: needs a program",
    ),
    (
        "[[client]]\nname = \"c\"\non = \"v\"\nprogram_s = 1",
        "s.toml:9: [[client]] program_s = 1: needs a program",
    ),
    (
        "[[client]]\nname = \"c\"\non = \"v\"\njob_ios = 9\njob_every_s = 1\nprogram = \"gzip\"\n\
         program_calls = 1\nprogram_s = 1",
        "s.toml:13: [[client]] program_s = 1: this program ends when it is done",
    ),
    (
        "[[client]]\nname = \"c\"\non = \"v\"\njob_ios = 9\njob_every_s = 1\nprogram = \"dbench\"\n\
         program_calls = 1",
        "s.toml:6: [[client]] program_s is missing: how long it runs",
    ),
    ("x = 99999999999999999999", "s.toml:6: 99999999999999999999 is too large a number"),
    ("x = nan", "s.toml:6: nan is not a finite number"),
    ("[[volume]]\nname = \"v\"", "s.toml:3: volume = a list: two volumes are called \"v\""),
];

#[test]
fn mistake_in_a_scenario_is_named_with_its_line() {
    for (more, expected) in MISTAKES {
        let error = error_of(more);
        assert!(error.starts_with(expected), "{more}\n{error}\nexpected: {expected}");
    }
}

#[test]
fn a_run_has_bounds() {
    let long = SMALL.replace("= 10", "= 100_000_000");
    assert_eq!(
        try_read(&long).unwrap_err().to_string(),
        "s.toml:2: duration_s = 100000000: must be from 1 to 31622400"
    );
    let long = SMALL.replace("= 10\n", "= 30_000_000\n");
    assert!(try_read(&long).unwrap_err().to_string().ends_with("a larger sample_s keeps fewer"));
    assert!(try_read(&long.replace("title", "sample_s = 60\ntitle")).is_ok());
    let none = "title = \"t\"\nduration_s = 10\n";
    assert!(try_read(none).unwrap_err().to_string().contains("0 [[volume]]s; from 1 to 4096"));
}

#[test]
fn a_trace_is_read_from_beside_the_scenario() {
    struct Beside<'a>(&'a str);
    impl Files for Beside<'_> {
        fn read(&self, path: &str) -> Result<NamedText, String> {
            match path {
                "t.csv" => Ok(NamedText { name: "beside/t.csv".into(), text: self.0.into() }),
                other => Err(format!("beside/{other}: no such file")),
            }
        }
    }
    let read_with = |trace: &str| {
        let text = format!("{SMALL}[[client]]\non = \"v\"\ntrace = \"t.csv\"\n");
        read(&Source { files: Some(&Beside(trace)), ..Source::new("s.toml", &text) })
    };
    let scenario = read_with("# seconds\n0.25,read,4096,512\n1,write,0,1024\n").unwrap();
    let Load::Trace(arrivals) = &scenario.cases[0].setup.clients[0].load else { panic!("a trace") };
    assert_eq!((arrivals[0].at_ns, arrivals[1].is_read), (250_000_000, false));
    for (trace, expected) in [
        ("0,read,0", "beside/t.csv:1: \"0,read,0\": expected seconds,read|write"),
        (
            "1,read,0,512\n0,read,0,512",
            "t.csv:2: \"0,read,0,512\": is earlier than the line before",
        ),
        ("0,read,107374182400,1", "ends beyond the target's 107374182400 bytes"),
        ("0,read,0,0", "the length must be from 1 to 33554432"),
    ] {
        let error = read_with(trace).unwrap_err().to_string();
        assert!(error.contains(expected), "{error}");
    }
    let text = format!("{SMALL}[[client]]\non = \"v\"\ntrace = \"u.csv\"\n");
    let missing = Source { files: Some(&Beside("")), ..Source::new("s.toml", &text) };
    let error = read(&missing).unwrap_err().to_string();
    assert!(error.ends_with("beside/u.csv: no such file"), "{error}");
}

/// docs/reference/scenarios.md shows a whole scenario, which can be read, and explains every key
/// and word.
#[test]
fn the_documented_scenario_can_be_read_and_every_metric_is_explained() {
    let page = include_str!("../../../../docs/reference/scenarios.md");
    let sample = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let scenario = try_read(sample).unwrap();
    let results = crate::world::run::run(&scenario, 1, Method::ClosedForm, &mut |_| {}).unwrap();
    assert!(results.pass, "{}", results.to_text());
    for (word, _) in crate::scenario::expect::Metric::WORDS {
        assert!(page.contains(&format!("`{word}`")), "{word} is not explained");
    }
}

#[test]
fn instances_follow_their_date_and_uncovered_ones_are_refused() {
    let instance = "[[instance]]\nname = \"i\"\ntype = \"m1.large\"\nper_direction = true\n";
    let setup =
        |head: &str| try_read(&format!("{head}{SMALL}{instance}")).unwrap().cases.remove(0).setup;
    let then = setup("as_of = \"2013-01\"\n");
    assert_eq!(then.instances[0].bytes_per_second_max, 62_500_000);
    assert!(then.instances[0].per_direction);
    let bursting = format!("{SMALL}{}", instance.replace("m1.large", "m5.large"));
    let scenario = try_read(&bursting).unwrap();
    let error = crate::world::run::run(&scenario, 1, Method::ClosedForm, &mut |_| {})
        .unwrap_err()
        .to_string();
    assert!(
        error.starts_with("instance \"i\" has a link for each direction and bursts"),
        "{error}"
    );
}

#[test]
fn the_window_is_the_schedulers() {
    let window = |keys: &str| {
        let text = format!("{SMALL}[device]\nchannels = 4\nread_us = 80\n{keys}");
        Ok::<_, ScenarioError>(try_read(&text)?.cases.remove(0).setup.device.window)
    };
    assert_eq!(window(""), Ok(None));
    assert_eq!(window("scheduled = true"), Ok(Some(WindowSetup::Slots(6))));
    let adaptive = window("scheduled = true\nwindow_p99_us = 200");
    assert_eq!(adaptive, Ok(Some(WindowSetup::Adaptive(200_000))));
    let lonely = window("window_slots = 9").unwrap_err().to_string();
    assert!(lonely.contains("window_slots = 9: is the scheduler's; add scheduled"), "{lonely}");
    let both = window("scheduled = true\nwindow_slots = 9\nwindow_p99_us = 200").unwrap_err();
    assert!(both.to_string().contains("is either fixed or found"), "{both}");
    let ideal = error_of("[device]\nideal_us = 5\nscheduled = true");
    assert!(ideal.contains("has no default; add window_slots"), "{ideal}");
}

/// Two volumes, of which the second exists in one case only, and three runs of each case.
const REPEATED: &str = "title = \"t\"\nduration_s = 2\nrepeat = 3\n\
    [[case]]\nname = \"alone\"\n[[case]]\nname = \"beside\"\n\
    [[volume]]\nname = \"v\"\niops = 1_000\n\
    [[volume]]\nonly_in = \"beside\"\nname = \"w\"\niops = 500\n\
    [[client]]\non = \"*\"\ndepth = 4\nblock_kib = 4\n";

#[test]
fn cases_are_repeated_and_tables_are_in_some_only() {
    let scenario = try_read(REPEATED).unwrap();
    let labels: Vec<&str> = scenario.cases.iter().map(|case| case.label.as_str()).collect();
    let beside = ["beside (1)", "beside (2)", "beside (3)"];
    assert_eq!(labels, [["alone (1)", "alone (2)", "alone (3)"], beside].concat());
    let volumes: Vec<usize> = scenario.cases.iter().map(|case| case.setup.volumes.len()).collect();
    assert_eq!(volumes, [1, 1, 1, 2, 2, 2]);
    let error = |from, to| try_read(&REPEATED.replace(from, to)).unwrap_err().to_string();
    assert_eq!(error("repeat = 3", "repeat = 0"), "s.toml:3: repeat = 0: must be from 1 to 100");
    assert_eq!(
        error("only_in = \"beside\"", "only_in = \"besid\""),
        "s.toml:12: only_in: no case is called \"besid\"\n hint: did you mean \"beside\"?"
    );
    assert_eq!(
        error("only_in = \"beside\"", "only_in = 1"),
        "s.toml:12: only_in must be the name of a case in quotes, or a list of such"
    );
}

#[test]
fn runs_are_compared() {
    let compared = |more: &str| try_read(&format!("{REPEATED}[[compare]]\n{more}\n"));
    let results = |more: &str| {
        let scenario = compared(more).unwrap();
        crate::world::run::run(&scenario, 1, Method::ClosedForm, &mut |_| {}).unwrap()
    };
    let ratio = "metric = \"mean_iops\"\nfrom_s = 1\nof = \"w\"\ncase = \"beside\"\nto = ";
    let all = results(&format!("{ratio}{{ of = \"v\", case = \"alone\" }}\nequals = 0.5"));
    assert_eq!(all.comparisons[0].value, Some(0.5));
    assert!(
        all.pass && all.to_text().contains("compared  w: IOPS on average, 1 to 2 s in \"beside\"")
    );
    let wrong = results(&format!("{ratio}{{ of = \"v\" }}\nequals = 1"));
    assert!(
        !wrong.pass && wrong.headline() == "It did not come as expected.",
        "{}",
        wrong.headline()
    );
    let alike = "metric = \"mean_iops\"\nof = \"v\"\nacross = \"cov_percent\"\nat_most = 0";
    let mut scenario = compared(alike).unwrap();
    assert_eq!(scenario.comparisons[0].of.len(), 6);
    scenario.keep(5);
    assert!(scenario.comparisons.is_empty() && scenario.cases.len() == 5);
    for (more, expected) in [
        ("metric = \"mean_iops\"\nof = \"v\"\nat_most = 1", "s.toml:19: [[compare]] to is missing"),
        (
            "metric = \"mean_iops\"\nof = \"w\"\nat_most = 1\nacross = \"cov_percent\"",
            "s.toml:21: [[compare]] of = \"w\": no volume or client is called \"w\"",
        ),
        (
            "metric = \"mean_iops\"\nof = \"v\"\ncase = \"a\"\nacross = \"cov_percent\"",
            "s.toml:22: [[compare]] case = \"a\": no case is called \"a\"",
        ),
        (
            "metric = \"mean_iops\"\nof = \"v\"\nto = { depth = 1 }\nat_most = 1",
            "s.toml:22: to: depth cannot differ; only metric, case, of, volumes, from_s, to_s, \
             at_s, times",
        ),
        (
            "metric = \"mean_iops\"\nof = \"v\"\ntimes = {}\nat_most = 1",
            "s.toml:22: [[compare]] times = a table: needs to, the divisor of the product",
        ),
        (
            "metric = \"every_second\"\nof = \"v\"\nto = {}\nat_most = 1",
            "s.toml:20: [[compare]] metric = \"every_second\": is of bounds",
        ),
        (
            "metric = \"mean_iops\"\nof = \"v\"\nto = {}\nat_mos = 1",
            "s.toml:19: [[compare]] equals is missing",
        ),
    ] {
        let error = compared(more).unwrap_err().to_string();
        assert!(error.starts_with(expected), "{more}\n{error}\nexpected: {expected}");
    }
}

#[test]
fn sides_are_multiplied_and_variations_divided() {
    let compared = |more: &str| try_read(&format!("{REPEATED}[[compare]]\n{more}\n"));
    let results = |more: &str| {
        let scenario = compared(more).unwrap();
        crate::world::run::run(&scenario, 1, Method::ClosedForm, &mut |_| {}).unwrap()
    };
    // Little's law: the number of requests in flight is a latency times a rate.
    let of = "metric = \"under_way\"\nfrom_s = 1\nof = \"v\"\ncase = \"alone\"";
    let to = "to = { metric = \"mean_ms\", times = { metric = \"mean_iops\" } }";
    let law = results(&format!("{of}\n{to}\nequals = 1\nwithin = 0.01"));
    assert!(law.pass && law.comparisons[0].name.contains(", times v: IOPS on"), "{law:?}");
    let vary = "metric = \"mean_iops\"\nof = \"v\"\nacross = \"cov_percent\"";
    let vary = compared(&format!("{vary}\nto = {{ case = \"alone\" }}\nat_most = 1")).unwrap();
    assert!(matches!(&vary.comparisons[0].by, By::CovRatioTo(to) if to.len() == 3));
}

#[test]
fn changes_come_again_and_again() {
    let change = "[[change]]\nat_s = 1\nevery_ms = 500\nuntil_s = 2.5\nvolume = \"v\"\niops = 5\n";
    let setup = try_read(&format!("{SMALL}{change}")).unwrap().cases.remove(0).setup;
    let times: Vec<u64> = setup.changes.iter().map(|change| change.at_ns / 1_000_000).collect();
    assert_eq!(times, [1_000, 1_500, 2_000]);
}
