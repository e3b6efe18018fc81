//! One thread, one driver, one loop: wait, handle what ended, dispatch what is due, send what is
//! ready.
//!
//! | file | what |
//! |---|---|
//! | `mod.rs` | the loop, the inbox, what the others share |
//! | `disconnect.rs` | clients that go while nothing is received from them |
//! | `connections.rs` | a connection's life: handshake, receiving, sending, the end |
//! | `requests.rs` | a request's life: head, payload, tokens, store, reply |
//! | `discard.rs` | discards and writes of zeroes: piece by piece, in turns |
//! | `background.rs` | work that no client asked for: permits, and reads of volumes |
//! | `memory.rs` | payload memory among volumes: who may have some, who waits, who is next |
//! | `errors.rs` | what went wrong with a volume's requests |
//! | `former.rs` | changes that connections leave in the store when they end |
//! | `volumes.rs` | a volume's life: applied, reported, removed or moved |
//! | `handoff.rs` | clients that are lent by who accepted them, and go back |
//! | `handover.rs` | volumes that are given up for another data plane |
//! | `moves.rs` | volumes that go to another core with their hosts and connections |
//! | `sharing.rs` | what volumes share: hosts' limits, the device |
//! | `watch.rs` | whether the device is what it was |
//! | `contract.rs` | whether volumes got what was sold with them, second by second |

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
use crate::clock::Clock;
use crate::connection_limits::Slot;
use crate::directory::Directory;
use crate::driver::{Driver, Event, Waker};
use crate::flush_marks::FlushMarks;
use crate::handoff::Kept;
use crate::rate_limited_log::Notices;
use crate::session::{Connection, Session};
use crate::shared_device::SharedDevice;
use background::Background;
pub use background::{Probe, Wanted};
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::latency::Latencies;
use evenkeel_core::limits::CORE_PAYLOAD_BYTES_MAX;
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::qos::scheduler::{InstanceIndex, Scheduler, Ticket};
use evenkeel_core::qos::sharing::DeviceModel;
use evenkeel_core::qos::trace::{Call, Detail, Trace};
use evenkeel_core::time::{Duration, Instant};
use evenkeel_store::Store;
use evenkeel_store::buffer::Buffer;
use evenkeel_wire::agent::{CreditReport, HostAddress, HostReport, HostState, Report, VolumeState};
use handover::Handover;
use memory::BufferWaiters;
use moves::Departure;
pub use moves::{Newcomers, Party};
use requests::Active;
use sharing::{Device, Flight};
use slab::Slab;
use std::collections::BTreeMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use volumes::Volume;
pub use volumes::{LatencyPage, PAGE_LATENCIES_MAX, Released};

/// How often connections are looked at that owe us something.
const SWEEP_EVERY: Duration = Duration::from_secs(1);
/// How long clients may take to fetch their last replies when the server stops.
const STOP_MAX: Duration = Duration::from_secs(5);

/// So many turns with one request each tell that clients wait for each answer.
const HASTY_TURNS: u32 = 32;

