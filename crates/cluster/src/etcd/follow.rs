//! Watching the commits of another server: how a follower keeps its model up to date.
//!
//! A thread reads etcd's watch. A transaction's events come in one message; the events of one
//! commit become one change. Events outside of commits (of tokens whose lease has ended, or of
//! another client of etcd) are added to the next change.

use std::sync::mpsc::SyncSender;
use std::sync::{Arc, Weak};
use std::time::Duration;

use evenkeel_control::journal::{Change, Committed, JournalError, Revision, Subject, format};
use evenkeel_os::clock;
use tracing::warn;

use super::client::Client;
use super::gateway::{WatchAnswer, WatchEvent};
use super::keys::{Keys, Thing};
use super::values;
use super::watching::{Ended, span};

/// Pause after a failure.
const PAUSE: Duration = Duration::from_millis(250);

/// Reason why a stream of the watch ends.
enum Stop {
    /// The watcher's queue is closed, and the watcher must load again.
    Ended,
    /// The member ends the stream; the watch continues with another one.
    Canceled,
}

/// The thread of one watch.
pub(super) struct Follower {
    pub client: Client,
    pub keys: Keys,
    /// The revision with which the next stream begins.
    pub next: u64,
    pub queue: SyncSender<Arc<Committed>>,
    /// Dead once the watcher is dropped.
    pub there: Weak<()>,
    pub commits: Commits,
}

impl Follower {
    pub fn run(mut self) {
        while self.there.strong_count() > 0 {
            let client = self.client.clone();
            let prefix = self.keys.prefix();
            let is_well = match span(&client, &prefix, self.next, |answer| self.message(answer)) {
                Ok(has_begun) => has_begun,
                Err(Ended::Failed(error)) => {
                    warn!(error, "the leader's commits are not seen");
                    false
                }
                Err(Ended::Stopped(Stop::Canceled)) => false,
                Err(Ended::Stopped(Stop::Ended)) => return,
            };
            if !is_well {
                self.client.turn_away();
                clock::pause(PAUSE);
            }
        }
    }

    fn message(&mut self, answer: &WatchAnswer) -> Result<(), Stop> {
        if answer.compact_revision.0 > 0 {
            warn!(from = self.next, "commits that were not seen are no longer kept; loading again");
            return Err(Stop::Ended);
        }
        let committed = self.commits.take(&self.keys, &answer.events).map_err(|error| {
            warn!(%error, "a commit cannot be read");
            Stop::Ended
        })?;
        for one in committed {
            self.queue.try_send(Arc::new(one)).map_err(|_| Stop::Ended)?;
        }
        if let Some(last) = answer.events.last() {
            self.next = last.kv.mod_revision.0.saturating_add(1);
        }
        if answer.canceled { Err(Stop::Canceled) } else { Ok(()) }
    }
}

/// Groups the events of keys into commits. Pure.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Commits {
    /// Events since the last commit.
    since: Change,
}

impl Commits {
    /// Returns the commits in some events, which must contain all events of their revisions.
    fn take(&mut self, keys: &Keys, events: &[WatchEvent]) -> Result<Vec<Committed>, JournalError> {
        let mut all = Vec::new();
        for of_one in events.chunk_by(|a, b| a.kv.mod_revision == b.kv.mod_revision) {
            let mut committed = None;
            for event in of_one {
                let Some(thing) = keys.thing(&event.kv.key.0) else { continue };
                if thing == Thing::Revision {
                    committed = Some(Revision(event.kv.mod_revision.0));
                }
                self.event(&thing, event)?;
            }
            if let Some(revision) = committed {
                all.push(Committed { revision, change: std::mem::take(&mut self.since) });
            }
        }
        Ok(all)
    }

    fn event(&mut self, thing: &Thing, event: &WatchEvent) -> Result<(), JournalError> {
        let value = &event.kv.value.0;
        if event.kind == "DELETE" {
            if let Thing::Event(subject) = thing {
                self.since.events.extend(subject.gone());
            }
            return Ok(());
        }
        match thing {
            Thing::Credits(_) => self.since.unleased.extend(&values::read_credits(value)?),
            Thing::Stop => self.since.stopped = Some(values::read_moment("stop", value)?),
            Thing::Clock => self.since.clock = Some(values::read_moment("clock", value)?),
            Thing::Device(..) | Thing::Revision => {}
            Thing::Event(subject) => {
                let key = &event.kv.key.0;
                self.since.events.push(event_of(subject, key, value)?);
            }
        }
        Ok(())
    }
}

/// Returns the event that a key stores.
pub(super) fn event_of(
    subject: &Subject,
    key: &[u8],
    value: &[u8],
) -> Result<evenkeel_control::model::Event, JournalError> {
    let key = String::from_utf8_lossy(key);
    let event = format::decode(value).map_err(|error| match error {
        format::FormatError::Form(_) => error.at(&format!("etcd's key '{key}'")),
        other => values::malformed(&key, &other),
    })?;
    if Subject::of(&event) == (subject.clone(), true) {
        Ok(event)
    } else {
        Err(values::malformed(&key, &"its value is of another object"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::etcd::gateway::{KeyValue, Number, Raw};
    use evenkeel_control::model::Event;

    fn put(keys: &Keys, thing: &Thing, value: &[u8], revision: u64) -> WatchEvent {
        let kv = KeyValue {
            key: Raw(keys.key(thing)),
            value: Raw(value.to_vec()),
            mod_revision: Number(revision),
            ..KeyValue::default()
        };
        WatchEvent { kind: String::new(), kv }
    }

    #[test]
    fn changes_outside_commits_are_delivered_with_the_next_commit() {
        let keys = Keys::of("c").unwrap();
        let token = Thing::Event(Subject::Token("t".into()));
        let mut expired = put(&keys, &token, b"", 5);
        expired.kind = "DELETE".into();
        let mut commits = Commits::default();
        assert_eq!(commits.take(&keys, &[expired]), Ok(vec![]));
        let revision = Thing::Revision;
        let events = [put(&keys, &revision, b"x", 6), put(&keys, &revision, b"y", 7)];
        let all = commits.take(&keys, &events).unwrap();
        let first = Change::from(vec![Event::TokenGone("t".into())]);
        assert_eq!(all[0], Committed { revision: Revision(6), change: first });
        assert_eq!(all[1], Committed { revision: Revision(7), change: Change::default() });
    }

    #[test]
    fn a_value_under_another_key_is_refused() {
        let keys = Keys::of("c").unwrap();
        let [one, two] = [1, 2].map(evenkeel_core::ids::VolumeId::from_bits);
        let volume = evenkeel_control::model::Volume::new(
            one,
            "z",
            evenkeel_core::volume::VolumeSpec {
                volume_type: evenkeel_core::volume::VolumeType::Gp3,
                size_gib: 1,
                iops: Some(3_000),
                throughput_mibps: Some(125),
                multi_attach: false,
            },
            evenkeel_core::time::UnixMs(1),
        );
        let value = format::encode(&Event::Volume(volume)).unwrap().into_bytes();
        let [right, wrong] = [one, two].map(Subject::Volume);
        let key = |subject: &Subject| keys.key(&Thing::Event(subject.clone()));
        assert!(event_of(&right, &key(&right), &value).is_ok());
        let error = event_of(&wrong, &key(&wrong), &value).unwrap_err();
        assert!(error.to_string().contains("another object"), "{error}");
    }
}
