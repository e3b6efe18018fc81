//! Line 6: while urgent requests come, the device's last channel is not given to a large one.
//!
//! A large request takes more than four times what the reference request was measured to take. If
//! it finds all channels but one busy and an urgent one went less than 100 ms ago, it waits: so the
//! next urgent one finds that channel free. More channels may be kept free than this one.

use super::super::device::REFERENCE_BYTES;
use super::super::event::{Direction, Event};
use super::super::report::{Findings, Rule, Whose};
use super::super::state::Seen;
use super::super::system::DeviceWork;
use super::Watcher;

/// So long after an urgent request the next one is expected.
const EXPECTED_NS: u64 = 100_000_000;

/// A large request takes more than so many times what the reference request takes.
const LARGE: u64 = 4;

#[derive(Debug)]
pub(super) struct FreeChannel {
    /// Pieces that may be on the device once a large one is added.
    most: u64,
    /// What a request takes that is not large.
    small_ns: u64,
    urgent_at: Option<u64>,
}

impl FreeChannel {
    /// The rule for a device; it says nothing where there is but one channel.
    pub(super) fn new(work: &DeviceWork) -> Self {
        let most = if work.channels < 2 { u64::MAX } else { work.channels - 1 };
        let of = |direction| work.cost_ns(direction, REFERENCE_BYTES);
        // Half read, half write.
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
        let is_expected = self.urgent_at.is_some_and(|at| seen.now < at + EXPECTED_NS);
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
