//! Steal: time that the host of a virtual machine kept from its processors.
//!
//! For each processor, the kernel adds up the time in which it had work and the host ran something
//! else (the eighth number of its line in `/proc/stat`, in ticks of mostly 10 ms). No other counter
//! has all of that time:
//!
//! * A thread that waits in a run queue while its processor is halted counts the wait in
//!   `run_delay`, which uses the clock of the queue. A thread that *runs* when its processor is
//!   halted counts nothing: its running time uses a clock without steal. (Both clocks: Linux commit
//!   6c757e9f55f0, `docs/scheduler: fix unit error`.)
//! * The watcher sees a halt of 5 ms and more. Without real-time priority, it takes a halt for a
//!   wait in the run queue if it waited there at the time.
//!
//! So steal overlaps with the time that was measured in other ways, and only the excess is counted.
//! The kernel adds a halt to its counter at the next timer interrupt, which may come after the next
//! reading. So time that was measured between two readings also accounts for steal of the next one.
//!
//! The counters are rounded down to ticks: if one rises by three, then more than two ticks were
//! taken since the last reading. Those are lost time. The rest **may** have been lost: it was taken
//! in pieces that the tolerance of a limiter makes up for, and the kernel does not count from which
//! thread.

use std::collections::BTreeMap;

use super::{Stall, Stalls};

/// The follower's polls between two readings of the counters. Together they are 50 ms, as long as
/// the time's worth of requests that a volume may save.
pub(super) const LOOKS_PER_READING: u32 = 25;

/// Maximum number of readings that are kept: an hour of them. Later steal is unknown, and excuses
/// nothing.
const TAKEN_MAX: usize = 72_000;

/// The number of the steal counter in a processor's line.
const STEAL_FIELD: usize = 8;

/// The steal of one processor between two readings.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Taken {
    /// The earlier reading and the later one, in microseconds since 1970.
    from_us: u64,
    to_us: u64,
    /// The rise of the counter that rose most, in ticks.
    ticks: u64,
}

/// The steal counters of some processors, read again and again.
#[derive(Debug)]
pub(super) struct Steal {
    tick_us: u64,
    /// The counter of each watched processor at the last reading.
    counted: BTreeMap<u32, u64>,
    read_us: u64,
    taken: Vec<Taken>,
}

impl Steal {
    /// Begins with a reading of `/proc/stat`, for these processors.
    pub(super) fn new(stat: &str, processors: &[u32], ticks_per_s: u64, now_us: u64) -> Self {
        let mut counted = counters(stat);
        counted.retain(|processor, _| processors.contains(processor));
        let tick_us = 1_000_000 / ticks_per_s.max(1);
        Self { tick_us, counted, read_us: now_us, taken: Vec::new() }
    }

    /// Adds another reading of `/proc/stat`. A processor that was offline counts from its next
    /// reading.
    pub(super) fn read(&mut self, stat: &str, now_us: u64) {
        let now = counters(stat);
        let mut ticks = 0;
        for (processor, counted) in &mut self.counted {
            let Some(count) = now.get(processor) else { continue };
            ticks = ticks.max(count.saturating_sub(*counted));
            *counted = *count;
        }
        if ticks > 0 && self.taken.len() < TAKEN_MAX {
            self.taken.push(Taken { from_us: self.read_us, to_us: now_us, ticks });
        }
        self.read_us = now_us;
    }

    /// Returns steal beyond `known`, the time that was measured as lost in other ways: the spans
    /// that were lost, and those that may have been.
    pub(super) fn beyond(&self, known: &Stalls) -> (Stalls, Stalls) {
        let mut lost = Vec::new();
        let mut maybe = Vec::new();
        // Known time before `unused_until_us` that does not account for steal yet.
        let mut unused_us = 0;
        let mut unused_until_us = 0;
        for taken in &self.taken {
            let Taken { from_us, to_us, ticks } = *taken;
            let early_us = from_us.saturating_sub(to_us - from_us);
            // The known time between the two readings before this one, without the part that
            // accounts for their own steal.
            let before_us = if early_us < unused_until_us {
                unused_us
            } else {
                known.lost_us(early_us..from_us)
            };
            let covered_us = before_us + known.lost_us(from_us..to_us);
            let sure_us = (ticks - 1) * self.tick_us;
            let most_us = ticks * self.tick_us;
            let new_us = sure_us.saturating_sub(covered_us);
            let new = last_free(from_us, to_us, new_us, known);
            let others = known.and(&Stalls::merged(new.clone()));
            let open_us = most_us.saturating_sub(covered_us.max(sure_us));
            maybe.extend(last_free(from_us, to_us, open_us, &others));
            lost.extend(new);
            unused_us = covered_us.saturating_sub(most_us).min(known.lost_us(from_us..to_us));
            unused_until_us = to_us;
        }
        (Stalls::merged(lost), Stalls::merged(maybe))
    }
}

