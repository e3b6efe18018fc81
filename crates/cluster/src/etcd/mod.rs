//! The journal of several servers: keys in etcd, which one elected leader writes.
//!
//! | file | contents |
//! | --- | --- |
//! | [`client`] | a blocking client of etcd's JSON gateway |
//! | [`gateway`] | its messages |
//! | [`keys`] | names of keys |
//! | [`number`] | which cluster an etcd is of |
//! | `values` | values that are no events |
//! | `plan` | a change as transactions, and the meaning of their answers |
//! | [`election`] | the election of the leader |
//! | `follow` | a watch of another server's commits |
//! | [`upkeep`] | the size of etcd, its history, and how a full etcd is cleared |
//!
//! A change is one transaction. It is stored if the leader's key is still this server's *and* the
//! last commit is the one on which the change is based *and* no key that it writes was written
//! since it was read. So a leader that slept cannot commit.
//!
//! If an answer is lost, the transaction is sent again. That changes nothing if it was stored, and
//! the random id of the last commit shows whether it was. If etcd does not answer for longer than
//! [`COMMIT_PATIENCE`], the commit ends as [`JournalError::Unknown`]. A leader whose commit ends
//! so, or is refused because etcd has other data than it knows, resigns; the next leader reads
//! everything again: see [`Leadership::must_reload`].

pub mod client;
pub mod election;
mod follow;
pub mod gateway;
pub mod keys;
pub(crate) mod listener;
pub mod number;
mod plan;
pub mod upkeep;
mod values;
pub mod watching;

#[cfg(test)]
mod tests;

use std::fmt::Write as _;
use std::time::Duration;

use evenkeel_control::credits::Stop;
use evenkeel_control::journal::watch::{self, Watch, Watchers};
use evenkeel_control::journal::{
    Change, Credits, Journal, JournalError, Loaded, Revision, Subject, fill,
};
use evenkeel_control::model::{Event, Model};
use evenkeel_control::time::Moment;
use evenkeel_os::clock;
use tracing::warn;

use self::client::{Client, EtcdError};
use self::election::{Leader, Leadership, grant};
use self::follow::{Commits, Follower, event_of};
use self::gateway::{Compare, KeyValue, Operation, RangeAnswer, Transaction, TransactionAnswer};
use self::keys::{Keys, Thing};
use self::plan::{Known, Outcome, Planned, Terms};

/// Time that a commit waits for etcd, whose own elections take up to three seconds.
pub const COMMIT_PATIENCE: Duration = Duration::from_secs(10);
/// Time that a load waits for each page.
const LOAD_PATIENCE: Duration = Duration::from_secs(30);
/// Maximum time that one endpoint may take for a page.
const PAGE_MAX: Duration = Duration::from_secs(10);
/// Number of keys of one page.
const PAGE: usize = 4_000;
/// Maximum number of loads that begin again because their revision was compacted meanwhile.
const LOADS_MAX: usize = 3;
/// Seconds of a lease for tokens: as long as a token is kept, plus the hour in which the lease is
/// used, plus one more.
const TOKEN_TTL_S: u64 = 26 * 3_600;
/// Time for which a lease is given to new tokens.
const TOKEN_LEASE_AGE: Duration = Duration::from_secs(3_600);

/// A journal in etcd. It commits if it has a leadership, and follows otherwise.
#[derive(Debug)]
pub struct EtcdJournal {
    client: Client,
    keys: Keys,
    leadership: Option<Leadership>,
    /// `None` before anything was read.
    known: Option<Known>,
    /// Why this journal cannot commit any more.
    deposed: Option<String>,
    /// The lease of new tokens, and when it was taken.
    token_lease: Option<(u64, Duration)>,
    watchers: Watchers,
}

/// All data, at one revision.
struct Read {
    loaded: Loaded,
    known: Known,
}

impl EtcdJournal {
    /// Creates the journal of the leader.
    #[must_use]
    pub fn lead(client: Client, keys: Keys, leadership: Leadership) -> Self {
        Self { leadership: Some(leadership), ..Self::follow(client, keys) }
    }

    /// Creates the journal of a follower, which commits nothing.
    #[must_use]
    pub fn follow(client: Client, keys: Keys) -> Self {
        Self {
            client,
            keys,
            leadership: None,
            known: None,
            deposed: None,
            token_lease: None,
            watchers: Watchers::default(),
        }
    }

    /// Reads all data at one revision, page by page.
    fn read(&self) -> Result<Read, JournalError> {
        for _ in 1..LOADS_MAX {
            match self.read_once() {
                Err(error) if error.is_compacted() => {}
                other => return other.map_err(meaning)?,
            }
        }
        self.read_once().map_err(meaning)?
    }

