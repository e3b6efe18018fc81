//! Client hosts as EC2's instances, and attributes, over HTTP.

use std::collections::BTreeMap;

use crate::support;
use crate::support::{Client, Server, create, local_instance, text};
use evenkeel_wire::agent::{FailedKind, HostAddress};
use evenkeel_wire::aws::xml::Element;

struct Fixture {
    server: Server,
    client: Client,
    _folder: tempfile::TempDir,
}

fn fixture() -> Fixture {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    Fixture { server, client, _folder: folder }
}

fn states(reply: &Element) -> Vec<(String, String)> {
    let name = |item: &Element, of: &str| text(item.child(of).unwrap(), "name").to_owned();
    let items = reply.items("instancesSet").iter();
    items.map(|item| (name(item, "previousState"), name(item, "currentState"))).collect()
}

const ONE: [(&str, &str); 3] = [("ImageId", "ami-1"), ("MinCount", "1"), ("MaxCount", "1")];

fn run(client: &Client, more: &[(&str, &str)]) -> Element {
    let reply = client.call("RunInstances", &[&ONE[..], more].concat()).unwrap();
    reply.items("instancesSet")[0].clone()
}

#[test]
fn an_instance_is_a_record_with_volumes_that_go_with_it() {
    let Fixture { server, client, _folder } = fixture();
    let device = |number: u32, field: &str| format!("BlockDeviceMapping.{number}.{field}");
    let names = [
        (device(1, "DeviceName"), "/dev/sdf"),
        (device(1, "Ebs.VolumeSize"), "5"),
        (device(1, "Ebs.VolumeType"), "gp3"),
        (device(2, "DeviceName"), "/dev/sdg"),
        (device(2, "Ebs.VolumeSize"), "6"),
        (device(2, "Ebs.DeleteOnTermination"), "false"),
    ];
    let mut params = vec![
        ("InstanceType", "m5.large"),
        ("TagSpecification.1.ResourceType", "instance"),
        ("TagSpecification.1.Tag.1.Key", "Name"),
        ("TagSpecification.2.ResourceType", "volume"),
        ("TagSpecification.2.Tag.1.Key", "of"),
        ("SecurityGroupId.1", "sg-1"),
        ("ClientToken", "t"),
    ];
    params.extend(names.iter().map(|(name, value)| (name.as_str(), *value)));
    let instance = run(&client, &params);
    let id = text(&instance, "instanceId").to_owned();
    assert_eq!(text(&instance, "privateIpAddress"), "127.1.0.1");
    assert_eq!(text(instance.child("instanceState").unwrap(), "name"), "running");
    let mappings = instance.items("blockDeviceMapping");
    let flag = |mapping: &Element| {
        let is_deleted = text(mapping.child("ebs").unwrap(), "deleteOnTermination").to_owned();
        (text(mapping, "deviceName").to_owned(), is_deleted)
    };
    let flags: BTreeMap<String, String> = mappings.iter().map(flag).collect();
    assert_eq!((flags["/dev/sdf"].as_str(), flags["/dev/sdg"].as_str()), ("true", "false"));
    let address =
        server.agent.with(|state| state.volumes.values().next().unwrap().attachments[0].address);
    assert_eq!(address, HostAddress::Remote([127, 1, 0, 1].into()));
    let volumes = client.call("DescribeVolumes", &[]).unwrap();
    assert_eq!(volumes.items("volumeSet")[0].items("tagSet").len(), 1);

    // The flag of the second volume is turned on, that of the first off.
    let change = [
        ("InstanceId", id.as_str()),
        ("BlockDeviceMapping.1.DeviceName", "/dev/sdf"),
        ("BlockDeviceMapping.1.Ebs.DeleteOnTermination", "false"),
        ("BlockDeviceMapping.2.DeviceName", "/dev/sdg"),
        ("BlockDeviceMapping.2.Ebs.DeleteOnTermination", "true"),
    ];
    client.call("ModifyInstanceAttribute", &change).unwrap();
    let attribute = [("InstanceId", id.as_str()), ("Attribute", "blockDeviceMapping")];
    let described = client.call("DescribeInstanceAttribute", &attribute).unwrap();
    assert_eq!(described.items("blockDeviceMapping").len(), 2);
    let one = [("InstanceId.1", id.as_str())];
    let stop = client.call("StopInstances", &one).unwrap();
    assert_eq!(states(&stop), [("running".to_owned(), "stopped".to_owned())]);
    let start = client.call("StartInstances", &one).unwrap();
    assert_eq!(states(&start), [("stopped".to_owned(), "running".to_owned())]);
    let gone = client.call("TerminateInstances", &one).unwrap();
    assert_eq!(states(&gone), [("running".to_owned(), "terminated".to_owned())]);
    let volumes = client.call("DescribeVolumes", &[]).unwrap();
    let sizes: Vec<&str> = volumes.items("volumeSet").iter().map(|it| text(it, "size")).collect();
    assert_eq!(sizes, ["5"]);
    // It is shown for an hour as terminated.
    let shown = client.call("DescribeInstances", &one).unwrap();
    let shown = &shown.items("reservationSet")[0].items("instancesSet")[0];
    assert_eq!(text(shown.child("instanceState").unwrap(), "code"), "48");
    assert_eq!(client.code("StartInstances", &one), "IncorrectInstanceState");
    let volume = text(&volumes.items("volumeSet")[0], "volumeId");
    let attach = [("VolumeId", volume), ("InstanceId", id.as_str()), ("Device", "/dev/sdf")];
    assert_eq!(client.code("AttachVolume", &attach), "IncorrectInstanceState");
}

