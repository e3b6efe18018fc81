//! `evenkeel autopilot advise`.

use super::{Read, words};
use crate::audit::Decided;
use crate::journal::Reader;
use evenkeel_client::output::{self, Failure, Format};
use evenkeel_planner::autopilot::decide::Intent;
use evenkeel_sim::text::csv;
use serde_json::{Value, json};
use std::fmt::Write as _;

const COLUMNS: [&str; 5] = ["file system", "change", "reason", "command", "undo"];

/// Returns the commands of the changes that are asked for, as a script of comments and commands.
///
/// # Errors
/// If a file of the folder cannot be read.
pub fn text(reader: &Reader, format: Format) -> Result<String, Failure> {
    let mut all = Vec::new();
    for (uuid, _) in reader.memories().map_err(Failure::new)? {
        all.extend(Read::last(reader, &uuid)?);
    }
    Ok(match format {
        Format::Json => output::json(&json!({
            "schema": "evenkeel.autopilot-advice/1",
            "file_systems": all.iter().map(to_json).collect::<Vec<_>>(),
        })),
        Format::Csv => csv(&COLUMNS, &all.iter().flat_map(rows).collect::<Vec<_>>()),
        Format::Text if all.is_empty() => "no decision has been made yet\n".to_owned(),
        Format::Text => all.iter().map(script).collect(),
    })
}

fn script(last: &Read) -> String {
    let Read { line, observation, decision } = last;
    let mount = &observation.file_system.mount;
    let time = words::time(decision.unix_ms);
    let mut text = format!("# {mount}: decision {} of {time}, mode {}\n", decision.id, line.mode);
    if decision.intents.is_empty() {
        text += "# no change is advised; `evenkeel autopilot status` has the reasons\n";
    }
    for intent in &decision.intents {
        text += &advice(intent, line);
    }
    text
}

fn advice(intent: &Intent, line: &Decided) -> String {
    let mut text = format!("\n# {}: {}\n", words::operation(&intent.operation), intent.reason);
    text += &format!("# {}\n", super::explain::cost(intent, line));
    for command in &intent.commands {
        let _ = writeln!(text, "{command}");
    }
    if !intent.undo.is_empty() {
        text += "# undo:\n";
    }
    for command in &intent.undo {
        let _ = writeln!(text, "#   {command}");
    }
    text
}

fn rows(last: &Read) -> Vec<Vec<String>> {
    let uuid = &last.line.uuid;
    let row = |intent: &Intent| {
        vec![
            uuid.clone(),
            words::operation(&intent.operation),
            intent.reason.clone(),
            intent.commands.join("\n"),
            intent.undo.join("\n"),
        ]
    };
    last.decision.intents.iter().map(row).collect()
}

fn to_json(last: &Read) -> Value {
    json!({
        "uuid": last.line.uuid,
        "mount": last.observation.file_system.mount,
        "decision": last.decision.id,
        "mode": last.line.mode,
        "changes": last.decision.intents,
    })
}
