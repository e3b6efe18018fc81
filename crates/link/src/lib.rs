//! The agent protocol over TCP. [`AgentServer`] puts any [`Agent`] behind a socket, at the data
//! plane; [`RemoteAgent`] is one for control that reaches it.
//!
//! ```text
//!  control ── RemoteAgent ──── TCP, TLS ──── AgentServer ── Agent ── the data plane
//!                │  hello: cluster, node, leader, generation │
//!                │  number, command ──▶          gate: who leads, what runs
//!                │            ◀── number, reply              │
//! ```
//!
//! What holds:
//!
//! - A node executes no command of a leader once it has heard of one with a higher generation. What
//!   it had begun runs on, and a later command that changes the same thing waits for its end.
//! - A command is sent once. One whose answer is lost is [`FailedKind::Unanswered`], and so is each
//!   later one about the same thing that cannot be sent; [`FailedKind::Down`] means that nothing
//!   has happened or will.
//! - A data plane that was restarted gets no command before control says that it knows
//!   ([`RemoteAgent::accept_restart`]).
//! - Every queue and buffer has a bound, in `core::limits`; nobody waits without one.
//!
//! [`Agent`]: evenkeel_wire::agent::Agent
//! [`FailedKind::Unanswered`]: evenkeel_wire::agent::FailedKind::Unanswered
//! [`FailedKind::Down`]: evenkeel_wire::agent::FailedKind::Down
#![deny(missing_docs)]

mod channel;
mod client;
mod clock;
mod error;
mod generation;
mod greeting;
mod in_doubt;
mod leader_check;
mod server;
mod tls;

pub use client::{ClientConfig, RemoteAgent, Status};
pub use error::LinkError;
pub use greeting::nonce;
pub use server::{AgentServer, Confirm, ServerConfig};
pub use tls::{TlsFiles, server_name};

use std::time::Duration;

/// How long each side waits. Both ends have the same.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// From the connection to the end of hello and answer.
    pub handshake: Duration,
    /// Without a byte from the other side, until the connection is given up. Each side sends
    /// something three times as often. The node's counts for both.
    pub silence: Duration,
    /// For one packet to be sent, or to arrive once it has begun.
    pub packet: Duration,
    /// Of control for a command's answer while the connection lives: longer than the data plane
    /// waits for its disks.
    pub command: Duration,
    /// Of a command for a connection, or for its turn.
    pub patience: Duration,
    /// Before the second attempt to connect; it doubles with each.
    pub retry_first: Duration,
    /// The longest wait between two attempts.
    pub retry_longest: Duration,
}

impl Default for Timing {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(5),
            silence: Duration::from_secs(3),
            packet: Duration::from_secs(30),
            command: Duration::from_secs(90),
            patience: Duration::from_secs(1),
            retry_first: Duration::from_millis(100),
            retry_longest: Duration::from_secs(5),
        }
    }
}
