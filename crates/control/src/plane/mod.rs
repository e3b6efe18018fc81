//! Runs mutations: decides with the model, commits to the journal, calls the data plane.
//!
//! [`Plane::execute`] is given a [`Command`] and returns the volume as decided and as settled. It
//! returns a [`PlaneError`] if the model refuses the command, or if the journal or the data plane
//! fails. Each mutation takes these steps:
//!
//! 1. It locks the keys of the objects that it changes ([`key_locks`]): changes of one volume or
//!    host run in order, others run concurrently.
//! 2. The model decides. A refused request ends here and changes nothing.
//! 3. The decision is committed to the journal and becomes visible (`creating`, `attaching`, ...).
//! 4. The data plane is called with the volume's whole desired state. It answers when that state is
//!    in force.
//! 5. The outcome is committed and becomes visible. Then the client gets its reply. If the data
//!    plane confirms the state, the outcome is part of the next commit of any thread.
//!
//! After a crash between 3 and 5 the journal holds an unsettled volume. The next start calls the
//! data plane again and settles it: the change is completed, or rolled back if the data plane
//! refuses it. So a volume in `creating` may be gone after a start; the call that created it was
//! never answered with success. If only step 5 fails, the tick does the same. The tick skips a
//! volume whose key is locked.
//!
//! There are three kinds of locks, always taken in this order. Only the first two are held while
//! the data plane is called:
//!
//! - **A key lock** covers one change from before its decision until its outcome is committed. So
//!   the data plane receives the commands for one volume in the order of decisions, and a host
//!   before the volumes that are attached to it. A slow device delays changes of its own volume
//!   only.
//! - **The leases lock** covers one renewal of leases or one change of balances as a whole. Two of
//!   them at the same time could leave more on disk than there is. Their calls touch no stored
//!   bytes.
//! - **The writer lock** covers deciding and committing. Changes that other tasks make to a volume
//!   in the meantime are never lost, because every read and write happens under this lock. (A
//!   change of tags locks the volume's key as well.)
//!
//! A renewal and a change of the same volume may overlap, because a slow change must not stop the
//! renewal. A renewal ignores volumes that were created or deleted after it began. To lease less,
//! the data plane confirms first, and a volume that it does not confirm keeps its row. To lease
//! more, the row is committed first. So the journal holds a lower bound at every moment.
//!
//! | file | contents |
//! | --- | --- |
//! | `start`, `stop` | bring everything up from the journal; save the final balances |
//! | `settle` | call the data plane with a volume's desired state and commit the outcome |
//! | `confirmed` | store the confirmations of several volumes in one commit |
//! | `leases` | renew the credits that the data plane may spend |
//! | `snapshots` | make and delete snapshots, look up those that are pending |
//! | `copies` | copy snapshots, and make the snapshots with which volumes begin |
//! | `encryption` | correct the journal by the store's encryption |
//! | `scrub` | read all stored data, at a bounded rate |
//! | `snapshot_upload` | fill snapshots unit by unit, read them, compare them |
//! | `users` | users, their keys and their policies |
//! | `test_clock` | what follows a move of a test server's clock |
//! | `time` | follow the wall clock, move deadlines when it is set |
//! | `tick` | periodic work: retry changes that are unsettled and volumes in error |
//! | `for_sale` | capacity and space that may be sold, stored bytes without a volume |
//! | `calls` | other calls to the data plane |
//! | `vitals` | the state behind `/healthz` and `/readyz` |
//! | `writer` | commit to the journal and apply to the model |
//! | `invariants` | what holds between two changes |
//! | `error` | [`PlaneError`] |

mod calls;
mod confirmed;
mod copies;
mod encryption;
mod error;
mod for_sale;
mod invariants;
mod leases;
mod scrub;
mod settle;
mod snapshot_upload;
mod snapshots;
mod start;
mod stop;
mod test_clock;
mod tick;
mod time;
mod users;
mod vitals;
mod writer;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::Balances;
use evenkeel_telemetry::recording::Recording;
use evenkeel_wire::agent::{Agent, Capacity, Command as AgentCommand, StoredVolume};

