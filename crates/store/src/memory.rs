//! Volumes in memory: the reference model of a store, and the speed of the data path without a
//! disk. All data is lost when the process ends.

use crate::buffer::Buffer;
use crate::disk::{Disk, DiskDone};
use crate::{
    Completion, EXTENTS_MAX, Extent, Geometry, Pool, Space, Store, StoreError, Submission,
};
use evenkeel_core::convert::index;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::limits::{BLOCK_BYTES_MIN, BLOCK_BYTES_PREFERRED};
use evenkeel_core::request::{Failure, Operation};
use evenkeel_core::units::ByteCount;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Size in bytes of the units of memory: small enough that a sparse volume stays small, large
/// enough that a 64 KiB request uses one or two.
const CHUNK_BYTES: usize = 64 << 10;
/// Chunks of a second-level table (256 MiB). A 64 TiB volume needs 2 MiB of first-level table.
const CHUNKS_PER_TABLE: usize = 4_096;

/// Maximum number of bytes that one status request covers: 4,096 chunks, some tens of microseconds
/// of a core.
const LOOKED_AT_BYTES_MAX: u32 = (CHUNKS_PER_TABLE * CHUNK_BYTES) as u32;

type Chunk = Box<[u8; CHUNK_BYTES]>;
type Table = Vec<Option<Chunk>>;

/// Name of this kind of store in a data folder's marker file.
pub const KIND: &str = "memory";

/// All volumes of a process, in memory.
#[derive(Debug, Default)]
pub struct MemoryPool {
    volumes: Arc<Mutex<BTreeMap<VolumeId, Shelf>>>,
}

/// A volume that is not open, or the note that it is open.
#[derive(Debug)]
struct Shelf {
    size: ByteCount,
    content: Option<Pages>,
}

/// The bytes of one volume. Missing chunks read as zeroes.
#[derive(Debug, Default)]
struct Pages {
    tables: Vec<Table>,
}

/// One open volume in memory.
#[derive(Debug)]
struct MemoryStore {
    id: VolumeId,
    size: ByteCount,
    pages: Pages,
    finished: VecDeque<Completion>,
    home: Arc<Mutex<BTreeMap<VolumeId, Shelf>>>,
}

fn lock(volumes: &Mutex<BTreeMap<VolumeId, Shelf>>) -> MutexGuard<'_, BTreeMap<VolumeId, Shelf>> {
    // Each change of the map is a single insertion or removal, so a holder that panicked left it
    // consistent.
    volumes.lock().unwrap_or_else(PoisonError::into_inner)
}

impl MemoryPool {
    /// Creates a pool without volumes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

impl Pool for MemoryPool {
    fn describe(&self) -> String {
        "memory (nothing survives a restart)".to_owned()
    }

    fn create(&self, id: VolumeId, size: ByteCount) -> Result<(), StoreError> {
        let mut volumes = lock(&self.volumes);
        let shelf = volumes.entry(id).or_insert(Shelf { size, content: Some(Pages::default()) });
        if shelf.size != size {
            return Err(StoreError::Size { id, present: shelf.size, asked: size });
        }
        Ok(())
    }

    fn open(&self, id: VolumeId, size: ByteCount) -> Result<Box<dyn Store>, StoreError> {
        let mut volumes = lock(&self.volumes);
        let shelf = volumes.get_mut(&id).ok_or(StoreError::NotFound { id, path: None })?;
        let present = shelf.size;
        let content = shelf.content.as_ref().ok_or(StoreError::Open { id })?;
        if present < size || (present > size && content.is_written_from(size.0)) {
            return Err(StoreError::Differs { id, present, expected: size });
        }
        shelf.size = size;
        let pages = shelf.content.take().ok_or(StoreError::Open { id })?;
        let home = Arc::clone(&self.volumes);
        Ok(Box::new(MemoryStore { id, size, pages, finished: VecDeque::new(), home }))
    }

