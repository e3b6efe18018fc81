//! The laboratory in virtual time.

pub mod policy;
