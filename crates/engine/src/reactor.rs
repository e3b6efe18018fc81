//! One thread, one ring, one loop: wait, handle what ended, dispatch what is due, send what is
//! ready.

use crate::buffers::BufferPool;
use crate::clock::Clock;
use crate::ring::{Event, Ring};
use crate::session::{INPUT_BYTES, Incoming, Phase, Session};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::limits::{
    CONNECTION_REQUESTS_MAX, CONNECTIONS_PER_CORE_MAX, QUANTUM_BYTES_MAX, REQUEST_BYTES_MAX,
};
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::qos::scheduler::{Dispatch, Io, Scheduler, VolumeIndex};
use evenkeel_core::request::{Failure, Operation, Request};
use evenkeel_core::units::ByteCount;
use evenkeel_store::buffer::Buffer;
use evenkeel_store::{Completion, Extent, Store, Submission};
use evenkeel_wire::agent::{HostAddress, VolumeReport, VolumeState};
use evenkeel_wire::nbd::ExportInfo;
use evenkeel_wire::nbd::handshake::{Listed, Step};
use evenkeel_wire::nbd::transmission::{Command, RequestHeader, reply};
use rustix::net::Shutdown;
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};

/// Payload memory of one core.
const POOL_BYTES_MAX: usize = 1 << 30;
/// Bytes of a request's head.
const HEAD_BYTES: usize = 28;

/// What other threads ask of a reactor.
pub enum Mail {
    /// A new connection.
    Connection(OwnedFd, HostAddress),
    /// The desired state of a volume; with its store if the reactor does not hold it yet.
    Apply(Box<VolumeState>, Option<Box<dyn Store>>, SyncSender<Result<(), String>>),
    /// Close a volume and hand it back for deletion.
    Remove(VolumeId, SyncSender<bool>),
    /// Set balances.
    SetBalances(VolumeId, Balances, SyncSender<bool>),
    /// Tell how all volumes are.
    Report(SyncSender<Vec<VolumeReport>>),
    /// End.
    Stop,
}

/// Letters to a reactor; the waker tells it to look.
pub type Mailbox = Arc<Mutex<Vec<Mail>>>;

struct Volume {
    state: VolumeState,
    index: VolumeIndex,
    store: Box<dyn Store>,
    in_store: u32,
    removal: Option<SyncSender<bool>>,
    detach_acks: Vec<SyncSender<Result<(), String>>>,
}

struct Active {
    session: u32,
    volume: u32,
    cookie: u64,
    request: Request,
    one_extent: bool,
    buffers: Vec<Option<Buffer>>,
    /// Quanta that are not finished.
    quanta_left: u32,
    /// Quanta the store works on.
    in_store: u32,
    failure: Option<Failure>,
    extents: Vec<Extent>,
}

/// The loop of one core.
pub struct Reactor {
    clock: Clock,
    ring: Ring,
    pool: BufferPool,
    scheduler: Scheduler,
    volumes: Vec<Option<Volume>>,
    by_id: BTreeMap<VolumeId, u32>,
    sessions: Vec<Option<Session>>,
    active: Vec<Option<Active>>,
    active_free: Vec<u32>,
    /// Reads that may go and wait for memory.
    starved: VecDeque<Dispatch>,
    /// Connections that may have requests to parse.
    stalled: Vec<u32>,
    mailbox: Mailbox,
    stopping: bool,
}

