//! The API of AWS, by the AWS CLI.

use super::form::{
    Attachment, Described, DescribedInstance, Measure, Modified, Request, modification, time_ms,
};
use super::{Api, Measured};
use crate::aws_cli::Aws;
use evenkeel_client::output::Failure;
use evenkeel_core::units::MIB;
use evenkeel_core::volume::{VolumeSpec, VolumeType};
use evenkeel_wire::aws::timestamp;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// The most metrics of a call: the words of a command are bounded.
const METRICS_MAX: usize = 100;
/// The step of the metrics, in seconds.
const STEP_S: u64 = 60;
/// Minutes after whose end a metric is complete.
const LATE_MS: u64 = 300_000;
/// Time between two readings of the metrics, in milliseconds: each minute has one value.
const METRICS_MS: u64 = 60_000;
const PPM_PER_PERCENT: f64 = 10_000.0;

/// The metrics of a volume, and the statistic of each.
const METRICS: [(&str, &str); 5] = [
    ("VolumeReadBytes", "Sum"),
    ("VolumeWriteBytes", "Sum"),
    ("VolumeIOPSExceededCheck", "Maximum"),
    ("VolumeThroughputExceededCheck", "Maximum"),
    ("BurstBalance", "Average"),
];
/// The place of the balance in [`METRICS`], which only some types have.
const BALANCE: usize = 4;

/// The policy of IAM with the actions that are needed. The changes may be limited to resources with
/// tags.
pub const RIGHTS: &str = r#"{
  "Version": "2012-10-17",
  "Statement": [
    {
      "Sid": "EvenkeelAgentObserves",
      "Effect": "Allow",
      "Action": [
        "ec2:DescribeVolumes",
        "ec2:DescribeVolumesModifications",
        "ec2:DescribeInstances",
        "cloudwatch:GetMetricData"
      ],
      "Resource": "*"
    },
    {
      "Sid": "EvenkeelAgentActs",
      "Effect": "Allow",
      "Action": [
        "ec2:AttachVolume",
        "ec2:CreateTags",
        "ec2:CreateVolume",
        "ec2:DeleteVolume",
        "ec2:DetachVolume",
        "ec2:ModifyVolume"
      ],
      "Resource": "*"
    }
  ]
}
"#;

/// The API of AWS.
pub struct Amazon {
    cli: Aws,
    clock: fn() -> u64,
    /// The last metrics, and when they were read, in milliseconds since 1970.
    measured: Option<(u64, BTreeMap<String, Measure>)>,
}

impl Amazon {
    /// Creates it. `clock` returns the milliseconds since 1970.
    #[must_use]
    pub const fn new(cli: Aws, clock: fn() -> u64) -> Self {
        Self { cli, clock, measured: None }
    }

    fn ask<T: DeserializeOwned>(&self, words: &[&str]) -> Result<T, Failure> {
        let text = self.cli.call(words)?;
        serde_json::from_slice(&text).map_err(|error| {
            let call = words.iter().take(2).copied().collect::<Vec<_>>().join(" ");
            Failure::new(format!("aws {call} printed no answer of the EC2 API: {error}"))
        })
    }
}

impl Api for Amazon {
    fn volumes(&mut self, filters: &[(String, Vec<String>)]) -> Result<Vec<Described>, Failure> {
        let filters = filters_text(filters);
        let answer: Volumes = self.ask(&["ec2", "describe-volumes", "--filters", &filters])?;
        Ok(answer.volumes.into_iter().filter_map(Volume::described).collect())
    }

    fn modifications(&mut self, volumes: &[&str]) -> Result<Vec<Modified>, Failure> {
        let named = volumes.iter().map(|volume| (*volume).to_owned()).collect();
        let filters = filters_text(&[("volume-id".to_owned(), named)]);
        let words = ["ec2", "describe-volumes-modifications", "--filters", &filters];
        let answer: Modifications = self.ask(&words)?;
        Ok(answer
            .volumes_modifications
            .into_iter()
            .filter_map(ModificationForm::modified)
            .collect())
    }

