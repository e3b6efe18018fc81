//! Volumes after the data plane fails or does not answer: no state is permanent, and no reply is
//! wrong.

use std::path::Path;
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use crate::support::{FakeAgent, creation, gp2, plane, usual};
use evenkeel_control::Settings;
use evenkeel_control::journal::memory::MemoryJournal;
use evenkeel_control::model::{Command as Change, Phase, Refusal, Tags};
use evenkeel_control::plane::{Plane, PlaneError};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::units::{ByteCount, GIB};
use evenkeel_core::volume::VolumeType;
use evenkeel_wire::agent::{Agent, Command, Failed, FailedKind, Reply, Space, VolumeState};

/// More ticks than pass between two retries of volumes in error.
const TICKS: u32 = 10;

struct World {
    folder: tempfile::TempDir,
    agent: Arc<FakeAgent>,
    plane: Plane,
    id: VolumeId,
}

impl World {
    /// Creates a control plane with a gp2 volume.
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let agent = Arc::new(FakeAgent::default());
        let plane = plane(folder.path(), &agent);
        let id = gp2(&plane);
        Self { folder, agent, plane, id }
    }

    fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Restarts the control plane after a crash, on an empty data plane that `agent` prepares.
    fn restarted(self, agent: impl FnOnce(&FakeAgent)) -> Self {
        let Self { folder, plane: before, id, .. } = self;
        drop(before);
        let new = Arc::new(FakeAgent::default());
        agent(&new);
        let plane = plane(folder.path(), &new);
        Self { folder, agent: new, plane, id }
    }

    fn attach(&self) -> Result<(), PlaneError> {
        let instance = *self.plane.model().hosts.keys().next().unwrap();
        let device = "/dev/sdf".into();
        let attach = Change::AttachVolume { id: self.id, instance, device };
        self.plane.execute(&attach, false).map(drop)
    }

    fn phase(&self) -> Phase {
        self.plane.model().volumes[&self.id].phase.clone()
    }

    fn attachments(&self) -> usize {
        self.plane.model().volumes[&self.id].attachments.len()
    }

    fn is_held(&self) -> bool {
        self.agent.with(|state| state.volumes.contains_key(&self.id))
    }

    fn set_damaged(&self, is: bool) {
        self.agent.with(|state| {
            state.damaged.clear();
            if is {
                state.volumes.remove(&self.id);
                state.damaged.insert(self.id);
            }
        });
    }

    fn ticks(&self) {
        (0..TICKS).for_each(|_| self.plane.tick());
    }
}

/// Such a volume is settled in the model: only the missing answer shows that it is not served.
#[test]
fn a_volume_of_which_nothing_was_heard_at_the_start_is_brought_up_by_the_tick() {
    let world = World::new();
    world.attach().unwrap();
    let world = world.restarted(|agent| agent.with(|state| state.silent = true));
    world.plane.tick();
    assert!(!world.is_held());
    world.agent.with(|state| state.silent = false);
    world.plane.tick();
    assert!(world.is_held());
    let log = world.agent.with(|state| state.log.len());
    world.plane.tick();
    assert_eq!(world.agent.with(|state| state.log.len()), log, "it is called once");
}

#[test]
fn a_deletion_that_fails_leaves_the_volume_as_it_is() {
    let world = World::new();
    let delete = || world.plane.execute(&Change::DeleteVolume { id: world.id }, false);
    let fails = || {
        world.agent.with(|state| state.fail_next = Some(FailedKind::Internal));
        delete().unwrap_err();
    };
    fails();
    assert_eq!(world.phase(), Phase::Ready, "it is served");
    assert!(world.is_held());
    // Its bytes are missing: it is not available, whatever the outcome of its deletion.
    world.set_damaged(true);
    fails();
    assert!(matches!(world.phase(), Phase::Error(_)), "{:?}", world.phase());
    world.ticks();
    fails();
    assert!(matches!(world.phase(), Phase::Error(_)), "{:?}", world.phase());
    world.set_damaged(false);
    world.ticks();
    assert_eq!(world.phase(), Phase::Ready);
    assert!(world.is_held());
    delete().unwrap();
    assert!(world.plane.model().volumes.is_empty());
}

