//! Changes that were answered and are not in the log yet, kept where they outlive the process: a
//! server that is killed loses no write that it has answered, flushed or not. When the machine
//! fails they are lost, as NBD and NVMe allow before a flush.
//!
//! ```text
//!   0       whose they are, and in which run of the machine and session they were noted
//!   64      bytes used of each half; how often a half was begun; what the log has
//!   4,096   one half: changes in the order in which they were made
//!   ...     the other half
//! ```
//!
//! A change is noted before it is answered. When all of the batch is on its way to the log, the
//! next changes go to the other half: what that holds is in the log by then. A change is left over
//! if it is in no log block that is found when the volume is opened.

use super::checksum;
use super::format::{Identity, Record};
use super::lasting::{Lasting, Region};
use std::fmt;
use std::io;
use std::ops::Range;
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"EVKANSWR";
const VERSION: u32 = 1;
/// Bytes that say whose the changes are.
const OWNER_BYTES: usize = 48;
const USED: [usize; 2] = [64, 72];
const FILLS: usize = 80;
const FLOOR: usize = 88;
const COUNT: usize = 96;
const TABLE: usize = 104;
/// The most log blocks of one commit, and bytes of one's entry in the table.
pub const TABLE_MAX: usize = 64;
const ENTRY_BYTES: usize = 16;
const HEADER_BYTES: usize = 4_096;
/// Bytes of a change before its records: checksum, length, number.
const HEAD_BYTES: usize = 16;
/// In the number of a change: it is that of a log block.
const IN_LOG: u64 = 1 << 63;

/// Where the log has a change, or will have it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// It is in the batch: the number of its last record, counted from 1 since the volume was
    /// opened. Its records follow each other there.
    Batch(u64),
    /// It is in the log block of this number.
    Log(u64),
}

impl Place {
    fn to_bits(self) -> u64 {
        match self {
            Self::Batch(number) => number,
            Self::Log(sequence) => IN_LOG | sequence,
        }
    }

    fn from_bits(bits: u64) -> Self {
        match bits & IN_LOG {
            0 => Self::Batch(bits),
            _ => Self::Log(bits & !IN_LOG),
        }
    }
}

/// What was noted is not what is there now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Damaged {
    /// The byte of the memory.
    pub at: usize,
}

impl fmt::Display for Damaged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "byte {} and those behind it", self.at)
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Answered {
    lasting: Arc<dyn Lasting>,
    identity: Identity,
    /// Bytes of memory for changes.
    room: usize,
    /// Made when there is something to note; nothing is noted if that is impossible.
    memory: Memory,
    session: u64,
    /// How often a half was begun: odd in the second half.
    fills: u64,
    used: usize,
    /// The number of the last record in the table.
    logged: u64,
    /// Changes for which there was no room.
    missed: u64,
    scratch: Vec<u8>,
}

#[derive(Debug)]
enum Memory {
    Unneeded,
    Impossible,
    There(Region),
}

impl Answered {
    /// Of this volume, with room for so many bytes of changes.
    ///
    /// # Errors
    /// When what an earlier process has left cannot be read.
    pub fn new(lasting: Arc<dyn Lasting>, identity: Identity, room: usize) -> io::Result<Self> {
        let found = lasting.find(identity.node)?.filter(|it| it.bytes().len() >= HEADER_BYTES);
        let memory = found.map_or(Memory::Unneeded, Memory::There);
        let (session, fills, used, logged, missed) = (0, 0, 0, 0, 0);
        let scratch = Vec::new();
        Ok(Self { lasting, identity, room, memory, session, fills, used, logged, missed, scratch })
    }

    /// The changes that the log lacks, in the order in which they were made. Its last block has the
    /// number before `sequence`, and is of this session.
    ///
    /// # Errors
    /// When what was noted cannot be read.
    pub fn left(&self, sequence: u64, session: u64) -> Result<Vec<Record>, Damaged> {
        let Memory::There(region) = &self.memory else { return Ok(Vec::new()) };
        let noted = Noted { bytes: region.bytes(), session: number(region.bytes(), 24) };
        // Another opening has come between, of which this says nothing.
        if noted.bytes[..OWNER_BYTES + 4] != self.owner(noted.session) || noted.session < session {
            return Ok(Vec::new());
        }
        noted.left(sequence)
    }

