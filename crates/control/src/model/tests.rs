//! Tests the model against an oracle that knows only the rules, and against its copy in the
//! database.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::volume::{Rules, VolumeChange, VolumeRequest, VolumeType};
use evenkeel_wire::agent::HostAddress;
use proptest::prelude::*;

use super::*;
use crate::journal::memory::MemoryJournal;
use crate::journal::sqlite::SqliteJournal;
use crate::journal::{Change, Journal};

const ZONE: &str = "local-1a";
const DEVICES: [&str; 3] = ["/dev/sdf", "/dev/sdg", "xvdh"];

fn settings(modify_policy: ModifyPolicy) -> Settings {
    Settings { zones: vec![ZONE.into()], modify_policy, ..Settings::default() }
}

fn vol(number: u8) -> VolumeId {
    VolumeId::from_bits(number.into())
}

fn host(number: u8) -> InstanceId {
    InstanceId::from_bits(number.into())
}

fn io2(size_gib: u32, multi_attach: bool) -> VolumeRequest {
    let volume_type = VolumeType::Io2;
    VolumeRequest { volume_type, size_gib, iops: Some(1_000), throughput_mibps: None, multi_attach }
}

fn create(number: u8, size_gib: u32, multi_attach: bool) -> Command {
    Command::CreateVolume {
        id: vol(number),
        request: io2(size_gib, multi_attach),
        begins: Begins::default(),
        zone: ZONE.into(),
        tags: Tags::new(),
        token: None,
    }
}

fn attach(volume: u8, instance: u8, device: &str) -> Command {
    Command::AttachVolume { id: vol(volume), instance: host(instance), device: device.into() }
}

fn detach(volume: u8, instance: Option<u8>) -> Command {
    Command::DetachVolume { id: vol(volume), instance: instance.map(host), device: None }
}

fn modify(volume: u8, change: VolumeChange) -> Command {
    Command::ModifyVolume { id: vol(volume), change }
}

/// A model with hosts 0 to 2 (0 is the local machine), and the steps of its caller.
struct World {
    settings: Settings,
    model: Model,
    /// Each kind of journal, with all decisions.
    journals: Vec<Box<dyn Journal>>,
    now: UnixMs,
}

impl World {
    fn new(modify_policy: ModifyPolicy) -> Self {
        let journals: Vec<Box<dyn Journal>> =
            vec![Box::new(SqliteJournal::in_memory()), Box::new(MemoryJournal::default())];
        let settings = settings(modify_policy);
        let model = Model::default();
        let now = UnixMs(1_000_000);
        let mut world = Self { settings, model, journals, now };
        for number in 0..3 {
            let instance_type = if number == 0 { LOCAL_TYPE } else { "m5.large" }.into();
            let address = match number {
                0 => HostAddress::Local,
                n => HostAddress::Remote([10, 0, 0, n].into()),
            };
            let id = host(number);
            let tags = Tags::new();
            let command = Command::RegisterHost { id, zone: None, instance_type, address, tags };
            world.run(&command, true).unwrap();
        }
        world
    }

    /// Decides while the capacity is unknown.
    fn decide(&self, command: &Command) -> Result<Decision, Refusal> {
        self.model.decide(&self.settings, &Capacity::Unknown, command, self.now)
    }

    /// Decides, stores and applies; then settles with the data plane's simulated answer.
    fn run(&mut self, command: &Command, done: bool) -> Result<(), Refusal> {
        self.now = self.now.plus_ms(1);
        let decision = self.decide(command)?;
        self.commit(decision.events.clone());
        if let Some(id) = decision.volume()
            && self.model.volumes.get(&id).is_some_and(|volume| !volume.is_settled())
        {
            let settled = if done { Settled::Done } else { Settled::Failed("no") };
            self.commit(self.model.settle(&self.settings, id, settled, self.now));
            // The effect of a failed deletion is unknown, so the data plane is called again.
            if !done && matches!(command, Command::DeleteVolume { .. }) {
                assert_eq!(self.model.volumes[&id].state(), VolumeState::Error);
                self.commit(self.model.settle(&self.settings, id, Settled::Done, self.now));
            }
        }
        Ok(())
    }

