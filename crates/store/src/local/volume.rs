//! One open sparse file: block requests in, file operations out.

use super::{Abilities, Registration};
use crate::buffer::Buffer;
use crate::disk::{Disk, DiskAction, DiskDone, DiskOp};
use crate::{Completion, EXTENTS_MAX, Extent, Geometry, Store, Submission};
use evenkeel_core::limits::BLOCK_BYTES_PREFERRED;
use evenkeel_core::request::{Failure, Operation};
use evenkeel_core::units::ByteCount;
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};

/// A stretch of zeroes written at once when the filesystem cannot zero a range by itself.
const ZEROES_BYTES: u32 = 64 << 10;

/// An open volume file.
#[derive(Debug)]
pub(super) struct LocalStore {
    file: OwnedFd,
    size: ByteCount,
    abilities: Abilities,
    active: Vec<Option<Active>>,
    free: Vec<u32>,
    finished: VecDeque<Completion>,
    _registration: Registration,
}

/// A request being worked on. Most are one file operation; some need a second (a short transfer's
/// rest, the sync that makes a hole durable).
#[derive(Debug)]
struct Active {
    ticket: u64,
    step: Step,
    offset: u64,
    length: u32,
    /// Bytes of the range that are done.
    done: u32,
    /// The buffer came with the request and goes back with it; a stand-in of zeroes does not.
    own_buffer: bool,
    /// A sync follows the last step.
    sync_after: bool,
    /// What stands in for a hole the filesystem cannot punch.
    if_unsupported: IfUnsupported,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Step {
    Transfer(DiskAction),
    Zeroes,
    Hole(DiskAction),
    Sync,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum IfUnsupported {
    /// A discard is advice: not being able to follow it is no failure.
    Ignore,
    /// Zeroes are a promise: write them out.
    WriteZeroes,
    /// The client asked to be told.
    Fail,
}

impl LocalStore {
    pub(super) fn new(
        file: OwnedFd,
        size: ByteCount,
        abilities: Abilities,
        registration: Registration,
    ) -> Self {
        Self {
            file,
            size,
            abilities,
            active: Vec::new(),
            free: Vec::new(),
            finished: VecDeque::new(),
            _registration: registration,
        }
    }

    fn begin(&mut self, active: Active, buffer: Option<Buffer>, disk: &mut dyn Disk) {
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => {
                self.active.push(None);
                (self.active.len() - 1) as u32
            }
        };
        disk.submit(self.op(slot, &active, buffer));
        self.active[slot as usize] = Some(active);
    }

    /// The file operation for the next stretch of `active`.
    fn op(&self, slot: u32, active: &Active, buffer: Option<Buffer>) -> DiskOp {
        let (rest, at) = (active.length - active.done, active.offset + u64::from(active.done));
        let (action, length, buffer, buffer_offset) = match active.step {
            Step::Transfer(action) => (action, rest, buffer, active.done),
            Step::Zeroes => {
                let length = rest.min(ZEROES_BYTES);
                let write = DiskAction::Write { durable: false };
                let zeroes = buffer.unwrap_or_else(|| Buffer::new(length as usize));
                (write, length, Some(zeroes), 0)
            }
            Step::Hole(action) => (action, rest, None, 0),
            Step::Sync => (DiskAction::Sync, 0, buffer, 0),
        };
        let (token, fd) = (u64::from(slot), self.file.as_raw_fd());
        DiskOp { token, fd, action, offset: at, length, buffer, buffer_offset }
    }

    /// What is next after a step ended with `result`; `Err` and `Ok(false)` end the request.
    fn advance(&self, active: &mut Active, result: Result<u32, Errno>) -> Result<bool, Failure> {
        match (active.step, result) {
            (Step::Transfer(_) | Step::Zeroes, Ok(0)) => return Err(Failure::Io),
            (Step::Transfer(_) | Step::Zeroes, Ok(count)) => active.done += count,
            (Step::Hole(_), Ok(_)) => active.done = active.length,
            (Step::Sync, Ok(_)) => return Ok(false),
            (_, Err(Errno::INTR | Errno::AGAIN)) => return Ok(true),
            (Step::Hole(_), Err(Errno::OPNOTSUPP | Errno::NOSYS)) => match active.if_unsupported {
                IfUnsupported::Ignore => return Ok(false),
                IfUnsupported::Fail => return Err(Failure::NotSupported),
                IfUnsupported::WriteZeroes => active.step = Step::Zeroes,
            },
            (_, Err(errno)) => return Err(failure(errno)),
        }
        if active.done < active.length {
            return Ok(true);
        }
        active.step = Step::Sync;
        Ok(std::mem::take(&mut active.sync_after))
    }

    fn finish(&mut self, ticket: u64, result: Result<(), Failure>, buffer: Option<Buffer>) {
        self.finished.push_back(Completion { ticket, result, buffer, extents: Vec::new() });
    }

    fn zeroing_step(&self, keep_allocated: bool) -> Step {
        match keep_allocated {
            true if self.abilities.zero_range => Step::Hole(DiskAction::ZeroRange),
            false if self.abilities.punch_hole => Step::Hole(DiskAction::PunchHole),
            _ => Step::Zeroes,
        }
    }

    fn extents(&self, offset: u64, length: u32) -> Result<Vec<Extent>, Errno> {
        let end = offset + u64::from(length);
        let (mut extents, mut at) = (Vec::new(), offset);
        // Each turn finds a hole and the data behind it.
        while at < end && extents.len() + 2 <= EXTENTS_MAX {
            let data = match rustix::fs::seek(&self.file, SeekFrom::Data(at)) {
                Ok(data) => data.clamp(at, end),
                Err(Errno::NXIO) => end,
                Err(errno) => return Err(errno),
            };
            push(&mut extents, data - at, true);
            if data < end {
                at = rustix::fs::seek(&self.file, SeekFrom::Hole(data))?.clamp(data, end);
                push(&mut extents, at - data, false);
            } else {
                at = end;
            }
        }
        Ok(extents)
    }
}

fn push(extents: &mut Vec<Extent>, length: u64, hole: bool) {
    // Cannot exceed the request's own length, which is a u32.
    let length = u32::try_from(length).unwrap_or(u32::MAX);
    if length > 0 {
        extents.push(Extent { length, hole, zero: hole });
    }
}

fn failure(errno: Errno) -> Failure {
    match errno {
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => Failure::NoSpace,
        Errno::INVAL => Failure::Invalid,
        Errno::OPNOTSUPP => Failure::NotSupported,
        Errno::NOMEM => Failure::NoMemory,
        Errno::ROFS | Errno::PERM => Failure::ReadOnly,
        _ => Failure::Io,
    }
}

impl Store for LocalStore {
    fn geometry(&self) -> Geometry {
        Geometry {
            size: self.size,
            block_bytes_min: self.abilities.block_bytes_min,
            block_bytes_preferred: BLOCK_BYTES_PREFERRED,
        }
    }

