//! The control plane: manages volumes and hosts through the EC2 API and stores them in a database.
//!
//! [`run`] is given a configuration and the data plane's agent, and blocks until shutdown. It
//! returns a [`ControlError`] if the server cannot start or cannot stop cleanly.
//!
//! | module | contents |
//! | --- | --- |
//! | [`model`] | volumes, hosts, and the rules for changing them; pure |
//! | [`reconcile`] | the commands to the data plane, by the model's state; pure |
//! | [`capacity`] | the capacity that may be sold, as the data plane reports it; its log lines |
//! | [`time`] | a point in time by two clocks; pure |
//! | [`server_clock`] | the clock that times of the API are by; that of a test server |
//! | [`server_time`] | the time for durations; pure |
//! | `space` | the space for stored bytes, as the data plane reports it; its log lines |
//! | [`credits`] | balances after a stop, and their leased part; pure |
//! | [`journal`] | the durable log of decisions: SQLite, or memory; the crate `cluster` adds etcd |
//! | [`plane`] | the sequence of a change: decide, store, call the data plane, store, reply |
//! | [`key_locks`] | locks of volumes and hosts, granted in order of arrival |
//! | [`scrub`] | the progress and the findings of a scrub of all stored data |
//! | [`health`] | the performance of volumes, for DescribeVolumeStatus; pure |
//! | [`api`] | the EC2 actions, one file each |
//! | `direct` | the EBS direct APIs: snapshots block by block |
//! | [`rights`] | the rights of users, checked at one place for all services |
//! | `identity` | the actions of IAM and STS |
//! | [`nodes`] | the nodes of a cluster, as the control plane uses them |
//! | [`cloudwatch`] | CloudWatch's actions, and the thread that samples the data plane |
//! | [`faults`] | faults that a server for tests injects |
//! | [`events`] | events in the shape of EventBridge: which change is which event |
//! | [`credentials`] | the access key: created once, read at every start |
//! | `trail` | the audit of calls, in the form of CloudTrail |
//! | `visits` | connections and refused signatures, on their way to the audit |
//! | `rate` | a bucket of tokens |
//! | `endpoint` | where clients of the data plane connect |
//! | `metrics` | the contents of `/metrics`, collected |
//! | `http` | the HTTP listener |
//!
//! [`evenkeel_telemetry`] records and stores the metrics, recordings and events.
//!
//! This crate communicates with the data plane through [`evenkeel_wire::agent`] only. The data
//! plane keeps its promise while this crate is not running.
#![deny(missing_docs)]

// The conformance tests of journals are also compiled in another crate, and name this one.
#[cfg(test)]
extern crate self as evenkeel_control;

pub mod api;
pub mod capacity;
pub mod cloudwatch;
pub mod credentials;
pub mod credits;
mod direct;
mod endpoint;
pub mod events;
pub mod faults;
pub mod feel;
pub mod fis;
pub mod health;
mod http;
mod identity;
pub mod journal;
pub mod key_locks;
mod metrics;
pub mod model;
pub mod nodes;
pub mod plane;
mod random;
mod rate;
pub mod reconcile;
pub mod rights;
pub mod scrub;
pub mod server_clock;
pub mod server_time;
pub mod space;
pub mod time;
mod trail;
mod visits;

