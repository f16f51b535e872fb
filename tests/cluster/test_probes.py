"""Port scanners, health checks and strangers: 10,000 connections that mean nothing, to both ports.

Afterwards the master has the threads, files and memory that it had, its slave is there on the same
connection as before, and a send is SEND_OK.
"""

from __future__ import annotations

import contextlib
import random
import socket
import struct
from collections.abc import Callable, Iterator

import psutil
import pytest

from haservice.admin.calls import MQAdmin
from haservice.client.raw_sends import RawMessage, send_command
from haservice.devtools.pair import ScratchPair
from haservice.remoting.command import encode
from tests.cluster.support import (
    TOPIC,
    is_caught_up,
    numbered,
    read,
    send_ok,
    start_with_topic,
    wait_caught_up,
)
from tests.support.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.cluster

PROBES = 10_000
# Threads, buffers and allocator pools that a first flood makes are there for good.
WARM_UP = 1_000
# What the broker itself may open or start meanwhile: a thread of its pool, a file of its queues.
SLACK = 3
# 10,000 probes that left half a KiB each behind would show as 5 MB; the allocator's pools move by 2 to 4,
# and by nothing from then on.
GROWTH_BYTES_MAX = 5_000_000
# A line now and then for each kind of stranger, which makes 10 kB; a line for each would make 1 MB.
LOG_BYTES_MAX = 100_000

HTTP = b"GET /healthz HTTP/1.1\r\nHost: broker-a\r\nAccept: */*\r\n\r\n"
NO_LINGER = struct.pack("ii", 1, 0)

Probe = Callable[[socket.socket], None]


def closes_at_once(connection: socket.socket) -> None:
    pass


def resets(connection: socket.socket) -> None:
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, NO_LINGER)


def says_eight_random_bytes(connection: socket.socket) -> None:
    connection.sendall(RANDOM.randbytes(8))


def asks_for_a_page(connection: socket.socket) -> None:
    """And waits for what comes: the end."""
    connection.sendall(HTTP)
    with contextlib.suppress(ConnectionResetError):
        assert connection.recv(4096) == b""


def sends_half_a_frame(connection: socket.socket) -> None:
    frame = encode(send_command(TOPIC, 0, RawMessage(b"half of this" * 20, {})))
    connection.sendall(frame[: len(frame) // 2])


def sends_half_a_report(connection: socket.socket) -> None:
    connection.sendall(b"\0\0\0\0")


RANDOM = random.Random(7)
ANYWHERE: tuple[Probe, ...] = (closes_at_once, resets, says_eight_random_bytes, asks_for_a_page)


def probe(ports: dict[int, tuple[Probe, ...]], count: int) -> None:
    """One after the other, over all ports and manners in turn."""
    pairs = [(port, manner) for port, manners in ports.items() for manner in manners]
    for number in range(count):
        port, manner = pairs[number % len(pairs)]
        with socket.create_connection(("127.0.0.1", port), PATIENCE_S) as connection:
            manner(connection)


@pytest.fixture
def pair(make_pair: Callable[..., ScratchPair]) -> Iterator[ScratchPair]:
    return make_pair("SYNC_MASTER")


def slaves(pair: ScratchPair, admin: MQAdmin) -> list[str]:
    status = admin.ha_status(pair.master_addr)
    assert status is not None
    return [slave.addr for slave in status.ha_connection_info]


def test_ten_thousand_probes_leave_nothing_behind(
    pair: ScratchPair, admin: Callable[[ScratchPair], MQAdmin]
) -> None:
    ask = admin(pair)
    start_with_topic(pair, ask)
    client_port = int(pair.master_addr.rpartition(":")[2])
    ports = {
        client_port: (*ANYWHERE, sends_half_a_frame),
        pair.ha_port(): (*ANYWHERE, sends_half_a_report),
    }
    process = psutil.Process(pair.processes["broker-a"].pid)
    send_ok(pair.master_addr, numbered(0, 200))
    wait_until(lambda: is_caught_up(pair, ask), "the slave is level")
    served = slaves(pair, ask)
    assert len(served) == 1
    probe(ports, WARM_UP)
    wait_until(lambda: slaves(pair, ask) == served, "the probes of the warm-up are gone")
    threads, files = process.num_threads() + SLACK, process.num_fds() + SLACK
    memory = process.memory_info().rss
    log = pair.processes["broker-a"].log
    log_bytes = log.stat().st_size

    probe(ports, PROBES)
    wait_until(lambda: process.num_threads() <= threads, f"threads are {threads} again")
    wait_until(lambda: process.num_fds() <= files, f"open files are {files} again")
    assert process.memory_info().rss - memory < GROWTH_BYTES_MAX
    assert log.stat().st_size - log_bytes < LOG_BYTES_MAX
    # The last of them may have been accepted only now.
    wait_until(lambda: slaves(pair, ask) == served, "the slave is there, on its old connection, and alone")
    send_ok(pair.master_addr, numbered(200, 400))
    wait_caught_up(pair, ask)
    assert read(ask, pair.slave_addr) == numbered(0, 400)
