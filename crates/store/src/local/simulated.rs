//! A disk in memory that loses, reorders and tears unflushed writes. For tests: it answers when a
//! test calls it, in any order. After a crash it has contents that a real disk may have.

use super::device::Device;
use super::page_cache_file::Lasting;
use super::volume::recover::run;
use super::{BLOCK_BYTES, table::SECTOR_BYTES};
use crate::disk::{Disk, DiskAction, DiskDone, DiskOp};
use evenkeel_core::random::Random;
use rustix::fs::{MemfdFlags, memfd_create};
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io;
use std::os::fd::RawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Bytes of one sector.
type Sector = [u8; SECTOR_BYTES];

/// Contents of the disk and of its cache.
#[derive(Debug, Default)]
struct Contents {
    /// Durable sectors; a missing one is zero.
    durable: BTreeMap<u64, Sector>,
    /// Sectors written since the last flush, in order: each may reach the disk or not.
    cached: Vec<(u64, Sector)>,
    /// The newest contents of the cached sectors.
    newest: BTreeMap<u64, Sector>,
    len: u64,
    writes: u64,
    syncs: u64,
    /// Writes and flushes until the power fails; `None` is never.
    power: Option<u64>,
    /// Writes and flushes until failures begin, the number of failures, and whether the failed ones
    /// have an effect.
    failures: (u64, u64, bool),
    /// Sectors that cannot be read, and the number of reads that fail; `None` is until the sector
    /// is written.
    unreadable: BTreeMap<u64, Option<u32>>,
    /// Sectors that cannot be written.
    dead: BTreeSet<u64>,
}

impl Contents {
    /// Returns the result of an operation that begins now, and whether it has an effect.
    fn draw_failure(&mut self) -> (io::Result<()>, bool) {
        let (after, count, has_effect) = &mut self.failures;
        match (*after, *count) {
            (_, 0) => (Ok(()), true),
            (0, _) => {
                *count -= 1;
                (Err(io::Error::from(rustix::io::Errno::IO)), *has_effect)
            }
            _ => {
                *after -= 1;
                (Ok(()), true)
            }
        }
    }

    /// Consumes the power for a write or a flush. Fails if there is none.
    fn draw_power(&mut self) -> io::Result<()> {
        match &mut self.power {
            None => Ok(()),
            Some(0) => Err(io::Error::other("the power has failed")),
            Some(left) => {
                *left -= 1;
                Ok(())
            }
        }
    }
}

/// See the module's text.
#[derive(Clone, Debug, Default)]
pub struct SimulatedDevice {
    contents: Arc<Mutex<Contents>>,
    /// Maximum size in bytes.
    capacity: u64,
}

impl SimulatedDevice {
    /// Creates an empty disk that can grow to `capacity` bytes.
    #[must_use]
    pub fn new(capacity: u64) -> Self {
        Self { contents: Arc::default(), capacity }
    }

    fn contents(&self) -> MutexGuard<'_, Contents> {
        self.contents.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the disk after a power failure: any part of the writes since the last flush has
    /// reached it, sector by sector. Of several writes of a sector, any may be the one that did.
    #[must_use]
    pub fn crash(&self, random: &mut Random) -> Self {
        let contents = self.contents();
        let mut durable = contents.durable.clone();
        // All, none, or a part: each is worth a test.
        let chance = random.among(&[0, 200_000, 500_000, 800_000, 1_000_000]);
        for (sector, bytes) in &contents.cached {
            if random.chance_ppm(chance) {
                durable.insert(*sector, *bytes);
            }
        }
        let len = contents.len;
        let unreadable = contents.unreadable.clone();
        let dead = contents.dead.clone();
        let after = Contents { durable, len, unreadable, dead, ..Contents::default() };
        Self { contents: Arc::new(Mutex::new(after)), capacity: self.capacity }
    }

    /// Makes `count` writes and flushes fail after `after` others, with or without an effect.
    pub fn fail(&self, after: u64, count: u64, has_effect: bool) {
        self.contents().failures = (after, count, has_effect);
    }

    /// Makes the sector of this byte unreadable for `times` reads; with `None`, until it is
    /// written.
    pub fn make_unreadable(&self, byte: u64, times: Option<u32>) {
        self.contents().unreadable.insert(byte / SECTOR_BYTES as u64, times);
    }

    /// Makes writes of the sector of this byte fail without an effect.
    pub fn make_unwritable(&self, byte: u64) {
        self.contents().dead.insert(byte / SECTOR_BYTES as u64);
    }

    /// Makes all sectors writable.
    pub fn make_writable(&self) {
        self.contents().dead.clear();
    }

    /// Restores the power without a loss: only the process ended.
    pub fn go_on(&self) {
        self.contents().power = None;
    }

