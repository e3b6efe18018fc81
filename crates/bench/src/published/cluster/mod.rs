//! `evenkeel-bench cluster`: three nodes on a temporary Ceph cluster and etcd on this machine, and
//! their figures: takeover, moves, throughput and processor time beside librbd itself, the control
//! plane, many volumes.
//!
//! Clients, nodes, etcd and Ceph share the machine's processors. So the figures are ratios of runs
//! in turn, and pauses that are much longer than a scheduling delay.

mod control;
mod many;
mod moves;
mod takeover;
mod throughput;
mod world;
mod writer;

use serde::Serialize;

use super::{Bench, Outcome};
use evenkeel_lab::environment::Environment;
use evenkeel_lab::{LabError, fio};
use evenkeel_os::clock;
use evenkeel_sim::figures::stats;
use evenkeel_sim::text;

use self::world::World;

/// A part of the measurement.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Figure {
    /// The outage when nodes are killed.
    Takeover,
    /// The pause when volumes move under load.
    Moves,
    /// Throughput beside fio on librbd.
    Throughput,
    /// Calls of the API through the leader.
    Control,
    /// The cost of volumes without a client.
    Many,
}

impl Figure {
    /// All figures, in the order of their measurement.
    pub const ALL: [Self; 5] =
        [Self::Takeover, Self::Moves, Self::Throughput, Self::Control, Self::Many];
}

/// The figures to measure, and how often.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Setup {
    /// The figures.
    pub figures: Vec<Figure>,
    /// How long Ceph's monitors collect changes, in milliseconds.
    pub propose_ms: u32,
    /// Whether to measure only a few times, to see that everything works.
    pub quick: bool,
}

impl Setup {
    /// Returns `few` for a quick run, otherwise `all`.
    fn count(&self, all: u32, few: u32) -> u32 {
        if self.quick { few } else { all }
    }
}

/// The bound of a figure.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
enum Aim {
    AtMost(f64),
    AtLeast(f64),
    /// None: it is shown beside another figure.
    None,
}

/// One figure.
#[derive(Clone, PartialEq, Debug, Serialize)]
struct Row {
    figure: String,
    seen: f64,
    unit: &'static str,
    aim: Aim,
    /// How it was measured.
    of: String,
}

impl Row {
    fn new(figure: &str, seen: f64, unit: &'static str, aim: Aim, of: String) -> Self {
        Self { figure: figure.to_owned(), seen, unit, aim, of }
    }

    /// Returns the median and the 99th percentile of times, which both have this aim.
    fn times(figure: &str, times_ms: &[f64], aim: Aim, of: &str) -> [Self; 2] {
        let ascending = stats::sorted(times_ms);
        let longest = ascending.last().copied().unwrap_or_default();
        let text = format!("{} {of}; longest {longest:.0} ms", times_ms.len());
        [50.0, 99.0].map(|percent| {
            let seen = stats::percentile(&ascending, percent).unwrap_or_default();
            Self::new(&format!("{figure}, p{percent}"), seen, "ms", aim, text.clone())
        })
    }

    fn is_met(&self) -> bool {
        match self.aim {
            Aim::AtMost(most) => self.seen <= most,
            Aim::AtLeast(least) => self.seen >= least,
            Aim::None => true,
        }
    }

    fn cells(&self) -> Vec<String> {
        let verdict = match self.aim {
            Aim::None => "",
            _ if self.is_met() => "met",
            _ => "MISSED",
        };
        let aim = match self.aim {
            Aim::AtMost(most) => format!("<= {}", number(most)),
            Aim::AtLeast(least) => format!(">= {}", number(least)),
            Aim::None => "-".to_owned(),
        };
        let [seen, unit] = [number(self.seen), self.unit.to_owned()];
        vec![self.figure.clone(), seen, aim, unit, verdict.to_owned(), self.of.clone()]
    }
}

