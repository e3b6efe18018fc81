//! The promise as code: what was provisioned and what was counted go in, a verdict in words comes
//! out.
//!
//! It is deliberately a second, independent statement of what "provisioned IOPS" means: it knows
//! the rates and credits that were promised and nothing of how the scheduler keeps them. All
//! arithmetic that decides is in integers; floating point is used for printing, and for the one
//! figure that is defined by a root.
//!
//! What is checked, for a volume that is kept backlogged (line numbers of the specification):
//!
//! 1. **Ceiling** (line 1): the first second, every later second, their mean, and *every* window of
//!    any length: at most rate x (length + tolerance) and one I/O.
//! 2. **Floor** (line 2): every second, and their mean.
//! 3. **Credits** (line 4): how many I/Os the credits paid for, hence when the burst ended, and the
//!    seconds before and after that end, each against the rate of its phase.
//!
//! A dimension that does not bind (bytes, for small blocks) is checked for its ceiling alone.

mod bands;
mod phases;
mod promise;

use serde::{Deserialize, Serialize};

pub use bands::Bands;
pub use promise::{CreditPlan, Dimension, Promise, Rate};

use self::phases::{Phase, phases};
use self::promise::Load;
use crate::LabError;
use crate::series::{Series, Spread};
use crate::text::{self, thousands};
use crate::workload::Workload;

/// Fewer full seconds than this say nothing about a steady rate.
const SECONDS_MIN: usize = 3;

/// Width of the short windows of [`Bands::short_window_excess_ppm`].
const SHORT_WINDOW_MS: usize = 10;

/// One question put to the measurement.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Check {
    /// What was asked.
    pub name: String,
    /// What was promised, with its tolerance.
    pub expected: String,
    /// What was measured.
    pub measured: String,
    /// Whether the promise was kept.
    pub pass: bool,
}

/// All answers for one volume.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// Whether every check passed.
    pub pass: bool,
    /// The checks, in the order of the specification.
    pub checks: Vec<Check>,
    /// The figures of the summary table.
    pub summary: Summary,
}

/// The few figures that stand for a run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    /// One for each rate that was promised in turn: usually one; two when the credits ended on the
    /// way.
    pub phases: Vec<PhaseSummary>,
    /// Client I/Os per second that the binding limit allows: the provisioned rate, or the burst
    /// rate.
    pub limit_iops: Option<f64>,
    /// Client I/Os per second that remain without credits, for a type that has them.
    pub baseline_iops: Option<f64>,
    /// When the credits ended, in seconds from the start.
    pub burst_end_s: Option<f64>,
    /// Client I/Os per second promised for each full second; `None` where credits may end within
    /// it, and everywhere when nothing limits.
    pub expected_iops: Vec<Option<f64>>,
}

/// The figures of the seconds that share one promised rate; the first second is not among them.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PhaseSummary {
    /// Client I/Os per second; `None` when nothing limits.
    pub promised_iops: Option<f64>,
    /// Mean of the full seconds.
    pub measured_iops: f64,
    /// The second that deviates most.
    pub worst_second: Option<WorstSecond>,
    /// Coefficient of variation of the full seconds.
    pub cov: f64,
}

/// The second that deviates most from what was promised for it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct WorstSecond {
    /// Its number; the run begins with second 0.
    pub second: u64,
    /// I/Os that completed in it.
    pub ios: u64,
    /// Deviation from the promised rate: `-0.01` is one percent too few.
    pub deviation: f64,
}

/// Judges one run of one backlogged volume.
///
/// # Errors
/// [`LabError::Unjudgeable`] when the workload or the promise do not allow a verdict.
pub fn check(
    promise: &Promise,
    workload: &Workload,
    series: &Series,
    io_error: Option<&str>,
    bands: &Bands,
) -> Result<Verdict, LabError> {
    let loads = promise.loads(workload)?;
    let seconds = series.per_second();
    let mut checks = Vec::new();
    let mut summary = Summary::default();
    checks.push(Check {
        name: "I/O errors".to_string(),
        expected: "none".to_string(),
        measured: io_error.unwrap_or("none").to_string(),
        pass: io_error.is_none(),
    });
    if loads.is_empty() {
        let spread = spread(seconds.get(1..).unwrap_or_default());
        let (measured_iops, cov) = (spread.mean, spread.cov);
        summary.phases.push(PhaseSummary { measured_iops, cov, ..PhaseSummary::default() });
        summary.expected_iops = vec![None; seconds.len()];
    } else if seconds.len() < SECONDS_MIN {
        let count = seconds.len();
        let why = format!("{count} full seconds were measured; run for at least {SECONDS_MIN} s");
        return Err(LabError::Unjudgeable(why));
    }
    for (index, load) in loads.iter().enumerate() {
        // The first is the one that binds.
        if index == 0 {
            let judge = Judge { load, bands, seconds: &seconds, series };
            summary = judge.rates(&mut checks)?;
        }
        checks.push(every_window(load, bands, series));
    }
    let pass = checks.iter().all(|check| check.pass);
    Ok(Verdict { pass, checks, summary })
}

