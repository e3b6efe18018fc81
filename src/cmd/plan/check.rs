//! `evenkeel plan check`: the verdict whether a layout carries a workload.

mod forms;

use super::format::{
    at, basis_lines, currency, money, money_exact, plain, seconds, span_us, waiting,
    waiting_at_most,
};
use super::input::{self, Case};
use super::{EXACT_REQUESTS_MAX, exact_ms};
use super::{html, json};
use crate::cli::{PlanCheck, PlanFormat};
use evenkeel_client::output::{self, Exit, Failure};
use evenkeel_lab::files;
use evenkeel_planner::answer::Rated;
use evenkeel_planner::risk::limit_words;
use evenkeel_planner::search::Wanted;
use evenkeel_planner::timeline::{Episode, Timeline, Times};
use serde_json::{Value, json};

/// The next step after a verdict that the layout does not carry the workload.
const NEXT: &str = "`evenkeel plan` with the same traces and flags names the cheapest that does";

pub fn run(arguments: &PlanCheck, format: PlanFormat) -> Result<(), Failure> {
    let case = Case::read_for_given(&arguments.traces, &arguments.rules).map_err(of_input)?;
    let rated = case.given(&arguments.layout, EXACT_REQUESTS_MAX).map_err(of_input)?;
    let wanted = input::wanted_of_given(arguments, &case.trace);
    let checked = Checked::of(&case, &rated, &wanted);
    if let Some(path) = &arguments.page.html {
        files::write(path, &html::check::page(&checked)?)?;
    }
    output::print(&match format {
        PlanFormat::Text => checked.text(),
        PlanFormat::Csv => output::csv(&COLUMNS, &checked.rows()),
        PlanFormat::Json => output::json(&checked.json()),
        PlanFormat::Html => html::check::page(&checked)?,
        PlanFormat::Junit => checked.junit(),
        PlanFormat::Markdown => checked.markdown(),
    })?;
    if checked.passes() {
        return Ok(());
    }
    let mut failed: Vec<String> =
        checked.checks.iter().filter(|it| !it.pass).map(Check::words).collect();
    if let Some(first) = checked.timeline.first {
        failed.push(format!("requests wait first {}", checked.episode(&first)));
    }
    let (layout, name) = (rated.found.layout, plain(&case.trace.name));
    Err(Failure::new(format!("{layout} does not carry {name}: {}", failed.join("; "))).hint(NEXT))
}

/// Sets the exit code of a failure before the verdict: 1 is the verdict that the layout does not
/// carry the workload.
fn of_input(failure: Failure) -> Failure {
    match failure.exit {
        Exit::Failed => failure.exit(Exit::Input),
        _ => failure,
    }
}

/// The check of the waiting.
pub(super) const THROTTLED: &str = "throttled a day";
/// The check of the cost, whose figures are millionths.
const COST: &str = "cost a month";

const COLUMNS: [&str; 4] = ["CHECK", "ALLOWED", "FOUND", "VERDICT"];

/// A condition, with its verdict.
pub(super) struct Check {
    pub(super) what: &'static str,
    pub(super) unit: String,
    pub(super) allowed: u64,
    found: u64,
    pub(super) pass: bool,
}

impl Check {
    /// Returns the allowed and the found value as they are shown: costs with all their digits if
    /// cents do not show that the found one is too much.
    pub(super) fn shown(&self) -> [String; 2] {
        let values = [self.allowed, self.found];
        let cents = values.map(money);
        match (self.what, self.unit.as_str()) {
            (COST, _) if !self.pass && cents[0] == cents[1] => values.map(money_exact),
            (COST, _) => cents,
            (_, "s") => values.map(seconds),
            _ => values.map(|value| value.to_string()),
        }
    }

    /// Returns its name, with the unit of its values.
    fn title(&self) -> String {
        format!("{} {}", self.what, self.unit)
    }

    fn words(&self) -> String {
        let Self { what, unit, .. } = self;
        let [allowed, found] = self.shown();
        match *what {
            "capacity" => format!("it has {allowed} {unit}, and must hold {found}"),
            what => format!("{what}: {found} {unit}, allowed are {allowed}"),
        }
    }
}

pub(super) struct Checked<'a> {
    pub(super) case: &'a Case,
    pub(super) rated: &'a Rated,
    pub(super) checks: Vec<Check>,
    timeline: Timeline,
    times: Times,
}

/// Rounds milliseconds up as a table shows them, so that the shown value decides.
const fn as_shown(ms: u64) -> u64 {
    match ms {
        0..10_000 => ms.div_ceil(100) * 100,
        _ => ms.div_ceil(1_000) * 1_000,
    }
}

