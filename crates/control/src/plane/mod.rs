//! The control plane at work: decides with the model, stores in the database, tells the data plane.
//!
//! One mutation at a time, each in this order:
//!
//! 1. the model decides; refused requests end here and leave no trace;
//! 2. the decision is committed to the database and becomes visible (`creating`, `attaching`, ...);
//! 3. the data plane is told the volume's whole desired state, and answers when it is in force;
//! 4. the outcome is committed and becomes visible; then the client gets its reply.
//!
//! A crash after 2 leaves an unsettled volume in the database. The next start says it to the data
//! plane again and settles it; so does the tick, should only step 4 have failed.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::latency::Latencies;
use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::units::ByteCount;
use evenkeel_wire::agent::{
    Agent, Capacity, Command as AgentCommand, CreditReport, Failed, FailedKind, HostAddress, Reply,
    Report,
};
use tracing::{debug, error, info, warn};

use crate::capacity::Known;
use crate::journal::{Change, Credits, Journal, JournalError, Loaded, Revision};
use crate::model::{
    AttachmentState, Command, Decision, Event, Host, LOCAL_TYPE, Model, Phase, Refusal, Room,
    Settings, Settled, Tags, Volume,
};
use crate::{clock, credits, reconcile, space};

/// Why a mutation failed.
#[derive(Debug)]
pub enum PlaneError {
    /// The model refused it.
    Refused(Refusal),
    /// It would have been done, but only a dry run was asked for.
    DryRun,
    /// The data plane failed; what was begun is taken back, unless it has not answered yet.
    Agent(Failed),
    /// The journal failed.
    Journal(JournalError),
    /// The OS gave no random bytes for a new id.
    Random(getrandom::Error),
    /// An earlier mutation panicked; what is in memory is not to be trusted. Restart the server.
    Poisoned,
}

impl PlaneError {
    /// Whether the data plane has not answered yet, and will be asked again.
    fn is_unanswered(&self) -> bool {
        matches!(self, Self::Agent(failed) if failed.kind == FailedKind::Unanswered)
    }
}

impl fmt::Display for PlaneError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused(refusal) => write!(f, "refused: {refusal:?}"),
            Self::DryRun => f.write_str("dry run"),
            Self::Agent(failed) => write!(f, "the data plane: {}", failed.message),
            Self::Journal(error) => write!(f, "the database: {error}"),
            Self::Random(error) => write!(f, "the OS gives no random bytes: {error}"),
            Self::Poisoned => f.write_str("an earlier request crashed; restart the server"),
        }
    }
}

impl From<Refusal> for PlaneError {
    fn from(refusal: Refusal) -> Self {
        Self::Refused(refusal)
    }
}

impl From<JournalError> for PlaneError {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

impl From<getrandom::Error> for PlaneError {
    fn from(error: getrandom::Error) -> Self {
        Self::Random(error)
    }
}

/// The volume a mutation was about: as decided, and as it is now.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// As decided: what is going shows here (`detaching`).
    pub decided: Option<Volume>,
    /// As it is now; `None` if it is gone.
    pub settled: Option<Volume>,
}

/// What only the one who mutates may touch.
struct Writer {
    journal: Box<dyn Journal>,
    /// The revision that the model and the balances here are of.
    revision: Revision,
    /// What of all balances is unleased, as it is in the journal.
    stored: Credits,
    /// Balances of what the data plane is being told of for the first time.
    opening: Credits,
    /// Whether balances could not be stored the last time: logged once and not every second, and
    /// what was told then is asked for again.
    behind: bool,
    /// Whether the data plane was told everything when it was last looked, and nothing has happened
    /// since.
    is_settled: bool,
    /// Volumes of which the data plane has not answered the last command, among them some that
    /// the model calls settled: it is told of them again until it answers.
    unanswered: BTreeSet<VolumeId>,
    /// Ticks until volumes in error are tried again.
    ticks_to_retry: u32,
    /// The volume in error that was tried last.
    retried: Option<VolumeId>,
    /// Ticks until the room for bytes at rest is looked at.
    ticks_to_look: u32,
}

/// Every so many ticks volumes in error are tried again: who has put a file back waits no longer.
const RETRY_TICKS: u32 = 5;
/// So many of them at once: a disk that is not mounted may hold thousands.
const RETRIES_MAX: usize = 64;
/// Every so many ticks the room for bytes at rest is looked at: every volume's file is.
const SPACE_TICKS: u32 = 10;

