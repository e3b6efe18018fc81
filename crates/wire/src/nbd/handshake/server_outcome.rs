//! The steps of the server's side of the handshake, and its outcomes.

use alloc::format;
use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::nbd::ExportInfo;
use crate::nbd::constants::{HANDSHAKE_BYTES_MAX, HANDSHAKE_OPTIONS_MAX, IHAVEOPT};
use crate::nbd::transmission::Terms;

/// The next step of the caller.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ServerStep {
    /// Send these bytes, then poll again.
    Send(Vec<u8>),
    /// Look up this export for this client and answer with
    /// [`Server::export`](super::Server::export), or [`Server::deny`](super::Server::deny) if the
    /// client may not have it now. The empty name is the default export.
    WantExport(String),
    /// Answer with [`Server::list`](super::Server::list).
    WantList,
    /// Start TLS on the connection: all later bytes of both sides are within it. Bytes that the
    /// client has sent before belong to no option, and must not be passed on.
    StartTls,
    /// The handshake is over: later input belongs to the transmission phase.
    Ready(Negotiated),
    /// Close the connection.
    Close(CloseReason),
}

/// The result of the negotiation.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Negotiated {
    /// The export, as the caller described it.
    pub export: ExportInfo,
    /// Reads and errors are answered with structured replies.
    pub structured_replies: bool,
    /// `NBD_CMD_BLOCK_STATUS` may be used; its context is
    /// [`CONTEXT_ID`](crate::nbd::constants::base_allocation::CONTEXT_ID).
    pub base_allocation: bool,
    /// The client requested the size constraints, so it must obey them.
    pub block_size_requested: bool,
}

impl Negotiated {
    /// Returns the limits of requests.
    ///
    /// "Size constraints": if they were not agreed on, "a server SHOULD support a default minimum
    /// block size of 1". To insist on ours (`NBD_REP_ERR_BLOCK_SIZE_REQD`, or hanging up on
    /// `NBD_OPT_EXPORT_NAME`) would shut out nbd-client, which never asks.
    #[must_use]
    pub fn terms(&self) -> Terms {
        let asked = self.block_size_requested;
        Terms {
            size_bytes: self.export.size_bytes,
            block_bytes_min: if asked { self.export.block_bytes_min } else { 1 },
            payload_bytes_max: self.export.payload_bytes_max,
            read_only: self.export.read_only,
            structured_replies: self.structured_replies,
            base_allocation: self.base_allocation,
        }
    }
}

/// How a client that chooses an export will use it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Choice {
    /// As in [`Negotiated`].
    pub structured_replies: bool,
    /// As in [`Negotiated`].
    pub base_allocation: bool,
    /// As in [`Negotiated`].
    pub block_size_requested: bool,
}

/// One line of a list of exports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Listed<'a> {
    /// The canonical name.
    pub name: &'a str,
    /// A description for users, or nothing.
    pub description: &'a str,
}

/// Why the server ends the session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CloseReason {
    /// The client ended the session with `NBD_OPT_ABORT`: the only clean end.
    Aborted,
    /// The client set flags that the server did not offer.
    ClientFlags(u32),
    /// An option did not start with the magic number.
    OptionMagic(u64),
    /// `NBD_OPT_EXPORT_NAME` named an export that does not exist for this client.
    NoSuchExport(String),
    /// `NBD_OPT_EXPORT_NAME` came with a name that is not a valid string; the text has the reason.
    BadExportName(String),
    /// `NBD_OPT_EXPORT_NAME` named an export that this client may not have now; the text has the
    /// reason.
    Denied(String),
    /// `NBD_OPT_EXPORT_NAME` came before TLS, which is required.
    TlsRequired,
    /// More options than [`HANDSHAKE_OPTIONS_MAX`].
    TooManyOptions,
    /// An option announced this many bytes, more than are left of [`HANDSHAKE_BYTES_MAX`].
    TooManyBytes(u32),
}

impl fmt::Display for CloseReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Aborted => write!(f, "the client ended the handshake"),
            Self::ClientFlags(flags) => write!(f, "unknown client flags {flags:#x}"),
            Self::OptionMagic(magic) => {
                write!(f, "an option starts with {magic:#018x} instead of {IHAVEOPT:#018x}")
            }
            Self::NoSuchExport(name) => write!(f, "{}", no_such_export(name)),
            Self::BadExportName(why) | Self::Denied(why) => write!(f, "{why}"),
            Self::TlsRequired => write!(f, "an export was chosen without TLS, which is required"),
            Self::TooManyOptions => write!(f, "more than {HANDSHAKE_OPTIONS_MAX} options"),
            Self::TooManyBytes(bytes) => write!(
                f,
                "an option of {bytes} bytes exceeds what is left of {HANDSHAKE_BYTES_MAX} bytes"
            ),
        }
    }
}

impl core::error::Error for CloseReason {}

/// The text for a client (and the log) about an export that does not exist or that the client may
/// not see.
pub(super) fn no_such_export(name: &str) -> String {
    /// Enough to recognize a name; more would only fill logs.
    const SHOWN_BYTES: usize = 64;
    let end = name.floor_char_boundary(SHOWN_BYTES);
    let shown = name.get(..end).unwrap_or_default();
    let dots = if end < name.len() { "..." } else { "" };
    format!(
        "no export {shown:?}{dots} for this host; \
         check that the volume exists and is attached to it"
    )
}
