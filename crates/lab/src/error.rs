//! Errors of experiments. A promise that was not kept is a verdict, not an error.

use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use evenkeel_client::output::{Exit, Failure};
use evenkeel_pages::DrawError;
use evenkeel_sim::promise::Unjudgeable;
use evenkeel_sim::workload::BadWorkload;

/// The reason for which an experiment could not be run or judged.
#[derive(Debug)]
pub enum LabError {
    /// A program is not installed.
    ToolMissing {
        /// The program.
        tool: String,
        /// The Debian or Ubuntu package that holds it.
        package: &'static str,
    },
    /// A program ended badly, or without the result it should have printed.
    ToolFailed {
        /// The program.
        tool: String,
        /// Its exit status or signal, or the missing part.
        how: String,
        /// The last lines it printed.
        said: String,
        /// The exact command line, ready to paste.
        command: String,
    },
    /// A program was still running at its deadline and was killed.
    Deadline {
        /// The program or condition that was waited for.
        what: String,
        /// The length of the wait.
        after: Duration,
    },
    /// The output of a program could not be parsed.
    BadOutput {
        /// The program.
        tool: &'static str,
        /// The fault, and its place.
        what: String,
    },
    /// A workload outside the bounds the laboratory accepts.
    BadWorkload(String),
    /// A part that an experiment has started does not work.
    Failed {
        /// The fault.
        what: String,
        /// A remedy, if it is known.
        hint: Option<&'static str>,
    },
    /// There is no result of this name; the text says where.
    NotFound(String),
    /// An error of the API of a server that an experiment has started.
    Api(Failure),
    /// This experiment cannot say whether the promise was kept; the text says why.
    Unjudgeable(String),
    /// The named target cannot be driven.
    BadTarget {
        /// The target, as the user named it.
        name: String,
        /// The reason.
        why: String,
        /// A remedy.
        hint: String,
    },
    /// A file or socket could not be used.
    Io {
        /// The action that failed.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// A chart could not be drawn.
    Chart(DrawError),
    /// A report could not be written as, or read from, JSON.
    Json(serde_json::Error),
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ToolMissing { tool, package } => write!(
                f,
                "{tool} is not installed: install the package {package} \
                 (Debian, Ubuntu: apt-get install {package})"
            ),
            Self::ToolFailed { tool, how, said, command } => {
                write!(f, "{tool} failed ({how})")?;
                if !said.is_empty() {
                    write!(f, ", saying:\n{said}")?;
                }
                write!(f, "\nto try it by hand: {command}")
            }
            Self::Deadline { what, after } => {
                write!(f, "{what} was not done after {} s and was stopped", after.as_secs())
            }
            Self::BadOutput { tool, what } => write!(f, "cannot read the output of {tool}: {what}"),
            Self::BadTarget { name, why, hint } => write!(f, "{name}: {why}; {hint}"),
            Self::BadWorkload(what) => write!(f, "this workload cannot be run: {what}"),
            Self::Failed { what, .. } | Self::NotFound(what) => f.write_str(what),
            Self::Api(source) => write!(f, "{source}"),
            Self::Unjudgeable(why) => write!(f, "no verdict is possible: {why}"),
            Self::Io { what, path, source } => write!(f, "{what} {}: {source}", path.display()),
            Self::Chart(source) => write!(f, "{source}"),
            Self::Json(source) => write!(f, "not a report of this version: {source}"),
        }
    }
}

impl std::error::Error for LabError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            Self::Json(source) => Some(source),
            Self::Api(source) => Some(source),
            Self::Chart(source) => Some(source),
            _ => None,
        }
    }
}

impl From<DrawError> for LabError {
    fn from(error: DrawError) -> Self {
        Self::Chart(error)
    }
}

impl From<BadWorkload> for LabError {
    fn from(BadWorkload(what): BadWorkload) -> Self {
        Self::BadWorkload(what)
    }
}

impl From<Unjudgeable> for LabError {
    fn from(Unjudgeable(why): Unjudgeable) -> Self {
        Self::Unjudgeable(why)
    }
}

impl From<Failure> for LabError {
    fn from(failure: Failure) -> Self {
        Self::Api(failure)
    }
}

impl From<LabError> for Failure {
    /// Converts an error, which names the object, the value and the next step itself.
    fn from(error: LabError) -> Self {
        let failure = Self::new(error.to_string());
        match error {
            LabError::NotFound(_) => failure.exit(Exit::NotFound),
            LabError::Unjudgeable(_) => failure.exit(Exit::Undecided),
            LabError::Failed { hint: Some(hint), .. } => failure.hint(hint),
            LabError::Api(failure) => failure,
            _ => failure,
        }
    }
}

impl LabError {
    /// Creates a [`LabError::Failed`] with the text of another error; for `map_err`.
    pub fn failed(what: impl fmt::Display) -> Self {
        Self::Failed { what: what.to_string(), hint: None }
    }

    /// Creates an error of a file or folder that the user has named; for `map_err`.
    pub fn path(path: &Path) -> impl FnOnce(std::io::Error) -> Self {
        move |error| Self::failed(format!("{}: {error}", path.display()))
    }

    /// Creates a [`LabError::Io`]; for `map_err`.
    pub fn io(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { what, path, source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An error that no verdict is possible ends with the exit code for that.
    #[test]
    fn a_measurement_without_a_verdict_is_undecided() {
        let failure = Failure::from(LabError::Unjudgeable("3 s are too short".to_owned()));
        assert_eq!(failure.exit, Exit::Undecided);
        assert!(failure.message.starts_with("no verdict is possible"), "{failure}");
        assert_eq!(Failure::from(LabError::Chart(DrawError("x".to_owned()))).exit, Exit::Failed);
    }

    #[test]
    fn a_refusal_of_the_api_keeps_its_exit_code_and_its_hint() {
        let failure = Failure::new("no capacity").exit(Exit::Refused).hint("delete a volume");
        assert_eq!(Failure::from(LabError::from(failure.clone())), failure);
    }
}
