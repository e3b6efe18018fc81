//! Webhooks: addresses to which every event is posted, in order, at least once.
//!
//! Each webhook has a thread, which reads events from the log's files, so no memory is used for a
//! receiver that is down. The thread's position is stored in a file of the data folder. An event
//! that is not accepted is posted again after 1 s, 2 s, and so on up to 5 minutes. It is skipped a
//! day after it happened, if no event was accepted for a day. This module has no HTTP: the program
//! provides a [`Post`].

use std::collections::BTreeMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use evenkeel_wire::aws::sigv4::{hex, hmac, sha256_hex};
use tracing::{info, warn};

use super::log::{Kept, Log};
use super::time_of;
use crate::private;
use evenkeel_core::time::UnixMs;
use evenkeel_os::clock;

/// Maximum number of webhooks.
pub const WEBHOOKS_MAX: usize = 4;
/// The file in the data folder.
pub const FILE_NAME: &str = "events.webhooks.json";
/// Pause after the first failure.
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// The longest pause.
const PAUSE_MAX: Duration = Duration::from_secs(300);
/// Age after which an event is skipped, if its receiver has accepted no event for as long.
const AGE_MAX: Duration = Duration::from_hours(24);
/// Minimum time between two writes of a webhook's position, in milliseconds.
const SAVE_MS: u64 = 1_000;
/// Maximum number of events that are read at once.
const PAGE: usize = 64;
/// Time that a thread waits for events.
const PATIENCE: Duration = Duration::from_secs(60);

/// Posts events to one address.
pub trait Post: Send {
    /// Posts an event as JSON, with its sequence number. Takes a bounded time.
    ///
    /// # Errors
    /// The receiver has not accepted it; the text has the reason.
    fn post(&mut self, sequence: u64, event: &str) -> Result<(), String>;
}

/// Creates a [`Post`] for a URL. It signs with the secret if there is one.
pub type Connect = fn(&str, Option<&Secret>) -> Result<Box<dyn Post>, String>;

/// The key with which posts are signed, known to the receiver. Never shown.
#[derive(Clone)]
pub struct Secret(String);

impl Secret {
    /// Creates a secret from its text.
    #[must_use]
    pub fn new(text: String) -> Self {
        Self(text)
    }

    /// Returns the signature of a post: `v1=` and the HMAC with SHA-256, in hexadecimal, of the
    /// sequence number, a dot and the body.
    #[must_use]
    pub fn sign(&self, sequence: u64, event: &str) -> String {
        let message = format!("{sequence}.{event}");
        format!("v1={}", hex(&hmac(self.0.as_bytes(), message.as_bytes())))
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// The configured webhooks.
#[derive(Clone, Debug, Default)]
pub struct Webhooks {
    /// Their URLs; at most [`WEBHOOKS_MAX`].
    pub urls: Vec<String>,
    /// The key with which posts are signed; `None` if they are not signed.
    pub secret: Option<Secret>,
    /// Creates their connections; without it there are no webhooks.
    pub connect: Option<Connect>,
}

/// Delivery to one webhook.
#[derive(Debug)]
pub struct Delivery {
    /// Its URL without parts that may be secret.
    pub name: String,
    /// Identifies the webhook between servers without its URL.
    pub key: String,
    /// The sequence number of the last event that was accepted or skipped.
    position: AtomicU64,
    failures: AtomicU64,
    given_up: AtomicU64,
}

impl Delivery {
    /// Creates the delivery to a URL, the one of this number, after this event.
    pub(crate) fn at(url: &str, number: usize, position: u64) -> Self {
        Self {
            name: shown(url, number),
            key: key(url),
            position: AtomicU64::new(position),
            failures: AtomicU64::new(0),
            given_up: AtomicU64::new(0),
        }
    }

    /// Returns the sequence number of the last event that was accepted or skipped.
    #[must_use]
    pub fn position(&self) -> u64 {
        self.position.load(Ordering::Relaxed)
    }

    /// Returns the number of events up to `last` that wait to be posted.
    #[must_use]
    pub fn lag(&self, last: u64) -> u64 {
        last.saturating_sub(self.position())
    }

    /// Returns the number of posts that were not accepted since the server's start.
    #[must_use]
    pub fn failures(&self) -> u64 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Returns the number of events that were skipped since the server's start.
    #[must_use]
    pub fn given_up(&self) -> u64 {
        self.given_up.load(Ordering::Relaxed)
    }
}

/// The positions of all webhooks, by URL.
#[derive(Debug)]
struct Positions {
    folder: PathBuf,
    all: Mutex<BTreeMap<String, u64>>,
}

impl Positions {
    /// Loads the positions of these webhooks; a new webhook begins after `begins`.
    fn load(folder: &Path, urls: &[String], begins: u64) -> Self {
        let path = folder.join(FILE_NAME);
        private::mend(&path);
        let known = match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| error.to_string()),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(error.to_string()),
        };
        let known: BTreeMap<String, u64> = known.unwrap_or_else(|error| {
            warn!("{}: {error}; webhooks begin with the next event", path.display());
            BTreeMap::new()
        });
        // If the log was deleted, its numbers have begun again.
        let position = |url: &String| known.get(url).copied().filter(|at| *at <= begins);
        let all = urls.iter().map(|url| (url.clone(), position(url).unwrap_or(begins))).collect();
        Self { folder: folder.into(), all: Mutex::new(all) }
    }