use std::fmt;
use std::fs::{File, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evenkeel_core::feel::Latencies;
use evenkeel_core::units::ByteCount;
use evenkeel_os::clock;
use evenkeel_telemetry::audit::{self, Audit};
use evenkeel_telemetry::cloudwatch::CloudWatch;
use evenkeel_telemetry::cloudwatch::store::FILE_NAME as METRICS_FILE_NAME;
use evenkeel_telemetry::events::webhook::Webhooks;
use evenkeel_telemetry::private;
use evenkeel_telemetry::recording::Recorder;
use evenkeel_tls::server::ServerTls;
use evenkeel_wire::agent::Agent;
use tracing::{info, warn};

pub use endpoint::Endpoint;
pub use http::{CONNECTIONS_MAX, Pinned, Slot, Slots, Stream, Timeouts, accept_stream};
pub use model::{AccountQuotas, ModifyPolicy, Settings, SpaceOversell, StoreKey};

use crate::api::Api;
use crate::cloudwatch::Sampling;
use crate::credentials::CredentialsError;
use crate::events::Events;
use crate::faults::{Faults, IoFaults};
use crate::feel::{Feel, IoFeel};
use crate::journal::Journal;
use crate::journal::sqlite::SqliteJournal;
use crate::nodes::Nodes;
use crate::plane::{Plane, PlaneError, TestServer};
use crate::server_clock::{ClockError, ServerClock};
pub use crate::visits::{Records, Visits};

/// Name of the database in the data folder.
pub const DATABASE_FILE_NAME: &str = "control.db";
/// Name of the file that a server locks while it uses the data folder.
const LOCK_FILE_NAME: &str = "control.lock";

/// The configuration of the control plane.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// The folder of `control.db` and `credentials`; must exist.
    pub data_dir: PathBuf,
    /// Address of the API; port 0 takes a free port.
    pub listen: SocketAddr,
    /// TLS of the API, if it has it.
    pub tls: Option<Arc<ServerTls>>,
    /// Addresses of the data plane, which DescribeEndpoints returns.
    pub endpoints: Vec<Endpoint>,
    /// The settings of the server.
    pub settings: Settings,
    /// Maximum space for the metrics of volumes on disk.
    pub metrics_space: ByteCount,
    /// The webhooks to which events are posted.
    pub webhooks: Webhooks,
    /// Deadlines for clients of the API.
    pub timeouts: Timeouts,
    /// The audit, if other parts of the server report connections to it; `None` if the control
    /// plane opens it.
    pub records: Option<Arc<Records>>,
    /// Its parts as a server for tests, which must serve alone.
    pub test: Option<TestIo>,
}

/// The parts of a data plane that only a server for tests has.
#[derive(Clone, Debug)]
pub struct TestIo {
    /// Executes faults of I/O.
    pub faults: Arc<dyn IoFaults>,
    /// Makes volumes feel like those of EBS, if they are to.
    pub feel: Option<Arc<dyn IoFeel>>,
}

impl TestIo {
    /// Returns the parts of the control plane that decide about these.
    fn server(self, clock: Arc<ServerClock>, settings: &Settings) -> TestServer {
        let latencies = Latencies::as_of(settings.rules.date());
        let feel = self.feel.map(|feel| Arc::new(Feel::new(feel, latencies)));
        TestServer { clock, faults: Arc::new(Faults::of_test(self.faults)), feel }
    }
}

/// Why the control plane could not run, or could not stop cleanly.
#[derive(Debug)]
pub enum ControlError {
    /// Another server runs on the same data folder.
    InUse(PathBuf),
    /// A file of the data folder cannot be used.
    DataDir(PathBuf, io::Error),
    /// The clock of the data folder cannot be used.
    Clock(ClockError),
    /// The access key cannot be read or created.
    Credentials(CredentialsError),
    /// The volumes could not be brought up.
    Start(PlaneError),
    /// The server cannot listen on the address.
    Listen(SocketAddr, io::Error),
    /// The runtime could not be created.
    Runtime(io::Error),
    /// There is no memory for the metrics of volumes.
    Metrics(rusqlite::Error),
    /// The final state could not be stored; the next start treats this as a crash.
    Stop(PlaneError),
}

impl fmt::Display for ControlError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(path) => write!(
                f,
                "{}: another server runs on this data folder; stop it, or choose another folder",
                path.display()
            ),
            Self::DataDir(path, error) => write!(f, "{}: {error}", path.display()),
            Self::Clock(error) => error.fmt(f),
            Self::Credentials(error) => error.fmt(f),
            Self::Start(error) => write!(f, "the control plane cannot start: {error}"),
            Self::Listen(address, error) => write!(
                f,
                "the API cannot listen on {address}: {error}; choose another address or stop the \
                 program that uses it"
            ),
            Self::Runtime(error) => write!(f, "the API's runtime cannot start: {error}"),
            Self::Metrics(error) => write!(f, "the metrics of volumes cannot start: {error}"),
            Self::Stop(error) => write!(
                f,
                "not stopped cleanly: {error}; credit balances will be reduced at the next start"
            ),
        }
    }
}

