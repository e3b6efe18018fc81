//! Payload memory among volumes and their connections: limits, waiting requests, and their order.
//!
//! A volume may hold as much as it leaves free. One alone gets half of a core's memory; two that
//! want all they can get hold a third each, and a third stays free; and so on. So clients of one
//! volume that do not fetch their replies, however many, never take the memory that another volume
//! needs to make progress: a volume that holds none may have all that is free. (Switches share
//! their buffers among ports by this rule: Choudhury and Hahne, Dynamic queue length thresholds,
//! 1998.)
//!
//! The connections of a volume share its memory by the same rule. A connection that holds memory
//! leaves as much free as it holds, and the memory of the largest request of another connection. It
//! waits in a line of its own until its client fetches replies, and other connections of the volume
//! pass it. A connection that holds no memory is not passed.

use super::Reactor;
use super::volumes::Volume;
use crate::buffers::{BufferPool, Held, LINES, Lacking, line_of};
use crate::driver::Driver;
use crate::session::Session;
use crate::table::{RequestId, SessionId, Table, VolumeSlot};
use evenkeel_core::limits::QUANTUM_BYTES_MAX;
use evenkeel_core::qos::scheduler::{Dispatch, Ticket};
use evenkeel_core::time::Instant;
use evenkeel_store::buffer::Buffer;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Bound;

/// Volumes that are examined in one turn when memory has come back, so that the turn stays short.
const GRANTS_IN_TURN_MAX: usize = 64;

/// Payload memory that a volume holds, and its requests that wait for some.
#[derive(Default)]
pub(super) struct Share {
    /// Bytes of payload memory that its requests and unfetched replies hold.
    held_bytes: usize,
    /// Dispatched reads that wait for memory, by the size that they need.
    starved: [Line; LINES],
    /// Connections with a write that waits for memory.
    writers: VecDeque<SessionId>,
    /// The volume is in the list of buffer waiters.
    is_listed: bool,
}

/// Where the search for the next connection of a line starts.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
enum Turn {
    /// At the first connection.
    #[default]
    First,
    /// At this connection.
    Of(SessionId),
    /// Behind this connection.
    After(SessionId),
}

/// Reads of a volume that wait for memory.
#[derive(Default)]
struct Line {
    /// By connection, in order of arrival.
    by_connection: BTreeMap<SessionId, VecDeque<Dispatch>>,
    /// Where the search for the next connection starts.
    turn: Turn,
    /// The connection whose turn it is found no memory, and holds none: no other one passes it.
    is_closed: bool,
}

impl Line {
    /// Returns the connection whose turn it is.
    fn next(&self) -> Option<SessionId> {
        let start = match self.turn {
            Turn::First => Bound::Unbounded,
            Turn::Of(id) => Bound::Included(id),
            Turn::After(id) => Bound::Excluded(id),
        };
        let from_turn = self.by_connection.range((start, Bound::Unbounded)).next();
        from_turn.or_else(|| self.by_connection.iter().next()).map(|(id, _)| *id)
    }

    /// Removes the read with which a connection has waited longest.
    fn pop(&mut self, id: SessionId) -> Option<Dispatch> {
        let reads = self.by_connection.get_mut(&id)?;
        let first = reads.pop_front();
        if reads.is_empty() {
            self.by_connection.remove(&id);
        }
        first
    }

    /// Removes the reads that are `ours`, and adds their requests to `cancelled`.
    fn cancel(&mut self, ours: impl Fn(RequestId) -> bool, cancelled: &mut Vec<RequestId>) {
        self.by_connection.retain(|_, reads| {
            reads.retain(|dispatch| {
                let handle = RequestId::of(dispatch);
                let goes = ours(handle);
                if goes {
                    cancelled.push(handle);
                }
                !goes
            });
            !reads.is_empty()
        });
        self.is_closed &= matches!(self.turn, Turn::Of(id) if self.by_connection.contains_key(&id));
    }
}

impl Share {
    /// Removes the reads that are `ours` and wait for memory. Returns their requests.
    pub(super) fn cancel_starved(&mut self, ours: impl Fn(RequestId) -> bool) -> Vec<RequestId> {
        let mut cancelled = Vec::new();
        for line in &mut self.starved {
            line.cancel(&ours, &mut cancelled);
        }
        cancelled
    }

    fn waits(&self) -> bool {
        !self.writers.is_empty() || self.starved.iter().any(|line| !line.by_connection.is_empty())
    }
}

