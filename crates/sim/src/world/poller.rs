//! Times at which the policy is polled: the times that it asks for, plus the lateness of the host.

use crate::scenario::setup::PollerSetup;
use evenkeel_core::random::Random;

/// The timer and the pauses of the program that polls the policy.
#[derive(Debug)]
pub(super) struct Poller {
    setup: PollerSetup,
    random: Random,
    next_pause: usize,
    /// The time that the policy asked for, and the time at which the timer ends for it; `u64::MAX`
    /// is never.
    pub(super) asked: u64,
    pub(super) at: u64,
}

impl Poller {
    pub(super) fn new(setup: &PollerSetup, random: Random) -> Self {
        Self { setup: setup.clone(), random, next_pause: 0, asked: u64::MAX, at: u64::MAX }
    }

    /// Returns the time at which the program runs that is woken at `at`.
    pub(super) fn wake(&mut self, at: u64) -> u64 {
        let mut awake = at;
        if at == self.at && self.setup.pause_ppm > 0 && self.random.chance_ppm(self.setup.pause_ppm)
        {
            awake = awake.saturating_add(self.setup.pause_ns);
        }
        while let Some(&(begin, length)) = self.setup.pauses.get(self.next_pause) {
            if awake < begin {
                break;
            }
            awake = awake.max(begin.saturating_add(length));
            self.next_pause += 1;
        }
        awake
    }

    /// Sets the timer for the time that the policy asks for.
    pub(super) fn arm(&mut self, now: u64, asked: u64) {
        if asked <= now {
            self.at = now;
        } else if asked != self.asked {
            let late = match self.setup.late_mean_ns {
                0 => 0,
                mean_ns => self.random.exponential(mean_ns),
            };
            self.at = asked.saturating_add(late);
        }
        self.asked = asked;
    }
    /// Returns the start of the next pause of the whole program.
    pub(super) fn next_pause_at(&self) -> Option<u64> {
        self.setup.pauses.get(self.next_pause).map(|(begin, _)| *begin)
    }

    /// Moves the pauses that are still to come.
    pub(super) fn bring_nearer(&mut self, nearer: impl Fn(u64) -> u64) {
        for (begin, _) in self.setup.pauses.iter_mut().skip(self.next_pause) {
            *begin = nearer(*begin);
        }
    }
}
