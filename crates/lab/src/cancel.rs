//! Cancellation of measurements: long work checks here, and a cancelled one returns an error and no
//! figure.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::LabError;

/// Whether this process is asked to stop.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Asks all measurements of this process to stop. At their next check they return an error, and
/// close their files, so that file systems can be unmounted.
pub fn stop() {
    STOPPED.store(true, Ordering::Release);
}

/// Returns whether [`stop`] was called.
#[must_use]
pub fn is_stopped() -> bool {
    STOPPED.load(Ordering::Acquire)
}

/// Returns an error if [`stop`] was called.
///
/// # Errors
/// If [`stop`] was called.
pub fn go_on() -> Result<(), LabError> {
    if is_stopped() {
        return Err(LabError::Unjudgeable("it was asked to stop".to_owned()));
    }
    Ok(())
}