#[test]
fn attaching_a_volume_whose_bytes_are_gone_says_so_and_it_comes_back_detached() {
    let world = World::new();
    world.set_damaged(true);
    let failed = world.attach().unwrap_err();
    assert!(
        matches!(&failed, PlaneError::Agent(failed) if failed.kind == FailedKind::Damaged),
        "{failed}"
    );
    assert!(matches!(world.phase(), Phase::Error(_)), "{:?}", world.phase());
    assert_eq!(world.attachments(), 0);
    world.set_damaged(false);
    world.ticks();
    assert_eq!((world.phase(), world.attachments()), (Phase::Ready, 0));
    world.attach().unwrap();
}

/// The volume is not served, so no host can reach it, whatever else fails.
#[test]
fn a_detachment_of_a_volume_in_error_is_done_however_it_fails() {
    let world = World::new();
    world.attach().unwrap();
    let id = world.id;
    let world = world.restarted(|agent| agent.with(|state| _ = state.damaged.insert(id)));
    assert!(matches!(world.phase(), Phase::Error(_)), "{:?}", world.phase());
    world.agent.with(|state| state.fail_next = Some(FailedKind::Internal));
    let detach = Change::DetachVolume { id: world.id, instance: None, device: None };
    world.plane.execute(&detach, false).unwrap();
    assert_eq!(world.attachments(), 0);
}

/// The cause may pass, as with too many open files: no change in progress is rolled back because of
/// it.
#[test]
fn a_growth_outlives_a_start_at_which_its_volume_could_not_be_opened() {
    let world = World::new();
    world.agent.with(|state| state.silent = true);
    let change = evenkeel_core::volume::VolumeChange { size_gib: Some(300), ..Default::default() };
    world.plane.execute(&Change::ModifyVolume { id: world.id, change }, false).unwrap_err();
    let world =
        world.restarted(|agent| agent.with(|state| state.fail_next = Some(FailedKind::Internal)));
    assert!(matches!(world.phase(), Phase::Error(_)), "{:?}", world.phase());
    world.ticks();
    assert_eq!(world.phase(), Phase::Ready);
    let held = world.agent.with(|state| state.volumes[&world.id].size);
    assert_eq!(held, ByteCount::from_gib(300));
}

/// One volume without bytes does not turn the stop of all others into a crash.
#[test]
fn a_stop_is_clean_although_the_bytes_of_a_volume_are_gone() {
    let world = World::new();
    world.attach().unwrap();
    world.set_damaged(true);
    world.plane.stop().unwrap();
    assert!(world.folder().exists());
}

#[test]
fn bytes_that_no_volume_has_take_space_until_they_are_adopted() {
    let world = World::new();
    let lost = VolumeId::from_bits(9);
    world.agent.with(|state| {
        let total = ByteCount(210 * GIB);
        state.space = Some(Space { total, free: ByteCount(10 * GIB) });
        state.unowned.insert(lost, ByteCount(6 * GIB));
    });
    let world = {
        let (space, unowned) =
            world.agent.with(|state| (state.space, std::mem::take(&mut state.unowned)));
        world.restarted(|agent| {
            agent.with(|state| (state.space, state.unowned) = (space, unowned));
        })
    };
    let create = |number, size_gib| {
        let create = creation(VolumeId::from_bits(number), VolumeType::Gp2, size_gib, None);
        world.plane.execute(&create, false).map(drop)
    };
    // 210 GiB, of which the volume has 200, and 6 belong to no volume.
    let refused = create(10, 5).unwrap_err();
    assert!(matches!(refused, PlaneError::Refused(Refusal::Space(_))), "{refused}");
    create(11, 4).unwrap();
    let request = usual(VolumeType::Gp2, 6);
    let zone = "local-1a".to_owned();
    let tags = Tags::new();
    let is_encrypted = false;
    let adopt = Change::AdoptVolume { id: lost, is_encrypted, request, zone, tags };
    world.plane.execute(&adopt, false).unwrap();
    assert_eq!(world.plane.model().bytes_sold(), ByteCount(210 * GIB));
}

