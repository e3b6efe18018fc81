//! One open volume: requests go to librbd, whose threads execute them; an eventfd is readable when
//! some have ended.

use super::cluster::errno;
use super::image::Image;
use super::library::{Handle, ZEROES_KEEP};
use super::objects::Objects;
use super::watchdog::Overdue;
use crate::buffer::Buffer;
use crate::disk::{Disk, DiskDone, DiskOp};
use crate::encryption::crypt::Cipher;
use crate::local::BLOCK_BYTES;
use crate::{Completion, Geometry, Store, StoreError, Submission};
use evenkeel_core::convert::saturating;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::limits::{BLOCK_BYTES_MIN, BLOCK_BYTES_PREFERRED};
use evenkeel_core::request::{Failure, Operation};
use evenkeel_core::units::ByteCount;
use rustix::event::{EventfdFlags, eventfd};
use std::collections::VecDeque;
use std::ffi::{c_char, c_int};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

/// Maximum number of completions that one call takes.
const BATCH: usize = 32;
/// The token of the only operation on the disk: the wait for the eventfd.
const EVENT: u64 = 0;

/// Pause between two attempts to lock an image again.
const RELOCK_PAUSE: Duration = Duration::from_secs(1);

/// Answer to requests when the cluster refuses this server's. Another server has the volume, or
/// will have it, and clients are to go there. The front of a node sends such a request again; an
/// error of the device would stop a file system.
const SERVED_ELSEWHERE: Failure = Failure::ShuttingDown;

/// Result of work on the image, for the core.
pub(super) enum Outcome {
    /// The open image with the objects that have data, or the error of its opening.
    Opened(Result<(Arc<Opened>, Objects), StoreError>),
    /// Result of an attempt to lock the open image again.
    Relocked(Result<Relock, StoreError>),
}

/// Result of an attempt to lock an open image again whose lock librbd has lost.
pub(super) enum Relock {
    /// This instance has the lock. These objects have data.
    Held(Objects),
    /// This instance is fenced, or the instance with this address has the lock.
    Lost(String),
    /// It is not decided yet.
    Undecided,
}

/// A volume that a core serves. Its image is opened at the first request, since that takes a while,
/// and an open image costs memory and processor time.
pub(super) struct Slot {
    pub(super) id: VolumeId,
    /// The name of its image.
    pub(super) image: String,
    /// Readable when requests have ended, or the image was opened. Created at the first opening.
    event: OnceLock<OwnedFd>,
    /// The image. A thread other than the core's holds the lock while it opens or uses the image.
    opened: Mutex<Option<Arc<Opened>>>,
    /// Result of the opening, until the core takes it.
    outcome: Mutex<Option<Outcome>>,
    /// Requests in flight, for the watchdog.
    pub(super) overdue: Overdue,
    /// Its store was dropped, and it is being closed.
    pub(super) is_closing: AtomicBool,
}

impl Slot {
    pub(super) fn new(id: VolumeId, image: String) -> Self {
        let (event, opened, outcome, overdue, is_closing) = Default::default();
        Self { id, image, event, opened, outcome, overdue, is_closing }
    }

    /// Returns the eventfd, and creates it if there is none.
    fn event(&self) -> io::Result<&OwnedFd> {
        if let Some(event) = self.event.get() {
            return Ok(event);
        }
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        Ok(self.event.get_or_init(|| event))
    }

