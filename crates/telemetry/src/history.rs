//! The history of volumes, as servers copy it from each other: metrics, recordings and events. Of
//! the nodes of a cluster the leader records, and the others copy from it. So a new leader has the
//! past, too.
//!
//! A server returns its history since a moment, page by page (DescribeHistory: [`metrics`],
//! [`recordings`], [`events`]). The server that requests it stores it ([`Copies`]).

use std::collections::BTreeMap;
use std::fmt::{self, Display};
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::units::ByteCount;
use evenkeel_wire::aws::xml::Element;
use serde::de::IgnoredAny;
use serde::{Deserialize, Serialize};
use tracing::warn;

use crate::cloudwatch::store::{self, HOURS_MAX, Store};
use crate::cloudwatch::{CloudWatch, HOUR_S};
use crate::events::log::{Appender, Bounds, Kept, Log};
use crate::events::webhook::{self, Delivery};
use crate::private;
use crate::recording::files::{DAY_MS, Files};
use crate::recording::{Recording, copies};
use evenkeel_core::time::UnixMs;
use evenkeel_os::clock;

/// Minimum time by which [`Complete`] advances between two writes, in milliseconds.
const COMPLETE_MS: u64 = 60_000;
/// Maximum of bytes of a page; one block may exceed it.
const PAGE_BYTES: usize = 1 << 20;

/// A kind of history.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The metrics of CloudWatch, by minutes.
    Metrics,
    /// The recordings, by seconds.
    Recordings,
    /// The events, and the positions of webhooks.
    Events,
}

impl Kind {
    /// All kinds, in the order of their size.
    pub const ALL: [Self; 3] = [Self::Events, Self::Metrics, Self::Recordings];

    /// Returns its name in requests.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Metrics => "metrics",
            Self::Recordings => "recordings",
            Self::Events => "events",
        }
    }
}

/// Place at which a page ends: hour or day, volume, and the end of its last block, in milliseconds
/// of Unix time; 0 for metrics.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place(copies::Place);

impl Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self((span, id, end_ms)) = self;
        write!(f, "{span} {id} {end_ms}")
    }
}

impl FromStr for Place {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        let words: Vec<&str> = text.split(' ').collect();
        let [span, id, end_ms] = *words.as_slice() else { return Err(()) };
        let number = |text: &str| text.parse::<u64>().map_err(|_| ());
        Ok(Self((number(span)?, id.parse().map_err(|_| ())?, number(end_ms)?)))
    }
}

/// A page of a server's history.
#[derive(Debug, Default)]
pub struct Page {
    /// Its parts, one for each hour or day and volume.
    pub items: Vec<Element>,
    /// Place after which the next page begins.
    pub next: Option<Place>,
}

/// Returns minutes since a moment, after a place.
///
/// # Errors
/// They cannot be read.
pub fn metrics(of: &CloudWatch, since: UnixMs, after: Option<Place>) -> Result<Page, String> {
    let after = after.map(|Place((hour, id, _))| (hour, id));
    let parts = of.store().parts(since.0 / 1_000, after, PAGE_BYTES);
    let parts = parts.map_err(|error| error.to_string())?;
    let bytes: usize = parts.iter().map(|part| part.block.0.len()).sum();
    let last = parts.last().filter(|_| bytes >= PAGE_BYTES);
    let next = last.map(|part| Place((part.hour, part.id, 0)));
    let items = parts.iter().map(|part| item(part.hour, part.id, 0, &part.block.0)).collect();
    Ok(Page { items, next })
}

/// Returns recorded seconds between two moments, after a place.
///
/// # Errors
/// They cannot be read.
pub fn recordings(
    of: &Recording,
    since: UnixMs,
    now: UnixMs,
    after: Option<Place>,
) -> Result<Page, String> {
    let after = after.map(|Place(place)| place);
    let parts = copies::parts(of.files(), (since.0, now.0), after, PAGE_BYTES);
    let parts = parts.map_err(|error| error.to_string())?;
    let bytes: usize = parts.iter().map(|part| part.bytes.len()).sum();
    let last = parts.last().filter(|_| bytes >= PAGE_BYTES);
    let next = last.map(|part| Place((part.day, part.id, part.end_ms)));
    let items =
        parts.iter().map(|part| item(part.day, part.id, part.end_ms, &part.bytes)).collect();
    Ok(Page { items, next })
}

