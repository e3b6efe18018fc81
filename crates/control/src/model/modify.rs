//! ModifyVolume: which changes are legal, and how often.

use evenkeel_core::convert::index;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::volume::{ModifyPolicy as Rationing, Rules, VolumeChange, VolumeSpec};

use super::{
    Decision, Model, Modification, ModificationPhase, Phase, Refusal, Settings, UnixMs, Volume,
};

const HOUR_MS: u64 = 3_600_000;
/// Duration of the simulated state `optimizing`: six hours per TiB (the EC2 user guide's figure for
/// a full 1 TiB volume), so 21,093 ms per GiB, and at most a day.
const OPTIMIZING_MS_PER_GIB: u64 = 6 * HOUR_MS / 1_024;
const OPTIMIZING_MS_MAX: u64 = 24 * HOUR_MS;
/// Maximum number of a volume's stored starts of modifications: more than any rules count.
pub(super) const STARTS_KEPT: usize = 16;

/// How often a volume may be modified. Every modification takes effect at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ModifyPolicy {
    /// A modification is completed as soon as it is in force, and any number is allowed: no data
    /// has to move.
    #[default]
    Immediate,
    /// By the rule of AWS at the date of the volume rules: a waiting time or a number per day, and
    /// a state `optimizing` that takes hours.
    Aws,
    /// By AWS's rule since 2026-01-15: four modifications in 24 hours.
    Aws2026,
    /// By AWS's rule before 2026-01-15: one modification in six hours.
    AwsClassic,
}

impl ModifyPolicy {
    /// Returns how often a volume may be modified; `None` without a limit.
    fn rationing(self, rules: &Rules) -> Option<Rationing> {
        match self {
            Self::Immediate => None,
            Self::Aws => rules.modify_rules().map(|rules| rules.policy),
            Self::Aws2026 => Some(Rationing::Rolling { modifications_max: 4, hours: 24 }),
            Self::AwsClassic => Some(Rationing::Cooldown { hours: 6 }),
        }
    }

    /// Returns the phase of a modification once it is in force.
    pub(super) fn settled(self, target: &VolumeSpec, now: UnixMs) -> ModificationPhase {
        match self {
            Self::Immediate => ModificationPhase::Completed { ended: now },
            Self::Aws | Self::Aws2026 | Self::AwsClassic => {
                let ms = u64::from(target.size_gib) * OPTIMIZING_MS_PER_GIB;
                let until = now.plus_ms(ms.min(OPTIMIZING_MS_MAX));
                ModificationPhase::Optimizing { since: now, until }
            }
        }
    }
}

impl Modification {
    /// Returns its state as the EC2 API names it, its progress in percent, and when it ended, at
    /// `now`.
    #[must_use]
    pub fn progress(&self, now: UnixMs) -> (&'static str, u64, Option<UnixMs>) {
        match self.phase {
            ModificationPhase::Modifying => ("modifying", 0, None),
            ModificationPhase::Optimizing { until, .. } if now >= until => {
                ("completed", 100, Some(until))
            }
            ModificationPhase::Optimizing { since, until } => {
                let percent =
                    now.ms_since(since).saturating_mul(100) / until.ms_since(since).max(1);
                ("optimizing", percent.min(99), None)
            }
            ModificationPhase::Completed { ended } => ("completed", 100, Some(ended)),
            ModificationPhase::Failed { ended, .. } => ("failed", 0, Some(ended)),
        }
    }
}

impl Model {
    pub(super) fn modify(
        &self,
        settings: &Settings,
        id: VolumeId,
        change: &VolumeChange,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        let volume = self.volume(id)?;
        if volume.phase != Phase::Ready {
            return Err(Refusal::NotAvailable(id, volume.state()));
        }
        let target = settings.rules.modify(&volume.spec, change).map_err(Refusal::Spec)?;
        if target.multi_attach != volume.spec.multi_attach && !volume.attachments.is_empty() {
            return Err(Refusal::MultiAttachWhileAttached(id));
        }
        if let Some(modification) = &volume.modification {
            let (state, _, ended) = modification.progress(now);
            if ended.is_none() {
                return Err(Refusal::ModificationUnfinished(id, state));
            }
        }
        if let Some(rationing) = settings.modify_policy.rationing(settings.rules) {
            check_rate(rationing, volume, now)?;
        }
        if !volume.is_settled() {
            return Err(Refusal::Unsettled(id));
        }
        let mut volume = volume.clone();
        volume.modification_starts.push(now);
        let surplus = volume.modification_starts.len().saturating_sub(STARTS_KEPT);
        volume.modification_starts.drain(..surplus);
        let original = std::mem::replace(&mut volume.spec, target);
        let phase = ModificationPhase::Modifying;
        volume.modification = Some(Modification { original, target, started: now, phase });
        Ok(Decision::changing(volume))
    }
}

/// Checks that one more modification is allowed now.
fn check_rate(rationing: Rationing, volume: &Volume, now: UnixMs) -> Result<(), Refusal> {
    let (modifications_max, hours) = match rationing {
        Rationing::Cooldown { hours } => (1, hours),
        Rationing::Rolling { modifications_max, hours } => (modifications_max, hours),
    };
    let window_ms = u64::from(hours) * HOUR_MS;
    let max = index(modifications_max);
    // The next modification is allowed when the oldest of the last `max` has left the window.
    let counted = volume.modification_starts.iter().rev().nth(max.saturating_sub(1));
    match counted.map(|oldest| oldest.plus_ms(window_ms)) {
        Some(next) if now < next => {
            Err(Refusal::ModificationRate { modifications_max, hours, next })
        }
        _ => Ok(()),
    }
}
