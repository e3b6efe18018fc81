//! The loop that serves a striped file: it converts requests of the kernel to requests of volumes,
//! and their answers to the kernel's. It is one thread, which only waits for all of them at once.

use evenkeel_core::convert::saturating;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use evenkeel_wire::nbd::constants::command;
use evenkeel_wire::nbd::transmission::RequestHeader;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use slab::Slab;

use super::fuse::{self, Ask};
use super::layout::{Layout, Piece};
use super::volume::{Answers, INPUT_BYTES, Volume};
use evenkeel_os::clock;

/// The kernel's requests under way at most. Others stay in the device until some are answered.
const UNDER_WAY_MAX: usize = 2 * fuse::BACKGROUND_MAX as usize;
/// Buffers of answered reads that are kept for the next ones.
const SPARE_MAX: usize = 32;
/// Time between two checks whether a volume has stopped answering.
const LOOK: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// A striped file with its volumes, and the state of its requests.
pub(super) struct Server {
    device: File,
    volumes: Vec<Volume>,
    layout: Layout,
    size_bytes: u64,
    work: Work,
}

/// Requests under way.
#[derive(Default)]
struct Work {
    ops: Slab<Op>,
    /// Requests to volumes; their numbers are the cookies.
    parts: Slab<Part>,
    /// Requests of which all parts are answered.
    finished: Vec<usize>,
    spare: Vec<Vec<u8>>,
}

/// A request of the kernel.
struct Op {
    unique: u64,
    kind: Kind,
    left: usize,
    has_failed: bool,
}

enum Kind {
    /// The buffer has room for the answer's head and its bytes.
    Read(Vec<u8>),
    Write(u32),
    Sync,
}

/// A request of a volume.
struct Part {
    op: usize,
    volume: usize,
    at: usize,
    bytes: usize,
}

impl Server {
    /// Serves a mounted file.
    pub fn new(device: File, volumes: Vec<Volume>, layout: Layout, size_bytes: u64) -> Self {
        Self { device, volumes, layout, size_bytes, work: Work::default() }
    }

    /// Serves until the file is unmounted, or `stop` is closed. Later requests to the file get
    /// errors.
    pub fn run(mut self, stop: &OwnedFd) {
        let mut request = vec![0; fuse::REQUEST_BYTES_MAX];
        let mut input = vec![0; INPUT_BYTES];
        loop {
            let Some(ready) = self.wait(stop) else { return };
            let now = clock::now();
            for (number, events) in ready.volumes {
                let volume = &mut self.volumes[number];
                let was_alive = volume.is_alive();
                if events.contains(PollFlags::OUT) {
                    volume.flush();
                }
                if events.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR) {
                    volume.receive(&mut input, now, &mut self.work);
                }
                if volume.is_given_up(now) || (was_alive && !volume.is_alive()) {
                    self.work.lose(number);
                }
            }
            self.answer();
            if ready.device && !self.take(&mut request) {
                return;
            }
            self.answer();
        }
    }

    /// Waits until a descriptor is ready, at most [`LOOK`]. Returns `None` if `stop` is closed or
    /// the file is unmounted.
    fn wait(&self, stop: &OwnedFd) -> Option<Ready> {
        let has_room = self.work.ops.len() < UNDER_WAY_MAX;
        let device = if has_room { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = vec![PollFd::new(stop, PollFlags::IN), PollFd::new(&self.device, device)];
        let alive = || self.volumes.iter().enumerate().filter(|(_, volume)| volume.is_alive());
        for (_, volume) in alive() {
            let output = if volume.has_output() { PollFlags::OUT } else { PollFlags::empty() };
            fds.push(PollFd::new(volume, PollFlags::IN | output));
        }
        match poll(&mut fds, Some(&LOOK)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => return None,
        }
        let [stopped, device, volumes @ ..] = &fds[..] else { return None };
        let stopped = stopped.revents();
        let device = device.revents();
        let numbered = alive().map(|(number, _)| number).zip(volumes.iter().map(PollFd::revents));
        (stopped.is_empty() && !device.contains(PollFlags::ERR))
            .then(|| Ready { device: device.contains(PollFlags::IN), volumes: numbered.collect() })
    }

    /// Accepts requests of the kernel while there are any. Returns false if the file is unmounted.
    fn take(&mut self, room: &mut [u8]) -> bool {
        while self.work.ops.len() < UNDER_WAY_MAX {
            match self.device.read(room) {
                Ok(0) => return false,
                Ok(count) => self.serve(&room[..count]),
                Err(error) => match Errno::from_io_error(&error) {
                    // A request that was withdrawn while it was read.
                    Some(Errno::INTR | Errno::NOENT) => {}
                    Some(Errno::AGAIN) => return true,
                    _ => return false,
                },
            }
        }
        true
    }

    fn serve(&mut self, message: &[u8]) {
        let Some((unique, ask)) = fuse::parse(message) else { return };
        match ask {
            Ask::Begin { readahead_bytes } => self.say(&fuse::begun(unique, readahead_bytes)),
            Ask::Attributes => self.say(&fuse::attributes(unique, self.size_bytes)),
            Ask::Open => self.say(&fuse::opened(unique)),
            Ask::Done => self.say(&fuse::head(unique, fuse::HEAD_BYTES)),
            Ask::Silent => {}
            Ask::Unknown => self.say(&fuse::failure(unique, Errno::NOSYS)),
            Ask::Read { offset, bytes } => self.read(unique, offset, bytes),
            Ask::Write { offset, data } => self.write(unique, offset, data),
            Ask::Sync => self.sync(unique),
        }
    }

    fn read(&mut self, unique: u64, offset: u64, bytes: u32) {
        // A read beyond the end is shortened.
        let left = self.size_bytes.saturating_sub(offset);
        let bytes = saturating::<_, u32>(left).min(bytes).min(fuse::DATA_BYTES_MAX);
        let mut answer = self.work.spare.pop().unwrap_or_default();
        answer.resize(fuse::HEAD_BYTES + bytes as usize, 0);
        let op = self.work.begin(unique, Kind::Read(answer));
        for piece in self.layout.pieces(offset, bytes) {
            self.ask(op, command::READ, &piece, &[]);
        }
        self.work.begun(op);
    }

    fn write(&mut self, unique: u64, offset: u64, data: &[u8]) {
        let bytes = saturating::<_, u32>(data.len());
        if offset.checked_add(bytes.into()).is_none_or(|end| end > self.size_bytes) {
            return self.say(&fuse::failure(unique, Errno::NOSPC));
        }
        let op = self.work.begin(unique, Kind::Write(bytes));
        for piece in self.layout.pieces(offset, bytes) {
            let payload = &data[piece.at..piece.at + piece.bytes as usize];
            self.ask(op, command::WRITE, &piece, payload);
        }
        self.work.begun(op);
    }

    fn sync(&mut self, unique: u64) {
        let op = self.work.begin(unique, Kind::Sync);
        for volume in 0..self.volumes.len() {
            self.ask(op, command::FLUSH, &Piece { volume, offset: 0, at: 0, bytes: 0 }, &[]);
        }
        self.work.begun(op);
    }

    /// Sends a volume its part of a request.
    fn ask(&mut self, op: usize, command: u16, piece: &Piece, payload: &[u8]) {
        let Piece { volume, offset, at, bytes } = *piece;
        let part = Part { op, volume, at, bytes: bytes as usize };
        self.work.ops[op].left += 1;
        let cookie = self.work.parts.insert(part) as u64;
        let header = RequestHeader { flags: 0, command, cookie, offset, length: bytes };
        if !self.volumes[volume].send(&header, payload, clock::now()) {
            // The volume is lost: this part fails, and all parts that it has not answered.
            self.work.lose(volume);
        }
    }

    /// Answers the requests whose parts are all answered.
    fn answer(&mut self) {
        while let Some(number) = self.work.finished.pop() {
            let op = self.work.ops.remove(number);
            match op.kind {
                _ if op.has_failed => self.say(&fuse::failure(op.unique, Errno::IO)),
                Kind::Read(mut answer) => {
                    let head = fuse::head(op.unique, answer.len());
                    answer[..fuse::HEAD_BYTES].copy_from_slice(&head);
                    self.say(&answer);
                    if self.work.spare.len() < SPARE_MAX {
                        self.work.spare.push(answer);
                    }
                }
                Kind::Write(bytes) => self.say(&fuse::written(op.unique, bytes)),
                Kind::Sync => self.say(&fuse::head(op.unique, fuse::HEAD_BYTES)),
            }
        }
    }

    /// Writes an answer to the kernel. It is not needed any more if that fails.
    fn say(&mut self, answer: &[u8]) {
        let said = self.device.write(answer);
        debug_assert!(said.is_ok() || said.is_err_and(is_of_nobody), "a malformed answer");
    }
}

