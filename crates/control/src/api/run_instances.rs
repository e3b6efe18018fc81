//! RunInstances: registers client hosts, makes their volumes and attaches them. Nothing is booted.

use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr};

use evenkeel_core::volume::VolumeRequest;
use evenkeel_wire::agent::HostAddress;
use evenkeel_wire::aws::sigv4::sha256_hex;
use evenkeel_wire::aws::xml::Element;

use super::args::{Args, snapshot_id};
use super::create_volume::spare;
use super::describe_instances::{launched, reservation};
use super::error::ApiError;
use super::instance_state::release;
use super::register_host::parse_address;
use super::{Action, Call, view};
use crate::model::{
    Begins, Command, HOSTS_MAX, HostState, LOCAL_TYPE, Model, Refusal, Settings, Tags,
};
use crate::plane::PlaneError;
use crate::random;
use evenkeel_core::ids::InstanceId;

pub const ACTION: Action = Action { name: "RunInstances", mutates: true, run };

/// Maximum number of hosts in one request.
const COUNT_MAX: u32 = 100;
/// Maximum number of volumes of one host that are made with it.
const VOLUMES_MAX: usize = 40;
/// The first address for hosts without one: loopback addresses, which distinguish hosts on this
/// machine.
const FIRST_ADDRESS: u32 = Ipv4Addr::new(127, 1, 0, 1).to_bits();

/// Properties of instances that a record does not need. They are read and ignored, because tools
/// send them.
const IGNORED: &[&str] = &[
    "ImageId",
    "KeyName",
    "UserData",
    "SubnetId",
    "EbsOptimized",
    "Monitoring.Enabled",
    "InstanceInitiatedShutdownBehavior",
    "DisableApiTermination",
];

/// A volume to make with a host.
struct NewDevice {
    device: String,
    request: VolumeRequest,
    begins: Begins,
    is_deleted: bool,
}

fn run(call: &mut Call<'_>) -> Result<Vec<Element>, ApiError> {
    let settings = &call.plane.settings;
    let args = &mut call.args;
    let least: u32 = args.number("MinCount")?.ok_or_else(|| ApiError::missing("MinCount"))?;
    let count: u32 = args.number("MaxCount")?.ok_or_else(|| ApiError::missing("MaxCount"))?;
    let instance_type = args.text("InstanceType").unwrap_or_else(|| LOCAL_TYPE.into());
    let address = args.text("PrivateIpAddress").as_deref().map(parse_address).transpose()?;
    let zone = args.text("Placement.AvailabilityZone");
    let [tags, volume_tags] = args.tag_specifications_of(["instance", "volume"])?;
    let devices = devices(settings, args)?;
    let token = args.client_token()?.filter(|token| !token.is_empty());
    IGNORED.iter().for_each(|name| _ = args.text(name));
    for list in ["SecurityGroup", "SecurityGroupId"] {
        args.list(list);
    }
    args.done()?;
    if !(1..=count).contains(&least) || count > COUNT_MAX {
        return Err(ApiError::value(format!(
            "MinCount is {least} and MaxCount is {count}; they must be 1 to {COUNT_MAX}, and \
             MaxCount not less than MinCount"
        )));
    }
    if address.is_some() && count > 1 {
        let text = "The parameter PrivateIpAddress cannot be used for more than one instance";
        return Err(ApiError::new("InvalidParameterCombination", text));
    }
    if let Some(zone) = zone.as_ref().filter(|zone| !settings.has_zone(zone)) {
        return Err(ApiError::unknown_zone(zone));
    }
    check_snapshots(call, &devices)?;
    let wanted = Wanted { zone, instance_type, address, tags, devices, volume_tags };
    let hosts = made(call, &wanted, token.as_deref(), count)?;
    let model = call.plane.model();
    let instance = |id: &InstanceId| {
        let host = model.hosts.get(id)?;
        Some(Element::list("item", view::made(view::host(settings, &model, host))))
    };
    let instances = hosts.iter().filter_map(instance).collect();
    let first = hosts.first().copied().ok_or_else(|| ApiError::internal("no host was made"))?;
    Ok(reservation(settings, first, instances))
}

