//! How changes become durable: a batch of records is written to the log, the device is flushed, and
//! the requests that waited for it are answered. One commit is under way at a time; changes that
//! arrive meanwhile share the next one.

use super::reclaim::Reclaim;
use super::recover::chunk_run;
use super::{Closing, Purpose, Volume};
use crate::buffer::Buffer;
use crate::disk::Disk;
use crate::local::ack_log::{Answered, Place, TABLE_MAX};
use crate::local::format::{LOG_HEADER_BYTES, LOG_RECORDS_BYTES, LogHead, Record};
use crate::local::space::{Lacking, Run, Runs};
use crate::local::{BLOCK_BYTES, CHUNK_BLOCKS};
use evenkeel_core::request::Failure;
use std::collections::VecDeque;

/// Maximum number of log blocks of one commit. The rest of the batch goes with the next one.
const COMMIT_BLOCKS_MAX: usize = TABLE_MAX;

/// Size of a batch, in bytes, that always fits one commit: no log block stays half empty.
pub(super) const COMMIT_BYTES: usize = COMMIT_BLOCKS_MAX / 2 * LOG_RECORDS_BYTES;

/// Blocks left in its chunk at which the log needs a spare chunk. A commit must fit, and the last
/// but one block of the chunk must name the chunk that follows. If the last block is damaged, an
/// opening finds there that it was written.
const LEFT_MIN: u32 = COMMIT_BLOCKS_MAX as u32 + 1;

/// Maximum number of log blocks that the records of new snapshots take.
const NAMES_BLOCKS: usize = 2;

/// Returns the maximum number of log blocks that records of this many bytes take. A record may
/// leave half a block empty.
fn blocks_for(bytes: usize) -> usize {
    2 * bytes / LOG_RECORDS_BYTES + 2
}

/// Changes that are in memory only.
#[derive(Debug, Default)]
pub(in crate::local) struct Batch {
    records: VecDeque<Record>,
    bytes: usize,
    /// Blocks that the records map; they have replaced as many at most.
    mapped: usize,
    /// Records that were written to the log since the volume was opened.
    taken: u64,
    /// Blocks that the changes have replaced; they are free when the changes are durable.
    pub retired: Vec<Run>,
    /// Blocks that the changes have made holes.
    pub cleared: u64,
}

/// Number of cleared blocks at which the batch is committed without a flush request: other volumes
/// may need their space.
const CLEARED_MAX: u64 = 1_024;

/// Number of written blocks at which the batch is committed without a flush request: 16 MiB. A
/// client that overwrites much in order then finds the chunks free whose data it has replaced.
const MAPPED_MAX: usize = 4_096;

/// Returns the number of blocks that a record maps.
fn mapped(record: &Record) -> usize {
    if let Record::Map { checksums, .. } = record { checksums.len() } else { 0 }
}

impl Batch {
    pub fn push(&mut self, record: Record) {
        self.bytes += record.bytes();
        self.mapped += mapped(&record);
        self.records.push_back(record);
    }

    /// The number of the record that was added last, counted from 1.
    fn last(&self) -> u64 {
        self.taken + self.records.len() as u64
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the records that fit the next log block.
    fn take_block(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(record) = self.records.front() {
            if bytes.len() + record.bytes() > LOG_RECORDS_BYTES {
                break;
            }
            self.bytes -= record.bytes();
            self.mapped -= mapped(record);
            record.encode(&mut bytes);
            self.records.pop_front();
            self.taken += 1;
        }
        bytes
    }
}

/// The volume's log: its end, and the chunks that it uses.
#[derive(Debug)]
pub(in crate::local) struct Log {
    /// The block that is written next.
    pub next: u32,
    /// Its sequence number.
    pub sequence: u64,
    /// Log blocks up to this sequence number are durable.
    pub durable: u64,
    /// Chunks that are reserved for the log behind the present one, so that it does not lack room.
    pub spares: VecDeque<u32>,
    /// Chunks that the log has used since the last checkpoint; the present one is the last.
    pub chunks: VecDeque<u32>,
    /// Blocks written since the last checkpoint.
    pub blocks: u32,
    /// Whether the last block states that all blocks before it are durable.
    pub is_confirmed: bool,
}

impl Log {
    pub fn new(next: u32, sequence: u64) -> Self {
        let chunks = VecDeque::from([next / CHUNK_BLOCKS]);
        let durable = sequence - 1;
        let spares = VecDeque::new();
        Self { next, sequence, durable, spares, chunks, blocks: 0, is_confirmed: false }
    }

