"""Volumes and snapshots through the API, and their bytes over NBD.

Arguments: name of a check, HOST:PORT of NBD, the pool's file. The environment says where the API
is.
"""

import base64
import hashlib
import os
import sys

import boto3
import nbd

from ec2 import ZONE, connect, create, expect, local_instance, numbered, refused

MIB = 1 << 20
BLOCK = 1 << 19
PATTERN = b"Nobody but the owner reads this."


class Disk:
    """A volume that is attached to this machine."""

    def __init__(self, ec2, volume):
        self.ec2, self.volume = ec2, volume
        used = {each["Attachments"][0]["Device"] for each in ec2.describe_volumes()["Volumes"]
                if each["Attachments"]}
        names = (f"/dev/xvd{letter}" for letter in "bcdefghijklmnopqrstuvwxyz")
        device = next(name for name in names if name not in used)
        ec2.attach_volume(VolumeId=volume, InstanceId=local_instance(ec2), Device=device)
        ec2.get_waiter("volume_in_use").wait(VolumeIds=[volume])

    def __enter__(self):
        self.client = nbd.NBD()
        self.client.add_meta_context("base:allocation")
        self.client.connect_uri(f"nbd://{sys.argv[2]}/{self.volume}")
        return self.client

    def __exit__(self, *_):
        self.client.shutdown()
        self.ec2.detach_volume(VolumeId=self.volume)


def written(ec2, data, offset=MIB, **more):
    """A new volume of 1 GiB that holds these bytes."""
    volume = create(ec2, 1, "gp3", **more)
    with Disk(ec2, volume) as disk:
        disk.pwrite(data, offset)
        disk.flush()
    return volume


def held(ec2, volume, length, offset=MIB):
    """The bytes of a volume."""
    with Disk(ec2, volume) as disk:
        return b"".join(disk.pread(min(MIB, length - at), offset + at)
                        for at in range(0, length, MIB))


def complete(ec2, made):
    snapshot = made["SnapshotId"]
    ec2.get_waiter("snapshot_completed").wait(SnapshotIds=[snapshot],
                                              WaiterConfig={"Delay": 0.1, "MaxAttempts": 600})
    return snapshot


def available(ec2, volume):
    ec2.get_waiter("volume_available").wait(VolumeIds=[volume],
                                            WaiterConfig={"Delay": 0.1, "MaxAttempts": 600})
    return volume


