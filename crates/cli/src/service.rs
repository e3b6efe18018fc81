//! Messages to the service manager, as sd_notify(3) defines them. Without a manager that asks for
//! them they do nothing.

use sd_notify::NotifyState;
use std::time::Duration;

/// Reports that the program is ready: all listeners answer.
pub fn ready() {
    send(&[NotifyState::Ready]);
}

/// Reports that the program begins to stop.
pub fn stopping() {
    send(&[NotifyState::Stopping]);
}

/// Reports that the program reads its files again; [`ready`] ends that.
pub fn reloading() {
    // Newer managers need the time of the message, to pair it with the next READY.
    match NotifyState::monotonic_usec_now() {
        Ok(now) => send(&[NotifyState::Reloading, now]),
        Err(error) => tracing::warn!(%error, "the service manager receives no RELOADING"),
    }
}

/// Reports that the program works. Without this report for [`watchdog`]'s time, the manager
/// restarts the program.
pub fn alive() {
    send(&[NotifyState::Watchdog]);
}

/// Returns the time within which the manager expects [`alive`]; `None` if it expects none.
pub fn watchdog() -> Option<Duration> {
    sd_notify::watchdog_enabled()
}

/// Returns whether a service manager has started this program and asks for its messages.
#[must_use]
pub fn is_managed() -> bool {
    std::env::var_os("NOTIFY_SOCKET").is_some_and(|socket| !socket.is_empty())
}

fn send(states: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(states) {
        tracing::warn!(%error, ?states, "the service manager receives no message");
    }
}
