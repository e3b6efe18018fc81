//! Volumes that go to another core with their hosts and their connections, so that a host's limits
//! stay on one core.
//!
//! A volume departs once it is quiet: no more requests are taken from its connections, requests in
//! progress are finished and their replies have left. New requests of clients wait in their
//! sockets. If that takes too long, all volumes stay on their core and continue.

use super::volumes::{Released, Volume};
use super::{Inbox, Message, Reactor, note};
use crate::driver::Driver;
use crate::protocol::Binding;
use crate::session::{Bound, Connection, Session};
use crate::table::{SessionId, VolumeSlot};
use crate::transport::OtherEnd;
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::qos::scheduler::{ExportedInstance, NoSuch};
use evenkeel_core::qos::trace::Call;
use evenkeel_core::time::{Duration, Instant};
use evenkeel_wire::agent::VolumeState;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, sync_channel};

/// Time limit for a volume to become quiet. Its clients wait meanwhile: it is less than their time
/// limits.
const QUIET_MAX: Duration = Duration::from_ms(2_000);

/// Volumes and hosts that are about to come to a core, or to change there.
#[derive(Default)]
pub struct Newcomers {
    /// Hosts with limits.
    pub hosts: Vec<InstanceId>,
    /// Volumes, each with all hosts to which it is to be attached.
    pub volumes: Vec<(VolumeId, Vec<InstanceId>)>,
    /// Whether they come from another core.
    pub move_in: bool,
}

impl Newcomers {
    /// Returns one volume in its desired state.
    #[must_use]
    pub fn one(state: &VolumeState, move_in: bool) -> Self {
        let hosts = state.attachments.iter().map(|attachment| attachment.host).collect();
        Self { volumes: vec![(state.id, hosts)], move_in, ..Self::default() }
    }
}

/// Volumes and hosts that go from one core to another together. Returns to its core if it is
/// dropped before it is taken in.
pub struct Party {
    volumes: Vec<Released>,
    hosts: Vec<(InstanceId, ExportedInstance)>,
    /// The core that it has left, as long as it may go back there.
    home: Option<(Arc<[Inbox]>, u16)>,
}

impl Party {
    /// Returns its volumes.
    pub fn volumes(&self) -> impl Iterator<Item = VolumeId> {
        self.volumes.iter().map(|released| released.state.id)
    }

    /// Returns its hosts.
    pub fn hosts(&self) -> impl Iterator<Item = InstanceId> {
        self.hosts.iter().map(|(id, _)| *id)
    }

    fn as_newcomers(&self) -> Newcomers {
        let with_hosts = |released: &Released| {
            let state = &released.state;
            (state.id, state.attachments.iter().map(|attachment| attachment.host).collect())
        };
        Newcomers {
            hosts: self.hosts().collect(),
            volumes: self.volumes.iter().map(with_hosts).collect(),
            move_in: true,
        }
    }
}

impl Drop for Party {
    fn drop(&mut self) {
        let volumes = std::mem::take(&mut self.volumes);
        let hosts = std::mem::take(&mut self.hosts);
        if let Some((inboxes, core)) = self.home.take()
            && !(volumes.is_empty() && hosts.is_empty())
        {
            // Without `home`, so that it is posted only once: if that core has ended, the party is
            // lost.
            let party = Box::new(Self { volumes, hosts, home: None });
            let (ack, _) = sync_channel(1);
            inboxes[usize::from(core)].post(Message::Join(party, ack));
        }
    }
}

/// Volumes that go to another core once they are quiet.
pub(super) struct Departure {
    volumes: Vec<(VolumeId, VolumeSlot)>,
    hosts: Vec<InstanceId>,
    /// Time at which it is given up.
    pub(super) by: Instant,
    ack: SyncSender<Result<Box<Party>, String>>,
    /// The connection that was not quiet at the last check. It is checked first, and others only if
    /// it is quiet.
    waits_for: Option<SessionId>,
}

