//! What the black-box tests share: a server in a temporary folder, real clients, and deadlines.

// Each test file uses its own part of this; and unwrap is how a test fails, which clippy sees only
// in functions that are tests themselves.
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
pub mod proxy;
pub mod random;
pub mod rates;
pub mod server;
pub mod tools;
pub mod wall_clock;
pub mod writer;

use std::time::Duration;

/// The longest wait for anything that takes a moment. Only a test that fails ever waits so long.
pub const PATIENCE: Duration = Duration::from_secs(60);
