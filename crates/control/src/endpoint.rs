//! Where clients of the data plane connect: an address as DescribeEndpoints returns it.

use std::net::SocketAddr;
use std::path::PathBuf;

/// Where clients of the data plane connect.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Endpoint {
    /// NBD over TCP; an unspecified address means all addresses of the machine.
    NbdTcp(SocketAddr),
    /// NBD over a unix socket.
    NbdUnix(PathBuf),
}
