//! A data plane in a map, a server on top of it, and a client that uses plain HTTP.
#![allow(dead_code, clippy::unwrap_used)] // every test file uses its own part; tests may panic

pub mod random;

use std::collections::{BTreeMap, BTreeSet};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpStream};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::thread::JoinHandle;
use std::time::{Duration, SystemTime};

use evenkeel_control::api::Api;
use evenkeel_control::api::error::ApiError;
use evenkeel_control::credentials::{self, Credentials};
use evenkeel_control::faults::IoFaults;
use evenkeel_control::journal::sqlite::SqliteJournal;
use evenkeel_control::model::{Begins, Command as Change, Settings, Tags};
use evenkeel_control::plane::Plane;
use evenkeel_control::{
    ControlConfig, ControlError, DATABASE_FILE_NAME, Endpoint, TestIo, Timeouts,
};
use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::io_fault::IoFault;
use evenkeel_core::qos::Exceeded;
use evenkeel_core::qos::contract::Contract;
use evenkeel_core::qos::pacing::{Balances, Limit, Pacing};
use evenkeel_core::qos::sharing::InstanceCounters;
use evenkeel_core::units::ByteCount;
use evenkeel_core::volume::{VolumeRequest, VolumeType};
use evenkeel_telemetry::events::webhook::Webhooks;
use evenkeel_wire::agent::{
    Agent, Answered, BackgroundReport, Bytes, Capacity, Command, CreditReport, Failed, FailedKind,
    HostReport, HostState, IoErrors, NewSnapshot, Reply, Report, Space, StoreHealth,
    StoredSnapshot, StoredVolume, UNIT_BYTES, Units, UnitsWanted, Verified, VolumeReport,
    VolumeState,
};
use evenkeel_wire::aws::query;
use evenkeel_wire::aws::sigv4::{self, Scope};
use evenkeel_wire::aws::xml::Element;

pub const REGION: &str = "local-1";

/// The data plane: stores what it receives, fails on request, and follows a script if it has one.
#[derive(Default)]
pub struct FakeAgent {
    state: Mutex<FakeState>,
    script: Option<Script>,
}

/// Answers a command in place of the agent. It may pass commands to [`FakeAgent::execute`].
type Script = Box<dyn Fn(&FakeAgent, Command) -> Reply + Send + Sync>;

#[derive(Default)]
pub struct FakeState {
    /// Volumes as last applied, with their present balances.
    pub volumes: BTreeMap<VolumeId, VolumeState>,
    /// Hosts with limits as last applied, with their present balances.
    pub hosts: BTreeMap<InstanceId, HostState>,
    /// The balances reported at the last request for changed ones.
    reported: BTreeMap<VolumeId, Balances>,
    /// Stored bytes that belong to no volume.
    pub unowned: BTreeMap<VolumeId, ByteCount>,
    /// The units of snapshots, those of parents included.
    pub units: BTreeMap<SnapshotId, BTreeMap<u64, Vec<u8>>>,
    /// Stored snapshots.
    pub snapshots: BTreeMap<SnapshotId, StoredSnapshot>,
    /// Verified objects, with the place at which each call began.
    pub verified: Vec<(String, u64)>,
    /// Damaged data: an id, and a part of it.
    pub rotten: Option<(String, u64)>,
    /// Whether new snapshots stay incomplete.
    pub snapshots_pend: bool,
    /// Whether the store does not support snapshots.
    pub no_snapshots: bool,
    /// Data of each volume, if it is known.
    pub filled: BTreeMap<VolumeId, ByteCount>,
    /// Space for stored bytes.
    pub space: Option<Space>,
    /// The capacity that may be sold.
    pub capacity: Capacity,
    /// All commands except reports and capacity.
    pub log: Vec<Command>,
    /// Volumes with unreachable bytes.
    pub damaged: BTreeSet<VolumeId>,
    /// Failure of the next command that is not a report.
    pub fail_next: Option<FailedKind>,
    /// Failure of all commands.
    pub fail_always: Option<FailedKind>,
    /// Volumes of which a flush failed.
    pub flush_failed: BTreeSet<VolumeId>,
    /// Seconds in which volumes did not get their provisioned performance.
    pub missed: BTreeMap<VolumeId, u64>,
    /// Whether volumes execute commands without an answer.
    pub silent: bool,
}

