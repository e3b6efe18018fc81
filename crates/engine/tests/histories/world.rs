//! A data plane, its clients, and the random steps on them.

use super::model::{BLOCK_BYTES, Host, Stamps, Volume, bytes, stamp};
use super::support::{ANSWER_MAX, Answer, Nbd, local_pool};
use evenkeel_core::ids::{InstanceId, VolumeId};
use evenkeel_core::random::Random;
use evenkeel_core::request::Operation;
use evenkeel_core::units::ByteCount;
use evenkeel_engine::priority::Priority;
use evenkeel_engine::{Engine, EngineConfig, IoMode};
use evenkeel_os::clock::Clock;
use evenkeel_store::buffer::Buffer;
use evenkeel_store::memory::MemoryPool;
use evenkeel_store::{Pool, Submission, conformance};
use evenkeel_wire::agent::{
    Attachment, Command, CreditReport, Failed, FailedKind, HostAddress, HostState, Reply,
    VolumeReport,
};
use evenkeel_wire::nbd::transmission::ErrorCode;
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// The volume that is always in use, and its host.
const BUSY: VolumeId = VolumeId::from_bits(0xb5);
const BUSY_HOST: InstanceId = InstanceId::from_bits(0xb5);

const HOSTS_MAX: usize = 8;
const VOLUMES_MAX: usize = 10;
const BLOCKS_MAX: usize = 96;
const ATTACHMENTS_MAX: usize = 3;
const CONNECTIONS_MAX: usize = 16;
/// Requests in flight altogether: the slowest volume completes them within a second.
const IN_FLIGHT_MAX: usize = 96;
/// Number of times that requests in progress may cause a refusal.
const TRIES_MAX: u32 = 5;
/// Reads in flight on a connection without fetching replies: their replies fit in a socket.
const READS_MAX: usize = 12;

/// The pool's bytes, from one start to the next.
enum AtRest {
    Memory(Arc<MemoryPool>),
    Local(tempfile::TempDir),
}

impl AtRest {
    fn pool(&self) -> Arc<dyn Pool> {
        match self {
            Self::Memory(pool) => Arc::clone(pool) as Arc<dyn Pool>,
            Self::Local(folder) => Arc::new(local_pool(folder.path())),
        }
    }
}

/// A request on a connection.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Read(u32),
    Write(u32, u64),
    Flush,
}

struct Connection {
    volume: VolumeId,
    peer: HostAddress,
    client: Nbd,
    asked: BTreeMap<u64, Asked>,
    /// The rest of a write's payload that is not sent yet.
    unsent: Vec<u8>,
    /// Requests that may be refused: a host at this address was detached while they were in flight.
    may_fail: BTreeSet<u64>,
}

/// A client that sends requests all the time: it is never detached, and moves with its host, to
/// which other volumes are attached.
struct Busy {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Busy {
    fn start(mut client: Nbd) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let is_stopped = Arc::clone(&stop);
        let thread = std::thread::spawn(move || {
            for round in 1.. {
                // Writes, then reads of the written bytes, in each block and several in flight.
                for operation in [Operation::Write { fua: false }, Operation::Read] {
                    let mut asked = BTreeMap::new();
                    for block in 0..8 {
                        let payload = bytes(BUSY, block, round);
                        let is_write = operation != Operation::Read;
                        let payload = if is_write { &payload[..] } else { &[] };
                        let offset = u64::from(block) * u64::from(BLOCK_BYTES);
                        let cookie = client.send(operation, offset, BLOCK_BYTES, payload);
                        asked.insert(cookie, block);
                    }
                    while !asked.is_empty() {
                        let (cookie, answer) = client.receive().expect("nobody has closed it");
                        let block = asked.remove(&cookie).unwrap();
                        let Answer::Done(read) = answer else {
                            panic!("{operation:?}: {answer:?}")
                        };
                        if operation == Operation::Read {
                            assert_eq!(stamp(BUSY, block, &read), round);
                        }
                    }
                }
                if is_stopped.load(Ordering::Relaxed) {
                    return;
                }
            }
        });
        Self { stop, thread }
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().unwrap();
    }
}

pub struct World {
    busy: Option<Busy>,
    random: Random,
    seed: u64,
    /// The steps so far, for the report of a failure.
    steps: Vec<String>,
    cores: u16,
    /// Number of addresses of hosts: if it is small, most hosts share one.
    addresses: u64,
    io: IoMode,
    at_rest: AtRest,
    engine: Option<Engine>,
    hosts: Vec<Host>,
    volumes: BTreeMap<VolumeId, Volume>,
    connections: Vec<Connection>,
    names: u128,
    stamps: u64,
    clock: Clock,
}

