//! `evenkeel autopilot explain`: all of a decision, and its replay.

use super::{Read, words};
use crate::agent::{name, step_words};
use crate::audit::{self, Decided, Replayed};
use crate::journal::{Found, Reader};
use evenkeel_client::output::{self, Exit, Failure, Format};
use evenkeel_core::price::PriceList;
use evenkeel_core::volume::{Date, Rules};
use evenkeel_planner::autopilot::decide::{Intent, words as amounts};
use evenkeel_planner::autopilot::evidence::{Evidence, Proposal};
use evenkeel_planner::autopilot::observation::{Ages, Observation};
use evenkeel_planner::autopilot::{Decision, PolicyFile};
use evenkeel_planner::{fleet, format};
use evenkeel_sim::text::{command_line, csv, span, table};
use serde_json::{Value, json};
use std::fmt::Write as _;

const COLUMNS: [&str; 3] = ["kind", "name", "text"];
const VOLUMES: [&str; 5] = ["volume", "type and limits", "state", "modifications in 24 h", "load"];

/// A decision as text, and whether its replay is the same.
pub struct Explanation {
    /// The text to print.
    pub text: String,
    /// The error of a replay that differs, or could not be made.
    pub verdict: Result<(), Failure>,
}

/// Explains a decision, and replays it.
///
/// # Errors
/// If the audit has no such decision, or cannot be read.
pub fn explain(reader: &Reader, id: &str, format: Format) -> Result<Explanation, Failure> {
    let decision = id.split('.').next().unwrap_or(id);
    let found = reader.find(decision).map_err(Failure::new)?.ok_or_else(|| {
        Failure::new(format!("{decision}: the audit has no such decision"))
            .exit(Exit::NotFound)
            .hint("`evenkeel autopilot status` shows the last one of each file system")
    })?;
    let read = Read::new(&found.line)?;
    let page = page(reader, &read)?;
    let replayed = replay(reader, &read.line);
    let page = page.as_deref();
    let latest = Read::last(reader, &read.line.uuid)?;
    let latest = latest.as_ref().unwrap_or(&read);
    let text = match format {
        Format::Json => output::json(&to_json(&read, &found, page, &replayed)),
        Format::Csv => csv(&COLUMNS, &rows(&read, &found, page, &replayed)),
        Format::Text => text(&read, &found, page, &replayed, &latest.observation),
    };
    let verdict = match replayed {
        Ok(Replayed::Same) => Ok(()),
        Ok(Replayed::Differs(_)) => {
            Err(Failure::new(format!("{decision}: the replay differs from the audit"))
                .hint("this version decides otherwise; the version that wrote it replays it"))
        }
        Err(reason) => Err(Failure::new(format!("{decision} could not be replayed: {reason}"))
            .exit(Exit::Undecided)),
    };
    Ok(Explanation { text, verdict })
}

/// Returns the page of the decision's evidence; `None` if it is not kept, or there is no evidence.
fn page(reader: &Reader, read: &Read) -> Result<Option<String>, Failure> {
    let Some(evidence) = &read.observation.evidence else { return Ok(None) };
    reader.page(evidence).map_err(Failure::new)
}

/// Decides again from the inputs of a line, by the policy of that time.
fn replay(reader: &Reader, line: &Decided) -> Result<Replayed, String> {
    let text = reader.policy(&line.policy)?;
    let date = |text: &str| -> Result<Date, String> {
        text.parse().map_err(|error| format!("the line's date {text:?}: {error}"))
    };
    let (region, day) = &line.prices;
    let prices =
        PriceList::in_region(region, Some(date(day)?)).map_err(|error| error.to_string())?;
    let rules = Rules::as_of(date(&line.rules)?).map_err(|error| error.to_string())?;
    let file = PolicyFile::parse(&text, &fleet::Policy::by(rules, prices));
    let file = file.map_err(|error| format!("the policy that is kept: {error}"))?;
    let group = file.groups.iter().find(|group| group.name == line.group);
    let group = group.ok_or_else(|| format!("the policy has no group {:?}", line.group))?;
    audit::replay(line, group)
}

fn replayed_words(replayed: &Result<Replayed, String>) -> String {
    match replayed {
        Ok(Replayed::Same) => "same".to_owned(),
        Ok(Replayed::Differs(text)) => format!("differs: {text}"),
        Err(reason) => format!("not: {reason}"),
    }
}

