//! The order in which nodes fence each other, open images, and let clients in.
//!
//! The bytes of volumes lie on Ceph. Each process of a node has one connection to Ceph, and Ceph's
//! blocklist refuses every operation of a process that is on it. [`order`] has the steps of a
//! fence, of a registration and of an opening. [`Door`] decides which connections are let in.
//! `evenkeel-store` executes the steps with librados and librbd, and the simulation of a cluster in
//! `evenkeel-cluster` with a model of Ceph.
//!
//! No step depends on the clock of another node, or on a lease: a node that is taken for dead may
//! be alive. No step removes an entry of the blocklist. `docs/internals/fencing.md` has the
//! argument why no acknowledged write is lost.

mod door;
pub mod order;

pub use door::{Door, OwnEntry};

use crate::time::Duration;

/// A node: the number that it gets when it joins the cluster.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct NodeId(pub u32);

/// How long a blocklist entry lasts, in seconds: a year of 365 days. The one assumption about
/// clocks is that no process resumes after a longer pause.
pub const BLOCKLIST_EXPIRE_S: u32 = 31_536_000;

/// The longest time for which the thread of a front may not run before the front drops its
/// clients. They may have sent their requests to another node meanwhile.
pub const GAP_MAX: Duration = Duration::from_secs(2);
