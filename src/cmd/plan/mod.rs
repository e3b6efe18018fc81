//! `evenkeel plan`: the cheapest layouts for a recorded workload, and what happens on layouts.

mod check;
mod commands;
mod compare;
mod device;
mod explain;
mod fleet;
mod format;
mod html;
mod input;
mod json;
mod notes;
mod prices;
mod text;

use crate::cli::{Plan, PlanFormat, PlanVerb};
use evenkeel_client::output::{self, Exit, Failure};
use evenkeel_core::units::MIB;
use evenkeel_core::volume::VolumeType;
use evenkeel_lab::files;
use evenkeel_planner::answer::{self, Asked, Rated};
use evenkeel_planner::exact::{self, Exact};
use evenkeel_planner::neighbours::{self, Less};
use evenkeel_planner::search::{self, Found, Space, Wanted};
use evenkeel_planner::steady;
use input::Case;

/// The most requests of one volume that are replayed one by one: some seconds.
const EXACT_REQUESTS_MAX: u64 = 20_000_000;
/// The same of each layout that is compared with others.
const COMPARED_REQUESTS_MAX: u64 = 5_000_000;
/// The same of a layout that has one unit less than the cheapest.
const NEIGHBOUR_REQUESTS_MAX: u64 = 5_000_000;

pub fn run(arguments: &Plan) -> Result<(), Failure> {
    let output = &arguments.output;
    match &arguments.verb {
        None => plan(arguments),
        Some(PlanVerb::Check(check)) => check::run(check, output.listing()?),
        Some(PlanVerb::Compare(compare)) => compare::run(compare, output.listing()?),
        Some(PlanVerb::Explain(explain)) => explain::run(explain, output.listing()?),
        Some(PlanVerb::Fleet(fleet)) => {
            let region = &arguments.traces.connection.region;
            fleet::run(fleet, prices::named_region(region), output.listing()?)
        }
    }
}

fn plan(arguments: &Plan) -> Result<(), Failure> {
    let space = space_of(arguments)?;
    let case = Case::read(&arguments.traces, space)?;
    let wanted = input::wanted(&arguments.wanted, &case.trace)?;
    let found = cheapest(&case, &wanted, arguments.top.into())?;
    let rated = answer::rate(&case.space, &case.trace, &case.demand, found);
    let less = rated.first().map_or_else(Vec::new, |rated| {
        neighbours::one_less(&case.space, &wanted, &rated.found.layout)
    });
    let less = less.into_iter().map(|(less, layout)| {
        (less, exact::replay(&case.space, &case.demand, &layout, NEIGHBOUR_REQUESTS_MAX))
    });
    let (asked, less) = (answer::asked(&case.demand), less.collect());
    let notes = notes::of(&case, &wanted, &rated);
    let told = PlanAnswer { case: &case, asked, rated: &rated, less, notes };
    if let Some(path) = &arguments.html {
        files::write(path, &html::page(&told, &wanted)?)?;
    }
    match arguments.output.format {
        PlanFormat::Text => output::print(&text::text(&told)),
        PlanFormat::Csv => {
            let columns = text::columns(&case);
            let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
            output::print(&output::csv(&columns, &text::rows(&told)))
        }
        PlanFormat::Json => output::print(&output::json(&json::json_of(&told))),
        PlanFormat::Html => output::print(&html::page(&told, &wanted)?),
    }
}

/// What an answer is made of.
struct PlanAnswer<'a> {
    case: &'a Case,
    asked: Asked,
    rated: &'a [Rated],
    /// What the scheduler does with one unit less than the cheapest has.
    less: Vec<(Less, Option<Exact>)>,
    /// What is no candidate, and what has no price.
    notes: Vec<String>,
}

fn space_of(arguments: &Plan) -> Result<Space, Failure> {
    let (wanted, region) = (&arguments.wanted, &arguments.traces.connection.region);
    input::space(&arguments.rules, region, &wanted.types, wanted.stripes)
}

/// The first so many layouts that do what is wanted, cheapest first; there is one at least.
fn cheapest(case: &Case, wanted: &Wanted, count: usize) -> Result<Vec<Found>, Failure> {
    let found = cheapest_in(&case.space, case, wanted, count);
    match found.is_empty() {
        true => Err(nothing(case, wanted)),
        false => Ok(lasting_first(case, wanted, count, found)),
    }
}

