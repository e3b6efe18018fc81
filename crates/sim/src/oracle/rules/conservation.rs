//! Line 9: every request is answered exactly once, every dispatch has a submission, and bytes add
//! up.

use super::super::event::{Completed, Dispatched, Event, Sample};
use super::super::report::{Findings, Rule, Whose};
use super::super::requests::Request;
use super::super::state::{Seen, VOLUMES_MAX};
use super::Watcher;

#[derive(Debug)]
pub(super) struct Conservation;

impl Watcher for Conservation {
    fn observe(&mut self, event: &Event, seen: &Seen, findings: &mut Findings) {
        let now = seen.now;
        let Some(number) = event.volume() else {
            if let Event::Sampled { sample: Sample::InFlight { cost_ns }, .. } = event {
                let kept = *cost_ns == seen.device.cost_ns;
                findings.judge(Rule::Conservation, kept, now, Whose::Node, || {
                    let expected = format!("{} ns in flight", seen.device.cost_ns);
                    (expected, format!("{cost_ns} ns told"))
                });
            }
            return;
        };
        let fault = fault(event, number, seen);
        findings.judge(Rule::Conservation, fault.is_none(), now, Whose::Volume(number), || {
            fault.unwrap_or_default()
        });
    }

    /// Judges requests on the device: one that was dispatched too long ago was forgotten. Waiting
    /// requests and others on the device are no violation.
    fn finish(&mut self, seen: &Seen, findings: &mut Findings) {
        let Some(most_ns) = seen.system.bounds.answer_ns else { return };
        for (number, volume) in seen.each_volume() {
            let forgotten = volume.requests.oldest_on_device();
            let waited_ns = forgotten.map_or(0, |(_, since)| seen.now.saturating_sub(since));
            let whose = Whose::Volume(number);
            findings.judge(Rule::Conservation, waited_ns <= most_ns, seen.now, whose, || {
                let handle = forgotten.map_or(0, |(handle, _)| handle);
                let expected = format!("an answer within {most_ns} ns of the dispatch");
                (expected, format!("handle {handle} has waited {waited_ns} ns for it"))
            });
        }
    }
}

/// The expectation and the observation.
type Words = (String, String);

fn fault(event: &Event, number: u32, seen: &Seen) -> Option<Words> {
    let volume = seen.volume(number);
    if let Event::Added { .. } = event {
        return unless(volume.is_none() && number < VOLUMES_MAX, || {
            (format!("a free number below {VOLUMES_MAX}"), "it is not".into())
        });
    }
    let Some(volume) = volume else {
        // Pieces that were on the device when their volume was removed complete afterwards.
        let late = matches!(event, Event::Completed(_));
        return unless(late, || ("a volume that exists".into(), "there is none".into()));
    };
    let requests = &volume.requests;
    match event {
        Event::Submitted(submitted) => {
            let handle = submitted.handle;
            unless(requests.get(handle).is_none(), || {
                ("a handle that is free".into(), format!("handle {handle} is not answered yet"))
            })
        }
        Event::Dispatched(dispatched) => dispatch(dispatched, requests.get(dispatched.handle)),
        Event::Completed(completed) => completion(completed, requests.get(completed.handle)),
        Event::Cancelled { handle, .. } => {
            unless(requests.get(*handle).is_some_and(Request::waits), || {
                ("a request that waits".into(), format!("handle {handle} does not"))
            })
        }
        Event::Removed { .. } => unless(requests.queued == 0, || {
            ("an empty queue".into(), format!("{} requests wait", requests.queued))
        }),
        Event::Sampled { sample: Sample::Queued { requests: reported, bytes, .. }, .. } => {
            let queued = requests.queued;
            let queued_bytes = requests.queued_bytes;
            let same_bytes = bytes.is_none_or(|bytes| bytes == queued_bytes);
            unless(*reported == queued && same_bytes, || {
                let expected = format!("{queued} requests of {queued_bytes} bytes wait");
                (expected, format!("{reported}, {bytes:?} told"))
            })
        }
        _ => None,
    }
}

fn dispatch(dispatched: &Dispatched, request: Option<&Request>) -> Option<Words> {
    let handle = dispatched.handle;
    let Some(request) = request.filter(|request| request.waits()) else {
        return unless(false, || ("a request that waits".into(), format!("handle {handle}")));
    };
    let after = request.dispatched_bytes + u64::from(dispatched.length);
    let length = u64::from(request.length);
    let adds_up = if dispatched.last { after == length } else { after < length };
    unless(adds_up, || (format!("{length} bytes in all"), format!("{after} dispatched")))
}

fn completion(completed: &Completed, request: Option<&Request>) -> Option<Words> {
    let Some(request) = request else {
        let handle = completed.handle;
        return unless(false, || ("a request to be answered".into(), format!("handle {handle}")));
    };
    let pieces = request.completed_pieces + 1;
    let bytes = request.completed_bytes + u64::from(completed.length);
    let of_pieces = request.dispatched_pieces;
    let of_bytes = request.dispatched_bytes;
    // All dispatched pieces are complete, and no further one will be dispatched.
    let whole = request.gone && pieces == of_pieces && bytes == of_bytes;
    let within = pieces <= of_pieces && bytes <= of_bytes;
    unless(within && completed.last == whole, || {
        let answered = if completed.last { "answered" } else { "not answered" };
        let observed = format!("{pieces} of {bytes} bytes, {answered}");
        (format!("{of_pieces} pieces of {of_bytes} bytes, then the answer"), observed)
    })
}

/// Returns the words of a violation; `None` if the rule was `kept`.
fn unless(kept: bool, words: impl FnOnce() -> Words) -> Option<Words> {
    if kept { None } else { Some(words()) }
}
