//! Growing and shrinking.

use super::*;

/// At 125 MiB/s and 240 s, 30,000 MiB are kept, and 2 % of 200 GiB.
#[test]
fn decide_keeps_room_for_all_that_the_volumes_can_write() {
    let wanted = 30_000 * MIB + 4 * GIB;
    let mut now = btrfs(&[gp3(200)], 100);
    now.file_system.free_bytes = wanted;
    let decision = first(&policy(), &now);
    assert_eq!(decision.forecast.wanted_free_bytes, wanted);
    assert_eq!(decision.forecast.full_in_s_min, Some(wanted / (125 * MIB)));
    assert_eq!(decision.forecast.full_in_s_likely, None);
    assert!(decision.intents.is_empty(), "{decision:#?}");
    now.file_system.free_bytes = wanted - 1;
    let decision = first(&policy(), &now);
    let intent = only(&decision);
    assert!(!intent.is_emergency, "only the reserve is touched");
    assert_eq!(resized(&decision), ("vol-1".to_owned(), 200, 220), "10 %");
    assert!(intent.reason.contains("29.2 GiB that the volumes can write in 240 s"), "{intent:#?}");
    // Below the need itself it is an emergency.
    now.file_system.free_bytes = 30_000 * MIB - 1;
    assert!(only(&first(&policy(), &now)).is_emergency);
}

#[test]
fn decide_keeps_room_for_dirty_pages_jumps_and_the_age_of_the_reading() {
    let mut now = btrfs(&[gp3(200)], 100);
    now.file_system.dirty_limit_bytes = 3 * GIB;
    now.file_system.largest_jump_bytes = 5 * GIB;
    now.ages.file_system_ms = Some(9_001);
    let wanted = first(&policy(), &now).forecast.wanted_free_bytes;
    assert_eq!(wanted, 250 * 125 * MIB + 12 * GIB);
    // A reading that is older than the limit counts as that old.
    now.ages.file_system_ms = Some(u64::MAX);
    let wanted = first(&policy(), &now).forecast.wanted_free_bytes;
    assert_eq!(wanted, 420 * 125 * MIB + 12 * GIB);
}

#[test]
fn decide_keeps_the_envelope_of_growth_in_mode_likely() {
    let mut policy = policy();
    policy.space.keep = Keep::Likely;
    let mut now = btrfs(&[gp3(200)], 100);
    now.file_system.largest_growth_bytes = 2 * GIB;
    let decision = first(&policy, &now);
    assert_eq!(decision.forecast.wanted_free_bytes, 3 * GIB + 4 * GIB);
    assert_eq!(decision.forecast.full_in_s_likely, Some(100 * 240 / 3));
}

#[test]
fn decide_takes_the_largest_of_three_steps() {
    let step = |size: u32, free: u64, policy: &Policy| {
        let mut now = btrfs(&[gp3(size)], 10);
        now.file_system.free_bytes = free;
        let (_, from, to) = resized(&first(policy, &now));
        to - from
    };
    // 10 GiB; 10 %; twice what is missing: the need of 33.3 GiB.
    assert_eq!(step(50, 30_000 * MIB, &policy()), 10);
    assert_eq!(step(1_000, 40 * GIB, &policy()), 100);
    assert_eq!(step(200, 3 * GIB + 304 * MIB + 4 * GIB, &policy()), 52);
    let mut smaller = policy();
    smaller.space.gib_max = 60;
    assert_eq!(step(50, 0, &smaller), 10, "to the policy's largest size");
}

