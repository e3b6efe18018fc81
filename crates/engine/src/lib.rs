//! The data plane: one thread per core, each with its clock, its driver (io_uring or plain system
//! calls), its scheduler and the volumes whose home it is. Connections come in over TCP and a unix
//! socket; the control plane speaks to it through [`Agent`].
#![deny(missing_docs)]

mod accept;
pub mod adaptive_poll;
mod agent;
pub mod buffers;
pub mod calibrate;
pub mod connection_limits;
pub mod directory;
pub mod driver;
pub mod flush_marks;
pub mod handoff;
mod listener;
pub mod output;
mod peer;
mod peer_credentials;
mod placement;
pub mod priority;
pub mod protocol;
pub mod rate_limited_log;
pub mod reactor;
mod recorder;
pub mod ring;
pub mod session;
pub mod shared_device;
mod supervisor;
pub mod table;
pub mod threads;
pub mod transport;
mod turns;
mod workers;

use accept::Doors;
pub use accept::{Entrance, Inside};
use agent::EngineAgent;
use connection_limits::Observer;
use directory::Directory;
use driver::{Driver, Waker};
use evenkeel_core::connection_limits::Bounds;
use evenkeel_os::clock::Clock;
use evenkeel_store::Pool;
use evenkeel_wire::agent::{Agent, Capacity, HostAddress};
use flush_marks::{FlushMarks, Writer};
use listener::{Listeners, Reception, hand_over};
pub use peer::Peer;
pub use peer_credentials::UnixAccess;
use priority::raised::{Raised, Standing};
use priority::{Granted, Priority, Refused};
use reactor::{Inbox, Message, Reactor};
pub use recorder::Recorder;
use ring::Ring;
use shared_device::SharedDevice;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, Once, PoisonError};
use std::thread::JoinHandle;
use supervisor::Fate;
use threads::Threads;

/// How the data plane talks to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoMode {
    /// io_uring where the kernel allows it, else plain system calls, with a warning.
    Auto,
    /// One io_uring a core.
    Uring,
    /// System calls and worker threads.
    Pread,
}

/// Configuration of a data plane.
pub struct EngineConfig {
    /// Number of reactors, one a core; at least one.
    pub cores: u16,
    /// The interface to the kernel.
    pub io: IoMode,
    /// The priority of the reactors' threads.
    pub priority: Priority,
    /// NBD listeners; port 0 takes a free one.
    pub tcp: Vec<SocketAddr>,
    /// NBD on a unix socket at this path.
    pub unix: Option<PathBuf>,
    /// The users that may connect to the unix socket.
    pub unix_access: UnixAccess,
    /// The store of the volumes.
    pub pool: Arc<dyn Pool>,
}

/// Reason why the data plane did not start.
#[derive(Debug)]
pub enum EngineError {
    /// An address or a path cannot be listened on.
    Bind {
        /// The address or path.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// A unix socket's path is longer than the kernel takes.
    UnixPathTooLong {
        /// The path.
        path: PathBuf,
        /// Its length in bytes.
        length: usize,
    },
    /// The unix socket cannot be given to a group.
    UnixGroup {
        /// The path.
        path: PathBuf,
        /// The group.
        group: u32,
        /// The system's error.
        source: io::Error,
    },
    /// The kernel refuses io_uring.
    Uring(io::Error),
    /// The kernel refuses the priority that was asked for.
    Priority(Refused),
    /// A thread, a descriptor or the like was refused.
    Resources(io::Error),
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bind { what, source } => write!(f, "cannot listen on {what}: {source}"),
            Self::UnixPathTooLong { path, length } => write!(
                f,
                "the unix socket {} has {length} bytes, the kernel takes 107; \
                 name a shorter path with --nbd-unix",
                path.display()
            ),
            Self::UnixGroup { path, group, source } => write!(
                f,
                "the unix socket {} cannot be given to group {group}: {source}; the server's user \
                 must be root or a member of the group that nbd-unix-group names",
                path.display()
            ),
            Self::Uring(source) => write!(
                f,
                "the kernel refuses io_uring: {source}; run with --io pread, or see \
                 `evenkeel doctor`"
            ),
            Self::Priority(refused) => refused.fmt(f),
            Self::Resources(source) => {
                write!(f, "the data plane cannot start: {source}; see `evenkeel doctor`")
            }
        }
    }
}

