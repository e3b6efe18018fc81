//! Reads answers of GetMetricData in the form that tools print: no escapes in their texts, and no
//! members but the usual ones.
//!
//! Most of an answer is times, and all series of a volume usually have the same ones. This reader
//! compares their text with that of the series before. It leaves every other form, and every
//! invalid text, to the general reader, which finds the error.

use super::super::{Timestamp, unix_ms};
use super::{Answer, Answered};
use crate::read::numbers::UtcTimes;

/// Powers of ten. A number of at most 15 digits divided by one of these is rounded once.
const POWERS: [f64; 16] =
    [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15];

/// Returns the answers of a text, as the general reader does; `None` if it has another form.
pub(super) fn answers(text: &[u8]) -> Option<Vec<Answer>> {
    let mut cursor = Cursor {
        rest: text,
        times: Vec::new(),
        text_of_times: &[],
        utc_times: UtcTimes::default(),
    };
    let mut answers = Vec::new();
    while cursor.peek().is_some() {
        answers.push(cursor.answer()?);
    }
    (!answers.is_empty()).then_some(answers)
}

/// A place in a text. Functions take white space and the value that they name. They return `None`
/// if another value follows.
struct Cursor<'a> {
    rest: &'a [u8],
    /// The times of the series before.
    times: Vec<Timestamp>,
    /// The text of these times, from after the bracket that opens them; empty without any.
    text_of_times: &'a [u8],
    utc_times: UtcTimes,
}

impl<'a> Cursor<'a> {
    fn answer(&mut self) -> Option<Answer> {
        self.take(b'{')?;
        let mut results = None;
        let mut token = None;
        loop {
            let is_first = match self.name()? {
                "MetricDataResults" => results.replace(self.list(Self::answered)?).is_none(),
                "NextToken" => token.replace(self.text()?).is_none(),
                "Messages" => self.nothing()?,
                _ => return None,
            };
            if !is_first {
                return None;
            }
            if !self.continues(b'}')? {
                break;
            }
        }
        let is_continued = token.is_some_and(|token| !token.is_empty());
        Some(Answer { results: results?, is_continued })
    }

    fn answered(&mut self) -> Option<Answered> {
        self.take(b'{')?;
        let mut id = None;
        let mut label = None;
        let mut status_code = None;
        let mut timestamps = None;
        let mut values = None;
        loop {
            let is_first = match self.name()? {
                "Id" => id.replace(self.text()?.to_owned()).is_none(),
                "Label" => label.replace(self.text()?.to_owned()).is_none(),
                "StatusCode" => status_code.replace(self.text()?.to_owned()).is_none(),
                "Timestamps" => timestamps.replace(self.times()?).is_none(),
                "Values" => values.replace(self.list(Self::number)?).is_none(),
                "Messages" => self.nothing()?,
                _ => return None,
            };
            if !is_first {
                return None;
            }
            if !self.continues(b'}')? {
                break;
            }
        }
        Some(Answered {
            id: id.unwrap_or_default(),
            label: label.unwrap_or_default(),
            timestamps: timestamps.unwrap_or_default(),
            values: values.unwrap_or_default(),
            status_code,
        })
    }