    /// Returns the number of blocks that are left in the present chunk.
    pub fn left(&self) -> u32 {
        CHUNK_BLOCKS - self.next % CHUNK_BLOCKS
    }

    /// Returns whether a commit fits, and the next chunk is known where a block must name it.
    pub fn has_room(&self) -> bool {
        !self.spares.is_empty() || self.left() > LEFT_MIN
    }

    /// Takes the next block and moves the end of the log behind it. Returns the block, and the
    /// chunk that the log has entered, if it entered one.
    fn advance(&mut self) -> (u32, Option<u32>) {
        let block = self.next;
        self.sequence += 1;
        self.blocks += 1;
        self.is_confirmed = false;
        if self.left() > 1 {
            self.next = block + 1;
            return (block, None);
        }
        let Some(chunk) = self.spares.pop_front() else {
            unreachable!("the log has reached the end of its last chunk");
        };
        self.enter(chunk);
        (block, Some(chunk))
    }

    /// Continues the log at the beginning of this chunk.
    pub fn enter(&mut self, chunk: u32) {
        self.chunks.push_back(chunk);
        self.next = chunk * CHUNK_BLOCKS;
    }
}

/// State of the commits of a volume.
///
/// Log blocks are written to an *open* commit until a request asks for a flush; then they are
/// flushed together.
#[derive(Debug, Default)]
pub(in crate::local) struct Commit {
    /// Log blocks were written since the last flush was begun.
    is_open: bool,
    /// Writes of log blocks that are under way.
    log_ops: usize,
    /// Requests whose records are in the log, but not in the map yet.
    unapplied: usize,
    /// Ranges of blocks that were changed in the map while `unapplied` was not 0.
    applied: Vec<(u64, u64)>,
    /// Whether the open commit is flushed as soon as its log blocks are written.
    wants_flush: bool,
    /// Requests that wait for that flush, and the blocks that it makes free.
    waiters: Vec<usize>,
    retired: Vec<Run>,
    /// State of the flush that is under way: the requests that wait for it, the blocks that it
    /// makes free, and the last log block before it.
    is_flushing: bool,
    flushing_waiters: Vec<usize>,
    flushing_retired: Vec<Run>,
    flushing_sequence: u64,
    /// Requests that wait for the batch to be written to the log.
    next_waiters: Vec<usize>,
    has_failed: bool,
    /// The log had no room for the batch: the next request that waits asks the pool again.
    was_refused: bool,
    /// The batch is to be written as soon as the log has room.
    is_wanted: bool,
    /// The batch is to be written before the next flush.
    must_seal: bool,
    /// Writes since the last flush request, and between the last two flush requests.
    writes_since_flush: u32,
    writes_between: u32,
}

/// Maximum number of writes between two flushes at which the next flush is expected as soon.
const EAGER_WRITES: u32 = 4;

/// Chunks that are reserved for the log while it is in the home chunk.
pub(super) const SPARES: usize = 2;

impl Commit {
    pub fn new() -> Self {
        Self { writes_between: u32::MAX, ..Self::default() }
    }

    /// Returns whether log blocks have been written that no flush includes yet.
    pub fn is_open(&self) -> bool {
        self.is_open
    }

    /// Whether the batch waits for room in the log.
    pub fn is_wanted(&self) -> bool {
        self.is_wanted
    }

