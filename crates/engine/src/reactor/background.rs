//! Background work: verification of stored data, copies of snapshots.
//!
//! Its threads make calls that block. Their load on the device is scheduled like a volume's
//! requests: a thread asks for a permit before it reads or writes a number of bytes, and the
//! scheduler grants it as it dispatches a volume's request. So the work has limits of its own, and
//! on a calibrated device no reservation: it gets the device time that the volumes leave. One core
//! schedules all of it.
//!
//! A probe reads a volume as a client does, through its store, for a thread that has a permit for
//! it.

use super::{Call, Reactor, note};
use crate::driver::Driver;
use crate::table::{PermitId, ProbeId, Table, VolumeSlot, number_of, ticket_of};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::limits::{BACKGROUND_PERMITS_MAX, QUANTUM_BYTES_MAX};
use evenkeel_core::qos::pacing::{Balances, Limit, Pacing};
use evenkeel_core::qos::scheduler::{Dispatch, Io, Ticket, VolumeIndex};
use evenkeel_core::qos::sharing::Claim;
use evenkeel_core::request::{Failure, Operation, Request};
use evenkeel_core::slots::Slot;
use evenkeel_store::buffer::Buffer;
use evenkeel_store::{Completion, Submission};
use std::sync::mpsc::SyncSender;

/// Scheduler handles with this bit are those of permits.
const HANDLES: u32 = 1 << 31;
/// Store tickets with this bit are those of probes. Stores that wrap others use higher bits.
const PROBES: u64 = 1 << 48;

/// Request for a permit.
pub struct Wanted {
    /// Bytes, at most [`QUANTUM_BYTES_MAX`].
    pub bytes: u32,
    /// Whether they are written.
    pub is_write: bool,
    /// The limit of all background work together.
    pub bytes_per_second: u64,
    /// Receives the permit's ticket.
    pub ack: SyncSender<Ticket>,
}

/// A read or a block status that goes to a volume's store.
pub struct Probe {
    /// A read or a block status.
    pub operation: Operation,
    /// First byte.
    pub offset: u64,
    /// Bytes.
    pub length: u32,
    /// The buffer of a read.
    pub buffer: Option<Buffer>,
    /// Receives the completion. It is dropped if the volume is not here.
    pub ack: SyncSender<Completion>,
}

struct Probing {
    slot: VolumeSlot,
    request: Request,
    ack: SyncSender<Completion>,
}

/// Background work on this core; see the module's text.
#[derive(Default)]
pub(super) struct Background {
    /// The scheduler's index for the work, from the first permit on.
    index: Option<VolumeIndex>,
    bytes_per_second: u64,
    /// Senders for the permits that are not granted yet.
    waiting: Table<PermitId, SyncSender<Ticket>>,
    probes: Table<ProbeId, Probing>,
    /// Offset of the next permit. Offsets do not follow each other, so each permit counts as one
    /// I/O.
    offset: u64,
}

fn pacing_of(bytes_per_second: u64) -> Pacing {
    let quanta = bytes_per_second / u64::from(QUANTUM_BYTES_MAX);
    // The limit on operations is also the work's weight among claims on the device.
    let limit = |per_second: u64| Some(Limit { per_second: per_second.max(1), credit: None });
    let operations = limit(quanta.saturating_mul(4));
    let bytes = limit(bytes_per_second);
    Pacing { operations, bytes, ..Pacing::UNLIMITED }
}

impl<D: Driver> Reactor<D> {
    /// Asks the scheduler for a permit. If none can be had, the sender is dropped, which the
    /// waiting thread notices.
    pub(super) fn want_permit(&mut self, wanted: Wanted) {
        let Wanted { bytes, is_write, bytes_per_second, ack } = wanted;
        if self.background.waiting.len() >= BACKGROUND_PERMITS_MAX as usize {
            return;
        }
        let Some(index) = self.background_index(bytes_per_second) else { return };
        let operation = if is_write { Operation::Write { fua: false } } else { Operation::Read };
        let offset = self.background.offset;
        let length = bytes.clamp(1, QUANTUM_BYTES_MAX);
        self.background.offset = (offset + 2 * u64::from(QUANTUM_BYTES_MAX)) % (1 << 60);
        let permit = self.background.waiting.insert(ack);
        let handle = HANDLES | permit.number();
        let io = Io { operation, offset, length, handle };
        if self.scheduler.submit(self.now, index, io).is_err() {
            self.background.waiting.remove(permit);
            return;
        }
        note(&mut self.trace, self.now, Call::Submit(index, io));
        self.dispatch();
    }

