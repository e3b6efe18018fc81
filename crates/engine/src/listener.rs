//! The thread that accepts connections, closes those of clients without access, and hands the
//! others to the reactors in turn.

use crate::EngineError;
use crate::connection_limits::Slot;
use crate::directory::Directory;
use crate::driver::Waker;
use crate::handoff::Kept;
use crate::peer::Peer;
use crate::peer_credentials::UnixAccess;
use crate::rate_limited_log::{Notice, Notices};
use crate::reactor::{Inbox, Message};
use evenkeel_core::connection_limits::{ConnectionId, NoPlace};
use evenkeel_core::log_limit::LOG_WINDOW;
use evenkeel_os::clock::Clock;
use evenkeel_wire::agent::HostAddress;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Gid, Mode, chmod, chown};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Pause after the process has run out of descriptors: connections that close free some.
const BACK_OFF: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// Idle time of a client after which keepalive probes start. Without an answer the connection is
/// closed two minutes later.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(20);
const KEEPALIVE_TRIES: u32 = 6;
/// The longest path of a unix socket, without its final zero.
const UNIX_PATH_BYTES_MAX: usize = 107;

/// Connections accepted in a row from one listener: a queue that is emptied slowly overflows, and
/// then the kernel lets new clients wait for a second.
const ACCEPTS_MAX: u32 = 64;
/// Interval at which the counts of suppressed log lines are logged.
const LOOK_EVERY: Timespec =
    Timespec { tv_sec: (LOG_WINDOW.ns / 1_000_000_000) as i64, tv_nsec: 0 };

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener, UnixAccess),
}

/// A new connection.
enum Visitor {
    /// A connection of a client at that address.
    Peer(OwnedFd, HostAddress),
    /// A connection of a process of this user, which has no access.
    User(u32),
}

/// State for accepting connections.
pub(crate) struct Reception {
    pub(crate) inboxes: Arc<[Inbox]>,
    pub(crate) directory: Arc<Directory>,
    pub(crate) clock: Clock,
}

/// All listening sockets.
pub(crate) struct Listeners {
    listeners: Vec<Listener>,
    tcp: Vec<SocketAddr>,
    unix: Option<PathBuf>,
}

impl Listeners {
    pub(crate) fn bind(
        tcp: &[SocketAddr],
        unix: Option<&Path>,
        access: &UnixAccess,
    ) -> Result<Self, EngineError> {
        let mut bound = Self { listeners: Vec::new(), tcp: Vec::new(), unix: None };
        for &address in tcp {
            let failed = |source| EngineError::Bind { what: format!("{address}"), source };
            // The standard library sets SO_REUSEADDR, so a restart need not wait for old
            // connections.
            let listener = TcpListener::bind(address).map_err(failed)?;
            listener.set_nonblocking(true).map_err(failed)?;
            bound.tcp.push(listener.local_addr().map_err(failed)?);
            bound.listeners.push(Listener::Tcp(listener));
        }
        if let Some(path) = unix {
            let failed = |source| EngineError::Bind { what: path.display().to_string(), source };
            let length = path.as_os_str().len();
            if length > UNIX_PATH_BYTES_MAX {
                return Err(EngineError::UnixPathTooLong { path: path.to_owned(), length });
            }
            remove_stale(path).map_err(failed)?;
            let listener = UnixListener::bind(path).map_err(failed)?;
            bound.unix = Some(path.to_owned());
            // A process that may open the socket may read every volume that is attached to this
            // machine.
            if let Some(group) = access.group {
                chown(path, None, Some(Gid::from_raw(group))).map_err(|errno| {
                    EngineError::UnixGroup { path: path.to_owned(), group, source: errno.into() }
                })?;
            }
            chmod(path, Mode::from_bits_truncate(access.mode()))
                .map_err(|errno| failed(errno.into()))?;
            listener.set_nonblocking(true).map_err(failed)?;
            bound.listeners.push(Listener::Unix(listener, access.clone()));
        }
        Ok(bound)
    }

    pub(crate) fn tcp_addresses(&self) -> Vec<SocketAddr> {
        self.tcp.clone()
    }

