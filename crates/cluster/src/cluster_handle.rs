//! The leader's access to the cluster: nodes and homes in etcd, connections to agents, the store's
//! fence.

use crate::etcd::election::Leadership;
use crate::etcd::gateway::{Compare, Operation, Transaction};
use crate::etcd::upkeep::{MemberSeen, Upkeep};
use crate::fleet::{self, Node, Standing};
use crate::homes::{Changes, Writer};
use crate::kv::Kv;
use crate::nodes::{self, Member, Nodes};
use evenkeel_control::nodes::State;
use evenkeel_core::fencing::NodeId;
use evenkeel_link::{ClientConfig, RemoteAgent, Status, Timing, TlsFiles};
use evenkeel_store::Pool;
use evenkeel_wire::agent::proof::ClusterSecret;
use evenkeel_wire::agent::session::{Leader, LeaderGeneration};
use evenkeel_wire::agent::{Agent, Command, Reply};
use std::sync::Arc;

/// See the module's text.
pub struct Around {
    /// The cluster's keys in etcd.
    pub kv: Kv,
    /// The nodes, as etcd has them.
    pub nodes: Nodes,
    /// Writes the homes of volumes.
    pub homes: Writer,
    /// The leadership of this process.
    pub leadership: Leadership,
    /// The store, which fences nodes.
    pub pool: Arc<dyn Pool>,
    /// The node of this process.
    pub here: NodeId,
    /// The cluster's number.
    pub cluster: u128,
    /// The secret by which its nodes authenticate each other.
    pub secret: ClusterSecret,
    /// Measures the members of etcd.
    pub upkeep: Arc<Upkeep>,
    /// Identifies this process as a leader.
    pub incarnation: u64,
    /// Certificates and keys for connections between nodes.
    pub tls: Option<TlsFiles>,
}

/// A node that is reached over TCP, even the node of this process: so it obeys a later leader as
/// soon as all others do.
struct Remote(RemoteAgent);

impl Agent for Remote {
    fn call(&self, command: Command) -> Reply {
        self.0.call(command)
    }
}

impl Node for Remote {
    fn standing(&self) -> Standing {
        match self.0.status() {
            Status::Up => Standing::Up,
            Status::Restarted(incarnation) => Standing::New(incarnation),
            Status::Away(why) => Standing::Away(why),
            Status::Deposed(why) => Standing::Deposed(why),
        }
    }

    fn accept(&self, incarnation: u128) {
        self.0.accept_restart(incarnation);
    }

    fn close(&self) {
        self.0.close();
    }
}

impl fleet::Cluster for Around {
    fn members(&self) -> Vec<Member> {
        nodes::members(&self.nodes.values())
    }

    fn connect(&self, member: &Member) -> Result<Arc<dyn Node>, String> {
        let Some(inst) = member.inst.as_ref().or(member.last.as_ref()) else {
            return Err("it does not live".to_owned());
        };
        let is_fenced = self.pool.is_fenced(&inst.store).map_err(|error| error.to_string())?;
        if is_fenced {
            return Err("its process was fenced; it is to join again as another one".to_owned());
        }
        let config = ClientConfig {
            address: inst.agent,
            cluster: self.cluster,
            secret: self.secret.clone(),
            node: member.number,
            leader: Leader { node: self.here, incarnation: self.incarnation },
            generation: LeaderGeneration(self.leadership.created()),
            tls: self.tls.clone(),
            timing: Timing::default(),
        };
        let remote = RemoteAgent::start(config).map_err(|error| error.to_string())?;
        Ok(Arc::new(Remote(remote)))
    }

    fn fence(&self, node: &str) -> Result<(), String> {
        // The cached entries may be old, or this process may not lead any more, so etcd is asked.
        let lives = self.kv.name(&format!("{}{node}/inst", nodes::PREFIX));
        let leads = self.kv.keys.leader();
        let asked = Transaction {
            when: vec![
                Compare::CreatedBy(leads.clone(), self.leadership.created()),
                Compare::CreatedBy(lives, 0),
            ],
            then: vec![Operation::Look(leads)],
            otherwise: vec![],
        };
        let answer = self.kv.transact(&asked).map_err(|error| error.to_string())?;
        if !answer.succeeded {
            return Err("it is alive, or this node is not the leader".to_owned());
        }
        self.pool.fence(node).map_err(|error| error.to_string())
    }

    fn note(&self, changes: &Changes) -> Result<(), String> {
        self.homes.write(&self.kv, changes).map_err(|error| error.to_string())
    }

    fn set_state(&self, node: &str, state: State) -> Result<bool, String> {
        nodes::set_state(&self.kv, node, state).map_err(|error| error.to_string())
    }

    fn etcd(&self) -> Vec<MemberSeen> {
        self.upkeep.seen()
    }

    fn here(&self) -> NodeId {
        self.here
    }

    fn term(&self) -> u64 {
        self.leadership.created()
    }
}
