//! A device that answers nothing any more: who is on another one does not notice, and who was on it
//! is served again as soon as it has moved.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};

use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::qos::scheduler::{DeviceIndex, Io, Scheduler, VolumeIndex};
use evenkeel_core::qos::sharing::{Claim, DeviceCounters, Window};

use crate::world::{KIB, NS_PER_S, READ, at, device, limit, pacing};

const DEPTH: u32 = 32;
const BLOCK: u32 = 16 * KIB;
/// What each of the volumes has reserved: ten on each device and none is short of anything, twenty
/// on one is less than four fifths of it.
const EACH: u32 = 8_000;
const ON_EACH: usize = 10;
const LOST: usize = 0;

/// Two devices, and when what is on them is done.
struct Pair {
    scheduler: Scheduler,
    devices: [DeviceIndex; 2],
    /// On which device a volume is, by number.
    volumes: Vec<(VolumeIndex, usize)>,
    numbers: BTreeMap<VolumeIndex, usize>,
    /// Dispatches of each volume in each tenth of a second.
    served: Vec<[u64; 40]>,
    done: BinaryHeap<Reverse<(u64, u64, usize)>>,
    lost_at: u64,
    next_handle: u32,
}

fn terms() -> (Pacing, Claim) {
    let claim = Claim { reservation_per_second: EACH, weight: 1_000 };
    (pacing(limit(EACH.into()), None), claim)
}

impl Pair {
    fn new(lost_at: u64) -> Self {
        let mut scheduler = Scheduler::new(at(0));
        let model = device(Window::Slots(34));
        let devices = [(); 2].map(|()| scheduler.add_device(at(0), &model).unwrap());
        let (pacing, claim) = terms();
        let mut volumes = Vec::new();
        for number in 0..2 * ON_EACH {
            let volume = scheduler.add(at(0), &pacing, Balances::default()).unwrap();
            let place = number / ON_EACH;
            scheduler.share(at(0), volume, &pacing, (Some(devices[place]), None), &claim).unwrap();
            volumes.push((volume, place));
        }
        let mut pair = Self {
            scheduler,
            devices,
            numbers: volumes
                .iter()
                .enumerate()
                .map(|(number, (name, _))| (*name, number))
                .collect(),
            served: vec![[0; 40]; volumes.len()],
            volumes,
            done: BinaryHeap::new(),
            lost_at,
            next_handle: 0,
        };
        for number in 0..2 * ON_EACH {
            (0..DEPTH).for_each(|_| pair.submit(0, number));
        }
        pair
    }

    fn submit(&mut self, now: u64, number: usize) {
        let handle = self.next_handle;
        self.next_handle += 1;
        let io = Io { operation: READ, offset: u64::from(handle) << 20, length: BLOCK, handle };
        self.scheduler.submit(at(now), self.volumes[number].0, io).unwrap();
        self.collect(now);
    }

    fn collect(&mut self, now: u64) {
        while let Some(dispatch) = self.scheduler.poll_output() {
            let number = self.numbers[&dispatch.volume];
            self.served[number][usize::try_from(now * 10 / NS_PER_S).unwrap()] += 1;
            // The channels are never all taken: a request takes what it costs.
            let done_at = now + dispatch.device_ns;
            if self.volumes[number].1 != LOST || done_at < self.lost_at {
                self.done.push(Reverse((done_at, dispatch.ticket.to_bits(), number)));
            }
        }
    }

    fn run_until(&mut self, end: u64) {
        loop {
            let poll = self.scheduler.poll_timeout().map(|timeout| timeout.ns);
            let done = self.done.peek().map(|Reverse((at, ..))| *at);
            let Some(now) = [poll, done].into_iter().flatten().min().filter(|at| *at < end) else {
                return;
            };
            if done == Some(now) {
                let Some(Reverse((_, ticket, number))) = self.done.pop() else { return };
                let ticket = evenkeel_core::qos::scheduler::Ticket::from_bits(ticket);
                self.scheduler.complete(at(now), ticket);
                self.collect(now);
                self.submit(now, number);
            } else {
                self.scheduler.poll(at(now));
                self.collect(now);
            }
        }
    }

    /// Moves everybody from the lost device to the other; their clients begin anew.
    fn move_all(&mut self, now: u64) {
        let to = 1 - LOST;
        for number in 0..self.volumes.len() {
            let (name, place) = self.volumes[number];
            if place != LOST {
                continue;
            }
            self.scheduler.cancel_queued(at(now), name, |_| true).for_each(drop);
            let exported = self.scheduler.export(at(now), name).unwrap();
            let there = (Some(self.devices[to]), None);
            let name = self.scheduler.import(at(now), exported, &terms().0, there).unwrap();
            self.volumes[number] = (name, to);
            self.numbers.insert(name, number);
            (0..DEPTH).for_each(|_| self.submit(now, number));
        }
    }

    fn counters(&self, device: usize) -> DeviceCounters {
        self.scheduler.device_counters(self.devices[device])
    }
}

#[test]
fn a_lost_device_costs_its_own_volumes_only_and_those_only_until_they_have_moved() {
    let mut pair = Pair::new(NS_PER_S);
    pair.run_until(2 * NS_PER_S);
    let stuck = pair.counters(LOST);
    assert!(stuck.in_flight > 0 && stuck.in_flight_ns <= stuck.window_ns, "{stuck:?}");
    pair.move_all(2 * NS_PER_S);
    pair.run_until(4 * NS_PER_S);
    let tenth = u64::from(EACH) / 10;
    for (number, served) in pair.served.iter().enumerate() {
        let was_lost = number / ON_EACH == LOST;
        for (at, served) in served.iter().enumerate() {
            // Lost for a second, in which its window fills and nothing more goes.
            if was_lost && (10..20).contains(&at) {
                let most = if at == 10 { tenth } else { 0 };
                assert!(*served <= most, "volume {number}, tenth {at}: {served}");
            } else {
                assert!(served + 1 >= tenth, "volume {number}, tenth {at}: {served}");
            }
        }
    }
    // What it never answered is in flight there still, and holds nobody else up.
    assert_eq!(pair.counters(LOST).in_flight, stuck.in_flight);
}
