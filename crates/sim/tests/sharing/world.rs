//! Volumes that share instances and a device, in virtual time: clients that keep so many requests
//! in flight, and a device of so many channels behind one queue, which may stall.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap, VecDeque};
use std::ops::Range;

use evenkeel_core::qos::pacing::{Balances, Pacing};
use evenkeel_core::qos::scheduler::{
    DeviceIndex, Dispatch, InstanceIndex, Io, Scheduler, VolumeIndex,
};
use evenkeel_core::qos::sharing::{
    Claim, DeviceModel, DispatchReason, InstancePacing, OperationCost, Window,
};
use evenkeel_core::request::Operation;
use evenkeel_core::time::{Duration, Instant};

use crate::support::Rng;
pub use crate::support::{KIB, NS_PER_S, at, limit, pacing};

pub const READ: Operation = Operation::Read;
/// One that nobody waits for.
pub const WRITE: Operation = Operation::Write { fua: false };
pub const LOG_WRITE: Operation = Operation::Write { fua: true };

/// The device of the paper's tables: 32 channels, 80 us and 4 ns per byte.
pub fn device(window: Window) -> DeviceModel {
    let cost = OperationCost { base: Duration::from_us(80), byte_ps: 4_000 };
    DeviceModel { channels: 32, read: cost, write: cost, window }
}

/// One client of one volume.
#[derive(Clone, Copy, Debug)]
pub struct Client {
    pub pacing: Pacing,
    pub claim: Claim,
    /// Number of its instance.
    pub instance: Option<usize>,
    pub operation: Operation,
    /// Half of its requests are writes instead.
    pub writes_too: bool,
    /// After so many of its requests every second one is a plain write instead.
    pub alternates_after: Option<u32>,
    pub depth: u32,
    pub length: u32,
}

impl Client {
    /// Random reads of 16 KiB without limit or reservation.
    pub fn greedy(depth: u32, length: u32) -> Self {
        let claim = Claim { reservation_per_second: 0, weight: 1_000 };
        let pacing = Pacing::UNLIMITED;
        Self {
            pacing,
            claim,
            instance: None,
            operation: READ,
            writes_too: false,
            alternates_after: None,
            depth,
            length,
        }
    }

    pub fn limited(mut self, per_second: u64) -> Self {
        self.pacing = pacing(limit(per_second), None);
        self.claim.weight = u32::try_from(per_second).unwrap();
        self
    }

    pub fn reserved(mut self, per_second: u32) -> Self {
        self.claim.reservation_per_second = per_second;
        self
    }

    pub fn on(mut self, instance: usize) -> Self {
        self.instance = Some(instance);
        self
    }
}

/// What was dispatched when.
#[derive(Clone, Copy, Debug)]
pub struct Going {
    pub at: u64,
    pub volume: usize,
    pub handle: u32,
    pub length: u32,
    pub reason: DispatchReason,
}

pub struct World {
    pub scheduler: Scheduler,
    pub now: u64,
    pub device: Option<DeviceIndex>,
    pub volumes: Vec<VolumeIndex>,
    pub instances: Vec<InstanceIndex>,
    pub going: Vec<Going>,
    /// Latencies of each volume's requests, in nanoseconds.
    pub latencies: Vec<Vec<u64>>,
    /// When the device does nothing.
    pub stalls: Vec<Range<u64>>,
    /// When nobody polls, nor hears that anything is done.
    pub pauses: Vec<Range<u64>>,
    /// Polls the scheduler at so many times it did not ask for, between any two events.
    pub extra_polls: u32,
    /// How often it was polled at its own wish.
    pub polls: u64,
    clients: Vec<Client>,
    /// Requests of each.
    sent: Vec<u32>,
    model: Option<DeviceModel>,
    names: BTreeMap<VolumeIndex, usize>,
    rng: Rng,
    next_handle: u32,
    submitted: BTreeMap<u32, (usize, u64)>,
    /// At the device, waiting for a channel.
    backlog: VecDeque<Dispatch>,
    busy_channels: u32,
    done: BinaryHeap<Reverse<(u64, u64)>>,
    serial: u64,
    in_service: BTreeMap<u64, Dispatch>,
}

impl World {
    pub fn new(
        model: Option<DeviceModel>,
        instances: &[InstancePacing],
        clients: &[Client],
    ) -> Self {
        let order: Vec<usize> = (0..clients.len()).collect();
        Self::in_order(model, instances, clients, &order)
    }

    /// The same, with clients that send their first requests in this order.
    pub fn in_order(
        model: Option<DeviceModel>,
        instances: &[InstancePacing],
        clients: &[Client],
        order: &[usize],
    ) -> Self {
        let mut scheduler = Scheduler::new(Instant::ZERO);
        let device = model.map(|model| scheduler.add_device(at(0), &model).unwrap());
        let instances: Vec<InstanceIndex> = instances
            .iter()
            .map(|pacing| scheduler.add_instance(at(0), pacing, Balances::default()).unwrap())
            .collect();
        let mut volumes = Vec::new();
        let mut names = BTreeMap::new();
        for (number, client) in clients.iter().enumerate() {
            let volume = scheduler.add(at(0), &client.pacing, Balances::default()).unwrap();
            let instance = client.instance.map(|instance| instances[instance]);
            scheduler
                .share(at(0), volume, &client.pacing, (device, instance), &client.claim)
                .unwrap();
            names.insert(volume, number);
            volumes.push(volume);
        }
        let mut world = Self {
            scheduler,
            now: 0,
            device,
            volumes,
            instances,
            going: Vec::new(),
            latencies: vec![Vec::new(); clients.len()],
            stalls: Vec::new(),
            pauses: Vec::new(),
            extra_polls: 0,
            polls: 0,
            clients: clients.to_vec(),
            sent: vec![0; clients.len()],
            model,
            names,
            rng: Rng::new(20_261_121),
            next_handle: 0,
            submitted: BTreeMap::new(),
            backlog: VecDeque::new(),
            busy_channels: 0,
            done: BinaryHeap::new(),
            serial: 0,
            in_service: BTreeMap::new(),
        };
        for &number in order {
            for _ in 0..clients[number].depth {
                world.submit(number);
            }
        }
        world
    }

