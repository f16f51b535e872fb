import threading
from collections.abc import Iterator

import pytest

from tests.support.builds import build
from tests.support.replication import close_logs
from tests.support.waiting import wait_until

__all__ = ["build"]


def of_replication() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("ha-")]


@pytest.fixture(autouse=True)
def _nothing_left_behind() -> Iterator[None]:
    yield
    try:
        wait_until(lambda: not of_replication(), f"no thread of replication left: {of_replication()}")
    finally:
        close_logs()
