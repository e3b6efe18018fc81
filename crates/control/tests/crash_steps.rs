//! A crash between any two steps of a change: before and after each commit to the journal, and
//! before and after each call to the data plane. A server that is then started has the change as a
//! whole or not at all, and everything else unchanged. No change stays unfinished, and no stored
//! bytes are without an owner.

#![allow(clippy::unwrap_used)] // the helpers of tests may panic too

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use evenkeel_control::DATABASE_FILE_NAME;
use evenkeel_control::api::Api;
use evenkeel_control::credentials::Credentials;
use evenkeel_control::journal::memory::MemoryJournal;
use evenkeel_control::journal::sqlite::SqliteJournal;
use evenkeel_control::journal::{Change, Journal, JournalError, Loaded, Revision, Watch};
use evenkeel_control::model::{
    Begins, Command as Order, Filled, HostState, Lock, LockMode, Model, Phase, Settings, Snapshot,
    SnapshotOfSet, SnapshotPhase, StoreKey, Tagged, Tags, TierOperation, Volume,
};
use evenkeel_control::plane::{Plane, PlaneError};
use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::time::UnixMs;
use evenkeel_core::units::ByteCount;
use evenkeel_core::volume::{VolumeChange, VolumeRequest, VolumeType};
use evenkeel_wire::agent::{Agent, Command, Failed, FailedKind, HostAddress, Reply, UNIT_BYTES};
use evenkeel_wire::aws::checksum::{self, Linear};
use evenkeel_wire::aws::query;
use support::random::{Random, seeds};
use support::{FakeAgent, execute};

/// Number of histories of a plain run.
const CASES: u64 = 2;
/// Number of orders in each.
const ORDERS: u32 = 14;

/// Counts the moments between two steps, and ends the server at one of them.
#[derive(Default)]
struct Moments {
    /// Number of moments left; the server has ended when it is zero.
    left: AtomicU64,
    passed: AtomicU64,
    /// Whether the store has no space for further volumes. Bytes that exist stay.
    is_full: AtomicBool,
}

impl Moments {
    /// Returns whether the server still runs after this moment.
    fn pass(&self) -> bool {
        self.passed.fetch_add(1, Ordering::SeqCst);
        let next = |left: u64| Some(left.saturating_sub(1));
        self.left.fetch_update(Ordering::SeqCst, Ordering::SeqCst, next).is_ok_and(|left| left > 1)
    }

    fn end_after(&self, moments: u64) {
        self.left.store(moments.saturating_add(1), Ordering::SeqCst);
        self.passed.store(0, Ordering::SeqCst);
    }

    fn is_over(&self) -> bool {
        self.left.load(Ordering::SeqCst) <= 1
    }
}

/// A store that outlives the server: it executes no commands after the server's end.
fn store(moments: Arc<Moments>) -> Arc<FakeAgent> {
    FakeAgent::scripted(move |agent, command| {
        let failed = |kind, message: &str| Reply::Failed(Failed { kind, message: message.into() });
        let gone = || failed(FailedKind::Down, "the server is gone");
        if moments.is_over() || !moments.pass() {
            return gone();
        }
        if matches!(command, Command::Create(_) | Command::CreateFrom(..))
            && moments.is_full.load(Ordering::SeqCst)
        {
            return failed(FailedKind::NoSpace, "the store is full");
        }
        let of = match &command {
            Command::Apply(volume) | Command::Grow(volume, _) => Some(volume.id),
            _ => None,
        };
        // Only volumes that were created have bytes.
        if of.is_some_and(|id| agent.with(|state| !state.unowned.contains_key(&id))) {
            return failed(FailedKind::Damaged, "it has no bytes");
        }
        let reply = agent.execute(command.clone());
        if reply == Reply::Done {
            agent.with(|state| match &command {
                Command::Create(new) | Command::CreateFrom(new, _) | Command::Grow(new, _) => {
                    state.unowned.insert(new.id, new.size);
                }
                Command::Delete(id) => _ = state.unowned.remove(id),
                _ => {}
            });
        }
        if moments.pass() { reply } else { gone() }
    })
}

