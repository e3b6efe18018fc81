//! Creating and deleting volumes.

use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::volume::{VolumeRequest, VolumeType};

use super::copies::Beginning;
use super::{
    Attachment, Begins, Calls, Decision, Event, Model, Phase, Refusal, Settings, Settled,
    SnapshotPhase, TAGS_MAX, TOKEN_LIFETIME_MS, TOKENS_MAX, Tags, Token, UnixMs, VOLUMES_MAX,
    Volume, VolumeState,
};

/// The parameters of a volume to create, from new bytes or from existing ones.
pub(super) struct NewVolume<'a> {
    pub id: VolumeId,
    pub request: &'a VolumeRequest,
    pub begins: &'a Begins,
    pub zone: &'a str,
    pub tags: &'a Tags,
    /// Client token and fingerprint of the request.
    pub token: Option<&'a (String, String)>,
}

/// Returns whether a token that was used at `used` has expired by `now`.
fn is_stale(used: UnixMs, now: UnixMs) -> bool {
    now.ms_since(used) > TOKEN_LIFETIME_MS
}

impl Settings {
    /// Returns EC2's default type: gp2, or standard before gp2 existed.
    #[must_use]
    pub fn default_type(&self) -> VolumeType {
        if self.rules.offers(VolumeType::Gp2) { VolumeType::Gp2 } else { VolumeType::Standard }
    }
}

impl Model {
    /// Returns the token of this name, if it was used within the last day. A repeated token creates
    /// nothing new.
    #[must_use]
    pub fn known_token(&self, name: &str, now: UnixMs) -> Option<&Token> {
        self.tokens.get(name).filter(|token| !is_stale(token.used, now))
    }

    pub(super) fn create_volume(
        &self,
        settings: &Settings,
        new: &NewVolume<'_>,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        if let Some((name, fingerprint)) = new.token
            && let Some(known) = self.known_token(name, now)
        {
            if known.fingerprint != *fingerprint {
                return Err(Refusal::TokenReused(name.clone()));
            }
            // The volume may have been deleted since. An error is better than creating it again
            // unnoticed.
            self.volume(known.volume)?;
            return Ok(Decision { calls: Calls::Volume(known.volume), ..Decision::default() });
        }
        if !settings.has_zone(new.zone) {
            return Err(Refusal::UnknownZone(new.zone.into()));
        }
        let size_gib = new.request.size_gib;
        let beginning = self.beginning(settings, new.id, size_gib, new.zone, new.begins, now)?;
        self.add_volume(settings, new, beginning, now)
    }

    fn add_volume(
        &self,
        settings: &Settings,
        new: &NewVolume<'_>,
        beginning: Beginning,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        let &NewVolume { id, request, begins, zone, tags, token } = new;
        if !settings.has_zone(zone) {
            return Err(Refusal::UnknownZone(zone.into()));
        }
        let Beginning { is_adopted, is_encrypted, is_fast_restored, through, events } = beginning;
        let spec = settings.rules.resolve(request).map_err(Refusal::Spec)?;
        if tags.len() > TAGS_MAX {
            return Err(Refusal::TooManyTags(id.to_string()));
        }
        if self.volumes.len() >= VOLUMES_MAX {
            return Err(Refusal::TooManyVolumes);
        }
        if self.volumes.contains_key(&id) {
            return Err(Refusal::IdTaken(id.to_string()));
        }
        let volume = Volume {
            snapshot: begins.snapshot,
            source: begins.source,
            through,
            is_adopted,
            is_encrypted,
            is_fast_restored,
            tags: tags.clone(),
            ..Volume::new(id, zone, spec, now)
        };
        let mut decision = Decision::changing(volume);
        decision.events.extend(events);
        let old = self.index.tokens_by_age().take_while(|(used, _)| is_stale(*used, now));
        decision.events.extend(old.map(|(_, name)| Event::TokenGone(name.clone())));
        if let Some((name, fingerprint)) = token {
            if self.tokens.len() >= TOKENS_MAX
                && let Some((_, oldest)) = self.index.tokens_by_age().next()
            {
                decision.events.push(Event::TokenGone(oldest.clone()));
            }
            let token = Token { fingerprint: fingerprint.clone(), volume: id, used: now };
            decision.events.push(Event::Token(name.clone(), token));
        }
        Ok(decision)
    }

