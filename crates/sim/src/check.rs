//! One verdict: a question put to a measurement, and its answer.

use serde::{Deserialize, Serialize, Serializer};

/// One question put to a measurement, and its answer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Check {
    /// What was asked: what was measured, of what and when.
    pub name: String,
    /// What was promised or expected, with its tolerance.
    pub expected: String,
    /// What was measured.
    pub measured: String,
    /// The figure, if the question is of one and there was something to measure.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Whether it is as expected.
    pub pass: bool,
    /// Whether it cannot be known: it is not as expected, and that may be the machine's doing.
    #[serde(default, skip_serializing_if = "is_false")]
    pub undecided: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

impl Check {
    /// A question with an answer in words only.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        expected: impl Into<String>,
        measured: impl Into<String>,
        pass: bool,
    ) -> Self {
        let (name, expected, measured) = (name.into(), expected.into(), measured.into());
        Self { name, expected, measured, value: None, pass, undecided: false }
    }
}

/// The JSON of `evenkeel.sim/1`: the question is called `what`, and its figure is always there.
pub(crate) fn expectations<S: Serializer>(checks: &[Check], to: S) -> Result<S::Ok, S::Error> {
    #[derive(Serialize)]
    struct Expectation<'a> {
        what: &'a str,
        expected: &'a str,
        measured: &'a str,
        value: Option<f64>,
        pass: bool,
    }
    to.collect_seq(checks.iter().map(|Check { name, expected, measured, value, pass, .. }| {
        Expectation { what: name, expected, measured, value: *value, pass: *pass }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_document_has_its_form() {
        #[derive(Serialize)]
        struct Results(#[serde(serialize_with = "expectations")] Vec<Check>);
        let check = Check::new("p99", "at most 5", "4", true);
        let text = serde_json::to_string(&check).unwrap();
        assert_eq!(text, r#"{"name":"p99","expected":"at most 5","measured":"4","pass":true}"#);
        assert_eq!(serde_json::from_str::<Check>(&text).unwrap(), check);
        let results = |value| {
            let checks = vec![Check { value, ..check.clone() }];
            serde_json::to_string(&Results(checks)).unwrap()
        };
        let with = |value: &str| {
            let question = r#""what":"p99","expected":"at most 5","measured":"4""#;
            format!("[{{{question},\"value\":{value},\"pass\":true}}]")
        };
        assert_eq!([results(None), results(Some(4.0))], [with("null"), with("4.0")]);
    }
}
