//! The control plane's journal on a real etcd, and the faults that etcd and other leaders may
//! cause.
//!
//! The tests are skipped with a message if etcd is not installed.

#![allow(clippy::unwrap_used)]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use evenkeel_cluster::etcd::EtcdJournal;
use evenkeel_cluster::etcd::client::{Client, EtcdError, Options, TlsFiles};
use evenkeel_cluster::etcd::election::{Election, Leader, Leadership, Standing};
use evenkeel_cluster::etcd::keys::Keys;
use evenkeel_cluster::etcd::{number, upkeep};
use evenkeel_cluster::kv::Kv;
use evenkeel_cluster::nodes::{Inst, Presence};
use evenkeel_control::journal::{Change, Journal, JournalError, Loaded, Revision, Watch};
use evenkeel_control::model::{Event, Phase, Token, Volume};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::time::UnixMs;
use evenkeel_core::volume::{VolumeSpec, VolumeType};
use evenkeel_lab::LabError;
use evenkeel_lab::child::Guarded;
use evenkeel_lab::etcd::{Etcd, Setup, Tls};
use evenkeel_os::clock;
use rustix::process::{Pid, Signal, kill_process};

/// Starts an etcd; returns `None` and prints that the test is skipped if it is not installed.
fn etcd(folder: &Path, setup: Setup) -> Option<Etcd> {
    match Etcd::start(&folder.join("etcd"), setup) {
        Ok(etcd) => Some(etcd),
        Err(LabError::ToolMissing { tool, .. }) => {
            skipped(&tool);
            None
        }
        Err(error) => panic!("{error}"),
    }
}

fn skipped(tool: &str) {
    let _ =
        writeln!(std::io::stdout(), "SKIPPED: {tool} is not installed (cargo x setup installs it)");
}

fn keys() -> Keys {
    Keys::of("test").unwrap()
}

/// The cluster's number.
const NUMBER: u128 = 7;

/// Returns a client of a cluster, which it founds as the first node does.
fn client(endpoints: Vec<String>) -> Client {
    let client = Client::new(&Options { endpoints, ..Options::default() }).unwrap();
    found(&client);
    client
}

fn found(client: &Client) {
    let kv = Kv { client: client.clone(), keys: keys() };
    kv.once("id", number::text_of(NUMBER).as_bytes()).unwrap();
}

fn election(client: &Client, node: &str) -> Election {
    let incarnation = format!("{node}-{}", std::process::id());
    let address = format!("{node}:8451");
    let candidate = Leader { node: node.to_owned(), incarnation, address };
    Election::new(client.clone(), keys(), NUMBER, candidate)
}

/// Becomes the leader as soon as the previous one has lost its lease.
fn lead(client: &Client, node: &str) -> (EtcdJournal, Leadership) {
    let leadership = election(client, node).wait(Duration::from_secs(30)).unwrap();
    let leadership = leadership.expect("the leadership");
    (EtcdJournal::lead(client.clone(), keys(), leadership.clone()), leadership)
}

fn volume(number: u64) -> Event {
    let spec = VolumeSpec {
        volume_type: VolumeType::Gp3,
        size_gib: 8,
        iops: Some(3_000),
        throughput_mibps: Some(125),
        multi_attach: false,
    };
    let id = VolumeId::from_bits(number.into());
    let volume = Volume::new(id, "local-1a", spec, UnixMs(5));
    Event::Volume(Volume { phase: Phase::Ready, ..volume })
}

fn change(number: u64) -> Change {
    vec![volume(number)].into()
}

fn numbers(loaded: &Loaded) -> BTreeSet<u64> {
    loaded.model.volumes.keys().map(|id| u64::try_from(id.bits()).unwrap()).collect()
}

fn next(watch: &Watch) -> (Revision, Change) {
    let committed = watch.next(Duration::from_secs(20)).unwrap().expect("a commit");
    (committed.revision, committed.change.clone())
}

