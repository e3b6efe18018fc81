//! Templates of experiments: the JSON of a request, and what it means.
//!
//! An element that FIS has and this server does not execute is refused with its name, so no
//! experiment does less than its template says.

use std::collections::{BTreeMap, BTreeSet};

use evenkeel_core::ids::VolumeId;
use evenkeel_core::random::Random;
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::FisError;
use super::duration;
use crate::faults::{DURATION_S_MAX, FaultType, LATENCY_MS_MAX, PERCENT_PPM, Part};
use crate::model::{Model, Settings, TAGS_MAX, Tags, Volume};

/// Maximum number of actions of a template, and of its targets, as FIS has it.
const ACTIONS_MAX: usize = 20;
/// Maximum number of ARNs of a target, as FIS has it.
const ARNS_MAX: usize = 5;
/// Maximum number of characters of a text.
const TEXT_MAX: usize = 512;
/// Maximum number of characters of a name, an ARN or a token.
const NAME_MAX: usize = 64;
const ARN_MAX: usize = 2_048;
const TOKEN_MAX: usize = 1_024;
/// The least share of I/O in parts of a million: 0.1 %, as FIS has it.
const SHARE_PPM_MIN: u32 = 1_000;
const WHOLE_PPM: u32 = 100 * PERCENT_PPM;
/// The type of all targets.
const VOLUME_TYPE: &str = "aws:ec2:ebs-volume";
/// The name of the target in an action.
const VOLUMES: &str = "Volumes";

/// The request of CreateExperimentTemplate.
#[derive(Clone, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Template {
    #[serde(skip_serializing)]
    client_token: String,
    description: String,
    stop_conditions: Vec<StopCondition>,
    #[serde(default)]
    targets: BTreeMap<String, Target>,
    actions: BTreeMap<String, Action>,
    role_arn: String,
    #[serde(default)]
    tags: BTreeMap<String, String>,
    #[serde(default)]
    experiment_options: Options,
    #[serde(skip_serializing)]
    log_configuration: Option<Value>,
    #[serde(skip_serializing)]
    experiment_report_configuration: Option<Value>,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct StopCondition {
    source: String,
    #[serde(skip_serializing)]
    value: Option<Value>,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Target {
    resource_type: String,
    #[serde(default)]
    resource_arns: Vec<String>,
    #[serde(default)]
    resource_tags: BTreeMap<String, String>,
    #[serde(default, skip_serializing)]
    filters: Vec<Value>,
    selection_mode: String,
    #[serde(default, skip_serializing)]
    parameters: BTreeMap<String, Value>,
}

/// An action of a template.
#[derive(Clone, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Action {
    action_id: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    parameters: BTreeMap<String, String>,
    #[serde(default)]
    targets: BTreeMap<String, String>,
    #[serde(default)]
    start_after: Vec<String>,
}

#[derive(Clone, Serialize, Deserialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
struct Options {
    account_targeting: String,
    empty_target_resolution_mode: String,
}

impl Default for Options {
    fn default() -> Self {
        let account_targeting = "single-account".to_owned();
        Self { account_targeting, empty_target_resolution_mode: "fail".to_owned() }
    }
}

/// The work of an action.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Work {
    /// Nothing, for a time.
    Wait,
    /// A fault of the volumes of a target.
    Fault {
        /// Its type.
        kind: FaultType,
        /// Reads, of a fault that distinguishes directions.
        reads: Part,
        /// Writes, likewise.
        writes: Part,
        /// The name of the target.
        target: String,
    },
}

/// An action as it is executed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Step {
    /// Its name.
    pub name: String,
    /// Its work.
    pub work: Work,
    /// How long it lasts, in milliseconds.
    pub ms: u64,
    /// The names of the actions that end before it begins.
    pub after: Vec<String>,
}

impl Step {
    /// Returns the target of its work; `None` if it has none.
    #[must_use]
    pub fn target(&self) -> Option<&str> {
        match &self.work {
            Work::Wait => None,
            Work::Fault { target, .. } => Some(target),
        }
    }
}

/// How a target is chosen from the volumes that it names.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Selection {
    All,
    Count(usize),
    Percent(usize),
}

