//! The rights that a request needs: one for each of its resources, with the facts that conditions
//! compare.
//!
//! Parameters are read as the actions read them: an empty one is absent ([`present`]). A value that
//! an action will refuse leads to no fact, so it never allows anything by a comparison.

use std::collections::BTreeSet;
use std::net::IpAddr;

use evenkeel_core::ids::{InstanceId, SnapshotId, VolumeId};
use evenkeel_core::units::GIB;
use evenkeel_core::volume::{VolumeChange, VolumeRequest, VolumeSpec};
use evenkeel_iam::{Context, Request};
use evenkeel_wire::agent::StoredVolume;
use evenkeel_wire::aws::query::Params;

use super::table::{EXPERIMENT, Object, Row, TEMPLATE, row};
use super::{Caller, Known, Principal};
use crate::fis::experiments::Experiments;
use crate::model::{Host, Model, Settings, Snapshot, TAGS_MAX, Tags, User, Volume};

/// Maximum number of characters of a parameter that is no id in the name of a resource.
const NO_ID_MAX: usize = 64;
/// Maximum of bytes of a tag's key and of its value: 256 characters.
const TAG_BYTES_MAX: usize = 4 * 256;
/// Maximum number of characters of an ARN that a parameter names.
const ARN_MAX: usize = 640;
/// The action that tags new resources.
const CREATE_TAGS: &str = "CreateTags";
/// The action that removes tags: all of a resource if the request names none.
const DELETE_TAGS: &str = "DeleteTags";
/// The parameter of CreateSnapshots that copies the tags of volumes.
const COPY_TAGS: &str = "CopyTagsFromSource";

/// The kinds of resources, as TagSpecification names them.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Volume,
    Snapshot,
    Instance,
}

impl Kind {
    const ALL: [Self; 3] = [Self::Volume, Self::Snapshot, Self::Instance];

    const fn name(self) -> &'static str {
        match self {
            Self::Volume => "volume",
            Self::Snapshot => "snapshot",
            Self::Instance => "instance",
        }
    }

    /// Returns whether an action with this object makes a resource of this kind, whose tags it may
    /// name without a specification.
    const fn is_made_by(self, object: Object) -> bool {
        matches!(
            (self, object),
            (Self::Snapshot, Object::NewSnapshot) | (Self::Instance, Object::NewInstance)
        )
    }

    /// Returns the ARN of a resource. Those of snapshots have no account, as at AWS.
    fn arn(self, settings: &Settings, id: &str) -> String {
        let Settings { region, account, .. } = settings;
        let account = if self == Self::Snapshot { "" } else { account };
        format!("arn:aws:ec2:{region}:{account}:{}/{id}", self.name())
    }
}

/// A request, as far as its rights depend on it.
struct Asked<'a> {
    params: &'a Params,
    model: &'a Model,
    settings: &'a Settings,
    experiments: &'a Experiments,
    stored: Option<&'a StoredVolume>,
    /// The facts that hold for all resources.
    common: Context,
    /// The action with its service.
    right: String,
    action: &'a str,
    all: Vec<Request>,
}

/// Returns the rights that a request needs; at least one.
pub fn of(
    caller: &Caller,
    principal: &Principal,
    (signed_for, action): (&str, &str),
    params: &Params,
    &Known { model, settings, experiments, stored }: &Known<'_>,
) -> Vec<Request> {
    let mut common = Context::default();
    common.add("aws:SourceIp", vec![source(caller.address).to_string()]);
    common.add("aws:username", vec![principal.name.clone()]);
    common.add("aws:RequestedRegion", vec![settings.region.clone()]);
    // Every action has a row. One without it could be executed by administrators only.
    const NO_ROW: Row = Row { signed_for: "", service: "evenkeel", action: "", objects: &[] };
    let Row { service, objects, .. } = row(signed_for, action).unwrap_or(&NO_ROW);
    let right = format!("{service}:{action}");
    let params = &present(params);
    let all = Vec::new();
    let mut asked =
        Asked { params, model, settings, experiments, stored, common, right, action, all };
    for object in *objects {
        asked.add(*object, principal);
    }
    if asked.all.is_empty() {
        asked.need("*".to_owned(), |_| ());
    }
    asked.add_tagging(signed_for, objects);
    asked.add_tagging_of_fis(signed_for);
    asked.all
}

/// Returns the parameters without the empty ones. To an action these are absent, so it uses its
/// default, and the rights must be those to the default.
fn present(params: &Params) -> Params {
    let empty = params.iter().filter(|(_, value)| value.is_empty());
    let empty: BTreeSet<&str> = empty.map(|(name, _)| name).collect();
    let mut present = params.clone();
    present.retain(|name| !empty.contains(name));
    present
}

