//! Leases: property 22 under adversarial delivery, the rules one by one, and the table of schemes
//! that share a cap between cores.
//!
//! `cargo test -p evenkeel-core --test qos_lease -- --nocapture table` prints the table.

#![allow(clippy::unwrap_used)] // a test may fail by unwrapping, in its helpers too

#[path = "qos_lease/adversary.rs"]
mod adversary;
#[path = "qos_lease/rules.rs"]
mod rules;
#[path = "qos_lease/schemes.rs"]
mod schemes;
#[path = "support/mod.rs"]
mod support;
#[path = "qos_lease/table.rs"]
mod table;
#[path = "qos_lease/world.rs"]
mod world;