    fn submit(&mut self, submission: Submission, disk: &mut dyn Disk) {
        let Submission { ticket, operation, offset, length, buffer } = submission;
        let request = |step, sync_after, if_unsupported| Active {
            ticket,
            step,
            offset,
            length,
            done: 0,
            own_buffer: matches!(step, Step::Transfer(_)),
            sync_after,
            if_unsupported,
        };
        use IfUnsupported::{Fail, Ignore, WriteZeroes};
        let active = match operation {
            Operation::Read => request(Step::Transfer(DiskAction::Read), false, Fail),
            Operation::Write { fua } => {
                let write = DiskAction::Write { durable: fua };
                request(Step::Transfer(write), false, Fail)
            }
            Operation::Flush => request(Step::Sync, false, Fail),
            Operation::Discard { .. } if !self.abilities.punch_hole => {
                return self.finish(ticket, Ok(()), buffer);
            }
            Operation::Discard { fua } => request(Step::Hole(DiskAction::PunchHole), fua, Ignore),
            Operation::WriteZeroes { fua, keep_allocated, only_if_fast } => {
                let step = self.zeroing_step(keep_allocated);
                if only_if_fast && step == Step::Zeroes {
                    return self.finish(ticket, Err(Failure::NotSupported), buffer);
                }
                request(step, fua, if only_if_fast { Fail } else { WriteZeroes })
            }
            Operation::BlockStatus => {
                let (extents, result) = match self.extents(offset, length) {
                    Ok(extents) => (extents, Ok(())),
                    Err(errno) => (Vec::new(), Err(failure(errno))),
                };
                return self.finished.push_back(Completion { ticket, result, buffer, extents });
            }
            // The page cache is bypassed: there is nothing to warm.
            Operation::Cache => return self.finish(ticket, Ok(()), buffer),
        };
        self.begin(active, buffer, disk);
    }

    fn disk_done(&mut self, done: DiskDone, disk: &mut dyn Disk) {
        let DiskDone { token, result, buffer } = done;
        let slot = token as u32;
        let Some(mut active) = self.active[slot as usize].take() else {
            unreachable!("disk operation {token} ended twice");
        };
        match self.advance(&mut active, result) {
            Ok(true) => {
                // The stand-in zeroes are not the client's buffer, but may be reused as they are.
                disk.submit(self.op(slot, &active, buffer));
                self.active[slot as usize] = Some(active);
            }
            Ok(false) => self.end(slot, &active, Ok(()), buffer),
            Err(failure) => self.end(slot, &active, Err(failure), buffer),
        }
    }

    fn poll(&mut self) -> Option<Completion> {
        self.finished.pop_front()
    }

    fn resized(&mut self, size: ByteCount) {
        self.size = size;
    }
}

impl LocalStore {
    fn end(
        &mut self,
        slot: u32,
        active: &Active,
        result: Result<(), Failure>,
        buffer: Option<Buffer>,
    ) {
        self.free.push(slot);
        self.finish(active.ticket, result, buffer.filter(|_| active.own_buffer));
    }
}
