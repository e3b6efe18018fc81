//! Years of every kind of load, with and without faults.

use std::collections::BTreeSet;
use std::num::NonZero;
use std::sync::atomic::{AtomicUsize, Ordering};

use evenkeel_planner::autopilot::policy::{Mode, Policy};
use evenkeel_planner::fleet;

use super::report::{Options, reasons, report};
use super::run::{Outcome, Plan, run};
use super::*;
use crate::audit;

fn policy() -> Policy {
    Policy { mode: Mode::Act, ..Policy::usual("world", fleet::Policy::usual()) }
}

fn plan(generator: Generator, seed: u64, years: u32) -> Plan {
    Plan {
        generator,
        seed,
        years,
        faults: false,
        policy: policy(),
        every_minute: false,
        keeps_audit: false,
    }
}

/// Years of a kind of load in a run without `EVENKEEL_FUZZ_CASES`, with faults.
const WORLDS: u32 = 3;

/// Returns a number from the environment.
fn number(name: &str) -> Option<u32> {
    std::env::var(name).ok()?.parse().ok()
}

/// Returns the command that repeats a world.
fn again(plan: &Plan) -> String {
    let Plan { generator, seed, years, faults, .. } = plan;
    let faults = if *faults { " --faults" } else { "" };
    format!(
        "evenkeel sim autopilot --generator {generator} --seed {seed} --worlds 1 --years \
         {years}{faults} --audit audit.jsonl"
    )
}

/// Runs a world in which room must not lack, and every rule must hold.
fn holds(plan: &Plan) -> Outcome {
    let outcome = run(plan);
    let reasons = reasons(&outcome);
    assert!(reasons.is_empty(), "{}\nagain: {}", reasons.join("\n"), again(plan));
    outcome
}

#[test]
fn worlds_with_faults_have_room_and_keep_every_rule() {
    let worlds = number("EVENKEEL_FUZZ_CASES").map_or(WORLDS, |cases| cases.div_ceil(10));
    let kinds = Generator::ALL.len();
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(1, NonZero::get);
    let run_some = || {
        let mut checks = 0;
        let mut names = BTreeSet::new();
        loop {
            let number = next.fetch_add(1, Ordering::Relaxed);
            let seed = (number / kinds) as u64 + 1;
            if seed > u64::from(worlds) {
                return (checks, names);
            }
            let generator = Generator::ALL[number % kinds];
            let outcome = holds(&Plan { faults: true, ..plan(generator, seed, 1) });
            checks += outcome.checks;
            names.extend(outcome.operations.into_keys());
        }
    };
    let mut checks = 0;
    let mut names = BTreeSet::new();
    std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads).map(|_| scope.spawn(run_some)).collect();
        for thread in running {
            let (checked, seen) = thread.join().expect("the message is above");
            checks += checked;
            names.extend(seen);
        }
    });
    println!("{} years, {checks} checks", 10 * worlds);
    for name in ["add", "delete", "modify", "remove", "replace"] {
        assert!(names.contains(name), "no operation {name} in {names:?}");
    }
}

/// Worlds in which a rule did not hold once.
#[test]
fn worlds_that_found_something_have_room_and_keep_every_rule() {
    use Generator::{Imports, Purges, Restore, Retention};
    for (generator, seed) in [
        // A clock that was set back hid how fast the file system grows, and its step was too small.
        (Purges, 278),
        // The only modification was used, and for hours no further volume could be had.
        (Purges, 77),
        (Purges, 437),
        (Purges, 835),
        (Restore, 938),
        // No alarm below the reserve, while a growth was open that the API did not carry out.
        (Imports, 264),
        (Purges, 697),
        (Restore, 799),
        // For hours the service refused the only request that gives room.
        (Purges, 371),
        (Purges, 601),
        (Restore, 468),
        // The way back of a growth beside another one.
        (Retention, 805),
    ] {
        holds(&Plan { faults: true, ..plan(generator, seed, 1) });
    }
}

