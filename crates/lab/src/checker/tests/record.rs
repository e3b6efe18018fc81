//! Verdicts on a late server by its own record.

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::scheduler::{Io, Scheduler};
use evenkeel_core::qos::trace::{Call, Detail, Trace};
use evenkeel_core::request::Operation;
use evenkeel_core::time::Instant;
use evenkeel_sim::oracle::recorded::Provisioned;

use super::*;
use crate::checker::record::Record;
use crate::stalls::{Observed, Stall};

const MS: u64 = 1_000_000;
/// The time at which the volume is modified; then the server does nothing for a while.
const MODIFIED_MS: u64 = 2_500;
const QUEUE_DEPTH: u32 = 8;

fn id() -> VolumeId {
    VolumeId::from_bits(7)
}

/// Returns the limits before and after the modification.
fn pacings() -> Vec<Pacing> {
    let operations = Some(Limit { per_second: 1_000, credit: None });
    let before = Pacing { operations, ..Pacing::UNLIMITED };
    vec![before, Pacing { bytes: Some(Limit { per_second: 250 << 20, credit: None }), ..before }]
}

/// Returns the record of four seconds of a volume that always has requests waiting, and its number
/// of requests. The server does nothing for `held_ms` after the volume is modified.
fn recorded(held_ms: u64) -> (Record, u64) {
    let [before, after] = pacings().try_into().unwrap();
    let mut scheduler = Scheduler::new(Instant::ZERO);
    let volume = scheduler.add(Instant::ZERO, &before, Balances::default()).unwrap();
    let mut trace = Trace::with_room(1 << 20, Detail::Requests);
    trace.push(Instant::ZERO, Call::Name(volume, id()));
    let mut handle = 0;
    let mut free = QUEUE_DEPTH;
    let mut half_ms = 0;
    while half_ms < 2 * 4_000 {
        let now = Instant::from_ns(half_ms * MS / 2);
        for _ in 0..std::mem::take(&mut free) {
            handle += 1;
            let offset = u64::from(handle) * 7_919 % 1_000 * 4_096;
            let io = Io { operation: Operation::Read, offset, length: 4_096, handle };
            scheduler.submit(now, volume, io).unwrap();
            trace.push(now, Call::Submit(volume, io));
        }
        scheduler.poll(now);
        while let Some(dispatch) = scheduler.poll_output() {
            trace.push(now, Call::Dispatch(dispatch));
            free += 1;
        }
        half_ms += 1;
        if half_ms == 2 * MODIFIED_MS {
            scheduler.set_limits(now, volume, &after);
            trace.push(now, Call::SetLimits(volume, Box::new(after)));
            half_ms += 2 * held_ms;
        }
    }
    let ios = u64::from(handle - QUEUE_DEPTH + free);
    (Record { traces: vec![trace], origin_unix_ns: 0 }, ios)
}

/// Returns the outcome of the modification if the server is late by `held_ms`, of which `known_ms`
/// were measured as lost, and the machine's host took `steal_ms` from the same moment on.
fn modification(held_ms: u64, known_ms: u64, steal_ms: u64) -> Outcome {
    let (record, ios) = recorded(held_ms);
    let volume = Provisioned { id: id(), pacings: pacings(), balances: Balances::default() };
    let start_us = (MODIFIED_MS + (held_ms - known_ms) / 2) * 1_000;
    let server = Stalls::merged(vec![Stall { start_us, length_us: known_ms * 1_000 }]);
    let steal = Stalls::merged(vec![Stall { start_us, length_us: steal_ms * 1_000 }]);
    let observed = Observed { server, steal, ..Observed::default() };
    let checks = record.checks(&volume, &observed, ios, QUEUE_DEPTH).unwrap().checks;
    let of = |name: &str| checks.iter().find(|check| check.name.starts_with(name)).unwrap();
    assert!(of("ceiling").pass && of("requests").pass, "{checks:?}");
    Outcome::of_check(of("modify"))
}

/// A host halts a machine for a tenth of a second at a time, but the watch measures only a part of
/// it.
#[test]
fn a_modification_that_lost_time_delays_is_not_broken() {
    assert_eq!(modification(0, 0, 0), Outcome::Kept);
    assert_eq!(modification(90, 0, 0), Outcome::Kept);
    assert_eq!(modification(190, 100, 0), Outcome::Kept);
    assert_eq!(modification(190, 65, 0), Outcome::Undecided);
    assert_eq!(modification(190, 10, 0), Outcome::Broken);
    assert_eq!(modification(190, 0, 0), Outcome::Broken);
}

/// Steal that no thread shows may explain the lateness, so the verdict is undecided.
#[test]
fn a_modification_that_steal_delays_is_undecided() {
    assert_eq!(modification(190, 10, 150), Outcome::Undecided);
    assert_eq!(modification(190, 10, 20), Outcome::Broken);
    assert_eq!(modification(90, 0, 90), Outcome::Kept);
}
