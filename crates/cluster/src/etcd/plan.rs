//! Plans a change as transactions of etcd, and determines its outcome from their answers. Pure.
//!
//! The last transaction of a change decides. It compares that the leader's key is this server's,
//! that the last commit is the one on which the change is based, and that no key that it writes was
//! written since it was read. It writes a random id as the new commit, which identifies a commit
//! whose answer was lost.
//!
//! Balances for which there is no room beside the events are written first, in transactions with
//! the same comparisons that do not count as commits. They stay stored if the last transaction
//! fails. That is safe, since each balance is a lower bound by itself: see
//! [`evenkeel_control::credits`].

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_control::journal::{Change, Credits, JournalError, Revision, Subject, format};
use evenkeel_control::model::Event;
use evenkeel_core::ids::{InstanceId, VolumeId};

use super::gateway::{
    Compare, OPERATIONS_MAX, Operation, REQUEST_BYTES_MAX, Transaction, TransactionAnswer,
};
use super::keys::{Keys, Thing};
use super::values::{self, PARTS, part_of};

#[cfg(test)]
mod tests;

/// Devices of hosts, each of which has one volume.
pub type Devices = BTreeSet<(InstanceId, String)>;

/// The content of etcd that a journal needs to write the next change.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Known {
    /// The revision of the last commit.
    pub revision: u64,
    /// The revision of the whole store up to which everything is known.
    pub read_at: u64,
    /// The devices to which volumes are attached.
    pub devices: BTreeMap<VolumeId, Devices>,
    /// All balances, by part.
    pub credits: Vec<Credits>,
    /// Whether there is a mark of a clean stop.
    pub has_stop: bool,
}

impl Default for Known {
    fn default() -> Self {
        Self {
            revision: 0,
            read_at: 0,
            devices: BTreeMap::new(),
            credits: vec![Credits::default(); PARTS],
            has_stop: false,
        }
    }
}

/// The leader and the ids of a commit.
#[derive(Clone, Copy, Debug)]
pub struct Terms<'a> {
    /// The revision that created the leader's key.
    pub leader: u64,
    /// The id of this commit.
    pub id: &'a str,
    /// The lease of new tokens.
    pub token_lease: u64,
}

/// A change, as transactions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Planned {
    /// Transactions of balances that come before `last`, with the parts of each.
    pub first: Vec<(Transaction, Vec<usize>)>,
    /// The transaction that decides.
    pub last: Transaction,
    devices: BTreeMap<VolumeId, Devices>,
    parts: BTreeMap<usize, Credits>,
    has_stop: bool,
}

/// The new value of a key.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Write {
    /// `None`: the key is removed.
    value: Option<Vec<u8>>,
    lease: u64,
    /// Whether the transaction requires that the key does not exist.
    is_new: bool,
}

/// A change that is being planned.
struct Draft<'a> {
    known: &'a Known,
    writes: BTreeMap<Thing, Write>,
    /// Tokens of this change, and whether each exists already.
    tokens: BTreeMap<String, bool>,
    devices: BTreeMap<VolumeId, Devices>,
    parts: BTreeMap<usize, Credits>,
}

/// Plans a change.
///
/// # Errors
/// [`JournalError::TokenTaken`] if it has a token twice; [`JournalError::Failed`] if it is too
/// large for etcd.
pub fn plan(
    keys: &Keys,
    known: &Known,
    change: &Change,
    terms: Terms<'_>,
) -> Result<Planned, JournalError> {
    let mut draft = Draft {
        known,
        writes: BTreeMap::new(),
        tokens: BTreeMap::new(),
        devices: BTreeMap::new(),
        parts: BTreeMap::new(),
    };
    for event in &change.events {
        draft.event(event, terms.token_lease)?;
    }
    draft.attachments()?;
    for (id, balances) in &change.unleased.volumes {
        draft.part(part_of(id.bits())).volumes.insert(*id, *balances);
    }
    for (id, balances) in &change.unleased.hosts {
        draft.part(part_of(id.bits())).hosts.insert(*id, *balances);
    }
    let stop = match &change.stopped {
        Some(moment) => Some(Some(values::moment("stop", moment)?)),
        None if known.has_stop => Some(None),
        None => None,
    };
    if let Some(value) = stop {
        draft.writes.insert(Thing::Stop, Write { value, lease: 0, is_new: false });
    }
    if let Some(moment) = &change.clock {
        let value = Some(values::moment("clock", moment)?);
        draft.writes.insert(Thing::Clock, Write { value, lease: 0, is_new: false });
    }
    draft.planned(keys, terms, change.stopped.is_some())
}

