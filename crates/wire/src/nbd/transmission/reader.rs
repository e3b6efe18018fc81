//! The client's reader of replies. Returns events, or a violation after which the connection must
//! be closed.

use core::fmt;
use evenkeel_core::convert::{exact, index};

use super::ErrorCode;
use super::reply::{CHUNK_BYTES, SIMPLE_BYTES};
use crate::nbd::bytes::Cursor;
use crate::nbd::constants::{
    CHUNK_EXTENTS_MAX, SIMPLE_REPLY_MAGIC, STRING_BYTES_MAX, STRUCTURED_REPLY_MAGIC, chunk,
};

/// The largest piece that is collected before it is decoded: the header of a chunk.
const PIECE_BYTES_MAX: usize = CHUNK_BYTES;

/// A received part of a reply. `last` marks the end of the reply with this cookie.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Event {
    /// A simple reply, which is always the end of its reply. If it answers a read without error,
    /// the read's bytes follow, and the caller must read them from the stream.
    Simple {
        /// The request's cookie.
        cookie: u64,
        /// The error, if the request failed.
        error: Option<ErrorCode>,
    },
    /// A part of a read; its `bytes` bytes follow, and the caller must read them from the stream.
    Data {
        /// The request's cookie.
        cookie: u64,
        /// The offset of the bytes.
        offset: u64,
        /// Their number.
        bytes: u32,
        /// Whether this is the end of the reply, once the bytes are read.
        last: bool,
    },
    /// A part of a read that is all zeroes.
    Hole {
        /// The request's cookie.
        cookie: u64,
        /// The offset of the zeroes.
        offset: u64,
        /// Their number.
        bytes: u32,
        /// Whether this is the end of the reply.
        last: bool,
    },
    /// One extent of a block status; extents follow each other from the request's offset on.
    Extent {
        /// The request's cookie.
        cookie: u64,
        /// The metadata context.
        context: u32,
        /// Length of the extent.
        bytes: u32,
        /// Flags of [`base_allocation`](crate::nbd::constants::base_allocation).
        flags: u32,
        /// Whether this is the end of the reply.
        last: bool,
    },
    /// The request failed, or a part of it.
    Error {
        /// The request's cookie.
        cookie: u64,
        /// The error.
        error: ErrorCode,
        /// The offset of the failure, if the server sent it.
        offset: Option<u64>,
        /// Whether this is the end of the reply.
        last: bool,
    },
    /// The end of a reply.
    Done {
        /// The request's cookie.
        cookie: u64,
    },
}

impl Event {
    /// The cookie of the request that it is about.
    #[must_use]
    pub const fn cookie(&self) -> u64 {
        let (Self::Simple { cookie, .. }
        | Self::Data { cookie, .. }
        | Self::Hole { cookie, .. }
        | Self::Extent { cookie, .. }
        | Self::Error { cookie, .. }
        | Self::Done { cookie }) = self;
        *cookie
    }
}

/// A violation of the protocol by a server. The stream is out of sync: close the connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum ReplyViolation {
    /// Neither magic number; holds the bytes in its place.
    Magic(u32),
    /// A chunk of a type that this client does not expect.
    ChunkType(u16),
    /// A chunk with a length, flags or content that its type does not allow.
    Malformed {
        /// The chunk's type.
        kind: u16,
        /// Its length in bytes.
        length: u32,
    },
}

impl fmt::Display for ReplyViolation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic(magic) => write!(
                f,
                "a reply starts with {magic:#010x}, neither {SIMPLE_REPLY_MAGIC:#010x} \
                 nor {STRUCTURED_REPLY_MAGIC:#010x}"
            ),
            Self::ChunkType(kind) => write!(f, "a chunk of unknown type {kind}"),
            Self::Malformed { kind, length } => {
                write!(f, "a malformed chunk of type {kind}, {length} bytes long")
            }
        }
    }
}

impl core::error::Error for ReplyViolation {}

/// The header of the chunk that is being read.
#[derive(Clone, Copy, Debug)]
struct Chunk {
    last: bool,
    kind: u16,
    cookie: u64,
    length: u32,
}

#[derive(Clone, Copy, Debug)]
enum State {
    Simple,
    Structured,
    DataOffset(Chunk),
    Hole(Chunk),
    Context(Chunk),
    Extent { chunk: Chunk, context: u32, left: u32 },
    ErrorHead(Chunk),
    ErrorText { chunk: Chunk, error: ErrorCode, left: u32 },
    ErrorOffset { chunk: Chunk, error: ErrorCode },
}

