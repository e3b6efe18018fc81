"""Tests of evenkeel.testing, as a user would write them."""

import datetime
import json
import os
import signal
import subprocess
import sys
import time
import unittest

import botocore.config
import pytest
from evenkeel import program
from evenkeel.testing import PREFIX, EbsTestCase, Server


def volume_ids(ebs):
    return [volume["VolumeId"] for volume in ebs.ec2.describe_volumes()["Volumes"]]


def create(ebs, **more):
    volume = ebs.ec2.create_volume(AvailabilityZone=ebs.zone, Size=1, VolumeType="gp3", **more)
    ebs.ec2.get_waiter("volume_available").wait(VolumeIds=[volume["VolumeId"]])
    return volume["VolumeId"]


@pytest.mark.parametrize("turn", ["first", "second"])
def test_each_test_finds_no_volume_snapshot_or_host_of_another(ebs, turn):
    assert volume_ids(ebs) == []
    assert ebs.ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"] == []
    assert len(ebs._hosts()) == 1
    volume = create(ebs)
    ebs.ec2.create_snapshot(VolumeId=volume)
    ebs.attach(volume)
    image = "ami-0123456789abcdef0"
    ebs.ec2.run_instances(ImageId=image, InstanceType="m5.large", MinCount=1, MaxCount=1)
    assert len(ebs._hosts()) == 2


def test_one_server_serves_a_session(ebs, ebs_server, request):
    assert ebs is ebs_server
    seen = request.config.stash.setdefault(KEY, ebs.endpoint)
    assert seen == ebs.endpoint


def test_one_server_serves_a_session_still(ebs, request):
    assert request.config.stash.setdefault(KEY, ebs.endpoint) == ebs.endpoint


KEY = pytest.StashKey[str]()


@pytest.mark.parametrize("turn", ["first", "second"])
def test_each_test_finds_no_user_experiment_fault_or_setting_of_another(ebs, turn):
    ec2, iam, fis = ebs.ec2, ebs.client("iam"), ebs.client("fis")
    assert iam.list_users()["Users"] == []
    assert fis.list_experiment_templates()["experimentTemplates"] == []
    running = [one["state"]["status"] for one in fis.list_experiments()["experiments"]]
    assert "running" not in running
    assert ebs.fault.list() == []
    assert ec2.get_snapshot_block_public_access_state()["State"] == "unblocked"
    assert ebs.clock.advance("1s") < ebs.clock.now()
    iam.create_user(UserName="kim")
    iam.create_access_key(UserName="kim")
    iam.put_user_policy(UserName="kim", PolicyName="own", PolicyDocument=json.dumps({
        "Version": "2012-10-17",
        "Statement": [{"Effect": "Allow", "Action": "ec2:*", "Resource": "*"}],
    }))
    managed = iam.list_policies()["Policies"][0]["Arn"]
    iam.attach_user_policy(UserName="kim", PolicyArn=managed)
    volume = create(ebs, TagSpecifications=[
        {"ResourceType": "volume", "Tags": [{"Key": "team", "Value": "db"}]},
    ])
    template = fis.create_experiment_template(
        description="a pause", stopConditions=[{"source": "none"}],
        roleArn="arn:aws:iam::000000000000:role/fis",
        targets={"some": {
            "resourceType": "aws:ec2:ebs-volume", "resourceTags": {"team": "db"},
            "selectionMode": "ALL",
        }},
        actions={"pause": {
            "actionId": "aws:ebs:pause-volume-io", "parameters": {"duration": "PT1H"},
            "targets": {"Volumes": "some"},
        }},
    )["experimentTemplate"]["id"]
    started = fis.start_experiment(experimentTemplateId=template)["experiment"]
    assert started["state"]["status"] == "running"
    # A program of the test, as the fixture does not see it.
    words = ["fault", "start", "api-throttle-error", "--operation", "CreateVolume"]
    subprocess.run([program(), *words], env=ebs.environment(), capture_output=True, check=True)
    snapshot = ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
    ec2.lock_snapshot(SnapshotId=snapshot, LockMode="governance", LockDuration=1)
    ec2.enable_snapshot_block_public_access(State="block-all-sharing")
    ebs.clock.freeze()


