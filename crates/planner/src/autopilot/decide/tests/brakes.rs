//! Each brake of `brakes.rs` and `retired.rs`, and the modes.

use super::*;
use crate::autopilot::policy::{Schedule, Window};
use crate::autopilot::state::{Hold, Scheduled};

/// Returns a file system that would be shrunk, and one that would grow.
fn shrinks() -> Observation {
    btrfs(&[gp3(400)], 100)
}

fn grows() -> Observation {
    btrfs(&[gp3(100)], 95)
}

fn with(state: State, now: &Observation) -> Decision {
    decide(&policy(), now, &state).0
}

/// Asserts that a shrink is braked with a reason, and growth is not.
fn only_growth(policy: &Policy, state: &State, change: impl Fn(&mut Observation), brake: Brake) {
    let mut less = shrinks();
    let mut more = grows();
    change(&mut less);
    change(&mut more);
    let (decision, _) = decide(policy, &less, state);
    assert!(decision.intents.is_empty(), "{decision:#?}");
    assert!(names(&decision).contains(&brake), "{decision:#?}");
    let (decision, _) = decide(policy, &more, state);
    assert_eq!(decision.intents.len(), 1, "{decision:#?}");
}

#[test]
fn decide_does_nothing_while_it_is_paused_or_held() {
    let paused = Policy { is_paused: true, ..policy() };
    let decision = first(&paused, &grows());
    assert!(decision.intents.is_empty() && decision.is_stopped);
    assert!(names(&decision).contains(&Brake::Paused));
    let hold = |allows_growth: bool, until_ms: u64| State {
        hold: Some(Hold { until_ms, reason: "a restore".to_owned(), allows_growth }),
        ..State::default()
    };
    let decision = with(hold(false, NOW_MS + 1), &grows());
    assert!(decision.intents.is_empty() && decision.is_stopped);
    assert!(reason(&decision, Brake::Hold).ends_with(": a restore"));
    assert!(!with(hold(false, NOW_MS), &grows()).is_stopped, "it is over");
    // A hold that the autopilot sets allows growth.
    only_growth(&policy(), &hold(true, NOW_MS + 1), |_| (), Brake::Hold);
    assert!(!with(hold(true, NOW_MS + 1), &shrinks()).is_stopped);
}

#[test]
fn decide_lists_intents_that_the_mode_does_not_carry_out() {
    for (mode, words) in [(Mode::Observe, "`observe`"), (Mode::Advise, "`advise`")] {
        let decision = first(&Policy { mode, ..policy() }, &grows());
        assert_eq!(decision.intents.len(), 1);
        assert_eq!(names(&decision), [Brake::Mode]);
        assert!(reason(&decision, Brake::Mode).contains(words));
    }
}

#[test]
fn decide_forbids_all_but_growth_with_stale_sources() {
    let old = Some(180_001);
    only_growth(&policy(), &State::default(), |now| now.ages.volumes_ms = old, Brake::Stale);
    only_growth(&policy(), &State::default(), |now| now.ages.counters_ms = None, Brake::Stale);
    only_growth(&policy(), &State::default(), |now| now.ages.file_system_ms = old, Brake::Stale);
    let skewed = |now: &mut Observation| now.ages.clock_skew_ms = Some(60_001);
    only_growth(&policy(), &State::default(), skewed, Brake::Stale);
    let mut now = shrinks();
    now.ages.volumes_ms = Some(180_000);
    now.ages.clock_skew_ms = None;
    assert_eq!(first(&policy(), &now).intents.len(), 1);
}

#[test]
fn decide_does_not_shrink_under_these_conditions() {
    let conditions = Conditions::default();
    for (conditions, words) in [
        (Conditions { scrub: true, ..conditions }, "a scrub runs"),
        (Conditions { balance: true, ..conditions }, "a balance runs or is paused"),
        (Conditions { snapshot_pending: true, ..conditions }, "a snapshot of a volume is pending"),
        (
            Conditions { pinned: true, ..conditions },
            "a mount, a swap file or another program needs a device",
        ),
    ] {
        let set = |now: &mut Observation| now.file_system.conditions = conditions;
        only_growth(&policy(), &State::default(), set, Brake::Condition);
        let mut now = shrinks();
        set(&mut now);
        assert_eq!(reason(&first(&policy(), &now), Brake::Condition), words);
    }
    let errors = |now: &mut Observation| now.file_system.devices[0].errors = 2;
    only_growth(&policy(), &State::default(), errors, Brake::Condition);
    let mut now = shrinks();
    errors(&mut now);
    assert_eq!(first(&policy(), &now).alarms, ["/dev/nvme1n1 has 2 errors"]);
    // A file system that is read-only cannot grow, either.
    let mut now = grows();
    now.file_system.conditions.degraded = true;
    let decision = first(&policy(), &now);
    assert!(decision.intents.is_empty());
    assert!(decision.alarms.contains(&"/data is degraded or read-only".to_owned()));
}

