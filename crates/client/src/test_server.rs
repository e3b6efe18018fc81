//! Answers about a server for tests: its clock and its faults.

use crate::model::{self, number, text};
use crate::output::Item;
use evenkeel_wire::aws::xml::Element;
use serde::Serialize;
use std::collections::BTreeMap;

/// The clock of a test server.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Clock {
    /// Its time in ISO 8601.
    pub time: String,
    /// The time of the server's machine, likewise.
    pub real_time: String,
    /// `running` or `frozen`.
    pub state: String,
}

impl Clock {
    /// The clock in an answer to DescribeTestClock or ModifyTestClock.
    pub fn read(answer: &Element) -> Self {
        let clock = answer.child("testClock");
        let text = |name: &str| clock.map(|clock| text(clock, name)).unwrap_or_default();
        Self { time: text("time"), real_time: text("realTime"), state: text("state") }
    }
}

impl Item for Clock {
    const SCHEMA: &'static str = "evenkeel.clock/1";
    const FIELD: &'static str = "clocks";
    const COLUMNS: &'static [&'static str] = &["TIME", "REAL TIME", "STATE"];

    fn cells(&self) -> Vec<String> {
        vec![self.time.clone(), self.real_time.clone(), self.state.clone()]
    }
}

/// A fault of a test server.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct Fault {
    pub fault_id: String,
    pub fault_type: String,
    /// When it began, in ISO 8601.
    pub start_time: String,
    /// Seconds until its end, in real time.
    pub seconds_left: u64,
    /// Number of requests that it has changed.
    pub requests: u64,
    /// The volumes that it concerns; empty for all.
    pub volumes: Vec<String>,
    /// The actions of the API that it concerns; empty for all.
    pub operations: Vec<String>,
    /// Its other properties, such as `readPercentage`, by their names in the API.
    pub properties: BTreeMap<String, u64>,
}

/// Properties of faults that are numbers.
const PROPERTIES: [&str; 6] = [
    "percentage",
    "readPercentage",
    "readLatencyMilliseconds",
    "writePercentage",
    "writeLatencyMilliseconds",
    "seed",
];

impl Fault {
    /// The faults in an answer to DescribeTestFaults or StopTestFaults.
    pub fn set(answer: &Element) -> Vec<Self> {
        answer.items("testFaultSet").iter().map(Self::read).collect()
    }

    /// The fault in an answer to StartTestFault.
    pub fn started(answer: &Element) -> Self {
        answer.child("testFault").map(Self::read).unwrap_or_default()
    }

    fn read(item: &Element) -> Self {
        let text = |name: &str| text(item, name);
        let count = |name: &str| number(item, name).unwrap_or_default();
        let texts = |set: &str, name: &str| {
            item.items(set).iter().map(|item| model::text(item, name)).collect()
        };
        let property = |name: &str| Some((name.to_owned(), number(item, name)?));
        Self {
            fault_id: text("faultId"),
            fault_type: text("faultType"),
            start_time: text("startTime"),
            seconds_left: count("secondsLeft"),
            requests: count("requests"),
            volumes: texts("volumeSet", "volumeId"),
            operations: texts("operationSet", "operation"),
            properties: PROPERTIES.into_iter().filter_map(property).collect(),
        }
    }
}

impl Item for Fault {
    const SCHEMA: &'static str = "evenkeel.faults/1";
    const FIELD: &'static str = "faults";
    const COLUMNS: &'static [&'static str] =
        &["FAULT", "TYPE", "TARGETS", "PROPERTIES", "SECONDS LEFT", "REQUESTS"];

    fn cells(&self) -> Vec<String> {
        let targets: Vec<&str> =
            self.volumes.iter().chain(&self.operations).map(String::as_str).collect();
        let properties = self.properties.iter().map(|(name, value)| format!("{name}={value}"));
        vec![
            self.fault_id.clone(),
            self.fault_type.clone(),
            if targets.is_empty() { "all".to_owned() } else { targets.join(",") },
            properties.collect::<Vec<_>>().join(","),
            self.seconds_left.to_string(),
            self.requests.to_string(),
        ]
    }
}