    /// From now on, changes of this session are noted. Nothing is left over from before.
    pub fn start(&mut self, session: u64) {
        self.session = session;
        self.begin();
    }

    /// Notes whose the memory is, and that nothing is in there.
    fn begin(&mut self) {
        (self.fills, self.used) = (0, 0);
        let owner = self.owner(self.session);
        let Memory::There(region) = &mut self.memory else { return };
        for at in [USED[0], USED[1], FILLS, FLOOR, COUNT] {
            region.publish(at, 0);
        }
        region.bytes_mut()[..owner.len()].copy_from_slice(&owner);
    }

    /// Sees to it that there is memory, if that is possible.
    fn make(&mut self) {
        if !matches!(self.memory, Memory::Unneeded) {
            return;
        }
        let node = self.identity.node;
        match self.lasting.make(node, HEADER_BYTES + self.room) {
            Ok(region) => {
                self.memory = Memory::There(region);
                self.begin();
            }
            Err(error) => {
                tracing::warn!(
                    %error, node,
                    "a volume has no memory that outlives the server: if the server is killed, \
                     writes that were not flushed are lost"
                );
                self.memory = Memory::Impossible;
            }
        }
    }

    /// Everything is in the log, and durable: nothing of it is needed.
    pub fn end(self) {
        if let Memory::There(_) = self.memory {
            self.lasting.forget(self.identity.node);
        }
    }

    /// Notes a change before it is answered: all of it, or nothing if there is no room.
    pub fn note(&mut self, place: Place, records: &[Record]) {
        let mut change = std::mem::take(&mut self.scratch);
        change.clear();
        change.extend([0; 4]);
        let length: usize = records.iter().map(Record::bytes).sum();
        change.extend((length as u32).to_le_bytes());
        change.extend(place.to_bits().to_le_bytes());
        records.iter().for_each(|record| record.encode(&mut change));
        self.make();
        if let Memory::There(region) = &mut self.memory {
            let half = half_of(region.bytes(), self.fills);
            if self.used + change.len() > half.len() {
                self.missed += 1;
            } else {
                let at = half.start + self.used;
                let sum = checksum(&change[4..]) ^ salt(self.session, self.fills, at);
                change[..4].copy_from_slice(&sum.to_le_bytes());
                region.bytes_mut()[at..at + change.len()].copy_from_slice(&change);
                self.used += change.len();
                region.publish(USED[(self.fills % 2) as usize], self.used as u64);
            }
        }
        self.scratch = change;
    }

    /// Changes that could not be noted: each must be durable before it is answered.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// The records of the batch are about to be written to the log: the number of each block, and
    /// that of the last record in it. Those of the call before are on the device.
    pub fn sealed(&mut self, blocks: &[(u64, u64)]) {
        let before = self.logged;
        self.logged = blocks.last().map_or(before, |(_, last)| *last);
        let Memory::There(region) = &mut self.memory else { return };
        region.publish(FLOOR, before);
        region.publish(COUNT, 0);
        let blocks = &blocks[..blocks.len().min(TABLE_MAX)];
        for (at, (sequence, last)) in blocks.iter().enumerate() {
            let place = &mut region.bytes_mut()[TABLE + at * ENTRY_BYTES..][..ENTRY_BYTES];
            place[..8].copy_from_slice(&sequence.to_le_bytes());
            place[8..].copy_from_slice(&last.to_le_bytes());
        }
        region.publish(COUNT, blocks.len() as u64);
    }

    /// All changes so far are on their way to the log, and those of the other half are there.
    pub fn turn(&mut self) {
        let Memory::There(region) = &mut self.memory else { return };
        region.publish(USED[((self.fills + 1) % 2) as usize], 0);
        (self.fills, self.used) = (self.fills + 1, 0);
        region.publish(FILLS, self.fills);
    }

