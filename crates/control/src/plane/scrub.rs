//! The scrub: reads all stored data, a second's worth at each tick.
//!
//! The store's metadata comes first, then volumes by id, then snapshots. Objects created after the
//! present place are read, and deleted ones are skipped. The data plane reads, and gives requests
//! of volumes priority.

use std::ops::Bound;
use std::path::PathBuf;

use evenkeel_core::convert::saturating;
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::time::UnixMs;
use evenkeel_wire::agent::{
    BackgroundReport, Command as AgentCommand, Failed, FailedKind, Reply, Verified,
};
use tracing::{debug, error, info, warn};

use super::calls::unexpected;
use super::{Plane, PlaneError};
use crate::events::notice::{ServerNews, What};
use crate::model::{Phase, SnapshotPhase};
use crate::scrub::{Scrub, ScrubState, Target};

/// Ticks between two writes of the file.
const SAVE_TICKS: u32 = 10;
const MIB: i64 = 1 << 20;
/// Minimum that a call takes from the budget: one that finds only holes reads metadata.
const CALL_BYTES_MIN: i64 = 256 << 10;

/// State that lasts from tick to tick.
#[derive(Default)]
pub(super) struct Scrubbing {
    scrub: Option<Scrub>,
    /// The data folder; without one the progress is not stored.
    folder: Option<PathBuf>,
    /// Bytes that may be read now; negative if more were read.
    budget: i64,
    ticks_to_save: u32,
    /// The object of the last event about damage.
    told: Option<Target>,
}

impl Scrubbing {
    fn save(&mut self) {
        self.ticks_to_save = SAVE_TICKS;
        if let (Some(scrub), Some(folder)) = (&self.scrub, &self.folder)
            && let Err(error) = scrub.save(folder)
        {
            warn!(%error, "how far the scrub is cannot be kept in {}", folder.display());
        }
    }
}

impl Plane {
    /// Loads the scrub of the data folder, which continues, and stores its progress there from now
    /// on.
    #[must_use]
    pub fn with_scrub_in(self, folder: PathBuf) -> Self {
        {
            let mut scrubbing = self.scrubbing();
            match Scrub::load(&folder) {
                Ok(scrub) => scrubbing.scrub = scrub,
                Err(reason) => warn!(reason, "how far the last scrub was is unknown"),
            }
            scrubbing.folder = Some(folder);
        }
        self
    }

    /// Returns the scrub that runs, or the last one.
    #[must_use]
    pub fn scrub(&self) -> Option<Scrub> {
        self.scrubbing().scrub.clone()
    }

    /// Starts a scrub, resumes one that was stopped, or changes the rate of one that runs.
    pub fn start_scrub(&self, rate_mibps: u32) -> Scrub {
        let mut scrubbing = self.scrubbing();
        let before = scrubbing.scrub.take();
        let scrub = match before {
            Some(mut scrub) if scrub.state != ScrubState::Completed => {
                (scrub.state, scrub.rate_mibps) = (ScrubState::Running, rate_mibps);
                scrub
            }
            _ => Scrub::new(rate_mibps, self.clock.unix_ms()),
        };
        scrubbing.scrub = Some(scrub.clone());
        scrubbing.budget = 0;
        scrubbing.save();
        scrub
    }

    /// Stops the scrub that runs, if there is one.
    pub fn stop_scrub(&self) -> Option<Scrub> {
        let mut scrubbing = self.scrubbing();
        if let Some(scrub) = &mut scrubbing.scrub
            && scrub.state == ScrubState::Running
        {
            scrub.state = ScrubState::Stopped;
        }
        scrubbing.save();
        scrubbing.scrub.clone()
    }

    /// Continues the scrub for one tick: reads as much as its rate allows in a second.
    pub fn scrub_on(&self) {
        let Some(mut left) = self.refill() else { return };
        while left > 0 {
            // The lock is not held while the data plane reads.
            let Some(scrub) = self.scrub().filter(|scrub| scrub.state == ScrubState::Running)
            else {
                return;
            };
            let Some((target, next)) = self.place(&scrub) else {
                return self.complete_scrub();
            };
            let read = self.verify(target, next);
            let mut scrubbing = self.scrubbing();
            let Scrubbing { scrub: Some(scrub), budget, told, .. } = &mut *scrubbing else {
                return;
            };
            scrub.at = Some(target.to_string());
            match read {
                Ok(verified) => {
                    note(scrub, target, &verified);
                    let bytes: i64 = saturating(verified.bytes.0);
                    *budget -= bytes.max(CALL_BYTES_MIN);
                    left = *budget;
                    if let Some(offset) = verified.rotten.first().copied()
                        && told.replace(target) != Some(target)
                    {
                        let offset = Some(offset);
                        self.feed.tell(What::Rotten { target, by: "scrub", offset });
                    }
                }
                // The object has been deleted.
                Err(failed) if failed.kind == FailedKind::NotFound => scrub.next = u64::MAX,
                Err(failed) if failed.kind == FailedKind::Unanswered => {
                    debug!(reason = failed.message, "the scrub waits");
                    scrub.next = next;
                    return;
                }
                Err(failed) => {
                    warn!(what = %target, reason = failed.message, "could not be read to its end");
                    scrub.unread += 1;
                    scrub.next = u64::MAX;
                }
            }
        }
    }