#[test]
fn refused_run_instances_leaves_nothing() {
    let Fixture { server, client, _folder } = fixture();
    let code = |more: &[(&str, &str)]| client.code("RunInstances", &[&ONE[..], more].concat());
    let sized = [
        ("BlockDeviceMapping.1.DeviceName", "/dev/sdf"),
        ("BlockDeviceMapping.1.Ebs.VolumeSize", "5"),
    ];
    server.agent.with(|state| state.fail_next = Some(FailedKind::NoSpace));
    assert_eq!(code(&sized), "InsufficientVolumeCapacity");
    assert!(client.call("DescribeVolumes", &[]).unwrap().items("volumeSet").is_empty());
    let filter = [("Filter.1.Name", "instance-state-name"), ("Filter.1.Value.1", "running")];
    let running = client.call("DescribeInstances", &filter).unwrap();
    assert_eq!(running.items("reservationSet").len(), 1, "this machine");
    for (wrong, expected) in [
        (vec![("InstanceType", "x9.huge")], "InvalidInstanceType"),
        (vec![("PrivateIpAddress", "nowhere")], "InvalidParameterValue"),
        (vec![("Placement.AvailabilityZone", "elsewhere")], "InvalidZone.NotFound"),
        (vec![sized[0]], "MissingParameter"),
        (vec![sized[1]], "MissingParameter"),
        (vec![sized[0], sized[1], ("BlockDeviceMapping.1.Ebs.Odd", "1")], "UnknownParameter"),
        (vec![sized[0], ("BlockDeviceMapping.1.NoDevice", "")], "MissingParameter"),
        (vec![sized[0], ("BlockDeviceMapping.1.VirtualName", "e0")], "UnsupportedOperation"),
    ] {
        assert_eq!(code(&wrong), expected, "{wrong:?}");
    }
    let many = [("MinCount", "2"), ("MaxCount", "1")];
    assert_eq!(client.code("RunInstances", &many), "InvalidParameterValue");
    let two = client.call("RunInstances", &[("MinCount", "1"), ("MaxCount", "2")]).unwrap();
    let addresses: Vec<&str> =
        two.items("instancesSet").iter().map(|it| text(it, "privateIpAddress")).collect();
    assert_eq!(addresses.len(), 2);
    assert_ne!(addresses[0], addresses[1]);
}

