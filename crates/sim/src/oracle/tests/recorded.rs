//! Records of a scheduler: one that keeps its promise passes, and each way to break it is found.

use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::{Balances, CreditLimit, Limit, Pacing};
use evenkeel_core::qos::scheduler::{Io, Scheduler};
use evenkeel_core::qos::trace::{Call, Detail, Trace};
use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};

use crate::oracle::Rule;
use crate::oracle::recorded::{NotJudged, Provisioned, Span, judge};

const MS: u64 = 1_000_000;
const SECOND: u64 = 1_000 * MS;
/// Time of the record's clock at the start of the record.
const START: u64 = 77 * SECOND + 123;

fn id() -> VolumeId {
    VolumeId::from_bits(7)
}

fn pacing(per_second: u64, tolerance_ms: u64) -> Pacing {
    let operations = Some(Limit { per_second, credit: None });
    Pacing { operations, tolerance: Duration::from_ms(tolerance_ms), ..Pacing::UNLIMITED }
}

/// A server that is driven by a client with 32 requests in flight.
struct Server {
    scheduler: Scheduler,
    trace: Trace,
    now: Instant,
    handle: u32,
}

/// Records eight seconds of a volume with these limits. In the spans of `held` the server does
/// nothing; `change` is called at each whole second.
fn recorded(
    limits: Pacing,
    held: &[Span],
    change: impl FnMut(u64, &mut dyn FnMut(Pacing)),
) -> Trace {
    recorded_with(limits, Balances::default(), held, change)
}

/// Records eight seconds of a volume with these limits and credits.
fn recorded_with(
    limits: Pacing,
    balances: Balances,
    held: &[Span],
    mut change: impl FnMut(u64, &mut dyn FnMut(Pacing)),
) -> Trace {
    let start = Instant::from_ns(START);
    let mut scheduler = Scheduler::new(start);
    let name = scheduler.add(start, &limits, balances).unwrap();
    let mut trace = Trace::with_room(1 << 20, Detail::Requests);
    trace.push(start, Call::Name(name, id()));
    let mut server = Server { scheduler, trace, now: start, handle: 0 };
    let mut free = 32_u32;
    let mut second = 0;
    while server.now.ns < START + 8 * SECOND {
        for _ in 0..std::mem::take(&mut free) {
            server.handle += 1;
            let handle = server.handle;
            let offset = u64::from(server.handle) * 7_919 % 1_000 * 4_096;
            let io = Io { operation: Operation::Read, offset, length: 4_096, handle };
            server.scheduler.submit(server.now, name, io).unwrap();
            server.trace.push(server.now, Call::Submit(name, io));
        }
        server.scheduler.poll(server.now);
        while let Some(dispatch) = server.scheduler.poll_output() {
            server.trace.push(server.now, Call::Dispatch(dispatch));
            free += 1;
        }
        let due = server.scheduler.poll_timeout().map_or(u64::MAX, |due| due.ns);
        let mut next = due.clamp(server.now.ns + 1_000, server.now.ns + MS) + 3_000;
        for &(from, to) in held {
            if (from..to).contains(&next) {
                next = to;
            }
        }
        server.now = Instant::from_ns(next);
        while (server.now.ns - START) / SECOND > second {
            second += 1;
            change(second, &mut |limits| {
                server.scheduler.set_limits(server.now, name, &limits);
                let call = Call::SetLimits(name, Box::new(limits));
                server.trace.push(server.now, call);
            });
        }
    }
    server.trace
}

fn broken(trace: &Trace, pacings: Vec<Pacing>, stalls: &[Span]) -> Vec<Rule> {
    let volume = Provisioned { id: id(), pacings, balances: Balances::default() };
    let judged = judge(std::slice::from_ref(trace), &volume, stalls).unwrap();
    assert!(judged.operations > 1_000 && judged.report.events > 1_000);
    judged.report.broken()
}

#[test]
fn a_server_that_keeps_its_promise_passes() {
    for rate in [1_000, 3_000, 16_000] {
        let trace = recorded(pacing(rate, 50), &[], |_, _| {});
        assert_eq!(broken(&trace, vec![pacing(rate, 50)], &[]), []);
    }
}

#[test]
fn a_limiter_that_is_off_by_one_and_a_half_percent_is_found() {
    let fast = recorded(pacing(1_015, 50), &[], |_, _| {});
    let rules = broken(&fast, vec![pacing(1_000, 50)], &[]);
    assert!(rules.contains(&Rule::Ceiling) && rules.contains(&Rule::SteadySecond), "{rules:?}");
    let slow = recorded(pacing(985, 50), &[], |_, _| {});
    assert_eq!(broken(&slow, vec![pacing(1_000, 50)], &[]), [Rule::Floor]);
}