/// Returns events after this one, and the positions of webhooks.
///
/// # Errors
/// They cannot be read.
pub fn events(log: &Log, deliveries: &[Arc<Delivery>], after: u64) -> Result<Page, String> {
    let kept = log.some_after(after).map_err(|error| error.to_string())?;
    let event = |it: &Kept| {
        let fields =
            [Element::text("span", it.sequence), Element::text("data", STANDARD.encode(&it.event))];
        Element::list("item", fields)
    };
    let position = |it: &Arc<Delivery>| {
        let fields = [Element::text("webhook", &it.key), Element::text("span", it.position())];
        Element::list("item", fields)
    };
    let items = kept.iter().map(event).chain(deliveries.iter().map(position)).collect();
    Ok(Page { items, next: None })
}

fn item(span: u64, id: VolumeId, end_ms: u64, data: &[u8]) -> Element {
    let fields = [
        Element::text("span", span),
        Element::text("volumeId", id),
        Element::text("endTimeMs", end_ms),
        Element::text("data", STANDARD.encode(data)),
    ];
    Element::list("item", fields)
}

fn number(item: &Element, name: &str) -> Option<u64> {
    item.child_text(name)?.parse().ok()
}

fn data(item: &Element) -> Option<Vec<u8>> {
    STANDARD.decode(item.child_text("data")?).ok()
}

/// Returns the minutes of an item; `None` if it is another item.
fn minutes(item: &Element) -> Option<store::Part> {
    let hour = number(item, "span")?;
    let id = item.child_text("volumeId")?.parse().ok()?;
    Some(store::Part { hour, id, block: store::block(data(item)?) })
}

/// Returns the recorded seconds of an item; `None` if it is another item.
fn seconds(item: &Element) -> Option<copies::Part> {
    let day = number(item, "span")?;
    let id = item.child_text("volumeId")?.parse().ok()?;
    Some(copies::Part { day, id, end_ms: number(item, "endTimeMs")?, bytes: data(item)? })
}

/// Returns the event of an item; `None` if it is another item.
fn event(item: &Element) -> Option<Kept> {
    let event = String::from_utf8(data(item)?).ok().filter(|event| !event.contains('\n'))?;
    serde_json::from_str::<IgnoredAny>(&event).ok()?;
    Some(Kept { sequence: number(item, "span")?, event })
}

/// Returns a webhook and its position; `None` if it is another item.
fn position(item: &Element) -> Option<(String, u64)> {
    Some((item.child_text("webhook")?.to_owned(), number(item, "span")?))
}

/// The parts of the history that a data folder keeps.
#[derive(Clone, Debug)]
pub struct Keeps {
    /// Maximum space for metrics, in bytes.
    pub metrics_space: ByteCount,
    /// The days for which recordings are kept; 0 for none.
    pub record_days: u32,
    /// The webhooks to which this server posts when it leads.
    pub webhooks: Vec<String>,
}

/// The history in the data folder of a server that does not lead, and copies it from the leader. It
/// must be dropped before this server leads.
#[derive(Debug)]
pub struct Copies {
    folder: PathBuf,
    keeps: Keeps,
    complete: Complete,
    metrics: Store,
    recordings: copies::Copies,
    log: Arc<Log>,
    appender: Appender,
    positions: BTreeMap<String, u64>,
}

/// The file with [`Complete`].
const FILE_NAME: &str = "history.json";

/// Time up to which this server has the history of the others, in milliseconds of Unix time. Its
/// own records as a leader do not count, since some before them may be missing.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(default)]
struct Complete {
    metrics_ms: u64,
    recordings_ms: u64,
}

impl Complete {
    const fn of(&mut self, kind: Kind) -> Option<&mut u64> {
        match kind {
            Kind::Metrics => Some(&mut self.metrics_ms),
            Kind::Recordings => Some(&mut self.recordings_ms),
            Kind::Events => None,
        }
    }
}

/// Place from which history is requested.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Since {
    /// Since this time.
    Time(UnixMs),
    /// After this event.
    Event(u64),
}

