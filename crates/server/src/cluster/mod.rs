//! A server that is a node of a cluster: volumes are on Ceph, the journal in etcd, and any node
//! serves any volume. [`Cluster`] is its configuration. `member` is the life of a node, `routes`
//! the places of volumes for clients, and `history` its copies of the leader's recordings. The
//! parts without the server's configuration are in the crate `cluster`.

mod history;
pub(crate) mod member;
mod routes;
mod serving;
mod settings;
mod shared;
mod term;

use crate::private_file;
use evenkeel_cli::etcd::{CLUSTER, Etcd};
use evenkeel_cli::store::{Bytes, StoreKind};
use evenkeel_client::output::{Exit, Failure, failed};
use evenkeel_cluster::etcd::client::{Client, Options, TlsFiles};
use evenkeel_cluster::etcd::keys::Keys;
use evenkeel_cluster::kv::Kv;
use evenkeel_cluster::nodes;
use evenkeel_core::qos::admission::DomainFloor;
use evenkeel_wire::agent::{Capacity, Measured};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;

/// Bytes in a million bits.
const MEGABIT_BYTES: u64 = 125_000;
/// Maximum size of a password in bytes.
const PASSWORD_BYTES_MAX: usize = 1_024;

/// The cluster that a server belongs to.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// Its name.
    name: String,
    /// The name of this node.
    node: String,
    /// Addresses at which other nodes reach this one: of its agent, and of the clients that they
    /// relay.
    listen: [SocketAddr; 2],
    /// Certificates and keys for connections between nodes.
    tls: Option<evenkeel_link::TlsFiles>,
    /// Bandwidth of its network, in megabits per second; `None` if that is not limited.
    network_mbps: Option<u32>,
    options: Options,
}

fn usage(message: String) -> Failure {
    Failure::new(message).exit(Exit::Usage)
}

impl Cluster {
    /// Reads the flags of a cluster; none without endpoints of etcd.
    ///
    /// # Errors
    /// If flags do not fit together, or name files that cannot be used.
    pub fn of(arguments: &Etcd, store: &StoreKind) -> Result<Option<Self>, Failure> {
        if arguments.etcd.is_empty() {
            return alone(arguments);
        }
        if store.bytes != Bytes::Rbd {
            let message = format!("etcd: the bytes of the store \"{store}\" are on one machine");
            let hint = "serve with --store rbd, or leave out --etcd";
            return Err(usage(message).hint(hint));
        }
        let name = arguments.cluster.clone().unwrap_or_else(|| CLUSTER.to_owned());
        Keys::of(&name).map_err(usage)?;
        let host = || rustix::system::uname().nodename().to_string_lossy().into_owned();
        let node = arguments.node.clone().unwrap_or_else(host);
        let options = Options {
            endpoints: arguments.etcd.clone(),
            user: user(arguments)?,
            tls: tls(arguments)?,
        };
        // Unusable options are refused before any wait.
        Client::new(&options).map_err(|error| usage(format!("etcd: {error}")))?;
        nodes::check_name(&node).map_err(|why| usage(format!("node: {why}")))?;
        let tls = node_tls(arguments)?;
        let listen = node_listen(arguments, tls.is_some())?;
        let network_mbps = arguments.node_network_mbps;
        Ok(Some(Self { name, node, listen, tls, network_mbps, options }))
    }

    /// Limits the capacity by this node's network. The data that a client reads arrives from Ceph
    /// and leaves to the client; written data flows the other way. So each direction carries both,
    /// of which the books count one.
    pub(crate) fn with_network(&self, capacity: Capacity) -> Capacity {
        let bytes = self.network_mbps.map(|mbps| u64::from(mbps) * MEGABIT_BYTES / 2);
        match capacity {
            Capacity::Measured(measured) => Capacity::Measured(Box::new(Measured {
                domain: DomainFloor {
                    network_in_bytes_per_second: bytes,
                    network_out_bytes_per_second: bytes,
                    ..measured.domain
                },
                ..*measured
            })),
            Capacity::Unknown => Capacity::Unknown,
        }
    }

    /// Returns the cluster's part of etcd.
    pub(crate) fn kv(&self) -> Result<Kv, Failure> {
        let keys = Keys::of(&self.name).map_err(Failure::new)?;
        Ok(Kv { client: Client::new(&self.options).map_err(failed)?, keys })
    }
}