#[test]
fn tokens_of_70_ms_are_found() {
    let trace = recorded(pacing(3_000, 70), &[], |_, _| {});
    let rules = broken(&trace, vec![pacing(3_000, 50)], &[]);
    assert!(rules.contains(&Rule::Ceiling), "{rules:?}");
}

/// A server that does nothing for a second breaks its floor, unless it could not run.
#[test]
fn a_second_that_is_skipped_is_found_and_one_that_was_lost_is_not() {
    let held = [(START + 3 * SECOND, START + 4 * SECOND)];
    let trace = recorded(pacing(1_000, 50), &held, |_, _| {});
    assert_eq!(broken(&trace, vec![pacing(1_000, 50)], &[]), [Rule::Floor]);
    assert_eq!(broken(&trace, vec![pacing(1_000, 50)], &held), []);
    // A second that was lost at another time excuses nothing.
    let elsewhere = [(START + 6 * SECOND, START + 7 * SECOND)];
    assert_eq!(broken(&trace, vec![pacing(1_000, 50)], &elsewhere), [Rule::Floor]);
}

#[test]
fn a_modification_gives_nothing() {
    let raised =
        Pacing { bytes: Some(Limit { per_second: 250 << 20, credit: None }), ..pacing(1_000, 50) };
    let change = |second: u64, set: &mut dyn FnMut(Pacing)| {
        if second == 4 {
            set(raised);
        }
    };
    let trace = recorded(pacing(1_000, 50), &[], change);
    assert_eq!(broken(&trace, vec![pacing(1_000, 50), raised], &[]), []);
    // As if the modification refilled the saved tokens, and more.
    let refill = |second: u64, set: &mut dyn FnMut(Pacing)| {
        if second == 4 {
            set(pacing(51_000, 1));
        } else if second == 5 {
            set(pacing(1_000, 50));
        }
    };
    let trace = recorded(pacing(1_000, 50), &[], refill);
    let told = vec![pacing(1_000, 50); 3];
    assert!(broken(&trace, told, &[]).contains(&Rule::Ceiling));
}

/// Credits count from the time at which they are set, however long the server has run before.
#[test]
fn credits_end_when_they_are_spent() {
    let credit = CreditLimit { refill_per_second: 300, capacity: 1_000_000 };
    let operations = Some(Limit { per_second: 3_000, credit: Some(credit) });
    let limits = Pacing { operations, ..pacing(3_000, 50) };
    let driven = |set: u64| {
        let balances = Balances { operations: Some(set), bytes: None };
        let trace = recorded_with(limits, balances, &[], |_, _| {});
        let volume = Provisioned { id: id(), pacings: vec![limits], balances };
        // 2,700 per second of 10,800 last for four of the eight seconds.
        judge(std::slice::from_ref(&trace), &volume, &[]).unwrap()
    };
    let judged = driven(10_800);
    assert_eq!(judged.report.broken(), []);
    let balances = Balances { operations: Some(9_000), bytes: None };
    let given = Balances { operations: Some(10_800), bytes: None };
    let trace = recorded_with(limits, given, &[], |_, _| {});
    let volume = Provisioned { id: id(), pacings: vec![limits], balances };
    let more = judge(std::slice::from_ref(&trace), &volume, &[]).unwrap();
    assert!(more.report.broken().contains(&Rule::Credits), "{}", more.report);
}

#[test]
fn inconclusive_record_is_not_judged() {
    let told = |trace: &Trace, id: VolumeId, pacings: usize| {
        let pacings = vec![pacing(1_000, 50); pacings];
        let volume = Provisioned { id, pacings, balances: Balances::default() };
        judge(std::slice::from_ref(trace), &volume, &[]).map(|_| ()).unwrap_err()
    };
    let trace = recorded(pacing(1_000, 50), &[], |second, set| {
        if second == 2 {
            set(pacing(2_000, 50));
        }
    });
    assert_eq!(told(&trace, id(), 1), NotJudged::Modified);
    assert_eq!(told(&trace, VolumeId::from_bits(8), 1), NotJudged::Absent);
    assert_eq!(told(&trace, id(), 0), NotJudged::Absent);
    let mut short = Trace::with_room(1, Detail::Requests);
    short.push(Instant::ZERO, Call::Other("share"));
    short.push(Instant::ZERO, Call::Other("share"));
    assert_eq!(told(&short, id(), 1), NotJudged::LeftOut(1));
    let mut shared = trace.clone();
    shared.push(Instant::from_ns(START + 9 * SECOND), Call::Other("share"));
    assert_eq!(told(&shared, id(), 2), NotJudged::Call("share"));
    // Such a record has no polls: no promise is judged by them.
    let mut calls = Trace::with_room(9, Detail::Requests);
    calls.push(Instant::ZERO, Call::Poll);
    assert!(calls.entries().is_empty() && calls.left_out() == 0);
}