/// A journal that stores no changes after the end of its server.
struct Lasting {
    inner: Box<dyn Journal>,
    moments: Arc<Moments>,
}

impl Journal for Lasting {
    fn load(&mut self) -> Result<Loaded, JournalError> {
        self.inner.load()
    }

    fn commit(&mut self, change: &Change, expected: Revision) -> Result<Revision, JournalError> {
        let gone = || Err(JournalError::Failed("the server is gone".to_owned()));
        if self.moments.is_over() || !self.moments.pass() {
            return gone();
        }
        let stored = self.inner.commit(change, expected)?;
        if self.moments.pass() { Ok(stored) } else { gone() }
    }

    fn watch(&mut self, after: Revision) -> Result<Watch, JournalError> {
        self.inner.watch(after)
    }
}

/// A server over a store; the server can end and start again.
struct World {
    /// The journal's folder; without one it is in memory, which takes a tenth of the time.
    folder: Option<tempfile::TempDir>,
    in_memory: MemoryJournal,
    store: Arc<FakeAgent>,
    moments: Arc<Moments>,
    bin_days: u32,
    plane: Option<Arc<Plane>>,
}

impl World {
    fn new(bin_days: u32, folder: Option<tempfile::TempDir>) -> Self {
        let moments = Arc::<Moments>::default();
        let store = store(Arc::clone(&moments));
        let in_memory = MemoryJournal::default();
        let mut world = Self { folder, in_memory, store, moments, bin_days, plane: None };
        world.begin(u64::MAX - 1).unwrap();
        world
    }

    /// Starts a server that ends after `moments` moments.
    fn begin(&mut self, moments: u64) -> Result<(), PlaneError> {
        self.plane = None;
        // The data plane's state is lost; the stored bytes stay.
        self.store.with(|state| {
            state.volumes.clear();
            state.hosts.clear();
        });
        self.moments.end_after(moments);
        let settings = settings(self.bin_days);
        let inner: Box<dyn Journal> = match &self.folder {
            Some(folder) => {
                let path = folder.path().join(DATABASE_FILE_NAME);
                Box::new(SqliteJournal::open(&path).unwrap())
            }
            None => Box::new(self.in_memory.clone()),
        };
        let journal = Lasting { inner, moments: Arc::clone(&self.moments) };
        let agent = Arc::clone(&self.store) as Arc<dyn Agent>;
        self.plane = Some(Arc::new(Plane::start(Box::new(journal), settings, agent, || {})?));
        Ok(())
    }

    fn plane(&self) -> &Arc<Plane> {
        self.plane.as_ref().unwrap()
    }

    fn model(&self) -> Model {
        self.plane().model().clone()
    }

    /// Starts a server that does not end, and runs the ticks until it is at rest.
    fn recover(&mut self) {
        self.begin(u64::MAX - 1).unwrap();
        for _ in 0..4 {
            self.plane().tick();
        }
    }

    /// Checks the rules that hold at rest after every history.
    fn check(&self, why: &str) {
        self.plane().invariants();
        let model = self.model();
        for volume in model.volumes.values() {
            let is_at_rest = matches!(volume.phase, Phase::Ready | Phase::Binned { .. });
            assert!(volume.is_settled() && is_at_rest, "{why}: {volume:?}");
        }
        for snapshot in model.snapshots.values() {
            assert!(snapshot.for_volume.is_none(), "{why}: {snapshot:?}");
            let is_at_rest = !snapshot.is_unsettled()
                && !matches!(snapshot.phase, SnapshotPhase::Copying { .. });
            assert!(is_at_rest, "{why}: {snapshot:?}");
        }
        let has_bytes = self.store.with(|state| {
            let volumes: BTreeSet<VolumeId> = state.unowned.keys().copied().collect();
            (volumes, state.snapshots.keys().copied().collect::<BTreeSet<SnapshotId>>())
        });
        let volumes: BTreeSet<VolumeId> = model.volumes.keys().copied().collect();
        assert_eq!(has_bytes.0, volumes, "{why}: bytes of volumes");
        let is_stored = |it: &&Snapshot| !matches!(it.phase, SnapshotPhase::Error(_));
        let stored =
            model.snapshots.values().filter(is_stored).map(|snapshot| snapshot.id).collect();
        let in_error: BTreeSet<SnapshotId> = model.snapshots.keys().copied().collect();
        assert!(has_bytes.1.is_subset(&in_error), "{why}: snapshots of nobody: {has_bytes:?}");
        assert!(has_bytes.1.is_superset(&stored), "{why}: snapshots without bytes");
    }
}

