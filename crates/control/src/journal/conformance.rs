//! The conformance tests of a journal. The tests of each implementation call [`check`] with a
//! function that creates a new journal and returns a function that opens it again.
//!
//! The crate `cluster` includes this file for its journal in etcd.

use std::collections::BTreeSet;
use std::time::Duration;

use evenkeel_control::credits::Stop;
use evenkeel_control::journal::*;
use evenkeel_control::model::users::{AccessKey, Secret};
use evenkeel_control::model::{
    Account, Attachment, AttachmentState, Event, FastRestore, Filled, Host, HostState, Lock,
    LockMode, Model, Modification, ModificationPhase, Phase, PublicAccess, Snapshot, SnapshotPhase,
    Tags, TierOperation, Tiering, Token, User, Volume,
};
use evenkeel_control::time::Moment;
use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::time::UnixMs;
use evenkeel_core::units::ByteCount;
use evenkeel_core::volume::{VolumeSpec, VolumeType};
use evenkeel_wire::agent::HostAddress;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};

/// Opens the same journal again, as after a crash if the earlier ones were dropped.
pub type Open = Box<dyn Fn() -> Box<dyn Journal>>;

/// Runs all tests. `new` creates an empty journal.
pub fn check(new: &mut dyn FnMut() -> Open) {
    an_empty_journal_is_empty(&new());
    every_kind_of_event_is_kept(&new());
    events_are_taken_in_their_order(&new());
    a_change_is_stored_whole_or_not_at_all(&new());
    credits_are_kept_until_what_has_them_is_gone(&new());
    a_clean_stop_lasts_until_the_next_change(&new());
    the_servers_time_lasts_until_another_is_stored(&new());
    a_commit_on_an_old_revision_is_refused(&new());
    a_token_is_taken_once(&new());
    a_watcher_sees_every_change_in_order(&new());
    a_watcher_that_does_not_keep_up_is_told(&new());
    what_is_loaded_is_what_was_committed(new);
}

fn volume(number: u8) -> Volume {
    let spec = VolumeSpec {
        volume_type: VolumeType::Gp3,
        size_gib: u32::from(number) + 1,
        iops: Some(3_000),
        throughput_mibps: Some(125),
        multi_attach: false,
    };
    let id = VolumeId::from_bits(number.into());
    Volume { phase: Phase::Ready, ..Volume::new(id, "local-1a", spec, UnixMs(5)) }
}

fn snapshot(number: u8, phase: SnapshotPhase) -> Snapshot {
    let id = SnapshotId::from_bits(number.into());
    let volume_id = VolumeId::from_bits(77);
    Snapshot {
        description: format!("before '{number}'"),
        phase,
        tags: [("k".to_owned(), number.to_string())].into(),
        ..Snapshot::new(id, volume_id, u32::from(number), UnixMs(6))
    }
}

/// Returns a snapshot that is filled; an odd number has a parent, an even one a token.
fn filled(number: u8) -> Snapshot {
    let odd = number % 2 == 1;
    let parent = odd.then(|| SnapshotId::from_bits(2));
    let token = (!odd).then(|| (format!("s{number}"), "f00d".to_owned()));
    let filled = Filled { parent, timeout_min: number.into(), token };
    Snapshot { filled: Some(filled), ..snapshot(number, SnapshotPhase::Filling) }
}

/// Returns a snapshot with many properties.
fn rich(number: u8, phase: u8, is: [bool; 3]) -> Snapshot {
    let data = ByteCount(u64::from(number) << 30);
    let ended = UnixMs(8);
    let entered = UnixMs(30);
    let until = UnixMs(31);
    let phase = match phase {
        0 => SnapshotPhase::Pending,
        1 => SnapshotPhase::Filling,
        2 => SnapshotPhase::Copying { data },
        3 => SnapshotPhase::Completed { data, ended },
        4 => SnapshotPhase::Binned { data, ended, entered, until },
        5 => SnapshotPhase::Deleting { data },
        _ => SnapshotPhase::Error("why".into()),
    };
    let [is_encrypted, is_locked, is_fast] = is;
    let lock = Lock {
        mode: if is_fast { LockMode::Governance } else { LockMode::Compliance },
        created: UnixMs(9),
        cool_off_hours: number.into(),
        days: 30,
        until: is_encrypted.then_some(until),
    };
    let fast = FastRestore { since: entered, credits: 5, counted: until };
    let last = match number % 3 {
        0 => TierOperation::Archive,
        1 => TierOperation::TemporaryRestore { until },
        _ => TierOperation::PermanentRestore,
    };
    let tiering = Tiering { last, began: entered, archived: UnixMs(29) };
    let accounts = (0..number).map(|account| format!("00000000000{account}"));
    Snapshot {
        copy_of: is_encrypted.then(|| SnapshotId::from_bits(97)),
        for_volume: is_locked.then(|| VolumeId::from_bits(96)),
        is_encrypted,
        lock: is_locked.then_some(lock),
        shared_with: accounts.collect(),
        fast_restores: is_fast.then(|| ("local-1a".to_owned(), fast)).into_iter().collect(),
        tiering: is_locked.then_some(tiering),
        ..snapshot(number, phase)
    }
}

