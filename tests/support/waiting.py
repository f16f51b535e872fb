"""Waiting in tests: for a condition, never for a while."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

# One unit for every wait of the suite, long enough for a busy machine; who waits for what never comes sets a short one.
PATIENCE_S = float(os.environ.get("HASERVICE_TEST_PATIENCE_S", "40"))


def wait_until(condition: Callable[[], object], what: str = "condition", seconds: float = PATIENCE_S) -> None:
    """Returns when `condition()` is true; fails naming `what` when it is not so within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what}: not so within {seconds:g} s")
        time.sleep(0.005)