impl Template {
    /// Reads and checks a template.
    ///
    /// # Errors
    /// `ValidationException` for a template that this server does not execute as a whole.
    pub fn read(body: &[u8], settings: &Settings) -> Result<Self, FisError> {
        let template: Self = serde_json::from_slice(body)
            .map_err(|error| FisError::invalid(format!("the body is no template: {error}")))?;
        template.check_head()?;
        let counts = [("actions", template.actions.len()), ("targets", template.targets.len())];
        if let Some((name, count)) = counts.into_iter().find(|(_, count)| *count > ACTIONS_MAX) {
            let text = format!("{name} has {count} entries, and {ACTIONS_MAX} is the maximum");
            return Err(FisError::invalid(text));
        }
        if template.actions.is_empty() {
            return Err(FisError::invalid("actions is empty; a template has one action at least"));
        }
        for (name, target) in &template.targets {
            name_is_short("targets", name)?;
            target.check(name, settings)?;
        }
        template.steps()?;
        template.check_order()
    }

    fn check_head(&self) -> Result<(), FisError> {
        token_is_legal(&self.client_token)?;
        check_length("description", &self.description, 0, TEXT_MAX)?;
        check_length("roleArn", &self.role_arn, 20, ARN_MAX)?;
        check_tags(&self.tags)?;
        if self.log_configuration.is_some() {
            return Err(FisError::unsupported("logConfiguration"));
        }
        if self.experiment_report_configuration.is_some() {
            return Err(FisError::unsupported("experimentReportConfiguration"));
        }
        if self.stop_conditions.len() > ARNS_MAX {
            let count = self.stop_conditions.len();
            let text = format!("stopConditions has {count} entries, and {ARNS_MAX} is the maximum");
            return Err(FisError::invalid(text));
        }
        if let Some(other) =
            self.stop_conditions.iter().find(|condition| condition.source != "none")
        {
            let source = marked(&other.source);
            return Err(FisError::unsupported(&format!("stopConditions with source {source}")));
        }
        if self.stop_conditions.iter().any(|condition| condition.value.is_some()) {
            return Err(FisError::invalid("a stop condition with source none has no value"));
        }
        let Options { account_targeting, empty_target_resolution_mode } = &self.experiment_options;
        if account_targeting != "single-account" {
            let text = format!("accountTargeting {}", marked(account_targeting));
            return Err(FisError::unsupported(&text));
        }
        if !["fail", "skip"].contains(&empty_target_resolution_mode.as_str()) {
            let text = format!(
                "emptyTargetResolutionMode is {}; it must be fail or skip",
                marked(empty_target_resolution_mode)
            );
            return Err(FisError::invalid(text));
        }
        Ok(())
    }

    /// Checks that every action can begin.
    fn check_order(self) -> Result<Self, FisError> {
        let mut done = BTreeSet::new();
        loop {
            let before = done.len();
            for (name, action) in &self.actions {
                if let Some(unknown) =
                    action.start_after.iter().find(|other| !self.actions.contains_key(*other))
                {
                    let unknown = marked(unknown);
                    let text = format!("startAfter of {name} names {unknown}, which is no action");
                    return Err(FisError::invalid(text));
                }
                if action.start_after.iter().all(|other| done.contains(other)) {
                    done.insert(name.clone());
                }
            }
            if done.len() == self.actions.len() {
                return Ok(self);
            }
            if done.len() == before {
                let waiting = self.actions.keys().find(|name| !done.contains(*name));
                let name = waiting.map_or("", String::as_str);
                let text = format!("the action {name} waits for itself by startAfter");
                return Err(FisError::invalid(text));
            }
        }
    }

    /// Returns the token of the request.
    #[must_use]
    pub fn token(&self) -> &str {
        &self.client_token
    }

    /// Returns its tags.
    #[must_use]
    pub const fn tags(&self) -> &BTreeMap<String, String> {
        &self.tags
    }

    /// Returns the ids of its actions, each once.
    #[must_use]
    pub fn action_ids(&self) -> BTreeSet<&str> {
        self.actions.values().map(|action| action.action_id.as_str()).collect()
    }

