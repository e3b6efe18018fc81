//! The answer to DescribeHistory: a server's recordings of volumes, and its events.

use evenkeel_client::Client;
use evenkeel_client::model::number;
use evenkeel_client::output::Failure;
use evenkeel_telemetry::history::{Kind, Since};
use evenkeel_wire::aws::timestamp;
use evenkeel_wire::aws::xml::Element;

/// A page of the answer.
pub struct Page {
    answer: Element,
    /// When the server answered, in milliseconds of Unix time.
    pub time_ms: u64,
}

impl Page {
    /// Returns its items, in the form of `evenkeel_telemetry::history`.
    #[must_use]
    pub fn items(&self) -> &[Element] {
        self.answer.items("historySet")
    }

    /// Returns the token of the next page.
    #[must_use]
    pub fn next_token(&self) -> Option<&str> {
        self.answer.child_text("nextToken")
    }
}

/// Returns one page of a server's history of this kind.
///
/// # Errors
/// The server does not answer, or refuses the request.
pub fn page(
    client: &Client,
    kind: Kind,
    since: Since,
    token: Option<&str>,
) -> Result<Page, Failure> {
    let (name, since) = match since {
        Since::Time(since) => ("StartTime", timestamp::extended(since.0)),
        Since::Event(after) => ("AfterSequence", after.to_string()),
    };
    let mut parameters = vec![("Kind", kind.name()), (name, since.as_str())];
    parameters.extend(token.map(|token| ("NextToken", token)));
    let answer = client.call("DescribeHistory", &parameters)?;
    let time_ms = number(&answer, "timeMs").unwrap_or_default();
    Ok(Page { answer, time_ms })
}
