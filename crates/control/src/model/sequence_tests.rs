//! Random sequences of every command, with a store that succeeds, fails, loses bytes or does not
//! answer. A naive oracle scans the whole model for what each command needs. After every step,
//! rules that hold for all sequences are checked.

use std::collections::BTreeMap;

use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::units::{ByteCount, GIB};
use evenkeel_core::volume::{VolumeChange, VolumeRequest, VolumeType};
use evenkeel_wire::agent::{HostAddress, StoredSnapshot};
use proptest::prelude::*;

use super::locks::LockMode;
use super::*;
use crate::journal::memory::MemoryJournal;
use crate::journal::sqlite::SqliteJournal;
use crate::journal::{Change, Journal};

mod oracle;
mod rules;

const ZONES: [&str; 2] = ["local-1a", "local-1b"];
const DEVICES: [&str; 3] = ["/dev/sdf", "/dev/sdg", "xvdh"];
const VOLUMES: u8 = 5;
const HOSTS: u8 = 4;
const SNAPSHOTS: u8 = 6;
const HOUR_MS: u64 = 3_600_000;

fn vol(number: u8) -> VolumeId {
    VolumeId::from_bits((number % VOLUMES).into())
}

fn host(number: u8) -> InstanceId {
    InstanceId::from_bits((number % HOSTS).into())
}

fn snap(number: u8) -> SnapshotId {
    SnapshotId::from_bits((number % SNAPSHOTS).into())
}

/// A command or another event, and three numbers that select its parameters.
#[derive(Clone, Copy, Debug)]
struct Step {
    kind: u8,
    numbers: [u8; 3],
    answer: Answer,
}

/// The store's answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Answer {
    Done,
    Failed,
    Lost,
    Unreachable,
    Silent,
}

const KINDS: u8 = 34;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let answer = prop_oneof![
        12 => Just(Answer::Done),
        2 => Just(Answer::Failed),
        1 => Just(Answer::Lost),
        1 => Just(Answer::Unreachable),
        3 => Just(Answer::Silent),
    ];
    let step = (0..KINDS, any::<[u8; 3]>(), answer);
    let step = step.prop_map(|(kind, numbers, answer)| Step { kind, numbers, answer });
    proptest::collection::vec(step, 1..160)
}

/// The model, its journals, and a store of snapshots.
struct World {
    settings: Settings,
    model: Model,
    journals: Vec<Box<dyn Journal>>,
    stored: BTreeMap<SnapshotId, StoredSnapshot>,
    /// All events of the sequence.
    history: Vec<Event>,
    now: UnixMs,
}

impl World {
    fn new(has_key: bool, recycle_bin_days: u32, policy: ModifyPolicy) -> Self {
        let settings = Settings {
            zones: ZONES.map(str::to_owned).to_vec(),
            key: has_key.then(|| StoreKey { id: "k".into() }),
            recycle_bin_days,
            modify_policy: policy,
            ..Settings::default()
        };
        let journals: Vec<Box<dyn Journal>> =
            vec![Box::new(SqliteJournal::in_memory()), Box::new(MemoryJournal::default())];
        let model = Model::default();
        let stored = BTreeMap::new();
        let history = vec![];
        let now = UnixMs(1);
        let mut world = Self { settings, model, journals, stored, history, now };
        let id = host(0);
        let instance_type = LOCAL_TYPE.into();
        let address = HostAddress::Local;
        let tags = Tags::new();
        world.run(
            &Command::RegisterHost { id, zone: None, instance_type, address, tags },
            Answer::Done,
        );
        world.furnish();
        world
    }

    /// Creates two volumes, the first of them attached and with a snapshot, so that the first step
    /// can copy and delete something.
    fn furnish(&mut self) {
        for number in 0..2 {
            let command = of_volumes(4, [number, 3, 1]);
            assert!(self.run(&command, Answer::Done), "{command:?}");
        }
        let attach = of_volumes(12, [0, 0, 0]);
        assert!(self.run(&attach, Answer::Done));
        let snapshot = of_snapshots(self, 16, [0, 0, 0]);
        assert!(self.run(&snapshot, Answer::Done));
    }

    fn commit(&mut self, events: Vec<Event>) {
        if events.is_empty() {
            return;
        }
        let change = Change::from(events);
        for journal in &mut self.journals {
            let revision = journal.load().unwrap().revision;
            journal.commit(&change, revision).unwrap();
        }
        for event in change.events {
            rules::check_transition(&self.model, &event);
            self.history.push(event.clone());
            self.model.apply(event);
        }
    }