/// An IPv4 address that arrived at a socket of IPv6 is the IPv4 address.
const fn source(address: IpAddr) -> IpAddr {
    address.to_canonical()
}

impl Asked<'_> {
    fn need(&mut self, resource: String, facts: impl FnOnce(&mut Context)) {
        let mut context = self.common.clone();
        facts(&mut context);
        self.all.push(Request { action: self.right.clone(), resource, context });
    }

    fn add(&mut self, object: Object, principal: &Principal) {
        match object {
            Object::Volume(name) => {
                named(self.params, name).iter().for_each(|id| self.volume(id));
            }
            Object::Snapshot(name) => {
                named(self.params, name).iter().for_each(|id| self.snapshot(id));
            }
            Object::Instance(name) => {
                named(self.params, name).iter().for_each(|id| self.instance(id));
            }
            Object::Tagged(name) => named(self.params, name).iter().for_each(|id| {
                if id.starts_with("snap-") {
                    self.snapshot(id);
                } else if id.starts_with("i-") {
                    self.instance(id);
                } else {
                    self.volume(id);
                }
            }),
            Object::AdoptedVolume(name) => self.adopted_volume(name),
            Object::ChangedVolume(name) => self.changed_volume(name),
            Object::AttachedHosts => self.attached_hosts(),
            Object::VolumesOf(name) => self.volumes_of(name),
            Object::MappedVolumes => self.mapped_volumes(),
            Object::NewVolume => {
                let params = self.params;
                self.new_volume(params, "Size");
            }
            Object::NewSnapshot => self.new_resource(Kind::Snapshot),
            Object::NewInstance => self.new_resource(Kind::Instance),
            Object::Arn(name) => {
                let arn = self.params.get(name).unwrap_or("*");
                self.need(arn.chars().take(ARN_MAX).collect(), |_| ());
            }
            Object::OfFis(name) => {
                named(self.params, name).iter().for_each(|arn| self.of_fis(arn));
            }
            Object::User(name) => {
                let account = &self.settings.account;
                let user = self.params.get(name).unwrap_or(&principal.name);
                let arn = match self.model.users.get(&User::key_of(user)) {
                    Some(user) => user.arn(account),
                    None => {
                        let path = self.params.get("Path").unwrap_or("/");
                        let path: String = path.chars().take(512).collect();
                        format!("arn:aws:iam::{account}:user{path}{}", shortened(user))
                    }
                };
                self.need(arn, |_| ());
            }
        }
    }

    fn volume(&mut self, id: &str) {
        let parsed = id.parse::<VolumeId>().ok();
        let found = parsed.and_then(|id| self.model.volumes.get(&id));
        let id = parsed.map_or_else(|| shortened(id), |id| id.to_string());
        let request = self.changed_tags(found.map(|volume| &volume.tags));
        self.need(Kind::Volume.arn(self.settings, &id), |context| {
            request.add_to(context);
            if let Some(volume) = found {
                facts_of_volume(context, volume, &volume.spec);
            }
        });
    }

    fn snapshot(&mut self, id: &str) {
        let parsed = id.parse::<SnapshotId>().ok();
        let found: Option<&Snapshot> = parsed.and_then(|id| self.model.snapshots.get(&id));
        let id = parsed.map_or_else(|| shortened(id), |id| id.to_string());
        let request = self.changed_tags(found.map(|snapshot| &snapshot.tags));
        self.need(Kind::Snapshot.arn(self.settings, &id), |context| {
            request.add_to(context);
            if let Some(snapshot) = found {
                resource_tags(context, &snapshot.tags);
                context.add("ec2:VolumeSize", vec![snapshot.size_gib.to_string()]);
                context.add("ec2:Encrypted", vec![snapshot.is_encrypted.to_string()]);
            }
        });
    }

    fn instance(&mut self, id: &str) {
        let parsed = id.parse::<InstanceId>().ok();
        let found: Option<&Host> = parsed.and_then(|id| self.model.hosts.get(&id));
        let id = parsed.map_or_else(|| shortened(id), |id| id.to_string());
        let request = self.changed_tags(found.map(|host| &host.tags));
        self.need(Kind::Instance.arn(self.settings, &id), |context| {
            request.add_to(context);
            if let Some(host) = found {
                resource_tags(context, &host.tags);
            }
        });
    }

    /// A template, an experiment or an action of FIS. The tags of the request are facts of all its
    /// resources, as FIS has them for the action.
    fn of_fis(&mut self, arn: &str) {
        let id = arn.rsplit_once('/').map_or("", |(_, id)| id);
        let tags = self.experiments.tags_of(id);
        let request = RequestTags::tags(self.params, None);
        self.need(arn.chars().take(ARN_MAX).collect(), |context| {
            request.add_to(context);
            for (key, value) in tags {
                context.add(format!("aws:ResourceTag/{key}"), vec![value]);
            }
        });
    }

    /// Returns the tags that the request sets or removes on a resource with these tags.
    fn changed_tags(&self, tags: Option<&Tags>) -> RequestTags {
        let named = RequestTags::tags(self.params, None);
        if self.action != DELETE_TAGS || !named.0.is_empty() {
            return named;
        }
        let all = tags.into_iter().flatten();
        RequestTags(all.map(|(key, value)| (key.clone(), value.clone())).collect())
    }

    /// A volume that the request makes of stored bytes. It has their id and their size.
    fn adopted_volume(&mut self, name: &str) {
        for id in named(self.params, name) {
            let parsed_id = id.parse::<VolumeId>().ok();
            let stored = self.stored.filter(|stored| Some(stored.id) == parsed_id);
            let Some(stored) = stored else {
                // The action refuses it.
                self.volume(&id);
                continue;
            };
            let params = self.params;
            let size_gib = u32::try_from(stored.size.0 / GIB).ok();
            let volume_type = parsed(params, "VolumeType");
            let request = volume_type.zip(size_gib).map(|(volume_type, size_gib)| VolumeRequest {
                volume_type,
                size_gib,
                iops: parsed(params, "Iops"),
                throughput_mibps: parsed(params, "Throughput"),
                multi_attach: params.get("MultiAttachEnabled").is_some_and(is_true),
            });
            let spec = request.and_then(|request| self.settings.rules.resolve(&request).ok());
            let tags = RequestTags::tags(params, Some(Kind::Volume));
            self.need(Kind::Volume.arn(self.settings, &stored.id.to_string()), |context| {
                tags.add_to(context);
                context.add("ec2:Encrypted", vec![stored.is_encrypted.to_string()]);
                if let Some(spec) = &spec {
                    facts_of_spec(context, spec);
                }
            });
        }
    }

    /// A change needs the right to the volume as it is, and to the volume that it would be.
    fn changed_volume(&mut self, name: &str) {
        for id in named(self.params, name) {
            self.volume(&id);
            let found = id.parse().ok().and_then(|id: VolumeId| self.model.volumes.get(&id));
            let Some(volume) = found else { continue };
            let params = self.params;
            let change = VolumeChange {
                volume_type: parsed(params, "VolumeType"),
                size_gib: parsed(params, "Size"),
                iops: parsed(params, "Iops"),
                throughput_mibps: parsed(params, "Throughput"),
                multi_attach: params.get("MultiAttachEnabled").map(is_true),
            };
            if let Ok(target) = self.settings.rules.modify(&volume.spec, &change) {
                let arn = Kind::Volume.arn(self.settings, &volume.id.to_string());
                self.need(arn, |context| facts_of_volume(context, volume, &target));
            }
        }
    }

    fn attached_hosts(&mut self) {
        if self.params.get("InstanceId").is_some() {
            return;
        }
        let volume = self.params.get("VolumeId").and_then(|id| id.parse::<VolumeId>().ok());
        let volume = volume.and_then(|id| self.model.volumes.get(&id));
        for attachment in volume.into_iter().flat_map(|volume| &volume.attachments) {
            self.instance(&attachment.instance.to_string());
        }
    }

    fn volumes_of(&mut self, name: &str) {
        let excluded = self.excluded();
        let Some(host) = self.params.get(name).and_then(|id| id.parse().ok()) else { return };
        let model = self.model;
        for (volume, _) in model.attachments_of(host) {
            if !excluded.contains(&volume.id) {
                self.volume(&volume.id.to_string());
            }
        }
    }

    /// The volumes that CreateSnapshots leaves out.
    fn excluded(&self) -> Vec<VolumeId> {
        let ids = named(self.params, "InstanceSpecification.ExcludeDataVolumeId");
        ids.iter().filter_map(|id| id.parse().ok()).collect()
    }

    fn mapped_volumes(&mut self) {
        for (_, mut fields) in self.params.clone().take_structures("BlockDeviceMapping") {
            let ebs = fields.take_structure("Ebs");
            self.new_volume(&ebs, "VolumeSize");
            if let Some(snapshot) = ebs.get("SnapshotId") {
                self.snapshot(snapshot);
            }
        }
    }

    /// A volume that the request makes, with the parameters in `fields`.
    fn new_volume(&mut self, fields: &Params, size: &str) {
        let model = self.model;
        let id = |name: &str| fields.get(name).map(str::to_owned);
        let snapshot = id("SnapshotId").and_then(|id| id.parse::<SnapshotId>().ok());
        let snapshot = snapshot.and_then(|id| model.snapshots.get(&id));
        let source = id("SourceVolumeId").and_then(|id| id.parse::<VolumeId>().ok());
        let source = source.and_then(|id| model.volumes.get(&id));
        let size_of_origin = match (snapshot, source) {
            (Some(snapshot), _) => Some(snapshot.size_gib),
            (None, Some(volume)) => Some(volume.spec.size_gib),
            (None, None) => None,
        };
        let volume_type = match fields.get("VolumeType") {
            Some(text) => text.parse().ok(),
            None => Some(self.settings.default_type()),
        };
        // RunInstances reads zero as the size of the snapshot; the others refuse it.
        let size_gib = parsed(fields, size).filter(|gib| *gib > 0).or(size_of_origin);
        let request = volume_type.zip(size_gib).map(|(volume_type, size_gib)| VolumeRequest {
            volume_type,
            size_gib,
            iops: parsed(fields, "Iops"),
            throughput_mibps: parsed(fields, "Throughput"),
            multi_attach: fields.get("MultiAttachEnabled").is_some_and(is_true),
        });
        let spec = request.and_then(|request| self.settings.rules.resolve(&request).ok());
        let is_encrypted = fields.get("Encrypted").is_some_and(is_true)
            || snapshot.is_some_and(|snapshot| snapshot.is_encrypted)
            || source.is_some_and(|volume| volume.is_encrypted)
            || self.settings.encrypts_by_default(model.account);
        let tags = RequestTags::tags(self.params, Some(Kind::Volume));
        self.need(Kind::Volume.arn(self.settings, "*"), |context| {
            tags.add_to(context);
            context.add("ec2:Encrypted", vec![is_encrypted.to_string()]);
            if let Some(spec) = &spec {
                facts_of_spec(context, spec);
            }
        });
    }

    /// A resource that the request makes; several if tags that differ are copied to each.
    fn new_resource(&mut self, kind: Kind) {
        let tags = RequestTags::tags(self.params, Some(kind));
        for tags in self.with_copied(kind, tags) {
            self.need(kind.arn(self.settings, "*"), |context| tags.add_to(context));
        }
    }

    /// Returns the tags of each new resource. CreateSnapshots copies those of each volume to its
    /// snapshot; the tags of the request come first.
    fn with_copied(&self, kind: Kind, tags: RequestTags) -> Vec<RequestTags> {
        let copies = kind == Kind::Snapshot && self.params.get(COPY_TAGS).is_some();
        let host = self.params.get("InstanceSpecification.InstanceId").filter(|_| copies);
        let Some(host) = host.and_then(|id| id.parse().ok()) else { return vec![tags] };
        let volumes = self.model.attachments_of(host).map(|(volume, _)| volume);
        let excluded = self.excluded();
        let merged = |volume: &Volume| {
            let mut all = tags.0.clone();
            for (key, value) in &volume.tags {
                if all.len() < TAGS_MAX && !tags.0.iter().any(|(known, _)| known == key) {
                    all.push((key.clone(), value.clone()));
                }
            }
            RequestTags(all)
        };
        let all: Vec<_> =
            volumes.filter(|volume| !excluded.contains(&volume.id)).map(merged).collect();
        if all.is_empty() { vec![tags] } else { all }
    }

    /// Tags of new resources need the right to CreateTags, too: those of specifications, those that
    /// are named without one (RegisterHost, StartSnapshot), and those that are copied.
    /// New templates and experiments with tags need the right to tag them.
    fn add_tagging_of_fis(&mut self, signed_for: &str) {
        let new = match (signed_for, self.action) {
            ("fis", "CreateExperimentTemplate") => TEMPLATE,
            ("fis", "StartExperiment") => EXPERIMENT,
            _ => return,
        };
        let tags = RequestTags::tags(self.params, None);
        if tags.0.is_empty() {
            return;
        }
        let arn = self.params.get(new).unwrap_or("*");
        let resource = arn.chars().take(ARN_MAX).collect();
        let mut context = self.common.clone();
        tags.add_to(&mut context);
        self.all.push(Request { action: "fis:TagResource".to_owned(), resource, context });
    }

    fn add_tagging(&mut self, signed_for: &str, objects: &[Object]) {
        if self.action == CREATE_TAGS {
            return;
        }
        for kind in Kind::ALL {
            let mut tags = RequestTags(Vec::new());
            if signed_for == "ec2" {
                tags = RequestTags::of_specifications(self.params, kind);
            }
            if objects.iter().any(|object| kind.is_made_by(*object)) {
                tags.0.extend(pairs(&mut self.params.clone()));
            }
            let copied = self.params.get(COPY_TAGS).is_some() && signed_for == "ec2";
            if tags.0.is_empty() && !(copied && kind == Kind::Snapshot) {
                continue;
            }
            for tags in self.with_copied(kind, tags) {
                let mut context = self.common.clone();
                tags.add_to(&mut context);
                context.add("ec2:CreateAction", vec![self.action.to_owned()]);
                let resource = kind.arn(self.settings, "*");
                self.all.push(Request { action: format!("ec2:{CREATE_TAGS}"), resource, context });
            }
        }
    }
}

