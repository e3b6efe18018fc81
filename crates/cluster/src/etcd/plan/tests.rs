//! Tests plans and judgements against a small model of etcd: the rules of its transactions on a
//! map.

use std::collections::BTreeMap;

use evenkeel_control::model::{Attachment, AttachmentState, Phase, Token, Volume};
use evenkeel_control::time::Moment;
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::time::UnixMs;
use evenkeel_core::volume::{VolumeSpec, VolumeType};
use proptest::prelude::*;

use super::*;
use crate::etcd::gateway::{Header, KeyValue, Number, OperationAnswer, RangeAnswer, Raw};

/// Keys with their values and the revisions that created and wrote them.
#[derive(Clone, Default)]
struct Toy {
    keys: BTreeMap<Vec<u8>, (Vec<u8>, u64, u64)>,
    revision: u64,
}

impl Toy {
    fn get(&self, key: &[u8]) -> Option<KeyValue> {
        let (value, created, written) = self.keys.get(key)?;
        Some(KeyValue {
            key: Raw(key.to_vec()),
            value: Raw(value.clone()),
            create_revision: Number(*created),
            mod_revision: Number(*written),
            lease: Number(0),
        })
    }

    fn run(&mut self, transaction: &Transaction) -> TransactionAnswer {
        let of = |key: &Vec<u8>| self.keys.get(key).map_or((0, 0), |(_, c, w)| (*c, *w));
        let succeeded = transaction.when.iter().all(|compare| match compare {
            Compare::CreatedBy(key, at) => of(key).0 == *at,
            Compare::WrittenBy(key, at) => of(key).1 == *at,
            Compare::NotWrittenAfter(key, at) => of(key).1 <= *at,
            Compare::Holds(key, value) => self.get(key).is_some_and(|it| it.value.0 == *value),
        });
        let mut responses = Vec::new();
        let mut written = BTreeSet::new();
        let operations = if succeeded { &transaction.then } else { &transaction.otherwise };
        self.revision += u64::from(succeeded);
        for operation in operations {
            match operation {
                Operation::Put(key, value, _) => {
                    let created = self.keys.get(key).map_or(self.revision, |(_, c, _)| *c);
                    self.keys.insert(key.clone(), (value.clone(), created, self.revision));
                    assert!(written.insert(key.clone()), "etcd refuses a key twice");
                }
                Operation::Delete(key) => {
                    self.keys.remove(key);
                    assert!(written.insert(key.clone()), "etcd refuses a key twice");
                }
                Operation::Get(key) | Operation::Look(key) => {
                    let kvs = self.get(key).into_iter().collect();
                    let range = RangeAnswer { kvs, ..RangeAnswer::default() };
                    responses.push(OperationAnswer { response_range: Some(range) });
                }
            }
        }
        let header = Header { revision: Number(self.revision) };
        TransactionAnswer { header, succeeded, responses }
    }

    /// Makes a server the leader. Returns the revision that created the key.
    fn elect(&mut self, keys: &Keys, name: &str) -> u64 {
        self.revision += 1;
        let row = (name.as_bytes().to_vec(), self.revision, self.revision);
        self.keys.insert(keys.leader(), row);
        self.revision
    }
}

fn volume(number: u128, devices: &[(u128, &str)]) -> Event {
    let spec = VolumeSpec {
        volume_type: VolumeType::Gp3,
        size_gib: 1,
        iops: Some(3_000),
        throughput_mibps: Some(125),
        multi_attach: true,
    };
    let attachment = |(host, device): &(u128, &str)| Attachment {
        instance: InstanceId::from_bits(*host),
        device: (*device).to_owned(),
        state: AttachmentState::Attached,
        attached: UnixMs(1),
        delete_on_termination: false,
    };
    let volume = Volume::new(VolumeId::from_bits(number), "z", spec, UnixMs(1));
    let attachments = devices.iter().map(attachment).collect();
    Event::Volume(Volume { phase: Phase::Ready, attachments, ..volume })
}

