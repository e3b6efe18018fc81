//! The control plane over a model of the data plane, with clients that use its HTTP ports. Each
//! module has a part of it.

#![allow(clippy::unwrap_used)] // the helpers of tests may panic too

#[path = "../support/mod.rs"]
mod support;

mod api;
mod api_errors;
mod audit;
mod aws_clients;
mod capacity;
mod clock;
mod concurrent;
mod configured;
mod copies;
mod direct;
mod events;
mod failures;
mod http;
mod identity;
mod instances;
mod leases;
mod protection;
mod recording;
mod restart;
mod scrub;
mod slow_device;
mod snapshots;
mod status;
mod test_clock;
mod test_faults;
mod tiers;
mod together;
mod zones;
