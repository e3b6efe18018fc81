//! The part of the kernel's FUSE protocol that one file needs. The file is the root of its mount,
//! so there are no lookups, listings or creations.
//!
//! The layouts are those of the kernel's `include/uapi/linux/fuse.h`, in the byte order of the
//! machine. The crate `fuser` speaks all of it, at the price of thirty more crates.

use evenkeel_core::convert::saturating;

/// The version that is spoken; the kernel speaks every older one.
const VERSION: (u32, u32) = (7, 31);

/// Most bytes of a read or write.
pub(super) const DATA_BYTES_MAX: u32 = 1 << 20;
/// Room for the largest request: a write, and what stands before its data.
pub(super) const REQUEST_BYTES_MAX: usize = DATA_BYTES_MAX as usize + 4_096;
/// Bytes before an answer's own.
pub(super) const HEAD_BYTES: usize = 16;
/// The kernel's limit on concurrent background requests, such as those of a loop device.
pub(super) const BACKGROUND_MAX: u16 = 128;

const IN_HEAD_BYTES: usize = 40;
/// Bytes of a write request between its head and its data.
const WRITE_BYTES: usize = 40;
const PAGE_BYTES: u32 = 4_096;

const ASYNC_READ: u32 = 1 << 0;
const ASYNC_DIRECT: u32 = 1 << 15;
const MAX_PAGES: u32 = 1 << 22;

const OPEN_DIRECT: u32 = 1 << 0;
const OPEN_PARALLEL_WRITES: u32 = 1 << 6;

const REGULAR_FILE: u32 = 0o100_600;
/// The file's number: that of the root.
const ROOT: u64 = 1;
/// Seconds for which the kernel may cache the file's size.
const VALID_S: u64 = 3_600;

/// A request of the kernel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Ask<'a> {
    /// Negotiates the version and bounds. Kernels with a later version accept this one.
    Begin { readahead_bytes: u32 },
    /// Reads the file's attributes.
    Attributes,
    /// Opens the file.
    Open,
    /// Reads from the file.
    Read { offset: u64, bytes: u32 },
    /// Writes to the file.
    Write { offset: u64, data: &'a [u8] },
    /// Makes earlier writes durable.
    Sync,
    /// A request that succeeds without an action.
    Done,
    /// A request without an answer.
    Silent,
    /// A request that a file of a fixed size does not support.
    Unknown,
}

/// Parses a request. Returns its number and what it asks for; `None` if the message is no request,
/// and so has no answer.
pub(super) fn parse(message: &[u8]) -> Option<(u64, Ask<'_>)> {
    let length = usize::try_from(u32_at(message, 0)?).ok()?;
    let message = message.get(..length)?;
    let opcode = u32_at(message, 4)?;
    let unique = u64_at(message, 8)?;
    let body = message.get(IN_HEAD_BYTES..)?;
    Some((unique, ask(opcode, body).unwrap_or(Ask::Unknown)))
}

/// Parses the body of a request; returns `None` if fields are missing.
fn ask(opcode: u32, body: &[u8]) -> Option<Ask<'_>> {
    Some(match opcode {
        26 => Ask::Begin { readahead_bytes: u32_at(body, 8)? },
        // Changes of size or mode are ignored, and the attributes returned.
        3 | 4 => Ask::Attributes,
        14 => Ask::Open,
        15 => Ask::Read { offset: u64_at(body, 8)?, bytes: u32_at(body, 16)? },
        16 => {
            let bytes = usize::try_from(u32_at(body, 16)?).ok()?;
            let data = body.get(WRITE_BYTES..)?.get(..bytes)?;
            Ask::Write { offset: u64_at(body, 8)?, data }
        }
        20 => Ask::Sync,
        // Release, flush at close, destroy.
        18 | 25 | 38 => Ask::Done,
        // Forget, interrupt, forget several.
        2 | 36 | 42 => Ask::Silent,
        _ => Ask::Unknown,
    })
}

/// Returns the head of an answer with `total_bytes` bytes, the head included.
pub(super) fn head(unique: u64, total_bytes: usize) -> [u8; HEAD_BYTES] {
    let mut head = [0; HEAD_BYTES];
    head[..4].copy_from_slice(&saturating::<_, u32>(total_bytes).to_ne_bytes());
    head[8..].copy_from_slice(&unique.to_ne_bytes());
    head
}

/// Returns the answer to a failed request, with an error number of the system.
pub(super) fn failure(unique: u64, error: rustix::io::Errno) -> [u8; HEAD_BYTES] {
    let mut head = head(unique, HEAD_BYTES);
    head[4..8].copy_from_slice(&(-error.raw_os_error()).to_ne_bytes());
    head
}

/// Returns the answer to [`Ask::Begin`]. It allows many concurrent requests, large ones, and none
/// of them waits for another.
pub(super) fn begun(unique: u64, readahead_bytes: u32) -> Vec<u8> {
    let mut answer = Answer::default();
    answer.u32(VERSION.0).u32(VERSION.1).u32(readahead_bytes);
    answer.u32(ASYNC_READ | ASYNC_DIRECT | MAX_PAGES);
    // The kernel throttles its own threads above the congestion threshold, so it is the maximum.
    answer.u16(BACKGROUND_MAX).u16(BACKGROUND_MAX);
    let pages = saturating::<_, u16>(DATA_BYTES_MAX / PAGE_BYTES);
    // Times are whole nanoseconds; nothing is mapped.
    answer.u32(DATA_BYTES_MAX).u32(1).u16(pages).u16(0);
    answer.zeroes(32);
    answer.finish(unique)
}

