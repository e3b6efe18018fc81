//! The thread that accepts connections and deals them out to the reactors.

use crate::EngineError;
use crate::driver::Waker;
use crate::reactor::{Mail, Mailbox};
use evenkeel_wire::agent::HostAddress;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, chmod};
use rustix::io::Errno;
use rustix::net::sockopt;
use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// How long to leave the queue alone when the process has no descriptors left: closing connections
/// give some back.
const BACK_OFF: Timespec = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
/// A silent client is asked whether it is still there after this, and given up two minutes later.
const KEEPALIVE_AFTER: Duration = Duration::from_secs(60);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(20);
const KEEPALIVE_TRIES: u32 = 6;
/// The longest path of a unix socket, without its final zero.
const UNIX_PATH_BYTES_MAX: usize = 107;

enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

/// All that is listened on.
pub(crate) struct Listeners {
    listeners: Vec<Listener>,
    tcp: Vec<SocketAddr>,
    unix: Option<PathBuf>,
}

impl Listeners {
    pub(crate) fn bind(tcp: &[SocketAddr], unix: Option<&Path>) -> Result<Self, EngineError> {
        let mut bound = Self { listeners: Vec::new(), tcp: Vec::new(), unix: None };
        for &address in tcp {
            let failed = |source| EngineError::Bind { what: format!("{address}"), source };
            // The standard library sets SO_REUSEADDR, so a restart need not wait for old peers.
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
            // Whoever may open it may read every attached volume.
            chmod(path, Mode::RUSR | Mode::WUSR).map_err(|errno| failed(errno.into()))?;
            listener.set_nonblocking(true).map_err(failed)?;
            bound.listeners.push(Listener::Unix(listener));
        }
        Ok(bound)
    }

    pub(crate) fn tcp_addresses(&self) -> Vec<SocketAddr> {
        self.tcp.clone()
    }

    /// Accepts until `stop` is woken.
    pub(crate) fn run(self, mailboxes: &Arc<[Mailbox]>, stop: &Waker) {
        let mut next = 0;
        loop {
            let mut fds: Vec<PollFd<'_>> = self
                .listeners
                .iter()
                .map(|l| PollFd::from_borrowed_fd(l.fd(), PollFlags::IN))
                .collect();
            fds.push(PollFd::new(stop, PollFlags::IN));
            match poll(&mut fds, None) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => {
                    tracing::error!(%error, "no more connections are accepted");
                    return;
                }
            }
            let is_ready = |fd: &PollFd<'_>| !fd.revents().is_empty();
            if fds.last().is_some_and(is_ready) {
                return;
            }
            let ready: Vec<usize> =
                fds.iter().enumerate().filter(|(_, fd)| is_ready(fd)).map(|(at, _)| at).collect();
            for at in ready {
                match self.listeners[at].accept() {
                    Ok((fd, peer)) => {
                        mailboxes[next].post(Mail::Connection(fd, peer));
                        next = (next + 1) % mailboxes.len();
                    }
                    Err(error) => refused(&error, stop),
                }
            }
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

/// What a failed accept means.
fn refused(error: &io::Error, stop: &Waker) {
    match Errno::from_io_error(error) {
        // Somebody else was faster, or the client has gone again.
        Some(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {}
        _ => {
            tracing::warn!(%error, "a connection could not be accepted; see `evenkeel doctor`");
            let mut fds = [PollFd::new(stop, PollFlags::IN)];
            let _ = poll(&mut fds, Some(&BACK_OFF));
        }
    }
}

impl Listener {
    fn fd(&self) -> rustix::fd::BorrowedFd<'_> {
        match self {
            Self::Tcp(listener) => listener.as_fd(),
            Self::Unix(listener) => listener.as_fd(),
        }
    }

    fn accept(&self) -> io::Result<(OwnedFd, HostAddress)> {
        match self {
            Self::Tcp(listener) => {
                let (stream, peer) = listener.accept()?;
                set_up(&stream)?;
                Ok((stream.into(), host_address(peer.ip())))
            }
            Self::Unix(listener) => {
                let (stream, _) = listener.accept()?;
                // Inherited by none, but let nobody depend on that.
                stream.set_nonblocking(false)?;
                Ok((stream.into(), HostAddress::Local))
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

fn host_address(ip: IpAddr) -> HostAddress {
    match ip.to_canonical() {
        ip if ip.is_loopback() => HostAddress::Local,
        ip => HostAddress::Remote(ip),
    }
}

/// Removes the socket of a server that was killed. One that answers is another server's.
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

    #[test]
    fn the_socket_of_a_killed_server_is_replaced_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("nbd.sock");
        drop(UnixListener::bind(&path).unwrap());
        let bound = Listeners::bind(&[], Some(&path)).unwrap();
        let taken = Listeners::bind(&[], Some(&path)).err().unwrap().to_string();
        assert!(taken.contains("another server answers"), "{taken}");
        drop(bound);
        assert!(!path.exists(), "left behind");
        std::fs::write(&path, "precious").unwrap();
        let refused = Listeners::bind(&[], Some(&path)).err().unwrap().to_string();
        assert!(refused.contains("no socket"), "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), b"precious");
        let long = folder.path().join("x".repeat(120));
        let refused = Listeners::bind(&[], Some(&long)).err().unwrap().to_string();
        assert!(refused.contains("107"), "{refused}");
    }

    #[test]
    fn this_machine_is_this_machine_by_any_name() {
        for ip in ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"] {
            assert_eq!(host_address(ip.parse().unwrap()), HostAddress::Local, "{ip}");
        }
        let remote = host_address("::ffff:10.0.0.1".parse().unwrap());
        assert_eq!(remote, HostAddress::Remote([10, 0, 0, 1].into()));
    }
}