    pub fn is_under_way(&self) -> bool {
        self.is_flushing || self.wants_flush || self.log_ops > 0 || self.unapplied > 0
    }

    pub fn take_waiters(&mut self) -> Vec<usize> {
        let mut waiters = std::mem::take(&mut self.waiters);
        waiters.append(&mut self.flushing_waiters);
        waiters.append(&mut self.next_waiters);
        waiters
    }

    /// Records that blocks were changed in the map. Changes of the same blocks by writes that are
    /// already in the log may reach the map in another order.
    pub fn note_applied(&mut self, first: u64, count: u64) {
        if self.unapplied > 0 {
            self.applied.push((first, first + count));
        }
    }

    /// Returns whether any of these blocks was changed in the map after it was logged.
    pub fn was_overtaken(&self, first: u64, count: u64) -> bool {
        self.applied.iter().any(|&(from, to)| from < first + count && first < to)
    }

    /// Records that the log names data that was not written. The correction is written before the
    /// next flush.
    pub fn note_correction(&mut self, first: u64, count: u64) {
        self.must_seal = true;
        self.note_applied(first, count);
        self.unapplied -= 1;
        if self.unapplied == 0 {
            self.applied.clear();
        }
    }

    /// Returns whether the log must be corrected before the next flush.
    pub fn must_seal(&self) -> bool {
        self.must_seal
    }

    /// Counts a flush request.
    pub fn note_flush(&mut self) {
        self.writes_between = std::mem::take(&mut self.writes_since_flush);
    }

    /// Counts a write. Returns whether a flush is expected soon.
    pub fn note_write(&mut self) -> bool {
        self.writes_since_flush = self.writes_since_flush.saturating_add(1);
        self.writes_between <= EAGER_WRITES && self.writes_since_flush <= EAGER_WRITES
    }
}

impl Volume {
    /// Answers a request when everything that is applied by now is durable.
    pub(super) fn wait_for_commit(&mut self, request: usize, disk: &mut dyn Disk) {
        if self.has_failed {
            // The volume failed while this request was applied, and nothing else ends the request.
            self.end(request, Err(Failure::Io));
        } else if !self.batch.is_empty() {
            self.commit.next_waiters.push(request);
            if std::mem::take(&mut self.commit.was_refused) {
                self.is_full = false;
            }
            self.advance_commit(disk);
        } else if self.commit.is_open {
            self.commit.waiters.push(request);
            self.commit.wants_flush = true;
            self.flush_log(disk);
        } else if self.commit.is_flushing {
            // The flush under way includes all changes.
            self.commit.flushing_waiters.push(request);
        } else {
            self.end(request, Ok(()));
        }
    }

    /// Writes the records of a write to the log beside its data, if a flush is expected soon and
    /// the log has room. Only the flush is left to wait for then. Returns the sequence number of
    /// the log block.
    pub(super) fn log_beside(&mut self, records: &[Record], disk: &mut dyn Disk) -> Option<u64> {
        let bytes: usize = records.iter().map(Record::bytes).sum();
        let fits = bytes <= LOG_RECORDS_BYTES && self.log.has_room();
        let may = fits
            && self.batch.is_empty()
            && !self.commit.wants_flush
            && !self.checkpoint.is_preparing()
            && !self.has_failed;
        if !may {
            return None;
        }
        let mut encoded = Vec::new();
        records.iter().for_each(|record| record.encode(&mut encoded));
        let sequence = self.log.sequence;
        let block = self.next_log_block(&encoded);
        self.write_log(vec![block], disk);
        self.commit.unapplied += 1;
        Some(sequence)
    }

    /// Adds a change to the batch, and notes it in the log of answered changes, in case the process
    /// is killed before the volume's log has it.
    pub(super) fn add_to_batch(&mut self, records: Vec<Record>) {
        if let Some(answered) = &mut self.answered {
            answered.note(Place::Batch(self.batch.last() + records.len() as u64), &records);
        }
        records.into_iter().for_each(|record| self.batch.push(record));
    }