    fn commit(&mut self, events: Vec<Event>) {
        let change = Change::from(events);
        for journal in &mut self.journals {
            let revision = journal.load().unwrap().revision;
            journal.commit(&change, revision).unwrap();
        }
        change.events.into_iter().for_each(|event| self.model.apply(event));
    }

    /// Returns the content of all journals.
    fn loaded(&mut self) -> Model {
        let mut loaded = self.journals.iter_mut().map(|journal| journal.load().unwrap().model);
        let first = loaded.next().unwrap();
        assert!(loaded.all(|other| other == first), "journals differ");
        first
    }
}

/// The rules in their simplest form: per volume its size, whether it is Multi-Attach, and the pairs
/// of host and device it is attached to.
#[derive(Default)]
struct Oracle {
    volumes: BTreeMap<u8, (u32, bool, BTreeMap<u8, usize>)>,
}

#[derive(Clone, Debug)]
enum ModelStep {
    Create(u8, u32, bool),
    Delete(u8),
    Attach(u8, u8, usize),
    Detach(u8, Option<u8>),
    Grow(u8, u32),
}

fn step() -> impl Strategy<Value = ModelStep> {
    let v = 0_u8..4;
    let h = 0_u8..4;
    prop_oneof![
        (v.clone(), 4_u32..20, any::<bool>()).prop_map(|(v, s, m)| ModelStep::Create(v, s, m)),
        v.clone().prop_map(ModelStep::Delete),
        (v.clone(), h.clone(), 0..DEVICES.len()).prop_map(|(v, h, d)| ModelStep::Attach(v, h, d)),
        (v.clone(), proptest::option::of(h)).prop_map(|(v, h)| ModelStep::Detach(v, h)),
        (v, 4_u32..20).prop_map(|(v, s)| ModelStep::Grow(v, s)),
    ]
}

impl ModelStep {
    fn command(&self) -> Command {
        match *self {
            Self::Create(v, size, multi) => create(v, size, multi),
            Self::Delete(v) => Command::DeleteVolume { id: vol(v) },
            Self::Attach(v, h, d) => attach(v, h, DEVICES[d]),
            Self::Detach(v, h) => detach(v, h),
            Self::Grow(v, size) => {
                modify(v, VolumeChange { size_gib: Some(size), ..VolumeChange::default() })
            }
        }
    }
}

impl Oracle {
    /// Returns whether the step is allowed; executes it if `done`.
    fn step(&mut self, step: &ModelStep, done: bool) -> bool {
        let device_taken = |h: u8, d: usize| {
            self.volumes.values().any(|(_, _, attached)| attached.get(&h) == Some(&d))
        };
        match *step {
            ModelStep::Create(v, size, multi) => {
                let free = !self.volumes.contains_key(&v);
                if free && done {
                    self.volumes.insert(v, (size, multi, BTreeMap::new()));
                }
                free
            }
            ModelStep::Delete(v) => {
                let free = self.volumes.get(&v).is_some_and(|(_, _, attached)| attached.is_empty());
                if free && done {
                    self.volumes.remove(&v);
                }
                free
            }
            ModelStep::Attach(v, h, d) => {
                let taken = device_taken(h, d);
                let Some((_, multi, attached)) = self.volumes.get_mut(&v) else { return false };
                let fits = attached.is_empty() || (*multi && !attached.contains_key(&h));
                let allowed = h < 3 && fits && !taken;
                if allowed && done {
                    attached.insert(h, d);
                }
                allowed
            }
            ModelStep::Detach(v, h) => {
                let Some((_, _, attached)) = self.volumes.get_mut(&v) else { return false };
                let whom = match h {
                    Some(h) => attached.contains_key(&h).then_some(h),
                    None if attached.len() == 1 => attached.keys().next().copied(),
                    None => None,
                };
                if let Some(whom) = whom.filter(|_| done) {
                    attached.remove(&whom);
                }
                whom.is_some()
            }
            ModelStep::Grow(v, size) => {
                let Some((old, _, _)) = self.volumes.get_mut(&v) else { return false };
                let allowed = size >= *old;
                if allowed && done {
                    *old = size;
                }
                allowed
            }
        }
    }
}

