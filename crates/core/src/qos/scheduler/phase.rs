//! One volume's scheduler as a whole, for who wants to know when it repeats itself.

use alloc::vec::Vec;

use super::{Scheduler, VolumeIndex};
use crate::qos::phase::Phase;
use crate::time::Instant;

impl Scheduler {
    /// Where in its cycle the scheduler is at `now`.
    ///
    /// Two phases that are [alike](Phase::is_like) are followed by the same dispatches at the same
    /// distances, if the same calls follow at the same distances and no request costs another
    /// amount because of where it lies or which way its bytes go: of what waits only the length is
    /// told, so that requests to random places can be alike.
    ///
    /// `None` where that cannot be told: unless `volume` is the only one there ever was, with one
    /// attachment at most, without a device or links of a direction, and waits for no time that is
    /// too far away for the wheel's near level.
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

    /// Lets credits be as if all that happened from one phase to a later one that is like it had
    /// happened once more, in no time; `false`, and nothing is changed, if it would not come the
    /// same way again. Counters count what really happened.
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
