//! `evenkeel prove`: checks whether a target keeps the promise of its type. Exit codes: 0 kept, 1
//! broken, 6 undecided.

use crate::cli::Prove;
use evenkeel_cli::verdict::{AGAIN, Says};
use evenkeel_cli::{connect, log, runs, signals};
use evenkeel_client::Client;
use evenkeel_client::capacity::Capacity;
use evenkeel_client::endpoints::Endpoints;
use evenkeel_client::output::{self, Exit, Failure, Format};
use evenkeel_client::progress::{Progress, Stages};
use evenkeel_client::volume_samples::number;
use evenkeel_client::volumes;
use evenkeel_core::convert::saturating;
use evenkeel_core::ids::VolumeId;
use evenkeel_core::qos::pacing::{Balances, Limit, Pacing};
use evenkeel_core::units::{GIB, MIB};
use evenkeel_core::volume::{Date, Rules, VolumeRequest, VolumeType};
use evenkeel_lab::LabError;
use evenkeel_lab::checker::{Outcome, Promise};
use evenkeel_lab::demo;
use evenkeel_lab::files::write;
use evenkeel_lab::fio::{self, VolumeProgress};
use evenkeel_lab::nbd_uri::NbdUri;
use evenkeel_lab::prove::{self, HeldUp, Insight, Outside, Plan, SECONDS_MIN, Subject};
use evenkeel_lab::target::{PathKind, Target};
use evenkeel_wire::aws::xml::Element;
use serde::Deserialize;
use std::path::Path;

pub fn run(arguments: &Prove) -> Result<(), Failure> {
    log::to_stderr("warn")?;
    let plan = plan(arguments)?;
    let folder = runs::folder(&std::env::temp_dir(), "evenkeel-prove-")?;
    signals::end_when_told_to(vec![folder.path().to_owned()])?;
    let asked = Asked::of(arguments)?;
    let client;
    let (subject, mut insight): (Subject, Box<dyn Insight>) =
        match arguments.target.parse::<VolumeId>() {
            Ok(id) => {
                client = connect::client(&arguments.connection)?;
                let subject = volume_subject(&asked, &client, id)?;
                (subject, Box::new(Server { client: &client, volume: id.to_string() }))
            }
            Err(_) => (other_subject(arguments, &asked)?, Box::new(Outside)),
        };
    eprintln!("{}: {}", subject.name, subject.promise);
    let bar = Progress::new(prove::length_s(&subject.promise, &plan));
    let mut stages = Stages::default();
    let mut progress = |volumes: &[VolumeProgress]| {
        let name = volumes.first().map_or("", |load| load.name.as_str());
        bar.at(stages.at(name, fio::runtime_s(volumes)), &demo::progress_line(volumes));
    };
    let proof = prove::run(&subject, &plan, &mut *insight, folder.path(), &mut progress);
    bar.done();
    let mut proof = proof?;
    proof.report.commands.insert(0, runs::this_call("evenkeel"));
    if let Some(path) = &arguments.html {
        write(path, &proof.to_html().map_err(failed)?)?;
    }
    if let Some(path) = &arguments.junit {
        write(path, &proof.to_junit())?;
    }
    output::print(&match arguments.output.format {
        Format::Json => format!("{}\n", proof.to_json().map_err(failed)?),
        Format::Csv => proof.to_csv(),
        Format::Text => proof.to_text(),
    })?;
    let is_gone = proof.outcome == Outcome::ServerGone;
    let says = Says {
        broken: &format!("{} does not keep its promise", subject.name),
        gone: &format!("the server of {} is gone", subject.name),
        hint: is_gone.then_some("look at its log, start it, and prove it again"),
        again: AGAIN,
    };
    says.of(proof.outcome)
}

fn plan(arguments: &Prove) -> Result<Plan, Failure> {
    let seconds = saturating::<_, u32>(arguments.time.as_secs());
    if seconds < SECONDS_MIN {
        let message = format!("--time {seconds}s: less than {SECONDS_MIN}s prove nothing");
        return Err(Failure::new(message).exit(Exit::Usage));
    }
    Ok(Plan {
        seconds,
        writes: arguments.yes_destroy_data,
        seed: arguments.seed,
        over_ppm: arguments.over,
    })
}

/// The requested promise, from flags or a file.
#[derive(Clone, Copy, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case", default)]
struct Written<'a> {
    r#type: Option<&'a str>,
    size: Option<u32>,
    iops: Option<u32>,
    throughput: Option<u32>,
    as_of: Option<&'a str>,
}