impl Departure {
    fn is_of(&self, session: &Session) -> bool {
        self.volumes.iter().any(|(_, slot)| session.protocol.is_bound_to(*slot))
    }
}

/// State of a departure.
enum Standing {
    /// A request or a driver's operation is in flight.
    Restless,
    Quiet,
    /// It is impossible: one of its volumes is being closed.
    Broken,
}

impl<D: Driver> Reactor<D> {
    /// Checks that there is room for `coming`. If so, none of it is refused, as long as nothing
    /// else comes before.
    pub(super) fn has_room(&self, coming: &Newcomers) -> Result<(), String> {
        let room = self.scheduler.room();
        let hosts = coming.hosts.iter().filter(|host| !self.hosts.contains_key(host)).count();
        let volumes = coming.volumes.iter().filter(|(id, _)| !self.by_id.contains_key(id)).count();
        let mut needed = 0;
        let mut left = room.attachments;
        for (id, hosts) in &coming.volumes {
            let held = self.by_id.get(id).map(|&slot| &self.volumes[slot]);
            let (more, fewer) = self.lines_needed(held, hosts, coming);
            (needed, left) = (needed + more, left + fewer);
        }
        if !coming.hosts.is_empty() {
            // Volumes here, of hosts that had no limits until now.
            let named: BTreeSet<VolumeId> = coming.volumes.iter().map(|(id, _)| *id).collect();
            for (_, &slot) in self.by_id.iter().filter(|(id, _)| !named.contains(id)) {
                let volume = &self.volumes[slot];
                let hosts: Vec<_> = volume.state.attachments.iter().map(|a| a.host).collect();
                if hosts.iter().any(|host| coming.hosts.contains(host)) {
                    needed += self.lines_needed(Some(volume), &hosts, coming).0;
                }
            }
        }
        let missing = [
            (hosts > room.instances, NoSuch::RoomForInstances),
            (volumes > room.volumes, NoSuch::RoomForVolumes),
            (needed > left, NoSuch::RoomForAttachments),
        ];
        if let Some((_, missing)) = missing.into_iter().find(|(is_missing, _)| *is_missing) {
            return Err(missing.to_string());
        }
        Ok(())
    }

    /// Returns how many attachments a volume needs at the scheduler beside its present ones, and
    /// how many it gives up.
    fn lines_needed(
        &self,
        held: Option<&Volume>,
        hosts: &[InstanceId],
        coming: &Newcomers,
    ) -> (usize, usize) {
        let hosts: BTreeSet<InstanceId> = hosts.iter().copied().collect();
        let (stay, go) = held.map_or((0, 0), |volume| volume.lines.count(&hosts));
        let has_limits =
            |host: &InstanceId| self.hosts.contains_key(host) || coming.hosts.contains(host);
        let moves_in = held.is_none() && coming.move_in;
        if self.device.is_none() && stay == 0 && !moves_in && !hosts.iter().any(has_limits) {
            return (0, go);
        }
        (hosts.len().max(1).saturating_sub(stay), go)
    }

    /// Returns the number of connections to these volumes.
    pub(super) fn connections(&self, ids: &[VolumeId]) -> u32 {
        let slots: BTreeSet<VolumeSlot> =
            ids.iter().filter_map(|id| self.by_id.get(id)).copied().collect();
        let is_theirs = |session: &Session| {
            session.protocol.bindings().iter().any(|binding| slots.contains(&binding.volume))
        };
        self.sessions.iter().filter(|(_, session)| is_theirs(session)).count() as u32
    }

