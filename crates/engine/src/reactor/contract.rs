//! Judges each second whether the volumes that were used got the performance that was sold.

use super::Reactor;
use super::volumes::Volume;
use crate::driver::Driver;
use crate::table::VolumeSlot;
use evenkeel_core::qos::contract::{Contract, Seen};
use evenkeel_core::qos::scheduler::Scheduler;
use evenkeel_core::time::{Duration, Instant};

const SECOND: Duration = Duration::from_ms(1_000);
/// Longest period that is judged. In a longer one, the volume may have been used for a part only.
const PERIOD_MAX: Duration = Duration::from_ms(1_500);

/// State of a volume's contract.
#[derive(Default)]
pub(super) struct Judged {
    /// Whether it is in the list of volumes that were used in this second.
    used: bool,
    before: Seen,
    pub(super) contract: Contract,
}

/// Volumes to be judged, and the start of the current second.
#[derive(Default)]
pub(super) struct Second {
    began: Instant,
    used: Vec<VolumeSlot>,
    /// Volumes that were used in the second before: those that are not used in this one rest.
    used_before: Vec<VolumeSlot>,
}

impl Second {
    /// Makes room for one more volume, so that nothing is allocated while requests are served.
    pub(super) fn make_room(&mut self, volumes: usize) {
        self.used.reserve(volumes.saturating_sub(self.used.len()));
        self.used_before.reserve(volumes.saturating_sub(self.used_before.len()));
    }

    /// Removes a volume from the lists.
    pub(super) fn forget(&mut self, slot: VolumeSlot) {
        self.used.retain(|other| *other != slot);
        self.used_before.retain(|other| *other != slot);
    }
}

impl<D: Driver> Reactor<D> {
    /// Lists a volume as used in this second.
    pub(super) fn use_in_second(&mut self, slot: VolumeSlot) {
        let judged = &mut self.volumes[slot].judged;
        if !std::mem::replace(&mut judged.used, true) {
            self.second.used.push(slot);
        }
    }

    /// Judges the second at its end. The control plane asks for balances every second, so at least
    /// one turn of the loop falls in each.
    pub(super) fn judge_second(&mut self) {
        let period = self.now.since(self.second.began);
        if period < SECOND {
            return;
        }
        self.second.began = self.now;
        self.let_volumes_rest();
        // Without a calibrated device, no performance was promised.
        let is_told = self.device.is_some() && period <= PERIOD_MAX;
        let volumes = &mut self.volumes;
        let scheduler = &self.scheduler;
        self.second.used.retain(|&slot| {
            let volume = &mut volumes[slot];
            let (after, still_waits) = seen(scheduler, volume);
            let judged = &mut volume.judged;
            if is_told {
                let before = &judged.before;
                judged.contract.count(volume.state.reserved, period, before, &after);
            }
            judged.before = after;
            // A volume with waiting requests counts as used in the next second, too.
            judged.used = still_waits;
            judged.used
        });
    }

    /// Notifies the stores of volumes that were used in the second before, and not in this one.
    fn let_volumes_rest(&mut self) {
        let mut slots = std::mem::take(&mut self.second.used_before);
        for &slot in &slots {
            let volume = &mut self.volumes[slot];
            if !volume.judged.used && !volume.is_leaving() {
                volume.store.rest(&mut self.driver.disk(slot));
                self.finish_store(slot);
            }
        }
        slots.clear();
        slots.extend(&self.second.used);
        self.second.used_before = slots;
    }

    /// Starts to judge a volume that has come from another core with its counters.
    pub(super) fn judge_from_now_on(&mut self, slot: VolumeSlot, contract: Contract) {
        let volume = &mut self.volumes[slot];
        let (before, _) = seen(&self.scheduler, volume);
        volume.judged = Judged { used: volume.judged.used, before, contract };
    }
}

/// Returns a volume's counters, and whether a request of it waits.
fn seen(scheduler: &Scheduler, volume: &Volume) -> (Seen, bool) {
    let counters = scheduler.counters(volume.index);
    let bytes = counters.bytes_read.saturating_add(counters.bytes_written);
    let seen = Seen { operations: counters.operations, bytes, exceeded: counters.exceeded };
    (seen, counters.queued_requests > 0)
}