#[test]
fn a_leader_whose_lease_is_gone_commits_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let Some(etcd) = etcd(folder.path(), Setup::default()) else { return };
    let client = client(etcd.endpoints());
    let (mut first, held) = lead(&client, "n1");
    let empty = first.load().unwrap().revision;
    let revision = first.commit(&change(1), empty).unwrap();
    // A follower knows the leader's address, and commits nothing.
    let Standing::Follows(leader) = election(&client, "n2").campaign().unwrap() else {
        panic!("two leaders");
    };
    assert_eq!((leader.node.as_str(), leader.address.as_str()), ("n1", "n1:8451"));
    let mut follower = EtcdJournal::follow(client.clone(), keys());
    assert_eq!(numbers(&follower.load().unwrap()), [1].into());
    let refused = follower.commit(&change(9), revision).unwrap_err();
    assert!(matches!(refused, JournalError::Deposed(_)), "{refused}");
    let watch = follower.watch(revision).unwrap();

    etcd.client(&["lease", "revoke", &held.lease()]).unwrap();
    // There is no leader now.
    let refused = first.commit(&change(2), revision).unwrap_err();
    assert!(refused.to_string().contains("has no leader"), "{refused}");
    let (mut second, held_by_second) = lead(&client, "n2");
    assert_eq!(second.load().unwrap().revision, revision);
    let refused = first.commit(&change(3), revision).unwrap_err();
    assert!(matches!(refused, JournalError::Deposed(_)), "{refused}");
    let revision = second.commit(&change(4), revision).unwrap();
    assert_eq!(numbers(&second.load().unwrap()), [1, 4].into());
    // A journal that is opened now for the first one's leadership commits nothing either.
    let mut again = EtcdJournal::lead(client.clone(), keys(), held.clone());
    assert_eq!(numbers(&again.load().unwrap()), [1, 4].into());
    let refused = again.commit(&change(5), revision).unwrap_err();
    let text = refused.to_string();
    assert!(text.contains("n2 leads, at n2:8451"), "{text}");
    // The follower has seen the second one's commit, but no other.
    assert_eq!(next(&watch), (revision, change(4)));
    // After a resignation, a new leader can be elected at once.
    held_by_second.resign().unwrap();
    assert!(!held_by_second.is_held());
    assert!(matches!(election(&client, "n3").campaign().unwrap(), Standing::Leads(_)));
}

/// Returns a process of a node that is alive.
fn inst() -> Inst {
    let nowhere = "127.0.0.1:1".parse().unwrap();
    Inst {
        incarnation: "1".to_owned(),
        store: String::new(),
        agent: nowhere,
        relay: nowhere,
        api: nowhere,
        nbd: vec![],
        is_leaving: false,
        version: String::new(),
        settings: BTreeMap::new(),
    }
}

/// A leader of an etcd without data would find no volumes, and take all stored bytes for unowned.
#[test]
fn an_etcd_that_lost_its_data_elects_no_leader() {
    let folder = tempfile::tempdir().unwrap();
    let Some(etcd) = etcd(folder.path(), Setup::default()) else { return };
    let client = client(etcd.endpoints());
    let kv = Kv { client: client.clone(), keys: keys() };
    let presence = Presence::start(kv.clone(), NUMBER, "n1", inst()).unwrap();
    let (mut journal, held) = lead(&client, "n1");
    let revision = journal.load().unwrap().revision;
    let revision = journal.commit(&change(1), revision).unwrap();

    etcd.client(&["del", "", "--prefix"]).unwrap();
    let refused = journal.commit(&change(2), revision).unwrap_err();
    assert!(matches!(refused, JournalError::Deposed(_)), "{refused}");
    held.resign().unwrap();
    for outcome in [election(&client, "n2").campaign().map(drop), presence.update(inst())] {
        let Err(error @ EtcdError::OtherCluster(_)) = outcome else { panic!("{outcome:?}") };
        let text = error.to_string();
        assert!(text.contains("/evenkeel/test/id is missing"), "{text}");
    }
    // The same happens with the etcd of another cluster of this name, which has a leader.
    kv.once("id", number::text_of(NUMBER + 1).as_bytes()).unwrap();
    let other = Leader { node: "x".into(), incarnation: "x".into(), address: "x:1".into() };
    let other = Election::new(client.clone(), keys(), NUMBER + 1, other).campaign().unwrap();
    assert!(matches!(other, Standing::Leads(_)), "{other:?}");
    let error = election(&client, "n2").campaign().unwrap_err();
    assert!(error.to_string().contains("has another number"), "{error}");
    // No node of this cluster has written there.
    assert_eq!(kv.all("n/").unwrap().values, vec![]);
}

