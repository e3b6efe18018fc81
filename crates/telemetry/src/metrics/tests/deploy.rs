//! Tests that the rules and the dashboard in `deploy/` use only metrics that `/metrics` has. Each
//! alert has its runbook, and each runbook its alert.

use super::names::names;
use super::*;
use evenkeel_core::limits::CONNECTIONS_PER_VOLUME_MAX;

const RULES: &str = include_str!("../../../../../deploy/prometheus/evenkeel.rules.yml");
const SCRAPE: &str = include_str!("../../../../../deploy/prometheus/prometheus.yml");
const DASHBOARD: &str = include_str!("../../../../../deploy/grafana/evenkeel.json");
const RUNBOOKS: &str = include_str!("../../../../../docs/reference/alerts.md");
const MANIFEST: &str = include_str!("../../../../../Cargo.toml");

/// Functions of a counter over a range.
const OF_COUNTERS: [&str; 3] = ["increase", "rate", "resets"];
/// Functions of a gauge over a range.
const OF_GAUGES: [&str; 4] = ["changes", "min_over_time", "predict_linear", "sum_over_time"];

/// Labels that Prometheus adds to each sample.
const TARGET_LABELS: [&str; 2] = ["instance", "job"];

/// The known values of each label of each metric.
type Known = BTreeMap<String, BTreeMap<String, BTreeSet<String>>>;

/// Returns all metrics and labels that an answer can have, and those that Prometheus adds.
fn known() -> Known {
    let mut snapshot = snapshot();
    let latencies = snapshot.volumes[0].latencies.as_mut().expect("it is used");
    for latency in [&mut latencies.reads, &mut latencies.writes] {
        for histogram in [&mut latency.total, &mut latency.device, &mut latency.waits] {
            histogram.record(Duration::from_us(1));
        }
    }
    let states = ["creating", "available", "in-use", "deleting", "error"];
    snapshot.states = states.map(|state| (state, 1)).into();
    snapshot.volume_snapshots = ["pending", "completed", "error"].map(|state| (state, 1)).into();
    let text = snapshot.encoded();
    let mut known = Known::new();
    let own = ["up", "scrape_duration_seconds"].map(|name| format!("{name}{{job=\"{}\"}}", job()));
    for series in Read::of(&text).samples.keys().chain(&own) {
        let selectors = names(series).selectors;
        let [selector] = selectors.as_slice() else { panic!("{series}") };
        let labels = known.entry(selector.name.clone()).or_default();
        for (label, value) in &selector.matchers {
            labels.entry(label.clone()).or_default().insert(value.clone());
        }
        for label in TARGET_LABELS {
            labels.entry(label.to_owned()).or_default();
        }
    }
    known
}

/// Returns the name of the job in the sample configuration.
fn job() -> &'static str {
    SCRAPE.lines().find_map(|line| line.trim().strip_prefix("- job_name: ")).expect("a job")
}

/// Returns the errors of an expression.
fn faults(text: &str, known: &Known) -> Vec<String> {
    let query = names(text);
    let mut faults = Vec::new();
    let mut all = BTreeSet::new();
    for selector in &query.selectors {
        let name = &selector.name;
        let Some(labels) = known.get(name) else {
            faults.push(format!("no metric {name}"));
            continue;
        };
        all.extend(labels.keys());
        let is_counter = ["_total", "_bucket", "_sum", "_count"].iter().any(|s| name.ends_with(s));
        let wrong = if is_counter { OF_GAUGES.as_slice() } else { OF_COUNTERS.as_slice() };
        if let Some(function) = selector.function.as_deref().filter(|name| wrong.contains(name)) {
            faults.push(format!("{function} of {name}"));
        }
        for (label, value) in &selector.matchers {
            match labels.get(label) {
                None => faults.push(format!("{name} has no label {label}")),
                Some(values) => {
                    let are_unknown = value.split('|').any(|value| !values.contains(value));
                    if !value.starts_with('$') && are_unknown {
                        faults.push(format!("{name}: {label} is never {value}"));
                    }
                }
            }
        }
    }
    let unknown = query.listed.iter().filter(|label| !all.contains(label));
    faults.extend(unknown.map(|label| format!("no metric here has a label {label}")));
    faults
}

