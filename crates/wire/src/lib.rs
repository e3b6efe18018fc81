//! Encoding and decoding of protocol messages, for both ends of each protocol. Pure: no sockets, no
//! clock, no threads.
//!
//! [`nbd`] is the block protocol, [`aws`] the grammar of the EC2 query API (without any EC2
//! action), [`agent`] the messages between control plane and data plane. Malformed input is an
//! error that names the position; it never panics.
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![deny(clippy::float_arithmetic, clippy::as_conversions)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod agent;
pub mod aws;
pub mod nbd;
