//! A store for clients that use any offset and length. A request that is not aligned to blocks uses
//! its own memory: a read transfers whole blocks and returns a part of them; a write reads the
//! blocks that it changes in part, and writes them back.
//!
//! Other requests may be writing the other bytes of such blocks. So an unaligned write waits until
//! no change is under way in the store below, and while it is under way no other change begins:
//! later requests wait in their order. One unaligned request is under way at a time, so a volume
//! needs memory for one. Aligned requests are passed on unchanged.

use crate::buffer::Buffer;
use crate::disk::{Disk, DiskDone};
use crate::forwarding;
use crate::{Completion, Extent, Geometry, Store, Submission};
use evenkeel_core::limits::BLOCK_BYTES_MIN;
use evenkeel_core::request::{Failure, Operation};
use std::collections::VecDeque;

/// Flag in the tickets of changes that were passed on.
const CHANGE: u64 = 1 << 63;
/// Flag in the tickets of this module's own requests.
const OURS: u64 = 1 << 62;

/// See the module's text.
pub struct Anywhere {
    inner: Box<dyn Store>,
    /// Its smallest block.
    block: u64,
    /// Number of changes in the store below that were passed on.
    changing: u32,
    /// The unaligned request that is under way.
    present: Option<Present>,
    /// Requests that wait for the end of that one, or of the changes in the store below.
    waiting: VecDeque<Submission>,
    finished: VecDeque<Completion>,
}

/// An unaligned request.
struct Present {
    submission: Submission,
    /// The steps that are left.
    steps: VecDeque<Step>,
    /// The step under way.
    step: Option<Step>,
    /// Memory for whole blocks, between two steps.
    blocks: Option<Buffer>,
    extents: Vec<Extent>,
}

/// A request to the store below, on whole blocks.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// Read into the blocks' memory, at this offset of it.
    Fetch { offset: u64, length: u32, at: u32 },
    /// Put the client's bytes into the blocks' memory, which begins at this offset; then write
    /// `length` bytes of it.
    Store { offset: u64, length: u32, fua: bool },
    /// An operation without memory.
    Plain { operation: Operation, offset: u64, length: u32 },
}

/// Returns the geometry for clients: whatever the block size of the store, sectors of 512 bytes can
/// be read and written.
#[must_use]
pub fn served(inner: Geometry) -> Geometry {
    Geometry { block_bytes_min: inner.block_bytes_min.min(BLOCK_BYTES_MIN), ..inner }
}

impl Anywhere {
    /// Creates a store in front of `inner`, which has no request under way.
    #[must_use]
    pub fn new(inner: Box<dyn Store>) -> Self {
        let block = u64::from(inner.geometry().block_bytes_min.max(1));
        let waiting = VecDeque::new();
        let finished = VecDeque::new();
        Self { inner, block, changing: 0, present: None, waiting, finished }
    }

    fn lies_on_blocks(&self, submission: &Submission) -> bool {
        submission.offset.is_multiple_of(self.block)
            && u64::from(submission.length).is_multiple_of(self.block)
    }

    fn pass_on(&mut self, mut submission: Submission, disk: &mut dyn Disk) {
        if submission.operation.is_write() {
            self.changing += 1;
            submission.ticket |= CHANGE;
        }
        self.inner.submit(submission, disk);
    }

    /// Handles requests that have ended in the store below, and begins waiting requests that may
    /// begin.
    fn go_on(&mut self, disk: &mut dyn Disk) {
        loop {
            while let Some(mut completion) = self.inner.poll() {
                if completion.ticket & OURS != 0 {
                    self.stepped(completion, disk);
                    continue;
                }
                self.changing -= u32::from(completion.ticket & CHANGE != 0);
                completion.ticket &= !CHANGE;
                self.finished.push_back(completion);
            }
            if self.present.is_some() || !self.begin_next(disk) {
                return;
            }
        }
    }

