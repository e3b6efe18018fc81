//! Opening of a volume: its anchor is read, and the log behind it is replayed. Calls block.

use super::commit::SPARES;
use super::request::Refused;
use super::{Bounds, Next, Note, Tables, Volume, Wanted, Which};
use crate::buffer::Buffer;
use crate::disk::{Disk, DiskAction, DiskDone, DiskOp};
use crate::encryption::crypt::Cipher;
use crate::local::ack_log::{Answered, Found};
use crate::local::device::{Device, read_readable};
use crate::local::format::{
    Anchor, CHUNKS_MAX, Identity, LOG_HEADER_BYTES, LogHead, Record, SnapshotRoot,
};
use crate::local::space::{Lacking, Run};
use crate::local::table::SECTOR_BYTES;
use crate::local::tree::{FANOUT, Tree, height_for, page_from};
use crate::local::{BLOCK_BYTES, CHUNK_BLOCKS, Pointer, checksum};
use crate::{Completion, Store, StoreError, Submission};
use evenkeel_core::units::ByteCount;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// Parameters of the opening of a volume.
pub struct Opening {
    /// The pool's device.
    pub device: Arc<dyn Device>,
    /// Identity that anchors and log blocks of the volume have.
    pub identity: Identity,
    /// The pool's chunk with the anchors.
    pub home: u32,
    /// The volume's chunks, in the order of their indexes; 0 where it has none.
    pub owned: Vec<u32>,
    /// Bytes of the volume.
    pub size: ByteCount,
    /// The pool's tables.
    pub tables: Box<dyn Tables>,
    /// Bounds in memory and on the device.
    pub bounds: Bounds,
    /// A number that is larger than those of all earlier openings of this volume. By it, log blocks
    /// that lost their predecessors in a crash are distinguished from those written later.
    pub session: u64,
    /// Cipher of its data, if it is encrypted.
    pub cipher: Option<Cipher>,
    /// Log of the answered changes that the volume's log lacks; without it they are lost when the
    /// process is killed.
    pub answered: Option<Answered>,
    /// Name of the volume, for errors.
    pub name: String,
}

impl Opening {
    fn of(&self) -> String {
        format!("of {} in {}", self.name, self.device.path().display())
    }

    /// Returns the error of a call that failed during this operation.
    pub(super) fn failed(&self, doing: &str) -> impl Fn(io::Error) -> StoreError + use<> {
        let doing = format!("{doing} {}", self.of());
        move |error| StoreError::io(doing.clone(), error)
    }

    /// Returns the error for damaged data.
    pub(super) fn rotten(&self, what: &str) -> StoreError {
        StoreError::Rotten { what: format!("{what} {}", self.of()) }
    }

    /// Reads the volume's anchor, and rewrites a copy that differs.
    pub(super) fn read_anchor(&self) -> Result<FoundAnchor, StoreError> {
        let mut copies = vec![0; 2 * BLOCK_BYTES];
        let device = self.device.as_ref();
        // One copy suffices, even if the other cannot be read.
        read_readable(device, offset(self.home * CHUNK_BLOCKS), &mut copies)
            .map_err(self.failed("read the anchor"))?;
        let anchor = Anchor::newest(&copies, self.identity);
        let anchor = anchor.ok_or_else(|| self.rotten("the anchor"))?;
        mend_anchor(device, self.home, &copies, anchor).map_err(self.failed("mend the anchor"))
    }

    /// Returns answered changes as a log block that follows this log; `None` if the log has them
    /// all.
    pub(super) fn answered_behind(&self, tail: &Tail) -> Result<Option<LogBlock>, StoreError> {
        let Tail { sequence, session, .. } = *tail;
        let found = Found { sequence, session, opening: self.session };
        let left = self.answered.as_ref().map(|answered| answered.left(found)).transpose();
        let left = left.map_err(self.failed("read what was answered"))?.unwrap_or_default();
        Ok(tail.block_of(left, self.identity))
    }
}

/// The anchor of a volume that is opened.
pub(super) struct FoundAnchor {
    pub anchor: Anchor,
    /// Number of copies that were damaged or could not be read.
    damaged: u64,
    /// The only copy that can be written, if the other one is lost.
    only_copy: Option<u32>,
}