/// Names etcd's endpoints and the file of committed changes to the process below.
const ENDPOINTS: &str = "EVENKEEL_TEST_ETCD";
const FILE: &str = "EVENKEEL_TEST_FILE";

/// The other process of the next test: it leads and commits until it is refused. Without the
/// variables it does nothing.
#[test]
fn a_process_that_leads() {
    let (Ok(endpoints), Ok(file)) = (std::env::var(ENDPOINTS), std::env::var(FILE)) else {
        return;
    };
    let mut file = fs::File::create(file).unwrap();
    let client = client(endpoints.split(',').map(str::to_owned).collect());
    let (mut journal, _held) = lead(&client, "stopped");
    let mut revision = journal.load().unwrap().revision;
    for number in 1.. {
        match journal.commit(&change(number), revision) {
            Ok(new) => {
                revision = new;
                writeln!(file, "{number}").unwrap();
            }
            Err(error) => {
                writeln!(file, "refused {number}: {error}").unwrap();
                return;
            }
        }
    }
}

fn signal(child: &Guarded, signal: Signal) {
    let pid = Pid::from_raw(i32::try_from(child.id()).unwrap()).unwrap();
    kill_process(pid, signal).unwrap();
}

fn committed(file: &Path) -> Vec<String> {
    fs::read_to_string(file).unwrap_or_default().lines().map(str::to_owned).collect()
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = clock::now() + Duration::from_secs(60);
    let (_keep, wait) = std::sync::mpsc::channel::<()>();
    while !is_so() {
        assert!(clock::now() < deadline, "{what}");
        let _ = wait.recv_timeout(Duration::from_millis(20));
    }
}

#[test]
fn member_that_ends_at_its_start_is_an_error_with_its_message() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = vec!["--no-such-flag".to_owned()];
    let setup = Setup { arguments, ..Setup::default() };
    match Etcd::start(&folder.path().join("etcd"), setup) {
        Err(LabError::ToolMissing { tool, .. }) => skipped(&tool),
        Err(error) => {
            let message = error.to_string();
            assert!(message.contains("member 0 has ended"), "{message}");
            assert!(message.contains("no-such-flag"), "{message}");
        }
        Ok(_) => panic!("etcd accepts a flag that does not exist"),
    }
}

#[test]
fn a_leader_that_slept_commits_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let Some(etcd) = etcd(folder.path(), Setup::default()) else { return };
    let file = folder.path().join("committed");
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "a_process_that_leads"]).stdout(Stdio::null());
    command.env(ENDPOINTS, etcd.endpoints().join(",")).env(FILE, &file);
    let mut child = Guarded::spawn(&mut command, "").unwrap();
    wait_for("commits", || committed(&file).len() > 5);
    signal(&child, Signal::STOP);
    let client = client(etcd.endpoints());
    let (mut journal, _held) = lead(&client, "n2");
    let before = journal.load().unwrap();
    let at_stop = committed(&file);
    let revision = journal.commit(&change(1_000_000), before.revision).unwrap();
    signal(&child, Signal::CONT);
    wait_for("its end", || child.wait_until(clock::now()).is_some());
    let lines = committed(&file);
    let refused = lines.last().unwrap();
    assert!(refused.contains("no longer leads") && refused.contains("n2:8451"), "{refused}");
    // One commit may have been under way: it was stored before the other leader's term, or never.
    let done: BTreeSet<u64> = lines.iter().filter_map(|line| line.parse().ok()).collect();
    assert!(done.len() <= at_stop.len() + 1, "{} after {}", done.len(), at_stop.len());
    assert!(done.is_subset(&numbers(&before)), "{done:?}");
    let after = journal.load().unwrap();
    let mut expected = numbers(&before);
    expected.insert(1_000_000);
    assert_eq!((numbers(&after), after.revision), (expected, revision));
}

