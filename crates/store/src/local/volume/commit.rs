//! How changes become durable: a batch of records goes to the log, the device is flushed, and
//! everybody who waited is answered. One commit is under way at a time; what comes meanwhile shares
//! the next.

use super::{Purpose, Volume};
use crate::buffer::Buffer;
use crate::disk::Disk;
use crate::local::format::{LOG_HEADER_BYTES, LogHead, Record};
use crate::local::space::{Lacking, Run};
use crate::local::{BLOCK_BYTES, CHUNK_BLOCKS};
use evenkeel_core::request::Failure;
use std::collections::VecDeque;

/// The most log blocks of one commit: what is behind them goes with the next.
const COMMIT_BLOCKS_MAX: usize = 64;

/// A batch of so many bytes always fits a commit: no log block stays half empty.
pub(super) const COMMIT_BYTES: usize = COMMIT_BLOCKS_MAX / 2 * (BLOCK_BYTES - LOG_HEADER_BYTES);

/// Changes that are in memory only.
#[derive(Debug, Default)]
pub(in crate::local) struct Batch {
    records: VecDeque<Record>,
    bytes: usize,
    /// Blocks that the changes have replaced: free when they are durable.
    pub retired: Vec<Run>,
}

impl Batch {
    pub fn push(&mut self, record: Record) {
        self.bytes += record.bytes();
        self.records.push_back(record);
    }

    pub fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Takes the records of the next log block.
    fn take_block(&mut self) -> Vec<u8> {
        let mut bytes = Vec::new();
        while let Some(record) = self.records.front() {
            if bytes.len() + record.bytes() > BLOCK_BYTES - LOG_HEADER_BYTES {
                break;
            }
            self.bytes -= record.bytes();
            record.encode(&mut bytes);
            self.records.pop_front();
        }
        bytes
    }
}

/// Where the log goes on.
#[derive(Debug)]
pub(in crate::local) struct Log {
    /// The block that is written next.
    pub next: u32,
    /// Its number.
    pub sequence: u64,
    /// Everything up to this number is durable.
    pub durable: u64,
    /// The chunk that follows the present one; 0 where there is none yet.
    pub spare: u32,
    /// The chunks that the log has been in since the last checkpoint, the present one last.
    pub chunks: VecDeque<u32>,
    /// Blocks written since the last checkpoint.
    pub blocks: u32,
}

impl Log {
    pub fn new(next: u32, sequence: u64) -> Self {
        let chunks = VecDeque::from([next / CHUNK_BLOCKS]);
        Self { next, sequence, durable: sequence - 1, spare: 0, chunks, blocks: 0 }
    }

    /// The block behind the next one, in the spare chunk if need be.
    pub fn advance(&mut self) -> u32 {
        let at = self.next;
        self.next = if at % CHUNK_BLOCKS == CHUNK_BLOCKS - 1 {
            let chunk = std::mem::take(&mut self.spare);
            self.chunks.push_back(chunk);
            chunk * CHUNK_BLOCKS
        } else {
            at + 1
        };
        self.sequence += 1;
        self.blocks += 1;
        at
    }
}

/// See the module's text.
///
/// Log blocks are written to an *open* commit until somebody asks for a flush; then they are
/// flushed together.
#[derive(Debug, Default)]
pub(in crate::local) struct Commit {
    /// Log blocks were written since the last flush was begun.
    is_open: bool,
    /// Operations of theirs that are under way.
    log_ops: usize,
    /// Requests whose records are in the log, and which are not in the map yet.
    unapplied: usize,
    /// What was applied since the first of them was logged.
    applied: Vec<(u64, u64)>,
    /// Somebody waits for the flush.
    wants_flush: bool,
    /// Who waits for it, and what is free then.
    waiters: Vec<usize>,
    retired: Vec<Run>,
    /// The flush that is under way: who waits for it, what is free then, the last log block before.
    is_flushing: bool,
    flushing_waiters: Vec<usize>,
    flushing_retired: Vec<Run>,
    flushing_sequence: u64,
    /// Who waits for the batch to be written first.
    next_waiters: Vec<usize>,
    has_failed: bool,
    /// The batch is to be written as soon as the log has room.
    is_wanted: bool,
    /// Writes since the last flush was asked for, and between the two before.
    writes_since_flush: u32,
    writes_between: u32,
}

