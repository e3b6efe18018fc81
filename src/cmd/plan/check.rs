//! `evenkeel plan check`: the verdict whether a layout carries a workload.

use super::{failure, input, of_file, write_page};
use crate::cli::{PlanCheck, PlanFormat};
use evenkeel_client::output::{self, Failure};
use evenkeel_planner::verdict::NEXT;

pub fn run(arguments: &PlanCheck, format: PlanFormat) -> Result<(), Failure> {
    let wishes = input::wishes_of_check(arguments);
    let case = input::of_layouts(&arguments.traces, &arguments.rules, wishes).map_err(of_file)?;
    let verdict = case.check(&arguments.layout).map_err(failure).map_err(of_file)?;
    if let Some(path) = &arguments.page.html {
        write_page(path, &verdict.html().map_err(failure)?)?;
    }
    output::print(&match format {
        PlanFormat::Text => verdict.text(),
        PlanFormat::Csv => verdict.csv(),
        PlanFormat::Json => output::json(&verdict.json()),
        PlanFormat::Html => verdict.html().map_err(failure)?,
        PlanFormat::Junit => verdict.junit(),
        PlanFormat::Markdown => verdict.markdown(),
    })?;
    if verdict.passes() {
        return Ok(());
    }
    Err(Failure::new(verdict.failure_words()).hint(NEXT))
}