    /// Returns the number of changes that could not be noted since the volume was opened. A request
    /// that made one is answered when the change is durable.
    pub(super) fn unnoted(&self) -> u64 {
        self.answered.as_ref().map_or(0, Answered::missed)
    }

    /// Handles a write whose records are in the log and which is in the map now. The blocks that it
    /// replaced are free when it is durable.
    pub(super) fn applied_beside(&mut self, replaced: Runs, disk: &mut dyn Disk) {
        self.commit.retired.extend(replaced);
        self.commit.unapplied -= 1;
        if self.commit.unapplied == 0 {
            self.commit.applied.clear();
        }
        self.flush_log(disk);
        if !self.commit.is_under_way() {
            self.advance_checkpoint(disk);
            self.advance_commit(disk);
        }
    }

    /// Begins the flush of the open commit if it is wanted and all of its log blocks are written.
    fn flush_log(&mut self, disk: &mut dyn Disk) {
        let Commit { is_flushing, wants_flush, log_ops, unapplied, .. } = self.commit;
        if is_flushing || !wants_flush || log_ops > 0 || unapplied > 0 {
            return;
        }
        if self.commit.has_failed || self.has_failed {
            return self.fail();
        }
        if self.commit.must_seal {
            if self.has_log_room(disk) {
                self.seal(disk);
            }
            return;
        }
        if let Some(answered) = &mut self.answered
            && self.batch.is_empty()
            && answered.is_filling()
        {
            // All that was noted is on the device.
            answered.turn();
        }
        let commit = &mut self.commit;
        (commit.is_open, commit.wants_flush, commit.is_flushing) = (false, false, true);
        commit.flushing_sequence = self.log.sequence - 1;
        commit.flushing_waiters = std::mem::take(&mut commit.waiters);
        commit.flushing_retired = std::mem::take(&mut commit.retired);
        self.sync_op(Purpose::CommitSync, disk);
    }

    fn write_log(&mut self, blocks: Vec<(u32, Vec<u8>)>, disk: &mut dyn Disk) {
        self.commit.is_open = true;
        self.log_goes_on();
        for run in blocks.chunk_by(|a, b| a.0 + 1 == b.0) {
            let (block, bytes) = joined(run);
            let mut buffer = Buffer::new(bytes.len());
            buffer.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
            self.commit.log_ops += 1;
            let run = Run { block, count: (bytes.len() / BLOCK_BYTES) as u32 };
            self.write_op(Purpose::Log, run, buffer, disk);
        }
        // Requested early, since all requests wait while the log lacks a chunk.
        if self.keep_spares() == Err(Lacking::Chunk) && !self.is_full {
            self.ask_for_chunks(disk);
        }
    }

    /// Notes the new end of the log in the file of answered changes, before the log block is
    /// written.
    fn log_goes_on(&mut self) {
        if let Some(answered) = &mut self.answered {
            answered.logging(self.log.sequence);
        }
    }

    /// Reserves enough chunks for the log to continue until a checkpoint frees those that it has
    /// left. The home chunk, where the log begins, does not become free as a whole.
    pub(super) fn keep_spares(&mut self) -> Result<(), Lacking> {
        let is_at_home = self.log.next / CHUNK_BLOCKS == self.home;
        let wanted = if is_at_home { SPARES } else { SPARES - 1 };
        self.space.keep_whole(wanted.saturating_sub(self.log.spares.len()));
        while self.log.spares.len() < wanted {
            // A checkpoint's blocks are not taken: it frees a chunk of the log.
            let floor = self.floor();
            while self.space.known_free() < floor + u64::from(CHUNK_BLOCKS) {
                self.space.know_more()?;
            }
            let chunk = self.space.take_chunk()?;
            self.log.spares.push_back(chunk);
            self.space.keep_whole(wanted - self.log.spares.len());
        }
        Ok(())
    }

