//! Schedulers that share a device, in virtual time: those of a server's cores, and those of the
//! nodes of a cluster, among which a leader divides the pool's window. Each has the shared state of
//! its server, clients send a request for each answer, and the device has a few channels.
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

const COST: OperationCost = OperationCost { base: Duration::from_us(200), byte_ps: 20_000 };
const KIB: u32 = 1 << 10;
/// Interval of the reports among the server's cores.
const HEAR_EVERY: Duration = Duration::from_ms(1);
const BEGIN: Instant = Instant::from_ns(1_000_000_000);

/// A volume and its only client.
#[derive(Clone, Copy, Debug)]
struct Load {
    /// The scheduler that serves it.
    core: usize,
    iops: u64,
    reserved: u32,
    /// Share of reads, in percent.
    reads: u64,
    kib: u32,
    depth: u32,
    /// Time at which its client begins.
    from_ms: u64,
}

/// A request at the device.
#[derive(Clone, Copy, Debug)]
struct Work {
    core: usize,
    ticket: Ticket,
    load: usize,
    last: bool,
    length: u32,
}

/// The device, with its deviations from its model.
#[derive(Clone, Copy, Debug)]
struct Fake {
    channels: u32,
    /// Longest addition to the time of a request, in microseconds.
    jitter_us: u64,
    /// Requests that take 2 ms longer, of a thousand.
    pauses_per_mille: u64,
    /// The p99 that the window keeps for small requests.
    p99: Duration,
}

/// A core of a server.
struct Core {
    scheduler: Scheduler,
    device: DeviceIndex,
    server: usize,
    number: u16,
    said_at: Instant,
}

struct World {
    timeline: Timeline<Work>,
    /// The shared state of each server.
    servers: Vec<SharedDevice>,
    cores: Vec<Core>,
    division: Division,
    divided_at: Instant,
    /// A leader divides the window among the servers until this time.
    led_until: Instant,
    loads: Vec<Load>,
    volumes: Vec<VolumeIndex>,
    random: u64,
    device: Fake,
    /// Answered requests of each load in each second.
    answered: Vec<Vec<u32>>,
}

impl World {
    /// Creates servers with this number of cores each. Servers without a leader, unless
    /// `led_until` is set, do not share the device.
    fn new(servers: usize, cores: u16, device: Fake, loads: &[Load]) -> Self {
        let window = Window::Adaptive { small_p99: device.p99 };
        let model = DeviceModel { channels: device.channels, read: COST, write: COST, window };
        let numbers = (0..servers).flat_map(|server| (0..cores).map(move |core| (server, core)));
        let all = numbers.map(|(server, number)| {
            let mut scheduler = Scheduler::new(BEGIN);
            let device = scheduler.add_device(BEGIN, &model).unwrap();
            Core { scheduler, device, server, number, said_at: BEGIN }
        });
        let mut world = Self {
            timeline: Timeline::new(BEGIN, device.channels),
            servers: (0..servers).map(|_| SharedDevice::new(cores)).collect(),
            cores: all.collect(),
            division: Division::new(BEGIN),
            divided_at: BEGIN,
            led_until: BEGIN,
            loads: loads.to_vec(),
            volumes: Vec::new(),
            random: 1,
            device,
            answered: vec![Vec::new(); loads.len()],
        };
        let mut reserved = vec![0; world.cores.len()];
        for (number, load) in (0..).zip(loads) {
            let operations = Some(Limit { per_second: load.iops, credit: None });
            let tolerance = Duration::from_ms(50);
            let pacing = Pacing { counting: CountingRule::SSD, tolerance, operations, bytes: None };
            let claim =
                Claim { reservation_per_second: load.reserved, ..Claim::best_effort(&pacing) };
            let core = &mut world.cores[load.core];
            let volume = core.scheduler.add(BEGIN, &pacing, Balances::default()).unwrap();
            let at = (Some(core.device), None);
            core.scheduler.share(BEGIN, volume, &pacing, at, &claim).unwrap();
            world.volumes.push(volume);
            reserved[load.core] += u64::from(load.reserved) * model.reference_ns();
            let from = BEGIN + Duration::from_ms(load.from_ms);
            (0..load.depth).for_each(|_| world.timeline.send_at(from, number));
        }
        for (core, reserved) in world.cores.iter().zip(reserved) {
            world.servers[core.server].reserve(core.number, reserved);
        }
        world
    }

    fn ask(&mut self, load: usize) {
        let Load { core, reads, kib, .. } = self.loads[load];
        let random = self.random();
        let write = Operation::Write { fua: false };
        let operation = if random % 100 < reads { Operation::Read } else { write };
        let offset = random * u64::from(kib * KIB);
        let length = kib * KIB;
        let io = Io { operation, offset, length, handle: load as u32 };
        self.cores[core].scheduler.submit(self.timeline.now(), self.volumes[load], io).unwrap();
    }

    /// Returns a random number below 2^31.
    fn random(&mut self) -> u64 {
        self.random = self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        self.random >> 33
    }

