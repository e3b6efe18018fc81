//! `evenkeel health`: asks a server whether it works. The exit code is 1 if it does not.

use crate::cli::Health;
use evenkeel_cli::endpoint;
use evenkeel_client::output::{self, Exit, Failure};
use evenkeel_client::{Client, Keys};

pub fn run(arguments: &Health) -> Result<(), Failure> {
    let connection = &arguments.connection;
    // The paths need no signature, so a probe needs no keys.
    let keys = Keys { access_key_id: String::new(), secret_access_key: String::new() };
    let authorities = endpoint::authorities(connection);
    let region = endpoint::region(connection);
    let server = endpoint::of(connection);
    let client = Client::trusting(authorities.as_deref(), &server, &region, keys)?;
    let path = if arguments.ready { "/readyz" } else { "/healthz" };
    let (status, text) = client.get_unsigned(path)?;
    let server = client.authority();
    let answer = text.trim();
    if status == 200 {
        return output::print(&format!("{server}: {answer}\n"));
    }
    Err(Failure::new(format!("{server} answered {path} with status {status}: {answer}"))
        .exit(Exit::Failed)
        .hint("the server's log has more"))
}
