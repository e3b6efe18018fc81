//! The loads of a proof, and the promises that they are held to if balances are unknown.

use super::Plan;
use crate::checker::{CreditPlan, Dimension, Promise, Rate};
use evenkeel_sim::figures::series::Series;
use evenkeel_sim::workload::Workload;

/// Duration of the loads that look for cold or cached blocks, in seconds.
const ALONE_S: u32 = 3;

/// The least queue depth of a load, enough to ask for all of the promise. It is lower for large
/// requests: a device serves saved credits at once. If the transfer of many large requests takes
/// long, they complete together and look like more than was saved.
const DEPTH_MIN: u64 = 32;
const DEPTH_MIN_LARGE: u64 = 4;
const LARGE_BYTES: u64 = 2 << 20;
/// The largest queue depth: further requests would only wait.
const DEPTH_MAX: u64 = 256;

/// The size at which IOPS are sold.
const BLOCK_BYTES: u32 = 16 << 10;

/// Difference in percent up to which two rates count as the same.
const ALIKE_PERCENT: f64 = 5.0;

/// One load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub name: &'static str,
    pub workload: Workload,
}

/// Returns a load of one read at a time.
pub(super) fn alone(name: &'static str, seed: u64) -> Step {
    let workload = Workload { seed, ..Workload::random_read(BLOCK_BYTES, 1, ALONE_S) };
    Step { name, workload }
}

/// Returns the loads that are judged. `alone_ns` is the latency of one read at a time. The queue is
/// twice as deep as the promised rate needs at this latency.
pub(super) fn loads(promise: &Promise, plan: &Plan, alone_ns: u64) -> Vec<Step> {
    let workload = |block_bytes, read_percent| {
        let load = Workload {
            read_percent,
            seed: plan.seed,
            ..Workload::random_read(block_bytes, 1, plan.seconds)
        };
        Workload { queue_depth: depth(promise, &load, alone_ns), ..load }
    };
    // The largest request that counts as one I/O.
    let large = promise.counting.unit_bytes.max(BLOCK_BYTES);
    let mut steps = vec![Step { name: "reads", workload: workload(BLOCK_BYTES, 100) }];
    let bytes_bind = promise.binds(&workload(large, 100)) == Some(Dimension::Bytes);
    if bytes_bind {
        steps.push(Step { name: "large-reads", workload: workload(large, 100) });
    }
    if plan.writes {
        steps.push(Step { name: "writes", workload: workload(BLOCK_BYTES, 0) });
        steps.push(Step { name: "half-writes", workload: workload(BLOCK_BYTES, 50) });
        if bytes_bind {
            steps.push(Step { name: "large-writes", workload: workload(large, 0) });
        }
    }
    steps
}

fn depth(promise: &Promise, workload: &Workload, alone_ns: u64) -> u32 {
    let iops = promise.rates_of(workload).map_or(0.0, |(rate, _)| rate);
    let needed = (iops * alone_ns as f64 / 1e9 * 2.0).ceil().max(0.0) as u64;
    let large = LARGE_BYTES / u64::from(workload.block_bytes.max(1));
    let least = large.clamp(DEPTH_MIN_LARGE, DEPTH_MIN);
    u32::try_from(needed.clamp(least, DEPTH_MAX)).unwrap_or(32)
}

/// Returns the promise of a load if its balance at the start is unknown. From outside a load shows
/// the baseline, the burst, or a burst that ends. In the last case the balance follows from it,
/// because all I/Os beyond the baseline were paid with credits. `over` is the share by which the
/// limiter may give more.
pub(super) fn assumed(
    promise: &Promise,
    workload: &Workload,
    series: &Series,
    over: f64,
) -> Promise {
    let Some(dimension) = promise.binds(workload) else { return *promise };
    let mut assumed = *promise;
    let rate = match dimension {
        Dimension::Operations => &mut assumed.operations,
        Dimension::Bytes => &mut assumed.bytes,
    };
    let Some(Rate { per_second, credit: Some(credit) }) = *rate else { return assumed };
    let Some((burst, baseline)) = promise.rates_of(workload) else { return assumed };
    let seconds = series.per_second();
    let edge = |counts: &[u64]| counts.iter().sum::<u64>() as f64 / (counts.len().max(1) as f64);
    let part = (seconds.len() / 5).max(1).min(seconds.len());
    let is_baseline = |iops: f64| iops <= baseline * (1.0 + ALIKE_PERCENT / 100.0 + over);
    let begins = edge(&seconds[..part]);
    let ends = edge(&seconds[seconds.len() - part..]);
    *rate = Some(match (is_baseline(begins), is_baseline(ends)) {
        (true, true) => Rate { per_second: credit.refill_per_second, credit: None },
        (false, true) => {
            // In units of the limit: a request costs the limit's burst rate divided by the burst
            // IOPS.
            let cost = per_second as f64 / burst.max(f64::MIN_POSITIVE);
            let used = seconds.iter().sum::<u64>() as f64 * cost;
            let earned = credit.refill_per_second as f64 * seconds.len() as f64;
            let spent = (used - earned).max(0.0);
            let bound = |factor: f64| (spent * factor).round() as u64;
            let plan = CreditPlan { balance_min: bound(0.98), balance_max: bound(1.02), ..credit };
            Rate { per_second, credit: Some(plan) }
        }
        _ => Rate { per_second, credit: None },
    });
    assumed
}
