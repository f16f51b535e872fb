"""Ports for real processes: a block that is free right now."""

from __future__ import annotations

import os
import random
import socket

_random = random.Random(os.getpid())


def free_port_block(count: int) -> int:
    """The first of `count` consecutive TCP ports that nobody on 127.0.0.1 listens on.

    A broker takes listenPort - 2, listenPort and listenPort + 1, so blocks are what tests need.
    """
    for _ in range(200):
        first = _random.randrange(20000, 32000 - count)
        sockets = []
        try:
            for port in range(first, first + count):
                probe = socket.socket()
                sockets.append(probe)
                probe.bind(("127.0.0.1", port))
        except OSError:
            continue
        finally:
            for probe in sockets:
                probe.close()
        return first
    raise RuntimeError(f"no block of {count} free ports found between 20000 and 32000")