/// Properties of each host of a request.
struct Wanted {
    zone: Option<String>,
    instance_type: String,
    address: Option<HostAddress>,
    tags: Tags,
    devices: Vec<NewDevice>,
    volume_tags: Tags,
}

/// Makes hosts, or returns those that the client token has made.
fn made(
    call: &Call<'_>,
    wanted: &Wanted,
    token: Option<&str>,
    count: u32,
) -> Result<Vec<InstanceId>, ApiError> {
    let mut hosts = Vec::new();
    let mut new = Vec::new();
    let reservation = match token {
        Some(token) => of_token(token),
        None => random::instance_id().map_err(PlaneError::from)?,
    };
    for number in 0..count {
        let one = call.plane.one_address_at_a_time();
        let id = launched(reservation, number);
        let known = call.plane.model().hosts.get(&id).map(|host| host.instance_type.clone());
        if let (Some(token), Some(known)) = (token, known) {
            if known != wanted.instance_type {
                return Err(Refusal::TokenReused(token.to_owned()).into());
            }
            hosts.push(id);
            continue;
        }
        let address = match wanted.address {
            Some(address) => address,
            None => free_address(&call.plane.model())?,
        };
        let instance_type = wanted.instance_type.clone();
        let tags = wanted.tags.clone();
        let zone = wanted.zone.clone();
        let command = Command::RegisterHost { id, zone, instance_type, address, tags };
        let registered = call.execute(&command);
        drop(one);
        let done = registered.map(drop).and_then(|()| {
            new.push(id);
            let attach = |device| attach(call, id, device, &wanted.volume_tags);
            wanted.devices.iter().try_for_each(attach)
        });
        if let Err(error) = done {
            undo(call, &new, token.is_some());
            return Err(error);
        }
        hosts.push(id);
    }
    Ok(hosts)
}

/// Returns the reservation of a client token: the same each time.
fn of_token(token: &str) -> InstanceId {
    let digest = sha256_hex(format!("RunInstances\n{token}").as_bytes());
    let bits = u128::from_str_radix(&digest[..32], 16).unwrap_or_default();
    InstanceId::from_bits(bits)
}

/// Reads the volumes of `BlockDeviceMapping`.
fn devices(settings: &Settings, args: &mut Args) -> Result<Vec<NewDevice>, ApiError> {
    let mut devices = Vec::new();
    for (number, mut fields) in args.structures("BlockDeviceMapping") {
        let prefix = format!("BlockDeviceMapping.{number}.");
        let device = fields.text("DeviceName");
        let device = device.ok_or_else(|| ApiError::missing(&format!("{prefix}DeviceName")))?;
        if fields.text("NoDevice").is_some() || fields.text("VirtualName").is_some() {
            let text = "NoDevice and VirtualName are not supported: there is no image";
            return Err(ApiError::unsupported(text));
        }
        let mut ebs = fields.nested("Ebs");
        let snapshot = ebs.text("SnapshotId").as_deref().map(snapshot_id).transpose()?;
        let volume_type = ebs.volume_type("VolumeType")?.unwrap_or(settings.default_type());
        let request = VolumeRequest {
            volume_type,
            size_gib: ebs.number("VolumeSize")?.unwrap_or(0),
            iops: ebs.number("Iops")?,
            throughput_mibps: ebs.number("Throughput")?,
            multi_attach: false,
        };
        // As on EC2, volumes made with an instance are deleted with it.
        let is_deleted = ebs.boolean("DeleteOnTermination")?.unwrap_or(true);
        let is_encrypted = ebs.encryption(settings)?;
        ebs.structure_done(&format!("{prefix}Ebs."))?;
        fields.structure_done(&prefix)?;
        if request.size_gib == 0 && snapshot.is_none() {
            return Err(ApiError::missing(&format!("{prefix}Ebs.VolumeSize")));
        }
        let begins = Begins { snapshot, is_encrypted, ..Begins::default() };
        devices.push(NewDevice { device, request, begins, is_deleted });
    }
    match devices.len() {
        ..=VOLUMES_MAX => Ok(devices),
        count => Err(ApiError::value(format!(
            "BlockDeviceMapping has {count} volumes; it must have at most {VOLUMES_MAX}"
        ))),
    }
}