/// Reads replies from input in arbitrary parts, holding at most 20 bytes of it.
///
/// | State | collects | then |
/// |---|---|---|
/// | `Simple` | 16 bytes | `Simple` event, or the magic is a chunk's: `Structured` |
/// | `Structured` | 20 bytes in all | by type; `NONE`: `Done` event |
/// | `DataOffset` | 8 bytes | `Data` event |
/// | `Hole` | 12 bytes | `Hole` event |
/// | `Context` | 4 bytes | `Extent` |
/// | `Extent` | 8 bytes, often | `Extent` event |
/// | `ErrorHead` | 6 bytes | `ErrorText` |
/// | `ErrorText` | skips the message and what else is there | `ErrorOffset` or `Error` event |
/// | `ErrorOffset` | 8 bytes | `Error` event |
///
/// It does not know the requests. The caller must check that a reply belongs to one and stays
/// within its range.
#[derive(Debug)]
pub struct ReplyReader {
    state: State,
    piece: [u8; PIECE_BYTES_MAX],
    held: usize,
    data_bytes_max: u32,
}

impl ReplyReader {
    /// A reader at the beginning of the transmission phase. `data_bytes_max` bounds the data of one
    /// chunk: the largest read the caller sends.
    #[must_use]
    pub const fn new(data_bytes_max: u32) -> Self {
        Self { state: State::Simple, piece: [0; PIECE_BYTES_MAX], held: 0, data_bytes_max }
    }

    /// Consumes bytes from the front of `input` up to the next event. Returns their number and the
    /// event. Without an event, all of `input` is consumed.
    pub fn handle(&mut self, input: &[u8]) -> Result<(usize, Option<Event>), ReplyViolation> {
        let mut rest = input;
        loop {
            if let State::ErrorText { left, .. } = &mut self.state {
                let skipped = rest.len().min(index(*left));
                *left -= exact::<_, u32>(skipped, "at most the rest of the text");
                rest = rest.get(skipped..).unwrap_or_default();
                if *left > 0 {
                    return Ok((input.len(), None));
                }
            } else if !self.collect(&mut rest) {
                return Ok((input.len(), None));
            }
            if let Some(event) = self.advance()? {
                return Ok((input.len() - rest.len(), Some(event)));
            }
        }
    }

    /// The number of bytes that the state needs in `piece`.
    const fn needed(&self) -> usize {
        match self.state {
            State::Simple => SIMPLE_BYTES,
            State::Structured => CHUNK_BYTES,
            State::DataOffset(_) | State::Extent { .. } | State::ErrorOffset { .. } => 8,
            State::Hole(_) => 12,
            State::Context(_) => 4,
            State::ErrorHead(_) => 6,
            State::ErrorText { .. } => 0,
        }
    }

    fn collect(&mut self, rest: &mut &[u8]) -> bool {
        let needed = self.needed();
        let taken = rest.len().min(needed.saturating_sub(self.held));
        let (front, back) = rest.split_at(taken);
        self.piece[self.held..self.held + taken].copy_from_slice(front);
        self.held += taken;
        *rest = back;
        self.held == needed
    }

    /// Makes one transition on a complete piece.
    fn advance(&mut self) -> Result<Option<Event>, ReplyViolation> {
        let piece = self.piece;
        let mut cursor = Cursor::new(&piece);
        let state = self.state;
        if let State::Simple = state {
            let magic = cursor.u32().unwrap_or_default();
            if magic == STRUCTURED_REPLY_MAGIC {
                self.state = State::Structured; // keeps what is held
                return Ok(None);
            }
            if magic != SIMPLE_REPLY_MAGIC {
                return Err(ReplyViolation::Magic(magic));
            }
        }
        self.held = 0;
        self.state = State::Simple;
        match state {
            State::Simple => {
                let error = ErrorCode::from_number(cursor.u32().unwrap_or_default());
                Ok(Some(Event::Simple { cookie: cursor.u64().unwrap_or_default(), error }))
            }
            State::Structured => self.on_chunk(&mut cursor),
            State::DataOffset(Chunk { last, cookie, length, .. }) => {
                let offset = cursor.u64().unwrap_or_default();
                Ok(Some(Event::Data { cookie, offset, bytes: length - 8, last }))
            }
            State::Hole(chunk) => {
                let offset = cursor.u64().unwrap_or_default();
                let bytes = chunk.nonzero(cursor.u32())?;
                Ok(Some(Event::Hole { cookie: chunk.cookie, offset, bytes, last: chunk.last }))
            }
            State::Context(chunk) => {
                let context = cursor.u32().unwrap_or_default();
                self.state = State::Extent { chunk, context, left: (chunk.length - 4) / 8 };
                Ok(None)
            }
            State::Extent { chunk, context, left } => {
                let bytes = chunk.nonzero(cursor.u32())?;
                let flags = cursor.u32().unwrap_or_default();
                if left > 1 {
                    self.state = State::Extent { chunk, context, left: left - 1 };
                }
                let cookie = chunk.cookie;
                let last = chunk.last && left == 1;
                Ok(Some(Event::Extent { cookie, context, bytes, flags, last }))
            }
            State::ErrorHead(chunk) => self.on_error_head(chunk, &mut cursor),
            State::ErrorText { chunk, error, .. } if chunk.kind == chunk::ERROR_OFFSET => {
                self.state = State::ErrorOffset { chunk, error };
                Ok(None)
            }
            State::ErrorText { chunk, error, .. } => Ok(Some(chunk.failed(error, None))),
            State::ErrorOffset { chunk, error } => Ok(Some(chunk.failed(error, cursor.u64()))),
        }
    }

