"""The cost of the audit's files for calls of the API. Arguments: the program, the pairs of rounds.

One server writes its records; at the other a file is in place of the folder, so that no record can
be written, and calls that read are still answered. Each round sends one signed request many times.
"""

import http.client
import pathlib
import statistics
import subprocess
import sys
import tempfile
import time

from botocore.auth import SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials

CALLS = 500
TICKS_PER_S = 100
BODY = "Action=DescribeVolumes&Version=2016-11-15&MaxResults=5"


class Server:
    """A running server with five volumes."""

    def __init__(self, program, folder, audited):
        self.program, self.folder = program, folder
        if not audited:
            folder.mkdir()
            self.start()
            self.stop()
            audit = folder / "audit"
            for file in audit.iterdir():
                file.unlink()
            audit.rmdir()
            audit.touch()
        self.start()

    def start(self):
        words = [self.program, "serve", "--data-dir", self.folder, "--listen", "127.0.0.1:0",
                 "--nbd-listen", "none", "--store", "memory", "--calibrate", "never"]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True,
                                        stderr=subprocess.DEVNULL)
        for line in self.process.stdout:
            if line.strip().startswith("API "):
                self.address = line.split()[1].removeprefix("http://")
            if "describe-volumes" in line:
                return

    def stop(self):
        self.process.terminate()
        self.process.wait()

    def headers(self):
        lines = (self.folder / "credentials").read_text(encoding="utf-8").splitlines()
        pairs = (line.split(" = ") for line in lines if " = " in line)
        keys = {name: value.strip("\"") for name, value in pairs}
        keys = Credentials(keys["access_key_id"], keys["secret_access_key"])
        request = AWSRequest("POST", f"http://{self.address}/", data=BODY,
                             headers={"Content-Type": "application/x-www-form-urlencoded"})
        SigV4Auth(keys, "ec2", "local-1").add_auth(request)
        return dict(request.headers)

    def processor_s(self):
        fields = pathlib.Path(f"/proc/{self.process.pid}/stat").read_text().split()
        return (int(fields[13]) + int(fields[14])) / TICKS_PER_S

    def round(self):
        """Calls a second, and the processor time that the server took, in seconds."""
        headers, connection = self.headers(), http.client.HTTPConnection(self.address)
        used, began = self.processor_s(), time.monotonic()
        for _ in range(CALLS):
            connection.request("POST", "/", BODY, headers)
            answer = connection.getresponse()
            text = answer.read()
            assert answer.status == 200, text
        return CALLS / (time.monotonic() - began), self.processor_s() - used


def main(program, pairs):
    with tempfile.TemporaryDirectory() as folder:
        place = pathlib.Path(folder)
        both = [Server(program, place / name, name == "with") for name in ("with", "without")]
        rounds = [[server.round() for server in both] for _ in range(pairs)]
        for server in both:
            server.stop()
    ratios = sorted(one[0] / other[0] for one, other in rounds)
    ms = [1_000 * sum(each[at][1] for each in rounds) / CALLS / pairs for at in (0, 1)]
    print(f"{pairs} pairs of {CALLS} calls")
    print(f"calls a second, with of without: median {statistics.median(ratios):.3f} of "
          + " ".join(f"{ratio:.2f}" for ratio in ratios))
    print(f"processor time of a call: {ms[0]:.3f} ms with, {ms[1]:.3f} ms without")


main(sys.argv[1], int(sys.argv[2]))
