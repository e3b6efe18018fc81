//! The bytes of a recording: intervals of one volume, in independent blocks. Pure.
//!
//! docs/internals/disk_format.md describes them. The previous interval predicts the next one, and
//! only the difference from the prediction is written, so a steady load takes few bytes. A volume
//! at rest has one interval for the whole rest. Each block begins with a fixed prediction, and has
//! a checksum: a damaged block is skipped, and the next one is found.

use crc32c::{crc32c, crc32c_append};
use evenkeel_core::convert::saturating;

use crate::varint::{self, put};

/// Work of a volume between two samples.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Interval {
    /// Its beginning, in milliseconds of Unix time.
    pub start_ms: u64,
    /// Its length in milliseconds.
    pub length_ms: u64,
    /// Its work; `None` if no request was answered or waited.
    pub work: Option<Work>,
    /// Credits that were left at its end, in millionths of the maximum; `None` for a volume without
    /// credits.
    pub balance_ppm: Option<u32>,
}

/// Requests that were answered, and their delays.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Work {
    /// Reads.
    pub reads: Requests,
    /// Writes.
    pub writes: Requests,
    /// The time for which limits delayed them.
    pub throttled: Throttled,
}

/// Requests of one kind.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Requests {
    /// Number of answered requests.
    pub count: u64,
    /// Bytes of started requests.
    pub bytes: u64,
    /// Microseconds from arrival to answer, of all answered requests together.
    pub us: u64,
}

/// Microseconds for which the first waiting request was delayed, by the cause of the delay.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Throttled {
    /// The volume's limit in I/Os, or the guard that bounds their burst.
    pub operations_us: u64,
    /// The volume's limit in bytes.
    pub bytes_us: u64,
    /// The limits of its host.
    pub instance_us: u64,
    /// The shared device.
    pub device_us: u64,
}

impl Interval {
    /// Returns the first millisecond after it.
    pub const fn end_ms(&self) -> u64 {
        self.start_ms.saturating_add(self.length_ms)
    }
}

/// Maximum of bytes of a block's contents.
const CONTENTS_BYTES_MAX: usize = 4_096;
/// Maximum of bytes of a whole block.
pub const BLOCK_BYTES_MAX: usize = HEAD_BYTES + CONTENTS_BYTES_MAX;
/// Maximum of bytes of an interval: its form, and twelve numbers of ten bytes each.
pub const INTERVAL_BYTES_MAX: usize = 1 + 12 * varint::BYTES_MAX;
/// The length of an interval without a written length.
const USUAL_MS: u64 = 1_000;
/// Length in milliseconds at which an interval of a volume at rest ends if its credits change.
const RESTING_MS_MAX: u64 = 60_000;

const MAGIC: [u8; 4] = *b"EkR1";
/// The magic, the length of the contents, the beginning, the checksum of both and the contents.
pub const HEAD_BYTES: usize = 4 + 2 + 8 + 4;

/// The unit in which bytes are counted if all are multiples of it.
const SECTOR: u64 = 512;

/// The forms of an interval.
mod form {
    /// A request was answered or waited. Otherwise the length follows, and at most credits.
    pub const WORKED: u8 = 1 << 7;
    /// The credits changed by a number that follows.
    pub const CREDITS: u8 = 1;
    /// The length differs from the usual one by a number that follows.
    pub const LENGTH: u8 = 1 << 1;
    /// Four times of delays follow.
    pub const THROTTLED: u8 = 1 << 2;
    /// Bytes are counted one by one.
    pub const BYTES: u8 = 1 << 3;
    /// Three numbers of reads follow.
    pub const READS: u8 = 1 << 4;
    /// Three numbers of writes follow.
    pub const WRITES: u8 = 1 << 5;
    /// All of the above.
    pub const ALL: u8 = WORKED | CREDITS | LENGTH | THROTTLED | BYTES | READS | WRITES;
}

/// The prediction for the next interval.
#[derive(Clone, Copy, Debug)]
struct Expected {
    reads: Requests,
    writes: Requests,
    /// The credits plus one; zero for a volume without credits.
    balance: u64,
}

