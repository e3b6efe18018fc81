//! TLS on a TCP connection, on the thread that calls it, and the exchange of its bytes with a
//! socket of plain bytes.
//!
//! Memory of a session: what was received, at most [`SCRATCH_BYTES`]; a record, at most 18 KiB; its
//! plain bytes, at most 16 KiB; and what is to be sent, at most [`SCRATCH_BYTES`] with its framing.
//! Nothing is read from one side while the other one takes nothing, so each side slows down the
//! other.

use rustls::{ServerConfig, ServerConnection};
use std::cell::RefCell;
use std::io::{self, BufRead as _, ErrorKind, IoSlice, Read, Write};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncWriteExt as _, Interest};
use tokio::net::{TcpStream, UnixStream};
use tokio::time::timeout;

/// Bytes that are read from either side at once.
pub(crate) const SCRATCH_BYTES: usize = 64 << 10;
/// Rounds of an exchange before other connections of the thread have their turn.
const ROUNDS_MAX: u32 = 16;
/// Time for a client to fetch the last bytes of a connection that ends.
const FAREWELL_MAX: Duration = Duration::from_secs(5);
/// Time for a client to read why it is refused, and bytes that are read from it meanwhile.
const ALERT_MAX: Duration = Duration::from_secs(1);
const ALERT_BYTES_MAX: usize = 64 << 10;

/// The buffer that all sessions of a thread share: none waits while it is in use.
pub(crate) type Scratch = Rc<RefCell<Box<[u8]>>>;

/// TLS on a socket.
pub(crate) struct Session {
    tcp: TcpStream,
    tls: ServerConnection,
}

/// The operations of a socket that do not wait.
struct Now<'a>(&'a TcpStream);

impl Read for Now<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.try_read(buffer)
    }
}

impl Write for Now<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.try_write(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        self.0.try_write_vectored(slices)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Returns `None` if the operation has to wait.
fn now<T>(result: io::Result<T>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn invalid(error: &rustls::Error) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, error.to_string())
}

impl Session {
    /// Completes the TLS handshake with a client. The caller limits the time.
    ///
    /// # Errors
    /// The handshake fails; the client has been sent the reason.
    pub async fn accept(tcp: TcpStream, config: Arc<ServerConfig>) -> io::Result<Self> {
        let mut tls = ServerConnection::new(config).map_err(|error| invalid(&error))?;
        // What is held is bounded by what is read from the plain side.
        tls.set_buffer_limit(None);
        let mut session = Self { tcp, tls };
        while session.tls.is_handshaking() || session.tls.wants_write() {
            if let Err(error) = session.step().await {
                session.part().await;
                return Err(error);
            }
        }
        Ok(session)
    }

    /// Sends or receives once; waits until that is possible.
    async fn step(&mut self) -> io::Result<()> {
        if self.tls.wants_write() {
            self.tcp.writable().await?;
            return now(self.tls.write_tls(&mut Now(&self.tcp))).map(drop);
        }
        self.tcp.readable().await?;
        match now(self.tls.read_tls(&mut Now(&self.tcp)))? {
            Some(0) => Err(io::Error::new(ErrorKind::UnexpectedEof, "the client has gone")),
            Some(_) => self.tls.process_new_packets().map(drop).map_err(|error| invalid(&error)),
            None => Ok(()),
        }
    }

    /// Sends what is due, such as the reason of a refusal, and closes the connection. If unread
    /// bytes were left, the client would get a reset and not the reason.
    async fn part(&mut self) {
        let parting = async {
            while self.tls.wants_write() {
                self.tcp.writable().await?;
                now(self.tls.write_tls(&mut Now(&self.tcp)))?;
            }
            self.tcp.shutdown().await?;
            let mut rest = [0; 4 << 10];
            let mut bytes = 0;
            while bytes < ALERT_BYTES_MAX {
                self.tcp.readable().await?;
                match now(self.tcp.try_read(&mut rest))? {
                    Some(0) => break,
                    Some(read) => bytes += read,
                    None => {}
                }
            }
            io::Result::Ok(())
        };
        // The connection is closed in any case.
        let _ = timeout(ALERT_MAX, parting).await;
    }

