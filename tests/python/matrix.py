"""Which parameters of the API work, by asking a server. Argument: the page to write.

The parameters are those of botocore's own models. Each is sent with a plausible value, beside what
the verb requires; EC2's verbs as a dry run, which the server answers after all its checks. The
answer says whether the server knows the parameter. Every reply is held to the model, too; what is
wrong is printed, and fails the run.
"""

import pathlib
import re
import sys

import botocore

from asking import MANAGED, POLICY, Server, Verb, World, block
from replies import EXTENSIONS, VALUES, check_the_check

EC2 = """CreateVolume CopyVolumes DeleteVolume DescribeVolumes DescribeVolumeStatus
    DescribeVolumeAttribute ModifyVolumeAttribute EnableVolumeIO ModifyVolume
    DescribeVolumesModifications AttachVolume DetachVolume CreateSnapshot CreateSnapshots
    CopySnapshot DeleteSnapshot DescribeSnapshots DescribeSnapshotAttribute
    ModifySnapshotAttribute ResetSnapshotAttribute LockSnapshot UnlockSnapshot
    DescribeLockedSnapshots EnableFastSnapshotRestores DisableFastSnapshotRestores
    DescribeFastSnapshotRestores ListSnapshotsInRecycleBin RestoreSnapshotFromRecycleBin
    ListVolumesInRecycleBin RestoreVolumeFromRecycleBin EnableEbsEncryptionByDefault
    DisableEbsEncryptionByDefault GetEbsEncryptionByDefault GetEbsDefaultKmsKeyId
    ModifyEbsDefaultKmsKeyId ResetEbsDefaultKmsKeyId RunInstances DescribeInstances
    ModifyInstanceAttribute StopInstances StartInstances TerminateInstances DescribeInstanceTypes
    DescribeInstanceAttribute DescribeInstanceStatus DescribeAvailabilityZones DescribeRegions
    DescribeAccountAttributes CreateTags DeleteTags DescribeTags DescribeImages DescribeVpcs
    DescribeAddresses ModifySnapshotTier RestoreSnapshotTier
    DescribeSnapshotTierStatus GetSnapshotBlockPublicAccessState EnableSnapshotBlockPublicAccess
    DisableSnapshotBlockPublicAccess""".split()
# Of these services those that clients of users and their rights call first.
IAM = """AttachUserPolicy CreateAccessKey CreateUser DeleteAccessKey DeleteUser DeleteUserPolicy
    DetachUserPolicy GetPolicy GetPolicyVersion GetUser GetUserPolicy ListAccessKeys
    ListAttachedUserPolicies ListGroupsForUser ListPolicies ListUserPolicies ListUsers
    PutUserPolicy SimulatePrincipalPolicy UpdateAccessKey CreateGroup CreatePolicy
    CreateRole UpdateUser""".split()
STS = "DecodeAuthorizationMessage GetCallerIdentity AssumeRole GetSessionToken".split()
CLOUDTRAIL = ["LookupEvents", "DescribeTrails"]
CLOUDWATCH = "ListMetrics GetMetricData GetMetricStatistics DescribeAlarms".split()

# The column "checked only" of docs/reference/api.md: that a value has no effect is not seen from
# outside. A parameter of which only some values are accepted stands with the value.
CHECKED = {
    "CreateVolume": ["VolumeInitializationRate"],
    "DescribeVolumesModifications": ["IncludeManagedResources"],
    "CopySnapshot": ["PresignedUrl", "CompletionDurationMinutes"],
    "ModifyEbsDefaultKmsKeyId": ["KmsKeyId"],
    "RunInstances": ["ImageId", "KeyName", "UserData", "SubnetId", "SecurityGroup",
                     "SecurityGroupId", "EbsOptimized", "Monitoring.Enabled",
                     "InstanceInitiatedShutdownBehavior", "DisableApiTermination"],
    "StartInstances": ["AdditionalInfo"],
    "StopInstances": ["Force", "SkipOsShutdown", "Hibernate=false"],
    "TerminateInstances": ["Force", "SkipOsShutdown"],
    "ModifyInstanceAttribute": ["BlockDeviceMapping.Ebs.VolumeId"],
    "DescribeRegions": ["AllRegions"],
    "DescribeVolumes": ["IncludeManagedResources"],
    "DescribeVolumeStatus": ["IncludeManagedResources"],
    "AttachVolume": ["EbsCardIndex"],
    "DetachVolume": ["Force"],
    "CreateSnapshot": ["Location=regional"],
    "CreateSnapshots": ["Location=regional"],
    "DescribeSnapshots": ["RestorableBy"],
    "DescribeInstances": ["IncludeManagedResources"],
    "DescribeInstanceStatus": ["IncludeManagedResources"],
    "DescribeInstanceTypes": ["IncludeUnsupportedInRegion"],
    "DescribeAvailabilityZones": ["AllAvailabilityZones"],
}


