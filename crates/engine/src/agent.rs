//! The control plane's commands. Work that may block (creating, growing and deleting files) runs in
//! the caller's thread, the rest in the volume's home reactor.
//!
//! Commands of one volume run one after the other ([`VolumeTurns`]). [`Placement`] is locked while
//! a core is chosen, and never while the pool creates, grows, opens or deletes bytes: a slow device
//! delays the commands of its own volume only. So a placement that was computed before the pool's
//! work is computed again after it.

mod background;
mod release;
mod snapshots;

use crate::directory::{Directory, Entry};
use crate::flush_marks::FlushMarks;
use crate::placement::{Group, Placement};
use crate::reactor::{Inbox, LatencyPage, Message, Newcomers, Party, Released};
use crate::shared_device::SharedDevice;
use crate::turns::VolumeTurns;
use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::latency::Latencies;
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::qos::sharing::DeviceModel;
use evenkeel_core::qos::sharing::division::{NodePart, NodeUse};
use evenkeel_core::units::ByteCount;
use evenkeel_os::clock::Clock;
use evenkeel_store::unaligned;
use evenkeel_store::{Geometry, Pool, PoolHealth, Store, StoreError};
use evenkeel_wire::agent::{
    Agent, Capacity, Command, CreditReport, Failed, FailedKind, HostState, Reply, Report, Space,
    StoreHealth, StoredVolume, VolumeState,
};
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tracing::warn;

/// Time limit for a reactor's answer: longer than any disk takes for its requests in flight.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// Executes the control plane's commands; see the module's text.
pub(crate) struct EngineAgent {
    pool: Arc<dyn Pool>,
    inboxes: Arc<[Inbox]>,
    directory: Arc<Directory>,
    shared_device: Arc<SharedDevice>,
    flush_marks: Arc<FlushMarks>,
    clock: Clock,
    /// Hosts with limits, and their cores. Locked while a volume or a host is placed, changed or
    /// removed, but not while the pool works.
    placement: Mutex<Placement>,
    /// Volumes with a command in progress.
    turns: VolumeTurns,
    background: background::Background,
    /// The capacity that may be sold; unknown before a calibration.
    capacity: Mutex<Capacity>,
    /// Answers that volumes' home cores still owe after a timeout, at most one a volume.
    unanswered: Mutex<BTreeMap<VolumeId, Receiver<Result<(), String>>>>,
    /// Volumes that are given up, and whose remaining credits were not yet returned to the control
    /// plane.
    releases: Mutex<BTreeMap<VolumeId, release::Release>>,
    /// Time limit for a reactor's answer.
    answer_max: Duration,
}

/// State of a volume's bytes at rest before a command.
#[derive(Clone, Copy)]
enum AtRest {
    /// They exist in the volume's size.
    Complete,
    /// They do not exist, unless an earlier attempt has created them.
    New,
    /// As `New`; the volume begins with the contents of a snapshot.
    From(SnapshotId),
    /// They have this size, or more if an earlier attempt has grown them.
    Growing(ByteCount),
}

/// State that a volume's home core needs in order to serve it.
enum Held {
    /// None: the core serves the volume already.
    Already,
    /// Its store, which was just opened.
    Opened(Box<dyn Store>),
    /// The state with which another core has released it.
    Released(Box<Released>),
}

impl EngineAgent {
    pub(crate) fn new(
        pool: Arc<dyn Pool>,
        inboxes: Arc<[Inbox]>,
        directory: Arc<Directory>,
        (shared_device, flush_marks): (Arc<SharedDevice>, Arc<FlushMarks>),
        clock: Clock,
    ) -> Self {
        Self {
            pool,
            inboxes,
            directory,
            shared_device,
            flush_marks,
            clock,
            placement: Mutex::default(),
            turns: VolumeTurns::default(),
            background: background::Background::default(),
            capacity: Mutex::default(),
            unanswered: Mutex::default(),
            releases: Mutex::default(),
            answer_max: ANSWER_MAX,
        }
    }

    /// Sets the capacity that the control plane gets when it asks for it.
    pub(crate) fn set_capacity(&self, capacity: Capacity) {
        *self.capacity.lock().unwrap_or_else(PoisonError::into_inner) = capacity;
    }

    fn capacity(&self) -> Capacity {
        let mut capacity = self.capacity.lock().unwrap_or_else(PoisonError::into_inner).clone();
        if let Capacity::Measured(measured) = &mut capacity {
            measured.left_ppm = measured.left_ppm.min(self.shared_device.sold_ppm());
        }
        capacity
    }

