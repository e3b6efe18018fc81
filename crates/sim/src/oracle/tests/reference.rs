//! The ideal server: token by token, always on time, slow and simple. Its events keep every rule;
//! the tests then spoil them in one way at a time.

use std::collections::VecDeque;

use evenkeel_core::qos::pacing::Limit;

use super::super::{
    Completed, Direction, Dispatched, Event, InstancePromise, Submitted, System, VolumePromise,
};

pub(super) const MS: u64 = 1_000_000;
pub(super) const S: u64 = 1_000_000_000;
const TOKEN: i128 = 1_000_000_000;

/// Tokens that flow in at a rate, up to a maximum, in billionths.
#[derive(Clone, Debug)]
struct Tokens {
    rate: u64,
    level: i128,
    most: i128,
}

impl Tokens {
    fn wait(&self) -> u64 {
        if self.level >= 0 {
            return 0;
        }
        // A rate of 0 yields no token. An hour is longer than every test.
        let rate = i128::from(self.rate);
        if rate == 0 { 3_600 * S } else { u64::try_from((-self.level + rate - 1) / rate).unwrap() }
    }

    fn pass(&mut self, ns: u64) {
        self.level = (self.level + i128::from(self.rate) * i128::from(ns)).min(self.most);
    }
}

fn tokens(limit: Option<Limit>, tolerance_ns: u64, balance: Option<u64>) -> Vec<Tokens> {
    let Some(Limit { per_second: rate, credit }) = limit else { return Vec::new() };
    let saved = i128::from(rate) * i128::from(tolerance_ns);
    let mut all = vec![Tokens { rate, level: saved, most: saved }];
    if let Some(credit) = credit {
        let most = i128::from(credit.capacity) * TOKEN;
        let level = balance.map_or(most, |balance| i128::from(balance) * TOKEN);
        all.push(Tokens { rate: credit.refill_per_second, level, most });
    }
    all
}

/// A client that always has `depth` requests waiting.
#[derive(Clone, Copy, Debug)]
pub(super) struct Client {
    pub(super) depth: usize,
    pub(super) length: u32,
}

struct ServedVolume {
    promise: VolumePromise,
    client: Client,
    operations: Vec<Tokens>,
    bytes: Vec<Tokens>,
    queue: VecDeque<u64>,
    next_handle: u64,
    served_at: u64,
    served: u64,
}

/// An intended fault of the server.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Fault {
    /// Client hosts have no limits.
    pub(super) forget_instances: bool,
    /// Volume 0 of a host is served this many times as often as the others.
    pub(super) favour: u64,
    /// Rate of everything, in thousandths of the promised one.
    pub(super) per_mille: Option<u64>,
    /// Dispatches are possible at multiples of this time only.
    pub(super) grid_ns: u64,
}

/// Runs the ideal server for `length_ns` and returns its events. The device serves any number of
/// I/Os at once, each in `service_ns`.
pub(super) fn serve(
    system: &System,
    clients: &[Client],
    length_ns: u64,
    service_ns: u64,
    fault: Fault,
) -> Vec<Event> {
    let mut server = Server::new(system, clients, fault);
    server.run(length_ns, service_ns, fault);
    server.events
}

struct Server {
    volumes: Vec<ServedVolume>,
    hosts: Vec<[Vec<Tokens>; 2]>,
    now: u64,
    on_device: VecDeque<Completed>,
    events: Vec<Event>,
}

impl Server {
    fn new(system: &System, clients: &[Client], fault: Fault) -> Self {
        let scaled = |limit: Option<Limit>| {
            limit.map(|limit| {
                let per_second = limit.per_second * fault.per_mille.unwrap_or(1_000) / 1_000;
                Limit { per_second, ..limit }
            })
        };
        let volume = |(promise, client): (&VolumePromise, &Client)| ServedVolume {
            promise: *promise,
            client: *client,
            operations: tokens(
                scaled(promise.operations),
                promise.tolerance_ns,
                promise.balances.operations,
            ),
            bytes: tokens(scaled(promise.bytes), promise.tolerance_ns, promise.balances.bytes),
            queue: VecDeque::new(),
            next_handle: 0,
            served_at: 0,
            served: 0,
        };
        let host = |promise: &InstancePromise| {
            let limit = |limit: Option<Limit>| limit.filter(|_| !fault.forget_instances);
            [
                tokens(
                    scaled(limit(promise.operations)),
                    promise.tolerance_ns,
                    promise.balances.operations,
                ),
                tokens(scaled(limit(promise.bytes)), promise.tolerance_ns, promise.balances.bytes),
            ]
        };
        Self {
            volumes: system.volumes.iter().zip(clients).map(volume).collect(),
            hosts: system.instances.iter().map(host).collect(),
            now: 0,
            on_device: VecDeque::new(),
            events: Vec::new(),
        }
    }

