"""Names that clients make up: their own id, and an id for each message (UNIQ_KEY)."""

from __future__ import annotations

import itertools
import os
import re
import socket
import struct
import time

from commitlog.kernel.layout import NAME_LETTERS
from haservice.errors import RemotingError
from haservice.remoting.client import split_addr

# What RocketMQ's Validators accept as the name of a group.
GROUP_CHARS_MAX = 255
_GROUP = re.compile(f"{NAME_LETTERS}{{1,{GROUP_CHARS_MAX}}}")

LOOPBACK = "127.0.0.1"
_KEY_REST = struct.Struct(">HIIH")
_counter = itertools.count()
_instances = itertools.count(1)

# Tells apart two processes with one pid, as the class loader's hash does in Java.
_START = time.time_ns() >> 10


def local_ip(nameservers: tuple[str, ...]) -> str:
    """This machine's address that faces the first nameserver; sends nothing."""
    try:
        host, port = split_addr(nameservers[0])
        family, kind, _, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(where)
            return str(probe.getsockname()[0]).partition("%")[0]
    except (OSError, RemotingError, IndexError):
        return LOOPBACK


def client_id(ip: str, instance_name: str = "") -> str:
    """`ip@instance`, by which brokers tell clients apart; unique if no instance is named."""
    return f"{ip}@{instance_name or f'{os.getpid()}#{_START + next(_instances)}'}"


def checked_group(group: str) -> str:
    """`group`.  Raises ValueError if it is no legal name of a producer or consumer group."""
    if not _GROUP.fullmatch(group):
        raise ValueError(
            f"group {group[:300]!r}: a name has 1 to {GROUP_CHARS_MAX} of the letters a-z A-Z 0-9 _ - % |"
        )
    return group


class UniqueKeys:
    """Makes message ids as Java's clients do: hex of ip 4 or 16, pid 2, loader 4, ms of month 4, counter 2.

    The whole process shares one counter.  From the id a tool can tell where and when it was made.
    """

    def __init__(self, ip: str = LOOPBACK) -> None:
        self._ip = socket.inet_pton(socket.AF_INET6 if ":" in ip else socket.AF_INET, ip)
        self._month_ms = 0
        self._month_ends_ms = 0

    def make(self, now_ms: int) -> str:
        if not self._month_ms <= now_ms < self._month_ends_ms:
            self._begin_month(now_ms)
        rest = _KEY_REST.pack(
            os.getpid() & 0xFFFF, _START & 0xFFFFFFFF, now_ms - self._month_ms, next(_counter) & 0xFFFF
        )
        return (self._ip + rest).hex().upper()

    def _begin_month(self, now_ms: int) -> None:
        today = time.localtime(now_ms / 1000)
        first = (today.tm_year, today.tm_mon, 1, 0, 0, 0, 0, 0, -1)
        behind = (today.tm_year, today.tm_mon + 1, 1, 0, 0, 0, 0, 0, -1)
        self._month_ms = int(time.mktime(first) * 1000)
        self._month_ends_ms = int(time.mktime(behind) * 1000)
