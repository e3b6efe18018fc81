//! The promise as code: from the provisioned and the counted figures it makes a verdict in words.
//!
//! It is deliberately a second, independent statement of what "provisioned IOPS" means: it knows
//! the promised rates and credits, but not how the scheduler keeps them. All arithmetic that
//! decides is in integers; floating point is used for printing, and for the one figure that is
//! defined by a root.
//!
//! The checks of a volume that is kept backlogged (line numbers of the specification):
//!
//! 1. **Ceiling** (line 1): the first second, every later second, their mean, and *every* window of
//!    any length: at most rate x (length + tolerance) and one I/O.
//! 2. **Floor** (line 2): every second, and their mean.
//! 3. **Credits** (line 4): how many I/Os the credits paid for, hence when the burst ended, and the
//!    seconds before and after that end, each against the rate of its phase.
//!
//! A dimension that does not bind (bytes, for small blocks) is checked for its ceiling alone.
//!
//! # When something did not run
//!
//! The promise holds as long as the hardware below delivers, and a log shows a server as late when
//! only the client is. The machine, the server's threads or the client's may not have run although
//! they had work ([`Stalls`]). A log is judged by the time that they ran. A second without such a
//! time is judged as ever.
//!
//! * **Floor**: the rate of a second, or of the mean, holds for the time without the stalls in it:
//!   rate x (1 s - lost). Whether a volume made up for a stall or not, both are right.
//! * **Ceiling of a second**: rate x the stall time in the 200 ms before the second may come in
//!   addition, since delayed requests are served late; but no more than a volume can save and its
//!   client had requested. (At the baseline credits are saved instead, without such a limit.)
//! * **Any window** that touches a stall or the 200 ms after it may be ahead by that stall more,
//!   together with those of the 200 ms before its end; of several, by the worst. Windows that touch
//!   none may not.
//! * **Credits** end later by what was lost, and what was earned during a stall in the last 200 ms
//!   need not be spent yet.
//! * **Variation** and **10 ms windows**: seconds and windows with a stall in them, or in the 200
//!   ms before them, are left out.
//!
//! If only three times the measured time explains a deviation, it is **undecided**: the watch may
//! have missed some, or the work that piled up took as long again. It is also undecided if only
//! steal explains it that no thread shows, or if no request waited for the limits by the server's
//! record: the store or the client then had all of them. A few seconds of a run may be undecided.
//! If more than a twentieth of a run was lost, the lost time excuses nothing, and the deviations
//! that it would have excused are undecided. A deviation that no such time explains is **broken**.
//!
//! If the server's own record of dispatches is available, limits are judged by it (`record`),
//! because it is never late. A client's log is then only held to its floors and its mean.

mod bands;
mod lost;
mod phases;
pub mod record;
mod windows;

use evenkeel_core::convert::saturating;
use std::ops::Range;

use serde::{Deserialize, Serialize};

pub use bands::Bands;
pub use evenkeel_sim::check::Check;
pub use evenkeel_sim::promise::{CreditPlan, Dimension, Promise, Rate};
pub(crate) use lost::Lost;
pub use lost::Outcome;

use self::lost::{CONNECTION, lies_in};
use self::phases::{Phase, phases};
use self::windows::{CATCH_UP_US, every_window};
use crate::LabError;
use crate::stalls::{Stalls, whole_ms};
use evenkeel_sim::figures::series::{Series, Spread};
use evenkeel_sim::promise::Load;
use evenkeel_sim::text::{self, thousands};
use evenkeel_sim::workload::Workload;

/// Minimum number of full seconds for a verdict on a steady rate.
const SECONDS_MIN: usize = 3;

/// The verdict on one volume.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Verdict {
    /// The worst outcome of any check.
    pub outcome: Outcome,
    /// The checks, in the order of the specification.
    pub checks: Vec<Check>,
    /// The figures of the summary table.
    pub summary: Summary,
}