#[test]
fn decide_grows_in_larger_steps_while_half_of_the_line_rate_is_written() {
    let mut now = btrfs(&[gp3(200)], 100);
    now.file_system.free_bytes = 30_000 * MIB;
    let mut before = now.clone();
    before.unix_ms -= 30_000;
    before.file_system.free_bytes = 60 * GIB;
    let grown = |mibps: u64, failures: u32| {
        let mut before = before.clone();
        before.file_system.used_bytes -= 30 * mibps * MIB;
        let (_, state) = decide(&policy(), &before, &State::default());
        let state = State { failures, ..state };
        decide(&policy(), &now, &state).0
    };
    let added = |decision: &Decision| match only(decision).operation {
        Operation::Add { spec } => spec.size_gib,
        ref other => panic!("{other:?}"),
    };
    assert_eq!(resized(&grown(62, 0)).2, 220);
    // The only modification is kept, for a further volume may not come: then the size doubles.
    assert_eq!(added(&grown(63, 0)), 40 + 30, "and the need of a second volume");
    assert_eq!(resized(&grown(63, 1)).2, 400);
    assert_eq!(added(&grown(63, 2)), 80 + 30, "the next call may be refused too");
    // With two volumes, one modification is not the last.
    let two = |now: &Observation| {
        let mut two = now.clone();
        two.file_system.devices.push(Device { devid: 2, ..two.file_system.devices[0].clone() });
        two.file_system.devices[1].volume = Some("vol-2".to_owned());
        two.volumes.push(volume("vol-2", gp3(200)));
        two
    };
    let mut before = two(&before);
    before.file_system.used_bytes -= 30 * 126 * MIB;
    let (_, state) = decide(&policy(), &before, &State::default());
    assert_eq!(resized(&decide(&policy(), &two(&now), &state).0).0, "vol-1");
    let mut locked = two(&now);
    locked.volumes[1].modifiable_from_ms = Some(NOW_MS + 1);
    let decision = decide(&policy(), &locked, &state).0;
    assert!(matches!(only(&decision).operation, Operation::Add { .. }), "{decision:#?}");
    // Twice the missing 30.3 GiB, four times, since writers wait for room.
    now.file_system.free_bytes = 3 * GIB;
    assert_eq!(resized(&decide(&policy(), &now, &growing(&now)).0).2, 200 + 243);
    // Nothing is written, or that is not known: the next step can follow.
    assert_eq!(resized(&decide(&policy(), &now, &steady(&now)).0).2, 200 + 61);
    assert_eq!(resized(&first(&policy(), &now)).2, 200 + 61);
    // Who writes to a full one waits.
    now.file_system.free_bytes = 2 * GIB - 1;
    assert_eq!(resized(&decide(&policy(), &now, &steady(&now)).0).2, 200 + 251);
}

/// A file system that is smaller than its need is always below its reserve.
#[test]
fn decide_gives_an_idle_file_system_of_a_gib_the_usual_step() {
    let mut policy = policy();
    policy.space.actuation_s = 10;
    policy.space.grows_volumes = false;
    let now = btrfs(&[gp3(1)], 0);
    for state in [State::default(), steady(&now)] {
        let decision = decide(&policy, &now, &state).0;
        let Operation::Add { spec } = &only(&decision).operation else { panic!("{decision:#?}") };
        assert_eq!(spec.size_gib, 10 + 2, "and the need of a second volume");
        assert!(!only(&decision).reason.contains("writers wait"), "{decision:#?}");
    }
}

/// Over NBD neither the volume nor another one gives an XFS or ext4 room.
#[test]
fn decide_says_how_a_person_gives_room_where_nothing_may_grow() {
    let mut policy = policy();
    policy.space.grows_volumes = false;
    for (kind, words) in [(Kind::Xfs, "`xfs_growfs` uses it"), (Kind::Ext4, "`resize2fs` uses it")]
    {
        let now = of_kind(kind, btrfs(&[gp3(100)], 95));
        let decision = decide(&policy, &now, &steady(&now)).0;
        assert!(decision.intents.is_empty(), "{decision:#?}");
        let alarm = &decision.alarms[0];
        assert!(alarm.contains("takes no further volume") && alarm.contains(words), "{alarm}");
    }
}