    /// Returns its description.
    #[must_use]
    pub fn description(&self) -> &str {
        &self.description
    }

    /// Returns whether an experiment fails if one of its targets is empty.
    #[must_use]
    pub fn fails_if_empty(&self) -> bool {
        self.experiment_options.empty_target_resolution_mode == "fail"
    }

    /// Returns its JSON, as GetExperimentTemplate returns it.
    #[must_use]
    pub fn json(&self) -> Value {
        // All of its keys are texts.
        serde_json::to_value(self).unwrap_or_default()
    }

    /// Returns its actions.
    ///
    /// # Errors
    /// `ValidationException`.
    pub fn steps(&self) -> Result<Vec<Step>, FisError> {
        self.actions.iter().map(|(name, action)| self.step(name, action)).collect()
    }

    fn step(&self, name: &str, action: &Action) -> Result<Step, FisError> {
        name_is_short("actions", name)?;
        check_length("description", &action.description, 0, TEXT_MAX)?;
        let mut rest = action.parameters.clone();
        let target = || match action.targets.iter().collect::<Vec<_>>()[..] {
            [(key, target)] if key == VOLUMES && self.targets.contains_key(target) => {
                Ok(target.clone())
            }
            _ => Err(FisError::invalid(format!(
                "the action {name} needs targets with {VOLUMES}, which names one of the template's \
                 targets, and no others"
            ))),
        };
        let work = match action.action_id.as_str() {
            "aws:fis:wait" if action.targets.is_empty() => Work::Wait,
            "aws:fis:wait" => {
                let text = format!("the action {name} (aws:fis:wait) has no targets");
                return Err(FisError::invalid(text));
            }
            "aws:ebs:pause-volume-io" => {
                let kind = FaultType::PauseVolumeIo;
                let none = Part::default();
                Work::Fault { kind, reads: none, writes: none, target: target()? }
            }
            "aws:ebs:volume-io-latency" => {
                let reads = part(name, "read", &mut rest)?;
                let writes = part(name, "write", &mut rest)?;
                if reads.ppm == 0 && writes.ppm == 0 {
                    let text = format!(
                        "the action {name} needs readIOPercentage and readIOLatencyMilliseconds, \
                         or those of writes, or both"
                    );
                    return Err(FisError::invalid(text));
                }
                let kind = FaultType::VolumeIoLatency;
                Work::Fault { kind, reads, writes, target: target()? }
            }
            other => {
                let text = format!(
                    "the action {} (aws:ebs:pause-volume-io, aws:ebs:volume-io-latency and \
                     aws:fis:wait are; StartTestFault has other faults)",
                    marked(other)
                );
                return Err(FisError::unsupported(&text));
            }
        };
        let ms = duration_of(name, &mut rest)?;
        match rest.keys().next() {
            None => Ok(Step { name: name.to_owned(), work, ms, after: action.start_after.clone() }),
            Some(unknown) => {
                let id = &action.action_id;
                let unknown = marked(unknown);
                let text = format!("the parameter {unknown} of the action {name} ({id})");
                Err(FisError::unsupported(&text))
            }
        }
    }

    /// Returns the volumes that its targets name by their ARNs.
    #[must_use]
    pub fn named_volumes(&self, settings: &Settings) -> BTreeSet<VolumeId> {
        let arns = self.targets.values().flat_map(|target| &target.resource_arns);
        arns.filter_map(|arn| volume_of(arn, settings)).collect()
    }

    /// Returns the tags by which its targets name volumes. Of a key with several values it has one.
    #[must_use]
    pub fn target_tags(&self) -> Tags {
        let tags = self.targets.values().flat_map(|target| &target.resource_tags);
        tags.map(|(key, value)| (key.clone(), value.clone())).collect()
    }