    fn resize(&self, id: VolumeId, from: ByteCount, to: ByteCount) -> Result<(), StoreError> {
        if to < from {
            return Err(StoreError::Size { id, present: from, asked: to });
        }
        let mut volumes = lock(&self.volumes);
        let shelf = volumes.get_mut(&id).ok_or(StoreError::NotFound { id, path: None })?;
        let present = shelf.size;
        // While it is open, its store has the pages, and has shown no bytes beyond its old size.
        let is_written = |pages: &Pages| pages.is_written_from(to.0);
        if present < from || (present > to && shelf.content.as_ref().is_some_and(is_written)) {
            return Err(StoreError::Differs { id, present, expected: from });
        }
        shelf.size = to;
        Ok(())
    }

    fn delete(&self, id: VolumeId) -> Result<(), StoreError> {
        let mut volumes = lock(&self.volumes);
        if volumes.get(&id).is_some_and(|shelf| shelf.content.is_none()) {
            return Err(StoreError::Open { id });
        }
        volumes.remove(&id);
        Ok(())
    }

    fn list(&self) -> Result<Vec<(VolumeId, ByteCount)>, StoreError> {
        Ok(lock(&self.volumes).iter().map(|(&id, shelf)| (id, shelf.size)).collect())
    }

    fn has(&self, id: VolumeId) -> Result<bool, StoreError> {
        Ok(lock(&self.volumes).contains_key(&id))
    }

    fn space(&self) -> Result<Option<Space>, StoreError> {
        // A process learns the limit of its memory only when an allocation fails.
        Ok(None)
    }
}

impl Drop for MemoryStore {
    fn drop(&mut self) {
        if let Some(shelf) = lock(&self.home).get_mut(&self.id) {
            shelf.content = Some(std::mem::take(&mut self.pages));
        }
    }
}

impl Store for MemoryStore {
    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.size,
            block_bytes_min: BLOCK_BYTES_MIN,
            block_bytes_preferred: BLOCK_BYTES_PREFERRED,
        }
    }

    fn submit(&mut self, submission: Submission, _disk: &mut dyn Disk) {
        let Submission { ticket, operation, offset, length, mut buffer } = submission;
        let mut extents = Vec::new();
        let result = match operation {
            Operation::Read => with(&mut buffer, length, |room| self.pages.read(offset, room)),
            Operation::Write { .. } => {
                with(&mut buffer, length, |payload| self.pages.write(offset, payload))
            }
            Operation::Discard { .. } => {
                self.pages.clear(offset, length, false);
                Ok(())
            }
            Operation::WriteZeroes { keep_allocated, .. } => {
                self.pages.clear(offset, length, keep_allocated);
                Ok(())
            }
            Operation::BlockStatus => {
                extents = self.pages.extents(offset, length);
                Ok(())
            }
            // Memory does not become more durable.
            Operation::Flush | Operation::Cache => Ok(()),
        };
        self.finished.push_back(Completion { ticket, result, buffer, extents });
    }

    fn writes_zeroes(&self, operation: Operation) -> bool {
        matches!(operation, Operation::WriteZeroes { keep_allocated: true, .. })
    }

    fn disk_done(&mut self, _done: DiskDone, _disk: &mut dyn Disk) {
        unreachable!("the memory store submits no disk operations");
    }

    fn poll(&mut self) -> Option<Completion> {
        self.finished.pop_front()
    }

    fn resized(&mut self, size: ByteCount) {
        self.size = size;
    }
}

fn with(
    buffer: &mut Option<Buffer>,
    length: u32,
    f: impl FnOnce(&mut [u8]),
) -> Result<(), Failure> {
    let bytes = buffer.as_mut().and_then(|b| b.bytes_mut().get_mut(..length as usize));
    bytes.map(f).ok_or(Failure::Invalid)
}

/// Splits a byte range into chunks: (chunk number, range within the chunk).
fn pieces(offset: u64, length: u32) -> impl Iterator<Item = (usize, std::ops::Range<usize>)> {
    let mut start = offset as usize;
    let end = start + length as usize;
    std::iter::from_fn(move || {
        (start < end).then(|| {
            let chunk = start / CHUNK_BYTES;
            let from = start % CHUNK_BYTES;
            let to = CHUNK_BYTES.min(from + (end - start));
            start += to - from;
            (chunk, from..to)
        })
    })
}