fn text(
    read: &Read,
    found: &Found,
    page: Option<&str>,
    replayed: &Result<Replayed, String>,
    latest: &Observation,
) -> String {
    let Read { line, observation, decision } = read;
    let mut text = format!("decision {} of {}\n", decision.id, words::time(decision.unix_ms));
    let _ = writeln!(text, "group {}, mode {}", line.group, line.mode);
    text += "\nobserved\n";
    text += &observed(observation);
    text += "\nforecast\n";
    let forecast = words::forecast(&decision.forecast, observation.file_system.free_bytes);
    let _ = writeln!(text, "  {forecast}");
    text += "\nevidence\n";
    text += &evidence(observation.evidence.as_ref(), line);
    if observation.evidence.is_some() {
        text += "\nanswer of `evenkeel plan` for these recordings\n";
        text += &indented(page.unwrap_or("its page is not kept\n"));
    }
    text += "\ndecided\n";
    text += &decided(decision, line, latest);
    text += "\nsteps\n";
    let steps = steps(found);
    if steps.is_empty() {
        text += "  none\n";
    }
    for [time, operation, step] in steps {
        let _ = writeln!(text, "  {time} {operation}: {step}");
    }
    text += "\nreplay\n";
    let (region, day) = &line.prices;
    let _ = writeln!(text, "  prices of {region} of {day}, rules of volumes of {}", line.rules);
    let _ = writeln!(text, "  SHA-256 of the policy {}", line.policy);
    let _ = writeln!(text, "  SHA-256 of all inputs {}", line.inputs);
    let _ = writeln!(text, "replayed: {}", replayed_words(replayed));
    text
}

fn indented(text: &str) -> String {
    let indented = |line: &str| match line {
        "" => "\n".to_owned(),
        line => format!("  {line}\n"),
    };
    text.lines().map(indented).collect()
}

fn observed(observation: &Observation) -> String {
    let file_system = &observation.file_system;
    let mut text = format!(
        "  {} on {}: {} of {} used, {} free\n",
        name(&file_system.kind),
        file_system.mount,
        amounts::bytes(file_system.used_bytes),
        amounts::bytes(file_system.size_bytes),
        amounts::bytes(file_system.free_bytes),
    );
    let _ = writeln!(
        text,
        "  in the past: most in use {}, largest growth within `actuation_s` {}, largest jump \
         between two observations {}",
        amounts::bytes(file_system.peak_used_bytes),
        amounts::bytes(file_system.largest_growth_bytes),
        amounts::bytes(file_system.largest_jump_bytes),
    );
    for device in &file_system.devices {
        let _ = writeln!(
            text,
            "  device {} {} on {}: {}, {} of it allocated",
            device.devid,
            device.path,
            device.volume.as_deref().unwrap_or("no known volume"),
            amounts::bytes(device.size_bytes),
            amounts::bytes(device.allocated_bytes),
        );
    }
    if let Some(running) = &file_system.running {
        let _ = writeln!(text, "  the kernel runs a {}", name(&running.kind));
    }
    if let Some(flush) = &file_system.flush {
        let _ = writeln!(
            text,
            "  {} durable writes in the last window, p99 {} ms",
            flush.count, flush.p99_ms
        );
    }
    let rows: Vec<Vec<String>> = observation
        .volumes
        .iter()
        .map(|volume| {
            let state = serde_json::to_value(volume.state).unwrap_or_default();
            let state = state.as_str().map_or("attaching", |state| state).to_owned();
            let load = volume.used_mibps.map_or("-".to_owned(), |used| format!("{used} MiB/s"));
            let spec = amounts::spec(&volume.spec);
            vec![volume.id.clone(), spec, state, volume.modified_ms.len().to_string(), load]
        })
        .collect();
    for line in table(&VOLUMES, &rows).lines() {
        let _ = writeln!(text, "  {line}");
    }
    text + &old_sources(&observation.ages)
}

/// Returns a line for each source of an observation that was not read for it.
fn old_sources(ages: &Ages) -> String {
    let mut text = String::new();
    let sources = [
        ("the file system", ages.file_system_ms),
        ("the volumes", ages.volumes_ms),
        ("the counters", ages.counters_ms),
    ];
    for (source, age_ms) in sources {
        match age_ms {
            Some(0) => {}
            Some(age_ms) => {
                let _ = writeln!(
                    text,
                    "  the observation of {source} was {} old",
                    span(age_ms / 1_000)
                );
            }
            None => {
                let _ = writeln!(text, "  {source} could not be observed");
            }
        }
    }
    text
}

