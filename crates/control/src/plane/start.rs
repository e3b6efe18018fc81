//! Start: loads the journal and brings up every host and volume in the data plane.
//!
//! [`Plane::start`] gets the journal, the settings and the agent, and returns a running [`Plane`].
//! It fails if the journal cannot be loaded or the data plane does not run. A volume that cannot be
//! brought up goes into the state `error`, and the start continues.
//!
//! Opening a volume takes reads of its disk that depend on each other, and flushes after a crash.
//! So several volumes are opened at once, and attached volumes before the others.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::thread;
use std::time::Duration;

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::time::UnixMs;
use evenkeel_wire::agent::{
    Agent, Capacity, Command as AgentCommand, Failed, FailedKind, HostAddress,
};
use tracing::{error, warn};

use super::confirmed::Confirmed;
use super::leases::Leases;
use super::settle::Settling;
use super::snapshot_upload::Fillings;
use super::tick::{RETRY_TICKS, SPACE_TICKS, Upkeep};
use super::time::Following;
use super::vitals::Vitals;
use super::writer::Writer;
use super::{Plane, PlaneError, TestServer};
use crate::events::Feed;
use crate::journal::{Change, Credits, Journal, Loaded};
use crate::key_locks::KeyLocks;
use crate::model::{Command, Event, Host, LOCAL_TYPE, Model, Settings, Tags};
use crate::nodes::Nodes;
use crate::random;
use crate::rights::Keyring;
use crate::server_clock::ServerClock;
use crate::server_time::ServerTime;
use crate::time::Moment;
use crate::{credits, reconcile};

/// Maximum number of volumes that are brought up at once: as many requests as keep a disk busy.
const OPENED_AT_ONCE: usize = 16;
/// Number of groups of volumes for each further thread.
const GROUPS_PER_THREAD: usize = 8;

impl Plane {
    /// Loads the journal and brings up every volume in the data plane. Calls `attached_up` when the
    /// attached volumes are up, before it brings up the others.
    ///
    /// # Errors
    /// The journal cannot be used, or the data plane is not running. A single volume that cannot
    /// be brought up is not an error: the server logs it, and the volume goes into the state
    /// `error`.
    pub fn start(
        journal: Box<dyn Journal>,
        settings: Settings,
        agent: Arc<dyn Agent>,
        attached_up: impl FnOnce(),
    ) -> Result<Self, PlaneError> {
        Self::start_over(journal, settings, agent, None, TestServer::default(), attached_up)
    }

    /// Loads the journal as [`Self::start`] does, over several nodes. They may serve volumes
    /// already, as they did for a former leader.
    ///
    /// # Errors
    /// See [`Self::start`].
    pub fn lead(
        journal: Box<dyn Journal>,
        settings: Settings,
        nodes: &Arc<dyn Nodes>,
    ) -> Result<Self, PlaneError> {
        let agent = Arc::clone(nodes) as Arc<dyn Agent>;
        Self::start_over(
            journal,
            settings,
            agent,
            Some(Arc::clone(nodes)),
            TestServer::default(),
            || {},
        )
    }

    /// Loads the journal as [`Self::start`] does, with the clock and the faults of a
    /// server for tests.
    ///
    /// # Errors
    /// See [`Self::start`].
    pub fn start_test(
        journal: Box<dyn Journal>,
        settings: Settings,
        agent: Arc<dyn Agent>,
        test: TestServer,
        attached_up: impl FnOnce(),
    ) -> Result<Self, PlaneError> {
        Self::start_over(journal, settings, agent, None, test, attached_up)
    }

