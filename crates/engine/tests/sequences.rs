//! For any sequence of hosts, attachments, limits and requests: each request of an open connection
//! is answered, or its connection is closed.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::qos::admission::Reserved;
use evenkeel_core::qos::pacing::{Balances, Limit};
use evenkeel_core::qos::sharing::{DeviceModel, InstancePacing, OperationCost, Window};
use evenkeel_core::random::Random;
use evenkeel_core::request::Operation;
use evenkeel_core::time::Duration;
use evenkeel_engine::IoMode;
use evenkeel_os::clock::Clock;
use evenkeel_store::Pool;
use evenkeel_store::memory::MemoryPool;
use evenkeel_wire::agent::{
    Attachment, Command, FailedKind, HostAddress, HostState, Reply, VolumeState,
};
use std::sync::Arc;
use support::{LOCAL, Nbd, Served, on, paced, unlimited};

const MIB: u64 = 1 << 20;
const MODES: [IoMode; 2] = [IoMode::Auto, IoMode::Pread];
/// Time after which clients that have disconnected must have no request left, on the slowest
/// machine.
const NOTHING_LEFT_BY_NS: u64 = 60_000_000_000;
const VOLUMES: u64 = 3;
const HOSTS: u64 = 4;

fn id(number: u64) -> VolumeId {
    VolumeId::from_bits(number.into())
}

/// Receives until each request is answered or the connection has ended. Returns the number of
/// answers.
fn all_answered(client: &mut Nbd) -> usize {
    let mut answered = 0;
    while client.outstanding() > 0 && client.receive().is_some() {
        answered += 1;
    }
    answered
}

/// Two hosts share an address, as in old databases. If one of them is detached, requests on its
/// line are cancelled; the connection stays, because the other host has the same address.
#[test]
fn hosts_that_share_an_address_come_and_go_and_every_request_is_answered() {
    let other = InstanceId::from_bits(1);
    for io in MODES {
        for has_limits in [false, true] {
            let served = Served::new(io, Arc::new(MemoryPool::new()));
            // A host's limits or the device separate the lines of the hosts.
            let pacing = InstancePacing { operations: limit(100_000), ..InstancePacing::UNLIMITED };
            let host = HostState {
                id: other,
                pacing,
                balances: Balances::default(),
                unleased: Balances::default(),
            };
            if has_limits {
                assert_eq!(served.call(Command::ApplyHost(host)), Reply::Done);
            } else {
                assert_eq!(served.call(Command::Calibrated(DEVICE)), Reply::Done);
            }
            let attached = |hosts: &[InstanceId]| {
                let attachments = hosts.iter().copied().map(on).collect();
                served.apply(VolumeState { attachments, ..paced(id(0), 8 * MIB, 1) });
            };
            attached(&[LOCAL]);
            attached(&[LOCAL, other]);
            attached(&[other]);
            let mut client = served.connect(id(0));
            let sent: Vec<u64> =
                (0..32).map(|_| client.send(Operation::Read, 0, 4_096, &[])).collect();
            // The first request is answered at once; each of the others waits for a second.
            assert_eq!(client.receive().unwrap().0, sent[0]);
            attached(&[other, LOCAL]);
            attached(&[LOCAL]);
            served.apply(VolumeState { attachments: vec![on(LOCAL)], ..unlimited(id(0), 8 * MIB) });
            all_answered(&mut client);
            assert_eq!(served.report(id(0)).queued, 0);
        }
    }
}

fn limit(per_second: u64) -> Option<Limit> {
    Some(Limit { per_second, credit: None })
}

const COST: OperationCost = OperationCost { base: Duration::from_us(80), byte_ps: 4_000 };
const DEVICE: DeviceModel =
    DeviceModel { channels: 2, read: COST, write: COST, window: Window::Slots(3) };

/// An engine, and the random operations on it.
struct World {
    served: Served,
    random: Random,
    /// The address of each host: with some seeds several are local.
    addresses: Vec<HostAddress>,
    made: Vec<bool>,
    clients: Vec<Nbd>,
}

impl World {
    fn new(seed: u64, io: IoMode, pool: Arc<dyn Pool>) -> Self {
        let mut random = Random::from_state(seed);
        let address = |number: u64| match random.below(3) {
            0 => HostAddress::Remote([10, 0, 0, number as u8].into()),
            _ => HostAddress::Local,
        };
        let addresses = (0..HOSTS).map(address).collect();
        let served = Served::new(io, pool);
        Self { served, random, addresses, made: vec![false; VOLUMES as usize], clients: Vec::new() }
    }

    fn step(&mut self) {
        match self.random.below(10) {
            0..3 => self.apply(),
            3 => self.apply_host(),
            4 => self.calibrate(),
            5 => self.leave(),
            6 => self.connect(),
            _ => self.send(),
        }
    }

    fn calibrate(&mut self) {
        let channels = 1 + self.random.below(4) as u32;
        let model = DeviceModel { channels, window: Window::Slots(channels + 1), ..DEVICE };
        assert_eq!(self.served.call(Command::Calibrated(model)), Reply::Done);
    }