/// Volumes with requests that wait for memory, in the order in which they are examined.
#[derive(Default)]
pub(super) struct BufferWaiters {
    slots: VecDeque<VolumeSlot>,
    /// The pool's count of returned buffers when the volumes were last examined.
    seen: u64,
    /// Volumes that are still to be examined because of it.
    left: usize,
    /// Connections that were examined.
    #[cfg(test)]
    looks: usize,
}

impl BufferWaiters {
    /// Returns whether memory has come back that volumes have not been offered yet.
    pub(super) fn may_be_granted(&self, gave_back: u64) -> bool {
        !self.slots.is_empty() && (self.left > 0 || gave_back != self.seen)
    }
}

/// Records that `count` bytes of a connection's output have left, and takes the memory back.
pub(super) fn left(
    session: &mut Session,
    count: usize,
    now: Instant,
    (pool, volumes): (&mut BufferPool, &mut Table<VolumeSlot, Volume>),
) {
    let mut bytes = 0;
    let done = |slot, buffer: Buffer| {
        bytes += buffer.capacity();
        give_back(slot, buffer, (&mut *pool, &mut *volumes));
    };
    session.transport.sent(count, now, done);
    session.held_bytes -= bytes;
}

/// Takes the memory of a connection's output back.
pub(super) fn abandon(
    session: &mut Session,
    (pool, volumes): (&mut BufferPool, &mut Table<VolumeSlot, Volume>),
) {
    let mut bytes = 0;
    let done = |slot, buffer: Buffer| {
        bytes += buffer.capacity();
        give_back(slot, buffer, (&mut *pool, &mut *volumes));
    };
    session.transport.abandon(done);
    session.held_bytes -= bytes;
}

/// Takes a buffer back that a volume's request held.
fn give_back(
    slot: VolumeSlot,
    buffer: Buffer,
    (pool, volumes): (&mut BufferPool, &mut Table<VolumeSlot, Volume>),
) {
    if let Some(volume) = volumes.get_mut(slot) {
        volume.share.held_bytes -= buffer.capacity();
    }
    pool.give(buffer);
}

impl<D: Driver> Reactor<D> {
    /// Takes all of a request's memory or none of it: a request that has begun can end.
    pub(super) fn take_buffers(
        &mut self,
        slot: VolumeSlot,
        id: SessionId,
        buffers: &mut Vec<Option<Buffer>>,
        bytes: u32,
    ) -> Result<(), Lacking> {
        let by_connection = self.sessions.get(id).map_or(0, |session| session.held_bytes);
        let share = &mut self.volumes[slot].share;
        let held = Held { by_volume: share.held_bytes, by_connection };
        self.pool.room_for(bytes, held)?;
        let before = self.pool.bytes_in_use();
        let mut left = bytes;
        while left > 0 {
            let count = left.min(QUANTUM_BYTES_MAX);
            let Some(buffer) = self.pool.take(count) else {
                buffers.drain(..).flatten().for_each(|buffer| self.pool.give(buffer));
                return Err(Lacking::Volume);
            };
            buffers.push(Some(buffer));
            left -= count;
        }
        let taken = self.pool.bytes_in_use() - before;
        share.held_bytes += taken;
        if let Some(session) = self.sessions.get_mut(id) {
            session.held_bytes += taken;
        }
        Ok(())
    }

    /// Takes a buffer back that a request of a volume and a connection held.
    pub(super) fn give_back(&mut self, slot: VolumeSlot, id: SessionId, buffer: Buffer) {
        if let Some(session) = self.sessions.get_mut(id) {
            session.held_bytes -= buffer.capacity();
        }
        give_back(slot, buffer, (&mut self.pool, &mut self.volumes));
    }

    /// Lets a connection's write wait for memory.
    pub(super) fn await_memory(&mut self, id: SessionId, slot: VolumeSlot, lacking: Lacking) {
        if self.sessions[id].wait_for_memory(slot, lacking) {
            self.volumes[slot].share.writers.push_back(id);
            self.list(slot);
        }
    }

    /// Returns whether a read waits for memory behind another one of about its size: of its own
    /// connection, or of one that may not be passed.
    pub(super) fn others_starve(&self, dispatch: Dispatch) -> bool {
        let active = &self.active[RequestId::of(&dispatch)];
        let share = &self.volumes[active.volume].share;
        let line = &share.starved[line_of(active.request.length)];
        line.is_closed || line.by_connection.contains_key(&active.session())
    }

