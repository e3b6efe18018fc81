//! `evenkeel sim` through the command line: exit codes, output that is the same every time, and
//! messages on errors.

use std::process::{Command, Output};

fn sim(arguments: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.arg("sim").args(arguments).output().expect("the program starts")
}

fn stdout(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("UTF-8")
}

fn stderr(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("UTF-8")
}

const SCENARIO: &str = "\
title = \"Ten a second\"
duration_s = 5
[[volume]]
name = \"v\"
iops = 1_000
[[client]]
on = \"v\"
iops = 10
[[expect]]
metric = \"mean_iops\"
of = \"v\"
equals = 10
within_percent = 50
";

#[test]
fn a_scenario_is_run_and_its_exit_code_is_its_verdict() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let path = write("ten.toml", SCENARIO);
    let page = folder.path().join("page.html").display().to_string();
    let good = sim(&["run", &path, "--seed", "3", "-o", "json", "--html", &page]);
    assert_eq!(good.status.code(), Some(0), "{}", stderr(&good));
    assert!(stdout(&good).contains("\"schema\":\"evenkeel.sim/1\""), "{}", stdout(&good));
    assert!(stderr(&good).contains("I/Os per second"), "{}", stderr(&good));
    assert!(std::fs::read_to_string(page).expect("a page").ends_with("</html>\n"));
    let again = sim(&["run", &path, "--seed", "3", "-o", "json"]);
    assert_eq!(stdout(&good), stdout(&again), "the same seed, the same bytes");
    let other = sim(&["run", &path, "--seed", "4", "-o", "json"]);
    assert_ne!(stdout(&good), stdout(&other), "another seed, other arrivals");

    let bad = sim(&["run", &write("bad.toml", &SCENARIO.replace("equals = 10", "equals = 99"))]);
    assert_eq!(bad.status.code(), Some(1));
    assert!(stdout(&bad).contains("NOT MET"), "{}", stdout(&bad));
    assert!(
        stderr(&bad).contains("hint: the same run again: evenkeel sim run "),
        "{}",
        stderr(&bad)
    );

    let wrong =
        sim(&["run", &write("wrong.toml", &SCENARIO.replace("iops = 10\n", "iosp = 10\n"))]);
    assert_eq!(wrong.status.code(), Some(2));
    assert!(stderr(&wrong).contains("wrong.toml:8: [[client]] "), "{}", stderr(&wrong));
}

#[test]
fn scenarios_are_listed_and_a_wrong_name_is_not_far_from_a_right_one() {
    let list = sim(&["ls", "-o", "csv"]);
    assert!(list.status.success());
    assert!(
        stdout(&list).lines().any(|line| line.starts_with("gp2-burst,7,")),
        "{}",
        stdout(&list)
    );
    let wrong = sim(&["run", "gp2-brust"]);
    assert_eq!(wrong.status.code(), Some(3));
    assert!(stderr(&wrong).contains("did you mean \"gp2-burst\"?"), "{}", stderr(&wrong));
}
