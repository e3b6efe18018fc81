//! Tests of the files of events: after crashes, and by their pages.

use std::fs::OpenOptions;
use std::io::Write;

use proptest::prelude::*;

use super::*;

fn all_of(log: &Log) -> Vec<(u64, String)> {
    let mut all = Vec::new();
    let mut after = 0;
    loop {
        let Page { events, examined } = log.read(after, 3, |_| true).unwrap();
        if events.is_empty() {
            return all;
        }
        after = examined;
        all.extend(events.into_iter().map(|kept| (kept.sequence, kept.event)));
    }
}

/// A step of a test of the log.
#[derive(Clone, Debug)]
enum Step {
    Append(Vec<usize>),
    Reopen,
    /// Removes this number of bytes from the last file's end, appends these bytes, and opens it
    /// again.
    Crash(u64, Vec<u8>),
}

fn step() -> impl Strategy<Value = Step> {
    let junk = prop_oneof![
        Just(vec![]),
        Just(vec![0; 9]),
        Just(b"{\"sequence\":0,\"event\":{}}\n".to_vec()),
        Just(b"{\"sequence\":99999999,\"event\":{\"".to_vec()),
    ];
    prop_oneof![
        4 => proptest::collection::vec(0_usize..90, 1..5).prop_map(Step::Append),
        1 => Just(Step::Reopen),
        2 => (0_u64..250, junk).prop_map(|(bytes, junk)| Step::Crash(bytes, junk)),
    ]
}

proptest! {
    // Every step is synced.
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases.div_ceil(2)))]
    /// Whatever a crash leaves of the last file, the log keeps a part of the appended events,
    /// including all complete lines, and continues after them.
    #[test]
    fn log_keeps_complete_lines_after_a_crash(steps in proptest::collection::vec(step(), 1..40)) {
        const BOUNDS: Bounds = Bounds { file_bytes: 300, files: 3 };
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(FILE_NAME);
        let (mut log, mut appender) = Log::open(folder.path(), BOUNDS);
        let mut model: Vec<(u64, String)> = Vec::new();
        let mut number = 0;
        for step in steps {
            let mut lost = 0;
            match step {
                Step::Append(sizes) => {
                    let next = model.last().map_or(1, |(last, _)| last + 1);
                    let event = |size: &usize| {
                        number += 1;
                        format!("{{\"n\":{number},\"x\":\"{}\"}}", "y".repeat(*size))
                    };
                    let events: Vec<String> = sizes.iter().map(event).collect();
                    appender.append(&events).unwrap();
                    model.extend((next..).zip(events));
                }
                Step::Reopen => {
                    drop(appender);
                    (log, appender) = Log::open(folder.path(), BOUNDS);
                }
                Step::Crash(bytes, junk) => {
                    drop(appender);
                    let text = fs::read(&path).unwrap();
                    let left = text.len().saturating_sub(usize::try_from(bytes).unwrap());
                    lost = text[left..].iter().filter(|byte| **byte == b'\n').count();
                    let mut file = OpenOptions::new().write(true).open(&path).unwrap();
                    file.set_len(left as u64).unwrap();
                    std::io::Seek::seek(&mut file, std::io::SeekFrom::End(0)).unwrap();
                    file.write_all(&junk).unwrap();
                    (log, appender) = Log::open(folder.path(), BOUNDS);
                }
            }
            model.truncate(model.len() - lost);
            let kept = all_of(&log);
            prop_assert!(kept.windows(2).all(|two| two[0].0 < two[1].0));
            prop_assert!(model.ends_with(&kept), "{kept:?} of {model:?}");
            prop_assert_eq!(log.last(), model.last().map_or(0, |(last, _)| *last));
            prop_assert_eq!(log.oldest(), kept.first().map_or(log.last() + 1, |(it, _)| *it));
            let files = fs::read_dir(folder.path()).unwrap().count();
            prop_assert!(files <= BOUNDS.files);
        }
    }
}

#[test]
fn files_are_the_owners_alone_and_a_page_finds_its_place() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (log, mut appender) = Log::open(folder.path(), Bounds::default());
    let event = |number: u64| format!("{{\"n\":{number},\"x\":\"{}\"}}", "y".repeat(200));
    for from in (0..5_000).step_by(100) {
        appender.append(&(from..from + 100).map(event).collect::<Vec<_>>()).unwrap();
    }
    for after in [0, 1, 299, 300, 4_000, 4_998] {
        let page = log.read(after, 2, |_| true).unwrap();
        let numbers: Vec<u64> = page.events.iter().map(|kept| kept.sequence).collect();
        assert_eq!(numbers, (after + 1..=5_000).take(2).collect::<Vec<_>>());
    }
    assert_eq!(log.read(5_000, 2, |_| true).unwrap(), Page { events: vec![], examined: 5_000 });
    assert_eq!(log.read(u64::MAX, 2, |_| true).unwrap().events, []);
    let odd = |event: &str| event.starts_with("{\"n\":4999,");
    assert_eq!(log.read(0, 2, odd).unwrap().examined, 5_000);
    assert_eq!(log.newest().unwrap().sequence, 5_000);
    let mode = folder.path().join(FILE_NAME).metadata().unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
}
