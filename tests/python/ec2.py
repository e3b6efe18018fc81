"""The EC2 API as boto3 speaks it. Arguments: name of a check; the environment says where."""

import datetime
import os
import sys
import uuid

import boto3
import botocore.config
import botocore.exceptions

ZONE = "local-1a"


def connect(**changes):
    return connect_to("ec2", **changes)


def connect_to(service, **changes):
    config = botocore.config.Config(retries={"total_max_attempts": 1}, proxies={})
    return boto3.client(service, config=config, **changes)


def numbered(client):
    """Has each request sign a number of its own, as the SDK for Go has it: two that say the same in
    the same second are two."""
    def number(request, **_):
        request.headers["x-amz-number"] = str(uuid.uuid4())

    client.meta.events.register("before-sign", number)
    return client


def expect(found, expected):
    assert found == expected, f"found {found}, expected {expected}"


def refused(code, call, status=400, **parameters):
    """Checks that a call fails with this code and HTTP status."""
    try:
        call(**parameters)
    except botocore.exceptions.ClientError as error:
        found = error.response["Error"]["Code"]
        assert found == code, f"{parameters}: {error}, expected {code}"
        expect(error.response["ResponseMetadata"]["HTTPStatusCode"], status)
        assert error.response["Error"]["Message"], error
        return error.response["Error"]["Message"]
    raise AssertionError(f"{parameters}: done, expected {code}")


def create(ec2, size, kind, **more):
    return ec2.create_volume(AvailabilityZone=ZONE, Size=size, VolumeType=kind, **more)["VolumeId"]


def local_instance(ec2):
    for reservation in ec2.describe_instances()["Reservations"]:
        for instance in reservation["Instances"]:
            if instance["InstanceType"] == "evenkeel.local":
                return instance["InstanceId"]
    raise AssertionError("no instance for this machine")


def lifecycle(ec2):
    tags = [{"Key": "Name", "Value": "é & <b>"}]
    made = ec2.create_volume(
        AvailabilityZone=ZONE, Size=20, VolumeType="io1", Iops=500, MultiAttachEnabled=False,
        TagSpecifications=[{"ResourceType": "volume", "Tags": tags}])
    volume = made["VolumeId"]
    expect((made["Size"], made["Iops"], made["VolumeType"]), (20, 500, "io1"))
    expect((made["AvailabilityZone"], made["Encrypted"]), (ZONE, False))
    ec2.get_waiter("volume_available").wait(VolumeIds=[volume])
    instance = local_instance(ec2)
    attached = ec2.attach_volume(VolumeId=volume, InstanceId=instance, Device="/dev/sdf")
    expect((attached["VolumeId"], attached["Device"]), (volume, "/dev/sdf"))
    ec2.get_waiter("volume_in_use").wait(VolumeIds=[volume])
    shown = ec2.describe_volumes(VolumeIds=[volume])["Volumes"][0]
    expect(shown["State"], "in-use")
    expect(shown["Attachments"][0]["InstanceId"], instance)
    expect(shown["Tags"], tags)
    mapping = ec2.describe_instances(InstanceIds=[instance])
    mapping = mapping["Reservations"][0]["Instances"][0]["BlockDeviceMappings"]
    expect([(each["DeviceName"], each["Ebs"]["VolumeId"]) for each in mapping],
           [("/dev/sdf", volume)])
    ec2.modify_volume(VolumeId=volume, Iops=900, Size=25, VolumeType="io2")
    changes = ec2.describe_volumes_modifications(VolumeIds=[volume])["VolumesModifications"]
    expect(len(changes), 1)
    change = changes[0]
    expect((change["OriginalIops"], change["TargetIops"]), (500, 900))
    expect((change["OriginalSize"], change["TargetSize"]), (20, 25))
    expect((change["OriginalVolumeType"], change["TargetVolumeType"]), ("io1", "io2"))
    expect((change["ModificationState"], change["Progress"]), ("completed", 100))
    ec2.detach_volume(VolumeId=volume)
    ec2.get_waiter("volume_available").wait(VolumeIds=[volume])
    ec2.delete_volume(VolumeId=volume)
    ec2.get_waiter("volume_deleted").wait(VolumeIds=[volume])
    refused("InvalidVolume.NotFound", ec2.describe_volumes, VolumeIds=[volume])


