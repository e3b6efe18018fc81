//! Recordings: the requests to each volume, second by second, for some days.
//!
//! The thread that samples the data plane for the metrics passes its samples on ([`Inbox`]). A
//! separate thread ([`Recorder`]) makes intervals of them and writes these to files. A slow or full
//! disk delays no other thread: samples that it cannot take are dropped, and so are blocks that
//! cannot be written. Each leaves a gap.
//!
//! | module | contents |
//! | --- | --- |
//! | `track` | intervals of the differences between samples; pure |
//! | `codec` | intervals, and their bytes; pure |
//! | `files` | the files, of bounded size and age |
//! | `copies` | blocks that other servers copy |

mod codec;
pub(crate) mod copies;
pub(crate) mod files;
mod track;

use std::collections::BTreeMap;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;

use evenkeel_core::ids::VolumeId;
use tracing::{info, warn};

use self::codec::Block;
pub use self::codec::{Interval, Requests, Throttled, Work};
use self::files::{DAY_MS, Files, Writer};
pub use self::track::Sample;
use self::track::{INTERVAL_MS_MAX, Tracker};
use evenkeel_core::time::UnixMs;

/// Number of days that are kept unless the operator sets another.
pub const RECORD_DAYS: u32 = 15;

/// Maximum number of samples that wait for the recorder. With ten thousand volumes each has some 2
/// MiB.
const LOOKS_MAX: usize = 4;
/// Maximum time covered by a block, in milliseconds; the second is that of a volume at rest.
const BLOCK_MS: u64 = 10_000;
const RESTING_BLOCK_MS: u64 = 600_000;
/// Time between two deletions of old files, in milliseconds.
const CLEAN_MS: u64 = 3_600_000;

/// All volumes at one moment.
#[derive(Debug)]
pub struct Look {
    /// Time of the sample.
    pub now: UnixMs,
    /// The state of each volume.
    pub samples: Vec<Sample>,
}

/// State of one volume that is not in a file yet.
#[derive(Debug, Default)]
struct Open {
    /// The block that is being filled: at most [`codec::BLOCK_BYTES_MAX`] bytes.
    block: Option<Block>,
    /// The block that is being written, with its day; readers would miss it otherwise.
    closed: Option<(u64, Vec<u8>)>,
    /// Whether the volume was in the last sample.
    is_known: bool,
}

/// The recordings of all volumes.
#[derive(Debug)]
pub struct Recording {
    files: Files,
    open: Mutex<BTreeMap<VolumeId, Open>>,
    written_bytes: AtomicU64,
    lost: AtomicU64,
}

impl Recording {
    /// Returns the bytes that were written since the server's start.
    pub fn written_bytes(&self) -> u64 {
        self.written_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of samples and blocks that were dropped since the server's start.
    pub fn lost(&self) -> u64 {
        self.lost.load(Ordering::Relaxed)
    }

    /// Returns the files with all blocks that are not open.
    pub(crate) const fn files(&self) -> &Files {
        &self.files
    }

    /// Returns whether there is a recording of a volume.
    pub fn has(&self, id: VolumeId) -> bool {
        self.open().contains_key(&id) || self.files.has(id)
    }

    /// Returns at most `max` intervals of a volume between these moments, in order. An interval at
    /// rest is cut at the moments; another one belongs to the time in which it begins.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn read(
        &self,
        id: VolumeId,
        from: UnixMs,
        until: UnixMs,
        max: usize,
    ) -> io::Result<Vec<Interval>> {
        // Read before the files: a block that is written meanwhile is then found twice, and not
        // missed.
        let mut last: Vec<Interval> = {
            let open = self.open();
            let open = open.get(&id);
            let closed = open.and_then(|open| open.closed.as_ref()).map(|(_, bytes)| bytes.clone());
            let filling = open.and_then(|open| open.block.as_ref()).map(Block::bytes);
            let all = closed.into_iter().chain(filling);
            all.flat_map(|bytes| codec::read(&bytes).intervals).collect()
        };
        let first = from.0.saturating_sub(INTERVAL_MS_MAX) / DAY_MS;
        let mut days = self.files.days(id, first, until.0 / DAY_MS)?.into_iter().peekable();
        let mut found = Found { from: from.0, until: until.0, intervals: Vec::new() };
        while let Some(day) = days.next() {
            let mut intervals = self.files.read(id, day)?;
            if days.peek().is_none() {
                intervals.append(&mut last);
            }
            found.add(intervals);
            if found.intervals.len() > max {
                break;
            }
        }
        found.add(last);
        found.intervals.truncate(max);
        Ok(found.intervals)
    }

