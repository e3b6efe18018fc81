//! Judgement of a cluster from its answers.

use super::super::cluster::Df;
use super::{Finding, Weight};
use serde::Deserialize;
use std::collections::{BTreeMap, BTreeSet};

/// Type of a pool with copies in `osd dump`; the other type is erasure coded.
const REPLICATED: u32 = 1;
/// Pools that Ceph uses itself.
const OWN_POOLS: [&str; 2] = [".mgr", "device_health_metrics"];
/// Free space below this percentage of the pool is a finding.
const FREE_PERCENT_MIN: u64 = 10;
/// Seconds that monitors wait for more changes. A snapshot stalls the writes of its volume for
/// about as long.
const PROPOSE_MAX_S: f64 = 0.25;
const GIB: u64 = 1 << 30;

/// The answer to `osd dump`.
#[derive(Deserialize)]
pub(super) struct OsdDump {
    require_osd_release: String,
    pools: Vec<PoolDump>,
    osds: Vec<Osd>,
}

#[derive(Deserialize)]
pub(super) struct PoolDump {
    pub(super) pool_name: String,
    #[serde(rename = "type")]
    kind: u32,
    size: u32,
    min_size: u32,
    pub(super) crush_rule: i64,
    quota_max_bytes: u64,
}

#[derive(Deserialize)]
struct Osd {
    osd: i64,
    up: u8,
    #[serde(default, rename = "in")]
    is_in: u8,
}

impl PoolDump {
    /// Returns the copies of each byte, and those that a write needs.
    pub(super) const fn copies(&self) -> (u32, u32) {
        (self.size, self.min_size)
    }
}

impl OsdDump {
    pub(super) fn pool(&self, name: &str) -> Option<&PoolDump> {
        self.pools.iter().find(|pool| pool.pool_name == name)
    }

    pub(super) fn is_up(&self, number: i64) -> bool {
        self.osds.iter().any(|osd| osd.osd == number && osd.up == 1)
    }

    /// Returns whether an OSD has data and serves it.
    pub(super) fn is_in_use(&self, number: i64) -> bool {
        self.osds.iter().any(|osd| osd.osd == number && osd.up == 1 && osd.is_in == 1)
    }
}

/// The answer to `osd crush dump`.
#[derive(Deserialize)]
pub(super) struct Crush {
    buckets: Vec<Bucket>,
    rules: Vec<Rule>,
}

#[derive(Deserialize)]
struct Bucket {
    id: i64,
    #[serde(default)]
    name: String,
    #[serde(default)]
    type_name: String,
    items: Vec<Member>,
}

#[derive(Deserialize)]
struct Member {
    id: i64,
}

#[derive(Deserialize)]
struct Rule {
    rule_id: i64,
    #[serde(default)]
    rule_name: String,
    steps: Vec<Step>,
}

#[derive(Deserialize)]
struct Step {
    op: String,
    #[serde(default)]
    item: i64,
    #[serde(default, rename = "type")]
    domain: String,
}

impl Crush {
    fn rule(&self, id: i64) -> Option<&Rule> {
        self.rules.iter().find(|rule| rule.rule_id == id)
    }

    /// Returns the rule's name.
    pub(super) fn rule_name(&self, id: i64) -> Option<&str> {
        self.rule(id).map(|rule| rule.rule_name.as_str())
    }

    /// Returns the OSDs that a rule may choose.
    pub(super) fn osds(&self, rule: i64) -> BTreeSet<i64> {
        self.below(self.taken(rule)).into_iter().filter(|id| *id >= 0).collect()
    }

    /// Returns the buckets in which a rule begins to choose.
    fn taken(&self, rule: i64) -> Vec<i64> {
        let steps = self.rule(rule).map(|rule| rule.steps.as_slice()).unwrap_or_default();
        steps.iter().filter(|step| step.op == "take").map(|step| step.item).collect()
    }

    /// Returns these items and all items below them. OSDs have numbers from 0 on, buckets negative
    /// ones.
    fn below(&self, mut open: Vec<i64>) -> BTreeSet<i64> {
        let members: BTreeMap<i64, &[Member]> =
            self.buckets.iter().map(|bucket| (bucket.id, bucket.items.as_slice())).collect();
        let mut visited = BTreeSet::new();
        while let Some(id) = open.pop() {
            if visited.insert(id) {
                let inside = members.get(&id).copied().unwrap_or_default();
                open.extend(inside.iter().map(|member| member.id));
            }
        }
        visited
    }

    /// Returns the failure domains over which a rule spreads copies, each with its name and its
    /// OSDs.
    pub(super) fn domains(&self, rule: i64) -> Vec<(String, BTreeSet<i64>)> {
        let Some(domain) = self.domain(rule) else { return Vec::new() };
        let below = self.below(self.taken(rule));
        if domain == "osd" {
            let osds = below.into_iter().filter(|id| *id >= 0);
            return osds.map(|id| (format!("osd.{id}"), BTreeSet::from([id]))).collect();
        }
        let buckets = self.buckets.iter().filter(|bucket| below.contains(&bucket.id));
        let domains = buckets.filter(|bucket| bucket.type_name == domain);
        domains
            .map(|bucket| {
                // The shadow of a bucket for one class of devices has the class behind its name.
                let name = bucket.name.split('~').next().unwrap_or_default();
                let osds = self.below(vec![bucket.id]).into_iter().filter(|id| *id >= 0).collect();
                (format!("{domain} {name}"), osds)
            })
            .collect()
    }