    /// Locks the image, if it is open; no other thread opens or closes it while the guard lives.
    pub(super) fn opened(&self) -> MutexGuard<'_, Option<Arc<Opened>>> {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the result of the opening, if there is one.
    pub(super) fn take_outcome(&self) -> Option<Outcome> {
        self.outcome.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    /// Opens the image, and notifies the core.
    pub(super) fn open(&self, open: impl FnOnce() -> Result<(Image, Objects), StoreError>) {
        let mut opened = self.opened();
        if self.is_closing.load(Ordering::Acquire) {
            return;
        }
        let outcome = open().and_then(|(image, objects)| {
            let event = self.event().map_err(|error| StoreError::io("make an eventfd", error))?;
            image.notify(event.as_fd())?;
            let image = Arc::new(Opened { image, is_lost: AtomicBool::new(false) });
            *opened = Some(Arc::clone(&image));
            Ok((image, objects))
        });
        drop(opened);
        self.report(Outcome::Opened(outcome));
    }

    /// Locks the open image again, and notifies the core.
    pub(super) fn relock(&self, relock: impl FnOnce(&Image) -> Result<Relock, StoreError>) {
        // No other thread closes or uses the image meanwhile.
        let opened = self.opened();
        let Some(image) = opened.as_ref().filter(|_| !self.is_closing.load(Ordering::Acquire))
        else {
            return;
        };
        let outcome = relock(&image.image);
        drop(opened);
        self.report(Outcome::Relocked(outcome));
    }

    /// Stores a result, and notifies the core.
    fn report(&self, outcome: Outcome) {
        *self.outcome.lock().unwrap_or_else(PoisonError::into_inner) = Some(outcome);
        if let Some(event) = self.event.get() {
            // The counter cannot overflow.
            let _ = rustix::io::write(event, &1_u64.to_ne_bytes());
        }
    }
}

/// An open image.
pub(super) struct Opened {
    pub(super) image: Image,
    /// The cluster has fenced this instance, or another one has the volume: all requests are
    /// refused.
    pub(super) is_lost: AtomicBool,
}

/// Work of the pool's threads for a volume.
pub(super) enum Work {
    /// Open its image.
    Open(Arc<Slot>),
    /// Lock its open image again, after a pause.
    Relock(Arc<Slot>, Duration),
    /// Close it. The requests in flight keep their memory until they have ended.
    Close(Arc<Slot>, Vec<Option<Active>>),
}

/// A request in librbd.
pub(super) struct Active {
    ticket: u64,
    operation: Operation,
    offset: u64,
    length: u32,
    /// The buffer of the request.
    buffer: Option<Buffer>,
    /// Encrypted data that is written instead.
    encrypted: Option<Buffer>,
    /// The slot of [`Overdue`] that it counts in.
    begun: usize,
}

impl Active {
    /// Returns the request as it was submitted, to be submitted again.
    fn again(self) -> Submission {
        let Self { ticket, operation, offset, length, buffer, .. } = self;
        Submission { ticket, operation, offset, length, buffer }
    }
}

/// State of the image.
enum Stage {
    /// There was no request yet.
    Unused,
    /// It is being opened.
    Opening,
    /// It is open.
    Open(Arc<Opened>),
    /// It is open, and librbd has lost its lock. Requests wait until it is locked again.
    Relocking(Arc<Opened>),
}

impl Stage {
    /// Returns the image, if it is open.
    fn opened(&self) -> Option<&Arc<Opened>> {
        match self {
            Self::Open(opened) | Self::Relocking(opened) => Some(opened),
            Self::Unused | Self::Opening => None,
        }
    }
}

/// See the module's text.
pub(super) struct RbdStore {
    slot: Arc<Slot>,
    stage: Stage,
    /// Requests that wait until the image is open and locked; no more than the caller has in
    /// flight.
    waiting: VecDeque<Submission>,
    size: ByteCount,
    objects: Objects,
    cipher: Option<Cipher>,
    active: Vec<Option<Active>>,
    free: Vec<usize>,
    /// Whether the disk waits for the eventfd.
    is_armed: bool,
    finished: VecDeque<Completion>,
    work: Sender<Work>,
    /// Pause before the next attempt to lock the image again; zero after a write has succeeded.
    pause: Duration,
}

impl RbdStore {
    pub(super) fn new(
        slot: Arc<Slot>,
        size: ByteCount,
        cipher: Option<Cipher>,
        work: Sender<Work>,
    ) -> Self {
        Self {
            slot,
            stage: Stage::Unused,
            waiting: VecDeque::new(),
            size,
            objects: Objects::default(),
            cipher,
            active: Vec::new(),
            free: Vec::new(),
            is_armed: false,
            finished: VecDeque::new(),
            work,
            pause: Duration::ZERO,
        }
    }

