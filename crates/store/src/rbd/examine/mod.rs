//! What a Ceph cluster takes away from the promise of its volumes, and what to change there. Only
//! looks: nothing is made, set or written.

mod judge;

use super::cluster::{Cluster, Df, Place};
use crate::StoreError;
use judge::{Crush, Health, OsdDump, Seen};
use serde::Deserialize;

/// Daemons of one kind that are asked for their settings.
const ASKED_MAX: usize = 16;

/// How much a finding matters.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weight {
    /// All is well.
    Well,
    /// Volumes are served, but something is worse than it could be.
    Worse,
    /// Volumes cannot be served like this.
    Unusable,
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The name of the check.
    pub what: &'static str,
    /// How much it matters.
    pub weight: Weight,
    /// What is there.
    pub found: String,
    /// What to do; empty if all is well.
    pub advice: String,
}

/// The monitors' names.
#[derive(Deserialize)]
struct MonDump {
    mons: Vec<Mon>,
}

#[derive(Deserialize)]
struct Mon {
    name: String,
}

/// Looks at the cluster of a place. What cannot be found out is a finding, too.
#[must_use]
pub fn examine(place: &Place) -> Vec<Finding> {
    match Cluster::look(place).and_then(|cluster| seen(&cluster)) {
        Ok(seen) => judge::findings(&seen),
        Err(error) => vec![Finding {
            what: "Ceph cluster",
            weight: Weight::Unusable,
            found: error.to_string(),
            advice: "mend what it names, or name another cluster, user or pool with --ceph-conf, \
                     --ceph-user and --rbd-pool"
                .to_owned(),
        }],
    }
}

fn seen(cluster: &Cluster) -> Result<Seen, StoreError> {
    let osds: OsdDump = cluster.monitors_json("osd dump")?;
    let crush: Crush = cluster.monitors_json("osd crush dump")?;
    let health: Health = cluster.monitors_json("health")?;
    let df: Df = cluster.monitors_json("df")?;
    let monitors: MonDump = cluster.monitors_json("mon dump")?;
    let pool = cluster.place().pool.clone();
    let of_osds: Vec<String> = osds
        .pool(&pool)
        .map(|pool| crush.osds(pool.crush_rule))
        .unwrap_or_default()
        .into_iter()
        .filter(|osd| osds.is_up(*osd))
        .map(|osd| format!("osd.{osd}"))
        .collect();
    let of_monitors: Vec<String> =
        monitors.mons.into_iter().map(|mon| format!("mon.{}", mon.name)).collect();
    Ok(Seen {
        fsid: cluster.fsid().to_owned(),
        propose_s: settings(cluster, &of_monitors, "paxos_propose_interval"),
        queue: settings(cluster, &of_osds, "osd_op_queue"),
        profile: settings(cluster, &of_osds, "osd_mclock_profile"),
        grace_s: settings(cluster, &of_osds, "osd_heartbeat_grace"),
        pool,
        osds,
        crush,
        health,
        df,
    })
}

/// The values that daemons have for a setting, each once; the manager knows them.
fn settings(cluster: &Cluster, daemons: &[String], key: &str) -> Result<Vec<String>, String> {
    let mut values = Vec::new();
    for daemon in daemons.iter().take(ASKED_MAX) {
        let command =
            format!("{{\"prefix\": \"config show\", \"who\": \"{daemon}\", \"key\": \"{key}\"}}");
        let value = cluster.manager(&command).map_err(|error| error.to_string())?;
        let value = String::from_utf8_lossy(&value).trim().to_owned();
        if !values.contains(&value) {
            values.push(value);
        }
    }
    match values.is_empty() {
        true => Err("no daemon is there to be asked".to_owned()),
        false => Ok(values),
    }
}