/// Formats a number with as many decimals as are useful.
fn number(value: f64) -> String {
    match value.abs() {
        size if size >= 100.0 => text::thousands(value.max(0.0).round() as u64),
        size if size >= 10.0 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[derive(Serialize)]
struct Found {
    schema: &'static str,
    measured_at: String,
    environment: Environment,
    /// Warnings that limit what the figures prove.
    warnings: Vec<String>,
    /// Whether the serving program was built with all optimizations.
    is_release: bool,
    propose_ms: u32,
    quick: bool,
    rows: Vec<Row>,
    pass: bool,
}

/// Measures one part after the other, on one cluster.
///
/// # Errors
/// If a program is missing or fails, or a node does not do what it is asked to.
pub fn measure(mut bench: Bench<'_>, setup: &Setup) -> Result<Outcome, LabError> {
    let environment = Environment::read(fio::version()?);
    // Only the load before: later it comes from these runs themselves.
    let warnings = fio::load_warning("before").into_iter().collect();
    let mut rows = Vec::new();
    let mut world = World::start(&mut bench, setup.propose_ms)?;
    for figure in Figure::ALL.into_iter().filter(|figure| setup.figures.contains(figure)) {
        let measured = match figure {
            Figure::Takeover => takeover::measure(&mut world, setup),
            Figure::Moves => moves::measure(&mut world, setup),
            Figure::Throughput => throughput::measure(&mut world, setup),
            Figure::Control => control::measure(&mut world, setup),
            Figure::Many => many::measure(&mut world, setup),
        };
        rows.extend(measured?);
    }
    drop(world);
    let found = Found {
        schema: "evenkeel.cluster/1",
        measured_at: clock::utc_now(),
        environment,
        warnings,
        is_release: !cfg!(debug_assertions),
        propose_ms: setup.propose_ms,
        quick: setup.quick,
        pass: rows.iter().all(Row::is_met),
        rows,
    };
    let why = "a figure of the cluster misses its aim";
    Outcome::new(&found, shown(&found), found.pass, why)
}

fn shown(found: &Found) -> String {
    let mut out = found.environment.heading(&found.measured_at);
    out.push_str(&format!(
        "\nthree nodes, one etcd, one OSD on this machine; monitors collect changes for {} ms",
        found.propose_ms
    ));
    for warning in &found.warnings {
        out.push_str(&format!("\n{warning}"));
    }
    if !found.is_release {
        out.push_str("\nthis program is built without all optimizations: rates are lower");
    }
    out.push_str("\n\n");
    let headline = ["figure", "seen", "aim", "unit", "verdict", "of"].map(str::to_owned).to_vec();
    let lines: Vec<_> = [headline].into_iter().chain(found.rows.iter().map(Row::cells)).collect();
    out.push_str(&text::columns(&lines, &[true, false, false, true, true, true]));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_is_held_to_its_aim() {
        let row = |seen, aim| Row::new("x", seen, "ms", aim, String::new());
        assert!(row(50.0, Aim::AtMost(50.0)).is_met() && !row(50.1, Aim::AtMost(50.0)).is_met());
        assert!(row(0.95, Aim::AtLeast(0.95)).is_met() && !row(0.9, Aim::AtLeast(0.95)).is_met());
        assert!(row(1e9, Aim::None).is_met());
        let cells = row(1_234.4, Aim::AtMost(300.0)).cells();
        assert_eq!(cells[..5], ["x", "1,234", "<= 300", "ms", "MISSED"]);
    }

    #[test]
    fn times_are_reported_by_median_p99_and_longest() {
        let times: Vec<f64> = (0..=100).map(f64::from).rev().collect();
        let [p50, p99] = Row::times("pause", &times, Aim::AtMost(60.0), "moves");
        assert_eq!((p50.seen, p99.seen), (50.0, 99.0));
        assert!(p50.is_met() && !p99.is_met());
        assert_eq!(
            (p99.figure.as_str(), p99.of.as_str()),
            ("pause, p99", "101 moves; longest 100 ms")
        );
    }
}
