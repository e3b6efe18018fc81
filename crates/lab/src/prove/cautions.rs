//! Recognizes measurements that look like a kept or a broken promise, and are something else.

use serde::{Deserialize, Serialize};

use super::Measured;
use crate::checker::{Bands, CreditPlan, Dimension, Outcome, Promise, Verdict};
use crate::fio::Measurement;
use crate::target::Target;
use evenkeel_sim::figures::stats;
use evenkeel_sim::text;

/// First reads that take this many times as long as the same reads again were cold.
const COLD: f64 = 1.5;
/// Writes whose first quarter has this many times the rate of the last were served by a cache.
const CACHED: f64 = 1.2;
/// If pauses of the machine take a larger share of the time, they are mentioned; in percent.
const LOST_PERCENT: u64 = 1;
/// A limiter that gives more than the promise by no more than this share is generous, but it
/// exists.
const MORE_MAX: f64 = 0.10;
/// The shortest run in which a cache is looked for, in seconds.
const QUARTERS_MIN: usize = 8;

/// The kind of a caution.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum CautionKind {
    /// The measured rate was a burst, not the baseline.
    MeasuredBurst,
    /// Blocks took longer to read the first time.
    ColdVolume,
    /// Writes were fast until a cache was full.
    WriteCache,
    /// This machine was busy.
    HostBusy,
    /// The page cache cannot be bypassed.
    PageCache,
}

/// A reason for which a proof may not show what it seems to.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
pub struct Caution {
    /// Its kind.
    pub kind: CautionKind,
    /// The text, with the figures and a remedy.
    pub text: String,
}

impl Caution {
    fn new(kind: CautionKind, text: String) -> Self {
        Self { kind, text }
    }
}

/// Returns a caution if the first reads of the same blocks took longer.
pub(super) fn cold(first: &Measurement, again: &Measurement) -> Vec<Caution> {
    // Only the first second counts. Faster reads get to blocks that were not read before, but at
    // least three quarters of that second's reads are of blocks that were.
    let begins = again.latency_per_second.first().filter(|second| second.count > 0);
    let was = first.latency.p50_ns;
    let is = begins.unwrap_or(&again.latency).p50_ns;
    // Under a limit both are delayed by it, and show no difference.
    if was as f64 <= is as f64 * COLD || is == 0 {
        return Vec::new();
    }
    let text = format!(
        "you measured a cold volume, or a cache: blocks took {} to read the first time and {} the \
         second; read all of it once before you judge its latency",
        text::latency(was),
        text::latency(is),
    );
    vec![Caution::new(CautionKind::ColdVolume, text)]
}

/// Returns a caution if the subject cannot be read without the page cache.
pub(super) fn page_cache(target: &Target) -> Option<Caution> {
    let Target::Path { direct: false, path } = target else { return None };
    let text = format!(
        "{} cannot be opened with O_DIRECT: what was measured is memory as well as the device",
        path.display()
    );
    Some(Caution::new(CautionKind::PageCache, text))
}

/// Returns a caution if this machine was busy, or stood still.
pub(super) fn busy(
    warnings: &[String],
    others: Option<String>,
    measured: &[Measured],
) -> Option<Caution> {
    let seconds: u64 =
        measured.iter().map(|measured| u64::from(measured.step.workload.duration_s)).sum();
    let stood = |one: &Measured| one.observed.stalls.and(&one.observed.steal).total_us();
    let lost_us: u64 = measured.iter().map(stood).sum();
    let stood_still = lost_us * 100 > seconds * 1_000_000 * LOST_PERCENT;
    let mut said: Vec<String> = warnings.iter().cloned().chain(others).collect();
    if !stood_still && said.is_empty() {
        return None;
    }
    said.sort();
    said.dedup();
    if stood_still {
        said.push(format!("the machine stood still for {} ms of {seconds} s", lost_us / 1_000));
    }
    let text = format!(
        "the host was busy: {}; prove it again when it is quiet, if that matters to the verdict",
        said.join("; ")
    );
    Some(Caution::new(CautionKind::HostBusy, text))
}