    /// Queues a request until the image is open, and has it opened.
    fn wait_for_image(&mut self, submission: Submission, disk: &mut dyn Disk) {
        if let (Stage::Unused, Err(error)) = (&self.stage, self.slot.event()) {
            tracing::error!(volume = %self.slot.id, %error, "no eventfd for a volume");
            return self.finish(submission.ticket, Err(Failure::NoMemory), submission.buffer);
        }
        self.waiting.push_back(submission);
        if matches!(self.stage, Stage::Unused) {
            self.stage = Stage::Opening;
            // The threads end after the last store.
            let _ = self.work.send(Work::Open(Arc::clone(&self.slot)));
        }
        self.arm(disk);
    }

    /// Takes the result of work on the image, if there is one, and submits or fails the requests
    /// that wait.
    fn look_for_image(&mut self, disk: &mut dyn Disk) {
        match self.slot.take_outcome() {
            Some(Outcome::Opened(Ok((opened, objects)))) => {
                self.objects = objects;
                self.stage = Stage::Open(opened);
                self.submit_waiting(disk);
            }
            Some(Outcome::Opened(Err(error))) => {
                tracing::error!(volume = %self.slot.id, %error, "the volume could not be opened");
                let failure = match errno(&error) {
                    Some(libc::ESHUTDOWN) => SERVED_ELSEWHERE,
                    _ => Failure::Io,
                };
                // The next request tries again.
                self.stage = Stage::Unused;
                for Submission { ticket, buffer, .. } in std::mem::take(&mut self.waiting) {
                    self.finish(ticket, Err(failure), buffer);
                }
            }
            Some(Outcome::Relocked(result)) => self.relocked(result, disk),
            None => {}
        }
    }

    fn submit_waiting(&mut self, disk: &mut dyn Disk) {
        for submission in std::mem::take(&mut self.waiting) {
            self.submit(submission, disk);
        }
    }

    /// Has the image locked again, unless that has begun or the volume is lost. Returns whether
    /// requests are to wait for it.
    fn relock(&mut self) -> bool {
        match &self.stage {
            Stage::Open(opened) if !opened.is_lost.load(Ordering::Acquire) => {
                if self.pause.is_zero() {
                    tracing::warn!(
                        volume = %self.slot.id,
                        "this server and the Ceph cluster did not hear of each other for some \
                         time, so the lock of the volume is taken again; requests wait"
                    );
                }
                self.stage = Stage::Relocking(Arc::clone(opened));
                self.begin_relock();
                true
            }
            Stage::Relocking(_) => true,
            Stage::Open(_) | Stage::Unused | Stage::Opening => false,
        }
    }

    fn begin_relock(&mut self) {
        let pause = std::mem::replace(&mut self.pause, RELOCK_PAUSE);
        // The threads end after the last store.
        let _ = self.work.send(Work::Relock(Arc::clone(&self.slot), pause));
    }

    /// Takes the result of an attempt to lock the image again.
    fn relocked(&mut self, result: Result<Relock, StoreError>, disk: &mut dyn Disk) {
        let Stage::Relocking(opened) = &self.stage else { return };
        let opened = Arc::clone(opened);
        let volume = self.slot.id;
        match result {
            Ok(Relock::Held(objects)) => {
                tracing::info!(%volume, "the lock of the volume is taken again");
                self.objects.add(&objects);
            }
            Ok(Relock::Lost(why)) => self.lose(&opened, &why),
            Err(error) if errno(&error) == Some(libc::ESHUTDOWN) => {
                self.lose(&opened, "this server is fenced");
            }
            Ok(Relock::Undecided) => return self.begin_relock(),
            Err(error) => {
                tracing::warn!(%volume, %error, "the lock of the volume is not taken again yet");
                return self.begin_relock();
            }
        }
        self.stage = Stage::Open(opened);
        self.submit_waiting(disk);
    }

