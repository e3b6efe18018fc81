//! A client that writes blocks of 4 KiB and records the time of each answer. The longest time
//! without an answer is the outage of its user.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::open_loop::greet;
use evenkeel_lab::LabError;
use evenkeel_lab::child::wait_for;
use evenkeel_os::clock;
use evenkeel_wire::nbd::constants::{SIMPLE_REPLY_MAGIC, command};
use evenkeel_wire::nbd::transmission::RequestHeader;

const BLOCK_BYTES: u32 = 4 << 10;
/// Blocks that it writes in turn, each in an object of its own.
const BLOCKS: u64 = 16;
const STRIDE: u64 = 4 << 20;
/// Pause from an answer to the next request.
const BREATH: Duration = Duration::from_millis(1);
/// Pause before it connects again.
const AGAIN: Duration = Duration::from_millis(20);
/// Longest wait for an answer.
const ANSWER_MAX: Duration = Duration::from_secs(60);
/// Maximum number of answers that are kept: half an hour of them.
const ANSWERS_MAX: usize = 1 << 21;
/// Time between two checks for an answer.
const LOOK: Duration = Duration::from_millis(5);

#[derive(Default)]
struct Shared {
    is_over: AtomicBool,
    connections: AtomicU64,
    /// Time of each answer, in nanoseconds of the monotonic clock.
    answers_ns: Mutex<Vec<u64>>,
}

impl Shared {
    fn answers(&self) -> MutexGuard<'_, Vec<u64>> {
        self.answers_ns.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A client that writes on a thread of its own until it is dropped.
pub(super) struct Writer {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Writer {
    /// Starts writing to `volume` through the first of these addresses, and through the next one
    /// when a connection ends.
    pub fn start(addresses: Vec<SocketAddr>, volume: &str) -> Self {
        let shared = Arc::<Shared>::default();
        let there = Arc::clone(&shared);
        let volume = volume.to_owned();
        let work = move || {
            for address in addresses.iter().cycle() {
                if there.is_over.load(Ordering::Acquire) {
                    return;
                }
                // It connects again after any end, as the client of a disk does.
                let _ = write(*address, &volume, &there);
                clock::pause(AGAIN);
            }
        };
        Self { shared, thread: Some(std::thread::spawn(work)) }
    }

    /// Returns the number of connections that it has had.
    pub fn connections(&self) -> u64 {
        self.shared.connections.load(Ordering::Acquire)
    }

    /// Waits for an answer after a time of the monotonic clock, and returns the time of that
    /// answer.
    ///
    /// # Errors
    /// When none comes.
    pub fn answered_after(&self, ns: u64, longest: Duration) -> Result<u64, LabError> {
        wait_for("an answer to a client", longest, LOOK, || {
            let answers = self.shared.answers();
            Ok(answers.get(answers.partition_point(|at| *at <= ns)).copied())
        })
    }

    /// Returns the longest time without an answer that overlaps this span, in milliseconds.
    pub fn longest_gap_ms(&self, from_ns: u64, to_ns: u64) -> f64 {
        longest_gap(&self.shared.answers(), from_ns, to_ns) as f64 / 1e6
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.shared.is_over.store(true, Ordering::Release);
        // If the thread has panicked, waits for its answers have failed already.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

fn longest_gap(answers_ns: &[u64], from_ns: u64, to_ns: u64) -> u64 {
    let first = answers_ns.partition_point(|at| *at < from_ns).saturating_sub(1);
    let pairs = answers_ns.get(first..).unwrap_or_default().windows(2);
    let in_span = pairs.take_while(|pair| pair[0] <= to_ns);
    in_span.map(|pair| pair[1] - pair[0]).max().unwrap_or_default()
}

fn write(address: SocketAddr, volume: &str, shared: &Shared) -> io::Result<()> {
    let mut stream = TcpStream::connect(address)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(ANSWER_MAX))?;
    greet(&mut stream, volume)?;
    shared.connections.fetch_add(1, Ordering::AcqRel);
    let mut message = Vec::new();
    for number in 0.. {
        if shared.is_over.load(Ordering::Acquire) {
            return Ok(());
        }
        let flags = 0;
        let command = command::WRITE;
        let cookie = number;
        let offset = number % BLOCKS * STRIDE;
        let header = RequestHeader { flags, command, cookie, offset, length: BLOCK_BYTES };
        message.clear();
        message.extend(header.encode());
        message.resize(message.len() + BLOCK_BYTES as usize, number as u8);
        stream.write_all(&message)?;
        let mut reply = [0; 16];
        stream.read_exact(&mut reply)?;
        let wanted = [SIMPLE_REPLY_MAGIC.to_be_bytes(), [0; 4]].concat();
        if !reply.starts_with(&wanted) || reply[8..] != cookie.to_be_bytes() {
            return Err(io::Error::other("a write has failed"));
        }
        let mut answers = shared.answers();
        if answers.len() == ANSWERS_MAX {
            // Only the answers of the last seconds are used.
            answers.drain(..ANSWERS_MAX / 2);
        }
        answers.push(clock::monotonic().ns);
        drop(answers);
        clock::pause(BREATH);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_gap_is_one_of_the_span() {
        let answers = [10, 20, 60, 70, 170, 180];
        assert_eq!(longest_gap(&answers, 15, 30), 40);
        assert_eq!(longest_gap(&answers, 0, 65), 40, "also one that began before");
        assert_eq!(longest_gap(&answers, 30, 75), 100, "or ends after");
        assert_eq!(longest_gap(&answers, 175, 300), 10);
        assert_eq!(longest_gap(&answers[..1], 0, 300), 0);
    }
}
