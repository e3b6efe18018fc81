//! Line 9: every queue is bounded in I/Os and bytes, and refuses requests only if a bound is
//! reached.

use super::super::event::{Direction, Event, Sample};
use super::super::report::{Findings, Rule, Whose};
use super::super::state::Seen;
use super::super::volumes::VolumeModel;
use super::Watcher;

#[derive(Debug)]
pub(super) struct Bounded;

impl Watcher for Bounded {
    fn observe(&mut self, event: &Event, seen: &Seen, findings: &mut Findings) {
        let bounds = seen.system.bounds;
        match event {
            Event::Submitted(submitted) => {
                let Some(volume) = seen.volume(submitted.volume) else { return };
                let has_payload = submitted.direction != Direction::None;
                let length = if has_payload { submitted.length } else { 0 };
                let kept = fits(volume, length, seen);
                let whose = Whose::Volume(submitted.volume);
                findings.judge(Rule::Bounded, kept, seen.now, whose, || words(volume, seen));
            }
            Event::Refused { volume: number, length, .. } => {
                let Some(volume) = seen.volume(*number) else { return };
                let kept = !fits(volume, *length, seen);
                findings.judge(Rule::Bounded, kept, seen.now, Whose::Volume(*number), || {
                    let (_, waiting) = words(volume, seen);
                    ("room is used before a request is refused".to_string(), waiting)
                });
            }
            Event::Dispatched(_) => {
                let Some(most) = bounds.in_flight else { return };
                let pieces = seen.device.pieces + 1;
                findings.judge(Rule::Bounded, pieces <= most, seen.now, Whose::Node, || {
                    (format!("at most {most} pieces on the device"), format!("{pieces}"))
                });
            }
            Event::Sampled { sample: Sample::Structure { name, size, bound }, .. } => {
                findings.judge(Rule::Bounded, size <= bound, seen.now, Whose::Node, || {
                    (format!("at most {bound} entries in {name}"), format!("{size}"))
                });
            }
            _ => {}
        }
    }
}

/// Returns whether one more request has room. An empty queue has room for any request.
fn fits(volume: &VolumeModel, length: u32, seen: &Seen) -> bool {
    let bounds = seen.system.bounds;
    let requests = &volume.requests;
    requests.queued == 0
        || (requests.queued < bounds.queued_requests
            && requests.queued_bytes + u64::from(length) <= bounds.queued_bytes)
}

fn words(volume: &VolumeModel, seen: &Seen) -> (String, String) {
    let bounds = seen.system.bounds;
    let requests = &volume.requests;
    (
        format!("{} requests, {} bytes wait at most", bounds.queued_requests, bounds.queued_bytes),
        format!("{} requests, {} bytes wait already", requests.queued, requests.queued_bytes),
    )
}
