//! Who may write to a volume when several nodes could.
//!
//! The bytes lie on Ceph. Each process has one connection to it, whose address Ceph's blocklist
//! names: the OSDs refuse every operation of a process that is on it. A node that is lost is fenced
//! that way before another one serves its volumes.
//!
//! [`order`] has the steps of a fence, a registration and an opening, in their order; [`Door`] says
//! which clients a node lets in. The store executes them, and a simulation of a whole cluster
//! (`crates/control/src/cluster/tests/`). `docs/internals/fencing.md` has the argument.

mod door;
pub mod order;

pub use door::{Door, OwnEntry};

use crate::time::Duration;

/// A node: a number given when it joins the cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

/// How long a blocklist entry lasts, in seconds: a year of 365 days. The one assumption about
/// clocks is that no process resumes after a longer pause.
pub const BLOCKLIST_EXPIRE_S: u32 = 31_536_000;

/// A node whose boot-time clock jumped by more than this between two turns may have been taken for
/// dead: it drops its clients before it sends anything.
pub const GAP_MAX: Duration = Duration::from_secs(2);
