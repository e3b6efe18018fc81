//! Log lines that clients and nodes can cause, limited for each kind of line.

use evenkeel_core::log_limit::LogLimit;
use std::cell::RefCell;
use std::fmt::Display;

/// Kinds of lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Notice {
    /// A client was refused or closed.
    Client,
    /// A client's connection continues at another home, or waits for one.
    Home,
    /// A connection to the address for nodes was refused.
    Node,
    /// The system refused to accept a connection.
    Accept,
}

/// The limits of the front's thread.
#[derive(Debug, Default)]
pub(crate) struct Notices {
    limits: RefCell<[LogLimit; 4]>,
}

impl Notices {
    /// Writes a line, unless there were too many of its kind.
    pub fn tell(&self, notice: Notice, what: &str, who: &dyn Display, why: &dyn Display) {
        let line = self.limits.borrow_mut()[notice as usize].line(evenkeel_os::clock::monotonic());
        let Some(left_out) = line else { return };
        let left_out = (left_out > 0).then_some(left_out);
        match notice {
            Notice::Home => tracing::info!(%who, left_out, "{what}: {why}"),
            _ => tracing::warn!(%who, left_out, "{what}: {why}"),
        }
    }
}