/// Flushes that come after so few writes are expected to go on like that.
const EAGER_WRITES: u32 = 4;

impl Commit {
    pub fn new() -> Self {
        Self { writes_between: u32::MAX, ..Self::default() }
    }

    /// Whether log blocks wait for a flush that nobody has asked for.
    pub fn is_open(&self) -> bool {
        self.is_open
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

    /// Blocks were changed in the map: those of writes whose records are in the log already may
    /// come in another order there.
    pub fn note_applied(&mut self, first: u64, count: u64) {
        if self.unapplied > 0 {
            self.applied.push((first, first + count));
        }
    }

    /// Whether any of these blocks was changed since they were logged.
    pub fn was_overtaken(&self, first: u64, count: u64) -> bool {
        self.applied.iter().any(|&(from, to)| from < first + count && first < to)
    }

    /// A flush is asked for.
    pub fn note_flush(&mut self) {
        self.writes_between = std::mem::take(&mut self.writes_since_flush);
    }

    /// A write comes; whether a flush is expected soon.
    pub fn note_write(&mut self) -> bool {
        self.writes_since_flush = self.writes_since_flush.saturating_add(1);
        self.writes_between <= EAGER_WRITES && self.writes_since_flush <= EAGER_WRITES
    }
}

impl Volume {
    /// A request waits until everything that is applied by now is durable.
    pub(super) fn wait_for_commit(&mut self, request: usize, disk: &mut dyn Disk) {
        if !self.batch.is_empty() {
            self.commit.next_waiters.push(request);
            self.advance_commit(disk);
        } else if self.commit.is_open {
            self.commit.waiters.push(request);
            self.commit.wants_flush = true;
            self.flush_log(disk);
        } else if self.commit.is_flushing {
            // What is being flushed is all there is.
            self.commit.flushing_waiters.push(request);
        } else {
            self.end(request, Ok(()));
        }
    }

    /// Writes the records of a write beside its data, if a flush is expected soon and the log has
    /// room: then nothing but the flush is left to wait for.
    pub(super) fn log_beside(&mut self, records: &[Record], disk: &mut dyn Disk) -> bool {
        let left = CHUNK_BLOCKS - self.log.next % CHUNK_BLOCKS;
        let bytes: usize = records.iter().map(Record::bytes).sum();
        let fits = bytes <= BLOCK_BYTES - LOG_HEADER_BYTES
            && (self.log.spare != 0 || left > COMMIT_BLOCKS_MAX as u32);
        let may = fits
            && self.batch.is_empty()
            && !self.commit.wants_flush
            && !self.checkpoint.is_preparing()
            && !self.has_failed;
        if may {
            let mut encoded = Vec::new();
            records.iter().for_each(|record| record.encode(&mut encoded));
            let sequence = self.log.sequence;
            let at = self.log.advance();
            let block = self.log_block(sequence, &encoded);
            self.write_log(vec![(at, block)], disk);
            self.commit.unapplied += 1;
        }
        may
    }

