"""What the EBS CSI driver (kubernetes-sigs/aws-ebs-csi-driver 1.64, pkg/cloud) asks of EC2.

Its calls in its order, with its parameters and with what it concludes from replies and errors. Its
waits are the same with shorter pauses. Arguments: name of a check; the environment says where.
"""

import hashlib
import random
import re
import sys
import time

import botocore.exceptions

from ec2 import connect, expect, numbered, refused

VOLUME_NAME = "CSIVolumeName"
SNAPSHOT_NAME = "CSIVolumeSnapshotName"
DRIVER = "ebs.csi.aws.com/cluster"
INT32_MAX = 2147483647
# Minimum of IOPS and IOPS per GiB, which the driver knows and does not ask for.
RATIOS = {"io1": (100, 50), "io2": (100, 1000), "gp3": (3000, 500)}
DEVICES = [f"/dev/xvd{first}{second}" for first in "ab" for second in "abcdefghijklmnopqrstuvwxyz"]
STEPS = 13


class NotFound(Exception):
    """The driver's ErrNotFound."""


class SourceNotFound(Exception):
    """The driver's ErrSourceNotFound."""


class NotBeingModified(Exception):
    """The driver's ErrVolumeNotBeingModified."""


class Mismatch(Exception):
    """The driver's ErrIdempotentParameterMismatch."""


def code_of(error):
    return error.response["Error"]["Code"]


def wait_for(condition):
    pause = 0.02
    for _ in range(STEPS):
        if condition():
            return
        time.sleep(pause)
        pause *= 1.5
    raise AssertionError("waited in vain")


def tags_of(**tags):
    return [{"Key": key, "Value": value} for key, value in tags.items()]


