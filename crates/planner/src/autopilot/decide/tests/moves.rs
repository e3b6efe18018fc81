//! Paces, the latency of flushes, and cancelled moves.

use super::*;

/// Returns a file system whose second volume is being removed at a pace.
fn removing(pace_mibps: u64) -> (Observation, State) {
    let mut now = btrfs(&[gp3(200), gp3(200)], 60);
    now.file_system.running = Some(Running {
        kind: RunningKind::Remove,
        devid: Some(2),
        done_permille: Some(100),
        pace_bytes_per_s: Some(pace_mibps * MIB),
    });
    let operation = Operation::Remove { volume: "vol-2".to_owned() };
    let state = State { open: vec![open("d-1.0", operation, NOW_MS - 1)], ..State::default() };
    (now, state)
}

#[test]
fn pace_is_half_of_the_free_part_of_the_slower_side() {
    let (mut now, _) = removing(20);
    now.volumes[0].used_mibps = Some(50);
    now.volumes[1].used_mibps = Some(60);
    // The move's own 20 MiB/s are part of the 60.
    assert_eq!(pace_bytes_per_s(&policy(), &now), (125 - 40) * MIB / 2);
    now.volumes[1].used_mibps = None;
    assert_eq!(pace_bytes_per_s(&policy(), &now), 4 * MIB, "not known: the least");
    now.file_system.running = None;
    now.volumes[1].used_mibps = Some(60);
    assert_eq!(pace_bytes_per_s(&policy(), &now), (125 - 60) * MIB / 2);
}

#[test]
fn decide_lowers_the_pace_at_once_and_raises_it_by_a_tenth_at_least() {
    let pace = |running: u64, used: u32| {
        let (mut now, state) = removing(running);
        now.volumes[0].used_mibps = Some(used);
        decide(&policy(), &now, &state).0.pace_bytes_per_s
    };
    // 125 MiB/s less 65 of others, by halves.
    assert_eq!(pace(31, 96), Some(30 * MIB));
    assert_eq!(pace(30, 95), None);
    assert_eq!(pace(28, 93), None);
    assert_eq!(pace(27, 92), Some(30 * MIB));
    let (now, _) = removing(60);
    assert_eq!(first(&policy(), &now).pace_bytes_per_s, None, "not its own move");
}

#[test]
fn decide_halves_the_pace_in_slow_windows_and_cancels_after_three() {
    let (mut now, mut state) = removing(60);
    let mut paces = Vec::new();
    let mut cancels = Vec::new();
    now.file_system.flush = Some(Flush { p99_ms: 21, count: 5 });
    for _ in 0..=3 {
        let (decision, after) = decide(&policy(), &now, &state);
        paces.push(after.pace_bytes_per_s.map(|pace| pace / MIB));
        cancels.extend(decision.cancels);
        state = after;
        now.unix_ms += 300_000;
        if let Some(running) = &mut now.file_system.running
            && let Some(pace) = decision.pace_bytes_per_s
        {
            running.pace_bytes_per_s = Some(pace);
        }
    }
    assert_eq!(paces, [None, Some(30), Some(15), Some(7)]);
    assert_eq!(cancels.len(), 1);
    assert_eq!(cancels[0].0, "d-1.0");
    assert_eq!(cancels[0].1, "flushes were above 20 ms in 3 windows of 300 s in a row");
    assert!(state.open[0].cancelled);
    assert_eq!(state.slow_month_ms, 900_000);
    let hold = state.hold.expect("a hold");
    assert!(hold.allows_growth);
    assert_eq!(hold.until_ms, NOW_MS + 900_000 + DAY_MS);
}

#[test]
fn decide_forgets_slow_windows_after_a_fast_one() {
    let (mut now, mut state) = removing(60);
    for (p99_ms, slow_windows) in [(21, 0), (21, 1), (21, 2), (20, 0), (21, 1)] {
        now.file_system.flush = Some(Flush { p99_ms, count: 5 });
        state = decide(&policy(), &now, &state).1;
        assert_eq!(state.slow_windows, slow_windows);
        now.unix_ms += 300_000;
    }
    // Between the ends of windows nothing is counted.
    now.unix_ms -= 299_999;
    state = decide(&policy(), &now, &state).1;
    assert_eq!(state.slow_windows, 1);
    now.file_system.running = None;
    state = decide(&policy(), &now, &state).1;
    assert_eq!((state.slow_windows, state.window_end_ms), (0, 0));
}

/// Nothing is written to a device that is being removed, so its MiB/s need no room.
#[test]
fn decide_does_not_cancel_a_removal_for_the_line_rate_of_its_own_device() {
    let (mut now, state) = removing(60);
    // 125 MiB/s in 240 s are 29.3 GiB, and twice that with the other volume.
    now.file_system.free_bytes = 45 * GIB;
    assert!(decide(&policy(), &now, &state).0.cancels.is_empty());
    now.file_system.running = None;
    let (decision, _) = decide(&policy(), &now, &state);
    assert!(!decision.cancels.is_empty() || !decision.intents.is_empty(), "{decision:#?}");
}

/// A chunk that is emptied takes no writes, so less is free until its data has moved.
#[test]
fn decide_does_not_cancel_a_removal_for_the_chunk_that_it_empties() {
    let (mut now, state) = removing(60);
    now.file_system.free_bytes = u64::MAX / 2;
    let wanted = decide(&policy(), &now, &state).0.forecast.wanted_free_bytes;
    now.file_system.free_bytes = wanted - GIB;
    assert!(decide(&policy(), &now, &state).0.cancels.is_empty());
    now.file_system.free_bytes = wanted - GIB - 1;
    assert_eq!(decide(&policy(), &now, &state).0.cancels.len(), 1);
}

#[test]
fn decide_cancels_a_move_if_room_is_needed() {
    let (mut now, state) = removing(60);
    now.file_system.free_bytes = GIB;
    let (decision, after) = decide(&policy(), &now, &state);
    assert_eq!(decision.cancels.len(), 1, "{decision:#?}");
    assert!(after.open[0].cancelled);
    let hold = after.hold.as_ref().expect("a hold of other moves");
    assert!(hold.allows_growth && hold.until_ms == NOW_MS + DAY_MS);
    assert!(decision.intents.is_empty(), "first the move ends");
    // Once only.
    assert!(decide(&policy(), &now, &after).0.cancels.is_empty());
    // A person's hold allows no call.
    let hold = Some(crate::autopilot::state::Hold {
        until_ms: u64::MAX,
        reason: String::new(),
        allows_growth: false,
    });
    let (decision, after) = decide(&policy(), &now, &State { hold, ..state });
    assert!(decision.cancels.is_empty() && !after.open[0].cancelled);
}
