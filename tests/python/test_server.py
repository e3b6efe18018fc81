"""A server for tests, with the fixture of evenkeel.testing and boto3.

Arguments: name of a check, flags of the server.
"""

import datetime
import json
import os
import subprocess
import sys
import time

import boto3
import botocore
import botocore.config
import botocore.exceptions
from evenkeel.testing import Server

HOURS = datetime.timedelta(hours=1)
GP2_GIB = 200
#: I/O credits that a gp2 volume holds at most.
GP2_CREDITS = 5_400_000


def expect(found, expected):
    assert found == expected, f"found {found}, expected {expected}"


def refused(code, call, **parameters):
    """Checks that a call fails with this code."""
    try:
        call(**parameters)
    except botocore.exceptions.ClientError as error:
        expect(error.response["Error"]["Code"], code)
        return error
    raise AssertionError(f"{parameters}: done, expected {code}")


def create(ebs, kind="gp3", size=100, **more):
    volume = ebs.ec2.create_volume(
        AvailabilityZone=ebs.zone, Size=size, VolumeType=kind, **more)["VolumeId"]
    ebs.ec2.get_waiter("volume_available").wait(
        VolumeIds=[volume], WaiterConfig={"Delay": 1, "MaxAttempts": 30})
    return volume


def run_io(uri, *commands):
    words = [word for command in commands for word in ("-c", command)]
    # Without FUA: a write with FUA that fails counts as a failed flush, which outlasts the fault.
    command = ["qemu-io", "-t", "writeback", "-f", "raw", *words, uri]
    return subprocess.run(command, capture_output=True, text=True)


def io(uri, *commands):
    """Runs commands of qemu-io on a volume."""
    done = run_io(uri, *commands)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def credits_of(ebs, volume, *change):
    """Returns the I/O credits of a volume, after a change of them."""
    rows = ebs._evenkeel("volume", "credits", volume, *change)["credits"]
    return rows[0]["balance"]


def clock(flags):
    """Six hours pass in a moment: a cool-down, a recycle bin, credits, metrics, a snapshot."""
    with Server(flags) as ebs:
        ec2 = ebs.ec2
        begin = ebs.clock.now()
        volume = create(ebs, "gp2", GP2_GIB)
        uri = ebs.attach(volume)
        deleted = create(ebs)
        ec2.delete_volume(VolumeId=deleted)
        binned = ec2.list_volumes_in_recycle_bin()["Volumes"]
        expect([one["VolumeId"] for one in binned], [deleted])

        # A cool-down.
        ec2.modify_volume(VolumeId=volume, Size=GP2_GIB + 10)
        # It is optimized for some more than an hour.
        refused("IncorrectModificationState", ec2.modify_volume,
                VolumeId=volume, Size=GP2_GIB + 20)
        ebs.clock.advance(datetime.timedelta(hours=3))
        refused("VolumeModificationRateExceeded", ec2.modify_volume,
                VolumeId=volume, Size=GP2_GIB + 20)
        ebs.clock.advance("3h")
        modification = ec2.describe_volumes_modifications(VolumeIds=[volume])
        expect(modification["VolumesModifications"][0]["ModificationState"], "completed")
        ec2.modify_volume(VolumeId=volume, Size=GP2_GIB + 20)

        # Credits and metrics: the I/O is in the minute before the move, which has ended.
        assert credits_of(ebs, volume, "--set", "1000") < GP2_CREDITS
        io(uri, "write -P 7 0 1M", "flush")
        before = ebs.clock.now()
        ebs.clock.advance("6h")
        after = ebs.clock.now()
        assert 6 * HOURS <= after - before < 6 * HOURS + datetime.timedelta(minutes=10), after
        expect(credits_of(ebs, volume), GP2_CREDITS)
        write_bytes(ebs, volume, before, after)

        # Snapshots have the server's time, and the data of the time before.
        snapshot = ec2.create_snapshot(VolumeId=volume)
        assert snapshot["StartTime"] >= after.replace(microsecond=0), snapshot
        ec2.get_waiter("snapshot_completed").wait(
            SnapshotIds=[snapshot["SnapshotId"]], WaiterConfig={"Delay": 1, "MaxAttempts": 30})
        io(uri, "read -P 7 0 1M")

        # The recycle bin.
        ebs.clock.set(begin + datetime.timedelta(days=2, hours=1))
        expect(ec2.list_volumes_in_recycle_bin()["Volumes"], [])

        # Never back.
        try:
            ebs.clock.set(begin)
        except RuntimeError as error:
            assert "only set ahead" in str(error), error
        else:
            raise AssertionError("the clock was set back")
        with ebs.clock.frozen():
            expect(ebs.clock.now(), ebs.clock.now())


