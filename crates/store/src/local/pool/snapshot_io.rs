//! Reading and filling of snapshots unit by unit, for copies between pools.
//!
//! A snapshot that is filled is written to its own node, like a volume. When it is complete, a
//! snapshot of that node is made, and the node is deleted like a volume that has one.

use super::LocalPool;
use super::open::{Closed, OpenVolume};
use super::snapshots::{SnapshotReader, UNIT_BLOCKS};
use super::state::State;
use crate::buffer::Buffer;
use crate::local::format::{Node, NodeKind};
use crate::snapshots::{UNIT_BYTES, Units};
use crate::{Store, StoreError, Submission};
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::request::Operation;
use evenkeel_core::units::ByteCount;
use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Maximum number of readers, and of nodes that are being filled, that stay open for the next call.
const OPEN_MAX: usize = 16;

/// A short list of objects that stay open between two calls; the last used one is the last.
struct Kept<T>(Mutex<VecDeque<(SnapshotId, Arc<T>)>>);

impl<T> Default for Kept<T> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

impl<T> Kept<T> {
    fn list(&self) -> MutexGuard<'_, VecDeque<(SnapshotId, Arc<T>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the open object of a snapshot, and opens it if necessary. The one that was unused
    /// for the longest time may be closed instead.
    fn get(
        &self,
        id: SnapshotId,
        open: impl FnOnce() -> Result<T, StoreError>,
        close: fn(&T),
    ) -> Result<Arc<T>, StoreError> {
        let mut list = self.list();
        let position = list.iter().position(|(kept, _)| *kept == id);
        let kept = match position.and_then(|position| list.remove(position)) {
            Some(kept) => kept,
            None => (id, Arc::new(open()?)),
        };
        let found = Arc::clone(&kept.1);
        list.push_back(kept);
        if list.len() > OPEN_MAX
            && let Some((_, dropped)) = list.pop_front()
        {
            // Closed while the list is locked, before another call can open it again.
            close(&dropped);
        }
        Ok(found)
    }

    fn take(&self, id: SnapshotId) -> Option<Arc<T>> {
        let mut list = self.list();
        let position = list.iter().position(|(kept, _)| *kept == id)?;
        list.remove(position).map(|(_, kept)| kept)
    }
}

/// Open objects of a pool's snapshots.
#[derive(Default)]
pub(super) struct Desk {
    readers: Kept<Mutex<SnapshotReader>>,
    /// `None` if it was closed while a caller waited for its lock.
    fillers: Kept<Mutex<Option<OpenVolume>>>,
}

impl fmt::Debug for Desk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Desk(..)")
    }
}

impl Desk {
    /// Closes the reader of a snapshot that is deleted.
    pub fn forget(&self, id: SnapshotId) {
        drop(self.readers.take(id));
    }
}

