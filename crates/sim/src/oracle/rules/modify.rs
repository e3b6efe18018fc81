//! Line 7: a modification acts at once, refills nothing, and no sequence of modifications gains
//! units.
//!
//! From its first modification on, a volume is held to its exact levels: settled at the old rate,
//! limited to the new depth, never raised. A new limit starts with nothing saved. A dispatch beyond
//! these levels was gained by modifying. A wait for a turn on a saturated client host is not a wait
//! for the modification.

use super::super::event::Event;
use super::super::report::{Findings, Rule, Whose};
use super::super::state::Seen;
use super::{NAMES, PerVolume, Watcher, units_text};

#[derive(Debug, Default)]
struct OfVolume {
    /// Set by a modification until the next dispatch: its time, and the time for which the volume
    /// had been passed over until then.
    pending: Option<(u64, u64)>,
}

#[derive(Debug)]
pub(super) struct Modify(PerVolume<OfVolume>);

impl Modify {
    pub(super) fn new() -> Self {
        Self(PerVolume::new())
    }

    /// Judges that the first request that waited at a modification was dispatched as soon as the
    /// new limits allowed it.
    fn acted(&mut self, number: u32, seen: &Seen, findings: &mut Findings) {
        let Some((at, before_ns)) = self.0.of(number).pending.take() else { return };
        let Some(volume) = seen.volume(number) else { return };
        let waited_ns = volume.held_up.passed_over_ns.saturating_sub(before_ns);
        let most_ns = seen.system.margins.modify_ns;
        let kept = waited_ns <= most_ns;
        findings.judge(Rule::Modify, kept, seen.now, Whose::Volume(number), || {
            let expected = format!("the modification at {at} ns acts within {most_ns} ns");
            (expected, format!("waited {waited_ns} ns longer than the new limits ask"))
        });
    }
}

impl Watcher for Modify {
    fn observe(&mut self, event: &Event, seen: &Seen, findings: &mut Findings) {
        match event {
            Event::Modified { volume: number, .. } => {
                let Some(volume) = seen.volume(*number) else { return };
                if volume.is_backlogged() {
                    let now = (seen.now, volume.held_up.passed_over_ns);
                    self.0.of(*number).pending.get_or_insert(now);
                }
            }
            Event::Dispatched(dispatched) => {
                let Some(volume) = seen.volume(dispatched.volume) else { return };
                if volume.modifications == 0 {
                    return;
                }
                self.acted(dispatched.volume, seen, findings);
                let limits = volume.limits.iter().zip(dispatched.charge());
                for (dimension, (limited, units)) in limits.enumerate() {
                    let Some(limited) = limited.as_ref().filter(|_| units > 0) else { continue };
                    let level = limited.generous;
                    let whose = Whose::Volume(dispatched.volume);
                    findings.judge(Rule::Modify, level.is_ready(), seen.now, whose, || {
                        let name = NAMES[dimension];
                        let expected = format!("nothing gained: {name} at {} a second", level.rate);
                        (expected, format!("{} over before one more", units_text(-level.level)))
                    });
                }
            }
            Event::Cancelled { volume: number, .. } => {
                let volume = seen.volume(*number);
                if volume.is_some_and(|volume| volume.requests.queued <= 1) {
                    self.0.of(*number).pending = None;
                }
            }
            Event::Added { volume, .. } | Event::Removed { volume, .. } => {
                self.0.of(*volume).pending = None;
            }
            _ => {}
        }
    }

    fn finish(&mut self, seen: &Seen, findings: &mut Findings) {
        let numbers: Vec<u32> = seen.each_volume().map(|(number, _)| number).collect();
        for number in numbers {
            self.acted(number, seen, findings);
        }
    }
}
