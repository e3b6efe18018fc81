//! The protocol's constants under the names of its text, and our bounds for both ends.

/// The first magic number of both kinds of newstyle negotiation ("NBDMAGIC").
pub const NBDMAGIC: u64 = 0x4e42_444d_4147_4943;
/// The magic number after it, and of each option ("IHAVEOPT").
pub const IHAVEOPT: u64 = 0x4948_4156_454f_5054;
/// The magic number of a reply to an option.
pub const REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
/// The magic number of a request.
pub const REQUEST_MAGIC: u32 = 0x2560_9513;
/// The magic number of a simple reply.
pub const SIMPLE_REPLY_MAGIC: u32 = 0x6744_6698;
/// The magic number of a chunk of a structured reply.
pub const STRUCTURED_REPLY_MAGIC: u32 = 0x668e_33ef;

/// "Conventions": a string MUST be no longer than 4096 bytes.
pub const STRING_BYTES_MAX: usize = 4_096;
/// Zeroes after the answer to `NBD_OPT_EXPORT_NAME`, unless `NO_ZEROES` was agreed.
pub const EXPORT_NAME_ZEROES: usize = 124;
/// "Size constraints": a payload up to here SHOULD NOT be considered a denial of service.
pub const PAYLOAD_BYTES_TOLERATED: u32 = 1 << 25;
/// "`NBD_REPLY_TYPE_BLOCK_STATUS`": a chunk SHOULD NOT carry more extents.
pub const CHUNK_EXTENTS_MAX: u32 = 1 << 20;

/// Our bound on the data of one option: room for a name and dozens of queries of the largest size
/// (arbitrary beyond that). Longer ones are skipped and refused.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;
/// Our bound on the data of all options of one handshake; the server disconnects a client that
/// exceeds it.
pub const HANDSHAKE_BYTES_MAX: u32 = 4 << 20;
/// Our bound on the number of options of one handshake; the server disconnects a client that
/// exceeds it. Real clients send about five.
pub const HANDSHAKE_OPTIONS_MAX: u32 = 1_000;

/// Handshake flags and the client's answer to them (same bits).
pub mod handshake_flag {
    /// Options get replies.
    pub const FIXED_NEWSTYLE: u16 = 1 << 0;
    /// No zeroes after the answer to `NBD_OPT_EXPORT_NAME`.
    pub const NO_ZEROES: u16 = 1 << 1;
}

/// Transmission flags (`NBD_FLAG_*`): the features of an export.
pub mod transmission_flag {
    /// Always set.
    pub const HAS_FLAGS: u16 = 1 << 0;
    /// Writes are refused.
    pub const READ_ONLY: u16 = 1 << 1;
    /// `NBD_CMD_FLUSH` works.
    pub const SEND_FLUSH: u16 = 1 << 2;
    /// `NBD_CMD_FLAG_FUA` works.
    pub const SEND_FUA: u16 = 1 << 3;
    /// Clients may prefer sequential access.
    pub const ROTATIONAL: u16 = 1 << 4;
    /// `NBD_CMD_TRIM` works.
    pub const SEND_TRIM: u16 = 1 << 5;
    /// `NBD_CMD_WRITE_ZEROES` and `NBD_CMD_FLAG_NO_HOLE` work.
    pub const SEND_WRITE_ZEROES: u16 = 1 << 6;
    /// `NBD_CMD_FLAG_DF` works.
    pub const SEND_DF: u16 = 1 << 7;
    /// A flush on one connection covers all of them.
    pub const CAN_MULTI_CONN: u16 = 1 << 8;
    /// `NBD_CMD_CACHE` works.
    pub const SEND_CACHE: u16 = 1 << 10;
    /// `NBD_CMD_FLAG_FAST_ZERO` works.
    pub const SEND_FAST_ZERO: u16 = 1 << 11;
}

/// Option codes (`NBD_OPT_*`).
pub mod option {
    /// Choose an export. The server can refuse only by disconnecting.
    pub const EXPORT_NAME: u32 = 1;
    /// End the session.
    pub const ABORT: u32 = 2;
    /// List the exports.
    pub const LIST: u32 = 3;
    /// Switch to TLS.
    pub const STARTTLS: u32 = 5;
    /// Describe an export.
    pub const INFO: u32 = 6;
    /// Describe an export and start transmission.
    pub const GO: u32 = 7;
    /// Use structured replies.
    pub const STRUCTURED_REPLY: u32 = 8;
    /// List the metadata contexts of an export.
    pub const LIST_META_CONTEXT: u32 = 9;
    /// Select metadata contexts of an export.
    pub const SET_META_CONTEXT: u32 = 10;
}

