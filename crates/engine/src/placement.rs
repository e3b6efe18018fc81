//! The cores of hosts with limits. All volumes of such a host are on its core, so its limits are
//! exact. So volumes and hosts that attachments connect, over any number of others, are on one core
//! together.

use crate::directory::Directory;
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::qos::pacing::Balances;
use evenkeel_wire::agent::{Attachment, HostState};
use std::collections::{BTreeMap, BTreeSet};

/// The hosts with limits; see the module's text.
#[derive(Debug, Default)]
pub(crate) struct Placement {
    hosts: BTreeMap<InstanceId, Host>,
}

#[derive(Debug)]
struct Host {
    state: HostState,
    /// `None` until a volume is attached.
    home: Option<u16>,
}

/// Volumes and hosts that have to be on one core, by their present cores.
#[derive(Debug, Default)]
pub(crate) struct Group {
    /// Volumes by their cores.
    pub volumes: BTreeMap<u16, Vec<VolumeId>>,
    /// Hosts with limits by their cores, without those on no core.
    pub hosts: BTreeMap<u16, Vec<InstanceId>>,
}

impl Group {
    /// Returns the cores of the group's volumes and hosts.
    pub fn cores(&self) -> BTreeSet<u16> {
        self.volumes.keys().chain(self.hosts.keys()).copied().collect()
    }

    /// Returns the group's volumes and hosts on a core.
    pub fn on(&self, core: u16) -> (Vec<VolumeId>, Vec<InstanceId>) {
        let volumes = self.volumes.get(&core).cloned().unwrap_or_default();
        (volumes, self.hosts.get(&core).cloned().unwrap_or_default())
    }
}

impl Placement {
    /// Returns the cores of those of these hosts that have limits.
    pub fn cores(&self, attachments: &[Attachment]) -> BTreeSet<u16> {
        attachments.iter().filter_map(|attachment| self.home(attachment.host)).collect()
    }

    /// Returns a host's core.
    pub fn home(&self, host: InstanceId) -> Option<u16> {
        self.hosts.get(&host)?.home
    }

    /// Returns all volumes and hosts that are connected with these hosts by present attachments,
    /// `without` one volume and those that only it connects.
    pub fn group(
        &self,
        directory: &Directory,
        hosts: impl Iterator<Item = InstanceId>,
        without: Option<VolumeId>,
    ) -> Group {
        let mut volumes_of = BTreeMap::<InstanceId, Vec<VolumeId>>::new();
        let mut entries = BTreeMap::new();
        for (id, entry) in directory.all().into_iter().filter(|(id, _)| Some(*id) != without) {
            let limited = entry.attachments.iter().map(|attachment| attachment.host);
            let limited: Vec<InstanceId> =
                limited.filter(|host| self.hosts.contains_key(host)).collect();
            for &host in &limited {
                volumes_of.entry(host).or_default().push(id);
            }
            entries.insert(id, (entry.home, limited));
        }
        let mut group = Group::default();
        let mut seen = BTreeSet::new();
        let mut next: Vec<InstanceId> = hosts.collect();
        while let Some(host) = next.pop() {
            if !self.hosts.contains_key(&host) || !seen.insert(host) {
                continue;
            }
            if let Some(home) = self.home(host) {
                group.hosts.entry(home).or_default().push(host);
            }
            for id in volumes_of.remove(&host).unwrap_or_default() {
                if let Some((home, hosts)) = entries.remove(&id) {
                    group.volumes.entry(home).or_default().push(id);
                    next.extend(hosts);
                }
            }
        }
        group
    }

    /// Returns the hosts with limits among these that are on no core yet.
    pub fn unsettled(&self, attachments: &[Attachment]) -> Vec<HostState> {
        let hosts = attachments.iter().filter_map(|attachment| self.hosts.get(&attachment.host));
        hosts.filter(|host| host.home.is_none()).map(|host| host.state.clone()).collect()
    }

    /// Sets a host's core.
    pub fn settle(&mut self, id: InstanceId, home: u16) {
        if let Some(host) = self.hosts.get_mut(&id) {
            host.home = Some(home);
        }
    }

    /// Sets a host's desired state.
    pub fn insert(&mut self, state: HostState) {
        match self.hosts.get_mut(&state.id) {
            Some(host) => {
                // Its balances are known here, and not part of a desired state.
                let HostState { balances, unleased, .. } = host.state;
                host.state = HostState { balances, unleased, ..state };
            }
            None => _ = self.hosts.insert(state.id, Host { state, home: None }),
        }
    }

    /// Sets the unleased part of a host's balances. Returns it if the host is on no core, where no
    /// credits are used; otherwise `None`.
    pub fn lease(&mut self, id: InstanceId, unleased: Balances) -> Option<Balances> {
        let host = self.hosts.get_mut(&id)?;
        let known = host.state.balances;
        let least = |unleased: Option<u64>, known: Option<u64>| {
            Some(unleased?.min(known.unwrap_or(u64::MAX)))
        };
        let state = &mut host.state.unleased;
        state.operations = least(unleased.operations, known.operations).or(state.operations);
        state.bytes = least(unleased.bytes, known.bytes).or(state.bytes);
        host.home.is_none().then_some(*state)
    }

    /// Removes a host.
    pub fn remove(&mut self, id: InstanceId) {
        self.hosts.remove(&id);
    }
}