/// A volume of the service may not be modified again for hours, so what cannot take another volume
/// doubles.
#[test]
fn decide_doubles_a_fast_file_system_that_takes_no_further_volume() {
    let mut now = of_kind(Kind::Xfs, btrfs(&[gp3(1_000)], 960));
    now.file_system.free_bytes = 30_000 * MIB;
    let mut before = now.clone();
    before.unix_ms -= 30_000;
    before.file_system.free_bytes = 60 * GIB;
    let grown = |mibps: u64| {
        let mut before = before.clone();
        before.file_system.used_bytes -= 30 * mibps * MIB;
        let (_, state) = decide(&policy(), &before, &State::default());
        resized(&decide(&policy(), &now, &state).0).2
    };
    assert_eq!(grown(62), 1_100);
    assert_eq!(grown(63), 2_000);
    now.file_system.free_bytes = 3 * GIB;
    let decision = first(&policy(), &now);
    assert_eq!(resized(&decision).2, 2_000);
    assert!(only(&decision).reason.ends_with("since no volume can be added"), "{decision:#?}");
    let mut now = btrfs(&[gp3(1_000)], 960);
    now.file_system.free_bytes = 3 * GIB;
    assert_eq!(resized(&decide(&policy(), &now, &growing(&now)).0).2, 1_400);
    now.instance.as_mut().unwrap().free_slots = 0;
    assert_eq!(resized(&first(&policy(), &now)).2, 2_000);
}

/// A reading of a clock that was set back shows no growth, and neither does one of hours ago. A
/// step that is too small is the last for hours.
#[test]
fn decide_waits_for_a_reading_before_it_grows_what_takes_no_further_volume() {
    let mut now = of_kind(Kind::Ext4, btrfs(&[gp3(1_000)], 900));
    now.file_system.free_bytes = 40 * GIB;
    let decided = |unix_ms: u64, unsure_since_ms: Option<u64>| {
        let reading = Some(Reading { unix_ms, used_bytes: now.file_system.used_bytes });
        let state = State { reading, unsure_since_ms, ..State::default() };
        decide(&policy(), &now, &state)
    };
    for (unix_ms, since_ms) in [
        (NOW_MS + 90_000, None),
        (NOW_MS - 120_001, None),
        (NOW_MS - 9_999, None),
        (NOW_MS - 3_600_000, Some(NOW_MS - 179_999)),
        (NOW_MS - 3_600_000, Some(NOW_MS + 1)),
    ] {
        let (decision, after) = decided(unix_ms, since_ms);
        assert!(decision.intents.is_empty() && decision.alarms.is_empty(), "{decision:#?}");
        assert!(reason(&decision, Brake::Stale).contains("after the next reading"));
        if NOW_MS.abs_diff(unix_ms) > 60_000 {
            assert_eq!(after.reading.unwrap().unix_ms, NOW_MS);
        }
    }
    assert_eq!(resized(&decided(NOW_MS - 120_000, None).0).2, 1_100);
    // Of an agent whose readings are an hour apart, the mean counts.
    assert_eq!(resized(&decided(NOW_MS - 3_600_000, Some(NOW_MS - 180_000)).0).2, 1_100);
    // Below the reserve it does not wait, and neither does a btrfs.
    now.file_system.free_bytes = 20 * GIB;
    assert!(first(&policy(), &now).intents.is_empty());
    now.file_system.free_bytes -= 1;
    assert!(only(&first(&policy(), &now)).is_emergency);
    let mut now = btrfs(&[gp3(1_000)], 900);
    now.file_system.free_bytes = 40 * GIB;
    assert_eq!(resized(&first(&policy(), &now)).2, 1_100);
}