/// Who says to the data plane what a volume should be.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Settling {
    /// A client, who asked for something new.
    Asked,
    /// The server, which says again what was not answered, or what was decided while the volume
    /// was in error.
    Again,
    /// The server as it starts, to a data plane that holds nothing yet.
    Starting,
}

impl Writer {
    fn start_of_volume(&self, id: VolumeId) -> reconcile::Start {
        let unleased = self.stored.volume(id);
        let balances = self.opening.volumes.get(&id).copied().unwrap_or(unleased);
        reconcile::Start { balances, unleased }
    }

    fn start_of_host(&self, id: InstanceId) -> reconcile::Start {
        let unleased = self.stored.host(id);
        let balances = self.opening.hosts.get(&id).copied().unwrap_or(unleased);
        reconcile::Start { balances, unleased }
    }

    /// Stores a change.
    fn store(&mut self, change: &Change) -> Result<(), JournalError> {
        self.revision = self.journal.commit(change, self.revision)?;
        Ok(())
    }
}

/// The control plane.
pub struct Plane {
    /// What is fixed while the server runs.
    pub settings: Settings,
    agent: Arc<dyn Agent>,
    model: RwLock<Model>,
    writer: Mutex<Writer>,
    capacity: Mutex<Known>,
    space: Mutex<space::Known>,
}

impl Plane {
    /// Loads the journal and brings up every volume in the data plane.
    ///
    /// # Errors
    /// The journal cannot be used, or the data plane is not running. A single volume that cannot
    /// be brought up is not an error: it is logged and goes into the state `error`.
    pub fn start(
        mut journal: Box<dyn Journal>,
        settings: Settings,
        agent: Arc<dyn Agent>,
    ) -> Result<Self, PlaneError> {
        let moment = clock::moment();
        let now = moment.unix;
        let Loaded { mut model, credits: found, stop, revision } = journal.load()?;
        if cfg!(debug_assertions) {
            model.invariants();
        }
        if !matches!(stop, credits::Stop::Clean(_)) && !model.volumes.is_empty() {
            warn!(
                "the server was not stopped cleanly; credit balances are reduced by what may be \
                 spent"
            );
        }
        let opening = balances_after(&settings, &model, &found, &stop, &moment);
        let stored = unleased(&settings, &model, &opening);
        let mut events = vec![];
        if model.local_host().is_none() {
            let id = clock::instance_id()?;
            let instance_type = LOCAL_TYPE.into();
            let (address, tags) = (HostAddress::Local, Tags::new());
            let command = Command::RegisterHost { id, instance_type, address, tags };
            events = model.decide(&settings, &Capacity::Unknown, &command, now)?.events;
        }
        let mut writer = Writer {
            journal,
            revision,
            stored,
            opening,
            behind: false,
            is_settled: false,
            unanswered: BTreeSet::new(),
            ticks_to_retry: RETRY_TICKS,
            retried: None,
            ticks_to_look: SPACE_TICKS,
        };
        let change = Change { events, unleased: writer.stored.clone(), stopped: None };
        match writer.store(&change) {
            Err(error) if error.is_no_room() && change.events.is_empty() => {
                // Volumes are served and can be deleted; of their credits nothing is leased.
                warn!(%error, "the disk is full: volumes do not burst until there is room");
                (writer.stored, writer.opening) = (found.clone(), found);
            }
            stored => stored?,
        }
        change.events.into_iter().for_each(|event| model.apply(event));
        let writer = Mutex::new(writer);
        let (model, capacity, space) = (RwLock::new(model), Mutex::default(), Mutex::default());
        let plane = Self { settings, agent, model, writer, capacity, space };
        plane.bring_up_hosts()?;
        plane.bring_up_all()?;
        plane.writer()?.opening = Credits::default();
        plane.tell_of_unowned();
        plane.look_at_space();
        plane.capacity();
        Ok(plane)
    }

    /// Bytes that no volume has take space, and nobody else will tell of them.
    fn tell_of_unowned(&self) {
        match self.unowned() {
            Ok(unowned) if unowned.is_empty() => {}
            Ok(unowned) => {
                let bytes: u64 = unowned.iter().map(|(_, bytes)| bytes.0).sum();
                warn!(
                    volumes = unowned.len(),
                    bytes,
                    "the store holds bytes that no volume has; `evenkeel volume unowned` lists them"
                );
            }
            Err(error) => {
                warn!(%error, "whether the store holds bytes that no volume has is unknown")
            }
        }
    }

