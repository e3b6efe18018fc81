//! Snapshots of volumes, for stores that can make them: see [`crate::Pool::snapshots`].

use crate::StoreError;
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::units::ByteCount;
use std::sync::mpsc::Receiver;

/// A snapshot as the store has it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotInfo {
    /// Which.
    pub id: SnapshotId,
    /// The volume that it was made of, unless that is deleted.
    pub volume: Option<VolumeId>,
    /// Bytes that a volume made of it has at least.
    pub size: ByteCount,
    /// Whether its map is on the device as a whole.
    pub is_complete: bool,
    /// Bytes of data that it has, in whole blocks: what a full copy of it holds.
    pub data: ByteCount,
}

/// A snapshot that was asked for.
#[derive(Debug)]
pub struct Making {
    /// Whether its volume is open: it makes the snapshot when its store attends to the pool.
    pub is_open: bool,
    /// Whether it was made, when that is known: from then on it survives a crash. Nothing comes if
    /// the volume was closed before.
    pub made: Receiver<bool>,
}

/// Makes snapshots, and volumes of them. As with [`crate::Pool`], calls may block.
///
/// A volume that is open belongs to the core that serves it, so what is wanted of it waits until
/// its store attends ([`crate::Store::attend`]). Who calls sees to that: after each call, and after
/// [`crate::Pool::delete`], for the volumes that [`Snapshots::waiting`] names.
pub trait Snapshots: Send + Sync {
    /// Begins a snapshot of a volume, as large as the volume is. It holds everything that was
    /// complete when the volume's store attends, or when the volume was closed.
    ///
    /// # Errors
    /// When there is no such volume, the id is taken, there is no room, or the store below fails.
    fn begin(&self, of: VolumeId, id: SnapshotId) -> Result<Making, StoreError>;

    /// Deletes a snapshot, also one that is being made. Done, and durably so, if there is none.
    /// Volumes that were made of it keep what they have.
    ///
    /// # Errors
    /// When the store below fails.
    fn delete(&self, id: SnapshotId) -> Result<(), StoreError>;

    /// All snapshots, in the order of their ids.
    fn list(&self) -> Vec<SnapshotInfo>;

    /// The volume that a snapshot was made of, if both are there.
    fn volume_of(&self, id: SnapshotId) -> Option<VolumeId>;

    /// Makes a volume that begins as a snapshot is. Done if it exists with this size, made of this
    /// snapshot.
    ///
    /// # Errors
    /// When there is no such snapshot, it is being made, the size is less than its, there is
    /// another volume of this id, or the store below fails.
    fn create_volume(
        &self,
        id: VolumeId,
        size: ByteCount,
        of: SnapshotId,
    ) -> Result<(), StoreError>;

    /// Open volumes of which something is wanted: their stores are to attend.
    fn waiting(&self) -> Vec<VolumeId>;
}
