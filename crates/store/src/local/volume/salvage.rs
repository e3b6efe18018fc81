//! Salvage: a volume is opened with what can be read of its log and its map. Calls block.
//!
//! A damaged log block hides the changes that were in it. The log blocks behind it are still read:
//! the last one that names a block of the volume determines its contents. A block of the volume
//! that only a damaged log block named keeps its old data.
//!
//! That is wrong where the lost change gave up the place of the old data, and a later change has
//! taken it. The place then belongs to the later change. The block of the volume that had it
//! before has lost its data: it gets a place of its own, with a checksum that does not fit. Reading
//! it is an error until it is written.

use super::recover::{LogBlock, Opening, Tail, is_placed, offset};
use super::request::Refused;
use super::{Next, Volume, Wanted, Which};
use crate::local::device::{Device, read_readable};
use crate::local::format::{Anchor, Identity, LOG_HEADER_BYTES, LogHead, Record};
use crate::local::space::{Lacking, Run};
use crate::local::tree::{FANOUT, Missing, Page, Visit, page_from};
use crate::local::{BLOCK_BYTES, CHUNK_BLOCKS, Pointer, checksum};
use crate::{Salvaged, StoreError};
use evenkeel_core::units::ByteCount;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

impl Volume {
    /// Opens a volume with the readable parts of its log and its map, and writes a checkpoint of
    /// them. Snapshots that were begun are not made.
    ///
    /// # Errors
    /// [`StoreError::Rotten`] if both copies of its anchor are damaged; [`StoreError::Io`] if a
    /// page of its space tree is, there is no room, or the device fails. The volume is unchanged
    /// then.
    pub fn salvage(opening: Opening) -> Result<(Self, Salvaged), StoreError> {
        let doing = ["read the log", "read data", "read the space tree", "change the map"];
        let [read_log, read_data, read_space, change_map] = doing.map(|what| opening.failed(what));
        let note = opening.failed("note the snapshots");
        let checkpoint = opening.failed("write a checkpoint");
        let found = opening.read_anchor()?;
        let anchor = &found.anchor;
        let device = Arc::clone(&opening.device);
        let mut log =
            ReadableLog::read(device.as_ref(), anchor, &opening.owned).map_err(read_log)?;
        log.blocks.extend(opening.answered_behind(&log.tail)?);
        let changes = Changes::of(device.as_ref(), &log, opening.size).map_err(read_data)?;
        let session = opening.session;
        let (mut volume, answered) = Self::begin(opening, &found);
        volume.note_anchored(anchor).map_err(note)?;
        volume.fit_space().map_err(&read_space)?;
        volume.hold_log(&log.tail, anchor.log).map_err(&read_space)?;
        let mut salvaged = Salvaged { log_blocks: log.lost, ..Salvaged::default() };
        let lost = volume.conflicting(&changes, &mut salvaged.map_pages);
        volume.apply(&changes, &mut salvaged).map_err(&change_map)?;
        let retired = volume.end_replay(&log.tail, session).map_err(&read_space)?;
        volume.batch.retired = retired;
        volume.lose(&changes, &lost, &mut salvaged).map_err(&change_map)?;
        volume.leave_last_block();
        volume.checkpoint_now().map_err(checkpoint)?;
        volume.note_from_now_on(answered);
        Ok((volume, salvaged))
    }