    /// A write whose records are in the log is in the map now; what it replaced is free when that
    /// is durable.
    pub(super) fn applied_beside(&mut self, replaced: Vec<Run>, disk: &mut dyn Disk) {
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

    /// Begins the flush of the open commit if it is wanted and everything is written.
    fn flush_log(&mut self, disk: &mut dyn Disk) {
        let Commit { is_flushing, wants_flush, log_ops, unapplied, .. } = self.commit;
        if is_flushing || !wants_flush || log_ops > 0 || unapplied > 0 {
            return;
        }
        if self.commit.has_failed {
            return self.fail();
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
        for run in blocks.chunk_by(|a, b| a.0 + 1 == b.0) {
            let (block, bytes) = joined(run);
            let mut buffer = Buffer::new(bytes.len());
            buffer.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
            self.commit.log_ops += 1;
            let run = Run { block, count: (bytes.len() / BLOCK_BYTES) as u32 };
            self.write_op(Purpose::Log, run, buffer, disk);
        }
        if self.log.spare == 0
            && let Ok(chunk) = self.space.take_chunk()
        {
            // Early, while there is one: without it the volume would stop.
            self.log.spare = chunk;
        }
    }

    /// Begins a commit if one is due and none is under way, and a checkpoint likewise.
    pub(super) fn advance_commit(&mut self, disk: &mut dyn Disk) {
        let is_due = self.commit.is_wanted
            || !self.commit.next_waiters.is_empty()
            || self.batch.bytes() >= self.bounds.batch_bytes;
        if is_due {
            self.begin_commit(disk);
        }
        if self.log.blocks >= self.bounds.log_blocks
            || self.map.dirty_leaves() >= self.bounds.dirty_pages
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

    /// Sees to it that the log can go on behind its present chunk. If it cannot yet, what waits for
    /// it is begun again when it can.
    pub(super) fn has_log_room(&mut self, disk: &mut dyn Disk) -> bool {
        let left = CHUNK_BLOCKS - self.log.next % CHUNK_BLOCKS;
        if self.log.spare != 0 || left > COMMIT_BLOCKS_MAX as u32 {
            return true;
        }
        match self.space.take_chunk() {
            Ok(chunk) => {
                self.log.spare = chunk;
                true
            }
            Err(Lacking::Leaf(page)) => {
                self.wait_for_space(page, disk);
                false
            }
            Err(Lacking::Chunk) if self.is_full => {
                // Without room for its log, nothing becomes durable.
                if !self.checkpoint.is_under_way() {
                    self.fail();
                }
                false
            }
            Err(Lacking::Chunk) => {
                self.chunks.ask();
                self.take_chunks(disk);
                false
            }
        }
    }

    /// Writes what the batch holds to the log, as far as one commit takes it.
    pub(super) fn seal(&mut self, disk: &mut dyn Disk) {
        self.commit.is_wanted = false;
        let mut blocks: Vec<(u32, Vec<u8>)> = Vec::new();
        while !self.batch.is_empty() && blocks.len() < COMMIT_BLOCKS_MAX {
            let records = self.batch.take_block();
            let sequence = self.log.sequence;
            let at = self.log.advance();
            blocks.push((at, self.log_block(sequence, &records)));
        }
        if self.batch.is_empty() {
            self.commit.waiters.append(&mut self.commit.next_waiters);
            self.commit.retired.append(&mut self.batch.retired);
        }
        self.commit.wants_flush = true;
        self.write_log(blocks, disk);
        self.flush_log(disk);
    }

    /// A log block with these records; the log has gone on behind it already.
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
        // Somebody may have given back a chunk meanwhile: it is asked for again.
        self.is_full = false;
        for run in std::mem::take(&mut self.commit.flushing_retired) {
            self.space.release(run);
        }
        for request in std::mem::take(&mut self.commit.flushing_waiters) {
            self.end(request, Ok(()));
        }
        self.flush_log(disk);
        self.advance_checkpoint(disk);
        self.retry_stalled(disk);
        self.advance_commit(disk);
    }

    /// The number up to which the log is durable.
    pub(super) fn durable(&self) -> u64 {
        self.log.durable
    }
}

/// Log blocks that follow each other, as one.
fn joined(blocks: &[(u32, Vec<u8>)]) -> (u32, Vec<u8>) {
    (blocks[0].0, blocks.iter().flat_map(|(_, bytes)| bytes).copied().collect())
}
