//! The configuration file, in TOML. Each of its keys is also a flag and an environment variable.
//!
//! Precedence: flag, environment, file, default. The file's values become clap's defaults, so a
//! setting is defined once, as a flag of the program, and there is no second list of keys. A wrong
//! key or value is an error that names the file and the line.
//!
//! The file of the working folder is read without being named, so another user may have
//! written it. It is refused unless it and the folder belong to the user of this process or to
//! root, and only their owner can write them. Keys that name a program or a secret
//! ([`NAMED_ONLY`]) are refused there in any case.

use clap::{CommandFactory, FromArgMatches};
use evenkeel_client::output::{Exit, Failure};
use evenkeel_sim::text::{line_of, nearest};
use rustix::fs::OFlags;
use rustix::process::geteuid;
use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// The file that is read from the working folder if no other is named and it exists.
pub const FILE_DEFAULT: &str = "evenkeel.toml";

/// The environment variable that names another file.
const FILE_ENV: &str = "EVENKEEL_CONFIG";

/// Keys that only a named file may set: the first runs a program, and the second determines the key
/// for encryption.
const NAMED_ONLY: [&str; 2] = ["key-command", "key-file"];

/// Maximum size of a file in bytes.
const BYTES_MAX: u64 = 1 << 20;

/// Permission bits that let users other than the owner write.
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// Reason for which there is no command to execute.
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

/// Parses the command line of a program with the definition `command`, with environment, file and
/// defaults for the rest.
pub fn parse<Cli: CommandFactory + FromArgMatches>(
    command: clap::Command,
    arguments: &[OsString],
) -> Result<Cli, ParseError> {
    let command = with_file(command, arguments).map_err(ParseError::File)?;
    from(command, arguments).map_err(ParseError::Usage)
}

/// Returns the definition with the settings of the file as defaults, if there is one.
pub fn with_file(command: clap::Command, arguments: &[OsString]) -> Result<clap::Command, Failure> {
    match source(arguments, std::env::var_os(FILE_ENV)) {
        Some(source) => with_defaults(command, source.path(), &source.settings()?),
        None => Ok(command),
    }
}

fn from<Cli: CommandFactory + FromArgMatches>(
    command: clap::Command,
    arguments: &[OsString],
) -> Result<Cli, clap::Error> {
    let matches = command.try_get_matches_from(arguments)?;
    Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut Cli::command()))
}

/// A file with settings.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Source {
    /// The flag or the environment names it.
    Named(PathBuf),
    /// It is in the working folder.
    Found(PathBuf),
}

impl Source {
    fn path(&self) -> &Path {
        match self {
            Self::Named(path) | Self::Found(path) => path,
        }
    }

    /// Its settings. A file that was found is checked first.
    fn settings(&self) -> Result<BTreeMap<String, Setting>, Failure> {
        let path = self.path();
        let file = open(path).map_err(|error| unreadable(path, &error))?;
        if let Self::Found(path) = self {
            check_access(path, &file)?;
        }
        let settings = read(path, file)?;
        if let Self::Found(path) = self {
            refuse_named_only(path, &settings)?;
        }
        Ok(settings)
    }
}

/// The file to read: the one that the flag or the environment names, or the default one if it
/// exists.
fn source(arguments: &[OsString], environment: Option<OsString>) -> Option<Source> {
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
    let found = || Some(PathBuf::from(FILE_DEFAULT)).filter(|path| path.is_file());
    named.or(environment).map(Source::Named).or_else(|| found().map(Source::Found))
}

/// Opens a file without waiting, should it be a pipe.
fn open(path: &Path) -> io::Result<File> {
    let nonblocking = OFlags::NONBLOCK.bits().cast_signed();
    OpenOptions::new().read(true).custom_flags(nonblocking).open(path)
}

fn usage(message: String) -> Failure {
    Failure::new(message).exit(Exit::Usage)
}

fn unreadable(path: &Path, error: &io::Error) -> Failure {
    let shown = path.display();
    usage(format!("{shown}: {error}")).hint("--config names the configuration file")
}

