//! `evenkeel fault`: faults of a server for tests.

use crate::cli::{FaultArgs, FaultStart, FaultVerb};
use evenkeel_cli::connect;
use evenkeel_client::output::{self, Failure};
use evenkeel_client::test_server::Fault;

/// Text of a listing without faults.
const NONE: &str = "no fault is in force; start one with `evenkeel fault start TYPE`";

pub fn run(arguments: &FaultArgs) -> Result<(), Failure> {
    let client = connect::client(&arguments.connection)?;
    let faults = match &arguments.verb {
        FaultVerb::Start(start) => {
            let parameters = parameters(start);
            let parameters: Vec<(&str, &str)> =
                parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            vec![Fault::started(&client.call("StartTestFault", &parameters)?)]
        }
        FaultVerb::List => Fault::set(&client.call("DescribeTestFaults", &[])?),
        FaultVerb::Stop { faults } => {
            let ids = numbered("FaultId", faults);
            let ids: Vec<(&str, &str)> =
                ids.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
            Fault::set(&client.call("StopTestFaults", &ids)?)
        }
    };
    output::print(&output::listing(&faults, arguments.output.format, NONE))
}

/// Returns the parameters of a list.
fn numbered<T: ToString>(name: &str, values: &[T]) -> Vec<(String, String)> {
    let numbered = (1..).zip(values);
    numbered.map(|(number, value)| (format!("{name}.{number}"), value.to_string())).collect()
}

fn parameters(start: &FaultStart) -> Vec<(String, String)> {
    let mut all = vec![
        ("FaultType".to_owned(), start.fault.clone()),
        ("DurationSeconds".to_owned(), start.lasting.as_secs().to_string()),
    ];
    all.extend(numbered("VolumeId", &start.volumes));
    all.extend(numbered("Operation", &start.operations));
    let numbers = [
        ("Percentage", start.percent.map(u64::from)),
        ("ReadPercentage", start.read_percent.map(u64::from)),
        ("WritePercentage", start.write_percent.map(u64::from)),
        ("ReadLatencyMilliseconds", start.read_ms),
        ("WriteLatencyMilliseconds", start.write_ms),
        ("Seed", start.seed),
    ];
    let given = |(name, value): (&str, Option<u64>)| Some((name.to_owned(), value?.to_string()));
    all.extend(numbers.into_iter().filter_map(given));
    all
}
