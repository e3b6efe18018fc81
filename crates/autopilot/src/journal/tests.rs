//! Tests of the journal.

use super::*;
use crate::history::Past;
use evenkeel_planner::autopilot::Step;
use proptest::prelude::*;

const UUID: &str = "0badcafe-0000-4000-8000-000000000001";
const DAY_MS: u64 = 86_400_000;

fn folder() -> (tempfile::TempDir, Folder) {
    let temp = tempfile::tempdir().unwrap();
    let folder = Folder::claim(temp.path(), Bounds::default()).unwrap();
    (temp, folder)
}

fn memory(decisions: u64) -> Memory {
    let mut memory = Memory::default();
    memory.state.decisions = decisions;
    let past = Past { window_ms: 240_000, days: 28, day_ms: 86_400_000 };
    memory.history.add(1_000, 5, &past);
    memory
}

fn audit_text(temp: &Path) -> String {
    let names = log::names(&temp.join(AUDIT)).unwrap();
    names.iter().map(|name| fs::read_to_string(temp.join(AUDIT).join(name)).unwrap()).collect()
}

#[test]
fn journal_returns_what_was_stored_last() {
    let (temp, folder) = folder();
    let mut journal = folder.journal();
    assert_eq!(journal.load(UUID), Ok(Memory::default()));
    for decisions in [1, 2] {
        journal.store(UUID, &memory(decisions)).unwrap();
    }
    assert_eq!(journal.load(UUID), Ok(memory(2)));
    drop((journal, folder));
    let again = Folder::claim(temp.path(), Bounds::default()).unwrap();
    assert_eq!(again.journal().load(UUID), Ok(memory(2)));
    let reader = Reader::open(temp.path()).unwrap();
    assert_eq!(reader.memories(), Ok(vec![(UUID.to_owned(), memory(2))]));
}

#[test]
fn journal_ignores_a_state_file_that_was_not_completed() {
    let (temp, folder) = folder();
    folder.journal().store(UUID, &memory(7)).unwrap();
    let partial = temp.path().join(STATE).join(format!("{UUID}.json.new"));
    fs::write(&partial, "{\"form\":1,\"uu").unwrap();
    assert_eq!(folder.journal().load(UUID), Ok(memory(7)));
    folder.journal().store(UUID, &memory(8)).unwrap();
    assert_eq!(folder.journal().load(UUID), Ok(memory(8)));
}

#[test]
fn damaged_state_file_is_an_error_with_the_next_step() {
    let (temp, folder) = folder();
    let path = temp.path().join(STATE).join(format!("{UUID}.json"));
    let error = |text: &str| {
        fs::write(&path, text).unwrap();
        match folder.journal().load(UUID) {
            Err(Fault::Refused(text)) => text,
            other => panic!("{other:?}"),
        }
    };
    let text = error("{\"form\":1,");
    assert!(text.contains("it is damaged"), "{text}");
    assert!(text.contains("move the file away to begin with an empty state"), "{text}");
    let text = error("{\"form\":9,\"else\":true}");
    assert!(text.contains("it has the form 9, and this version reads 1"), "{text}");
    let text = error("{\"form\":1,\"uuid\":\"other\",\"memory\":{}}");
    assert!(text.contains("it is the state of other"), "{text}");
}

#[test]
fn uuid_that_leaves_the_folder_is_refused() {
    let (_temp, folder) = folder();
    for uuid in ["", "../x", "a/b", &"a".repeat(65)] {
        assert!(matches!(folder.journal().load(uuid), Err(Fault::Refused(_))), "{uuid}");
    }
}

#[test]
fn folder_has_one_agent() {
    let (temp, folder) = folder();
    let error = Folder::claim(temp.path(), Bounds::default()).unwrap_err();
    assert!(error.contains("another agent runs with this folder; stop it"), "{error}");
    let reader = Reader::open(temp.path()).unwrap();
    assert_eq!(reader.is_running(), Ok(true));
    drop(folder);
    assert_eq!(reader.is_running(), Ok(false));
    Folder::claim(temp.path(), Bounds::default()).unwrap();
}

#[test]
fn folder_of_something_else_is_refused() {
    let temp = tempfile::tempdir().unwrap();
    fs::write(temp.path().join("photo.jpg"), "x").unwrap();
    let error = Folder::claim(temp.path(), Bounds::default()).unwrap_err();
    assert!(error.contains("name an empty folder"), "{error}");
    let error = Reader::open(temp.path()).unwrap_err();
    assert!(error.contains("no agent has used this folder"), "{error}");
    fs::remove_file(temp.path().join("photo.jpg")).unwrap();
    fs::write(temp.path().join(LOCK), "evenkeel agent folder, format 2\n").unwrap();
    let error = Folder::claim(temp.path(), Bounds::default()).unwrap_err();
    assert!(error.contains("use the version that wrote the folder"), "{error}");
}

#[test]
fn folder_that_cannot_be_written_is_an_error_with_the_next_step() {
    let temp = tempfile::tempdir().unwrap();
    let file = temp.path().join("file");
    fs::write(&file, "").unwrap();
    for path in [file.clone(), file.join("below")] {
        let error = Folder::claim(&path, Bounds::default()).unwrap_err();
        assert!(error.starts_with(&format!("the agent's folder {}: ", path.display())), "{error}");
        assert!(
            error.ends_with("name a folder that can be written with --agent-folder"),
            "{error}"
        );
    }
}

