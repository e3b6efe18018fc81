//! Virtual time: the product's own scheduler in a world where an hour takes seconds and every run
//! with the same seed is the same run.
//!
//! The reading order is the order of the data. A text becomes a [`scenario`]: volumes, clients, a
//! device, what is expected. A [`world`] runs it, event by event, and records [`figures`]. The
//! [`oracle`] watches the events and restates the promise without the scheduler's code. The
//! [`closed_loop`] is a smaller world for tests of the scheduler. [`workload`], [`promise`] and
//! [`check`] are the words that live measurements share with all of this.
//!
//! Absent on purpose: a clock, threads, files, processes, sockets, unseeded randomness. The caller
//! reads files and gives their text.
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
