//! The cost of requests: the counting rule of the volume types, one quantum at a time.
//!
//! | request | operations | bytes | guard |
//! | --- | --- | --- | --- |
//! | read, write | units it opens, at least one unless a paid unit covers it | its length | - |
//! | read, write of HDD types | as above | units it opens, in whole units | - |
//! | discard, write zeroes | 1 for each 64 MiB or part | 0 | as many |
//! | block status | 1 | 0 | 1 |
//! | flush, cache | 0 | 0 | 1 |
//!
//! A *unit* (256 KiB on SSD types, 1 MiB on HDD types) is opened by the first byte that no earlier
//! unit covers. A request of at least `merge_bytes_min` that continues the volume's previous one
//! (same direction, first byte right after the last) first uses the rest of the unit already paid.
//! So a sequential run of such requests costs exactly `ceil(total / unit)`, and a single request
//! `ceil(length / unit)`. The rule depends on addresses only, never on the queue: the same requests
//! cost the same at any queue depth. Smaller requests pay for themselves and end a run, and so do a
//! flush, a discard and a write of zeroes.
//!
//! Reads and writes longer than [`QUANTUM_BYTES_MAX`] are dispatched and charged quantum by
//! quantum. The quanta of one request are a run by construction, so their costs sum to the whole's;
//! with a unit of 1 MiB the first quantum pays for all four.
//!
//! Discards and writes of zeroes longer than [`CLEARED_BYTES_MAX`]. EBS does not
//! publish how it counts them. They move no bytes: a file system records in one place that a range
//! is empty, about as much work as a small write. If each were charged one I/O of any length, 4 GiB
//! would cost as much as 4 KiB; if each unit of 256 KiB were charged, creating a file system on a
//! large slow volume would take more than a working day (each `mkfs` discards all of it: 4,194,304
//! I/Os for a TiB, instead of 16,384). If a store has to write the zeroes, they are charged as
//! writes: the engine submits them as such.
//!
//! For a block status the store looks up holes: at most one page that is not in memory, for a range
//! of any length, as much as a small read costs. So it is charged as one. It does not access data,
//! so it does not end a run of sequential requests.

use crate::convert::exact;
use crate::limits::{CLEARED_BYTES_MAX, QUANTUM_BYTES_MAX};
use crate::request::Operation;

use super::pacing::CountingRule;

/// Tokens that one quantum takes from each kind of limit. A limit of which it takes none cannot
/// delay it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Cost {
    /// Counted I/Os.
    pub operations: u32,
    /// Bytes against the byte limit (not always the bytes moved).
    pub bytes: u64,
    /// Passes of the guard, which limits requests that cost no byte.
    pub guard: u32,
}

impl Cost {
    /// Returns the time that it takes of the limit of which it takes most, in nanoseconds; at least
    /// one. Limits are rates per second, `None` is unlimited.
    #[must_use]
    pub fn share_ns(&self, operations: Option<u64>, bytes: Option<u64>) -> u64 {
        let part = |tokens: u64, rate: Option<u64>| {
            rate.map_or(0, |rate| tokens.saturating_mul(1_000_000_000) / rate.max(1))
        };
        part(self.operations.into(), operations).max(part(self.bytes, bytes)).max(1)
    }
}

/// A request or the rest of one, for the counting rule.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Portion {
    /// The request's operation.
    pub operation: Operation,
    /// First byte not yet dispatched.
    pub offset: u64,
    /// Bytes not yet dispatched.
    pub length: u32,
    /// Whether part of the request has been dispatched already.
    pub started: bool,
    /// Length of the whole request.
    pub whole_length: u32,
}

impl Portion {
    /// Returns the length of the next quantum in bytes: all that is left, but of reads and writes
    /// at most one quantum, of discards and writes of zeroes at most [`CLEARED_BYTES_MAX`].
    #[must_use]
    pub fn quantum_bytes(&self) -> u32 {
        match self.operation {
            Operation::Read | Operation::Write { .. } => self.length.min(QUANTUM_BYTES_MAX),
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => {
                self.length.min(CLEARED_BYTES_MAX)
            }
            _ => self.length,
        }
    }
}

/// Direction of a run's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Direction {
    Read,
    Write,
}

/// The end of the volume's last counted request, and the rest of the unit that it paid.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Run {
    end: u64,
    unit_left_bytes: u32,
    direction: Option<Direction>,
}