/// 2026-07-01 is a Wednesday.
#[test]
fn decide_shrinks_in_a_window() {
    let window = |days: u8, from_minute: u16, minutes: u16| Window { days, from_minute, minutes };
    let is_shrunk = |window: Window| {
        let policy = Policy { windows: vec![window], ..policy() };
        let decision = first(&policy, &shrinks());
        assert_eq!(first(&policy, &grows()).intents.len(), 1);
        (decision.intents.len() == 1, decision.brakes.first().map(|braked| braked.reason.clone()))
    };
    assert_eq!(is_shrunk(window(0b000_0100, 720, 1)), (true, None));
    assert_eq!(is_shrunk(window(0b000_0010, 1_439, 722)), (true, None), "over midnight");
    assert_eq!(is_shrunk(window(0b111_1111, 0, 1_440)), (true, None));
    let (is_shrunk_now, reason) = is_shrunk(window(0b000_0100, 721, 60));
    assert!(!is_shrunk_now);
    let start = "shrinking waits for a window of the policy: 2026-07-01T12:01:00";
    assert!(reason.as_ref().is_some_and(|reason| reason.starts_with(start)), "{reason:?}");
    let (_, reason) = is_shrunk(window(0b000_0100, 660, 60));
    let start = "shrinking waits for a window of the policy: 2026-07-08T11:00:00";
    assert!(reason.as_ref().is_some_and(|reason| reason.starts_with(start)), "{reason:?}");
    // Sunday from 23:00 to Monday 01:00.
    let mut now = shrinks();
    now.unix_ms = NOW_MS - 2 * DAY_MS - 12 * 3_600_000 + 59 * 60_000;
    let policy = Policy { windows: vec![window(0b100_0000, 1_380, 120)], ..policy() };
    assert_eq!(first(&policy, &now).intents.len(), 1);
    now.unix_ms += 60_000;
    assert_eq!(first(&policy, &now).intents.len(), 0);
}

#[test]
fn decide_waits_between_opposite_changes() {
    let state = |past: Past| State { past: vec![past], ..State::default() };
    let grown = past(Axis::Space, true, 7 * DAY_MS - 1);
    only_growth(&policy(), &state(grown.clone()), |_| (), Brake::Opposite);
    let before = past(Axis::Space, true, 7 * DAY_MS);
    assert_eq!(with(state(before.clone()), &shrinks()).intents.len(), 1);
    // After an emergency it is 28 days.
    let emergency = Past { is_emergency: true, ..past(Axis::Space, true, 28 * DAY_MS - 1) };
    let decision = with(state(emergency.clone()), &shrinks());
    assert!(
        reason(&decision, Brake::Opposite).starts_with("an opposite emergency was 28 days ago")
    );
    let ended = Past { ended_ms: emergency.ended_ms - 1, ..emergency };
    assert_eq!(with(state(ended), &shrinks()).intents.len(), 1);
    // A step down waits for quiet days, and failures are no changes.
    let less = past(Axis::Space, false, 7 * DAY_MS - 1);
    assert!(names(&with(state(less.clone()), &shrinks())).contains(&Brake::Opposite));
    let failed = Past { is_done: false, ..grown };
    assert_eq!(with(state(failed), &shrinks()).intents.len(), 1);
    assert_eq!(with(state(past(Axis::Rate, true, 1)), &shrinks()).intents.len(), 1);
    // Growth after a step down is an emergency only by its need.
    assert!(only(&with(state(less), &grows())).is_emergency);
}