    /// Decides and commits a command, and applies the store's answer. Returns whether it was
    /// accepted.
    fn run(&mut self, command: &Command, answer: Answer) -> bool {
        let decided = self.model.decide(&self.settings, &Capacity::Unknown, command, self.now);
        let Ok(decision) = decided else { return false };
        self.commit(decision.events.clone());
        if let Some(id) = decision.volume() {
            self.make_own(id, answer);
            self.settle(id, answer);
        }
        let made: Vec<SnapshotId> = match decision.calls {
            Calls::Snapshot(id) => vec![id],
            Calls::Set(set) => set.into_iter().map(|(_, id)| id).collect(),
            Calls::Nothing | Calls::Volume(_) | Calls::Reopened(_) => vec![],
        };
        for id in made {
            self.settle_snapshot(id, answer);
        }
        true
    }

    /// Requests the snapshots with which a new volume begins. If one fails, the volume fails.
    fn make_own(&mut self, id: VolumeId, answer: Answer) {
        let own: Vec<SnapshotId> = self.model.made_for(id).map(|own| own.id).collect();
        for own in own {
            self.settle_snapshot(own, answer);
            if !self.model.snapshots.contains_key(&own) {
                let settled = Settled::Failed("what it begins as was not made");
                return self.commit(self.model.settle(&self.settings, id, settled, self.now));
            }
        }
    }

    /// Settles a volume with the store's answer, as the plane does.
    fn settle(&mut self, id: VolumeId, answer: Answer) {
        let Some(volume) = self.model.volumes.get(&id) else { return };
        let own = volume.through.filter(|_| volume.phase == Phase::Creating);
        let phase_of = |own| self.model.snapshots.get(&own).map(|own| own.phase.clone());
        let settled = match (own.map(phase_of), answer) {
            (Some(Some(phase)), _) if phase.is_pending() => return,
            (Some(phase), _) if !matches!(phase, Some(SnapshotPhase::Completed { .. })) => {
                Settled::Failed("what it begins as was not made")
            }
            (_, Answer::Silent) => return,
            (_, Answer::Done) => Settled::Done,
            (_, Answer::Failed) => Settled::Failed("no"),
            (_, Answer::Lost) => Settled::Lost("lost"),
            (_, Answer::Unreachable) => Settled::Unreachable("out of reach"),
        };
        self.commit(self.model.settle(&self.settings, id, settled, self.now));
    }

    /// Settles a snapshot with the store's answer, as the plane does.
    fn settle_snapshot(&mut self, id: SnapshotId, answer: Answer) {
        let Some(snapshot) = self.model.snapshots.get(&id).cloned() else { return };
        let is_new = matches!(snapshot.phase, SnapshotPhase::Pending | SnapshotPhase::Filling);
        match (&snapshot.phase, answer) {
            (SnapshotPhase::Deleting { .. }, Answer::Done) => {
                self.stored.remove(&id);
                self.commit(vec![Event::SnapshotGone(id)]);
            }
            (SnapshotPhase::Pending, Answer::Done | Answer::Silent) => {
                self.store(&snapshot, answer == Answer::Done);
                let found = self.model.settle_snapshots([id], &self.stored, self.now);
                self.commit(found);
            }
            (SnapshotPhase::Filling, Answer::Done) => self.store(&snapshot, false),
            (SnapshotPhase::Copying { .. }, _) => self.go_on_copying(snapshot, answer),
            (_, Answer::Failed) if is_new && !self.stored.contains_key(&id) => {
                self.commit(vec![Event::SnapshotGone(id)]);
            }
            _ => {}
        }
    }

    fn go_on_copying(&mut self, copy: Snapshot, answer: Answer) {
        let source = copy.copy_of.and_then(|of| self.model.snapshots.get(&of));
        let phase = source.map(|source| source.phase.clone());
        match (phase, answer) {
            (Some(phase), _) if phase.is_pending() => {}
            (Some(SnapshotPhase::Completed { .. }), Answer::Done) => {
                self.store(&copy, true);
                self.complete(copy);
            }
            (Some(SnapshotPhase::Completed { .. }), Answer::Lost | Answer::Unreachable) => {}
            (Some(SnapshotPhase::Completed { .. }), Answer::Silent) => {}
            // The copy was refused, or its source is lost.
            _ => {
                let phase = SnapshotPhase::Error("no".into());
                self.commit(vec![Event::Snapshot(Snapshot { phase, ..copy })]);
            }
        }
    }

