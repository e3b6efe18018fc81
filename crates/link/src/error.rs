//! Errors at the start of either side of the link.

use evenkeel_tls::TlsError;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Why a side of the link cannot be started.
#[derive(Debug)]
pub enum LinkError {
    /// The address cannot be listened on.
    Listen(SocketAddr, io::Error),
    /// The address is not a loopback address, and there is no TLS.
    Plain(SocketAddr),
    /// A file of keys or certificates cannot be used.
    Tls(TlsError),
    /// The file of the highest generation cannot be read or written.
    Generation {
        /// The file.
        file: PathBuf,
        /// The reason.
        problem: String,
    },
    /// A thread or a descriptor was refused.
    Resources(io::Error),
}

impl fmt::Display for LinkError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(address, error) => write!(f, "cannot listen on {address}: {error}"),
            Self::Plain(address) => write!(
                f,
                "{address} is reached by other machines, and without TLS any of them could \
                 command this node; name a certificate, its key and the CA, or use 127.0.0.1"
            ),
            Self::Tls(error) => error.fmt(f),
            Self::Generation { file, problem } => write!(
                f,
                "{}, the highest generation of a leader that this node has heard: {problem}",
                file.display()
            ),
            Self::Resources(error) => write!(f, "the system refuses a thread or a file: {error}"),
        }
    }
}

impl std::error::Error for LinkError {}
