//! Events of volumes, snapshots and the server, in the form of EventBridge.
//!
//! A [`Feed`] gets the model's events as they are committed ([`Feed::note`]), the data plane's
//! reports ([`Feed::look`]), and single [`Notice`]s. It queues at most [`QUEUE_MAX`] of them and
//! never blocks: notices for which there is no room are counted, and a `gap` event reports their
//! number. A thread ([`Events`]) writes them to files of the data folder, and one thread for each
//! webhook posts them from there. Nothing else depends on these threads: a full disk or a failed
//! receiver loses events, and a log line reports it once.
//!
//! | file | contents |
//! | --- | --- |
//! | [`notice`] | the kinds of events, and their JSON |
//! | `derive` | which events a change of the model is; pure |
//! | [`watch`] | which events the data plane's reports are; pure |
//! | `context` | the request and the reason behind a change |
//!
//! Their files and webhooks are in [`evenkeel_telemetry::events`].

mod context;
pub mod derive;
pub mod notice;
pub mod watch;

#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use evenkeel_core::time::UnixMs;
use evenkeel_telemetry::events::log::{Appender, Bounds, Kept, Log};
use evenkeel_telemetry::events::time_of;
use evenkeel_telemetry::events::webhook::{Delivery, Webhooks};
use evenkeel_wire::agent::VolumeReport;
use serde::Deserialize;
use tracing::{info, warn};

pub use self::context::During;
use self::derive::Sets;
use self::notice::{Notice, ServerNews, What};
use self::watch::Watcher;
use crate::model::{Event, Model, Settings};
use crate::plane::Plane;
use crate::random;
use crate::server_clock::ServerClock;

/// Maximum number of notices that wait to be written.
pub const QUEUE_MAX: usize = 4_096;
/// Maximum number of events that are written at once.
const BATCH_MAX: usize = 256;
/// Time that the writer waits for notices.
const PATIENCE: Duration = Duration::from_secs(1);
/// Count of event numbers that a leader of a cluster has for itself: its numbers begin at its term
/// times this. Terms are revisions of etcd, which count all its writes.
const TERM_EVENTS: u64 = 1_000_000;
/// Maximum time that a stop waits for webhooks to post the last events.
const STOP_WAIT_MAX: Duration = Duration::from_secs(2);

#[derive(Debug, Default)]
struct Queue {
    waiting: VecDeque<Notice>,
    /// Notices for which there was no room since the queue was emptied last.
    lost: u64,
    is_closed: bool,
}

/// Collects notices.
#[derive(Debug, Default)]
pub struct Feed {
    clock: Arc<ServerClock>,
    queue: Mutex<Queue>,
    filled: Condvar,
    sets: Mutex<Sets>,
    watcher: Mutex<Watcher>,
    log: OnceLock<Arc<Log>>,
    deliveries: OnceLock<Vec<Arc<Delivery>>>,
    written: AtomicU64,
    lost: AtomicU64,
}

impl Feed {
    /// Creates a feed whose notices have the times of this clock.
    #[must_use]
    pub fn new(clock: Arc<ServerClock>) -> Self {
        Self { clock, ..Self::default() }
    }

    /// Processes a committed change of the model, before it is applied.
    pub fn begin(&self, model: &Model, events: &[Event]) {
        self.sets().begin(model, events);
    }

    /// Processes one event of the change, before it is applied.
    pub fn note(&self, model: &Model, event: &Event) {
        let of_set = self.sets().follow(event);
        let all = derive::of_event(model, event, &context::cause());
        for what in all.into_iter().chain(of_set) {
            self.tell(what);
        }
    }