#[test]
fn decide_asks_for_half_at_each_second_try_after_a_refusal_for_want_of_capacity() {
    let mut now = of_kind(Kind::Xfs, btrfs(&[gp3(1_000)], 960));
    now.file_system.free_bytes = 15 * GIB;
    let step = |now: &Observation, failures: u32, refused_ago_ms: u64| {
        let no_capacity_ms = Some(NOW_MS - refused_ago_ms);
        let state = State { failures, no_capacity_ms, ..growing(now) };
        resized(&decide(&policy(), now, &state).0).2 - 1_000
    };
    // Writers wait for room, so the size doubles.
    let steps = [1, 2, 3, 4, 79, 80].map(|failures| step(&now, failures, 3_600_000));
    assert_eq!(steps, [500, 1_000, 500, 1_000, 500, 1_000]);
    // It was another reason, or long ago.
    assert_eq!(step(&now, 1, 3_600_001), 1_000);
    let state = State { failures: 1, ..growing(&now) };
    assert_eq!(resized(&decide(&policy(), &now, &state).0).2, 2_000);
    // A btrfs has another way.
    now = btrfs(&[gp3(1_000)], 960);
    now.file_system.free_bytes = 15 * GIB;
    now.volumes[0].modifiable_from_ms = Some(NOW_MS + 1);
    let state = State { failures: 1, no_capacity_ms: Some(NOW_MS), ..growing(&now) };
    let decision = decide(&policy(), &now, &state).0;
    assert!(matches!(only(&decision).operation, Operation::Add { spec } if spec.size_gib == 430));
}

/// Over NBD a device keeps its size when its volume grows, so that room is not there.
#[test]
fn decide_adds_a_volume_beside_one_whose_device_does_not_see_that_it_grew() {
    let mut now = btrfs(&[gp3(50), gp3(50)], 95);
    now.volumes[0].spec = gp3(124);
    assert_eq!(resized(&first(&policy(), &now)), ("vol-1".to_owned(), 124, 124));
    let mut policy = policy();
    policy.space.grows_volumes = false;
    let decision = first(&policy, &now);
    assert!(matches!(only(&decision).operation, Operation::Add { .. }), "{decision:#?}");
    // The device may see it after all.
    now.file_system.devices[0].device_bytes = 124 * GIB;
    assert_eq!(resized(&first(&policy, &now)), ("vol-1".to_owned(), 124, 124));
}

#[test]
fn decide_grows_the_volume_with_the_fewest_modifications() {
    let mut now = btrfs(&[gp3(100), gp3(50)], 145);
    assert_eq!(resized(&first(&policy(), &now)).0, "vol-2", "the smaller one");
    now.volumes[1].modified_ms = vec![NOW_MS - 1];
    assert_eq!(resized(&first(&policy(), &now)).0, "vol-1");
    // A modification of yesterday does not count.
    now.volumes[1].modified_ms = vec![NOW_MS - DAY_MS];
    assert_eq!(resized(&first(&policy(), &now)).0, "vol-2");
}

#[test]
fn decide_adds_a_volume_if_no_modification_is_left() {
    let mut now = btrfs(&[gp3(100)], 95);
    now.volumes[0].modified_ms = vec![NOW_MS - 2, NOW_MS - 1];
    let decision = first(&policy(), &now);
    // The emergency may use one more before.
    assert!(only(&decision).is_emergency);
    assert_eq!(resized(&decision).0, "vol-1");
    now.volumes[0].modified_ms.push(NOW_MS - 3);
    let decision = first(&policy(), &now);
    let Operation::Add { spec } = &only(&decision).operation else { panic!("{decision:#?}") };
    // Twice the missing 26.3 GiB, and the need of a second volume with 125 MiB/s.
    assert_eq!(*spec, gp3(53 + 30));
    assert!(
        only(&decision).commands.iter().any(|line| line == "btrfs device add -K \"$DEVICE\" /data")
    );
    // XFS cannot, so it is an alarm with the reason.
    let xfs = of_kind(Kind::Xfs, now.clone());
    let decision = decide(&policy(), &xfs, &steady(&xfs)).0;
    assert!(decision.intents.is_empty());
    assert!(reason(&decision, Brake::Modifications).contains("vol-1 was modified 3 times in 24 h"));
    assert!(decision.alarms[0].starts_with("no growth: 5 GiB are free"), "{decision:#?}");
    assert!(
        decision.alarms[0].contains("by hand: aws ec2 modify-volume --volume-id vol-1 --size ")
    );
    // Without a free attachment, a btrfs has none of the ways, either.
    now.instance.as_mut().unwrap().free_slots = 0;
    let decision = decide(&policy(), &now, &steady(&now)).0;
    assert!(decision.intents.is_empty());
    assert!(reason(&decision, Brake::Slots).contains("i-0123456789abcdef0 (m5.8xlarge)"));
}

