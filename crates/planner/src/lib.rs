//! The planner: the volumes that a workload needs, and the behaviour of the workload on them.
//!
//! A text of another tool is [`read`] into a [`trace`], from which the other modules compute. A
//! [`Case`] is a question: a trace, the candidates with their prices, and what they must do. Its
//! [`Answer`] has all that programs print, as text, CSV, JSON and HTML.
//!
//! The crate has no clock, files, threads or sockets. The caller reads files and prints answers.
#![deny(missing_docs)]
#![forbid(unsafe_code)]

pub mod account;
pub mod advice;
pub mod answer;
pub mod autopilot;
mod bisect;
pub mod capacity;
pub mod case;
pub mod commands;
pub mod comparison;
pub mod cost;
pub mod delays;
pub mod demand;
pub mod described;
pub mod device;
pub mod exact;
pub mod explanation;
pub mod fit;
pub mod fleet;
pub mod fluid;
pub mod format;
pub mod hot_intervals;
pub mod instances;
pub mod layout;
pub mod layout_text;
pub mod neighbours;
pub mod offers;
pub mod packing;
mod pages;
pub mod price_book;
pub mod price_sources;
pub mod prices;
pub mod quantity;
pub mod read;
pub mod refusal;
pub mod regions;
pub mod risk;
pub mod search;
pub mod source;
pub mod spread;
pub mod steady;
#[cfg(test)]
mod testing;
pub mod throttled;
pub mod timeline;
pub mod trace;
pub mod used;
pub mod verdict;
pub mod volumes;

pub use answer::Answer;
pub use case::Case;
