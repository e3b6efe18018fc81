//! Properties of the scheduler in closed loops: each volume by its own limits, and properties 12 to
//! 28 of volumes that share instances and devices.

#![allow(clippy::unwrap_used)] // a test may fail by unwrapping, in its helpers too

mod devices;
mod feel;
mod instances;
mod lost;
mod moves;
mod promise;
#[path = "../../../core/tests/support/mod.rs"]
mod support;
mod whole;
mod world;
