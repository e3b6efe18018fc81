//! TLS between the server and its clients: the API over HTTPS, and NBD with certificates of hosts.
//!
//! | module | contents |
//! | --- | --- |
//! | [`pem`] | certificates and keys in files, in PEM form |
//! | [`server`] | the server's certificate, read again when its files change |
//! | [`host_name`] | the host in a client's certificate |
//! | [`validity`] | whether certificates are valid |
//! | [`authority`] | a local authority: its certificate, those of servers and of hosts |
//! | [`session`] | TLS on a socket, without a thread of its own |
//! | [`nbd`] | NBD over TLS: it accepts clients and passes their bytes to the data plane |
//!
//! Cryptography is ring's, as everywhere in this program.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod authority;
pub mod host_name;
pub mod nbd;
pub mod pem;
pub mod server;
mod session;
mod validity;

use rustls::crypto::CryptoProvider;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Why a file of certificates or keys cannot be used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TlsError {
    /// The file.
    pub file: PathBuf,
    /// The reason.
    pub problem: String,
}

impl TlsError {
    /// Creates the error of a file.
    pub fn new(file: &Path, problem: impl ToString) -> Self {
        Self { file: file.into(), problem: problem.to_string() }
    }
}

impl fmt::Display for TlsError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.file.display(), self.problem)
    }
}

impl std::error::Error for TlsError {}

/// Returns the cryptography of all connections.
#[must_use]
pub fn provider() -> Arc<CryptoProvider> {
    Arc::new(rustls::crypto::ring::default_provider())
}