class Driver:
    def __init__(self, ec2):
        self.ec2 = ec2
        self.tokens = {}
        self.limits = {}

    def all(self, call, result, **request):
        """Every page, as the driver asks for them: until a token is absent or empty."""
        found = []
        while True:
            reply = call(**request)
            found += reply[result]
            if not reply.get("NextToken"):
                return found
            request["NextToken"] = reply["NextToken"]

    def one(self, call, result, **request):
        found = self.all(call, result, **request)
        if not found:
            raise NotFound(request)
        expect(len(found), 1)
        return found[0]

    def volume(self, volume):
        return self.one(self.ec2.describe_volumes, "Volumes", VolumeIds=[volume])

    def volume_by_name(self, name):
        return self.one(self.ec2.describe_volumes, "Volumes",
                        Filters=[{"Name": f"tag:{VOLUME_NAME}", "Values": [name]}])

    def instance(self, node):
        found = []
        for reservation in self.all(self.ec2.describe_instances, "Reservations",
                                    InstanceIds=[node]):
            found += reservation["Instances"]
        expect(len(found), 1)
        return found[0]

    def max_iops(self, kind, zone):
        """The largest value that a type takes: it is in the text of a refusal."""
        if kind not in self.limits:
            try:
                self.ec2.create_volume(
                    VolumeType=kind, Size=4, Iops=INT32_MAX, DryRun=True, AvailabilityZone=zone,
                    TagSpecifications=[{"ResourceType": "volume",
                                        "Tags": tags_of(**{VOLUME_NAME: "IopsLimitDryRun"})}])
                raise AssertionError(f"{kind}: so many IOPS are not for sale")
            except botocore.exceptions.ClientError as error:
                self.limits[kind] = max_iops_in(str(error))
        return self.limits[kind]

    def capped(self, kind, size, iops, zone):
        least, per_gib = RATIOS.get(kind, (0, 0))
        most = self.max_iops(kind, zone)
        iops = min(iops, most) if most else iops
        by_size = per_gib * size
        return by_size if by_size and iops > by_size >= least else iops

    def create_disk(self, name, size, kind="gp3", iops=0, source=None, tags=(), **more):
        zone = more.pop("AvailabilityZone", None) or self.random_zone()
        most = self.max_iops(kind, zone)
        if iops:
            more["Iops"] = self.capped(kind, size, iops, zone)
            assert not most or more["Iops"] <= most
        base = name + (f"-{self.tokens[name]}" if name in self.tokens else "")
        tags = tags_of(**{VOLUME_NAME: name, DRIVER: "true"}, **dict(tags))
        # The driver ranges over a map, whose order is another each time.
        random.shuffle(tags)
        request = dict(
            ClientToken=hashlib.sha256(base.encode()).hexdigest(), Size=size, VolumeType=kind,
            MultiAttachEnabled=False,
            TagSpecifications=[{"ResourceType": "volume", "Tags": tags}])
        request.update(more)
        try:
            if source:
                copies = self.ec2.copy_volumes(SourceVolumeId=source, **request)["Volumes"]
                expect(len(copies), 1)
                made = copies[0]
            else:
                made = self.ec2.create_volume(
                    **{"Encrypted": False, "AvailabilityZone": zone, **request})
        except botocore.exceptions.ClientError as error:
            if code_of(error) in ("InvalidSnapshot.NotFound", "InvalidVolume.NotFound"):
                raise SourceNotFound(error) from error
            if code_of(error) == "IdempotentParameterMismatch":
                self.tokens[name] = self.tokens.get(name, 1) + 1
                raise Mismatch(error) from error
            raise
        assert made["VolumeId"] and made["Size"], made
        wait_for(lambda: self.volume(made["VolumeId"])["State"] in ("available", "in-use"))
        return made["VolumeId"]

    def random_zone(self):
        return self.ec2.describe_availability_zones()["AvailabilityZones"][0]["ZoneName"]

    def delete_disk(self, volume):
        try:
            self.ec2.delete_volume(VolumeId=volume)
        except botocore.exceptions.ClientError as error:
            if code_of(error) == "InvalidVolume.NotFound":
                raise NotFound(error) from error
            raise

    def attach(self, volume, node, device=None):
        """The driver's AttachDisk; `device` stands in for what it does not know to be in use."""
        instance = self.instance(node)
        kinds = self.ec2.describe_instance_types(InstanceTypes=[instance["InstanceType"]])
        expect(kinds["InstanceTypes"][0]["EbsInfo"].get("MaximumEbsCards", 1), 1)
        used = {each["DeviceName"]: each["Ebs"]["VolumeId"]
                for each in instance.get("BlockDeviceMappings", [])}
        assigned = [name for name, other in used.items() if other == volume]
        device = assigned[0] if assigned else device or next(
            name for name in DEVICES if name not in used)
        if not assigned:
            self.ec2.attach_volume(Device=device, InstanceId=node, VolumeId=volume)
        self.wait_for_attachment(volume, node, "attached", device)
        return device

    def wait_for_attachment(self, volume, node, state, device=None):
        def is_there():
            try:
                shown = self.volume(volume)
            except botocore.exceptions.ClientError as error:
                return code_of(error) == "InvalidVolume.NotFound" and state == "detached"
            attachments = shown.get("Attachments", [])
            assert shown["MultiAttachEnabled"] or len(attachments) <= 1, shown
            of_node = [each for each in attachments if each["InstanceId"] == node]
            if of_node and state == "attached" and of_node[0]["Device"] != device:
                return False
            return (of_node[0]["State"] if of_node else "detached") == state
        wait_for(is_there)

    def detach(self, volume, node):
        self.instance(node)
        try:
            self.ec2.detach_volume(InstanceId=node, VolumeId=volume)
        except botocore.exceptions.ClientError as error:
            if code_of(error) in ("IncorrectState", "InvalidAttachment.NotFound",
                                  "InvalidVolume.NotFound"):
                raise NotFound(code_of(error)) from error
            raise
        self.wait_for_attachment(volume, node, "detached")

    def modification(self, volume):
        """The latest one."""
        try:
            found = self.ec2.describe_volumes_modifications(VolumeIds=[volume])
        except botocore.exceptions.ClientError as error:
            if code_of(error) == "InvalidVolumeModification.NotFound":
                raise NotBeingModified(error) from error
            raise
        if not found["VolumesModifications"]:
            raise NotBeingModified(volume)
        return found["VolumesModifications"][-1]

    def modification_state(self, volume):
        try:
            return self.modification(volume)["ModificationState"]
        except NotBeingModified:
            return None

    def wait_for_modification(self, volume):
        wait_for(lambda: self.modification_state(volume) in (None, "completed", "optimizing"))

    def modify_disk(self, volume, size=0, **options):
        """The driver's ResizeOrModifyDisk; `options` are Iops, Throughput and VolumeType."""
        shown = self.volume(volume)
        if self.modification_state(volume) == "modifying":
            self.wait_for_modification(volume)
            return self.desired(volume, size, options)
        if "Iops" in options:
            options["Iops"] = self.capped(options.get("VolumeType", shown["VolumeType"]),
                                          size or shown["Size"], options["Iops"],
                                          shown["AvailabilityZone"])
        if shown["Size"] >= size and all(shown.get(key) == options[key] for key in options):
            self.wait_for_modification(volume)
            return self.desired(volume, size, options)
        if self.modification_state(volume) == "optimizing":
            raise AssertionError("in OPTIMIZING state, cannot currently modify")
        request = {**options, **({"Size": size} if size else {})}
        state = self.ec2.modify_volume(VolumeId=volume, **request)["VolumeModification"]
        if state["ModificationState"] not in ("completed", "optimizing"):
            self.wait_for_modification(volume)
        return self.desired(volume, size, options)

    def desired(self, volume, size, options):
        shown = self.volume(volume)
        assert shown["Size"] >= size, shown
        for key, value in options.items():
            expect(shown[key], value)
        return shown["Size"]

    def snapshot(self, **request):
        return self.one(self.ec2.describe_snapshots, "Snapshots", **request)

    def snapshot_by_name(self, name):
        return self.snapshot(Filters=[{"Name": f"tag:{SNAPSHOT_NAME}", "Values": [name]}])

    def create_snapshot(self, name, volume, zones=(), lock=None):
        """CreateSnapshot of its controller, and the side-car's wait until it is ready to use.

        Fast restore and locks are asked for at once: the snapshot may be pending still.
        """
        try:
            made = self.snapshot_by_name(name)
            expect(made["VolumeId"], volume)
        except NotFound:
            made = self.ec2.create_snapshot(
                VolumeId=volume, Description=f"Created by AWS EBS CSI driver for volume {volume}",
                TagSpecifications=[{"ResourceType": "snapshot",
                                    "Tags": tags_of(**{SNAPSHOT_NAME: name, DRIVER: "true"})}])
            if zones:
                self.fast_restore(made["SnapshotId"], zones)
            if lock:
                self.ec2.lock_snapshot(SnapshotId=made["SnapshotId"], **lock)
        assert made["VolumeSize"] and made["StartTime"], made
        snapshot = made["SnapshotId"]
        wait_for(lambda: self.snapshot(SnapshotIds=[snapshot])["State"] == "completed")
        return snapshot

    def fast_restore(self, snapshot, zones):
        known = self.ec2.describe_availability_zones()["AvailabilityZones"]
        assert set(zones) <= {each["ZoneName"] for each in known}, known
        enabled = self.ec2.enable_fast_snapshot_restores(AvailabilityZones=zones,
                                                         SourceSnapshotIds=[snapshot])
        expect(enabled.get("Unsuccessful", []), [])
        expect([each["SnapshotId"] for each in enabled["Successful"]], [snapshot])

    def delete_snapshot(self, snapshot):
        try:
            self.ec2.delete_snapshot(SnapshotId=snapshot, DryRun=False)
        except botocore.exceptions.ClientError as error:
            if code_of(error) == "InvalidSnapshot.NotFound":
                raise NotFound(error) from error
            raise