    /// Refuses all requests of the volume from now on. The process gives up its connection to the
    /// cluster: a server alone ends, and a node of a cluster joins anew.
    fn lose(&self, opened: &Opened, why: &str) {
        if !opened.is_lost.swap(true, Ordering::AcqRel) {
            tracing::error!(
                volume = %self.slot.id,
                why,
                "the Ceph cluster refuses this server; nothing of the volume is served until the \
                 server has joined or is started anew"
            );
        }
        opened.image.cluster.note_shut_down();
    }

    fn owed(&self) -> usize {
        self.active.len() - self.free.len()
    }

    fn finish(&mut self, ticket: u64, result: Result<(), Failure>, buffer: Option<Buffer>) {
        self.finished.push_back(Completion { ticket, result, buffer, extents: Vec::new() });
    }

    /// Passes a request to librbd, and keeps it until it has ended.
    fn hand_over(&mut self, mut active: Active, disk: &mut dyn Disk) {
        let slot = self.free.pop().unwrap_or_else(|| {
            self.active.push(None);
            self.active.len() - 1
        });
        let code = self.begin(slot, &mut active);
        if code < 0 {
            self.free.push(slot);
            self.slot.overdue.ended(active.begun);
            if code == -libc::EROFS && self.relock() {
                self.waiting.push_back(active.again());
                return self.arm(disk);
            }
            let failure = self.failure(code);
            return self.finish(active.ticket, Err(failure), active.buffer);
        }
        self.active[slot] = Some(active);
        self.arm(disk);
    }

    /// Begins a request in librbd. Returns a negative number if that fails.
    fn begin(&self, slot: usize, active: &mut Active) -> c_int {
        let Some(opened) = self.stage.opened() else { return -libc::EINVAL };
        let library = opened.image.cluster.library;
        let mut completion: Handle = ptr::null_mut();
        // SAFETY: the argument is a number, and there is room for the completion.
        let code = unsafe {
            let argument = ptr::without_provenance_mut(slot);
            (library.rbd_aio_create_completion)(argument, None, &raw mut completion)
        };
        if code < 0 {
            return code;
        }
        if let (Some(cipher), Operation::Write { .. }) = (&self.cipher, active.operation) {
            active.encrypted = Some(encrypted(cipher, active));
        }
        let image = opened.image.handle;
        let offset = active.offset;
        let length = active.length as usize;
        let memory = active.encrypted.as_ref().or(active.buffer.as_ref());
        let memory = memory.map_or(ptr::null_mut(), |buffer| buffer.as_ptr().cast::<c_char>());
        // SAFETY: the image is open. The memory has room for the length, as the caller has checked,
        // and is kept in `active` until the completion has been seen.
        let code = unsafe {
            match active.operation {
                Operation::Read => {
                    (library.rbd_aio_read)(image, offset, length, memory, completion)
                }
                Operation::Write { .. } => {
                    (library.rbd_aio_write)(image, offset, length, memory, completion)
                }
                // Discards of librbd skip ranges below 64 KiB and the edges of a range.
                Operation::Discard { .. } => {
                    (library.rbd_aio_write_zeroes)(image, offset, length, completion, 0, 0)
                }
                Operation::WriteZeroes { keep_allocated, .. } => {
                    let flags = if keep_allocated { ZEROES_KEEP } else { 0 };
                    (library.rbd_aio_write_zeroes)(image, offset, length, completion, flags, 0)
                }
                Operation::Flush | Operation::BlockStatus | Operation::Cache => {
                    (library.rbd_aio_flush)(image, completion)
                }
            }
        };
        if code < 0 {
            // SAFETY: librbd does not have it.
            unsafe { (library.rbd_aio_release)(completion) };
        }
        code
    }