fn cheapest_in(space: &Space, case: &Case, wanted: &Wanted, count: usize) -> Vec<Found> {
    let found = search::sharpest(space, &case.demand, wanted, count);
    search::settle(space, &case.demand, wanted, found, EXACT_REQUESTS_MAX)
}

/// What carries the workload month after month first, and behind it what lives on credits that run
/// out. Where some do, types without credits are looked for by themselves.
fn lasting_first(case: &Case, wanted: &Wanted, count: usize, found: Vec<Found>) -> Vec<Found> {
    let runs_dry =
        |found: &Found| steady::dry_after_s(&case.space, &case.demand, &found.layout).is_some();
    let (dry, mut lasting): (Vec<Found>, Vec<Found>) = found.into_iter().partition(runs_dry);
    if dry.is_empty() {
        return lasting;
    }
    let has_no_credits = |volume_type: &VolumeType| {
        !matches!(volume_type, VolumeType::Gp2 | VolumeType::St1 | VolumeType::Sc1)
    };
    let types = case.space.types.iter().copied().filter(has_no_credits).collect();
    let space = Space { types, ..case.space.clone() };
    for other in cheapest_in(&space, case, wanted, count) {
        if !lasting.iter().any(|found| found.layout == other.layout) {
            lasting.push(other);
        }
    }
    lasting.sort_by_key(Found::total);
    lasting.extend(dry);
    lasting.truncate(count);
    lasting
}

fn nothing(case: &Case, wanted: &Wanted) -> Failure {
    let most = largest(&case.space, wanted);
    if most.is_none() {
        let message = format!(
            "none of these types comes into question: by the rules of {} they are not sold, boot \
             no host, or are for one host only",
            case.space.rules.date()
        );
        return Failure::new(message).hint("name others with --types, or another day with --as-of");
    }
    let unpriced = case.space.unpriced(wanted);
    if unpriced.len() == case.space.suitable(wanted).count() {
        let message = format!("no candidate is left: {}", notes::unpriced(&case.space, &unpriced));
        let hint = "choose another day with --as-of, other --types, or another book with --prices";
        return Failure::new(message).exit(Exit::Usage).hint(hint);
    }
    if let Some(most) = most.filter(|most| *most < wanted.capacity_gib) {
        let message = format!(
            "no layout holds {} GiB: with at most {} volumes the largest has {most} GiB",
            wanted.capacity_gib,
            case.space.most_volumes()
        );
        return Failure::new(message)
            .hint("allow more volumes (--stripes) or types (--types), or ask for less --capacity");
    }
    let Asked { peak_iops, peak_bytes_per_second, .. } = answer::asked(&case.demand);
    let message = format!(
        "no layout does this: the busiest interval has {peak_iops} requests and {} MiB a second",
        peak_bytes_per_second / MIB
    );
    Failure::new(message).hint(
        "allow waiting (--throttled, --p99), more volumes (--stripes), more types (--types), or a \
         higher cost (--max-monthly), a stronger --instance; or ask for less --capacity. Each \
         volume must fit on a device of --prices",
    )
}

/// The GiB of the largest layout of the types that are allowed; `None` if no type is.
fn largest(space: &Space, wanted: &Wanted) -> Option<u64> {
    let volumes = u64::from(space.most_volumes());
    space.suitable(wanted).map(|rules| u64::from(rules.size_gib_max) * volumes).max()
}

/// Milliseconds a day in which requests wait with what is assumed: by the scheduler, where it was
/// asked.
fn assumed_ms(case: &Case, found: &Found) -> u64 {
    let length_us = case.trace.known_ms().saturating_mul(1_000);
    answer::ms_per_day(found.waited_us(), length_us.max(found.end_us()))
}

/// Which model a layout's waits are from.
const fn model(found: &Found) -> &'static str {
    if found.exact.is_some() { "scheduler" } else { "fluid" }
}

/// Milliseconds a day in which requests wait on the scheduler.
fn exact_ms(case: &Case, exact: &Exact) -> u64 {
    let length_us = case.trace.known_ms().saturating_mul(1_000);
    answer::ms_per_day(exact.waited_us, length_us.max(exact.end_us))
}
