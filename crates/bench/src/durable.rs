//! A log as databases write it: one durable write after another, each sent when the previous one
//! is answered.
//!
//! It has a client of its own, because fio's nbd engine cannot set FUA: it sends a write and a
//! flush, two requests that count as two I/Os.

use evenkeel_core::convert::saturating;
use std::io::{self, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use evenkeel_wire::nbd::constants::{command, command_flag};
use evenkeel_wire::nbd::handshake::{Client, ClientGoal, ClientPlan, ClientStep};
use evenkeel_wire::nbd::transmission::{Event, REQUEST_BYTES, ReplyReader, RequestHeader};

use evenkeel_lab::LabError;
use evenkeel_os::clock;
use evenkeel_sim::figures::histogram::{LatencyHistogram, LatencySummary};

/// Bytes of each write: the size at which IOPS are sold.
pub const LOG_BLOCK_BYTES: u32 = 16 << 10;

/// Bytes of each write that fills a volume.
const FILL_BLOCK_BYTES: u32 = 1 << 20;

/// A server that does not answer within this time is given up.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// The results of a log writer.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LogRun {
    /// Durable writes per second.
    pub writes_per_second: f64,
    /// Times from the sending of a write to its answer.
    pub latency: LatencySummary,
}

/// Writes 16 KiB after 16 KiB with FUA for this time, from the start of the export and round again.
///
/// # Errors
/// When the server cannot be reached, refuses a write, cannot write durably, or does not answer.
pub fn write_log(socket: &Path, export: &str, time: Duration) -> Result<LogRun, LabError> {
    let run = Connection::open(socket, export).and_then(|mut log| log.run(time));
    run.map_err(LabError::io("cannot write durably over", socket))
}

/// Makes this number of durable writes of `block_bytes`, one after the other. Returns how long they
/// took, in nanoseconds.
///
/// # Errors
/// As [`write_log`].
pub fn write_batch(
    socket: &Path,
    export: &str,
    writes: u64,
    block_bytes: u32,
) -> Result<u64, LabError> {
    let started = clock::monotonic().ns;
    let mut left = writes;
    write_while(socket, export, block_bytes, &mut |_| {
        left = left.saturating_sub(1);
        left > 0
    })?;
    Ok(clock::monotonic().ns - started)
}

/// Makes durable writes of `block_bytes` one after the other, until `go_on` returns false. It is
/// called after each write with its duration in nanoseconds, and may sleep.
///
/// # Errors
/// As [`write_log`].
pub fn write_while(
    socket: &Path,
    export: &str,
    block_bytes: u32,
    go_on: &mut dyn FnMut(u64) -> bool,
) -> Result<(), LabError> {
    let mut writes = || -> io::Result<()> {
        let mut log = Connection::open(socket, export)?;
        let mut message = message(block_bytes);
        let blocks = (log.size_bytes / u64::from(block_bytes)).max(1);
        for number in 0.. {
            let sent_at = clock::monotonic().ns;
            let offset = number % blocks * u64::from(block_bytes);
            log.write(number, command_flag::FUA, offset, &mut message)?;
            if !go_on(clock::monotonic().ns - sent_at) {
                break;
            }
        }
        Ok(())
    };
    writes().map_err(LabError::io("cannot write durably over", socket))
}

/// Writes the first `bytes` of an export once, so that none of them is a hole, and flushes.
///
/// # Errors
/// When the server cannot be reached, refuses a write, or does not answer.
pub fn fill(socket: &Path, export: &str, bytes: u64) -> Result<(), LabError> {
    let filled = Connection::open(socket, export).and_then(|mut export| export.fill(bytes));
    filled.map_err(LabError::io("cannot fill a volume over", socket))
}

/// A client that has one request in flight at most.
pub(super) struct Connection {
    stream: UnixStream,
    reader: ReplyReader,
    size_bytes: u64,
}

