//! Discards and writes of zeroes: requests without payload that may take long.
//!
//! They go piece by piece. Of a long one a piece is submitted at a time, and the next one when that
//! is done, behind what has come meanwhile: so it holds up neither its own volume's requests nor,
//! at a store that does its work at once, a turn of the loop. What may go by its limits waits here
//! for its turn, volume by volume: the stores of a core work on a few of them at a time, and in one
//! turn of the loop on so many bytes.
//!
//! Where the store has to write the zeroes out, they are submitted as the writes they are.

use super::requests::Active;
use super::volumes::Volume;
use super::{Call, Reactor, note};
use crate::driver::Driver;
use evenkeel_core::limits::{
    CLEARED_BYTES_MAX, CLEARS_IN_FLIGHT_MAX, QUANTUM_BYTES_MAX, VOLUME_CLEARS_MAX,
    VOLUME_QUEUED_REQUESTS_MAX,
};
use evenkeel_core::qos::scheduler::{Dispatch, Io, SubmitError, Ticket};
use evenkeel_core::request::{Operation, Request};
use evenkeel_store::Store;
use std::collections::VecDeque;

/// A byte of zeroes that is written takes as long as so many that are dropped: a store in memory
/// takes 0.1 ms for a MiB of the ones, and 6 us of the others.
const WRITTEN_WORK: u64 = 16;

/// What of an operation that clears is done.
#[derive(Clone, Copy)]
pub(super) struct Clear {
    /// Bytes that are cleared.
    done: u32,
    /// Bytes of a piece at most.
    piece: u32,
    /// The store writes the zeroes out.
    is_written: bool,
    /// A piece of a long one is at the scheduler or the store.
    is_submitted: bool,
}

impl Clear {
    /// How a store clears what a request asks for; `None` if that is something else.
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
    /// Pieces in which a request goes.
    pub(super) fn pieces(request: &Request, clear: Option<Clear>) -> u32 {
        match clear {
            Some(clear) => request.length.div_ceil(clear.piece).max(1),
            None => request.payload_bytes().div_ceil(QUANTUM_BYTES_MAX).max(1),
        }
    }

    /// Whether it goes in several pieces, one after the other.
    pub(super) fn is_long_clear(&self) -> bool {
        self.clear.is_some_and(|clear| self.request.length > clear.piece)
    }

    /// What to submit of it next.
    pub(super) fn next_io(&self, handle: u32) -> Io {
        let Request { operation, offset, length } = self.request;
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

    /// What the store has to do for a part of it: only the last piece is made durable, and all
    /// others with it.
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

    /// What a piece of so many bytes takes, beside bytes that are dropped.
    fn work(&self, length: u32) -> u64 {
        let factor =
            if self.clear.is_some_and(|clear| clear.is_written) { WRITTEN_WORK } else { 1 };
        factor * u64::from(length)
    }
}

/// What of a volume clears and waits.
#[derive(Default)]
pub(super) struct Clears {
    /// Long ones whose next piece is to be submitted, in turn.
    waiting: VecDeque<u32>,
    /// Long ones of which a piece is submitted.
    submitted: u32,
    /// Pieces that may go by their limits and wait for their turn.
    ready: VecDeque<Dispatch>,
    /// The volume is in the list of those whose turn comes.
    is_listed: bool,
}

impl Clears {
    /// Takes a long one in.
    pub(super) fn wait(&mut self, handle: u32) -> Result<(), SubmitError> {
        if self.waiting.len() >= VOLUME_QUEUED_REQUESTS_MAX {
            return Err(SubmitError::QueueFull);
        }
        self.waiting.push_back(handle);
        Ok(())
    }