/// A commit whose answer was lost may be stored, or another process may have committed in between:
/// the leader's next commits are all refused. It resigns, and the next leader reads it.
#[test]
fn a_leader_that_does_not_know_the_last_commit_must_reload() {
    let folder = tempfile::tempdir().unwrap();
    let Some(etcd) = etcd(folder.path(), Setup::default()) else { return };
    let client = client(etcd.endpoints());
    let (mut journal, held) = lead(&client, "n1");
    let before = journal.load().unwrap().revision;
    // A commit of the leader whose answer was lost.
    let mut unheard = EtcdJournal::lead(client.clone(), keys(), held.clone());
    unheard.load().unwrap();
    unheard.commit(&change(1), before).unwrap();
    assert!(!held.must_reload());
    let refused = journal.commit(&change(2), before).unwrap_err();
    assert!(matches!(refused, JournalError::Conflict { .. }), "{refused}");
    assert!(held.must_reload() && held.is_held());
    held.resign().unwrap();
    let (mut journal, held) = lead(&client, "n1");
    let loaded = journal.load().unwrap();
    assert_eq!(numbers(&loaded), [1].into());
    journal.commit(&change(2), loaded.revision).unwrap();
    // A change that is too large, or not allowed, leaves no doubt about etcd's contents.
    let many: Vec<Event> = (0..200).map(volume).collect();
    let revision = journal.load().unwrap().revision;
    journal.commit(&many.into(), revision).unwrap_err();
    assert!(!held.must_reload());
    // Without the leader's key no commit succeeds, although the lease holds.
    etcd.client(&["del", "/evenkeel/test/leader"]).unwrap();
    let refused = journal.commit(&change(3), revision).unwrap_err();
    assert!(matches!(refused, JournalError::Deposed(_)), "{refused}");
    assert!(held.must_reload() && held.is_held());
}

/// Returns the creation of a volume of this number, with a client token.
fn change_with_token(number: u64) -> Change {
    let volume_id = VolumeId::from_bits(number.into());
    let token = Token { fingerprint: String::new(), volume: volume_id, used: UnixMs(5) };
    vec![volume(number), Event::Token(format!("token-{number}"), token)].into()
}

#[test]
fn a_lease_of_tokens_that_is_gone_is_taken_again_and_history_is_given_up_twice() {
    let folder = tempfile::tempdir().unwrap();
    let Some(etcd) = etcd(folder.path(), Setup::default()) else { return };
    let client = client(etcd.endpoints());
    let (mut journal, held) = lead(&client, "n1");
    let revision = journal.load().unwrap().revision;
    let revision = journal.commit(&change_with_token(1), revision).unwrap();
    let leases = etcd.client(&["lease", "list"]).unwrap();
    let own = format!("{:0>16}", held.lease());
    let of_tokens = |lease: &&str| lease.len() == 16 && **lease != own;
    let gone: Vec<&str> = leases.split_whitespace().filter(of_tokens).collect();
    assert_eq!(gone.len(), 1, "{leases}");
    etcd.client(&["lease", "revoke", gone[0]]).unwrap();
    let revision = journal.commit(&change_with_token(2), revision).unwrap();
    let loaded = journal.load().unwrap();
    assert_eq!(loaded.model.tokens.keys().collect::<Vec<_>>(), ["token-2"]);
    // A second compaction is no failure, and an interrupted load begins again.
    upkeep::compact(&client, revision.0).unwrap();
    upkeep::compact(&client, revision.0).unwrap();
    assert_eq!(journal.load().unwrap().revision, revision);
    // etcd reports no remaining time for a lease that has ended, and the leadership is lost.
    etcd.client(&["lease", "revoke", &held.lease()]).unwrap();
    wait_for("the end of the leadership", || held.is_lost());
}

