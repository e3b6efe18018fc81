//! Layout and state of a pool, from the monitors' answers.

use super::judge::{Crush, OsdDump, PoolDump};
use crate::layout::{Layout, PoolState};
use evenkeel_core::convert::saturating;
use serde::Deserialize;
use std::collections::BTreeSet;

/// States of a placement group in which copies are being made.
const MAKES_COPIES: [&str; 2] = ["recovering", "backfilling"];
/// States in which copies are missing or misplaced.
const MISSES_COPIES: [&str; 3] = ["degraded", "undersized", "remapped"];
/// States that are normal in a healthy cluster.
const IDLE: [&str; 7] =
    ["active", "clean", "scrubbing", "deep", "snaptrim", "snaptrim_wait", "laggy"];
/// Maximum number of OSDs that a message names.
const NAMED_MAX: usize = 8;

/// The answer to `status`.
#[derive(Deserialize)]
pub(super) struct Status {
    pgmap: PgMap,
}

#[derive(Deserialize)]
struct PgMap {
    #[serde(default)]
    pgs_by_state: Vec<PgsInState>,
}

#[derive(Deserialize)]
struct PgsInState {
    state_name: String,
    count: u64,
}

/// Returns the layout of the pool, without the part that the monitors do not know.
pub(super) fn layout(fsid: &str, pool: &PoolDump, crush: &Crush) -> Layout {
    let (copies, copies_min) = pool.copies();
    Layout {
        cluster: fsid.to_owned(),
        pool: pool.pool_name.clone(),
        rule: crush.rule_name(pool.crush_rule).unwrap_or("none").to_owned(),
        domain: crush.domain(pool.crush_rule).unwrap_or("none").to_owned(),
        copies,
        copies_min,
        devices: saturating(crush.osds(pool.crush_rule).len()),
        recovery: None,
    }
}

/// Returns the state of the pool. The placement groups are those of all pools, since the monitors'
/// summary does not separate them.
pub(super) fn state(pool: &PoolDump, osds: &OsdDump, crush: &Crush, status: &Status) -> PoolState {
    let groups = &status.pgmap.pgs_by_state;
    let any_group_is = |parts: &[&str]| {
        groups.iter().any(|group| group.state_name.split('+').any(|part| parts.contains(&part)))
    };
    let named = |is_named: &dyn Fn(&str) -> bool| {
        let named = groups.iter().filter(|group| is_named(&group.state_name));
        let named: Vec<String> = named
            .map(|group| format!("{} of its placement groups {}", group.count, group.state_name))
            .collect();
        named.join(", ")
    };
    let serves = |name: &str| name.split('+').any(|part| part == "active");
    let is_idle = |name: &str| name.split('+').all(|part| IDLE.contains(&part));
    let down: BTreeSet<i64> =
        crush.osds(pool.crush_rule).into_iter().filter(|osd| !osds.is_in_use(*osd)).collect();
    if !groups.iter().all(|group| serves(&group.state_name)) {
        return PoolState::Other(named(&|name| !serves(name)));
    }
    if any_group_is(&MAKES_COPIES) {
        return PoolState::Recovering;
    }
    if any_group_is(&MISSES_COPIES) && !down.is_empty() {
        return degraded(pool, crush, &down);
    }
    if groups.iter().all(|group| is_idle(&group.state_name)) {
        return if down.is_empty() {
            PoolState::Healthy
        } else {
            PoolState::Other(format!(
                "{} away, and what was there is elsewhere: bring it back, or take it out of the \
                 CRUSH map",
                listed(&down)
            ))
        };
    }
    PoolState::Other(named(&|name| !is_idle(name)))
}

/// Returns the state of a pool without these devices: degraded if they are its largest failure
/// domain, otherwise a description of the loss.
fn degraded(pool: &PoolDump, crush: &Crush, down: &BTreeSet<i64>) -> PoolState {
    let domains = crush.domains(pool.crush_rule);
    let most = domains.iter().map(|(_, osds)| osds.len()).max().unwrap_or(0);
    let largest: Vec<_> = domains.iter().filter(|(_, osds)| osds.len() == most).collect();
    if let Some((name, osds)) = largest.iter().find(|(_, osds)| osds.is_subset(down)) {
        return PoolState::Degraded { lost: format!("{name} with {}", listed(osds)) };
    }
    let why = match largest.first() {
        Some((name, osds)) => format!(
            "without {}, which is less than its largest failure domain: that is {name} with {}",
            listed(down),
            listed(osds)
        ),
        None => format!("without {}", listed(down)),
    };
    PoolState::Other(why)
}

fn listed(osds: &BTreeSet<i64>) -> String {
    let mut names: Vec<String> =
        osds.iter().take(NAMED_MAX).map(|number| format!("osd.{number}")).collect();
    if osds.len() > NAMED_MAX {
        names.push(format!("{} more", osds.len() - NAMED_MAX));
    }
    names.join(", ")
}

#[cfg(test)]
mod tests;
