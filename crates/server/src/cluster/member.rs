//! The shell around a node's membership: it owns the threads, etcd and the clock, executes the
//! actions of [`Membership`] and reports their outcomes.
//!
//! One thread runs [`run`]. It sleeps until another one has put a report into the [`Inbox`], the
//! process is to stop, or the membership's deadline has come.

use super::history::TakingOver;
use super::serving::{Joined, Serving, reachable};
use super::term::Term;
use super::{Cluster, shared};
use crate::server;
use crate::transport::Transport;
use crate::watchdog::{Parts, Watchdog};
use crate::{Addresses, Config};
use evenkeel_client::output::{Exit, Failure, failed};
use evenkeel_cluster::api_relay::{self, ApiRelay};
use evenkeel_cluster::etcd::client::EtcdError;
use evenkeel_cluster::etcd::election::{Election, Leader, Leadership, Standing};
use evenkeel_cluster::health::Health;
use evenkeel_cluster::inbox::{Elected, Inbox, Note};
use evenkeel_cluster::kv::Kv;
use evenkeel_cluster::membership::{
    Action, Answer, Asked, Event, Exit as Ended, JoinAnswer, Lease, Level, Membership, Question,
};
use evenkeel_cluster::nodes;
use evenkeel_control::Timeouts;
use evenkeel_core::fencing::NodeId;
use evenkeel_os::clock;
use evenkeel_tls::server::ServerTls;
use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;
use tokio::runtime::Runtime;

/// Maximum time for a node to stop after it has handed over its volumes as far as possible. Its
/// pool waits for 20 s itself.
const FORCE_AFTER: Duration = Duration::from_secs(45);
/// Maximum number of queued commands to the thread of the election: a question, and a leadership to
/// resign.
const ELECTION_COMMANDS: usize = 4;

/// Address of the leader's API; `None` if no node leads, or this one.
pub type LeaderAddress = Arc<Mutex<Option<SocketAddr>>>;

/// Serves as a node until `shutdown` resolves. `is_stopped` becomes true before.
pub fn run(
    config: &Config,
    (cluster, tls): (&Cluster, Option<Arc<ServerTls>>),
    is_stopped: &AtomicBool,
    ready: impl FnOnce(&Addresses),
    shutdown: impl Future<Output = ()>,
) -> Result<(), Failure> {
    check_reach(config.listen, cluster.listen[0])?;
    // Free ports are chosen once, so that a node that joins again has the same ones.
    let config = &with_ports(config)?;
    if let Some(tls) = &tls {
        check_name(tls, config.listen, cluster)?;
    }
    let _refresher = tls.as_ref().map(|tls| config.watch(tls)).transpose()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
    let runtime = runtime.map_err(failed)?;
    let mut shutdown = std::pin::pin!(shutdown);
    let mut is_stopping = false;
    let kv = cluster.kv()?;
    let watchdog = Watchdog::start()?;
    let mut shell = Shell::new((config, cluster, tls), is_stopped, kv, ready, watchdog);
    let (mut membership, first) = Membership::new();
    let mut ended = shell.execute(first, &mut membership);
    loop {
        if let Some(ended) = ended {
            return shell.outcome(ended);
        }
        while let (None, Some(note)) = (&ended, shell.inbox.take()) {
            ended = shell.take(note, &mut membership);
        }
        if ended.is_some() {
            continue;
        }
        let stops = Some(shutdown.as_mut()).filter(|_| !is_stopping);
        let event = if sleep(&runtime, &shell.inbox, membership.deadline(), stops) {
            is_stopping = true;
            Event::StopRequested
        } else {
            Event::Time
        };
        ended = shell.handle(event, &mut membership);
    }
}

/// Sleeps until there is an event. Returns whether the process is to stop.
fn sleep(
    runtime: &Runtime,
    inbox: &Inbox,
    deadline: Option<Duration>,
    stops: Option<Pin<&mut impl Future<Output = ()>>>,
) -> bool {
    let left = deadline.map(|deadline| deadline.saturating_sub(clock::since_boot()));
    let due = async move {
        match left {
            Some(left) => tokio::time::sleep(left).await,
            None => std::future::pending().await,
        }
    };
    let stop = async move {
        match stops {
            Some(stops) => stops.await,
            None => std::future::pending().await,
        }
    };
    runtime.block_on(async {
        tokio::select! {
            biased;
            () = stop => true,
            () = inbox.wait() => false,
            () = due => false,
        }
    })
}