fn token(name: &str) -> Event {
    let volume = VolumeId::from_bits(1);
    let token = Token { fingerprint: "f".into(), volume, used: UnixMs(1) };
    Event::Token(name.to_owned(), token)
}

/// Plans, runs and judges a change of one transaction, and records it as known.
fn commit(
    toy: &mut Toy,
    known: &mut Known,
    leader: u64,
    id: &str,
    events: Vec<Event>,
) -> Result<Outcome, JournalError> {
    let keys = Keys::of("c").unwrap();
    let terms = Terms { leader, id, token_lease: 0 };
    let planned = plan(&keys, known, &events.into(), terms)?;
    let answer = toy.run(&planned.last);
    let outcome = judge(&keys, known, &planned.last, terms, &answer);
    if let Outcome::Stored(revision) = outcome {
        known.take(planned, revision);
    }
    Ok(outcome)
}

#[test]
fn repeated_commit_with_a_lost_answer_is_recognised_as_stored() {
    let keys = Keys::of("c").unwrap();
    let mut toy = Toy::default();
    let known = Known::default();
    let leader = toy.elect(&keys, "a");
    let known = Known { read_at: toy.revision, ..known };
    let terms = Terms { leader, id: "one", token_lease: 0 };
    let change = Change::from(vec![volume(1, &[]), token("t")]);
    let planned = plan(&keys, &known, &change, terms).unwrap();
    let stored = toy.run(&planned.last).header.revision.0;
    let judged = |toy: &mut Toy| {
        let answer = toy.run(&planned.last);
        assert!(!answer.succeeded);
        judge(&keys, &known, &planned.last, terms, &answer)
    };
    assert_eq!(judged(&mut toy), Outcome::Stored(stored));
    // Also for a server that has lost the leadership meanwhile: the change was stored before that.
    let next = toy.elect(&keys, "b");
    assert_eq!(judged(&mut toy), Outcome::Stored(stored));
    // After another commit the outcome cannot be determined. The change does not count as stored.
    let mut of_next = Known { revision: stored, read_at: toy.revision, ..known.clone() };
    let second = commit(&mut toy, &mut of_next, next, "two", vec![]).unwrap();
    assert!(matches!(second, Outcome::Stored(_)), "{second:?}");
    assert_eq!(judged(&mut toy), Outcome::Deposed(Some(b"b".to_vec())));
}

#[test]
fn each_refused_commit_returns_its_reason() {
    let keys = Keys::of("c").unwrap();
    let mut toy = Toy::default();
    let leader = toy.elect(&keys, "a");
    let mut known = Known { read_at: toy.revision, ..Known::default() };
    let first = vec![volume(1, &[(7, "/dev/sdf")]), token("t")];
    let stored = commit(&mut toy, &mut known, leader, "1", first).unwrap();
    assert_eq!(stored, Outcome::Stored(2));
    let before = (known.clone(), toy.keys.clone());
    let again = commit(&mut toy, &mut known, leader, "2", vec![token("t")]).unwrap();
    assert_eq!(again, Outcome::TokenTaken("t".into()));
    let twice = commit(&mut toy, &mut known, leader, "2", vec![token("u"), token("u")]);
    assert_eq!(twice, Err(JournalError::TokenTaken("u".into())));
    // A device has one volume.
    let same = vec![volume(2, &[(7, "/dev/sdf")])];
    let same = commit(&mut toy, &mut known, leader, "2", same).unwrap();
    let device = "/evenkeel/c/a/i-00000000000000007//dev/sdf";
    assert_eq!(same, Outcome::Touched(device.into(), 2));
    let both = vec![volume(2, &[(7, "/dev/sdg")]), volume(3, &[(7, "/dev/sdg")])];
    let both = commit(&mut toy, &mut known, leader, "2", both).unwrap_err().to_string();
    assert!(both.contains("/dev/sdg of i-00000000000000007"), "{both}");
    assert_eq!((known.clone(), toy.keys.clone()), before);
    // One change moves it from one volume to another.
    let moved = vec![volume(1, &[]), volume(2, &[(7, "/dev/sdf")])];
    let moved = commit(&mut toy, &mut known, leader, "3", moved).unwrap();
    assert_eq!(moved, Outcome::Stored(3));
    let row = &toy.keys[device.as_bytes()];
    assert_eq!(row.0, VolumeId::from_bits(2).to_string().as_bytes());
    let mut old = before.0;
    let late = commit(&mut toy, &mut old, leader, "4", vec![]).unwrap();
    assert_eq!(late, Outcome::Conflict(Revision(3)));
    toy.keys.remove(&keys.leader());
    let none = commit(&mut toy, &mut known, leader, "5", vec![]).unwrap();
    assert_eq!(none, Outcome::Deposed(None));
}

