//! Registering and removing client hosts.

use evenkeel_core::ids::InstanceId;
use evenkeel_core::instance;
use evenkeel_wire::agent::HostAddress;

use super::{Decision, Event, HOSTS_MAX, Host, Model, Refusal, Settings, TAGS_MAX, Tags, UnixMs};

/// Time for which a terminated host is shown, in milliseconds: an hour, as on EC2.
pub const TERMINATED_SHOWN_MS: u64 = 3_600_000;

/// The state of a host, as EC2 calls it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum HostState {
    /// `running`
    Running,
    /// `stopped`: a label, nothing is stopped.
    Stopped,
    /// `terminated`: it has no volumes, and none can be attached.
    Terminated {
        /// When it was terminated.
        at: UnixMs,
    },
}

impl HostState {
    /// Returns the name and the number in the EC2 API.
    #[must_use]
    pub const fn name(self) -> (&'static str, u32) {
        match self {
            Self::Running => ("running", 16),
            Self::Stopped => ("stopped", 80),
            Self::Terminated { .. } => ("terminated", 48),
        }
    }
}

/// The type of the server's own machine: not an EC2 type, and without EBS limits.
pub const LOCAL_TYPE: &str = "evenkeel.local";

/// The parameters of a host to register.
pub(super) struct NewHost<'a> {
    pub id: InstanceId,
    pub zone: &'a Option<String>,
    pub instance_type: &'a str,
    pub address: HostAddress,
    pub tags: &'a Tags,
}

impl Model {
    /// Returns the server's own machine: the first host registered with its type and address.
    #[must_use]
    pub fn local_host(&self) -> Option<&Host> {
        self.hosts.values().filter(|h| h.is_local()).min_by_key(|h| (h.registered, h.id))
    }

    pub(super) fn register_host(
        &self,
        settings: &Settings,
        new: &NewHost<'_>,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        let &NewHost { id, zone, instance_type, address, tags } = new;
        if let Some(zone) = zone.as_ref().filter(|zone| !settings.has_zone(zone)) {
            return Err(Refusal::UnknownZone(zone.clone()));
        }
        if instance_type != LOCAL_TYPE && instance::by_name(instance_type).is_none() {
            return Err(Refusal::UnknownInstanceType(instance_type.into()));
        }
        if self.hosts.contains_key(&id) {
            return Err(Refusal::IdTaken(id.to_string()));
        }
        if tags.len() > TAGS_MAX {
            return Err(Refusal::TooManyTags(id.to_string()));
        }
        let instance_type = instance_type.into();
        let state = HostState::Running;
        let tags = tags.clone();
        let zone = zone.clone();
        let host = Host { id, instance_type, address, registered: now, state, tags, zone };
        // Hosts that are no longer shown are removed to make room.
        let mut events: Vec<Event> = self
            .hosts
            .values()
            .filter(|host| !host.is_shown(now))
            .map(|host| Event::HostGone(host.id))
            .collect();
        if self.hosts.len() - events.len() >= HOSTS_MAX {
            return Err(Refusal::TooManyHosts);
        }
        events.push(Event::Host(host));
        Ok(Decision { events, ..Decision::default() })
    }

    pub(super) fn deregister_host(&self, id: InstanceId) -> Result<Decision, Refusal> {
        self.host(id)?;
        if self.local_host().is_some_and(|local| local.id == id) {
            return Err(Refusal::HostIsLocal(id));
        }
        if let Some((volume, _)) = self.attachments_of(id).next() {
            return Err(Refusal::HostBusy(id, volume.id));
        }
        Ok(Decision { events: vec![Event::HostGone(id)], ..Decision::default() })
    }

    pub(super) fn set_host_state(
        &self,
        ids: &[InstanceId],
        state: HostState,
    ) -> Result<Decision, Refusal> {
        let mut events = Vec::new();
        for &id in ids {
            let host = self.host(id)?;
            match (host.state, state) {
                (before, after) if before == after => continue,
                (HostState::Terminated { .. }, HostState::Terminated { .. }) => continue,
                (HostState::Terminated { .. }, _) => {
                    return Err(Refusal::HostTerminated(id));
                }
                (_, HostState::Terminated { .. }) => {
                    if self.local_host().is_some_and(|local| local.id == id) {
                        return Err(Refusal::HostIsLocal(id));
                    }
                    if let Some((volume, _)) = self.attachments_of(id).next() {
                        return Err(Refusal::HostBusy(id, volume.id));
                    }
                }
                _ => {}
            }
            events.push(Event::Host(Host { state, ..host.clone() }));
        }
        Ok(Decision { events, ..Decision::default() })
    }

    /// Changes the type of a stopped host, and with it the limits of its volumes together. Credits
    /// stay as they are.
    pub(super) fn set_host_type(
        &self,
        id: InstanceId,
        instance_type: &str,
    ) -> Result<Decision, Refusal> {
        let host = self.host(id)?;
        if host.instance_type == LOCAL_TYPE {
            return Err(Refusal::HostHasNoType(id));
        }
        if instance::by_name(instance_type).is_none() {
            return Err(Refusal::UnknownInstanceType(instance_type.into()));
        }
        match host.state {
            HostState::Stopped => {}
            HostState::Terminated { .. } => return Err(Refusal::HostTerminated(id)),
            HostState::Running => return Err(Refusal::HostRuns(id)),
        }
        let changed = Host { instance_type: instance_type.into(), ..host.clone() };
        let attached = self.attachments_of(id).count();
        if let Some(most) = changed.attachments_max().filter(|most| attached > *most) {
            let instance_type = changed.instance_type;
            return Err(Refusal::HostIsFull { instance: id, instance_type, most });
        }
        Ok(Decision { events: vec![Event::Host(changed)], ..Decision::default() })
    }
}

impl Host {
    /// Returns the maximum number of volumes that may be attached to it; `None` if its type has no
    /// limit.
    #[must_use]
    pub fn attachments_max(&self) -> Option<usize> {
        let known = instance::by_name(&self.instance_type)?;
        usize::try_from(known.attachments_max).ok()
    }

    /// Returns whether it is shown to clients.
    #[must_use]
    pub const fn is_shown(&self, now: UnixMs) -> bool {
        match self.state {
            HostState::Terminated { at } => now.ms_since(at) < TERMINATED_SHOWN_MS,
            _ => true,
        }
    }

    /// Returns whether it has the local machine's type and address.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.instance_type == LOCAL_TYPE && self.address == HostAddress::Local
    }
}
