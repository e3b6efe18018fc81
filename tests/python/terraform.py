"""What the Terraform provider (hashicorp/terraform-provider-aws, internal/service/ec2) asks of EC2.

The calls that it makes to create, read, update, import and delete its resources of EBS, with its
waits, whose pauses are shorter, and its handling of what is not found. Arguments: name of a check;
the environment says where.
"""

import sys
import time
import uuid

import botocore.exceptions

from ec2 import ZONE, connect, expect, local_instance, numbered, refused

REGION = "local-1"
ATTEMPTS = 40


def tags_of(tags):
    return [{"Key": key, "Value": value} for key, value in tags.items()]


def spec(kind, tags):
    """The tags of a new resource; the provider sends no specification without tags."""
    if not tags:
        return []
    return [{"ResourceType": kind, "Tags": tags_of(tags)}]


def not_found(code, call):
    """What a call returns, or nothing if it fails with this code."""
    try:
        return call()
    except botocore.exceptions.ClientError as error:
        if error.response["Error"]["Code"] == code:
            return None
        raise


def wait_state(status, pending, target):
    """The provider's StateChangeConf: any state that is neither pending nor the target fails."""
    for _ in range(ATTEMPTS):
        state = status()
        if state in target or (state is None and not target):
            return
        assert state in pending or state is None, f"{state}: neither {pending} nor {target}"
        time.sleep(0.05)
    raise AssertionError(f"never {target}")


def pages(ec2, verb, result, **request):
    return [each for page in ec2.get_paginator(verb).paginate(**request) for each in page[result]]


# Volumes.

def find_volume(ec2, volume, **more):
    found = not_found("InvalidVolume.NotFound", lambda: pages(
        ec2, "describe_volumes", "Volumes", VolumeIds=[volume], **more))
    if not found or found[0]["State"] == "deleted":
        return None
    expect([each["VolumeId"] for each in found], [volume])
    return found[0]


def volume_state(ec2, volume):
    return lambda: (find_volume(ec2, volume) or {}).get("State")


def create_volume(ec2, tags, **arguments):
    made = ec2.create_volume(AvailabilityZone=ZONE, ClientToken=f"terraform-{uuid.uuid4().hex}",
                             TagSpecifications=spec("volume", tags), **arguments)
    volume = made["VolumeId"]
    wait_state(volume_state(ec2, volume), ["creating"], ["available"])
    return read_volume(ec2, volume)


def read_volume(ec2, volume):
    """Its state; what is read after `apply` must be what was configured, or the plan never ends."""
    found = find_volume(ec2, volume)
    if found is None:
        return None
    assert found["CreateTime"], found
    state = {key: found.get(key) for key in (
        "AvailabilityZone", "Encrypted", "Iops", "KmsKeyId", "MultiAttachEnabled", "OutpostArn",
        "Size", "SnapshotId", "Throughput", "VolumeType", "VolumeInitializationRate")}
    return {"id": volume, "tags": {tag["Key"]: tag["Value"] for tag in found.get("Tags", [])},
            **state}


def update_volume(ec2, volume, old, **new):
    request = {key: value for key, value in new.items() if old[key] != value}
    throughput = new.get("Throughput", old["Throughput"])
    if throughput and new.get("VolumeType", old["VolumeType"]) == "gp3":
        request["Throughput"] = throughput
    if "VolumeType" in request and request["VolumeType"] in ("io1", "io2", "gp3"):
        request["Iops"] = new.get("Iops", old["Iops"])
    ec2.modify_volume(VolumeId=volume, **request)
    wait_state(volume_state(ec2, volume), ["creating", "modifying"], ["available", "in-use"])
    read = read_volume(ec2, volume)
    for key, value in new.items():
        expect((key, read[key]), (key, value))
    return read


def update_tags(ec2, resource, old, new):
    gone = {key: value for key, value in old.items() if new.get(key) != value}
    come = {key: value for key, value in new.items() if old.get(key) != value}
    if gone:
        ec2.delete_tags(Resources=[resource], Tags=tags_of(gone))
    if come:
        ec2.create_tags(Resources=[resource], Tags=tags_of(come))