impl Drop for World {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.steps.iter().for_each(|step| eprintln!("{step}"));
            eprintln!(
                "replay: EVENKEEL_SEED={} cargo test -p evenkeel-engine --test histories",
                self.seed
            );
        }
    }
}

impl World {
    pub fn new(mut random: Random, seed: u64) -> Self {
        let at_rest = match random.below(2) {
            0 => AtRest::Memory(Arc::new(MemoryPool::new())),
            _ => AtRest::Local(tempfile::tempdir().unwrap()),
        };
        let cores = 1 + u16::from(random.below(8) > 0);
        let addresses = if random.below(2) == 0 { 3 } else { 3 * HOSTS_MAX as u64 };
        let io = if random.below(2) == 0 { IoMode::Auto } else { IoMode::Pread };
        let mut world = Self {
            busy: None,
            random,
            seed,
            steps: vec![format!("{cores} cores, {addresses} addresses, {io:?}")],
            cores,
            addresses,
            io,
            at_rest,
            engine: None,
            hosts: Vec::new(),
            volumes: BTreeMap::new(),
            connections: Vec::new(),
            names: 1,
            stamps: 1,
            clock: Clock::start(),
        };
        let id = BUSY_HOST;
        let address = HostAddress::Remote([10, 0, 1, 1].into());
        world.hosts.push(Host { id, address, iops: Some(100_000) });
        let pool = world.at_rest.pool();
        world.start(pool);
        assert_eq!(world.call(Command::Create(world.busy_volume().state())), Reply::Done);
        world.be_busy();
        // Hosts with volumes of their own, spread over the cores.
        for _ in 0..4 {
            world.register_host();
        }
        for nth in 0..6 {
            world.create_volume();
            let host = nth % world.hosts.len();
            if let Some(id) = world.volumes.keys().nth(nth).copied() {
                world.attach_to(id, host);
            }
            world.connect();
        }
        world
    }

    /// Stops all clients once all requests are answered.
    pub fn end(mut self) {
        self.rest();
        self.busy.take().unwrap().stop();
    }

    /// Takes one random step.
    pub fn step(&mut self) {
        match self.random.below(100) {
            0..4 => self.register_host(),
            4..5 => self.deregister_host(),
            5..9 => self.replace_host(),
            9..11 => self.limit_host(),
            11..16 => self.create_volume(),
            16..19 => self.delete_volume(),
            19..31 => self.attach(),
            31..40 => self.detach(),
            40..42 => self.modify_volume(),
            42..45 => self.release_volume(),
            45..60 => self.connect(),
            60..62 => self.knock(),
            62..64 => self.disconnect(),
            64..84 => self.ask(),
            84..86 => self.stop_in_the_middle(),
            86..94 => self.fetch(),
            94..95 => self.check_a_volume(),
            95..96 => self.leave_greedily(),
            96..99 => self.restart(),
            _ => self.check_everything(),
        }
    }

    fn note(&mut self, step: String) {
        self.steps.push(step);
    }

    fn call(&self, command: Command) -> Reply {
        self.engine.as_ref().unwrap().agent().call(command)
    }

    /// Returns a random index below `count`; `None` if it is zero.
    fn one_of(&mut self, count: usize) -> Option<usize> {
        (count > 0).then(|| self.random.below(count as u64) as usize)
    }

    fn a_volume(&mut self) -> Option<VolumeId> {
        let number = self.one_of(self.volumes.len())?;
        self.volumes.keys().nth(number).copied()
    }

    // Hosts.

    fn register_host(&mut self) {
        if self.hosts.len() >= HOSTS_MAX {
            return;
        }
        // Several hosts may have the same address: the data plane does not check it.
        let address = address(self.random.below(self.addresses) as usize);
        let id = InstanceId::from_bits(self.names << 64 | u128::from(self.random.next_u64()));
        self.names += 1;
        let limits = [None, Some(400), Some(5_000), Some(5_000), Some(100_000), Some(100_000)];
        let iops = limits[self.random.below(6) as usize];
        let host = Host { id, address, iops };
        self.note(format!("register {host:?}"));
        self.tell_host(&host);
        self.hosts.push(host);
    }

    /// Returns a random address, with or without a host.
    fn an_address(&mut self) -> HostAddress {
        address(self.random.below(self.addresses) as usize)
    }

