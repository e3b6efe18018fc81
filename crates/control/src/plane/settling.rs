//! Settling: calling the data plane with a volume's desired state, and committing the outcome.

use evenkeel_core::ids::VolumeId;
use evenkeel_wire::agent::{Command as AgentCommand, Failed, FailedKind};

use super::{Plane, PlaneError};
use crate::journal::Credits;
use crate::model::{AttachmentState, Phase, Settled, Volume};
use crate::{clock, reconcile};

/// Who says to the data plane what a volume should be.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Settling {
    /// A client, who asked for something new.
    Asked,
    /// The server, which says again what was not answered, or what was decided while the volume
    /// was in error.
    Again,
    /// The server as it starts, to a data plane that holds nothing yet.
    Starting,
}

impl Plane {
    /// Tells the data plane what `id` should be, and makes the outcome final.
    pub(super) fn settle(
        &self,
        id: VolumeId,
        settling: Settling,
        opening: &Credits,
    ) -> Result<(), PlaneError> {
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
        let answer = self.call(command);
        if let Err(failed) = &answer
            && failed.kind == FailedKind::Unanswered
        {
            // It may be done at any moment, so it is not taken back: the tick says it again.
            self.writer()?.unanswered.insert(id);
            return Err(PlaneError::Agent(failed.clone()));
        }
        let now = clock::now();
        let settled = settled(&answer, settling, was_in_error);
        {
            let mut writer = self.writer()?;
            writer.unanswered.remove(&id);
            let events = self.model().settle(&self.settings, id, settled, now);
            if !events.is_empty() {
                self.commit(&mut writer, events, &Credits::default())?;
            }
        }
        // What is not served, no host can reach: it is detached.
        let is_shut = detaching
            && before(|volume| {
                let stays =
                    volume.attachments.iter().any(|a| a.state == AttachmentState::Detaching);
                matches!(volume.phase, Phase::Error(_)) && !stays
            });
        if deleting && answer.is_err() {
            // As far as its bytes are in order it is served again at once.
            let _ = self.settle(id, Settling::Again, &Credits::default());
        }
        if modifying && answer.is_ok() {
            // New limits may mean new credits: what they are must be on disk before anybody is
            // told. What was just applied is among those that moved; if the data plane does not
            // tell them, the tick asks for all.
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

    fn desired(&self, id: VolumeId, opening: &Credits) -> Result<Option<AgentCommand>, PlaneError> {
        let writer = self.writer()?;
        let model = self.model();
        let start = writer.start_of_volume(id, opening);
        let desired = |volume| reconcile::desired(&self.settings, &model, volume, start);
        Ok(model.volumes.get(&id).map(desired))
    }
}

/// What an answer to a volume's desired state means for the volume.
fn settled<'a>(
    answer: &'a Result<(), Failed>,
    settling: Settling,
    was_in_error: bool,
) -> Settled<'a> {
    let Err(Failed { kind, message }) = answer else { return Settled::Done };
    match (kind, settling) {
        (FailedKind::Damaged, Settling::Asked) if !was_in_error => Settled::Lost(message),
        (FailedKind::Damaged, _) => Settled::Unreachable(message),
        // What hinders opening may pass, and clients may have seen what was begun before.
        (FailedKind::Internal, Settling::Starting) => Settled::Unreachable(message),
        _ => Settled::Failed(message),
    }
}
