//! Line 2: no waiting request is passed over for ever.
//!
//! Requests of a class are dispatched in order, so it is enough to watch the first one: once the
//! volume's own limits let it pass, it must be dispatched within the bound, whatever its neighbours
//! do. The number of urgent requests in a row that may overtake the normal class is bounded, too.

use super::super::event::Event;
use super::super::report::{Findings, Rule, Whose};
use super::super::state::Seen;
use super::{PerVolume, Watcher};

#[derive(Debug, Default)]
struct OfVolume {
    /// Time for which the first request has waited although its own limits let it pass, in
    /// nanoseconds.
    waited_ns: u64,
    urgent_run: u32,
    /// Number of waiting requests that were submitted before the urgent run began.
    passed_over: u64,
}

#[derive(Debug)]
pub(super) struct Starvation(PerVolume<OfVolume>);

impl Starvation {
    pub(super) fn new() -> Self {
        Self(PerVolume::new())
    }

    fn wait(&mut self, number: u32, seen: &Seen) {
        if let Some(volume) = seen.volume(number) {
            self.0.of(number).waited_ns += volume.last_held_up_ns;
        }
    }

    fn judge(&mut self, number: u32, seen: &Seen, findings: &mut Findings) {
        let of = self.0.of(number);
        let waited_ns = std::mem::take(&mut of.waited_ns);
        let Some(most_ns) = seen.system.bounds.wait_ns else { return };
        let stalled_ns = seen.stalls.overlap(seen.now.saturating_sub(waited_ns), seen.now);
        let kept = waited_ns.saturating_sub(stalled_ns) <= most_ns;
        findings.judge(Rule::NoStarvation, kept, seen.now, Whose::Volume(number), || {
            let expected = format!("the first goes within {most_ns} ns of its limits being ready");
            (expected, format!("waited {waited_ns} ns, {stalled_ns} ns of them stalled"))
        });
    }
}

impl Watcher for Starvation {
    fn observe(&mut self, event: &Event, seen: &Seen, findings: &mut Findings) {
        let Some(number) = event.volume() else { return };
        self.wait(number, seen);
        match event {
            Event::Dispatched(dispatched) => {
                self.judge(number, seen, findings);
                let Some(most) = seen.system.bounds.urgent_run else { return };
                let of = self.0.of(number);
                if !dispatched.urgent {
                    of.urgent_run = 0;
                    return;
                }
                let waiting = seen.volume(number).map_or(0, |volume| volume.requests.queued);
                if of.urgent_run == 0 {
                    of.passed_over = waiting;
                }
                of.urgent_run += 1;
                // All requests that waited at the start of the run may have been urgent themselves.
                let run = u64::from(of.urgent_run);
                let normal_waits = waiting > 1 && of.passed_over > run;
                let kept = of.urgent_run <= most || !normal_waits;
                findings.judge(Rule::NoStarvation, kept, seen.now, Whose::Volume(number), || {
                    let expected = format!("at most {most} urgent ones in a row while others wait");
                    (expected, format!("{run} in a row, {waiting} wait"))
                });
            }
            Event::Cancelled { .. } => {
                let volume = seen.volume(number);
                if volume.is_some_and(|volume| volume.requests.queued <= 1) {
                    self.0.of(number).waited_ns = 0;
                }
            }
            Event::Added { .. } | Event::Removed { .. } => *self.0.of(number) = OfVolume::default(),
            _ => {}
        }
    }

    fn finish(&mut self, seen: &Seen, findings: &mut Findings) {
        let waiting = seen.each_volume().filter(|(_, volume)| volume.is_backlogged());
        let numbers: Vec<u32> = waiting.map(|(number, _)| number).collect();
        for number in numbers {
            self.wait(number, seen);
            self.judge(number, seen, findings);
        }
    }
}