def filters(ec2):
    small = create(ec2, 10, "gp2")
    large = create(ec2, 100, "gp3", Iops=4000, Throughput=250)
    busy = create(ec2, 10, "io2", Iops=100)
    ec2.attach_volume(VolumeId=busy, InstanceId=local_instance(ec2), Device="/dev/sdg")
    ec2.create_tags(Resources=[small, busy], Tags=[{"Key": "team", "Value": "blue"}])

    def found(**wanted):
        pairs = [{"Name": name.replace("__", ":").replace("_", "-"), "Values": values}
                 for name, values in wanted.items()]
        return sorted(each["VolumeId"] for each in ec2.describe_volumes(Filters=pairs)["Volumes"])

    expect(found(volume_type=["gp2", "io2"]), sorted([small, busy]))
    expect(found(volume_type=["gp?"], size=["100"]), [large])
    expect(found(status=["in-use"]), [busy])
    expect(found(tag__team=["bl*"]), sorted([small, busy]))
    expect(found(tag_key=["team"], status=["available"]), [small])
    expect(found(volume_id=[large]), [large])
    expect(found(iops=["1"]), [])
    refused("InvalidParameterValue", ec2.describe_volumes,
            Filters=[{"Name": "colour", "Values": ["red"]}])
    tags = ec2.describe_tags(Filters=[{"Name": "resource-id", "Values": [small]}])["Tags"]
    expect([(tag["Key"], tag["Value"]) for tag in tags], [("team", "blue")])
    ec2.delete_tags(Resources=[small], Tags=[{"Key": "team"}])
    expect(found(tag_key=["team"]), [busy])
    for _ in range(9):
        create(ec2, 1, "gp2")
    pages = list(ec2.get_paginator("describe_volumes").paginate(PaginationConfig={"PageSize": 5}))
    expect([len(page["Volumes"]) for page in pages], [5, 5, 2])
    every = {each["VolumeId"] for page in pages for each in page["Volumes"]}
    assert len(every) == 12 and {small, large, busy} <= every


def status(ec2):
    volumes = sorted(create(ec2, 1, "gp3") for _ in range(7))
    pages = ec2.get_paginator("describe_volume_status").paginate(PaginationConfig={"PageSize": 5})
    items = [item for page in pages for item in page["VolumeStatuses"]]
    expect([item["VolumeId"] for item in items], volumes)
    passed = [{"Name": "io-enabled", "Status": "passed"},
              {"Name": "io-performance", "Status": "not-applicable"}]
    for item in items:
        expect(item["VolumeStatus"], {"Status": "ok", "Details": passed})
        expect((item["AvailabilityZone"], item["Events"], item["Actions"]), (ZONE, [], []))

    def found(name, value):
        wanted = [{"Name": name, "Values": [value]}]
        return len(ec2.describe_volume_status(Filters=wanted)["VolumeStatuses"])

    expect(found("volume-status.status", "ok"), 7)
    expect(found("volume-status.status", "impaired"), 0)
    expect(found("availability-zone", ZONE), 7)
    one = ec2.describe_volume_status(VolumeIds=[volumes[3]])["VolumeStatuses"]
    expect([item["VolumeId"] for item in one], [volumes[3]])
    refused("InvalidVolume.NotFound", ec2.describe_volume_status,
            VolumeIds=["vol-00000000000000000"])


def world(ec2):
    zones = ec2.describe_availability_zones()["AvailabilityZones"]
    expect([(zone["ZoneName"], zone["State"], zone["RegionName"]) for zone in zones],
           [(ZONE, "available", "local-1")])
    limits = ec2.describe_instance_types(InstanceTypes=["m5.large"])["InstanceTypes"][0]["EbsInfo"]
    limits = limits["EbsOptimizedInfo"]
    expect((limits["BaselineIops"], limits["MaximumIops"]), (3600, 18750))
    expect((limits["BaselineBandwidthInMbps"], limits["MaximumBandwidthInMbps"]), (650, 4750))
    pages = ec2.get_paginator("describe_instance_types")
    pages = pages.paginate(PaginationConfig={"PageSize": 100})
    assert sum(len(page["InstanceTypes"]) for page in pages) > 100
    refused("InvalidInstanceType", ec2.describe_instance_types, InstanceTypes=["m5.tiny"])
    local = ec2.describe_instances(InstanceIds=[local_instance(ec2)])["Reservations"][0]
    expect(local["Instances"][0]["State"]["Name"], "running")


def public_access(ec2):
    """The setting of public access to snapshots."""
    def state():
        return ec2.get_snapshot_block_public_access_state()["State"]
    expect(state(), "unblocked")
    for blocked in ("block-new-sharing", "block-all-sharing"):
        expect(ec2.enable_snapshot_block_public_access(State=blocked)["State"], blocked)
        expect(state(), blocked)
    refused("InvalidParameterValue", ec2.enable_snapshot_block_public_access, State="unblocked")
    refused("DryRunOperation", ec2.disable_snapshot_block_public_access, status=412, DryRun=True)
    expect(state(), "block-all-sharing")
    expect(ec2.disable_snapshot_block_public_access()["State"], "unblocked")
    expect(state(), "unblocked")


