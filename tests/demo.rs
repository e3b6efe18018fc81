//! `evenkeel demo`: the first command of the documentation, on a machine that other tests use, too.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use support::process::run;
use support::server::evenkeel;
use support::tools::absent;

/// The limiter is right however busy the machine is: what cannot be known is undecided, never
/// broken. What it prints, its exit code and its page say the same.
#[test]
fn the_demonstration_never_calls_an_honest_server_broken() {
    if absent(&["fio"]) {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let page = folder.path().join("report.html");
    let mut demo = evenkeel(folder.path());
    let output = run(demo.args(["demo", "--time", "12s", "--report"]).arg(&page));
    println!("{output}");
    let last = output.stdout.lines().last().unwrap();
    let page = std::fs::read_to_string(&page).unwrap();
    match output.status.code() {
        Some(0) => assert_eq!(last, "Every promise was kept."),
        Some(6) => {
            assert!(last.starts_with("Undecided: ") && last.contains(" could not be judged"));
            assert!(output.stderr.contains("run it again when less runs beside it"), "{output}");
        }
        _ => panic!("neither kept nor undecided: {output}"),
    }
    assert!(!output.stdout.to_lowercase().contains("broken"), "{output}");
    assert!(page.contains(last) && !page.contains("✗ broken"), "the page says something else");
    // The ceiling of each volume was judged by the server's record of its dispatches.
    assert_eq!(page.matches("ceiling, by the server&#39;s record").count(), 4);
    assert!(page.contains("modify, by the server&#39;s record"), "no modification was judged");
}
