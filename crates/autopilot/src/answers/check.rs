//! `evenkeel autopilot check`.

use crate::audit::mode;
use crate::policy_file;
use evenkeel_client::output::{self, Failure, Format};
use evenkeel_planner::autopilot::policy::{Keep, Policy};
use evenkeel_planner::fleet;
use evenkeel_sim::text::{csv, table};
use serde_json::{Value, json};
use std::path::Path;

const COLUMNS: [&str; 6] = ["group", "mode", "tags", "space", "rates", "windows"];

/// Reads a file of policies, and returns its groups.
///
/// # Errors
/// If the file cannot be read, or is malformed.
pub fn text(path: &Path, format: Format) -> Result<String, Failure> {
    let (_, file) = policy_file::read(path, &fleet::Policy::usual())?;
    let rows: Vec<Vec<String>> = file.groups.iter().map(row).collect();
    Ok(match format {
        Format::Text => {
            let paused = if file.paused { "all groups are paused\n" } else { "" };
            table(&COLUMNS, &rows) + paused
        }
        Format::Csv => csv(&COLUMNS, &rows),
        Format::Json => output::json(&json!({
            "schema": "evenkeel.autopilot-policy/1",
            "paused": file.paused,
            "groups": rows.iter().map(to_json).collect::<Vec<_>>(),
        })),
    })
}

fn to_json(row: &Vec<String>) -> Value {
    let fields = COLUMNS.iter().zip(row);
    fields.map(|(name, cell)| ((*name).to_owned(), Value::from(cell.as_str()))).collect()
}

fn row(policy: &Policy) -> Vec<String> {
    let tags: Vec<String> =
        policy.tags.iter().map(|(key, value)| format!("{key}={value}")).collect();
    let space = match policy.space.keep {
        _ if !policy.space.is_managed => "observed",
        Keep::Hard => "hard",
        Keep::Likely => "likely",
    };
    let rates = if policy.rate.is_managed { "managed" } else { "observed" };
    let windows = match policy.windows.len() {
        0 => "any time".to_owned(),
        count => count.to_string(),
    };
    vec![
        policy.name.clone(),
        mode(policy.mode).to_owned(),
        if tags.is_empty() { "-".to_owned() } else { tags.join(" ") },
        space.to_owned(),
        rates.to_owned(),
        windows,
    ]
}
