//! The configuration of a server, and the order in which its parts start and stop.

use crate::calibration::{self, Record};
use crate::certificates::{Refresher, Watched};
use crate::cluster::{Cluster, member};
use crate::faults;
use crate::store_options::StoreOptions;
use crate::takeover_watch::Guard;
use crate::transport::{self, NbdListeners, Transport};
use crate::watchdog::{Parts, Watchdog};
use evenkeel_cli::calibrate::CalibrateWhen;
use evenkeel_cli::endpoint;
use evenkeel_cli::flags::{DataPlanePriority, Io};
use evenkeel_cli::store::{Bytes, StoreKind};
use evenkeel_client::output::{Failure, failed};
use evenkeel_control::credentials::{self, CredentialsError};
use evenkeel_control::{ControlConfig, Endpoint, Records, Settings, StoreKey, Timeouts};
use evenkeel_core::convert::saturating;
use evenkeel_core::feel::Latencies;
use evenkeel_core::qos::sharing::DeviceModel;
use evenkeel_core::qos::sharing::division::NodePart;
use evenkeel_core::units::ByteCount;
use evenkeel_engine::priority::Priority;
use evenkeel_engine::{Engine, EngineConfig, Recorder, UnixAccess};
use evenkeel_store::Pool;
use evenkeel_store::faulty::FaultyPool;
use evenkeel_store::folder::Folder;
use evenkeel_store::injected::{Feel, InjectedPool, Injector};
use evenkeel_store::memory::{self, MemoryPool};
use evenkeel_telemetry::events::webhook::Webhooks;
use evenkeel_tls::server::ServerTls;
use evenkeel_wire::agent::{Command, Reply};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, mpsc};
use tokio::sync::oneshot;

/// The configuration of a server.
#[derive(Clone, Debug)]
pub struct Config {
    /// Absolute, so that printed paths are valid in any folder.
    pub data_dir: PathBuf,
    /// Address of the API; port 0 takes a free port.
    pub listen: SocketAddr,
    /// Addresses of NBD over TCP.
    pub nbd_listen: Vec<SocketAddr>,
    /// TLS of the listeners, and which of them may be without.
    pub transport: Transport,
    /// Unix socket of NBD, if there is one.
    pub nbd_unix: Option<PathBuf>,
    /// The users that may use the unix socket.
    pub unix_access: UnixAccess,
    /// Settings of the control plane, without the store's key, which is read when the server
    /// starts.
    pub settings: Settings,
    /// Maximum rate of all background work, in MiB per second.
    pub background_mibps: u32,
    /// Maximum space of the volumes' metrics on disk.
    pub metrics_space: ByteCount,
    /// URLs to which events are posted.
    pub webhooks: Webhooks,
    /// Where the bytes of volumes are stored.
    pub store: StoreKind,
    /// Options of the store, apart from the data folder.
    pub store_options: StoreOptions,
    /// The cluster of which it is a node; `None` if it serves alone.
    pub cluster: Option<Cluster>,
    /// When the store is measured.
    pub calibrate: CalibrateWhen,
    /// Whether volumes are guaranteed what the calibration allows; otherwise they only have limits.
    pub guarantee: bool,
    /// How the data plane accesses disks and sockets.
    pub io: Io,
    /// Priority of the data plane's threads.
    pub priority: DataPlanePriority,
    /// Number of threads of the data plane, one per core.
    pub cores: u16,
    /// Receives a handle on the records of the data plane, if this server's dispatches are judged
    /// in this process.
    pub recorder: Option<mpsc::Sender<Recorder>>,
    /// Whether clients can change the clock of the API and inject faults; needs loopback addresses
    /// and no cluster.
    pub is_test: bool,
    /// The seed with which the volumes of a server for tests feel like those of EBS; `None` if they
    /// are as fast as the store.
    pub feel_seed: Option<u64>,
}

/// The addresses of a running server.
#[derive(Clone, Debug)]
pub struct Addresses {
    /// Address of the API.
    pub api: SocketAddr,
    /// Addresses of NBD over TCP.
    pub nbd: Vec<SocketAddr>,
    /// Addresses of NBD over TLS.
    pub nbd_tls: Vec<SocketAddr>,
}

impl Config {
    /// Checks that the addresses are free.
    fn may_listen(&self) -> Result<(), Failure> {
        let nbd = self.nbd_listen.iter().chain(&self.transport.nbd_listen);
        [self.listen].into_iter().chain(nbd.copied()).try_for_each(may_listen)
    }

    /// Has the certificate read again when its files change.
    pub(crate) fn watch(&self, tls: &Arc<ServerTls>) -> Result<Refresher, Failure> {
        let shown = self.transport.encrypted(self.listen);
        Refresher::start(Watched::new(Arc::clone(tls), shown))
    }