use self::confirmed::Confirmed;
use self::copies::Copying;
pub use self::error::PlaneError;
use self::for_sale::Filled;
use self::leases::Leases;
use self::scrub::Scrubbing;
use self::settle::Settling;
use self::snapshot_upload::Fillings;
pub use self::snapshot_upload::NotComplete;
pub use self::test_clock::{ClockChange, ClockFailure};
use self::tick::Upkeep;
use self::time::Following;
pub use self::users::UserError;
use self::vitals::Vitals;
use self::writer::Writer;
use crate::capacity::KnownCapacity;
use crate::events::Feed;
use crate::faults::{FaultType, Faults};
use crate::feel::Feel;
use crate::fis::experiments::Experiments;
use crate::health::Health;
use crate::journal::Credits;
use crate::key_locks::{self, Key, KeyGuard, KeyLocks};
use crate::model::{
    AttachmentState, Begins, Calls, Command, Decision, Event, Model, Phase, Refusal, Settings,
    Snapshot, SnapshotPhase, Tagged, Volume,
};
use crate::nodes::Nodes;
use crate::rights::Keyring;
use crate::server_clock::ServerClock;
use crate::{credits, reconcile, space};

/// The volume or the snapshots that a mutation changed.
#[derive(Clone, Debug)]
pub enum Outcome {
    /// Neither: the mutation was of other objects, or its object no longer exists.
    Other,
    /// A volume.
    Volume {
        /// As decided. Transitional states show here (`detaching`).
        decided: Box<Volume>,
        /// After the mutation; `None` if it no longer exists.
        settled: Option<Volume>,
    },
    /// A snapshot that was made or deleted, as decided: `pending`, as EC2 answers.
    Snapshot(Snapshot),
    /// Snapshots of one moment that were made, as decided.
    Set(Vec<Snapshot>),
}

impl Outcome {
    /// Returns the volume after the mutation; `None` if it no longer exists.
    #[must_use]
    pub fn settled(self) -> Option<Volume> {
        match self {
            Self::Volume { settled, .. } => settled,
            Self::Other | Self::Snapshot(_) | Self::Set(_) => None,
        }
    }

    /// Returns the volume after the mutation, or as decided if it was removed again.
    #[must_use]
    pub fn made(self) -> Option<Volume> {
        match self {
            Self::Volume { decided, settled } => Some(settled.unwrap_or(*decided)),
            Self::Other | Self::Snapshot(_) | Self::Set(_) => None,
        }
    }

    /// Returns the snapshot that was made or deleted; `None` if it no longer exists.
    #[must_use]
    pub fn snapshot(self) -> Option<Snapshot> {
        match self {
            Self::Snapshot(snapshot) => Some(snapshot),
            Self::Other | Self::Volume { .. } | Self::Set(_) => None,
        }
    }
}

/// The parts that only a server for tests has.
#[derive(Clone, Debug, Default)]
pub struct TestServer {
    /// Its clock.
    pub clock: Arc<ServerClock>,
    /// Its faults.
    pub faults: Arc<Faults>,
    /// How its volumes feel, if not as the store below.
    pub feel: Option<Arc<Feel>>,
}

/// The control plane.
pub struct Plane {
    /// Settings that are fixed while the server runs.
    pub settings: Settings,
    agent: Arc<dyn Agent>,
    clock: Arc<ServerClock>,
    faults: Arc<Faults>,
    feel: Option<Arc<Feel>>,
    experiments: Experiments,
    model: RwLock<Model>,
    keys: KeyLocks,
    leases: Mutex<Leases>,
    writer: Mutex<Writer>,
    confirmed: Confirmed,
    upkeep: Mutex<Upkeep>,
    following: Mutex<Following>,
    vitals: Arc<Vitals>,
    capacity: Mutex<KnownCapacity>,
    space: Mutex<space::KnownSpace>,
    scrubbing: Mutex<Scrubbing>,
    fillings: Mutex<Fillings>,
    copying: Mutex<Copying>,
    /// Held while a host is registered under an address that must be unused.
    addresses: Mutex<()>,
    feed: Arc<Feed>,
    health: Mutex<Health>,
    recording: Option<Arc<Recording>>,
    nodes: Option<Arc<dyn Nodes>>,
    keyring: Keyring,
}

impl Plane {
    /// Returns read access to the model. Callers must not hold it while they call the data plane.
    pub fn model(&self) -> RwLockReadGuard<'_, Model> {
        // Applying an event cannot leave the model half changed, so a poisoned lock is usable.
        self.model.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the clock of the API's times.
    #[must_use]
    pub const fn clock(&self) -> &Arc<ServerClock> {
        &self.clock
    }

    /// Returns the faults that are injected.
    #[must_use]
    pub const fn faults(&self) -> &Arc<Faults> {
        &self.faults
    }

