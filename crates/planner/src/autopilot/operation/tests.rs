//! Tests of the steps of operations, on a model that has faults by a seed.

mod model;

use evenkeel_core::random::Random;
use evenkeel_core::units::GIB;
use proptest::prelude::*;

use super::{Call, Open, Operation, Step, Verb, next_step};
use crate::autopilot::observation::{Profile, Running, RunningKind, VolumeState};
use crate::autopilot::policy::{Keep, Policy};
use crate::fleet;
use model::{Faults, GRACE_MS, TICK_MS, World, gp3};

/// The most ticks of an operation: a day and its grace time.
const TICKS_MAX: u32 = 20_000;
/// Refusals of one step in a row after which an operation goes back, as in the controller.
const REFUSALS_MAX: u32 = 2;

const NO_FAULTS: Faults =
    Faults { lost_ppm: 0, cuts_ppm: 0, stuck_ppm: 0, late_ppm: 0, others_ppm: 0 };

fn policy() -> Policy {
    let mut policy = Policy::usual("test", fleet::Policy::usual());
    policy.space.reserve_bytes_min = GIB;
    policy.space.keep = Keep::Likely;
    policy
}

fn open(world: &World, id: &str, operation: Operation) -> Open {
    Open {
        id: id.to_owned(),
        operation,
        since_ms: world.now_ms,
        cancelled: false,
        is_emergency: false,
        is_scheduled: false,
        exceeded_s_per_day_max: None,
    }
}

/// The end of an operation, with the steps that were executed.
struct Ended {
    last: Step,
    steps: Vec<Step>,
    cancelled: bool,
}

/// Executes an operation to its end. `cancel` is the chance of a cancellation at each tick.
fn run(world: &mut World, mut open: Open, cancel: &mut dyn FnMut() -> bool) -> Ended {
    let policy = policy();
    let mut steps = Vec::new();
    let mut refused: Option<(Step, u32)> = None;
    for _ in 0..TICKS_MAX {
        open.cancelled |= cancel();
        let now = world.observe();
        let step = next_step(&policy, &open, &now);
        match &step {
            Step::Done | Step::Failed(_) => {
                world.check();
                return Ended { last: step, steps, cancelled: open.cancelled };
            }
            Step::Wait(_) => {}
            Step::Call(_) | Step::Verb(_) => {
                let is_refused = !world.execute(&step, &now);
                let before = refused.take().filter(|(kept, _)| *kept == step);
                let count = before.map_or(0, |(_, count)| count) + 1;
                if is_refused && count >= REFUSALS_MAX * 4 {
                    open.cancelled = true;
                } else if is_refused {
                    refused = Some((step.clone(), count));
                }
                steps.push(step);
            }
        }
        world.check();
        world.pass(TICK_MS);
    }
    panic!("{open:?} did not end; the last steps: {:?}", &steps[steps.len().saturating_sub(5)..]);
}

fn never() -> bool {
    false
}

fn calls(ended: &Ended) -> Vec<String> {
    let name = |step: &Step| match step {
        Step::Call(call) => format!("{call:?}"),
        Step::Verb(verb) => format!("{verb:?}"),
        other => format!("{other:?}"),
    };
    let short = |text: String| text.split([' ', '{']).next().unwrap_or_default().to_owned();
    ended.steps.iter().map(name).map(short).collect()
}

/// Checks that nothing is left of an operation that a later one would have to know.
fn check_clean(world: &World, id: &str, ended: &Ended) {
    assert!(world.is_idle(), "{:?} left a move running", ended.last);
    for volume in world.volumes().filter(|volume| volume.made_by.as_deref() == Some(id)) {
        let is_marked = volume.retired_ms.is_some() && volume.state == VolumeState::Available;
        assert!(
            world.lists(&volume.id) || is_marked,
            "{:?} left {volume:?} after {:?}",
            ended.last,
            calls(ended)
        );
    }
    for device in &world.devices {
        assert_eq!(device.size_bytes, device.device_bytes, "{:?} left a cut", ended.last);
    }
}

#[test]
fn modification_grows_the_file_system() {
    let mut world = World::new(1, NO_FAULTS, &[(10, 4 * GIB)]);
    let modify = Operation::Modify { volume: "vol-0".to_owned(), from: gp3(10), to: gp3(20) };
    let open = open(&world, "op", modify);
    let ended = run(&mut world, open, &mut never);
    assert_eq!(ended.last, Step::Done);
    assert_eq!(calls(&ended), ["Modify", "Rescan", "Grow"]);
    assert_eq!(world.devices[0].size_bytes, 20 * GIB);
}