impl FakeState {
    fn report(&self) -> Report {
        let report = |state: &VolumeState| VolumeReport {
            id: state.id,
            balances: state.balances,
            connections: 0,
            queued: 0,
            in_store: 0,
            operations: 0,
            bytes_read: 0,
            bytes_written: 0,
            flushes: 0,
            answered: Answered::default(),
            exceeded: Exceeded::default(),
            errors: IoErrors {
                flush_failed: self.flush_failed.contains(&state.id),
                ..IoErrors::default()
            },
            contract: match self.missed.get(&state.id).copied() {
                Some(missed) => Contract { seconds: missed, missed },
                None => Contract::default(),
            },
        };
        let host = |state: &HostState| HostReport {
            id: state.id,
            balances: state.balances,
            counters: InstanceCounters::default(),
        };
        Report {
            volumes: self.volumes.values().map(report).collect(),
            hosts: self.hosts.values().map(host).collect(),
        }
    }

    fn stored_volumes(&self) -> Vec<StoredVolume> {
        let is_encrypted = |id| self.volumes.get(&id).is_some_and(|held| held.is_encrypted);
        let stored = |(id, size)| StoredVolume { id, size, is_encrypted: is_encrypted(id) };
        self.stored().into_iter().map(stored).collect()
    }

    fn stored(&self) -> Vec<(VolumeId, ByteCount)> {
        let held = self.volumes.values().map(|held| (held.id, held.size));
        let all: BTreeMap<_, _> = held.chain(self.unowned.clone()).collect();
        all.into_iter().collect()
    }

    /// Executes a command about snapshots; `None` for any other.
    fn snapshot_command(&mut self, command: &Command) -> Option<Reply> {
        Some(match command {
            Command::Snapshots
            | Command::SnapshotsOf(_)
            | Command::Snapshot(..)
            | Command::SnapshotSet(_)
                if self.no_snapshots =>
            {
                failed(FailedKind::Unsupported)
            }
            Command::Snapshots => self.stored_snapshots(|_| true),
            Command::SnapshotsOf(ids) => self.stored_snapshots(|id| ids.contains(id)),
            &Command::Snapshot(of, id) => {
                let size = self.volumes[&of].size;
                let is_complete = !self.snapshots_pend;
                let volume = Some(of);
                let data = ByteCount(4_096);
                let is_encrypted = self.volumes[&of].is_encrypted;
                let made = StoredSnapshot { id, volume, size, data, is_complete, is_encrypted };
                self.snapshots.insert(id, made);
                Reply::Done
            }
            Command::SnapshotSet(set) => {
                set.iter().for_each(|(of, id)| {
                    self.snapshot_command(&Command::Snapshot(*of, *id));
                });
                Reply::Done
            }
            Command::DeleteSnapshot(id) => {
                self.snapshots.remove(id);
                self.units.remove(id);
                Reply::Done
            }
            &Command::StartSnapshot(new) => self.start_snapshot(new),
            Command::PutSnapshot(id, unit, bytes) => match self.snapshots.get(id) {
                Some(found) if !found.is_complete => {
                    self.units.entry(*id).or_default().insert(*unit, bytes.0.clone());
                    Reply::Done
                }
                _ => failed(FailedKind::NotFound),
            },
            Command::CompleteSnapshot(id) => match self.snapshots.get_mut(id) {
                Some(found) => {
                    found.is_complete = true;
                    found.data = ByteCount(self.units[id].len() as u64 * UNIT_BYTES);
                    Reply::Done
                }
                None => failed(FailedKind::NotFound),
            },
            Command::SnapshotUnits(UnitsWanted { id, older, first, max }) => {
                let empty = BTreeMap::new();
                let here = self.units.get(id).unwrap_or(&empty);
                let there = older.and_then(|older| self.units.get(&older)).unwrap_or(&empty);
                let all: BTreeSet<u64> = here.keys().chain(there.keys()).copied().collect();
                let differs = |unit: &u64| here.get(unit) != there.get(unit);
                let mut units: Vec<u64> = all.range(first..).copied().filter(differs).collect();
                let next = units.get(*max as usize).copied();
                units.truncate(*max as usize);
                Reply::Units(Units { units, next })
            }
            Command::ReadSnapshot(id, unit) => {
                let found = self.units.get(id).and_then(|units| units.get(unit));
                Reply::Unit(found.cloned().map(Bytes))
            }
            Command::CreateFrom(_, of) if !self.snapshots.contains_key(of) => {
                failed(FailedKind::NotFound)
            }
            _ => return None,
        })
    }