    fn run(&mut self, length_ns: u64, service_ns: u64, fault: Fault) {
        for number in 0..self.volumes.len() {
            self.fill(number);
        }
        while let Some((wait, number)) = self.next(fault) {
            let mut at = self.now + wait;
            if fault.grid_ns > 0 {
                at = at.div_ceil(fault.grid_ns) * fault.grid_ns;
            }
            self.complete_until(at.min(length_ns));
            if at >= length_ns {
                break;
            }
            self.pass(at - self.now);
            self.dispatch(number, service_ns);
            self.fill(number);
        }
        self.complete_until(u64::MAX);
    }

    /// Returns the waiting time and the number of the next volume: the first one that all limits
    /// let pass; of several, the one that was served least in proportion to its share.
    fn next(&self, fault: Fault) -> Option<(u64, usize)> {
        let wait = |number: usize| {
            let volume = &self.volumes[number];
            let own = volume.operations.iter().chain(&volume.bytes);
            let host = volume.promise.instance.and_then(|host| self.hosts.get(host as usize));
            let shared = host.into_iter().flatten().flatten();
            own.chain(shared).map(Tokens::wait).max().unwrap_or(0)
        };
        let waits = |number: &usize| !self.volumes[*number].queue.is_empty();
        let turn = |number: usize| {
            let volume = &self.volumes[number];
            let share = if number == 0 { fault.favour.max(1) } else { 1 };
            (wait(number), volume.served / share, volume.served_at, number)
        };
        (0..self.volumes.len()).filter(waits).map(turn).min().map(|turn| (turn.0, turn.3))
    }

    fn pass(&mut self, ns: u64) {
        self.now += ns;
        let hosts = self.hosts.iter_mut().flatten().flatten();
        let volumes = self.volumes.iter_mut();
        let own = volumes.flat_map(|volume| volume.operations.iter_mut().chain(&mut volume.bytes));
        hosts.chain(own).for_each(|tokens| tokens.pass(ns));
    }

    fn fill(&mut self, number: usize) {
        let volume = &mut self.volumes[number];
        while volume.queue.len() < volume.client.depth {
            let handle = volume.next_handle;
            volume.next_handle += 1;
            volume.queue.push_back(handle);
            self.events.push(Event::Submitted(Submitted {
                at: self.now,
                volume: u32::try_from(number).unwrap(),
                instance: volume.promise.instance.unwrap_or(u32::MAX),
                handle,
                direction: Direction::Read,
                offset: handle << 24,
                length: volume.client.length,
            }));
        }
    }

    fn dispatch(&mut self, number: usize, service_ns: u64) {
        let volume = &mut self.volumes[number];
        let handle = volume.queue.pop_front().unwrap();
        let length = volume.client.length;
        let operations = length.div_ceil(256 << 10);
        (volume.served_at, volume.served) = (self.now, volume.served + 1);
        let host = volume.promise.instance.and_then(|host| self.hosts.get_mut(host as usize));
        let empty = &mut [Vec::new(), Vec::new()];
        let [host_operations, host_bytes] = host.unwrap_or(empty);
        for tokens in volume.operations.iter_mut().chain(host_operations) {
            tokens.level -= i128::from(operations) * TOKEN;
        }
        for tokens in volume.bytes.iter_mut().chain(host_bytes) {
            tokens.level -= i128::from(length) * TOKEN;
        }
        let dispatched = Dispatched {
            at: self.now,
            volume: u32::try_from(number).unwrap(),
            instance: volume.promise.instance.unwrap_or(u32::MAX),
            handle,
            direction: Direction::Read,
            length,
            operations,
            bytes: length.into(),
            guard: 0,
            device_cost_ns: service_ns,
            tier: None,
            urgent: false,
            last: true,
        };
        self.events.push(Event::Dispatched(dispatched));
        self.on_device.push_back(completion(&dispatched, self.now + service_ns));
    }

    fn complete_until(&mut self, end: u64) {
        while let Some(completed) = self.on_device.pop_front_if(|completed| completed.at <= end) {
            self.events.push(Event::Completed(completed));
        }
    }
}

/// Returns the completion of a whole request.
pub(super) fn completion(dispatched: &Dispatched, at: u64) -> Completed {
    Completed {
        at,
        volume: dispatched.volume,
        handle: dispatched.handle,
        length: dispatched.length,
        device_cost_ns: dispatched.device_cost_ns,
        last: dispatched.last,
    }
}
