//! An array of 512-byte sectors, kept twice, for a pool's nodes and for the owners of its chunks.
//! Storage replaces a sector as a whole, so each is old or new after a crash. A change is durable
//! in copy A before it is written to copy B. Of two valid copies the one with the higher version
//! counts.

pub use super::device::SECTOR_BYTES;
use super::device::{Device, read_readable};
use super::{BLOCK_BYTES, checksum};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a sector that the caller uses.
pub const PAYLOAD_BYTES: usize = 504;

/// Bytes of one sector.
type Sector = [u8; SECTOR_BYTES];

/// A sector of which neither copy is valid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damaged {
    /// Its number.
    pub sector: usize,
}

/// Place of a table on its device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Byte offsets at which the copies begin.
    pub copies: [u64; 2],
    /// Number of sectors to read.
    pub sectors: usize,
    /// Number of sectors, from the first on, that were written at least once. If one of these is
    /// all zeroes, it is damaged.
    pub written: usize,
}

/// Contents of a table as read from both copies.
#[derive(Debug)]
pub(super) struct Image {
    /// All sectors.
    pub bytes: Vec<u8>,
    /// Sectors of which neither copy is valid.
    pub damaged: Vec<Damaged>,
    /// Sectors of which one copy is not valid: the number of that copy, and the sector.
    pub lost: Vec<(usize, usize)>,
    /// Sectors whose copies differ, and of which at least one is valid.
    stale: Vec<usize>,
    /// Bytes of both copies of damaged sectors.
    remains: BTreeMap<usize, [Sector; 2]>,
}

/// See the module's text.
#[derive(Debug)]
pub struct Table {
    device: Arc<dyn Device>,
    /// Byte offsets at which the copies begin.
    copies: [u64; 2],
    /// Contents of all sectors, as [`Self::get`] returns them.
    image: Vec<u8>,
    /// Blocks whose contents in each copy are uncertain, because writing them failed.
    doubtful: [BTreeSet<usize>; 2],
    /// Bytes of both copies of damaged sectors; they are not overwritten.
    remains: BTreeMap<usize, [Sector; 2]>,
}

/// Changes of sectors that a write makes together: one that fails undoes all of them.
///
/// After a power failure each sector is old or new by itself.
#[derive(Debug, Default)]
pub struct Draft {
    sectors: BTreeMap<usize, Sector>,
}

impl Draft {
    /// Creates a draft without changes.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }
}

fn sector_checksum(number: usize, sector: &[u8]) -> u32 {
    crc32c::crc32c_append(checksum(&(number as u64).to_le_bytes()), &sector[4..])
}

fn version(sector: &[u8]) -> u32 {
    sector[4..8].try_into().map_or(0, u32::from_le_bytes)
}

fn set_version(number: usize, sector: &mut [u8], version: u32) {
    sector[4..8].copy_from_slice(&version.to_le_bytes());
    let sum = sector_checksum(number, sector);
    sector[..4].copy_from_slice(&sum.to_le_bytes());
}

/// Sets the checksum of a sector.
#[cfg(test)]
pub(super) fn seal(number: usize, sector: &mut [u8]) {
    set_version(number, sector, version(sector));
}

fn is_empty(sector: &[u8]) -> bool {
    sector.iter().all(|&byte| byte == 0)
}

/// Returns whether a sector is valid; an empty one is.
fn is_valid(number: usize, sector: &[u8]) -> bool {
    let stored = sector[..4].try_into().map_or(0, u32::from_le_bytes);
    stored == 0 && is_empty(sector) || stored == sector_checksum(number, sector)
}

/// Returns whether the bytes are a sector of this number that was written.
#[must_use]
pub fn is_written(number: usize, sector: &[u8]) -> bool {
    is_valid(number, sector) && !is_empty(sector)
}

fn sector_at(number: usize) -> Range<usize> {
    number * SECTOR_BYTES..(number + 1) * SECTOR_BYTES
}

fn copied(sector: &[u8]) -> Sector {
    let mut bytes = [0; SECTOR_BYTES];
    bytes.copy_from_slice(sector);
    bytes
}