    /// Releases a chunk that is kept or reserved for the log, for a checkpoint that has no other
    /// blocks. Returns whether there was one. The complete checkpoint frees another chunk of the
    /// log.
    pub(super) fn lend_spare(&mut self) -> bool {
        if self.space.give_up_whole() {
            return true;
        }
        let Some(chunk) = self.log.spares.pop_back() else { return false };
        self.space.release(chunk_run(chunk));
        true
    }

    /// Extends the log by one block with these records. Returns its place and its bytes.
    pub(super) fn next_log_block(&mut self, records: &[u8]) -> (u32, Vec<u8>) {
        let sequence = self.log.sequence;
        let (at, entered) = self.log.advance();
        if let Some(chunk) = entered {
            self.commit_entered(chunk);
        }
        (at, self.log_block(sequence, records))
    }

    /// Marks all blocks of a chunk as used: the log, for which it was reserved, has entered it.
    pub(super) fn commit_entered(&mut self, chunk: u32) {
        let known = self.space.commit(chunk_run(chunk));
        debug_assert_eq!(known, Ok(()), "what was reserved is known");
    }

    /// Returns whether the batch is large enough to be committed without a flush request.
    fn is_large(&self) -> bool {
        self.batch.bytes() >= self.bounds.batch_bytes
            || self.batch.mapped >= MAPPED_MAX
            || self.batch.cleared >= CLEARED_MAX
    }

    /// Begins a commit if the batch is large. So a client that never flushes does not fill memory,
    /// nor the space that waits for a commit.
    pub(super) fn commit_if_large(&mut self, disk: &mut dyn Disk) {
        if self.is_large() && !self.commit.is_under_way() {
            self.advance_commit(disk);
        }
    }

    /// Begins a commit if one is due and none is under way, and a checkpoint likewise.
    pub(super) fn advance_commit(&mut self, disk: &mut dyn Disk) {
        let is_due =
            self.commit.is_wanted || !self.commit.next_waiters.is_empty() || self.is_large();
        if is_due {
            self.begin_commit(disk);
        }
        if self.commit.must_seal {
            self.flush_log(disk);
        }
        // If the log has no spare chunk, a checkpoint frees one.
        let is_short = self.log.spares.is_empty() && self.log.chunks.len() > 1;
        if self.log.blocks >= self.bounds.log_blocks
            || self.map.dirty_leaves() >= self.bounds.dirty_pages
            || is_short && self.is_full
            || !self.wanted_snapshots.is_empty()
            || self.space.has_surplus(self.batch_chunks())
            || self.reclaim.as_ref().is_some_and(Reclaim::wants_checkpoint)
        {
            self.begin_checkpoint(disk);
        }
    }

    /// Begins a commit of the batch, unless a flush is under way or waited for.
    pub(super) fn begin_commit(&mut self, disk: &mut dyn Disk) {
        if self.commit.is_flushing || self.commit.wants_flush || self.has_failed {
            return;
        }
        self.commit.is_wanted = true;
        if self.has_log_room(disk) {
            self.seal(disk);
        }
    }

    /// Commits everything that was changed.
    pub(super) fn commit_all(&mut self, disk: &mut dyn Disk) {
        if !self.batch.is_empty() {
            self.begin_commit(disk);
        } else if self.commit.is_open {
            self.commit.wants_flush = true;
            self.flush_log(disk);
        }
    }

    /// Returns whether all changes are durable.
    pub(super) fn is_durable(&self) -> bool {
        self.batch.is_empty() && !self.commit.is_open && !self.commit.is_under_way()
    }

