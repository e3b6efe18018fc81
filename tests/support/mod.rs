//! Shared parts of the black-box tests: a server in a temporary folder, real clients, and
//! deadlines.

// Each test file uses a part of this. Tests fail by unwrap, which clippy only allows in test
// functions.
#![allow(dead_code, clippy::unwrap_used)]

pub mod bench;
pub mod ceph;
pub mod clock;
pub mod cluster;
pub mod databases;
pub mod etcd;
pub mod file_system;
pub mod guest;
pub mod loop_device;
pub mod machine;
pub mod metrics;
pub mod mount;
pub mod nbd;
pub mod pages;
pub mod patterns;
pub mod process;
pub mod random;
pub mod rates;
pub mod server;
pub mod tools;
pub mod wall_clock;
pub mod writer;

use std::time::Duration;

/// The longest wait for an event that takes a moment. Only a failing test waits this long.
pub const PATIENCE: Duration = Duration::from_secs(60);
