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
mod locality;
mod ops;
pub(in crate::local) mod reclaim;
pub mod recover;
mod request;
mod salvage;
mod snapshot;

use self::checkpoint::Checkpoint;
use self::commit::{Batch, Commit, Log, SPARES};
use self::reclaim::Reclaim;
use self::request::Request;
use super::ack_log::Answered;
use super::device::Device;
use super::format::{Anchor, Identity, SnapshotRoot};
use super::space::{Lacking, Run, Space};
use super::tree::{FANOUT, Missing, Page, Tree, height_for, page_from};
use super::{BLOCK_BYTES, CHUNK_BLOCKS, checksum};
use crate::buffer::Buffer;
use crate::disk::{Disk, DiskAction, DiskDone, DiskOp};
use crate::encryption::crypt::Cipher;
use crate::{Completion, Geometry, Store, Submission};
use evenkeel_core::limits::BLOCK_BYTES_PREFERRED;
use evenkeel_core::request::{Failure, Operation};
use evenkeel_core::units::ByteCount;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::os::fd::RawFd;
use std::sync::Arc;

/// Bounds of an open volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bounds {
    /// Maximum number of map pages in memory.
    pub map_pages: usize,
    /// Changed pages at which a checkpoint is begun.
    pub dirty_pages: usize,
    /// Log blocks at which a checkpoint is begun.
    pub log_blocks: u32,
    /// Bytes of records at which the batch is committed without a flush request.
    pub batch_bytes: usize,
    /// Size of the log of answered changes, in bytes; it protects them if the process is killed. It
    /// has the changes of a batch and of the commit before. A change for which it has no room is
    /// answered when it is durable.
    pub answered_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Self {
        Self {
            map_pages: 16_384,
            dirty_pages: 2_048,
            log_blocks: 2_048,
            batch_bytes: 64 << 10,
            answered_bytes: 512 << 10,
        }
    }
}

/// Chunks that a volume may have beyond its size and an eighth of it: for log and pages.
const SPARE_CHUNKS: u64 = 8;
/// The most chunks that are asked for at once.
const BATCH_CHUNKS: usize = 64;
/// Free blocks that only overwrites may take: an overwrite gives as many blocks back when it is
/// durable. Enough for the largest write, and for the map pages that a write of new blocks may add.
const OVERWRITE_BLOCKS: u64 = CHUNK_BLOCKS as u64 + 16;

/// A volume's interface to the pool's tables. No call blocks. A request returns a file descriptor
/// that becomes readable when the answer has arrived, and that stays open until then; `None` if the
/// answer is there already. The volume takes each answer before it makes the next request of the
/// same kind.
pub trait Tables: Send {
    /// Requests at most `count` more chunks.
    fn ask(&mut self, count: usize) -> Option<RawFd>;

    /// Takes the answer: indexes and numbers of chunks that the volume durably owns, or
    /// [`NoChunk`].
    fn answer(&mut self) -> Result<Vec<(u32, u32)>, NoChunk>;

    /// Requests a durable change of nodes.
    fn note(&mut self, note: Note) -> Option<RawFd>;

    /// Takes the answer: whether the change was made.
    fn noted(&mut self) -> bool;

    /// Reports the volume's blocks of data, and the last sequence number that is durable.
    fn holds(&mut self, data_blocks: u64, durable: u64);

    /// Returns the next task that the pool has for the volume.
    fn task(&mut self) -> Option<Task>;

    /// Reports the end of a snapshot.
    fn snapshot_ended(&mut self, node: u32, end: SnapshotEnd);

    /// Counts damaged copies of the volume's anchor that were rewritten.
    fn mended(&mut self, copies: u64);

    /// Returns whether another server was found to have the pool.
    fn is_lost(&self) -> bool;
}

/// The end of a snapshot that the pool has requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum SnapshotEnd {
    /// It is durable.
    Made,
    /// It has failed, and no log block has its record.
    NotBegun,
    /// It has failed, but a log block may have its record. The next opening of the volume decides.
    Unknown,
}