#[test]
fn page_of_evidence_is_kept_under_the_digest_of_the_evidence() {
    let (temp, folder) = folder();
    let mut made = Evidence { made_ms: 1, digest: "00".to_owned(), volumes: Vec::new() };
    let reader = Reader::open(temp.path()).unwrap();
    assert_eq!(reader.page(&made), Ok(None));
    folder.keep_page(&made, "the page\n").unwrap();
    assert_eq!(reader.page(&made), Ok(Some("the page\n".to_owned())));
    made.made_ms = 2;
    assert_eq!(reader.page(&made), Ok(None));
}

#[test]
fn audit_ends_a_partial_line() {
    let (temp, folder) = folder();
    folder.journal().audit(DAY_MS, "{\"first\":1}").unwrap();
    let path = temp.path().join(AUDIT).join("1970-01-02-0000.jsonl");
    let mut text = fs::read_to_string(&path).unwrap();
    text += "{\"second\":";
    fs::write(&path, text).unwrap();
    drop(folder);
    let folder = Folder::claim(temp.path(), Bounds::default()).unwrap();
    folder.journal().audit(DAY_MS + 1, "{\"third\":3}").unwrap();
    assert_eq!(audit_text(temp.path()), "{\"first\":1}\n{\"second\":\n{\"third\":3}\n");
}

#[test]
fn audit_keeps_its_days_and_its_bytes() {
    let temp = tempfile::tempdir().unwrap();
    let bounds = Bounds { days: 3, file_bytes: 20, bytes: 90 };
    let folder = Folder::claim(temp.path(), bounds).unwrap();
    for day in 1..=9_u64 {
        for line in 0..4 {
            folder.journal().audit(day * DAY_MS + line, &format!("{{\"day\":{day}}}")).unwrap();
        }
    }
    let names = log::names(&temp.path().join(AUDIT)).unwrap();
    assert_eq!(
        names,
        [
            "1970-01-08-0001.jsonl",
            "1970-01-09-0000.jsonl",
            "1970-01-09-0001.jsonl",
            "1970-01-10-0000.jsonl",
            "1970-01-10-0001.jsonl",
        ]
    );
}

#[test]
fn policy_is_kept_by_its_digest() {
    let (temp, folder) = folder();
    let digest = folder.keep_policy("mode = \"act\"\n").unwrap();
    assert_eq!(folder.keep_policy("mode = \"act\"\n"), Ok(digest.clone()));
    let reader = Reader::open(temp.path()).unwrap();
    assert_eq!(reader.policy(&digest), Ok("mode = \"act\"\n".to_owned()));
    for digest in ["0".repeat(64), "../agent".to_owned()] {
        assert!(reader.policy(&digest).unwrap_err().contains("the policy is not kept"));
    }
    for number in 0..POLICIES_MAX + 3 {
        folder.keep_policy(&number.to_string()).unwrap();
    }
    assert_eq!(fs::read_dir(temp.path().join(POLICIES)).unwrap().count(), POLICIES_MAX);
}

#[test]
fn orders_are_read_as_they_were_written() {
    let (temp, folder) = folder();
    assert_eq!(folder.journal().orders(), Ok(Orders::default()));
    let reader = Reader::open(temp.path()).unwrap();
    let hold = Some(crate::orders::Held { until_ms: 5, reason: "holidays".to_owned() });
    let orders = Orders { hold, pause: None, released_ms: 3 };
    reader.order(&orders).unwrap();
    assert_eq!(folder.journal().orders(), Ok(orders));
    fs::write(temp.path().join(ORDERS), "{").unwrap();
    let Err(Fault::Refused(error)) = folder.journal().orders() else { panic!("it is damaged") };
    assert!(error.contains("before `evenkeel autopilot release` writes it anew"), "{error}");
}

#[test]
fn reader_finds_a_decision_with_its_results() {
    let (temp, folder) = folder();
    let mut journal = folder.journal();
    let done = |after: &str, operation: &str| {
        let steps = [(operation.to_owned(), Step::Done, None)];
        crate::audit::executed(after, 1, &steps).unwrap()
    };
    let decided = |id: &str| format!("{{\"form\":1,\"id\":\"{id}\",\"unix-ms\":1}}");
    for line in [
        decided("0badcafe-1"),
        decided("0badcafe-12"),
        done("0badcafe-12", "0badcafe-1.0"),
        decided("0badcafe-13"),
        done("0badcafe-13", "0badcafe-12.0"),
        done("0badcafe-13", "0badcafe-11.0"),
    ] {
        journal.audit(DAY_MS, &line).unwrap();
    }
    let reader = Reader::open(temp.path()).unwrap();
    let found = reader.find("0badcafe-12").unwrap().unwrap();
    assert_eq!(found.line, decided("0badcafe-12"));
    let operations: Vec<&str> =
        found.results.iter().flat_map(|done| &done.steps).map(|step| &*step.operation).collect();
    assert_eq!(operations, ["0badcafe-1.0", "0badcafe-12.0"]);
    assert_eq!(reader.find("0badcafe-9"), Ok(None));
    assert_eq!(reader.last_decision(UUID), Ok(Some(decided("0badcafe-13"))));
    assert_eq!(reader.last_decision("other"), Ok(None));
}

proptest! {
    #[test]
    fn reader_returns_an_error_for_any_damage(
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        let (temp, folder) = folder();
        fs::write(temp.path().join(STATE).join(format!("{UUID}.json")), &bytes).unwrap();
        fs::write(temp.path().join(ORDERS), &bytes).unwrap();
        fs::write(temp.path().join(AUDIT).join("1970-01-02-0000.jsonl"), &bytes).unwrap();
        let _ = (folder.journal().load(UUID), folder.journal().orders());
        let reader = Reader::open(temp.path()).unwrap();
        prop_assert_eq!(reader.find("0badcafe-1"), Ok(None));
        prop_assert_eq!(reader.last_decision(UUID), Ok(None));
    }
}