/// The figures that summarize a run.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct Summary {
    /// One for each promised rate in turn: usually one; two if the credits ended during the run.
    pub phases: Vec<PhaseSummary>,
    /// Client I/Os per second that the binding limit allows: the provisioned rate, or the burst
    /// rate.
    pub limit_iops: Option<f64>,
    /// Client I/Os per second that remain without credits, for a type that has them.
    pub baseline_iops: Option<f64>,
    /// The end of the credits, in seconds from the start.
    pub burst_end_s: Option<f64>,
    /// Client I/Os per second promised for each full second; `None` if credits may end within it,
    /// and everywhere without a limit.
    pub expected_iops: Vec<Option<f64>>,
}

/// The figures of the seconds with one promised rate, without the first second.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
pub struct PhaseSummary {
    /// Client I/Os per second; `None` without a limit.
    pub promised_iops: Option<f64>,
    /// Mean of the full seconds.
    pub measured_iops: f64,
    /// The second that deviates most from the promise.
    pub worst_second: Option<WorstSecond>,
    /// Coefficient of variation of the full seconds.
    pub cov: f64,
}

/// The second that deviates most from its promise.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct WorstSecond {
    /// Its number; the run begins with second 0.
    pub second: u64,
    /// I/Os that completed in it.
    pub ios: u64,
    /// Deviation from the promised rate: `-0.01` is one percent too few.
    pub deviation: f64,
}

/// The observations of one run of one backlogged volume.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// Completions as the client stamped them.
    pub series: &'a Series,
    /// Times at which the machine, the server or the client did not run, counted from time 0 of the
    /// series.
    pub lost: &'a Stalls,
    /// Times in which no request waited for the volume's limits by the server's record, counted
    /// from time 0 of the series: its store or its client had all of them. A shortfall then is
    /// undecided.
    pub idle: &'a Stalls,
    /// Times in which the machine's host took time of a processor (steal), counted from time 0 of
    /// the series. A shortfall then is undecided.
    pub steal: &'a Stalls,
    /// The error of the run, if there was one.
    pub error: Option<&'a str>,
    /// Milliseconds after which the server closed the connection, if it did; the full seconds
    /// before are judged.
    pub gone_after_ms: Option<u64>,
    /// Whether limits are judged by the server's record instead; this log is then held to its
    /// floors.
    pub has_record: bool,
}

/// Judges one run of one backlogged volume.
///
/// # Errors
/// [`LabError::Unjudgeable`] when the workload or the promise do not allow a verdict.
pub fn check(
    promise: &Promise,
    workload: &Workload,
    seen: &Seen<'_>,
    bands: &Bands,
) -> Result<Verdict, LabError> {
    let loads = promise.loads(workload)?;
    let series = &match seen.gone_after_ms {
        Some(ms) => seen.series.first_seconds(ms / 1_000),
        None => seen.series.clone(),
    };
    let seconds = series.per_second();
    let mut checks = Vec::new();
    let mut summary = Summary::default();
    let error = seen.error.unwrap_or("none");
    checks.push(match seen.gone_after_ms {
        Some(_) => Check::new(CONNECTION, "until the end of the load", error, false),
        None => Check::new("I/O errors", "none", error, seen.error.is_none()),
    });
    let lost = &Lost::of(seen.lost, seen.idle, seen.steal, seconds.len() as u64 * 1_000_000);
    if loads.is_empty() || (seen.gone_after_ms.is_some() && seconds.len() < SECONDS_MIN) {
        let spread = spread(seconds.get(1..).unwrap_or_default());
        let measured_iops = spread.mean;
        let cov = spread.cov;
        summary.phases.push(PhaseSummary { measured_iops, cov, ..PhaseSummary::default() });
        summary.expected_iops = vec![None; seconds.len()];
        return Ok(Verdict::new(checks, summary));
    }
    if seconds.len() < SECONDS_MIN {
        let count = seconds.len();
        let why = format!("{count} full seconds were measured; run for at least {SECONDS_MIN} s");
        return Err(LabError::Unjudgeable(why));
    }
    for (index, load) in loads.iter().enumerate() {
        // The first dimension is the one that binds.
        if index == 0 {
            let queue_depth = workload.queue_depth;
            let has_record = seen.has_record;
            let judge =
                Judge { load, bands, seconds: &seconds, series, lost, queue_depth, has_record };
            summary = judge.rates(&mut checks)?;
        }
        if !seen.has_record {
            checks.push(every_window(load, bands, series, lost));
        }
    }
    Ok(Verdict::new(checks, summary))
}

