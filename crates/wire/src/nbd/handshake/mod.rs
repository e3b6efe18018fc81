//! The handshake: two state machines that agree on an export, [`Server`] and [`Client`].
//!
//! Both are used the same way. The caller passes received bytes and executes the returned steps:
//!
//! ```text
//! loop {
//!     while let Some(step) = machine.poll_output() { carry it out; leave after Ready or Close }
//!     input = what arrived and was not consumed, or what arrives next
//!     consumed = machine.handle(input)
//! }
//! ```
//!
//! `handle` stops consuming as soon as there is a step to poll. So a machine holds at most one
//! option (or one reply) of input and the answer to one option as output. Bytes after the handshake
//! stay with the caller: they are the beginning of the transmission phase.
//!
//! This module bounds bytes. The caller bounds time and disconnects a silent peer.

mod client;
mod client_outcome;
mod message;
mod options;
mod server;
mod server_outcome;

pub use client::Client;
pub use client_outcome::{
    ClientClose, ClientGoal, ClientPlan, ClientStep, ClientViolation, RemoteBlockSizes,
    RemoteExport, RemoteName,
};
pub use message::transmission_flags;
pub use server::Server;
pub use server_outcome::{Choice, CloseReason, Listed, Negotiated, ServerStep};