def exercise(server, world):
    """Real calls, whose replies are held to the model: volumes, snapshots and tags in use."""
    ec2, zone = world.ec2, world.zone
    tags = [{"Key": "Name", "Value": "é & <b>"}, {"Key": "empty", "Value": ""}]
    specification = [{"ResourceType": "volume", "Tags": tags}]
    kinds = [dict(VolumeType="io2", Size=10, Iops=500, MultiAttachEnabled=True),
             dict(VolumeType="gp3", Size=10, Throughput=125), dict(VolumeType="gp2", Size=10),
             dict(VolumeType="st1", Size=125), dict(VolumeType="standard", Size=1),
             dict(VolumeType="gp3", SnapshotId=world.snapshot)]
    volumes = [ec2("CreateVolume", AvailabilityZone=zone, TagSpecifications=specification,
                   **kind)["VolumeId"] for kind in kinds]
    for volume, letter in zip(volumes, "fgh"):
        ec2("AttachVolume", VolumeId=volume, InstanceId=world.instance, Device=f"/dev/sd{letter}")
    ec2("ModifyVolume", VolumeId=volumes[0], Size=20, Iops=600)
    ec2("ModifyVolume", VolumeId=volumes[2], VolumeType="gp3")
    ec2("CreateTags", Resources=volumes[:2], Tags=[{"Key": "team", "Value": "blue"}])
    tags_of = [{"ResourceType": "snapshot", "Tags": tags}]
    made = ec2("CreateSnapshot", VolumeId=volumes[0], Description="one", TagSpecifications=tags_of)
    ec2("CreateSnapshots", InstanceSpecification={"InstanceId": world.instance},
        Description="all", CopyTagsFromSource="volume")
    ec2("CreateSnapshot", VolumeId=volumes[3])
    for verb, least in (("DescribeVolumes", 5), ("DescribeVolumeStatus", 5), ("DescribeTags", 5),
                        ("DescribeVolumesModifications", 1), ("DescribeSnapshots", 5),
                        ("DescribeInstances", 5), ("DescribeInstanceTypes", 100)):
        page = ec2(verb, MaxResults=least)
        while page.get("NextToken"):
            page = ec2(verb, MaxResults=least, NextToken=page["NextToken"])
        ec2(verb)
    tiers(ec2, world.make_snapshot())
    ec2("DetachVolume", VolumeId=volumes[1])
    ec2("DeleteTags", Resources=volumes[:1], Tags=[{"Key": "team"}])
    ec2("DeleteSnapshot", SnapshotId=made["SnapshotId"])
    ec2("DeleteVolume", VolumeId=volumes[1])
    direct(server, world)
    identity(server, world)


def identity(server, world):
    """The same for users and their rights, and for the records of calls."""
    def iam(verb, **parameters):
        return server.do("iam", verb, **parameters)

    name = world.make_user()
    user = {"UserName": name}
    own = {**user, "PolicyName": "own"}
    key = iam("CreateAccessKey", **user)["AccessKey"]
    iam("UpdateAccessKey", **user, AccessKeyId=key["AccessKeyId"], Status="Inactive")
    iam("PutUserPolicy", **own, PolicyDocument=POLICY)
    iam("AttachUserPolicy", **user, PolicyArn=MANAGED)
    for verb in ("GetUser", "ListAccessKeys", "ListAttachedUserPolicies", "ListGroupsForUser",
                 "ListUserPolicies"):
        iam(verb, **user)
    iam("GetUserPolicy", **own)
    iam("GetPolicy", PolicyArn=MANAGED)
    iam("GetPolicyVersion", PolicyArn=MANAGED, VersionId="v1")
    arn = iam("GetUser", **user)["User"]["Arn"]
    iam("SimulatePrincipalPolicy", PolicySourceArn=arn, ActionNames=["ec2:DeleteVolume"])
    for verb in ("ListUsers", "ListPolicies"):
        page = iam(verb, MaxItems=1)
        while page["IsTruncated"]:
            page = iam(verb, MaxItems=1, Marker=page["Marker"])
    server.do("sts", "GetCallerIdentity")
    server.do("cloudtrail", "LookupEvents", LookupAttributes=[
        {"AttributeKey": "Username", "AttributeValue": "root"}])
    iam("DetachUserPolicy", **user, PolicyArn=MANAGED)
    iam("DeleteUserPolicy", **own)
    iam("DeleteAccessKey", **user, AccessKeyId=key["AccessKeyId"])
    iam("DeleteUser", **user)