    /// Returns the feel of the volumes of a server for tests.
    fn feel(&self) -> Option<Feel> {
        let latencies = Latencies::as_of(self.settings.rules.date());
        self.feel_seed.map(|seed| Feel::new(latencies, seed))
    }

    /// Writes down how other verbs on this machine reach the API.
    pub(crate) fn note(&self, api: SocketAddr) {
        let scheme = self.transport.scheme();
        let noted = endpoint::note(&self.data_dir, api, &self.settings.region, scheme);
        if let Err(error) = noted {
            tracing::warn!(%error, "other verbs need the address {api} as --endpoint");
        }
    }
}

/// Returns the number of cores that this process may use.
pub fn cores() -> u16 {
    let count = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    saturating::<_, u16>(count)
}

/// Checks that the credentials of a data folder can be read, if there are any.
fn check_credentials(data_dir: &Path) -> Result<(), Failure> {
    let kept = credentials::load_if_any(data_dir);
    kept.map(drop).map_err(|error| unreadable(data_dir, error))
}

/// Returns the failure of reading the credentials of a data folder.
fn unreadable(data_dir: &Path, error: CredentialsError) -> Failure {
    let is_another_users = matches!(
        &error,
        CredentialsError::Io(_, error) if error.kind() == ErrorKind::PermissionDenied
    );
    let failure = failed(error);
    if !is_another_users {
        return failure;
    }
    let user = rustix::process::geteuid().as_raw();
    let folder = data_dir.display();
    failure.hint(format!(
        "the server runs as user {user}, and the folder must be that user's: \
         chown -R {user} {folder}"
    ))
}

/// Serves until `shutdown` resolves, then stops in the order that preserves all guarantees: first
/// the API, so that balances are saved exactly, then the data plane. `is_stopped` becomes true
/// before `shutdown` resolves, so that a server that is to stop does not finish its start first.
///
/// # Errors
/// If an address, the data folder or the store cannot be used, or if a part of the data plane fails
/// while it runs.
pub fn run(
    config: &Config,
    is_stopped: &AtomicBool,
    ready: impl FnOnce(&Addresses),
    shutdown: impl Future<Output = ()>,
) -> Result<(), Failure> {
    raise_open_files();
    // Before anything is opened or measured.
    config.transport.check(config.listen, &config.nbd_listen)?;
    let tls = config.transport.open()?;
    if let Some(cluster) = &config.cluster {
        return member::run(config, (cluster, tls), is_stopped, ready, shutdown);
    }
    check_credentials(&config.data_dir)?;
    let (pool, _folder) = open_pool(&config.store, &config.store_options, &config.data_dir)?;
    // Before the measurement, which is useless if a port is in use or a priority is refused.
    config.may_listen()?;
    Priority::from(config.priority).granted().map_err(failed)?;
    let calibration = calibration::at_start(config, &*pool, is_stopped)?;
    if is_stopped.load(Ordering::Acquire) {
        // Nothing that must be closed is open yet.
        return Ok(());
    }
    let injector = Injector::default();
    let feel = config.feel();
    let pool = if config.is_test { with_faults(pool, &injector, feel.clone()) } else { pool };
    let guarded = Arc::clone(&pool);
    let engine = data_plane(config, pool, calibration)?;
    let records = records(config, &engine)?;
    let nbd = engine.tcp_addresses();
    let nbd_tls = NbdListeners::bind(&config.transport, tls.as_ref())?;
    let refresher = tls.as_ref().map(|tls| config.watch(tls)).transpose()?;
    let mut control = control_config(config, &nbd, (tls, nbd_tls.addresses()))?;
    control.records = Some(Arc::clone(&records));
    control.test = config.is_test.then(|| faults::executed_by(injector, feel));
    let watchdog = Watchdog::start()?;
    let mut failure = None;
    let ready = |api| {
        watchdog.watch(Parts { data_plane: Some(engine.agent()), api: Some(api) });
        config.transport.warn(api, &nbd);
        config.note(api);
        ready(&Addresses { api, nbd, nbd_tls: nbd_tls.addresses().to_vec() });
    };
    let (fail, fails) = failing();
    engine.when_failed(fail.clone());
    let guard = Guard::over(guarded, fail.clone())?;
    let stops = async {
        stop_or_failure(shutdown, fails, &mut failure).await;
        // The service manager has other bounds for the time of a stop.
        watchdog.watch(Parts::default());
        // Before the control plane closes volumes: a client that reconnects then would get the
        // answer that there is no such export, and give up.
        engine.close_doors();
        nbd_tls.close_doors();
    };
    let attached_up = || {
        engine.open_doors();
        if let Err(error) = nbd_tls.open(transport::data_plane_of(&engine), config.cores) {
            fail(error.message);
        }
    };
    let result = evenkeel_control::run(control, engine.agent(), attached_up, ready, stops);
    let result = result.map_err(failed);
    drop(guard);
    engine.shutdown();
    // Connections end with those of the data plane. A file system may hold up the refresher.
    drop((nbd_tls, refresher, records));
    outcome(result, failure)
}

