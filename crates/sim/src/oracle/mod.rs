//! The promise as code for a whole system, judged event by event.
//!
//! Where a live verdict judges one backlogged volume by what its client counted, this
//! watches everything that happens to many: who submitted what, what was dispatched, what the
//! device answered, which limits changed. It knows what was promised ([`System`]) and restates it
//! in exact integers; it shares no code with the scheduler. The simulator, the fuzzer and the
//! benchmarks report [`Event`]s to it in the order of time and ask for a [`Report`] at the end.
//!
//! ```text
//!  events ─▶ Checkers ─▶ Seen: exact levels of every limit, every request, who holds up whom
//!                 │            ▲ looked at by
//!                 └─▶ rules/: ceiling, seconds, peak, credits, hierarchy, ... ─▶ Report
//! ```
//!
//! Every rule is a small machine with bounded memory. What is judged when is in
//! docs/internals/checkers.md.

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

/// All rules that apply to a system, watching it.
#[derive(Debug)]
pub struct Checkers {
    seen: Seen,
    watchers: Vec<Box<dyn Watcher>>,
    findings: Findings,
    events: u64,
}

impl Checkers {
    /// Every rule.
    #[must_use]
    pub fn new(system: System) -> Self {
        Self::only(system, &Rule::ALL)
    }

    /// Some of the rules.
    #[must_use]
    pub fn only(system: System, rules: &[Rule]) -> Self {
        let findings = Findings::new(rules);
        let watchers = rules::watchers(&system, &findings);
        Self { seen: Seen::new(system), watchers, findings, events: 0 }
    }

    /// Takes one event. Their times do not step back; one that does counts as the latest before it.
    pub fn observe(&mut self, event: &Event) {
        self.events += 1;
        self.seen.arrive(event);
        for watcher in &mut self.watchers {
            watcher.observe(event, &self.seen, &mut self.findings);
        }
        self.seen.apply(event);
    }

    /// How many violations were found so far: to stop a run at the first.
    #[must_use]
    pub fn violations(&self) -> u64 {
        self.findings.violations()
    }

    /// Judges what was still open when the last event happened.
    #[must_use]
    pub fn finish(mut self) -> Report {
        self.seen.settle_all();
        for watcher in &mut self.watchers {
            watcher.finish(&self.seen, &mut self.findings);
        }
        self.findings.into_report(self.events)
    }
}
