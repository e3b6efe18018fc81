//! Checks of this machine, of the place of a server's data and of the server that runs there, each
//! with a remedy. They change nothing.

use crate::calibration::identity::Identity;
use crate::calibration::record::{FILE, Record};
use crate::store_options::StoreOptions;
use evenkeel_client::output::Item;
use evenkeel_store::layout::PoolSeen;
use evenkeel_store::rbd::examine::{Finding, Weight, examine, look_around};
use serde::Serialize;
use std::fmt;
use std::net::SocketAddr;
use std::path::Path;

mod machine;
mod running;

/// The result of a check.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Verdict {
    /// Nothing is wrong.
    Ok,
    /// It works, but not as well as possible.
    Warn,
    /// The server cannot work like this.
    Fail,
}

/// One line of the report.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Check {
    /// Its result.
    pub verdict: Verdict,
    what: &'static str,
    /// The finding.
    found: String,
    /// The remedy; empty if none is needed.
    advice: String,
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        })
    }
}

impl Item for Check {
    const SCHEMA: &'static str = "evenkeel.doctor/1";
    const FIELD: &'static str = "checks";
    const COLUMNS: &'static [&'static str] = &["", "CHECK", "FOUND", "WHAT TO DO"];

    fn cells(&self) -> Vec<String> {
        let Self { verdict, what, found, advice } = self;
        vec![verdict.to_string(), (*what).to_owned(), found.clone(), advice.clone()]
    }
}

impl From<Finding> for Check {
    fn from(Finding { what, weight, found, advice }: Finding) -> Self {
        let verdict = match weight {
            Weight::Well => Verdict::Ok,
            Weight::Worse => Verdict::Warn,
            Weight::Unusable => Verdict::Fail,
        };
        Self { verdict, what, found, advice }
    }
}

impl Check {
    fn ok(what: &'static str, found: impl Into<String>) -> Self {
        Self { verdict: Verdict::Ok, what, found: found.into(), advice: String::new() }
    }

    fn warn(what: &'static str, found: impl Into<String>, advice: &str) -> Self {
        Self { verdict: Verdict::Warn, advice: advice.to_owned(), ..Self::ok(what, found) }
    }

    fn fail(what: &'static str, found: impl Into<String>, advice: &str) -> Self {
        Self { verdict: Verdict::Fail, advice: advice.to_owned(), ..Self::ok(what, found) }
    }
}

/// The server that is checked, before its start or while it runs.
pub struct Subject<'a> {
    /// Its data folder.
    pub data_dir: &'a Path,
    /// Its region, unless a running server reports another one.
    pub region: &'a str,
    /// Address of its API.
    pub listen: SocketAddr,
    /// Addresses of its NBD server, unless a running server reports others.
    pub nbd_listen: &'a [SocketAddr],
    /// Its store.
    pub options: &'a StoreOptions,
}

/// Executes all checks: of the machine, the data folder, a Ceph cluster if the store is on one, and
/// of the server if it runs.
pub fn checks(subject: &Subject) -> Vec<Check> {
    let api = running::address(subject);
    let mut checks = machine::system();
    checks.push(machine::port(
        "API port",
        api.unwrap_or(subject.listen),
        api.is_some(),
        "choose another with --listen",
    ));
    // A server that runs has its own addresses, whatever the flags are.
    let served = api.and_then(|api| running::nbd_addresses(subject, api));
    let nbd = served.unwrap_or_else(|| subject.nbd_listen.to_vec());
    checks.extend(nbd.into_iter().map(|address| {
        machine::port("NBD port", address, api.is_some(), "choose another with --nbd-listen")
    }));
    checks.extend(machine::data_folder(subject.data_dir));
    checks.push(machine::fio());
    checks.extend(ceph(subject));
    checks.extend(api.into_iter().flat_map(|api| running::checks(subject, api)));
    checks
}

/// Checks the Ceph cluster and the calibration of its pool, if the store is on one.
fn ceph(subject: &Subject) -> Vec<Check> {
    let Some(place) = &subject.options.place else { return Vec::new() };
    let mut checks: Vec<Check> = examine(place).into_iter().map(Check::from).collect();
    match Record::load(&subject.data_dir.join(FILE)) {
        Ok(None) => {}
        Ok(Some(record)) => {
            let seen = look_around(place).ok();
            checks.extend(seen.map(|seen| pool_calibration(&record, seen)));
        }
        Err(failure) => {
            checks.push(Check::fail(POOL_CALIBRATION, &failure.message, "see the message"));
        }
    }
    checks
}

const POOL_CALIBRATION: &str = "Ceph calibration";

/// Whether a record is still of the pool, and covers the states that it may be in.
fn pool_calibration(record: &Record, seen: PoolSeen) -> Check {
    const AGAIN: &str = "calibrate again when nothing uses the pool: docs/operating/capacity.md";
    let now = Identity { layout: Some(seen.layout), ..record.device.clone() };
    let changes = record.changes(&now);
    let remarks = record.reservations();
    match (changes.is_empty(), remarks.is_empty()) {
        (false, _) => Check::warn(POOL_CALIBRATION, changes.join("; "), AGAIN),
        (true, false) => Check::warn(POOL_CALIBRATION, remarks.join("; "), AGAIN),
        (true, true) => Check::ok(POOL_CALIBRATION, record.id.clone()),
    }
}
