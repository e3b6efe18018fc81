//! `evenkeel events`: prints what has happened to volumes, snapshots and the server.

use crate::cli::Events;
use evenkeel_cli::connect;
use evenkeel_client::Client;
use evenkeel_client::events::{Event, PAGE, Page};
use evenkeel_client::output::{self, Failure, Format, Item};
use evenkeel_os::clock;
use std::time::Duration;

const NO_EVENTS: &str = "no such events";
/// Time between two looks with --follow.
const LOOK: Duration = Duration::from_secs(1);
/// Widths of the columns while their cells are not known yet.
const WIDTHS: [usize; 5] = [8, 20, 20, 10, 23];

pub fn run(arguments: &Events) -> Result<(), Failure> {
    let client = connect::client(&arguments.connection)?;
    let format = arguments.output.format;
    if !arguments.follow {
        let mut all = Vec::new();
        let mut after = arguments.after;
        loop {
            let page = ask(&client, arguments, after)?;
            after = page.examined.max(after);
            match format {
                // A line of JSON is printed as soon as it is known.
                Format::Json => output::print(&lines(&page.events))?,
                Format::Text | Format::Csv => all.extend(page.events),
            }
            if after >= page.last {
                break;
            }
        }
        return match format {
            Format::Json => Ok(()),
            Format::Text | Format::Csv => output::print(&output::listing(&all, format, NO_EVENTS)),
        };
    }
    follow(&client, arguments)
}

/// Prints events as they happen, until Ctrl-C. If the server is restarted meanwhile, the requests
/// continue.
fn follow(client: &Client, arguments: &Events) -> Result<(), Failure> {
    let format = arguments.output.format;
    let mut page = ask(client, arguments, arguments.after)?;
    let mut after = arguments.after;
    let mut is_told = false;
    output::print(&match format {
        Format::Text => row(&Event::COLUMNS.iter().map(ToString::to_string).collect::<Vec<_>>()),
        // Only the header line.
        Format::Csv => output::listing::<Event>(&[], format, ""),
        Format::Json => String::new(),
    })?;
    loop {
        after = page.examined.max(after);
        let text = match format {
            Format::Json => lines(&page.events),
            Format::Text => page.events.iter().map(|event| row(&event.cells())).collect(),
            Format::Csv => {
                let text = output::listing(&page.events, format, "");
                text.split_once('\n').map_or_else(String::new, |(_, rows)| rows.to_owned())
            }
        };
        output::print(&text)?;
        if after >= page.last {
            clock::pause(LOOK);
        }
        match ask(client, arguments, after) {
            Ok(next) => (page, is_told) = (next, false),
            Err(failure) => {
                if !std::mem::replace(&mut is_told, true) {
                    eprintln!("{}; asking again", failure.message);
                }
                clock::pause(LOOK);
                page.events.clear();
            }
        }
    }
}

fn ask(client: &Client, arguments: &Events, after: u64) -> Result<Page, Failure> {
    let mut parameters =
        vec![("AfterSequence".to_owned(), after.to_string()), ("MaxResults".into(), PAGE.into())];
    let filters = [("type", &arguments.types), ("resource", &arguments.resources)];
    let given = filters.into_iter().filter(|(_, values)| !values.is_empty());
    for ((name, values), filter) in given.zip(1..) {
        parameters.push((format!("Filter.{filter}.Name"), name.to_owned()));
        for (value, place) in values.iter().zip(1..) {
            parameters.push((format!("Filter.{filter}.Value.{place}"), value.clone()));
        }
    }
    let parameters: Vec<(&str, &str)> =
        parameters.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
    client.call("DescribeEvents", &parameters).map(|answer| Page::read(&answer))
}

fn lines(events: &[Event]) -> String {
    events.iter().map(|event| format!("{}\n", event.line)).collect()
}

/// A row whose columns are as wide as most of their cells.
fn row(cells: &[String]) -> String {
    let padded = cells.iter().enumerate().map(|(column, cell)| {
        let width = WIDTHS.get(column).copied().unwrap_or_default();
        format!("{cell:<width$}")
    });
    let row = padded.collect::<Vec<_>>().join("  ");
    format!("{}\n", row.trim_end())
}
