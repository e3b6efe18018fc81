//! Figures of runs: counts over time, latencies, and statistics of several runs.

pub mod histogram;
pub mod series;
pub mod stats;
