//! Stop: closes the volumes that spend credits, then commits the final balances to the journal.

use evenkeel_wire::agent::{Command as AgentCommand, CreditReport, FailedKind};
use tracing::warn;

use super::leases::credits_of;
use super::{Plane, PlaneError};
use crate::journal::{Change, Credits};
use crate::key_locks::Key;
use crate::model::{Phase, Volume};
use crate::reconcile;

impl Plane {
    /// Stores the final balances. Before that it closes the volumes that spend credits to their
    /// hosts, so that nothing is spent after the last report. Control plane and data plane stop
    /// together.
    ///
    /// # Errors
    /// The journal or the data plane failed. The next start then treats this stop as a crash.
    pub fn stop(&self) -> Result<(), PlaneError> {
        // Clients must get their answers before volumes are closed.
        let _ = self.faults.stop(&[]);
        let _all = self.lock_keys(vec![Key::Everything])?;
        let _leases = self.leases()?;
        let mut writer = self.writer()?;
        let model = self.model();
        let spends = |volume: &&Volume| {
            volume.phase == Phase::Ready
                && reconcile::spends_credits(&self.settings, &model, volume)
        };
        let to_close: Vec<AgentCommand> = model
            .volumes
            .values()
            .filter(spends)
            .map(|volume| {
                let start = writer.start_of_volume(volume.id, &Credits::default());
                reconcile::closed(&self.settings, volume, start)
            })
            .collect();
        drop(model);
        drop(writer);
        for command in to_close {
            match self.call(command) {
                Ok(()) => {}
                // Its bytes are unreachable, so it is closed already. The others stop cleanly.
                Err(failed) if failed.kind == FailedKind::Damaged => {
                    warn!(reason = failed.message, "a volume was closed already");
                }
                Err(failed) => return Err(PlaneError::Agent(failed)),
            }
        }
        let report = self.report()?;
        writer = self.writer()?;
        let changed = changed(&writer.stored, credits_of(report));
        let stopped = Some(super::time::moment(&self.clock));
        let clock = Some(self.moment());
        writer.store(&Change { events: vec![], unleased: changed, stopped, clock })?;
        Ok(())
    }
}

/// Returns the reported balances that differ from the stored ones, of volumes and hosts that are
/// stored.
fn changed(stored: &Credits, reported: CreditReport) -> Credits {
    let CreditReport { mut volumes, mut hosts } = reported;
    volumes.retain(|(id, new)| stored.volumes.get(id).is_some_and(|old| old != new));
    hosts.retain(|(id, new)| stored.hosts.get(id).is_some_and(|old| old != new));
    Credits { volumes: volumes.into_iter().collect(), hosts: hosts.into_iter().collect() }
}