/// A log block that was read.
pub(in crate::local) struct LogBlock {
    pub head: LogHead,
    pub records: Vec<Record>,
}

impl LogBlock {
    /// Returns the blocks that its records name.
    fn runs(&self) -> impl Iterator<Item = Run> + '_ {
        self.records.iter().filter_map(|record| match record {
            Record::Map { block, checksums, .. } => {
                Some(Run { block: *block, count: checksums.len() as u32 })
            }
            _ => None,
        })
    }
}

/// The end of a log.
pub(in crate::local) struct Tail {
    pub(super) next: u32,
    pub(super) sequence: u64,
    pub(super) session: u64,
    pub chunks: VecDeque<u32>,
    /// The chunk that the log enters behind the last of these; 0 if no block names it.
    pub following: u32,
    /// Whether everything up to the end is durable.
    is_closed: bool,
    pub durable: u64,
    blocks: u32,
}

impl Tail {
    /// Returns the end of a log that has no block behind this anchor.
    pub(super) fn of(anchor: &Anchor) -> Self {
        Self {
            next: anchor.log,
            sequence: anchor.sequence,
            session: anchor.session,
            chunks: VecDeque::from([anchor.log / CHUNK_BLOCKS]),
            following: 0,
            is_closed: true,
            durable: anchor.sequence - 1,
            blocks: 0,
        }
    }

    /// Moves the end behind this block.
    pub(super) fn follow(&mut self, head: &LogHead) {
        self.durable = self.durable.max(head.durable);
        self.is_closed = head.used == 0 && head.durable + 1 == head.sequence;
        self.sequence += 1;
        self.session = head.session;
        self.following = head.following;
        self.blocks += 1;
        self.next = head.next;
    }

    /// Returns whether this is a later block of the log that was written when the missing one was
    /// durable.
    pub(super) fn is_confirmed_by(&self, head: &LogHead) -> bool {
        head.session >= self.session
            && head.sequence > self.sequence
            && head.durable >= self.sequence
    }

    /// Returns the chunks in which the log may continue if its next block is damaged. Where no
    /// block names the next chunk, as in logs of earlier versions, these are all chunks of the
    /// volume if the missing block is the last of its chunk.
    pub(super) fn chunks_behind(&self, owned: &[u32]) -> impl Iterator<Item = u32> {
        let is_last = self.next % CHUNK_BLOCKS == CHUNK_BLOCKS - 1;
        let chunks = match self.following {
            0 if is_last => owned.to_vec(),
            following => vec![following],
        };
        chunks.into_iter().filter(|&chunk| chunk != 0)
    }

    /// Returns changes that the log lacks as the log block that would follow.
    fn block_of(&self, left: Vec<Record>, identity: Identity) -> Option<LogBlock> {
        let Self { sequence, durable, next, session, following, .. } = *self;
        let head = LogHead { identity, sequence, durable, next, used: 0, session, following };
        (!left.is_empty()).then_some(LogBlock { head, records: left })
    }
}

/// The number of the checkpoint that a new volume's anchor names.
pub const FIRST_CHECKPOINT: u64 = 1;

/// Writes durably the anchor of a volume whose only data is that of a snapshot, if it was made of
/// one.
///
/// # Errors
/// When the device fails.
pub fn found(
    device: &dyn Device,
    identity: Identity,
    home: u32,
    size: ByteCount,
    root: SnapshotRoot,
) -> io::Result<()> {
    let height = match root.map.block {
        0 => height_for(super::leaves_for(size)),
        _ => root.height,
    };
    let anchor = Anchor {
        identity,
        checkpoint: FIRST_CHECKPOINT,
        map: (root.map, height),
        space: (Pointer::default(), 0),
        log: home * CHUNK_BLOCKS + 2,
        sequence: 1,
        data_blocks: root.data_blocks,
        epoch: 0,
        reclaim: (0, 0),
        session: 0,
        snapshots: Vec::new(),
    };
    // The third block is cleared, so that the chunk's old data is not taken for log.
    let mut bytes = anchor.encode().repeat(2);
    bytes.resize(3 * BLOCK_BYTES, 0);
    device.write(offset(home * CHUNK_BLOCKS), &bytes)?;
    device.sync()
}

