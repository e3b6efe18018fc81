//! The load beside the transactions: an archive of tables that grows and shrinks, and durable
//! writes whose latency is measured.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::TABLE_MIB;
use super::place::Place;
use crate::postgres::Session;
use evenkeel_lab::LabError;
use evenkeel_os::clock;

/// Time from one table of the archive to the next.
const TABLE_EVERY: Duration = Duration::from_millis(2_600);
/// Time between two checkpoints while tables come or go: the log stays short, and the space of
/// dropped tables is given back.
const CHECKPOINT_EVERY: Duration = Duration::from_secs(25);
/// Longest wait for the first tables.
const FIRST_MAX: Duration = Duration::from_secs(240);
const LOOK: Duration = Duration::from_millis(200);
/// Rows of a mebibyte: four to a page of 8 KiB.
const ROWS_PER_MIB: u32 = 512;
/// Time between two durable writes.
const WRITE_EVERY: Duration = Duration::from_millis(50);
const BLOCK: usize = 4_096;
/// Blocks of the file of durable writes.
const BLOCKS: u64 = 256;
/// The most durable writes that are kept.
const WRITES_MAX: usize = 100_000;

/// A thread that makes tables, or drops them, until there are as many as are wanted.
pub struct Archive {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<Option<String>>>,
}

#[derive(Default)]
struct Shared {
    wanted: AtomicU32,
    made: AtomicU32,
    is_stopped: AtomicBool,
}

impl Archive {
    /// Starts it.
    pub fn start(place: &Place) -> Result<Self, LabError> {
        let shared = Arc::new(Shared::default());
        let session = place.session()?;
        let copy = Arc::clone(&shared);
        let work = move || follow(&copy, session).err().map(|error| error.to_string());
        Ok(Self { shared, thread: Some(std::thread::spawn(work)) })
    }

    /// Sets how many tables there are to be.
    pub fn want(&self, tables: u32) {
        self.shared.wanted.store(tables, Ordering::Release);
    }

    /// Waits until there are this many.
    pub fn wait_for(&self, tables: u32) -> Result<(), LabError> {
        self.want(tables);
        evenkeel_lab::child::wait_until("the first tables", FIRST_MAX, || {
            self.shared.made.load(Ordering::Acquire) >= tables || self.has_ended()
        })
    }

    fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends it; returns its error.
    pub fn finish(mut self) -> Option<String> {
        self.end()
    }

    fn end(&mut self) -> Option<String> {
        self.shared.is_stopped.store(true, Ordering::Release);
        let ended = self.thread.take()?.join();
        ended.unwrap_or_else(|_| Some("the archive's thread has panicked".to_owned()))
    }
}

impl Drop for Archive {
    fn drop(&mut self) {
        self.end();
    }
}

fn follow(shared: &Shared, mut session: Session) -> Result<(), LabError> {
    let mut checkpoint = clock::now() + CHECKPOINT_EVERY;
    let mut next = clock::now();
    let mut has_changed = true;
    while !shared.is_stopped.load(Ordering::Acquire) {
        let wanted = shared.wanted.load(Ordering::Acquire);
        let made = shared.made.load(Ordering::Acquire);
        if made > wanted {
            session.rows(&format!("DROP TABLE archive_{made}"))?;
            shared.made.store(made - 1, Ordering::Release);
            has_changed = true;
        } else if made < wanted && clock::now() >= next {
            next = clock::now() + TABLE_EVERY;
            let table = made + 1;
            let rows = TABLE_MIB * ROWS_PER_MIB;
            session.rows(&format!(
                "CREATE TABLE archive_{table} AS SELECT row AS id, \
                 repeat(md5((row * {table})::text), 58) AS body \
                 FROM generate_series(1, {rows}) AS row"
            ))?;
            shared.made.store(table, Ordering::Release);
            has_changed = true;
        } else if has_changed && clock::now() >= checkpoint {
            session.rows("CHECKPOINT")?;
            has_changed = false;
            checkpoint = clock::now() + CHECKPOINT_EVERY;
        } else {
            clock::pause(LOOK);
        }
    }
    Ok(())
}

/// A durable write that has ended.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Write {
    /// When it ended, in milliseconds since 1970.
    pub end_ms: u64,
    /// How long it took.
    pub took_us: u64,
}

/// A thread that makes durable writes, one after the other.
pub struct Durable {
    shared: Arc<Written>,
    thread: Option<JoinHandle<Option<String>>>,
}

#[derive(Default)]
struct Written {
    writes: Mutex<Vec<Write>>,
    is_stopped: AtomicBool,
}

impl Durable {
    /// Starts it, with a file in a folder.
    pub fn start(folder: &Path) -> Result<Self, LabError> {
        let path = folder.join("durable");
        let file = File::create(&path).map_err(LabError::path(&path))?;
        let shared = Arc::new(Written::default());
        let copy = Arc::clone(&shared);
        let work = move || write(&copy, &file).err().map(|error| format!("a write: {error}"));
        Ok(Self { shared, thread: Some(std::thread::spawn(work)) })
    }

    /// Ends it; returns the writes, and its error.
    pub fn finish(mut self) -> (Vec<Write>, Option<String>) {
        let fault = self.end();
        let mut writes = self.shared.writes.lock().unwrap_or_else(PoisonError::into_inner);
        (std::mem::take(&mut *writes), fault)
    }

    fn end(&mut self) -> Option<String> {
        self.shared.is_stopped.store(true, Ordering::Release);
        let ended = self.thread.take()?.join();
        ended.unwrap_or_else(|_| Some("the writer's thread has panicked".to_owned()))
    }
}

impl Drop for Durable {
    fn drop(&mut self) {
        self.end();
    }
}

fn write(shared: &Written, file: &File) -> std::io::Result<()> {
    let mut number = 0_u64;
    while !shared.is_stopped.load(Ordering::Acquire) {
        let begun = clock::now();
        let block = [number.to_le_bytes()[0]; BLOCK];
        file.write_all_at(&block, number % BLOCKS * BLOCK as u64)?;
        file.sync_data()?;
        let took = clock::now() - begun;
        let write = Write {
            end_ms: clock::unix_us() / 1_000,
            took_us: u64::try_from(took.as_micros()).expect("invariant: a write ends"),
        };
        let mut writes = shared.writes.lock().unwrap_or_else(PoisonError::into_inner);
        if writes.len() < WRITES_MAX {
            writes.push(write);
        }
        drop(writes);
        number += 1;
        clock::pause(WRITE_EVERY.saturating_sub(took));
    }
    Ok(())
}
