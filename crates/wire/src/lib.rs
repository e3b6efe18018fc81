//! Bytes to meaning and back, for both ends of each protocol. Pure: no sockets, no clock, no
//! threads.
//!
//! [`nbd`] is the block protocol, [`aws`] the grammar of the EC2 query API (it knows no EC2
//! action),
//! [`agent`] what the control plane tells the data plane.
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