/// A change of nodes that a volume requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Note {
    /// These snapshots have this map.
    Made(Vec<u32>, SnapshotRoot),
    /// All blocks of a deleted snapshot are free: its node is cleared.
    Reclaimed(u32),
    /// The volume of a node gives chunks back: their indexes and numbers.
    Returned(u32, Vec<(u32, u32)>),
    /// No change: checks only that the pool still belongs to this server.
    Held,
}

/// A task of the pool for an open volume.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Task {
    /// A snapshot of the volume's present state, with this node.
    Snapshot(u32),
    /// Freeing the blocks that only this deleted snapshot uses.
    Reclaim(Doomed),
    /// Rewriting metadata that is damaged on the device.
    Rewrite(Rewrite),
}

/// Metadata that a volume rewrites from memory with a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Rewrite {
    /// Both copies of its anchor; the number is that of damaged copies. The log also begins anew.
    Anchors(u64),
    /// A page of its map, which is above these leaves or one of them.
    Map(Range<u64>),
    /// A page of its space tree, likewise.
    Space(Range<u64>),
}

/// A deleted snapshot, and those beside it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Doomed {
    /// Its node.
    pub node: u32,
    /// Its map.
    pub root: SnapshotRoot,
    /// The map of the snapshot before it, if there is one.
    pub older: Option<SnapshotRoot>,
    /// The map of the snapshot after it; `None` if the volume itself comes next.
    pub newer: Option<SnapshotRoot>,
}

/// The pool has no chunk for the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoChunk;

/// Counts of damaged data that a volume has found on its device.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Damage {
    /// Reads of data that did not fit its checksum.
    pub data: u64,
    /// Pages of trees that did not fit theirs.
    pub pages: u64,
    /// Copies of the anchor that were damaged when the volume was opened.
    pub anchors: u64,
}

/// A tree that a volume reads.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::local) enum Which {
    Map,
    Space,
    /// The map of a deleted snapshot, and those of the snapshots before and after it.
    Doomed,
    Older,
    Newer,
}

/// A missing page of a tree.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(in crate::local) struct Wanted {
    which: Which,
    page: Missing,
}

/// Owner of a wait for a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Waiter {
    Request(usize),
    /// The checkpoint, the log, or a chunk that has come.
    Volume,
    /// The reclaim of a deleted snapshot's blocks.
    Reclaim,
}

/// Purpose of an operation on the device.
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
    /// A page, an anchor, or a flush.
    Checkpoint,
    /// The pool has chunks, or has none.
    Chunks,
    /// The pool has noted something.
    Noted,
}

/// Kind of the change that the pool is making for the volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Noting {
    Nothing,
    /// Snapshots of the present checkpoint.
    Made,
    /// A snapshot whose blocks were freed.
    Reclaimed,
    /// Chunks that are no longer the volume's.
    Returned,
    /// No change: only whether the pool is still this server's, before an anchor is written.
    Held,
}

