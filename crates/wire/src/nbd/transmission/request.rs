//! Requests: decoding of the 28 bytes, and validation.

use core::fmt;

use evenkeel_core::request::{Operation, Request};

use super::ErrorCode;
use crate::nbd::bytes::{Packed, u16_at, u32_at, u64_at};
use crate::nbd::constants::{
    PAYLOAD_BYTES_TOLERATED, REQUEST_MAGIC, command, command_flag as flag,
};

/// Bytes of a request before its payload.
pub const REQUEST_BYTES: usize = 28;

/// The limits of requests on one connection, as negotiated.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Terms {
    /// Size of the export in bytes. May grow while the connection lives.
    pub size_bytes: u64,
    /// Offsets and lengths are multiples of this: 1 if the client did not ask for block sizes.
    pub block_bytes_min: u32,
    /// The most bytes of one read or write.
    pub payload_bytes_max: u32,
    /// Writes are refused.
    pub read_only: bool,
    /// Reads and errors are answered with structured replies.
    pub structured_replies: bool,
    /// `NBD_CMD_BLOCK_STATUS` may be used.
    pub base_allocation: bool,
}

/// The header of a request, as on the wire.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct RequestHeader {
    /// Flags of [`command_flag`](flag).
    pub flags: u16,
    /// One of [`command`].
    pub command: u16,
    /// The client's own number, returned in every reply to this request.
    pub cookie: u64,
    /// First byte of the range.
    pub offset: u64,
    /// Length of the range in bytes.
    pub length: u32,
}

/// The action of a valid request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// Execute it and reply.
    Io {
        /// The operation and its range.
        request: Request,
        /// A block status that requests one extent, no longer than the request.
        one_extent: bool,
    },
    /// Finish the outstanding requests, then close the connection. There is no reply.
    Disconnect,
}

/// The bytes are not a request: the stream is out of sync, so the connection must be closed. Holds
/// the bytes in place of the magic number.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct BadMagic(pub u32);

/// A write announces more payload than the server drains: the connection must be closed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct PayloadTooLarge {
    /// Bytes announced.
    pub bytes: u32,
    /// The most bytes that are drained.
    pub bytes_max: u32,
}

impl fmt::Display for BadMagic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "a request starts with {:#010x} instead of {REQUEST_MAGIC:#010x}", self.0)
    }
}

impl core::error::Error for BadMagic {}

impl fmt::Display for PayloadTooLarge {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, bytes_max } = self;
        write!(f, "a write announces {bytes} bytes, more than the {bytes_max} that are tolerated")
    }
}

impl core::error::Error for PayloadTooLarge {}

impl RequestHeader {
    /// "Request message": 32 bits magic, 16 bits flags, 16 bits type, 64 bits cookie, 64 bits
    /// offset, 32 bits length.
    #[inline]
    pub const fn decode(bytes: &[u8; REQUEST_BYTES]) -> Result<Self, BadMagic> {
        let magic = u32_at(bytes, 0);
        if magic != REQUEST_MAGIC {
            return Err(BadMagic(magic));
        }
        Ok(Self {
            flags: u16_at(bytes, 4),
            command: u16_at(bytes, 6),
            cookie: u64_at(bytes, 8),
            offset: u64_at(bytes, 16),
            length: u32_at(bytes, 24),
        })
    }

    /// The inverse of [`RequestHeader::decode`], for the client role.
    #[inline]
    #[must_use]
    pub fn encode(&self) -> [u8; REQUEST_BYTES] {
        Packed::new()
            .u32(REQUEST_MAGIC)
            .u16(self.flags)
            .u16(self.command)
            .u64(self.cookie)
            .u64(self.offset)
            .u32(self.length)
            .finish()
    }

    /// The number of payload bytes after the header, whether or not the request is valid. They must
    /// be read from the stream before the next header.
    ///
    /// "Size constraints": up to 2^25 bytes SHOULD NOT be considered a denial of service even if
    /// more than the advertised maximum; such a write is drained and refused. For more, the caller
    /// disconnects.
    #[inline]
    pub const fn payload_bytes(&self, terms: &Terms) -> Result<u32, PayloadTooLarge> {
        if self.command != command::WRITE {
            return Ok(0);
        }
        let bytes_max = if terms.payload_bytes_max > PAYLOAD_BYTES_TOLERATED {
            terms.payload_bytes_max
        } else {
            PAYLOAD_BYTES_TOLERATED
        };
        if self.length > bytes_max {
            return Err(PayloadTooLarge { bytes: self.length, bytes_max });
        }
        Ok(self.length)
    }

