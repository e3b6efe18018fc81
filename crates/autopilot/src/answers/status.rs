//! `evenkeel autopilot status`.

use super::{Read, words};
use crate::agent::name;
use crate::journal::Reader;
use crate::{Memory, Orders};
use evenkeel_client::output::{self, Failure, Format};
use evenkeel_planner::autopilot::decide::words::bytes;
use evenkeel_sim::text::{csv, span};
use serde_json::{Value, json};
use std::fmt::Write as _;

const COLUMNS: [&str; 4] = ["file system", "kind", "name", "text"];

/// A file system with what is remembered and was decided last.
struct Shown {
    uuid: String,
    memory: Memory,
    last: Option<Read>,
}

/// Returns the status of all file systems of a folder.
///
/// # Errors
/// If a file of the folder cannot be read.
pub fn text(reader: &Reader, now_ms: u64, format: Format) -> Result<String, Failure> {
    let running = reader.is_running().map_err(Failure::new)?;
    let orders = reader.orders().map_err(Failure::new)?;
    let mut all = Vec::new();
    for (uuid, memory) in reader.memories().map_err(Failure::new)? {
        let last = Read::last(reader, &uuid)?;
        all.push(Shown { uuid, memory, last });
    }
    Ok(match format {
        Format::Json => output::json(&json!({
            "schema": "evenkeel.autopilot-status/1",
            "agent_runs": running,
            "orders": orders,
            "file_systems": all.iter().map(to_json).collect::<Vec<_>>(),
        })),
        Format::Csv => csv(&COLUMNS, &all.iter().flat_map(rows).collect::<Vec<_>>()),
        Format::Text => {
            let mut text = agent_text(running, &orders, now_ms);
            if all.is_empty() {
                text += "no file system has been observed yet\n";
            }
            for shown in &all {
                text.push('\n');
                text += &shown_text(shown, now_ms);
            }
            text
        }
    })
}

fn agent_text(running: bool, orders: &Orders, now_ms: u64) -> String {
    let mut text = String::from(if running { "the agent runs\n" } else { "no agent runs\n" });
    if let Some(pause) = &orders.pause {
        let since = words::time(pause.since_ms);
        let _ = writeln!(
            text,
            "PAUSED since {since}: {}; `evenkeel autopilot resume` ends it",
            pause.reason
        );
    }
    if let Some(hold) = orders.hold.as_ref().filter(|hold| hold.until_ms > now_ms) {
        let until = words::time(hold.until_ms);
        let _ = writeln!(
            text,
            "HOLD until {until}: {}; `evenkeel autopilot release` ends it",
            hold.reason
        );
    }
    text
}

fn shown_text(shown: &Shown, now_ms: u64) -> String {
    let mut text = String::new();
    let Some(Read { line, observation, decision }) = &shown.last else {
        let _ = writeln!(text, "{}: the audit has no decision", shown.uuid);
        return text;
    };
    let file_system = &observation.file_system;
    let age = span(now_ms.saturating_sub(decision.unix_ms) / 1_000);
    let _ = writeln!(text, "{} ({})", file_system.mount, shown.uuid);
    let _ = writeln!(
        text,
        "  group {}, mode {}; decision {} was made {age} ago",
        line.group, line.mode, decision.id
    );
    let _ = writeln!(
        text,
        "  {}, {} on {} {}",
        name(&file_system.kind),
        bytes(file_system.size_bytes),
        file_system.devices.len(),
        if file_system.devices.len() == 1 { "device" } else { "devices" },
    );
    let _ = writeln!(text, "  {}", words::forecast(&decision.forecast, file_system.free_bytes));
    for row in rows(shown) {
        if let [_, kind, name, reason] = row.as_slice()
            && kind != "forecast"
        {
            let name = if name.is_empty() { String::new() } else { format!(" {name}") };
            let _ = writeln!(text, "  {kind}{name}: {reason}");
        }
    }
    text
}

