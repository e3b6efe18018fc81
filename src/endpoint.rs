//! Where the API of a data folder is reached: the server notes it there while it runs, so that who
//! knows the folder needs no port, and one that took another port than usual is found.

use crate::cli::Connection;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// Where it is when nobody says anything else.
const USUAL: &str = "http://127.0.0.1:8650";

/// Name of the file in the data folder.
const FILE_NAME: &str = "endpoint";

/// The address that a verb is to ask: the one that is named, else that of the server on the data
/// folder, else the usual one.
pub fn of(connection: &Connection) -> String {
    let noted = || noted(&connection.data_dir);
    connection.endpoint.clone().or_else(noted).unwrap_or_else(|| USUAL.to_owned())
}

/// What the server on a data folder noted; `None` without a note. One that a crash left behind
/// names a server that does not answer.
pub fn noted(data_dir: &Path) -> Option<String> {
    let text = std::fs::read_to_string(data_dir.join(FILE_NAME)).ok()?;
    // Written whole, but a full disk may have left it empty.
    text.strip_suffix('\n').map(str::to_owned)
}

/// The note of a running server, taken back when it is dropped. One that a crash left behind is
/// written over by the next start.
pub struct Noted(PathBuf);

impl Noted {
    /// Notes where the API listens.
    pub fn new(data_dir: &Path, api: SocketAddr) -> io::Result<Self> {
        let noted = Self(data_dir.join(FILE_NAME));
        std::fs::write(&noted.0, format!("http://{}\n", reachable(api)))?;
        Ok(noted)
    }
}

impl Drop for Noted {
    fn drop(&mut self) {
        // What cannot be removed is at worst an address at which nobody answers.
        let _ = std::fs::remove_file(&self.0);
    }
}

/// An address at which somebody on this machine reaches who listens on `address`.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(match address.ip() {
            IpAddr::V4(_) => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V6(_) => Ipv6Addr::LOCALHOST.into(),
        });
    }
    address
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_named_comes_first_then_what_is_noted_then_the_usual() {
        let folder = tempfile::tempdir().unwrap();
        let connection = |endpoint: Option<&str>| Connection {
            endpoint: endpoint.map(str::to_owned),
            data_dir: folder.path().to_owned(),
            region: String::new(),
        };
        assert_eq!(of(&connection(None)), USUAL);
        let noted = Noted::new(folder.path(), "0.0.0.0:4000".parse().unwrap()).unwrap();
        assert_eq!(of(&connection(None)), "http://127.0.0.1:4000");
        assert_eq!(of(&connection(Some("http://a:1"))), "http://a:1");
        std::fs::write(&noted.0, "").unwrap();
        assert_eq!(of(&connection(None)), USUAL);
        drop(noted);
        assert!(!folder.path().join(FILE_NAME).exists());
        assert_eq!(reachable("[::]:1".parse().unwrap()), "[::1]:1".parse().unwrap());
    }
}