impl Pages {
    fn chunk(&self, number: usize) -> Option<&Chunk> {
        self.tables.get(number / CHUNKS_PER_TABLE)?.get(number % CHUNKS_PER_TABLE)?.as_ref()
    }

    /// Returns the place of chunk `number`, and creates its table if necessary.
    fn slot(&mut self, number: usize) -> &mut Option<Chunk> {
        let table = number / CHUNKS_PER_TABLE;
        if self.tables.len() <= table {
            self.tables.resize_with(table + 1, Vec::new);
        }
        let table = &mut self.tables[table];
        if table.is_empty() {
            table.resize_with(CHUNKS_PER_TABLE, || None);
        }
        &mut table[number % CHUNKS_PER_TABLE]
    }

    /// Returns whether there are bytes other than zero from `offset` on.
    fn is_written_from(&self, offset: u64) -> bool {
        let chunks = self.tables.iter().zip(0..).flat_map(|(table, of)| {
            table
                .iter()
                .zip(of * CHUNKS_PER_TABLE..)
                .filter_map(|(chunk, n)| Some((n, chunk.as_ref()?)))
        });
        chunks.into_iter().any(|(number, chunk)| {
            let skipped = offset.saturating_sub((number * CHUNK_BYTES) as u64);
            chunk.iter().skip(index(skipped)).any(|byte| *byte != 0)
        })
    }

    fn read(&self, offset: u64, mut room: &mut [u8]) {
        for (number, range) in pieces(offset, room.len() as u32) {
            let (head, rest) = room.split_at_mut(range.len());
            match self.chunk(number) {
                Some(chunk) => head.copy_from_slice(&chunk[range]),
                None => head.fill(0),
            }
            room = rest;
        }
    }

    fn write(&mut self, offset: u64, mut payload: &[u8]) {
        for (number, range) in pieces(offset, payload.len() as u32) {
            let (head, rest) = payload.split_at(range.len());
            let chunk = self.slot(number).get_or_insert_with(zeroed_chunk);
            chunk[range].copy_from_slice(head);
            payload = rest;
        }
    }

    fn clear(&mut self, offset: u64, length: u32, keep_allocated: bool) {
        for (number, range) in pieces(offset, length) {
            let present = self.chunk(number).is_some();
            if keep_allocated {
                self.slot(number).get_or_insert_with(zeroed_chunk)[range].fill(0);
            } else if present && range.len() == CHUNK_BYTES {
                *self.slot(number) = None;
            } else if present && let Some(chunk) = self.slot(number) {
                chunk[range].fill(0);
            }
        }
    }

    fn extents(&self, offset: u64, length: u32) -> Vec<Extent> {
        let mut extents: Vec<Extent> = Vec::new();
        for (number, range) in pieces(offset, length.min(LOOKED_AT_BYTES_MAX)) {
            let hole = self.chunk(number).is_none();
            let length = range.len() as u32;
            let has_room = extents.len() < EXTENTS_MAX;
            match extents.last_mut() {
                Some(last) if last.hole == hole => last.length += length,
                _ if has_room => extents.push(Extent { length, hole, zero: hole }),
                _ => break,
            }
        }
        extents
    }
}

fn zeroed_chunk() -> Chunk {
    // Allocated as a Vec, so that the 64 KiB are never on the stack.
    match vec![0u8; CHUNK_BYTES].into_boxed_slice().try_into() {
        Ok(chunk) => chunk,
        Err(_) => unreachable!("the slice has the chunk's length"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::conformance;

    #[test]
    fn conforms() {
        conformance::check(&MemoryPool::new(), &mut conformance::blocking);
    }

    #[test]
    fn a_zeroed_chunk_gives_its_memory_back() {
        let mut pages = Pages::default();
        pages.write(0, &[1; 2 * CHUNK_BYTES]);
        pages.clear(0, CHUNK_BYTES as u32, false);
        assert!(pages.chunk(0).is_none() && pages.chunk(1).is_some());
    }
}