/// Overwrites copies of the anchor that differ from the newest one, durably. A crash may have left
/// the second copy older, or in part, if the anchor is longer than a sector. The next checkpoint
/// writes the first copy, and a crash must not leave both damaged.
///
/// If a damaged copy cannot be written, the other one serves alone. Checkpoints overwrite it in
/// place, and a crash leaves it old or new as long as only one sector of it changes.
///
/// # Errors
/// If a copy cannot be written and is a valid anchor all the same: once later checkpoints have
/// written the other copy alone, an opening that cannot read that one would use the older state. If
/// a copy cannot be written and the anchor is longer than a sector.
fn mend_anchor(
    device: &dyn Device,
    home: u32,
    copies: &[u8],
    anchor: Anchor,
) -> io::Result<FoundAnchor> {
    let newest = anchor.encode();
    let is_short = newest[SECTOR_BYTES..].iter().all(|&byte| byte == 0);
    let mut damaged = 0;
    let mut only_copy = None;
    for (number, copy) in (0..).zip(copies.chunks(BLOCK_BYTES)) {
        if copy == newest {
            continue;
        }
        let block = home * CHUNK_BLOCKS + number;
        let path = device.path().display();
        let written = device.write(offset(block), &newest).and_then(|()| device.sync());
        if let Err(error) = written {
            let mut left = vec![0; BLOCK_BYTES];
            read_readable(device, offset(block), &mut left)?;
            if !is_short || Anchor::decode(&left, anchor.identity).is_some() {
                return Err(error);
            }
            tracing::warn!(
                %error, device = %path, block,
                "a copy of an anchor is lost and cannot be written anew; the other one serves \
                 alone: replace the device"
            );
            only_copy = Some(1 - number);
            damaged += 1;
        } else if Anchor::decode(copy, anchor.identity).is_none() {
            tracing::warn!(
                device = %path, block,
                "a copy of an anchor was not as it was written, and is written anew from the other"
            );
            damaged += 1;
        }
    }
    Ok(FoundAnchor { anchor, damaged, only_copy })
}

/// Returns the run of all blocks of a chunk.
pub(super) fn chunk_run(chunk: u32) -> Run {
    Run { block: chunk * CHUNK_BLOCKS, count: CHUNK_BLOCKS }
}

pub(super) fn offset(block: u32) -> u64 {
    u64::from(block) * BLOCK_BYTES as u64
}

impl Volume {
    /// Opens a volume, and replays its log.
    ///
    /// # Errors
    /// [`StoreError::Rotten`] if neither copy of its anchor, or not all of its log, is as it was
    /// written; [`StoreError::Io`] if the device fails.
    pub fn open(opening: Opening) -> Result<Self, StoreError> {
        let [read_space, note, replay, checkpoint] =
            ["read the space tree", "note the snapshots", "replay the log", "write a checkpoint"]
                .map(|doing| opening.failed(doing));
        let found = opening.read_anchor()?;
        let anchor = &found.anchor;
        let (blocks, tail) = read_log(opening.device.as_ref(), anchor, &opening.owned)
            .map_err(opening.failed("read the log"))?
            .filter(|(blocks, tail)| is_possible(blocks, tail, &opening.owned, opening.size))
            .ok_or_else(|| opening.rotten("the log"))?;
        let left = opening.answered_behind(&tail)?;
        let is_closed = tail.is_closed && left.is_none();
        let session = opening.session;
        let (mut volume, answered) = Self::begin(opening, &found);
        volume.note_anchored(anchor).map_err(note)?;
        volume.fit_space().map_err(&read_space)?;
        volume.hold_log(&tail, anchor.log).map_err(&read_space)?;
        // The checkpoint of a snapshot that is replayed leaves them to the log.
        volume.space.keep_whole(SPARES);
        volume.replay_log(&blocks, left, &tail).map_err(replay)?;
        let has_snapshots = volume.space.epoch() > anchor.epoch;
        let retired = volume.end_replay(&tail, session).map_err(&read_space)?;
        if is_closed && !has_snapshots {
            for run in retired {
                volume.space.release(run);
            }
            volume.log.is_confirmed = true;
            volume.note_from_now_on(answered);
            return Ok(volume);
        }
        volume.batch.retired = retired;
        volume.reserve_spares().map_err(&read_space)?;
        volume.leave_last_block();
        volume.checkpoint_now().map_err(checkpoint)?;
        volume.note_from_now_on(answered);
        Ok(volume)
    }

