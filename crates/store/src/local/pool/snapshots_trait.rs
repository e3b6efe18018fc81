//! The trait `Snapshots` for the local pool.

use super::LocalPool;
use crate::local::format::NodeKind;
use crate::snapshots::{Making, SnapshotInfo, Snapshots, Units};
use crate::{Pool, StoreError};
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::units::ByteCount;

impl LocalPool {
    /// Whether a volume of this size was made of a snapshot before. The snapshot may be deleted
    /// since: its node stays as long as the volume does.
    fn is_made_of(&self, id: VolumeId, size: ByteCount, of: SnapshotId) -> bool {
        let state = self.state();
        state.volume(id).is_some_and(|(_, volume)| {
            volume.kind == NodeKind::Volume
                && volume.size == size.0
                && state.all.get(&volume.parent).is_some_and(|snapshot| snapshot.id == of.bits())
        })
    }

    fn is_being_deleted(&self, id: VolumeId) -> bool {
        self.state().volume(id).is_some_and(|(_, volume)| volume.kind == NodeKind::Deleting)
    }
}

impl Snapshots for LocalPool {
    fn begin(&self, of: VolumeId, id: SnapshotId) -> Result<Making, StoreError> {
        self.snapshot(of, id)
    }

    fn begin_set(&self, set: &[(VolumeId, SnapshotId)]) -> Result<Vec<Making>, StoreError> {
        self.snapshot_set(set)
    }

    fn delete(&self, id: SnapshotId) -> Result<(), StoreError> {
        self.delete_snapshot(id)
    }

    fn undo_set(&self, ids: &[SnapshotId]) -> Result<(), StoreError> {
        self.delete_snapshots(ids, true)
    }

    fn list(&self) -> Vec<SnapshotInfo> {
        self.snapshots()
    }

    fn find(&self, id: SnapshotId) -> Option<SnapshotInfo> {
        let state = self.state();
        let (_, node) = state.snapshot(id).or_else(|| state.filling(id))?;
        Some(state.info(id, &node))
    }

    fn volume_of(&self, id: SnapshotId) -> Option<VolumeId> {
        let state = self.state();
        let (_, snapshot) = state.snapshot(id)?;
        let volume = state.all.get(&snapshot.parent)?;
        (volume.kind == NodeKind::Volume).then_some(VolumeId::from_bits(volume.id))
    }

    fn create_volume(
        &self,
        id: VolumeId,
        size: ByteCount,
        of: SnapshotId,
    ) -> Result<(), StoreError> {
        if self.is_made_of(id, size, of) {
            return Ok(());
        }
        if self.is_being_deleted(id) {
            Pool::delete(self, id)?;
        }
        self.create_from(id, size, of)
    }

    fn waiting(&self) -> Vec<VolumeId> {
        let wanted: Vec<u32> = {
            let mail = self.shared.mail();
            let tasks = mail.tasks.iter().filter(|(_, tasks)| !tasks.is_empty());
            tasks.map(|(volume, _)| *volume).collect()
        };
        let open = self.shared.open().clone();
        let state = self.state();
        let nodes = wanted.iter().filter(|volume| open.contains(volume));
        let nodes = nodes.filter_map(|volume| state.all.get(volume));
        let volumes = nodes.filter(|node| node.kind == NodeKind::Volume);
        volumes.map(|node| VolumeId::from_bits(node.id)).collect()
    }

    fn units(
        &self,
        id: SnapshotId,
        older: Option<SnapshotId>,
        first: u64,
        max: usize,
    ) -> Result<Units, StoreError> {
        self.units_of(id, older, first, max)
    }

    fn read(&self, id: SnapshotId, unit: u64) -> Result<Option<Vec<u8>>, StoreError> {
        self.read_unit(id, unit)
    }

    fn start(
        &self,
        id: SnapshotId,
        size: ByteCount,
        parent: Option<SnapshotId>,
        is_encrypted: bool,
    ) -> Result<(), StoreError> {
        self.start_filling(id, size, parent, is_encrypted)
    }

    fn put(&self, id: SnapshotId, unit: u64, bytes: &[u8]) -> Result<(), StoreError> {
        self.fill_unit(id, unit, bytes)
    }

