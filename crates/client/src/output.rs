//! Output of the program: errors with a next step, tables, JSON and CSV; colours only on terminals.

pub use evenkeel_sim::text::{csv, or_dash, table};
use serde::Serialize;
use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

/// The reason for an exit code other than 0.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Exit {
    /// A check failed, or something broke.
    Failed,
    /// The command line, the configuration or a parameter is invalid.
    Usage,
    /// The volume or host does not exist.
    NotFound,
    /// A file of `plan`, `capacity plan`, `report cost` or the autopilot cannot be read or written.
    Input,
    /// The server refused for lack of capacity.
    Refused,
    /// A wait exceeded its limit.
    Timeout,
    /// The measurement allows no verdict.
    Undecided,
}

impl Exit {
    /// The process's exit code; the numbers are part of the interface.
    pub const fn code(self) -> u8 {
        match self {
            Self::Failed => 1,
            Self::Usage => 2,
            Self::NotFound | Self::Input => 3,
            Self::Refused => 4,
            Self::Timeout => 5,
            Self::Undecided => 6,
        }
    }
}

/// A failure with its next step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Failure {
    /// Determines the exit code.
    pub exit: Exit,
    /// Names the object, the value and the limit.
    pub message: String,
    /// The next step, if it is known.
    pub hint: Option<String>,
}

/// Converts a library's error, which names the object, the value and the next step itself.
pub fn failed(error: impl std::fmt::Display) -> Failure {
    Failure::new(error.to_string())
}

impl Failure {
    /// A failure with exit code 1.
    pub fn new(message: impl Into<String>) -> Self {
        Self { exit: Exit::Failed, message: message.into(), hint: None }
    }

    /// Sets the exit code.
    pub fn exit(mut self, exit: Exit) -> Self {
        self.exit = exit;
        self
    }

    /// Sets the next step.
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }

    /// Prints it to standard error, in colour on a terminal, and returns the exit code.
    pub fn report(&self) -> ExitCode {
        let mut stderr = io::stderr();
        let colour = is_colourful(stderr.is_terminal());
        let (red, bold, plain) =
            if colour { ("\x1b[31m", "\x1b[1m", "\x1b[0m") } else { ("", "", "") };
        let _ = writeln!(stderr, "{red}error:{plain} {}", self.message);
        if let Some(hint) = &self.hint {
            let _ = writeln!(stderr, "{bold} hint:{plain} {hint}");
        }
        ExitCode::from(self.exit.code())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "error: {}", self.message)?;
        self.hint.iter().try_for_each(|hint| write!(f, "\n hint: {hint}"))
    }
}

impl std::error::Error for Failure {}

/// Returns whether to colour text for a terminal; see <https://no-color.org>.
pub fn is_colourful(is_terminal: bool) -> bool {
    is_terminal && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}

/// Prints to standard output. If the reader has closed the pipe, the program exits.
pub fn print(text: &str) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => std::process::exit(0),
        Err(error) => Err(Failure::new(format!("standard output: {error}"))),
        Ok(()) => Ok(()),
    }
}

/// The form of a listing.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, clap::ValueEnum)]
pub enum Format {
    /// A table for people.
    #[default]
    Text,
    /// One JSON object with a `schema` field, its version.
    Json,
    /// A header line, then one line per item.
    Csv,
}

/// Something that can be listed in each [`Format`].
pub trait Item: Serialize {
    /// Name and version of the JSON form, such as `evenkeel.volumes/1`.
    const SCHEMA: &'static str;
    /// The JSON field that holds the items.
    const FIELD: &'static str;
    /// The titles of the columns, with units.
    const COLUMNS: &'static [&'static str];
    /// The cells of the columns.
    fn cells(&self) -> Vec<String>;
}

/// Renders `items`; in text, `when_empty` replaces an empty table.
pub fn listing<T: Item>(items: &[T], format: Format, when_empty: &str) -> String {
    let rows = || items.iter().map(Item::cells).collect::<Vec<_>>();
    match format {
        Format::Text if items.is_empty() => format!("{when_empty}\n"),
        Format::Text => table(T::COLUMNS, &rows()),
        Format::Csv => csv(T::COLUMNS, &rows()),
        Format::Json => {
            let mut object = serde_json::Map::new();
            object.insert("schema".to_owned(), T::SCHEMA.into());
            let items = serde_json::to_value(items).unwrap_or_default();
            object.insert(T::FIELD.to_owned(), items);
            json(&object.into())
        }
    }
}

/// Renders a JSON value, indented, with a final newline.
pub fn json(value: &serde_json::Value) -> String {
    format!("{value:#}\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize)]
    struct Fruit {
        name: &'static str,
        price: Option<u32>,
    }

    impl Item for Fruit {
        const SCHEMA: &'static str = "evenkeel.fruits/1";
        const FIELD: &'static str = "fruits";
        const COLUMNS: &'static [&'static str] = &["NAME", "PRICE"];

        fn cells(&self) -> Vec<String> {
            vec![self.name.to_owned(), or_dash(self.price)]
        }
    }

    const FRUITS: [Fruit; 3] = [
        Fruit { name: "fig", price: Some(7) },
        Fruit { name: "plum, blue", price: Some(1_200) },
        Fruit { name: "sloe", price: None },
    ];

    #[test]
    fn a_table_aligns_numbers_to_the_right() {
        assert_eq!(
            listing(&FRUITS, Format::Text, ""),
            "NAME        PRICE\nfig             7\nplum, blue   1200\nsloe            -\n"
        );
        assert_eq!(listing::<Fruit>(&[], Format::Text, "no fruit yet"), "no fruit yet\n");
    }

    #[test]
    fn csv_quotes_what_must_be() {
        assert_eq!(
            listing(&FRUITS, Format::Csv, ""),
            "name,price\nfig,7\n\"plum, blue\",1200\nsloe,\n"
        );
        assert_eq!(listing::<Fruit>(&[], Format::Csv, "no fruit yet"), "name,price\n");
    }

    #[test]
    fn json_names_its_schema() {
        let text = listing(&FRUITS[..1], Format::Json, "");
        let value: serde_json::Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["schema"], "evenkeel.fruits/1");
        assert_eq!(value["fruits"][0]["price"], 7);
        let empty = listing::<Fruit>(&[], Format::Json, "no fruit yet");
        let value: serde_json::Value = serde_json::from_str(&empty).unwrap();
        assert_eq!(value["fruits"], serde_json::json!([]));
    }

    #[test]
    fn a_failure_says_what_to_do() {
        let failure = Failure::new("no server at 127.0.0.1:8650")
            .exit(Exit::Failed)
            .hint("start one with `evenkeel serve`");
        assert_eq!(
            failure.to_string(),
            "error: no server at 127.0.0.1:8650\n hint: start one with `evenkeel serve`"
        );
    }

    #[test]
    fn exit_codes_are_the_documented_ones() {
        let exits = [Exit::Failed, Exit::Usage, Exit::NotFound, Exit::Refused, Exit::Timeout];
        assert_eq!(exits.map(Exit::code), [1, 2, 3, 4, 5]);
        assert_eq!(Exit::Undecided.code(), 6);
        let page = include_str!("../../../docs/operating/configuration.md");
        for code in 0..=6 {
            assert!(page.contains(&format!("\n| {code} | ")), "{code}");
        }
    }
}
