//! The clock of a test server: what moves with it, what does not, and the next start.

use std::path::Path;
use std::sync::Arc;

use crate::support::{
    Client, FakeAgent, Server, config_with, create, gp2, planned, test_config, text,
};
use evenkeel_control::journal::Journal;
use evenkeel_control::journal::sqlite::SqliteJournal;
use evenkeel_control::model::Command;
use evenkeel_control::plane::{ClockChange, ClockFailure, Plane, TestServer};
use evenkeel_control::server_clock::{AHEAD_DAYS_MAX, ClockRefusal, ServerClock};
use evenkeel_control::server_time::STEP_MS;
use evenkeel_control::{ControlError, DATABASE_FILE_NAME, ModifyPolicy, Settings};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::Balances;
use evenkeel_core::time::UnixMs;
use evenkeel_core::volume::{VolumeChange, VolumeType};
use evenkeel_wire::aws::timestamp::parse_extended;

const HOUR_MS: u64 = 3_600_000;
const DAY_MS: u64 = 24 * HOUR_MS;
const BIN_DAYS: u32 = 7;

fn settings() -> Settings {
    let modify_policy = ModifyPolicy::AwsClassic;
    Settings { recycle_bin_days: BIN_DAYS, modify_policy, ..Settings::default() }
}

fn start(folder: &Path, agent: &Arc<FakeAgent>) -> Plane {
    let journal = SqliteJournal::open(&folder.join(DATABASE_FILE_NAME)).unwrap();
    let clock = Arc::new(ServerClock::of_test(folder).unwrap());
    let test = TestServer { clock, ..TestServer::default() };
    let its = Arc::clone(agent) as _;
    Plane::start_test(Box::new(journal), settings(), its, test, || {}).unwrap()
}

fn stored_time(folder: &Path) -> UnixMs {
    let mut journal = SqliteJournal::open(&folder.join(DATABASE_FILE_NAME)).unwrap();
    journal.load().unwrap().clock.unwrap().unix
}

fn advance(plane: &Plane, ms: u64) {
    plane.change_clock(ClockChange::Advance(ms)).unwrap();
}

#[test]
fn cool_downs_and_the_recycle_bin_move_with_the_clock_and_deadlines_do_not() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Arc::default();
    let plane = start(folder.path(), &agent);
    let modified = planned(&plane, 1, VolumeType::Gp3, 100);
    let deleted = planned(&plane, 2, VolumeType::Gp3, 10);
    let change = |size| VolumeChange { size_gib: Some(size), ..VolumeChange::default() };
    let modify = |size| Command::ModifyVolume { id: modified, change: change(size) };
    plane.execute(&modify(200), false).unwrap();
    plane.execute(&Command::DeleteVolume { id: deleted }, false).unwrap();
    advance(&plane, 3 * HOUR_MS);
    assert!(plane.execute(&modify(300), false).is_err());
    let progress = |plane: &Plane| {
        let model = plane.model();
        model.volumes[&modified].modification.clone().unwrap().progress(plane.now()).0
    };
    assert_eq!(progress(&plane), "completed");
    advance(&plane, 3 * HOUR_MS);
    plane.execute(&modify(300), false).unwrap();
    assert_eq!(progress(&plane), "optimizing");
    advance(&plane, u64::from(BIN_DAYS) * DAY_MS - 12 * HOUR_MS);
    assert!(plane.model().volumes.contains_key(&deleted));
    // No tick: its end is a part of the move.
    advance(&plane, 6 * HOUR_MS + 1);
    assert!(!plane.model().volumes.contains_key(&deleted));
    assert_eq!(plane.clock_step(), None, "the move is no step of the wall clock");
}

#[test]
fn an_idle_volume_has_the_credits_of_the_time_that_was_passed_over() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Arc::<FakeAgent>::default();
    let plane = start(folder.path(), &agent);
    // 200 GiB earn 600 credits a second.
    let id = gp2(&plane);
    let empty = Balances { operations: Some(0), bytes: None };
    plane.set_balances(id, empty).unwrap();
    advance(&plane, 1_000);
    let balance = || plane.report().unwrap().volumes[0].balances.operations;
    assert_eq!(balance(), Some(600));
    advance(&plane, 6 * HOUR_MS);
    assert_eq!(balance(), Some(5_400_000));
    // A server that is killed now has no more than there was.
    drop(plane);
    let plane = start(folder.path(), &agent);
    let after = plane.report().unwrap().volumes[0].balances.operations.unwrap();
    assert!((1..=5_400_000).contains(&after), "{after}");
}