    /// Returns the volume that its anchor describes, and its log of answered changes.
    pub(super) fn begin(opening: Opening, found: &FoundAnchor) -> (Self, Option<Answered>) {
        let Opening { device, home, owned, size, tables, bounds, cipher, answered, .. } = opening;
        let mut volume = Self::new(device, &found.anchor, (home, owned), size, tables, bounds);
        volume.cipher = cipher;
        volume.damage.anchors = found.damaged;
        volume.checkpoint.only_copy = found.only_copy;
        (volume, answered)
    }

    /// Ends the replay: the log continues behind its last block, in the session of this opening.
    /// Returns the runs that were replaced; they are free when the replayed changes are durable.
    pub(super) fn end_replay(&mut self, tail: &Tail, session: u64) -> io::Result<Vec<Run>> {
        self.session = session;
        let mut retired = std::mem::take(&mut self.batch).retired;
        self.is_replaying = false;
        self.go_on_at(tail.next, tail);
        // Data in these chunks was replaced before the log entered them; they hold log now.
        retired.retain(|run| !self.log.chunks.contains(&(run.block / CHUNK_BLOCKS)));
        self.keep_following(tail, &mut retired)?;
        self.space.keep_whole(SPARES.saturating_sub(self.log.spares.len()));
        self.log.blocks = tail.blocks;
        self.log.sequence = tail.sequence;
        // Log blocks behind this one may not have been flushed, nor the data that they name. A
        // block that is written now must not say that they were.
        self.log.durable = tail.durable;
        Ok(retired)
    }

    /// Continues the log in the next chunk if only the last block of the present one is left. That
    /// block stays unused: no log begins with the last block of a chunk, and an opening does not
    /// write to the log before its checkpoint is durable. Without a reserved chunk nothing changes.
    pub(super) fn leave_last_block(&mut self) {
        if self.log.left() > 1 {
            return;
        }
        if let Some(chunk) = self.log.spares.pop_front() {
            self.log.enter(chunk);
            self.commit_entered(chunk);
        }
    }

    /// Begins to note answered changes. The changes left from before are durable.
    pub(super) fn note_from_now_on(&mut self, answered: Option<Answered>) {
        self.answered = answered;
        if let Some(answered) = &mut self.answered {
            answered.start(self.session, self.log.sequence);
        }
    }

    /// Replays the log, and then the changes that it lacks. A snapshot is the state at its place in
    /// the log, and gets its own checkpoint.
    fn replay_log(
        &mut self,
        blocks: &[LogBlock],
        left: Option<LogBlock>,
        tail: &Tail,
    ) -> io::Result<()> {
        let is_snapshot = |record: &Record| matches!(record, Record::Snapshot { .. });
        let has_snapshots = blocks.iter().flat_map(|block| &block.records).any(is_snapshot);
        // The log does not name the data of changes that it lacks, so that is held, too.
        let mut named: Vec<Run> = Vec::new();
        if has_snapshots {
            named.extend(blocks.iter().chain(&left).flat_map(LogBlock::runs));
            self.hold_named(&named, tail)?;
        }
        for block in blocks {
            self.replay_block(block, tail)?;
        }
        self.release_replaced(tail)?;
        if let Some(left) = left {
            self.replay_block(&left, tail)?;
        }
        named.into_iter().for_each(|run| self.space.release(run));
        let first = self.log.chunks.front().map_or(tail.next, |chunk| chunk * CHUNK_BLOCKS);
        self.hold_log(tail, first)
    }

    /// Reserves the blocks that later records name, and the next chunk of the log, so that the
    /// checkpoint of a snapshot does not write to them.
    fn hold_named(&mut self, named: &[Run], tail: &Tail) -> io::Result<()> {
        let following = (tail.following != 0).then_some(chunk_run(tail.following));
        for run in named.iter().copied().chain(following) {
            self.repeat(|volume| {
                volume
                    .space
                    .hold(run)
                    .map_err(|page| Refused::Next(Next::Wait(Wanted { which: Which::Space, page })))
            })?;
        }
        Ok(())
    }

