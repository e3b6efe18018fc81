//! Which volumes there are, for whom, and on which core: what the handshake has to know, wherever
//! it happens to run. Written by the agent, read by reactors once per connection.

use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::limits::REQUEST_BYTES_MAX;
use evenkeel_store::Geometry;
use evenkeel_wire::agent::{Attachment, HostAddress};
use evenkeel_wire::nbd::ExportInfo;
use std::collections::BTreeMap;
use std::sync::{PoisonError, RwLock, RwLockReadGuard};

/// One volume's line.
#[derive(Clone, Debug)]
pub struct Entry {
    /// The core that serves it.
    pub home: u16,
    /// Size and block sizes.
    pub geometry: Geometry,
    /// Hosts that may connect.
    pub attachments: Vec<Attachment>,
}

impl Entry {
    fn allows(&self, peer: HostAddress) -> bool {
        self.attachments.iter().any(|attachment| attachment.address == peer)
    }
}

/// See the module's text.
#[derive(Debug, Default)]
pub struct Directory {
    volumes: RwLock<BTreeMap<VolumeId, Entry>>,
}

impl Directory {
    /// A volume's line, if it has one.
    #[must_use]
    pub fn get(&self, id: VolumeId) -> Option<Entry> {
        self.read().get(&id).cloned()
    }

    /// Writes a volume's line.
    pub fn insert(&self, id: VolumeId, entry: Entry) {
        self.volumes.write().unwrap_or_else(PoisonError::into_inner).insert(id, entry);
    }

    /// Strikes a volume out.
    pub fn remove(&self, id: VolumeId) {
        self.volumes.write().unwrap_or_else(PoisonError::into_inner).remove(&id);
    }

    /// The volume called `name` as `peer` sees it, and its home core; `None` if there is none or it
    /// is not attached to this host.
    #[must_use]
    pub fn export(&self, name: &str, peer: HostAddress) -> Option<(ExportInfo, u16)> {
        let volumes = self.read();
        let entry = volumes.get(&name.parse().ok()?)?;
        if !entry.allows(peer) {
            return None;
        }
        let mut export = ExportInfo::new(name.to_owned(), entry.geometry.size.0);
        export.block_bytes_min = entry.geometry.block_bytes_min;
        export.block_bytes_preferred = entry.geometry.block_bytes_preferred;
        export.payload_bytes_max = REQUEST_BYTES_MAX;
        Some((export, entry.home))
    }

    /// The names of the volumes that are attached to `peer`, in the order of ids.
    #[must_use]
    pub fn names(&self, peer: HostAddress) -> Vec<String> {
        let volumes = self.read();
        let seen = volumes.iter().filter(|(_, entry)| entry.allows(peer));
        seen.map(|(id, _)| id.to_string()).collect()
    }

    /// Whether any volume is attached to a host.
    #[must_use]
    pub fn is_attached(&self, host: InstanceId) -> bool {
        let is_to = |entry: &Entry| entry.attachments.iter().any(|a| a.host == host);
        self.read().values().any(is_to)
    }

    /// The core with the fewest volumes; the first of equals.
    #[must_use]
    pub fn least_loaded(&self, cores: u16) -> u16 {
        let mut counts = vec![0u32; usize::from(cores)];
        for entry in self.read().values() {
            counts[usize::from(entry.home)] += 1;
        }
        (0..cores).min_by_key(|&core| counts[usize::from(core)]).unwrap_or(0)
    }

    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<VolumeId, Entry>> {
        // Changed by single inserts and removals, so a panicked holder left it whole.
        self.volumes.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_core::units::ByteCount;

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
        let (id, elsewhere) = (VolumeId::from_bits(7), HostAddress::Remote([10, 0, 0, 1].into()));
        directory.insert(id, entry(0, &[HostAddress::Local]));
        let name = id.to_string();
        assert!(directory.export(&name, elsewhere).is_none());
        assert!(directory.names(elsewhere).is_empty());
        assert_eq!(directory.export(&name, HostAddress::Local).unwrap().0.size_bytes, 1 << 30);
        assert_eq!(directory.names(HostAddress::Local), [name.as_str()]);
        assert!(directory.export("", HostAddress::Local).is_none());
        directory.remove(id);
        assert!(directory.export(&name, HostAddress::Local).is_none());
    }

    #[test]
    fn volumes_spread_over_the_cores() {
        let directory = Directory::default();
        let homes: Vec<u16> = (0..5)
            .map(|bits| {
                let home = directory.least_loaded(2);
                directory.insert(VolumeId::from_bits(bits), entry(home, &[]));
                home
            })
            .collect();
        assert_eq!(homes, [0, 1, 0, 1, 0]);
    }
}