    fn store(&mut self, of: &Snapshot, is_complete: bool) {
        let size = ByteCount(u64::from(of.size_gib) * GIB);
        let data = ByteCount(GIB);
        let &Snapshot { id, is_encrypted, .. } = of;
        let volume = Some(of.volume);
        let stored = StoredSnapshot { id, volume, size, data, is_complete, is_encrypted };
        self.stored.insert(id, stored);
    }

    fn complete(&mut self, snapshot: Snapshot) {
        let phase = SnapshotPhase::Completed { data: ByteCount(GIB), ended: self.now };
        self.commit(vec![Event::Snapshot(Snapshot { phase, ..snapshot })]);
    }

    /// Runs the server's tick: calls the store again for everything unsettled, and empties the bin.
    fn tick(&mut self, answer: Answer) {
        for id in self.model.snapshots.keys().copied().collect::<Vec<_>>() {
            if self.model.snapshots[&id].phase != SnapshotPhase::Filling {
                self.settle_snapshot(id, answer);
            }
        }
        let again: Vec<_> = self.model.unsettled().chain(self.model.in_error()).collect();
        for id in again {
            self.settle(id, answer);
        }
        let (volumes, snapshots) = self.model.outdated(self.now);
        if answer == Answer::Done {
            self.commit(volumes.into_iter().map(Event::VolumeGone).collect());
        }
        for id in snapshots {
            self.run(&Command::PurgeSnapshot { id }, answer);
        }
        let ended = self.model.restores_ended(self.now);
        self.commit(ended);
        assert!(self.model.restores_ended(self.now).is_empty());
    }

    /// Restarts the server: the store is listed, and a snapshot that it does not have is in error.
    fn restart(&mut self, loses: Option<SnapshotId>) {
        if let Some(id) = loses {
            self.stored.remove(&id);
        }
        let ids: Vec<SnapshotId> = self.model.snapshots.keys().copied().collect();
        let found = self.model.settle_snapshots(ids, &self.stored, self.now);
        self.commit(found);
        for journal in &mut self.journals {
            assert_eq!(journal.load().unwrap().model, self.model, "what was stored is another");
        }
        self.model = self.journals[0].load().unwrap().model;
    }

    /// Executes a step that is not a command. Returns `false` if the step is a command.
    fn happens(&mut self, step: &Step) -> bool {
        let [a, b, c] = step.numbers;
        match step.kind {
            0 => self.tick(step.answer),
            1 => self.now = self.now.plus_ms(u64::from(a) * HOUR_MS / 4),
            2 => self.restart((b % 4 == 0).then(|| snap(c))),
            3 => {
                // A client completes a snapshot that it has filled.
                let filling = self.model.filling().nth(usize::from(a % 3)).cloned();
                if let Some(filling) = filling {
                    self.store(&filling, true);
                    self.complete(filling);
                }
            }
            _ => return false,
        }
        true
    }
}

/// Returns a command of volumes.
fn of_volumes(kind: u8, [a, b, c]: [u8; 3]) -> Command {
    let zone = ZONES[usize::from(a % 2)].into();
    let tags = Tags::new();
    match kind {
        4..=6 => {
            let token = (c % 4 == 0).then(|| (format!("t{}", b % 3), format!("f{}", c % 8)));
            let spares = [snap(b), snap(b.wrapping_add(1))];
            let begins = Begins {
                snapshot: (kind == 5).then(|| snap(c)),
                source: (kind == 6).then(|| vol(c)),
                is_encrypted: [None, Some(false), Some(true)][usize::from(a % 3)],
                initialization_mibps: (c % 3 == 0).then_some(200),
                spares,
            };
            Command::CreateVolume { id: vol(a), request: request(b), begins, zone, tags, token }
        }
        7 => {
            let id = vol(a);
            let is_encrypted = false;
            let request = request(b);
            Command::AdoptVolume { id, is_encrypted, request, zone, tags }
        }
        8 if c % 2 == 0 => Command::DeleteWithHost { id: vol(a), host: host(b) },
        8 => Command::DeleteVolume { id: vol(a) },
        9 => {
            let error = (b % 3 == 0).then(|| "damaged".to_owned());
            Command::RestoreVolume { id: vol(a), error }
        }
        10 => Command::SetAutoEnableIo { id: vol(a), is_on: b % 2 == 0 },
        11 => {
            let devices = vec![(DEVICES[usize::from(b) % 3].into(), c % 2 == 0)];
            Command::SetDeleteOnTermination { instance: host(a), devices }
        }
        12 | 13 => {
            let device = DEVICES[usize::from(c) % 3].into();
            Command::AttachVolume { id: vol(a), instance: host(b), device }
        }
        14 => {
            let instance = (c % 3 > 0).then(|| host(b));
            Command::DetachVolume { id: vol(a), instance, device: None }
        }
        _ => {
            let size_gib = (c % 2 == 0).then(|| 4 + u32::from(b % 30));
            let multi_attach = (c % 7 == 0).then_some(c % 14 == 0);
            let volume_type = (c % 5 == 0).then_some(VolumeType::Gp3);
            let change =
                VolumeChange { size_gib, multi_attach, volume_type, ..VolumeChange::default() };
            Command::ModifyVolume { id: vol(a), change }
        }
    }
}