    /// Creates a volume as [`Self::create_volume`] does, but of existing bytes, encrypted or not.
    pub(super) fn adopt_volume(
        &self,
        settings: &Settings,
        new: &NewVolume<'_>,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        let beginning = Beginning {
            is_adopted: true,
            is_encrypted: new.begins.is_encrypted == Some(true),
            is_fast_restored: false,
            through: None,
            events: vec![],
        };
        self.add_volume(settings, new, beginning, now)
    }

    pub(super) fn delete_volume(
        &self,
        settings: &Settings,
        id: VolumeId,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        self.delete(settings, id, None, now)
    }

    /// Decides on a volume when `host` is terminated: it is deleted if it is marked for that and no
    /// other host has it, else detached. A client may have detached it, or removed the mark, since
    /// the host's volumes were listed, so both are checked here.
    pub(super) fn delete_with(
        &self,
        settings: &Settings,
        id: VolumeId,
        host: InstanceId,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        let attachments = &self.volume(id)?.attachments;
        let of_host = attachments.iter().find(|attachment| attachment.instance == host);
        let attachment = of_host.ok_or(Refusal::NotAttachedTo(id, host))?;
        if attachment.delete_on_termination && attachments.len() == 1 {
            self.delete(settings, id, Some(host), now)
        } else {
            self.detach(id, Some(host), &None)
        }
    }

    fn delete(
        &self,
        settings: &Settings,
        id: VolumeId,
        with: Option<InstanceId>,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        let is_other = |attachment: &&Attachment| Some(attachment.instance) != with;
        let attached = self.volume(id)?;
        if let Some(attachment) = attached.attachments.iter().find(is_other) {
            return Err(Refusal::VolumeInUse(id, attachment.instance));
        }
        let is_attached = !attached.attachments.is_empty();
        // A volume in error waits for its bytes, so it may stay unsettled for a long time.
        let is_at_rest = attached.is_settled() || matches!(attached.phase, Phase::Error(_));
        if is_attached && !is_at_rest {
            return Err(Refusal::Unsettled(id));
        }
        let volume = &Volume { attachments: vec![], ..attached.clone() };
        match volume.state() {
            VolumeState::Available if !volume.is_settled() => Err(Refusal::Unsettled(id)),
            VolumeState::Available | VolumeState::Error => {
                let phase = match (&volume.phase, settings.binned_until(now)) {
                    // Its bytes may exist, and only be unreachable.
                    (Phase::Ready | Phase::Error(_), Some(until)) => {
                        Phase::Binned { entered: now, until }
                    }
                    _ => Phase::Deleting,
                };
                let volume = Volume { phase, ..volume.clone() };
                // No host may reach it in the bin, so the data plane is called.
                Ok(if is_attached {
                    Decision::reopening(volume)
                } else {
                    Decision::changing(volume)
                })
            }
            VolumeState::Creating if self.waits(volume) => {
                let gone = Settled::Failed("it was deleted");
                let events = self.settle(settings, id, gone, now);
                Ok(Decision { calls: Calls::Volume(id), events })
            }
            state => Err(Refusal::NotAvailable(id, state)),
        }
    }

    /// Returns whether a client token that is still known created this volume.
    #[must_use]
    pub fn has_token(&self, id: VolumeId) -> bool {
        self.index.tokens_of(id).next().is_some()
    }

    /// Returns whether a volume waits for the snapshot with which it begins.
    fn waits(&self, volume: &Volume) -> bool {
        let own = volume.through.and_then(|own| self.snapshots.get(&own));
        own.is_some_and(|own| !matches!(own.phase, SnapshotPhase::Completed { .. }))
    }

    pub(super) fn set_auto_enable_io(
        &self,
        id: VolumeId,
        is_on: bool,
    ) -> Result<Decision, Refusal> {
        let volume = Volume { auto_enable_io: is_on, ..self.volume(id)?.clone() };
        Ok(Decision { events: vec![Event::Volume(volume)], ..Decision::default() })
    }
}
