//! One open sparse file: block requests in, file operations out.

use super::{Abilities, Registration};
use crate::buffer::Buffer;
use crate::disk::{Disk, DiskAction, DiskDone, DiskOp};
use crate::{Completion, Extent, Geometry, Store, Submission};
use evenkeel_core::limits::{BLOCK_BYTES_PREFERRED, QUANTUM_BYTES_MAX};
use evenkeel_core::request::{Failure, Operation};
use evenkeel_core::units::ByteCount;
use rustix::io::Errno;
use std::collections::VecDeque;
use std::os::fd::{AsRawFd, OwnedFd};

/// A stretch of zeroes written at once when the filesystem cannot zero a range by itself: as long
/// as the writes as which it is charged then.
const ZEROES_BYTES: u32 = QUANTUM_BYTES_MAX;

/// An open volume file.
#[derive(Debug)]
pub(super) struct FileStore {
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
    Map,
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

impl FileStore {
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
        let (token, fd) = (u64::from(slot), self.file.as_raw_fd());
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
            Step::Map => return DiskOp::map(token, fd, at, rest),
        };
        DiskOp { token, fd, action, offset: at, length, buffer, buffer_offset }
    }

    /// What is next after a step ended with `result`; `Err` and `Ok(false)` end the request.
    fn advance(&self, active: &mut Active, result: Result<u32, Errno>) -> Result<bool, Failure> {
        match (active.step, result) {
            (Step::Transfer(_) | Step::Zeroes, Ok(0)) => return Err(Failure::Io),
            (Step::Transfer(_) | Step::Zeroes, Ok(count)) => active.done += count,
            (Step::Hole(_), Ok(_)) => active.done = active.length,
            (Step::Sync | Step::Map, Ok(_)) => return Ok(false),
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

impl Store for FileStore {
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
            Operation::BlockStatus => request(Step::Map, false, Fail),
            // The page cache is bypassed: there is nothing to warm.
            Operation::Cache => return self.finish(ticket, Ok(()), buffer),
        };
        self.begin(active, buffer, disk);
    }

    fn writes_zeroes(&self, operation: Operation) -> bool {
        match operation {
            Operation::WriteZeroes { keep_allocated, .. } => {
                self.zeroing_step(keep_allocated) == Step::Zeroes
            }
            _ => false,
        }
    }

    fn disk_done(&mut self, done: DiskDone, disk: &mut dyn Disk) {
        let slot = done.token as u32;
        let Some(mut active) = self.active[slot as usize].take() else {
            unreachable!("disk operation {} ended twice", done.token);
        };
        let found = if active.step == Step::Map { done.extents() } else { Ok(Vec::new()) };
        let DiskDone { result, buffer, .. } = done;
        match self.advance(&mut active, result) {
            Ok(true) => {
                // The stand-in zeroes are not the client's buffer, but may be reused as they are.
                disk.submit(self.op(slot, &active, buffer));
                self.active[slot as usize] = Some(active);
            }
            Ok(false) => self.end(slot, &active, found.map_err(failure), buffer),
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

impl FileStore {
    fn end(
        &mut self,
        slot: u32,
        active: &Active,
        result: Result<Vec<Extent>, Failure>,
        buffer: Option<Buffer>,
    ) {
        self.free.push(slot);
        let (extents, result) = match result {
            Ok(extents) => (extents, Ok(())),
            Err(failure) => (Vec::new(), Err(failure)),
        };
        let buffer = buffer.filter(|_| active.own_buffer);
        self.finished.push_back(Completion { ticket: active.ticket, result, buffer, extents });
    }
}

#[cfg(test)]
mod tests {
    use super::super::FilePool;
    use crate::disk::{Disk, DiskAction, DiskOp};
    use crate::{Pool, Submission};
    use evenkeel_core::ids::VolumeId;
    use evenkeel_core::request::Operation;
    use evenkeel_core::units::ByteCount;

    #[derive(Default)]
    struct Queue(Vec<DiskOp>);

    impl Disk for Queue {
        fn submit(&mut self, op: DiskOp) {
            self.0.push(op);
        }
    }

    /// Where the file system looks for holes, it may wait for its disk.
    #[test]
    fn block_status_is_left_to_the_disk() {
        let folder = tempfile::tempdir().unwrap();
        let pool = FilePool::open(folder.path()).unwrap();
        let (id, size) = (VolumeId::from_bits(1), ByteCount(1 << 20));
        pool.create(id, size).unwrap();
        let mut store = pool.open(id, size).unwrap();
        let mut disk = Queue::default();
        let operation = Operation::BlockStatus;
        let status = Submission { ticket: 7, operation, offset: 0, length: 1 << 20, buffer: None };
        store.submit(status, &mut disk);
        assert!(store.poll().is_none(), "it was looked for in the caller's thread");
        let op = disk.0.pop().unwrap();
        assert_eq!(op.action, DiskAction::Map);
        assert!(op.entry().is_none(), "no kernel does that by itself");
        store.disk_done(op.execute(), &mut disk);
        let done = store.poll().unwrap();
        let lengths: Vec<(u32, bool)> = done.extents.iter().map(|e| (e.length, e.hole)).collect();
        assert_eq!((done.ticket, done.result, lengths), (7, Ok(()), vec![(1 << 20, true)]));
    }
}
