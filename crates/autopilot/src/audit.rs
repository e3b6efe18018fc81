//! The lines of the audit: a decision with all of its inputs, and the results of its steps.
//!
//! A line of a decision is written before its first step, and a line of results after its last
//! one. So a decision without results was interrupted, or had no steps.

use crate::Fault;
use evenkeel_planner::autopilot::observation::Observation;
use evenkeel_planner::autopilot::policy::{Mode, Policy};
use evenkeel_planner::autopilot::state::State;
use evenkeel_planner::autopilot::{Decision, Step, decide};
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use sha2::{Digest, Sha256};

/// The number of the form of these lines.
pub const FORM: u32 = 1;

/// The line of a decision.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Decided {
    /// [`FORM`].
    pub form: u32,
    /// The id of the decision.
    pub id: String,
    /// Its time, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The UUID of the file system.
    pub uuid: String,
    /// The group of the policy.
    pub group: String,
    /// The mode of the group.
    pub mode: String,
    /// The region of the price list, and its date.
    pub prices: (String, String),
    /// The date of the rules of volumes.
    pub rules: String,
    /// SHA-256 of the policy's text, in hexadecimal digits: the name of its copy.
    pub policy: String,
    /// Whether the autopilot was paused by a person.
    pub paused: bool,
    /// SHA-256 of the inputs, in hexadecimal digits: the policy's digest, whether it was paused,
    /// the observation and the state, each with a newline.
    pub inputs: String,
    /// The observation.
    pub observation: Box<RawValue>,
    /// The state before.
    pub state: Box<RawValue>,
    /// The decision.
    pub decision: Box<RawValue>,
}

/// The line of the steps of a tick.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Done {
    /// [`FORM`].
    pub form: u32,
    /// The decision after which they were executed.
    pub after: String,
    /// Their time, in milliseconds since 1970.
    pub unix_ms: u64,
    /// The steps.
    pub steps: Vec<Executed>,
}

/// A step and its result.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Executed {
    /// The operation, `pace`, or `reserve` for the agent's own rule.
    pub operation: String,
    /// The step.
    pub step: Step,
    /// Why it failed; `None` if it succeeded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<String>,
}

/// The inputs of a decision.
#[derive(Clone, Copy, Debug)]
pub struct Inputs<'a> {
    /// The policy.
    pub policy: &'a Policy,
    /// SHA-256 of its text, in hexadecimal digits.
    pub digest: &'a str,
    /// The observation.
    pub observation: &'a Observation,
    /// The state before.
    pub state: &'a State,
}

/// Returns the line of a decision.
///
/// # Errors
/// If a value has no JSON.
pub fn decided(inputs: &Inputs<'_>, decision: &Decision) -> Result<String, Fault> {
    let observation = raw(inputs.observation)?;
    let state = raw(inputs.state)?;
    let line = Decided {
        form: FORM,
        id: decision.id.clone(),
        unix_ms: decision.unix_ms,
        uuid: inputs.observation.file_system.uuid.clone(),
        group: inputs.policy.name.clone(),
        mode: mode(inputs.policy.mode).to_owned(),
        prices: prices(inputs.policy),
        rules: inputs.policy.plan.rules.date().to_string(),
        policy: inputs.digest.to_owned(),
        paused: inputs.policy.is_paused,
        inputs: digest_of(inputs.digest, inputs.policy.is_paused, &observation, &state),
        observation,
        state,
        decision: raw(decision)?,
    };
    text(&line)
}

/// Returns the name of a mode, as in files of policies.
#[must_use]
pub const fn mode(mode: Mode) -> &'static str {
    match mode {
        Mode::Observe => "observe",
        Mode::Advise => "advise",
        Mode::Act => "act",
    }
}

fn prices(policy: &Policy) -> (String, String) {
    let list = policy.plan.prices.list();
    (list.region().to_owned(), list.date().to_string())
}

/// Returns the line of steps.
///
/// # Errors
/// If a value has no JSON.
pub fn executed(
    after: &str,
    unix_ms: u64,
    steps: &[(String, Step, Option<Fault>)],
) -> Result<String, Fault> {
    let steps = steps.iter().map(|(operation, step, fault)| Executed {
        operation: operation.clone(),
        step: step.clone(),
        fault: fault.as_ref().map(ToString::to_string),
    });
    let after = after.to_owned();
    text(&Done { form: FORM, after, unix_ms, steps: steps.collect() })
}

fn text<T: Serialize>(value: &T) -> Result<String, Fault> {
    serde_json::to_string(value).map_err(|error| Fault::Refused(format!("the audit: {error}")))
}

fn raw<T: Serialize>(value: &T) -> Result<Box<RawValue>, Fault> {
    let no_json = |error| Fault::Refused(format!("the audit: {error}"));
    serde_json::value::to_raw_value(value).map_err(no_json)
}

fn digest_of(policy: &str, paused: bool, observation: &RawValue, state: &RawValue) -> String {
    let paused = paused.to_string();
    let mut hash = Sha256::new();
    for part in [policy, &paused, observation.get(), state.get()] {
        hash.update(part.as_bytes());
        hash.update(b"\n");
    }
    hexadecimal(&hash.finalize())
}

/// Returns SHA-256 of a text, in hexadecimal digits.
#[must_use]
pub fn digest(text: &str) -> String {
    hexadecimal(&Sha256::digest(text.as_bytes()))
}

fn hexadecimal(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The result of a replay.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Replayed {
    /// The decision has the bytes that were recorded.
    Same,
    /// It differs; its text.
    Differs(String),
}

/// Reads the line of a decision.
///
/// # Errors
/// If it is none, is of another form, or its inputs do not have their digest.
pub fn read(line: &str) -> Result<Decided, String> {
    let decided: Decided =
        serde_json::from_str(line).map_err(|error| format!("no line of a decision: {error}"))?;
    if decided.form != FORM {
        return Err(format!(
            "the line has the form {}, and this program reads {FORM}; use the version that wrote \
             it",
            decided.form
        ));
    }
    let Decided { policy, paused, observation, state, .. } = &decided;
    let inputs = digest_of(policy, *paused, observation, state);
    if inputs != decided.inputs {
        return Err(format!(
            "the inputs of {} have the digest {inputs}, and {} was recorded: the line was changed",
            decided.id, decided.inputs
        ));
    }
    Ok(decided)
}

/// Decides again from the inputs of a line, and compares the bytes. `policy` is that of the line's
/// group, from the text with the line's digest.
///
/// # Errors
/// If the inputs cannot be read.
pub fn replay(decided: &Decided, policy: &Policy) -> Result<Replayed, String> {
    let observation: Observation = part("observation", &decided.observation)?;
    let state: State = part("state", &decided.state)?;
    let mut policy = policy.clone();
    policy.is_paused = decided.paused;
    let (decision, _) = decide(&policy, &observation, &state);
    let text = serde_json::to_string(&decision).map_err(|error| error.to_string())?;
    if text == decided.decision.get() {
        return Ok(Replayed::Same);
    }
    Ok(Replayed::Differs(text))
}

/// Reads a part of a line.
///
/// # Errors
/// If it does not have its form.
pub fn part<T: for<'de> Deserialize<'de>>(name: &str, raw: &RawValue) -> Result<T, String> {
    serde_json::from_str(raw.get()).map_err(|error| format!("the {name} of the line: {error}"))
}
