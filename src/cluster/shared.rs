//! Files that all nodes of a cluster share: the first node makes them, etcd keeps them, and each
//! node has a copy in its data folder.

use crate::calibration::identity::Identity;
use crate::calibration::{self, Record};
use crate::cli::CalibrateWhen;
use crate::clock::Deadline;
use crate::message::{Failure, failed};
use crate::server::Config;
use evenkeel_control::cluster::kv::Kv;
use evenkeel_control::{credentials, private};
use evenkeel_core::fencing::NodeId;
use evenkeel_store::Pool;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The key of the cluster's number.
const ID: &str = "id";
/// The key of the API's access key.
const CREDENTIALS: &str = "credentials";
/// The key of the calibration's record.
const CALIBRATION: &str = "calibration";
/// The key of the node that calibrates.
const CALIBRATES: &str = "calibrates";

/// A key that stays.
const NO_LEASE: u64 = 0;

/// How long another node may take to calibrate.
const OTHERS_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(250);

/// A number that no other process, cluster and so on has.
pub fn random_number() -> Result<u128, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::new(format!("the OS gives no random bytes: {error}")))?;
    Ok(u128::from_be_bytes(bytes))
}

/// The cluster's number.
pub fn id(kv: &Kv) -> Result<u128, Failure> {
    let new = format!("{:032x}", random_number()?);
    let found = kv.once(ID, new.as_bytes()).map_err(failed)?;
    let text = String::from_utf8_lossy(&found);
    u128::from_str_radix(&text, 16)
        .map_err(|_| Failure::new(format!("etcd's key {ID} of the cluster is '{text}', no number")))
}

/// A file of the data folder.
fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// Writes a file of the data folder, as a whole.
fn write(data_dir: &Path, name: &str, bytes: &[u8]) -> Result<(), Failure> {
    private::replace(data_dir, name, bytes)
        .map_err(|error| Failure::new(format!("{}: {error}", data_dir.join(name).display())))
}

/// Sees to it that the file of the API's access key is the cluster's. Clients sign for every node
/// with the same one.
pub fn credentials(kv: &Kv, data_dir: &Path) -> Result<(), Failure> {
    let path = data_dir.join(credentials::FILE_NAME);
    let shared = match kv.get(CREDENTIALS).map_err(failed)? {
        Some(shared) => shared,
        None => {
            credentials::load_or_create(data_dir).map_err(failed)?;
            kv.once(CREDENTIALS, &read(&path)?).map_err(failed)?
        }
    };
    if !path.exists() || read(&path)? != shared {
        tracing::info!("the access key is the cluster's: {}", path.display());
        write(data_dir, credentials::FILE_NAME, &shared)?;
    }
    Ok(())
}

/// The cluster's calibration: measured by one node while no volume is in use yet, and shared. A
/// newer one that a node brings in its data folder is the cluster's from then on.
pub fn calibration(
    kv: &Kv,
    here: NodeId,
    config: &Config,
    pool: &dyn Pool,
    is_stopped: &AtomicBool,
) -> Result<Option<Record>, Failure> {
    let path = config.data_dir.join(calibration::record::FILE);
    let may_measure = config.guarantee && config.calibrate != CalibrateWhen::Never;
    let shared = match may_measure {
        true => measured(kv, here, is_stopped)?,
        false => kv.get(CALIBRATION).map_err(failed)?,
    };
    match shared {
        Some(shared) if !is_newer_here(config, pool, &shared)? => {
            write(&config.data_dir, calibration::record::FILE, &shared)?;
        }
        Some(_) => {
            tracing::info!("the calibration in {} is the cluster's now", path.display());
            kv.put(CALIBRATION, &read(&path)?, NO_LEASE).map_err(failed)?;
        }
        None => {}
    }
    let record = calibration::at_start(config, pool, is_stopped)?;
    if record.is_some() && kv.get(CALIBRATION).map_err(failed)?.is_none() {
        kv.once(CALIBRATION, &read(&path)?).map_err(failed)?;
    }
    Ok(record)
}

/// Whether the pool was calibrated in this node's data folder after the cluster's record was made.
fn is_newer_here(config: &Config, pool: &dyn Pool, shared: &[u8]) -> Result<bool, Failure> {
    let path = config.data_dir.join(calibration::record::FILE);
    let shared = Record::parse(&String::from_utf8_lossy(shared));
    let (Some(here), Ok(shared)) = (Record::load(&path)?, shared) else { return Ok(false) };
    if here.newest() <= shared.newest() {
        return Ok(false);
    }
    let place = Identity::of_store(&config.store, pool, &config.data_dir);
    Ok(here.misfit(&config.store, &place).is_none())
}

/// The record that another node has measured; `None` if this one is to measure. Two that measured
/// at once would measure each other.
fn measured(kv: &Kv, here: NodeId, is_stopped: &AtomicBool) -> Result<Option<Vec<u8>>, Failure> {
    let number = here.0.to_string().into_bytes();
    let measures = kv.once(CALIBRATES, &number).map_err(failed)?;
    let deadline = Deadline::after(OTHERS_MAX);
    loop {
        let record = kv.get(CALIBRATION).map_err(failed)?;
        let is_stopped = is_stopped.load(Ordering::Acquire);
        if record.is_some() || measures == number || is_stopped || !deadline.pause(LOOK) {
            return Ok(record);
        }
    }
}