    fn open(&self) -> MutexGuard<'_, BTreeMap<VolumeId, Open>> {
        // Each block is consistent after each of its changes.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Processes a sample. Returns the volumes with a block to write.
    fn take(&self, tracker: &mut Tracker, look: &Look) -> Vec<VolumeId> {
        let mut open = self.open();
        open.values_mut().for_each(|open| open.is_known = false);
        for sample in &look.samples {
            open.entry(sample.volume.id).or_default().is_known = true;
        }
        tracker.look(look.now, &look.samples, |id, interval| {
            let it = open.entry(id).or_default();
            let is_in = it.block.as_mut().is_some_and(|block| block.push(&interval));
            if !is_in {
                it.close();
                let mut block = Block::new(interval.start_ms);
                // An empty block has room.
                let _ = block.push(&interval);
                it.block = Some(block);
            }
        });
        let is_due = |id: &VolumeId, it: &Open| match &it.block {
            Some(block) => !it.is_known || ends(*id, block, look.now),
            None => false,
        };
        open.retain(|_, it| it.is_known || it.block.is_some() || it.closed.is_some());
        for (id, it) in open.iter_mut() {
            if it.closed.is_none() && is_due(id, it) {
                it.close();
            }
        }
        open.iter().filter(|(_, it)| it.closed.is_some()).map(|(id, _)| *id).collect()
    }

    /// Closes all blocks.
    fn close_all(&self) -> Vec<VolumeId> {
        let mut open = self.open();
        open.values_mut().filter(|open| open.closed.is_none()).for_each(Open::close);
        open.iter().filter(|(_, it)| it.closed.is_some()).map(|(id, _)| *id).collect()
    }
}

impl Open {
    fn close(&mut self) {
        if let Some(block) = self.block.take() {
            self.closed = Some((block.start_ms() / DAY_MS, block.bytes()));
        }
    }
}

/// Returns whether a block is over. Volumes take turns, so that they are not all written at once.
fn ends(id: VolumeId, block: &Block, now: UnixMs) -> bool {
    let length_ms = if block.is_at_rest() { RESTING_BLOCK_MS } else { BLOCK_MS };
    let shift_ms = u64::try_from(id.bits() % u128::from(length_ms)).unwrap_or_default();
    let part = |ms: u64| ms.saturating_add(shift_ms) / length_ms;
    part(block.start_ms()) != part(now.0) || block.start_ms() / DAY_MS != now.0 / DAY_MS
}

/// The intervals found, by time.
struct Found {
    from: u64,
    until: u64,
    intervals: Vec<Interval>,
}

impl Found {
    /// Adds the intervals between the two moments. The clock may have been set back: if intervals
    /// overlap, takes the one that begins first.
    fn add(&mut self, mut intervals: Vec<Interval>) {
        intervals.sort_by_key(|interval| interval.start_ms);
        for interval in intervals {
            let end = self.intervals.last().map_or(0, Interval::end_ms);
            let cut = Interval {
                start_ms: interval.start_ms.max(self.from),
                length_ms: interval
                    .end_ms()
                    .min(self.until)
                    .saturating_sub(interval.start_ms.max(self.from)),
                ..interval
            };
            let is_within = (self.from..self.until).contains(&interval.start_ms);
            let interval = match interval.work {
                None => cut,
                Some(_) if is_within => interval,
                Some(_) => continue,
            };
            if interval.length_ms > 0 && interval.start_ms >= end {
                self.intervals.push(interval);
            }
        }
    }
}

/// Receives samples.
#[derive(Clone, Debug)]
pub struct Inbox {
    looks: SyncSender<Look>,
    recording: Arc<Recording>,
}