def tiers(ec2, snapshot):
    """The same for the storage tiers of a snapshot."""
    ec2("DescribeSnapshotTierStatus")
    ec2("ModifySnapshotTier", SnapshotId=snapshot, StorageTier="archive")
    ec2("DescribeSnapshotTierStatus")
    ec2("RestoreSnapshotTier", SnapshotId=snapshot, TemporaryRestoreDays=1)
    ec2("DescribeSnapshotTierStatus")
    ec2("DescribeSnapshots")
    ec2("RestoreSnapshotTier", SnapshotId=snapshot, PermanentRestore=True)
    ec2("DescribeSnapshotTierStatus")


def direct(server, world):
    """The same for the EBS direct APIs."""
    first = world.snapshot

    def ebs(verb, **parameters):
        return server.do("ebs", verb, **parameters)

    second = ebs("StartSnapshot", VolumeSize=2, ParentSnapshotId=first, Description="two",
                 Timeout=60, Tags=[{"Key": "Name", "Value": "é"}])["SnapshotId"]
    # The parent has block 0, and this one is put beside it.
    ebs("PutSnapshotBlock", SnapshotId=second, **{**block(), "BlockIndex": 1}, Progress=50)
    listed = ebs("ListSnapshotBlocks", SnapshotId=first, MaxResults=100)["Blocks"][0]
    ebs("CompleteSnapshot", SnapshotId=second, ChangedBlocksCount=1)
    ebs("GetSnapshotBlock", SnapshotId=first, **listed)["BlockData"].read()
    ebs("ListChangedBlocks", FirstSnapshotId=first, SecondSnapshotId=second)
    ebs("ListChangedBlocks", SecondSnapshotId=second)


def call_the_rest(server, verbs):
    """What `exercise` knows nothing of: a real call with the least that the verb needs, of
    resources of its own. It may fail, which is another reply to be checked."""
    for verb in verbs:
        if verb.name not in server.checker.succeeded:
            alone = Verb(server, World(server), verb.service, verb.name)
            alone.find_base()
            server.call(alone.service, alone.name, alone.base)


def cells_of(verb):
    """The parameters of each class, in four lists."""
    cells = {"works": [], "checked": [], "refused": [], "absent": []}
    checked = list(CHECKED.get(verb.name, []))
    for shown, classes in sorted(verb.found.items()):
        kinds = sorted(set(classes.values()))
        for value, kind in classes.items():
            name = shown if len(kinds) == 1 else f"{shown}={value}"
            if name in checked and kind == "works":
                kind = "checked"
            if name not in cells[kind]:
                cells[kind].append(name)
    for name in set(checked) - set(cells["checked"]):
        verb.report(f"{name} is in CHECKED, and the server does not accept it")
    return cells


INTRODUCTION = """# The API, parameter by parameter

This page is generated. A test sends each parameter of botocore's models to a server with the store
`local`, and records what the server answers. It runs with every change, and fails if this page is
not what it finds. The models are those of botocore {version}:
{models}. This command writes the page again:

```sh
EVENKEEL_WRITE=1 cargo test --test api matrix
```

*Works*: the server knows the parameter and uses it. *Checked only*: the value is validated and has
no effect. *Refused*: the server knows the parameter and answers `UnsupportedOperation`. *Absent*:
the server does not know the parameter and answers `UnknownParameter`. A verb that is absent gets
`InvalidAction`. [The API](api.md) describes the verbs, their values, and what differs from EC2.

- Names are those in requests. SDKs have some of them in the plural: `Filter` is `Filters` in boto3.
- `A.B` is the member B of the structure A, or of each element of the list A.
- `A=value` is a parameter that the server treats in one way with this value, and in another way
  with others. A parameter with such values is counted once in each column.
- The EBS direct APIs answer `ValidationException` to what is refused and to what is absent,
  CloudTrail `SerializationException` to what is absent.

The test also holds every reply to the same models. It fails if a reply has a member that the
model does not have, or a value that is not of the model's type. The only exceptions: {extensions}.
"""

