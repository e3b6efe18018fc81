//! Reports of clients' connections, for the audit. The part of a server that has accepted a client
//! reports its connection, never a request: the data plane, or the front of a cluster's node.

use super::HostAddress;
use alloc::string::String;
use evenkeel_core::ids::{InstanceId, VolumeId};

/// A connection that begins, ends or is refused.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Visit {
    /// Its beginning, its end, or its refusal.
    pub outcome: VisitOutcome,
    /// The address from which the client connects.
    pub address: HostAddress,
    /// The host of the client; `None` if it is unknown.
    pub host: Option<InstanceId>,
    /// Whether the client has proven by a certificate that it is the host.
    pub is_proven: bool,
    /// The volume; `None` if the client has named none.
    pub volume: Option<VolumeId>,
}

impl Visit {
    /// Returns the refusal of a client at `address` that has named neither its host nor a volume.
    #[must_use]
    pub fn of_stranger(address: HostAddress, why: &str) -> Self {
        let outcome = VisitOutcome::Refused(why.into());
        Self { outcome, address, host: None, is_proven: false, volume: None }
    }
}

/// The beginning or the end of a connection, or its refusal.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum VisitOutcome {
    /// It is connected to its volume.
    Connected,
    /// It was connected to its volume, and has ended.
    Ended,
    /// It is refused; the text has the reason.
    Refused(String),
}
