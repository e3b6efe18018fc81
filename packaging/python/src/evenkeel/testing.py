"""Servers for tests: EBS on this machine, with its store in memory."""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import datetime
import json
import os
import re
import shlex
import shutil
import signal
import string
import subprocess
import tempfile
import threading
import time
import unittest
from pathlib import Path
from types import TracebackType
from typing import Any, Dict, Iterator, List, Optional, Sequence, Type, Union

from . import program

__all__ = ["Clock", "EbsTestCase", "Faults", "Server"]

#: The longest start of a server, in seconds.
START_MAX_S = 60.0
#: The longest wait for a change that takes a moment, in seconds.
CHANGE_MAX_S = 60.0
#: A file system in memory, if it has this space free; else the folder of temporary files is used.
MEMORY = Path("/dev/shm")
MEMORY_BYTES_MIN = 1 << 30
#: The beginning of the names of folders, before the number of their process.
PREFIX = "evenkeel-testing-"
#: The number of prctl(2) that makes the kernel send a signal when the parent ends.
PR_SET_PDEATHSIG = 1
#: Settings of these services would make SDKs use other servers or keys.
FOREIGN = ("AWS_", "EVENKEEL_")
#: The address of servers.
HOST = "127.0.0.1"

_libc = ctypes.CDLL(None, use_errno=True)


def _end_with_parent() -> None:
    """Run in the server's process before its program."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


class Clock:
    """The clock of a server's API. I/O and signatures keep real time."""

    def __init__(self, server: "Server") -> None:
        self._server = server

    def now(self) -> datetime.datetime:
        """Return its time, in UTC."""
        return self._verb("show")

    def advance(self, by: Union[str, int, datetime.timedelta]) -> datetime.datetime:
        """Move it ahead by seconds, a timedelta or a text such as "6h"; return its time."""
        return self._verb("advance", _span(by))

    def set(self, to: datetime.datetime) -> datetime.datetime:
        """Move it ahead to a time with a zone; return its time."""
        if to.tzinfo is None:
            raise ValueError(f"{to} has no time zone")
        utc = to.astimezone(datetime.timezone.utc).replace(tzinfo=None)
        return self._verb("set", utc.isoformat(timespec="milliseconds") + "Z")

    def freeze(self) -> datetime.datetime:
        """Stop it; return its time."""
        return self._verb("freeze")

    def run(self) -> datetime.datetime:
        """Let it run; return its time."""
        return self._verb("run")

    @contextlib.contextmanager
    def frozen(self) -> Iterator["Clock"]:
        """Stop it for a block."""
        self.freeze()
        try:
            yield self
        finally:
            self.run()

    def _verb(self, *words: str) -> datetime.datetime:
        clock = self._server._evenkeel("clock", *words)["clocks"][0]
        return datetime.datetime.fromisoformat(clock["time"].replace("Z", "+00:00"))


class Faults:
    """The faults that a server injects.

    Called with a type, it is a context manager: the fault ends with the block.
    """

    def __init__(self, server: "Server") -> None:
        self._server = server

    def start(
        self,
        fault: str,
        volumes: Sequence[str] = (),
        operations: Sequence[str] = (),
        lasting: Union[str, int, datetime.timedelta] = "5m",
        **more: int,
    ) -> str:
        """Start a fault of this type and return its id.

        It concerns all volumes or actions of the API if none is named, and lasts for seconds, a
        timedelta or a text such as "5m", in real time. `more` are percent, read_percent,
        write_percent, read_ms, write_ms and seed.
        """
        flags = [flag for volume in volumes for flag in ("--volume", volume)]
        flags += [flag for name in operations for flag in ("--operation", name)]
        flags += ["--for", _span(lasting)]
        for name, value in more.items():
            flags += [f"--{name.replace('_', '-')}", str(value)]
        started = self._server._evenkeel("fault", "start", fault, *flags)
        return str(started["faults"][0]["fault_id"])

    def list(self) -> "List[Dict[str, Any]]":
        """Return the faults in force."""
        found: List[Dict[str, Any]] = self._server._evenkeel("fault", "list")["faults"]
        return found

    def stop(self, *ids: str) -> None:
        """Stop these faults; all without an id."""
        self._server._evenkeel("fault", "stop", *ids)

    @contextlib.contextmanager
    def __call__(self, fault: str, **more: Any) -> Iterator[str]:
        """Start a fault for a block, as `start` does."""
        started = self.start(fault, **more)
        try:
            yield started
        finally:
            if any(one["fault_id"] == started for one in self.list()):
                self.stop(started)


