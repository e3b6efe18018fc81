//! Checks of the server that runs on the data folder, through its API.

use super::{Check, Subject};
use evenkeel_cli::connect;
use evenkeel_cli::endpoint;
use evenkeel_cli::flags::Connection;
use evenkeel_client::Client;
use evenkeel_client::capacity::{Amount, Capacity, MEASURE, Space, StoreHealth};
use evenkeel_client::endpoints::Endpoints;
use evenkeel_client::model::{StatusEvent, Unowned, VolumeDescription, VolumeStatus};
use evenkeel_client::output::Failure;
use evenkeel_client::scrub::Scrub;
use evenkeel_control::space::{Level, level};
use evenkeel_core::units::ByteCount;
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

/// Returns the address at which the server answers, if one runs.
pub fn address(subject: &Subject) -> Option<SocketAddr> {
    let noted = endpoint::noted(subject.data_dir).and_then(|text| {
        let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"));
        rest?.parse().ok()
    });
    noted.into_iter().chain([subject.listen]).find(|address| answers(*address))
}

fn answers(address: SocketAddr) -> bool {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(2)))
        .proxy(None)
        .build();
    match config.new_agent().get(format!("http://{address}/healthz")).call() {
        Ok(_) => true,
        // A server with TLS, which asks for https.
        Err(ureq::Error::StatusCode(400)) => true,
        Err(_) => false,
    }
}

/// Returns the addresses of the running server's NBD side over TCP and TLS; `None` if it does not
/// answer.
pub fn nbd_addresses(subject: &Subject, api: SocketAddr) -> Option<Vec<SocketAddr>> {
    let endpoints = Endpoints::of(&client(subject, api).ok()?).ok()?;
    Some(endpoints.addresses().filter_map(|address| address.parse().ok()).collect())
}

/// Checks the server at an address: its capacity, its store, its volumes.
pub fn checks(subject: &Subject, api: SocketAddr) -> Vec<Check> {
    let client = client(subject, api);
    let ask = |ask: fn(&Client) -> Result<Vec<Check>, Failure>, what| {
        let answer = client.as_ref().map_err(Clone::clone).and_then(ask);
        answer.unwrap_or_else(|error| vec![Check::warn(what, error.message, NAME_THE_SERVER)])
    };
    [
        ask(capacity, CAPACITY),
        ask(volumes, VOLUMES),
        ask(unowned, "unowned bytes"),
        ask(scrub, SCRUB),
    ]
    .concat()
}

const CAPACITY: &str = "capacity";

const NAME_THE_SERVER: &str = "name the server's --data-dir and --region";

fn client(subject: &Subject, api: SocketAddr) -> Result<Client, Failure> {
    let region = endpoint::noted_region(subject.data_dir);
    connect::client(&Connection {
        endpoint: Some(endpoint::noted(subject.data_dir).unwrap_or(format!("http://{api}"))),
        ca: None,
        data_dir: subject.data_dir.to_owned(),
        region: region.or_else(|| Some(subject.region.to_owned())),
    })
}

const POOL: &str = "pool";

/// Checks what is sold, the free space, and the store itself.
fn capacity(client: &Client) -> Result<Vec<Check>, Failure> {
    let capacity = Capacity::get(client)?;
    let mut checks = sold(&capacity);
    checks.extend(capacity.space.as_ref().map(space));
    checks.push(pool_health(capacity.store_health));
    Ok(checks)
}

/// Checks the free space of the store by the levels of the server's log.
fn space(space: &Space) -> Check {
    const WHAT: &str = "pool space";
    const ROOM: &str = "delete volumes and snapshots, discard what volumes no longer need \
                        (`fstrim`), or make room on the disk: docs/operating/capacity.md";
    let free = space.free();
    match level(ByteCount(space.total_bytes), ByteCount(space.free_bytes)) {
        Level::Enough => Check::ok(WHAT, free),
        Level::Low => Check::warn(WHAT, free, ROOM),
        Level::Critical => {
            let found = format!("{free}: writes to new places fail with ENOSPC, or soon will");
            Check::fail(WHAT, found, ROOM)
        }
    }
}