    fn placement(&self) -> MutexGuard<'_, Placement> {
        self.placement.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn apply(&self, state: VolumeState, at_rest: AtRest) -> Result<(), Failed> {
        let _turn = self.turns.take(state.id);
        self.hear_of(state.id)?;
        self.forget_release(state.id);
        match self.directory.get(state.id) {
            Some(entry) => self.change(entry, state, at_rest),
            None => self.open(state, at_rest),
        }
    }

    fn stored(&self) -> Result<Vec<StoredVolume>, Failed> {
        let is_encrypted = |id| self.pool.is_encrypted(id);
        let stored = |(id, size)| StoredVolume { id, size, is_encrypted: is_encrypted(id) };
        Ok(self.pool.list().map_err(failed)?.into_iter().map(stored).collect())
    }

    fn filled(&self, ids: &[VolumeId]) -> Vec<(VolumeId, ByteCount)> {
        ids.iter().filter_map(|id| Some((*id, self.pool.filled(*id)?))).collect()
    }

    fn space(&self) -> Result<Option<Space>, Failed> {
        let space = self.pool.space().map_err(failed)?;
        Ok(space.map(|space| Space { total: space.total, free: space.free }))
    }

    fn store_health(&self) -> StoreHealth {
        let health = self.pool.health();
        let PoolHealth { copies_mended, volumes_salvaged, unfinished, .. } = health;
        let PoolHealth { without_space, damaged_sectors, .. } = health;
        StoreHealth { copies_mended, volumes_salvaged, unfinished, without_space, damaged_sectors }
    }

    /// Returns an error while the volume's home has not answered an earlier command. Until then the
    /// home receives no new command for the volume, and no other thread waits for it.
    fn hear_of(&self, id: VolumeId) -> Result<(), Failed> {
        let mut unanswered = self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
        if unanswered.get(&id).is_some_and(|answer| answer.try_recv() == Err(TryRecvError::Empty)) {
            return Err(self.no_answer());
        }
        unanswered.remove(&id);
        drop(unanswered);
        self.hear_of_release(id)
    }

    /// Opens a volume. Its bytes are created or grown first if `at_rest` says so. If the volume is
    /// refused, bytes that this call has created are deleted; others stay.
    fn open(&self, state: VolumeState, at_rest: AtRest) -> Result<(), Failed> {
        let id = state.id;
        if !matches!(at_rest, AtRest::Complete) {
            // Checks for room first: a volume that no core can take is neither created nor grown.
            self.prepare(&mut self.placement(), None, &state)?;
        }
        let is_made = matches!(at_rest, AtRest::New | AtRest::From(_));
        let is_new = is_made && !self.pool.has(id).map_err(failed)?;
        let opened = self.make_and_open(state, at_rest);
        match opened {
            // If the home has not answered, it may still serve the volume.
            Err(refused)
                if is_new && !matches!(refused.kind, FailedKind::Unanswered | FailedKind::Down) =>
            {
                if let Err(error) = self.pool.delete(id) {
                    warn!(volume = %id, %error, "the bytes of a refused volume are left");
                }
                Err(refused)
            }
            opened => opened,
        }
    }

    fn make_and_open(&self, state: VolumeState, at_rest: AtRest) -> Result<(), Failed> {
        let id = state.id;
        match at_rest {
            AtRest::Complete => {}
            AtRest::New => {
                if state.is_encrypted {
                    self.pool.create_encrypted(id, state.size).map_err(failed)?
                } else {
                    self.pool.create(id, state.size).map_err(failed)?
                }
            }
            AtRest::From(snapshot) => self.create_from(id, state.size, snapshot)?,
            AtRest::Growing(from) => self.pool.resize(id, from, state.size).map_err(failed)?,
        }
        let store = self.open_store(id, state.size)?;
        let mut placement = self.placement();
        let home = self.prepare(&mut placement, None, &state)?;
        self.settle_hosts(&mut placement, home, &state)?;
        self.bring(home, unaligned::served(store.geometry()), state, Held::Opened(store))
    }

    /// Opens a volume's store, and reads from the pool whether a flush of the volume has failed
    /// before.
    fn open_store(&self, id: VolumeId, size: ByteCount) -> Result<Box<dyn Store>, Failed> {
        self.flush_marks.recall(self.pool.as_ref(), id).map_err(failed)?;
        self.pool.open(id, size).map_err(failed)
    }