impl std::error::Error for EngineError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Bind { source, .. }
            | Self::UnixGroup { source, .. }
            | Self::Uring(source)
            | Self::Resources(source) => Some(source),
            Self::Priority(refused) => refused.source(),
            Self::UnixPathTooLong { .. } => None,
        }
    }
}

/// A running data plane. Dropping it stops it too.
pub struct Engine {
    agent: Arc<EngineAgent>,
    clock: Clock,
    tcp: Vec<SocketAddr>,
    inboxes: Arc<[Inbox]>,
    directory: Arc<Directory>,
    fate: Fate,
    doors: Arc<Doors>,
    begin_listening: Waker,
    stop_listening: Waker,
    listener: Mutex<Option<JoinHandle<()>>>,
    reactors: Vec<JoinHandle<()>>,
    /// Writes marks of failed flushes; `None` before the start and after the end.
    flush_marks: Option<Writer>,
}

impl Engine {
    /// Starts a data plane. When this returns, it listens on every address.
    ///
    /// # Errors
    /// If an address is in use, or the system refuses a resource.
    pub fn start(config: EngineConfig) -> Result<Self, EngineError> {
        let engine = Self::start_closed(config)?;
        engine.open_doors();
        Ok(engine)
    }

    /// Starts a data plane whose entrances are closed: it listens on every address, but clients
    /// that connect wait until [`Self::open_doors`]. For a server that has to bring up volumes
    /// first: after the answer "no such export" most clients do not try again.
    ///
    /// # Errors
    /// As [`Self::start`].
    pub fn start_closed(config: EngineConfig) -> Result<Self, EngineError> {
        let unix = config.unix.as_deref();
        let listeners = Listeners::bind(&config.tcp, unix, &config.unix_access)?;
        let tcp = listeners.tcp_addresses();
        let inboxes: io::Result<Vec<Inbox>> =
            (0..config.cores.max(1)).map(|_| Inbox::new()).collect();
        let inboxes: Arc<[Inbox]> = inboxes.map_err(EngineError::Resources)?.into();
        let files = rustix::process::getrlimit(rustix::process::Resource::Nofile).current;
        let bounds = Bounds::new(inboxes.len() as u16, files);
        let directory = Arc::new(Directory::new(bounds));
        let pool = config.pool;
        let agent_directory = Arc::clone(&directory);
        let flush_marks = Arc::new(FlushMarks::default());
        let shared_device = Arc::new(SharedDevice::new(inboxes.len() as u16));
        let clock = Clock::start();
        let agent = EngineAgent::new(
            Arc::clone(&pool),
            Arc::clone(&inboxes),
            agent_directory,
            (Arc::clone(&shared_device), Arc::clone(&flush_marks)),
            clock,
        );
        let mut engine = Self {
            agent: Arc::new(agent),
            clock,
            tcp,
            inboxes: Arc::clone(&inboxes),
            directory: Arc::clone(&directory),
            fate: Fate::default(),
            doors: Arc::default(),
            stop_listening: Waker::new().map_err(EngineError::Resources)?,
            begin_listening: Waker::new().map_err(EngineError::Resources)?,
            listener: Mutex::default(),
            reactors: Vec::new(),
            flush_marks: None,
        };
        let writer = Writer::start(&flush_marks, pool).map_err(EngineError::Resources)?;
        engine.flush_marks = Some(writer);
        let kind = (choose(config.io)?, granted(config.priority)?);
        for core in 0..inboxes.len() as u16 {
            let shared = (&directory, &shared_device, &flush_marks);
            engine.start_reactor(core, kind, shared, clock)?;
        }
        let begin = engine.begin_listening.clone();
        let stop = engine.stop_listening.clone();
        let thread = std::thread::Builder::new().name("listener".to_owned());
        let watch = engine.fate.watch("listener".to_owned());
        let reception = Reception { inboxes, directory, clock };
        let listener = thread.spawn(move || {
            if listeners.run(&reception, &begin, &stop) {
                watch.was_told();
            }
        });
        *engine.listener() = Some(listener.map_err(EngineError::Resources)?);
        Ok(engine)
    }