/// Progress of a volume's closing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Closing {
    /// It serves.
    Open,
    /// Applied changes are being made durable.
    Flushing,
    /// A checkpoint is being written, so that the log behind it is empty.
    Checkpointing,
    /// It is at rest.
    Closed,
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
    /// The number of this opening; while the log is replayed, that of the block it has come to.
    session: u64,
    size: ByteCount,
    bounds: Bounds,
    /// The pool's chunk with the anchors.
    home: u32,
    map: Tree,
    space: Space,
    tables: Box<dyn Tables>,
    /// Snapshots that the pool wants.
    wanted_snapshots: Vec<u32>,
    /// Changes that came while one is wanted: they are begun when it is frozen.
    held: Vec<usize>,
    /// Snapshots that were made since the volume was opened, from the oldest to the newest.
    made_snapshots: Vec<SnapshotRoot>,
    /// The reclaim of a deleted snapshot's blocks.
    reclaim: Option<Reclaim>,
    /// Position of the reclaim in the last complete checkpoint: the node, and the next leaf.
    reclaim_at: (u32, u64),
    /// The deleted snapshot that comes next.
    next_doomed: Option<Doomed>,
    /// Kind of the change that the pool is making.
    noting: Noting,
    /// A request for chunks has not been answered yet.
    is_asking: bool,
    /// The pool has said that there is no chunk, and nothing was committed since.
    is_full: bool,
    /// The pool was asked again before requests that wait for a chunk fail.
    was_asked_again: bool,
    log: Log,
    batch: Batch,
    commit: Commit,
    checkpoint: Checkpoint,
    data_blocks: u64,
    cipher: Option<Cipher>,
    /// Log of answered changes that the volume's log lacks.
    answered: Option<Answered>,
    requests: Vec<Option<Request>>,
    /// Writes that have taken blocks and are not in the map yet.
    writing: usize,
    /// Blocks that reads under way read beside those that they want.
    gap_blocks: u32,
    free_requests: Vec<usize>,
    ops: Vec<Option<Op>>,
    free_ops: Vec<usize>,
    /// Pages that are being read, and the waiters for each.
    waiting: BTreeMap<Wanted, Vec<Waiter>>,
    /// Requests that wait for free blocks.
    stalled: VecDeque<usize>,
    finished: VecDeque<Completion>,
    /// A log write or a flush has failed: nothing is durable any more until the volume is reopened.
    has_failed: bool,
    /// The volume is being opened: the log is replayed, however much space there is.
    is_replaying: bool,
    closing: Closing,
    damage: Damage,
}

/// Next action for a request.
pub(in crate::local) enum Next {
    /// It waits for an operation, or has ended.
    Nothing,
    Wait(Wanted),
    /// It waits for free blocks.
    Stall,
}

impl Volume {
    /// Creates the volume that `anchor` describes, with no page in memory.
    pub(super) fn new(
        device: Arc<dyn Device>,
        anchor: &Anchor,
        place: (u32, Vec<u32>),
        size: ByteCount,
        tables: Box<dyn Tables>,
        bounds: Bounds,
    ) -> Self {
        let (home, owned) = place;
        Self {
            device,
            identity: anchor.identity,
            session: anchor.session,
            size,
            bounds,
            home,
            map: Tree::new(anchor.map.1, anchor.map.0),
            space: Space::new(anchor.space.1, anchor.space.0, anchor.epoch, owned),
            tables,
            wanted_snapshots: Vec::new(),
            held: Vec::new(),
            made_snapshots: Vec::new(),
            reclaim: None,
            reclaim_at: anchor.reclaim,
            next_doomed: None,
            noting: Noting::Nothing,
            is_asking: false,
            is_full: false,
            was_asked_again: false,
            log: Log::new(anchor.log, anchor.sequence),
            batch: Batch::default(),
            commit: Commit::new(),
            checkpoint: Checkpoint::new(anchor.checkpoint),
            data_blocks: anchor.data_blocks,
            cipher: None,
            answered: None,
            requests: Vec::new(),
            writing: 0,
            gap_blocks: 0,
            free_requests: Vec::new(),
            ops: Vec::new(),
            free_ops: Vec::new(),
            waiting: BTreeMap::new(),
            stalled: VecDeque::new(),
            finished: VecDeque::new(),
            has_failed: false,
            is_replaying: true,
            closing: Closing::Open,
            damage: Damage::default(),
        }
    }

    /// Returns the damage that was found since the volume was opened.
    #[must_use]
    pub fn damage(&self) -> Damage {
        self.damage
    }

    /// Returns whether one copy of its anchor cannot be written, and the other one serves alone.
    #[must_use]
    pub fn has_one_anchor(&self) -> bool {
        self.checkpoint.only_copy.is_some()
    }

    /// Returns the deleted snapshot whose blocks were being freed when the volume was closed. Its
    /// reclaim continues before any other.
    #[must_use]
    pub fn reclaim_begun(&self) -> Option<u32> {
        Some(self.reclaim_at.0).filter(|node| *node != 0)
    }

    /// Returns the blocks of 4 KiB that the volume's data has.
    #[must_use]
    pub fn data_blocks(&self) -> u64 {
        self.data_blocks
    }

