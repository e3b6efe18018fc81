"""The APIs over TLS as boto3 speaks them. Arguments: `works`, or a text that the refusal has."""

import sys

import boto3
import botocore.config
import botocore.exceptions


def connect(service):
    config = botocore.config.Config(retries={"total_max_attempts": 1}, proxies={})
    return boto3.client(service, config=config)


def works():
    assert connect("ec2").describe_volumes()["Volumes"] == []
    assert connect("sts").get_caller_identity()["Account"] == "000000000000"
    assert connect("cloudwatch").list_metrics()["Metrics"] == []
    try:
        connect("ebs").start_snapshot(VolumeSize=1)
    except botocore.exceptions.ClientError as error:
        # An answer of the server, whose store has no snapshots.
        assert "has no snapshots" in str(error), error


def refused(text):
    try:
        connect("ec2").describe_volumes()
    except botocore.exceptions.SSLError as error:
        assert text in str(error), error
    else:
        raise AssertionError("it is served")


if __name__ == "__main__":
    works() if sys.argv[1] == "works" else refused(sys.argv[1])