#[test]
fn modification_to_the_present_size_grows_the_file_system_into_a_volume_that_grew_before() {
    let mut world = World::new(1, NO_FAULTS, &[(20, 4 * GIB)]);
    world.devices[0].device_bytes = 10 * GIB;
    world.devices[0].size_bytes = 10 * GIB;
    let modify = Operation::Modify { volume: "vol-0".to_owned(), from: gp3(20), to: gp3(20) };
    let open = open(&world, "op", modify);
    let ended = run(&mut world, open, &mut never);
    assert_eq!((ended.last.clone(), calls(&ended).join(" ")), (Step::Done, "Rescan Grow".into()));
    assert_eq!(world.devices[0].size_bytes, 20 * GIB);
}

#[test]
fn modification_to_a_larger_size_is_done_without_growth_if_devices_keep_theirs() {
    let mut world = World::new(1, NO_FAULTS, &[(20, 4 * GIB)]);
    world.devices[0].device_bytes = 10 * GIB;
    world.devices[0].size_bytes = 10 * GIB;
    let modify = Operation::Modify { volume: "vol-0".to_owned(), from: gp3(10), to: gp3(20) };
    let open = open(&world, "op", modify);
    let mut policy = policy();
    let now = world.observe();
    let rescan = Verb::Rescan { volume: "vol-0".to_owned() };
    assert_eq!(next_step(&policy, &open, &now), Step::Verb(rescan));
    policy.space.grows_volumes = false;
    assert_eq!(next_step(&policy, &open, &now), Step::Done);
}

#[test]
fn modification_of_limits_needs_no_growth() {
    let mut world = World::new(1, NO_FAULTS, &[(10, 4 * GIB)]);
    let mut to = gp3(10);
    to.iops = Some(4_000);
    let modify = Operation::Modify { volume: "vol-0".to_owned(), from: gp3(10), to };
    let open = open(&world, "op", modify);
    let ended = run(&mut world, open, &mut never);
    assert_eq!((ended.last.clone(), calls(&ended)), (Step::Done, vec!["Modify".to_owned()]));
}

#[test]
fn modification_whose_volume_another_program_changed_fails() {
    let mut world = World::new(1, NO_FAULTS, &[(12, 4 * GIB)]);
    let modify = Operation::Modify { volume: "vol-0".to_owned(), from: gp3(10), to: gp3(20) };
    let open = open(&world, "op", modify);
    let ended = run(&mut world, open, &mut never);
    let Step::Failed(reason) = &ended.last else { panic!("{:?}", ended.last) };
    assert!(reason.contains("another program modified it"), "{reason}");
    assert!(ended.steps.is_empty());
}

#[test]
fn addition_creates_attaches_and_adds() {
    let mut world = World::new(1, NO_FAULTS, &[(10, 4 * GIB)]);
    let open = open(&world, "op", Operation::Add { spec: gp3(5) });
    let ended = run(&mut world, open, &mut never);
    assert_eq!(ended.last, Step::Done);
    assert_eq!(calls(&ended), ["Create", "Attach", "Add"]);
    assert_eq!(world.devices.len(), 2);
}

#[test]
fn addition_whose_attachment_is_stuck_marks_and_detaches_the_volume() {
    let faults = Faults { stuck_ppm: 1_000_000, ..NO_FAULTS };
    let mut world = World::new(1, faults, &[(10, 4 * GIB)]);
    let open = open(&world, "op", Operation::Add { spec: gp3(5) });
    let ended = run(&mut world, open, &mut never);
    let Step::Failed(reason) = &ended.last else { panic!("{:?}", ended.last) };
    assert!(reason.contains("marked for deletion"), "{reason}");
    assert_eq!(calls(&ended), ["Create", "Attach", "Retire", "Detach"]);
    check_clean(&world, "op", &ended);
}

#[test]
fn addition_without_an_attachment_creates_nothing() {
    let mut world = World::new(1, NO_FAULTS, &[(10, 4 * GIB); 8]);
    let open = open(&world, "op", Operation::Add { spec: gp3(5) });
    let ended = run(&mut world, open, &mut never);
    assert!(matches!(ended.last, Step::Failed(_)));
    assert!(ended.steps.is_empty());
}

