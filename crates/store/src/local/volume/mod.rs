//! One open volume: requests in, operations on the pool's device out.
//!
//! ```text
//!   request ── advance ──> reads its pages of the map ──> device ──> verified ──> answered
//!      │                                                               │
//!      └─ write: takes free blocks ──> device ──> applied to the map ──┘ ──> batch ──> commit
//! ```
//!
//! A request that needs a page of a tree that is not in memory waits for it; one that needs free
//! blocks waits for a chunk, or for a commit that frees some. `commit` makes changes durable, and
//! `checkpoint` writes the trees.

mod checkpoint;
mod commit;
pub mod recover;
mod request;

use self::checkpoint::Checkpoint;
use self::commit::{Batch, Commit, Log};
use self::request::Request;
use super::device::Device;
use super::format::{Anchor, Identity};
use super::space::{Run, Space};
use super::tree::{FANOUT, Missing, Tree, height_for, page_from};
use super::{BLOCK_BYTES, CHUNK_BLOCKS, checksum};
use crate::buffer::Buffer;
use crate::disk::{Disk, DiskAction, DiskDone, DiskOp};
use crate::{Completion, Geometry, Store, Submission};
use evenkeel_core::limits::BLOCK_BYTES_PREFERRED;
use evenkeel_core::request::{Failure, Operation};
use evenkeel_core::units::ByteCount;
use rustix::io::Errno;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

/// Bounds of an open volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Pages of the map in memory.
    pub map_pages: usize,
    /// Changed pages that a checkpoint is begun for.
    pub dirty_pages: usize,
    /// Blocks of log that a checkpoint is begun for.
    pub log_blocks: u32,
    /// Bytes of records that are committed although nobody asked for it.
    pub batch_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { map_pages: 16_384, dirty_pages: 2_048, log_blocks: 2_048, batch_bytes: 64 << 10 }
    }
}

/// Chunks that a volume may have beyond its size and an eighth of it: for log and pages.
const SPARE_CHUNKS: u64 = 8;

/// Gives a volume more chunks of the pool. An answer may take a while; no call blocks.
pub trait Chunks: Send {
    /// Asks for one more chunk, if none is asked for already.
    fn ask(&mut self);

    /// The answer: the chunk's index and number, durably the volume's; or that there is none.
    fn answer(&mut self) -> Option<Result<(u32, u32), NoChunk>>;
}

/// The pool has no chunk for the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoChunk;

/// What is found on the device that should not be there.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Damage {
    /// Reads of data that did not fit its checksum.
    pub data: u64,
    /// Pages of trees that did not fit theirs.
    pub pages: u64,
}

/// Which of the volume's trees.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::local) enum Which {
    Map,
    Space,
}

/// A page that is missing, of either tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::local) struct Wanted {
    which: Which,
    page: Missing,
}

/// Who waits for a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waiter {
    Request(usize),
    /// The checkpoint, the log, or a chunk that has come.
    Volume,
}

/// What an operation on the device is for.
#[derive(Debug)]
enum Purpose {
    /// A part of a request's data: the request, and which of its runs.
    Data {
        request: usize,
        part: usize,
    },
    Page(Wanted),
    Log,
    CommitSync,
    CheckpointPage,
    CheckpointSync,
}

/// An operation on the device, until it is done.
#[derive(Debug)]
struct Op {
    purpose: Purpose,
    action: DiskAction,
    offset: u64,
    length: u32,
    done: u32,
}

/// See the module's text.
pub struct Volume {
    device: Arc<dyn Device>,
    identity: Identity,
    size: ByteCount,
    bounds: Bounds,
    /// The pool's chunk with the anchors.
    home: u32,
    map: Tree,
    space: Space,
    chunks: Box<dyn Chunks>,
    /// The pool has said that there is no chunk, and none has been freed since.
    is_full: bool,
    log: Log,
    batch: Batch,
    commit: Commit,
    checkpoint: Checkpoint,
    data_blocks: u64,
    requests: Vec<Option<Request>>,
    free_requests: Vec<usize>,
    ops: Vec<Option<Op>>,
    free_ops: Vec<usize>,
    /// Pages that are being read, and who waits for each.
    waiting: BTreeMap<Wanted, Vec<Waiter>>,
    /// Pages that could not be read: what needs them fails.
    lost: BTreeMap<Wanted, Failure>,
    /// Requests that wait for free blocks.
    stalled: VecDeque<usize>,
    finished: VecDeque<Completion>,
    /// A log write or a flush has failed: nothing is durable any more until the volume is reopened.
    has_failed: bool,
    damage: Damage,
}

