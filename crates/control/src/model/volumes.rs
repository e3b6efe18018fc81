//! Creating and deleting volumes.

use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::volume::VolumeRequest;

use super::{
    Decision, Event, Model, Phase, Refusal, Settings, TAGS_MAX, TOKEN_LIFETIME_MS, TOKENS_MAX,
    Tags, Token, UnixMs, VOLUMES_MAX, Volume, VolumeState,
};

/// The parameters of a volume to create, from new bytes or from existing ones.
pub(super) struct NewVolume<'a> {
    pub id: VolumeId,
    pub request: &'a VolumeRequest,
    /// The snapshot that it begins as.
    pub snapshot: Option<SnapshotId>,
    pub zone: &'a str,
    pub tags: &'a Tags,
    /// Client token and fingerprint of the request.
    pub token: Option<&'a (String, String)>,
}

/// Whether a token that was used at `used` has expired by `now`.
fn is_stale(used: UnixMs, now: UnixMs) -> bool {
    now.ms_since(used) > TOKEN_LIFETIME_MS
}

impl Model {
    /// The token of this name, if it was used within the last day. A repeated token creates nothing
    /// new.
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
        let &NewVolume { id, request, snapshot, zone, tags, token } = new;
        if let Some((name, fingerprint)) = token
            && let Some(known) = self.known_token(name, now)
        {
            if known.fingerprint != *fingerprint {
                return Err(Refusal::TokenReused(name.clone()));
            }
            // The volume may have been deleted since. An error is better than creating it again
            // unnoticed.
            self.volume(known.volume)?;
            return Ok(Decision { volume: Some(known.volume), ..Decision::default() });
        }
        if zone != settings.zone {
            return Err(Refusal::UnknownZone(zone.into()));
        }
        if let Some(snapshot) = snapshot {
            self.check_snapshot_for_volume(snapshot, request.size_gib)?;
        }
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
            id,
            zone: zone.into(),
            created: now,
            snapshot,
            spec,
            phase: Phase::Creating,
            attachments: vec![],
            tags: tags.clone(),
            modification: None,
            modification_starts: vec![],
        };
        let mut decision = Decision::changing(volume);
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

    pub(super) fn delete_volume(&self, id: VolumeId) -> Result<Decision, Refusal> {
        let volume = self.volume(id)?;
        if let Some(attachment) = volume.attachments.first() {
            return Err(Refusal::VolumeInUse(id, attachment.instance));
        }
        match volume.state() {
            // A volume in error waits for its bytes, so it may stay unsettled for a long time.
            VolumeState::Available if !volume.is_settled() => Err(Refusal::Unsettled(id)),
            VolumeState::Available | VolumeState::Error => {
                Ok(Decision::changing(Volume { phase: Phase::Deleting, ..volume.clone() }))
            }
            state => Err(Refusal::NotAvailable(id, state)),
        }
    }
}