#[test]
fn removal_moves_marks_and_detaches() {
    let mut world = World::new(1, NO_FAULTS, &[(10, 2 * GIB), (10, 3 * GIB)]);
    let open = open(&world, "op", Operation::Remove { volume: "vol-1".to_owned() });
    let ended = run(&mut world, open, &mut never);
    assert_eq!(ended.last, Step::Done);
    assert_eq!(calls(&ended), ["Remove", "Retire", "Detach"]);
    assert_eq!(world.devices.len(), 1);
}

#[test]
fn removal_compacts_first_if_chunks_are_partly_used() {
    let mut world = World::new(1, NO_FAULTS, &[(16, 12 * GIB), (10, 4 * GIB)]);
    let open = open(&world, "op", Operation::Remove { volume: "vol-1".to_owned() });
    let ended = run(&mut world, open, &mut never);
    assert_eq!(ended.last, Step::Done, "{:?}", calls(&ended));
    let calls = calls(&ended);
    assert_eq!(calls.first().map(String::as_str), Some("Compact"), "{calls:?}");
    let after = calls.iter().skip_while(|call| *call == "Compact");
    assert_eq!(after.collect::<Vec<_>>(), ["Remove", "Retire", "Detach"]);
    assert_eq!(world.devices.len(), 1);
}

#[test]
fn removal_without_room_is_refused_before_it_begins() {
    for (other, metadata, words) in [
        (6, Profile::Dup, "bytes that are not allocated"),
        (20, Profile::Raid1, "the profile of the metadata"),
    ] {
        let mut world = World::new(1, NO_FAULTS, &[(other, 2 * GIB), (10, 3 * GIB)]);
        world.metadata = metadata;
        let open = open(&world, "op", Operation::Remove { volume: "vol-1".to_owned() });
        let ended = run(&mut world, open, &mut never);
        let Step::Failed(reason) = &ended.last else { panic!("{:?}", ended.last) };
        assert!(reason.contains(words), "{reason}");
        assert!(ended.steps.is_empty());
    }
}

#[test]
fn last_device_is_not_removed() {
    let mut world = World::new(1, NO_FAULTS, &[(10, 2 * GIB)]);
    let open = open(&world, "op", Operation::Remove { volume: "vol-0".to_owned() });
    let ended = run(&mut world, open, &mut never);
    let Step::Failed(reason) = &ended.last else { panic!("{:?}", ended.last) };
    assert!(reason.contains("it is the last device"), "{reason}");
}

#[test]
fn cancelled_removal_stops_and_keeps_its_device() {
    let mut world = World::new(1, NO_FAULTS, &[(20, 2 * GIB), (20, 12 * GIB)]);
    let open = open(&world, "op", Operation::Remove { volume: "vol-1".to_owned() });
    let mut tick = 0;
    let ended = run(&mut world, open, &mut || {
        tick += 1;
        tick > 5
    });
    assert_eq!(ended.last, Step::Done);
    assert_eq!(calls(&ended), ["Remove", "Cancel"]);
    assert_eq!(world.devices.len(), 2);
    check_clean(&world, "op", &ended);
}

#[test]
fn replacement_adds_the_new_volume_and_removes_the_old_one() {
    let only: &[(u32, u64)] = &[(20, 14 * GIB)];
    for (sizes, gib) in [(only, 12), (only, 30), (&[(20, 14 * GIB), (10, 2 * GIB)], 12)] {
        let mut world = World::new(1, NO_FAULTS, sizes);
        let replace = Operation::Replace { volume: "vol-0".to_owned(), with: gp3(gib) };
        let open = open(&world, "op", replace);
        let ended = run(&mut world, open, &mut never);
        assert_eq!(ended.last, Step::Done);
        assert_eq!(calls(&ended), ["Create", "Attach", "Add", "Remove", "Retire", "Detach"]);
        let size = |index: usize| world.devices[index].size_bytes / GIB;
        let others: Vec<u64> = sizes[1..].iter().map(|(gib, _)| u64::from(*gib)).collect();
        let sizes: Vec<u64> = (0..world.devices.len()).map(size).collect();
        assert_eq!(sizes, [others, vec![u64::from(gib)]].concat());
        assert!(!world.lists("vol-0"));
    }
}

