//! `evenkeel autopilot check`.

use crate::audit::mode;
use crate::policy_file;
use evenkeel_client::output::{self, Failure, Format};
use evenkeel_core::volume::ModifyPolicy;
use evenkeel_planner::autopilot::PolicyFile;
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
            table(&COLUMNS, &rows) + paused + &notes(&file)
        }
        Format::Csv => csv(&COLUMNS, &rows),
        Format::Json => output::json(&json!({
            "schema": "evenkeel.autopilot-policy/1",
            "paused": file.paused,
            "groups": rows.iter().map(to_json).collect::<Vec<_>>(),
            "notes": notes(&file).lines().collect::<Vec<_>>(),
        })),
    })
}

/// Returns a line for each group that applies to no file system, and for each that counts on more
/// modifications than AWS accepts. A server may accept any number.
fn notes(file: &PolicyFile) -> String {
    let mut notes = String::new();
    for (place, policy) in file.groups.iter().enumerate() {
        let hides = |other: &&Policy| {
            other.tags.iter().all(|(key, value)| policy.tags.get(key) == Some(value))
        };
        if let Some(first) = file.groups[..place].iter().find(hides) {
            notes += &format!(
                "note: group {:?} never applies: each file system with its tags has those of \
                 group {:?}, and the first group applies; put it before that one, or give it \
                 other tags\n",
                policy.name, first.name
            );
        }
        let counted = policy.budget.modifications_per_day;
        let modify = policy.plan.rules.modify_rules().map(|rules| rules.policy);
        if let Some(ModifyPolicy::Rolling { modifications_max, hours }) = modify
            && counted > modifications_max
        {
            let day_s = policy.day_s;
            let days = if policy.has_whole_days() {
                String::new()
            } else {
                format!(", with day_s = {day_s}")
            };
            notes += &format!(
                "note: modifications_per_day = {counted} of group {:?}{days}: AWS accepts \
                 {modifications_max} of a volume in {hours} hours; a server accepts more with \
                 --modify-policy immediate\n",
                policy.name
            );
        }
    }
    notes
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_modifications_than_aws_accepts_are_a_note() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        let shown = |whole: &str, most: u32| {
            let budget = format!("[group.budget]\nmodifications_per_day = {most}\n");
            std::fs::write(&path, format!("{whole}[[group]]\nname = \"a\"\n{budget}")).unwrap();
            text(&path, Format::Text).unwrap()
        };
        let note = "note: modifications_per_day = 9 of group \"a\": AWS accepts 4 of a volume in \
                    24 hours; a server accepts more with --modify-policy immediate\n";
        assert!(shown("", 9).ends_with(note));
        assert!(!shown("", 4).contains("note"));
        // The days of a trial are shorter than those of AWS.
        let trial = shown("[autopilot]\nday_s = 30\n", 9);
        assert!(trial.contains("= 9 of group \"a\", with day_s = 30: AWS accepts 4"), "{trial}");
    }

    #[test]
    fn group_that_never_applies_is_a_note() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("policy.toml");
        let shown = |groups: &[&str]| {
            let groups: Vec<String> =
                groups.iter().map(|group| format!("[[group]]\n{group}\n")).collect();
            std::fs::write(&path, groups.concat()).unwrap();
            text(&path, Format::Text).unwrap()
        };
        let some = "name = \"db\"\ntags = { App = \"db\" }";
        let all = "name = \"all\"";
        let second = "name = \"second\"";
        assert!(!shown(&[some, all]).contains("note"));
        let hidden = shown(&[some, all, second]);
        assert!(hidden.contains("note: group \"second\" never applies: "), "{hidden}");
        assert!(shown(&[all, some]).contains("note: group \"db\" never applies: "));
    }
}