#[test]
fn balances_that_do_not_fit_go_first_and_may_be_sent_twice() {
    let keys = Keys::of("c").unwrap();
    let mut toy = Toy::default();
    let leader = toy.elect(&keys, "a");
    let mut known = Known { read_at: toy.revision, ..Known::default() };
    let balances = Balances { operations: Some(u64::MAX), bytes: Some(u64::MAX) };
    let volumes = (0..50_000).map(|number| (VolumeId::from_bits(number), balances)).collect();
    let unleased = Credits { volumes, ..Credits::default() };
    let change = Change { events: vec![volume(1, &[])], unleased, ..Change::default() };
    let terms = Terms { leader, id: "1", token_lease: 0 };
    let planned = plan(&keys, &known, &change, terms).unwrap();
    assert!(planned.first.len() > 1);
    let parts: Vec<usize> = planned.first.iter().flat_map(|(_, parts)| parts.clone()).collect();
    assert_eq!(parts, (0..PARTS).collect::<Vec<_>>());
    for (transaction, parts) in &planned.first {
        assert!(fits(transaction));
        for _ in 0..2 {
            let answer = toy.run(transaction);
            let outcome = judge_first(&keys, &known, transaction, terms, &answer);
            assert!(matches!(outcome, Outcome::Stored(_)), "{outcome:?}");
        }
        known.take_first(&planned, parts, toy.revision);
    }
    let answer = toy.run(&planned.last);
    let outcome = judge(&keys, &known, &planned.last, terms, &answer);
    assert_eq!(outcome, Outcome::Stored(toy.revision));
}

/// The control plane stores confirmations together up to 96 keys: one for each event, and one for
/// each attachment that a volume gets or loses.
#[test]
fn change_of_96_keys_fits_with_its_clock_and_balances() {
    let keys = Keys::of("c").unwrap();
    let moment = Moment { unix: UnixMs(1), boot: None };
    for attachments in [0, 1, 5, 15] {
        let mut toy = Toy::default();
        let leader = toy.elect(&keys, "a");
        let mut known = Known { read_at: toy.revision, has_stop: true, ..Known::default() };
        let numbers = 0..96 / (1 + attachments);
        for number in numbers.clone() {
            let device = format!("/dev/sd{number}");
            let devices: Vec<(u128, &str)> =
                (0..attachments).map(|host| (host, device.as_str())).collect();
            let attached = vec![volume(number, &devices)];
            let stored = commit(&mut toy, &mut known, leader, "1", attached).unwrap();
            assert!(matches!(stored, Outcome::Stored(_)), "{stored:?}");
        }
        known.has_stop = true;
        let detached = numbers.clone().map(|number| volume(number, &[])).collect();
        let balances = Balances { operations: Some(1), bytes: Some(1) };
        let volumes = numbers.map(|number| (VolumeId::from_bits(number), balances)).collect();
        let change = Change {
            events: detached,
            unleased: Credits { volumes, ..Credits::default() },
            clock: Some(moment.clone()),
            ..Change::default()
        };
        let terms = Terms { leader, id: "2", token_lease: 0 };
        let planned = plan(&keys, &known, &change, terms).unwrap();
        assert!(planned.last.operations() > 96, "{}", planned.last.operations());
    }
}