impl Verdict {
    fn new(checks: Vec<Check>, summary: Summary) -> Self {
        Self { outcome: Outcome::Kept, checks: Vec::new(), summary }.with(checks)
    }

    /// Returns the verdict with further checks.
    #[must_use]
    pub fn with(mut self, checks: Vec<Check>) -> Self {
        for check in checks {
            self.outcome = self.outcome.max(Outcome::of_check(&check));
            self.checks.push(check);
        }
        self
    }
}

/// The input of the checks of the binding dimension.
struct Judge<'a> {
    load: &'a Load,
    bands: &'a Bands,
    seconds: &'a [u64],
    series: &'a Series,
    lost: &'a Lost,
    queue_depth: u32,
    /// Whether limits are judged by the server's record instead.
    has_record: bool,
}

impl Judge<'_> {
    fn rates(&self, checks: &mut Vec<Check>) -> Result<Summary, LabError> {
        let phases = phases(self.load, self.bands, self.lost.known(), self.seconds.len());
        if phases.is_empty() {
            return Err(LabError::Unjudgeable(format!(
                "credits may end in any of the {} measured seconds; run for longer",
                self.seconds.len()
            )));
        }
        checks.push(self.first_second(&phases));
        let summaries: Vec<PhaseSummary> =
            phases.iter().map(|phase| self.phase(phase, checks)).collect();
        self.optional(&phases, checks)?;
        Ok(Summary {
            phases: summaries,
            limit_iops: Some(self.load.iops(self.load.rate)),
            baseline_iops: self.load.credit.map(|credit| self.load.iops(credit.refill)),
            burst_end_s: self.credits(checks),
            expected_iops: self.expected(&phases),
        })
    }

    /// Checks every second and the mean of one phase.
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

    /// Returns the promised rate of each second that has one.
    fn expected(&self, phases: &[Phase]) -> Vec<Option<f64>> {
        let mut expected = vec![None; self.seconds.len()];
        for phase in phases {
            let first = if phase.covers_first { 0 } else { phase.seconds.start };
            expected[first..phase.seconds.end].fill(Some(self.load.iops(phase.rate)));
        }
        expected
    }

    /// Checks the first second. It may have the tokens that a volume can save while idle, but no
    /// more.
    fn first_second(&self, phases: &[Phase]) -> Check {
        let Load { rate, tolerance_ms, cost, .. } = *self.load;
        let most = rate + rate * u128::from(tolerance_ms) / 1_000 + cost + self.bands.over(rate);
        // If credits may end within it, the first second has no floor of its own.
        let has_floor = phases.first().is_some_and(|phase| phase.covers_first);
        let least_with =
            |stalls: &Stalls| if has_floor { self.least(ran(rate, stalls, 0..1)) } else { 0 };
        let ios = self.seconds[0];
        let at_most = u128::from(ios) * cost;
        let holds = |stalls: &Stalls| {
            self.units_at_most(0, rate) >= least_with(stalls)
                && (self.has_record || at_most <= most)
        };
        self.lost.check(
            "first second",
            self.range(least_with(self.lost.known()), most),
            format!("{}{}", thousands(ios), self.ran_text(0)),
            self.lost.ask(self.ahead_us(rate), holds),
        )
    }

    fn every_second(&self, phase: &Phase, deviant: WorstSecond) -> Check {
        let least = self.least(phase.rate);
        let most = self.most(phase.rate);
        let holds = |second, stalls: &Stalls| self.inside(second, phase.rate, stalls);
        let (answer, undecided) =
            self.lost.ask_each(self.ahead_us(phase.rate), phase.seconds.clone(), holds);
        let worst_second = saturating::<_, usize>(deviant.second);
        let mut measured = format!(
            "worst {} in second {} ({}){}",
            thousands(deviant.ios),
            deviant.second,
            signed_percent(deviant.deviation),
            self.ran_text(worst_second),
        );
        if undecided > 0 {
            measured += &format!("; {undecided} of {} s undecided", phase.seconds.len());
        }
        self.lost.check(phase.named("every second"), self.range(least, most), measured, answer)
    }

    /// Returns whether a second after the first is between its floor and its ceiling.
    fn inside(&self, second: usize, rate: u128, stalls: &Stalls) -> bool {
        let least = self.least(ran(rate, stalls, second..second + 1));
        let most = if self.has_record {
            u128::MAX
        } else {
            self.most(rate) + self.held_up(rate, second, stalls)
        };
        lies_in(&(self.units_at_least(second)..=self.units_at_most(second, rate)), least, most)
    }

    /// Returns the units that a stall may have delayed into a second: at most those that the volume
    /// can save, and those that the client had requested.
    fn held_up(&self, rate: u128, second: usize, stalls: &Stalls) -> u128 {
        let edge_us = second as u64 * 1_000_000;
        let stood_us = stalls.lost_us(edge_us.saturating_sub(CATCH_UP_US)..edge_us);
        let stood = rate * u128::from(stood_us) / 1_000_000;
        // At the baseline, below the paced rate, credits are saved, and without such a limit.
        if rate != self.load.rate {
            return stood;
        }
        let saved = rate * u128::from(self.load.tolerance_ms) / 1_000;
        stood.min(saved + u128::from(self.queue_depth) * self.load.cost)
    }

    /// Returns the time in which all requests of the client are dispatched at a rate, in
    /// microseconds.
    fn ahead_us(&self, rate: u128) -> u64 {
        let units = u128::from(self.queue_depth) * self.load.cost;
        saturating::<_, u64>(units * 1_000_000 / rate.max(1))
    }

    /// Returns a remark on the time that was lost in a second; empty if there was none.
    fn ran_text(&self, second: usize) -> String {
        let from_us = second as u64 * 1_000_000;
        match self.lost.known().lost_us(from_us..from_us + 1_000_000) {
            0..500 => String::new(),
            lost_us => format!(", {} ms of it were lost", whole_ms(lost_us)),
        }
    }

    fn mean(&self, phase: &Phase, counts: &[u64]) -> Check {
        let total: u128 = counts.iter().map(|&ios| u128::from(ios) * self.load.cost).sum();
        let due = phase.rate * counts.len() as u128;
        let slack = due * u128::from(self.bands.mean_ppm) / 1_000_000 + self.load.cost;
        let over = self.bands.over(due);
        let holds = |stalls: &Stalls| {
            let ran = ran(phase.rate, stalls, phase.seconds.clone());
            let held_up = self.held_up(phase.rate, phase.seconds.start, stalls);
            total + slack >= ran && total <= due + held_up + slack + over
        };
        let iops = self.load.iops(phase.rate);
        let mean = counts.iter().sum::<u64>() as f64 / counts.len() as f64;
        self.lost.check(
            phase.named("mean"),
            format!("{} IOPS {}", text::rate(iops), self.mean_band()),
            format!("{} IOPS ({})", text::rate(mean), signed_percent(mean / iops - 1.0)),
            self.lost.ask(self.ahead_us(phase.rate), holds),
        )
    }

    /// Returns the tolerance of the mean as text.
    fn mean_band(&self) -> String {
        let Bands { mean_ppm, over_ppm, .. } = *self.bands;
        match over_ppm {
            0 => format!("± {}", short_percent(mean_ppm)),
            _ => format!("- {} + {}", short_percent(mean_ppm), short_percent(mean_ppm + over_ppm)),
        }
    }

    /// Adds the checks that only some bands have: smoothness over seconds and within them.
    fn optional(&self, phases: &[Phase], checks: &mut Vec<Check>) -> Result<(), LabError> {
        for phase in phases {
            let Some(cov_ppm) = self.bands.cov_ppm else { continue };
            let cov = self.quiet_cov(phase)?;
            // Counts are whole I/Os: below 2,000 IOPS one more or less decides.
            let most = (f64::from(cov_ppm) / 1e6).max(1.0 / self.load.iops(phase.rate));
            checks.push(Check::new(
                phase.named("variation (CoV)"),
                format!("at most {}", text::percent(most)),
                text::percent(cov),
                cov <= most,
            ));
        }
        if let Some(excess_ppm) = self.bands.short_window_excess_ppm {
            phases.iter().for_each(|phase| checks.push(self.short_windows(phase, excess_ppm)));
        }
        Ok(())
    }

    /// Returns the variation of the seconds without stalls.
    fn quiet_cov(&self, phase: &Phase) -> Result<f64, LabError> {
        let quiet = |second: &usize| {
            let from_us = *second as u64 * 1_000_000;
            let near = from_us.saturating_sub(CATCH_UP_US)..from_us + 1_000_000;
            self.lost.known().touching(near).is_empty()
        };
        let counts: Vec<u64> =
            phase.seconds.clone().filter(quiet).map(|second| self.seconds[second]).collect();
        let disturbed = phase.seconds.len() - counts.len();
        if disturbed > 0 && counts.len() < SECONDS_MIN {
            return Err(LabError::Unjudgeable(format!(
                "the machine itself stood still in {disturbed} of {} seconds; their \
                 variation needs at least {SECONDS_MIN} quiet ones",
                phase.seconds.len()
            )));
        }
        Ok(spread(&counts).cov)
    }

    /// Checks credits, which are exact: the served I/Os are those that the balance and the refill
    /// paid for.
    fn credits(&self, checks: &mut Vec<Check>) -> Option<f64> {
        let credit = self.load.credit?;
        let length_s = self.seconds.len() as u128;
        let served = u128::from(self.series.total()) * self.load.cost;
        let (_, end_ms_latest) = phases::burst_end_ms(self.load, self.bands, self.lost.known())?;
        let earned = credit.refill * length_s;
        let paid = credit.balance_max + earned;
        let most = paid + self.load.cost + self.bands.over(paid);
        let ended = end_ms_latest <= length_s * 1_000;
        // A burst that outlasts the run has spent only a part of the balance, so only the upper
        // bound applies.
        let end_us = self.seconds.len() as u64 * 1_000_000;
        let least_with = |stalls: &Stalls| {
            let stood_us = stalls.lost_us(end_us.saturating_sub(CATCH_UP_US)..end_us);
            let unspent = credit.refill * u128::from(stood_us) / 1_000_000;
            let least_exact = (credit.balance_min + earned).saturating_sub(unspent);
            let slack = least_exact * u128::from(self.bands.mean_ppm) / 1_000_000 + self.load.cost;
            if ended { least_exact.saturating_sub(slack) } else { 0 }
        };
        let holds = |stalls: &Stalls| (least_with(stalls)..=most).contains(&served);
        let spend = self.load.rate - credit.refill;
        let spent = served.saturating_sub(earned);
        let end_s = spent as f64 / spend as f64;
        let due =
            (credit.balance_min as f64 / spend as f64, credit.balance_max as f64 / spend as f64);
        let total = thousands(self.series.total());
        let (expected, measured) = if ended {
            let span = self.span(least_with(self.lost.known()), most);
            let burst = seconds_span(due);
            (
                format!("{span} I/Os in all, burst of {burst}"),
                format!("{total}, burst of {end_s:.2} s"),
            )
        } else {
            (format!("at most {} I/Os in all", self.ios_text(most)), total)
        };
        let answer = self.lost.ask(self.ahead_us(self.load.rate), holds);
        checks.push(self.lost.check("credits spent", expected, measured, answer));
        ended.then_some(end_s)
    }

    /// Returns the most units that a second can have carried if the client was late: completions
    /// shortly after it count, too. After the end of the run nothing was counted, and the rate is
    /// used.
    fn units_at_most(&self, second: usize, rate: u128) -> u128 {
        let slack_ms = self.bands.second_slack_ms as usize;
        let edge = (second + 1) * 1_000;
        let end = self.series.per_ms().len();
        let late = &self.series.per_ms()[edge..(edge + slack_ms).min(end)];
        let unseen_ms = (edge + slack_ms).saturating_sub(end) as u128;
        let ios = self.seconds[second] + late.iter().map(|&ios| u64::from(ios)).sum::<u64>();
        u128::from(ios) * self.load.cost + rate * unseen_ms / 1_000
    }

    /// Returns the least units that it must have carried: completions shortly after its start do
    /// not count.
    fn units_at_least(&self, second: usize) -> u128 {
        let start = second * 1_000;
        let slack_ms = self.bands.second_slack_ms as usize;
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
        // A stall may take more from a second than is wrong with another one, which is then shown.
        let known = self.lost.known();
        let wrong = |second: &usize| !self.inside(*second, phase.rate, known);
        let only_wrong = !known.is_empty() && phase.seconds.clone().any(|s| wrong(&s));
        let shown = phase.seconds.clone().filter(|second| !only_wrong || wrong(second));
        // Backwards, as `max_by` returns the last of equals, and the earliest is shown.
        shown.rev().map(of).max_by(|a, b| size(a).total_cmp(&size(b)))
    }

    /// Returns the floor of a second: the band below the rate, or one I/O if that is more.
    fn least(&self, rate: u128) -> u128 {
        rate.saturating_sub(self.second_slack(rate))
    }

    /// Returns the ceiling of a second after the first.
    fn most(&self, rate: u128) -> u128 {
        rate + self.second_slack(rate) + self.bands.over(rate)
    }

    fn second_slack(&self, rate: u128) -> u128 {
        (rate * u128::from(self.bands.second_ppm) / 1_000_000).max(self.load.cost)
    }

    /// Returns the bounds of a second as text; only the lower one if limits are judged by the
    /// record.
    fn range(&self, least: u128, most: u128) -> String {
        match (least, self.has_record) {
            (_, true) => format!("at least {} I/Os", self.ios_text(least)),
            (0, false) => format!("at most {} I/Os", self.ios_text(most)),
            (_, false) => format!("{} I/Os", self.span(least, most)),
        }
    }

    fn span(&self, least: u128, most: u128) -> String {
        // Whole I/Os within the bounds, so the lower one is rounded up.
        let least = least.div_ceil(self.load.cost);
        let least = thousands(saturating::<_, u64>(least));
        format!("{least} to {}", self.ios_text(most))
    }

    fn ios_text(&self, units: u128) -> String {
        thousands(saturating::<_, u64>(units / self.load.cost))
    }
}

/// Returns the units that are due in some seconds for the time that is not lost in them.
fn ran(rate: u128, stalls: &Stalls, seconds: Range<usize>) -> u128 {
    let span_us = seconds.start as u64 * 1_000_000..seconds.end as u64 * 1_000_000;
    let ran_us = span_us.end - span_us.start - stalls.lost_us(span_us);
    rate * u128::from(ran_us) / 1_000_000
}

fn spread(counts: &[u64]) -> Spread {
    Spread::of(&counts.iter().map(|&ios| ios as f64).collect::<Vec<_>>())
}

fn signed_percent(ratio: f64) -> String {
    format!("{:+.2} %", ratio * 100.0)
}

/// Returns a tolerance in percent, without unneeded digits.
pub(crate) fn short_percent(ppm: u32) -> String {
    format!("{} %", f64::from(ppm) / 10_000.0)
}

fn seconds_span((from, to): (f64, f64)) -> String {
    if to - from < 0.005 { format!("{from:.2} s") } else { format!("{from:.2} to {to:.2} s") }
}

#[cfg(test)]
mod tests;