/// Invariants after any step.
fn check_invariants(model: &Model) {
    let mut points = BTreeSet::new();
    for volume in model.volumes.values() {
        assert!(volume.is_settled(), "{volume:?}");
        let in_use = volume.state() == VolumeState::InUse;
        assert_eq!(in_use, !volume.attachments.is_empty());
        let most = if volume.spec.multi_attach { ATTACHMENTS_MAX } else { 1 };
        assert!(volume.attachments.len() <= most);
        for attachment in &volume.attachments {
            assert!(model.hosts.contains_key(&attachment.instance));
            assert!(points.insert((attachment.instance, attachment.device.clone())));
        }
    }
}

proptest! {
    #[test]
    fn the_model_agrees_with_the_oracle(
        steps in proptest::collection::vec((step(), proptest::bool::weighted(0.8)), 1..60)
    ) {
        let mut world = World::new(ModifyPolicy::Immediate);
        let mut oracle = Oracle::default();
        for (step, done) in steps {
            let before = world.model.clone();
            let result = world.run(&step.command(), done);
            prop_assert_eq!(result.is_ok(), oracle.step(&step, done), "{:?}: {:?}", &step, &result);
            if result.is_err() {
                prop_assert_eq!(&world.model, &before, "a refusal changed something");
            }
            check_invariants(&world.model);
            let sizes: Vec<_> = world.model.volumes.values().map(|v| v.spec.size_gib).collect();
            let expected: Vec<_> = oracle.volumes.values().map(|(size, _, _)| *size).collect();
            prop_assert_eq!(sizes, expected);
            for (number, (_, multi, attached)) in &oracle.volumes {
                let volume = &world.model.volumes[&vol(*number)];
                prop_assert_eq!(volume.spec.multi_attach, *multi);
                let pairs: BTreeMap<_, _> =
                    volume.attachments.iter().map(|a| (a.instance, a.device.clone())).collect();
                let expected: BTreeMap<_, _> =
                    attached.iter().map(|(h, d)| (host(*h), DEVICES[*d].to_owned())).collect();
                prop_assert_eq!(pairs, expected);
            }
        }
        prop_assert_eq!(world.loaded(), world.model);
    }

    /// A crash between decision and settlement: the loaded state is the decided one, unsettled.
    #[test]
    fn a_decision_survives_a_crash_and_settles_after_it(step in step(), done: bool) {
        let mut world = World::new(ModifyPolicy::Immediate);
        world.run(&create(0, 4, true), true).unwrap();
        world.run(&attach(0, 1, DEVICES[0]), true).unwrap();
        world.run(&create(1, 4, false), true).unwrap();
        let Ok(decision) = world.decide(&step.command()) else {
            return Ok(());
        };
        world.commit(decision.events.clone());
        let mut loaded = world.loaded();
        prop_assert_eq!(&loaded, &world.model);
        let id = decision.volume().unwrap();
        prop_assert!(!loaded.volumes[&id].is_settled());
        let settled = if done { Settled::Done } else { Settled::Failed("no") };
        for event in loaded.settle(&world.settings, id, settled, world.now) {
            loaded.apply(event);
        }
        check_invariants(&loaded);
    }
}

