//! Answers about a server for tests: its clock.

use crate::model::text;
use crate::output::Item;
use evenkeel_wire::aws::xml::Element;
use serde::Serialize;

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
