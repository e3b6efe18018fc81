//! Assigns the seconds of a run to the promised rates.

use evenkeel_core::convert::saturating;
use std::ops::Range;

use super::bands::Bands;
use crate::stalls::Stalls;
use evenkeel_sim::promise::Load;

/// A span of full seconds with one promised rate.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Phase {
    /// Units per second.
    pub(super) rate: u128,
    /// The seconds that lie entirely in the phase, without second 0, which has a check of its own.
    pub(super) seconds: Range<usize>,
    /// Whether second 0 lies entirely in it as well.
    pub(super) covers_first: bool,
    /// Appended to the names of its checks, if the promise has several phases.
    suffix: &'static str,
}

impl Phase {
    /// Returns the name of a check in this phase.
    pub(super) fn named(&self, check: &str) -> String {
        format!("{check}{}", self.suffix)
    }
}

/// Returns the phases of a run of `seconds` full seconds, except those without a full second.
/// Seconds in which a burst may have ended are in none: the check of the credits covers them.
pub(super) fn phases(load: &Load, bands: &Bands, stalls: &Stalls, seconds: usize) -> Vec<Phase> {
    let Some((earliest_ms, latest_ms)) = burst_end_ms(load, bands, stalls) else {
        return vec![Phase {
            rate: load.rate,
            seconds: 1..seconds,
            covers_first: true,
            suffix: "",
        }];
    };
    let clamp = |second: u128| saturating::<_, usize>(second).min(seconds);
    let burst_end = clamp(earliest_ms / 1_000);
    let baseline_start = clamp(latest_ms.div_ceil(1_000)).max(1);
    let burst = Phase {
        rate: load.rate,
        seconds: 1..burst_end.max(1),
        covers_first: burst_end > 0,
        suffix: ", on credits",
    };
    let baseline = Phase {
        rate: load.sustained(),
        seconds: baseline_start..seconds,
        covers_first: false,
        suffix: ", at the baseline",
    };
    [burst, baseline].into_iter().filter(|phase| !phase.seconds.is_empty()).collect()
}

/// Returns the earliest and the latest time at which the credits may end, in milliseconds; `None`
/// without credits.
///
/// Earliest: the smallest balance, after the tokens saved while idle were served at once, by a
/// limiter that gives the most that is allowed. Latest: the largest balance, spent at the slowest
/// rate that is still within the band while the machine ran.
pub(super) fn burst_end_ms(load: &Load, bands: &Bands, stalls: &Stalls) -> Option<(u128, u128)> {
    let credit = load.credit?;
    let most = load.rate + bands.over(load.rate);
    let head_start = most * u128::from(load.tolerance_ms) + load.cost * 1_000;
    let fastest = most - credit.refill;
    let earliest = (credit.balance_min * 1_000).saturating_sub(head_start) / fastest;
    let slack = load.rate * u128::from(bands.second_ppm) / 1_000_000;
    let least = load.rate.saturating_sub(slack);
    let slowest = least.saturating_sub(credit.refill).max(1);
    // After t ms at least `least` x (t - stood) are served, at most the balance and `refill` x t.
    let stood_ms = u128::from(stalls.total_us().div_ceil(1_000));
    let latest = (credit.balance_max * 1_000 + least * stood_ms).div_ceil(slowest);
    Some((earliest, latest))
}
