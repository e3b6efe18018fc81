//! The checks of windows other than seconds: every window of any length, and every 10 ms.

use super::lost::Lost;
use super::phases::Phase;
use super::{Bands, Check, Judge, short_percent};
use crate::stalls::{Stall, Stalls};
use evenkeel_sim::figures::series::Series;
use evenkeel_sim::promise::Load;
use evenkeel_sim::text::{self, thousands};

/// Width of the short windows of [`Bands::short_window_excess_ppm`].
const SHORT_WINDOW_MS: usize = 10;

/// Time after a stall in which requests that it delayed may still complete, in milliseconds.
pub(super) const CATCH_UP_MS: u64 = 200;

/// The catch-up time in microseconds.
pub(super) const CATCH_UP_US: u64 = CATCH_UP_MS * 1_000;

/// Checks every window of any length at once: a bucket that drains at the rate must never hold more
/// than the tolerance's worth and one I/O. (The highest level of that bucket *is* the largest
/// excess of any window over rate x length.) Time stamps are whole milliseconds, which can make a
/// window look 1 ms shorter.
///
/// A window that touches stalls may hold in addition the I/Os that the worst of them delayed. So
/// there is a bucket for each such delay. It covers the windows that touch no worse stall.
pub(super) fn every_window(load: &Load, bands: &Bands, series: &Series, lost: &Lost) -> Check {
    let fullest = fullest_window(load, bands, series, lost.known());
    let ahead = fullest.level.saturating_sub(load.cost * 1_000) as f64 / load.rate.max(1) as f64;
    let stood = match fullest.stall_ms {
        0 => String::new(),
        stall_ms => format!(" beside {stall_ms} ms of stalls"),
    };
    let over = match bands.over_ppm {
        0 => String::new(),
        ppm => format!(" + {}", short_percent(ppm)),
    };
    let most_ms = window_slack_ms(load, bands) + u128::from(fullest.stall_ms);
    let holds = |stalls: &Stalls| {
        let fullest = fullest_window(load, bands, series, stalls);
        fullest.level <= fullest.most
    };
    lost.check(
        format!("any window, {}", load.dimension),
        format!("at most {most_ms} ms and one I/O ahead of {}{over}{stood}", load.rate_text()),
        format!("{ahead:.1} ms ahead"),
        // Where this is asked, no record says when nothing waited.
        lost.ask(0, holds),
    )
}

/// The bucket that is fullest relative to its limit.
#[derive(Clone, Copy, Default)]
struct Fullest {
    /// The delay of the worst stall in its windows, in milliseconds.
    stall_ms: u64,
    /// Its highest level, in thousandths of a unit.
    level: u128,
    /// The highest level that is allowed, in thousandths of a unit.
    most: u128,
}

fn fullest_window(load: &Load, bands: &Bands, series: &Series, stalls: &Stalls) -> Fullest {
    let slack_ms = window_slack_ms(load, bands);
    // The first bucket is that of no stall. Distinct whole milliseconds: few, even in a long run.
    let mut lengths_ms = vec![0];
    lengths_ms.extend(stalls.as_slice().iter().map(|stall| held_up_ms(stalls, stall)));
    lengths_ms.sort_unstable();
    lengths_ms.dedup();
    // Computed once, as it is used for each bucket: a busy machine has hundreds of them, and as
    // many stalls near each millisecond.
    let near_ms: Vec<u64> =
        (0..series.per_ms().len() as u64).map(|ms| worst_near_ms(stalls, ms)).collect();
    let mut fullest = Fullest { most: 1, ..Fullest::default() };
    for stall_ms in lengths_ms {
        let closed = |ms: u64| usize::try_from(ms).is_ok_and(|index| near_ms[index] > stall_ms);
        let level = highest_level(load, load.rate + bands.over(load.rate), series, closed);
        let most = load.rate * (slack_ms + u128::from(stall_ms)) + load.cost * 1_000;
        if level * fullest.most > fullest.level * most {
            fullest = Fullest { stall_ms, level, most };
        }
    }
    fullest
}

/// Returns the longest delay, in milliseconds, by a stall that ends at most a catch-up time before
/// a millisecond.
fn worst_near_ms(stalls: &Stalls, ms: u64) -> u64 {
    let near = (ms * 1_000).saturating_sub(CATCH_UP_US)..(ms + 1) * 1_000;
    let held = stalls.touching(near).iter().map(|stall| held_up_ms(stalls, stall));
    held.max().unwrap_or(0)
}

/// Returns the time's worth that any window may be ahead, in milliseconds.
fn window_slack_ms(load: &Load, bands: &Bands) -> u128 {
    u128::from(load.tolerance_ms) + u128::from(bands.window_slack_ms) + 1
}

/// Returns the longest delay of a completion at the end of a stall, in milliseconds. A host that is
/// short of time halts a machine again before it has caught up, so the stalls of a catch-up time
/// are added.
pub(super) fn held_up_ms(stalls: &Stalls, stall: &Stall) -> u64 {
    let end_us = stall.end_us();
    let together_us = stalls.lost_us(end_us.saturating_sub(CATCH_UP_US)..end_us);
    together_us.max(stall.length_us).div_ceil(1_000)
}

/// Returns the highest level of a bucket, in thousandths of a unit, so that one millisecond's drain
/// is the whole number `rate`. The bucket is empty in every millisecond that is `closed` to it.
fn highest_level(load: &Load, rate: u128, series: &Series, closed: impl Fn(u64) -> bool) -> u128 {
    let mut level = 0_u128;
    let mut highest = 0_u128;
    for (ms, &ios) in (0..).zip(series.per_ms()) {
        if closed(ms) {
            level = 0;
            continue;
        }
        level += u128::from(ios) * load.cost * 1_000;
        highest = highest.max(level);
        level = level.saturating_sub(rate);
    }
    highest
}

impl Judge<'_> {
    /// Checks the busiest 10 ms window of one phase that has no stall in it or in the catch-up time
    /// before.
    pub(super) fn short_windows(&self, phase: &Phase, excess_ppm: u32) -> Check {
        let per_second = 1_000 / SHORT_WINDOW_MS;
        let windows = self.series.windows(SHORT_WINDOW_MS);
        let range = phase.seconds.start * per_second..phase.seconds.end * per_second;
        let quiet = |window: &usize| {
            let width_us = SHORT_WINDOW_MS as u64 * 1_000;
            let from_us = *window as u64 * width_us;
            let near = from_us.saturating_sub(CATCH_UP_US)..from_us + width_us;
            self.lost.known().touching(near).is_empty()
        };
        let busiest = range.filter(quiet).map(|window| windows[window]).max().unwrap_or(0);
        // In millionths of a unit per second: nothing is rounded. One I/O is always allowed.
        let most = phase.rate * (1_000_000 + u128::from(excess_ppm))
            + self.load.cost * 1_000_000 * per_second as u128;
        let units = u128::from(busiest) * self.load.cost * 1_000_000 * per_second as u128;
        let share = self.load.iops(phase.rate) / per_second as f64;
        Check::new(
            phase.named("busiest 10 ms"),
            format!("at most {} + {} + 1 I/O", text::rate(share), short_percent(excess_ppm)),
            thousands(busiest),
            units <= most,
        )
    }
}