    /// Ends TLS and closes the connection.
    pub async fn close(mut self) {
        self.tls.send_close_notify();
        self.part().await;
    }

    /// Returns the client's own certificate, if it has shown one.
    pub fn client_certificate(&self) -> Option<&rustls::pki_types::CertificateDer<'static>> {
        self.tls.peer_certificates().and_then(|chain| chain.first())
    }

    /// Returns the client's socket.
    pub fn socket(&self) -> BorrowedFd<'_> {
        self.tcp.as_fd()
    }

    /// Receives plain bytes; zero if the client has ended TLS or the connection.
    ///
    /// # Errors
    /// The connection fails.
    pub async fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.tls.reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => self.step().await?,
                Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(0),
                read => return read,
            }
        }
    }

    /// Sends plain bytes.
    ///
    /// # Errors
    /// The connection fails.
    pub async fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.tls.writer().write_all(bytes)?;
        while self.tls.wants_write() {
            self.step().await?;
        }
        Ok(())
    }

    /// Returns the parts, to move the session to another thread.
    ///
    /// # Errors
    /// The socket cannot be taken from this thread.
    pub fn into_parts(self) -> io::Result<(std::net::TcpStream, ServerConnection)> {
        Ok((self.tcp.into_std()?, self.tls))
    }

    /// Continues a session on this thread.
    ///
    /// # Errors
    /// The socket cannot be used here.
    pub fn of_parts((tcp, tls): (std::net::TcpStream, ServerConnection)) -> io::Result<Self> {
        Ok(Self { tcp: TcpStream::from_std(tcp)?, tls })
    }

    /// Passes the bytes of both sides on until one of them ends.
    ///
    /// # Errors
    /// A connection fails, or the client breaks TLS.
    pub async fn exchange(self, inside: UnixStream, scratch: &Scratch) -> io::Result<()> {
        let Self { tcp, tls } = self;
        let mut exchange = Exchange {
            tcp,
            tls,
            inside,
            received: Vec::new(),
            used: 0,
            has_client_ended: false,
            has_inside_ended: false,
        };
        let mut rounds = 0;
        loop {
            if exchange.is_over() {
                return exchange.tcp.shutdown().await;
            }
            if exchange.advance(scratch).await? {
                rounds += 1;
                if rounds % ROUNDS_MAX == 0 {
                    tokio::task::yield_now().await;
                }
                continue;
            }
            rounds = 0;
            exchange.ready().await?;
        }
    }
}

/// A session and the plain socket that it exchanges bytes with.
struct Exchange {
    tcp: TcpStream,
    tls: ServerConnection,
    inside: UnixStream,
    /// Bytes of the client, of which TLS has taken the first `used`.
    received: Vec<u8>,
    used: usize,
    /// Whether no more bytes come from the client.
    has_client_ended: bool,
    /// Whether no more bytes come from the plain side.
    has_inside_ended: bool,
}

impl Exchange {
    fn is_over(&self) -> bool {
        self.has_inside_ended && !self.tls.wants_write()
    }

    /// Returns whether there are plain bytes of the client that the plain side has not taken.
    fn holds_plain_bytes(&mut self) -> bool {
        self.tls.reader().fill_buf().is_ok_and(|bytes| !bytes.is_empty())
    }

    /// Moves what can be moved without waiting, in each direction at most once. Returns whether
    /// anything was.
    async fn advance(&mut self, scratch: &Scratch) -> io::Result<bool> {
        let sent = self.send()?;
        let taken = self.take_out(scratch)?;
        let received = self.receive(scratch)?;
        let passed = self.pass_in().await?;
        Ok(sent || taken || received || passed)
    }

