//! When the policy is polled: as it asks for, or as late as the host is.

use crate::scenario::setup::PollerSetup;
use evenkeel_core::random::Random;

/// When the policy is polled.
#[derive(Debug)]
pub(super) struct Poller {
    setup: PollerSetup,
    random: Random,
    next_pause: usize,
    /// What the policy asked for, and when it is woken for that; the end of time for never.
    pub(super) asked: u64,
    pub(super) at: u64,
}

impl Poller {
    pub(super) fn new(setup: &PollerSetup, random: Random) -> Self {
        Self { setup: setup.clone(), random, next_pause: 0, asked: u64::MAX, at: u64::MAX }
    }

    /// When the program that is woken at `at` runs.
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

    /// Sets the timer for what the policy asks for.
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
    /// When the next pause of the whole program begins.
    pub(super) fn next_pause_at(&self) -> Option<u64> {
        self.setup.pauses.get(self.next_pause).map(|(begin, _)| *begin)
    }

    /// Lets the pauses that are still to come begin earlier.
    pub(super) fn bring_nearer(&mut self, nearer: impl Fn(u64) -> u64) {
        for (begin, _) in self.setup.pauses.iter_mut().skip(self.next_pause) {
            *begin = nearer(*begin);
        }
    }
}
