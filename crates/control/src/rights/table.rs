//! The actions of all services, and the resources on which a user needs the right to each.
//!
//! The names are those of AWS's service authorization reference
//! (<https://docs.aws.amazon.com/service-authorization/latest/reference/>). Actions that EC2 does
//! not have are of the service `evenkeel`, so a policy that allows `ec2:*` does not allow them.

use Object::{
    AdoptedVolume, Arn, AttachedHosts, ChangedVolume, Instance, MappedVolumes, NewInstance,
    NewSnapshot, NewVolume, OfFis, Snapshot, Tagged, User, Volume, VolumesOf,
};

/// A resource of an action, by the parameter that names it. A parameter is an id or a list of ids.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Object {
    /// Volumes.
    Volume(&'static str),
    /// Snapshots.
    Snapshot(&'static str),
    /// Hosts.
    Instance(&'static str),
    /// Volumes, snapshots and hosts.
    Tagged(&'static str),
    /// A volume, as it is and as it would be.
    ChangedVolume(&'static str),
    /// A volume that the request makes of the stored bytes that the parameter names.
    AdoptedVolume(&'static str),
    /// The hosts to which the volume in `VolumeId` is attached, unless `InstanceId` names one.
    AttachedHosts,
    /// The volumes of a host, except those that `ExcludeDataVolumeId` names.
    VolumesOf(&'static str),
    /// The volumes that are made with a host, and the snapshots of which they are made.
    MappedVolumes,
    /// A volume that the request makes.
    NewVolume,
    /// A snapshot that the request makes.
    NewSnapshot,
    /// A host that the request makes.
    NewInstance,
    /// A resource that the parameter names by its ARN.
    Arn(&'static str),
    /// Resources of FIS that the parameter names by their ARNs: templates, experiments, actions.
    OfFis(&'static str),
    /// A user; without the parameter the caller.
    User(&'static str),
}

/// An action.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The service whose signature requests have.
    pub signed_for: &'static str,
    /// The service of the action in policies.
    pub service: &'static str,
    /// Its name.
    pub action: &'static str,
    /// Its resources; none if it can only be allowed on all (`*`).
    pub objects: &'static [Object],
}

const fn ec2(action: &'static str, objects: &'static [Object]) -> Row {
    Row { signed_for: "ec2", service: "ec2", action, objects }
}

const fn own(action: &'static str, objects: &'static [Object]) -> Row {
    Row { signed_for: "ec2", service: "evenkeel", action, objects }
}

const fn ebs(action: &'static str, objects: &'static [Object]) -> Row {
    Row { signed_for: "ebs", service: "ebs", action, objects }
}

const fn cloudwatch(action: &'static str) -> Row {
    Row { signed_for: "monitoring", service: "cloudwatch", action, objects: &[] }
}

const fn iam(action: &'static str, objects: &'static [Object]) -> Row {
    Row { signed_for: "iam", service: "iam", action, objects }
}

const fn fis(action: &'static str, objects: &'static [Object]) -> Row {
    Row { signed_for: "fis", service: "fis", action, objects }
}

/// The parameter with the template of a request to FIS.
pub const TEMPLATE: &str = "ExperimentTemplateArn";
/// The parameter with the experiment of a request to FIS.
pub const EXPERIMENT: &str = "ExperimentArn";
/// The parameters with the actions of a template of FIS.
pub const FIS_ACTION: &str = "ActionArn";

const OF_VOLUME: &[Object] = &[Volume("VolumeId")];
const OF_SNAPSHOT: &[Object] = &[Snapshot("SnapshotId")];
const OF_INSTANCE: &[Object] = &[Instance("InstanceId")];
const OF_SOURCES: &[Object] = &[Snapshot("SourceSnapshotId")];
const OF_USER: &[Object] = &[User("UserName")];
const OF_TEMPLATE: &[Object] = &[OfFis(TEMPLATE)];
const OF_EXPERIMENT: &[Object] = &[OfFis(EXPERIMENT)];
const ALL: &[Object] = &[];

/// All actions but GetCallerIdentity, which every signer may execute.
pub const ROWS: &[Row] = &[
    own("AdoptVolume", &[AdoptedVolume("VolumeId")]),
    ec2("AttachVolume", &[Volume("VolumeId"), Instance("InstanceId")]),
    ec2("CopySnapshot", &[Snapshot("SourceSnapshotId"), NewSnapshot]),
    ec2("CopyVolumes", &[Volume("SourceVolumeId"), NewVolume]),
    ec2("CreateSnapshot", &[Volume("VolumeId"), NewSnapshot]),
    ec2(
        "CreateSnapshots",
        &[
            Instance("InstanceSpecification.InstanceId"),
            VolumesOf("InstanceSpecification.InstanceId"),
            NewSnapshot,
        ],
    ),
    ec2("CreateTags", &[Tagged("ResourceId")]),
    ec2("CreateVolume", &[NewVolume, Snapshot("SnapshotId")]),
    ec2("DeleteSnapshot", OF_SNAPSHOT),
    ec2("DeleteTags", &[Tagged("ResourceId")]),
    own("DeleteUnownedSnapshot", OF_SNAPSHOT),
    own("DeleteUnownedVolume", OF_VOLUME),
    ec2("DeleteVolume", OF_VOLUME),
    own("DeregisterHost", OF_INSTANCE),
    ec2("DescribeAccountAttributes", ALL),
    ec2("DescribeAddresses", ALL),
    ec2("DescribeAvailabilityZones", ALL),
    own("DescribeCapacity", ALL),
    own("DescribeEndpoints", ALL),
    own("DescribeEvents", ALL),
    ec2("DescribeFastSnapshotRestores", ALL),
    own("DescribeHistory", ALL),
    ec2("DescribeImages", ALL),
    ec2("DescribeInstanceAttribute", OF_INSTANCE),
    ec2("DescribeInstanceStatus", ALL),
    ec2("DescribeInstanceTypes", ALL),
    ec2("DescribeInstances", ALL),
    ec2("DescribeLockedSnapshots", ALL),
    own("DescribeNodes", ALL),
    ec2("DescribeRegions", ALL),
    own("DescribeScrub", ALL),
    ec2("DescribeSnapshotAttribute", OF_SNAPSHOT),
    ec2("DescribeSnapshotTierStatus", ALL),
    ec2("DescribeSnapshots", ALL),
    ec2("DescribeTags", ALL),
    own("DescribeTestClock", ALL),
    own("DescribeTestFaults", ALL),
    own("DescribeUnownedSnapshots", ALL),
    own("DescribeUnownedVolumes", ALL),
    ec2("DescribeVolumeAttribute", OF_VOLUME),
    own("DescribeVolumeCredits", ALL),
    own("DescribeVolumeMetrics", ALL),
    own("DescribeVolumeRecording", OF_VOLUME),
    ec2("DescribeVolumeStatus", ALL),
    ec2("DescribeVolumes", ALL),
    ec2("DescribeVolumesModifications", ALL),
    ec2("DescribeVpcs", ALL),
    ec2("DetachVolume", &[Volume("VolumeId"), Instance("InstanceId"), AttachedHosts]),
    ec2("DisableEbsEncryptionByDefault", ALL),
    ec2("DisableFastSnapshotRestores", OF_SOURCES),
    ec2("DisableSnapshotBlockPublicAccess", ALL),
    ec2("EnableEbsEncryptionByDefault", ALL),
    ec2("EnableFastSnapshotRestores", OF_SOURCES),
    ec2("EnableSnapshotBlockPublicAccess", ALL),
    ec2("EnableVolumeIO", OF_VOLUME),
    ec2("GetEbsDefaultKmsKeyId", ALL),
    ec2("GetEbsEncryptionByDefault", ALL),
    ec2("GetSnapshotBlockPublicAccessState", ALL),
    ec2("ListSnapshotsInRecycleBin", ALL),
    ec2("ListVolumesInRecycleBin", ALL),
    ec2("LockSnapshot", OF_SNAPSHOT),
    ec2("ModifyEbsDefaultKmsKeyId", ALL),
    ec2("ModifyInstanceAttribute", OF_INSTANCE),
    own("ModifyNode", ALL),
    ec2("ModifySnapshotAttribute", OF_SNAPSHOT),
    ec2("ModifySnapshotTier", OF_SNAPSHOT),
    own("ModifyTestClock", ALL),
    ec2("ModifyVolume", &[ChangedVolume("VolumeId")]),
    ec2("ModifyVolumeAttribute", OF_VOLUME),
    own("MoveVolume", OF_VOLUME),
    own("PurgeSnapshot", OF_SNAPSHOT),
    own("PurgeVolume", OF_VOLUME),
    own("RegisterHost", &[NewInstance]),
    ec2("ResetEbsDefaultKmsKeyId", ALL),
    ec2("ResetSnapshotAttribute", OF_SNAPSHOT),
    ec2("RestoreSnapshotFromRecycleBin", OF_SNAPSHOT),
    ec2("RestoreSnapshotTier", OF_SNAPSHOT),
    ec2("RestoreVolumeFromRecycleBin", OF_VOLUME),
    ec2("RunInstances", &[NewInstance, MappedVolumes]),
    own("SetVolumeCredits", OF_VOLUME),
    ec2("StartInstances", OF_INSTANCE),
    own("StartScrub", ALL),
    ec2("StopInstances", OF_INSTANCE),
    own("StartTestFault", ALL),
    own("StopScrub", ALL),
    own("StopTestFaults", ALL),
    ec2("TerminateInstances", OF_INSTANCE),
    ec2("UnlockSnapshot", OF_SNAPSHOT),
    ebs("CompleteSnapshot", OF_SNAPSHOT),
    ebs("GetSnapshotBlock", OF_SNAPSHOT),
    ebs("ListChangedBlocks", &[Snapshot("SnapshotId"), Snapshot("FirstSnapshotId")]),
    ebs("ListSnapshotBlocks", OF_SNAPSHOT),
    ebs("PutSnapshotBlock", OF_SNAPSHOT),
    ebs("StartSnapshot", &[NewSnapshot, Snapshot("ParentSnapshotId")]),
    cloudwatch("DescribeAlarms"),
    cloudwatch("GetMetricData"),
    cloudwatch("GetMetricStatistics"),
    cloudwatch("ListMetrics"),
    fis("CreateExperimentTemplate", &[OfFis(TEMPLATE), OfFis(FIS_ACTION)]),
    fis("DeleteExperimentTemplate", OF_TEMPLATE),
    fis("GetExperiment", OF_EXPERIMENT),
    fis("GetExperimentTemplate", OF_TEMPLATE),
    fis("ListExperimentTemplates", ALL),
    fis("ListExperiments", ALL),
    fis("StartExperiment", &[OfFis(TEMPLATE), OfFis(EXPERIMENT)]),
    fis("StopExperiment", OF_EXPERIMENT),
    iam("AttachUserPolicy", OF_USER),
    iam("CreateAccessKey", OF_USER),
    iam("CreateUser", OF_USER),
    iam("DeleteAccessKey", OF_USER),
    iam("DeleteUser", OF_USER),
    iam("DeleteUserPolicy", OF_USER),
    iam("DetachUserPolicy", OF_USER),
    iam("GetPolicy", &[Arn("PolicyArn")]),
    iam("GetPolicyVersion", &[Arn("PolicyArn")]),
    iam("GetUser", OF_USER),
    iam("GetUserPolicy", OF_USER),
    iam("ListAccessKeys", OF_USER),
    iam("ListAttachedUserPolicies", OF_USER),
    iam("ListGroupsForUser", OF_USER),
    iam("ListPolicies", ALL),
    iam("ListUserPolicies", OF_USER),
    iam("ListUsers", ALL),
    iam("PutUserPolicy", OF_USER),
    iam("SimulatePrincipalPolicy", &[Arn("PolicySourceArn")]),
    iam("UpdateAccessKey", OF_USER),
    Row { signed_for: "cloudtrail", service: "cloudtrail", action: "LookupEvents", objects: ALL },
    Row { signed_for: "sts", service: "sts", action: "DecodeAuthorizationMessage", objects: ALL },
];

/// Returns the row of an action of a service.
#[must_use]
pub fn row(signed_for: &str, action: &str) -> Option<&'static Row> {
    ROWS.iter().find(|row| row.action == action && row.signed_for == signed_for)
}
