//! Compares a device with its calibration: the service times of requests with their predictions. If
//! the device has become slower, less may be sold, at once and with a log line; if it recovers,
//! more may be sold again, after that has lasted for a while. An unused device gives no evidence:
//! its last slow rating decays until it counts as calibrated; if it is still slow, the first
//! seconds of use show it again.

use crate::convert::exact;
use core::fmt;

use super::super::model::{DeviceFloor, PPM};
use crate::time::{Duration, Instant};

/// Length of a period after which drift is judged, if enough requests ended.
pub const PERIOD: Duration = Duration::from_secs(1);

/// Minimum number of requests for a judgement: with fewer the period continues.
pub const REQUESTS_MIN: u32 = 256;

/// Ratio up to which a device counts as calibrated: late interrupts and lengths beside the fitted
/// line are no drift. In millionths, as all ratios here.
pub const STEADY_PPM: u32 = 1_200_000;

/// Step in which the sold part changes, so that small variations do not change it.
pub const STEP_PPM: u32 = 50_000;

/// Minimum part that may be sold; a device that delivers a tenth of its calibration is broken, and
/// each further decrease is logged.
pub const SOLD_MIN_PPM: u32 = 100_000;

/// Number of periods in a row in which more could have been sold after which more may be sold.
pub const CALM_PERIODS: u32 = 30;

/// A device without a judgement for this time has rested: that counts as a period as calibrated.
pub const REST: Duration = Duration::from_secs(10);

/// A new period has a weight of one part in this number.
const SMOOTHING: u64 = 4;

/// Maximum multiple of its expected time that one request counts: a stall with few requests in
/// flight is no drift.
const REQUEST_MAX: u64 = 8;

/// Returns the expected service time of a request that needs `predicted_ns` of one of `channels`
/// channels, if `others` requests are at the device before it, which need `others_ns` together:
/// those for which there is no channel are served first. The requests' needs count and not only
/// their number; otherwise a small one would be expected to wait for large ones as for small ones.
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

/// Does the same as `u64::from`, which is not const.
const fn widen(value: u32) -> u64 {
    let [a, b, c, d] = value.to_le_bytes();
    u64::from_le_bytes([a, b, c, d, 0, 0, 0, 0])
}

/// The drift of one device; see the module's text.
#[derive(Clone, Debug)]
pub struct Drift {
    period_end: Instant,
    requests: u32,
    expected_ns: u64,
    observed_ns: u64,
    ratio_ppm: u64,
    sold_ppm: u32,
    calm_periods: u32,
    /// Time of the last judgement or rest.
    judged_at: Instant,
}

/// A change of the part that may be sold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct DriftChange {
    /// Observed by predicted time, smoothed, in millionths.
    pub ratio_ppm: u64,
    /// Part of the calibrated floor that could be sold until now, in millionths.
    pub before_ppm: u32,
    /// Part of it that may be sold from now on, in millionths.
    pub sold_ppm: u32,
    /// Whether the device has had no judgement for a while, so that the ratio is a decayed one.
    pub has_rested: bool,
}

impl fmt::Display for DriftChange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hundredths = (self.ratio_ppm + 5_000) / 10_000;
        let now = self.sold_ppm / 10_000;
        let before = self.before_ppm / 10_000;
        if self.has_rested {
            f.write_str("little has used the device for a while")?;
        } else {
            let whole = hundredths / 100;
            let part = hundredths % 100;
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
    /// Creates the state of a device as calibrated.
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

    /// Records a request with this [`expected_ns`] and the service time `service`. Returns a change
    /// of the part that may be sold.
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
        let ratio: u64 = exact(ratio, "at most REQUEST_MAX times the expectation");
        self.ratio_ppm = (self.ratio_ppm * (SMOOTHING - 1) + ratio) / SMOOTHING;
        self.period_end = now + PERIOD;
        self.judged_at = now;
        (self.requests, self.expected_ns, self.observed_ns) = (0, 0, 0);
        self.judge(false)
    }

    /// Returns when to call [`Drift::rest`], unless requests are judged before; `None` if that
    /// would change nothing.
    #[must_use]
    pub fn poll_timeout(&self) -> Option<Instant> {
        (self.sold_ppm < PPM).then_some(self.judged_at + REST)
    }

    /// Lets a slow rating decay if the device has rested by `now`. Returns a change of the part
    /// that may be sold.
    pub fn rest(&mut self, now: Instant) -> Option<DriftChange> {
        if self.poll_timeout().is_none_or(|time| now < time) {
            return None;
        }
        self.judged_at = now;
        self.ratio_ppm = (self.ratio_ppm * (SMOOTHING - 1) + u64::from(PPM)) / SMOOTHING;
        self.judge(true)
    }

    /// Returns observed by predicted time, smoothed, in millionths.
    #[must_use]
    pub const fn ratio_ppm(&self) -> u64 {
        self.ratio_ppm
    }

    /// Returns the part of the calibrated floor that may be sold, in millionths.
    #[must_use]
    pub const fn sold_ppm(&self) -> u32 {
        self.sold_ppm
    }

    /// Returns the floor for sale of a device with the floor `calibrated` at its calibration.
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

/// Returns the part that may be sold, in millionths, of a device whose requests take `ratio_ppm`
/// millionths of their calibrated time.
fn sellable_ppm(ratio_ppm: u64) -> u32 {
    if ratio_ppm <= u64::from(STEADY_PPM) {
        return PPM;
    }
    let part = u64::from(PPM) * u64::from(PPM) / ratio_ppm;
    let part: u32 = exact(part, "below a million, as the ratio is above one");
    (part - part % STEP_PPM).max(SOLD_MIN_PPM)
}