    /// Reserves the chunk behind the log's present one if necessary, and returns whether the log
    /// has room for a commit. If it has not, the caller is run again when there may be room.
    pub(super) fn has_log_room(&mut self, disk: &mut dyn Disk) -> bool {
        let kept = self.keep_spares();
        if self.log.has_room() {
            return true;
        }
        match kept {
            Err(Lacking::Leaf(page)) => self.wait_for_space(page, disk),
            _ if !self.is_full => self.ask_for_chunks(disk),
            // The checkpoint under way frees some.
            _ if self.checkpoint.is_under_way() && !self.checkpoint.is_preparing() => {}
            // So does one that is about to begin: it writes the batch.
            _ if self.checkpoint.is_preparing()
                && !self.commit.wants_flush
                && self.fits_checkpoint() => {}
            // A new checkpoint writes the batch to the rest of the present chunk, and frees some.
            _ if !self.checkpoint.is_under_way() && self.fits_present_chunk() => {
                self.begin_checkpoint(disk);
                if !self.checkpoint.is_under_way() {
                    self.refuse_commit(disk);
                }
            }
            _ => self.refuse_commit(disk),
        }
        false
    }

    /// Fails the flushes that wait, since the log has no room for the changes. The changes stay in
    /// memory, and the next flush tries again.
    fn refuse_commit(&mut self, disk: &mut dyn Disk) {
        (self.commit.is_wanted, self.commit.wants_flush) = (false, false);
        self.commit.was_refused = true;
        let commit = &mut self.commit;
        let waiters = commit.waiters.drain(..).chain(commit.next_waiters.drain(..));
        for request in waiters.collect::<Vec<_>>() {
            self.end(request, Err(Failure::NoSpace));
        }
        if self.checkpoint.is_preparing() {
            self.put_off_checkpoint(disk);
        }
    }

    /// Returns whether the next checkpoint can write the whole batch.
    pub(super) fn fits_checkpoint(&self) -> bool {
        self.batch.bytes() <= COMMIT_BYTES && !self.must_turn_first()
    }

    /// Returns whether the log enters its next chunk before a checkpoint. The batch may not fit the
    /// present chunk. And no log begins with the last block of a chunk, since no block before it
    /// would name the chunk that follows.
    pub(super) fn must_turn_first(&self) -> bool {
        let is_last = self.log.left() == 1 && !self.log.spares.is_empty() && !self.is_replaying;
        is_last || !self.fits_present_chunk()
    }

    /// Returns whether the batch certainly fits the log's present chunk and leaves two blocks of
    /// it.
    fn fits_present_chunk(&self) -> bool {
        let of_records = if self.batch.is_empty() { 0 } else { blocks_for(self.batch.bytes()) };
        // The records of new snapshots, unless they are in the log already.
        let names = !self.wanted_snapshots.is_empty() && !self.is_replaying;
        let blocks = of_records + if names { NAMES_BLOCKS } else { 0 };
        blocks == 0 || blocks + 1 < self.log.left() as usize
    }

    /// Returns whether the batch and this record certainly fit the log, without a chunk that is not
    /// reserved yet, and even if snapshots are made meanwhile.
    pub(super) fn log_takes(&self, record: &Record) -> bool {
        let blocks = blocks_for(self.batch.bytes() + record.bytes()) + NAMES_BLOCKS;
        let spare = self.log.spares.len() * CHUNK_BLOCKS as usize;
        blocks + 1 < self.log.left() as usize + spare
    }

    /// Writes a log block that confirms the last flush, if none does so yet. Without it, an opening
    /// cannot distinguish rotten data of that flush from data that was never written.
    pub(super) fn confirm(&mut self, disk: &mut dyn Disk) {
        let is_quiet = self.is_durable() && !self.checkpoint.is_under_way();
        let may =
            self.log.has_room() && is_quiet && !self.has_failed && self.closing == Closing::Open;
        if may && !self.log.is_confirmed {
            let block = self.next_log_block(&[]);
            self.write_log(vec![block], disk);
            self.log.is_confirmed = true;
        }
    }

