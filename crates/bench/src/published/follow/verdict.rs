//! The figures of a run, and its checks.

use serde::Serialize;

use super::load::Write;
use super::moments::{Moment, Moments};
use evenkeel_core::price::PriceList;
use evenkeel_core::volume::{VolumeSpec, VolumeType};
use evenkeel_lab::checker::Outcome;
use evenkeel_lab::environment::Environment;
use evenkeel_os::clock;

/// The version of the result.
const SCHEMA: &str = "evenkeel.follow/1";
/// The static layout has this percentage of the peak.
const STATIC_PERCENT: u64 = 120;
/// Volumes of the static layout.
const STATIC_VOLUMES: u64 = 2;
/// The delay that a move may add to durable writes at the 99th percentile, in milliseconds. The
/// load itself delays them: it shares the limits of the volumes with them.
const ADDED_P99_MS_MAX: f64 = 20.0;
/// The phase that has the same load as the moves.
const CALM: &str = "calm";
/// Durable writes after the end of a move that still belong to it, in milliseconds.
const AFTER_MS: u64 = 1_000;

/// The observations of a run.
pub struct Observed {
    pub moments: Moments,
    pub operations: Vec<Operation>,
    pub writes: Vec<Write>,
    /// Errors of the load.
    pub failures: Vec<String>,
    /// Why slow figures may be the machine's fault.
    pub busy: Vec<String>,
    pub checks: Vec<Check>,
}

/// An operation of the agent.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Operation {
    /// Its id.
    pub id: String,
    /// Its kind: add, modify, remove, replace or delete.
    pub kind: String,
    /// Its volume and values, and its reason.
    pub what: String,
    /// When it was decided, in milliseconds since 1970.
    pub decided_ms: u64,
    /// When it ended; `None` if it did not.
    pub ended_ms: Option<u64>,
    /// How it ended.
    pub end: String,
}

/// A check at the end.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    /// The expected value.
    pub what: String,
    /// The measured value.
    pub found: String,
    /// Whether it is so.
    pub is_kept: bool,
}

/// Latencies of durable writes.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize)]
pub struct Latency {
    /// The writes.
    pub count: usize,
    /// The median in milliseconds.
    pub median_ms: f64,
    /// The 99th percentile.
    pub p99_ms: f64,
    /// The maximum.
    pub max_ms: f64,
}

/// The costs, in dollars a month.
#[derive(Clone, PartialEq, Debug, Default, Serialize)]
pub struct Cost {
    /// Of all seconds, as a mean.
    pub mean: f64,
    /// Of the most expensive second.
    pub most: f64,
    /// Of the static layout.
    pub of_static: f64,
    /// Its description.
    pub static_layout: String,
    /// The saving beside it, in percent.
    pub saved_percent: f64,
}

/// The result.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Found {
    schema: &'static str,
    /// When it was measured.
    pub measured_at: String,
    /// The machine.
    pub environment: Environment,
    /// The database and the file system.
    pub described: Vec<String>,
    /// Why slow figures may be the machine's fault.
    pub busy: Vec<String>,
    /// The costs.
    pub cost: Cost,
    /// Seconds from a decision to a further volume in the file system.
    pub grow_s: Vec<f64>,
    /// Seconds from a decision to a volume that has left it.
    pub shrink_s: Vec<f64>,
    /// Seconds from a decision to other limits.
    pub retune_s: Vec<f64>,
    /// Durable writes while data moves.
    pub writes_in_moves: Latency,
    /// Those of the first phase, whose load is the same, without moves.
    pub writes_in_calm: Latency,
    /// Those of all seconds without moves.
    pub writes_otherwise: Latency,
    /// The checks.
    pub checks: Vec<Check>,
    /// The verdict.
    pub verdict: Outcome,
    /// The operations of the agent.
    pub operations: Vec<Operation>,
    /// The 99th percentile of durable writes in each second, in microseconds; 0 without one.
    pub writes_p99_us: Vec<u64>,
    /// The seconds.
    pub moments: Vec<Moment>,
}

