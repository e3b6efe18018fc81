//! What unit tests of the reactor need of a client that speaks NBD.

use super::nbd::{Nbd, testing as nbd};
use super::{Binding, Protocol};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::request::Request;

/// A connection that is served, of the volume in slot 0.
pub fn serving() -> Protocol {
    let mut protocol = Protocol::Nbd(Nbd::Agreed(nbd::terms()));
    protocol.bind(Binding { id: VolumeId::from_bits(1), volume: 0, line: None });
    protocol
}

/// What the client sends for a request, without its payload.
pub fn request(request: &Request) -> Vec<u8> {
    nbd::head(1, request).encode().to_vec()
}

/// What the client sends to end the connection.
pub fn farewell() -> Vec<u8> {
    nbd::farewell().encode().to_vec()
}
