//! The loop of one core: one thread, one driver. Each turn waits, handles completions, dispatches
//! requests that are due and sends replies that are ready.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | the loop, the inbox, the state that other threads share |
//! | `disconnect.rs` | clients that disconnect while the server receives nothing from them |
//! | `connections.rs` | a connection's life: handshake, receiving, sending, the end |
//! | `requests.rs` | a request's life: head, payload, tokens, store, reply |
//! | `discard.rs` | discards and writes of zeroes: piece by piece, in turns |
//! | `background.rs` | work that no client asked for: permits, and reads of volumes |
//! | `memory.rs` | payload memory among volumes: limits, waiting requests, their order |
//! | `errors.rs` | failures of a volume's requests |
//! | `former.rs` | changes that connections leave in the store when they end |
//! | `volumes.rs` | a volume's life: applied, reported, removed or moved |
//! | `handoff.rs` | clients that a lender passes to the data plane, and gets back |
//! | `handover.rs` | volumes that are given up for another data plane |
//! | `moves.rs` | volumes that go to another core with their hosts and connections |
//! | `sharing.rs` | what volumes share: limits of hosts, the device |
//! | `watch.rs` | whether the device still performs as calibrated |
//! | `contract.rs` | whether volumes got the performance that was sold, second by second |

mod background;
mod connections;
mod contract;
mod discard;
mod disconnect;
mod errors;
mod former;
mod handoff;
mod handover;
mod memory;
mod moves;
mod requests;
mod sharing;
mod volumes;
mod watch;

use crate::buffers::BufferPool;
use crate::connection_limits::Slot;
use crate::directory::Directory;
use crate::driver::{Driver, Event, Waker};
use crate::flush_marks::FlushMarks;
use crate::handoff::Kept;
use crate::peer::Peer;
use crate::rate_limited_log::Notices;
use crate::session::{Connection, Session};
use crate::shared_device::SharedDevice;
use crate::table::{FlightId, RequestId, SessionId, Table, VolumeSlot};
use background::Background;
pub use background::{Probe, Wanted};
use evenkeel_core::connection_limits::ConnectionId;
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::latency::Latencies;
use evenkeel_core::limits::CORE_PAYLOAD_BYTES_MAX;
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::qos::scheduler::{InstanceIndex, Scheduler, Ticket};
use evenkeel_core::qos::sharing::DeviceModel;
use evenkeel_core::qos::trace::{Call, Detail, Trace};
use evenkeel_core::time::{Duration, Instant};
use evenkeel_os::clock::Clock;
use evenkeel_store::Store;
use evenkeel_store::buffer::Buffer;
use evenkeel_wire::agent::{CreditReport, HostReport, HostState, Report, VolumeState};
use handover::Handover;
use memory::BufferWaiters;
use moves::Departure;
pub use moves::{Newcomers, Party};
use requests::Active;
use sharing::{Device, Flight};
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use volumes::Volume;
pub use volumes::{LatencyPage, PAGE_LATENCIES_MAX, Released};

/// Interval between two checks of connections with overdue input or output.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// Time limit for clients to fetch their last replies when the server stops.
const STOP_MAX: Duration = Duration::from_secs(5);

/// Turns in a row with one request each after which the driver expects clients that wait for each
/// answer.
const HASTY_TURNS: u32 = 32;

