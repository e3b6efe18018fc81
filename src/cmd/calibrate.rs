//! `evenkeel calibrate`: measures the device under a store and prints how much of it may be sold.

use crate::cli::{Bytes, Calibrate};
use evenkeel_cli::{log, signals};
use evenkeel_client::output::{self, Exit, Failure, Format, failed};
use evenkeel_engine::calibrate::{self, CalibrateError, Plan, VOLUME};
use evenkeel_server::calibration::identity::Identity;
use evenkeel_server::calibration::record::{FILE, Record, StateName};
use evenkeel_server::calibration::state::{self, When};
use evenkeel_server::calibration::{self, Subject, text};
use evenkeel_server::open_pool;
use evenkeel_server::store_options::StoreOptions;
use evenkeel_store::Pool;
use evenkeel_store::folder::Folder;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Name of the folder that is created in a folder with other content.
const SCRATCH: &str = "evenkeel-calibration";

/// The exit code of a program that SIGINT ended, as a shell reports it.
const INTERRUPTED: i32 = 130;

/// The target of the measurement, and the place of its record.
struct Target {
    pool: Arc<dyn Pool>,
    /// The folder in which the volume takes space.
    folder: PathBuf,
    device: Identity,
    record: Option<PathBuf>,
    /// Removed at the end.
    scratch: Option<PathBuf>,
    /// The lock that keeps a server out of the data folder during the measurement.
    _folder: Option<Folder>,
}

impl Drop for Target {
    fn drop(&mut self) {
        if let Some(scratch) = &self.scratch {
            let _ = fs::remove_dir_all(scratch);
        }
    }
}

pub fn run(arguments: &Calibrate) -> Result<(), Failure> {
    log::to_stderr("warn")?;
    let stop = stop_when_told_to()?;
    let plan = if arguments.quick { Plan::QUICK } else { Plan::FULL };
    let target = target(arguments)?;
    calibrate::clean(&*target.pool).map_err(failed)?;
    if let Some(why) =
        calibration::missing_room(&arguments.store, &*target.pool, &target.folder, &plan)
    {
        let hint = if arguments.quick { "make room" } else { "make room, or take --quick" };
        return Err(Failure::new(why).hint(hint));
    }
    let lost = state::expect(&*target.pool, arguments.state, When::Before)?;
    let earlier = earlier(arguments, &target)?;
    let subject = Subject {
        pool: &*target.pool,
        store: arguments.store,
        device: target.device.clone(),
        io: arguments.io,
        plan,
    };
    let mut progress = |what: &str| eprintln!("{what}");
    let measured = match (StateName::of(arguments.state), earlier) {
        (None, earlier) => {
            calibration::measure(&subject, &stop, &mut progress).map(|mut record| {
                earlier.iter().for_each(|earlier| record.keep_states(earlier));
                record
            })
        }
        (Some(name), Some(mut record)) => {
            calibration::measure_state(&subject, (name, lost), &stop, &mut progress).map(|state| {
                record.add(state);
                record
            })
        }
        (Some(_), None) => return Err(no_base(arguments, "there is no record of it yet")),
    };
    let record = match measured {
        Err(CalibrateError::Stopped) => {
            drop(target);
            eprintln!("interrupted");
            std::process::exit(INTERRUPTED);
        }
        measured => measured.map_err(failed)?,
    };
    state::expect(&*target.pool, arguments.state, When::After)?;
    if let Some(path) = &target.record {
        record.save(path)?;
    }
    output::print(&match arguments.output.format {
        Format::Json => output::json(&serde_json::to_value(&record).unwrap_or_default()),
        Format::Csv => output::listing(&record.found.curve, Format::Csv, ""),
        Format::Text => text::describe(&record, target.record.as_deref()),
    })
}

