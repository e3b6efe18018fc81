//! The metrics of a real server at `/metrics` agree with the I/Os of its clients, and the alert
//! rules for them are valid.

mod support;

use serde_json::Value;
use std::collections::BTreeMap;
use std::process::Command;
use support::PATIENCE;
use support::clock::Deadline;
use support::metrics::Metrics;
use support::nbd::Client;
use support::process::run;
use support::server::{FAST, Server};
use support::tools::{absent, in_venv};

#[test]
fn metrics_agree_with_the_requests_of_clients() {
    const READS: u32 = 12;
    const WRITES: u32 = 5;
    // On a disk, since the times of memory would be rounded to zero.
    let server = Server::start("--store local");
    let used = server.attached(FAST);
    let idle = server.create("--type gp2 --size 100");
    let mut client = Client::open(server.nbd, &used).expect("attached");
    for _ in 0..WRITES {
        client.write(4_096, &[7; 8_192]).expect("written");
    }
    for _ in 0..READS {
        client.read(0, 16_384).expect("read");
    }
    let mut samples = BTreeMap::new();
    let of = |samples: &BTreeMap<String, f64>, name: &str, volume: &str, more: &str| {
        let kind = if volume == used { "io2" } else { "gp2" };
        let series =
            format!("evenkeel_{name}{{volume_id=\"{volume}\",volume_type=\"{kind}\"{more}}}");
        *samples.get(&series).unwrap_or_else(|| panic!("no {series} in {samples:#?}"))
    };
    // A request is counted when its reply is sent, which may be a moment after the client has it.
    Deadline::after(PATIENCE).ask("the last read in the metrics", || {
        samples = Metrics::of(&server).samples;
        of(&samples, "read_ops_total", &used, "") >= f64::from(READS)
    });
    for (name, more, value) in [
        ("read_ops_total", "", READS),
        ("write_ops_total", "", WRITES),
        ("counted_ios_total", "", READS + WRITES),
        ("read_bytes_total", "", READS * 16_384),
        ("write_bytes_total", "", WRITES * 8_192),
        ("io_latency_seconds_count", ",op=\"read\",stage=\"total\"", READS),
        ("io_latency_seconds_count", ",op=\"write\",stage=\"total\"", WRITES),
        ("connections", "", 1),
        ("queue_length", "", 0),
        ("provisioned_iops", "", 64_000),
    ] {
        assert_eq!(of(&samples, name, &used, more), f64::from(value), "{name}{more}");
    }
    let read_s = of(&samples, "read_seconds_total", &used, "");
    let sum_s = of(&samples, "io_latency_seconds_sum", &used, ",op=\"read\",stage=\"total\"");
    assert!(read_s > 0.0 && read_s == sum_s, "{read_s} {sum_s}");
    for (name, value) in [
        ("read_ops_total", 0),
        ("provisioned_iops", 300),
        ("burst_iops", 3_000),
        ("burst_balance_ratio", 1),
    ] {
        assert_eq!(of(&samples, name, &idle, ""), f64::from(value), "{name}");
    }
    assert_eq!(samples["evenkeel_volumes{state=\"in-use\"}"], 1.0);
    assert_eq!(samples["evenkeel_volumes{state=\"available\"}"], 1.0);
}

/// Prometheus accepts the rules, and they fire when they should and not otherwise.
#[test]
fn the_rules_for_prometheus_fire_when_they_should() {
    if absent(&["promtool"]) {
        return;
    }
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/prometheus");
    for words in [
        ["check", "rules", "evenkeel.rules.yml"],
        ["check", "rules", "evenkeel-agent.rules.yml"],
        ["test", "rules", "evenkeel.test.yml"],
        ["test", "rules", "evenkeel-agent.test.yml"],
    ] {
        println!("{}", run(Command::new("promtool").current_dir(folder).args(words)).ok());
    }
}