    fn owner(&self, session: u64) -> [u8; OWNER_BYTES + 4] {
        let mut owner = [0; OWNER_BYTES + 4];
        owner[..8].copy_from_slice(MAGIC);
        owner[8..12].copy_from_slice(&VERSION.to_le_bytes());
        owner[12..16].copy_from_slice(&self.identity.node.to_le_bytes());
        owner[16..24].copy_from_slice(&self.identity.generation.to_le_bytes());
        owner[24..32].copy_from_slice(&session.to_le_bytes());
        owner[32..48].copy_from_slice(&self.lasting.run().to_le_bytes());
        let sum = checksum(&owner[..OWNER_BYTES]);
        owner[OWNER_BYTES..].copy_from_slice(&sum.to_le_bytes());
        owner
    }
}

/// What memory holds.
#[derive(Clone, Copy)]
struct Noted<'a> {
    bytes: &'a [u8],
    session: u64,
}

impl Noted<'_> {
    /// The changes that a log lacks whose last block has the number before `sequence`.
    fn left(self, sequence: u64) -> Result<Vec<Record>, Damaged> {
        let count = (number(self.bytes, COUNT) as usize).min(TABLE_MAX);
        let logged = (0..count)
            .map(|at| TABLE + at * ENTRY_BYTES)
            .filter(|&at| number(self.bytes, at) < sequence)
            .map(|at| number(self.bytes, at + 8))
            .fold(number(self.bytes, FLOOR), u64::max);
        let is_left = |place: &Place| match *place {
            Place::Batch(number) => number > logged,
            Place::Log(block) => block >= sequence,
        };
        let fills = number(self.bytes, FILLS);
        let mut left = Vec::new();
        for fill in fills.saturating_sub(1)..=fills {
            let changes = self.changes(fill)?.into_iter().filter(|(place, _)| is_left(place));
            left.extend(changes.flat_map(|(_, records)| records));
        }
        Ok(left)
    }

    /// The changes of one half.
    fn changes(self, fill: u64) -> Result<Vec<(Place, Vec<Record>)>, Damaged> {
        let half = half_of(self.bytes, fill);
        let used = number(self.bytes, USED[(fill % 2) as usize]) as usize;
        let end = half.start + used.min(half.len());
        let (mut changes, mut at) = (Vec::new(), half.start);
        while at < end {
            let (length, change) = self.change(fill, at..end).ok_or(Damaged { at })?;
            changes.push(change);
            at += length;
        }
        Ok(changes)
    }

    /// The change at the beginning of these bytes, and its length.
    fn change(self, fill: u64, range: Range<usize>) -> Option<(usize, (Place, Vec<Record>))> {
        let (at, bytes) = (range.start, &self.bytes[range]);
        let length = u32::from_le_bytes(bytes.get(4..8)?.try_into().ok()?) as usize;
        let change = bytes.get(..HEAD_BYTES + length)?;
        let sum = u32::from_le_bytes(change[..4].try_into().ok()?);
        if sum != checksum(&change[4..]) ^ salt(self.session, fill, at) {
            return None;
        }
        let place = Place::from_bits(number(change, 8));
        let records = Record::decode_all(&change[HEAD_BYTES..]).ok()?;
        Some((change.len(), (place, records)))
    }
}

/// The half of this memory that changes go to when halves were begun so often before.
fn half_of(memory: &[u8], fill: u64) -> Range<usize> {
    let bytes = (memory.len() - HEADER_BYTES) / 2;
    let start = HEADER_BYTES + (fill % 2) as usize * bytes;
    start..start + bytes
}

fn number(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}

/// What tells a change from one that was at the same place before.
fn salt(session: u64, fill: u64, at: usize) -> u32 {
    let mut bytes = [0; 24];
    bytes[..8].copy_from_slice(&session.to_le_bytes());
    bytes[8..16].copy_from_slice(&fill.to_le_bytes());
    bytes[16..].copy_from_slice(&(at as u64).to_le_bytes());
    checksum(&bytes)
}
