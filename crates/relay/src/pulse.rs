//! Detects gaps in which the front's thread did not run: the process or its machine was stopped.
//!
//! Bytes that a client has sent before such a gap must not be passed on after it. The client may
//! have dropped the connection meanwhile, and may have sent the same and more through another node.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

/// See the module's text.
#[derive(Debug)]
pub(crate) struct Pulse {
    /// Maximum time between two checks without a gap.
    gap_max: Duration,
    /// Time of the last check, since the boot.
    last: Cell<Duration>,
    gaps: Cell<u64>,
}

impl Pulse {
    pub fn new(gap_max: Duration) -> Self {
        Self { gap_max, last: Cell::new(evenkeel_os::clock::since_boot()), gaps: Cell::new(0) }
    }

    /// Counts a gap if there was one since the last check. Returns the number of gaps. A task
    /// checks several times in `gap_max`, so a thread that runs has no gap.
    pub fn look(&self) -> u64 {
        self.look_at(evenkeel_os::clock::since_boot())
    }

    fn look_at(&self, now: Duration) -> u64 {
        if now.saturating_sub(self.last.replace(now)) > self.gap_max {
            self.gaps.set(self.gaps.get() + 1);
        }
        self.gaps.get()
    }
}

/// Detects gaps since a point in time.
#[derive(Clone, Debug)]
pub(crate) struct Watch {
    pulse: Rc<Pulse>,
    gaps: u64,
}

impl Watch {
    /// Creates a watch that begins now.
    pub fn new(pulse: &Rc<Pulse>) -> Self {
        Self { pulse: Rc::clone(pulse), gaps: pulse.look() }
    }

    /// Returns whether there was a gap since it was created.
    pub fn has_gap(&self) -> bool {
        self.pulse.look() != self.gaps
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gap_counts_once_and_a_pause_does_not() {
        let pulse = Pulse::new(Duration::from_secs(2));
        let begin = pulse.last.get();
        let at = |ms| pulse.look_at(begin + Duration::from_millis(ms));
        assert_eq!([at(0), at(2_000), at(4_000)], [0, 0, 0]);
        assert_eq!([at(6_001), at(6_001), at(8_001), at(20_000)], [1, 1, 1, 2]);
    }
}