/// The parsed promise.
struct Asked {
    volume_type: Option<VolumeType>,
    size_gib: Option<u32>,
    iops: Option<u32>,
    throughput_mibps: Option<u32>,
    rules: &'static Rules,
}

impl Asked {
    fn of(arguments: &Prove) -> Result<Self, Failure> {
        let Some(path) = &arguments.promise else {
            return Ok(Self {
                volume_type: arguments.volume_type,
                size_gib: arguments.size,
                iops: arguments.iops,
                throughput_mibps: arguments.throughput,
                rules: rules(arguments.as_of)?,
            });
        };
        let usage = |said: String| {
            Failure::new(format!("{}: {said}", path.display()))
                .exit(Exit::Usage)
                .hint("the keys are type, size (GiB), iops, throughput (MiB/s) and as-of")
        };
        let text = std::fs::read_to_string(path).map_err(|error| usage(error.to_string()))?;
        let written: Written<'_> =
            toml::from_str(&text).map_err(|error| usage(error.message().to_owned()))?;
        let as_of = written.as_of.map(str::parse::<Date>).transpose();
        let as_of = as_of.map_err(|error| usage(format!("as-of: {error}")))?;
        let volume_type = written.r#type.map(str::parse::<VolumeType>).transpose();
        Ok(Self {
            volume_type: volume_type.map_err(|error| usage(format!("type: {error}")))?,
            size_gib: written.size,
            iops: written.iops,
            throughput_mibps: written.throughput,
            rules: rules(as_of.or(arguments.as_of))?,
        })
    }

    /// The promise, for a target of this size.
    fn promise(&self, size_gib: u32) -> Result<(String, Promise), Failure> {
        let usage = |said: String| Failure::new(said).exit(Exit::Usage);
        let Some(volume_type) = self.volume_type else {
            let limit = |per_second: Option<u64>| {
                per_second.map(|per_second| Limit { per_second, credit: None })
            };
            let bytes = self.throughput_mibps.map(|mibps| u64::from(mibps) * MIB);
            let operations = limit(self.iops.map(u64::from));
            let pacing = Pacing { operations, bytes: limit(bytes), ..Pacing::UNLIMITED };
            if operations.is_none() && pacing.bytes.is_none() {
                return Err(usage("nothing is promised of it".to_owned())
                    .hint("name the promise to check: --type io2 --size 100 --iops 1000"));
            }
            return Ok(("-".to_owned(), Promise::from_pacing(&pacing, Balances::default())));
        };
        let request = VolumeRequest {
            volume_type,
            size_gib: self.size_gib.unwrap_or(size_gib),
            iops: self.iops,
            throughput_mibps: self.throughput_mibps,
            multi_attach: false,
        };
        let spec = self.rules.resolve(&request).map_err(|error| usage(error.to_string()))?;
        let pacing = self.rules.pacing(&spec);
        Ok((volume_type.to_string(), Promise::from_pacing(&pacing, Balances::default())))
    }
}

fn rules(as_of: Option<Date>) -> Result<&'static Rules, Failure> {
    match as_of {
        None => Ok(Rules::newest()),
        Some(date) => {
            Rules::as_of(date).map_err(|error| Failure::new(error.to_string()).exit(Exit::Usage))
        }
    }
}

/// Proves a volume of one of our servers: by its own promise, unless another one is given.
fn volume_subject(asked: &Asked, client: &Client, id: VolumeId) -> Result<Subject, Failure> {
    let id = id.to_string();
    let known = volumes::get(client, &id)?;
    if known.state != "in-use" {
        let message = format!("{id} is {}, and not attached to this machine", known.state);
        return Err(Failure::new(message).hint(format!("evenkeel volume attach {id} --wait")));
    }
    let size_gib = saturating::<_, u32>(known.size_gib);
    let narrow = |value: Option<u64>| value.and_then(|value| u32::try_from(value).ok());
    let own = Asked {
        volume_type: known.volume_type.parse().ok(),
        size_gib: Some(size_gib),
        iops: narrow(known.iops),
        throughput_mibps: narrow(known.throughput_mibps),
        rules: asked.rules,
    }
    .named();
    let is_asked = asked.volume_type.is_some()
        || [asked.iops, asked.throughput_mibps].iter().any(Option::is_some);
    if !is_asked && asked.size_gib.is_some() {
        let message = "--size says nothing of a volume of this server without --type";
        return Err(Failure::new(message).exit(Exit::Usage).hint("leave it out, or name the type"));
    }
    let (volume_type, promise) = if is_asked { asked } else { &own }.promise(size_gib)?;
    let endpoints = Endpoints::of(client)?;
    let uri = endpoints.nearest(&id).ok_or_else(|| {
        let there = endpoints.elsewhere().join(", ");
        Failure::new(format!(
            "{id} is not reached from this machine; the server listens at: {there}"
        ))
    })?;
    let uri = NbdUri::parse(&uri).map_err(|error| usage(&error))?;
    Ok(Subject { name: id, target: uri.into(), volume_type, size_gib, promise })
}

