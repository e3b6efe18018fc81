//! The pure core of Evenkeel: it gets time and input as arguments, and returns output.
//!
//! Absent on purpose: a clock, threads, I/O, randomness (except [`random`], which its user seeds),
//! floating point, dependencies, `unsafe`. The same code runs in production, in the simulator and
//! under the fuzzer, so that a replayed trace dispatches at the same nanosecond everywhere.
//!
//! Start with [`qos`] for the meaning of "provisioned IOPS", with [`volume`] for the volume types.
#![no_std]
#![forbid(unsafe_code)]
#![deny(missing_docs)]
#![deny(clippy::float_arithmetic, clippy::as_conversions)]

extern crate alloc;
#[cfg(test)]
extern crate std;

pub mod connection_limits;
pub mod convert;
pub mod device;
pub mod feel;
pub mod fencing;
pub mod ids;
pub mod instance;
pub mod io_fault;
pub mod latency;
pub mod limits;
pub mod log_limit;
pub mod price;
pub mod qos;
pub mod quota;
pub mod random;
pub mod request;
pub mod slots;
pub mod time;
pub mod units;
pub mod volume;
