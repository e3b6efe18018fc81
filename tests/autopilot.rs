//! `evenkeel autopilot` through the command line, over a folder that an agent has written: status,
//! explanations with their replay, advice, orders, and messages on errors.

mod support;

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use support::process::{Output, run};
use support::server::evenkeel;

const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/autopilot/samples/folder");
/// The decision that grows the file system.
const FIRST: &str = "0badcafe-1";

/// A copy of the folder.
struct Folder(tempfile::TempDir);

impl Folder {
    fn new() -> Self {
        let folder = Self(tempfile::tempdir().expect("a folder"));
        copy(Path::new(SAMPLE), &folder.path());
        folder
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("agent")
    }

    fn run(&self, arguments: &[&str]) -> Output {
        let mut command = evenkeel(self.0.path());
        run(command.arg("autopilot").args(arguments).args(["--agent-folder", "agent"]))
    }

    fn ok(&self, arguments: &[&str]) -> String {
        self.run(arguments).ok()
    }

    fn json(&self, arguments: &[&str], schema: &str) -> Value {
        let text = self.ok(&[arguments, &["-o", "json"]].concat());
        let value: Value = serde_json::from_str(&text).expect("JSON");
        assert_eq!(value["schema"], schema);
        value
    }

    /// Returns the only file of a folder in it.
    fn only(&self, folder: &str) -> PathBuf {
        let mut entries = fs::read_dir(self.path().join(folder)).expect("a folder");
        entries.next().expect("a file").expect("an entry").path()
    }
}

fn copy(from: &Path, to: &Path) {
    fs::create_dir_all(to).expect("made");
    for entry in fs::read_dir(from).expect("the sample") {
        let entry = entry.expect("an entry");
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), &target);
        } else {
            fs::copy(entry.path(), target).expect("copied");
        }
    }
}

#[test]
fn status_shows_mode_forecast_and_each_brake_with_its_reason() {
    let folder = Folder::new();
    let text = folder.ok(&["status"]);
    assert!(text.starts_with("no agent runs\n"), "{text}");
    assert!(text.contains("/srv (0badcafe-0000-4000-8000-000000000001)"), "{text}");
    assert!(text.contains("group default, mode act; decision 0badcafe-6 was made"), "{text}");
    assert!(text.contains(" free, "), "{text}");
    let value = folder.json(&["status"], "evenkeel.autopilot-status/1");
    let shown = &value["file_systems"][0];
    assert_eq!((&shown["mount"], &shown["mode"]), (&"/srv".into(), &"act".into()));
    let brakes = shown["decision"]["brakes"].as_array().expect("brakes");
    for brake in brakes {
        let reason = brake["reason"].as_str().expect("a reason");
        let name = brake["brake"].as_str().expect("a name");
        assert!(text.contains(&format!("brake {name}: ")) && text.contains(reason), "{text}");
    }
    let csv = folder.ok(&["status", "-o", "csv"]);
    assert!(csv.starts_with("file_system,kind,name,text\n"), "{csv}");
    assert!(csv.contains(",forecast,,"), "{csv}");
}

