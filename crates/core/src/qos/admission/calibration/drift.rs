//! Whether a device still is what it was when it was calibrated: what requests take beside what
//! they were predicted to take. When it became slower, less may be sold, at once and loudly; when
//! it recovers, more may be sold again, but not before that has lasted. What nobody uses shows
//! nothing: what was seen of it is believed less and less, until it is what it was; if it is not,
//! the first seconds of use show it again.

use core::fmt;

use super::super::model::{DeviceFloor, PPM};
use crate::time::{Duration, Instant};

/// Drift is judged once in so long, if enough requests ended.
pub const PERIOD: Duration = Duration::from_secs(1);

/// Fewer requests than this say nothing: the period goes on.
pub const REQUESTS_MIN: u32 = 256;

/// Up to here a device is what it was: an interrupt that comes late and a length that is off the
/// fitted line are no drift. In millionths, as all ratios here.
pub const STEADY_PPM: u32 = 1_200_000;

/// What may be sold changes in steps of this, so that it does not change with every breath.
pub const STEP_PPM: u32 = 50_000;

/// Something may always be sold; a device that delivers a tenth of what was measured is broken, and
/// the log says so every time it gets worse.
pub const SOLD_MIN_PPM: u32 = 100_000;

/// More may be sold after so many periods in a row in which it could have been.
pub const CALM_PERIODS: u32 = 30;

/// A device of which nothing was judged for so long has rested: that counts as a period in which it
/// was what it was.
pub const REST: Duration = Duration::from_secs(10);

/// A new period counts one part in so many.
const SMOOTHING: u64 = 4;

/// One request counts for at most this multiple of what was expected: a stall in which little was
/// under way is a stall, and no drift.
const REQUEST_MAX: u64 = 8;

/// How long a request should take that needs `predicted_ns` of one of `channels` channels, where
/// `others` are at the device when it gets there that need `others_ns` together: those for which
/// there is no channel are served before it. Where requests differ, what they need counts and not
/// their number, or a small one would be expected to wait for large ones as for its like.
#[must_use]
pub const fn expected_ns(predicted_ns: u64, (others, others_ns): (u32, u64), channels: u32) -> u64 {
    let channels = if channels == 0 { 1 } else { channels };
    if others < channels {
        return predicted_ns;
    }
    let before = widen(others - channels + 1);
    let wait_ns = others_ns / widen(others) * before / widen(channels);
    predicted_ns.saturating_add(wait_ns)
}

/// `u64::from`, which is not const.
const fn widen(value: u32) -> u64 {
    let [a, b, c, d] = value.to_le_bytes();
    u64::from_le_bytes([a, b, c, d, 0, 0, 0, 0])
}

/// See the module's text.
#[derive(Clone, Debug)]
pub struct Drift {
    period_end: Instant,
    requests: u32,
    expected_ns: u64,
    observed_ns: u64,
    ratio_ppm: u64,
    sold_ppm: u32,
    calm_periods: u32,
    /// When it was judged last, or had rested.
    judged_at: Instant,
}

/// What may be sold has changed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriftChange {
    /// Observed by predicted time, smoothed, in millionths.
    pub ratio_ppm: u64,
    /// What could be sold of the calibrated floor until now, in millionths.
    pub before_ppm: u32,
    /// What may be sold of it from now on.
    pub sold_ppm: u32,
    /// Nothing was seen of it for a while: the ratio is what is still believed.
    pub has_rested: bool,
}

impl fmt::Display for DriftChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = (self.ratio_ppm + 5_000) / 10_000;
        let (now, before) = (self.sold_ppm / 10_000, self.before_ppm / 10_000);
        if self.has_rested {
            f.write_str("little has used the device for a while")?;
        } else {
            let (whole, part) = (hundredths / 100, hundredths % 100);
            write!(f, "the device takes {whole}.{part:02} times as long as at its calibration")?;
        }
        write!(f, ": {now} % of what was measured then may be sold, {before} % until now")?;
        if self.sold_ppm < self.before_ppm {
            f.write_str("; look after the device, or calibrate it anew")?;
        }
        Ok(())
    }
}