fn host(number: u8) -> Host {
    Host {
        id: InstanceId::from_bits(number.into()),
        instance_type: "m5.large".into(),
        address: HostAddress::Remote([10, 0, 0, number].into()),
        registered: UnixMs(7),
        state: HostState::Running,
        tags: [("k".to_owned(), number.to_string())].into(),
        zone: number.is_multiple_of(2).then(|| format!("local-1{number}")),
    }
}

fn token(number: u8) -> Event {
    let volume = VolumeId::from_bits(number.into());
    let token = Token { fingerprint: format!("f{number}"), volume, used: UnixMs(9) };
    Event::Token(format!("t{number}"), token)
}

fn operations(number: u64) -> Balances {
    Balances { operations: Some(number), bytes: None }
}

fn of_volumes(rows: &[(u8, u64)]) -> Credits {
    let row = |(number, balance): &(u8, u64)| {
        (VolumeId::from_bits((*number).into()), operations(*balance))
    };
    Credits { volumes: rows.iter().map(row).collect(), ..Credits::default() }
}

/// Commits a change at the journal's revision and returns the new revision.
fn commit(journal: &mut dyn Journal, change: &Change) -> Revision {
    let before = journal.load().unwrap().revision;
    let after = journal.commit(change, before).unwrap();
    assert!(after > before, "{after} after {before}");
    assert_eq!(journal.load().unwrap().revision, after);
    after
}

fn an_empty_journal_is_empty(open: &Open) {
    let loaded = open().load().unwrap();
    assert_eq!(loaded.model, Model::default());
    assert_eq!(loaded.credits, Credits::default());
    assert!(!matches!(loaded.stop, Stop::Clean(_)));
    assert_eq!(open().load().unwrap(), loaded, "looking changes nothing");
}

/// Checks that volumes with every state of their parts are stored.
fn every_kind_of_event_is_kept(open: &Open) {
    let attachment = |host: u8, device: &str, state| Attachment {
        instance: InstanceId::from_bits(host.into()),
        device: device.into(),
        state,
        attached: UnixMs(host.into()),
        delete_on_termination: host % 2 == 1,
    };
    let phases = [
        ModificationPhase::Modifying,
        ModificationPhase::Optimizing { since: UnixMs(1), until: UnixMs(2) },
        ModificationPhase::Completed { ended: UnixMs(3) },
        ModificationPhase::Failed { ended: UnixMs(4), reason: "why \"not\"".into() },
    ];
    let mut volumes = vec![volume(0)];
    for (number, phase) in (1..).zip(phases) {
        let original = volume(0).spec;
        let target = volume(number).spec;
        let modification = Some(Modification { original, target, started: UnixMs(8), phase });
        volumes.push(Volume { modification, ..volume(number) });
    }
    volumes[0].phase = Phase::Creating;
    volumes[1].phase = Phase::Deleting;
    volumes[2].phase = Phase::Error("bytes\nare missing".into());
    volumes[3].attachments = vec![
        attachment(3, "/dev/sdf", AttachmentState::Attaching),
        attachment(1, "/dev/sdf", AttachmentState::Attached),
        attachment(2, "/dev/sdg", AttachmentState::Detaching),
    ];
    volumes[4].modification_starts = vec![UnixMs(4), UnixMs(3), UnixMs(5)];
    volumes[4].snapshot = Some(SnapshotId::from_bits(2));
    volumes[4].tags =
        [("a".to_owned(), String::new()), ("b".to_owned(), "\u{1F6A2}".into())].into();
    let mut events: Vec<Event> = volumes.into_iter().map(Event::Volume).collect();
    events.extend((1..4).map(|number| Event::Host(host(number))));
    let local = Host { address: HostAddress::Local, tags: Tags::new(), ..host(9) };
    events.extend([Event::Host(local), token(1), token(2)]);
    let data = ByteCount(4_096);
    let ended = UnixMs(9);
    let phases = [
        SnapshotPhase::Pending,
        SnapshotPhase::Completed { data, ended },
        SnapshotPhase::Error("it is\nmissing".into()),
        SnapshotPhase::Deleting { data },
    ];
    let snapshots = (1..).zip(phases).map(|(number, phase)| snapshot(number, phase));
    events.extend(snapshots.map(Event::Snapshot));
    events.extend([Event::Snapshot(filled(11)), Event::Snapshot(filled(12))]);
    let mut model = Model::default();
    events.iter().cloned().for_each(|event| model.apply(event));
    let change = Change::from(events);
    commit(&mut *open(), &change);
    assert_eq!(open().load().unwrap().model, model);
    let gone = vec![
        Event::VolumeGone(VolumeId::from_bits(3)),
        Event::HostGone(InstanceId::from_bits(2)),
        Event::TokenGone("t1".into()),
        Event::SnapshotGone(SnapshotId::from_bits(1)),
        // Deleting a missing object has no effect.
        Event::VolumeGone(VolumeId::from_bits(77)),
    ];
    gone.iter().cloned().for_each(|event| model.apply(event));
    commit(&mut *open(), &gone.into());
    assert_eq!(open().load().unwrap().model, model);
}

