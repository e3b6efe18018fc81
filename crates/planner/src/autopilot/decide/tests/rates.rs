//! IOPS, MiB/s and the type.

use super::*;
use crate::autopilot::policy::{Schedule, Window};
use crate::autopilot::state::Watch;

fn fast(iops: u32) -> VolumeSpec {
    spec(VolumeType::Gp3, 200, Some(iops), Some(250))
}

fn now_on(spec: VolumeSpec) -> Observation {
    btrfs(&[spec], 100)
}

fn rates(decision: &Decision) -> VolumeSpec {
    match &only(decision).operation {
        Operation::Modify { to, .. } => *to,
        other => panic!("{other:?}"),
    }
}

#[test]
fn decide_raises_limits_that_delay_requests() {
    let mut now = now_on(fast(3_000));
    now.volumes[0].exceeded_s = Some(60);
    let up = Judged { up: proposal(fast(3_600)), ..judged("vol-1") };
    now.evidence = evidence(vec![up], NOW_MS - 1);
    assert!(first(&policy(), &now).intents.is_empty(), "60 s are allowed");
    now.volumes[0].exceeded_s = Some(61);
    let decision = first(&policy(), &now);
    assert_eq!(rates(&decision), fast(3_600));
    let intent = only(&decision);
    assert_eq!((intent.axis, intent.is_up, intent.is_emergency), (Axis::Rate, true, false));
    assert_eq!(
        intent.commands,
        ["aws ec2 modify-volume --volume-id vol-1 --volume-type gp3 --iops 3600 --throughput 250"]
    );
    assert_eq!(
        intent.undo,
        ["aws ec2 modify-volume --volume-id vol-1 --volume-type gp3 --iops 3000 --throughput 250"]
    );
    // Without a judgement, or with an old one, it is a brake.
    for (found, words) in [
        (None, "no recording of its volumes has been judged"),
        (
            evidence(vec![judged("vol-1")], NOW_MS - 1),
            "the present limits carry what was judged of its last 24 h",
        ),
        (evidence(vec![judged("vol-2")], NOW_MS - 1), "no recording of vol-1 has been judged"),
        (evidence(vec![], NOW_MS - 3 * DAY_MS), "judged 3 days ago, more than 2 days"),
    ] {
        now.evidence = found;
        let decision = first(&policy(), &now);
        assert!(decision.intents.is_empty());
        assert!(reason(&decision, Brake::Evidence).contains(words), "{decision:#?}");
    }
}

/// Returns a small file system whose volume needs this.
fn small(up: VolumeSpec) -> (Policy, Observation) {
    let mut policy = policy();
    policy.space.keep = Keep::Likely;
    policy.space.reserve_bytes_min = 0;
    let mut now = btrfs(&[gp3(4)], 1);
    now.instance.as_mut().unwrap().instance_type = "m5.24xlarge".to_owned();
    now.volumes[0].exceeded_s = Some(61);
    let up = Judged { up: proposal(up), ..judged("vol-1") };
    now.evidence = evidence(vec![up], NOW_MS - 1);
    (policy, now)
}

#[test]
fn decide_grows_a_volume_whose_type_has_the_limits_only_at_a_larger_size() {
    let larger = spec(VolumeType::Gp3, 8, Some(3_600), Some(125));
    let (mut policy, now) = small(larger);
    let decision = first(&policy, &now);
    assert_eq!(rates(&decision), larger);
    let intent = only(&decision);
    assert_eq!(intent.axis, Axis::Rate);
    assert!(
        intent.reason.ends_with("more IOPS: the volume and its file system grow"),
        "{intent:?}"
    );
    assert_eq!(intent.commands[2..], ["btrfs filesystem resize 1:max /data"]);
    // The size counts, too.
    policy.space.gib_max = 7;
    let decision = first(&policy, &now);
    let words = reason(&decision, Brake::Limit);
    assert!(words.ends_with("would have 8 GiB, of at most 7 GiB by gib_max"), "{words}");
    // A device that keeps its size is no obstacle.
    policy.space.gib_max = 8;
    policy.space.grows_volumes = false;
    let decision = first(&policy, &now);
    assert_eq!(rates(&decision), larger);
    let intent = only(&decision);
    assert!(intent.reason.contains("the volume grows, the file system need not"), "{intent:?}");
    assert_eq!(
        intent.commands,
        ["aws ec2 modify-volume --volume-id vol-1 --size 8 --volume-type gp3 --iops 3600 \
          --throughput 125"]
    );
    assert_eq!(intent.undo.len(), 2);
}