    fn read_once(&self) -> Result<Result<Read, JournalError>, EtcdError> {
        let mut reading = Reading {
            credits: vec![],
            known: Known::default(),
            model: Model::default(),
            stop: Stop::Crash,
            clock: None,
        };
        // The first page fixes the revision of all others.
        let meta = self.pages(&self.keys.meta(), &after(&self.keys.meta()), 0)?;
        reading.known.read_at = meta.1;
        if let Some(found) = meta.0.first()
            && let Err(error) = values::check_meta(&found.value.0)
        {
            return Ok(Err(error));
        }
        let mut ranges: Vec<(Vec<u8>, Vec<u8>)> = "hvstcu"
            .chars()
            .map(|kind| self.keys.kind(kind))
            .map(|p| (p.clone(), gateway::end_of(&p)))
            .collect();
        for thing in [Thing::Event(Subject::Account), Thing::Stop, Thing::Clock, Thing::Revision] {
            let key = self.keys.key(&thing);
            ranges.push((key.clone(), after(&key)));
        }
        for (from, to) in ranges {
            for found in self.pages(&from, &to, meta.1)?.0 {
                if let Err(error) = reading.take(&self.keys, &found) {
                    return Ok(Err(error));
                }
            }
        }
        Ok(Ok(reading.done()))
    }

    /// Returns all keys of a range and their revision. A `revision` of zero means the newest.
    fn pages(
        &self,
        from: &[u8],
        to: &[u8],
        revision: u64,
    ) -> Result<(Vec<KeyValue>, u64), EtcdError> {
        let mut from = from.to_vec();
        let mut revision = revision;
        let mut all = Vec::new();
        loop {
            let request = gateway::range(&from, to, revision, PAGE);
            let page: RangeAnswer =
                self.client.call_within("kv/range", &request, PAGE_MAX, LOAD_PATIENCE)?;
            if revision == 0 {
                revision = page.header.revision.0;
            }
            let next = page.kvs.last().map(|last| after(&last.key.0));
            all.extend(page.kvs);
            match next.filter(|_| page.more) {
                Some(next) => from = next,
                None => return Ok((all, revision)),
            }
        }
    }

    /// Writes the version of the keys' form if it is missing.
    fn write_meta(&self, leadership: &Leadership) -> Result<(), JournalError> {
        let transaction = Transaction {
            when: vec![
                Compare::CreatedBy(self.keys.leader(), leadership.created()),
                Compare::CreatedBy(self.keys.meta(), 0),
            ],
            then: vec![Operation::Put(self.keys.meta(), values::meta(), 0)],
            otherwise: vec![],
        };
        // If this fails, the key exists, or the first commit will return the error.
        self.ask(&transaction).map(|_| ()).map_err(meaning)
    }

    fn ask(&self, transaction: &Transaction) -> Result<TransactionAnswer, EtcdError> {
        self.client.call("kv/txn", &transaction.json(), COMMIT_PATIENCE)
    }

    /// Returns the leadership, if this journal may commit.
    fn leads(&self) -> Result<Leadership, JournalError> {
        match (&self.leadership, &self.deposed) {
            (Some(_), Some(text)) => Err(JournalError::Deposed(text.clone())),
            (Some(leadership), None) => Ok(leadership.clone()),
            (None, _) => Err(JournalError::Deposed(
                "this server follows, so it decides nothing; ask the leader".into(),
            )),
        }
    }

    /// Checks that the last commit has this revision. Reads etcd again if another one is known.
    fn know(&mut self, expected: Revision) -> Result<(), JournalError> {
        if self.known.as_ref().is_some_and(|known| known.revision == expected.0) {
            return Ok(());
        }
        let known = self.read()?.known;
        let found = Revision(known.revision);
        self.known = Some(known);
        if found == expected { Ok(()) } else { Err(JournalError::Conflict { expected, found }) }
    }

    /// Returns the lease for tokens of these events; zero if they have none.
    fn token_lease(&mut self, events: &[Event]) -> Result<u64, JournalError> {
        if !events.iter().any(|event| matches!(event, Event::Token(..))) {
            return Ok(0);
        }
        let now = clock::since_boot();
        if let Some((lease, taken)) = self.token_lease
            && now.saturating_sub(taken) < TOKEN_LEASE_AGE
        {
            return Ok(lease);
        }
        let lease = grant(&self.client, TOKEN_TTL_S, COMMIT_PATIENCE).map_err(meaning)?;
        self.token_lease = Some((lease, now));
        Ok(lease)
    }

