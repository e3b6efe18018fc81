//! A cluster for tests: engines over one pool, each behind a front, and a map of homes.

use crate::support::{Nbd, Served, unlimited};
use evenkeel_core::fencing::NodeId;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::units::ByteCount;
use evenkeel_engine::handoff as engine;
use evenkeel_engine::{Entrance, IoMode};
use evenkeel_relay::{
    Bounds, Front, FrontConfig, Home, Homes, Inside, Lender, Loan, Local, Peer, Returned, Timing,
};
use evenkeel_store::disk::{Disk, DiskDone};
use evenkeel_store::faulty::FaultyPool;
use evenkeel_store::forwarding::ForwardingPool;
use evenkeel_store::memory::MemoryPool;
use evenkeel_store::{Completion, Geometry, Pool, Store, StoreError, Submission};
use evenkeel_wire::agent::proof::{ClusterSecret, SECRET_BYTES};
use evenkeel_wire::agent::{Command, Reply, VolumeState};
use std::collections::{BTreeMap, VecDeque};
use std::io;
use std::net::{SocketAddr, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::time::Duration;

/// The secret that all nodes know.
pub const SECRET: ClusterSecret = ClusterSecret::new([7; SECRET_BYTES]);
pub const CLUSTER: u128 = 0xc1;
pub const SIZE: u64 = 1 << 20;
pub const ID: VolumeId = VolumeId::from_bits(1);

/// Short pauses between attempts, long patience with a slow machine.
pub const TIMING: Timing = Timing {
    handshake: Duration::from_secs(20),
    first_contact: Duration::from_secs(40),
    word: Duration::from_millis(20),
    reconnect: Duration::from_secs(60),
    unknown: Duration::from_millis(200),
    retry_first: Duration::from_millis(1),
    retry_longest: Duration::from_millis(20),
    look: Duration::from_millis(20),
    look_waiting: Duration::from_millis(1),
    stall: Duration::from_secs(60),
    silence: Duration::from_secs(20),
};

/// Waits a little where there is no event to wait for.
pub fn pause() {
    let nothing = (Mutex::new(()), Condvar::new());
    drop(nothing.1.wait_timeout(nothing.0.lock().unwrap(), Duration::from_millis(2)).unwrap());
}

/// Waits until a condition holds, for longer than it takes on the slowest machine.
pub fn until(what: &str, is_so: impl Fn() -> bool) {
    for _ in 0..30_000 {
        if is_so() {
            return;
        }
        pause();
    }
    panic!("never: {what}");
}

/// A memory pool whose volumes several engines may have open, as in a cluster's storage.
#[derive(Default)]
struct Common {
    memory: MemoryPool,
    stores: Mutex<BTreeMap<VolumeId, Shared>>,
}

type Shared = Arc<Mutex<Box<dyn Store>>>;

struct Opened {
    store: Shared,
    geometry: Geometry,
    finished: VecDeque<Completion>,
}

impl ForwardingPool for Common {
    fn below(&self) -> &dyn Pool {
        &self.memory
    }

    fn open(&self, id: VolumeId, size: ByteCount) -> Result<Box<dyn Store>, StoreError> {
        let mut stores = self.stores.lock().unwrap();
        let store = match stores.get(&id) {
            Some(store) => Arc::clone(store),
            None => Arc::new(Mutex::new(self.memory.open(id, size)?)),
        };
        stores.insert(id, Arc::clone(&store));
        let geometry = Geometry { size, ..store.lock().unwrap().geometry() };
        Ok(Box::new(Opened { store, geometry, finished: VecDeque::new() }))
    }
}

impl Store for Opened {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, submission: Submission, disk: &mut dyn Disk) {
        // Memory answers at once.
        let mut store = self.store.lock().unwrap();
        store.submit(submission, disk);
        self.finished.extend(std::iter::from_fn(|| store.poll()));
    }

    fn disk_done(&mut self, _: DiskDone, _: &mut dyn Disk) {
        unreachable!("memory has no disk");
    }

    fn poll(&mut self) -> Option<Completion> {
        self.finished.pop_front()
    }

    fn writes_zeroes(&self, operation: evenkeel_core::request::Operation) -> bool {
        self.store.lock().unwrap().writes_zeroes(operation)
    }

    fn resized(&mut self, size: ByteCount) {
        self.geometry.size = size;
        self.store.lock().unwrap().resized(size);
    }
}

