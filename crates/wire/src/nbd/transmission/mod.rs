//! The transmission phase, the hot path: fixed arrays in and out, nothing allocated, no state on
//! the server's side.
//!
//! A server takes 28 bytes, [`RequestHeader::decode`]s and [`RequestHeader::validate`]s them, takes
//! [`RequestHeader::payload_bytes`] off the stream whatever the verdict was, and answers with the
//! heads of [`reply`]. A client writes a [`RequestHeader`] and feeds what arrives to a
//! [`ReplyReader`].

mod error;
mod reader;
pub mod reply;
mod request;

pub use error::ErrorCode;
pub use reader::{Event, ReplyReader, ReplyViolation};
pub use reply::ReplyHead;
pub use request::{BadMagic, Command, PayloadTooLarge, REQUEST_BYTES, RequestHeader, Terms};