    /// Accepts connections from now on, first those that wait already.
    pub fn open_doors(&self) {
        self.doors.open();
        self.begin_listening.wake();
    }

    /// Stops accepting connections until the process ends. The system refuses new ones, and their
    /// clients try again. Connections in a handshake are closed; those to volumes stay. Call this
    /// before volumes are closed: most clients do not try again after the answer "no such export".
    pub fn close_doors(&self) {
        self.doors.close();
        self.stop_listening.wake();
        let listener = self.listener().take();
        if listener.is_some_and(|listener| listener.join().is_err()) {
            tracing::error!("the listening thread panicked");
        }
        for inbox in self.inboxes.iter() {
            inbox.post(Message::CloseDoors);
        }
    }

    fn listener(&self) -> MutexGuard<'_, Option<JoinHandle<()>>> {
        self.listener.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_reactor(
        &mut self,
        core: u16,
        (io, granted): (IoMode, Granted),
        (directory, device, marks): (&Arc<Directory>, &Arc<SharedDevice>, &Arc<FlushMarks>),
        clock: Clock,
    ) -> Result<(), EngineError> {
        let inboxes = Arc::clone(&self.inboxes);
        let shared = (Arc::clone(directory), Arc::clone(device), Arc::clone(marks));
        let (started, start) = sync_channel(1);
        let thread = std::thread::Builder::new().name(format!("core-{core}"));
        let mut watch = self.fate.watch(format!("core-{core}"));
        let reactor = thread.spawn(move || {
            let _closer = Closer { inboxes: Arc::clone(&inboxes), core };
            let waker = inboxes[usize::from(core)].waker();
            // Before the driver, whose threads inherit it.
            let standing = Standing::raise(granted, clock);
            let result = match io {
                // A ring belongs to the thread that creates it.
                IoMode::Auto | IoMode::Uring => {
                    started_with(standing, || Ring::new(waker, clock), &started)
                        .map(|ring| Reactor::new(core, inboxes, shared, clock, ring).run())
                }
                IoMode::Pread => started_with(standing, || Threads::new(waker), &started)
                    .map(|threads| Reactor::new(core, inboxes, shared, clock, threads).run()),
            };
            match result {
                Some(Err(error)) => watch.because(&error),
                Some(Ok(())) => {}
                // The caller that starts the data plane has the error.
                None => watch.was_told(),
            }
        });
        self.reactors.push(reactor.map_err(EngineError::Resources)?);
        match start.recv() {
            Ok(Ok(())) => Ok(()),
            Ok(Err(error)) if io == IoMode::Uring => Err(EngineError::Uring(error)),
            Ok(Err(error)) => Err(EngineError::Resources(error)),
            Err(_) => Err(EngineError::Resources(io::Error::other("a core's thread has ended"))),
        }
    }

    /// Returns the control plane's interface to the data plane.
    #[must_use]
    pub fn agent(&self) -> Arc<dyn Agent> {
        Arc::clone(&self.agent) as Arc<dyn Agent>
    }

    /// Sets the capacity that the control plane gets when it asks for it: after a calibration, and
    /// again if drift changes it. [`Capacity::Unknown`] until then.
    pub fn set_capacity(&self, capacity: Capacity) {
        self.agent.set_capacity(capacity);
    }

    /// Returns a recorder of the schedulers' calls and dispatches.
    #[must_use]
    pub fn recorder(&self) -> Recorder {
        Recorder { inboxes: Arc::clone(&self.inboxes), clock: self.clock }
    }

    /// Calls `tell` with the reason if a thread of the data plane ends without a request to stop;
    /// at once if one has ended. The volumes of such a core are not served any more, and no other
    /// core can take them over: stop the data plane and start it anew.
    pub fn when_failed(&self, tell: impl FnOnce(String) + Send + 'static) {
        self.fate.when_failed(tell);
    }

    /// Reports to `observer` what becomes of connections from now on: those that begin, end, or are
    /// refused. Only the first call has an effect.
    pub fn observe(&self, observer: Observer) {
        self.directory.slots().observe(observer);
    }