impl Reactor {
    /// A reactor for the calling thread.
    ///
    /// # Errors
    /// When io_uring is refused.
    pub fn new(mailbox: Mailbox) -> io::Result<Self> {
        let clock = Clock::new();
        // The kernel may round a timer by 50 us to save wake-ups; a pacer has better uses for them.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        Ok(Self {
            clock,
            ring: Ring::new()?,
            pool: BufferPool::new(POOL_BYTES_MAX),
            scheduler: Scheduler::new(clock.now()),
            volumes: Vec::new(),
            by_id: BTreeMap::new(),
            sessions: Vec::new(),
            active: Vec::new(),
            active_free: Vec::new(),
            starved: VecDeque::new(),
            stalled: Vec::new(),
            mailbox,
            stopping: false,
        })
    }

    /// What wakes it.
    #[must_use]
    pub fn waker(&self) -> crate::ring::Waker {
        self.ring.waker()
    }

    /// Runs until told to stop.
    ///
    /// # Errors
    /// When the ring breaks.
    pub fn run(mut self) -> io::Result<()> {
        while !self.stopping {
            self.scheduler.poll(self.clock.now());
            self.dispatch();
            self.resume_stalled();
            self.send_all();
            let now = self.clock.now();
            let timeout = self.scheduler.poll_timeout().map(|at| at.since(now));
            self.ring.wait(timeout)?;
            while let Some(event) = self.ring.poll() {
                self.handle(event);
            }
        }
        Ok(())
    }
}

/// Events.
impl Reactor {
    fn handle(&mut self, event: Event) {
        match event {
            Event::Received(id, result) => self.received(id, result.unwrap_or(0)),
            Event::Sent(id, result) => self.sent(id, result.unwrap_or(0)),
            Event::Disk(volume, done) => {
                let Some(Some(held)) = self.volumes.get_mut(volume as usize) else { return };
                held.store.disk_done(done, &mut self.ring.disk(volume));
                self.finish_store(volume);
                self.settle(volume);
            }
            Event::Woken => {
                let mail = std::mem::take(
                    &mut *self.mailbox.lock().unwrap_or_else(PoisonError::into_inner),
                );
                mail.into_iter().for_each(|letter| self.read_letter(letter));
            }
        }
    }

    fn received(&mut self, id: u32, count: u32) {
        let Some(Some(session)) = self.sessions.get_mut(id as usize) else { return };
        session.receiving = false;
        if count == 0 || session.shut {
            return self.close(id);
        }
        session.end += count as usize;
        self.proceed(id);
    }

    fn sent(&mut self, id: u32, count: u32) {
        let Some(Some(session)) = self.sessions.get_mut(id as usize) else { return };
        session.in_send = false;
        let pool = &mut self.pool;
        session.sending.advance(count as usize, |buffer| pool.give(buffer));
        if count == 0 {
            return self.close(id);
        }
        self.stalled.push(id);
        self.try_free(id);
    }

    fn read_letter(&mut self, letter: Mail) {
        match letter {
            Mail::Connection(fd, peer) => self.connect(fd, peer),
            Mail::Apply(state, store, ack) => self.apply(*state, store, ack),
            Mail::Remove(id, ack) => self.remove(id, ack),
            Mail::SetBalances(id, balances, ack) => {
                let now = self.clock.now();
                let index =
                    self.by_id.get(&id).and_then(|&slot| self.volumes[slot as usize].as_ref());
                let found = index.map(|v| v.index);
                if let Some(index) = found {
                    self.scheduler.set_balances(now, index, balances);
                }
                let _ = ack.send(found.is_some());
            }
            Mail::Report(ack) => {
                let _ = ack.send(self.report());
            }
            Mail::Stop => self.stopping = true,
        }
    }

    fn connect(&mut self, fd: OwnedFd, peer: HostAddress) {
        let open = self.sessions.iter().flatten().count();
        if open >= CONNECTIONS_PER_CORE_MAX {
            tracing::warn!(open, "a connection was refused: the core serves as many as it may");
            return;
        }
        let slot = self.sessions.iter().position(Option::is_none).unwrap_or_else(|| {
            self.sessions.push(None);
            self.sessions.len() - 1
        });
        self.sessions[slot] = Some(Session::new(fd, peer));
        self.proceed(slot as u32);
    }
}

/// Connections.
impl Reactor {
    /// Consumes what has arrived as far as it can, then receives more if there is room.
    fn proceed(&mut self, id: u32) {
        loop {
            let Some(Some(session)) = self.sessions.get_mut(id as usize) else { return };
            if session.shut || session.closing {
                return self.try_free(id);
            }
            let went_on = match session.phase {
                Phase::Handshake(_) => self.shake_hands(id),
                Phase::Transmission(..) => self.parse(id),
            };
            if !went_on {
                break;
            }
        }
        self.receive(id);
    }

