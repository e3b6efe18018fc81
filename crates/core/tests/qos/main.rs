//! Properties of pacing, checked against oracles that share no code with it.
//!
//! Property tests carry the number of the property they check: 1 to 8 are a bucket's, 10 to 27 the
//! scheduler's. A failing property prints its smallest input; `PROPTEST_RNG_SEED=<n>` repeats a run
//! and `PROPTEST_CASES=<n>` lengthens it. A failing simulation prints its seed and the command that
//! repeats it.

#![allow(clippy::unwrap_used)] // a test may fail by unwrapping, in its helpers too

mod behaviour;
mod bucket;
mod driver;
mod oracle;
mod reference;
mod scheduler;
#[path = "../support/mod.rs"]
mod support;