    /// Socket to TLS.
    fn receive(&mut self, scratch: &Scratch) -> io::Result<bool> {
        if self.has_client_ended || !self.tls.wants_read() {
            return Ok(false);
        }
        if self.used == self.received.len() {
            let mut scratch = scratch.borrow_mut();
            let Some(bytes) = now(self.tcp.try_read(&mut scratch))? else { return Ok(false) };
            if bytes == 0 {
                // TLS takes this for the end of the connection.
                return self.tls.read_tls(&mut io::empty()).map(|_| true);
            }
            self.received.clear();
            self.received.extend_from_slice(&scratch[..bytes]);
            self.used = 0;
        }
        // TLS takes 4 KiB at a time, and no more while it holds plain bytes.
        while self.used < self.received.len() && self.tls.wants_read() {
            self.used += self.tls.read_tls(&mut &self.received[self.used..])?;
            self.tls.process_new_packets().map_err(|error| invalid(&error))?;
        }
        Ok(true)
    }

    /// TLS to the plain side.
    async fn pass_in(&mut self) -> io::Result<bool> {
        if self.has_client_ended {
            return Ok(false);
        }
        let mut reader = self.tls.reader();
        let has_ended = match reader.fill_buf() {
            Ok([]) => true,
            Ok(bytes) => {
                let Some(passed) = now(self.inside.try_write(bytes))? else { return Ok(false) };
                reader.consume(passed);
                return Ok(true);
            }
            Err(error) if error.kind() == ErrorKind::UnexpectedEof => true,
            Err(error) if error.kind() == ErrorKind::WouldBlock => false,
            Err(error) => return Err(error),
        };
        if has_ended {
            self.has_client_ended = true;
            self.inside.shutdown().await?;
        }
        Ok(has_ended)
    }

    /// Plain side to TLS.
    fn take_out(&mut self, scratch: &Scratch) -> io::Result<bool> {
        if self.has_inside_ended || self.tls.wants_write() {
            return Ok(false);
        }
        let mut scratch = scratch.borrow_mut();
        match now(self.inside.try_read(&mut scratch))? {
            None => Ok(false),
            Some(0) => {
                self.has_inside_ended = true;
                self.tls.send_close_notify();
                Ok(true)
            }
            Some(read) => {
                self.tls.writer().write_all(&scratch[..read])?;
                // Most replies fit into the socket's buffer.
                drop(scratch);
                self.send()?;
                Ok(true)
            }
        }
    }

    /// TLS to the socket.
    fn send(&mut self) -> io::Result<bool> {
        let mut has_sent = false;
        while self.tls.wants_write() && now(self.tls.write_tls(&mut Now(&self.tcp)))?.is_some() {
            has_sent = true;
        }
        Ok(has_sent)
    }

    /// Waits until something can be moved.
    async fn ready(&mut self) -> io::Result<()> {
        let sends = self.tls.wants_write();
        let holds = !self.has_client_ended && self.holds_plain_bytes();
        let receives = !self.has_client_ended && self.tls.wants_read();
        let of_client = interest(receives, sends);
        let of_inside = interest(!self.has_inside_ended && !sends, holds);
        let client = async {
            match of_client {
                Some(interest) => self.tcp.ready(interest).await.map(drop),
                None => std::future::pending().await,
            }
        };
        let inside = async {
            match of_inside {
                Some(interest) => self.inside.ready(interest).await.map(drop),
                None => std::future::pending().await,
            }
        };
        let ready = async {
            tokio::select! {
                ready = client => ready,
                ready = inside => ready,
            }
        };
        if !self.has_inside_ended {
            // The data plane bounds the time: it closes its side of a client that reads nothing.
            return ready.await;
        }
        timeout(FAREWELL_MAX, ready).await.unwrap_or_else(|_| {
            let text = "the client has not fetched the last bytes in time";
            Err(io::Error::new(ErrorKind::TimedOut, text))
        })
    }
}

fn interest(reads: bool, writes: bool) -> Option<Interest> {
    match (reads, writes) {
        (true, true) => Some(Interest::READABLE | Interest::WRITABLE),
        (true, false) => Some(Interest::READABLE),
        (false, true) => Some(Interest::WRITABLE),
        (false, false) => None,
    }
}
