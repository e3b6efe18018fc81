//! The server's replies: the bytes before (or instead of) data. The caller sends the data.
//!
//! With structured replies, reads, block status and every error are chunks. A success without data
//! stays a simple reply, which is shorter and allowed ("Structured reply chunk message": MAY use
//! either). A read is one chunk, so the don't-fragment flag is always obeyed.

use super::{ErrorCode, Terms};
use crate::nbd::bytes::Packed;
use crate::nbd::constants::{
    CHUNK_EXTENTS_MAX, SIMPLE_REPLY_MAGIC, STRUCTURED_REPLY_MAGIC, base_allocation, chunk,
};

/// Bytes of a simple reply.
pub const SIMPLE_BYTES: usize = 16;
/// Bytes of a chunk before its payload.
pub const CHUNK_BYTES: usize = 20;
/// The largest head: an error with its offset.
pub const HEAD_BYTES_MAX: usize = 34;

/// The bytes of one reply before its data, or all of it: up to [`HEAD_BYTES_MAX`] bytes stored
/// inline.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ReplyHead {
    bytes: [u8; HEAD_BYTES_MAX],
    length: u8,
}

impl ReplyHead {
    #[inline]
    fn of<const N: usize>(message: [u8; N]) -> Self {
        const { assert!(N <= HEAD_BYTES_MAX) };
        let mut bytes = [0; HEAD_BYTES_MAX];
        bytes[..N].copy_from_slice(&message);
        // N fits a u8 by the assertion, so the default is never taken.
        Self { bytes, length: u8::try_from(N).unwrap_or_default() }
    }

    /// The bytes to send.
    #[inline]
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        self.bytes.get(..usize::from(self.length)).unwrap_or_default()
    }
}

impl Terms {
    /// The head of a successful read; `data_bytes` bytes of data follow it at once.
    #[inline]
    #[must_use]
    pub fn read_head(&self, cookie: u64, offset: u64, data_bytes: u32) -> ReplyHead {
        if self.structured_replies {
            ReplyHead::of(offset_data(cookie, true, offset, data_bytes))
        } else {
            ReplyHead::of(simple(cookie, None))
        }
    }

    /// The whole reply to a request that succeeded and returns no data.
    #[inline]
    #[must_use]
    pub fn success(&self, cookie: u64) -> ReplyHead {
        ReplyHead::of(simple(cookie, None))
    }

    /// The whole reply to a request that failed.
    #[inline]
    #[must_use]
    pub fn failure(&self, cookie: u64, code: ErrorCode) -> ReplyHead {
        if self.structured_replies {
            ReplyHead::of(error(cookie, code))
        } else {
            ReplyHead::of(simple(cookie, Some(code)))
        }
    }

    /// The head of a successful block status; `extents` times [`extent`] follow it at once.
    #[inline]
    #[must_use]
    pub fn block_status_head(&self, cookie: u64, extents: u32) -> ReplyHead {
        ReplyHead::of(block_status(cookie, true, base_allocation::CONTEXT_ID, extents))
    }
}

/// "Simple reply message": 32 bits magic, 32 bits error, 64 bits cookie.
#[inline]
#[must_use]
pub fn simple(cookie: u64, error: Option<ErrorCode>) -> [u8; SIMPLE_BYTES] {
    let number = error.map_or(0, ErrorCode::number);
    Packed::new().u32(SIMPLE_REPLY_MAGIC).u32(number).u64(cookie).finish()
}

/// "Structured reply chunk message": 32 bits magic, 16 bits flags, 16 bits type, 64 bits cookie,
/// 32 bits length of payload. `last` is `NBD_REPLY_FLAG_DONE`.
#[inline]
#[must_use]
pub fn chunk(cookie: u64, last: bool, kind: u16, payload_bytes: u32) -> [u8; CHUNK_BYTES] {
    Packed::new()
        .u32(STRUCTURED_REPLY_MAGIC)
        .u16(if last { chunk::FLAG_DONE } else { 0 })
        .u16(kind)
        .u64(cookie)
        .u32(payload_bytes)
        .finish()
}

/// "`NBD_REPLY_TYPE_NONE`": the end of a reply, and nothing else; always the last chunk.
#[inline]
#[must_use]
pub fn none(cookie: u64) -> [u8; 20] {
    chunk(cookie, true, chunk::NONE, 0)
}