    /// Returns the experiments of FIS.
    #[must_use]
    pub const fn experiments(&self) -> &Experiments {
        &self.experiments
    }

    /// Returns how volumes feel, if not as the store below.
    #[must_use]
    pub const fn feel(&self) -> Option<&Arc<Feel>> {
        self.feel.as_ref()
    }

    /// Returns the nodes, if there are several.
    #[must_use]
    pub const fn nodes(&self) -> Option<&Arc<dyn Nodes>> {
        self.nodes.as_ref()
    }

    /// Returns the access keys of users.
    #[must_use]
    pub const fn keyring(&self) -> &Keyring {
        &self.keyring
    }

    /// Sets the recording of volumes, second by second.
    #[must_use]
    pub fn with_recording(self, recording: Option<Arc<Recording>>) -> Self {
        Self { recording, ..self }
    }

    /// Returns the recording of volumes, second by second; `None` if they are not recorded.
    #[must_use]
    pub const fn recording(&self) -> Option<&Arc<Recording>> {
        self.recording.as_ref()
    }

    /// Locks addresses. A caller that searches for an unused address holds this until a host has
    /// it.
    pub fn one_address_at_a_time(&self) -> MutexGuard<'_, ()> {
        self.addresses.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the feed of events.
    pub fn feed(&self) -> &Arc<Feed> {
        &self.feed
    }

    /// Executes one command; with `dry_run` only checks whether it would be accepted.
    ///
    /// # Errors
    /// See [`PlaneError`].
    pub fn execute(&self, command: &Command, dry_run: bool) -> Result<Outcome, PlaneError> {
        let keys = self.lock_keys(self.keys_of(command))?;
        self.execute_locked(keys, command, dry_run)
    }

    /// Executes a command whose keys are locked.
    fn execute_locked(
        &self,
        keys: KeyGuard<'_>,
        command: &Command,
        dry_run: bool,
    ) -> Result<Outcome, PlaneError> {
        let capacity = self.capacity();
        let filled = self.filled(command);
        let decide = |command, dry_run| match self.decide(command, dry_run, &capacity, &filled) {
            Err(PlaneError::Refused(Refusal::Space(_) | Refusal::SpaceForSnapshot { .. })) => {
                // Space may have been freed since it was read last.
                self.refresh_space();
                self.decide(command, dry_run, &capacity, &filled)
            }
            decided => decided,
        };
        let (decision, opening) = match command {
            Command::RestoreVolume { id, .. } if !dry_run => {
                match decide(command, true) {
                    Err(PlaneError::DryRun) => {}
                    refused => _ = refused?,
                }
                let error = self.open_binned(*id)?;
                decide(&Command::RestoreVolume { id: *id, error }, false)?
            }
            _ => decide(command, dry_run)?,
        };
        let mut _keys = keys;
        let known = match decision.calls {
            _ if !decision.events.is_empty() => None,
            Calls::Snapshot(id) => Some(Key::Snapshot(id)),
            _ => decision.volume().map(Key::Volume),
        };
        if let Some(key) = known {
            // A repeated client token: the object exists already, and its key is not locked yet.
            drop(_keys);
            _keys = self.lock_keys(vec![key])?;
        }
        self.carry_out(&decision, &opening)
    }

    /// Makes a volume of stored bytes that belong to no volume. `command` gets the properties of
    /// these bytes and returns the command to execute.
    ///
    /// # Errors
    /// See [`PlaneError`], and the errors of `command`.
    pub fn adopt<E: From<PlaneError>>(
        &self,
        id: VolumeId,
        dry_run: bool,
        command: impl FnOnce(StoredVolume) -> Result<Command, E>,
    ) -> Result<Outcome, E> {
        // Locked so that the bytes are not deleted in the meantime.
        let keys = self.lock_keys(vec![Key::Volume(id)])?;
        let command = command(self.unowned_volume(id)?)?;
        Ok(self.execute_locked(keys, &command, dry_run)?)
    }

