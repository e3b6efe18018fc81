//! Line 9: requests of one class are dispatched in the order of arrival, piece by piece.
//!
//! A class is the urgent or the normal one of a volume and one client host that it is attached to.
//! Requests of two classes may overtake each other. Conservation checks that a piece belongs to the
//! place in its request that it states.

use std::collections::BTreeMap;

use super::super::event::Event;
use super::super::report::{Findings, Rule, Whose};
use super::super::state::Seen;
use super::Watcher;

/// Maximum number of classes whose last dispatch is remembered; far more than live client hosts.
const LANES_MAX: usize = 1 << 17;

/// By volume, instance and class: one more than the sequence number of the last request that was
/// completely dispatched, and the request that is partly dispatched.
#[derive(Debug)]
pub(super) struct ClassOrder(BTreeMap<(u32, u32, bool), Class>);

#[derive(Clone, Copy, Debug, Default)]
struct Class {
    next: u64,
    begun: Option<u64>,
}

impl ClassOrder {
    pub(super) const fn new() -> Self {
        Self(BTreeMap::new())
    }
}

impl Watcher for ClassOrder {
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
                let class = self.0.entry(key).or_default();
                let kept = match class.begun {
                    Some(begun) => begun == request.seq,
                    None => request.seq >= class.next,
                };
                findings.judge(Rule::ClassOrder, kept, seen.now, Whose::Volume(number), || {
                    let next = class.begun.unwrap_or(class.next);
                    let handle = dispatched.handle;
                    let seq = request.seq;
                    let expected = format!("number {next} or later");
                    (expected, format!("handle {handle}, submitted as number {seq}"))
                });
                class.next = class.next.max(request.seq + 1);
                class.begun = if dispatched.last { None } else { Some(request.seq) };
            }
            Event::Cancelled { volume: number, handle, .. } => {
                let Some(volume) = seen.volume(*number) else { return };
                let Some(request) = volume.requests.get(*handle) else { return };
                if request.dispatched_pieces > 0 {
                    let classes = self.0.range_mut((*number, 0, false)..=(*number, u32::MAX, true));
                    for (_, class) in classes {
                        class.begun = class.begun.filter(|begun| *begun != request.seq);
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