/// "`NBD_REPLY_TYPE_OFFSET_DATA`": 64 bits offset, then the data. `data_bytes` is at least 1 and at
/// most 2^32 - 9.
#[inline]
#[must_use]
pub fn offset_data(cookie: u64, last: bool, offset: u64, data_bytes: u32) -> [u8; 28] {
    debug_assert!((1..=u32::MAX - 8).contains(&data_bytes), "a chunk of {data_bytes} bytes");
    let head = chunk(cookie, last, chunk::OFFSET_DATA, data_bytes.saturating_add(8));
    Packed::new().bytes(&head).u64(offset).finish()
}

/// "`NBD_REPLY_TYPE_OFFSET_HOLE`": 64 bits offset, 32 bits hole size (MUST be nonzero).
///
/// For tests. The server sends zeroes as data.
#[inline]
#[must_use]
pub fn offset_hole(cookie: u64, last: bool, offset: u64, hole_bytes: u32) -> [u8; 32] {
    debug_assert!(hole_bytes > 0, "a hole of no bytes");
    let head = chunk(cookie, last, chunk::OFFSET_HOLE, 12);
    Packed::new().bytes(&head).u64(offset).u32(hole_bytes).finish()
}

/// "`NBD_REPLY_TYPE_BLOCK_STATUS`": 32 bits context id, then [`extent`]s: at least 1 and at most
/// [`CHUNK_EXTENTS_MAX`].
#[inline]
#[must_use]
pub fn block_status(cookie: u64, last: bool, context: u32, extents: u32) -> [u8; 24] {
    debug_assert!((1..=CHUNK_EXTENTS_MAX).contains(&extents), "a chunk of {extents} extents");
    let payload_bytes = extents.saturating_mul(8).saturating_add(4);
    let head = chunk(cookie, last, chunk::BLOCK_STATUS, payload_bytes);
    Packed::new().bytes(&head).u32(context).finish()
}

/// One extent of a block status: 32 bits length (MUST be nonzero), 32 bits flags of
/// [`base_allocation`].
#[inline]
#[must_use]
pub fn extent(bytes: u32, flags: u32) -> [u8; 8] {
    debug_assert!(bytes > 0, "an extent of no bytes");
    Packed::new().u32(bytes).u32(flags).finish()
}

/// "`NBD_REPLY_TYPE_ERROR`": 32 bits error, 16 bits message length (we send no message: the text
/// would have to be built on the hot path, and clients show the error's name).
#[inline]
#[must_use]
pub fn error(cookie: u64, error: ErrorCode) -> [u8; 26] {
    let head = chunk(cookie, true, chunk::ERROR, 6);
    Packed::new().bytes(&head).u32(error.number()).u16(0).finish()
}

/// "`NBD_REPLY_TYPE_ERROR_OFFSET`": 32 bits error, 16 bits message length, 64 bits offset.
///
/// For tests. The server names no places of errors.
#[inline]
#[must_use]
pub fn error_at(cookie: u64, last: bool, error: ErrorCode, offset: u64) -> [u8; 34] {
    let head = chunk(cookie, last, chunk::ERROR_OFFSET, 14);
    Packed::new().bytes(&head).u32(error.number()).u16(0).u64(offset).finish()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn terms(structured_replies: bool) -> Terms {
        Terms {
            size_bytes: 1 << 20,
            block_bytes_min: 512,
            payload_bytes_max: 1 << 20,
            read_only: false,
            structured_replies,
            base_allocation: true,
        }
    }

    #[test]
    fn the_terms_choose_the_kind_of_reply() {
        let simple_terms = terms(false);
        let chunked = terms(true);
        let cookie = 7;
        let offset = 512;
        let code = ErrorCode::Io;
        let same = |head: ReplyHead, bytes: &[u8]| assert_eq!(head.as_bytes(), bytes);
        same(simple_terms.read_head(cookie, offset, 512), &simple(cookie, None));
        same(chunked.read_head(cookie, offset, 512), &offset_data(cookie, true, offset, 512));
        same(simple_terms.failure(cookie, code), &simple(cookie, Some(code)));
        same(chunked.failure(cookie, code), &error(cookie, code));
        same(simple_terms.success(cookie), &simple(cookie, None));
        same(chunked.success(cookie), &simple(cookie, None));
        same(chunked.block_status_head(cookie, 2), &block_status(cookie, true, 1, 2));
    }
}