impl std::error::Error for ControlError {}

/// Runs the control plane and blocks until `shutdown` resolves. Calls `attached_up` once all
/// attached volumes are up, and `ready` with the address in use once all volumes are up and
/// requests are answered.
///
/// # Errors
/// See [`ControlError`].
pub fn run(
    config: ControlConfig,
    agent: Arc<dyn Agent>,
    attached_up: impl FnOnce(),
    ready: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()>,
) -> Result<(), ControlError> {
    let nodes = None;
    let journal = open_journal;
    let is_last = || true;
    let parts = Parts { agent, nodes, journal, attached_up, is_last };
    run_on(config, parts, ready, shutdown)
}

/// The control plane of several nodes, in the process that leads them.
pub struct Leading {
    /// The nodes.
    pub nodes: Arc<dyn Nodes>,
    /// Their journal.
    pub journal: Box<dyn Journal>,
}

/// Runs the control plane over the nodes of a cluster, as [`run`] does. When `shutdown` resolves,
/// `is_last` returns whether no other node continues. If so, the volumes are closed and their
/// balances stored; else nothing is closed, and the next leader continues.
///
/// # Errors
/// See [`ControlError`].
pub fn run_leading(
    config: ControlConfig,
    leading: Leading,
    ready: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()>,
    is_last: impl FnOnce() -> bool,
) -> Result<(), ControlError> {
    let Leading { nodes, journal } = leading;
    let agent = Arc::clone(&nodes) as Arc<dyn Agent>;
    let journal = |_: &Path| Ok(journal);
    let attached_up = || {};
    let parts = Parts { agent, nodes: Some(nodes), journal, attached_up, is_last };
    run_on(config, parts, ready, shutdown)
}

/// The differences between one node and several.
struct Parts<J, U, L> {
    agent: Arc<dyn Agent>,
    nodes: Option<Arc<dyn Nodes>>,
    /// Opens the journal; given the data folder.
    journal: J,
    /// Called when the volumes that are attached are up.
    attached_up: U,
    /// Whether volumes are closed at the end.
    is_last: L,
}

fn run_on<J, U, L>(
    config: ControlConfig,
    parts: Parts<J, U, L>,
    ready: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()>,
) -> Result<(), ControlError>
where
    J: FnOnce(&Path) -> Result<Box<dyn Journal>, ControlError>,
    U: FnOnce(),
    L: FnOnce() -> bool,
{
    let Parts { agent, nodes, journal, attached_up, is_last } = parts;
    let _lock = lock(&config.data_dir)?;
    let clock = if config.test.is_some() {
        ServerClock::of_test(&config.data_dir)
    } else {
        ServerClock::of_machine(&config.data_dir)
    };
    let clock = Arc::new(clock.map_err(ControlError::Clock)?);
    // An earlier server on this folder accepts no requests any more. Without keys there was none.
    let began = config.data_dir.join(credentials::FILE_NAME).exists().then(clock::unix_ms);
    let credentials =
        credentials::load_or_create(&config.data_dir).map_err(ControlError::Credentials)?;
    // Bound before anything else is touched, because this is the most likely step to fail.
    let listener =
        http::bind(config.listen).map_err(|error| ControlError::Listen(config.listen, error))?;
    let keeping = nodes.as_ref().map(|nodes| Arc::clone(nodes).keep()).transpose();
    let _keeping = keeping.map_err(ControlError::Runtime)?;
    // Before there is a database: see `open_audit`.
    let own = || Records::open(&config.data_dir, &config.settings);
    let records = config.records.map_or_else(own, Ok).map_err(ControlError::Runtime)?;
    let journal = journal(&config.data_dir)?;
    let plane = match &nodes {
        Some(nodes) => Plane::lead(journal, config.settings, nodes),
        None if let Some(io) = config.test => {
            let test = io.server(clock, &config.settings);
            Plane::start_test(journal, config.settings, agent, test, attached_up)
        }
        None => Plane::start(journal, config.settings, agent, attached_up),
    };
    let plane = plane.map_err(ControlError::Start)?;
    let cloudwatch = CloudWatch::open(&config.data_dir, config.metrics_space);
    let cloudwatch = Arc::new(cloudwatch.map_err(ControlError::Metrics)?);
    let events = Events::start(&config.data_dir, &plane, &config.webhooks);
    let recorder = Recorder::start(&config.data_dir, plane.settings.record_days);
    let plane = plane.with_recording(recorder.recording()).with_scrub_in(config.data_dir);
    let plane = Arc::new(plane);
    let runtime = runtime().map_err(ControlError::Runtime)?;
    let sampling = Sampling::start(Arc::clone(&cloudwatch), Arc::clone(&plane), recorder.inbox());
    let api = Api::new(Arc::clone(&plane), credentials, config.endpoints, began);
    let api = Arc::new(api.with_metrics(cloudwatch).with_records(&records));
    let door = http::Door { listener, tls: config.tls };
    let served = runtime.block_on(http::serve(api, door, config.timeouts, ready, shutdown));
    // Waits for calls to the data plane that are still in progress.
    drop(runtime);
    drop(sampling);
    drop(recorder);
    let stopped = if is_last() {
        plane.stop().map_err(ControlError::Stop).inspect(|()| info!("stopped cleanly"))
    } else {
        Ok(())
    };
    drop(events);
    served.map_err(ControlError::Runtime)?;
    stopped
}