    fn of(&self, url: &str) -> u64 {
        let all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(url).copied().unwrap_or_default()
    }

    /// Stores the position of a webhook. If this fails, events may be posted twice after a restart.
    fn keep(&self, url: &str, position: u64) -> std::io::Result<()> {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(url.to_owned(), position);
        private::replace(&self.folder, FILE_NAME, &serde_json::to_vec(&*all)?)
    }
}

impl Webhooks {
    /// Starts a thread for each webhook. Each holds a clone of `alive` until it ends.
    pub fn start(
        &self,
        folder: &Path,
        log: &Arc<Log>,
        begins: u64,
        alive: &SyncSender<()>,
    ) -> Vec<Arc<Delivery>> {
        let Some(connect) = self.connect.filter(|_| !self.urls.is_empty()) else { return vec![] };
        let positions = Arc::new(Positions::load(folder, &self.urls, begins));
        let mut all = Vec::new();
        for (number, url) in (1..).zip(self.urls.iter().take(WEBHOOKS_MAX)) {
            let position = positions.of(url);
            if let Err(error) = positions.keep(url, position) {
                warn!(%error, "where webhooks are cannot be kept: events may come twice");
            }
            let delivery = Arc::new(Delivery::at(url, number, position));
            all.push(Arc::clone(&delivery));
            let url = url.clone();
            let log = Arc::clone(log);
            let positions = Arc::clone(&positions);
            let alive = alive.clone();
            let saved = UnixMs::default();
            let secret = self.secret.clone();
            let work = move || {
                let name = delivery.name.clone();
                match connect(&url, secret.as_ref()) {
                    Ok(post) => {
                        let pause = PAUSE_MIN;
                        let failing = None;
                        Poster { url, log, positions, delivery, post, saved, pause, failing }.run();
                    }
                    Err(error) => warn!(webhook = name, error, "events are not posted"),
                }
                drop(alive);
            };
            let thread = std::thread::Builder::new().name("webhook".into()).spawn(work);
            if let Err(error) = thread {
                warn!(%error, "events are not posted");
            }
        }
        all
    }
}

/// Returns the key of a URL, since the URL may contain secrets.
fn key(url: &str) -> String {
    sha256_hex(url.as_bytes())
}

