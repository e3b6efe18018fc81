//! A journal in memory, for tests. Its content is lost with the process. Like every journal it
//! stores the JSON of [`mod@format`].
//!
//! Clones share their content: cloning corresponds to opening the same journal again.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::watch::{Committed, Watch, Watchers};
use super::{Change, Credits, Journal, JournalError, Loaded, Revision, Subject, format};
use crate::credits::Stop;
use crate::model::{Event, Model};
use crate::time::Moment;

/// Maximum number of changes that are kept for watchers that start later.
pub const HISTORY_MAX: usize = 256;

/// A journal in memory; see the module documentation.
#[derive(Clone, Debug, Default)]
pub struct MemoryJournal(Arc<Mutex<Kept>>);

#[derive(Debug, Default)]
struct Kept {
    /// The last event of each existing object.
    things: BTreeMap<Subject, String>,
    credits: Credits,
    stop: Option<Stop>,
    clock: Option<Moment>,
    revision: Revision,
    history: VecDeque<Past>,
    watchers: Watchers,
    is_full: bool,
}

/// A stored change.
#[derive(Debug)]
struct Past {
    revision: Revision,
    events: Vec<String>,
    /// The rest of the change.
    change: Change,
}

impl MemoryJournal {
    /// Makes every commit fail for lack of space, or ends that.
    ///
    /// For tests.
    pub fn set_full(&self, is_full: bool) {
        self.kept().is_full = is_full;
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // Everything that can fail comes before the first modification.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn failed(error: format::FormatError) -> JournalError {
    error.at("the journal in memory")
}

impl Kept {
    /// Returns the JSON of the events, if they can be stored.
    fn checked(&self, events: &[Event]) -> Result<Vec<String>, JournalError> {
        let mut tokens = BTreeMap::new();
        let mut all = Vec::with_capacity(events.len());
        for event in events {
            let (key, is_there) = Subject::of(event);
            if let Subject::Token(name) = &key {
                let before = tokens.insert(name.clone(), is_there);
                if is_there && before.unwrap_or(self.things.contains_key(&key)) {
                    return Err(JournalError::TokenTaken(name.clone()));
                }
            }
            all.push(format::encode(event).map_err(failed)?);
        }
        Ok(all)
    }

    /// Applies an event.
    fn apply(&mut self, event: &Event, json: &str) {
        match Subject::of(event) {
            (key, true) => _ = self.things.insert(key, json.to_owned()),
            (key, false) => _ = self.things.remove(&key),
        }
        self.credits.apply(event);
    }
}

impl Journal for MemoryJournal {
    fn load(&mut self) -> Result<Loaded, JournalError> {
        let kept = self.kept();
        let mut model = Model::default();
        for json in kept.things.values() {
            model.apply(format::decode(json.as_bytes()).map_err(failed)?);
        }
        let credits = kept.credits.clone();
        let revision = kept.revision;
        let stop = kept.stop.clone().unwrap_or(Stop::Crash);
        let clock = kept.clock.clone();
        Ok(Loaded { model, credits, stop, clock, revision })
    }

    fn commit(&mut self, change: &Change, expected: Revision) -> Result<Revision, JournalError> {
        let mut kept = self.kept();
        let found = kept.revision;
        if found != expected {
            return Err(JournalError::Conflict { expected, found });
        }
        if kept.is_full {
            return Err(JournalError::NoRoom("the journal in memory is full".into()));
        }
        let events = kept.checked(&change.events)?;
        for (event, json) in change.events.iter().zip(&events) {
            kept.apply(event, json);
        }
        kept.credits.extend(&change.unleased);
        kept.stop = change.stopped.clone().map(Stop::Clean);
        if change.clock.is_some() {
            kept.clock.clone_from(&change.clock);
        }
        let revision = Revision(found.0.saturating_add(1));
        kept.revision = revision;
        let rest = Change { events: vec![], ..change.clone() };
        kept.history.push_back(Past { revision, events, change: rest });
        if kept.history.len() > HISTORY_MAX {
            kept.history.pop_front();
        }
        kept.watchers.publish(revision, change);
        Ok(revision)
    }

    fn watch(&mut self, after: Revision) -> Result<Watch, JournalError> {
        let mut kept = self.kept();
        let first = kept.history.front().map(|past| past.revision.0.saturating_sub(1));
        let first = first.unwrap_or(kept.revision.0);
        if !(first..=kept.revision.0).contains(&after.0) {
            return Err(JournalError::Compacted { after, oldest: Revision(first) });
        }
        let mut missed = Vec::new();
        for past in kept.history.iter().filter(|past| past.revision > after) {
            let events =
                past.events.iter().map(|json| format::decode(json.as_bytes()).map_err(failed));
            let events = events.collect::<Result<_, _>>()?;
            let change = Change { events, ..past.change.clone() };
            missed.push(Arc::new(Committed { revision: past.revision, change }));
        }
        Ok(kept.watchers.add(missed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::journal::conformance;

    #[test]
    fn conforms() {
        conformance::check(&mut || {
            let journal = MemoryJournal::default();
            Box::new(move || Box::new(journal.clone()))
        });
    }

    #[test]
    fn full_journal_stores_nothing_and_says_why() {
        let mut journal = MemoryJournal::default();
        journal.set_full(true);
        let refused = journal.commit(&Change::default(), Revision(0)).unwrap_err();
        assert!(refused.is_no_room(), "{refused}");
        assert_eq!(journal.load().unwrap().revision, Revision(0));
        journal.set_full(false);
        assert_eq!(journal.commit(&Change::default(), Revision(0)), Ok(Revision(1)));
    }

    #[test]
    fn watch_from_a_past_revision_returns_the_later_commits() {
        let mut journal = MemoryJournal::default();
        for number in 0..HISTORY_MAX as u64 + 10 {
            let change = Change::from(vec![Event::TokenGone(number.to_string())]);
            assert_eq!(journal.commit(&change, Revision(number)), Ok(Revision(number + 1)));
        }
        let watch = journal.watch(Revision(20)).unwrap();
        for number in 20..HISTORY_MAX as u64 + 10 {
            let next = watch.next(std::time::Duration::ZERO).unwrap().unwrap();
            assert_eq!(next.revision, Revision(number + 1));
            assert_eq!(next.change.events, [Event::TokenGone(number.to_string())]);
        }
        let compacted = journal.watch(Revision(9)).unwrap_err();
        let after = Revision(9);
        let oldest = Revision(10);
        assert_eq!(compacted, JournalError::Compacted { after, oldest });
    }
}
