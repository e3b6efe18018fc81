//! A calibration record as text.

use super::record::Record;
use crate::cores;
use evenkeel_core::convert::{index, saturating};
use evenkeel_core::qos::admission::LinearCost;
use evenkeel_core::time::Duration;
use evenkeel_sim::text::{latency, thousands};
use std::fmt::Write as _;
use std::path::Path;

/// Width of the longest bar of the curve.
const BAR_COLUMNS: u64 = 40;

/// Describes a record that is kept at `path`, if it is kept: its measurements, with a chart of the
/// curve.
pub fn describe(record: &Record, path: Option<&Path>) -> String {
    let Record { id, date, method, store, device, found, .. } = record;
    let mut text = format!("calibration {id} of {date}\n");
    let _ = writeln!(text, "  store     {store}, {} below", device.describe());
    let time = Duration::from_ns(method.time_ns);
    let _ = writeln!(
        text,
        "  method    {}: {time} on {} MiB, --io {}",
        method.plan,
        thousands(method.span_bytes >> 20),
        method.io
    );
    let _ = writeln!(text, "  channels  {}", found.channels);
    for (name, cost) in [("read", found.read), ("write", found.write)] {
        let cost = LinearCost::from(cost);
        let per_second = |length: u32| {
            let ns = saturating::<_, u64>(cost.ns(length)).max(1);
            thousands(u64::from(found.channels) * 1_000_000_000 / ns)
        };
        let _ = writeln!(
            text,
            "  {name:<8}  {} + {}.{:03} ns a byte: at most {} of 16 KiB, {} of 256 KiB a second",
            latency(cost.base.ns),
            cost.byte_ps / 1_000,
            cost.byte_ps % 1_000,
            per_second(16 << 10),
            per_second(256 << 10),
        );
    }
    text.push_str("\n  mixed 16 KiB, half of them writes\n");
    let _ = writeln!(text, "  {:>5} {:>12} {:>10} {:>10}", "DEPTH", "IOPS", "P50", "P99");
    let best = found.curve.iter().map(|point| point.iops).max().unwrap_or(0).max(1);
    for point in &found.curve {
        let bar = "#".repeat(index(point.iops * BAR_COLUMNS / best));
        let _ = writeln!(
            text,
            "  {:>5} {:>12} {:>10} {:>10}  {bar}",
            point.depth,
            thousands(point.iops),
            latency(point.p50_ns),
            latency(point.p99_ns),
        );
    }
    for state in &record.states {
        let lost = state.lost.as_ref().map(|lost| format!(", {lost} lost")).unwrap_or_default();
        let _ = write!(text, "\n{} on {}{lost}: {}", state.state, state.date, state.found.words());
    }
    let _ = writeln!(text, "\n{}", record.words(cores()));
    for reservation in record.reservations() {
        let _ = writeln!(text, "note: {reservation}");
    }
    let _ = match path {
        Some(path) => writeln!(text, "record: {}", path.display()),
        None => writeln!(text, "no record is kept: this is not a data folder"),
    };
    text
}