    /// Returns blocks of the volume that the changes do not name, but whose places they have.
    /// Counts the pages of the map that cannot be read.
    fn conflicting(&self, changes: &Changes, lost_pages: &mut u64) -> Vec<u64> {
        let device = Arc::clone(&self.device);
        let mut read = |missing: Missing| {
            let page = read_page(device.as_ref(), missing.pointer);
            *lost_pages += u64::from(page.is_none());
            // The pages below it are unknown.
            Ok::<_, std::convert::Infallible>(
                page.unwrap_or_else(|| Arc::new([0; FANOUT as usize])),
            )
        };
        let mut lost = Vec::new();
        let mut visit = |visit: Visit<'_>| {
            if let Visit::Leaf { leaf, page } = visit {
                let blocks = (leaf * FANOUT..).zip(page.iter().copied().map(Pointer::from_bits));
                let of_others = blocks.filter(|(at, pointer)| {
                    !changes.places.contains_key(at) && changes.have(pointer.block)
                });
                lost.extend(of_others.map(|(at, _)| at));
            }
        };
        match self.map.walk(&mut read, &mut visit) {
            Ok(()) => lost,
            Err(never) => match never {},
        }
    }

    /// Applies the changes of the log to the map.
    fn apply(&mut self, changes: &Changes, salvaged: &mut Salvaged) -> io::Result<()> {
        for (&at, place) in &changes.places {
            if let Place::Is(pointer) = *place {
                let is_known = self.place(at, pointer, changes)?;
                salvaged.unreachable_blocks += u64::from(!is_known);
            }
        }
        Ok(())
    }

    /// Gives each block that has lost its data a place whose checksum does not match.
    fn lose(
        &mut self,
        changes: &Changes,
        conflicting: &[u64],
        salvaged: &mut Salvaged,
    ) -> io::Result<()> {
        let places = changes.places.iter();
        let of_log = places.filter(|(_, place)| **place == Place::Lost).map(|(at, _)| *at);
        for at in of_log.chain(conflicting.iter().copied()) {
            let block = self.take_block()?;
            let zeroes = [0; BLOCK_BYTES];
            self.device.write(offset(block), &zeroes)?;
            let unfit = Pointer { block, checksum: !checksum(&zeroes) };
            salvaged.lost_blocks += u64::from(self.place(at, unfit, changes)?);
        }
        Ok(())
    }

    /// Takes a free block.
    fn take_block(&mut self) -> io::Result<u32> {
        let mut has_asked = false;
        loop {
            let floor = self.floor();
            match self.space.take(1, floor, self.may_grow()) {
                Ok(run) => return Ok(run.block),
                Err(Lacking::Leaf(page)) => self.fetch(Wanted { which: Which::Space, page })?,
                Err(Lacking::Chunk) if !has_asked => {
                    has_asked = true;
                    self.ask_now();
                }
                Err(Lacking::Chunk) => return Err(io::ErrorKind::StorageFull.into()),
            }
        }
    }

    /// Sets the place of a block of the volume. Returns whether that was possible: the page of the
    /// map must be readable. Frees its old place, unless a change has it.
    fn place(&mut self, at: u64, pointer: Pointer, changes: &Changes) -> io::Result<bool> {
        loop {
            match self.pointer(at) {
                Ok(before) if before == pointer => return Ok(true),
                Ok(_) => break,
                Err(page) => {
                    if self.fetch(Wanted { which: Which::Map, page }).is_err() {
                        return Ok(false);
                    }
                }
            }
        }
        self.repeat(|volume| {
            let replaced = volume.prepare(at, 1, pointer.block != 0)?;
            let missing = |page| Refused::Next(Next::Wait(Wanted { which: Which::Space, page }));
            if pointer.block != 0 {
                let run = Run { block: pointer.block, count: 1 };
                volume.space.commit(run).map_err(missing)?;
            }
            volume.set_pointer(at, pointer)?;
            let unused: Vec<Run> =
                replaced.into_iter().filter(|run| !changes.have(run.block)).collect();
            let retired = volume.retire(&unused)?;
            volume.batch.retired.extend(retired);
            Ok(())
        })?;
        Ok(true)
    }
}

/// Reads a page; `None` if it is damaged.
fn read_page(device: &dyn Device, pointer: Pointer) -> Option<Arc<Page>> {
    let mut bytes = vec![0; BLOCK_BYTES];
    device.read(offset(pointer.block), &mut bytes).ok()?;
    (checksum(&bytes) == pointer.checksum).then(|| page_from(&bytes))
}

/// The log as far as it can be read.
struct ReadableLog {
    blocks: Vec<LogBlock>,
    tail: Tail,
    /// Number of log blocks before the last of these that cannot be read.
    lost: u64,
}

impl ReadableLog {
    fn read(device: &dyn Device, anchor: &Anchor, owned: &[u32]) -> io::Result<Self> {
        let mut log = Self { blocks: Vec::new(), tail: Tail::of(anchor), lost: 0 };
        while let Some((at, block)) = log.next(device, anchor.identity, owned)? {
            let chunks = [at / CHUNK_BLOCKS, block.head.next / CHUNK_BLOCKS];
            // An impossible chunk is damage.
            if !chunks.iter().all(|chunk| owned.contains(chunk)) {
                log.lost += 1;
                break;
            }
            for chunk in chunks {
                if log.tail.chunks.back() != Some(&chunk) {
                    log.tail.chunks.push_back(chunk);
                }
            }
            log.lost += block.head.sequence - log.tail.sequence;
            log.tail.sequence = block.head.sequence;
            log.tail.follow(&block.head);
            log.blocks.push(block);
        }
        Ok(log)
    }