    fn receive(&mut self, id: u32) {
        let Some(Some(session)) = self.sessions.get_mut(id as usize) else { return };
        if session.receiving || session.shut || session.closing {
            return;
        }
        if session.start > 0 {
            session.compact();
        }
        if session.end == INPUT_BYTES {
            return;
        }
        session.receiving = true;
        let (fd, room) = (session.fd.as_raw_fd(), INPUT_BYTES - session.end);
        let memory = session.input[session.end..].as_mut_ptr();
        // SAFETY: the input is neither moved nor touched beyond `end` while `receiving` is set, and
        // the session is not freed before.
        unsafe { self.ring.receive(id, fd, memory, room as u32) };
    }

    /// One turn of the handshake; whether there may be another.
    fn shake_hands(&mut self, id: u32) -> bool {
        let Some(session) = self.sessions[id as usize].as_mut() else { return false };
        let Phase::Handshake(server) = &mut session.phase else { return false };
        match server.poll_output() {
            Some(Step::Send(bytes)) => session.output.head(&bytes),
            Some(Step::WantExport(name)) => {
                let export = find_export(&self.by_id, &self.volumes, &name, session.peer);
                server.export(export);
            }
            Some(Step::WantList) => {
                let names: Vec<String> = self
                    .volumes
                    .iter()
                    .flatten()
                    .filter(|v| v.state.hosts.contains(&session.peer))
                    .map(|v| v.state.id.to_string())
                    .collect();
                let listed: Vec<Listed<'_>> =
                    names.iter().map(|name| Listed { name, description: "" }).collect();
                server.list(&listed);
            }
            Some(Step::Ready(negotiated)) => {
                let slot = negotiated.export.name.parse().ok().and_then(|v| self.by_id.get(&v));
                match slot {
                    Some(&slot) => session.phase = Phase::Transmission(slot, negotiated.terms()),
                    None => session.closing = true,
                }
            }
            Some(Step::Close(reason)) => {
                tracing::debug!(?reason, "a handshake ended");
                session.closing = true;
            }
            None => {
                let consumed = server.handle(&session.input[session.start..session.end]);
                session.start += consumed;
                return consumed > 0;
            }
        }
        true
    }

    /// Parses one request or takes one stretch of payload; whether there may be more.
    fn parse(&mut self, id: u32) -> bool {
        let Some(session) = self.sessions[id as usize].as_mut() else { return false };
        let Phase::Transmission(slot, mut terms) = session.phase else { return false };
        let Some(volume) = self.volumes[slot as usize].as_ref() else { return false };
        terms.size_bytes = volume.state.size.0;
        if session.skip > 0 {
            let count = (session.skip as usize).min(session.end - session.start);
            session.start += count;
            session.skip -= count as u32;
            return count > 0;
        }
        if session.incoming.is_some() {
            return self.take_payload(id, slot);
        }
        if session.outstanding as usize >= CONNECTION_REQUESTS_MAX || session.is_output_full() {
            return false;
        }
        let Some(head) = session.pending().first_chunk::<HEAD_BYTES>() else { return false };
        let header = match RequestHeader::decode(head) {
            Ok(header) => header,
            Err(error) => {
                tracing::warn!(%error, "a connection is closed");
                session.closing = true;
                return false;
            }
        };
        let Ok(payload) = header.payload_bytes(&terms) else {
            session.closing = true;
            return false;
        };
        match header.validate(&terms) {
            Err(code) => {
                session.output.head(terms.failure(header.cookie, code).as_bytes());
                session.skip = payload;
                session.start += HEAD_BYTES;
                true
            }
            Ok(Command::Disconnect) => {
                session.closing = true;
                false
            }
            Ok(Command::Io { request, one_extent }) => {
                self.begin(id, slot, header.cookie, request, one_extent)
            }
        }
    }
}

