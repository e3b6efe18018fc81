//! ModifyVolume: what may change, and how often.

use evenkeel_core::ids::VolumeId;
use evenkeel_core::volume::{ModifyPolicy as Rationing, Rules, VolumeChange, VolumeSpec};

use super::{
    Decision, Model, Modification, ModificationPhase, Phase, Refusal, Settings, UnixMs, Volume,
};

const HOUR_MS: u64 = 3_600_000;
/// How long AWS's `optimizing` is made to take: six hours a TiB (the EC2 user guide's figure for a
/// full 1 TiB volume), so 21,093 ms a GiB; and at most a day.
const OPTIMIZING_MS_PER_GIB: u64 = 6 * HOUR_MS / 1_024;
const OPTIMIZING_MS_MAX: u64 = 24 * HOUR_MS;
/// Starts of modifications that are remembered of a volume: more than any rulebook counts.
pub(super) const STARTS_KEPT: usize = 16;

/// How modifications are rationed. They always act at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum ModifyPolicy {
    /// Completed as soon as they are in force, as often as wanted: our own hardware moves no data.
    #[default]
    Immediate,
    /// As AWS does it at the rulebook's date: a waiting time or a number a day, and an `optimizing`
    /// state that takes hours.
    Aws,
}

impl ModifyPolicy {
    /// What a modification becomes once it is in force.
    pub(super) fn settled(self, target: &VolumeSpec, now: UnixMs) -> ModificationPhase {
        match self {
            Self::Immediate => ModificationPhase::Completed { ended: now },
            Self::Aws => {
                let ms = u64::from(target.size_gib) * OPTIMIZING_MS_PER_GIB;
                let until = now.plus_ms(ms.min(OPTIMIZING_MS_MAX));
                ModificationPhase::Optimizing { since: now, until }
            }
        }
    }
}

impl Modification {
    /// Its state in EC2's words, its progress in percent, and when it ended, as of `now`.
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
        if settings.modify_policy == ModifyPolicy::Aws {
            check_rate(settings.rules, volume, now)?;
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

/// Whether the rulebook allows one more modification now.
fn check_rate(rules: &Rules, volume: &Volume, now: UnixMs) -> Result<(), Refusal> {
    let Some(rules) = rules.modify_rules() else { return Ok(()) };
    let (modifications_max, hours) = match rules.policy {
        Rationing::Cooldown { hours } => (1, hours),
        Rationing::Rolling { modifications_max, hours } => (modifications_max, hours),
    };
    let window_ms = u64::from(hours) * HOUR_MS;
    let max = usize::try_from(modifications_max).unwrap_or(STARTS_KEPT);
    // Room is there again when the oldest of the last `max` has left the window.
    let counted = volume.modification_starts.iter().rev().nth(max.saturating_sub(1));
    match counted.map(|oldest| oldest.plus_ms(window_ms)) {
        Some(next) if now < next => {
            Err(Refusal::ModificationRate { modifications_max, hours, next })
        }
        _ => Ok(()),
    }
}
