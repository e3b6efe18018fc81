//! Clients that another listener has accepted, and whose TLS it has ended.

use evenkeel_core::ids::InstanceId;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream;
use tokio::sync::mpsc::error::TrySendError;
use tokio::sync::mpsc::{Receiver, Sender, channel};

/// Maximum number of clients that wait for the front's thread.
const WAITING_MAX: usize = 256;

/// A client that was passed to the front.
pub(crate) struct Passed {
    /// The front's end of its plain bytes.
    pub plain: UnixStream,
    /// Its own socket.
    pub socket: OwnedFd,
    pub host: InstanceId,
    pub address: SocketAddr,
}

/// Passes clients to a front. It may outlive the front, and refuses every client then.
#[derive(Clone, Debug)]
pub struct Entrance(Sender<Passed>);

impl Entrance {
    pub(crate) fn new() -> (Self, Receiver<Passed>) {
        let (sender, receiver) = channel(WAITING_MAX);
        (Self(sender), receiver)
    }

    /// Opens a connection for a client that has proven to be `host`. Returns the end for its plain
    /// bytes. `socket` is the client's own: the front notices by it when the client has ended the
    /// connection, and reads nothing from it. Does not wait.
    ///
    /// # Errors
    /// - `ResourceBusy`: too many clients wait for the front.
    /// - `NotConnected`: the front has ended.
    /// - Any other: the system refuses a socket.
    pub fn connect(
        &self,
        host: InstanceId,
        address: SocketAddr,
        socket: BorrowedFd<'_>,
    ) -> io::Result<UnixStream> {
        let (outside, plain) = UnixStream::pair()?;
        plain.set_nonblocking(true)?;
        let socket = socket.try_clone_to_owned()?;
        let passed = Passed { plain, socket, host, address };
        self.0.try_send(passed).map_err(|error| match error {
            TrySendError::Full(_) => {
                let why = format!("{WAITING_MAX} clients wait for the front; try again");
                io::Error::new(ErrorKind::ResourceBusy, why)
            }
            TrySendError::Closed(_) => {
                io::Error::new(ErrorKind::NotConnected, "the front is stopping")
            }
        })?;
        Ok(outside)
    }
}