/// The new volume is smaller than the data of the old one: the other one takes a part of it.
#[test]
fn replacement_by_a_volume_without_room_for_all_compacts_and_uses_the_others() {
    let mut world = World::new(1, NO_FAULTS, &[(20, 14 * GIB), (14, 8 * GIB)]);
    let replace = Operation::Replace { volume: "vol-0".to_owned(), with: gp3(8) };
    let open = open(&world, "op", replace);
    let ended = run(&mut world, open, &mut never);
    assert_eq!(ended.last, Step::Done, "{:?}", calls(&ended));
    let calls = calls(&ended);
    assert_eq!(calls[..4], ["Create", "Attach", "Add", "Compact"], "{calls:?}");
    let after = calls[3..].iter().skip_while(|call| *call == "Compact");
    assert_eq!(after.collect::<Vec<_>>(), ["Remove", "Retire", "Detach"]);
    assert!(!world.lists("vol-0") && world.lists("vol-2"));
}

#[test]
fn replacement_without_room_makes_no_volume() {
    let only: &[(u32, u64)] = &[(20, 18 * GIB)];
    for (sizes, gib, words) in [
        (only, 10, "has no room for the data of /dev/vol-0"),
        (&[(20, 18 * GIB), (10, 9 * GIB)], 4, "bytes that are not allocated"),
    ] {
        let mut world = World::new(1, NO_FAULTS, sizes);
        let replace = Operation::Replace { volume: "vol-0".to_owned(), with: gp3(gib) };
        let open = open(&world, "op", replace);
        let ended = run(&mut world, open, &mut never);
        let Step::Failed(reason) = &ended.last else { panic!("{:?}", ended.last) };
        assert!(reason.contains(words), "{reason}");
        assert!(ended.steps.is_empty());
    }
}

#[test]
fn cancelled_replacement_gives_everything_back() {
    for (sizes, cancelled_at) in (0..50).flat_map(|tick| {
        let only: &[(u32, u64)] = &[(20, 14 * GIB)];
        [(only, tick), (&[(20, 14 * GIB), (10, 2 * GIB)], tick)]
    }) {
        let mut world = World::new(1, NO_FAULTS, sizes);
        let replace = Operation::Replace { volume: "vol-0".to_owned(), with: gp3(12) };
        let open = open(&world, "op", replace);
        let mut tick = 0;
        let ended = run(&mut world, open, &mut || {
            tick += 1;
            tick > cancelled_at
        });
        assert_eq!(ended.last, Step::Done);
        check_clean(&world, "op", &ended);
        assert_eq!(world.devices.len(), sizes.len(), "{cancelled_at}");
        let size = if world.lists("vol-0") { 20 } else { 12 };
        let all: u64 = world.devices.iter().map(|device| device.size_bytes).sum();
        let other: u64 = sizes[1..].iter().map(|(gib, _)| u64::from(*gib)).sum();
        assert_eq!(all, (size + other) * GIB, "{cancelled_at}");
    }
}

/// The volumes can write 29 GiB until there is more room, so a cancelled move takes none away.
#[test]
fn cancelled_replacement_keeps_both_if_room_is_needed() {
    let mut policy = policy();
    policy.space.keep = Keep::Hard;
    let mut world = World::new(1, NO_FAULTS, &[(20, 14 * GIB)]);
    let replace = Operation::Replace { volume: "vol-0".to_owned(), with: gp3(12) };
    let mut open = open(&world, "op", replace);
    let mut now = world.observe();
    while !matches!(now.file_system.running, Some(Running { kind: RunningKind::Remove, .. })) {
        let step = next_step(&policy, &open, &now);
        if matches!(step, Step::Call(_) | Step::Verb(_)) {
            assert!(world.execute(&step, &now));
        }
        world.pass(TICK_MS);
        now = world.observe();
    }
    open.cancelled = true;
    assert_eq!(next_step(&policy, &open, &now), Step::Verb(Verb::Cancel));
    assert!(world.execute(&Step::Verb(Verb::Cancel), &now));
    let step = next_step(&policy, &open, &world.observe());
    let Step::Failed(reason) = &step else { panic!("{step:?}") };
    assert!(reason.starts_with("it was cancelled; vol-1 stays a device: without it "), "{reason}");
    assert_eq!(world.devices.len(), 2);
    // A removal of the new device that has begun is cancelled, too.
    let back = Verb::Remove { volume: "vol-1".to_owned(), bytes_per_s: 1 };
    let now = world.observe();
    assert!(world.execute(&Step::Verb(back), &now));
    assert_eq!(next_step(&policy, &open, &world.observe()), Step::Verb(Verb::Cancel));
}

