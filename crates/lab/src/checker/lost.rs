//! The time that excuses a limiter for what a client's log shows, and the wording of checks with
//! it.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::stalls::Stalls;
use evenkeel_sim::check::Check;

/// If more than one part in this many of a run was lost, the lost time excuses nothing, because too
/// little of the run was measured. Checks that pass without an excuse still pass.
const LOST_PARTS_MAX: u64 = 20;

/// One in this many seconds may stay undecided, and at least one.
const UNDECIDED_SECONDS_IN: usize = 10;

/// The name of the check that the server kept the connection.
pub(super) const CONNECTION: &str = "connection";

/// The outcome of a promise.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// The promise was kept, by itself or in the time that the machine, the server and the client
    /// ran.
    Kept,
    /// Unknown: the deviation may be the fault of the limiter or of the machine.
    Undecided,
    /// The server closed the connection. As far as they were judged, the seconds before were kept.
    ServerGone,
    /// The promise was broken, and no lost time explains it.
    Broken,
}

impl Outcome {
    /// Returns the outcome in a word or two, for tables and headlines.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Undecided => "undecided",
            Self::ServerGone => "server gone",
            Self::Broken => "broken",
        }
    }

    /// Returns the outcome of a single check.
    #[must_use]
    pub fn of_check(check: &Check) -> Self {
        match (check.pass, check.undecided) {
            (true, _) => Self::Kept,
            (false, _) if check.name == CONNECTION => Self::ServerGone,
            (false, true) => Self::Undecided,
            (false, false) => Self::Broken,
        }
    }
}

/// The lost time of one run, as measured.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    known: Stalls,
    /// Time that may have been lost as well.
    doubtful: Stalls,
    /// Spans in which no request waited for the volume's limits, by the server's record.
    idle: Stalls,
    /// Whether so little was lost that it can excuse anything.
    excuses: bool,
}

/// The answer to a question with the lost time taken into account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Yes,
    Undecided,
    No,
}

impl Lost {
    /// Returns the lost time in the first `length_us` of a run. `idle` are the spans in which no
    /// request waited for the volume's limits; `others` may have had another cause.
    pub(crate) fn of(stalls: &Stalls, idle: &Stalls, others: &Stalls, length_us: u64) -> Self {
        let known = stalls.during(0, length_us);
        let doubtful = known.doubtful().and(&others.during(0, length_us));
        let idle = idle.during(0, length_us);
        let excuses = known.total_us() * LOST_PARTS_MAX <= length_us;
        Self { known, doubtful, idle, excuses }
    }

    /// Returns the spans that were measured as lost.
    pub(super) const fn known(&self) -> &Stalls {
        &self.known
    }

    /// Returns whether a condition holds without lost time or with the measured one; undecided if
    /// only the doubtful time or idle spans make it hold.
    ///
    /// A store that stops answers nothing from then on, while requests that already wait are still
    /// dispatched, for up to `ahead_us`: a client's log shows the gap that much before the record,
    /// or that much longer, if the late answers come after the end of a second.
    pub(super) fn ask(&self, ahead_us: u64, holds: impl Fn(&Stalls) -> bool) -> Answer {
        let earlier = self.idle.earlier(ahead_us);
        let doubtful = |idle: &Stalls| holds(&self.doubtful.and(idle));
        if holds(&Stalls::NONE) || (self.excuses && holds(&self.known)) {
            Answer::Yes
        } else if [&self.idle, &earlier, &self.idle.and(&earlier)].into_iter().any(doubtful) {
            Answer::Undecided
        } else {
            Answer::No
        }
    }

    /// Asks for each of several seconds, and returns the answer for all of them with the number of
    /// undecided seconds. A few may be undecided.
    pub(super) fn ask_each(
        &self,
        ahead_us: u64,
        seconds: impl Iterator<Item = usize>,
        holds: impl Fn(usize, &Stalls) -> bool,
    ) -> (Answer, usize) {
        let answers: Vec<Answer> =
            seconds.map(|second| self.ask(ahead_us, |stalls| holds(second, stalls))).collect();
        let count = |answer| answers.iter().filter(|given| **given == answer).count();
        let undecided = count(Answer::Undecided);
        let answer = if count(Answer::No) > 0 {
            Answer::No
        } else if undecided > (answers.len() / UNDECIDED_SECONDS_IN).max(1) {
            Answer::Undecided
        } else {
            Answer::Yes
        };
        (answer, undecided)
    }

    /// Returns a check with this answer.
    pub(super) fn check(
        &self,
        name: impl Into<String>,
        expected: impl Into<String>,
        measured: impl Into<String>,
        answer: Answer,
    ) -> Check {
        let pass = answer == Answer::Yes;
        let undecided = answer == Answer::Undecided;
        Check { undecided, ..Check::new(name, expected, measured, pass) }
    }
}

/// Returns whether a figure that lies somewhere in `range` can lie from `least` to `most`.
pub(super) fn lies_in(range: &RangeInclusive<u128>, least: u128, most: u128) -> bool {
    *range.end() >= least && *range.start() <= most
}