fn request(number: u8) -> VolumeRequest {
    let volume_type = if number.is_multiple_of(3) { VolumeType::Gp3 } else { VolumeType::Io2 };
    let iops = (volume_type == VolumeType::Io2).then_some(1_000);
    let multi_attach = number % 3 == 1;
    let size_gib = 4 + u32::from(number % 20);
    VolumeRequest { volume_type, size_gib, iops, throughput_mibps: None, multi_attach }
}

/// Returns a command of snapshots.
fn of_snapshots(world: &World, kind: u8, [a, b, c]: [u8; 3]) -> Command {
    let description = String::new();
    let tags = Tags::new();
    let id = snap(a);
    let asked = [None, Some(false), Some(true)][usize::from(b % 3)];
    match kind {
        16 | 17 => Command::CreateSnapshot { id, volume: vol(b), description, tags },
        18 => {
            let its = world.model.attachments_of(host(b));
            let its = its.map(|(volume, _)| volume.id).zip(a..=u8::MAX);
            let new =
                |(volume, number)| SnapshotOfSet { id: snap(number), volume, tags: Tags::new() };
            let set = its.map(new).take(usize::from(SNAPSHOTS)).collect();
            Command::CreateSnapshots { instance: host(b), set, description }
        }
        19 => {
            let token = (c % 2 == 0).then(|| (format!("s{}", b % 2), format!("f{}", c % 4)));
            let parent = (c % 3 == 0).then(|| snap(b));
            let filled = Filled { parent, timeout_min: 10, token };
            let size_gib = 4 + u32::from(b % 30);
            let is_encrypted = asked;
            Command::StartSnapshot { id, size_gib, filled, is_encrypted, description, tags }
        }
        20 => Command::CopySnapshot { id, of: snap(c), is_encrypted: asked, description, tags },
        21 => Command::DeleteSnapshot { id },
        22 => Command::RestoreSnapshot { id },
        23 => Command::PurgeSnapshot { id },
        24 => {
            let mode = [LockMode::Governance, LockMode::Compliance][usize::from(b % 2)];
            let cool_off_hours = if b % 4 == 3 { 1 } else { 0 };
            let days = 1 + u32::from(c % 3);
            let created = world.now;
            let lock = Lock { mode, created, cool_off_hours, days, until: None };
            Command::LockSnapshot { id, lock }
        }
        25 => Command::UnlockSnapshot { id },
        26 => {
            let add = match b % 4 {
                3 => ["all".to_owned()].into(),
                account => [format!("{account:012}")].into(),
            };
            let remove = (c % 2 == 0).then(|| [format!("{:012}", c % 3)].into());
            Command::ShareSnapshot { id, add, remove }
        }
        _ => {
            let zones = ZONES[..usize::from(c % 3)].iter().map(|zone| (*zone).to_owned()).collect();
            Command::SetFastRestore { ids: vec![id], zones, is_on: b % 3 > 0 }
        }
    }
}

/// Returns a command of storage tiers.
fn of_tiers(kind: u8, [a, b, c]: [u8; 3]) -> Command {
    let id = snap(a);
    match kind {
        32 => Command::ArchiveSnapshot { id },
        _ => Command::RestoreTier { id, days: (b % 3 > 0).then_some(1 + u32::from(c % 2)) },
    }
}