    /// The same with other chance from now on.
    pub fn seeded(mut self, seed: u64) -> Self {
        self.rng = Rng::new(seed);
        self
    }

    /// Submits one more request of a client.
    pub fn submit(&mut self, number: usize) {
        let Client { operation, writes_too, alternates_after, length, .. } = self.clients[number];
        let offset = self.rng.below(1 << 26) << 14;
        let handle = self.next_handle;
        let nth = self.sent[number];
        self.sent[number] += 1;
        let alternates =
            alternates_after.is_some_and(|after| nth > after && (nth - after) % 2 == 1);
        let operation = match (alternates, writes_too && self.rng.below(2) == 1) {
            (true, _) => WRITE,
            (_, true) => LOG_WRITE,
            _ => operation,
        };
        self.next_handle += 1;
        self.submitted.insert(handle, (number, self.now));
        let io = Io { operation, offset, length, handle };
        self.scheduler.submit(at(self.now), self.volumes[number], io).unwrap();
        self.collect();
    }

    /// Requests submitted so far.
    pub const fn submissions(&self) -> u32 {
        self.next_handle
    }

    /// One client sends nothing any more.
    pub fn stop_sending_of(&mut self, number: usize) {
        self.clients[number].depth = 0;
    }

    /// Nobody sends anything any more.
    pub fn stop_sending(&mut self) {
        for client in &mut self.clients {
            client.depth = 0;
        }
    }

    /// Lets time pass, polling exactly when asked to.
    pub fn run_until(&mut self, end: u64) {
        loop {
            let poll = self.scheduler.poll_timeout().map(|timeout| timeout.ns);
            let done = self.done.peek().map(|Reverse((at, _))| *at);
            let Some(next) = [poll, done].into_iter().flatten().min().filter(|at| *at <= end)
            else {
                break;
            };
            let extra_polls = if next > self.now { self.extra_polls } else { 0 };
            for extra in 0..u64::from(extra_polls) {
                let at_ns = self.now + (next - self.now) * extra / 7;
                self.scheduler.poll(at(at_ns));
                assert!(self.scheduler.poll_output().is_none(), "dispatched before its time");
            }
            self.now = self.now.max(next);
            if let Some(pause) = self.pauses.iter().find(|pause| pause.contains(&self.now)) {
                self.now = pause.end;
            }
            if done == Some(next) {
                self.complete();
            } else {
                self.polls += 1;
                self.scheduler.poll(at(self.now));
                self.collect();
            }
        }
        self.now = end;
    }

    fn complete(&mut self) {
        let Some(Reverse((_, serial))) = self.done.pop() else { return };
        let dispatch = self.in_service.remove(&serial).unwrap();
        if self.model.is_some() {
            self.busy_channels -= 1;
            self.feed_channels();
        }
        self.scheduler.complete(at(self.now), dispatch.ticket);
        self.collect();
        if dispatch.last {
            let (number, since) = self.submitted.remove(&dispatch.handle).unwrap();
            self.latencies[number].push(self.now - since);
            if self.clients[number].depth > 0 {
                self.submit(number);
            }
        }
    }

    fn collect(&mut self) {
        while let Some(dispatch) = self.scheduler.poll_output() {
            let volume = self.names[&dispatch.volume];
            let Dispatch { handle, length, reason, .. } = dispatch;
            self.going.push(Going { at: self.now, volume, handle, length, reason });
            self.backlog.push_back(dispatch);
        }
        self.feed_channels();
    }

    fn feed_channels(&mut self) {
        let channels = self.model.map_or(u32::MAX, |model| model.channels);
        while self.busy_channels < channels {
            let Some(dispatch) = self.backlog.pop_front() else { return };
            let service = match self.model {
                None => 100_000,
                Some(model) => {
                    self.busy_channels += 1;
                    // Plus or minus a fifth.
                    model.read.ns(dispatch.length) * (80 + self.rng.below(41)) / 100
                }
            };
            let mut end = self.now + service;
            for stall in &self.stalls {
                if stall.contains(&self.now) || stall.contains(&end) {
                    end = end.max(stall.end) + service;
                }
            }
            self.serial += 1;
            self.in_service.insert(self.serial, dispatch);
            self.done.push(Reverse((end, self.serial)));
        }
    }

    /// Requests of a volume dispatched in a span.
    pub fn count(&self, volume: usize, span: Range<u64>) -> u64 {
        let going = self.going.iter().filter(|going| going.volume == volume);
        going.filter(|going| span.contains(&going.at)).count() as u64
    }

    /// Bytes of a volume dispatched in a span.
    pub fn bytes(&self, volume: usize, span: Range<u64>) -> u64 {
        let going = self.going.iter().filter(|going| going.volume == volume);
        going.filter(|going| span.contains(&going.at)).map(|going| u64::from(going.length)).sum()
    }

    /// The latency that so many per mille of a volume's requests do not exceed.
    pub fn percentile(&self, volume: usize, per_mille: usize) -> u64 {
        let mut sorted = self.latencies[volume].clone();
        sorted.sort_unstable();
        sorted[(sorted.len() * per_mille / 1_000).min(sorted.len() - 1)]
    }
}
