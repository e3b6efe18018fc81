//! The control plane at work: decides with the model, commits to the journal, calls the data plane.
//!
//! Each mutation takes these steps:
//!
//! 1. it waits for its turn: changes of one volume or host run in order ([`turns`]), others side by
//!    side;
//! 2. the model decides; a refused request ends here and leaves no trace;
//! 3. the decision is committed to the journal and becomes visible (`creating`, `attaching`, ...);
//! 4. the data plane is called with the volume's whole desired state, and answers when it is in
//!    force;
//! 5. the outcome is committed and becomes visible; then the client gets its reply.
//!
//! A crash after 3 leaves an unsettled volume in the journal. The next start calls the data plane
//! again and settles it; so does the tick, should only step 5 have failed. The tick leaves a volume
//! alone while somebody has its turn.
//!
//! Three locks, always taken in this order, and only the first two are held while the data plane is
//! called:
//!
//! - **A turn** covers one change from before its decision until its outcome is committed. So the
//!   data plane hears of one volume in the order of decisions, and of a host before volumes that
//!   are attached to it. A slow device holds up changes of its own volume only.
//! - **The leases** cover a renewal of leases or a change of balances as a whole. Two of them that
//!   ran side by side could leave more on disk than there is. Their calls touch no bytes at rest.
//! - **The writer** covers deciding and committing. What else reads and writes a volume meanwhile
//!   (tags of it take its turn) is never lost, because both happen under this lock.
//!
//! A renewal and a change of the same volume may overlap, since a slow change must not stop the
//! renewal. What was made or deleted after a renewal began is left out of it. To have less leased,
//! the data plane confirms first, and a volume that it does not confirm keeps its row. To have more
//! leased, the row is committed first. So the journal holds a lower bound at every moment.

pub mod turns;

use std::collections::{BTreeMap, BTreeSet};
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

use self::turns::{Key, Turn, Turns};
use crate::capacity::Known;
use crate::journal::{Change, Credits, Journal, JournalError, Loaded, Revision};
use crate::model::{
    AttachmentState, Command, Decision, Event, Host, LOCAL_TYPE, Model, Phase, Refusal, Room,
    Settings, Settled, Tagged, Tags, Volume,
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
    /// So many changes wait already.
    Busy(usize),
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
            Self::Busy(count) => write!(f, "{count} changes wait already; try again"),
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
    /// At which revision a volume got its row: a renewal that began before leaves it out.
    born: BTreeMap<VolumeId, Revision>,
    /// Whether the data plane was told everything when it was last looked, and nothing has happened
    /// since.
    is_settled: bool,
    /// Volumes of which the data plane has not answered the last command, among them some that
    /// the model calls settled: it is called with them again until it answers.
    unanswered: BTreeSet<VolumeId>,
}

/// What only a renewal of leases may touch.
#[derive(Default)]
struct Leases {
    /// Whether balances could not be stored the last time: logged once and not every second, and
    /// what was told then is asked for again.
    behind: bool,
}

/// What is looked after from tick to tick.
struct Upkeep {
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
    fn start_of_volume(&self, id: VolumeId, opening: &Credits) -> reconcile::Start {
        let unleased = self.stored.volume(id);
        let balances = opening.volumes.get(&id).copied().unwrap_or(unleased);
        reconcile::Start { balances, unleased }
    }

