//! The lines that the agent prints: what it does, and what it advises, once each.

use super::metrics::mode;
use crate::Ticked;
use evenkeel_planner::autopilot::decide::{Intent, spec_words};
use evenkeel_planner::autopilot::policy::Mode;
use evenkeel_planner::autopilot::{Call, Operation, Step};
use evenkeel_wire::aws::timestamp;
use std::collections::BTreeSet;

/// The facts that were printed of a file system at its last tick.
#[derive(Default, Debug)]
pub struct Printed {
    /// Texts without figures that change at each tick.
    last: BTreeSet<String>,
}

impl Printed {
    /// Returns the lines of a tick that were not true of the last one, and those of its steps.
    pub fn lines(
        &mut self,
        mount: &str,
        of_mode: Mode,
        ticked: &Ticked,
        unix_ms: u64,
    ) -> Vec<String> {
        let mut now = Vec::new();
        now.extend(ticked.faults.iter().map(|fault| (fault.clone(), vec![fault.clone()])));
        if let Some(decision) = &ticked.decision {
            for intent in &decision.intents {
                // The figures of the reason change while the operation is only advised.
                let key = serde_json::to_string(&intent.operation);
                let key = key.expect("invariant: texts and numbers");
                now.push((key, intent_lines(of_mode, &decision.id, intent)));
            }
            for braked in &decision.brakes {
                let line = format!("{}: {}", name(&braked.brake), braked.reason);
                let direction = if braked.is_up { "more" } else { "less" };
                let key = format!("{}{}{direction}", name(&braked.brake), name(&braked.axis));
                now.push((key, vec![format!("brake {line}")]));
            }
            for alarm in &decision.alarms {
                let key: String = alarm.chars().filter(|c| !c.is_ascii_digit()).collect();
                now.push((key, vec![format!("ALARM {alarm}")]));
            }
            for (operation, reason) in &decision.cancels {
                now.push((
                    format!("cancel {operation}"),
                    vec![format!("{operation}: cancelled: {reason}")],
                ));
            }
        }
        let mut lines = Vec::new();
        let mut seen = BTreeSet::new();
        for (key, text) in now {
            if !self.last.contains(&key) && seen.insert(key.clone()) {
                lines.extend(text);
            }
            seen.insert(key);
        }
        self.last = seen;
        lines.extend(ticked.steps.iter().map(|(operation, step, fault)| {
            let step = step_words(step);
            match fault {
                None => format!("{operation}: {step}"),
                Some(fault) => format!("{operation}: {step}: {fault}"),
            }
        }));
        let time = timestamp::extended(unix_ms);
        lines.into_iter().map(|line| format!("{time} {mount} {line}\n")).collect()
    }
}

/// Returns the name of a value in the audit.
pub fn name(value: &impl serde::Serialize) -> String {
    let value = serde_json::to_value(value).expect("invariant: a name");
    value.as_str().unwrap_or_default().to_owned()
}

fn intent_lines(of_mode: Mode, decision: &str, intent: &Intent) -> Vec<String> {
    let verb = match of_mode {
        Mode::Observe => "would",
        Mode::Advise => "advises to",
        Mode::Act => "begins to",
    };
    let what = operation_words(&intent.operation);
    let mut lines = vec![format!("{decision} {verb} {what}: {}", intent.reason)];
    if of_mode == Mode::Advise {
        lines.extend(intent.commands.iter().map(|command| format!("  $ {command}")));
        lines.extend(intent.undo.iter().map(|command| format!("  undo $ {command}")));
    }
    lines
}

/// Returns an operation in a few words.
fn operation_words(operation: &Operation) -> String {
    match operation {
        Operation::Modify { volume, from, to } => {
            format!("modify {volume} from {} to {}", spec_words(from), spec_words(to))
        }
        Operation::Add { spec } => format!("add a volume of {}", spec_words(spec)),
        Operation::Remove { volume } => format!("remove {volume}"),
        Operation::Replace { volume, with } => {
            format!("replace {volume} by one of {}", spec_words(with))
        }
        Operation::Delete { volume } => format!("delete {volume}"),
    }
}

