//! The laboratory: one description of a workload, drivers that run it, and the promise as code.
//!
//! The reading order is the order of the data: a [`workload`] is run by [`mod@bench`] (for real,
//! with fio) and becomes a [`series`] and a [`histogram`]; the [`checker`] compares it with what
//! was promised and returns a verdict; [`report`] prints it. [`demo`] is the four in a row. Beside
//! them [`stalls`] watches the machine, so that nobody is blamed for its pauses, and [`stats`] says
//! what several runs come to.
//!
//! Absent on purpose: any knowledge of how volumes are created. The laboratory is given NBD
//! addresses.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod bench;
pub mod checker;
pub mod clock;
pub mod demo;
pub mod environment;
pub mod error;
pub mod histogram;
pub mod peers;
pub mod program;
pub mod prove;
pub mod report;
pub mod series;
pub mod sim;
pub mod stalls;
pub mod stats;
pub mod suite;
pub mod text;
pub mod workload;

pub use error::LabError;