def test_a_fresh_server_is_another_one(ebs, ebs_fresh):
    assert ebs_fresh.endpoint != ebs.endpoint
    volume = create(ebs_fresh)
    assert volume_ids(ebs_fresh) == [volume]
    assert volume_ids(ebs) == []


def test_an_attached_volume_has_an_address(ebs):
    uri = ebs.attach(create(ebs))
    assert uri.startswith("nbd://127.0.0.1:")
    assert uri.endswith(volume_ids(ebs)[0])


def test_settings_of_the_user_are_not_used(ebs, monkeypatch):
    monkeypatch.setenv("AWS_PROFILE", "another")
    monkeypatch.setenv("EVENKEEL_CONFIG", "/does/not/exist")
    environment = ebs.environment()
    assert "AWS_PROFILE" not in environment
    assert environment["AWS_ENDPOINT_URL_EC2"] == ebs.endpoint
    shown = subprocess.run(
        [program(), "volume", "ls", "-o", "json"],
        env=environment, capture_output=True, text=True, check=True,
    )
    assert '"volumes": []' in shown.stdout or '"volumes":[]' in shown.stdout


def test_clients_have_no_profile_file_or_proxy_of_the_user(monkeypatch, tmp_path):
    damaged = tmp_path / "config"
    damaged.write_text("[profile\nno file of settings")
    monkeypatch.setenv("AWS_PROFILE", "nosuch")
    monkeypatch.setenv("AWS_CONFIG_FILE", str(damaged))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(damaged))
    monkeypatch.setenv("AWS_RETRY_MODE", "nosuch")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    for name in ("HTTP_PROXY", "http_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")
    with Server() as ebs:
        assert volume_ids(ebs) == []
        patient = botocore.config.Config(retries={"total_max_attempts": 1})
        assert ebs.client("ec2", config=patient).describe_volumes()["Volumes"] == []
        assert ebs.environment()["no_proxy"] == "127.0.0.1"


def test_a_refused_flag_is_an_error_with_the_log():
    with pytest.raises(RuntimeError, match="--no-such-flag"):
        Server(["--no-such-flag"]).start()