    /// Returns the volumes of a target at present. Random choices follow the seed.
    #[must_use]
    pub fn volumes(
        &self,
        target: &str,
        seed: u64,
        model: &Model,
        settings: &Settings,
    ) -> Vec<VolumeId> {
        let Some(target) = self.targets.get(target) else { return Vec::new() };
        let named: Vec<VolumeId> = if target.resource_arns.is_empty() {
            let all = model.volumes.values().filter(|volume| volume.is_shown());
            all.filter(|volume| target.has_tags(volume)).map(|volume| volume.id).collect()
        } else {
            let ids = target.resource_arns.iter().filter_map(|arn| volume_of(arn, settings));
            ids.filter(|id| model.volumes.contains_key(id)).collect()
        };
        target.select(named, seed)
    }
}

impl Target {
    fn check(&self, name: &str, settings: &Settings) -> Result<(), FisError> {
        if self.resource_type != VOLUME_TYPE {
            let resource_type = marked(&self.resource_type);
            let text = format!("resourceType {resource_type} ({VOLUME_TYPE} is)");
            return Err(FisError::unsupported(&text));
        }
        if !self.filters.is_empty() {
            return Err(FisError::unsupported("filters of targets"));
        }
        if let Some(parameter) = self.parameters.keys().next() {
            let parameter = marked(parameter);
            return Err(FisError::unsupported(&format!("the parameter {parameter} of targets")));
        }
        if self.resource_arns.is_empty() == self.resource_tags.is_empty() {
            let text = format!("the target {name} needs either resourceArns or resourceTags");
            return Err(FisError::invalid(text));
        }
        if self.resource_arns.len() > ARNS_MAX {
            let count = self.resource_arns.len();
            let text = format!(
                "the target {name} has {count} resourceArns, and {ARNS_MAX} is the maximum; use \
                 resourceTags for more volumes"
            );
            return Err(FisError::invalid(text));
        }
        if let Some(other) =
            self.resource_arns.iter().find(|arn| volume_of(arn, settings).is_none())
        {
            let Settings { region, account, .. } = settings;
            let other = marked(other);
            let text = format!(
                "the target {name} names {other}; the ARN of a volume here is \
                 arn:aws:ec2:{region}:{account}:volume/vol-..."
            );
            return Err(FisError::invalid(text));
        }
        check_tags(&self.resource_tags)?;
        self.selection(name).map(drop)
    }

    fn selection(&self, name: &str) -> Result<Selection, FisError> {
        let mode = self.selection_mode.as_str();
        let argument = |kind: &str, max: usize| {
            let inner = mode.strip_prefix(kind)?.strip_prefix('(')?.strip_suffix(')')?;
            inner.parse().ok().filter(|number| (1..=max).contains(number))
        };
        let selection = match mode {
            "ALL" => Some(Selection::All),
            _ => argument("COUNT", usize::from(u16::MAX))
                .map(Selection::Count)
                .or_else(|| argument("PERCENT", 100).map(Selection::Percent)),
        };
        selection.ok_or_else(|| {
            let mode = marked(mode);
            FisError::invalid(format!(
                "selectionMode of the target {name} is {mode}; it must be ALL, COUNT(n) or \
                 PERCENT(n)"
            ))
        })
    }

    fn has_tags(&self, volume: &Volume) -> bool {
        self.resource_tags.iter().all(|(key, value)| volume.tags.get(key) == Some(value))
    }

    fn select(&self, mut named: Vec<VolumeId>, seed: u64) -> Vec<VolumeId> {
        let all = named.len();
        let count = match self.selection("") {
            Ok(Selection::Count(count)) => count.min(all),
            // Rounded down, as FIS does, but one at least.
            Ok(Selection::Percent(percent)) => (all * percent / 100).max(1).min(all),
            _ => return named,
        };
        named.sort_by_key(|id| Random::of_volume(seed, *id).next_u64());
        named.truncate(count);
        named
    }
}

/// Returns the volume that an ARN names, if it is one of this account.
fn volume_of(arn: &str, settings: &Settings) -> Option<VolumeId> {
    let Settings { region, account, .. } = settings;
    let prefix = format!("arn:aws:ec2:{region}:{account}:volume/");
    arn.strip_prefix(&prefix)?.parse().ok()
}