    /// Applies a host's limits, as the control plane does; does nothing for a host without limits.
    fn tell_host(&self, host: &Host) {
        if let Some(pacing) = host.pacing() {
            let (balances, unleased) = Default::default();
            let state = HostState { id: host.id, pacing, balances, unleased };
            assert_eq!(self.call(Command::ApplyHost(state)), Reply::Done);
        }
    }

    fn limit_host(&mut self) {
        let Some(at) = self.one_of(self.hosts.len()) else { return };
        if at > 0 && self.hosts[at].iops.is_some() {
            self.hosts[at].iops = Some([400, 5_000, 100_000][self.random.below(3) as usize]);
            let host = self.hosts[at].clone();
            self.note(format!("limit {host:?}"));
            self.tell_host(&host);
        }
    }

    fn deregister_host(&mut self) {
        let Some(at) = self.one_of(self.hosts.len()) else { return };
        let id = self.hosts[at].id;
        let of_it = |volume: &Volume| volume.attachments.iter().any(|a| a.host == id);
        let is_attached = id == BUSY_HOST || self.volumes.values().any(of_it);
        self.note(format!("deregister {id}"));
        let reply = self.call(Command::DeleteHost(id));
        if is_attached {
            let is_refused =
                matches!(&reply, Reply::Failed(Failed { kind: FailedKind::Refused, .. }));
            assert!(is_refused, "{reply:?}");
        } else {
            assert_eq!(reply, Reply::Done);
            self.hosts.remove(at);
        }
    }

    /// Removes a host, and registers another one: otherwise hosts that once came to a core together
    /// would stay together.
    fn replace_host(&mut self) {
        // Not the first one, which is busy.
        let Some(at) = self.one_of(self.hosts.len() - 1).map(|number| number + 1) else { return };
        let id = self.hosts[at].id;
        self.note(format!("retire {id}"));
        let volumes: Vec<VolumeId> = self.volumes.keys().copied().collect();
        for of in volumes {
            if self.volumes[&of].attachments.iter().any(|a| a.host == id) {
                self.change(of, |volume| volume.attachments.retain(|a| a.host != id));
            }
        }
        assert_eq!(self.call(Command::DeleteHost(id)), Reply::Done);
        self.hosts.remove(at);
        self.register_host();
        if let Some(of) = self.a_volume() {
            self.attach_to(of, self.hosts.len().saturating_sub(1));
        }
    }

    // Volumes.

    fn create_volume(&mut self) {
        if self.volumes.len() >= VOLUMES_MAX {
            return;
        }
        // In no order: at a restart the ids determine the order of the volumes.
        let id =
            VolumeId::from_bits(u128::from(self.random.next_u64() >> 1) << 4 | self.names & 15);
        self.names += 1;
        let mut volume = Volume::new(id, 16 + self.random.below(32) as u32);
        volume.iops = self.some_limit();
        self.note(format!("create {id}, {:?} IOPS", volume.iops));
        let command = Command::Create(volume.state());
        self.volumes.insert(id, volume);
        assert_eq!(self.call(command), Reply::Done);
    }

    fn some_limit(&mut self) -> Option<u64> {
        [None, Some(300), Some(300), Some(3_000)][self.random.below(4) as usize]
    }

    fn delete_volume(&mut self) {
        let Some(id) = self.a_volume() else { return };
        self.note(format!("delete {id}"));
        if !self.volumes[&id].attachments.is_empty() {
            self.change(id, |volume| volume.attachments.clear());
        }
        assert_eq!(self.call(Command::Delete(id)), Reply::Done);
        self.volumes.remove(&id);
        let Reply::Stored(stored) = self.call(Command::Stored) else { panic!("no answer") };
        let stored: BTreeSet<VolumeId> = stored.into_iter().map(|stored| stored.id).collect();
        let known: BTreeSet<VolumeId> = self.volumes.keys().copied().chain([BUSY]).collect();
        assert_eq!(stored, known);
    }

    fn modify_volume(&mut self) {
        let Some(id) = self.a_volume() else { return };
        let iops = self.some_limit();
        let more = if self.random.below(2) == 0 { 8 } else { 0 };
        self.note(format!("modify {id}: {iops:?} IOPS, {more} blocks more"));
        self.change(id, |volume| {
            volume.iops = iops;
            let blocks = (volume.blocks.len() + more).min(BLOCKS_MAX);
            volume.grow(blocks as u32);
        });
    }

