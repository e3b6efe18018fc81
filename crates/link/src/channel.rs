//! A connection: bytes in both directions at once, over TLS or plain, each way with deadlines.
//!
//! One thread reads ([`Incoming`]). Any thread sends a whole packet at a time ([`Channel::send`]).
//! TLS has one state for both directions. It is locked for computations only, not while a thread
//! waits for the socket, so neither direction blocks the other.

use std::io::{self, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

use evenkeel_core::fencing::NodeId;
use evenkeel_wire::agent::session::{PACKET_BYTES, Packet};
use evenkeel_wire::agent::{HEAD_BYTES, frame_bytes};
use rustls::Connection;

use crate::tls::{Tls, names};
use evenkeel_os::clock::Deadline;

/// Maximum of bytes that are read from a socket, or prepared for it, at once.
const PIECE_BYTES: usize = 16 << 10;

/// See the module's text.
pub(crate) struct Channel {
    socket: TcpStream,
    crypto: Option<Mutex<Connection>>,
    /// Held for a whole packet, so that packets do not mix.
    sending: Mutex<()>,
    /// Maximum time to send a packet.
    packet: Duration,
}

/// The reading half.
pub(crate) struct Incoming {
    channel: Arc<Channel>,
    /// Bytes that arrived and that no caller has read yet.
    plain: Vec<u8>,
    at: usize,
    raw: Box<[u8]>,
    /// Maximum time without a byte from the other side.
    silence: Duration,
}

/// A socket whose reads and writes must all end before a deadline.
struct Timed<'a> {
    socket: &'a TcpStream,
    deadline: Deadline,
}

const LATE: &str = "the other side is too slow";

/// Returns the time left as a socket's timeout, for which zero means no limit.
fn timeout(deadline: Deadline) -> io::Result<Duration> {
    match deadline.left() {
        Duration::ZERO => Err(io::Error::new(io::ErrorKind::TimedOut, LATE)),
        // The kernel counts in microseconds.
        left => Ok(left.max(Duration::from_micros(1))),
    }
}

impl Read for Timed<'_> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.socket.set_read_timeout(Some(timeout(self.deadline)?))?;
        self.socket.read(into).map_err(late)
    }
}

impl Write for Timed<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.socket.set_write_timeout(Some(timeout(self.deadline)?))?;
        self.socket.write(bytes).map_err(late)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Converts the kernel's error for a timeout, "would block".
fn late(error: io::Error) -> io::Error {
    match error.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(io::ErrorKind::TimedOut, LATE),
        _ => error,
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::UnexpectedEof, "the other side has closed the connection")
}

fn broken(error: rustls::Error) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("TLS: {error}"))
}

impl Channel {
    /// Creates a connection from a socket, after the handshake of TLS if there is TLS.
    pub fn open(
        socket: TcpStream,
        tls: Option<&Tls>,
        packet: Duration,
        deadline: Deadline,
    ) -> io::Result<(Arc<Self>, Incoming)> {
        socket.set_nodelay(true)?;
        let crypto = match tls {
            None => None,
            Some(tls) => {
                let mut connection = tls.connection().map_err(broken)?;
                let mut timed = Timed { socket: &socket, deadline };
                while connection.is_handshaking() {
                    if connection.complete_io(&mut timed)? == (0, 0) {
                        return Err(closed());
                    }
                }
                while connection.wants_write() {
                    connection.write_tls(&mut timed)?;
                }
                Some(Mutex::new(connection))
            }
        };
        let channel = Arc::new(Self { socket, crypto, sending: Mutex::default(), packet });
        let incoming = Incoming {
            channel: Arc::clone(&channel),
            plain: Vec::new(),
            at: 0,
            raw: vec![0; PIECE_BYTES].into(),
            silence: packet,
        };
        Ok((channel, incoming))
    }

    /// Returns whether the other side's certificate is that of a node. Always true without TLS,
    /// since there is no certificate then.
    pub fn is_of(&self, node: NodeId) -> bool {
        let Some(crypto) = &self.crypto else { return true };
        let crypto = lock(crypto);
        crypto.peer_certificates().and_then(<[_]>::first).is_some_and(|own| names(own, node))
    }

    /// Sends the bytes that `make` returns. It is called when the channel is free, so at most one
    /// packet exists at a time. If sending fails, the connection is closed.
    pub fn send(&self, make: impl FnOnce() -> Vec<u8>) -> io::Result<()> {
        let turn = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        self.send_in_turn(&turn, &make(), Deadline::after(self.packet))
    }

    /// Sends bytes before `deadline`.
    pub fn send_until(&self, bytes: &[u8], deadline: Deadline) -> io::Result<()> {
        let turn = self.sending.lock().unwrap_or_else(PoisonError::into_inner);
        self.send_in_turn(&turn, bytes, deadline)
    }

    /// Sends a heartbeat, unless a packet is being sent.
    pub fn beat(&self) -> io::Result<()> {
        match self.sending.try_lock() {
            Ok(turn) => {
                let deadline = Deadline::after(self.packet);
                self.send_in_turn(&turn, &Packet::HEARTBEAT.encode(), deadline)
            }
            Err(TryLockError::WouldBlock) => Ok(()),
            Err(TryLockError::Poisoned(_)) => Err(io::Error::other("a sender panicked")),
        }
    }