impl Draft<'_> {
    fn part(&mut self, part: usize) -> &mut Credits {
        let known = self.known.credits.get(part);
        self.parts.entry(part).or_insert_with(|| known.cloned().unwrap_or_default())
    }

    fn event(&mut self, event: &Event, token_lease: u64) -> Result<(), JournalError> {
        let (subject, is_there) = Subject::of(event);
        let mut lease = 0;
        let mut is_new = false;
        let thing = Thing::Event(subject);
        if let Thing::Event(Subject::Token(name)) = &thing {
            let before = self.tokens.insert(name.clone(), is_there);
            if is_there && before == Some(true) {
                return Err(JournalError::TokenTaken(name.clone()));
            }
            // Only the first event of a token decides whether it must be new.
            let was_new = self.writes.get(&thing).is_some_and(|write| write.is_new);
            is_new = was_new || (is_there && before.is_none());
            lease = token_lease;
        }
        let devices = match event {
            Event::Volume(volume) => {
                let device =
                    |a: &evenkeel_control::model::Attachment| (a.instance, a.device.clone());
                Some((volume.id, volume.attachments.iter().map(device).collect()))
            }
            Event::VolumeGone(id) => Some((*id, Devices::new())),
            _ => None,
        };
        if let Some((id, devices)) = devices {
            self.devices.insert(id, devices);
        }
        let bits = match event {
            Event::VolumeGone(id) => Some(id.bits()),
            Event::HostGone(id) => Some(id.bits()),
            _ => None,
        };
        if let Some(part) = bits.map(part_of) {
            let known = self.known.credits.get(part);
            let before = self.parts.get(&part).or(known).cloned().unwrap_or_default();
            let mut after = before.clone();
            after.apply(event);
            if after != before {
                self.parts.insert(part, after);
            }
        }
        let value = if is_there {
            let json = format::encode(event);
            Some(json.map_err(|error| error.at("the change"))?.into_bytes())
        } else {
            None
        };
        self.writes.insert(thing, Write { value, lease, is_new });
        Ok(())
    }

    /// Adds the keys of devices that this change attaches or detaches.
    fn attachments(&mut self) -> Result<(), JournalError> {
        let none = Devices::new();
        let before = |id: &VolumeId| self.known.devices.get(id).unwrap_or(&none);
        let mut of_devices: BTreeMap<(InstanceId, String), (bool, Option<VolumeId>)> =
            BTreeMap::new();
        for (id, devices) in &self.devices {
            for lost in before(id).difference(devices) {
                of_devices.insert(lost.clone(), (true, None));
            }
        }
        for (id, devices) in &self.devices {
            for got in devices.difference(before(id)) {
                let entry = of_devices.entry(got.clone()).or_insert((false, None));
                if let Some(other) = entry.1.replace(*id) {
                    let (host, device) = got;
                    return Err(JournalError::Failed(format!(
                        "{device} of {host} would be of {other} and of {id}; detach one of them"
                    )));
                }
            }
        }
        for ((host, device), (was_there, volume)) in of_devices {
            let value = volume.map(|id| id.to_string().into_bytes());
            let is_new = !was_there;
            self.writes.insert(Thing::Device(host, device), Write { value, lease: 0, is_new });
        }
        Ok(())
    }

    fn planned(
        self,
        keys: &Keys,
        terms: Terms<'_>,
        has_stop: bool,
    ) -> Result<Planned, JournalError> {
        let Self { known, writes, devices, parts, .. } = self;
        let mut balances = Vec::new();
        for (part, credits) in &parts {
            let value = Some(values::credits(credits)?);
            balances.push((*part, Write { value, lease: 0, is_new: false }));
        }
        let mut last = begun(keys, known, terms.leader);
        for (thing, write) in writes {
            add(&mut last, keys, known, &thing, write);
        }
        let revision = keys.key(&Thing::Revision);
        last.then.push(Operation::Put(revision, terms.id.as_bytes().to_vec(), 0));
        let mut whole = last.clone();
        for (part, write) in balances.clone() {
            add(&mut whole, keys, known, &Thing::Credits(part), write);
        }
        let mut first = Vec::new();
        if fits(&whole) {
            last = whole;
        } else {
            for (part, write) in balances {
                let thing = Thing::Credits(part);
                let mut alone = begun(keys, known, terms.leader);
                add(&mut alone, keys, known, &thing, write.clone());
                check(&alone)?;
                match first.last_mut() {
                    None => first.push((alone, vec![part])),
                    Some((group, parts)) => {
                        let mut more: Transaction = group.clone();
                        add(&mut more, keys, known, &thing, write);
                        if fits(&more) {
                            *group = more;
                            parts.push(part);
                        } else {
                            first.push((alone, vec![part]));
                        }
                    }
                }
            }
        }
        check(&last)?;
        Ok(Planned { first, last, devices, parts, has_stop })
    }
}