/// What a request does next.
pub(in crate::local) enum Next {
    /// It waits for an operation, or has ended.
    Nothing,
    Wait(Wanted),
    /// It waits for free blocks.
    Stall,
}

impl Volume {
    /// The volume that `anchor` describes, with nothing of it in memory.
    pub(super) fn new(
        device: Arc<dyn Device>,
        anchor: &Anchor,
        place: (u32, Vec<u32>),
        size: ByteCount,
        chunks: Box<dyn Chunks>,
        bounds: Bounds,
    ) -> Self {
        let (home, owned) = place;
        Self {
            device,
            identity: anchor.identity,
            size,
            bounds,
            home,
            map: Tree::new(anchor.map.1, anchor.map.0),
            space: Space::new(anchor.space.1, anchor.space.0, owned),
            chunks,
            is_full: false,
            log: Log::new(anchor.log, anchor.sequence),
            batch: Batch::default(),
            commit: Commit::new(),
            checkpoint: Checkpoint::new(anchor.checkpoint),
            data_blocks: anchor.data_blocks,
            requests: Vec::new(),
            free_requests: Vec::new(),
            ops: Vec::new(),
            free_ops: Vec::new(),
            waiting: BTreeMap::new(),
            lost: BTreeMap::new(),
            stalled: VecDeque::new(),
            finished: VecDeque::new(),
            has_failed: false,
            damage: Damage::default(),
        }
    }

    /// What was found that should not be there, since the volume was opened.
    #[must_use]
    pub fn damage(&self) -> Damage {
        self.damage
    }

    /// Blocks of 4 KiB that the volume's data has.
    #[must_use]
    pub fn data_blocks(&self) -> u64 {
        self.data_blocks
    }

    /// Whether data may go to another chunk of the pool: the volume has no more than an eighth
    /// beyond its size, and a few.
    fn may_grow(&self) -> bool {
        let size = self.size.0.div_ceil(BLOCK_BYTES as u64 * u64::from(CHUNK_BLOCKS));
        !self.is_full && (self.space.chunks() as u64) < size + size / 8 + SPARE_CHUNKS
    }

    fn begin_op(&mut self, op: Op, buffer: Option<Buffer>, disk: &mut dyn Disk) {
        let slot = self.free_ops.pop().unwrap_or_else(|| {
            self.ops.push(None);
            self.ops.len() - 1
        });
        disk.submit(self.disk_op(slot, &op, buffer));
        self.ops[slot] = Some(op);
    }

    fn disk_op(&self, slot: usize, op: &Op, buffer: Option<Buffer>) -> DiskOp {
        DiskOp {
            token: slot as u64,
            fd: self.device.fd(),
            action: op.action,
            offset: op.offset + u64::from(op.done),
            length: op.length - op.done,
            buffer,
            buffer_offset: op.done,
        }
    }

    fn read_op(&mut self, purpose: Purpose, run: Run, buffer: Buffer, disk: &mut dyn Disk) {
        self.transfer(purpose, DiskAction::Read, run, buffer, disk);
    }

    fn write_op(&mut self, purpose: Purpose, run: Run, buffer: Buffer, disk: &mut dyn Disk) {
        self.transfer(purpose, DiskAction::Write { durable: false }, run, buffer, disk);
    }

    fn transfer(
        &mut self,
        purpose: Purpose,
        action: DiskAction,
        run: Run,
        buffer: Buffer,
        disk: &mut dyn Disk,
    ) {
        let offset = u64::from(run.block) * BLOCK_BYTES as u64;
        let op = Op { purpose, action, offset, length: run.count * BLOCK_BYTES as u32, done: 0 };
        self.begin_op(op, Some(buffer), disk);
    }

    fn sync_op(&mut self, purpose: Purpose, disk: &mut dyn Disk) {
        let op = Op { purpose, action: DiskAction::Sync, offset: 0, length: 0, done: 0 };
        self.begin_op(op, None, disk);
    }