/// Returns the two addresses for other nodes.
fn node_listen(arguments: &Etcd, has_tls: bool) -> Result<[SocketAddr; 2], Failure> {
    let loopback = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
    let first = arguments.node_listen.unwrap_or(loopback);
    if first.ip().is_unspecified() {
        let message = format!("node-listen: other nodes cannot connect to {}", first.ip());
        return Err(usage(message).hint("name an address of this machine that they reach"));
    }
    if !first.ip().is_loopback() && !has_tls {
        let message = format!("node-listen: other machines reach {first}, and there is no TLS");
        return Err(usage(message).hint("name --node-cert, --node-key and --node-ca"));
    }
    let second = match first.port() {
        0 => Some(0),
        port => port.checked_add(1),
    };
    let second = second.ok_or_else(|| {
        usage(format!("node-listen: {first} is followed by no port; name a lower one"))
    })?;
    Ok([first, SocketAddr::new(first.ip(), second)])
}

/// Returns the files for TLS between nodes.
fn node_tls(arguments: &Etcd) -> Result<Option<evenkeel_link::TlsFiles>, Failure> {
    let Etcd { node_cert, node_key, node_ca, .. } = arguments;
    match (node_cert, node_key, node_ca) {
        (None, None, None) => Ok(None),
        (Some(certificate), Some(key), Some(authority)) => {
            private_file::check("node-key", key)?;
            Ok(Some(evenkeel_link::TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                authority: authority.clone(),
            }))
        }
        _ => Err(usage("node-cert, node-key and node-ca: name all three, or none".to_owned())),
    }
}

/// Returns no cluster, or an error if other flags of a cluster are given without etcd.
fn alone(arguments: &Etcd) -> Result<Option<Cluster>, Failure> {
    let given = [
        ("cluster", arguments.cluster.is_some()),
        ("node", arguments.node.is_some()),
        ("node-listen", arguments.node_listen.is_some()),
        ("node-cert", arguments.node_cert.is_some()),
        ("node-key", arguments.node_key.is_some()),
        ("node-ca", arguments.node_ca.is_some()),
        ("node-network-mbps", arguments.node_network_mbps.is_some()),
        ("etcd-user", arguments.etcd_user.is_some()),
        ("etcd-password-file", arguments.etcd_password_file.is_some()),
        ("etcd-ca", arguments.etcd_ca.is_some()),
        ("etcd-cert", arguments.etcd_cert.is_some()),
        ("etcd-key", arguments.etcd_key.is_some()),
    ];
    match given.iter().find(|(_, is_given)| *is_given) {
        None => Ok(None),
        Some((flag, _)) => {
            let message = format!("{flag}: there is no etcd");
            Err(usage(message)
                .hint(format!("name its endpoints with --etcd, or leave out --{flag}")))
        }
    }
}

fn user(arguments: &Etcd) -> Result<Option<(String, String)>, Failure> {
    match (&arguments.etcd_user, &arguments.etcd_password_file) {
        (None, None) => Ok(None),
        (Some(name), Some(path)) => {
            if let Some(endpoint) = arguments.etcd.iter().find(|endpoint| is_open(endpoint)) {
                let message =
                    format!("etcd-user: {endpoint} would get the password without encryption");
                let hint = "name https:// endpoints and --etcd-ca; http:// is for loopback only";
                return Err(usage(message).hint(hint));
            }
            let password = private_file::read("etcd-password-file", path, 1, PASSWORD_BYTES_MAX)?;
            Ok(Some((name.clone(), password)))
        }
        _ => Err(usage("etcd-user and etcd-password-file: name both, or neither".to_owned())),
    }
}

/// Returns whether data that is sent to an endpoint is readable on the network.
fn is_open(endpoint: &str) -> bool {
    let Ok(url) = reqwest::Url::parse(endpoint) else { return true };
    let name = url.host_str().unwrap_or_default().trim_matches(['[', ']']);
    let is_here = match name.parse::<IpAddr>() {
        Ok(ip) => ip.to_canonical().is_loopback(),
        Err(_) => name == "localhost",
    };
    url.scheme() != "https" && !is_here
}

