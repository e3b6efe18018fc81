//! The parameters of an action. Each accessor takes its parameter, and [`Input::done`] returns an
//! error if an unknown one is left.

use evenkeel_wire::aws::timestamp;

use super::value::Value;
use crate::api::error::ApiError;

/// The latest time of a parameter, in seconds of Unix time: the year 9999.
const TIME_MAX: f64 = 253_402_300_799.0;

/// The parameters that have not been read yet.
#[derive(Debug)]
pub struct Input {
    fields: Vec<(String, Value)>,
    /// Path of these parameters in the request, for error texts.
    place: String,
    /// The code of errors about values.
    code: &'static str,
}

impl Input {
    /// Creates the parameters of a request; `code` is that of errors about their values.
    ///
    /// # Errors
    /// The value is not a map.
    pub fn new(value: Value, code: &'static str) -> Result<Self, ApiError> {
        Self::at(value, String::new(), code)
    }

    fn at(value: Value, place: String, code: &'static str) -> Result<Self, ApiError> {
        match value {
            Value::Map(fields) => Ok(Self { fields, place, code }),
            Value::Null => Ok(Self { fields: Vec::new(), place, code }),
            _ => {
                let text = format!("{} must have named values", place.trim_end_matches('.'));
                Err(ApiError::new(code, text))
            }
        }
    }

    /// Returns an error about a parameter.
    pub fn wrong(&self, name: &str, what: &str) -> ApiError {
        let Self { place, code, .. } = self;
        ApiError::new(code, format!("The parameter {place}{name} {what}."))
    }

    /// Returns the error of a missing required parameter.
    pub fn missing(&self, name: &str) -> ApiError {
        let code = if self.code == "ValidationError" { self.code } else { "MissingParameter" };
        ApiError::new(code, format!("The parameter {}{name} is required.", self.place))
    }

    fn take(&mut self, name: &str) -> Option<Value> {
        let index = self.fields.iter().position(|(found, _)| found == name)?;
        Some(self.fields.remove(index).1).filter(|value| *value != Value::Null)
    }