#[test]
fn decide_keeps_a_modification_for_an_emergency() {
    let mut now = of_kind(Kind::Ext4, btrfs(&[gp3(200)], 100));
    now.file_system.free_bytes = 30_000 * MIB + GIB;
    now.volumes[0].modified_ms = vec![NOW_MS - 2, NOW_MS - 1];
    // Nothing but a modification gives room, so the kept one is used, and it counts as one.
    let decision = decide(&policy(), &now, &steady(&now)).0;
    assert!(only(&decision).is_emergency);
    assert_eq!(
        only(&decision).commands,
        [
            "aws ec2 modify-volume --volume-id vol-1 --size 220".to_owned(),
            "timeout 900 sh -c 'until aws ec2 describe-volumes-modifications --volume-ids vol-1 \
             --query \"VolumesModifications[].ModificationState\" --output text | grep -qwE \
             \"optimizing|completed\"; do sleep 5; done'"
                .to_owned(),
            "resize2fs /dev/nvme1n1".to_owned()
        ]
    );
    // The one for an undo is not.
    now.volumes[0].modified_ms.push(NOW_MS - 3);
    assert!(decide(&policy(), &now, &steady(&now)).0.intents.is_empty());
}

#[test]
fn decide_grows_into_the_end_of_a_volume_before_anything_else() {
    let mut now = btrfs(&[gp3(100)], 60);
    now.file_system.devices[0].size_bytes = 70 * GIB;
    now.file_system.size_bytes = 70 * GIB;
    now.file_system.free_bytes = 10 * GIB;
    now.volumes[0].modified_ms = vec![NOW_MS; 4];
    let decision = first(&policy(), &now);
    let intent = only(&decision);
    let same = gp3(100);
    assert_eq!(
        intent.operation,
        Operation::Modify { volume: "vol-1".to_owned(), from: same, to: same }
    );
    assert_eq!(intent.commands, ["btrfs filesystem resize 1:max /data"]);
    assert_eq!(intent.monthly_before_micro, intent.monthly_after_micro);
}

#[test]
fn decide_stops_at_the_largest_size_with_an_alarm() {
    let mut policy = policy();
    policy.space.gib_max = 100;
    let decision = first(&policy, &btrfs(&[gp3(100)], 95));
    assert!(decision.intents.is_empty());
    assert_eq!(reason(&decision, Brake::Limit), "its size is 100 GiB, of at most 100 GiB");
    assert_eq!(decision.alarms, ["no growth: its size is 100 GiB, of at most 100 GiB"]);
}

#[test]
fn decide_does_not_repeat_growth_before_its_effect_is_read() {
    let mut now = btrfs(&[gp3(100)], 95);
    now.ages.file_system_ms = Some(10_000);
    let state = State { past: vec![past(Axis::Space, true, 5_000)], ..State::default() };
    let (decision, _) = decide(&policy(), &now, &state);
    assert!(decision.intents.is_empty(), "{decision:#?}");
    assert_eq!(
        reason(&decision, Brake::Stale),
        "the file system was read before its last growth ended"
    );
}

/// 400 GiB of which 100 are used: the peak of 110 GiB and the need of 8 + 58.6 GiB are less than
/// 80 %.
fn roomy() -> Observation {
    btrfs(&[gp3(200), gp3(100), gp3(100)], 100)
}

