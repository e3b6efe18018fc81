//! Kernel density: the smooth histogram that the published charts show.

use super::{Sample, percentile, sorted};

/// Bandwidths by which a curve extends beyond the smallest and the largest value: R's `cut`.
const CUT: f64 = 3.0;

/// Distance from a value, in bandwidths, at which its share of the density is below 1e-17.
const REACH: f64 = 9.0;

/// A curve: the density of the values at each of several equally distant places.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Density {
    /// The places, in the values' unit.
    pub at: Vec<f64>,
    /// Density there: share of the values per unit.
    pub density: Vec<f64>,
    /// Standard deviation of the Gaussian that replaces each value.
    pub bandwidth: f64,
}

impl Density {
    /// Returns the density of these values at `places` places, from three bandwidths below the
    /// smallest value to three above the largest. It is empty without values.
    #[must_use]
    pub fn of(values: &[f64], places: usize) -> Self {
        let ascending = sorted(values);
        let (Some(first), Some(last)) = (ascending.first(), ascending.last()) else {
            return Self::default();
        };
        let bandwidth = bandwidth_of_sorted(&ascending);
        let from = first - CUT * bandwidth;
        let to = last + CUT * bandwidth;
        let step = (to - from) / places.saturating_sub(1).max(1) as f64;
        let at: Vec<f64> = (0..places).map(|place| from + place as f64 * step).collect();
        let density = at.iter().map(|&at| density_at(&ascending, bandwidth, at)).collect();
        Self { at, density, bandwidth }
    }
}

/// Returns R's default bandwidth (`bw.nrd0`, Silverman's rule of thumb): 0.9 times the smaller of
/// standard deviation and interquartile range / 1.34, times n^-1/5. If that spread is 0, R takes
/// the standard deviation, then the first value, then 1. Returns 0 without values.
#[must_use]
pub fn bandwidth(values: &[f64]) -> f64 {
    bandwidth_of_sorted(&sorted(values))
}

fn bandwidth_of_sorted(ascending: &[f64]) -> f64 {
    let quartile = |percent| percentile(ascending, percent).unwrap_or_default();
    let sd = Sample::of(ascending).sd;
    let spread = sd.min((quartile(75.0) - quartile(25.0)) / 1.34);
    let first = ascending.first().map_or(0.0, |first| first.abs());
    let width = [spread, sd, first, 1.0].into_iter().find(|width| *width > 0.0);
    match ascending.len() {
        0 => 0.0,
        count => 0.9 * width.unwrap_or(1.0) * (count as f64).powf(-0.2),
    }
}

/// Returns the mean of Gaussians around the values that are near enough to matter.
fn density_at(ascending: &[f64], bandwidth: f64, at: f64) -> f64 {
    let from = ascending.partition_point(|&value| value < at - REACH * bandwidth);
    let to = ascending.partition_point(|&value| value <= at + REACH * bandwidth);
    let near = &ascending[from..to];
    let sum: f64 = near.iter().map(|value| (-0.5 * ((at - value) / bandwidth).powi(2)).exp()).sum();
    sum / (ascending.len() as f64 * bandwidth * std::f64::consts::TAU.sqrt())
}

#[cfg(test)]
mod tests {
    use super::super::tests::{CALLS, close};
    use super::*;

    #[test]
    fn the_bandwidth_is_r_s_nrd0() {
        // x <- c(33.871,33.955,31.972,33.9,34.1,33.2,33.8,33.7); bw.nrd0(x); bw.nrd0(1:10)
        close(bandwidth(&CALLS), 0.150_106_333_692_864);
        let ten: Vec<f64> = (1..=10).map(f64::from).collect();
        close(bandwidth(&ten), 1.719_286_404_692_28);
        // No interquartile range; no spread at all; nothing but zeros:
        // bw.nrd0(c(1,1,1,1,5)); bw.nrd0(c(2,2,2)); bw.nrd0(c(0,0))
        close(bandwidth(&[1.0, 1.0, 1.0, 1.0, 5.0]), 1.166_872_749_618_79);
        close(bandwidth(&[2.0; 3]), 1.444_934_811_168_42);
        close(bandwidth(&[0.0; 2]), 0.783_495_506_966_512);
        assert_eq!(bandwidth(&[]), 0.0);
    }

    #[test]
    fn the_density_is_r_s() {
        // sapply(c(31,32,33,33.8,34.5), function(p) mean(dnorm(p, x, bw.nrd0(x))))
        for (at, want) in [
            (31.0, 2.607_565_966_643_31e-10),
            (32.0, 0.326_486_630_943_119),
            (33.0, 0.136_756_836_103_906),
            (33.8, 1.401_610_177_798_04),
            (34.5, 0.010_164_112_318_590_6),
        ] {
            close(density_at(&sorted(&CALLS), bandwidth(&CALLS), at), want);
        }
    }

    #[test]
    fn the_curve_lies_where_r_draws_it() {
        // d <- density(x, n=512); range(d$x); max(d$y); d$x[which.max(d$y)]
        let curve = Density::of(&CALLS, 512);
        close(curve.at[0], 31.521_680_998_921_4);
        close(curve.at[511], 34.550_319_001_078_6);
        let (top, at) = curve
            .density
            .iter()
            .zip(&curve.at)
            .fold((0.0, 0.0), |best, (&y, &x)| if y > best.0 { (y, x) } else { best });
        // R puts the values into bins first, which moves its curve by less than a thousandth.
        assert!((top / 1.517_734_081_819_31 - 1.0).abs() < 1e-3, "{top}");
        let step = curve.at[1] - curve.at[0];
        assert!((at - 33.874_654_163_024).abs() < 1.01 * step, "{at}");
        let area: f64 = curve.density.iter().map(|density| density * step).sum();
        assert!((area - 1.0).abs() < 2e-3, "{area}");
    }

    #[test]
    fn empty_sample_has_no_density_and_one_value_has_one() {
        assert_eq!(Density::of(&[], 10), Density::default());
        let density = Density::of(&[3.0], 3);
        assert_eq!((density.at[1], density.density.len()), (3.0, 3));
        assert!(density.density[1] > density.density[0]);
    }
}
