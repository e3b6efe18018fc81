//! Words that several verbs of `evenkeel autopilot` share.

use evenkeel_planner::autopilot::decide::{Forecast, words};
use evenkeel_planner::autopilot::operation::Operation;
use evenkeel_planner::autopilot::state::Axis;
use evenkeel_planner::format;
use evenkeel_planner::trace::Clock;
use evenkeel_sim::text::span;

/// Returns a time, in UTC.
pub fn time(unix_ms: u64) -> String {
    format::at(Clock::Unix, unix_ms)
}

/// Returns an operation in a few words.
pub fn operation(operation: &Operation) -> String {
    match operation {
        Operation::Modify { volume, from, to } => {
            format!("modify {volume} from {} to {}", words::spec(from), words::spec(to))
        }
        Operation::Add { spec } => format!("add a volume: {}", words::spec(spec)),
        Operation::Remove { volume } => format!("remove {volume}"),
        Operation::Replace { volume, with } => {
            format!("replace {volume} by {}", words::spec(with))
        }
        Operation::Delete { volume } => format!("delete {volume}"),
    }
}

/// Returns what a brake prevents.
pub fn change(axis: Axis, is_up: bool) -> String {
    let what = match axis {
        Axis::Space => "space",
        Axis::Rate => "IOPS or MiB/s",
    };
    let direction = if is_up { "more" } else { "less" };
    format!("{direction} {what}")
}

/// Returns a forecast as a sentence.
pub fn forecast(forecast: &Forecast, free_bytes: u64) -> String {
    let likely = match forecast.full_in_s_likely {
        Some(seconds) => format!("in {} by its largest growth", span(seconds)),
        None => "never by its largest growth".to_owned(),
    };
    let least = match forecast.full_in_s_min {
        Some(seconds) => format!("in {} at the volumes' MiB/s", span(seconds)),
        None => "not known at the volumes' MiB/s".to_owned(),
    };
    format!(
        "{} free, {} wanted; full {least}, {likely}",
        words::bytes(free_bytes),
        words::bytes(forecast.wanted_free_bytes)
    )
}