#[test]
fn the_journal_never_sees_an_earlier_time_and_the_next_start_continues() {
    let folder = tempfile::tempdir().unwrap();
    let agent = Arc::default();
    let mut last = UnixMs(0);
    let mut next = 1;
    for is_frozen in [false, true, false] {
        let plane = start(folder.path(), &agent);
        assert!(plane.now() >= last, "{:?} after {last:?}", plane.now());
        assert_eq!(plane.clock_step(), None);
        advance(&plane, 30 * DAY_MS);
        let change = if is_frozen { ClockChange::Freeze } else { ClockChange::Run };
        plane.change_clock(change).unwrap();
        planned(&plane, next, VolumeType::Gp3, 1);
        next += 1;
        let stored = stored_time(folder.path());
        assert!(stored >= last && stored <= plane.now());
        last = stored;
        if is_frozen {
            let now = plane.now();
            planned(&plane, next, VolumeType::Gp3, 1);
            next += 1;
            assert_eq!((plane.now(), stored_time(folder.path())), (now, now));
        }
        // As if it was killed.
        drop(plane);
    }
    let ahead = last.ms_since(evenkeel_os::clock::unix_ms());
    assert!(ahead > 89 * DAY_MS && ahead < 91 * DAY_MS, "{ahead}");
}

#[test]
fn a_server_without_the_switch_refuses_the_folder_of_a_test_server() {
    let folder = tempfile::tempdir().unwrap();
    drop(start(folder.path(), &Arc::default()));
    let started = || Server::start_with(config_with(folder.path(), settings()), Arc::default());
    // Its clock was never changed.
    drop(started().unwrap());
    let plane = start(folder.path(), &Arc::default());
    advance(&plane, 1);
    drop(plane);
    let refused = started().err();
    assert!(matches!(refused, Some(ControlError::Clock(_))), "{refused:?}");
}

#[test]
fn clocks_are_not_set_back_and_not_without_bounds() {
    let folder = tempfile::tempdir().unwrap();
    let plane = start(folder.path(), &Arc::default());
    let refusal = |change| match plane.change_clock(change) {
        Err(ClockFailure::Refused(refusal)) => refusal,
        other => panic!("{other:?}"),
    };
    let now = plane.now();
    let back = refusal(ClockChange::Set(UnixMs(now.0 - 1)));
    assert!(matches!(back, ClockRefusal::Backwards { .. }), "{back:?}");
    plane.change_clock(ClockChange::Set(now.plus_ms(DAY_MS))).unwrap();
    assert!(plane.now() >= now.plus_ms(DAY_MS));
    let far = refusal(ClockChange::Advance((AHEAD_DAYS_MAX + 1) * DAY_MS));
    assert!(matches!(far, ClockRefusal::TooFarAtOnce(_)), "{far:?}");
    let usual = Plane::start(
        Box::new(SqliteJournal::open(&folder.path().join("other.db")).unwrap()),
        settings(),
        Arc::<FakeAgent>::default(),
        || {},
    );
    let refused = usual.unwrap().change_clock(ClockChange::Advance(1));
    assert!(matches!(refused, Err(ClockFailure::Refused(ClockRefusal::NotATest))));
}

fn served(folder: &Path) -> (Server, Client) {
    let config = test_config(folder, settings());
    let server = Server::start_with(config, Arc::default()).unwrap();
    let client = server.client();
    (server, client)
}

/// The client signs with real time, whatever the server's clock shows; and times of replies and
/// events are the server's.
#[test]
fn requests_are_signed_with_real_time_and_replies_have_the_servers() {
    let folder = tempfile::tempdir().unwrap();
    let (server, client) = served(folder.path());
    let day = |time: &str| time[..10].to_owned();
    let clock = || {
        let answer = client.call("DescribeTestClock", &[]).unwrap();
        let clock = answer.child("testClock").unwrap();
        ["time", "realTime", "state"].map(|name| text(clock, name).to_owned())
    };
    let [time, real, state] = clock();
    assert_eq!((day(&time), state.as_str()), (day(&real), "running"));
    let days = [("AdvanceSeconds", "2592000"), ("State", "frozen")];
    client.call("ModifyTestClock", &days).unwrap();
    let [time, real, state] = clock();
    assert_ne!(day(&time), day(&real));
    assert_eq!(state, "frozen");
    let id = create(&client, &[]);
    let volume = client.call("DescribeVolumes", &[("VolumeId.1", &id)]).unwrap();
    let created = text(&volume.items("volumeSet")[0], "createTime");
    let ms = |time: &str| parse_extended(time).unwrap();
    // Durations count by another clock of the machine; the two differ by less than a step.
    assert!(ms(created).abs_diff(ms(&time)) < STEP_MS, "{created} at {time}");
    let id: VolumeId = id.parse().unwrap();
    drop(server);
    let (_server, client) = served(folder.path());
    let volumes = client.call("DescribeVolumes", &[]).unwrap();
    assert_eq!(text(&volumes.items("volumeSet")[0], "volumeId"), id.to_string());
    let answer = client.call("DescribeTestClock", &[]).unwrap();
    assert_eq!(text(answer.child("testClock").unwrap(), "time"), time);
}