    /// Cuts the power after this number of writes and flushes. Each later one fails without an
    /// effect.
    pub fn cut_power_after(&self, operations: u64) {
        self.contents().power = Some(operations);
    }

    /// Returns whether the power has failed.
    #[must_use]
    pub fn is_dark(&self) -> bool {
        self.contents().power == Some(0)
    }

    /// Changes a byte of a sector, as a defect of the disk does.
    pub fn rot(&self, byte: u64) {
        let mut contents = self.contents();
        let sector = byte / SECTOR_BYTES as u64;
        let position = byte as usize % SECTOR_BYTES;
        let newest = contents.newest.get(&sector).copied();
        let mut bytes = newest.or_else(|| contents.durable.get(&sector).copied());
        let bytes = bytes.get_or_insert([0; SECTOR_BYTES]);
        bytes[position] ^= 0x40;
        contents.durable.insert(sector, *bytes);
        if newest.is_some() {
            contents.newest.insert(sector, *bytes);
        }
    }

    /// Returns the byte offsets of whole blocks at which these bytes are.
    #[must_use]
    pub fn find(&self, bytes: &[u8]) -> Vec<u64> {
        let contents = self.contents();
        let sector = |number: u64| {
            contents.newest.get(&number).or_else(|| contents.durable.get(&number)).copied()
        };
        let sectors: Vec<Sector> = bytes.as_chunks::<SECTOR_BYTES>().0.to_vec();
        let places = contents.durable.keys().chain(contents.newest.keys());
        let mut places: Vec<u64> = places
            .copied()
            .filter(|first| first.is_multiple_of((BLOCK_BYTES / SECTOR_BYTES) as u64))
            .filter(|&first| (first..).zip(&sectors).all(|(at, bytes)| sector(at) == Some(*bytes)))
            .map(|first| first * SECTOR_BYTES as u64)
            .collect();
        places.sort_unstable();
        places.dedup();
        places
    }

    /// Returns the number of sectors written, and of flushes, so far.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        let contents = self.contents();
        (contents.writes, contents.syncs)
    }
}

impl Device for SimulatedDevice {
    fn fd(&self) -> RawFd {
        // No operation reaches the kernel.
        -1
    }

    fn path(&self) -> &Path {
        Path::new("a simulated disk")
    }

    fn size(&self) -> io::Result<u64> {
        Ok(self.contents().len)
    }

    fn room(&self) -> io::Result<u64> {
        Ok(self.capacity.saturating_sub(self.contents().len))
    }

    fn grow(&self, len: u64) -> io::Result<()> {
        if len > self.capacity {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let mut contents = self.contents();
        contents.len = contents.len.max(len);
        Ok(())
    }

    fn read(&self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        assert!(offset.is_multiple_of(SECTOR_BYTES as u64), "an unaligned read");
        let mut contents = self.contents();
        let first = offset / SECTOR_BYTES as u64;
        let sectors = first..first + bytes.len().div_ceil(SECTOR_BYTES) as u64;
        if let Some((sector, times)) = contents.unreadable.range_mut(sectors).next() {
            let sector = *sector;
            if let Some(times) = times {
                *times -= 1;
                if *times == 0 {
                    contents.unreadable.remove(&sector);
                }
            }
            return Err(rustix::io::Errno::IO.into());
        }
        for (sector, place) in (first..).zip(bytes.chunks_mut(SECTOR_BYTES)) {
            let found = contents.newest.get(&sector).or_else(|| contents.durable.get(&sector));
            place.copy_from_slice(found.unwrap_or(&[0; SECTOR_BYTES]));
        }
        Ok(())
    }

    fn write(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        assert!(offset.is_multiple_of(BLOCK_BYTES as u64), "an unaligned write");
        let mut contents = self.contents();
        contents.draw_power()?;
        let (ended, has_effect) = contents.draw_failure();
        if !has_effect {
            return ended;
        }
        let (sectors, _) = bytes.as_chunks::<SECTOR_BYTES>();
        let first = offset / SECTOR_BYTES as u64;
        if contents.dead.range(first..first + sectors.len() as u64).next().is_some() {
            return Err(rustix::io::Errno::IO.into());
        }
        for (sector, bytes) in (offset / SECTOR_BYTES as u64..).zip(sectors) {
            contents.cached.push((sector, *bytes));
            contents.newest.insert(sector, *bytes);
            contents.unreadable.remove(&sector);
            contents.writes += 1;
        }
        ended
    }

    fn sync(&self) -> io::Result<()> {
        let mut contents = self.contents();
        contents.draw_power()?;
        let (ended, has_effect) = contents.draw_failure();
        if !has_effect {
            return ended;
        }
        contents.syncs += 1;
        contents.cached.clear();
        let newest = std::mem::take(&mut contents.newest);
        contents.durable.extend(newest);
        ended
    }
}

/// Operations that wait on the simulated disk. A write has its effect when it is submitted or when
/// it is answered, depending on the seed.
#[derive(Debug)]
pub struct SimulatedQueue {
    device: SimulatedDevice,
    waiting: Vec<DiskOp>,
    random: Random,
    /// Number of operations that fail, in a million.
    pub fail_ppm: u32,
}

impl SimulatedQueue {
    /// Creates a queue of this disk.
    #[must_use]
    pub fn new(device: SimulatedDevice, seed: u64) -> Self {
        Self { device, waiting: Vec::new(), random: Random::new(seed, 77), fail_ppm: 0 }
    }

