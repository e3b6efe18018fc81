//! The tables of many worlds.

use super::report::Row;
use evenkeel_client::output::Item;
use evenkeel_sim::text::{table, thousands};

/// The columns of the table of other rules.
const BESIDE: [&str; 5] = ["GENERATOR", "RULE", "FULL", "FULL/YEAR", "1.2 PEAK %"];

impl Item for Row {
    const SCHEMA: &'static str = "evenkeel.autopilot-worlds/1";
    const FIELD: &'static str = "generators";
    const COLUMNS: &'static [&'static str] = &[
        "GENERATOR",
        "YEARS",
        "FULL",
        "EXCUSED",
        "BROKEN RULES",
        "CHANGES/YEAR",
        "CLAIRVOYANT %",
        "BEST STATIC %",
        "OF BTRFS %",
        "PEAK %",
        "1.2 PEAK %",
        "BRAKES (DAYS)",
    ];

    fn cells(&self) -> Vec<String> {
        let changes: u64 =
            self.operations.iter().filter(|(name, _)| **name != "delete").map(|(_, n)| n).sum();
        vec![
            self.generator.to_owned(),
            thousands(self.years),
            thousands(self.full_events),
            thousands(self.full_events_excused),
            thousands(self.violations),
            tenths(changes * 10 / self.years.max(1)),
            tenths(self.of_clairvoyant),
            tenths(self.of_best_static),
            tenths(self.of_best_static_btrfs),
            tenths(self.of_peak),
            tenths(self.of_usual_static),
            brakes(self),
        ]
    }
}

/// Returns the three brakes with the most days.
fn brakes(row: &Row) -> String {
    let mut brakes: Vec<(&String, &u64)> = row.brakes.iter().collect();
    brakes.sort_by_key(|(name, days)| (std::cmp::Reverse(**days), *name));
    let most = brakes.iter().take(3).map(|(name, days)| format!("{name} {days}"));
    most.collect::<Vec<_>>().join(", ")
}

/// Returns the table of other rules; empty without them.
#[must_use]
pub fn others(rows: &[Row]) -> String {
    let cells = beside(rows);
    if cells.is_empty() { String::new() } else { table(&BESIDE, &cells) }
}

/// Returns the rows of other rules.
fn beside(rows: &[Row]) -> Vec<Vec<String>> {
    let mut cells = Vec::new();
    for row in rows {
        for (name, other) in &row.others {
            cells.push(vec![
                row.generator.to_owned(),
                (*name).to_owned(),
                thousands(other.full_events),
                per_year(other.full_events, row.years),
                tenths(other.of_usual_static),
            ]);
        }
    }
    cells
}

fn tenths(number: u64) -> String {
    format!("{}.{}", number / 10, number % 10)
}

fn per_year(count: u64, years: u64) -> String {
    let thousandths = count * 1_000 / years.max(1);
    format!("{}.{:03}", thousandths / 1_000, thousandths % 1_000)
}
