//! Capacity over HTTP: refusals and listings, and how both change with it.

use std::sync::Arc;

use crate::support::{Client, FakeAgent, Server, config, create, local_instance, text};
use evenkeel_core::qos::admission::{Costs, DeviceFloor, DomainFloor, Figure, LinearCost};
use evenkeel_core::time::Duration;
use evenkeel_core::volume::VolumeType;
use evenkeel_wire::agent::{Capacity, Measured};
use evenkeel_wire::aws::xml::Element;

/// 80 % of `iops` x 1.25 I/Os of 16 KiB are for sale; a byte costs 1 ns, a request nothing more.
fn measured(iops: u64, left_ppm: u32) -> Capacity {
    let cost = LinearCost { base: Duration::ZERO, byte_ps: 1_000 };
    let costs = Costs { read: cost, write: cost };
    Capacity::Measured(Box::new(Measured {
        calibration: "cal-0123".into(),
        date: "2026-11-21T04:00:00.000Z".into(),
        device: DeviceFloor { time_ns_per_second: iops * 16_384 * 5 / 4, costs },
        domain: DomainFloor::UNLIMITED,
        nodes: Vec::new(),
        strained: Vec::new(),
        left_ppm,
    }))
}

fn agent(capacity: Capacity) -> Arc<FakeAgent> {
    let agent = Arc::new(FakeAgent::default());
    agent.with(|state| state.capacity = capacity);
    agent
}

/// Returns the sold amount, the amount for sale and the shortage of the first line.
fn device(client: &Client) -> [u64; 3] {
    let reply = client.call("DescribeCapacity", &[]).unwrap();
    let line = &reply.items("soldSet")[0];
    assert_eq!(text(line, "resource"), "device time");
    ["sold", "forSale", "shortBy"].map(|name| text(line, name).parse().unwrap())
}

fn of_type(reply: &Element, volume_type: &str) -> Vec<String> {
    let mut types = reply.items("volumeTypeSet").iter();
    let item = types.find(|item| text(item, "volumeType") == volume_type).unwrap();
    ["reservation", "volumes", "iops", "bytesPerSecond", "oversell"]
        .map(|name| text(item, name).to_owned())
        .to_vec()
}

const IO2: [(&str, &str); 3] = [("VolumeType", "io2"), ("Size", "100"), ("Iops", "6000")];

#[test]
fn volume_that_does_not_fit_is_refused_with_one_that_would() {
    let folder = tempfile::tempdir().unwrap();
    let server =
        Server::start_with(config(folder.path()), agent(measured(10_000, 1_000_000))).unwrap();
    let client = server.client();
    let id = create(&client, &IO2);
    assert_eq!(device(&client), [6_000, 10_000, 0]);
    let mut second = vec![("AvailabilityZone", "local-1a")];
    second.extend(IO2);
    let before = server.agent.with(|state| state.log.len());
    for dry_run in ["true", "false"] {
        let mut params = second.clone();
        params.push(("DryRun", dry_run));
        let refused = client.call("CreateVolume", &params).unwrap_err();
        assert_eq!((refused.status, refused.code.as_str()), (500, "InsufficientVolumeCapacity"));
        assert_eq!(
            refused.message,
            "There is not enough device time left to sell (as calibrated) for an io2 volume of \
             100 GiB with 6000 IOPS: it reserves what is worth 6000 I/Os of 16 KiB per second, \
             4000 are left, short by 2000. What would fit is an io2 volume of 100 GiB with 4000 \
             IOPS: ask for no more, choose a type that reserves less, or make room; `evenkeel \
             volume capacity` lists what is sold. If the machine was busy during its measurement, \
             `evenkeel calibrate` repeats it; `evenkeel serve --sell-iops N` sets what is sold, \
             and `--no-guarantee` promises nothing and refuses nothing."
        );
    }
    // An invalid request gets its own error first, as clients that probe for limits expect.
    let mut probe = second.clone();
    probe.retain(|(name, _)| *name != "Iops");
    probe.push(("Iops", "2147483647"));
    assert_eq!(client.code("CreateVolume", &probe), "InvalidParameterCombination");
    let modify = [("VolumeId", id.as_str()), ("Iops", "10001")];
    assert_eq!(client.code("ModifyVolume", &modify), "InsufficientVolumeCapacity");
    let log = server.agent.with(|state| state.log.len());
    assert_eq!(log, before, "the data plane was called for a refused request");
    client.call("ModifyVolume", &[("VolumeId", &id), ("Iops", "10000")]).unwrap();
    let none = client.call("CreateVolume", &second).unwrap_err().message;
    assert!(none.contains(" No io2 volume would fit: choose a type that reserves less,"), "{none}");
    client.call("DeleteVolume", &[("VolumeId", &id)]).unwrap();
    assert_eq!(device(&client), [0, 10_000, 0]);
}