    /// Gives a volume up, perhaps with requests in progress, and applies it again.
    fn release_volume(&mut self) {
        let Some(id) = self.a_volume() else { return };
        let busy = self.connections.iter().position(|connection| connection.volume == id);
        if let Some(busy) = busy.filter(|_| self.random.below(2) == 0) {
            self.ask_on(busy);
        }
        self.note(format!("release {id}"));
        let reply = self.call(Command::Release(id));
        let is_told = |report: &CreditReport| report.volumes.iter().map(|entry| entry.0).eq([id]);
        assert!(matches!(&reply, Reply::Balances(report) if is_told(report)), "{reply:?}");
        let again = self.call(Command::Release(id));
        assert_eq!(again, Reply::Balances(CreditReport::default()));
        for mut connection in
            self.connections.extract_if(.., |c| c.volume == id).collect::<Vec<_>>()
        {
            // Each request is done or not answered: none fails.
            while let Some((cookie, answer)) = connection.client.receive() {
                self.answered(&mut connection, cookie, answer);
            }
            self.lose(id, connection.asked);
        }
        // No write of a closed connection can still be in progress.
        self.volumes.get_mut(&id).unwrap().ghosts.clear();
        let state = self.volumes[&id].state();
        if let Some(attachment) = state.attachments.first() {
            assert!(self.dial(id, attachment.address).is_none(), "{id} is not held");
        }
        let mut reply = self.call(Command::Apply(state.clone()));
        for _ in 0..TRIES_MAX {
            let Reply::Failed(Failed { kind: FailedKind::Refused, message }) = &reply else {
                break;
            };
            // Its hosts are on different cores, and busy.
            assert!(message.contains("were not executed and their replies read"), "{message}");
            self.note(format!("  refused: {message}"));
            let mut connections = std::mem::take(&mut self.connections);
            connections.iter_mut().for_each(|connection| self.fetch_all(connection));
            self.connections = connections;
            reply = self.call(Command::Apply(state.clone()));
        }
        assert_eq!(reply, Reply::Done);
    }

    fn attach(&mut self) {
        let (Some(id), Some(host)) = (self.a_volume(), self.one_of(self.hosts.len())) else {
            return;
        };
        self.attach_to(id, host);
    }

    fn attach_to(&mut self, id: VolumeId, host: usize) {
        let Some(attachment) = self.hosts.get(host).map(Host::attachment) else { return };
        let volume = &self.volumes[&id];
        let is_attached = volume.attachments.iter().any(|a| a.host == attachment.host);
        if !is_attached && volume.attachments.len() < ATTACHMENTS_MAX {
            self.note(format!("attach {id} to {}", attachment.host));
            self.change(id, |volume| volume.attachments.push(attachment));
        }
    }

    fn detach(&mut self) {
        let Some(id) = self.a_volume() else { return };
        let Some(at) = self.one_of(self.volumes[&id].attachments.len()) else { return };
        let host = self.volumes[&id].attachments[at].host;
        // Perhaps with requests in progress.
        let busy = self.connections.iter().position(|connection| connection.volume == id);
        if let Some(busy) = busy.filter(|_| self.random.below(2) == 0) {
            self.ask_on(busy);
        }
        self.note(format!("detach {id} from {host}"));
        self.change(id, |volume| _ = volume.attachments.remove(at));
    }

    /// Changes a volume, and checks that exactly the connections of attached hosts stay.
    fn change(&mut self, id: VolumeId, change: impl FnOnce(&mut Volume)) {
        let volume = self.volumes.get_mut(&id).unwrap();
        let before = volume.size();
        let attached = volume.attachments.clone();
        change(volume);
        let state = volume.state();
        let command = || {
            if before < state.size {
                Command::Grow(state.clone(), before)
            } else {
                Command::Apply(state.clone())
            }
        };
        let mut reply = self.call(command());
        for _ in 0..TRIES_MAX {
            let Reply::Failed(Failed { kind: FailedKind::Refused, message }) = &reply else {
                break;
            };
            // Only requests in progress may cause a refusal: on a slow machine, they may take too
            // long.
            assert!(message.contains("were not executed and their replies read"), "{message}");
            self.note(format!("  refused: {message}"));
            self.check_unchanged(id, &attached, before);
            self.rest();
            reply = self.call(command());
        }
        assert_eq!(reply, Reply::Done);
        self.note("  done".to_owned());
        let gone = |a: &&Attachment| !self.volumes[&id].attachments.contains(a);
        let gone: Vec<HostAddress> = attached.iter().filter(gone).map(|a| a.address).collect();
        for at in (0..self.connections.len()).rev() {
            let connection = &mut self.connections[at];
            if connection.volume != id {
                continue;
            }
            if !self.volumes[&id].allows(connection.peer) {
                let connection = self.connections.swap_remove(at);
                self.see_the_end_of(connection);
            } else if gone.contains(&connection.peer) {
                connection.may_fail.extend(connection.asked.keys());
            }
        }
    }