/// Writes until etcd refuses more.
fn fill(etcd: &Etcd) {
    let value = "x".repeat(100_000);
    for number in 0..1_000 {
        let key = format!("/other/{}", number % 2);
        if etcd.client(&["put", &key, &value]).is_err() {
            return;
        }
    }
    panic!("it takes everything");
}

#[test]
fn a_full_etcd_is_cleared_and_elects_a_leader_again() {
    let folder = tempfile::tempdir().unwrap();
    let arguments = ["--quota-backend-bytes", "4000000"].map(str::to_owned).into();
    let setup = Setup { arguments, members: 3, ..Setup::default() };
    let Some(etcd) = etcd(folder.path(), setup) else { return };
    let client = client(etcd.endpoints());
    let (mut journal, held) = lead(&client, "n1");
    let revision = journal.load().unwrap().revision;
    fill(&etcd);
    let refused = journal.commit(&change(1), revision).unwrap_err();
    assert!(matches!(refused, JournalError::NoRoom(_)), "{refused}");
    assert!(refused.to_string().contains("alarm disarm"), "{refused}");
    assert!(!held.must_reload(), "nothing was stored");
    held.resign().unwrap();
    let refused = election(&client, "n2").campaign().unwrap_err();
    assert!(refused.is_no_space(), "{refused}");

    let seen = upkeep::look(&client);
    let answers: Vec<_> = seen.iter().map(|member| member.answer.unwrap()).collect();
    assert_eq!(answers.len(), 3);
    assert!(answers.iter().all(|answer| answer.is_full && answer.has_leader), "{answers:?}");
    assert!(answers.iter().all(|answer| answer.bytes > 3_000_000), "{answers:?}");
    // The upkeep of the node with the first turn makes room.
    let upkeep = upkeep::Upkeep::start(client.clone(), 1, || true).unwrap();
    let is_cleared = || {
        let seen = upkeep.seen();
        let is_clear =
            |member: &upkeep::MemberSeen| member.answer.is_some_and(|answer| !answer.is_full);
        seen.len() == 3 && seen.iter().all(is_clear)
    };
    wait_for("room", is_cleared);
    let (mut journal, _held) = lead(&client, "n2");
    let revision = journal.load().unwrap().revision;
    journal.commit(&change(1), revision).unwrap();
    assert!(upkeep.seen().iter().all(|member| member.answer.unwrap().bytes < 2_000_000));
}

/// Commits one volume after the other until it is asked to stop. Returns the numbers that were
/// stored, and those that were not.
fn commit_on(
    client: &Client,
    is_over: &AtomicBool,
    told: &std::sync::atomic::AtomicU64,
) -> (BTreeSet<u64>, BTreeSet<u64>) {
    let mut stored = BTreeSet::new();
    let mut not_stored = BTreeSet::new();
    let (mut journal, mut _held) = lead(client, "n1");
    let mut revision = journal.load().unwrap().revision;
    for number in 1.. {
        if is_over.load(Ordering::Relaxed) {
            break;
        }
        match journal.commit(&change(number), revision) {
            Ok(new) => {
                revision = new;
                stored.insert(number);
                told.store(number, Ordering::Relaxed);
                continue;
            }
            // Its outcome is unknown.
            Err(JournalError::Unknown(_)) => {}
            Err(error @ JournalError::OtherForm(_)) => panic!("{error}"),
            Err(_) => _ = not_stored.insert(number),
        }
        drop(_held);
        (journal, _held) = lead(client, "n1");
        revision = journal.load().unwrap().revision;
    }
    (stored, not_stored)
}