    /// Returns how much longer a request takes than the model says.
    fn noise(&mut self) -> Duration {
        let pause = self.random() % 1_000 < self.device.pauses_per_mille;
        let jitter = Duration::from_us(self.random() % (self.device.jitter_us + 1));
        if pause { jitter + Duration::from_ms(2) } else { jitter }
    }

    /// Divides the window among the servers, as the leader does from time to time.
    fn divide(&mut self, now: Instant) {
        self.divided_at = now;
        if now >= self.led_until {
            return;
        }
        let nodes = (0..self.servers.len() as u32).map(|node| (NodeId(node), true)).collect();
        self.division.set_nodes(&nodes);
        for (number, server) in (0..).map(NodeId).zip(&self.servers) {
            if let Some(part) = self.division.part(number, now) {
                server.divide(now, &part);
            } else {
                server.divide(now, &NodePart::LEAST);
            }
            self.division.heard(number, now, &server.take_use());
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

impl Core {
    /// Reports to the other cores and servers, and applies their reports.
    fn report(&mut self, now: Instant, shared_device: &SharedDevice, capacity_ns: u64) {
        self.said_at = now;
        // A server that does not share its device reports nothing.
        if !shared_device.is_shared() {
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
        shared_device.say(self.number, now, &said);
        let others = shared_device.others(self.number, now, capacity_ns);
        self.scheduler.set_device_others(now, self.device, &others);
    }
}

impl ClosedLoop for World {
    type Piece = Work;

    fn timeline(&mut self) -> &mut Timeline<Work> {
        &mut self.timeline
    }

    fn poll_timeout(&self) -> Option<Instant> {
        let timeouts = self.cores.iter().filter_map(|core| core.scheduler.poll_timeout());
        let hear = self.cores.iter().map(|core| core.said_at + HEAR_EVERY);
        timeouts.chain(hear).chain([self.divided_at + DIVIDE_EVERY]).min()
    }

    fn poll(&mut self, now: Instant) {
        if now.since(self.divided_at) >= DIVIDE_EVERY {
            self.divide(now);
        }
        let capacity_ns = u64::from(self.device.channels) * 1_000_000_000;
        for core in &mut self.cores {
            core.scheduler.poll(now);
            if now.since(core.said_at) >= HEAR_EVERY {
                core.report(now, &self.servers[core.server], capacity_ns);
            }
        }
    }

    fn poll_output(&mut self, _: Instant) -> Option<Work> {
        let mut cores = self.cores.iter_mut().enumerate();
        let (core, dispatch) =
            cores.find_map(|(core, entry)| Some((core, entry.scheduler.poll_output()?)))?;
        let Dispatch { handle, ticket, last, length, .. } = dispatch;
        Some(Work { core, ticket, load: usize::try_from(handle).unwrap(), last, length })
    }

    fn service(&mut self, _: Instant, work: &Work) -> Duration {
        Duration::from_ns(COST.ns(work.length)) + self.noise()
    }

    fn complete(&mut self, now: Instant, work: Work) {
        self.cores[work.core].scheduler.complete(now, work.ticket);
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

mod cores {
    use super::*;

    /// A volume that reserves all of its limit, half of it writes.
    const RESERVED: Load =
        Load { core: 0, iops: 1_298, reserved: 1_298, reads: 50, kib: 16, depth: 32, from_ms: 0 };
    /// A volume with a small reservation that requests three times as much as a reserved one.
    const GREEDY: Load = Load { iops: 3_000, reserved: 102, reads: 100, depth: 96, ..RESERVED };
    /// A greedy volume with larger requests, each of which is longer than a core's whole window.
    const LARGE: Load = Load { kib: 256, ..GREEDY };

    /// Returns variants of a device of 7,575 I/Os of 16 KiB per second, up to the largest delays
    /// that it may have: jitter takes six hundredths of its time, and pauses another six.
    fn fakes() -> impl Iterator<Item = Fake> {
        let p99s = [Duration::from_us(1_056), Duration::from_ms(2)];
        p99s.into_iter().flat_map(|p99| {
            [(0, 0), (80, 0), (80, 5), (80, 20)].map(|(jitter_us, pauses_per_mille)| Fake {
                channels: 4,
                jitter_us,
                pauses_per_mille,
                p99,
            })
        })
    }

    /// Runs a world for twenty seconds and judges every second but the first, in which saved tokens
    /// are spent. Reserved volumes get their reservations but for a hundredth. Of the device time
    /// that greedy ones have, no core has less than two fifths of an even share.
    fn judge(cores: u16, device: Fake, loads: &[Load]) {
        let answered = World::new(1, cores, device, loads).run(20);
        let mut greedy = vec![0.0; cores.into()];
        for (load, counts) in loads.iter().zip(&answered) {
            let steady = &counts[1..];
            if load.reserved < load.iops as u32 {
                let answered: u32 = steady.iter().sum();
                greedy[load.core] += f64::from(answered) * COST.ns(load.kib * KIB) as f64;
                continue;
            }
            let worst = steady.iter().min().unwrap();
            let least = load.reserved - load.reserved.div_ceil(100);
            assert!(*worst >= least, "{device:?}: {worst} of {load:?}: {counts:?}");
        }
        let even = greedy.iter().sum::<f64>() / greedy.len() as f64;
        let fair = greedy.iter().all(|time| *time >= 0.4 * even);
        assert!(fair, "{device:?}: greedy device time by core {greedy:?}");
    }

    #[test]
    fn reservations_hold_on_both_cores_beside_requests_longer_than_the_window() {
        let on = |core, load: Load| Load { core, ..load };
        let writes = Load { reads: 0, ..GREEDY };
        let loads = [
            on(0, RESERVED),
            on(1, RESERVED),
            on(0, RESERVED),
            on(1, RESERVED),
            on(0, GREEDY),
            on(1, writes),
            on(0, LARGE),
        ];
        for device in fakes() {
            judge(2, device, &loads);
        }
    }

    /// A third of four channels is more than one and less than two.
    #[test]
    fn reservations_hold_where_channels_cannot_be_divided() {
        let on = |core, load: Load| Load { core, iops: 1_700, reserved: 1_700, ..load };
        let greedy = |core| Load { core, ..GREEDY };
        let loads =
            [on(0, RESERVED), on(1, RESERVED), on(2, RESERVED), greedy(0), greedy(1), greedy(2)];
        for device in fakes() {
            judge(3, device, &loads);
        }
    }
}

mod nodes {
    use super::*;

    const POOL: Fake =
        Fake { channels: 8, jitter_us: 40, pauses_per_mille: 0, p99: Duration::from_ms(2) };
    /// The pool does 15,150 I/Os of 16 KiB per second, so this is more than one node's even share
    /// of two or three.
    const RESERVED: Load =
        Load { core: 0, iops: 10_000, reserved: 10_000, reads: 50, kib: 16, depth: 64, from_ms: 0 };
    /// A load of more requests than the pool can serve, with a small reservation.
    const FLOOD: Load = Load { core: 1, iops: 100_000, reserved: 500, depth: 256, ..RESERVED };
    /// A flood of requests ten times as long.
    const LARGE: Load = Load { kib: 256, core: 2, depth: 48, ..FLOOD };
    /// The reservation without one hundredth.
    const FLOOR: u32 = 9_900;

    /// Creates nodes of one core, with a leader until a time.
    fn world(nodes: usize, loads: &[Load], led_until: Instant) -> World {
        let world = World { led_until, ..World::new(nodes, 1, POOL, loads) };
        for server in &world.servers {
            server.set_capacity(u64::from(POOL.channels) * 1_000_000_000);
        }
        world
    }

    fn led(nodes: usize, loads: &[Load]) -> World {
        world(nodes, loads, Instant::from_ns(u64::MAX))
    }

    /// Returns the least that a load got in the seconds after this one.
    fn worst(answered: &[u32], after: usize) -> u32 {
        *answered[after + 1..].iter().min().unwrap()
    }

    #[test]
    fn a_floor_holds_while_other_nodes_flood_the_pool() {
        for loads in [&[RESERVED, FLOOD][..], &[RESERVED, FLOOD, LARGE], &[LARGE, RESERVED]] {
            let reserved = loads.iter().position(|load| load.reserved == 10_000).unwrap();
            let answered = led(3, loads).run(12);
            assert!(worst(&answered[reserved], 0) >= FLOOR, "{loads:?}: {answered:?}");
            // Without a leader's division, the reserved load gets less.
            let answered = world(3, loads, BEGIN).run(12);
            assert!(worst(&answered[reserved], 0) < 9_000, "it holds by itself: {answered:?}");
        }
    }

    #[test]
    fn a_node_alone_has_the_pool_and_gives_it_back_when_another_one_wakes() {
        let late = Load { from_ms: 5_300, ..RESERVED };
        let answered = led(3, &[late, FLOOD]).run(12);
        let alone = world(1, &[Load { core: 0, ..FLOOD }], BEGIN).run(4);
        // The unused part is lent.
        let lent = worst(&answered[1][..5], 0);
        assert!(lent >= alone[0][2] / 10 * 9, "{lent} of {}: {answered:?}", alone[0][2]);
        // Seven tenths of the second in which it begins are left. The time that it waits for its
        // part is made up for.
        assert!(answered[0][5] >= FLOOR / 10 * 7 - 1_000, "{answered:?}");
        assert!(worst(&answered[0], 5) >= FLOOR, "{answered:?}");
    }

    #[test]
    fn floors_hold_without_a_leader() {
        let loads = [Load { from_ms: 4_000, ..RESERVED }, FLOOD];
        // The flood uses all of the pool when the leader stops.
        let answered = world(3, &loads, BEGIN + Duration::from_ms(3_000)).run(10);
        assert!(worst(&answered[0], 4) >= FLOOR, "{answered:?}");
        // Without renewal the loan ends. The flood keeps its even share of the capacity that is not
        // reserved.
        assert!(worst(&answered[1], 5) >= 500, "{answered:?}");
    }
}
