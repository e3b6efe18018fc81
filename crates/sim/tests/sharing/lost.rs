//! A device that stops answering: volumes on other devices are not affected, and its own volumes
//! are served again as soon as they have moved.

use evenkeel_core::qos::scheduler::DeviceIndex;
use evenkeel_core::qos::sharing::Window;

use crate::world::{Client, KIB, NS_PER_S, World, at, device};

const DEPTH: u32 = 32;
const BLOCK: u32 = 16 * KIB;
/// Reservation of each volume, in I/Os per second: with ten volumes on each device none lacks time,
/// and twenty on one device take less than four fifths of it.
const EACH: u32 = 8_000;
const ON_EACH: usize = 10;
const LOST: usize = 0;

/// Creates two devices with their volumes. One of them answers nothing that it would complete at
/// `lost_at` or later.
fn pair(lost_at: u64) -> (World, [DeviceIndex; 2]) {
    let mut client = Client::greedy(DEPTH, BLOCK).limited(EACH.into()).reserved(EACH);
    client.claim.weight = 1_000;
    let mut world = World::idle(None, &[], &[client; 2 * ON_EACH]);
    let model = device(Window::Slots(34));
    let devices = [(); 2].map(|()| world.scheduler.add_device(at(0), &model).unwrap());
    for (number, volume) in world.volumes.iter().enumerate() {
        let place = (Some(devices[number / ON_EACH]), None);
        world.scheduler.share(at(0), *volume, &client.pacing, place, &client.claim).unwrap();
    }
    let lost = world.volumes[LOST * ON_EACH..][..ON_EACH].to_vec();
    world.set_service(move |_, now, dispatch| {
        // The channels are never all occupied: a request takes its own cost only.
        let is_answered = !lost.contains(&dispatch.volume) || now + dispatch.device_ns < lost_at;
        if is_answered { dispatch.device_ns } else { u64::MAX }
    });
    (0..2 * ON_EACH).for_each(|number| world.start(number));
    (world, devices)
}

/// Moves all volumes of the lost device to another one. Their clients begin anew.
fn move_all(world: &mut World, to: DeviceIndex) {
    let now = at(world.now());
    for number in LOST * ON_EACH..(LOST + 1) * ON_EACH {
        let volume = world.volumes[number];
        world.scheduler.cancel_queued(now, volume, |_| true).for_each(drop);
        let exported = world.scheduler.export(now, volume).unwrap();
        let pacing = world.clients[number].pacing;
        let volume = world.scheduler.import(now, exported, &pacing, (Some(to), None)).unwrap();
        world.replace(number, volume);
        world.start(number);
    }
}

#[test]
fn a_lost_device_costs_its_own_volumes_only_and_those_only_until_they_have_moved() {
    let (mut world, devices) = pair(NS_PER_S);
    world.run_until(2 * NS_PER_S);
    let stuck = world.scheduler.device_counters(devices[LOST]);
    assert!(stuck.in_flight > 0 && stuck.in_flight_ns <= stuck.window_ns, "{stuck:?}");
    move_all(&mut world, devices[1 - LOST]);
    world.run_until(4 * NS_PER_S);
    let tenth = u64::from(EACH) / 10;
    for number in 0..2 * ON_EACH {
        let was_lost = number / ON_EACH == LOST;
        for at in 0..40 {
            let served = world.count(number, at * NS_PER_S / 10..(at + 1) * NS_PER_S / 10);
            // Lost for a second: its window fills, and nothing more is dispatched.
            if was_lost && (10..20).contains(&at) {
                let most = if at == 10 { tenth } else { 0 };
                assert!(served <= most, "volume {number}, tenth {at}: {served}");
            } else {
                assert!(served + 1 >= tenth, "volume {number}, tenth {at}: {served}");
            }
        }
    }
    // Requests without an answer are still in flight there, and hold no other volume up.
    assert_eq!(world.scheduler.device_counters(devices[LOST]).in_flight, stuck.in_flight);
}
