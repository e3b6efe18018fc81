//! Limits on connections: which client finds a place, and which handshake is closed for it.
//!
//! A client that has not chosen a volume yet holds a place among the handshakes. Handshakes are
//! short. If all places are taken, a new client replaces the oldest handshake of the peer with the
//! most handshakes. A client of a volume is never evicted. Its host may hold no more connections
//! than it leaves free, and the volume no more of its host's share than it leaves free. So a new
//! client finds room, however many connections the others hold.

use alloc::collections::BTreeMap;
use core::fmt;

use crate::convert::index;
use crate::ids::VolumeId;
use crate::limits::{
    CONNECTIONS_PER_CORE_MAX, CONNECTIONS_PER_VOLUME_MAX, HANDSHAKES_MAX, HANDSHAKES_PER_PEER_MAX,
};

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
        Self::shared(connections, connections / 8)
    }

    /// Returns the bounds of a front for `connections` clients.
    #[must_use]
    pub fn of_front(connections: usize) -> Self {
        Self::shared(connections, (connections / 4).max(1))
    }

    fn shared(connections: usize, handshakes: usize) -> Self {
        let handshakes = HANDSHAKES_MAX.min(handshakes);
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

/// One host's connections.
#[derive(Debug, Default)]
struct Peer<Handle> {
    /// Its handshakes, the oldest first.
    handshakes: BTreeMap<ConnectionId, Handle>,
    /// Number of connections to each volume.
    volumes: BTreeMap<VolumeId, usize>,
    /// Number of connections to all volumes.
    connections: usize,
    /// Number of all connections, including evicted handshakes that are not closed yet.
    places: usize,
}

/// The connections of a server by their hosts.
#[derive(Debug)]
pub struct Connections<Host, Handle> {
    bounds: Bounds,
    peers: BTreeMap<Host, Peer<Handle>>,
    handshakes: usize,
    /// Number of connections to volumes.
    connections: usize,
    /// Number of all connections, including evicted handshakes that are not closed yet.
    places: usize,
    /// The last number that was given to a connection.
    last_id: ConnectionId,
}

impl<Host: Ord + Copy, Handle: Default> Default for Connections<Host, Handle> {
    fn default() -> Self {
        Self::new(Bounds::new(1, None))
    }
}

impl<Host: Ord + Copy, Handle: Default> Connections<Host, Handle> {
    /// Creates a table without connections.
    #[must_use]
    pub const fn new(bounds: Bounds) -> Self {
        let last_id = ConnectionId(0);
        Self { bounds, peers: BTreeMap::new(), handshakes: 0, connections: 0, places: 0, last_id }
    }

    /// Returns the number of connections, including handshakes and those that are not closed yet.
    #[must_use]
    pub const fn places(&self) -> usize {
        self.places
    }

    /// Returns whether `peer` holds fewer connections than it leaves free, handshakes included.
    #[must_use]
    pub fn leaves_room(&self, peer: Host) -> bool {
        let held = self.peers.get(&peer).map_or(0, |peer| peer.places);
        held < self.bounds.connections.saturating_sub(self.places)
    }

    /// Takes a place among the handshakes for a client of `peer`, which `handle` reaches. Returns
    /// its number, and the handshake that the caller must close to make room.
    ///
    /// # Errors
    /// [`NoPlace::Server`], while an evicted handshake is not closed yet.
    pub fn greet(
        &mut self,
        peer: Host,
        handle: Handle,
    ) -> Result<(ConnectionId, Option<(ConnectionId, Handle)>), NoPlace> {
        if self.places >= self.bounds.connections {
            return Err(NoPlace::Server(self.places));
        }
        let evicted = self.make_room(peer);
        self.last_id.0 += 1;
        self.places += 1;
        self.handshakes += 1;
        let peer = self.peers.entry(peer).or_default();
        peer.places += 1;
        peer.handshakes.insert(self.last_id, handle);
        Ok((self.last_id, evicted))
    }

    /// Removes a handshake if one more of `peer` exceeds a limit. Returns the one to close.
    fn make_room(&mut self, peer: Host) -> Option<(ConnectionId, Handle)> {
        let own = self.peers.get(&peer).map_or(0, |peer| peer.handshakes.len());
        let from = if own >= self.bounds.handshakes_per_peer {
            peer
        } else if self.handshakes >= self.bounds.handshakes {
            // Counted as if the newcomer were in: among equals, it replaces one of its own host.
            let held = self.peers.iter().map(|(host, peer)| (peer.handshakes.len(), *host));
            match held.max_by_key(|(held, _)| *held)? {
                (held, other) if held > own + 1 || own == 0 => other,
                _ => peer,
            }
        } else {
            return None;
        };
        let oldest = self.peers.get_mut(&from)?.handshakes.pop_first()?;
        self.handshakes -= 1;
        Some(oldest)
    }

    /// Checks whether `peer` may have one more connection to `volume`.
    ///
    /// # Errors
    /// The limit that is reached, as a message for the client.
    pub fn may_join(&self, peer: Host, volume: VolumeId) -> Result<(), NoPlace> {
        let of_host = self.peers.get(&peer);
        let to_volume = of_host.and_then(|host| host.volumes.get(&volume)).copied().unwrap_or(0);
        let connections = of_host.map_or(0, |host| host.connections);
        if to_volume >= self.bounds.per_volume {
            return Err(NoPlace::Volume(to_volume));
        }
        // A host may hold half of the connections that other hosts leave.
        let room = self.bounds.connections - self.bounds.handshakes;
        let of_this_host = room.saturating_sub(self.connections - connections) / 2;
        if connections >= of_this_host {
            return Err(NoPlace::Host(connections));
        }
        // A volume may hold half of those that the host's other volumes leave.
        let of_this_volume = (of_this_host - (connections - to_volume)).div_ceil(2);
        if to_volume >= of_this_volume {
            return Err(NoPlace::Volume(to_volume));
        }
        Ok(())
    }

    /// Ends a handshake of `peer` without giving its place up. Returns false if another handshake
    /// has taken its place, or it has ended before.
    pub fn settle(&mut self, peer: Host, id: ConnectionId) -> bool {
        let peer = self.peers.get_mut(&peer);
        let is_settled = peer.is_some_and(|peer| peer.handshakes.remove(&id).is_some());
        self.handshakes -= usize::from(is_settled);
        is_settled
    }

    /// Turns a handshake of `peer` into a connection to `volume`.
    ///
    /// # Errors
    /// If a limit is reached, or another handshake has taken the place of this one.
    pub fn join(&mut self, peer: Host, id: ConnectionId, volume: VolumeId) -> Result<(), NoPlace> {
        self.may_join(peer, volume)?;
        if !self.settle(peer, id) {
            return Err(NoPlace::Taken);
        }
        let peer = self.peers.entry(peer).or_default();
        *peer.volumes.entry(volume).or_default() += 1;
        peer.connections += 1;
        self.connections += 1;
        Ok(())
    }

    /// Frees the place of a connection of `peer`, to `volume` if it has joined one.
    pub fn leave(&mut self, peer: Host, id: ConnectionId, volume: Option<VolumeId>) {
        self.settle(peer, id);
        let Some(of_host) = self.peers.get_mut(&peer) else { return };
        self.places -= 1;
        of_host.places -= 1;
        if let Some(volume) = volume {
            self.connections -= 1;
            of_host.connections -= 1;
            let held = of_host.volumes.entry(volume).or_default();
            *held -= 1;
            if *held == 0 {
                of_host.volumes.remove(&volume);
            }
        }
        if of_host.places == 0 {
            self.peers.remove(&peer);
        }
    }
}
