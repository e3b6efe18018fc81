//! The host of the autopilot on real file systems: btrfs, XFS and ext4 on loop devices in memory.
//! They need root; without it each test says that it is skipped.

mod agent;
mod cycles;
mod load;
mod moves;
mod replacements;
mod support;
mod verbs;
