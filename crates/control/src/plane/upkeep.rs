//! What is done at every tick.

use std::collections::BTreeSet;

use evenkeel_core::ids::VolumeId;
use tracing::{debug, info, warn};

use super::Plane;
use super::key_locks::Key;
use super::settling::Settling;
use crate::journal::Credits;
use crate::model::{Phase, Volume};
use crate::reconcile;

/// What is looked after from tick to tick.
pub(super) struct Upkeep {
    /// Ticks until volumes in error are tried again.
    pub(super) ticks_to_retry: u32,
    /// The volume in error that was tried last.
    pub(super) retried: Option<VolumeId>,
    /// Ticks until the room for bytes at rest is looked at.
    pub(super) ticks_to_look: u32,
}

/// Every so many ticks volumes in error are tried again: who has put a file back waits no longer.
pub(super) const RETRY_TICKS: u32 = 5;
/// So many of them at once: a disk that is not mounted may hold thousands.
const RETRIES_MAX: usize = 64;
/// Every so many ticks the room for bytes at rest is looked at: every volume's file is.
pub(super) const SPACE_TICKS: u32 = 10;

impl Plane {
    /// Once a second: both of what follows.
    pub fn tick(&self) {
        self.look_after();
        self.renew_leases();
    }

    /// Settles what could not be settled before, now and then also volumes in error, and looks at
    /// the room for bytes at rest. May take as long as the device does.
    pub fn look_after(&self) {
        let Ok(mut upkeep) = self.upkeep.try_lock() else { return };
        for id in self.unsettled() {
            // Whoever has its turn settles it.
            let Some(_turn) = self.turns.try_take(vec![Key::Volume(id)]) else { continue };
            let is_settled = self.model().volumes.get(&id).is_none_or(Volume::is_settled);
            if is_settled && !self.writer().is_ok_and(|writer| writer.unanswered.contains(&id)) {
                continue;
            }
            match self.settle(id, Settling::Again, &Credits::default()) {
                Ok(()) => {}
                // Whoever asked for it was told.
                Err(error) if error.is_unanswered() => debug!(volume = %id, "still no answer"),
                Err(error) => warn!(volume = %id, %error, "could not be settled; trying again"),
            }
        }
        self.retry_in_error(&mut upkeep);
        upkeep.ticks_to_look = upkeep.ticks_to_look.checked_sub(1).unwrap_or(SPACE_TICKS);
        if upkeep.ticks_to_look == 0 {
            self.look_at_space();
        }
    }

    /// Volumes about which the data plane is still to be told something. Nothing becomes unsettled
    /// but by an event: ten thousand volumes are not looked through every second.
    fn unsettled(&self) -> BTreeSet<VolumeId> {
        let Ok(mut writer) = self.writer() else { return BTreeSet::new() };
        let mut unsettled: BTreeSet<VolumeId> = match writer.is_settled {
            true => BTreeSet::new(),
            false => reconcile::unsettled(&self.model()).into_iter().collect(),
        };
        writer.is_settled = unsettled.is_empty();
        unsettled.extend(&writer.unanswered);
        unsettled
    }

    /// Tries volumes in error again, now and then: what was wrong may have been mended.
    fn retry_in_error(&self, upkeep: &mut Upkeep) {
        upkeep.ticks_to_retry = upkeep.ticks_to_retry.saturating_sub(1);
        if upkeep.ticks_to_retry > 0 {
            return;
        }
        upkeep.ticks_to_retry = RETRY_TICKS;
        let in_error = reconcile::in_error(&self.model());
        // From where the last time ended, so that everyone has a turn.
        let first = in_error.partition_point(|id| upkeep.retried.is_some_and(|last| *id <= last));
        let turns = in_error.iter().cycle().skip(first).take(in_error.len().min(RETRIES_MAX));
        for &id in turns {
            upkeep.retried = Some(id);
            let Some(_turn) = self.turns.try_take(vec![Key::Volume(id)]) else { continue };
            let in_error = |volume: &Volume| matches!(volume.phase, Phase::Error(_));
            if !self.model().volumes.get(&id).is_some_and(in_error) {
                continue;
            }
            match self.settle(id, Settling::Again, &Credits::default()) {
                Ok(()) => info!(volume = %id, "back in service"),
                Err(error) => debug!(volume = %id, %error, "still in error"),
            }
        }
    }
}
