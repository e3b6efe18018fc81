//! The parts of a node that serves: its name in etcd, the store, the data plane, the front and the
//! agent.

use super::routes::{ByFront, Directions};
use super::{Cluster, settings, shared};
use crate::server;
use crate::store_options::StoreOptions;
use crate::transport::NbdListeners;
use crate::{Addresses, Config};
use evenkeel_client::output::{Failure, failed};
use evenkeel_cluster::cluster_handle::Around;
use evenkeel_cluster::confirmation::Confirmation;
use evenkeel_cluster::etcd::election::{Election, Leader, Leadership};
use evenkeel_cluster::etcd::upkeep::Upkeep;
use evenkeel_cluster::health::{self, Health};
use evenkeel_cluster::homes;
use evenkeel_cluster::inbox::{Inbox, Note};
use evenkeel_cluster::kv::Kv;
use evenkeel_cluster::membership::{Event, Seen};
use evenkeel_cluster::nodes::{self, Inst, Nodes, Presence, members};
use evenkeel_cluster::watch_cache::Mirror;
use evenkeel_control::Records;
use evenkeel_core::fencing::NodeId;
use evenkeel_engine::Engine;
use evenkeel_link::{AgentServer, Confirm, ServerConfig, Timing};
use evenkeel_os::clock::{self, Deadline};
use evenkeel_relay::{self as relay, Front, FrontConfig, Observer};
use evenkeel_store::Pool;
use evenkeel_store::folder::Folder;
use evenkeel_store::rbd::Seat;
use evenkeel_tls::server::ServerTls;
use evenkeel_wire::agent::proof::ClusterSecret;
use evenkeel_wire::agent::session::{Leader as AgentLeader, LeaderGeneration};
use evenkeel_wire::agent::{Command, Reply};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::sync_channel;
use std::thread::JoinHandle;
use std::time::Duration;

/// File with the highest generation of leaders that this node has heard.
const GENERATION_FILE: &str = "agent-generation";
/// Address of a process that cannot be reached yet.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);
/// Time until the store is asked again after an answer that confirms nothing.
const ASK_AGAIN: Duration = Duration::from_millis(100);
/// Maximum time that a node that closes waits for threads that ask its store, and the time between
/// two checks.
const OWNERS_MAX: Duration = Duration::from_secs(20);
const OWNERS_LOOK: Duration = Duration::from_millis(5);
/// Rest of the name of the leader's key.
const LEADER: &str = "leader";

/// The result of joining a cluster.
pub struct Joined {
    pub kv: Kv,
    /// The cluster's number.
    pub id: u128,
    /// The secret by which its nodes authenticate each other.
    pub secret: ClusterSecret,
    pub here: NodeId,
}

/// A node that serves.
pub struct Serving {
    joined: Joined,
    incarnation: u128,
    pub addresses: Addresses,
    nbd_tls: NbdListeners,
    front: Front,
    agent: AgentServer,
    engine: Engine,
    /// The audit of this node.
    records: Arc<Records>,
    /// Whether the storage lets this process serve.
    confirmation: Arc<Confirmation>,
    leaves: Option<JoinHandle<()>>,
    opened: Opened,
    upkeep: Arc<Upkeep>,
    /// Whether another node runs the control plane.
    follows: Arc<AtomicBool>,
    /// Ends the threads that watch the node's health.
    is_over: Arc<AtomicBool>,
}

/// The parts that are opened before the data plane.
struct Opened {
    nodes: Nodes,
    homes: Mirror<NodeId>,
    leader: Mirror<()>,
    pool: Arc<dyn Pool>,
    presence: Arc<Presence>,
    /// The settings that this node publishes.
    settings: BTreeMap<String, String>,
    _folder: Option<Folder>,
}

