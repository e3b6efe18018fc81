//! Malformed and refused requests get EC2's error codes and texts.
use crate::support::{Refused, Server};

const ABSENT_VOLUME: &str = "vol-0123456789abcdef0";

/// The stock CSI driver reads the limits from refused dry runs.
#[test]
fn limits_can_be_read_out_of_refusals() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    for (volume_type, code, message) in [
        ("gp3", "InvalidParameterValue", "Volume iops of 2147483647 is too high; maximum is 80000"),
        ("io1", "InvalidParameterValue", "Volume iops of 2147483647 is too high; maximum is 64000"),
        (
            "io2",
            "InvalidParameterCombination",
            "io2 volumes configured with greater than 64 TiB or 256K IOPS or 1000:1 IOPS:GB ratio \
             are not supported",
        ),
    ] {
        let params = [
            ("AvailabilityZone", "local-1a"),
            ("Size", "4"),
            ("DryRun", "true"),
            ("VolumeType", volume_type),
            ("Iops", "2147483647"),
        ];
        let message = message.into();
        let refused = Refused { status: 400, code: code.into(), message };
        assert_eq!(client.call("CreateVolume", &params), Err(refused));
    }
}

const ZONE: (&str, &str) = ("AvailabilityZone", "local-1a");

/// An action, its parameters, and the code and text of its refusal (an empty text: any).
type Malformed =
    (&'static str, &'static [(&'static str, &'static str)], &'static str, &'static str);

const MALFORMED: &[Malformed] = &[
    (
        "CreateImage",
        &[],
        "InvalidAction",
        "The action CreateImage is not valid for this web service. docs/reference/api.md lists \
         the actions that are; the nearest is CreateSnapshot.",
    ),
    (
        "CreateVolume",
        &[ZONE],
        "MissingParameter",
        "The request must contain the parameter size/snapshot",
    ),
    (
        "CreateVolume",
        &[("Size", "1")],
        "MissingParameter",
        "The request must contain the parameter availabilityZone",
    ),
    (
        "CreateVolume",
        &[ZONE, ("Size", "-1")],
        "InvalidParameterValue",
        "Value (-1) for parameter size is invalid. Must be a whole number that is not \
             negative.",
    ),
    (
        "CreateVolume",
        &[ZONE, ("Size", "4294967296")],
        "InvalidParameterValue",
        "Value (4294967296) for parameter size is invalid. It is too large.",
    ),
    (
        "CreateVolume",
        &[("AvailabilityZone", "x"), ("Size", "1")],
        "InvalidZone.NotFound",
        "The zone 'x' does not exist.",
    ),
    (
        "CreateVolume",
        &[ZONE, ("AvailabilityZoneId", "local1-az1"), ("Size", "1")],
        "InvalidParameterCombination",
        "The parameters AvailabilityZone and AvailabilityZoneId cannot be used together",
    ),
    (
        "CreateVolume",
        &[ZONE, ("Size", "1"), ("VolumeType", "gp9")],
        "UnknownVolumeType",
        "Unsupported volume type 'gp9' for volume creation.",
    ),
    (
        "CreateVolume",
        &[ZONE, ("Size", "4"), ("VolumeType", "io2")],
        "InvalidParameterCombination",
        "",
    ),
    (
        "CreateVolume",
        &[ZONE, ("Size", "1"), ("Encrypted", "true")],
        "UnsupportedOperation",
        "Encryption is asked for, by the request or by the default of the account, and the \
         store has no key; serve with --key-file or --key-command",
    ),
    (
        "CreateVolume",
        &[ZONE, ("Size", "1"), ("Encrypted", "maybe")],
        "InvalidParameterValue",
        "Value (maybe) for parameter encrypted is invalid. Must be true or false.",
    ),
    (
        "CreateVolume",
        &[ZONE, ("Size", "1"), ("KmsKeyId", "k")],
        "InvalidParameterDependency",
        "The parameter [KmsKeyId] requires the parameter Encrypted to be set.",
    ),
    (
        "CreateVolume",
        &[ZONE, ("SnapshotId", "snap-1")],
        "InvalidSnapshotID.Malformed",
        "Value (snap-1) for parameter snapshotId is invalid. Expected: 'snap-...'.",
    ),
    (
        "CreateVolume",
        &[ZONE, ("SnapshotId", "snap-00000000000000abc")],
        "InvalidSnapshot.NotFound",
        "The snapshot 'snap-00000000000000abc' does not exist.",
    ),
    (
        "CreateVolume",
        &[ZONE, ("Size", "1"), ("TagSpecification.1.ResourceType", "instance")],
        "InvalidParameterValue",
        "'instance' is not a valid taggable resource type for this operation.",
    ),
    (
        "DeleteVolume",
        &[("VolumeId", ABSENT_VOLUME)],
        "InvalidVolume.NotFound",
        "The volume 'vol-0123456789abcdef0' does not exist.",
    ),
    (
        "DeleteVolume",
        &[("VolumeId", "vol-1")],
        "InvalidVolumeID.Malformed",
        "Value (vol-1) for parameter volumeId is invalid. Expected: 'vol-...'.",
    ),
    ("DeleteVolume", &[], "MissingParameter", "The request must contain the parameter volumeId"),
    (
        "DescribeInstances",
        &[("InstanceId.1", "i-1")],
        "InvalidInstanceID.Malformed",
        "Invalid id: \"i-1\"",
    ),
    (
        "DescribeVolumes",
        &[("Filter.1.Name", "nope"), ("Filter.1.Value.1", "x")],
        "InvalidParameterValue",
        "The filter 'nope' is invalid",
    ),
    (
        "DescribeVolumes",
        &[("MaxResults", "1")],
        "InvalidParameterValue",
        "Value ( 1 ) for parameter maxResults is invalid. Expecting a value of at least 5.",
    ),
    (
        "DescribeVolumes",
        &[("NextToken", "zz")],
        "InvalidPaginationToken",
        "The token 'zz' was not given out by this server",
    ),
    (
        "DescribeInstanceTypes",
        &[("InstanceType.1", "m5.huge")],
        "InvalidInstanceType",
        "The following supplied instance types do not exist: [m5.huge]",
    ),
    (
        "CreateTags",
        &[("ResourceId.1", "snap-1"), ("Tag.1.Key", "k")],
        "InvalidID",
        "The ID 'snap-1' is not valid",
    ),
    (
        "CreateTags",
        &[("ResourceId.1", ABSENT_VOLUME), ("Tag.1.Key", "aws:k")],
        "InvalidParameterValue",
        "Tag keys starting with 'aws:' are reserved for internal use",
    ),
    (
        "RegisterHost",
        &[("InstanceType", "m5.large"), ("Address", "nowhere")],
        "InvalidParameterValue",
        "Value (nowhere) for parameter address is invalid. Must be an IPv4 or IPv6 address.",
    ),
];

#[test]
fn malformed_requests_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let server = Server::start(folder.path());
    let client = server.client();
    for (action, params, code, message) in MALFORMED {
        let Refused { status, code: c, message: m } = client.call(action, params).unwrap_err();
        assert_eq!((status, c.as_str()), (400, *code), "{action} {params:?}: {m}");
        assert!(message.is_empty() || m == *message, "{action} {params:?}: {m}");
    }
}
