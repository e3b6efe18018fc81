"""Calls at random until the server is gone, and what must be left then. Arguments: `ask SEED`
prints what is asked and what was answered; `check FILE` compares a server with what was printed.

Each line is an object: `asks` names what a call may change, `did` what it is after the reply,
`refused` that it is as it was, `killed` that the server was."""

import json
import random
import sys
import threading
import time

import boto3
import botocore.config
import botocore.exceptions

from ec2 import ZONE, numbered

THREADS = 4
PRINTING = threading.Lock()
FAILED = []


def connect():
    config = botocore.config.Config(retries={"total_max_attempts": 1}, proxies={},
                                    read_timeout=60)
    client = numbered(boto3.client("ec2", config=config))
    client.meta.events.register("needs-retry.ec2", signed_too_early)
    return client


def signed_too_early(response, attempts, **_):
    """Sends again what was signed in the second in which the server started: it changed nothing."""
    error = (response[1] if response else {}).get("Error", {})
    return 0 if error.get("Code") == "RequestLimitExceeded" and attempts < 4 else None


def tell(line):
    with PRINTING:
        print(json.dumps(line), flush=True)


class Asking:
    """One client with volumes and snapshots of its own."""

    def __init__(self, number, seed, local):
        self.number, self.choose, self.local = number, random.Random(f"{seed} {number}"), local
        self.client = connect()
        self.volumes, self.snapshots, self.binned = {}, {}, {}

    def any(self, among):
        names = sorted(among)
        return self.choose.choice(names) if names else None

    def asks(self, *ids, makes=0):
        tell({"client": self.number, "asks": [each for each in ids if each], "makes": makes})

    def did(self, kind, name, state):
        tell({"client": self.number, "did": kind, "id": name, "state": state})

    def changed(self, name, **changes):
        self.volumes[name].update(changes)
        self.did("volume", name, self.volumes[name])

    def create(self):
        source, snapshot = self.any(self.volumes), self.any(self.snapshots)
        kind = self.choose.randrange(4)
        self.asks(makes=1)
        if kind == 2 and source:
            reply = self.client.copy_volumes(SourceVolumeId=source, VolumeType="gp3")["Volumes"][0]
        elif kind == 3 and snapshot:
            reply = self.client.create_volume(AvailabilityZone=ZONE, SnapshotId=snapshot,
                                              VolumeType="gp3")
        else:
            reply = self.client.create_volume(AvailabilityZone=ZONE, Size=1, VolumeType="gp3")
        name = reply["VolumeId"]
        # A copy may wait for what it begins as; deleted then, it would not get into the bin.
        self.client.get_waiter("volume_available").wait(
            VolumeIds=[name], WaiterConfig={"Delay": 0.02, "MaxAttempts": 3000})
        self.volumes[name] = {"size": reply["Size"], "tag": None, "device": None, "at": "shown"}
        self.did("volume", name, self.volumes[name])

    def delete(self):
        name = self.any(name for name, it in self.volumes.items() if not it["device"])
        if name:
            self.asks(name)
            self.client.delete_volume(VolumeId=name)
            self.changed(name, at="binned")
            self.binned[name] = self.volumes.pop(name)

    def restore(self):
        name = self.any(self.binned)
        if name:
            self.asks(name)
            self.client.restore_volume_from_recycle_bin(VolumeId=name)
            self.volumes[name] = self.binned.pop(name)
            self.changed(name, at="shown")

    def attach(self):
        name = self.any(name for name, it in self.volumes.items() if not it["device"])
        taken = [it["device"] for it in self.volumes.values()]
        # The letters are its own: f to j, k to o, and so on.
        free = [f"/dev/sd{chr(ord('f') + 5 * self.number + at)}" for at in range(5)]
        device = self.any(device for device in free if device not in taken)
        if name and device:
            self.asks(name)
            self.client.attach_volume(VolumeId=name, InstanceId=self.local, Device=device)
            self.changed(name, device=device)

    def detach(self):
        name = self.any(name for name, it in self.volumes.items() if it["device"])
        if name:
            self.asks(name)
            self.client.detach_volume(VolumeId=name)
            self.changed(name, device=None)

    def modify(self):
        name = self.any(self.volumes)
        if name:
            size = self.volumes[name]["size"] + 1
            self.asks(name)
            self.client.modify_volume(VolumeId=name, Size=size)
            self.changed(name, size=size)

    def tag(self):
        name, value = self.any(self.volumes), str(self.choose.randrange(1000))
        if name:
            self.asks(name)
            self.client.create_tags(Resources=[name], Tags=[{"Key": "k", "Value": value}])
            self.changed(name, tag=value)

    def snapshot(self):
        name = self.any(self.volumes)
        if name:
            self.asks(makes=1)
            made = self.client.create_snapshot(VolumeId=name)["SnapshotId"]
            self.did("snapshot", made, {"at": "made"})
            deadline = time.monotonic() + 60
            while self.state_of(made) == "pending" and time.monotonic() < deadline:
                time.sleep(0.02)
            self.snapshots[made] = {"at": "completed", "locked": False}
            self.did("snapshot", made, self.snapshots[made])

    def state_of(self, name):
        return self.client.describe_snapshots(SnapshotIds=[name])["Snapshots"][0]["State"]

    def copy(self):
        name = self.any(self.snapshots)
        if name:
            self.asks(makes=1)
            reply = self.client.copy_snapshot(SourceSnapshotId=name, SourceRegion="local-1")
            self.did("snapshot", reply["SnapshotId"], {"at": "made"})

    def lock(self):
        name = self.any(name for name, it in self.snapshots.items() if not it["locked"])
        if name:
            self.asks(name)
            self.client.lock_snapshot(SnapshotId=name, LockMode="governance", LockDuration=1)
            self.snapshots[name]["locked"] = True
            self.did("snapshot", name, self.snapshots[name])

    def drop(self):
        name = self.any(name for name, it in self.snapshots.items() if not it["locked"])
        if name:
            self.asks(name)
            self.client.delete_snapshot(SnapshotId=name)
            self.did("snapshot", name, {"at": "binned"})
            del self.snapshots[name]

    def run(self):
        calls = [self.create, self.create, self.delete, self.restore, self.attach, self.attach,
                 self.detach, self.modify, self.tag, self.snapshot, self.copy, self.lock, self.drop]
        try:
            while True:
                try:
                    self.choose.choice(calls)()
                except botocore.exceptions.ClientError as error:
                    # Copies in progress keep their sources, for example. Nothing has changed.
                    status = error.response["ResponseMetadata"]["HTTPStatusCode"]
                    assert 400 <= status < 500, error
                    tell({"client": self.number, "refused": error.response["Error"]["Code"]})
        except (botocore.exceptions.EndpointConnectionError,
                botocore.exceptions.ConnectionClosedError,
                botocore.exceptions.HTTPClientError):
            return
        except BaseException:
            FAILED.append(self.number)
            raise