    /// Processes the data plane's reports, about once a second.
    pub fn look(&self, plane: &Plane, reports: &[VolumeReport]) {
        let now = self.clock.unix_ms();
        let mut watcher = self.watcher.lock().unwrap_or_else(PoisonError::into_inner);
        let mut all = watcher.look(now, reports);
        if watcher.is_due(now) {
            let space = plane.room().map(|room| room.space);
            all.extend(watcher.look_closer(now, &plane.model(), space));
            // Without a reply the state is unknown.
            if let Ok(health) = plane.store_health() {
                all.extend(watcher.look_at_store(now, &health));
            }
        }
        drop(watcher);
        all.into_iter().for_each(|what| self.tell(what));
    }

    /// Queues a notice with the present time. Never blocks for longer than a moment.
    pub fn tell(&self, what: What) {
        let notice = Notice { at: self.clock.unix_ms(), request: context::request(), what };
        let mut queue = self.queue();
        if queue.waiting.len() < QUEUE_MAX {
            queue.waiting.push_back(notice);
            self.filled.notify_one();
            return;
        }
        if queue.lost == 0 {
            warn!("events come faster than they can be written; some are lost");
        }
        queue.lost += 1;
        self.lost.fetch_add(1, Ordering::Relaxed);
    }

    /// Waits for notices. Returns the queued ones, then a gap if there was no room for some, and
    /// whether these are the last.
    fn take(&self) -> (Vec<Notice>, bool) {
        let nothing = |it: &mut Queue| it.waiting.is_empty() && it.lost == 0 && !it.is_closed;
        let queue = self.filled.wait_timeout_while(self.queue(), PATIENCE, nothing);
        let (mut queue, _) = queue.unwrap_or_else(PoisonError::into_inner);
        let mut all: Vec<Notice> = queue.waiting.drain(..).collect();
        // Notices without room came after all queued ones.
        if let lost @ 1.. = std::mem::take(&mut queue.lost) {
            let cause = "events came faster than they could be written";
            all.push(gap(self.clock.unix_ms(), lost, cause));
        }
        (all, queue.is_closed)
    }

    /// Returns a notice that no request has caused, with the present time.
    fn server_notice(&self, what: What) -> Notice {
        Notice { at: self.clock.unix_ms(), request: String::new(), what }
    }

