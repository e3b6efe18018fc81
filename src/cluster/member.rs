//! The life of a node: it joins, serves the volumes that it is told to, is elected now and then to
//! run the control plane, and hands its volumes over before it stops. A node that was fenced ends
//! what it served and joins again as another process.

use super::around::Around;
use super::confirmation::Confirmation;
use super::directions::Directions;
use super::history::TakingOver;
use super::{Cluster, shared};
use crate::api_relay::ApiRelay;
use crate::clock::Deadline;
use crate::endpoint::Noted;
use crate::message::{Exit, Failure, failed};
use crate::server::{self, Addresses, Config};
use crate::store_options::StoreOptions;
use evenkeel_control::cluster::fleet::Fleet;
use evenkeel_control::cluster::homes;
use evenkeel_control::cluster::kv::Kv;
use evenkeel_control::cluster::mirror::Mirror;
use evenkeel_control::cluster::nodes::{self, Inst, Nodes, Presence, members};
use evenkeel_control::journal::etcd::EtcdJournal;
use evenkeel_control::journal::etcd::client::EtcdError;
use evenkeel_control::journal::etcd::election::{Election, Leader, Leadership, Standing};
use evenkeel_control::journal::etcd::upkeep::Upkeep;
use evenkeel_control::{Leading, Timeouts};
use evenkeel_core::fencing::NodeId;
use evenkeel_engine::Engine;
use evenkeel_link::{AgentServer, Confirm, ServerConfig, Timing};
use evenkeel_relay::{self as relay, Front, FrontConfig};
use evenkeel_store::Pool;
use evenkeel_store::rbd::Seat;
use evenkeel_wire::agent::proof::ClusterSecret;
use evenkeel_wire::agent::session::{Leader as AgentLeader, LeaderGeneration};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// Time between two looks at who leads, and at whether this node still may serve.
const LOOK: Duration = Duration::from_millis(100);
/// Looks between two questions to the store, if no client comes: a second.
const ASK_LOOKS: u32 = 10;
/// How long a node that cannot run the control plane leaves that to others.
const LEAD_AGAIN: Duration = Duration::from_secs(2);
/// How long a leader goes on that has not heard of its lease: others lead by then.
const UNHELD_MAX: Duration = Duration::from_secs(6);
/// How long a node that is to stop waits for its volumes to move to others.
const DRAIN_MAX: Duration = Duration::from_secs(60);
/// How long a node that is to stop may take once it has handed over what it could. Its pool waits
/// for 20 s itself.
const FORCE_AFTER: Duration = Duration::from_secs(45);
/// How long the last node that stops closes volumes.
const CLOSE_MAX: Duration = Duration::from_secs(30);
/// The file with the highest generation of leaders that was heard.
const GENERATION_FILE: &str = "agent-generation";
/// Where a process is that cannot be reached yet.
const NOWHERE: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(std::net::Ipv4Addr::LOCALHOST), 0);

/// Where the API of the node is that leads; `None` if none does, or this one.
pub type LeaderAddress = Arc<Mutex<Option<SocketAddr>>>;

/// Why a life ends.
#[derive(Clone, PartialEq, Eq, Debug)]
enum End {
    /// The process is to stop. Whether no other node goes on with its volumes.
    Stop { is_last: bool },
    /// The store has fenced this process.
    Fenced,
    /// A part of the data plane has failed.
    Failed(String),
}

/// Serves as a node until `is_stopped`.
pub fn run(
    config: &Config,
    cluster: &Cluster,
    is_stopped: &AtomicBool,
    ready: impl FnOnce(&Addresses),
) -> Result<(), Failure> {
    check_reach(config.listen, cluster.listen[0])?;
    // Free ports are looked for once: a node that joins again has the same ones.
    let nbd_listen: Result<_, _> = config.nbd_listen.iter().copied().map(server::free).collect();
    let listen = server::free(config.listen)?;
    let config = &Config { listen, nbd_listen: nbd_listen?, ..config.clone() };
    let mut ready = Some(ready);
    while !is_stopped.load(Ordering::Acquire) {
        match life(config, cluster, is_stopped, &mut ready)? {
            End::Stop { .. } => return Ok(()),
            End::Failed(what) => return Err(server::has_failed(&what)),
            End::Fenced => tracing::warn!(
                "the Ceph cluster has fenced this node: its volumes are served elsewhere; it \
                 joins again"
            ),
        }
    }
    Ok(())
}