    /// "Structured reply types": checks the length of each type.
    fn on_chunk(&mut self, cursor: &mut Cursor<'_>) -> Result<Option<Event>, ReplyViolation> {
        let _magic = cursor.u32();
        let flags = cursor.u16().unwrap_or_default(); // MUST ignore unrecognized flags
        let kind = cursor.u16().unwrap_or_default();
        let cookie = cursor.u64().unwrap_or_default();
        let length = cursor.u32().unwrap_or_default();
        let chunk = Chunk { last: flags & chunk::FLAG_DONE != 0, kind, cookie, length };
        let data_max = self.data_bytes_max.saturating_add(8);
        let (sound, state) = match kind {
            chunk::NONE if length == 0 && chunk.last => return Ok(Some(Event::Done { cookie })),
            chunk::NONE => (false, State::Simple),
            chunk::OFFSET_DATA => ((9..=data_max).contains(&length), State::DataOffset(chunk)),
            chunk::OFFSET_HOLE => (length == 12, State::Hole(chunk)),
            chunk::BLOCK_STATUS => {
                let sound = length % 8 == 4 && (12..=4 + 8 * CHUNK_EXTENTS_MAX).contains(&length);
                (sound, State::Context(chunk))
            }
            // An unknown error MUST be considered one, and the rest of it can be skipped.
            _ if kind & chunk::ERROR_BIT != 0 => {
                (chunk.has_error_length(), State::ErrorHead(chunk))
            }
            // Of any other type: MUST initiate a hard disconnect.
            _ => return Err(ReplyViolation::ChunkType(kind)),
        };
        if !sound {
            return Err(chunk.malformed());
        }
        self.state = state;
        Ok(None)
    }

    /// 32 bits error (MUST be nonzero), 16 bits message length (MUST fit and be a string's).
    fn on_error_head(
        &mut self,
        chunk: Chunk,
        cursor: &mut Cursor<'_>,
    ) -> Result<Option<Event>, ReplyViolation> {
        let number = cursor.u32().unwrap_or_default();
        let text = cursor.u16().unwrap_or_default();
        let left = chunk.length - chunk.error_fixed_bytes();
        // The offset is directly after the message. Other errors may have fields unknown to us.
        let fits = match chunk.kind {
            chunk::ERROR_OFFSET => u32::from(text) == left,
            _ => u32::from(text) <= left,
        };
        match ErrorCode::from_number(number) {
            Some(error) if fits && usize::from(text) <= STRING_BYTES_MAX => {
                self.state = State::ErrorText { chunk, error, left };
                Ok(None)
            }
            _ => Err(chunk.malformed()),
        }
    }
}

impl Chunk {
    /// The number of bytes of an error chunk that are not its message.
    const fn error_fixed_bytes(&self) -> u32 {
        if self.kind == chunk::ERROR_OFFSET { 14 } else { 6 }
    }

    /// Long enough for its fields, short enough for a message and a few unknown fields: a longer
    /// chunk would only be skipped.
    fn has_error_length(&self) -> bool {
        let fixed = self.error_fixed_bytes();
        (fixed..=fixed + (64 << 10)).contains(&self.length)
    }

    fn nonzero(&self, field: Option<u32>) -> Result<u32, ReplyViolation> {
        field.filter(|value| *value > 0).ok_or(self.malformed())
    }

    const fn malformed(&self) -> ReplyViolation {
        ReplyViolation::Malformed { kind: self.kind, length: self.length }
    }

    const fn failed(&self, error: ErrorCode, offset: Option<u64>) -> Event {
        Event::Error { cookie: self.cookie, error, offset, last: self.last }
    }
}

#[cfg(test)]
#[path = "reader_tests.rs"]
mod tests;