    fn write(&mut self, change: &Change, expected: Revision) -> Result<Revision, JournalError> {
        let leadership = self.leads()?;
        self.know(expected)?;
        let id = commit_id()?;
        let mut token_lease = self.token_lease(&change.events)?;
        for attempt in 0.. {
            let terms = Terms { leader: leadership.created(), id: &id, token_lease };
            let mut known = self.known.take().unwrap_or_default();
            let written = self.write_planned(&mut known, change, terms);
            self.known = Some(known);
            match written {
                // The lease was revoked; then nothing is stored.
                Err(Failure::Etcd(error)) if error.is_no_lease() && attempt == 0 => {
                    self.token_lease = None;
                    token_lease = self.token_lease(&change.events)?;
                }
                Err(Failure::Etcd(error)) => return Err(self.read_back(error, expected, &id)),
                Err(Failure::Journal(error)) => return Err(error),
                Ok(outcome) => return self.outcome(outcome, expected),
            }
        }
        Err(JournalError::Failed("etcd gives no lease for tokens".into()))
    }

    fn write_planned(
        &self,
        known: &mut Known,
        change: &Change,
        terms: Terms<'_>,
    ) -> Result<Outcome, Failure> {
        let planned: Planned = plan::plan(&self.keys, known, change, terms)?;
        for (transaction, parts) in &planned.first {
            let answer = self.ask(transaction)?;
            match plan::judge_first(&self.keys, known, transaction, terms, &answer) {
                Outcome::Stored(revision) => known.take_first(&planned, parts, revision),
                other => return Ok(other),
            }
        }
        let answer = match self.ask(&planned.last) {
            Err(error) if error.may_be_done() => match self.last_commit(terms.id) {
                Ok(Some(revision)) => {
                    known.take(planned, revision);
                    return Ok(Outcome::Stored(revision));
                }
                _ => return Err(error.into()),
            },
            other => other?,
        };
        let outcome = plan::judge(&self.keys, known, &planned.last, terms, &answer);
        if let Outcome::Stored(revision) = outcome {
            known.take(planned, revision);
        }
        Ok(outcome)
    }

    /// Returns the revision of the last commit, if it has this id.
    fn last_commit(&self, id: &str) -> Result<Option<u64>, EtcdError> {
        let key = gateway::get(&self.keys.key(&Thing::Revision));
        let answer: RangeAnswer = self.client.call("kv/range", &key, COMMIT_PATIENCE)?;
        let last = answer.kvs.first().filter(|found| found.value.0 == id.as_bytes());
        Ok(last.map(|found| found.mod_revision.0))
    }

    /// Returns the error of a commit that got no answer, or a refusal after an answer was lost.
    fn read_back(&self, error: EtcdError, expected: Revision, id: &str) -> JournalError {
        if !error.may_be_done() {
            return meaning(error);
        }
        let found = gateway::get(&self.keys.key(&Thing::Revision));
        let found = self.client.call::<RangeAnswer>("kv/range", &found, Duration::ZERO);
        if let Ok(answer) = found {
            let last = answer.kvs.first();
            let revision = Revision(last.map_or(0, |last| last.mod_revision.0));
            let is_ours = last.is_some_and(|last| last.value.0 == id.as_bytes());
            if revision != expected && !is_ours {
                return JournalError::Conflict { expected, found: revision };
            }
        }
        JournalError::Unknown(format!("it is not known whether the change is stored: {error}"))
    }

    fn outcome(&mut self, outcome: Outcome, expected: Revision) -> Result<Revision, JournalError> {
        match outcome {
            Outcome::Stored(revision) => Ok(Revision(revision)),
            Outcome::Conflict(found) => Err(JournalError::Conflict { expected, found }),
            Outcome::TokenTaken(name) => Err(JournalError::TokenTaken(name)),
            Outcome::Touched(key, revision) => Err(JournalError::Touched { key, revision }),
            Outcome::Deposed(leader) => {
                let leader = leader.and_then(|value| serde_json::from_slice::<Leader>(&value).ok());
                let mut text =
                    "this server no longer leads the cluster, so nothing is stored; ".to_owned();
                let _ = match leader {
                    Some(leader) => {
                        write!(text, "{} leads, at {}", leader.node, leader.address)
                    }
                    None => write!(text, "the cluster has no leader now"),
                };
                warn!(text);
                self.deposed = Some(text.clone());
                Err(JournalError::Deposed(text))
            }
        }
    }
}

/// Why a transaction has no outcome.
enum Failure {
    Etcd(EtcdError),
    Journal(JournalError),
}

impl From<EtcdError> for Failure {
    fn from(error: EtcdError) -> Self {
        Self::Etcd(error)
    }
}

