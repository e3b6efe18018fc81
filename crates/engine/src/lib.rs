//! The data plane: threads, sockets, clock. Not built yet: [`Engine::start`] says so, and every
//! verb that needs bytes served says so with it. The control plane, the pacing core and the NBD
//! codec stand without it.
#![deny(missing_docs)]

pub mod buffers;
pub mod clock;
pub mod reactor;
pub mod ring;
pub mod session;

use evenkeel_store::Pool;
use evenkeel_wire::agent::Agent;
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

/// How the data plane talks to the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum IoMode {
    /// One io_uring a core.
    Uring,
    /// System calls and worker threads, where io_uring is forbidden.
    Pread,
}

/// What the data plane serves, and where.
pub struct EngineConfig {
    /// Reactors, one a core.
    pub cores: u16,
    /// How to talk to the kernel.
    pub io: IoMode,
    /// NBD listeners; port 0 takes a free one.
    pub tcp: Vec<SocketAddr>,
    /// NBD on a unix socket at this path.
    pub unix: Option<PathBuf>,
    /// Where the bytes are.
    pub pool: Arc<dyn Pool>,
}

/// Why the data plane did not start.
#[derive(Debug)]
pub enum EngineError {
    /// This version has none.
    Absent,
}

impl fmt::Display for EngineError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Absent => f.write_str(
                "this version has no data plane yet; it comes with the next one (see CHANGELOG.md)",
            ),
        }
    }
}

impl std::error::Error for EngineError {}

/// A running data plane.
pub struct Engine {
    agent: Arc<dyn Agent>,
    tcp: Vec<SocketAddr>,
}

impl Engine {
    /// Starts serving.
    ///
    /// # Errors
    /// Always, in this version: [`EngineError::Absent`].
    pub fn start(_config: EngineConfig) -> Result<Self, EngineError> {
        Err(EngineError::Absent)
    }

    /// The data plane as the control plane sees it.
    #[must_use]
    pub fn agent(&self) -> Arc<dyn Agent> {
        Arc::clone(&self.agent)
    }

    /// The addresses that are listened on, with their real ports.
    #[must_use]
    pub fn tcp_addresses(&self) -> Vec<SocketAddr> {
        self.tcp.clone()
    }

    /// Stops serving.
    pub fn shutdown(self) {}
}