    fn close(&self) {
        self.queue().is_closed = true;
        self.filled.notify_all();
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        // Every change of the queue is a single call.
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn sets(&self) -> MutexGuard<'_, Sets> {
        self.sets.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns the stored events; `None` if none are stored.
    #[must_use]
    pub fn log(&self) -> Option<&Arc<Log>> {
        self.log.get()
    }

    /// Returns the numbers of events written and lost since the server's start.
    #[must_use]
    pub fn counts(&self) -> (u64, u64) {
        (self.written.load(Ordering::Relaxed), self.lost.load(Ordering::Relaxed))
    }

    /// Returns the webhooks.
    #[must_use]
    pub fn deliveries(&self) -> &[Arc<Delivery>] {
        self.deliveries.get().map_or(&[], Vec::as_slice)
    }
}

fn gap(at: UnixMs, lost: u64, cause: &str) -> Notice {
    let what = What::Server(ServerNews::Gap { lost, cause: cause.into() });
    Notice { at, request: String::new(), what }
}

/// The threads that store and deliver events. Dropping it ends them.
pub struct Events {
    feed: Arc<Feed>,
    log: Arc<Log>,
    writer: Option<JoinHandle<()>>,
    posting: Receiver<()>,
}

impl Events {
    /// Starts to store the events of a plane in a folder, and to post them. If a thread cannot be
    /// started, no events are stored, and a log line reports it.
    #[must_use]
    pub fn start(folder: &Path, plane: &Plane, webhooks: &Webhooks) -> Self {
        let feed = Arc::clone(plane.feed());
        let (log, mut appender) = Log::open(folder, Bounds::default());
        let newest = log.newest();
        let begins = log.last();
        let before = newest.as_ref().map(Last::of);
        if let Some(nodes) = plane.nodes() {
            // The last leaders' events, and their numbers, may be unknown here.
            appender.begin_with(nodes.term().saturating_mul(TERM_EVENTS));
        }
        let previous = match &before {
            None => "none",
            Some(last) if last.is_stop => "stopped",
            // The last server's final events may not have reached this folder.
            Some(_) if plane.nodes().is_some() => "unknown",
            Some(_) => "killed",
        };
        let since = before.and_then(|last| last.time);
        let watcher = Watcher::new(since.unwrap_or_else(|| feed.clock.unix_ms()));
        *feed.watcher.lock().unwrap_or_else(PoisonError::into_inner) = watcher;
        let _ = feed.log.set(Arc::clone(&log));
        let started = What::Server(ServerNews::Started { previous });
        let started = feed.server_notice(started);
        // The start comes before the notices of things found during the start.
        feed.queue().waiting.push_front(started);
        let mut writer =
            Writer { feed: Arc::clone(&feed), settings: plane.settings.clone(), appender, lost: 0 };
        let writer = std::thread::Builder::new().name("events".into()).spawn(move || writer.run());
        let writer = writer.inspect_err(|error| warn!(%error, "no events are kept")).ok();
        let (posts, posting) = sync_channel(1);
        let deliveries = webhooks.start(folder, &log, begins, &posts);
        let _ = feed.deliveries.set(deliveries);
        Self { feed, log, writer, posting }
    }
}

impl Drop for Events {
    fn drop(&mut self) {
        self.feed.tell(What::Server(ServerNews::Stopped));
        self.feed.close();
        if let Some(writer) = self.writer.take() {
            let _ = writer.join();
        }
        self.log.stop();
        // This ends as soon as all webhooks have posted everything. The next server posts the rest.
        let _ = self.posting.recv_timeout(STOP_WAIT_MAX);
        self.log.leave();
    }
}

/// Time and kind of the last event of an earlier server.
struct Last {
    time: Option<UnixMs>,
    is_stop: bool,
}

impl Last {
    fn of(kept: &Kept) -> Self {
        #[derive(Deserialize)]
        struct Detail {
            #[serde(default)]
            event: String,
        }
        #[derive(Deserialize)]
        struct Known {
            detail: Detail,
        }
        let known = serde_json::from_str::<Known>(&kept.event);
        let is_stop = known.is_ok_and(|known| known.detail.event == "serverStopped");
        Self { time: time_of(&kept.event), is_stop }
    }
}

/// The thread that writes events.
struct Writer {
    feed: Arc<Feed>,
    settings: Settings,
    appender: Appender,
    /// Events that could not be written and that no event reports yet.
    lost: u64,
}

impl Writer {
    fn run(&mut self) {
        loop {
            let (notices, is_last) = self.feed.take();
            for batch in notices.chunks(BATCH_MAX) {
                self.write(batch);
            }
            if is_last && notices.is_empty() {
                return;
            }
            if is_last && self.feed.queue().waiting.is_empty() {
                return;
            }
        }
    }

    fn write(&mut self, batch: &[Notice]) {
        let json = |notice: &Notice| {
            let bits = random::random_bits().unwrap_or_default();
            notice.json(&self.settings, bits)
        };
        let missing = (self.lost > 0).then(|| {
            let cause = "events could not be written; see the server's log";
            gap(self.feed.clock.unix_ms(), self.lost, cause)
        });
        let events: Vec<String> = missing.iter().chain(batch).map(json).collect();
        match self.appender.append(&events) {
            Ok(()) => {
                if std::mem::take(&mut self.lost) > 0 {
                    info!("events are written again");
                }
                self.feed.written.fetch_add(events.len() as u64, Ordering::Relaxed);
            }
            Err(error) => {
                if self.lost == 0 {
                    warn!(%error, "events cannot be written and are lost");
                }
                self.lost += batch.len() as u64;
                self.feed.lost.fetch_add(batch.len() as u64, Ordering::Relaxed);
            }
        }
    }
}
