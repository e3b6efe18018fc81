//! The configuration file, in TOML. Each of its keys is also a flag and an environment variable.
//!
//! Precedence: flag, environment, file, default. The file's values become clap's defaults, so a
//! setting is defined once (its flag, in `cli.rs`), and there is no second list of keys. A wrong
//! key or value is an error that names the file and the line.

use crate::cli::Cli;
use crate::message::{Exit, Failure};
use clap::{CommandFactory, FromArgMatches};
use evenkeel_sim::text::nearest;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// The file that is read from the working folder if no other is named and it exists.
pub const FILE_DEFAULT: &str = "evenkeel.toml";

/// The environment variable that names another file.
const FILE_ENV: &str = "EVENKEEL_CONFIG";

/// Why there is no command to execute.
#[derive(Debug)]
pub enum ParseError {
    /// clap's error, which prints itself (help and version are such errors, too).
    Usage(clap::Error),
    /// The configuration file is wrong.
    File(Failure),
}

/// A setting of the file: its values (several if the flag may be repeated) and its line.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Setting {
    values: Vec<String>,
    line: usize,
}

/// Parses the command line, with environment, file and defaults for the rest.
pub fn parse(arguments: &[OsString]) -> Result<Cli, ParseError> {
    let mut command = crate::cli::command();
    if let Some(path) = file_path(arguments, std::env::var_os(FILE_ENV)) {
        let settings = read(&path).map_err(ParseError::File)?;
        command = with_defaults(command, &path, &settings).map_err(ParseError::File)?;
    }
    from(command, arguments).map_err(ParseError::Usage)
}

fn from(command: clap::Command, arguments: &[OsString]) -> Result<Cli, clap::Error> {
    let matches = command.try_get_matches_from(arguments)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut Cli::command()))
}

/// The file to read: the one that the flag or the environment names, or the default one if it
/// exists.
fn file_path(arguments: &[OsString], environment: Option<OsString>) -> Option<PathBuf> {
    let mut words = arguments.iter().skip(1).take_while(|word| *word != "--");
    let mut named = None;
    while let Some(word) = words.next() {
        if word == "--config" {
            named = words.next().map(PathBuf::from);
        } else if let Some(path) = word.to_str().and_then(|word| word.strip_prefix("--config=")) {
            named = Some(PathBuf::from(path));
        }
    }
    let environment = environment.filter(|path| !path.is_empty()).map(PathBuf::from);
    let default = || Some(PathBuf::from(FILE_DEFAULT)).filter(|path| path.is_file());
    named.or(environment).or_else(default)
}

fn read(path: &Path) -> Result<BTreeMap<String, Setting>, Failure> {
    let shown = path.display();
    let usage = |message: String| Failure::new(message).exit(Exit::Usage);
    let text = std::fs::read_to_string(path).map_err(|error| {
        usage(format!("{shown}: {error}")).hint("--config names the configuration file")
    })?;
    let line_of = |at: usize| text[..at.min(text.len())].matches('\n').count() + 1;
    let document = toml::de::DeTable::parse(&text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(span.start));
        usage(format!("{shown}:{line}: {}", error.message()))
    })?;
    let mut settings = BTreeMap::new();
    for (key, value) in document.get_ref() {
        let line = line_of(key.span().start);
        let values = values(value.get_ref()).ok_or_else(|| {
            usage(format!(
                "{shown}:{line}: {} must be a string, a number or a list of them",
                key.get_ref()
            ))
        })?;
        settings.insert(key.get_ref().to_string(), Setting { values, line });
    }
    Ok(settings)
}