impl Expected {
    /// Returns the prediction at the beginning of a block: requests of 4 KiB that take half a
    /// millisecond.
    const fn first() -> Self {
        let requests = Requests { count: 1, bytes: 4_096, us: 500 };
        Self { reads: requests, writes: requests, balance: 0 }
    }
}

impl Requests {
    /// Scales these requests to `count` requests.
    fn scaled(&self, count: u64) -> Self {
        let scale = |amount: u64| -> u64 {
            let scaled = u128::from(amount) * u128::from(count) / u128::from(self.count.max(1));
            saturating(scaled)
        };
        Self { count, bytes: scale(self.bytes), us: scale(self.us) }
    }

    const fn is_nothing(&self) -> bool {
        self.count == 0 && self.bytes == 0 && self.us == 0
    }

    const fn is_in_sectors(&self) -> bool {
        self.bytes.is_multiple_of(SECTOR)
    }
}

const fn balance_code(ppm: Option<u32>) -> u64 {
    match ppm {
        Some(ppm) => ppm as u64 + 1,
        None => 0,
    }
}

/// A block that is being written.
#[derive(Clone, Debug)]
pub struct Block {
    start_ms: u64,
    end_ms: u64,
    contents: Vec<u8>,
    expected: Expected,
    /// The last interval of a volume at rest, which may still be extended.
    resting: Option<Interval>,
    has_work: bool,
}

impl Block {
    /// Creates an empty block.
    pub const fn new(start_ms: u64) -> Self {
        Self {
            start_ms,
            end_ms: start_ms,
            contents: Vec::new(),
            expected: Expected::first(),
            resting: None,
            has_work: false,
        }
    }

    /// Returns its beginning.
    pub const fn start_ms(&self) -> u64 {
        self.start_ms
    }

    /// Returns whether the volume was at rest in all its intervals.
    pub const fn is_at_rest(&self) -> bool {
        !self.has_work
    }

    /// Adds an interval that begins where the last one ended. Returns whether there was room.
    #[must_use]
    pub fn push(&mut self, interval: &Interval) -> bool {
        // Reserves room also for an interval at rest, which is written when the rest ends.
        let needed = 2 * INTERVAL_BYTES_MAX;
        if interval.start_ms != self.end_ms || self.contents.len() + needed > CONTENTS_BYTES_MAX {
            return false;
        }
        self.end_ms = interval.end_ms();
        if interval.work.is_some() {
            self.has_work = true;
            self.end_rest();
            self.write(interval);
            return true;
        }
        let longer = self.resting.filter(|resting| {
            interval.balance_ppm == resting.balance_ppm || resting.length_ms < RESTING_MS_MAX
        });
        self.resting = match longer {
            Some(Interval { start_ms, length_ms, .. }) => Some(Interval {
                start_ms,
                length_ms: length_ms.saturating_add(interval.length_ms),
                ..*interval
            }),
            None => {
                self.end_rest();
                Some(*interval)
            }
        };
        true
    }

    fn end_rest(&mut self) {
        if let Some(resting) = self.resting.take() {
            self.write(&resting);
        }
    }

    fn write(&mut self, interval: &Interval) {
        let to = &mut self.contents;
        let expected = &mut self.expected;
        let balance = balance_code(interval.balance_ppm);
        let form_at = to.len();
        let mut form = 0;
        to.push(form);
        if balance != expected.balance {
            form |= form::CREDITS;
            put(to, difference(expected.balance, balance));
            expected.balance = balance;
        }
        match &interval.work {
            None => put(to, interval.length_ms),
            Some(work) => {
                form |= form::WORKED | write_work(to, expected, interval.length_ms, work);
            }
        }
        if let Some(byte) = to.get_mut(form_at) {
            *byte = form;
        }
    }