    /// Checks that a refused change has changed nothing: the attached hosts reach the volume, no
    /// other address does, and it has its old size.
    fn check_unchanged(&mut self, id: VolumeId, attached: &[Attachment], size: ByteCount) {
        let mut peers: BTreeSet<HostAddress> = self.hosts.iter().map(|h| h.address).collect();
        peers.extend(attached.iter().map(|attachment| attachment.address));
        for peer in peers {
            let is_attached = attached.iter().any(|attachment| attachment.address == peer);
            let client = self.dial(id, peer);
            assert_eq!(client.is_some(), is_attached, "{id} from {peer:?} after a refusal");
            if let Some(mut client) = client {
                let beyond = client.ask(Operation::Read, size.0, BLOCK_BYTES, &[]);
                assert!(matches!(beyond, Answer::Failed(_)), "{id} was grown");
            }
        }
    }

    // Connections.

    fn dial(&mut self, id: VolumeId, peer: HostAddress) -> Option<Nbd> {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let core = self.random.below(self.cores.into()) as u16;
        self.engine.as_ref().unwrap().serve(OwnedFd::from(theirs), peer, core);
        Nbd::over(ours, id, self.random.below(2) == 0)
    }

    fn connect(&mut self) {
        let Some(id) = self.a_volume() else { return };
        let Some(at) = self.one_of(self.volumes[&id].attachments.len()) else { return };
        if self.connections.len() >= CONNECTIONS_MAX {
            return;
        }
        let peer = self.volumes[&id].attachments[at].address;
        self.note(format!("connect to {id} from {peer:?}"));
        let client = self.dial(id, peer).expect("it is attached there");
        self.connections.push(Connection {
            volume: id,
            peer,
            client,
            asked: BTreeMap::new(),
            unsent: Vec::new(),
            may_fail: BTreeSet::new(),
        });
    }

    /// Tries a connection from an address, attached or not.
    fn knock(&mut self) {
        let Some(id) = self.a_volume() else { return };
        let peer = self.an_address();
        self.note(format!("knock at {id} from {peer:?}"));
        let is_let_in = self.dial(id, peer).is_some();
        assert_eq!(is_let_in, self.volumes[&id].allows(peer), "{id} from {peer:?}");
    }

    /// Closes a connection with a farewell, or without one in the middle of the server's replies.
    fn disconnect(&mut self) {
        let Some(at) = self.one_of(self.connections.len()) else { return };
        let mut connection = self.connections.swap_remove(at);
        let politely = self.random.below(2) == 0;
        self.note(format!("leave {}, politely: {politely}", connection.volume));
        if politely {
            self.finish(&mut connection);
            connection.client.disconnect();
            self.see_the_end_of(connection);
        } else {
            let Connection { volume, asked, client, .. } = connection;
            drop(client);
            self.lose(volume, asked);
        }
    }

    /// A client that has requested more than its socket holds disconnects. Its requests are
    /// cancelled.
    fn leave_greedily(&mut self) {
        self.note("leave greedily".to_owned());
        let id = VolumeId::from_bits(u128::MAX >> 64);
        let mut volume = Volume::new(id, 0);
        volume.grow(32 << 20 >> 12);
        volume.attachments = vec![Attachment {
            host: InstanceId::from_bits(u128::MAX >> 64),
            address: HostAddress::Local,
        }];
        let mut state = volume.state();
        // All of it takes minutes.
        state.pacing.bytes =
            Some(evenkeel_core::qos::pacing::Limit { per_second: 64 << 10, credit: None });
        assert_eq!(self.call(Command::Create(state)), Reply::Done);
        for _ in 0..3 {
            let mut client = self.dial(id, HostAddress::Local).unwrap();
            for _ in 0..3 {
                client.send(Operation::Read, 0, 32 << 20, &[]);
            }
        }
        self.await_report(id, |report| report.connections == 0 && report.queued == 0);
        assert_eq!(self.call(Command::Delete(id)), Reply::Done);
    }

    /// Reads to the end of a connection: requests without an answer may have been done or not.
    fn see_the_end_of(&mut self, mut connection: Connection) {
        connection.may_fail.extend(connection.asked.keys());
        while let Some((cookie, answer)) = connection.client.receive() {
            self.answered(&mut connection, cookie, answer);
        }
        self.lose(connection.volume, connection.asked);
    }