def max_iops_in(message):
    if "parameter iops is not supported" in message:
        return 0
    found = re.search(r"(?i)volume iops.*is too high.*maximum is (\d+)", message)
    if found:
        return int(found[1])
    found = re.search(r"(?i)(\d+)K IOPS", message)
    assert found, f"the driver learns nothing from: {message}"
    return int(found[1]) * 1000


def raises(kind, call, *arguments, **named):
    try:
        call(*arguments, **named)
    except kind as error:
        return str(error)
    raise AssertionError(f"{arguments}: done, expected {kind.__name__}")


def node(driver, address):
    made = driver.ec2.run_instances(MinCount=1, MaxCount=1, InstanceType="m5.large",
                                    PrivateIpAddress=address, ImageId="ami-0")
    return made["Instances"][0]["InstanceId"]


def provisioning(ec2):
    driver = Driver(ec2)
    # Its liveness probe.
    refused("DryRunOperation", ec2.describe_availability_zones, status=412, DryRun=True)
    zone = driver.random_zone()
    expect({kind: driver.max_iops(kind, zone)
            for kind in ("gp3", "io1", "io2", "gp2", "st1", "sc1", "standard")},
           {"gp3": 80000, "io1": 64000, "io2": 256000, "gp2": 0, "st1": 0, "sc1": 0,
            "standard": 0})
    raises(NotFound, driver.volume_by_name, "pvc-1")
    volume = driver.create_disk("pvc-1", 4, tags={"kubernetes.io/created-for/pvc/name": "data"})
    # The same request again, as after a restart of the driver, and with a list of ids.
    expect(driver.create_disk("pvc-1", 4, tags={"kubernetes.io/created-for/pvc/name": "data"}),
           volume)
    expect(driver.volume_by_name("pvc-1")["VolumeId"], volume)
    expect(driver.volume_by_name("pvc-1")["Size"], 4)
    raises(Mismatch, driver.create_disk, "pvc-1", 5)
    other = driver.create_disk("pvc-1", 5)
    assert other != volume
    fast = driver.create_disk("pvc-2", 4, "io2", iops=100000, MultiAttachEnabled=True)
    expect(driver.volume(fast)["Iops"], 4000)
    expect(driver.volume(driver.create_disk("pvc-3", 10, "gp3", iops=4000, Throughput=300))
           ["Throughput"], 300)
    refused("InvalidParameterCombination", ec2.create_volume, AvailabilityZone=zone, Size=4,
            VolumeType="gp2", Iops=3000)
    by_zone_id = ec2.describe_availability_zones()["AvailabilityZones"][0]["ZoneId"]
    ec2.create_volume(AvailabilityZoneId=by_zone_id, Size=4, VolumeType="gp3", Encrypted=False)
    # A batch of ids fails as a whole; the driver finds those to leave out in the text.
    absent = ["vol-0aaaaaaaaaaaaaaaa", "vol-0bbbbbbbbbbbbbbbb"]
    text = refused("InvalidVolume.NotFound", ec2.describe_volumes, VolumeIds=[volume, *absent])
    expect(re.findall("vol-[a-z0-9]+", text)[:1], absent[:1])
    ec2.create_tags(Resources=[volume], Tags=tags_of(team="blue"))
    ec2.delete_tags(Resources=[volume], Tags=[{"Key": "team"}])
    expect(ec2.describe_tags(Filters=[{"Name": "resource-id", "Values": [volume]},
                                      {"Name": "key", "Values": ["team"]}])["Tags"], [])
    for each in (volume, other, fast):
        driver.delete_disk(each)
        raises(NotFound, driver.delete_disk, each)