/// Returns a step in a few words.
pub fn step_words(step: &Step) -> String {
    match step {
        Step::Wait(reason) => format!("waits: {reason}"),
        Step::Done => "done".to_owned(),
        Step::Failed(reason) => format!("failed: {reason}"),
        Step::Call(Call::Create { spec, .. }) => format!("create {}", spec_words(spec)),
        Step::Call(Call::Modify { volume, to }) => format!("modify {volume} to {}", spec_words(to)),
        Step::Call(call) => fields(&serde_json::to_value(call)),
        Step::Verb(verb) => fields(&serde_json::to_value(verb)),
    }
}

/// Returns the name of an enumeration's variant and its fields, as `attach vol-1`.
fn fields(value: &Result<serde_json::Value, serde_json::Error>) -> String {
    let object = value.as_ref().ok().and_then(serde_json::Value::as_object);
    let Some((name, fields)) = object.and_then(|object| object.iter().next()) else {
        return "cancel".to_owned();
    };
    let fields = fields.as_object().into_iter().flatten();
    let texts = fields.map(|(key, value)| match value.as_str() {
        Some(text) => text.to_owned(),
        None => format!("{key} {value}"),
    });
    [name.clone()].into_iter().chain(texts).collect::<Vec<_>>().join(" ")
}

/// Returns the line that names a group at the start.
pub fn start(mount: &str, group: &str, of_mode: Mode, pacing: &str, unix_ms: u64) -> String {
    let time = timestamp::extended(unix_ms);
    format!("{time} {mount} group {group}, mode {}; {pacing}\n", mode(of_mode))
}

#[cfg(test)]
mod tests {
    use super::super::testing;
    use super::*;

    #[test]
    fn line_is_printed_once_and_steps_each_time() {
        let mut printed = Printed::default();
        let ticked = testing::ticked();
        let mut lines = |of_mode| printed.lines("/srv", of_mode, &ticked, 1_795_633_200_000);
        let first = lines(Mode::Advise).concat();
        let time = "2026-11-25T19:00:00.000Z /srv";
        assert_eq!(
            first,
            format!(
                "{time} the API: no server at 127.0.0.1:1\n\
                 {time} 0b8e-7 advises to add a volume of gp3 8 GiB, 3000 IOPS, 125 MiB/s: \
                 4 GiB are free\n\
                 {time}   $ do it\n\
                 {time}   undo $ undo it\n\
                 {time} brake mode: the mode is advise\n\
                 {time} ALARM a volume is larger than its file system\n\
                 {time} 0b8e-7.0: attach vol-1\n\
                 {time} 0b8e-7.0: add vol-1: no device yet; it is tried again\n"
            )
        );
        let again = lines(Mode::Advise);
        assert_eq!(again.len(), 2, "{again:?}");
    }

    #[test]
    fn page_has_the_policy_that_is_printed_and_the_names_of_brakes() {
        use evenkeel_planner::autopilot::{Brake, PolicyFile};
        const PAGE: &str = include_str!("../../../../docs/operating/autopilot.md");
        assert!(PAGE.contains(&format!("```toml\n{}```", PolicyFile::usual_text())));
        let section = PAGE.split("\n## Brakes\n").nth(1).unwrap();
        let section = section.split("\n## ").next().unwrap();
        let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
        let names: Vec<&str> = rows.filter_map(|row| row.split('`').next()).collect();
        assert_eq!(names.len(), 23, "{names:?}");
        for name in names {
            let brake: Result<Brake, _> = serde_json::from_value(name.into());
            assert!(brake.is_ok(), "{name}");
        }
    }

    #[test]
    fn step_is_named_as_in_the_audit() {
        use evenkeel_planner::autopilot::Verb;
        let compact = Verb::Compact { used_percent_max: 7, chunks_max: 4, bytes_per_s: 5 };
        let words = "compact bytes-per-s 5 chunks-max 4 used-percent-max 7";
        assert_eq!(step_words(&Step::Verb(compact)), words);
        assert_eq!(step_words(&Step::Verb(Verb::Cancel)), "cancel");
        assert_eq!(step_words(&Step::Failed("x".to_owned())), "failed: x");
    }
}