#[test]
fn replacement_continues_after_power_cuts() {
    for seed in 11..15 {
        let faults = Faults { cuts_ppm: 100_000, ..NO_FAULTS };
        let mut world = World::new(seed, faults, &[(20, 9 * GIB), (10, 2 * GIB)]);
        let replace = Operation::Replace { volume: "vol-0".to_owned(), with: gp3(12) };
        let open = open(&world, "op", replace);
        let ended = run(&mut world, open, &mut never);
        assert_eq!(ended.last, Step::Done);
        assert!(world.lists("vol-2") && !world.lists("vol-0"));
    }
}

#[test]
fn deletion_waits_for_its_grace_and_probes() {
    let mut world = World::new(1, NO_FAULTS, &[(10, 2 * GIB), (10, 3 * GIB)]);
    let remove = open(&world, "op", Operation::Remove { volume: "vol-1".to_owned() });
    run(&mut world, remove, &mut never);
    let delete = open(&world, "op2", Operation::Delete { volume: "vol-1".to_owned() });
    let retired_ms = world.volume("vol-1").unwrap().retired_ms.unwrap();
    let ended = run(&mut world, delete, &mut never);
    assert_eq!(ended.last, Step::Done);
    assert_eq!(calls(&ended), ["Attach", "Detach", "Delete"]);
    assert!(world.now_ms - retired_ms >= GRACE_MS);
    assert_eq!(world.deleted, ["vol-1"]);
}

#[test]
fn deletion_of_a_volume_in_use_fails() {
    let mut world = World::new(1, NO_FAULTS, &[(10, 2 * GIB)]);
    let delete = open(&world, "op", Operation::Delete { volume: "vol-0".to_owned() });
    let ended = run(&mut world, delete, &mut never);
    assert!(matches!(&ended.last, Step::Failed(reason) if reason.contains("is a device")));
}

#[test]
fn step_of_a_stale_or_degraded_observation_is_to_wait() {
    let mut world = World::new(1, NO_FAULTS, &[(10, 2 * GIB), (10, GIB)]);
    let open = open(&world, "op", Operation::Remove { volume: "vol-1".to_owned() });
    let mut now = world.observe();
    assert!(matches!(next_step(&policy(), &open, &now), Step::Verb(Verb::Remove { .. })));
    now.ages.volumes_ms = Some(181_000);
    let Step::Wait(reason) = next_step(&policy(), &open, &now) else { panic!("it is stale") };
    assert!(reason.contains("181 s ago, and 180 s is the maximum"), "{reason}");
    now.ages.volumes_ms = None;
    assert!(matches!(next_step(&policy(), &open, &now), Step::Wait(_)));
    now.ages.volumes_ms = Some(0);
    now.file_system.conditions.degraded = true;
    assert!(matches!(next_step(&policy(), &open, &now), Step::Wait(_)));
}

#[test]
fn volume_with_a_superblock_is_never_detached() {
    let mut world = World::new(1, NO_FAULTS, &[(10, 2 * GIB), (10, GIB)]);
    let open = open(&world, "op", Operation::Remove { volume: "vol-1".to_owned() });
    let mut now = world.observe();
    now.file_system.devices.pop();
    now.volumes[1].has_superblock = Some(true);
    let Step::Wait(reason) = next_step(&policy(), &open, &now) else { panic!("it must wait") };
    assert!(reason.contains("wipefs"), "{reason}");
    now.volumes[1].has_superblock = None;
    now.volumes[1].retired_ms = Some(1);
    assert!(matches!(next_step(&policy(), &open, &now), Step::Wait(_)));
    now.volumes[1].has_superblock = Some(false);
    let detach = Call::Detach { volume: "vol-1".to_owned() };
    assert_eq!(next_step(&policy(), &open, &now), Step::Call(detach));
}