/// Returns whether an answer failed because its request was withdrawn, or the file is unmounted.
fn is_of_nobody(error: io::Error) -> bool {
    matches!(Errno::from_io_error(&error), Some(Errno::NOENT | Errno::NODEV | Errno::NOTCONN))
}

/// The descriptors that are ready.
struct Ready {
    device: bool,
    /// Of each volume that serves.
    volumes: Vec<(usize, PollFlags)>,
}

impl Work {
    /// Begins a request without parts. It cannot finish before [`Work::begun`].
    fn begin(&mut self, unique: u64, kind: Kind) -> usize {
        self.ops.insert(Op { unique, kind, left: 1, has_failed: false })
    }

    fn begun(&mut self, op: usize) {
        self.end(op, true);
    }

    fn end(&mut self, number: usize, is_good: bool) {
        let Some(op) = self.ops.get_mut(number) else { return };
        op.has_failed |= !is_good;
        op.left -= 1;
        if op.left == 0 {
            self.finished.push(number);
        }
    }

    /// Fails all parts that a lost volume has not answered.
    fn lose(&mut self, volume: usize) {
        let owed = self.parts.iter().filter(|(_, part)| part.volume == volume);
        let owed: Vec<u64> = owed.map(|(cookie, _)| cookie as u64).collect();
        for cookie in owed {
            self.done(cookie, false);
        }
    }

    fn part(&self, cookie: u64) -> Option<&Part> {
        self.parts.get(usize::try_from(cookie).ok()?)
    }
}

impl Answers for Work {
    fn wants(&self, cookie: u64) -> Option<usize> {
        let part = self.part(cookie)?;
        matches!(self.ops.get(part.op)?.kind, Kind::Read(_)).then_some(part.bytes)
    }

    fn bytes(&mut self, cookie: u64, at: usize, bytes: &[u8]) {
        let Some(Part { op, at: begin, .. }) = self.part(cookie) else { return };
        let begin = fuse::HEAD_BYTES + begin + at;
        if let Some(Op { kind: Kind::Read(answer), .. }) = self.ops.get_mut(*op) {
            answer[begin..begin + bytes.len()].copy_from_slice(bytes);
        }
    }

    fn done(&mut self, cookie: u64, is_good: bool) {
        let key = usize::try_from(cookie).ok();
        if let Some(part) = key.and_then(|key| self.parts.try_remove(key)) {
            self.end(part.op, is_good);
        }
    }
}