impl Image {
    /// Reads both copies. Parts of one that cannot be read are taken from the other.
    pub fn read(device: &dyn Device, place: Place) -> io::Result<Self> {
        let length = (place.sectors * SECTOR_BYTES).next_multiple_of(BLOCK_BYTES);
        let mut copies = [vec![0; length], vec![0; length]];
        for (copy, at) in copies.iter_mut().zip(place.copies) {
            read_readable(device, at, copy)?;
        }
        let [mut bytes, other] = copies;
        let mut damaged = Vec::new();
        let mut lost = Vec::new();
        let mut stale = Vec::new();
        let mut remains = BTreeMap::new();
        let pairs = bytes.chunks_mut(SECTOR_BYTES).zip(other.chunks(SECTOR_BYTES));
        for (number, (a, b)) in pairs.enumerate() {
            let is_gone = number < place.written && is_empty(a) && is_empty(b);
            match (is_valid(number, a), is_valid(number, b)) {
                (true, true) if is_gone => {}
                (true, true) if a == b => continue,
                (true, true) if version(a) >= version(b) => stale.push(number),
                (true, true) => {
                    a.copy_from_slice(b);
                    stale.push(number);
                }
                (true, false) => {
                    lost.push((1, number));
                    stale.push(number);
                }
                (false, true) => {
                    a.copy_from_slice(b);
                    lost.push((0, number));
                    stale.push(number);
                }
                (false, false) => {}
            }
            if is_gone || !is_valid(number, a) {
                remains.insert(number, [copied(a), copied(b)]);
                damaged.push(Damaged { sector: number });
            }
        }
        Ok(Self { bytes, damaged, lost, stale, remains })
    }

    /// Returns the payload of a sector.
    pub fn get(&self, sector: usize) -> Option<&[u8]> {
        self.bytes.get(Table::payload(sector))
    }
}

impl Table {
    /// Creates a table without contents, on a device that has zeroes there.
    #[must_use]
    pub fn empty(device: Arc<dyn Device>, copies: [u64; 2]) -> Self {
        let image = Vec::new();
        let doubtful = Default::default();
        let remains = BTreeMap::new();
        Self { device, copies, image, doubtful, remains }
    }

    /// Reads a table, and writes sectors that only one copy has to the other. Returns the table,
    /// its damaged sectors, and the number of sectors of which one copy was damaged or could not be
    /// read.
    ///
    /// # Errors
    /// When the device fails.
    pub fn read(device: Arc<dyn Device>, place: Place) -> io::Result<(Self, Vec<Damaged>, usize)> {
        let read = Image::read(device.as_ref(), place)?;
        let Image { bytes: mut image, damaged, lost, stale, remains } = read;
        let used = image.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        // The image includes empty sectors of which a copy must be mended.
        let mended = stale.last().map_or(0, |last| sector_at(*last).end);
        image.truncate(used.max(mended).next_multiple_of(BLOCK_BYTES));
        image.shrink_to_fit();
        let copies = place.copies;
        let doubtful = Default::default();
        let mut table = Self { device, copies, image, doubtful, remains };
        let blocks: BTreeSet<usize> = stale.iter().map(|sector| block_of(*sector)).collect();
        if !blocks.is_empty()
            && let Err(error) = table.put(&blocks)
        {
            let path = table.device.path().display();
            tracing::warn!(%error, device = %path, "a copy of a table cannot be mended");
        }
        Ok((table, damaged, lost.len()))
    }

    /// Returns the number of sectors in memory.
    #[must_use]
    pub fn sectors(&self) -> usize {
        self.image.len() / SECTOR_BYTES
    }

    /// Returns the payload of a sector: zeroes if it was never written, `None` behind the last
    /// sector.
    #[must_use]
    pub fn get(&self, sector: usize) -> Option<&[u8]> {
        self.image.get(Self::payload(sector))
    }

    /// Returns the number of times that a sector was changed.
    #[must_use]
    pub fn version(&self, sector: usize) -> u32 {
        self.image.get(sector_at(sector)).map_or(0, version)
    }

    pub(super) fn payload(sector: usize) -> Range<usize> {
        let start = sector * SECTOR_BYTES + SECTOR_BYTES - PAYLOAD_BYTES;
        start..start + PAYLOAD_BYTES
    }

    /// Returns whether neither copy of a sector is valid.
    #[must_use]
    pub fn is_damaged(&self, sector: usize) -> bool {
        self.remains.contains_key(&sector)
    }