#[test]
fn decide_grows_within_days_of_a_step_down_as_an_emergency() {
    let mut now = of_kind(Kind::Xfs, btrfs(&[gp3(200)], 100));
    now.file_system.free_bytes = 30_000 * MIB + GIB;
    let state = State { past: vec![past(Axis::Space, false, DAY_MS)], ..steady(&now) };
    let (decision, _) = decide(&policy(), &now, &state);
    assert!(only(&decision).is_emergency, "{decision:#?}");
    assert!(!only(&with(steady(&now), &now)).is_emergency);
    // So does a btrfs by a further volume, if its volume cannot be modified.
    let mut now = btrfs(&[gp3(200)], 100);
    now.file_system.free_bytes = 30_000 * MIB + GIB;
    now.volumes[0].modifiable_from_ms = Some(NOW_MS + 1);
    let state = State { past: vec![past(Axis::Space, false, DAY_MS)], ..State::default() };
    let decision = with(state, &now);
    let intent = only(&decision);
    assert!(intent.is_emergency && matches!(intent.operation, Operation::Add { .. }));
    assert!(!only(&first(&policy(), &now)).is_emergency);
}

#[test]
fn decide_runs_one_operation_of_a_file_system() {
    let rate = Operation::Modify {
        volume: "vol-1".to_owned(),
        from: gp3(100),
        to: spec(VolumeType::Gp3, 100, Some(4_000), None),
    };
    let growth = Operation::Modify { volume: "vol-1".to_owned(), from: gp3(90), to: gp3(100) };
    let state = |operation: Operation, ago_ms: u64| State {
        open: vec![open("d-1.0", operation, NOW_MS - ago_ms)],
        ..State::default()
    };
    let decision = with(state(growth.clone(), 1), &grows());
    assert!(decision.intents.is_empty());
    assert_eq!(reason(&decision, Brake::Busy), "the operation d-1.0 has not ended");
    assert!(decision.alarms.is_empty(), "it is under way: {decision:#?}");
    // An emergency does not wait for limits of another volume, or for growth that is stuck.
    let two = btrfs(&[gp3(100), gp3(100)], 195);
    assert_eq!(resized(&with(state(rate, 1), &two)).0, "vol-2");
    assert_eq!(with(state(growth.clone(), 480_000), &two).intents.len(), 0);
    assert_eq!(resized(&with(state(growth, 480_001), &two)).0, "vol-2");
    // A deletion is no operation of the file system.
    let deletion = Operation::Delete { volume: "vol-8".to_owned() };
    assert_eq!(with(state(deletion, 1), &grows()).intents.len(), 1);
    // Nor does growth wait for a program that holds the kernel's lock.
    let foreign = |now: &mut Observation| {
        now.file_system.running = Some(Running {
            kind: RunningKind::Foreign,
            devid: None,
            done_permille: None,
            pace_bytes_per_s: None,
        });
    };
    only_growth(&policy(), &State::default(), foreign, Brake::Busy);
}

#[test]
fn decide_limits_the_blast_radius() {
    let busy_host = |now: &mut Observation| now.instance.as_mut().unwrap().operations = 2;
    only_growth(&policy(), &State::default(), busy_host, Brake::BlastRadius);
    // 5 % of 1,000 volumes.
    let busy_fleet = |now: &mut Observation| now.account.fleet_changed_last_hour = 50;
    only_growth(&policy(), &State::default(), busy_fleet, Brake::BlastRadius);
    let mut now = shrinks();
    now.account.fleet_changed_last_hour = 49;
    assert_eq!(first(&policy(), &now).intents.len(), 1);
    // One volume of a small fleet always may.
    now.account = Account { fleet_volumes: 3, ..Account::default() };
    assert_eq!(first(&policy(), &now).intents.len(), 1);
}

/// More of the same type does no harm, and requests wait for it.
#[test]
fn decide_raises_limits_whatever_else_changed_in_the_last_hour() {
    let faster = |t: VolumeType| spec(t, 400, Some(4_000), None);
    let mut now = btrfs(&[gp3(400)], 320);
    now.account.fleet_changed_last_hour = 1_000;
    let host = now.instance.as_mut().unwrap();
    host.operations = 9;
    host.instance_type = "m5.24xlarge".to_owned();
    now.volumes[0].exceeded_s = Some(61);
    let mut with_up = |to: VolumeSpec| {
        let up = Judged { up: proposal(to), ..judged("vol-1") };
        now.evidence = evidence(vec![up], NOW_MS - 1);
        let mut policy = policy();
        policy.budget.cost_factor_max = 100;
        first(&policy, &now)
    };
    assert_eq!(only(&with_up(faster(VolumeType::Gp3))).axis, Axis::Rate);
    let decision = with_up(faster(VolumeType::Io2));
    assert!(decision.intents.is_empty(), "{decision:#?}");
    assert!(names(&decision).contains(&Brake::BlastRadius));
    // So do schedules, and their end waits.
    let mut policy = policy();
    let window = Window { days: 0b000_0100, from_minute: 722, minutes: 60 };
    let schedule = Schedule { window, iops_min: Some(5_000), mibps_min: None, gib_min: None };
    policy.schedules = vec![schedule];
    let mut now = btrfs(&[gp3(400)], 320);
    now.account.fleet_changed_last_hour = 1_000;
    let (decision, mut state) = decide(&policy, &now, &State::default());
    assert!(only(&decision).is_scheduled, "{decision:#?}");
    state.scheduled = vec![Scheduled { volume: "vol-1".to_owned(), before: gp3(400) }];
    now.volumes[0].spec.iops = Some(5_000);
    now.unix_ms += 62 * 60_000;
    let (decision, _) = decide(&policy, &now, &state);
    assert!(names(&decision).contains(&Brake::BlastRadius), "{decision:#?}");
}

