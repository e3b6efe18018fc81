//! The answer to DescribeScrub: progress and findings of a scrub.

use crate::model::{number, optional, text};
use crate::output::or_dash;
use evenkeel_wire::aws::xml::Element;
use serde::Serialize;
use std::fmt;

/// A scrub.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Scrub {
    /// running, stopped, completed.
    pub state: String,
    pub mib_per_second: u64,
    pub start_time: String,
    pub end_time: Option<String>,
    /// The volume or snapshot that is being read, or was read last.
    pub resource_id: Option<String>,
    pub verified_bytes: u64,
    /// Damaged places; the first 100 of them are in `rotten`.
    pub rotten_places: u64,
    pub rotten: Vec<Rotten>,
    /// Volumes and snapshots that could not be read to their ends.
    pub unread_resources: u64,
}

/// A damaged place.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Rotten {
    pub resource_id: String,
    /// The byte at which it begins.
    pub offset: u64,
}

impl fmt::Display for Rotten {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} at byte {}", self.resource_id, self.offset)
    }
}

impl Scrub {
    /// The scrub of an answer, if there is one.
    pub fn read(answer: &Element) -> Option<Self> {
        let item = answer.child("scrub")?;
        let rotten = item.items("rottenSet").iter().map(|place| Rotten {
            resource_id: text(place, "resourceId"),
            offset: number(place, "offset").unwrap_or_default(),
        });
        Some(Self {
            state: text(item, "state"),
            mib_per_second: number(item, "mibPerSecond").unwrap_or_default(),
            start_time: text(item, "startTime"),
            end_time: optional(item, "endTime"),
            resource_id: optional(item, "resourceId"),
            verified_bytes: number(item, "verifiedBytes").unwrap_or_default(),
            rotten_places: number(item, "rottenPlaces").unwrap_or_default(),
            rotten: rotten.collect(),
            unread_resources: number(item, "unreadResources").unwrap_or_default(),
        })
    }

    /// Returns the scrub's state and findings as text for people.
    pub fn lines(&self) -> String {
        let mut rows = vec![
            ("state", self.state.clone()),
            ("rate", format!("{} MiB/s", self.mib_per_second)),
            ("started", self.start_time.clone()),
            ("ended", or_dash(self.end_time.as_deref())),
            ("at", or_dash(self.resource_id.as_deref())),
            ("verified", format!("{} bytes", self.verified_bytes)),
            ("rotten", format!("{} places", self.rotten_places)),
        ];
        rows.extend(self.rotten.iter().map(|rotten| ("", rotten.to_string())));
        if self.unread_resources > 0 {
            rows.push(("unread", format!("{} (see the server's log)", self.unread_resources)));
        }
        rows.iter().map(|(name, value)| format!("{name:<8}  {value}\n")).collect()
    }
}
