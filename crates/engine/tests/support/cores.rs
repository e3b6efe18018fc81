//! Reactors without an engine around them: the test passes sockets to a core of its choice, and
//! observes the core's calls of its driver.

use super::{ANSWER_MAX, Nbd};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::time::Duration;
use evenkeel_engine::connection_limits::Slot;
use evenkeel_engine::directory::{Directory, Entry};
use evenkeel_engine::driver::{Driver, Event, Waker};
use evenkeel_engine::reactor::{Inbox, LatencyPage, Message, Reactor};
use evenkeel_engine::shared_device::SharedDevice;
use evenkeel_engine::table::{SessionId, VolumeSlot};
use evenkeel_os::clock::Clock;
use evenkeel_store::Pool;
use evenkeel_store::memory::MemoryPool;
use evenkeel_wire::agent::{HostAddress, VolumeState};
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;

/// A wait shorter than this is no sleep.
const SLEEP_MIN: Duration = Duration { ns: 1_000_000 };
/// Maximum number of turns in a row without an event and without sleep. A core may poll twice
/// before it sleeps; one that turns more often will not stop.
const IDLE_TURNS_MAX: u32 = 1_000;

/// Whether a core sleeps.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Rest {
    Awake,
    Asleep,
    /// It has turned idly too often, or ended.
    Over,
}

/// State of a core, as its driver sees it.
#[derive(Clone)]
struct Watch(Arc<(Mutex<Rest>, Condvar)>, Arc<AtomicU64>);

impl Watch {
    fn note(&self, rest: Rest) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = rest;
        self.0.1.notify_all();
    }
}

/// A driver that records when its core sleeps, and fails if the core never does.
struct Watched<D> {
    driver: D,
    watch: Watch,
    idle_turns: u32,
}

impl<D: Driver> Driver for Watched<D> {
    type Disk<'a>
        = D::Disk<'a>
    where
        Self: 'a;

    unsafe fn receive(&mut self, connection: SessionId, fd: RawFd, message: *mut libc::msghdr) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.driver.receive(connection, fd, message) }
    }

    fn cancel_receive(&mut self, connection: SessionId) {
        self.driver.cancel_receive(connection);
    }

    fn cancel_send(&mut self, connection: SessionId) {
        self.driver.cancel_send(connection);
    }

    unsafe fn send(&mut self, connection: SessionId, fd: RawFd, message: *const libc::msghdr) {
        // SAFETY: the caller's promise is passed on.
        unsafe { self.driver.send(connection, fd, message) }
    }

    fn watch(&mut self, connection: SessionId, fd: RawFd) {
        self.driver.watch(connection, fd);
    }

    fn cancel_watch(&mut self, connection: SessionId) {
        self.driver.cancel_watch(connection);
    }

    fn disk(&mut self, store: VolumeSlot) -> D::Disk<'_> {
        self.driver.disk(store)
    }

    fn wait(&mut self, timeout: Option<Duration>, hasty: bool) -> io::Result<()> {
        if timeout.is_none_or(|timeout| timeout >= SLEEP_MIN) {
            self.idle_turns = 0;
            self.watch.note(Rest::Asleep);
        } else {
            self.idle_turns += 1;
            if self.idle_turns > IDLE_TURNS_MAX {
                let error = "a core turns and turns, and nothing happens";
                eprintln!("{error}");
                return Err(io::Error::other(error));
            }
        }
        self.watch.1.fetch_add(1, Ordering::Relaxed);
        let result = self.driver.wait(timeout, hasty);
        self.watch.note(Rest::Awake);
        result
    }

    fn poll(&mut self) -> Option<Event> {
        let event = self.driver.poll()?;
        self.idle_turns = 0;
        Some(event)
    }
}

impl<D> Drop for Watched<D> {
    fn drop(&mut self) {
        self.watch.note(Rest::Over);
    }
}

/// Some cores with memory volumes.
pub struct Cores {
    inboxes: Arc<[Inbox]>,
    directory: Arc<Directory>,
    pool: MemoryPool,
    watches: Vec<Watch>,
    threads: Vec<JoinHandle<io::Result<()>>>,
}

