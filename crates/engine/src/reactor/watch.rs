//! Compares the device with its calibration: the service time of a core's reads with the expected
//! one.
//!
//! Only operations that wait for nothing but the device are fit for this, and those are reads. A
//! file system allocates for one write of a file at a time, and records that in its journal: where
//! nothing was written before, writes take several times as long as the calibration's, which
//! overwrote data, however fast the device is. A volume's reads wait for its writes there. So only
//! reads count during which nothing changed their volume's file.

use super::Reactor;
use super::sharing::Flight;
use crate::adaptive_poll::Patience;
use crate::driver::Driver;
use crate::table::VolumeSlot;
use evenkeel_core::qos::admission::calibration::drift::{DriftChange, expected_ns};
use evenkeel_core::qos::sharing::DeviceModel;
use evenkeel_core::request::Operation;

/// Time that a request may take beside the device: an idle core sleeps, and has to be woken (see
/// [`Patience`]). The core of a calibration does not sleep.
const WAKING_NS: u64 = Patience::MAX.ns;

/// Reads and writes of a core at the device.
#[derive(Default)]
pub(super) struct AtDevice {
    requests: u32,
    /// Their service time by the calibration, in nanoseconds of a channel.
    needed_ns: u64,
}

/// Expectation for a read or a write at its start.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Expected {
    /// Its service time, in nanoseconds of a channel.
    needed_ns: u64,
    /// Number of the requests before it, and their service time together.
    others: (u32, u64),
    /// Whether its service time is evidence about the device, if nothing changes the file
    /// meanwhile.
    tells: bool,
    /// Operations that had begun to change the volume's file before it.
    changes: u64,
}

/// Operations that change a volume's file.
#[derive(Clone, Copy, Default)]
pub(super) struct Changes {
    /// Those in progress, or waiting for others in progress.
    now: u32,
    /// All that have begun.
    begun: u64,
}

impl AtDevice {
    /// Records the start of a request on a volume with these changes. Returns its expectation;
    /// `None` if the calibration has none for the operation.
    fn begin(
        &mut self,
        model: &DeviceModel,
        (operation, length): (Operation, u32),
        changes: Changes,
    ) -> Option<Expected> {
        let (cost, is_read) = match operation {
            Operation::Read => (&model.read, true),
            Operation::Write { .. } => (&model.write, false),
            _ => return None,
        };
        let needed_ns = cost.ns(length);
        let others = (self.requests, self.needed_ns);
        self.requests += 1;
        self.needed_ns = self.needed_ns.saturating_add(needed_ns);
        let tells = is_read && changes.now == 0;
        Some(Expected { needed_ns, others, tells, changes: changes.begun })
    }

    /// Records the end of a request on a volume with these changes. Returns the service time that
    /// it should have taken, in nanoseconds, if it is evidence. Other cores have `elsewhere`
    /// requests at the device.
    fn end(
        &mut self,
        expected: &Expected,
        changes: Changes,
        (elsewhere, channels): (u32, u32),
    ) -> Option<u64> {
        self.requests -= 1;
        self.needed_ns = self.needed_ns.saturating_sub(expected.needed_ns);
        let (here, here_ns) = expected.others;
        // Requests of other cores are taken to be like those of this one.
        let each_ns = here_ns.checked_div(here.into()).unwrap_or(expected.needed_ns);
        let elsewhere_ns = each_ns.saturating_mul(elsewhere.into());
        let others = (here.saturating_add(elsewhere), here_ns.saturating_add(elsewhere_ns));
        let tells = expected.tells && expected.changes == changes.begun;
        tells.then(|| WAKING_NS.saturating_add(expected_ns(expected.needed_ns, others, channels)))
    }
}

/// Returns whether an operation changes a volume's file, or waits for one that does.
fn is_changing(operation: Operation) -> bool {
    operation.is_write() || operation == Operation::Flush
}

