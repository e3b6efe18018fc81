//! The log of answered changes that the volume's log does not hold yet.
//!
//! The log lies where it outlives the process, so a server that is killed loses no answered write,
//! flushed or not. When the machine fails, unflushed writes are lost, as NBD and NVMe allow.
//!
//! ```text
//!   0       header: the owner, the records that the log has, how often a half was begun
//!   2,048   the number of the log block that is written next
//!   4,096   one half: changes in the order in which they were made
//!   ...     the other half
//! ```
//!
//! A change is noted before it is answered. When all of the batch is being written to the log,
//! later changes go to the other half; the log has the changes of that half by then. A change is
//! left over if no log block that an opening finds has it. A file that is older than the log, or of
//! another run of the machine, is ignored.
//!
//! When the process is killed, the kernel has written a page completely or not at all, so the
//! header is consistent. A change has a checksum that no earlier change at its place had. The
//! changes of a half end at the first mismatch.

use super::checksum;
use super::format::{Identity, Record};
use super::page_cache_file::Lasting;
use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

const MAGIC: &[u8; 8] = b"EVKANSWR";
const VERSION: u32 = 1;
/// Bytes of the header before the table, and of one entry of it: the number of a log block, and
/// that of the last record in it.
const FIXED_BYTES: usize = 88;
const ENTRY_BYTES: usize = 16;
/// Maximum number of log blocks of one commit.
pub const TABLE_MAX: usize = 64;
const HEADER_BYTES: usize = FIXED_BYTES + TABLE_MAX * ENTRY_BYTES;
const NEXT: usize = 2_048;
const HALVES: usize = 4_096;
/// Bytes of a change before its records: checksum, length, place.
const HEAD_BYTES: usize = 16;
/// Bit of a change's place that marks it as the number of a log block.
const IN_LOG: u64 = 1 << 63;
/// Maximum size in bytes of a half that is read.
const HALF_MAX: u64 = 64 << 20;

/// Place of a change in the log, at present or later.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Place {
    /// In the batch: the number of the change's last record, counted from 1 since the volume was
    /// opened. Its records are consecutive there.
    Batch(u64),
    /// In the log block of this number.
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

/// End of the log that an opening has found, and the session of the opening.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Found {
    /// The number of the next block.
    pub sequence: u64,
    /// The session of the last block.
    pub session: u64,
    /// The session of the opening.
    pub opening: u64,
}

/// The header of a file.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Header {
    identity: Identity,
    session: u64,
    run: u128,
    /// Bytes of a half.
    half: u64,
    /// Number of times that a half was begun; odd while the second half is in use.
    fills: u64,
    /// Number of the record up to which the log has all records of the batch.
    floor: u64,
    /// The blocks of the last commit, each with the number of the last record in it.
    table: Vec<(u64, u64)>,
}

impl Header {
    fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut bytes = [0; HEADER_BYTES];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[12..16].copy_from_slice(&VERSION.to_le_bytes());
        bytes[16..20].copy_from_slice(&self.identity.node.to_le_bytes());
        bytes[20..24].copy_from_slice(&(self.table.len() as u32).to_le_bytes());
        bytes[24..40].copy_from_slice(&self.run.to_le_bytes());
        let numbers =
            [self.identity.generation, self.session, self.half, self.fills, self.floor, 0];
        let table = self.table.iter().flat_map(|&(sequence, last)| [sequence, last]);
        let places = bytes[40..].as_chunks_mut::<8>().0;
        for (place, number) in places.iter_mut().zip(numbers.into_iter().chain(table)) {
            *place = number.to_le_bytes();
        }
        let sum = checksum(&bytes[12..]);
        bytes[8..12].copy_from_slice(&sum.to_le_bytes());
        bytes
    }

    /// Decodes a header; `None` if the bytes are not a valid one.
    fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..HEADER_BYTES)?;
        let sum = u32::from_le_bytes(bytes[8..12].try_into().ok()?);
        if bytes[..8] != *MAGIC || checksum(&bytes[12..]) != sum {
            return None;
        }
        let number = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|byte| bytes[at + byte]));
        let count = (number(20) as usize).min(TABLE_MAX);
        let entry = |at: usize| (long(bytes, at), long(bytes, at + 8));
        let header = Self {
            identity: Identity { node: number(16), generation: long(bytes, 40) },
            run: u128::from_le_bytes(bytes[24..40].try_into().ok()?),
            session: long(bytes, 48),
            half: long(bytes, 56),
            fills: long(bytes, 64),
            floor: long(bytes, 72),
            table: (0..count).map(|index| entry(FIXED_BYTES + index * ENTRY_BYTES)).collect(),
        };
        (number(12) == VERSION && header.half <= HALF_MAX).then_some(header)
    }

    /// Returns the offset of the half with this fill number.
    fn place_of(&self, fill: u64) -> u64 {
        HALVES as u64 + fill % 2 * self.half
    }

    /// Returns a salt that distinguishes a change from earlier ones at its place.
    fn salt(&self, fill: u64, at: u64) -> u32 {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(&self.session.to_le_bytes());
        bytes[8..16].copy_from_slice(&fill.to_le_bytes());
        bytes[16..].copy_from_slice(&at.to_le_bytes());
        checksum(&bytes)
    }
}