#[test]
fn decide_removes_a_volume_if_the_others_have_room_and_carry_its_load() {
    let mut now = roomy();
    now.evidence = evidence(vec![judged("vol-1"), judged("vol-2"), judged("vol-3")], NOW_MS - 1);
    let decision = first(&policy(), &now);
    let intent = only(&decision);
    // The last one of the largest saving within 25 %.
    assert_eq!(intent.operation, Operation::Remove { volume: "vol-3".to_owned() });
    assert_eq!((intent.axis, intent.is_up), (Axis::Space, false));
    assert_eq!(intent.commands[0], "btrfs device remove 3 /data");
    assert_eq!(intent.commands[1], "aws ec2 detach-volume --volume-id vol-3");
    assert_eq!(intent.undo[0], "btrfs device remove cancel /data  # while it runs");
    let saved = intent.monthly_before_micro - intent.monthly_after_micro;
    assert_eq!(saved, 8_000_000);
    // Chunks that are partly used are compacted first.
    for device in &mut now.file_system.devices {
        device.allocated_bytes = device.size_bytes - 10 * GIB;
    }
    now.file_system.chunk_slack_bytes = 270 * GIB;
    let decision = first(&policy(), &now);
    let intent = only(&decision);
    assert_eq!(intent.operation, Operation::Remove { volume: "vol-3".to_owned() });
    assert_eq!(intent.commands[0], "btrfs balance start -dusage=80 /data");
    assert_eq!(intent.commands[1], "btrfs device remove 3 /data");
    // Without room after that it stays, and a smaller one takes the place of another.
    now.file_system.chunk_slack_bytes = 110 * GIB;
    let decision = first(&policy(), &now);
    let Operation::Replace { volume, with } = &only(&decision).operation else {
        panic!("{decision:#?}")
    };
    assert_eq!((volume.as_str(), *with), ("vol-1", gp3(100)));
    // Chunks are compacted beside the new volume, too.
    for device in &mut now.file_system.devices {
        device.allocated_bytes = device.size_bytes - 2 * GIB;
    }
    let decision = first(&policy(), &now);
    let moves = only(&decision).commands.iter().filter(|line| line.starts_with("btrfs"));
    assert_eq!(
        moves.collect::<Vec<_>>(),
        [
            "btrfs device add -K \"$DEVICE\" /data",
            "btrfs balance start -dusage=80 /data",
            "btrfs device remove 1 /data"
        ]
    );
}

/// Three equal volumes, of which each brings its own MiB/s: with them, their need leaves.
#[test]
fn decide_removes_a_volume_that_is_larger_than_the_surplus_with_its_own_line_rate() {
    let mut policy = policy();
    policy.space.shrink_step_percent_max = 50;
    let mut now = btrfs(&[gp3(100), gp3(100), gp3(100)], 40);
    now.evidence = evidence(vec![judged("vol-1"), judged("vol-2"), judged("vol-3")], NOW_MS - 1);
    // 3 x 125 MiB/s in 480 s are 176 GiB, so 74 GiB less would do; with two volumes it is 117 GiB.
    policy.space.actuation_s = 480;
    let decision = first(&policy, &now);
    assert_eq!(only(&decision).operation, Operation::Remove { volume: "vol-3".to_owned() });
    // With more in use, the peak would not come back.
    now.file_system.used_bytes += 20 * GIB;
    now.file_system.free_bytes -= 20 * GIB;
    now.file_system.peak_used_bytes += 20 * GIB;
    let decision = first(&policy, &now);
    assert!(decision.intents.is_empty(), "{decision:#?}");
}

#[test]
fn decide_does_not_remove_a_volume_whose_load_the_others_may_not_carry() {
    let mut now = btrfs(&[gp3(100), gp3(100), gp3(100), gp3(100)], 40);
    let busy = Judged { peak_iops: Some(1_900), ..judged("vol-1") };
    let ids = ["vol-2", "vol-3", "vol-4"];
    let others = ids.map(|id| Judged { peak_iops: Some(1_900), ..judged(id) });
    now.evidence = evidence([vec![busy], others.to_vec()].concat(), NOW_MS - 1);
    // 1,900 and 1,900 without the headroom are more than 3,000. A smaller volume in its place does
    // not help: the data may move to the others.
    let decision = first(&policy(), &now);
    assert!(decision.intents.is_empty(), "{decision:#?}");
    let reason_of = reason(&decision, Brake::Evidence);
    assert!(reason_of.contains("would have up to 3167 I/Os"), "{reason_of}");
    // Without a recording nothing is known.
    now.evidence = None;
    let decision = first(&policy(), &now);
    assert!(decision.intents.is_empty(), "{decision:#?}");
    // The limits of a volume alone are those of the smaller one.
    let alone = btrfs(&[gp3(400)], 40);
    let decision = first(&policy(), &alone);
    assert!(matches!(only(&decision).operation, Operation::Replace { .. }), "{decision:#?}");
}