    /// Everything that exists, to be read. Do not hold it while calling the data plane.
    pub fn model(&self) -> RwLockReadGuard<'_, Model> {
        // Applying an event cannot leave it half done, so a poisoned lock says nothing here.
        self.model.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Carries out one command; with `dry_run` only checks whether it would be accepted.
    ///
    /// # Errors
    /// See [`PlaneError`].
    pub fn execute(&self, command: &Command, dry_run: bool) -> Result<Outcome, PlaneError> {
        let mut writer = self.writer()?;
        let now = clock::now();
        let capacity = self.capacity();
        let decision = self.model().decide(&self.settings, &capacity, command, now)?;
        self.admit_bytes(&decision)?;
        if dry_run {
            return Err(PlaneError::DryRun);
        }
        let (mut opening, mut changed) = (Credits::default(), Credits::default());
        for event in &decision.events {
            if let Event::Volume(Volume { phase: Phase::Creating, id, spec, .. }) = event {
                let pacing = self.settings.rules.pacing(spec);
                let balances = match command {
                    // Its bytes may have been driven a moment ago.
                    Command::AdoptVolume { .. } => Balances::empty(&pacing),
                    _ => Balances::full(&pacing),
                };
                opening.volumes.insert(*id, balances);
                changed.volumes.insert(*id, credits::unleased(&pacing, balances));
            }
            if let Event::Host(host) = event
                && !writer.stored.hosts.contains_key(&host.id)
                && let Some(pacing) = reconcile::host_pacing(host)
            {
                let pacing = pacing.as_volume();
                let balances = Balances::full(&pacing);
                opening.hosts.insert(host.id, balances);
                changed.hosts.insert(host.id, credits::unleased(&pacing, balances));
            }
        }
        if !decision.events.is_empty() {
            match self.commit(&mut writer, decision.events.clone(), &changed) {
                // The disk is so full that not even that can be noted: the bytes go first, and make
                // room for the note. A crash between leaves a volume in error, to be deleted again.
                Err(PlaneError::Journal(error))
                    if error.is_no_room() && matches!(command, Command::DeleteVolume { .. }) =>
                {
                    self.apply(&mut writer, decision.events.clone());
                }
                done => done?,
            }
        }
        writer.opening = opening;
        let told = self.tell(&mut writer, &decision);
        writer.opening = Credits::default();
        told
    }

    /// Tells the data plane what was decided, and makes the outcome final.
    fn tell(&self, writer: &mut Writer, decision: &Decision) -> Result<Outcome, PlaneError> {
        for command in decision.events.iter().filter_map(|event| host_command(event, writer)) {
            self.call(command).map_err(PlaneError::Agent)?;
        }
        let Some(id) = decision.volume else { return Ok(Outcome::default()) };
        let decided = self.model().volumes.get(&id).cloned();
        if decided.as_ref().is_some_and(|volume| !volume.is_settled()) {
            self.settle(writer, id, Settling::Asked)?;
        }
        Ok(Outcome { decided, settled: self.model().volumes.get(&id).cloned() })
    }

    /// How volumes and hosts are, as the data plane sees them.
    ///
    /// # Errors
    /// [`PlaneError::Agent`].
    pub fn report(&self) -> Result<Report, PlaneError> {
        match self.agent.call(AgentCommand::Report) {
            Reply::Report(report) => Ok(report),
            Reply::Failed(failed) => Err(PlaneError::Agent(failed)),
            _ => Err(PlaneError::Agent(unexpected("Report was answered with something else"))),
        }
    }

    /// Bytes at rest that no volume has: whose they were, and how many.
    ///
    /// # Errors
    /// [`PlaneError::Agent`].
    pub fn unowned(&self) -> Result<Vec<(VolumeId, ByteCount)>, PlaneError> {
        let mut stored = match self.agent.call(AgentCommand::Stored) {
            Reply::Stored(stored) => stored,
            Reply::Failed(failed) => return Err(PlaneError::Agent(failed)),
            _ => {
                return Err(PlaneError::Agent(unexpected(
                    "Stored was answered with something else",
                )));
            }
        };
        let model = self.model();
        stored.retain(|(id, _)| !model.volumes.contains_key(id));
        Ok(stored)
    }