/// Judges the sum of several volumes that were driven at once, after the first second: together
/// they get what was promised to each, within the band of the mean. `promised` is the sum in client
/// I/Os per second.
#[must_use]
pub fn check_sum(promised: u64, series: &[&Series], bands: &Bands) -> Check {
    let seconds = series.iter().map(|series| series.per_second().len()).min().unwrap_or(0);
    let count = |series: &&Series| series.per_second().iter().take(seconds).skip(1).sum::<u64>();
    let total: u64 = series.iter().map(count).sum();
    let measured_s = u64::try_from(seconds.saturating_sub(1)).unwrap_or(u64::MAX);
    let due = promised.saturating_mul(measured_s);
    let slack = u128::from(due) * u128::from(bands.mean_ppm) / 1_000_000 + series.len() as u128;
    let iops = total as f64 / measured_s.max(1) as f64;
    Check {
        name: format!("sum of {} volumes", series.len()),
        expected: format!("{} IOPS ± {}", thousands(promised), short_percent(bands.mean_ppm)),
        measured: format!("{} IOPS", text::rate(iops)),
        pass: measured_s > 0 && u128::from(total.abs_diff(due)) <= slack,
    }
}

/// Everything the checks of the binding dimension look at.
struct Judge<'a> {
    load: &'a Load,
    bands: &'a Bands,
    seconds: &'a [u64],
    series: &'a Series,
}

