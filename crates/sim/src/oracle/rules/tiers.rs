//! Line 5: a dispatch that only credits allow does not precede one that a baseline covers and that
//! is due.
//!
//! Each volume with a baseline has a level of its own for it, a few milliseconds deep. While that
//! is not in debt, the first request of its queue is base. A burst is dispatched only if no other
//! volume's base could be: one that is due, and that the limits of its volume and its instance have
//! let pass for longer than the slack.

use evenkeel_core::convert::saturating;
use std::collections::BTreeSet;

use super::super::event::{Dispatched, Event, Tier};
use super::super::report::{Findings, Rule, Whose};
use super::super::state::Seen;
use super::super::system::{Floor, System, VolumePromise};
use super::super::token_level::{Level, worth};
use super::super::volumes::{Limited, VolumeModel};
use super::{PerVolume, Watcher, units_text};

/// Maximum number of other due volumes that are checked for each burst. In practice no more are
/// held up by their own limits, and the first one that is not decides.
const LOOKS_MAX: usize = 64;

#[derive(Debug, Default)]
struct OfVolume {
    base: Option<Level>,
    settled_at: u64,
    /// Whether its last dispatch was urgent.
    after_urgent: bool,
    /// Time at which its base is due; `None` if it does not wait.
    due: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Tiers {
    volumes: PerVolume<OfVolume>,
    /// The waiting volumes by the time at which their base is due.
    due: BTreeSet<(u64, u32)>,
    depth_ns: u64,
}

impl Tiers {
    pub(super) fn new(system: &System) -> Self {
        let depth_ns = system.bounds.base_depth_ns;
        let mut tiers = Self { volumes: PerVolume::new(), due: BTreeSet::new(), depth_ns };
        for (number, promise) in (0..).zip(&system.volumes) {
            *tiers.volumes.of(number) = OfVolume::new(promise, depth_ns, 0);
        }
        tiers
    }

    fn settle(&mut self, number: u32, now: u64) {
        let of = self.volumes.of(number);
        let span_ns = now - of.settled_at;
        of.settled_at = now;
        if let Some(base) = &mut of.base {
            base.pass(span_ns, 0);
        }
    }

    /// Updates the place of a volume among those that are due. A served volume gets a new one.
    fn place(&mut self, number: u32, waits: bool, served: bool) {
        let of = self.volumes.of(number);
        let due = of.base.as_ref().filter(|base| waits && base.rate > 0).map(|base| {
            let debt: u128 = saturating(-base.level);
            let wait = debt.div_ceil(u128::from(base.rate));
            of.settled_at.saturating_add(saturating(wait))
        });
        // A later request of the same volume does not delay the time at which it is due.
        let earlier = of.due.filter(|before| !served && *before <= of.settled_at);
        let due = due.map(|due| earlier.unwrap_or(due));
        if due != of.due {
            if let Some(before) = of.due {
                self.due.remove(&(before, number));
            }
            of.due = due;
            if let Some(due) = due {
                self.due.insert((due, number));
            }
        }
    }

    fn dispatched(&mut self, dispatched: &Dispatched, seen: &Seen, findings: &mut Findings) {
        let number = dispatched.volume;
        let Some(volume) = seen.volume(number) else { return };
        let waits = volume.requests.queued > u64::from(dispatched.last);
        let whose = Whose::Volume(number);
        // The urgent class has a bound of its own, and at times a normal request gets its turn.
        // Both are charged to the baseline.
        let of = self.volumes.of(number);
        let urgent = dispatched.urgent || of.after_urgent;
        of.after_urgent = dispatched.urgent;
        match dispatched.tier {
            None => self.place(number, waits, true),
            Some(Tier::Base) => {
                let Some(base) = &mut self.volumes.of(number).base else { return };
                let level = base.level;
                let least = -worth(base.rate, seen.system.bounds.base_slack_ns);
                let kept = urgent || level >= least;
                findings.judge(Rule::BaseBeforeBurst, kept, seen.now, whose, || {
                    let over = units_text(-level);
                    ("base is what the baseline covers".to_string(), format!("{over} beyond it"))
                });
                base.take(charge(dispatched, &volume.promise, seen));
                self.place(number, waits, true);
            }
            Some(Tier::Burst) => {
                let passed = self.passed_over(number, seen);
                findings.judge(Rule::BaseBeforeBurst, passed.is_none(), seen.now, whose, || {
                    let other = passed.unwrap_or(number);
                    let expected = "no burst while base is due".to_string();
                    (expected, format!("base of volume {other} was due"))
                });
                self.place(number, waits, true);
            }
        }
    }

