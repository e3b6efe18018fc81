//! Snapshots of the model, step by step, with both kinds of journal.

use evenkeel_core::ids::SnapshotId;
use evenkeel_core::units::{ByteCount, GIB};
use evenkeel_wire::agent::{Space, StoredSnapshot};

use super::snapshots::SNAPSHOTS_MAX;
use super::*;
use crate::journal::memory::MemoryJournal;
use crate::journal::sqlite::SqliteJournal;
use crate::journal::{Change, Journal};

const VOLUME: VolumeId = VolumeId::from_bits(1);

fn snap(number: u32) -> SnapshotId {
    SnapshotId::from_bits(number.into())
}

struct World {
    settings: Settings,
    model: Model,
    journals: Vec<Box<dyn Journal>>,
    stored: BTreeMap<SnapshotId, StoredSnapshot>,
    now: UnixMs,
}

impl World {
    /// Creates a model with one volume of 10 GiB.
    fn new(volume_type: VolumeType) -> Self {
        let settings = Settings { zones: vec!["z".into()], ..Settings::default() };
        let journals: Vec<Box<dyn Journal>> =
            vec![Box::new(SqliteJournal::in_memory()), Box::new(MemoryJournal::default())];
        let model = Model::default();
        let stored = BTreeMap::new();
        let now = UnixMs(1);
        let mut world = Self { settings, model, journals, stored, now };
        world.run(&volume(VOLUME, volume_type, None, 200)).unwrap();
        world
    }

    fn run(&mut self, command: &Command) -> Result<Decision, Refusal> {
        self.now = self.now.plus_ms(1);
        let decision = self.model.decide(&self.settings, &Capacity::Unknown, command, self.now)?;
        self.commit(decision.events.clone());
        if let Some(id) = decision.volume() {
            self.commit(self.model.settle(&self.settings, id, Settled::Done, self.now));
        }
        Ok(decision)
    }

    fn create(&mut self, number: u32) -> Result<Decision, Refusal> {
        let description = format!("number {number}");
        let tags = Tags::new();
        self.run(&Command::CreateSnapshot { id: snap(number), volume: VOLUME, description, tags })
    }

    fn delete(&mut self, number: u32) -> Result<Decision, Refusal> {
        self.run(&Command::DeleteSnapshot { id: snap(number) })
    }

    /// Stores a snapshot.
    fn store(&mut self, number: u32, is_complete: bool) {
        let volume = Some(VOLUME);
        let size = ByteCount(200 * GIB);
        let data = ByteCount(3 * GIB);
        let id = snap(number);
        let is_encrypted =
            self.model.snapshots.get(&id).is_some_and(|snapshot| snapshot.is_encrypted);
        let stored = StoredSnapshot { id, volume, size, data, is_complete, is_encrypted };
        self.stored.insert(snap(number), stored);
    }

    fn look_up(&mut self) {
        let ids: Vec<SnapshotId> = self.model.snapshots.keys().copied().collect();
        let events = self.model.settle_snapshots(ids, &self.stored, self.now);
        self.commit(events);
    }

    fn states(&self) -> Vec<(SnapshotId, &'static str)> {
        self.model.snapshots.values().map(|snapshot| (snapshot.id, snapshot.state())).collect()
    }

    fn commit(&mut self, events: Vec<Event>) {
        let change = Change::from(events);
        for journal in &mut self.journals {
            let revision = journal.load().unwrap().revision;
            journal.commit(&change, revision).unwrap();
        }
        change.events.into_iter().for_each(|event| self.model.apply(event));
        self.model.invariants();
        for journal in &mut self.journals {
            assert_eq!(journal.load().unwrap().model, self.model);
        }
    }
}

