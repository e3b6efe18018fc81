//! Published figures, and the figures of our runs that are compared with them.
//!
//! A `[[point]]` describes a measurement with the keys of `[[compare]]`, in the article's own time.
//! A run of a hundredth of that time has a hundredth of the credits: its spans are divided by a
//! hundred, and its totals and durations are multiplied by a hundred.

use std::collections::BTreeSet;

use super::comparisons::comparison;
use super::reader::Reader;
use super::tree::{self, Node, Table, Value};
use super::{Scenario, ScenarioError};
use crate::scenario::compare::{By, Comparison, Measure};
use crate::scenario::expect::Subject;
use crate::scenario::program::Program;

/// The spans of a table, in seconds.
const TIMES: [&str; 3] = ["from_s", "to_s", "at_s"];

type Read<T> = Result<T, ScenarioError>;

/// A published figure and its counterpart in our runs.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// Its name in results, in docs/experiments/ and in failures.
    pub id: String,
    /// Description of the measurement.
    pub what: String,
    /// The article's figure, in words.
    pub published: String,
    /// An error of the article, or the reason why our figure is measured in another way.
    pub note: String,
    /// Whether a run fails if the figure is out of bounds; otherwise it is only shown.
    pub is_gate: bool,
    /// Whether a live run fails, too; not if the figure needs more than a small machine has.
    pub is_live_gate: bool,
    /// Whether only a kernel can produce it, with its page cache and the flushes of its file
    /// system. Neither exists in virtual time, nor live without a file system.
    pub is_live_only: bool,
    /// Names of the clients whose programs are bound by the processor as much as by their volume.
    pub bound_by_client: Vec<String>,
    /// The comparison in the runs of a scenario; `None` if no run is of that case.
    pub comparison: Option<Comparison>,
}

/// Reads the `[[point]]` tables of a text, for the runs of a scenario. Each second of the scenario
/// stands for `times` seconds of the article. Other keys of the text are ignored.
///
/// # Errors
/// Returns an error with file and line if a point is invalid.
pub fn points(file: &str, text: &str, scenario: &mut Scenario, times: u32) -> Read<Vec<Point>> {
    let document = tree::parse(file, text)?;
    let Some(Node { value: Value::List(items), .. }) = document.get("point") else {
        return Err(ScenarioError::new(file, 1, "no [[point]]: nothing to compare with"));
    };
    let mut points = Vec::with_capacity(items.len());
    for item in items {
        let Value::Table(table) = &item.value else {
            return Err(ScenarioError::new(file, item.line, "point must be a [[point]] table"));
        };
        let table = compressed(table, times);
        points.push(point(Reader::new(file, "[[point]]", item.line, &table), scenario, times)?);
    }
    let mut ids: Vec<&str> = points.iter().map(|point| point.id.as_str()).collect();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        None => Ok(points),
        Some(pair) => {
            let message = format!("two points are called \"{}\"", pair[0]);
            Err(ScenarioError::new(file, 1, message))
        }
    }
}

fn point(reader: Reader<'_>, scenario: &mut Scenario, times: u32) -> Read<Point> {
    let text = |key, why: &str| reader.need(key, reader.text(key)?, why).map(str::to_owned);
    let id = text("id", "what it is called")?;
    let what = text("what", "what was measured")?;
    let published = text("published", "what the article says")?;
    let note = reader.text("note")?.unwrap_or_default().to_owned();
    let is_gate = !reader.flag("report")?;
    let is_live_gate = is_gate && !reader.flag("live_report")?;
    let comparison = if has_its_cases(&reader, scenario)? {
        let as_of = scenario.as_of;
        let mut compared = comparison(&reader, &mut scenario.cases, as_of, true)?;
        let multiplied = reader.number("multiplied_by", 0.001..=1e6)?.unwrap_or(1.0);
        compared.times = factor(&compared.by, times) * multiplied;
        Some(compared)
    } else {
        None
    };
    if comparison.is_some() {
        reader.done()?;
    }
    let is_live_only = comparison.as_ref().is_some_and(|compared| {
        matches!(compared.by, By::Mean(metric) | By::Furthest(metric) if metric.is_live_only())
            || !programs_of(compared, scenario, Program::is_live_only).is_empty()
    });
    let bound_by_client = comparison
        .as_ref()
        .map(|compared| programs_of(compared, scenario, Program::is_bound_by_client))
        .unwrap_or_default();
    Ok(Point {
        id,
        what,
        published,
        note,
        is_gate,
        is_live_gate,
        is_live_only,
        bound_by_client,
        comparison,
    })
}

