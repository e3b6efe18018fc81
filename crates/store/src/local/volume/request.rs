//! Processing of requests: reads are verified; writes go to free blocks, and then into the map.

use super::locality::{self, GAPS_UNDER_WAY_MAX};
use super::{Next, OVERWRITE_BLOCKS, Purpose, Volume, Wanted, Which};
use crate::buffer::Buffer;
use crate::disk::Disk;
use crate::encryption::crypt::Cipher;
use crate::local::ack_log::Place;
use crate::local::format::{RECORD_BLOCKS_MAX, Record};
use crate::local::space::{LARGE, Lacking, Run, Runs};
use crate::local::tree::{FANOUT, Missing};
use crate::local::{BLOCK_BYTES, CHUNK_BLOCKS, Pointer, checksum};
use crate::{EXTENTS_MAX, Extent, Submission};
use evenkeel_core::limits::QUANTUM_BYTES_MAX;
use evenkeel_core::request::{Failure, Operation};
use smallvec::SmallVec;

/// Maximum number of times that a read is repeated because the map names another block by then.
const TRIES_MAX: u32 = 64;

/// Maximum number of map leaves that one status request reads: data of 128 MiB, in some
/// microseconds.
const STATUS_LEAVES_MAX: u32 = 64;

/// Blocks of zeroes that are written at once: as many as the largest write that a client is charged
/// for.
const ZEROES_BLOCKS: u32 = QUANTUM_BYTES_MAX / BLOCK_BYTES as u32;

/// Entries of the map for the blocks of a request, most of which have one block.
type Pointers = SmallVec<[Pointer; 2]>;

/// Progress of a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Stage {
    /// It needs pages of the map, or free blocks.
    Begin,
    /// Its data is being read or written.
    Transfer,
    /// Its data is written; the map is not changed yet.
    Apply,
    /// It waits to be durable.
    Commit,
}

/// See the module's text.
#[derive(Debug)]
pub(super) struct Request {
    submission: Submission,
    stage: Stage,
    /// The runs of its data, in order. Holes of a read have block 0.
    runs: Runs,
    /// Parts of the device that a read of several runs reads: each run is in one of them. They may
    /// have blocks between that the request does not want.
    spans: Vec<Run>,
    /// Number of these blocks.
    gap_blocks: u32,
    /// A read with such blocks has failed, perhaps because of one of them: it reads none.
    is_exact: bool,
    /// Bytes that a write puts on the disk if they are not the client's payload: the encrypted
    /// payload, or zeroes.
    sealed: Option<Buffer>,
    /// Blocks of zeroes that are written and in the map.
    zeroed: u32,
    /// The map's entries for the blocks of a read, and the checksums of a write.
    pointers: Pointers,
    /// Blocks that have a place, or are done.
    blocks_done: u32,
    parts_left: usize,
    failure: Option<Failure>,
    tries: u32,
    /// The log block to which its records were written beside its data.
    logged: Option<u64>,
    /// It is answered when it is durable, although its client does not need that: the log of
    /// answered changes had no room for it.
    must_wait: bool,
    extents: Vec<Extent>,
}

impl Request {
    pub fn new(submission: Submission) -> Self {
        Self {
            submission,
            stage: Stage::Begin,
            runs: Runs::new(),
            spans: Vec::new(),
            gap_blocks: 0,
            is_exact: false,
            sealed: None,
            zeroed: 0,
            pointers: Pointers::new(),
            blocks_done: 0,
            parts_left: 0,
            failure: None,
            tries: 0,
            logged: None,
            must_wait: false,
            extents: Vec::new(),
        }
    }

    pub fn into_parts(self) -> (u64, Option<Buffer>, Vec<Extent>) {
        (self.submission.ticket, self.submission.buffer, self.extents)
    }

    /// Returns whether it puts bytes on the disk: its client's, or zeroes that keep their space.
    fn is_write(&self) -> bool {
        self.is_of_zeroes() || matches!(self.submission.operation, Operation::Write { .. })
    }

    /// Returns whether it writes zeroes block by block, because their space is to stay allocated.
    fn is_of_zeroes(&self) -> bool {
        matches!(self.submission.operation, Operation::WriteZeroes { keep_allocated: true, .. })
    }

