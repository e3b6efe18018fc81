//! The simulated world of the autopilot: years of a file system, its load and its API in virtual
//! time, and the agent that runs on real hosts.
//!
//! The [`Controller`](crate::Controller) is the agent's own, with a host, an API and a journal that
//! are models. The API is the pure model of `evenkeel-control`. Loads, delays and faults follow
//! from a seed, so that a seed repeats its years to the byte. After every event, rules are checked
//! by code that shares nothing with the policy.
//!
//! It is written for three questions: does the file system ever lack room, what does it cost
//! beside other rules and a planner that knows the future, and does a crash at any step do harm.

mod btrfs;
mod ec2;
mod faults;
mod floor;
mod judge;
mod load;
mod proof;
mod report;
mod rivals;
mod run;
mod space;
mod stage;
mod state;
#[cfg(test)]
mod tests;
mod text;
mod undo;

pub use judge::Violation;
pub use load::Generator;
pub use report::{Options, Report, Row, report};
pub use rivals::Rival;
pub use run::{Acted, Bounds, Outcome, Plan, Undos, run};
pub use state::FullEvent;
pub use text::others;

const MIB: u64 = 1 << 20;
