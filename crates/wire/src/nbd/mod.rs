//! The NBD protocol, fixed newstyle, both roles.
//!
//! [`handshake`] is two machines (server and client) that agree on an export and may allocate;
//! [`transmission`] is the hot path: requests in, reply headers out, fixed arrays, no allocation.
//! Payload never passes through this module: it says how many bytes follow, the caller moves them.
//!
//! The rules come from the protocol text, doc/proto.md of NetworkBlockDevice/nbd. Where a line
//! obeys one, the comment above it names the section; words in capitals (MUST, SHOULD) are the
//! text's own.
//!
//! Absent on purpose: oldstyle negotiation, TLS, extended headers, resize.

mod bytes;
pub mod constants;
pub mod handshake;
pub mod transmission;

use alloc::string::String;
use evenkeel_core::limits;

/// One export as the server offers it. The caller keeps the values within what their docs say.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExportInfo {
    /// The canonical name; at most [`constants::STRING_BYTES_MAX`] bytes.
    pub name: String,
    /// A line for human eyes, or nothing; at most [`constants::STRING_BYTES_MAX`] bytes.
    pub description: String,
    /// Size in bytes, a multiple of `block_bytes_min`.
    pub size_bytes: u64,
    /// Clients that ask for block sizes are told this power of two, at most 64 KiB, and keep to it;
    /// others may begin and end anywhere.
    pub block_bytes_min: u32,
    /// The block size that avoids read-modify-write; a power of two, at least 512.
    pub block_bytes_preferred: u32,
    /// The most bytes one read or write carries; at least `block_bytes_preferred`.
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
