//! An array of 512-byte sectors, kept twice: which volumes there are, and who owns which chunk.
//! Storage replaces a sector as a whole, so each is old or new after a crash. A change is durable
//! in copy A before it is written to copy B; of two valid copies the one with the higher version
//! counts.

use super::device::Device;
use super::{BLOCK_BYTES, checksum};
use std::io;
use std::ops::Range;
use std::sync::Arc;

/// Bytes of a sector, and of what it carries.
pub const SECTOR_BYTES: usize = 512;
/// Bytes of a sector that are the caller's.
pub const PAYLOAD_BYTES: usize = 504;

/// A sector that neither copy holds in a valid form.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damaged {
    /// Its number.
    pub sector: usize,
}

/// See the module's text.
#[derive(Debug)]
pub struct Table {
    device: Arc<dyn Device>,
    /// Where the copies begin, in bytes.
    copies: [u64; 2],
    /// All sectors as they are on the device.
    image: Vec<u8>,
}

fn sector_checksum(number: usize, sector: &[u8]) -> u32 {
    crc32c::crc32c_append(checksum(&(number as u64).to_le_bytes()), &sector[4..])
}

fn version(sector: &[u8]) -> u32 {
    sector[4..8].try_into().map_or(0, u32::from_le_bytes)
}

/// Whether a sector is whole; an empty one is.
fn is_valid(number: usize, sector: &[u8]) -> bool {
    let stored = sector[..4].try_into().map_or(0, u32::from_le_bytes);
    let is_empty = stored == 0 && sector.iter().all(|&byte| byte == 0);
    is_empty || stored == sector_checksum(number, sector)
}

impl Table {
    /// A table without contents, on a device that holds zeroes there.
    #[must_use]
    pub fn empty(device: Arc<dyn Device>, copies: [u64; 2]) -> Self {
        Self { device, copies, image: Vec::new() }
    }

    /// Reads the first `sectors` of a table; what only one copy holds is written to the other.
    ///
    /// # Errors
    /// When the device fails.
    pub fn read(
        device: Arc<dyn Device>,
        copies: [u64; 2],
        sectors: usize,
    ) -> io::Result<(Self, Vec<Damaged>)> {
        let (image, damaged, stale) = Self::read_image(device.as_ref(), copies, sectors)?;
        let mut image = image;
        let used = image.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        image.truncate(used.next_multiple_of(BLOCK_BYTES));
        image.shrink_to_fit();
        let table = Self { device, copies, image };
        if !stale.is_empty() && damaged.is_empty() {
            table.write(&stale)?;
        }
        Ok((table, damaged))
    }

    /// The sectors of a table, those of which neither copy is valid, and those of which the copies
    /// are not the same.
    pub(super) fn read_image(
        device: &dyn Device,
        copies: [u64; 2],
        sectors: usize,
    ) -> io::Result<(Vec<u8>, Vec<Damaged>, Vec<usize>)> {
        let bytes = (sectors * SECTOR_BYTES).next_multiple_of(BLOCK_BYTES);
        let mut images = [vec![0; bytes], vec![0; bytes]];
        for (image, at) in images.iter_mut().zip(copies) {
            device.read(at, image)?;
        }
        let [mut image, other] = images;
        let (mut damaged, mut stale) = (Vec::new(), Vec::new());
        let pairs = image.chunks_mut(SECTOR_BYTES).zip(other.chunks(SECTOR_BYTES));
        for (number, (a, b)) in pairs.enumerate() {
            if a == b && is_valid(number, a) {
                continue;
            }
            match (is_valid(number, a), is_valid(number, b)) {
                (false, false) => {
                    damaged.push(Damaged { sector: number });
                    continue;
                }
                (true, true) if version(a) >= version(b) => {}
                (true, false) => {}
                (_, true) => a.copy_from_slice(b),
            }
            stale.push(number);
        }
        Ok((image, damaged, stale))
    }

    /// Sectors that it has.
    #[must_use]
    pub fn sectors(&self) -> usize {
        self.image.len() / SECTOR_BYTES
    }

    /// What a sector carries; nothing but zeroes where none was written.
    #[must_use]
    pub fn get(&self, sector: usize) -> Option<&[u8]> {
        self.image.get(Self::payload(sector))
    }