    fn instance(&mut self, id: &str) -> Result<Option<DescribedInstance>, Failure> {
        let answer: Reservations =
            self.ask(&["ec2", "describe-instances", "--instance-ids", id])?;
        let instances = answer.reservations.into_iter().flat_map(|group| group.instances);
        Ok(instances
            .map(|found| DescribedInstance {
                instance_type: found.instance_type,
                zone: found.placement.availability_zone,
            })
            .next())
    }

    fn measures(&mut self, volumes: &[&Described], window_s: u32) -> Result<Measured, Failure> {
        let now_ms = (self.clock)();
        let is_known = |known: &BTreeMap<String, Measure>| {
            volumes.iter().all(|volume| known.contains_key(&volume.id))
        };
        let fresh = self.measured.as_ref().filter(|(read_ms, known)| {
            now_ms.saturating_sub(*read_ms) < METRICS_MS && is_known(known)
        });
        if let Some((_, known)) = fresh {
            return Ok(Measured { volumes: known.clone(), unix_ms: None });
        }
        let queries = queries(volumes);
        let end_ms = now_ms - now_ms % (STEP_S * 1_000);
        let start_ms = end_ms.saturating_sub(u64::from(window_s) * 1_000 + LATE_MS);
        let [start, end] = [start_ms, end_ms].map(timestamp::extended);
        let mut series: BTreeMap<String, Vec<f64>> = BTreeMap::new();
        for some in queries.chunks(METRICS_MAX) {
            let answer: Metrics = self.ask(&[
                "cloudwatch",
                "get-metric-data",
                "--metric-data-queries",
                &Value::from(some.to_vec()).to_string(),
                "--start-time",
                &start,
                "--end-time",
                &end,
                "--scan-by",
                "TimestampDescending",
            ])?;
            for result in answer.metric_data_results {
                series.entry(result.id).or_default().extend(result.values);
            }
        }
        let measure = |(place, volume): (usize, &&Described)| {
            let values = |metric: usize| series.get(&id(place, metric)).map(Vec::as_slice);
            (volume.id.clone(), measure(window_s, values))
        };
        let volumes: BTreeMap<String, Measure> = volumes.iter().enumerate().map(measure).collect();
        self.measured = Some((now_ms, volumes.clone()));
        Ok(Measured { volumes, unix_ms: None })
    }

    fn call(&mut self, request: &Request) -> Result<(), Failure> {
        let words = words(request);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.cli.call(&words).map(drop)
    }
}

fn filters_text(filters: &[(String, Vec<String>)]) -> String {
    let filters = filters.iter().map(|(name, values)| json!({ "Name": name, "Values": values }));
    Value::Array(filters.collect()).to_string()
}

/// Returns the words of a command.
fn words(request: &Request) -> Vec<String> {
    let mut words = vec!["ec2".to_owned(), dashed(request.action)];
    for (name, value) in &request.fields {
        match (*name, value.as_str()) {
            ("ResourceId.1", id) => words.extend(["--resources".to_owned(), id.to_owned()]),
            (name, "true") => words.push(format!("--{}", dashed(name))),
            (name, value) => words.extend([format!("--{}", dashed(name)), value.to_owned()]),
        }
    }
    let tags = request.tags.iter().map(|(key, value)| json!({ "Key": key, "Value": value }));
    let tags: Value = tags.collect();
    match request.action {
        "CreateVolume" => {
            let new = json!([{ "ResourceType": "volume", "Tags": tags }]);
            words.extend(["--tag-specifications".to_owned(), new.to_string()]);
        }
        "CreateTags" => words.extend(["--tags".to_owned(), tags.to_string()]),
        _ => {}
    }
    words
}

/// Returns a name of the API as a word of the command line: `VolumeId` is `volume-id`.
fn dashed(name: &str) -> String {
    let mut dashed = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !dashed.is_empty() {
            dashed.push('-');
        }
        dashed.push(letter.to_ascii_lowercase());
    }
    dashed
}

fn id(volume: usize, metric: usize) -> String {
    format!("v{volume}m{metric}")
}

