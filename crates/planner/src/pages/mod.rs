//! The answers as pages: their words, and the figures of their charts.

mod check;
mod compare;
mod curves;
mod fleet;
mod frontier;
mod parts;
mod worst;

use crate::answer::{Rated, assumed_ms, sentence};
use crate::commands::commands;
use crate::comparison::Comparison;
use crate::fleet::answer::FleetAnswer;
use crate::format::{
    asked_words, currency, hdd_words, headroom_words, layout_words, money, plain, saving_words,
    waiting,
};
use crate::refusal::Refusal;
use crate::search::{Found, Wanted};
use crate::verdict::Verdict;
use crate::{Answer, Case};
use curves::{DRAWN_MAX, Drawn};
use evenkeel_pages::DrawError;
use evenkeel_pages::page::{Page, Part};

/// The origin of layouts of the frontier.
const ALLOWED: &str = " Found by allowing a minute, ten, an hour and a day of waiting a day.";

impl From<DrawError> for Refusal {
    fn from(error: DrawError) -> Self {
        Self::new(error.to_string())
    }
}

impl Answer<'_> {
    /// Returns the answer as one HTML page that contains its charts.
    ///
    /// # Errors
    /// If there is no layout, or a chart cannot be drawn.
    pub fn html(&self) -> Result<String, Refusal> {
        page(self)
    }
}

impl Verdict<'_> {
    /// Returns the verdict as one HTML page that contains its charts.
    ///
    /// # Errors
    /// If a chart cannot be drawn.
    pub fn html(&self) -> Result<String, Refusal> {
        check::page(self)
    }
}

impl Comparison<'_> {
    /// Returns the comparison as one HTML page that contains its charts.
    ///
    /// # Errors
    /// If there is no layout, or a chart cannot be drawn.
    pub fn html(&self) -> Result<String, Refusal> {
        compare::page(self)
    }
}

impl FleetAnswer<'_> {
    /// Returns the answer as one HTML page, with the `top` changes that save the most.
    ///
    /// # Errors
    /// If a chart cannot be drawn.
    pub fn html(&self, top: usize) -> Result<String, Refusal> {
        fleet::page(self, top)
    }
}

/// Returns the page of a plan.
fn page(answer: &Answer<'_>) -> Result<String, Refusal> {
    let Answer { case, wanted, rated, .. } = answer;
    let Some(first) = rated.first() else { return Err(Refusal::new("there is no layout")) };
    let shown = answer.drawn(DRAWN_MAX);
    let mut parts = vec![parts::layouts(case, &shown, DRAWN_MAX)];
    parts.extend(Drawn::of(case, &shown).parts());
    let mut all: Vec<Found> = rated.iter().map(|rated| rated.found.clone()).collect();
    all.extend(frontier::with_allowances(case, wanted));
    parts.push(frontier::frontier(case, all, ALLOWED));
    let is_change = case.is_advised() && !answer.is_present(first);
    if case.not_shown.is_none() || is_change {
        parts.push(Part::Commands {
            title: "There and back".to_owned(),
            commands: all_commands(case, first),
        });
    }
    parts.push(parts::assumptions(case, allowed(wanted), &answer.notes));
    let page = Page {
        verb: "plan",
        title: plain(&case.trace.name),
        about: about(answer, first.found.total()),
        headline: format!(
            "{}: {} {} a month, requests wait {} s a day{}",
            layout_words(case, &first.found.layout),
            money(first.found.total()),
            currency(case),
            waiting(case, assumed_ms(case, &first.found)),
            parts::unsure_words(case, first),
        ),
        mark: parts::mark(case, first),
        warnings: parts::warnings(case, first),
        parts,
    };
    Ok(page.to_html()?)
}

fn about(answer: &Answer<'_>, total: u64) -> Vec<String> {
    let case = answer.case;
    let mut about = vec![parts::recording(case), asked_words(&answer.asked)];
    about.extend(headroom_words(case));
    about.extend(sentence::advice(answer).filter(|_| case.not_shown.is_some()));
    about.extend(answer.on_hdd.iter().map(|on_hdd| hdd_words(case, on_hdd, total)));
    about.extend(saving_words(case, total).map(|words| format!("The cheapest {words}")));
    about
}

/// Returns the letter of a layout in charts; empty if it is not drawn.
fn letter(place: usize) -> String {
    let mut letters = ('A'..).take(DRAWN_MAX);
    letters.nth(place).map_or_else(String::new, String::from)
}

/// Returns the conditions on layouts.
fn allowed(wanted: &Wanted) -> Vec<(String, String)> {
    let term = |name: &str, words: String| (name.to_owned(), words);
    let seconds = wanted.throttled_us_per_day_max / 1_000_000;
    let mut all = vec![
        term("Capacity", format!("{} GiB", wanted.capacity_gib)),
        term("Allowed", format!("{seconds} s of waiting a day")),
    ];
    for (permille, us) in &wanted.delays {
        let share = format!("{permille} of 1,000 requests wait at most {} ms", us / 1_000);
        all.push(term("Allowed", share));
    }
    all
}

/// Returns the commands of a layout by their tools. What makes one device of several volumes is
/// the same for all tools, and stands once.
fn all_commands(case: &Case, first: &Rated) -> Vec<(String, String)> {
    let all = commands(case, &first.found.layout);
    let notes = |notes: &[String]| notes.iter().map(|note| format!("# {note}")).collect();
    let joined = |parts: [&[String]; 2]| parts.concat().join("\n");
    let there: Vec<String> = notes(&all.notes);
    let back: Vec<String> = notes(&all.back.notes);
    let mut all_tools = vec![
        ("aws-cli".to_owned(), joined([&all.aws, &there])),
        ("evenkeel".to_owned(), joined([&all.evenkeel, &there])),
        ("Terraform".to_owned(), all.terraform.trim_end().to_owned()),
        ("On the host: one device of all volumes".to_owned(), all.stripe.join("\n")),
        ("Back, with aws-cli".to_owned(), joined([&all.back.aws, &back])),
        ("Back, with evenkeel".to_owned(), joined([&all.back.evenkeel, &back])),
    ];
    all_tools.retain(|(_, lines)| !lines.is_empty());
    all_tools
}
