//! The goal of the client's side of the handshake, and its outcomes.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::nbd::constants::REPLY_MAGIC;

/// The plan of a client's handshake.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientPlan {
    /// The export; empty for the default one. Unused when listing.
    pub export: String,
    /// The goal.
    pub goal: ClientGoal,
    /// Request structured replies.
    pub structured_replies: bool,
    /// Request `base:allocation`; needs structured replies.
    pub base_allocation: bool,
}

/// The goal of a handshake.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientGoal {
    /// Transmission, by `NBD_OPT_GO`, or by `NBD_OPT_EXPORT_NAME` if the server lacks it.
    Transmit,
    /// Transmission without a request for the size constraints: any offset and length may be used.
    TransmitAnySize,
    /// Transmission, by `NBD_OPT_EXPORT_NAME`.
    TransmitOldWay,
    /// A description of the export.
    Describe,
    /// A list of all exports.
    List,
}

/// The next step of the caller. All but `Send` are final.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClientStep {
    /// Send these bytes, then poll again.
    Send(Vec<u8>),
    /// The handshake is over: requests may be sent.
    Ready(RemoteExport),
    /// Answer to [`ClientGoal::Describe`]. Close the connection.
    Described(RemoteExport),
    /// Answer to [`ClientGoal::List`]. Close the connection.
    Listed(Vec<RemoteName>),
    /// The goal was not reached. Close the connection.
    Close(ClientClose),
}

/// An export as its server describes it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct RemoteExport {
    /// Size in bytes.
    pub size_bytes: u64,
    /// Flags of [`transmission_flag`](crate::nbd::constants::transmission_flag).
    pub transmission_flags: u16,
    /// Structured replies were agreed.
    pub structured_replies: bool,
    /// The id of `base:allocation`, if it was agreed.
    pub base_allocation: Option<u32>,
    /// The size constraints, if the server sent them.
    pub block_sizes: Option<RemoteBlockSizes>,
    /// The canonical name, if the server sent it.
    pub name: Option<String>,
    /// The description for users, if the server sent one.
    pub description: Option<String>,
}

/// The size constraints of an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteBlockSizes {
    /// Offsets and lengths are multiples of this.
    pub bytes_min: u32,
    /// Multiples of this are the most efficient.
    pub bytes_preferred: u32,
    /// Maximum of bytes of one request or reply.
    pub payload_bytes_max: u32,
}

/// An export of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemoteName {
    /// The canonical name.
    pub name: String,
    /// The description for users; may be empty.
    pub description: String,
}

/// Why the goal was not reached.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClientClose {
    /// The server refused an option.
    Refused {
        /// The option.
        option: u32,
        /// The reply type, one of `NBD_REP_ERR_*`.
        reply: u32,
        /// The server's message, unfiltered: it may contain control characters.
        message: String,
    },
    /// The server violates the protocol.
    Violation(ClientViolation),
}

/// A violation of the protocol by a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClientViolation {
    /// The greeting is not that of a newstyle server.
    Greeting,
    /// The server does not support fixed newstyle, which the goal needs.
    NotFixedNewstyle,
    /// A reply does not start with the magic number.
    ReplyMagic(u64),
    /// A reply to another option than the one sent.
    WrongOption(u32),
    /// A reply of a type that does not belong to the option.
    UnexpectedReply(u32),
    /// A reply that exceeds our bounds.
    TooBig(u32),
    /// A reply whose data is malformed for its type.
    Malformed(u32),
    /// Size constraints that violate the protocol's rules.
    BlockSizes(RemoteBlockSizes),
    /// A final reply without `NBD_INFO_EXPORT`.
    NoExportInfo,
}

impl fmt::Display for ClientClose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Refused { option, reply, message } => {
                write!(f, "the server refuses option {option} with {reply:#x}: {message:?}")
            }
            Self::Violation(violation) => write!(f, "the server breaks the protocol: {violation}"),
        }
    }
}

impl core::error::Error for ClientClose {}

impl fmt::Display for ClientViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Greeting => write!(f, "its greeting is not NBDMAGIC and IHAVEOPT"),
            Self::NotFixedNewstyle => write!(f, "it lacks fixed newstyle, which this needs"),
            Self::ReplyMagic(magic) => {
                write!(f, "a reply starts with {magic:#018x} instead of {REPLY_MAGIC:#018x}")
            }
            Self::WrongOption(option) => write!(f, "a reply to option {option}, not sent"),
            Self::UnexpectedReply(kind) => write!(f, "a reply of type {kind}, out of place"),
            Self::TooBig(bytes) => write!(f, "a reply of {bytes} bytes, beyond our bounds"),
            Self::Malformed(kind) => write!(f, "a reply of type {kind} with malformed data"),
            Self::BlockSizes(sizes) => {
                let RemoteBlockSizes { bytes_min, bytes_preferred, payload_bytes_max } = sizes;
                write!(f, "block sizes {bytes_min}, {bytes_preferred}, {payload_bytes_max}")
            }
            Self::NoExportInfo => write!(f, "no size and flags before the final reply"),
        }
    }
}
