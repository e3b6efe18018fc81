//! StartTestFault, StopTestFaults and DescribeTestFaults (not EC2 actions): faults of a test
//! server.

use evenkeel_core::ids::VolumeId;
use evenkeel_wire::aws::timestamp;
use evenkeel_wire::aws::xml::Element;

use super::args::Args;
use super::error::ApiError;
use super::{ACTIONS, Action, Call, test_clock};
use crate::faults::{
    DURATION_S_MAX, FAULTS_MAX, FaultRefusal, FaultSpec, FaultType, FaultView, LATENCY_MS_MAX,
    PERCENT_PPM, Part, TARGETS_MAX,
};
use crate::model::Refusal;

pub const START: Action = Action { name: "StartTestFault", mutates: true, run: start };
pub const STOP: Action = Action { name: "StopTestFaults", mutates: true, run: stop };
pub const DESCRIBE: Action = Action { name: "DescribeTestFaults", mutates: false, run: describe };

/// Duration of a fault if the request has none, in seconds.
const DURATION_S: u64 = 300;
/// Percentage of requests if the request has none.
const PERCENT: u32 = 100;
/// Latency if the request has none, in milliseconds.
const LATENCY_MS: u64 = 100;
/// Seed if the request has none.
const SEED: u64 = 1;

/// Returns whether faults of the API spare an action, so that they can be ended.
fn is_spared(action: &str) -> bool {
    [&START, &STOP, &DESCRIBE, &test_clock::DESCRIBE, &test_clock::MODIFY]
        .iter()
        .any(|spared| spared.name == action)
}

/// Returns the error of a fault that the request meets.
pub fn injected(call: &Call<'_>, action: &str) -> Option<ApiError> {
    if is_spared(action) {
        return None;
    }
    let (kind, id) = call.plane.faults().of_action(action)?;
    let text = format!("{id} ({}) was started with StartTestFault", kind.name());
    Some(match kind {
        FaultType::InsufficientVolumeCapacity => ApiError::no_capacity(format!(
            "There is not enough capacity to fulfill your EBS volume provision request: {text}"
        )),
        FaultType::ApiUnavailableError => {
            ApiError::unavailable(format!("The server is overloaded: {text}"))
        }
        FaultType::ApiInternalError => ApiError {
            status: 500,
            code: "InternalError",
            message: format!("An internal error has occurred: {text}"),
        },
        _ => ApiError::throttled(format!("Request limit exceeded: {text}")),
    })
}

fn start(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let spec = spec(call)?;
    call.args.done()?;
    if !call.plane.faults().is_test() {
        return Err(FaultRefusal::NotATest.into());
    }
    check_volumes(call, &spec.volumes)?;
    if call.dry_run {
        call.plane.faults().check_start()?;
        return Err(ApiError::dry_run());
    }
    let view = call.plane.faults().start(spec, call.now)?;
    Ok(vec![Element::list("testFault", fields(&view))])
}

fn stop(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let ids = call.args.list("FaultId");
    call.args.done()?;
    if ids.len() > FAULTS_MAX {
        return Err(too_many("FaultId", ids.len(), FAULTS_MAX));
    }
    if !call.plane.faults().is_test() {
        return Err(FaultRefusal::NotATest.into());
    }
    if call.dry_run {
        call.plane.faults().check_stop(&ids)?;
        return Err(ApiError::dry_run());
    }
    Ok(vec![set(&call.plane.faults().stop(&ids)?)])
}

fn describe(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    call.args.done()?;
    if !call.plane.faults().is_test() {
        return Err(FaultRefusal::NotATest.into());
    }
    let mut views = call.plane.faults().list();
    // The fault of an experiment is as long as one may be, and ends with its action.
    for (id, end) in call.plane.experiments().ends() {
        if let Some(view) = views.iter_mut().find(|view| view.id == id) {
            view.left_ms = view.left_ms.min(end.ms_since(call.now));
        }
    }
    Ok(vec![set(&views)])
}