/// Returns the labels of an expression's result.
fn labels_of_result(text: &str, known: &Known) -> BTreeSet<String> {
    let query = names(text);
    let first = &query.selectors[0];
    // The result of `absent` has the labels of its selector.
    if text.starts_with("absent(") {
        return first.matchers.iter().map(|(label, _)| label.clone()).collect();
    }
    query.grouped.unwrap_or_else(|| known[&first.name].keys().cloned().collect())
}

/// Returns the labels that a text in Go's or Grafana's templates names.
fn named(text: &str, before: &str) -> Vec<String> {
    let after = text.split(before).skip(1);
    let is_in_word = |c: &char| c.is_ascii_lowercase() || *c == '_';
    after.map(|rest| rest.chars().take_while(is_in_word).collect()).collect()
}

/// One rule of the file.
#[derive(Debug, Default)]
struct Rule {
    name: String,
    is_alert: bool,
    expression: String,
    hold: String,
    severity: String,
    annotations: BTreeMap<String, String>,
}

/// Reads the YAML of the rules: each key on a line, with the expression as a literal block. A test
/// in `tests/metrics.rs` compares this with the result of a full parser.
fn rules() -> Vec<Rule> {
    let mut rules: Vec<Rule> = Vec::new();
    let mut in_expression = false;
    for line in RULES.lines() {
        let word = line.trim_start();
        in_expression &= line.starts_with("          ");
        if in_expression {
            let expression = &mut rules.last_mut().expect("a rule").expression;
            expression.push_str(&line[10..]);
            expression.push('\n');
            continue;
        }
        let Some((key, value)) = word.split_once(':') else { continue };
        let value = value.trim_start();
        if let "- alert" | "- record" = key {
            let name = value.to_owned();
            let is_alert = key == "- alert";
            rules.push(Rule { name, is_alert, ..Rule::default() });
        }
        let Some(rule) = rules.last_mut() else { continue };
        match key {
            "expr" => in_expression = true,
            "for" => value.clone_into(&mut rule.hold),
            "severity" => value.clone_into(&mut rule.severity),
            "summary" | "description" | "runbook_url" => {
                let text = serde_json::from_str(value).expect("a quoted text");
                rule.annotations.insert(key.to_owned(), text);
            }
            _ => {}
        }
    }
    rules
}

/// Returns the known metrics, and those that the rules record.
fn known_with_records() -> Known {
    let mut known = known();
    for rule in rules().iter().filter(|rule| !rule.is_alert) {
        let labels = labels_of_result(&rule.expression, &known);
        let labels = labels.into_iter().map(|label| (label, BTreeSet::new()));
        known.insert(rule.name.clone(), labels.collect());
    }
    known
}

#[test]
fn alerts_query_only_reported_metrics() {
    let known = known_with_records();
    let mut names = BTreeSet::new();
    for rule in rules() {
        let Rule { name, expression, .. } = &rule;
        assert_eq!(faults(expression, &known), [""; 0], "{name}");
        assert!(names.insert(name.clone()), "{name} is there twice");
        if !rule.is_alert {
            continue;
        }
        assert!(["critical", "warning", "info"].contains(&rule.severity.as_str()), "{name}");
        let keys: Vec<&str> = rule.annotations.keys().map(String::as_str).collect();
        assert_eq!(keys, ["description", "runbook_url", "summary"], "{name}");
        let labels = labels_of_result(expression, &known);
        for label in rule.annotations.values().flat_map(|text| named(text, "$labels.")) {
            assert!(labels.contains(&label), "{name}: {label} is not in {labels:?}");
        }
    }
    assert!(names.len() > 25, "{names:?}");
}

#[test]
fn panels_query_only_reported_metrics() {
    let known = known_with_records();
    let dashboard: serde_json::Value = serde_json::from_str(DASHBOARD).expect("JSON");
    let list = |value: &serde_json::Value| value.as_array().expect("a list").clone();
    let text = |value: &serde_json::Value| value.as_str().expect("a text").to_owned();
    let variables = list(&dashboard["templating"]["list"]);
    let mut defined: BTreeSet<String> =
        variables.iter().map(|variable| text(&variable["name"])).collect();
    defined.extend(["__rate_interval".to_owned(), "__range".to_owned()]);
    for variable in variables.iter().filter(|variable| variable["type"] == "query") {
        let query = text(&variable["query"]["query"]);
        let inner = query.strip_prefix("label_values(").and_then(|it| it.strip_suffix(')'));
        let (selector, label) =
            inner.and_then(|inner| inner.rsplit_once(", ")).expect("two arguments");
        assert_eq!(faults(selector, &known), [""; 0], "{query}");
        assert!(labels_of_result(selector, &known).contains(label), "{query}");
    }
    let mut ids = BTreeSet::new();
    let mut queries = 0;
    for panel in list(&dashboard["panels"]) {
        assert!(ids.insert(panel["id"].as_u64()), "{panel}");
        for target in panel["targets"].as_array().into_iter().flatten() {
            let query = text(&target["expr"]);
            let legend = text(&target["legendFormat"]);
            assert_eq!(faults(&query, &known), [""; 0], "{}", panel["title"]);
            let labels = labels_of_result(&query, &known);
            for label in named(&legend, "{{") {
                assert!(labels.contains(&label), "{legend}: {label} is not in {labels:?}");
            }
            for variable in named(&query, "$") {
                assert!(defined.contains(&variable), "{query}: {variable} is not defined");
            }
            queries += 1;
        }
    }
    assert!(queries > 40, "{queries}");
}