fn volume(
    id: VolumeId,
    volume_type: VolumeType,
    snapshot: Option<SnapshotId>,
    size_gib: u32,
) -> Command {
    let iops = None;
    let throughput_mibps = None;
    let multi_attach = false;
    let request = VolumeRequest { volume_type, size_gib, iops, throughput_mibps, multi_attach };
    let zone = "z".into();
    let tags = Tags::new();
    let begins = Begins { snapshot, ..Begins::default() };
    Command::CreateVolume { id, request, begins, zone, tags, token: None }
}

#[test]
fn snapshot_state_follows_the_store() {
    let mut world = World::new(VolumeType::Gp3);
    for number in 1..=4 {
        world.create(number).unwrap();
    }
    world.store(1, true);
    world.store(2, false);
    assert_eq!(world.model.unsettled_snapshots().count(), 4);
    world.look_up();
    let expected = [(1, "completed"), (2, "pending"), (3, "error"), (4, "error")];
    assert_eq!(world.states(), expected.map(|(number, state)| (snap(number), state)));
    assert_eq!(world.model.unsettled_snapshots().collect::<Vec<_>>(), [snap(2)]);
    let completed = world.model.snapshots[&snap(1)].clone();
    world.look_up();
    assert_eq!(world.model.snapshots[&snap(1)], completed, "nothing new is nothing new");
    // A completed snapshot that is missing goes into error, and is completed again when its bytes
    // are back.
    let stored = std::mem::take(&mut world.stored);
    world.look_up();
    assert!(world.states().iter().all(|(_, state)| *state == "error"));
    world.stored = stored;
    world.store(2, true);
    world.look_up();
    assert_eq!(world.states()[..2], [(snap(1), "completed"), (snap(2), "completed")]);
    assert_eq!(world.model.snapshots[&snap(1)].taken(), 3 * GIB);
}

#[test]
fn five_snapshots_of_a_volume_may_be_pending_and_one_of_an_hdd_type() {
    for (volume_type, max) in [(VolumeType::Gp3, 5), (VolumeType::St1, 1), (VolumeType::Sc1, 1)] {
        let mut world = World::new(volume_type);
        for number in 1..=max {
            world.create(number).unwrap();
            world.store(number, false);
        }
        assert_eq!(world.create(99), Err(Refusal::TooManyPending(VOLUME)), "{volume_type}");
        world.store(1, true);
        world.look_up();
        world.create(99).unwrap();
    }
}

#[test]
fn volumes_are_made_of_completed_snapshots_no_smaller_than_they_are() {
    let mut world = World::new(VolumeType::Gp3);
    let of = |number, size_gib| {
        volume(VolumeId::from_bits(2), VolumeType::Gp2, Some(snap(number)), size_gib)
    };
    assert_eq!(world.run(&of(1, 200)), Err(Refusal::SnapshotsNotFound(vec![snap(1)])));
    world.create(1).unwrap();
    assert_eq!(world.run(&of(1, 200)), Err(Refusal::SnapshotUnready(snap(1), "pending")));
    world.store(1, true);
    world.look_up();
    let id = snap(1);
    let size_gib = 199;
    let least_gib = 200;
    let below = Refusal::BelowSnapshot { id, size_gib, least_gib };
    assert_eq!(world.run(&of(1, 199)), Err(below));
    world.run(&of(1, 300)).unwrap();
    assert_eq!(world.model.volumes[&VolumeId::from_bits(2)].snapshot, Some(snap(1)));
    // Volume and snapshot are independent now.
    world.run(&Command::DeleteVolume { id: VOLUME }).unwrap();
    assert_eq!(world.model.snapshots[&snap(1)].volume, VOLUME);
    world.delete(1).unwrap();
    assert_eq!(world.run(&of(1, 300)), Err(Refusal::SnapshotsNotFound(vec![snap(1)])));
    let gone = Refusal::VolumesNotFound(vec![VOLUME]);
    assert_eq!(world.create(2), Err(gone));
}