fn pool_health(health: Option<StoreHealth>) -> Check {
    const READ_LOG: &str = "the server's log names each volume and the reason; free space if it \
                            is lacking: docs/operating/store.md";
    const LOST: &str = "the disk has lost data: look at it (`smartctl`), copy what is on it, and \
                        see docs/operating/store.md";
    const SCRUB: &str = "the disk loses data: look at it (`smartctl`), and read all of it with \
                         `evenkeel store scrub`";
    let Some(health) = health else {
        return Check::warn(POOL, "the data plane does not answer", "see the server's log");
    };
    let troubles = health.troubles().join("; ");
    match health {
        StoreHealth { damaged_sectors: 1.., .. } => Check::fail(POOL, troubles, LOST),
        _ if !troubles.is_empty() => Check::warn(POOL, troubles, READ_LOG),
        StoreHealth { copies_mended: copies @ 1.., .. } => {
            let found = format!("{copies} damaged copies were written anew since the start");
            Check::warn(POOL, found, SCRUB)
        }
        _ => Check::ok(POOL, "no trouble"),
    }
}

const VOLUMES: &str = "volumes";

/// Checks that every volume is served, and is well.
fn volumes(client: &Client) -> Result<Vec<Check>, Failure> {
    let volumes = VolumeDescription::set(&client.call("DescribeVolumes", &[])?);
    let statuses = VolumeStatus::set(&client.call("DescribeVolumeStatus", &[])?);
    let mut checks: Vec<Check> = in_error(&volumes).into_iter().collect();
    checks.extend(ill(&volumes, &statuses));
    if checks.is_empty() {
        checks.push(Check::ok(VOLUMES, format!("{}, none in error or impaired", volumes.len())));
    }
    Ok(checks)
}

fn in_error(volumes: &[VolumeDescription]) -> Option<Check> {
    const MEND: &str = "remove the cause: each volume comes back by itself a few seconds later; \
                        `evenkeel volume show VOLUME` shows more";
    let mut in_error = volumes.iter().filter(|volume| volume.state == "error");
    let first = in_error.next()?;
    let reason = first.error_reason.as_deref().unwrap_or("no reason is known");
    let others = match in_error.count() {
        0 => String::new(),
        others => format!("; {others} more in error"),
    };
    let found = format!("{} is in error: {reason}{others}", first.volume_id);
    Some(Check::fail(VOLUMES, found, MEND))
}

/// Maximum number of volumes that a row names.
const SHOWN_MAX: usize = 3;

/// Returns a check for each problem of volumes that are served.
fn ill(volumes: &[VolumeDescription], statuses: &[VolumeStatus]) -> Vec<Check> {
    const ATTACH_AGAIN: &str = "see the kernel's log for the disk, and stop the programs on the \
                                volume before; `volume status` shows more: \
                                docs/reference/alerts.md#data";
    const LOOK: &str = "see whether the disk hangs or is overloaded: the kernel's log, `evenkeel \
                        top`, `volume status`: docs/reference/alerts.md";
    let is_served = |id: &str| {
        let is_shown =
            |volume: &VolumeDescription| volume.volume_id == id && volume.state != "error";
        volumes.iter().any(is_shown)
    };
    let mut problems: BTreeMap<(&str, &str, &str), Vec<&str>> = BTreeMap::new();
    // Events can be a moment older than the status.
    let is_bad = |status: &&VolumeStatus| matches!(&*status.status, "impaired" | "warning");
    for status in statuses.iter().filter(is_bad).filter(|status| is_served(&status.volume_id)) {
        let mut add = |event_type, description| {
            let problem = (status.status.as_str(), event_type, description);
            problems.entry(problem).or_default().push(&status.volume_id);
        };
        for StatusEvent { event_type, description, .. } in &status.events {
            add(event_type, description);
        }
        if status.events.is_empty() && status.status == "impaired" {
            // The server derives the events a moment after the status.
            add("", "the reason is not known yet");
        }
    }
    let row = |((status, event_type, description), ids): ((&str, &str, &str), Vec<&str>)| {
        let shown = ids.iter().take(SHOWN_MAX).copied().collect::<Vec<_>>().join(", ");
        let others = match ids.len().saturating_sub(SHOWN_MAX) {
            0 => String::new(),
            others => format!(" and {others} more"),
        };
        let found = format!("{shown}{others}: {status}: {description}");
        let is_lost = event_type == "potential-data-inconsistency";
        let advice = if is_lost { ATTACH_AGAIN } else { LOOK };
        match status {
            "impaired" => Check::fail(VOLUMES, found, advice),
            _ => Check::warn(VOLUMES, found, advice),
        }
    };
    problems.into_iter().map(row).collect()
}

