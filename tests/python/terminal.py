"""A terminal for `evenkeel top`: python3 terminal.py CHECK VOLUME PROGRAM ARGUMENTS..."""

import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import fcntl
import time

PATIENCE_S = 60
CHECK, VOLUME, *COMMAND = sys.argv[1:]
ENTER, LEAVE = b"\x1b[?1049h", b"\x1b[?1049l"


class Terminal:
    """The program on a new terminal of 24 lines and 132 columns."""

    def __init__(self):
        self.seen = b""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.environ["TERM"] = "xterm-256color"
            os.execv(COMMAND[0], COMMAND)
        fcntl.ioctl(self.fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 132, 0, 0))
        self.before = termios.tcgetattr(self.fd)

    def text(self):
        """What was drawn so far, without the escapes that move the cursor and set colours."""
        return re.sub(rb"\x1b\[[0-9;?]*[A-Za-z]", b"", self.seen)

    def wait_for(self, what):
        """Reads until `what` was drawn."""
        deadline = time.monotonic() + PATIENCE_S
        while what not in self.text() and what not in self.seen:
            left = deadline - time.monotonic()
            ready = left > 0 and select.select([self.fd], [], [], left)[0]
            assert ready, f"{what} was not drawn: {self.seen}"
            self.seen += self.read()

    def read(self):
        try:
            data = os.read(self.fd, 65536)
        except OSError:
            data = b""
        assert data, f"it has ended: {self.seen}"
        return data

    def press(self, keys):
        os.write(self.fd, keys)

    def finish(self):
        """Waits for the end; the terminal must be as it was before."""
        self.wait_for(LEAVE)
        after = termios.tcgetattr(self.fd)
        assert after[:4] == self.before[:4], f"{after} is not {self.before}"
        # Empties the terminal, so that the program need not wait for it.
        try:
            while os.read(self.fd, 65536):
                pass
        except OSError:
            pass
        _, status = os.waitpid(self.pid, 0)
        code = os.waitstatus_to_exitcode(status)
        assert code == 0, f"exit code {code}: {self.seen}"


terminal = Terminal()
terminal.wait_for(ENTER)
terminal.wait_for(VOLUME.encode())
terminal.wait_for(b"sorted by iops")
if CHECK == "quit":
    terminal.press(b"s")
    terminal.wait_for(b"throughput")
    terminal.press(b"q")
elif CHECK == "interrupt":
    terminal.press(b"\x03")
elif CHECK == "terminate":
    os.kill(terminal.pid, signal.SIGTERM)
elif CHECK == "away":
    os.kill(int(os.environ["SERVER_PID"]), signal.SIGTERM)
    terminal.wait_for(b"no newer sample: ")
    terminal.press(b"q")
else:
    sys.exit(f"no check {CHECK}")
terminal.finish()
