//! The laboratory: live measurements, and their results.
//!
//! The reading order is the order of the data. [`mod@bench`] runs a [`Workload`] (live, with fio,
//! programs or databases), which results in a [`Series`] and a latency histogram. The [`checker`]
//! compares them with the promise and returns a verdict; [`report`] prints it. [`demo`] does these
//! four steps in a row, [`prove`] does them on any disk, and a [`suite`] compares live and
//! simulated runs with published figures. [`published`] has the figures of the whole server, and
//! starts servers itself. [`stalls`] watches the machine, so that its pauses are not counted
//! against a volume.
//!
//! Virtual time is not here, but in `evenkeel-sim`.
//!
//! [`Workload`]: evenkeel_sim::workload::Workload
//! [`Series`]: evenkeel_sim::figures::series::Series
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod bench;
pub mod checker;
pub mod clock;
pub mod demo;
pub mod environment;
pub mod error;
pub mod files;
pub mod prove;
pub mod published;
pub mod report;
pub mod stalls;
pub mod suite;

pub use error::LabError;