/// Bytes that a server sends first: two magic numbers and its flags.
pub const GREETING_BYTES: usize = 18;

/// Option reply types (`NBD_REP_*`).
pub mod reply {
    /// The option is accepted, or its list of replies is complete.
    pub const ACK: u32 = 1;
    /// One export of a list.
    pub const SERVER: u32 = 2;
    /// One item of information about an export.
    pub const INFO: u32 = 3;
    /// One metadata context.
    pub const META_CONTEXT: u32 = 4;
    /// Set in every error reply.
    pub const ERROR_BIT: u32 = 1 << 31;
    /// The server does not know the option.
    pub const ERR_UNSUP: u32 = ERROR_BIT + 1;
    /// The option is forbidden here.
    pub const ERR_POLICY: u32 = ERROR_BIT + 2;
    /// The option makes no sense.
    pub const ERR_INVALID: u32 = ERROR_BIT + 3;
    /// The option needs TLS first.
    pub const ERR_TLS_REQD: u32 = ERROR_BIT + 5;
    /// The export does not exist.
    pub const ERR_UNKNOWN: u32 = ERROR_BIT + 6;
    /// The server is shutting down.
    pub const ERR_SHUTDOWN: u32 = ERROR_BIT + 7;
    /// The option is too large.
    pub const ERR_TOO_BIG: u32 = ERROR_BIT + 9;
}

/// Information types (`NBD_INFO_*`).
pub mod info {
    /// Size and transmission flags.
    pub const EXPORT: u16 = 0;
    /// The canonical name.
    pub const NAME: u16 = 1;
    /// A description for users.
    pub const DESCRIPTION: u16 = 2;
    /// The three size constraints.
    pub const BLOCK_SIZE: u16 = 3;
}

/// Commands (`NBD_CMD_*`).
pub mod command {
    /// Read a range.
    pub const READ: u16 = 0;
    /// Write a range; its bytes follow the header.
    pub const WRITE: u16 = 1;
    /// Disconnect.
    pub const DISC: u16 = 2;
    /// Make acknowledged writes durable.
    pub const FLUSH: u16 = 3;
    /// Discard a range.
    pub const TRIM: u16 = 4;
    /// Load a range into a cache.
    pub const CACHE: u16 = 5;
    /// Zero a range.
    pub const WRITE_ZEROES: u16 = 6;
    /// Report holes and data in a range.
    pub const BLOCK_STATUS: u16 = 7;
}

/// Command flags (`NBD_CMD_FLAG_*`).
pub mod command_flag {
    /// Durable before the reply.
    pub const FUA: u16 = 1 << 0;
    /// The zeroed range stays allocated.
    pub const NO_HOLE: u16 = 1 << 1;
    /// Answer a read in one content chunk.
    pub const DF: u16 = 1 << 2;
    /// Answer with one extent.
    pub const REQ_ONE: u16 = 1 << 3;
    /// Fail rather than write zeroes one by one.
    pub const FAST_ZERO: u16 = 1 << 4;
}

/// Structured reply types (`NBD_REPLY_TYPE_*`).
pub mod chunk {
    /// The end of a reply, without content.
    pub const NONE: u16 = 0;
    /// Bytes read.
    pub const OFFSET_DATA: u16 = 1;
    /// A part of a read that is all zeroes.
    pub const OFFSET_HOLE: u16 = 2;
    /// Extents of a metadata context.
    pub const BLOCK_STATUS: u16 = 5;
    /// Set in every error chunk.
    pub const ERROR_BIT: u16 = 1 << 15;
    /// The request failed.
    pub const ERROR: u16 = ERROR_BIT + 1;
    /// The request failed at an offset.
    pub const ERROR_OFFSET: u16 = ERROR_BIT + 2;
    /// Reply flag (`NBD_REPLY_FLAG_DONE`): the last chunk of a reply.
    pub const FLAG_DONE: u16 = 1 << 0;
}

/// The only metadata context, `base:allocation`.
pub mod base_allocation {
    /// Its name.
    pub const NAME: &str = "base:allocation";
    /// The wildcard that lists its namespace.
    pub const WILDCARD: &str = "base:";
    /// The id that our server assigns; any number would do, the client only returns it.
    pub const CONTEXT_ID: u32 = 1;
    /// Extent flag (`NBD_STATE_HOLE`): not allocated.
    pub const STATE_HOLE: u32 = 1 << 0;
    /// Extent flag (`NBD_STATE_ZERO`): reads as zeroes.
    pub const STATE_ZERO: u32 = 1 << 1;
}
