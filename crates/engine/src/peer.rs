//! The client of a connection, as far as the data plane knows it.

use evenkeel_core::ids::InstanceId;
use evenkeel_wire::agent::{Attachment, HostAddress};
use std::fmt;

/// The client of a connection: an address, or a host that has proven its name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The address that its volumes are attached to; of a proven host, that of its attachments.
    pub address: HostAddress,
    /// The address from which it connects, also of a proven host.
    pub seen: HostAddress,
    /// The host that it has proven to be, by a certificate. It reaches the volumes of no other host
    /// of the same address.
    pub host: Option<InstanceId>,
}

impl From<HostAddress> for Peer {
    /// Returns a client that is known by its address only.
    fn from(address: HostAddress) -> Self {
        Self { address, seen: address, host: None }
    }
}

impl Peer {
    /// Returns whether an attachment is to this client.
    #[must_use]
    pub fn has(self, attachment: &Attachment) -> bool {
        attachment.address == self.address && self.host.is_none_or(|host| attachment.host == host)
    }
}

impl fmt::Debug for Peer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.host {
            Some(host) => write!(f, "{host}"),
            None => self.address.fmt(f),
        }
    }
}