    fn send_in_turn(
        &self,
        _turn: &MutexGuard<'_, ()>,
        bytes: &[u8],
        deadline: Deadline,
    ) -> io::Result<()> {
        let mut timed = Timed { socket: &self.socket, deadline };
        let sent = match &self.crypto {
            None => timed.write_all(bytes),
            Some(crypto) => bytes.chunks(PIECE_BYTES).try_for_each(|piece| {
                let sealed = sealed(&mut lock(crypto), piece)?;
                timed.write_all(&sealed)
            }),
        };
        // No packet may follow one that was sent in part.
        if sent.is_err() {
            self.close();
        }
        sent
    }

    /// Closes the connection. Threads that read or send get an error.
    pub fn close(&self) {
        // It may be closed already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

fn lock(crypto: &Mutex<Connection>) -> MutexGuard<'_, Connection> {
    crypto.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Returns the bytes that the socket must get for `piece`.
fn sealed(connection: &mut Connection, piece: &[u8]) -> io::Result<Vec<u8>> {
    connection.writer().write_all(piece)?;
    let mut sealed = Vec::with_capacity(piece.len() + 256);
    while connection.wants_write() {
        connection.write_tls(&mut sealed)?;
    }
    Ok(sealed)
}

impl Incoming {
    /// Sets the maximum time without a byte from the other side.
    pub fn set_silence(&mut self, silence: Duration) {
        self.silence = silence;
    }

    /// Reads the head of the next packet.
    pub fn packet(&mut self) -> io::Result<Packet> {
        let mut head = [0; PACKET_BYTES];
        // Heartbeats are packets too, so the first byte comes within the limit of silence.
        self.fill(&mut head[..1], Deadline::after(self.silence))?;
        self.fill(&mut head[1..], Deadline::after(self.silence))?;
        Packet::decode(&head).map_err(malformed)
    }

    /// Reads a frame. Memory grows with what arrives, not with what is announced.
    pub fn frame(&mut self) -> io::Result<Vec<u8>> {
        let deadline = Deadline::after(self.channel.packet);
        let mut head = [0; HEAD_BYTES];
        self.fill(&mut head, deadline)?;
        let length = frame_bytes(&head).map_err(malformed)?;
        let mut frame = head.to_vec();
        while frame.len() < length {
            let have = frame.len();
            frame.resize(length.min(have + (256 << 10)), 0);
            self.fill(&mut frame[have..], deadline)?;
        }
        Ok(frame)
    }

    /// Fills `into` with bytes.
    pub fn fill(&mut self, mut into: &mut [u8], deadline: Deadline) -> io::Result<()> {
        while !into.is_empty() {
            let waiting = &self.plain[self.at..];
            if waiting.is_empty() {
                self.more(deadline)?;
                continue;
            }
            let length = waiting.len().min(into.len());
            let (now, later) = into.split_at_mut(length);
            now.copy_from_slice(&waiting[..length]);
            self.at += length;
            into = later;
        }
        Ok(())
    }

    /// Waits for bytes.
    fn more(&mut self, deadline: Deadline) -> io::Result<()> {
        self.plain.clear();
        self.at = 0;
        let socket = &self.channel.socket;
        if let Some(crypto) = &self.channel.crypto
            && opened(&mut lock(crypto), &[], &mut self.plain)?
        {
            return Ok(());
        }
        let timeout = timeout(deadline)?.min(self.silence);
        socket.set_read_timeout(Some(timeout))?;
        let mut from = socket;
        let length = match from.read(&mut self.raw) {
            Ok(0) => return Err(closed()),
            Ok(length) => length,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                let ms = timeout.as_millis();
                let text = format!("nothing was heard from the other side for {ms} ms");
                return Err(io::Error::new(io::ErrorKind::TimedOut, text));
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(()),
            Err(error) => return Err(error),
        };
        match &self.channel.crypto {
            None => self.plain.extend_from_slice(&self.raw[..length]),
            Some(crypto) => {
                opened(&mut lock(crypto), &self.raw[..length], &mut self.plain)?;
            }
        }
        Ok(())
    }
}

/// Decrypts bytes of the socket and appends the plain text. Returns whether there was any.
fn opened(connection: &mut Connection, mut raw: &[u8], into: &mut Vec<u8>) -> io::Result<bool> {
    let before = into.len();
    loop {
        match connection.reader().read_to_end(into) {
            // TLS announces the end of the connection.
            Ok(_) if into.len() == before => return Err(closed()),
            Ok(_) => return Ok(true),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => return Err(error),
        }
        if raw.is_empty() {
            return Ok(into.len() > before);
        }
        connection.read_tls(&mut raw)?;
        connection.process_new_packets().map_err(broken)?;
    }
}

fn malformed(error: evenkeel_wire::agent::Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error.to_string())
}

/// Sends heartbeats until it is dropped.
pub(crate) struct Heart {
    end: Arc<(Mutex<bool>, Condvar)>,
}

impl Heart {
    pub fn start(channel: &Arc<Channel>, silence: Duration, name: &str) -> io::Result<Self> {
        let end = Arc::new((Mutex::new(false), Condvar::new()));
        let channel = Arc::clone(channel);
        let of_thread = Arc::clone(&end);
        std::thread::Builder::new().name(name.to_owned()).spawn(move || {
            let (ended, told) = &*of_thread;
            let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
            while !*ended {
                let waited = told.wait_timeout(ended, silence / 3);
                ended = waited.unwrap_or_else(PoisonError::into_inner).0;
                // A failed heartbeat has closed the connection, so its reader notices.
                if *ended || channel.beat().is_err() {
                    return;
                }
            }
        })?;
        Ok(Self { end })
    }
}

impl Drop for Heart {
    fn drop(&mut self) {
        *self.end.0.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.end.1.notify_all();
    }
}