    /// How often a sector was changed.
    #[must_use]
    pub fn version(&self, sector: usize) -> u32 {
        self.image.get(sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES).map_or(0, version)
    }

    pub(super) fn payload(sector: usize) -> Range<usize> {
        let start = sector * SECTOR_BYTES + SECTOR_BYTES - PAYLOAD_BYTES;
        start..start + PAYLOAD_BYTES
    }

    /// Changes what sectors carry, in memory; [`Self::write`] makes it durable.
    pub fn change(&mut self, sector: usize, change: impl FnOnce(&mut [u8])) {
        let needed = ((sector + 1) * SECTOR_BYTES).next_multiple_of(BLOCK_BYTES);
        if self.image.len() < needed {
            self.image.resize(needed, 0);
        }
        change(&mut self.image[Self::payload(sector)]);
        let bytes = &mut self.image[sector * SECTOR_BYTES..][..SECTOR_BYTES];
        let next = version(bytes).wrapping_add(1);
        bytes[4..8].copy_from_slice(&next.to_le_bytes());
        let sum = sector_checksum(sector, bytes);
        bytes[..4].copy_from_slice(&sum.to_le_bytes());
    }

    /// Reads blocks of both copies, and writes anew what is not whole in one of them: as it is in
    /// memory. Where that was, in bytes of the device.
    ///
    /// # Errors
    /// When the device fails.
    pub fn look_at(&self, blocks: Range<usize>) -> io::Result<Vec<u64>> {
        let (device, mut rotten) = (self.device.as_ref(), Vec::new());
        for at in self.copies {
            let mut bytes = vec![0; blocks.len() * BLOCK_BYTES];
            let begin = at + (blocks.start * BLOCK_BYTES) as u64;
            device.read(begin, &mut bytes)?;
            let first = blocks.start * BLOCK_BYTES / SECTOR_BYTES;
            let mut sectors = (first..).zip(bytes.chunks(SECTOR_BYTES));
            for block in blocks.clone() {
                let in_block = sectors.by_ref().take(BLOCK_BYTES / SECTOR_BYTES);
                if in_block.fold(true, |all, (number, it)| is_valid(number, it) && all) {
                    continue;
                }
                let mut whole = vec![0; BLOCK_BYTES];
                if let Some(known) = self.image.get(block * BLOCK_BYTES..(block + 1) * BLOCK_BYTES)
                {
                    whole.copy_from_slice(known);
                }
                let place = at + (block * BLOCK_BYTES) as u64;
                device.write(place, &whole)?;
                device.sync()?;
                rotten.push(place);
            }
        }
        Ok(rotten)
    }

