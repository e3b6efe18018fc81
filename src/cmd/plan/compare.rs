//! `evenkeel plan compare`: layouts side by side.

use super::{failure, input, of_file, write_page};
use crate::cli::{PlanCompare, PlanFormat, PlanOutput};
use evenkeel_client::output::{self, Failure};
use evenkeel_planner::case::Wishes;
use evenkeel_planner::comparison;
use evenkeel_planner::verdict::NEXT;

pub fn run(arguments: &PlanCompare, format: PlanFormat) -> Result<(), Failure> {
    // Before files are read, which takes time.
    comparison::check_count(arguments.layouts.len()).map_err(failure)?;
    let case = input::of_layouts(&arguments.traces, &arguments.rules, Wishes::default());
    let case = case.map_err(of_file)?;
    let comparison = case.compare(&arguments.layouts).map_err(failure)?;
    if let Some(path) = &arguments.page.html {
        write_page(path, &comparison.html().map_err(failure)?)?;
    }
    output::print(&match format {
        PlanFormat::Text => comparison.text(),
        PlanFormat::Csv => comparison.csv(),
        PlanFormat::Json => output::json(&comparison.json()),
        PlanFormat::Html => comparison.html().map_err(failure)?,
        PlanFormat::Junit | PlanFormat::Markdown => return Err(PlanOutput::no_verdict()),
    })?;
    match comparison.impossible_words().as_slice() {
        [] => Ok(()),
        words => Err(Failure::new(words.join("; ")).hint(NEXT)),
    }
}