    fn lock_keys(&self, keys: Vec<Key>) -> Result<KeyGuard<'_>, PlaneError> {
        self.keys.lock(keys).ok_or(PlaneError::Busy(key_locks::CHANGES_MAX))
    }

    /// Returns the keys of everything that a command changes.
    fn keys_of(&self, command: &Command) -> Vec<Key> {
        let model = self.model();
        match command {
            Command::CreateVolume { id, token, begins, .. } => {
                keys_of_new(*id, token.as_ref().map(|(name, _)| name), begins)
            }
            Command::AdoptVolume { id, .. }
            | Command::DeleteVolume { id }
            | Command::DeleteWithHost { id, .. }
            | Command::RestoreVolume { id, .. }
            | Command::SetAutoEnableIo { id, .. }
            | Command::DetachVolume { id, .. }
            | Command::ModifyVolume { id, .. } => vec![Key::Volume(*id)],
            Command::AttachVolume { id, instance, device } => {
                // A volume that is being detached from this device name frees it first.
                let others = model.attachments_of(*instance).filter(|(_, a)| a.device == *device);
                let others = others.map(|(volume, _)| Key::Volume(volume.id));
                others.chain([Key::Volume(*id), Key::HostShared(*instance)]).collect()
            }
            Command::CreateSnapshot { id, volume, .. } => {
                vec![Key::Volume(*volume), Key::Snapshot(*id)]
            }
            Command::CreateSnapshots { set, .. } => set
                .iter()
                .flat_map(|set| [Key::Volume(set.volume), Key::Snapshot(set.id)])
                .collect(),
            Command::StartSnapshot { id, filled, .. } => {
                // Prefixed to distinguish its tokens from those of volumes, which have no such
                // character.
                let token = filled.token.iter().map(|(name, _)| Key::Token(format!("\n{name}")));
                let parent = filled.parent.map(Key::Snapshot);
                token.chain(parent).chain([Key::Snapshot(*id)]).collect()
            }
            Command::CopySnapshot { id, of, .. } => vec![Key::Snapshot(*id), Key::Snapshot(*of)],
            Command::DeleteSnapshot { id }
            | Command::RestoreSnapshot { id }
            | Command::PurgeSnapshot { id }
            | Command::LockSnapshot { id, .. }
            | Command::UnlockSnapshot { id }
            | Command::ArchiveSnapshot { id }
            | Command::RestoreTier { id, .. } => vec![Key::Snapshot(*id)],
            // A setting of the account limits sharing.
            Command::ShareSnapshot { id, .. } => vec![Key::Snapshot(*id), Key::Account],
            Command::SetFastRestore { ids, .. } => ids.iter().copied().map(Key::Snapshot).collect(),
            Command::SetEncryptByDefault(_) | Command::SetPublicAccess(_) => vec![Key::Account],
            Command::SetHostState { ids, .. } => ids.iter().copied().map(Key::Host).collect(),
            Command::SetDeleteOnTermination { instance, .. } => {
                let its = model.attachments_of(*instance).map(|(volume, _)| Key::Volume(volume.id));
                its.chain([Key::HostShared(*instance)]).collect()
            }
            Command::CreateTags { resources, .. } | Command::DeleteTags { resources, .. } => {
                let key = |tagged: &Tagged| match tagged {
                    Tagged::Volume(id) => Key::Volume(*id),
                    Tagged::Instance(id) => Key::Host(*id),
                    Tagged::Snapshot(id) => Key::Snapshot(*id),
                };
                resources.iter().map(key).collect()
            }
            Command::RegisterHost { id, .. } | Command::SetHostType { id, .. } => {
                vec![Key::Host(*id)]
            }
            Command::DeregisterHost { id } => {
                // Detachments of volumes from this host complete first.
                let its = model.attachments_of(*id).map(|(volume, _)| Key::Volume(volume.id));
                its.chain([Key::Host(*id)]).collect()
            }
        }
    }

    /// Decides and commits; with `dry_run` only decides. Returns the decision and the opening
    /// balances of new volumes and hosts.
    fn decide(
        &self,
        command: &Command,
        dry_run: bool,
        capacity: &Capacity,
        filled: &Filled,
    ) -> Result<(Decision, Credits), PlaneError> {
        let mut writer = self.writer()?;
        let now = self.now();
        let decision = self.model().decide(&self.settings, capacity, command, now)?;
        let kept = self.to_be_kept(filled);
        self.model().admit_bytes(&self.settings, self.room(), &kept, &decision.events)?;
        if dry_run {
            return Err(PlaneError::DryRun);
        }
        let mut opening = Credits::default();
        let mut changed = Credits::default();
        for event in &decision.events {
            if let Event::Volume(Volume { phase: Phase::Creating, id, spec, .. }) = event {
                let pacing = self.settings.rules.pacing(spec);
                let balances = match command {
                    // No credits: the bytes may have belonged to a volume that just spent its own.
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
        if let (Some(feel), Command::CreateVolume { id, begins, .. }) = (&self.feel, command)
            && let Some(mibps) = begins.initialization_mibps
            && !decision.events.is_empty()
        {
            feel.expect(*id, mibps);
        }
        if !decision.events.is_empty() {
            match self.commit_decision(&mut writer, decision.events.clone(), &changed) {
                // The disk is too full to record even the deletion. The bytes are deleted first,
                // which makes room for the record. A crash in between leaves a volume or a snapshot
                // in error, which can be deleted again.
                Err(PlaneError::Journal(error))
                    if error.is_no_room() && decision.events.iter().all(is_deletion) =>
                {
                    self.apply(&mut writer, decision.events.clone());
                }
                done => done?,
            }
            self.promise(&kept, &decision.events);
        }
        Ok((decision, opening))
    }

    /// Calls the data plane with the decided state and commits the outcome.
    fn carry_out(&self, decision: &Decision, opening: &Credits) -> Result<Outcome, PlaneError> {
        let hosts: Vec<AgentCommand> = {
            let writer = self.writer()?;
            let command = |event| host_command(event, &writer, opening);
            decision.events.iter().filter_map(command).collect()
        };
        for command in hosts {
            self.call(command).map_err(PlaneError::Agent)?;
        }
        let is_new = !decision.events.is_empty();
        match &decision.calls {
            Calls::Nothing => Ok(Outcome::Other),
            Calls::Set(set) => self.carry_out_set(set),
            Calls::Snapshot(id) => self.carry_out_snapshot(*id, is_new),
            Calls::Volume(id) => self.carry_out_volume(*id, is_new, false, opening),
            Calls::Reopened(id) => self.carry_out_volume(*id, is_new, true, opening),
        }
    }

    /// Returns the fault that keeps a volume from being attached or detached.
    fn stuck_by(&self, volume: &Volume) -> Option<FaultType> {
        let is_met = |state: AttachmentState, fault: FaultType| {
            volume.attachments.iter().any(|attachment| attachment.state == state)
                && self.faults.is_met(fault, volume.id)
        };
        if is_met(AttachmentState::Attaching, FaultType::StuckAttachment) {
            return Some(FaultType::StuckAttachment);
        }
        // The data plane would wait for the requests that the pause holds, longer than it may.
        let is_paused = is_met(AttachmentState::Detaching, FaultType::PauseVolumeIo);
        is_paused.then_some(FaultType::PauseVolumeIo)
    }

    /// Calls the data plane with a volume; with `reopens` even if the volume is settled.
    fn carry_out_volume(
        &self,
        id: VolumeId,
        is_new: bool,
        reopens: bool,
        opening: &Credits,
    ) -> Result<Outcome, PlaneError> {
        let decided = self.model().volumes.get(&id).cloned();
        if is_new {
            self.begin_own(id)?;
        }
        let fault = decided.as_ref().and_then(|volume| self.stuck_by(volume));
        let is_stuck = fault.is_some_and(|fault| self.faults.of_volumes(fault, &[id]).is_some());
        let is_due = decided.as_ref().is_some_and(|volume| !volume.is_settled());
        if reopens || is_due && !is_stuck {
            self.settle(id, Settling::Asked, opening)?;
        }
        let settled = self.model().volumes.get(&id).cloned();
        Ok(decided.map_or(Outcome::Other, |decided| {
            let decided = Box::new(decided);
            Outcome::Volume { decided, settled }
        }))
    }
}

/// Returns the keys of a volume to create.
fn keys_of_new(id: VolumeId, token: Option<&String>, begins: &Begins) -> Vec<Key> {
    let Begins { snapshot, source, spares, .. } = *begins;
    // The snapshots that are made only for it are needed only if it has an origin.
    let is_begun = snapshot.is_some() || source.is_some();
    let spares = spares.into_iter().filter(move |_| is_begun);
    let snapshots = snapshot.into_iter().chain(spares).map(Key::Snapshot);
    let token = token.map(|name| Key::Token(name.clone()));
    let source = source.map(Key::Volume);
    token.into_iter().chain(snapshots).chain(source).chain([Key::Volume(id)]).collect()
}

/// Returns whether an event begins the deletion of bytes.
fn is_deletion(event: &Event) -> bool {
    match event {
        Event::Volume(volume) => volume.phase == Phase::Deleting,
        Event::Snapshot(snapshot) => matches!(snapshot.phase, SnapshotPhase::Deleting { .. }),
        _ => false,
    }
}

/// Returns the command for the data plane when a host is registered or removed.
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
