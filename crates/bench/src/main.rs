//! The program `evenkeel-bench`: parses the command line, calls the library, prints the result.

use evenkeel_cli::exit;
use std::process::ExitCode;

mod cli;
mod cmd;

fn main() -> ExitCode {
    match cli::parse() {
        Ok(cli) => exit::of_result(cmd::run(&cli.verb)),
        Err(error) => exit::of_usage(&error),
    }
}