#[test]
fn explain_prints_all_of_a_decision_and_replays_it() {
    let folder = Folder::new();
    let text = folder.ok(&["explain", FIRST]);
    for part in [
        "decision 0badcafe-1 of 2026-11-25T19:00:00",
        "btrfs on /srv: 36 GiB of 40 GiB used",
        "device 1 /dev/vol-1 on vol-1: 40 GiB",
        "0badcafe-1.0 modify vol-1 from gp3 40 GiB",
        "undo $ ",
        "the volumes cost 3.20 USD a month now, and 7.68 USD afterwards",
        "0badcafe-1.0: modify",
        "0badcafe-1.0: rescan vol-1",
        "0badcafe-1.0: grow vol-1",
        "0badcafe-1.0: done",
        "\nreplayed: same\n",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    assert_eq!(folder.ok(&["explain", "0badcafe-1.0"]), text);
    let value = folder.json(&["explain", FIRST], "evenkeel.autopilot-decision/1");
    assert_eq!(value["replayed"], "same");
    assert_eq!(value["decision"]["observation"]["file-system"]["mount"], "/srv");
    assert!(folder.ok(&["explain", FIRST, "-o", "csv"]).ends_with("replayed,,same\n"));
}

#[test]
fn explain_shows_the_planner_s_page_of_the_evidence() {
    let folder = Folder::new();
    let text = folder.ok(&["explain", "0badcafe-6"]);
    for part in [
        "  vol-1: at most 3600 I/Os and 15 MiB a second, with the headroom\n",
        "\nanswer of `evenkeel plan` for these recordings\n  vol-1: 15 days, in steps of 5 min\n",
        "  layouts carry 20 % more than that\n",
        "  gp3 96 GiB, 3000 IOPS, 125 MiB/s  now  ",
        "  no change: no rule asks for one\n",
    ] {
        assert!(text.contains(part), "{part:?} is missing in:\n{text}");
    }
    let value = folder.json(&["explain", "0badcafe-6"], "evenkeel.autopilot-decision/1");
    let page = value["page"].as_str().expect("a page");
    for line in page.lines().filter(|line| !line.is_empty()) {
        assert!(text.contains(&format!("\n  {line}\n")), "{line:?} is missing in:\n{text}");
    }
    fs::remove_file(folder.only("pages")).expect("removed");
    assert!(folder.ok(&["explain", "0badcafe-6"]).contains("  its page is not kept\n"));
}

#[test]
fn every_decision_of_the_audit_replays_to_the_same_bytes() {
    let folder = Folder::new();
    for number in 1..=6 {
        let text = folder.ok(&["explain", &format!("0badcafe-{number}")]);
        assert!(text.ends_with("\nreplayed: same\n"), "{text}");
    }
}

#[test]
fn explain_of_an_audit_that_was_changed_fails() {
    let folder = Folder::new();
    let path = folder.only("audit");
    let text = fs::read_to_string(&path).expect("the audit");
    fs::write(&path, text.replacen("\"used-bytes\":38654705664", "\"used-bytes\":1", 1))
        .expect("written");
    let text = folder.run(&["explain", FIRST]).fails_with(1);
    assert!(text.contains("the line was changed"), "{text}");
}

#[test]
fn explain_without_the_policy_or_the_decision_fails() {
    let folder = Folder::new();
    let text = folder.run(&["explain", "0badcafe-99"]).fails_with(3);
    assert!(text.contains("0badcafe-99: the audit has no such decision"), "{text}");
    assert!(text.contains("`evenkeel autopilot status` shows"), "{text}");
    fs::remove_file(folder.only("policies")).expect("removed");
    let text = folder.run(&["explain", FIRST]).fails_with(6);
    assert!(text.contains("replayed: not: "), "{text}");
    assert!(text.contains("the policy is not kept"), "{text}");
}

#[test]
fn explain_by_another_policy_differs() {
    let folder = Folder::new();
    let path = folder.only("policies");
    let text = fs::read_to_string(&path).expect("the policy");
    let other = text.replace("reserve_percent = 2 ", "reserve_percent = 9 ");
    assert_ne!(text, other);
    fs::write(&path, other).expect("written");
    let text = folder.run(&["explain", FIRST]).fails_with(1);
    assert!(text.contains("replayed: differs: {"), "{text}");
    assert!(text.contains("the replay differs from the audit"), "{text}");
}

#[test]
fn advise_is_a_script_of_comments_and_commands() {
    let folder = Folder::new();
    let text = folder.ok(&["advise"]);
    assert!(text.starts_with("# /srv: decision 0badcafe-6 of 2026-11-25T19:00:50"), "{text}");
    let value = folder.json(&["advise"], "evenkeel.autopilot-advice/1");
    let changes = value["file_systems"][0]["changes"].as_array().expect("changes");
    for change in changes {
        for command in change["commands"].as_array().expect("commands") {
            let command = command.as_str().expect("a text");
            assert!(text.lines().any(|line| line == command), "{text}");
        }
    }
    let csv = folder.ok(&["advise", "-o", "csv"]);
    assert!(csv.starts_with("file_system,change,reason,command,undo\n"), "{csv}");
}

#[test]
fn orders_are_kept_until_they_end() {
    let folder = Folder::new();
    let text = folder.ok(&["hold", "36h", "--reason", "holidays"]);
    assert!(text.starts_with("no call and no change before 2"), "{text}");
    assert!(text.ends_with("no agent runs; it applies when one starts\n"), "{text}");
    folder.ok(&["pause"]);
    let text = folder.ok(&["status"]);
    assert!(text.contains("HOLD until ") && text.contains(": holidays; "), "{text}");
    assert!(text.contains("PAUSED since ") && text.contains(": ordered by a person; "), "{text}");
    let text = folder.ok(&["release"]);
    assert!(text.contains("the pause stays: `evenkeel autopilot resume` ends it"), "{text}");
    assert!(folder.ok(&["resume"]).starts_with("the pause is over\n"));
    assert_eq!(folder.ok(&["resume"]), "there is no pause\n");
    let text = folder.ok(&["status"]);
    assert!(!text.contains("HOLD") && !text.contains("PAUSED"), "{text}");
}

#[test]
fn release_replaces_orders_that_cannot_be_read() {
    let folder = Folder::new();
    fs::write(folder.path().join("orders.json"), "{").expect("written");
    let text = folder.run(&["status"]).fails_with(1);
    assert!(text.contains("before `evenkeel autopilot release` writes it anew"), "{text}");
    folder.ok(&["release"]);
    folder.ok(&["status"]);
}

#[test]
fn hold_that_is_over_is_a_usage_error() {
    let folder = Folder::new();
    let text = folder.run(&["hold", "2020-01-01"]).fails_with(2);
    assert!(text.contains("hold \"2020-01-01\": it is over"), "{text}");
    let text = folder.run(&["hold", "soon"]).fails_with(2);
    assert!(text.contains("expected a day such as 2026-12-24"), "{text}");
}

#[test]
fn folder_without_an_agent_is_an_error_with_the_next_step() {
    let folder = Folder::new();
    fs::remove_file(folder.path().join("agent.lock")).expect("removed");
    let text = folder.run(&["status"]).fails_with(3);
    assert!(
        text.contains("name the one that `evenkeel agent` runs with by --agent-folder"),
        "{text}"
    );
}

#[test]
fn damaged_state_is_an_error_with_the_next_step() {
    let folder = Folder::new();
    fs::write(folder.only("state"), "{\"form\":1,").expect("written");
    let text = folder.run(&["status"]).fails_with(1);
    assert!(text.contains("move the file away to begin with an empty state"), "{text}");
}

#[test]
fn check_prints_the_groups_of_a_policy_or_the_line_of_its_error() {
    let folder = Folder::new();
    let policy = folder.only("policies");
    let path = policy.to_str().expect("a path");
    let text = folder.ok(&["check", path]);
    assert!(text.contains("default") && text.contains("act"), "{text}");
    let value = folder.json(&["check", path], "evenkeel.autopilot-policy/1");
    assert_eq!(value["groups"][0]["mode"], "act");
    fs::write(&policy, "[[group]]\nname = \"a\"\nmode = \"go\"\n").expect("written");
    let text = folder.run(&["check", path]).fails_with(2);
    assert!(text.contains("line 3: "), "{text}");
    assert!(text.contains("`evenkeel agent --print-policy` prints every key"), "{text}");
    fs::remove_file(&policy).expect("removed");
    folder.run(&["check", path]).fails_with(3);
}
