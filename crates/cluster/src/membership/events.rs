//! What a node's life consists of: events, and the actions that they lead to.

use core::net::SocketAddr;
use core::time::Duration;

/// A question to the election. The term that it may win has the same number.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Question(pub u64);

/// What has happened.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Event {
    /// Time has passed.
    Time,
    /// The process is to stop.
    StopRequested,
    /// The answer to [`Action::Join`].
    JoinAnswered(JoinAnswer),
    /// The answer to [`Action::Start`]: what this node sees now, or `None` if it cannot start. The
    /// shell knows why.
    StartAnswered(Option<Seen>),
    /// The answer to [`Action::AskStore`]. [`Event::Fenced`] comes before it, if at all.
    StoreAnswered,
    /// The store has fenced this process.
    Fenced,
    /// A part of the data plane has failed, and why.
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
    /// What is known of a term's lease has changed.
    LeaseSeen(Question, Lease),
    /// The control plane of a term has ended, with what is known of its lease then.
    TermEnded(Question, Lease, Result<(), String>),
    /// The answer to [`Action::Resign`], also if etcd has not answered.
    ResignAnswered(Question),
    /// The answer to [`Action::Close`].
    CloseAnswered,
}

/// What etcd has answered to a node that joins.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum JoinAnswer {
    /// The node has its number.
    Joined,
    /// etcd does not answer, and why. The node asks again.
    Unavailable(String),
    /// The node may not join. The shell knows why.
    Refused,
}

/// What this node sees of the others.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Seen {
    /// Whether another node may have volumes.
    pub has_others: bool,
    /// Whether no volume is at home on this node.
    pub is_empty: bool,
}

/// What this node asks about the leader.
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
        /// Where its API is; `None` if that address is this node's own, which an earlier process
        /// of it has left, or cannot be read.
        api: Option<SocketAddr>,
        /// Its node and its address, for the log.
        text: String,
    },
    /// No node leads, and this one was not to.
    NoLeader,
    /// etcd has not answered.
    Unknown {
        /// Why.
        text: String,
        /// Whether etcd has no space left: no node can lead then.
        is_no_space: bool,
    },
}

/// What is known of a leader's lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lease {
    /// Until when it holds at least.
    pub until: Duration,
    /// Whether etcd has said that it is gone, or it was given up.
    pub is_lost: bool,
    /// Whether etcd may have other data than this leader knows.
    pub must_reload: bool,
}

/// How important a line of the log is.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Level {
    /// Normal operation.
    Info,
    /// An operator may have to act.
    Warn,
}

/// What is to be done.
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
    /// Say in etcd that this node is about to stop.
    AnnounceLeaving,
    /// Relay API requests to this address, and take over the leader's history; with `None`, answer
    /// that no node leads.
    Follow(Option<SocketAddr>),
    /// Listen on the API's address to relay requests.
    Relay,
    /// Stop relaying and taking over history, and free the API's address and the data folder.
    StopRelay,
    /// Whether another node runs the control plane, which looks after etcd.
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
    /// Wait for no node any more in a term.
    CloseFleet(Question),
    /// Give up a leadership.
    Resign(Question),
    /// End the process by force if it still runs in a while.
    LimitShutdown,
    /// Close the data plane and the store, then take the node's name back in etcd.
    Close,
    /// End the process.
    Exit(Exit),
    /// Write a line into the log.
    Log(Level, String),
}

/// How the process ends.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Exit {
    /// As it was asked to.
    Stopped,
    /// It could not join or start. The shell knows why.
    Refused,
    /// A part of the data plane has failed, and why.
    Failed(String),
}
