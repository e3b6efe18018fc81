//! Calls the data plane with a volume's desired state and commits the outcome.
//!
//! A decision leaves a volume unsettled (`creating`, `attaching`, ...). [`Plane::settle`] is given
//! its id. If the data plane confirms, the transition is completed; if it refuses, the transition
//! is rolled back; if it does not answer, the volume stays as it is and the tick repeats the call.

use evenkeel_core::ids::VolumeId;
use evenkeel_wire::agent::{Command as AgentCommand, Failed, FailedKind};
use tracing::{error, warn};

use super::copies::Own;
use super::{Plane, PlaneError};
use crate::events::During;
use crate::journal::Credits;
use crate::key_locks::Key;
use crate::model::{AttachmentState, Phase, Settled, Volume};
use crate::reconcile;

/// Why the data plane is called with a volume's desired state.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Settling {
    /// A client requested a change.
    Asked,
    /// The server repeats a call without an answer, or sends a change that was decided while the
    /// volume was in error.
    Again,
    /// The server starts, and the data plane holds no state yet.
    Starting,
}

impl Plane {
    /// Calls the data plane with the desired state of `id` and commits the outcome. The volume
    /// starts with its balance in `opening`, or else with its unleased one.
    pub(super) fn settle(
        &self,
        id: VolumeId,
        settling: Settling,
        opening: &Credits,
    ) -> Result<(), PlaneError> {
        match self.own_of(id) {
            Own::Ready => {}
            Own::Waits => return Ok(()),
            Own::Failed(reason) => {
                error!(volume = %id, reason, "cannot be created");
                return self.give_up(id, &reason);
            }
        }
        let Some(command) = self.desired(id, opening)? else {
            self.writer()?.unanswered.remove(&id);
            return Ok(());
        };
        let before = |is: fn(&Volume) -> bool| self.model().volumes.get(&id).is_some_and(is);
        let modifying = before(Volume::is_being_modified);
        let was_in_error = before(|volume| matches!(volume.phase, Phase::Error(_)));
        let detaching = before(|volume| {
            volume.attachments.iter().any(|a| a.state == AttachmentState::Detaching)
        });
        let deleting = before(|volume| volume.phase == Phase::Deleting);
        let is_made = self.is_surely_made(id)?;
        let unmade = self.writer()?.unmade.get(&id).cloned();
        let answer = unmade.map_or_else(|| self.call(command), Err);
        if let Err(failed) = &answer
            && failed.kind == FailedKind::Unanswered
        {
            // The data plane may still complete it, so it is not rolled back: the tick repeats it.
            self.writer()?.unanswered.insert(id);
            return Err(PlaneError::Agent(failed.clone()));
        }
        match &answer {
            Ok(()) => self.confirm(id, self.now())?,
            Err(failed) => {
                if is_made && self.nodes.is_none() {
                    self.delete_unmade(id, failed)?;
                }
                self.revert(id, failed, settled(failed, settling, was_in_error))?;
            }
        }
        // A volume that is not served is unreachable for every host, so it counts as detached.
        let is_shut = detaching
            && before(|volume| {
                let stays =
                    volume.attachments.iter().any(|a| a.state == AttachmentState::Detaching);
                matches!(volume.phase, Phase::Error(_)) && !stays
            });
        if deleting && answer.is_err() {
            // If its bytes are intact it is served again at once.
            let _ = self.settle(id, Settling::Again, &Credits::default());
        }
        if modifying && answer.is_ok() {
            // New limits may change the credits, which must be on disk before the client gets its
            // reply. The volume is among those whose balance moved. If the data plane does not
            // report them, the tick requests all balances.
            let mut leases = self.leases()?;
            match self.renew_moved(&mut leases) {
                Ok(()) | Err(PlaneError::Agent(_)) => {}
                failed => failed?,
            }
        }
        match answer {
            Err(_) if is_shut => Ok(()),
            answer => answer.map_err(PlaneError::Agent),
        }
    }

    /// Returns whether a volume is being created, and its bytes began with it.
    ///
    /// Version 0.1.0 did not record that a volume is being adopted. So of one whose creation an
    /// earlier process began, only what no adoption has shows that: a client token, or an origin.
    fn is_surely_made(&self, id: VolumeId) -> Result<bool, PlaneError> {
        let writer = self.writer()?;
        let model = self.model();
        let Some(volume) = model.volumes.get(&id) else { return Ok(false) };
        let has_origin = volume.snapshot.is_some() || volume.source.is_some();
        let is_known = has_origin || model.has_token(id) || writer.born.contains_key(&id);
        Ok(volume.phase == Phase::Creating && !volume.is_adopted && is_known)
    }

