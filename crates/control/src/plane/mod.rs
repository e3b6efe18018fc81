//! The control plane at work: decides with the model, commits to the journal, calls the data plane.
//!
//! Each mutation takes these steps:
//!
//! 1. it waits for its turn: changes of one volume or host run in order ([`key_locks`]), others side by
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

mod calls;
mod error;
pub mod key_locks;
mod leases;
mod room;
mod settling;
mod start;
mod stop;
mod upkeep;
mod writer;

use std::sync::{Arc, Mutex, PoisonError, RwLock, RwLockReadGuard};

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::units::ByteCount;
use evenkeel_wire::agent::{Agent, Capacity, Command as AgentCommand};

pub use self::error::PlaneError;
use self::key_locks::{Key, Turn, Turns};
use self::leases::Leases;
use self::settling::Settling;
use self::upkeep::Upkeep;
use self::writer::Writer;
use crate::capacity::Known;
use crate::journal::Credits;
use crate::model::{Command, Decision, Event, Model, Phase, Refusal, Settings, Tagged, Volume};
use crate::{clock, credits, reconcile, space};

/// The volume a mutation was about: as decided, and as it is now.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// As decided: what is going shows here (`detaching`).
    pub decided: Option<Volume>,
    /// As it is now; `None` if it is gone.
    pub settled: Option<Volume>,
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
        self.turns.take(keys).ok_or(PlaneError::Busy(key_locks::CHANGES_MAX))
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
