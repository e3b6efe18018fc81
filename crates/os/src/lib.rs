//! What the shells of this workspace take from the operating system alike.

pub mod clock;
pub mod files;