fn events_are_taken_in_their_order(open: &Open) {
    let first = volume(1);
    let second = Volume { tags: host(1).tags, ..volume(1) };
    let gone = Event::VolumeGone(first.id);
    let events = vec![Event::Volume(first), gone, Event::Volume(second.clone())];
    let tokens = vec![token(1), Event::TokenGone("t1".into()), token(1)];
    commit(&mut *open(), &[events, tokens].concat().into());
    let model = open().load().unwrap().model;
    assert_eq!(model.volumes.values().collect::<Vec<_>>(), [&second]);
    assert_eq!(model.tokens.len(), 1);
}

fn a_change_is_stored_whole_or_not_at_all(open: &Open) {
    commit(&mut *open(), &vec![token(1)].into());
    let before = open().load().unwrap();
    let events = vec![Event::Volume(volume(1)), Event::Host(host(1)), token(1)];
    let change = Change { events, unleased: of_volumes(&[(1, 5)]), ..Change::default() };
    let refused = open().commit(&change, before.revision).unwrap_err();
    assert_eq!(refused, JournalError::TokenTaken("t1".into()));
    assert_eq!(open().load().unwrap(), before);
}

fn credits_are_kept_until_what_has_them_is_gone(open: &Open) {
    let hosts = Credits {
        hosts: [(InstanceId::from_bits(1), Balances { operations: Some(1), bytes: Some(2) })]
            .into(),
        ..of_volumes(&[(1, 100), (2, u64::MAX >> 1)])
    };
    let events = vec![Event::Volume(volume(1)), Event::Volume(volume(2)), Event::Host(host(1))];
    commit(&mut *open(), &Change { events, unleased: hosts.clone(), ..Change::default() });
    assert_eq!(open().load().unwrap().credits, hosts);
    // A row of balances does not change others, and an event of a volume does not change its row.
    let events = vec![Event::Volume(Volume { phase: Phase::Deleting, ..volume(2) })];
    commit(&mut *open(), &Change { events, unleased: of_volumes(&[(1, 90)]), ..Change::default() });
    let mut expected = hosts;
    expected.extend(&of_volumes(&[(1, 90)]));
    assert_eq!(open().load().unwrap().credits, expected);
    let gone = [Event::VolumeGone(volume(2).id), Event::HostGone(host(1).id)];
    commit(&mut *open(), &gone.to_vec().into());
    assert_eq!(open().load().unwrap().credits, of_volumes(&[(1, 90)]));
}

fn a_clean_stop_lasts_until_the_next_change(open: &Open) {
    for boot in [None, Some(("boot".to_owned(), 17))] {
        let moment = Moment { unix: UnixMs(123), boot };
        let last = Change { stopped: Some(moment.clone()), ..Change::default() };
        commit(&mut *open(), &last);
        assert_eq!(open().load().unwrap().stop, Stop::Clean(moment));
        commit(&mut *open(), &Change::default());
        assert_eq!(open().load().unwrap().stop, Stop::Crash);
    }
}

fn the_servers_time_lasts_until_another_is_stored(open: &Open) {
    assert_eq!(open().load().unwrap().clock, None);
    for boot in [None, Some(("boot".to_owned(), 17))] {
        let moment = Moment { unix: UnixMs(456), boot };
        commit(&mut *open(), &Change { clock: Some(moment.clone()), ..Change::default() });
        commit(&mut *open(), &Change::default());
        assert_eq!(open().load().unwrap().clock, Some(moment));
    }
}