    /// Takes the name of a member, and the colon.
    fn name(&mut self) -> Option<&'a str> {
        let name = self.text()?;
        self.take(b':')?;
        Some(name)
    }

    /// Takes an empty list.
    fn nothing(&mut self) -> Option<bool> {
        self.take(b'[')?;
        self.take(b']')?;
        Some(true)
    }

    /// Takes a list of elements.
    fn list<T>(&mut self, element: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        self.take(b'[')?;
        let mut all = Vec::with_capacity(self.times.len().min(self.rest.len() / 2));
        if self.take(b']').is_some() {
            return Some(all);
        }
        loop {
            all.push(element(self)?);
            if !self.continues(b']')? {
                return Some(all);
            }
        }
    }

    /// Takes the times of a series.
    fn times(&mut self) -> Option<Vec<Timestamp>> {
        self.peek()?;
        let all = self.rest;
        let same = all.strip_prefix(self.text_of_times).filter(|_| !self.text_of_times.is_empty());
        if let Some(rest) = same {
            self.rest = rest;
            return Some(self.times.clone());
        }
        self.times = self.list(Self::time)?;
        self.text_of_times = all.get(..all.len() - self.rest.len())?;
        Some(self.times.clone())
    }

    fn time(&mut self) -> Option<Timestamp> {
        self.take(b'"')?;
        // With `+00:00` and with `Z`, which contain no quote.
        for length in [25, 20] {
            let (text, after) = self.rest.split_at_checked(length)?;
            if let Some(after) = after.strip_prefix(b"\"")
                && let Some(unix_ms) = self.utc_times.read(text)
            {
                self.rest = after;
                return Some(Timestamp(unix_ms));
            }
        }
        unix_ms(self.text_in_quotes()?).map(Timestamp)
    }

    fn text(&mut self) -> Option<&'a str> {
        self.take(b'"')?;
        self.text_in_quotes()
    }

    /// Takes the rest of a text after its first quote.
    fn text_in_quotes(&mut self) -> Option<&'a str> {
        let is_special = |byte: &u8| matches!(byte, b'"' | b'\\' | 0..b' ');
        let length = self.rest.iter().position(is_special)?;
        let (text, after) = self.rest.split_at_checked(length)?;
        self.rest = after.strip_prefix(b"\"")?;
        str::from_utf8(text).ok()
    }

    fn number(&mut self) -> Option<f64> {
        self.peek()?;
        let mut digits = 0_u64;
        let mut length = 0;
        let mut point = None;
        let mut has_others = false;
        for byte in self.rest {
            match byte {
                b'0'..=b'9' => {
                    let digit = u64::from(byte - b'0');
                    digits = digits.wrapping_mul(10).wrapping_add(digit);
                }
                b'.' if point.is_none() => point = Some(length),
                b'.' | b'-' | b'+' | b'e' | b'E' => has_others = true,
                _ => break,
            }
            length += 1;
        }
        let (text, after) = self.rest.split_at_checked(length)?;
        self.rest = after;
        let decimals = point.map_or(0, |point| length - point - 1);
        let is_whole = match text {
            [b'0', b'.', ..] | [b'0'] | [b'1'..=b'9', ..] => point.is_none() || decimals > 0,
            _ => false,
        };
        // Longer numbers need more care for the last bit.
        if !is_whole || has_others || length > 15 {
            return serde_json::from_slice(text).ok();
        }
        Some(digits as f64 / POWERS.get(decimals)?)
    }

    /// Takes the comma before another element, or the end. Returns whether there is another one.
    fn continues(&mut self, end: u8) -> Option<bool> {
        let byte = self.peek()?;
        self.take(byte)?;
        (byte == b',' || byte == end).then_some(byte == b',')
    }

    fn take(&mut self, wanted: u8) -> Option<()> {
        self.peek().filter(|byte| *byte == wanted)?;
        self.rest = self.rest.get(1..)?;
        Some(())
    }

    /// Takes white space. Returns the byte after it.
    fn peek(&mut self) -> Option<u8> {
        loop {
            let (byte, after) = self.rest.split_first()?;
            if !matches!(byte, b' ' | b'\n' | b'\r' | b'\t') {
                return Some(*byte);
            }
            self.rest = after;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{FORM, answers as converted};
    use super::*;
    use crate::read::json;
    use proptest::prelude::*;

    const SAMPLES: [&str; 5] = [
        include_str!("../../../../samples/cloudwatch_data.json"),
        include_str!("../../../../samples/cloudwatch_data_ids.json"),
        include_str!("../../../../samples/cloudwatch_pages.json"),
        include_str!("../../../../samples/cloudwatch_rds.json"),
        r#"{"Messages": [], "MetricDataResults": [{"Id": "a", "Label": "ü",
            "Timestamps": ["2026-11-25T18:40:00Z", "2026-11-25 18:45:00.5 +0100"],
            "Values": [0.1666666666666666574, 1e3]},
            {"Timestamps": ["2026-11-25T18:40:00Z", "2026-11-25 18:45:00.5 +0100"],
            "Values": [0, 123456789012345.25, 0.25, 7.0]}, {"Values": [], "Timestamps": []}]}
            {"MetricDataResults": [], "NextToken": ""}"#,
    ];

    /// Returns the answers that the general reader finds in a text.
    fn general(text: &[u8]) -> Option<String> {
        let answers = json::documents_of(text, FORM).and_then(converted).ok()?;
        Some(format!("{answers:?}"))
    }

    #[test]
    fn usual_answers_are_read_as_by_the_general_reader() {
        for text in SAMPLES {
            let plain = answers(text.as_bytes()).map(|answers| format!("{answers:?}"));
            assert!(plain.is_some(), "{text}");
            assert_eq!(plain, general(text.as_bytes()));
        }
    }

    #[test]
    fn other_forms_are_left_to_the_general_reader() {
        for text in [
            "",
            "[]",
            "{}",
            r#"{"Messages": []}"#,
            r#"{"MetricDataResults": [{"Values": [01]}]}"#,
            r#"{"MetricDataResults": [{"Values": [1.]}]}"#,
            r#"{"MetricDataResults": [{"Values": [1,]}]}"#,
            r#"{"MetricDataResults": [{"Id": "a", "Id": "a"}]}"#,
            r#"{"MetricDataResults": [{"Id": "\n"}]}"#,
            r#"{"MetricDataResults": [{"Timestamps": ["2026-11-25T18:40:00"]}]"#,
            r#"{"MetricDataResults": [{"Timestamps": ["2026-02-30T18:40:00Z"]}]}"#,
        ] {
            assert!(answers(text.as_bytes()).is_none(), "{text}");
        }
    }

    proptest! {
        #[test]
        fn changed_answers_are_read_as_by_the_general_reader(
            sample in 0..SAMPLES.len(),
            changes in proptest::collection::vec(
                (any::<proptest::sample::Index>(), 0_usize..3, "[\\[\\]{}\",:.0-9eE+\\-\\\\ TZu]"),
                1..4,
            ),
        ) {
            let mut text = SAMPLES[sample].as_bytes().to_vec();
            for (place, kept, byte) in changes {
                let from = place.index(text.len());
                // Inserts, replaces, or replaces two.
                let to = (from + kept).min(text.len());
                text.splice(from..to, byte.bytes());
            }
            if let Some(plain) = answers(&text) {
                prop_assert_eq!(Some(format!("{plain:?}")), general(&text));
            }
        }

        #[test]
        fn numbers_are_read_as_by_the_general_reader(
            number in "(0|[1-9][0-9]{0,17})(\\.[0-9]{1,17})?([eE][+-]?[0-9]{1,2})?",
        ) {
            let text = format!(r#"{{"MetricDataResults": [{{"Values": [{number}]}}]}}"#);
            let plain = answers(text.as_bytes()).map(|answers| format!("{answers:?}"));
            prop_assert_eq!(plain, general(text.as_bytes()));
        }
    }
}