/// A TOML value in the form of a flag's value; `None` for tables and dates.
fn values(value: &toml::de::DeValue<'_>) -> Option<Vec<String>> {
    use toml::de::DeValue;
    match value {
        DeValue::String(text) => Some(vec![text.to_string()]),
        DeValue::Integer(number) => Some(vec![number.as_str().replace('_', "")]),
        DeValue::Boolean(flag) => Some(vec![flag.to_string()]),
        DeValue::Datetime(date) => Some(vec![date.to_string()]),
        DeValue::Array(items) => {
            let items: Option<Vec<_>> = items.iter().map(|item| values(item.get_ref())).collect();
            items.map(|items| items.concat())
        }
        DeValue::Float(_) | DeValue::Table(_) => None,
    }
}

/// All settings of the program: the long flags that have an environment variable.
pub fn keys(command: &clap::Command) -> BTreeMap<String, clap::Arg> {
    let mut keys = BTreeMap::new();
    let own = command.get_arguments().filter(|arg| arg.get_env().is_some());
    for argument in own.filter(|arg| arg.get_env() != Some(OsStr::new(FILE_ENV))) {
        keys.extend(argument.get_long().map(|long| (long.to_owned(), argument.clone())));
    }
    for verb in command.get_subcommands() {
        keys.extend(self::keys(verb));
    }
    keys
}

/// The command with the file's values as defaults, in every verb that has the flag.
fn with_defaults(
    command: clap::Command,
    path: &Path,
    settings: &BTreeMap<String, Setting>,
) -> Result<clap::Command, Failure> {
    let known = keys(&command);
    for (key, setting) in settings {
        let at = format!("{}:{}", path.display(), setting.line);
        let Some(argument) = known.get(key) else {
            let failure = Failure::new(format!("{at}: unknown key \"{key}\"")).exit(Exit::Usage);
            return Err(match nearest(key, known.keys().map(String::as_str)) {
                Some(near) => failure.hint(format!("did you mean \"{near}\"?")),
                None => failure.hint("the keys are in docs/operating/configuration.md"),
            });
        };
        validate(argument, key, setting, &at)?;
    }
    Ok(default_from(command, settings))
}

fn default_from(command: clap::Command, settings: &BTreeMap<String, Setting>) -> clap::Command {
    let command = command.mut_args(|argument| {
        let setting = argument.get_long().and_then(|long| settings.get(long));
        match setting.filter(|_| argument.get_env().is_some()) {
            // clap keeps defaults for the program's life, and the file is read once.
            Some(setting) => {
                let leaked = setting.values.iter().map(|value| &*value.clone().leak());
                argument.default_values(leaked.collect::<Vec<&'static str>>())
            }
            None => argument,
        }
    });
    command.mut_subcommands(|verb| default_from(verb, settings))
}

/// Lets clap validate the values as if they were flags, so that an error names the file's line.
fn validate(argument: &clap::Arg, key: &str, setting: &Setting, at: &str) -> Result<(), Failure> {
    let flag = setting.values.iter().map(|value| OsString::from(format!("--{key}={value}")));
    let arguments = [OsString::from("evenkeel")].into_iter().chain(flag);
    let alone = clap::Command::new("evenkeel").arg(argument.clone().env(None::<&str>));
    match alone.try_get_matches_from(arguments) {
        Ok(_) => Ok(()),
        Err(error) => {
            let value = setting.values.join(", ");
            let failure = Failure::new(format!("{at}: {key} = \"{value}\": {}", reason(&error)));
            Err(failure.exit(Exit::Usage))
        }
    }
}

/// clap's message without the flag's name, in one line.
fn reason(error: &clap::Error) -> String {
    use clap::error::{ContextKind, ContextValue, ErrorKind};
    use std::error::Error;
    match (error.kind(), error.source(), error.get(ContextKind::ValidValue)) {
        (_, Some(source), _) => source.to_string(),
        (ErrorKind::InvalidValue, _, Some(ContextValue::Strings(valid))) => {
            format!("must be one of {}", valid.join(", "))
        }
        (ErrorKind::ArgumentConflict, ..) => "may have one value only".to_owned(),
        (kind, ..) => kind.to_string(),
    }
}

#[cfg(test)]
mod tests;