    fn change(&self, entry: Entry, state: VolumeState, at_rest: AtRest) -> Result<(), Failed> {
        let id = state.id;
        let present = entry.geometry.size;
        if let AtRest::Growing(from) = at_rest {
            self.prepare(&mut self.placement(), Some(&entry), &state)?;
            self.pool.resize(id, from, state.size).map_err(failed_while_open)?;
        } else if present != state.size {
            return Err(failed(StoreError::Size { id, present, asked: state.size }));
        }
        let mut placement = self.placement();
        // A command for another volume may have moved this one meanwhile.
        let entry = self.directory.get(id).unwrap_or(entry);
        let home = self.prepare(&mut placement, Some(&entry), &state)?;
        // `prepare` may have moved the volume to the core of its hosts.
        let entry = self.directory.get(id).unwrap_or(entry);
        // A refusal, here or by the home, leaves the volume on its core and in its state. Only a
        // growth of its bytes remains.
        self.settle_hosts(&mut placement, home, &state)?;
        let geometry = Geometry { size: state.size, ..entry.geometry };
        // Clients that attach the volume anew have no data from before a failed flush.
        let is_anew = entry.attachments.is_empty() && !state.attachments.is_empty();
        let reopens = is_anew && self.ask(entry.home, |ack| Message::MustReopen(id, ack))?;
        if home == entry.home && !reopens {
            // Changed before the home gets the command, so that no host that is being detached
            // connects meanwhile. If a client already sees the new size, it only gets an error for
            // the new range.
            let attachments = state.attachments.clone();
            let is_detached = attachments.is_empty();
            self.directory.insert(id, Entry { home, geometry, attachments });
            if is_detached {
                // It stays on its core, so other volumes do not wait until its requests end.
                drop(placement);
            }
            let applied = self.tell(home, state, Held::Already);
            if applied.as_ref().is_err_and(|failed| failed.kind == FailedKind::Refused) {
                self.directory.insert(id, entry);
            }
            return applied;
        }
        // No client may connect at the old home any more, or at the new one before the volume is
        // there.
        let attachments = Vec::new();
        self.directory.insert(id, Entry { home: entry.home, geometry, attachments });
        let open = || self.pool.open(id, state.size);
        let held = match self.ask(entry.home, |ack| Message::Release(id, ack))? {
            Some(released) if reopens => {
                Held::Released(released.reopen(open).map_err(|error| {
                    self.directory.remove(id);
                    failed(error)
                })?)
            }
            Some(released) => Held::Released(released),
            // It was released for an earlier command whose time limit had passed, and so closed.
            None => {
                let store = self.open_store(id, state.size)?;
                if is_anew {
                    self.flush_marks.begin_anew(id);
                }
                Held::Opened(store)
            }
        };
        self.bring(home, geometry, state, held)
    }

    /// Makes a core a volume's home, and enters it in the directory. If the core refuses the
    /// volume, it is closed and removed from the directory: the next command that applies it opens
    /// it again.
    fn bring(
        &self,
        home: u16,
        geometry: Geometry,
        state: VolumeState,
        held: Held,
    ) -> Result<(), Failed> {
        let id = state.id;
        let attachments = state.attachments.clone();
        let applied = self.tell(home, state, held);
        if applied.is_ok() {
            self.directory.insert(id, Entry { home, geometry, attachments });
        } else {
            self.ask(home, |ack| Message::Remove(id, ack))?;
            self.directory.remove(id);
        }
        applied
    }

    /// Returns the core for a volume: the core of its hosts with limits, otherwise its present
    /// core, otherwise the one with the fewest volumes. If these hosts and the volume are on
    /// several cores, they are brought together on one first. The core has room for the volume in
    /// its new state and for its hosts.
    fn prepare(
        &self,
        placement: &mut Placement,
        before: Option<&Entry>,
        state: &VolumeState,
    ) -> Result<u16, Failed> {
        let stays =
            |entry: &&Entry| state.attachments.iter().any(|a| entry.attachments.contains(a));
        // A host that stays attached may have connections: the volume moves with them.
        let in_use = before.filter(stays);
        let mut cores = placement.cores(&state.attachments);
        cores.extend(in_use.map(|entry| entry.home));
        let mut cores = cores.into_iter();
        let home = match (cores.next(), cores.next()) {
            (None, _) => before.map_or_else(
                || self.directory.least_loaded(self.inboxes.len() as u16),
                |entry| entry.home,
            ),
            (Some(only), None) => only,
            _ => self.bring_together(placement, in_use, state)?,
        };
        let hosts: Vec<InstanceId> =
            placement.unsettled(&state.attachments).into_iter().map(|host| host.id).collect();
        let is_there = |entry: &Entry| entry.home == home && entry.geometry.size == state.size;
        if !hosts.is_empty() || !before.is_some_and(is_there) {
            let coming = Box::new(Newcomers { hosts, ..Newcomers::one(state, true) });
            self.ask(home, |ack| Message::HasRoom(coming, ack))?.map_err(refused)?;
        }
        Ok(home)
    }

