//! Reports of clients' connections, for the audit. The data plane reports it once for each
//! connection, never for a request.

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