impl Serving {
    /// Takes the node's name, opens the store, and starts the data plane. The inbox receives news
    /// of the cluster, the store and the data plane after this.
    pub fn start(
        config: &Config,
        (cluster, tls): (&Cluster, Option<&Arc<ServerTls>>),
        joined: Joined,
        is_stopped: &AtomicBool,
        inbox: &Inbox,
    ) -> Result<Self, Failure> {
        let incarnation = shared::random_number()?;
        let opened = Opened::open(config, cluster, &joined, incarnation)?;
        let pool = &opened.pool;
        let Joined { kv, here, .. } = &joined;
        let follows = Arc::<AtomicBool>::default();
        let of_upkeep = Arc::clone(&follows);
        let acts = move || !of_upkeep.load(Ordering::Acquire);
        let upkeep = Upkeep::start(kv.client.clone(), here.0, acts).map_err(failed)?;
        let upkeep = Arc::new(upkeep);
        let calibration = shared::calibration(kv, *here, config, &**pool, is_stopped)?;
        let local = Config { nbd_listen: Vec::new(), ..config.clone() };
        let engine = server::data_plane(&local, Arc::clone(pool), calibration)?;
        server::share_with_nodes(&engine);
        let records = server::records(config, &engine)?;
        let visits = records.visits();
        let observer: Observer = Arc::new(move |visit| visits.note(visit));
        let agent = agent_config(config, cluster, &joined, incarnation);
        let agent = AgentServer::start(agent, engine.agent()).map_err(failed)?;
        let confirmation = ask_when_woken(pool, inbox)?;
        let directions = Arc::new(Directions {
            homes: opened.homes.clone(),
            nodes: opened.nodes.clone(),
            here: *here,
            entrance: engine.entrance().reported_by_caller(),
            confirmation: Arc::clone(&confirmation),
        });
        let front = front_config(config, cluster, &joined, (directions, &observer));
        let front = Front::start(front).map_err(failed)?;
        let nbd_tls = NbdListeners::bind(&config.transport, tls)?;
        let addresses = Addresses {
            api: config.listen,
            nbd: front.client_addresses(),
            nbd_tls: nbd_tls.addresses().to_vec(),
        };
        let serving = Self {
            joined,
            incarnation,
            addresses,
            nbd_tls,
            front,
            agent,
            engine,
            records,
            confirmation,
            leaves: None,
            opened,
            upkeep,
            follows,
            is_over: Arc::default(),
        };
        config.transport.warn(config.listen, &serving.addresses.nbd);
        serving.open_doors(cluster);
        let of_front = Arc::new(ByFront { front: serving.front.entrance(), observer });
        serving.nbd_tls.open(of_front, config.cores)?;
        serving.report_to(inbox);
        Ok(serving)
    }

    /// Accepts clients, and publishes the node's addresses in etcd.
    fn open_doors(&self, cluster: &Cluster) {
        self.engine.open_doors();
        let Addresses { api, nbd, .. } = &self.addresses;
        let inst = Inst {
            store: self.opened.pool.instance().unwrap_or_default(),
            agent: self.agent.address(),
            relay: self.front.node_address(),
            api: reachable(*api, cluster.listen[0]),
            nbd: nbd.clone(),
            is_leaving: false,
            settings: self.opened.settings.clone(),
            ..unreachable_yet(self.incarnation)
        };
        if let Err(error) = self.opened.presence.update(inst) {
            tracing::warn!(%error, "the other nodes hear of this one when etcd answers");
        }
    }

    fn report_to(&self, inbox: &Inbox) {
        let to = inbox.clone();
        self.engine.when_failed(move |what| to.send(Note::Event(Event::DataPlaneFailed(what))));
        let to = inbox.clone();
        let fenced = move || to.send(Note::Event(Event::Fenced));
        self.opened.pool.when_taken_over(Box::new(fenced));
        let to = inbox.clone();
        self.opened.nodes.when_changed(move || to.send(Note::ClusterChanged));
        let to = inbox.clone();
        self.opened.homes.when_changed(move || to.send(Note::ClusterChanged));
        let to = inbox.clone();
        self.opened.leader.when_changed(move || to.send(Note::Event(Event::LeaderChanged)));
    }

    /// Returns this node's view of the others.
    pub fn seen(&self) -> Seen {
        let here = self.joined.here;
        let all = members(&self.opened.nodes.values());
        let has_others = all.iter().any(|member| member.number != here && member.takes_volumes());
        let is_empty = self.opened.homes.values().values().all(|home| *home != here);
        Seen { has_others, is_empty }
    }

    /// Starts threads that check the data plane and the data folder until this node closes.
    pub fn data_plane(&self) -> Arc<dyn evenkeel_wire::agent::Agent> {
        self.engine.agent()
    }