def capacity(ec2):
    """On a server that sells 10,000 IOPS."""
    new = dict(AvailabilityZone=ZONE, Size=100, VolumeType="io2")
    short = dict(status=500)
    volume = create(ec2, 100, "io2", Iops=6000)
    once = dict(ClientToken="once", **new)
    refused("InsufficientVolumeCapacity", ec2.create_volume, Iops=4001, **once, **short)
    refused("InsufficientVolumeCapacity", ec2.create_volume, Iops=4001, DryRun=True, **new, **short)
    refused("InsufficientVolumeCapacity", ec2.modify_volume, VolumeId=volume, Iops=10001, **short)
    expect(len(ec2.describe_volumes()["Volumes"]), 1)
    # A token that was refused was not used; and one that was used is not judged again.
    made = [ec2.create_volume(Iops=4000, **once)["VolumeId"] for _ in range(2)]
    expect(made[0], made[1])
    ec2.attach_volume(VolumeId=volume, InstanceId=local_instance(ec2), Device="/dev/sdf")
    ec2.delete_volume(VolumeId=made[0])
    ec2.modify_volume(VolumeId=volume, Iops=10000)


def errors(ec2):
    volume = create(ec2, 10, "gp3")
    instance = local_instance(ec2)
    absent = "vol-00000000000000000"
    new = dict(AvailabilityZone=ZONE, Size=10, VolumeType="gp3")

    refused("InvalidVolume.NotFound", ec2.describe_volumes, VolumeIds=[absent])
    refused("InvalidVolume.NotFound", ec2.delete_volume, VolumeId=absent)
    refused("InvalidVolume.NotFound", ec2.modify_volume, VolumeId=absent, Size=20)
    refused("InvalidVolumeID.Malformed", ec2.describe_volumes, VolumeIds=["vol-1"])
    refused("InvalidInstanceID.NotFound", ec2.attach_volume, VolumeId=volume,
            InstanceId="i-00000000000000000", Device="/dev/sdf")
    refused("IncorrectState", ec2.detach_volume, VolumeId=volume)
    ec2.attach_volume(VolumeId=volume, InstanceId=instance, Device="/dev/sdf")
    refused("VolumeInUse", ec2.attach_volume, VolumeId=volume, InstanceId=instance,
            Device="/dev/sdg")
    refused("VolumeInUse", ec2.delete_volume, VolumeId=volume)
    other = create(ec2, 10, "gp3")
    refused("InvalidParameterValue", ec2.attach_volume, VolumeId=other, InstanceId=instance,
            Device="/dev/sdf")

    refused("MissingParameter", ec2.create_volume, AvailabilityZone=ZONE, VolumeType="gp3")
    refused("InvalidZone.NotFound", ec2.create_volume, **{**new, "AvailabilityZone": "us-east-1a"})
    refused("InvalidParameterValue", ec2.create_volume, **{**new, "Size": 0})
    refused("InvalidParameterValue", ec2.create_volume, **{**new, "Size": 65537})
    refused("UnknownVolumeType", ec2.create_volume, **{**new, "VolumeType": "gp9"})
    refused("InvalidParameterCombination", ec2.create_volume,
            **{**new, "VolumeType": "gp2", "Iops": 300})
    refused("InvalidParameterValue", ec2.create_volume, **{**new, "Iops": 16000})
    refused("InvalidParameterCombination", ec2.create_volume,
            **{**new, "VolumeType": "io1"})
    refused("InvalidSnapshot.NotFound", ec2.create_volume, SnapshotId="snap-00000000000000000",
            **new)
    refused("UnsupportedOperation", ec2.create_volume, Encrypted=True, **new)
    refused("InvalidParameterValue", ec2.modify_volume, VolumeId=volume, Size=5)
    refused("DryRunOperation", ec2.create_volume, status=412, DryRun=True, **new)
    refused("InvalidAction", ec2.describe_subnets)
    made = [ec2.create_volume(ClientToken="once", **new)["VolumeId"] for _ in range(2)]
    expect(made[0], made[1])
    refused("IdempotentParameterMismatch", ec2.create_volume,
            **{**new, "Size": 11, "ClientToken": "once"})
    # Nothing of what was refused exists.
    expect({each["VolumeId"] for each in ec2.describe_volumes()["Volumes"]},
           {volume, other, made[0]})


def completed(ec2, *snapshots):
    """Asks more often than the waiter does by itself, which is every 15 seconds."""
    ec2.get_waiter("snapshot_completed").wait(
        SnapshotIds=list(snapshots), WaiterConfig={"Delay": 0.1, "MaxAttempts": 600})


