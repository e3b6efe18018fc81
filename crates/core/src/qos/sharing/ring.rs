//! Flows in the order of their turns: whose last turn is longest ago is first.
//!
//! Who comes back within a round goes where it would be, had it stayed, or as far as [`PASSED_MAX`]
//! allows. At the end it would lose, with each request, as much as it was away, be it for its own
//! limits or because its client had no more than that in flight; and so would get less than those
//! who ask for more.

use super::flow::{Flow, Flows};
use crate::qos::slots::FlowSlot;
use crate::time::Instant;

/// Who comes back passes at most so many: what it costs is bounded.
const PASSED_MAX: u32 = 64;

/// Where a flow goes in a ring where others wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    First,
    Second,
    /// Behind all but those who had a turn of the last so many.
    Behind(u32),
}

#[derive(Debug)]
pub(super) struct Ring {
    /// First flow, or none.
    pub first: FlowSlot,
    pub waiting: u32,
    /// At the last look its first flow was held up by what both rings share, not by its direction
    /// of the link.
    pub by_common_limit: bool,
    /// When its first flow may go, as of the last look.
    pub opens_at: Option<Instant>,
}

impl Ring {
    pub const EMPTY: Self =
        Self { first: FlowSlot::NONE, waiting: 0, by_common_limit: false, opens_at: None };

    /// Puts a flow in; `round_robin` ended so far.
    pub fn enter(&mut self, flows: &mut Flows, flow: FlowSlot, place: Place, turns: u32) {
        self.waiting += 1;
        if self.first.is_none() {
            push_back(&mut self.first, flows, flow);
            return;
        }
        let mut before = flows[self.first].previous;
        match place {
            Place::First => {}
            Place::Second => before = self.first,
            Place::Behind(age) => {
                let age_of = |flow: FlowSlot| turns.wrapping_sub(flows[flow].turn_at);
                let mut passed = 0;
                while before != self.first && passed < PASSED_MAX && age_of(before) < age {
                    before = flows[before].previous;
                    passed += 1;
                }
            }
        }
        insert_after(before, flows, flow);
        if place == Place::First {
            self.first = flow;
        }
    }

    /// Takes a flow out.
    pub fn leave(&mut self, flows: &mut Flows, flow: FlowSlot) {
        self.waiting -= 1;
        unlink(&mut self.first, flows, flow);
    }
}

/// Appends a flow to a ring.
pub(crate) fn push_back(first: &mut FlowSlot, flows: &mut Flows, flow: FlowSlot) {
    if first.is_none() {
        *first = flow;
        flows[flow].next = flow;
        flows[flow].previous = flow;
        return;
    }
    let tail = flows[*first].previous;
    insert_after(tail, flows, flow);
}

fn insert_after(before: FlowSlot, flows: &mut Flows, flow: FlowSlot) {
    let after = flows[before].next;
    flows[before].next = flow;
    flows[after].previous = flow;
    flows[flow].next = after;
    flows[flow].previous = before;
}

/// Takes a flow out of the ring it is in.
pub(crate) fn unlink(first: &mut FlowSlot, flows: &mut Flows, flow: FlowSlot) {
    let Flow { next, previous, .. } = flows[flow];
    if next == flow {
        *first = FlowSlot::NONE;
    } else {
        flows[next].previous = previous;
        flows[previous].next = next;
        if *first == flow {
            *first = next;
        }
    }
    flows[flow].next = FlowSlot::NONE;
    flows[flow].previous = FlowSlot::NONE;
}
