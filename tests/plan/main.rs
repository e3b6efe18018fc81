//! `evenkeel plan` through the command line.

mod answers;
mod check;
mod files;
mod first;
mod fleet;

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Output, Stdio};

const BOOK: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/planner/books/price_book.toml");
const SAMPLES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/crates/planner/samples");

/// Returns the verb without the environment's settings.
fn plan() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_evenkeel"));
    command.arg("plan").env_remove("EVENKEEL_OUTPUT").env_remove("EVENKEEL_REGION");
    command
}

/// Returns the verb in a folder.
fn plan_in(folder: &Path, words: &[&str]) -> Command {
    let mut command = plan();
    command.current_dir(folder).args(words);
    command
}

/// Returns standard output and standard error of a command that ends with this exit code.
#[track_caller]
fn ended(command: &mut Command, code: i32) -> (String, String) {
    text_of(command.output().expect("the program starts"), code)
}

/// Runs a command with this standard input, from a pipe, and returns as [`ended`].
#[track_caller]
fn ended_with_input(command: &mut Command, input: &[u8], code: i32) -> (String, String) {
    let command = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("the program starts");
    child.stdin.take().expect("a pipe").write_all(input).expect("written");
    text_of(child.wait_with_output().expect("it ends"), code)
}

#[track_caller]
fn text_of(output: Output, code: i32) -> (String, String) {
    let text = |bytes| String::from_utf8(bytes).expect("UTF-8");
    let stdout = text(output.stdout);
    let stderr = text(output.stderr);
    assert_eq!(output.status.code(), Some(code), "{stdout}{stderr}");
    (stdout, stderr)
}

/// Writes a file, compressed by gzip.
fn compress(path: &Path, text: &[u8]) {
    let file = std::fs::File::create(path).expect("a file");
    let mut encoder = flate2::write::GzEncoder::new(file, flate2::Compression::fast());
    encoder.write_all(text).expect("a file");
    encoder.finish().expect("a file");
}
