//! Nodes of a cluster that share a pool, in virtual time. Each has the scheduler and the shared
//! state of its server, a leader divides the window among them, and the pool has a few channels.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::cast_possible_truncation, reason = "the numbers are small")]

use evenkeel_core::fencing::NodeId;
use evenkeel_core::qos::pacing::{Balances, CountingRule, Limit, Pacing};
use evenkeel_core::qos::scheduler::{DeviceIndex, Dispatch, Io, Scheduler, Ticket, VolumeIndex};
use evenkeel_core::qos::sharing::division::{DIVIDE_EVERY, Division, NodePart};
use evenkeel_core::qos::sharing::{Claim, DeviceModel, OperationCost, Window};
use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};
use evenkeel_engine::shared_device::{Said, SharedDevice};
use evenkeel_sim::closed_loop::{ClosedLoop, Timeline};

const CHANNELS: u32 = 8;
const COST: OperationCost = OperationCost { base: Duration::from_us(200), byte_ps: 20_000 };
const KIB: u32 = 1 << 10;
const HEAR_EVERY: Duration = Duration::from_ms(1);
const BEGIN: Instant = Instant::from_ns(1_000_000_000);

/// A volume and its only client.
#[derive(Clone, Copy, Debug)]
struct Load {
    node: usize,
    iops: u64,
    reserved: u32,
    kib: u32,
    depth: u32,
    /// Time at which its client begins.
    from_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct Work {
    node: usize,
    ticket: Ticket,
    load: usize,
    last: bool,
    length: u32,
}

struct Node {
    scheduler: Scheduler,
    device: DeviceIndex,
    shared_device: SharedDevice,
    said_at: Instant,
}

struct World {
    timeline: Timeline<Work>,
    nodes: Vec<Node>,
    division: Division,
    divided_at: Instant,
    /// The leader divides the window until this time.
    led_until: Instant,
    loads: Vec<Load>,
    volumes: Vec<VolumeIndex>,
    random: u64,
    answered: Vec<Vec<u32>>,
}

impl World {
    fn new(nodes: usize, loads: &[Load]) -> Self {
        let window = Window::Adaptive { small_p99: Duration::from_ms(2) };
        let model = DeviceModel { channels: CHANNELS, read: COST, write: COST, window };
        let nodes = (0..nodes).map(|_| {
            let mut scheduler = Scheduler::new(BEGIN);
            let device = scheduler.add_device(BEGIN, &model).unwrap();
            let shared_device = SharedDevice::new(1);
            shared_device.set_capacity(u64::from(CHANNELS) * 1_000_000_000);
            Node { scheduler, device, shared_device, said_at: BEGIN }
        });
        let mut world = Self {
            timeline: Timeline::new(BEGIN, CHANNELS),
            nodes: nodes.collect(),
            division: Division::new(BEGIN),
            divided_at: BEGIN,
            led_until: Instant::from_ns(u64::MAX),
            loads: loads.to_vec(),
            volumes: Vec::new(),
            random: 1,
            answered: vec![Vec::new(); loads.len()],
        };
        let mut reserved = vec![0; world.nodes.len()];
        for (number, load) in (0..).zip(loads) {
            let operations = Some(Limit { per_second: load.iops, credit: None });
            let tolerance = Duration::from_ms(50);
            let pacing = Pacing { counting: CountingRule::SSD, tolerance, operations, bytes: None };
            let claim =
                Claim { reservation_per_second: load.reserved, ..Claim::best_effort(&pacing) };
            let node = &mut world.nodes[load.node];
            let volume = node.scheduler.add(BEGIN, &pacing, Balances::default()).unwrap();
            let at = (Some(node.device), None);
            node.scheduler.share(BEGIN, volume, &pacing, at, &claim).unwrap();
            world.volumes.push(volume);
            reserved[load.node] += u64::from(load.reserved) * model.reference_ns();
            let from = BEGIN + Duration::from_ms(load.from_ms);
            (0..load.depth).for_each(|_| world.timeline.send_at(from, number));
        }
        for (node, reserved) in world.nodes.iter().zip(reserved) {
            node.shared_device.reserve(0, reserved);
        }
        world
    }

    fn ask(&mut self, load: usize) {
        let Load { node, kib, .. } = self.loads[load];
        let random = self.random();
        let write = Operation::Write { fua: false };
        let operation = if random.is_multiple_of(2) { Operation::Read } else { write };
        let offset = random * u64::from(kib * KIB);
        let length = kib * KIB;
        let io = Io { operation, offset, length, handle: load as u32 };
        self.nodes[node].scheduler.submit(self.timeline.now(), self.volumes[load], io).unwrap();
    }

    /// Returns a random number below 2^31.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.random >> 33
    }

    /// Divides the window among the nodes, as the leader does from time to time.
    fn divide(&mut self, now: Instant) {
        self.divided_at = now;
        if now >= self.led_until {
            return;
        }
        let nodes = (0..self.nodes.len() as u32).map(|node| (NodeId(node), true)).collect();
        self.division.set_nodes(&nodes);
        for (number, node) in (0..).map(NodeId).zip(&self.nodes) {
            if let Some(part) = self.division.part(number, now) {
                node.shared_device.divide(now, &part);
            } else {
                node.shared_device.divide(now, &NodePart::LEAST);
            }
            self.division.heard(number, now, &node.shared_device.take_use());
        }
    }

    /// Returns the I/Os of each load in each of `seconds` seconds.
    fn run(mut self, seconds: usize) -> Vec<Vec<u32>> {
        self.answered.iter_mut().for_each(|counts| counts.resize(seconds, 0));
        self.dispatch();
        self.run_until(BEGIN + Duration::from_secs(seconds as u64));
        self.answered
    }
}