    /// Reads a page for somebody, unless it is being read or lost already.
    fn wait_for(&mut self, wanted: Wanted, waiter: Waiter, disk: &mut dyn Disk) {
        let waiters = self.waiting.entry(wanted).or_default();
        waiters.push(waiter);
        if waiters.len() == 1 {
            let run = Run { block: wanted.page.pointer.block, count: 1 };
            self.read_op(Purpose::Page(wanted), run, Buffer::new(BLOCK_BYTES), disk);
        }
    }

    /// A page has come, or has not.
    fn page_done(
        &mut self,
        wanted: Wanted,
        result: Result<(), Failure>,
        buffer: Option<&Buffer>,
        disk: &mut dyn Disk,
    ) {
        let bytes = buffer.map(|buffer| &buffer.bytes()[..BLOCK_BYTES]);
        let fits = |bytes: &&[u8]| checksum(bytes) == wanted.page.pointer.checksum;
        match (result, bytes.filter(fits)) {
            (Ok(()), Some(bytes)) => {
                let page = page_from(bytes);
                match wanted.which {
                    Which::Map => self.map.install(wanted.page, page),
                    Which::Space => self.space.tree().install(wanted.page, page),
                }
            }
            (result, _) => {
                self.damage.pages += 1;
                self.lost.insert(wanted, result.err().unwrap_or(Failure::Io));
            }
        }
        for waiter in self.waiting.remove(&wanted).unwrap_or_default() {
            match waiter {
                Waiter::Request(request) => self.advance(request, disk),
                Waiter::Volume => {
                    self.advance_checkpoint(disk);
                    self.advance_commit(disk);
                }
            }
        }
    }

    /// Does what a request can do now.
    fn advance(&mut self, request: usize, disk: &mut dyn Disk) {
        match self.next_of(request, disk) {
            Next::Nothing => {}
            Next::Stall => self.stall(request, disk),
            Next::Wait(wanted) => match self.lost.get(&wanted) {
                Some(&failure) => self.abandon(request, failure),
                None => self.wait_for(wanted, Waiter::Request(request), disk),
            },
        }
    }

    /// A request needs free blocks: another chunk is asked for, and what is retired is committed.
    fn stall(&mut self, request: usize, disk: &mut dyn Disk) {
        self.stalled.push_back(request);
        if self.may_grow() {
            self.chunks.ask();
            self.take_chunks(disk);
        } else {
            self.make_room(disk);
        }
    }

    /// Takes chunks that have come, and goes on with what waited for them.
    fn take_chunks(&mut self, disk: &mut dyn Disk) {
        let mut has_news = false;
        while let Some(answer) = self.chunks.answer() {
            has_news = true;
            match answer {
                Ok((index, chunk)) => {
                    // The leaves of space above it are read when they are needed.
                    if let Err(page) = self.space.add_chunk(index, chunk) {
                        let wanted = Wanted { which: Which::Space, page };
                        self.checkpoint.late_chunks.push((index, chunk));
                        self.wait_for(wanted, Waiter::Volume, disk);
                    }
                }
                Err(NoChunk) => self.is_full = true,
            }
        }
        if has_news {
            self.resume(disk);
        } else if self.is_full {
            self.make_room(disk);
        }
    }

    /// Goes on with the requests that waited for free blocks.
    fn retry_stalled(&mut self, disk: &mut dyn Disk) {
        for request in std::mem::take(&mut self.stalled) {
            self.advance(request, disk);
        }
    }

    /// Goes on with the requests that waited for free blocks, and with the log if it did.
    fn resume(&mut self, disk: &mut dyn Disk) {
        self.retry_stalled(disk);
        self.advance_checkpoint(disk);
        self.advance_commit(disk);
    }

    /// Nobody gives more chunks: what is retired becomes free by a commit or a checkpoint; without
    /// either, the requests that wait have no space.
    fn make_room(&mut self, disk: &mut dyn Disk) {
        if !self.batch.is_empty() || self.commit.is_open() || self.commit.is_under_way() {
            self.advance_commit(disk);
            self.begin_commit(disk);
            return;
        }
        if self.checkpoint.is_under_way() {
            return;
        }
        for request in std::mem::take(&mut self.stalled) {
            self.abandon(request, Failure::NoSpace);
        }
    }