/// Returns a caution if the load ended above the baseline, so that only a burst was measured.
pub(super) fn burst(promise: &Promise, one: &Measured, bands: &Bands) -> Option<Caution> {
    let workload = &one.step.workload;
    let dimension = promise.binds(workload)?;
    let rate = match dimension {
        Dimension::Operations => promise.operations?,
        Dimension::Bytes => promise.bytes?,
    };
    let credit = rate.credit?;
    let (_, baseline) = promise.rates_of(workload)?;
    let seconds = one.measurement.series.per_second();
    let last = *seconds.last()?;
    if last as f64 <= baseline * (1.05 + bands.over_share()) {
        return None;
    }
    let text = format!(
        "you measured a burst: {} s at up to {}; when its credits are spent {} remain (full, they \
         last {} s)",
        seconds.len(),
        dimension.rate_text(rate.per_second),
        dimension.rate_text(credit.refill_per_second),
        text::thousands(full_lasts_s(rate.per_second, &credit)),
    );
    Some(Caution::new(CautionKind::MeasuredBurst, text))
}

/// Returns how many seconds a full balance lasts. The subject's promise has the full balance.
fn full_lasts_s(rate: u64, full: &CreditPlan) -> u64 {
    let net = rate.saturating_sub(full.refill_per_second);
    full.balance_max.checked_div(net).unwrap_or(0)
}

/// Returns a caution if writes were fast only at first.
pub(super) fn write_cache(one: &Measured) -> Option<Caution> {
    let seconds = one.measurement.series.per_second();
    let quarter = seconds.len() / 4;
    let burst = one.promise.rates_of(&one.step.workload).is_some_and(|(rate, base)| rate > base);
    if one.step.workload.read_percent == 100 || seconds.len() < QUARTERS_MIN || burst {
        return None;
    }
    let median = |counts: &[u64]| {
        stats::median(&counts.iter().map(|count| *count as f64).collect::<Vec<_>>()).unwrap_or(0.0)
    };
    let first = median(&seconds[..quarter]);
    let last = median(&seconds[seconds.len() - quarter..]);
    if first <= last * CACHED {
        return None;
    }
    let text = format!(
        "you measured a write cache: {} writes a second at first, {} in the end; write for longer \
         than it lasts",
        text::rate(first),
        text::rate(last),
    );
    Some(Caution::new(CautionKind::WriteCache, text))
}

/// Returns why a load did not get its promise, as far as that is known.
pub(super) fn reason(one: &Measured, verdict: &Verdict, bands: &Bands) -> Option<String> {
    // If the server has ended or the machine stood still, the load says nothing about speed.
    if verdict.outcome != Outcome::Broken {
        return None;
    }
    let phase = verdict.summary.phases.first()?;
    let promised = phase.promised_iops?;
    let name = one.step.name;
    let measured = phase.measured_iops / promised;
    if measured > 1.005 + bands.over_share() {
        let given = text::rate(phase.measured_iops);
        let due = text::rate(promised);
        let what = if measured <= 1.0 + MORE_MAX {
            "it gives a little more than that, as others that are sold do; --over PERCENT \
                 allows for it"
        } else {
            "nothing holds it to its limit"
        };
        return Some(format!("{name}: {given} where {due} were promised: {what}"));
    }
    // The mean is right, but not every second: the broken checks say more than a reason could.
    if phase.measured_iops >= promised * 0.995 {
        return None;
    }
    let seconds = f64::from(one.step.workload.duration_s);
    match one.held_up {
        Some(held) if held.device_s > 0.1 * seconds => Some(format!(
            "{name}: within all its limits it waited for the device for {:.1} of {seconds:.0} s: \
             neighbours took what was promised to it, or the device gives less than was sold",
            held.device_s.min(seconds)
        )),
        Some(held) if held.instance_s > 0.1 * seconds => Some(format!(
            "{name}: the limits of its instance held it up for {:.1} of {seconds:.0} s",
            held.instance_s.min(seconds)
        )),
        // Without a guarantee no request is held back before the device, so its waits are not
        // counted.
        Some(held) if held.own_s + held.instance_s + held.device_s <= 0.1 * seconds => {
            let depth = one.step.workload.queue_depth;
            let took = one.measurement.latency.mean_ns;
            let neighbours = match one.guarantees {
                Some(false) => {
                    "its server guarantees nothing against neighbours (no calibration is in force)"
                }
                Some(true) | None => "neighbours took what was promised to it",
            };
            Some(format!(
                "{name}: no limit held it up, and yet with {depth} requests at once each took {}: \
                 {neighbours}, the device gives less than was sold, or the client had no processor",
                text::latency(took)
            ))
        }
        _ => {
            let depth = one.step.workload.queue_depth;
            let took = one.measurement.latency.mean_ns;
            Some(format!(
                "{name}: with {depth} requests at once each took {} on average, which is {} a \
                 second: the subject gave no more",
                text::latency(took),
                text::rate(phase.measured_iops)
            ))
        }
    }
}