fn a_commit_on_an_old_revision_is_refused(open: &Open) {
    let mut first = open();
    let mut second = open();
    let expected = first.load().unwrap().revision;
    assert_eq!(second.load().unwrap().revision, expected);
    let change = Change::from(vec![Event::Volume(volume(1))]);
    let found = first.commit(&change, expected).unwrap();
    let change = Change::from(vec![Event::Volume(volume(2))]);
    let refused = second.commit(&change, expected);
    assert_eq!(refused, Err(JournalError::Conflict { expected, found }));
    let ahead = Revision(found.0 + 1);
    let refused = second.commit(&change, ahead);
    assert_eq!(refused, Err(JournalError::Conflict { expected: ahead, found }));
    let model = second.load().unwrap().model;
    assert_eq!(model.volumes.keys().collect::<Vec<_>>(), [&volume(1).id]);
    second.commit(&change, found).unwrap();
    assert_eq!(first.load().unwrap().model.volumes.len(), 2);
}

fn a_token_is_taken_once(open: &Open) {
    commit(&mut *open(), &vec![token(1)].into());
    let revision = open().load().unwrap().revision;
    for events in [vec![token(1)], vec![token(2), token(2)]] {
        let refused = open().commit(&events.into(), revision).unwrap_err();
        assert!(matches!(refused, JournalError::TokenTaken(_)), "{refused}");
    }
    commit(&mut *open(), &vec![Event::TokenGone("t1".into()), token(1)].into());
}

fn a_watcher_sees_every_change_in_order(open: &Open) {
    let mut journal = open();
    commit(&mut *journal, &vec![Event::Volume(volume(1))].into());
    let start = journal.load().unwrap().revision;
    let watches = [journal.watch(start).unwrap(), journal.watch(start).unwrap()];
    assert_eq!(watches[0].next(Duration::ZERO), Ok(None));
    let changes = [
        Change::from(vec![Event::Volume(volume(2)), token(1)]),
        Change { unleased: of_volumes(&[(1, 5)]), ..Change::default() },
        Change::from(vec![Event::VolumeGone(volume(1).id)]),
    ];
    let revisions: Vec<_> = changes.iter().map(|change| commit(&mut *journal, change)).collect();
    // A refused commit changes nothing.
    assert!(journal.commit(&changes[0], start).is_err());
    for watch in &watches {
        for (change, revision) in changes.iter().zip(&revisions) {
            let next = watch.next(Duration::from_secs(10)).unwrap().expect("a change");
            assert_eq!((&next.change, &next.revision), (change, revision));
        }
        assert_eq!(watch.next(Duration::ZERO), Ok(None));
    }
    // A watch from an earlier revision delivers all changes or fails.
    match journal.watch(start) {
        Ok(watch) => {
            let next = watch.next(Duration::ZERO).unwrap().expect("a change");
            assert_eq!((&next.change, &next.revision), (&changes[0], &revisions[0]));
        }
        Err(error) => assert!(matches!(error, JournalError::Compacted { .. }), "{error}"),
    }
    let ahead = Revision(revisions[2].0 + 1);
    assert!(matches!(journal.watch(ahead), Err(JournalError::Compacted { .. })));
}

fn a_watcher_that_does_not_keep_up_is_told(open: &Open) {
    let mut journal = open();
    let mut revision = journal.load().unwrap().revision;
    let watch = journal.watch(revision).unwrap();
    for _ in 0..=QUEUE_MAX {
        revision = journal.commit(&Change::default(), revision).unwrap();
    }
    for _ in 0..QUEUE_MAX {
        watch.next(Duration::ZERO).unwrap().expect("a change");
    }
    assert_eq!(watch.next(Duration::from_secs(10)), Err(JournalError::Behind));
}

fn user(number: u8, has_key: bool) -> User {
    let key = AccessKey {
        id: format!("EVKL{number}"),
        secret: Secret("secret".into()),
        is_active: number > 0,
        created: UnixMs(50),
    };
    User {
        name: format!("U{number}"),
        path: "/".into(),
        id: format!("AIDA{number}"),
        created: UnixMs(49),
        keys: has_key.then_some(key).into_iter().collect(),
        policies: has_key.then(|| ("own".into(), "{}".into())).into_iter().collect(),
        attached: BTreeSet::new(),
    }
}

