//! The exact meaning of "provisioned IOPS", in integers.
//!
//! A volume with a limit of `r` units a second and a tolerance of `tau` gets, in any window of `T`
//! seconds, at most `r * (T + tau)` units plus one request; and while it always has a request
//! waiting, exactly `r * T` give or take one. That is one [`bucket::Bucket`] per limit. A volume
//! that may burst has two per dimension: a *pacer* at the burst rate (milliseconds deep, hides the
//! lateness of the server's timer) and a *credit* bucket at the baseline rate (minutes deep, the
//! product's burst). All must allow a request; then all are charged at once.
//!
//! | file | content |
//! | --- | --- |
//! | [`pacing`] | the limits of a volume, as plain numbers |
//! | [`bucket`], [`credit`] | one limit as an exact level; a balance |
//! | [`cost`] | the cost of a request |
//! | `pacer` | a bucket that is milliseconds deep, in one word |
//! | `limiter`, `reserves` | all limits of one volume: check all, then charge all |
//! | `queue`, `wheel` | waiting requests, and their deadlines |
//! | [`sharing`] | instances and devices that volumes share: reservations, weights, windows |
//! | [`admission`] | what may be sold, so that all of it can be kept |
//! | [`contract`] | whether a volume got the performance that was sold, second by second |
//! | [`scheduler`] | all of it for many volumes: the only part that an engine uses |
//! | `phase` | the state after which a scheduler repeats itself |
//! | `slots` | slots of volumes, attachments and so on, and tables that accept no other |
//! | [`trace`] | a record of a scheduler's calls and dispatches, for playback |

pub mod admission;
pub mod bucket;
pub mod contract;
pub mod cost;
pub mod credit;
mod limiter;
mod pacer;
pub mod pacing;
mod phase;
mod queue;
mod reserves;
pub mod scheduler;
pub mod sharing;
mod slots;
pub mod trace;
mod wheel;

pub use limiter::{Exceeded, Forfeited};
pub use phase::Phase;
pub use queue::Cancelled;
