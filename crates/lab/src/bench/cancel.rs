//! Cancellation of measurements: long work checks here, and a cancelled one returns an error and no
//! figure.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::LabError;

/// Whether this process is to stop.
static STOPPED: AtomicBool = AtomicBool::new(false);

/// Ends everything that this process measures at its next look: whoever runs it gets an error, and
/// closes its files, without which nothing can be unmounted.
pub fn stop() {
    STOPPED.store(true, Ordering::Release);
}

/// Whether [`stop`] was called.
#[must_use]
pub fn is_stopped() -> bool {
    STOPPED.load(Ordering::Acquire)
}

/// Refuses to go on once [`stop`] was called.
///
/// # Errors
/// Then.
pub(crate) fn go_on() -> Result<(), LabError> {
    match is_stopped() {
        true => Err(LabError::Unjudgeable("it was told to stop".to_owned())),
        false => Ok(()),
    }
}