    fn arm(&mut self, disk: &mut dyn Disk) {
        let is_owed = self.owed() > 0 || !self.waiting.is_empty();
        if let (false, true, Some(event)) = (self.is_armed, is_owed, self.slot.event.get()) {
            self.is_armed = true;
            disk.submit(DiskOp::readable(EVENT, event.as_raw_fd()));
        }
    }

    /// Takes the requests that have ended.
    fn drain(&mut self) {
        // The value of the counter does not matter.
        let mut count = [0; 8];
        if let Some(event) = self.slot.event.get() {
            let _ = rustix::io::read(event, &mut count);
        }
        let Some(opened) = self.stage.opened() else { return };
        let library = opened.image.cluster.library;
        let image = opened.image.handle;
        loop {
            let mut ended: [Handle; BATCH] = [ptr::null_mut(); BATCH];
            // SAFETY: there is room for `BATCH` completions.
            let count =
                unsafe { (library.rbd_poll_io_events)(image, ended.as_mut_ptr(), BATCH as c_int) };
            // A negative number is an error of the library: it has returned no completion.
            let count: usize = saturating(count);
            for completion in &ended[..count] {
                // SAFETY: librbd returns each completion once, and it is released once.
                let (slot, code) = unsafe {
                    let slot = (library.rbd_aio_get_arg)(*completion).addr();
                    let code = (library.rbd_aio_get_return_value)(*completion);
                    (library.rbd_aio_release)(*completion);
                    (slot, code)
                };
                self.ended(slot, code);
            }
            if count < BATCH {
                return;
            }
        }
    }

    fn ended(&mut self, slot: usize, code: isize) {
        let Some(mut active) = self.active.get_mut(slot).and_then(Option::take) else {
            unreachable!("request {slot} ended twice");
        };
        self.free.push(slot);
        self.slot.overdue.ended(active.begun);
        // librbd has not begun it: it lost its watch of the image, and with it the lock.
        if code == -(libc::EROFS as isize) && self.relock() {
            return self.waiting.push_back(active.again());
        }
        // Reads and flushes need no lock.
        if code >= 0
            && !matches!(active.operation, Operation::Read | Operation::Flush | Operation::Cache)
        {
            self.pause = Duration::ZERO;
        }
        let is_read = active.operation == Operation::Read;
        let result = match code {
            // A short read does not have the whole range.
            0.. if is_read && code.unsigned_abs() != active.length as usize => Err(Failure::Io),
            0.. => Ok(()),
            code => match (active.operation, self.failure(saturating(code))) {
                // It is not known whether the library keeps the data.
                (Operation::Flush, Failure::NoSpace) => Err(Failure::Io),
                (_, failure) => Err(failure),
            },
        };
        if let (Ok(()), true, Some(cipher), Some(buffer)) =
            (result, is_read, &self.cipher, &mut active.buffer)
        {
            decrypt(cipher, active.offset, &mut buffer.bytes_mut()[..active.length as usize]);
        }
        self.finish(active.ticket, result, active.buffer);
    }