    /// Brings to one core all that a volume connects: the hosts with limits to which it is to be
    /// attached, their volumes, the other hosts of those, and so on; also the volume itself, if it
    /// is in use. Prefers the core with most of their connections; if that one refuses, tries the
    /// other cores of the group. Returns the core.
    fn bring_together(
        &self,
        placement: &mut Placement,
        in_use: Option<&Entry>,
        state: &VolumeState,
    ) -> Result<u16, Failed> {
        let mut weights = BTreeMap::new();
        for (core, volumes) in &self.group(placement, in_use, state).volumes {
            let connections = self.ask(*core, |ack| Message::Connections(volumes.clone(), ack))?;
            weights.insert(*core, (connections, volumes.len()));
        }
        let mut targets: Vec<u16> =
            self.group(placement, in_use, state).cores().into_iter().collect();
        targets.sort_by_key(|core| Reverse(weights.get(core).copied().unwrap_or_default()));
        let mut reason = None;
        for target in targets {
            let group = self.group(placement, in_use, state);
            match self.gather(placement, &group, target) {
                Ok(()) => return Ok(target),
                Err(failed) if failed.kind == FailedKind::Refused => {
                    reason.get_or_insert(failed.message);
                }
                Err(failed) => return Err(failed),
            }
        }
        Err(apart(placement, in_use, state, &reason.unwrap_or_default()))
    }

    fn group(&self, placement: &Placement, in_use: Option<&Entry>, state: &VolumeState) -> Group {
        let before = in_use.map_or(&[][..], |entry| &entry.attachments);
        let hosts = state.attachments.iter().chain(before).map(|attachment| attachment.host);
        let mut group = placement.group(&self.directory, hosts, Some(state.id));
        if let Some(entry) = in_use {
            group.volumes.entry(entry.home).or_default().push(state.id);
        }
        group
    }

    /// Moves the volumes and hosts of a group that are on other cores to `target`, with their
    /// connections. If a move is refused, its volumes stay on their core; earlier moves remain.
    fn gather(&self, placement: &mut Placement, group: &Group, target: u16) -> Result<(), Failed> {
        let mut coming = Newcomers { move_in: true, ..Newcomers::default() };
        let others: Vec<u16> = group.cores().into_iter().filter(|core| *core != target).collect();
        for &core in &others {
            let (volumes, mut hosts) = group.on(core);
            coming.hosts.append(&mut hosts);
            coming.volumes.extend(volumes.into_iter().map(|id| (id, self.hosts_of(id))));
        }
        self.ask(target, |ack| Message::HasRoom(Box::new(coming), ack))?.map_err(refused)?;
        for core in others {
            let (volumes, hosts) = group.on(core);
            let party = self.ask(core, |ack| Message::Depart(volumes, hosts, ack))?;
            self.join(placement, party.map_err(refused)?, target)?;
        }
        Ok(())
    }

    fn join(
        &self,
        placement: &mut Placement,
        party: Box<Party>,
        target: u16,
    ) -> Result<(), Failed> {
        let mut volumes: Vec<VolumeId> = party.volumes().collect();
        let mut hosts: Vec<InstanceId> = party.hosts().collect();
        let result = match self.ask(target, |ack| Message::Join(party, ack)) {
            Ok(Ok(())) => Ok(()),
            Ok(Err((party, reason))) => {
                // The volumes and hosts in `party` return to their core.
                volumes.retain(|id| party.volumes().all(|other| other != *id));
                hosts.retain(|id| party.hosts().all(|other| other != *id));
                Err(refused(reason))
            }
            // The target has room and has received the message: it takes them in when it continues.
            Err(failed) if failed.kind == FailedKind::Unanswered => Ok(()),
            Err(failed) => return Err(failed),
        };
        hosts.into_iter().for_each(|id| placement.settle(id, target));
        volumes.into_iter().for_each(|id| self.directory.move_to(id, target));
        result
    }

