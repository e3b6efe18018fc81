//! Templates that are refused, the order and the times of actions, bounds, tokens and pages.

use std::sync::{Arc, Mutex};

use evenkeel_core::ids::VolumeId;
use evenkeel_core::io_fault::{IoFault, IoFaultKind};
use evenkeel_core::time::UnixMs;
use evenkeel_core::volume::{VolumeRequest, VolumeType};

use super::experiments::{EXPERIMENTS_MAX, Experiments, RUNNING_MAX, Status, TEMPLATES_MAX};
use super::*;
use crate::faults::{FAULTS_MAX, FaultSpec, FaultType, Faults, IoFaults, Part};
use crate::model::{Event, Model, Settings, Volume};

const VOLUME: VolumeId = VolumeId::from_bits(7);
const PAUSE: &str = "aws:ebs:pause-volume-io";
const LATENCY: &str = "aws:ebs:volume-io-latency";

#[derive(Debug, Default)]
struct Io(Mutex<Vec<IoFault>>);

impl IoFaults for Io {
    fn set(&self, faults: Vec<IoFault>) {
        *self.0.lock().unwrap() = faults;
    }

    fn hits(&self) -> Vec<(u64, u64)> {
        Vec::new()
    }
}

impl Io {
    fn kinds(&self) -> Vec<IoFaultKind> {
        self.0.lock().unwrap().iter().map(|fault| fault.kind).collect()
    }
}

fn arn() -> String {
    let Settings { region, account, .. } = Settings::default();
    format!("arn:aws:ec2:{region}:{account}:volume/{VOLUME}")
}

fn action(action_id: &str, duration: &str, after: &[&str]) -> Value {
    let mut action = json!({
        "actionId": action_id, "parameters": { "duration": duration }, "startAfter": after });
    if action_id != "aws:fis:wait" {
        action["targets"] = json!({ "Volumes": "some" });
    }
    action
}

fn template(actions: &Value) -> Value {
    json!({
        "clientToken": "t",
        "description": "d",
        "stopConditions": [{ "source": "none" }],
        "targets": { "some": {
            "resourceType": "aws:ec2:ebs-volume", "resourceArns": [arn()], "selectionMode": "ALL",
        } },
        "actions": actions,
        "roleArn": "arn:aws:iam::000000000000:role/fis",
    })
}

fn read(template: &Value) -> Result<Template, FisError> {
    Template::read(template.to_string().as_bytes(), &Settings::default())
}

/// Experiments over faults that only are counted.
struct World {
    io: Arc<Io>,
    faults: Faults,
    all: Experiments,
    volumes: Vec<VolumeId>,
}

impl World {
    fn new() -> Self {
        let io = Arc::<Io>::default();
        let faults = Faults::of_test(Arc::clone(&io) as Arc<dyn IoFaults>);
        Self { io, faults, all: Experiments::default(), volumes: vec![VOLUME] }
    }

    fn create(&self, id: &str, template: &Value) {
        let key = (id.to_owned(), template.to_string());
        self.all.create(key, read(template).unwrap(), UnixMs(0)).unwrap();
    }

    fn start(&self, id: &str, template: &str, now: u64) -> Result<Experiment, FisError> {
        let start = Start {
            token: format!("token of {id}"),
            fingerprint: template.to_owned(),
            template_id: template.to_owned(),
            tags: Tags::new(),
        };
        let volumes = |_: &Template, _: &str| self.volumes.clone();
        self.all.start(id.to_owned(), start, UnixMs(now), &self.faults, volumes)
    }

    fn statuses(&self, id: &str, now: u64) -> (Status, Vec<Status>) {
        let found = self.all.experiment(id, UnixMs(now), &self.faults).unwrap();
        (found.status, found.runs.iter().map(|run| run.status).collect())
    }
}