/// Returns the names of the compared clients whose program satisfies `is`.
fn programs_of(compared: &Comparison, scenario: &Scenario, is: fn(Program) -> bool) -> Vec<String> {
    let mut names = BTreeSet::new();
    for measure in compared.measures() {
        let Measure::Of { run, measure } = measure else { continue };
        let case = &scenario.cases[run];
        for subject in &case.measures[measure].of {
            let Subject::Client(client) = subject else { continue };
            let client = &case.setup.clients[*client as usize];
            if client.program.is_some_and(|of| is(of.program)) {
                names.insert(client.name.clone());
            }
        }
    }
    names.into_iter().collect()
}

/// Returns whether the scenario has runs of every case that the point names.
fn has_its_cases(reader: &Reader<'_>, scenario: &Scenario) -> Read<bool> {
    let is_there = |pattern: Option<&str>| {
        let names = scenario.cases.iter().map(|case| &case.name);
        pattern.is_none_or(|pattern| names.clone().any(|name| tree::matches(pattern, name)))
    };
    let other = match reader.table("to")? {
        Some(other) => is_there(other.text("case")?),
        None => true,
    };
    Ok(other && is_there(reader.text("case")?))
}

/// Returns the factor of a shortened run's figure: `times` for sums and durations, 1 for rates,
/// latencies and ratios.
fn factor(by: &By, times: u32) -> f64 {
    match by {
        By::Mean(metric) | By::Furthest(metric) if metric.is_total() => f64::from(times),
        _ => 1.0,
    }
}

/// Returns the table with its times divided by `times`.
fn compressed(table: &Table, times: u32) -> Table {
    let seconds = f64::from(times.max(1));
    let of_node = |(key, node): (&String, &Node)| {
        let value = match &node.value {
            Value::Whole(second) if TIMES.contains(&key.as_str()) => {
                Value::Number(*second as f64 / seconds)
            }
            Value::Number(second) if TIMES.contains(&key.as_str()) => {
                Value::Number(second / seconds)
            }
            Value::Table(inner) => Value::Table(compressed(inner, times)),
            value => value.clone(),
        };
        (key.clone(), Node { line: node.line, value })
    };
    table.iter().map(of_node).collect()
}

#[cfg(test)]
mod tests {
    use super::super::{Source, read};
    use super::*;
    use crate::world::run;

    const SCENARIO: &str = r#"
title = "t"
as_of = "2021-07-31"
duration_s = 20
[[volume]]
name = "disk"
type = "gp2"
size_gib = 100
credits = 27_000
[[client]]
name = "fio"
on = "disk"
depth = 32
"#;

    fn scenario() -> Scenario {
        read(&Source::new("s.toml", SCENARIO)).unwrap()
    }

    fn fault(text: &str) -> String {
        points("p.toml", text, &mut scenario(), 1).unwrap_err().message
    }

    #[test]
    fn a_hundredth_of_the_time_counts_a_hundredfold() {
        let text = r#"
            [[point]]
            id = "1"
            what = "burst"
            published = "1,000 s"
            metric = "falls_below"
            of = "disk"
            iops = 1_000
            equals = 1_000
            within_percent = 2
            [[point]]
            id = "2"
            what = "after it"
            published = "300"
            report = true
            metric = "mean_iops"
            of = "fio"
            from_s = 1_200
            equals = 300
            within_percent = 2
            [[point]]
            id = "3"
            what = "elsewhere"
            published = "-"
            case = "another"
            metric = "mean_iops"
            of = "fio"
            equals = 300
        "#;
        let mut scenario = scenario();
        let points = points("p.toml", text, &mut scenario, 100).unwrap();
        for point in &points {
            scenario.comparisons.extend(point.comparison.clone());
        }
        let results = run::run(&scenario, 1, run::Method::ClosedForm, &mut |_| {}).unwrap();
        assert!(results.pass, "{}", results.to_text());
        assert_eq!(results.comparisons.len(), 2, "the third has no case here");
        let value = results.comparisons[0].value.unwrap();
        assert!((980.0..1_020.0).contains(&value), "{value}");
        assert_eq!((points[0].is_gate, points[1].is_gate), (true, false));
    }