/// Returns the runtime of the API: one thread, and others for blocking work.
fn runtime() -> io::Result<tokio::runtime::Runtime> {
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    runtime.enable_all().max_blocking_threads(http::BLOCKING_THREADS_MAX).thread_name("control");
    runtime.build()
}

/// Returns whether an earlier server has made changes in a data folder. A node of a cluster has no
/// database, and has metrics once it has led.
fn is_used(data_dir: &Path) -> bool {
    [DATABASE_FILE_NAME, METRICS_FILE_NAME].iter().any(|name| data_dir.join(name).exists())
}

/// Opens the audit, before the database is. A warning says that it begins anew although the folder
/// was used.
fn open_audit(data_dir: &Path) -> Audit {
    let audit = Audit::open(data_dir);
    if is_used(data_dir) && audit.is_new() {
        let folder = data_dir.join(audit::FOLDER);
        let folder = folder.display();
        warn!(
            "{folder}: the audit begins anew with number 1, although the data folder is not new: \
             earlier records were removed, or an earlier version made none; to continue them, stop \
             the server and put a copy of that folder there"
        );
    }
    audit
}

/// Opens the journal of the data folder, accessible to its owner only.
fn open_journal(data_dir: &Path) -> Result<Box<dyn Journal>, ControlError> {
    let path = data_dir.join(DATABASE_FILE_NAME);
    private::prepare_database(&path).map_err(|error| ControlError::DataDir(path.clone(), error))?;
    let opened = SqliteJournal::open(&path);
    let journal = opened.map_err(|error| ControlError::Start(PlaneError::from(error)))?;
    Ok(Box::new(journal))
}

/// Number of attempts to lock. A lock may outlive its server by a moment: a child process that was
/// just forked holds it, too, until it executes another program.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

/// Locks the data folder: two servers on one folder would overwrite each other's state.
fn lock(data_dir: &Path) -> Result<File, ControlError> {
    let path = data_dir.join(LOCK_FILE_NAME);
    let io = |error| ControlError::DataDir(path.clone(), error);
    let file = private::open(&path).map_err(io)?;
    for _ in 0..LOCK_TRIES {
        match file.try_lock() {
            Ok(()) => return Ok(file),
            Err(TryLockError::WouldBlock) => clock::pause(LOCK_PAUSE),
            Err(TryLockError::Error(error)) => return Err(io(error)),
        }
    }
    Err(ControlError::InUse(data_dir.into()))
}
