//! The commit, the date and the compiler of a build, for `evenkeel --version`.
//!
//! A packager without git sets `EVENKEEL_COMMIT` and `SOURCE_DATE_EPOCH`. A build of the profile
//! `dev` names no commit by itself, since each commit would then compile the program again.

use std::env;
use std::path::Path;
use std::process::Command;

/// Seconds of a day.
const DAY_S: i64 = 86_400;

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-env-changed=EVENKEEL_COMMIT");
    println!("cargo::rerun-if-env-changed=SOURCE_DATE_EPOCH");
    let git = (variable("PROFILE") == "release").then(Checkout::of_this).flatten();
    let commit = match (variable("EVENKEEL_COMMIT"), &git) {
        (given, _) if !given.is_empty() => given,
        (_, Some(git)) => git.commit.clone(),
        _ => "unknown".to_owned(),
    };
    let date = match (variable("SOURCE_DATE_EPOCH"), git) {
        (given, _) if !given.is_empty() => date(&given),
        (_, Some(git)) => git.date,
        _ => "unknown".to_owned(),
    };
    set("COMMIT", &commit);
    set("DATE", &date);
    set("PROFILE", &variable("PROFILE"));
    set("TARGET", &variable("TARGET"));
    set("COMPILER", &compiler());
}

/// Sets a variable that the program reads when it is compiled.
fn set(name: &str, value: &str) {
    println!("cargo::rustc-env=EVENKEEL_BUILD_{name}={value}");
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_default().trim().to_owned()
}

/// The state of the git checkout that has this package.
struct Checkout {
    commit: String,
    date: String,
}

impl Checkout {
    /// Returns it; `None` if the sources are of a tarball, also one that is unpacked within the
    /// checkout of another project.
    fn of_this() -> Option<Self> {
        let top = git(&["rev-parse", "--show-toplevel"])?;
        let here = Path::new(&variable("CARGO_MANIFEST_DIR")).canonicalize().ok()?;
        if Path::new(&top).canonicalize().ok()? != here {
            return None;
        }
        // Each commit and each checkout appends a line there.
        let log = git(&["rev-parse", "--git-path", "logs/HEAD"])?;
        println!("cargo::rerun-if-changed={log}");
        let describe = ["describe", "--always", "--exclude=*", "--abbrev=12", "--dirty=-modified"];
        let show = ["log", "--max-count=1", "--date=format-local:%Y-%m-%d", "--format=%cd"];
        Some(Self { commit: git(&describe)?, date: git(&show)? })
    }
}

/// Returns the output of git; `None` if it fails.
fn git(arguments: &[&str]) -> Option<String> {
    // The date of a commit is that of UTC, so that all machines print the same one.
    let output = Command::new("git").args(arguments).env("TZ", "UTC").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (output.status.success() && !text.is_empty()).then_some(text)
}

/// Returns the version of the compiler, such as `rustc 1.95.0`.
fn compiler() -> String {
    let output = Command::new(variable("RUSTC")).arg("--version").output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    let text = text.unwrap_or_default();
    let words: Vec<&str> = text.split_whitespace().take(2).collect();
    words.join(" ")
}

/// Returns the day of a time in seconds since 1970, in UTC.
fn date(seconds: &str) -> String {
    let Ok(seconds) = seconds.parse::<i64>() else {
        println!("cargo::error=SOURCE_DATE_EPOCH is {seconds:?}, not a number of seconds");
        return String::new();
    };
    let mut day = seconds.div_euclid(DAY_S);
    let mut year = 1970;
    while day >= days_of(year) && year < 9_999 {
        day -= days_of(year);
        year += 1;
    }
    let mut month = 1;
    while month < 12 && day >= days_in(year, month) {
        day -= days_in(year, month);
        month += 1;
    }
    format!("{year:04}-{month:02}-{:02}", day + 1)
}

fn days_of(year: i64) -> i64 {
    (1..=12).map(|month| days_in(year, month)).sum()
}

fn days_in(year: i64, month: i64) -> i64 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        2 if is_leap => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}