/// Messages from other threads to a reactor.
pub enum Message {
    /// A new connection.
    Connection(OwnedFd, Peer, Box<Slot>),
    /// Closes the handshake of this connection, to make room for another.
    Evict(ConnectionId),
    /// Gives the lent client of this connection back, if it is here.
    Recall(ConnectionId),
    /// Accepts no more handshakes, and closes those in progress.
    CloseDoors,
    /// A connection to a volume whose home is this core.
    Moved(VolumeId, Box<Connection>),
    /// Applies the desired state of a volume; with its store if the reactor does not have it yet.
    Apply(Box<VolumeState>, Option<Box<dyn Store>>, SyncSender<Result<(), String>>),
    /// Closes a volume's connections and its store. Answers whether the volume was here.
    Remove(VolumeId, SyncSender<bool>),
    /// Closes a volume's connections and gives it away. Answers `None` if the volume is not here.
    Release(VolumeId, SyncSender<Option<Box<Released>>>),
    /// Stops beginning requests of a volume, and removes it when the requests in progress are
    /// answered. Answers with the remaining credits of the volume and its hosts, `None` if it is
    /// not here.
    GiveUp(VolumeId, SyncSender<Option<CreditReport>>),
    /// Asks whether a volume's store refuses changes until it is opened anew.
    MustReopen(VolumeId, SyncSender<bool>),
    /// Has a volume's store attend to its pool's requests. Answers whether the volume is here.
    Attend(VolumeId, SyncSender<bool>),
    /// Holds back the completions of a volume's store from now on if `true`, reports them if
    /// `false`. Answers whether the volume is here.
    Hold(VolumeId, bool, SyncSender<bool>),
    /// Asks for a permit for background work.
    Permit(Wanted),
    /// Ends the permit with this ticket.
    PermitEnds(Ticket),
    /// Reads a volume for background work.
    Probe(VolumeId, Probe),
    /// Takes a volume over from another core.
    Adopt(Box<VolumeState>, Box<Released>, SyncSender<Result<(), String>>),
    /// Asks whether there is room for the newcomers. Answers with the resource that is lacking if
    /// not.
    HasRoom(Box<Newcomers>, SyncSender<Result<(), String>>),
    /// Asks how many connections these volumes have together.
    Connections(Vec<VolumeId>, SyncSender<u32>),
    /// Gives volumes and hosts away, with their connections. Answers with all of them, or the
    /// reason why none can go.
    Depart(Vec<VolumeId>, Vec<InstanceId>, SyncSender<Result<Box<Party>, String>>),
    /// Takes over volumes and hosts of another core. If there is no room, the party comes back with
    /// the reason.
    Join(Box<Party>, SyncSender<Result<(), (Box<Party>, String)>>),
    /// Applies the desired state of a host whose volumes are here.
    ApplyHost(Box<HostState>, SyncSender<Result<(), String>>),
    /// Removes a host. Answers with its last state, if it was known.
    DeleteHost(InstanceId, SyncSender<Option<HostReport>>),
    /// Sets the model of the device below the store.
    Calibrated(DeviceModel, SyncSender<Result<(), String>>),
    /// Sets balances. Answers whether the volume is here.
    SetBalances(VolumeId, Balances, SyncSender<bool>),
    /// Leases credits of volumes and hosts that are here. Answers with the credits that stay
    /// unleased.
    Lease(Box<CreditReport>, SyncSender<CreditReport>),
    /// Asks for the state of all volumes and hosts.
    Report(SyncSender<Report>),
    /// Asks for the state of some volumes.
    ReportOf(Vec<VolumeId>, SyncSender<Report>),
    /// Asks for the balances that may have changed since the last time.
    Balances(SyncSender<CreditReport>),
    /// Starts to record the scheduler's calls and dispatches, up to this number of entries.
    Record(usize, Detail),
    /// Ends the recording and answers with it.
    Recorded(SyncSender<Option<Box<Trace>>>),
    /// Asks for the latencies of the volumes after this one, as many as one turn allows.
    Latencies(Option<VolumeId>, SyncSender<LatencyPage>),
    /// Asks for the latencies of one volume. Answers `None` if it has had no request, or is not
    /// here.
    LatenciesOf(VolumeId, SyncSender<Option<Box<Latencies>>>),
    /// Stops the reactor.
    Stop,
}

/// Messages to one reactor. The queue has no bound of its own. Its senders limit it: a connection
/// holds a slot, and a caller sends a command when the last one is answered or its time is over.
pub struct Inbox {
    /// `None` once the reactor has ended.
    messages: Mutex<Option<Vec<Message>>>,
    waker: Waker,
}

impl Inbox {
    /// Creates an empty inbox.
    ///
    /// # Errors
    /// If the process has too many open files.
    pub fn new() -> io::Result<Self> {
        Ok(Self { messages: Mutex::new(Some(Vec::new())), waker: Waker::new()? })
    }

