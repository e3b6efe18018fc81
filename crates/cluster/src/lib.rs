//! Several nodes that serve the volumes of one control plane.
//!
//! Each node is a data plane behind an agent. The elected leader runs the control plane over a
//! [`fleet::Fleet`], which is an agent itself and sends each command to the node concerned. etcd
//! says which nodes there are and which volume is whose; whether a node may write is decided by the
//! store, which fences a lost node before another one serves its volumes.
//!
//! | key below the cluster's prefix | value |
//! | --- | --- |
//! | `id` | the cluster's number, 32 hexadecimal digits |
//! | `secret` | what nodes prove to know, 32 bytes |
//! | `credentials`, `calibration` | files that all nodes share |
//! | `m/NUMBER` | the name of the node that has this number |
//! | `n/NAME/spec` | [`nodes::Spec`]: its number, and whether it is in service |
//! | `n/NAME/inst` | [`nodes::Inst`]: its process, with a lease |
//! | `n/NAME/last` | the same of the last process that could be reached, which lasts |
//! | `o/VOLUME` | the number of the node that is the volume's home |
#![deny(missing_docs)]

pub mod api_relay;
pub mod cluster_handle;
pub mod confirmation;
pub mod etcd;
pub mod fleet;
pub mod health;
pub mod history_page;
pub mod homes;
pub mod inbox;
pub mod kv;
pub mod membership;
pub mod nodes;
#[cfg(test)]
mod simulation;
pub mod watch_cache;