fn evidence(evidence: Option<&Evidence>, line: &Decided) -> String {
    let Some(evidence) = evidence else {
        return "  none: no recording has been judged\n".to_owned();
    };
    let mut text =
        format!("  judged at {} by the rules of `evenkeel plan`\n", words::time(evidence.made_ms));
    for judged in &evidence.volumes {
        let volume = &judged.volume;
        if let (Some(iops), Some(bytes_per_s)) = (judged.peak_iops, judged.peak_bytes_per_s) {
            let bytes = amounts::bytes(bytes_per_s);
            let _ = writeln!(
                text,
                "  {volume}: at most {iops} I/Os and {bytes} a second, with the headroom"
            );
        }
        if let Some(up) = &judged.up {
            let proposal = proposal_words(up, line);
            let _ = writeln!(text, "  {volume} needs more: its last 24 h need {proposal}");
        }
        if let Some(down) = &judged.down {
            let proposal = proposal_words(down, line);
            let _ = writeln!(text, "  {volume} can have less: the recording needs {proposal}");
        }
        if let Some((near, far)) = judged.credits_empty_s {
            let near = span(near);
            let far = span(far);
            let _ = writeln!(text, "  {volume}: credits are empty in {near} to {far}");
        }
        for reason in &judged.reasons {
            let _ = writeln!(text, "  {volume}: {reason}");
        }
        if judged.up.is_none() && judged.down.is_none() && judged.reasons.is_empty() {
            let _ = writeln!(text, "  {volume}: its limits suffice, and no cheaper ones do");
        }
    }
    let _ = writeln!(text, "  SHA-256 of the recordings {}", evidence.digest);
    text
}

fn proposal_words(proposal: &Proposal, line: &Decided) -> String {
    format!(
        "{}, on which requests wait at most {} s a day, for {} a month",
        amounts::spec(&proposal.spec),
        proposal.exceeded_s_per_day_max,
        money(proposal.monthly_micro, line)
    )
}

/// Returns an amount in the currency of the decision's prices.
fn money(micro: u64, line: &Decided) -> String {
    let (region, day) = &line.prices;
    let list = PriceList::in_region(region, day.parse().ok());
    list.map_or_else(|_| format::money(micro), |list| amounts::money(micro, list.currency()))
}

fn decided(decision: &Decision, line: &Decided, latest: &Observation) -> String {
    let mut text = String::new();
    if decision.intents.is_empty() {
        text += if decision.brakes.is_empty() {
            "  no change: no rule asks for one\n"
        } else {
            "  no change\n"
        };
    }
    for intent in &decision.intents {
        let what = words::operation(&intent.operation);
        let urgent = if intent.is_emergency { " (emergency)" } else { "" };
        let _ = writeln!(text, "  {} {what}{urgent}: {}", intent.id, intent.reason);
        let _ = writeln!(text, "    {}", cost(intent, line));
        for command in &intent.commands {
            let _ = writeln!(text, "    $ {command}");
        }
        for command in &intent.undo {
            let command = with_ids(command, intent, latest);
            let _ = writeln!(text, "    undo $ {command}");
        }
    }
    for braked in &decision.brakes {
        let prevented = words::change(braked.axis, braked.is_up);
        let brake = name(&braked.brake);
        let _ = writeln!(text, "  brake {brake}: prevents {prevented}: {}", braked.reason);
    }
    for (operation, reason) in &decision.cancels {
        let _ = writeln!(text, "  {operation} is cancelled: {reason}");
    }
    if let Some(pace) = decision.pace_bytes_per_s {
        let _ = writeln!(text, "  the move is paced to {} a second", amounts::bytes(pace));
    }
    for alarm in &decision.alarms {
        let _ = writeln!(text, "  ALARM {alarm}");
    }
    text
}