/// Checks that the other nodes reach the API, since they relay requests to the leader's.
fn check_reach(api: SocketAddr, between: SocketAddr) -> Result<(), Failure> {
    if !api.ip().is_loopback() || between.ip().is_loopback() {
        return Ok(());
    }
    let text = "listen: nodes on other machines do not reach the API at";
    let hint = format!("name an address of this machine, such as --listen {}:8650", between.ip());
    Err(Failure::new(format!("{text} {api}")).hint(hint).exit(Exit::Usage))
}

/// Returns the configuration with free ports in place of port 0.
fn with_ports(config: &Config) -> Result<Config, Failure> {
    let free = |listed: &[SocketAddr]| listed.iter().copied().map(server::free).collect();
    let nbd_listen: Result<_, _> = free(&config.nbd_listen);
    let nbd_tls: Result<_, _> = free(&config.transport.nbd_listen);
    let transport = Transport { nbd_listen: nbd_tls?, ..config.transport.clone() };
    let listen = server::free(config.listen)?;
    Ok(Config { listen, nbd_listen: nbd_listen?, transport, ..config.clone() })
}

/// Checks that other nodes accept the certificate of the API at the address that they connect to.
fn check_name(tls: &ServerTls, api: SocketAddr, cluster: &Cluster) -> Result<(), Failure> {
    let address = reachable(api, cluster.listen[0]).ip();
    if tls.is_for(address) {
        return Ok(());
    }
    let file = tls.files().certificate.display();
    let text = format!(
        "tls-cert: other nodes of the cluster reach the API at {address}, and the certificate \
         {file} is not for this address"
    );
    let hint = format!("add it: evenkeel tls server --name {address}");
    Err(Failure::new(text).hint(hint).exit(Exit::Usage))
}

/// Executes the actions of a membership.
struct Shell<'a, R> {
    config: &'a Config,
    cluster: &'a Cluster,
    /// TLS of clients, if there is any.
    tls: Option<Arc<ServerTls>>,
    is_stopped: &'a AtomicBool,
    kv: Kv,
    ready: Option<R>,
    inbox: Inbox,
    /// The result of joining, until the node serves.
    joined: Option<Joined>,
    /// Error of joining or starting.
    failure: Option<Failure>,
    leader: LeaderAddress,
    /// State behind the answers of `/healthz` and `/readyz` while another node leads.
    health: Arc<Health>,
    relay: Option<ApiRelay>,
    history: Option<TakingOver>,
    /// Leaderships that were won and not resigned, by question.
    won: BTreeMap<Question, Leadership>,
    term: Option<(Question, Option<Term>)>,
    election: Option<SyncSender<Command>>,
    serving: Option<Serving>,
    watchdog: Watchdog,
}

/// A command to the thread of the election.
enum Command {
    Ask(Question, Asked),
    Resign(Question, Leadership),
}

impl<'a, R: FnOnce(&Addresses)> Shell<'a, R> {
    fn new(
        (config, cluster, tls): (&'a Config, &'a Cluster, Option<Arc<ServerTls>>),
        is_stopped: &'a AtomicBool,
        kv: Kv,
        ready: R,
        watchdog: Watchdog,
    ) -> Self {
        Self {
            config,
            cluster,
            tls,
            is_stopped,
            kv,
            ready: Some(ready),
            inbox: Inbox::default(),
            joined: None,
            failure: None,
            leader: LeaderAddress::default(),
            health: Arc::default(),
            relay: None,
            history: None,
            won: BTreeMap::new(),
            term: None,
            election: None,
            serving: None,
            watchdog,
        }
    }

    fn outcome(&mut self, ended: Ended) -> Result<(), Failure> {
        match ended {
            Ended::Stopped => Ok(()),
            Ended::Failed(what) => Err(server::has_failed(&what)),
            Ended::Refused => {
                let unknown = || Failure::new("the node cannot start");
                Err(self.failure.take().unwrap_or_else(unknown))
            }
        }
    }

    /// Passes an event to the membership. Returns how the process ends, if it does.
    fn handle(&mut self, event: Event, membership: &mut Membership) -> Option<Ended> {
        let actions = membership.handle(event, clock::since_boot());
        self.execute(actions, membership)
    }

    /// Executes actions in their order, and then those that follow from their answers.
    fn execute(&mut self, actions: Vec<Action>, membership: &mut Membership) -> Option<Ended> {
        let mut next = VecDeque::from(actions);
        while let Some(action) = next.pop_front() {
            tracing::debug!(?action, "membership");
            if let Action::Exit(ended) = action {
                return Some(ended);
            }
            if let Some(answer) = self.act(action) {
                next.extend(membership.handle(answer, clock::since_boot()));
            }
        }
        None
    }