#[test]
fn model_survives_a_round_trip_through_the_database() {
    let mut world = World::new(ModifyPolicy::Aws);
    let tags = Tags::from([("Name".into(), "a'b\"\u{e9}".into()), ("k".into(), String::new())]);
    let token = Some(("t".into(), "f=1".into()));
    let command = Command::CreateVolume {
        id: vol(0),
        request: io2(10, true),
        begins: Begins::default(),
        zone: ZONE.into(),
        tags: tags.clone(),
        token,
    };
    world.run(&command, true).unwrap();
    world.run(&attach(0, 1, "sdf"), true).unwrap();
    let resources = vec![Tagged::Instance(host(1)), Tagged::Volume(vol(0))];
    world.run(&Command::CreateTags { resources, tags }, true).unwrap();
    let iops = VolumeChange { iops: Some(2_000), ..VolumeChange::default() };
    world.run(&modify(0, iops), true).unwrap();
    world.run(&create(1, 4, false), true).unwrap();
    world.run(&modify(1, iops), false).unwrap();
    world.commit(vec![world.model.fail(vol(1), "gone").unwrap()]);
    let volume = &world.model.volumes[&vol(1)];
    assert_eq!((volume.state(), volume.spec.iops), (VolumeState::Error, Some(1_000)));
    assert_eq!(world.loaded(), world.model);
}

#[test]
fn multi_attach_ends_at_sixteen() {
    let mut world = World::new(ModifyPolicy::Immediate);
    world.run(&create(0, 4, true), true).unwrap();
    for number in 3..=16 {
        let instance_type = "m5.large".into();
        let tags = Tags::new();
        let address = HostAddress::Remote([127, 0, 0, number].into());
        let command =
            Command::RegisterHost { id: host(number), zone: None, instance_type, address, tags };
        world.run(&command, true).unwrap();
    }
    for number in 0..16 {
        world.run(&attach(0, number, "sdf"), true).unwrap();
    }
    let refusal = world.run(&attach(0, 16, "sdf"), true).unwrap_err();
    assert_eq!(refusal, Refusal::AttachmentLimit(vol(0)));
    assert_eq!(world.run(&detach(0, None), true), Err(Refusal::InstanceMustBeNamed(vol(0))));
    world.run(&detach(0, Some(3)), true).unwrap();
    world.run(&attach(0, 16, "sdf"), true).unwrap();
}

/// Instances on one machine are distinguished by their volumes, or by their addresses.
#[test]
fn a_volume_is_attached_to_one_host_of_an_address() {
    let mut world = World::new(ModifyPolicy::Immediate);
    world.run(&create(0, 4, true), true).unwrap();
    world.run(&create(1, 4, true), true).unwrap();
    for (number, address) in
        [(3, HostAddress::Local), (4, HostAddress::Remote([127, 0, 0, 2].into()))]
    {
        let instance_type = "m5.large".into();
        let tags = Tags::new();
        let command =
            Command::RegisterHost { id: host(number), zone: None, instance_type, address, tags };
        world.run(&command, true).unwrap();
    }
    world.run(&attach(0, 0, "sdf"), true).unwrap();
    let shared = |instance, other| {
        Err(Refusal::AddressShared { volume: vol(0), instance: host(instance), other: host(other) })
    };
    assert_eq!(world.run(&attach(0, 3, "sdf"), true), shared(3, 0));
    world.run(&attach(0, 4, "sdf"), true).unwrap();
    world.run(&attach(1, 3, "sdf"), true).unwrap();
    world.run(&detach(0, Some(0)), true).unwrap();
    world.run(&attach(0, 3, "sdg"), true).unwrap();
    assert_eq!(world.run(&attach(0, 0, "sdf"), true), shared(0, 3));
    // An older database with such a state is accepted, and can be repaired.
    let mut volume = world.model.volumes[&vol(0)].clone();
    volume.attachments.push(Attachment { instance: host(0), ..volume.attachments[0].clone() });
    world.commit(vec![Event::Volume(volume)]);
    world.model = world.loaded();
    assert_eq!(world.model.volumes[&vol(0)].attachments.len(), 3);
    world.run(&detach(0, Some(3)), true).unwrap();
}