    fn start_over(
        mut journal: Box<dyn Journal>,
        settings: Settings,
        agent: Arc<dyn Agent>,
        nodes: Option<Arc<dyn Nodes>>,
        TestServer { clock, faults, feel }: TestServer,
        attached_up: impl FnOnce(),
    ) -> Result<Self, PlaneError> {
        let moment = super::time::moment(&clock);
        let Loaded { mut model, credits: found, stop, clock: kept, revision } = journal.load()?;
        let since_boot = clock.since_boot();
        let time = server_time(&clock, kept.as_ref(), &moment, since_boot);
        let now = time.now(since_boot);
        if cfg!(debug_assertions) {
            model.invariants();
        }
        warn_of_crash(&stop, &model);
        let mut opening = balances_after(&settings, &model, &found, &stop, &moment);
        let stored = unleased(&settings, &model, &opening);
        let events = local_host(&model, &settings, now)?;
        let vitals = Arc::<Vitals>::default();
        vitals.answered();
        let mut writer = Writer {
            journal,
            vitals: Arc::clone(&vitals),
            revision,
            stored,
            born: BTreeMap::new(),
            is_settled: false,
            unanswered: BTreeSet::new(),
            unmade: BTreeMap::new(),
        };
        let mut change = Change { events, unleased: writer.stored.clone(), ..Change::default() };
        change.clock = Some(Moment { unix: now, boot: moment.boot });
        match writer.store(&change) {
            Err(error) if error.is_no_room() && change.events.is_empty() => {
                // Volumes are served and can be deleted, but no credits are leased.
                warn!(%error, "the disk is full: volumes do not burst until there is room");
                (writer.stored, opening) = (found.clone(), found);
            }
            stored => stored?,
        }
        change.events.into_iter().for_each(|event| model.apply(event));
        let keyring = Keyring::of(&model, &settings.account);
        let model = RwLock::new(model);
        // The changes of credits that a former leader received are requested once more.
        let leases = Mutex::new(Leases { behind: nodes.is_some() });
        let upkeep = Mutex::new(Upkeep {
            ticks_to_retry: RETRY_TICKS,
            retried: None,
            ticks_to_space_check: SPACE_TICKS,
        });
        let following = Mutex::new(Following::new(time, since_boot, kept.map(|kept| kept.unix)));
        let writer = Mutex::new(writer);
        let feed = Arc::new(Feed::new(Arc::clone(&clock)));
        #[rustfmt::skip]
        let plane = Self {
            settings, agent, clock, faults, feel, model, leases, writer, upkeep, following, vitals,
            fillings: Mutex::new(Fillings::new(since_boot)), keys: KeyLocks::default(), keyring,
            capacity: Mutex::default(), space: Mutex::default(), scrubbing: Mutex::default(),
            confirmed: Confirmed::default(), copying: Mutex::default(), addresses: Mutex::default(),
            experiments: Default::default(), health: Mutex::default(), recording: None, feed, nodes,
        };
        // Deadlines that may have passed are checked only after this.
        plane.follow_clock();
        plane.bring_up(&opening, attached_up)?;
        Ok(plane)
    }

    /// Sends the data plane its whole state, and reads what it stores.
    fn bring_up(&self, opening: &Credits, attached_up: impl FnOnce()) -> Result<(), PlaneError> {
        self.bring_up_feel();
        self.expect_all();
        self.bring_up_hosts(opening)?;
        let [attached, others] = reconcile::bring_up_order(&self.model());
        self.bring_up_groups(attached, opening)?;
        attached_up();
        self.bring_up_groups(others, opening)?;
        if let Some(nodes) = &self.nodes {
            nodes.keep_only(&self.model().volumes.keys().copied().collect());
        }
        self.bring_up_snapshots()?;
        self.learn_encryption()?;
        self.log_unowned();
        self.refresh_space();
        self.capacity();
        Ok(())
    }

    /// Sets how all volumes feel, before the first request.
    fn bring_up_feel(&self) {
        let Some(feel) = &self.feel else { return };
        let model = self.model();
        model.volumes.values().for_each(|volume| feel.volume(&model, volume));
        drop(model);
        feel.fetch(self.now());
    }

    /// Sets which volumes the nodes may serve.
    fn expect_all(&self) {
        let Some(nodes) = &self.nodes else { return };
        let model = self.model();
        let all = model.volumes.values();
        let all = all.map(|volume| (volume.id, reconcile::may_be_attached(&model, volume)));
        nodes.expect(all.collect());
    }

    fn bring_up_hosts(&self, opening: &Credits) -> Result<(), PlaneError> {
        let hosts: Vec<AgentCommand> = {
            let writer = self.writer()?;
            let model = self.model();
            let state = |host: &Host| {
                let start = writer.start_of_host(host.id, opening);
                reconcile::host(host, start).map(AgentCommand::ApplyHost)
            };
            model.hosts.values().filter_map(state).collect()
        };
        hosts.into_iter().try_for_each(|command| self.call(command).map_err(PlaneError::Agent))
    }