#[test]
fn decide_stops_after_failures_and_tries_growth_again_later() {
    let failed = |failures: u32, axis: Axis, is_up: bool, ago_ms: u64| State {
        failures,
        past: vec![Past { is_done: false, ..past(axis, is_up, ago_ms) }],
        ..State::default()
    };
    let decision = with(failed(3, Axis::Space, false, DAY_MS), &shrinks());
    assert!(decision.intents.is_empty());
    assert!(reason(&decision, Brake::Failures).starts_with("3 operations failed in a row, and"));
    assert!(decision.alarms[0].starts_with("3 operations failed in a row"));
    assert_eq!(with(failed(3, Axis::Space, false, DAY_MS), &grows()).intents.len(), 1);
    assert_eq!(with(failed(1, Axis::Space, false, 3_599_999), &shrinks()).intents.len(), 0);
    assert_eq!(with(failed(1, Axis::Space, false, 3_600_000), &shrinks()).intents.len(), 1);
    // The wait before growth doubles, up to a quarter of an hour, if only the reserve is touched.
    let mut enough = grows();
    enough.file_system.free_bytes = 30 * GIB;
    assert_eq!(with(failed(2, Axis::Space, true, 119_999), &enough).intents.len(), 0);
    assert_eq!(with(failed(2, Axis::Space, true, 120_000), &enough).intents.len(), 1);
    assert_eq!(with(failed(u32::MAX, Axis::Space, true, 899_999), &enough).intents.len(), 0);
    assert_eq!(with(failed(u32::MAX, Axis::Space, true, 900_000), &enough).intents.len(), 1);
    // Below the need it is a minute, and the other way to grow is tried at once.
    assert_eq!(with(failed(8, Axis::Space, true, 59_999), &grows()).intents.len(), 0);
    assert_eq!(with(failed(8, Axis::Space, true, 60_000), &grows()).intents.len(), 1);
    assert_eq!(with(failed(9, Axis::Space, true, 0), &grows()).intents.len(), 1);
    let xfs = of_kind(Kind::Xfs, grows());
    let reading = steady(&xfs).reading;
    let only_way = |ago_ms: u64| State { reading, ..failed(9, Axis::Space, true, ago_ms) };
    assert_eq!(with(only_way(59_999), &xfs).intents.len(), 0);
    assert_eq!(with(only_way(60_000), &xfs).intents.len(), 1);
}

/// A growth that the service does not carry out is an alarm below the reserve, also while it is
/// open.
#[test]
fn decide_has_an_alarm_below_the_reserve_while_a_growth_is_open() {
    let growth = Operation::Modify { volume: "vol-1".to_owned(), from: gp3(100), to: gp3(110) };
    let state = State { open: vec![open("d-1.0", growth, NOW_MS - 1)], ..State::default() };
    let mut now = grows();
    now.file_system.free_bytes = 2 * GIB;
    let decision = with(state.clone(), &now);
    assert!(decision.alarms.is_empty(), "{decision:#?}");
    now.file_system.free_bytes -= 1;
    let decision = with(state, &now);
    assert!(decision.intents.is_empty(), "{decision:#?}");
    assert!(decision.alarms[0].contains("the operation d-1.0 has not ended"), "{decision:#?}");
}

#[test]
fn decide_allows_only_growth_when_half_of_the_error_budget_is_used() {
    let state =
        |slow_month_ms: u64| State { slow_month_ms, slow_month: 56 * 12 + 6, ..State::default() };
    only_growth(&policy(), &state(30 * 60_000), |_| (), Brake::ErrorBudget);
    assert_eq!(with(state(29 * 60_000), &shrinks()).intents.len(), 1);
    // Another month begins anew.
    let (decision, after) =
        decide(&policy(), &shrinks(), &State { slow_month: 1, ..state(90 * 60_000) });
    assert_eq!((decision.intents.len(), after.slow_month_ms, after.slow_month), (1, 0, 678));
}