    /// Begins the request that has waited longest, if it may begin. Returns whether another one may
    /// begin, too.
    fn begin_next(&mut self, disk: &mut dyn Disk) -> bool {
        let Some(first) = self.waiting.front() else { return false };
        let on_blocks = self.lies_on_blocks(first);
        if !on_blocks && first.operation.is_write() && self.changing > 0 {
            return false;
        }
        let Some(submission) = self.waiting.pop_front() else { return false };
        if on_blocks {
            self.pass_on(submission, disk);
        } else {
            self.present = Some(Present::new(submission, self.block));
            self.step(disk);
        }
        true
    }

    /// Begins the next step of the present request, or ends the request.
    fn step(&mut self, disk: &mut dyn Disk) {
        let Some(present) = &mut self.present else { return };
        present.step = present.steps.pop_front();
        let Some(step) = present.step else { return self.end(Ok(())) };
        let submission = match step {
            Step::Fetch { offset, length, .. } => {
                let buffer = Some(Buffer::new(length as usize));
                Submission { ticket: OURS, operation: Operation::Read, offset, length, buffer }
            }
            Step::Store { offset, length, fua } => {
                present.fill_in(offset);
                let operation = Operation::Write { fua };
                let buffer = present.blocks.take();
                Submission { ticket: OURS, operation, offset, length, buffer }
            }
            Step::Plain { operation, offset, length } => {
                Submission { ticket: OURS, operation, offset, length, buffer: None }
            }
        };
        self.inner.submit(submission, disk);
    }

    /// Handles the end of a step.
    fn stepped(&mut self, completion: Completion, disk: &mut dyn Disk) {
        let Some(present) = &mut self.present else { return };
        if let Err(failure) = completion.result {
            return self.end(Err(failure));
        }
        match (present.step, &mut present.blocks, completion.buffer) {
            (Some(Step::Fetch { length, at, .. }), Some(blocks), Some(fetched)) => {
                let place = &mut blocks.bytes_mut()[at as usize..][..length as usize];
                place.copy_from_slice(&fetched.bytes()[..length as usize]);
            }
            // A read has one step. The memory of a write comes back.
            (_, None, Some(buffer)) => present.blocks = Some(buffer),
            _ => {}
        }
        present.extents = completion.extents;
        self.step(disk);
    }

    fn end(&mut self, result: Result<(), Failure>) {
        let Some(present) = self.present.take() else { return };
        self.finished.push_back(present.completion(result, self.block));
    }
}

impl Present {
    fn new(submission: Submission, block: u64) -> Self {
        let steps = VecDeque::new();
        let extents = Vec::new();
        let mut present = Self { submission, steps, step: None, blocks: None, extents };
        present.plan(block);
        present
    }

    /// Plans the steps of the request.
    fn plan(&mut self, block: u64) {
        let Submission { operation, offset, length, .. } = self.submission;
        let end = offset + u64::from(length);
        let first = offset - offset % block;
        let last = end.next_multiple_of(block);
        // The range of whole blocks within the request.
        let inner = (offset.next_multiple_of(block), end - end % block);
        // A block status may cover 2^32 bytes with its blocks: the last block is left out.
        let whole = (last - first).min((1 << 32) - block) as u32;
        match operation {
            Operation::Read => {
                self.steps.push_back(Step::Fetch { offset: first, length: whole, at: 0 });
            }
            Operation::Write { fua } => self.rewrite((first, last), (offset, end), fua, block),
            Operation::WriteZeroes { fua, .. } if inner.1 <= inner.0 => {
                self.rewrite((first, last), (offset, end), fua, block);
            }
            Operation::WriteZeroes { fua, .. } => {
                // This step is first, because it may be refused (a fast zero that would be slow).
                let length = (inner.1 - inner.0) as u32;
                self.steps.push_back(Step::Plain { operation, offset: inner.0, length });
                if first < inner.0 {
                    self.rewrite((first, inner.0), (offset, inner.0), fua, block);
                }
                if inner.1 < last {
                    self.rewrite((inner.1, last), (inner.1, end), fua, block);
                }
            }
            // A discard is advice: blocks that are covered in part are kept.
            Operation::Discard { .. } => {
                if inner.0 < inner.1 {
                    let length = (inner.1 - inner.0) as u32;
                    self.steps.push_back(Step::Plain { operation, offset: inner.0, length });
                }
            }
            Operation::BlockStatus | Operation::Cache => {
                self.steps.push_back(Step::Plain { operation, offset: first, length: whole });
            }
            Operation::Flush => self.steps.push_back(Step::Plain { operation, offset, length }),
        }
    }