    #[test]
    fn points_of_known_volume_properties_need_no_run() {
        let point = |id: u32, rest: &str| {
            format!("[[point]]\nid = \"{id}\"\nwhat = \"w\"\npublished = \"p\"\n{rest}\n")
        };
        let io1 = "volumes = [{ type = \"io1\", size_gib = 500, iops = 5_000 }]";
        let five = "to = { volumes = [{ type = \"gp3\", size_gib = 100, count = 5 }] }";
        let text = [
            point(1, &format!("metric = \"monthly_usd\"\n{io1}\nequals = 387.5")),
            point(2, &format!("metric = \"monthly_usd\"\n{io1}\n{five}\nequals = 9.6875")),
            point(3, "metric = \"durability_percent\"\nof = \"disk\"\nequals = 99.85"),
            point(4, "metric = \"credits_full\"\nof = \"disk\"\nequals = 5_400_000"),
        ];
        let mut scenario = scenario();
        let points = points("p.toml", &text.concat(), &mut scenario, 100).unwrap();
        for point in &points {
            let checked = point.comparison.as_ref().unwrap().check(&[]);
            assert!(checked.pass, "{}: {checked:?}", point.id);
        }
        assert!(scenario.cases[0].measures.is_empty(), "nothing is measured for it");
        let words = |point: &Point| point.comparison.as_ref().unwrap().bounds.words.clone();
        let words: Vec<String> = points.iter().map(words).collect();
        assert_eq!(words, ["$387.50", "9.688", "99.85 %", "5,400,000 credits"]);
        let wrong = |rest: &str| fault(&point(1, &format!("metric = \"monthly_usd\"\n{rest}")));
        assert!(wrong("equals = 3").contains("of is missing: which volumes of a case"));
        assert!(wrong(&format!("{io1}\nof = \"disk\"")).contains("does not go with case and of"));
        let raw = wrong("volumes = [{ size_gib = 5, iops = 9 }]");
        assert_eq!(raw, "p.toml:6: [[volumes]] type is missing: raw limits have no price");
        let refused = "volumes = [{ type = \"gp3\", size_gib = 500, throughput_mibps = 1_000 }]";
        assert!(wrong(refused).contains("by the rules of 2021-07-20: "), "{}", wrong(refused));
    }

    #[test]
    fn a_figure_may_count_many_times_and_be_of_a_page_cache() {
        let cached = "[[client]]\nname = \"reads\"\non = \"disk\"\nprogram = \"iomelt-read\"\n\
                      program_calls = 9\njob_ios = 9\njob_every_s = 5\n";
        let text = format!("{SCENARIO}{cached}");
        let source = Source { duration_s: Some(10), ..Source::new("s.toml", &text) };
        let mut scenario = read(&source).unwrap();
        let point = |id: u32, metric: &str, of: &str, more: &str| {
            format!(
                "[[point]]\nid = \"{id}\"\nwhat = \"w\"\npublished = \"p\"\n\
                 metric = \"{metric}\"\nof = \"{of}\"\n{more}\n"
            )
        };
        let text = [
            point(1, "mean_ms", "fio", "from_s = 1\nto_s = 9\nmultiplied_by = 100\nequals = 1_067"),
            point(2, "job_mean_iops", "reads", "at_least = 1"),
        ];
        let points = points("p.toml", &text.concat(), &mut scenario, 1).unwrap();
        scenario.comparisons = points.iter().filter_map(|point| point.comparison.clone()).collect();
        let results = run::run(&scenario, 1, run::Method::ClosedForm, &mut |_| {}).unwrap();
        let value = results.comparisons[0].value.unwrap();
        assert!((1_060.0..1_075.0).contains(&value), "{value}: 32 waiting at 3,000 a second");
        assert_eq!(results.comparisons[1].value, None, "virtual time has no page cache");
        assert_eq!(
            points.iter().map(|point| point.is_live_only).collect::<Vec<_>>(),
            [false, true]
        );
    }

    #[test]
    fn mistake_in_a_point_is_named_with_its_line() {
        let good = "[[point]]\nid = \"1\"\nwhat = \"w\"\npublished = \"p\"\nof = \"fio\"\n\
                    metric = \"mean_iops\"\nequals = 3\n";
        assert!(points("p.toml", good, &mut scenario(), 1).is_ok());
        assert_eq!(fault("a = 1"), "p.toml:1: no [[point]]: nothing to compare with");
        assert_eq!(fault(&good.repeat(2)), "p.toml:1: two points are called \"1\"");
        let wrong = format!("{good}equal = 4\n");
        assert_eq!(fault(&wrong), "p.toml:8: [[point]] has no key \"equal\"");
        let wrong = good.replace("what", "why");
        assert_eq!(fault(&wrong), "p.toml:1: [[point]] what is missing: what was measured");
    }
}