    /// Changes the payload of a sector in a draft. [`Self::write`] applies it.
    pub fn change(&self, draft: &mut Draft, sector: usize, change: impl FnOnce(&mut [u8])) {
        let bytes = draft.sectors.entry(sector).or_insert_with(|| {
            let present = self.image.get(sector_at(sector));
            present.map_or([0; SECTOR_BYTES], copied)
        });
        change(&mut bytes[SECTOR_BYTES - PAYLOAD_BYTES..]);
    }

    /// Applies a draft durably: when this returns, at least one copy has all of its changes.
    ///
    /// # Errors
    /// If the device fails. The sectors are then as before. Only if the process ends before another
    /// write succeeds may they be as in the draft when the table is read again.
    pub fn write(&mut self, draft: Draft) -> io::Result<()> {
        let Some((last, _)) = draft.sectors.last_key_value() else { return Ok(()) };
        if let Some((sector, _)) = draft.sectors.iter().find(|(it, _)| self.is_damaged(**it)) {
            let text = format!("sector {sector} of the table is damaged in both copies");
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let needed = sector_at(*last).end.next_multiple_of(BLOCK_BYTES);
        if self.image.len() < needed {
            self.image.resize(needed, 0);
        }
        let blocks: BTreeSet<usize> =
            draft.sectors.keys().map(|sector| block_of(*sector)).collect();
        let mut before = Vec::new();
        for (number, mut bytes) in draft.sectors {
            let place = &mut self.image[sector_at(number)];
            before.push((number, copied(place)));
            set_version(number, &mut bytes, version(place).wrapping_add(1));
            place.copy_from_slice(&bytes);
        }
        let Err(error) = self.put(&blocks) else { return Ok(()) };
        // Either copy may have the change all the same. The contents from before count, so they get
        // a higher version for the next reader of the table.
        for (number, mut bytes) in before {
            let place = &mut self.image[sector_at(number)];
            set_version(number, &mut bytes, version(place).wrapping_add(1));
            place.copy_from_slice(&bytes);
        }
        let _ = self.put(&blocks);
        Err(error)
    }

    /// Reads blocks of both copies, and rewrites from memory those that are damaged or outdated in
    /// one of them. Returns their byte offsets in the device, and whether each was written.
    ///
    /// # Errors
    /// When the device fails.
    pub fn look_at(&mut self, blocks: Range<usize>) -> io::Result<Vec<(u64, bool)>> {
        let needed = blocks.end * BLOCK_BYTES;
        if self.image.len() < needed {
            self.image.resize(needed, 0);
        }
        let mut rotten = Vec::new();
        for copy in 0..self.copies.len() {
            let mut bytes = vec![0; blocks.len() * BLOCK_BYTES];
            let begin = self.copies[copy] + (blocks.start * BLOCK_BYTES) as u64;
            read_readable(self.device.as_ref(), begin, &mut bytes)?;
            for (block, bytes) in blocks.clone().zip(bytes.chunks(BLOCK_BYTES)) {
                let first = block * (BLOCK_BYTES / SECTOR_BYTES);
                let mut sectors = (first..).zip(bytes.chunks(SECTOR_BYTES));
                // A sector that is damaged in both copies cannot be rewritten. An outdated one must
                // be, since it would be used if the other copy is lost.
                let is_right = |(number, found): (usize, &[u8])| {
                    let start = number * SECTOR_BYTES;
                    let is_same = self.image.get(start..start + SECTOR_BYTES) == Some(found);
                    self.is_damaged(number) || (is_same && is_valid(number, found))
                };
                if !sectors.all(is_right) {
                    let was_doubtful = self.doubtful[copy].contains(&block);
                    let written = self.put_copy(copy, &BTreeSet::from([block]));
                    // A failed write is an error only if the block was not doubtful before.
                    let is_mended = written.is_ok();
                    if !was_doubtful {
                        written?;
                    }
                    let place = self.copies[copy] + (block * BLOCK_BYTES) as u64;
                    rotten.push((place, is_mended));
                }
            }
        }
        Ok(rotten)
    }

    /// Writes blocks to both copies, durably to at least one. Also retries blocks whose writes
    /// failed before.
    fn put(&mut self, blocks: &BTreeSet<usize>) -> io::Result<()> {
        let ended = [0, 1].map(|copy| self.put_copy(copy, blocks));
        if ended.iter().all(Result::is_err) {
            return ended.into_iter().find(Result::is_err).unwrap_or(Ok(()));
        }
        let path = self.device.path().display().to_string();
        for (copy, name) in [(0, "A"), (1, "B")] {
            let doubtful = self.doubtful[copy].clone();
            if let Err(error) = self.put_copy(copy, &doubtful) {
                tracing::warn!(
                    %error, device = path,
                    "copy {name} of a table cannot be written; the other one serves alone"
                );
            }
        }
        Ok(())
    }

    fn put_copy(&mut self, copy: usize, blocks: &BTreeSet<usize>) -> io::Result<()> {
        if blocks.is_empty() {
            return Ok(());
        }
        self.doubtful[copy].extend(blocks);
        let numbers: Vec<usize> = blocks.iter().copied().collect();
        for run in numbers.chunk_by(|a, b| a + 1 == *b) {
            let place = run[0] * BLOCK_BYTES..(run[0] + run.len()) * BLOCK_BYTES;
            let first = run[0] * (BLOCK_BYTES / SECTOR_BYTES);
            let mut bytes = self.image[place.clone()].to_vec();
            let sectors = bytes.as_chunks_mut::<SECTOR_BYTES>().0;
            for (number, sector) in (first..).zip(sectors) {
                if let Some(remains) = self.remains.get(&number) {
                    *sector = remains[copy];
                }
            }
            self.device.write(self.copies[copy] + place.start as u64, &bytes)?;
        }
        self.device.sync()?;
        self.doubtful[copy].retain(|block| !blocks.contains(block));
        Ok(())
    }
}

fn block_of(sector: usize) -> usize {
    sector * SECTOR_BYTES / BLOCK_BYTES
}

#[cfg(test)]
mod tests {
    use super::super::device::FileDevice;
    use super::super::simulated::SimulatedDevice;
    use super::*;
    use evenkeel_core::random::Random;

