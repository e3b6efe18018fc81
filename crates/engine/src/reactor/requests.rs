//! A request's life: head, payload, tokens, store, reply.

use super::discard::Clear;
use super::sharing::Flight;
use super::{Reactor, note};
use crate::buffers::Lacking;
use crate::driver::Driver;
use crate::protocol::{Command, Next, Outcome, Tag, Violation};
use crate::rate_limited_log::Notice;
use crate::session::Bound;
use crate::table::{RequestId, SessionId, VolumeSlot, number_of, ticket_of};
use crate::transport::Stretch;
use evenkeel_core::latency::{Latencies, Latency, Stage};
use evenkeel_core::limits::QUANTUM_BYTES_MAX;
use evenkeel_core::qos::Exceeded;
use evenkeel_core::qos::scheduler::{Dispatch, SubmitError};
use evenkeel_core::qos::trace::Call;
use evenkeel_core::request::{Failure, Operation, Request};
use evenkeel_core::slots::Slot;
use evenkeel_core::time::Instant;
use evenkeel_store::buffer::Buffer;
use evenkeel_store::{Completion, Extent, Submission};

/// A request that is in the server.
pub(super) struct Active {
    session: SessionId,
    /// Its number among all requests of its connection.
    pub(super) number: u64,
    pub(super) volume: VolumeSlot,
    pub(super) tag: Tag,
    pub(super) request: Request,
    /// Payload by quanta; empty while a read has no memory yet, and for requests without payload.
    pub(super) buffers: Vec<Option<Buffer>>,
    /// Progress of clearing its range; `None` if it does not clear one.
    pub(super) clear: Option<Clear>,
    /// Quanta that are not finished.
    pub(super) quanta_left: u32,
    /// Quanta in the store.
    in_store: u32,
    /// Arrival of its head.
    arrived_at: Instant,
    /// Submission to the scheduler, after the arrival of its payload.
    submitted_at: Instant,
    /// Its volume's account of limits that delayed requests, at submission.
    exceeded: Exceeded,
    pub(super) failure: Option<Failure>,
    extents: Vec<Extent>,
}

impl Active {
    pub(super) fn is_in_store_of(&self, volume: VolumeSlot) -> bool {
        self.volume == volume && self.in_store > 0
    }

    pub(super) fn session(&self) -> SessionId {
        self.session
    }
}

/// Returns the statistics for a request's times; `None` if it is neither a read nor a write.
fn latency_of(
    latencies: &mut Option<Box<Latencies>>,
    operation: Operation,
) -> Option<&mut Latency> {
    // Created for the first request: unused volumes take no memory for it.
    match operation {
        Operation::Read => Some(&mut latencies.get_or_insert_default().reads),
        Operation::Write { .. } => Some(&mut latencies.get_or_insert_default().writes),
        _ => None,
    }
}

impl<D: Driver> Reactor<D> {
    /// Takes the front of a connection's input: a request, a stretch of payload, or a message that
    /// the protocol handles itself. Returns whether there may be more to take.
    pub(super) fn parse(&mut self, id: SessionId) -> bool {
        let session = &mut self.sessions[id];
        if session.transport.payload().is_some() {
            return self.take_payload(id);
        }
        let volumes = &self.volumes;
        let size_of = |slot: VolumeSlot| volumes[slot].state.size.0;
        let next = session.protocol.next(session.transport.pending(), size_of);
        let needed = match &next {
            Next::Incomplete => return false,
            Next::Skip(count) => {
                session.transport.consume(*count);
                return true;
            }
            Next::Payload(stretch) => {
                session.transport.expect_payload(*stretch);
                return self.take_payload(id);
            }
            Next::Broken(violation) => {
                self.break_off(id, violation);
                return true;
            }
            Next::Request(command) => command.request.payload_bytes(),
            Next::Answer | Next::End => 0,
        };
        if session.is_full(needed) {
            session.parked = Some(Bound::Connection);
            return false;
        }
        match next {
            Next::Request(command) => {
                let waits = self.waits_for_former(id, command.volume, &command.request);
                return !waits && self.begin(id, &command);
            }
            Next::Answer => {
                let consumed = session.protocol.answer(session.transport.output());
                session.transport.consume(consumed);
            }
            _ => {
                session.begin_to_close();
                self.note_former(id);
            }
        }
        true
    }

