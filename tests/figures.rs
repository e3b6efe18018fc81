//! The published figures that a short run can measure, by their verbs.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use serde_json::Value;
use support::bench::{benchmarks, run_long};
use support::machine::{alone, beside_others};
use support::tools::absent;

/// Runs `evenkeel-bench` with these arguments and returns its results.
fn bench(words: &str) -> Value {
    let folder = tempfile::tempdir().unwrap();
    let mut command = benchmarks(folder.path());
    command.args(words.split(' ')).args(["-o", "json"]);
    let output = run_long(command);
    serde_json::from_str(&output.stdout).unwrap_or_else(|error| panic!("{error}: {output}"))
}

/// The order and the times are exact; the other comparisons do not depend on speed.
#[test]
fn a_live_load_is_the_same_in_the_simulator() {
    if absent(&["fio"]) {
        return;
    }
    let _alone = alone();
    let found = bench("replay --time 3s");
    assert!(found["same"].as_u64().unwrap() > 5_000, "{found}");
    for volume in found["volumes"].as_array().unwrap() {
        assert_eq!(volume["same_order"], true, "{found}");
        assert!(volume["live_earlier_max_ns"].as_u64().unwrap() <= 100_000, "{found}");
    }
}

/// A pause of the machine affects all volumes of the instance alike: the shares stay even, and the
/// sum is too small, never too large.
#[test]
fn an_instance_s_limit_is_met_and_shared_evenly() {
    if absent(&["fio"]) {
        return;
    }
    let _alone = alone();
    let found = bench("instance --time 10s");
    let number = |name: &str| found[name].as_f64().unwrap();
    assert!(number("evenness") > 0.97, "{found}");
    // The saved tokens at the start are worth 50 ms, in a run of ten seconds.
    let of_cap = number("bytes_per_second") / number("cap_bytes_per_second");
    assert!((0.9..=1.01).contains(&of_cap), "{found}");
}

/// The control plane checks once a second whether balances have changed; the data plane does
/// nothing. If it polled, it would use all of a processor.
#[test]
fn idle_volumes_cost_little() {
    let _turn = beside_others();
    // With this many volumes a server's fixed cost, some 10 MB for threads and caches, has little
    // effect.
    let found = bench("idle --volumes 1000 --time 3s");
    assert!(found["cpu_s"].as_f64().unwrap() < 0.5, "{found}");
    assert!(found["resident_bytes_per_volume"].as_f64().unwrap() < 32_768.0, "{found}");
}

/// Every part of the measurement of a cluster has results, and no client of it fails. The machine's
/// speed does not matter here.
#[test]
#[ignore = "full: tests/cluster.rs::acknowledged_writes_are_served_by_other_nodes stays"]
fn the_figures_of_a_cluster_are_found() {
    if absent(&["fio", "etcd", "etcdctl", "ceph", "ceph-mon", "ceph-mgr", "ceph-osd", "rbd"]) {
        return;
    }
    let _alone = alone();
    let found = bench("cluster --quick");
    let rows = found["rows"].as_array().unwrap();
    for (figure, count) in [
        ("end of a lease to first answer, ", 2),
        ("outage, ", 4),
        ("the same, it led: ", 4),
        ("pause at a move, ", 4),
        ("worst second of a paced volume", 1),
        ("create", 2),
        ("modify", 1),
        ("commits of the journal", 2),
        ("describe", 2),
        ("memory of volumes without a client", 1),
        ("processor time of volumes without a client", 1),
    ] {
        let is_of = |row: &&Value| row["figure"].as_str().unwrap().starts_with(figure);
        assert_eq!(rows.iter().filter(is_of).count(), count, "{figure}: {found}");
    }
    let outage = rows.iter().find(|row| row["figure"] == "outage, client of another node, p50");
    // A node is lost when its lease ends, and not before.
    assert!(outage.unwrap()["seen"].as_f64().unwrap() > 1_000.0, "{found}");
}