def write_bytes(ebs, volume, before, after):
    """Checks that CloudWatch has the written bytes before the move, and nothing later."""
    deadline = time.monotonic() + 60
    written = []
    # The server takes a sample in each second of real time.
    while not written:
        assert time.monotonic() < deadline, "no bytes"
        points = ebs.client("cloudwatch").get_metric_statistics(
            Namespace="AWS/EBS", MetricName="VolumeWriteBytes",
            Dimensions=[{"Name": "VolumeId", "Value": volume}], Period=60, Statistics=["Sum"],
            StartTime=before - HOURS, EndTime=after + HOURS)["Datapoints"]
        written = [(point["Timestamp"], point["Sum"]) for point in points if point["Sum"]]
        time.sleep(0.1)
    expect(sum(total for _, total in written), float(1 << 20))
    assert all(at <= before for at, _ in written), (written, before)


def faults(flags):
    """Faults of I/O, of the API, of attachments and of snapshots."""
    with Server(flags) as ebs:
        volume, other = create(ebs), create(ebs)
        uri, other_uri = ebs.attach(volume), ebs.attach(other)
        io_faults(ebs, volume, uri, other_uri)
        detaching(ebs)
        api_faults(ebs)
        object_faults(ebs)
        ebs.fault.start("pause-volume-io")
        # A test may end with a fault in force: nothing of it is left.
        ebs.reset()
        expect(ebs.fault.list(), [])


def settings(flags):
    """The settings of the account that a test changed are as before after reset."""
    key = os.path.abspath("key")
    with open(os.open(key, os.O_CREAT | os.O_WRONLY, 0o600), "w", encoding="ascii") as file:
        file.write("7" * 64)
    with Server([*flags, "--store", "local", "--key-file", key]) as ebs:
        ec2 = ebs.ec2
        ec2.enable_ebs_encryption_by_default()
        ec2.enable_snapshot_block_public_access(State="block-all-sharing")
        volume = create(ebs, size=1)
        expect(ec2.describe_volumes(VolumeIds=[volume])["Volumes"][0]["Encrypted"], True)
        ebs.reset()
        expect(ec2.get_ebs_encryption_by_default()["EbsEncryptionByDefault"], False)
        expect(ec2.get_snapshot_block_public_access_state()["State"], "unblocked")
        expect(ec2.describe_volumes()["Volumes"], [])
        volume = create(ebs, size=1)
        expect(ec2.describe_volumes(VolumeIds=[volume])["Volumes"][0]["Encrypted"], False)


def io_faults(ebs, volume, uri, other_uri):
    io(uri, "write -P 5 0 64k")
    with ebs.fault("pause-volume-io", volumes=[volume]) as fault:
        words = ["qemu-io", "-f", "raw", "-c", "read -P 5 0 64k", uri]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL) as paused:
            io(other_uri, "write -P 6 0 64k", "read -P 6 0 64k")
            wait_for(lambda: requests_of(ebs, fault) > 0, "no request waits")
            expect(paused.poll(), None)
            ebs.fault.stop(fault)
            expect(paused.wait(timeout=60), 0)
    with ebs.fault("volume-io-error", volumes=[volume], write_percent=100):
        failed = run_io(uri, "write -P 9 0 64k")
        assert "Input/output error" in failed.stdout + failed.stderr, failed
        io(uri, "read -P 5 0 64k")
    io(uri, "read -P 5 0 64k", "write -P 7 0 64k", "flush")
    with ebs.fault("volume-io-latency", volumes=[volume], read_ms=700):
        begin = time.monotonic()
        io(uri, "read -P 7 0 4k")
        assert time.monotonic() - begin >= 0.7