    fn complete(&self, id: SnapshotId) -> Result<(), StoreError> {
        self.complete_filling(id)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::local::pool::Layout;
    use crate::local::simulated::{SimulatedDevice, SimulatedQueue};
    use crate::local::volume::Bounds;
    use std::sync::Arc;
    use std::sync::mpsc::TryRecvError;

    const SIZE: ByteCount = ByteCount(1 << 20);
    const BOUNDS: Bounds = Bounds {
        map_pages: 10,
        dirty_pages: 10,
        log_blocks: 100,
        batch_bytes: 64_000,
        answered_bytes: 0,
    };

    fn pool(device: &SimulatedDevice) -> LocalPool {
        LocalPool::open(Arc::new(device.clone()), BOUNDS).unwrap()
    }

    fn new_pool(device: &SimulatedDevice) -> LocalPool {
        let layout = Layout { identity: 1, chunks_max: 240, nodes: 120 };
        LocalPool::init(device, &layout).unwrap();
        pool(device)
    }

    #[test]
    fn an_open_volume_waits_until_its_store_attends() {
        let device = SimulatedDevice::new(260 << 20);
        let pool = new_pool(&device);
        let snapshots = Pool::snapshots(&pool).unwrap();
        let id = VolumeId::from_bits(1);
        let snapshot = SnapshotId::from_bits(2);
        pool.create(id, SIZE).unwrap();
        let mut store = pool.open(id, SIZE).unwrap();
        assert_eq!(snapshots.waiting(), []);
        let making = snapshots.begin(id, snapshot).unwrap();
        assert!(making.is_open);
        assert_eq!(snapshots.waiting(), [id]);
        assert_eq!(making.made.try_recv(), Err(TryRecvError::Empty));
        let unready = snapshots.create_volume(VolumeId::from_bits(3), SIZE, snapshot).unwrap_err();
        assert!(matches!(unready, StoreError::Unready { .. }), "{unready}");
        let mut queue = SimulatedQueue::new(device.clone(), 1);
        store.attend(&mut queue);
        while let Some(done) = queue.answer() {
            store.disk_done(done, &mut queue);
        }
        assert_eq!(snapshots.waiting(), []);
        assert_eq!(making.made.try_recv(), Ok(true));
        assert!(snapshots.list()[0].is_complete);
        assert_eq!(snapshots.volume_of(snapshot), Some(id));
        snapshots.delete(snapshot).unwrap();
        assert_eq!(snapshots.waiting(), [id], "to give the blocks back");
    }

    #[test]
    fn a_volume_is_made_of_a_snapshot_once_however_often_that_is_asked() {
        let device = SimulatedDevice::new(260 << 20);
        let opened = new_pool(&device);
        let snapshots = Pool::snapshots(&opened).unwrap();
        let [of, id] = [1, 3].map(VolumeId::from_bits);
        let [snapshot, other] = [2, 4].map(SnapshotId::from_bits);
        opened.create(of, SIZE).unwrap();
        for snapshot in [snapshot, other] {
            assert_eq!(snapshots.begin(of, snapshot).unwrap().made.try_recv(), Ok(true));
        }
        snapshots.create_volume(id, SIZE, snapshot).unwrap();
        snapshots.create_volume(id, SIZE, snapshot).unwrap();
        for (size, snapshot) in [(SIZE, other), (ByteCount(2 << 20), snapshot)] {
            let error = snapshots.create_volume(id, size, snapshot).unwrap_err();
            assert!(matches!(error, StoreError::Exists { .. }), "{error}");
        }
        snapshots.delete(snapshot).unwrap();
        drop(opened);
        let opened = pool(&device);
        let snapshots = Pool::snapshots(&opened).unwrap();
        assert_eq!(snapshots.list().iter().map(|info| info.id).collect::<Vec<_>>(), [other]);
        snapshots.create_volume(id, SIZE, snapshot).unwrap();
        let gone = snapshots.create_volume(VolumeId::from_bits(5), SIZE, snapshot).unwrap_err();
        assert!(matches!(gone, StoreError::NoSnapshot { .. }), "{gone}");
    }
}