    /// Closes a connection whose input violates the protocol.
    fn break_off(&mut self, id: SessionId, violation: &Violation) {
        let session = &mut self.sessions[id];
        let peer = session.peer;
        session.begin_to_close();
        self.notices.tell(self.now, Notice::BadRequest, |left_out| match violation {
            Violation::OutOfStep(error) => {
                tracing::info!(?peer, %error, left_out, "a connection is closed");
            }
            Violation::TooLarge(bytes) => {
                let why = "a connection is closed: its write is too large";
                tracing::info!(?peer, bytes, left_out, "{why}");
            }
        });
        self.watch();
    }

    /// Begins a request. Returns `false` if it has to wait in the input.
    fn begin(&mut self, id: SessionId, command: &Command) -> bool {
        let &Command { tag, volume: slot, request, head_bytes } = command;
        let bytes = request.payload_bytes();
        let is_write = matches!(request.operation, Operation::Write { .. });
        let mut buffers = self.spare.pop().unwrap_or_default();
        if is_write && let Err(lacking) = self.take_buffers(slot, id, &mut buffers, bytes) {
            self.spare.push(buffers);
            self.await_memory(id, slot, lacking);
            return false;
        }
        let clear = Clear::of(&request, &*self.volumes[slot].store);
        let number = self.sessions[id].next_number();
        let handle = self.active.insert(Active {
            session: id,
            number,
            volume: slot,
            tag,
            request,
            buffers,
            clear,
            quanta_left: Active::pieces(&request, clear),
            in_store: 0,
            arrived_at: self.now,
            submitted_at: self.now,
            exceeded: Exceeded::default(),
            failure: None,
            extents: Vec::new(),
        });
        if !is_write && !self.submit(id, slot, handle) {
            self.release(handle);
            return false;
        }
        let session = &mut self.sessions[id];
        session.transport.consume(head_bytes);
        session.protocol.accepted(handle, command);
        session.begun(bytes);
        self.requests_in_turn += 1;
        if !is_write {
            self.dispatch();
        }
        true
    }

    /// Submits a request to the scheduler. Returns `false` if the volume's queue is full; the
    /// connection is then retried once there is room.
    fn submit(&mut self, id: SessionId, slot: VolumeSlot, handle: RequestId) -> bool {
        let volume = &mut self.volumes[slot];
        let has_turn = self.sessions[id].use_turn(slot);
        let is_long_clear = self.active[handle].is_long_clear();
        // A request does not overtake connections that wait, so that a large one gets its room.
        let result = match has_turn || volume.waiters.is_empty() {
            false => Err(SubmitError::QueueFull),
            true if is_long_clear => volume.clears.wait(handle),
            true => self.offer(handle),
        };
        match result {
            Ok(()) => {
                let index = self.volumes[slot].index;
                let active = &mut self.active[handle];
                active.submitted_at = self.now;
                active.exceeded = self.scheduler.exceeded(index);
                if is_long_clear {
                    self.submit_clears(slot);
                }
                true
            }
            Err(SubmitError::QueueFull) => {
                let volume = &mut self.volumes[slot];
                if self.sessions[id].wait_for_room(slot) {
                    if has_turn {
                        volume.waiters.push_front(id);
                    } else {
                        volume.waiters.push_back(id);
                    }
                }
                false
            }
            // A volume is removed after its connections.
            Err(SubmitError::NoSuchVolume) => unreachable!("a session outlived its volume"),
        }
    }

