//! `evenkeel clock`: the clock of a server for tests.

use crate::cli::{ClockArgs, ClockVerb};
use evenkeel_cli::connect;
use evenkeel_client::output::{self, Failure};
use evenkeel_client::test_server::Clock;

pub fn run(arguments: &ClockArgs) -> Result<(), Failure> {
    let client = connect::client(&arguments.connection)?;
    let modify = |name: &str, value: &str| client.call("ModifyTestClock", &[(name, value)]);
    let answer = match &arguments.verb {
        ClockVerb::Show => client.call("DescribeTestClock", &[])?,
        ClockVerb::Advance { by } => modify("AdvanceSeconds", &by.as_secs().to_string())?,
        ClockVerb::Set { to } => modify("Time", to)?,
        ClockVerb::Freeze => modify("State", "frozen")?,
        ClockVerb::Run => modify("State", "running")?,
    };
    output::print(&output::listing(&[Clock::read(&answer)], arguments.output.format, ""))
}