#[derive(Clone, Debug)]
enum Step {
    /// One of two servers commits a volume. Its first answer may be lost, or its request delayed.
    Commit { by: usize, volume: u8, is_lost: bool, is_late: bool },
    /// One of two servers becomes the leader, and reads.
    Elect { who: usize },
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0_usize..2, 0_u8..3, any::<bool>(), any::<bool>()).prop_map(
            |(by, volume, is_lost, is_late)| Step::Commit { by, volume, is_lost, is_late }
        ),
        1 => (0_usize..2).prop_map(|who| Step::Elect { who }),
    ]
}

/// One of two servers that compete for the leadership.
#[derive(Default)]
struct Side {
    leader: u64,
    known: Known,
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    /// Two leaders, lost answers, and requests that arrive after their sender has stopped waiting.
    /// A change that is reported as stored was stored by the leader, and a change that is reported
    /// as refused was not stored.
    #[test]
    fn reported_outcomes_of_commits_are_true(steps in prop::collection::vec(step(), 1..40)) {
        let keys = Keys::of("c").unwrap();
        let mut toy = Toy::default();
        let mut sides = [Side::default(), Side::default()];
        let mut late: Vec<Transaction> = vec![];
        for (number, step) in steps.into_iter().enumerate() {
            let id = format!("id{number}");
            match step {
                Step::Elect { who } => {
                    let leader = toy.elect(&keys, &who.to_string());
                    let revision = toy.get(&keys.key(&Thing::Revision));
                    let revision = revision.map_or(0, |found| found.mod_revision.0);
                    let read_at = toy.revision;
                    let known = Known { revision, read_at, ..Known::default() };
                    sides[who] = Side { leader, known };
                }
                // Commits before the first election are left out.
                Step::Commit { by, .. } if sides[by].leader == 0 => {}
                Step::Commit { by, volume: bits, is_lost, is_late } => {
                    let side = &mut sides[by];
                    let terms = Terms { leader: side.leader, id: &id, token_lease: 0 };
                    let change = Change::from(vec![volume(bits.into(), &[])]);
                    let planned = plan(&keys, &side.known, &change, terms).unwrap();
                    if is_late {
                        // The request arrives after the sender has stopped waiting, so it has no
                        // outcome.
                        late.push(planned.last);
                        continue;
                    }
                    let is_leader = toy.get(&keys.leader())
                        .is_some_and(|found| found.create_revision.0 == side.leader);
                    if is_lost {
                        toy.run(&planned.last);
                    }
                    let answer = toy.run(&planned.last);
                    let outcome = judge(&keys, &side.known, &planned.last, terms, &answer);
                    let last = toy.get(&keys.key(&Thing::Revision));
                    let is_there = last.is_some_and(|found| found.value.0 == id.as_bytes());
                    let is_stored = matches!(outcome, Outcome::Stored(_));
                    prop_assert_eq!(is_stored, is_there, "{:?}", outcome);
                    prop_assert!(is_leader || !is_stored);
                    if let Outcome::Stored(revision) = outcome {
                        prop_assert_eq!(revision, toy.revision);
                        side.known.take(planned, revision);
                    }
                }
            }
            // Delivers some of the delayed requests. One may be stored, but never after another
            // commit of its revision.
            if number % 3 == 0 && let Some(transaction) = late.pop() {
                let before = toy.get(&keys.key(&Thing::Revision));
                let answer = toy.run(&transaction);
                if answer.succeeded {
                    let at = before.map_or(0, |found| found.mod_revision.0);
                    let revision = keys.key(&Thing::Revision);
                    prop_assert!(transaction.when.contains(&Compare::WrittenBy(revision, at)));
                }
            }
        }
    }
}
