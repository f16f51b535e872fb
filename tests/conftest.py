"""Processes that run tests side by side take their ports from shares of their own."""

from __future__ import annotations

import os
import random
import signal
from collections import deque

from haservice.devtools import pair


def pytest_configure() -> None:
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs in its background
        signal.signal(signal.SIGINT, signal.default_int_handler)  # tests send it to programs that they start
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    share = len(pair.PORTS) // workers
    # The number of a process that takes a dead one's place goes on counting.
    pair.PORTS = deque(sorted(pair.PORTS)[number % workers * share :][:share])
    pair.PORTS.rotate(random.randrange(share))  # another session may run beside this one
