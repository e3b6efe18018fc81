//! Flags of a server that is a node of a cluster.

use clap::{Args, ValueHint};
use std::net::SocketAddr;
use std::path::PathBuf;

/// The etcd in which several servers keep their books, and which of them this is.
#[derive(Args, Clone, PartialEq, Eq, Debug, Default)]
pub struct Etcd {
    /// Endpoints of etcd, separated by commas: http://HOST:PORT or https://HOST:PORT. The control
    /// state is kept there, and servers that name the same cluster are its nodes: any of them
    /// serves any volume; docs/operating/cluster.md. Needs `--store rbd`.
    #[arg(long, env = "EVENKEEL_ETCD", value_name = "URL", value_delimiter = ',')]
    pub etcd: Vec<String>,

    /// The name of the cluster of servers; evenkeel by default.
    #[arg(long, env = "EVENKEEL_CLUSTER", value_name = "NAME")]
    pub cluster: Option<String>,

    /// The name of this server in the cluster; the host's name by default.
    #[arg(long, env = "EVENKEEL_NODE", value_name = "NAME")]
    pub node: Option<String>,

    /// Where other nodes reach this one: an address and a port, which the next port follows. By
    /// default 127.0.0.1 and free ports, for nodes on one machine. On others TLS is needed.
    #[arg(long, env = "EVENKEEL_NODE_LISTEN", value_name = "ADDRESS")]
    pub node_listen: Option<SocketAddr>,

    /// The certificate that this node shows other nodes, in PEM form, for the name
    /// node-NUMBER.evenkeel.
    #[arg(long, env = "EVENKEEL_NODE_CERT", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub node_cert: Option<PathBuf>,

    /// The key of that certificate, in PEM form.
    #[arg(long, env = "EVENKEEL_NODE_KEY", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub node_key: Option<PathBuf>,

    /// The certificates, in PEM form, with which those of nodes are signed.
    #[arg(long, env = "EVENKEEL_NODE_CA", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub node_ca: Option<PathBuf>,

    /// Bandwidth of this node's network in each direction, in megabits a second. It limits what is
    /// sold if all nodes have a figure, and is not counted by default.
    #[arg(long, env = "EVENKEEL_NODE_NETWORK_MBPS", value_name = "MBPS")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=10_000_000))]
    pub node_network_mbps: Option<u32>,

    /// The user of etcd, if it asks for one, with read and write rights on /evenkeel/CLUSTER/.
    #[arg(long, env = "EVENKEEL_ETCD_USER", value_name = "NAME")]
    pub etcd_user: Option<String>,

    /// A file with that user's password; a newline at its end is not part of it.
    #[arg(long, env = "EVENKEEL_ETCD_PASSWORD_FILE", value_name = "FILE")]
    #[arg(value_hint = ValueHint::FilePath)]
    pub etcd_password_file: Option<PathBuf>,

    /// The certificates, in PEM form, with which those of etcd are signed; for https.
    #[arg(long, env = "EVENKEEL_ETCD_CA", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub etcd_ca: Option<PathBuf>,

    /// The certificate of this server, in PEM form, if etcd asks for one.
    #[arg(long, env = "EVENKEEL_ETCD_CERT", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub etcd_cert: Option<PathBuf>,

    /// The key of that certificate, in PEM form.
    #[arg(long, env = "EVENKEEL_ETCD_KEY", value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub etcd_key: Option<PathBuf>,
}

/// The name of a cluster of servers, unless another one is named.
pub const CLUSTER: &str = "evenkeel";