/// Returns any event about a few objects.
fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        (0_u8..4, 0_u8..4, any::<[bool; 3]>()).prop_map(|(number, state, is)| {
            let entered = UnixMs(30);
            let until = UnixMs(31 + u64::from(number));
            let binned = Phase::Binned { entered, until };
            let phases = [Phase::Creating, Phase::Ready, Phase::Deleting, binned];
            let [is_encrypted, is_fast_restored, auto_enable_io] = is;
            Event::Volume(Volume {
                phase: phases[usize::from(state)].clone(),
                source: is_encrypted.then(|| VolumeId::from_bits(99)),
                through: is_fast_restored.then(|| SnapshotId::from_bits(98)),
                is_encrypted,
                is_fast_restored,
                auto_enable_io,
                is_adopted: is_encrypted && state == 0,
                ..volume(number)
            })
        }),
        (0_u8..4, 0_u8..7, any::<[bool; 3]>())
            .prop_map(|(number, phase, is)| Event::Snapshot(rich(number, phase, is))),
        (0_u8..4).prop_map(|number| Event::SnapshotGone(SnapshotId::from_bits(number.into()))),
        (prop::option::of(any::<bool>()), 0_usize..3).prop_map(|(encrypt_by_default, state)| {
            let public_access = [
                PublicAccess::Unblocked,
                PublicAccess::BlockNewSharing,
                PublicAccess::BlockAllSharing,
            ][state];
            Event::Account(Account { encrypt_by_default, public_access })
        }),
        (0_u8..3, any::<bool>()).prop_map(|(number, has_key)| Event::User(user(number, has_key))),
        (0_u8..3).prop_map(|number| Event::UserGone(format!("u{number}"))),
        (0_u8..4).prop_map(|number| Event::VolumeGone(volume(number).id)),
        (0_u8..4, 0_u8..3).prop_map(|(number, state)| {
            let terminated = HostState::Terminated { at: UnixMs(40) };
            let states = [HostState::Running, HostState::Stopped, terminated];
            Event::Host(Host { state: states[usize::from(state)], ..host(number) })
        }),
        (0_u8..4).prop_map(|number| Event::HostGone(host(number).id)),
        (0_u8..4).prop_map(token),
        (0_u8..4).prop_map(|number| Event::TokenGone(format!("t{number}"))),
    ]
}

/// Commits random changes through random instances, compared with the model as the oracle.
fn what_is_loaded_is_what_was_committed(new: &mut dyn FnMut() -> Open) {
    let step = (prop::collection::vec(event(), 0..5), any::<bool>(), 0_u64..3);
    let strategy = prop::collection::vec(step, 1..12);
    let mut runner =
        TestRunner::new(Config { cases: 24, failure_persistence: None, ..Config::default() });
    let new = std::cell::RefCell::new(new);
    let run = |steps: Vec<(Vec<Event>, bool, u64)>| {
        let open = (new.borrow_mut())();
        let mut journal = open();
        let mut expected = journal.load().unwrap();
        for (events, reopens, balance) in steps {
            let taken = tokens_after(&expected.model, &events).is_none();
            let unleased = match expected.model.volumes.keys().next() {
                Some(id) => {
                    let volumes = [(*id, operations(balance))].into();
                    Credits { volumes, ..Credits::default() }
                }
                None => Credits::default(),
            };
            // A row is stored after the events, so a row of a deleted object would stay.
            let gone = |event: &Event| matches!(event, Event::VolumeGone(_));
            let unleased = if events.iter().any(gone) { Credits::default() } else { unleased };
            let change = Change { events, unleased, ..Change::default() };
            let result = journal.commit(&change, expected.revision);
            prop_assert_eq!(result.is_err(), taken, "{:?}", result);
            if let Ok(revision) = result {
                for event in &change.events {
                    expected.model.apply(event.clone());
                    expected.credits.apply(event);
                }
                expected.credits.extend(&change.unleased);
                (expected.revision, expected.stop) = (revision, Stop::Crash);
            }
            if reopens {
                drop(journal);
                journal = open();
            }
            let loaded = journal.load().unwrap();
            prop_assert_eq!(&loaded.model, &expected.model);
            prop_assert_eq!(&loaded.credits, &expected.credits);
            prop_assert_eq!(loaded.revision, expected.revision);
        }
        Ok(())
    };
    runner.run(&strategy, run).unwrap_or_else(|error| panic!("{error}"));
}

/// Returns the tokens after these events; `None` if one of them exists already.
fn tokens_after(model: &Model, events: &[Event]) -> Option<Vec<String>> {
    let mut tokens: Vec<String> = model.tokens.keys().cloned().collect();
    for event in events {
        match event {
            Event::Token(name, _) if tokens.contains(name) => return None,
            Event::Token(name, _) => tokens.push(name.clone()),
            Event::TokenGone(name) => tokens.retain(|other| other != name),
            _ => {}
        }
    }
    Some(tokens)
}