/// Ends the process if it still runs some time from now: what waits for a Ceph cluster that does
/// not answer, in its library, cannot be called back. The next start fences this one, as does
/// whoever takes its volumes.
fn end_by_force() {
    let wait = || {
        let deadline = Deadline::after(FORCE_AFTER);
        while deadline.pause(LOOK) {}
        tracing::error!(
            seconds = FORCE_AFTER.as_secs(),
            "the Ceph cluster does not answer, and volumes cannot be closed: this process ends \
             without that"
        );
        std::process::exit(1);
    };
    if let Err(error) = std::thread::Builder::new().name("member-force".to_owned()).spawn(wait) {
        tracing::warn!(%error, "no thread that ends this process if Ceph does not answer");
    }
}

/// The other nodes relay API requests to the one that leads: they must reach it.
fn check_reach(api: SocketAddr, between: SocketAddr) -> Result<(), Failure> {
    if !api.ip().is_loopback() || between.ip().is_loopback() {
        return Ok(());
    }
    let text = "listen: nodes on other machines do not reach the API at";
    let hint = format!("name an address of this machine, such as --listen {}:8650", between.ip());
    Err(Failure::new(format!("{text} {api}")).hint(hint).exit(Exit::Usage))
}

/// A node while it lives.
struct Life<'a> {
    config: &'a Config,
    cluster: &'a Cluster,
    is_stopped: &'a AtomicBool,
    kv: Kv,
    /// The cluster's number.
    id: u128,
    /// The secret that its nodes prove to each other that they know.
    secret: ClusterSecret,
    here: NodeId,
    incarnation: u128,
    nodes: Nodes,
    homes: Mirror<NodeId>,
    pool: Arc<dyn Pool>,
    presence: Presence,
    upkeep: Arc<Upkeep>,
    /// Whether the storage lets this process serve.
    confirmation: Arc<Confirmation>,
    /// Whether another node runs the control plane.
    follows: Arc<AtomicBool>,
    /// Why it ends.
    end: Mutex<Option<End>>,
}

fn life(
    config: &Config,
    cluster: &Cluster,
    is_stopped: &AtomicBool,
    ready: &mut Option<impl FnOnce(&Addresses)>,
) -> Result<End, Failure> {
    let kv = cluster.kv()?;
    let join = || {
        let id = shared::id(&kv, &config.data_dir)?;
        let secret = shared::secret(&kv)?;
        Ok((id, secret, NodeId(nodes::join(&kv, &cluster.node)?.number)))
    };
    let Some((id, secret, here)) = joined(join, is_stopped)? else {
        return Ok(End::Stop { is_last: false });
    };
    let incarnation = shared::random_number()?;
    let inst = unreachable_yet(incarnation);
    // Before the store is opened, which fences every earlier process of this name.
    let presence = Presence::start(kv.clone(), id, &cluster.node, inst).map_err(failed)?;
    let nodes = Nodes::start(kv.clone(), nodes::PREFIX, nodes::read).map_err(failed)?;
    let homes = Mirror::start(kv.clone(), homes::PREFIX, homes::read).map_err(failed)?;
    let (name, node) = (cluster.name.clone(), cluster.node.clone());
    let seat = Some(Seat::Member { cluster: name, number: id, node });
    let options = StoreOptions { seat, ..config.store_options.clone() };
    let (pool, folder) = server::open_pool(&config.store, &options, &config.data_dir)?;
    // The store makes the folder, and refuses one that is occupied.
    shared::keep_id(&config.data_dir, id)?;
    shared::credentials(&kv, &config.data_dir)?;
    let (follows, end): (Arc<AtomicBool>, _) = Default::default();
    let acts = Arc::clone(&follows);
    let acts = move || !acts.load(Ordering::Acquire);
    let upkeep = Upkeep::start(kv.client.clone(), here.0, acts).map_err(failed)?;
    let upkeep = Arc::new(upkeep);
    let life = Life {
        config,
        cluster,
        is_stopped,
        kv,
        id,
        secret,
        here,
        incarnation,
        nodes,
        homes,
        pool,
        presence,
        upkeep,
        confirmation: Arc::default(),
        follows,
        end,
    };
    let ended = life.serve(ready);
    drop((life, folder));
    ended
}