/// Requests.
impl Reactor {
    fn begin(&mut self, id: u32, slot: u32, cookie: u64, request: Request, one: bool) -> bool {
        let is_write = matches!(request.operation, Operation::Write { .. });
        let moves_bytes = is_write || request.operation == Operation::Read;
        let quanta = if moves_bytes { request.length.div_ceil(QUANTUM_BYTES_MAX) } else { 1 };
        let mut buffers: Vec<Option<Buffer>> = Vec::new();
        for quantum in 0..quanta {
            let length = (request.length - quantum * QUANTUM_BYTES_MAX).min(QUANTUM_BYTES_MAX);
            let buffer = if is_write { self.pool.take(length) } else { None };
            if is_write && buffer.is_none() {
                // No memory: leave the request where it is and come back when some was returned.
                buffers.into_iter().flatten().for_each(|b| self.pool.give(b));
                self.stalled.push(id);
                return false;
            }
            buffers.push(buffer);
        }
        let handle = self.active_free.pop().unwrap_or_else(|| {
            self.active.push(None);
            (self.active.len() - 1) as u32
        });
        self.active[handle as usize] = Some(Active {
            session: id,
            volume: slot,
            cookie,
            request,
            one_extent: one,
            buffers,
            quanta_left: quanta,
            in_store: 0,
            failure: None,
            extents: Vec::new(),
        });
        if is_write {
            let Some(session) = self.sessions[id as usize].as_mut() else { return false };
            session.start += HEAD_BYTES;
            session.outstanding += 1;
            session.incoming = Some(Incoming { handle, received: 0 });
            return true;
        }
        if !self.submit(slot, handle, request) {
            self.free_active(handle);
            self.stalled.push(id);
            return false;
        }
        if let Some(session) = self.sessions[id as usize].as_mut() {
            session.start += HEAD_BYTES;
            session.outstanding += 1;
        }
        self.dispatch();
        true
    }

    fn free_active(&mut self, handle: u32) {
        if let Some(active) = self.active[handle as usize].take() {
            active.buffers.into_iter().flatten().for_each(|b| self.pool.give(b));
            self.active_free.push(handle);
        }
    }

    fn submit(&mut self, slot: u32, handle: u32, request: Request) -> bool {
        let Some(volume) = self.volumes[slot as usize].as_ref() else { return false };
        let Request { operation, offset, length } = request;
        let io = Io { operation, offset, length, handle };
        self.scheduler.submit(self.clock.now(), volume.index, io).is_ok()
    }

    /// Copies what has arrived of a write's payload to its buffers; submits it when whole.
    fn take_payload(&mut self, id: u32, slot: u32) -> bool {
        let Some(session) = self.sessions[id as usize].as_mut() else { return false };
        let Some(incoming) = session.incoming.as_mut() else { return false };
        let handle = incoming.handle;
        let Some(active) = self.active[handle as usize].as_mut() else { return false };
        let total = active.request.length;
        let before = incoming.received;
        while incoming.received < total && session.start < session.end {
            let (quantum, at) =
                (incoming.received / QUANTUM_BYTES_MAX, incoming.received % QUANTUM_BYTES_MAX);
            let room = (QUANTUM_BYTES_MAX - at).min(total - incoming.received) as usize;
            let count = room.min(session.end - session.start);
            if let Some(buffer) = active.buffers[quantum as usize].as_mut() {
                buffer.bytes_mut()[at as usize..][..count]
                    .copy_from_slice(&session.input[session.start..][..count]);
            }
            session.start += count;
            incoming.received += count as u32;
        }
        if incoming.received < total {
            return incoming.received > before;
        }
        let request = active.request;
        if !self.submit(slot, handle, request) {
            self.stalled.push(id);
            return false;
        }
        if let Some(session) = self.sessions[id as usize].as_mut() {
            session.incoming = None;
        }
        self.dispatch();
        true
    }

