//! Discards and writes of zeroes: requests without payload that may take long.
//!
//! They are carried out piece by piece. Of a long operation one piece is submitted at a time, and
//! the next one when that is done, behind requests that have arrived meanwhile. So it delays
//! neither its own volume's requests nor, if a store does its work at once, a turn of the loop. A
//! piece that its limits allow waits here for its turn, volume by volume: the stores of a core work
//! on at most [`CLEARS_IN_FLIGHT_MAX`] pieces at a time, and one turn of the loop begins work for
//! at most [`CLEARED_BYTES_MAX`].
//!
//! If the store has to write the zeroes, they are submitted as writes.

use super::requests::Active;
use super::volumes::Volume;
use super::{Call, Reactor, note};
use crate::driver::Driver;
use crate::table::{RequestId, VolumeSlot};
use evenkeel_core::limits::{
    CLEARED_BYTES_MAX, CLEARS_IN_FLIGHT_MAX, QUANTUM_BYTES_MAX, VOLUME_CLEARS_MAX,
    VOLUME_QUEUED_REQUESTS_MAX,
};
use evenkeel_core::qos::scheduler::{Dispatch, Io, SubmitError, Ticket};
use evenkeel_core::request::{Operation, Request};
use evenkeel_core::slots::Slot;
use evenkeel_store::Store;
use std::collections::VecDeque;

/// Work of a byte of zeroes that is written, relative to a byte that is dropped: a store in memory
/// takes 0.1 ms to write a MiB, and 6 us to drop one.
const WRITTEN_WORK: u64 = 16;

/// Progress of an operation that clears a range.
#[derive(Clone, Copy)]
pub(super) struct Clear {
    /// Bytes cleared so far.
    done: u32,
    /// Maximum length of a piece, in bytes.
    piece: u32,
    /// The store writes the zeroes.
    is_written: bool,
    /// A piece of a long operation is in the scheduler or the store.
    is_submitted: bool,
}

impl Clear {
    /// Returns how a store clears the range of a request; `None` if the request does not clear one.
    pub(super) fn of(request: &Request, store: &dyn Store) -> Option<Self> {
        if !clears(request.operation) {
            return None;
        }
        let is_written = store.writes_zeroes(request.operation);
        let piece = if is_written { QUANTUM_BYTES_MAX } else { CLEARED_BYTES_MAX };
        Some(Self { done: 0, piece, is_written, is_submitted: false })
    }
}

fn clears(operation: Operation) -> bool {
    matches!(operation, Operation::Discard { .. } | Operation::WriteZeroes { .. })
}

impl Active {
    /// Returns the number of pieces of a request.
    pub(super) fn pieces(request: &Request, clear: Option<Clear>) -> u32 {
        match clear {
            Some(clear) => request.length.div_ceil(clear.piece).max(1),
            None => request.payload_bytes().div_ceil(QUANTUM_BYTES_MAX).max(1),
        }
    }

    /// Returns whether the request clears its range in several pieces, one after the other.
    pub(super) fn is_long_clear(&self) -> bool {
        self.clear.is_some_and(|clear| self.request.length > clear.piece)
    }

    /// Returns the next piece to submit.
    pub(super) fn next_io(&self, handle: RequestId) -> Io {
        let Request { operation, offset, length } = self.request;
        let handle = handle.number();
        let Some(clear) = self.clear else { return Io { operation, offset, length, handle } };
        let length = (length - clear.done).min(clear.piece);
        let operation = match operation {
            Operation::Discard { fua } | Operation::WriteZeroes { fua, .. } if clear.is_written => {
                Operation::Write { fua }
            }
            operation => operation,
        };
        Io { operation, offset: offset + u64::from(clear.done), length, handle }
    }

    /// Returns the store's operation for a piece: only the last one has to be durable, which makes
    /// the others durable, too.
    pub(super) fn operation_of(&self, dispatch: &Dispatch) -> Operation {
        let end = self.request.offset + u64::from(self.request.length);
        let is_last = dispatch.offset + u64::from(dispatch.length) >= end;
        match self.request.operation {
            Operation::Discard { .. } if !is_last => Operation::Discard { fua: false },
            Operation::WriteZeroes { keep_allocated, only_if_fast, .. } if !is_last => {
                Operation::WriteZeroes { fua: false, keep_allocated, only_if_fast }
            }
            operation => operation,
        }
    }

    /// Returns the work of a piece of `length` bytes, in bytes that are dropped.
    fn work(&self, length: u32) -> u64 {
        let factor =
            if self.clear.is_some_and(|clear| clear.is_written) { WRITTEN_WORK } else { 1 };
        factor * u64::from(length)
    }
}

/// Operations of a volume that clear a range and wait.
#[derive(Default)]
pub(super) struct Clears {
    /// Long operations whose next piece is to be submitted, in turn.
    waiting: VecDeque<RequestId>,
    /// Long operations with a piece in the scheduler or the store.
    submitted: u32,
    /// Pieces that their limits allow and that wait for their turn.
    ready: VecDeque<Dispatch>,
    /// The volume is in the list of volumes with waiting pieces.
    is_listed: bool,
}

