"""Drives a running server with an unmodified boto3; botocore's own EC2 model parses each reply.

Usage: boto3_client.py ENDPOINT. The keys and the region come from the environment.
"""

import datetime
import sys

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

ec2 = boto3.client("ec2", endpoint_url=sys.argv[1], config=Config(retries={"max_attempts": 1}))


def refused(code, call, **params):
    try:
        call(**params)
    except ClientError as error:
        found = error.response["Error"]["Code"]
        assert found == code, f"{found} instead of {code}: {error}"
        assert error.response["ResponseMetadata"]["RequestId"]
        return error.response["Error"]["Message"]
    raise AssertionError(f"{params} was not refused with {code}")


zones = ec2.describe_availability_zones()["AvailabilityZones"]
assert [zone["ZoneName"] for zone in zones] == ["local-1a"], zones
assert zones[0]["State"] == "available" and zones[0]["RegionName"] == "local-1"
refused("DryRunOperation", ec2.describe_availability_zones, DryRun=True)

reservations = ec2.describe_instances()["Reservations"]
instance = reservations[0]["Instances"][0]
assert instance["State"] == {"Code": 16, "Name": "running"}, instance
assert isinstance(instance["LaunchTime"], datetime.datetime)
instance_id = instance["InstanceId"]

volume = ec2.create_volume(
    AvailabilityZone="local-1a",
    Size=10,
    VolumeType="gp3",
    Iops=4000,
    Throughput=200,
    TagSpecifications=[
        {"ResourceType": "volume", "Tags": [{"Key": "Name", "Value": "p\u00fc <&>"}]}
    ],
)
volume_id = volume["VolumeId"]
assert (volume["Size"], volume["Iops"], volume["Throughput"]) == (10, 4000, 200), volume
assert volume["Encrypted"] is False and volume["MultiAttachEnabled"] is False
assert isinstance(volume["CreateTime"], datetime.datetime)
ec2.get_waiter("volume_available").wait(VolumeIds=[volume_id])

refused("DryRunOperation", ec2.delete_volume, VolumeId=volume_id, DryRun=True)
refused("InvalidVolume.NotFound", ec2.delete_volume, VolumeId="vol-00000000000000000")
message = refused(
    "InvalidParameterValue",
    ec2.create_volume,
    AvailabilityZone="local-1a",
    Size=4,
    VolumeType="gp3",
    Iops=2147483647,
    DryRun=True,
)
assert message == "Volume iops of 2147483647 is too high; maximum is 80000", message

attachment = ec2.attach_volume(VolumeId=volume_id, InstanceId=instance_id, Device="/dev/sdf")
assert attachment["State"] == "attached" and attachment["Device"] == "/dev/sdf", attachment
ec2.get_waiter("volume_in_use").wait(VolumeIds=[volume_id])
refused("VolumeInUse", ec2.delete_volume, VolumeId=volume_id)
by_device = {"Name": "block-device-mapping.volume-id", "Values": [volume_id]}
found = ec2.describe_instances(Filters=[by_device])["Reservations"][0]["Instances"][0]
assert found["BlockDeviceMappings"][0]["Ebs"]["VolumeId"] == volume_id, found

modification = ec2.modify_volume(VolumeId=volume_id, Size=20, Iops=5000)["VolumeModification"]
assert modification["ModificationState"] == "completed", modification
assert (modification["OriginalSize"], modification["TargetSize"]) == (10, 20)
listed = ec2.describe_volumes_modifications(VolumeIds=[volume_id])["VolumesModifications"][0]
assert listed["Progress"] == 100 and listed["TargetIops"] == 5000, listed
assert listed["EndTime"] >= listed["StartTime"]

ec2.create_tags(Resources=[volume_id, instance_id], Tags=[{"Key": "team", "Value": "blue"}])
tags = ec2.describe_tags(Filters=[{"Name": "key", "Values": ["team"]}])["Tags"]
assert {tag["ResourceType"] for tag in tags} == {"volume", "instance"}, tags
ec2.delete_tags(Resources=[instance_id], Tags=[{"Key": "team"}])
assert len(ec2.describe_tags(Filters=[{"Name": "key", "Values": ["team"]}])["Tags"]) == 1

volume = ec2.describe_volumes(Filters=[{"Name": "tag:team", "Values": ["blu*"]}])["Volumes"][0]
assert volume["State"] == "in-use" and volume["Size"] == 20, volume
assert volume["Attachments"][0]["InstanceId"] == instance_id
tags = {tag["Key"]: tag["Value"] for tag in volume["Tags"]}
assert tags == {"Name": "p\u00fc <&>", "team": "blue"}

detached = ec2.detach_volume(VolumeId=volume_id)
assert detached["State"] == "detached", detached
ec2.delete_volume(VolumeId=volume_id)
ec2.get_waiter("volume_deleted").wait(VolumeIds=[volume_id])

made = {
    ec2.create_volume(AvailabilityZone="local-1a", Size=1, VolumeType="gp2")["VolumeId"]
    for _ in range(12)
}
pages = list(ec2.get_paginator("describe_volumes").paginate(PaginationConfig={"PageSize": 5}))
assert [len(page["Volumes"]) for page in pages] == [5, 5, 2]
assert {volume["VolumeId"] for page in pages for volume in page["Volumes"]} == made

types = ec2.describe_instance_types(InstanceTypes=["m5.large"])["InstanceTypes"]
ebs = types[0]["EbsInfo"]["EbsOptimizedInfo"]
assert (ebs["BaselineIops"], ebs["MaximumIops"]) == (3600, 18750)
assert ebs["BaselineThroughputInMBps"] == 81.25
pages = ec2.get_paginator("describe_instance_types").paginate()
assert sum(len(page["InstanceTypes"]) for page in pages) > 1000



def with_keys(key, secret):
    keys = {"aws_access_key_id": key, "aws_secret_access_key": secret}
    return boto3.client("ec2", endpoint_url=sys.argv[1], **keys)


own_key = boto3.Session().get_credentials().access_key
refused("SignatureDoesNotMatch", with_keys(own_key, "wrong").describe_volumes)
refused("AuthFailure", with_keys("AKIDEXAMPLE", "wrong").describe_volumes)
print("all as expected")
