//! Calibration of a server's store: measures, writes the record, and reads it at every start.

pub mod identity;
pub mod record;
pub mod state;
#[cfg(test)]
mod tests;
pub mod text;

use crate::{Config, cores};
use evenkeel_cli::calibrate::CalibrateWhen;
use evenkeel_cli::flags::Io;
use evenkeel_cli::store::{Bytes, StoreKind};
use evenkeel_client::output::Failure;
use evenkeel_engine::calibrate::{self, CalibrateError, Plan};
use evenkeel_os::clock;
use evenkeel_store::Pool;
use evenkeel_store::layout::PoolState;
use identity::Identity;
pub use record::Record;
use record::{FILE, Found, InState, Method, StateName};
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Space that is left free while a calibration fills its volume.
const SPARE_BYTES: u64 = 64 << 20;

/// The store to measure, and the method.
pub struct Subject<'a> {
    /// The pool, which nothing else uses.
    pub pool: &'a dyn Pool,
    /// The kind of its store.
    pub store: StoreKind,
    /// The device below it.
    pub device: Identity,
    /// How the measurement accesses the disk.
    pub io: Io,
    /// The extent of the measurement.
    pub plan: Plan,
}

/// Measures. Nothing else may use the pool at the same time.
///
/// # Errors
/// If the pool cannot be used, too little was measured, or `stop` became true.
pub fn measure(
    subject: &Subject<'_>,
    stop: &AtomicBool,
    progress: &mut (dyn FnMut(&str) + Send),
) -> Result<Record, CalibrateError> {
    let Subject { pool, store, device, io, plan } = subject;
    let measured = calibrate::measure(*pool, (*io).into(), plan, stop, progress)?;
    let method = Method::of(plan, io.name());
    let record = Record::new(&measured, store, device.clone(), method, clock::unix_ms().0 / 1_000);
    record.map_err(CalibrateError::Unusable)
}

/// Measures the state that the pool is in, to be added to a record.
///
/// # Errors
/// As [`measure`].
pub fn measure_state(
    subject: &Subject<'_>,
    (state, lost): (StateName, Option<String>),
    stop: &AtomicBool,
    progress: &mut (dyn FnMut(&str) + Send),
) -> Result<InState, CalibrateError> {
    let Subject { pool, io, plan, .. } = subject;
    let measured = calibrate::measure(*pool, (*io).into(), plan, stop, progress)?;
    Ok(InState {
        state,
        lost,
        date: record::timestamp(clock::unix_ms().0 / 1_000),
        method: Method::of(plan, io.name()),
        found: Found::of(&measured).map_err(CalibrateError::Unusable)?,
    })
}

/// The space that is missing in `folder` for a plan; `None` if there is enough.
pub fn missing_room(
    store: &StoreKind,
    pool: &dyn Pool,
    folder: &Path,
    plan: &Plan,
) -> Option<String> {
    if store.bytes == Bytes::Memory {
        return None;
    }
    // What does not report its space fails later if it is full.
    let filesystem = || {
        let filesystem = rustix::fs::statvfs(folder).ok()?;
        Some(filesystem.f_bavail.saturating_mul(filesystem.f_frsize))
    };
    let of_pool = pool.space().ok().flatten().map(|space| space.free.0);
    let free_mib = of_pool.or_else(filesystem)? >> 20;
    let needed_mib = (plan.span.0 + SPARE_BYTES) >> 20;
    (free_mib < needed_mib).then(|| {
        format!("{} has {free_mib} MiB free; measuring takes {needed_mib} MiB", folder.display())
    })
}

/// The record for a starting server: the one in its data folder if it is of this store on this
/// device, or a new one, measured quickly. The sold capacity depends on it, so it is logged.
///
/// A store that cannot be measured, and one of a server for tests, is served without guarantees.
/// Once `stop` is true, the measurement ends.
pub(crate) fn at_start(
    config: &Config,
    pool: &dyn Pool,
    stop: &AtomicBool,
) -> Result<Option<Record>, Failure> {
    match calibrate::clean(pool) {
        Ok(true) => tracing::info!("removed the volume of a calibration that did not end"),
        Ok(false) => {}
        Err(error) => tracing::warn!(%error, "an earlier calibration's volume is not removed"),
    }
    if !config.guarantee {
        tracing::warn!("--no-guarantee: volumes are held to their limits, and nothing is promised");
        return Ok(None);
    }
    if config.is_test {
        // A test must not fail because of other programs on the machine.
        tracing::info!("the capacity of the store is not measured: the server is for tests");
        return Ok(None);
    }
    let path = config.data_dir.join(FILE);
    let place = config.store_options.pool.as_deref().unwrap_or(&config.data_dir);
    let device = Identity::of_store(&config.store, pool, place);
    if let Some(record) = Record::load(&path)? {
        match record.misfit(&config.store, &device) {
            None => {
                warn_of_changes(&record, &device);
                log_record(&record);
                return Ok(Some(record));
            }
            Some(why) => tracing::warn!("the calibration {} does not count: {why}", record.id),
        }
    }
    if config.calibrate == CalibrateWhen::Never {
        tracing::warn!(
            "the store is not calibrated, so its capacity is unknown; see \
             `evenkeel calibrate`"
        );
        return Ok(None);
    }
    let plan = Plan::QUICK;
    if let Some(why) = missing_room(&config.store, pool, &config.data_dir, &plan) {
        tracing::warn!("the store is not calibrated: {why}");
        return Ok(None);
    }
    tracing::info!("calibrating the store, for three seconds and only at the first start");
    if let Ok(Some(seen)) = pool.look_around()
        && seen.state != PoolState::Healthy
    {
        let is = state::words(&seen.state);
        tracing::warn!("the pool is {is}: a measurement now finds less than its full capacity");
    }
    let subject = Subject { pool, store: config.store, device, io: config.io, plan };
    match measure(&subject, stop, &mut |_| {}) {
        Ok(record) => {
            if let Err(failure) = record.save(&path) {
                tracing::warn!("the next start calibrates again: {}", failure.message);
            }
            log_record(&record);
            Ok(Some(record))
        }
        Err(CalibrateError::Stopped) => {
            tracing::info!("stopped before the store was calibrated: the next start does it");
            Ok(None)
        }
        Err(error) => {
            tracing::warn!(%error, "the store is not calibrated: run `evenkeel calibrate`");
            Ok(None)
        }
    }
}

fn warn_of_changes(record: &Record, now: &Identity) {
    for change in record.changes(now) {
        tracing::warn!(
            "the calibration {} may not hold any more: {change}; run `evenkeel calibrate` when \
             nothing uses the pool",
            record.id
        );
    }
}

fn log_record(record: &Record) {
    tracing::info!("calibration {}: {}", record.id, record.words(cores()));
    for text in record.reservations() {
        tracing::info!("calibration {}: {text}", record.id);
    }
}