def detaching(ebs):
    """A volume whose requests wait is detaching until the pause ends, and delays no call."""
    volume = create(ebs, size=1)
    uri = ebs.attach(volume)
    with ebs.fault("pause-volume-io", volumes=[volume]) as fault:
        words = ["qemu-io", "-f", "raw", "-c", "read 0 4k", uri]
        with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL):
            wait_for(lambda: requests_of(ebs, fault) > 0, "no request waits")
            expect(ebs.ec2.detach_volume(VolumeId=volume)["State"], "detaching")
            expect(attachment(ebs, volume), "detaching")
            snapshot = ebs.ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
            ebs.ec2.get_waiter("snapshot_completed").wait(
                SnapshotIds=[snapshot], WaiterConfig={"Delay": 1, "MaxAttempts": 30})
            other = create(ebs, size=1)
            ebs.attach(other)
            ebs.ec2.modify_volume(VolumeId=other, Iops=4_000, Size=8)
            expect(attachment(ebs, volume), "detaching")
            ebs.fault.stop(fault)
            wait_for(lambda: attachment(ebs, volume) is None, "it is still detaching")


def api_faults(ebs):
    once = ebs.client("ec2", config=botocore.config.Config(retries={"total_max_attempts": 1}))
    for fault, code in (("api-throttle-error", "RequestLimitExceeded"),
                        ("api-internal-error", "InternalError"),
                        ("api-unavailable-error", "Unavailable")):
        with ebs.fault(fault, operations=["DescribeVolumes"]):
            refused(code, once.describe_volumes)
            once.describe_instances()
        once.describe_volumes()
    # The SDK repeats a request by itself: a third of them are refused.
    patient = botocore.config.Config(retries={"mode": "standard", "total_max_attempts": 10})
    with ebs.fault("api-throttle-error", percent=33, seed=3) as fault:
        client = ebs.client("ec2", config=patient)
        for _ in range(8):
            client.describe_volumes()
        assert requests_of(ebs, fault) > 0


def object_faults(ebs):
    once = ebs.client("ec2", config=botocore.config.Config(retries={"total_max_attempts": 1}))
    with ebs.fault("insufficient-volume-capacity"):
        refused("InsufficientVolumeCapacity", once.create_volume,
                AvailabilityZone=ebs.zone, Size=1, VolumeType="gp3")
    volume = create(ebs)
    with ebs.fault("stuck-attachment", volumes=[volume]):
        ebs.ec2.attach_volume(VolumeId=volume, InstanceId=ebs._own_host(), Device="/dev/sdz")
        expect(attachment(ebs, volume), "attaching")
        time.sleep(1.5)
        expect(attachment(ebs, volume), "attaching")
    wait_for(lambda: attachment(ebs, volume) == "attached", "it is still attaching")
    with ebs.fault("snapshot-error", volumes=[volume]) as fault:
        snapshot = ebs.ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
        found = ebs.ec2.describe_snapshots(SnapshotIds=[snapshot])["Snapshots"][0]
        expect(found["State"], "error")
        # The copy is removed, so the events have the reason.
        try:
            ebs._evenkeel("volume", "copy", volume, "--wait")
        except RuntimeError as error:
            assert f"was not created: {fault} was started" in str(error), error
        else:
            raise AssertionError("a copy without its snapshot was made")


def fis(flags):
    """Experiments of AWS FIS pause I/O of volumes and make it slow."""
    with Server(flags) as ebs:
        client = ebs.client("fis")
        volume, other = create(ebs), create(ebs)
        uri, other_uri = ebs.attach(volume), ebs.attach(other)
        ebs.ec2.create_tags(Resources=[other], Tags=[{"Key": "team", "Value": "a"}])
        io(uri, "write -P 5 0 64k")
        with ebs.clock.frozen():
            experiment_pauses(ebs, client, volume, uri, other_uri)
            experiment_is_slow(ebs, client, other_uri)
        experiments_are_refused(client)


def template(client, targets, actions, **more):
    """Creates a template and returns it."""
    return client.create_experiment_template(
        description="a test", roleArn="arn:aws:iam::000000000000:role/fis",
        stopConditions=[{"source": "none"}], targets={"some": dict(
            resourceType="aws:ec2:ebs-volume", selectionMode="ALL", **targets)},
        actions=actions, **more)["experimentTemplate"]


