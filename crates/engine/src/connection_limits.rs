//! Limits on connections over all cores. Checked when a connection is accepted, when its client
//! chooses a volume and when it ends; never for an I/O.
//!
//! A client that has not chosen a volume yet holds a place among the handshakes. Handshakes are
//! short. If all places are taken, a new client replaces the oldest handshake of the peer with the
//! most handshakes. A client of a volume is never evicted. Its host may hold no more connections
//! than it leaves free, and the volume no more of its host's share than it leaves free. So a new
//! client finds room, however many connections the others hold.

use crate::handoff::Kept;
use evenkeel_core::convert::index;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::limits::{
    CONNECTIONS_PER_CORE_MAX, CONNECTIONS_PER_VOLUME_MAX, HANDSHAKES_MAX, HANDSHAKES_PER_PEER_MAX,
};
use evenkeel_wire::agent::HostAddress;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The number of a connection among all connections of a server. Numbers increase.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct ConnectionId(u64);

/// Maximum numbers of connections.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// All connections, handshakes included.
    pub connections: usize,
    /// Connections of one host to one volume.
    pub per_volume: usize,
    /// Connections in a handshake. This number is reserved for them.
    pub handshakes: usize,
    /// Connections of one host in a handshake.
    pub handshakes_per_peer: usize,
}

impl Bounds {
    /// Returns the bounds of a server with this number of cores that may open `files` files. Half
    /// of the files are left for volumes and for the API.
    #[must_use]
    pub fn new(cores: u16, files: Option<u64>) -> Self {
        let wanted = usize::from(cores.max(1)) * CONNECTIONS_PER_CORE_MAX;
        let files = files.map_or(usize::MAX, index);
        let connections = wanted.min(files / 2).max(16);
        let handshakes = HANDSHAKES_MAX.min(connections / 8);
        Self {
            connections,
            per_volume: CONNECTIONS_PER_VOLUME_MAX,
            handshakes,
            handshakes_per_peer: HANDSHAKES_PER_PEER_MAX.min(handshakes.div_ceil(2)),
        }
    }
}

/// Reason why a connection is refused.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NoPlace {
    /// The server has this number of connections, its maximum.
    Server(usize),
    /// The host has this number of connections, as many as it leaves free.
    Host(usize),
    /// The volume has this number of connections from this host, its maximum.
    Volume(usize),
    /// Another handshake has taken this one's place.
    Taken,
}

impl fmt::Display for NoPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Server(held) => {
                write!(f, "the server has {held} connections, as many as it may")
            }
            Self::Host(held) => write!(
                f,
                "this host has {held} connections, as many as it leaves free for others; close some"
            ),
            Self::Volume(held) => write!(
                f,
                "the volume has {held} connections from this host, as many as it may; close some"
            ),
            Self::Taken => write!(f, "too many clients are connecting; try again"),
        }
    }
}

/// A handshake that has to end, because another one has taken its place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Evicted {
    /// Its core.
    pub core: u16,
    /// Its number.
    pub connection: ConnectionId,
}

/// One host's connections.
#[derive(Debug, Default)]
struct Peer {
    /// The cores of its handshakes, the oldest first.
    handshakes: BTreeMap<ConnectionId, u16>,
    /// Number of connections to each volume.
    volumes: BTreeMap<VolumeId, usize>,
    /// Number of connections to all volumes.
    connections: usize,
}

#[derive(Debug, Default)]
struct Table {
    peers: BTreeMap<HostAddress, Peer>,
    handshakes: usize,
    connections: usize,
    /// Slots that exist, including those of evicted handshakes that are not closed yet.
    slots: usize,
    /// The last number that was given to a connection.
    last_id: ConnectionId,
}

/// All connections of a server.
#[derive(Debug)]
pub struct Slots {
    bounds: Bounds,
    table: Mutex<Table>,
}

impl Default for Slots {
    fn default() -> Self {
        Self::new(Bounds::new(1, None))
    }
}

/// A connection's place among all connections. Dropping it frees the place.
#[derive(Debug)]
pub struct Slot {
    slots: Arc<Slots>,
    peer: HostAddress,
    /// Its number.
    pub id: ConnectionId,
    volume: Option<VolumeId>,
    /// State for the creator of the connection, kept as long as a request of it is in progress.
    pub kept: Option<Kept>,
}

