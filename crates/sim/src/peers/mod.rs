//! Other schedulers as models, so that the product stands beside them under the same load.
//!
//! Each model is written from a published description of its original, which its file names, and
//! says what it leaves out. They are deterministic and bounded; where an original counts in
//! integers so does its model, and where it counts in doubles the model does with the four basic
//! operations only. `docs/internals/peers.md` has the figures and what they teach.
//!
//! Limiters, each volume for itself: [`firecracker`], [`spdk`], [`qemu`], [`librbd`], [`crucible`],
//! [`gcra`], [`nbdkit`]. Schedulers of several volumes on one device: [`orders`] (first come first
//! served, round robin, virtual time) and [`mclock`].
//!
//! [`limiters`] and [`isolation`] make the tables of `evenkeel sim run limiters` and `isolation`.

pub mod bench;
pub mod crucible;
pub mod device_bench;
pub mod firecracker;
pub mod gcra;
mod isolation_table;
pub mod librbd;
pub mod limited;
mod limiter_table;
mod loaded;
pub mod mclock;
pub mod nbdkit;
pub mod noise;
pub mod orders;
mod product;
pub mod qemu;
pub mod spdk;
pub mod table;
#[cfg(test)]
mod tests;
pub mod windowed;

pub use isolation_table::{isolation, neighbour, reservations};
pub use limiter_table::limiters;
pub use table::Table;
