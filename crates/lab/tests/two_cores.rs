//! Cores that share a device, in virtual time: the schedulers and the shared state of the server,
//! clients that send a request for each answer, and a device of a few channels.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]
#![allow(clippy::cast_possible_truncation, reason = "the numbers are small")]

use evenkeel_core::qos::pacing::{Balances, CountingRule, Limit, Pacing};
use evenkeel_core::qos::scheduler::{DeviceIndex, Dispatch, Io, Scheduler, Ticket, VolumeIndex};
use evenkeel_core::qos::sharing::{Claim, DeviceModel, OperationCost, Window};
use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};
use evenkeel_engine::shared_device::{Said, SharedDevice};
use evenkeel_sim::closed_loop::{ClosedLoop, Timeline};

const CHANNELS: u32 = 4;
const COST: OperationCost = OperationCost { base: Duration::from_us(200), byte_ps: 20_000 };
const KIB: u32 = 1 << 10;
/// Interval of the reports among the server's cores.
const HEAR_EVERY: Duration = Duration::from_ms(1);

/// A volume and its only client.
#[derive(Clone, Copy, Debug)]
struct Load {
    core: usize,
    iops: u64,
    reserved: u32,
    /// Share of reads, in percent.
    reads: u64,
    kib: u32,
    depth: u32,
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

/// Deviations of the device from its model.
#[derive(Clone, Copy, Debug)]
struct Fake {
    /// Longest addition to the time of a request, in microseconds.
    jitter_us: u64,
    /// Requests that take 2 ms longer, of a thousand.
    pauses_per_mille: u64,
    /// The p99 that the window keeps for small requests.
    p99: Duration,
}

struct Core {
    scheduler: Scheduler,
    device: DeviceIndex,
    said_at: Instant,
}

struct World {
    timeline: Timeline<Work>,
    begin: Instant,
    cores: Vec<Core>,
    shared_device: SharedDevice,
    loads: Vec<Load>,
    volumes: Vec<VolumeIndex>,
    random: u64,
    device: Fake,
    /// Answered requests of each load in each second.
    answered: Vec<Vec<u32>>,
}

impl World {
    fn new(cores: usize, device: Fake, loads: &[Load]) -> Self {
        let now = Instant::from_ns(1_000_000_000);
        let window = Window::Adaptive { small_p99: device.p99 };
        let model = DeviceModel { channels: CHANNELS, read: COST, write: COST, window };
        let shared_device = SharedDevice::new(u16::try_from(cores).unwrap());
        let cores = (0..cores).map(|_| {
            let mut scheduler = Scheduler::new(now);
            let device = scheduler.add_device(now, &model).unwrap();
            Core { scheduler, device, said_at: now }
        });
        let mut world = Self {
            timeline: Timeline::new(now, CHANNELS),
            begin: now,
            cores: cores.collect(),
            shared_device,
            loads: loads.to_vec(),
            volumes: Vec::new(),
            random: 1,
            device,
            answered: vec![Vec::new(); loads.len()],
        };
        let mut reserved = vec![0; world.cores.len()];
        for load in loads {
            let operations = Some(Limit { per_second: load.iops, credit: None });
            let tolerance = Duration::from_ms(50);
            let pacing = Pacing { counting: CountingRule::SSD, tolerance, operations, bytes: None };
            let claim =
                Claim { reservation_per_second: load.reserved, ..Claim::best_effort(&pacing) };
            let core = &mut world.cores[load.core];
            let volume = core.scheduler.add(now, &pacing, Balances::default()).unwrap();
            let at = (Some(core.device), None);
            core.scheduler.share(now, volume, &pacing, at, &claim).unwrap();
            world.volumes.push(volume);
            reserved[load.core] += u64::from(load.reserved) * model.reference_ns();
        }
        for (core, reserved) in (0..).zip(reserved) {
            world.shared_device.reserve(core, reserved);
        }
        for (load, Load { depth, .. }) in loads.iter().enumerate() {
            for _ in 0..*depth {
                world.ask(load);
            }
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

    fn run(&mut self, seconds: usize) {
        self.begin = self.timeline.now();
        self.answered.iter_mut().for_each(|counts| counts.resize(seconds, 0));
        self.dispatch();
        self.run_until(self.begin + Duration::from_secs(seconds as u64));
    }
}

impl Core {
    /// Reports to the other cores, and applies their reports.
    fn report(&mut self, number: u16, now: Instant, shared_device: &SharedDevice) {
        self.said_at = now;
        let counters = self.scheduler.device_counters(self.device);
        let said = Said {
            wanted: self.scheduler.is_device_wanted(self.device),
            urgent_at: self.scheduler.urgent_at(self.device),
            in_flight: counters.in_flight,
            window_slots: u32::try_from(counters.window_slots).unwrap(),
            beside_urgent: counters.beside_urgent,
        };
        shared_device.say(number, now, &said);
        let capacity_ns = u64::from(CHANNELS) * 1_000_000_000;
        let others = shared_device.others(number, now, capacity_ns);
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
        timeouts.chain(self.cores.iter().map(|core| core.said_at + HEAR_EVERY)).min()
    }

    fn poll(&mut self, now: Instant) {
        for (number, core) in (0..).zip(&mut self.cores) {
            core.scheduler.poll(now);
            if now.since(core.said_at) >= HEAR_EVERY {
                core.report(number, now, &self.shared_device);
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
            let second = now.since(self.begin).ns / 1_000_000_000;
            if let Some(count) = self.answered[work.load].get_mut(second as usize) {
                *count += 1;
            }
            self.ask(work.load);
        }
    }
}

/// A volume that reserves all of its limit, half of it writes.
const RESERVED: Load =
    Load { core: 0, iops: 1_298, reserved: 1_298, reads: 50, kib: 16, depth: 32 };
/// A volume with a small reservation that requests three times as much as a reserved one.
const GREEDY: Load = Load { iops: 3_000, reserved: 102, reads: 100, depth: 96, ..RESERVED };
/// A greedy volume with larger requests, each of which is longer than a core's whole window.
const LARGE: Load = Load { kib: 256, ..GREEDY };

/// Returns variants of a device of 7,575 I/Os of 16 KiB per second, up to the largest delays that
/// it may have: jitter takes six hundredths of its time, and pauses another six.
fn fakes() -> impl Iterator<Item = Fake> {
    let p99s = [Duration::from_us(1_056), Duration::from_ms(2)];
    p99s.into_iter().flat_map(|p99| {
        [(0, 0), (80, 0), (80, 5), (80, 20)].map(|(jitter_us, pauses_per_mille)| Fake {
            jitter_us,
            pauses_per_mille,
            p99,
        })
    })
}

/// Runs a world for twenty seconds and judges every second but the first, in which saved tokens are
/// spent. Reserved volumes get their reservations but for a hundredth. Of the device time that
/// greedy ones have, no core has less than two fifths of an even share.
fn judge(cores: usize, device: Fake, loads: &[Load]) {
    let mut world = World::new(cores, device, loads);
    world.run(20);
    let mut greedy = vec![0.0; cores];
    for (load, counts) in loads.iter().zip(&world.answered) {
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
