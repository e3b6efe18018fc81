//! The device of the simulator and that of the faulty store are one model: the same requests at the
//! same times end at the same nanosecond, so that results of one apply to the other.

use evenkeel_core::device::Head;
use evenkeel_core::device::{ServiceTime, WriteCache};
use evenkeel_core::random::Random;
use evenkeel_core::request::Operation;
use evenkeel_core::time::Instant;
use evenkeel_sim::scenario::setup::DeviceSetup;
use evenkeel_sim::world::device::Device as Simulated;
use evenkeel_sim::world::policy::Dispatch;
use evenkeel_store::faulty::device::Device as Timed;
use evenkeel_store::faulty::setup::{Setup, Stalls};

/// Returns requests with their times in nanoseconds.
fn requests(random: &mut Random, count: u32) -> Vec<(u64, Operation, (u64, u32))> {
    let mut at = 0;
    let mut offset = 0;
    let mut request = || {
        at += random.below(40_000);
        let length = 4_096 << random.below(7);
        let operation = match random.below(8) {
            0..4 => Operation::Read,
            4..6 => Operation::Write { fua: false },
            6 => Operation::Write { fua: true },
            _ => Operation::Flush,
        };
        // The offset often grows a little, and sometimes jumps.
        if random.below(4) == 0 {
            offset = random.below(1 << 30);
        }
        let range = (offset, length);
        offset += u64::from(length);
        (at, operation, range)
    };
    (0..count).map(|_| request()).collect()
}

/// Returns random set-ups of both devices.
fn devices(random: &mut Random) -> (DeviceSetup, Setup) {
    let mut time =
        || ServiceTime { base_ns: 10_000 + random.below(200_000), ns_per_kib: random.below(8_192) };
    let read = time();
    let write = time();
    let channels = 1 + random.below(16) as u32;
    let cache = (random.below(2) == 0).then(|| WriteCache {
        bytes: random.below(4 << 20),
        drain_bytes_per_second: 1 + random.below(1 << 30),
    });
    let near_ns = (random.below(2) == 0).then(|| 1_000 + random.below(10_000));
    let ideal = DeviceSetup::ideal(0);
    let simulated = DeviceSetup { channels: Some(channels), read, write, near_ns, cache, ..ideal };
    let timed = Setup { write, near_ns, cache, ..Setup::new(channels, read) };
    (simulated, timed)
}

#[test]
fn both_devices_are_done_at_the_same_nanosecond() {
    let mut compared = 0;
    for seed in 0..300 {
        let mut random = Random::new(seed, 0);
        let (simulated, mut timed) = devices(&mut random);
        let mut simulated = Simulated::new(&simulated, Random::new(seed, 1));
        let mut requests = requests(&mut random, 400);
        // A stall in the middle. The simulated device gets it as a call when it begins.
        let stall = (random.below(2) == 0).then(|| (4_000_000, 1 + random.below(3_000_000)));
        if let Some((every_ns, length_ns)) = stall {
            timed.stalls = Some(Stalls { every_ns, length_ns });
            requests.retain(|(at, ..)| *at < 2 * every_ns);
        }
        let mut timed = Timed::new(&timed, Instant::ZERO);
        let mut head = Head::default();
        let mut ends = Vec::new();
        let mut expected = Vec::new();
        let has_stall = stall.is_some();
        let mut stall = stall;
        for (handle, &(at, operation, range)) in requests.iter().enumerate() {
            if let Some((from, length_ns)) = stall.filter(|(from, _)| *from <= at) {
                collect(&mut simulated, from, &mut ends);
                simulated.pause(from, length_ns);
                stall = None;
            }
            collect(&mut simulated, at, &mut ends);
            let handle = handle as u32;
            let (offset, length) = range;
            let dispatch =
                Dispatch { volume: 0, handle, operation, offset, length, last: true, ticket: 0 };
            simulated.give(at, dispatch);
            let done_at = timed.give(Instant::from_ns(at), operation, range, &mut head);
            expected.push((done_at.ns, handle));
        }
        collect(&mut simulated, u64::MAX, &mut ends);
        ends.sort_unstable();
        expected.sort_unstable();
        if has_stall {
            // The simulated device does not have the second stall.
            ends.retain(|(at, _)| *at < 8_000_000);
            expected.retain(|(at, _)| *at < 8_000_000);
        }
        assert_eq!(ends, expected, "seed {seed}");
        compared += ends.len();
    }
    assert!(compared > 60_000, "only {compared} requests were compared");
}

/// Adds the requests that end by `now`, with their times.
fn collect(device: &mut Simulated, now: u64, ends: &mut Vec<(u64, u32)>) {
    while !device.is_empty() && device.next_at() <= now {
        let at = device.next_at();
        let done = device.poll(at).expect("due");
        ends.push((at, done.dispatch.handle));
    }
}
