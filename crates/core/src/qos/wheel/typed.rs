//! A wheel whose entries are named by the slots for which they are.

use core::marker::PhantomData;

use super::Wheel;
use crate::qos::phase::Phase;
use crate::qos::slots::{Slot, TimerSlot};
use crate::time::Instant;

/// A [`Wheel`] with an entry for each slot of a table, under the same number. The program has the
/// code of one wheel only: each method calls the wheel's own.
#[derive(Debug)]
pub(crate) struct WheelOf<S> {
    wheel: Wheel,
    slots: PhantomData<fn(S) -> S>,
}

impl<S: Slot> WheelOf<S> {
    pub fn new(now: Instant) -> Self {
        Self { wheel: Wheel::new(now), slots: PhantomData }
    }

    #[inline]
    pub fn grow(&mut self, entries: usize) {
        self.wheel.grow(entries);
    }

    #[inline]
    pub fn insert(&mut self, entry: S, deadline: Instant, now: Instant) {
        self.wheel.insert(timer(entry), deadline, now);
    }

    #[inline]
    pub fn contains(&self, entry: S) -> bool {
        self.wheel.contains(timer(entry))
    }

    #[inline]
    pub fn remove(&mut self, entry: S) {
        self.wheel.remove(timer(entry));
    }

    #[inline]
    pub fn advance(&mut self, now: Instant, moves_max: u32) {
        self.wheel.advance(now, moves_max);
    }

    #[inline]
    pub fn push_due(&mut self, entry: S) {
        self.wheel.push_due(timer(entry));
    }

    #[inline]
    pub fn pop_due(&mut self) -> Option<S> {
        self.wheel.pop_due().map(slot)
    }

    #[inline]
    pub fn has_many_due(&self) -> bool {
        self.wheel.has_many_due()
    }

    #[inline]
    pub fn due(&self) -> impl Iterator<Item = S> {
        self.wheel.due().map(slot)
    }

    #[inline]
    pub fn next_deadline(&self) -> Option<Instant> {
        self.wheel.next_deadline()
    }

    pub fn tell(&self, entry: S, phase: &mut Phase) -> Option<()> {
        self.wheel.tell(timer(entry), phase)
    }

    pub fn invariants(&self) {
        self.wheel.invariants();
    }
}

#[inline]
fn timer(entry: impl Slot) -> TimerSlot {
    TimerSlot::new(entry.number())
}

#[inline]
fn slot<S: Slot>(entry: TimerSlot) -> S {
    S::new(entry.number())
}