impl From<JournalError> for Failure {
    fn from(error: JournalError) -> Self {
        Self::Journal(error)
    }
}

/// Returns the first key after a key.
fn after(key: &[u8]) -> Vec<u8> {
    [key, &[0]].concat()
}

/// Returns a text that no other commit has.
fn commit_id() -> Result<String, JournalError> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes).map_err(|error| {
        JournalError::Failed(format!("the OS gives no random bytes for a commit: {error}"))
    })?;
    Ok(format!("{:032x}", u128::from_le_bytes(bytes)))
}

fn meaning(error: EtcdError) -> JournalError {
    if error.is_no_space() {
        JournalError::NoRoom(error.to_string())
    } else {
        JournalError::Failed(error.to_string())
    }
}

/// Returns whether a commit has failed because etcd has, or may have, other data than this leader
/// knows. If so, the next commits fail, too.
const fn is_outdated(error: &JournalError) -> bool {
    matches!(
        error,
        JournalError::Conflict { .. }
            | JournalError::Touched { .. }
            | JournalError::Unknown(_)
            | JournalError::Deposed(_)
    )
}

/// The data read so far.
struct Reading {
    model: Model,
    credits: Vec<Credits>,
    known: Known,
    stop: Stop,
    clock: Option<Moment>,
}

impl Reading {
    fn take(&mut self, keys: &Keys, found: &KeyValue) -> Result<(), JournalError> {
        let key = &found.key.0;
        let value = &found.value.0;
        let Some(thing) = keys.thing(key) else { return Ok(()) };
        match thing {
            Thing::Revision => self.known.revision = found.mod_revision.0,
            Thing::Stop => {
                self.known.has_stop = true;
                self.stop = Stop::Clean(values::read_moment("stop", value)?);
            }
            Thing::Clock => self.clock = Some(values::read_moment("clock", value)?),
            Thing::Credits(part) => {
                let credits = values::read_credits(value)?;
                self.credits.push(credits.clone());
                let known = self.known.credits.get_mut(part);
                *known.ok_or_else(|| {
                    let key = String::from_utf8_lossy(key);
                    values::malformed(&key, &format!("there are {} parts", values::PARTS))
                })? = credits;
            }
            Thing::Device(..) => {}
            Thing::Event(subject) => {
                let event = event_of(&subject, key, value)?;
                if let Event::Volume(volume) = &event
                    && !volume.attachments.is_empty()
                {
                    let devices = volume.attachments.iter().map(|a| (a.instance, a.device.clone()));
                    self.known.devices.insert(volume.id, devices.collect());
                }
                fill(&mut self.model, event);
            }
        }
        Ok(())
    }

    fn done(mut self) -> Read {
        self.model.reindex();
        let mut credits = Credits::default();
        self.credits.iter().for_each(|part| credits.extend(part));
        let revision = Revision(self.known.revision);
        let loaded =
            Loaded { model: self.model, credits, stop: self.stop, clock: self.clock, revision };
        Read { loaded, known: self.known }
    }
}

impl Journal for EtcdJournal {
    fn load(&mut self) -> Result<Loaded, JournalError> {
        if let Some(leadership) = self.leadership.clone()
            && self.known.is_none()
        {
            self.write_meta(&leadership)?;
        }
        let Read { loaded, known } = self.read()?;
        self.known = Some(known);
        Ok(loaded)
    }

    fn commit(&mut self, change: &Change, expected: Revision) -> Result<Revision, JournalError> {
        let written = self.write(change, expected);
        if let (Err(error), Some(leadership)) = (&written, &self.leadership)
            && is_outdated(error)
        {
            leadership.require_reload();
        }
        let revision = written?;
        self.watchers.publish(revision, change);
        Ok(revision)
    }

    /// A leader's journal delivers its own commits, a follower's those of the leader.
    fn watch(&mut self, after: Revision) -> Result<Watch, JournalError> {
        if self.leadership.is_none() {
            let (queue, watch, there) = watch::channel();
            let client = self.client.clone();
            let keys = self.keys.clone();
            let commits = Commits::default();
            let next = after.0.saturating_add(1);
            let follower = Follower { client, keys, next, queue, there, commits };
            let thread = std::thread::Builder::new().name("etcd-watch".into());
            thread.spawn(move || follower.run()).map_err(|error| {
                JournalError::Failed(format!("cannot start the thread of a watch: {error}"))
            })?;
            return Ok(watch);
        }
        let oldest = match &self.known {
            Some(known) => Revision(known.revision),
            None => self.load()?.revision,
        };
        if after == oldest {
            Ok(self.watchers.add([]))
        } else {
            Err(JournalError::Compacted { after, oldest })
        }
    }
}
