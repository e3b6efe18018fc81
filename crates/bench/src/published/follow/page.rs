//! The result as text and as charts.

use std::fmt::Write as _;
use std::fs;
use std::path::Path;

use super::moments::Moment;
use super::verdict::{Found, Latency, Operation};
use crate::report::standalone;
use evenkeel_lab::LabError;
use evenkeel_lab::files::write;
use evenkeel_pages::curves::{self, Curve, Unit};
use evenkeel_pages::{DrawError, html};
use evenkeel_sim::text;

/// Returns the result as text.
pub fn text(found: &Found) -> String {
    let mut out = String::new();
    let cost = &found.cost;
    let _ =
        writeln!(out, "{}\n", found.environment.heading(&found.measured_at).replace("·  ·", "·"));
    let _ = writeln!(
        out,
        "cost       ${:.2} a month as a mean, ${:.2} at most; {} costs ${:.2}: {:.0} % saved",
        cost.mean, cost.most, cost.static_layout, cost.of_static, cost.saved_percent
    );
    let _ = writeln!(out, "grow       {} from the decision to the room", seconds(&found.grow_s));
    let _ =
        writeln!(out, "shrink     {} from the decision to a volume less", seconds(&found.shrink_s));
    let _ = writeln!(
        out,
        "retune     {} from the decision to the new limits",
        seconds(&found.retune_s)
    );
    let _ = writeln!(out, "writes     {} while data moves", latency(&found.writes_in_moves));
    let _ = writeln!(out, "           {} in the calm phase", latency(&found.writes_in_calm));
    let _ = writeln!(out, "           {} in all without moves", latency(&found.writes_otherwise));
    out.push('\n');
    for check in &found.checks {
        let verdict = if check.is_kept { "kept" } else { "BROKEN" };
        let _ = writeln!(out, "{verdict:<7}{}: {}", check.what, check.found);
    }
    out.push('\n');
    let start_ms = found.moments.first().map_or(0, |first| first.unix_s * 1_000);
    for operation in &found.operations {
        let _ = writeln!(out, "{}", line(operation, start_ms));
    }
    for reason in &found.busy {
        let _ = writeln!(out, "the machine was busy: {reason}");
    }
    out
}

fn line(operation: &Operation, start_ms: u64) -> String {
    let at_s = operation.decided_ms.saturating_sub(start_ms) / 1_000;
    let took = operation.ended_ms.map_or_else(
        || "not ended".to_owned(),
        |end| {
            let took_ms = end.saturating_sub(operation.decided_ms);
            format!("{:.1} s, {}", took_ms as f64 / 1_000.0, operation.end)
        },
    );
    format!("{at_s:>4} s  {} {} ({took})", operation.kind, operation.what)
}

fn seconds(all: &[f64]) -> String {
    let all: Vec<String> = all.iter().map(|seconds| format!("{seconds:.1} s")).collect();
    if all.is_empty() { "none".to_owned() } else { all.join(", ") }
}

fn latency(latency: &Latency) -> String {
    format!(
        "median {:.1} ms, p99 {:.1} ms, maximum {:.0} ms of {}",
        latency.median_ms,
        latency.p99_ms,
        latency.max_ms,
        text::thousands(latency.count as u64)
    )
}

/// Writes each chart into a folder.
pub fn write_charts(folder: &Path, found: &Found) -> Result<(), LabError> {
    fs::create_dir_all(folder).map_err(LabError::path(folder))?;
    let report = report(found).map_err(LabError::Chart)?;
    let names = ["cost", "iops", "space", "writes"];
    for (name, chart) in names.iter().zip(standalone::charts(&report)) {
        write(&folder.join(format!("{}-{name}.svg", super::NAME)), &chart.svg)?;
    }
    Ok(())
}

/// Returns the charts in HTML.
fn report(found: &Found) -> Result<String, DrawError> {
    let column = |value: fn(&Moment) -> u64| -> Vec<f64> {
        found.moments.iter().map(|moment| value(moment) as f64).collect()
    };
    let level = |value: f64| vec![value; found.moments.len()];
    let dollars: Vec<f64> =
        column(|moment| moment.monthly_micro_usd).iter().map(|micro| micro / 1e6).collect();
    let mut page = html::open_page(super::NAME);
    let cost =
        [Curve::new("autopilot", 0, dollars), Curve::new("static", 1, level(found.cost.of_static))];
    let label = "Monthly cost of the volumes in dollars, second by second, beside a static layout";
    let svg = curves::from_zero(label, Unit::Count, &cost, &[], 1.0)?;
    html::figure(&mut page, &svg, label);
    let iops = [
        Curve::new("provisioned", 0, column(|moment| moment.provisioned_iops)),
        Curve::new("I/Os", 1, column(|moment| moment.iops)),
        Curve::new("transactions", 2, column(|moment| moment.transactions)),
    ];
    let label = "IOPS of all volumes, their I/Os and the transactions of each second";
    let svg = curves::from_zero(label, Unit::Count, &iops, &[], 1.0)?;
    html::figure(&mut page, &svg, label);
    let space = [
        Curve::new("provisioned", 0, column(|moment| moment.provisioned_gib << 30)),
        Curve::new("file system", 1, column(|moment| moment.size_bytes)),
        Curve::new("used", 2, column(|moment| moment.used_bytes)),
    ];
    let label = "Size of the volumes and of the file system, and its used bytes";
    let svg = curves::from_zero(label, Unit::Bytes, &space, &[], 1.0)?;
    html::figure(&mut page, &svg, label);
    let ns = |us: f64| us * 1_000.0;
    let latencies = [
        Curve::new(
            "durable, p99",
            0,
            found.writes_p99_us.iter().map(|us| ns(*us as f64)).collect(),
        ),
        Curve::new(
            "transactions",
            1,
            column(|moment| moment.transaction_us).into_iter().map(ns).collect(),
        ),
    ];
    let label = "Durable writes, 99th percentile, and mean time of a transaction";
    let svg = curves::latencies(label, &latencies, 1.0)?;
    html::figure(&mut page, &svg, label);
    html::end_page(&mut page);
    Ok(page)
}