/// The homes of volumes, for all nodes.
#[derive(Default)]
pub struct Map {
    homes: Mutex<BTreeMap<VolumeId, Place>>,
    addresses: Mutex<BTreeMap<NodeId, SocketAddr>>,
}

#[derive(Clone, Copy)]
pub enum Place {
    Node(NodeId),
    Unsettled,
    Nowhere,
}

impl Map {
    pub fn set(&self, id: VolumeId, place: Place) {
        self.homes.lock().unwrap().insert(id, place);
    }

    /// Replaces the address at which a node is found.
    pub fn divert(&self, node: NodeId, address: SocketAddr) {
        self.addresses.lock().unwrap().insert(node, address);
    }
}

/// The map as one node sees it.
struct View(NodeId, Arc<Map>);

impl Homes for View {
    fn home(&self, volume: VolumeId) -> Home {
        let place = self.1.homes.lock().unwrap().get(&volume).copied();
        match place.unwrap_or(Place::Nowhere) {
            Place::Nowhere => Home::Nowhere,
            Place::Unsettled => Home::Unsettled,
            Place::Node(node) if node == self.0 => Home::Here,
            Place::Node(node) => {
                let address = self.1.addresses.lock().unwrap()[&node];
                Home::At { node, address }
            }
        }
    }
}

/// An engine's entrance, and all connections that came through it.
pub struct Own {
    entrance: Entrance,
    held: Mutex<Vec<Weak<()>>>,
    /// Whether clients at home are handed over to the engine.
    lends: bool,
}

impl Local for Own {
    fn connect(&self, peer: Peer) -> io::Result<Inside> {
        let connected = match peer {
            Peer::At(address) => self.entrance.connect(address),
            Peer::Proven(host) => self.entrance.connect_proven(host, None),
        };
        let evenkeel_engine::Inside { stream, held, lender } = connected?;
        self.held.lock().unwrap().push(Weak::clone(&held));
        let lender: Option<Arc<dyn Lender>> =
            if self.lends { Some(Arc::new(ToEngine(lender))) } else { None };
        Ok(Inside { stream, held, lender })
    }
}

/// Lends clients to the data plane, in the engine's types.
struct ToEngine(engine::Lender);

impl Lender for ToEngine {
    fn lend(&self, loan: Loan) {
        let Loan { client, unread, back } = loan;
        let back = Box::new(move |returned| {
            let engine::Returned { client, unsent, unread, skipped } = returned;
            back(Returned { client, unsent, unread, skipped });
        });
        self.0.lend(engine::Loan { client, unread, back });
    }

    fn recall(&self) {
        self.0.recall();
    }
}

pub struct Node {
    pub id: NodeId,
    pub served: Served,
    pub own: Arc<Own>,
    pub front: Option<Front>,
}

impl Node {
    pub fn address(&self) -> SocketAddr {
        self.front.as_ref().unwrap().client_addresses()[0]
    }

    /// Waits until none of the present connections has requests under way.
    pub fn drain(&self) {
        let held = std::mem::take(&mut *self.own.held.lock().unwrap());
        until("the connections are over", || held.iter().all(|held| held.strong_count() == 0));
    }
}

pub struct Cluster {
    pub map: Arc<Map>,
    pub nodes: Vec<Node>,
    pub state: Mutex<VolumeState>,
}

/// A front's configuration, for a node with this data plane.
pub fn config(id: NodeId, map: &Arc<Map>, local: Arc<dyn Local>) -> FrontConfig {
    FrontConfig {
        clients: vec![([127, 0, 0, 1], 0).into()],
        nodes: ([127, 0, 0, 1], 0).into(),
        node: id,
        cluster: CLUSTER,
        secret: SECRET,
        tls: None,
        homes: Arc::new(View(id, Arc::clone(map))),
        local,
        observer: Arc::new(|_| ()),
        timing: TIMING,
        bounds: Bounds::default(),
    }
}