/// Opens the audit. Has the data plane report to it the connections that it accepts, and its
/// dispatches to the process in which they are judged, if there is one. The audit must be dropped
/// after the data plane.
pub fn records(config: &Config, engine: &Engine) -> Result<Arc<Records>, Failure> {
    // The receiver may be gone, which is no reason not to serve.
    let _ = config.recorder.as_ref().map(|recorder| recorder.send(engine.recorder()));
    let records = Records::open(&config.data_dir, &config.settings).map_err(failed)?;
    let visits = records.visits();
    engine.observe(Box::new(move |visit| visits.note(visit)));
    Ok(records)
}

/// Starts the data plane, which answers no request before [`Engine::open_doors`]: every attached
/// volume is up then.
pub fn data_plane(
    config: &Config,
    pool: Arc<dyn Pool>,
    calibration: Option<Record>,
) -> Result<Engine, Failure> {
    let engine = Engine::start_closed(EngineConfig {
        cores: config.cores,
        io: config.io.into(),
        priority: config.priority.into(),
        tcp: config.nbd_listen.clone(),
        unix: config.nbd_unix.clone(),
        unix_access: config.unix_access.clone(),
        pool,
    })
    .map_err(failed)?;
    told(&engine, Command::SetBackground(ByteCount(u64::from(config.background_mibps) << 20)))?;
    if let Some(record) = calibration {
        let capacity = record.capacity(config.cores);
        engine.set_capacity(match &config.cluster {
            Some(cluster) => cluster.with_network(capacity),
            None => capacity,
        });
        // A store in memory completes at once, so requests never queue in it and cannot be
        // reordered.
        if config.store.has_device() {
            share_device(&engine, &record.calibration().device_model())?;
        }
    }
    Ok(engine)
}

/// Returns a function by which several parts of the server report failures, and the receiver of the
/// first report.
fn failing() -> (impl Fn(String) + Clone + Send + 'static, oneshot::Receiver<String>) {
    let (failures, fails) = oneshot::channel();
    let failures = Arc::new(Mutex::new(Some(failures)));
    let fail = move |what| {
        let first = failures.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(first.map(|failures: oneshot::Sender<String>| failures.send(what)));
    };
    (fail, fails)
}

/// Checks that the address can be bound now. If another program takes it afterwards, the later bind
/// fails.
fn may_listen(address: SocketAddr) -> Result<(), Failure> {
    free(address).map(drop)
}

/// Returns the address with a port; a free one if that was requested.
pub fn free(address: SocketAddr) -> Result<SocketAddr, Failure> {
    let bound = TcpListener::bind(address).and_then(|listener| listener.local_addr());
    bound.map_err(|error| {
        Failure::new(format!(
            "cannot listen on {address}: {error}; choose another address or stop the program \
             that uses it"
        ))
    })
}

/// Returns the configuration of the control plane for a data plane that listens at `nbd`, and over
/// TLS at `nbd_tls`.
pub fn control_config(
    config: &Config,
    nbd: &[SocketAddr],
    (tls, nbd_tls): (Option<Arc<ServerTls>>, &[SocketAddr]),
) -> Result<ControlConfig, Failure> {
    let tcp = nbd.iter().copied().map(Endpoint::NbdTcp);
    let encrypted = nbd_tls.iter().copied().map(Endpoint::NbdTls);
    let unix = config.nbd_unix.iter().cloned().map(Endpoint::NbdUnix);
    let key = config.store_options.keys()?.map(|keys| StoreKey { id: keys.id() });
    Ok(ControlConfig {
        data_dir: config.data_dir.clone(),
        listen: config.listen,
        tls,
        endpoints: tcp.chain(encrypted).chain(unix).collect(),
        settings: Settings { key, ..config.settings.clone() },
        metrics_space: config.metrics_space,
        webhooks: config.webhooks.clone(),
        timeouts: Timeouts::default(),
        records: None,
        test: None,
    })
}

/// Resolves when the server is to stop, or when the data plane fails; the failure is stored in
/// `failure`.
async fn stop_or_failure(
    shutdown: impl Future<Output = ()>,
    fails: oneshot::Receiver<String>,
    failure: &mut Option<String>,
) {
    let fails = async {
        match fails.await {
            Ok(what) => what,
            // The sender is gone, so there will be no failure.
            Err(_) => std::future::pending().await,
        }
    };
    tokio::select! {
        () = shutdown => {}
        what = fails => *failure = Some(what),
    }
}