impl Connection {
    pub(super) fn open(socket: &Path, export: &str) -> io::Result<Self> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        stream.set_write_timeout(Some(ANSWER_MAX))?;
        let mut client = Client::new(ClientPlan {
            export: export.to_owned(),
            goal: ClientGoal::Transmit,
            structured_replies: false,
            base_allocation: false,
        });
        loop {
            match client.poll_output() {
                Some(ClientStep::Send(bytes)) => stream.write_all(&bytes)?,
                Some(ClientStep::Ready(remote)) => {
                    let size_bytes = remote.size_bytes;
                    if size_bytes < u64::from(LOG_BLOCK_BYTES) {
                        return Err(io::Error::other(format!("{size_bytes} bytes are no log")));
                    }
                    return Ok(Self { stream, reader: ReplyReader::new(0), size_bytes });
                }
                Some(other) => return Err(io::Error::other(format!("{export}: {other:?}"))),
                None => {
                    // Byte by byte, since the bytes after the handshake belong to the caller.
                    let mut byte = [0];
                    stream.read_exact(&mut byte)?;
                    client.handle(&byte);
                }
            }
        }
    }

    /// Returns the stream after the handshake, for a client of another kind, and the export's size
    /// in bytes.
    pub(super) fn into_stream(self) -> (UnixStream, u64) {
        (self.stream, self.size_bytes)
    }

    /// Returns the stream, for requests of another kind.
    #[cfg(test)]
    pub(super) fn stream(&mut self) -> &mut UnixStream {
        &mut self.stream
    }

    fn run(&mut self, time: Duration) -> io::Result<LogRun> {
        let mut latency = LatencyHistogram::new();
        let block = u64::from(LOG_BLOCK_BYTES);
        let mut message = message(LOG_BLOCK_BYTES);
        let started = clock::now();
        let mut number = 0_u64;
        let mut sent_at = started;
        while sent_at - started < time {
            let offset = number % (self.size_bytes / block) * block;
            self.write(number, command_flag::FUA, offset, &mut message)?;
            let answered_at = clock::now();
            let ns = saturating::<_, u64>((answered_at - sent_at).as_nanos());
            latency.record(ns);
            number += 1;
            sent_at = answered_at;
        }
        let writes_per_second = number as f64 / (sent_at - started).as_secs_f64();
        Ok(LogRun { writes_per_second, latency: latency.summary() })
    }

    pub(super) fn fill(&mut self, bytes: u64) -> io::Result<()> {
        let mut message = message(FILL_BLOCK_BYTES);
        let blocks = bytes.min(self.size_bytes) / u64::from(FILL_BLOCK_BYTES);
        for number in 0..blocks {
            self.write(number, 0, number * u64::from(FILL_BLOCK_BYTES), &mut message)?;
        }
        let flags = 0;
        let command = command::FLUSH;
        let cookie = blocks;
        let flush = RequestHeader { flags, command, cookie, offset: 0, length: 0 };
        self.stream.write_all(&flush.encode())?;
        self.wait_for(cookie)
    }

    /// Sends a write of the message's payload and waits for the answer.
    fn write(
        &mut self,
        cookie: u64,
        flags: u16,
        offset: u64,
        message: &mut [u8],
    ) -> io::Result<()> {
        let (head, payload) = message.split_at_mut(REQUEST_BYTES);
        let length = u32::try_from(payload.len()).map_err(io::Error::other)?;
        let header = RequestHeader { flags, command: command::WRITE, cookie, offset, length };
        head.copy_from_slice(&header.encode());
        self.stream.write_all(message)?;
        self.wait_for(cookie)
    }

    /// Waits for the answer to the one request that is under way.
    fn wait_for(&mut self, number: u64) -> io::Result<()> {
        let mut input = [0; 64];
        loop {
            let count = match self.stream.read(&mut input) {
                Ok(0) => return Err(io::ErrorKind::UnexpectedEof.into()),
                Ok(count) => count,
                // A socket with a timeout is not read again by the kernel after a signal.
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) => return Err(error),
            };
            let (_, event) = self.reader.handle(&input[..count]).map_err(io::Error::other)?;
            match event {
                None => {}
                Some(Event::Simple { cookie, error: None }) if cookie == number => return Ok(()),
                Some(other) => return Err(io::Error::other(format!("write {number}: {other:?}"))),
            }
        }
    }
}