    fn stored_snapshots(&self, is_wanted: impl Fn(&SnapshotId) -> bool) -> Reply {
        let found = self.snapshots.values().filter(|stored| is_wanted(&stored.id));
        Reply::Snapshots(found.copied().collect())
    }

    fn start_snapshot(&mut self, new: NewSnapshot) -> Reply {
        let NewSnapshot { id, size, parent, is_encrypted } = new;
        let begun = parent.and_then(|parent| self.units.get(&parent).cloned());
        self.units.entry(id).or_insert(begun.unwrap_or_default());
        let volume = None;
        let data = ByteCount(0);
        let is_complete = false;
        let of_parent = parent.and_then(|parent| self.snapshots.get(&parent));
        let is_encrypted = of_parent.map_or(is_encrypted, |parent| parent.is_encrypted);
        let new = StoredSnapshot { id, volume, size, data, is_complete, is_encrypted };
        self.snapshots.entry(id).or_insert(new);
        Reply::Done
    }

    fn set_balances(&mut self, id: VolumeId, balances: Balances) -> Reply {
        let Some(held) = self.volumes.get_mut(&id) else {
            return failed(FailedKind::NotFound);
        };
        let either = Balances {
            operations: balances.operations.or(held.balances.operations),
            bytes: balances.bytes.or(held.balances.bytes),
        };
        held.balances = clamped(either, &held.pacing, 0);
        held.unleased = leased(held.unleased, held.unleased, held.balances);
        Reply::Done
    }

    fn lease(&mut self, asked: &CreditReport) -> CreditReport {
        let mut after = CreditReport::default();
        for (id, asked) in &asked.volumes {
            if let Some(held) = self.volumes.get_mut(id) {
                held.unleased = leased(*asked, held.unleased, held.balances);
                after.volumes.push((*id, held.unleased));
            }
        }
        for (id, asked) in &asked.hosts {
            if let Some(held) = self.hosts.get_mut(id) {
                held.unleased = leased(*asked, held.unleased, held.balances);
                after.hosts.push((*id, held.unleased));
            }
        }
        after
    }

    /// Returns the answer to a command that is not logged.
    fn question(&mut self, command: &Command) -> Option<Reply> {
        Some(match *command {
            Command::Report => Reply::Report(self.report()),
            Command::ReportOf(ref ids) => {
                let mut volumes = self.report().volumes;
                volumes.retain(|report| ids.contains(&report.id));
                Reply::Report(Report { volumes, hosts: vec![] })
            }
            Command::Balances => Reply::Balances(self.credit_report()),
            Command::Stored => Reply::Stored(self.stored_volumes()),
            Command::Space => Reply::Space(self.space),
            Command::Background => Reply::Background(BackgroundReport::default()),
            Command::StoreHealth => Reply::StoreHealth(StoreHealth::default()),
            Command::Verify(id, _) if !self.volumes.contains_key(&id) => {
                failed(FailedKind::NotFound)
            }
            Command::Verify(id, at) => self.verified(&id.to_string(), at),
            Command::VerifySnapshot(id, at) => self.verified(&id.to_string(), at),
            Command::VerifyStore(at) => self.verified("pool", at),
            Command::Filled(ref ids) => {
                let known = ids.iter().filter_map(|id| Some((*id, *self.filled.get(id)?)));
                Reply::Filled(known.collect())
            }
            Command::Capacity => Reply::Capacity(self.capacity.clone()),
            Command::Snapshots | Command::SnapshotsOf(_) => return self.snapshot_command(command),
            _ => return None,
        })
    }