def snapshots(ec2):
    volume = create(ec2, 10, "gp3")
    tags = [{"Key": "Name", "Value": "nightly"}]
    made = ec2.create_snapshot(
        VolumeId=volume, Description="before the upgrade",
        TagSpecifications=[{"ResourceType": "snapshot", "Tags": tags}])
    snapshot = made["SnapshotId"]
    expect((made["State"], made["VolumeId"], made["VolumeSize"]), ("pending", volume, 10))
    completed(ec2, snapshot)
    shown = ec2.describe_snapshots(SnapshotIds=[snapshot])["Snapshots"][0]
    expect((shown["State"], shown["Progress"], shown["Encrypted"]), ("completed", "100%", False))
    expect((shown["Description"], shown["Tags"]), ("before the upgrade", tags))
    expect(shown["StorageTier"], "standard")
    assert shown["StartTime"] <= shown["CompletionTime"], shown
    expect(shown["FullSnapshotSizeInBytes"], 0)

    others = [ec2.create_snapshot(VolumeId=volume, Description=each)["SnapshotId"]
              for each in "123"]
    completed(ec2, *others)

    def ids(**parameters):
        pages = ec2.get_paginator("describe_snapshots").paginate(**parameters)
        return {each["SnapshotId"] for page in pages for each in page["Snapshots"]}

    def filtered(name, value):
        return ids(Filters=[{"Name": name, "Values": [value]}])

    everything = {snapshot, *others}
    expect(ids(OwnerIds=["self"]), everything)
    expect(ids(PaginationConfig={"PageSize": 5}), everything)
    expect(filtered("description", "before*"), {snapshot})
    expect(filtered("tag:Name", "night??"), {snapshot})
    expect(filtered("volume-id", volume), everything)
    expect(filtered("status", "pending"), set())
    ec2.create_tags(Resources=others[:1], Tags=[{"Key": "keep", "Value": "no"}])
    expect(filtered("tag-key", "keep"), set(others[:1]))
    expect(len(ec2.describe_tags(
        Filters=[{"Name": "resource-type", "Values": ["snapshot"]}])["Tags"]), 2)

    # A volume of a snapshot needs neither the snapshot nor the volume that it was made of.
    clone = ec2.create_volume(AvailabilityZone=ZONE, SnapshotId=snapshot, VolumeType="gp3")
    expect((clone["Size"], clone["SnapshotId"]), (10, snapshot))
    ec2.get_waiter("volume_available").wait(VolumeIds=[clone["VolumeId"]])
    ec2.delete_volume(VolumeId=volume)
    for each in (others[1], snapshot, others[0], others[2]):
        ec2.delete_snapshot(SnapshotId=each)
    expect(ids(), set())
    shown = ec2.describe_volumes(VolumeIds=[clone["VolumeId"]])["Volumes"][0]
    expect((shown["State"], shown["SnapshotId"]), ("available", snapshot))

    gone = "InvalidSnapshot.NotFound"
    refused(gone, ec2.delete_snapshot, SnapshotId="snap-00000000000000000")
    refused(gone, ec2.describe_snapshots, SnapshotIds=[snapshot])
    refused(gone, ec2.create_volume, AvailabilityZone=ZONE, SnapshotId=snapshot)
    refused("InvalidSnapshotID.Malformed", ec2.delete_snapshot, SnapshotId="snap-1")
    refused("InvalidVolume.NotFound", ec2.create_snapshot, VolumeId=volume)
    last = ec2.create_snapshot(VolumeId=clone["VolumeId"])["SnapshotId"]
    completed(ec2, last)
    refused("InvalidParameterValue", ec2.create_volume, AvailabilityZone=ZONE, SnapshotId=last,
            Size=9)
    refused("DryRunOperation", ec2.create_snapshot, status=412, DryRun=True,
            VolumeId=clone["VolumeId"])

    # All volumes of an instance, at one moment.
    instance = ec2.describe_instances()["Reservations"][0]["Instances"][0]["InstanceId"]
    attached = [create(ec2, 10, "gp3") for _ in range(3)]
    for volume, letter in zip(attached, "xyz"):
        ec2.attach_volume(VolumeId=volume, InstanceId=instance, Device=f"/dev/sd{letter}")
    ec2.create_tags(Resources=attached[:1], Tags=[{"Key": "Name", "Value": "data"}])
    made = ec2.create_snapshots(
        InstanceSpecification={"InstanceId": instance, "ExcludeBootVolume": True,
                               "ExcludeDataVolumeIds": attached[2:]},
        Description="all", CopyTagsFromSource="volume")["Snapshots"]
    expect({each["VolumeId"] for each in made}, set(attached[:2]))
    expect({each["State"] for each in made}, {"pending"})
    expect([each["Tags"] for each in made if each["VolumeId"] == attached[0]],
           [[{"Key": "Name", "Value": "data"}]])
    ids_made = [each["SnapshotId"] for each in made]
    completed(ec2, *ids_made)
    refused("InvalidParameterValue", ec2.create_snapshots, InstanceSpecification={
        "InstanceId": instance, "ExcludeDataVolumeIds": [clone["VolumeId"]]})


