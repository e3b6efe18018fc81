//! Snapshots of volumes, for stores that can make them: see [`crate::Pool::snapshots`].

use crate::StoreError;
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::units::ByteCount;
use std::sync::mpsc::Receiver;

/// Bytes of a unit, in which snapshots are read, compared and filled.
pub const UNIT_BYTES: u64 = 512 << 10;

/// Units of a snapshot, in order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Units {
    /// Their numbers: unit 0 begins at byte 0.
    pub units: Vec<u64>,
    /// The unit at which to continue, if there may be more.
    pub next: Option<u64>,
}

/// Description of a snapshot in a store.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotInfo {
    /// Its id.
    pub id: SnapshotId,
    /// The volume that it was made of, unless that is deleted.
    pub volume: Option<VolumeId>,
    /// Minimum size in bytes of a volume made of it.
    pub size: ByteCount,
    /// Whether its map is complete on the device.
    pub is_complete: bool,
    /// Bytes of its data, in whole blocks, as in a full copy of it.
    pub data: ByteCount,
    /// Whether it is encrypted.
    pub is_encrypted: bool,
}

/// A snapshot that is being made.
#[derive(Debug)]
pub struct Making {
    /// Whether its volume is open; its store then makes the snapshot when it attends to the pool.
    pub is_open: bool,
    /// Receives whether it was made, when that is known; it survives a crash from then on. The
    /// sender is dropped without a result if the volume is closed before.
    pub made: Receiver<bool>,
}

/// Makes snapshots, and volumes of them. As with [`crate::Pool`], calls may block.
///
/// An open volume belongs to the core that serves it, so its tasks wait until its store attends to
/// the pool ([`crate::Store::attend`]). The caller must have the volumes that
/// [`Snapshots::waiting`] returns attend after each call, and after [`crate::Pool::delete`].
pub trait Snapshots: Send + Sync {
    /// Begins a snapshot of a volume, of the same size. It has all changes that were complete when
    /// the volume's store attends, or when the volume was closed.
    ///
    /// # Errors
    /// When there is no such volume, the id is taken, there is no room, or the store below fails.
    fn begin(&self, of: VolumeId, id: SnapshotId) -> Result<Making, StoreError>;

    /// Begins a snapshot of each of several volumes, as [`Snapshots::begin`]; all of them are made,
    /// or none. The caller must hold back changes if they are to be of the same moment.
    ///
    /// # Errors
    /// As [`Snapshots::begin`].
    fn begin_set(&self, set: &[(VolumeId, SnapshotId)]) -> Result<Vec<Making>, StoreError>;

    /// Deletes a snapshot, even if it is being made or filled. Succeeds durably if there is none.
    /// Volumes that were made of it keep their data.
    ///
    /// # Errors
    /// When the store below fails.
    fn delete(&self, id: SnapshotId) -> Result<(), StoreError>;

    /// Deletes the existing snapshots of a set that was begun but cannot be made, as
    /// [`Snapshots::delete`]. A crash does not leave a part of them.
    ///
    /// # Errors
    /// When the store below fails.
    fn undo_set(&self, ids: &[SnapshotId]) -> Result<(), StoreError> {
        ids.iter().try_for_each(|id| self.delete(*id))
    }

    /// Returns all snapshots, including those that are being filled, in the order of their ids.
    fn list(&self) -> Vec<SnapshotInfo>;

    /// Returns one snapshot; `None` if there is none with this id. The cost does not depend on the
    /// number of snapshots.
    fn find(&self, id: SnapshotId) -> Option<SnapshotInfo>;

    /// Returns the volume that a snapshot was made of, if both exist.
    fn volume_of(&self, id: SnapshotId) -> Option<VolumeId>;

    /// Creates a volume with the data of a snapshot. Succeeds if it exists with this size, made of
    /// this snapshot.
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

    /// Returns the open volumes with tasks: their stores have to attend to the pool.
    fn waiting(&self) -> Vec<VolumeId>;

    /// Returns at most `max` units from `first` on that differ from those of an older snapshot;
    /// without one, those that have data. For snapshots of different lineages, the result may
    /// include units that do not differ.
    ///
    /// # Errors
    /// When one is missing ([`StoreError::NoSnapshot`]) or being made ([`StoreError::Unready`]),
    /// what is on the device has rotted, or the store below fails.
    fn units(
        &self,
        id: SnapshotId,
        older: Option<SnapshotId>,
        first: u64,
        max: usize,
    ) -> Result<Units, StoreError>;

    /// Reads a unit: [`UNIT_BYTES`], with zeroes for unwritten bytes and behind the end. `None` if
    /// it has no data.
    ///
    /// # Errors
    /// As [`Snapshots::units`].
    fn read(&self, id: SnapshotId, unit: u64) -> Result<Option<Vec<u8>>, StoreError>;

    /// Begins a snapshot of `size` bytes that is filled unit by unit. A unit that is not filled is
    /// that of `parent`, which is no larger, or a hole without one. The snapshot is encrypted if
    /// the parent is; without a parent, if that is requested. Succeeds if it has begun already with
    /// this size.
    ///
    /// # Errors
    /// When the id is taken ([`StoreError::Exists`]), the parent is missing or being made, the size
    /// is less than its ([`StoreError::Size`]), there is no key ([`StoreError::Locked`]), or the
    /// store below fails.
    fn start(
        &self,
        id: SnapshotId,
        size: ByteCount,
        parent: Option<SnapshotId>,
        is_encrypted: bool,
    ) -> Result<(), StoreError>;

    /// Fills a unit of a snapshot that was begun with [`Snapshots::start`]. The unit survives a
    /// crash when this returns. `bytes` are [`UNIT_BYTES`], or fewer at the snapshot's end.
    ///
    /// # Errors
    /// When no such snapshot is being filled ([`StoreError::NoSnapshot`]), the unit is beyond its
    /// end or of another length, there is no room, or the store below fails.
    fn put(&self, id: SnapshotId, unit: u64, bytes: &[u8]) -> Result<(), StoreError>;

    /// Ends the filling: the snapshot is then like others, and survives a crash. Succeeds if it is
    /// complete already.
    ///
    /// # Errors
    /// When there is no such snapshot, or the store below fails.
    fn complete(&self, id: SnapshotId) -> Result<(), StoreError>;
}