impl Judge<'_> {
    fn rates(&self, checks: &mut Vec<Check>) -> Result<Summary, LabError> {
        let phases = phases(self.load, self.bands, self.seconds.len());
        if phases.is_empty() {
            return Err(LabError::Unjudgeable(format!(
                "credits may end in any of the {} measured seconds; run for longer",
                self.seconds.len()
            )));
        }
        checks.push(self.first_second(&phases));
        let summaries: Vec<PhaseSummary> =
            phases.iter().map(|phase| self.phase(phase, checks)).collect();
        self.optional(&phases, &summaries, checks);
        Ok(Summary {
            phases: summaries,
            limit_iops: Some(self.load.iops(self.load.rate)),
            baseline_iops: self.load.credit.map(|credit| self.load.iops(credit.refill)),
            burst_end_s: self.credits(checks),
            expected_iops: self.expected(&phases),
        })
    }

    /// Every second and the mean of one phase.
    fn phase(&self, phase: &Phase, checks: &mut Vec<Check>) -> PhaseSummary {
        let counts = &self.seconds[phase.seconds.clone()];
        let worst_second = self.most_deviant(phase);
        checks.extend(worst_second.map(|worst| self.every_second(phase, worst)));
        checks.push(self.mean(phase, counts));
        let spread = spread(counts);
        PhaseSummary {
            promised_iops: Some(self.load.iops(phase.rate)),
            measured_iops: spread.mean,
            worst_second,
            cov: spread.cov,
        }
    }

    /// The promised rate of each second that has one.
    fn expected(&self, phases: &[Phase]) -> Vec<Option<f64>> {
        let mut expected = vec![None; self.seconds.len()];
        for phase in phases {
            let first = if phase.covers_first { 0 } else { phase.seconds.start };
            expected[first..phase.seconds.end].fill(Some(self.load.iops(phase.rate)));
        }
        expected
    }

    /// The first second carries the tokens that a volume may save while idle, and no more.
    fn first_second(&self, phases: &[Phase]) -> Check {
        let Load { rate, tolerance_ms, cost, .. } = *self.load;
        let most = rate + rate * u128::from(tolerance_ms) / 1_000 + cost;
        // Where credits may end within it, the first second has no floor of its own.
        let has_floor = phases.first().is_some_and(|phase| phase.covers_first);
        let least = if has_floor { self.least(rate) } else { 0 };
        let ios = self.seconds[0];
        Check {
            name: "first second".to_string(),
            expected: self.range(least, most),
            measured: thousands(ios),
            pass: self.units_at_most(0, rate) >= least && u128::from(ios) * cost <= most,
        }
    }

    fn every_second(&self, phase: &Phase, deviant: WorstSecond) -> Check {
        let (least, most) = (self.least(phase.rate), self.most(phase.rate));
        let inside = |second: usize| {
            self.units_at_most(second, phase.rate) >= least && self.units_at_least(second) <= most
        };
        Check {
            name: phase.named("every second"),
            expected: self.range(least, most),
            measured: format!(
                "worst {} in second {} ({})",
                thousands(deviant.ios),
                deviant.second,
                signed_percent(deviant.deviation)
            ),
            pass: phase.seconds.clone().all(inside),
        }
    }

    fn mean(&self, phase: &Phase, counts: &[u64]) -> Check {
        let total: u128 = counts.iter().map(|&ios| u128::from(ios) * self.load.cost).sum();
        let due = phase.rate * counts.len() as u128;
        let slack = due * u128::from(self.bands.mean_ppm) / 1_000_000 + self.load.cost;
        let iops = self.load.iops(phase.rate);
        let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        Check {
            name: phase.named("mean"),
            expected: format!("{} IOPS ± {}", text::rate(iops), short_percent(self.bands.mean_ppm)),
            measured: format!("{} IOPS ({})", text::rate(mean), signed_percent(mean / iops - 1.0)),
            pass: total.abs_diff(due) <= slack,
        }
    }

    /// The checks that only some bands ask for: smoothness over seconds and within them.
    fn optional(&self, phases: &[Phase], summaries: &[PhaseSummary], checks: &mut Vec<Check>) {
        for (phase, summary) in phases.iter().zip(summaries) {
            let Some(cov_ppm) = self.bands.cov_ppm else { continue };
            // One I/O more or less is the finest a count can tell: below 2,000 IOPS it decides.
            let most = (f64::from(cov_ppm) / 1e6).max(1.0 / self.load.iops(phase.rate));
            checks.push(Check {
                name: phase.named("variation (CoV)"),
                expected: format!("at most {}", text::percent(most)),
                measured: text::percent(summary.cov),
                pass: summary.cov <= most,
            });
        }
        if let Some(excess_ppm) = self.bands.short_window_excess_ppm {
            phases.iter().for_each(|phase| checks.push(self.short_windows(phase, excess_ppm)));
        }
    }

    fn short_windows(&self, phase: &Phase, excess_ppm: u32) -> Check {
        let per_second = 1_000 / SHORT_WINDOW_MS;
        let windows = self.series.windows(SHORT_WINDOW_MS);
        let range = phase.seconds.start * per_second..phase.seconds.end * per_second;
        let busiest = windows[range].iter().copied().max().unwrap_or(0);
        // In millionths of a unit per second: nothing is rounded. One I/O is always allowed.
        let most = phase.rate * (1_000_000 + u128::from(excess_ppm))
            + self.load.cost * 1_000_000 * per_second as u128;
        let units = u128::from(busiest) * self.load.cost * 1_000_000 * per_second as u128;
        let share = self.load.iops(phase.rate) / per_second as f64;
        Check {
            name: phase.named("busiest 10 ms"),
            expected: format!(
                "at most {} + {} + 1 I/O",
                text::rate(share),
                short_percent(excess_ppm)
            ),
            measured: thousands(busiest),
            pass: units <= most,
        }
    }

    /// Credits are exact: what was served is what the balance and the refill paid for.
    fn credits(&self, checks: &mut Vec<Check>) -> Option<f64> {
        let credit = self.load.credit?;
        let length_s = self.seconds.len() as u128;
        let served = u128::from(self.series.total()) * self.load.cost;
        let (_, end_ms_latest) = phases::burst_end_ms(self.load, self.bands)?;
        let earned = credit.refill * length_s;
        let most = credit.balance_max + earned + self.load.cost;
        let ended = end_ms_latest <= length_s * 1_000;
        // A burst that outlasts the run has spent only part of the balance: then only the most
        // holds.
        let least_exact = credit.balance_min + earned;
        let slack = least_exact * u128::from(self.bands.mean_ppm) / 1_000_000 + self.load.cost;
        let least = if ended { least_exact.saturating_sub(slack) } else { 0 };
        let spend = self.load.rate - credit.refill;
        let spent = served.saturating_sub(earned);
        let end_s = spent as f64 / spend as f64;
        let due =
            (credit.balance_min as f64 / spend as f64, credit.balance_max as f64 / spend as f64);
        checks.push(Check {
            name: "credits spent".to_string(),
            expected: if ended {
                format!("{} I/Os in all, burst of {}", self.span(least, most), seconds_span(due))
            } else {
                format!("at most {} I/Os in all", self.ios_text(most))
            },
            measured: if ended {
                format!("{}, burst of {end_s:.2} s", thousands(self.series.total()))
            } else {
                thousands(self.series.total())
            },
            pass: (least..=most).contains(&served),
        });
        ended.then_some(end_s)
    }

    /// What a second can have carried at most, if the client was late: what completed shortly after
    /// it counts as well. After the end of the run nothing was counted; there the rate stands in.
    fn units_at_most(&self, second: usize, rate: u128) -> u128 {
        let slack_ms = self.bands.second_slack_ms as usize;
        let (edge, end) = ((second + 1) * 1_000, self.series.per_ms().len());
        let late = &self.series.per_ms()[edge..(edge + slack_ms).min(end)];
        let unseen_ms = (edge + slack_ms).saturating_sub(end) as u128;
        let ios = self.seconds[second] + late.iter().map(|&ios| u64::from(ios)).sum::<u64>();
        u128::from(ios) * self.load.cost + rate * unseen_ms / 1_000
    }

    /// What it must have carried at least: without what completed shortly after its start.
    fn units_at_least(&self, second: usize) -> u128 {
        let (start, slack_ms) = (second * 1_000, self.bands.second_slack_ms as usize);
        let late = &self.series.per_ms()[start..start + slack_ms.min(1_000)];
        let ios = self.seconds[second] - late.iter().map(|&ios| u64::from(ios)).sum::<u64>();
        u128::from(ios) * self.load.cost
    }

    fn most_deviant(&self, phase: &Phase) -> Option<WorstSecond> {
        let iops = self.load.iops(phase.rate);
        let of = |second: usize| {
            let ios = self.seconds[second];
            WorstSecond { second: second as u64, ios, deviation: ios as f64 / iops - 1.0 }
        };
        let size = |second: &WorstSecond| second.deviation.abs();
        // Backwards, because of equals the last is the maximum: the earliest is shown.
        phase.seconds.clone().rev().map(of).max_by(|a, b| size(a).total_cmp(&size(b)))
    }

    /// The floor of a second: the band, or one I/O where that is more.
    fn least(&self, rate: u128) -> u128 {
        rate.saturating_sub(self.second_slack(rate))
    }

    /// The ceiling of a second after the first.
    fn most(&self, rate: u128) -> u128 {
        rate + self.second_slack(rate)
    }

    fn second_slack(&self, rate: u128) -> u128 {
        (rate * u128::from(self.bands.second_ppm) / 1_000_000).max(self.load.cost)
    }

    fn range(&self, least: u128, most: u128) -> String {
        match least {
            0 => format!("at most {} I/Os", self.ios_text(most)),
            _ => format!("{} I/Os", self.span(least, most)),
        }
    }

    fn span(&self, least: u128, most: u128) -> String {
        // Whole I/Os inside the range: rounded inwards.
        let least = least.div_ceil(self.load.cost);
        let least = thousands(u64::try_from(least).unwrap_or(u64::MAX));
        format!("{least} to {}", self.ios_text(most))
    }

    fn ios_text(&self, units: u128) -> String {
        thousands(u64::try_from(units / self.load.cost).unwrap_or(u64::MAX))
    }
}