/// The tags of a request.
struct RequestTags(Vec<(String, String)>);

impl RequestTags {
    /// Returns the tags of a request for new resources of a kind, and those without a kind.
    fn tags(params: &Params, kind: Option<Kind>) -> Self {
        let mut tags = kind.map_or(Vec::new(), |kind| Self::of_specifications(params, kind).0);
        tags.extend(pairs(&mut params.clone()));
        Self(tags)
    }

    fn of_specifications(params: &Params, kind: Kind) -> Self {
        let specifications = params.clone().take_structures("TagSpecification").into_iter();
        let of_kind = specifications
            .filter(|(_, fields)| fields.get("ResourceType") == Some(kind.name()))
            .flat_map(|(_, mut fields)| pairs(&mut fields));
        Self(of_kind.collect())
    }

    fn add_to(&self, context: &mut Context) {
        if self.0.is_empty() {
            return;
        }
        for (key, value) in &self.0 {
            context.add(format!("aws:RequestTag/{key}"), vec![value.clone()]);
        }
        context.add("aws:TagKeys", self.0.iter().map(|(key, _)| key.clone()).collect());
    }
}

/// Returns tags. One that is longer than a tag may be is left out: the action refuses it, and a
/// comparison of it would take long.
fn pairs(params: &mut Params) -> Vec<(String, String)> {
    let tag = |(_, mut fields): (u32, Params)| {
        let key = fields.take("Key")?;
        let value = fields.take("Value").unwrap_or_default();
        (key.len() <= TAG_BYTES_MAX && value.len() <= TAG_BYTES_MAX).then_some((key, value))
    };
    params.take_structures("Tag").into_iter().filter_map(tag).collect()
}

