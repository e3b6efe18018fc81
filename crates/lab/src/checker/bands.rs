//! The tolerances of a verdict, each set with its origin.

/// Tolerances in millionths of the promised rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bands {
    /// Tolerance of the mean over the full seconds after the first. One I/O over the whole span is
    /// always allowed.
    pub mean_ppm: u32,
    /// Tolerance of every full second after the first, down and up. One I/O is always allowed.
    pub second_ppm: u32,
    /// Tolerance for a limiter that gives more throughout, in addition to all others. The promise
    /// allows nothing. Limiters of other products give a little more than is paid for (published
    /// EBS volumes 1.2 to 3.7 %), and need not count as broken.
    pub over_ppm: u32,
    /// Largest coefficient of variation of the full seconds; one I/O in a second is always allowed.
    pub cov_ppm: Option<u32>,
    /// Largest excess of any 10 ms over the average.
    pub short_window_excess_ppm: Option<u32>,
    /// Milliseconds by which the client may have been late to stamp a completion, which makes I/Os
    /// that were served evenly look bunched. It widens the check of every window.
    pub window_slack_ms: u32,
    /// Milliseconds of such lateness in the checks of every second. Completions this shortly after
    /// a second's edge may belong to the second before it. A second fails only if it fails either
    /// way.
    pub second_slack_ms: u32,
}

impl Bands {
    /// The promise to users, as a client on a shared machine can measure it. Decides `demo` and
    /// `prove`.
    pub const PROMISE: Self = Self {
        mean_ppm: 5_000,
        second_ppm: 10_000,
        over_ppm: 0,
        cov_ppm: None,
        short_window_excess_ppm: None,
        window_slack_ms: 5,
        second_slack_ms: 5,
    };

    /// Returns a sentence on ceilings that are judged without the data plane's record of
    /// dispatches.
    #[must_use]
    pub fn sentence_of_ceilings(&self) -> String {
        // A window can look shorter by the millisecond in which it begins.
        let ms = self.window_slack_ms + 1;
        format!(
            "Ceilings are judged by the client's log, for the server's record of dispatches is in \
             another process: any window may have {ms} ms more than its tolerance, and what the \
             time that was lost explains."
        )
    }

    /// Returns the bands for a limiter that may give more by `over_ppm`.
    #[must_use]
    pub const fn with_over(self, over_ppm: u32) -> Self {
        Self { over_ppm, ..self }
    }

    /// Returns the allowance for a limiter that gives more, for this number of units.
    pub(super) const fn over(&self, units: u128) -> u128 {
        units * self.over_ppm as u128 / 1_000_000
    }

    /// Returns `over_ppm` as a share: 0.04 is 4 %.
    #[must_use]
    pub fn over_share(&self) -> f64 {
        f64::from(self.over_ppm) / 1e6
    }

    /// The published figures, measured on a quiet machine: every second as it was counted, and the
    /// smoothness that the best other limiters reach.
    pub const FIGURES: Self = Self { cov_ppm: Some(500), second_slack_ms: 0, ..Self::PROMISE };

    /// For a simulated client, which is never late: no tolerance but those of the promise.
    ///
    /// For tests.
    pub const EXACT: Self =
        Self { short_window_excess_ppm: Some(150_000), window_slack_ms: 0, ..Self::FIGURES };
}