/// Checks that no volume has to wait for an encrypted copy of its snapshot, because it could not be
/// attached.
fn check_snapshots(call: &Call<'_>, devices: &[NewDevice]) -> Result<(), ApiError> {
    let model = call.plane.model();
    let by_default = call.plane.settings.encrypts_by_default(model.account);
    for Begins { snapshot, is_encrypted, .. } in devices.iter().map(|device| device.begins) {
        let Some(id) = snapshot else { continue };
        let is_wanted = by_default || is_encrypted == Some(true);
        if is_wanted && !model.snapshot(id)?.is_encrypted {
            return Err(ApiError::unsupported(format!(
                "{id} is not encrypted, and the volume would be: copy it with Encrypted=true \
                 first, and name the copy"
            )));
        }
    }
    Ok(())
}

/// Makes a volume and attaches it.
fn attach(
    call: &Call<'_>,
    instance: InstanceId,
    new: &NewDevice,
    tags: &Tags,
) -> Result<(), ApiError> {
    let id = random::volume_id().map_err(PlaneError::from)?;
    let mut request = new.request;
    if let Some(of) = new.begins.snapshot.filter(|_| request.size_gib == 0) {
        request.size_gib = call.plane.model().snapshot(of)?.size_gib;
    }
    let begins = Begins { spares: [spare()?, spare()?], ..new.begins };
    // A volume is in the zone of the host that it is made for.
    let zone = call.plane.model().host(instance)?.zone(&call.plane.settings).to_owned();
    let tags = tags.clone();
    let token = None;
    call.execute(&Command::CreateVolume { id, request, begins, zone, tags, token })?;
    let device = new.device.clone();
    let attached = call
        .execute(&Command::AttachVolume { id, instance, device: device.clone() })
        .map(drop)
        .and_then(|()| {
            let devices = vec![(device, new.is_deleted)];
            call.execute(&Command::SetDeleteOnTermination { instance, devices }).map(drop)
        });
    if attached.is_err() {
        // Attached or not, the volume must be deleted, like the rest of the request's changes.
        let _ = call.execute(&Command::DeleteVolume { id });
    }
    attached
}

/// Reverts a request's changes after one has failed. Changes that cannot be reverted stay, and are
/// shown. The hosts of a client token are forgotten, because the request is sent again.
fn undo(call: &Call<'_>, made: &[InstanceId], forget: bool) {
    for &id in made {
        let _ = release(call, id);
        let command = if forget {
            Command::DeregisterHost { id }
        } else {
            let state = HostState::Terminated { at: call.now };
            Command::SetHostState { ids: vec![id], state }
        };
        let _ = call.execute(&command);
    }
}

/// Returns the first loopback address that no host has.
fn free_address(model: &Model) -> Result<HostAddress, ApiError> {
    let taken: BTreeSet<HostAddress> = model.hosts.values().map(|host| host.address).collect();
    let is_taken = |address: &HostAddress| taken.contains(address);
    let all = (FIRST_ADDRESS..).take(HOSTS_MAX + 1);
    let mut all = all.map(|bits| HostAddress::Remote(IpAddr::V4(Ipv4Addr::from_bits(bits))));
    all.find(|address| !is_taken(address))
        .ok_or_else(|| ApiError::new("InsufficientFreeAddressesInSubnet", "no address is left"))
}