    /// Returns whether it is a write that has taken blocks and is not in the map yet.
    fn is_writing(&self) -> bool {
        self.is_write() && matches!(self.stage, Stage::Transfer | Stage::Apply)
    }

    /// Returns the first block and the number of blocks that a write transfers at present: all of
    /// its blocks, or at most [`ZEROES_BLOCKS`] of a write of zeroes.
    fn written(&self) -> (u64, u32) {
        let first = self.submission.offset / BLOCK_BYTES as u64;
        let count = self.submission.length / BLOCK_BYTES as u32;
        if self.is_of_zeroes() {
            (first + u64::from(self.zeroed), (count - self.zeroed).min(ZEROES_BLOCKS))
        } else {
            (first, count)
        }
    }

    /// Returns the bytes that go to the disk from block `first` on, and keeps them if they are not
    /// the client's.
    fn seal(&mut self, first: u64, count: u32, cipher: Option<&Cipher>) -> Option<&[u8]> {
        let length = count as usize * BLOCK_BYTES;
        let payload = if self.is_of_zeroes() {
            None
        } else {
            Some(&self.submission.buffer.as_ref()?.bytes()[..length])
        };
        if let (Some(payload), None) = (payload, cipher) {
            return Some(payload);
        }
        let sealed = self.sealed.insert(Buffer::new(length));
        let place = &mut sealed.bytes_mut()[..length];
        if let Some(payload) = payload {
            place.copy_from_slice(payload);
        }
        if let Some(cipher) = cipher {
            cipher.encrypt(first, place);
        }
        Some(place)
    }

    fn wants_durable(&self) -> bool {
        use Operation::{Discard, Flush, Write, WriteZeroes};
        match self.submission.operation {
            Write { fua } | Discard { fua } | WriteZeroes { fua, .. } => fua,
            Flush => true,
            Operation::Read | Operation::BlockStatus | Operation::Cache => false,
        }
    }

    /// Leaves blocks that are not discarded yet as they are. Returns whether the request is a
    /// discard.
    pub fn give_up_discard(&mut self) -> bool {
        let is_discard = matches!(self.submission.operation, Operation::Discard { .. });
        if is_discard {
            self.blocks_done = self.submission.length / BLOCK_BYTES as u32;
        }
        is_discard
    }

    /// Returns the step after the last one: an answer, or a commit before that.
    fn done(&self) -> Step {
        if self.wants_durable() || self.must_wait { Step::Durable } else { Step::Ended }
    }
}

/// Waits for a missing page of the map.
fn map(page: Missing) -> Next {
    Next::Wait(Wanted { which: Which::Map, page })
}

/// Waits for a missing page of the space tree.
fn space(page: Missing) -> Next {
    Next::Wait(Wanted { which: Which::Space, page })
}

impl Volume {
    /// Does the next steps of a request, as far as possible.
    pub(super) fn next_of(&mut self, number: usize, disk: &mut dyn Disk) -> Next {
        let Some(mut request) = self.requests[number].take() else { return Next::Nothing };
        let operation = request.submission.operation;
        let is_refused = self.has_failed && (operation.is_write() || operation.is_durable());
        let next =
            if is_refused { Err(Failure::Io) } else { self.step(number, &mut request, disk) };
        self.requests[number] = Some(request);
        match next {
            Ok(Step::Next(next)) => next,
            Ok(Step::Ended) => {
                self.end(number, Ok(()));
                Next::Nothing
            }
            Ok(Step::Durable) => {
                if let Some(request) = &mut self.requests[number] {
                    request.stage = Stage::Commit;
                }
                self.wait_for_commit(number, disk);
                Next::Nothing
            }
            Err(failure) => {
                self.abandon(number, failure);
                Next::Nothing
            }
        }
    }

    /// Ends a request with a failure, and frees the blocks that it has taken.
    pub(super) fn abandon(&mut self, number: usize, failure: Failure) {
        let Some(request) = &mut self.requests[number] else { return };
        self.writing -= usize::from(request.is_writing());
        if request.logged.take().is_some() {
            let (first, _) = request.written();
            let count = request.pointers.len() as u64;
            let runs = std::mem::take(&mut request.runs);
            self.correct_log(first, count, runs);
        } else if request.is_write() {
            for run in std::mem::take(&mut request.runs) {
                self.space.release(run);
            }
        }
        self.end(number, Err(failure));
    }

