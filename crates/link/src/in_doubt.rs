//! Items whose state is unknown because the answer to a command was lost.

use std::collections::BTreeMap;

use evenkeel_core::limits::AGENT_UNKNOWN_MAX;
use evenkeel_wire::agent::Touched;

/// See the module's text.
#[derive(Default)]
pub(crate) struct Unknown {
    /// The number that the next command had when the uncertainty began. A command with a lower
    /// number had begun before, so its answer settles nothing.
    since: BTreeMap<Touched, u64>,
    /// Whether there were more items than can be stored.
    everything: bool,
}

impl Unknown {
    /// Records that a command about these items had no answer, or one that settles nothing.
    pub fn add(&mut self, touched: &[Touched], next: u64) {
        for &thing in touched {
            if self.since.len() >= AGENT_UNKNOWN_MAX && !self.since.contains_key(&thing) {
                self.everything = true;
                return;
            }
            self.since.insert(thing, next);
        }
    }

    /// Records that the command with this number was answered with its outcome.
    pub fn settle(&mut self, touched: &[Touched], number: u64) {
        for thing in touched {
            if self.since.get(thing).is_some_and(|since| *since <= number) {
                self.since.remove(thing);
            }
        }
    }

    /// Returns whether an earlier command may have changed one of these, or may still do so.
    pub fn has(&self, touched: &[Touched]) -> bool {
        let is_any = || touched.iter().any(|thing| self.since.contains_key(thing));
        !touched.is_empty() && (self.everything || is_any())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::ids::VolumeId;

    fn volume(bits: u128) -> Touched {
        Touched::Volume(VolumeId::from_bits(bits))
    }

    #[test]
    fn unknown_state_is_settled_only_by_a_command_that_began_later() {
        let mut unknown = Unknown::default();
        unknown.add(&[volume(1)], 5);
        assert!(unknown.has(&[volume(2), volume(1)]) && !unknown.has(&[volume(2)]));
        unknown.settle(&[volume(1)], 4);
        assert!(unknown.has(&[volume(1)]), "it ran beside the lost one");
        unknown.settle(&[volume(1)], 5);
        assert!(!unknown.has(&[volume(1)]));
    }

    #[test]
    fn unknown_state_beyond_the_bound_covers_all_changes_and_no_question() {
        let mut unknown = Unknown::default();
        for bits in 0..=AGENT_UNKNOWN_MAX as u128 {
            assert!(!unknown.has(&[Touched::Credits]));
            unknown.add(&[volume(bits)], 1);
        }
        assert_eq!(unknown.since.len(), AGENT_UNKNOWN_MAX);
        assert!(unknown.has(&[Touched::Credits]) && !unknown.has(&[]));
    }
}
