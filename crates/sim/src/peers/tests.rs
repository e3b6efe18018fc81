//! The models against what is published of their originals, and what all models have in common.
//!
//! `cargo test -p evenkeel-sim --lib peers` runs them; `docs/internals/peers.md` explains where the
//! figures differ from the published ones.

mod common;
mod known;
mod published;