/// Version 0.1.0 did not record that a volume is being adopted, and may have been killed then. Of
/// such a creation only a client token shows that the volume's bytes are new.
#[test]
fn bytes_that_may_be_adopted_stay_when_an_upgraded_server_cannot_open_them() {
    for (token, is_deleted) in [(None, false), (Some(("t".to_owned(), "f".to_owned())), true)] {
        let folder = tempfile::tempdir().unwrap();
        let id = VolumeId::from_bits(7);
        // The record of an adoption by that version is the same.
        let create = creation(id, VolumeType::Gp3, 1, token);
        let killed = Arc::new(FakeAgent::default());
        let before = plane(folder.path(), &killed);
        killed.with(|state| state.silent = true);
        before.execute(&create, false).unwrap_err();
        drop(before);

        let failed = |kind| Reply::Failed(Failed { kind, message: "the disk".to_owned() });
        let agent = FakeAgent::scripted(move |agent, command| match &command {
            Command::Create(_) => failed(FailedKind::Internal),
            _ => agent.execute(command),
        });
        agent.with(|state| state.unowned.insert(id, ByteCount(GIB)));
        let after = plane(folder.path(), &agent);
        after.tick();
        assert!(!after.model().volumes.contains_key(&id));
        let log = agent.with(|state| state.log.clone());
        assert_eq!(log.contains(&Command::Delete(id)), is_deleted, "{log:?}");
    }
}

/// The tick repeats the deletion only: the creation was answered with an error.
#[test]
fn a_volume_that_could_not_be_created_is_gone_once_its_bytes_can_be_deleted() {
    let folder = tempfile::tempdir().unwrap();
    let is_down = Arc::new(AtomicBool::new(true));
    let its = Arc::clone(&is_down);
    let failed = |kind| Reply::Failed(Failed { kind, message: "the disk".to_owned() });
    let agent = FakeAgent::scripted(move |agent, command| match &command {
        Command::Create(_) if its.load(Ordering::SeqCst) => failed(FailedKind::NoSpace),
        Command::Delete(_) if its.load(Ordering::SeqCst) => failed(FailedKind::Internal),
        _ => agent.execute(command),
    });
    let plane = plane(folder.path(), &agent);
    let id = VolumeId::from_bits(7);
    let create = creation(id, VolumeType::Gp3, 1, None);
    let refused = plane.execute(&create, false).unwrap_err();
    assert!(refused.to_string().contains("the disk"), "{refused}");
    plane.tick();
    assert_eq!(plane.model().volumes[&id].phase, Phase::Creating);
    is_down.store(false, Ordering::SeqCst);
    plane.tick();
    assert!(!plane.model().volumes.contains_key(&id));
    let log = agent.with(|state| state.log.clone());
    assert!(!log.iter().any(|command| matches!(command, Command::Create(_))), "{log:?}");
    assert!(log.contains(&Command::Delete(id)), "{log:?}");
}