/// Returns the operations that the lines of an agent show, each with the time at which it was read.
pub fn operations(lines: &[(u64, String)]) -> Vec<Operation> {
    let mut operations: Vec<Operation> = Vec::new();
    for (time_ms, line) in lines {
        // The time and the mount point come first.
        let Some(text) = line.splitn(3, ' ').nth(2) else { continue };
        if let Some((decision, rest)) = text.split_once(" begins to ") {
            let kind = rest.split(' ').next().unwrap_or_default();
            operations.push(Operation {
                id: decision.to_owned(),
                kind: kind.to_owned(),
                what: rest.strip_prefix(kind).unwrap_or_default().trim().to_owned(),
                decided_ms: *time_ms,
                ended_ms: None,
                end: String::new(),
            });
            continue;
        }
        let Some((id, step)) = text.split_once(": ") else { continue };
        let is_end = step == "done" || step.starts_with("failed") || step.starts_with("cancelled");
        let is_own = |operation: &&mut Operation| {
            operation.ended_ms.is_none()
                && id.strip_prefix(operation.id.as_str()).is_some_and(|rest| {
                    rest.is_empty() || rest.starts_with('.') || rest.starts_with('-')
                })
        };
        if let Some(operation) = operations.iter_mut().find(is_own).filter(|_| is_end) {
            step.clone_into(&mut operation.end);
            // A cancelled operation has steps left that take it back.
            operation.ended_ms = Some(*time_ms);
        }
    }
    operations
}

impl Operation {
    fn is_done(&self) -> bool {
        self.end == "done"
    }

    fn moves_data(&self) -> bool {
        matches!(self.kind.as_str(), "remove" | "replace")
    }

    /// Returns whether a time is within it.
    fn has(&self, time_ms: u64) -> bool {
        let end_ms = self.ended_ms.unwrap_or(u64::MAX).saturating_add(AFTER_MS);
        (self.decided_ms..=end_ms).contains(&time_ms)
    }
}

impl Found {
    /// Judges what was seen.
    pub fn of(observed: Observed, described: Vec<String>) -> Self {
        let Observed { moments, operations, writes, failures, busy, checks } = observed;
        let is_in_move = |write: &&Write| {
            let mut moves = operations.iter().filter(|operation| operation.moves_data());
            moves.any(|operation| operation.has(write.end_ms))
        };
        let took = |writes: Vec<&Write>| latency(writes.into_iter().map(|write| write.took_us));
        let (inside, outside): (Vec<&Write>, Vec<&Write>) = writes.iter().partition(is_in_move);
        let calm = moments.0.iter().filter(|moment| moment.phase == CALM);
        let calm_s = calm.map(|moment| moment.unix_s).max().unwrap_or(0);
        let calm = outside.iter().filter(|write| write.end_ms / 1_000 <= calm_s);
        let writes_in_calm = took(calm.copied().collect());
        let writes_in_moves = took(inside);
        let writes_otherwise = took(outside);
        let seconds = |kind: &str| {
            let ended =
                operations.iter().filter(|operation| operation.kind == kind && operation.is_done());
            let times =
                ended.filter_map(|operation| operation.ended_ms?.checked_sub(operation.decided_ms));
            times.map(|ms| ms as f64 / 1_000.0).collect::<Vec<f64>>()
        };
        let cost = cost(&moments);
        let mut checks = checks;
        checks.extend(made_checks(&moments, &operations, &failures, &cost));
        let slow = Check {
            what: format!("moves add at most {ADDED_P99_MS_MAX} ms to durable writes at p99"),
            found: format!(
                "{:.1} ms, and {:.1} ms without",
                writes_in_moves.p99_ms, writes_in_calm.p99_ms
            ),
            is_kept: writes_in_moves.p99_ms <= writes_in_calm.p99_ms + ADDED_P99_MS_MAX,
        };
        let is_slow = !slow.is_kept;
        let verdict = match (checks.iter().all(|check| check.is_kept), is_slow, busy.is_empty()) {
            (false, ..) | (true, true, true) => Outcome::Broken,
            (true, true, false) => Outcome::Undecided,
            (true, false, _) => Outcome::Kept,
        };
        checks.push(slow);
        Self {
            schema: SCHEMA,
            measured_at: clock::utc_now(),
            environment: Environment::read(String::new()),
            described,
            busy,
            cost,
            grow_s: seconds("add"),
            shrink_s: [seconds("remove"), seconds("replace")].concat(),
            retune_s: seconds("modify"),
            writes_in_moves,
            writes_in_calm,
            writes_otherwise,
            checks,
            verdict,
            operations,
            writes_p99_us: by_second(&moments, &writes),
            moments: moments.0,
        }
    }
}