impl Drift {
    /// A device that is what it was.
    #[must_use]
    pub fn new(now: Instant) -> Self {
        Self {
            period_end: now + PERIOD,
            requests: 0,
            expected_ns: 0,
            observed_ns: 0,
            ratio_ppm: u64::from(PPM),
            sold_ppm: PPM,
            calm_periods: 0,
            judged_at: now,
        }
    }

    /// A request is done that should have taken [`expected_ns`] and took `service`. Returns when
    /// what may be sold changes.
    pub fn completed(
        &mut self,
        now: Instant,
        expected_ns: u64,
        service: Duration,
    ) -> Option<DriftChange> {
        let expected_ns = expected_ns.max(1);
        self.requests = self.requests.saturating_add(1);
        self.expected_ns = self.expected_ns.saturating_add(expected_ns);
        let observed_ns = service.ns.min(expected_ns.saturating_mul(REQUEST_MAX));
        self.observed_ns = self.observed_ns.saturating_add(observed_ns);
        if now < self.period_end || self.requests < REQUESTS_MIN {
            return None;
        }
        let ratio = u128::from(self.observed_ns) * u128::from(PPM) / u128::from(self.expected_ns);
        let ratio = u64::try_from(ratio).unwrap_or(u64::MAX);
        self.ratio_ppm = (self.ratio_ppm * (SMOOTHING - 1) + ratio) / SMOOTHING;
        self.period_end = now + PERIOD;
        self.judged_at = now;
        (self.requests, self.expected_ns, self.observed_ns) = (0, 0, 0);
        self.judge(false)
    }

    /// When to call [`Drift::rest`], unless requests are judged before; `None` where that would
    /// change nothing.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.sold_ppm < PPM).then_some(self.judged_at + REST)
    }

    /// Takes note that time has passed. Returns when what may be sold changes.
    pub fn rest(&mut self, now: Instant) -> Option<DriftChange> {
        if self.poll_timeout().is_none_or(|at| now < at) {
            return None;
        }
        self.judged_at = now;
        self.ratio_ppm = (self.ratio_ppm * (SMOOTHING - 1) + u64::from(PPM)) / SMOOTHING;
        self.judge(true)
    }

    /// Observed by predicted time, smoothed, in millionths.
    #[must_use]
    pub const fn ratio_ppm(&self) -> u64 {
        self.ratio_ppm
    }

    /// What may be sold of the calibrated floor, in millionths.
    #[must_use]
    pub const fn sold_ppm(&self) -> u32 {
        self.sold_ppm
    }

    /// The floor that may be sold of, where `calibrated` was measured.
    #[must_use]
    pub fn floor(&self, calibrated: &DeviceFloor) -> DeviceFloor {
        calibrated.part(self.sold_ppm)
    }

    fn judge(&mut self, has_rested: bool) -> Option<DriftChange> {
        let wanted_ppm = sellable_ppm(self.ratio_ppm);
        let before_ppm = self.sold_ppm;
        if wanted_ppm > before_ppm {
            self.calm_periods += 1;
            if self.calm_periods < CALM_PERIODS {
                return None;
            }
        }
        self.calm_periods = 0;
        self.sold_ppm = wanted_ppm;
        let ratio_ppm = self.ratio_ppm;
        (wanted_ppm != before_ppm).then_some(DriftChange {
            ratio_ppm,
            before_ppm,
            sold_ppm: wanted_ppm,
            has_rested,
        })
    }
}

/// What may be sold of a floor whose device takes so many millionths of the time it took.
fn sellable_ppm(ratio_ppm: u64) -> u32 {
    if ratio_ppm <= u64::from(STEADY_PPM) {
        return PPM;
    }
    let exact = u64::from(PPM) * u64::from(PPM) / ratio_ppm;
    // Below a million, as the ratio is above one.
    let exact = u32::try_from(exact).unwrap_or(PPM);
    (exact - exact % STEP_PPM).max(SOLD_MIN_PPM)
}
