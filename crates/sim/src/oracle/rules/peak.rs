//! Line 1: while a volume is steadily backlogged, no 10 ms have much more than the average.
//!
//! A backlog is steady if the tokens saved before it are spent. It is not steady while others hold
//! the volume up or pause, nor for the time that it may take to catch up afterwards. On a device,
//! which holds up one request after another, it is not steady either while it may spend what its
//! limits earned while it had no claim.

use std::collections::VecDeque;

use super::super::event::{Dispatched, Event};
use super::super::report::{Findings, Rule, Whose};
use super::super::state::Seen;
use super::super::system::DIMENSIONS;
use super::super::token_level::{UNIT, worth};
use super::super::volumes::{Limited, VolumeModel};
use super::bins::bind;
use super::{NAMES, PerVolume, Watcher, units_text};

const WINDOW_NS: u64 = 10_000_000;
/// Dispatches less than this apart are one entry, with the time of the first. So memory is bounded,
/// and no window has more than it really has.
const GRAIN_NS: u64 = 10_000;
const MILLION: i128 = 1_000_000;

/// The steady time of one limit.
#[derive(Debug, Default)]
struct Steady {
    /// Earliest start of a window; meaningless while the limit does not hold the volume.
    from: u64,
    /// Whether it was held up by others and has not got all of that time back.
    catches_up: bool,
    recent: VecDeque<(u64, u64)>,
    sum: u64,
    largest: u64,
    /// Time since which the earnings of its credits hold it; `None` while a balance is left.
    spent_since: Option<u64>,
    /// Last time at which they held it; 0 before the first.
    spent_until: u64,
}

#[derive(Debug, Default)]
struct OfVolume {
    bound_since: [Option<u64>; DIMENSIONS],
    limits: [Steady; DIMENSIONS],
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
            Event::Modified { .. } => {
                of.restart();
                // It keeps as tokens the units with which it caught up while another limit held it.
                for (steady, limited) in of.limits.iter_mut().zip(&volume.limits) {
                    steady.catches_up = limited.as_ref().is_some_and(Limited::catches_up);
                }
            }
            Event::Removed { .. } => of.restart(),
            // The volume is still owed what it was owed before.
            Event::Credited { .. } => {
                let owed = of.limits.each_ref().map(|steady| (steady.from, steady.catches_up));
                of.restart();
                for (steady, owed) in of.limits.iter_mut().zip(owed) {
                    (steady.from, steady.catches_up) = owed;
                }
            }
            _ => {}
        }
    }
}

impl OfVolume {
    fn restart(&mut self) {
        self.bound_since = [None; DIMENSIONS];
        self.limits.iter_mut().for_each(Steady::restart);
    }

    /// Excludes the time in which others held the volume up, and the time to catch up with it at a
    /// quarter of the rate.
    fn excuse(&mut self, volume: &VolumeModel, seen: &Seen) {
        let unexcused = volume.held_up.unexcused_ns.saturating_sub(self.unexcused_ns);
        self.unexcused_ns = volume.held_up.unexcused_ns;
        if unexcused > 0 && seen.device.work.is_some() {
            for steady in &mut self.limits {
                steady.from = steady.from.max(seen.now + WINDOW_NS);
                steady.clear();
            }
        }
        let excused = volume.last_held_up_ns.saturating_sub(unexcused);
        if excused > 0 {
            let most_ns = seen.system.catch_up.time_ns;
            for steady in &mut self.limits {
                // Several delays add up, to the maximum that is caught up with. The last part of it
                // may serve an I/O in the next window.
                let owed_ns = steady.from.saturating_sub(seen.now + WINDOW_NS) / 4 + excused;
                let until = seen.now + 4 * owed_ns.min(most_ns) + WINDOW_NS;
                steady.from = steady.from.max(until);
                steady.catches_up = true;
                steady.clear();
            }
        }
    }

    fn take(
        &mut self,
        dispatched: &Dispatched,
        volume: &VolumeModel,
        seen: &Seen,
        findings: &mut Findings,
    ) {
        let units = dispatched.charge();
        bind(&mut self.bound_since, volume.bound_after(&units), seen.now);
        for (dimension, units) in units.into_iter().enumerate() {
            let steady = &mut self.limits[dimension];
            steady.largest = steady.largest.max(units);
            let (Some(limited), Some(since)) =
                (&volume.limits[dimension], self.bound_since[dimension])
            else {
                steady.clear();
                continue;
            };
            steady.note_credits(limited, units, seen.now);
            // Waiting during the catch-up adds to the time that the volume is owed.
            steady.catches_up &= limited.catches_up();
            if steady.catches_up {
                steady.from = steady.from.max(seen.now + WINDOW_NS);
            }
            // The dispatch that spends the last saved token precedes the steady time.
            if units == 0 || since.max(steady.from) >= seen.now {
                continue;
            }
            steady.push(seen.now, units);
            let most = steady.most(limited, seen);
            let used = i128::from(steady.sum) * UNIT;
            let whose = Whose::Volume(dispatched.volume);
            findings.judge(Rule::Peak10Ms, used <= most, seen.now, whose, || {
                let name = NAMES[dimension];
                (format!("at most {} {name} in 10 ms", units_text(most)), units_text(used))
            });
        }
    }
}

impl Steady {
    fn restart(&mut self) {
        self.clear();
        (self.from, self.largest, self.catches_up) = (0, 0, false);
        (self.spent_since, self.spent_until) = (None, 0);
    }

    fn clear(&mut self) {
        self.recent.clear();
        self.sum = 0;
    }

    fn note_credits(&mut self, limited: &Limited, units: u64, now: u64) {
        if limited.on_refill_after(units) {
            self.spent_since.get_or_insert(now);
            self.spent_until = now;
        } else {
            self.spent_since = None;
        }
    }

    fn push(&mut self, now: u64, units: u64) {
        while let Some(&(at, old)) = self.recent.front() {
            if at + WINDOW_NS > now {
                break;
            }
            self.recent.pop_front();
            self.sum -= old;
        }
        match self.recent.back_mut() {
            Some((at, sum)) if *at + GRAIN_NS > now => *sum += units,
            _ => self.recent.push_back((now, units)),
        }
        self.sum += units;
    }

    /// Returns the maximum of the 10 ms up to now, in level units.
    fn most(&self, limited: &Limited, seen: &Seen) -> i128 {
        let all_of_it = self.spent_since.is_some_and(|since| since + WINDOW_NS <= seen.now);
        let some_of_it = self.spent_until > 0 && self.spent_until + WINDOW_NS > seen.now;
        // Credits may earn more than a lowered rate, while its tokens last.
        let rate = match &limited.credit {
            Some(credit) if all_of_it => credit.rate,
            Some(credit) if some_of_it => credit.rate.max(limited.pacer.rate),
            _ => limited.pacer.rate,
        };
        let ppm = MILLION + i128::from(seen.system.margins.peak_ppm);
        worth(rate, WINDOW_NS) * ppm / MILLION + i128::from(self.largest) * UNIT
    }
}