    /// Hands what may go to the stores.
    fn dispatch(&mut self) {
        while let Some(dispatch) = self.starved.pop_front() {
            if !self.start(dispatch) {
                break;
            }
        }
        while let Some(dispatch) = self.scheduler.poll_output() {
            self.start(dispatch);
        }
    }

    /// Starts one quantum; `false` when it waits for memory (at the queue's front).
    fn start(&mut self, dispatch: Dispatch) -> bool {
        let Some(active) = self.active[dispatch.handle as usize].as_mut() else { return true };
        let quantum =
            ((dispatch.offset - active.request.offset) / u64::from(QUANTUM_BYTES_MAX)) as u32;
        let buffer = match active.request.operation {
            Operation::Read => match self.pool.take(dispatch.length) {
                Some(buffer) => Some(buffer),
                None => {
                    self.starved.push_front(dispatch);
                    return false;
                }
            },
            Operation::Write { .. } => active.buffers[quantum as usize].take(),
            _ => None,
        };
        active.in_store += 1;
        let slot = active.volume;
        let Some(volume) = self.volumes[slot as usize].as_mut() else { return true };
        let submission = Submission {
            ticket: u64::from(dispatch.handle) << 32 | u64::from(quantum),
            operation: active.request.operation,
            offset: dispatch.offset,
            length: dispatch.length,
            buffer,
        };
        volume.in_store += 1;
        volume.store.submit(submission, &mut self.ring.disk(slot));
        self.finish_store(slot);
        true
    }

    fn finish_store(&mut self, slot: u32) {
        loop {
            let Some(volume) = self.volumes[slot as usize].as_mut() else { return };
            let Some(completion) = volume.store.poll() else { break };
            volume.in_store -= 1;
            self.complete(completion);
        }
    }

    fn complete(&mut self, completion: Completion) {
        let (handle, quantum) =
            ((completion.ticket >> 32) as u32, (completion.ticket & 0xffff_ffff) as usize);
        let Some(active) = self.active[handle as usize].as_mut() else { return };
        if let Err(failure) = completion.result {
            active.failure.get_or_insert(failure);
        }
        active.buffers[quantum] = completion.buffer;
        active.extents = completion.extents;
        active.quanta_left -= 1;
        active.in_store -= 1;
        if active.quanta_left == 0 {
            self.reply(handle);
        }
    }

    fn reply(&mut self, handle: u32) {
        let Some(mut active) = self.active[handle as usize].take() else { return };
        self.active_free.push(handle);
        let Some(Some(session)) = self.sessions.get_mut(active.session as usize) else { return };
        session.outstanding -= 1;
        let Phase::Transmission(_, terms) = session.phase else { return };
        let (cookie, request) = (active.cookie, active.request);
        let output = &mut session.output;
        match (active.failure, request.operation) {
            (Some(failure), _) => output.head(terms.failure(cookie, failure.into()).as_bytes()),
            (None, Operation::Read) => {
                output.head(terms.read_head(cookie, request.offset, request.length).as_bytes());
                for (quantum, buffer) in active.buffers.drain(..).enumerate() {
                    let rest = request.length - quantum as u32 * QUANTUM_BYTES_MAX;
                    if let Some(buffer) = buffer {
                        output.payload(buffer, rest.min(QUANTUM_BYTES_MAX) as usize);
                    }
                }
            }
            (None, Operation::BlockStatus) => {
                let count = if active.one_extent { 1 } else { active.extents.len() };
                output.head(terms.block_status_head(cookie, count as u32).as_bytes());
                for extent in &active.extents[..count] {
                    let flags = u32::from(extent.hole) | u32::from(extent.zero) << 1;
                    output.head(&reply::extent(extent.length, flags));
                }
            }
            (None, _) => output.head(terms.success(cookie).as_bytes()),
        }
        active.buffers.into_iter().flatten().for_each(|b| self.pool.give(b));
        self.stalled.push(active.session);
    }

    fn resume_stalled(&mut self) {
        for id in std::mem::take(&mut self.stalled) {
            self.proceed(id);
            self.try_free(id);
        }
    }