/// Begins a transaction with the comparisons that all of them have.
fn begun(keys: &Keys, known: &Known, leader: u64) -> Transaction {
    let revision = keys.key(&Thing::Revision);
    Transaction {
        when: vec![
            Compare::CreatedBy(keys.leader(), leader),
            Compare::WrittenBy(revision.clone(), known.revision),
        ],
        then: vec![],
        otherwise: vec![Operation::Get(keys.leader()), Operation::Get(revision)],
    }
}

fn add(to: &mut Transaction, keys: &Keys, known: &Known, thing: &Thing, write: Write) {
    let key = keys.key(thing);
    to.when.push(if write.is_new {
        Compare::CreatedBy(key.clone(), 0)
    } else {
        Compare::NotWrittenAfter(key.clone(), known.read_at)
    });
    // Balances that are written first have no id, so their values identify them.
    to.otherwise.push(match thing {
        Thing::Credits(_) => Operation::Get(key.clone()),
        _ => Operation::Look(key.clone()),
    });
    to.then.push(match write.value {
        Some(value) => Operation::Put(key, value, write.lease),
        None => Operation::Delete(key),
    });
}

fn fits(transaction: &Transaction) -> bool {
    transaction.operations() <= OPERATIONS_MAX && transaction.bytes() <= REQUEST_BYTES_MAX
}

fn check(transaction: &Transaction) -> Result<(), JournalError> {
    let operations = transaction.operations();
    let bytes = transaction.bytes();
    if operations > OPERATIONS_MAX {
        return Err(JournalError::Failed(format!(
            "this change needs {operations} operations or comparisons of etcd, and a transaction \
             may have {OPERATIONS_MAX}; change fewer things at once"
        )));
    }
    if bytes > REQUEST_BYTES_MAX {
        return Err(JournalError::Failed(format!(
            "this change has {bytes} bytes, and a request to etcd may have {REQUEST_BYTES_MAX}; \
             change fewer things at once"
        )));
    }
    Ok(())
}

/// The outcome of a transaction.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Outcome {
    /// It is stored, at this revision.
    Stored(u64),
    /// Another server leads, or none; the value of the leader's key.
    Deposed(Option<Vec<u8>>),
    /// Another commit came first, at this revision.
    Conflict(Revision),
    /// The token exists already.
    TokenTaken(String),
    /// Another client of etcd has written this key, at this revision.
    Touched(String, u64),
}

