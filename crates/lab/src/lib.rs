//! The laboratory: live measurements, and their results.
//!
//! The reading order is the order of the data. [`fio`] runs a [`Workload`] on a [`target`], which
//! results in a [`Series`] and a latency histogram. The [`checker`] compares them with the promise
//! and returns a verdict; [`report`] prints it. [`demo`] does these four steps in a row, and
//! [`prove`] does them on any disk. [`stalls`] watches the machine, so that its pauses are not
//! counted against a volume.
//!
//! [`child`] starts every program, and guarantees that it has ended when its value is dropped.
//! [`leftovers`] removes what killed runs have left. [`ceph`], [`etcd`] and [`nodes`] are a
//! temporary cluster on this machine.
//!
//! Virtual time is not here, but in `evenkeel-sim`; suites and databases are in `evenkeel-bench`.
//!
//! [`Workload`]: evenkeel_sim::workload::Workload
//! [`Series`]: evenkeel_sim::figures::series::Series
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod cancel;
pub mod ceph;
pub mod checker;
pub mod child;
pub mod demo;
pub mod environment;
pub mod error;
pub mod etcd;
pub mod file_systems;
pub mod files;
pub mod fio;
pub mod interference;
pub mod leftovers;
pub mod nbd_uri;
pub mod nodes;
pub mod program;
pub mod prove;
pub mod report;
pub mod servers;
pub mod stalls;
pub mod target;

pub use error::LabError;
