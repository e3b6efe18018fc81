//! The pages of suites, on the charts and tables of `evenkeel-lab`.

pub mod plots;
pub mod standalone;
mod suite;
mod suite_charts;