#[test]
fn acknowledged_commits_survive_kills_of_etcd() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut etcd) = etcd(folder.path(), Setup::default()) else { return };
    let client = client(etcd.endpoints());
    let is_over = AtomicBool::new(false);
    let count = std::sync::atomic::AtomicU64::new(0);
    let (stored, not_stored) = std::thread::scope(|scope| {
        let commits = scope.spawn(|| commit_on(&client, &is_over, &count));
        for _ in 0..6 {
            let before = count.load(Ordering::Relaxed);
            wait_for("commits", || count.load(Ordering::Relaxed) > before + 20);
            etcd.kill_member(0).unwrap();
            etcd.start_member(0).unwrap();
        }
        let before = count.load(Ordering::Relaxed);
        wait_for("commits", || count.load(Ordering::Relaxed) > before + 20);
        is_over.store(true, Ordering::Relaxed);
        commits.join().unwrap()
    });
    let there = numbers(&EtcdJournal::follow(client, keys()).load().unwrap());
    let lost: Vec<_> = stored.difference(&there).collect();
    assert!(lost.is_empty(), "acknowledged, and lost: {lost:?}");
    let risen: Vec<_> = not_stored.intersection(&there).collect();
    assert!(risen.is_empty(), "refused, and stored: {risen:?}");
    assert!(stored.len() > 120, "{}", stored.len());
}

#[test]
fn three_members_lose_one_and_then_a_majority() {
    let folder = tempfile::tempdir().unwrap();
    let setup = Setup { members: 3, ..Setup::default() };
    let Some(mut etcd) = etcd(folder.path(), setup) else { return };
    let client = client(etcd.endpoints());
    let (mut journal, held) = lead(&client, "n1");
    let mut revision = journal.load().unwrap().revision;
    revision = journal.commit(&change(1), revision).unwrap();
    // The client is connected to the first one.
    etcd.kill_member(0).unwrap();
    for number in 2..20 {
        revision = journal.commit(&change(number), revision).unwrap();
    }
    // etcd may elect its own leader first, which extends leases.
    wait_for("a renewal", || held.is_held());
    // A member that hangs is as good as a dead one, so a majority is missing now.
    etcd.pause_member(1).unwrap();
    let error = journal.commit(&change(20), revision).unwrap_err();
    let text = error.to_string();
    for part in [etcd.endpoints()[0].as_str(), "etcdctl endpoint status"] {
        assert!(text.contains(part), "{text}");
    }
    assert!(matches!(error, JournalError::Unknown(_)), "{text}");
    assert!(held.must_reload(), "{text}");
    etcd.resume_member(1).unwrap();
    etcd.wait().unwrap();
    // The next commit shows the outcome of the last one.
    let mut follower = EtcdJournal::follow(client.clone(), keys());
    let next = journal.commit(&change(21), revision);
    let there = numbers(&follower.load().unwrap());
    match next {
        Ok(_) => assert!(!there.contains(&20) && there.contains(&21), "{there:?}"),
        Err(JournalError::Conflict { .. }) => {
            assert!(there.contains(&20) && !there.contains(&21), "{there:?}");
        }
        // The lease has ended meanwhile.
        Err(JournalError::Deposed(_)) => assert!(!there.contains(&21), "{there:?}"),
        Err(error) => panic!("{error}"),
    }
    assert!((1..20).all(|number| there.contains(&number)), "{there:?}");
}

#[test]
fn compacted_history_is_reported_to_watchers() {
    let folder = tempfile::tempdir().unwrap();
    let Some(etcd) = etcd(folder.path(), Setup::default()) else { return };
    let client = client(etcd.endpoints());
    let (mut journal, held) = lead(&client, "n1");
    let start = journal.load().unwrap().revision;
    let mut revision = start;
    for number in 1..10 {
        revision = journal.commit(&change(number), revision).unwrap();
    }
    upkeep::compact(&client, revision.0).unwrap();
    let mut follower = EtcdJournal::follow(client.clone(), keys());
    let watch = follower.watch(start).unwrap();
    assert_eq!(watch.next(Duration::from_secs(20)), Err(JournalError::Behind));
    let loaded = follower.load().unwrap();
    assert_eq!((loaded.revision, numbers(&loaded)), (revision, (1..10).collect()));
    let watch = follower.watch(revision).unwrap();
    let gone = Change::from(vec![Event::VolumeGone(VolumeId::from_bits(1))]);
    revision = journal.commit(&gone, revision).unwrap();
    assert_eq!(next(&watch), (revision, gone));
    // A value that another program has written to a key is detected, and not overwritten.
    let key = format!("/evenkeel/test/v/{}", VolumeId::from_bits(2));
    etcd.client(&["put", &key, "{}"]).unwrap();
    assert!(!held.must_reload());
    let refused = journal.commit(&change(2), revision).unwrap_err().to_string();
    assert!(refused.contains(&key) && refused.contains("another program"), "{refused}");
    assert!(held.must_reload(), "no commit of this term succeeds");
    let unreadable = follower.load().unwrap_err().to_string();
    assert!(unreadable.contains(&key) && unreadable.contains("backup"), "{unreadable}");
}

