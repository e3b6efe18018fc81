"""Drives the EBS direct APIs of a running server with an unmodified boto3.

Usage: boto3_ebs.py ENDPOINT. The keys and the region come from the environment.
"""

import base64
import hashlib
import sys

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

config = Config(retries={"max_attempts": 1})
ebs = boto3.client("ebs", endpoint_url=sys.argv[1], config=config)
ec2 = boto3.client("ec2", endpoint_url=sys.argv[1], config=config)
BLOCK = 512 << 10


def checksum(data):
    return base64.b64encode(hashlib.sha256(data).digest()).decode()


def put(snapshot, index, data):
    return ebs.put_snapshot_block(
        SnapshotId=snapshot,
        BlockIndex=index,
        BlockData=data,
        DataLength=len(data),
        Checksum=checksum(data),
        ChecksumAlgorithm="SHA256",
        Progress=50,
    )


def refused(kind, reason, call, **params):
    try:
        call(**params)
    except ClientError as error:
        assert error.response["Error"]["Code"] == kind, error
        assert error.response.get("Reason") == reason, error.response
        assert error.response["ResponseMetadata"]["RequestId"]
        return
    raise AssertionError(f"{params} was not refused with {kind}")


def fill(blocks, **params):
    new = ebs.start_snapshot(VolumeSize=2, **params)
    assert new["Status"] == "pending" and new["BlockSize"] == BLOCK, new
    assert new["StartTime"].year > 2000, new
    snapshot = new["SnapshotId"]
    for index, data in blocks.items():
        assert put(snapshot, index, data)["Checksum"] == checksum(data)
    digests = b"".join(hashlib.sha256(blocks[index]).digest() for index in sorted(blocks))
    done = ebs.complete_snapshot(
        SnapshotId=snapshot,
        ChangedBlocksCount=len(blocks),
        Checksum=checksum(digests),
        ChecksumAlgorithm="SHA256",
        ChecksumAggregationMethod="LINEAR",
    )
    assert done["Status"] in ("pending", "completed"), done
    ec2.get_waiter("snapshot_completed").wait(SnapshotIds=[snapshot])
    return snapshot


first_blocks = {index: bytes([index % 256]) * BLOCK for index in (0, 1, 4095)}
first = fill(first_blocks, Description="from boto3", Tags=[{"Key": "a", "Value": "b"}])
shown = ec2.describe_snapshots(SnapshotIds=[first])["Snapshots"][0]
assert shown["VolumeId"] == "vol-fffffffffffffffff" and shown["Description"] == "from boto3", shown
assert shown["Tags"] == [{"Key": "a", "Value": "b"}], shown
second = fill({1: b"x" * BLOCK, 7: b"y" * BLOCK}, ParentSnapshotId=first, Timeout=10)

listed = ebs.list_snapshot_blocks(SnapshotId=second, MaxResults=100)
assert [block["BlockIndex"] for block in listed["Blocks"]] == [0, 1, 7, 4095], listed
assert listed["VolumeSize"] == 2 and listed["BlockSize"] == BLOCK, listed
expected = {**first_blocks, 1: b"x" * BLOCK, 7: b"y" * BLOCK}
for block in listed["Blocks"]:
    got = ebs.get_snapshot_block(
        SnapshotId=second, BlockIndex=block["BlockIndex"], BlockToken=block["BlockToken"]
    )
    data = got["BlockData"].read()
    assert data == expected[block["BlockIndex"]] and got["Checksum"] == checksum(data)
    assert got["DataLength"] == BLOCK and got["ChecksumAlgorithm"] == "SHA256"
changed = ebs.list_changed_blocks(FirstSnapshotId=first, SecondSnapshotId=second)
tokens = [
    (block["BlockIndex"], "FirstBlockToken" in block, "SecondBlockToken" in block)
    for block in changed["ChangedBlocks"]
]
assert tokens == [(1, True, True), (7, False, True)], changed

absent = "snap-00000000000000001"
lost = ("ResourceNotFoundException", "SNAPSHOT_NOT_FOUND")
refused(*lost, ebs.list_snapshot_blocks, SnapshotId=absent)
wrong = ("ValidationException", "INVALID_PARAMETER_VALUE")
refused(*wrong, ebs.start_snapshot, VolumeSize=1, Encrypted=True)
token = {"ClientToken": "the"}
started = ebs.start_snapshot(VolumeSize=1, **token)
assert ebs.start_snapshot(VolumeSize=1, **token)["SnapshotId"] == started["SnapshotId"]
refused("ConflictException", None, ebs.start_snapshot, VolumeSize=2, **token)
for snapshot in (first, second, started["SnapshotId"]):
    ec2.delete_snapshot(SnapshotId=snapshot)
print("all as expected")
