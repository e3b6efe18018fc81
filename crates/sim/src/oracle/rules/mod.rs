//! The rules, one small state machine each. They observe every event just before it is applied.

mod bins;
mod bounded;
mod ceiling;
mod conservation;
mod credits;
mod fairness;
mod free;
mod hierarchy;
mod isolation;
mod modify;
mod order;
mod peak;
mod seconds;
mod starvation;
mod sums;
mod tiers;

use std::fmt::Debug;

use super::event::Event;
use super::report::{Findings, Rule};
use super::state::{Seen, VOLUMES_MAX};
use super::system::{DIMENSIONS, System};

/// One rule, or several that share their state.
pub(super) trait Watcher: Debug + Send {
    /// Observes an event. `seen` is the state just before it.
    fn observe(&mut self, event: &Event, seen: &Seen, findings: &mut Findings);

    /// Judges the occasions that are still open at the end.
    fn finish(&mut self, _seen: &Seen, _findings: &mut Findings) {}
}

/// State of each volume, by number; created at the first access. Numbers beyond the maximum share
/// one entry.
#[derive(Debug)]
pub(super) struct PerVolume<T> {
    by_number: Vec<T>,
    wild: T,
}

impl<T: Default> PerVolume<T> {
    pub(super) fn new() -> Self {
        Self { by_number: Vec::new(), wild: T::default() }
    }

    pub(super) fn of(&mut self, volume: u32) -> &mut T {
        if volume >= VOLUMES_MAX {
            return &mut self.wild;
        }
        let at = volume as usize;
        if self.by_number.len() <= at {
            self.by_number.resize_with(at + 1, T::default);
        }
        &mut self.by_number[at]
    }
}

/// Creates the watchers of the requested rules that apply to this system.
pub(super) fn watchers(system: &System, findings: &Findings) -> Vec<Box<dyn Watcher>> {
    let wants = |rules: &[Rule]| rules.iter().any(|rule| findings.wants(*rule));
    let mut watchers: Vec<Box<dyn Watcher>> = Vec::new();
    let mut add = |wanted: bool, watcher: Box<dyn Watcher>| {
        if wanted {
            watchers.push(watcher);
        }
    };
    let shared = !system.instances.is_empty();
    let seconds = [Rule::FirstSecond, Rule::SteadySecond, Rule::Floor];
    add(wants(&[Rule::Ceiling]), Box::new(ceiling::Ceiling::new()));
    add(wants(&seconds), Box::new(seconds::Seconds::new()));
    add(wants(&[Rule::Peak10Ms]), Box::new(peak::Peak::new()));
    add(wants(&[Rule::Credits]), Box::new(credits::Credits));
    add(
        wants(&[Rule::Hierarchy]) && (shared || system.device.is_some()),
        Box::new(hierarchy::Hierarchy),
    );
    add(wants(&[Rule::Hierarchy]) && shared, Box::new(sums::Sums::new(system)));
    add(wants(&[Rule::Fairness]) && shared, Box::new(fairness::Fairness::new(system)));
    add(wants(&[Rule::BaseBeforeBurst, Rule::Ceiling]), Box::new(tiers::Tiers::new(system)));
    add(
        wants(&[Rule::Isolation]) && !system.alone.is_empty(),
        Box::new(isolation::Isolation::new(system)),
    );
    if let Some(work) = system.device.and_then(|device| device.work) {
        add(wants(&[Rule::FreeChannel]), Box::new(free::FreeChannel::new(&work)));
    }
    add(wants(&[Rule::Modify]), Box::new(modify::Modify::new()));
    add(wants(&[Rule::NoStarvation]), Box::new(starvation::Starvation::new()));
    add(wants(&[Rule::ClassOrder]), Box::new(order::ClassOrder::new()));
    add(wants(&[Rule::Conservation]), Box::new(conservation::Conservation));
    add(wants(&[Rule::Bounded]), Box::new(bounded::Bounded));
    watchers
}

/// The names of the dimensions.
pub(super) const NAMES: [&str; DIMENSIONS] = ["I/Os", "bytes", "guarded requests"];

/// Formats level units as units with three decimals, rounded down, for printing only.
pub(super) fn units_text(level: i128) -> String {
    let thousandths = level / 1_000_000;
    let sign = if thousandths < 0 { "-" } else { "" };
    let whole = thousandths.unsigned_abs();
    format!("{sign}{}.{:03}", whole / 1_000, whole % 1_000)
}
