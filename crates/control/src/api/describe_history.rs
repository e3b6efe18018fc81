//! DescribeHistory (not an EC2 action): returns this server's records of volumes, and its events,
//! in its own form, for the other nodes of a cluster to copy.

use evenkeel_core::time::UnixMs;
use evenkeel_telemetry::history::{self, Kind, Page};
use evenkeel_wire::aws::xml::Element;

use super::describe_volume_recording::time;
use super::error::ApiError;
use super::page::{self, Page as Paged};
use super::{Action, Call};

pub const ACTION: Action = Action { name: "DescribeHistory", mutates: false, run };

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let name = call.args.required("Kind")?;
    let since = time(&mut call.args, "StartTime")?.unwrap_or(UnixMs(0));
    let after = call.args.number("AfterSequence")?.unwrap_or(0);
    let paged = Paged::new(None, call.args.text("NextToken"))?;
    call.args.done()?;
    let kind = Kind::ALL.into_iter().find(|kind| kind.name() == name).ok_or_else(|| {
        let names = Kind::ALL.map(Kind::name).join(", ");
        ApiError::value(format!("Value ({name:.40}) for parameter Kind is invalid. Use {names}."))
    })?;
    let plane = call.plane;
    let found = match kind {
        Kind::Metrics => {
            call.cloudwatch.map(|cloudwatch| history::metrics(cloudwatch, since, paged.after()))
        }
        Kind::Recordings => {
            plane.recording().map(|of| history::recordings(of, since, call.now, paged.after()))
        }
        Kind::Events => Some(match plane.feed().log() {
            Some(log) => history::events(log, plane.feed().deliveries(), after),
            None => Ok(Page::default()),
        }),
    };
    // Without records of this kind there is nothing to copy.
    let Page { items, next } =
        found.unwrap_or_else(|| Ok(Page::default())).map_err(ApiError::internal)?;
    let mut fields = vec![Element::text("timeMs", call.now.0), Element::list("historySet", items)];
    fields.extend(next.map(|next| Element::text("nextToken", page::encoded(&next.to_string()))));
    Ok(fields)
}
