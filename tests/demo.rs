//! `evenkeel demo`: the first command of the documentation, on a machine that other tests use, too.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use support::process::run;
use support::server::evenkeel;
use support::tools::absent;

/// The limiter is correct however busy the machine is: the verdict may be undecided, but never
/// broken. The output, the exit code and the page agree.
#[test]
fn the_demonstration_never_calls_an_honest_server_broken() {
    if absent(&["fio"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    let mut demo = evenkeel(folder.path());
    let output = run(demo.args(["demo", "--time", "12s", "--report"]).arg(&page));
    // Without a verdict there is no page.
    let page = std::fs::read_to_string(&page).unwrap_or_default();
    let last = output.stdout.lines().last().unwrap_or_default();
    match output.status.code() {
        Some(0) => assert_eq!(last, "Every promise was kept.", "{output}"),
        Some(6) => {
            let is_undecided = last.starts_with("Undecided: ");
            assert!(is_undecided && last.contains(" could not be judged"), "{output}");
            assert!(output.stderr.contains("run it again when less runs beside it"), "{output}");
        }
        _ => panic!("neither kept nor undecided: {output}"),
    }
    assert!(!output.stdout.to_lowercase().contains("broken"), "{output}");
    assert!(page.contains(last), "the page says something else: {output}\n{page}");
    assert!(!page.contains("✗ broken"), "the page says something else: {output}\n{page}");
    // The ceiling of each volume was judged by the server's record of its dispatches, and so was
    // the modification of one.
    let judged = page.matches("ceiling, by the server&#39;s record").count();
    assert_eq!(judged, 4, "{output}\n{page}");
    assert!(page.contains("modify, by the server&#39;s record"), "{output}\n{page}");
}