    /// Executes an action. Returns its answer if that is there at once.
    fn act(&mut self, action: Action) -> Option<Event> {
        match action {
            Action::Join => return Some(Event::JoinAnswered(self.join())),
            Action::Start => return Some(self.start()),
            Action::Relay => return Some(Event::RelayAnswered(self.relay())),
            Action::Close => return Some(self.close()),
            Action::AskStore => self.serving.as_ref()?.ask_store(),
            Action::Ask(question, asked) => self.command(Command::Ask(question, asked)),
            Action::AnnounceLeaving => self.serving.as_mut()?.announce_leaving(&self.inbox),
            Action::Follow(leader) => self.follow(leader),
            Action::StopRelay => drop((self.relay.take(), self.history.take())),
            Action::SetFollows(follows) => self.serving.as_ref()?.set_follows(follows),
            Action::Lead(question) => self.lead(question),
            Action::EndTerm { question, closes_volumes } => {
                self.term_of(question)?.end(closes_volumes);
            }
            Action::CloseFleet(question) => self.term_of(question)?.close_fleet(),
            Action::Resign(question) => match self.won.remove(&question) {
                Some(leadership) => self.command(Command::Resign(question, leadership)),
                None => return Some(Event::ResignAnswered(question)),
            },
            Action::LimitShutdown => end_by_force(),
            Action::Log(Level::Info, text) => tracing::info!("{text}"),
            Action::Log(Level::Warn, text) => tracing::warn!("{text}"),
            Action::Exit(_) => {}
        }
        None
    }

    /// Processes a report of another thread.
    fn take(&mut self, note: Note, membership: &mut Membership) -> Option<Ended> {
        let event = match note {
            Note::Event(event) => event,
            Note::ClusterChanged => Event::ClusterSeen(self.serving.as_ref()?.seen()),
            Note::Elected(question, elected) => {
                Event::ElectionAnswered(question, self.elected(question, elected))
            }
            Note::LeaseChanged => {
                let (question, _) = self.term.as_ref()?;
                Event::LeaseSeen(*question, self.lease(*question))
            }
            Note::TermEnded(question, result) => {
                let lease = self.lease(question);
                if let Some((_, Some(term))) = self.term.take() {
                    term.join();
                }
                if lease.is_lost {
                    self.won.remove(&question);
                }
                Event::TermEnded(question, lease, result)
            }
            Note::Ready => {
                self.greet();
                return None;
            }
        };
        self.handle(event, membership)
    }

    fn greet(&mut self) {
        if let (Some(serving), Some(ready)) = (&self.serving, self.ready.take()) {
            ready(&serving.addresses);
        }
    }

    fn join(&mut self) -> JoinAnswer {
        match join(&self.kv, self.config, self.cluster) {
            Ok(joined) => {
                self.joined = Some(joined);
                JoinAnswer::Joined
            }
            Err(EtcdError::Unavailable { text, .. }) => JoinAnswer::Unavailable(text),
            Err(error) => {
                self.failure = Some(failed(error));
                JoinAnswer::Refused
            }
        }
    }

    fn start(&mut self) -> Event {
        let started = self.joined.take().map(|joined| self.serve(joined));
        match started {
            Some(Ok(serving)) => {
                let seen = serving.seen();
                let data_plane = Some(serving.data_plane());
                self.watchdog.watch(Parts { data_plane, api: None });
                self.serving = Some(serving);
                Event::StartAnswered(Some(seen))
            }
            refused => {
                self.failure = refused.and_then(Result::err);
                Event::StartAnswered(None)
            }
        }
    }

    fn serve(&mut self, joined: Joined) -> Result<Serving, Failure> {
        self.inbox.forget_news();
        let Self { config, cluster, tls, is_stopped, inbox, .. } = self;
        let serving = Serving::start(config, (cluster, tls.as_ref()), joined, is_stopped, inbox)?;
        serving.watch_health(&self.health, &config.data_dir)?;
        self.election = Some(elector(serving.election(cluster), inbox.clone())?);
        config.note(serving.addresses.api);
        Ok(serving)
    }

    fn command(&self, command: Command) {
        let sent = self.election.as_ref().map(|election| election.try_send(command));
        if !matches!(sent, Some(Ok(()))) {
            tracing::error!("the thread of the election has ended");
        }
    }