    /// Returns its bytes; empty if it has no interval.
    pub fn bytes(&self) -> Vec<u8> {
        let mut whole = self.clone();
        whole.end_rest();
        if whole.contents.is_empty() {
            return Vec::new();
        }
        let mut bytes = Vec::with_capacity(HEAD_BYTES + whole.contents.len());
        bytes.extend(MAGIC);
        // The length never exceeds CONTENTS_BYTES_MAX.
        bytes.extend((whole.contents.len() as u16).to_le_bytes());
        bytes.extend(self.start_ms.to_le_bytes());
        let sum = crc32c_append(crc32c(&bytes), &whole.contents);
        bytes.extend(sum.to_le_bytes());
        bytes.extend(whole.contents);
        bytes
    }
}

/// Writes the work of an interval. Returns its form.
fn write_work(to: &mut Vec<u8>, expected: &mut Expected, length_ms: u64, work: &Work) -> u8 {
    let mut form = 0;
    if length_ms != USUAL_MS {
        form |= form::LENGTH;
        put(to, difference(USUAL_MS, length_ms));
    }
    if work.throttled != Throttled::default() {
        form |= form::THROTTLED;
        let Throttled { operations_us, bytes_us, instance_us, device_us } = work.throttled;
        [operations_us, bytes_us, instance_us, device_us].into_iter().for_each(|us| put(to, us));
    }
    let unit = if work.reads.is_in_sectors() && work.writes.is_in_sectors() { SECTOR } else { 1 };
    if unit == 1 {
        form |= form::BYTES;
    }
    let kinds = [
        (work.reads, &mut expected.reads, form::READS),
        (work.writes, &mut expected.writes, form::WRITES),
    ];
    for (found, expected, bit) in kinds {
        if found.is_nothing() {
            continue;
        }
        form |= bit;
        let scaled = expected.scaled(found.count);
        put(to, difference(expected.count, found.count));
        put(to, difference(scaled.bytes / unit, found.bytes / unit));
        put(to, difference(scaled.us, found.us));
        *expected = found;
    }
    form
}

/// Returns the difference of a number from its prediction; small differences are small numbers.
const fn difference(expected: u64, found: u64) -> u64 {
    let signed = found.wrapping_sub(expected) as i64;
    ((signed << 1) ^ (signed >> 63)) as u64
}

/// Returns the number with this difference from its prediction.
const fn differing(expected: u64, difference: u64) -> u64 {
    let signed = (difference >> 1) as i64 ^ -((difference & 1) as i64);
    expected.wrapping_add(signed as u64)
}

/// The unread contents of a block.
struct Rest<'a>(&'a [u8]);

impl Rest<'_> {
    fn byte(&mut self) -> Option<u8> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<u64> {
        varint::take(&mut self.0)
    }
}

/// The content of a file of blocks.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Blocks {
    /// All intervals of complete blocks, in the file's order.
    pub intervals: Vec<Interval>,
    /// Bytes that belong to no complete block.
    pub damaged_bytes: usize,
    /// The bytes up to the end of the last complete block.
    pub whole_bytes: usize,
}

/// Maximum number of places in one file that look like a block's beginning and are none.
const TRIES_MAX: usize = 4_096;

/// A complete block in a file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Whole<'a> {
    /// Its beginning, in milliseconds of Unix time.
    pub start_ms: u64,
    /// The first millisecond after its last interval.
    pub end_ms: u64,
    /// Its bytes.
    pub bytes: &'a [u8],
}

/// Reads the blocks of a file, or of its end. Skips damaged bytes.
pub fn read(file: &[u8]) -> Blocks {
    walk(file, |_| {})
}

/// Returns the complete blocks of a file, or of its end, in order.
pub fn whole(file: &[u8]) -> Vec<Whole<'_>> {
    let mut all = Vec::new();
    walk(file, |one| all.push(one));
    all
}