/// Checks whether the store holds bytes that belong to no volume.
fn unowned(client: &Client) -> Result<Vec<Check>, Failure> {
    const WHAT: &str = "unowned bytes";
    const CHOOSE: &str = "`evenkeel volume unowned` lists them; take them with `volume adopt`, or \
                          delete them with `volume rm --unowned`";
    let unowned = Unowned::set(&client.call("DescribeUnownedVolumes", &[])?);
    Ok(vec![match unowned.len() {
        0 => Check::ok(WHAT, "none"),
        count => Check::warn(WHAT, format!("of {count} volumes that are not known"), CHOOSE),
    }])
}

const SCRUB: &str = "scrub";

/// Checks what the running or last scrub has found; nothing without one.
fn scrub(client: &Client) -> Result<Vec<Check>, Failure> {
    let scrub = Scrub::read(&client.call("DescribeScrub", &[])?);
    Ok(scrub.iter().map(scrubbed).collect())
}

fn scrubbed(scrub: &Scrub) -> Check {
    const RESTORE: &str = "write the places anew or restore them from a backup, replace the disk, \
                           and scrub again: docs/operating/store.md";
    const READ_LOG: &str = "the server's log has the reason of each; scrub again";
    let Scrub { state, start_time, rotten_places, unread_resources, .. } = scrub;
    let found = match scrub.rotten.first() {
        Some(first) => format!("{rotten_places} damaged places, the first is of {first}"),
        None => format!("{rotten_places} damaged places"),
    };
    match (rotten_places, unread_resources) {
        (0, 0) => Check::ok(SCRUB, format!("{found}; {state}, begun at {start_time}")),
        (0, unread) => {
            Check::warn(SCRUB, format!("{unread} volumes or snapshots were not read"), READ_LOG)
        }
        _ => Check::fail(SCRUB, found, RESTORE),
    }
}