#[test]
fn a_path_and_a_method_are_one_operation_or_none() {
    let id = || "EXT1".to_owned();
    for (method, path, expected) in [
        ("POST", "/experimentTemplates", Some(Operation::CreateTemplate)),
        ("GET", "/experimentTemplates", Some(Operation::ListTemplates)),
        ("GET", "/experimentTemplates/EXT1", Some(Operation::GetTemplate(id()))),
        ("DELETE", "/experimentTemplates/EXT1", Some(Operation::DeleteTemplate(id()))),
        ("POST", "/experiments", Some(Operation::Start)),
        ("GET", "/experiments", Some(Operation::List)),
        ("GET", "/experiments/EXT1", Some(Operation::Get(id()))),
        ("DELETE", "/experiments/EXT1", Some(Operation::Stop(id()))),
        ("PATCH", "/experimentTemplates/EXT1", None),
        ("GET", "/experiments/", None),
        ("GET", "/experiments/EXT1/targets", None),
        ("DELETE", "/experiments", None),
        ("GET", "/actions", None),
    ] {
        assert_eq!(Operation::of(method, path), expected, "{method} {path}");
    }
}

#[test]
fn elements_that_are_not_executed_are_refused_by_their_names() {
    let good = template(&json!({ "p": action(PAUSE, "PT5M", &[]) }));
    assert!(read(&good).is_ok());
    let mut latency = action(LATENCY, "PT5M", &[]);
    latency["parameters"]["readIOPercentage"] = "0.1".into();
    latency["parameters"]["readIOLatencyMilliseconds"] = "200".into();
    let steps = read(&template(&json!({ "l": latency }))).unwrap().steps().unwrap();
    let reads = Part { ppm: 1_000, latency_ms: 200 };
    let kind = FaultType::VolumeIoLatency;
    let target = "some".to_owned();
    let writes = Part::default();
    assert_eq!(steps[0].work, template::Work::Fault { kind, reads, writes, target });
    let set = |pointer: &str, value: Value| {
        let mut changed = good.clone();
        let (parent, key) = pointer.rsplit_once('/').unwrap();
        changed.pointer_mut(parent).unwrap()[key] = value;
        changed
    };
    let long: String = "x".repeat(513);
    for (changed, reason) in [
        (set("/logConfiguration", json!({})), "not support logConfiguration"),
        (set("/experimentReportConfiguration", json!({})), "experimentReportConfiguration"),
        (set("/stopConditions/0/source", "aws:cloudwatch:alarm".into()), "'aws:cloudwatch:alarm'"),
        (set("/stopConditions/0/value", "arn:aws:cloudwatch:x".into()), "has no value"),
        (set("/experimentOptions", json!({ "accountTargeting": "multi-account" })), "'multi-acc"),
        (set("/targets/some/resourceType", "aws:ec2:instance".into()), "'aws:ec2:instance'"),
        (set("/targets/some/filters", json!([{ "path": "a", "values": [] }])), "filters"),
        (set("/targets/some/parameters", json!({ "availabilityZoneIdentifier": "a" })), "'availa"),
        (set("/targets/some/resourceArns", json!([])), "either resourceArns or resourceTags"),
        (set("/targets/some/resourceArns", json!(["arn:aws:ec2:eu:1:volume/vol-1"])), "ec2:eu:1"),
        (set("/targets/some/resourceArns", json!(vec![arn(); 6])), "has 6 resourceArns"),
        (set("/targets/some/selectionMode", "COUNT(0)".into()), "'COUNT(0)'"),
        (set("/actions/p/actionId", "aws:ec2:stop-instances".into()), "'aws:ec2:stop-instances'"),
        (set("/actions/p/parameters/duration", "5m".into()), "'5m'"),
        (set("/actions/p/parameters/duration", "PT13H".into()), "PT1S to PT12H"),
        (set("/actions/p/parameters/size", "1".into()), "the parameter 'size'"),
        (set("/actions/p/targets", json!({ "Instances": "some" })), "needs targets with Volumes"),
        (set("/actions/p/targets/Volumes", "other".into()), "needs targets with Volumes"),
        (set("/actions/p/startAfter", json!(["q"])), "'q', which is no action"),
        (set("/actions/p/startAfter", json!(["p"])), "waits for itself"),
        (set("/actions/p/actionId", LATENCY.into()), "needs readIOPercentage"),
        (set("/actions", json!({})), "actions is empty"),
        (set("/description", long.into()), "513 characters"),
        (set("/roleArn", "role".into()), "roleArn has 4 characters"),
        (set("/clientToken", "".into()), "clientToken has 0"),
        (set("/unknown", 1.into()), "unknown field `unknown`"),
        (set("/tags", json!({ "aws:team": "a" })), "'aws:team'; keys that begin with aws: are"),
    ] {
        let refused = read(&changed).expect_err(reason);
        assert_eq!((refused.status, refused.kind), (400, "ValidationException"));
        assert!(refused.message.contains(reason), "{reason}: {}", refused.message);
    }
    for (percent, latency, reason) in [
        ("0.05", "5", "must be 0.1 to 100"),
        ("100.1", "5", "must be 0.1 to 100"),
        ("1e1", "5", "must be 0.1 to 100"),
        ("10", "60001", "must be 1 to 60000"),
        ("10", "0", "must be 1 to 60000"),
    ] {
        let mut action = action(LATENCY, "PT5M", &[]);
        action["parameters"]["writeIOPercentage"] = percent.into();
        action["parameters"]["writeIOLatencyMilliseconds"] = latency.into();
        let refused = read(&template(&json!({ "l": action }))).expect_err(reason);
        assert!(refused.message.contains(reason), "{}", refused.message);
    }
}