    /// Returns the type of bucket that two copies never share, such as `host`; the first choice of
    /// a rule is the widest.
    pub(super) fn domain(&self, rule: i64) -> Option<&str> {
        let steps = &self.rule(rule)?.steps;
        let choice = steps.iter().find(|step| step.op.starts_with("choose"))?;
        Some(choice.domain.as_str())
    }
}

/// The answer to `health`.
#[derive(Deserialize)]
pub(super) struct Health {
    status: String,
    checks: BTreeMap<String, HealthCheck>,
}

#[derive(Deserialize)]
struct HealthCheck {
    summary: Summary,
}

#[derive(Deserialize)]
struct Summary {
    message: String,
}

/// Distinct values of a setting, or the error of reading it.
type Values = Result<Vec<String>, String>;

/// All answers of the cluster.
pub(super) struct Seen {
    pub(super) fsid: String,
    pub(super) pool: String,
    pub(super) osds: OsdDump,
    pub(super) crush: Crush,
    pub(super) health: Health,
    pub(super) df: Df,
    pub(super) propose_s: Values,
    pub(super) queue: Values,
    pub(super) profile: Values,
    pub(super) grace_s: Values,
}

fn well(what: &'static str, found: String) -> Finding {
    Finding { what, weight: Weight::Well, found, advice: String::new() }
}

fn worse(what: &'static str, found: String, advice: String) -> Finding {
    Finding { what, weight: Weight::Worse, found, advice }
}

pub(super) fn findings(seen: &Seen) -> Vec<Finding> {
    let release = &seen.osds.require_osd_release;
    let mut findings =
        vec![well("Ceph cluster", format!("{}, {release}", seen.fsid)), health(&seen.health)];
    if let Some(pool) = seen.osds.pool(&seen.pool) {
        findings.extend([
            copies(pool),
            domain(pool, &seen.crush),
            neighbours(pool, seen),
            space(pool, &seen.df),
        ]);
    }
    findings.extend([
        map_changes(&seen.propose_s),
        recovery(&seen.queue, &seen.profile),
        hung_devices(&seen.grace_s),
    ]);
    findings
}

fn health(health: &Health) -> Finding {
    const WHAT: &str = "Ceph health";
    let messages: Vec<&str> =
        health.checks.values().map(|check| check.summary.message.as_str()).collect();
    match health.status.as_str() {
        "HEALTH_OK" => well(WHAT, health.status.clone()),
        status => worse(
            WHAT,
            format!("{status}: {}", messages.join("; ")),
            "`ceph health detail` says more; a cluster that recovers has less to give, and a full \
             one refuses writes"
                .to_owned(),
        ),
    }
}

fn copies(pool: &PoolDump) -> Finding {
    const WHAT: &str = "Ceph copies";
    let PoolDump { pool_name: name, size, min_size, .. } = pool;
    if pool.kind != REPLICATED {
        let advice = "make a replicated pool for volumes, and name it with --rbd-pool".to_owned();
        let found = format!("{name} is erasure coded, which images cannot be in");
        return Finding { weight: Weight::Unusable, ..worse(WHAT, found, advice) };
    }
    let found = format!("{name} has {size}, and a write is acknowledged with {min_size} or more");
    match (size, min_size) {
        (0 | 1, _) => {
            let advice = format!("a lost device loses volumes: `ceph osd pool set {name} size 3`");
            worse(WHAT, found, advice)
        }
        (_, 0 | 1) => {
            let advice = format!(
                "a write may be on one device alone while others are away: `ceph osd pool set \
                 {name} min_size 2`, with three copies"
            );
            worse(WHAT, found, advice)
        }
        _ => well(WHAT, found),
    }
}

fn domain(pool: &PoolDump, crush: &Crush) -> Finding {
    const WHAT: &str = "Ceph failure domain";
    let name = &pool.pool_name;
    match crush.domain(pool.crush_rule) {
        Some("osd") => worse(
            WHAT,
            format!("copies of {name} may lie on one machine"),
            format!(
                "use a rule that keeps them apart: `ceph osd crush rule create-replicated apart \
                 default host`, `ceph osd pool set {name} crush_rule apart`"
            ),
        ),
        Some(domain) => well(WHAT, format!("each copy of {name} in a {domain} of its own")),
        None => worse(
            WHAT,
            format!("rule {} of {name} chooses no devices", pool.crush_rule),
            "`ceph osd crush rule dump` shows it".to_owned(),
        ),
    }
}

