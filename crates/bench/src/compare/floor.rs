//! An NBD server that keeps no data: the least that a server can cost on a socket. Its cost is that
//! of the socket. No server that waits, receives and sends by system calls costs less.
//!
//! A thread for each connection receives the available bytes, and answers all complete requests
//! with one send. Reads return the same memory again and again; written bytes are received and
//! dropped. It has no store, queue or limits, and validates no request twice.

use std::io::{self, IoSlice, Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::thread;

use evenkeel_core::request::Operation;
use evenkeel_wire::nbd::ExportInfo;
use evenkeel_wire::nbd::handshake::{Server, ServerStep};
use evenkeel_wire::nbd::transmission::{Command, ErrorCode, REQUEST_BYTES, RequestHeader, Terms};

/// Bytes received at once: more than a unix socket holds.
const INPUT_BYTES: usize = 256 << 10;

/// Pieces of memory that the kernel takes with one call.
const PARTS_MAX: usize = 1_024;

/// The bytes that reads return, repeatedly.
static PAGE: [u8; 64 << 10] = [1; 64 << 10];

/// Serves one export of `size_bytes`, under any name, on a unix socket.
///
/// # Errors
/// When the socket cannot be made or no connection be accepted.
pub fn serve_unix(socket: &Path, size_bytes: u64) -> io::Result<()> {
    for stream in UnixListener::bind(socket)?.incoming() {
        let mut stream = stream?;
        thread::spawn(move || serve(&mut stream, size_bytes));
    }
    Ok(())
}

/// Serves one export of `size_bytes`, under any name, on TCP.
///
/// # Errors
/// When the address is taken or no connection can be accepted.
pub fn serve_tcp(address: SocketAddr, size_bytes: u64) -> io::Result<()> {
    for stream in TcpListener::bind(address)?.incoming() {
        let mut stream = stream?;
        stream.set_nodelay(true)?;
        thread::spawn(move || serve(&mut stream, size_bytes));
    }
    Ok(())
}

/// Serves one client until it leaves.
fn serve(stream: &mut (impl Read + Write), size_bytes: u64) -> io::Result<()> {
    let mut input = vec![0; INPUT_BYTES];
    let (terms, mut end) = shake_hands(stream, size_bytes, &mut input)?;
    let mut batch = Batch::default();
    // A request, and the number of bytes that are missing of its payload.
    let mut arriving: Option<(RequestHeader, usize)> = None;
    loop {
        let mut start = 0;
        loop {
            let (header, missing) = match (arriving.take(), input[start..end].first_chunk()) {
                (Some(begun), _) => begun,
                (None, Some(head)) => {
                    start += REQUEST_BYTES;
                    begin(head, &terms)?
                }
                (None, None) => break,
            };
            let payload = missing.min(end - start);
            start += payload;
            if payload < missing {
                arriving = Some((header, missing - payload));
                break;
            }
            if !batch.answer(&header, &terms) {
                return Ok(());
            }
        }
        input.copy_within(start..end, 0);
        end -= start;
        batch.send(stream)?;
        match stream.read(&mut input[end..])? {
            0 => return Ok(()),
            count => end += count,
        }
    }
}

/// Parses a request. Returns it, and the length of its payload in bytes.
fn begin(head: &[u8; REQUEST_BYTES], terms: &Terms) -> io::Result<(RequestHeader, usize)> {
    let header = RequestHeader::decode(head).map_err(|bad| closed(&bad))?;
    let payload = header.payload_bytes(terms).map_err(|large| closed(&large))?;
    Ok((header, payload as usize))
}

/// Negotiates the one export. Returns the number of bytes in `input` after the handshake.
fn shake_hands(
    stream: &mut (impl Read + Write),
    size_bytes: u64,
    input: &mut [u8],
) -> io::Result<(Terms, usize)> {
    let mut server = Server::new();
    let mut end = 0;
    loop {
        match server.poll_output() {
            Some(ServerStep::Send(bytes)) => stream.write_all(&bytes)?,
            Some(ServerStep::WantExport(name)) => {
                server.export(Some(ExportInfo::new(name, size_bytes)))
            }
            Some(ServerStep::WantList) => server.list(&[]),
            Some(ServerStep::Ready(negotiated)) => return Ok((negotiated.terms(), end)),
            Some(ServerStep::Close(reason)) => return Err(closed(&reason)),
            Some(ServerStep::StartTls) => unreachable!("the server has no TLS"),
            None => {
                let consumed = server.handle(&input[..end]);
                input.copy_within(consumed..end, 0);
                end -= consumed;
                if consumed == 0 {
                    match stream.read(&mut input[end..])? {
                        0 => return Err(io::ErrorKind::UnexpectedEof.into()),
                        count => end += count,
                    }
                }
            }
        }
    }
}

fn closed(reason: &dyn std::fmt::Display) -> io::Error {
    io::Error::other(reason.to_string())
}

/// Replies that are sent together.
#[derive(Default)]
struct Batch {
    heads: Vec<u8>,
    /// Positions in `heads` after which a payload follows, each with the payload's length in bytes.
    payloads: Vec<(usize, usize)>,
}

impl Batch {
    /// Appends the reply to a request; `false` if it ends the connection.
    fn answer(&mut self, header: &RequestHeader, terms: &Terms) -> bool {
        let cookie = header.cookie;
        let operation = match header.validate(terms) {
            Ok(Command::Disconnect) => return false,
            Ok(Command::Io { request, .. }) => Ok(request.operation),
            Err(code) => Err(code),
        };
        let head = match operation {
            Ok(Operation::Read) => terms.read_head(cookie, header.offset, header.length),
            // Its answer would describe stored bytes, and there are none.
            Ok(Operation::BlockStatus) => terms.failure(cookie, ErrorCode::NotSupported),
            Ok(_) => terms.success(cookie),
            Err(code) => terms.failure(cookie, code),
        };
        self.heads.extend_from_slice(head.as_bytes());
        if operation == Ok(Operation::Read) {
            self.payloads.push((self.heads.len(), header.length as usize));
        }
        true
    }

    fn send(&mut self, stream: &mut impl Write) -> io::Result<()> {
        let mut slices = Vec::with_capacity(2 * self.payloads.len() + 1);
        let mut from = 0;
        for &(at, bytes) in &self.payloads {
            slices.push(IoSlice::new(&self.heads[from..at]));
            for left in (0..bytes).step_by(PAGE.len()) {
                slices.push(IoSlice::new(&PAGE[..PAGE.len().min(bytes - left)]));
            }
            from = at;
        }
        slices.push(IoSlice::new(&self.heads[from..]));
        let mut left = &mut slices[..];
        // This also removes empty slices from the front.
        IoSlice::advance_slices(&mut left, 0);
        while !left.is_empty() {
            let count = stream.write_vectored(&left[..left.len().min(PARTS_MAX)])?;
            IoSlice::advance_slices(&mut left, count);
        }
        self.heads.clear();
        self.payloads.clear();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::durable::Connection;
    use evenkeel_core::request::Request;
    use std::os::unix::net::UnixStream;

    const SIZE_BYTES: u64 = 4 << 20;

    /// Serves one client while `work` runs. An error of `work` is reported before the server's,
    /// which it may cause.
    fn with_client(work: impl FnOnce(&mut Connection) -> io::Result<()>) {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("floor.socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = thread::spawn(move || serve(&mut listener.accept().unwrap().0, SIZE_BYTES));
        let mut client = Connection::open(&socket, "any").unwrap();
        work(&mut client).unwrap();
        drop(client);
        server.join().unwrap().unwrap();
    }

    #[test]
    fn every_write_is_answered_however_large() {
        with_client(|client| client.fill(SIZE_BYTES));
    }

    #[test]
    fn requests_that_come_together_are_answered_in_their_order() {
        let lengths = [4_096, 512, 100 << 10, 512];
        let request = |cookie: usize, length: u32| {
            let request = Request { operation: Operation::Read, offset: 0, length };
            RequestHeader::new(cookie as u64, &request, false).encode()
        };
        let sent: Vec<u8> =
            lengths.iter().enumerate().flat_map(|(i, &length)| request(i, length)).collect();
        with_client(|client| {
            let stream: &mut UnixStream = client.stream();
            stream.write_all(&sent).unwrap();
            for (cookie, &length) in lengths.iter().enumerate() {
                let mut reply = vec![0; 16 + length as usize];
                stream.read_exact(&mut reply).unwrap();
                assert_eq!(reply[8..16], (cookie as u64).to_be_bytes());
                assert!(reply[16..].iter().all(|&byte| byte == 1));
            }
            Ok(())
        });
    }
}