    const COPIES: [u64; 2] = [0, 1 << 20];

    fn device() -> (tempfile::NamedTempFile, Arc<dyn Device>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let device = FileDevice::open(file.path(), false).unwrap();
        device.grow(2 << 20).unwrap();
        (file, Arc::new(device))
    }

    fn place(sectors: usize) -> Place {
        Place { copies: COPIES, sectors, written: 0 }
    }

    fn read(device: &Arc<dyn Device>, sectors: usize) -> (Table, Vec<Damaged>, usize) {
        Table::read(Arc::clone(device), place(sectors)).unwrap()
    }

    /// Writes sectors whose payload is this value.
    fn fill(table: &mut Table, sectors: impl IntoIterator<Item = usize>, value: u8) {
        let mut draft = Draft::new();
        for sector in sectors {
            table.change(&mut draft, sector, |payload| payload.fill(value));
        }
        table.write(draft).unwrap();
    }

    fn copies(device: &Arc<dyn Device>, length: usize) -> [Vec<u8>; 2] {
        COPIES.map(|place| {
            let mut copy = vec![0; length];
            device.read(place, &mut copy).unwrap();
            copy
        })
    }

    #[test]
    fn table_is_read_from_either_copy_and_the_other_is_repaired() {
        let (_file, device) = device();
        let mut table = Table::empty(Arc::clone(&device), COPIES);
        for sector in [0, 7, 8, 30] {
            fill(&mut table, [sector], sector as u8 + 1);
        }
        for broken in COPIES {
            device.write(broken, &[0xee; 16 << 10]).unwrap();
            let (read, damaged, mended) = read(&device, 31);
            assert_eq!((damaged, mended), (vec![], 32));
            assert_eq!(read.image, table.image);
        }
        let image = table.image.clone();
        assert_eq!(copies(&device, 16 << 10), [image.clone(), image], "both copies were mended");
    }

