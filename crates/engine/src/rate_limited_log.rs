//! Log lines that clients can cause, limited for each kind: a client that connects in a loop does
//! not fill the disk, and hides no other line.

use evenkeel_core::log_limit::LogLimit;
use evenkeel_core::time::Instant;

/// Kinds of lines.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Notice {
    /// A client's bytes are no request, or one that is too large.
    BadRequest,
    /// A client stopped in the middle of a request or a reply.
    Stopped,
    /// A handshake made room for others.
    MadeRoom,
    /// A connection was refused because a limit is reached.
    TooMany,
    /// A connection came from an address of no host.
    Stranger,
    /// A process without access connected to the unix socket.
    User,
    /// The system refused to accept a connection.
    NotAccepted,
}

impl Notice {
    const ALL: [Self; 7] = [
        Self::BadRequest,
        Self::Stopped,
        Self::MadeRoom,
        Self::TooMany,
        Self::Stranger,
        Self::User,
        Self::NotAccepted,
    ];

    /// Returns the text of lines of this kind.
    const fn what(self) -> &'static str {
        match self {
            Self::BadRequest => "a connection is closed: it sent a malformed request",
            Self::Stopped => "a connection is closed: its client stopped in the middle",
            Self::MadeRoom => "a handshake is ended to make room",
            Self::TooMany => "a connection is refused: there are as many as there may be",
            Self::Stranger => "a connection is closed: no volume is attached to its address",
            Self::User => "a connection is closed: its user may not use the unix socket",
            Self::NotAccepted => "a connection could not be accepted",
        }
    }
}

/// The limits of one thread.
#[derive(Debug, Default)]
pub struct Notices {
    limits: [LogLimit; Notice::ALL.len()],
}

impl Notices {
    /// Writes a line of this kind, unless the limit is reached. `line` gets the number of lines
    /// that were left out before it; a field that is `None` is not written.
    pub fn tell(&mut self, now: Instant, notice: Notice, line: impl FnOnce(Option<u64>)) {
        if let Some(left_out) = self.limits[notice as usize].line(now) {
            line(Some(left_out).filter(|left_out| *left_out > 0));
        }
    }

    /// Writes the number of lines that were left out, of each kind whose window is over.
    pub fn tell_rest(&mut self, now: Instant) {
        for notice in Notice::ALL {
            let left_out = self.limits[notice as usize].rest(now);
            if left_out > 0 {
                tracing::info!(left_out, "{}; there were more of these lines", notice.what());
            }
        }
    }

    /// Returns whether [`Self::tell_rest`] will have something to write.
    #[must_use]
    pub fn owes(&self) -> bool {
        self.limits.iter().any(LogLimit::owes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_has_its_own_place() {
        for (at, notice) in Notice::ALL.into_iter().enumerate() {
            assert_eq!(notice as usize, at, "{notice:?}");
        }
    }

    #[test]
    fn log_limit_of_one_kind_of_line_does_not_silence_another() {
        let mut notices = Notices::default();
        let now = Instant::ZERO;
        let mut count = |notice| {
            let mut written = 0;
            (0..100).for_each(|_| notices.tell(now, notice, |_| written += 1));
            written
        };
        let written = Notice::ALL.map(&mut count);
        assert_eq!(written, [evenkeel_core::limits::LOG_LINES_MAX; Notice::ALL.len()]);
        assert!(notices.owes());
    }
}