    /// Lets a dispatched read wait for memory.
    pub(super) fn wait_for_buffer(&mut self, dispatch: Dispatch) {
        let active = &self.active[RequestId::of(&dispatch)];
        let slot = active.volume;
        let id = active.session();
        let line = line_of(active.request.length);
        // A read that waits for its client does not occupy the device.
        self.scheduler.complete(self.now, dispatch.ticket);
        super::note(&mut self.trace, self.now, super::Call::Complete(dispatch.ticket));
        let dispatch = Dispatch { ticket: Ticket::NONE, ..dispatch };
        let line = &mut self.volumes[slot].share.starved[line];
        line.by_connection.entry(id).or_default().push_back(dispatch);
        self.list(slot);
        // The read has left the volume's queue.
        self.wake_waiter(slot);
    }

    fn list(&mut self, slot: VolumeSlot) {
        if !std::mem::replace(&mut self.volumes[slot].share.is_listed, true) {
            self.buffer_waiters.slots.push_back(slot);
        }
    }

    /// Grants memory that has come back to waiting requests, volume by volume; at most
    /// [`GRANTS_IN_TURN_MAX`] volumes in a turn, the others in the next.
    pub(super) fn grant_buffers(&mut self) {
        let gave_back = self.pool.gave_back();
        if self.buffer_waiters.seen != gave_back {
            self.buffer_waiters.seen = gave_back;
            self.buffer_waiters.left = self.buffer_waiters.slots.len();
        }
        for _ in 0..self.buffer_waiters.left.min(GRANTS_IN_TURN_MAX) {
            self.buffer_waiters.left -= 1;
            let Some(slot) = self.buffer_waiters.slots.pop_front() else { break };
            self.grant(slot);
        }
        // Requests that were served at once have made room at the device.
        self.dispatch();
    }

    /// Grants memory to waiting requests of one volume.
    fn grant(&mut self, slot: VolumeSlot) {
        for line in 0..LINES {
            self.grant_reads(slot, line);
        }
        self.grant_writes(slot);
        let Some(share) = self.share(slot) else { return };
        share.is_listed = share.waits();
        if share.is_listed {
            self.buffer_waiters.slots.push_back(slot);
        }
    }

    /// Grants memory to waiting reads of one line, connection by connection.
    fn grant_reads(&mut self, slot: VolumeSlot, line: usize) {
        let connections =
            self.share(slot).map_or(0, |share| share.starved[line].by_connection.len());
        for _ in 0..connections {
            let Some(reads) = self.share(slot).map(|share| &mut share.starved[line]) else {
                return;
            };
            let Some(id) = reads.next() else { return };
            reads.turn = Turn::After(id);
            reads.is_closed = false;
            while let Some(dispatch) =
                self.share(slot).and_then(|share| share.starved[line].pop(id))
            {
                let Err(lacking) = self.start(dispatch, true) else { continue };
                let Some(share) = self.share(slot) else { return };
                let reads = &mut share.starved[line];
                reads.by_connection.entry(id).or_default().push_front(dispatch);
                if lacking == Lacking::Volume {
                    reads.turn = Turn::Of(id);
                    reads.is_closed = true;
                    return;
                }
                break;
            }
        }
    }

    /// Grants memory to connections with a waiting write.
    fn grant_writes(&mut self, slot: VolumeSlot) {
        let connections = self.share(slot).map_or(0, |share| share.writers.len());
        for _ in 0..connections {
            let Some(id) = self.share(slot).and_then(|share| share.writers.pop_front()) else {
                return;
            };
            // An id may belong to another connection by now.
            let Some(session) = self.sessions.get_mut(id) else { continue };
            session.leave_memory_waiters(slot);
            #[cfg(test)]
            (self.buffer_waiters.looks += 1);
            self.proceed(id);
            let session = self.sessions.get(id);
            if session.and_then(|session| session.waits_for_memory(slot)) == Some(Lacking::Volume) {
                // The connection keeps its place.
                if let Some(share) = self.share(slot) {
                    share.writers.rotate_right(1);
                }
                return;
            }
        }
    }