/// Stores the positions that these webhooks have at another server that posts, so that this server
/// continues there if it posts next. Other positions stay as they are.
///
/// # Errors
/// They cannot be written.
pub fn take_over(
    folder: &Path,
    urls: &[String],
    positions: &BTreeMap<String, u64>,
) -> std::io::Result<()> {
    let of = |url: &String| Some((url.clone(), *positions.get(&key(url))?));
    let new: BTreeMap<String, u64> = urls.iter().filter_map(of).collect();
    if new.is_empty() {
        return Ok(());
    }
    let known = std::fs::read(folder.join(FILE_NAME)).unwrap_or_default();
    let mut all: BTreeMap<String, u64> = serde_json::from_slice(&known).unwrap_or_default();
    all.extend(new);
    private::replace(folder, FILE_NAME, &serde_json::to_vec(&all)?)
}

/// Returns the scheme and the host of a URL, with its number among the webhooks. Everything else
/// may be secret: many receivers have a token in the path.
fn shown(url: &str, number: usize) -> String {
    let (scheme, rest) = url.split_once("://").unwrap_or_default();
    let authority = rest.split(['/', '?', '#', '\\']).next().unwrap_or_default();
    let host = authority.rsplit('@').next().unwrap_or_default();
    format!("{number} {scheme}://{host}")
}

/// Returns whether an event of this time is skipped if its receiver has failed for this long.
///
/// The wall clock may have been set since the event, so its age alone decides nothing. An event
/// with a time in the future was stored by a clock that was ahead.
fn is_given_up(event: Option<UnixMs>, now: UnixMs, failing_for: Duration) -> bool {
    let is_old = |at: UnixMs| now < at || Duration::from_millis(now.ms_since(at)) > AGE_MAX;
    failing_for > AGE_MAX && event.is_some_and(is_old)
}

/// Returns the pause after another failure.
fn longer(pause: Duration) -> Duration {
    (pause * 2).min(PAUSE_MAX)
}

/// The thread of one webhook.
struct Poster {
    url: String,
    log: Arc<Log>,
    positions: Arc<Positions>,
    delivery: Arc<Delivery>,
    post: Box<dyn Post>,
    /// When the position was stored last.
    saved: UnixMs,
    /// The pause after the next failure.
    pause: Duration,
    /// Time since the boot at the first failure after the last accepted event.
    failing: Option<Duration>,
}

impl fmt::Debug for Poster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Poster").field("delivery", &self.delivery).finish_non_exhaustive()
    }
}

impl Poster {
    fn run(&mut self) {
        loop {
            let position = self.delivery.position.load(Ordering::Relaxed);
            let is_stopping = self.log.wait(position, PATIENCE);
            let page = match self.log.read(position, PAGE, |_| true) {
                Ok(page) => page.events,
                Err(error) => {
                    warn!(webhook = self.delivery.name, %error, "events cannot be read");
                    if self.log.pause(PAUSE_MAX) {
                        break;
                    }
                    continue;
                }
            };
            // Numbers of stored events may have gaps.
            let oldest = self.log.oldest();
            if oldest > position + 1 && page.first().is_some_and(|page| page.sequence >= oldest) {
                let missing = oldest - position - 1;
                self.give_up(missing, "events were deleted before they could be posted");
            }
            if page.is_empty() && is_stopping {
                break;
            }
            if !page.iter().all(|event| self.deliver(event)) {
                break;
            }
        }
        self.save();
    }

    fn give_up(&self, events: u64, reason: &str) {
        self.delivery.given_up.fetch_add(events, Ordering::Relaxed);
        warn!(webhook = self.delivery.name, events, reason, "events are not posted");
    }

