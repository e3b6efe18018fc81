//! The laboratory in virtual time: the product's own scheduler, and models of others, in a world
//! where an hour takes seconds and every run with the same seed is the same run.

pub mod catalogue;
pub mod client;
pub mod compare;
pub mod device;
pub mod events;
pub mod expect;
pub mod known;
pub mod levels;
pub mod live;
pub mod policy;
pub mod product;
pub mod record;
pub mod run;
pub mod scenario;
pub mod setup;
pub mod swarm;
mod table;
mod watched;
pub mod world;