    /// Returns the maximum number of chunks that the volume may have: an eighth beyond its size,
    /// and [`SPARE_CHUNKS`]. A volume with snapshots has no maximum, since the snapshots keep the
    /// blocks that it overwrites.
    fn chunks_max(&self) -> u64 {
        if self.space.epoch() > 0 {
            return u64::MAX;
        }
        let size = self.size.0.div_ceil(BLOCK_BYTES as u64 * u64::from(CHUNK_BLOCKS));
        size + size / 8 + SPARE_CHUNKS
    }

    /// Returns whether the pool may give the volume another chunk.
    fn may_grow(&self) -> bool {
        !self.is_full && (self.space.chunks() as u64) < self.chunks_max()
    }

    /// Returns the number of free blocks that data may not take, so that the next checkpoint finds
    /// blocks for all of its pages: changed pages of the map, those that the requests under way may
    /// change, and every page of the space tree. Each block that is taken or freed may be described
    /// by another leaf of the space tree, and so may the blocks of the pages themselves.
    fn floor(&mut self) -> u64 {
        let to_come = 3 * (self.writing + 1);
        let leaves = leaves_for(self.size);
        let map = [self.map.dirty_leaves(), to_come].map(|count| pages_above(count as u64, leaves));
        let space = u64::from(self.space.leaves());
        map[0] + map[1] + pages_above(space, space) + FLOOR_SPARE
    }

    /// Reads space leaves until the free blocks that the next checkpoint may need are known.
    /// Returns whether there are enough. Whole chunks that the log has not taken yet do not count:
    /// a checkpoint that took their blocks would leave the log without a chunk to continue in.
    ///
    /// # Errors
    /// The page of the space tree that must be read first.
    pub(super) fn has_floor(&mut self) -> Result<bool, Missing> {
        let floor = self.floor();
        while self.space.free_beside_kept() < floor {
            match self.space.know_more() {
                Ok(()) => {}
                Err(Lacking::Leaf(page)) => return Err(page),
                Err(Lacking::Chunk) => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Adds a waiter for a page, and reads the page if no read of it is under way.
    fn wait_for(&mut self, wanted: Wanted, waiter: Waiter, disk: &mut dyn Disk) {
        let waiters = self.waiting.entry(wanted).or_default();
        waiters.push(waiter);
        if waiters.len() == 1 {
            let run = Run { block: wanted.page.pointer.block, count: 1 };
            self.read_op(Purpose::Page(wanted), run, Buffer::new(BLOCK_BYTES), disk);
        }
    }

    /// Handles the end of a page read.
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
                self.install(wanted, page_from(bytes));
            }
            (result, _) => {
                self.damage.pages += u64::from(result.is_ok());
                return self.page_lost(wanted, result.err().unwrap_or(Failure::Rotten));
            }
        }
        for waiter in self.waiting.remove(&wanted).unwrap_or_default() {
            match waiter {
                Waiter::Request(request) => self.advance(request, disk),
                Waiter::Volume => {
                    self.advance_checkpoint(disk);
                    self.advance_commit(disk);
                }
                Waiter::Reclaim => self.advance_reclaim(disk),
            }
        }
    }

    /// Puts a page that was read into its tree.
    fn install(&mut self, wanted: Wanted, page: Arc<Page>) {
        let tree = match wanted.which {
            Which::Map => Some(&mut self.map),
            Which::Space => Some(self.space.tree()),
            which => self.reclaim.as_mut().and_then(|reclaim| reclaim.tree(which)),
        };
        if let Some(tree) = tree {
            tree.install(wanted.page, page);
        }
    }

    /// Handles a page that cannot be read: its waiters fail.
    fn page_lost(&mut self, wanted: Wanted, failure: Failure) {
        for waiter in self.waiting.remove(&wanted).unwrap_or_default() {
            match waiter {
                Waiter::Request(request) => self.abandon(request, failure),
                // Without knowing what is free, nothing can be written.
                Waiter::Volume => self.fail(),
                // Its blocks stay in use; a check of the pool finds them.
                Waiter::Reclaim => {
                    if let Some(reclaim) = &mut self.reclaim {
                        reclaim.is_broken = true;
                    }
                }
            }
        }
    }

