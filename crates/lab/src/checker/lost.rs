//! The time that a client's log cannot be held against a limiter, and what a check says with it.

use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::stalls::Stalls;
use evenkeel_sim::check::Check;

/// A run of which more than one part in this many was lost is not excused by it: too little of it
/// was measured. What holds without an excuse holds all the same.
const LOST_PARTS_MAX: u64 = 20;

/// Of this many seconds one may stay undecided, and at least one.
const UNDECIDED_SECONDS_IN: usize = 10;

/// The name of the check whether the server kept the connection.
pub(super) const CONNECTION: &str = "connection";

/// What became of a promise.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Outcome {
    /// It was kept, by itself or in the time that the machine, the server and the client ran.
    Kept,
    /// It cannot be known: what was measured may be the limiter's fault or the machine's.
    Undecided,
    /// The server closed the connection. The seconds before were kept, as far as they were judged.
    ServerGone,
    /// It was broken, and no time that was lost explains it.
    Broken,
}

impl Outcome {
    /// In a word or two, as it stands in tables and headlines.
    #[must_use]
    pub const fn word(self) -> &'static str {
        match self {
            Self::Kept => "kept",
            Self::Undecided => "undecided",
            Self::ServerGone => "server gone",
            Self::Broken => "broken",
        }
    }

    /// What one check adds to the outcome.
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

/// The time that was lost of one run, as measured.
#[derive(Clone, Debug)]
pub(crate) struct Lost {
    known: Stalls,
    /// What may have been lost as well.
    doubtful: Stalls,
    /// When no request waited for the volume's limits, by the server's record.
    idle: Stalls,
    /// Whether little enough was lost for it to excuse anything.
    excuses: bool,
}

/// What a question is answered with when the time that was lost is taken into account.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Answer {
    Yes,
    Undecided,
    No,
}

impl Lost {
    /// What was lost of the first `length_us` of a run, when no request waited for the volume's
    /// limits (`idle`), and what something else may have been the cause of (`others`).
    pub(crate) fn of(stalls: &Stalls, idle: &Stalls, others: &Stalls, length_us: u64) -> Self {
        let known = stalls.during(0, length_us);
        let doubtful = known.doubtful().and(&others.during(0, length_us));
        let idle = idle.during(0, length_us);
        let excuses = known.total_us() * LOST_PARTS_MAX <= length_us;
        Self { known, doubtful, idle, excuses }
    }

    /// Spans that were measured.
    pub(super) const fn known(&self) -> &Stalls {
        &self.known
    }

    /// Whether something holds: as it was counted, in the time that was measured as lost, or only
    /// in what may have been lost.
    ///
    /// A store that stops answers nothing from then on, while requests that already wait are still
    /// dispatched, for up to `ahead_us`: a client's log shows the gap that much before the record.
    pub(super) fn ask(&self, ahead_us: u64, holds: impl Fn(&Stalls) -> bool) -> Answer {
        let doubtful = |idle: &Stalls| holds(&self.doubtful.and(idle));
        if holds(&Stalls::NONE) || (self.excuses && holds(&self.known)) {
            Answer::Yes
        } else if doubtful(&self.idle) || doubtful(&self.idle.earlier(ahead_us)) {
            Answer::Undecided
        } else {
            Answer::No
        }
    }

    /// Asks about each of many seconds, and counts those that are undecided: a few may be.
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

    /// A check with the answer to its question.
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

/// How far a figure may lie from what was promised: all of it, one side, or nothing is judged.
pub(super) fn lies_in(range: &RangeInclusive<u128>, least: u128, most: u128) -> bool {
    *range.end() >= least && *range.start() <= most
}
