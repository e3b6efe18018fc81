//! Benchmarks of the whole server: published experiments, databases and desktop programs on real
//! mounts, and comparisons with other servers. The program is `evenkeel-bench`.
//!
//! A [`suite`] compares live and simulated runs with published figures. [`live`] runs its cases on
//! the data plane of [`data_plane`]: by fio, or by programs and databases on the file systems of
//! [`mounts`]. [`published`] has the figures of the whole server, which [`server_process`] starts;
//! [`compare`] measures other servers beside it.
//!
//! The load generator, the checker and the reports are those of `evenkeel-lab`.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod compare;
pub mod data_plane;
pub mod databases;
pub mod desktop;
pub mod durable;
pub mod iomelt;
pub mod live;
pub mod mariadb;
pub mod mounts;
pub mod open_loop;
pub mod postgres;
pub mod published;
pub mod report;
pub mod server_process;
pub mod stripe;
pub mod suite;
pub mod sysbench;
pub mod usage;
pub mod versions;

mod apache;
mod trees;

use evenkeel_sim::figures::stats;

/// Returns the median of a figure of the samples; 0 if there are none.
pub(crate) fn median<T>(samples: &[T], figure: impl Fn(&T) -> f64) -> f64 {
    let values: Vec<f64> = samples.iter().map(figure).collect();
    stats::median(&values).unwrap_or_default()
}
