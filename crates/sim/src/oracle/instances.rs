//! The limits that all volumes of one client host share, as exact levels.

use super::event::{Direction, Dispatched};
use super::system::InstancePromise;
use super::token_level::Level;
use super::volumes::Limited;

/// Maximum length of a stretch in which an instance is open between two turns: the next volume is
/// served at the following poll, and the instance is closed again.
const TURN_NS: u64 = 1_000_000;

/// One client host.
#[derive(Clone, Debug)]
pub(super) struct Instance {
    /// Limits in I/Os, then in bytes.
    pub(super) limits: [Option<Limited>; 2],
    /// Links of reads, then of writes.
    pub(super) links: [Option<Level>; 2],
    settled_at: u64,
    /// Nanoseconds so far in which all of its limits let a request pass.
    pub(super) open_ns: u64,
    /// Nanoseconds of those that belong to stretches longer than a turn.
    pub(super) idle_ns: u64,
    /// End of the last such stretch, or the time of the last settling if it has not ended.
    pub(super) idle_until: u64,
    /// Length of the present open stretch at the last settling, in nanoseconds.
    stretch_ns: u64,
}

impl Instance {
    pub(super) fn new(promise: &InstancePromise) -> Self {
        let tolerance_ns = promise.tolerance_ns;
        let limited = |limit: Option<_>, balance| {
            limit.map(|limit| Limited::new(limit, tolerance_ns, balance))
        };
        let link = promise.link.map(|rate| Level::pacer(rate, tolerance_ns));
        Self {
            limits: [
                limited(promise.operations, promise.balances.operations),
                limited(promise.bytes, promise.balances.bytes),
            ],
            links: [link; 2],
            settled_at: 0,
            open_ns: 0,
            idle_ns: 0,
            idle_until: 0,
            stretch_ns: 0,
        }
    }

    pub(super) fn settle(&mut self, now: u64) {
        let span_ns = now - self.settled_at;
        self.settled_at = now;
        if span_ns == 0 {
            return;
        }
        let limits = self.limits.iter().flatten().map(|limited| limited.ready_for(span_ns));
        let links = self.links.iter().flatten();
        let links = links.map(|link| link.ready_for(link.raised(span_ns), span_ns));
        let open_ns = limits.chain(links).min().unwrap_or(span_ns);
        self.note_open(open_ns, span_ns);
        for limited in self.limits.iter_mut().flatten() {
            limited.pass(span_ns, 0, 0);
        }
        for link in self.links.iter_mut().flatten() {
            link.pass(span_ns, 0);
        }
    }

    /// Counts the last `open_ns` of a span as open.
    fn note_open(&mut self, open_ns: u64, span_ns: u64) {
        self.open_ns += open_ns;
        let before_ns = if open_ns < span_ns { 0 } else { self.stretch_ns };
        self.stretch_ns = before_ns + open_ns;
        if open_ns > 0 && self.stretch_ns > TURN_NS {
            self.idle_until = self.settled_at;
            self.idle_ns += if before_ns > TURN_NS { open_ns } else { self.stretch_ns };
        }
    }

    /// Returns the nanoseconds for which all of its limits have let a request pass at `now`; `None`
    /// if they do not. `now` is not before the last settling.
    pub(super) fn lets_pass_for(&self, now: u64) -> Option<u64> {
        let span_ns = now.saturating_sub(self.settled_at);
        let open = |level: &Level| level.rate > 0 && level.raised(span_ns) >= 0;
        let limits = self.limits.iter().flatten();
        let pacers =
            limits.clone().map(|limited| &limited.pacer).chain(self.links.iter().flatten());
        let credits = limits.filter_map(|limited| limited.credit.as_ref());
        let mut levels = pacers.chain(credits);
        if !levels.clone().all(open) {
            return None;
        }
        let for_ns = levels.try_fold(span_ns, |for_ns, level| {
            let ready_ns = level.ready_for(level.raised(span_ns), span_ns);
            (ready_ns > 0 || span_ns == 0).then_some(for_ns.min(ready_ns))
        });
        let for_ns = for_ns.unwrap_or(0);
        Some(if for_ns == span_ns { for_ns + self.stretch_ns } else { for_ns })
    }

    pub(super) fn charge(&mut self, dispatched: &Dispatched) {
        for (limited, units) in self.limits.iter_mut().zip(charge(dispatched)) {
            if let Some(limited) = limited {
                limited.take(units);
            }
        }
        if let Some(link) =
            link_of(dispatched.direction).and_then(|index| self.links[index].as_mut())
        {
            link.take(dispatched.length.into());
        }
    }
}

/// Returns the units that a dispatch is charged at its instance: I/Os, then payload bytes moved.
pub(super) fn charge(dispatched: &Dispatched) -> [u64; 2] {
    let moved = if dispatched.direction == Direction::None { 0 } else { dispatched.length };
    [u64::from(dispatched.operations), u64::from(moved)]
}

/// Returns the index of the link for a payload; `None` without a payload.
pub(super) const fn link_of(direction: Direction) -> Option<usize> {
    match direction {
        Direction::Read => Some(0),
        Direction::Write => Some(1),
        Direction::None => None,
    }
}