/// Each group of alerts has a case in which it fires and one in which it does not.
#[test]
fn each_group_of_alerts_has_cases() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/prometheus");
    let read = |name: &str| std::fs::read_to_string(format!("{folder}/{name}")).expect(name);
    let cases = read("evenkeel.test.yml");
    let cases: Vec<&str> = cases.split("- alertname: ").skip(1).collect();
    for group in read("evenkeel.rules.yml").split("  - name: ").skip(1) {
        let alerts = group.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
        let alerts: Vec<&str> = alerts.collect();
        if alerts.is_empty() {
            continue; // what is recorded for the dashboard
        }
        let name = group.lines().next().expect("a name");
        let is_of_group =
            |case: &&&str| case.lines().next().is_some_and(|name| alerts.contains(&name));
        let has = |text| cases.iter().filter(is_of_group).any(|case| case.contains(text));
        assert!(has("exp_labels:"), "{name} never fires");
        assert!(has("exp_alerts: []"), "{name} always fires");
    }
}

/// Returns whether a case of an alert contains a text.
fn has_case(cases: &str, alert: &str, text: &str) -> bool {
    let mut cases = cases.split("- alertname: ");
    cases.any(|case| case.lines().next() == Some(alert) && case.contains(text))
}

/// Each alert of the agent has a case in which it fires, one in which it does not, and a section of
/// the reference that its runbook names.
#[test]
fn each_alert_of_the_agent_has_cases_and_a_section() {
    let read = |path: &str| {
        let path = format!("{}/{path}", env!("CARGO_MANIFEST_DIR"));
        std::fs::read_to_string(&path).expect(&path)
    };
    let rules = read("deploy/prometheus/evenkeel-agent.rules.yml");
    let cases = read("deploy/prometheus/evenkeel-agent.test.yml");
    let reference = read("docs/reference/agent_metrics.md");
    let alerts: Vec<&str> =
        rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(alerts.len() > 5, "{alerts:?}");
    for alert in alerts {
        assert!(has_case(&cases, alert, "exp_labels:"), "{alert} never fires");
        assert!(has_case(&cases, alert, "exp_alerts: []"), "{alert} always fires");
        assert!(reference.contains(&format!("\n### {alert}\n")), "{alert} has no section");
        let runbook = format!("agent_metrics.md#{}\"", alert.to_lowercase());
        assert_eq!(rules.matches(&runbook).count(), 1, "{alert}");
    }
}

/// A parser of YAML other than that of the metrics reads the same rules.
#[test]
fn the_rules_for_prometheus_are_yaml() {
    let python = in_venv("python");
    if absent(&[&python]) {
        return;
    }
    const READ: &str = "import json, sys, yaml\n\
                        print(json.dumps([yaml.safe_load(open(path)) for path in sys.argv[1:]]))";
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/deploy/prometheus");
    let paths = ["evenkeel.rules.yml", "prometheus.yml"].map(|name| format!("{folder}/{name}"));
    let output = run(Command::new(python).args(["-c", READ]).args(&paths)).ok();
    let [rules, scrape]: [Value; 2] = serde_json::from_str(&output).expect("both files");
    let list = |value: &Value| value.as_array().expect("a list").clone();
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let written = std::fs::read_to_string(&paths[0]).expect("the rules");
    let mut alerts = 0;
    for rule in list(&rules["groups"]).iter().flat_map(|group| list(&group["rules"])) {
        let keys: Vec<&String> = rule.as_object().expect("keys").keys().collect();
        for line in text(&rule["expr"]).lines() {
            assert!(written.contains(&format!("\n          {line}\n")), "{rule}");
        }
        if keys == ["expr", "record"] {
            continue;
        }
        assert_eq!(keys, ["alert", "annotations", "expr", "for", "labels"], "{rule}");
        for name in ["summary", "description", "runbook_url"] {
            assert!(!text(&rule["annotations"][name]).contains('\n'), "{rule}");
        }
        alerts += 1;
    }
    assert_eq!(alerts, written.matches("- alert: ").count());
    assert_eq!(scrape["rule_files"], serde_json::json!(["evenkeel.rules.yml"]));
    assert_eq!(scrape["scrape_configs"][0]["job_name"], "evenkeel");
}
