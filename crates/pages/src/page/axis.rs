//! The axis below a chart: ticks at whole steps of the clock or of a count, so that what is written
//! at a tick is true there, and at most as many as there is room for.

/// An axis of time, in seconds, or of a count.
pub struct Axis {
    /// Its first value.
    pub from: f64,
    /// Its last value.
    pub to: f64,
    /// The distances that ticks may have.
    pub steps: Steps,
    /// Formats a value as text, given the distance of two ticks.
    pub words: Box<dyn Fn(f64, f64) -> String>,
}

/// The distances that ticks may have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Steps {
    /// Whole seconds, minutes, hours and days.
    Time,
    /// Whole numbers.
    Count,
}

/// Distances of ticks, in seconds.
const TIME_S: [f64; 32] = [
    1.0,
    2.0,
    5.0,
    10.0,
    15.0,
    30.0,
    60.0,
    120.0,
    300.0,
    600.0,
    900.0,
    1_800.0,
    3_600.0,
    7_200.0,
    10_800.0,
    21_600.0,
    43_200.0,
    DAY_S,
    2.0 * DAY_S,
    3.0 * DAY_S,
    4.0 * DAY_S,
    5.0 * DAY_S,
    7.0 * DAY_S,
    10.0 * DAY_S,
    14.0 * DAY_S,
    20.0 * DAY_S,
    30.0 * DAY_S,
    50.0 * DAY_S,
    100.0 * DAY_S,
    365.0 * DAY_S,
    1_000.0 * DAY_S,
    3_650.0 * DAY_S,
];
const DAY_S: f64 = 86_400.0;
/// Distances of ticks of a count.
const COUNT: [f64; 16] =
    [1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5];
/// Width of a letter, in pixels of the page.
const LETTER: u32 = 7;
/// Space between the words of two ticks, in pixels of the page.
const BETWEEN: u32 = 18;

impl Axis {
    /// Returns the distance of two ticks on an axis of this length, in pixels of the page, and the
    /// ticks.
    pub(super) fn ticks(&self, pixels: u32) -> (f64, Vec<f64>) {
        let steps: &[f64] = match self.steps {
            Steps::Time => &TIME_S,
            Steps::Count => &COUNT,
        };
        let fits = |step: &f64| {
            let longest = [self.from, self.to].map(|end| (self.words)(end, *step).chars().count());
            let letters = longest.into_iter().max().unwrap_or_default() as f64;
            let width = letters * f64::from(LETTER) + f64::from(BETWEEN);
            (self.to - self.from) / step * width <= f64::from(pixels)
        };
        let step = steps.iter().copied().find(fits).unwrap_or(steps[steps.len() - 1]);
        let first = (self.from / step).ceil();
        let count = ((self.to / step).floor() - first).clamp(-1.0, f64::from(pixels)) as i64;
        let ticks = (0..=count).map(|number| (first + number as f64) * step);
        (step, ticks.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn axis(from: f64, to: f64, steps: Steps) -> Axis {
        Axis { from, to, steps, words: Box::new(|value, _| format!("{value:.0}")) }
    }

    #[test]
    fn ticks_are_whole_steps_within_the_axis_and_fit() {
        // 13:37 to 20:02: whole hours, and not each of them on a short axis.
        let day = axis(49_020.0, 72_120.0, Steps::Time);
        assert_eq!(day.ticks(600).0, 3_600.0);
        assert_eq!(day.ticks(600).1.first(), Some(&50_400.0));
        assert_eq!(day.ticks(222), (7_200.0, vec![50_400.0, 57_600.0, 64_800.0, 72_000.0]));
        for (from, to) in [(0.0, 0.0), (0.4, 0.6), (1.7e9, 1.7e9 + 4e7), (0.0, 1e9)] {
            for pixels in [222, 736] {
                let axis = axis(from, to, Steps::Time);
                let (step, ticks) = axis.ticks(pixels);
                assert!(ticks.iter().all(|tick| tick % step == 0.0), "{ticks:?}");
                assert!(ticks.iter().all(|tick| (from..=to).contains(tick)), "{ticks:?}");
                assert!(ticks.len() <= pixels as usize / 25 + 1, "{ticks:?}");
            }
        }
        assert_eq!(axis(0.0, 7.0, Steps::Count).ticks(222).1.len(), 8);
        assert_eq!(axis(0.0, 10_000.0, Steps::Count).ticks(222).0, 5_000.0);
    }
}