    /// Gives volumes and hosts away once the volumes are quiet.
    pub(super) fn depart(
        &mut self,
        ids: &[VolumeId],
        hosts: Vec<InstanceId>,
        ack: SyncSender<Result<Box<Party>, String>>,
    ) {
        let mut volumes = Vec::with_capacity(ids.len());
        for &id in ids {
            let Some(&slot) = self.by_id.get(&id) else {
                let _ = ack.send(Err(format!("volume {id} is not open on core {}", self.core)));
                return;
            };
            volumes.push((id, slot));
        }
        let by = self.now + QUIET_MAX;
        let departure = Departure { volumes, hosts, by, ack, waits_for: None };
        for &(_, slot) in &departure.volumes {
            self.volumes[slot].departs = true;
        }
        for (id, session) in self.sessions.iter() {
            // A connection in the middle of a write receives to the write's end.
            let transport = &session.transport;
            let is_waiting = transport.is_receiving() && transport.payload().is_none();
            if is_waiting && departure.is_of(session) {
                self.driver.cancel_receive(id);
            }
            if transport.other_end == OtherEnd::Watched && departure.is_of(session) {
                self.driver.cancel_watch(id);
            }
        }
        self.departures.push(departure);
    }

    /// Returns whether a connection's next request has to wait because one of its volumes departs.
    pub(super) fn waits_for_departure(&mut self, id: SessionId) -> bool {
        let session = &mut self.sessions[id];
        let departs = |binding: &Binding| self.volumes[binding.volume].departs;
        let waits = session.protocol.bindings().iter().any(departs)
            && session.transport.payload().is_none();
        if waits {
            session.parked = Some(Bound::Departure);
        }
        waits
    }

    /// Completes departures whose volumes are quiet, and gives up those that are late or broken.
    pub(super) fn depart_when_quiet(&mut self) {
        for at in (0..self.departures.len()).rev() {
            let standing = self.standing_of(at);
            let is_late = self.now >= self.departures[at].by;
            match standing {
                Standing::Restless if !is_late => {}
                Standing::Quiet => {
                    let departure = self.departures.swap_remove(at);
                    self.leave(departure);
                }
                Standing::Restless | Standing::Broken => {
                    let departure = self.departures.swap_remove(at);
                    self.stay(departure);
                }
            }
        }
    }

    fn standing_of(&mut self, at: usize) -> Standing {
        let departure = &mut self.departures[at];
        for (id, slot) in &departure.volumes {
            if self.by_id.get(id) != Some(slot) || self.volumes[*slot].is_leaving() {
                return Standing::Broken;
            }
        }
        let last = departure.waits_for.and_then(|id| self.sessions.get(id));
        if last.is_some_and(|session| departure.is_of(session) && !session.is_quiet()) {
            return Standing::Restless;
        }
        let mut sessions = self.sessions.iter();
        let noisy = sessions.find(|(_, session)| departure.is_of(session) && !session.is_quiet());
        departure.waits_for = noisy.map(|(id, _)| id);
        let is_of = |slot: VolumeSlot| departure.volumes.iter().any(|(_, of)| *of == slot);
        let works = |(_, slot): &(VolumeId, VolumeSlot)| !self.volumes[*slot].store.is_idle();
        let is_busy = noisy.is_some()
            || self.active.iter().any(|(_, active)| is_of(active.volume))
            || departure.volumes.iter().any(works);
        if is_busy { Standing::Restless } else { Standing::Quiet }
    }

    fn leave(&mut self, departure: Departure) {
        let home = Some((Arc::clone(&self.inboxes), self.core));
        let mut party = Box::new(Party { volumes: Vec::new(), hosts: Vec::new(), home });
        let mut connections = self.take_connections(&departure);
        for (_, slot) in departure.volumes {
            // A quiet volume can be exported; if it could not, it would be closed.
            if let (Some(mut released), _) = self.take_out(slot) {
                released.connections = connections.remove(&slot).unwrap_or_default();
                party.volumes.push(released);
            }
        }
        for id in departure.hosts {
            let Some(index) = self.hosts.remove(&id) else { continue };
            note(&mut self.trace, self.now, Call::Other("export_instance"));
            let exported = self.scheduler.export_instance(self.now, index);
            party.hosts.extend(exported.map(|exported| (id, exported)));
        }
        // If the receiver has given up waiting, the party comes back.
        let _ = departure.ack.send(Ok(party));
    }

