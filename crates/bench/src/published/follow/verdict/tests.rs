//! Tests of the verdict.

use super::*;

/// Returns a run that keeps every check.
fn observed() -> Observed {
    let moment = |second: u64, gib: u64, used: u64, iops: u64| Moment {
        second,
        unix_s: 1_000 + second,
        phase: "calm",
        volumes: 2,
        provisioned_iops: iops,
        monthly_micro_usd: 10_000_000,
        size_bytes: gib << 30,
        used_bytes: used << 30,
        free_bytes: (gib - used) << 30,
        iops: 200,
        iops_busiest: 150,
        ..Moment::default()
    };
    let moments = vec![moment(0, 8, 2, 600), moment(1, 12, 4, 900), moment(2, 8, 2, 300)];
    Observed {
        moments: Moments(moments),
        operations: operations(&lines(&[
            "u-1 begins to add {\"type\":\"io2\"}: room is short",
            "u-1.0: add vol-3",
            "u-1.0: done",
            "u-2 begins to remove vol-3: too much room",
            "u-2.0: remove vol-3: for now: it runs",
            "u-2.0: done",
        ])),
        writes: (0..100).map(|took| Write { end_ms: 1_003_500, took_us: took * 100 }).collect(),
        failures: Vec::new(),
        busy: Vec::new(),
        checks: Vec::new(),
    }
}

/// Returns lines of an agent, a second apart.
fn lines(texts: &[&str]) -> Vec<(u64, String)> {
    let line = |(nth, text): (u64, &&str)| {
        (1_000_000 + nth * 1_000, format!("2026-11-25T19:00:00.000Z /srv {text}"))
    };
    (0..).zip(texts).map(line).collect()
}

#[test]
fn operations_are_read_from_the_lines_of_the_agent() {
    let operations = observed().operations;
    let [add, remove] = &operations[..] else { panic!("{operations:?}") };
    assert_eq!(
        (add.kind.as_str(), add.decided_ms, add.ended_ms),
        ("add", 1_000_000, Some(1_002_000))
    );
    assert_eq!(add.what, "{\"type\":\"io2\"}: room is short");
    assert_eq!((remove.kind.as_str(), remove.end.as_str()), ("remove", "done"));
    let open = operations_of("u-1 begins to remove vol-3: x");
    assert_eq!(open[0].ended_ms, None);
}

fn operations_of(text: &str) -> Vec<Operation> {
    operations(&lines(&[text]))
}

#[test]
fn run_that_follows_is_kept() {
    let found = Found::of(observed(), Vec::new());
    assert_eq!(found.verdict, Outcome::Kept, "{:?}", found.checks);
    assert_eq!((found.grow_s, found.shrink_s), (vec![2.0], vec![2.0]));
    // Two volumes of 4 GiB at 0.125 and 180 IOPS at 0.065 dollars.
    assert!((found.cost.of_static - 24.4).abs() < 1e-9, "{:?}", found.cost);
    assert_eq!(found.writes_in_moves.p99_ms, 9.8);
}

/// A fault of a run, and its name.
type Fault = (&'static str, fn(&mut Observed));

#[test]
fn each_fault_breaks_the_verdict() {
    let broken: [Fault; 6] = [
        ("full", |seen| seen.moments.0[1].free_bytes = 0),
        ("error", |seen| seen.failures.push("No space left on device".to_owned())),
        ("no growth", |seen| seen.moments.0[1].size_bytes = 8 << 30),
        ("no shrink", |seen| seen.moments.0[2].size_bytes = 12 << 30),
        ("IOPS stay", |seen| seen.moments.0[2].provisioned_iops = 900),
        ("cost", |seen| {
            seen.moments.0.iter_mut().for_each(|moment| moment.monthly_micro_usd = 90_000_000);
        }),
    ];
    for (name, breaks) in broken {
        let mut seen = observed();
        breaks(&mut seen);
        assert_eq!(Found::of(seen, Vec::new()).verdict, Outcome::Broken, "{name}");
    }
}

#[test]
fn slow_writes_are_undecided_on_a_busy_machine() {
    let mut slow = observed();
    slow.writes.iter_mut().for_each(|write| write.took_us = 30_000);
    let busy = Observed { busy: vec!["others".to_owned()], ..observed() };
    let busy = Observed { writes: slow.writes.clone(), ..busy };
    assert_eq!(Found::of(slow, Vec::new()).verdict, Outcome::Broken);
    assert_eq!(Found::of(busy, Vec::new()).verdict, Outcome::Undecided);
}
