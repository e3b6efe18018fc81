//! `evenkeel plan`: the cheapest layouts for a recorded workload.

mod commands;
mod input;
mod json;
mod text;
mod words;

use crate::cli::Plan;
use crate::message::{self, Failure, Format};
use evenkeel_core::units::MIB;
use evenkeel_planner::answer::{self, Asked, Rated};
use evenkeel_planner::demand::Demand;
use evenkeel_planner::exact::{self, Exact};
use evenkeel_planner::neighbours::{self, Less};
use evenkeel_planner::search::{self, Space};
use evenkeel_planner::trace::Trace;

/// The most requests of one volume that are replayed one by one: some seconds.
const EXACT_REQUESTS_MAX: u64 = 20_000_000;
/// The same of a layout that has one unit less than the cheapest.
const NEIGHBOUR_REQUESTS_MAX: u64 = 5_000_000;

pub fn run(arguments: &Plan) -> Result<(), Failure> {
    let trace = input::trace(&arguments.traces)?;
    let space = input::space(&arguments.rules, &arguments.wanted)?;
    let wanted = input::wanted(&arguments.wanted, &trace)?;
    let assume = input::assume(&arguments.traces);
    let demand = Demand::of(&trace, assume);
    let found = search::cheapest_few(&space, &demand, &wanted, arguments.top.into());
    if found.is_empty() {
        return Err(nothing(&demand));
    }
    let rated = answer::rate(&space, &trace, &demand, found);
    let first = rated.first().map(|rated| rated.found.layout);
    let exact = first.and_then(|it| exact::replay(&space, &demand, &it, EXACT_REQUESTS_MAX));
    let asked = answer::asked(&demand);
    let less = first.map_or_else(Vec::new, |first| neighbours::one_less(&space, &wanted, &first));
    let less = less.into_iter().map(|(less, layout)| {
        (less, exact::replay(&space, &demand, &layout, NEIGHBOUR_REQUESTS_MAX))
    });
    let less = less.collect();
    let told = Told { trace: &trace, asked, space: &space, rated: &rated, exact, less };
    match arguments.output.format {
        Format::Text => message::print(&text::text(&told)),
        Format::Csv => message::print(&message::csv(&text::COLUMNS, &text::rows(&told))),
        Format::Json => message::print(&message::json(&json::json_of(&told))),
    }
}

/// What an answer is made of.
struct Told<'a> {
    trace: &'a Trace,
    asked: Asked,
    space: &'a Space,
    rated: &'a [Rated],
    /// The cheapest, if few enough of its requests may wait.
    exact: Option<Exact>,
    /// What the scheduler does with one unit less than the cheapest has.
    less: Vec<(Less, Option<Exact>)>,
}

fn nothing(demand: &Demand) -> Failure {
    let Asked { peak_iops, peak_bytes_per_second, .. } = answer::asked(demand);
    let message = format!(
        "no layout does this: the busiest interval has {peak_iops} requests and {} MiB a second",
        peak_bytes_per_second / MIB
    );
    Failure::new(message).hint(
        "allow waiting (--throttled, --p99), more volumes (--stripes), more types (--types), or \
         a higher cost (--max-monthly); or ask for less --capacity",
    )
}

/// Milliseconds a day in which requests wait by the replay that the search went by.
fn assumed_ms(told: &Told<'_>, rated: &Rated) -> u64 {
    let outcome = &rated.found.outcome;
    let length_us = told.trace.known_ms().saturating_mul(1_000);
    answer::ms_per_day(outcome.waited_us(), length_us.max(outcome.end_us))
}

/// Milliseconds a day in which requests wait on the scheduler.
fn exact_ms(told: &Told<'_>, exact: &Exact) -> u64 {
    let length_us = told.trace.known_ms().saturating_mul(1_000);
    answer::ms_per_day(exact.waited_us, length_us.max(exact.waited_us))
}