    /// Brings up groups of volumes, several at once, and the volumes of each one after the other.
    fn bring_up_groups(
        &self,
        groups: Vec<Vec<VolumeId>>,
        opening: &Credits,
    ) -> Result<(), PlaneError> {
        let threads = groups.len().div_ceil(GROUPS_PER_THREAD).min(OPENED_AT_ONCE);
        let left = Mutex::new(groups.into_iter());
        let next = || left.lock().unwrap_or_else(PoisonError::into_inner).next();
        let bring_up = || {
            while let Some(group) = next() {
                group.into_iter().try_for_each(|id| self.bring_up_volume(id, opening))?;
            }
            Ok(())
        };
        thread::scope(|scope| {
            let threads: Vec<_> = (0..threads).map(|_| scope.spawn(bring_up)).collect();
            threads.into_iter().try_for_each(|thread| match thread.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            })
        })
    }

    fn bring_up_volume(&self, id: VolumeId, opening: &Credits) -> Result<(), PlaneError> {
        match self.settle(id, Settling::Starting, opening) {
            Ok(()) => {}
            Err(PlaneError::Agent(failed))
                if matches!(failed.kind, FailedKind::Damaged | FailedKind::Internal) =>
            {
                error!(volume = %id, reason = failed.message, "cannot be brought up");
            }
            Err(error) if error.is_unanswered() => warn!(volume = %id, %error, "not up yet"),
            Err(PlaneError::Agent(failed)) if failed.kind != FailedKind::Down => {
                // The change in progress at the stop has been rolled back, so try again without it.
                self.bring_up_or_fail(id, &failed, opening)?;
            }
            Err(error) => return Err(error),
        }
        Ok(())
    }

    fn bring_up_or_fail(
        &self,
        id: VolumeId,
        first: &Failed,
        opening: &Credits,
    ) -> Result<(), PlaneError> {
        warn!(volume = %id, reason = first.message, "cannot be brought up as it was being changed");
        match self.settle(id, Settling::Starting, opening) {
            Err(error) if error.is_unanswered() => Ok(()),
            Err(PlaneError::Agent(failed)) if failed.kind != FailedKind::Down => {
                error!(volume = %id, reason = failed.message, "cannot be brought up");
                let mut writer = self.writer()?;
                let event = self.model().fail(id, &failed.message);
                let events = event.into_iter().collect();
                self.commit(&mut writer, events, &Credits::default())
            }
            other => other,
        }
    }
}

/// Returns the time with which a server starts. A test clock continues where it was, so no part of
/// the time since is in doubt.
fn server_time(
    clock: &ServerClock,
    kept: Option<&Moment>,
    now: &Moment,
    since_boot: Duration,
) -> ServerTime {
    match kept {
        Some(kept) if clock.is_test() && kept.unix <= now.unix => {
            ServerTime::at_start(None, now, since_boot)
        }
        kept => ServerTime::at_start(kept, now, since_boot),
    }
}

fn warn_of_crash(stop: &credits::Stop, model: &Model) {
    if !matches!(stop, credits::Stop::Clean(_)) && !model.volumes.is_empty() {
        warn!(
            "the server was not stopped cleanly; credit balances are reduced by what may be spent"
        );
    }
}

/// Returns the registration of this machine as a host, if it is missing.
fn local_host(model: &Model, settings: &Settings, now: UnixMs) -> Result<Vec<Event>, PlaneError> {
    if model.local_host().is_some() {
        return Ok(vec![]);
    }
    let id = random::instance_id()?;
    let instance_type = LOCAL_TYPE.into();
    let address = HostAddress::Local;
    let tags = Tags::new();
    let command = Command::RegisterHost { id, zone: None, instance_type, address, tags };
    Ok(model.decide(settings, &Capacity::Unknown, &command, now)?.events)
}

/// Returns the balances of all volumes and hosts at a start, from the journal's balances and the
/// time since the stop.
fn balances_after(
    settings: &Settings,
    model: &Model,
    found: &Credits,
    stop: &credits::Stop,
    now: &Moment,
) -> Credits {
    let volumes = model.volumes.values().map(|volume| {
        let balances = found.volumes.get(&volume.id).copied().unwrap_or_default();
        let pacing = reconcile::pacing(settings, volume);
        (volume.id, credits::after_stop(&pacing, balances, stop, now))
    });
    let hosts = model.hosts.values().filter_map(|host| {
        let pacing = reconcile::host_pacing(host)?.as_volume();
        let balances = found.hosts.get(&host.id).copied();
        // A host whose volumes were never used has its balance from its registration.
        let balances = balances.unwrap_or_else(|| Balances::full(&pacing));
        Some((host.id, credits::after_stop(&pacing, balances, stop, now)))
    });
    Credits { volumes: volumes.collect(), hosts: hosts.collect() }
}

/// Returns the unleased part of the balances of all volumes and hosts.
fn unleased(settings: &Settings, model: &Model, balances: &Credits) -> Credits {
    let volumes = model.volumes.values().map(|volume| {
        let pacing = reconcile::pacing(settings, volume);
        (volume.id, credits::unleased(&pacing, balances.volume(volume.id)))
    });
    let hosts = model.hosts.values().filter_map(|host| {
        let pacing = reconcile::host_pacing(host)?.as_volume();
        Some((host.id, credits::unleased(&pacing, balances.host(host.id))))
    });
    Credits { volumes: volumes.collect(), hosts: hosts.collect() }
}
