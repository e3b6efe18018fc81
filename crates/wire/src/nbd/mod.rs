//! The NBD protocol, fixed newstyle, both roles.
//!
//! [`handshake`] has two state machines (server and client) that agree on an export and may
//! allocate; [`transmission`] is the hot path: requests in, reply headers out, fixed arrays, no
//! allocation. Payload does not pass through this module: it returns the number of payload bytes,
//! and the caller moves them. Malformed input is an error that says how to continue, or that the
//! connection must be closed.
//!
//! The rules come from the protocol text, doc/proto.md of NetworkBlockDevice/nbd. A comment above a
//! line names the section that it follows; words in capitals (MUST, SHOULD) are quoted from it.
//!
//! Absent on purpose: oldstyle negotiation, extended headers, resize; of TLS, all but the option
//! that starts it.

mod bytes;
pub mod constants;
pub mod handshake;
pub mod transmission;
pub mod uri;

use alloc::string::String;
use evenkeel_core::limits;

/// An export as the server offers it. The caller must keep the documented bounds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportInfo {
    /// The canonical name; at most [`constants::STRING_BYTES_MAX`] bytes.
    pub name: String,
    /// A description for users, or nothing; at most [`constants::STRING_BYTES_MAX`] bytes.
    pub description: String,
    /// Size in bytes, a multiple of `block_bytes_min`.
    pub size_bytes: u64,
    /// The minimum block size, a power of two of at most 64 KiB, for clients that ask for block
    /// sizes. Other clients may use any offset and length.
    pub block_bytes_min: u32,
    /// The block size that avoids read-modify-write; a power of two, at least 512.
    pub block_bytes_preferred: u32,
    /// The most bytes of one read or write; at least `block_bytes_preferred`.
    pub payload_bytes_max: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// A flush on one connection covers the writes of all of them.
    pub can_multi_conn: bool,
    /// Clients may prefer sequential access.
    pub rotational: bool,
}

impl ExportInfo {
    /// A writable export of `size_bytes` with the block sizes of [`limits`].
    #[must_use]
    pub fn new(name: String, size_bytes: u64) -> Self {
        Self {
            name,
            description: String::new(),
            size_bytes,
            block_bytes_min: limits::BLOCK_BYTES_MIN,
            block_bytes_preferred: limits::BLOCK_BYTES_PREFERRED,
            payload_bytes_max: limits::REQUEST_BYTES_MAX,
            read_only: false,
            can_multi_conn: true,
            rotational: false,
        }
    }
}