/// Returns another command.
fn of_others(world: &World, kind: u8, [a, b, c]: [u8; 3]) -> Command {
    match kind {
        28 if b % 2 == 0 => {
            let states = [
                PublicAccess::Unblocked,
                PublicAccess::BlockNewSharing,
                PublicAccess::BlockAllSharing,
            ];
            Command::SetPublicAccess(states[usize::from(c % 3)])
        }
        28 => Command::SetEncryptByDefault(a % 2 == 0),
        29 => {
            let resources = vec![Tagged::Volume(vol(a)), Tagged::Snapshot(snap(b))];
            match c % 3 {
                0 => Command::DeleteTags { resources, tags: vec![] },
                n => {
                    Command::CreateTags { resources, tags: [(format!("k{n}"), "v".into())].into() }
                }
            }
        }
        30 => {
            let instance_type = "m5.large".into();
            let address = HostAddress::Remote([10, 0, 0, b % 4].into());
            let zone = (c % 2 == 0).then(|| ZONES[usize::from(b % 2)].to_owned());
            let id = host(a);
            let tags = Tags::new();
            Command::RegisterHost { id, zone, instance_type, address, tags }
        }
        _ if c % 4 == 1 => {
            let instance_type = ["m5.large", "m5.xlarge"][usize::from(b % 2)].into();
            Command::SetHostType { id: host(a), instance_type }
        }
        _ if c % 4 == 0 => Command::DeregisterHost { id: host(a) },
        _ => {
            let at = world.now;
            let states = [HostState::Running, HostState::Stopped, HostState::Terminated { at }];
            Command::SetHostState { ids: vec![host(a)], state: states[usize::from(b % 3)] }
        }
    }
}

fn command(world: &World, step: &Step) -> Command {
    match step.kind {
        ..=15 => of_volumes(step.kind, step.numbers),
        16..=27 => of_snapshots(world, step.kind, step.numbers),
        32.. => of_tiers(step.kind, step.numbers),
        _ => of_others(world, step.kind, step.numbers),
    }
}

fn policy() -> impl Strategy<Value = ModifyPolicy> {
    prop_oneof![Just(ModifyPolicy::Immediate), Just(ModifyPolicy::Aws)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(2)))]

    #[test]
    fn random_requests_keep_the_rules_of_the_model(
        steps in steps(), has_key: bool, bin_days in 0..2_u32, policy in policy(),
    ) {
        let mut world = World::new(has_key, bin_days, policy);
        for step in &steps {
            world.now = world.now.plus_ms(1);
            if !world.happens(step) {
                let command = command(&world, step);
                let expected = oracle::accepts(&world, &command);
                let is_accepted = world.run(&command, step.answer);
                if let Some(expected) = expected {
                    prop_assert_eq!(is_accepted, expected, "{:?}", command);
                }
            }
            rules::check(&world);
            world.model.invariants();
        }
        // Replaying all events, and loading both journals, give the same model.
        let mut replayed = Model::default();
        world.history.iter().cloned().for_each(|event| replayed.apply(event));
        prop_assert_eq!(&replayed, &world.model);
        world.restart(None);
    }

    /// Everything that waits for the store ends as soon as the store answers.
    #[test]
    fn pending_changes_end_once_the_store_answers(
        steps in steps(), has_key: bool, bin_days in 0..2_u32,
    ) {
        let mut world = World::new(has_key, bin_days, ModifyPolicy::Immediate);
        for step in &steps {
            if !world.happens(step) {
                let command = command(&world, step);
                world.run(&command, step.answer);
            }
        }
        // One tick for a source, one for its copy, one for the copy's volume, and one for the
        // snapshots that were made for that volume.
        for _ in 0..4 {
            world.tick(Answer::Done);
        }
        for volume in world.model.volumes.values() {
            prop_assert!(volume.is_settled(), "{:?}", volume);
            let is_at_rest = matches!(volume.phase, Phase::Ready | Phase::Binned { .. });
            prop_assert!(is_at_rest, "{:?}", volume);
        }
        for snapshot in world.model.snapshots.values() {
            prop_assert!(snapshot.for_volume.is_none(), "{:?}", snapshot);
            prop_assert!(!snapshot.is_unsettled(), "{:?}", snapshot);
            let is_copied = !matches!(snapshot.phase, SnapshotPhase::Copying { .. });
            prop_assert!(is_copied, "{:?}", snapshot);
        }
    }
}