/// Returns the checks of the seconds and the operations.
fn made_checks(
    moments: &Moments,
    operations: &[Operation],
    failures: &[String],
    cost: &Cost,
) -> Vec<Check> {
    let gib = |bytes: u64| format!("{:.2} GiB", bytes as f64 / f64::from(1 << 30));
    let first = moments.0.first().cloned().unwrap_or_default();
    let last = moments.0.last().cloned().unwrap_or_default();
    let check =
        |what: &str, found: String, is_kept: bool| Check { what: what.to_owned(), found, is_kept };
    let free = moments.least(|moment| moment.free_bytes);
    let is_full = free == 0 || failures.iter().any(|text| text.contains("No space left"));
    let size = moments.most(|moment| moment.size_bytes);
    let used = moments.most(|moment| moment.used_bytes);
    let iops = moments.most(|moment| moment.provisioned_iops);
    let failed: Vec<&str> = operations
        .iter()
        .filter(|operation| operation.end.starts_with("failed"))
        .map(|operation| operation.end.as_str())
        .collect();
    vec![
        check("no error of the load", failures.join("; "), failures.is_empty()),
        check("never full", format!("{} free at least", gib(free)), !is_full),
        check(
            "the data doubles",
            format!("{} to {}", gib(first.used_bytes), gib(used)),
            used >= first.used_bytes.saturating_mul(17) / 10,
        ),
        check(
            "the file system grows",
            format!("{} to {}", gib(first.size_bytes), gib(size)),
            size > first.size_bytes,
        ),
        check(
            "the file system shrinks",
            format!("{} to {}", gib(size), gib(last.size_bytes)),
            last.size_bytes < size,
        ),
        check(
            "IOPS rise",
            format!("{} to {iops}", first.provisioned_iops),
            iops > first.provisioned_iops,
        ),
        check(
            "IOPS fall",
            format!("{iops} to {}", last.provisioned_iops),
            last.provisioned_iops < iops,
        ),
        check("no operation fails", failed.join("; "), failed.is_empty()),
        check(
            "it costs less than the static layout",
            format!("${:.2} of ${:.2} a month", cost.mean, cost.of_static),
            cost.mean < cost.of_static,
        ),
    ]
}

/// Returns the costs. The static layout has all volumes from the start: together 1.2 times the most
/// that was used, and each 1.2 times the most I/Os that a volume did in a second, since the busy
/// part of the data can be on any of them.
fn cost(moments: &Moments) -> Cost {
    let beyond = |value: u64| value.saturating_mul(STATIC_PERCENT) / 100;
    let bytes = beyond(moments.most(|moment| moment.used_bytes));
    let gib = bytes.div_ceil(1 << 30).div_ceil(STATIC_VOLUMES).max(4);
    let iops = beyond(moments.most(|moment| moment.iops_busiest)).max(100);
    let narrow = |value: u64| u32::try_from(value).expect("invariant: volumes of a few GiB");
    let spec = VolumeSpec {
        volume_type: VolumeType::Io2,
        size_gib: narrow(gib),
        iops: Some(narrow(iops)),
        throughput_mibps: None,
        multi_attach: false,
    };
    let of_one = PriceList::newest().monthly_micro_usd(&spec).unwrap_or(0);
    let dollars = |micro: u64| micro as f64 / 1e6;
    let mean = dollars(moments.mean(|moment| moment.monthly_micro_usd));
    let of_static = dollars(of_one.saturating_mul(STATIC_VOLUMES));
    Cost {
        mean,
        most: dollars(moments.most(|moment| moment.monthly_micro_usd)),
        of_static,
        static_layout: format!("{STATIC_VOLUMES} x io2, {gib} GiB, {iops} IOPS"),
        saved_percent: if of_static > 0.0 { (1.0 - mean / of_static) * 100.0 } else { 0.0 },
    }
}

fn latency(took_us: impl Iterator<Item = u64>) -> Latency {
    let mut sorted: Vec<u64> = took_us.collect();
    sorted.sort_unstable();
    let ms = |us: u64| us as f64 / 1_000.0;
    Latency {
        count: sorted.len(),
        median_ms: ms(quantile(&sorted, 500)),
        p99_ms: ms(quantile(&sorted, 990)),
        max_ms: ms(sorted.last().copied().unwrap_or(0)),
    }
}

/// Returns the value of a sorted list that these thousandths do not exceed; 0 without any.
fn quantile(sorted: &[u64], permille: usize) -> u64 {
    let rank = (sorted.len() * permille).div_ceil(1_000).max(1);
    sorted.get(rank - 1).copied().unwrap_or(0)
}

fn by_second(moments: &Moments, writes: &[Write]) -> Vec<u64> {
    let of_moment = |moment: &Moment| {
        let own = writes.iter().filter(|write| write.end_ms / 1_000 + 1 == moment.unix_s);
        let mut sorted: Vec<u64> = own.map(|write| write.took_us).collect();
        sorted.sort_unstable();
        quantile(&sorted, 990)
    };
    moments.0.iter().map(of_moment).collect()
}

#[cfg(test)]
mod tests;
