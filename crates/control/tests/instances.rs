//! Client hosts as EC2's instances, and attributes, over HTTP.

#![allow(clippy::unwrap_used)] // the helpers of tests may panic too

mod support;

use std::collections::BTreeMap;

use evenkeel_wire::agent::{FailedKind, HostAddress};
use evenkeel_wire::aws::xml::Element;
use support::{Client, Server, create, local_instance, text};

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

    // The flag of the second is turned on, that of the first off.
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
    // It is shown for an hour, and has come to its end.
    let shown = client.call("DescribeInstances", &one).unwrap();
    let shown = &shown.items("reservationSet")[0].items("instancesSet")[0];
    assert_eq!(text(shown.child("instanceState").unwrap(), "code"), "48");
    assert_eq!(client.code("StartInstances", &one), "IncorrectInstanceState");
    let volume = text(&volumes.items("volumeSet")[0], "volumeId");
    let attach = [("VolumeId", volume), ("InstanceId", id.as_str()), ("Device", "/dev/sdf")];
    assert_eq!(client.code("AttachVolume", &attach), "IncorrectInstanceState");
}

#[test]
fn what_cannot_be_run_leaves_nothing() {
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
        (vec![("Placement.AvailabilityZone", "elsewhere")], "InvalidParameterValue"),
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