impl Run {
    const NONE: Self = Self { end: 0, unit_left_bytes: 0, direction: None };
}

/// The counting of one volume: its rule, and its present run.
///
/// The fields of both are not nested, to save their padding in each volume.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Counting {
    run_end: u64,
    run_unit_left_bytes: u32,
    unit_bytes: u32,
    merge_bytes_min: u32,
    charge_whole_units: bool,
    run_direction: Option<Direction>,
}

impl Counting {
    /// Creates the counting by `rule`, without a run: the next request opens a unit.
    #[must_use]
    pub const fn new(rule: CountingRule) -> Self {
        Self {
            run_end: 0,
            run_unit_left_bytes: 0,
            unit_bytes: if rule.unit_bytes == 0 { 1 } else { rule.unit_bytes },
            merge_bytes_min: rule.merge_bytes_min,
            charge_whole_units: rule.charge_whole_units,
            run_direction: None,
        }
    }

    /// Counts by `rule` from now on. A different rule ends the run: the rest of a unit of another
    /// size is void.
    pub fn set_rule(&mut self, rule: CountingRule) {
        let mut same = Self::new(rule);
        same.proceed(self.run());
        if *self != same {
            *self = Self::new(rule);
        }
    }

    const fn run(&self) -> Run {
        Run {
            end: self.run_end,
            unit_left_bytes: self.run_unit_left_bytes,
            direction: self.run_direction,
        }
    }

    /// Makes `run` the present one: to be called when the weighed quantum is charged.
    pub const fn proceed(&mut self, run: Run) {
        self.run_end = run.end;
        self.run_unit_left_bytes = run.unit_left_bytes;
        self.run_direction = run.direction;
    }

    /// Returns the cost of the next quantum of `portion`, and the run after its charge.
    // Inlined always: otherwise the result would go through memory, written in small parts and read
    // as a whole, and the processor would wait for that longer than for all the rest.
    #[must_use]
    #[inline(always)]
    pub fn weigh(&self, portion: &Portion) -> (Cost, Run) {
        match portion.operation {
            Operation::Read => self.weigh_data(portion, Direction::Read),
            Operation::Write { .. } => self.weigh_data(portion, Direction::Write),
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => {
                (Cost { operations: 1, bytes: 0, guard: 1 }, Run::NONE)
            }
            Operation::Flush => (Cost { operations: 0, bytes: 0, guard: 1 }, Run::NONE),
            Operation::BlockStatus => (Cost { operations: 1, bytes: 0, guard: 1 }, self.run()),
            Operation::Cache => (Cost { operations: 0, bytes: 0, guard: 1 }, self.run()),
        }
    }