/// What other threads ask of a reactor.
pub enum Message {
    /// A new connection.
    Connection(OwnedFd, HostAddress, Slot),
    /// The handshake with this ticket has to make room for another.
    Evict(u64),
    /// Give the lent client of the connection with this ticket back, if it is here.
    Recall(u64),
    /// No more handshakes: those under way are closed, too.
    CloseDoors,
    /// A connection to this volume, which is at home here.
    Moved(VolumeId, Box<Connection>),
    /// The desired state of a volume; with its store if the reactor does not hold it yet.
    Apply(Box<VolumeState>, Option<Box<dyn Store>>, SyncSender<Result<(), String>>),
    /// Close a volume's connections and its store; whether there was one.
    Remove(VolumeId, SyncSender<bool>),
    /// Close a volume's connections and give it away; `None` if there is none.
    Release(VolumeId, SyncSender<Option<Box<Released>>>),
    /// Begin no request of a volume any more, and forget it when what has begun is answered; what
    /// it and its hosts have left, `None` if there is none.
    GiveUp(VolumeId, SyncSender<Option<CreditReport>>),
    /// Whether a volume's store refuses changes until it is opened anew.
    MustReopen(VolumeId, SyncSender<bool>),
    /// Have a volume's store look at what its pool wants of it; whether the volume is here.
    Attend(VolumeId, SyncSender<bool>),
    /// Keep to itself from now on what a volume's store finishes, until it is told the opposite;
    /// whether the volume is here.
    Hold(VolumeId, bool, SyncSender<bool>),
    /// Let work that no client asked for use the device.
    Permit(Wanted),
    /// The work with this permit is done.
    PermitEnds(Ticket),
    /// Read a volume for such work.
    Probe(VolumeId, Probe),
    /// Take a volume over from another core.
    Adopt(Box<VolumeState>, Box<Released>, SyncSender<Result<(), String>>),
    /// Whether there is room for what is about to come; what there is too little of if not.
    HasRoom(Box<Newcomers>, SyncSender<Result<(), String>>),
    /// How many connections these volumes have together.
    Connections(Vec<VolumeId>, SyncSender<u32>),
    /// Give volumes and hosts away, with their connections. All of them, or none with the reason.
    Depart(Vec<VolumeId>, Vec<InstanceId>, SyncSender<Result<Box<Party>, String>>),
    /// Take over what departed elsewhere. What there is no room for comes back, with the reason.
    Join(Box<Party>, SyncSender<Result<(), (Box<Party>, String)>>),
    /// The desired state of a host whose volumes are here.
    ApplyHost(Box<HostState>, SyncSender<Result<(), String>>),
    /// Forget a host; how it was, if it was known.
    DeleteHost(InstanceId, SyncSender<Option<HostReport>>),
    /// The device below the store is like this.
    Calibrated(DeviceModel, SyncSender<Result<(), String>>),
    /// Set balances; whether there is such a volume.
    SetBalances(VolumeId, Balances, SyncSender<bool>),
    /// Lease credits of volumes and hosts that are here; what of them is unleased then.
    Lease(Box<CreditReport>, SyncSender<CreditReport>),
    /// Tell how all volumes and hosts are.
    Report(SyncSender<Report>),
    /// Tell how some volumes are.
    ReportOf(Vec<VolumeId>, SyncSender<Report>),
    /// Tell the balances that may have changed since the last time.
    Balances(SyncSender<CreditReport>),
    /// Record what the scheduler is asked and answers, up to this number of entries.
    Record(usize, Detail),
    /// End the recording and hand it over.
    Recorded(SyncSender<Option<Box<Trace>>>),
    /// Tell where requests spent their time, of the volumes after this one: of as many as one turn
    /// allows.
    Latencies(Option<VolumeId>, SyncSender<LatencyPage>),
    /// The same of one volume; `None` if nobody has used it, or it is not here.
    LatenciesOf(VolumeId, SyncSender<Option<Box<Latencies>>>),
    /// End.
    Stop,
}

/// Messages to one reactor. The queue has no bound of its own. Its senders limit it: a connection
/// holds a slot, and a caller sends a command when the last one is answered or its time is over.
pub struct Inbox {
    /// `None` once nobody reads any more.
    messages: Mutex<Option<Vec<Message>>>,
    waker: Waker,
}

impl Inbox {
    /// An empty one.
    ///
    /// # Errors
    /// When the process has too many open files.
    pub fn new() -> io::Result<Self> {
        Ok(Self { messages: Mutex::new(Some(Vec::new())), waker: Waker::new()? })
    }

    /// What wakes the reader.
    #[must_use]
    pub fn waker(&self) -> Waker {
        self.waker.clone()
    }

    /// Posts a message; it is dropped when the reactor has ended, and with it any answer's sender.
    pub fn post(&self, message: Message) {
        if let Some(messages) = self.lock().as_mut() {
            messages.push(message);
            self.waker.wake();
        }
    }

