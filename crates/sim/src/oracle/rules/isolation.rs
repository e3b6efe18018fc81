//! Line 6: the 99th percentile of a log writer at queue depth 1 is at most twice that without
//! neighbours.
//!
//! The percentile is within a bound exactly if at most one latency in a hundred exceeds it. That
//! takes two counters and no histogram. Latencies in the wake of a stall are not judged.

use super::super::event::Event;
use super::super::report::{Findings, Rule, Whose};
use super::super::state::Seen;
use super::super::system::{Alone, System};
use super::Watcher;
use evenkeel_core::convert::saturating;

/// Minimum number of latencies that have a 99th percentile.
const SAMPLES_MIN: u64 = 100;

#[derive(Debug)]
struct Watched {
    alone: Alone,
    most_ns: u64,
    answered: u64,
    above: u64,
    longest_ns: u64,
}

#[derive(Debug)]
pub(super) struct Isolation(Vec<Watched>);

impl Isolation {
    pub(super) fn new(system: &System) -> Self {
        let percent = u128::from(system.margins.isolation_percent);
        let watched = |alone: &Alone| {
            let most_ns = u128::from(alone.p99_ns) * percent / 100;
            Watched {
                alone: *alone,
                most_ns: saturating(most_ns),
                answered: 0,
                above: 0,
                longest_ns: 0,
            }
        };
        Self(system.alone.iter().map(watched).collect())
    }
}

impl Watcher for Isolation {
    fn observe(&mut self, event: &Event, seen: &Seen, _findings: &mut Findings) {
        let Event::Completed(completed) = event else { return };
        if !completed.last {
            return;
        }
        let of = |watched: &&mut Watched| watched.alone.volume == completed.volume;
        let Some(watched) = self.0.iter_mut().find(of) else { return };
        let Some(volume) = seen.volume(completed.volume) else { return };
        // If a client has several requests in flight, they are neighbours of each other.
        if volume.requests.len() != 1 {
            return;
        }
        let request = volume.requests.get(completed.handle);
        if let Some(request) = request.filter(|request| !seen.stalls.is_wake(request.at)) {
            let latency_ns = seen.now.saturating_sub(request.at);
            watched.answered += 1;
            watched.above += u64::from(latency_ns > watched.most_ns);
            watched.longest_ns = watched.longest_ns.max(latency_ns);
        }
    }

    fn finish(&mut self, seen: &Seen, findings: &mut Findings) {
        for watched in self.0.iter().filter(|watched| watched.answered >= SAMPLES_MIN) {
            let kept = watched.above * 100 <= watched.answered;
            let whose = Whose::Volume(watched.alone.volume);
            findings.judge(Rule::Isolation, kept, seen.now, whose, || {
                let most = watched.most_ns;
                let alone = watched.alone.p99_ns;
                let expected = format!("p99 at most {most} ns ({alone} ns alone)");
                let above = watched.above;
                let answered = watched.answered;
                let longest = watched.longest_ns;
                (expected, format!("{above} of {answered} took longer, the longest {longest} ns"))
            });
        }
    }
}