    /// Deletes what is stored of a volume that could not be created for the reason `why`. An
    /// earlier call may have made it, also one of a server that was killed, and no client has the
    /// volume. If this fails, the volume stays in creation, and the tick repeats the deletion only.
    ///
    /// Not for a cluster: there a server that leads no more may come here, and a later leader may
    /// have created the volume.
    fn delete_unmade(&self, id: VolumeId, why: &Failed) -> Result<(), PlaneError> {
        let deleted = self.call(AgentCommand::Delete(id));
        let mut writer = self.writer()?;
        let Err(error) = deleted else {
            writer.unmade.remove(&id);
            return Ok(());
        };
        let left = error.message;
        warn!(volume = %id, left, "could not be created, and its bytes are left; trying again");
        writer.unmade.insert(id, why.clone());
        let kind = match why.kind {
            FailedKind::Down => FailedKind::Down,
            _ => FailedKind::Unanswered,
        };
        Err(PlaneError::Agent(Failed { kind, message: why.message.clone() }))
    }

    /// Commits the outcome for a volume whose desired state the data plane did not put in force.
    fn revert(
        &self,
        id: VolumeId,
        failed: &Failed,
        settled: Settled<'_>,
    ) -> Result<(), PlaneError> {
        let mut writer = self.writer()?;
        writer.unanswered.remove(&id);
        let events = self.model().settle(&self.settings, id, settled, self.now());
        let _cause = During::because(&failed.message);
        if events.is_empty() {
            return Ok(());
        }
        self.commit(&mut writer, events, &Credits::default())
    }

    /// Serves a volume that is in error with the data that can be read. Does nothing if it is not
    /// in error.
    pub(crate) fn enable_io(&self, id: VolumeId, dry_run: bool) -> Result<(), PlaneError> {
        let _keys = self.lock_keys(vec![Key::Volume(id)])?;
        let found = self.model().volume(id).map(|volume| volume.phase.clone());
        let is_in_error = matches!(found.map_err(PlaneError::Refused)?, Phase::Error(_));
        match (dry_run, is_in_error) {
            (true, _) => Err(PlaneError::DryRun),
            (false, true) => self.salvage(id),
            (false, false) => Ok(()),
        }
    }

    /// Repairs a damaged volume in the store so that it can be opened, and opens it.
    pub(super) fn salvage(&self, id: VolumeId) -> Result<(), PlaneError> {
        self.call(AgentCommand::Salvage(id)).map_err(PlaneError::Agent)?;
        self.settle(id, Settling::Again, &Credits::default())
    }

    /// Opens the bytes of a volume in the recycle bin, as they are opened at each start. Called
    /// before the decision that restores it. Returns the reason if they cannot be opened: the
    /// volume comes back in error, as after such a start, and can be salvaged.
    pub(super) fn open_binned(&self, id: VolumeId) -> Result<Option<String>, PlaneError> {
        let Some(command) = self.desired(id, &Credits::default())? else { return Ok(None) };
        match self.call(command) {
            Ok(()) => Ok(None),
            Err(Failed { kind: FailedKind::Damaged | FailedKind::Internal, message }) => {
                error!(volume = %id, reason = message, "is restored in error");
                Ok(Some(message))
            }
            Err(failed) => Err(PlaneError::Agent(failed)),
        }
    }

    fn desired(&self, id: VolumeId, opening: &Credits) -> Result<Option<AgentCommand>, PlaneError> {
        let writer = self.writer()?;
        let model = self.model();
        let start = writer.start_of_volume(id, opening);
        let desired = |volume| reconcile::desired(&self.settings, &model, volume, start);
        Ok(model.volumes.get(&id).map(desired))
    }
}

/// Returns the outcome for a volume whose desired state the data plane did not put in force.
fn settled(failed: &Failed, settling: Settling, was_in_error: bool) -> Settled<'_> {
    let Failed { kind, message } = failed;
    match (kind, settling) {
        (FailedKind::Damaged, Settling::Asked) if !was_in_error => Settled::Lost(message),
        (FailedKind::Damaged, _) => Settled::Unreachable(message),
        // The cause may pass, and clients may have seen the change in progress.
        (FailedKind::Internal, Settling::Starting) => Settled::Unreachable(message),
        _ => Settled::Failed(message),
    }
}
