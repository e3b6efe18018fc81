//! States as reported by the monitors, of two machines with two devices each and one with one.

use super::*;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).expect("what monitors answer")
}

/// A rule that spreads over hosts with OSDs 0 and 1, 2 and 3, and 4.
fn crush(domain: &str) -> Crush {
    let bucket = |id: i64, name: &str, of: &str, items: &[i64]| {
        let items: Vec<Value> = items.iter().map(|id| json!({"id": id})).collect();
        json!({"id": id, "name": name, "type_name": of, "items": items})
    };
    read(json!({
        "buckets": [
            bucket(-1, "default~ssd", "root", &[-2, -3, -4]),
            bucket(-2, "a~ssd", "host", &[0, 1]),
            bucket(-3, "b~ssd", "host", &[2, 3]),
            bucket(-4, "c~ssd", "host", &[4]),
        ],
        "rules": [{
            "rule_id": 0,
            "rule_name": "apart",
            "steps": [
                {"op": "take", "item": -1, "item_name": "default~ssd"},
                {"op": "chooseleaf_firstn", "num": 0, "type": domain},
                {"op": "emit"},
            ],
        }],
    }))
}

/// Returns the cluster with some OSDs down and some out.
fn osds(down: &[i64], out: &[i64]) -> OsdDump {
    let osds: Vec<Value> = (0..5)
        .map(|osd| {
            let [up, is_in] = [down, out].map(|gone| u8::from(!gone.contains(&osd)));
            json!({"osd": osd, "up": up, "in": is_in})
        })
        .collect();
    read(json!({
        "require_osd_release": "pacific",
        "pools": [{
            "pool": 1, "pool_name": "volumes", "type": 1, "size": 3, "min_size": 2,
            "crush_rule": 0, "quota_max_bytes": 0,
        }],
        "osds": osds,
    }))
}

fn state_of(domain: &str, down: &[i64], out: &[i64], groups: &[&str]) -> PoolState {
    let groups: Vec<Value> =
        groups.iter().map(|name| json!({"state_name": name, "count": 7})).collect();
    let osds = osds(down, out);
    let pool = osds.pool("volumes").expect("the pool");
    state(pool, &osds, &crush(domain), &read(json!({"pgmap": {"pgs_by_state": groups}})))
}

#[test]
fn a_pool_is_whole_degraded_or_recovering() {
    let clean = ["active+clean", "active+clean+scrubbing+deep"];
    assert_eq!(state_of("host", &[], &[], &clean), PoolState::Healthy);
    let lost = |words: &str| PoolState::Degraded { lost: words.to_owned() };
    let degraded = ["active+undersized+degraded", "active+clean"];
    assert_eq!(state_of("host", &[0, 1], &[], &degraded), lost("host a with osd.0, osd.1"));
    assert_eq!(state_of("host", &[2, 3, 4], &[], &degraded), lost("host b with osd.2, osd.3"));
    assert_eq!(state_of("osd", &[4], &[], &degraded), lost("osd.4 with osd.4"));
    for makes in ["active+recovering+degraded", "active+undersized+remapped+backfilling"] {
        let state = state_of("host", &[0, 1], &[0, 1], &[makes, "active+recovery_wait"]);
        assert_eq!(state, PoolState::Recovering);
    }
}

#[test]
fn other_states_of_a_pool_are_described_in_words() {
    let other =
        |down: &[i64], out: &[i64], groups: &[&str]| match state_of("host", down, out, groups) {
            PoolState::Other(why) => why,
            state => panic!("{state:?}"),
        };
    assert_eq!(
        other(&[4], &[], &["active+undersized+degraded"]),
        "without osd.4, which is less than its largest failure domain: that is host a with osd.0, \
         osd.1"
    );
    assert_eq!(
        other(&[0, 1], &[], &["peering", "active+clean"]),
        "7 of its placement groups peering"
    );
    assert_eq!(
        other(&[], &[], &["active+recovery_wait+degraded"]),
        "7 of its placement groups active+recovery_wait+degraded"
    );
    // All copies are restored elsewhere: the pool has another layout now, which no record
    // describes.
    assert_eq!(
        other(&[], &[0, 1], &["active+clean"]),
        "osd.0, osd.1 away, and what was there is elsewhere: bring it back, or take it out of the \
         CRUSH map"
    );
}

#[test]
fn layout_counts_the_devices_that_the_rule_may_choose() {
    let osds = osds(&[0], &[]);
    let pool = osds.pool("volumes").expect("the pool");
    assert_eq!(
        layout("fsid", pool, &crush("host")),
        Layout {
            cluster: "fsid".to_owned(),
            pool: "volumes".to_owned(),
            rule: "apart".to_owned(),
            domain: "host".to_owned(),
            copies: 3,
            copies_min: 2,
            devices: 5,
            recovery: None,
        }
    );
}
