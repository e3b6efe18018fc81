//! The error of a chart that cannot be drawn.

use std::fmt;

/// The reason why a chart could not be drawn.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct DrawError(pub String);

impl fmt::Display for DrawError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "cannot draw the chart: {}", self.0)
    }
}

impl std::error::Error for DrawError {}
