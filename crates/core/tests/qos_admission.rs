//! Admission: worked numbers, messages of refusals, and the ledger against an oracle that computes
//! every sum anew; calibration of simulated devices with known properties.

#![allow(clippy::unwrap_used)] // a test may fail by unwrapping, in its helpers too

#[path = "qos_admission/calibration.rs"]
mod calibration;
#[path = "qos_admission/disk.rs"]
mod disk;
#[path = "qos_admission/drift.rs"]
mod drift;
#[path = "qos_admission/figures.rs"]
mod figures;
#[path = "qos_admission/oracle.rs"]
mod oracle;
#[path = "qos_admission/properties.rs"]
mod properties;
#[path = "qos_admission/tables.rs"]
mod tables;
