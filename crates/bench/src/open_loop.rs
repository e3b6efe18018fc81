//! A client that sends requests when they are due, regardless of those without an answer.
//!
//! fio is no such client: between two requests of a rate it waits for all that it has sent. So
//! requests that a limit delays are never made, and reported delays are too short.

use evenkeel_core::convert::saturating;
use std::io::{BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use evenkeel_lab::LabError;
use evenkeel_lab::nbd_uri::Export;
use evenkeel_os::clock;
use evenkeel_wire::nbd::constants::{
    EXPORT_NAME_ZEROES, IHAVEOPT, NBDMAGIC, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, handshake_flag,
    option,
};

/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(60);
const CMD_READ: u16 = 0;
const CMD_WRITE: u16 = 1;
const REPLY_BYTES: usize = 16;

/// A request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Due {
    /// The time at which it is due, in microseconds after the beginning.
    pub at_us: u64,
    /// Its position in bytes.
    pub offset: u64,
    /// Its length in bytes.
    pub length: u32,
    /// Whether it writes zeroes; otherwise it reads.
    pub writes: bool,
}

/// The outcome of the requests.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Sent {
    /// Time at which the first was due, in milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Time from when each request was due until its answer, in nanoseconds, in the order of
    /// requests.
    pub delays_ns: Vec<u64>,
}

/// Sends requests, which are in the order of their times, and waits for all answers.
///
/// # Errors
/// If the server does not speak NBD as expected, answers with an error, or not at all.
pub fn run(export: &Export, due: &[Due]) -> Result<Sent, LabError> {
    let io = |what| LabError::io(what, &export.socket);
    let mut stream = UnixStream::connect(&export.socket).map_err(io("cannot connect to"))?;
    stream.set_read_timeout(Some(ANSWER_MAX)).map_err(io("cannot use"))?;
    greet(&mut stream, &export.name).map_err(io("no handshake with"))?;
    let sender = stream.try_clone().map_err(io("cannot use"))?;
    let started_unix_ms = clock::unix_us() / 1_000;
    let start_ns = clock::monotonic().ns;
    std::thread::scope(|scope| {
        let sending = scope.spawn(move || send(&sender, due, start_ns));
        let delays_ns = receive(&mut stream, due, start_ns);
        if delays_ns.is_err() {
            // The sender might wait for room in the socket forever.
            let _ = stream.shutdown(std::net::Shutdown::Both);
        }
        let sent = sending.join().map_err(|_| LabError::failed("the sender ended early"))?;
        let delays_ns = delays_ns.map_err(io("no answer from"))?;
        sent.map_err(io("cannot send to"))?;
        Ok(Sent { started_unix_ms, delays_ns })
    })
}

/// Does the handshake for one export by its name, with simple replies.
pub(crate) fn greet(stream: &mut (impl Read + Write), export: &str) -> std::io::Result<()> {
    let mut greeting = [0; 18];
    stream.read_exact(&mut greeting)?;
    let magic = [NBDMAGIC.to_be_bytes(), IHAVEOPT.to_be_bytes()].concat();
    if !greeting.starts_with(&magic) {
        return Err(std::io::Error::other("the greeting is not NBD's"));
    }
    let mut answer = u32::from(handshake_flag::FIXED_NEWSTYLE).to_be_bytes().to_vec();
    answer.extend(IHAVEOPT.to_be_bytes());
    answer.extend(option::EXPORT_NAME.to_be_bytes());
    answer.extend(saturating::<_, u32>(export.len()).to_be_bytes());
    answer.extend(export.as_bytes());
    stream.write_all(&answer)?;
    // Size, flags, and zeroes.
    let mut told = [0; 10 + EXPORT_NAME_ZEROES];
    stream.read_exact(&mut told)
}

fn send(stream: &UnixStream, due: &[Due], start_ns: u64) -> std::io::Result<()> {
    let longest = due.iter().filter(|it| it.writes).map(|it| it.length).max().unwrap_or(0);
    let zeroes = vec![0; longest as usize];
    let mut stream = BufWriter::new(stream);
    for (cookie, request) in (0_u64..).zip(due) {
        let at_ns = start_ns + request.at_us * 1_000;
        if clock::monotonic().ns < at_ns {
            stream.flush()?;
            while clock::monotonic().ns < at_ns {
                clock::sleep_until_ns(at_ns);
            }
        }
        let command = if request.writes { CMD_WRITE } else { CMD_READ };
        stream.write_all(&REQUEST_MAGIC.to_be_bytes())?;
        stream.write_all(&[0; 2])?;
        stream.write_all(&command.to_be_bytes())?;
        stream.write_all(&cookie.to_be_bytes())?;
        stream.write_all(&request.offset.to_be_bytes())?;
        stream.write_all(&request.length.to_be_bytes())?;
        if request.writes {
            stream.write_all(zeroes.get(..request.length as usize).unwrap_or_default())?;
        }
    }
    stream.flush()
}

fn receive(stream: &mut UnixStream, due: &[Due], start_ns: u64) -> std::io::Result<Vec<u64>> {
    let longest = due.iter().map(|it| it.length).max().unwrap_or(0);
    let mut data = vec![0; longest as usize];
    let mut delays_ns = vec![0; due.len()];
    for _ in due {
        let mut reply = [0; REPLY_BYTES];
        stream.read_exact(&mut reply)?;
        let [magic @ .., _, _, _, _, _, _, _, _, _, _, _, _] = reply;
        let [_, _, _, _, error @ .., _, _, _, _, _, _, _, _] = reply;
        let [_, _, _, _, _, _, _, _, cookie @ ..] = reply;
        if u32::from_be_bytes(magic) != SIMPLE_REPLY_MAGIC {
            return Err(std::io::Error::other("a reply without its magic number"));
        }
        let error = u32::from_be_bytes(error);
        if error != 0 {
            return Err(std::io::Error::other(format!("the server answers with error {error}")));
        }
        let cookie = saturating::<_, usize>(u64::from_be_bytes(cookie));
        let (Some(request), Some(delay_ns)) = (due.get(cookie), delays_ns.get_mut(cookie)) else {
            return Err(std::io::Error::other("a reply without a request"));
        };
        if !request.writes {
            stream.read_exact(data.get_mut(..request.length as usize).unwrap_or_default())?;
        }
        let at_ns = start_ns + request.at_us * 1_000;
        *delay_ns = clock::monotonic().ns.saturating_sub(at_ns);
    }
    Ok(delays_ns)
}
