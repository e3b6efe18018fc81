//! The binary: parses the command line, calls a library, prints the result. The exit code is that
//! of [`Exit`].

use clap::error::{ContextKind, ContextValue};
use evenkeel_cli::config::{self, ParseError};
use evenkeel_cli::exit;
use evenkeel_client::output::{Exit, Failure};
use std::process::ExitCode;

mod cli;
mod cmd;
#[cfg(test)]
mod config_tests;
mod price_book;
mod server_config;
mod version;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let cli: cli::Cli = match config::parse(cli::command(), &arguments) {
        Ok(cli) => cli,
        Err(ParseError::Usage(error)) if names_benchmarks(&error) => {
            return Failure::new("there is no verb \"bench\"")
                .exit(Exit::Usage)
                .hint("the suites are in evenkeel-bench: `evenkeel-bench ls` lists them")
                .report();
        }
        Err(ParseError::Usage(error)) => return exit::of_usage(&error),
        Err(ParseError::File(failure)) => return failure.report(),
    };
    exit::of_result(cmd::run(cli))
}

/// Returns whether a command line names the verb `bench`, which another program has.
fn names_benchmarks(error: &clap::Error) -> bool {
    let verb = error.get(ContextKind::InvalidSubcommand);
    matches!(verb, Some(ContextValue::String(verb)) if verb == "bench")
}