/// Checks what is sold, a row for each resource.
fn sold(capacity: &Capacity) -> Vec<Check> {
    const LESS: &str = "volumes keep what they have and may get less than they were promised: \
                        modify some down, delete some, or move them to another server";
    let row = |amount: Amount| match amount {
        Amount { text, is_short: true } => Check::warn(CAPACITY, text, LESS),
        Amount { text, .. } if !capacity.is_known() => Check::warn(CAPACITY, text, MEASURE),
        Amount { text, .. } => Check::ok(CAPACITY, text),
    };
    capacity.amounts().into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::super::Verdict;
    use super::*;
    use evenkeel_client::capacity::Sold;
    use evenkeel_client::scrub::Rotten;

    #[test]
    fn pool_check_knows_good_from_bad() {
        use Verdict::{Fail, Ok, Warn};
        let well = StoreHealth::default();
        for (check, verdict) in [
            (pool_health(Some(well)), Ok),
            (pool_health(Some(StoreHealth { volumes_salvaged: 1, ..well })), Ok),
            (pool_health(Some(StoreHealth { unfinished: 1, ..well })), Warn),
            (pool_health(Some(StoreHealth { no_space: 1, ..well })), Warn),
            (pool_health(Some(StoreHealth { copies_mended: 1, ..well })), Warn),
            (pool_health(Some(StoreHealth { damaged_sectors: 1, copies_mended: 1, ..well })), Fail),
            (pool_health(None), Warn),
        ] {
            assert_eq!(check.verdict, verdict, "{check:?}");
            assert_eq!(check.advice.is_empty(), verdict == Ok, "{check:?}");
        }
    }

    #[test]
    fn what_is_sold_is_told_and_more_than_there_is_warned_of() {
        let sold = |sold, short_by| {
            let line = Sold { sold, for_sale: 10, short_by, ..Sold::default() };
            super::sold(&Capacity { sold: vec![line], ..Capacity::default() }).remove(0)
        };
        for (check, verdict) in [
            (sold(10, 0), Verdict::Ok),
            (sold(11, 1), Verdict::Warn),
            (super::sold(&Capacity::default()).remove(0), Verdict::Warn),
        ] {
            assert_eq!(check.verdict, verdict, "{check:?}");
            assert_eq!(check.advice.is_empty(), verdict == Verdict::Ok, "{check:?}");
        }
        assert!(sold(11, 1).found.ends_with("that is 1 more than there is"));
    }

    #[test]
    fn a_volume_in_error_is_a_failure_with_its_reason() {
        let volume = |id: &str, state: &str, reason: Option<&str>| VolumeDescription {
            volume_id: id.to_owned(),
            state: state.to_owned(),
            error_reason: reason.map(str::to_owned),
            ..VolumeDescription::default()
        };
        let well = volume("vol-1", "in-use", None);
        assert_eq!(in_error(std::slice::from_ref(&well)), None);
        let bad = volume("vol-2", "error", Some("there is no file"));
        let check = in_error(&[well, bad.clone(), bad]).unwrap();
        assert_eq!(check.verdict, Verdict::Fail);
        assert_eq!(check.found, "vol-2 is in error: there is no file; 1 more in error");
    }

    #[test]
    fn free_space_is_judged_by_the_levels_of_the_log() {
        for (free_bytes, verdict) in
            [(100, Verdict::Ok), (99, Verdict::Warn), (29, Verdict::Fail), (0, Verdict::Fail)]
        {
            let check = space(&Space { total_bytes: 1_000, free_bytes, ..Space::default() });
            assert_eq!(check.verdict, verdict, "{check:?}");
            assert_eq!(check.advice.is_empty(), verdict == Verdict::Ok, "{check:?}");
        }
    }

    #[test]
    fn volumes_with_a_problem_are_named_by_problem() {
        let names = ["vol-1", "vol-2", "vol-3", "vol-4", "vol-5", "vol-6"];
        let volume = |id: &str| VolumeDescription {
            volume_id: id.to_owned(),
            state: if id == "vol-6" { "error" } else { "in-use" }.to_owned(),
            ..VolumeDescription::default()
        };
        let status = |id: &str, status: &str, event_type: &str, description: &str| VolumeStatus {
            volume_id: id.to_owned(),
            status: status.to_owned(),
            events: vec![StatusEvent {
                event_type: event_type.to_owned(),
                description: description.to_owned(),
                since: String::new(),
            }],
            ..VolumeStatus::default()
        };
        let lost = |id| status(id, "impaired", "potential-data-inconsistency", "A flush failed.");
        let mut statuses: Vec<VolumeStatus> = names[..4].iter().map(|id| lost(id)).collect();
        statuses.push(status("vol-5", "warning", "io-performance:degraded", "Degraded"));
        statuses.push(lost("vol-6"));
        statuses.push(status("vol-5", "ok", "potential-data-inconsistency", "A flush failed."));
        let checks = ill(&names.map(volume), &statuses);
        let [failed, slow] = &checks[..] else { panic!("{checks:?}") };
        assert_eq!(failed.verdict, Verdict::Fail);
        assert_eq!(failed.found, "vol-1, vol-2, vol-3 and 1 more: impaired: A flush failed.");
        assert_eq!((slow.verdict, &*slow.found), (Verdict::Warn, "vol-5: warning: Degraded"));
        assert_eq!(ill(&names.map(volume), &[VolumeStatus::default()]), []);
    }

    #[test]
    fn a_scrub_that_found_damage_is_a_failure() {
        let well = Scrub { state: "completed".to_owned(), ..Scrub::default() };
        assert_eq!(scrubbed(&well).verdict, Verdict::Ok);
        assert_eq!(scrubbed(&Scrub { unread_resources: 1, ..well.clone() }).verdict, Verdict::Warn);
        let rotten = vec![Rotten { resource_id: "snap-1".to_owned(), offset: 4_096 }];
        let check = scrubbed(&Scrub { rotten_places: 2, rotten, ..well });
        assert_eq!(check.verdict, Verdict::Fail);
        assert_eq!(check.found, "2 damaged places, the first is of snap-1 at byte 4096");
    }
}
