//! The loads of a proof, and what they are held to where balances are not known.

use super::Plan;
use crate::checker::{CreditPlan, Dimension, Promise, Rate};
use evenkeel_sim::figures::series::Series;
use evenkeel_sim::workload::Workload;

/// Length of the loads that look for cold or cached blocks, in seconds.
const ALONE_S: u32 = 3;

/// What is asked of it at once at least: enough for a promise to be asked for in full. Of large
/// requests fewer: what a device may have saved is answered at once, and if that takes long to
/// carry over, all of it at the same moment looks like more than was saved.
const DEPTH_MIN: u64 = 32;
const DEPTH_MIN_LARGE: u64 = 4;
const LARGE_BYTES: u64 = 2 << 20;
/// And at most: more only waits.
const DEPTH_MAX: u64 = 256;

/// What IOPS are sold at.
const BLOCK_BYTES: u32 = 16 << 10;

/// Parts in a hundred by which a rate may be off to be taken for another.
const ALIKE_PERCENT: f64 = 5.0;

/// One load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Step {
    pub name: &'static str,
    pub workload: Workload,
}

/// One read at a time.
pub(super) fn alone(name: &'static str, seed: u64) -> Step {
    let workload = Workload { seed, ..Workload::random_read(BLOCK_BYTES, 1, ALONE_S) };
    Step { name, workload }
}

/// Everything that is judged. `alone_ns` is what one read takes: the queue is twice as deep as the
/// promised rate needs with it.
pub(super) fn loads(promise: &Promise, plan: &Plan, alone_ns: u64) -> Vec<Step> {
    let workload = |block_bytes, read_percent| {
        let load = Workload {
            read_percent,
            seed: plan.seed,
            ..Workload::random_read(block_bytes, 1, plan.seconds)
        };
        Workload { queue_depth: depth(promise, &load, alone_ns), ..load }
    };
    // The largest request that still counts as one I/O.
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

/// What a load is held to if nobody knows the balance it began with. From outside three things can
/// be seen: the baseline, the burst, or a burst that ends; of the last the balance follows, because
/// all that went beyond the baseline was paid for. `over` is the share by which it may give more.
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
            // In units of the limit: what one request costs of it is burst units over burst IOPS.
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