    /// Attaches a volume to random hosts, in random order, with random limits.
    fn apply(&mut self) {
        let number = self.random.below(VOLUMES);
        let iops = [50, 500, 5_000, 1_000_000][self.random.below(4) as usize];
        let first = self.random.below(HOSTS);
        let hosts = (0..HOSTS).map(|step| (first + step) % HOSTS);
        let hosts: Vec<u64> = hosts.filter(|_| self.random.below(2) == 0).collect();
        let attachment = |host: u64| Attachment {
            host: InstanceId::from_bits(host.into()),
            address: self.addresses[host as usize],
        };
        let attachments = hosts.into_iter().map(attachment).collect();
        let reserved = match self.random.below(2) {
            0 => Reserved::NOTHING,
            _ => Reserved { operations_per_second: 50, bytes_per_second: 50 << 14 },
        };
        let state = VolumeState { attachments, reserved, ..paced(id(number), 8 * MIB, iops) };
        let made = &mut self.made[number as usize];
        let command = if *made { Command::Apply(state) } else { Command::Create(state) };
        match self.served.call(command) {
            Reply::Done => *made = true,
            // Hosts with limits may be on different cores, with a volume in use.
            Reply::Failed(failed) if failed.kind == FailedKind::Refused => {}
            other => panic!("{other:?}"),
        }
    }

    fn apply_host(&mut self) {
        let host = InstanceId::from_bits(self.random.below(HOSTS).into());
        let per_second = [100, 1_000, 100_000][self.random.below(3) as usize];
        let pacing = InstancePacing { operations: limit(per_second), ..InstancePacing::UNLIMITED };
        let state = HostState {
            id: host,
            pacing,
            balances: Balances::default(),
            unleased: Balances::default(),
        };
        if self.random.below(4) == 0 {
            // Refused while the host is in use.
            self.served.call(Command::DeleteHost(host));
        } else {
            assert_eq!(self.served.call(Command::ApplyHost(state)), Reply::Done);
        }
    }

    fn connect(&mut self) {
        let volume = id(self.random.below(VOLUMES));
        // The volume may be attached to no host, or to none here.
        self.clients.extend(Nbd::connect(&self.served.socket, volume, true));
    }

    /// A client disconnects without a farewell, and perhaps with unread replies.
    fn leave(&mut self) {
        if !self.clients.is_empty() {
            let which = self.random.below(self.clients.len() as u64) as usize;
            drop(self.clients.swap_remove(which));
        }
    }

    /// Sends some requests of one client, and perhaps receives an answer.
    fn send(&mut self) {
        if self.clients.is_empty() {
            return self.connect();
        }
        let which = self.random.below(self.clients.len() as u64) as usize;
        let client = &mut self.clients[which];
        for _ in 0..self.random.below(24) {
            let large = 4_096 << self.random.below(10);
            let fua = self.random.below(2) == 0;
            let (operation, length) = match self.random.below(16) {
                0..6 => (Operation::Read, large),
                6..11 => (Operation::Write { fua }, 4_096),
                11 => (Operation::Flush, 0),
                12 => (Operation::Discard { fua }, 4 << 20),
                13 => {
                    let keep_allocated = fua;
                    let only_if_fast = false;
                    (Operation::WriteZeroes { fua, keep_allocated, only_if_fast }, 4 << 20)
                }
                14 => (Operation::BlockStatus, 4 << 20),
                _ => (Operation::Cache, 4_096),
            };
            let payload = vec![1; if operation.is_write() { 4_096 } else { 0 }];
            let payload = match operation {
                Operation::Write { .. } => &payload[..],
                _ => &[],
            };
            if client.try_send(operation, 0, length, payload).is_err() {
                break;
            }
        }
        let hears = self.random.below(4) == 0 && client.outstanding() > 0;
        if hears && client.receive().is_none() {
            self.clients.swap_remove(which);
        }
    }

    /// Ends the run: each client gets all its answers, or the end of its connection.
    fn end(mut self) -> usize {
        for number in 0..VOLUMES {
            if self.made[number as usize] {
                let attachments = (0..HOSTS).map(|host| Attachment {
                    host: InstanceId::from_bits(host.into()),
                    address: self.addresses[host as usize],
                });
                let attachments = attachments.collect();
                let state = VolumeState { attachments, ..unlimited(id(number), 8 * MIB) };
                self.served.call(Command::Apply(state));
            }
        }
        let answered = self.clients.iter_mut().map(all_answered).sum();
        // The end of clients that have disconnected is detected soon.
        let start = Clock::start();
        while self.served.report_all().volumes.iter().any(|volume| volume.queued > 0) {
            assert!(start.now().ns < NOTHING_LEFT_BY_NS, "requests of nobody are left");
        }
        answered
    }
}

#[test]
fn every_request_of_an_open_connection_is_answered() {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let given = number("EVENKEEL_SEED");
    let cases = number("EVENKEEL_FUZZ_CASES").unwrap_or(24);
    let seeds = given.map_or_else(|| (1..=cases).collect(), |seed| vec![seed]);
    let mut answered = 0;
    for seed in seeds {
        println!("replay: EVENKEEL_SEED={seed} cargo test -p evenkeel-engine --test sequences");
        let folder = tempfile::tempdir().unwrap();
        let pool: Arc<dyn Pool> = match seed % 2 {
            0 => Arc::new(MemoryPool::new()),
            _ => Arc::new(support::local_pool(folder.path())),
        };
        let mut world = World::new(seed, MODES[(seed / 2 % 2) as usize], pool);
        (0..100).for_each(|_| world.step());
        answered += world.end();
    }
    assert!(answered > 0, "nothing was asked");
}
