"""Waiting in tests: for a condition, never for a while; and how much longer everything takes on a slow machine."""

from __future__ import annotations

import os
import time
from collections.abc import Callable

_SLOWNESS = "HASERVICE_TEST_SLOWNESS"
# Of the loop in _measured(), on the machine of docs/performance.md when it is quiet.
_LOOP_S = 0.09
_SLOWNESS_MAX = 10.0


def _measured() -> float:
    began_s = time.perf_counter()
    for _ in range(5):
        sum(number * number for number in range(200_000))
    return min(max((time.perf_counter() - began_s) / _LOOP_S, 1.0), _SLOWNESS_MAX)


def slowness() -> float:
    """How many times slower than a quiet machine of the usual speed this one is now; 1 at least.

    It is measured once, and processes that this one starts go by the same figure.
    """
    text = os.environ.get(_SLOWNESS)
    if text is None:
        text = os.environ[_SLOWNESS] = f"{_measured():.1f}"
    return float(text)


# One unit for every wait of the suite, long enough for a busy machine; who waits for what never comes sets a short one.
PATIENCE_S = float(os.environ.get("HASERVICE_TEST_PATIENCE_S", "40")) * slowness()


def wait_until(condition: Callable[[], object], what: str = "condition", seconds: float = PATIENCE_S) -> None:
    """Returns when `condition()` is true; fails naming `what` when it is not so within `seconds`."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() >= deadline:
            raise AssertionError(f"{what}: not so within {seconds:g} s")
        time.sleep(0.005)
