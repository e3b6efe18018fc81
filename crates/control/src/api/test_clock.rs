//! DescribeTestClock and ModifyTestClock (not EC2 actions): the clock of a test server.

use evenkeel_core::time::UnixMs;
use evenkeel_wire::aws::timestamp;
use evenkeel_wire::aws::xml::Element;

use super::error::ApiError;
use super::{Action, Call};
use crate::plane::{ClockChange, ClockFailure, Plane};
use crate::server_clock::ClockRefusal;

pub const DESCRIBE: Action = Action { name: "DescribeTestClock", mutates: false, run: describe };
pub const MODIFY: Action = Action { name: "ModifyTestClock", mutates: true, run: modify };

fn describe(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    call.args.done()?;
    element(call.plane)
}

fn modify(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let seconds = call.args.number::<u64>("AdvanceSeconds")?;
    let time = call.args.text("Time");
    let state = call.args.text("State");
    call.args.done()?;
    // A server with the machine's clock refuses every change alike.
    element(call.plane)?;
    let advance = match (seconds, time) {
        (Some(_), Some(_)) => {
            let text = "The parameters AdvanceSeconds and Time exclude each other. Use one.";
            return Err(ApiError::new("InvalidParameterCombination", text));
        }
        (Some(seconds), None) => Some(ClockChange::Advance(seconds.saturating_mul(1_000))),
        (None, Some(text)) => Some(ClockChange::Set(time_of(&text)?)),
        (None, None) => None,
    };
    let state = state.map(|state| state_of(&state)).transpose()?;
    let changes: Vec<ClockChange> = advance.into_iter().chain(state).collect();
    if changes.is_empty() {
        let text = "The request must contain AdvanceSeconds, Time or State";
        return Err(ApiError::new("MissingParameter", text));
    }
    if call.dry_run {
        call.plane.check_clock(&changes)?;
        return Err(ApiError::dry_run());
    }
    for change in changes {
        call.plane.change_clock(change)?;
    }
    element(call.plane)
}

fn time_of(text: &str) -> Result<UnixMs, ApiError> {
    timestamp::parse_extended(text).map(UnixMs).ok_or_else(|| {
        ApiError::value(format!(
            "Value ({text}) for parameter time is invalid. Use a time in UTC such as \
             2026-12-31T23:59:59Z."
        ))
    })
}

fn state_of(text: &str) -> Result<ClockChange, ApiError> {
    match text {
        "running" => Ok(ClockChange::Run),
        "frozen" => Ok(ClockChange::Freeze),
        other => Err(ApiError::value(format!(
            "Value ({other}) for parameter state is invalid. Use running or frozen."
        ))),
    }
}

fn element(plane: &Plane) -> Result<Vec<Element>, ApiError> {
    let view = plane.clock().view().ok_or(ClockRefusal::NotATest)?;
    let time = |name: &str, time: UnixMs| Element::text(name, timestamp::extended(time.0));
    let state = if view.is_frozen { "frozen" } else { "running" };
    let fields =
        [time("time", view.now), time("realTime", view.real), Element::text("state", state)];
    Ok(vec![Element::list("testClock", fields)])
}

impl From<ClockRefusal> for ApiError {
    fn from(refusal: ClockRefusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            ClockRefusal::NotATest => Self::unsupported(message),
            ClockRefusal::Backwards { .. }
            | ClockRefusal::TooFarAtOnce(_)
            | ClockRefusal::TooFarAhead(_) => Self::value(message),
            ClockRefusal::NotStored(_) => Self::internal(message),
        }
    }
}

impl From<ClockFailure> for ApiError {
    fn from(failure: ClockFailure) -> Self {
        match failure {
            ClockFailure::Refused(refusal) => refusal.into(),
            ClockFailure::After(error) => error.into(),
        }
    }
}