    /// Submits a request, or its next piece, to the scheduler through its connection's line.
    pub(super) fn offer(&mut self, handle: RequestId) -> Result<(), SubmitError> {
        let active = &self.active[handle];
        let index = self.volumes[active.volume].index;
        let io = active.next_io(handle);
        let line = self.sessions[active.session].protocol.line_to(active.volume);
        let (result, call) = match line {
            None => (self.scheduler.submit(self.now, index, io), Call::Submit(index, io)),
            Some(line) => {
                (self.scheduler.submit_from(self.now, line, io), Call::Other("submit_from"))
            }
        };
        if result.is_ok() {
            note(&mut self.trace, self.now, call);
        }
        result
    }

    /// Copies a write's payload as far as it has arrived; submits the write when the payload is
    /// whole.
    fn take_payload(&mut self, id: SessionId) -> bool {
        let session = &mut self.sessions[id];
        let Some(&Stretch { handle, total, .. }) = session.transport.payload() else {
            return false;
        };
        let active = &mut self.active[handle];
        if !session.transport.copy_payload(&mut active.buffers) {
            return false;
        }
        // If this is not the last stretch, others follow.
        let slot = active.volume;
        let is_last = total >= active.request.length;
        if is_last && !self.submit(id, slot, handle) {
            return false;
        }
        self.sessions[id].transport.end_payload();
        self.dispatch();
        true
    }

    /// Abandons a write whose payload will not arrive, unless the driver may still write to its
    /// buffers.
    pub(super) fn abandon_payload(&mut self, id: SessionId) {
        let session = &mut self.sessions[id];
        if session.transport.is_receiving_payload() {
            return;
        }
        if let Some(stretch) = session.transport.end_payload() {
            if session.goes_back() {
                self.leave_to_others(stretch.handle, stretch.received);
            }
            let session = &mut self.sessions[id];
            session.ended(self.active[stretch.handle].request.payload_bytes());
            self.release(stretch.handle);
        }
    }

    /// Hands the quanta that the scheduler dispatches to the stores.
    pub(super) fn dispatch(&mut self) {
        while let Some(dispatch) = self.scheduler.poll_output() {
            note(&mut self.trace, self.now, Call::Dispatch(dispatch));
            if self.granted(&dispatch) {
                continue;
            }
            let may_take = !self.others_starve(dispatch);
            if self.start(dispatch, may_take).is_err() {
                self.wait_for_buffer(dispatch);
            }
        }
    }

    /// Wakes the connection that has waited longest for room in the volume's queue.
    pub(super) fn wake_waiter(&mut self, slot: VolumeSlot) {
        let Some(volume) = self.volumes.get_mut(slot) else { return };
        while let Some(id) = volume.waiters.pop_front() {
            // An id may belong to another connection by now.
            let Some(session) = self.sessions.get_mut(id) else { continue };
            if session.wake(slot) {
                return self.ready.push(id);
            }
        }
    }

    /// Starts one quantum. Returns an error if it has to wait for memory; `may_take` is false if
    /// others wait for memory before it.
    pub(super) fn start(&mut self, dispatch: Dispatch, may_take: bool) -> Result<(), Lacking> {
        let handle = RequestId::of(&dispatch);
        let active = &mut self.active[handle];
        let slot = active.volume;
        let operation = active.request.operation;
        if operation == Operation::Read && active.buffers.is_empty() {
            let id = active.session;
            let bytes = active.request.length;
            let mut buffers = std::mem::take(&mut active.buffers);
            let taken = if may_take {
                self.take_buffers(slot, id, &mut buffers, bytes)
            } else {
                Err(Lacking::Connection)
            };
            self.active[handle].buffers = buffers;
            taken?;
        }
        if self.has_turn_to_clear(dispatch) {
            self.run_part(dispatch);
        }
        Ok(())
    }

