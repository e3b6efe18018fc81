//! Events of a node's life, and the actions to which they lead.

use core::net::SocketAddr;
use core::time::Duration;

/// The number of a question to the election, and of the term that it may win.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Question(pub u64);

/// An event of a node's life.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Time has passed.
    Time,
    /// The process is to stop.
    StopRequested,
    /// The answer to [`Action::Join`].
    JoinAnswered(JoinAnswer),
    /// The answer to [`Action::Start`]: this node's view of the others, or `None` if it cannot
    /// start. The shell has the reason.
    StartAnswered(Option<Seen>),
    /// The answer to [`Action::AskStore`]. If the process is fenced, [`Event::Fenced`] comes
    /// before.
    StoreAnswered,
    /// The store has fenced this process.
    Fenced,
    /// A part of the data plane has failed, for this reason.
    DataPlaneFailed(String),
    /// The nodes of the cluster or the homes of volumes have changed.
    ClusterSeen(Seen),
    /// The leader's key has changed.
    LeaderChanged,
    /// The answer to [`Action::Ask`].
    ElectionAnswered(Question, Answer),
    /// The answer to [`Action::Relay`].
    RelayAnswered(Result<(), String>),
    /// The answer to [`Action::AnnounceLeaving`], also if etcd has not answered.
    LeavingAnnounced,
    /// The known state of a term's lease has changed.
    LeaseSeen(Question, Lease),
    /// The control plane of a term has ended, with this state of its lease and this result.
    TermEnded(Question, Lease, Result<(), String>),
    /// The answer to [`Action::Resign`], also if etcd has not answered.
    ResignAnswered(Question),
    /// The answer to [`Action::Close`].
    CloseAnswered,
}

/// etcd's answer to a node that joins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JoinAnswer {
    /// The node has its number.
    Joined,
    /// etcd does not answer, for this reason. The node asks again.
    Unavailable(String),
    /// The node may not join. The shell has the reason.
    Refused,
}

/// This node's view of the other nodes and its own volumes.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Seen {
    /// Whether another node may have volumes.
    pub has_others: bool,
    /// Whether no volume is at home on this node.
    pub is_empty: bool,
}

/// A kind of question about the leader.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Asked {
    /// Become the leader if there is none; otherwise return the leader.
    Campaign,
    /// Return the leader, and do not become it.
    Leader,
}

/// The answer to a question about the leader.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Answer {
    /// This node leads, with this lease.
    Leads(Lease),
    /// Another process leads.
    Follows {
        /// Address of its API; `None` if the address cannot be parsed, or is this node's own: then
        /// an earlier process of this node led.
        api: Option<SocketAddr>,
        /// Its node and its address, for the log.
        text: String,
    },
    /// No node leads, and the question was not a campaign.
    NoLeader,
    /// etcd has not answered.
    Unknown {
        /// The reason.
        text: String,
        /// Whether etcd has no space left: no node can lead then.
        is_no_space: bool,
    },
}

/// The known state of a leader's lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// The time until which it holds at least.
    pub until: Duration,
    /// Whether etcd has answered that it does not exist, or it was revoked.
    pub is_lost: bool,
    /// Whether etcd may have other data than this leader knows.
    pub must_reload: bool,
}

/// The level of a line of the log.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// Normal operation.
    Info,
    /// An operator may have to act.
    Warn,
}

/// An action that the shell must execute.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Action {
    /// Ask etcd for the node's number.
    Join,
    /// Take the node's name in etcd, open the store, and start the data plane.
    Start,
    /// Ask the store whether this process is fenced.
    AskStore,
    /// Ask about the leader.
    Ask(Question, Asked),
    /// Write to etcd that this node is about to stop.
    AnnounceLeaving,
    /// Relay API requests to this address, and copy the leader's history; with `None`, answer that
    /// no node leads.
    Follow(Option<SocketAddr>),
    /// Listen on the API's address to relay requests.
    Relay,
    /// Stop relaying and copying history, and free the API's address and the data folder.
    StopRelay,
    /// Record whether another node leads, and so maintains etcd.
    SetFollows(bool),
    /// Run the control plane with the leadership that this question has won.
    Lead(Question),
    /// End the control plane of a term.
    EndTerm {
        /// The term.
        question: Question,
        /// Whether all volumes are closed, because no other node continues with them.
        closes_volumes: bool,
    },
    /// Close the fleet of a term, so that its control plane waits for no node.
    CloseFleet(Question),
    /// Resign a leadership.
    Resign(Question),
    /// End the process by force if it still runs after a time limit.
    LimitShutdown,
    /// Close the data plane and the store, then remove the node's key in etcd.
    Close,
    /// End the process.
    Exit(Exit),
    /// Write a line into the log.
    Log(Level, String),
}

/// How the process ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Exit {
    /// By request.
    Stopped,
    /// It could not join or start. The shell has the reason.
    Refused,
    /// A part of the data plane has failed, for this reason.
    Failed(String),
}
