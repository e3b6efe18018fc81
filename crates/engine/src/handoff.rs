//! Client sockets that a front lends to the data plane, and takes back when the volume is given up.
//!
//! The lender has accepted them and completed their handshakes, and serves them again when the data
//! plane gives their volume up. It first opens a connection of its own here, through the
//! [`crate::Entrance`], with the same terms. The client's socket then replaces that connection: it
//! keeps its slot, its terms and its volume, so nothing is counted or checked twice.
//!
//! The socket lies ready at a desk that both sides know. The end of the first connection is the
//! signal to take it: it comes after all other bytes there, on whichever core the connection is.

use crate::reactor::{Inbox, Message};
use evenkeel_core::connection_limits::ConnectionId;
use evenkeel_core::limits::LENT_UNREAD_BYTES_MAX;
use std::fmt;
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Returns a client to its lender.
pub type Back = Box<dyn FnOnce(Returned) + Send>;

/// A client's connection that is lent.
pub struct Loan {
    /// Its socket, which must block.
    pub client: OwnedFd,
    /// Bytes that the client has sent and that are not served yet: at most
    /// [`LENT_UNREAD_BYTES_MAX`].
    pub unread: Vec<u8>,
    /// Called once when the connection comes back; dropped if it has ended. It must not block.
    pub back: Back,
}

/// A client's connection that is not lent any more. Its requests without an answer were not begun.
#[derive(Debug)]
pub struct Returned {
    /// Its socket.
    pub client: OwnedFd,
    /// Replies that the client has not been sent yet, in full or in part.
    pub unsent: Vec<u8>,
    /// Bytes that the client has sent and that had no effect: whole requests, and the beginning of
    /// one.
    pub unread: Vec<u8>,
    /// Number of payload bytes after `unread` that belong to a refused request, and are to be
    /// skipped.
    pub skipped: u32,
}

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan").field("client", &self.client).finish_non_exhaustive()
    }
}

impl Loan {
    /// Returns the client unchanged to its lender.
    pub(crate) fn refuse(self) {
        let Self { client, unread, back } = self;
        back(Returned { client, unsent: Vec::new(), unread, skipped: 0 });
    }
}

#[derive(Debug, Default)]
enum Lying {
    #[default]
    Nothing,
    Loan(Loan),
    /// The connection has ended, or a client's socket has taken its place.
    Closed,
}

/// Place of a loan until a core takes it.
#[derive(Debug, Default)]
pub(crate) struct Desk(Mutex<Lying>);

impl Desk {
    fn lock(&self) -> MutexGuard<'_, Lying> {
        // Changed by single assignments, so a panicked holder left it whole.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn put(&self, loan: Loan) {
        let mut lying = self.lock();
        let refused = match &*lying {
            Lying::Nothing if loan.unread.len() <= LENT_UNREAD_BYTES_MAX => {
                *lying = Lying::Loan(loan);
                None
            }
            _ => Some(loan),
        };
        drop(lying);
        refused.into_iter().for_each(Loan::refuse);
    }

    fn close(&self) -> Option<Loan> {
        match std::mem::replace(&mut *self.lock(), Lying::Closed) {
            Lying::Loan(loan) => Some(loan),
            Lying::Nothing | Lying::Closed => None,
        }
    }
}

/// State that a connection through the entrance keeps for its creator.
#[derive(Default)]
pub struct Kept {
    /// Dropped once no request of the connection is in progress.
    pub(crate) alive: Arc<()>,
    pub(crate) desk: Arc<Desk>,
    /// Whether the creator reports what becomes of the client.
    pub(crate) is_reported_by_creator: bool,
    /// Returns the client to its lender, if the connection is a lent client's.
    back: Option<Back>,
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("is_lent", &self.is_lent()).finish_non_exhaustive()
    }
}

impl Kept {
    /// Returns whether a loan is to take the connection's place.
    pub fn has_loan(&self) -> bool {
        matches!(*self.desk.lock(), Lying::Loan(_))
    }

    /// Takes the loan. Returns the client's socket, and the bytes that it has sent.
    pub fn borrow(&mut self) -> Option<(OwnedFd, Vec<u8>)> {
        let Loan { client, unread, back } = self.desk.close()?;
        self.back = Some(back);
        Some((client, unread))
    }

    /// Returns whether the connection is a lent client's.
    pub fn is_lent(&self) -> bool {
        self.back.is_some()
    }

    /// Takes the function that returns the client to its lender. The client is not lent any more.
    pub fn take_back(&mut self) -> Option<Back> {
        self.back.take()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // The connection has ended before the loan could take its place.
        self.desk.close().into_iter().for_each(Loan::refuse);
    }
}

/// Lends a client in place of one connection through the entrance.
#[derive(Clone)]
pub struct Lender {
    pub(crate) desk: Arc<Desk>,
    pub(crate) inboxes: Arc<[Inbox]>,
    /// The connection's number.
    pub(crate) connection: ConnectionId,
}

impl Lender {
    /// Has a client's socket take the connection's place. Call it when the connection is bound to a
    /// volume, and all its requests are answered and their replies read; then close the connection.
    /// The loan comes back at once if `unread` is longer than [`LENT_UNREAD_BYTES_MAX`], or if the
    /// connection has ended; or later, when the connection ends without taking it.
    pub fn lend(&self, loan: Loan) {
        self.desk.put(loan);
    }

    /// Asks for the client back; requests in progress are finished first. Has no effect if the
    /// client is not lent, or moves from one core to another: ask again.
    pub fn recall(&self) {
        self.inboxes.iter().for_each(|inbox| inbox.post(Message::Recall(self.connection)));
    }
}