#[test]
fn a_volume_in_error_can_be_given_up() {
    let mut world = World::new(ModifyPolicy::Immediate);
    world.run(&create(0, 4, false), true).unwrap();
    world.run(&attach(0, 1, "sdf"), true).unwrap();
    world.commit(vec![world.model.fail(vol(0), "gone").unwrap()]);
    let refused = world.run(&attach(0, 1, "sdg"), true);
    assert_eq!(refused, Err(Refusal::NotAvailable(vol(0), VolumeState::Error)));
    world.run(&detach(0, Some(1)), false).unwrap();
    assert!(world.model.volumes[&vol(0)].attachments.is_empty());
    world.run(&Command::DeleteVolume { id: vol(0) }, true).unwrap();
    assert!(world.model.volumes.is_empty());
}

#[test]
fn client_tokens_make_a_request_once() {
    let mut world = World::new(ModifyPolicy::Immediate);
    let with = |number, fingerprint: &str| Command::CreateVolume {
        id: vol(number),
        request: io2(4, false),
        begins: Begins::default(),
        zone: ZONE.into(),
        tags: Tags::new(),
        token: Some(("t".into(), fingerprint.into())),
    };
    // A failed request may be repeated with the same token.
    world.run(&with(0, "a"), false).unwrap();
    assert_eq!((world.model.volumes.len(), world.model.tokens.len()), (0, 0));
    world.run(&with(1, "a"), true).unwrap();
    let again = world.decide(&with(2, "a")).unwrap();
    assert_eq!(again, Decision { calls: Calls::Volume(vol(1)), ..Decision::default() });
    assert_eq!(world.run(&with(2, "b"), true), Err(Refusal::TokenReused("t".into())));
    world.run(&Command::DeleteVolume { id: vol(1) }, true).unwrap();
    assert_eq!(world.run(&with(2, "a"), true), Err(Refusal::VolumesNotFound(vec![vol(1)])));
    world.now = world.now.plus_ms(TOKEN_LIFETIME_MS + 1);
    world.run(&with(2, "b"), true).unwrap();
    assert_eq!(world.model.tokens["t"].volume, vol(2));
}

#[test]
fn modifications_are_rationed_as_at_the_date_of_the_rules() {
    let change = |iops| VolumeChange { iops: Some(iops), ..VolumeChange::default() };
    let hour = 3_600_000;
    let at = |date: &str| Rules::as_of(date.parse().unwrap()).unwrap();

    let mut world = World::new(ModifyPolicy::Aws);
    world.settings.rules = at("2026-01-15");
    world.run(&create(0, 4, false), true).unwrap();
    for iops in 1_001..=1_004 {
        world.run(&modify(0, change(iops)), true).unwrap();
        let unfinished = world.run(&modify(0, change(1)), true);
        assert!(matches!(unfinished, Err(Refusal::Spec(_))), "{unfinished:?}");
        let unfinished = world.run(&modify(0, change(999)), true);
        assert_eq!(unfinished, Err(Refusal::ModificationUnfinished(vol(0), "optimizing")));
        world.now = world.now.plus_ms(hour);
    }
    let first = world.model.volumes[&vol(0)].modification_starts[0];
    let fifth = world.run(&modify(0, change(1_005)), true);
    let next = first.plus_ms(24 * hour);
    let refusal = Refusal::ModificationRate { modifications_max: 4, hours: 24, next };
    assert_eq!(fifth, Err(refusal));
    world.now = next;
    world.run(&modify(0, change(1_005)), true).unwrap();

    let mut world = World::new(ModifyPolicy::Aws);
    world.settings.rules = at("2025-09-26");
    world.run(&create(0, 4, false), true).unwrap();
    // A failed modification is not counted.
    world.run(&modify(0, change(2_000)), false).unwrap();
    world.run(&modify(0, change(2_000)), true).unwrap();
    world.now = world.now.plus_ms(5 * hour);
    let refused = world.run(&modify(0, change(3_000)), true);
    assert!(matches!(
        refused,
        Err(Refusal::ModificationRate { modifications_max: 1, hours: 6, .. })
    ));
    world.now = world.now.plus_ms(hour);
    world.run(&modify(0, change(3_000)), true).unwrap();

    let mut world = World::new(ModifyPolicy::Immediate);
    world.run(&create(0, 4, false), true).unwrap();
    for iops in 1_000..1_100 {
        world.run(&modify(0, change(iops)), true).unwrap();
        let (state, progress, ended) =
            world.model.volumes[&vol(0)].modification.as_ref().unwrap().progress(world.now);
        assert_eq!((state, progress, ended), ("completed", 100, Some(world.now)));
    }
    assert!(world.model.volumes[&vol(0)].modification_starts.len() <= modify::STARTS_KEPT);
}

