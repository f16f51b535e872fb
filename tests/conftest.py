"""Processes that run tests side by side take their ports from shares of their own.  No test leaves anything open."""

from __future__ import annotations

import os
import random
import signal
import threading
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from hypothesis import settings

from haservice.devtools import pair
from tests.support import fork_server
from tests.support.left_open import (
    check_descriptors,
    check_threads,
    close_files,
    descriptors,
    watch_files,
)
from tests.support.waiting import slowness

if TYPE_CHECKING:
    from xdist.remote import Producer
    from xdist.scheduler.protocol import Scheduling

# Files that take longest, the longest first: begun last, one alone would hold up the end of a run.
LONGEST = [
    "tests/docs/test_pipeline_page.py", "tests/pipeline/test_archive.py", "tests/chaos/test_processes.py",
    "tests/docs/test_pages.py", "tests/pipeline/test_audit_replicas.py", "tests/chaos/test_simulator.py",
    "tests/chaos/test_bank.py", "tests/interop/test_moving.py", "tests/interop/test_soak.py",
    "tests/cluster/test_upgrade.py", "tests/test_house.py", "tests/test_distribution.py",
]  # fmt: skip
PIPELINE = [
    f"tests/pipeline/{path.name}" for path in sorted(Path(__file__).parent.glob("pipeline/test_*.py"))
]


def file_of(nodeid: str) -> str:
    return nodeid.partition("::")[0]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    def place(item: pytest.Item) -> int:
        file = file_of(item.nodeid)
        return LONGEST.index(file) if file in LONGEST else len(LONGEST)

    items.sort(key=place)
    for item in items:
        mark = item.get_closest_marker("timeout")
        limit_s = mark.args[0] if mark is not None else float(config.getini("timeout"))
        item.add_marker(pytest.mark.timeout(limit_s * slowness()), append=False)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> Scheduling | None:
    """A file's tests stay in one process, and those of the pipeline in two: Spark's Java is quick when it is warm."""
    from xdist.scheduler import LoadFileScheduling  # only here: it may not be installed

    if config.getoption("dist") != "loadfile":
        return None

    class Together(LoadFileScheduling):
        def _split_scope(self, nodeid: str) -> str:
            file = file_of(nodeid)
            return f"pipeline {PIPELINE.index(file) % 2}" if file in PIPELINE else file

    return Together(config, log)


def pytest_configure() -> None:
    settings.register_profile("untimed", deadline=None)
    settings.load_profile("untimed")
    watch_files()
    fork_server.use()
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in its background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # tests send it to programs that they start
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    share = len(pair.PORTS) // workers
    # The number of a process that takes a dead one's place goes on counting.
    pair.PORTS = deque(sorted(pair.PORTS)[number % workers * share :][:share])
    pair.PORTS.rotate(random.randrange(share))  # another session may run beside this one


@pytest.fixture(autouse=True)
def _nothing_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    threads, open_before = set(threading.enumerate()), descriptors()
    yield
    close_files(request.node.funcargs.get("tmp_path"))
    check_threads(threads)
    check_descriptors(open_before)