    fn replay_block(&mut self, block: &LogBlock, tail: &Tail) -> io::Result<()> {
        let is_durable = block.head.sequence <= tail.durable;
        for record in &block.records {
            match record {
                Record::Snapshot { node } => self.wanted_snapshots.push(*node),
                record => self.replay(record.clone(), is_durable)?,
            }
        }
        if !self.wanted_snapshots.is_empty() {
            self.log.sequence = block.head.sequence + 1;
            self.log.durable = block.head.sequence;
            // The blocks that follow are of this session or a later one, but not of the present
            // opening. A replay after another crash must find them again.
            self.session = block.head.session;
            self.go_on_at(block.head.next, tail);
            self.checkpoint_now()?;
            self.hold_log(tail, block.head.next)?;
        }
        Ok(())
    }

    /// Frees the blocks that the log has replaced, once all of it is durable. Before the crash most
    /// of them were free, and on a full pool the checkpoint of the opening finds no others.
    ///
    /// What overwrites them may be there when the same log is replayed once more. A record that
    /// does not fit its data is passed over then, and the map ends the same: each of these blocks
    /// is replaced by a later record of the log. No other record names a block that an unconfirmed
    /// one has replaced, since its own log block would confirm that.
    fn release_replaced(&mut self, tail: &Tail) -> io::Result<()> {
        let retired = std::mem::take(&mut self.batch.retired);
        // A log that was closed was flushed before its last block.
        if !retired.is_empty() && !tail.is_closed {
            self.device.sync()?;
        }
        retired.into_iter().for_each(|run| self.space.release(run));
        Ok(())
    }

    /// Notes the snapshots of the anchor in the node table, which may not know yet that they have
    /// its map.
    pub(super) fn note_anchored(&mut self, anchor: &Anchor) -> io::Result<()> {
        if anchor.snapshots.is_empty() {
            return Ok(());
        }
        if let Some(fd) = self.tables.note(Note::Made(anchor.snapshots.clone(), anchor.root())) {
            run(self.device.as_ref(), DiskOp::readable(0, fd));
        }
        if self.tables.noted() {
            Ok(())
        } else {
            Err(io::Error::other("the table of volumes cannot be written"))
        }
    }

    /// Moves the log to this block, which is in one of the chunks that were read.
    fn go_on_at(&mut self, next: u32, tail: &Tail) {
        let place = |chunk: u32| tail.chunks.iter().position(|known| *known == chunk).unwrap_or(0);
        let first = self.log.chunks.front().map_or(0, |chunk| place(*chunk));
        let last = place(next / CHUNK_BLOCKS);
        self.log.next = next;
        self.log.chunks = tail.chunks.range(first..=last.max(first)).copied().collect();
    }

    /// Reserves the chunk that the last log block names, so that blocks that name it stay true in
    /// this session. All of that chunk was free when it was named, so no block in it is retired.
    fn keep_following(&mut self, tail: &Tail, retired: &mut Vec<Run>) -> io::Result<()> {
        let following = tail.following;
        if following == 0 || tail.chunks.contains(&following) {
            return Ok(());
        }
        self.space.release(chunk_run(following));
        retired.retain(|run| run.block / CHUNK_BLOCKS != following);
        loop {
            match self.space.take_chunk_at(following) {
                Ok(true) => self.log.spares.push_back(following),
                Ok(false) => {}
                Err(page) => {
                    self.fetch(Wanted { which: Which::Space, page })?;
                    continue;
                }
            }
            return Ok(());
        }
    }

    /// Reserves chunks for the log before a checkpoint takes blocks of them, as far as whole chunks
    /// are free.
    fn reserve_spares(&mut self) -> io::Result<()> {
        while let Err(Lacking::Leaf(page)) = self.keep_spares() {
            self.fetch(Wanted { which: Which::Space, page })?;
        }
        Ok(())
    }

    /// Makes the space tree high enough for all chunks that the volume owns.
    pub(super) fn fit_space(&mut self) -> io::Result<()> {
        while let Err(page) = self.space.fit() {
            self.fetch(Wanted { which: Which::Space, page })?;
        }
        Ok(())
    }