    /// Accepts connections from when `begin` is woken until `stop` is. Returns `false` if it ends
    /// for another reason.
    pub(crate) fn run(self, reception: &Reception, begin: &Waker, stop: &Waker) -> bool {
        let wait = [begin, stop].map(|waker| PollFd::new(waker, PollFlags::IN));
        while let Err(Errno::INTR) = poll(&mut { wait.clone() }, None) {}
        let mut next = 0;
        let mut notices = Notices::default();
        loop {
            let mut fds: Vec<PollFd<'_>> = self
                .listeners
                .iter()
                .map(|l| PollFd::from_borrowed_fd(l.fd(), PollFlags::IN))
                .collect();
            fds.push(PollFd::new(stop, PollFlags::IN));
            let timeout = notices.owes().then_some(&LOOK_EVERY);
            match poll(&mut fds, timeout) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "no more connections are accepted");
                    return false;
                }
            }
            let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
            if fds.last().is_some_and(is_ready) {
                return true;
            }
            let ready: Vec<usize> =
                fds.iter().enumerate().filter(|(_, fd)| is_ready(fd)).map(|(at, _)| at).collect();
            for at in ready {
                for _ in 0..ACCEPTS_MAX {
                    match self.listeners[at].accept() {
                        Ok(visitor) => reception.receive(visitor, &mut next, &mut notices),
                        Err(error) => {
                            refused(&error, stop, reception.clock, &mut notices);
                            break;
                        }
                    }
                }
            }
            notices.tell_rest(reception.clock.now());
        }
    }
}

impl Drop for Listeners {
    fn drop(&mut self) {
        if let Some(path) = &self.unix {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Reception {
    /// Hands a connection to the next core in turn, or closes it.
    fn receive(&self, visitor: Visitor, next: &mut usize, notices: &mut Notices) {
        let now = self.clock.now();
        let (fd, peer) = match visitor {
            Visitor::Peer(fd, peer) => (fd, peer),
            Visitor::User(uid) => {
                let why = format!("user {uid} may not use the unix socket");
                self.directory.slots().report_stranger(HostAddress::Local, &why);
                return notices.tell(now, Notice::User, |left_out| {
                    let why = "a connection is closed: its user may not use the unix socket; \
                               nbd-unix-users and nbd-unix-group say who may";
                    tracing::warn!(uid, left_out, "{why}");
                });
            }
        };
        if !self.directory.expects(peer) {
            let why = "no volume is attached to its address";
            self.directory.slots().report_stranger(peer, why);
            return notices.tell(now, Notice::Stranger, |left_out| {
                let why = "a connection is closed: no volume is attached to its address";
                tracing::info!(?peer, left_out, "{why}");
            });
        }
        match hand_over((&self.inboxes, &self.directory), fd, peer.into(), *next as u16) {
            Ok(()) => *next = (*next + 1) % self.inboxes.len(),
            Err(why) => {
                self.directory.slots().report_stranger(peer, &why.to_string());
                notices.tell(now, Notice::TooMany, |left_out| {
                    tracing::warn!(?peer, left_out, "a connection is refused: {why}");
                });
            }
        }
    }
}

/// Hands a connection to a core, if there is a slot for it.
pub(crate) fn hand_over(
    (inboxes, directory): (&[Inbox], &Directory),
    fd: OwnedFd,
    peer: Peer,
    core: u16,
) -> Result<(), NoPlace> {
    hand_over_kept((inboxes, directory), fd, (peer, core), None).map(drop)
}

/// Hands a connection to a core, if there is a slot for it. `kept` is dropped once no request of
/// the connection is in progress. Returns its number.
pub(crate) fn hand_over_kept(
    (inboxes, directory): (&[Inbox], &Directory),
    fd: OwnedFd,
    (peer, core): (Peer, u16),
    kept: Option<Kept>,
) -> Result<ConnectionId, NoPlace> {
    let (mut slot, evicted) = Slot::greet(directory.slots(), peer, core)?;
    slot.kept = kept;
    let id = slot.id;
    inboxes[usize::from(core)].post(Message::Connection(fd, peer, Box::new(slot)));
    if let Some((connection, core)) = evicted {
        inboxes[usize::from(core)].post(Message::Evict(connection));
    }
    Ok(id)
}

/// Handles an error of accept: pauses and logs if the system lacks a resource.
fn refused(error: &io::Error, stop: &Waker, clock: Clock, notices: &mut Notices) {
    match Errno::from_io_error(error) {
        // The queue is empty, or the client has disconnected.
        Some(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {}
        _ => {
            notices.tell(clock.now(), Notice::NotAccepted, |left_out| {
                let what = "a connection could not be accepted; see `evenkeel doctor`";
                tracing::warn!(%error, left_out, "{what}");
            });
            let mut fds = [PollFd::new(stop, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&BACK_OFF));
        }
    }
}

impl Listener {
    fn fd(&self) -> rustix::fd::BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener, _) => listener.as_fd(),
        }
    }

    fn accept(&self) -> io::Result<Visitor> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                set_up(&stream)?;
                Ok(Visitor::Peer(stream.into(), HostAddress::of(peer.ip())))
            }
            Self::Unix(listener, access) => {
                let (stream, _) = listener.accept()?;
                if let Err(user) = access.check(&stream)? {
                    return Ok(Visitor::User(user));
                }
                // Accepted sockets do not inherit the flag on Linux; this does not depend on that.
                stream.set_nonblocking(false)?;
                Ok(Visitor::Peer(stream.into(), HostAddress::Local))
            }
        }
    }
}