def test_the_server_ends_with_a_killed_test_run():
    script = (
        "import time\nfrom evenkeel.testing import Server\n"
        "server = Server().start()\nprint(server._process.pid, flush=True)\ntime.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as run:
        pid = int(run.stdout.readline())
        os.kill(pid, 0)
        run.send_signal(signal.SIGKILL)
    deadline = time.monotonic() + 60
    while is_alive(pid):
        assert time.monotonic() < deadline, "the server runs still"
        time.sleep(0.05)
    # The next server removes what the killed run has left.
    with Server() as server:
        beside = server._folder.parent
        assert list(beside.glob(f"{PREFIX}{run.pid}-*")) == []


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as stat:
            return stat.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_server_that_starts_again_attaches_to_its_own_host():
    server = Server()
    for _ in range(2):
        with server:
            volume = create(server)
            assert server.attach(volume) == f"nbd://{server.nbd}/{volume}"


def test_a_stopped_server_leaves_no_files():
    server = Server().start()
    folder = server._folder
    assert folder.is_dir()
    server.stop()
    assert not folder.exists()
    server.stop()
    with pytest.raises(RuntimeError, match="does not run"):
        server.environment()


class TestWithUnittest(EbsTestCase):
    serve_flags = ("--region", "eu-1", "--zone", "eu-1a,eu-1b")

    def test_flags_are_those_of_the_class(self):
        self.assertEqual((self.ebs.region, self.ebs.zone), ("eu-1", "eu-1a"))
        create(self.ebs)

    def test_nothing_is_left_of_other_tests(self):
        self.assertEqual(volume_ids(self.ebs), [])
        create(self.ebs)


def test_a_user_may_make_a_client_of_their_own(ebs):
    client = ebs.client("ec2", config=botocore.config.Config(retries={"max_attempts": 1}))
    assert client is not ebs.ec2
    assert client.describe_volumes()["Volumes"] == []


def test_the_clock_moves_ahead_and_stands_still(ebs):
    before = ebs.clock.now()
    after = ebs.clock.advance("6h")
    assert datetime.timedelta(hours=6) <= after - before < datetime.timedelta(hours=7)
    with ebs.clock.frozen():
        volume = create(ebs)
        now = ebs.clock.now()
        created = ebs.ec2.describe_volumes(VolumeIds=[volume])["Volumes"][0]["CreateTime"]
        assert ebs.clock.now() == now
        # Durations count by another clock of the machine; the two differ by less than a step.
        assert abs(created - now) < datetime.timedelta(seconds=5)
    assert ebs.clock.set(now + datetime.timedelta(days=1)) - now < datetime.timedelta(days=2)
    with pytest.raises(RuntimeError, match="only set ahead"):
        ebs.clock.set(before)
    with pytest.raises(ValueError, match="whole number"):
        ebs.clock.advance(datetime.timedelta(milliseconds=1))



def test_faults_end_with_their_block_and_with_the_test(ebs):
    client = ebs.client("ec2", config=botocore.config.Config(retries={"max_attempts": 0}))
    with ebs.fault("api-throttle-error", operations=["DescribeVolumes"]) as fault:
        with pytest.raises(client.exceptions.ClientError, match="RequestLimitExceeded"):
            client.describe_volumes()
        assert [one["fault_id"] for one in ebs.fault.list()] == [fault]
        client.describe_instances()
    assert client.describe_volumes()["Volumes"] == []
    ebs.fault.start("insufficient-volume-capacity", lasting=datetime.timedelta(hours=1))
    with pytest.raises(client.exceptions.ClientError, match="InsufficientVolumeCapacity"):
        create(ebs_without_retries(client, ebs))
    ebs.reset()
    assert ebs.fault.list() == []


#: A test of a user, which the option of the session concerns.
COLD = """
def test_cold(ebs):
    new = {"AvailabilityZone": ebs.zone, "Size": 1, "VolumeType": "gp3"}
    empty = ebs.ec2.create_volume(**new)["VolumeId"]
    snapshot = ebs.ec2.create_snapshot(VolumeId=empty)["SnapshotId"]
    ebs.ec2.get_waiter("snapshot_completed").wait(
        SnapshotIds=[snapshot], WaiterConfig={"Delay": 1, "MaxAttempts": 60})
    with ebs.clock.frozen():
        volume = ebs.ec2.create_volume(SnapshotId=snapshot, **new)["VolumeId"]
        [found] = ebs.ec2.describe_volume_status(VolumeIds=[volume])["VolumeStatuses"]
    assert found["InitializationStatusDetails"]["Progress"] == 0
"""


def session(folder, *options):
    """Run pytest on the test of a user with these options."""
    (folder / "test_cold.py").write_text(COLD, encoding="utf-8")
    words = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    words += ["-p", "evenkeel.pytest_plugin", "--rootdir", str(folder), *options, str(folder)]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True)


def test_the_option_feel_makes_volumes_of_snapshots_cold(tmp_path):
    felt = session(tmp_path, "--evenkeel-feel", "ebs")
    assert felt.returncode == pytest.ExitCode.OK, felt.stdout + felt.stderr
    usual = session(tmp_path)
    assert usual.returncode == pytest.ExitCode.TESTS_FAILED, usual.stdout + usual.stderr
    assert "assert 100 == 0" in usual.stdout


def test_another_feel_is_refused_with_the_choices(tmp_path):
    refused = session(tmp_path, "--evenkeel-feel", "fast")
    assert refused.returncode == pytest.ExitCode.USAGE_ERROR
    for part in ("--evenkeel-feel", "'fast'", "choose from", "ebs"):
        assert part in refused.stderr, refused.stderr


def ebs_without_retries(client, ebs):
    class Failing:
        ec2 = client
        zone = ebs.zone
    return Failing


if __name__ == "__main__":
    unittest.main()
