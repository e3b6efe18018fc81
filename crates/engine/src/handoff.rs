//! Client sockets that a front lends to the data plane, and takes back when the volume is given up.
//!
//! The lender has accepted them and completed their handshakes, and serves them again when the data
//! plane gives their volume up. It first opens a connection of its own here, through the
//! [`crate::Entrance`], with the same terms. The client's socket then replaces that connection: it
//! keeps its slot, its terms and its volume, so nothing is counted or checked twice.
//!
//! The socket lies ready at a desk that both sides know. The end of the first connection is the
//! signal to take it: it comes after all that was sent there, on whichever core the connection is.

use crate::reactor::{Inbox, Message};
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
    /// What it has sent that is not served yet: at most [`LENT_UNREAD_BYTES_MAX`].
    pub unread: Vec<u8>,
    /// Called once when the connection comes back; dropped when it has ended. It must not block.
    pub back: Back,
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

impl fmt::Debug for Loan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Loan").field("client", &self.client).finish_non_exhaustive()
    }
}

impl Loan {
    /// Gives it back as it came.
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
    /// The connection has ended, or has been taken the place of.
    Closed,
}

/// Where a loan lies until it is taken.
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

/// What a connection through the entrance keeps for who made it.
#[derive(Default)]
pub struct Kept {
    /// Let go when nothing that the connection has asked for is under way any more.
    pub(crate) alive: Arc<()>,
    pub(crate) desk: Arc<Desk>,
    /// The connection is a lent client's: who goes on with it.
    back: Option<Back>,
}

impl fmt::Debug for Kept {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Kept").field("is_lent", &self.is_lent()).finish_non_exhaustive()
    }
}

impl Kept {
    /// Whether a loan is to take the connection's place.
    pub fn has_loan(&self) -> bool {
        matches!(*self.desk.lock(), Lying::Loan(_))
    }

    /// Takes the loan; the client's socket, and what it has sent.
    pub fn borrow(&mut self) -> Option<(OwnedFd, Vec<u8>)> {
        let Loan { client, unread, back } = self.desk.close()?;
        self.back = Some(back);
        Some((client, unread))
    }

    /// Whether the connection is a client's that was lent.
    pub fn is_lent(&self) -> bool {
        self.back.is_some()
    }

    /// Takes the way back to the lender. The client is not lent any more.
    pub fn take_back(&mut self) -> Option<Back> {
        self.back.take()
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // It has ended before it could be taken the place of.
        self.desk.close().into_iter().for_each(Loan::refuse);
    }
}

/// Lends a client in place of one connection through the entrance.
#[derive(Clone)]
pub struct Lender {
    pub(crate) desk: Arc<Desk>,
    pub(crate) inboxes: Arc<[Inbox]>,
    /// The connection's number.
    pub(crate) ticket: u64,
}

impl Lender {
    /// Has a client's socket take the connection's place. To be called when the connection is bound
    /// to a volume and everything on it is answered and read; then the connection is to be closed.
    /// What cannot be lent comes back at once, or when the connection has ended: if more than
    /// [`LENT_UNREAD_BYTES_MAX`] were sent that are not served, or the connection has ended.
    pub fn lend(&self, loan: Loan) {
        self.desk.put(loan);
    }

    /// Asks for the client back: what has begun is finished first. Nothing happens if it is not
    /// lent, or on its way from one core to another: ask again.
    pub fn recall(&self) {
        self.inboxes.iter().for_each(|inbox| inbox.post(Message::Recall(self.ticket)));
    }
}