fn tls(arguments: &Etcd) -> Result<Option<TlsFiles>, Failure> {
    let Etcd { etcd_ca, etcd_cert, etcd_key, .. } = arguments;
    let own: Option<(PathBuf, PathBuf)> = match (etcd_cert, etcd_key) {
        (Some(certificate), Some(key)) => {
            private_file::check("etcd-key", key)?;
            Some((certificate.clone(), key.clone()))
        }
        (None, None) => None,
        _ => return Err(usage("etcd-cert and etcd-key: name both, or neither".to_owned())),
    };
    match (etcd_ca, own) {
        (Some(authorities), own) => Ok(Some(TlsFiles { authorities: authorities.clone(), own })),
        (None, None) => Ok(None),
        (None, Some(_)) => {
            Err(usage("etcd-cert: etcd-ca must name the certificates of etcd's side".to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    /// The flags of a server that its cluster depends on.
    #[derive(Parser)]
    struct Flags {
        #[command(flatten)]
        etcd: Etcd,
        #[arg(long, default_value = "local")]
        store: StoreKind,
    }

    fn refused(flags: &str) -> Failure {
        let line = format!("evenkeel {flags}");
        let arguments = Flags::parse_from(line.split(' '));
        let Err(failure) = Cluster::of(&arguments.etcd, &arguments.store) else {
            panic!("{flags} is taken")
        };
        failure
    }

    #[test]
    fn flags_that_do_not_fit_together_are_named() {
        let folder = tempfile::tempdir().unwrap();
        let readable = folder.path().join("readable");
        std::fs::write(&readable, "secret").unwrap();
        std::fs::set_permissions(&readable, Permissions::from_mode(0o644)).unwrap();
        let readable = readable.display();
        let etcd = "--store rbd --etcd http://127.0.0.1:1";
        for (flags, named) in [
            ("--etcd http://127.0.0.1:1".to_owned(), "etcd: the bytes of the store \"local\""),
            ("--node a".to_owned(), "node: there is no etcd"),
            ("--node-network-mbps 9".to_owned(), "node-network-mbps: there is no etcd"),
            ("--store rbd --etcd-ca x".to_owned(), "etcd-ca: there is no etcd"),
            (format!("{etcd} --cluster a/b"), "the cluster's name 'a/b'"),
            (format!("{etcd} --etcd-user x"), "etcd-user and etcd-password-file"),
            (format!("{etcd} --etcd-key x"), "etcd-cert and etcd-key"),
            (format!("{etcd} --etcd-cert x --etcd-key {readable}"), "etcd-key: others can use"),
            (format!("{etcd} --etcd-user x --etcd-password-file {readable}"), "-file: others can"),
            (format!("{etcd} --node-cert x --node-ca x --node-key {readable}"), "node-key: others"),
            ("--store rbd --etcd 127.0.0.1:1".to_owned(), "etcd: "),
            (format!("{etcd} --node a/b"), "node: the node's name 'a/b'"),
            (format!("{etcd} --node-listen 0.0.0.0:1"), "node-listen: other nodes cannot"),
            (format!("{etcd} --node-listen 10.0.0.1:1"), "and there is no TLS"),
            (format!("{etcd} --node-listen 127.0.0.1:65535"), "followed by no port"),
            (format!("{etcd} --node-ca x"), "node-cert, node-key and node-ca"),
        ] {
            let failure = refused(&flags);
            assert!(failure.message.contains(named), "{flags}: {}", failure.message);
            assert_eq!(failure.exit, Exit::Usage, "{flags}");
        }
    }

    #[test]
    fn a_password_is_sent_over_tls_or_loopback_only() {
        let user = "--etcd-user x --etcd-password-file /dev/null";
        for endpoints in ["http://10.0.0.1:2379", "https://a:1,http://etcd.localhost.example:1"] {
            let failure = refused(&format!("--store rbd --etcd {endpoints} {user}"));
            assert!(failure.message.contains("without encryption"), "{endpoints}: {failure}");
            assert!(failure.message.contains(endpoints.rsplit(',').next().unwrap()), "{failure}");
        }
        for endpoint in ["http://127.0.0.1:1", "http://[::1]:1", "http://localhost:1", "https://a"]
        {
            assert!(!is_open(endpoint), "{endpoint}");
        }
    }
}