#[test]
fn drift_keeps_existing_volumes_and_is_reported() {
    let folder = tempfile::tempdir().unwrap();
    let server =
        Server::start_with(config(folder.path()), agent(measured(10_000, 1_000_000))).unwrap();
    let client = server.client();
    let id = create(&client, &IO2);
    server.agent.with(|state| state.capacity = measured(10_000, 500_000));
    assert_eq!(device(&client), [6_000, 5_000, 1_000]);
    let reply = client.call("DescribeCapacity", &[]).unwrap();
    assert_eq!(text(reply.child("calibration").unwrap(), "leftPpm"), "500000");
    let instance = local_instance(&client);
    let attach = [("VolumeId", id.as_str()), ("InstanceId", &instance), ("Device", "/dev/sdf")];
    client.call("AttachVolume", &attach).unwrap();
    assert_eq!(
        client.code("ModifyVolume", &[("VolumeId", &id), ("Iops", "6001")]),
        "InsufficientVolumeCapacity"
    );
    create(&client, &[("VolumeType", "standard")]);
    client.call("ModifyVolume", &[("VolumeId", &id), ("Iops", "5500")]).unwrap();
    assert_eq!(device(&client), [5_500, 5_000, 500]);
    // While the data plane does not answer, its last answer stays in force.
    server.agent.with(|state| state.fail_always = Some(evenkeel_wire::agent::FailedKind::Down));
    assert_eq!(device(&client), [5_500, 5_000, 500]);
    server.agent.with(|state| state.fail_always = None);
    server.agent.with(|state| state.capacity = measured(10_000, 1_000_000));
    assert_eq!(device(&client), [5_500, 10_000, 0]);
}

#[test]
fn unknown_capacity_is_reported_as_unknown() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    create(&client, &[("VolumeType", "io2"), ("Size", "1000"), ("Iops", "256000")]);
    create(&client, &[("VolumeType", "gp2"), ("Size", "1000")]);
    let reply = client.call("DescribeCapacity", &[]).unwrap();
    assert_eq!(text(&reply, "capacityState"), "unknown");
    assert!(reply.items("soldSet").is_empty() && reply.child("calibration").is_none());
    assert_eq!(of_type(&reply, "io2"), ["provisioned", "1", "256000", "4194304000", "1"]);
    assert_eq!(of_type(&reply, "gp2"), ["baseline", "1", "3000", "49152000", "1"]);
    assert_eq!(of_type(&reply, "standard"), ["nothing", "0", "0", "0", "1"]);
    assert_eq!(of_type(&reply, "st1")[0], "base throughput");
}

/// The operator's figure; the books equal the sum over the volumes.
#[test]
fn a_figure_and_factors_are_the_operator_s_and_books_come_back() {
    let folder = tempfile::tempdir().unwrap();
    let mut config = config(folder.path());
    config.settings.figure = Some(Figure::new(10_000, 500).unwrap());
    config.settings.oversell.insert(VolumeType::Io2, "1.5".parse().unwrap());
    let server = Server::start_with(config.clone(), Arc::default()).unwrap();
    let client = server.client();
    create(&client, &[("VolumeType", "io2"), ("Size", "100"), ("Iops", "15000")]);
    let reply = client.call("DescribeCapacity", &[]).unwrap();
    assert_eq!(text(&reply, "capacityState"), "limited");
    let figure = reply.child("operatorFigure").unwrap();
    assert_eq!((text(figure, "iops"), text(figure, "throughput")), ("10000", "500"));
    assert_eq!(text(&reply.items("soldSet")[0], "source"), "operator");
    assert_eq!(of_type(&reply, "io2"), ["provisioned", "1", "15000", "245760000", "1.5"]);
    let one_more =
        [("AvailabilityZone", "local-1a"), ("VolumeType", "io2"), ("Size", "4"), ("Iops", "100")];
    let refused = client.call("CreateVolume", &one_more).unwrap_err().message;
    assert!(refused.contains("(as the operator has set it)"), "{refused}");
    assert!(refused.contains(" This is with io2 sold 1.5 times over."), "{refused}");
    server.stop().unwrap();
    // Without the factor the same volumes exceed the capacity. They stay.
    config.settings.oversell.clear();
    let server = Server::start_with(config.clone(), Arc::default()).unwrap();
    assert_eq!(device(&server.client()), [15_000, 10_000, 5_000]);
    server.stop().unwrap();
    config.settings.figure = Some(Figure::new(20_000, 500).unwrap());
    let server = Server::start_with(config, Arc::default()).unwrap();
    assert_eq!(device(&server.client()), [15_000, 20_000, 0]);
    assert_eq!(server.client().code("DescribeCapacity", &[("X", "1")]), "UnknownParameter");
}