    /// Returns another volume whose base is due and that only the scheduler holds up. Time in
    /// stalls does not count.
    fn passed_over(&self, burst: u32, seen: &Seen) -> Option<u32> {
        let slack_ns = seen.system.bounds.base_slack_ns;
        let ready = |number: u32| seen.volume(number).is_some_and(|volume| could_go(volume, seen));
        let overdue = |due: u64| due + slack_ns + seen.stalls.overlap(due, seen.now) <= seen.now;
        let due = self.due.iter().take_while(|(due, _)| due + slack_ns <= seen.now);
        let due = due.take(LOOKS_MAX).filter(|(due, _)| overdue(*due));
        let others = due.map(|(_, number)| *number);
        others.filter(|number| *number != burst).find(|number| ready(*number))
    }
}

impl OfVolume {
    fn new(promise: &VolumePromise, depth_ns: u64, now: u64) -> Self {
        // Nothing is saved before the volume exists.
        let empty = |mut level: Level| {
            level.level = 0;
            level
        };
        Self {
            base: base(promise, depth_ns).map(empty),
            settled_at: now,
            after_urgent: false,
            due: None,
        }
    }
}

impl Watcher for Tiers {
    fn observe(&mut self, event: &Event, seen: &Seen, findings: &mut Findings) {
        let Some(number) = event.volume() else { return };
        if let Event::Added { promise, .. } = event {
            *self.volumes.of(number) = OfVolume::new(promise, self.depth_ns, seen.now);
            return;
        }
        let of = self.volumes.of(number);
        let has_tier = matches!(event, Event::Dispatched(dispatched) if dispatched.tier.is_some());
        let modified = matches!(event, Event::Modified { .. });
        if of.base.is_none() && !has_tier && !modified {
            return;
        }
        self.settle(number, seen.now);
        let Some(volume) = seen.volume(number) else { return };
        match event {
            Event::Submitted(_) => self.place(number, true, false),
            Event::Dispatched(dispatched) => self.dispatched(dispatched, seen, findings),
            Event::Cancelled { .. } => self.place(number, volume.requests.queued > 1, false),
            Event::Removed { .. } => self.place(number, false, false),
            Event::Modified { promise, .. } => {
                let of = self.volumes.of(number);
                let fresh = OfVolume::new(promise, self.depth_ns, seen.now).base;
                let old = of.base.take().filter(|old| old.rate > 0);
                // Base that is not due yet keeps its due time.
                of.base = fresh.map(|mut fresh| {
                    let by_rate = |old: Level| {
                        old.level.saturating_mul(fresh.rate.into()) / i128::from(old.rate)
                    };
                    fresh.level = old.map_or(0, by_rate).min(fresh.depth);
                    fresh
                });
                self.place(number, volume.is_backlogged(), true);
            }
            _ => {}
        }
    }
}

/// Returns the level of the baseline, in I/Os or in device cost.
fn base(promise: &VolumePromise, depth_ns: u64) -> Option<Level> {
    let each = match promise.floor {
        Floor::Reserved { reference_cost_ns, .. } => reference_cost_ns.max(1),
        _ => 1,
    };
    Some(Level::pacer(promise.baseline()?.saturating_mul(each), depth_ns))
}

/// Returns the units that a dispatch takes of the baseline. Device time is the measured one, even
/// if requests take longer since.
fn charge(dispatched: &Dispatched, promise: &VolumePromise, seen: &Seen) -> u64 {
    match (promise.floor, &seen.device.work) {
        (Floor::Reserved { reference_cost_ns: 1.., .. }, Some(work)) => {
            work.cost_ns(dispatched.direction, dispatched.length)
        }
        (Floor::Reserved { reference_cost_ns: 1.., .. }, None) => dispatched.device_cost_ns,
        _ => dispatched.operations.into(),
    }
}

/// Returns whether the limits of its volume and its instance have let the first request of a queue
/// pass for longer than the slack. Time in stalls does not count.
fn could_go(volume: &VolumeModel, seen: &Seen) -> bool {
    let slack_ns = seen.system.bounds.base_slack_ns;
    let span_ns = seen.now - volume.settled_at;
    let open = |level: &Level| level.rate > 0 && level.raised(span_ns) >= 0;
    let passes =
        |limited: &Limited| open(&limited.pacer) && limited.credit.as_ref().is_none_or(open);
    if !volume.limits.iter().flatten().all(passes) {
        return false;
    }
    let ready_for = |limited: &Limited| limited.ready_for(span_ns);
    let mut for_ns = volume.limits.iter().flatten().map(ready_for).min().unwrap_or(span_ns);
    if for_ns == span_ns {
        for_ns += volume.unserved_ns;
    }
    if let Some(instance) = volume.promise.instance.and_then(|number| seen.instance(number)) {
        let Some(open_ns) = instance.lets_pass_for(seen.now) else { return false };
        for_ns = for_ns.min(open_ns);
    }
    for_ns >= slack_ns + seen.stalls.overlap(seen.now - for_ns, seen.now)
}
