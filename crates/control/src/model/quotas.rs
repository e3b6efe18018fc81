//! Quotas of the account, for servers that refuse requests as EC2 does.

use evenkeel_core::quota::Quotas;

use super::{Event, Model, NO_VOLUME, Refusal, Snapshot, TierOperation, Volume};

/// GiB in a TiB.
const TIB: u64 = 1_024;

impl Model {
    /// Returns a refusal for changes that exceed a quota. A change that does not increase an amount
    /// is never refused.
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
