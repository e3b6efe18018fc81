//! A large disk in little memory. For tests: a block that repeats one word is stored as that word.
//! It answers at once, loses unflushed writes when its power fails, fails at any operation that a
//! test names, and cannot read the sectors that a test names.

use super::BLOCK_BYTES;
use super::device::Device;
use super::table::SECTOR_BYTES;
use super::volume::recover::run;
use crate::disk::{DiskDone, DiskOp};
use evenkeel_core::random::Random;
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::os::fd::RawFd;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Contents of a block.
#[derive(Clone, Debug, Default)]
enum Slot {
    #[default]
    Zero,
    /// This word, repeated.
    Word(u64),
    Bytes(Box<[u8]>),
}

impl Slot {
    fn of(bytes: &[u8]) -> Self {
        let words = bytes.as_chunks::<8>().0;
        if words.iter().any(|word| *word != words[0]) {
            return Self::Bytes(bytes.into());
        }
        match u64::from_le_bytes(words[0]) {
            0 => Self::Zero,
            word => Self::Word(word),
        }
    }

    fn copy_to(&self, bytes: &mut [u8]) {
        match self {
            Self::Zero => bytes.fill(0),
            Self::Word(word) => bytes.as_chunks_mut::<8>().0.fill(word.to_le_bytes()),
            Self::Bytes(from) => bytes.copy_from_slice(from),
        }
    }
}

#[derive(Clone, Debug, Default)]
struct Contents {
    slots: Vec<Slot>,
    /// Contents at the last flush of blocks that were written since.
    before: BTreeMap<usize, Slot>,
    /// Reads, writes and flushes so far.
    operations: u64,
    /// Numbers of the operations that fail.
    failing: Range<u64>,
    /// Writes so far.
    writes: u64,
    /// Bytes to which the disk can grow.
    capacity: u64,
    /// Sectors of 512 bytes whose reads fail until they are written, and whether only one read of
    /// each fails.
    unreadable: BTreeSet<u64>,
    are_unreadable_once: bool,
}

impl Contents {
    fn begin(&mut self) -> io::Result<()> {
        self.operations += 1;
        if self.failing.contains(&self.operations) {
            Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()))
        } else {
            Ok(())
        }
    }

    /// Fails if a sector of these bytes is unreadable.
    fn look_for_unreadable(&mut self, offset: u64, length: usize) -> io::Result<()> {
        let sector = SECTOR_BYTES as u64;
        let sectors = offset / sector..(offset + length as u64).div_ceil(sector);
        let Some(found) = self.unreadable.range(sectors).next().copied() else { return Ok(()) };
        if self.are_unreadable_once {
            self.unreadable.remove(&found);
        }
        Err(io::Error::from_raw_os_error(rustix::io::Errno::IO.raw_os_error()))
    }
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct PackedDevice {
    contents: Arc<Mutex<Contents>>,
}

