//! Snapshots: begun and deleted in the caller's thread, made by the core that serves the volume.
//!
//! What is wanted of an open volume waits in the pool until its store attends, so every call here
//! ends by telling the cores of the volumes that the pool names. Where a volume is opened or comes
//! from another core, its store attends, too.

use super::{EngineAgent, failed};
use crate::reactor::Message;
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::units::ByteCount;
use evenkeel_store::StoreError;
use evenkeel_store::snapshots::{SnapshotInfo, Snapshots};
use evenkeel_wire::agent::{Failed, FailedKind, StoredSnapshot};
use std::sync::mpsc::RecvTimeoutError;
use tracing::warn;

impl EngineAgent {
    /// The store's snapshots, or the refusal of a store that has none.
    fn snapshots(&self) -> Result<&dyn Snapshots, Failed> {
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
                // Nothing is left of it, also if it is found to be durable after all.
                snapshots.delete(id).map_err(failed)?;
                Err(Failed {
                    kind: FailedKind::Internal,
                    message: format!(
                        "{id} could not be made durable: the device failed, or {of} was closed; \
                         see the log"
                    ),
                })
            }
        }
    }

    pub(super) fn delete_snapshot(&self, id: SnapshotId) -> Result<(), Failed> {
        // Without any, there is none of this id.
        let Some(snapshots) = self.pool.snapshots() else { return Ok(()) };
        let of = snapshots.volume_of(id);
        // So that its volume is not opened while the pool has it open.
        let _turn = of.map(|of| self.turns.take(of));
        let deleted = snapshots.delete(id).map_err(failed);
        self.attend_all();
        deleted
    }

    pub(super) fn stored_snapshots(&self) -> Result<Vec<StoredSnapshot>, Failed> {
        let stored = |info: SnapshotInfo| {
            let SnapshotInfo { id, volume, size, is_complete, data } = info;
            StoredSnapshot { id, volume, size, data, is_complete }
        };
        Ok(self.snapshots()?.list().into_iter().map(stored).collect())
    }

    /// Makes the bytes of a volume that begins as a snapshot is.
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

    /// Has the stores attend of which the pool wants something.
    pub(super) fn attend_all(&self) {
        let Some(snapshots) = self.pool.snapshots() else { return };
        for id in snapshots.waiting() {
            if let Err(Failed { message, .. }) = self.attend(id) {
                // It does when it is opened the next time.
                warn!(volume = %id, reason = message, "its store does not attend to the pool yet");
            }
        }
    }

    /// Has the store of an open volume attend to the pool. A volume that is on no core does so when
    /// it comes to one.
    fn attend(&self, id: VolumeId) -> Result<(), Failed> {
        // Not while it is on its way from one core to another.
        let _guard = self.placement();
        let Some(entry) = self.directory.get(id) else { return Ok(()) };
        self.ask(entry.home, |ack| Message::Attend(id, ack)).map(|_: bool| ())
    }
}