impl Cores {
    /// Starts `count` cores, with drivers that are created in the cores' own threads.
    pub fn start<D: Driver + 'static>(
        count: u16,
        driver: fn(Waker, Clock) -> io::Result<D>,
    ) -> Self {
        let inboxes: Arc<[Inbox]> = (0..count).map(|_| Inbox::new().unwrap()).collect();
        let directory = Arc::new(Directory::default());
        let clock = Clock::start();
        let shared_device = Arc::new(SharedDevice::new(count));
        let mut watches = Vec::new();
        let mut threads = Vec::new();
        for core in 0..count {
            let watch = Watch(Arc::new((Mutex::new(Rest::Awake), Condvar::new())), Arc::default());
            watches.push(watch.clone());
            let inboxes = Arc::clone(&inboxes);
            let shared = (Arc::clone(&directory), Arc::clone(&shared_device), Arc::default());
            threads.push(std::thread::spawn(move || {
                let driver = driver(inboxes[usize::from(core)].waker(), clock)?;
                let driver = Watched { driver, watch, idle_turns: 0 };
                Reactor::new(core, inboxes, shared, clock, driver).run()
            }));
        }
        Self { inboxes, directory, pool: MemoryPool::new(), watches, threads }
    }

    /// Creates a volume whose home is this core.
    pub fn apply(&self, home: u16, state: &VolumeState) {
        self.pool.create(state.id, state.size).unwrap();
        let store = self.pool.open(state.id, state.size).unwrap();
        let geometry = store.geometry();
        let attachments = state.attachments.clone();
        let (ack, answer) = sync_channel(1);
        self.post(home, Message::Apply(Box::new(state.clone()), Some(store), ack));
        answer.recv_timeout(ANSWER_MAX).unwrap().unwrap();
        self.directory.insert(state.id, Entry { home, geometry, attachments });
    }

    /// Connects a client on this machine to this core, without a handshake. Replies that the client
    /// does not read stay in the server, except about `send_bytes`.
    pub fn dial(&self, core: u16, send_bytes: usize) -> UnixStream {
        let (client, server) = UnixStream::pair().unwrap();
        client.set_read_timeout(Some(ANSWER_MAX)).unwrap();
        rustix::net::sockopt::set_socket_send_buffer_size(&server, send_bytes).unwrap();
        let (slot, _) = Slot::greet(self.directory.slots(), HostAddress::Local, core).unwrap();
        self.post(
            core,
            Message::Connection(OwnedFd::from(server), HostAddress::Local.into(), Box::new(slot)),
        );
        client
    }

    /// Connects a client to a volume whose home is this core.
    pub fn connect(&self, core: u16, state: &VolumeState) -> Nbd {
        Nbd::over(self.dial(core, 64 << 10), state.id, true).expect("the export is there")
    }

    /// Returns the latencies that the core reports in one turn.
    pub fn latencies(&self, core: u16, after: Option<VolumeId>) -> LatencyPage {
        let (ack, answer) = sync_channel(1);
        self.post(core, Message::Latencies(after, ack));
        answer.recv_timeout(ANSWER_MAX).unwrap()
    }

    /// Waits until the core sleeps; returns `Rest::Over` if it never will.
    pub fn rest_of(&self, core: u16) -> Rest {
        let (rest, changed) = &*self.watches[usize::from(core)].0;
        let rest = rest.lock().unwrap();
        let is_awake = |rest: &mut Rest| *rest == Rest::Awake;
        *changed.wait_timeout_while(rest, ANSWER_MAX, is_awake).unwrap().0
    }

    /// Returns the number of the core's turns so far.
    pub fn turns_of(&self, core: u16) -> u64 {
        self.watches[usize::from(core)].1.load(Ordering::Relaxed)
    }

    /// Stops all cores. Fails if one has ended with an error.
    pub fn stop(self) {
        (0..self.inboxes.len()).for_each(|core| self.post(core as u16, Message::Stop));
        for thread in self.threads {
            thread.join().unwrap().unwrap();
        }
    }

    fn post(&self, core: u16, message: Message) {
        self.inboxes[usize::from(core)].post(message);
    }
}