impl PackedDevice {
    /// Creates an empty disk that can grow to `capacity` bytes.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self::with(Contents { capacity, ..Contents::default() })
    }

    fn with(contents: Contents) -> Self {
        Self { contents: Arc::new(Mutex::new(contents)) }
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a separate disk with the same contents, flushed or not.
    #[must_use]
    pub fn copy(&self) -> Self {
        Self::with(Contents { before: BTreeMap::new(), ..self.contents().clone() })
    }

    /// Returns the disk after a power failure: each block that was written since the last flush has
    /// its new contents, or those at the flush.
    #[must_use]
    pub fn crash(&self, random: &mut Random) -> Self {
        let after = self.copy();
        let chance = random.among(&[0, 200_000, 500_000, 800_000, 1_000_000]);
        for (block, slot) in &self.contents().before {
            if random.chance_ppm(chance) {
                after.contents().slots[*block] = slot.clone();
            }
        }
        after
    }

    /// Executes an operation.
    #[must_use]
    pub fn answer(&self, op: DiskOp) -> DiskDone {
        run(self, op)
    }

    /// Returns the number of operations so far.
    #[must_use]
    pub fn operations(&self) -> u64 {
        self.contents().operations
    }

    /// Makes `count` operations fail, after `after` others.
    pub fn fail(&self, after: u64, count: u64) {
        let mut contents = self.contents();
        let first = contents.operations + after + 1;
        contents.failing = first..first + count;
    }

    /// Makes all operations fail from now on, and frees the contents.
    pub fn unplug(&self) {
        *self.contents() = Contents { failing: 0..u64::MAX, ..Contents::default() };
    }

    /// Returns the number of writes so far.
    #[must_use]
    pub fn writes(&self) -> u64 {
        self.contents().writes
    }

    /// Extends the capacity by this number of bytes.
    pub fn extend(&self, bytes: u64) {
        self.contents().capacity += bytes;
    }

    /// Makes reads of this sector of 512 bytes fail: one read if `is_once`, otherwise all until it
    /// is written. All other sectors become readable.
    pub fn spoil(&self, sector: u64, is_once: bool) {
        let mut contents = self.contents();
        contents.unreadable = BTreeSet::from([sector]);
        contents.are_unreadable_once = is_once;
    }

    /// Makes all sectors readable.
    pub fn heal(&self) {
        self.contents().unreadable.clear();
    }

    /// Returns the numbers of blocks that do not repeat one word. If all data does, these are
    /// metadata.
    #[must_use]
    pub fn irregular(&self) -> Vec<u64> {
        let contents = self.contents();
        let slots = (0..).zip(&contents.slots);
        slots.filter(|(_, slot)| matches!(slot, Slot::Bytes(_))).map(|(block, _)| block).collect()
    }
}

impl Device for PackedDevice {
    fn fd(&self) -> RawFd {
        // No operation reaches the kernel.
        -1
    }

    fn path(&self) -> &Path {
        Path::new("a disk in memory")
    }

    fn size(&self) -> io::Result<u64> {
        Ok((self.contents().slots.len() * BLOCK_BYTES) as u64)
    }

    fn room(&self) -> io::Result<u64> {
        let size = self.size()?;
        Ok(self.contents().capacity - size)
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        let mut contents = self.contents();
        if len > contents.capacity {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let blocks = (len as usize / BLOCK_BYTES).max(contents.slots.len());
        contents.slots.resize_with(blocks, Slot::default);
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        assert!(offset.is_multiple_of(SECTOR_BYTES as u64), "an unaligned read");
        let mut contents = self.contents();
        contents.begin()?;
        contents.look_for_unreadable(offset, bytes.len())?;
        let first = offset as usize / BLOCK_BYTES;
        let inner = offset as usize % BLOCK_BYTES;
        let count = (inner + bytes.len()).div_ceil(BLOCK_BYTES);
        let mut whole = vec![0; count * BLOCK_BYTES];
        for (block, place) in (first..).zip(whole.chunks_mut(BLOCK_BYTES)) {
            contents.slots.get(block).unwrap_or(&Slot::Zero).copy_to(place);
        }
        bytes.copy_from_slice(&whole[inner..inner + bytes.len()]);
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        assert!(offset.is_multiple_of(BLOCK_BYTES as u64), "an unaligned write");
        let mut contents = self.contents();
        contents.begin()?;
        contents.writes += 1;
        let written = [offset, offset + bytes.len() as u64].map(|byte| byte / SECTOR_BYTES as u64);
        contents.unreadable.retain(|sector| !(written[0]..written[1]).contains(sector));
        for (block, bytes) in (offset as usize / BLOCK_BYTES..).zip(bytes.chunks(BLOCK_BYTES)) {
            let before = std::mem::replace(&mut contents.slots[block], Slot::of(bytes));
            contents.before.entry(block).or_insert(before);
        }
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut contents = self.contents();
        contents.begin()?;
        contents.before.clear();
        Ok(())
    }
}
