//! The volumes with their hosts and home cores, for handshakes on every core, and the table of
//! connections ([`Slots`]). Written by the agent, read by reactors once per connection.

use crate::connection_limits::Slots;
use crate::peer::Peer;
use evenkeel_core::connection_limits::{Bounds, Connections};
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_store::Geometry;
use evenkeel_wire::agent::{Attachment, HostAddress};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// A volume in the directory.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The core that serves the volume.
    pub home: u16,
    /// Size and block sizes.
    pub geometry: Geometry,
    /// Hosts that may connect.
    pub attachments: Vec<Attachment>,
}

impl Entry {
    fn allows(&self, peer: Peer) -> bool {
        self.attachments.iter().any(|attachment| peer.has(attachment))
    }
}

/// The volumes, and by address the ids of those that are attached there, so that the cost of a
/// client's list does not grow with the volumes of others.
#[derive(Debug, Default)]
struct Lines {
    volumes: BTreeMap<VolumeId, Entry>,
    by_peer: BTreeMap<HostAddress, BTreeSet<VolumeId>>,
}

impl Lines {
    fn insert(&mut self, id: VolumeId, entry: Entry) {
        self.remove(id);
        for attachment in &entry.attachments {
            self.by_peer.entry(attachment.address).or_default().insert(id);
        }
        self.volumes.insert(id, entry);
    }

    fn remove(&mut self, id: VolumeId) {
        let Some(entry) = self.volumes.remove(&id) else { return };
        for Attachment { address, .. } in &entry.attachments {
            // Several of its hosts may share the address.
            if let Some(of_peer) = self.by_peer.get_mut(address) {
                of_peer.remove(&id);
                if of_peer.is_empty() {
                    self.by_peer.remove(address);
                }
            }
        }
    }
}

/// The directory of a data plane; see the module's text.
#[derive(Debug, Default)]
pub struct Directory {
    lines: RwLock<Lines>,
    slots: Arc<Slots>,
}

impl Directory {
    /// Creates an empty directory with these bounds on connections.
    #[must_use]
    pub fn new(bounds: Bounds) -> Self {
        Self { lines: RwLock::default(), slots: Arc::new(Slots::new(Connections::new(bounds))) }
    }

    /// Returns the table of connections.
    #[must_use]
    pub fn slots(&self) -> &Arc<Slots> {
        &self.slots
    }

    /// Returns a volume's entry, if it has one.
    #[must_use]
    pub fn get(&self, id: VolumeId) -> Option<Entry> {
        self.read().volumes.get(&id).cloned()
    }

    /// Sets a volume's entry.
    pub fn insert(&self, id: VolumeId, entry: Entry) {
        self.write().insert(id, entry);
    }

    /// Sets the core that serves a volume.
    pub fn move_to(&self, id: VolumeId, home: u16) {
        if let Some(entry) = self.write().volumes.get_mut(&id) {
            entry.home = home;
        }
    }

    /// Returns a copy of all entries.
    #[must_use]
    pub fn all(&self) -> BTreeMap<VolumeId, Entry> {
        self.read().volumes.clone()
    }

    /// Removes a volume.
    pub fn remove(&self, id: VolumeId) {
        self.write().remove(id);
    }

    /// Returns a volume's geometry and home core; `None` if it does not exist or is not attached to
    /// `peer`.
    #[must_use]
    pub fn find(&self, id: VolumeId, peer: Peer) -> Option<(Geometry, u16)> {
        let lines = self.read();
        let entry = lines.volumes.get(&id)?;
        entry.allows(peer).then_some((entry.geometry, entry.home))
    }

    /// Returns the names of the volumes that are attached to `peer`, in the order of ids.
    #[must_use]
    pub fn names(&self, peer: Peer) -> Vec<String> {
        let lines = self.read();
        let of_address = lines.by_peer.get(&peer.address).into_iter().flatten();
        let of_peer =
            of_address.filter(|id| lines.volumes.get(id).is_some_and(|volume| volume.allows(peer)));
        of_peer.map(VolumeId::to_string).collect()
    }

    /// Returns the host to which a volume is attached and that a client is, if there is one.
    #[must_use]
    pub fn host_of(&self, id: VolumeId, peer: Peer) -> Option<InstanceId> {
        let lines = self.read();
        let mut attachments = lines.volumes.get(&id)?.attachments.iter();
        attachments.find(|attachment| peer.has(attachment)).map(|attachment| attachment.host)
    }

    /// Returns a host that connects from `seen` as a client that has proven its name; `None` if no
    /// volume is attached to it. A node that relays clients does not know their addresses: then the
    /// address of the host's attachments is taken.
    #[must_use]
    pub fn proven(&self, host: InstanceId, seen: Option<HostAddress>) -> Option<Peer> {
        let lines = self.read();
        let mut attachments = lines.volumes.values().flat_map(|entry| &entry.attachments);
        let attachment = attachments.find(|attachment| attachment.host == host)?;
        let address = attachment.address;
        Some(Peer { address, seen: seen.unwrap_or(address), host: Some(host) })
    }

    /// Returns whether a connection from `peer` may be accepted: from this machine, which may
    /// always list its volumes, or from a host with a volume.
    #[must_use]
    pub fn expects(&self, peer: HostAddress) -> bool {
        peer == HostAddress::Local || self.read().by_peer.contains_key(&peer)
    }

    /// Returns whether any volume is attached to a host.
    #[must_use]
    pub fn is_attached(&self, host: InstanceId) -> bool {
        let is_to = |entry: &Entry| entry.attachments.iter().any(|a| a.host == host);
        self.read().volumes.values().any(is_to)
    }