def delete_volume(ec2, volume, final_snapshot_tags=None):
    snapshot = None
    if final_snapshot_tags is not None:
        snapshot = create_snapshot(ec2, volume, final_snapshot_tags)["id"]

    def delete():
        ec2.delete_volume(VolumeId=volume)
        wait_state(volume_state(ec2, volume), ["deleting"], [])
    not_found("InvalidVolume.NotFound", delete)
    expect(read_volume(ec2, volume), None)
    return snapshot


def volumes(ec2):
    """aws_ebs_volume, and the data sources aws_ebs_volume and aws_ebs_volumes."""
    made = create_volume(ec2, {"Name": "data"}, Size=40, VolumeType="gp3")
    expect((made["Size"], made["VolumeType"], made["Iops"], made["Throughput"]),
           (40, "gp3", 3000, 125))
    expect((made["Encrypted"], made["MultiAttachEnabled"], made["SnapshotId"] or ""),
           (False, False, ""))
    volume = made["id"]
    made = update_volume(ec2, volume, made, Size=50)
    made = update_volume(ec2, volume, made, Iops=4000, Throughput=500)
    made = update_volume(ec2, volume, made, VolumeType="io2", Iops=5000)
    made = update_volume(ec2, volume, made, VolumeType="gp3", Iops=3000, Throughput=200)
    made = update_volume(ec2, volume, made, VolumeType="gp2")
    update_tags(ec2, volume, made["tags"], {"Name": "other", "team": "blue"})
    expect(read_volume(ec2, volume)["tags"], {"Name": "other", "team": "blue"})
    update_tags(ec2, volume, {"Name": "other", "team": "blue"}, {"team": "blue"})
    expect(read_volume(ec2, volume)["tags"], {"team": "blue"})
    # Import is reading by id, and the data sources read by filters.
    expect(read_volume(ec2, volume)["Size"], 50)
    filters = [{"Name": "volume-type", "Values": ["gp2"]},
               {"Name": "tag:team", "Values": ["blue"]}]
    expect([each["VolumeId"] for each in pages(ec2, "describe_volumes", "Volumes",
                                               Filters=filters)], [volume])
    shared = create_volume(ec2, {}, Size=10, VolumeType="io1", Iops=100, MultiAttachEnabled=True)
    expect((shared["Iops"], shared["MultiAttachEnabled"]), (100, True))
    for kind, size in (("st1", 125), ("sc1", 125), ("standard", 1)):
        expect(create_volume(ec2, {}, Size=size, VolumeType=kind)["VolumeType"], kind)
    expect(create_volume(ec2, {}, Size=1)["VolumeType"], "gp2")
    snapshot = delete_volume(ec2, volume, final_snapshot_tags={"Name": "last"})
    expect(read_snapshot(ec2, snapshot)["VolumeSize"], 50)
    restored = create_volume(ec2, {}, SnapshotId=snapshot, VolumeType="gp3",
                             VolumeInitializationRate=100)
    expect((restored["Size"], restored["SnapshotId"]), (50, snapshot))
    # What was removed by other means is removed from the state, and can be destroyed still.
    expect(read_volume(ec2, volume), None)
    delete_volume(ec2, volume)


# Snapshots and their copies.

def read_snapshot(ec2, snapshot):
    found = not_found("InvalidSnapshot.NotFound", lambda: pages(
        ec2, "describe_snapshots", "Snapshots", SnapshotIds=[snapshot]))
    if not found:
        return None
    expect([each["SnapshotId"] for each in found], [snapshot])
    found = found[0]
    assert found["OwnerId"] and found["StorageTier"] == "standard", found
    return {"id": snapshot, "tags": {tag["Key"]: tag["Value"] for tag in found.get("Tags", [])},
            **{key: found.get(key) for key in (
                "Description", "Encrypted", "KmsKeyId", "DataEncryptionKeyId", "OwnerAlias",
                "VolumeId", "VolumeSize")}}


def create_snapshot(ec2, volume, tags, **arguments):
    made = ec2.create_snapshot(VolumeId=volume, TagSpecifications=spec("snapshot", tags),
                               **arguments)
    return wait_for_snapshot(ec2, made["SnapshotId"])


def wait_for_snapshot(ec2, snapshot):
    config = {"Delay": 0.1, "MaxAttempts": 600}
    ec2.get_waiter("snapshot_completed").wait(SnapshotIds=[snapshot], WaiterConfig=config)
    return read_snapshot(ec2, snapshot)