    pub fn watch_health(&self, health: &Arc<Health>, data_dir: &Path) -> Result<(), Failure> {
        let agent = self.engine.agent();
        let ask_plane = move || match agent.call(Command::Report) {
            Reply::Failed(failed) => Err(failed.message),
            _ => Ok(()),
        };
        health::watch(health, data_dir, &self.is_over, ask_plane).map_err(failed)
    }

    /// Records whether another node runs the control plane.
    pub fn set_follows(&self, follows: bool) {
        self.follows.store(follows, Ordering::Release);
    }

    /// Has a thread ask the store whether this process is fenced. A process that slept does not
    /// notice that otherwise before a client makes a request.
    pub fn ask_store(&self) {
        self.confirmation.wake();
    }

    /// Publishes in etcd that this node is about to stop, on a separate thread.
    pub fn announce_leaving(&mut self, inbox: &Inbox) {
        let presence = Arc::clone(&self.opened.presence);
        let to = inbox.clone();
        let leave = move || {
            if let Err(error) = presence.leave() {
                tracing::warn!(%error, "the other nodes do not know that this one stops");
            }
            drop(presence);
            to.send(Note::Event(Event::LeavingAnnounced));
        };
        match std::thread::Builder::new().name("member-leave".to_owned()).spawn(leave) {
            Ok(thread) => self.leaves = Some(thread),
            Err(error) => {
                tracing::warn!(%error, "the other nodes do not know that this one stops");
                inbox.send(Note::Event(Event::LeavingAnnounced));
            }
        }
    }

    /// Creates this node's candidacy for the leadership.
    pub fn election(&self, cluster: &Cluster) -> Election {
        let candidate = Leader {
            node: cluster.node.clone(),
            incarnation: format!("{:032x}", self.incarnation),
            address: reachable(self.addresses.api, cluster.listen[0]).to_string(),
        };
        let Kv { client, keys } = self.joined.kv.clone();
        Election::new(client, keys, self.joined.id, candidate)
    }

    /// Returns the audit of this node.
    pub fn records(&self) -> Arc<Records> {
        Arc::clone(&self.records)
    }

    /// Returns the parts of the cluster that the fleet needs while this node leads.
    pub fn around(&self, cluster: &Cluster, leadership: &Leadership) -> Around {
        Around {
            kv: self.joined.kv.clone(),
            nodes: self.opened.nodes.clone(),
            homes: homes::Writer::new(self.joined.kv.keys.clone(), leadership.created()),
            leadership: leadership.clone(),
            pool: Arc::clone(&self.opened.pool),
            here: self.joined.here,
            cluster: self.joined.id,
            secret: self.joined.secret.clone(),
            upkeep: Arc::clone(&self.upkeep),
            // The lower half is random as well.
            incarnation: self.incarnation as u64,
            tls: cluster.tls.clone(),
        }
    }

    /// Closes the data plane and the store, and then gives the node's name up.
    pub fn close(self) {
        self.is_over.store(true, Ordering::Release);
        let Self { nbd_tls, front, agent, engine, records, leaves, opened, upkeep, .. } = self;
        let Opened { nodes, homes, pool, presence, _folder, .. } = opened;
        nbd_tls.close_doors();
        // Connections over TLS end with those of the front.
        drop((front, nbd_tls));
        drop((agent, self.confirmation));
        engine.shutdown();
        // The last records, before another process may own the data folder.
        drop(records);
        if leaves.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("the thread that announces the end of this node panicked");
        }
        drop((nodes, homes));
        await_other_owners(&pool);
        drop(pool);
        drop((presence, upkeep));
    }
}

impl Opened {
    fn open(
        config: &Config,
        cluster: &Cluster,
        joined: &Joined,
        incarnation: u128,
    ) -> Result<Self, Failure> {
        let Joined { kv, id, .. } = joined;
        let inst = unreachable_yet(incarnation);
        // Before the store is opened, which fences every earlier process of this name.
        let presence = Presence::start(kv.clone(), *id, &cluster.node, inst).map_err(failed)?;
        let presence = Arc::new(presence);
        let nodes = Nodes::start(kv.clone(), nodes::PREFIX, nodes::read).map_err(failed)?;
        let homes = Mirror::start(kv.clone(), homes::PREFIX, homes::read).map_err(failed)?;
        let leader = Mirror::start(kv.clone(), LEADER, |_, _| Some(())).map_err(failed)?;
        let name = cluster.name.clone();
        let node = cluster.node.clone();
        let seat = Some(Seat::Member { cluster: name, number: *id, node });
        let options = StoreOptions { seat, ..config.store_options.clone() };
        let (pool, folder) = server::open_pool(&config.store, &options, &config.data_dir)?;
        // The store creates the folder, and refuses an occupied one.
        shared::keep_id(&config.data_dir, *id)?;
        shared::credentials(kv, &config.data_dir)?;
        let settings = settings::published(config)?;
        Ok(Self { nodes, homes, leader, pool, presence, settings, _folder: folder })
    }
}