    fn hosts_of(&self, id: VolumeId) -> Vec<InstanceId> {
        let attachments = self.directory.get(id).map(|entry| entry.attachments);
        attachments.unwrap_or_default().iter().map(|attachment| attachment.host).collect()
    }

    /// Adds the hosts with limits to the core of their volume.
    fn settle_hosts(
        &self,
        placement: &mut Placement,
        home: u16,
        state: &VolumeState,
    ) -> Result<(), Failed> {
        for host in placement.unsettled(&state.attachments) {
            self.tell_host(home, host.clone())?;
            placement.settle(host.id, home);
        }
        Ok(())
    }

    fn apply_host(&self, state: HostState) -> Result<(), Failed> {
        let mut placement = self.placement();
        if let Some(home) = placement.home(state.id) {
            self.tell_host(home, state.clone())?;
        }
        placement.insert(state);
        Ok(())
    }

    fn delete_host(&self, id: InstanceId) -> Result<(), Failed> {
        let mut placement = self.placement();
        if self.directory.is_attached(id) {
            return Err(Failed {
                kind: FailedKind::Refused,
                message: format!("volumes are attached to host {id}; detach them first"),
            });
        }
        if let Some(home) = placement.home(id) {
            self.ask(home, |ack| Message::DeleteHost(id, ack))?;
        }
        placement.remove(id);
        Ok(())
    }

    fn calibrated(&self, model: DeviceModel) -> Result<(), Failed> {
        let _guard = self.placement();
        for core in 0..self.inboxes.len() as u16 {
            let answer = self.ask(core, |ack| Message::Calibrated(model, ack))?;
            answer.map_err(refused)?;
        }
        Ok(())
    }

    /// Sets this node's part of the device, if given. Returns how the node has used its part since
    /// the last call.
    fn divide(&self, part: Option<NodePart>) -> NodeUse {
        if let Some(part) = part {
            self.shared_device.divide(self.clock.now(), &part);
        }
        self.shared_device.take_use()
    }

    fn tell_host(&self, home: u16, state: HostState) -> Result<(), Failed> {
        let answer = self.ask(home, |ack| Message::ApplyHost(Box::new(state), ack))?;
        answer.map_err(refused)
    }

    fn tell(&self, home: u16, state: VolumeState, held: Held) -> Result<(), Failed> {
        let id = state.id;
        let state = Box::new(state);
        let answer = self.post(home, |ack| match held {
            Held::Already => Message::Apply(state, None, ack),
            Held::Opened(store) => Message::Apply(state, Some(store), ack),
            Held::Released(released) => Message::Adopt(state, released, ack),
        });
        match self.wait(&answer) {
            Ok(answer) => answer.map_err(refused),
            Err(failed) => {
                if failed.kind == FailedKind::Unanswered {
                    let mut unanswered =
                        self.unanswered.lock().unwrap_or_else(PoisonError::into_inner);
                    unanswered.insert(id, answer);
                }
                Err(failed)
            }
        }
    }

    fn delete(&self, id: VolumeId) -> Result<(), Failed> {
        let _turn = self.turns.take(id);
        self.hear_of(id)?;
        self.forget_release(id);
        let answer = {
            // Without attachments it stays on its core, so the lock is not held while its requests
            // end.
            let _guard = self.placement();
            self.directory.get(id).map(|mut entry| {
                entry.attachments.clear();
                let home = entry.home;
                self.directory.insert(id, entry);
                self.post(home, |ack| Message::Remove(id, ack))
            })
        };
        if let Some(answer) = answer {
            self.wait(&answer)?;
            self.directory.remove(id);
        }
        if !self.flush_marks.leave(id, self.answer_max) {
            return Err(self.no_answer());
        }
        if let Err(error) = self.pool.forget_failed_flush(id) {
            warn!(volume = %id, %error, "the note is left that a flush of a deleted volume failed");
        }
        let deleted = self.pool.delete(id).map_err(failed);
        // The snapshot from which the volume was created may now be removable.
        self.attend_all();
        deleted
    }

    fn salvage(&self, id: VolumeId) -> Result<(), Failed> {
        let _turn = self.turns.take(id);
        self.hear_of(id)?;
        // The store refuses a volume that is open.
        self.pool.salvage(id).map(drop).map_err(failed)
    }