    #[inline(always)]
    fn weigh_data(&self, portion: &Portion, direction: Direction) -> (Cost, Run) {
        let length = portion.quantum_bytes();
        let unit = self.unit_bytes;
        let mergeable = portion.whole_length >= self.merge_bytes_min;
        let joins = (portion.started || mergeable)
            && self.run_direction == Some(direction)
            && self.run_end == portion.offset;
        let left = if joins { self.run_unit_left_bytes } else { 0 };

        let uncovered = length.saturating_sub(left);
        let opened = if uncovered == 0 {
            u32::from(length == 0) // fills no unit, so without this it would be free for ever
        } else if uncovered <= unit {
            1 // the usual case, without the division
        } else {
            uncovered.div_ceil(unit)
        };
        let paid = u64::from(left) + u64::from(opened) * u64::from(unit);
        // Small and empty requests pay for themselves alone: no other request shares their unit.
        let shares = length > 0 && (mergeable || length < portion.length);
        let unused = if shares { paid - u64::from(length) } else { 0 };
        let left_after: u32 = exact(unused, "less than a unit");

        let bytes = if self.charge_whole_units {
            u64::from(opened) * u64::from(unit)
        } else {
            u64::from(length)
        };
        let run = Run {
            end: portion.offset.saturating_add(u64::from(length)),
            unit_left_bytes: left_after,
            direction: Some(direction),
        };
        (Cost { operations: opened, bytes, guard: 0 }, run)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::vec::Vec;

    const KIB: u32 = 1 << 10;
    const HDD: CountingRule =
        CountingRule { unit_bytes: 1 << 20, merge_bytes_min: 1, charge_whole_units: true };
    const WRITE: Operation = Operation::Write { fua: false };

    /// Charges whole requests, quantum by quantum, and returns the sum.
    fn charge(counting: &mut Counting, operation: Operation, offset: u64, length: u32) -> Cost {
        let mut sum = Cost::default();
        let mut portion =
            Portion { operation, offset, length, started: false, whole_length: length };
        loop {
            let (cost, run) = counting.weigh(&portion);
            let bytes = portion.quantum_bytes();
            counting.proceed(run);
            sum.operations += cost.operations;
            sum.bytes += cost.bytes;
            sum.guard += cost.guard;
            portion.offset += u64::from(bytes);
            portion.length -= bytes;
            portion.started = true;
            if portion.length == 0 {
                return sum;
            }
        }
    }

    fn operations(
        rule: &CountingRule,
        operation: Operation,
        count: u64,
        length: u32,
        step: u64,
    ) -> u32 {
        let mut counting = Counting::new(*rule);
        (0..count).map(|i| charge(&mut counting, operation, i * step, length).operations).sum()
    }

    /// The published table of what EBS counts for given requests.
    #[test]
    fn requests_count_as_published() {
        let random = 8 << 20;
        for (rule, count, kib, step, counted) in [
            (&CountingRule::SSD, 1, 1_024, 0, 4),
            (&CountingRule::SSD, 8, 32, u64::from(32 * KIB), 1),
            (&CountingRule::SSD, 8, 32, random, 8),
            (&CountingRule::SSD, 8, 16, u64::from(16 * KIB), 8),
            (&CountingRule::SSD, 8, 16, random, 8),
            (&HDD, 1, 1_024, 0, 1),
            (&HDD, 8, 128, u64::from(128 * KIB), 1),
            (&HDD, 8, 128, random, 8),
        ] {
            for operation in [Operation::Read, WRITE] {
                let got = operations(rule, operation, count, kib * KIB, step);
                assert_eq!(got, counted, "{count} x {kib} KiB every {step} bytes, {rule:?}");
            }
        }
    }

    #[test]
    fn hdd_types_pay_bytes_in_whole_units() {
        let mut counting = Counting::new(HDD);
        assert_eq!(charge(&mut counting, WRITE, 0, 4 * KIB).bytes, 1 << 20);
        assert_eq!(charge(&mut counting, WRITE, u64::from(4 * KIB), 4 * KIB).bytes, 0);
        assert_eq!(charge(&mut counting, WRITE, 1 << 30, 4 * KIB).bytes, 1 << 20);
        let mut counting = Counting::new(HDD);
        let cost = charge(&mut counting, Operation::Read, 0, 1_536 * KIB);
        assert_eq!(cost, Cost { operations: 2, bytes: 2 << 20, guard: 0 });
    }

    #[test]
    fn requests_without_payload_pay_the_guard() {
        let fua = false;
        let zeroes = Operation::WriteZeroes { fua, keep_allocated: false, only_if_fast: false };
        for (operation, length, operations, guard) in [
            (Operation::Discard { fua }, 4_096, 1, 1),
            (Operation::Discard { fua }, CLEARED_BYTES_MAX, 1, 1),
            (Operation::Discard { fua }, CLEARED_BYTES_MAX + 512, 2, 2),
            (Operation::Discard { fua }, u32::MAX, 64, 64),
            (zeroes, u32::MAX, 64, 64),
            (Operation::Flush, 0, 0, 1),
            (Operation::BlockStatus, u32::MAX, 1, 1),
            (Operation::Cache, u32::MAX, 0, 1),
        ] {
            let cost = charge(&mut Counting::new(CountingRule::SSD), operation, 0, length);
            assert_eq!(cost, Cost { operations, bytes: 0, guard }, "{operation:?} {length}");
        }
    }

    #[test]
    fn a_run_ends_with_a_flush_a_turn_a_gap_or_a_small_request() {
        let next = u64::from(32 * KIB);
        let second = |between: &dyn Fn(&mut Counting), operation, offset| {
            let mut counting = Counting::new(CountingRule::SSD);
            charge(&mut counting, WRITE, 0, 32 * KIB);
            between(&mut counting);
            charge(&mut counting, operation, offset, 32 * KIB).operations
        };
        assert_eq!(second(&|_| (), WRITE, next), 0);
        assert_eq!(second(&|_| (), Operation::Write { fua: true }, next), 0);
        assert_eq!(second(&|_| (), Operation::Read, next), 1);
        assert_eq!(second(&|_| (), WRITE, next + 512), 1);
        let flush = |counting: &mut Counting| _ = charge(counting, Operation::Flush, 0, 0);
        assert_eq!(second(&flush, WRITE, next), 1);
        let status = |counting: &mut Counting| _ = charge(counting, Operation::BlockStatus, 0, 0);
        assert_eq!(second(&status, WRITE, next), 0);
        let small = |counting: &mut Counting| _ = charge(counting, WRITE, next, 4 * KIB);
        assert_eq!(second(&small, WRITE, next + u64::from(4 * KIB)), 1);
    }

    #[test]
    fn empty_reads_are_not_free() {
        for rule in [CountingRule::SSD, HDD] {
            let mut counting = Counting::new(rule);
            charge(&mut counting, Operation::Read, 0, 64 * KIB);
            let end = u64::from(64 * KIB);
            assert_eq!(charge(&mut counting, Operation::Read, end, 0).operations, 1);
            assert_eq!(charge(&mut counting, Operation::Read, end, 0).operations, 1);
        }
    }

    fn rules() -> impl Strategy<Value = CountingRule> {
        let unit = prop_oneof![Just(256 * KIB), Just(1 << 20), Just(16 * KIB), 1..(2u32 << 20)];
        let merge = prop_oneof![Just(0u32), Just(1), Just(32 * KIB), 0..(1u32 << 20)];
        (unit, merge, any::<bool>()).prop_map(
            |(unit_bytes, merge_bytes_min, charge_whole_units)| CountingRule {
                unit_bytes,
                merge_bytes_min,
                charge_whole_units,
            },
        )
    }

    proptest! {
        /// §14: the costs of a request's quanta sum to the cost of the whole request.
        #[test]
        fn p14_a_split_request_costs_what_the_whole_costs(
            rule in rules(), offset in 0u64..1 << 40, length in 1u32..=32 << 20,
        ) {
            let cost = charge(&mut Counting::new(rule), Operation::Read, offset, length);
            let units = length.div_ceil(rule.unit_bytes);
            prop_assert_eq!(cost.operations, units);
            let whole = u64::from(units) * u64::from(rule.unit_bytes);
            let bytes = if rule.charge_whole_units { whole } else { length.into() };
            prop_assert_eq!(cost.bytes, bytes);
        }

        /// §14: merging only ever lowers the charge, and never below the units that a run really
        /// fills.
        #[test]
        fn p14_merging_never_undercharges(
            rule in rules(), lengths in prop::collection::vec(1u32..2 << 20, 1..40),
        ) {
            let mut counting = Counting::new(rule);
            let mut offset = 0u64;
            let mut counted = 0u64;
            let mut alone = 0u64;
            for length in &lengths {
                let cost = charge(&mut counting, WRITE, offset, *length);
                counted += u64::from(cost.operations);
                alone += u64::from(length.div_ceil(rule.unit_bytes));
                offset += u64::from(*length);
            }
            prop_assert!(counted <= alone);
            prop_assert!(counted >= offset.div_ceil(u64::from(rule.unit_bytes)));
            if lengths.iter().all(|l| *l >= rule.merge_bytes_min) {
                prop_assert_eq!(counted, offset.div_ceil(u64::from(rule.unit_bytes)));
            }
            if lengths.iter().all(|l| *l < rule.merge_bytes_min) {
                prop_assert_eq!(counted, alone);
            }
        }

        /// No request overflows, whatever a client sends.
        #[test]
        fn any_request_can_be_weighed(
            unit_bytes: u32, merge_bytes_min: u32, charge_whole_units: bool,
            requests in prop::collection::vec((any::<u64>(), any::<u32>(), any::<bool>()), 1..8),
        ) {
            let rule = CountingRule { unit_bytes, merge_bytes_min, charge_whole_units };
            let mut counting = Counting::new(rule);
            let mut costs = Vec::new();
            for (offset, length, started) in requests {
                let operation = Operation::Read;
                let portion = Portion { operation, offset, length, started, whole_length: length };
                let (cost, run) = counting.weigh(&portion);
                counting.proceed(run);
                costs.push(cost);
            }
            let costly = |c: &Cost| c.bytes > 0 || c.operations > 0 || charge_whole_units;
            prop_assert!(costs.iter().all(costly));
        }
    }
}
