//! The periods of points, inferred from their spacing.
//!
//! CloudWatch keeps points of a minute for 15 days, of five minutes for 63, of an hour for 455. So
//! an answer of a month has stretches of different periods, which get finer with time, never
//! coarser. The period of a point is at most the least spacing up to it.

use super::show_time;

/// The periods in which CloudWatch keeps points, and the finer ones of high-resolution metrics.
const PERIODS_MS: [u64; 7] = [3_600_000, 300_000, 60_000, 30_000, 10_000, 5_000, 1_000];
/// Number of equal spacings in a row that make a period of their own: a single gap of five minutes
/// may be in points of a minute, too.
const REPEATS_MIN: usize = 3;

/// Returns the length of each point's interval; `None` if it cannot be inferred. `starts_ms` are in
/// order.
pub(super) fn lengths(starts_ms: &[u64], said_ms: Option<u64>) -> Option<Vec<u64>> {
    let spacings: Vec<u64> =
        starts_ms.windows(2).filter_map(|pair| Some(pair.get(1)? - pair.first()?)).collect();
    let finest = said_ms.or_else(|| period_of(*spacings.iter().min()?));
    if starts_ms.is_empty() {
        return Some(Vec::new());
    }
    let finest = finest?;
    let mut periods: Vec<u64> = PERIODS_MS
        .into_iter()
        .filter(|period| *period > finest && is_repeated(&spacings, *period))
        .collect();
    periods.push(finest);
    let mut least = u64::MAX;
    let mut lengths = Vec::with_capacity(starts_ms.len());
    for index in 0..starts_ms.len() {
        // The last point has no spacing of its own. It gets that of the points before it.
        least = least.min(spacings.get(index).copied().unwrap_or(least));
        let period = periods.iter().find(|period| least.is_multiple_of(**period));
        lengths.push(period.copied().unwrap_or(finest).min(least));
    }
    Some(lengths)
}

/// Returns the period of points with this spacing. A multiple of the period is a gap.
fn period_of(spacing_ms: u64) -> Option<u64> {
    // A query may have any multiple of a minute as its period.
    let is_asked = spacing_ms.is_multiple_of(60_000) && spacing_ms <= 86_400_000;
    let is_kept = PERIODS_MS.contains(&spacing_ms);
    (is_asked || is_kept)
        .then_some(spacing_ms)
        .or_else(|| PERIODS_MS.into_iter().find(|period| spacing_ms.is_multiple_of(*period)))
}

fn is_repeated(spacings: &[u64], period: u64) -> bool {
    let mut in_a_row = 0;
    spacings.iter().any(|spacing| {
        in_a_row = if *spacing == period { in_a_row + 1 } else { 0 };
        in_a_row >= REPEATS_MIN
    })
}

/// Returns the times of points on the grid of other points of the same volume, whose periods are as
/// long and begin at other times; `None` if they are on that grid, or there is none. Both are in
/// order.
///
/// Each series of an answer begins where it was asked to. Taken together, the points of two would
/// have their offset as the least spacing.
pub(super) fn on_grid(
    starts_ms: &[u64],
    grid_ms: &[u64],
    said_ms: Option<u64>,
) -> Option<Vec<u64>> {
    let lengths = regular(starts_ms, said_ms)?;
    let grid_lengths = regular(grid_ms, said_ms)?;
    let moved = |(start_ms, length_ms): (&u64, &u64)| {
        let after = grid_ms.partition_point(|grid_ms| grid_ms <= start_ms);
        let near = [after.checked_sub(1), Some(after)].into_iter().flatten();
        let near = near.filter_map(|index| Some((*grid_ms.get(index)?, *grid_lengths.get(index)?)));
        let nearest = near.min_by_key(|(grid_ms, _)| grid_ms.abs_diff(*start_ms));
        let on_grid = nearest.filter(|(_, length)| length == length_ms).and_then(|(grid_ms, _)| {
            // A point of a stated period may be without its neighbours.
            let is_possible = |said_ms| !grid_ms.abs_diff(*start_ms).is_multiple_of(said_ms);
            said_ms.is_none_or(is_possible).then(|| rounded(*start_ms, grid_ms, *length_ms))?
        });
        on_grid.unwrap_or(*start_ms)
    };
    let moved: Vec<u64> = starts_ms.iter().zip(&lengths).map(moved).collect();
    (moved != starts_ms && moved.is_sorted_by(|one, next| one < next)).then_some(moved)
}

/// Returns the time that is nearest to this one, and a multiple of a length from a time of the
/// grid.
fn rounded(start_ms: u64, grid_ms: u64, length_ms: u64) -> Option<u64> {
    let phase_ms = grid_ms % length_ms;
    let since_ms = start_ms.checked_add(length_ms - phase_ms + length_ms / 2)?;
    (since_ms / length_ms * length_ms + phase_ms).checked_sub(length_ms)
}

