//! What a server records of its volumes and calls: metrics, recordings, events and the audit.
//!
//! This crate gets reports of the data plane and ids, and knows neither the model nor the plane of
//! the control plane. Nothing depends on its files and threads: a full disk loses records, and a
//! log line reports it. The audit is an exception: without room for it, changes are refused.
//!
//! | module | contents |
//! | --- | --- |
//! | [`audit`] | the audit: a line for each call of the API, with the hash of the previous line |
//! | [`counters`] | work of volumes between two samples of their counters; pure |
//! | [`cloudwatch`] | metrics of volumes over the last days, and expressions over them |
//! | [`recording`] | requests to volumes, second by second, for some days |
//! | [`events`] | the files of events, webhooks |
//! | [`history`] | the part of all three that another server copies |
//! | [`metrics`] | the texts of `/metrics`; pure |
//! | [`private`] | files that only the server's own user may access |
//! | `retention` | which stored hour or day is deleted first; pure |
//! | `varint` | the numbers of records and recordings; pure |
#![deny(missing_docs)]

pub mod audit;
pub mod cloudwatch;
pub mod counters;
pub mod events;
pub mod history;
pub mod metrics;
pub mod private;
pub mod recording;
mod retention;
mod varint;
