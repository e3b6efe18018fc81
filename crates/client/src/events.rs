//! Events, parsed from the API's XML.

use crate::model::{number, text};
use crate::output::{Item, or_dash};
use evenkeel_wire::aws::xml::Element;
use serde::Serialize;
use serde_json::Value;

/// Maximum number of events that one call requests.
pub const PAGE: &str = "1000";

/// An event, with the columns of its table.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Event {
    pub sequence: u64,
    /// Its JSON, on one line.
    #[serde(skip)]
    pub line: String,
    pub event: Value,
}

/// An answer to DescribeEvents.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Page {
    pub events: Vec<Event>,
    /// Sequence number after which the next page begins.
    pub examined: u64,
    /// The number of the newest event.
    pub last: u64,
}

impl Page {
    pub fn read(answer: &Element) -> Self {
        let event = |item: &Element| {
            let line = text(item, "event");
            let event = serde_json::from_str(&line).unwrap_or_default();
            Event { sequence: number(item, "sequence").unwrap_or_default(), line, event }
        };
        Self {
            events: answer.items("eventSet").iter().map(event).collect(),
            examined: number(answer, "examinedSequence").unwrap_or_default(),
            last: number(answer, "lastSequence").unwrap_or_default(),
        }
    }
}

impl Item for Event {
    const SCHEMA: &'static str = "evenkeel.events/1";
    const FIELD: &'static str = "events";
    const COLUMNS: &'static [&'static str] =
        &["SEQUENCE", "TIME", "EVENT", "RESULT", "RESOURCE", "CAUSE"];

    fn cells(&self) -> Vec<String> {
        let detail = &self.event["detail"];
        let known = |value: &Value| value.as_str().map(str::to_owned).filter(|it| !it.is_empty());
        let id = known(&self.event["resources"][0]);
        let id = id.map(|arn| arn.rsplit('/').next().unwrap_or_default().to_owned());
        // What has no name of its own has a state.
        let name = known(&detail["event"]);
        let name = name.or_else(|| known(&detail["state"]).map(|_| "fastSnapshotRestore".into()));
        let result = known(&detail["result"]).or_else(|| known(&detail["state"]));
        vec![
            self.sequence.to_string(),
            or_dash(known(&self.event["time"])),
            or_dash(name),
            or_dash(result),
            or_dash(id),
            or_dash(known(&detail["cause"])),
        ]
    }
}