    /// Logs the places of these blocks from the map, since the log names runs to which they could
    /// not be written. The runs are free when that is durable.
    fn correct_log(&mut self, first: u64, count: u64, runs: Runs) {
        let pointers: Result<Vec<Pointer>, Missing> =
            (first..first + count).map(|block| self.pointer(block)).collect();
        // The pages were in memory when the write was logged. If they are not any more, nothing may
        // become durable after it.
        let Ok(pointers) = pointers else { return self.fail() };
        let mut start = first;
        for run in self::runs(&pointers) {
            let sums = &pointers[(start - first) as usize..][..run.count as usize];
            if run.block == 0 {
                self.add_to_batch(vec![Record::Unmap { first: start, count: run.count }]);
            } else {
                self.add_to_batch(records(start, &[run], sums));
            }
            start += u64::from(run.count);
        }
        self.batch.retired.extend(runs);
        self.commit.note_correction(first, count);
    }

    fn step(
        &mut self,
        number: usize,
        request: &mut Request,
        disk: &mut dyn Disk,
    ) -> Result<Step, Failure> {
        let next = match (request.submission.operation, request.stage) {
            (_, Stage::Transfer | Stage::Commit) => Ok(Step::Next(Next::Nothing)),
            (Operation::Read, _) => self.begin_read(number, request, disk),
            (Operation::WriteZeroes { keep_allocated: true, only_if_fast: true, .. }, _) => {
                Err(Refused::Failure(Failure::NotSupported))
            }
            (_, Stage::Apply) => self.apply_write(number, request, disk),
            (Operation::Write { .. } | Operation::WriteZeroes { keep_allocated: true, .. }, _) => {
                self.begin_write(number, request, disk)
            }
            (Operation::Flush, _) => {
                self.commit.note_flush();
                Ok(Step::Durable)
            }
            (Operation::Discard { .. } | Operation::WriteZeroes { .. }, _) => self.clear(request),
            (Operation::BlockStatus, _) => self.status(request),
            (Operation::Cache, _) => Ok(Step::Ended),
        };
        next.or_else(|refused| match refused {
            Refused::Next(next) => Ok(Step::Next(next)),
            Refused::Failure(failure) => Err(failure),
        })
    }

    /// Returns the map's entry for a block.
    pub(super) fn pointer(&mut self, block: u64) -> Result<Pointer, Missing> {
        let page = self.map.leaf(block / FANOUT)?;
        Ok(page
            .map_or(Pointer::default(), |page| Pointer::from_bits(page[(block % FANOUT) as usize])))
    }

    fn begin_read(
        &mut self,
        number: usize,
        request: &mut Request,
        disk: &mut dyn Disk,
    ) -> Result<Step, Refused> {
        let (first, count) = self.blocks_of(request.submission.offset, request.submission.length);
        request.pointers.clear();
        for block in first..first + u64::from(count) {
            let pointer = self.pointer(block).map_err(|page| Refused::Next(map(page)))?;
            request.pointers.push(pointer);
        }
        request.runs.clear();
        request.runs.extend(runs(&request.pointers));
        if request.runs.iter().all(|run| run.block == 0) {
            zero(request, 0, count);
            return Ok(Step::Ended);
        }
        request.stage = Stage::Transfer;
        if let [run] = request.runs[..] {
            let buffer = request.submission.buffer.take().ok_or(Failure::Invalid)?;
            request.parts_left = 1;
            self.read_op(Purpose::Data { request: number, part: 0 }, run, buffer, disk);
            return Ok(Step::Next(Next::Nothing));
        }
        self.read_spans(number, request, disk);
        Ok(Step::Next(Next::Nothing))
    }