/// Returns a command of a way back with the volume that the operation has made, and its device, as
/// far as they are known: another shell has no variables with them.
fn with_ids(command: &str, intent: &Intent, latest: &Observation) -> String {
    let mut volumes = latest.volumes.iter();
    let made = volumes.find(|volume| volume.made_by.as_ref() == Some(&intent.id));
    let Some(made) = made else { return command.to_owned() };
    let mut devices = latest.file_system.devices.iter();
    let device = devices.find(|device| device.volume.as_ref() == Some(&made.id));
    let command = command.replace("\"$NEW\"", &made.id);
    match device {
        Some(device) => command.replace("\"$DEVICE\"", &command_line(&[&device.path])),
        None => command,
    }
}

/// Returns the monthly cost of the volumes before a change, and after it.
pub fn cost(intent: &Intent, line: &Decided) -> String {
    format!(
        "the volumes cost {} a month now, and {} afterwards",
        money(intent.monthly_before_micro, line),
        money(intent.monthly_after_micro, line)
    )
}

/// Returns the time, the operation and the result of each step.
fn steps(found: &Found) -> Vec<[String; 3]> {
    let mut steps = Vec::new();
    for done in &found.results {
        for step in &done.steps {
            let what = step_words(&step.step);
            let what = match &step.fault {
                None => what,
                Some(fault) => format!("{what}: failed: {fault}"),
            };
            steps.push([words::time(done.unix_ms), step.operation.clone(), what]);
        }
    }
    steps
}

fn rows(
    read: &Read,
    found: &Found,
    page: Option<&str>,
    replayed: &Result<Replayed, String>,
) -> Vec<Vec<String>> {
    let mut rows = Vec::new();
    let mut add = |kind: &str, name: &str, text: String| {
        rows.push(vec![kind.to_owned(), name.to_owned(), text]);
    };
    let decision = &read.decision;
    let free_bytes = read.observation.file_system.free_bytes;
    add("inputs", "", read.line.inputs.clone());
    add("forecast", "", words::forecast(&decision.forecast, free_bytes));
    if let Some(page) = page {
        add("page", "", page.to_owned());
    }
    for intent in &decision.intents {
        let text = format!("{}: {}", words::operation(&intent.operation), intent.reason);
        add("change", &intent.id, text);
    }
    for braked in &decision.brakes {
        add("brake", &name(&braked.brake), braked.reason.clone());
    }
    for [time, operation, step] in steps(found) {
        add("step", &operation, format!("{time} {step}"));
    }
    add("replayed", "", replayed_words(replayed));
    rows
}

fn to_json(
    read: &Read,
    found: &Found,
    page: Option<&str>,
    replayed: &Result<Replayed, String>,
) -> Value {
    let (state, reason) = match replayed {
        Ok(Replayed::Same) => ("same", None),
        Ok(Replayed::Differs(text)) => ("differs", Some(text)),
        Err(reason) => ("undecided", Some(reason)),
    };
    json!({
        "schema": "evenkeel.autopilot-decision/1",
        "decision": read.line,
        "results": found.results,
        "page": page,
        "replayed": state,
        "replay": reason,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::testing::ticked;
    use evenkeel_core::volume::{VolumeSpec, VolumeType};
    use evenkeel_planner::autopilot::observation::{Device, Volume, VolumeState};

    #[test]
    fn way_back_has_the_ids_of_what_the_operation_has_made() {
        let ticked = ticked();
        let mut latest = ticked.observation.unwrap();
        let intent = ticked.decision.unwrap().intents.remove(0);
        let commands = ["detach \"$NEW\" \"$DEVICE\"", "btrfs device add -K \"$OLD_DEVICE\" /srv"];
        let shown = |latest: &Observation| commands.map(|line| with_ids(line, &intent, latest));
        assert_eq!(shown(&latest), commands);
        let spec = VolumeSpec {
            volume_type: VolumeType::Gp3,
            size_gib: 8,
            iops: None,
            throughput_mibps: None,
            multi_attach: false,
        };
        let mut made = Volume::new("vol-9".to_owned(), spec, VolumeState::Attached, 1);
        made.made_by = Some(intent.id.clone());
        latest.volumes.push(made);
        assert_eq!(shown(&latest)[0], "detach vol-9 \"$DEVICE\"");
        latest.file_system.devices.push(Device {
            devid: 3,
            path: "/dev/loop9".to_owned(),
            volume: Some("vol-9".to_owned()),
            device_bytes: 1,
            size_bytes: 1,
            allocated_bytes: 1,
            errors: 0,
        });
        assert_eq!(shown(&latest), ["detach vol-9 /dev/loop9", commands[1]]);
    }
}
