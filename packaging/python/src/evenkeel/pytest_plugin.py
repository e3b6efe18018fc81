"""The fixtures of `evenkeel.testing` for pytest."""

from __future__ import annotations

import shlex
from typing import Iterator

import pytest

from .testing import Server


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options of the fixtures."""
    group = parser.getgroup("evenkeel")
    group.addoption(
        "--evenkeel-serve",
        default="",
        metavar="FLAGS",
        help="further flags of `evenkeel serve` for the fixtures ebs and ebs_fresh; with one flag "
        "alone write --evenkeel-serve=--any-region",
    )
    group.addoption(
        "--evenkeel-feel",
        choices=["ebs"],
        help="let volumes of the fixtures take as long as those of EBS",
    )


def _server(config: pytest.Config) -> Server:
    flags = shlex.split(config.getoption("--evenkeel-serve"))
    feel = config.getoption("--evenkeel-feel")
    return Server([*flags, "--feel", feel] if feel else flags)


@pytest.fixture(scope="session")
def ebs_server(pytestconfig: pytest.Config) -> Iterator[Server]:
    """The server of the session. Tests use `ebs`, which leaves nothing behind."""
    with _server(pytestconfig) as server:
        yield server


@pytest.fixture
def ebs(ebs_server: Server) -> Iterator[Server]:
    """EBS without volumes, snapshots and other hosts; what the test creates is deleted."""
    yield ebs_server
    ebs_server.reset()


@pytest.fixture
def ebs_fresh(pytestconfig: pytest.Config) -> Iterator[Server]:
    """A server of its own for one test."""
    with _server(pytestconfig) as server:
        yield server