    /// Verifies a part of 10 MiB; each object has three.
    fn verified(&mut self, id: &str, at: u64) -> Reply {
        self.verified.push((id.to_owned(), at));
        let is_rotten = self.rotten.as_ref() == Some(&(id.to_owned(), at));
        Reply::Verified(Verified {
            next: (at < 2).then_some(at + 1),
            bytes: ByteCount(10 << 20),
            rotten: if is_rotten { vec![at * 4_096, 77 * 4_096] } else { Vec::new() },
        })
    }

    /// Returns the balances of volumes that have changed since the last call.
    fn credit_report(&mut self) -> CreditReport {
        let volumes: BTreeMap<_, _> =
            self.volumes.values().map(|held| (held.id, held.balances)).collect();
        let reported = std::mem::replace(&mut self.reported, volumes.clone());
        let moved = |(id, balances): &(_, _)| reported.get(id) != Some(balances);
        CreditReport {
            volumes: volumes.into_iter().filter(moved).collect(),
            hosts: self.hosts.values().map(|held| (held.id, held.balances)).collect(),
        }
    }
}

impl FakeAgent {
    pub fn with<T>(&self, work: impl FnOnce(&mut FakeState) -> T) -> T {
        work(&mut self.state.lock().unwrap())
    }

    /// Creates an agent whose script answers every command.
    pub fn scripted(script: impl Fn(&Self, Command) -> Reply + Send + Sync + 'static) -> Arc<Self> {
        Arc::new(Self { script: Some(Box::new(script)), ..Self::default() })
    }
}

fn failed(kind: FailedKind) -> Reply {
    Reply::Failed(Failed { kind, message: format!("simulated failure: {kind:?}") })
}

/// Returns the unleased part of these balances after a lease that leaves `asked` unleased.
fn leased(asked: Balances, before: Balances, balances: Balances) -> Balances {
    let one = |asked: Option<u64>, before: Option<u64>, balance: Option<u64>| {
        asked.map(|asked| asked.min(balance.unwrap_or(0))).or(before)
    };
    Balances {
        operations: one(asked.operations, before.operations, balances.operations),
        bytes: one(asked.bytes, before.bytes, balances.bytes),
    }
}

/// Returns the balances of a volume whose limits change: never more than before, never above the
/// capacity.
fn clamped(balances: Balances, pacing: &Pacing, unnamed: u64) -> Balances {
    let one = |limit: Option<Limit>, balance: Option<u64>| {
        let capacity = limit?.credit?.capacity;
        Some(balance.unwrap_or(unnamed).min(capacity))
    };
    Balances {
        operations: one(pacing.operations, balances.operations),
        bytes: one(pacing.bytes, balances.bytes),
    }
}

impl Agent for FakeAgent {
    fn call(&self, command: Command) -> Reply {
        match &self.script {
            Some(script) => script(self, command),
            None => self.execute(command),
        }
    }
}

