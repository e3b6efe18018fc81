//! Snapshots: begun and deleted in the caller's thread, made by the core that serves the volume.
//!
//! A request for an open volume waits in the pool until the volume's store attends to it, so every
//! call here ends by notifying the cores of the volumes that the pool names. A store attends, too,
//! when its volume is opened or comes from another core.

use super::background::Work;
use super::{EngineAgent, failed};
use crate::reactor::Message;
use crate::turns::VolumeTurn;
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::units::ByteCount;
use evenkeel_os::clock::Clock;
use evenkeel_store::StoreError;
use evenkeel_store::snapshots::{Making, SnapshotInfo, Snapshots};
use evenkeel_wire::agent::{
    Bytes, Failed, FailedKind, NewSnapshot, StoredSnapshot, Units, UnitsWanted,
};
use std::collections::BTreeSet;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use tracing::warn;

/// Volumes whose stores report no completed request, until this is dropped.
struct HeldVolumes<'a> {
    agent: &'a EngineAgent,
    homes: &'a [(VolumeId, u16)],
}

impl<'a> HeldVolumes<'a> {
    fn hold(agent: &'a EngineAgent, homes: &'a [(VolumeId, u16)]) -> Result<Self, Failed> {
        let held = Self { agent, homes };
        for (id, home) in homes {
            agent.ask(*home, |ack| Message::Hold(*id, true, ack)).map(|_: bool| ())?;
        }
        Ok(held)
    }
}

impl Drop for HeldVolumes<'_> {
    fn drop(&mut self) {
        for (id, home) in self.homes {
            // The core reads this message after the one that holds the volume.
            let _: Receiver<bool> = self.agent.post(*home, |ack| Message::Hold(*id, false, ack));
        }
    }
}

fn not_made(of: VolumeId, id: SnapshotId) -> Failed {
    let message = format!(
        "{id} could not be made durable: the device failed, or {of} was closed; see the log"
    );
    Failed { kind: FailedKind::Internal, message }
}

/// Converts a snapshot for the control plane.
fn stored(info: SnapshotInfo) -> StoredSnapshot {
    let SnapshotInfo { id, volume, size, is_complete, data, is_encrypted } = info;
    StoredSnapshot { id, volume, size, data, is_complete, is_encrypted }
}

/// Converts a store's error of a snapshot. The store names a volume with the snapshot's number.
fn of_snapshot(error: StoreError) -> Failed {
    let StoreError::Locked { id, why } = error else { return failed(error) };
    let id = SnapshotId::from_bits(id.bits());
    let message = format!("snapshot {id} is encrypted, and its key cannot be had: {why}");
    Failed { kind: FailedKind::Damaged, message }
}

/// Maximum number of units in one answer.
const UNITS_MAX: u32 = 10_000;

// Store and protocol have the same units.
const _: () = assert!(evenkeel_store::snapshots::UNIT_BYTES == evenkeel_wire::agent::UNIT_BYTES);

impl EngineAgent {
    /// Returns the store's snapshots.
    pub(super) fn snapshots(&self) -> Result<&dyn Snapshots, Failed> {
        self.pool.snapshots().ok_or_else(|| Failed {
            kind: FailedKind::Unsupported,
            message: format!(
                "the store ({}) has no snapshots; serve with --store local",
                self.pool.describe()
            ),
        })
    }

    /// Makes a snapshot of a volume, and returns when it survives a crash.
    pub(super) fn snapshot(&self, of: VolumeId, id: SnapshotId) -> Result<(), Failed> {
        let snapshots = self.snapshots()?;
        // The volume is neither closed nor grown meanwhile.
        let _turn = self.turns.take(of);
        self.hear_of(of)?;
        let making = snapshots.begin(of, id).map_err(failed)?;
        if making.is_open {
            self.attend(of)?;
        }
        match making.made.recv_timeout(self.answer_max) {
            Ok(true) => Ok(()),
            Err(RecvTimeoutError::Timeout) => Err(self.no_answer()),
            Ok(false) | Err(RecvTimeoutError::Disconnected) => {
                // Deletes it, even if it turns out to be durable.
                snapshots.delete(id).map_err(failed)?;
                Err(not_made(of, id))
            }
        }
    }

    /// Makes snapshots of several volumes at one moment, and returns when they survive a crash.
    ///
    /// From before the first is begun until the last is made, no request of these volumes is
    /// answered. So take a write that began after the answer to another: either its clients wait
    /// until all snapshots are made, or the earlier write was answered before the first was begun
    /// and is in all of them.
    pub(super) fn snapshot_set(&self, set: &[(VolumeId, SnapshotId)]) -> Result<(), Failed> {
        let snapshots = self.snapshots()?;
        let volumes: BTreeSet<VolumeId> = set.iter().map(|(of, _)| *of).collect();
        if volumes.len() != set.len() {
            let message = "a volume is named more than once; name each one once".to_owned();
            return Err(Failed { kind: FailedKind::Refused, message });
        }
        // In the order of their ids, so that two sets do not wait for each other.
        let _turns: Vec<VolumeTurn<'_>> =
            volumes.iter().map(|volume| self.turns.take(*volume)).collect();
        volumes.iter().try_for_each(|volume| self.hear_of(*volume))?;
        let made = {
            // No volume moves to another core meanwhile.
            let _guard = self.placement();
            let homes: Vec<(VolumeId, u16)> = volumes
                .iter()
                .filter_map(|volume| Some((*volume, self.directory.get(*volume)?.home)))
                .collect();
            let _held = HeldVolumes::hold(self, &homes)?;
            // If this fails, no snapshot was begun: an id that exists is that of another snapshot.
            let begun = snapshots.begin_set(set).map_err(failed)?;
            self.make_all(set, begun, &homes)
        };
        made.or_else(|failed| {
            let ids: Vec<SnapshotId> = set.iter().map(|(_, id)| *id).collect();
            snapshots.undo_set(&ids).map_err(super::failed)?;
            Err(failed)
        })
    }