    fn start_of_host(&self, id: InstanceId, opening: &Credits) -> reconcile::Start {
        let unleased = self.stored.host(id);
        let balances = opening.hosts.get(&id).copied().unwrap_or(unleased);
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
    turns: Turns,
    leases: Mutex<Leases>,
    writer: Mutex<Writer>,
    upkeep: Mutex<Upkeep>,
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
        let mut opening = balances_after(&settings, &model, &found, &stop, &moment);
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
            born: BTreeMap::new(),
            is_settled: false,
            unanswered: BTreeSet::new(),
        };
        let change = Change { events, unleased: writer.stored.clone(), stopped: None };
        match writer.store(&change) {
            Err(error) if error.is_no_room() && change.events.is_empty() => {
                // Volumes are served and can be deleted; of their credits nothing is leased.
                warn!(%error, "the disk is full: volumes do not burst until there is room");
                (writer.stored, opening) = (found.clone(), found);
            }
            stored => stored?,
        }
        change.events.into_iter().for_each(|event| model.apply(event));
        let writer = Mutex::new(writer);
        let (model, capacity, space) = (RwLock::new(model), Mutex::default(), Mutex::default());
        let (turns, leases) = (Turns::default(), Mutex::default());
        let upkeep = Mutex::new(Upkeep {
            ticks_to_retry: RETRY_TICKS,
            retried: None,
            ticks_to_look: SPACE_TICKS,
        });
        let plane = Self { settings, agent, model, turns, leases, writer, upkeep, capacity, space };
        plane.bring_up_hosts(&opening)?;
        plane.bring_up_all(&opening)?;
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
        let turn = self.turn(self.keys(command))?;
        self.execute_in(turn, command, dry_run)
    }

    /// The same in a turn that covers all that the command touches.
    fn execute_in(
        &self,
        turn: Turn<'_>,
        command: &Command,
        dry_run: bool,
    ) -> Result<Outcome, PlaneError> {
        let capacity = self.capacity();
        let decided = match self.decide(command, dry_run, &capacity) {
            Err(PlaneError::Refused(Refusal::Space(_))) => {
                // There may be more room than a moment ago.
                self.look_at_space();
                self.decide(command, dry_run, &capacity)
            }
            decided => decided,
        };
        let (decision, opening) = decided?;
        let mut _turn = turn;
        if let (true, Some(id)) = (decision.events.is_empty(), decision.volume) {
            // It is about a volume that was made before, whose turn this is not.
            drop(_turn);
            _turn = self.turn(vec![Key::Volume(id)])?;
        }
        self.carry_out(&decision, &opening)
    }

    /// Makes a volume of bytes at rest that no volume has, whose number `command` is told.
    ///
    /// # Errors
    /// See [`PlaneError`], and what `command` says.
    pub fn adopt<E: From<PlaneError>>(
        &self,
        id: VolumeId,
        dry_run: bool,
        command: impl FnOnce(ByteCount) -> Result<Command, E>,
    ) -> Result<Outcome, E> {
        // Nobody deletes them meanwhile.
        let turn = self.turn(vec![Key::Volume(id)])?;
        let command = command(self.unowned_bytes(id)?)?;
        Ok(self.execute_in(turn, &command, dry_run)?)
    }

    fn turn(&self, keys: Vec<Key>) -> Result<Turn<'_>, PlaneError> {
        self.turns.take(keys).ok_or(PlaneError::Busy(turns::CHANGES_MAX))
    }

    /// What a command touches.
    fn keys(&self, command: &Command) -> Vec<Key> {
        let model = self.model();
        match command {
            Command::CreateVolume { id, token, .. } => {
                let token = token.iter().map(|(name, _)| Key::Token(name.clone()));
                token.chain([Key::Volume(*id)]).collect()
            }
            Command::AdoptVolume { id, .. }
            | Command::DeleteVolume { id }
            | Command::DetachVolume { id, .. }
            | Command::ModifyVolume { id, .. } => vec![Key::Volume(*id)],
            Command::AttachVolume { id, instance, device } => {
                // Who is just leaving the device makes room for it.
                let others = model.attachments_of(*instance).filter(|(_, a)| a.device == *device);
                let others = others.map(|(volume, _)| Key::Volume(volume.id));
                others.chain([Key::Volume(*id), Key::HostStays(*instance)]).collect()
            }
            Command::CreateTags { resources, .. } | Command::DeleteTags { resources, .. } => {
                let key = |tagged: &Tagged| match tagged {
                    Tagged::Volume(id) => Key::Volume(*id),
                    Tagged::Instance(id) => Key::Host(*id),
                };
                resources.iter().map(key).collect()
            }
            Command::RegisterHost { id, .. } => vec![Key::Host(*id)],
            Command::DeregisterHost { id } => {
                // Its volumes may just be leaving it.
                let its = model.attachments_of(*id).map(|(volume, _)| Key::Volume(volume.id));
                its.chain([Key::Host(*id)]).collect()
            }
        }
    }

    /// Decides and commits; with `dry_run` only decides. Gives the balances too with which what is
    /// new starts.
    fn decide(
        &self,
        command: &Command,
        dry_run: bool,
        capacity: &Capacity,
    ) -> Result<(Decision, Credits), PlaneError> {
        let mut writer = self.writer()?;
        let now = clock::now();
        let decision = self.model().decide(&self.settings, capacity, command, now)?;
        self.model().admit_bytes(&self.settings, self.room(), &decision.events)?;
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
        Ok((decision, opening))
    }

    /// Calls the data plane with what was decided, and makes the outcome final.
    fn carry_out(&self, decision: &Decision, opening: &Credits) -> Result<Outcome, PlaneError> {
        let hosts: Vec<AgentCommand> = {
            let writer = self.writer()?;
            let command = |event| host_command(event, &writer, opening);
            decision.events.iter().filter_map(command).collect()
        };
        for command in hosts {
            self.call(command).map_err(PlaneError::Agent)?;
        }
        let Some(id) = decision.volume else { return Ok(Outcome::default()) };
        let decided = self.model().volumes.get(&id).cloned();
        if decided.as_ref().is_some_and(|volume| !volume.is_settled()) {
            self.settle(id, Settling::Asked, opening)?;
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
        let _turn = self.turn(vec![Key::Volume(id)])?;
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
        let _turn = self.turn(vec![Key::Volume(id)])?;
        let _leases = self.leases()?;
        let pacing = reconcile::pacing(&self.settings, self.model().volume(id)?);
        let row_of_it = self.lower(id, &pacing, balances)?;
        self.call(AgentCommand::SetBalances(id, balances)).map_err(PlaneError::Agent)?;
        // Where there was more before, all that is left may be unleased.
        self.lease(&row_of_it)?;
        let began = self.writer()?.revision;
        let report = self.report()?;
        self.renew(credits_of(report), began)
    }

    /// Before there is less, less is on disk: the row that holds before and after `balances` are
    /// set.
    fn lower(
        &self,
        id: VolumeId,
        pacing: &Pacing,
        balances: Balances,
    ) -> Result<Credits, PlaneError> {
        let mut writer = self.writer()?;
        let (before, after) = (writer.stored.volume(id), credits::unleased(pacing, balances));
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
        Ok(row_of_it)
    }

    /// Once a second: both of what follows.
    pub fn tick(&self) {
        self.look_after();
        self.renew_leases();
    }

    /// Settles what could not be settled before, now and then also volumes in error, and looks at
    /// the room for bytes at rest. May take as long as the device does.
    pub fn look_after(&self) {
        let Ok(mut upkeep) = self.upkeep.try_lock() else { return };
        for id in self.unsettled() {
            // Whoever has its turn settles it.
            let Some(_turn) = self.turns.try_take(vec![Key::Volume(id)]) else { continue };
            let is_settled = self.model().volumes.get(&id).is_none_or(Volume::is_settled);
            if is_settled && !self.writer().is_ok_and(|writer| writer.unanswered.contains(&id)) {
                continue;
            }
            match self.settle(id, Settling::Again, &Credits::default()) {
                Ok(()) => {}
                // Whoever asked for it was told.
                Err(error) if error.is_unanswered() => debug!(volume = %id, "still no answer"),
                Err(error) => warn!(volume = %id, %error, "could not be settled; trying again"),
            }
        }
        self.retry_in_error(&mut upkeep);
        upkeep.ticks_to_look = upkeep.ticks_to_look.checked_sub(1).unwrap_or(SPACE_TICKS);
        if upkeep.ticks_to_look == 0 {
            self.look_at_space();
        }
    }

    /// Volumes about which the data plane is still to be told something. Nothing becomes unsettled
    /// but by an event: ten thousand volumes are not looked through every second.
    fn unsettled(&self) -> BTreeSet<VolumeId> {
        let Ok(mut writer) = self.writer() else { return BTreeSet::new() };
        let mut unsettled: BTreeSet<VolumeId> = match writer.is_settled {
            true => BTreeSet::new(),
            false => reconcile::unsettled(&self.model()).into_iter().collect(),
        };
        writer.is_settled = unsettled.is_empty();
        unsettled.extend(&writer.unanswered);
        unsettled
    }

    /// Notices how much may be sold now, and renews the leases of credits. Touches no bytes at
    /// rest, and so is quick on a slow device.
    pub fn renew_leases(&self) {
        self.capacity();
        let Ok(mut leases) = self.leases() else { return };
        let was_behind = leases.behind;
        match self.renew_moved(&mut leases) {
            Ok(()) if was_behind => info!("credits are being leased again"),
            Err(error) if !was_behind => {
                warn!(%error, "credits are not being leased: bursts end when the leases do");
            }
            _ => {}
        }
    }

    /// Tries volumes in error again, now and then: what was wrong may have been mended.
    fn retry_in_error(&self, upkeep: &mut Upkeep) {
        upkeep.ticks_to_retry = upkeep.ticks_to_retry.saturating_sub(1);
        if upkeep.ticks_to_retry > 0 {
            return;
        }
        upkeep.ticks_to_retry = RETRY_TICKS;
        let in_error = reconcile::in_error(&self.model());
        // From where the last time ended, so that everyone has a turn.
        let first = in_error.partition_point(|id| upkeep.retried.is_some_and(|last| *id <= last));
        let turns = in_error.iter().cycle().skip(first).take(in_error.len().min(RETRIES_MAX));
        for &id in turns {
            upkeep.retried = Some(id);
            let Some(_turn) = self.turns.try_take(vec![Key::Volume(id)]) else { continue };
            let in_error = |volume: &Volume| matches!(volume.phase, Phase::Error(_));
            if !self.model().volumes.get(&id).is_some_and(in_error) {
                continue;
            }
            match self.settle(id, Settling::Again, &Credits::default()) {
                Ok(()) => info!(volume = %id, "back in service"),
                Err(error) => debug!(volume = %id, %error, "still in error"),
            }
        }
    }

    /// Renews the leases of the balances that moved; of all of them if the last time failed.
    fn renew_moved(&self, leases: &mut Leases) -> Result<(), PlaneError> {
        let was_behind = std::mem::replace(&mut leases.behind, true);
        let began = self.writer()?.revision;
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
        self.renew(told, began)?;
        if was_behind {
            // Less may be leased than what is on disk allows: the data plane is told first.
            let stored = self.writer()?.stored.clone();
            self.lease(&stored)?;
        }
        leases.behind = false;
        Ok(())
    }

    /// Renews leases by balances that were told after the revision `began`: to lease less, the data
    /// plane is told and then the disk; to lease more, the disk and then the data plane. So what is
    /// on disk is never more than there is. The caller holds the leases.
    fn renew(&self, told: CreditReport, began: Revision) -> Result<(), PlaneError> {
        let Renewal { mut rows, less, mut more } = self.renewal(&*self.writer()?, told);
        if rows.is_empty() {
            return Ok(());
        }
        if !less.is_empty() {
            let confirmed = self.lease(&less)?;
            // What the data plane does not hold keeps its row.
            let is_confirmed = |id: &VolumeId| {
                !less.volumes.contains_key(id) || confirmed.volumes.contains_key(id)
            };
            rows.volumes.retain(|id, _| is_confirmed(id));
            rows.hosts
                .retain(|id, _| !less.hosts.contains_key(id) || confirmed.hosts.contains_key(id));
            overlay(&mut rows, &confirmed);
        }
        {
            let mut writer = self.writer()?;
            let Writer { stored, born, .. } = &*writer;
            rows.volumes.retain(|id, _| {
                stored.volumes.contains_key(id) && born.get(id).is_none_or(|born| *born <= began)
            });
            rows.hosts.retain(|id, _| stored.hosts.contains_key(id));
            if !rows.is_empty() {
                self.commit(&mut writer, vec![], &rows)?;
            }
        }
        more.volumes.retain(|id, _| rows.volumes.contains_key(id));
        more.hosts.retain(|id, _| rows.hosts.contains_key(id));
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
        let _all = self.turn(vec![Key::Everything])?;
        let _leases = self.leases()?;
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
                let start = writer.start_of_volume(volume.id, &Credits::default());
                reconcile::closed(&self.settings, volume, start)
            })
            .collect();
        drop(model);
        drop(writer);
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
        let report = self.report()?;
        writer = self.writer()?;
        let changed = changed(&writer.stored, credits_of(report));
        let stopped = Some(clock::moment());
        writer.store(&Change { events: vec![], unleased: changed, stopped })?;
        Ok(())
    }

    fn writer(&self) -> Result<MutexGuard<'_, Writer>, PlaneError> {
        self.writer.lock().map_err(|_| PlaneError::Poisoned)
    }

    fn leases(&self) -> Result<MutexGuard<'_, Leases>, PlaneError> {
        self.leases.lock().map_err(|_| PlaneError::Poisoned)
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
        for event in &change.events {
            match event {
                Event::Volume(Volume { phase: Phase::Creating, id, .. }) => {
                    writer.born.insert(*id, writer.revision);
                }
                Event::VolumeGone(id) => _ = writer.born.remove(id),
                _ => {}
            }
        }
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
        id: VolumeId,
        settling: Settling,
        opening: &Credits,
    ) -> Result<(), PlaneError> {
        let Some(command) = self.desired(id, opening)? else {
            self.writer()?.unanswered.remove(&id);
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
            self.writer()?.unanswered.insert(id);
            return Err(PlaneError::Agent(failed.clone()));
        }
        let now = clock::now();
        let settled = settled(&answer, settling, was_in_error);
        {
            let mut writer = self.writer()?;
            writer.unanswered.remove(&id);
            let events = self.model().settle(&self.settings, id, settled, now);
            if !events.is_empty() {
                self.commit(&mut writer, events, &Credits::default())?;
            }
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
            let _ = self.settle(id, Settling::Again, &Credits::default());
        }
        if modifying && answer.is_ok() {
            // New limits may mean new credits: what they are must be on disk before anybody is
            // told. What was just applied is among those that moved; if the data plane does not
            // tell them, the tick asks for all.
            let mut leases = self.leases()?;
            match self.renew_moved(&mut leases) {
                Ok(()) | Err(PlaneError::Agent(_)) => {}
                failed => failed?,
            }
        }
        match answer {
            Err(_) if is_shut => Ok(()),
            answer => answer.map_err(PlaneError::Agent),
        }
    }

    fn desired(&self, id: VolumeId, opening: &Credits) -> Result<Option<AgentCommand>, PlaneError> {
        let writer = self.writer()?;
        let model = self.model();
        let start = writer.start_of_volume(id, opening);
        let desired = |volume| reconcile::desired(&self.settings, &model, volume, start);
        Ok(model.volumes.get(&id).map(desired))
    }

    fn call(&self, command: AgentCommand) -> Result<(), Failed> {
        match self.agent.call(command) {
            Reply::Done => Ok(()),
            Reply::Failed(failed) => Err(failed),
            _ => Err(unexpected("a command was answered with something else")),
        }
    }

    fn bring_up_hosts(&self, opening: &Credits) -> Result<(), PlaneError> {
        let hosts: Vec<AgentCommand> = {
            let (writer, model) = (self.writer()?, self.model());
            let state = |host: &Host| {
                let start = writer.start_of_host(host.id, opening);
                reconcile::host(host, start).map(AgentCommand::ApplyHost)
            };
            model.hosts.values().filter_map(state).collect()
        };
        hosts.into_iter().try_for_each(|command| self.call(command).map_err(PlaneError::Agent))
    }

    fn bring_up_all(&self, opening: &Credits) -> Result<(), PlaneError> {
        let ids = reconcile::bring_up_order(&self.model());
        for id in ids {
            match self.settle(id, Settling::Starting, opening) {
                Ok(()) => {}
                Err(PlaneError::Agent(failed))
                    if matches!(failed.kind, FailedKind::Damaged | FailedKind::Internal) =>
                {
                    error!(volume = %id, reason = failed.message, "cannot be brought up");
                }
                Err(error) if error.is_unanswered() => warn!(volume = %id, %error, "not up yet"),
                Err(PlaneError::Agent(failed)) if failed.kind != FailedKind::Down => {
                    // What was begun before the stop is taken back now; try again without it.
                    self.bring_up_or_fail(id, &failed, opening)?;
                }
                Err(error) => return Err(error),
            }
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
fn host_command(event: &Event, writer: &Writer, opening: &Credits) -> Option<AgentCommand> {
    match event {
        Event::Host(host) => {
            let start = writer.start_of_host(host.id, opening);
            reconcile::host(host, start).map(AgentCommand::ApplyHost)
        }
        Event::HostGone(id) => Some(AgentCommand::DeleteHost(*id)),
        _ => None,
    }
}

fn unexpected(what: &str) -> Failed {
    Failed { kind: FailedKind::Internal, message: what.into() }
}