/// What `join` returns; waits for etcd. `None` if the process is to stop before.
fn joined<T>(
    join: impl Fn() -> Result<T, EtcdError>,
    is_stopped: &AtomicBool,
) -> Result<Option<T>, Failure> {
    let mut told = false;
    while !is_stopped.load(Ordering::Acquire) {
        match join() {
            Ok(joined) => return Ok(Some(joined)),
            Err(EtcdError::Unavailable { text, .. }) => {
                if !std::mem::replace(&mut told, true) {
                    tracing::warn!("waits until etcd answers: {text}");
                }
            }
            Err(error) => return Err(failed(error)),
        }
        Deadline::after(LOOK).pause(LOOK);
    }
    Ok(None)
}

/// A process that holds its node's name, and serves nothing yet.
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
    }
}

impl Life<'_> {
    fn serve(&self, ready: &mut Option<impl FnOnce(&Addresses)>) -> Result<End, Failure> {
        let calibration =
            shared::calibration(&self.kv, self.here, self.config, &*self.pool, self.is_stopped)?;
        let local = Config { nbd_listen: Vec::new(), ..self.config.clone() };
        let engine = server::data_plane(&local, Arc::clone(&self.pool), calibration)?;
        server::share_with_nodes(&engine);
        let agent = AgentServer::start(self.agent_config(), engine.agent()).map_err(failed)?;
        let front = Front::start(self.front_config(&engine)).map_err(failed)?;
        let api = self.config.listen;
        let addresses = Addresses { api, nbd: front.client_addresses() };
        engine.open_doors();
        server::warn_of_exposure(&addresses.nbd, api);
        let inst = Inst {
            store: self.pool.instance().unwrap_or_default(),
            agent: agent.address(),
            relay: front.node_address(),
            api: reachable(api, self.cluster.listen[0]),
            nbd: addresses.nbd.clone(),
            is_leaving: false,
            ..unreachable_yet(self.incarnation)
        };
        if let Err(error) = self.presence.update(inst) {
            tracing::warn!(%error, "the other nodes hear of this one when etcd answers");
        }
        let failure: Arc<Mutex<Option<String>>> = Arc::default();
        let told = Arc::clone(&failure);
        engine.when_failed(move |what| *lock(&told) = Some(what));
        let is_over: Arc<AtomicBool> = Arc::default();
        self.ask_the_store(&is_over)?;
        let ended = std::thread::scope(|scope| {
            let watch = || self.watch(&is_over, &failure);
            let thread = std::thread::Builder::new().name("member-watch".to_owned());
            thread.spawn_scoped(scope, watch).map_err(failed)?;
            let ended = self.stand(&addresses, ready);
            is_over.store(true, Ordering::Release);
            ended
        });
        drop((front, agent));
        engine.shutdown();
        ended
    }

    fn agent_config(&self) -> ServerConfig {
        let kv = self.kv.clone();
        let confirm = move |leader: AgentLeader, generation: LeaderGeneration| {
            shared::confirm(&kv, leader.node, generation.0)
        };
        ServerConfig {
            listen: self.cluster.listen[0],
            cluster: self.id,
            secret: self.secret.clone(),
            confirm: Confirm::new(confirm),
            node: self.here,
            incarnation: self.incarnation,
            generation_file: self.config.data_dir.join(GENERATION_FILE),
            tls: self.cluster.tls.clone(),
            timing: Timing::default(),
        }
    }

    fn front_config(&self, engine: &Engine) -> FrontConfig {
        let directions = Arc::new(Directions {
            homes: self.homes.clone(),
            nodes: self.nodes.clone(),
            here: self.here,
            entrance: engine.entrance(),
            confirmation: Arc::clone(&self.confirmation),
        });
        FrontConfig {
            clients: self.config.nbd_listen.clone(),
            nodes: self.cluster.listen[1],
            node: self.here,
            cluster: self.id,
            secret: self.secret.clone(),
            tls: self.cluster.tls.clone(),
            homes: Arc::clone(&directions) as Arc<_>,
            local: directions,
            timing: relay::Timing::default(),
            bounds: relay::Bounds::default(),
        }
    }

    fn end(&self) -> Option<End> {
        lock(&self.end).clone()
    }

    /// Looks whether this node may go on, until it is over. A node that is to stop hands its
    /// volumes over first.
    fn watch(&self, is_over: &AtomicBool, failure: &Mutex<Option<String>>) {
        let mut drained_by: Option<Deadline> = None;
        let mut is_late = false;
        while !is_over.load(Ordering::Acquire) {
            if self.pool.is_taken_over() {
                *lock(&self.end) = Some(End::Fenced);
                return;
            }
            if let Some(what) = lock(failure).take() {
                *lock(&self.end) = Some(End::Failed(what));
                return;
            }
            if self.is_stopped.load(Ordering::Acquire) {
                drained_by.get_or_insert_with(|| {
                    if let Err(error) = self.presence.leave() {
                        tracing::warn!(%error, "the other nodes do not know that this one stops");
                    }
                    Deadline::after(DRAIN_MAX)
                });
                let is_last = !self.has_others();
                // All stop: whoever runs the control plane closes what the others have, too.
                let waits = self.follows.load(Ordering::Acquire) && !is_late;
                if (is_last && !waits) || self.is_empty() || is_late {
                    end_by_force();
                    *lock(&self.end) = Some(End::Stop { is_last });
                    return;
                }
            }
            is_late = !drained_by.unwrap_or_else(|| Deadline::after(DRAIN_MAX)).pause(LOOK);
        }
    }

    /// Asks the store again and again whether this process is fenced: one that slept does not hear
    /// of it otherwise before a client asks for something. For a new client it is asked at once.
    /// Nobody waits for the thread: a store that does not answer holds it up.
    fn ask_the_store(&self, is_over: &Arc<AtomicBool>) -> Result<(), Failure> {
        let (pool, is_over) = (Arc::downgrade(&self.pool), Arc::clone(is_over));
        let confirmation = Arc::clone(&self.confirmation);
        let look = move || {
            while let Some(pool) = pool.upgrade().filter(|pool| !pool.is_taken_over()) {
                if is_over.load(Ordering::Acquire) {
                    return;
                }
                let question = confirmation.newest();
                let asked = pool.look();
                drop(pool);
                if let Err(error) = asked {
                    tracing::debug!(%error, "whether this process is fenced is not known");
                    Deadline::after(LOOK).pause(LOOK);
                    continue;
                }
                confirmation.confirm(question);
                let is_asked =
                    |_| is_over.load(Ordering::Acquire) || confirmation.wait(question, LOOK);
                let _ = (0..ASK_LOOKS).any(is_asked);
            }
        };
        let thread = std::thread::Builder::new().name("member-fence".to_owned());
        thread.spawn(look).map_err(failed).map(drop)
    }

    /// Whether another node may have volumes.
    fn has_others(&self) -> bool {
        let all = members(&self.nodes.values());
        all.iter().any(|member| member.number != self.here && member.takes_volumes())
    }

    /// Whether no volume is at home here.
    fn is_empty(&self) -> bool {
        self.homes.values().values().all(|home| *home != self.here)
    }

    /// Follows whoever leads, or leads, until the end.
    fn stand(
        &self,
        addresses: &Addresses,
        ready: &mut Option<impl FnOnce(&Addresses)>,
    ) -> Result<End, Failure> {
        let leader = LeaderAddress::default();
        let noted = Noted::new(&self.config.data_dir, addresses.api);
        let _noted = noted.inspect_err(|error| {
            tracing::warn!(%error, "other verbs need --endpoint http://{}", addresses.api);
        });
        let election = self.election(addresses);
        let (mut relay, mut history, mut told) = (None, None, String::new());
        loop {
            if let Some(end) = self.end() {
                return Ok(end);
            }
            let mut following = None;
            match self.standing(&election) {
                Ok(None) => self.follows.store(false, Ordering::Release),
                Ok(Some(Standing::Leads(leadership))) => {
                    self.follows.store(false, Ordering::Release);
                    // They let go of the address and of the data folder.
                    drop((relay.take(), history.take()));
                    let greet = ready.take();
                    let greet = || _ = greet.map(|ready| ready(addresses));
                    if let Err(failure) = self.lead(addresses, &leadership, greet) {
                        tracing::warn!("cannot run the control plane: {}", failure.message);
                        // Another node may be able to.
                        let later = Deadline::after(LEAD_AGAIN);
                        while self.end().is_none() && later.pause(LOOK) {}
                    }
                    continue;
                }
                Ok(Some(Standing::Follows(Leader { node, address, .. }))) => {
                    let own = [addresses.api, reachable(addresses.api, self.cluster.listen[0])];
                    let address_of = address.parse().ok();
                    // What is left of an earlier process here leads nowhere.
                    following = address_of.filter(|leader| !own.contains(leader));
                    self.follows.store(following.is_some(), Ordering::Release);
                    let text = format!("{node} runs the control plane, its API is at {address}");
                    tell(&mut told, text);
                }
                // Volumes are served as before.
                Err(error) => {
                    // Nothing leads while etcd is full, so this node may clear it.
                    self.follows.fetch_and(!error.is_no_space(), Ordering::AcqRel);
                    tell(&mut told, format!("who runs the control plane is not known: {error}"));
                }
            }
            *lock(&leader) = following;
            if relay.is_none() {
                match relay_to(&leader, addresses.api) {
                    Ok(started) => {
                        relay = Some(started);
                        ready.take().into_iter().for_each(|ready| ready(addresses));
                    }
                    Err(failure) => tell(&mut told, failure.message),
                }
            }
            if following.is_some() {
                history.get_or_insert_with(|| TakingOver::start(self.config, Arc::clone(&leader)));
            }
            Deadline::after(LOOK).pause(LOOK);
        }
    }

    fn election(&self, addresses: &Addresses) -> Election {
        let candidate = Leader {
            node: self.cluster.node.clone(),
            incarnation: format!("{:032x}", self.incarnation),
            address: reachable(addresses.api, self.cluster.listen[0]).to_string(),
        };
        Election::new(self.kv.client.clone(), self.kv.keys.clone(), self.id, candidate)
    }

    /// Who leads; this process if nobody else does. A process that followed, and stops as the last
    /// ones do, does not begin to lead: then it is `None` that leads.
    fn standing(&self, election: &Election) -> Result<Option<Standing>, EtcdError> {
        let stops = self.is_stopped.load(Ordering::Acquire) && !self.has_others();
        match stops && self.follows.load(Ordering::Acquire) {
            true => Ok(election.leader()?.map(Standing::Follows)),
            false => election.campaign().map(Some),
        }
    }

    /// Runs the control plane for as long as this process leads.
    fn lead(
        &self,
        addresses: &Addresses,
        leadership: &Leadership,
        greet: impl FnOnce(),
    ) -> Result<(), Failure> {
        let around = Around {
            kv: self.kv.clone(),
            nodes: self.nodes.clone(),
            leadership: leadership.clone(),
            pool: Arc::clone(&self.pool),
            here: self.here,
            cluster: self.id,
            secret: self.secret.clone(),
            upkeep: Arc::clone(&self.upkeep),
            // The lower half is as random.
            incarnation: self.incarnation as u64,
            tls: self.cluster.tls.clone(),
        };
        // What another cluster stores would be unowned bytes to this one.
        let owned = self.pool.check_owner().map_err(failed);
        let homes = match owned.and_then(|()| homes::load(&self.kv).map_err(failed)) {
            Ok(homes) => homes,
            Err(failure) => {
                let _ = leadership.resign();
                return Err(failure);
            }
        };
        let fleet = Arc::new(Fleet::new(Arc::new(around), homes));
        let (client, keys) = (self.kv.client.clone(), self.kv.keys.clone());
        let journal = Box::new(EtcdJournal::lead(client, keys, leadership.clone()));
        let config = Config { nbd_unix: None, ..self.config.clone() };
        let control = server::control_config(&config, &addresses.nbd)?;
        let (is_over, has_ended) = (AtomicBool::new(false), AtomicBool::new(false));
        let ends = async {
            while !is_over.load(Ordering::Acquire) {
                tokio::time::sleep(LOOK).await;
            }
        };
        let is_last = || self.end() == Some(End::Stop { is_last: true });
        let leading = Leading { fleet: Arc::clone(&fleet), journal };
        let result = std::thread::scope(|scope| {
            let watch = || self.watch_term(leadership, &fleet, &is_over, &has_ended);
            let thread = std::thread::Builder::new().name("member-term".to_owned());
            thread.spawn_scoped(scope, watch).map_err(failed)?;
            let run = evenkeel_control::run_leading;
            let result = run(control, leading, |_| greet(), ends, is_last).map_err(failed);
            has_ended.store(true, Ordering::Release);
            result
        });
        if leadership.is_lost() {
            // What it could not store is decided otherwise by now.
            if let Err(error) = result {
                tracing::warn!("this node leads no more: {}", error.message);
            }
            return Ok(());
        }
        if leadership.must_reload() {
            tracing::warn!(
                "etcd may have other data than this leader knows: it resigns, and the next leader \
                 reads everything again"
            );
        }
        // Another one need not wait for the end of the lease.
        if let Err(error) = leadership.resign() {
            tracing::warn!(%error, "another node leads when the lease ends");
        }
        match self.end() {
            Some(End::Fenced | End::Failed(_)) => Ok(()),
            _ => result,
        }
    }

    /// Ends the control plane when this process leads no more, or is to stop. What waits for a node
    /// then, or for a store that does not answer, waits no longer.
    fn watch_term(
        &self,
        leadership: &Leadership,
        fleet: &Fleet,
        is_over: &AtomicBool,
        has_ended: &AtomicBool,
    ) {
        let mut unheld = Duration::ZERO;
        let is_over_by_itself = || leadership.is_lost() || leadership.must_reload();
        while self.end().is_none() && !is_over_by_itself() && unheld < UNHELD_MAX {
            Deadline::after(LOOK).pause(LOOK);
            unheld = if leadership.is_held() { Duration::ZERO } else { unheld + LOOK };
            if has_ended.load(Ordering::Acquire) {
                return;
            }
        }
        is_over.store(true, Ordering::Release);
        // The last one closes all volumes, and stores what they have left.
        let left = match self.end() {
            Some(End::Stop { is_last: true }) => CLOSE_MAX,
            _ => Duration::ZERO,
        };
        let deadline = Deadline::after(left);
        while !has_ended.load(Ordering::Acquire) && deadline.pause(LOOK) {}
        fleet.close();
    }
}

/// Answers the API at an address by the node that leads.
fn relay_to(leader: &LeaderAddress, api: SocketAddr) -> Result<ApiRelay, Failure> {
    let leader = Arc::clone(leader);
    ApiRelay::start(api, Arc::new(move || *lock(&leader)), Timeouts::default())
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Where other nodes reach an address: one of all addresses is named by that between nodes.
fn reachable(mut address: SocketAddr, between: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        address.set_ip(between.ip());
    }
    address
}

/// Logs what has changed.
fn tell(told: &mut String, text: String) {
    if *told != text {
        tracing::info!("{text}");
        *told = text;
    }
}