def batches(ec2):
    """As many ids as the driver collects for one call; it takes those that fail from the text."""
    def ids(kind, count):
        return [f"{kind}-{number:017x}" for number in range(1, count + 1)]

    for call, name, kind, count, code in (
            (ec2.describe_volumes, "VolumeIds", "vol", 500, "InvalidVolume.NotFound"),
            (ec2.describe_volume_status, "VolumeIds", "vol", 1000, "InvalidVolume.NotFound"),
            (ec2.describe_volumes_modifications, "VolumeIds", "vol", 500,
             "InvalidVolume.NotFound"),
            (ec2.describe_snapshots, "SnapshotIds", "snap", 1000, "InvalidSnapshot.NotFound"),
            (ec2.describe_instances, "InstanceIds", "i", 1000, "InvalidInstanceID.NotFound")):
        asked = ids(kind, count)
        text = refused(code, call, **{name: asked})
        expect(sorted(re.findall(f"{kind}-[a-z0-9]+", text)), asked)
    # EC2 takes no more values than these, so the driver cannot either.
    names = [{"Name": f"tag:{VOLUME_NAME}", "Values": ids("pvc", 200)}]
    expect(ec2.describe_volumes(Filters=names)["Volumes"], [])


def encrypting(ec2):
    """On a server with a key: a StorageClass says `encrypted`, names a key, or says nothing."""
    driver = Driver(ec2)
    key = ec2.get_ebs_default_kms_key_id()["KmsKeyId"]
    shown = driver.volume(driver.create_disk("pvc-1", 4, Encrypted=True))
    expect((shown["Encrypted"], shown["KmsKeyId"]), (True, key))
    named = driver.create_disk("pvc-2", 4, Encrypted=True, KmsKeyId=key)
    expect(driver.volume(named)["KmsKeyId"], key)
    # The driver says that it is not to be encrypted, and the account's default is stronger.
    expect(driver.volume(driver.create_disk("pvc-3", 4))["Encrypted"], True)
    ec2.disable_ebs_encryption_by_default()
    plain = driver.create_disk("pvc-4", 4)
    expect(driver.volume(plain)["Encrypted"], False)
    expect(driver.volume(driver.create_disk("pvc-5", 4, source=named))["Encrypted"], True)
    expect(driver.volume(driver.create_disk("pvc-6", 4, source=plain))["Encrypted"], False)
    snapshot = driver.create_snapshot("snapshot-1", plain)
    made = driver.create_disk("pvc-7", 4, SnapshotId=snapshot, Encrypted=True)
    expect(driver.volume(made)["Encrypted"], True)