    /// A crash between the copies leaves the change in either of them.
    #[test]
    fn newer_copy_of_a_sector_counts() {
        for newer in 0..2 {
            let (_file, device) = device();
            let mut table = Table::empty(Arc::clone(&device), COPIES);
            fill(&mut table, [3], 1);
            let old = table.image.clone();
            fill(&mut table, [3], 2);
            device.write(COPIES[1 - newer], &old).unwrap();
            let (read, damaged, mended) = read(&device, 8);
            // The older one is left by a crash, and not damaged.
            assert_eq!((read.image, damaged, mended), (table.image.clone(), vec![], 0));
            let image = table.image;
            assert_eq!(copies(&device, BLOCK_BYTES), [image.clone(), image]);
        }
    }

    /// A crash leaves any mixture of old and new sectors in the copy that is being written.
    #[test]
    fn a_crash_leaves_each_sector_old_or_new() {
        for seed in 0..50 {
            let (_file, device) = device();
            let mut random = Random::new(seed, 0);
            let mut table = Table::empty(Arc::clone(&device), COPIES);
            fill(&mut table, 0..16, 1);
            let old = table.image.clone();
            fill(&mut table, 0..16, 2);
            let torn = random.among(&[0, 1]);
            let mut image = table.image.clone();
            for sector in (0..16).filter(|_| random.one_in(2)) {
                image[sector_at(sector)].copy_from_slice(&old[sector_at(sector)]);
            }
            device.write(COPIES[torn], &image).unwrap();
            device.write(COPIES[1 - torn], &old).unwrap();
            let (read, damaged, _) = read(&device, 16);
            assert_eq!(damaged, [], "seed {seed}");
            assert_eq!(read.image, image, "seed {seed}");
        }
    }

    #[test]
    fn a_sector_that_is_rotten_in_both_copies_is_named_and_left_as_it_is() {
        let (_file, device) = device();
        let mut table = Table::empty(Arc::clone(&device), COPIES);
        fill(&mut table, 0..16, 1);
        for (copy, at) in (1..).zip(COPIES) {
            let mut block = table.image[BLOCK_BYTES..2 * BLOCK_BYTES].to_vec();
            block[2 * SECTOR_BYTES + 100] ^= copy;
            device.write(at + BLOCK_BYTES as u64, &block).unwrap();
        }
        let before = copies(&device, 2 * BLOCK_BYTES);
        let (mut table, damaged, _) = read(&device, 16);
        assert_eq!(damaged, [Damaged { sector: 10 }]);
        // A sector beside it is changed.
        fill(&mut table, [11], 2);
        for (before, after) in before.iter().zip(copies(&device, 2 * BLOCK_BYTES)) {
            assert_eq!(before[sector_at(10)], after[sector_at(10)]);
            assert_ne!(before[sector_at(11)], after[sector_at(11)]);
        }
        let mut draft = Draft::new();
        table.change(&mut draft, 10, |payload| payload.fill(3));
        let error = table.write(draft).unwrap_err().to_string();
        assert_eq!(error, "sector 10 of the table is damaged in both copies");
    }

    /// A sector at the place of another one is damaged.
    #[test]
    fn a_misplaced_sector_is_noticed() {
        let (_file, device) = device();
        let mut table = Table::empty(Arc::clone(&device), COPIES);
        fill(&mut table, [0], 1);
        fill(&mut table, [1], 2);
        table.image.copy_within(0..SECTOR_BYTES, SECTOR_BYTES);
        COPIES.iter().for_each(|place| device.write(*place, &table.image).unwrap());
        let (_, damaged, _) = read(&device, 2);
        assert_eq!(damaged, [Damaged { sector: 1 }]);
    }

    /// Empty sectors are mended like others, even behind all others.
    #[test]
    fn rot_where_no_sector_was_written_is_mended() {
        for copy in COPIES {
            let (_file, device) = device();
            let mut table = Table::empty(Arc::clone(&device), COPIES);
            fill(&mut table, [1], 1);
            let mut block = [0; BLOCK_BYTES];
            block[700] = 4;
            device.write(copy + 3 * BLOCK_BYTES as u64, &block).unwrap();
            let (_, damaged, mended) = read(&device, 64);
            assert_eq!((damaged, mended), (vec![], 1));
            let a = copies(&device, 8 * BLOCK_BYTES);
            let b = read(&device, 64).2;
            assert_eq!((a[0] == a[1], b), (true, 0));
        }
    }

