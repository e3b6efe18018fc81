//! Admission: worked numbers, the words of a refusal, and the books against an oracle that adds
//! everything up anew.

#![allow(clippy::unwrap_used)] // a test may fail by unwrapping, in its helpers too

#[path = "qos_admission/oracle.rs"]
mod oracle;
#[path = "qos_admission/properties.rs"]
mod properties;
#[path = "qos_admission/tables.rs"]
mod tables;