    /// Does the next steps of a request, as far as possible.
    fn advance(&mut self, request: usize, disk: &mut dyn Disk) {
        match self.next_of(request, disk) {
            Next::Nothing => {}
            Next::Stall => self.stall(request, disk),
            Next::Wait(wanted) => self.wait_for(wanted, Waiter::Request(request), disk),
        }
    }

    /// Adds a request to those that wait for free blocks. Requests another chunk, or makes room
    /// otherwise.
    fn stall(&mut self, request: usize, disk: &mut dyn Disk) {
        self.stalled.push_back(request);
        if self.may_grow() {
            self.ask_for_chunks(disk);
        }
    }

    /// Returns the number of chunks to request at once, since each answer costs two flushes.
    pub(super) fn batch_chunks(&self) -> usize {
        (self.space.chunks() / 4).clamp(1 + SPARES, BATCH_CHUNKS)
    }

    /// Requests chunks from the pool, unless a request is under way.
    fn ask_for_chunks(&mut self, disk: &mut dyn Disk) {
        if self.is_asking {
            return;
        }
        self.is_asking = true;
        let count = self.batch_chunks();
        let left = self.chunks_max().saturating_sub(self.space.chunks() as u64);
        match self.tables.ask(count.min(left.max(1) as usize)) {
            None => self.take_chunks(disk),
            Some(fd) => self.await_tables(Purpose::Chunks, fd, disk),
        }
    }

    /// Waits for an answer of the pool's tables.
    fn await_tables(&mut self, purpose: Purpose, fd: RawFd, disk: &mut dyn Disk) {
        let action = DiskAction::Readable;
        let slot = self.hold_op(Op { purpose, action, offset: 0, length: 0, done: 0 });
        disk.submit(DiskOp::readable(slot as u64, fd));
    }

    /// Takes the chunks of an answer, and continues the work that waits for them.
    fn take_chunks(&mut self, disk: &mut dyn Disk) {
        self.is_asking = false;
        match self.tables.answer() {
            Ok(chunks) => {
                self.is_full = false;
                self.was_asked_again = false;
                self.checkpoint.late_chunks.extend(chunks);
                self.add_late_chunks(disk);
            }
            Err(NoChunk) => self.is_full = true,
        }
        self.retry_stalled(disk);
        self.advance_checkpoint(disk);
        self.advance_commit(disk);
    }

    /// Adds chunks of answers to those of the volume. Reads the space leaves that describe them, if
    /// necessary.
    fn add_late_chunks(&mut self, disk: &mut dyn Disk) {
        for (index, chunk) in std::mem::take(&mut self.checkpoint.late_chunks) {
            if let Err(page) = self.space.add_chunk(index, chunk) {
                self.checkpoint.late_chunks.push((index, chunk));
                self.wait_for_space(page, disk);
            }
        }
    }

    /// Continues the requests that wait for free blocks.
    fn retry_stalled(&mut self, disk: &mut dyn Disk) {
        for request in std::mem::take(&mut self.stalled) {
            self.advance(request, disk);
        }
    }

    /// Makes room for requests that wait for free blocks when the pool gives no more chunks. A
    /// commit frees retired blocks; a checkpoint frees blocks of the log and of pages. If neither
    /// helps, the requests fail for lack of space.
    fn make_room(&mut self, disk: &mut dyn Disk) {
        if self.stalled.is_empty() || self.is_asking {
            return;
        }
        if self.commit.is_under_way() || self.checkpoint.is_under_way() {
            return;
        }
        if !self.batch.is_empty() || self.commit.is_open() {
            self.commit_all(disk);
            if self.commit.is_wanted() || self.commit.is_under_way() || self.is_asking {
                return;
            }
        }
        if self.writing > 0 || self.checkpoint.is_under_way() {
            return;
        }
        if self.has_something_to_checkpoint() && !self.is_without_room() {
            self.begin_checkpoint(disk);
            if self.checkpoint.is_under_way() {
                return;
            }
        }
        // Other volumes may have returned chunks since the last request to the pool.
        let may_have_more = (self.space.chunks() as u64) < self.chunks_max();
        if may_have_more && !std::mem::replace(&mut self.was_asked_again, true) {
            self.ask_for_chunks(disk);
            return self.make_room(disk);
        }
        // A reclaim may be about to free blocks.
        self.advance_reclaim(disk);
        if self.checkpoint.is_under_way() || self.waits_for_reclaim() {
            return;
        }
        self.was_asked_again = false;
        for request in std::mem::take(&mut self.stalled) {
            self.end_without_space(request, disk);
        }
    }

