//! The API of AWS FIS for the faults of EBS, of a server for tests: templates of experiments, and
//! experiments that pause I/O of volumes or make it slow, over REST and JSON.
//!
//! [`Operation::of`] finds the operation of a request, [`Api::prepare_fis`] verifies its signature,
//! and [`Api::run_fis`] executes it. `docs/operating/test_server.md` lists the supported elements.

mod duration;
mod error;
pub mod experiments;
mod template;

use std::collections::BTreeSet;
use std::net::IpAddr;

use evenkeel_core::ids::VolumeId;
use evenkeel_wire::aws::query::{self, Params};
use evenkeel_wire::aws::sigv4::{self, Verified};
use serde::Deserialize;
use serde_json::{Value, json};

pub use self::error::FisError;
use self::experiments::{Created, Experiment, PLACE_DIGITS, Run, Start, Status};
use self::template::{Step, Template};
use crate::api::error::ApiError;
use crate::api::{Api, Denied};
use crate::direct::{Answer, seconds};
use crate::faults::FaultRefusal;
use crate::model::Tags;
use crate::plane::PlaneError;
use crate::random;
use crate::rights::Caller;
use crate::rights::table::{EXPERIMENT, FIS_ACTION, TEMPLATE};
use crate::trail::Asked;
use evenkeel_os::clock;

/// The name of the service in signatures.
pub const SERVICE: &str = "fis";
/// Number of results in a page, and its maximum.
const RESULTS: usize = 100;
/// Number of random letters in an id.
const ID_LETTERS: usize = 13;
/// The beginning of the ids of templates.
const TEMPLATE_ID: &str = "EXT";
/// Maximum number of volumes of an experiment that a record names.
const VOLUMES_NAMED_MAX: usize = 500;

/// An operation, with the id in its path.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Operation {
    /// CreateExperimentTemplate
    CreateTemplate,
    /// GetExperimentTemplate
    GetTemplate(String),
    /// ListExperimentTemplates
    ListTemplates,
    /// DeleteExperimentTemplate
    DeleteTemplate(String),
    /// StartExperiment
    Start,
    /// GetExperiment
    Get(String),
    /// ListExperiments
    List,
    /// StopExperiment
    Stop(String),
}

impl Operation {
    /// Returns the operation of a request; `None` if there is none.
    #[must_use]
    pub fn of(method: &str, path: &str) -> Option<Self> {
        let mut parts = path.strip_prefix('/')?.split('/');
        let kind = parts.next()?;
        let id = parts.next();
        if parts.next().is_some() || id == Some("") {
            return None;
        }
        let id = id.map(str::to_owned);
        Some(match (method, kind, id) {
            ("POST", "experimentTemplates", None) => Self::CreateTemplate,
            ("GET", "experimentTemplates", None) => Self::ListTemplates,
            ("GET", "experimentTemplates", Some(id)) => Self::GetTemplate(id),
            ("DELETE", "experimentTemplates", Some(id)) => Self::DeleteTemplate(id),
            ("POST", "experiments", None) => Self::Start,
            ("GET", "experiments", None) => Self::List,
            ("GET", "experiments", Some(id)) => Self::Get(id),
            ("DELETE", "experiments", Some(id)) => Self::Stop(id),
            _ => return None,
        })
    }

    /// Returns its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::CreateTemplate => "CreateExperimentTemplate",
            Self::GetTemplate(_) => "GetExperimentTemplate",
            Self::ListTemplates => "ListExperimentTemplates",
            Self::DeleteTemplate(_) => "DeleteExperimentTemplate",
            Self::Start => "StartExperiment",
            Self::Get(_) => "GetExperiment",
            Self::List => "ListExperiments",
            Self::Stop(_) => "StopExperiment",
        }
    }

    /// Returns whether it changes anything.
    #[must_use]
    pub const fn mutates(&self) -> bool {
        matches!(self, Self::CreateTemplate | Self::DeleteTemplate(_) | Self::Start | Self::Stop(_))
    }
}

/// An authentic request.
pub struct PreparedFis {
    /// Its operation.
    pub operation: Operation,
    query: String,
    body: Vec<u8>,
    verified: Verified,
    caller: Caller,
}

/// The request of StartExperiment.
#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct StartRequest {
    client_token: String,
    experiment_template_id: String,
    #[serde(default)]
    tags: Tags,
    experiment_options: Option<StartOptions>,
}

#[derive(Deserialize, Debug)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct StartOptions {
    actions_mode: Option<String>,
}