fn queries(volumes: &[&Described]) -> Vec<Value> {
    let mut all = Vec::new();
    for (place, volume) in volumes.iter().enumerate() {
        let saves =
            matches!(volume.spec.volume_type, VolumeType::Gp2 | VolumeType::St1 | VolumeType::Sc1);
        for (metric, (name, statistic)) in METRICS.iter().enumerate() {
            if metric == BALANCE && !saves {
                continue;
            }
            all.push(json!({
                "Id": id(place, metric),
                "MetricStat": {
                    "Metric": {
                        "Namespace": "AWS/EBS",
                        "MetricName": name,
                        "Dimensions": [{ "Name": "VolumeId", "Value": volume.id }],
                    },
                    "Period": STEP_S,
                    "Stat": statistic,
                },
            }));
        }
    }
    all
}

/// Returns what the values of a volume's metrics show, the newest first.
fn measure<'a>(window_s: u32, of: impl Fn(usize) -> Option<&'a [f64]>) -> Measure {
    // The last minute may not be complete, so the larger of two counts.
    let bytes =
        |metric| of(metric).map(|values| values.iter().take(2).copied().fold(0.0, f64::max));
    let used = [bytes(0), bytes(1)].into_iter().flatten().reduce(|sum, more| sum + more);
    let minutes =
        usize::try_from(u64::from(window_s).div_ceil(STEP_S)).expect("invariant: 64 bits");
    let checks = [of(2), of(3)].map(|values| values.filter(|values| !values.is_empty()));
    let is_exceeded = |minute: usize| {
        let value = |values: &&[f64]| values.get(minute).is_some_and(|value| *value > 0.0);
        checks.iter().flatten().any(value)
    };
    let exceeded = (0..minutes).filter(|minute| is_exceeded(*minute)).count();
    let exceeded_s = u64::try_from(exceeded).expect("invariant: 64 bits").saturating_mul(STEP_S);
    let balance = of(BALANCE).and_then(|values| values.first().copied());
    Measure {
        balance_ppm: balance.map(|percent| (percent.clamp(0.0, 100.0) * PPM_PER_PERCENT) as u32),
        exceeded_s: checks
            .iter()
            .any(Option::is_some)
            .then(|| u32::try_from(exceeded_s).expect("invariant: about the window")),
        used_mibps: used.map(|bytes| (bytes / STEP_S as f64 / MIB as f64).ceil() as u32),
    }
}