def publishing(ec2):
    driver = Driver(ec2)
    here, there = node(driver, "127.1.0.1"), node(driver, "127.1.0.2")
    expect({each["InstanceId"] for reservation in
            ec2.describe_instances(InstanceIds=[here, there])["Reservations"]
            for each in reservation["Instances"]}, {here, there})
    text = refused("InvalidInstanceID.NotFound", ec2.describe_instances,
                   InstanceIds=[here, "i-0aaaaaaaaaaaaaaaa"])
    assert "i-0aaaaaaaaaaaaaaaa" in text, text
    volumes = [driver.create_disk(f"pvc-{number}", 4) for number in range(3)]
    expect(driver.attach(volumes[0], here), "/dev/xvdaa")
    expect(driver.attach(volumes[1], here), "/dev/xvdab")
    # It is there already: the driver sees it at the instance and does not call again.
    expect(driver.attach(volumes[0], here), "/dev/xvdaa")
    expect([each["InstanceId"] for each in driver.volume(volumes[0])["Attachments"]
            if each["State"] == "attached"], [here])
    text = refused("InvalidParameterValue", ec2.attach_volume, VolumeId=volumes[2],
                   InstanceId=here, Device="/dev/xvdaa")
    assert "already in use" in text, text
    refused("VolumeInUse", ec2.attach_volume, VolumeId=volumes[0], InstanceId=there,
            Device="/dev/xvdaa")
    refused("VolumeInUse", ec2.delete_volume, VolumeId=volumes[0])
    # Whether the volume is initialized, as the driver asks with a StorageClass's rate.
    status = ec2.describe_volume_status(VolumeIds=[volumes[0]])["VolumeStatuses"]
    expect([each["VolumeId"] for each in status], [volumes[0]])
    details = {each["Name"]: each["Status"] for each in status[0]["VolumeStatus"]["Details"]}
    assert details.get("initialization-state") != "initializing", details
    # Which volume is at a device of a node.
    mapping = driver.instance(here)
    assert mapping.get("RootDeviceName") not in ("/dev/xvdaa", "/dev/xvdab"), mapping
    expect({each["DeviceName"]: each["Ebs"]["VolumeId"]
            for each in mapping["BlockDeviceMappings"]},
           {"/dev/xvdaa": volumes[0], "/dev/xvdab": volumes[1]})
    expect(raises(NotFound, driver.detach, volumes[0], there), "InvalidAttachment.NotFound")
    driver.detach(volumes[0], here)
    expect(raises(NotFound, driver.detach, volumes[0], here), "IncorrectState")
    expect(raises(NotFound, driver.detach, "vol-0aaaaaaaaaaaaaaaa", here),
           "InvalidVolume.NotFound")
    expect(driver.attach(volumes[0], there), "/dev/xvdaa")
    shared = driver.create_disk("pvc-shared", 4, "io2", iops=100, MultiAttachEnabled=True)
    expect([driver.attach(shared, each) for each in (here, there)], ["/dev/xvdaa", "/dev/xvdab"])
    driver.detach(shared, here)
    expect([each["InstanceId"] for each in driver.volume(shared)["Attachments"]], [there])