def experiment_pauses(ebs, client, volume, uri, other_uri):
    zone = ebs.region
    account = ebs.client("sts").get_caller_identity()["Account"]
    arn = f"arn:aws:ec2:{zone}:{account}:volume/{volume}"
    made = template(client, {"resourceArns": [arn]}, {"pause": {
        "actionId": "aws:ebs:pause-volume-io", "parameters": {"duration": "PT10M"},
        "targets": {"Volumes": "some"}}}, tags={"team": "b"})
    expect(client.get_experiment_template(id=made["id"])["experimentTemplate"], made)
    started = client.start_experiment(experimentTemplateId=made["id"])["experiment"]
    expect(started["state"]["status"], "running")
    words = ["qemu-io", "-f", "raw", "-c", "read -P 5 0 64k", uri]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL) as paused:
        io(other_uri, "write -P 6 0 64k", "read -P 6 0 64k")
        [fault] = ebs.fault.list()
        wait_for(lambda: requests_of(ebs, fault["fault_id"]) > 0, "no request waits")
        expect(paused.poll(), None)
        # The end is by the server's clock.
        ebs.clock.advance("10m")
        expect(paused.wait(timeout=60), 0)
    ended = client.get_experiment(id=started["id"])["experiment"]
    expect(ended["state"]["status"], "completed")
    expect(ended["actions"]["pause"]["state"]["status"], "completed")
    expect((ended["endTime"] - ended["startTime"]).total_seconds(), 600.0)
    expect(client.list_experiment_templates()["experimentTemplates"][0]["id"], made["id"])
    client.delete_experiment_template(id=made["id"])
    refused("ResourceNotFoundException", client.get_experiment_template, id=made["id"])


def experiment_is_slow(ebs, client, uri):
    made = template(client, {"resourceTags": {"team": "a"}}, {"slow": {
        "actionId": "aws:ebs:volume-io-latency", "targets": {"Volumes": "some"},
        "parameters": {"duration": "PT12H", "readIOPercentage": "100",
                       "readIOLatencyMilliseconds": "700"}}})
    started = client.start_experiment(experimentTemplateId=made["id"])["experiment"]
    begin = time.monotonic()
    io(uri, "read -P 6 0 4k")
    assert time.monotonic() - begin >= 0.7
    stopped = client.stop_experiment(id=started["id"])["experiment"]
    expect(stopped["state"]["status"], "stopped")
    expect(ebs.fault.list(), [])
    expect([one["id"] for one in client.list_experiments()["experiments"]][-1], started["id"])


def experiments_are_refused(client):
    error = refused("ValidationException", template, client=client,
                    targets={"resourceTags": {"team": "a"}}, actions={"stop": {
                        "actionId": "aws:ec2:stop-instances", "targets": {"Instances": "some"}}})
    assert "'aws:ec2:stop-instances'" in str(error), error
    refused("ResourceNotFoundException", client.start_experiment, experimentTemplateId="EXTnone")


TEMPLATES = "arn:aws:fis:*:*:experiment-template"
EXPERIMENTS = "arn:aws:fis:*:*:experiment"
PAUSE = "arn:aws:fis:*:*:action/aws:ebs:pause-volume-io"


def fis_rights(flags):
    """A user has the rights to calls of FIS that its policy gives; each call has a record."""
    with Server(flags) as ebs:
        root = ebs.client("fis")
        volume = create(ebs)
        own = template(root, targets_of(ebs, volume), pause(), tags={"team": "a"})["id"]
        other = template(root, targets_of(ebs, volume), pause(), tags={"team": "b"})["id"]
        of_a = {"StringEquals": {"aws:ResourceTag/team": "a"}}
        with_a = {"StringEquals": {"aws:RequestTag/team": "a"}}
        user = user_of_fis(ebs, [
            allow("CreateExperimentTemplate", [f"{TEMPLATES}/*", PAUSE], with_a),
            allow("TagResource", [f"{TEMPLATES}/*", f"{EXPERIMENTS}/*"]),
            allow("GetExperimentTemplate", f"{TEMPLATES}/*", of_a),
            allow("StartExperiment", [f"{TEMPLATES}/{own}", f"{EXPERIMENTS}/*"]),
            allow(["GetExperiment", "StopExperiment"], f"{EXPERIMENTS}/*", of_a),
            allow("ListExperiments", "*"),
        ])
        found = calls_of_fis(ebs, user, volume, own, other)
        records = [record for record in audited(ebs) if record["userIdentity"].get("userName")]
        expect([(one["eventName"], one.get("errorCode")) for one in records], found)
        for record in records:
            expect(record["eventSource"], "fis.amazonaws.com")
            expect(record["userIdentity"]["userName"], "ann")
        assert records[0]["requestParameters"]["ActionArn.1"].endswith(PAUSE.rsplit(":")[-1])
        assert records[-1]["requestParameters"]["ExperimentTemplateArn"].endswith(f"/{other}")
        for record in (records[0], records[-1]):
            expect(record["requestParameters"]["VolumeId.1"], volume)
        expect(records[-1]["requestParameters"]["ExperimentTemplateTag.1.Value"], "b")


