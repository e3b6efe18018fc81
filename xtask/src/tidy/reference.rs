//! Checks that the references of both programs in docs/reference, and their manual pages, are the
//! programs' own output.

use super::{Fault, Tree};
use crate::run;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The arguments that make a program print its reference and its manual page.
const MARKDOWN: &[&str] = &["man", "--format", "markdown"];
const ROFF: &[&str] = &["man", "--format", "roff"];

/// Each generated file, its program, and the arguments that make the program print it.
const GENERATED: [(&str, &str, &[&str]); 4] = [
    ("docs/reference/cli.md", "evenkeel", MARKDOWN),
    ("docs/reference/evenkeel.1", "evenkeel", ROFF),
    ("docs/reference/cli_bench.md", "evenkeel-bench", MARKDOWN),
    ("docs/reference/evenkeel-bench.1", "evenkeel-bench", ROFF),
];

/// Compares each file with new output. A binary that does not build is a fault, too, so that the
/// other rules are still checked.
pub fn check(root: &Path, tree: &Tree) -> Vec<Fault> {
    let programs = match programs(root) {
        Ok(programs) => programs,
        Err(message) => return vec![Fault::new(GENERATED[0].0, 0, message)],
    };
    let mut faults = Vec::new();
    for (path, program, arguments) in GENERATED {
        match generate(&programs, program, arguments) {
            Ok(generated) => {
                let written = tree.get(path).map_or("", String::as_str);
                faults.extend(difference(path, written, &generated));
            }
            Err(message) => faults.push(Fault::new(path, 0, message)),
        }
    }
    faults
}

/// Writes each file anew.
pub fn regenerate(root: &Path) -> Result<(), String> {
    let programs = programs(root)?;
    for (path, program, arguments) in GENERATED {
        let generated = generate(&programs, program, arguments)?;
        let file = root.join(path);
        std::fs::write(&file, generated).map_err(|error| format!("{}: {error}", file.display()))?;
        println!("wrote {path}");
    }
    Ok(())
}

/// Builds the programs together with the tests, and returns the paths of all programs. Built
/// alone, all their crates would be compiled again: cargo unites the features of the crates that it
/// builds, and tests need more of them.
fn programs(root: &Path) -> Result<Vec<PathBuf>, String> {
    let programs = ["--bin", "evenkeel", "--bin", "evenkeel-bench"];
    let words = [&["build", "--workspace"], &programs[..], &["--test", "sim"]].concat();
    let mut command = run::cargo(root, &words);
    command.arg("--message-format=json-render-diagnostics");
    let messages = run::output(&mut command)?;
    let executable = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["kind"][0] == "bin" && message["profile"]["test"] == false;
        is_it.then(|| message["executable"].as_str().map(PathBuf::from)).flatten()
    };
    Ok(messages.lines().filter_map(executable).collect())
}

fn generate(programs: &[PathBuf], program: &str, arguments: &[&str]) -> Result<String, String> {
    let path = programs.iter().find(|path| path.file_name().is_some_and(|name| name == program));
    let path = path.ok_or_else(|| format!("cargo has built no {program}"))?;
    let mut command = Command::new(path);
    command.args(arguments);
    // Variables of the user's environment must not appear in the reference.
    for (key, _) in std::env::vars_os() {
        if key.to_string_lossy().starts_with("EVENKEEL_") {
            command.env_remove(key);
        }
    }
    run::output(&mut command)
}

fn difference(path: &str, written: &str, generated: &str) -> Option<Fault> {
    if written == generated {
        return None;
    }
    let same = written.lines().zip(generated.lines()).take_while(|(a, b)| a == b).count();
    Some(Fault::new(path, same + 1, "differs from what the binary says: run `cargo x docs`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_difference_is_shown() {
        assert_eq!(difference("a.md", "a\nb\n", "a\nb\n"), None);
        let fault = difference("a.md", "a\nb\n", "a\nc\n").unwrap();
        assert_eq!(
            fault.to_string(),
            "a.md:2: differs from what the binary says: run `cargo x docs`"
        );
        assert_eq!(difference("a.md", "", "a\n").unwrap().line, 1);
        assert_eq!(difference("a.md", "a\n", "a\nb\n").unwrap().line, 2);
    }
}
