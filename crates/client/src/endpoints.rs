//! The addresses of volumes: the answer to DescribeEndpoints, converted for clients on this
//! machine.

use crate::Client;
use crate::output::Failure;
use evenkeel_wire::nbd::uri;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};

/// The NBD side of a server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Endpoints {
    /// `host:port` at which a client on this machine connects over TCP.
    tcp: Vec<String>,
    /// `host:port` at which a client connects over TLS, with the certificate of a host.
    tls: Vec<String>,
    /// Unix sockets on this machine.
    unix: Vec<PathBuf>,
    /// Addresses that only the server's own machine can reach, if this is another one.
    elsewhere: Vec<String>,
}

impl Endpoints {
    /// Reads the addresses from the server.
    pub fn of(client: &Client) -> Result<Self, Failure> {
        let answer = client.call("DescribeEndpoints", &[])?;
        let listed = answer.items("endpointSet").iter().filter_map(|item| {
            let is_nbd = item.child_text("protocol") == Some("nbd");
            item.child_text("transport").zip(item.child_text("address")).filter(|_| is_nbd)
        });
        Ok(Self::seen_from(client.host(), listed))
    }

    /// Converts the addresses of a server whose API is reached at `host`.
    fn seen_from<'a>(host: &str, listed: impl Iterator<Item = (&'a str, &'a str)>) -> Self {
        let is_here = is_this_machine(host);
        let mut endpoints = Self::default();
        for (transport, address) in listed {
            let over = match transport {
                "tls" => &mut endpoints.tls,
                _ => &mut endpoints.tcp,
            };
            match (transport, address.parse::<SocketAddr>()) {
                // An unspecified address means the host of the API.
                ("tcp" | "tls", Ok(ip)) if ip.ip().is_unspecified() => {
                    over.push(format!("{host}:{}", ip.port()));
                }
                ("tcp" | "tls", Ok(ip)) if is_here || !ip.ip().is_loopback() => {
                    over.push(address.to_owned());
                }
                ("unix", _) if is_here && Path::new(address).exists() => {
                    endpoints.unix.push(address.into());
                }
                _ => endpoints.elsewhere.push(address.to_owned()),
            }
        }
        endpoints
    }

    /// Returns the addresses over TCP and TLS, `host:port` each.
    pub fn addresses(&self) -> impl Iterator<Item = &str> {
        self.tcp.iter().chain(&self.tls).map(String::as_str)
    }

    /// The addresses of a volume from here: over TCP, over TLS, and over unix sockets.
    pub fn uris(&self, volume: &str) -> Vec<String> {
        let tcp = self.tcp.iter().map(|address| format!("nbd://{address}/{volume}"));
        let tls = self.tls.iter().map(|address| format!("nbds://{address}/{volume}"));
        tcp.chain(tls).chain(self.unix.iter().map(|path| unix_uri(path, volume))).collect()
    }

    /// The fastest address of a volume that needs no certificate: a unix socket if there is one.
    pub fn nearest(&self, volume: &str) -> Option<String> {
        let unix = self.unix.first().map(|path| unix_uri(path, volume));
        let tcp = || self.tcp.first().map(|address| format!("nbd://{address}/{volume}"));
        unix.or_else(tcp)
    }

    /// The addresses for the server's own machine, if that is not this one.
    pub fn elsewhere(&self) -> &[String] {
        &self.elsewhere
    }
}

fn unix_uri(path: &Path, volume: &str) -> String {
    uri::unix(&path.to_string_lossy(), volume)
}

/// Whether a host's name or address means this machine.
fn is_this_machine(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    host == "localhost" || bare.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_those_of_the_server_seen_from_here() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("nbd.sock");
        std::fs::write(&socket, "").unwrap();
        let socket = socket.to_str().unwrap();
        let listed = [
            ("tcp", "127.0.0.1:4000"),
            ("tcp", "0.0.0.0:4001"),
            ("tcp", "192.0.2.7:4002"),
            ("tls", "0.0.0.0:4003"),
            ("unix", socket),
            ("unix", "/nowhere/nbd.sock"),
        ];
        let from = |host| Endpoints::seen_from(host, listed.into_iter());
        let here = from("127.0.0.1");
        let unix = format!("nbd+unix:///vol-1?socket={socket}");
        let over = |hosts: [&str; 3]| hosts.map(|host| format!("nbd://{host}/vol-1")).to_vec();
        let mut all = over(["127.0.0.1:4000", "127.0.0.1:4001", "192.0.2.7:4002"]);
        all.push("nbds://127.0.0.1:4003/vol-1".to_owned());
        all.push(unix.clone());
        assert_eq!(here.uris("vol-1"), all);
        assert_eq!(here.nearest("vol-1"), Some(unix));
        let addresses: Vec<&str> = here.addresses().collect();
        let ports = ["127.0.0.1:4000", "127.0.0.1:4001", "192.0.2.7:4002", "127.0.0.1:4003"];
        assert_eq!(addresses, ports);
        assert_eq!(here.elsewhere(), ["/nowhere/nbd.sock"]);
        assert_eq!(from("[::1]").uris("vol-1")[1], "nbd://[::1]:4001/vol-1");
        let far = from("store.example");
        let uris = [
            "nbd://store.example:4001/vol-1",
            "nbd://192.0.2.7:4002/vol-1",
            "nbds://store.example:4003/vol-1",
        ];
        assert_eq!(far.uris("vol-1"), uris);
        assert_eq!(far.nearest("vol-1").as_deref(), Some(uris[0]));
        assert_eq!(far.elsewhere(), ["127.0.0.1:4000", socket, "/nowhere/nbd.sock"]);
        assert_eq!(Endpoints::default().nearest("vol-1"), None);
    }
}