#[test]
fn this_machine_cannot_be_terminated() {
    let Fixture { client, server: _server, _folder } = fixture();
    let local = local_instance(&client);
    let one = [("InstanceId.1", local.as_str())];
    assert_eq!(client.code("TerminateInstances", &one), "OperationNotPermitted");
    for action in ["StartInstances", "StopInstances", "TerminateInstances"] {
        assert_eq!(client.code(action, &[]), "MissingParameter");
        let absent = [("InstanceId.1", "i-00000000000000001")];
        assert_eq!(client.code(action, &absent), "InvalidInstanceID.NotFound");
        let malformed = [("InstanceId.1", "x")];
        assert_eq!(client.code(action, &malformed), "InvalidInstanceID.Malformed");
    }
    let id = create(&client, &[]);
    let volume = ("VolumeId", id.as_str());
    let attribute = |name| client.call("DescribeVolumeAttribute", &[volume, ("Attribute", name)]);
    let value = |reply: &Element| text(reply.child("autoEnableIO").unwrap(), "value").to_owned();
    assert_eq!(value(&attribute("autoEnableIO").unwrap()), "false");
    client.call("ModifyVolumeAttribute", &[volume, ("AutoEnableIO.Value", "true")]).unwrap();
    assert_eq!(value(&attribute("autoEnableIO").unwrap()), "true");
    assert!(attribute("productCodes").unwrap().child("productCodes").is_some());
    assert_eq!(attribute("x").unwrap_err().code, "InvalidParameterValue");
    client.call("EnableVolumeIO", &[volume]).unwrap();
    let regions = client.call("DescribeRegions", &[]).unwrap();
    assert_eq!(text(&regions.items("regionInfo")[0], "regionName"), "local-1");
    assert_eq!(
        client.code("DescribeRegions", &[("RegionName.1", "mars-1")]),
        "InvalidParameterValue"
    );
    let account = client.call("DescribeAccountAttributes", &[]).unwrap();
    assert_eq!(account.items("accountAttributeSet").len(), 3);
}

#[test]
fn a_stopped_host_takes_another_type_and_no_more_volumes_than_it_allows() {
    let Fixture { server, client, _folder } = fixture();
    let run = [("MinCount", "1"), ("MaxCount", "1"), ("InstanceType", "m5.large")];
    let made = client.call("RunInstances", &run).unwrap();
    let id = text(&made.items("instancesSet")[0], "instanceId").to_owned();
    let modify = |name, value| {
        let params = [("InstanceId", id.as_str()), (name, value)];
        client.call("ModifyInstanceAttribute", &params)
    };
    let refused = modify("InstanceType.Value", "m5.xlarge").unwrap_err();
    assert_eq!(refused.code, "IncorrectInstanceState");
    client.call("StopInstances", &[("InstanceId.1", &id)]).unwrap();
    let refused = modify("InstanceType.Value", "m5.huge").unwrap_err();
    assert_eq!(refused.code, "InvalidInstanceAttributeValue");
    modify("InstanceType.Value", "r8gd.metal-24xl").unwrap();
    let attribute = [("InstanceId", id.as_str()), ("Attribute", "instanceType")];
    let described = client.call("DescribeInstanceAttribute", &attribute).unwrap();
    let found = described.child("instanceType").unwrap();
    assert_eq!(text(found, "value"), "r8gd.metal-24xl");
    let host = id.parse().unwrap();
    let limits = server.agent.with(|state| state.hosts[&host].pacing.operations.unwrap());
    let wanted = evenkeel_core::instance::by_name("r8gd.metal-24xl").unwrap();
    assert_eq!(limits.per_second, u64::from(wanted.iops_max));

    // A type with a small maximum, so that reaching it takes little time.
    let small = evenkeel_core::instance::all().iter().min_by_key(|t| t.attachments_max).unwrap();
    modify("InstanceType.Value", small.name).unwrap();
    let attach = |number: u32| {
        let volume = support::create(&client, &[]);
        let device = format!("/dev/xvdb{}", char::from_u32(97 + number).unwrap());
        let params = [("VolumeId", volume.as_str()), ("InstanceId", &id), ("Device", &device)];
        client.call("AttachVolume", &params)
    };
    for number in 0..small.attachments_max {
        attach(number).unwrap();
    }
    let refused = attach(small.attachments_max).unwrap_err();
    assert_eq!(refused.code, "AttachmentLimitExceeded");
    let most = small.attachments_max;
    let name = small.name;
    let text = format!("{most} volumes can be attached to an instance of type {name}");
    assert!(refused.message.contains(&text), "{}", refused.message);
    modify("InstanceType.Value", "m5.large").unwrap();
    attach(small.attachments_max).unwrap();
    let refused = modify("InstanceType.Value", small.name).unwrap_err();
    assert_eq!(refused.code, "AttachmentLimitExceeded");
}

