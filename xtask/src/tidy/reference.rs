//! Checks that docs/reference/cli.md and the man page are the binary's own output.

use super::{Fault, Tree};
use crate::run;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Each generated file and the arguments that make the binary print it.
const GENERATED: [(&str, &[&str]); 2] = [
    ("docs/reference/cli.md", &["man", "--format", "markdown"]),
    ("docs/reference/evenkeel.1", &["man", "--format", "roff"]),
];

/// Compares each file with new output. A binary that does not build is a fault, too, so that the
/// other rules are still checked.
pub fn check(root: &Path, tree: &Tree) -> Vec<Fault> {
    let program = match program(root) {
        Ok(program) => program,
        Err(message) => return vec![Fault::new(GENERATED[0].0, 0, message)],
    };
    let compare = |(path, arguments): (&str, &[&str])| match generate(&program, arguments) {
        Ok(generated) => difference(path, tree.get(path).map_or("", String::as_str), &generated),
        Err(message) => Some(Fault::new(path, 0, message)),
    };
    GENERATED.into_iter().filter_map(compare).collect()
}

/// Writes each file anew.
pub fn regenerate(root: &Path) -> Result<(), String> {
    let program = program(root)?;
    for (path, arguments) in GENERATED {
        let generated = generate(&program, arguments)?;
        let file = root.join(path);
        std::fs::write(&file, generated).map_err(|error| format!("{}: {error}", file.display()))?;
        println!("wrote {path}");
    }
    Ok(())
}

/// Builds the program together with the tests, and returns its path. Built alone, all its crates
/// would be compiled again: cargo unites the features of the crates that it builds, and tests need
/// more of them.
fn program(root: &Path) -> Result<PathBuf, String> {
    let words = ["build", "--workspace", "--bin", "evenkeel", "--test", "sim"];
    let mut command = run::cargo(root, &words);
    command.arg("--message-format=json-render-diagnostics");
    let messages = run::output(&mut command)?;
    let executable = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_it = message["target"]["kind"][0] == "bin" && message["profile"]["test"] == false;
        is_it.then(|| message["executable"].as_str().map(PathBuf::from)).flatten()
    };
    let found = messages.lines().find_map(executable);
    found.ok_or_else(|| "cargo has built no program".to_owned())
}

fn generate(program: &Path, arguments: &[&str]) -> Result<String, String> {
    let mut command = Command::new(program);
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