impl<'a> Checked<'a> {
    fn of(case: &'a Case, rated: &'a Rated, wanted: &Wanted) -> Self {
        let found = &rated.found;
        // The search for layouts decides in this way, too.
        let pass = found.waits_as_wanted(&case.demand, wanted);
        let waited_ms = as_shown(found.waited_us_per_day(&case.demand).div_ceil(1_000));
        let allowed = wanted.throttled_us_per_day_max / 1_000;
        let unit = "s".to_owned();
        let mut checks = vec![Check { what: THROTTLED, unit, allowed, found: waited_ms, pass }];
        for (permille, most_us) in &wanted.delays {
            let what = match permille {
                500 => "p50 wait",
                990 => "p99 wait",
                _ => "p99.9 wait",
            };
            let found_us = found.delays().permille(*permille);
            checks.push(Check {
                what,
                unit: "ms".to_owned(),
                allowed: most_us / 1_000,
                found: found_us.div_ceil(1_000),
                pass: found_us <= *most_us,
            });
        }
        let layout = &rated.found.layout;
        let has = u64::from(layout.each.size_gib) * u64::from(layout.volumes);
        if wanted.capacity_gib > 0 {
            checks.push(Check {
                what: "capacity",
                unit: "GiB".to_owned(),
                allowed: has,
                found: wanted.capacity_gib,
                pass: wanted.capacity_gib <= has,
            });
        }
        checks.extend(wanted.monthly_max.map(|allowed| {
            let found = rated.found.total();
            Check { what: COST, unit: currency(case), allowed, found, pass: found <= allowed }
        }));
        // Only the times of waiting are used, so one step is enough.
        let timeline = Timeline::of(&case.space, &case.demand, layout, case.demand.length_us);
        Self { case, rated, checks, timeline, times: Times::of(&case.trace) }
    }

    pub(super) fn passes(&self) -> bool {
        self.checks.iter().all(|check| check.pass)
    }

    fn rows(&self) -> Vec<Vec<String>> {
        let row = |check: &Check| {
            let [allowed, found] = check.shown();
            vec![check.title(), allowed, found, if check.pass { "ok" } else { "failed" }.to_owned()]
        };
        self.checks.iter().map(row).collect()
    }

    fn text(&self) -> String {
        let mut text = format!("{}\n{}\n", self.headline(), basis_lines(self.case));
        text += &output::table(&COLUMNS, &self.rows());
        text.push('\n');
        for line in self.waiting_lines() {
            text += &format!("{line}\n");
        }
        text
    }

    fn verdict(&self) -> &'static str {
        if self.passes() { "carries" } else { "does not carry" }
    }

    /// Returns the verdict in a sentence.
    pub(super) fn headline(&self) -> String {
        let layout = self.rated.found.layout;
        format!("{layout} {} {}", self.verdict(), plain(&self.case.trace.name))
    }

    /// Returns when and for how long requests wait, in sentences.
    pub(super) fn waiting_lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        if let (Some(first), Some(longest)) = (self.timeline.first, self.timeline.longest) {
            lines.push(format!("requests wait first {}", self.episode(&first)));
            if self.timeline.episodes > 1 {
                let episodes = self.timeline.episodes;
                let longest = self.episode(&longest);
                lines.push(format!("the longest of {episodes} times: {longest}"));
            }
        }
        if let Some(exact) = &self.rated.found.exact {
            lines.push(format!(
                "request by request on the scheduler: {} s of waiting a day, p99 {} ms",
                waiting(self.case, exact_ms(self.case, exact)),
                exact.delays.permille(990).div_ceil(1_000),
            ));
        }
        let [even, _, worst] = self.rated.throttled_ms_per_day;
        if worst > even {
            lines.push(format!(
                "whatever the steps of the trace hide: {} to {} s of waiting a day",
                waiting(self.case, even),
                waiting_at_most(self.case, worst)
            ));
        }
        lines
    }

    fn episode(&self, episode: &Episode) -> String {
        format!(
            "from {} on for {}, at the limit of {}",
            at(self.case.trace.clock, self.times.ms(episode.start_us)),
            span_us(episode.length_us()),
            limit_words(episode.limit),
        )
    }

    fn json(&self) -> Value {
        let check = |check: &Check| {
            json!({
                "check": check.what,
                "unit": match (check.what, check.unit.as_str()) {
                    (COST, currency) => format!("millionths of {currency}"),
                    (_, "s") => "ms".to_owned(),
                    (_, unit) => unit.to_owned(),
                },
                "allowed": check.allowed,
                "found": check.found,
                "pass": check.pass,
            })
        };
        let episode = |episode: Episode| {
            json!({
                "start_ms": self.times.ms(episode.start_us),
                "length_ms": episode.length_us() / 1_000,
                "limit": limit_words(episode.limit),
            })
        };
        let exact = self.rated.found.exact.as_ref();
        let value = json!({
            "schema": "evenkeel.plan.check/1",
            "trace": json::trace_json(&self.case.trace),
            "pass": self.passes(),
            "checks": self.checks.iter().map(check).collect::<Vec<_>>(),
            "waiting": {
                "times": self.timeline.episodes,
                "first": self.timeline.first.map(episode),
                "longest": self.timeline.longest.map(episode),
            },
            "layout": json::layout_json(self.case, self.rated),
            "by_scheduler": exact.map(|exact| json::exact_json(self.case, exact)),
        });
        json::with_basis(self.case, value)
    }
}
