//! How changes become durable: a batch of records goes to the log, the device is flushed, and
//! everybody who waited is answered. One commit is under way at a time; what comes meanwhile shares
//! the next.

use super::{Purpose, Volume, Waiter, Wanted, Which};
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

/// How far the present commit is.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
enum Stage {
    #[default]
    Idle,
    /// Log blocks are being written: so many operations.
    Writing(usize),
    Syncing,
}

/// See the module's text.
#[derive(Debug, Default)]
pub(in crate::local) struct Commit {
    stage: Stage,
    /// Who waits for the present commit, and who for the next.
    waiters: Vec<usize>,
    next_waiters: Vec<usize>,
    retired: Vec<Run>,
    /// The last log block of the present commit.
    sequence: u64,
    has_failed: bool,
    /// One is due as soon as the log has room.
    is_wanted: bool,
}

impl Commit {
    pub fn is_under_way(&self) -> bool {
        self.stage != Stage::Idle
    }

    pub fn take_waiters(&mut self) -> Vec<usize> {
        let mut waiters = std::mem::take(&mut self.waiters);
        waiters.append(&mut self.next_waiters);
        waiters
    }
}

impl Volume {
    /// A request waits until everything that is applied by now is durable.
    pub(super) fn wait_for_commit(&mut self, request: usize, disk: &mut dyn Disk) {
        if self.batch.is_empty() {
            match self.commit.stage {
                // Everything is durable.
                Stage::Idle => return self.end(request, Ok(())),
                // What is being committed is all there is.
                _ => return self.commit.waiters.push(request),
            }
        }
        self.commit.next_waiters.push(request);
        self.advance_commit(disk);
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

    /// Begins a commit of the batch, unless one is under way.
    pub(super) fn begin_commit(&mut self, disk: &mut dyn Disk) {
        if self.commit.is_under_way() || self.has_failed {
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
                let wanted = Wanted { which: Which::Space, page };
                match self.lost.contains_key(&wanted) {
                    true => self.fail(),
                    false => self.wait_for(wanted, Waiter::Volume, disk),
                }
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
        if self.log.spare == 0
            && let Ok(chunk) = self.space.take_chunk()
        {
            // Early, while there is one: without it the volume would stop.
            self.log.spare = chunk;
        }
        self.commit.sequence = self.log.sequence - 1;
        if self.batch.is_empty() {
            self.commit.waiters.append(&mut self.commit.next_waiters);
            self.commit.retired.append(&mut self.batch.retired);
        }
        let runs: Vec<(u32, Vec<u8>)> =
            blocks.chunk_by(|a, b| a.0 + 1 == b.0).map(joined).collect();
        self.commit.stage = Stage::Writing(runs.len());
        for (block, bytes) in runs {
            let mut buffer = Buffer::new(bytes.len());
            buffer.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
            let run = Run { block, count: (bytes.len() / BLOCK_BYTES) as u32 };
            self.write_op(Purpose::Log, run, buffer, disk);
        }
        if self.commit.stage == Stage::Writing(0) {
            self.commit.stage = Stage::Syncing;
            self.sync_op(Purpose::CommitSync, disk);
        }
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
        let Stage::Writing(left) = self.commit.stage else { return };
        if left > 1 {
            self.commit.stage = Stage::Writing(left - 1);
        } else if self.commit.has_failed {
            self.commit.stage = Stage::Idle;
            self.fail();
        } else {
            self.commit.stage = Stage::Syncing;
            self.sync_op(Purpose::CommitSync, disk);
        }
    }

    pub(super) fn commit_synced(&mut self, result: Result<(), Failure>, disk: &mut dyn Disk) {
        self.commit.stage = Stage::Idle;
        if result.is_err() {
            return self.fail();
        }
        self.log.durable = self.commit.sequence;
        // Somebody may have given back a chunk meanwhile: it is asked for again.
        self.is_full = false;
        let freed = !self.commit.retired.is_empty();
        for run in std::mem::take(&mut self.commit.retired) {
            self.space.release(run);
        }
        for request in std::mem::take(&mut self.commit.waiters) {
            self.end(request, Ok(()));
        }
        self.advance_checkpoint(disk);
        if freed || !self.stalled.is_empty() {
            for request in std::mem::take(&mut self.stalled) {
                self.advance(request, disk);
            }
        }
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
