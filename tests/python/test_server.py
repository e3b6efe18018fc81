"""A server for tests, with the fixture of evenkeel.testing and boto3.

Arguments: name of a check, flags of the server.
"""

import datetime
import subprocess
import sys
import time
import time

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
        api_faults(ebs)
        object_faults(ebs)
        ebs.fault.start("pause-volume-io")
        # A test may end with a fault in force: nothing of it is left.
        ebs.reset()
        expect(ebs.fault.list(), [])


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
    with ebs.fault("snapshot-error", volumes=[volume]):
        snapshot = ebs.ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
        found = ebs.ec2.describe_snapshots(SnapshotIds=[snapshot])["Snapshots"][0]
        expect(found["State"], "error")


def attachment(ebs, volume):
    found = ebs.ec2.describe_volumes(VolumeIds=[volume])["Volumes"][0]
    return found["Attachments"][0]["State"]


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