    /// How many bytes there are of `id` that no volume has.
    ///
    /// # Errors
    /// [`Refusal::NotUnowned`] if there are none, [`PlaneError::Agent`].
    pub fn unowned_bytes(&self, id: VolumeId) -> Result<ByteCount, PlaneError> {
        let unowned = self.unowned()?.into_iter().find(|(of, _)| *of == id);
        unowned.map(|(_, bytes)| bytes).ok_or(PlaneError::Refused(Refusal::NotUnowned(id)))
    }

    /// Deletes bytes at rest that no volume has; with `dry_run` only checks whether there are any.
    ///
    /// # Errors
    /// See [`PlaneError`].
    pub fn delete_unowned(&self, id: VolumeId, dry_run: bool) -> Result<(), PlaneError> {
        // Nobody makes a volume of them meanwhile.
        let _writer = self.writer()?;
        self.unowned_bytes(id)?;
        match dry_run {
            true => Err(PlaneError::DryRun),
            false => self.call(AgentCommand::Delete(id)).map_err(PlaneError::Agent),
        }
    }

    /// What may be sold, as the data plane says now; or as it said last, while it does not answer.
    /// The log is told of what has changed.
    pub fn capacity(&self) -> Capacity {
        let answer = self.agent.call(AgentCommand::Capacity);
        let mut known = self.capacity.lock().unwrap_or_else(PoisonError::into_inner);
        let answered = match answer {
            Reply::Capacity(capacity) => Some(capacity),
            _ => None,
        };
        let sells = answered.as_ref().unwrap_or(known.now());
        if !self.model().keeps_books(&self.settings, sells) {
            let mut model = self.model.write().unwrap_or_else(PoisonError::into_inner);
            model.keep_books(&self.settings, sells);
        }
        if let Some(capacity) = answered {
            known.learn(capacity, &self.settings, || self.model());
        }
        known.now().clone()
    }

    /// Room for bytes at rest, as the data plane said last; `None` where it does not know.
    pub fn room(&self) -> Option<Room> {
        self.space.lock().unwrap_or_else(PoisonError::into_inner).now()
    }

    /// Asks the data plane how much room there is for bytes at rest. The log is told when it
    /// becomes little.
    fn look_at_space(&self) {
        let Reply::Space(space) = self.agent.call(AgentCommand::Space) else { return };
        let unowned = match space.map(|_| self.unowned()) {
            None => vec![],
            Some(Ok(unowned)) => unowned,
            Some(Err(_)) => return,
        };
        let room = space.map(|space| Room { space, unowned });
        let sold =
            room.as_ref().map_or_else(ByteCount::default, |room| self.model().taken_of(room));
        let oversell = self.settings.space_oversell;
        let for_sale = space.and_then(|space| oversell.for_sale(space.total));
        self.space.lock().unwrap_or_else(PoisonError::into_inner).learn(room, sold, for_sale);
    }

    /// Whether there is room for the bytes of what was decided.
    fn admit_bytes(&self, decision: &Decision) -> Result<(), Refusal> {
        let admit = || self.model().admit_bytes(&self.settings, self.room(), &decision.events);
        admit().or_else(|_| {
            // There may be more room than a moment ago.
            self.look_at_space();
            admit()
        })
    }

    /// Where requests spent their time: of all volumes that were used, or of one.
    ///
    /// # Errors
    /// [`PlaneError::Agent`].
    pub fn latencies(
        &self,
        of: Option<VolumeId>,
    ) -> Result<Vec<(VolumeId, Box<Latencies>)>, PlaneError> {
        match self.agent.call(AgentCommand::Latencies(of)) {
            Reply::Latencies(latencies) => Ok(latencies),
            Reply::Failed(failed) => Err(PlaneError::Agent(failed)),
            _ => Err(PlaneError::Agent(unexpected("Latencies was answered with something else"))),
        }
    }