    /// Reads the runs of a request that has several, and fills its holes.
    fn read_spans(&mut self, number: usize, request: &mut Request, disk: &mut dyn Disk) {
        let mut block = 0;
        for run in request.runs.clone() {
            if run.block == 0 {
                zero(request, block, run.count);
            }
            block += run.count;
        }
        let room = GAPS_UNDER_WAY_MAX - self.gap_blocks;
        let spans = locality::spans(&request.runs, if request.is_exact { 0 } else { room });
        let wanted = request.pointers.iter().filter(|pointer| pointer.block != 0).count();
        request.gap_blocks = locality::blocks(&spans).saturating_sub(wanted as u32);
        self.gap_blocks += request.gap_blocks;
        request.parts_left = spans.len();
        for (part, &span) in spans.iter().enumerate() {
            let buffer = Buffer::new(span.count as usize * BLOCK_BYTES);
            self.read_op(Purpose::Data { request: number, part }, span, buffer, disk);
        }
        request.spans = spans;
    }

    fn begin_write(
        &mut self,
        number: usize,
        request: &mut Request,
        disk: &mut dyn Disk,
    ) -> Result<Step, Refused> {
        let (first, count) = request.written();
        if request.pointers.is_empty() {
            let bytes = request.seal(first, count, self.cipher.as_ref()).ok_or(Failure::Invalid)?;
            let sum = |block: &[u8]| Pointer { block: 0, checksum: checksum(block) };
            let pointers = bytes.chunks(BLOCK_BYTES).map(sum).collect();
            request.pointers = pointers;
        }
        if let Some(next) = self.take_runs(request, first, count)? {
            return Ok(Step::Next(next));
        }
        self.writing += 1;
        self.ask_ahead(disk);
        request.stage = Stage::Transfer;
        request.parts_left = request.runs.len();
        let is_eager = self.commit.note_write() || request.wants_durable();
        if is_eager && self.is_in_memory(first, count) {
            let records = records(first, &request.runs, &request.pointers);
            request.logged = self.log_beside(&records, disk);
        }
        if let [run] = request.runs[..] {
            let payload = request.sealed.take().or_else(|| request.submission.buffer.take());
            let buffer = payload.ok_or(Failure::Invalid)?;
            self.write_op(Purpose::Data { request: number, part: 0 }, run, buffer, disk);
            return Ok(Step::Next(Next::Nothing));
        }
        let payload = request.sealed.as_ref().or(request.submission.buffer.as_ref());
        let payload = payload.ok_or(Failure::Invalid)?;
        let mut start = 0;
        for (part, &run) in request.runs.iter().enumerate() {
            let length = run.count as usize * BLOCK_BYTES;
            let mut buffer = Buffer::new(length);
            buffer.bytes_mut()[..length].copy_from_slice(&payload.bytes()[start..start + length]);
            start += length;
            self.write_op(Purpose::Data { request: number, part }, run, buffer, disk);
        }
        Ok(Step::Next(Next::Nothing))
    }

    /// Takes blocks for a write. Returns the step that waits for blocks, if there are none.
    fn take_runs(
        &mut self,
        request: &mut Request,
        first: u64,
        count: u32,
    ) -> Result<Option<Next>, Refused> {
        let floor = self.floor();
        let may_grow = self.may_grow();
        // The log's chunks are reserved first: without them nothing becomes durable.
        let mut lacking = self.keep_spares().err();
        while lacking.is_none() && request.blocks_done < count {
            let wanted = count - request.blocks_done;
            let next = first + u64::from(request.blocks_done);
            if let Some(run) = self.take_near(next, wanted, floor + OVERWRITE_BLOCKS)? {
                request.blocks_done += run.count;
                request.runs.push(run);
                continue;
            }
            let mut taken = self.space.take(wanted, floor + OVERWRITE_BLOCKS, may_grow);
            if taken == Err(Lacking::Chunk) && !may_grow && self.gives_all_back(first, count)? {
                taken = self.space.take(wanted, floor, may_grow);
            }
            match taken {
                Ok(run) => {
                    request.blocks_done += run.count;
                    request.runs.push(run);
                }
                Err(error) => lacking = Some(error),
            }
        }
        Ok(lacking.map(|lacking| match lacking {
            Lacking::Leaf(page) => space(page),
            Lacking::Chunk => Next::Stall,
        }))
    }

