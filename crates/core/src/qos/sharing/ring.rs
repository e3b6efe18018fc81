//! Flows in the order of their turns: the flow whose last turn is longest ago is first.
//!
//! A flow that comes back within a round gets the place that it would have, had it stayed, or as
//! near to it as [`PASSED_MAX`] allows. At the end it would lose the time of its absence with each
//! request, whether it was away for its own limits or because its client has few requests in
//! flight; and so it would get less than flows with more requests.

use super::flow::{Flow, Flows};
use crate::qos::slots::FlowSlot;
use crate::time::Instant;

/// Maximum number of flows that a returning one passes, which limits the cost.
const PASSED_MAX: u32 = 64;

/// Place of a flow in a ring in which others wait.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    First,
    Second,
    /// Before the flows at the end whose last turn is less than this number of turns ago.
    Behind(u32),
}

#[derive(Debug)]
pub(super) struct Ring {
    /// First flow, or none.
    pub first: FlowSlot,
    pub waiting: u32,
    /// Whether its first flow, when last examined, was delayed by a limit that both rings share,
    /// not by its direction of the link.
    pub by_common_limit: bool,
    /// Time at which its first flow may continue, as of the last examination.
    pub opens_at: Option<Instant>,
}

impl Ring {
    pub const EMPTY: Self =
        Self { first: FlowSlot::NONE, waiting: 0, by_common_limit: false, opens_at: None };

    /// Adds a flow. `turns` is the number of turns that have ended so far.
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

    /// Removes a flow.
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

/// Removes a flow from its ring.
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
