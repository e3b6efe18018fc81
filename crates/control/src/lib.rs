//! The control plane: what exists, kept in a database, managed through the EC2 API.
//!
//! | file | what it knows |
//! | --- | --- |
//! | [`model`] | what exists and what may be done with it; pure |
//! | [`reconcile`] | what the data plane is to be told; pure |
//! | [`capacity`] | what the data plane says may be sold, and what the log is told of it |
//! | `space` | what it says of the room for bytes at rest, and what the log is told of it |
//! | [`credits`] | what balances are worth after a stop; pure |
//! | [`journal`] | where decisions are kept: SQLite's file, or memory |
//! | [`plane`] | the order of things: decide, store, tell, store, reply |
//! | [`api`] | EC2's actions, one file each |
//! | `metrics` | what `/metrics` tells |
//! | `http` | the listener |
//!
//! It meets the data plane only in [`evenkeel_wire::agent`], and the data plane keeps its promise
//! while this crate is not running.
#![deny(missing_docs)]

pub mod api;
pub mod capacity;
mod clock;
pub mod credentials;
pub mod credits;
mod http;
pub mod journal;
mod metrics;
pub mod model;
pub mod plane;
mod private;
pub mod reconcile;
mod space;

use std::collections::BTreeMap;
use std::fmt;
use std::fs::{File, TryLockError};
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use evenkeel_core::qos::admission::{Figure, Oversell};
use evenkeel_core::volume::{Rules, VolumeType};
use evenkeel_wire::agent::Agent;
use tracing::info;

pub use http::{CONNECTIONS_MAX, Timeouts};
pub use model::{ModifyPolicy, SpaceOversell};

use crate::api::Api;
use crate::credentials::CredentialsError;
use crate::journal::Journal;
use crate::journal::sqlite::{self, SqliteJournal};
use crate::model::Settings;
use crate::plane::{Plane, PlaneError};

/// Name of the database in the data folder.
pub const DATABASE_FILE_NAME: &str = "control.db";
/// Held locked while a server runs on the data folder.
const LOCK_FILE_NAME: &str = "control.lock";

/// How to run.
#[derive(Clone, Debug)]
pub struct ControlConfig {
    /// Where `control.db` and `credentials` are; must exist.
    pub data_dir: PathBuf,
    /// Where the API listens; port 0 takes any free one.
    pub listen: SocketAddr,
    /// Where the data plane is reached: whoever asks is told so.
    pub endpoints: Vec<Endpoint>,
    /// The region clients must sign for.
    pub region: String,
    /// The only availability zone.
    pub zone: String,
    /// The rulebook in force.
    pub rules: &'static Rules,
    /// How modifications are rationed.
    pub modify_policy: ModifyPolicy,
    /// What the operator says may be sold; `None` leaves it to what is measured.
    pub figure: Option<Figure>,
    /// Types that are sold more than once, and how many times over.
    pub oversell: BTreeMap<VolumeType, Oversell>,
    /// How many times over space for bytes at rest is sold.
    pub space_oversell: SpaceOversell,
    /// How long clients of the API may dawdle.
    pub timeouts: Timeouts,
}

/// Where clients of the data plane connect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Endpoint {
    /// NBD over TCP; an unspecified address stands for all of the machine's.
    NbdTcp(SocketAddr),
    /// NBD over a unix socket.
    NbdUnix(PathBuf),
}

/// Why the control plane could not run, or could not stop cleanly.
#[derive(Debug)]
pub enum ControlError {
    /// Another server runs on the same data folder.
    InUse(PathBuf),
    /// A file of the data folder cannot be used.
    DataDir(PathBuf, io::Error),
    /// The access key cannot be had.
    Credentials(CredentialsError),
    /// The volumes could not be brought up.
    Start(PlaneError),
    /// The address cannot be listened on.
    Listen(SocketAddr, io::Error),
    /// The runtime could not be made.
    Runtime(io::Error),
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
            Self::Credentials(error) => error.fmt(f),
            Self::Start(error) => write!(f, "the control plane cannot start: {error}"),
            Self::Listen(address, error) => write!(
                f,
                "the API cannot listen on {address}: {error}; choose another address or stop who \
                 has it"
            ),
            Self::Runtime(error) => write!(f, "the API's runtime cannot start: {error}"),
            Self::Stop(error) => write!(
                f,
                "not stopped cleanly: {error}; credit balances will be reduced at the next start"
            ),
        }
    }
}

impl std::error::Error for ControlError {}

/// Runs the control plane until `shutdown` is done. Blocks. `ready` is told the real address once
/// every volume is up and requests are answered.
///
/// # Errors
/// See [`ControlError`].
pub fn run(
    config: ControlConfig,
    agent: Arc<dyn Agent>,
    ready: impl FnOnce(SocketAddr),
    shutdown: impl Future<Output = ()>,
) -> Result<(), ControlError> {
    let _lock = lock(&config.data_dir)?;
    // A server that ran on this folder before accepts nothing any more. Where there are no keys yet
    // there was none.
    let began = config.data_dir.join(credentials::FILE_NAME).exists().then(clock::now);
    let credentials =
        credentials::load_or_create(&config.data_dir).map_err(ControlError::Credentials)?;
    let settings = Settings {
        region: config.region,
        zone: config.zone,
        rules: config.rules,
        modify_policy: config.modify_policy,
        figure: config.figure,
        oversell: config.oversell,
        space_oversell: config.space_oversell,
    };
    // Before anything else is touched: the most likely thing to fail.
    let listener =
        http::bind(config.listen).map_err(|error| ControlError::Listen(config.listen, error))?;
    let journal = open_journal(&config.data_dir)?;
    let plane = Plane::start(journal, settings, agent).map_err(ControlError::Start)?;
    let plane = Arc::new(plane);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(http::BLOCKING_THREADS_MAX)
        .thread_name("control")
        .build()
        .map_err(ControlError::Runtime)?;
    let api = Arc::new(Api::new(Arc::clone(&plane), credentials, config.endpoints, began));
    let served = runtime.block_on(http::serve(api, listener, config.timeouts, ready, shutdown));
    // Waits for calls of the data plane that are still under way.
    drop(runtime);
    let stopped = plane.stop().map_err(ControlError::Stop);
    served.map_err(ControlError::Runtime)?;
    stopped.inspect(|()| info!("stopped cleanly"))
}

/// The journal of the data folder, its owner's only.
fn open_journal(data_dir: &Path) -> Result<Box<dyn Journal>, ControlError> {
    let path = data_dir.join(DATABASE_FILE_NAME);
    sqlite::make_private(&path).map_err(|error| ControlError::DataDir(path.clone(), error))?;
    let opened = SqliteJournal::open(&path);
    let journal = opened.map_err(|error| ControlError::Start(PlaneError::from(error)))?;
    Ok(Box::new(journal))
}

/// A lock may outlive its server by a moment: a child that whoever ran the server has just forked
/// holds it, too, until it becomes another program.
const LOCK_TRIES: u32 = 20;
const LOCK_PAUSE: std::time::Duration = std::time::Duration::from_millis(10);

/// Two servers on one folder would overwrite each other's state.
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
