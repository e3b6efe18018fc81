//! Line 1: any window of any length has at most rate x length, the tolerance's worth and one I/O.
//!
//! All windows are judged at once: a level that rises with the served units and drains at the rate
//! is, at any time, the largest excess of any window that ends then. Before the last I/O of a
//! window it may be the tolerance's worth. Modifications are judged generously here (a window may
//! save the largest tolerance in force during it); [`Modify`](super::modify) is exact about them.
//!
//! Time that the server was late is not forfeited: a volume that waited although its limits and its
//! instance let it pass may be behind by that time, up to the made-whole time. It catches up at no
//! more than the catch-up rate, which is a second level that drains faster.

use super::super::event::Event;
use super::super::report::{Findings, Rule, Whose};
use super::super::state::Seen;
use super::super::system::{CatchUp, DIMENSIONS};
use super::super::token_level::{UNIT, worth};
use super::super::volumes::VolumeModel;
use super::{NAMES, PerVolume, Watcher, units_text};

/// The excess of the worst window that ends now, in one dimension.
#[derive(Clone, Copy, Debug)]
struct Window {
    rate: u64,
    /// The most that any window that is still open may save, at the rate and at the catch-up rate.
    depth: i128,
    catch_up_depth: i128,
    /// The depth in force.
    depth_now: i128,
    /// Excess over the rate; negative by the units that are to be caught up with.
    ahead: i128,
    /// Excess over the catch-up rate, in quarters of units.
    catch_up: i128,
}

#[derive(Debug, Default)]
struct OfVolume {
    windows: [Option<Window>; DIMENSIONS],
    begun: bool,
    settled_at: u64,
    catch_up_ns: u64,
}

#[derive(Debug)]
pub(super) struct Ceiling(PerVolume<OfVolume>);

impl Ceiling {
    pub(super) fn new() -> Self {
        Self(PerVolume::new())
    }
}

impl Watcher for Ceiling {
    fn observe(&mut self, event: &Event, seen: &Seen, findings: &mut Findings) {
        let rule = seen.system.catch_up;
        match event {
            Event::Submitted(submitted) => {
                let Some(volume) = seen.volume(submitted.volume) else { return };
                if !volume.is_backlogged() {
                    let of = self.0.of(submitted.volume);
                    of.settle(volume, seen.now, rule);
                    of.forfeit();
                }
            }
            Event::Dispatched(dispatched) => {
                let Some(volume) = seen.volume(dispatched.volume) else { return };
                let of = self.0.of(dispatched.volume);
                of.settle(volume, seen.now, rule);
                for (dimension, units) in dispatched.charge().into_iter().enumerate() {
                    let Some(window) = of.windows[dimension].as_mut().filter(|_| units > 0) else {
                        continue;
                    };
                    let whose = Whose::Volume(dispatched.volume);
                    findings.judge(Rule::Ceiling, window.allows(), seen.now, whose, || {
                        window.words(dimension)
                    });
                    window.take(units);
                }
            }
            Event::Modified { volume: number, promise, .. } => {
                let Some(volume) = seen.volume(*number) else { return };
                let of = self.0.of(*number);
                of.settle(volume, seen.now, rule);
                of.forfeit();
                for (window, limit) in of.windows.iter_mut().zip(promise.limits()) {
                    let Some(limit) = limit else {
                        *window = None;
                        continue;
                    };
                    let depth = worth(limit.per_second, promise.tolerance_ns);
                    let fresh = Window::new(limit.per_second, depth);
                    let window = window.get_or_insert(fresh);
                    (window.rate, window.depth_now) = (limit.per_second, depth);
                    window.depth = window.depth.max(depth);
                    window.catch_up_depth = window.catch_up_depth.max(depth);
                }
            }
            Event::Added { volume, .. } | Event::Removed { volume, .. } => {
                *self.0.of(*volume) = OfVolume::default();
            }
            _ => {}
        }
    }
}

impl OfVolume {
    fn settle(&mut self, volume: &VolumeModel, now: u64, rule: CatchUp) {
        if !self.begun {
            self.begun = true;
            for (window, limit) in self.windows.iter_mut().zip(volume.promise.limits()) {
                *window = limit.map(|limit| {
                    let depth = worth(limit.per_second, volume.promise.tolerance_ns);
                    Window::new(limit.per_second, depth)
                });
            }
        }
        let span_ns = now - self.settled_at;
        let owed_ns = volume.held_up.catch_up_ns.saturating_sub(self.catch_up_ns);
        (self.settled_at, self.catch_up_ns) = (now, volume.held_up.catch_up_ns);
        for window in self.windows.iter_mut().flatten() {
            window.pass(span_ns, owed_ns, rule);
        }
    }

    /// Forfeits the catch-up of a volume without waiting requests.
    fn forfeit(&mut self) {
        for window in self.windows.iter_mut().flatten() {
            if window.ahead < 0 {
                (window.ahead, window.depth) = (0, window.depth_now);
            }
        }
    }
}

impl Window {
    const fn new(rate: u64, depth: i128) -> Self {
        Self { rate, depth, catch_up_depth: depth, depth_now: depth, ahead: 0, catch_up: 0 }
    }

    fn pass(&mut self, span_ns: u64, owed_ns: u64, rule: CatchUp) {
        let owed = worth(self.rate, owed_ns) - self.ahead.min(0);
        let owed = owed.min(worth(self.rate, rule.time_ns));
        let drained_to = self.ahead - worth(self.rate, span_ns);
        self.ahead = drained_to.max(-owed);
        // Only forfeited units end the open windows. Time that is caught up with does not.
        let forfeited = drained_to < -owed || self.ahead == 0;
        let drained = worth(self.rate, span_ns).saturating_mul(rule.rate_quarters.into());
        self.catch_up = (self.catch_up - drained).max(0);
        if forfeited {
            self.depth = self.depth_now;
        }
        if self.catch_up == 0 {
            self.catch_up_depth = self.depth_now;
        }
    }

    /// Returns whether one more request may be dispatched, of any size.
    fn allows(&self) -> bool {
        self.rate > 0 && self.ahead <= self.depth && self.catch_up <= 4 * self.catch_up_depth
    }

    fn take(&mut self, units: u64) {
        let units = i128::from(units) * UNIT;
        self.ahead += units;
        self.catch_up += 4 * units;
    }

    fn words(&self, dimension: usize) -> (String, String) {
        let name = NAMES[dimension];
        let rate = self.rate;
        let depth = units_text(self.depth);
        let catch_up_depth = units_text(self.catch_up_depth);
        let expected = format!("at most {depth} {name} ahead of {rate} a second before one more");
        let ahead = units_text(self.ahead);
        let catch_up = units_text(self.catch_up / 4);
        (
            expected,
            format!(
                "{ahead} ahead, {catch_up} ahead of the catch-up rate (at most {catch_up_depth})"
            ),
        )
    }
}