/// Reads the description of a fault.
fn spec(call: &mut Call<'_>) -> Result<FaultSpec, ApiError> {
    let args = &mut call.args;
    let name = args.required("FaultType")?;
    let kind = FaultType::of_name(&name).ok_or_else(|| {
        let known: Vec<&str> = FaultType::ALL.iter().map(|(name, _)| *name).collect();
        ApiError::value(format!(
            "Value ({name}) for parameter faultType is invalid. Use one of {}.",
            known.join(", ")
        ))
    })?;
    check_fit(args, kind)?;
    let volumes = if kind.is_of_volumes() { args.volume_ids("VolumeId")? } else { Vec::new() };
    let actions = if kind.is_of_api() { args.list("Operation") } else { Vec::new() };
    for (name, count) in [("VolumeId", volumes.len()), ("Operation", actions.len())] {
        if count > TARGETS_MAX {
            return Err(too_many(name, count, TARGETS_MAX));
        }
    }
    let is_unknown = |name: &&String| !ACTIONS.iter().any(|known| known.name == **name);
    if let Some(unknown) = actions.iter().find(is_unknown) {
        return Err(ApiError::unknown_action(unknown));
    }
    if let Some(spared) = actions.iter().find(|name| is_spared(name)) {
        return Err(ApiError::value(format!(
            "Value ({spared}) for parameter operation is invalid. This action is always answered, \
             so that faults can be ended and the clock moved; choose others."
        )));
    }
    let duration_s = number(args, "DurationSeconds", 1, DURATION_S_MAX)?.unwrap_or(DURATION_S);
    let seed = number(args, "Seed", 0, u64::MAX)?.unwrap_or(SEED);
    let directed = kind.has_directions();
    let percent = if counts_requests(kind) { percent(args, "Percentage")? } else { None };
    let percent = percent.unwrap_or(PERCENT);
    let reads = if directed { part(args, kind, "Read")? } else { None };
    let writes = if directed { part(args, kind, "Write")? } else { None };
    let all = Part { ppm: PERCENT * PERCENT_PPM, latency_ms: LATENCY_MS };
    // A request that names one direction only means that one.
    let (reads, writes) = match (reads, writes) {
        (None, None) => (all, all),
        (reads, writes) => (reads.unwrap_or_default(), writes.unwrap_or_default()),
    };
    Ok(FaultSpec { kind, volumes, actions, duration_s, percent, reads, writes, seed })
}

fn counts_requests(kind: FaultType) -> bool {
    kind.is_of_api() || kind == FaultType::InsufficientVolumeCapacity
}

/// A parameter of some types of faults: its name, the flag of `evenkeel fault start`, the types.
type Own = (&'static str, &'static str, fn(FaultType) -> bool);

/// The parameters that not all types of faults have. Lists have numbers after the name.
const OWN: [Own; 7] = [
    ("VolumeId", "volume", |kind| kind.is_of_volumes()),
    ("Operation", "operation", |kind| kind.is_of_api()),
    ("Percentage", "percent", counts_requests),
    ("ReadPercentage", "read-percent", |kind| kind.has_directions()),
    ("WritePercentage", "write-percent", |kind| kind.has_directions()),
    ("ReadLatencyMilliseconds", "read-ms", |kind| kind == FaultType::VolumeIoLatency),
    ("WriteLatencyMilliseconds", "write-ms", |kind| kind == FaultType::VolumeIoLatency),
];

/// Checks that the request has no parameter of other types of faults.
fn check_fit(args: &mut Args, kind: FaultType) -> Result<(), ApiError> {
    for (name, flag, has) in OWN.iter().filter(|(.., has)| !has(kind)) {
        if args.text(name).is_none() && args.list(name).is_empty() {
            continue;
        }
        let types = FaultType::ALL.iter().filter(|(_, kind)| has(*kind));
        let types: Vec<&str> = types.map(|(name, _)| *name).collect();
        return Err(ApiError::new(
            "InvalidParameterCombination",
            format!(
                "The fault {} has no parameter {name} (--{flag}). These have it: {}.",
                kind.name(),
                types.join(", ")
            ),
        ));
    }
    Ok(())
}