impl<D: Driver> Reactor<D> {
    /// Records the expectation for a quantum that the store is about to get.
    pub(super) fn expect_of(
        &mut self,
        slot: VolumeSlot,
        operation: Operation,
        length: u32,
    ) -> Option<Expected> {
        let changes = &mut self.volumes[slot].changes;
        let before = *changes;
        if is_changing(operation) {
            (changes.now, changes.begun) = (changes.now + 1, changes.begun + 1);
        }
        let device = self.device.as_mut()?;
        device.here.begin(&device.model, (operation, length), before)
    }

    /// Compares the service time of a read with the expected one.
    pub(super) fn watch_device(&mut self, flight: &Flight, slot: VolumeSlot, operation: Operation) {
        let changes = &mut self.volumes[slot].changes;
        changes.now -= u32::from(is_changing(operation));
        let changes = *changes;
        let (Some(device), Some(expected)) = (&mut self.device, &flight.expected) else { return };
        let there = (device.others.in_flight, device.model.channels);
        let Some(expected_ns) = device.here.end(expected, changes, there) else { return };
        let service = self.now.since(flight.started_at);
        let change = device.drift.completed(self.now, expected_ns, service);
        self.tell_drift(change);
    }

    /// Notifies the drift estimate that the device is idle: a slower rating expires with time.
    pub(super) fn note_device_idle(&mut self) {
        let change = self.device.as_mut().and_then(|device| device.drift.rest(self.now));
        self.tell_drift(change);
    }

    fn tell_drift(&self, change: Option<DriftChange>) {
        let Some(change) = change else { return };
        if change.sold_ppm < change.before_ppm {
            tracing::warn!(core = self.core, "{change}");
        } else {
            tracing::info!(core = self.core, "{change}");
        }
        self.shared_device.may_sell(self.core, change.sold_ppm);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::qos::sharing::{OperationCost, Window};
    use evenkeel_core::time::Duration;

    const COST: OperationCost = OperationCost { base: Duration::from_us(100), byte_ps: 0 };
    const MODEL: DeviceModel =
        DeviceModel { channels: 2, read: COST, write: COST, window: Window::Slots(4) };

    const NOTHING: Changes = Changes { now: 0, begun: 7 };

    #[test]
    fn a_volume_s_own_writes_are_no_slower_device() {
        let during = Changes { now: 1, begun: 7 };
        let after = Changes { now: 1, begun: 8 };
        let write = Operation::Write { fua: false };
        for (operation, at_first, at_last, tells) in [
            (Operation::Read, NOTHING, NOTHING, true),
            (Operation::Read, during, NOTHING, false),
            (Operation::Read, NOTHING, after, false),
            (write, NOTHING, NOTHING, false),
        ] {
            let mut here = AtDevice::default();
            let expected = here.begin(&MODEL, (operation, 4_096), at_first).unwrap();
            let end = here.end(&expected, at_last, (0, MODEL.channels));
            assert_eq!(end, tells.then_some(WAKING_NS + 100_000), "{operation:?}");
            assert_eq!((here.requests, here.needed_ns), (0, 0));
        }
        let flush = AtDevice::default().begin(&MODEL, (Operation::Flush, 0), NOTHING);
        assert_eq!(flush, None);
    }

    #[test]
    fn later_request_waits_for_earlier_ones_on_any_core() {
        let mut here = AtDevice::default();
        let mut begin = || here.begin(&MODEL, (Operation::Read, 4_096), NOTHING).unwrap();
        let [first, .., last] = [(); 4].map(|()| begin());
        assert_eq!(here.end(&first, NOTHING, (0, 2)), Some(WAKING_NS + 100_000));
        // There is no channel for two of the three other requests before it.
        assert_eq!(here.end(&last, NOTHING, (0, 2)), Some(WAKING_NS + 200_000));
        let mut here = AtDevice::default();
        let alone = here.begin(&MODEL, (Operation::Read, 4_096), NOTHING).unwrap();
        assert_eq!(here.end(&alone, NOTHING, (3, 2)), Some(WAKING_NS + 200_000));
    }
}
