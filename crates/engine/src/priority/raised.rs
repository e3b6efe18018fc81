//! A driver whose thread is raised as long as its [`Allowance`] lasts.

use super::allowance::Allowance;
use super::{Base, Granted};
use crate::driver::{Driver, Event};
use crate::table::{SessionId, VolumeSlot};
use evenkeel_core::time::Duration;
use evenkeel_os::clock::{self, Clock};
use std::io;
use std::os::fd::RawFd;

/// The priority of the calling thread, and the rest of its budget.
pub(crate) struct Standing {
    granted: Granted,
    base: Base,
    clock: Clock,
    allowance: Allowance,
    is_raised: bool,
}

impl Standing {
    /// Raises the calling thread, for which the result is from then on. Threads that it starts
    /// inherit the priority.
    ///
    /// # Errors
    /// If the kernel refuses a priority that it has granted before.
    pub(crate) fn raise(granted: Granted, clock: Clock) -> io::Result<Self> {
        let base = Base::of_this_thread()?;
        base.raise(granted)?;
        let allowance = Allowance::new(clock.now(), clock::thread_time());
        Ok(Self { granted, base, clock, allowance, is_raised: true })
    }

    /// Raises or lowers the thread before a wait.
    fn before_wait(&mut self, timeout: Option<Duration>) {
        if self.granted == Granted::None {
            return;
        }
        self.allowance.waits(timeout);
        let now = self.clock.now();
        if !self.allowance.is_due(now) {
            return;
        }
        let is_to_be_raised = self.allowance.look(now, clock::thread_time());
        if is_to_be_raised == self.is_raised {
            return;
        }
        let changed = if is_to_be_raised {
            self.base.raise(self.granted)
        } else {
            self.base.lower(self.granted)
        };
        // The kernel's limits may have changed meanwhile. The next change is tried again.
        if let Err(error) = changed {
            tracing::debug!(%error, is_to_be_raised, "the priority of a core stays as it is");
        }
        self.is_raised = is_to_be_raised;
    }
}

/// The driver; see the module's text.
pub(crate) struct Raised<D> {
    driver: D,
    standing: Standing,
}

impl<D: Driver> Raised<D> {
    pub(crate) fn new(driver: D, standing: Standing) -> Self {
        Self { driver, standing }
    }
}

impl<D: Driver> Driver for Raised<D> {
    type Disk<'a>
        = D::Disk<'a>
    where
        Self: 'a;

    unsafe fn receive(&mut self, connection: SessionId, fd: RawFd, message: *mut libc::msghdr) {
        // SAFETY: the caller's promise is the one that the driver requires.
        unsafe { self.driver.receive(connection, fd, message) };
    }

    fn cancel_receive(&mut self, connection: SessionId) {
        self.driver.cancel_receive(connection);
    }

    unsafe fn send(&mut self, connection: SessionId, fd: RawFd, message: *const libc::msghdr) {
        // SAFETY: the caller's promise is the one that the driver requires.
        unsafe { self.driver.send(connection, fd, message) };
    }

    fn cancel_send(&mut self, connection: SessionId) {
        self.driver.cancel_send(connection);
    }

    fn watch(&mut self, connection: SessionId, fd: RawFd) {
        self.driver.watch(connection, fd);
    }

    fn cancel_watch(&mut self, connection: SessionId) {
        self.driver.cancel_watch(connection);
    }

    fn disk(&mut self, store: VolumeSlot) -> D::Disk<'_> {
        self.driver.disk(store)
    }

    fn wait(&mut self, timeout: Option<Duration>, hasty: bool) -> io::Result<()> {
        self.standing.before_wait(timeout);
        self.driver.wait(timeout, hasty)
    }

    fn poll(&mut self) -> Option<Event> {
        self.driver.poll()
    }
}