/// Returns the lengths of points, if most of them are next to each other.
fn regular(starts_ms: &[u64], said_ms: Option<u64>) -> Option<Vec<u64>> {
    let lengths = lengths(starts_ms, said_ms)?;
    let pairs = starts_ms.windows(2).zip(&lengths);
    let is_next = |(pair, length): &(&[u64], &u64)| matches!(pair, [a, b] if b - a == **length);
    let next = pairs.filter(is_next).count();
    (next > 0 && 2 * next >= starts_ms.len() - 1).then_some(lengths)
}

/// Returns a remark with the inferred period of each stretch.
pub(super) fn remark(starts: &[u64], lengths: &[u64], said_ms: Option<u64>) -> Option<String> {
    let mut stretches: Vec<(u64, u64)> = Vec::new();
    for (start_ms, length_ms) in starts.iter().zip(lengths) {
        if stretches.last().is_none_or(|(_, before)| before != length_ms) {
            stretches.push((*start_ms, *length_ms));
        }
    }
    let is_as_said = matches!(stretches.as_slice(), [(_, ms)] if Some(*ms) == said_ms);
    if stretches.is_empty() || is_as_said {
        return None;
    }
    let show = |(start_ms, length_ms): &(u64, u64)| {
        format!("{} s from {}", *length_ms as f64 / 1e3, show_time(*start_ms))
    };
    let all: Vec<String> = stretches.iter().map(show).collect();
    Some(format!("periods inferred from the least spacing: {}", all.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn minutes(starts: &[u64]) -> Vec<u64> {
        let starts: Vec<u64> = starts.iter().map(|minute| minute * 60_000).collect();
        let lengths = lengths(&starts, None).unwrap();
        lengths.iter().map(|ms| ms / 60_000).collect()
    }

    #[test]
    fn a_stretch_ends_where_points_get_closer() {
        assert_eq!(minutes(&[0, 5, 10, 15, 16, 17]), [5, 5, 5, 1, 1, 1]);
        let hours = [0, 60, 120, 180, 185, 190, 195, 200, 201];
        assert_eq!(minutes(&hours), [60, 60, 60, 5, 5, 5, 5, 1, 1]);
    }

    #[test]
    fn a_gap_is_no_period() {
        assert_eq!(minutes(&[0, 1, 6, 7, 12, 13]), [1; 6]);
        // Also with a single gap of five minutes at the start.
        assert_eq!(minutes(&[0, 5, 6, 7]), [1; 4]);
        assert_eq!(minutes(&[0, 5, 15, 20]), [5; 4]);
        assert_eq!(minutes(&[0, 60]), [60; 2]);
        assert_eq!(lengths(&[60_000], None), None);
        assert_eq!(lengths(&[60_000], Some(300_000)), Some(vec![300_000]));
        assert_eq!(lengths(&[], None), Some(vec![]));
    }

    #[test]
    fn points_at_an_offset_are_put_on_the_grid() {
        let moved = |starts: &[u64], said: Option<u64>| {
            let ms = |all: &[u64]| all.iter().map(|minute| minute * 60_000).collect::<Vec<_>>();
            let said = said.map(|minutes| minutes * 60_000);
            let moved = on_grid(&ms(starts), &ms(&[5, 10, 15, 30, 35, 40]), said)?;
            Some(moved.iter().map(|ms| ms / 60_000).collect::<Vec<_>>())
        };
        assert_eq!(moved(&[6, 11, 16, 21, 31, 41], None), Some(vec![5, 10, 15, 20, 30, 40]));
        assert_eq!(moved(&[4, 9, 14, 24], Some(5)), Some(vec![5, 10, 15, 25]));
        // On the grid; single minutes of a stated period; another period; no period.
        assert_eq!(moved(&[0, 5, 10, 20, 25], None), None);
        assert_eq!(moved(&[6, 11, 16, 21], Some(1)), None);
        assert_eq!(moved(&[6, 8, 10, 12, 14], None), None);
        assert_eq!(moved(&[6, 11, 26, 56, 91, 126], None), None);
        assert_eq!(moved(&[6], None), None);
    }

    #[test]
    fn intervals_never_overlap() {
        for starts in
            [[0, 1, 2, 1_000_000], [0, 7, 60_001, 360_001], [0, 300_000, 300_001, 9e9 as u64]]
        {
            for said in [None, Some(60_000)] {
                let Some(lengths) = lengths(&starts, said) else { continue };
                for (pair, length) in starts.windows(2).zip(&lengths) {
                    assert!(*length > 0 && pair[0] + length <= pair[1], "{starts:?} {lengths:?}");
                }
            }
        }
    }
}