#[test]
fn decide_replaces_a_volume_by_a_smaller_one_with_its_limits() {
    let fast = spec(VolumeType::Gp3, 400, Some(6_000), Some(250));
    let decision = first(&policy(), &btrfs(&[fast], 100));
    let intent = only(&decision);
    let with = spec(VolumeType::Gp3, 300, Some(6_000), Some(250));
    assert_eq!(intent.operation, Operation::Replace { volume: "vol-1".to_owned(), with });
    let prints = |text: &str| intent.commands.iter().any(|line| line.contains(text));
    assert!(prints("create-volume") && prints("--size 300 --iops 6000 --throughput 250"));
    // The new one is added, and the old one removed.
    let moves = |line: &&String| line.starts_with("btrfs");
    let commands: Vec<&String> = intent.commands.iter().filter(moves).collect();
    assert_eq!(commands, ["btrfs device add -K \"$DEVICE\" /data", "btrfs device remove 1 /data"]);
    let undo: Vec<&String> = intent.undo.iter().filter(moves).collect();
    assert_eq!(undo[0], "btrfs device remove cancel /data  # while it runs");
    assert!(undo[1].starts_with("btrfs device remove \"$DEVICE\" /data"));
    let again = "btrfs device add -K \"$OLD_DEVICE\" /data";
    assert_eq!(undo[2..], [again, "btrfs device remove 2 /data"]);
    // The smaller one leaves.
    let left = [
        "aws ec2 detach-volume --volume-id \"$NEW\"",
        "aws ec2 delete-volume --volume-id \"$NEW\"  # after 24 h",
    ];
    assert_eq!(intent.undo[intent.undo.len() - 2..], left);
    assert!(intent.undo.iter().any(|line| line.contains("--size 400 --iops 6000")));
    let mut two = btrfs(&[fast, fast], 200);
    two.evidence = evidence(vec![judged("vol-1"), judged("vol-2")], NOW_MS - 1);
    let decision = first(&policy(), &two);
    let intent = only(&decision);
    assert!(intent.commands.iter().any(|line| line == "btrfs device remove 1 /data"));
    // After 1 and 2, the kernel numbers the new device by 3.
    assert!(intent.undo.iter().any(|line| line == "btrfs device remove 3 /data"));
}

/// Where a front end makes the disks of volumes, its commands are among those that are printed.
#[test]
fn commands_over_nbd_use_those_of_the_front_end() {
    let words = |text: &str| text.split(' ').map(str::to_owned).collect();
    let mut now = btrfs(&[gp3(400)], 100);
    now.file_system.devices[0].path = "/dev/loop1".to_owned();
    now.front_end = Some(FrontEnd {
        attach: words("/opt/attach --id={volume} {uri}"),
        detach: words("/opt/detach {volume} {device}"),
        uri: "nbd+unix:///{volume}?socket=/run/nbd".to_owned(),
    });
    let decision = first(&policy(), &now);
    let intent = only(&decision);
    assert!(matches!(intent.operation, Operation::Replace { .. }), "{decision:#?}");
    let device = "DEVICE=$(/opt/attach --id=\"$NEW\" nbd+unix:///\"$NEW\"'?socket=/run/nbd' | \
                  tail -n 1)";
    let place = |lines: &[String], line: &str| lines.iter().position(|other| other == line);
    let end = intent.commands.len();
    assert_eq!(place(&intent.commands, device), Some(4), "{:#?}", intent.commands);
    assert_eq!(intent.commands[end - 3], "/opt/detach vol-1 /dev/loop1");
    assert_eq!(intent.commands[end - 2], "aws ec2 detach-volume --volume-id vol-1");
    let again = device.replace("DEVICE=", "OLD_DEVICE=").replace("$NEW", "$OLD");
    assert!(place(&intent.undo, &again).is_some(), "{:#?}", intent.undo);
    assert!(place(&intent.undo, "/opt/detach \"$NEW\" \"$DEVICE\"").is_some());
    assert!(!intent.commands.concat().contains("by-id"), "{:#?}", intent.commands);
}