    /// Returns the scheduler's index for the work, with this limit.
    fn background_index(&mut self, bytes_per_second: u64) -> Option<VolumeIndex> {
        let pacing = pacing_of(bytes_per_second);
        let index = match self.background.index {
            Some(index) if self.background.bytes_per_second == bytes_per_second => {
                return Some(index);
            }
            Some(index) => {
                self.scheduler.set_limits(self.now, index, &pacing);
                note(&mut self.trace, self.now, Call::Other("background"));
                index
            }
            None => {
                let balances = Balances::default();
                let index = self.scheduler.add(self.now, &pacing, balances).ok()?;
                note(&mut self.trace, self.now, Call::Add(index, Box::new((pacing, balances))));
                index
            }
        };
        self.background.index = Some(index);
        self.background.bytes_per_second = bytes_per_second;
        self.share_with_background();
        Some(index)
    }

    /// Makes the work share a calibrated device with the volumes.
    pub(super) fn share_with_background(&mut self) {
        let (Some(index), Some(device)) = (self.background.index, &self.device) else { return };
        let pacing = pacing_of(self.background.bytes_per_second);
        let place = (Some(device.index), None);
        let claim = Claim::best_effort(&pacing);
        if let Err(error) = self.scheduler.share(self.now, index, &pacing, place, &claim) {
            tracing::warn!(%error, "background work does not share the device");
        }
        note(&mut self.trace, self.now, Call::Other("share"));
    }

    /// Sends a permit to the thread that waits for it. Returns whether the dispatch was a permit.
    pub(super) fn granted(&mut self, dispatch: &Dispatch) -> bool {
        if dispatch.handle & HANDLES == 0 {
            return false;
        }
        let permit = PermitId::new(dispatch.handle & !HANDLES);
        let waits = self.background.waiting.remove(permit);
        if waits.send(dispatch.ticket).is_err() {
            // The thread has given up waiting.
            self.end_permit(dispatch.ticket);
        }
        true
    }

    /// Ends a permit.
    pub(super) fn end_permit(&mut self, ticket: Ticket) {
        self.scheduler.complete(self.now, ticket);
        note(&mut self.trace, self.now, Call::Complete(ticket));
        self.dispatch();
    }

    /// Submits a probe to a volume's store.
    pub(super) fn probe(&mut self, id: VolumeId, probe: Probe) {
        let Some(&slot) = self.by_id.get(&id) else { return };
        let volume = &mut self.volumes[slot];
        if volume.is_leaving() || self.background.probes.len() >= BACKGROUND_PERMITS_MAX as usize {
            return;
        }
        let Probe { operation, offset, length, buffer, ack } = probe;
        let request = Request { operation, offset, length };
        let number = self.background.probes.insert(Probing { slot, request, ack });
        let ticket = PROBES | ticket_of(number);
        volume.in_store += 1;
        let submission = Submission { ticket, operation, offset, length, buffer };
        volume.store.submit(submission, &mut self.driver.disk(slot));
        self.finish_store(slot);
    }

    /// Sends the completion of a probe to the thread that waits for it. Returns a completion that
    /// belongs to no probe.
    pub(super) fn probed(&mut self, completion: Completion) -> Option<Completion> {
        if completion.ticket & PROBES == 0 {
            return Some(completion);
        }
        let number = number_of(completion.ticket & !PROBES);
        let Probing { slot, request, ack } = self.background.probes.remove(number);
        let volume = &mut self.volumes[slot];
        if let Err(failure @ (Failure::Io | Failure::Rotten)) = completion.result {
            volume.errors.count(volume.state.id, &request, failure);
        }
        // The thread may have given up waiting.
        let _ = ack.send(completion);
        None
    }
}