SERVICES = {"ec2": "EC2", "ebs": "EBS direct APIs", "cloudwatch": "CloudWatch", "iam": "IAM",
            "sts": "STS", "cloudtrail": "CloudTrail"}


def page(server, verbs, present):
    """The page's text."""
    versions = [f"{SERVICES[name]} {client.meta.service_model.api_version}"
                for name, client in server.clients.items()]
    extensions = [f"`{name}` of {shape}" for shape, name in sorted(EXTENSIONS)]
    extensions += [f"the value `{value}` of {shape}" for shape, value in sorted(VALUES)]
    text = INTRODUCTION.format(version=botocore.__version__, extensions=", ".join(extensions),
                               models=", ".join(versions))
    cells = {verb: cells_of(verb) for verb in verbs}
    text += "\n## How many\n\n| verb | works | checked only | refused | absent |\n"
    text += "| --- | --- | --- | --- | --- |\n"
    for verb, kinds in cells.items():
        counts = [str(len(names)) for names in kinds.values()]
        if verb not in present:
            counts = ["absent", "", "", counts[-1]]
        text += f"| {verb.name} | {' | '.join(counts)} |\n"
    of_present = [kinds for verb, kinds in cells.items() if verb in present]
    sums = [str(sum(len(kinds[kind]) for kinds in of_present)) for kind in of_present[0]]
    text += f"| all {len(present)} that are present | {' | '.join(sums)} |\n"
    for service, title in SERVICES.items():
        text += f"\n## {title}\n\n" + table(cells, present, service)
    unseen = [verb.name for verb in present if verb.name not in server.checker.succeeded]
    if unseen:
        text += "\nThe test sees replies of these verbs only that are errors: "
        text += f"{', '.join(unseen)}.\n"
    return text


def table(cells, present, service):
    """The parameters of a service's verbs by their names, and its verbs that are absent."""
    rows, absent = [], []
    for verb, kinds in cells.items():
        if verb.service == service and verb in present:
            rows.append(f"| {verb.name} | {' | '.join(map(', '.join, kinds.values()))} |\n")
        elif verb.service == service:
            absent.append(verb.name)
    head = "| verb | works | checked only | refused | absent |\n| --- | --- | --- | --- | --- |\n"
    parts = [head + "".join(rows)] if rows else []
    parts += [f"Absent: {', '.join(absent)}.\n"] if absent else []
    return "\n".join(parts)


def check_against_the_page(verbs):
    """What is checked only is what docs/reference/api.md says: the third cell of a verb's row."""
    root = pathlib.Path(__file__).parent.parent.parent
    text = (root / "docs/reference/api.md").read_text(encoding="utf-8")
    rows = [[cell.strip() for cell in line.split("|")] for line in text.splitlines()]
    cells = {name.strip(): row[3] for row in rows if len(row) == 6
             for name in row[1].split(",")}
    for verb in verbs:
        known = {shown.partition(".")[0] for shown in verb.found}
        # In parentheses it says what it means by them.
        words = re.findall(r"\w+", re.sub(r"\(.*?\)", "", cells.get(verb.name, "")))
        said = known.intersection(words) if verb.service == "ec2" else set()
        listed = {re.split("[=.]", name)[0] for name in CHECKED.get(verb.name, [])}
        if said != listed:
            verb.report(f"docs/reference/api.md calls {said or 'nothing'} checked only, and CHECKED"
                        f" in tests/python/matrix.py {listed or 'nothing'}")


def main(path):
    check_the_check()
    server = Server()
    world = World(server)
    exercise(server, world)
    names = [("ec2", name) for name in EC2]
    names += [("ebs", name) for name in server.clients["ebs"].meta.service_model.operation_names]
    for service, listed in (("cloudwatch", CLOUDWATCH), ("iam", IAM), ("sts", STS),
                            ("cloudtrail", CLOUDTRAIL)):
        names += [(service, name) for name in listed]
    verbs = [Verb(server, world, service, name) for service, name in names]
    present = [verb for verb in verbs if verb.probe()]
    call_the_rest(server, present)
    check_against_the_page(verbs)
    with open(path, "w", encoding="utf-8") as file:
        file.write(page(server, verbs, present))
    sys.exit("\n".join(server.checker.problems) or None)


main(sys.argv[1])