#[test]
fn a_client_token_makes_its_hosts_once() {
    let Fixture { server, client, _folder } = fixture();
    let run = |count: &str, instance_type: &str, token: &str| {
        let params = [
            ("MinCount", "1"),
            ("MaxCount", count),
            ("InstanceType", instance_type),
            ("ClientToken", token),
            ("BlockDeviceMapping.1.DeviceName", "/dev/sdf"),
            ("BlockDeviceMapping.1.Ebs.VolumeSize", "1"),
        ];
        let reply = client.call("RunInstances", &params)?;
        let ids = reply.items("instancesSet").iter().map(|it| text(it, "instanceId").to_owned());
        Ok::<Vec<String>, support::Refused>(ids.collect())
    };
    let first = run("2", "m5.large", "a").unwrap();
    assert_eq!(run("2", "m5.large", "a").unwrap(), first);
    assert_ne!(run("1", "m5.large", "b").unwrap()[0], first[0]);
    let refused = run("2", "m5.xlarge", "a").unwrap_err();
    assert_eq!(refused.code, "IdempotentParameterMismatch");
    let volumes = client.call("DescribeVolumes", &[]).unwrap();
    assert_eq!(volumes.items("volumeSet").len(), 3);
    // If a volume fails, it is made when the request is sent again.
    server.agent.with(|state| state.fail_next = Some(FailedKind::NoSpace));
    run("1", "m5.large", "c").unwrap_err();
    assert_eq!(run("1", "m5.large", "c").unwrap().len(), 1);
}

#[test]
fn a_reservation_has_the_hosts_that_were_run_together() {
    let Fixture { server: _server, client, _folder } = fixture();
    let params = [("MinCount", "3"), ("MaxCount", "3")];
    let ids = |reservation: &Element| {
        let instances = reservation.items("instancesSet").iter();
        instances.map(|instance| text(instance, "instanceId").to_owned()).collect::<Vec<_>>()
    };
    for token in [None, Some("t")] {
        let with_token = token.map(|token| ("ClientToken", token));
        let params: Vec<_> = params.into_iter().chain(with_token).collect();
        let made = client.call("RunInstances", &params).unwrap();
        let id = text(&made, "reservationId");
        let filter = [("Filter.1.Name", "reservation-id"), ("Filter.1.Value.1", id)];
        let shown = client.call("DescribeInstances", &filter).unwrap();
        let shown = shown.items("reservationSet");
        assert_eq!((shown.len(), text(&shown[0], "reservationId")), (1, id));
        assert_eq!((ids(&shown[0]), ids(&shown[0]).len()), (ids(&made), 3));
    }
    run(&client, &[]);
    let all = client.call("DescribeInstances", &[]).unwrap();
    let mut sizes: Vec<usize> =
        all.items("reservationSet").iter().map(|it| ids(it).len()).collect();
    sizes.sort_unstable();
    assert_eq!(sizes, [1, 1, 3, 3], "this machine, one alone, and two times three");
}