#[test]
fn optimizing_takes_six_hours_a_tib() {
    let mut world = World::new(ModifyPolicy::Aws);
    world.run(&create(0, 1_024, false), true).unwrap();
    let started = world.now.plus_ms(1);
    world
        .run(&modify(0, VolumeChange { iops: Some(2_000), ..VolumeChange::default() }), true)
        .unwrap();
    let modification = world.model.volumes[&vol(0)].modification.clone().unwrap();
    let six_hours = 1_024 * (6 * 3_600_000 / 1_024);
    for (ms, state, percent) in [
        (0, "optimizing", 0),
        (six_hours / 2, "optimizing", 50),
        (six_hours - 1, "optimizing", 99),
        (six_hours, "completed", 100),
    ] {
        let (found, progress, _) = modification.progress(started.plus_ms(ms));
        assert_eq!((found, progress), (state, percent), "{ms}");
    }
}

#[test]
fn hosts_with_volumes_and_the_local_machine_stay() {
    let mut world = World::new(ModifyPolicy::Immediate);
    world.run(&create(0, 4, false), true).unwrap();
    world.run(&attach(0, 1, "sdf"), true).unwrap();
    let gone = |number| Command::DeregisterHost { id: host(number) };
    assert_eq!(world.run(&gone(0), true), Err(Refusal::HostIsLocal(host(0))));
    assert_eq!(world.run(&gone(1), true), Err(Refusal::HostBusy(host(1), vol(0))));
    world.run(&gone(2), true).unwrap();
    assert_eq!(world.run(&gone(2), true), Err(Refusal::InstancesNotFound(vec![host(2)])));
    let tags = Tags::new();
    let address = HostAddress::Local;
    let instance_type = "m5.huge".into();
    let unknown = Command::RegisterHost { id: host(9), zone: None, instance_type, address, tags };
    assert_eq!(world.run(&unknown, true), Err(Refusal::UnknownInstanceType("m5.huge".into())));
}

#[test]
fn tags_are_counted_and_removed_by_key_and_value() {
    let mut world = World::new(ModifyPolicy::Immediate);
    world.run(&create(0, 4, false), true).unwrap();
    let resources = vec![Tagged::Volume(vol(0))];
    let many = |count: usize| (0..count).map(|n| (format!("k{n}"), "v".into())).collect::<Tags>();
    let set = |tags| Command::CreateTags { resources: resources.clone(), tags };
    let remove = |tags| Command::DeleteTags { resources: resources.clone(), tags };
    assert!(matches!(world.run(&set(many(51)), true), Err(Refusal::TooManyTags(_))));
    world.run(&set(many(50)), true).unwrap();
    world
        .run(&remove(vec![("k0".into(), Some("other".into())), ("k1".into(), None)]), true)
        .unwrap();
    assert_eq!(world.model.volumes[&vol(0)].tags.len(), 49);
    world.run(&remove(vec![("k0".into(), Some("v".into()))]), true).unwrap();
    assert_eq!(world.model.volumes[&vol(0)].tags.len(), 48);
    world.run(&remove(vec![]), true).unwrap();
    assert!(world.model.volumes[&vol(0)].tags.is_empty());
}

