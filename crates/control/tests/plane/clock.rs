//! A wall clock that is set, ahead or back, while the server runs and while it is down.
//!
//! No deadline passes early, and none lasts longer than necessary.

use std::path::Path;
use std::sync::Arc;

use crate::support::{FakeAgent, creation, planned};
use evenkeel_control::journal::sqlite::SqliteJournal;
use evenkeel_control::journal::{Change, Journal};
use evenkeel_control::model::{Command, Lock, LockMode, ModificationPhase, Phase};
use evenkeel_control::plane::Plane;
use evenkeel_control::server_time::{Step, moved};
use evenkeel_control::time::Moment;
use evenkeel_control::{DATABASE_FILE_NAME, ModifyPolicy, Settings};
use evenkeel_core::ids::{SnapshotId, VolumeId};
use evenkeel_core::time::UnixMs;
use evenkeel_core::volume::{VolumeChange, VolumeType};

const DAY_MS: u64 = 86_400_000;
const MONTH_MS: u64 = 30 * DAY_MS;
/// Days of the recycle bin, of the lock and of the restore.
const DAYS: u32 = 7;

/// A deleted volume, a modified one, and a snapshot that is locked, archived and restored.
struct Fixture {
    folder: tempfile::TempDir,
    agent: Arc<FakeAgent>,
}

const DELETED: u128 = 1;
const MODIFIED: u128 = 2;

fn locked() -> SnapshotId {
    SnapshotId::from_bits(3)
}

fn started(folder: &Path, agent: &Arc<FakeAgent>) -> Plane {
    let journal = SqliteJournal::open(&folder.join(DATABASE_FILE_NAME)).unwrap();
    let modify_policy = ModifyPolicy::AwsClassic;
    let settings = Settings { recycle_bin_days: DAYS, modify_policy, ..Settings::default() };
    let its = Arc::clone(agent) as _;
    Plane::start(Box::new(journal), settings, its, || {}).unwrap()
}

impl Fixture {
    fn new() -> (Self, Plane) {
        let it = Self { folder: tempfile::tempdir().unwrap(), agent: Arc::default() };
        let plane = it.start();
        for bits in [DELETED, MODIFIED] {
            planned(&plane, bits, VolumeType::Gp3, 100);
        }
        let [deleted, modified] = [DELETED, MODIFIED].map(VolumeId::from_bits);
        let description = String::new();
        let tags = Default::default();
        let make = Command::CreateSnapshot { id: locked(), volume: modified, description, tags };
        plane.execute(&make, false).unwrap();
        plane.tick();
        let lock = Lock {
            mode: LockMode::Compliance,
            created: plane.now(),
            cool_off_hours: 0,
            days: DAYS,
            until: None,
        };
        plane.execute(&Command::LockSnapshot { id: locked(), lock }, false).unwrap();
        plane.execute(&Command::ArchiveSnapshot { id: locked() }, false).unwrap();
        let restore = Command::RestoreTier { id: locked(), days: Some(DAYS) };
        plane.execute(&restore, false).unwrap();
        let change = VolumeChange { size_gib: Some(200), ..VolumeChange::default() };
        plane.execute(&Command::ModifyVolume { id: modified, change }, false).unwrap();
        plane.execute(&Command::DeleteVolume { id: deleted }, false).unwrap();
        (it, plane)
    }

    fn start(&self) -> Plane {
        started(self.folder.path(), &self.agent)
    }

    /// Stores another time of the server, as if the clocks had changed while it was down.
    fn store_time(&self, change: impl FnOnce(&mut Moment)) {
        let path = self.folder.path().join(DATABASE_FILE_NAME);
        let mut journal = SqliteJournal::open(&path).unwrap();
        let loaded = journal.load().unwrap();
        let mut moment = loaded.clock.unwrap();
        change(&mut moment);
        let change = Change { clock: Some(moment), ..Change::default() };
        journal.commit(&change, loaded.revision).unwrap();
    }
}

/// Returns the milliseconds left in the bin, of the lock, of the state `optimizing`, and of the
/// restore from the archive.
fn left_ms(plane: &Plane) -> [u64; 4] {
    let model = plane.model();
    let now = plane.now();
    let Phase::Binned { until, .. } = model.volumes[&VolumeId::from_bits(DELETED)].phase else {
        panic!("not in the bin: {:?}", model.volumes);
    };
    let snapshot = &model.snapshots[&locked()];
    assert_eq!(snapshot.locked(now), Some("compliance"));
    let (_, view) = snapshot.lock_view(now).unwrap();
    let modification = model.volumes[&VolumeId::from_bits(MODIFIED)].modification.clone().unwrap();
    let (state, percent, _) = modification.progress(now);
    assert_eq!((state, percent), ("optimizing", 0));
    let ModificationPhase::Optimizing { until: done, .. } = modification.phase else {
        panic!("{modification:?}");
    };
    let restored = snapshot.restored_until(now).unwrap();
    [until, view.expires.unwrap(), done, restored].map(|end| end.ms_since(now))
}

/// Checks that no more of any duration has passed than a slow test takes.
#[track_caller]
fn check_left(plane: &Plane, before: [u64; 4]) {
    for (now, before) in left_ms(plane).into_iter().zip(before) {
        let spent = i64::try_from(before).unwrap() - i64::try_from(now).unwrap();
        assert!((-1_000..=600_000).contains(&spent), "{before} became {now}");
    }
}

