//! Line 5: an I/O that only credits allow does not pass one that a baseline covers and that is due.
//!
//! Each volume with a baseline has a level of its own for it, a few milliseconds deep. While that
//! is not in debt, the first of its queue is base. A burst goes only when no other volume's base
//! could: due, let pass by its volume's limits and its instance's, for longer than the slack.

use std::collections::BTreeSet;

use super::super::event::{Dispatched, Event, Tier};
use super::super::level::{Level, worth};
use super::super::report::{Findings, Rule, Whose};
use super::super::seen::Seen;
use super::super::system::{Floor, System, VolumePromise};
use super::super::volumes::{Limited, Volume};
use super::{PerVolume, Watcher, units_text};

/// Others that are due and looked at for each burst: more are never held up by their own limits in
/// practice, and the first that is not decides.
const LOOKS_MAX: usize = 64;

#[derive(Debug, Default)]
struct OfVolume {
    base: Option<Level>,
    settled_at: u64,
    /// Its place among those that are due, if it waits.
    due: Option<u64>,
}

#[derive(Debug)]
pub(super) struct Tiers {
    volumes: PerVolume<OfVolume>,
    /// When the base of whoever waits is due.
    due: BTreeSet<(u64, u32)>,
    depth_ns: u64,
}

impl Tiers {
    pub(super) fn new(system: &System) -> Self {
        let depth_ns = system.bounds.base_depth_ns;
        let mut tiers = Self { volumes: PerVolume::new(), due: BTreeSet::new(), depth_ns };
        for (number, promise) in (0..).zip(&system.volumes) {
            tiers.volumes.of(number).base = base(promise, depth_ns);
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

    /// Puts a volume where it belongs among those that are due.
    fn place(&mut self, number: u32, waits: bool) {
        let of = self.volumes.of(number);
        let due = of.base.as_ref().filter(|base| waits && base.rate > 0).map(|base| {
            let debt = u128::try_from(-base.level).unwrap_or(0);
            let wait = debt.div_ceil(u128::from(base.rate));
            of.settled_at.saturating_add(u64::try_from(wait).unwrap_or(u64::MAX))
        });
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
        match dispatched.tier {
            None => self.place(number, waits),
            Some(Tier::Base) => {
                let Some(base) = &mut self.volumes.of(number).base else { return };
                let level = base.level;
                findings.judge(Rule::BaseBeforeBurst, level >= 0, seen.now, whose, || {
                    let over = units_text(-level);
                    ("base is what the baseline covers".to_string(), format!("{over} beyond it"))
                });
                base.take(charge(dispatched, &volume.promise));
                self.place(number, waits);
            }
            Some(Tier::Burst) => {
                let passed = self.passed_over(number, seen);
                findings.judge(Rule::BaseBeforeBurst, passed.is_none(), seen.now, whose, || {
                    let other = passed.unwrap_or(number);
                    let expected = "no burst while base is due".to_string();
                    (expected, format!("base of volume {other} was due"))
                });
                self.place(number, waits);
            }
        }
    }

    /// Another volume whose base is due and that nothing but us holds up.
    fn passed_over(&self, burst: u32, seen: &Seen) -> Option<u32> {
        let slack_ns = seen.system.bounds.base_slack_ns;
        let ready = |number: u32| {
            let Some(volume) = seen.volume(number) else { return false };
            let span_ns = seen.now - volume.settled_at;
            let passes = |limited: &Limited| lets_pass(limited, span_ns, slack_ns);
            volume.limits.iter().flatten().all(passes) && instance_lets_pass(volume, seen)
        };
        let due = self.due.iter().take_while(|(due, _)| due + slack_ns <= seen.now);
        let others = due.take(LOOKS_MAX).map(|(_, number)| *number);
        others.filter(|number| *number != burst).find(|number| ready(*number))
    }
}

impl Watcher for Tiers {
    fn observe(&mut self, event: &Event, seen: &Seen, findings: &mut Findings) {
        let Some(number) = event.volume() else { return };
        if let Event::Added { promise, .. } = event {
            let base = base(promise, self.depth_ns);
            *self.volumes.of(number) = OfVolume { base, settled_at: seen.now, due: None };
            return;
        }
        if self.volumes.of(number).base.is_none() && !matches!(event, Event::Modified { .. }) {
            return;
        }
        self.settle(number, seen.now);
        let Some(volume) = seen.volume(number) else { return };
        match event {
            Event::Submitted(_) => self.place(number, true),
            Event::Dispatched(dispatched) => self.dispatched(dispatched, seen, findings),
            Event::Cancelled { .. } => self.place(number, volume.requests.queued > 1),
            Event::Removed { .. } => self.place(number, false),
            Event::Modified { promise, .. } => {
                let of = self.volumes.of(number);
                let fresh = base(promise, self.depth_ns);
                of.base = fresh.map(|mut fresh| {
                    fresh.level = of.base.map_or(0, |base| base.level).min(fresh.depth);
                    fresh
                });
                self.place(number, volume.is_backlogged());
            }
            _ => {}
        }
    }
}

/// The baseline's level, in I/Os or in device cost.
fn base(promise: &VolumePromise, depth_ns: u64) -> Option<Level> {
    let each = match promise.floor {
        Floor::Reserved { reference_cost_ns, .. } => reference_cost_ns.max(1),
        _ => 1,
    };
    Some(Level::pacer(promise.baseline()?.saturating_mul(each), depth_ns))
}

fn charge(dispatched: &Dispatched, promise: &VolumePromise) -> u64 {
    match promise.floor {
        Floor::Reserved { reference_cost_ns: 1.., .. } => dispatched.device_cost_ns,
        _ => dispatched.operations.into(),
    }
}

/// Whether a limit that was settled `span_ns` ago has let one more pass for at least `slack_ns`.
fn lets_pass(limited: &Limited, span_ns: u64, slack_ns: u64) -> bool {
    let over = |level: &Level| {
        level.rate > 0 && level.raised(span_ns) >= worth(level.rate, slack_ns).min(level.depth)
    };
    over(&limited.pacer) && limited.credit.as_ref().is_none_or(over)
}

fn instance_lets_pass(volume: &Volume, seen: &Seen) -> bool {
    let instance = volume.promise.instance.and_then(|number| seen.instance(number));
    instance.is_none_or(|instance| instance.lets_pass(seen.now))
}
