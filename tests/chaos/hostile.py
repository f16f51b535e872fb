"""Strangers at an HA port: a thousand that say nothing, and then more, of which every second one lies.

    silent     connects, and says nothing until it is hung up on
    lying      connects, and reports what it does not hold, or no report at all

They come from a process of their own and from many addresses, for one address has its share of the places
only.  How many come in a second is bounded: what is measured beside them is the port, not how much of the
machine a stranger can use up.
"""

from __future__ import annotations

import random
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

SILENT = 1000
CALLS_A_SECOND = 100
TURN_S = 0.01
SETTLED_S = 0.2
ADDRESSES = 125
READY = "ready"
STOP_S = 10.0
LIES = (
    (1 << 40).to_bytes(8, "big"),
    (1 << 62).to_bytes(8, "big"),
    b"\xff" * 8 + (1 << 40).to_bytes(8, "big"),
    b"GET / HTTP/1.1\r\n\r\n",
)


@contextmanager
def crowd(port: int) -> Iterator[None]:
    """When the block begins, those whom the master has no place for are hung up on; after it all are gone."""
    command = [sys.executable, "-m", "tests.chaos.hostile", str(port)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == READY
            yield
        finally:
            process.kill()
            process.wait(STOP_S)


def main(port: int) -> None:
    """Until it is killed."""
    strangers = _Crowd(port)
    for _ in range(SILENT):
        strangers.comes(None)
    while strangers.leave():
        time.sleep(SETTLED_S)
    print(READY, flush=True)
    source, came, began_s = random.Random(1), 0, time.monotonic()
    while True:
        while came < (time.monotonic() - began_s) * CALLS_A_SECOND:
            came += 1
            strangers.comes(source.choice(LIES) if came % 2 else None)
        strangers.leave()
        time.sleep(TURN_S)


class _Crowd:
    """Those that are there."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._poll = select.poll()
        self._there: dict[int, socket.socket] = {}
        self._came = 0

    def comes(self, word: bytes | None) -> None:
        """One more, with something to say or without."""
        self._came += 1
        one = socket.socket()
        try:
            one.bind((f"127.0.1.{1 + self._came % ADDRESSES}", 0))
            one.connect(("127.0.0.1", self._port))
            if word is not None:
                one.send(word)
        except OSError:
            one.close()
            return
        self._there[one.fileno()] = one
        self._poll.register(one, select.POLLIN)

    def leave(self) -> int:
        """Those who were hung up on, or are talked to; how many."""
        gone = self._poll.poll(0)
        for number, _ in gone:
            self._poll.unregister(number)
            self._there.pop(number).close()
        return len(gone)


if __name__ == "__main__":
    main(int(sys.argv[1]))