/// In one call with growth, the larger size counts.
#[test]
fn decide_grows_by_the_larger_of_two_sizes_in_one_call() {
    let (mut policy, mut now) = small(spec(VolumeType::Gp3, 8, Some(3_600), Some(125)));
    policy.space.grow_gib_min = 1;
    now.file_system.free_bytes = GIB / 2;
    let to = rates(&first(&policy, &now));
    assert_eq!((to.size_gib, to.iops), (8, Some(3_600)));
    policy.space.grow_gib_min = 10;
    let to = rates(&first(&policy, &now));
    assert_eq!((to.size_gib, to.iops), (14, Some(3_600)));
}

#[test]
fn decide_raises_no_limits_for_many_times_the_cost() {
    let dear = spec(VolumeType::Io2, 4, Some(3_600), None);
    let (mut policy, now) = small(dear);
    let decision = first(&policy, &now);
    assert_eq!(
        reason(&decision, Brake::Money),
        "vol-1 would cost 234.50 USD a month as io2 4 GiB, 3600 IOPS, and costs 0.32 USD now: \
         cost_factor_max = 5 allows 5.00 USD, and no cheaper modification carries it; a stripe \
         with a further volume like it has twice its limits for 0.32 USD more"
    );
    policy.budget.cost_factor_max = 234;
    assert!(names(&first(&policy, &now)).contains(&Brake::Money));
    policy.budget.cost_factor_max = 235;
    assert_eq!(rates(&first(&policy, &now)), dear);
}

/// A raise needs no 14 days, so the reason of lower limits is not said.
#[test]
fn decide_says_when_recordings_are_judged_next_and_what_a_raise_needs() {
    let mut now = now_on(fast(3_000));
    now.volumes[0].exceeded_s = Some(61);
    let short = "0 s of metrics, of 14 days that are needed".to_owned();
    let judged = Judged { reasons: vec![short], ..judged("vol-1") };
    now.evidence = evidence(vec![judged.clone()], NOW_MS - 60_000);
    let words = |now: &Observation| reason(&first(&policy(), now), Brake::Evidence).to_owned();
    let found = words(&now);
    assert!(!found.contains("14 days"), "{found}");
    assert!(found.contains("; the next judgement is at 2026-07-01T12:09:00"), "{found}");
    let needs = ": a raise needs more than 60 s at a limit in the recording of 24 h";
    assert!(found.ends_with(needs), "{found}");
    now.evidence = evidence(vec![judged], NOW_MS - 600_000);
    assert!(words(&now).contains("; the next judgement is due: "));
    now.evidence = None;
    assert!(words(&now).contains("has been judged; the first judgement is due: "));
}