#[test]
fn a_clock_that_is_set_ahead_or_back_ends_nothing_and_delays_nothing() {
    let (_fixture, plane) = Fixture::new();
    let before = left_ms(&plane);
    // The test takes only a moment, so this is the time of the wall clock during all of it.
    let wall = plane.now();
    assert_eq!(plane.clock_step(), None);
    let mut ahead_ms = 0;
    for step_ms in [MONTH_MS as i64, -(MONTH_MS as i64), -400 * DAY_MS as i64] {
        plane.follow_clock_at(UnixMs(plane.now().0.saturating_add_signed(step_ms)));
        // No tick: it would read the real clock.
        check_left(&plane, before);
        let seen = plane.clock_step().unwrap().0;
        assert!((seen - step_ms).abs() < 1_000, "{seen} instead of {step_ms}");
        // The server's time is the wall clock's again, so new times are right.
        ahead_ms += step_ms;
        let off_ms = plane.now().0.abs_diff(wall.0.saturating_add_signed(ahead_ms));
        assert!(off_ms < 600_000, "{off_ms}");
    }
}

#[test]
fn a_start_with_a_wrong_clock_ends_nothing() {
    let (fixture, mut plane) = Fixture::new();
    let before = left_ms(&plane);
    // The test takes only a moment, so this is the time of the wall clock during all of it.
    let wall = plane.now();
    // The clock was as much behind, or ahead, when the server's time was stored. The wall clock of
    // this test cannot be set.
    for wrong_ms in [-(MONTH_MS as i64), MONTH_MS as i64] {
        for boot in [None, Some(("another boot".to_owned(), 5))] {
            // The deadlines are set by the wrong clock.
            plane.follow_clock_at(UnixMs(wall.0.saturating_add_signed(wrong_ms)));
            drop(plane);
            if boot.is_some() {
                fixture.store_time(|moment| moment.boot = boot);
            }
            plane = fixture.start();
            plane.tick();
            check_left(&plane, before);
            let before = plane.time_before().unwrap().0;
            assert!(before.abs_diff(wall.0.saturating_add_signed(wrong_ms)) < 600_000);
            assert!(plane.clock_step().is_some());
            assert!(plane.now().0.abs_diff(wall.0) < 600_000);
        }
    }
    // From then on the time is right, and the next start sees no step.
    drop(plane);
    let plane = fixture.start();
    assert_eq!(plane.clock_step(), None);
    check_left(&plane, before);
}

/// A server ends without a stop: the next one refuses changes that were signed until then.
#[test]
fn the_servers_time_is_stored_with_each_change() {
    let (fixture, plane) = Fixture::new();
    let path = fixture.folder.path().join(DATABASE_FILE_NAME);
    for bits in 21..24 {
        let before = plane.now();
        // Waits, so that a time stored earlier would differ.
        while plane.now() == before {}
        let begin = plane.now();
        planned(&plane, bits, VolumeType::Gp3, 10);
        let end = plane.now();
        let stored = SqliteJournal::open(&path).unwrap().load().unwrap().clock.unwrap().unix;
        assert!((begin..=end).contains(&stored), "{begin:?} {stored:?} {end:?}");
    }
}

/// Creates a volume with a client token. Returns the number of volumes.
fn created_with_token(plane: &Plane, bits: u128) -> usize {
    let token = Some(("once".to_owned(), "f".to_owned()));
    let create = creation(VolumeId::from_bits(bits), VolumeType::Gp3, 10, token);
    plane.execute(&create, false).unwrap();
    plane.model().volumes.len()
}

#[test]
fn client_token_creates_one_volume_when_the_clock_jumps() {
    let (fixture, mut plane) = Fixture::new();
    let first = created_with_token(&plane, 11);
    let mut next = 12;
    for step_ms in [MONTH_MS as i64, -(MONTH_MS as i64), 400 * DAY_MS as i64] {
        plane.follow_clock_at(UnixMs(plane.now().0.saturating_add_signed(step_ms)));
        assert_eq!(created_with_token(&plane, next), first, "{step_ms}");
        next += 1;
    }
    // The start moves it to the right clock, using the stored time.
    drop(plane);
    plane = fixture.start();
    assert!(plane.clock_step().is_some());
    assert_eq!(created_with_token(&plane, next), first);
    // A day later its time has ended.
    let later = plane.now().plus_ms(DAY_MS + 60_000);
    let model = plane.model();
    assert!(model.known_token("once", plane.now()).is_some());
    assert_eq!(model.known_token("once", later), None);
}

#[test]
fn finished_changes_stay_finished_when_the_clock_is_set_back() {
    let (_fixture, plane) = Fixture::new();
    let id = VolumeId::from_bits(MODIFIED);
    // As if the modification had been made long ago.
    let change = VolumeChange { size_gib: Some(300), ..VolumeChange::default() };
    let again = Command::ModifyVolume { id, change };
    assert!(plane.execute(&again, false).is_err());
    let end = plane.now().plus_ms(2 * DAY_MS);
    let state = |now| plane.model().volumes[&id].modification.clone().unwrap().progress(now).0;
    assert_eq!(state(end), "completed");
    let moved = moved(&plane.model(), Step(-(400 * DAY_MS as i64)), end);
    let mut model = plane.model().clone();
    for (_, event) in moved {
        model.apply(event);
    }
    let now = UnixMs(end.0 - 400 * DAY_MS);
    let volume = &model.volumes[&id];
    assert_eq!(volume.modification.as_ref().unwrap().progress(now).0, "completed");
    let decided = model.decide(&plane.settings, &Default::default(), &again, now);
    assert!(decided.is_ok(), "{decided:?}");
}