    /// Returns the action of the request, or the error to reply with. An `Err` is no reason to
    /// disconnect; the payload of a refused write must still be drained.
    #[inline]
    pub fn validate(&self, terms: &Terms) -> Result<Command, ErrorCode> {
        let operation = match self.command {
            command::READ => Operation::Read,
            command::WRITE => Operation::Write { fua: self.has(flag::FUA) },
            // "`NBD_CMD_DISC`": has no reply, so the rest of the header cannot be refused.
            command::DISC => return Ok(Command::Disconnect),
            command::FLUSH => return self.validate_flush(),
            command::TRIM => Operation::Discard { fua: self.has(flag::FUA) },
            command::CACHE => Operation::Cache,
            command::WRITE_ZEROES => Operation::WriteZeroes {
                fua: self.has(flag::FUA),
                keep_allocated: self.has(flag::NO_HOLE),
                only_if_fast: self.has(flag::FAST_ZERO),
            },
            // Servers SHOULD reply with EINVAL to clients that selected no metadata context.
            command::BLOCK_STATUS if terms.base_allocation => Operation::BlockStatus,
            // SHOULD return EINVAL if it receives an unknown command.
            _ => return Err(ErrorCode::Invalid),
        };
        self.check_flags(terms.structured_replies)?;
        // SHOULD return EPERM if it receives a write or trim request on a read-only export.
        if operation.is_write() && terms.read_only {
            return Err(ErrorCode::NotPermitted);
        }
        self.check_range(operation, terms)?;
        let request = Request { operation, offset: self.offset, length: self.length };
        Ok(Command::Io { request, one_extent: self.has(flag::REQ_ONE) })
    }

    #[inline]
    const fn has(&self, flag: u16) -> bool {
        self.flags & flag != 0
    }

    /// "`NBD_CMD_FLUSH`": length and offset are reserved, and MUST be set to all-zero.
    fn validate_flush(&self) -> Result<Command, ErrorCode> {
        self.check_flags(false)?;
        if (self.offset, self.length) != (0, 0) {
            return Err(ErrorCode::Invalid);
        }
        let request = Request { operation: Operation::Flush, offset: 0, length: 0 };
        Ok(Command::Io { request, one_extent: false })
    }

    /// "Error values": SHOULD return EINVAL if it receives an unknown command flag, or one not
    /// explicitly documented as applicable to the given request.
    #[inline]
    fn check_flags(&self, structured_replies: bool) -> Result<(), ErrorCode> {
        let applicable = match self.command {
            // "Command flags": DF MUST NOT be set unless SEND_DF is, hence not without structured
            // replies. It asks for nothing more than we do: a read is answered in one chunk anyway.
            command::READ if structured_replies => flag::DF,
            command::WRITE_ZEROES => flag::NO_HOLE | flag::FAST_ZERO,
            command::BLOCK_STATUS => flag::REQ_ONE,
            _ => 0,
        };
        // The server MUST accept all commands with FUA set, even by ignoring it.
        if self.flags & !(applicable | flag::FUA) != 0 {
            return Err(ErrorCode::Invalid);
        }
        Ok(())
    }

    #[inline]
    fn check_range(&self, operation: Operation, terms: &Terms) -> Result<(), ErrorCode> {
        // A length of 0 is unspecified and no reason to disconnect. A chunk of 0 bytes is illegal,
        // so an empty read has no answer but an error; the others follow it.
        if self.length == 0
            || !self.offset.is_multiple_of(u64::from(terms.block_bytes_min))
            || !self.length.is_multiple_of(terms.block_bytes_min)
        {
            return Err(ErrorCode::Invalid);
        }
        if self.length > terms.payload_bytes_max {
            match operation {
                Operation::Write { .. } => return Err(ErrorCode::Invalid),
                // "Error values" allows EOVERFLOW for a command without payload; the data of a read
                // with simple replies counts as payload that the client controls.
                Operation::Read if terms.structured_replies => return Err(ErrorCode::Overflow),
                Operation::Read => return Err(ErrorCode::Invalid),
                // Without payload in either direction, any length is fine.
                _ => {}
            }
        }
        let in_range = self
            .offset
            .checked_add(u64::from(self.length))
            .is_some_and(|end| end <= terms.size_bytes);
        match operation {
            _ if in_range => Ok(()),
            // SHOULD return ENOSPC for a write or write zeroes beyond the size of the device,
            // EINVAL for a read, trim or block status.
            Operation::Write { .. } | Operation::WriteZeroes { .. } => Err(ErrorCode::NoSpace),
            _ => Err(ErrorCode::Invalid),
        }
    }

    /// The header of `request`, for the client role.
    #[must_use]
    pub const fn new(cookie: u64, request: &Request, one_extent: bool) -> Self {
        const fn only_if(condition: bool, flag: u16) -> u16 {
            if condition { flag } else { 0 }
        }
        let (command, flags) = match request.operation {
            Operation::Read => (command::READ, 0),
            Operation::Write { fua } => (command::WRITE, only_if(fua, flag::FUA)),
            Operation::Flush => (command::FLUSH, 0),
            Operation::Discard { fua } => (command::TRIM, only_if(fua, flag::FUA)),
            Operation::WriteZeroes { fua, keep_allocated, only_if_fast } => (
                command::WRITE_ZEROES,
                only_if(fua, flag::FUA)
                    | only_if(keep_allocated, flag::NO_HOLE)
                    | only_if(only_if_fast, flag::FAST_ZERO),
            ),
            Operation::BlockStatus => (command::BLOCK_STATUS, only_if(one_extent, flag::REQ_ONE)),
            Operation::Cache => (command::CACHE, 0),
        };
        Self { flags, command, cookie, offset: request.offset, length: request.length }
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