    /// Writes changed sectors, durably: when this returns they are whole in copy A.
    ///
    /// # Errors
    /// When the device fails; the sectors may be old or new then.
    pub fn write(&self, sectors: &[usize]) -> io::Result<()> {
        let mut blocks: Vec<usize> =
            sectors.iter().map(|sector| sector * SECTOR_BYTES / BLOCK_BYTES).collect();
        blocks.sort_unstable();
        blocks.dedup();
        for at in self.copies {
            for run in blocks.chunk_by(|a, b| a + 1 == *b) {
                let bytes = &self.image[run[0] * BLOCK_BYTES..][..run.len() * BLOCK_BYTES];
                self.device.write(at + (run[0] * BLOCK_BYTES) as u64, bytes)?;
            }
            self.device.sync()?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::device::FileDevice;
    use super::*;
    use evenkeel_core::random::Random;

    const COPIES: [u64; 2] = [0, 1 << 20];

    fn device() -> (tempfile::NamedTempFile, Arc<dyn Device>) {
        let file = tempfile::NamedTempFile::new().unwrap();
        let device = FileDevice::open(file.path(), false).unwrap();
        device.grow(2 << 20).unwrap();
        (file, Arc::new(device))
    }

    fn fill(table: &mut Table, sector: usize, value: u8) {
        table.change(sector, |payload| payload.fill(value));
    }

    #[test]
    fn what_was_written_is_read_and_either_copy_suffices() {
        let (_file, device) = device();
        let mut table = Table::empty(Arc::clone(&device), COPIES);
        for sector in [0, 7, 8, 30] {
            fill(&mut table, sector, sector as u8 + 1);
        }
        table.write(&[0, 7, 8, 30]).unwrap();
        for broken in COPIES {
            device.write(broken, &[0xee; 16 << 10]).unwrap();
            let (read, damaged) = Table::read(Arc::clone(&device), COPIES, 31).unwrap();
            assert_eq!(damaged, []);
            assert_eq!(read.image, table.image);
        }
        let mut copy = vec![0; 16 << 10];
        device.read(COPIES[1], &mut copy).unwrap();
        assert_eq!(copy, table.image, "the other copy was mended");
    }

    /// A crash between the copies leaves the change in one of them, whichever was first.
    #[test]
    fn of_two_copies_of_a_sector_the_newer_one_counts() {
        for newer in 0..2 {
            let (_file, device) = device();
            let mut table = Table::empty(Arc::clone(&device), COPIES);
            fill(&mut table, 3, 1);
            table.write(&[3]).unwrap();
            fill(&mut table, 3, 2);
            device.write(COPIES[newer], &table.image).unwrap();
            let (read, damaged) = Table::read(Arc::clone(&device), COPIES, 8).unwrap();
            assert_eq!((read.image, damaged), (table.image.clone(), vec![]));
            let mut other = vec![0; BLOCK_BYTES];
            device.read(COPIES[1 - newer], &mut other).unwrap();
            assert_eq!(other, table.image, "the other copy was mended");
        }
    }

    /// A crash leaves any mixture of old and new sectors in the copy that was being written.
    #[test]
    fn a_crash_leaves_each_sector_old_or_new() {
        for seed in 0..50 {
            let (_file, device) = device();
            let mut random = Random::new(seed, 0);
            let mut table = Table::empty(Arc::clone(&device), COPIES);
            (0..16).for_each(|sector| fill(&mut table, sector, 1));
            table.write(&Vec::from_iter(0..16)).unwrap();
            let old = table.image.clone();
            (0..16).for_each(|sector| fill(&mut table, sector, 2));
            let torn = random.among(&COPIES);
            for sector in 0..16 {
                if random.one_in(2) {
                    let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                    let mut block = vec![0; BLOCK_BYTES];
                    let at = torn + (sector * SECTOR_BYTES / BLOCK_BYTES * BLOCK_BYTES) as u64;
                    device.read(at, &mut block).unwrap();
                    let inner = range.start % BLOCK_BYTES;
                    block[inner..inner + SECTOR_BYTES].copy_from_slice(&table.image[range]);
                    device.write(at, &block).unwrap();
                }
            }
            let (read, damaged) = Table::read(device, COPIES, 16).unwrap();
            assert_eq!(damaged, [], "seed {seed}");
            for sector in 0..16 {
                let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                let found = &read.image[range.clone()];
                assert!(
                    found == &old[range.clone()] || found == &table.image[range],
                    "seed {seed}: sector {sector} is neither"
                );
            }
        }
    }

    #[test]
    fn a_sector_that_is_rotten_in_both_copies_is_named() {
        let (_file, device) = device();
        let mut table = Table::empty(Arc::clone(&device), COPIES);
        (0..16).for_each(|sector| fill(&mut table, sector, 1));
        table.write(&Vec::from_iter(0..16)).unwrap();
        let mut block = table.image[BLOCK_BYTES..2 * BLOCK_BYTES].to_vec();
        block[2 * SECTOR_BYTES + 100] ^= 1;
        for copy in COPIES {
            device.write(copy + BLOCK_BYTES as u64, &block).unwrap();
        }
        let (_, damaged) = Table::read(device, COPIES, 16).unwrap();
        assert_eq!(damaged, [Damaged { sector: 10 }]);
    }

    /// A sector at another's place is not taken for it.
    #[test]
    fn a_misplaced_sector_is_noticed() {
        let (_file, device) = device();
        let mut table = Table::empty(Arc::clone(&device), COPIES);
        fill(&mut table, 0, 1);
        fill(&mut table, 1, 2);
        table.image.copy_within(0..SECTOR_BYTES, SECTOR_BYTES);
        table.write(&[1]).unwrap();
        let (_, damaged) = Table::read(device, COPIES, 2).unwrap();
        assert_eq!(damaged, [Damaged { sector: 1 }]);
    }
}
