//! Expected dispatches of a volume that shares nothing, computed in the simplest way: limits from
//! the oracle, counting by prefix sums, deadlines rounded up to ticks. There is no wheel, no slab
//! and no round robin.

use std::collections::VecDeque;

use evenkeel_core::limits::{CLEARED_BYTES_MAX, QUANTUM_BYTES_MAX};
use evenkeel_core::qos::Exceeded;
use evenkeel_core::qos::pacing::{CountingRule, Limit, Pacing};
use evenkeel_core::qos::scheduler::Io;
use evenkeel_core::request::Operation;

use crate::oracle::Bucket;

const TICK_NS: u64 = 50_000;

/// A quantum and the time at which it should be dispatched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Going {
    pub at: u64,
    pub handle: u32,
    pub offset: u64,
    pub length: u32,
    pub last: bool,
}

/// Tokens a quantum takes: operations, bytes, guard.
type Cost = [u64; 3];

/// The volume's buckets, each with the kind of token it takes: operations first, then bytes, then
/// the guard.
struct Limits {
    buckets: Vec<(usize, Bucket)>,
    now: u64,
}

/// A sequential run: direction, end, and bytes in it so far.
type Run = Option<(bool, u64, u64)>;

pub struct ReferenceVolume {
    rule: CountingRule,
    limits: Limits,
    run: Run,
    queue: VecDeque<(Io, u32)>,
    wake: Option<u64>,
    throttled: Option<(u64, u64, usize)>,
    pub exceeded_ns: [u64; 3],
    pub late_ns: u64,
    pub going: Vec<Going>,
}

impl Limits {
    fn new(pacing: &Pacing) -> Self {
        let tolerance = pacing.tolerance.ns;
        let mut buckets = Vec::new();
        for (kind, limit) in [pacing.operations, pacing.bytes].into_iter().enumerate() {
            let Some(Limit { per_second, credit }) = limit else { continue };
            buckets.push((kind, Bucket::pacer(per_second, tolerance)));
            if let Some(credit) = credit {
                buckets.push((kind, Bucket::credit(credit.refill_per_second, credit.capacity)));
            }
        }
        let guard = match (pacing.operations, pacing.bytes) {
            (Some(operations), _) => Some(operations.per_second),
            (None, Some(bytes)) => {
                Some(bytes.per_second.div_ceil(pacing.counting.unit_bytes.into()))
            }
            (None, None) => None,
        };
        buckets.extend(guard.map(|rate| (2, Bucket::pacer(rate, tolerance))));
        Self { buckets, now: 0 }
    }

    fn settle(&mut self, now: u64) {
        for (_, bucket) in &mut self.buckets {
            bucket.settle(now - self.now);
        }
        self.now = now;
    }

    /// Returns until when a cost is held up, and by which kind of token: the latest time; at equal
    /// times operations before bytes before the guard.
    fn held_until(&self, cost: &Cost) -> Option<(u64, usize)> {
        let mut held: Option<(u64, usize)> = None;
        for (kind, bucket) in &self.buckets {
            if cost[*kind] > 0 && !bucket.is_ready() {
                let until = bucket.wait().map_or(u64::MAX, |wait| self.now + wait);
                if held.is_none_or(|(latest, by)| until > latest || (until == latest && *kind < by))
                {
                    held = Some((until, *kind));
                }
            }
        }
        held
    }

    fn charge(&mut self, cost: &Cost) {
        for (kind, bucket) in &mut self.buckets {
            bucket.charge(cost[*kind]);
        }
    }
}

impl ReferenceVolume {
    pub fn new(pacing: &Pacing) -> Self {
        Self {
            rule: pacing.counting,
            limits: Limits::new(pacing),
            run: None,
            queue: VecDeque::new(),
            wake: None,
            throttled: None,
            exceeded_ns: [0; 3],
            late_ns: 0,
            going: Vec::new(),
        }
    }

    pub fn exceeded(&self) -> Exceeded {
        let [operations_ns, bytes_ns, guard_ns] = self.exceeded_ns;
        Exceeded { operations_ns, bytes_ns, guard_ns, ..Exceeded::default() }
    }

    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    pub fn submit(&mut self, now: u64, io: Io) {
        self.advance(now);
        let idle = self.queue.is_empty();
        self.queue.push_back((io, 0));
        if idle {
            self.serve(now);
        }
    }

    /// Handles everything that is due up to and including `now`.
    pub fn advance(&mut self, now: u64) {
        while let Some(wake) = self.wake.filter(|wake| *wake <= now) {
            self.serve(wake);
        }
    }

    fn serve(&mut self, now: u64) {
        self.limits.settle(now);
        self.wake = None;
        if let Some((since, until, kind)) = self.throttled.take() {
            self.exceeded_ns[kind] += until.min(now) - since;
            self.late_ns += now.saturating_sub(until);
        }
        while let Some((io, done)) = self.queue.front().copied() {
            let left = io.length - done;
            let length = match io.operation {
                Operation::Read | Operation::Write { .. } => left.min(QUANTUM_BYTES_MAX),
                Operation::Discard { .. } | Operation::WriteZeroes { .. } => {
                    left.min(CLEARED_BYTES_MAX)
                }
                _ => left,
            };
            let (cost, run) = self.cost(&io, done, length);
            if let Some((until, kind)) = self.limits.held_until(&cost) {
                self.throttled = Some((now, until, kind));
                if until < u64::MAX {
                    self.wake = Some(until.div_ceil(TICK_NS) * TICK_NS);
                }
                return;
            }
            self.limits.charge(&cost);
            self.run = run;
            let last = length == left;
            let offset = io.offset + u64::from(done);
            self.going.push(Going { at: now, handle: io.handle, offset, length, last });
            if last {
                self.queue.pop_front();
            } else {
                self.queue[0].1 += length;
            }
        }
    }

    /// The number of units opened depends only on the bytes in the run: a quantum pays the
    /// difference.
    fn cost(&self, io: &Io, done: u32, length: u32) -> (Cost, Run) {
        let write = match io.operation {
            Operation::Read => false,
            Operation::Write { .. } => true,
            Operation::Discard { .. } | Operation::WriteZeroes { .. } => return ([1, 0, 1], None),
            Operation::Flush => return ([0, 0, 1], None),
            Operation::BlockStatus => return ([1, 0, 1], self.run),
            Operation::Cache => return ([0, 0, 1], self.run),
        };
        let offset = io.offset + u64::from(done);
        let large = io.length >= self.rule.merge_bytes_min && io.length > 0;
        let before = match self.run {
            Some((way, end, bytes)) if way == write && end == offset && (done > 0 || large) => {
                bytes
            }
            _ => 0,
        };
        let unit = u64::from(self.rule.unit_bytes);
        let after = before + u64::from(length);
        let opened = (after.div_ceil(unit) - before.div_ceil(unit)).max(u64::from(io.length == 0));
        let bytes = if self.rule.charge_whole_units { opened * unit } else { length.into() };
        let finished = done + length == io.length;
        // The units opened by a small or an empty request are not shared with the next request.
        let run = if finished && io.length < self.rule.merge_bytes_min {
            None
        } else if io.length == 0 {
            Some((write, offset, 0))
        } else {
            Some((write, offset + u64::from(length), after))
        };
        ([opened, bytes, 0], run)
    }
}