use Status::{Cancelled, Completed, Pending, Running, Stopped};

#[test]
fn actions_begin_after_others_and_end_by_the_given_time() {
    let world = World::new();
    let actions = json!({
        "a": action(PAUSE, "PT1M", &[]),
        "b": action("aws:fis:wait", "PT2M", &["a"]),
        "c": action(PAUSE, "PT1M", &["b"]),
    });
    world.create("T", &template(&actions));
    let begun = world.start("E", "T", 1_000).unwrap();
    assert_eq!((begun.status, begun.at), (Status::Running, UnixMs(1_000)));
    assert_eq!(world.statuses("E", 60_999), (Running, vec![Running, Pending, Pending]));
    assert_eq!(world.io.kinds(), [IoFaultKind::Pause]);
    assert_eq!(world.statuses("E", 61_000), (Running, vec![Completed, Running, Pending]));
    assert!(world.io.kinds().is_empty());
    world.all.step(UnixMs(181_000), &world.faults);
    assert_eq!(world.io.kinds(), [IoFaultKind::Pause]);
    // Times are those of the actions, not of the looks.
    assert_eq!(world.statuses("E", 500_000), (Completed, vec![Completed; 3]));
    let ended = world.all.experiment("E", UnixMs(500_000), &world.faults).unwrap();
    assert_eq!((ended.until, ended.runs[2].since), (Some(UnixMs(241_000)), Some(UnixMs(181_000))));
    assert!(world.io.kinds().is_empty());
    // A stop ends what runs, and nothing else begins.
    world.start("F", "T", 500_000).unwrap();
    let stopped = world.all.stop("F", UnixMs(510_000), &world.faults).unwrap();
    assert_eq!((stopped.status, stopped.until), (Stopped, Some(UnixMs(510_000))));
    assert_eq!(world.statuses("F", 900_000), (Stopped, vec![Stopped, Cancelled, Cancelled]));
    assert!(world.io.kinds().is_empty());
    // A second stop changes nothing, and its fault may have been stopped before.
    world.start("G", "T", 900_000).unwrap();
    world.faults.stop(&[]).unwrap();
    assert_eq!(world.all.stop("G", UnixMs(900_001), &world.faults).unwrap().status, Stopped);
    assert_eq!(
        world.all.stop("G", UnixMs(900_009), &world.faults).unwrap().until,
        Some(UnixMs(900_001))
    );
}