fn lock<T>(kept: &Mutex<T>) -> MutexGuard<'_, T> {
    kept.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LocalPool {
    pub(super) fn units_of(
        &self,
        id: SnapshotId,
        older: Option<SnapshotId>,
        first: u64,
        max: usize,
    ) -> Result<Units, StoreError> {
        // Readers of its own: two kept ones, locked in any order, could deadlock.
        let mut older = older.map(|older| self.read_snapshot(older)).transpose()?;
        self.read_snapshot(id)?.changed(older.as_mut(), first, max)
    }

    pub(super) fn read_unit(
        &self,
        id: SnapshotId,
        unit: u64,
    ) -> Result<Option<Vec<u8>>, StoreError> {
        let open = || self.read_snapshot(id).map(Mutex::new);
        // A reader in use is closed after that use.
        let reader = self.desk.readers.get(id, open, |_| ())?;
        let located = {
            let mut reader = lock(&reader);
            let beyond =
                unit.checked_mul(UNIT_BYTES).is_none_or(|offset| offset >= reader.size().0);
            if beyond {
                return Err(no_unit(id, unit, reader.size()));
            }
            reader.locate(unit * UNIT_BLOCKS, UNIT_BLOCKS)?
        };
        // Several calls may read from the device at once. The reader is kept until they end.
        let bytes = located.map(|located| self.read_located(id, &located)).transpose();
        drop(reader);
        bytes
    }

    pub(super) fn start_filling(
        &self,
        id: SnapshotId,
        size: ByteCount,
        parent: Option<SnapshotId>,
        is_encrypted: bool,
    ) -> Result<(), StoreError> {
        let has_begun =
            |state: &State| state.filling(id).is_some_and(|(_, node)| node.size == size.0);
        // Checked before a key is created, which may run a program.
        if has_begun(&self.state()) {
            return Ok(());
        }
        let new_key = match parent {
            None if is_encrypted => self.new_key(name_of(id))?,
            _ => Vec::new(),
        };
        let mut state = self.state();
        if has_begun(&state) {
            return Ok(());
        }
        if state.filling(id).is_some() || state.snapshot(id).is_some() {
            return Err(StoreError::Exists { what: id.to_string() });
        }
        let (parent, key) = match parent {
            Some(parent) => {
                let (number, node) = self.complete_snapshot(&state, parent)?;
                if size.0 < node.size {
                    let present = ByteCount(node.size);
                    return Err(StoreError::Size { id: name_of(id), present, asked: size });
                }
                (number, state.key_of(number).to_vec())
            }
            None => (0, new_key),
        };
        let node = Node::new(NodeKind::Filling, id.bits(), size.0, parent);
        let doing = || format!("begin to fill {id}");
        let made = state.make_node(node, &key).map_err(self.io(doing()))?;
        made.map(drop).ok_or_else(|| self.io(doing())(state.table_is_full()))
    }

    pub(super) fn fill_unit(
        &self,
        id: SnapshotId,
        unit: u64,
        bytes: &[u8],
    ) -> Result<(), StoreError> {
        self.settle_filling(id);
        let filler = self.filler(id)?;
        let mut open = lock(&filler);
        let Some(filler) = open.as_mut() else { return Err(StoreError::NoSnapshot { id }) };
        let size = filler.geometry().size;
        let offset = unit.checked_mul(UNIT_BYTES).filter(|offset| *offset < size.0);
        let offset = offset.ok_or_else(|| no_unit(id, unit, size))?;
        let length = UNIT_BYTES.min(size.0 - offset);
        if bytes.len() as u64 != length {
            let present = bytes.len();
            let why = format!("unit {unit} has {length} bytes, and {present} were given");
            return Err(StoreError::Unit { id, why });
        }
        let mut buffer = Buffer::new(bytes.len());
        buffer.bytes_mut()[..bytes.len()].copy_from_slice(bytes);
        let ended = filler.volume.run_now(Submission {
            ticket: 0,
            operation: Operation::Write { fua: true },
            offset,
            length: length as u32,
            buffer: Some(buffer),
        });
        let must_reopen = filler.must_reopen();
        drop(open);
        if must_reopen {
            // The next opening finds the part that is durable.
            self.close_filler(id);
        }
        let doing = || format!("fill unit {unit} of {id}");
        ended.result.map_err(|failure| StoreError::of_request(doing(), failure))
    }

    pub(super) fn complete_filling(&self, id: SnapshotId) -> Result<(), StoreError> {
        self.settle_filling(id);
        let is_made = || self.complete_snapshot(&self.state(), id).is_ok();
        let filling = self.state().filling(id);
        let Some((number, _)) = filling else {
            return if is_made() { Ok(()) } else { Err(StoreError::NoSnapshot { id }) };
        };
        if !is_made() && !self.snapshot_filling(id, number)? {
            self.settle_filling(id);
            // The log may have the snapshot although its completion failed.
            if !is_made() {
                let why = io::Error::other("it could not be made durable");
                return Err(StoreError::io(format!("complete {id}"), why));
            }
        }
        self.delete_filling(id)
    }

    /// Makes the snapshot of a filled node, and closes the node. Returns whether it was made.
    fn snapshot_filling(&self, id: SnapshotId, number: u32) -> Result<bool, StoreError> {
        let filler = self.filler(id)?;
        let mut open = lock(&filler);
        let Some(filler) = open.as_mut() else { return Err(StoreError::NoSnapshot { id }) };
        let made = self.snapshot_of(number, id)?.made;
        filler.volume.attend_now();
        // No call fills the node after this, unless the snapshot was not made.
        drop(open.take());
        Ok(made.try_recv() == Ok(true))
    }

    /// Opens and closes the node of a snapshot whose completion has failed. That makes the snapshot
    /// if the log has it. Otherwise its node is removed, and the snapshot can be filled further and
    /// completed again.
    fn settle_filling(&self, id: SnapshotId) {
        let (number, snapshot) = {
            let state = self.state();
            match (state.filling(id), state.snapshot(id)) {
                (Some((number, _)), Some((snapshot, node)))
                    if node.kind == NodeKind::SnapshotPending =>
                {
                    (number, snapshot)
                }
                _ => return,
            }
        };
        // Another call may be completing it.
        if !self.shared.mail().waiting.contains_key(&snapshot) {
            self.close_filler(id);
            self.tend(number);
        }
    }

    /// Deletes the node that a snapshot is filled in. Succeeds if there is none. The snapshot keeps
    /// its blocks.
    pub(super) fn delete_filling(&self, id: SnapshotId) -> Result<(), StoreError> {
        if self.state().filling(id).is_none() {
            return Ok(());
        }
        self.close_filler(id);
        let Some((number, node)) = self.state().filling(id) else { return Ok(()) };
        let deleting = Node { kind: NodeKind::Deleting, ..node };
        let written = self.state().write_nodes([(number, deleting)]);
        written.map_err(self.io(format!("delete what {id} is filled in")))?;
        // The snapshot is complete or gone, whether this succeeds or not.
        self.finish_deletion_or_note(number, deleting);
        Ok(())
    }

    fn filler(&self, id: SnapshotId) -> Result<Arc<Mutex<Option<OpenVolume>>>, StoreError> {
        let open = || Ok(Mutex::new(Some(self.open_filling(id)?)));
        self.desk.fillers.get(id, open, |filler| drop(lock(filler).take()))
    }

    fn open_filling(&self, id: SnapshotId) -> Result<OpenVolume, StoreError> {
        let found = {
            let state = self.state();
            // A snapshot that is made, or is being made, does not change.
            state.filling(id).filter(|_| state.snapshot(id).is_none())
        };
        let (number, node) = found.ok_or(StoreError::NoSnapshot { id })?;
        let claimed = Closed::claim(&self.shared, number);
        let closed = claimed.ok_or(StoreError::Open { id: name_of(id) })?;
        let cipher = self.shared.cipher(&self.state(), number, &node)?;
        self.open_node(number, node, closed, cipher)
    }

    /// Closes the node that a snapshot is filled in, after the call that fills it at the moment.
    fn close_filler(&self, id: SnapshotId) {
        if let Some(filler) = self.desk.fillers.take(id) {
            drop(lock(&filler).take());
        }
    }
}

/// Returns the name of the node that a snapshot is filled in, as the id of a volume.
fn name_of(id: SnapshotId) -> VolumeId {
    VolumeId::from_bits(id.bits())
}

fn no_unit(id: SnapshotId, unit: u64, size: ByteCount) -> StoreError {
    let units = size.0.div_ceil(UNIT_BYTES);
    let why = format!("there is no unit {unit}: it has {size}, which is {units} units, from 0 on");
    StoreError::Unit { id, why }
}