/// Returns when no other thread of this process uses the pool: a node that joins again opens it
/// anew, and the data folder has one owner.
fn await_other_owners(pool: &Arc<dyn Pool>) {
    let deadline = Deadline::after(OWNERS_MAX);
    while Arc::strong_count(pool) > 1 {
        if !deadline.pause(OWNERS_LOOK) {
            tracing::warn!(seconds = OWNERS_MAX.as_secs(), "the store is still in use");
            return;
        }
    }
}

/// Returns the entry of a process that has its node's name but serves nothing yet.
fn unreachable_yet(incarnation: u128) -> Inst {
    Inst {
        incarnation: format!("{incarnation:032x}"),
        store: String::new(),
        agent: NOWHERE,
        relay: NOWHERE,
        api: NOWHERE,
        nbd: Vec::new(),
        is_leaving: true,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        settings: BTreeMap::new(),
    }
}

/// Starts the thread that asks the store when it is woken. It ends with the confirmation. A store
/// that does not answer blocks it.
fn ask_when_woken(pool: &Arc<dyn Pool>, inbox: &Inbox) -> Result<Arc<Confirmation>, Failure> {
    let (wake, woken) = sync_channel(1);
    let confirmation = Arc::new(Confirmation::new(wake));
    let pool = Arc::downgrade(pool);
    let to = inbox.clone();
    let of_thread = Arc::downgrade(&confirmation);
    let work = move || {
        while woken.recv().is_ok() {
            let Some((pool, confirmation)) = pool.upgrade().zip(of_thread.upgrade()) else {
                return;
            };
            let question = confirmation.door().newest();
            let looked = pool.look();
            // A node that closes waits for the last owner of the pool.
            drop(pool);
            match looked {
                Ok(()) => confirmation.door().confirm(question),
                Err(error) => {
                    tracing::debug!(%error, "whether this process is fenced is not known");
                    // Clients may wait for the answer.
                    clock::pause(ASK_AGAIN);
                    confirmation.wake();
                }
            }
            to.send(Note::Event(Event::StoreAnswered));
        }
    };
    let thread = std::thread::Builder::new().name("member-fence".to_owned());
    thread.spawn(work).map_err(failed)?;
    Ok(confirmation)
}

fn agent_config(
    config: &Config,
    cluster: &Cluster,
    joined: &Joined,
    incarnation: u128,
) -> ServerConfig {
    let kv = joined.kv.clone();
    let confirm = move |leader: AgentLeader, generation: LeaderGeneration| {
        shared::confirm(&kv, leader.node, generation.0)
    };
    ServerConfig {
        listen: cluster.listen[0],
        cluster: joined.id,
        secret: joined.secret.clone(),
        confirm: Confirm::new(confirm),
        node: joined.here,
        incarnation,
        generation_file: config.data_dir.join(GENERATION_FILE),
        tls: cluster.tls.clone(),
        timing: Timing::default(),
    }
}

fn front_config(
    config: &Config,
    cluster: &Cluster,
    joined: &Joined,
    (directions, observer): (Arc<Directions>, &Observer),
) -> FrontConfig {
    FrontConfig {
        clients: config.nbd_listen.clone(),
        nodes: cluster.listen[1],
        node: joined.here,
        cluster: joined.id,
        secret: joined.secret.clone(),
        tls: cluster.tls.clone(),
        homes: Arc::clone(&directions) as Arc<_>,
        local: directions,
        observer: Arc::clone(observer),
        timing: relay::Timing::default(),
        bounds: relay::Bounds::default(),
    }
}

/// Returns the address at which other nodes reach `address`: an unspecified one is replaced by that
/// between nodes.
pub fn reachable(mut address: SocketAddr, between: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(between.ip());
    }
    address
}