#[test]
fn mappings_begin_with_the_boot_volume_and_follow_their_attachment() {
    let Fixture { server: _server, client, _folder } = fixture();
    let local = local_instance(&client);
    let shown = || {
        let one = [("InstanceId.1", local.as_str())];
        let reply = client.call("DescribeInstances", &one).unwrap();
        reply.items("reservationSet")[0].items("instancesSet")[0].clone()
    };
    assert_eq!(text(&shown(), "rootDeviceName"), "/dev/sda1");
    let devices = ["/dev/sdk", "/dev/sdf", "/dev/xvda", "/dev/sdh"];
    for device in devices {
        let volume = create(&client, &[]);
        let params = [("VolumeId", volume.as_str()), ("InstanceId", &local), ("Device", device)];
        client.call("AttachVolume", &params).unwrap();
        // Attached in another millisecond than the next one.
        std::thread::park_timeout(std::time::Duration::from_millis(3));
    }
    let host = shown();
    let root = (text(&host, "rootDeviceName"), text(&host, "rootDeviceType"));
    assert_eq!(root, ("/dev/xvda", "ebs"));
    let mappings = host.items("blockDeviceMapping").iter();
    let names: Vec<&str> = mappings.map(|mapping| text(mapping, "deviceName")).collect();
    assert_eq!(names, ["/dev/xvda", "/dev/sdk", "/dev/sdf", "/dev/sdh"]);
    let attribute = [("InstanceId", local.as_str()), ("Attribute", "rootDeviceName")];
    let described = client.call("DescribeInstanceAttribute", &attribute).unwrap();
    assert_eq!(text(described.child("rootDeviceName").unwrap(), "value"), "/dev/xvda");
    for value in ["/dev/xvda", "/dev/sda1"] {
        let filter = [("Filter.1.Name", "root-device-name"), ("Filter.1.Value.1", value)];
        let found = client.call("DescribeInstances", &filter).unwrap();
        let count = found.items("reservationSet").len();
        assert_eq!(count, usize::from(value == "/dev/xvda"), "{value}");
    }
}

#[test]
fn a_volume_goes_with_its_host_only_if_it_is_its_and_marked_then() {
    let Fixture { server, client, _folder } = fixture();
    let run = |device: &str| {
        let names = [
            ("BlockDeviceMapping.1.DeviceName", device),
            ("BlockDeviceMapping.1.Ebs.VolumeSize", "1"),
        ];
        let host: evenkeel_core::ids::InstanceId =
            text(&run(&client, &names), "instanceId").parse().unwrap();
        let volumes = client.call("DescribeVolumes", &[]).unwrap();
        let its = volumes.items("volumeSet").iter().find(|volume| {
            let attached = volume.items("attachmentSet");
            attached.iter().any(|attached| text(attached, "instanceId") == host.to_string())
        });
        (host.to_string(), text(its.unwrap(), "volumeId").to_owned())
    };
    let (one, kept) = run("/dev/sdf");
    let (other, gone) = run("/dev/sdg");
    let unmark = [
        ("InstanceId", one.as_str()),
        ("BlockDeviceMapping.1.DeviceName", "/dev/sdf"),
        ("BlockDeviceMapping.1.Ebs.DeleteOnTermination", "false"),
    ];
    client.call("ModifyInstanceAttribute", &unmark).unwrap();
    let both = [("InstanceId.1", one.as_str()), ("InstanceId.2", other.as_str())];
    client.call("TerminateInstances", &both).unwrap();
    let left = client.call("DescribeVolumes", &[]).unwrap();
    let left: Vec<&str> = left.items("volumeSet").iter().map(|it| text(it, "volumeId")).collect();
    assert_eq!((left.as_slice(), gone == kept), ([kept.as_str()].as_slice(), false));
    let _ = server;
}