def copy_snapshot(ec2, source, tags, **arguments):
    made = ec2.copy_snapshot(SourceRegion=REGION, SourceSnapshotId=source,
                             TagSpecifications=spec("snapshot", tags), **arguments)
    return wait_for_snapshot(ec2, made["SnapshotId"])


def delete_snapshot(ec2, snapshot):
    for _ in range(ATTEMPTS):
        try:
            ec2.delete_snapshot(SnapshotId=snapshot)
            break
        except botocore.exceptions.ClientError as error:
            code = error.response["Error"]["Code"]
            if code == "InvalidSnapshot.NotFound":
                break
            if code != "InvalidSnapshot.InUse":
                raise
            time.sleep(0.05)
    expect(read_snapshot(ec2, snapshot), None)


def snapshots(ec2):
    """aws_ebs_snapshot, aws_ebs_snapshot_copy and aws_snapshot_create_volume_permission."""
    volume = create_volume(ec2, {}, Size=2, VolumeType="gp3")["id"]
    made = create_snapshot(ec2, volume, {"Name": "first"}, Description="by hand")
    expect((made["VolumeId"], made["VolumeSize"], made["Description"], made["Encrypted"]),
           (volume, 2, "by hand", False))
    expect(made["tags"], {"Name": "first"})
    update_tags(ec2, made["id"], made["tags"], {"Name": "second"})
    expect(read_snapshot(ec2, made["id"])["tags"], {"Name": "second"})
    copied = copy_snapshot(ec2, made["id"], {"Name": "copy"}, Description="copied")
    expect((copied["VolumeSize"], copied["Encrypted"], copied["tags"], copied["Description"]),
           (2, False, {"Name": "copy"}, "copied"))
    encrypted = copy_snapshot(ec2, made["id"], {}, Encrypted=True)
    assert encrypted["Encrypted"] and encrypted["KmsKeyId"].startswith("arn:aws:kms:"), encrypted
    # The data source: the newest of one's own by filters.
    found = pages(ec2, "describe_snapshots", "Snapshots", OwnerIds=["self"],
                  RestorableByUserIds=["self"],
                  Filters=[{"Name": "volume-id", "Values": [volume]}])
    expect(sorted(each["SnapshotId"] for each in found), [made["id"]])
    permissions(ec2, made["id"])
    for each in (made, copied, encrypted):
        delete_snapshot(ec2, each["id"])
        delete_snapshot(ec2, each["id"])
    refused("InvalidSnapshot.NotFound", ec2.copy_snapshot, SourceRegion=REGION,
            SourceSnapshotId=made["id"])


def permissions(ec2, snapshot):
    account = "123456789012"

    def accounts():
        shown = ec2.describe_snapshot_attribute(SnapshotId=snapshot,
                                                Attribute="createVolumePermission")
        return [each["UserId"] for each in shown["CreateVolumePermissions"]]
    for change, expected in (("Add", [account]), ("Remove", [])):
        ec2.modify_snapshot_attribute(
            SnapshotId=snapshot, Attribute="createVolumePermission",
            CreateVolumePermission={change: [{"UserId": account}]})
        expect(accounts(), expected)


def fast_restores(ec2):
    """aws_ebs_fast_snapshot_restore."""
    volume = create_volume(ec2, {}, Size=1, VolumeType="gp3")["id"]
    snapshot = create_snapshot(ec2, volume, {})["id"]
    filters = [{"Name": "availability-zone", "Values": [ZONE]},
               {"Name": "snapshot-id", "Values": [snapshot]}]

    def state():
        found = pages(ec2, "describe_fast_snapshot_restores", "FastSnapshotRestores",
                      Filters=filters)
        return found[0]["State"] if found and found[0]["State"] != "disabled" else None

    where = dict(AvailabilityZones=[ZONE], SourceSnapshotIds=[snapshot])
    expect(state(), None)
    expect(ec2.enable_fast_snapshot_restores(**where).get("Unsuccessful", []), [])
    wait_state(state, ["enabling", "optimizing"], ["enabled"])
    expect(ec2.disable_fast_snapshot_restores(**where).get("Unsuccessful", []), [])
    wait_state(state, ["disabling", "optimizing", "enabled"], [])
    delete_snapshot(ec2, snapshot)


# Attachments.