    /// Marks the log's chunks from that of block `from` on as used. The replay may free blocks
    /// there: those of data that was replaced before the log entered the chunk.
    pub(super) fn hold_log(&mut self, tail: &Tail, from: u32) -> io::Result<()> {
        let first = tail.chunks.iter().position(|chunk| *chunk == from / CHUNK_BLOCKS);
        for &chunk in tail.chunks.iter().skip(first.unwrap_or(0)) {
            let run = chunk_run(chunk);
            self.repeat(|volume| {
                volume
                    .space
                    .commit(run)
                    .map_err(|page| Refused::Next(Next::Wait(Wanted { which: Which::Space, page })))
            })?;
        }
        Ok(())
    }

    /// Reads a page that is missing.
    pub(super) fn fetch(&mut self, wanted: Wanted) -> io::Result<()> {
        let mut bytes = vec![0; BLOCK_BYTES];
        self.device.read(offset(wanted.page.pointer.block), &mut bytes)?;
        if checksum(&bytes) != wanted.page.pointer.checksum {
            let block = wanted.page.pointer.block;
            let text = format!(
                "block {block}, a page of the {:?} tree, is not as it was written",
                wanted.which
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let page = page_from(&bytes);
        self.install(wanted, page);
        Ok(())
    }

    /// Applies a record to the map. If its durability is not certain, its blocks are applied only
    /// if their data matches.
    fn replay(&mut self, record: Record, is_durable: bool) -> io::Result<()> {
        match record {
            // See `replay_log`.
            Record::Snapshot { .. } => Ok(()),
            Record::Unmap { first, count } => self.repeat(|volume| volume.unmap(first, count)),
            Record::Map { first, block, checksums } if is_durable => {
                let run = Run { block, count: checksums.len() as u32 };
                self.replay_map(first, run, &checksums)
            }
            Record::Map { first, block, checksums } => {
                let mut bytes = vec![0; checksums.len() * BLOCK_BYTES];
                self.device.read(offset(block), &mut bytes)?;
                let data = bytes.chunks(BLOCK_BYTES).map(checksum);
                for (at, (found, sum)) in (0_u32..).zip(data.zip(checksums)) {
                    if found == sum {
                        let run = Run { block: block + at, count: 1 };
                        self.replay_map(first + u64::from(at), run, &[sum])?;
                    }
                }
                Ok(())
            }
        }
    }

    /// Applies a map record. Blocks that are at their places already stay unchanged: a write that
    /// another one overtook is in the log twice.
    fn replay_map(&mut self, first: u64, run: Run, sums: &[u32]) -> io::Result<()> {
        for (at, &checksum) in (0_u32..).zip(sums) {
            let run = Run { block: run.block + at, count: 1 };
            let sum = Pointer { block: 0, checksum };
            self.repeat(|volume| {
                let block = first + u64::from(at);
                if volume.maps_to(block, run.block)? {
                    return Ok(());
                }
                let replaced = volume.change_map(block, &[run], &[sum])?;
                volume.batch.retired.extend(replaced);
                Ok(())
            })?;
        }
        Ok(())
    }

    /// Repeats a change until the pages that it needs are in memory.
    pub(super) fn repeat(
        &mut self,
        mut change: impl FnMut(&mut Self) -> Result<(), Refused>,
    ) -> io::Result<()> {
        loop {
            match change(self) {
                Ok(()) => return Ok(()),
                Err(Refused::Next(Next::Wait(wanted))) => self.fetch(wanted)?,
                Err(Refused::Next(_)) => return Err(io::ErrorKind::StorageFull.into()),
                Err(Refused::Failure(failure)) => {
                    return Err(io::Error::other(format!("{failure:?}")));
                }
            }
        }
    }

    /// Writes a checkpoint, and waits for it.
    ///
    /// # Errors
    /// When the device fails.
    pub fn checkpoint_now(&mut self) -> io::Result<()> {
        let mut disk = Inline::default();
        self.begin_checkpoint(&mut disk);
        self.settle(&mut disk);
        if self.has_failed {
            return Err(io::Error::other("a write or a flush failed"));
        }
        if self.checkpoint.is_under_way() || self.checkpoint.lacked_with.is_some() {
            Err(io::ErrorKind::StorageFull.into())
        } else {
            Ok(())
        }
    }

    /// Closes the volume as [`Store::close`], and waits for it.
    pub fn close_now(&mut self) {
        let mut disk = Inline::default();
        self.close(&mut disk);
        self.settle(&mut disk);
    }

    /// Requests more chunks, and waits for the answer.
    pub(super) fn ask_now(&mut self) {
        let mut disk = Inline::default();
        self.ask_for_chunks(&mut disk);
        self.settle(&mut disk);
    }

    /// Does the pool's tasks as [`Store::attend`], and waits until they are done.
    pub fn attend_now(&mut self) {
        let mut disk = Inline::default();
        self.attend(&mut disk);
        self.settle(&mut disk);
    }

    /// Executes a request, and waits for its completion.
    pub fn run_now(&mut self, submission: Submission) -> Completion {
        let mut disk = Inline::default();
        self.submit(submission, &mut disk);
        self.settle(&mut disk);
        let Some(ended) = self.poll() else { unreachable!("nothing is left to wait for") };
        ended
    }

    /// Leaves all blocks of the volume to the deleted snapshot of this node. The volume is empty
    /// then; only the reclaim of the snapshot's blocks is left. That needs new blocks for the space
    /// tree only, and continues after a crash.
    ///
    /// # Errors
    /// When the device fails.
    pub fn leave_all_to(&mut self, node: u32) -> io::Result<()> {
        let mut disk = Inline::default();
        self.begin_snapshot(node, &mut disk);
        self.settle(&mut disk);
        if self.has_failed || self.made_snapshots.is_empty() {
            return Err(io::Error::other("a write or a flush failed"));
        }
        self.map = Tree::new(height_for(super::leaves_for(self.size)), Pointer::default());
        self.data_blocks = 0;
        self.checkpoint_now()
    }

    fn settle(&mut self, disk: &mut Inline) {
        while let Some(op) = disk.0.pop_front() {
            let done = run(self.device.as_ref(), op);
            self.disk_done(done, disk);
        }
    }
}

/// A disk that executes operations in the caller's thread.
#[derive(Default)]
struct Inline(VecDeque<DiskOp>);

impl Disk for Inline {
    fn submit(&mut self, op: DiskOp) {
        self.0.push_back(op);
    }
}

/// Executes an operation on a device.
pub(in crate::local) fn run(device: &dyn Device, op: DiskOp) -> DiskDone {
    if op.action == DiskAction::Readable {
        return op.execute();
    }
    let DiskOp { token, action, offset, length, mut buffer, buffer_offset, .. } = op;
    let range = buffer_offset as usize..buffer_offset as usize + length as usize;
    let memory = buffer.as_mut().map(Buffer::bytes_mut);
    let result = match (action, memory) {
        (DiskAction::Read, Some(memory)) => device.read(offset, &mut memory[range]),
        (DiskAction::Write, Some(memory)) => device.write(offset, &memory[range]),
        (DiskAction::Sync, _) => device.sync(),
        _ => Err(io::ErrorKind::Unsupported.into()),
    };
    let errno = |error: io::Error| Errno::from_io_error(&error).unwrap_or(Errno::IO);
    DiskDone { token, result: result.map(|()| length).map_err(errno), buffer }
}

/// Returns whether the log is in the volume's own chunks and names possible blocks. Impossible
/// numbers are damage, whatever their checksum.
pub(in crate::local) fn is_possible(
    blocks: &[LogBlock],
    tail: &Tail,
    owned: &[u32],
    size: ByteCount,
) -> bool {
    tail.chunks.iter().all(|chunk| owned.contains(chunk))
        && blocks.iter().flat_map(|block| &block.records).all(|record| is_placed(record, size))
}

/// Returns whether a record names blocks that the volume and the pool can have.
pub(super) fn is_placed(record: &Record, size: ByteCount) -> bool {
    // A deletion unmaps whole leaves.
    let blocks_of_volume = super::leaves_for(size).saturating_mul(FANOUT);
    let (first, count) = match record {
        Record::Map { first, block, checksums } => {
            let count = checksums.len() as u32;
            let end = block.checked_add(count).filter(|_| *block >= CHUNK_BLOCKS);
            let is_placed = end.is_some_and(|end| end <= CHUNKS_MAX * CHUNK_BLOCKS);
            (*first, is_placed.then_some(count))
        }
        Record::Unmap { first, count } => (*first, Some(*count)),
        Record::Snapshot { .. } => return true,
    };
    let end = count.and_then(|count| first.checked_add(count.into()));
    end.is_some_and(|end| end <= blocks_of_volume)
}

/// Reads the log of a volume with these chunks, from the place in its anchor on. Returns `None` if
/// a block before the log's end is damaged.
pub(in crate::local) fn read_log(
    device: &dyn Device,
    anchor: &Anchor,
    owned: &[u32],
) -> io::Result<Option<(Vec<LogBlock>, Tail)>> {
    let mut blocks: Vec<LogBlock> = Vec::new();
    let mut tail = Tail::of(anchor);
    loop {
        // An impossible chunk is damage.
        if !owned.contains(&(tail.next / CHUNK_BLOCKS)) {
            return Ok(None);
        }
        match follow_chunk(device, anchor.identity, &mut tail, &mut blocks)? {
            InChunk::GoesOn => tail.chunks.push_back(tail.next / CHUNK_BLOCKS),
            InChunk::Rotten => return Ok(None),
            InChunk::Ended => {
                let is_rotten = goes_on_elsewhere(device, anchor, &tail, owned)?;
                return Ok((!is_rotten).then_some((blocks, tail)));
            }
        }
    }
}

/// Result of following a log within one chunk.
enum InChunk {
    /// Its next block is in another one.
    GoesOn,
    /// Its next block is not there.
    Ended,
    /// Its next block is not there, although a later block of the chunk confirms it.
    Rotten,
}

/// Log blocks that are read at once. A volume that was closed has none behind its anchor.
const PIECE_BLOCKS: u32 = 16;

/// Follows the log to the end of the chunk that it is in.
fn follow_chunk(
    device: &dyn Device,
    identity: Identity,
    tail: &mut Tail,
    blocks: &mut Vec<LogBlock>,
) -> io::Result<InChunk> {
    let mut buffer = vec![0; PIECE_BLOCKS as usize * BLOCK_BYTES];
    let mut next = tail.next;
    let end = (next / CHUNK_BLOCKS + 1) * CHUNK_BLOCKS;
    let mut has_ended = false;
    while next < end {
        let count = PIECE_BLOCKS.min(end - next);
        let bytes = &mut buffer[..count as usize * BLOCK_BYTES];
        device.read(offset(next), bytes)?;
        next += count;
        for block in bytes.chunks(BLOCK_BYTES) {
            if has_ended {
                if LogHead::decode(block, identity).is_some_and(|head| tail.is_confirmed_by(&head))
                {
                    return Ok(InChunk::Rotten);
                }
                continue;
            }
            let head = LogHead::decode(block, identity)
                .filter(|head| head.sequence == tail.sequence && head.session >= tail.session);
            let Some(head) = head else {
                has_ended = true;
                continue;
            };
            let records = &block[LOG_HEADER_BYTES..][..head.used as usize];
            let Ok(records) = Record::decode_all(records) else { return Ok(InChunk::Rotten) };
            let is_next = head.next == tail.next + 1 && !head.next.is_multiple_of(CHUNK_BLOCKS);
            tail.follow(&head);
            blocks.push(LogBlock { head, records });
            if !is_next {
                return Ok(InChunk::GoesOn);
            }
        }
    }
    Ok(InChunk::Ended)
}

/// Returns whether a log whose next block is damaged continues in another chunk: that chunk begins
/// with a block that confirms the damaged one.
fn goes_on_elsewhere(
    device: &dyn Device,
    anchor: &Anchor,
    tail: &Tail,
    owned: &[u32],
) -> io::Result<bool> {
    let mut block = vec![0; BLOCK_BYTES];
    for chunk in tail.chunks_behind(owned) {
        device.read(offset(chunk * CHUNK_BLOCKS), &mut block)?;
        let head = LogHead::decode(&block, anchor.identity);
        if head.is_some_and(|head| tail.is_confirmed_by(&head)) {
            return Ok(true);
        }
    }
    Ok(false)
}