impl Cluster {
    /// Creates `nodes` nodes, numbered from 1, and a volume that the first one serves.
    pub fn new(nodes: u32) -> Self {
        Self::with(nodes, "", |config| config)
    }

    /// Creates a cluster on this device. `change` adapts the fronts' configurations.
    pub fn with(nodes: u32, device: &str, change: impl Fn(FrontConfig) -> FrontConfig) -> Self {
        Self::made((nodes, IoMode::Auto, true), device, change)
    }

    /// Creates a cluster whose engines call the kernel in this way.
    pub fn on(io: IoMode, nodes: u32, device: &str) -> Self {
        Self::made((nodes, io, true), device, |config| config)
    }

    /// Creates a cluster whose fronts relay all clients, even those at home.
    pub fn relayed(nodes: u32, change: impl Fn(FrontConfig) -> FrontConfig) -> Self {
        Self::made((nodes, IoMode::Auto, false), "", change)
    }

    fn made(
        (nodes, io, lends): (u32, IoMode, bool),
        device: &str,
        change: impl Fn(FrontConfig) -> FrontConfig,
    ) -> Self {
        let mut pool: Arc<dyn Pool> = Arc::new(Common::default());
        if !device.is_empty() {
            pool = Arc::new(FaultyPool::new(pool, &device.parse().unwrap()));
        }
        let map = Arc::new(Map::default());
        let start = |number| {
            let id = NodeId(number);
            let served = Served::new(io, Arc::clone(&pool));
            let entrance = served.engine.as_ref().unwrap().entrance().reported_by_caller();
            let own = Arc::new(Own { entrance, held: Mutex::default(), lends });
            let local = Arc::clone(&own) as Arc<dyn Local>;
            let front = Front::start(change(config(id, &map, local))).unwrap();
            map.divert(id, front.node_address());
            Node { id, served, own, front: Some(front) }
        };
        let nodes: Vec<Node> = (1..=nodes).map(start).collect();
        let state = unlimited(ID, SIZE);
        assert_eq!(nodes[0].served.call(Command::Create(state.clone())), Reply::Done);
        map.set(ID, Place::Node(nodes[0].id));
        Self { map, nodes, state: Mutex::new(state) }
    }

    /// Detaches the volume from a node: its connections are closed, and requests that it had begun
    /// are completed.
    pub fn release(&self, from: usize) {
        self.map.set(ID, Place::Unsettled);
        let state = self.state.lock().unwrap().clone();
        let nobody = VolumeState { attachments: Vec::new(), ..state };
        assert_eq!(self.nodes[from].served.call(Command::Apply(nobody)), Reply::Done);
        self.nodes[from].drain();
    }

    /// Releases the volume for a move: requests that the node had begun are answered, and clients
    /// send the rest elsewhere.
    pub fn give_up(&self, from: usize) {
        self.map.set(ID, Place::Unsettled);
        let told = self.nodes[from].served.call(Command::Release(ID));
        assert!(matches!(told, Reply::Balances(_)), "{told:?}");
        self.nodes[from].drain();
    }

    /// Makes a node the volume's home.
    pub fn settle(&self, at: usize) {
        let state = self.state.lock().unwrap().clone();
        assert_eq!(self.nodes[at].served.call(Command::Apply(state)), Reply::Done);
        self.map.set(ID, Place::Node(self.nodes[at].id));
    }

    pub fn connect(&self, node: usize, structured_replies: bool) -> Nbd {
        connect(self.nodes[node].address(), structured_replies).expect("the export is there")
    }
}

/// A stream to an address, as the support's client wants it.
pub fn stream(address: SocketAddr) -> UnixStream {
    OwnedFd::from(TcpStream::connect(address).unwrap()).into()
}

pub fn connect(address: SocketAddr, structured_replies: bool) -> Option<Nbd> {
    Nbd::over(stream(address), ID, structured_replies)
}