def find_attachment(ec2, volume, instance, device):
    filters = [{"Name": "attachment.device", "Values": [device]},
               {"Name": "attachment.instance-id", "Values": [instance]}]
    found = find_volume(ec2, volume, Filters=filters)
    if not found or found["State"] == "available":
        return None
    return next((each for each in found["Attachments"] if each["State"] != "detached"
                 and (each["Device"], each["InstanceId"]) == (device, instance)), None)


def attachment_state(ec2, *place):
    return lambda: (find_attachment(ec2, *place) or {}).get("State")


def instance_state(ec2, instance):
    found = pages(ec2, "describe_instances", "Reservations", InstanceIds=[instance])
    return found[0]["Instances"][0]["State"]["Name"]


def attach(ec2, volume, instance, device):
    if find_attachment(ec2, volume, instance, device) is None:
        wait_state(lambda: instance_state(ec2, instance), ["pending", "stopping"],
                   ["running", "stopped"])
        ec2.attach_volume(Device=device, InstanceId=instance, VolumeId=volume)
    wait_state(attachment_state(ec2, volume, instance, device), ["attaching"], ["attached"])


def detach(ec2, volume, instance, device, stop_instance=False):
    if stop_instance:
        ec2.stop_instances(Force=False, InstanceIds=[instance])
        wait_state(lambda: instance_state(ec2, instance),
                   ["pending", "running", "shutting-down", "stopping"], ["stopped"])
    try:
        ec2.detach_volume(Device=device, Force=False, InstanceId=instance, VolumeId=volume)
    except botocore.exceptions.ClientError as error:
        found = error.response["Error"]
        assert found["Code"] == "IncorrectState" and "available" in found["Message"], error
        return
    wait_state(attachment_state(ec2, volume, instance, device), ["detaching"], [])


def attachments(ec2):
    """aws_volume_attachment."""
    volume = create_volume(ec2, {}, Size=1, VolumeType="gp3")["id"]
    place = (volume, local_instance(ec2), "/dev/sdh")
    for _ in range(2):
        attach(ec2, *place)
        attach(ec2, *place)  # it is there: nothing is asked for
        assert find_attachment(ec2, *place), "as imported"
        expect(find_attachment(ec2, volume, place[1], "/dev/sdi"), None)
        detach(ec2, *place)
        detach(ec2, *place)  # somebody else did it
    made = ec2.run_instances(MinCount=1, MaxCount=1, InstanceType="m5.large", ImageId="ami-0",
                             PrivateIpAddress="127.1.0.9")["Instances"][0]["InstanceId"]
    place = (volume, made, "/dev/sdh")
    attach(ec2, *place)
    detach(ec2, *place, stop_instance=True)
    attach(ec2, *place)
    ec2.terminate_instances(InstanceIds=[made])
    expect(find_attachment(ec2, *place), None)
    delete_volume(ec2, volume)
    expect(find_attachment(ec2, *place), None)


def encryption(ec2):
    """aws_ebs_encryption_by_default and aws_ebs_default_kms_key."""
    def is_on():
        return ec2.get_ebs_encryption_by_default()["EbsEncryptionByDefault"]
    key = ec2.get_ebs_default_kms_key_id()["KmsKeyId"]
    assert key.startswith("arn:aws:kms:"), key
    expect(ec2.modify_ebs_default_kms_key_id(KmsKeyId=key)["KmsKeyId"], key)
    expect(ec2.get_ebs_default_kms_key_id()["KmsKeyId"], key)
    ec2.enable_ebs_encryption_by_default()
    expect(is_on(), True)
    secret = create_volume(ec2, {}, Size=1, VolumeType="gp3")
    expect((secret["Encrypted"], secret["KmsKeyId"]), (True, key))
    named = create_volume(ec2, {}, Size=1, VolumeType="gp3", Encrypted=True, KmsKeyId=key)
    expect((named["Encrypted"], named["KmsKeyId"]), (True, key))
    ec2.disable_ebs_encryption_by_default()
    expect(is_on(), False)
    expect(create_volume(ec2, {}, Size=1, VolumeType="gp3")["Encrypted"], False)
    ec2.reset_ebs_default_kms_key_id()


def everything(ec2):
    encryption(ec2)
    volumes(ec2)
    snapshots(ec2)
    fast_restores(ec2)
    attachments(ec2)


if __name__ == "__main__":
    globals()[sys.argv[1]](numbered(connect()))