impl Api {
    /// Checks the signature of a request from `address`.
    ///
    /// # Errors
    /// Those of signatures.
    pub fn prepare_fis(
        &self,
        operation: Operation,
        request: &sigv4::Request<'_>,
        address: IpAddr,
    ) -> Result<PreparedFis, ApiError> {
        let (verified, caller) = self.verify(request, SERVICE, address)?;
        let query = request.query.to_owned();
        let body = request.body.to_vec();
        Ok(PreparedFis { operation, query, body, verified, caller })
    }

    /// Checks whether the request may be executed now: each signature makes one change.
    ///
    /// # Errors
    /// See [`Denied`].
    pub fn admit_fis(&self, prepared: &PreparedFis) -> Result<(), Denied> {
        if prepared.operation.mutates() {
            self.replays().take(&prepared.verified, clock::unix_ms())
        } else {
            Ok(())
        }
    }

    /// Executes a request.
    ///
    /// # Errors
    /// Those of FIS.
    pub fn run_fis(&self, prepared: &PreparedFis, request_id: &str) -> Result<Answer, FisError> {
        let PreparedFis { operation, query, body, caller, .. } = prepared;
        let named = self.named(operation, body)?;
        let action = operation.name();
        let asked = Asked {
            caller,
            service: SERVICE,
            action,
            is_read_only: !operation.mutates(),
            params: &named,
            request_id,
        };
        self.recorded(&asked, || {
            self.authorize(&asked)?;
            self.execute_fis(operation, query, body)
        })
    }

    /// Returns what rights and records know of a request: the ARNs of its resources, its tags, and
    /// the volumes that it concerns. A body that is refused later adds none.
    ///
    /// # Errors
    /// The request is too long.
    fn named(&self, operation: &Operation, body: &[u8]) -> Result<Params, FisError> {
        let template = |id: &str| (TEMPLATE.to_owned(), self.arn("experiment-template", id));
        let experiment = |id: &str| (EXPERIMENT.to_owned(), self.arn("experiment", id));
        let pairs = match operation {
            Operation::CreateTemplate => {
                let mut pairs = vec![template("*")];
                if let Ok(read) = Template::read(body, &self.plane().settings) {
                    let actions = read.action_ids().into_iter().zip(1_u32..);
                    pairs.extend(actions.map(|(id, number)| {
                        (format!("{FIS_ACTION}.{number}"), self.arn("action", id))
                    }));
                    pairs.extend(tag_pairs("Tag", read.tags()));
                    pairs.extend(volume_pairs(&read.named_volumes(&self.plane().settings)));
                    pairs.extend(tag_pairs("TargetTag", &read.target_tags()));
                }
                pairs
            }
            Operation::GetTemplate(id) | Operation::DeleteTemplate(id) => vec![template(id)],
            Operation::Start => match serde_json::from_slice::<StartRequest>(body) {
                Ok(request) => {
                    let id = &request.experiment_template_id;
                    let mut pairs = vec![template(id), experiment("*")];
                    pairs.extend(tag_pairs("Tag", &request.tags));
                    if let Ok(Created { template, .. }) = self.plane().experiments().template(id) {
                        let volumes = self.targets_of(&template, seed_of(body));
                        pairs.extend(volume_pairs(&volumes));
                        pairs.extend(tag_pairs("ExperimentTemplateTag", template.tags()));
                    }
                    pairs
                }
                Err(_) => vec![template("*"), experiment("*")],
            },
            Operation::Get(id) | Operation::Stop(id) => vec![experiment(id)],
            Operation::ListTemplates | Operation::List => vec![],
        };
        let pairs = pairs.iter().map(|(name, value)| (name.as_str(), value.as_str()));
        let decoded = Params::decode(query::encode(pairs).as_bytes());
        decoded.map_err(|error| FisError::invalid(error.to_string()))
    }

    /// Returns the volumes that an experiment of a template would concern now.
    fn targets_of(&self, template: &Template, seed: u64) -> BTreeSet<VolumeId> {
        let plane = self.plane();
        let model = plane.model();
        let settings = &plane.settings;
        let steps = template.steps().unwrap_or_default();
        let targets = steps.iter().filter_map(Step::target);
        targets.flat_map(|target| template.volumes(target, seed, &model, settings)).collect()
    }

    fn arn(&self, kind: &str, id: &str) -> String {
        let settings = &self.plane().settings;
        format!("arn:aws:fis:{}:{}:{kind}/{id}", settings.region, settings.account)
    }