    /// Returns a volume's share; `None` if the volume is gone.
    fn share(&mut self, slot: VolumeSlot) -> Option<&mut Share> {
        self.volumes.get_mut(slot).map(|volume| &mut volume.share)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::connection_limits::Slot;
    use crate::protocol::testing;
    use crate::reactor::Inbox;
    use crate::session::Connection;
    use crate::shared_device::SharedDevice;
    use crate::threads::Threads;
    use evenkeel_core::ids::{InstanceId, VolumeId};
    use evenkeel_core::limits::CORE_PAYLOAD_BYTES_MAX;
    use evenkeel_core::qos::admission::Reserved;
    use evenkeel_core::qos::pacing::{Balances, Pacing};
    use evenkeel_core::request::{Operation, Request};
    use evenkeel_core::units::ByteCount;
    use evenkeel_os::clock::Clock;
    use evenkeel_store::Pool;
    use evenkeel_store::memory::MemoryPool;
    use evenkeel_wire::agent::{Attachment, HostAddress, VolumeState};
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::mpsc::sync_channel;

    /// Bytes of each write that waits.
    const PIECE: u32 = 4_096;
    /// The volume's slot.
    const VOLUME: VolumeSlot = VolumeSlot::for_test(0);
    /// An id that no connection has.
    const NO_SESSION: SessionId = SessionId::NONE;

    /// Creates a core with one volume, whose loop does not run.
    fn reactor() -> Reactor<Threads> {
        let inboxes: Arc<[Inbox]> = [Inbox::new().unwrap()].into();
        let shared = (Arc::default(), Arc::new(SharedDevice::new(1)), Arc::default());
        let driver = Threads::new(inboxes[0].waker());
        let mut core = Reactor::new(0, inboxes, shared, Clock::start(), driver.unwrap());
        let id = VolumeId::from_bits(1);
        let size = ByteCount(1 << 30);
        let pool = MemoryPool::new();
        pool.create(id, size).unwrap();
        let here = Attachment { host: InstanceId::from_bits(1), address: HostAddress::Local };
        let pacing = Pacing::UNLIMITED;
        let balances = Balances::default();
        let attachments = vec![here];
        let unleased = Balances::default();
        let reserved = Reserved::NOTHING;
        let is_encrypted = false;
        #[rustfmt::skip]
        let state = VolumeState {
            id, size, pacing, balances, unleased, reserved, attachments, is_encrypted,
        };
        let (ack, applied) = sync_channel(1);
        core.apply(state, Some(pool.open(id, size).unwrap()), ack);
        applied.recv().unwrap().unwrap();
        core
    }

    /// Adds a connection that has sent the head of a write, and nothing else.
    fn writer(core: &mut Reactor<Threads>) -> (SessionId, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let (place, _) = Slot::greet(core.directory.slots(), HostAddress::Local, 0).unwrap();
        let operation = Operation::Write { fua: false };
        let leftover = testing::request(&Request { operation, offset: 0, length: PIECE });
        let fd = ours.into();
        let peer = HostAddress::Local.into();
        let protocol = testing::serving();
        let connection = Connection { fd, peer, slot: place, protocol, leftover };
        let session = Session::new(connection, core.now);
        let id = core.sessions.insert(session);
        core.proceed(id);
        (id, theirs)
    }

    #[test]
    fn memory_that_comes_back_goes_to_those_first_in_line_and_the_others_are_left_alone() {
        let mut core = reactor();
        let mut held = Vec::new();
        // Take half of the memory, the last of it in small pieces.
        for _ in 1..CORE_PAYLOAD_BYTES_MAX / QUANTUM_BYTES_MAX / 2 {
            assert!(core.take_buffers(VOLUME, NO_SESSION, &mut held, QUANTUM_BYTES_MAX).is_ok());
        }
        while core.take_buffers(VOLUME, NO_SESSION, &mut held, PIECE).is_ok() {}
        let (ids, _ends): (Vec<SessionId>, Vec<UnixStream>) =
            (0..400).map(|_| writer(&mut core)).unzip();
        let served = |core: &Reactor<Threads>| -> Vec<SessionId> {
            let is_served = |id: &&SessionId| core.sessions[**id].transport.payload().is_some();
            ids.iter().filter(is_served).copied().collect()
        };
        assert!(
            served(&core).is_empty() && !core.buffer_waiters.may_be_granted(core.pool.gave_back())
        );
        for round in 1..=3 {
            let small = held.pop().flatten().unwrap();
            core.give_back(VOLUME, NO_SESSION, small);
            assert!(core.buffer_waiters.may_be_granted(core.pool.gave_back()));
            core.grant_buffers();
            assert_eq!(served(&core), ids[..round]);
            assert!(core.buffer_waiters.looks <= 2 * round, "{} looks", core.buffer_waiters.looks);
        }
        assert!(!core.buffer_waiters.may_be_granted(core.pool.gave_back()));
    }
}