#[test]
fn snapshot_being_deleted_is_hidden_and_counts_until_it_is_gone() {
    let mut world = World::new(VolumeType::Gp3);
    let before = world.model.bytes_sold();
    world.create(1).unwrap();
    world.store(1, true);
    world.look_up();
    let decision = world.delete(1).unwrap();
    assert_eq!(decision.calls, Calls::Snapshot(snap(1)));
    assert!(world.model.snapshot(snap(1)).is_err());
    let not_found = Err(Refusal::SnapshotsNotFound(vec![snap(1)]));
    assert_eq!(world.delete(1), not_found);
    let resources = vec![Tagged::Snapshot(snap(1))];
    assert_eq!(world.run(&Command::CreateTags { resources, tags: Tags::new() }), not_found);
    world.stored.clear();
    world.look_up();
    assert_eq!(world.model.unsettled_snapshots().collect::<Vec<_>>(), [snap(1)]);
    assert_eq!(world.model.bytes_sold().0, before.0 + 3 * GIB);
    world.commit(vec![Event::SnapshotGone(snap(1))]);
    assert_eq!(world.model.bytes_sold(), before);
    assert_eq!(world.model.snapshots.len(), 0);
}

#[test]
fn a_snapshot_takes_space_and_is_refused_when_none_is_left() {
    let mut world = World::new(VolumeType::Gp3);
    let room = |gib| {
        let space = Space { total: ByteCount(gib * GIB), free: ByteCount(0) };
        Some(Room { space, unowned: vec![], unowned_snapshots: vec![] })
    };
    let new = |world: &World| {
        let id = snap(9);
        let description = String::new();
        let tags = Tags::new();
        let command = Command::CreateSnapshot { id, volume: VOLUME, description, tags };
        world.model.decide(&world.settings, &Capacity::Unknown, &command, world.now).unwrap().events
    };
    let admit = |world: &World, gib| {
        let kept = ToBeKept::default();
        world.model.admit_bytes(&world.settings, room(gib), &kept, &new(world)).map_err(drop)
    };
    assert_eq!((admit(&world, 200), admit(&world, 201)), (Err(()), Ok(())));
    // If the data of its volume is known, there must be space for all of it, beside the space
    // promised to others.
    let with = |filled: u64, pending: u64, gib| {
        let of = BTreeMap::from([(VOLUME, ByteCount(filled * GIB))]);
        let kept = ToBeKept { of, pending: ByteCount(pending * GIB) };
        world.model.admit_bytes(&world.settings, room(gib), &kept, &new(&world))
    };
    assert_eq!((with(7, 0, 207), with(7, 2, 209)), (Ok(()), Ok(())));
    let for_sale = ByteCount(208 * GIB);
    let sold = ByteCount(202 * GIB);
    let needed = ByteCount(7 * GIB);
    assert_eq!(with(7, 2, 208), Err(Refusal::SpaceForSnapshot { for_sale, sold, needed }));
    world.create(1).unwrap();
    world.store(1, true);
    world.look_up();
    assert_eq!((admit(&world, 203), admit(&world, 204)), (Err(()), Ok(())));
    let unknown = Room {
        space: Space { total: ByteCount(204 * GIB), free: ByteCount(0) },
        unowned: vec![],
        unowned_snapshots: vec![(snap(1), ByteCount(GIB)), (snap(7), ByteCount(GIB))],
    };
    assert_eq!(world.model.taken_of(&unknown), ByteCount(204 * GIB));
}

#[test]
fn the_number_of_snapshots_has_a_bound() {
    let mut world = World::new(VolumeType::Gp3);
    world.create(1).unwrap();
    let one = world.model.snapshots[&snap(1)].clone();
    for number in 0..SNAPSHOTS_MAX as u32 {
        let phase = SnapshotPhase::Error("for the count".into());
        let snapshot = Snapshot { id: snap(number + 10), phase, ..one.clone() };
        world.model.snapshots.insert(snapshot.id, snapshot);
    }
    world.model.reindex();
    let description = String::new();
    let tags = Tags::new();
    let command = Command::CreateSnapshot { id: snap(2), volume: VOLUME, description, tags };
    let refused = world.model.decide(&world.settings, &Capacity::Unknown, &command, world.now);
    assert_eq!(refused, Err(Refusal::TooManySnapshots));
}

