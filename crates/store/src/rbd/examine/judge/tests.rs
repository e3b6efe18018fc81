//! Each fault alone, in a cluster without others.

use super::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("what monitors answer")
}

fn pool(name: &str, rule: i64) -> Value {
    json!({
        "pool": 1, "pool_name": name, "type": 1, "size": 3, "min_size": 2, "crush_rule": rule,
        "quota_max_bytes": 0,
    })
}

fn rule(id: i64, root: i64, domain: &str) -> Value {
    json!({
        "rule_id": id,
        "steps": [
            {"op": "take", "item": root, "item_name": "a root"},
            {"op": "chooseleaf_firstn", "num": 0, "type": domain},
            {"op": "emit"},
        ],
    })
}

fn stored(name: &str, stored: u64, max_avail: u64) -> Value {
    json!({"name": name, "stats": {"stored": stored, "max_avail": max_avail}})
}

fn values(value: &str) -> Values {
    Ok(vec![value.to_owned()])
}

/// Returns a cluster without a fault: two roots with OSDs 0 to 2 and 3 to 5, and the shadow of the
/// first root for the class of its devices.
fn good() -> Seen {
    let bucket = |id: i64, items: &[i64]| {
        let items: Vec<Value> = items.iter().map(|id| json!({"id": id})).collect();
        json!({"id": id, "items": items})
    };
    let osds: Vec<Value> = (0..6).map(|osd| json!({"osd": osd, "up": 1})).collect();
    Seen {
        fsid: "9e4044ce-8702-4520-b162-1040a4076028".to_owned(),
        pool: "evenkeel".to_owned(),
        osds: read(json!({
            "require_osd_release": "pacific",
            "pools": [pool("evenkeel", 0), pool(".mgr", 0), pool("cold", 1)],
            "osds": osds,
        })),
        crush: read(json!({
            "buckets": [
                bucket(-1, &[-2, -3]), bucket(-2, &[0, 1]), bucket(-3, &[2]),
                bucket(-4, &[3, 4, 5]), bucket(-5, &[-6]), bucket(-6, &[1]),
            ],
            "rules": [rule(0, -1, "host"), rule(1, -4, "host"), rule(2, -5, "host")],
        })),
        health: read(json!({"status": "HEALTH_OK", "checks": {}})),
        df: read(json!({"pools": [stored("evenkeel", 10 * GIB, 90 * GIB)]})),
        propose_s: values("0.100000"),
        queue: values("mclock_scheduler"),
        profile: values("high_client_ops"),
        grace_s: values("20"),
    }
}

/// Returns the faults of a good cluster after one change.
fn faults(change: impl FnOnce(&mut Seen)) -> Vec<Finding> {
    let mut seen = good();
    change(&mut seen);
    let findings = findings(&seen);
    for finding in &findings {
        assert_eq!(finding.advice.is_empty(), finding.weight == Weight::Well, "{finding:?}");
    }
    findings.into_iter().filter(|finding| finding.weight != Weight::Well).collect()
}

/// Returns the only fault of a change: its check, and the state that was found.
fn fault(change: impl FnOnce(&mut Seen)) -> (&'static str, String) {
    let mut faults = faults(change);
    assert_eq!(faults.len(), 1, "{faults:?}");
    faults.pop().map(|fault| (fault.what, fault.found)).expect("one")
}

fn ours(seen: &mut Seen) -> &mut PoolDump {
    &mut seen.osds.pools[0]
}

#[test]
fn a_good_cluster_has_no_fault() {
    assert_eq!(faults(|_| ()), []);
    assert_eq!(findings(&good()).len(), 9);
}

#[test]
fn pools_on_the_same_devices_are_named_under_any_rule() {
    // The pool of another root, moved to the same rule, then to a class of the same devices.
    for id in [0, 2] {
        let (what, found) = fault(|seen| {
            seen.osds.pools[2].crush_rule = id;
            seen.df.pools.push(read(stored("cold", 7 * GIB, 0)));
        });
        assert_eq!((what, found.as_str()), ("Ceph neighbours", "on the same OSDs: cold (7 GiB)"));
    }
    let crush = good().crush;
    assert_eq!(crush.osds(0), BTreeSet::from([0, 1, 2]));
    assert_eq!(crush.osds(2), BTreeSet::from([1]));
    assert_eq!(crush.osds(7), BTreeSet::new());
}

#[test]
fn a_tree_that_holds_itself_ends() {
    let crush: Crush = read(json!({
        "buckets": [{"id": -1, "items": [{"id": -1}, {"id": 4}]}],
        "rules": [rule(0, -1, "host")],
    }));
    assert_eq!(crush.osds(0), BTreeSet::from([4]));
}

#[test]
fn few_copies_and_copies_on_one_machine_are_faults() {
    assert_eq!(fault(|seen| ours(seen).size = 1).0, "Ceph copies");
    assert_eq!(fault(|seen| ours(seen).min_size = 1).0, "Ceph copies");
    let coded = faults(|seen| ours(seen).kind = 3);
    assert_eq!(coded[0].weight, Weight::Unusable);
    let (what, found) = fault(|seen| {
        seen.crush.rules[0] = read(rule(0, -1, "osd"));
    });
    assert_eq!(what, "Ceph failure domain");
    assert!(found.contains("one machine"), "{found}");
    let nowhere = faults(|seen| seen.crush.rules.clear());
    assert_eq!(nowhere[0].what, "Ceph failure domain", "{nowhere:?}");
}

#[test]
fn space_counts_the_quota() {
    let (what, found) = fault(|seen| ours(seen).quota_max_bytes = 11 * GIB);
    assert_eq!((what, found.as_str()), ("Ceph space", "1 of 11 GiB free in evenkeel by its quota"));
    assert_eq!(fault(|seen| seen.df.pools[0].stats.max_avail = GIB).0, "Ceph space");
    assert_eq!(fault(|seen| seen.df.pools.clear()).0, "Ceph space");
    assert_eq!(fault(|seen| ours(seen).quota_max_bytes = GIB).0, "Ceph space");
}

#[test]
fn harmful_settings_are_faults_even_in_one_daemon() {
    let of_two = || Ok(vec!["0.100000".to_owned(), "1.000000".to_owned()]);
    let (what, found) = fault(|seen| seen.propose_s = of_two());
    assert_eq!((what, found.as_str()), ("Ceph map changes", "monitors gather them for 1 s"));
    assert_eq!(fault(|seen| seen.queue = values("wpq")).0, "Ceph recovery");
    assert_eq!(fault(|seen| seen.profile = values("balanced")).0, "Ceph recovery");
    let (what, found) = fault(|seen| seen.grace_s = Err("access denied".to_owned()));
    assert_eq!(what, "Ceph hung devices");
    assert!(found.ends_with("access denied"), "{found}");
    let (_, found) = fault(|seen| {
        let checks = json!({"POOL_NEARFULL": {"summary": {"message": "1 pool(s) nearfull"}}});
        seen.health = read(json!({"status": "HEALTH_WARN", "checks": checks}));
    });
    assert_eq!(found, "HEALTH_WARN: 1 pool(s) nearfull");
}