    fn op_done(&mut self, done: DiskDone, disk: &mut dyn Disk) {
        let slot = done.token as usize;
        let Some(mut op) = self.ops[slot].take() else {
            unreachable!("device operation {slot} ended twice");
        };
        let result = match done.result {
            Ok(0) if op.length > op.done => Err(Failure::Io),
            Ok(count) if op.length > 0 => {
                op.done += count.min(op.length - op.done);
                Ok(())
            }
            Ok(_) => Ok(()),
            Err(Errno::INTR | Errno::AGAIN) => Ok(()),
            Err(Errno::NOSPC | Errno::DQUOT) => Err(Failure::NoSpace),
            Err(_) => Err(Failure::Io),
        };
        let is_retried = matches!(done.result, Err(Errno::INTR | Errno::AGAIN));
        if result.is_ok() && (op.done < op.length || is_retried) {
            disk.submit(self.disk_op(slot, &op, done.buffer));
            self.ops[slot] = Some(op);
            return;
        }
        self.free_ops.push(slot);
        match op.purpose {
            Purpose::Data { request, part } => {
                self.data_done(request, part, result, done.buffer, disk);
            }
            Purpose::Page(wanted) => self.page_done(wanted, result, done.buffer.as_ref(), disk),
            Purpose::Log => self.log_done(result, disk),
            Purpose::CommitSync => self.commit_synced(result, disk),
            Purpose::CheckpointPage | Purpose::CheckpointSync => {
                self.checkpoint_op_done(result, disk);
            }
        }
    }

    /// Nothing becomes durable any more: who waits for it learns so.
    fn fail(&mut self) {
        self.has_failed = true;
        for request in self.commit.take_waiters() {
            self.end(request, Err(Failure::Io));
        }
        for request in std::mem::take(&mut self.stalled) {
            self.abandon(request, Failure::Io);
        }
    }

    fn end(&mut self, request: usize, result: Result<(), Failure>) {
        let Some(request) = self.take_request(request) else { return };
        let (ticket, buffer, extents) = request.into_parts();
        let extents = if result.is_ok() { extents } else { Vec::new() };
        self.finished.push_back(Completion { ticket, result, buffer, extents });
    }

    fn take_request(&mut self, request: usize) -> Option<Request> {
        let taken = self.requests[request].take();
        if taken.is_some() {
            self.free_requests.push(request);
        }
        taken
    }

    /// Whether the store owes or does nothing.
    #[must_use]
    pub fn is_idle(&self) -> bool {
        self.ops.iter().all(Option::is_none) && self.requests.iter().all(Option::is_none)
    }

    fn blocks_of(&self, offset: u64, length: u32) -> (u64, u32) {
        (offset / BLOCK_BYTES as u64, length / BLOCK_BYTES as u32)
    }
}

/// Map leaves that a volume of so many bytes has.
pub(super) fn leaves_for(size: ByteCount) -> u64 {
    size.0.div_ceil(BLOCK_BYTES as u64).div_ceil(FANOUT).max(1)
}

impl Store for Volume {
    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.size,
            block_bytes_min: BLOCK_BYTES as u32,
            block_bytes_preferred: BLOCK_BYTES_PREFERRED,
        }
    }

    fn submit(&mut self, submission: Submission, disk: &mut dyn Disk) {
        let request = self.free_requests.pop().unwrap_or_else(|| {
            self.requests.push(None);
            self.requests.len() - 1
        });
        self.requests[request] = Some(Request::new(submission));
        self.advance(request, disk);
    }

    fn disk_done(&mut self, done: DiskDone, disk: &mut dyn Disk) {
        self.op_done(done, disk);
        self.map.shrink(self.bounds.map_pages, self.checkpoint.completed());
    }

    fn poll(&mut self) -> Option<Completion> {
        self.finished.pop_front()
    }

    fn writes_zeroes(&self, _: Operation) -> bool {
        false
    }

    fn resized(&mut self, size: ByteCount) {
        self.size = size;
        // The root is made higher when a leaf beyond it is first changed: see `next_of`.
    }
}

impl Volume {
    /// Makes the map as high as the volume's size needs.
    fn fit_map(&mut self) -> Result<(), Missing> {
        if self.map.height() < height_for(leaves_for(self.size)) {
            self.map.grow(leaves_for(self.size))?;
        }
        Ok(())
    }
}