/// Returns the outcome of the server. If a part of the data plane failed, the control plane cannot
/// stop cleanly, so only the first failure is returned.
fn outcome(result: Result<(), Failure>, failure: Option<String>) -> Result<(), Failure> {
    let Some(what) = failure else { return result };
    if let Err(error) = result {
        tracing::warn!("{error}");
    }
    Err(has_failed(&what))
}

/// Returns the failure for a part of the data plane that has failed.
pub fn has_failed(what: &str) -> Failure {
    Failure::new(format!(
        "{what}; the server stops, so that no client waits for a volume that is not served: \
         volumes, data and credit balances are kept, start it again"
    ))
}

/// Makes volumes share the device by their reservations from now on.
fn share_device(engine: &Engine, model: &DeviceModel) -> Result<(), Failure> {
    told(engine, Command::Calibrated(*model))
}

/// Leaves the device to the other nodes that share it, until a leader assigns a part to this one.
pub fn share_with_nodes(engine: &Engine) {
    engine.agent().call(Command::Divide(Some(NodePart::LEAST)));
}

fn told(engine: &Engine, command: Command) -> Result<(), Failure> {
    match engine.agent().call(command) {
        Reply::Failed(failure) => Err(Failure::new(failure.message)),
        _ => Ok(()),
    }
}

/// Opens the pool, and the lock that keeps a second server out of the data folder until it is
/// dropped. The stores on disk have their own lock.
///
/// # Errors
/// If the store cannot be opened, or another process uses it.
pub fn open_pool(
    store: &StoreKind,
    options: &StoreOptions,
    data_dir: &Path,
) -> Result<(Arc<dyn Pool>, Option<Folder>), Failure> {
    let (pool, folder): (Arc<dyn Pool>, _) = match store.bytes {
        Bytes::Local => (Arc::new(options.open_local(data_dir)?), None),
        Bytes::Rbd => (Arc::new(options.open_rbd(data_dir)?), None),
        Bytes::Memory => {
            let folder = Folder::claim(data_dir, memory::KIND).map_err(failed)?;
            (Arc::new(MemoryPool::new()), Some(folder))
        }
    };
    Ok((behind(pool, store), folder))
}

/// Returns the pool with the faults and the feel of a server for tests in front of it.
fn with_faults(pool: Arc<dyn Pool>, injector: &Injector, feel: Option<Feel>) -> Arc<dyn Pool> {
    Arc::new(InjectedPool::new(pool, injector.clone(), feel))
}

/// Returns the pool behind the configured simulated device, if there is one.
fn behind(pool: Arc<dyn Pool>, store: &StoreKind) -> Arc<dyn Pool> {
    match &store.device {
        Some(device) => Arc::new(FaultyPool::new(pool, device)),
        None => pool,
    }
}

/// Raises the limit of open files: every connection and every volume needs a descriptor, and the
/// soft limit of a shell is meant for programs that use `select`. The hard limit is the operator's.
fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if let Err(error) = setrlimit(Resource::Nofile, raised) {
        tracing::warn!(%error, "the limit of open files stays as it is; see `evenkeel doctor`");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_client::output::Exit;

    fn ends(
        shutdown: impl Future<Output = ()>,
        fails: oneshot::Receiver<String>,
    ) -> Option<String> {
        let mut failure = None;
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(stop_or_failure(shutdown, fails, &mut failure));
        failure
    }

    #[test]
    fn a_folder_of_another_user_names_the_user_that_needs_it() {
        let path = PathBuf::from("/srv/e/credentials");
        let error = CredentialsError::Io(path, ErrorKind::PermissionDenied.into());
        let failure = unreadable(Path::new("/srv/e"), error);
        let user = rustix::process::geteuid().as_raw();
        assert!(failure.hint.unwrap().ends_with(&format!("chown -R {user} /srv/e")));
        let malformed = CredentialsError::Malformed("/srv/e/credentials".into(), "no key".into());
        assert_eq!(unreadable(Path::new("/srv/e"), malformed).hint, None);
    }

    #[test]
    fn a_failure_of_the_data_plane_ends_the_server_and_is_its_outcome() {
        let (failures, fails) = oneshot::channel();
        failures.send("the data plane's thread core-1 has ended".to_owned()).unwrap();
        let failure = ends(std::future::pending(), fails);
        let clean = outcome(Ok(()), failure.clone()).unwrap_err();
        assert!(clean.message.starts_with("the data plane's thread core-1 has ended; the server"));
        let unclean = outcome(Err(Failure::new("not stopped cleanly".to_owned())), failure);
        let unclean = unclean.unwrap_err();
        assert_eq!((unclean.exit, &unclean.message), (Exit::Failed, &clean.message));
        // The server stops: the end of the threads is no failure then.
        let (failures, fails) = oneshot::channel();
        drop(failures);
        assert_eq!(ends(std::future::ready(()), fails), None);
        assert!(outcome(Ok(()), None).is_ok());
    }
}
