//! Progress of tasks that take minutes, on standard error.

use evenkeel_os::clock;
use indicatif::{ProgressBar, ProgressStyle};
use std::io::IsTerminal;
use std::time::{Duration, Instant};

/// Without a terminal, one line in this many seconds.
const PLAIN_EVERY: u64 = 30;

/// Consecutive runs, each with a clock of its own.
#[derive(Default)]
pub struct Stages {
    current: String,
    before_s: u64,
    at_s: u64,
}

impl Stages {
    /// Seconds of all runs until second `at_s` of the run called `name`.
    pub fn at(&mut self, name: &str, at_s: u64) -> u64 {
        if name != self.current {
            self.before_s += self.at_s;
            name.clone_into(&mut self.current);
        }
        self.at_s = at_s;
        self.before_s + at_s
    }
}

/// A time in words: `90 s`, `5 min`.
pub fn left(seconds: u64) -> String {
    match seconds {
        0..=90 => format!("{seconds} s"),
        _ => format!("{} min", seconds.div_ceil(60)),
    }
}

/// The progress: a bar on a terminal, occasional lines elsewhere.
pub struct Progress {
    bar: Option<ProgressBar>,
    /// The total, in seconds of load or in steps.
    pub length: u64,
    /// The start, if progress is counted in steps, whose duration is not known before.
    steps_since: Option<Instant>,
    told_s: std::cell::Cell<u64>,
}

impl Progress {
    /// A task of `length` seconds of load, at its start.
    pub fn new(length: u64) -> Self {
        Self::begin(length, None)
    }

    /// A task of this many steps, at its start.
    pub fn of_steps(length: u64) -> Self {
        Self::begin(length, Some(clock::now()))
    }

    fn begin(length: u64, steps_since: Option<Instant>) -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = ProgressBar::new(length);
            let template = "{wide_msg}  {bar:24} {percent:>3} %";
            if let Ok(style) = ProgressStyle::with_template(template) {
                bar.set_style(style);
            }
            bar.enable_steady_tick(Duration::from_secs(1));
            bar
        });
        Self { bar, length, steps_since, told_s: std::cell::Cell::new(0) }
    }

    /// Updates the progress, with a text on the present step.
    pub fn at(&self, position: u64, message: &str) {
        let remaining = self.length.saturating_sub(position);
        let (so_far_s, remaining_s) = match self.steps_since.map(|since| since.elapsed().as_secs())
        {
            None => (position, remaining),
            Some(so_far_s) => (so_far_s, so_far_s * remaining / position.max(1)),
        };
        let remaining = left(remaining_s);
        match &self.bar {
            Some(bar) => {
                bar.set_position(position);
                bar.set_message(format!("{message}  ({remaining} left)"));
            }
            None if so_far_s >= self.told_s.get() + PLAIN_EVERY => {
                self.told_s.set(so_far_s);
                eprintln!("{message}  ({remaining} left)");
            }
            None => {}
        }
    }

    /// Ends the progress and removes the bar.
    pub fn done(&self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stages_add_up() {
        let mut stages = Stages::default();
        let reports = [("a", 1), ("a", 3), ("b", 0), ("b", 2), ("c", 1)];
        assert_eq!(reports.map(|(name, at_s)| stages.at(name, at_s)), [1, 3, 3, 5, 6]);
        assert_eq!([left(90), left(91), left(0)], ["90 s", "2 min", "0 s"]);
    }
}