    fn lose(&mut self, id: VolumeId, asked: BTreeMap<u64, Asked>) {
        let volume = self.volumes.get_mut(&id).unwrap();
        for asked in asked.into_values() {
            match asked {
                Asked::Flush => {}
                Asked::Read(block) => _ = volume.busy.remove(&block),
                Asked::Write(block, stamp) => {
                    volume.busy.remove(&block);
                    volume.ghosts.insert(block);
                    volume.blocks[block as usize].insert(stamp);
                }
            }
        }
    }

    // Requests.

    fn in_flight(&self) -> usize {
        self.connections.iter().map(|connection| connection.asked.len()).sum()
    }

    /// Sends several requests at once, without waiting for an answer.
    fn ask(&mut self) {
        if let Some(at) = self.one_of(self.connections.len()) {
            self.ask_on(at);
        }
    }

    fn ask_on(&mut self, at: usize) {
        let mut connection = self.connections.swap_remove(at);
        self.finish(&mut connection);
        let most = if self.random.below(3) == 0 { 48 } else { 6 };
        let count = 1 + self.random.below(most);
        self.note(format!("ask {} for {count}", connection.volume));
        for _ in 0..count {
            if self.in_flight() + connection.asked.len() >= IN_FLIGHT_MAX {
                break;
            }
            if let Some((asked, _)) = self.something_to_ask(&connection) {
                self.send(&mut connection, asked, BLOCK_BYTES as usize);
            }
        }
        self.connections.push(connection);
    }

    fn something_to_ask(&mut self, connection: &Connection) -> Option<(Asked, u32)> {
        let nth = self.random.next_u64();
        let volume = &self.volumes[&connection.volume];
        let reads = connection.asked.values().filter(|a| matches!(a, Asked::Read(_))).count();
        let kind = self.random.below(8);
        if kind == 0 {
            return Some((Asked::Flush, 0));
        }
        let block = volume.idle(nth)?;
        if kind < 3 && reads < READS_MAX {
            return Some((Asked::Read(block), block));
        }
        self.stamps += 1;
        Some((Asked::Write(block, self.stamps), block))
    }

    /// Sends a request, of a write with the first `payload` bytes of its payload only.
    fn send(&mut self, connection: &mut Connection, asked: Asked, payload: usize) {
        let volume = self.volumes.get_mut(&connection.volume).unwrap();
        let offset = |block: u32| u64::from(block) * u64::from(BLOCK_BYTES);
        let client = &mut connection.client;
        let cookie = match asked {
            Asked::Flush => client.send(Operation::Flush, 0, 0, &[]),
            Asked::Read(block) => {
                volume.busy.insert(block);
                client.send(Operation::Read, offset(block), BLOCK_BYTES, &[])
            }
            Asked::Write(block, stamp) => {
                volume.busy.insert(block);
                let mut bytes = bytes(volume.id, block, stamp);
                let operation = Operation::Write { fua: stamp % 4 == 0 };
                let now = bytes.drain(..payload).collect::<Vec<u8>>();
                connection.unsent = bytes;
                client.send(operation, offset(block), BLOCK_BYTES, &now)
            }
        };
        connection.asked.insert(cookie, asked);
    }

    /// Sends a part of a write, and nothing more for a while.
    fn stop_in_the_middle(&mut self) {
        let Some(at) = self.one_of(self.connections.len()) else { return };
        let mut connection = self.connections.swap_remove(at);
        self.finish(&mut connection);
        self.stamps += 1;
        let nth = self.random.next_u64();
        let stamp = self.stamps;
        if let Some(block) = self.volumes[&connection.volume].idle(nth) {
            let sent = self.random.below(BLOCK_BYTES.into()) as usize;
            self.note(format!("send {sent} bytes of a write to {}", connection.volume));
            self.send(&mut connection, Asked::Write(block, stamp), sent);
        }
        self.connections.push(connection);
    }

    /// Sends the rest of a write.
    fn finish(&mut self, connection: &mut Connection) {
        let unsent = std::mem::take(&mut connection.unsent);
        connection.client.stream.write_all(&unsent).unwrap();
    }

    /// Waits for all answers of a connection.
    fn fetch(&mut self) {
        let Some(at) = self.one_of(self.connections.len()) else { return };
        let mut connection = self.connections.swap_remove(at);
        self.note(format!("fetch from {}", connection.volume));
        self.fetch_all(&mut connection);
        self.connections.push(connection);
    }

    fn fetch_all(&mut self, connection: &mut Connection) {
        self.finish(connection);
        while !connection.asked.is_empty() {
            let (cookie, answer) = connection.client.receive().expect("nobody has closed it");
            self.answered(connection, cookie, answer);
        }
        connection.may_fail.clear();
    }