def calls_of_fis(ebs, user, volume, own, other):
    """Makes calls as the user. Returns their names and the codes of their errors."""
    made = []

    def call(name, code=None, text="", **parameters):
        method = getattr(user, botocore.xform_name(name))
        made.append((name, code))
        if code is None:
            return method(**parameters)
        error = refused(code, method, **parameters)
        assert text in str(error), error
        return None

    denied = ("AccessDeniedException", "no identity-based policy allows the fis:")
    new = dict(description="a test", roleArn="arn:aws:iam::000000000000:role/fis",
               stopConditions=[{"source": "none"}],
               targets={"some": dict(resourceType="aws:ec2:ebs-volume", selectionMode="ALL",
                                     **targets_of(ebs, volume))})
    slow = {"slow": {"actionId": "aws:ebs:volume-io-latency", "targets": {"Volumes": "some"},
                     "parameters": {"duration": "PT1M", "readIOPercentage": "1",
                                    "readIOLatencyMilliseconds": "1"}}}
    team_a = {"team": "a"}
    create_new = "CreateExperimentTemplate"
    call(create_new, actions=pause(), tags=team_a, **new)
    # A tag or an action that the policy does not name.
    call(create_new, *denied, actions=pause(), tags={"team": "b"}, **new)
    call(create_new, *denied, actions=pause(), **new)
    call(create_new, *denied, actions={**pause(), **slow}, tags=team_a, **new)
    call("GetExperimentTemplate", id=own)
    call("GetExperimentTemplate", *denied, id=other)
    call("GetExperimentTemplate", *denied, id="EXTnone")
    call("ListExperimentTemplates", *denied)
    call("DeleteExperimentTemplate", *denied, id=own)
    started = call("StartExperiment", experimentTemplateId=own, tags=team_a)["experiment"]["id"]
    call("GetExperiment", id=started)
    without_tags = call("StartExperiment", experimentTemplateId=own)["experiment"]["id"]
    call("StopExperiment", *denied, id=without_tags)
    call("StopExperiment", id=started)
    expect(len(call("ListExperiments")["experiments"]), 2)
    call("StartExperiment", *denied, experimentTemplateId=other)
    # There is no DryRun at FIS: the request has it neither at AWS nor here.
    for name in user.meta.service_model.operation_names:
        shape = user.meta.service_model.operation_model(name).input_shape
        assert "dryrun" not in [member.lower() for member in shape.members], name
    return made


def targets_of(ebs, volume):
    account = ebs.client("sts").get_caller_identity()["Account"]
    return {"resourceArns": [f"arn:aws:ec2:{ebs.region}:{account}:volume/{volume}"]}


def pause():
    return {"pause": {"actionId": "aws:ebs:pause-volume-io", "targets": {"Volumes": "some"},
                      "parameters": {"duration": "PT1M"}}}


def allow(actions, resources, condition=None):
    names = [actions] if isinstance(actions, str) else actions
    statement = {"Effect": "Allow", "Action": [f"fis:{name}" for name in names],
                 "Resource": resources}
    return {**statement, "Condition": condition} if condition else statement


def user_of_fis(ebs, statements):
    """Creates a user with this policy, and returns its client of FIS."""
    iam = ebs.client("iam")
    iam.create_user(UserName="ann")
    policy = {"Version": "2012-10-17", "Statement": statements}
    iam.put_user_policy(UserName="ann", PolicyName="own", PolicyDocument=json.dumps(policy))
    key = iam.create_access_key(UserName="ann")["AccessKey"]
    return boto3.client(
        "fis", endpoint_url=ebs.endpoint, region_name=ebs.region,
        aws_access_key_id=key["AccessKeyId"], aws_secret_access_key=key["SecretAccessKey"])