/// The answer of `aws ec2 describe-volumes`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Volumes {
    volumes: Vec<Volume>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Volume {
    volume_id: String,
    volume_type: String,
    size: u32,
    iops: Option<u32>,
    throughput: Option<u32>,
    #[serde(default)]
    multi_attach_enabled: bool,
    state: String,
    create_time: String,
    #[serde(default)]
    encrypted: bool,
    kms_key_id: Option<String>,
    #[serde(default)]
    attachments: Vec<AttachmentForm>,
    #[serde(default)]
    tags: Vec<Tag>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase", default)]
#[derive(Default)]
struct AttachmentForm {
    instance_id: String,
    device: String,
    state: String,
    attach_time: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Tag {
    key: String,
    #[serde(default)]
    value: String,
}

impl Volume {
    /// Returns it in the common form; `None` if this program does not know its type.
    fn described(self) -> Option<Described> {
        let spec = VolumeSpec {
            volume_type: self.volume_type.parse().ok()?,
            size_gib: self.size,
            iops: self.iops,
            throughput_mibps: self.throughput,
            multi_attach: self.multi_attach_enabled,
        };
        let attachment = |form: AttachmentForm| Attachment {
            since_ms: time_ms(&form.attach_time).unwrap_or_default(),
            instance: form.instance_id,
            device: form.device,
            state: form.state,
        };
        Some(Described {
            id: self.volume_id,
            spec,
            state: self.state,
            created_ms: time_ms(&self.create_time).unwrap_or_default(),
            encrypted: self.encrypted,
            kms_key: self.kms_key_id,
            attachments: self.attachments.into_iter().map(attachment).collect(),
            tags: self.tags.into_iter().map(|tag| (tag.key, tag.value)).collect(),
        })
    }
}

/// The answer of `aws ec2 describe-volumes-modifications`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Modifications {
    volumes_modifications: Vec<ModificationForm>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct ModificationForm {
    volume_id: String,
    modification_state: String,
    start_time: String,
}

impl ModificationForm {
    fn modified(self) -> Option<Modified> {
        Some(Modified {
            state: modification(&self.modification_state)?,
            started_ms: time_ms(&self.start_time)?,
            volume: self.volume_id,
        })
    }
}

/// The answer of `aws ec2 describe-instances`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Reservations {
    reservations: Vec<Reservation>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Reservation {
    instances: Vec<InstanceForm>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct InstanceForm {
    instance_type: String,
    placement: Placement,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Placement {
    availability_zone: String,
}

/// The answer of `aws cloudwatch get-metric-data`.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Metrics {
    metric_data_results: Vec<Series>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Series {
    id: String,
    #[serde(default)]
    values: Vec<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_those_of_the_aws_cli() {
        let zone = ("AvailabilityZone", "us-east-1a");
        let fields = [zone, ("ClientToken", "0123-4"), ("Encrypted", "true")];
        let create = Request::of("CreateVolume", &fields, &[("evenkeel:fs", "u")]);
        assert_eq!(
            words(&create),
            [
                "ec2",
                "create-volume",
                "--availability-zone",
                "us-east-1a",
                "--client-token",
                "0123-4",
                "--encrypted",
                "--tag-specifications",
                r#"[{"ResourceType":"volume","Tags":[{"Key":"evenkeel:fs","Value":"u"}]}]"#,
            ]
        );
        let retire = Request::of("CreateTags", &[("ResourceId.1", "vol-1")], &[("k", "v")]);
        let tags = r#"[{"Key":"k","Value":"v"}]"#;
        assert_eq!(words(&retire), ["ec2", "create-tags", "--resources", "vol-1", "--tags", tags]);
        let fields = [("VolumeId", "vol-1"), ("InstanceId", "i-1")];
        let detach = Request::of("DetachVolume", &fields, &[]);
        let expected = ["ec2", "detach-volume", "--volume-id", "vol-1", "--instance-id", "i-1"];
        assert_eq!(words(&detach), expected);
    }

    #[test]
    fn measure_is_of_whole_minutes() {
        let read = [6.0 * MIB as f64, 60.0 * MIB as f64, 600.0 * MIB as f64];
        let write = [0.0, 61.0 * MIB as f64];
        let iops = [0.0, 1.0, 1.0, 1.0];
        let bytes = [1.0, 0.0];
        let balance = [99.5, 100.0];
        let values = |metric: usize| match metric {
            0 => Some(&read[..]),
            1 => Some(&write[..]),
            2 => Some(&iops[..]),
            3 => Some(&bytes[..]),
            _ => Some(&balance[..]),
        };
        let expected =
            Measure { balance_ppm: Some(995_000), exceeded_s: Some(180), used_mibps: Some(3) };
        assert_eq!(measure(180, values), expected);
        assert_eq!(measure(180, |_| None), Measure::default());
    }

    #[test]
    fn volume_of_the_aws_cli_is_read() {
        let text = r#"{"Volumes": [{
            "Attachments": [{"AttachTime": "2026-11-21T04:00:00+00:00", "Device": "/dev/sdf",
                             "InstanceId": "i-1", "State": "attaching", "VolumeId": "vol-1"}],
            "AvailabilityZone": "us-east-1a", "CreateTime": "2026-11-21T03:00:00.000Z",
            "Encrypted": true, "KmsKeyId": "arn:k", "Size": 100, "SnapshotId": "",
            "State": "in-use", "VolumeId": "vol-1", "Iops": 3000, "VolumeType": "gp3",
            "Throughput": 125, "Tags": [{"Key": "Name", "Value": "log"}],
            "MultiAttachEnabled": false},
            {"VolumeId": "vol-2", "VolumeType": "gp9", "Size": 1, "State": "in-use",
             "CreateTime": "2026-11-21T03:00:00.000Z"}]}"#;
        let answer: Volumes = serde_json::from_str(text).unwrap();
        let all: Vec<Described> =
            answer.volumes.into_iter().filter_map(Volume::described).collect();
        let [volume] = all.as_slice() else { panic!("one: {all:?}") };
        assert_eq!((volume.spec.iops, volume.spec.throughput_mibps), (Some(3_000), Some(125)));
        assert_eq!(volume.attachments[0].since_ms - volume.created_ms, 3_600_000);
        assert_eq!(volume.kms_key.as_deref(), Some("arn:k"));
        assert_eq!(volume.tags["Name"], "log");
    }
}