    fn send_all(&mut self) {
        for id in 0..self.sessions.len() {
            let Some(session) = self.sessions[id].as_mut() else { continue };
            if session.shut {
                continue;
            }
            if let Some(message) = session.next_message() {
                // SAFETY: the session keeps what the message points to until `in_send` is cleared.
                unsafe { self.ring.send(id as u32, session.fd.as_raw_fd(), message) };
            }
        }
    }

    /// The connection is gone: what waits for it is cancelled.
    fn close(&mut self, id: u32) {
        let Some(Some(session)) = self.sessions.get_mut(id as usize) else { return };
        if !session.shut {
            session.shut = true;
            session.closing = true;
            let _ = rustix::net::shutdown(&session.fd, Shutdown::Both);
            if let Some(incoming) = session.incoming.take() {
                session.outstanding -= 1;
                self.free_active(incoming.handle);
            }
            self.cancel_of(id);
        }
        self.try_free(id);
    }

    fn cancel_of(&mut self, id: u32) {
        let Some(Some(session)) = self.sessions.get(id as usize) else { return };
        let Phase::Transmission(slot, _) = session.phase else { return };
        let Some(index) = self.volumes[slot as usize].as_ref().map(|v| v.index) else { return };
        let active = &self.active;
        let ours = |handle: u32| active[handle as usize].as_ref().is_some_and(|a| a.session == id);
        let now = self.clock.now();
        let cancelled: Vec<u32> = self.scheduler.cancel_queued(now, index, ours).collect();
        for handle in cancelled {
            self.cancelled(handle);
        }
    }

    /// A queued request will not be dispatched further. Quanta in the store end as usual.
    fn cancelled(&mut self, handle: u32) {
        let Some(active) = self.active[handle as usize].as_mut() else { return };
        active.failure = Some(Failure::ShuttingDown);
        let session = active.session;
        let in_store = active.in_store;
        active.quanta_left = in_store;
        if in_store == 0 {
            self.free_active(handle);
            if let Some(Some(session)) = self.sessions.get_mut(session as usize) {
                session.outstanding -= 1;
            }
        }
    }

    fn try_free(&mut self, id: u32) {
        let Some(Some(session)) = self.sessions.get_mut(id as usize) else { return };
        if !session.closing || session.outstanding > 0 || session.in_send {
            return;
        }
        if !session.shut {
            if session.next_message().is_some_and(|message| {
                // SAFETY: as in `send_all`.
                unsafe { self.ring.send(id, session.fd.as_raw_fd(), message) };
                true
            }) {
                return;
            }
            session.shut = true;
            let _ = rustix::net::shutdown(&session.fd, Shutdown::Both);
        }
        if session.receiving {
            return;
        }
        if let Some(mut session) = self.sessions[id as usize].take() {
            session.output.abandon(|b| self.pool.give(b));
            session.sending.abandon(|b| self.pool.give(b));
        }
    }
}

/// Volumes.
impl Reactor {
    fn apply(
        &mut self,
        state: VolumeState,
        store: Option<Box<dyn Store>>,
        ack: SyncSender<Result<(), String>>,
    ) {
        let now = self.clock.now();
        let slot = match (self.by_id.get(&state.id), store) {
            (Some(&slot), _) => slot,
            (None, Some(store)) => {
                let index = match self.scheduler.add(now, &state.pacing, state.balances) {
                    Ok(index) => index,
                    Err(error) => {
                        let _ = ack.send(Err(error.to_string()));
                        return;
                    }
                };
                let slot = self.volumes.iter().position(Option::is_none).unwrap_or_else(|| {
                    self.volumes.push(None);
                    self.volumes.len() - 1
                });
                self.by_id.insert(state.id, slot as u32);
                self.volumes[slot] = Some(Volume {
                    state: state.clone(),
                    index,
                    store,
                    in_store: 0,
                    removal: None,
                    detach_acks: Vec::new(),
                });
                slot as u32
            }
            (None, None) => {
                let _ = ack.send(Err(format!("volume {} is not open here", state.id)));
                return;
            }
        };
        let Some(volume) = self.volumes[slot as usize].as_mut() else { return };
        if volume.state.pacing != state.pacing {
            self.scheduler.repace(now, volume.index, &state.pacing);
        }
        if volume.state.size != state.size {
            volume.store.resized(ByteCount(state.size.0));
        }
        volume.state = state;
        volume.detach_acks.push(ack);
        self.disconnect_strangers(slot);
        self.settle(slot);
    }