    /// Sets credit balances in the data plane and stores them.
    ///
    /// # Errors
    /// See [`PlaneError`].
    pub fn set_balances(&self, id: VolumeId, balances: Balances) -> Result<(), PlaneError> {
        let mut writer = self.writer()?;
        let pacing = reconcile::pacing(&self.settings, self.model().volume(id)?);
        // Before there is less, less is on disk.
        let (before, after) = (writer.stored.volume(id), credits::unleased(&pacing, balances));
        let least = |set: Option<u64>, before: Option<u64>, after: Option<u64>| match set {
            Some(_) => before.min(after),
            None => before,
        };
        let row = Balances {
            operations: least(balances.operations, before.operations, after.operations),
            bytes: least(balances.bytes, before.bytes, after.bytes),
        };
        let row_of_it = Credits { volumes: [(id, row)].into(), ..Default::default() };
        if row != before {
            self.commit(&mut writer, vec![], &row_of_it)?;
        }
        self.call(AgentCommand::SetBalances(id, balances)).map_err(PlaneError::Agent)?;
        // Where there was more before, all that is left may be unleased.
        self.lease(&row_of_it)?;
        let report = self.report()?;
        self.renew(&mut writer, credits_of(report))
    }

    /// Once a second: notices how much may be sold now, renews the leases of credits, and settles
    /// what could not be settled before.
    pub fn tick(&self) {
        let Ok(mut writer) = self.writer() else { return };
        self.capacity();
        // Nothing becomes unsettled but by an event: ten thousand volumes are not looked through
        // every second.
        let mut unsettled: BTreeSet<VolumeId> = match writer.is_settled {
            true => BTreeSet::new(),
            false => reconcile::unsettled(&self.model()).into_iter().collect(),
        };
        writer.is_settled = unsettled.is_empty();
        unsettled.extend(&writer.unanswered);
        for id in unsettled {
            match self.settle(&mut writer, id, Settling::Again) {
                Ok(()) => {}
                // Whoever asked for it was told.
                Err(error) if error.is_unanswered() => debug!(volume = %id, "still no answer"),
                Err(error) => warn!(volume = %id, %error, "could not be settled; trying again"),
            }
        }
        self.retry_in_error(&mut writer);
        writer.ticks_to_look = writer.ticks_to_look.checked_sub(1).unwrap_or(SPACE_TICKS);
        if writer.ticks_to_look == 0 {
            self.look_at_space();
        }
        let was_behind = writer.behind;
        match self.renew_moved(&mut writer) {
            Ok(()) if was_behind => info!("credits are being leased again"),
            Err(error) if !was_behind => {
                warn!(%error, "credits are not being leased: bursts end when the leases do");
            }
            _ => {}
        }
    }

    /// Tries volumes in error again, now and then: what was wrong may have been mended.
    fn retry_in_error(&self, writer: &mut Writer) {
        writer.ticks_to_retry = writer.ticks_to_retry.saturating_sub(1);
        if writer.ticks_to_retry > 0 {
            return;
        }
        writer.ticks_to_retry = RETRY_TICKS;
        let in_error = reconcile::in_error(&self.model());
        // From where the last time ended, so that everyone has a turn.
        let first = in_error.partition_point(|id| writer.retried.is_some_and(|last| *id <= last));
        let turns = in_error.iter().cycle().skip(first).take(in_error.len().min(RETRIES_MAX));
        for &id in turns {
            writer.retried = Some(id);
            match self.settle(writer, id, Settling::Again) {
                Ok(()) => info!(volume = %id, "back in service"),
                Err(error) => debug!(volume = %id, %error, "still in error"),
            }
        }
    }

    /// Renews the leases of the balances that moved; of all of them if the last time failed.
    fn renew_moved(&self, writer: &mut Writer) -> Result<(), PlaneError> {
        let was_behind = std::mem::replace(&mut writer.behind, true);
        let told = match was_behind {
            true => credits_of(self.report()?),
            false => match self.agent.call(AgentCommand::Balances) {
                Reply::Balances(told) => told,
                Reply::Failed(failed) => return Err(PlaneError::Agent(failed)),
                _ => {
                    return Err(PlaneError::Agent(unexpected(
                        "Balances was answered with something else",
                    )));
                }
            },
        };
        self.renew(writer, told)?;
        if was_behind {
            // Less may be leased than what is on disk allows: the data plane is told first.
            self.lease(&writer.stored)?;
        }
        writer.behind = false;
        Ok(())
    }

    /// Renews leases: to lease less, the data plane is told and then the disk; to lease more, the
    /// disk and then the data plane. So what is on disk is never more than there is.
    fn renew(&self, writer: &mut Writer, told: CreditReport) -> Result<(), PlaneError> {
        let Renewal { mut rows, less, more } = self.renewal(writer, told);
        if rows.is_empty() {
            return Ok(());
        }
        if !less.is_empty() {
            overlay(&mut rows, &self.lease(&less)?);
        }
        self.commit(writer, vec![], &rows)?;
        if !more.is_empty() {
            self.lease(&more)?;
        }
        Ok(())
    }

