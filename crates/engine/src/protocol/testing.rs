//! Parts of an NBD client for unit tests of the reactor.

use super::nbd::{Nbd, testing as nbd};
use super::{Binding, Protocol};
use crate::table::VolumeSlot;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::request::Request;

/// Returns the protocol of a connection that is bound to the volume in slot 0.
pub fn serving() -> Protocol {
    let mut protocol = Protocol::Nbd(Nbd::Agreed(nbd::terms()));
    protocol.bind(Binding {
        id: VolumeId::from_bits(1),
        volume: VolumeSlot::for_test(0),
        line: None,
    });
    protocol
}

/// Returns the bytes of a request, without its payload.
pub fn request(request: &Request) -> Vec<u8> {
    nbd::head(1, request).encode().to_vec()
}

/// Returns the bytes of the request that ends the connection.
pub fn farewell() -> Vec<u8> {
    nbd::farewell().encode().to_vec()
}