def tiers(ec2, volume):
    """The archive: what is in it cannot be used until it is restored."""
    snapshot = ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
    completed(ec2, snapshot)
    only = [{"Name": "snapshot-id", "Values": [snapshot]}]

    def status():
        [found] = ec2.describe_snapshot_tier_status(Filters=only)["SnapshotTierStatuses"]
        return found

    expect((status()["StorageTier"], status().get("LastTieringOperationStatus")),
           ("standard", None))
    done = ec2.modify_snapshot_tier(SnapshotId=snapshot, StorageTier="archive")
    expect((status()["StorageTier"], status()["LastTieringOperationStatus"]),
           ("archive", "archival-completed"))
    expect(status()["ArchivalCompleteTime"], done["TieringStartTime"])
    [shown] = ec2.describe_snapshots(SnapshotIds=[snapshot])["Snapshots"]
    expect(shown["StorageTier"], "archive")
    zone = ec2.describe_availability_zones()["AvailabilityZones"][0]["ZoneName"]
    refused("IncorrectState", ec2.create_volume, AvailabilityZone=zone, SnapshotId=snapshot)
    refused("IncorrectState", ec2.modify_snapshot_tier, SnapshotId=snapshot)
    refused("MissingParameter", ec2.restore_snapshot_tier, SnapshotId=snapshot)
    done = ec2.restore_snapshot_tier(SnapshotId=snapshot, TemporaryRestoreDays=2)
    expect((done["RestoreDuration"], done["IsPermanentRestore"]), (2, False))
    expect(status()["RestoreExpiryTime"] - done["RestoreStartTime"], datetime.timedelta(days=2))
    ec2.create_volume(AvailabilityZone=zone, SnapshotId=snapshot, VolumeType="gp3")
    expect(ec2.restore_snapshot_tier(SnapshotId=snapshot, PermanentRestore=True)
           ["IsPermanentRestore"], True)
    refused("IncorrectState", ec2.restore_snapshot_tier, SnapshotId=snapshot,
            PermanentRestore=True)
    pages = ec2.get_paginator("describe_snapshot_tier_status").paginate(
        PaginationConfig={"PageSize": 5})
    found = [each["SnapshotId"] for page in pages for each in page["SnapshotTierStatuses"]]
    expect(sorted(found), sorted(each["SnapshotId"]
                                 for each in ec2.describe_snapshots()["Snapshots"]))
    ec2.delete_snapshot(SnapshotId=snapshot)


def zones(ec2, snapshot):
    """On a server with two zones: what is in one cannot be attached in the other."""
    found = [(each["ZoneName"], each["ZoneId"])
             for each in ec2.describe_availability_zones()["AvailabilityZones"]]
    expect(found, [("local-1a", "local1-az1"), ("local-1b", "local1-az2")])
    second = found[1][0]
    run = ec2.run_instances(MinCount=1, MaxCount=1, Placement={"AvailabilityZone": second})
    instance = run["Instances"][0]
    expect(instance["Placement"]["AvailabilityZone"], second)
    made = [ec2.create_volume(AvailabilityZone=zone, SnapshotId=snapshot, VolumeType="gp3")
            for zone, _ in found]
    expect([(each["AvailabilityZone"], each["AvailabilityZoneId"]) for each in made], found)
    place = {"InstanceId": instance["InstanceId"], "Device": "/dev/sdf"}
    here, there = made[1]["VolumeId"], made[0]["VolumeId"]
    refused("InvalidVolume.ZoneMismatch", ec2.attach_volume, VolumeId=there, **place)
    ec2.attach_volume(VolumeId=here, **place)
    only = [{"Name": "availability-zone", "Values": [second]}]
    expect([each["VolumeId"] for each in ec2.describe_volumes(Filters=only)["Volumes"]], [here])
    refused("InvalidZone.NotFound", ec2.create_volume, AvailabilityZone="local-1c", Size=1)
    ec2.terminate_instances(InstanceIds=[instance["InstanceId"]])