/// See the module's text.
#[derive(Debug)]
pub struct Answered {
    lasting: Arc<dyn Lasting>,
    file: Notes,
    header: Header,
    /// The number of the last record in the table.
    logged: u64,
    /// The number of the log block that is written next.
    next: u64,
    /// Bytes of the present half that are in the file, and those that go there next.
    used: u64,
    pending: Vec<u8>,
    /// Number of changes that could not be noted.
    missed: u64,
}

/// Number of changes after which the file is tried again, if it could not be created.
const RETRY: u64 = 64;

#[derive(Debug)]
enum Notes {
    /// The file is created with the first change.
    Unneeded,
    There(File),
    /// The file could not be created. It is tried again when this number of changes is missed.
    Absent(u64),
    /// The file cannot be written, until the volume is opened again.
    Broken,
}

impl Answered {
    /// Opens the log of a volume, with `room` bytes for changes.
    ///
    /// # Errors
    /// When the file that an earlier process has left cannot be opened.
    pub fn new(lasting: Arc<dyn Lasting>, identity: Identity, room: usize) -> io::Result<Self> {
        let file = lasting.find(identity.node)?.map_or(Notes::Unneeded, Notes::There);
        // The run is named when the file is made.
        let run = 0;
        let half = room as u64 / 2;
        let session = 0;
        let fills = 0;
        let floor = 0;
        let table = Vec::new();
        let header = Header { identity, session, run, half, fills, floor, table };
        let logged = 0;
        let next = 0;
        let used = 0;
        let pending = Vec::new();
        let missed = 0;
        Ok(Self { lasting, file, header, logged, next, used, pending, missed })
    }

