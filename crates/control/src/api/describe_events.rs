//! DescribeEvents (not an EC2 action): returns the events that the server keeps, oldest first.

use evenkeel_telemetry::events::log::Kept;
use evenkeel_wire::aws::xml::Element;
use serde::Deserialize;

use super::error::ApiError;
use super::{Action, Call};

pub const ACTION: Action = Action { name: "DescribeEvents", mutates: false, run };

const FILTERS: &[&str] = &["detail-type", "event", "resource", "source", "type"];
/// Maximum number of events in a reply.
const EVENTS_MAX: usize = 1_000;

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let after = call.args.number("AfterSequence")?.unwrap_or(0_u64);
    let max = call.args.number("MaxResults")?.unwrap_or(100_usize);
    let filters = call.args.filters(FILTERS)?;
    call.args.done()?;
    if !(1..=EVENTS_MAX).contains(&max) {
        return Err(ApiError::value(format!(
            "Value ({max}) for parameter MaxResults is invalid. Choose 1 to {EVENTS_MAX}."
        )));
    }
    let log = call.plane.feed().log();
    let Some(log) = log else { return Err(ApiError::internal("no events are kept")) };
    let is_wanted = |event: &str| {
        let known = serde_json::from_str::<Known>(event).unwrap_or_default();
        filters.pass(|name| known.values(name))
    };
    let page = log.read(after, max, is_wanted).map_err(ApiError::internal)?;
    let item = |kept: Kept| {
        let sequence = Element::text("sequence", kept.sequence);
        Element::list("item", [sequence, Element::text("event", kept.event)])
    };
    Ok(vec![
        Element::list("eventSet", page.events.into_iter().map(item)),
        Element::text("examinedSequence", page.examined),
        Element::text("lastSequence", log.last()),
        Element::text("oldestSequence", log.oldest()),
    ])
}

/// The fields of an event that filters use.
#[derive(Default, Deserialize)]
#[serde(rename_all = "kebab-case")]
struct Known {
    detail_type: String,
    source: String,
    resources: Vec<String>,
    detail: Detail,
}

#[derive(Default, Deserialize)]
struct Detail {
    #[serde(default)]
    event: String,
}

impl Known {
    fn values(&self, filter: &str) -> Vec<String> {
        match filter {
            "detail-type" => vec![self.detail_type.clone()],
            "event" => vec![self.detail.event.clone()],
            "source" => vec![self.source.clone()],
            "type" => vec![self.detail_type.clone(), self.detail.event.clone()],
            "resource" => {
                let id = |arn: &String| arn.rsplit('/').next().unwrap_or_default().to_owned();
                self.resources.iter().flat_map(|arn| [arn.clone(), id(arn)]).collect()
            }
            _ => vec![],
        }
    }
}