fn settings(recycle_bin_days: u32) -> Settings {
    Settings { key: Some(StoreKey { id: "k".into() }), recycle_bin_days, ..Settings::default() }
}

/// Returns the model by object, as clients see it; without times, and without snapshots in error,
/// since their creation was never answered.
fn shape(model: &Model) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    for Volume { id, spec, phase, attachments, tags, source, snapshot, is_encrypted, .. } in
        model.volumes.values()
    {
        let phase = match phase {
            Phase::Ready => "ready",
            Phase::Binned { .. } => "binned",
            _ => "changing",
        };
        let mut text = format!("{phase} {spec:?} {tags:?} {source:?} {snapshot:?} {is_encrypted}");
        for its in attachments {
            write!(text, " {} {} {:?}", its.instance, its.device, its.state).unwrap();
        }
        all.insert(id.to_string(), text);
    }
    // A snapshot that was made for a volume is not shown to clients.
    for it in model.snapshots.values().filter(|snapshot| snapshot.for_volume.is_none()) {
        let phase = match it.phase {
            SnapshotPhase::Error(_) => continue,
            SnapshotPhase::Binned { .. } => "binned",
            SnapshotPhase::Completed { .. } => "completed",
            _ => "filling",
        };
        let lock = it.lock.is_some();
        let fast = !it.fast_restores.is_empty();
        let Snapshot { volume, tags, copy_of, shared_with, is_encrypted, .. } = it;
        let tier = it.tiering.map(|tiering| match tiering.last {
            TierOperation::Archive => "archived",
            TierOperation::TemporaryRestore { .. } => "restored",
            TierOperation::PermanentRestore => "restored for good",
        });
        let text = format!(
            "{phase} {volume} {tags:?} {copy_of:?} {shared_with:?} {is_encrypted} {lock} {fast} \
             {tier:?}"
        );
        all.insert(it.id.to_string(), text);
    }
    let state = |state| match state {
        HostState::Running => "running",
        HostState::Stopped => "stopped",
        HostState::Terminated { .. } => "terminated",
    };
    for host in model.hosts.values().filter(|host| !host.is_local()) {
        all.insert(host.id.to_string(), format!("{:?} {}", host.tags, state(host.state)));
    }
    for (name, token) in &model.tokens {
        all.insert(format!("token {name}"), token.volume.to_string());
    }
    all.insert("account".to_owned(), format!("{:?}", model.account));
    all
}

fn vol(number: u8) -> VolumeId {
    VolumeId::from_bits(1_000 + u128::from(number))
}

fn snap(number: u8) -> SnapshotId {
    SnapshotId::from_bits(1_000 + u128::from(number))
}

fn host(number: u8) -> InstanceId {
    InstanceId::from_bits(1_000 + u128::from(number))
}

/// A client's request.
#[derive(Clone, Debug)]
enum Ask {
    Order(Box<Order>),
    Purge(VolumeId),
    /// Puts a unit; it is the only one.
    Put(SnapshotId),
    Complete(SnapshotId),
}

impl Ask {
    fn of(&self, plane: &Plane) -> Result<(), PlaneError> {
        let unit = vec![7; UNIT_BYTES as usize];
        let digest = checksum::digest(&unit);
        match self {
            Self::Order(order) => plane.execute(order, false).map(drop),
            Self::Purge(id) => plane.purge_volume(*id, false),
            Self::Put(id) => plane.put_unit(*id, 3, unit, digest),
            Self::Complete(id) => {
                let mut all = Linear::default();
                all.add(&digest);
                // A difference means that it is not completed, which is a valid answer.
                _ = plane.complete_snapshot(*id, 1, Some(all.digest()));
                Ok(())
            }
        }
    }
}