impl FakeAgent {
    /// Executes a command, whatever the script.
    pub fn execute(&self, command: Command) -> Reply {
        let mut state = self.state.lock().unwrap();
        if let Some(kind) = state.fail_always {
            return failed(kind);
        }
        if let Some(reply) = state.question(&command) {
            return reply;
        }
        state.log.push(command.clone());
        if let Some(kind) = state.fail_next.take() {
            return failed(kind);
        }
        if state.silent {
            return failed(FailedKind::Unanswered);
        }
        if let Command::Create(asked)
        | Command::CreateFrom(asked, _)
        | Command::Apply(asked)
        | Command::Grow(asked, _) = &command
            && state.damaged.contains(&asked.id)
        {
            return failed(FailedKind::Damaged);
        }
        if let Some(reply) = state.snapshot_command(&command) {
            return reply;
        }
        match command {
            Command::Create(mut new)
            | Command::CreateFrom(mut new, _)
            | Command::Apply(mut new)
            | Command::Grow(mut new, _) => {
                let held = state.volumes.get(&new.id);
                if held.is_some_and(|held| held.size > new.size) {
                    return failed(FailedKind::Refused);
                }
                let (balances, unnamed) = match held {
                    Some(held) => (held.balances, 0),
                    None => (new.balances, u64::MAX),
                };
                new.balances = clamped(balances, &new.pacing, unnamed);
                state.reported.remove(&new.id); // what was just applied is reported
                state.volumes.insert(new.id, new);
            }
            Command::Delete(id) => drop(state.volumes.remove(&id)),
            Command::ApplyHost(mut new) => {
                let held = state.hosts.get(&new.id);
                let full = new.pacing.as_volume();
                new.balances = clamped(held.map_or(new.balances, |h| h.balances), &full, u64::MAX);
                state.hosts.insert(new.id, new);
            }
            Command::DeleteHost(id) => drop(state.hosts.remove(&id)),
            Command::Latencies(_) => return Reply::Latencies(Vec::new()),
            Command::Calibrated(_) => {}
            Command::Lease(asked) => return Reply::Balances(state.lease(&asked)),
            Command::SetBalances(id, balances) => return state.set_balances(id, balances),
            _ => {} // answered above
        }
        Reply::Done
    }
}

/// Faults of I/O that no one executes.
#[derive(Debug, Default)]
pub struct FakeIo(pub Mutex<Vec<IoFault>>);

impl IoFaults for FakeIo {
    fn set(&self, faults: Vec<IoFault>) {
        *self.0.lock().unwrap() = faults;
    }

    fn hits(&self) -> Vec<(u64, u64)> {
        Vec::new()
    }
}

/// Returns the configuration of a server for tests.
pub fn test_config(data_dir: &Path, settings: Settings) -> ControlConfig {
    let test = TestIo { faults: Arc::<FakeIo>::default(), feel: None };
    ControlConfig { test: Some(test), ..config_with(data_dir, settings) }
}

/// A running control plane.
pub struct Server {
    pub address: SocketAddr,
    pub agent: Arc<FakeAgent>,
    pub credentials: Credentials,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    thread: Option<JoinHandle<Result<(), ControlError>>>,
}

pub fn config(data_dir: &Path) -> ControlConfig {
    ControlConfig {
        data_dir: data_dir.into(),
        listen: "127.0.0.1:0".parse().unwrap(),
        tls: None,
        endpoints: vec![
            Endpoint::NbdTcp("127.0.0.1:10809".parse().unwrap()),
            Endpoint::NbdUnix(data_dir.join("nbd.sock")),
        ],
        settings: Settings::default(),
        metrics_space: ByteCount(16 << 20),
        webhooks: Webhooks::default(),
        timeouts: Timeouts::default(),
        records: None,
        test: None,
    }
}

/// Returns the configuration with other settings.
pub fn config_with(data_dir: &Path, settings: Settings) -> ControlConfig {
    ControlConfig { settings, ..config(data_dir) }
}

/// Creates a control plane without its HTTP side.
pub fn plane(folder: &Path, agent: &Arc<FakeAgent>) -> Plane {
    let journal = SqliteJournal::open(&folder.join(DATABASE_FILE_NAME)).unwrap();
    let agent = Arc::clone(agent) as Arc<dyn Agent>;
    Plane::start(Box::new(journal), Settings::default(), agent, || {}).unwrap()
}

/// Creates a gp2 volume of 200 GiB: 600 IOPS, and 3,000 while it has credits.
pub fn gp2(plane: &Plane) -> VolumeId {
    planned(plane, 7, VolumeType::Gp2, 200)
}

/// Creates a volume with the default limits of its type.
pub fn planned(plane: &Plane, bits: u128, volume_type: VolumeType, size_gib: u32) -> VolumeId {
    let id = VolumeId::from_bits(bits);
    plane.execute(&creation(id, volume_type, size_gib, None), false).unwrap();
    id
}

