//! A connection to one volume of a stripe, with many requests under way and no blocking wait.

use std::io::{self, Read, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use evenkeel_wire::nbd::transmission::{Event, ReplyReader, RequestHeader};

use crate::durable::Connection;

/// Bytes that are taken from a volume's socket at once.
pub(super) const INPUT_BYTES: usize = 256 << 10;

/// A volume that owes an answer and sends nothing for this long is lost.
const ANSWER_MAX: Duration = Duration::from_secs(60);

/// The receiver of a volume's answers.
pub(super) trait Answers {
    /// Returns the number of bytes that this request reads; `None` if it is no read.
    fn wants(&self, cookie: u64) -> Option<usize>;

    /// Receives some of these bytes, which begin at `at`.
    fn bytes(&mut self, cookie: u64, at: usize, bytes: &[u8]);

    /// Receives the end of a request, and whether it succeeded.
    fn done(&mut self, cookie: u64, is_good: bool);
}

/// A connection to a volume.
pub(super) struct Volume {
    stream: UnixStream,
    reader: ReplyReader,
    /// Output that waits for room in the socket.
    out: Vec<u8>,
    sent: usize,
    /// The read whose bytes come next: its cookie, and the range that is missing.
    taking: Option<(u64, Range<usize>)>,
    under_way: usize,
    heard_at: Instant,
    is_alive: bool,
}

impl Volume {
    /// Connects to an export. Returns the connection and the export's size in bytes.
    pub fn open(socket: &Path, export: &str, now: Instant) -> io::Result<(Self, u64)> {
        let (stream, size_bytes) = Connection::open(socket, export)?.into_stream();
        stream.set_nonblocking(true)?;
        let volume = Self {
            stream,
            reader: ReplyReader::new(0),
            out: Vec::new(),
            sent: 0,
            taking: None,
            under_way: 0,
            heard_at: now,
            is_alive: true,
        };
        Ok((volume, size_bytes))
    }

    /// Returns whether the connection is still in use.
    pub fn is_alive(&self) -> bool {
        self.is_alive
    }

    /// Returns whether output waits for room in the socket.
    pub fn has_output(&self) -> bool {
        self.is_alive && self.sent < self.out.len()
    }

    /// Sends a request with its payload. Returns false if the volume is lost, now or before. Then
    /// no request gets an answer any more.
    pub fn send(&mut self, header: &RequestHeader, payload: &[u8], now: Instant) -> bool {
        if !self.is_alive {
            return false;
        }
        if self.under_way == 0 {
            self.heard_at = now;
        }
        self.under_way += 1;
        let head = header.encode();
        let sent = if self.has_output() { 0 } else { self.write(&[&head, payload]) };
        let from_payload = sent.saturating_sub(head.len());
        self.out.extend_from_slice(&head[sent.min(head.len())..]);
        self.out.extend_from_slice(&payload[from_payload.min(payload.len())..]);
        self.is_alive
    }

    /// Sends output that waited for room in the socket.
    pub fn flush(&mut self) {
        let out = std::mem::take(&mut self.out);
        self.sent += self.write(&[&out[self.sent..]]);
        self.out = out;
        if self.sent == self.out.len() {
            self.out.clear();
            self.sent = 0;
        }
    }

    /// Writes as many bytes as the socket accepts. Returns their number.
    fn write(&mut self, parts: &[&[u8]]) -> usize {
        let slices: Vec<_> = parts.iter().map(|part| io::IoSlice::new(part)).collect();
        loop {
            return match self.stream.write_vectored(&slices) {
                Ok(count) => count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => 0,
                Err(_) => {
                    self.is_alive = false;
                    0
                }
            };
        }
    }

    /// Receives input from the socket into `room`, and passes it to `answers`.
    pub fn receive(&mut self, room: &mut [u8], now: Instant, answers: &mut dyn Answers) {
        while self.is_alive {
            match self.stream.read(room) {
                Ok(0) => self.is_alive = false,
                Ok(count) => {
                    self.heard_at = now;
                    self.is_alive = self.understand(&room[..count], answers);
                    if count < room.len() {
                        return;
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => self.is_alive = false,
            }
        }
    }

    /// Passes a piece of the stream to `answers`. Returns false if it violates the protocol.
    fn understand(&mut self, mut input: &[u8], answers: &mut dyn Answers) -> bool {
        while !input.is_empty() {
            if let Some((cookie, missing)) = &mut self.taking {
                let (bytes, rest) = input.split_at(input.len().min(missing.len()));
                answers.bytes(*cookie, missing.start, bytes);
                missing.start += bytes.len();
                input = rest;
                if missing.start >= missing.end {
                    let cookie = *cookie;
                    self.taking = None;
                    self.done(cookie, true, answers);
                }
                continue;
            }
            let Ok((count, event)) = self.reader.handle(input) else { return false };
            input = &input[count..];
            match event {
                None => {}
                Some(Event::Simple { cookie, error: None }) => match answers.wants(cookie) {
                    Some(bytes) if bytes > 0 => self.taking = Some((cookie, 0..bytes)),
                    _ => self.done(cookie, true, answers),
                },
                Some(Event::Simple { cookie, error: Some(_) }) => self.done(cookie, false, answers),
                // Structured replies were not negotiated.
                Some(_) => return false,
            }
        }
        true
    }

    fn done(&mut self, cookie: u64, is_good: bool, answers: &mut dyn Answers) {
        self.under_way = self.under_way.saturating_sub(1);
        answers.done(cookie, is_good);
    }

    /// Gives the volume up if it has owed an answer for too long. Returns whether it did so now.
    pub fn is_given_up(&mut self, now: Instant) -> bool {
        let is_late = self.under_way > 0 && now.duration_since(self.heard_at) > ANSWER_MAX;
        let is_new = is_late && self.is_alive;
        self.is_alive &= !is_late;
        is_new
    }
}

impl AsFd for Volume {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}
