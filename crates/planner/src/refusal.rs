//! The reason why a question has no answer, with the next step.

use std::fmt;

/// The kind of a refusal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Cause {
    /// The files say too little, or no layout does what is wanted.
    NoAnswer,
    /// The question contradicts itself, or names a thing that does not exist.
    Question,
    /// The files do not have the volume.
    NotFound,
    /// Volumes do not fit on the devices.
    DoesNotFit,
    /// Too little was recorded for an answer, or it is not found.
    Undecided,
}

/// The reason why a question has no answer.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// Its kind.
    pub cause: Cause,
    /// Names the object, the value and the limit.
    pub message: String,
    /// The next step, if it is known.
    pub hint: Option<String>,
}

impl Refusal {
    /// Creates a refusal of the kind [`Cause::NoAnswer`].
    #[must_use]
    pub fn new(message: impl Into<String>) -> Self {
        Self { cause: Cause::NoAnswer, message: message.into(), hint: None }
    }

    /// Sets the kind.
    #[must_use]
    pub fn cause(self, cause: Cause) -> Self {
        Self { cause, ..self }
    }

    /// Sets the next step.
    #[must_use]
    pub fn hint(self, hint: impl Into<String>) -> Self {
        Self { hint: Some(hint.into()), ..self }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)?;
        self.hint.iter().try_for_each(|hint| write!(f, "; {hint}"))
    }
}

impl std::error::Error for Refusal {}
