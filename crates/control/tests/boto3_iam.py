"""Drives IAM, STS and CloudTrail of a running server with an unmodified boto3.

Usage: boto3_iam.py ENDPOINT. The keys and the region come from the environment. The calls on users
are those that Terraform's provider makes for aws_iam_user, aws_iam_access_key, aws_iam_user_policy
and aws_iam_user_policy_attachment, in its order.
"""

import datetime
import json
import sys

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

ONCE = Config(retries={"max_attempts": 4})
READ_ONLY = "arn:aws:iam::aws:policy/ReadOnlyAccess"


def client(service, key=None):
    keys = {}
    if key:
        keys = {"aws_access_key_id": key["AccessKeyId"],
                "aws_secret_access_key": key["SecretAccessKey"]}
    return boto3.client(service, endpoint_url=sys.argv[1], config=ONCE, **keys)


def refused(code, call, **params):
    try:
        call(**params)
    except ClientError as error:
        found = error.response["Error"]["Code"]
        assert found == code, f"{found} instead of {code}: {error}"
        return error
    raise AssertionError(f"{params} was not refused with {code}")


iam = client("iam")
sts = client("sts")
assert sts.get_caller_identity()["Arn"] == "arn:aws:iam::000000000000:root"
assert iam.get_user()["User"]["Arn"] == "arn:aws:iam::000000000000:root"

# A user.
refused("NoSuchEntity", iam.get_user, UserName="ann")
user = iam.create_user(UserName="ann", Path="/ops/")["User"]
assert user["Arn"] == "arn:aws:iam::000000000000:user/ops/ann", user
assert isinstance(user["CreateDate"], datetime.datetime)
assert iam.get_user(UserName="ann")["User"] == user
iam.create_user(UserName="bob")
names = [each["UserName"] for page in iam.get_paginator("list_users").paginate(
    PaginationConfig={"PageSize": 1}) for each in page["Users"]]
assert names == ["ann", "bob"], names
assert [each["UserName"] for each in iam.list_users(PathPrefix="/ops/")["Users"]] == ["ann"]

# Its keys.
key = iam.create_access_key(UserName="ann")["AccessKey"]
assert key["Status"] == "Active" and len(key["SecretAccessKey"]) == 40
listed = iam.list_access_keys(UserName="ann")["AccessKeyMetadata"]
assert [each["AccessKeyId"] for each in listed] == [key["AccessKeyId"]]
assert "SecretAccessKey" not in listed[0]
ec2 = client("ec2", key)
assert client("sts", key).get_caller_identity()["UserId"] == user["UserId"]
refused("UnauthorizedOperation", ec2.describe_volumes)

# Its policies. boto3 decodes the document.
document = {"Version": "2012-10-17", "Statement": [{
    "Effect": "Allow", "Action": ["ec2:CreateVolume", "ec2:CreateTags"], "Resource": "*"}]}
iam.put_user_policy(UserName="ann", PolicyName="own", PolicyDocument=json.dumps(document))
assert iam.get_user_policy(UserName="ann", PolicyName="own")["PolicyDocument"] == document
assert iam.list_user_policies(UserName="ann")["PolicyNames"] == ["own"]
iam.attach_user_policy(UserName="ann", PolicyArn=READ_ONLY)
attached = iam.list_attached_user_policies(UserName="ann")["AttachedPolicies"]
assert attached == [{"PolicyName": "ReadOnlyAccess", "PolicyArn": READ_ONLY}], attached
ec2.describe_volumes()
volume = ec2.create_volume(AvailabilityZone="local-1a", Size=1)["VolumeId"]
refused("DryRunOperation", ec2.create_volume, AvailabilityZone="local-1a", Size=1, DryRun=True)
refused("UnauthorizedOperation", ec2.delete_volume, VolumeId=volume, DryRun=True)
error = refused("UnauthorizedOperation", ec2.delete_volume, VolumeId=volume)
encoded = str(error).rsplit(" ", 1)[1]
decoded = json.loads(sts.decode_authorization_message(EncodedMessage=encoded)["DecodedMessage"])
assert decoded["context"]["action"] == "ec2:DeleteVolume", decoded
assert decoded["context"]["resource"].endswith(f"volume/{volume}"), decoded
refused("MalformedPolicyDocument", iam.put_user_policy, UserName="ann", PolicyName="more",
        PolicyDocument=json.dumps({"Statement": {"Effect": "Allow", "Principal": "*"}}))

# Managed policies.
policies = iam.list_policies(Scope="AWS")["Policies"]
assert "AdministratorAccess" in [each["PolicyName"] for each in policies], policies
policy = iam.get_policy(PolicyArn=READ_ONLY)["Policy"]
assert (policy["AttachmentCount"], policy["DefaultVersionId"]) == (1, "v1"), policy
version = iam.get_policy_version(PolicyArn=READ_ONLY, VersionId="v1")["PolicyVersion"]
assert version["Document"]["Statement"][0]["Effect"] == "Allow", version
result = iam.simulate_principal_policy(
    PolicySourceArn=user["Arn"], ActionNames=["ec2:DescribeVolumes", "ec2:DeleteVolume"])
decisions = [each["EvalDecision"] for each in result["EvaluationResults"]]
assert decisions == ["allowed", "implicitDeny"], decisions
assert result["EvaluationResults"][0]["MatchedStatements"][0]["SourcePolicyId"] == "ReadOnlyAccess"

# What the user has done.
trail = client("cloudtrail")
by_ann = [{"AttributeKey": "Username", "AttributeValue": "ann"}]
pages = trail.get_paginator("lookup_events").paginate(
    LookupAttributes=by_ann, PaginationConfig={"PageSize": 2})
events = [each for page in pages for each in page["Events"]]
denied = next(each for each in events if each["EventName"] == "DeleteVolume")
assert denied["Resources"] == [{"ResourceType": "AWS::EC2::Volume", "ResourceName": volume}]
assert isinstance(denied["EventTime"], datetime.datetime) and denied["ReadOnly"] == "false"
record = json.loads(denied["CloudTrailEvent"])
assert record["errorCode"] == "UnauthorizedOperation", record
assert record["userIdentity"]["arn"] == user["Arn"], record
assert key["SecretAccessKey"] not in str(events)
now = datetime.datetime.now(datetime.timezone.utc)
hour = datetime.timedelta(hours=1)
assert trail.lookup_events(StartTime=now + hour)["Events"] == []
assert trail.lookup_events(StartTime=now - hour, EndTime=now + hour, MaxResults=1)["Events"]
refused("InvalidLookupAttributesException", trail.lookup_events, LookupAttributes=2 * by_ann)

# A revoked key, and the end of the user.
iam.update_access_key(UserName="ann", AccessKeyId=key["AccessKeyId"], Status="Inactive")
refused("AuthFailure", ec2.describe_volumes)
refused("DeleteConflict", iam.delete_user, UserName="ann")
iam.delete_access_key(UserName="ann", AccessKeyId=key["AccessKeyId"])
iam.delete_user_policy(UserName="ann", PolicyName="own")
iam.detach_user_policy(UserName="ann", PolicyArn=READ_ONLY)
assert iam.list_groups_for_user(UserName="ann")["Groups"] == []
iam.delete_user(UserName="ann")
refused("NoSuchEntity", iam.delete_user, UserName="ann")
print("all as expected")