    /// What there is to be renewed.
    fn renewal(&self, writer: &Writer, told: CreditReport) -> Renewal {
        let (model, mut renewal) = (self.model(), Renewal::default());
        for (id, balances) in told.volumes {
            if let Some(volume) = model.volumes.get(&id)
                && let Some(&before) = writer.stored.volumes.get(&id)
            {
                let pacing = reconcile::pacing(&self.settings, volume);
                let (row, less, more) = renewed(&pacing, before, balances);
                renewal.rows.volumes.extend(row.map(|row| (id, row)));
                renewal.less.volumes.extend(less.map(|less| (id, less)));
                renewal.more.volumes.extend(more.map(|more| (id, more)));
            }
        }
        for (id, balances) in told.hosts {
            if let Some(host) = model.hosts.get(&id)
                && let Some(pacing) = reconcile::host_pacing(host)
                && let Some(&before) = writer.stored.hosts.get(&id)
            {
                let (row, less, more) = renewed(&pacing.as_volume(), before, balances);
                renewal.rows.hosts.extend(row.map(|row| (id, row)));
                renewal.less.hosts.extend(less.map(|less| (id, less)));
                renewal.more.hosts.extend(more.map(|more| (id, more)));
            }
        }
        renewal
    }

    /// Tells the data plane what is unleased; what of it is so now.
    fn lease(&self, unleased: &Credits) -> Result<Credits, PlaneError> {
        let volumes = unleased.volumes.iter().map(|(id, balances)| (*id, *balances)).collect();
        let hosts = unleased.hosts.iter().map(|(id, balances)| (*id, *balances)).collect();
        match self.agent.call(AgentCommand::Lease(CreditReport { volumes, hosts })) {
            Reply::Balances(CreditReport { volumes, hosts }) => Ok(Credits {
                volumes: volumes.into_iter().collect(),
                hosts: hosts.into_iter().collect(),
            }),
            Reply::Failed(failed) => Err(PlaneError::Agent(failed)),
            _ => Err(PlaneError::Agent(unexpected("Lease was answered with something else"))),
        }
    }

    /// Stores the final balances. Volumes that spend credits are closed to their hosts before, so
    /// that nothing can be spent after the last report: control plane and data plane stop together.
    ///
    /// # Errors
    /// The database or the data plane failed; the next start then treats this one as a crash.
    pub fn stop(&self) -> Result<(), PlaneError> {
        let mut writer = self.writer()?;
        let model = self.model();
        let spends = |volume: &&Volume| {
            volume.phase == Phase::Ready
                && reconcile::spends_credits(&self.settings, &model, volume)
        };
        let to_close: Vec<AgentCommand> = model
            .volumes
            .values()
            .filter(spends)
            .map(|volume| {
                reconcile::closed(&self.settings, volume, writer.start_of_volume(volume.id))
            })
            .collect();
        drop(model);
        for command in to_close {
            match self.call(command) {
                Ok(()) => {}
                // Its bytes cannot be reached: it is closed, and all others stop cleanly.
                Err(failed) if failed.kind == FailedKind::Damaged => {
                    warn!(reason = failed.message, "a volume was closed already");
                }
                Err(failed) => return Err(PlaneError::Agent(failed)),
            }
        }
        let changed = changed(&writer.stored, credits_of(self.report()?));
        let stopped = Some(clock::moment());
        writer.store(&Change { events: vec![], unleased: changed, stopped })?;
        Ok(())
    }

