//! The address and the region of the API of a data folder. The server writes them into a file when
//! it starts, so a verb that knows the folder needs neither, and finds a server on any port. The
//! file stays when the server stops: verbs then name the address at which it was.

use crate::flags::Connection;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::{Path, PathBuf};

/// The default address.
const USUAL: &str = "http://127.0.0.1:8650";

/// The region of a server that is started without one.
pub const DEFAULT_REGION: &str = "local-1";

/// Name of the file in the data folder.
const FILE_NAME: &str = "endpoint";

/// The address that a verb uses: the given one, or that of the server on the data folder, or the
/// default.
pub fn of(connection: &Connection) -> String {
    let noted = || noted(connection.data_folder());
    connection.endpoint.clone().or_else(noted).unwrap_or_else(|| USUAL.to_owned())
}

/// The region that a verb uses: the given one, or that of the server on the data folder, or the
/// default.
pub fn region(connection: &Connection) -> String {
    let noted = || noted_region(connection.data_folder());
    connection.region.clone().or_else(noted).unwrap_or_else(|| DEFAULT_REGION.to_owned())
}

/// The file of authorities that a verb trusts: the given one, or that of the server on the data
/// folder.
pub fn authorities(connection: &Connection) -> Option<PathBuf> {
    connection.ca.clone().or_else(|| noted_authorities(connection.data_folder()))
}

/// The address in the file of a data folder; `None` without a file. The file of a stopped server
/// names an address that does not answer.
pub fn noted(data_dir: &Path) -> Option<String> {
    line(data_dir, 0)
}

/// The region in the file of a data folder; `None` without a file.
pub fn noted_region(data_dir: &Path) -> Option<String> {
    line(data_dir, 1)
}

/// The file of authorities in the file of a data folder; `None` without TLS, or without a file.
pub fn noted_authorities(data_dir: &Path) -> Option<PathBuf> {
    line(data_dir, 2).map(PathBuf::from)
}

/// A line of the file; `None` if it is not whole, because a full disk may have cut the file.
fn line(data_dir: &Path, index: usize) -> Option<String> {
    let text = std::fs::read_to_string(data_dir.join(FILE_NAME)).ok()?;
    let line = text.split_inclusive('\n').nth(index)?;
    line.strip_suffix('\n').map(str::to_owned)
}

/// How clients reach the API.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scheme<'a> {
    /// Without TLS.
    Http,
    /// Over TLS, with the file of the authorities of its certificate, if the server knows it.
    Https(Option<&'a Path>),
}

/// Writes the address and the region of the API into the file, and the authorities of its
/// certificate.
///
/// # Errors
/// The file cannot be written.
pub fn note(data_dir: &Path, api: SocketAddr, region: &str, scheme: Scheme<'_>) -> io::Result<()> {
    let api = reachable(api);
    let text = match scheme {
        Scheme::Http => format!("http://{api}\n{region}\n"),
        Scheme::Https(None) => format!("https://{api}\n{region}\n"),
        Scheme::Https(Some(authorities)) => {
            format!("https://{api}\n{region}\n{}\n", authorities.display())
        }
    };
    std::fs::write(data_dir.join(FILE_NAME), text)
}

/// An address at which a client on this machine reaches a server that listens on `address`.
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
            ca: None,
            data_dir: folder.path().to_owned(),
            region: None,
        };
        assert_eq!(of(&connection(None)), USUAL);
        assert_eq!(region(&connection(None)), DEFAULT_REGION);
        let api = "0.0.0.0:4000".parse().unwrap();
        let ca = Path::new("/a/ca-cert.pem");
        note(folder.path(), api, "eu-1", Scheme::Https(Some(ca))).unwrap();
        assert_eq!(of(&connection(None)), "https://127.0.0.1:4000");
        assert_eq!(authorities(&connection(None)).as_deref(), Some(ca));
        note(folder.path(), api, "eu-1", Scheme::Http).unwrap();
        assert_eq!(authorities(&connection(None)), None);
        assert_eq!(region(&connection(None)), "eu-1");
        assert_eq!(of(&connection(None)), "http://127.0.0.1:4000");
        assert_eq!(of(&connection(Some("http://a:1"))), "http://a:1");
        let file = folder.path().join(FILE_NAME);
        std::fs::write(&file, "http://a:1\neu").unwrap();
        assert_eq!(region(&connection(None)), DEFAULT_REGION);
        std::fs::write(&file, "").unwrap();
        assert_eq!(of(&connection(None)), USUAL);
        assert_eq!(reachable("[::]:1".parse().unwrap()), "[::1]:1".parse().unwrap());
    }
}