fn duration_of(name: &str, rest: &mut BTreeMap<String, String>) -> Result<u64, FisError> {
    let text = rest.remove("duration").ok_or_else(|| {
        FisError::invalid(format!("the action {name} needs the parameter duration"))
    })?;
    let seconds = duration::seconds(&text).filter(|s| (1..=DURATION_S_MAX).contains(s));
    seconds.map(|seconds| seconds * 1_000).ok_or_else(|| {
        let text = marked(&text);
        FisError::invalid(format!(
            "duration of the action {name} is {text}; it must be PT1S to PT12H in the form of ISO \
             8601"
        ))
    })
}

/// Reads the part of one direction, `read` or `write`; a part without I/O if it is absent.
fn part(
    name: &str,
    direction: &str,
    rest: &mut BTreeMap<String, String>,
) -> Result<Part, FisError> {
    let [share_name, latency_name] =
        ["IOPercentage", "IOLatencyMilliseconds"].map(|end| format!("{direction}{end}"));
    let share = rest.remove(&share_name);
    let latency = rest.remove(&latency_name);
    if share.is_none() && latency.is_none() {
        return Ok(Part::default());
    }
    let both = format!("the action {name} needs both {share_name} and {latency_name}");
    let share = share.ok_or_else(|| FisError::invalid(both.clone()))?;
    let latency = latency.ok_or_else(|| FisError::invalid(both))?;
    let ppm = ppm(&share).filter(|ppm| (SHARE_PPM_MIN..=WHOLE_PPM).contains(ppm));
    let ppm = ppm.ok_or_else(|| {
        let share = marked(&share);
        FisError::invalid(format!(
            "{share_name} of the action {name} is {share}; it must be 0.1 to 100"
        ))
    })?;
    let latency_ms = latency.parse().ok().filter(|ms| (1..=LATENCY_MS_MAX).contains(ms));
    let latency_ms = latency_ms.ok_or_else(|| {
        let latency = marked(&latency);
        FisError::invalid(format!(
            "{latency_name} of the action {name} is {latency}; it must be 1 to {LATENCY_MS_MAX}"
        ))
    })?;
    Ok(Part { ppm, latency_ms })
}

/// Reads a percentage with up to four decimals, in parts of a million.
fn ppm(text: &str) -> Option<u32> {
    let (whole, decimals) = text.split_once('.').unwrap_or((text, ""));
    let is_plain = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
    if whole.is_empty() || decimals.len() > 4 || !is_plain(whole) || !is_plain(decimals) {
        return None;
    }
    let whole: u32 = whole.parse().ok().filter(|whole| *whole <= 100)?;
    let decimals: u32 = format!("{decimals:0<4}").parse().ok()?;
    Some(whole * PERCENT_PPM + decimals)
}

/// Checks a token that makes a request harmless to repeat.
pub(super) fn token_is_legal(token: &str) -> Result<(), FisError> {
    check_length("clientToken", token, 1, TOKEN_MAX)
}

/// Checks tags.
pub(super) fn check_tags(tags: &Tags) -> Result<(), FisError> {
    if tags.len() > TAGS_MAX {
        let count = tags.len();
        let text = format!("there are {count} tags, and {TAGS_MAX} is the maximum");
        return Err(FisError::invalid(text));
    }
    for (key, value) in tags {
        check_length("the key of a tag", key, 1, 128)?;
        if key.starts_with("aws:") {
            let key = marked(key);
            let text = format!("the key of a tag is {key}; keys that begin with aws: are reserved");
            return Err(FisError::invalid(text));
        }
        check_length("the value of a tag", value, 0, 256)?;
    }
    Ok(())
}

fn name_is_short(what: &str, name: &str) -> Result<(), FisError> {
    check_length(&format!("a name in {what}"), name, 1, NAME_MAX)
}

fn check_length(what: &str, text: &str, min: usize, max: usize) -> Result<(), FisError> {
    let length = text.chars().count();
    if (min..=max).contains(&length) {
        return Ok(());
    }
    let text = format!("{what} has {length} characters; it must have {min} to {max}");
    Err(FisError::invalid(text))
}

/// Returns a text of a request as messages show it: quoted and shortened.
fn marked(text: &str) -> String {
    format!("'{}'", text.chars().take(NAME_MAX).collect::<String>())
}
