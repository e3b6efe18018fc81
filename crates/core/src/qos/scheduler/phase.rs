//! The state of a scheduler with one volume, to detect that it repeats itself.

use alloc::vec::Vec;

use super::{Scheduler, VolumeIndex};
use crate::qos::phase::Phase;
use crate::time::Instant;

impl Scheduler {
    /// Returns the state that determines the scheduler's future at `now`.
    ///
    /// After two phases that are [alike](Phase::is_like), the dispatches are the same at the same
    /// distances, if the same calls follow at the same distances and no request has another cost
    /// because of its place or its direction: of waiting requests only the length is included, so
    /// that requests to random places can be alike.
    ///
    /// Returns `None` if that is not certain: unless `volume` is the only one that was ever added,
    /// with one attachment at most, without a device or a limit of one direction of the link, and
    /// waits for no time that is beyond the wheel's near level.
    #[must_use]
    pub fn phase(&mut self, now: Instant, volume: VolumeIndex) -> Option<Phase> {
        self.set_now(now);
        let slot = self.live(volume)?;
        let [entry] = self.volumes.as_slice() else { return None };
        let is_told = self.output.is_empty() && self.sharing.device_queues.is_empty();
        let mut phase = Phase::new(self.now);
        entry.limiter.tell(&mut phase);
        self.reserves[slot].tell(&mut phase);
        entry.queue.class.tell(&self.nodes, &mut phase)?;
        self.wheel.tell(slot, &mut phase)?;
        self.sharing.tell(&self.nodes, &mut phase)?;
        is_told.then_some(phase)
    }

    /// Sets credits to their values after a repetition of all that happened from one phase to a
    /// later one that is like it. Returns `false`, and changes nothing, if a repetition would
    /// differ. Counters are not changed.
    pub fn repeat(&mut self, before: &Phase, after: &Phase) -> bool {
        let Self { now, reserves, sharing, .. } = self;
        let instances = sharing.instances.iter_mut().map(|instance| &mut instance.reserves);
        let mut reserves: Vec<_> = reserves.iter_mut().chain(instances).collect();
        for reserves in &mut reserves {
            reserves.settle(*now);
        }
        let credits = reserves.iter().flat_map(|reserves| reserves.credits());
        let Some(repeated) = after.repeated(before, credits) else { return false };
        let credits = reserves.into_iter().flat_map(|reserves| reserves.credits_mut());
        for (credit, repeated) in credits.zip(repeated) {
            *credit = repeated;
        }
        true
    }
}