def protection(ec2):
    """On a server with a recycle bin: it, locks, sharing and fast restore."""
    numbered(ec2)
    volume = create(ec2, 1, "gp3", TagSpecifications=[
        {"ResourceType": "volume", "Tags": [{"Key": "Name", "Value": "data"}]}])
    snapshot = ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
    completed(ec2, snapshot)

    # A lock keeps it, also from the bin; one of governance is lifted.
    refused("MissingParameter", ec2.lock_snapshot, SnapshotId=snapshot, LockMode="governance")
    locked = ec2.lock_snapshot(SnapshotId=snapshot, LockMode="governance", LockDuration=2)
    expect((locked["LockState"], locked["LockDuration"]), ("governance", 2))
    expect(locked["LockExpiresOn"] - locked["LockDurationStartTime"], datetime.timedelta(days=2))
    refused("SnapshotLocked", ec2.delete_snapshot, SnapshotId=snapshot)
    expect([each["SnapshotId"] for each in ec2.describe_locked_snapshots(
        Filters=[{"Name": "lock-state", "Values": ["governance"]}])["Snapshots"]], [snapshot])
    ec2.unlock_snapshot(SnapshotId=snapshot)
    expect(ec2.describe_locked_snapshots(SnapshotIds=[snapshot])["Snapshots"], [])
    kept = ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
    until = datetime.datetime.now(datetime.timezone.utc) + datetime.timedelta(days=3)
    locked = ec2.lock_snapshot(SnapshotId=kept, LockMode="compliance", CoolOffPeriod=1,
                               ExpirationDate=until)
    expect(locked["LockState"], "compliance-cooloff")
    # What the server keeps has milliseconds.
    assert abs(locked["LockExpiresOn"] - until) < datetime.timedelta(seconds=1), locked

    fast_restore(ec2, snapshot)
    tiers(ec2, volume)
    zones(ec2, snapshot)

    # The bin: what is in it is nowhere else, and comes back as it was.
    ec2.delete_volume(VolumeId=volume)
    ec2.delete_snapshot(SnapshotId=snapshot)
    refused("InvalidVolume.NotFound", ec2.describe_volumes, VolumeIds=[volume])
    refused("InvalidSnapshot.NotFound", ec2.describe_snapshots, SnapshotIds=[snapshot])
    [binned] = ec2.list_volumes_in_recycle_bin()["Volumes"]
    expect(binned["VolumeId"], volume)
    stay = binned["RecycleBinExitTime"] - binned["RecycleBinEnterTime"]
    expect(stay, datetime.timedelta(days=1))
    expect([each["SnapshotId"] for each in ec2.list_snapshots_in_recycle_bin(
        SnapshotIds=[snapshot])["Snapshots"]], [snapshot])
    ec2.restore_volume_from_recycle_bin(VolumeId=volume)
    ec2.restore_snapshot_from_recycle_bin(SnapshotId=snapshot)
    expect(ec2.describe_volumes(VolumeIds=[volume])["Volumes"][0]["Tags"],
           [{"Key": "Name", "Value": "data"}])
    expect(ec2.describe_snapshots(SnapshotIds=[snapshot])["Snapshots"][0]["State"], "completed")
    expect(ec2.list_volumes_in_recycle_bin()["Volumes"], [])
    refused("InvalidVolume.NotFound", ec2.restore_volume_from_recycle_bin, VolumeId=volume)


def fast_restore(ec2, snapshot):
    where = dict(AvailabilityZones=[ZONE])
    on = ec2.enable_fast_snapshot_restores(SourceSnapshotIds=[snapshot], **where)["Successful"]
    expect([each["State"] for each in on], ["enabled"])
    # As the EBS CSI driver does it: before the snapshot is completed.
    ebs = boto3.client("ebs")
    started = ebs.start_snapshot(VolumeSize=1)["SnapshotId"]
    on = ec2.enable_fast_snapshot_restores(SourceSnapshotIds=[started], **where)["Successful"]
    expect([each["State"] for each in on], ["enabling"])

    def states():
        found = ec2.describe_fast_snapshot_restores()["FastSnapshotRestores"]
        return {each["SnapshotId"]: each["State"] for each in found}

    expect(states(), {snapshot: "enabled", started: "enabling"})
    ebs.complete_snapshot(SnapshotId=started, ChangedBlocksCount=0)
    completed(ec2, started)
    expect(states(), {snapshot: "enabled", started: "enabled"})
    off = ec2.disable_fast_snapshot_restores(SourceSnapshotIds=[snapshot, started], **where)
    expect([each["State"] for each in off["Successful"]], ["disabled"] * 2)
    expect(states(), {})