#[test]
fn an_experiment_whose_fault_is_stopped_is_stopped() {
    let world = World::new();
    let actions = json!({
        "a": action(PAUSE, "PT5M", &[]),
        "b": action("aws:fis:wait", "PT5M", &["a"]),
    });
    world.create("T", &template(&actions));
    world.start("E", "T", 1_000).unwrap();
    let [(fault, end)] = world.all.ends().try_into().unwrap();
    assert_eq!(end, UnixMs(301_000), "the end of the action");
    world.faults.stop(&[fault]).unwrap();
    assert_eq!(world.statuses("E", 2_000), (Stopped, vec![Stopped, Cancelled]));
    let stopped = world.all.experiment("E", UnixMs(9_000), &world.faults).unwrap();
    assert_eq!(stopped.until, Some(UnixMs(2_000)));
    assert!(stopped.reason.contains("fault of the action a was stopped"), "{}", stopped.reason);
    assert_eq!(world.all.ends(), []);
}

#[test]
fn an_experiment_without_targets_fails_or_skips_as_its_template_says() {
    let mut world = World::new();
    world.volumes.clear();
    let mut template = template(&json!({ "a": action(PAUSE, "PT1M", &[]) }));
    world.create("fails", &template);
    let failed = world.start("E", "fails", 5).unwrap();
    assert_eq!((failed.status, failed.until), (Status::Failed, Some(UnixMs(5))));
    assert!(failed.reason.contains("empty set"));
    template["experimentOptions"] = json!({ "emptyTargetResolutionMode": "skip" });
    template["clientToken"] = "another".into();
    world.create("skips", &template);
    let skipped = world.start("F", "skips", 5).unwrap();
    assert_eq!((skipped.status, skipped.runs[0].status), (Status::Completed, Status::Skipped));
    assert!(world.io.kinds().is_empty());
}

#[test]
fn tokens_repeat_and_everything_has_a_bound() {
    let world = World::new();
    let mut long = template(&json!({ "a": action(PAUSE, "PT12H", &[]) }));
    world.create("T", &long);
    let again = world.all.create(("U".into(), long.to_string()), read(&long).unwrap(), UnixMs(9));
    assert_eq!(again.unwrap().id, "T");
    let other = world.all.create(("U".into(), "other".into()), read(&long).unwrap(), UnixMs(9));
    assert_eq!(other.unwrap_err().kind, "ConflictException");
    for number in 1..TEMPLATES_MAX {
        long["clientToken"] = format!("t{number}").into();
        world.create(&format!("T{number}"), &long);
    }
    long["clientToken"] = "one more".into();
    let full = world.all.create(("U".into(), "u".into()), read(&long).unwrap(), UnixMs(0));
    assert_eq!(full.unwrap_err().kind, "ServiceQuotaExceededException");
    world.all.delete("T1").unwrap();
    assert_eq!(world.all.delete("T1").unwrap_err().kind, "ResourceNotFoundException");
    for number in 0..RUNNING_MAX {
        world.start(&format!("E{number}"), "T", 0).unwrap();
    }
    assert_eq!(world.start("E0", "T", 0).unwrap().id, "E0");
    assert_eq!(world.start("E", "T", 0).unwrap_err().kind, "ServiceQuotaExceededException");
    for number in 0..EXPERIMENTS_MAX + 3 {
        let id = format!("E{number}");
        world.start(&id, "T", 0).unwrap();
        world.all.stop(&id, UnixMs(0), &world.faults).unwrap();
    }
    let left = world.all.experiments(UnixMs(0), &world.faults);
    assert_eq!(left.len(), EXPERIMENTS_MAX);
    assert!(left.iter().all(|left| left.id != "E0") && world.io.kinds().is_empty());
    // Faults have their own bound.
    let spec = FaultSpec {
        kind: FaultType::SnapshotError,
        volumes: vec![],
        actions: vec![],
        duration_s: 600,
        percent: 100,
        reads: Part::default(),
        writes: Part::default(),
        seed: 1,
    };
    for _ in 0..FAULTS_MAX {
        world.faults.start(spec.clone(), UnixMs(0)).unwrap();
    }
    let failed = world.start("last", "T", 0).unwrap();
    assert_eq!(failed.status, Status::Failed);
    assert!(failed.reason.contains("64 faults are in force"), "{}", failed.reason);
}