fn request(volume_type: VolumeType, size_gib: u32) -> VolumeRequest {
    let iops = (volume_type == VolumeType::Io2).then_some(1_000);
    let multi_attach = volume_type == VolumeType::Io2;
    VolumeRequest { volume_type, size_gib, iops, throughput_mibps: None, multi_attach }
}

/// Returns the creation of a volume, empty or with an origin.
fn create(number: u8, snapshot: Option<u8>, source: Option<u8>, is_encrypted: bool) -> Ask {
    let begins = Begins {
        snapshot: snapshot.map(snap),
        source: source.map(vol),
        is_encrypted: is_encrypted.then_some(true),
        initialization_mibps: snapshot.map(|_| 300),
        spares: [snap(100 + number), snap(150 + number)],
    };
    let token = Some((format!("t{number}"), "f".to_owned()));
    let id = vol(number);
    let request = request(VolumeType::Io2, 8);
    let zone = "local-1a".to_owned();
    let tags = Tags::new();
    Ask::Order(Box::new(Order::CreateVolume { id, request, begins, zone, tags, token }))
}

fn order(order: Order) -> Ask {
    Ask::Order(Box::new(order))
}

fn attach(volume: u8, instance: u8) -> Ask {
    let id = vol(volume);
    let instance = host(instance);
    let device = format!("/dev/sd{}", letter(volume));
    order(Order::AttachVolume { id, instance, device })
}

fn letter(number: u8) -> char {
    char::from(b'f' + number % 16)
}

fn snapshot(number: u8, volume: u8) -> Ask {
    let description = String::new();
    let tags = Tags::new();
    order(Order::CreateSnapshot { id: snap(number), volume: vol(volume), description, tags })
}

fn copy(number: u8, of: u8, is_encrypted: Option<bool>) -> Ask {
    let id = snap(number);
    let of = snap(of);
    let description = String::new();
    let tags = Tags::new();
    order(Order::CopySnapshot { id, of, is_encrypted, description, tags })
}

fn start(number: u8) -> Ask {
    let filled = Filled { parent: None, timeout_min: 10, token: None };
    let description = String::new();
    let tags = Tags::new();
    let id = snap(number);
    let size_gib = 1;
    let is_encrypted = Some(false);
    order(Order::StartSnapshot { id, size_gib, filled, is_encrypted, description, tags })
}

fn lock(number: u8) -> Ask {
    let mode = LockMode::Governance;
    let created = UnixMs(u64::MAX / 4);
    let cool_off_hours = 0;
    let lock = Lock { mode, created, cool_off_hours, days: 1, until: None };
    order(Order::LockSnapshot { id: snap(number), lock })
}

fn register(number: u8) -> Ask {
    let id = host(number);
    let instance_type = "m5.large".to_owned();
    let address = HostAddress::Remote([10, 0, 0, number].into());
    order(Order::RegisterHost { id, zone: None, instance_type, address, tags: Tags::new() })
}

fn set(first: u8, instance: u8, volumes: &[u8]) -> Ask {
    let new = |(number, volume): (u8, &u8)| SnapshotOfSet {
        id: snap(number),
        volume: vol(*volume),
        tags: Tags::new(),
    };
    let set = (first..).zip(volumes).map(new).collect();
    let instance = host(instance);
    let description = String::new();
    order(Order::CreateSnapshots { instance, set, description })
}

fn tag(number: u8) -> Ask {
    let resources = vec![Tagged::Volume(vol(number))];
    order(Order::CreateTags { resources, tags: [("k".to_owned(), "v".to_owned())].into() })
}

fn grow(number: u8, size_gib: u32) -> Ask {
    let change = VolumeChange { size_gib: Some(size_gib), ..VolumeChange::default() };
    order(Order::ModifyVolume { id: vol(number), change })
}

