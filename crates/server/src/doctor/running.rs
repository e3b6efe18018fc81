//! Checks of the server that runs on the data folder, through its API.

use super::{Check, Subject};
use evenkeel_cli::connect;
use evenkeel_cli::endpoint;
use evenkeel_cli::flags::Connection;
use evenkeel_client::Client;
use evenkeel_client::capacity::{Amount, Capacity, MEASURE, StoreHealth};
use evenkeel_client::model::{Unowned, VolumeDescription};
use evenkeel_client::output::Failure;
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

/// Checks the server at an address: its capacity, its store, its volumes.
pub fn checks(subject: &Subject, api: SocketAddr) -> Vec<Check> {
    let client = client(subject, api);
    let no_answer = |what, error: Failure| Check::warn(what, error.message, NAME_THE_SERVER);
    let ask = |ask: fn(&Client) -> Result<Check, Failure>, what| {
        let answer = client.as_ref().map_err(Clone::clone).and_then(ask);
        answer.unwrap_or_else(|error| no_answer(what, error))
    };
    let mut checks = match client.as_ref().map_err(Clone::clone).and_then(Capacity::get) {
        Ok(found) => capacity(&found),
        Err(error) => vec![no_answer(CAPACITY, error)],
    };
    checks.extend([ask(pool, POOL), ask(volumes, "volumes"), ask(unowned, "unowned bytes")]);
    checks
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

/// Checks that the store of the running server has no trouble beside its volumes.
fn pool(client: &Client) -> Result<Check, Failure> {
    Ok(pool_health(Capacity::get(client)?.store_health))
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

/// Checks that every volume is served.
fn volumes(client: &Client) -> Result<Check, Failure> {
    let volumes = VolumeDescription::set(&client.call("DescribeVolumes", &[])?);
    Ok(in_error(&volumes))
}

fn in_error(volumes: &[VolumeDescription]) -> Check {
    const WHAT: &str = "volumes";
    const MEND: &str = "remove the cause: each volume comes back by itself a few seconds later; \
                        `evenkeel volume show VOLUME` shows more";
    let mut in_error = volumes.iter().filter(|volume| volume.state == "error");
    let Some(first) = in_error.next() else {
        return Check::ok(WHAT, format!("{}, none in error", volumes.len()));
    };
    let reason = first.error_reason.as_deref().unwrap_or("no reason is known");
    let others = match in_error.count() {
        0 => String::new(),
        others => format!("; {others} more in error"),
    };
    Check::fail(WHAT, format!("{} is in error: {reason}{others}", first.volume_id), MEND)
}

/// Checks whether the store holds bytes that belong to no volume.
fn unowned(client: &Client) -> Result<Check, Failure> {
    const WHAT: &str = "unowned bytes";
    const CHOOSE: &str = "`evenkeel volume unowned` lists them; take them with `volume adopt`, or \
                          delete them with `volume rm --unowned`";
    let unowned = Unowned::set(&client.call("DescribeUnownedVolumes", &[])?);
    Ok(match unowned.len() {
        0 => Check::ok(WHAT, "none"),
        count => Check::warn(WHAT, format!("of {count} volumes that are not known"), CHOOSE),
    })
}

/// Checks what is sold, a row for each resource.
fn capacity(capacity: &Capacity) -> Vec<Check> {
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
            capacity(&Capacity { sold: vec![line], ..Capacity::default() }).remove(0)
        };
        for (check, verdict) in [
            (sold(10, 0), Verdict::Ok),
            (sold(11, 1), Verdict::Warn),
            (capacity(&Capacity::default()).remove(0), Verdict::Warn),
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
        assert_eq!(in_error(std::slice::from_ref(&well)).found, "1, none in error");
        let ill = volume("vol-2", "error", Some("there is no file"));
        let check = in_error(&[well, ill.clone(), ill]);
        assert_eq!(check.verdict, Verdict::Fail);
        assert_eq!(check.found, "vol-2 is in error: there is no file; 1 more in error");
    }
}