/// Refuses a file that was found if another user can have written or replaced it.
fn check_access(path: &Path, file: &File) -> Result<(), Failure> {
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    let folder = folder.unwrap_or_else(|| Path::new("."));
    let of_file = file.metadata().map_err(|error| unreadable(path, &error))?;
    let of_folder = folder.metadata().map_err(|error| unreadable(folder, &error))?;
    let user = geteuid().as_raw();
    let shown = path.display();
    let reason = exposure(&of_file, user).map(|reason| format!("it {reason}"));
    let in_folder = || {
        let what = if folder == Path::new(".") { "the working folder" } else { "its folder" };
        exposure(&of_folder, user).map(|reason| format!("{what} {reason}"))
    };
    match reason.or_else(in_folder) {
        None => Ok(()),
        Some(reason) => Err(usage(format!("{shown} is not read, because {reason}")).hint(format!(
            "make it yours alone (chown, chmod go-w), change to another folder, or read it all the \
             same with --config {shown}"
        ))),
    }
}

/// Describes how a user other than `user` and root can write a file or a folder; `None` if none
/// can.
fn exposure(metadata: &Metadata, user: u32) -> Option<String> {
    let owner = metadata.uid();
    let mode = metadata.mode() & 0o7777;
    if owner != user && owner != 0 {
        return Some(format!("belongs to user {owner}, not to user {user} or root"));
    }
    (mode & WRITABLE_BY_OTHERS != 0).then(|| format!("can be written by others (mode {mode:04o})"))
}

/// Refuses [`NAMED_ONLY`] keys in a file that was found.
fn refuse_named_only(path: &Path, settings: &BTreeMap<String, Setting>) -> Result<(), Failure> {
    let found = NAMED_ONLY.iter().find_map(|key| settings.get_key_value(*key));
    let Some((key, Setting { line, .. })) = found else { return Ok(()) };
    let shown = path.display();
    let message = format!("{shown}:{line}: {key} is not read from the working folder's file");
    Err(usage(message).hint(format!(
        "name the file with --config {shown} or EVENKEEL_CONFIG, or use --{key} or its variable"
    )))
}

fn read(path: &Path, file: File) -> Result<BTreeMap<String, Setting>, Failure> {
    let shown = path.display();
    let mut text = String::new();
    let bytes = file.take(BYTES_MAX + 1).read_to_string(&mut text);
    if bytes.map_err(|error| unreadable(path, &error))? as u64 > BYTES_MAX {
        return Err(usage(format!("{shown}: it has more than {BYTES_MAX} bytes")));
    }
    let document = toml::de::DeTable::parse(&text).map_err(|error| {
        let line = error.span().map_or(1, |span| line_of(&text, span.start));
        usage(format!("{shown}:{line}: {}", error.message()))
    })?;
    let mut settings = BTreeMap::new();
    for (key, value) in document.get_ref() {
        let line = line_of(&text, key.span().start);
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
        let shown = format!("{}:{}", path.display(), setting.line);
        let Some(argument) = known.get(key) else {
            let failure = Failure::new(format!("{shown}: unknown key \"{key}\"")).exit(Exit::Usage);
            return Err(match nearest(key, known.keys().map(String::as_str)) {
                Some(near) => failure.hint(format!("did you mean \"{near}\"?")),
                None => failure.hint("the keys are in docs/operating/configuration.md"),
            });
        };
        validate(argument, key, setting, &shown)?;
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
                // clap takes a flag without a value for a mistake if its default is hidden.
                let is_secret =
                    argument.is_hide_env_values_set() && argument.get_action().takes_values();
                let argument = argument.default_values(leaked.collect::<Vec<&'static str>>());
                argument.hide_default_value(is_secret)
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
    let shown = setting.values.join(", ");
    // The flag has no value. Its default may be set, so both values are possible in a file.
    if matches!(argument.get_action(), clap::ArgAction::SetTrue) {
        return match shown.as_str() {
            "true" | "false" => Ok(()),
            _ => {
                let text = format!("{at}: {key} = \"{shown}\": must be true or false");
                Err(Failure::new(text).exit(Exit::Usage))
            }
        };
    }
    let alone = clap::Command::new("evenkeel").arg(argument.clone().env(None::<&str>));
    match alone.try_get_matches_from(arguments) {
        Ok(_) => Ok(()),
        Err(error) => {
            let failure = Failure::new(format!("{at}: {key} = \"{shown}\": {}", reason(&error)));
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
