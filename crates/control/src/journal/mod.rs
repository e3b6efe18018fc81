//! Where decisions are kept.

pub mod format;
pub mod sqlite;
