//! The laboratory: live measurements, and what they come to.
//!
//! The reading order is the order of the data: a [`Workload`] is run by [`mod@bench`] (live, with
//! fio, programs or databases) and becomes a [`Series`] and a latency histogram; the [`checker`]
//! compares it with what was promised and returns a verdict; [`report`] prints it. [`demo`] is the
//! four in a row, [`prove`] does it on any disk, and a [`suite`] lays live and simulated runs
//! beside published figures. [`published`] has the figures of the whole server, with servers that
//! it starts itself. [`stalls`] watches the machine, so that its pauses are not counted against a
//! volume.
//!
//! Absent on purpose: the client of the API, which is the binary's and comes in as a
//! [`bench::server_process::ControlApi`]; and what runs in virtual time, which is in
//! `evenkeel-sim`.
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