/// Returns a buffer with room for a header, and a payload without zeros, which some servers would
/// not store.
fn message(payload_bytes: u32) -> Vec<u8> {
    vec![0x5a; REQUEST_BYTES + payload_bytes as usize]
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use evenkeel_wire::nbd::ExportInfo;
    use evenkeel_wire::nbd::handshake::{Server, ServerStep};
    use evenkeel_wire::nbd::transmission::{ErrorCode, reply};
    use std::os::unix::net::UnixListener;
    use std::thread::JoinHandle;

    /// A request that a server received: flags, command, offset, length.
    type Asked = (u16, u16, u64, u32);

    /// Starts a server for one client that answers every request with `error`. Returns the requests
    /// at its end.
    fn server(socket: &Path, size_bytes: u64, error: Option<ErrorCode>) -> JoinHandle<Vec<Asked>> {
        let listener = UnixListener::bind(socket).unwrap();
        std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            shake_hands(&mut stream, size_bytes);
            let mut asked = Vec::new();
            let mut head = [0; REQUEST_BYTES];
            while stream.read_exact(&mut head).is_ok() {
                let request = RequestHeader::decode(&head).unwrap();
                let bytes = if request.command == command::WRITE { request.length } else { 0 };
                stream.read_exact(&mut vec![0; bytes as usize]).unwrap();
                asked.push((request.flags, request.command, request.offset, request.length));
                stream.write_all(&reply::simple(request.cookie, error)).unwrap();
            }
            asked
        })
    }

    /// Does a server's part of the handshake, for an export of any name.
    pub fn shake_hands(stream: &mut UnixStream, size_bytes: u64) {
        let mut server = Server::new();
        loop {
            match server.poll_output() {
                Some(ServerStep::Send(bytes)) => stream.write_all(&bytes).unwrap(),
                Some(ServerStep::WantExport(name)) => {
                    server.export(Some(ExportInfo::new(name, size_bytes)));
                }
                Some(ServerStep::Ready(_)) => return,
                Some(other) => panic!("{other:?}"),
                None => {
                    let mut byte = [0];
                    stream.read_exact(&mut byte).unwrap();
                    server.handle(&byte);
                }
            }
        }
    }

    #[test]
    fn a_log_is_durable_writes_in_order_and_round_again() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let block = u64::from(LOG_BLOCK_BYTES);
        let asked = server(&socket, 2 * block + 1, None);
        let run = write_log(&socket, "vol", Duration::from_millis(50)).unwrap();
        let asked = asked.join().unwrap();
        assert_eq!(asked.len() as u64, run.latency.count);
        assert!(run.writes_per_second > 0.0);
        for (number, request) in (0_u64..).zip(asked) {
            let expected = (command_flag::FUA, command::WRITE, number % 2 * block, LOG_BLOCK_BYTES);
            assert_eq!(request, expected);
        }
    }

    #[test]
    fn filling_writes_all_of_it_once_and_flushes() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let asked = server(&socket, 8 << 20, None);
        fill(&socket, "vol", 3 << 20).unwrap();
        let write = |number: u64| (0, command::WRITE, number << 20, FILL_BLOCK_BYTES);
        let expected = vec![write(0), write(1), write(2), (0, command::FLUSH, 0, 0)];
        assert_eq!(asked.join().unwrap(), expected);
    }

    #[test]
    fn a_refusal_and_a_server_that_is_not_there_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("s");
        let gone = write_log(&socket, "vol", Duration::from_secs(1)).unwrap_err().to_string();
        assert!(gone.contains("cannot write durably over"), "{gone}");
        let server = server(&socket, 8 << 20, Some(ErrorCode::NoSpace));
        let refused = write_log(&socket, "vol", Duration::from_secs(1)).unwrap_err().to_string();
        assert!(refused.contains("NoSpace"), "{refused}");
        assert_eq!(server.join().unwrap().len(), 1);
    }
}