    fn answered(&mut self, connection: &mut Connection, cookie: u64, answer: Answer) {
        let asked = connection.asked.remove(&cookie).expect("answered once");
        let volume = self.volumes.get_mut(&connection.volume).unwrap();
        let id = volume.id;
        match (asked, answer) {
            (Asked::Flush, Answer::Done(_)) => {}
            (Asked::Read(block), Answer::Done(read)) => {
                volume.busy.remove(&block);
                let stamp = stamp(id, block, &read);
                let may_be = &mut volume.blocks[block as usize];
                assert!(may_be.contains(&stamp), "block {block} of {id}: {stamp} of {may_be:?}");
                *may_be = Stamps::from([stamp]);
            }
            (Asked::Write(block, stamp), Answer::Done(_)) => {
                volume.busy.remove(&block);
                volume.blocks[block as usize] = Stamps::from([stamp]);
            }
            (asked, Answer::Failed(ErrorCode::ShuttingDown))
                if connection.may_fail.contains(&cookie) =>
            {
                match asked {
                    Asked::Flush => {}
                    Asked::Read(block) => _ = volume.busy.remove(&block),
                    Asked::Write(block, stamp) => {
                        volume.busy.remove(&block);
                        volume.blocks[block as usize].insert(stamp);
                    }
                }
            }
            (asked, answer) => panic!("{asked:?} of {id}: {answer:?}"),
        }
    }

    // Checks.

    fn report(&self, id: VolumeId) -> VolumeReport {
        let Reply::Report(report) = self.call(Command::Report) else { panic!("no report") };
        report.volumes.into_iter().find(|report| report.id == id).expect("it is held")
    }

    fn await_report(&self, id: VolumeId, is_so: impl Fn(&VolumeReport) -> bool) {
        let begin = self.clock.now();
        loop {
            let report = self.report(id);
            if is_so(&report) {
                return;
            }
            let waited = self.clock.now().since(begin);
            assert!(u128::from(waited.ns) < ANSWER_MAX.as_nanos(), "{report:?} for {waited:?}");
            std::thread::yield_now();
        }
    }

    /// Waits until no request is in progress.
    fn rest(&mut self) {
        let mut connections = std::mem::take(&mut self.connections);
        for connection in &mut connections {
            self.fetch_all(connection);
        }
        self.connections = connections;
        let ids: Vec<VolumeId> = self.volumes.keys().copied().collect();
        for id in ids {
            let open = self.connections.iter().filter(|c| c.volume == id).count() as u32;
            self.await_report(id, |report| report.connections == open && report.queued == 0);
            // Writes of closed connections are done by now, or will never be.
            let volume = self.volumes.get_mut(&id).unwrap();
            volume.ghosts.clear();
            assert!(volume.busy.is_empty(), "{:?}", volume.busy);
        }
    }

    pub fn check_everything(&mut self) {
        self.note("check everything".to_owned());
        self.rest();
        let ids: Vec<VolumeId> = self.volumes.keys().copied().collect();
        for id in ids {
            self.check(id);
        }
    }

    fn check_a_volume(&mut self) {
        let Some(id) = self.a_volume() else { return };
        self.note(format!("check {id}"));
        self.rest();
        self.check(id);
    }

    /// Reads all of a volume at rest, from a host to which it is attached.
    fn check(&mut self, id: VolumeId) {
        let volume = &self.volumes[&id];
        let Some(attachment) = volume.attachments.first().copied() else { return };
        let length = volume.size().0 as u32;
        let mut client = self.dial(id, attachment.address).expect("it is attached there");
        let read = client.ask(Operation::Read, 0, length, &[]);
        let Answer::Done(read) = read else { panic!("{id} cannot be read: {read:?}") };
        let volume = self.volumes.get_mut(&id).unwrap();
        for (block, read) in (0..).zip(read.chunks(BLOCK_BYTES as usize)) {
            let stamp = stamp(id, block, read);
            let may_be = &mut volume.blocks[block as usize];
            assert!(may_be.contains(&stamp), "block {block} of {id}: {stamp} of {may_be:?}");
            *may_be = Stamps::from([stamp]);
        }
        client.disconnect();
        assert!(client.receive().is_none());
    }

    // Stops and starts.

    fn start(&mut self, pool: Arc<dyn Pool>) {
        let cores = self.cores;
        let io = self.io;
        let priority = Priority::None;
        let tcp = Vec::new();
        let unix_access = Default::default();
        let config = EngineConfig { cores, io, priority, tcp, unix: None, unix_access, pool };
        self.engine = Some(Engine::start(config).unwrap());
        self.hosts.iter().for_each(|host| self.tell_host(host));
    }

