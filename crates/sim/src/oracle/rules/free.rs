//! Line 6: while urgent requests arrive, no large one takes the device's last channel.
//!
//! A large request takes more than four times the measured time of the reference request. If it
//! finds all channels but one busy and an urgent request was dispatched less than 100 ms ago, it
//! waits, so that the next urgent request finds that channel free. The device may keep more
//! channels free.

use super::super::device::REFERENCE_BYTES;
use super::super::event::{Direction, Event};
use super::super::report::{Findings, Rule, Whose};
use super::super::state::Seen;
use super::super::system::DeviceWork;
use super::Watcher;

/// Time after an urgent request in which the next one is expected.
const EXPECTED_NS: u64 = 100_000_000;

/// A request is large if it takes more than this many times the time of the reference request.
const LARGE: u64 = 4;

#[derive(Debug)]
pub(super) struct FreeChannel {
    /// Maximum number of pieces on the device with a large one.
    most: u64,
    /// Maximum time of a request that is not large, in nanoseconds.
    small_ns: u64,
    urgent_at: Option<u64>,
}

impl FreeChannel {
    /// Creates the rule for a device. It judges nothing if there is only one channel.
    pub(super) fn new(work: &DeviceWork) -> Self {
        let most = if work.channels < 2 { u64::MAX } else { work.channels - 1 };
        let of = |direction| work.cost_ns(direction, REFERENCE_BYTES);
        // The reference is half read, half write.
        let reference_ns = (of(Direction::Read) + of(Direction::Write)).div_ceil(2);
        Self { most, small_ns: LARGE * reference_ns, urgent_at: None }
    }
}

impl Watcher for FreeChannel {
    fn observe(&mut self, event: &Event, seen: &Seen, findings: &mut Findings) {
        let Event::Dispatched(dispatched) = event else { return };
        if dispatched.urgent {
            self.urgent_at = Some(seen.now);
            return;
        }
        let is_expected = self.urgent_at.is_some_and(|time| seen.now < time + EXPECTED_NS);
        if dispatched.device_cost_ns > self.small_ns && is_expected {
            let pieces = seen.device.pieces + 1;
            let whose = Whose::Volume(dispatched.volume);
            findings.judge(Rule::FreeChannel, pieces <= self.most, seen.now, whose, || {
                let expected = format!("a large one leaves a channel free: at most {}", self.most);
                (expected, format!("{pieces} on the device with it"))
            });
        }
    }
}
