//! A client that never stops: it writes blocks with rising numbers through NBD, and reads some of
//! them back. It connects to another node when its own ends, and records the acknowledged writes
//! and its longest wait.
//!
//! It has one request under way, and the position of a number follows from the number. So a volume
//! must have all of its writes up to some number, and no later ones.

use super::PATIENCE;
use super::clock::{Deadline, Stopwatch, pass};
use super::nbd::Client;
use std::io::{Error, Result};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

pub const BLOCK_BYTES: u32 = 4_096;
/// Distance of blocks, so that each is in an object of its own.
pub const STRIDE: u64 = 5 << 20;
/// Blocks of one writer.
pub const BLOCKS: u64 = 32;
/// One in this number of writes is followed by a read.
const READ_EVERY: u64 = 16;
/// Errors of NBD itself: a request was refused. `ESHUTDOWN` is not among them, as it sends the
/// client to another node.
const REFUSED: [i32; 6] = [1, 5, 12, 22, 28, 95];
/// Pause after a failed connection or a refused request.
const AGAIN: Duration = Duration::from_millis(20);
/// Maximum number of errors that are kept.
const ERRORS_MAX: usize = 20;

/// A client thread.
pub struct Writer {
    volume: String,
    region: u64,
    state: Arc<Mutex<State>>,
    thread: Option<JoinHandle<()>>,
}

struct State {
    /// Addresses that serve its volume, best first.
    doors: Vec<SocketAddr>,
    /// Whether it has to connect again.
    turns: bool,
    ends: bool,
    /// The numbers of the last write that was sent, and of the last one that was acknowledged.
    sent: u64,
    acknowledged: u64,
    /// Requests of either kind that were answered.
    answered: u64,
    /// The longest wait for an answer since the last query, in seconds.
    longest: f64,
    /// The start of the present wait.
    waits: Option<Stopwatch>,
    /// Connections that have ended.
    ended: u64,
    errors: Vec<String>,
}

fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    fn fails(&mut self, what: String) {
        if self.errors.len() < ERRORS_MAX {
            self.errors.push(what);
        }
    }
}

/// Returns the position of a number in a region.
fn offset(region: u64, number: u64) -> u64 {
    (region * BLOCKS + number % BLOCKS) * STRIDE
}

/// Returns the data of the block with a number.
fn block(region: u64, number: u64) -> Vec<u8> {
    (region << 48 | number).to_le_bytes().repeat(BLOCK_BYTES as usize / 8)
}

/// Returns the number in a block: 0 if it was not written, an error if it is not a block of this
/// region.
fn number_in(region: u64, data: &[u8]) -> std::result::Result<u64, String> {
    let first = u64::from_le_bytes(data[..8].try_into().unwrap());
    let number = first & ((1 << 48) - 1);
    let is_whole = data == block(region, number) || data.iter().all(|byte| *byte == 0);
    if is_whole { Ok(number) } else { Err(format!("torn or foreign block: {first:#x}")) }
}

/// Returns the last number up to `number` with the position `at`.
fn last_at(at: u64, number: u64) -> u64 {
    (number.saturating_sub(BLOCKS)..=number).rev().find(|it| it % BLOCKS == at).unwrap_or(0)
}

impl Writer {
    /// Starts a writer to a region of a volume that no other writer uses.
    pub fn start(volume: &str, region: u64, doors: &[SocketAddr]) -> Self {
        let state = State {
            doors: doors.to_vec(),
            turns: false,
            ends: false,
            sent: 0,
            acknowledged: 0,
            answered: 0,
            longest: 0.0,
            waits: None,
            ended: 0,
            errors: Vec::new(),
        };
        let state = Arc::new(Mutex::new(state));
        let of_thread = Arc::clone(&state);
        let name = volume.to_owned();
        let work = move || Work { state: of_thread, volume: name, region, client: None }.run();
        let thread = Some(std::thread::spawn(work));
        let writer = Self { volume: volume.to_owned(), region, state, thread };
        writer.goes_on();
        writer
    }

    /// Connects to the first of these from now on, and to the next one when that ends.
    pub fn turn_to(&self, doors: &[SocketAddr]) {
        let mut state = lock(&self.state);
        state.doors = doors.to_vec();
        state.turns = true;
    }

    /// Returns the number of answered requests.
    pub fn answered(&self) -> u64 {
        lock(&self.state).answered
    }

    /// Returns the last number that was acknowledged.
    pub fn acknowledged(&self) -> u64 {
        lock(&self.state).acknowledged
    }

    /// Returns the last number that was sent.
    pub fn sent(&self) -> u64 {
        lock(&self.state).sent
    }

    /// Waits until some more of its requests are answered.
    #[track_caller]
    pub fn goes_on(&self) {
        let goal = self.answered() + 5;
        let goes_on = Deadline::after(PATIENCE).comes(|| self.answered() >= goal);
        assert!(goes_on, "no answer for {}: {:?}", self.volume, lock(&self.state).errors);
    }

