//! A straight line through measured costs: least squares of the relative errors, in integers.

use super::super::model::{LinearCost, PPM};
use crate::convert::{exact, saturating};
use crate::time::Duration;

/// Maximum number of points of a fit; the sums below have room for as many.
pub const POINTS_MAX: usize = 64;

/// Fixed-point one of the weights. Sums of [`POINTS_MAX`] products stay below 2^62, their products
/// below 2^124.
const ONE: u128 = 1 << 28;

/// Bits behind the binary point of the solutions.
const BITS: u32 = 20;

/// Cost of requests of one length.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Point {
    /// Length in bytes.
    pub length: u32,
    /// Time in picoseconds; 0 counts as 1.
    pub ps: u64,
}

/// A line, and its error.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Fit {
    /// The line: neither coefficient is negative.
    pub cost: LinearCost,
    /// The largest relative distance of a point from the line, in millionths of the point.
    pub off_ppm: u32,
}

/// Returns the line whose relative errors have the least sum of squares, among those with
/// non-negative coefficients. Relative, because a request of 4 KiB is sold as exactly as one of 256
/// KiB; squares of nanoseconds would favour the long ones. Returns `None` without points; points
/// after [`POINTS_MAX`] are ignored.
#[must_use]
pub fn fit(points: &[Point]) -> Option<Fit> {
    let points = points.get(..POINTS_MAX).unwrap_or(points);
    let least_ps = points.iter().map(|point| point.ps.max(1)).min()?;
    let longest = points.iter().map(|point| point.length).max()?.max(1);
    let sums = Sums::of(points, least_ps, longest);
    let (base, slope) = sums.solve();
    // Converts units of the least cost, and of it over the longest length, to picoseconds.
    let ps = |solution: i128, over: u32| -> u128 {
        let scaled = solution.saturating_mul(i128::from(least_ps)) / i128::from(over);
        exact(scaled >> BITS, "no coefficient is negative")
    };
    let cost = LinearCost {
        base: Duration::from_ns(saturating(ps(base, 1).div_ceil(1_000))),
        byte_ps: saturating(ps(slope, longest)),
    };
    let off_ppm = points.iter().map(|point| off_ppm(cost, point)).max()?;
    Some(Fit { cost, off_ppm })
}

fn off_ppm(cost: LinearCost, point: &Point) -> u32 {
    let measured = u128::from(point.ps.max(1));
    let difference = (cost.ns(point.length) * 1_000).abs_diff(measured);
    saturating(difference * u128::from(PPM) / measured)
}

/// Sums of the normal equations. With each point divided by its own cost y, the line `base + slope
/// x = y` becomes `base u + slope v = 1` where `u = 1 / y` and `v = x / y`.
struct Sums {
    uu: i128,
    uv: i128,
    vv: i128,
    u: i128,
    v: i128,
}

impl Sums {
    fn of(points: &[Point], least_ps: u64, longest: u32) -> Self {
        let mut sums = Self { uu: 0, uv: 0, vv: 0, u: 0, v: 0 };
        for point in points {
            let least = u128::from(least_ps);
            let cost = u128::from(point.ps.max(1));
            let u = ONE * least / cost;
            let v = ONE * least * u128::from(point.length) / (cost * u128::from(longest));
            let [one, u, v]: [i128; 3] = [ONE, u, v].map(|part| exact(part, "at most ONE"));
            sums.uu += u * u;
            sums.uv += u * v;
            sums.vv += v * v;
            sums.u += u * one;
            sums.v += v * one;
        }
        sums
    }

    /// Returns base and slope, with [`BITS`] bits behind the binary point.
    fn solve(&self) -> (i128, i128) {
        let Self { uu, uv, vv, u, v } = *self;
        let quotient = |above: i128, below: i128| above / (below >> BITS).max(1);
        let determinant = uu * vv - uv * uv;
        // All lengths are equal, or nearly so: the slope is undetermined.
        if determinant >> (2 * BITS) == 0 {
            return (quotient(u, uu), 0);
        }
        let base = quotient(u * vv - v * uv, determinant);
        let slope = quotient(uu * v - uv * u, determinant);
        match (base < 0, slope < 0) {
            (false, false) => (base, slope),
            // The best line through zero; or, below, the best level one.
            (true, _) => (0, quotient(v, vv)),
            (false, true) => (quotient(u, uu), 0),
        }
    }
}
