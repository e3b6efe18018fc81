//! Endpoints of the data plane: the addresses that DescribeEndpoints returns.

use std::net::SocketAddr;
use std::path::PathBuf;

/// An address at which clients reach the data plane.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Endpoint {
    /// NBD over TCP; an unspecified address means all addresses of the machine.
    NbdTcp(SocketAddr),
    /// NBD over TLS; an unspecified address as above.
    NbdTls(SocketAddr),
    /// NBD over a unix socket.
    NbdUnix(PathBuf),
}