    /// Answers one of the waiting operations.
    pub fn answer(&mut self) -> Option<DiskDone> {
        let count = self.waiting.len() as u64;
        let op =
            (count > 0).then(|| self.waiting.swap_remove(self.random.below(count) as usize))?;
        if self.random.chance_ppm(self.fail_ppm) {
            let result = Err(rustix::io::Errno::IO);
            // A failed write may have been written all the same.
            if matches!(op.action, DiskAction::Write) && self.random.one_in(2) {
                return Some(DiskDone { result, ..run(&self.device, op) });
            }
            return Some(DiskDone { token: op.token, result, buffer: op.buffer });
        }
        Some(run(&self.device, op))
    }

    /// Returns the number of waiting operations.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waiting.len()
    }

    /// Returns whether no operation waits.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// Ends the process: each waiting write is done or not.
    pub fn kill(&mut self) {
        for op in std::mem::take(&mut self.waiting) {
            if matches!(op.action, DiskAction::Write) && self.random.one_in(2) {
                let _ = run(&self.device, op);
            }
        }
    }

    /// Cuts the power: waiting writes reach the cache in part.
    #[must_use]
    pub fn crash(mut self) -> SimulatedDevice {
        self.kill();
        self.device.crash(&mut self.random)
    }
}

impl Disk for SimulatedQueue {
    fn submit(&mut self, op: DiskOp) {
        self.waiting.push(op);
    }
}

/// Files for tests that outlive the simulated process.
#[derive(Clone, Debug, Default)]
pub struct SimulatedLasting {
    files: Arc<Mutex<BTreeMap<u32, File>>>,
    run: u128,
    is_full: Arc<AtomicBool>,
}

impl SimulatedLasting {
    /// Returns a copy of the present files, as after the end of the process. The old ones may
    /// change after that.
    ///
    /// # Panics
    /// If there is no memory.
    #[must_use]
    pub fn killed(&self) -> Self {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        let copies = files.iter().map(|(node, file)| {
            let mut bytes = vec![0; file.metadata().map_or(0, |metadata| metadata.len()) as usize];
            file.read_exact_at(&mut bytes, 0).expect("memory can be read");
            let copy = file_in_memory().expect("there is memory");
            copy.write_all_at(&bytes, 0).expect("there is memory");
            (*node, copy)
        });
        let files = Arc::new(Mutex::new(copies.collect()));
        Self { files, run: self.run, is_full: Arc::default() }
    }

    /// Sets whether there is no room for further files.
    pub fn fill(&self, is_full: bool) {
        self.is_full.store(is_full, Ordering::Relaxed);
    }

    /// Returns a copy of these files with the run number of `present`: they are put back on a
    /// machine that has not restarted since.
    #[must_use]
    pub fn in_run_of(&self, present: &Self) -> Self {
        Self { run: present.run, ..self.killed() }
    }

    /// Returns the files after a failure of the machine. No content of them may be used.
    #[must_use]
    pub fn failed(&self) -> Self {
        self.failed_with(self)
    }

    /// Returns these files after a failure of the machine: the state in `last` was lost, and the
    /// machine's disk has this older one.
    #[must_use]
    pub fn failed_with(&self, last: &Self) -> Self {
        Self { run: last.run + 1, ..self.killed() }
    }
}

fn file_in_memory() -> io::Result<File> {
    Ok(File::from(memfd_create("evenkeel", MemfdFlags::CLOEXEC)?))
}

impl Lasting for SimulatedLasting {
    fn find(&self, node: u32) -> io::Result<Option<File>> {
        let files = self.files.lock().unwrap_or_else(PoisonError::into_inner);
        files.get(&node).map(File::try_clone).transpose()
    }

    fn make(&self, node: u32, _bytes: u64) -> io::Result<File> {
        if self.is_full.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let file = file_in_memory()?;
        let ours = file.try_clone()?;
        self.files.lock().unwrap_or_else(PoisonError::into_inner).insert(node, ours);
        Ok(file)
    }

    fn forget(&self, node: u32) {
        self.files.lock().unwrap_or_else(PoisonError::into_inner).remove(&node);
    }

    fn run(&self) -> io::Result<u128> {
        Ok(self.run)
    }
}