/// Returns the existing record, if the present measurement belongs to it.
///
/// # Errors If a state is to be measured, and the record is of another store or device.
fn earlier(arguments: &Calibrate, target: &Target) -> Result<Option<Record>, Failure> {
    let is_base = StateName::of(arguments.state).is_none();
    let found = match target.record.as_deref().map(Record::load).transpose() {
        Ok(found) => found.flatten(),
        // A base replaces any earlier record.
        Err(_) if is_base => None,
        Err(failure) => return Err(failure),
    };
    let Some(record) = found else { return Ok(None) };
    let mut changes = record.changes(&target.device);
    changes.extend(record.misfit(&arguments.store, &target.device));
    match changes.first() {
        None => Ok(Some(record)),
        Some(_) if is_base => Ok(None),
        Some(_) => Err(no_base(arguments, &format!("since the last time {}", changes.join(", ")))),
    }
}

/// Returns the error for a measurement of a state without a measurement of the healthy pool.
fn no_base(arguments: &Calibrate, why: &str) -> Failure {
    let folder = arguments.target.display();
    Failure::new(format!(
        "--as {}: {folder} has no calibration of the pool: {why}",
        arguments.state
    ))
    .hint("calibrate it while it is healthy first")
}

/// A flag that becomes true at the first signal to stop. A second signal ends the process at once.
fn stop_when_told_to() -> Result<Arc<AtomicBool>, Failure> {
    let stop = Arc::new(AtomicBool::new(false));
    let stop_requested = Arc::clone(&stop);
    signals::when_signalled(move |number| {
        if number > 1 {
            std::process::exit(INTERRUPTED);
        }
        stop_requested.store(true, Ordering::Relaxed);
        true
    })?;
    Ok(stop)
}

/// Determines the kind of target: a missing or empty folder and a folder of ours are data folders;
/// in any other folder a temporary folder is created.
fn target(arguments: &Calibrate) -> Result<Target, Failure> {
    let path = std::path::absolute(&arguments.target)
        .map_err(|error| Failure::new(format!("{}: {error}", arguments.target.display())))?;
    let is_foreign = match fs::metadata(&path) {
        Ok(metadata) if metadata.is_dir() => !Folder::may_claim(&path).map_err(failed)?,
        Ok(_) => {
            let hint = "name a folder on the device to be measured";
            return Err(Failure::new(format!("{} is not a folder", path.display())).hint(hint));
        }
        Err(_) => false,
    };
    if is_foreign {
        return beside(arguments, &path);
    }
    let options = StoreOptions::of(&arguments.local, &arguments.rbd, &arguments.store)?;
    let (pool, folder) = open_pool(&arguments.store, &options, &path)?;
    let below = options.pool.as_deref().unwrap_or(&path);
    let mut device = Identity::of_store(&arguments.store, &*pool, below);
    if let Some(layout) = &mut device.layout {
        layout.recovery = pool.recovery();
    }
    Ok(Target {
        device,
        pool,
        record: Some(path.join(FILE)),
        folder: path,
        scratch: None,
        _folder: folder,
    })
}

/// A temporary folder in a folder with other content.
fn beside(arguments: &Calibrate, path: &Path) -> Result<Target, Failure> {
    only_disks(arguments, path)?;
    let scratch = path.join(SCRATCH);
    let (pool, folder) = open_pool(&arguments.store, &StoreOptions::default(), &scratch)?;
    let volumes = pool.list().map_err(failed)?;
    if let Some((id, _)) = volumes.iter().find(|(id, _)| *id != VOLUME) {
        let message = format!("{} holds volume {id}: it is a data folder", scratch.display());
        return Err(Failure::new(message).hint("name that folder, or move it away"));
    }
    Ok(Target {
        pool,
        folder: path.to_owned(),
        device: Identity::of_path(path),
        record: None,
        scratch: Some(scratch),
        _folder: folder,
    })
}

fn only_disks(arguments: &Calibrate, path: &Path) -> Result<(), Failure> {
    if !matches!(arguments.store.bytes, Bytes::Memory | Bytes::Rbd) {
        return Ok(());
    }
    let message = format!(
        "{} is not a data folder, and the store \"{}\" is not there",
        path.display(),
        arguments.store
    );
    Err(Failure::new(message).exit(Exit::Usage).hint("name a data folder, or leave out --store"))
}