#[test]
fn a_compliance_lock_of_a_pending_snapshot_is_not_made_shorter() {
    let mut world = World::new(VolumeType::Gp3);
    world.create(1).unwrap();
    let mode = LockMode::Compliance;
    let cool_off_hours = 0;
    let lock = |created, days, until| Command::LockSnapshot {
        id: snap(1),
        lock: Lock { mode, created, cool_off_hours, days, until },
    };
    let now = world.now;
    world.run(&lock(now, 365, None)).unwrap();
    let tomorrow = now.plus_ms(24 * 3_600_000);
    for shorter in [lock(now, 1, None), lock(now, 1, Some(tomorrow))] {
        let refused = world.run(&shorter).unwrap_err();
        assert!(matches!(refused, Refusal::LockedForGood(..)), "{refused:?}");
    }
    world.run(&lock(now, 366, None)).unwrap();
}

#[test]
fn a_snapshot_that_comes_back_from_the_bin_does_not_take_its_token_back() {
    let mut world = World::new(VolumeType::Gp3);
    world.settings.recycle_bin_days = 1;
    let token = Some(("t".to_owned(), "f".to_owned()));
    let start = |number| Command::StartSnapshot {
        id: snap(number),
        size_gib: 1,
        filled: Filled { parent: None, timeout_min: 10, token: token.clone() },
        is_encrypted: None,
        description: String::new(),
        tags: Tags::new(),
    };
    world.run(&start(1)).unwrap();
    let phase = SnapshotPhase::Completed { data: ByteCount(1), ended: world.now };
    let done = Snapshot { phase, ..world.model.snapshots[&snap(1)].clone() };
    world.commit(vec![Event::Snapshot(done)]);
    world.delete(1).unwrap();
    world.run(&start(2)).unwrap();
    world.run(&Command::RestoreSnapshot { id: snap(1) }).unwrap();
    assert_eq!(world.model.started_with("t").map(|it| it.id), Some(snap(2)));
}

#[test]
fn snapshot_copy_counts_with_its_final_size() {
    let mut world = World::new(VolumeType::Gp3);
    world.create(1).unwrap();
    world.store(1, true);
    world.look_up();
    let before = world.model.bytes_sold().0;
    let id = snap(2);
    let of = snap(1);
    let is_encrypted = None;
    let description = String::new();
    let tags = Tags::new();
    world.run(&Command::CopySnapshot { id, of, is_encrypted, description, tags }).unwrap();
    assert_eq!(world.model.bytes_sold().0, before + 3 * GIB);
    assert_eq!(world.delete(1), Err(Refusal::SnapshotBeingCopied { id: of, copy: id.to_string() }));
}

/// Its bytes may be deleted at any time.
#[test]
fn snapshot_is_restored_until_its_time_in_the_bin_ends() {
    let mut world = World::new(VolumeType::Gp3);
    world.settings.recycle_bin_days = 1;
    world.create(1).unwrap();
    let restore = Command::RestoreSnapshot { id: snap(1) };
    world.store(1, true);
    world.look_up();
    world.delete(1).unwrap();
    let SnapshotPhase::Binned { until, .. } = world.model.snapshots[&snap(1)].phase else {
        panic!("not in the bin: {:?}", world.model.snapshots);
    };
    let decide = |now| world.model.decide(&world.settings, &Capacity::Unknown, &restore, now);
    assert_eq!(decide(until), Err(Refusal::SnapshotsNotFound(vec![snap(1)])));
    assert!(decide(UnixMs(until.0 - 1)).is_ok());
}