    /// Returns the longest wait for an answer since the last call, in seconds, including a present
    /// wait.
    pub fn pause(&self) -> f64 {
        let mut state = lock(&self.state);
        let now = state.waits.map_or(0.0, Stopwatch::seconds);
        std::mem::take(&mut state.longest).max(now)
    }

    /// Returns the errors so far, and removes them.
    pub fn errors(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.state).errors)
    }

    /// Returns the number of its connections that have ended.
    pub fn ended(&self) -> u64 {
        lock(&self.state).ended
    }

    /// Ends it, and checks at an address that the volume has the acknowledged writes.
    #[track_caller]
    pub fn finish(mut self, address: SocketAddr) {
        lock(&self.state).ends = true;
        let thread = self.thread.take().expect("it runs");
        thread.join().expect("it does not panic");
        let errors = self.errors();
        assert!(errors.is_empty(), "{} in region {}: {errors:?}", self.volume, self.region);
        let held = held(address, &self.volume, self.region);
        let acknowledged = self.acknowledged();
        let sent = self.sent();
        assert!((acknowledged..=sent).contains(&held), "{held} of {acknowledged} to {sent}");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        lock(&self.state).ends = true;
    }
}

/// Returns the number up to which a volume has the writes of a region: all of them, and none after
/// it.
#[track_caller]
pub fn held(address: SocketAddr, volume: &str, region: u64) -> u64 {
    let mut client = Client::open(address, volume).expect("an export");
    let mut found = Vec::new();
    for at in 0..BLOCKS {
        let data = client.read(offset(region, at), BLOCK_BYTES).expect("data");
        let number = number_in(region, &data);
        found.push(number.unwrap_or_else(|what| panic!("{volume}, block {at}: {what}")));
    }
    let last = found.iter().copied().max().unwrap_or(0);
    for (at, number) in (0..).zip(&found) {
        assert_eq!(*number, last_at(at, last), "{volume}, block {at}: up to {last} is there");
    }
    last
}

/// The state of the client's thread.
struct Work {
    state: Arc<Mutex<State>>,
    volume: String,
    region: u64,
    client: Option<Client>,
}

impl Work {
    fn run(&mut self) {
        for number in 1_u64.. {
            lock(&self.state).sent = number;
            let data = block(self.region, number);
            let offset = offset(self.region, number);
            if self.until_answered("write", |client| client.write(offset, &data)).is_none() {
                return;
            }
            lock(&self.state).acknowledged = number;
            if number % READ_EVERY == 0 && !self.reads_back(number) {
                return;
            }
        }
    }

    /// Reads a block that was written some time ago.
    fn reads_back(&mut self, number: u64) -> bool {
        // From another position each time.
        let wanted = number.saturating_sub(number / READ_EVERY % BLOCKS).max(1);
        let offset = offset(self.region, wanted);
        let Some(data) = self.until_answered("read", |client| client.read(offset, BLOCK_BYTES))
        else {
            return false;
        };
        if number_in(self.region, &data) != Ok(wanted) {
            let found = number_in(self.region, &data);
            lock(&self.state).fails(format!("number {wanted} was read as {found:?}"));
        }
        true
    }

    /// Repeats a request until it succeeds; returns `None` if the writer is to end.
    fn until_answered<T>(
        &mut self,
        what: &str,
        mut ask: impl FnMut(&mut Client) -> Result<T>,
    ) -> Option<T> {
        let watch = Stopwatch::start();
        lock(&self.state).waits = Some(watch);
        loop {
            if lock(&self.state).ends {
                return None;
            }
            let answer = match self.connected() {
                Ok(client) => ask(client),
                Err(error) => Err(error),
            };
            match answer {
                Ok(answer) => {
                    let mut state = lock(&self.state);
                    state.waits = None;
                    state.answered += 1;
                    state.longest = state.longest.max(watch.seconds());
                    return Some(answer);
                }
                Err(error) => self.failed(what, &error),
            }
        }
    }

    fn connected(&mut self) -> Result<&mut Client> {
        let door = {
            let mut state = lock(&self.state);
            if std::mem::take(&mut state.turns) {
                self.client = None;
            }
            state.doors[0]
        };
        if self.client.is_none() {
            self.client = Some(Client::open(door, &self.volume)?);
        }
        Ok(self.client.as_mut().expect("it was made"))
    }

    fn failed(&mut self, what: &str, error: &Error) {
        let mut state = lock(&self.state);
        if error.raw_os_error().is_some_and(|code| REFUSED.contains(&code)) {
            let number = state.sent;
            state.fails(format!("{what} {number}: {error}"));
        } else {
            // The next address, unless it has to turn to others anyway.
            if !state.turns {
                state.doors.rotate_left(1);
            }
            state.ended += 1;
            self.client = None;
        }
        drop(state);
        pass(AGAIN);
    }
}