def expanding(ec2):
    driver = Driver(ec2)
    volume = driver.create_disk("pvc-1", 4)
    raises(NotBeingModified, driver.modification, volume)
    expect(driver.modify_disk(volume, 10), 10)
    expect(driver.modification(volume)["TargetSize"], 10)
    # What it is already is not asked for again.
    expect(driver.modify_disk(volume, 10), 10)
    expect(driver.modify_disk(volume, Iops=4000, Throughput=500), 10)
    expect(driver.modify_disk(volume, 20, VolumeType="io2", Iops=10000), 20)
    expect(driver.modify_disk(volume, VolumeType="gp3", Iops=1000000, Throughput=125), 20)
    expect(driver.volume(volume)["Iops"], 10000)
    refused("InvalidParameterValue", ec2.modify_volume, VolumeId=volume, Size=5)
    refused("InvalidParameterCombination", ec2.modify_volume, VolumeId=volume, VolumeType="gp2",
            Iops=3000)
    raises(botocore.exceptions.ClientError, driver.modify_disk, "vol-0aaaaaaaaaaaaaaaa", 10)


def optimizing(ec2):
    """With AWS's policy a modified volume is `optimizing`, which the driver takes for done."""
    driver = Driver(ec2)
    volume = driver.create_disk("pvc-1", 4)
    expect(driver.modify_disk(volume, 10), 10)
    expect(driver.modification_state(volume), "optimizing")
    expect(driver.modify_disk(volume, 10), 10)
    text = raises(AssertionError, driver.modify_disk, volume, 20)
    assert "OPTIMIZING" in text, text
    refused("IncorrectModificationState", ec2.modify_volume, VolumeId=volume, Size=20)
    expect(driver.volume(volume)["Size"], 10)


def snapshots(ec2):
    driver = Driver(ec2)
    zone = driver.random_zone()
    volume = driver.create_disk("pvc-1", 4)
    raises(NotFound, driver.snapshot_by_name, "snapshot-1")
    snapshot = driver.create_snapshot("snapshot-1", volume)
    expect(driver.create_snapshot("snapshot-1", volume), snapshot)
    quick = driver.create_snapshot("snapshot-2", volume, zones=[zone],
                                   lock=dict(LockMode="governance", LockDuration=1))
    refused("InvalidSnapshot.NotFound", ec2.enable_fast_snapshot_restores,
            AvailabilityZones=[zone], SourceSnapshotIds=["snap-0aaaaaaaaaaaaaaaa"])
    # ListSnapshots: by volume, in pages, and without a number, which the driver sends as zero.
    others = [driver.create_snapshot(f"other-{number}", volume) for number in range(4)]
    by_volume = [{"Name": "volume-id", "Values": [volume]}]
    first = ec2.describe_snapshots(MaxResults=5, Filters=by_volume)
    rest = ec2.describe_snapshots(MaxResults=5, Filters=by_volume, NextToken=first["NextToken"])
    assert not rest.get("NextToken"), rest
    expect({each["SnapshotId"] for each in first["Snapshots"] + rest["Snapshots"]},
           {snapshot, quick, *others})
    expect(len(ec2.describe_snapshots(MaxResults=0, Filters=by_volume)["Snapshots"]), 6)
    text = refused("InvalidSnapshot.NotFound", ec2.describe_snapshots,
                   SnapshotIds=[snapshot, "snap-0aaaaaaaaaaaaaaaa"])
    assert "snap-0aaaaaaaaaaaaaaaa" in text, text
    # Volumes of a snapshot and of a volume.
    grown = driver.create_disk("pvc-2", 8, SnapshotId=snapshot, VolumeInitializationRate=200)
    shown = driver.volume(grown)
    expect((shown["SnapshotId"], shown["Size"]), (snapshot, 8))
    raises(SourceNotFound, driver.create_disk, "pvc-3", 4, SnapshotId="snap-0aaaaaaaaaaaaaaaa")
    clone = driver.create_disk("pvc-4", 4, source=volume)
    expect(driver.create_disk("pvc-4", 4, source=volume), clone)
    expect(driver.volume_by_name("pvc-4")["VolumeId"], clone)
    raises(SourceNotFound, driver.create_disk, "pvc-5", 4, source="vol-0aaaaaaaaaaaaaaaa")
    # A lock outlasts the driver's deletion, which says so instead of "not found".
    raises(botocore.exceptions.ClientError, driver.delete_snapshot, quick)
    ec2.unlock_snapshot(SnapshotId=quick)
    driver.delete_disk(volume)
    for each in (snapshot, quick, *others):
        driver.delete_snapshot(each)
        raises(NotFound, driver.delete_snapshot, each)


if __name__ == "__main__":
    globals()[sys.argv[1]](numbered(connect()))