    /// Removes the connections of a departure's volumes, and returns them by slot.
    fn take_connections(&mut self, departure: &Departure) -> BTreeMap<VolumeSlot, Vec<Connection>> {
        let sessions = self.sessions.iter();
        let theirs = sessions.filter(|(_, session)| departure.is_of(session));
        let ids: Vec<SessionId> = theirs.map(|(id, _)| id).collect();
        let mut connections = BTreeMap::<VolumeSlot, Vec<Connection>>::new();
        for id in ids {
            let session = self.sessions.remove(id);
            // A connection to several volumes can travel with any of them: all of them go.
            if let Some(&Binding { volume, .. }) = session.protocol.bindings().first() {
                connections.entry(volume).or_default().push(session.leave());
            }
        }
        connections
    }

    fn stay(&mut self, departure: Departure) {
        for (id, slot) in &departure.volumes {
            if self.by_id.get(id) == Some(slot) {
                self.volumes[*slot].departs = false;
            }
        }
        let sessions = self.sessions.iter();
        let theirs = sessions.filter(|(_, session)| departure.is_of(session));
        self.ready.extend(theirs.map(|(id, _)| id));
        let ids: Vec<String> = departure.volumes.iter().map(|(id, _)| id.to_string()).collect();
        let _ = departure.ack.send(Err(format!(
            "requests for {} on core {} were not executed and their replies read within {} ms",
            ids.join(", "),
            self.core,
            QUIET_MAX.ns / 1_000_000
        )));
    }

    /// Takes over volumes and hosts of another core, hosts first. Those that are refused are
    /// returned with the reason.
    pub(super) fn join(&mut self, mut party: Box<Party>) -> Result<(), (Box<Party>, String)> {
        if let Err(error) = self.has_room(&party.as_newcomers()) {
            return Err((party, error));
        }
        while let Some((id, exported)) = party.hosts.pop() {
            note(&mut self.trace, self.now, Call::Other("import_instance"));
            match self.scheduler.import_instance(self.now, exported) {
                Ok(index) => _ = self.hosts.insert(id, index),
                Err((exported, error)) => {
                    party.hosts.push((id, exported));
                    return Err((party, error.to_string()));
                }
            }
        }
        let mut arrived = Vec::new();
        let mut refused = None;
        while let Some(mut released) = party.volumes.pop() {
            let connections = std::mem::take(&mut released.connections);
            match self.take_in(Box::new(released)) {
                Ok(slot) => {
                    self.settle_in(slot);
                    arrived.extend(connections);
                }
                Err((mut released, error)) => {
                    released.connections = connections;
                    party.volumes.push(*released);
                    refused = Some(error);
                    break;
                }
            }
        }
        // A core that stops serves no further connections.
        if self.stop_by.is_none() {
            arrived.into_iter().for_each(|connection| self.go_on_with(connection));
        }
        if let Some(error) = refused {
            return Err((party, error));
        }
        self.dispatch();
        Ok(())
    }

    /// Registers a volume that has just come with its hosts and the device.
    fn settle_in(&mut self, slot: VolumeSlot) {
        if let Err(error) = self.line_up(slot) {
            // `has_room` has found room for it.
            let volume = self.volumes[slot].state.id;
            tracing::error!(%volume, %error, "a volume that was moved is without its limits");
        }
    }

    /// Serves a connection whose volumes have all come. Each has a new slot.
    fn go_on_with(&mut self, mut connection: Connection) {
        for binding in connection.protocol.bindings_mut() {
            let Some(&slot) = self.by_id.get(&binding.id) else { continue };
            let line = self.volumes[slot].line_of(connection.peer);
            (binding.volume, binding.line) = (slot, line);
        }
        let id = self.sessions.insert(Session::new(connection, self.now));
        self.ready.push(id);
    }
}
