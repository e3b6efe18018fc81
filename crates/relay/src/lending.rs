//! Clients whose volume this node's data plane serves. It gets their sockets, and serves them as if
//! it had accepted them. They return when it gives the volume up.
//!
//! While another node serves a volume, the front keeps every request, since that node may fail. If
//! this node fails, its front fails too, so a copy in the front would protect nothing and cost
//! time. The data plane returns requests that it has not begun, together with the socket.

use std::os::fd::OwnedFd;

/// Lends a client in place of one connection to the data plane.
pub trait Lender: Send + Sync {
    /// Gives a client's socket the place of the connection when the connection ends. Everything on
    /// the connection is answered and read. Does not wait. A client that cannot be lent comes back
    /// unchanged.
    fn lend(&self, loan: Loan);

    /// Asks the data plane to return the client as if its volume were given up. Does nothing if the
    /// client is not lent. Does not wait.
    fn recall(&self);
}

/// A client's connection that is lent.
pub struct Loan {
    /// Its socket, which blocks.
    pub client: OwnedFd,
    /// Bytes that it has sent and that are not served yet: at most
    /// [`evenkeel_core::limits::LENT_UNREAD_BYTES_MAX`].
    pub unread: Vec<u8>,
    /// Called when the connection comes back; dropped when the connection has ended.
    pub back: Box<dyn FnOnce(Returned) + Send>,
}

/// A client's connection that is no longer lent. Requests without a reply were not begun.
#[derive(Debug)]
pub struct Returned {
    /// Its socket.
    pub client: OwnedFd,
    /// Replies that the client has not received, beginning with the next byte that it must receive.
    pub unsent: Vec<u8>,
    /// Bytes that the client has sent and that had no effect: whole requests, then the beginning of
    /// one.
    pub unread: Vec<u8>,
    /// Number of bytes after `unread` that are payload of a request that was refused.
    pub skipped: u32,
}
