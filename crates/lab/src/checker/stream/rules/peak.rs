//! Line 1: while a volume is steadily backlogged, no 10 ms carry much more than the average.
//!
//! A backlog is steady once the tokens saved before it are spent. While others hold the volume up
//! or stand still it is not, nor for as long as it may take to catch up afterwards.

use std::collections::VecDeque;

use super::super::event::{Dispatched, Event};
use super::super::level::{UNIT, worth};
use super::super::report::{Findings, Rule, Whose};
use super::super::seen::Seen;
use super::super::volumes::Volume;
use super::{DIMENSIONS, PerVolume, Watcher, units_text};

const WINDOW_NS: u64 = 10_000_000;
/// Dispatches within this of each other are one entry, told at the earlier time: memory is bounded,
/// and no window looks fuller than it is.
const GRAIN_NS: u64 = 10_000;
const MILLION: i128 = 1_000_000;

#[derive(Debug, Default)]
struct OfVolume {
    /// From when on windows may begin; `None` while saved tokens are left.
    steady_from: Option<u64>,
    /// From when on it lives on what its credits earn; `None` while a balance is left.
    spent_since: [Option<u64>; 2],
    recent: VecDeque<(u64, [u64; 2])>,
    sum: [u64; 2],
    largest: [u64; 2],
    unexcused_ns: u64,
}

#[derive(Debug)]
pub(super) struct Peak(PerVolume<OfVolume>);

impl Peak {
    pub(super) fn new() -> Self {
        Self(PerVolume::new())
    }
}

impl Watcher for Peak {
    fn observe(&mut self, event: &Event, seen: &Seen, findings: &mut Findings) {
        let Some(number) = event.volume() else { return };
        let Some(volume) = seen.volume(number) else { return };
        let of = self.0.of(number);
        of.excuse(volume, seen);
        match event {
            Event::Dispatched(dispatched) => {
                of.take(dispatched, volume, seen, findings);
                if dispatched.last && volume.requests.queued <= 1 {
                    of.restart();
                }
            }
            Event::Submitted(_) if !volume.is_backlogged() => of.restart(),
            Event::Cancelled { .. } if volume.requests.queued <= 1 => of.restart(),
            Event::Modified { .. } | Event::Credited { .. } | Event::Removed { .. } => of.restart(),
            _ => {}
        }
    }
}

impl OfVolume {
    fn restart(&mut self) {
        self.steady_from = None;
        self.spent_since = [None; 2];
        self.recent.clear();
        (self.sum, self.largest) = ([0; 2], [0; 2]);
    }

    /// Time in which others held the volume up is caught up at a quarter of the rate.
    fn excuse(&mut self, volume: &Volume, seen: &Seen) {
        let unexcused = volume.held_up.unexcused_ns - self.unexcused_ns;
        self.unexcused_ns = volume.held_up.unexcused_ns;
        let excused = volume.last_held_up_ns.saturating_sub(unexcused);
        if excused > 0 && self.steady_from.is_some() {
            let owed_ns = excused.min(seen.system.made_whole.time_ns);
            let quiet = seen.now + 4 * owed_ns;
            self.steady_from = self.steady_from.max(Some(quiet));
            self.recent.clear();
            self.sum = [0; 2];
        }
    }

    fn take(
        &mut self,
        dispatched: &Dispatched,
        volume: &Volume,
        seen: &Seen,
        findings: &mut Findings,
    ) {
        let units = dispatched.charge();
        for (dimension, units) in units.into_iter().enumerate() {
            self.largest[dimension] = self.largest[dimension].max(units);
            let Some(limited) = &volume.limits[dimension] else { continue };
            let after = |level: i128| level - i128::from(units) * UNIT;
            if after(limited.pacer.level) < 0 {
                self.steady_from.get_or_insert(seen.now);
            }
            if let Some(credit) = &limited.credit {
                let spent = &mut self.spent_since[dimension];
                if after(credit.level) < 0 {
                    spent.get_or_insert(seen.now);
                    self.steady_from.get_or_insert(seen.now);
                } else {
                    *spent = None;
                }
            }
        }
        // The dispatch that spends the last saved token does not belong to the steady time yet.
        if self.steady_from.is_none_or(|from| from >= seen.now) {
            return;
        }
        self.push(seen.now, units);
        for dimension in (0..units.len()).filter(|dimension| units[*dimension] > 0) {
            let Some(most) = self.most(dimension, volume, seen) else { continue };
            let used = i128::from(self.sum[dimension]) * UNIT;
            let whose = Whose::Volume(dispatched.volume);
            findings.judge(Rule::Peak10Ms, used <= most, seen.now, whose, || {
                let name = DIMENSIONS[dimension];
                (format!("at most {} {name} in 10 ms", units_text(most)), units_text(used))
            });
        }
    }

    fn push(&mut self, now: u64, units: [u64; 2]) {
        while let Some(&(at, old)) = self.recent.front() {
            if at + WINDOW_NS > now {
                break;
            }
            self.recent.pop_front();
            self.sum = [self.sum[0] - old[0], self.sum[1] - old[1]];
        }
        match self.recent.back_mut() {
            Some((at, sum)) if *at + GRAIN_NS > now => {
                *sum = [sum[0] + units[0], sum[1] + units[1]];
            }
            _ => self.recent.push_back((now, units)),
        }
        self.sum = [self.sum[0] + units[0], self.sum[1] + units[1]];
    }

    /// The most that the 10 ms up to now may carry.
    fn most(&self, dimension: usize, volume: &Volume, seen: &Seen) -> Option<i128> {
        let limited = volume.limits[dimension].as_ref()?;
        let spent = self.spent_since[dimension];
        let on_refill = spent.is_some_and(|since| since + WINDOW_NS <= seen.now);
        let rate = match &limited.credit {
            Some(credit) if on_refill => credit.rate.min(limited.pacer.rate),
            _ => limited.pacer.rate,
        };
        let ppm = MILLION + i128::from(seen.system.margins.peak_ppm);
        let one = i128::from(self.largest[dimension]) * UNIT;
        Some(worth(rate, WINDOW_NS) * ppm / MILLION + one)
    }
}
