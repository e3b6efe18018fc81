//! Tests fronts before real data planes: volumes that move, nodes that fail, clients and nodes that
//! send invalid bytes.
#![allow(clippy::unwrap_used)] // a test may fail by unwrapping, in its helpers too

mod agreed;
mod cluster;
mod given_up;
mod homes;
mod late;
mod lending;
#[path = "../../../link/tests/support/mod.rs"]
mod link;
mod load;
mod moves;
mod nodes;
mod passed;
mod strangers;
#[path = "../../../engine/tests/support/mod.rs"]
mod support;
mod tools;
mod visits;
