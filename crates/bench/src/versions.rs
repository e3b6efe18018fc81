//! Versions of the programs that a run has used, for its provenance.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::{mariadb, postgres};
use evenkeel_lab::child::{self, Guarded};
use evenkeel_os::clock;

/// Longest wait for a program to print its version; it is left out then.
const TELL_MAX: Duration = Duration::from_secs(10);
/// Maximum letters of a version: further ones are about copyright.
const LETTERS_MAX: usize = 80;

/// Arguments that print a program's version, if that is not `--version`. postmark prints it as a
/// greeting, and ends with its empty input. `fs_mark` prints no version. bzip2 would compress its
/// input after it, and so gets `--help`.
const ASKED: [(&str, &[&str]); 9] = [
    ("mkfs.ext4", &["-V"]),
    ("mkfs.xfs", &["-V"]),
    ("mkfs.btrfs", &["-V"]),
    ("dbench", &["--help"]),
    ("postmark", &[]),
    ("fs_mark", &["-h"]),
    ("ab", &["-V"]),
    ("apache2", &["-v"]),
    ("bzip2", &["--help"]),
];

/// Returns the version line of each program, sorted by name, without duplicates.
#[must_use]
pub fn of(programs: &[&'static str]) -> Vec<String> {
    let mut names = programs.to_vec();
    names.sort_unstable();
    names.dedup();
    names.into_iter().map(version).collect()
}

/// Returns a line such as `sysbench 1.0.20`; only the name if the program prints no version.
fn version(name: &'static str) -> String {
    let told = told(name).unwrap_or_default();
    let has_digit = |line: &&str| line.chars().any(|letter| letter.is_ascii_digit());
    let is_usage = |line: &str| line.trim_start().starts_with(['-', '#']);
    let Some(line) = told.lines().find(has_digit).filter(|line| !is_usage(line)) else {
        return format!("{name} (prints no version)");
    };
    let line: String = line.trim().chars().take(LETTERS_MAX).collect();
    let is_named = line.to_ascii_lowercase().contains(&name.to_ascii_lowercase());
    if is_named { line } else { format!("{name}: {line}") }
}

/// Returns the output or the error of a program that is asked for its version; `None` if it does
/// not exist or does not end.
fn told(name: &'static str) -> Option<String> {
    let asked = ASKED.iter().find(|(asked, _)| *asked == name);
    let words = asked.map_or(&["--version"][..], |(_, words)| words);
    // A database's programs are in folders of their own.
    let program =
        postgres::find(name).or_else(|| mariadb::find(name)).unwrap_or_else(|| PathBuf::from(name));
    let mut command = Command::new(program);
    let mut child = Guarded::spawn(command.args(words).stdout(Stdio::piped()), name).ok()?;
    let printed = child.take_stdout().map(|pipe| child::apart(move || child::tail(pipe)));
    child.wait_until(clock::now() + TELL_MAX)?;
    let printed = printed.map(|printed| child::result_of(&printed)).unwrap_or_default();
    Some(format!("{printed}\n{}", child.stderr()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_of_programs_are_listed_once_and_in_order() {
        let told = of(&["sh", "no-such-program-here", "gzip", "gzip"]);
        assert_eq!(told.len(), 3, "{told:?}");
        let number = told[0].strip_prefix("gzip ").expect("gzip tells its name first");
        assert!(number.starts_with(|first: char| first.is_ascii_digit()), "{told:?}");
        assert_eq!(told[1], "no-such-program-here (prints no version)");
    }
}