    /// Posts an event until it is accepted or skipped. Returns whether the thread must continue.
    fn deliver(&mut self, kept: &Kept) -> bool {
        while let Err(reason) = self.post.post(kept.sequence, &kept.event) {
            self.delivery.failures.fetch_add(1, Ordering::Relaxed);
            let webhook = &self.delivery.name;
            if self.pause == PAUSE_MIN {
                let sequence = kept.sequence;
                warn!(webhook, reason, sequence, "an event was not accepted; trying again");
            }
            let boot = clock::since_boot();
            let failing_for = boot.saturating_sub(*self.failing.get_or_insert(boot));
            if is_given_up(time_of(&kept.event), clock::unix_ms(), failing_for) {
                self.give_up(1, "not accepted for a day");
                return self.passed(kept.sequence);
            }
            let pause = self.pause;
            self.pause = longer(pause);
            if self.log.pause(pause) {
                return false;
            }
        }
        self.failing = None;
        if self.pause != PAUSE_MIN {
            info!(webhook = self.delivery.name, "events are accepted again");
            self.pause = PAUSE_MIN;
        }
        self.passed(kept.sequence)
    }

    /// Moves past an event that was accepted or skipped. Returns whether the thread must continue.
    fn passed(&mut self, sequence: u64) -> bool {
        self.delivery.position.store(sequence, Ordering::Relaxed);
        if self.log.is_left() {
            return false;
        }
        let now = clock::unix_ms();
        if now < self.saved || now.ms_since(self.saved) >= SAVE_MS {
            self.save();
        }
        true
    }