    /// Reads a text; an empty one is an error.
    ///
    /// # Errors
    /// It is no text, or has more than `max` bytes.
    pub fn text(&mut self, name: &str, max: usize) -> Result<Option<String>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Text(text)) if !text.is_empty() && text.len() <= max => Ok(Some(text)),
            Some(_) => Err(self.wrong(name, &format!("must be a text of 1 to {max} bytes"))),
        }
    }

    /// Reads a required text.
    ///
    /// # Errors
    /// As [`Self::text`], and if it is missing.
    pub fn required(&mut self, name: &str, max: usize) -> Result<String, ApiError> {
        self.text(name, max)?.ok_or_else(|| self.missing(name))
    }

    /// Reads a whole number that is not negative.
    ///
    /// # Errors
    /// It is another value.
    pub fn number(&mut self, name: &str) -> Result<Option<u64>, ApiError> {
        let Some(value) = self.take(name) else { return Ok(None) };
        let number = match value {
            Value::Number(number) => Some(number),
            Value::Text(text) => text.parse().ok(),
            _ => None,
        };
        let is_whole = |number: &f64| number.fract() == 0.0 && (0.0..=1e15).contains(number);
        let number = number.filter(is_whole);
        // The number is whole and in range, so nothing is cut off.
        number
            .map(|number| Some(number as u64))
            .ok_or_else(|| self.wrong(name, "must be a whole number that is not negative"))
    }

    /// Reads `true` or `false`.
    ///
    /// # Errors
    /// It is another value.
    pub fn boolean(&mut self, name: &str) -> Result<Option<bool>, ApiError> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::Bool(value)) => Ok(Some(value)),
            Some(Value::Text(text)) if text == "true" => Ok(Some(true)),
            Some(Value::Text(text)) if text == "false" => Ok(Some(false)),
            Some(_) => Err(self.wrong(name, "must be true or false")),
        }
    }

    /// Reads a required time, in whole seconds of Unix time, rounded down.
    ///
    /// # Errors
    /// It is missing, or no time.
    pub fn time(&mut self, name: &str) -> Result<u64, ApiError> {
        let time = match self.take(name) {
            None => return Err(self.missing(name)),
            Some(Value::Number(seconds) | Value::Time(seconds)) => Some(seconds),
            Some(Value::Text(text)) => iso8601(&text),
            Some(_) => None,
        };
        let time = time.filter(|seconds| (0.0..=TIME_MAX).contains(seconds));
        time.map(|seconds| seconds as u64)
            .ok_or_else(|| self.wrong(name, "must be a time, such as 2026-10-03T23:00:00Z"))
    }

    /// Reads a list of at most `max` elements.
    ///
    /// # Errors
    /// It is no list, or too long.
    pub fn list(&mut self, name: &str, max: usize) -> Result<Vec<Value>, ApiError> {
        match self.take(name) {
            None => Ok(Vec::new()),
            Some(Value::List(items)) if items.len() <= max => Ok(items),
            Some(Value::List(_)) => {
                let Self { place, code, .. } = self;
                let text = format!("The collection {place}{name} must not have a size greater");
                Err(ApiError::new(code, format!("{text} than {max}.")))
            }
            Some(_) => Err(self.wrong(name, "must be a list")),
        }
    }

    /// Reads a list of at most `max` structures.
    ///
    /// # Errors
    /// As [`Self::list`], and if an element has no named values.
    pub fn structures(&mut self, name: &str, max: usize) -> Result<Vec<Self>, ApiError> {
        let items = self.list(name, max)?;
        let one = |(number, item)| {
            let place = format!("{}{name}.member.{number}.", self.place);
            Self::at(item, place, self.code)
        };
        (1..).zip(items).map(one).collect()
    }

    /// Reads a structure.
    ///
    /// # Errors
    /// It has no named values.
    pub fn structure(&mut self, name: &str) -> Result<Option<Self>, ApiError> {
        let place = format!("{}{name}.", self.place);
        self.take(name).map(|value| Self::at(value, place, self.code)).transpose()
    }

    /// Checks that every parameter was read.
    ///
    /// # Errors
    /// A parameter was not read.
    pub fn done(&self) -> Result<(), ApiError> {
        let mut left = self.fields.iter().filter(|(_, value)| *value != Value::Null);
        match left.next() {
            None => Ok(()),
            Some((name, _)) => Err(self.wrong(name, "is not recognized")),
        }
    }
}

/// Parses a time such as `2026-10-03T23:00:00Z`; drops a fraction.
#[allow(clippy::cast_precision_loss)] // exact for a hundred million years
fn iso8601(text: &str) -> Option<f64> {
    timestamp::parse_extended(text).map(|ms| (ms / 1_000) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_in_the_form_of_the_query_protocol() {
        for (text, expected) in [
            ("2015-08-30T12:36:00Z", Some(1_440_938_160.0)),
            ("2015-08-30T12:36:00.999Z", Some(1_440_938_160.0)),
            ("2015-08-30T12:36:00", None),
            ("2015-08-30T12:36:00+01:00", None),
            ("2015-02-30T12:36:00Z", None),
            ("20150830T123600Z", None),
            ("", None),
            (".Z", None),
        ] {
            assert_eq!(iso8601(text), expected, "{text}");
        }
    }

    #[test]
    fn remaining_parameters_are_refused_and_null_counts_as_absent() {
        let fields = [("A", Value::Null), ("B", Value::text("")), ("C", Value::Number(1.5))];
        let mut input = Input::new(Value::map(fields), "InvalidParameterValue").unwrap();
        assert_eq!(input.text("A", 9).unwrap(), None);
        assert_eq!(input.done().unwrap_err().message, "The parameter B is not recognized.");
        assert_eq!(input.text("B", 9).unwrap_err().code, "InvalidParameterValue");
        assert_eq!(input.number("C").unwrap_err().code, "InvalidParameterValue");
        assert_eq!(input.time("D").unwrap_err().code, "MissingParameter");
        assert!(input.done().is_ok());
    }
}