impl Slots {
    /// Creates a table without connections.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self { bounds, table: Mutex::default() }
    }

    /// Takes a place among the handshakes for a client of `peer` on `core`. Returns it, and the
    /// handshake that the caller must close to make room.
    ///
    /// # Errors
    /// [`NoPlace::Server`], while an evicted handshake is not closed yet.
    pub fn greet(
        self: &Arc<Self>,
        peer: HostAddress,
        core: u16,
    ) -> Result<(Slot, Option<Evicted>), NoPlace> {
        let mut table = self.lock();
        if table.slots >= self.bounds.connections {
            return Err(NoPlace::Server(table.slots));
        }
        let evicted = table.make_room(peer, &self.bounds);
        table.last_id.0 += 1;
        let id = table.last_id;
        table.slots += 1;
        table.handshakes += 1;
        table.peers.entry(peer).or_default().handshakes.insert(id, core);
        drop(table);
        Ok((Slot { slots: Arc::clone(self), peer, id, volume: None, kept: None }, evicted))
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        // No panic is possible between two changes that belong together.
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Table {
    /// Removes a handshake if one more of `peer` exceeds a limit. Returns the one to close.
    fn make_room(&mut self, peer: HostAddress, bounds: &Bounds) -> Option<Evicted> {
        let held = |of: &Peer| of.handshakes.len();
        let own = self.peers.get(&peer).map_or(0, held);
        let from = if own >= bounds.handshakes_per_peer {
            peer
        } else if self.handshakes >= bounds.handshakes {
            // Counted as if the newcomer were in: among equals, it replaces one of its own host.
            let greediest = self.peers.iter().max_by_key(|(_, of)| held(of));
            match greediest {
                Some((other, of)) if held(of) > own + 1 => *other,
                _ if own > 0 => peer,
                Some((other, _)) => *other,
                None => return None,
            }
        } else {
            return None;
        };
        let (connection, core) = self.peers.get_mut(&from)?.handshakes.pop_first()?;
        self.handshakes -= 1;
        self.forget_idle(from);
        Some(Evicted { core, connection })
    }

    /// Returns an error if `peer` may not have one more connection to `volume`.
    fn may_join(
        &self,
        peer: HostAddress,
        volume: VolumeId,
        bounds: &Bounds,
    ) -> Result<(), NoPlace> {
        let none = Peer::default();
        let held = self.peers.get(&peer).unwrap_or(&none);
        let to_volume = held.volumes.get(&volume).copied().unwrap_or(0);
        if to_volume >= bounds.per_volume {
            return Err(NoPlace::Volume(to_volume));
        }
        // A host may hold half of the connections that other hosts leave.
        let room = bounds.connections - bounds.handshakes;
        let of_this_host = room.saturating_sub(self.connections - held.connections) / 2;
        if held.connections >= of_this_host {
            return Err(NoPlace::Host(held.connections));
        }
        // A volume may hold half of those that the host's other volumes leave.
        let of_this_volume = (of_this_host - (held.connections - to_volume)).div_ceil(2);
        if to_volume >= of_this_volume {
            return Err(NoPlace::Volume(to_volume));
        }
        Ok(())
    }

    fn forget_idle(&mut self, peer: HostAddress) {
        let is_idle = |of: &Peer| of.handshakes.is_empty() && of.connections == 0;
        if self.peers.get(&peer).is_some_and(is_idle) {
            self.peers.remove(&peer);
        }
    }
}

impl Slot {
    /// Checks whether this client could connect to `volume` now.
    ///
    /// # Errors
    /// The limit that is reached, as a message for the client.
    pub fn may_join(&self, volume: VolumeId) -> Result<(), NoPlace> {
        self.slots.lock().may_join(self.peer, volume, &self.slots.bounds)
    }

    /// Turns the handshake into a connection to `volume`.
    ///
    /// # Errors
    /// If a limit is reached, or another handshake has taken the place of this one.
    pub fn join(&mut self, volume: VolumeId) -> Result<(), NoPlace> {
        let mut table = self.slots.lock();
        table.may_join(self.peer, volume, &self.slots.bounds)?;
        let Some(of) = table.peers.get_mut(&self.peer) else { return Err(NoPlace::Taken) };
        if self.volume.is_some() || of.handshakes.remove(&self.id).is_none() {
            return Err(NoPlace::Taken);
        }
        *of.volumes.entry(volume).or_default() += 1;
        of.connections += 1;
        table.handshakes -= 1;
        table.connections += 1;
        self.volume = Some(volume);
        Ok(())
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut guard = self.slots.lock();
        let table = &mut *guard;
        table.slots -= 1;
        let Some(of) = table.peers.get_mut(&self.peer) else { return };
        match self.volume {
            Some(volume) => {
                of.connections -= 1;
                table.connections -= 1;
                if let Some(held) = of.volumes.get_mut(&volume) {
                    *held -= 1;
                    if *held == 0 {
                        of.volumes.remove(&volume);
                    }
                }
            }
            None => table.handshakes -= usize::from(of.handshakes.remove(&self.id).is_some()),
        }
        table.forget_idle(self.peer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BOUNDS: Bounds =
        Bounds { connections: 1_000, per_volume: 200, handshakes: 100, handshakes_per_peer: 30 };

    fn slots() -> Arc<Slots> {
        Arc::new(Slots::new(BOUNDS))
    }

    fn host(number: u8) -> HostAddress {
        HostAddress::Remote([10, 0, 0, number].into())
    }

    fn volume(number: u128) -> VolumeId {
        VolumeId::from_bits(number)
    }

    /// Returns as many connections as `peer` gets to `volume`, and the reason for the end.
    fn all(slots: &Arc<Slots>, peer: HostAddress, volume: VolumeId) -> (Vec<Slot>, NoPlace) {
        let mut held = Vec::new();
        loop {
            let (mut slot, _) = slots.greet(peer, 0).unwrap();
            match slot.join(volume) {
                Ok(()) => held.push(slot),
                Err(why) => return (held, why),
            }
        }
    }

    #[test]
    fn new_host_finds_a_slot_beside_greedy_hosts() {
        let slots = slots();
        let mut held = Vec::new();
        for number in 0..8 {
            let mut count = 0;
            for id in 0..20 {
                let (more, _) = all(&slots, host(number), volume(id));
                count += more.len();
                held.extend(more);
            }
            assert!(count > 0, "host {number}");
        }
        assert!(held.len() > 850, "what there is is used: {}", held.len());
        // Handshakes have room of their own.
        assert!(slots.greet(host(9), 0).is_ok());
    }

    #[test]
    fn a_volume_leaves_room_for_the_others_of_its_host() {
        let slots = slots();
        let (first, why) = all(&slots, HostAddress::Local, volume(1));
        assert_eq!((first.len(), why), (200, NoPlace::Volume(200)));
        let (second, _) = all(&slots, HostAddress::Local, volume(2));
        let (third, why) = all(&slots, HostAddress::Local, volume(3));
        assert_eq!((second.len(), third.len(), why), (125, 63, NoPlace::Volume(63)));
        // Closed connections make room again.
        drop(second);
        assert_eq!(all(&slots, HostAddress::Local, volume(4)).0.len(), 94);
        drop((first, third));
        let table = slots.lock();
        assert_eq!((table.slots, table.connections, table.peers.len()), (0, 0, 0));
    }

    #[test]
    fn handshakes_of_one_host_take_each_others_places_only() {
        let slots = slots();
        let (other, none) = slots.greet(host(1), 3).unwrap();
        assert_eq!(none, None);
        let mut silent = Vec::new();
        for number in 0..500_u64 {
            let (slot, evicted) = slots.greet(host(2), 7).unwrap();
            let oldest = number.checked_sub(30).map(|place| ConnectionId(place + 2));
            let oldest = oldest.map(|connection| Evicted { core: 7, connection });
            assert_eq!(evicted, oldest);
            silent.push(slot);
        }
        // An evicted handshake cannot connect any more, and frees nothing twice.
        assert_eq!(silent[0].join(volume(1)), Err(NoPlace::Taken));
        drop(silent);
        assert_eq!(slots.lock().handshakes, 1);
        drop(other);
        assert_eq!(slots.lock().peers.len(), 0);
    }

    #[test]
    fn a_newcomer_takes_the_place_of_the_oldest_of_the_greediest() {
        let slots = slots();
        let greeted = |number: u8, count| -> Vec<Slot> {
            (0..count).map(|_| slots.greet(host(number), u16::from(number)).unwrap().0).collect()
        };
        let mut held = [greeted(1, 25), greeted(2, 26), greeted(3, 24), greeted(4, 25)];
        let oldest = |held: &[Slot], core| Some(Evicted { core, connection: held[0].id });
        let (_new, evicted) = slots.greet(host(5), 0).unwrap();
        assert_eq!(evicted, oldest(&held[1], 2));
        held[1].remove(0);
        assert_eq!(slots.lock().handshakes, BOUNDS.handshakes);
        // A host that would have the most handshakes itself replaces one of its own.
        let (_new, evicted) = slots.greet(host(1), 1).unwrap();
        assert_eq!(evicted, oldest(&held[0], 1));
    }

    #[test]
    fn evicted_connection_counts_until_it_is_closed() {
        let slots = slots();
        let held: Vec<Slot> =
            (0..BOUNDS.connections).map(|_| slots.greet(host(1), 0).unwrap().0).collect();
        assert_eq!(slots.greet(host(2), 0).err(), Some(NoPlace::Server(1_000)));
        drop(held);
        assert!(slots.greet(host(2), 0).is_ok());
    }

    #[test]
    fn few_files_are_shared_out_too() {
        let bounds = Bounds::new(4, Some(1_024));
        assert_eq!((bounds.connections, bounds.handshakes), (512, 64));
        assert_eq!(Bounds::new(2, None).connections, 2 * CONNECTIONS_PER_CORE_MAX);
        assert!(Bounds::new(1, Some(0)).handshakes_per_peer > 0);
    }
}
