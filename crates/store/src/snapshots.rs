//! Snapshots of volumes, for stores that can make them: see [`crate::Pool::snapshots`].

use crate::StoreError;
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::units::ByteCount;
use std::sync::mpsc::Receiver;

/// Bytes of a unit, in which snapshots are read, compared and filled.
pub const UNIT_BYTES: u64 = 512 << 10;

/// Some units of a snapshot, in their order.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Units {
    /// Their numbers: unit 0 begins at byte 0.
    pub units: Vec<u64>,
    /// Where to go on, if there may be more.
    pub next: Option<u64>,
}

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
    /// Whether it is encrypted.
    pub is_encrypted: bool,
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

    /// Begins a snapshot of each of several volumes, each as [`Snapshots::begin`] does, and all or
    /// none. They are of one moment if who calls sees to that.
    ///
    /// # Errors
    /// As [`Snapshots::begin`].
    fn begin_set(&self, set: &[(VolumeId, SnapshotId)]) -> Result<Vec<Making>, StoreError>;

    /// Deletes a snapshot, also one that is being made or filled. Done, and durably so, if there is
    /// none. Volumes that were made of it keep what they have.
    ///
    /// # Errors
    /// When the store below fails.
    fn delete(&self, id: SnapshotId) -> Result<(), StoreError>;

    /// Deletes what there is of a set that was begun and is not made: as [`Snapshots::delete`] does
    /// with each, and so that a crash does not leave some of them.
    ///
    /// # Errors
    /// When the store below fails.
    fn undo_set(&self, ids: &[SnapshotId]) -> Result<(), StoreError> {
        ids.iter().try_for_each(|id| self.delete(*id))
    }

    /// All snapshots, also those that are being filled, in the order of their ids.
    fn list(&self) -> Vec<SnapshotInfo>;

    /// One snapshot; `None` if there is none of this id. Costs the same however many there are.
    fn find(&self, id: SnapshotId) -> Option<SnapshotInfo>;

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

    /// Up to `max` units from `first` on that differ from those of an older snapshot; without one,
    /// those that have data. Of snapshots of different lineages, more units may be told than
    /// differ.
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

    /// Reads a unit: [`UNIT_BYTES`], zeroes where nothing was written and behind the end. `None` if
    /// it has no data at all.
    ///
    /// # Errors
    /// As [`Snapshots::units`].
    fn read(&self, id: SnapshotId, unit: u64) -> Result<Option<Vec<u8>>, StoreError>;

    /// Begins a snapshot of `size` bytes that is not made of a volume but filled unit by unit; what
    /// is not filled is as in `parent`, which is no larger, or a hole. It is encrypted if the
    /// parent is; without one, if that is asked. Done if it has begun already, with this size.
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

    /// Fills a unit of a snapshot that was begun with [`Snapshots::start`]; it survives a crash
    /// when this returns. `bytes` are [`UNIT_BYTES`], or fewer at the snapshot's end.
    ///
    /// # Errors
    /// When no such snapshot is being filled ([`StoreError::NoSnapshot`]), the unit is beyond its
    /// end or of another length, there is no room, or the store below fails.
    fn put(&self, id: SnapshotId, unit: u64, bytes: &[u8]) -> Result<(), StoreError>;

    /// Ends the filling: from now on it is a snapshot like others, which survives a crash. Done if
    /// it is one already.
    ///
    /// # Errors
    /// When there is no such snapshot, or the store below fails.
    fn complete(&self, id: SnapshotId) -> Result<(), StoreError>;
}
