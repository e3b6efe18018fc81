//! The agent protocol over TCP. [`AgentServer`] makes any [`Agent`] of a data plane reachable
//! through a socket. [`RemoteAgent`] is an [`Agent`] for control that passes commands to it.
//!
//! ```text
//!  control ── RemoteAgent ──── TCP, TLS ──── AgentServer ── Agent ── the data plane
//!                │  hello: cluster, node, leader, generation │
//!                │  number, command ──▶          gate: leader, running commands
//!                │            ◀── number, reply              │
//! ```
//!
//! Guarantees:
//!
//! - A node executes no command of a leader once it has received a higher generation. Commands that
//!   it had begun continue, and a later command that changes the same thing is not begun before
//!   they end.
//! - A command is sent once. If its reply is lost, the error is [`FailedKind::Unanswered`], and so
//!   is that of each later command about the same thing that cannot be sent. [`FailedKind::Down`]
//!   means that the command has no effect, now and later.
//! - A data plane that was restarted gets no command before control confirms that it knows of the
//!   restart ([`RemoteAgent::accept_restart`]).
//! - Every queue and buffer has a bound, in `core::limits`, and every wait has a limit.
//!
//! [`Agent`]: evenkeel_wire::agent::Agent
//! [`FailedKind::Unanswered`]: evenkeel_wire::agent::FailedKind::Unanswered
//! [`FailedKind::Down`]: evenkeel_wire::agent::FailedKind::Down
#![deny(missing_docs)]

mod channel;
mod client;
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

/// Times that each side waits. Both ends have the same ones.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Timing {
    /// From the connection to the end of hello and answer.
    pub handshake: Duration,
    /// Without a byte from the other side, before the connection is closed. Each side sends at
    /// least three times as often. Both sides use the node's value.
    pub silence: Duration,
    /// For one packet to be sent, or to arrive after its first byte.
    pub packet: Duration,
    /// Of control for a command's reply while the connection lives. Longer than the data plane
    /// waits for its disks.
    pub command: Duration,
    /// Of a command for a connection, or for room in it.
    pub patience: Duration,
    /// Before the second attempt to connect; doubles with each attempt.
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