/// Every window of any length at once: a bucket that drains at the rate must never hold more than
/// the tolerance's worth and one I/O. (The highest level of that bucket *is* the largest excess of
/// any window over rate x length.) Time stamps are whole milliseconds, which can make a window look
/// 1 ms shorter.
fn every_window(load: &Load, bands: &Bands, series: &Series) -> Check {
    let (mut level, mut highest) = (0_u128, 0_u128);
    for &ios in series.per_ms() {
        // In thousandths of a unit, so that one millisecond's drain is the whole number `rate`.
        level += u128::from(ios) * load.cost * 1_000;
        highest = highest.max(level);
        level = level.saturating_sub(load.rate);
    }
    let slack_ms = u128::from(load.tolerance_ms) + u128::from(bands.window_slack_ms) + 1;
    let most = load.rate * slack_ms + load.cost * 1_000;
    let ahead_ms =
        |level: u128| level.saturating_sub(load.cost * 1_000) as f64 / load.rate.max(1) as f64;
    Check {
        name: format!("any window, {}", load.dimension),
        expected: format!("at most {} ms and one I/O ahead of {}", slack_ms, load.rate_text()),
        measured: format!("{:.1} ms ahead", ahead_ms(highest)),
        pass: highest <= most,
    }
}

fn spread(counts: &[u64]) -> Spread {
    Spread::of(&counts.iter().map(|&ios| ios as f64).collect::<Vec<_>>())
}

fn signed_percent(ratio: f64) -> String {
    format!("{:+.2} %", ratio * 100.0)
}

fn short_percent(ppm: u32) -> String {
    format!("{} %", f64::from(ppm) / 10_000.0)
}

fn seconds_span((from, to): (f64, f64)) -> String {
    if to - from < 0.005 { format!("{from:.2} s") } else { format!("{from:.2} to {to:.2} s") }
}

#[cfg(test)]
mod tests;