def audited(ebs):
    """Returns the records of calls of FIS, oldest first."""
    pages = ebs.client("cloudtrail").get_paginator("lookup_events").paginate(LookupAttributes=[
        {"AttributeKey": "EventSource", "AttributeValue": "fis.amazonaws.com"}])
    events = [json.loads(event["CloudTrailEvent"]) for page in pages for event in page["Events"]]
    return events[::-1]


def feel(flags):
    """Volumes take the time of their type; blocks of a snapshot are cold until they are fetched."""
    with Server(flags) as ebs:
        volume = create(ebs, "gp3", 1)
        uri = ebs.attach(volume)
        begin = time.monotonic()
        io(uri, *["read 0 4k"] * 20)
        # The least time of a read on gp3, 20 times.
        assert time.monotonic() - begin >= 20 * 300e-6
        snapshot = ebs.ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
        ebs.ec2.get_waiter("snapshot_completed").wait(
            SnapshotIds=[snapshot], WaiterConfig={"Delay": 1, "MaxAttempts": 30})
        with ebs.clock.frozen():
            cold_blocks(ebs, snapshot)
        # An empty volume has nothing to fetch.
        assert "InitializationStatusDetails" not in status(ebs, volume)


def cold_blocks(ebs, snapshot):
    usual = create(ebs, "gp3", 1, SnapshotId=snapshot, Throughput=750)
    rated = create(ebs, "gp3", 1, SnapshotId=snapshot, VolumeInitializationRate=300)
    expect(initialization(ebs, usual), {"InitializationType": "default", "Progress": 0})
    expect(initialization(ebs, rated), {
        "InitializationType": "provisioned-rate", "Progress": 0,
        "EstimatedTimeToCompleteInSeconds": 4})
    uri = ebs.attach(usual)
    begin = time.monotonic()
    io(uri, "read 512M 256M")
    # The least time for a block that is fetched.
    assert time.monotonic() - begin >= 4e-3
    expect(initialization(ebs, usual)["Progress"], 25)
    expect(states(ebs, usual)["initialization-state"], "initializing")
    # 2 s at 50 MiB/s, and at 300 MiB/s.
    ebs.clock.advance("2s")
    expect(initialization(ebs, usual)["Progress"], 34)
    expect(initialization(ebs, rated)["Progress"], 58)
    ebs.clock.advance("2m")
    for volume in (usual, rated):
        expect(initialization(ebs, volume)["Progress"], 100)
        expect(states(ebs, volume)["initialization-state"], "completed")
    # With a credit of fast restore nothing is cold; with a rate of its own a volume takes none.
    ebs.ec2.enable_fast_snapshot_restores(
        AvailabilityZones=[ebs.zone], SourceSnapshotIds=[snapshot])
    ebs.clock.advance("2h")
    fast = create(ebs, "gp3", 1, SnapshotId=snapshot)
    expect(initialization(ebs, fast)["Progress"], 100)
    rated = create(ebs, "gp3", 1, SnapshotId=snapshot, VolumeInitializationRate=100)
    expect(initialization(ebs, rated)["Progress"], 0)


def status(ebs, volume):
    return ebs.ec2.describe_volume_status(VolumeIds=[volume])["VolumeStatuses"][0]


def initialization(ebs, volume):
    return status(ebs, volume)["InitializationStatusDetails"]


def states(ebs, volume):
    details = status(ebs, volume)["VolumeStatus"]["Details"]
    return {one["Name"]: one["Status"] for one in details}


def attachment(ebs, volume):
    found = ebs.ec2.describe_volumes(VolumeIds=[volume])["Volumes"][0]["Attachments"]
    return found[0]["State"] if found else None


def requests_of(ebs, fault):
    """Returns how many requests a fault has changed."""
    return [one["requests"] for one in ebs.fault.list() if one["fault_id"] == fault][0]


def wait_for(is_true, otherwise):
    deadline = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < deadline, otherwise
        time.sleep(0.05)


if __name__ == "__main__":
    globals()[sys.argv[1]](sys.argv[2:])