    fn execute_fis(
        &self,
        operation: &Operation,
        query: &str,
        body: &[u8],
    ) -> Result<Answer, FisError> {
        let plane = self.plane();
        let faults = plane.faults();
        let all = plane.experiments();
        let now = plane.now();
        if !faults.is_test() {
            return Err(FisError::not_a_test(&FaultRefusal::NotATest.to_string()));
        }
        let template =
            |created: &Created| json!({ "experimentTemplate": self.of_template(created) });
        let experiment = |found: &Experiment| json!({ "experiment": self.of_experiment(found) });
        let value = match operation {
            Operation::CreateTemplate => {
                let read = Template::read(body, &plane.settings)?;
                let key = (id(TEMPLATE_ID)?, sigv4::sha256_hex(body));
                template(&all.create(key, read, now)?)
            }
            Operation::GetTemplate(id) => template(&all.template(id)?),
            Operation::DeleteTemplate(id) => template(&all.delete(id)?),
            Operation::ListTemplates => {
                let page = Page::read(query, false)?;
                let list = all.templates();
                let list = list.iter().map(|created| (created.id.clone(), summary(self, created)));
                page.of("experimentTemplates", list.collect())
            }
            Operation::Start => {
                let start = start(body)?;
                let settings = &plane.settings;
                let seed = seed_of(body);
                let volumes = |template: &Template, target: &str| {
                    template.volumes(target, seed, &plane.model(), settings)
                };
                experiment(&all.start(id("EXP")?, start, now, faults, volumes)?)
            }
            Operation::Get(id) => experiment(&all.experiment(id, now, faults)?),
            Operation::Stop(id) => experiment(&all.stop(id, now, faults)?),
            Operation::List => {
                let page = Page::read(query, true)?;
                let list = all.experiments(now, faults);
                let of_template = page.template.clone();
                let wanted = list.iter().filter(|experiment| {
                    of_template.as_ref().is_none_or(|id| *id == experiment.template_id)
                });
                let list = wanted.map(|found| (found.place(), self.head_of_experiment(found)));
                page.of("experiments", list.collect())
            }
        };
        Ok(Answer::json(200, &value))
    }

    fn of_template(&self, Created { id, template, at, .. }: &Created) -> Value {
        let mut value = template.json();
        value["id"] = id.as_str().into();
        value["arn"] = self.arn("experiment-template", id).into();
        value["creationTime"] = seconds(*at);
        value["lastUpdateTime"] = seconds(*at);
        value
    }

    fn head_of_experiment(&self, experiment: &Experiment) -> Value {
        let Experiment { id, template_id, tags, at, status, reason, .. } = experiment;
        let mut state = json!({ "status": status.name(), "reason": reason });
        if *status == Status::Failed {
            state["error"] = json!({
                "accountId": self.plane().settings.account,
                "code": "TargetResolutionError",
            });
        }
        json!({
            "id": id,
            "arn": self.arn("experiment", id),
            "experimentTemplateId": template_id,
            "state": state,
            "creationTime": seconds(*at),
            "tags": tags,
            "experimentOptions": experiment.template.json()["experimentOptions"],
        })
    }

    fn of_experiment(&self, experiment: &Experiment) -> Value {
        let mut value = self.head_of_experiment(experiment);
        let template = experiment.template.json();
        for name in ["targets", "actions", "stopConditions", "roleArn"] {
            value[name] = template[name].clone();
        }
        for run in &experiment.runs {
            let action = &mut value["actions"][run.name()];
            let Run { status, since, until, .. } = run;
            action["state"] = json!({ "status": status.name() });
            let times = [("startTime", since), ("endTime", until)];
            for (name, at) in times.into_iter().filter_map(|(name, at)| Some((name, (*at)?))) {
                action[name] = seconds(at);
            }
        }
        value["experimentOptions"]["actionsMode"] = "run-all".into();
        value["startTime"] = seconds(experiment.at);
        if let Some(until) = experiment.until {
            value["endTime"] = seconds(until);
        }
        value
    }
}

/// Returns tags as parameters in EC2's form.
fn tag_pairs(list: &str, tags: &Tags) -> Vec<(String, String)> {
    let pairs = tags.iter().zip(1_u32..).flat_map(|((key, value), number)| {
        let name = |part: &str| format!("{list}.{number}.{part}");
        [(name("Key"), key.clone()), (name("Value"), value.clone())]
    });
    pairs.collect()
}

/// Returns volumes as parameters in EC2's form; of many the first.
fn volume_pairs(volumes: &BTreeSet<VolumeId>) -> Vec<(String, String)> {
    let named = volumes.iter().zip(1_u32..).take(VOLUMES_NAMED_MAX);
    let mut pairs: Vec<(String, String)> =
        named.map(|(id, number)| (format!("VolumeId.{number}"), id.to_string())).collect();
    if let Some(more @ 1..) = volumes.len().checked_sub(VOLUMES_NAMED_MAX) {
        pairs.push(("VolumesLeftOut".to_owned(), more.to_string()));
    }
    pairs
}