/// A limit hides how much is wanted, and a volume takes few modifications in a day.
#[test]
fn decide_doubles_the_step_of_limits_after_a_modification_in_24_hours() {
    let mut now = now_on(fast(3_000));
    now.volumes[0].exceeded_s = Some(61);
    let up = Judged { up: proposal(fast(3_600)), ..judged("vol-1") };
    now.evidence = evidence(vec![up], NOW_MS - 1);
    now.volumes[0].modified_ms = vec![NOW_MS - 2 * (DAY_MS / 24)];
    let decision = first(&policy(), &now);
    assert_eq!(rates(&decision), fast(4_200));
    let why = "it was modified in the last 24 h, so the step is doubled: gp3 200 GiB, 4200 IOPS";
    assert!(only(&decision).reason.contains(why), "{decision:#?}");
    // Requests that waited before the last modification waited for other limits.
    let recent = now_with(&now, NOW_MS - 899_000);
    assert!(first(&policy(), &recent).intents.is_empty());
    // A modification of yesterday does not count.
    now.volumes[0].modified_ms = vec![NOW_MS - 25 * (DAY_MS / 24)];
    assert_eq!(rates(&first(&policy(), &now)), fast(3_600));
    // With a cap of money that the larger step breaks, the step is the usual one.
    now.volumes[0].modified_ms = vec![NOW_MS - 2 * (DAY_MS / 24)];
    let mut capped = policy();
    let usual = first(&policy(), &now_with(&now, NOW_MS - 25 * (DAY_MS / 24)));
    capped.budget.monthly_micro_max = Some(only(&usual).monthly_after_micro);
    assert_eq!(rates(&first(&capped, &now)), fast(3_600));
}

/// Returns an observation whose volume was modified at another time.
fn now_with(now: &Observation, modified_ms: u64) -> Observation {
    let mut now = now.clone();
    now.volumes[0].modified_ms = vec![modified_ms];
    now
}

#[test]
fn decide_raises_limits_before_credits_are_empty() {
    let mut now = now_on(spec(VolumeType::Gp2, 200, None, None));
    let up = spec(VolumeType::Gp3, 200, None, None);
    let with_credits = |empty_s: Option<(u64, u64)>| {
        let up = Judged { up: proposal(up), credits_empty_s: empty_s, ..judged("vol-1") };
        evidence(vec![up], NOW_MS - 1)
    };
    now.evidence = with_credits(Some((1_800, 9_000)));
    assert!(first(&policy(), &now).intents.is_empty());
    now.evidence = with_credits(Some((1_799, 9_000)));
    let decision = first(&policy(), &now);
    assert_eq!(rates(&decision), up);
    assert!(only(&decision).reason.contains("are empty in 1799 to 9000 s, and must last 1800 s"));
    now.evidence = with_credits(None);
    assert!(first(&policy(), &now).intents.is_empty());
}

/// Returns the decisions on evidence of these times that propose these limits.
fn proposed(from: VolumeSpec, steps: &[(u64, Option<VolumeSpec>)]) -> (Decision, State) {
    let mut state = State::default();
    let mut last = None;
    for (made_ms, spec) in steps {
        let mut now = now_on(from);
        now.unix_ms = made_ms + 1;
        let down = spec.and_then(proposal);
        now.evidence = evidence(vec![Judged { down, ..judged("vol-1") }], *made_ms);
        let (decision, after) = decide(&policy(), &now, &state);
        state = after;
        last = Some(decision);
    }
    (last.expect("a decision"), state)
}

#[test]
fn decide_lowers_limits_after_a_second_confirmation() {
    let from = fast(8_000);
    let (decision, _) = proposed(from, &[(NOW_MS, Some(fast(6_000)))]);
    assert!(decision.intents.is_empty());
    assert!(reason(&decision, Brake::Confirmation).contains("0 s of 24 h have passed"));
    let (decision, _) =
        proposed(from, &[(NOW_MS, Some(fast(6_000))), (NOW_MS + DAY_MS - 1, Some(fast(5_000)))]);
    assert!(decision.intents.is_empty(), "{decision:#?}");
    // The higher of the two is taken.
    let twice = [(NOW_MS, Some(fast(6_000))), (NOW_MS + DAY_MS, Some(fast(5_000)))];
    let (decision, _) = proposed(from, &twice);
    assert_eq!(rates(&decision), fast(6_000));
    assert_eq!(only(&decision).exceeded_s_per_day_max, Some(7));
    // Evidence in between that does not propose it begins anew.
    let (decision, state) = proposed(from, &[twice[0], (NOW_MS + 1, None), twice[1]]);
    assert!(decision.intents.is_empty());
    assert_eq!(state.candidates[0].since_ms, NOW_MS + DAY_MS);
    // More than 75 % of the present limit are not worth it.
    let (decision, _) =
        proposed(from, &[(NOW_MS, Some(fast(6_001))), (NOW_MS + DAY_MS, Some(fast(6_001)))]);
    assert!(decision.intents.is_empty());
    assert!(reason(&decision, Brake::Saving).contains("is not at most 75 %"), "{decision:#?}");
    // They do not keep lower ones from their confirmation.
    let (_, state) =
        proposed(from, &[(NOW_MS, Some(fast(6_001))), (NOW_MS + DAY_MS, Some(fast(5_000)))]);
    assert_eq!(state.candidates[0].spec, fast(5_000));
}