/// Returns an operation at random for a file system.
fn any_operation(world: &World, random: &mut Random) -> Operation {
    let devices: Vec<(String, u32)> = world
        .devices
        .iter()
        .map(|device| {
            let gib = u32::try_from(device.device_bytes / GIB).unwrap();
            (device.volume.clone().unwrap(), gib)
        })
        .collect();
    let (volume, gib) =
        devices[usize::try_from(random.below(devices.len() as u64)).unwrap()].clone();
    let less = gib - u32::try_from(random.below(u64::from(gib) / 2 + 1)).unwrap();
    let retired = world.volumes().find(|volume| volume.retired_ms.is_some());
    match random.below(6) {
        0 => Operation::Modify { volume, from: gp3(gib), to: gp3(gib + 5) },
        1 => Operation::Add { spec: gp3(gib) },
        2 => Operation::Remove { volume },
        3 | 4 => Operation::Replace { volume, with: gp3(less.max(4)) },
        _ => match retired {
            Some(retired) => Operation::Delete { volume: retired.id.clone() },
            None => Operation::Add { spec: gp3(gib) },
        },
    }
}

/// Executes a sequence of operations, each to its end.
fn sequence(seed: u64, faults: Faults, cancel_ppm: u32) {
    let mut random = Random::new(seed, 3);
    let count = 1 + usize::try_from(random.below(3)).unwrap();
    let sizes: Vec<(u32, u64)> = (0..count)
        .map(|_| {
            let gib = 8 + u32::try_from(random.below(30)).unwrap();
            (gib, random.below(u64::from(gib)) * GIB * 3 / 4)
        })
        .collect();
    let mut world = World::new(seed, faults, &sizes);
    for number in 0..6 {
        let id = format!("op-{number}");
        let operation = any_operation(&world, &mut random);
        let open = open(&world, &id, operation.clone());
        let mut cancel = || random.chance_ppm(cancel_ppm);
        let ended = run(&mut world, open, &mut cancel);
        world.pass(TICK_MS);
        clear_left(&mut world, &id);
        check_clean(&world, &id, &ended);
        let is_done = ended.last == Step::Done && !ended.cancelled;
        if is_done {
            check_goal(&world, &operation, &id);
        }
    }
}

/// Clears a volume that its operation did not see before it ended, as the controller does: by a
/// removal that is cancelled.
fn clear_left(world: &mut World, id: &str) {
    let left = world.volumes().find(|volume| {
        volume.made_by.as_deref() == Some(id)
            && volume.retired_ms.is_none()
            && !world.lists(&volume.id)
    });
    let Some(volume) = left.map(|volume| volume.id.clone()) else { return };
    let mut removal = open(world, "left", Operation::Remove { volume });
    removal.cancelled = true;
    run(world, removal, &mut never);
}

fn check_goal(world: &World, operation: &Operation, id: &str) {
    match operation {
        Operation::Modify { volume, to, .. } => {
            let device = world.devices.iter().find(|device| device.volume.as_ref() == Some(volume));
            assert_eq!(device.map(|device| device.size_bytes), Some(u64::from(to.size_gib) * GIB));
        }
        Operation::Add { .. } => {
            let made = world.volumes().find(|volume| volume.made_by.as_deref() == Some(id));
            assert!(world.lists(&made.expect("no volume was made").id));
        }
        Operation::Remove { volume } => assert!(!world.lists(volume)),
        Operation::Replace { volume, .. } => {
            let made = world.volumes().find(|volume| volume.made_by.as_deref() == Some(id));
            assert!(!world.lists(volume) && world.lists(&made.expect("no volume was made").id));
        }
        Operation::Delete { volume } => assert!(world.volume(volume).is_none()),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, ..ProptestConfig::default() })]

    /// Every operation reaches its goal, or leaves nothing behind. The model panics if a step would
    /// lose data, deletes too early, or runs beside an exclusive operation.
    #[test]
    fn operations_end_whatever_happens(
        seed: u64,
        lost_ppm in 0_u32..300_000,
        cuts_ppm in 0_u32..60_000,
        stuck_ppm in 0_u32..400_000,
        late_ppm in 0_u32..300_000,
        others_ppm in 0_u32..50_000,
        cancel_ppm in 0_u32..30_000,
    ) {
        let faults = Faults { lost_ppm, cuts_ppm, stuck_ppm, late_ppm, others_ppm };
        sequence(seed, faults, cancel_ppm);
    }

    #[test]
    fn operations_end_without_faults(seed: u64) {
        sequence(seed, NO_FAULTS, 0);
    }
}
