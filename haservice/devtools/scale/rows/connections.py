"""Rows of connections: what an idle client costs a broker and a nameserver, and how fast they come."""

from __future__ import annotations

import resource
import socket
import time
from collections.abc import Iterator, Sequence

from haservice.devtools.scale.measure import memory_mb, spent
from haservice.devtools.scale.point import Point, Row
from haservice.devtools.scale.stage import Stage
from haservice.errors import HAServiceError
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand, encode_head
from haservice.remoting.headers.clients import RouteHeader

# Two sweeps for idle connections.
IDLE_SECONDS = 30.0
ANSWER_SECONDS = 60.0
# Connections that are opened before the first of them is asked something: servers take them meanwhile.
AT_ONCE = 500
# For other files of this process.
SPARE_FILES = 100


def idle_connections(stage: Stage, sizes: Sequence[int]) -> Iterator[Point]:
    """A fresh pair for each size; as many connections to the nameserver, then to the broker, each asks once."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    for size in sizes:
        if most != resource.RLIM_INFINITY and size > most - SPARE_FILES:
            stage.say(f"{size:,} is above the limit of open files, {most:,}")
            continue
        more: dict[str, float] = {}
        with stage.pair() as pair:
            namesrv, broker = pair.start_nameserver(), pair.start_master()
            for name, pid, addr in (
                ("namesrv", namesrv.pid, pair.namesrv_addr),
                ("broker", broker.pid, pair.master_addr),
            ):
                more.update(_measured(name, pid, addr, size))
        yield Point(size, more=more)


def _measured(name: str, pid: int, addr: str, size: int) -> dict[str, float]:
    memory, cpu, began = memory_mb(pid), spent(pid), time.perf_counter()
    sockets = _connect(addr, size)
    seconds = time.perf_counter() - began
    try:
        opened, held = spent(pid), memory_mb(pid)
        time.sleep(IDLE_SECONDS)
        idle = spent(pid) - opened
    finally:
        for one in sockets:
            one.close()
    return {
        f"{name} KB each": (held - memory) * 1000 / size,
        f"{name} a second": size / seconds,
        f"{name} ms CPU each": (opened - cpu) * 1000 / size,
        f"{name} idle % of a core": idle / IDLE_SECONDS * 100,
    }


def _connect(addr: str, size: int) -> list[socket.socket]:
    host, _, port = addr.rpartition(":")
    command = RemotingCommand.request(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteHeader("TBW102").encode())
    request = encode_head(command)
    sockets: list[socket.socket] = []
    for begin in range(0, size, AT_ONCE):
        some = []
        for _ in range(min(AT_ONCE, size - begin)):
            some.append(socket.create_connection((host, int(port)), ANSWER_SECONDS))
            some[-1].sendall(request)
        sockets += some
        for one in some:
            if not one.recv(65536):
                raise HAServiceError(f"{addr} closed connection {len(sockets)} of {size}")
    return sockets


ROWS = (
    Row(
        "idle-connections",
        f"n clients connect, ask once and stay for {IDLE_SECONDS:g} s",
        idle_connections,
        (100, 1_000, 10_000),
    ),
)
