//! The end of a program: its exit code, and the text of a failure.

use crate::signals;
use evenkeel_client::output::{Exit, Failure};
use std::process::ExitCode;

/// Prints the result of parsing a command line that is not to be executed. Help and version are
/// "errors", too: clap prints them to standard output, and the exit code is 0.
pub fn of_usage(error: &clap::Error) -> ExitCode {
    let code = if error.use_stderr() { Exit::Usage.code() } else { 0 };
    let _ = error.print();
    ExitCode::from(code)
}

/// Prints a failure and returns the exit code of a verb's result. If a signal's handler ends this
/// process, waits for that.
pub fn of_result(result: Result<(), Failure>) -> ExitCode {
    signals::end_if_interrupted();
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