/// Creates the objects that exist before each change: volumes 0 to 3 (0 is attached, 3 in the bin),
/// snapshots 0 to 5 (2 is being filled, 3 is in the bin, 4 was filled, 5 is archived), two hosts.
fn furnish(world: &World) {
    let encrypted = order(Order::SetEncryptByDefault(false));
    let asks = [
        encrypted,
        register(1),
        register(2),
        create(0, None, None, false),
        create(1, None, None, false),
        create(2, None, None, true),
        create(3, None, None, false),
        attach(0, 1),
        attach(1, 1),
        snapshot(0, 0),
        snapshot(1, 2),
        start(2),
        Ask::Put(snap(2)),
        start(4),
        Ask::Put(snap(4)),
        Ask::Complete(snap(4)),
        snapshot(3, 1),
        snapshot(5, 1),
        order(Order::ArchiveSnapshot { id: snap(5) }),
        order(Order::DeleteVolume { id: vol(3) }),
        order(Order::DeleteSnapshot { id: snap(3) }),
    ];
    for ask in asks {
        ask.of(world.plane()).unwrap_or_else(|error| panic!("{ask:?}: {error}"));
    }
    world.plane().tick();
}

/// Returns every kind of change of these objects.
fn changes() -> Vec<Ask> {
    let terminated = HostState::Terminated { at: UnixMs(1) };
    vec![
        create(10, None, None, false),
        create(10, None, None, true),
        create(10, Some(0), None, false),
        create(10, Some(0), None, true),
        create(10, Some(1), None, true),
        create(10, None, Some(1), false),
        create(10, None, Some(1), true),
        create(10, None, Some(2), true),
        order(Order::DeleteVolume { id: vol(2) }),
        order(Order::RestoreVolume { id: vol(3), error: None }),
        Ask::Purge(vol(3)),
        attach(2, 2),
        attach(0, 2),
        order(Order::DetachVolume { id: vol(1), instance: Some(host(1)), device: None }),
        grow(0, 20),
        grow(2, 20),
        snapshot(10, 1),
        set(10, 1, &[0, 1]),
        start(10),
        Ask::Put(snap(2)),
        Ask::Complete(snap(2)),
        copy(10, 0, None),
        copy(10, 0, Some(true)),
        copy(10, 1, None),
        copy(10, 4, Some(true)),
        create(10, Some(4), None, true),
        order(Order::DeleteSnapshot { id: snap(0) }),
        order(Order::DeleteSnapshot { id: snap(2) }),
        order(Order::RestoreSnapshot { id: snap(3) }),
        order(Order::PurgeSnapshot { id: snap(3) }),
        lock(0),
        order(Order::ArchiveSnapshot { id: snap(0) }),
        order(Order::RestoreTier { id: snap(5), days: Some(1) }),
        order(Order::RestoreTier { id: snap(5), days: None }),
        order(Order::SetFastRestore {
            ids: vec![snap(0), snap(1)],
            zones: vec!["local-1a".into()],
            is_on: true,
        }),
        order(Order::SetEncryptByDefault(true)),
        tag(1),
        register(3),
        order(Order::DeregisterHost { id: host(2) }),
        order(Order::SetHostState { ids: vec![host(2)], state: terminated }),
    ]
}

/// Runs a change and two ticks, with the server's end after `moments` moments. Returns whether it
/// has ended.
fn run_until(world: &World, ask: &Ask, moments: u64) -> bool {
    world.moments.end_after(moments);
    let answer = ask.of(world.plane());
    assert!(answer.is_ok() || world.moments.is_over(), "{ask:?}: {answer:?}");
    for _ in 0..2 {
        world.plane().tick();
    }
    world.moments.is_over()
}

/// Checks a change in a furnished world, with an end at every moment in turn.
fn check_all_moments(bin_days: u32, ask: &Ask) {
    let mut world = World::new(bin_days, None);
    furnish(&world);
    let before = shape(&world.model());
    assert!(!run_until(&world, ask, u64::MAX - 1));
    world.recover();
    let after = shape(&world.model());
    let moments = 1..;
    for moment in moments {
        let mut world = World::new(bin_days, None);
        furnish(&world);
        if !run_until(&world, ask, moment) {
            return;
        }
        world.recover();
        let why = format!("{ask:?}, ended at moment {moment}, a bin of {bin_days} days");
        world.check(&why);
        let found = shape(&world.model());
        assert!(found == before || found == after, "{why}: {:#?}", differs(&before, &found));
    }
}

