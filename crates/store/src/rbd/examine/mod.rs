//! Checks which properties of a Ceph cluster endanger its volumes' promises, and what to change
//! there. Only reads; it creates, sets and writes nothing.

mod images;
mod judge;
mod state;

use super::cluster::{Cluster, Df, Place};
use crate::StoreError;
use crate::layout::PoolSeen;
use judge::{Crush, Health, OsdDump, Seen};
use serde::Deserialize;

/// Maximum number of daemons of one kind whose settings are read.
const ASKED_MAX: usize = 16;

/// Weight of a finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Weight {
    /// All is well.
    Well,
    /// Volumes are served, but something is worse than it could be.
    Worse,
    /// Volumes cannot be served like this.
    Unusable,
}

/// Result of one check.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Finding {
    /// The name of the check.
    pub what: &'static str,
    /// Its weight.
    pub weight: Weight,
    /// The state that was found.
    pub found: String,
    /// Advice for the operator; empty if all is well.
    pub advice: String,
}

/// The answer to `mon dump`.
#[derive(Deserialize)]
struct MonDump {
    mons: Vec<Mon>,
}

#[derive(Deserialize)]
struct Mon {
    name: String,
}

/// Examines the cluster of a place. An answer that cannot be had is a finding, too.
#[must_use]
pub fn examine(place: &Place) -> Vec<Finding> {
    let looked = Cluster::look(place);
    match looked.and_then(|cluster| Ok((seen(&cluster)?, cluster))) {
        Ok((seen, cluster)) => {
            let mut findings = judge::findings(&seen);
            findings.push(images::finding(cluster));
            findings
        }
        Err(error) => vec![Finding {
            what: "Ceph cluster",
            weight: Weight::Unusable,
            found: error.to_string(),
            advice: "correct the problem, or name another cluster, user or pool with --ceph-conf, \
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
    let of_osds = up_osds(&osds, &crush, &pool);
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

/// Returns the layout and the state of a place's pool.
///
/// # Errors
/// If the cluster cannot be reached, or has no such pool.
pub fn look_around(place: &Place) -> Result<PoolSeen, StoreError> {
    let cluster = Cluster::look(place)?;
    let mut seen = pool_seen(&cluster)?;
    seen.layout.recovery = recovery(&cluster);
    Ok(seen)
}

/// Returns the layout and the state of the pool, as far as the monitors know them.
pub(super) fn pool_seen(cluster: &Cluster) -> Result<PoolSeen, StoreError> {
    let osds: OsdDump = cluster.monitors_json("osd dump")?;
    let crush: Crush = cluster.monitors_json("osd crush dump")?;
    let status = cluster.monitors_json("status")?;
    let name = &cluster.place().pool;
    let missing = || StoreError::Cluster { why: format!("the monitors know no pool {name}") };
    let pool = osds.pool(name).ok_or_else(missing)?;
    let layout = state::layout(cluster.fsid(), pool, &crush);
    Ok(PoolSeen { layout, state: state::state(pool, &osds, &crush, &status) })
}

/// Returns which mechanism decides between clients and recovery on the pool's devices; `None` if
/// the user may not ask the manager. Blocks as long as there is no manager.
pub(super) fn recovery(cluster: &Cluster) -> Option<String> {
    let osds: OsdDump = cluster.monitors_json("osd dump").ok()?;
    let crush: Crush = cluster.monitors_json("osd crush dump").ok()?;
    let of_pool = up_osds(&osds, &crush, &cluster.place().pool);
    // A well-kept cluster has the same value on all devices.
    let setting = |key| Some(settings(cluster, &of_pool, key).ok()?.join(" and "));
    match setting("osd_op_queue")? {
        queue if queue == "mclock_scheduler" => {
            Some(format!("{queue}, {}", setting("osd_mclock_profile")?))
        }
        queue => Some(queue),
    }
}

/// Returns the names of the pool's OSDs that run.
fn up_osds(osds: &OsdDump, crush: &Crush, pool: &str) -> Vec<String> {
    let of_pool = osds.pool(pool).map(|pool| crush.osds(pool.crush_rule)).unwrap_or_default();
    let up = of_pool.into_iter().filter(|osd| osds.is_up(*osd));
    up.map(|osd| format!("osd.{osd}")).collect()
}

/// Returns the distinct values that daemons have for a setting, from the manager.
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
    if values.is_empty() { Err("no daemon is there to be asked".to_owned()) } else { Ok(values) }
}