/// Returns the seed by which StartExperiment selects volumes. A repeated request selects the same.
fn seed_of(body: &[u8]) -> u64 {
    let hash = sigv4::sha256_hex(body);
    hash.bytes().fold(0, |seed: u64, byte| seed.rotate_left(5) ^ u64::from(byte))
}

fn summary(api: &Api, created: &Created) -> Value {
    let Created { id, template, at, .. } = created;
    json!({
        "id": id,
        "arn": api.arn("experiment-template", id),
        "description": template.description(),
        "creationTime": seconds(*at),
        "lastUpdateTime": seconds(*at),
        "tags": template.tags(),
    })
}

fn start(body: &[u8]) -> Result<Start, FisError> {
    let request: StartRequest = serde_json::from_slice(body)
        .map_err(|error| FisError::invalid(format!("the body is no request: {error}")))?;
    let StartRequest { client_token, experiment_template_id, tags, experiment_options } = request;
    template::token_is_legal(&client_token)?;
    template::check_tags(&tags)?;
    let mode = experiment_options.and_then(|options| options.actions_mode);
    if mode.is_some_and(|mode| mode != "run-all") {
        return Err(FisError::unsupported("actionsMode other than run-all"));
    }
    let fingerprint = sigv4::sha256_hex(body);
    Ok(Start { token: client_token, fingerprint, template_id: experiment_template_id, tags })
}

/// Returns a new id.
fn id(prefix: &str) -> Result<String, FisError> {
    let letters = random::text(ID_LETTERS, random::LETTERS).map_err(PlaneError::from);
    let letters = letters.map_err(|error| FisError::internal(&error.to_string()))?;
    Ok(format!("{prefix}{letters}"))
}

/// Returns whether a text has the form of an experiment's place.
fn is_place(text: &str) -> bool {
    text.len() == PLACE_DIGITS && text.bytes().all(|byte| byte.is_ascii_digit())
}

/// Returns whether a text has the form of a template's id.
fn is_template_id(text: &str) -> bool {
    let letters = text.strip_prefix(TEMPLATE_ID).unwrap_or_default();
    letters.len() == ID_LETTERS && letters.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// The page of a list that a request asks for.
struct Page {
    results: usize,
    /// The key of the last entry before it.
    after: Option<String>,
    /// The template of the experiments.
    template: Option<String>,
}

impl Page {
    fn read(query: &str, is_of_experiments: bool) -> Result<Self, FisError> {
        let invalid = |text: String| FisError::invalid(text);
        let mut params =
            Params::decode(query.as_bytes()).map_err(|error| invalid(error.to_string()))?;
        params.retain(|name| !name.starts_with("X-Amz-"));
        let results = match params.take("maxResults") {
            None => RESULTS,
            Some(text) => {
                text.parse().ok().filter(|n| (1..=RESULTS).contains(n)).ok_or_else(|| {
                    invalid(format!("maxResults is '{text}'; it must be 1 to {RESULTS}"))
                })?
            }
        };
        let after = params.take("nextToken");
        let is_key = if is_of_experiments { is_place } else { is_template_id };
        if let Some(text) = after.as_ref().filter(|text| !is_key(text)) {
            let text: String = text.chars().take(64).collect();
            return Err(invalid(format!("nextToken is '{text}', which no earlier page had")));
        }
        let template = if is_of_experiments { params.take("experimentTemplateId") } else { None };
        match params.first_name() {
            None => Ok(Self { results, after, template }),
            Some(name) => Err(invalid(format!("the parameter {name} is unknown"))),
        }
    }

    /// Returns the page of all entries, which ascend by their keys. The entry of the token may be
    /// gone.
    fn of(self, name: &str, all: Vec<(String, Value)>) -> Value {
        let is_before = |key: &String| self.after.as_ref().is_some_and(|after| key <= after);
        let mut rest = all.into_iter().skip_while(|(key, _)| is_before(key));
        let page: Vec<(String, Value)> = rest.by_ref().take(self.results).collect();
        let last = page.last().map(|(key, _)| key.clone()).filter(|_| rest.next().is_some());
        let values: Vec<Value> = page.into_iter().map(|(_, value)| value).collect();
        let mut value = json!({ name: values });
        if let Some(last) = last {
            value["nextToken"] = last.into();
        }
        value
    }
}

#[cfg(test)]
mod tests;