    fn set_balances(&self, id: VolumeId, balances: Balances) -> Result<(), Failed> {
        let unknown = || Failed {
            kind: FailedKind::NotFound,
            message: format!("the data plane holds no volume {id}; it is made when it is applied"),
        };
        // Not while the volume moves from one core to another.
        let _guard = self.placement();
        let home = self.directory.get(id).ok_or_else(unknown)?.home;
        let found = self.ask(home, |ack| Message::SetBalances(id, balances, ack))?;
        found.then_some(()).ok_or_else(unknown)
    }

    fn lease(&self, unleased: CreditReport) -> Result<CreditReport, Failed> {
        // Volumes and hosts that move meanwhile would be on no core.
        let mut placement = self.placement();
        let mut parts = vec![CreditReport::default(); self.inboxes.len()];
        let mut all = CreditReport::default();
        for (id, unleased) in unleased.volumes {
            if let Some(entry) = self.directory.get(id) {
                parts[usize::from(entry.home)].volumes.push((id, unleased));
            }
        }
        for (id, unleased) in unleased.hosts {
            match (placement.lease(id, unleased), placement.home(id)) {
                (Some(unleased), _) => all.hosts.push((id, unleased)),
                (None, Some(home)) => parts[usize::from(home)].hosts.push((id, unleased)),
                (None, None) => {}
            }
        }
        let asked = (0..).zip(parts).filter(|(_, part)| *part != CreditReport::default());
        let answers: Vec<Receiver<CreditReport>> = asked
            .map(|(core, part)| self.post(core, |ack| Message::Lease(Box::new(part), ack)))
            .collect();
        for answer in &answers {
            let CreditReport { mut volumes, mut hosts } = self.wait(answer)?;
            all.volumes.append(&mut volumes);
            all.hosts.append(&mut hosts);
        }
        Ok(all)
    }

    fn report(&self) -> Result<Report, Failed> {
        // All cores are asked first, so that they answer in parallel.
        let cores = 0..self.inboxes.len();
        self.joined(cores.map(|core| self.post(core as u16, Message::Report)).collect())
    }

    fn report_of(&self, ids: &[VolumeId]) -> Result<Report, Failed> {
        let mut parts = vec![Vec::new(); self.inboxes.len()];
        for id in BTreeSet::from_iter(ids.iter().copied()) {
            if let Some(entry) = self.directory.get(id) {
                parts[usize::from(entry.home)].push(id);
            }
        }
        let asked = (0..).zip(parts).filter(|(_, part)| !part.is_empty());
        let post = |(core, part)| self.post(core, |ack| Message::ReportOf(part, ack));
        self.joined(asked.map(post).collect())
    }

    /// Waits for the reports of several cores, and returns them as one.
    fn joined(&self, answers: Vec<Receiver<Report>>) -> Result<Report, Failed> {
        let mut all = Report::default();
        for answer in &answers {
            let Report { mut volumes, mut hosts } = self.wait(answer)?;
            all.volumes.append(&mut volumes);
            all.hosts.append(&mut hosts);
        }
        all.volumes.sort_by_key(|report| report.id);
        all.hosts.sort_by_key(|report| report.id);
        Ok(all)
    }

    fn credit_report(&self) -> Result<CreditReport, Failed> {
        let answers: Vec<Receiver<CreditReport>> =
            (0..self.inboxes.len()).map(|core| self.post(core as u16, Message::Balances)).collect();
        let mut all = CreditReport::default();
        for answer in &answers {
            let CreditReport { mut volumes, mut hosts } = self.wait(answer)?;
            all.volumes.append(&mut volumes);
            all.hosts.append(&mut hosts);
        }
        Ok(all)
    }

    fn latencies(&self, of: Option<VolumeId>) -> Result<Vec<(VolumeId, Box<Latencies>)>, Failed> {
        if let Some(id) = of {
            let Some(entry) = self.directory.get(id) else { return Ok(Vec::new()) };
            let found = self.ask(entry.home, |ack| Message::LatenciesOf(id, ack))?;
            return Ok(found.map(|latencies| (id, latencies)).into_iter().collect());
        }
        let mut all = Vec::new();
        let mut cores: Vec<(u16, Option<VolumeId>)> =
            (0..self.inboxes.len() as u16).map(|core| (core, None)).collect();
        // The cores answer in parallel, each with one page at a time: between two pages it serves
        // clients.
        while !cores.is_empty() {
            let ask = |(core, after): (u16, Option<VolumeId>)| {
                (core, self.post(core, |ack| Message::Latencies(after, ack)))
            };
            let answers: Vec<_> = cores.drain(..).map(ask).collect();
            for (core, answer) in &answers {
                let LatencyPage { mut found, last } = self.wait(answer)?;
                all.append(&mut found);
                cores.extend(last.map(|last| (*core, Some(last))));
            }
        }
        all.sort_by_key(|(id, _)| *id);
        // A volume that has moved to another core meanwhile was found on both.
        all.dedup_by_key(|(id, _)| *id);
        Ok(all)
    }