/// Judges other pools on the same devices: nothing limits their clients.
fn neighbours(pool: &PoolDump, seen: &Seen) -> Finding {
    const WHAT: &str = "Ceph neighbours";
    let ours = seen.crush.osds(pool.crush_rule);
    let stored = |name: &str| seen.df.pools.iter().find(|pool| pool.name == name);
    let others: Vec<String> = seen
        .osds
        .pools
        .iter()
        .filter(|other| other.pool_name != pool.pool_name)
        .filter(|other| !OWN_POOLS.contains(&other.pool_name.as_str()))
        .filter(|other| !seen.crush.osds(other.crush_rule).is_disjoint(&ours))
        .map(|other| {
            let bytes = stored(&other.pool_name).map_or(0, |stored| stored.stats.stored);
            format!("{} ({} GiB)", other.pool_name, bytes / GIB)
        })
        .collect();
    if others.is_empty() {
        well(WHAT, format!("no other pool on the {} OSDs of {}", ours.len(), pool.pool_name))
    } else {
        worse(
            WHAT,
            format!("on the same OSDs: {}", others.join(", ")),
            "nothing limits their clients, so guarantees of volumes hold only while they are idle: \
             give one of the pools separate devices by a rule with a device class or a root"
                .to_owned(),
        )
    }
}

fn space(pool: &PoolDump, df: &Df) -> Finding {
    const WHAT: &str = "Ceph space";
    let name = &pool.pool_name;
    let Some(stats) = df.pools.iter().find(|pool| pool.name == *name).map(|pool| &pool.stats)
    else {
        return worse(WHAT, format!("unknown for {name}"), "`ceph df` shows it".to_owned());
    };
    let limit = match pool.quota_max_bytes {
        0 => u64::MAX,
        quota => quota,
    };
    let total = stats.stored.saturating_add(stats.max_avail).min(limit);
    let free = total.saturating_sub(stats.stored);
    let by = if limit == u64::MAX { "" } else { " by its quota" };
    let found = format!("{} of {} GiB free in {name}{by}", free / GIB, total / GIB);
    let percent = u128::from(free) * 100 / u128::from(total.max(1));
    if percent < u128::from(FREE_PERCENT_MIN) {
        worse(
            WHAT,
            found,
            "writes to new blocks end with ENOSPC when it is full: add devices, raise the quota, \
             or delete volumes and snapshots"
                .to_owned(),
        )
    } else {
        well(WHAT, found)
    }
}

/// Returns the finding for a setting that could not be read.
fn unknown(what: &'static str, key: &str, why: &str) -> Finding {
    let advice =
        format!("give the user `mgr 'allow r'`, or look there: `ceph config show osd.0 {key}`");
    worse(what, format!("{key} is not known: {why}"), advice)
}

fn map_changes(propose_s: &Values) -> Finding {
    const WHAT: &str = "Ceph map changes";
    const KEY: &str = "paxos_propose_interval";
    let values = match propose_s {
        Ok(values) => values,
        Err(why) => return unknown(WHAT, KEY, why),
    };
    let longest = values.iter().filter_map(|value| value.parse::<f64>().ok()).fold(0.0, f64::max);
    let found = format!("monitors gather them for {longest} s");
    if longest > PROPOSE_MAX_S {
        worse(
            WHAT,
            found,
            format!(
                "a snapshot stalls its volume's writes for as long, and a takeover waits for it: \
                 `ceph config set mon {KEY} 0.1`"
            ),
        )
    } else {
        well(WHAT, found)
    }
}

fn recovery(queue: &Values, profile: &Values) -> Finding {
    const WHAT: &str = "Ceph recovery";
    const FAVOURS_CLIENTS: &str = "high_client_ops";
    let (queue, profile) = match (queue, profile) {
        (Ok(queue), Ok(profile)) => (queue, profile),
        (Err(why), _) => return unknown(WHAT, "osd_op_queue", why),
        (_, Err(why)) => return unknown(WHAT, "osd_mclock_profile", why),
    };
    let scheduler = format!("scheduler {}", queue.join(" and "));
    if queue.iter().any(|queue| queue != "mclock_scheduler") {
        let advice = "it reserves nothing for clients while data are moved: `ceph config set osd \
                      osd_op_queue mclock_scheduler`, then start the OSDs again one by one";
        return worse(WHAT, scheduler, advice.to_owned());
    }
    let found = format!("{scheduler}, profile {}", profile.join(" and "));
    if profile.iter().all(|profile| profile == FAVOURS_CLIENTS) {
        well(WHAT, found)
    } else {
        let advice = format!(
            "recovery takes time that clients need: `ceph config set osd osd_mclock_profile \
                 {FAVOURS_CLIENTS}`"
        );
        worse(WHAT, found, advice)
    }
}

fn hung_devices(grace_s: &Values) -> Finding {
    const WHAT: &str = "Ceph hung devices";
    match grace_s {
        Ok(values) => well(
            WHAT,
            format!(
                "one that hangs is left out after {} s; its requests wait",
                values.join(" and ")
            ),
        ),
        Err(why) => unknown(WHAT, "osd_heartbeat_grace", why),
    }
}

#[cfg(test)]
mod tests;