    /// Takes blocks for a small write from block `at` on, near the blocks of the volume beside it.
    /// Returns `None` if it has no neighbours, or there is no room near them.
    fn take_near(&mut self, at: u64, wanted: u32, floor: u64) -> Result<Option<Run>, Refused> {
        if wanted >= LARGE {
            return Ok(None);
        }
        // The write needs this page to reach the map, too.
        let leaf = self.map.leaf(at / FANOUT).map_err(|page| Refused::Next(map(page)))?;
        let Some(page) = leaf else { return Ok(None) };
        let entry = (at % FANOUT) as usize;
        let space = &mut self.space;
        let mut target = locality::place_among(page, entry, |_| true);
        if target.is_some_and(|block| !space.has(block)) {
            // The blocks of a snapshot that the volume was made of are in chunks of others.
            target = locality::place_among(page, entry, |block| space.has(block));
        }
        Ok(target.and_then(|target| space.take_near(target, wanted, floor)))
    }

    /// Requests chunks before they are needed, since a write that waits for one waits for two
    /// flushes.
    fn ask_ahead(&mut self, disk: &mut dyn Disk) {
        let ahead = self.floor() + OVERWRITE_BLOCKS + u64::from(CHUNK_BLOCKS);
        if self.may_grow() && self.space.is_known() && self.space.known_free() < ahead {
            self.ask_for_chunks(disk);
        }
    }