#[test]
fn quotas_limit_creation_and_growth_only() {
    let mut world = World::new(ModifyPolicy::Immediate);
    let create = |number, volume_type, size_gib, iops| {
        let multi_attach = false;
        let request =
            VolumeRequest { volume_type, size_gib, iops, throughput_mibps: None, multi_attach };
        let zone = "local-1a".into();
        let tags = Tags::new();
        let begins = Begins::default();
        Command::CreateVolume { id: vol(number), request, begins, zone, tags, token: None }
    };
    let gp2 = VolumeType::Gp2;
    let io2 = VolumeType::Io2;
    for number in 0..3 {
        world.run(&create(number, gp2, 16_384, None), true).unwrap();
    }
    world.settings.quotas = Some(&evenkeel_core::quota::EC2);
    let quota = |gib, asked| Refusal::StorageQuota { volume_type: gp2, gib, asked, tib: 50 };
    assert_eq!(world.run(&create(3, gp2, 2_049, None), true), Err(quota(49_152, 2_049)));
    world.run(&create(3, gp2, 2_048, None), true).unwrap();
    let grow =
        |size_gib| modify(3, VolumeChange { size_gib: Some(size_gib), ..VolumeChange::default() });
    assert_eq!(world.run(&grow(2_049), true), Err(quota(49_152, 2_049)));
    // Volumes that exceeded the quota before can still be changed, attached and deleted.
    world.settings.quotas = None;
    world.run(&grow(4_096), true).unwrap();
    world.settings.quotas = Some(&evenkeel_core::quota::EC2);
    world.run(&attach(3, 1, "/dev/sdf"), true).unwrap();
    world.run(&create(4, io2, 1_000, Some(64_000)), true).unwrap();
    let refused = world.run(&create(5, io2, 1_000, Some(36_001)), true).unwrap_err();
    let present = 64_000;
    let asked = 36_001;
    let most = 100_000;
    assert_eq!(refused, Refusal::IopsQuota { volume_type: io2, present, asked, most });
    world.run(&create(5, io2, 1_000, Some(36_000)), true).unwrap();
}

#[test]
fn terminated_host_deletes_marked_unshared_volumes_and_detaches_others() {
    let release = |volume: u8, instance: u8| Command::DeleteWithHost {
        id: vol(volume),
        host: host(instance),
    };
    let mark = |instance: u8, device: &str, is_on: bool| Command::SetDeleteOnTermination {
        instance: host(instance),
        devices: vec![(device.into(), is_on)],
    };
    let mut world = World::new(ModifyPolicy::Immediate);
    for volume in 0..4 {
        world.run(&create(volume, 100, volume == 3), true).unwrap();
    }
    let devices = ["/dev/sdf", "/dev/sdg", "/dev/sdh", "/dev/sdi"];
    for (volume, device) in (0..4).zip(devices) {
        world.run(&attach(volume, 1, device), true).unwrap();
        world.run(&mark(1, device, true), true).unwrap();
    }
    world.run(&attach(3, 2, "/dev/sdf"), true).unwrap();
    // Detached since: it has no host, and stays.
    world.run(&detach(0, Some(1)), true).unwrap();
    let refused = world.run(&release(0, 1), true);
    assert_eq!(refused, Err(Refusal::NotAttachedTo(vol(0), host(1))));
    // No longer marked: it is detached. Marked: it is deleted, unless another host has it.
    world.run(&mark(1, "/dev/sdg", false), true).unwrap();
    for volume in 1..4 {
        world.run(&release(volume, 1), true).unwrap();
    }
    let hosts = |world: &World, volume| {
        let found = world.model.volumes.get(&vol(volume));
        found.map(|it| {
            it.attachments.iter().map(|attachment| attachment.instance).collect::<Vec<_>>()
        })
    };
    assert_eq!(hosts(&world, 1), Some(vec![]));
    assert_eq!(hosts(&world, 2), None);
    assert_eq!(hosts(&world, 3), Some(vec![host(2)]));
}