/// Returns the answer to [`Ask::Attributes`].
pub(super) fn attributes(unique: u64, size_bytes: u64) -> Vec<u8> {
    let mut answer = Answer::default();
    answer.u64(VALID_S).u32(0).u32(0);
    answer.u64(ROOT).u64(size_bytes).u64(size_bytes / 512);
    // Its times, and their nanoseconds.
    answer.zeroes(3 * 8 + 3 * 4);
    answer.u32(REGULAR_FILE).u32(1).u32(0).u32(0).u32(0).u32(PAGE_BYTES).u32(0);
    answer.finish(unique)
}

/// Returns the answer to [`Ask::Open`]: without the page cache, and with concurrent writes.
pub(super) fn opened(unique: u64) -> Vec<u8> {
    let mut answer = Answer::default();
    answer.u64(0).u32(OPEN_DIRECT | OPEN_PARALLEL_WRITES).u32(0);
    answer.finish(unique)
}

/// Returns the answer to [`Ask::Write`].
pub(super) fn written(unique: u64, bytes: u32) -> Vec<u8> {
    let mut answer = Answer::default();
    answer.u32(bytes).u32(0);
    answer.finish(unique)
}

/// The fields of an answer, after room for its head.
struct Answer(Vec<u8>);

impl Default for Answer {
    fn default() -> Self {
        Self(vec![0; HEAD_BYTES])
    }
}

impl Answer {
    fn u16(&mut self, value: u16) -> &mut Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.0.extend_from_slice(&value.to_ne_bytes());
        self
    }

    fn zeroes(&mut self, count: usize) {
        self.0.resize(self.0.len() + count, 0);
    }

    fn finish(mut self, unique: u64) -> Vec<u8> {
        let head = head(unique, self.0.len());
        self.0[..HEAD_BYTES].copy_from_slice(&head);
        self.0
    }
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    let field = bytes.get(at..)?.first_chunk()?;
    Some(u32::from_ne_bytes(*field))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    let field = bytes.get(at..)?.first_chunk()?;
    Some(u64::from_ne_bytes(*field))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(opcode: u32, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(IN_HEAD_BYTES + body.len()).unwrap();
        let mut message = Vec::new();
        message.extend_from_slice(&length.to_ne_bytes());
        message.extend_from_slice(&opcode.to_ne_bytes());
        message.extend_from_slice(&77_u64.to_ne_bytes());
        message.resize(IN_HEAD_BYTES, 0);
        message.extend_from_slice(body);
        message
    }

    fn transfer(offset: u64, bytes: u32, data: &[u8]) -> Vec<u8> {
        let mut body = vec![0; 8];
        body.extend_from_slice(&offset.to_ne_bytes());
        body.extend_from_slice(&bytes.to_ne_bytes());
        body.resize(WRITE_BYTES, 0);
        body.extend_from_slice(data);
        body
    }

    #[test]
    fn requests_are_read_as_the_kernel_lays_them_out() {
        let read = request(15, &transfer(1 << 40, 16_384, &[]));
        assert_eq!(parse(&read), Some((77, Ask::Read { offset: 1 << 40, bytes: 16_384 })));
        let write = request(16, &transfer(512, 3, b"abc"));
        assert_eq!(parse(&write), Some((77, Ask::Write { offset: 512, data: b"abc" })));
        let [sync, forget, list] = [20, 2, 28].map(|opcode| request(opcode, &[0; 64]));
        assert_eq!(parse(&sync), Some((77, Ask::Sync)));
        assert_eq!(parse(&forget), Some((77, Ask::Silent)));
        assert_eq!(parse(&list), Some((77, Ask::Unknown)));
    }

    #[test]
    fn truncated_request_is_not_parsed() {
        let write = request(16, &transfer(512, 3, b"abc"));
        for length in 0..write.len() {
            assert_eq!(parse(&write[..length]), None, "{length}");
        }
        // The request promises more data than it has. It still has a number, and so gets an answer.
        let torn = request(16, &transfer(512, 4, b"abc"));
        assert_eq!(parse(&torn), Some((77, Ask::Unknown)));
    }

    #[test]
    fn answers_have_the_kernel_s_lengths() {
        for (answer, body_bytes) in [
            (begun(77, 0), 64),
            (attributes(77, 5 << 30), 104),
            (opened(77), 16),
            (written(77, 512), 8),
            (failure(77, rustix::io::Errno::IO).to_vec(), 0),
        ] {
            assert_eq!(answer.len(), HEAD_BYTES + body_bytes);
            assert_eq!(u32_at(&answer, 0), u32::try_from(answer.len()).ok());
            assert_eq!(u64_at(&answer, 8), Some(77));
        }
        assert_eq!(u32_at(&failure(77, rustix::io::Errno::IO), 4), Some((-5_i32) as u32));
    }
}
