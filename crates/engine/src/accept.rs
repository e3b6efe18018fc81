//! Hands connections that another listener accepted to the data plane.

use crate::directory::Directory;
use crate::handoff::{Kept, Lender};
use crate::listener::hand_over_kept;
use crate::peer::Peer;
use crate::reactor::Inbox;
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_wire::agent::HostAddress;
use std::io::{self, ErrorKind};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU8, AtomicU16, Ordering};
use std::sync::{Arc, Weak};

/// State of the data plane's entrances: starting, open, or closed until the process ends.
#[derive(Debug, Default)]
pub(crate) struct Doors(AtomicU8);

const OPEN: u8 = 1;
const CLOSED: u8 = 2;

impl Doors {
    /// Opens the entrances. Has no effect once they are closed.
    pub(crate) fn open(&self) {
        // Fails only where they are open or closed already.
        let _ = self.0.compare_exchange(0, OPEN, Ordering::SeqCst, Ordering::SeqCst);
    }

    /// Closes the entrances until the process ends.
    pub(crate) fn close(&self) {
        self.0.store(CLOSED, Ordering::SeqCst);
    }
}

/// An entrance to the data plane beside its listeners. It may outlive the engine; after the
/// engine's end, it refuses every connection.
#[derive(Clone)]
pub struct Entrance {
    pub(crate) inboxes: Arc<[Inbox]>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) doors: Arc<Doors>,
    pub(crate) next: Arc<AtomicU16>,
    /// Whether the caller reports what becomes of its clients.
    pub(crate) is_reported_by_caller: bool,
}

/// A connection that was made through the entrance.
pub struct Inside {
    /// The caller's end of the connection.
    pub stream: UnixStream,
    /// Can be upgraded as long as a request of the connection is in progress. That may be longer
    /// than the connection lasts: a request in a store is not cancelled.
    pub held: Weak<()>,
    /// Lends a client's own socket in its place.
    pub lender: Lender,
}

impl Entrance {
    /// Returns the entrance for a caller that has clients of its own, and reports itself what
    /// becomes of them. The observer of the engine gets none of them.
    #[must_use]
    pub fn reported_by_caller(self) -> Self {
        Self { is_reported_by_caller: true, ..self }
    }

    /// Whether the data plane serves a volume, attached or not.
    #[must_use]
    pub fn holds(&self, id: VolumeId) -> bool {
        self.directory.get(id).is_some()
    }

    /// Opens a connection for a client at `peer`.
    ///
    /// # Errors
    /// - `NotConnected`: the data plane is starting or stopping.
    /// - `PermissionDenied`: no volume is attached to the address.
    /// - `ResourceBusy`: a limit on connections is reached; the text says which.
    /// - Any other: the system refuses a socket.
    pub fn connect(&self, peer: HostAddress) -> io::Result<Inside> {
        self.check_open()?;
        if !self.directory.expects(peer) {
            let why = "no volume is attached to this address";
            return Err(refused(ErrorKind::PermissionDenied, why));
        }
        self.open(peer.into())
    }

    /// Opens a connection for a client that has proven to be `host`, at `seen` if that is known.
    ///
    /// # Errors
    /// As [`Self::connect`]; `PermissionDenied`: no volume is attached to the host.
    pub fn connect_proven(
        &self,
        host: InstanceId,
        seen: Option<HostAddress>,
    ) -> io::Result<Inside> {
        self.check_open()?;
        match self.directory.proven(host, seen) {
            Some(peer) => self.open(peer),
            None => {
                let why = format!("no volume is attached to host {host}");
                Err(refused(ErrorKind::PermissionDenied, &why))
            }
        }
    }

    /// Reports to the observer a client that the caller has refused.
    pub fn report_refused(&self, address: HostAddress, why: &str) {
        self.directory.slots().report_stranger(address, why);
    }

    fn check_open(&self) -> io::Result<()> {
        match self.doors.0.load(Ordering::SeqCst) {
            OPEN => Ok(()),
            CLOSED => Err(refused(ErrorKind::NotConnected, "the data plane is stopping")),
            _ => Err(refused(ErrorKind::NotConnected, "the data plane is starting")),
        }
    }

    fn open(&self, peer: Peer) -> io::Result<Inside> {
        let (inside, outside) = UnixStream::pair()?;
        let mut kept = Kept::default();
        kept.is_reported_by_creator = self.is_reported_by_caller;
        let held = Arc::downgrade(&kept.alive);
        let desk = Arc::clone(&kept.desk);
        let core = self.next.fetch_add(1, Ordering::Relaxed) % self.inboxes.len() as u16;
        let shared = (&*self.inboxes, &*self.directory);
        let connection = hand_over_kept(shared, inside.into(), (peer, core), Some(kept))
            .map_err(|why| refused(ErrorKind::ResourceBusy, &why.to_string()))?;
        let lender = Lender { desk, inboxes: Arc::clone(&self.inboxes), connection };
        Ok(Inside { stream: outside, held, lender })
    }
}

fn refused(kind: ErrorKind, why: &str) -> io::Error {
    io::Error::new(kind, why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::Inside;
    use crate::priority::Priority;
    use crate::{Engine, EngineConfig, IoMode, UnixAccess};
    use evenkeel_store::memory::MemoryPool;
    use evenkeel_wire::agent::HostAddress;
    use std::io::{ErrorKind, Read, Write};
    use std::sync::Arc;

    #[test]
    fn the_entrance_is_open_as_long_as_the_doors_are() {
        let tcp = Vec::new();
        let unix = None;
        let pool = Arc::new(MemoryPool::new());
        let io = IoMode::Pread;
        let unix_access = UnixAccess::default();
        let priority = Priority::None;
        let config = EngineConfig { cores: 2, io, priority, tcp, unix, unix_access, pool };
        let engine = Engine::start_closed(config).unwrap();
        let entrance = engine.entrance();
        let refused = |peer| entrance.connect(peer).err().map(|error| error.kind());
        assert_eq!(refused(HostAddress::Local), Some(ErrorKind::NotConnected));
        engine.open_doors();
        let stranger = HostAddress::Remote([10, 0, 0, 1].into());
        assert_eq!(refused(stranger), Some(ErrorKind::PermissionDenied));
        let Inside { mut stream, held, .. } = entrance.connect(HostAddress::Local).unwrap();
        let mut greeting = [0; 18];
        stream.read_exact(&mut greeting).unwrap();
        assert_eq!(&greeting[..8], b"NBDMAGIC");
        assert!(held.upgrade().is_some());
        // The data plane closes its end, and drops it.
        stream.write_all(&[0xff; 4]).unwrap();
        assert_eq!(stream.read(&mut greeting).unwrap(), 0);
        let another = entrance.connect(HostAddress::Local).unwrap();
        let of_another = another.held;
        engine.close_doors();
        assert_eq!(refused(HostAddress::Local), Some(ErrorKind::NotConnected));
        engine.open_doors();
        assert_eq!(refused(HostAddress::Local), Some(ErrorKind::NotConnected), "for good");
        drop(engine);
        assert!(held.upgrade().is_none() && of_another.upgrade().is_none());
        assert_eq!(refused(HostAddress::Local), Some(ErrorKind::NotConnected));
    }
}