    /// A sector that was written is never empty again: zeroes in both copies are damage.
    #[test]
    fn zeroes_where_something_was_written_are_damage() {
        let (_file, device) = device();
        let mut table = Table::empty(Arc::clone(&device), COPIES);
        fill(&mut table, 0..16, 0);
        let place = Place { written: 16, ..place(32) };
        assert_eq!(Table::read(Arc::clone(&device), place).unwrap().1, []);
        device.write(COPIES[0] + BLOCK_BYTES as u64, &[0; BLOCK_BYTES]).unwrap();
        assert_eq!(Table::read(Arc::clone(&device), place).unwrap().1, [], "the other copy");
        COPIES.iter().for_each(|place| device.write(*place, &[0; BLOCK_BYTES]).unwrap());
        let damaged = Table::read(Arc::clone(&device), place).unwrap().1;
        assert_eq!(damaged, Vec::from_iter((0..8).map(|sector| Damaged { sector })));
    }

    /// Parts of one copy that cannot be read are taken from the other, and rewritten.
    #[test]
    fn a_sector_that_cannot_be_read_is_mended_from_the_other_copy() {
        for copy in COPIES {
            let device = SimulatedDevice::new(2 << 20);
            let shared: Arc<dyn Device> = Arc::new(device.clone());
            let mut table = Table::empty(Arc::clone(&shared), COPIES);
            fill(&mut table, 0..30, 1);
            device.make_unreadable(copy + 9 * SECTOR_BYTES as u64, None);
            let (found, damaged, mended) = read(&shared, 31);
            assert_eq!((damaged, mended), (vec![], 1));
            assert_eq!(found.image, table.image);
            assert_eq!(read(&shared, 31).2, 0, "it was mended");
            // One that can be read at the second attempt need not be mended.
            device.make_unreadable(copy + 9 * SECTOR_BYTES as u64, Some(1));
            assert_eq!(read(&shared, 31).2, 0);
        }
        let device = SimulatedDevice::new(2 << 20);
        COPIES.iter().for_each(|place| device.make_unreadable(*place, None));
        assert_eq!(read(&(Arc::new(device) as Arc<dyn Device>), 31).1, [Damaged { sector: 0 }]);
    }

    /// A later change of another sector does not complete a failed change, whether the device had a
    /// part of it or nothing.
    #[test]
    fn a_change_that_failed_stays_failed() {
        for (after, has_effect) in (0..4).flat_map(|after| [(after, false), (after, true)]) {
            let device = SimulatedDevice::new(2 << 20);
            let shared: Arc<dyn Device> = Arc::new(device.clone());
            let mut table = Table::empty(Arc::clone(&shared), COPIES);
            fill(&mut table, 0..16, 1);
            let mut draft = Draft::new();
            for sector in [2, 9] {
                table.change(&mut draft, sector, |payload| payload.fill(2));
            }
            device.fail(after, 8, has_effect);
            let is_done = table.write(draft).is_ok();
            device.fail(0, 0, false);
            // Copy A suffices: one write and one flush.
            assert_eq!(is_done, after >= 2, "after {after}");
            let value = if is_done { 2 } else { 1 };
            assert_eq!(table.get(9).unwrap()[0], value);
            fill(&mut table, [3], 3);
            let (found, damaged, _) = read(&shared, 16);
            let value_at = |sector: usize| found.get(sector).unwrap()[0];
            assert_eq!(
                (value_at(2), value_at(3), value_at(9)),
                (value, 3, value),
                "after {after}, {has_effect}"
            );
            assert_eq!(damaged, []);
            let [a, b] = copies(&shared, 2 * BLOCK_BYTES);
            assert_eq!(a, b, "both copies are as one again");
        }
    }

    /// A change succeeds although one copy cannot be written.
    #[test]
    fn change_of_a_table_succeeds_with_one_unwritable_copy() {
        let device = SimulatedDevice::new(2 << 20);
        let shared: Arc<dyn Device> = Arc::new(device.clone());
        let mut table = Table::empty(Arc::clone(&shared), COPIES);
        fill(&mut table, 0..16, 1);
        device.fail(0, 1, false);
        fill(&mut table, [9], 2);
        let [a, b] = copies(&shared, 2 * BLOCK_BYTES);
        assert_eq!((a[sector_at(9)][8], b[sector_at(9)][8]), (2, 2), "it was written once more");
    }
}
