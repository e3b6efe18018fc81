//! Decides which of the stored hours or days is deleted first. Pure.
//!
//! Minutes and recordings are stored under the hour and the day that the wall clock showed. The
//! clock may be wrong or be set, so nothing is deleted because it is old by the clock, but only to
//! make room for newer records. See [`first_deleted`].

use std::collections::BTreeSet;

/// Returns which of these stored hours or days is deleted first at the hour or day `now`; never
/// `now` itself.
///
/// This is the oldest one, with an exception. Future times with more than `gap_max` between them
/// and the others were stored while the clock was ahead, or the clock is behind now. Either way
/// they were stored before the present records, so they are deleted before them, the earliest
/// first. Future times without such a gap count as new: the clock was set back within the stored
/// time.
#[must_use]
pub fn first_deleted(stored: &BTreeSet<u64>, now: u64, gap_max: u64) -> Option<u64> {
    let mut last = now;
    for time in stored.range(now.saturating_add(1)..) {
        if time - last > gap_max {
            return Some(*time);
        }
        last = *time;
    }
    stored.iter().copied().find(|time| *time != now)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the times that are left if at most `kept` of them are kept.
    fn left(stored: impl IntoIterator<Item = u64>, now: u64, kept: usize) -> Vec<u64> {
        let mut stored: BTreeSet<u64> = stored.into_iter().collect();
        while stored.len() > kept {
            let Some(first) = first_deleted(&stored, now, 5) else { break };
            assert!(stored.remove(&first));
        }
        stored.into_iter().collect()
    }

    #[test]
    fn oldest_entries_are_deleted_first() {
        assert_eq!(left(100..=110, 110, 4), [107, 108, 109, 110]);
        assert_eq!(left([3, 50, 110], 110, 2), [50, 110]);
        assert_eq!(left([110], 110, 0), [110], "the present is never deleted");
        assert_eq!(first_deleted(&BTreeSet::new(), 7, 5), None);
    }

    #[test]
    fn entries_stored_by_a_clock_ahead_are_deleted_first() {
        let stored = (100..=110).chain([900, 901]);
        assert_eq!(left(stored.clone(), 110, 12), (100..=110).chain([901]).collect::<Vec<_>>());
        assert_eq!(left(stored, 110, 10), (101..=110).collect::<Vec<_>>());
    }

    #[test]
    fn oldest_entries_are_deleted_first_by_a_clock_behind() {
        let all = || [7, 8].into_iter().chain(100..=110);
        assert_eq!(left(all(), 8, 11), [7, 8].into_iter().chain(102..=110).collect::<Vec<_>>());
        // The clock was set back within the stored times.
        assert_eq!(left(100..=110, 107, 8), (103..=110).collect::<Vec<_>>());
    }
}