/// Determines the outcome from the answer to the transaction that decides.
#[must_use]
pub fn judge(
    keys: &Keys,
    known: &Known,
    transaction: &Transaction,
    terms: Terms<'_>,
    answer: &TransactionAnswer,
) -> Outcome {
    if answer.succeeded {
        return Outcome::Stored(answer.header.revision.0);
    }
    let last = answer.of(&keys.key(&Thing::Revision));
    // The answer to an earlier attempt was lost.
    if let Some(last) = last
        && last.value.0 == terms.id.as_bytes()
    {
        return Outcome::Stored(last.mod_revision.0);
    }
    refused(keys, known, transaction, terms, answer)
}

/// Determines the outcome from the answer to balances that are written first.
#[must_use]
pub fn judge_first(
    keys: &Keys,
    known: &Known,
    transaction: &Transaction,
    terms: Terms<'_>,
    answer: &TransactionAnswer,
) -> Outcome {
    let is_there = |operation: &Operation| match operation {
        Operation::Put(key, value, _) => {
            answer.of(key).is_some_and(|found| found.value.0 == *value)
        }
        _ => false,
    };
    if answer.succeeded {
        return Outcome::Stored(answer.header.revision.0);
    }
    match refused(keys, known, transaction, terms, answer) {
        Outcome::Touched(..) if transaction.then.iter().all(is_there) => {
            Outcome::Stored(answer.header.revision.0)
        }
        other => other,
    }
}

fn refused(
    keys: &Keys,
    known: &Known,
    transaction: &Transaction,
    terms: Terms<'_>,
    answer: &TransactionAnswer,
) -> Outcome {
    let leader = answer.of(&keys.leader());
    if leader.map(|found| found.create_revision.0) != Some(terms.leader) {
        return Outcome::Deposed(leader.map(|found| found.value.0.clone()));
    }
    let found = answer.of(&keys.key(&Thing::Revision)).map_or(0, |found| found.mod_revision.0);
    if found != known.revision {
        return Outcome::Conflict(Revision(found));
    }
    for compare in &transaction.when {
        match compare {
            Compare::CreatedBy(key, 0) => {
                let Some(found) = answer.of(key) else { continue };
                if let Some(Thing::Event(Subject::Token(name))) = keys.thing(key) {
                    return Outcome::TokenTaken(name);
                }
                return touched(key, found.mod_revision.0);
            }
            Compare::NotWrittenAfter(key, at) => {
                if let Some(found) = answer.of(key).filter(|found| found.mod_revision.0 > *at) {
                    return touched(key, found.mod_revision.0);
                }
            }
            _ => {}
        }
    }
    // Comparisons and reads are of one revision, so this does not happen.
    Outcome::Conflict(Revision(found))
}

fn touched(key: &[u8], revision: u64) -> Outcome {
    Outcome::Touched(String::from_utf8_lossy(key).into_owned(), revision)
}

impl Known {
    /// Records the stored balances of a transaction.
    pub fn take_first(&mut self, planned: &Planned, parts: &[usize], revision: u64) {
        for part in parts {
            if let (Some(known), Some(new)) = (self.credits.get_mut(*part), planned.parts.get(part))
            {
                *known = new.clone();
            }
        }
        self.read_at = self.read_at.max(revision);
    }

    /// Records a stored change.
    pub fn take(&mut self, planned: Planned, revision: u64) {
        for (id, devices) in planned.devices {
            if devices.is_empty() {
                _ = self.devices.remove(&id)
            } else {
                _ = self.devices.insert(id, devices)
            }
        }
        for (part, credits) in planned.parts {
            if let Some(known) = self.credits.get_mut(part) {
                *known = credits;
            }
        }
        self.has_stop = planned.has_stop;
        self.revision = revision;
        self.read_at = self.read_at.max(revision);
    }
}