    /// Submits one quantum to the store.
    pub(super) fn run_part(&mut self, dispatch: Dispatch) {
        let handle = RequestId::of(&dispatch);
        let active = &mut self.active[handle];
        active.in_store += 1;
        let slot = active.volume;
        let total = dispatch.length;
        let operation = active.operation_of(&dispatch);
        let quantum =
            ((dispatch.offset - active.request.offset) / u64::from(QUANTUM_BYTES_MAX)) as u32;
        let ticket = dispatch.ticket;
        let started_at = self.now;
        let expected = self.expect_of(slot, operation, total);
        let active = &mut self.active[handle];
        let length = total;
        let flight = Flight { handle, quantum, ticket, started_at, expected, length };
        let submitted_at = active.submitted_at;
        let before = active.exceeded;
        let submission = Submission {
            ticket: ticket_of(self.flights.insert(flight)),
            operation,
            offset: dispatch.offset,
            length: total,
            buffer: active.buffers.get_mut(quantum as usize).and_then(Option::take),
        };
        let volume = &mut self.volumes[slot];
        if volume.errors.refuses(operation) {
            let Submission { ticket, buffer, .. } = submission;
            let result = Err(Failure::Io);
            let extents = Vec::new();
            self.complete(Completion { ticket, result, buffer, extents });
            self.submit_clears(slot);
            self.wake_waiter(slot);
            return self.settle(slot);
        }
        if let Some(latency) = latency_of(&mut volume.latencies, operation) {
            let after = self.scheduler.exceeded(volume.index);
            latency.waited(self.now.since(submitted_at), &before, &after);
        }
        volume.in_store += 1;
        volume.flushes += u64::from(operation == Operation::Flush);
        volume.store.submit(submission, &mut self.driver.disk(slot));
        self.mark_balances_dirty(slot);
        self.use_in_second(slot);
        self.submit_clears(slot);
        self.wake_waiter(slot);
        self.finish_store(slot);
    }

    /// Takes the completions of a store.
    pub(super) fn finish_store(&mut self, slot: VolumeSlot) {
        while let Some(volume) = self.volumes.get_mut(slot)
            && !volume.is_held
            && let Some(completion) = volume.store.poll()
        {
            volume.in_store -= 1;
            if let Some(completion) = self.probed(completion) {
                self.complete(completion);
            }
        }
        self.settle(slot);
    }

    fn complete(&mut self, completion: Completion) {
        let flight = self.flights.remove(number_of(completion.ticket));
        let Flight { handle, quantum, ticket, started_at, .. } = flight;
        self.scheduler.complete(self.now, ticket);
        note(&mut self.trace, self.now, Call::Complete(ticket));
        let active = &self.active[handle];
        let slot = active.volume;
        let operation = active.request.operation;
        self.watch_device(&flight, slot, operation);
        let active = &mut self.active[handle];
        let volume = &mut self.volumes[active.volume];
        if let Some(latency) = latency_of(&mut volume.latencies, active.request.operation) {
            let service = self.now.since(started_at);
            latency.device.record(service);
            latency.spend(Stage::Device, service);
        }
        let must_reopen = completion.result.is_err() && volume.store.must_reopen();
        let id = volume.state.id;
        let result = completion.result;
        let marks = (id, self.flush_marks.as_ref());
        let seen = volume.errors.seen(marks, active.request.operation, result, must_reopen);
        if let Err(failure) = seen {
            active.failure.get_or_insert(failure);
        }
        if let Some(place) = active.buffers.get_mut(quantum as usize) {
            *place = completion.buffer;
        }
        active.extents = completion.extents;
        active.quanta_left -= 1;
        active.in_store -= 1;
        self.cleared(handle, flight.length);
        if self.active[handle].quanta_left == 0 {
            self.reply(handle);
        }
    }

