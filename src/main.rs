//! The binary: parses the command line, calls a library, prints the result. The exit code is that
//! of [`Exit`](evenkeel_client::output::Exit).

use evenkeel_client::output::Exit;
use std::process::ExitCode;

mod accounts;
mod api_relay;
mod calibration;
mod cli;
mod cluster;
mod cmd;
mod config;
mod connect;
mod diskstats;
mod endpoint;
mod events;
mod file_systems;
mod price_book;
mod private_file;
mod reference;
mod server;
mod store_options;
mod takeover_watch;
mod top;

fn main() -> ExitCode {
    let arguments: Vec<_> = std::env::args_os().collect();
    let cli = match config::parse(&arguments) {
        Ok(cli) => cli,
        Err(config::ParseError::Usage(error)) => {
            // Help and version are "errors", too: clap prints them to standard output and returns
            // code 0.
            let code = if error.use_stderr() { Exit::Usage.code() } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
        Err(config::ParseError::File(failure)) => return failure.report(),
    };
    let done = cmd::run(cli);
    cmd::serve::end_if_interrupted();
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.report(),
    }
}
