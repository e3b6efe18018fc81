//! Files that all nodes of a cluster share: the first node makes them, etcd keeps them, and each
//! node has a copy in its data folder.

use crate::Config;
use crate::calibration::identity::Identity;
use crate::calibration::{self, Record};
use evenkeel_cli::calibrate::CalibrateWhen;
use evenkeel_client::output::{Failure, failed};
use evenkeel_cluster::etcd::client::EtcdError;
use evenkeel_cluster::etcd::election::Leader;
use evenkeel_cluster::etcd::gateway::{KeyValue, Operation, Raw, Transaction, TransactionAnswer};
use evenkeel_cluster::etcd::number;
use evenkeel_cluster::kv::Kv;
use evenkeel_control::credentials;
use evenkeel_core::fencing::NodeId;
use evenkeel_os::clock::Deadline;
use evenkeel_store::Pool;
use evenkeel_telemetry::private;
use evenkeel_wire::agent::proof::{ClusterSecret, SECRET_BYTES};
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// The key of the cluster's number.
const ID: &str = "id";
/// The key of the secret by which nodes authenticate each other.
const SECRET: &str = "secret";
/// The file of a data folder with the number of its cluster.
const NUMBER_FILE: &str = "cluster-number";
/// The key of the API's access key.
const CREDENTIALS: &str = "credentials";
/// The key of the calibration's record.
const CALIBRATION: &str = "calibration";
/// The key of the node that calibrates.
const CALIBRATES: &str = "calibrates";

/// Lease of a key that stays.
const NO_LEASE: u64 = 0;

/// Maximum time that another node may take to calibrate.
const OTHERS_MAX: Duration = Duration::from_secs(30);
const LOOK: Duration = Duration::from_millis(250);
/// Maximum time in which etcd must confirm a leader, which waits for an answer to its hello.
const CONFIRM_MAX: Duration = Duration::from_secs(2);

/// Confirms a leader with a generation that this node has not heard: etcd must have it, for the
/// node that the leader claims to be.
pub fn confirm(kv: &Kv, leader: NodeId, generation: u64) -> Result<(), String> {
    let key = kv.keys.leader();
    let look = Transaction { then: vec![Operation::Get(key.clone())], ..Transaction::default() };
    let asked = kv.client.call("kv/txn", &look.json(), CONFIRM_MAX);
    let answer: TransactionAnswer =
        asked.map_err(|error| format!("whether this node leads is not known: {error}"))?;
    let found = answer.of(&key).filter(|found| found.create_revision.0 == generation);
    let Some(found) = found else { return Err("etcd has no leader of this generation".into()) };
    let name = serde_json::from_slice::<Leader>(&found.value.0).map(|leader| leader.node);
    let name = name.map_err(|error| format!("etcd's leader cannot be read: {error}"))?;
    let member = kv.get(&format!("m/{}", leader.0)).map_err(|error| error.to_string())?;
    if member.is_some_and(|member| member == name.as_bytes()) {
        Ok(())
    } else {
        Err(format!("etcd's leader is not on node {}", leader.0))
    }
}

/// Returns a random number that no other process or cluster has.
pub fn random_number() -> Result<u128, Failure> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)
        .map_err(|error| Failure::new(format!("the OS gives no random bytes: {error}")))?;
    Ok(u128::from_be_bytes(bytes))
}