impl Copies {
    /// Opens the history of a data folder.
    ///
    /// # Errors
    /// There is no memory for a database. A file that cannot be used is no error: it is logged.
    pub fn open(folder: &Path, keeps: Keeps) -> rusqlite::Result<Self> {
        let metrics = Store::open(folder, keeps.metrics_space)?;
        let recordings = copies::Copies::new(Files::of(folder));
        if keeps.record_days == 0
            && let Err(error) = Files::of(folder).delete_all()
        {
            warn!("{error}; these recordings are not deleted");
        }
        let (log, appender) = Log::open(folder, Bounds::default());
        let known = std::fs::read(folder.join(FILE_NAME)).unwrap_or_default();
        let mut complete: Complete = serde_json::from_slice(&known).unwrap_or_default();
        if metrics.volumes().next().is_none() {
            complete.metrics_ms = 0;
        }
        let positions = BTreeMap::new();
        let folder = folder.to_owned();
        Ok(Self { folder, keeps, complete, metrics, recordings, log, appender, positions })
    }

    /// Returns whether this server keeps this kind.
    #[must_use]
    pub const fn keeps(&self, kind: Kind) -> bool {
        match kind {
            Kind::Metrics | Kind::Events => true,
            Kind::Recordings => self.keeps.record_days > 0,
        }
    }

    /// Returns the place after which history may be missing in this folder.
    #[must_use]
    pub fn since(&self, kind: Kind, now: UnixMs) -> Since {
        let kept_ms = match kind {
            Kind::Metrics => HOURS_MAX * HOUR_S * 1_000,
            Kind::Recordings => u64::from(self.keeps.record_days) * DAY_MS,
            Kind::Events => return Since::Event(self.log.last()),
        };
        let complete_ms = { self.complete }.of(kind).map_or(0, |ms| *ms);
        Since::Time(UnixMs(complete_ms.min(now.0).max(now.0.saturating_sub(kept_ms))))
    }

    /// Records that this folder has the history up to this time.
    ///
    /// # Errors
    /// It cannot be stored: after a restart the same history is requested again.
    pub fn completed(&mut self, kind: Kind, until: UnixMs) -> io::Result<()> {
        let Some(complete) = self.complete.of(kind) else { return Ok(()) };
        let is_due = until.0 < *complete || until.0 - *complete >= COMPLETE_MS;
        *complete = until.0;
        if is_due {
            private::replace(&self.folder, FILE_NAME, &serde_json::to_vec(&self.complete)?)
        } else {
            Ok(())
        }
    }

    /// Stores the items of a page of a server whose clock shows `now`.
    ///
    /// # Errors
    /// A part could not be stored; the text has the reason.
    pub fn take(&mut self, kind: Kind, now: UnixMs, items: &[Element]) -> Result<(), String> {
        match kind {
            Kind::Metrics => {
                let parts: Vec<store::Part> = items.iter().filter_map(minutes).collect();
                let hour = now.0.max(clock::unix_ms().0) / 1_000 / HOUR_S;
                self.metrics.merge(hour, &parts).map_err(|error| {
                    // A damaged file is begun again.
                    if self.metrics.volumes().next().is_none() {
                        self.complete.metrics_ms = 0;
                    }
                    error.to_string()
                })
            }
            Kind::Recordings => {
                let parts: Vec<copies::Part> = items.iter().filter_map(seconds).collect();
                self.recordings.clean(now, self.keeps.record_days.into());
                self.recordings.merge(&parts).map_err(|error| error.to_string())
            }
            Kind::Events => self.take_events(items).map_err(|error| error.to_string()),
        }
    }