    /// Drops what is `ours` and waits; its requests.
    pub(super) fn cancel(&mut self, ours: impl Fn(u32) -> bool) -> Vec<u32> {
        let mut cancelled = Vec::new();
        let mut stays = |handle: u32| {
            let goes = ours(handle);
            if goes {
                cancelled.push(handle);
            }
            !goes
        };
        self.waiting.retain(|handle| stays(*handle));
        self.ready.retain(|dispatch| stays(dispatch.handle));
        cancelled
    }
}

/// Whose turn it is to clear, on one core.
#[derive(Default)]
pub(super) struct Turn {
    /// Volumes with pieces that may go.
    slots: VecDeque<u32>,
    /// Pieces that stores work on.
    in_flight: u32,
    /// What was begun in this turn of the loop.
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

    /// Whether something can go in the next turn of the loop.
    pub(super) fn is_due(&self) -> bool {
        !self.slots.is_empty() && self.in_flight < CLEARS_IN_FLIGHT_MAX
    }
}

impl<D: Driver> Reactor<D> {
    /// Submits pieces of a volume's long ones, as many as may be and as there is room for.
    pub(super) fn submit_clears(&mut self, slot: u32) {
        while let Some(Volume { clears, .. }) = self.volumes.get(slot as usize)
            && clears.submitted < VOLUME_CLEARS_MAX
            && let Some(&handle) = clears.waiting.front()
        {
            // Without room others of the volume wait, and the next that goes makes some.
            if self.offer(handle).is_err() {
                return;
            }
            let clears = &mut self.volumes[slot as usize].clears;
            clears.waiting.pop_front();
            clears.submitted += 1;
            if let Some(clear) = &mut self.active[handle as usize].clear {
                clear.is_submitted = true;
            }
        }
    }

    /// Whether a piece that may go by its limits has its turn now; if not, it waits for it here.
    pub(super) fn has_turn_to_clear(&mut self, dispatch: Dispatch) -> bool {
        let active = &self.active[dispatch.handle as usize];
        if active.clear.is_none() {
            return true;
        }
        let (slot, work) = (active.volume, active.work(dispatch.length));
        let clears = &mut self.volumes[slot as usize].clears;
        if clears.ready.is_empty() && self.turn.has_room_for(work) {
            self.turn.begin(work);
            return true;
        }
        // What waits for others' work does not keep anybody from the device.
        self.scheduler.complete(self.now, dispatch.ticket);
        note(&mut self.trace, self.now, Call::Complete(dispatch.ticket));
        clears.ready.push_back(Dispatch { ticket: Ticket::NONE, ..dispatch });
        if !std::mem::replace(&mut clears.is_listed, true) {
            self.turn.slots.push_back(slot);
        }
        false
    }

    /// Begins what has its turn to clear in this turn of the loop, volume by volume.
    pub(super) fn take_turns_to_clear(&mut self) {
        self.turn.work = 0;
        while let Some(slot) = self.turn.slots.pop_front() {
            let Some(volume) = self.volumes.get_mut(slot as usize) else { continue };
            let clears = &mut volume.clears;
            clears.is_listed = false;
            let Some(&dispatch) = clears.ready.front() else { continue };
            let work = self.active[dispatch.handle as usize].work(dispatch.length);
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

    /// Takes note that the store is done with a piece: the request goes on with the next one.
    pub(super) fn cleared(&mut self, handle: u32, length: u32) {
        let active = &mut self.active[handle as usize];
        let slot = active.volume;
        let Some(clear) = &mut active.clear else { return };
        self.turn.in_flight -= 1;
        clear.done = clear.done.saturating_add(length);
        if active.failure.is_some() {
            active.quanta_left = 0;
        }
        let clears = &mut self.volumes[slot as usize].clears;
        clears.submitted -= u32::from(std::mem::take(&mut clear.is_submitted));
        if active.quanta_left > 0 {
            clears.waiting.push_back(handle);
        }
        self.submit_clears(slot);
    }

    /// Takes note that a request is cancelled of which nothing is at the store.
    pub(super) fn gave_up_clearing(&mut self, handle: u32) {
        let active = &mut self.active[handle as usize];
        if let Some(clear) = &mut active.clear {
            let clears = &mut self.volumes[active.volume as usize].clears;
            clears.submitted -= u32::from(std::mem::take(&mut clear.is_submitted));
        }
    }
}