    /// Returns whether a write of these blocks gives as many blocks back as it takes: none of them
    /// is a hole or in a snapshot.
    fn gives_all_back(&mut self, first: u64, count: u32) -> Result<bool, Refused> {
        for block in first..first + u64::from(count) {
            let place = self.pointer(block).map_err(|page| Refused::Next(map(page)))?.block;
            let gives_back = place != 0
                && self.space.gives_back(place).map_err(|page| Refused::Next(space(page)))?;
            if !gives_back {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Handles the end of a transfer of a part of a request's data.
    pub(super) fn data_done(
        &mut self,
        number: usize,
        part: usize,
        result: Result<(), Failure>,
        buffer: Option<Buffer>,
        disk: &mut dyn Disk,
    ) {
        let Some(request) = &mut self.requests[number] else { return };
        request.failure = request.failure.or(result.err());
        request.parts_left -= 1;
        let is_read = request.submission.operation == Operation::Read;
        if request.runs.len() == 1 && !request.is_of_zeroes() {
            // The encrypted data is no longer needed.
            request.submission.buffer = request.submission.buffer.take().or(buffer);
        } else if is_read && let (Some(from), Some(to)) = (buffer, &mut request.submission.buffer) {
            take_from(request.spans[part], from.bytes(), &request.runs, to.bytes_mut());
        }
        if request.parts_left > 0 {
            return;
        }
        if is_read {
            let gap_blocks = std::mem::take(&mut request.gap_blocks);
            self.gap_blocks -= gap_blocks;
            if request.failure.is_some() && gap_blocks > 0 {
                // Perhaps none of the blocks that the request wants is damaged.
                (request.failure, request.is_exact) = (None, true);
                request.stage = Stage::Begin;
                return self.advance(number, disk);
            }
            self.verify(number, disk);
            return;
        }
        match request.failure {
            Some(failure) => self.abandon(number, failure),
            None => {
                request.stage = Stage::Apply;
                self.advance(number, disk);
            }
        }
    }

    /// Verifies the checksums of a read. A block that was replaced meanwhile, and whose place has
    /// other data now, is read again.
    fn verify(&mut self, number: usize, disk: &mut dyn Disk) {
        let Some(request) = &mut self.requests[number] else { return };
        let bytes = request.submission.buffer.as_ref().map_or(&[][..], Buffer::bytes);
        let fits = |(block, pointer): (&[u8], &Pointer)| {
            pointer.block == 0 || checksum(block) == pointer.checksum
        };
        let is_whole = bytes.chunks(BLOCK_BYTES).zip(&request.pointers).all(fits);
        if is_whole && request.failure.is_none() {
            if let (Some(cipher), Some(buffer)) = (&self.cipher, &mut request.submission.buffer) {
                decrypt(cipher, request.submission.offset, &request.pointers, buffer);
            }
            return self.end(number, Ok(()));
        }
        let pointers = std::mem::take(&mut request.pointers);
        let failure = request.failure.take();
        let first = request.submission.offset / BLOCK_BYTES as u64;
        request.tries += 1;
        let may_try = request.tries < TRIES_MAX;
        // A page that is no longer in memory may have changed, too.
        let is_same = (first..)
            .zip(&pointers)
            .all(|(block, pointer)| self.pointer(block).is_ok_and(|now| now == *pointer));
        if is_same || !may_try {
            self.damage.data += u64::from(failure.is_none());
            return self.end(number, Err(failure.unwrap_or(Failure::Rotten)));
        }
        if let Some(request) = &mut self.requests[number] {
            request.stage = Stage::Begin;
        }
        self.advance(number, disk);
    }

    /// Returns whether the pages of the map for these blocks are in memory.
    fn is_in_memory(&mut self, first: u64, count: u32) -> bool {
        let last = first + u64::from(count) - 1;
        self.pointer(first).is_ok() && self.pointer(last).is_ok()
    }

    fn apply_write(
        &mut self,
        number: usize,
        request: &mut Request,
        disk: &mut dyn Disk,
    ) -> Result<Step, Refused> {
        let (first, _) = request.written();
        let count = request.pointers.len() as u64;
        let is_overtaken = self.commit.was_overtaken(first, count);
        let replaced = self.change_map(first, &request.runs, &request.pointers)?;
        self.writing -= 1;
        let runs = std::mem::take(&mut request.runs);
        let unnoted = self.unnoted();
        let logged = request.logged.take();
        if let Some(sequence) = logged.filter(|_| !is_overtaken) {
            if let Some(answered) = &mut self.answered {
                answered.note(Place::Log(sequence), &records(first, &runs, &request.pointers));
            }
            self.applied_beside(replaced, disk);
        } else {
            // If the write is in the log already, another write of these blocks follows it there
            // but precedes it in the map. So this one is logged again.
            self.batch.retired.extend(replaced);
            self.add_to_batch(records(first, &runs, &request.pointers));
            if logged.is_some() {
                self.applied_beside(Runs::new(), disk);
            }
        }
        request.must_wait |= self.unnoted() > unnoted;
        if request.is_of_zeroes() {
            request.zeroed += count as u32;
            if request.written().1 > 0 {
                request.stage = Stage::Begin;
                request.blocks_done = 0;
                request.pointers.clear();
                return self.begin_write(number, request, disk);
            }
        }
        Ok(request.done())
    }

    /// Returns whether the map names this block of the pool for a block of the volume.
    pub(super) fn maps_to(&mut self, at: u64, block: u32) -> Result<bool, Refused> {
        let pointer = self.pointer(at).map_err(|page| Refused::Next(map(page)))?;
        Ok(pointer.block == block)
    }

    /// Changes the map completely or not at all: blocks of the volume from `first` on are in these
    /// runs. Returns the runs that became unused. They stay busy until the caller frees them.
    pub(super) fn change_map(
        &mut self,
        first: u64,
        runs: &[Run],
        sums: &[Pointer],
    ) -> Result<Runs, Refused> {
        let replaced = self.prepare(first, sums.len() as u64, true)?;
        for &run in runs {
            self.space.commit(run).map_err(|page| Refused::Next(space(page)))?;
        }
        let places = runs.iter().flat_map(|run| run.block..run.block + run.count);
        for ((at, block), pointer) in (first..).zip(places).zip(sums) {
            self.set_pointer(at, Pointer { block, ..*pointer })?;
        }
        self.commit.note_applied(first, sums.len() as u64);
        self.retire(&replaced)
    }

    /// Loads the pages that a change of these blocks needs. Returns the runs that the blocks are in
    /// now.
    pub(super) fn prepare(&mut self, first: u64, count: u64, makes: bool) -> Result<Runs, Refused> {
        self.fit_map().map_err(|page| Refused::Next(map(page)))?;
        let mut pointers = Pointers::new();
        for block in first..first + count {
            pointers.push(self.pointer(block).map_err(|page| Refused::Next(map(page)))?);
        }
        if makes {
            for leaf in first / FANOUT..=(first + count - 1) / FANOUT {
                self.map.leaf_mut(leaf).map_err(|page| Refused::Next(map(page)))?;
            }
        }
        let replaced: Runs = runs(&pointers).filter(|run| run.block != 0).collect();
        for &run in &replaced {
            self.space.prepare(run).map_err(|page| Refused::Next(space(page)))?;
        }
        Ok(replaced)
    }

    pub(super) fn set_pointer(&mut self, block: u64, pointer: Pointer) -> Result<(), Refused> {
        let page = self.map.leaf_mut(block / FANOUT).map_err(|page| Refused::Next(map(page)))?;
        let entry = &mut page[(block % FANOUT) as usize];
        let had = u64::from(Pointer::from_bits(*entry).block != 0);
        *entry = pointer.to_bits();
        // A wrong count in an anchor is no reason to stop.
        let data_blocks = self.data_blocks + u64::from(pointer.block != 0);
        self.data_blocks = data_blocks.saturating_sub(had);
        Ok(())
    }

    /// Frees in the space tree the blocks that a change has replaced and that no snapshot uses.
    /// Returns them; they stay busy until the change is durable.
    pub(super) fn retire(&mut self, replaced: &[Run]) -> Result<Runs, Refused> {
        let mut retired = Runs::new();
        for &run in replaced {
            retired.extend(self.space.retire(run).map_err(|page| Refused::Next(space(page)))?);
        }
        Ok(retired)
    }

    /// Makes blocks holes, a leaf at a time.
    fn clear(&mut self, request: &mut Request) -> Result<Step, Refused> {
        let (first, count) = self.blocks_of(request.submission.offset, request.submission.length);
        while request.blocks_done < count {
            let start = first + u64::from(request.blocks_done);
            let part = u64::from(count - request.blocks_done).min(FANOUT - start % FANOUT);
            let unnoted = self.unnoted();
            self.unmap(start, part as u32)?;
            request.must_wait |= self.unnoted() > unnoted;
            request.blocks_done += part as u32;
        }
        Ok(request.done())
    }

    /// Makes blocks of one leaf holes.
    pub(in crate::local) fn unmap(&mut self, first: u64, count: u32) -> Result<(), Refused> {
        let replaced = self.prepare(first, u64::from(count), false)?;
        if replaced.is_empty() {
            return Ok(());
        }
        let record = Record::Unmap { first, count };
        if !self.is_replaying
            && !self.may_clear(&record).map_err(|page| Refused::Next(space(page)))?
        {
            return Err(Refused::Next(Next::Stall));
        }
        for block in first..first + u64::from(count) {
            self.set_pointer(block, Pointer::default())?;
        }
        let retired = self.retire(&replaced)?;
        self.commit.note_applied(first, count.into());
        self.batch.retired.extend(retired);
        self.batch.cleared += u64::from(count);
        // A replayed change is in the log already.
        if !self.is_replaying {
            self.add_to_batch(vec![record]);
        }
        Ok(())
    }

    /// Returns whether blocks may be made holes: the next checkpoint finds blocks for the changed
    /// pages, and the log has room for the change. Otherwise a flush would fail.
    ///
    /// # Errors
    /// The page of the space tree that must be read first.
    fn may_clear(&mut self, record: &Record) -> Result<bool, Missing> {
        // The log's chunks are reserved first, as for a write. Without them a hole may still be
        // made: it may make a whole chunk free.
        if let Err(Lacking::Leaf(page)) = self.keep_spares() {
            return Err(page);
        }
        Ok(self.has_floor()? && self.log_takes(record))
    }

    /// Finds the holes from the beginning of the range on, in pages of the map that are in memory,
    /// and in at most [`STATUS_LEAVES_MAX`] leaves. Only the first page is read if it is missing.
    /// The client asks again for the rest.
    fn status(&mut self, request: &mut Request) -> Result<Step, Refused> {
        let (first, count) = self.blocks_of(request.submission.offset, request.submission.length);
        let mut start = first;
        let end = first + u64::from(count);
        let mut leaves = 0;
        while start < end && leaves < STATUS_LEAVES_MAX {
            let known = match self.map.unwritten_from(start / FANOUT) {
                Ok(0) => {
                    leaves += 1;
                    self.leaf_status(&mut request.extents, start, end)
                }
                Ok(unwritten) => {
                    let until = (start / FANOUT + unwritten).saturating_mul(FANOUT).min(end);
                    add_extent(&mut request.extents, until - start, true).then_some(until)
                }
                Err(page) if start == first => return Err(Refused::Next(map(page))),
                Err(_) => None,
            };
            let Some(until) = known else { break };
            start = until;
        }
        Ok(Step::Ended)
    }

    /// Adds the extents of a leaf in memory from block `at` on. Returns the block behind the leaf's
    /// last one, or `None` if the leaf is not in memory or the answer is full.
    fn leaf_status(&mut self, extents: &mut Vec<Extent>, at: u64, end: u64) -> Option<u64> {
        let page = self.map.leaf(at / FANOUT).ok()??;
        let from = (at % FANOUT) as usize;
        let count = (FANOUT as usize - from).min((end - at) as usize);
        let is_hole = |entry: &u64| Pointer::from_bits(*entry).block == 0;
        for run in page[from..from + count].chunk_by(|a, b| is_hole(a) == is_hole(b)) {
            if !add_extent(extents, run.len() as u64, is_hole(&run[0])) {
                return None;
            }
        }
        Some(at + count as u64)
    }
}

/// Adds blocks to an answer. Returns whether there was room for them.
fn add_extent(extents: &mut Vec<Extent>, blocks: u64, hole: bool) -> bool {
    // A range is at most as long as 32 bits can express.
    let length = (blocks * BLOCK_BYTES as u64) as u32;
    let is_full = extents.len() == EXTENTS_MAX;
    match extents.last_mut() {
        Some(last) if last.hole == hole => last.length += length,
        _ if is_full => return false,
        _ => extents.push(Extent { length, hole, zero: hole }),
    }
    true
}

/// Result of a step.
pub(super) enum Step {
    Next(Next),
    Ended,
    /// It is done, and is answered when it is durable.
    Durable,
}

/// Reason for which a step is not complete.
pub(in crate::local) enum Refused {
    Next(Next),
    Failure(Failure),
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Self {
        Self::Failure(failure)
    }
}

/// Returns the log records for blocks from `first` on that are in these runs.
fn records(first: u64, runs: &[Run], sums: &[Pointer]) -> Vec<Record> {
    let mut records = Vec::new();
    let mut position = 0;
    for run in runs {
        let mut run = *run;
        while run.count > 0 {
            let count = run.count.min(RECORD_BLOCKS_MAX as u32);
            let sums = &sums[position..position + count as usize];
            let checksums = sums.iter().map(|pointer| pointer.checksum).collect();
            records.push(Record::Map {
                first: first + position as u64,
                block: run.block,
                checksums,
            });
            position += count as usize;
            run = Run { block: run.block + count, count: run.count - count };
        }
    }
    records
}

/// Copies from the bytes of a span to those of a request whose data has these runs.
fn take_from(span: Run, bytes: &[u8], runs: &[Run], request: &mut [u8]) {
    let mut start = 0;
    for run in runs {
        let length = run.count as usize * BLOCK_BYTES;
        if span.blocks().contains(&run.block) {
            let from = (run.block - span.block) as usize * BLOCK_BYTES;
            request[start..start + length].copy_from_slice(&bytes[from..from + length]);
        }
        start += length;
    }
}

/// Decrypts the data of a read; holes become zeroes.
fn decrypt(cipher: &Cipher, offset: u64, pointers: &[Pointer], buffer: &mut Buffer) {
    let first = offset / BLOCK_BYTES as u64;
    let blocks = buffer.bytes_mut().chunks_mut(BLOCK_BYTES);
    for ((number, block), pointer) in (first..).zip(blocks).zip(pointers) {
        if pointer.block != 0 {
            cipher.decrypt(number, block);
        }
    }
}

/// Fills blocks of a read with zeroes.
fn zero(request: &mut Request, at: u32, count: u32) {
    if let Some(buffer) = &mut request.submission.buffer {
        buffer.bytes_mut()[at as usize * BLOCK_BYTES..][..count as usize * BLOCK_BYTES].fill(0);
    }
}

/// Returns the runs of these pointers. Holes that follow each other are a run of block 0.
fn runs(pointers: &[Pointer]) -> impl Iterator<Item = Run> + '_ {
    let follows = |a: &Pointer, b: &Pointer| match a.block {
        0 => b.block == 0,
        block => b.block == block + 1,
    };
    pointers.chunk_by(follows).map(|run| Run { block: run[0].block, count: run.len() as u32 })
}