def ask(seed):
    client = connect()
    filters = [{"Name": "instance-type", "Values": ["evenkeel.local"]}]
    found = client.describe_instances(Filters=filters)["Reservations"][0]["Instances"][0]
    all_of_them = [Asking(number, seed, found["InstanceId"]) for number in range(THREADS)]
    threads = [threading.Thread(target=one.run) for one in all_of_them]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    sys.exit(1 if FAILED else 0)


def expected_of(lines):
    """The last known state of everything, what may have changed since, and how much was made.
    The clients of each round are others, and know nothing of what was there before."""
    states, unknown, made = {}, set(), 0
    asked, makes = {}, {}
    for line in map(json.loads, lines):
        if "killed" in line:
            unknown.update(each for ids in asked.values() for each in ids)
            made += sum(makes.values())
            asked, makes = {}, {}
        elif "asks" in line:
            asked[line["client"]], makes[line["client"]] = line["asks"], line["makes"]
        else:
            if "did" in line:
                states[line["id"]] = (line["did"], line["state"])
            asked[line["client"]], makes[line["client"]] = [], 0
    assert not asked, "the last round has no end"
    return states, unknown, made


def steady(client):
    """What there is, once nothing is on its way any more."""
    deadline = time.monotonic() + 60
    while True:
        volumes = client.describe_volumes()["Volumes"]
        snapshots = client.describe_snapshots(OwnerIds=["self"])["Snapshots"]
        is_steady = all(each["State"] in ("available", "in-use") for each in volumes) and all(
            each["State"] != "pending" for each in snapshots)
        if is_steady:
            return volumes, snapshots
        assert time.monotonic() < deadline, f"on its way for ever: {volumes} {snapshots}"
        time.sleep(0.2)


def found_on(client):
    volumes, snapshots = steady(client)
    locked = client.describe_locked_snapshots()["Snapshots"]
    locked = {each["SnapshotId"] for each in locked}
    found = {}
    for each in volumes:
        tags = {tag["Key"]: tag["Value"] for tag in each.get("Tags", [])}
        devices = [attachment["Device"] for attachment in each["Attachments"]]
        assert len(devices) < 2, each
        found[each["VolumeId"]] = {"size": each["Size"], "tag": tags.get("k"), "at": "shown",
                                   "device": devices[0] if devices else None}
    for each in client.list_volumes_in_recycle_bin()["Volumes"]:
        assert each["VolumeId"] not in found, f"shown and in the bin: {each}"
        found[each["VolumeId"]] = {"at": "binned"}
    for each in snapshots:
        name = each["SnapshotId"]
        found[name] = {"at": each["State"], "locked": name in locked}
    for each in client.list_snapshots_in_recycle_bin()["Snapshots"]:
        found[each["SnapshotId"]] = {"at": "binned"}
    return found


def check(path):
    with open(path, encoding="utf-8") as file:
        states, asked, makes = expected_of(file)
    found = found_on(connect())
    for name, (_, state) in states.items():
        if name in asked:
            continue
        there = found.get(name)
        if state["at"] == "made":
            # It was answered before it was durable.
            assert there and there["at"] in ("completed", "error"), f"{name}: {there}"
            continue
        assert there, f"{name} is gone: {state}"
        same = state if state["at"] != "binned" else {"at": "binned"}
        assert there == same, f"{name}: found {there}, expected {same}"
    unknown = [name for name in found if name not in states]
    assert len(unknown) <= makes, f"{unknown}: and {makes} were asked for without a reply"
    print(f"{len(states)} as they were, {len(asked)} on their way, {len(unknown)} made")


if __name__ == "__main__":
    {"ask": ask, "check": check}[sys.argv[1]](sys.argv[2])