def attributes(ec2):
    numbered(ec2)
    volume = create(ec2, 1, "gp3")
    ec2.modify_volume_attribute(VolumeId=volume, AutoEnableIO={"Value": True})
    shown = ec2.describe_volume_attribute(VolumeId=volume, Attribute="autoEnableIO")
    expect((shown["VolumeId"], shown["AutoEnableIO"]["Value"]), (volume, True))
    expect(ec2.describe_volume_attribute(VolumeId=volume, Attribute="productCodes")
           ["ProductCodes"], [])
    ec2.enable_volume_io(VolumeId=volume)
    snapshot = ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
    name = dict(SnapshotId=snapshot, Attribute="createVolumePermission")
    ec2.modify_snapshot_attribute(CreateVolumePermission={"Add": [
        {"UserId": "123456789012"}, {"Group": "all"}]}, **name)
    granted = ec2.describe_snapshot_attribute(**name)["CreateVolumePermissions"]
    expect(sorted(next(iter(each.items())) for each in granted),
           [("Group", "all"), ("UserId", "123456789012")])
    ec2.modify_snapshot_attribute(OperationType="remove", GroupNames=["all"], **name)
    expect(ec2.describe_snapshot_attribute(**name)["CreateVolumePermissions"],
           [{"UserId": "123456789012"}])
    ec2.reset_snapshot_attribute(**name)
    expect(ec2.describe_snapshot_attribute(**name)["CreateVolumePermissions"], [])
    expect([each["RegionName"] for each in ec2.describe_regions()["Regions"]], ["local-1"])
    known = {each["AttributeName"] for each in
             ec2.describe_account_attributes()["AccountAttributes"]}
    assert "max-instances" in known, known


def tools(ec2):
    """What tools ask for before they do anything, or to fill their inventories."""
    sts = connect_to("sts")
    caller = sts.get_caller_identity()
    account = caller["Account"]
    expect((caller["UserId"], caller["Arn"]), (account, f"arn:aws:iam::{account}:root"))
    refused("InvalidAction", sts.get_session_token)
    wrong = connect_to("sts", aws_access_key_id="WRONG", aws_secret_access_key="x")
    refused("InvalidClientTokenId", wrong.get_caller_identity, status=403)
    for describe, name in ((ec2.describe_images, "Images"), (ec2.describe_vpcs, "Vpcs"),
                           (ec2.describe_addresses, "Addresses")):
        expect(describe()[name], [])
        expect(describe(Filters=[{"Name": "tag-key", "Values": ["x"]}])[name], [])
    refused("InvalidAMIID.NotFound", ec2.describe_images, ImageIds=["ami-12345678"])
    refused("InvalidVpcID.NotFound", ec2.describe_vpcs, VpcIds=["vpc-12345678"])
    refused("InvalidAddress.NotFound", ec2.describe_addresses, PublicIps=["192.0.2.1"])
    alarms = connect_to("cloudwatch").describe_alarms(AlarmNamePrefix="x")
    expect((alarms["MetricAlarms"], alarms["CompositeAlarms"]), ([], []))
    instance = local_instance(ec2)
    ec2.get_waiter("instance_status_ok").wait(InstanceIds=[instance])
    ec2.stop_instances(InstanceIds=[instance])
    expect(ec2.describe_instance_status()["InstanceStatuses"], [])
    shown = ec2.describe_instance_status(InstanceIds=[instance], IncludeAllInstances=True)
    shown = shown["InstanceStatuses"][0]
    expect((shown["InstanceState"]["Name"], shown["InstanceStatus"]["Status"]),
           ("stopped", "not-applicable"))
    ok = [{"Name": "instance-status.status", "Values": ["ok"]}]
    expect(ec2.describe_instance_status(IncludeAllInstances=True, Filters=ok)["InstanceStatuses"],
           [])


