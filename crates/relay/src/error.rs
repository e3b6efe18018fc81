//! Why a front does not start.

use evenkeel_link::LinkError;
use std::fmt;
use std::io;
use std::net::SocketAddr;

/// Why a front does not start.
#[derive(Debug)]
pub enum RelayError {
    /// The address cannot be listened on.
    Listen(SocketAddr, io::Error),
    /// The address is not a loopback address, and there is no TLS.
    Plain(SocketAddr),
    /// A file of keys or certificates cannot be used.
    Tls(LinkError),
    /// A thread or a descriptor was refused.
    Resources(io::Error),
}

impl fmt::Display for RelayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Listen(address, error) => write!(f, "cannot listen on {address}: {error}"),
            Self::Plain(address) => write!(
                f,
                "{address} is reached by other machines, and without TLS any of them could read \
                 and write every volume; name a certificate, its key and the CA, or use 127.0.0.1"
            ),
            Self::Tls(error) => write!(f, "{error}"),
            Self::Resources(error) => write!(f, "the system refuses a thread or a file: {error}"),
        }
    }
}

impl std::error::Error for RelayError {}