#[test]
fn world_with_left_out_ticks_decides_as_with_all_of_them() {
    // All of them take minutes: `cargo x fuzz autopilot` runs them.
    let kinds = if number("EVENKEEL_FUZZ_CASES").is_some() { Generator::ALL.len() } else { 1 };
    for generator in Generator::ALL.into_iter().take(kinds) {
        let plan = plan(generator, 3, 1);
        let some = holds(&plan);
        let all = holds(&Plan { every_minute: true, ..plan.clone() });
        assert_eq!(some.acted, all.acted, "{}", again(&plan));
        assert_eq!((some.full, some.cost_micro), (all.full, all.cost_micro), "{}", again(&plan));
        assert!(some.ticks < all.ticks / 5, "{} of {} ticks", some.ticks, all.ticks);
    }
}

#[test]
fn world_of_a_seed_repeats_its_audit() {
    let audit_of = |seed| {
        run(&Plan { faults: true, keeps_audit: true, ..plan(Generator::Imports, seed, 1) }).audit
    };
    let audit = audit_of(7);
    assert_eq!(audit, audit_of(7));
    let mut decisions = 0;
    for line in audit.iter().step_by(20) {
        let Ok(decided) = audit::read(line) else { continue };
        assert_eq!(audit::replay(&decided, &policy()), Ok(audit::Replayed::Same), "{line}");
        decisions += 1;
    }
    assert!(decisions > 100, "{decisions} decisions");
}

#[test]
fn world_lacks_room_if_nothing_grows() {
    let mut policy = policy();
    policy.space.is_managed = false;
    let outcome = run(&Plan { policy, ..plan(Generator::Imports, 1, 1) });
    assert!(!outcome.full.is_empty(), "no import filled the file system");
}

#[test]
fn other_rules_lack_room_in_worlds_where_the_policy_does_not() {
    let options = Options {
        generators: vec![Generator::Imports],
        seed: 1,
        worlds: 6,
        years: 1,
        faults: false,
        compares: true,
        policy: policy(),
    };
    let report = report(&options, &mut |_, _| {});
    assert_eq!(report.failed, []);
    let others = &report.rows[0].others;
    // It looks at the growth of the last hours only, and waits six hours after a change.
    let of_rds = others[Rival::Rds.name()];
    assert!(of_rds.full_events > 0, "{others:?}");
}

#[test]
fn paused_autopilot_makes_no_call() {
    let mut policy = policy();
    policy.is_paused = true;
    let outcome = run(&Plan { policy, ..plan(Generator::Daily, 1, 1) });
    assert_eq!(outcome.steps, 0);
    let calls = outcome.violations.iter().filter(|violation| violation.rule == 12);
    assert_eq!(calls.count(), 0);
}

/// The bounds that hold for few worlds too. docs/experiments has the figures of many.
#[test]
fn costs_stay_within_their_bounds() {
    let options = Options {
        generators: Generator::ALL.to_vec(),
        seed: 1,
        worlds: 2,
        years: 1,
        faults: false,
        compares: false,
        policy: policy(),
    };
    let report = report(&options, &mut |_, _| {});
    assert_eq!(report.failed, []);
    let of_clairvoyant: u64 = report.rows.iter().map(|row| row.of_clairvoyant).sum();
    let of_best_static: u64 = report.rows.iter().map(|row| row.of_best_static).sum();
    let of_btrfs: u64 = report.rows.iter().map(|row| row.of_best_static_btrfs).sum();
    let kinds = u64::try_from(report.rows.len()).unwrap();
    assert!(of_clairvoyant / kinds <= 1_350, "{of_clairvoyant} of {kinds} kinds");
    assert!(of_best_static / kinds <= 1_025, "{of_best_static} of {kinds} kinds");
    assert!(of_btrfs / kinds <= 920, "{of_btrfs} of {kinds} kinds");
}
