//! The second step of every change: applies the answer of the data plane.

use evenkeel_core::ids::VolumeId;

use super::{
    AttachmentState, Event, Model, Modification, ModificationPhase, Phase, Settings, UnixMs, Volume,
};

/// The data plane's answer to a volume's desired state.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Settled<'a> {
    /// It is in force.
    Done,
    /// It had no effect; the text has the reason.
    Failed(&'a str),
    /// It had no effect, because the volume's bytes are unreachable; the text has the reason. The
    /// change is rolled back, and the volume is not served until its bytes are reachable again.
    Lost(&'a str),
    /// The volume's bytes are unreachable, so it cannot be served; the text has the reason. A
    /// change in progress stays as decided, since part of it may be in force.
    Unreachable(&'a str),
}

impl Model {
    /// Returns the events for volume `id` after the data plane was called with its desired state,
    /// or with its deletion if it is being deleted. They complete all unsettled changes, or roll
    /// them back.
    #[must_use]
    pub fn settle(
        &self,
        settings: &Settings,
        id: VolumeId,
        settled: Settled<'_>,
        now: UnixMs,
    ) -> Vec<Event> {
        let Some(volume) = self.volumes.get(&id) else { return vec![] };
        let after = match settled {
            Settled::Done => confirmed(settings, volume, now),
            Settled::Failed(reason) => taken_back(volume, reason, now),
            Settled::Lost(reason) => lost(volume, reason, now),
            Settled::Unreachable(reason) => unreachable(volume, reason, now),
        };
        match after {
            Some(after) if after == *volume => vec![],
            Some(after) => {
                let mut events = vec![Event::Volume(after)];
                if volume.phase == Phase::Creating {
                    events.extend(self.without_own(id));
                }
                events
            }
            None => {
                let mut events = vec![Event::VolumeGone(id)];
                events.extend(self.without_own(id));
                if volume.phase == Phase::Creating {
                    // The volume never existed: a repeated request may create it.
                    let its = self.index.tokens_of(id);
                    events.extend(its.map(|name| Event::TokenGone(name.clone())));
                }
                events
            }
        }
    }

    /// Returns the event for a settled volume that could not be opened; `None` if it is in error
    /// for that reason already.
    #[must_use]
    pub fn fail(&self, id: VolumeId, reason: &str) -> Option<Event> {
        let phase = Phase::Error(reason.into());
        let is_other = |volume: &&Volume| volume.phase != phase && volume.is_shown();
        let volume = self.volumes.get(&id).filter(is_other)?;
        Some(Event::Volume(Volume { phase, ..volume.clone() }))
    }
}

fn lost(volume: &Volume, reason: &str, now: UnixMs) -> Option<Volume> {
    let mut lost = volume.clone();
    if lost.phase == Phase::Ready {
        lost.phase = Phase::Error(reason.into());
    }
    taken_back(&lost, reason, now)
}

fn unreachable(volume: &Volume, reason: &str, now: UnixMs) -> Option<Volume> {
    if matches!(volume.phase, Phase::Creating | Phase::Deleting) {
        return taken_back(volume, reason, now);
    }
    let mut after = volume.clone();
    if after.is_shown() {
        after.phase = Phase::Error(reason.into());
    }
    // No host can reach it, and no host has reached it through the new attachment.
    after.attachments.retain(|a| a.state == AttachmentState::Attached);
    Some(after)
}

fn confirmed(settings: &Settings, volume: &Volume, now: UnixMs) -> Option<Volume> {
    let mut after = volume.clone();
    match after.phase {
        Phase::Deleting => return None,
        Phase::Creating | Phase::Error(_) | Phase::Ready => after.phase = Phase::Ready,
        // The data plane does not serve it, and it stays in the bin.
        Phase::Binned { .. } => {}
    }
    after.through = None;
    after.is_adopted = false;
    after.attachments.retain(|a| a.state != AttachmentState::Detaching);
    for attachment in &mut after.attachments {
        attachment.state = AttachmentState::Attached;
    }
    if let Some(modification) = &mut after.modification
        && modification.phase == ModificationPhase::Modifying
    {
        modification.phase = settings.modify_policy.settled(&modification.target, now);
    }
    Some(after)
}

fn taken_back(volume: &Volume, reason: &str, now: UnixMs) -> Option<Volume> {
    let mut after = volume.clone();
    match after.phase {
        Phase::Creating => return None,
        Phase::Ready | Phase::Error(_) | Phase::Binned { .. } => {}
        // The data plane has closed it, or never held it. The next call finds out whether its bytes
        // are in order.
        Phase::Deleting => after.phase = Phase::Error(reason.into()),
    }
    let in_error = matches!(after.phase, Phase::Error(_));
    after.attachments.retain(|a| match a.state {
        AttachmentState::Attached => true,
        AttachmentState::Attaching => false,
        // A volume that the data plane does not hold is unreachable for every host.
        AttachmentState::Detaching => !in_error,
    });
    for attachment in &mut after.attachments {
        attachment.state = AttachmentState::Attached;
    }
    if let Some(Modification { original, started, phase, .. }) = &mut after.modification
        && *phase == ModificationPhase::Modifying
    {
        *phase = ModificationPhase::Failed { ended: now, reason: reason.into() };
        after.spec = *original;
        // A failed modification is not counted.
        after.modification_starts.retain(|start| start != started);
    }
    Some(after)
}