/// Makes the change, with an end at moment `first`, a start on a full store with an end at moment
/// `second`, and a start without an end. Returns whether the first server has ended.
fn run_twice(world: &mut World, ask: &Ask, first: u64, second: u64) -> bool {
    furnish(world);
    if !run_until(world, ask, first) {
        return false;
    }
    world.moments.is_full.store(true, Ordering::SeqCst);
    _ = world.begin(second);
    world.recover();
    true
}

/// The bytes of the volume may exist already, and then it cannot be opened.
#[test]
fn a_creation_that_cannot_be_continued_leaves_no_bytes_whenever_the_server_ends() {
    for ask in [
        create(10, None, None, false),
        create(10, Some(0), None, false),
        create(10, None, Some(1), false),
    ] {
        for second in [1, 20, 24, 28, 32] {
            for first in 1.. {
                let mut world = World::new(1, None);
                if !run_twice(&mut world, &ask, first, second) {
                    break;
                }
                world.check(&format!("{ask:?}, ended at moments {first} and {second}"));
            }
        }
    }
}

/// The bytes of an adopted volume have data of before.
#[test]
fn an_adoption_that_cannot_be_continued_leaves_the_bytes() {
    let request = request(VolumeType::Io2, 8);
    let zone = "local-1a".to_owned();
    let tags = Tags::new();
    let adopt = order(Order::AdoptVolume { id: vol(20), is_encrypted: false, request, zone, tags });
    for first in 1.. {
        let mut world = World::new(1, None);
        world.store.with(|state| state.unowned.insert(vol(20), ByteCount::from_gib(8)));
        if !run_twice(&mut world, &adopt, first, u64::MAX - 1) {
            break;
        }
        let has_bytes = world.store.with(|state| state.unowned.contains_key(&vol(20)));
        assert!(has_bytes, "ended at moment {first}");
    }
}

/// An action of several changes, with an end at every moment in turn. Repeated, it has the same
/// result as one that was not interrupted.
#[test]
fn a_termination_that_was_interrupted_can_be_repeated() {
    let terminate = |world: &World| {
        let keys = Credentials { access_key_id: "k".into(), secret_access_key: "s".into() };
        let api = Api::new(Arc::clone(world.plane()), keys.clone(), vec![], None);
        let id = host(1).to_string();
        let params =
            [("Action", "TerminateInstances"), ("Version", "2016-11-15"), ("InstanceId.1", &id)];
        execute(&api, &keys, &query::encode(params))
    };
    let furnished = |bin_days| {
        let world = World::new(bin_days, None);
        furnish(&world);
        let devices = vec![(format!("/dev/sd{}", letter(0)), true)];
        let marked = order(Order::SetDeleteOnTermination { instance: host(1), devices });
        marked.of(world.plane()).unwrap();
        world
    };
    for bin_days in [0, 1] {
        let world = furnished(bin_days);
        terminate(&world).unwrap();
        let expected = shape(&world.model());
        for moment in 1.. {
            let mut world = furnished(bin_days);
            world.moments.end_after(moment);
            if terminate(&world).is_ok() {
                break;
            }
            world.recover();
            let why = format!("ended at moment {moment}, a bin of {bin_days} days");
            world.check(&why);
            terminate(&world).unwrap_or_else(|error| panic!("{why}: {error:?}"));
            world.check(&why);
            let found = shape(&world.model());
            assert!(found == expected, "{why}: {:#?}", differs(&expected, &found));
        }
    }
}