impl Asked {
    /// Without properties that its type does not let clients choose: a gp2 volume has the IOPS of
    /// its size.
    fn named(self) -> Self {
        let chosen = |types: &[VolumeType]| self.volume_type.is_some_and(|t| types.contains(&t));
        let iops =
            self.iops.filter(|_| chosen(&[VolumeType::Io1, VolumeType::Io2, VolumeType::Gp3]));
        let throughput_mibps = self.throughput_mibps.filter(|_| chosen(&[VolumeType::Gp3]));
        Self { iops, throughput_mibps, ..self }
    }
}

/// Proves any other target, by its behaviour only.
fn other_subject(arguments: &Prove, asked: &Asked) -> Result<Subject, Failure> {
    let name = arguments.target.clone();
    let (target, size_gib) = if name.contains("://") {
        let uri = NbdUri::parse(&name).map_err(|error| usage(&error))?;
        let size_gib = match (asked.size_gib, asked.volume_type) {
            (Some(size_gib), _) => size_gib,
            // Without a type the size has no effect.
            (None, None) => 1,
            (None, Some(_)) => whole_gib(
                uri.size_bytes()
                    .map_err(|error| failed(error).hint("say how large it is: --size GIB"))?,
            ),
        };
        (Target::Nbd(uri), size_gib)
    } else {
        let looked = Target::path(Path::new(&name), arguments.yes_destroy_data);
        let (target, kind) = looked.map_err(|error| usage(&error))?;
        let (PathKind::File(bytes) | PathKind::Device(bytes)) = kind;
        (target, whole_gib(bytes))
    };
    let (volume_type, promise) = asked.promise(size_gib)?;
    let size_gib = asked.size_gib.unwrap_or(size_gib);
    Ok(Subject { name, target, volume_type, size_gib, promise })
}

/// Rounded down, at least one.
fn whole_gib(bytes: u64) -> u32 {
    saturating::<_, u32>(bytes / GIB).max(1)
}

/// The information of our own server on a volume.
struct Server<'a> {
    client: &'a Client,
    volume: String,
}

impl Server<'_> {
    fn item(&self) -> Result<Element, Failure> {
        let named = [("VolumeId.1", self.volume.as_str())];
        let answer = self.client.call("DescribeVolumeMetrics", &named)?;
        let item = answer.items("volumeMetricSet").first().cloned();
        item.ok_or_else(|| Failure::new(format!("the server returns nothing for {}", self.volume)))
    }
}

impl Insight for Server<'_> {
    fn balances(&mut self) -> Result<Option<Balances>, LabError> {
        let item = self
            .item()
            .map_err(|failure| LabError::BadOutput { tool: "the server", what: failure.message })?;
        let balance = |name: &str| {
            item.child(name).and_then(|limit| limit.child_text("balance"))?.parse().ok()
        };
        Ok(Some(Balances { operations: balance("operations"), bytes: balance("bytes") }))
    }

    fn held_up(&mut self) -> Option<HeldUp> {
        let item = self.item().ok()?;
        let exceeded = item.child("exceededNs")?;
        let seconds = |causes: &[&str]| {
            let ns = causes.iter().map(|cause| number(exceeded, cause)).sum::<u64>();
            std::time::Duration::from_nanos(ns).as_secs_f64()
        };
        Some(HeldUp {
            own_s: seconds(&["operations", "bytes", "guard"]),
            instance_s: seconds(&["instanceOperations", "instanceBytes"]),
            device_s: seconds(&["device"]),
        })
    }

    /// The server knows the device's capacity by its calibration.
    fn guarantees(&mut self) -> Option<bool> {
        Capacity::get(self.client).ok().map(|capacity| capacity.calibration.is_some())
    }
}

fn usage(error: &LabError) -> Failure {
    Failure::new(error.to_string()).exit(Exit::Usage)
}

fn failed(error: LabError) -> Failure {
    Failure::new(error.to_string())
}