    fn writer(&self) -> Result<MutexGuard<'_, Writer>, PlaneError> {
        self.writer.lock().map_err(|_| PlaneError::Poisoned)
    }

    /// Stores events and balances; only then are they true in memory.
    fn commit(
        &self,
        writer: &mut Writer,
        events: Vec<Event>,
        changed: &Credits,
    ) -> Result<(), PlaneError> {
        let change = Change { events, unleased: changed.clone(), stopped: None };
        writer.store(&change)?;
        writer.stored.extend(changed);
        self.apply(writer, change.events);
        Ok(())
    }

    /// Makes events true in memory.
    fn apply(&self, writer: &mut Writer, events: Vec<Event>) {
        writer.is_settled &= events.is_empty();
        let mut model = self.model.write().unwrap_or_else(PoisonError::into_inner);
        for event in events {
            writer.stored.apply(&event);
            model.apply(event);
        }
    }

    /// Tells the data plane what `id` should be, and makes the outcome final.
    fn settle(
        &self,
        writer: &mut Writer,
        id: VolumeId,
        settling: Settling,
    ) -> Result<(), PlaneError> {
        let Some(command) = self.desired(writer, id) else {
            writer.unanswered.remove(&id);
            return Ok(());
        };
        let before = |is: fn(&Volume) -> bool| self.model().volumes.get(&id).is_some_and(is);
        let modifying = before(Volume::is_being_modified);
        let was_in_error = before(|volume| matches!(volume.phase, Phase::Error(_)));
        let detaching = before(|volume| {
            volume.attachments.iter().any(|a| a.state == AttachmentState::Detaching)
        });
        let deleting = before(|volume| volume.phase == Phase::Deleting);
        let answer = self.call(command);
        if let Err(failed) = &answer
            && failed.kind == FailedKind::Unanswered
        {
            // It may be done at any moment, so it is not taken back: the tick says it again.
            writer.unanswered.insert(id);
            return Err(PlaneError::Agent(failed.clone()));
        }
        writer.unanswered.remove(&id);
        let now = clock::now();
        let settled = settled(&answer, settling, was_in_error);
        let events = self.model().settle(&self.settings, id, settled, now);
        if !events.is_empty() {
            self.commit(writer, events, &Credits::default())?;
        }
        // What is not served, no host can reach: it is detached.
        let is_shut = detaching
            && before(|volume| {
                let stays =
                    volume.attachments.iter().any(|a| a.state == AttachmentState::Detaching);
                matches!(volume.phase, Phase::Error(_)) && !stays
            });
        if deleting && answer.is_err() {
            // As far as its bytes are in order it is served again at once.
            let _ = self.settle(writer, id, Settling::Again);
        }
        if modifying && answer.is_ok() {
            // New limits may mean new credits: what they are must be on disk before anybody is
            // told. What was just applied is among those that moved; if the data plane does not
            // tell them, the tick asks for all.
            match self.renew_moved(writer) {
                Ok(()) | Err(PlaneError::Agent(_)) => {}
                failed => failed?,
            }
        }
        match answer {
            Err(_) if is_shut => Ok(()),
            answer => answer.map_err(PlaneError::Agent),
        }
    }

    fn desired(&self, writer: &Writer, id: VolumeId) -> Option<AgentCommand> {
        let model = self.model();
        let volume = model.volumes.get(&id)?;
        let credits = writer.start_of_volume(id);
        Some(reconcile::desired(&self.settings, &model, volume, credits))
    }

    fn call(&self, command: AgentCommand) -> Result<(), Failed> {
        match self.agent.call(command) {
            Reply::Done => Ok(()),
            Reply::Failed(failed) => Err(failed),
            _ => Err(unexpected("a command was answered with something else")),
        }
    }

    fn bring_up_hosts(&self) -> Result<(), PlaneError> {
        let writer = self.writer()?;
        let hosts: Vec<AgentCommand> = {
            let model = self.model();
            let state = |host: &Host| {
                reconcile::host(host, writer.start_of_host(host.id)).map(AgentCommand::ApplyHost)
            };
            model.hosts.values().filter_map(state).collect()
        };
        hosts.into_iter().try_for_each(|command| self.call(command).map_err(PlaneError::Agent))
    }

    fn bring_up_all(&self) -> Result<(), PlaneError> {
        let mut writer = self.writer()?;
        let ids = reconcile::bring_up_order(&self.model());
        for id in ids {
            match self.settle(&mut writer, id, Settling::Starting) {
                Ok(()) => {}
                Err(PlaneError::Agent(failed))
                    if matches!(failed.kind, FailedKind::Damaged | FailedKind::Internal) =>
                {
                    error!(volume = %id, reason = failed.message, "cannot be brought up");
                }
                Err(error) if error.is_unanswered() => warn!(volume = %id, %error, "not up yet"),
                Err(PlaneError::Agent(failed)) if failed.kind != FailedKind::Down => {
                    // What was begun before the stop is taken back now; try again without it.
                    self.bring_up_or_fail(&mut writer, id, &failed)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn bring_up_or_fail(
        &self,
        writer: &mut Writer,
        id: VolumeId,
        first: &Failed,
    ) -> Result<(), PlaneError> {
        warn!(volume = %id, reason = first.message, "cannot be brought up as it was being changed");
        match self.settle(writer, id, Settling::Starting) {
            Err(error) if error.is_unanswered() => Ok(()),
            Err(PlaneError::Agent(failed)) if failed.kind != FailedKind::Down => {
                error!(volume = %id, reason = failed.message, "cannot be brought up");
                let event = self.model().fail(id, &failed.message);
                let events = event.into_iter().collect();
                self.commit(writer, events, &Credits::default())
            }
            other => other,
        }
    }
}

/// What an answer to a volume's desired state means for the volume.
fn settled<'a>(
    answer: &'a Result<(), Failed>,
    settling: Settling,
    was_in_error: bool,
) -> Settled<'a> {
    let Err(Failed { kind, message }) = answer else { return Settled::Done };
    match (kind, settling) {
        (FailedKind::Damaged, Settling::Asked) if !was_in_error => Settled::Lost(message),
        (FailedKind::Damaged, _) => Settled::Unreachable(message),
        // What hinders opening may pass, and clients may have seen what was begun before.
        (FailedKind::Internal, Settling::Starting) => Settled::Unreachable(message),
        _ => Settled::Failed(message),
    }
}

/// The balances in a report.
fn credits_of(report: Report) -> CreditReport {
    CreditReport {
        volumes: report.volumes.iter().map(|report| (report.id, report.balances)).collect(),
        hosts: report.hosts.iter().map(|report| (report.id, report.balances)).collect(),
    }
}

/// The balances that are not yet in the database, of volumes and hosts that are in it.
fn changed(stored: &Credits, told: CreditReport) -> Credits {
    let CreditReport { mut volumes, mut hosts } = told;
    volumes.retain(|(id, new)| stored.volumes.get(id).is_some_and(|old| old != new));
    hosts.retain(|(id, new)| stored.hosts.get(id).is_some_and(|old| old != new));
    Credits { volumes: volumes.into_iter().collect(), hosts: hosts.into_iter().collect() }
}

/// What the balances of everything that exists are worth at a start.
fn balances_after(
    settings: &Settings,
    model: &Model,
    found: &Credits,
    stop: &credits::Stop,
    now: &credits::Moment,
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

/// What of the balances of everything that exists is not leased.
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

/// Puts those amounts of others in the place of these that there are, where there are any.
fn overlay(rows: &mut Credits, others: &Credits) {
    let overlay = |over: &Balances, row: &mut Balances| {
        row.operations = over.operations.or(row.operations);
        row.bytes = over.bytes.or(row.bytes);
    };
    for (id, over) in &others.volumes {
        if let Some(row) = rows.volumes.get_mut(id) {
            overlay(over, row);
        }
    }
    for (id, over) in &others.hosts {
        if let Some(row) = rows.hosts.get_mut(id) {
            overlay(over, row);
        }
    }
}

/// Leases that are to be renewed.
#[derive(Default)]
struct Renewal {
    /// What is to be in the database, of all that change.
    rows: Credits,
    /// What is to be unleased where that is more than before, so that less is leased.
    less: Credits,
    /// The same where more is leased.
    more: Credits,
}

/// What is to be unleased of `balances` instead of `before`, if it changes: all of it, and the
/// parts by which less and more is leased.
fn renewed(
    pacing: &Pacing,
    before: Balances,
    balances: Balances,
) -> (Option<Balances>, Option<Balances>, Option<Balances>) {
    let row = credits::renewed(pacing, before, balances);
    let part = |is: fn(u64, u64) -> bool| {
        let one =
            |row: Option<u64>, before: Option<u64>| row.filter(|row| is(*row, before.unwrap_or(0)));
        let operations = one(row.operations, before.operations);
        let part = Balances { operations, bytes: one(row.bytes, before.bytes) };
        (part != Balances::default()).then_some(part)
    };
    ((row != before).then_some(row), part(|row, before| row > before), part(|row, b| row < b))
}

/// What the data plane is told when a host comes or goes.
fn host_command(event: &Event, writer: &Writer) -> Option<AgentCommand> {
    match event {
        Event::Host(host) => {
            reconcile::host(host, writer.start_of_host(host.id)).map(AgentCommand::ApplyHost)
        }
        Event::HostGone(id) => Some(AgentCommand::DeleteHost(*id)),
        _ => None,
    }
}

fn unexpected(what: &str) -> Failed {
    Failed { kind: FailedKind::Internal, message: what.into() }
}
