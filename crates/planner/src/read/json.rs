//! Reads JSON texts up to a maximum size.

use std::io::{self, BufRead};

use serde::de::DeserializeOwned;

use super::Broken;

/// Maximum size of a JSON text, in bytes.
pub const JSON_BYTES_MAX: u64 = 256 << 20;

/// Reads the values of a text of this format: one or several, one after the other or as the
/// elements of an array.
pub(crate) fn documents<T: DeserializeOwned>(
    input: &mut dyn BufRead,
    form: &str,
) -> Result<Vec<T>, Broken> {
    documents_of(&slurp(input, form)?, form)
}

/// Reads the values of a text in memory, as [`documents`] does.
pub(crate) fn documents_of<T: DeserializeOwned>(text: &[u8], form: &str) -> Result<Vec<T>, Broken> {
    if text.trim_ascii_start().starts_with(b"[") {
        return serde_json::from_slice(text).map_err(|error| broken(&error, form));
    }
    let values = serde_json::Deserializer::from_slice(text).into_iter::<T>();
    let values: Result<Vec<T>, Broken> =
        values.map(|value| value.map_err(|error| broken(&error, form))).collect();
    match values {
        Ok(values) if values.is_empty() => Err(Broken::whole("an empty text", form)),
        values => values,
    }
}

fn too_long(form: &str, bytes_max: u64) -> Broken {
    let expected = format!(
        "a JSON text of at most {} MiB; ask for fewer volumes or days at a time, or split it",
        bytes_max >> 20
    );
    Broken::whole(form, expected)
}

/// Reads the bytes of a text of this format. A text in memory is parsed several times as fast.
pub(crate) fn slurp(input: &mut dyn BufRead, form: &str) -> Result<Vec<u8>, Broken> {
    slurp_within(input, form, JSON_BYTES_MAX)
}

fn slurp_within(input: &mut dyn BufRead, form: &str, bytes_max: u64) -> Result<Vec<u8>, Broken> {
    let mut text = Vec::new();
    loop {
        let buffer = match input.fill_buf() {
            Ok(buffer) => buffer,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => {
                let expected = "a file that can be read to its end";
                return Err(Broken::whole(&error.to_string(), expected));
            }
        };
        if buffer.is_empty() {
            return Ok(text);
        }
        let length = buffer.len();
        if (text.len() + length) as u64 > bytes_max {
            return Err(too_long(form, bytes_max));
        }
        text.extend_from_slice(buffer);
        input.consume(length);
    }
}

/// Returns the error for an invalid JSON text.
pub(crate) fn broken(error: &serde_json::Error, form: &str) -> Broken {
    let text = error.to_string();
    // The line is a separate part of our message.
    let found = text.split(" at line ").next().unwrap_or_default();
    let expected = match error.classify() {
        serde_json::error::Category::Eof => format!("{form} to its end: is the file complete?"),
        _ => form.to_owned(),
    };
    match error.line() {
        0 => Broken::whole(found, expected),
        line => Broken::at(line as u64, found, expected),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_text_is_read_up_to_a_limit_only() {
        let mut endless = io::BufReader::new(io::repeat(b' '));
        let broken = slurp_within(&mut endless, "a number", 2 << 20).unwrap_err();
        assert_eq!(
            broken.to_string(),
            "\"a number\": expected a JSON text of at most 2 MiB; ask for fewer volumes or days \
             at a time, or split it"
        );
        assert_eq!(slurp(&mut " 7 ".as_bytes(), "a number").unwrap(), b" 7 ");
    }

    #[test]
    fn values_follow_each_other_or_are_in_an_array() {
        for text in ["{} {}", "{}\n{}\n", " [{}, {}]"] {
            let read = documents::<BTreeMap<u8, u8>>(&mut text.as_bytes(), "objects");
            assert_eq!(read.map(|read| read.len()), Ok(2), "{text}");
        }
        let broken = documents::<u64>(&mut " ".as_bytes(), "numbers").unwrap_err();
        assert_eq!(broken.to_string(), "\"an empty text\": expected numbers");
        let broken = documents::<u64>(&mut "[1,\n2".as_bytes(), "numbers").unwrap_err();
        assert_eq!(
            broken.to_string(),
            "line 2: \"EOF while parsing a list\": expected numbers to its end: is the file \
             complete?"
        );
    }
}
