//! `evenkeel top`: shows the load of volumes and the causes of their delays.

use crate::cli::Top;
use evenkeel_cli::{connect, endpoint, top as screen};
use evenkeel_client::output::{self, Failure, Format};
use evenkeel_client::top;
use evenkeel_client::volume_samples;
use evenkeel_os::clock;
use std::io::IsTerminal;

const NO_VOLUMES: &str =
    "no volumes yet; make one with `evenkeel volume create --size 10 --attach`";

pub fn run(arguments: &Top) -> Result<(), Failure> {
    let client = connect::client(&arguments.connection)?;
    let format = arguments.output.format;
    // Before the screen opens, so that a missing server is reported as by other verbs.
    let first = volume_samples::take(&client)?;
    let is_live = !arguments.once && format == Format::Text && std::io::stdout().is_terminal();
    if is_live {
        let endpoint = endpoint::of(&arguments.connection);
        return screen::run(client, &endpoint, first, arguments.interval, arguments.sort);
    }
    clock::pause(arguments.interval);
    let second = volume_samples::take(&client)?;
    let mut rows = top::between(&first, &second);
    top::sort(&mut rows, arguments.sort);
    rows.truncate(arguments.rows.unwrap_or(usize::MAX));
    output::print(&output::listing(&rows, format, NO_VOLUMES))
}
