//! Copies units of a snapshot of one server into a snapshot that is being filled at another one,
//! and compares them there.

use super::units::UnitSet;
use crate::Client;
use crate::direct::{Blocks, Listed};
use crate::export::reader::Reader;
use crate::export::{UNIT_BYTES, in_parallel};
use crate::output::Failure;
use crate::pace::Pace;
use crate::progress::Progress;
use evenkeel_wire::aws::checksum::{self, Digest};

/// Units after which the progress of the copy is noted: 128 MiB.
const SEGMENT: u32 = 256;
/// Number of units that a thread takes at a time.
const PIECE: usize = 16;

/// Both servers, and the rate at which units are copied.
pub struct Copier<'a> {
    pub source: &'a Client,
    pub target: &'a Client,
    pub pace: Pace,
    pub jobs: usize,
}

/// Parameters of a copy.
pub struct Copied<'a> {
    /// The snapshot at the source.
    pub from: &'a str,
    /// The snapshot from which the copied units differ; without it, all units that have data and
    /// are not zero are copied.
    pub older: Option<&'a str>,
    /// The snapshot at the target.
    pub into: &'a str,
    pub size_gib: u64,
}

/// A segment that was copied.
pub struct Segment<'a> {
    /// Its units, ascending.
    pub units: &'a [u64],
    /// Number of them that were put.
    pub put: u64,
}

impl Copier<'_> {
    /// Copies from unit `first` on, and calls `noted` after each segment.
    pub fn copy(
        &self,
        copied: &Copied<'_>,
        first: u64,
        mut noted: impl FnMut(&Segment<'_>) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let &Copied { from, older, size_gib, .. } = copied;
        let progress = Progress::of_steps((size_gib << 30) / UNIT_BYTES);
        let mut bytes = 0;
        self.source.each_page(from, older, first, SEGMENT, |blocks| {
            let Some((last, _)) = blocks.last() else { return Ok(()) };
            let pieces: Vec<_> = blocks.chunks(PIECE).collect();
            let mut put = 0;
            let copy = |number: usize| self.copy_piece(copied, pieces[number]);
            in_parallel(self.jobs, pieces.len(), copy, |_, more| {
                put += more;
                Ok(())
            })?;
            bytes += put * UNIT_BYTES;
            progress.at(*last, &format!("{from}: {} MiB copied", bytes >> 20));
            let units: Vec<u64> = blocks.iter().map(|(unit, _)| *unit).collect();
            noted(&Segment { units: &units, put })
        })?;
        progress.done();
        Ok(())
    }

    fn copy_piece(
        &self,
        copied: &Copied<'_>,
        piece: &[(u64, Option<String>)],
    ) -> Result<u64, Failure> {
        let mut reader = Reader::knowing(self.source, copied.from, piece);
        // Zeroes matter if there may be other data.
        let puts_zeroes = copied.older.is_some();
        let mut put = 0;
        for (unit, _) in piece {
            self.pace.take(UNIT_BYTES);
            let (data, digest) = match reader.read(*unit)? {
                Some((data, _)) if !puts_zeroes && is_zero(&data) => continue,
                Some(read) => read,
                None if !puts_zeroes => continue,
                None => (zeroes(), checksum::digest(&zeroes())),
            };
            self.target.put_block(copied.into, *unit, &data, &digest)?;
            put += 1;
        }
        Ok(put)
    }

    /// Compares all units of a snapshot that have data. Returns their number.
    pub fn compare_all(&self, from: &str, with: &str, size_gib: u64) -> Result<u64, Failure> {
        let progress = Progress::of_steps((size_gib << 30) / UNIT_BYTES);
        let mut count = 0;
        self.source.each_page(from, None, 0, SEGMENT, |blocks| {
            let Some((last, _)) = blocks.last() else { return Ok(()) };
            count += blocks.len() as u64;
            progress.at(*last, &format!("{from}: {count} units compared"));
            self.compare(&blocks, with, |piece| Reader::knowing(self.source, from, piece))
        })?;
        progress.done();
        Ok(count)
    }

    /// Compares these units of two snapshots.
    pub fn compare_set(&self, from: &str, with: &str, units: &UnitSet) -> Result<(), Failure> {
        let progress = Progress::of_steps(units.count());
        let mut all = units.iter();
        let mut done = 0;
        loop {
            let segment = all.by_ref().take(SEGMENT as usize);
            let blocks: Blocks = segment.map(|unit| (unit, None)).collect();
            if blocks.is_empty() {
                progress.done();
                return Ok(());
            }
            self.compare(&blocks, with, |_| Reader::new(self.source, from, None))?;
            done += blocks.len() as u64;
            progress.at(done, &format!("{from}: {done} units compared"));
        }
    }

    fn compare<'r>(
        &self,
        blocks: &Blocks,
        with: &str,
        reader: impl Fn(&[(u64, Option<String>)]) -> Reader<'r> + Sync,
    ) -> Result<(), Failure> {
        let pieces: Vec<_> = blocks.chunks(PIECE).collect();
        let compare = |number: usize| {
            let mut here = reader(pieces[number]);
            let mut there = Reader::new(self.target, with, None);
            for (unit, _) in pieces[number] {
                self.pace.take(UNIT_BYTES);
                let [expected, present] = [here.read(*unit)?, there.read(*unit)?].map(digest);
                if expected != present {
                    let [expected, present] = [expected, present].map(|sum| checksum::text(&sum));
                    let message = format!(
                        "unit {unit} of {with} at {} has the SHA-256 {present}, and it must have \
                         {expected}, as at {}",
                        self.target.authority(),
                        self.source.authority()
                    );
                    return Err(Failure::new(message));
                }
            }
            Ok(())
        };
        in_parallel(self.jobs, pieces.len(), compare, |_, ()| Ok(()))
    }

    /// Returns whether a snapshot of the source differs from an older one.
    pub fn differs(&self, from: &str, older: &str) -> Result<bool, Failure> {
        let mut next = Listed::first(0);
        // A page may have no blocks before the list ends.
        loop {
            let page = self.source.listed(from, Some(older), &next, SEGMENT)?;
            match page.next {
                _ if !page.blocks.is_empty() => return Ok(true),
                Some(token) => next = Listed::after(token),
                None => return Ok(false),
            }
        }
    }

    /// Returns the units in which a snapshot of the source differs from an older one.
    pub fn changed(&self, from: &str, older: &str) -> Result<UnitSet, Failure> {
        let mut all = UnitSet::default();
        self.source.each_page(from, Some(older), 0, 10_000, |blocks| {
            blocks.iter().for_each(|(unit, _)| all.insert(*unit));
            Ok(())
        })?;
        Ok(all)
    }
}

fn zeroes() -> Vec<u8> {
    vec![0; UNIT_BYTES as usize]
}

fn is_zero(data: &[u8]) -> bool {
    data.iter().all(|byte| *byte == 0)
}

/// Returns the checksum of a unit; one without data is zero.
fn digest(read: Option<(Vec<u8>, Digest)>) -> Digest {
    read.map_or_else(|| checksum::digest(&zeroes()), |(_, digest)| digest)
}
