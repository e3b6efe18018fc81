//! The state of a scheduler that determines its future, with all times relative to the present.
//!
//! Each limit is a level that rises with time, and waiting requests have deadlines; relative to the
//! present, both return to the same values again and again while a volume has a steady load. So if
//! a caller finds the same phase twice, the scheduler repeats what it did between them until it is
//! called differently: a simulator need not run it again.
//!
//! Credits are the exception: they decrease or increase by the same amount in each cycle, and that
//! has no effect as long as they are neither spent nor full. So they are kept apart, and a cycle is
//! repeated only if either end is farther away than a cycle.

use alloc::vec::Vec;

use super::credit::Credit;
use crate::time::{Duration, Instant};

/// State that determines a scheduler's future from one moment on. See
/// [`Scheduler::phase`](super::scheduler::Scheduler::phase).
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Phase {
    at: Instant,
    /// All of the state in a fixed order, with times relative to `at`.
    words: Vec<u64>,
    credits: Vec<Credit>,
    handles: Vec<u32>,
}

impl Phase {
    pub(crate) const fn new(at: Instant) -> Self {
        Self { at, words: Vec::new(), credits: Vec::new(), handles: Vec::new() }
    }

    /// Returns the moment.
    #[must_use]
    pub const fn at(&self) -> Instant {
        self.at
    }

    /// Returns the handles of waiting requests, in the order of their service. They do not affect
    /// the future.
    #[must_use]
    pub fn handles(&self) -> &[u32] {
        &self.handles
    }

    /// Returns whether only the time, the credits and the handles of requests have changed.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        self.words == other.words && self.credits.len() == other.credits.len()
    }

    /// Adds state that affects the future.
    pub(crate) fn words<const COUNT: usize>(&mut self, words: [u64; COUNT]) {
        self.words.extend(words);
    }

    /// Adds a point in time that affects the future.
    pub(crate) fn time(&mut self, at: Instant) {
        self.words.push(at.ns.wrapping_sub(self.at.ns));
    }

    /// Adds credits as of now.
    pub(crate) fn credit(&mut self, credit: Credit) {
        self.credits.push(credit);
    }

    /// Adds the handle of a waiting request.
    pub(crate) fn handle(&mut self, handle: u32) {
        self.handles.push(handle);
    }

    /// Returns each of `credits`, given as of now, after a repetition of all that happened from
    /// `before` to this phase; `None` if a repetition would differ.
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
