//! `evenkeel plan`: the cheapest layouts for a recorded workload, and what happens on layouts.
//!
//! The planner answers. This module reads flags and files into its questions, and prints.

mod aws;
mod check;
mod compare;
mod described;
mod explain;
mod fleet;
mod input;
pub mod prices;
mod recordings;

use crate::cli::{Plan, PlanFormat, PlanOutput, PlanVerb};
use evenkeel_client::output::{self, Exit, Failure};
use evenkeel_lab::files;
use evenkeel_planner::Case;
use evenkeel_planner::refusal::{Cause, Refusal};
use std::io;
use std::path::Path;

pub fn run(arguments: &Plan) -> Result<(), Failure> {
    let output = &arguments.output;
    let is_check = matches!(arguments.verb, Some(PlanVerb::Check(_)));
    if !is_check && matches!(output.format, PlanFormat::Junit | PlanFormat::Markdown) {
        return Err(PlanOutput::no_verdict());
    }
    match &arguments.verb {
        None => plan(arguments),
        Some(PlanVerb::Aws(flags)) => {
            let region = prices::named_region(&arguments.traces.connection);
            let files = aws::run(flags, region, output.format)?;
            if output.format == PlanFormat::Text && !files.is_empty() {
                one_volume(&aws::plan_of(arguments, flags, files));
            }
            Ok(())
        }
        Some(PlanVerb::Check(check)) => check::run(check, output.format),
        Some(PlanVerb::Compare(compare)) => compare::run(compare, output.format),
        Some(PlanVerb::Explain(explain)) => explain::run(explain, output.listing()?),
        Some(PlanVerb::Fleet(fleet)) => {
            let region = prices::named_region(&arguments.traces.connection);
            fleet::run(fleet, region, output.format)
        }
    }
}

/// Prints the plan of the only volume of an account below what `plan fleet` says of it. That the
/// recording is too short for a plan, or that no layout does it, is no error of the account's.
fn one_volume(arguments: &Plan) {
    if let Err(failure) = output::print("\n").and_then(|()| plan(arguments)) {
        eprintln!("no plan of this volume: {}", failure.message);
        if let Some(hint) = failure.hint {
            eprintln!(" hint: {hint}");
        }
    }
}

fn plan(arguments: &Plan) -> Result<(), Failure> {
    let case =
        input::of_search(&arguments.traces, &arguments.rules, &arguments.wanted, arguments.top);
    let case = case.map_err(of_file)?;
    let format = arguments.output.format;
    let has_page = arguments.page.html.is_some() || format == PlanFormat::Html;
    if case.is_without_size() && !has_page {
        return without_size(&case, format);
    }
    let answer = case.answer().map_err(failure)?;
    if let Some(path) = &arguments.page.html {
        write_page(path, &answer.html().map_err(failure)?)?;
    }
    output::print(&match format {
        PlanFormat::Text | PlanFormat::Junit | PlanFormat::Markdown => answer.text(),
        PlanFormat::Csv => answer.csv(),
        PlanFormat::Json => output::json(&answer.json()),
        PlanFormat::Html => answer.html().map_err(failure)?,
    })
}

fn without_size(case: &Case, format: PlanFormat) -> Result<(), Failure> {
    let answer = case.answer_without_size().map_err(failure)?;
    output::print(&match format {
        PlanFormat::Csv => answer.csv(),
        PlanFormat::Json => output::json(&answer.json()),
        PlanFormat::Text | PlanFormat::Html | PlanFormat::Junit | PlanFormat::Markdown => {
            answer.text()
        }
    })
}

/// Writes a page beside an answer.
fn write_page(path: &Path, page: &str) -> Result<(), Failure> {
    files::write(path, page).map_err(|error| of_file(error.into()))
}

/// Sets the exit code of a file that cannot be read or written: 1 says that no layout does what is
/// wanted, or that one does not carry the workload.
fn of_file(failure: Failure) -> Failure {
    match failure.exit {
        Exit::Failed => failure.exit(Exit::Input),
        _ => failure,
    }
}

/// Returns the failure of a file that cannot be opened; `hint` says which files there are.
fn unopened(path: &Path, error: &io::Error, hint: &str) -> Failure {
    let failure = Failure::new(format!("{}: {error}", path.display())).exit(Exit::Input);
    match error.kind() {
        io::ErrorKind::NotFound => failure.hint(hint),
        _ => failure,
    }
}

/// Returns the failure with the exit code of a refusal.
pub fn failure(refusal: Refusal) -> Failure {
    let exit = match refusal.cause {
        Cause::NoAnswer => Exit::Failed,
        Cause::Question => Exit::Usage,
        Cause::NotFound => Exit::NotFound,
        Cause::DoesNotFit => Exit::Refused,
        Cause::Undecided => Exit::Undecided,
    };
    Failure { exit, message: refusal.message, hint: refusal.hint }
}
