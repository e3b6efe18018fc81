//! Line 9: requests of one lane go in the order they came, piece by piece.
//!
//! A lane is the urgent or the normal one of a volume, and of each client host attached to it. Two
//! lanes may pass each other. That a piece belongs to the place in its request where it claims to
//! be is the business of conservation.

use std::collections::BTreeMap;

use super::super::event::Event;
use super::super::report::{Findings, Rule, Whose};
use super::super::seen::Seen;
use super::Watcher;

/// Lanes whose last dispatch is remembered; far more than live client hosts.
const LANES_MAX: usize = 1 << 17;

/// By volume, instance and lane: one more than the place in the order of submission of the last
/// request that was dispatched to its end, and the request that is dispatched in part.
#[derive(Debug)]
pub(super) struct LaneOrder(BTreeMap<(u32, u32, bool), Lane>);

#[derive(Clone, Copy, Debug, Default)]
struct Lane {
    next: u64,
    begun: Option<u64>,
}

impl LaneOrder {
    pub(super) const fn new() -> Self {
        Self(BTreeMap::new())
    }
}

impl Watcher for LaneOrder {
    fn observe(&mut self, event: &Event, seen: &Seen, findings: &mut Findings) {
        match event {
            Event::Dispatched(dispatched) => {
                let number = dispatched.volume;
                let Some(volume) = seen.volume(number) else { return };
                let Some(request) = volume.requests.get(dispatched.handle) else { return };
                let key = (number, dispatched.instance, dispatched.urgent);
                if self.0.len() >= LANES_MAX && !self.0.contains_key(&key) {
                    return;
                }
                let lane = self.0.entry(key).or_default();
                let kept = match lane.begun {
                    Some(begun) => begun == request.seq,
                    None => request.seq >= lane.next,
                };
                findings.judge(Rule::LaneOrder, kept, seen.now, Whose::Volume(number), || {
                    let next = lane.begun.unwrap_or(lane.next);
                    let (handle, seq) = (dispatched.handle, request.seq);
                    let expected = format!("number {next} or later");
                    (expected, format!("handle {handle}, submitted as number {seq}"))
                });
                lane.next = lane.next.max(request.seq + 1);
                lane.begun = if dispatched.last { None } else { Some(request.seq) };
            }
            Event::Cancelled { volume: number, handle, .. } => {
                let Some(volume) = seen.volume(*number) else { return };
                let Some(request) = volume.requests.get(*handle) else { return };
                if request.dispatched_pieces > 0 {
                    let lanes = self.0.range_mut((*number, 0, false)..=(*number, u32::MAX, true));
                    for (_, lane) in lanes {
                        lane.begun = lane.begun.filter(|begun| *begun != request.seq);
                    }
                }
            }
            Event::Removed { volume, .. } => {
                self.0.retain(|(number, _, _), _| number != volume);
            }
            _ => {}
        }
    }
}
