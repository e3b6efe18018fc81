//! Events on disk, and their delivery. An event is a line of JSON in the form of EventBridge.
//!
//! | file | contents |
//! | --- | --- |
//! | [`log`] | the files |
//! | [`webhook`] | delivery to webhooks |

pub mod log;
pub mod webhook;

use evenkeel_core::time::UnixMs;
use evenkeel_wire::aws::timestamp;
use serde::Deserialize;

/// Returns the time of an event; `None` if it has none.
#[must_use]
pub fn time_of(event: &str) -> Option<UnixMs> {
    #[derive(Deserialize)]
    struct Known {
        time: String,
    }
    let known: Known = serde_json::from_str(event).ok()?;
    timestamp::parse_extended(&known.time).map(UnixMs)
}