class Server:
    """A server on free ports, with its store in memory.

    It is a context manager. `flags` are further flags of `evenkeel serve`.
    """

    #: The address of the API.
    endpoint: str
    #: The region that requests are signed for.
    region: str
    #: The first availability zone.
    zone: str
    #: The address of NBD, such as 127.0.0.1:10809.
    nbd: str
    #: The access key.
    access_key_id: str
    secret_access_key: str

    def __init__(self, flags: Sequence[str] = (), binary: Optional[str] = None) -> None:
        self._flags = list(flags)
        self._binary = binary or program()
        self._folder: Optional[Path] = None
        self._process: Optional[subprocess.Popen[str]] = None
        self._clients: Dict[str, Any] = {}
        self._host: Optional[str] = None
        #: The clock of the API.
        self.clock = Clock(self)
        #: The faults of the server.
        self.fault = Faults(self)

    def start(self) -> "Server":
        """Start the server; return when all its addresses answer."""
        if self._process is not None:
            raise RuntimeError("the server runs")
        self._folder = _new_folder()
        atexit.register(self.stop)
        command = [self._binary, "serve", "--listen", f"{HOST}:0"]
        command += ["--nbd-listen", f"{HOST}:0", "--calibrate", "never"]
        command += ["--test-server", "--oversell-space", "unlimited"]
        command += ["--data-dir", str(self._folder / "data")]
        command += self._flags
        # The log is a file: a pipe that nobody reads would block the server.
        with open(self._folder / "log", "wb") as log:
            self._process = subprocess.Popen(
                command,
                cwd=self._folder,
                env=_without_foreign_settings(),
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                start_new_session=True,
                preexec_fn=_end_with_parent,
            )
        try:
            self._read_greeting(self._process)
            self._read_keys()
        except BaseException:
            self.stop()
            raise
        return self

    def stop(self) -> None:
        """End the server, and remove its files."""
        atexit.unregister(self.stop)
        process, self._process = self._process, None
        if process is not None:
            # Nothing in memory is worth an orderly end.
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()
        folder, self._folder = self._folder, None
        if folder is not None:
            shutil.rmtree(folder, ignore_errors=True)
        self._clients.clear()
        self._host = None

    def __enter__(self) -> "Server":
        return self.start()

    def __exit__(
        self,
        kind: Optional[Type[BaseException]],
        error: Optional[BaseException],
        trace: Optional[TracebackType],
    ) -> None:
        self.stop()

    @property
    def ec2(self) -> Any:
        """The client of the EC2 API."""
        return self.client("ec2")

    def client(self, service: str, **options: Any) -> Any:
        """Return a client of boto3: for "ec2", "ebs", "cloudwatch", "fis", "iam" or "sts"."""
        if not options and service in self._clients:
            return self._clients[service]
        import boto3

        session = boto3.session.Session(
            botocore_session=_session_without_foreign_settings(),
            aws_access_key_id=self.access_key_id,
            aws_secret_access_key=self.secret_access_key,
            region_name=self.region,
        )
        client = session.client(service, endpoint_url=self.endpoint, **options)
        if not options:
            self._clients[service] = client
        return client

    def environment(self) -> Dict[str, str]:
        """Return the environment for programs that use this server: aws-cli, SDKs, evenkeel."""
        environment = _without_foreign_settings()
        environment.update(self._exports())
        # Neither a profile nor the credentials of the user may be found.
        nothing = str(self._running_folder() / "none")
        environment["AWS_CONFIG_FILE"] = nothing
        environment["AWS_SHARED_CREDENTIALS_FILE"] = nothing
        environment["AWS_EC2_METADATA_DISABLED"] = "true"
        # A proxy of the user cannot reach this server.
        for name in ("NO_PROXY", "no_proxy"):
            known = environment.get(name)
            environment[name] = f"{known},{HOST}" if known else HOST
        return environment

    def attach(self, volume_id: str) -> str:
        """Attach a volume to this machine, and return its address for NBD clients."""
        host = self._own_host()
        self.ec2.get_waiter("volume_available").wait(
            VolumeIds=[volume_id], WaiterConfig={"Delay": 1, "MaxAttempts": int(CHANGE_MAX_S)}
        )
        self.ec2.attach_volume(VolumeId=volume_id, InstanceId=host, Device=self._free_device())
        self._wait_for("attached", volume_id)
        return self.nbd_uri(volume_id)

    def nbd_uri(self, volume_id: str) -> str:
        """Return the address of a volume that is attached to this machine."""
        return f"nbd://{self.nbd}/{volume_id}"

    def log(self) -> str:
        """Return what the server has logged."""
        return (self._running_folder() / "log").read_text(errors="replace")

    def reset(self) -> None:
        """Remove what clients have created, and wait for that.

        That is all volumes, snapshots, hosts but this machine, users with their keys and policies,
        templates of FIS, experiments that run, faults, and settings of the account. The clock runs
        again; it does not go back.
        """
        # Also what programs beside the fixture have started.
        self._end_experiments()
        self.fault.stop()
        self.clock.run()
        self._delete_users()
        ec2, own = self.ec2, self._own_host()
        ec2.disable_ebs_encryption_by_default()
        ec2.disable_snapshot_block_public_access()
        hosts = [host for host in self._hosts() if host != own]
        if hosts:
            ec2.terminate_instances(InstanceIds=hosts)
        for volume in self._volumes():
            for attachment in volume["Attachments"]:
                with contextlib.suppress(ec2.exceptions.ClientError):
                    ec2.detach_volume(
                        VolumeId=volume["VolumeId"], InstanceId=attachment["InstanceId"], Force=True
                    )
        deadline = time.monotonic() + CHANGE_MAX_S
        while not self._is_empty():
            if time.monotonic() > deadline:
                left = [volume["VolumeId"] for volume in self._volumes()]
                raise TimeoutError(f"still there after {CHANGE_MAX_S} s: {left or 'snapshots'}")
            time.sleep(0.05)

    def _end_experiments(self) -> None:
        """Stop the experiments of FIS that run, and delete the templates."""
        fis = self.client("fis")
        for page in fis.get_paginator("list_experiments").paginate():
            for experiment in page["experiments"]:
                if experiment["state"]["status"] in ("pending", "initiating", "running"):
                    fis.stop_experiment(id=experiment["id"])
        templates = fis.get_paginator("list_experiment_templates").paginate()
        # All pages are read first: deletions would move the following ones.
        for template in [one for page in templates for one in page["experimentTemplates"]]:
            fis.delete_experiment_template(id=template["id"])

    def _delete_users(self) -> None:
        """Delete the users of IAM with their keys and policies."""
        iam = self.client("iam")
        users = iam.get_paginator("list_users").paginate()
        for name in [user["UserName"] for page in users for user in page["Users"]]:
            for key in iam.list_access_keys(UserName=name)["AccessKeyMetadata"]:
                iam.delete_access_key(UserName=name, AccessKeyId=key["AccessKeyId"])
            own = iam.get_paginator("list_user_policies").paginate(UserName=name)
            for policy in [one for page in own for one in page["PolicyNames"]]:
                iam.delete_user_policy(UserName=name, PolicyName=policy)
            attached = iam.get_paginator("list_attached_user_policies").paginate(UserName=name)
            for policy in [one for page in attached for one in page["AttachedPolicies"]]:
                iam.detach_user_policy(UserName=name, PolicyArn=policy["PolicyArn"])
            iam.delete_user(UserName=name)

    def _is_empty(self) -> bool:
        """Delete what can be deleted now; return whether nothing is left."""
        ec2 = self.ec2
        volumes, snapshots = self._volumes(), self._snapshots()
        for volume in volumes:
            if volume["State"] in ("available", "error"):
                with contextlib.suppress(ec2.exceptions.ClientError):
                    ec2.delete_volume(VolumeId=volume["VolumeId"])
        for snapshot in snapshots:
            with contextlib.suppress(ec2.exceptions.ClientError):
                ec2.delete_snapshot(SnapshotId=snapshot)
                continue
            with contextlib.suppress(ec2.exceptions.ClientError):
                ec2.unlock_snapshot(SnapshotId=snapshot)
        return not volumes and not snapshots

    def _volumes(self) -> List[Any]:
        pages = self.ec2.get_paginator("describe_volumes").paginate()
        return [volume for page in pages for volume in page["Volumes"]]

    def _snapshots(self) -> List[str]:
        pages = self.ec2.get_paginator("describe_snapshots").paginate(OwnerIds=["self"])
        return [snapshot["SnapshotId"] for page in pages for snapshot in page["Snapshots"]]

    def _hosts(self) -> List[str]:
        pages = self.ec2.get_paginator("describe_instances").paginate()
        reservations = [reservation for page in pages for reservation in page["Reservations"]]
        hosts = [host for reservation in reservations for host in reservation["Instances"]]
        return [host["InstanceId"] for host in hosts if host["State"]["Name"] != "terminated"]

    def _own_host(self) -> str:
        if self._host is None:
            # Read at the first use, when no test has registered another one.
            self._host = self._hosts()[0]
        return self._host

    def _free_device(self) -> str:
        """Return an unused name of a device. The API wants one; NBD clients do not use it."""
        attachments = [one for volume in self._volumes() for one in volume["Attachments"]]
        used = {attachment["Device"] for attachment in attachments}
        letters = string.ascii_lowercase
        names = [*letters[5:], *(first + second for first in letters for second in letters)]
        return next(f"/dev/sd{name}" for name in names if f"/dev/sd{name}" not in used)

    def _wait_for(self, state: str, volume_id: str) -> None:
        deadline = time.monotonic() + CHANGE_MAX_S
        while True:
            volume = self.ec2.describe_volumes(VolumeIds=[volume_id])["Volumes"][0]
            states = [attachment["State"] for attachment in volume["Attachments"]]
            if state in states:
                return
            if time.monotonic() > deadline:
                raise TimeoutError(f"{volume_id} is {states}, not {state}")
            time.sleep(0.05)

    def _evenkeel(self, *words: str) -> Any:
        """Run a verb of the program on this server, and return what it prints."""
        done = subprocess.run(
            [self._binary, *words, "-o", "json", *self._connection()],
            cwd=self._running_folder(),
            env=_without_foreign_settings(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise RuntimeError(f"evenkeel {' '.join(words)}: {done.stderr.strip()}")
        return json.loads(done.stdout)

    def _connection(self) -> List[str]:
        return ["--data-dir", str(self._running_folder() / "data"), "--endpoint", self.endpoint]

    def _running_folder(self) -> Path:
        if self._folder is None:
            raise RuntimeError("the server does not run: start it first")
        return self._folder

    def _read_greeting(self, process: "subprocess.Popen[str]") -> None:
        late = threading.Timer(START_MAX_S, process.kill)
        late.start()
        try:
            assert process.stdout is not None
            text = ""
            for line in process.stdout:
                text += line
                if "stops it" in line:
                    break
        finally:
            late.cancel()
        api = re.search(r"API +(http\S+) +region (\S+)", text)
        nbd = re.search(r"NBD +nbd://([^/\s]+)/", text)
        if not api or "stops it" not in text:
            raise RuntimeError(f"the server did not start: {self.log()}")
        self.endpoint, self.region = api.groups()
        self.nbd = nbd.group(1) if nbd else ""

    def _read_keys(self) -> None:
        exports = self._exports()
        self.access_key_id = exports["AWS_ACCESS_KEY_ID"]
        self.secret_access_key = exports["AWS_SECRET_ACCESS_KEY"]
        zones = self.ec2.describe_availability_zones()["AvailabilityZones"]
        self.zone = zones[0]["ZoneName"]
        self._own_host()

    def _exports(self) -> Dict[str, str]:
        """Return the variables that `evenkeel env` prints."""
        folder = self._running_folder()
        printed = subprocess.run(
            [self._binary, "env", "--data-dir", str(folder / "data")],
            cwd=folder,
            env=_without_foreign_settings(),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=True,
        )
        words = (shlex.split(line) for line in printed.stdout.splitlines())
        pairs = (line[1].split("=", 1) for line in words if line[:1] == ["export"])
        return {name: value for name, value in pairs}


def _span(span: Union[str, int, datetime.timedelta]) -> str:
    """Return a span of time as the program reads it."""
    if isinstance(span, str):
        return span
    seconds = span.total_seconds() if isinstance(span, datetime.timedelta) else span
    if seconds != int(seconds):
        raise ValueError(f"{span} is no whole number of seconds")
    return f"{int(seconds)}s"


def _new_folder() -> Path:
    """Create a folder in memory, and remove those of processes that were killed."""
    parent = Path(tempfile.gettempdir())
    with contextlib.suppress(OSError):
        if os.access(MEMORY, os.W_OK) and shutil.disk_usage(MEMORY).free >= MEMORY_BYTES_MIN:
            parent = MEMORY
    for folder in parent.glob(f"{PREFIX}*-*"):
        process = folder.name[len(PREFIX) :].split("-")[0]
        if process.isdigit() and not Path("/proc", process).exists():
            # Those of other users cannot be removed.
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=parent))


def _without_foreign_settings() -> Dict[str, str]:
    return {name: value for name, value in os.environ.items() if not name.startswith(FOREIGN)}


def _session_without_foreign_settings() -> Any:
    """Return a session of botocore that reads neither variables nor files, and has no proxy."""
    import botocore.config
    import botocore.configprovider
    import botocore.session

    variables = {
        name: (key, None, default, convert)
        for name, (key, _, default, convert) in
        botocore.configprovider.BOTOCORE_DEFAUT_SESSION_VARIABLES.items()
    }
    for name in ("config_file", "credentials_file"):
        variables[name] = (None, None, os.devnull, None)
    session = botocore.session.Session(session_vars=variables)
    session.set_default_client_config(botocore.config.Config(proxies={}))
    return session


class EbsTestCase(unittest.TestCase):
    """Tests with a server for the class in `self.ebs`, which has nothing of earlier tests."""

    #: Further flags of `evenkeel serve`.
    serve_flags: Sequence[str] = ()
    ebs: Server

    @classmethod
    def setUpClass(cls) -> None:
        super().setUpClass()
        cls.ebs = Server(cls.serve_flags).start()
        cls.addClassCleanup(cls.ebs.stop)

    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.ebs.reset)
