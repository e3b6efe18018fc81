//! The orders of a person to the agent: `evenkeel autopilot hold`, `pause`, `resume` and `release`.
//!
//! They are one file, which a verb replaces and the agent reads before each decision.

use serde::{Deserialize, Serialize};

/// The orders that are in force.
#[derive(Clone, PartialEq, Eq, Default, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields, default)]
pub struct Orders {
    /// No call and no verb before this time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hold: Option<Held>,
    /// No call and no verb before `resume`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pause: Option<Paused>,
    /// The last release, in milliseconds since 1970: it ends holds, and the brake after failures.
    pub released_ms: u64,
}

/// A hold until a time.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Held {
    /// Its end, in milliseconds since 1970.
    pub until_ms: u64,
    /// Its reason.
    pub reason: String,
}

/// A pause.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Paused {
    /// Its start, in milliseconds since 1970.
    pub since_ms: u64,
    /// Its reason.
    pub reason: String,
}