    /// Adds a second's worth to the budget of a running scrub. Returns the bytes that may be read
    /// now.
    fn refill(&self) -> Option<i64> {
        let mut scrubbing = self.scrubbing();
        let rate = match &scrubbing.scrub {
            Some(scrub) if scrub.state == ScrubState::Running => i64::from(scrub.rate_mibps) * MIB,
            _ => return None,
        };
        scrubbing.budget = scrubbing.budget.saturating_add(rate).min(rate);
        scrubbing.ticks_to_save = scrubbing.ticks_to_save.saturating_sub(1);
        if scrubbing.ticks_to_save == 0 {
            scrubbing.save();
        }
        Some(scrubbing.budget)
    }

    /// Returns the place to read next; `None` at the end.
    fn place(&self, scrub: &Scrub) -> Option<(Target, u64)> {
        let at = scrub.target();
        if let Some(target) = at
            && scrub.next != u64::MAX
        {
            return Some((target, scrub.next));
        }
        let model = self.model();
        let after_volume = match at {
            None => return Some((Target::Store, 0)),
            Some(Target::Store) => Some(Bound::Unbounded),
            Some(Target::Volume(id)) => Some(Bound::Excluded(id)),
            Some(Target::Snapshot(_)) => None,
        };
        let volume = after_volume.and_then(|after| {
            let range = (after, Bound::<VolumeId>::Unbounded);
            // Volumes in other phases are not served.
            model.volumes.range(range).find(|(_, volume)| volume.phase == Phase::Ready)
        });
        if let Some((id, _)) = volume {
            return Some((Target::Volume(*id), 0));
        }
        let after = match at {
            Some(Target::Snapshot(id)) => Bound::Excluded(id),
            _ => Bound::Unbounded,
        };
        let range = (after, Bound::<SnapshotId>::Unbounded);
        let is_complete = |phase: &SnapshotPhase| matches!(phase, SnapshotPhase::Completed { .. });
        let mut snapshots = model.snapshots.range(range);
        let (id, _) = snapshots.find(|(_, snapshot)| is_complete(&snapshot.phase))?;
        Some((Target::Snapshot(*id), 0))
    }

    fn complete_scrub(&self) {
        let mut scrubbing = self.scrubbing();
        if let Some(scrub) = &mut scrubbing.scrub {
            scrub.state = ScrubState::Completed;
            scrub.ended_ms = Some(self.clock.unix_ms().0);
            let bytes = scrub.verified_bytes;
            let rotten = scrub.rotten_places;
            match rotten {
                0 => info!(bytes, "a scrub has found everything as it was written"),
                _ => error!(bytes, rotten, "a scrub has found data that the device has changed"),
            }
            let started = UnixMs(scrub.started_ms);
            let unread = scrub.unread;
            let done = ServerNews::ScrubCompleted { started, bytes, rotten, unread };
            self.feed.tell(What::Server(done));
            scrubbing.told = None;
        }
        scrubbing.save();
    }

    fn verify(&self, target: Target, next: u64) -> Result<Verified, Failed> {
        let command = match target {
            Target::Store => AgentCommand::VerifyStore(next),
            Target::Volume(id) => AgentCommand::Verify(id, next),
            Target::Snapshot(id) => AgentCommand::VerifySnapshot(id, next),
        };
        match self.agent.call(command) {
            Reply::Verified(verified) => Ok(verified),
            Reply::Failed(failed) => Err(failed),
            _ => Err(unexpected("a verification was answered with something else")),
        }
    }

    /// Returns the results of background work.
    ///
    /// # Errors
    /// [`PlaneError::Agent`].
    pub fn background(&self) -> Result<BackgroundReport, PlaneError> {
        match self.agent.call(AgentCommand::Background) {
            Reply::Background(report) => Ok(report),
            Reply::Failed(failed) => Err(PlaneError::Agent(failed)),
            _ => Err(PlaneError::Agent(unexpected("Background was answered with something else"))),
        }
    }

    fn scrubbing(&self) -> std::sync::MutexGuard<'_, Scrubbing> {
        self.scrubbing.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

fn note(scrub: &mut Scrub, target: Target, verified: &Verified) {
    scrub.verified_bytes += verified.bytes.0;
    scrub.next = verified.next.unwrap_or(u64::MAX);
    if !verified.rotten.is_empty() {
        scrub.found(target, &verified.rotten);
        error!(
            what = %target,
            offset = verified.rotten[0],
            places = verified.rotten.len(),
            "a scrub has found data that is not as it was written"
        );
    }
}