    /// Closes connections of hosts the volume is no longer attached to.
    fn disconnect_strangers(&mut self, slot: u32) {
        for id in 0..self.sessions.len() as u32 {
            if self.is_stranger(id, slot) {
                self.close(id);
            }
        }
    }

    fn is_stranger(&self, id: u32, slot: u32) -> bool {
        let Some(Some(session)) = self.sessions.get(id as usize) else { return false };
        let Some(Some(volume)) = self.volumes.get(slot as usize) else { return false };
        matches!(session.phase, Phase::Transmission(of, _) if of == slot)
            && !volume.state.hosts.contains(&session.peer)
    }

    /// Answers those who wait for strangers' requests to leave the store.
    fn settle(&mut self, slot: u32) {
        let busy = self.active.iter().flatten().any(|active| {
            active.volume == slot && active.in_store > 0 && self.is_stranger(active.session, slot)
        });
        let Some(volume) = self.volumes[slot as usize].as_mut() else { return };
        if !busy {
            for ack in volume.detach_acks.drain(..) {
                let _ = ack.send(Ok(()));
            }
        }
        if volume.in_store == 0 && volume.removal.is_some() {
            let Some(volume) = self.volumes[slot as usize].take() else { return };
            self.by_id.remove(&volume.state.id);
            drop(self.scheduler.remove(self.clock.now(), volume.index));
            drop(volume.store);
            if let Some(ack) = volume.removal {
                let _ = ack.send(true);
            }
        }
    }

    fn remove(&mut self, id: VolumeId, ack: SyncSender<bool>) {
        let Some(&slot) = self.by_id.get(&id) else {
            let _ = ack.send(false);
            return;
        };
        if let Some(volume) = self.volumes[slot as usize].as_mut() {
            volume.state.hosts.clear();
            volume.removal = Some(ack);
        }
        self.disconnect_strangers(slot);
        self.settle(slot);
    }

    fn report(&mut self) -> Vec<VolumeReport> {
        let now = self.clock.now();
        let mut reports = Vec::new();
        for (&id, &slot) in &self.by_id {
            let Some(volume) = self.volumes[slot as usize].as_ref() else { continue };
            let connected =
                |s: &&Session| matches!(s.phase, Phase::Transmission(of, _) if of == slot);
            let connections = self.sessions.iter().flatten().filter(connected).count() as u32;
            let balances = self.scheduler.balances(now, volume.index);
            let counters = self.scheduler.counters(volume.index);
            reports.push(VolumeReport {
                id,
                balances,
                connections,
                queued: counters.queued_requests + volume.in_store,
                operations: counters.operations,
                bytes_read: counters.bytes_read,
                bytes_written: counters.bytes_written,
            });
        }
        reports
    }
}

fn find_export(
    by_id: &BTreeMap<VolumeId, u32>,
    volumes: &[Option<Volume>],
    name: &str,
    peer: HostAddress,
) -> Option<ExportInfo> {
    let slot = *by_id.get(&name.parse().ok()?)?;
    let volume = volumes[slot as usize].as_ref()?;
    if !volume.state.hosts.contains(&peer) {
        return None;
    }
    let geometry = volume.store.geometry();
    let mut export = ExportInfo::new(name.to_owned(), geometry.size.0);
    export.block_bytes_min = geometry.block_bytes_min;
    export.block_bytes_preferred = geometry.block_bytes_preferred;
    export.payload_bytes_max = REQUEST_BYTES_MAX;
    Some(export)
}