    /// Adds steps that read the blocks at both ends that change in part, and then write all blocks.
    fn rewrite(
        &mut self,
        (first, last): (u64, u64),
        (offset, end): (u64, u64),
        fua: bool,
        block: u64,
    ) {
        let whole = (last - first) as u32;
        let needed = self.blocks.as_ref().map_or(0, Buffer::capacity).max(whole as usize);
        self.blocks = Some(Buffer::new(needed));
        let block_bytes = block as u32;
        if offset > first {
            self.steps.push_back(Step::Fetch { offset: first, length: block_bytes, at: 0 });
        }
        let tail = last - block;
        if end < last && (tail > first || offset == first) {
            self.steps.push_back(Step::Fetch {
                offset: tail,
                length: block_bytes,
                at: (tail - first) as u32,
            });
        }
        self.steps.push_back(Step::Store { offset: first, length: whole, fua });
    }

    /// Copies the client's bytes into the blocks' memory, which begins at `first`.
    fn fill_in(&mut self, first: u64) {
        let Submission { offset, length, .. } = self.submission;
        let end = offset + u64::from(length);
        let blocks = self.blocks.get_or_insert_with(|| Buffer::new(0));
        let last = first + blocks.capacity() as u64;
        let from = offset.max(first);
        let to = end.min(last);
        let place = &mut blocks.bytes_mut()[(from - first) as usize..(to - first) as usize];
        match &self.submission.buffer {
            Some(payload) => {
                let start = (from - offset) as usize;
                place.copy_from_slice(&payload.bytes()[start..][..place.len()]);
            }
            None => place.fill(0),
        }
    }

    fn completion(mut self, result: Result<(), Failure>, block: u64) -> Completion {
        let Submission { ticket, operation, offset, length, mut buffer } = self.submission;
        let beside = (offset % block) as u32;
        if operation == Operation::Read
            && result.is_ok()
            && let (Some(room), Some(blocks)) = (&mut buffer, &self.blocks)
        {
            let part = &blocks.bytes()[beside as usize..][..length as usize];
            room.bytes_mut()[..length as usize].copy_from_slice(part);
        }
        cut(&mut self.extents, beside, length);
        Completion { ticket, result, buffer, extents: self.extents }
    }
}

/// Removes `skipped` bytes from the beginning of extents, and the bytes beyond `length` from their
/// end.
fn cut(extents: &mut Vec<Extent>, mut skipped: u32, mut length: u32) {
    extents.retain_mut(|extent| {
        let off = skipped.min(extent.length);
        skipped -= off;
        extent.length = (extent.length - off).min(length);
        length -= extent.length;
        extent.length > 0
    });
}

impl forwarding::ForwardingStore for Anywhere {
    fn below(&self) -> &dyn Store {
        self.inner.as_ref()
    }

    fn below_mut(&mut self) -> &mut dyn Store {
        self.inner.as_mut()
    }

    fn geometry(&self) -> Geometry {
        served(self.inner.geometry())
    }

    fn submit(&mut self, submission: Submission, disk: &mut dyn Disk) {
        let changes = submission.operation.is_write();
        let passes = self.waiting.is_empty() && self.present.is_none() || !changes;
        if passes && self.lies_on_blocks(&submission) {
            self.pass_on(submission, disk);
        } else {
            self.waiting.push_back(submission);
        }
        self.go_on(disk);
    }

    fn disk_done(&mut self, done: DiskDone, disk: &mut dyn Disk) {
        self.inner.disk_done(done, disk);
        self.go_on(disk);
    }

    fn poll(&mut self) -> Option<Completion> {
        self.finished.pop_front()
    }
}

#[cfg(test)]
mod tests;