    fn elected(&mut self, question: Question, elected: Elected) -> Answer {
        self.health.following.note(Ok(()));
        let heard = elected.as_ref().map(|_| ()).map_err(ToString::to_string);
        self.health.etcd.note(heard);
        match elected {
            Ok(None) => Answer::NoLeader,
            Ok(Some(Standing::Leads(leadership))) => {
                self.won.insert(question, leadership);
                Answer::Leads(self.lease(question))
            }
            Ok(Some(Standing::Follows(Leader { node, address, .. }))) => {
                let api = self.config.listen;
                let own = [api, reachable(api, self.cluster.listen[0])];
                // The leader is an earlier process at an own address, which cannot be reached.
                let api = address.parse().ok().filter(|leader| !own.contains(leader));
                let text = format!("{node} runs the control plane, its API is at {address}");
                Answer::Follows { api, text }
            }
            Err(error) => {
                Answer::Unknown { text: error.to_string(), is_no_space: error.is_no_space() }
            }
        }
    }

    /// Returns the state of a lease. A lease that this process does not have counts as lost.
    fn lease(&self, question: Question) -> Lease {
        let now = clock::since_boot();
        match self.won.get(&question) {
            Some(leadership) => Lease {
                until: now + leadership.left(),
                is_lost: leadership.is_lost(),
                must_reload: leadership.must_reload(),
            },
            None => Lease { until: now, is_lost: true, must_reload: false },
        }
    }

    fn follow(&mut self, leader: Option<SocketAddr>) {
        *self.leader.lock().unwrap_or_else(PoisonError::into_inner) = leader;
        if leader.is_some() && self.history.is_none() {
            self.history = Some(TakingOver::start(self.config, Arc::clone(&self.leader)));
        }
    }

    /// Starts the relay of the API to the leader.
    fn relay(&mut self) -> Result<(), String> {
        let leader = Arc::clone(&self.leader);
        let leader = Arc::new(move || *leader.lock().unwrap_or_else(PoisonError::into_inner));
        let health = Arc::clone(&self.health);
        let node = api_relay::Node { leader, health, tls: self.tls.clone() };
        let relay = ApiRelay::start(self.config.listen, node, Timeouts::default());
        self.relay = Some(relay.map_err(|failure| failure.message)?);
        self.greet();
        Ok(())
    }

    /// Runs the control plane.
    fn lead(&mut self, question: Question) {
        let (Some(serving), Some(leadership)) = (&self.serving, self.won.get(&question)) else {
            return;
        };
        let to = self.inbox.clone();
        leadership.when_changed(move || to.send(Note::LeaseChanged));
        let with = (serving.around(self.cluster, leadership), serving.records());
        let config = self.config.clone();
        let shown = (serving.addresses.clone(), self.tls.clone());
        let term = Term::start(question, config, shown, with, &self.inbox);
        self.term = Some((question, term));
    }

    fn term_of(&self, question: Question) -> Option<&Term> {
        let (_, term) = self.term.as_ref().filter(|(of, _)| *of == question)?;
        term.as_ref()
    }

    fn close(&mut self) -> Event {
        self.watchdog.watch(Parts::default());
        drop((self.relay.take(), self.history.take()));
        if let Some(serving) = self.serving.take() {
            serving.close();
        }
        self.inbox.forget_news();
        Event::CloseAnswered
    }
}

/// Reads the node's number and the values that all nodes share.
fn join(kv: &Kv, config: &Config, cluster: &Cluster) -> Result<Joined, EtcdError> {
    let id = shared::id(kv, &config.data_dir)?;
    let secret = shared::secret(kv)?;
    let here = NodeId(nodes::join(kv, &cluster.node)?.number);
    Ok(Joined { kv: kv.clone(), id, secret, here })
}

/// Starts the thread that asks about the leader and resigns leaderships. It ends when the sender is
/// dropped.
fn elector(election: Election, inbox: Inbox) -> Result<SyncSender<Command>, Failure> {
    let (commands, next) = sync_channel(ELECTION_COMMANDS);
    let work = move || {
        for command in next {
            match command {
                Command::Ask(question, asked) => {
                    let elected = match asked {
                        Asked::Campaign => election.campaign().map(Some),
                        Asked::Leader => {
                            election.leader().map(|leader| leader.map(Standing::Follows))
                        }
                    };
                    inbox.send(Note::Elected(question, elected));
                }
                Command::Resign(question, leadership) => {
                    // The next leader need not wait for the end of the lease.
                    if let Err(error) = leadership.resign() {
                        tracing::warn!(%error, "another node leads when the lease ends");
                    }
                    drop(leadership);
                    inbox.send(Note::Event(Event::ResignAnswered(question)));
                }
            }
        }
    };
    let thread = std::thread::Builder::new().name("member-election".to_owned());
    thread.spawn(work).map_err(failed)?;
    Ok(commands)
}

/// Ends the process if it still runs some time from now: a thread that waits in the library of a
/// Ceph cluster that does not answer cannot be stopped. The next start fences this process, as does
/// the node that takes its volumes.
fn end_by_force() {
    let wait = || {
        clock::pause(FORCE_AFTER);
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