#[test]
fn decide_respects_the_cooldown_of_the_service() {
    let mut now = of_kind(Kind::Xfs, grows());
    let state = steady(&now);
    now.volumes[0].modifiable_from_ms = Some(NOW_MS + 60_000);
    let decision = with(state.clone(), &now);
    assert!(decision.intents.is_empty());
    let expected = "vol-1 can be modified from 2026-07-01T12:01:00";
    assert!(reason(&decision, Brake::Cooldown).starts_with(expected), "{decision:#?}");
    now.volumes[0].modifiable_from_ms = Some(NOW_MS);
    assert_eq!(with(state.clone(), &now).intents.len(), 1);
    now.volumes[0].modification = Some(crate::autopilot::observation::Modification::Optimizing);
    let decision = with(state, &now);
    assert_eq!(reason(&decision, Brake::Cooldown), "the last modification of vol-1 is optimizing");
}

#[test]
fn decide_deletes_retired_volumes_after_their_grace_time() {
    let mut now = btrfs(&[gp3(100)], 60);
    let retired = Volume {
        state: VolumeState::Available,
        retired_ms: Some(NOW_MS - 24 * 3_600_000),
        has_superblock: Some(false),
        ..volume("vol-9", gp3(50))
    };
    now.volumes.push(retired.clone());
    let decision = first(&policy(), &now);
    let intent = only(&decision);
    assert_eq!(intent.operation, Operation::Delete { volume: "vol-9".to_owned() });
    assert_eq!(intent.commands, ["aws ec2 delete-volume --volume-id vol-9"]);
    let with_retired = |volume: Volume| {
        let mut now = now.clone();
        now.volumes[1] = volume;
        first(&policy(), &now)
    };
    let early = Volume { retired_ms: Some(NOW_MS - 24 * 3_600_000 + 1), ..retired.clone() };
    assert!(reason(&with_retired(early), Brake::Condition).starts_with("vol-9 is kept for 24 h"));
    let attached = Volume { state: VolumeState::Attached, ..retired.clone() };
    assert!(with_retired(attached).intents.is_empty());
    let used = with_retired(Volume { has_superblock: Some(true), ..retired.clone() });
    assert!(used.intents.is_empty() && used.alarms.len() == 1, "{used:#?}");
    // Never one that the file system lists.
    let mut listed = now.clone();
    listed.file_system.devices[0].volume = Some("vol-9".to_owned());
    assert!(first(&policy(), &listed).intents.is_empty());
    // Nor one without the mark, although it is not in use: a person looks.
    let orphan = Volume { retired_ms: None, made_by: Some("d-7.0".to_owned()), ..retired.clone() };
    let decision = with_retired(orphan);
    assert!(decision.intents.is_empty());
    assert!(decision.alarms[0].starts_with("vol-9 was made by the operation d-7.0"));
    let open_one = State {
        open: vec![open("d-2.0", Operation::Delete { volume: "vol-9".to_owned() }, 1)],
        ..State::default()
    };
    assert!(decide(&policy(), &now, &open_one).0.intents.is_empty(), "once");
}

#[test]
fn decide_alarms_if_an_open_operation_waits_for_long() {
    let mut state = State {
        open: vec![open("d-2.0", Operation::Delete { volume: "vol-9".to_owned() }, 1)],
        ..State::default()
    };
    let waits = |state: &mut State, reason: &str, ago_ms: u64| {
        state::waits(state, "d-2.0", Some(reason.to_owned()), NOW_MS - ago_ms);
    };
    waits(&mut state, "vol-9 is being attached", 900_000);
    waits(&mut state, "no device after 7 tries", 300_000);
    waits(&mut state, "no device after 8 tries", 1);
    let mut now = btrfs(&[gp3(100)], 60);
    let alarms = |now: &Observation, state: &State| decide(&policy(), now, state).0.alarms;
    let late = "the operation d-2.0 has waited for 5 minutes: no device after 8 tries";
    assert_eq!(alarms(&now, &state), [late]);
    // A scrub or a move lasts.
    now.file_system.conditions.scrub = true;
    assert_eq!(alarms(&now, &state), Vec::<String>::new());
    now.file_system.conditions.scrub = false;
    state::waits(&mut state, "d-2.0", None, NOW_MS);
    assert_eq!(alarms(&now, &state), Vec::<String>::new());
}
