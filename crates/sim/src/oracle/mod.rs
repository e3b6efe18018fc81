//! The promise of a whole system as code, judged event by event.
//!
//! A live verdict judges one backlogged volume by the counts of its client. This module observes
//! every event of many volumes: submissions, dispatches, completions, changes of limits. It knows
//! the promises ([`System`]) and restates them in exact integers; it shares no code with the
//! scheduler. The simulator, the fuzzer and the benchmarks report [`Event`]s to it in the order of
//! time, and get a [`Report`] at the end.
//!
//! ```text
//!  events ─▶ Checkers ─▶ Seen: exact levels of every limit, every request, causes of waiting
//!                 │            ▲ read by
//!                 └─▶ rules/: ceiling, seconds, peak, credits, hierarchy, ... ─▶ Report
//! ```
//!
//! Every rule is a small state machine with bounded memory. docs/internals/checkers.md has the
//! occasions that each rule judges.

mod counting;
mod device;
mod event;
mod instances;
pub mod recorded;
mod report;
mod requests;
mod rules;
mod state;
mod system;
mod token_level;
mod volumes;

#[cfg(test)]
mod tests;

pub use counting::{Counter, Piece};
pub use event::{Cause, Completed, Direction, Dispatched, Event, Sample, Submitted, Tier};
pub use report::{Finding, Report, Rule, Violation};
pub use system::{
    Alone, Bounds, CatchUp, DIMENSIONS, DevicePromise, DeviceWork, Floor, InstancePromise, Margins,
    System, VolumePromise,
};

use self::report::Findings;
use self::rules::Watcher;
use self::state::Seen;

/// The rules that apply to a system, and the state that they read.
#[derive(Debug)]
pub struct Checkers {
    seen: Seen,
    watchers: Vec<Box<dyn Watcher>>,
    findings: Findings,
    events: u64,
}

impl Checkers {
    /// Creates the checkers of every rule.
    #[must_use]
    pub fn new(system: System) -> Self {
        Self::only(system, &Rule::ALL)
    }

    /// Creates the checkers of some rules.
    #[must_use]
    pub fn only(system: System, rules: &[Rule]) -> Self {
        let findings = Findings::new(rules);
        let watchers = rules::watchers(&system, &findings);
        Self { seen: Seen::new(system), watchers, findings, events: 0 }
    }

    /// Observes one event. Events come in the order of time; the time of an earlier one is taken as
    /// that of its predecessor.
    pub fn observe(&mut self, event: &Event) {
        self.events += 1;
        self.seen.arrive(event);
        for watcher in &mut self.watchers {
            watcher.observe(event, &self.seen, &mut self.findings);
        }
        self.seen.apply(event);
    }

    /// Returns the number of violations so far. A caller may stop a run at the first one.
    #[must_use]
    pub fn violations(&self) -> u64 {
        self.findings.violations()
    }

    /// Judges the occasions that are still open at the last event, and returns the report.
    #[must_use]
    pub fn finish(mut self) -> Report {
        self.seen.settle_all();
        for watcher in &mut self.watchers {
            watcher.finish(&self.seen, &mut self.findings);
        }
        self.findings.into_report(self.events)
    }
}