    /// Ends a request for which there are no free blocks. A discard succeeds, and leaves the blocks
    /// as they are that it could not make holes: NBD permits that, and a file system takes an error
    /// of a discard for a broken disk. Other requests fail.
    fn end_without_space(&mut self, request: usize, disk: &mut dyn Disk) {
        let is_discard = self.requests[request].as_mut().is_some_and(Request::give_up_discard);
        if is_discard {
            self.advance(request, disk);
        } else {
            self.abandon(request, Failure::NoSpace);
        }
    }

    /// Marks the volume as failed: nothing becomes durable any more, and all requests that wait for
    /// that fail.
    fn fail(&mut self) {
        self.has_failed = true;
        for request in self.commit.take_waiters() {
            self.end(request, Err(Failure::Io));
        }
        for request in std::mem::take(&mut self.stalled) {
            self.abandon(request, Failure::Io);
        }
        for request in std::mem::take(&mut self.held) {
            self.abandon(request, Failure::Io);
        }
        self.give_up_snapshots();
    }

    /// Writes nothing more once another server was found to have the pool: blocks that are free
    /// here may be that server's.
    fn heed_loss(&mut self) {
        if !self.has_failed && self.tables.is_lost() {
            self.fail();
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

    /// Takes the next step of closing, when nothing is under way.
    fn advance_closing(&mut self, disk: &mut dyn Disk) {
        let is_quiet = self.free_ops.len() == self.ops.len()
            && self.free_requests.len() == self.requests.len();
        if matches!(self.closing, Closing::Open | Closing::Closed) || !is_quiet {
            return;
        }
        if self.closing == Closing::Flushing && !self.has_failed {
            if !self.is_durable() {
                self.commit_all(disk);
            } else if self.has_something_to_checkpoint() || self.log.blocks > 0 {
                self.closing = Closing::Checkpointing;
                self.begin_checkpoint(disk);
            }
            if self.free_ops.len() < self.ops.len() {
                return;
            }
        }
        // If it could not be made durable, the next opening finds what there is.
        self.closing = Closing::Closed;
        let is_whole = !self.has_failed && self.is_durable() && self.log.blocks == 0;
        if is_whole && !self.checkpoint.is_under_way() {
            self.answered.take().into_iter().for_each(Answered::end);
        }
    }

    /// Whether a volume was closed, so that its next opening has nothing to verify.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.closing == Closing::Closed
    }

    fn blocks_of(&self, offset: u64, length: u32) -> (u64, u32) {
        (offset / BLOCK_BYTES as u64, length / BLOCK_BYTES as u32)
    }
}

/// Free blocks beyond the counted ones that data may not take.
const FLOOR_SPARE: u64 = 16;

/// Returns the maximum number of changed leaves of a tree with `of` leaves, and pages above them.
fn pages_above(leaves: u64, of: u64) -> u64 {
    let mut pages = leaves.min(of);
    let mut level = of;
    for _ in 0..height_for(of) {
        level = level.div_ceil(FANOUT);
        pages += leaves.min(level);
    }
    pages
}

/// Returns the number of map leaves of a volume of this size.
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
        self.heed_loss();
        let request = self.free_requests.pop().unwrap_or_else(|| {
            self.requests.push(None);
            self.requests.len() - 1
        });
        let is_held = submission.operation.is_write() && !self.wanted_snapshots.is_empty();
        self.requests[request] = Some(Request::new(submission));
        if is_held {
            self.held.push(request)
        } else {
            self.advance(request, disk)
        }
        self.commit_if_large(disk);
        self.make_room(disk);
    }

    fn disk_done(&mut self, done: DiskDone, disk: &mut dyn Disk) {
        self.heed_loss();
        self.op_done(done, disk);
        if self.commit.must_seal() {
            // A write that failed may have been the last that a flush waited for.
            self.advance_checkpoint(disk);
            self.advance_commit(disk);
        }
        self.commit_if_large(disk);
        self.make_room(disk);
        self.advance_reclaim(disk);
        self.advance_closing(disk);
        // A request may need two leaves at once, and a reclaim one. Leaves that they wait for must
        // not replace leaves that they have, nor leaves that are not written yet.
        let under_way = self.requests.len() - self.free_requests.len();
        let completed = self.checkpoint.completed();
        let max = 2 * under_way + 2 + self.map.unwritten_leaves(completed);
        self.map.shrink(self.bounds.map_pages.max(max), completed);
        self.tables.holds(self.data_blocks, self.log.durable);
    }

    fn poll(&mut self) -> Option<Completion> {
        let completion = self.finished.pop_front();
        if let (Some(_), Some(answered)) = (&completion, &mut self.answered) {
            // All changes that have ended since are noted at once, before the first is answered.
            answered.settle();
        }
        completion
    }

    fn writes_zeroes(&self, operation: Operation) -> bool {
        matches!(operation, Operation::WriteZeroes { keep_allocated: true, .. })
    }

    fn resized(&mut self, size: ByteCount) {
        self.size = size;
        // The root is made higher when a leaf beyond it is first changed: see `next_of`.
    }

    fn is_idle(&self) -> bool {
        let is_closing = matches!(self.closing, Closing::Flushing | Closing::Checkpointing);
        !is_closing
            && self.free_ops.len() == self.ops.len()
            && self.free_requests.len() == self.requests.len()
    }

    fn close(&mut self, disk: &mut dyn Disk) {
        self.heed_loss();
        if self.closing == Closing::Open && !self.has_failed {
            self.closing = Closing::Flushing;
            self.advance_closing(disk);
        }
    }

    fn must_reopen(&self) -> bool {
        self.has_failed
    }

    fn attend(&mut self, disk: &mut dyn Disk) {
        self.heed_loss();
        while let Some(task) = self.tables.task() {
            match task {
                Task::Snapshot(node) => self.begin_snapshot(node, disk),
                Task::Reclaim(doomed) => self.begin_reclaim(doomed, disk),
                Task::Rewrite(rewrite) => self.rewrite(&rewrite, disk),
            }
        }
    }

    fn rest(&mut self, disk: &mut dyn Disk) {
        self.heed_loss();
        self.confirm(disk);
    }
}

impl Volume {
    /// Rewrites metadata that is in memory.
    fn rewrite(&mut self, rewrite: &Rewrite, disk: &mut dyn Disk) {
        // A page is written to another block; the last free ones are for others.
        let has_room = self.space.known_free() > 2 * self.floor();
        if let Rewrite::Anchors(damaged) = rewrite {
            self.checkpoint.note_damaged_anchors(*damaged);
        }
        let found = match rewrite {
            Rewrite::Map(leaves) if has_room => Some((&mut self.map, leaves)),
            Rewrite::Space(leaves) if has_room => Some((self.space.tree(), leaves)),
            _ => None,
        };
        if let Some((tree, leaves)) = found {
            // With a leaf all pages above it are written.
            let leaf = leaves.clone().find(|leaf| matches!(tree.leaf(*leaf), Ok(Some(_))));
            if let Some(leaf) = leaf {
                let _ = tree.leaf_mut(leaf);
            }
        }
        self.begin_checkpoint(disk);
    }

    /// Makes the map high enough for the volume's size.
    fn fit_map(&mut self) -> Result<(), Missing> {
        if self.map.height() < height_for(leaves_for(self.size)) {
            self.map.grow(leaves_for(self.size))?;
        }
        Ok(())
    }
}
