"""Block storage with provisioned IOPS: where the program is. `evenkeel.testing` has servers for
tests."""

import os
import shutil
import sysconfig
from pathlib import Path

__all__ = ["program"]


def program() -> str:
    """Return the path of the program `evenkeel`.

    It is the one of the variable EVENKEEL_PROGRAM, the one that was installed with this package,
    or the first on PATH.
    """
    named = os.environ.get("EVENKEEL_PROGRAM")
    if named:
        return named
    installed = Path(sysconfig.get_path("scripts")) / "evenkeel"
    if installed.is_file():
        return str(installed)
    found = shutil.which("evenkeel")
    if found:
        return found
    raise FileNotFoundError(
        "there is no program evenkeel: install the wheel of the package evenkeel-ebs, which "
        "`cargo x package wheel` builds, or name the program in EVENKEEL_PROGRAM"
    )