fn walk<'a>(file: &'a [u8], mut each: impl FnMut(Whole<'a>)) -> Blocks {
    let mut blocks = Blocks::default();
    let mut offset = 0;
    let mut tries = 0;
    while tries < TRIES_MAX {
        let Some(rest) = file.get(offset..) else { break };
        let Some(skipped) = rest.windows(MAGIC.len()).position(|four| four == MAGIC) else { break };
        offset += skipped;
        blocks.damaged_bytes += skipped;
        let known = blocks.intervals.len();
        match rest.get(skipped..).and_then(|rest| block(rest, &mut blocks.intervals)) {
            Some(length) => {
                let its = blocks.intervals.get(known..).unwrap_or_default();
                if let (Some(first), Some(last), Some(bytes)) =
                    (its.first(), its.last(), file.get(offset..offset + length))
                {
                    each(Whole { start_ms: first.start_ms, end_ms: last.end_ms(), bytes });
                }
                offset += length;
                blocks.whole_bytes = offset;
            }
            None => {
                tries += 1;
                offset += 1;
                blocks.damaged_bytes += 1;
            }
        }
    }
    blocks.damaged_bytes += file.len().saturating_sub(offset);
    blocks
}

/// Reads the block at the beginning. Returns its length, or adds nothing and returns `None`.
fn block(bytes: &[u8], to: &mut Vec<Interval>) -> Option<usize> {
    let (head, rest) = bytes.split_first_chunk::<HEAD_BYTES>()?;
    let (summed, sum) = head.split_last_chunk::<4>()?;
    let (before, start) = summed.split_last_chunk::<8>()?;
    let length = usize::from(u16::from_le_bytes(*before.last_chunk::<2>()?));
    let contents = rest.get(..length).filter(|_| length <= CONTENTS_BYTES_MAX)?;
    if crc32c_append(crc32c(summed), contents) != u32::from_le_bytes(*sum) {
        return None;
    }
    let known = to.len();
    let is_whole = intervals(u64::from_le_bytes(*start), contents, to).is_some();
    if !is_whole {
        to.truncate(known);
        return None;
    }
    Some(HEAD_BYTES + length)
}

fn intervals(start_ms: u64, contents: &[u8], to: &mut Vec<Interval>) -> Option<()> {
    let mut at_ms = start_ms;
    let mut expected = Expected::first();
    let mut rest = Rest(contents);
    while !rest.0.is_empty() {
        let form = rest.byte().filter(|form| form & !form::ALL == 0)?;
        if form & form::CREDITS > 0 {
            expected.balance = differing(expected.balance, rest.number()?);
        }
        let balance_ppm = match expected.balance {
            0 => None,
            code => Some(u32::try_from(code - 1).ok()?),
        };
        let (length_ms, work) = if form & form::WORKED > 0 {
            read_work(&mut rest, form, &mut expected).map(|(ms, it)| (ms, Some(it)))?
        } else {
            (rest.number()?, None)
        };
        to.push(Interval { start_ms: at_ms, length_ms, work, balance_ppm });
        at_ms = at_ms.checked_add(length_ms)?;
    }
    Some(())
}

/// Reads the work of an interval with this form, and its length.
fn read_work(rest: &mut Rest<'_>, form: u8, expected: &mut Expected) -> Option<(u64, Work)> {
    let mut work = Work::default();
    let length_ms =
        if form & form::LENGTH > 0 { differing(USUAL_MS, rest.number()?) } else { USUAL_MS };
    if form & form::THROTTLED > 0 {
        let Throttled { operations_us, bytes_us, instance_us, device_us } = &mut work.throttled;
        for us in [operations_us, bytes_us, instance_us, device_us] {
            *us = rest.number()?;
        }
    }
    let unit = if form & form::BYTES > 0 { 1 } else { SECTOR };
    let kinds = [
        (&mut work.reads, &mut expected.reads, form::READS),
        (&mut work.writes, &mut expected.writes, form::WRITES),
    ];
    for (found, expected, bit) in kinds {
        if form & bit == 0 {
            continue;
        }
        found.count = differing(expected.count, rest.number()?);
        let scaled = expected.scaled(found.count);
        let units = differing(scaled.bytes / unit, rest.number()?);
        found.bytes = units.checked_mul(unit)?;
        found.us = differing(scaled.us, rest.number()?);
        *expected = *found;
    }
    Some((length_ms, work))
}

#[cfg(test)]
mod tests;
