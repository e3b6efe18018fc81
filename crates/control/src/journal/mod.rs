//! Where decisions are kept.

pub mod sqlite;