/// Returns the values of a parameter: one, or those of a list.
fn named(params: &Params, name: &str) -> Vec<String> {
    let is_of_list = |found: &str| {
        let rest = found.strip_prefix(name).and_then(|rest| rest.strip_prefix('.'));
        rest.is_some_and(|number| number.parse::<u32>().is_ok())
    };
    let all = params.iter().filter(|(found, _)| *found == name || is_of_list(found));
    all.map(|(_, value)| value.to_owned()).collect()
}

fn parsed<T: std::str::FromStr>(params: &Params, name: &str) -> Option<T> {
    params.get(name).and_then(|text| text.parse().ok())
}

fn is_true(text: &str) -> bool {
    text.eq_ignore_ascii_case("true")
}

fn shortened(text: &str) -> String {
    text.chars().take(NO_ID_MAX).collect()
}

fn resource_tags(context: &mut Context, tags: &Tags) {
    for (key, value) in tags {
        context.add(format!("aws:ResourceTag/{key}"), vec![value.clone()]);
        context.add(format!("ec2:ResourceTag/{key}"), vec![value.clone()]);
    }
}

fn facts_of_volume(context: &mut Context, volume: &Volume, spec: &VolumeSpec) {
    resource_tags(context, &volume.tags);
    context.add("ec2:Encrypted", vec![volume.is_encrypted.to_string()]);
    facts_of_spec(context, spec);
}

fn facts_of_spec(context: &mut Context, spec: &VolumeSpec) {
    context.add("ec2:VolumeType", vec![spec.volume_type.to_string()]);
    context.add("ec2:VolumeSize", vec![spec.size_gib.to_string()]);
    if let Some(iops) = spec.iops {
        context.add("ec2:VolumeIops", vec![iops.to_string()]);
    }
    if let Some(mibps) = spec.throughput_mibps {
        context.add("ec2:VolumeThroughput", vec![mibps.to_string()]);
    }
}
