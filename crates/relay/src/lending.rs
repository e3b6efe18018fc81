//! Clients whose volume this node's data plane serves: it gets their sockets, and serves them as if
//! it had accepted them. They come back when it gives the volume up.
//!
//! While another node serves a volume, the front keeps every request, since that node may die. When
//! this node dies, the front dies with it, so a copy of its own would protect nothing, and cost
//! time. What a data plane has not begun it hands back with the socket.

use std::os::fd::OwnedFd;

/// Lends a client in place of one connection to the data plane.
pub trait Lender: Send + Sync {
    /// Has a client's socket take the connection's place when that ends. Everything on it is
    /// answered and read. Does not wait. What cannot be lent comes back as it is.
    fn lend(&self, loan: Loan);

    /// Asks for the client back, as one whose volume is given up. Nothing happens if it is not
    /// lent. Does not wait.
    fn recall(&self);
}

/// A client's connection that is lent.
pub struct Loan {
    /// Its socket, which blocks.
    pub client: OwnedFd,
    /// What it has sent that is not served yet: at most
    /// [`evenkeel_core::limits::LENT_UNREAD_BYTES_MAX`].
    pub unread: Vec<u8>,
    /// To be called when the connection comes back; to be dropped when it has ended.
    pub back: Box<dyn FnOnce(Returned) + Send>,
}

/// A client's connection that is lent no more. What it was not answered was not begun.
#[derive(Debug)]
pub struct Returned {
    /// Its socket.
    pub client: OwnedFd,
    /// Replies that the client has not been sent, from the byte on that is next.
    pub unsent: Vec<u8>,
    /// What the client has sent that has had no effect: whole requests, and the beginning of one.
    pub unread: Vec<u8>,
    /// So many bytes that come after `unread` are payload of a request that was refused.
    pub skipped: u32,
}
