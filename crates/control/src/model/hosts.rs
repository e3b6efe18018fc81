//! Registering and removing client hosts.

use evenkeel_core::ids::InstanceId;
use evenkeel_core::instance;
use evenkeel_wire::agent::HostAddress;

use super::{Decision, Event, HOSTS_MAX, Host, Model, Refusal, TAGS_MAX, Tags, UnixMs};

/// The type of the server's own machine: not an EC2 type, and without EBS limits.
pub const LOCAL_TYPE: &str = "evenkeel.local";

/// The parameters of a host to register.
pub(super) struct NewHost<'a> {
    pub id: InstanceId,
    pub instance_type: &'a str,
    pub address: HostAddress,
    pub tags: &'a Tags,
}

impl Model {
    /// The server's own machine: the first host registered with its type and address.
    #[must_use]
    pub fn local_host(&self) -> Option<&Host> {
        self.hosts.values().filter(|h| h.is_local()).min_by_key(|h| (h.registered, h.id))
    }

    pub(super) fn register_host(
        &self,
        new: &NewHost<'_>,
        now: UnixMs,
    ) -> Result<Decision, Refusal> {
        let &NewHost { id, instance_type, address, tags } = new;
        if instance_type != LOCAL_TYPE && instance::by_name(instance_type).is_none() {
            return Err(Refusal::UnknownInstanceType(instance_type.into()));
        }
        if self.hosts.len() >= HOSTS_MAX {
            return Err(Refusal::TooManyHosts);
        }
        if self.hosts.contains_key(&id) {
            return Err(Refusal::IdTaken(id.to_string()));
        }
        if tags.len() > TAGS_MAX {
            return Err(Refusal::TooManyTags(id.to_string()));
        }
        let instance_type = instance_type.into();
        let host = Host { id, instance_type, address, registered: now, tags: tags.clone() };
        Ok(Decision { events: vec![Event::Host(host)], ..Decision::default() })
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
}

impl Host {
    /// Whether it has the local machine's type and address.
    #[must_use]
    pub fn is_local(&self) -> bool {
        self.instance_type == LOCAL_TYPE && self.address == HostAddress::Local
    }
}