/// Returns the cluster's number. The first node creates it. A node that has been in a cluster
/// before has its number in the data folder, and joins no other one: an etcd that has lost its data
/// is not taken for a new cluster.
pub fn id(kv: &Kv, data_dir: &Path) -> Result<u128, EtcdError> {
    let options = |failure: Failure| EtcdError::Options(failure.message);
    let Some(known) = known_id(data_dir).map_err(options)? else {
        let new = number::text_of(random_number().map_err(options)?);
        let found = kv.once(ID, new.as_bytes())?;
        return number::read(&found).ok_or_else(|| {
            let key = String::from_utf8_lossy(&kv.keys.number()).into_owned();
            EtcdError::Options(format!("etcd's key {key} is no number of a cluster"))
        });
    };
    let found = kv.get(ID)?.map(|value| KeyValue { value: Raw(value), ..KeyValue::default() });
    match number::check(&kv.keys, known, found.as_ref()) {
        Err(EtcdError::OtherCluster(text)) => Err(EtcdError::OtherCluster(format!(
            "{text}; to leave the cluster of this data folder for good, remove {}",
            data_dir.join(NUMBER_FILE).display()
        ))),
        checked => checked.map(|()| known),
    }
}

/// Returns the secret by which the nodes of the cluster authenticate each other. The first node
/// creates it. Only etcd stores it.
pub fn secret(kv: &Kv) -> Result<ClusterSecret, EtcdError> {
    let mut new = [0; SECRET_BYTES];
    getrandom::fill(&mut new)
        .map_err(|error| EtcdError::Options(format!("the OS gives no random bytes: {error}")))?;
    let found = kv.once(SECRET, &new)?;
    let found: [u8; SECRET_BYTES] = found.try_into().map_err(|found: Vec<u8>| {
        let key = kv.name(SECRET);
        let bytes = found.len();
        let key = String::from_utf8_lossy(&key).into_owned();
        EtcdError::Options(format!(
            "etcd's key {key} has {bytes} bytes, and a secret has {SECRET_BYTES}; remove it while \
             all nodes are stopped, and the next start makes another one"
        ))
    })?;
    Ok(ClusterSecret::new(found))
}

/// Returns the number of the cluster that this data folder was in; `None` if it was in none.
fn known_id(data_dir: &Path) -> Result<Option<u128>, Failure> {
    let path = data_dir.join(NUMBER_FILE);
    if !path.exists() {
        return Ok(None);
    }
    let bytes = read(&path)?;
    number::read(bytes.trim_ascii_end()).map(Some).ok_or_else(|| {
        let hint = "restore it from another node of the cluster";
        Failure::new(format!("{}: not the number of a cluster", path.display())).hint(hint)
    })
}

/// Keeps the cluster's number in the data folder.
pub fn keep_id(data_dir: &Path, id: u128) -> Result<(), Failure> {
    match known_id(data_dir)? {
        Some(_) => Ok(()),
        None => write(data_dir, NUMBER_FILE, format!("{}\n", number::text_of(id)).as_bytes()),
    }
}

/// Reads a file of the data folder.
fn read(path: &Path) -> Result<Vec<u8>, Failure> {
    fs::read(path).map_err(|error| Failure::new(format!("{}: {error}", path.display())))
}

/// Writes a file of the data folder atomically.
fn write(data_dir: &Path, name: &str, bytes: &[u8]) -> Result<(), Failure> {
    private::replace(data_dir, name, bytes)
        .map_err(|error| Failure::new(format!("{}: {error}", data_dir.join(name).display())))
}

/// Copies the cluster's access key of the API to the data folder, or publishes this one's. Clients
/// sign with the same key for every node.
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

/// Returns the cluster's calibration: measured by one node while no volume is in use yet, and
/// shared. A newer one in a node's data folder replaces it.
pub fn calibration(
    kv: &Kv,
    here: NodeId,
    config: &Config,
    pool: &dyn Pool,
    is_stopped: &AtomicBool,
) -> Result<Option<Record>, Failure> {
    let path = config.data_dir.join(calibration::record::FILE);
    let may_measure = config.guarantee && config.calibrate != CalibrateWhen::Never;
    let shared = if may_measure {
        measured(kv, here, is_stopped)?
    } else {
        kv.get(CALIBRATION).map_err(failed)?
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

/// Returns whether the pool was calibrated in this node's data folder after the cluster's record
/// was made.
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

/// Returns the record that another node has measured; `None` if this node is to measure. Two nodes
/// that measured at once would affect each other.
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