#[test]
fn decide_lowers_nothing_while_requests_wait_or_the_recording_is_short() {
    let state = proposed(fast(8_000), &[(NOW_MS - DAY_MS - 9, Some(fast(4_000)))]).1;
    let mut now = now_on(fast(8_000));
    let down = Judged { down: proposal(fast(4_000)), ..judged("vol-1") };
    now.evidence = evidence(vec![down.clone()], NOW_MS - 1);
    assert_eq!(decide(&policy(), &now, &state).0.intents.len(), 1);
    let braked = |judged: Judged, exceeded_s: u32, state: &State| {
        let mut now = now.clone();
        now.evidence = evidence(vec![judged], NOW_MS - 1);
        now.volumes[0].exceeded_s = Some(exceeded_s);
        let (decision, _) = decide(&policy(), &now, state);
        assert!(decision.intents.is_empty(), "{decision:#?}");
        names(&decision)
    };
    let short = Judged { reasons: vec!["3 days of metrics".to_owned()], ..down.clone() };
    assert!(braked(short, 0, &state).contains(&Brake::Evidence));
    assert!(braked(down.clone(), 61, &state).contains(&Brake::Evidence));
    let also_up = Judged { up: proposal(fast(9_000)), ..down.clone() };
    assert!(braked(also_up, 0, &state).contains(&Brake::Evidence));
    let watch = Watch {
        undo: Operation::Delete { volume: String::new() },
        until_ms: NOW_MS + 1,
        exceeded_s_per_day_max: 0,
        exceeded_s: 0,
        counted_ms: NOW_MS,
        slow_windows: 0,
    };
    let watched = State { watch: Some(watch), ..state.clone() };
    assert!(braked(down.clone(), 0, &watched).contains(&Brake::Confirmation));
    let changed = State { past: vec![past(Axis::Rate, true, 8 * DAY_MS)], ..state.clone() };
    assert_eq!(decide(&policy(), &now, &changed).0.intents.len(), 1);
    let lately = State { past: vec![past(Axis::Rate, true, 6 * DAY_MS)], ..state };
    assert!(braked(down, 0, &lately).contains(&Brake::Opposite));
}

/// A change of the type alone is no reason for a modification; with growth it is in one call.
#[test]
fn decide_changes_the_type_with_the_next_change() {
    let gp2 = spec(VolumeType::Gp2, 150, None, None);
    let as_gp3 = spec(VolumeType::Gp3, 150, Some(3_000), Some(128));
    let (decision, state) =
        proposed(gp2, &[(NOW_MS, Some(as_gp3)), (NOW_MS + DAY_MS, Some(as_gp3))]);
    assert!(decision.intents.is_empty(), "{decision:#?}");
    let mut now = btrfs(&[gp2], 140);
    now.unix_ms = NOW_MS + DAY_MS + 2;
    let down = Judged { down: proposal(as_gp3), ..judged("vol-1") };
    now.evidence = evidence(vec![down], NOW_MS + DAY_MS);
    let (decision, _) = decide(&policy(), &now, &state);
    let to = rates(&decision);
    assert_eq!(
        (to.volume_type, to.iops, to.throughput_mibps),
        (VolumeType::Gp3, Some(3_000), Some(128))
    );
    assert!(to.size_gib > 150);
    let intent = only(&decision);
    assert!(intent.reason.contains("; in the same call: "), "{}", intent.reason);
    assert_eq!(intent.commands.len(), 3, "one call, its wait, and the growth of the file system");
}

