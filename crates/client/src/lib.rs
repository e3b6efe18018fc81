//! The typed client of the server's API, and the parts that its programs share.
//!
//! [`Client`] signs a request, sends it, and returns the answer's XML. Each of [`volumes`],
//! [`hosts`], [`snapshots`], [`model`], [`capacity`], [`endpoints`], [`events`], [`nodes`],
//! [`scrub`] and [`test_server`] calls some actions or reads their answers, [`volume_samples`]
//! those with counters. [`top`] and [`credits`] have rows of them.
//! [`direct`] speaks the EBS direct APIs, which carry blocks of snapshots. [`export`] and
//! [`migrate`] are built on both: they copy snapshots to files or buckets, and volumes to other
//! servers. [`output`] has the programs' errors, tables and exit codes, [`progress`] the bar of a
//! long task.
//!
//! Absent on purpose: flags and their help, and where a server's keys and address are kept, which
//! are the program's.
#![forbid(unsafe_code)]

mod client;
mod trust;

pub mod capacity;
pub mod credits;
pub mod direct;
pub mod endpoints;
pub mod events;
pub mod export;
pub mod hosts;
pub mod migrate;
pub mod model;
pub mod nodes;
pub mod output;
pub mod pace;
pub mod progress;
pub mod scrub;
pub mod snapshots;
pub mod test_server;
pub mod top;
pub mod volume_samples;
pub mod volumes;

pub use client::{Client, Keys};