/// The baseline of gp2 follows its size, so less of it needs a recording.
#[test]
fn decide_replaces_a_gp2_by_a_smaller_one_only_with_a_recording() {
    let mut now = btrfs(&[spec(VolumeType::Gp2, 1_000, None, None)], 100);
    let decision = first(&policy(), &now);
    assert!(decision.intents.is_empty());
    assert_eq!(reason(&decision, Brake::Evidence), "no recording of its volumes has been judged");
    // 2,400 IOPS need 800 GiB.
    let peak = Judged { peak_iops: Some(2_400), ..judged("vol-1") };
    now.evidence = evidence(vec![peak], NOW_MS - 1);
    let decision = first(&policy(), &now);
    let Operation::Replace { with, .. } = &only(&decision).operation else {
        panic!("{decision:#?}")
    };
    assert_eq!(with.size_gib, 800);
    let short = Judged { reasons: vec!["3 days of metrics".to_owned()], ..judged("vol-1") };
    now.evidence = evidence(vec![short], NOW_MS - 1);
    let decision = first(&policy(), &now);
    assert_eq!(reason(&decision, Brake::Evidence), "vol-1: 3 days of metrics");
}

#[test]
fn decide_shrinks_for_the_peak_and_not_for_the_present() {
    let mut now = roomy();
    now.file_system.peak_used_bytes = 240 * GIB;
    let decision = first(&policy(), &now);
    assert!(decision.intents.is_empty() && decision.brakes.is_empty(), "{decision:#?}");
}

#[test]
fn decide_advises_a_copy_where_the_file_system_does_not_shrink() {
    for (kind, words) in [
        (Kind::Xfs, "XFS does not shrink: "),
        (Kind::Ext4, "ext4 shrinks only while it is not mounted: "),
    ] {
        let decision = first(&policy(), &of_kind(kind, btrfs(&[gp3(400)], 100)));
        assert!(decision.intents.is_empty());
        let reason = reason(&decision, Brake::FileSystem);
        assert!(reason.starts_with(words), "{reason}");
        assert!(reason.contains("on a volume of 300 GiB saves 8.00 USD a month"), "{reason}");
    }
    let mut mirrored = btrfs(&[gp3(400), gp3(400)], 100);
    mirrored.file_system.metadata = Some(Profile::Raid1);
    let decision = first(&policy(), &mirrored);
    assert!(reason(&decision, Brake::FileSystem).contains("is not shrunk"), "{decision:#?}");
}

#[test]
fn decide_only_observes_devices_that_are_no_volumes() {
    let mut now = btrfs(&[gp3(100)], 95);
    now.file_system.devices[0].volume = None;
    let decision = first(&policy(), &now);
    assert!(decision.intents.is_empty());
    now.file_system.devices[0].volume = Some("vol-9".to_owned());
    assert!(first(&policy(), &now).intents.is_empty());
    let mut policy = policy();
    policy.space.is_managed = false;
    assert!(first(&policy, &btrfs(&[gp3(100)], 95)).intents.is_empty());
}

/// During a replacement, its target is a device with the number 0 and no room of its own.
#[test]
fn decide_does_not_count_the_target_of_a_replacement() {
    let mut now = btrfs(&[gp3(100), gp3(50)], 60);
    now.file_system.devices[1].devid = 0;
    now.file_system.free_bytes = 30 * GIB;
    let wanted = first(&policy(), &now).forecast.wanted_free_bytes;
    assert_eq!(wanted, 30_000 * MIB + 3 * GIB, "one volume, and 2 % of 150 GiB");
}