/// Reads the part of one direction; `None` if the request has nothing of it.
fn part(args: &mut Args, kind: FaultType, direction: &str) -> Result<Option<Part>, ApiError> {
    let share = percent(args, &format!("{direction}Percentage"))?;
    let latency = if kind == FaultType::VolumeIoLatency {
        number(args, &format!("{direction}LatencyMilliseconds"), 1, LATENCY_MS_MAX)?
    } else {
        None
    };
    if share.is_none() && latency.is_none() {
        return Ok(None);
    }
    let ppm = share.unwrap_or(PERCENT) * PERCENT_PPM;
    Ok(Some(Part { ppm, latency_ms: latency.unwrap_or(LATENCY_MS) }))
}

fn percent(args: &mut Args, name: &str) -> Result<Option<u32>, ApiError> {
    let percent = number(args, name, 0, u64::from(PERCENT))?;
    Ok(percent.map(evenkeel_core::convert::saturating))
}

fn number(args: &mut Args, name: &str, min: u64, max: u64) -> Result<Option<u64>, ApiError> {
    match args.number::<u64>(name)? {
        Some(value) if !(min..=max).contains(&value) => Err(ApiError::value(format!(
            "Value ({value}) for parameter {name} is invalid. Choose {min} to {max}."
        ))),
        value => Ok(value),
    }
}

fn too_many(name: &str, count: usize, max: usize) -> ApiError {
    ApiError::value(format!("The request has {count} values of {name}, and {max} is the maximum."))
}

fn check_volumes(call: &Call<'_>, volumes: &[VolumeId]) -> Result<(), ApiError> {
    let model = call.plane.model();
    let absent = volumes.iter().copied().filter(|id| !model.volumes.contains_key(id));
    let absent: Vec<VolumeId> = absent.collect();
    if absent.is_empty() { Ok(()) } else { Err(Refusal::VolumesNotFound(absent).into()) }
}

/// Returns parts of a million as a percentage; experiments of FIS may have tenths.
fn percentage(ppm: u32) -> String {
    let decimals = format!(".{:04}", ppm % PERCENT_PPM);
    let decimals = decimals.trim_end_matches('0').trim_end_matches('.');
    format!("{}{decimals}", ppm / PERCENT_PPM)
}

fn set(views: &[FaultView]) -> Element {
    Element::list("testFaultSet", views.iter().map(|view| Element::list("item", fields(view))))
}

fn fields(view: &FaultView) -> Vec<Element> {
    let FaultView { id, spec, started, left_ms, hits } = view;
    let mut fields = vec![
        Element::text("faultId", id),
        Element::text("faultType", spec.kind.name()),
        Element::text("startTime", timestamp::extended(started.0)),
        Element::text("secondsLeft", left_ms.div_ceil(1_000)),
        Element::text("requests", hits),
    ];
    let item = |name: &str, text: String| Element::list("item", [Element::text(name, text)]);
    if spec.kind.is_of_volumes() {
        let volumes = spec.volumes.iter().map(|id| item("volumeId", id.to_string()));
        fields.push(Element::list("volumeSet", volumes));
    }
    if spec.kind.is_of_api() {
        let actions = spec.actions.iter().map(|name| item("operation", name.clone()));
        fields.push(Element::list("operationSet", actions));
    }
    if spec.kind.has_directions() {
        for (direction, part) in [("read", spec.reads), ("write", spec.writes)] {
            fields.push(Element::text(&format!("{direction}Percentage"), percentage(part.ppm)));
            if spec.kind == FaultType::VolumeIoLatency {
                let name = format!("{direction}LatencyMilliseconds");
                fields.push(Element::text(&name, part.latency_ms));
            }
        }
    } else if !spec.kind.is_of_volumes() {
        fields.push(Element::text("percentage", spec.percent));
    }
    fields.push(Element::text("seed", spec.seed));
    fields
}

impl From<FaultRefusal> for ApiError {
    fn from(refusal: FaultRefusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            FaultRefusal::NotATest => Self::unsupported(message),
            FaultRefusal::TooMany => Self::new("ResourceLimitExceeded", message),
            FaultRefusal::Unknown(_) => Self::new("InvalidFault.NotFound", message),
        }
    }
}