#[test]
fn a_server_whose_journal_takes_no_changes_is_alive_and_not_ready() {
    let agent = Arc::new(FakeAgent::default());
    let journal = MemoryJournal::default();
    let kept = Box::new(journal.clone());
    let its = Arc::clone(&agent) as _;
    let plane = Plane::start(kept, Settings::default(), its, || {}).unwrap();
    let id = gp2(&plane);
    assert_eq!((plane.check_alive(), plane.check_ready()), (Ok(()), Ok(())));
    let before = plane.journal_now();
    let modify = |size_gib| {
        let change = evenkeel_core::volume::VolumeChange {
            size_gib: Some(size_gib),
            ..evenkeel_core::volume::VolumeChange::default()
        };
        plane.execute(&Change::ModifyVolume { id, change }, false)
    };
    journal.set_full(true);
    assert!(modify(300).is_err());
    let why = plane.check_ready().unwrap_err();
    assert_eq!(why, "the journal takes no changes: the journal in memory is full");
    assert_eq!(plane.check_alive(), Ok(()));
    let now = plane.journal_now();
    assert!(now.is_failing && now.failures == before.failures + 1, "{now:?}");
    journal.set_full(false);
    modify(300).unwrap();
    assert_eq!(plane.check_ready(), Ok(()));
    assert!(!plane.journal_now().is_failing);
}

/// A control plane that has lost its database has no volumes, but the data plane serves them.
#[test]
fn bytes_that_are_served_are_neither_deleted_nor_adopted_although_no_volume_has_them() {
    let world = World::new();
    let lost = VolumeId::from_bits(9);
    let state = world.agent.with(|state| {
        let served = VolumeState { id: lost, ..state.volumes[&world.id].clone() };
        state.volumes.insert(lost, served.clone());
        served
    });
    assert!(world.plane.unowned().unwrap().iter().any(|stored| stored.id == lost));
    for dry_run in [true, false] {
        let refused = world.plane.delete_unowned(lost, dry_run).unwrap_err();
        let PlaneError::Refused(refusal) = refused else { panic!("{refused}") };
        assert_eq!(refusal, Refusal::UnownedServed(lost));
    }
    assert!(world.agent.with(|state| state.volumes.contains_key(&lost)), "it is served");
    // Once they are closed, they may be deleted.
    world.agent.with(|agent| {
        agent.volumes.remove(&lost);
        agent.unowned.insert(lost, state.size);
    });
    world.plane.delete_unowned(lost, false).unwrap();
    let last = world.agent.with(|agent| agent.log.last().cloned());
    assert_eq!(last, Some(Command::Delete(lost)));
}

/// The tick finds a volume whose time in the bin has ended while a request deletes its bytes. It
/// neither waits for the request nor deletes them a second time.
#[test]
fn a_tick_leaves_a_volume_to_the_request_that_purges_it() {
    let (tells, deleting) = channel();
    let (lets, go_on) = channel();
    let go_on = Mutex::new(go_on);
    let agent = FakeAgent::scripted(move |agent, command| {
        if matches!(command, Command::Delete(_)) {
            let _ = tells.send(());
            let _ = go_on.lock().unwrap().recv();
        }
        agent.execute(command)
    });
    let settings = Settings { recycle_bin_days: 7, ..Settings::default() };
    let its = Arc::clone(&agent) as Arc<dyn Agent>;
    let plane = Plane::start(Box::<MemoryJournal>::default(), settings, its, || {}).unwrap();
    let id = gp2(&plane);
    plane.execute(&Change::DeleteVolume { id }, false).unwrap();
    std::thread::scope(|scope| {
        let purges = scope.spawn(|| plane.purge_volume(id, false));
        deleting.recv().unwrap();
        let (tells, ticked) = channel();
        let plane = &plane;
        scope.spawn(move || {
            plane.tick();
            tells.send(()).unwrap();
        });
        // Long only if the tick waits.
        let waited = ticked.recv_timeout(Duration::from_secs(20));
        lets.send(()).unwrap();
        drop(lets);
        assert_ne!(waited, Err(RecvTimeoutError::Timeout), "the tick waits for the request");
        purges.join().unwrap().unwrap();
    });
    assert!(!plane.model().volumes.contains_key(&id));
    let log = agent.with(|state| state.log.clone());
    let deletions = log.iter().filter(|command| **command == Command::Delete(id)).count();
    assert_eq!(deletions, 1, "{log:?}");
}