/// Returns the objects that differ, before and after.
fn differs(
    before: &BTreeMap<String, String>,
    found: &BTreeMap<String, String>,
) -> Vec<(String, Option<String>, Option<String>)> {
    let names: BTreeSet<&String> = before.keys().chain(found.keys()).collect();
    let both = names.into_iter().map(|name| (name, before.get(name), found.get(name)));
    let other = both.filter(|(_, before, found)| before != found);
    other.map(|(name, before, found)| (name.clone(), before.cloned(), found.cloned())).collect()
}

#[test]
fn a_change_is_made_as_a_whole_or_not_at_all_whenever_the_server_ends() {
    for ask in changes() {
        check_all_moments(1, &ask);
    }
}

/// Without a bin, deletions are permanent.
#[test]
fn a_deletion_without_a_bin_is_made_whenever_the_server_ends() {
    for ask in [
        order(Order::DeleteVolume { id: vol(2) }),
        order(Order::DeleteSnapshot { id: snap(0) }),
        order(Order::DeleteSnapshot { id: snap(2) }),
    ] {
        check_all_moments(0, &ask);
    }
}

/// Returns a request about an object that may exist.
fn any(random: &mut Random) -> Ask {
    let mut number = |end| random.below(end) as u8;
    let a = number(6);
    let b = number(6);
    let c = number(6);
    let is = number(2) == 0;
    match number(20) {
        0 | 1 => create(a, None, None, is),
        2 => create(a, Some(b), None, is),
        3 => create(a, None, Some(b), is),
        4 => order(Order::DeleteVolume { id: vol(a) }),
        5 => order(Order::RestoreVolume { id: vol(a), error: None }),
        6 => Ask::Purge(vol(a)),
        7 | 8 => attach(a, 1 + b % 3),
        9 => order(Order::DetachVolume { id: vol(a), instance: None, device: None }),
        10 => grow(a, 8 + u32::from(b) * 4),
        11 => snapshot(a, b),
        12 => set(a, 1 + b % 3, &[c]),
        13 => start(a),
        14 => Ask::Put(snap(a)),
        15 => Ask::Complete(snap(a)),
        16 => copy(a, b, is.then_some(true)),
        17 => order(Order::DeleteSnapshot { id: snap(a) }),
        18 if is => order(Order::RestoreSnapshot { id: snap(a) }),
        18 => order(Order::PurgeSnapshot { id: snap(a) }),
        _ if is => tag(a),
        _ => register(1 + b % 3),
    }
}

/// The server ends repeatedly, also while it starts.
#[test]
fn answered_changes_survive_many_ends_of_the_server() {
    seeds(CASES, |seed| {
        let mut random = Random::new(seed);
        let mut world = World::new(random.below(2) as u32, Some(tempfile::tempdir().unwrap()));
        furnish(&world);
        for _ in 0..ORDERS {
            let before = shape(&world.model());
            let ask = any(&mut random);
            let moments = 1 + random.below(24) as u64;
            world.moments.end_after(moments);
            let answer = ask.of(world.plane());
            let after = (answer.is_ok() && !world.moments.is_over()).then(|| shape(&world.model()));
            while random.one_in(3) {
                _ = world.begin(1 + random.below(30) as u64);
            }
            world.recover();
            let why = format!("seed {seed}: {ask:?}, ended after {moments} moments");
            world.check(&why);
            let found = shape(&world.model());
            let asked = format!("{ask:?} account");
            for (name, before, found) in differs(&before, &found) {
                let own = name.trim_start_matches("token ");
                let is_asked = answer_may_show(&answer) && asked.contains(own);
                assert!(is_asked, "{why}: {name} was {before:?} and is {found:?}");
            }
            if let Some(after) = after {
                // Changes that were in progress may have completed since.
                for (name, after, found) in differs(&after, &found) {
                    let on_its_way = ["filling", "changing"];
                    let is_done = after
                        .as_ref()
                        .is_none_or(|it| on_its_way.iter().any(|word| it.starts_with(word)));
                    assert!(is_done, "{why}: {name} was {after:?} and is {found:?}");
                }
            }
        }
    });
}

/// Returns whether a change with this answer may have been made.
fn answer_may_show(answer: &Result<(), PlaneError>) -> bool {
    !matches!(answer, Err(PlaneError::Refused(_)))
}
