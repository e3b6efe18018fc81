//! The verdict of `evenkeel plan check` in each form, for continuous integration and for a pull
//! request, and its exit codes.

use std::path::PathBuf;

use serde_json::json;

use super::{SAMPLES, ended, plan};

/// Returns the standard output of a check with this exit code.
#[track_caller]
fn printed(trace: &str, more: &[&str], code: i32) -> String {
    ended(plan().args(["check", trace]).args(more), code).0
}

fn declared() -> String {
    format!("{SAMPLES}/declared.toml")
}

/// Writes a declared workload of one second with this name.
fn named(name: &str) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("trace.toml");
    let text = format!(
        "name = {}\nrepeat = 1\n[[phase]]\nname = \"p\"\nfor = \"1s\"\nrate_iops = 9000\n\
         size_kib = 4\nread_percent = 50\ndepth = 1\n",
        json!(name)
    );
    std::fs::write(&path, text).expect("written");
    (folder, path)
}

#[test]
fn junit_has_a_test_case_for_each_check() {
    let layout = ["--layout", "gp3 100", "--capacity", "80", "-o", "junit"];
    let expected = r#"<?xml version="1.0" encoding="UTF-8"?>
<testsuites name="evenkeel plan check" tests="2" failures="1" errors="0">
  <testsuite name="orders on gp3 100 GiB, 3000 IOPS, 125 MiB/s" tests="2" failures="1" errors="0">
    <properties>
      <property name="layout" value="gp3 100 GiB, 3000 IOPS, 125 MiB/s"/>
      <property name="prices" value="of 2025-10-14, us-east-1"/>
    </properties>
    <testcase classname="evenkeel.plan.check" name="throttled a day s">
      <failure type="limit" message="throttled a day: 14400 s, allowed are 0.0">"#;
    let text = printed(&declared(), &layout, 1);
    let rest = text.strip_prefix(expected).unwrap_or_else(|| panic!("{text}"));
    let waits = "requests wait first from 1:00:00 on for 5 min, at the limit of MiB/s\n\
                 the longest of 6 times: from 1:00:00 on for 5 min, at the limit of MiB/s<";
    assert!(rest.starts_with(waits), "{text}");
    let rest = r#"</failure>
    </testcase>
    <testcase classname="evenkeel.plan.check" name="capacity GiB">
      <system-out>found 80, allowed 100</system-out>
    </testcase>
  </testsuite>
</testsuites>
"#;
    assert!(text.ends_with(rest), "{text}");
    let layout = ["--layout", "gp3 100, 5000 IOPS, 500 MiB/s", "-o", "junit"];
    let text = printed(&declared(), &layout, 0);
    assert!(text.contains("tests=\"1\" failures=\"0\"") && !text.contains("<failure"), "{text}");
}

#[test]
fn markdown_has_the_verdict_the_checks_and_the_waiting() {
    let layout = ["--layout", "gp3 100", "-o", "markdown"];
    let text = printed(&declared(), &layout, 1);
    let expected = "### gp3 100 GiB, 3000 IOPS, 125 MiB/s does not carry `orders`\n\
                    \n\
                    | check | allowed | found | verdict |\n\
                    | --- | ---: | ---: | --- |\n\
                    | throttled a day s | 0.0 | 14400 | **failed** |\n\
                    \n\
                    - requests wait first from 1:00:00 on for 5 min, at the limit of MiB/s\n\
                    - the longest of 6 times: from 1:00:00 on for 5 min, at the limit of MiB/s\n";
    assert!(text.starts_with(expected), "{text}");
    let rest = "- prices of 2025-10-14, us-east-1\n\
                \n\
                `evenkeel plan` with the same traces and flags names the cheapest that does.\n";
    assert!(text.ends_with(rest), "{text}");
    let layout = ["--layout", "gp3 100, 5000 IOPS, 500 MiB/s", "-o", "markdown"];
    let text = printed(&declared(), &layout, 0);
    assert!(text.contains("MiB/s carries `orders`\n") && text.contains("| ok |"), "{text}");
    assert!(!text.contains("names the cheapest"), "{text}");
}

#[test]
fn a_name_is_no_markup_in_any_form() {
    let (_folder, path) = named("a`b|<i>@team\u{1b}&\"");
    let path = path.to_str().expect("UTF-8");
    let text = printed(path, &["--layout", "gp3 100", "-o", "junit"], 1);
    let suite = "name=\"a`b|&lt;i&gt;@team\\u{1b}&amp;&quot; on gp3";
    assert!(text.contains(suite) && !text.contains('\u{1b}'), "{text}");
    let text = printed(path, &["--layout", "gp3 100", "-o", "markdown"], 1);
    assert!(text.contains("does not carry `` a`b|<i>@team\\u{1b}&\" ``\n"), "{text}");
}

#[test]
fn forms_of_a_verdict_and_exit_codes_are_those_of_a_check() {
    let wrong = [("gp9 100", declared(), 2), ("gp3 100", "nothing.json".to_owned(), 3)];
    for (layout, trace, code) in wrong {
        for form in ["junit", "markdown"] {
            let text = printed(&trace, &["--layout", layout, "-o", form], code);
            assert_eq!(text, "", "no verdict of {trace} on {layout}");
        }
    }
    let compare = ["compare", "--layout", "gp3 100", "--layout", "gp3 200"];
    let search = ["--capacity", "100"];
    for form in ["junit", "markdown"] {
        for words in [&compare[..], &search[..]] {
            let (_, error) = ended(plan().args(words).arg(declared()).args(["-o", form]), 2);
            assert!(error.contains("only `evenkeel plan check` prints JUnit's XML"), "{error}");
        }
    }
}