    fn failure(&self, code: c_int) -> Failure {
        match code.wrapping_neg() {
            libc::ENOSPC | libc::EDQUOT => Failure::NoSpace,
            libc::EINVAL => Failure::Invalid,
            libc::ENOMEM => Failure::NoMemory,
            // The instance was fenced, which is final.
            libc::ESHUTDOWN => {
                if let Some(opened) = self.stage.opened() {
                    self.lose(opened, "this server is fenced");
                }
                SERVED_ELSEWHERE
            }
            // The volume is lost, and its image has no lock.
            libc::EROFS => SERVED_ELSEWHERE,
            _ => Failure::Io,
        }
    }
}

/// Returns the encrypted bytes of a write.
fn encrypted(cipher: &Cipher, active: &Active) -> Buffer {
    let length = active.length as usize;
    let mut buffer = Buffer::new(length);
    let bytes = &mut buffer.bytes_mut()[..length];
    if let Some(from) = &active.buffer {
        bytes.copy_from_slice(&from.bytes()[..length]);
    }
    cipher.encrypt(active.offset / BLOCK_BYTES as u64, bytes);
    buffer
}

/// Decrypts whole blocks in place. A block of zeroes was never written, or was zeroed: encryption
/// gives such a block with a probability of 2 to the power of -32,768.
pub(super) fn decrypt(cipher: &Cipher, offset: u64, bytes: &mut [u8]) {
    let first = offset / BLOCK_BYTES as u64;
    for (number, block) in (first..).zip(bytes.chunks_mut(BLOCK_BYTES)) {
        if block.iter().any(|byte| *byte != 0) {
            cipher.decrypt(number, block);
        }
    }
}

impl Store for RbdStore {
    fn geometry(&self) -> Geometry {
        let block_bytes_min = match self.cipher {
            Some(_) => BLOCK_BYTES as u32,
            None => BLOCK_BYTES_MIN,
        };
        let block_bytes_preferred = BLOCK_BYTES_PREFERRED;
        Geometry { size: self.size, block_bytes_min, block_bytes_preferred }
    }

    fn submit(&mut self, submission: Submission, disk: &mut dyn Disk) {
        let is_lost = match &self.stage {
            Stage::Open(opened) => opened.is_lost.load(Ordering::Acquire),
            Stage::Relocking(_) => {
                self.waiting.push_back(submission);
                return self.arm(disk);
            }
            // Nothing was written through this store, so there is nothing to flush.
            _ if matches!(submission.operation, Operation::Flush | Operation::Cache) => {
                return self.finish(submission.ticket, Ok(()), submission.buffer);
            }
            _ => return self.wait_for_image(submission, disk),
        };
        let Submission { ticket, operation, offset, length, buffer } = submission;
        if is_lost {
            return self.finish(ticket, Err(SERVED_ELSEWHERE), buffer);
        }
        match operation {
            Operation::BlockStatus => {
                let extents = self.objects.extents(offset, length);
                let done = Completion { ticket, result: Ok(()), buffer, extents };
                return self.finished.push_back(done);
            }
            Operation::WriteZeroes { keep_allocated: true, only_if_fast: true, .. } => {
                return self.finish(ticket, Err(Failure::NotSupported), buffer);
            }
            // The devices have their own caches.
            Operation::Cache => return self.finish(ticket, Ok(()), buffer),
            Operation::Write { .. } | Operation::WriteZeroes { keep_allocated: true, .. } => {
                self.objects.note(offset, u64::from(length));
            }
            _ => {}
        }
        let begun = self.slot.overdue.begun();
        let encrypted = None;
        let active = Active { ticket, operation, offset, length, buffer, encrypted, begun };
        self.hand_over(active, disk);
    }

    fn disk_done(&mut self, _: DiskDone, disk: &mut dyn Disk) {
        self.is_armed = false;
        self.drain();
        if matches!(self.stage, Stage::Opening | Stage::Relocking(_)) {
            self.look_for_image(disk);
        }
        self.arm(disk);
    }

    fn poll(&mut self) -> Option<Completion> {
        self.finished.pop_front()
    }

    fn writes_zeroes(&self, operation: Operation) -> bool {
        matches!(operation, Operation::WriteZeroes { keep_allocated: true, .. })
    }

    fn resized(&mut self, size: ByteCount) {
        self.size = size;
    }

    fn is_idle(&self) -> bool {
        !self.is_armed && self.owed() == 0 && self.waiting.is_empty()
    }
}

impl Drop for RbdStore {
    fn drop(&mut self) {
        self.slot.is_closing.store(true, Ordering::Release);
        self.stage = Stage::Unused;
        // The closing waits for requests in flight, and takes a while anyway.
        let in_flight = std::mem::take(&mut self.active);
        let _ = self.work.send(Work::Close(Arc::clone(&self.slot), in_flight));
    }
}
