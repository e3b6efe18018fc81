//! One verdict: an expectation and the measurement that is compared with it.

use serde::{Deserialize, Serialize, Serializer};

/// An expectation, and the measurement that is compared with it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Check {
    /// The figure, in words: its kind, its subject and its time.
    pub name: String,
    /// The promised or expected value, with its tolerance.
    pub expected: String,
    /// The measured value.
    pub measured: String,
    /// The measured figure, if the expectation is of a number and it was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Whether the expectation is met.
    pub pass: bool,
    /// Whether the verdict is open: the expectation is not met, and the machine may be the cause.
    #[serde(default, skip_serializing_if = "is_false")]
    pub undecided: bool,
}

#[allow(clippy::trivially_copy_pass_by_ref, reason = "the signature that serde asks for")]
const fn is_false(flag: &bool) -> bool {
    !*flag
}

impl Check {
    /// Creates a verdict in words only.
    #[must_use]
    pub fn new(
        name: impl Into<String>,
        expected: impl Into<String>,
        measured: impl Into<String>,
        pass: bool,
    ) -> Self {
        let name = name.into();
        let expected = expected.into();
        let measured = measured.into();
        Self { name, expected, measured, value: None, pass, undecided: false }
    }
}

/// Serializes checks for `evenkeel.sim/1`: there `name` is called `what`, and `value` is never left
/// out.
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
