//! Virtual time: the product's own scheduler in a world where an hour takes seconds and every run
//! with the same seed is the same run.
//!
//! The modules in the order in which data passes through them: a text becomes a [`scenario`] with
//! volumes, clients, a device and expectations. A [`world`] runs it, event by event, and records
//! [`figures`]. The [`oracle`] observes the events and restates the promise without the scheduler's
//! code. The [`closed_loop`] is a smaller world for tests of the scheduler. Live measurements share
//! [`workload`], [`promise`] and [`check`] with the simulator.
//!
//! The crate has no clock, threads, files, processes, sockets or unseeded randomness. The caller
//! reads files and passes their text.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod check;
pub mod closed_loop;
pub mod figures;
pub mod oracle;
pub mod promise;
pub mod scenario;
pub mod text;
pub mod workload;
pub mod world;