#[test]
fn oversized_transaction_is_refused_with_its_limit() {
    let folder = tempfile::tempdir().unwrap();
    let Some(etcd) = etcd(folder.path(), Setup::default()) else { return };
    let (mut journal, _held) = lead(&client(etcd.endpoints()), "n1");
    let revision = journal.load().unwrap().revision;
    let many: Vec<Event> = (0..200).map(volume).collect();
    let refused = journal.commit(&many.into(), revision).unwrap_err().to_string();
    assert!(refused.contains("202 operations") && refused.contains("128"), "{refused}");
    let Event::Volume(mut large) = volume(1) else { unreachable!() };
    large.tags = [("k".to_owned(), "x".repeat(2 << 20))].into();
    let large = Change::from(vec![Event::Volume(large)]);
    let refused = journal.commit(&large, revision).unwrap_err().to_string();
    assert!(refused.contains("may have 1572864"), "{refused}");
    // Balances have no such limit: those that do not fit are written before, in transactions of
    // their own.
    let mut all = change(1);
    let balances = evenkeel_core::qos::pacing::Balances { operations: Some(7), bytes: Some(8) };
    all.unleased.volumes =
        (0..60_000).map(|number| (VolumeId::from_bits(number), balances)).collect();
    let revision = journal.commit(&all, revision).unwrap();
    let loaded = journal.load().unwrap();
    assert_eq!((loaded.revision, loaded.credits), (revision, all.unleased.clone()));
    journal.commit(&change(2), revision).unwrap();
}

#[test]
fn a_user_and_its_password_are_asked_for() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut etcd) = etcd(folder.path(), Setup::default()) else { return };
    for words in [
        &["user", "add", "root:secret"][..],
        &["user", "grant-role", "root", "root"],
        &["role", "add", "evenkeel"],
        &["role", "grant-permission", "--prefix", "evenkeel", "readwrite", "/evenkeel/test/"],
        &["user", "add", "keeper:pass"],
        &["user", "grant-role", "keeper", "evenkeel"],
        &["auth", "enable"],
    ] {
        etcd.client(words).unwrap();
    }
    let as_user = |user: Option<(&str, &str)>| {
        let user = user.map(|(name, password)| (name.to_owned(), password.to_owned()));
        let options = Options { endpoints: etcd.endpoints(), user, tls: None };
        Client::new(&options).unwrap()
    };
    for (user, part) in
        [(None, "name a user"), (Some(("keeper", "wrong")), "check the user and its password")]
    {
        let error = election(&as_user(user), "n1").leader().unwrap_err().to_string();
        assert!(error.contains(part) && error.contains(&etcd.endpoints()[0]), "{error}");
    }
    let keeper = as_user(Some(("keeper", "pass")));
    found(&keeper);
    let (mut journal, _held) = lead(&keeper, "n1");
    let revision = journal.load().unwrap().revision;
    let revision = journal.commit(&change(1), revision).unwrap();
    let other = Keys::of("other").unwrap();
    let error = EtcdJournal::follow(keeper.clone(), other).load().unwrap_err().to_string();
    assert!(error.contains("permission denied") && error.contains("on this prefix"), "{error}");
    // A member that starts again has no tokens of earlier sessions.
    etcd.kill_member(0).unwrap();
    etcd.start_member(0).unwrap();
    let revision = journal.commit(&change(2), revision).unwrap();
    assert_eq!(journal.load().unwrap().revision, revision);
}

