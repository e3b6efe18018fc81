//! Quotas of the account: EC2's own, and those that the operator sets for all volumes together.

use std::fmt;

use evenkeel_core::quota::Quotas;
use evenkeel_core::units::{GIB, MIB};

use super::space::taken;
use super::{Event, Model, NO_VOLUME, Refusal, Settings, Snapshot, TierOperation, Volume};

/// GiB in a TiB.
const TIB: u64 = 1_024;

/// A resource that a quota of the account limits.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum AccountResource {
    /// IOPS that volumes reserve.
    Iops,
    /// Bytes per second that volumes reserve.
    Throughput,
    /// GiB of volumes, written to or not.
    Size,
}

impl AccountResource {
    /// All of them, in the order of [`Amounts`].
    pub const ALL: [Self; 3] = [Self::Iops, Self::Throughput, Self::Size];
}

impl fmt::Display for AccountResource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Iops => "IOPS",
            Self::Throughput => "throughput",
            Self::Size => "size",
        })
    }
}

/// Amounts of IOPS, bytes per second and GiB.
pub type Amounts = [u64; AccountResource::ALL.len()];

/// Quotas that the operator sets for all volumes of the account together. `None` is no quota.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct AccountQuotas {
    /// IOPS that they may reserve.
    pub iops: Option<u64>,
    /// MiB per second that they may reserve.
    pub mibps: Option<u64>,
    /// GiB that they may have.
    pub gib: Option<u64>,
}

impl AccountQuotas {
    /// Returns the quotas in the order and the units of [`Amounts`].
    #[must_use]
    pub fn amounts(&self) -> [Option<u64>; AccountResource::ALL.len()] {
        [self.iops, self.mibps.map(|mibps| mibps.saturating_mul(MIB)), self.gib]
    }
}

/// A change after which the account would have more than a quota allows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct OverQuota {
    /// The resource; amounts are in its unit.
    pub resource: AccountResource,
    /// The quota.
    pub quota: u64,
    /// The amount of all other volumes.
    pub used: u64,
    /// The amount that the volume would have.
    pub wanted: u64,
}

/// Returns what a volume takes of the account's quotas. In the recycle bin it reserves nothing, and
/// keeps its bytes. During a modification it has the larger of before and after.
fn amounts_of(settings: &Settings, volume: &Volume) -> Amounts {
    let gib = taken(volume) / GIB;
    if !volume.is_shown() {
        return [0, 0, gib];
    }
    let (reserved, _) = settings.reserved(volume);
    [reserved.operations_per_second.into(), reserved.bytes_per_second, gib]
}

impl Model {
    /// Returns what all volumes take of the account's quotas.
    #[must_use]
    pub fn account_amounts(&self, settings: &Settings) -> Amounts {
        let total = self.reserved_by_all(settings);
        [total.operations_per_second, total.bytes_per_second, self.index.volume_gib()]
    }

    /// Returns a refusal for changes that exceed a quota that the operator set. A change that does
    /// not increase an amount is never refused.
    ///
    /// # Errors
    /// [`Refusal::OverQuota`].
    pub(super) fn check_account(
        &self,
        settings: &Settings,
        events: &[Event],
    ) -> Result<(), Refusal> {
        if settings.account_quotas == AccountQuotas::default() {
            return Ok(());
        }
        let quotas = settings.account_quotas.amounts();
        let mut all = None;
        for event in events {
            let Event::Volume(after) = event else { continue };
            let before = self.volumes.get(&after.id);
            let before = before.map_or([0; 3], |before| amounts_of(settings, before));
            let wanted = amounts_of(settings, after);
            let all = all.get_or_insert_with(|| self.account_amounts(settings));
            let each = AccountResource::ALL.into_iter().zip(quotas).zip(all.iter_mut());
            for (((resource, quota), all), (before, wanted)) in
                each.zip(before.into_iter().zip(wanted))
            {
                let used = all.saturating_sub(before);
                *all = used.saturating_add(wanted);
                if let Some(quota) = quota
                    && wanted > before
                    && *all > quota
                {
                    return Err(Refusal::OverQuota(OverQuota { resource, quota, used, wanted }));
                }
            }
        }
        Ok(())
    }

    /// Returns a refusal for changes that exceed one of EC2's quotas. A change that does not
    /// increase an amount is never refused.
    pub(super) fn check_quotas(
        &self,
        quotas: Option<&Quotas>,
        events: &[Event],
    ) -> Result<(), Refusal> {
        let Some(quotas) = quotas else { return Ok(()) };
        let mut snapshots = 0;
        for event in events {
            match event {
                Event::Volume(after) => self.check_volume(quotas, after)?,
                Event::Snapshot(after) => match self.snapshots.get(&after.id) {
                    Some(before) => self.check_archived(quotas, before, after)?,
                    None => snapshots += 1,
                },
                _ => {}
            }
        }
        let shown = || self.snapshots.values().filter(|snapshot| snapshot.is_shown()).count();
        if snapshots == 0 || shown() + snapshots <= quotas.snapshots {
            Ok(())
        } else {
            Err(Refusal::SnapshotQuota(quotas.snapshots))
        }
    }

    /// Checks the number of a volume's archived snapshots. A temporarily restored one counts.
    fn check_archived(
        &self,
        quotas: &Quotas,
        before: &Snapshot,
        after: &Snapshot,
    ) -> Result<(), Refusal> {
        let is_in_archive = |it: &Snapshot| {
            it.tiering.is_some_and(|tiering| tiering.last != TierOperation::PermanentRestore)
        };
        if is_in_archive(before) || !is_in_archive(after) || after.volume == NO_VOLUME {
            return Ok(());
        }
        let shown = self
            .snapshots
            .values()
            .filter(|snapshot| snapshot.is_shown() && is_in_archive(snapshot));
        if shown.filter(|it| it.volume == after.volume).count() < quotas.archived_snapshots {
            Ok(())
        } else {
            Err(Refusal::ArchiveQuota(after.volume, quotas.archived_snapshots))
        }
    }

    fn check_volume(&self, quotas: &Quotas, after: &Volume) -> Result<(), Refusal> {
        let volume_type = after.spec.volume_type;
        let same = |other: &&Volume| other.spec.volume_type == volume_type;
        let before = self.volumes.get(&after.id).filter(same);
        let size = |volume: &Volume| u64::from(volume.spec.size_gib);
        let iops = |volume: &Volume| u64::from(volume.spec.iops.unwrap_or_default());
        let is_more = |of: fn(&Volume) -> u64| of(after) > before.map_or(0, of);
        // Amounts are added up only if they grow, since that reads all volumes.
        let sum = |of: fn(&Volume) -> u64| {
            let shown = self.volumes.values().filter(|volume| volume.is_shown());
            let others = shown.filter(same).filter(|it| it.id != after.id);
            others.map(of).sum::<u64>()
        };
        let tib = quotas.storage_tib(volume_type);
        if is_more(size) {
            let gib = sum(size);
            if gib.saturating_add(size(after)) > tib * TIB {
                return Err(Refusal::StorageQuota { volume_type, gib, asked: size(after), tib });
            }
        }
        if let Some(most) = quotas.iops(volume_type)
            && is_more(iops)
        {
            let present = sum(iops);
            if present.saturating_add(iops(after)) > most {
                return Err(Refusal::IopsQuota { volume_type, present, asked: iops(after), most });
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "quotas_tests.rs"]
mod quotas_tests;