impl Clears {
    /// Adds a long operation. Returns an error if the volume's queue is full.
    pub(super) fn wait(&mut self, handle: RequestId) -> Result<(), SubmitError> {
        if self.waiting.len() >= VOLUME_QUEUED_REQUESTS_MAX {
            return Err(SubmitError::QueueFull);
        }
        self.waiting.push_back(handle);
        Ok(())
    }

    /// Removes waiting operations that are `ours`. Returns their requests.
    pub(super) fn cancel(&mut self, ours: impl Fn(RequestId) -> bool) -> Vec<RequestId> {
        let mut cancelled = Vec::new();
        let mut stays = |handle: RequestId| {
            let goes = ours(handle);
            if goes {
                cancelled.push(handle);
            }
            !goes
        };
        self.waiting.retain(|handle| stays(*handle));
        self.ready.retain(|dispatch| stays(RequestId::of(dispatch)));
        cancelled
    }
}

/// Turns of volumes that clear a range, on one core.
#[derive(Default)]
pub(super) struct Turn {
    /// Volumes with pieces that their limits allow.
    slots: VecDeque<VolumeSlot>,
    /// Pieces in the stores.
    in_flight: u32,
    /// Work begun in this turn of the loop, in bytes that are dropped.
    work: u64,
}

impl Turn {
    fn has_room_for(&self, work: u64) -> bool {
        let most = u64::from(CLEARED_BYTES_MAX);
        self.in_flight < CLEARS_IN_FLIGHT_MAX && (self.work == 0 || self.work + work <= most)
    }

    fn begin(&mut self, work: u64) {
        self.in_flight += 1;
        self.work += work;
    }

    /// Returns whether a piece can begin in the next turn of the loop.
    pub(super) fn is_due(&self) -> bool {
        !self.slots.is_empty() && self.in_flight < CLEARS_IN_FLIGHT_MAX
    }
}

impl<D: Driver> Reactor<D> {
    /// Submits pieces of a volume's long operations, up to its limit and while the queue has room.
    pub(super) fn submit_clears(&mut self, slot: VolumeSlot) {
        while let Some(Volume { clears, .. }) = self.volumes.get(slot)
            && clears.submitted < VOLUME_CLEARS_MAX
            && let Some(&handle) = clears.waiting.front()
        {
            // A full queue has requests of the volume; the next one that is dispatched makes room.
            if self.offer(handle).is_err() {
                return;
            }
            let clears = &mut self.volumes[slot].clears;
            clears.waiting.pop_front();
            clears.submitted += 1;
            if let Some(clear) = &mut self.active[handle].clear {
                clear.is_submitted = true;
            }
        }
    }

    /// Returns whether a piece that its limits allow can begin now; if not, it waits here for its
    /// turn.
    pub(super) fn has_turn_to_clear(&mut self, dispatch: Dispatch) -> bool {
        let active = &self.active[RequestId::of(&dispatch)];
        if active.clear.is_none() {
            return true;
        }
        let slot = active.volume;
        let work = active.work(dispatch.length);
        let clears = &mut self.volumes[slot].clears;
        if clears.ready.is_empty() && self.turn.has_room_for(work) {
            self.turn.begin(work);
            return true;
        }
        // A piece that waits for its turn does not occupy the device.
        self.scheduler.complete(self.now, dispatch.ticket);
        note(&mut self.trace, self.now, Call::Complete(dispatch.ticket));
        clears.ready.push_back(Dispatch { ticket: Ticket::NONE, ..dispatch });
        if !std::mem::replace(&mut clears.is_listed, true) {
            self.turn.slots.push_back(slot);
        }
        false
    }

    /// Begins pieces whose turn it is in this turn of the loop, volume by volume.
    pub(super) fn take_turns_to_clear(&mut self) {
        self.turn.work = 0;
        while let Some(slot) = self.turn.slots.pop_front() {
            let Some(volume) = self.volumes.get_mut(slot) else { continue };
            let clears = &mut volume.clears;
            clears.is_listed = false;
            let Some(&dispatch) = clears.ready.front() else { continue };
            let work = self.active[RequestId::of(&dispatch)].work(dispatch.length);
            clears.is_listed = true;
            if !self.turn.has_room_for(work) {
                return self.turn.slots.push_front(slot);
            }
            clears.ready.pop_front();
            self.turn.slots.push_back(slot);
            self.turn.begin(work);
            self.run_part(dispatch);
        }
    }

    /// Records that the store has finished a piece, and lets the request continue with its next
    /// one.
    pub(super) fn cleared(&mut self, handle: RequestId, length: u32) {
        let active = &mut self.active[handle];
        let slot = active.volume;
        let Some(clear) = &mut active.clear else { return };
        self.turn.in_flight -= 1;
        clear.done = clear.done.saturating_add(length);
        if active.failure.is_some() {
            active.quanta_left = 0;
        }
        let clears = &mut self.volumes[slot].clears;
        clears.submitted -= u32::from(std::mem::take(&mut clear.is_submitted));
        if active.quanta_left > 0 {
            clears.waiting.push_back(handle);
        }
        self.submit_clears(slot);
    }

    /// Records that a request is cancelled that has no piece in the store.
    pub(super) fn gave_up_clearing(&mut self, handle: RequestId) {
        let active = &mut self.active[handle];
        if let Some(clear) = &mut active.clear {
            let clears = &mut self.volumes[active.volume].clears;
            clears.submitted -= u32::from(std::mem::take(&mut clear.is_submitted));
        }
    }
}