    /// Returns the waker of the inbox's reactor.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Posts a message. If the reactor has ended, the message is dropped, and the sender of its
    /// answer with it.
    pub fn post(&self, message: Message) {
        if let Some(messages) = self.lock().as_mut() {
            messages.push(message);
            self.waker.wake();
        }
    }

    /// Drops all further messages.
    pub fn close(&self) {
        *self.lock() = None;
    }

    pub(crate) fn take(&self) -> Vec<Message> {
        self.lock().as_mut().map(std::mem::take).unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<Vec<Message>>> {
        // Changed by single pushes and takes, so a panicked holder left it whole.
        self.messages.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Records a call of the scheduler or a dispatch, if a recording is in progress.
#[inline]
fn note(trace: &mut Option<Box<Trace>>, now: Instant, call: Call) {
    if let Some(trace) = trace {
        trace.push(now, call);
    }
}

/// State that the reactors of a data plane and its agent share.
pub type Shared = (Arc<Directory>, Arc<SharedDevice>, Arc<FlushMarks>);

/// The loop of one core.
pub struct Reactor<D: Driver> {
    core: u16,
    inboxes: Arc<[Inbox]>,
    directory: Arc<Directory>,
    shared_device: Arc<SharedDevice>,
    flush_marks: Arc<FlushMarks>,
    clock: Clock,
    /// Start of this turn of the loop.
    now: Instant,
    driver: D,
    pool: BufferPool,
    scheduler: Scheduler,
    /// Recording of the scheduler's calls and dispatches, if one is in progress.
    trace: Option<Box<Trace>>,
    volumes: Table<VolumeSlot, Volume>,
    by_id: BTreeMap<VolumeId, VolumeSlot>,
    /// Slots of the volumes whose credit balances may move.
    dirty: Vec<VolumeSlot>,
    second: contract::Second,
    sessions: Table<SessionId, Session>,
    /// Connections in a handshake.
    handshakes: BTreeMap<ConnectionId, SessionId>,
    /// Whether new clients are refused.
    doors_closed: bool,
    notices: Notices,
    active: Table<RequestId, Active>,
    /// Submissions that the stores work on.
    flights: Table<FlightId, Flight>,
    /// Hosts with limits whose volumes are here.
    hosts: BTreeMap<InstanceId, InstanceIndex>,
    /// Present once the device is calibrated.
    device: Option<Device>,
    /// Device time that the volumes here reserve, in nanoseconds per second.
    reserved_ns: u64,
    /// Lists of finished requests' buffers, kept for their memory.
    spare: Vec<Vec<Option<Buffer>>>,
    /// Volumes that wait for memory.
    buffer_waiters: BufferWaiters,
    /// Volumes that go to another core once they are quiet.
    departures: Vec<Departure>,
    /// Volumes that are given up and still have connections.
    handovers: Vec<Handover>,
    /// Lent clients with a request for which a store has answered that the volume is served
    /// elsewhere.
    elsewhere: Vec<SessionId>,
    /// The volume whose turn it is to clear a range.
    turn: discard::Turn,
    background: Background,
    /// Connections to retry in this turn.
    ready: Vec<SessionId>,
    /// Memory of the list that was processed last, for reuse.
    ready_spare: Vec<SessionId>,
    /// Connections with something to send.
    to_send: Vec<SessionId>,
    next_sweep: Option<Instant>,
    /// Requests taken in this turn.
    requests_in_turn: u32,
    /// Turns in a row with one request each; turns without a request do not count.
    single_turns: u32,
    /// Time at which the reactor ends at the latest, once it is to stop.
    stop_by: Option<Instant>,
}

impl<D: Driver> Reactor<D> {
    /// Creates the reactor of core number `core`, which reads the inbox of that number.
    #[must_use]
    pub fn new(
        core: u16,
        inboxes: Arc<[Inbox]>,
        (directory, shared_device, flush_marks): Shared,
        clock: Clock,
        driver: D,
    ) -> Self {
        // The kernel may round a timer by 50 us to save wake-ups, which is too coarse for pacing.
        let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
        let now = clock.now();
        Self {
            core,
            inboxes,
            directory,
            shared_device,
            flush_marks,
            clock,
            now,
            driver,
            pool: BufferPool::new(CORE_PAYLOAD_BYTES_MAX as usize),
            scheduler: Scheduler::new(now),
            trace: None,
            volumes: Table::new(),
            by_id: BTreeMap::new(),
            dirty: Vec::new(),
            second: contract::Second::default(),
            sessions: Table::new(),
            handshakes: BTreeMap::new(),
            doors_closed: false,
            notices: Notices::default(),
            active: Table::new(),
            flights: Table::new(),
            hosts: BTreeMap::new(),
            device: None,
            reserved_ns: 0,
            spare: Vec::new(),
            buffer_waiters: BufferWaiters::default(),
            departures: Vec::new(),
            handovers: Vec::new(),
            elsewhere: Vec::new(),
            turn: discard::Turn::default(),
            background: Background::default(),
            ready: Vec::new(),
            ready_spare: Vec::new(),
            to_send: Vec::new(),
            next_sweep: None,
            requests_in_turn: 0,
            single_turns: 0,
            stop_by: None,
        }
    }

    /// Runs the loop until [`Message::Stop`] has arrived and the reactor may end.
    ///
    /// # Errors
    /// If the driver fails.
    pub fn run(mut self) -> io::Result<()> {
        loop {
            self.scheduler.poll(self.now);
            note(&mut self.trace, self.now, Call::Poll);
            self.sync_shared_device();
            self.note_device_idle();
            self.take_turns_to_clear();
            self.dispatch();
            self.grant_buffers();
            self.retry_ready();
            self.send_all();
            self.depart_when_quiet();
            self.end_handovers();
            self.return_elsewhere();
            self.sweep();
            self.judge_second();
            if self.is_finished() {
                break;
            }
            match std::mem::take(&mut self.requests_in_turn) {
                0 => {}
                1 => self.single_turns = self.single_turns.saturating_add(1),
                _ => self.single_turns = 0,
            }
            let timeout = self.timeout();
            self.driver.wait(timeout, self.single_turns >= HASTY_TURNS)?;
            self.now = self.clock.now();
            while let Some(event) = self.driver.poll() {
                self.handle(event);
            }
        }
        Ok(())
    }

    /// Returns how long the reactor may sleep if no event comes; `None` without a limit.
    fn timeout(&self) -> Option<Duration> {
        let may_grant = self.buffer_waiters.may_be_granted(self.pool.gave_back());
        let may_clear = self.turn.is_due();
        let has_more = !(self.ready.is_empty() && self.elsewhere.is_empty());
        if has_more || !self.to_send.is_empty() || may_grant || may_clear {
            return Some(Duration { ns: 0 });
        }
        let departs_by = self.departures.iter().map(|departure| departure.by).min();
        let rested = self.device.as_ref().and_then(|device| device.drift.poll_timeout());
        let own = [self.next_sweep, self.stop_by, departs_by, self.handovers_by(), rested];
        let deadlines = own.into_iter().chain([self.scheduler.poll_timeout()]);
        let first = deadlines.flatten().min()?;
        Some(first.since(self.clock.now()))
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Received(id, result) => self.received(id, result),
            Event::Sent(id, result) => self.sent(id, result),
            Event::HungUp(id, how) => self.hung_up(id, how),
            Event::Disk(slot, done) => {
                let Some(volume) = self.volumes.get_mut(slot) else { return };
                volume.store.disk_done(done, &mut self.driver.disk(slot));
                self.finish_store(slot);
            }
            Event::Woken => {
                for message in self.inboxes[usize::from(self.core)].take() {
                    self.on_message(message);
                }
            }
        }
    }

    fn on_message(&mut self, message: Message) {
        match message {
            Message::Connection(fd, peer, slot) => self.connect(fd, peer, *slot),
            Message::Evict(connection) => self.evict(connection),
            Message::Recall(connection) => self.recall(connection),
            Message::CloseDoors => self.close_doors(),
            Message::Moved(volume, connection) => self.arrive(volume, *connection),
            Message::Apply(state, store, ack) => self.apply(*state, store, ack),
            Message::Remove(id, ack) => self.remove(id, ack),
            Message::Release(id, ack) => self.release_volume(id, ack),
            Message::GiveUp(id, ack) => self.give_up(id, ack),
            Message::MustReopen(id, ack) => _ = ack.send(self.must_reopen(id)),
            Message::Attend(id, ack) => _ = ack.send(self.attend(id)),
            Message::Hold(id, is_held, ack) => _ = ack.send(self.hold(id, is_held)),
            Message::Permit(wanted) => self.want_permit(wanted),
            Message::PermitEnds(ticket) => self.end_permit(ticket),
            Message::Probe(id, probe) => self.probe(id, probe),
            Message::Adopt(state, released, ack) => self.adopt(*state, released, ack),
            Message::Depart(volumes, hosts, ack) => self.depart(&volumes, hosts, ack),
            // The receiver may have given up waiting; that is no error, here and below.
            Message::Join(party, ack) => _ = ack.send(self.join(party)),
            Message::HasRoom(coming, ack) => _ = ack.send(self.has_room(&coming)),
            Message::Connections(ids, ack) => _ = ack.send(self.connections(&ids)),
            Message::ApplyHost(state, ack) => _ = ack.send(self.apply_host(&state)),
            Message::DeleteHost(id, ack) => _ = ack.send(self.delete_host(id)),
            Message::Calibrated(model, ack) => _ = ack.send(self.calibrated(&model)),
            Message::SetBalances(id, balances, ack) => {
                _ = ack.send(self.set_balances(id, balances))
            }
            Message::Lease(unleased, ack) => _ = ack.send(self.lease(&unleased)),
            Message::Report(ack) => _ = ack.send(self.report()),
            Message::ReportOf(ids, ack) => _ = ack.send(self.report_of(&ids)),
            Message::Balances(ack) => _ = ack.send(self.credit_report()),
            Message::Record(entries, detail) => self.record(entries, detail),
            Message::Recorded(ack) => _ = ack.send(self.trace.take()),
            Message::Latencies(after, ack) => _ = ack.send(self.latencies(after)),
            Message::LatenciesOf(id, ack) => _ = ack.send(self.latencies_of(id)),
            Message::Stop => self.stop(),
        }
    }

    /// Starts a recording with the names of the volumes that are here.
    fn record(&mut self, entries: usize, detail: Detail) {
        let mut trace = Box::new(Trace::with_room(entries, detail));
        for (_, volume) in self.volumes.iter() {
            trace.push(self.now, Call::Name(volume.index, volume.state.id));
        }
        self.trace = Some(trace);
    }

    /// Retries the connections that a bound held up, until a pass frees nothing.
    fn retry_ready(&mut self) {
        // Connections that are held up again wait for the next turn.
        let mut ids = std::mem::replace(&mut self.ready, std::mem::take(&mut self.ready_spare));
        for id in ids.drain(..) {
            self.proceed(id);
            // A turn that was not used passes to the next connection.
            if let Some(session) = self.sessions.get_mut(id)
                && let Some(slot) = session.give_up_turn()
            {
                self.wake_waiter(slot);
            }
        }
        self.ready_spare = ids;
    }

    /// Returns whether the reactor may end: it has received [`Message::Stop`], and either all
    /// connections are closed and all stores at rest, or [`STOP_MAX`] is over. Until a store is at
    /// rest, answered writes may exist only in its own files, and not every pool has such files.
    fn is_finished(&mut self) -> bool {
        let Some(by) = self.stop_by else { return false };
        self.now >= by || self.sessions.is_empty() && self.are_stores_at_rest()
    }
}

impl<D: Driver> Drop for Reactor<D> {
    /// Leaks memory that the kernel may still access, also in a panic.
    fn drop(&mut self) {
        for mut session in std::mem::take(&mut self.sessions).drain() {
            // The lender receives the client back, or learns that it is gone, in every case.
            drop(session.slot.kept.as_mut().and_then(Kept::take_back));
            if session.transport.is_receiving_payload() {
                // The receive writes to the request's buffers.
                std::mem::forget(std::mem::take(&mut self.active));
            }
            if session.transport.is_in_driver() {
                std::mem::forget(session);
            }
        }
    }
}