    /// Has the stores make the snapshots that were begun, and waits for each.
    fn make_all(
        &self,
        set: &[(VolumeId, SnapshotId)],
        begun: Vec<Making>,
        homes: &[(VolumeId, u16)],
    ) -> Result<(), Failed> {
        for (id, home) in homes {
            self.ask(*home, |ack| Message::Attend(*id, ack)).map(|_: bool| ())?;
        }
        let clock = Clock::start();
        let began = clock.now();
        for (&(of, id), making) in set.iter().zip(begun) {
            let gone = std::time::Duration::from_nanos(clock.now().since(began).ns);
            let left = self.answer_max.saturating_sub(gone);
            match making.made.recv_timeout(left) {
                Ok(true) => {}
                Err(RecvTimeoutError::Timeout) => return Err(self.no_answer()),
                Ok(false) | Err(RecvTimeoutError::Disconnected) => return Err(not_made(of, id)),
            }
        }
        Ok(())
    }

    pub(super) fn delete_snapshot(&self, id: SnapshotId) -> Result<(), Failed> {
        // Without snapshots, there is none with this id.
        let Some(snapshots) = self.pool.snapshots() else { return Ok(()) };
        let volume = snapshots.volume_of(id);
        // So that the volume is not opened while the pool has it open.
        let _turn = volume.map(|volume| self.turns.take(volume));
        let deleted = snapshots.delete(id).map_err(failed);
        self.attend_all();
        deleted
    }

    pub(super) fn stored_snapshots(&self) -> Result<Vec<StoredSnapshot>, Failed> {
        Ok(self.snapshots()?.list().into_iter().map(stored).collect())
    }

    pub(super) fn snapshots_of(&self, ids: &[SnapshotId]) -> Result<Vec<StoredSnapshot>, Failed> {
        let snapshots = self.snapshots()?;
        let ids: BTreeSet<SnapshotId> = ids.iter().copied().collect();
        Ok(ids.into_iter().filter_map(|id| snapshots.find(id)).map(stored).collect())
    }

    /// Creates the bytes of a volume with the contents of a snapshot.
    pub(super) fn create_from(
        &self,
        id: VolumeId,
        size: ByteCount,
        of: SnapshotId,
    ) -> Result<(), Failed> {
        self.snapshots()?.create_volume(id, size, of).map_err(|error| match error {
            StoreError::Size { present, asked, .. } => Failed {
                kind: FailedKind::Refused,
                message: format!("{of} has {present}, and {id} is to have {asked}: ask for more"),
            },
            error => failed(error),
        })
    }

    pub(super) fn snapshot_units(&self, wanted: UnitsWanted) -> Result<Units, Failed> {
        let UnitsWanted { id, older, first, max } = wanted;
        let max = max.min(UNITS_MAX) as usize;
        let found = self.snapshots()?.units(id, older, first, max).map_err(of_snapshot)?;
        Ok(Units { units: found.units, next: found.next })
    }

    pub(super) fn read_snapshot(&self, id: SnapshotId, unit: u64) -> Result<Option<Bytes>, Failed> {
        let snapshots = self.snapshots()?;
        let _permit = self.permit_unit(Work::Read)?;
        Ok(snapshots.read(id, unit).map_err(of_snapshot)?.map(Bytes))
    }

    pub(super) fn start_snapshot(&self, new: NewSnapshot) -> Result<(), Failed> {
        let NewSnapshot { id, size, parent, is_encrypted } = new;
        self.snapshots()?.start(id, size, parent, is_encrypted).map_err(of_snapshot)
    }

    pub(super) fn put_snapshot(
        &self,
        id: SnapshotId,
        unit: u64,
        bytes: &Bytes,
    ) -> Result<(), Failed> {
        let snapshots = self.snapshots()?;
        let _permit = self.permit_unit(Work::Fill)?;
        snapshots.put(id, unit, &bytes.0).map_err(of_snapshot)
    }

    pub(super) fn complete_snapshot(&self, id: SnapshotId) -> Result<(), Failed> {
        self.snapshots()?.complete(id).map_err(of_snapshot)
    }

    /// Has the stores attend for which a request waits in the pool.
    pub(super) fn attend_all(&self) {
        let Some(snapshots) = self.pool.snapshots() else { return };
        for id in snapshots.waiting() {
            if let Err(Failed { message, .. }) = self.attend(id) {
                // The store attends when the volume is opened the next time.
                warn!(volume = %id, reason = message, "its store does not attend to the pool yet");
            }
        }
    }

    /// Has the store of an open volume attend to the pool. A volume on no core does so when it is
    /// opened.
    fn attend(&self, id: VolumeId) -> Result<(), Failed> {
        // Not while the volume moves from one core to another.
        let _guard = self.placement();
        let Some(entry) = self.directory.get(id) else { return Ok(()) };
        self.ask(entry.home, |ack| Message::Attend(id, ack)).map(|_: bool| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_key_of_a_snapshot_names_the_snapshot() {
        let why = "serve with --key-file".to_owned();
        let Failed { kind, message } =
            of_snapshot(StoreError::Locked { id: VolumeId::from_bits(7), why });
        assert_eq!(kind, FailedKind::Damaged);
        assert_eq!(
            message,
            "snapshot snap-00000000000000007 is encrypted, and its key cannot be had: \
             serve with --key-file"
        );
    }
}