    fn busy_volume(&self) -> Volume {
        let mut volume = Volume::new(BUSY, 8);
        volume.attachments = vec![self.hosts[0].attachment()];
        volume
    }

    fn be_busy(&mut self) {
        let client = self.dial(BUSY, self.hosts[0].address).expect("it is attached there");
        self.busy = Some(Busy::start(client));
    }

    /// Stops the data plane, and starts it anew with the same volumes and hosts.
    pub fn restart(&mut self) {
        self.note("stop".to_owned());
        self.busy.take().unwrap().stop();
        self.engine.take().unwrap().shutdown();
        for connection in std::mem::take(&mut self.connections) {
            self.see_the_end_of(connection);
        }
        for volume in self.volumes.values_mut() {
            volume.ghosts.clear();
        }
        if self.random.below(8) == 0 {
            self.cores = 3 - self.cores;
        }
        let pool = self.at_rest.pool();
        let damaged = self.damage(pool.as_ref());
        let mut ids: Vec<VolumeId> = self.volumes.keys().copied().chain([BUSY]).collect();
        ids.sort_unstable();
        let by_id = self.random.below(2) == 0;
        if !by_id {
            for last in (1..ids.len()).rev() {
                ids.swap(last, self.random.below(last as u64 + 1) as usize);
            }
        }
        self.note(format!("start, {} cores, by id: {by_id}", self.cores));
        self.start(Arc::clone(&pool));
        for id in ids {
            let state = self.volumes.get(&id).map(Volume::state);
            let state = state.unwrap_or_else(|| self.busy_volume().state());
            let reply = self.call(Command::Apply(state));
            if damaged.as_ref().is_some_and(|(of, _)| *of == id) {
                let is_missed =
                    matches!(&reply, Reply::Failed(Failed { kind: FailedKind::Damaged, .. }));
                assert!(is_missed, "{id} is damaged: {reply:?}");
            } else {
                assert_eq!(reply, Reply::Done, "{id}");
            }
        }
        self.be_busy();
        if let Some((id, content)) = damaged {
            for attachment in self.volumes[&id].attachments.clone() {
                assert!(self.dial(id, attachment.address).is_none(), "{id} is damaged");
            }
            // The owner of the bytes restores them.
            pool.delete(id).unwrap();
            pool.create(id, self.volumes[&id].size()).unwrap();
            carry_out(pool.as_ref(), id, Operation::Write { fua: true }, content);
            let reply = self.call(Command::Apply(self.volumes[&id].state()));
            assert_eq!(reply, Reply::Done, "{id} is whole again");
        }
    }

    /// Perhaps removes bytes of a volume. Returns the volume and its bytes.
    fn damage(&mut self, pool: &dyn Pool) -> Option<(VolumeId, Vec<u8>)> {
        let id = self.a_volume()?;
        if self.random.below(3) > 0 {
            return None;
        }
        let size = self.volumes[&id].size();
        let content = carry_out(pool, id, Operation::Read, vec![0; size.0 as usize]);
        pool.delete(id).unwrap();
        let is_gone = self.random.below(2) == 0;
        if !is_gone {
            pool.create(id, ByteCount(size.0 - u64::from(BLOCK_BYTES))).unwrap();
        }
        self.note(format!("damage {id}: {}", if is_gone { "gone" } else { "shorter" }));
        Some((id, content))
    }
}

/// Reads or writes a whole volume that is served by no engine. Returns its bytes.
fn carry_out(pool: &dyn Pool, id: VolumeId, operation: Operation, bytes: Vec<u8>) -> Vec<u8> {
    let mut buffer = Buffer::new(bytes.len());
    buffer.bytes_mut()[..bytes.len()].copy_from_slice(&bytes);
    let mut store = pool.open(id, ByteCount(bytes.len() as u64)).unwrap();
    let length = bytes.len() as u32;
    let submission = Submission { ticket: 0, operation, offset: 0, length, buffer: Some(buffer) };
    let done = conformance::blocking(store.as_mut(), submission);
    assert_eq!(done.result, Ok(()), "{id}");
    done.buffer.unwrap().bytes()[..bytes.len()].to_vec()
}

/// Returns the address number `nth`; the first is this machine's.
fn address(nth: usize) -> HostAddress {
    match nth {
        0 => HostAddress::Local,
        nth => HostAddress::Remote([10, 0, 0, nth as u8].into()),
    }
}
