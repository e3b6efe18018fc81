//! `evenkeel plan explain`: step by step what happens on a layout.

use super::{failure, input, of_file};
use crate::cli::PlanExplain;
use evenkeel_client::output::{self, Failure, Format};
use evenkeel_planner::case::Wishes;
use evenkeel_planner::explanation::Excerpt;
use evenkeel_planner::verdict::NEXT;

pub fn run(arguments: &PlanExplain, format: Format) -> Result<(), Failure> {
    let traces = &arguments.traces;
    let rules = &arguments.rules;
    let case = match &arguments.layout {
        Some(_) => input::of_layouts(traces, rules, Wishes::default()),
        None => input::of_search(traces, rules, &arguments.wanted, 1),
    };
    let case = case.map_err(of_file)?;
    let excerpt = Excerpt {
        step_s: arguments.step,
        from: arguments.from,
        to: arguments.to,
        lines_max: arguments.top.into(),
    };
    let explanation = case.explain(arguments.layout.as_deref(), &excerpt).map_err(failure)?;
    output::print(&match format {
        Format::Text => explanation.text(),
        Format::Csv => explanation.csv(),
        Format::Json => output::json(&explanation.json()),
    })?;
    match explanation.impossible_words() {
        None => Ok(()),
        Some(words) => Err(Failure::new(words).hint(NEXT)),
    }
}