    /// From here on messages are dropped.
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

/// Notes what a scheduler was asked or answered, while somebody wants to know.
#[inline]
fn note(trace: &mut Option<Box<Trace>>, now: Instant, call: Call) {
    if let Some(trace) = trace {
        trace.push(now, call);
    }
}

/// What the reactors of a data plane and its agent share.
pub type Shared = (Arc<Directory>, Arc<SharedDevice>, Arc<FlushMarks>);

/// The loop of one core.
pub struct Reactor<D: Driver> {
    core: u16,
    inboxes: Arc<[Inbox]>,
    directory: Arc<Directory>,
    shared_device: Arc<SharedDevice>,
    flush_marks: Arc<FlushMarks>,
    clock: Clock,
    /// When this turn of the loop began.
    now: Instant,
    driver: D,
    pool: BufferPool,
    scheduler: Scheduler,
    /// What it is asked and answers, while somebody wants to know.
    trace: Option<Box<Trace>>,
    volumes: Slab<Volume>,
    by_id: BTreeMap<VolumeId, u32>,
    /// Slots of the volumes whose credit balances may move.
    dirty: Vec<u32>,
    second: contract::Second,
    sessions: Slab<Session>,
    /// Those that shake hands, by the tickets of their slots.
    handshakes: BTreeMap<u64, u32>,
    /// Whether new clients are still let in.
    doors_closed: bool,
    notices: Notices,
    active: Slab<Active>,
    /// What the stores work on.
    flights: Slab<Flight>,
    /// Hosts with limits whose volumes are here.
    hosts: BTreeMap<InstanceId, InstanceIndex>,
    /// Present once it is calibrated.
    device: Option<Device>,
    /// Device time that the volumes here reserve, in nanoseconds per second.
    reserved_ns: u64,
    /// Lists of finished requests' buffers, kept for their memory.
    spare: Vec<Vec<Option<Buffer>>>,
    /// Volumes that wait for memory.
    buffer_waiters: BufferWaiters,
    /// Volumes that go to another core as soon as they are quiet.
    departures: Vec<Departure>,
    /// Volumes that are given up and still have connections.
    handovers: Vec<Handover>,
    /// Lent clients of whose requests a store has said that it is served elsewhere.
    elsewhere: Vec<u32>,
    /// Whose turn it is to clear a range.
    turn: discard::Turn,
    background: Background,
    /// Connections to look at again in this turn.
    ready: Vec<u32>,
    /// The memory of the list that was worked off last.
    ready_spare: Vec<u32>,
    /// Connections with something to send.
    to_send: Vec<u32>,
    next_sweep: Option<Instant>,
    /// Requests taken in this turn.
    requests_in_turn: u32,
    /// Turns in a row with one request each, those without any left out.
    single_turns: u32,
    /// By when to be gone.
    stop_by: Option<Instant>,
}

impl<D: Driver> Reactor<D> {
    /// The reactor of core number `core`, which reads the inbox of that number.
    #[must_use]
    pub fn new(
        core: u16,
        inboxes: Arc<[Inbox]>,
        (directory, shared_device, flush_marks): Shared,
        clock: Clock,
        driver: D,
    ) -> Self {
        // The kernel may round a timer by 50 us to save wake-ups; a pacer has better uses for them.
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
            volumes: Slab::new(),
            by_id: BTreeMap::new(),
            dirty: Vec::new(),
            second: contract::Second::default(),
            sessions: Slab::new(),
            handshakes: BTreeMap::new(),
            doors_closed: false,
            notices: Notices::default(),
            active: Slab::new(),
            flights: Slab::new(),
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

    /// Runs until told to stop.
    ///
    /// # Errors
    /// When the driver breaks.
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

    /// How long nothing has to be done unless something happens.
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
                let Some(volume) = self.volumes.get_mut(slot as usize) else { return };
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
            Message::Connection(fd, peer, slot) => self.connect(fd, peer, slot),
            Message::Evict(ticket) => self.evict(ticket),
            Message::Recall(ticket) => self.recall(ticket),
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
            // Whoever asked may have given up; that is no concern of ours, here and below.
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

    /// Begins a record with the names of the volumes that are here.
    fn record(&mut self, entries: usize, detail: Detail) {
        let mut trace = Box::new(Trace::with_room(entries, detail));
        for (_, volume) in &self.volumes {
            trace.push(self.now, Call::Name(volume.index, volume.state.id));
        }
        self.trace = Some(trace);
    }

    /// Retries the connections that a bound held up, until a pass frees nothing.
    fn retry_ready(&mut self) {
        // Those that are held up anew wait for the next turn.
        let mut ids = std::mem::replace(&mut self.ready, std::mem::take(&mut self.ready_spare));
        for id in ids.drain(..) {
            self.proceed(id);
            // A turn that was not used is the next one's.
            if let Some(session) = self.sessions.get_mut(id as usize)
                && let Some(slot) = session.give_up_turn()
            {
                self.wake_waiter(slot);
            }
        }
        self.ready_spare = ids;
    }

    /// Whether the reactor may end: it has received [`Message::Stop`], and all connections are
    /// closed and all stores at rest, or [`STOP_MAX`] is over. Writes of a store that is not at
    /// rest may be nowhere but in the files of answered writes, which only some pools have.
    fn is_finished(&mut self) -> bool {
        let Some(by) = self.stop_by else { return false };
        self.now >= by || self.sessions.is_empty() && self.are_stores_at_rest()
    }
}

impl<D: Driver> Drop for Reactor<D> {
    /// What the kernel may still touch must outlive us, in a panic, too.
    fn drop(&mut self) {
        for mut session in std::mem::take(&mut self.sessions).drain() {
            // Who has lent it learns that it has ended, whatever becomes of the rest.
            drop(session.slot.kept.as_mut().and_then(Kept::take_back));
            if session.transport.is_receiving_payload() {
                // It writes to the request's buffers.
                std::mem::forget(std::mem::take(&mut self.active));
            }
            if session.transport.is_in_driver() {
                std::mem::forget(session);
            }
        }
    }
}