/// Returns a certificate for loopback, with its authority; `None` without openssl.
fn certificates(folder: &Path) -> Option<Tls> {
    let path = |name: &str| -> PathBuf { folder.join(name) };
    let request = |words: &[&str]| {
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256"]);
        command.args(["-nodes", "-days", "2"]).args(words).current_dir(folder);
        command.stdout(Stdio::null()).stderr(Stdio::null()).status()
    };
    let own = "basicConstraints=critical,CA:FALSE";
    let names = "subjectAltName=IP:127.0.0.1";
    match request(&["-subj", "/CN=ca", "-keyout", "ca.key", "-out", "ca.pem"]) {
        Ok(status) => assert!(status.success(), "{status}"),
        Err(_) => {
            skipped("openssl");
            return None;
        }
    }
    let signed = request(&[
        "-subj", "/CN=node", "-addext", names, "-addext", own, "-CA", "ca.pem", "-CAkey", "ca.key",
        "-keyout", "node.key", "-out", "node.pem",
    ]);
    assert!(signed.unwrap().success());
    Some(Tls { authority: path("ca.pem"), certificate: path("node.pem"), key: path("node.key") })
}

#[test]
fn both_sides_show_certificates() {
    let folder = tempfile::tempdir().unwrap();
    let Some(tls) = certificates(folder.path()) else { return };
    let setup = Setup { tls: Some(tls.clone()), ..Setup::default() };
    let Some(etcd) = etcd(folder.path(), setup) else { return };
    let with = |own: Option<(PathBuf, PathBuf)>| {
        let tls = Some(TlsFiles { authorities: tls.authority.clone(), own });
        Client::new(&Options { endpoints: etcd.endpoints(), user: None, tls }).unwrap()
    };
    let shown = with(Some((tls.certificate.clone(), tls.key.clone())));
    found(&shown);
    let (mut journal, _held) = lead(&shown, "n1");
    let revision = journal.load().unwrap().revision;
    let revision = journal.commit(&change(1), revision).unwrap();
    assert_eq!(journal.load().unwrap().revision, revision);
    let error = election(&with(None), "n2").leader().unwrap_err().to_string();
    assert!(error.contains("etcd has not answered"), "{error}");
}

/// Prints the commits per second, and the cost of loading 100,000 volumes.
#[test]
#[ignore = "full: crates/lab/tests/etcd.rs::a_leader_whose_lease_is_gone_commits_nothing stays"]
fn figures_of_the_journal_on_etcd() {
    const VOLUMES: u64 = 100_000;
    for members in [1, 3] {
        let folder = tempfile::tempdir().unwrap();
        let setup = Setup { members, ..Setup::default() };
        let Some(etcd) = etcd(folder.path(), setup) else { return };
        let (mut journal, _held) = lead(&client(etcd.endpoints()), "n1");
        let mut revision = journal.load().unwrap().revision;
        let begun = clock::now();
        for number in 0..1_000 {
            revision = journal.commit(&change(number), revision).unwrap();
        }
        let commits = 1_000.0 / (clock::now() - begun).as_secs_f64();
        println!("{members} members: {commits:.0} commits a second of one volume each");
        let begun = clock::now();
        let all: Vec<u64> = (1_000..VOLUMES).collect();
        for some in all.chunks(120) {
            let events: Vec<Event> = some.iter().map(|number| volume(*number)).collect();
            revision = journal.commit(&events.into(), revision).unwrap();
        }
        let written_s = (clock::now() - begun).as_secs_f64();
        let begun = clock::now();
        let loaded = journal.load().unwrap();
        let load_s = (clock::now() - begun).as_secs_f64();
        assert_eq!(loaded.model.volumes.len() as u64, VOLUMES);
        let status = etcd.client(&["endpoint", "status", "-w", "json"]).unwrap();
        let status: serde_json::Value = serde_json::from_str(status.trim()).unwrap();
        let bytes = &status[0]["Status"]["dbSize"];
        println!(
            "{VOLUMES} volumes written in {written_s:.1} s, loaded in {load_s:.1} s; {bytes} bytes"
        );
    }
}