    /// Serves a connection of a client at `peer` that was accepted elsewhere. Its handshake runs on
    /// core `core`, modulo the number of cores. It is closed if a limit on connections is reached.
    pub fn serve(&self, connection: OwnedFd, peer: HostAddress, core: u16) {
        let core = core % self.inboxes.len() as u16;
        let served = hand_over((&self.inboxes, &self.directory), connection, peer.into(), core);
        if let Err(why) = served {
            tracing::warn!(?peer, "a connection is refused: {why}");
        }
    }

    /// Returns an entrance for connections that are accepted elsewhere.
    #[must_use]
    pub fn entrance(&self) -> Entrance {
        Entrance {
            inboxes: Arc::clone(&self.inboxes),
            directory: Arc::clone(&self.directory),
            doors: Arc::clone(&self.doors),
            next: Arc::default(),
            is_reported_by_caller: false,
        }
    }

    /// Returns the TCP addresses on which the data plane listens, with their real ports.
    #[must_use]
    pub fn tcp_addresses(&self) -> Vec<SocketAddr> {
        self.tcp.clone()
    }

    /// Stops serving: accepts no new connections, finishes and answers requests in the stores, and
    /// refuses the others. Returns when all threads have ended.
    pub fn shutdown(self) {
        drop(self);
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.fate.stop();
        self.close_doors();
        for inbox in self.inboxes.iter() {
            inbox.post(Message::Stop);
        }
        for thread in self.reactors.drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the data plane panicked");
            }
        }
        // No flush can fail any more that would need a mark.
        drop(self.flush_marks.take());
    }
}

/// Reports the result of the driver's start. Returns the driver, if it has started.
fn started_with<D: Driver>(
    standing: io::Result<Standing>,
    start: impl FnOnce() -> io::Result<D>,
    started: &SyncSender<io::Result<()>>,
) -> Option<Raised<D>> {
    let driver = standing.and_then(|standing| Ok(Raised::new(start()?, standing)));
    let (driver, result) = match driver {
        Ok(driver) => (Some(driver), Ok(())),
        Err(error) => (None, Err(error)),
    };
    // The receiver is gone only if the starting thread has died, which ends the process's start
    // anyway.
    let _ = started.send(result);
    driver
}

/// Returns the priority that the reactors get, after a test, and logs what is refused.
fn granted(priority: Priority) -> Result<Granted, EngineError> {
    let granted = priority.granted().map_err(EngineError::Priority)?;
    const ALLOW: &str = "CAP_SYS_NICE or LimitRTPRIO=1 in the systemd unit allows it; \
                         data-plane-priority says what to ask for";
    match granted {
        Granted::Nice if priority == Priority::Auto => tracing::info!(
            "real-time priority is refused here: the data plane has the nice value {} instead. \
             {ALLOW}",
            priority::NICE
        ),
        Granted::None if priority == Priority::Auto => tracing::info!(
            "real-time priority is refused here: programs that compute on the same processors \
             can delay the data plane. {ALLOW}"
        ),
        _ => {}
    }
    Ok(granted)
}

/// Returns the mode that `Auto` means here, after a test.
fn choose(io: IoMode) -> Result<IoMode, EngineError> {
    if io != IoMode::Auto {
        return Ok(io);
    }
    // In a thread of its own: the kernel's delayed cleanup of a ring would interrupt the caller's
    // system calls.
    let probe = || Waker::new().and_then(|waker| Ring::new(waker, Clock::start()).map(drop));
    let thread = std::thread::Builder::new().name("probe".to_owned()).spawn(probe);
    let result = thread.map_err(EngineError::Resources)?.join();
    match result.unwrap_or_else(|_| Err(io::Error::other("the probe panicked"))) {
        Ok(()) => Ok(IoMode::Uring),
        Err(error) => {
            // A process may start several data planes, for example to calibrate.
            static WARNED: Once = Once::new();
            WARNED.call_once(|| {
                let what = "io_uring is refused here: plain system calls are used instead";
                tracing::warn!(%error, "{what}");
            });
            Ok(IoMode::Pread)
        }
    }
}

/// Closes a reactor's inbox when its thread ends in any way, so that no caller waits for an answer.
struct Closer {
    inboxes: Arc<[Inbox]>,
    core: u16,
}

impl Drop for Closer {
    fn drop(&mut self) {
        self.inboxes[usize::from(self.core)].close();
    }
}