impl Node {
    fn report(&mut self, now: Instant) {
        self.said_at = now;
        // A server that does not share its device reports nothing.
        if !self.shared_device.is_shared() {
            return;
        }
        let counters = self.scheduler.device_counters(self.device);
        let said = Said {
            wanted: self.scheduler.is_device_wanted(self.device),
            urgent_at: self.scheduler.urgent_at(self.device),
            in_flight: counters.in_flight,
            window_slots: u32::try_from(counters.window_slots).unwrap(),
            beside_urgent: counters.beside_urgent,
        };
        self.shared_device.say(0, now, &said);
        let others = self.shared_device.others(0, now, u64::from(CHANNELS) * 1_000_000_000);
        self.scheduler.set_device_others(now, self.device, &others);
    }
}

impl ClosedLoop for World {
    type Piece = Work;

    fn timeline(&mut self) -> &mut Timeline<Work> {
        &mut self.timeline
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let timeouts = self.nodes.iter().filter_map(|node| node.scheduler.poll_timeout());
        let hear = self.nodes.iter().map(|node| node.said_at + HEAR_EVERY);
        timeouts.chain(hear).chain([self.divided_at + DIVIDE_EVERY]).min()
    }

    fn poll(&mut self, now: Instant) {
        if now.since(self.divided_at) >= DIVIDE_EVERY {
            self.divide(now);
        }
        for node in &mut self.nodes {
            node.scheduler.poll(now);
            if now.since(node.said_at) >= HEAR_EVERY {
                node.report(now);
            }
        }
    }

    fn poll_output(&mut self, _: Instant) -> Option<Work> {
        let mut nodes = self.nodes.iter_mut().enumerate();
        let (node, dispatch) =
            nodes.find_map(|(node, entry)| Some((node, entry.scheduler.poll_output()?)))?;
        let Dispatch { handle, ticket, last, length, .. } = dispatch;
        Some(Work { node, ticket, load: usize::try_from(handle).unwrap(), last, length })
    }

    /// Returns the service time of the model, and up to 40 us more.
    fn service(&mut self, _: Instant, work: &Work) -> Duration {
        Duration::from_ns(COST.ns(work.length)) + Duration::from_us(self.random() % 40)
    }

    fn complete(&mut self, now: Instant, work: Work) {
        self.nodes[work.node].scheduler.complete(now, work.ticket);
        if work.last {
            let second = now.since(BEGIN).ns / 1_000_000_000;
            if let Some(count) = self.answered[work.load].get_mut(second as usize) {
                *count += 1;
            }
            self.ask(work.load);
        }
    }

    fn send(&mut self, _: Instant, load: u32) {
        self.ask(load as usize);
    }
}

/// The pool does 15,150 I/Os of 16 KiB per second, so this is more than one node's even share of
/// two or three.
const RESERVED: Load =
    Load { node: 0, iops: 10_000, reserved: 10_000, kib: 16, depth: 64, from_ms: 0 };
/// A load of more requests than the pool can serve, with a small reservation.
const FLOOD: Load = Load { node: 1, iops: 100_000, reserved: 500, depth: 256, ..RESERVED };
/// A flood of requests ten times as long.
const LARGE: Load = Load { kib: 256, node: 2, depth: 48, ..FLOOD };

/// Returns the least that a load got in the seconds after this one.
fn worst(answered: &[u32], after: usize) -> u32 {
    *answered[after + 1..].iter().min().unwrap()
}

/// The reservation without one hundredth.
const FLOOR: u32 = 9_900;

#[test]
fn a_floor_holds_while_other_nodes_flood_the_pool() {
    for loads in [&[RESERVED, FLOOD][..], &[RESERVED, FLOOD, LARGE], &[LARGE, RESERVED]] {
        let reserved = loads.iter().position(|load| load.reserved == 10_000).unwrap();
        let answered = World::new(3, loads).run(12);
        assert!(worst(&answered[reserved], 0) >= FLOOR, "{loads:?}: {answered:?}");
        // Without a leader's division, the reserved load gets less.
        let mut without = World::new(3, loads);
        without.led_until = BEGIN;
        let answered = without.run(12);
        assert!(worst(&answered[reserved], 0) < 9_000, "it holds by itself: {answered:?}");
    }
}

#[test]
fn a_node_alone_has_the_pool_and_gives_it_back_when_another_one_wakes() {
    let late = Load { from_ms: 5_300, ..RESERVED };
    let answered = World::new(3, &[late, FLOOD]).run(12);
    let mut alone = World::new(1, &[Load { node: 0, ..FLOOD }]);
    alone.led_until = BEGIN;
    let alone = alone.run(4);
    // The unused part is lent.
    let lent = worst(&answered[1][..5], 0);
    assert!(lent >= alone[0][2] / 10 * 9, "{lent} of {}: {answered:?}", alone[0][2]);
    // Seven tenths of the second in which it begins are left. The time that it waits for its part
    // is made up for.
    assert!(answered[0][5] >= FLOOR / 10 * 7 - 1_000, "{answered:?}");
    assert!(worst(&answered[0], 5) >= FLOOR, "{answered:?}");
}

#[test]
fn floors_hold_without_a_leader() {
    let loads = [Load { from_ms: 4_000, ..RESERVED }, FLOOD];
    let mut world = World::new(3, &loads);
    // The flood uses all of the pool when the leader stops.
    world.led_until = BEGIN + Duration::from_ms(3_000);
    let answered = world.run(10);
    assert!(worst(&answered[0], 4) >= FLOOR, "{answered:?}");
    // Without renewal the loan ends. The flood keeps its even share of the capacity that is not
    // reserved.
    assert!(worst(&answered[1], 5) >= 500, "{answered:?}");
}
