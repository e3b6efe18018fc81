//! What the client's side of the handshake is told to reach, and how it ends.

use alloc::string::String;
use alloc::vec::Vec;
use core::fmt;

use crate::nbd::constants::REPLY_MAGIC;

/// What a client wants from a server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ClientPlan {
    /// The export; empty for the default one. Not read when listing.
    pub export: String,
    /// How the handshake shall end.
    pub goal: ClientGoal,
    /// Ask for structured replies.
    pub structured_replies: bool,
    /// Ask for `base:allocation`; needs structured replies.
    pub base_allocation: bool,
}

/// How a handshake shall end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ClientGoal {
    /// In transmission, by `NBD_OPT_GO`, or by `NBD_OPT_EXPORT_NAME` if the server lacks it.
    Transmit,
    /// In transmission, by `NBD_OPT_EXPORT_NAME`.
    TransmitOldWay,
    /// With a description of the export.
    Describe,
    /// With a list of all exports.
    List,
}

/// What the caller must do next. All but `Send` are final.
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
    /// The size constraints, if the server told them.
    pub block_sizes: Option<RemoteBlockSizes>,
    /// The canonical name, if the server told it.
    pub name: Option<String>,
    /// A line for human eyes, if the server told one.
    pub description: Option<String>,
}

/// The size constraints of an export.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RemoteBlockSizes {
    /// Offsets and lengths are multiples of this.
    pub bytes_min: u32,
    /// Multiples of this are served best.
    pub bytes_preferred: u32,
    /// The most bytes one request or reply carries.
    pub payload_bytes_max: u32,
}

/// One export of a list.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct RemoteName {
    /// The canonical name.
    pub name: String,
    /// A line for human eyes, or nothing.
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
        /// What the server says about it; control characters and all.
        message: String,
    },
    /// The server does not do what the protocol says.
    Violation(ClientViolation),
}

/// What is wrong with what a server sent.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ClientViolation {
    /// The greeting is not one of a newstyle server.
    Greeting,
    /// The server does not support fixed newstyle, which the goal needs.
    NotFixedNewstyle,
    /// A reply does not start with the magic number.
    ReplyMagic(u64),
    /// A reply to another option than the one sent.
    WrongOption(u32),
    /// A reply of a type that the option does not have.
    UnexpectedReply(u32),
    /// A reply that exceeds our bounds.
    TooBig(u32),
    /// A reply whose data does not have the form of its type.
    Malformed(u32),
    /// Size constraints that break their own rules.
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