#[test]
fn decide_puts_all_that_differs_into_one_call() {
    let mut now = btrfs(&[fast(3_000)], 190);
    now.volumes[0].exceeded_s = Some(61);
    let up = Judged { up: proposal(fast(4_000)), ..judged("vol-1") };
    now.evidence = evidence(vec![up], NOW_MS - 1);
    let to = rates(&first(&policy(), &now));
    assert!(to.size_gib > 200 && to.iops == Some(4_000), "{to:?}");
    // Of different volumes, only one.
    let mut two = btrfs(&[fast(3_000), fast(3_000)], 390);
    two.volumes[1].exceeded_s = Some(61);
    let up = Judged { up: proposal(fast(4_000)), ..judged("vol-2") };
    two.evidence = evidence(vec![up], NOW_MS - 1);
    let decision = first(&policy(), &two);
    assert_eq!(resized(&decision).0, "vol-1");
    assert!(reason(&decision, Brake::Busy).contains("one operation of a file system at a time"));
}

/// Returns the state after limits of 8,000 were lowered to 6,000.
fn lowered() -> State {
    let twice = [(NOW_MS, Some(fast(6_000))), (NOW_MS + DAY_MS, Some(fast(6_000)))];
    let (decision, mut state) = proposed(fast(8_000), &twice);
    let done_ms = NOW_MS + DAY_MS + 60_000;
    state::begun(&mut state, only(&decision), NOW_MS + DAY_MS + 1);
    assert_eq!(state.open.len(), 1);
    let id = state.open[0].id.clone();
    state::ended(&mut state, &policy(), &id, true, done_ms);
    assert!(state.open.is_empty() && state.candidates.is_empty());
    assert_eq!(state.past.len(), 1);
    state
}

#[test]
fn decide_undoes_lower_limits_that_make_requests_wait() {
    let state = lowered();
    let watch = state.watch.as_ref().expect("a watch");
    assert_eq!(watch.until_ms, NOW_MS + 2 * DAY_MS + 60_000);
    let mut now = now_on(fast(6_000));
    // 70 s after the change, at most 70 s are of it.
    now.unix_ms = NOW_MS + DAY_MS + 130_000;
    now.volumes[0].exceeded_s = Some(90);
    let (decision, _) = decide(&policy(), &now, &state);
    assert_eq!(rates(&decision), fast(8_000), "more than the 60 s of the policy");
    let intent = only(&decision);
    assert!(intent.is_emergency && intent.is_up);
    assert!(intent.reason.starts_with("undo: requests waited for 70 s since"), "{}", intent.reason);
    now.unix_ms = NOW_MS + DAY_MS + 120_000;
    assert!(decide(&policy(), &now, &state).0.intents.is_empty(), "60 s");
    // The modification that is kept for it is used.
    now.unix_ms = NOW_MS + DAY_MS + 130_000;
    now.volumes[0].modified_ms = vec![now.unix_ms - 1; 3];
    assert_eq!(decide(&policy(), &now, &state).0.intents.len(), 1);
    now.volumes[0].modified_ms.push(now.unix_ms - 1);
    let (decision, _) = decide(&policy(), &now, &state);
    assert!(names(&decision).contains(&Brake::Modifications));
    // After its time it is over.
    now.unix_ms = NOW_MS + 2 * DAY_MS + 60_000;
    let (decision, after) = decide(&policy(), &now, &state);
    assert!(decision.intents.is_empty() && after.watch.is_none(), "{decision:#?}");
}