    fn take_events(&mut self, items: &[Element]) -> io::Result<()> {
        let kept: Vec<Kept> = items.iter().filter_map(event).collect();
        self.appender.append_kept(&kept)?;
        let positions: BTreeMap<String, u64> = items.iter().filter_map(position).collect();
        if positions != self.positions {
            webhook::take_over(&self.folder, &self.keeps.webhooks, &positions)?;
            self.positions = positions;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cloudwatch::METRICS_SPACE;

    fn keeps(webhooks: &[&str]) -> Keeps {
        let webhooks = webhooks.iter().map(|url| (*url).to_owned()).collect();
        Keeps { metrics_space: METRICS_SPACE, record_days: 15, webhooks }
    }

    #[test]
    fn copying_resumes_at_a_stored_time_after_a_restart() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Copies::open(folder.path(), keeps(&[])).unwrap();
        let now = UnixMs(1_795_651_200_000);
        let since = |copies: &Copies| match copies.since(Kind::Recordings, now) {
            Since::Time(UnixMs(ms)) => now.0 - ms,
            Since::Event(_) => unreachable!(),
        };
        let mut copies = open();
        assert_eq!(since(&copies), 15 * DAY_MS);
        copies.completed(Kind::Recordings, UnixMs(now.0 - 90_000)).unwrap();
        copies.completed(Kind::Recordings, UnixMs(now.0 - 60_000)).unwrap();
        assert_eq!(since(&copies), 60_000);
        drop(copies);
        // Not every step is stored.
        let mut copies = open();
        assert_eq!(since(&copies), 90_000);
        // A time in the future is not taken.
        copies.completed(Kind::Recordings, UnixMs(now.0 + 7)).unwrap();
        assert_eq!(since(&copies), 0);
    }

    #[test]
    fn places_parse_back_to_their_text() {
        for text in ["472222 vol-00000000000000007 0", "20783 vol-00000000000000abd 17"] {
            assert_eq!(text.parse::<Place>().unwrap().to_string(), text);
        }
        for text in
            ["", "1 2", "x vol-00000000000000007 0", "1 vol-7 0 9", "1 vol-00000000000000007 -1"]
        {
            assert!(text.parse::<Place>().is_err(), "{text}");
        }
    }

    /// Copies all kinds as over the API. The parts of each kind have their own tests.
    #[test]
    fn history_of_a_server_is_copied_to_another() {
        let folders = [tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap()];
        let mine = folders[0].path();
        let other = folders[1].path();
        let (log, mut appender) = Log::open(mine, Bounds::default());
        let events: Vec<String> = (0..2_500).map(|n| format!("{{\"n\":{n}}}")).collect();
        events.chunks(100).for_each(|some| appender.append(some).unwrap());
        let mut copies = Copies::open(other, keeps(&["http://a/?secret", "http://b/"])).unwrap();
        let delivery = |(number, url)| Arc::new(Delivery::at(url, number, 17));
        let deliveries: Vec<_> = (1..).zip(["http://b/", "http://c/"]).map(delivery).collect();
        let now = UnixMs(1_700_000_000_000);
        for round in 1..=3 {
            assert_eq!(copies.since(Kind::Events, now), Since::Event((round - 1) * 1_000));
            let Since::Event(after) = copies.since(Kind::Events, now) else { unreachable!() };
            let page = super::events(&log, &deliveries, after).unwrap();
            // Encoded as over HTTP.
            let text = Element::list("historySet", page.items).document();
            let page = Element::parse(&text).unwrap();
            copies.take(Kind::Events, now, &page.children).unwrap();
        }
        drop(copies);
        let (copied, mut appender) = Log::open(other, Bounds::default());
        assert_eq!(copied.last(), 2_500);
        let all = |log: &Log| (0..3).flat_map(|it| log.some_after(it * 1_000).unwrap()).collect();
        let mine: Vec<Kept> = all(&log);
        let its: Vec<Kept> = all(&copied);
        assert!(mine == its && mine.len() == 2_500);
        let positions = std::fs::read(other.join(webhook::FILE_NAME)).unwrap();
        assert_eq!(positions, br#"{"http://b/":17}"#, "of those that this server has");
        // The next leader begins with numbers that no server has used.
        appender.begin_with(4_000);
        assert_eq!(copied.last(), 2_500, "there is nothing yet");
        appender.append(&["{}".to_owned()]).unwrap();
        let last = copied.some_after(2_500).unwrap();
        assert_eq!(last, [Kept { sequence: 4_000, event: "{}".to_owned() }]);
        drop(appender);
        let (again, mut appender) = Log::open(other, Bounds::default());
        assert_eq!(again.last(), 4_000);
        // Events that it has already change nothing, nor do invalid ones.
        appender.append_kept(&its).unwrap();
        assert_eq!(again.last(), 4_000);
        for text in ["no JSON", "{\n}"] {
            let data = Element::text("data", STANDARD.encode(text));
            assert_eq!(event(&Element::list("item", [Element::text("span", 9), data])), None);
        }
    }
}
