//! Line 5: the volumes of a saturated client host together get its limit, to 0.1 %.
//!
//! A second is saturated while one and the same volume waits although its own limits let it pass:
//! then only the host's limits can hold it.

use super::super::event::Event;
use super::super::instances::{self, Instance};
use super::super::report::{Findings, Rule, Whose};
use super::super::state::Seen;
use super::super::system::System;
use super::super::token_level::{UNIT, worth};
use super::super::volumes::Limited;
use super::{PerVolume, Watcher, units_text};

const SECOND_NS: u64 = 1_000_000_000;
/// Minimum demand of a second that is judged, in nanoseconds.
const DEMAND_NS_MIN: u64 = 900_000_000;
const MILLION: i128 = 1_000_000;
const NAMES: [&str; 4] = ["I/Os", "bytes", "bytes read", "bytes written"];

/// The present second of one instance.
#[derive(Clone, Copy, Debug, Default)]
struct Second {
    number: u64,
    /// Used I/Os, bytes, bytes read, bytes written.
    used: [u64; 4],
    largest: [u64; 4],
    /// Its limits at its start.
    levels: [Option<Limited>; 4],
    /// The longest time that one volume waited for the instance, in nanoseconds.
    demand_ns: u64,
    /// Whether the device or a stall held a volume up. Then the sum is not judged.
    excused: bool,
    saturated_before: bool,
}

/// The demand of one volume in a second.
#[derive(Clone, Copy, Debug, Default)]
struct Demand {
    second: u64,
    waited_ns: u64,
    past_instance_ns: u64,
    unexcused_ns: u64,
}

#[derive(Debug)]
pub(super) struct Sums {
    seconds: Vec<Second>,
    demands: PerVolume<Demand>,
    /// Allowed deviation of a sum from its limit, in millionths.
    margin_ppm: u32,
}

impl Sums {
    pub(super) fn new(system: &System) -> Self {
        let begin = |promise| Second {
            levels: levels(&Instance::new(promise), 0),
            excused: true, // the saved tolerance may be used in it, so it is not judged
            ..Second::default()
        };
        Self {
            seconds: system.instances.iter().map(begin).collect(),
            demands: PerVolume::new(),
            margin_ppm: system.margins.sum_ppm,
        }
    }

    /// Adds the time that a volume waited for its instance since its last event.
    fn demand(&mut self, number: u32, seen: &Seen) {
        let Some(volume) = seen.volume(number) else { return };
        let Some(instance) = volume.promise.instance else { return };
        let Some(second) = self.seconds.get_mut(instance as usize) else { return };
        let demand = self.demands.of(number);
        let held_up = volume.held_up;
        let passed = held_up.past_instance_ns.saturating_sub(demand.past_instance_ns);
        let unexcused = held_up.unexcused_ns.saturating_sub(demand.unexcused_ns);
        demand.past_instance_ns = held_up.past_instance_ns;
        demand.unexcused_ns = held_up.unexcused_ns;
        second.excused |= passed > unexcused;
        let from = second.number * SECOND_NS;
        let to = (second.number + 1) * SECOND_NS;
        if demand.second != second.number {
            *demand = Demand { second: second.number, waited_ns: 0, ..*demand };
        }
        let begun = (seen.now - volume.last_held_up_ns).max(from);
        demand.waited_ns += seen.now.min(to).saturating_sub(begun);
        second.demand_ns = second.demand_ns.max(demand.waited_ns);
    }

    /// Judges the present second of an instance if it has ended, and begins the next one.
    fn roll(&mut self, number: u32, seen: &Seen, findings: &mut Findings) {
        let Some(second) = self.seconds.get_mut(number as usize) else { return };
        let Some(instance) = seen.instance(number) else { return };
        let present = seen.now / SECOND_NS;
        if present == second.number {
            return;
        }
        let full = second.demand_ns >= SECOND_NS - SECOND_NS / 1_000;
        judge(second, number, full, self.margin_ppm, findings);
        *second = Second {
            number: present,
            levels: levels(instance, seen.now % SECOND_NS),
            excused: present != second.number + 1,
            saturated_before: full && present == second.number + 1,
            ..Second::default()
        };
    }
}

impl Watcher for Sums {
    fn observe(&mut self, event: &Event, seen: &Seen, findings: &mut Findings) {
        let Some(number) = event.volume() else { return };
        self.demand(number, seen);
        if let Some(instance) = seen.volume(number).and_then(|volume| volume.promise.instance) {
            self.roll(instance, seen, findings);
        }
        let Event::Dispatched(dispatched) = event else { return };
        self.roll(dispatched.instance, seen, findings);
        let Some(second) = self.seconds.get_mut(dispatched.instance as usize) else { return };
        let [operations, bytes] = instances::charge(dispatched);
        let mut units = [operations, bytes, 0, 0];
        if let Some(link) = instances::link_of(dispatched.direction) {
            units[2 + link] = bytes;
        }
        for (at, units) in units.into_iter().enumerate() {
            second.used[at] += units;
            second.largest[at] = second.largest[at].max(units);
        }
    }
}

/// Returns the limits of an instance `back_ns` ago: I/Os, bytes, reads, writes.
fn levels(instance: &Instance, back_ns: u64) -> [Option<Limited>; 4] {
    let [operations, bytes] = instance.limits;
    let [reads, writes] = instance.links.map(|link| link.map(Limited::plain));
    [operations, bytes, reads, writes].map(|limited| {
        let mut limited = limited?;
        limited.pacer.level = limited.pacer.before(back_ns);
        if let Some(credit) = &mut limited.credit {
            credit.level = credit.before(back_ns);
        }
        Some(limited)
    })
}

fn judge(second: &Second, number: u32, full: bool, margin_ppm: u32, findings: &mut Findings) {
    if second.demand_ns < DEMAND_NS_MIN || second.excused {
        return;
    }
    let at = (second.number + 1) * SECOND_NS;
    let off = |ppm: i128, whole: i128| whole / MILLION * ppm;
    let margin = i128::from(margin_ppm);
    let used = |at: usize| i128::from(second.used[at]) * UNIT;
    let one = |at: usize| i128::from(second.largest[at]) * UNIT;
    let limits = || second.levels.iter().enumerate().filter_map(|(i, l)| Some((i, (*l)?)));
    let enough = |(i, l): (usize, Limited)| {
        used(i) + one(i) >= off(MILLION - margin, l.entitled(second.demand_ns))
    };
    // If two limits each hold in a part of the second, neither need be reached in all of it.
    let half = |(i, l): &(usize, Limited)| used(*i) * 2 > l.entitled(SECOND_NS);
    let mixed = limits().filter(half).count() > 1;
    let kept = mixed || limits().any(enough);
    let whose = Whose::Instance(number);
    findings.judge(Rule::Hierarchy, kept, at, whose, || {
        let sums = limits().map(|(i, _)| format!("{} {}", units_text(used(i)), NAMES[i]));
        let sums: Vec<String> = sums.collect();
        let percent = 100.0 - f64::from(margin_ppm) / 1e4;
        (format!("{percent} % of a limit in {} ns", second.demand_ns), sums.join(", "))
    });
    if !(full && second.saturated_before) {
        return;
    }
    for (i, limited) in limits() {
        // Tokens that another limit kept it from using may have been saved.
        let saved = limited.pacer.level.max(0);
        let most = off(MILLION + margin, worth(limited.pacer.rate, SECOND_NS)) + saved + one(i);
        findings.judge(Rule::Hierarchy, used(i) <= most, at, whose, || {
            (format!("at most {} {}", units_text(most), NAMES[i]), units_text(used(i)))
        });
    }
}