    fn save(&mut self) {
        if self.log.is_left() {
            return;
        }
        self.saved = clock::unix_ms();
        let position = self.delivery.position.load(Ordering::Relaxed);
        if let Err(error) = self.positions.keep(&self.url, position) {
            let webhook = &self.delivery.name;
            warn!(webhook, %error, "where it is cannot be kept: events may come twice");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::log::Bounds;
    use std::sync::mpsc::{RecvTimeoutError, sync_channel};

    static POSTED: Mutex<Vec<u64>> = Mutex::new(Vec::new());

    struct Taker;

    impl Post for Taker {
        fn post(&mut self, sequence: u64, _event: &str) -> Result<(), String> {
            POSTED.lock().unwrap().push(sequence);
            Ok(())
        }
    }

    /// Another leader of a cluster has its own range of numbers.
    #[test]
    fn numbers_that_jump_are_not_missing() {
        let folder = tempfile::tempdir().unwrap();
        let (log, mut appender) = Log::open(folder.path(), Bounds::default());
        let event = ["{}".to_owned()];
        (0..2).for_each(|_| appender.append(&event).unwrap());
        appender.begin_with(5_000);
        let connect: Connect = |_, _| Ok(Box::new(Taker));
        let urls = vec!["http://a/".to_owned()];
        let webhooks = Webhooks { urls, connect: Some(connect), secret: None };
        let (alive, ended) = sync_channel(1);
        let all = webhooks.start(folder.path(), &log, 0, &alive);
        drop(alive);
        (0..2).for_each(|_| appender.append(&event).unwrap());
        log.stop();
        let ended = ended.recv_timeout(Duration::from_secs(60));
        assert_eq!(ended, Err(RecvTimeoutError::Disconnected));
        assert_eq!(*POSTED.lock().unwrap(), [1, 2, 5_000, 5_001]);
        assert_eq!((all[0].given_up(), all[0].position()), (0, 5_001));
        // The next leader is at the same position, and another webhook's position is unchanged.
        let of = |url: &str, at: u64| BTreeMap::from([(key(url), at)]);
        let urls = ["http://a/", "http://b/"].map(str::to_owned);
        take_over(folder.path(), &urls, &of("http://b/", 7)).unwrap();
        take_over(folder.path(), &urls, &of("http://c/", 9)).unwrap();
        let kept = std::fs::read_to_string(folder.path().join(FILE_NAME)).unwrap();
        assert_eq!(kept, r#"{"http://a/":5001,"http://b/":7}"#);
    }

    static TRIES: AtomicU64 = AtomicU64::new(0);

    /// Accepts at the second attempt.
    struct Reluctant;

    impl Post for Reluctant {
        fn post(&mut self, _sequence: u64, _event: &str) -> Result<(), String> {
            match TRIES.fetch_add(1, Ordering::Relaxed) {
                0 => Err("503".to_owned()),
                _ => Ok(()),
            }
        }
    }

    #[test]
    fn an_event_that_is_a_month_old_by_the_wall_clock_is_posted_again_after_a_failure() {
        let folder = tempfile::tempdir().unwrap();
        let (log, mut appender) = Log::open(folder.path(), Bounds::default());
        let time = evenkeel_wire::aws::timestamp::extended(clock::unix_ms().0 - 30 * 86_400_000);
        appender.append(&[format!(r#"{{"time":"{time}"}}"#)]).unwrap();
        let connect: Connect = |_, _| Ok(Box::new(Reluctant));
        let webhooks =
            Webhooks { urls: vec!["http://a/".to_owned()], connect: Some(connect), secret: None };
        let (alive, ended) = sync_channel(1);
        let all = webhooks.start(folder.path(), &log, 0, &alive);
        drop(alive);
        for _ in 0..6_000 {
            if all[0].position() > 0 {
                break;
            }
            clock::pause(Duration::from_millis(10));
        }
        log.stop();
        let ended = ended.recv_timeout(Duration::from_secs(60));
        assert_eq!(ended, Err(RecvTimeoutError::Disconnected));
        assert_eq!((all[0].position(), all[0].failures(), all[0].given_up()), (1, 1, 0));
        assert_eq!(TRIES.load(Ordering::Relaxed), 2);
    }

    #[test]
    fn an_event_is_given_up_after_a_day_by_both_clocks() {
        let day = AGE_MAX + Duration::from_millis(1);
        let hour = Duration::from_hours(1);
        let now = UnixMs(1_700_000_000_000);
        let before = |age: Duration| Some(UnixMs(now.0 - age.as_millis() as u64));
        let to_come = Some(now.plus_ms(1));
        for (event, failing_for, expected) in [
            (before(day), day, true),
            (before(hour), day, false),
            (before(day), hour, false),
            (to_come, day, true),
            (to_come, hour, false),
            (None, day, false),
        ] {
            assert_eq!(is_given_up(event, now, failing_for), expected, "{event:?} {failing_for:?}");
        }
    }

    #[test]
    fn secret_parts_of_urls_are_not_shown() {
        for (url, expected) in [
            ("http://a:1/b?token=c", "2 http://a:1"),
            ("https://u:p@a/services/T0/B0/c#d", "2 https://a"),
            ("http://a", "2 http://a"),
            ("http://a?b", "2 http://a"),
        ] {
            assert_eq!(shown(url, 2), expected);
        }
        let secret = Secret::new("c".to_owned());
        assert_eq!(format!("{secret:?}"), "Secret(..)");
    }

    #[test]
    fn a_signature_is_of_the_number_and_the_body() {
        // printf %s '7.{"a":1}' | openssl dgst -sha256 -hmac 0123456789abcdef
        let secret = Secret::new("0123456789abcdef".to_owned());
        let signature = secret.sign(7, "{\"a\":1}");
        assert_eq!(
            signature,
            "v1=b1d16cd10c3b6a2b52dd83d2eaea1b966721b127ae82046bad8f92a9e213a639"
        );
        assert_ne!(secret.sign(8, "{\"a\":1}"), signature);
        assert_ne!(secret.sign(7, "{\"a\":2}"), signature);
    }

    #[test]
    fn pauses_become_longer_up_to_five_minutes() {
        let pauses = std::iter::successors(Some(PAUSE_MIN), |pause| Some(longer(*pause)));
        let seconds: Vec<u64> = pauses.take(11).map(|pause| pause.as_secs()).collect();
        assert_eq!(seconds, [1, 2, 4, 8, 16, 32, 64, 128, 256, 300, 300]);
    }
}