impl Inbox {
    /// Passes a sample on, or drops it if the recorder has not taken the last ones.
    pub fn offer(&self, look: Look) {
        if let Err(TrySendError::Full(_)) = self.looks.try_send(look) {
            self.recording.lost.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// The thread that records. Dropping it, after all copies of its inbox, ends the thread after it
/// has written the rest.
pub struct Recorder {
    inbox: Option<Inbox>,
    thread: Option<JoinHandle<()>>,
}

impl Recorder {
    /// Starts to record in a data folder, and keeps `days` days. With none, deletes all recordings.
    /// If the thread cannot be started, nothing is recorded, and a log line reports it.
    #[must_use]
    pub fn start(data_dir: &Path, days: u32) -> Self {
        let files = Files::of(data_dir);
        let (looks, taken) = sync_channel(LOOKS_MAX);
        let recording = Arc::new(Recording {
            files: files.clone(),
            open: Mutex::default(),
            written_bytes: AtomicU64::new(0),
            lost: AtomicU64::new(0),
        });
        let inbox = Inbox { looks, recording: Arc::clone(&recording) };
        let work = move || match days {
            0 => {
                if let Err(error) = files.delete_all() {
                    warn!("{error}; these recordings are not deleted");
                }
            }
            days => record(&recording, days, &taken),
        };
        let thread = std::thread::Builder::new().name("recorder".to_owned()).spawn(work);
        let thread = thread.inspect_err(|error| warn!(%error, "volumes are not recorded")).ok();
        let inbox = Some(inbox).filter(|_| thread.is_some() && days > 0);
        Self { inbox, thread }
    }

    /// Returns the inbox for samples; `None` if nothing is recorded.
    #[must_use]
    pub fn inbox(&self) -> Option<Inbox> {
        self.inbox.clone()
    }

    /// Returns the recording; `None` if nothing is recorded.
    #[must_use]
    pub fn recording(&self) -> Option<Arc<Recording>> {
        self.inbox.as_ref().map(|inbox| Arc::clone(&inbox.recording))
    }
}

impl Drop for Recorder {
    fn drop(&mut self) {
        drop(self.inbox.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Processes samples until all inboxes are dropped.
fn record(recording: &Recording, days: u32, looks: &Receiver<Look>) {
    let mut tracker = Tracker::default();
    let mut keeper = Keeper::new(recording);
    let mut cleaned = None;
    while let Ok(look) = looks.recv() {
        let due = recording.take(&mut tracker, &look);
        keeper.write(&due);
        let hour = look.now.0 / CLEAN_MS;
        if cleaned.replace(hour) != Some(hour) {
            if let Err(error) = recording.files.keep(look.now.0 / DAY_MS, days.into()) {
                warn!("{error}; this recording is not deleted");
            }
            let open = recording.open();
            keeper.writer.keep(|id| open.contains_key(&id));
        }
    }
    keeper.write(&recording.close_all());
}

/// Writes blocks. Logs once that it cannot.
struct Keeper<'a> {
    recording: &'a Recording,
    writer: Writer,
    is_failing: bool,
}

impl<'a> Keeper<'a> {
    fn new(recording: &'a Recording) -> Self {
        Self { recording, writer: Writer::new(recording.files.clone()), is_failing: false }
    }

    /// Writes the closed blocks of these volumes. One that cannot be written is dropped.
    fn write(&mut self, due: &[VolumeId]) {
        if due.is_empty() {
            return;
        }
        let mut result = self.writer.check_room();
        for id in due {
            let closed = {
                let open = self.recording.open();
                open.get(id).and_then(|open| open.closed.clone())
            };
            let Some((day, bytes)) = closed else { continue };
            if result.is_ok() {
                result = self.writer.append(*id, day, &bytes);
            }
            let (counter, amount) = match &result {
                Ok(()) => (&self.recording.written_bytes, bytes.len() as u64),
                Err(_) => (&self.recording.lost, 1),
            };
            counter.fetch_add(amount, Ordering::Relaxed);
            if let Some(it) = self.recording.open().get_mut(id) {
                it.closed = None;
            }
        }
        match (result, self.is_failing) {
            (Err(error), false) => warn!("{error}; recordings of volumes pause until that is over"),
            (Ok(()), true) => info!("recordings of volumes resume"),
            (Err(_), true) | (Ok(()), false) => return,
        }
        self.is_failing = !self.is_failing;
    }
}

#[cfg(test)]
mod tests;
