//! Addresses of NBD exports.

use std::ffi::OsString;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::unix::ffi::OsStringExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use crate::{LabError, child};
use evenkeel_wire::nbd::uri;

/// Longest wait until a server reports the size of an export.
const ANSWER_MAX: Duration = Duration::from_secs(20);

/// A volume behind a server's unix socket.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Export {
    /// The path of the server's socket.
    pub socket: PathBuf,
    /// The export's name.
    pub name: String,
}

impl Export {
    /// Returns its address.
    #[must_use]
    pub fn uri(&self) -> NbdUri {
        NbdUri::unix(&self.socket, &self.name)
    }
}

/// The address of an NBD export, as fio, qemu and libnbd take it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NbdUri(String);

impl NbdUri {
    /// Returns the address of an export behind a unix socket. The socket's path should be absolute.
    #[must_use]
    pub fn unix(socket: &Path, export: &str) -> Self {
        Self(uri::unix(&socket.to_string_lossy(), export))
    }

    /// Returns the address of an export behind a TCP port.
    #[must_use]
    pub fn tcp(address: SocketAddr, export: &str) -> Self {
        Self(uri::tcp(&address.to_string(), export))
    }

    /// Parses an address from a user: `nbd://host:port/export`, `nbd+unix:///export?socket=path`.
    ///
    /// # Errors
    /// [`LabError::BadTarget`] if it has another scheme.
    pub fn parse(text: &str) -> Result<Self, LabError> {
        let schemes = ["nbd://", "nbd+unix://"];
        if schemes.iter().any(|scheme| text.starts_with(scheme)) {
            Ok(Self(text.to_owned()))
        } else {
            Err(LabError::BadTarget {
                name: text.to_owned(),
                why: "it is no NBD address".to_owned(),
                hint: "write nbd://HOST:PORT/EXPORT or nbd+unix:///EXPORT?socket=PATH".to_owned(),
            })
        }
    }

    /// Returns the address as text.
    #[must_use]
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Returns whether its server is certainly on another machine; a host name may be this one's.
    pub(crate) fn is_elsewhere(&self) -> bool {
        let Some(after) = self.0.strip_prefix("nbd://") else { return false };
        let host = after.split('/').next().unwrap_or_default();
        let host = host.rsplit('@').next().unwrap_or_default();
        let address = host.parse::<SocketAddr>().map(|address| address.ip());
        let address = address.or_else(|_| host.trim_matches(['[', ']']).parse::<IpAddr>());
        // A socket can be bound to an address of this machine only.
        address.is_ok_and(|ip| UdpSocket::bind((ip, 0)).is_err())
    }

    /// Returns the process that listens at its socket, if that is a unix socket of this machine.
    #[must_use]
    pub fn server(&self) -> Option<u32> {
        let (_, socket) = self.0.strip_prefix("nbd+unix://")?.split_once("?socket=")?;
        let stream = UnixStream::connect(unescape(socket.split('&').next()?)).ok()?;
        let peer = rustix::net::sockopt::socket_peercred(&stream).ok()?;
        // Process 1 listens for services, and does not report which one it starts.
        u32::try_from(peer.pid.as_raw_nonzero().get()).ok().filter(|pid| *pid > 1)
    }

    /// Returns the size of the export in bytes, as its server reports it to `nbdinfo`.
    ///
    /// # Errors
    /// When that program is missing, or the server does not answer within 20 seconds.
    pub fn size_bytes(&self) -> Result<u64, LabError> {
        let mut command = Command::new("nbdinfo");
        let told = command.args(["--size", self.as_str()]);
        let output = child::run_within(ANSWER_MAX, told, "libnbd-bin")?;
        let what = || format!("a size: {}", output.trim());
        output.trim().parse().map_err(|_| LabError::BadOutput { tool: "nbdinfo", what: what() })
    }
}

/// Decodes the percent-encoding of [`uri`]. Anything else stays as it is.
fn unescape(text: &str) -> OsString {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let is_hex = |hex: &&[u8]| hex.iter().all(u8::is_ascii_hexdigit);
        let encoded = after.get(..2).filter(|hex| *first == b'%' && is_hex(hex));
        let byte = encoded.and_then(|hex| u8::from_str_radix(str::from_utf8(hex).ok()?, 16).ok());
        bytes.push(byte.unwrap_or(*first));
        rest = if byte.is_some() { &after[2..] } else { after };
    }
    OsString::from_vec(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn server_process_of_an_address_is_found() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("a b%");
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        let uri = NbdUri::unix(&socket, "vol-0a");
        assert_eq!(unescape("a%20b%"), "a b%");
        assert_eq!((uri.server(), uri.is_elsewhere()), (Some(std::process::id()), false));
        assert_eq!(NbdUri::unix(&folder.path().join("none"), "x").server(), None);
        assert_eq!(unescape("%+f%41"), "%+fA");
        let own = ["127.0.0.1:10809", "127.0.0.1", "localhost", "0.0.0.0:1", "", "me@127.0.0.1"];
        for here in own.map(|host| format!("nbd://{host}/x")) {
            assert!(!NbdUri::parse(&here).unwrap().is_elsewhere(), "{here}");
        }
        // These addresses are reserved for documentation.
        for there in ["nbd://192.0.2.7:10809/x", "nbd://192.0.2.7/x", "nbd://[2001:db8::7]:1/x"] {
            assert!(NbdUri::parse(there).unwrap().is_elsewhere(), "{there}");
        }
    }
}