/// Returns the creation of an empty volume with the default limits of its type. `token` is the
/// client token with its fingerprint.
pub fn creation(
    id: VolumeId,
    volume_type: VolumeType,
    size_gib: u32,
    token: Option<(String, String)>,
) -> Change {
    let request = usual(volume_type, size_gib);
    let zone = "local-1a".to_owned();
    Change::CreateVolume { id, request, begins: Begins::default(), zone, tags: Tags::new(), token }
}

/// Returns the request of a volume with the default limits of its type.
pub const fn usual(volume_type: VolumeType, size_gib: u32) -> VolumeRequest {
    VolumeRequest { volume_type, size_gib, iops: None, throughput_mibps: None, multi_attach: false }
}

impl Server {
    pub fn start(data_dir: &Path) -> Self {
        Self::start_with(config(data_dir), Arc::default()).unwrap()
    }

    pub fn start_with(config: ControlConfig, agent: Arc<FakeAgent>) -> Result<Self, ControlError> {
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let (ready, address) = mpsc::channel();
        let data_dir = config.data_dir.clone();
        let its = Arc::clone(&agent);
        let thread = std::thread::spawn(move || {
            let ready = move |address| ready.send(address).unwrap();
            evenkeel_control::run(config, its, || {}, ready, async { stopped.await.unwrap_or(()) })
        });
        // Ends with an error as soon as the thread ends without having been ready.
        let Ok(address) = address.recv() else {
            return Err(thread.join().unwrap().expect_err("it ended without being ready"));
        };
        let credentials = credentials::load(&data_dir).unwrap();
        Ok(Self { address, agent, credentials, stop: Some(stop), thread: Some(thread) })
    }

    /// Stops the server as SIGTERM does.
    pub fn stop(mut self) -> Result<(), ControlError> {
        self.stop.take().unwrap().send(()).unwrap();
        self.thread.take().unwrap().join().unwrap()
    }