    fn ask<T>(
        &self,
        core: u16,
        message: impl FnOnce(SyncSender<T>) -> Message,
    ) -> Result<T, Failed> {
        self.wait(&self.post(core, message))
    }

    fn post<T>(&self, core: u16, message: impl FnOnce(SyncSender<T>) -> Message) -> Receiver<T> {
        let (ack, answer) = sync_channel(1);
        self.inboxes[usize::from(core)].post(message(ack));
        answer
    }

    fn wait<T>(&self, answer: &Receiver<T>) -> Result<T, Failed> {
        answer.recv_timeout(self.answer_max).map_err(|error| match error {
            RecvTimeoutError::Disconnected => Failed {
                kind: FailedKind::Down,
                message: "the data plane is not running; restart the server".to_owned(),
            },
            RecvTimeoutError::Timeout => self.no_answer(),
        })
    }

    fn no_answer(&self) -> Failed {
        Failed {
            kind: FailedKind::Unanswered,
            message: format!(
                "the data plane has not answered within {} s: its disk hangs, see the kernel's \
                 log; it is asked again until it answers",
                self.answer_max.as_secs()
            ),
        }
    }
}

fn refused(message: String) -> Failed {
    Failed { kind: FailedKind::Refused, message }
}

/// Returns the error for a volume whose hosts and volumes are on different cores and cannot be
/// brought together.
fn apart(
    placement: &Placement,
    in_use: Option<&Entry>,
    state: &VolumeState,
    reason: &str,
) -> Failed {
    let hosts = state.attachments.iter().map(|attachment| attachment.host);
    let hosts = hosts.filter_map(|host| Some((host, placement.home(host)?)));
    let mut parts: Vec<String> =
        hosts.map(|(host, core)| format!("host {host} on core {core}")).collect();
    let volume = in_use.map(|entry| format!("volume {} on core {}", state.id, entry.home));
    parts.extend(volume);
    refused(format!(
        "{} have to be on one core, because a host's limits hold on one only, and could not be \
         brought together: {reason}; try again when those clients rest or are disconnected, \
         detach the other volumes of one of the hosts, or serve with one core",
        parts.join(", ")
    ))
}

/// Converts a store's error of a volume that is still served.
fn failed_while_open(error: StoreError) -> Failed {
    let Failed { kind, message } = failed(error);
    // Damage is reported only for volumes that are not served.
    let kind = if kind == FailedKind::Damaged { FailedKind::Refused } else { kind };
    Failed { kind, message }
}

fn failed(error: StoreError) -> Failed {
    let kind = match &error {
        error if error.is_no_space() => FailedKind::NoSpace,
        StoreError::Size { .. }
        | StoreError::Unit { .. }
        | StoreError::Exists { .. }
        | StoreError::Unready { .. } => FailedKind::Refused,
        StoreError::NoSnapshot { .. } => FailedKind::NotFound,
        StoreError::Unfinished { .. } | StoreError::Closing { .. } => FailedKind::Unanswered,
        error if error.is_damage() => FailedKind::Damaged,
        _ => FailedKind::Internal,
    };
    Failed { kind, message: error.to_string() }
}

fn answer<T>(result: Result<T, Failed>, reply: impl FnOnce(T) -> Reply) -> Reply {
    result.map_or_else(Reply::Failed, reply)
}

