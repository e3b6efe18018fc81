//! Where in its cycle a scheduler is: all that decides what it will do, whatever time it is.
//!
//! Every limit is a level that rises with time, and what waits has a deadline; counted from the
//! present on, both come back to the same values again and again while a volume is driven evenly. A
//! caller that finds the same phase twice has seen all that will happen until something else is
//! asked of the scheduler: a simulator need not look at it again.
//!
//! Credits are the exception: they run down or fill up by as much in every cycle, and that decides
//! nothing as long as they are neither spent nor full. So they are kept apart, and repeated only
//! where the way to either end is longer than a cycle.

use alloc::vec::Vec;

use super::credit::Credit;
use crate::time::{Duration, Instant};

/// What decides what a scheduler does from one moment on. See
/// [`Scheduler::phase`](super::scheduler::Scheduler::phase).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Phase {
    at: Instant,
    /// All of it in the order of telling, times counted from `at`.
    words: Vec<u64>,
    credits: Vec<Credit>,
    handles: Vec<u32>,
}

impl Phase {
    pub(crate) const fn new(at: Instant) -> Self {
        Self { at, words: Vec::new(), credits: Vec::new(), handles: Vec::new() }
    }

    /// The moment.
    #[must_use]
    pub const fn at(&self) -> Instant {
        self.at
    }

    /// The handles of what waits, in the order it would go. They decide nothing.
    #[must_use]
    pub fn handles(&self) -> &[u32] {
        &self.handles
    }

    /// Whether nothing but the time, the credits and the names of requests has changed.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        self.words == other.words && self.credits.len() == other.credits.len()
    }

    /// Adds what decides something.
    pub(crate) fn words<const COUNT: usize>(&mut self, words: [u64; COUNT]) {
        self.words.extend(words);
    }

    /// Adds a point in time that decides something.
    pub(crate) fn time(&mut self, at: Instant) {
        self.words.push(at.ns.wrapping_sub(self.at.ns));
    }

    /// Adds credits as of now.
    pub(crate) fn credit(&mut self, credit: Credit) {
        self.credits.push(credit);
    }

    /// Adds the name of a request that waits.
    pub(crate) fn handle(&mut self, handle: u32) {
        self.handles.push(handle);
    }

    /// What each of `credits`, as of now, are once all that happened from `before` to this phase
    /// has happened once more; `None` if it would not come the same way again.
    pub(crate) fn repeated<'a>(
        &self,
        before: &Self,
        credits: impl Iterator<Item = &'a Credit>,
    ) -> Option<Vec<Credit>> {
        let cycle: Duration = self.at.since(before.at);
        if !self.is_like(before) {
            return None;
        }
        let ends = before.credits.iter().zip(&self.credits);
        credits.zip(ends).map(|(credit, ends)| credit.repeated(ends, cycle)).collect()
    }
}