#[test]
fn decide_adds_up_the_waiting_of_windows() {
    let mut state = lowered();
    let mut now = now_on(fast(6_000));
    now.volumes[0].exceeded_s = Some(25);
    for (window, count) in [(1, 0), (2, 0), (3, 1)] {
        now.unix_ms = NOW_MS + DAY_MS + 60_000 + window * 900_000;
        let (decision, after) = decide(&policy(), &now, &state);
        assert_eq!(decision.intents.len(), count, "{window}: {decision:#?}");
        state = after;
    }
}

#[test]
fn ended_undo_ends_the_watch_and_lower_limits_wait_28_days() {
    let state = lowered();
    let mut now = now_on(fast(6_000));
    now.unix_ms = NOW_MS + DAY_MS + 130_000;
    now.volumes[0].exceeded_s = Some(90);
    let (decision, mut after) = decide(&policy(), &now, &state);
    state::begun(&mut after, only(&decision), now.unix_ms);
    let id = after.open[0].id.clone();
    state::ended(&mut after, &policy(), &id, true, now.unix_ms + 1);
    assert!(after.watch.is_none());
    let last = after.past.last().expect("a change");
    assert!(last.is_up && last.is_emergency && last.axis == Axis::Rate);
}

#[test]
fn ended_counts_failures_in_a_row() {
    let policy = policy();
    let mut state = State::default();
    let run = |state: &mut State, cancelled: bool, is_done: bool| {
        let operation = Operation::Remove { volume: "vol-2".to_owned() };
        state.open = vec![Open { cancelled, ..open("d-1.0", operation, 1) }];
        state::ended(state, &policy, "d-1.0", is_done, 2);
        (state.failures, state.past.last().expect("a change").is_done)
    };
    assert_eq!(run(&mut state, false, false), (1, false));
    assert_eq!(run(&mut state, false, false), (2, false));
    assert_eq!(run(&mut state, true, false), (2, false), "a cancelled one is no failure");
    assert_eq!(run(&mut state, true, true), (2, false), "and no success");
    assert_eq!(run(&mut state, false, true), (0, true));
    state::ended(&mut state, &policy, "unknown", true, 3);
    assert_eq!(state.past.len(), 5);
}

#[test]
fn decide_follows_schedules_and_goes_back() {
    let mut policy = policy();
    // Wednesday from 12:02 to 13:02.
    let window = Window { days: 0b000_0100, from_minute: 722, minutes: 60 };
    let schedule = Schedule { window, iops_min: Some(5_000), mibps_min: Some(300), gib_min: None };
    policy.schedules = vec![schedule];
    let now = now_on(fast(3_000));
    let (decision, mut state) = decide(&policy, &now, &State::default());
    let raised = spec(VolumeType::Gp3, 200, Some(5_000), Some(300));
    assert_eq!(rates(&decision), raised, "within the actuation time before");
    assert!(only(&decision).is_scheduled);
    state::begun(&mut state, only(&decision), NOW_MS);
    let id = state.open[0].id.clone();
    state::ended(&mut state, &policy, &id, true, NOW_MS + 1);
    assert_eq!(state.scheduled.len(), 1);
    let mut now = now_on(raised);
    now.unix_ms = NOW_MS + 3_600_000;
    assert!(decide(&policy, &now, &state).0.intents.is_empty());
    now.unix_ms = NOW_MS + 62 * 60_000;
    let (decision, mut state) = decide(&policy, &now, &state);
    assert_eq!(rates(&decision), fast(3_000));
    state::begun(&mut state, only(&decision), now.unix_ms);
    let id = state.open[0].id.clone();
    state::ended(&mut state, &policy, &id, true, now.unix_ms);
    assert!(state.scheduled.is_empty() && state.watch.is_none());
    // A schedule of the size.
    let mut policy = policy.clone();
    policy.schedules =
        vec![Schedule { iops_min: None, mibps_min: None, gib_min: Some(260), ..schedule }];
    assert_eq!(resized(&first(&policy, &now_on(fast(3_000)))).2, 260);
}