def copies(ec2):
    """A copy holds what its source held, and neither sees what is written to the other later."""
    data = os.urandom(4 * MIB)
    source = written(ec2, data)
    copy = ec2.copy_volumes(SourceVolumeId=source, Size=2, VolumeType="gp3")["Volumes"][0]
    expect((copy["Size"], copy["SourceVolumeId"], copy["VolumeType"]), (2, source, "gp3"))
    copy = available(ec2, copy["VolumeId"])
    expect(ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"], [])
    expect(held(ec2, copy, len(data)) == data, True)
    # Beside what was copied, in the middle of it, and at its end.
    for volume, byte in ((source, b"s"), (copy, b"c")):
        with Disk(ec2, volume) as disk:
            disk.pwrite(byte * 4096, 0)
            disk.pwrite(byte * 4096, 3 * MIB)
            disk.pwrite(byte * 512, MIB + len(data) - 512)
    for volume, byte in ((source, b"s"), (copy, b"c")):
        expected = bytearray(data)
        expected[2 * MIB:2 * MIB + 4096] = byte * 4096
        expected[-512:] = byte * 512
        expect(held(ec2, volume, len(data)) == expected, True)
        expect(held(ec2, volume, 4096, 0) == byte * 4096, True)
    # A snapshot's copy stays when the snapshot goes, and the volumes do not need it either.
    snapshot = complete(ec2, ec2.create_snapshot(VolumeId=copy))
    made = ec2.copy_snapshot(SourceRegion="local-1", SourceSnapshotId=snapshot, Description="kept")
    other = complete(ec2, made)
    expected = held(ec2, copy, len(data))
    ec2.delete_snapshot(SnapshotId=snapshot)
    for volume in (source, copy):
        ec2.delete_volume(VolumeId=volume)
    back = create(ec2, 2, "gp3", SnapshotId=other)
    expect(held(ec2, back, len(data)) == expected, True)


def encryption(ec2):
    """What is encrypted cannot be found in the pool's file, and has the same bytes."""
    data = PATTERN * (2 * MIB // len(PATTERN))
    expect(ec2.get_ebs_encryption_by_default()["EbsEncryptionByDefault"], True)
    key = ec2.get_ebs_default_kms_key_id()["KmsKeyId"]
    hidden = written(ec2, data)
    shown = ec2.describe_volumes(VolumeIds=[hidden])["Volumes"][0]
    expect((shown["Encrypted"], shown["KmsKeyId"]), (True, key))
    expect(count_in_pool(), 0)
    ec2.disable_ebs_encryption_by_default()
    plain = written(ec2, data)
    expect(ec2.describe_volumes(VolumeIds=[plain])["Volumes"][0]["Encrypted"], False)
    snapshot = complete(ec2, ec2.create_snapshot(VolumeId=plain))
    found = count_in_pool()
    assert found >= len(data) // len(PATTERN), f"{found}: what is not encrypted is found"
    copy = complete(ec2, ec2.copy_snapshot(
        SourceRegion="local-1", SourceSnapshotId=snapshot, Encrypted=True))
    shown = ec2.describe_snapshots(SnapshotIds=[copy])["Snapshots"][0]
    expect((shown["Encrypted"], shown["KmsKeyId"]), (True, key))
    volume = ec2.copy_volumes(SourceVolumeId=plain, Encrypted=True)["Volumes"][0]["VolumeId"]
    available(ec2, volume)
    # A volume of an encrypted snapshot is encrypted, whatever was asked for.
    of_copy = create(ec2, 1, "gp3", SnapshotId=copy, Encrypted=False)
    for each in (hidden, volume, of_copy):
        expect(ec2.describe_volumes(VolumeIds=[each])["Volumes"][0]["Encrypted"], True)
        expect(held(ec2, each, len(data)) == data, True)
    # The copies added none of it to what the plain volume has there.
    expect(count_in_pool(), found)
    refused("InvalidParameterValue", ec2.create_volume, AvailabilityZone=ZONE, Size=1,
            VolumeType="gp3", Encrypted=True, KmsKeyId="alias/other")


def count_in_pool():
    """How often the pattern is in the pool's file, wherever a thief of the disk would find it."""
    with open(sys.argv[3], "rb") as file:
        return file.read().count(PATTERN)


def blocks_of_file(file):
    """The indexes of all blocks that are no hole in a file."""
    found, at = set(), 0
    while True:
        try:
            at = os.lseek(file.fileno(), at, os.SEEK_DATA)
        except OSError:
            return found
        end = os.lseek(file.fileno(), at, os.SEEK_HOLE)
        found.update(range(at // BLOCK, -(-end // BLOCK)))
        at = end


def blocks_of_disk(disk, size):
    """The indexes of all blocks that are no hole in a volume."""
    found = set()

    def see(_, at, entries, __):
        for length, flags in zip(entries[::2], entries[1::2]):
            if not flags & nbd.STATE_HOLE:
                found.update(range(at // BLOCK, -(-(at + length) // BLOCK)))
            at += length
        return ended.append(at)

    ended = [0]
    while ended[-1] < size:
        disk.block_status(size - ended[-1], ended[-1], see)
    return found


def images(ec2):
    """An image is put by the EBS direct APIs and read back by dsnap, and a volume's bytes too."""
    from dsnap.snapshot import LocalSnapshot
    ebs = boto3.client("ebs")
    size = 1 << 30
    data = {0: os.urandom(BLOCK), 3: os.urandom(BLOCK), size // BLOCK - 1: os.urandom(BLOCK)}
    started = ebs.start_snapshot(VolumeSize=1)["SnapshotId"]
    sums = b""
    for index, block in sorted(data.items()):
        digest = hashlib.sha256(block).digest()
        sums += digest
        ebs.put_snapshot_block(SnapshotId=started, BlockIndex=index, BlockData=block,
                               DataLength=BLOCK, ChecksumAlgorithm="SHA256",
                               Checksum=base64.b64encode(digest).decode())
    ebs.complete_snapshot(
        SnapshotId=started, ChangedBlocksCount=len(data), ChecksumAlgorithm="SHA256",
        ChecksumAggregationMethod="LINEAR",
        Checksum=base64.b64encode(hashlib.sha256(sums).digest()).decode())
    complete(ec2, {"SnapshotId": started})
    volume = create(ec2, 1, "gp3", SnapshotId=started)
    with Disk(ec2, volume) as disk:
        disk.pwrite(os.urandom(3 * MIB + 4096), 100 * MIB - 4096)
        disk.flush()
    changed = complete(ec2, ec2.create_snapshot(VolumeId=volume))
    for snapshot in (started, changed):
        image = LocalSnapshot(".", snapshot, boto3_session=boto3.session.Session())
        image.fetch()
        expect(os.path.getsize(image.path), size)
        restored = create(ec2, 1, "gp3", SnapshotId=snapshot)
        with open(image.path, "rb") as file, Disk(ec2, restored) as disk:
            blocks = blocks_of_file(file) | blocks_of_disk(disk, size)
            assert len(blocks) >= len(data), blocks
            for index in blocks:
                file.seek(index * BLOCK)
                same = file.read(BLOCK) == disk.pread(BLOCK, index * BLOCK)
                expect((index, same), (index, True))
        os.remove(image.path)
    with Disk(ec2, create(ec2, 1, "gp3", SnapshotId=started)) as disk:
        for index, block in data.items():
            expect(disk.pread(BLOCK, index * BLOCK) == block, True)


if __name__ == "__main__":
    globals()[sys.argv[1]](numbered(connect()))
