//! Volumes that take as long as at EBS: their limits stay exact, since a request waits for them
//! before its latency begins.

use evenkeel_core::feel::{Latencies, VolumeFeel};
use evenkeel_core::ids::VolumeId;
use evenkeel_core::time::Instant;
use evenkeel_core::units::ByteCount;
use evenkeel_core::volume::{Date, VolumeType};

use crate::world::{Client, KIB, NS_PER_S, READ, World};

const SECONDS: usize = 10;
/// The bytes that the clients use: their cold blocks are fetched in the first two seconds.
const WORKING_SET_BYTES: u64 = 64 << 20;
/// The volumes' types with the provisioned IOPS of each, and the number of requests at once.
const VOLUMES: [(VolumeType, u64, u32); 4] = [
    (VolumeType::Gp3, 3_000, 32),
    (VolumeType::Io2, 16_000, 64),
    (VolumeType::Io1, 500, 4),
    // One request at a time takes longer than the limit asks for.
    (VolumeType::Io2, 16_000, 1),
];

/// Returns the world after its end; the first volume's blocks are cold.
fn world() -> World {
    let latencies = Latencies::as_of(Date::new(2100, 1, 1).unwrap());
    let clients = VOLUMES.map(|(_, rate, depth)| Client::greedy(depth, 4 * KIB).limited(rate));
    let mut world = World::idle(None, &[], &clients);
    let mut feels: Vec<VolumeFeel> = (0..)
        .zip(VOLUMES)
        .map(|(number, (volume_type, ..))| {
            let cold = ByteCount::from_gib(u32::from(number == 0));
            VolumeFeel::new(latencies, 1, (VolumeId::from_bits(number), volume_type), cold)
        })
        .collect();
    let volumes = world.volumes.clone();
    let mut offset = 0;
    world.set_service(move |_, now, dispatch| {
        let place = volumes.iter().position(|volume| *volume == dispatch.volume).unwrap();
        offset = (offset + (64 << 10)) % WORKING_SET_BYTES;
        let now = Instant::from_ns(now);
        feels[place].answered_at(now, READ, offset, dispatch.length).since(now).ns
    });
    (0..clients.len()).for_each(|number| world.start(number));
    world.run_until((SECONDS as u64 + 1) * NS_PER_S);
    world
}

#[test]
fn limits_are_exact_while_volumes_take_as_long_as_at_ebs() {
    let world = world();
    for (volume, (_, rate, _)) in VOLUMES.iter().enumerate().take(3) {
        for (second, count) in world.per_second[volume].iter().enumerate().take(SECONDS).skip(3) {
            assert!(rate.abs_diff(*count) <= 1, "volume {volume}: {count} in second {second}");
        }
        let span_ns = NS_PER_S / 10;
        // Tokens of 50 ms may be saved, but no request waits for the device here.
        assert!(world.busiest(volume, span_ns) <= rate / 10 + rate / 20 + 1, "volume {volume}");
    }
    let alone = 3;
    let mean_ns = world.latencies[alone].iter().sum::<u64>() / world.latencies[alone].len() as u64;
    assert!((250_000..350_000).contains(&mean_ns), "{mean_ns}");
    let each_second = NS_PER_S / mean_ns;
    for count in &world.per_second[alone][1..SECONDS] {
        assert!(each_second.abs_diff(*count) <= each_second / 20, "{count}, and {each_second}");
    }
}