    /// Writes the batch to the log, up to the maximum of one commit.
    pub(super) fn seal(&mut self, disk: &mut dyn Disk) {
        self.commit.is_wanted = false;
        let mut blocks: Vec<(u32, Vec<u8>)> = Vec::new();
        let mut sealed = Vec::new();
        // If a checkpoint waits for the log's next chunk, the present one is filled up.
        let chunk = self.log.next / CHUNK_BLOCKS;
        while self.batch.is_empty()
            && self.checkpoint.is_preparing()
            && self.log.next / CHUNK_BLOCKS == chunk
            && self.must_turn_first()
        {
            blocks.push(self.next_log_block(&[]));
        }
        while !self.batch.is_empty() && blocks.len() < COMMIT_BLOCKS_MAX {
            let records = self.batch.take_block();
            sealed.push((self.log.sequence, self.batch.taken));
            blocks.push(self.next_log_block(&records));
        }
        self.note_sealed(&sealed);
        if self.batch.is_empty() {
            self.commit.must_seal = false;
            self.commit.waiters.append(&mut self.commit.next_waiters);
            self.commit.retired.append(&mut self.batch.retired);
            self.batch.cleared = 0;
        }
        self.commit.wants_flush = true;
        self.write_log(blocks, disk);
        self.flush_log(disk);
    }

    /// Notes which log blocks will hold the changes of the batch.
    fn note_sealed(&mut self, blocks: &[(u64, u64)]) {
        let Some(answered) = &mut self.answered else { return };
        // The blocks of the commit before are on the device, since no commit begins earlier. If
        // they could not be written, this commit is the last one.
        if !blocks.is_empty() {
            answered.sealed(blocks, self.batch.is_empty());
        }
    }

    /// Returns a log block with these records. The end of the log is behind it already.
    pub(in crate::local) fn log_block(&self, sequence: u64, records: &[u8]) -> Vec<u8> {
        let mut block = vec![0; LOG_HEADER_BYTES];
        block.extend(records);
        block.resize(BLOCK_BYTES, 0);
        let head = LogHead {
            identity: self.identity,
            sequence,
            durable: self.log.durable,
            next: self.log.next,
            used: records.len() as u32,
            session: self.session,
            following: self.log.spares.front().copied().unwrap_or(0),
        };
        head.encode(&mut block);
        block
    }

    pub(super) fn log_done(&mut self, result: Result<(), Failure>, disk: &mut dyn Disk) {
        self.commit.has_failed |= result.is_err();
        self.commit.log_ops -= 1;
        self.flush_log(disk);
        if !self.commit.is_under_way() {
            self.advance_checkpoint(disk);
            self.advance_commit(disk);
        }
    }

    pub(super) fn commit_synced(&mut self, result: Result<(), Failure>, disk: &mut dyn Disk) {
        self.commit.is_flushing = false;
        if result.is_err() {
            return self.fail();
        }
        self.log.durable = self.commit.flushing_sequence;
        self.snapshots_durable();
        // Another volume may have returned a chunk meanwhile, so the pool is asked again.
        self.is_full = false;
        let retired = std::mem::take(&mut self.commit.flushing_retired);
        if self.is_replaying {
            // Log blocks that follow may name these blocks.
            self.batch.retired.extend(retired);
        } else {
            retired.into_iter().for_each(|run| self.space.release(run));
        }
        for request in std::mem::take(&mut self.commit.flushing_waiters) {
            self.end(request, Ok(()));
        }
        self.flush_log(disk);
        self.advance_checkpoint(disk);
        self.retry_stalled(disk);
        self.advance_commit(disk);
    }

    /// Returns the sequence number up to which the log is durable.
    pub(super) fn durable(&self) -> u64 {
        self.log.durable
    }
}

/// Joins log blocks that follow each other into one write.
fn joined(blocks: &[(u32, Vec<u8>)]) -> (u32, Vec<u8>) {
    (blocks[0].0, blocks.iter().flat_map(|(_, bytes)| bytes).copied().collect())
}