def instances(ec2):
    """Records of hosts, with volumes that go with them and volumes that stay."""
    numbered(ec2)
    tags = [{"Key": "Name", "Value": "web"}]
    disks = [{"DeviceName": name, "Ebs": {"VolumeSize": size, "VolumeType": "gp3",
                                          "DeleteOnTermination": goes}}
             for name, size, goes in (("/dev/sda1", 2, True), ("/dev/sdf", 3, False))]
    made = ec2.run_instances(
        MinCount=2, MaxCount=2, InstanceType="m5.large", ImageId="ami-12345678",
        BlockDeviceMappings=disks, TagSpecifications=[{"ResourceType": "instance", "Tags": tags},
                                                      {"ResourceType": "volume", "Tags": tags}])
    ids = [each["InstanceId"] for each in made["Instances"]]
    expect(len({each["PrivateIpAddress"] for each in made["Instances"]}), 2)
    ec2.get_waiter("instance_running").wait(InstanceIds=ids)
    shown = ec2.describe_instances(Filters=[{"Name": "tag:Name", "Values": ["web"]}])
    expect([each["ReservationId"] for each in shown["Reservations"]], [made["ReservationId"]])
    found = {each["InstanceId"]: each for reservation in shown["Reservations"]
             for each in reservation["Instances"]}
    expect(set(found), set(ids))
    disks = {each["DeviceName"]: each["Ebs"]["VolumeId"]
             for each in found[ids[0]]["BlockDeviceMappings"]}
    expect(set(disks), {"/dev/sda1", "/dev/sdf"})
    volumes = ec2.describe_volumes(VolumeIds=list(disks.values()))["Volumes"]
    expect({each["Size"]: each["Attachments"][0]["DeleteOnTermination"] for each in volumes},
           {2: True, 3: False})
    ec2.modify_instance_attribute(InstanceId=ids[0], BlockDeviceMappings=[
        {"DeviceName": "/dev/sdf", "Ebs": {"DeleteOnTermination": True}}])
    shown = ec2.describe_instance_attribute(InstanceId=ids[0], Attribute="blockDeviceMapping")
    expect({each["DeviceName"]: each["Ebs"]["DeleteOnTermination"]
            for each in shown["BlockDeviceMappings"]}, {"/dev/sda1": True, "/dev/sdf": True})
    expect(ec2.describe_instance_attribute(InstanceId=ids[0], Attribute="instanceType")
           ["InstanceType"]["Value"], "m5.large")
    [change] = ec2.stop_instances(InstanceIds=ids[:1])["StoppingInstances"]
    expect((change["InstanceId"], change["PreviousState"]["Name"]), (ids[0], "running"))
    ec2.get_waiter("instance_stopped").wait(InstanceIds=ids[:1])
    ec2.start_instances(InstanceIds=ids[:1])
    ec2.get_waiter("instance_running").wait(InstanceIds=ids)
    ec2.terminate_instances(InstanceIds=ids)
    ec2.get_waiter("instance_terminated").wait(InstanceIds=ids)
    left = ec2.describe_volumes()["Volumes"]
    expect([(each["Size"], each["State"]) for each in left], [(3, "available")])
    refused("IncorrectInstanceState", ec2.attach_volume, VolumeId=left[0]["VolumeId"],
            InstanceId=ids[0], Device="/dev/sdf")
    refused("InvalidInstanceID.NotFound", ec2.stop_instances, InstanceIds=["i-0aaaaaaaaaaaaaaaa"])


def twice(_):
    """Calls that say the same in the same second have the same signature, of which one is good."""
    for mode in ("legacy", "standard"):
        client = boto3.client("ec2", config=botocore.config.Config(
            retries={"mode": mode}, proxies={}))
        signed = []
        client.meta.events.register(
            "before-send", lambda request, **_: signed.append(request.headers["Authorization"]))
        calls = 0
        # Not before two calls met in one second; on a slow machine that may take some.
        while len(set(signed)) == len(signed):
            assert calls < 100, "no two calls were signed alike"
            # Without a token: each makes a volume.
            client.create_volume(AvailabilityZone=ZONE, Size=1, VolumeType="gp3", ClientToken="")
            calls += 1
        assert calls >= 2, signed
        expect(len(client.describe_volumes()["Volumes"]), calls)
        volume = client.describe_volumes()["Volumes"][0]["VolumeId"]
        place = dict(VolumeId=volume, InstanceId=local_instance(client), Device="/dev/sdf")
        for _ in range(3):
            client.attach_volume(**place)
            client.detach_volume(VolumeId=volume)
        for each in client.describe_volumes()["Volumes"]:
            client.delete_volume(VolumeId=each["VolumeId"])


def signatures(ec2):
    key = os.environ["AWS_ACCESS_KEY_ID"]
    wrong = connect(aws_access_key_id=key, aws_secret_access_key="wrong")
    refused("SignatureDoesNotMatch", wrong.describe_volumes, status=403)
    unknown = connect(aws_access_key_id="AKIAUNKNOWN", aws_secret_access_key="wrong")
    refused("AuthFailure", unknown.describe_volumes, status=401)
    elsewhere = connect(region_name="us-east-1")
    refused("SignatureDoesNotMatch", elsewhere.describe_volumes, status=403)
    unsigned = botocore.config.Config(signature_version=botocore.UNSIGNED)
    nobody = boto3.client("ec2", config=unsigned)
    refused("MissingAuthenticationToken", nobody.describe_volumes, status=403)
    expect(ec2.describe_volumes()["Volumes"], [])


if __name__ == "__main__":
    globals()[sys.argv[1]](connect())
