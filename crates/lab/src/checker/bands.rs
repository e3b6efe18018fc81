//! How close is close enough: the tolerances of a verdict, each set with its origin.

/// Tolerances in millionths of the promised rate.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Bands {
    /// Of the mean over the full seconds after the first; one I/O over the whole span is always
    /// allowed.
    pub mean_ppm: u32,
    /// Of every full second after the first, down and up; one I/O is always allowed.
    pub second_ppm: u32,
    /// By how much more a limiter may give throughout, over every other tolerance. The promise
    /// allows nothing; what others sell gives a little more than is paid for (published EBS volumes
    /// 1.2 to 3.7 %), and that is no reason to call it broken.
    pub over_ppm: u32,
    /// Largest coefficient of variation of the full seconds; one I/O in a second is always allowed.
    pub cov_ppm: Option<u32>,
    /// Largest excess of any 10 ms over the average.
    pub short_window_excess_ppm: Option<u32>,
    /// By how many milliseconds the client may have been late to stamp a completion, which makes
    /// I/Os that were served evenly look bunched. Widens the check of every window.
    pub window_slack_ms: u32,
    /// The same for the checks of every second: what completes this shortly after a second's edge
    /// may belong to the second before it. A second fails only when it fails either way.
    pub second_slack_ms: u32,
}

impl Bands {
    /// What is promised to users, as a client on a shared machine can measure it. Decides `demo`
    /// and `prove`.
    pub const PROMISE: Self = Self {
        mean_ppm: 5_000,
        second_ppm: 10_000,
        over_ppm: 0,
        cov_ppm: None,
        short_window_excess_ppm: None,
        window_slack_ms: 5,
        second_slack_ms: 5,
    };

    /// What a reader should know of ceilings that are judged without the data plane's own record of
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

    /// The same, and a limiter may give so much more.
    #[must_use]
    pub const fn with_over(self, over_ppm: u32) -> Self {
        Self { over_ppm, ..self }
    }

    /// What may come on top of so many units, since a limiter may give more.
    pub(super) const fn over(&self, units: u128) -> u128 {
        units * self.over_ppm as u128 / 1_000_000
    }

    /// The same as a share: 0.04 is 4 %.
    #[must_use]
    pub fn over_share(&self) -> f64 {
        f64::from(self.over_ppm) / 1e6
    }

    /// The published figures, measured on a quiet machine: every second as it was counted, and the
    /// smoothness that the best other limiters reach.
    pub const FIGURES: Self = Self { cov_ppm: Some(500), second_slack_ms: 0, ..Self::PROMISE };

    /// For a simulated client, which is never late: nothing but the promise is left as tolerance.
    ///
    /// For tests.
    pub const EXACT: Self =
        Self { short_window_excess_ppm: Some(150_000), window_slack_ms: 0, ..Self::FIGURES };
}