    /// Returns the changes that the volume's log lacks, in the order in which they were made.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn left(&self, found: Found) -> io::Result<Vec<Record>> {
        let Notes::There(file) = &self.file else { return Ok(Vec::new()) };
        let mut first = vec![0; HALVES];
        read(file, &mut first, 0)?;
        let Some(header) = Header::decode(&first) else { return Ok(Vec::new()) };
        let is_ours = (header.identity, header.run) == (self.header.identity, self.lasting.run()?);
        // False if another opening came between, which this file does not know; if the file is of a
        // later opening than the pool knows, and was put back; or if the log has grown without the
        // file.
        let is_of_the_log = (found.session..found.opening).contains(&header.session)
            && found.sequence <= long(&first, NEXT);
        if !is_ours || !is_of_the_log {
            return Ok(Vec::new());
        }
        let in_log = header.table.iter().filter(|(sequence, _)| *sequence < found.sequence);
        let logged = in_log.map(|(_, last)| *last).fold(header.floor, u64::max);
        let is_left = |place: &Place| match *place {
            Place::Batch(number) => number > logged,
            Place::Log(block) => block >= found.sequence,
        };
        let mut left = Vec::new();
        for fill in header.fills.saturating_sub(1)..=header.fills {
            let mut half = vec![0; header.half as usize];
            read(file, &mut half, header.place_of(fill))?;
            let changes = changes(&header, fill, &half).filter(|(place, _)| is_left(place));
            left.extend(changes.flat_map(|(_, records)| records));
        }
        Ok(left)
    }

    /// Begins to note changes of this session. `next` is the number of the next log block. The
    /// file's older changes are not needed any more.
    pub fn start(&mut self, session: u64, next: u64) {
        (self.header.session, self.next) = (session, next);
        if matches!(self.file, Notes::There(_)) {
            // Created anew, as the one of the earlier process may have less room.
            self.file = Notes::Unneeded;
            self.prepare();
        }
    }

    /// Writes the header and the number of the next log block.
    fn begin(&mut self) {
        let header = self.header.encode();
        let next = self.next;
        self.write(NEXT as u64, &next.to_le_bytes());
        self.write(0, &header);
    }

    /// Creates the file, if it is time for that. Changes that were missed before are answered when
    /// the log has them, so a file may begin with any change.
    fn prepare(&mut self) {
        let is_due = match self.file {
            Notes::Unneeded => true,
            Notes::Absent(missed) => self.missed >= missed,
            Notes::There(_) | Notes::Broken => false,
        };
        if !is_due {
            return;
        }
        let node = self.header.identity.node;
        let was_absent = matches!(self.file, Notes::Absent(_));
        let bytes = HALVES as u64 + 2 * self.header.half;
        let run = self.lasting.run();
        match run.and_then(|run| Ok((run, self.lasting.make(node, bytes)?))) {
            Ok((run, file)) => {
                self.header.run = run;
                self.file = Notes::There(file);
                self.begin();
                if was_absent {
                    tracing::info!(node, "answered writes of a volume are recorded again");
                }
            }
            Err(error) => {
                self.file = Notes::Absent(self.missed + RETRY);
                if !was_absent {
                    tracing::warn!(
                        %error, node,
                        "answered writes of a volume cannot be recorded in the data folder: each \
                         is answered only when its device has it"
                    );
                }
            }
        }
    }

    /// Notes a change before it is answered: completely, or not at all if there is no room. It is
    /// in the file after [`Self::settle`].
    pub fn note(&mut self, place: Place, records: &[Record]) {
        self.prepare();
        if !matches!(self.file, Notes::There(_)) {
            self.missed += 1;
            return;
        }
        let length: usize = records.iter().map(Record::bytes).sum();
        let start_in_half = self.used + self.pending.len() as u64;
        if start_in_half + (HEAD_BYTES + length) as u64 > self.header.half {
            self.missed += 1;
            return;
        }
        let start = self.pending.len();
        self.pending.extend([0; 4]);
        self.pending.extend((length as u32).to_le_bytes());
        self.pending.extend(place.to_bits().to_le_bytes());
        records.iter().for_each(|record| record.encode(&mut self.pending));
        let sum = checksum(&self.pending[start + 4..])
            ^ self.header.salt(self.header.fills, start_in_half);
        self.pending[start..start + 4].copy_from_slice(&sum.to_le_bytes());
    }

    /// Writes all noted changes to the file.
    pub fn settle(&mut self) {
        if self.pending.is_empty() {
            return;
        }
        let pending = std::mem::take(&mut self.pending);
        self.write(self.header.place_of(self.header.fills) + self.used, &pending);
        self.used += pending.len() as u64;
        self.pending = pending;
        self.pending.clear();
    }

    /// Returns the number of changes that could not be noted. Each must be durable before it is
    /// answered.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed
    }

    /// Notes that the log block before number `next` is about to be written.
    pub fn logging(&mut self, next: u64) {
        self.next = next;
        self.write(NEXT as u64, &next.to_le_bytes());
    }

    /// Notes that records of the batch are about to be written to the log: the number of each
    /// block, and that of the last record in it. The blocks of the previous call are on the device.
    /// If these are `all` records of the batch, later changes go to the other half, whose changes
    /// are on the device.
    pub fn sealed(&mut self, blocks: &[(u64, u64)], all: bool) {
        self.header.floor = self.logged;
        self.header.table.clear();
        self.header.table.extend(blocks.iter().take(TABLE_MAX));
        self.logged = blocks.last().map_or(self.logged, |(_, last)| *last);
        if all { self.turn() } else { self.write(0, &self.header.encode()) }
    }

    /// Begins the other half. All noted changes are in the log or being written to it; those of the
    /// other half are on the device.
    pub fn turn(&mut self) {
        self.settle();
        (self.header.fills, self.used) = (self.header.fills + 1, 0);
        self.write(0, &self.header.encode());
    }

    /// Returns whether most of the present half is in use.
    #[must_use]
    pub fn is_filling(&self) -> bool {
        2 * (self.used + self.pending.len() as u64) > self.header.half
    }

    /// Removes the file: all changes are durable in the log.
    pub fn end(self) {
        if !matches!(self.file, Notes::Unneeded) {
            self.lasting.forget(self.header.identity.node);
        }
    }

    fn write(&mut self, at: u64, bytes: &[u8]) {
        let Notes::There(file) = &self.file else { return };
        if let Err(error) = file.write_all_at(bytes, at) {
            self.give_up(&error);
        }
    }

    /// Stops noting. Changes noted so far stay valid until the log grows.
    fn give_up(&mut self, error: &io::Error) {
        let node = self.header.identity.node;
        tracing::warn!(
            %error, node,
            "answered writes of a volume cannot be recorded in the data folder: until the volume \
             is opened again, each is answered only when its device has it"
        );
        self.file = Notes::Broken;
    }
}

/// Returns the changes of a half.
fn changes<'a>(
    header: &'a Header,
    fill: u64,
    half: &'a [u8],
) -> impl Iterator<Item = (Place, Vec<Record>)> + 'a {
    let mut start = 0;
    std::iter::from_fn(move || {
        let (length, change) = change(header, fill, half, start..half.len())?;
        start += length;
        Some(change)
    })
}

/// Returns the change at the beginning of this part of a half, and its length.
fn change(
    header: &Header,
    fill: u64,
    half: &[u8],
    range: Range<usize>,
) -> Option<(usize, (Place, Vec<Record>))> {
    let start = range.start as u64;
    let bytes = half.get(range)?;
    let length = u32::from_le_bytes(bytes.get(4..8)?.try_into().ok()?) as usize;
    let change = bytes.get(..HEAD_BYTES.checked_add(length)?)?;
    let sum = u32::from_le_bytes(change[..4].try_into().ok()?);
    if sum != checksum(&change[4..]) ^ header.salt(fill, start) {
        return None;
    }
    let records = Record::decode_all(&change[HEAD_BYTES..]).ok()?;
    Some((change.len(), (Place::from_bits(long(change, 8)), records)))
}

/// Fills `bytes` from `at`. Bytes behind the end of the file are zero.
fn read(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], at + done as u64) {
            Ok(0) => return Ok(()),
            Ok(count) => done += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn long(bytes: &[u8], at: usize) -> u64 {
    let mut number = [0; 8];
    number.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(number)
}