    /// Replies to a request and removes it.
    fn reply(&mut self, handle: RequestId) {
        let active = &mut self.active[handle];
        let id = active.session;
        let slot = active.volume;
        let request = active.request;
        let volume = &mut self.volumes[active.volume];
        if let Some(latency) = latency_of(&mut volume.latencies, request.operation) {
            latency.total.record(self.now.since(active.arrived_at));
            latency.spend(Stage::Socket, active.submitted_at.since(active.arrived_at));
        }
        if let Some(failure) = active.failure {
            volume.errors.count(volume.state.id, &request, failure);
        }
        // The request was not begun, or not all of it: another data plane is to repeat it.
        if active.failure == Some(Failure::ShuttingDown) && self.is_left_to_others(id) {
            self.leave_to_others(handle, request.payload_bytes());
            self.sessions[id].ended(request.payload_bytes());
        } else {
            let active = &mut self.active[handle];
            let session = &mut self.sessions[id];
            session.ended(request.payload_bytes());
            let outcome = Outcome {
                tag: active.tag,
                volume: slot,
                request,
                result: active.failure.map_or(Ok(()), Err),
                extents: &active.extents,
            };
            session.reply(&outcome, &mut active.buffers);
        }
        let session = &self.sessions[id];
        if session.parked == Some(Bound::Connection) {
            self.ready.push(id);
        }
        let closing = session.is_closing();
        self.release(handle);
        self.sends(id);
        if closing {
            self.try_free(id);
        }
    }

    /// Removes a request that is nowhere in progress, and takes its memory back.
    fn release(&mut self, handle: RequestId) {
        let Active { volume, session, mut buffers, .. } = self.active.remove(handle);
        buffers.drain(..).flatten().for_each(|buffer| self.give_back(volume, session, buffer));
        self.spare.push(buffers);
        self.end_former(volume, handle);
    }

    /// Cancels a connection's requests that wait for tokens or memory. Quanta in the store end as
    /// usual.
    pub(super) fn cancel_of(&mut self, id: SessionId) {
        // Quanta that the scheduler has already dispatched go to the store before anything is
        // cancelled: a request must not be removed while a part of it is still to be started.
        self.dispatch();
        let mut position = 0;
        while let Some(session) = self.sessions.get(id)
            && let Some(binding) = session.protocol.bindings().get(position)
        {
            self.cancel_at(id, binding.volume);
            position += 1;
        }
    }

    /// Cancels a connection's requests for one volume that wait for tokens or memory.
    fn cancel_at(&mut self, id: SessionId, slot: VolumeSlot) {
        let active = &self.active;
        let volume = &mut self.volumes[slot];
        let ours = |handle: RequestId| active[handle].session == id;
        let mut cancelled: Vec<RequestId> = self
            .scheduler
            .cancel_queued(self.now, volume.index, |handle| ours(RequestId::new(handle)))
            .map(RequestId::new)
            .collect();
        if !cancelled.is_empty() {
            note(&mut self.trace, self.now, Call::Other("cancel_queued"));
        }
        cancelled.extend(volume.share.cancel_starved(ours));
        cancelled.extend(volume.clears.cancel(ours));
        self.fail_cancelled(slot, cancelled);
        // Requests behind them may be dispatched, and the queue has room for others now.
        self.dispatch();
        self.wake_waiter(slot);
    }

    /// Fails requests of a volume of which the scheduler has returned waiting parts. Their reads
    /// that wait for memory are not run either, and quanta in the store end first.
    pub(super) fn fail_cancelled(&mut self, slot: VolumeSlot, mut cancelled: Vec<RequestId>) {
        if cancelled.is_empty() {
            return;
        }
        cancelled.sort_unstable();
        cancelled.dedup();
        let is_cancelled = |handle: RequestId| cancelled.binary_search(&handle).is_ok();
        let volume = &mut self.volumes[slot];
        drop(volume.share.cancel_starved(is_cancelled));
        drop(volume.clears.cancel(is_cancelled));
        for handle in cancelled {
            let active = &mut self.active[handle];
            active.failure = Some(Failure::ShuttingDown);
            active.quanta_left = active.in_store;
            if active.in_store == 0 {
                self.gave_up_clearing(handle);
                self.reply(handle);
            }
        }
    }
}