/// Returns the last `length_us` of a span that are not in `used`; less if there are fewer.
fn last_free(from_us: u64, to_us: u64, length_us: u64, used: &Stalls) -> Vec<Stall> {
    let mut free = Vec::new();
    let mut end_us = to_us;
    let mut left_us = length_us;
    let before = Stall { start_us: from_us, length_us: 0 };
    let spans = used.touching(from_us..to_us).iter().rev().chain([&before]);
    for span in spans {
        let start_us = span.end_us().max(from_us);
        let take_us = end_us.saturating_sub(start_us).min(left_us);
        if take_us > 0 {
            free.push(Stall { start_us: end_us - take_us, length_us: take_us });
        }
        left_us -= take_us;
        end_us = end_us.min(span.start_us);
    }
    free
}

/// Returns the steal counters in `/proc/stat`, in ticks, by the number of the processor. Old
/// kernels have none.
fn counters(stat: &str) -> BTreeMap<u32, u64> {
    let counter = |line: &str| {
        let mut fields = line.strip_prefix("cpu")?.split_whitespace();
        let processor = fields.next()?.parse().ok()?;
        // The first line, of all processors together, has no number. The fields begin at 1.
        line[3..].starts_with(|c: char| c.is_ascii_digit()).then_some(())?;
        Some((processor, fields.nth(STEAL_FIELD - 1)?.parse().ok()?))
    };
    stat.lines().take_while(|line| line.starts_with("cpu")).filter_map(counter).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Returns a reading in which each processor has this steal counter.
    fn stat(steal: &[u64]) -> String {
        let line = |(processor, ticks): (usize, &u64)| {
            format!("cpu{processor} 10 20 30 40 50 60 70 {ticks} 80 90\n")
        };
        let total: u64 = steal.iter().sum();
        let lines: String = steal.iter().enumerate().map(line).collect();
        format!("cpu  10 20 30 40 50 60 70 {total} 80 90\n{lines}intr 7 1 2\nctxt 9\n")
    }

    fn stalls(list: &[(u64, u64)]) -> Stalls {
        let stall = |&(start_us, length_us): &(u64, u64)| Stall { start_us, length_us };
        Stalls::merged(list.iter().map(stall).collect())
    }

    /// Returns the lost and the doubtful time of readings every 50 ms with these counters.
    fn beyond(readings: &[&[u64]], known: &[(u64, u64)]) -> (Stalls, Stalls) {
        let mut steal = Steal::new(&stat(readings[0]), &[0, 1], 100, 0);
        for (reading, number) in readings[1..].iter().zip(1..) {
            steal.read(&stat(reading), number * 50_000);
        }
        steal.beyond(&stalls(known))
    }

    #[test]
    fn steal_counters_of_the_kernel_are_understood() {
        assert_eq!(counters(&stat(&[7, 9])), BTreeMap::from([(0, 7), (1, 9)]));
        // A kernel without the counter, half a line, no processors, nothing.
        for text in
            ["cpu0 1 2 3 4 5 6 7\n", "cpu0 1 2", "intr 7 1 2\n", "cpu 1 2 3 4 5 6 7 8\n", ""]
        {
            assert_eq!(counters(text), BTreeMap::new(), "{text:?}");
        }
        // Lines after those of the processors are ignored.
        assert_eq!(counters("intr 1\ncpu0 1 2 3 4 5 6 7 8\n"), BTreeMap::new());
    }

    #[test]
    fn steal_is_lost_as_far_as_it_is_certain() {
        // Three ticks between two readings: more than two were taken. One tick may be from before.
        let (lost, maybe) = beyond(&[&[5, 5], &[8, 5], &[8, 6], &[8, 6]], &[]);
        assert_eq!(lost, stalls(&[(30_000, 20_000)]));
        assert_eq!(maybe, stalls(&[(20_000, 10_000), (90_000, 10_000)]));
        assert_eq!(beyond(&[&[5, 5], &[5, 5]], &[]), (Stalls::NONE, Stalls::NONE));
    }

    #[test]
    fn steal_of_several_processors_counts_once() {
        let (lost, maybe) = beyond(&[&[0, 0], &[3, 2]], &[]);
        assert_eq!((lost.total_us(), maybe.total_us()), (20_000, 10_000));
    }

    #[test]
    fn steal_that_was_measured_otherwise_is_not_counted_twice() {
        let readings: [&[u64]; 3] = [&[0, 0], &[4, 0], &[4, 0]];
        // Of the 40 ms, 35 are known from the watch or a thread's run_delay: 5 ms may be lost as
        // well.
        let (lost, maybe) = beyond(&readings, &[(10_000, 35_000)]);
        assert_eq!((lost, maybe), (Stalls::NONE, stalls(&[(45_000, 5_000)])));
        // The known time is all of it, and more.
        assert_eq!(beyond(&readings, &[(1_000, 49_000)]), (Stalls::NONE, Stalls::NONE));
        // A part is known; the rest lies beside it.
        let (lost, maybe) = beyond(&readings, &[(38_000, 12_000)]);
        assert_eq!(lost, stalls(&[(20_000, 18_000)]));
        assert_eq!(maybe, stalls(&[(10_000, 10_000)]));
    }

    /// A halt that ends just before a reading is in the counter of the next reading.
    #[test]
    fn steal_that_the_kernel_counts_late_is_not_counted_twice() {
        let halt = (8_000, 40_000);
        let readings: [&[u64]; 4] = [&[0, 0], &[0, 0], &[4, 0], &[4, 0]];
        assert_eq!(beyond(&readings, &[halt]), (Stalls::NONE, Stalls::NONE));
        // It accounts for steal once: the other four ticks are lost as well.
        let (lost, _) = beyond(&[&[0, 0], &[4, 0], &[8, 0]], &[halt]);
        assert_eq!(lost, stalls(&[(70_000, 30_000)]));
    }

    #[test]
    fn steal_of_other_processors_does_not_count() {
        let mut steal = Steal::new(&stat(&[0, 0, 0]), &[1], 100, 0);
        steal.read(&stat(&[9, 0, 9]), 50_000);
        assert_eq!(steal.beyond(&Stalls::NONE), (Stalls::NONE, Stalls::NONE));
        // A processor was offline, and is back with a lower counter.
        steal.read("cpu0 1 2 3 4 5 6 7 8\n", 100_000);
        steal.read(&stat(&[9, 3, 9]), 150_000);
        steal.read(&stat(&[9, 0, 9]), 200_000);
        assert_eq!(steal.beyond(&Stalls::NONE).0, stalls(&[(130_000, 20_000)]));
    }

    proptest! {
        /// For any steal and known time, no time is counted twice, and none that was not taken.
        #[test]
        fn steal_never_counts_more_than_was_taken(
            ticks in proptest::collection::vec(0_u64..9, 1..20),
            known in proptest::collection::vec((0_u64..1_000_000, 0_u64..60_000), 0..12),
        ) {
            let mut counter = 0;
            let mut readings = vec![0];
            for risen in &ticks {
                counter += risen;
                readings.push(counter);
            }
            let readings: Vec<[u64; 2]> = readings.iter().map(|ticks| [*ticks, 0]).collect();
            let slices: Vec<&[u64]> = readings.iter().map(|reading| &reading[..]).collect();
            let (lost, maybe) = beyond(&slices, &known);
            let known = stalls(&known);
            let all = known.and(&lost).and(&maybe);
            prop_assert_eq!(
                all.total_us(),
                known.total_us() + lost.total_us() + maybe.total_us()
            );
            prop_assert!(lost.total_us() + maybe.total_us() <= counter * 10_000);
        }
    }
}