    pub fn client(&self) -> Client {
        Client { address: self.address, credentials: self.credentials.clone() }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// A client of the query protocol without an SDK.
#[derive(Clone)]
pub struct Client {
    pub address: SocketAddr,
    pub credentials: Credentials,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub body: String,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Refused {
    pub status: u16,
    pub code: String,
    pub message: String,
}

pub fn unix_s() -> u64 {
    #[allow(clippy::disallowed_methods)] // a client needs the time to sign
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

impl Client {
    pub fn call(&self, action: &str, params: &[(&str, &str)]) -> Result<Element, Refused> {
        let named = [("Action", action), ("Version", "2016-11-15")];
        let body = query::encode(named.iter().chain(params).copied());
        let answer = self.post_until_taken(&body);
        let root = Element::parse(&answer.body).unwrap_or_else(|e| panic!("{e}: {answer:?}"));
        if answer.status == 200 {
            assert_eq!(root.name, format!("{action}Response"));
            assert!(root.child_text("requestId").is_some_and(|id| id.len() == 36), "{root:?}");
            return Ok(root);
        }
        assert_eq!(root.name, "Response");
        assert!(root.child_text("RequestID").is_some());
        let error = &root.items("Errors")[0];
        Err(Refused {
            status: answer.status,
            code: error.child_text("Code").unwrap().into(),
            message: error.child_text("Message").unwrap().into(),
        })
    }

    /// Repeats a request with a new signature while the server asks for it, as SDKs do.
    pub fn post_until_taken(&self, body: &str) -> Answer {
        const TRIES_MAX: u32 = 10;
        static CALLS: AtomicU64 = AtomicU64::new(0);
        for _ in 0..TRIES_MAX {
            // As many SDKs do, so that no two calls within a second have the same signature.
            let call = CALLS.fetch_add(1, Ordering::Relaxed).to_string();
            let headers = self.signed(body, unix_s(), &[("amz-sdk-invocation-id", &call)]);
            let answer = self.send("POST", "/", &headers, body.as_bytes());
            if answer.status != 503 || !answer.body.contains("RequestLimitExceeded") {
                return answer;
            }
        }
        panic!("refused as too early {TRIES_MAX} times");
    }

    pub fn code(&self, action: &str, params: &[(&str, &str)]) -> String {
        match self.call(action, params) {
            Ok(element) => panic!("{action} {params:?} succeeded: {element:?}"),
            Err(refused) => refused.code,
        }
    }

    pub fn signed_headers(&self, body: &str, signed_at: u64) -> Vec<(String, String)> {
        self.signed(body, signed_at, &[])
    }

    pub fn signed(
        &self,
        body: &str,
        signed_at: u64,
        more: &[(&str, &str)],
    ) -> Vec<(String, String)> {
        let host = self.address.to_string();
        let mut headers =
            vec![("host", host.as_str()), ("content-type", "application/x-www-form-urlencoded")];
        headers.extend(more);
        self.signed_with("ec2", ("POST", "/"), &headers, body, signed_at)
    }

    /// Returns the headers of a request to the EC2 API of a server with another name.
    pub fn signed_for(&self, host: &str, body: &str) -> Vec<(String, String)> {
        let headers = [("host", host), ("content-type", "application/x-www-form-urlencoded")];
        self.signed_with("ec2", ("POST", "/"), &headers, body, unix_s())
    }

    /// Returns the headers of a request to another API.
    pub fn signed_as(
        &self,
        service: &str,
        method: &str,
        target: &str,
        body: &str,
    ) -> Vec<(String, String)> {
        let host = self.address.to_string();
        let headers =
            [("host", host.as_str()), ("content-type", "application/x-www-form-urlencoded")];
        self.signed_with(service, (method, target), &headers, body, unix_s())
    }

    /// Executes an action of IAM (`iam`) or STS (`sts`). Returns its result, or the refusal.
    pub fn identity(
        &self,
        service: &str,
        action: &str,
        params: &[(&str, &str)],
    ) -> Result<Element, Refused> {
        static CALLS: AtomicU64 = AtomicU64::new(0);
        let version = if service == "iam" { "2010-05-08" } else { "2011-06-15" };
        let named = [("Action", action), ("Version", version)];
        let body = query::encode(named.iter().chain(params).copied());
        let call = CALLS.fetch_add(1, Ordering::Relaxed).to_string();
        let host = self.address.to_string();
        let headers = [
            ("host", host.as_str()),
            ("content-type", "application/x-www-form-urlencoded"),
            ("amz-sdk-invocation-id", &call),
        ];
        let headers = self.signed_with(service, ("POST", "/"), &headers, &body, unix_s());
        let answer = self.send("POST", "/", &headers, body.as_bytes());
        let root = Element::parse(&answer.body).unwrap_or_else(|e| panic!("{e}: {answer:?}"));
        if answer.status == 200 {
            assert_eq!(root.name, format!("{action}Response"));
            let id = root.child("ResponseMetadata").and_then(|data| data.child_text("RequestId"));
            assert!(id.is_some_and(|id| id.len() == 36), "{root:?}");
            let result = root.child(&format!("{action}Result")).cloned();
            return Ok(result.unwrap_or_default());
        }
        assert_eq!(root.name, "ErrorResponse");
        let error = root.child("Error").unwrap();
        Err(Refused {
            status: answer.status,
            code: error.child_text("Code").unwrap().into(),
            message: error.child_text("Message").unwrap().into(),
        })
    }

    pub fn signed_with(
        &self,
        service: &str,
        (method, path): (&str, &str),
        headers: &[(&str, &str)],
        body: &str,
        signed_at: u64,
    ) -> Vec<(String, String)> {
        let body = body.as_bytes();
        let request = sigv4::Request { method, path, query: "", headers, body };
        let keys = sigv4::Credentials {
            access_key_id: &self.credentials.access_key_id,
            secret_access_key: &self.credentials.secret_access_key,
        };
        let scope = Scope { region: REGION, service };
        let added = sigv4::sign(&request, keys, scope, signed_at);
        headers.iter().map(|(n, v)| ((*n).into(), (*v).into())).chain(added).collect()
    }

    pub fn post(&self, body: &str, signed_at: u64) -> Answer {
        self.send("POST", "/", &self.signed_headers(body, signed_at), body.as_bytes())
    }

    pub fn send(
        &self,
        method: &str,
        target: &str,
        headers: &[(String, String)],
        body: &[u8],
    ) -> Answer {
        let mut request = format!("{method} {target} HTTP/1.1\r\n");
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str(&format!("content-length: {}\r\nconnection: close\r\n\r\n", body.len()));
        let mut bytes = request.into_bytes();
        bytes.extend(body);
        let text = raw(self.address, &bytes);
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or_else(|| panic!("{text}"));
        let status = head.split(' ').nth(1).unwrap().parse().unwrap();
        Answer { status, body: body.into() }
    }
}

/// Executes a request with this body as the server does, without a connection.
pub fn execute(api: &Api, keys: &Credentials, body: &str) -> Result<String, ApiError> {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    // No two requests have the same signature.
    let call = CALLS.fetch_add(1, Ordering::Relaxed).to_string();
    let headers = [("host", "h"), ("amz-sdk-invocation-id", call.as_str())];
    let body = body.as_bytes();
    let bare = sigv4::Request { method: "POST", path: "/", query: "", headers: &headers, body };
    let keys = sigv4::Credentials {
        access_key_id: &keys.access_key_id,
        secret_access_key: &keys.secret_access_key,
    };
    let added = sigv4::sign(&bare, keys, Scope { region: REGION, service: "ec2" }, unix_s());
    let added = added.iter().map(|(name, value)| (name.as_str(), value.as_str()));
    let all: Vec<_> = headers.iter().copied().chain(added).collect();
    let prepared =
        api.prepare(&sigv4::Request { headers: &all, ..bare }, Ipv4Addr::LOCALHOST.into())?;
    api.admit(&prepared).map_err(|denied| denied.error)?;
    api.run(prepared, "request")
}

/// Sends bytes, and returns all bytes received until the server closes.
pub fn raw(address: SocketAddr, bytes: &[u8]) -> String {
    exchange(address, bytes, false)
}

/// Sends bytes and ends the sending side, so that the server does not wait for the rest of a
/// request. Returns all bytes received.
pub fn raw_and_end(address: SocketAddr, bytes: &[u8]) -> String {
    exchange(address, bytes, true)
}

fn exchange(address: SocketAddr, bytes: &[u8], end: bool) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    // The server may close before it has read everything.
    let _ = stream.write_all(bytes);
    if end {
        let _ = stream.shutdown(Shutdown::Write);
    }
    let mut answer = Vec::new();
    let _ = stream.read_to_end(&mut answer);
    String::from_utf8_lossy(&answer).into_owned()
}

pub fn text<'a>(element: &'a Element, name: &str) -> &'a str {
    element.child_text(name).unwrap_or_else(|| panic!("no {name} in {element:?}"))
}

/// Creates a gp3 volume, or one with these parameters. Returns its id.
pub fn create(client: &Client, params: &[(&str, &str)]) -> String {
    let mut all = vec![("AvailabilityZone", "local-1a"), ("Size", "10")];
    all.retain(|(name, _)| !params.iter().any(|(n, _)| n == name));
    all.extend(params);
    text(&client.call("CreateVolume", &all).unwrap(), "volumeId").into()
}

/// Returns the id of the local machine.
pub fn local_instance(client: &Client) -> String {
    let local = [("Filter.1.Name", "instance-type"), ("Filter.1.Value.1", "evenkeel.local")];
    let reply = client.call("DescribeInstances", &local).unwrap();
    text(&reply.items("reservationSet")[0].items("instancesSet")[0], "instanceId").into()
}

/// Calls `ask` until it has an answer, for a minute at most. Another thread causes the answer, and
/// gives no notification.
pub fn until<T>(ask: impl Fn() -> Option<T>) -> Option<T> {
    (0..1_200).find_map(|_| {
        ask().or_else(|| {
            std::thread::park_timeout(Duration::from_millis(50));
            None
        })
    })
}