fn set_up(stream: &TcpStream) -> io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, KEEPALIVE_AFTER)?;
    sockopt::set_tcp_keepintvl(stream, KEEPALIVE_EVERY)?;
    sockopt::set_tcp_keepcnt(stream, KEEPALIVE_TRIES)?;
    Ok(())
}

/// Removes the socket file of a server that was killed. If it answers, another server owns it.
fn remove_stale(path: &Path) -> io::Result<()> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
        Ok(found) if !found.file_type().is_socket() => Err(io::Error::new(
            io::ErrorKind::AlreadyExists,
            "there is a file that is no socket; name another path",
        )),
        Ok(_) if UnixStream::connect(path).is_ok() => Err(io::Error::new(
            io::ErrorKind::AddrInUse,
            "another server answers there; stop it, or name another path",
        )),
        Ok(_) => std::fs::remove_file(path),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bind(path: &Path) -> Result<Listeners, EngineError> {
        Listeners::bind(&[], Some(path), &UnixAccess::default())
    }

    #[test]
    fn stale_socket_is_replaced_and_other_files_are_not() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nbd.sock");
        drop(UnixListener::bind(&path).unwrap());
        let bound = bind(&path).unwrap();
        let taken = bind(&path).err().unwrap().to_string();
        assert!(taken.contains("another server answers"), "{taken}");
        drop(bound);
        assert!(!path.exists(), "left behind");
        std::fs::write(&path, "precious").unwrap();
        let refused = bind(&path).err().unwrap().to_string();
        assert!(refused.contains("no socket"), "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        let long = folder.path().join("x".repeat(120));
        let refused = bind(&long).err().unwrap().to_string();
        assert!(refused.contains("107"), "{refused}");
    }

    /// Returns a new connection of a client at that address, and the client's end.
    fn visitor(peer: HostAddress) -> (Visitor, UnixStream) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        (Visitor::Peer(ours.into(), peer), theirs)
    }

    #[test]
    fn unknown_host_is_refused_and_one_with_a_volume_is_accepted() {
        let inboxes: Arc<[Inbox]> = [Inbox::new().unwrap(), Inbox::new().unwrap()].into();
        let directory = Arc::new(Directory::default());
        let shown = Arc::clone(&directory);
        let clock = Clock::start();
        let reception = Reception { inboxes: Arc::clone(&inboxes), directory, clock };
        let mut next = 0;
        let mut notices = Notices::default();
        let host = HostAddress::Remote([10, 0, 0, 1].into());
        let mut come = |peer| {
            let (visitor, mut theirs) = visitor(peer);
            reception.receive(visitor, &mut next, &mut notices);
            let mut messages: Vec<Message> = inboxes.iter().flat_map(Inbox::take).collect();
            assert!(messages.len() <= 1);
            let let_in = matches!(messages.pop(), Some(Message::Connection(..)));
            let mut byte = [0];
            // The connection is closed in both cases by now; a client without access gets no byte.
            assert_eq!(std::io::Read::read(&mut theirs, &mut byte).unwrap(), 0);
            let_in
        };
        assert!(come(HostAddress::Local), "may ask what there is");
        assert!(!come(host));
        let geometry = evenkeel_store::Geometry {
            size: evenkeel_core::units::ByteCount(1 << 20),
            block_bytes_min: 512,
            block_bytes_preferred: 4_096,
        };
        let id = evenkeel_core::ids::VolumeId::from_bits(1);
        let owner = evenkeel_core::ids::InstanceId::from_bits(1);
        let attachments = vec![evenkeel_wire::agent::Attachment { host: owner, address: host }];
        shown.insert(id, crate::directory::Entry { home: 0, geometry, attachments });
        assert!(come(host));
        assert!(!come(HostAddress::Remote([10, 0, 0, 2].into())));
        shown.remove(id);
        assert!(!come(host));
    }
}