impl Agent for EngineAgent {
    fn call(&self, command: Command) -> Reply {
        let done = |result: Result<(), Failed>| answer(result, |()| Reply::Done);
        match command {
            Command::Create(state) => done(self.apply(state, AtRest::New)),
            Command::Apply(state) => done(self.apply(state, AtRest::Complete)),
            Command::Grow(state, from) => done(self.apply(state, AtRest::Growing(from))),
            Command::Delete(id) => done(self.delete(id)),
            Command::Release(id) => answer(self.release(id), Reply::Balances),
            Command::Salvage(id) => done(self.salvage(id)),
            Command::SetBalances(id, balances) => done(self.set_balances(id, balances)),
            Command::Latencies(of) => answer(self.latencies(of), Reply::Latencies),
            Command::ApplyHost(state) => done(self.apply_host(state)),
            Command::DeleteHost(id) => done(self.delete_host(id)),
            Command::Calibrated(model) => done(self.calibrated(model)),
            Command::Divide(part) => Reply::Use(self.divide(part)),
            Command::Lease(unleased) => answer(self.lease(unleased), Reply::Balances),
            Command::Report => answer(self.report(), Reply::Report),
            Command::ReportOf(ids) => answer(self.report_of(&ids), Reply::Report),
            Command::Balances => answer(self.credit_report(), Reply::Balances),
            Command::Stored => answer(self.stored(), Reply::Stored),
            Command::Space => answer(self.space(), Reply::Space),
            Command::Capacity => Reply::Capacity(self.capacity()),
            Command::CreateFrom(state, snapshot) => done(self.apply(state, AtRest::From(snapshot))),
            Command::Snapshot(of, id) => done(self.snapshot(of, id)),
            Command::DeleteSnapshot(id) => done(self.delete_snapshot(id)),
            Command::Snapshots => answer(self.stored_snapshots(), Reply::Snapshots),
            Command::SnapshotsOf(ids) => answer(self.snapshots_of(&ids), Reply::Snapshots),
            Command::SnapshotSet(set) => done(self.snapshot_set(&set)),
            Command::SnapshotUnits(wanted) => answer(self.snapshot_units(wanted), Reply::Units),
            Command::ReadSnapshot(id, unit) => answer(self.read_snapshot(id, unit), Reply::Unit),
            Command::StartSnapshot(new) => done(self.start_snapshot(new)),
            Command::PutSnapshot(id, unit, bytes) => done(self.put_snapshot(id, unit, &bytes)),
            Command::CompleteSnapshot(id) => done(self.complete_snapshot(id)),
            Command::SetBackground(limit) => {
                self.set_background(limit);
                Reply::Done
            }
            Command::Filled(ids) => Reply::Filled(self.filled(&ids)),
            Command::VerifyStore(place) => answer(self.verify_store(place), Reply::Verified),
            Command::Background => Reply::Background(self.background_report()),
            Command::StoreHealth => Reply::StoreHealth(self.store_health()),
            Command::Verify(id, offset) => answer(self.verify(id, offset), Reply::Verified),
            Command::VerifySnapshot(id, unit) => {
                answer(self.verify_snapshot(id, unit), Reply::Verified)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::qos::admission::Reserved;
    use evenkeel_core::qos::pacing::Pacing;
    use evenkeel_store::memory::MemoryPool;

    #[test]
    fn silent_home_gets_one_command_until_it_answers() {
        let inboxes: Arc<[Inbox]> = [Inbox::new().unwrap()].into();
        let pool = Arc::new(MemoryPool::new());
        let directory = Arc::new(Directory::default());
        let shared_device = Arc::new(SharedDevice::new(1));
        let messages = Arc::clone(&inboxes);
        let shared = (shared_device, Arc::default());
        let mut agent =
            EngineAgent::new(pool, inboxes, Arc::clone(&directory), shared, Clock::start());
        agent.answer_max = Duration::from_millis(1);
        let id = VolumeId::from_bits(1);
        let size = ByteCount(1 << 20);
        let geometry = Geometry { size, block_bytes_min: 512, block_bytes_preferred: 4_096 };
        directory.insert(id, Entry { home: 0, geometry, attachments: Vec::new() });
        let detached = VolumeState {
            id,
            size,
            pacing: Pacing::UNLIMITED,
            balances: Balances::default(),
            unleased: Balances::default(),
            reserved: Reserved::NOTHING,
            attachments: Vec::new(),
            is_encrypted: false,
        };
        let kind = |reply| match reply {
            Reply::Failed(failed) => failed.kind,
            other => panic!("{other:?}"),
        };
        for _ in 0..3 {
            let applied = agent.call(Command::Apply(detached.clone()));
            assert_eq!(kind(applied), FailedKind::Unanswered);
            assert_eq!(kind(agent.call(Command::Delete(id))), FailedKind::Unanswered);
        }
        let mut commands = messages[0].take();
        assert_eq!(commands.len(), 1, "told once");
        let Some(Message::Apply(_, None, ack)) = commands.pop() else { panic!("something else") };
        ack.send(Ok(())).unwrap();
        // Only now does the home get a new command.
        assert_eq!(kind(agent.call(Command::Apply(detached))), FailedKind::Unanswered);
        assert_eq!(messages[0].take().len(), 1);
    }
}