/// Returns the forecast, changes, brakes, alarms and operations of a file system.
fn rows(shown: &Shown) -> Vec<Vec<String>> {
    let uuid = &shown.uuid;
    let mut rows = Vec::new();
    if let Some(Read { observation, decision, .. }) = &shown.last {
        let free_bytes = observation.file_system.free_bytes;
        rows.push(row(uuid, "forecast", "", words::forecast(&decision.forecast, free_bytes)));
        for intent in &decision.intents {
            let text = format!("{}: {}", words::operation(&intent.operation), intent.reason);
            rows.push(row(uuid, "change", &intent.id, text));
        }
        for braked in &decision.brakes {
            let prevented = words::change(braked.axis, braked.is_up);
            let text = format!("prevents {prevented}: {}", braked.reason);
            rows.push(row(uuid, "brake", &name(&braked.brake), text));
        }
        rows.extend(decision.alarms.iter().map(|alarm| row(uuid, "ALARM", "", alarm.clone())));
    }
    for open in &shown.memory.state.open {
        let way = if open.cancelled { ", which is being undone" } else { "" };
        let since = words::time(open.since_ms);
        let mut text = format!("{}, since {since}{way}", words::operation(&open.operation));
        let mut waiting = shown.memory.state.waiting.iter();
        if let Some(waiting) = waiting.find(|waiting| waiting.operation == open.id) {
            let _ = write!(text, "; waits since {}: ", words::time(waiting.since_ms));
            text += &waiting.reason;
        }
        rows.push(row(uuid, "operation", &open.id, text));
    }
    if shown.memory.state.failures > 0 {
        let mut text = format!("{} operations in a row", shown.memory.state.failures);
        if let Some(failure) = &shown.memory.state.failure {
            let _ = write!(text, "; the last one: {failure}");
        }
        rows.push(row(uuid, "failed", "", text));
    }
    rows
}

fn row(uuid: &str, kind: &str, name: &str, text: String) -> Vec<String> {
    vec![uuid.to_owned(), kind.to_owned(), name.to_owned(), text]
}

fn to_json(shown: &Shown) -> Value {
    let last = shown.last.as_ref();
    json!({
        "uuid": shown.uuid,
        "mount": last.map(|last| &last.observation.file_system.mount),
        "group": last.map(|last| &last.line.group),
        "mode": last.map(|last| &last.line.mode),
        "decision": last.map(|last| &last.decision),
        "free_bytes": last.map(|last| last.observation.file_system.free_bytes),
        "size_bytes": last.map(|last| last.observation.file_system.size_bytes),
        "operations": shown.memory.state.open,
        "waiting": shown.memory.state.waiting,
        "failures": shown.memory.state.failures,
        "failure": shown.memory.state.failure,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use evenkeel_planner::autopilot::operation::{Open, Operation};
    use evenkeel_planner::autopilot::state;

    #[test]
    fn open_operation_is_shown_with_what_it_waits_for() {
        let mut memory = Memory::default();
        memory.state.open.push(Open {
            id: "0b8e-7.0".to_owned(),
            operation: Operation::Delete { volume: "vol-1".to_owned() },
            since_ms: 1_795_633_200_000,
            cancelled: false,
            is_emergency: false,
            is_scheduled: false,
            exceeded_s_per_day_max: None,
        });
        let reason = Some("vol-1 has no device".to_owned());
        state::waits(&mut memory.state, "0b8e-7.0", reason, 1_795_633_260_000);
        memory.state.failures = 2;
        state::failed(&mut memory.state, "no room");
        let shown = Shown { uuid: "u".to_owned(), memory, last: None };
        let row = |kind: &str, name: &str, text: &str| ["u", kind, name, text].map(str::to_owned);
        let waits = "delete vol-1, since 2026-11-25T19:00:00.000Z; waits since \
                     2026-11-25T19:01:00.000Z: vol-1 has no device";
        assert_eq!(
            rows(&shown),
            [
                row("operation", "0b8e-7.0", waits),
                row("failed", "", "2 operations in a row; the last one: no room"),
            ]
        );
        assert_eq!(to_json(&shown)["waiting"][0]["reason"], "vol-1 has no device");
    }
}