    /// Returns the core with the fewest volumes; the first one among equals.
    #[must_use]
    pub fn least_loaded(&self, cores: u16) -> u16 {
        let mut counts = vec![0u32; usize::from(cores)];
        for entry in self.read().volumes.values() {
            counts[usize::from(entry.home)] += 1;
        }
        (0..cores).min_by_key(|&core| counts[usize::from(core)]).unwrap_or(0)
    }

    fn read(&self) -> RwLockReadGuard<'_, Lines> {
        // No panic is possible in the middle of a change, so a panicked holder left it whole.
        self.lines.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Lines> {
        self.lines.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::units::ByteCount;

    /// The address from which a client connects that has proven its name.
    const SEEN: HostAddress = HostAddress::Local;

    fn entry(home: u16, hosts: &[HostAddress]) -> Entry {
        let geometry = Geometry {
            size: ByteCount(1 << 30),
            block_bytes_min: 512,
            block_bytes_preferred: 4_096,
        };
        let host = InstanceId::from_bits(1);
        let attachments = hosts.iter().map(|&address| Attachment { host, address }).collect();
        Entry { home, geometry, attachments }
    }

    #[test]
    fn a_volume_is_seen_only_by_the_hosts_it_is_attached_to() {
        let directory = Directory::default();
        let id = VolumeId::from_bits(7);
        let elsewhere = HostAddress::Remote([10, 0, 0, 1].into());
        directory.insert(id, entry(0, &[HostAddress::Local]));
        let name = id.to_string();
        assert!(directory.find(id, elsewhere.into()).is_none());
        assert!(directory.names(elsewhere.into()).is_empty());
        assert_eq!(directory.find(id, HostAddress::Local.into()).unwrap().0.size.0, 1 << 30);
        assert_eq!(directory.names(HostAddress::Local.into()), [name.as_str()]);
        directory.remove(id);
        assert!(directory.find(id, HostAddress::Local.into()).is_none());
    }

    #[test]
    fn the_index_by_address_follows_every_change() {
        let directory = Directory::default();
        let peers = [1, 2, 3].map(|number| HostAddress::Remote([10, 0, 0, number].into()));
        let names = |directory: &Directory| {
            let scanned = peers.map(|peer| {
                let lines = directory.read();
                let seen = lines.volumes.iter().filter(|(_, entry)| entry.allows(peer.into()));
                seen.map(|(id, _)| id.to_string()).collect::<Vec<_>>()
            });
            assert_eq!(peers.map(|peer| directory.names(peer.into())), scanned);
            assert_eq!(peers.map(|peer| directory.expects(peer)), scanned.map(|s| !s.is_empty()));
        };
        // Each pair of changes of two volumes, one of them attached twice at one address.
        let sets: [&[HostAddress]; 5] =
            [&[], &peers[..1], &peers[1..], &[peers[0], peers[0]], &peers];
        for first in sets {
            for second in sets {
                for id in [1, 2, 1].map(VolumeId::from_bits) {
                    directory.insert(id, entry(0, first));
                    names(&directory);
                    directory.insert(id, entry(1, second));
                    names(&directory);
                }
                directory.remove(VolumeId::from_bits(1));
                names(&directory);
            }
        }
        directory.remove(VolumeId::from_bits(2));
        assert!(directory.read().by_peer.is_empty());
        assert!(directory.expects(HostAddress::Local), "may ask what there is");
    }

    #[test]
    fn a_proven_host_sees_no_volume_of_another_host_of_its_address() {
        let directory = Directory::default();
        let hosts = [1, 2].map(InstanceId::from_bits);
        let volumes = [7, 8].map(VolumeId::from_bits);
        let shared = VolumeId::from_bits(9);
        let address = HostAddress::Remote([10, 0, 0, 1].into());
        let attached = |hosts: &[InstanceId]| Entry {
            attachments: hosts.iter().map(|&host| Attachment { host, address }).collect(),
            ..entry(0, &[])
        };
        assert_eq!(directory.proven(hosts[0], Some(SEEN)), None);
        directory.insert(volumes[0], attached(&hosts[..1]));
        directory.insert(volumes[1], attached(&hosts[1..]));
        directory.insert(shared, attached(&hosts));
        for (own, other) in [(0, 1), (1, 0)] {
            let peer = directory.proven(hosts[own], Some(SEEN)).unwrap();
            assert_eq!((peer.address, peer.host), (address, Some(hosts[own])));
            assert!(directory.find(volumes[own], peer).is_some());
            assert!(directory.find(volumes[other], peer).is_none());
            assert!(directory.find(shared, peer).is_some());
            assert_eq!(directory.names(peer), [volumes[own], shared].map(|id| id.to_string()));
        }
        // A client that is known by its address only is any of its hosts, as ever.
        assert_eq!(directory.names(address.into()).len(), 3);
        directory.remove(volumes[0]);
        directory.remove(shared);
        assert_eq!(directory.proven(hosts[0], Some(SEEN)), None);
    }

    #[test]
    fn volumes_spread_over_the_cores() {
        let directory = Directory::default();
        let placement: Vec<u16> = (0..5)
            .map(|bits| {
                let home = directory.least_loaded(2);
                directory.insert(VolumeId::from_bits(bits), entry(home, &[]));
                home
            })
            .collect();
        assert_eq!(placement, [0, 1, 0, 1, 0]);
    }
}
