//! DescribeVolumeRecording (not an EC2 action): returns the requests to a volume, second by second,
//! from the server's own recording.

use evenkeel_core::time::UnixMs;
use evenkeel_telemetry::recording::{Interval, Requests, Throttled};
use evenkeel_wire::aws::timestamp;
use evenkeel_wire::aws::xml::Element;

use super::args::Args;
use super::error::ApiError;
use super::{Action, Call, view};
use crate::model::Refusal;

pub const ACTION: Action = Action { name: "DescribeVolumeRecording", mutates: false, run };

/// Maximum number of intervals in a reply: some 4 MiB.
const INTERVALS_MAX: usize = 10_000;

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let id = call.args.volume_id("VolumeId")?;
    let from = time(&mut call.args, "StartTime")?.unwrap_or(UnixMs(0));
    let until = time(&mut call.args, "EndTime")?.unwrap_or(call.now);
    let page = call.args.page(1, INTERVALS_MAX)?.at_most(INTERVALS_MAX);
    call.args.done()?;
    if from > until {
        return Err(ApiError::value(format!(
            "Value ({}) for parameter StartTime is invalid. It is after EndTime ({}).",
            timestamp::extended(from.0),
            timestamp::extended(until.0)
        )));
    }
    let Some(recording) = call.plane.recording() else {
        return Err(ApiError::unsupported(
            "This server does not record volumes: it was started with --record-days 0.",
        ));
    };
    // The recording of a volume outlives it.
    if !call.plane.model().volumes.contains_key(&id) && !recording.has(id) {
        return Err(Refusal::VolumesNotFound(vec![id]).into());
    }
    // A page begins where the last interval of the previous one ended.
    let from = page.after::<u64>().map_or(from, |end| from.max(UnixMs(end)));
    let found = recording.read(id, from, until, INTERVALS_MAX + 1).map_err(ApiError::internal)?;
    let end = |interval: &Interval| format!("{:020}", interval.end_ms());
    let (intervals, token) = page.cut(found.into_iter(), end);
    let items = intervals.iter().map(item).collect();
    let mut fields = vec![Element::text("volumeId", id)];
    fields.extend(view::paged("intervalSet", items, token));
    Ok(fields)
}

/// Reads a time in EC2's form.
pub(super) fn time(args: &mut Args, name: &str) -> Result<Option<UnixMs>, ApiError> {
    let Some(text) = args.text(name) else { return Ok(None) };
    let wrong = || {
        ApiError::value(format!(
            "Value ({text:.40}) for parameter {name} is invalid. Write it as 2026-11-25T19:00:00Z."
        ))
    };
    timestamp::parse_extended(&text).map(UnixMs).map(Some).ok_or_else(wrong)
}

/// Returns one interval; missing values are zero.
fn item(interval: &Interval) -> Element {
    let mut fields = vec![
        Element::text("startTimeMs", interval.start_ms),
        Element::text("lengthMs", interval.length_ms),
    ];
    if let Some(work) = &interval.work {
        fields.extend(requests("reads", &work.reads));
        fields.extend(requests("writes", &work.writes));
        fields.extend(throttled(&work.throttled));
    } else {
        fields.push(Element::text("idle", true));
    }
    fields.extend(interval.balance_ppm.map(|ppm| Element::text("balancePpm", ppm)));
    Element::list("item", fields)
}

fn requests(name: &str, requests: &Requests) -> Option<Element> {
    let Requests { count, bytes, us } = *requests;
    let fields = [("count", count), ("bytes", bytes), ("totalUs", us)];
    let fields = fields.map(|(name, amount)| Element::text(name, amount));
    (*requests != Requests::default()).then(|| Element::list(name, fields))
}

fn throttled(throttled: &Throttled) -> Option<Element> {
    let Throttled { operations_us, bytes_us, instance_us, device_us } = *throttled;
    let causes = [
        ("operations", operations_us),
        ("bytes", bytes_us),
        ("instance", instance_us),
        ("device", device_us),
    ];
    let fields = causes.map(|(cause, us)| Element::text(cause, us));
    (*throttled != Throttled::default()).then(|| Element::list("throttledUs", fields))
}