#[test]
fn targets_are_volumes_by_arn_or_by_tags_and_a_selection_of_them() {
    let settings = Settings::default();
    let spec = settings.rules.resolve(&VolumeRequest {
        volume_type: VolumeType::Gp3,
        size_gib: 1,
        iops: None,
        throughput_mibps: None,
        multi_attach: false,
    });
    let spec = spec.unwrap();
    let mut model = Model::default();
    for number in 0..10_u128 {
        let team = if number < 8 { "a" } else { "b" };
        let tags = [("team".to_owned(), team.to_owned())].into();
        let id = VolumeId::from_bits(number);
        let new = Volume::new(id, "local-1a", spec, UnixMs(0));
        model.apply(Event::Volume(Volume { tags, ..new }));
    }
    let chosen = |target: Value, seed| {
        let mut template = template(&json!({ "a": action(PAUSE, "PT1M", &[]) }));
        template["targets"]["some"] = target;
        template["targets"]["some"]["resourceType"] = "aws:ec2:ebs-volume".into();
        read(&template).unwrap().volumes("some", seed, &model, &settings)
    };
    let by_arn = json!({ "resourceArns": [arn()], "selectionMode": "ALL" });
    assert_eq!(chosen(by_arn, 1), [VOLUME]);
    let by_tag =
        |team: &str, mode: &str| json!({ "resourceTags": { "team": team }, "selectionMode": mode });
    assert_eq!(chosen(by_tag("a", "ALL"), 1).len(), 8);
    assert_eq!(chosen(by_tag("b", "ALL"), 1).len(), 2);
    assert_eq!(chosen(by_tag("c", "ALL"), 1).len(), 0);
    assert_eq!(chosen(by_tag("a", "PERCENT(50)"), 1).len(), 4);
    assert_eq!(chosen(by_tag("a", "PERCENT(1)"), 1).len(), 1);
    assert_eq!(chosen(by_tag("c", "PERCENT(50)"), 1).len(), 0);
    let three = chosen(by_tag("a", "COUNT(3)"), 1);
    assert_eq!((three.len(), &three), (3, &chosen(by_tag("a", "COUNT(3)"), 1)));
    assert!((2..9).any(|seed| chosen(by_tag("a", "COUNT(3)"), seed) != three));
}

#[test]
fn lists_have_pages() {
    let page = |query: &str, keys: [&str; 3]| {
        let entries = keys.map(|key| (key.to_owned(), json!({ "id": key })));
        Page::read(query, false).unwrap().of("experimentTemplates", entries.into())
    };
    let ids = |page: &Value| -> Vec<String> {
        let entries = page["experimentTemplates"].as_array().unwrap().iter();
        entries.map(|entry| entry["id"].as_str().unwrap().to_owned()).collect()
    };
    let [a, b, c, d] = ["A", "B", "C", "D"].map(|letter| format!("EXT{}", letter.repeat(13)));
    let all = [a.as_str(), b.as_str(), d.as_str()];
    assert_eq!(ids(&page("", all)), all);
    assert!(page("", all)["nextToken"].is_null());
    let first = page("maxResults=2", all);
    assert_eq!((ids(&first), first["nextToken"].as_str()), (vec![a.clone(), b.clone()], Some(&*b)));
    let next = format!("maxResults=2&nextToken={b}");
    assert_eq!(ids(&page(&next, all)), [d.as_str()]);
    // The template of the token is deleted between the pages, and another one is new.
    assert_eq!(ids(&page(&next, [&a, &c, &d])), [c.as_str(), d.as_str()]);
    for query in ["maxResults=0", "maxResults=101", "maxResults=x", "other=1", "nextToken=x"] {
        assert_eq!(Page::read(query, true).err().unwrap().kind, "ValidationException", "{query}");
    }
    assert!(Page::read(&format!("nextToken={a}"), true).is_err(), "of the other list");
    assert!(Page::read(&format!("nextToken={}", "0".repeat(20)), true).is_ok());
    assert!(Page::read(&format!("nextToken={}", "0".repeat(20)), false).is_err());
    assert!(Page::read("experimentTemplateId=E", false).is_err());
}