    /// Returns the next block that can be read, and its place.
    fn next(
        &self,
        device: &dyn Device,
        identity: Identity,
        owned: &[u32],
    ) -> io::Result<Option<(u32, LogBlock)>> {
        let tail = &self.tail;
        if let Some(block) = log_block_at(device, tail.next, identity)?
            && block.head.sequence == tail.sequence
            && block.head.session >= tail.session
        {
            return Ok(Some((tail.next, block)));
        }
        let end = (tail.next / CHUNK_BLOCKS + 1) * CHUNK_BLOCKS;
        let places =
            (tail.next + 1..end).chain(tail.chunks_behind(owned).map(|chunk| chunk * CHUNK_BLOCKS));
        let mut behind = Vec::new();
        for at in places {
            behind.extend(log_block_at(device, at, identity)?.map(|block| (at, block)));
        }
        // Without a block that confirms the missing one, the log ends before that.
        let proof = behind.iter().find(|(_, block)| tail.is_confirmed_by(&block.head));
        let Some((proof_at, last)) = proof.map(|(at, block)| (*at, block.head.session)) else {
            return Ok(None);
        };
        // A block between the two was written before the block that confirms.
        let is_next = |(at, block): &(u32, LogBlock)| {
            let ahead = block.head.sequence.checked_sub(tail.sequence);
            let is_in_order = *at < end && ahead == Some(u64::from(at - tail.next));
            (tail.session..=last).contains(&block.head.session) && (is_in_order || *at == proof_at)
        };
        Ok(behind.into_iter().find(is_next))
    }
}

fn log_block_at(device: &dyn Device, at: u32, identity: Identity) -> io::Result<Option<LogBlock>> {
    let mut bytes = vec![0; BLOCK_BYTES];
    read_readable(device, offset(at), &mut bytes)?;
    let Some(head) = LogHead::decode(&bytes, identity) else { return Ok(None) };
    let records = Record::decode_all(&bytes[LOG_HEADER_BYTES..][..head.used as usize]);
    Ok(records.ok().map(|records| LogBlock { head, records }))
}

/// Place of a block of the volume, according to the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Place {
    /// At this pointer; block 0 is a hole.
    Is(Pointer),
    /// Its place belongs to a later change, and its new place is not known.
    Lost,
}

/// The net changes of a log.
struct Changes {
    places: BTreeMap<u64, Place>,
    /// Blocks of the pool that the changes use, with their blocks of the volume.
    owners: BTreeMap<u32, u64>,
    /// Chunks of the log.
    log_chunks: Vec<u32>,
}

impl Changes {
    fn of(device: &dyn Device, log: &ReadableLog, size: ByteCount) -> io::Result<Self> {
        let log_chunks = log.tail.chunks.iter().copied().collect();
        let places = BTreeMap::new();
        let owners = BTreeMap::new();
        let mut changes = Self { places, owners, log_chunks };
        for block in &log.blocks {
            let is_durable = block.head.sequence <= log.tail.durable;
            for record in block.records.iter().filter(|record| is_placed(record, size)) {
                changes.add(device, record, is_durable)?;
            }
        }
        // The log entered a chunk that was free as a whole, so this data had been replaced.
        let log_chunks = &changes.log_chunks;
        for place in changes.places.values_mut() {
            if let Place::Is(pointer) = place
                && log_chunks.contains(&(pointer.block / CHUNK_BLOCKS))
            {
                *place = Place::Lost;
            }
        }
        Ok(changes)
    }

    /// Adds a record. If it may not be durable, only the blocks whose data matches are added.
    fn add(&mut self, device: &dyn Device, record: &Record, is_durable: bool) -> io::Result<()> {
        match record {
            Record::Snapshot { .. } => {}
            Record::Unmap { first, count } => {
                for at in *first..first + u64::from(*count) {
                    self.set(at, Pointer::default());
                }
            }
            Record::Map { first, block, checksums } => {
                let mut data = vec![0; checksums.len() * BLOCK_BYTES];
                if !is_durable {
                    read_readable(device, offset(*block), &mut data)?;
                }
                let blocks = (*block..).zip(checksums).zip(data.chunks(BLOCK_BYTES));
                for (at, ((block, &sum), data)) in (*first..).zip(blocks) {
                    if is_durable || checksum(data) == sum {
                        self.set(at, Pointer { block, checksum: sum });
                    }
                }
            }
        }
        Ok(())
    }

    fn set(&mut self, at: u64, pointer: Pointer) {
        if let Some(Place::Is(before)) = self.places.insert(at, Place::Is(pointer))
            && self.owners.get(&before.block) == Some(&at)
        {
            self.owners.remove(&before.block);
        }
        if pointer.block == 0 {
            return;
        }
        if let Some(other) = self.owners.insert(pointer.block, at)
            && other != at
        {
            self.places.insert(other, Place::Lost);
        }
    }

    /// Returns whether a change or the log uses a block of the pool.
    fn have(&self, block: u32) -> bool {
        block != 0
            && (self.owners.contains_key(&block)
                || self.log_chunks.contains(&(block / CHUNK_BLOCKS)))
    }
}