/// Returns the sections of the runbooks: heading, expression, and the line of severity and time.
fn runbooks() -> Vec<(String, String, String)> {
    let sections = RUNBOOKS.split("\n### ").skip(1);
    let runbook = |section: &str| {
        let (heading, text) = section.split_once("\n\n```promql\n").expect("an expression");
        let (expression, text) = text.split_once("```\n\n").expect("its end");
        let severity = text.lines().next().expect("a severity");
        (heading.to_owned(), expression.to_owned(), severity.to_owned())
    };
    sections.map(runbook).collect()
}

#[test]
fn each_alert_has_its_runbook_and_each_runbook_its_alert() {
    let home = MANIFEST.lines().find_map(|line| line.strip_prefix("repository = "));
    let home = home.expect("a home").trim_matches('"');
    let alerts: Vec<Rule> = rules().into_iter().filter(|rule| rule.is_alert).collect();
    let written: Vec<_> = alerts
        .iter()
        .map(|rule| {
            let severity = format!("- Severity `{}`, after `{}`.", rule.severity, rule.hold);
            (rule.name.clone(), rule.expression.clone(), severity)
        })
        .collect();
    assert_eq!(runbooks(), written);
    for rule in &alerts {
        let page = format!("{home}/docs/reference/alerts.md#{}", rule.name.to_lowercase());
        assert_eq!(rule.annotations["runbook_url"], page);
    }
}

/// A threshold that repeats a limit of the server must be equal to it.
#[test]
fn alert_of_connections_repeats_the_bound_of_the_server() {
    let rules = rules();
    let rule = rules.iter().find(|rule| rule.name == "EvenkeelConnectionsNearBound");
    let threshold = format!("> {}", CONNECTIONS_PER_VOLUME_MAX * 4 / 5);
    let expression = &rule.expect("it is there").expression;
    assert!(expression.trim_end().ends_with(&threshold), "{threshold}");
}

#[test]
fn queries_of_unknown_metrics_and_labels_are_found() {
    let known = known_with_records();
    for (text, fault) in [
        ("rate(evenkeel_read_opps_total[5m])", "no metric evenkeel_read_opps_total"),
        ("evenkeel_io_latency_seconds", "no metric evenkeel_io_latency_seconds"),
        ("evenkeel_volumes{status=\"error\"}", "evenkeel_volumes has no label status"),
        ("evenkeel_volumes{state=\"broken\"}", "evenkeel_volumes: state is never broken"),
        ("evenkeel_volumes{state=~\"error|lost\"}", "evenkeel_volumes: state is never error|lost"),
        ("sum by (volume) (evenkeel_connections)", "no metric here has a label volume"),
        ("rate(evenkeel_queue_length[5m])", "rate of evenkeel_queue_length"),
        ("changes(evenkeel_flushes_total[5m])", "changes of evenkeel_flushes_total"),
        ("up{job=\"other\"}", "up: job is never other"),
        (
            "evenkeel:contract_seconds:increase5m{volume_id=\"\"}",
            "evenkeel:contract_seconds:increase5m has no label volume_id",
        ),
    ] {
        assert_eq!(faults(text, &known), [fault], "{text}");
    }
    let grouped = "sum by (job) (rate(evenkeel_flushes_total[5m]))";
    assert_eq!(labels_of_result(grouped, &known), BTreeSet::from(["job".to_owned()]));
    assert_eq!(named("{{ $labels.a_b }} {{ $labels.c }}", "$labels."), ["a_b", "c"]);
}
