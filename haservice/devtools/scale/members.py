"""Members: many consumers of one group, each on a connection of its own, that do what clients do when told.

    40 NOTIFY_CONSUMER_IDS_CHANGED ─▶ 38 GET_CONSUMER_LIST_BY_GROUP ─▶ how many ids are in the answer

They look at as little of a frame as they can: what they compute takes processor time from the broker beside.
"""

from __future__ import annotations

import asyncio
import struct
from collections.abc import Callable
from functools import partial
from typing import cast

from haservice.errors import HAServiceError
from haservice.remoting.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand, encode
from haservice.remoting.headers.clients import ConsumerGroupHeader

GROUP = "many"
PATIENCE_S = 120.0
# How many connections are made at once: a server has a backlog of 1,024.
CONNECTING = 100
LIST_OPAQUE = 77
_LENGTHS = struct.Struct(">iI")
_NOTICE = b'"code":40,'
_LIST = b'"opaque":77,'


class ScaleMember(asyncio.Protocol):
    """One member; `known` is how many ids the last list had."""

    def __init__(self, members: Members, number: int) -> None:
        self._members = members
        self._number = number
        self._transport: asyncio.Transport | None = None
        self._data = bytearray()
        self.known = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def write(self, data: bytes) -> None:
        assert self._transport is not None
        self._transport.write(data)

    def end(self) -> None:
        assert self._transport is not None
        self._transport.abort()

    def heartbeat(self) -> bytes:
        topics = [SubscriptionData("T", "*", "TAG", 1), SubscriptionData(f"%RETRY%{GROUP}", "*", "TAG", 1)]
        said = HeartbeatData(
            f"10.0.0.1@{self._number}#bench", (), [ConsumerData(GROUP, subscription_data_set=topics)]
        )
        return encode(RemotingCommand.request(RequestCode.HEART_BEAT, body=said.encode()))

    def data_received(self, data: bytes) -> None:
        self._data += data
        while len(self._data) >= _LENGTHS.size:
            length, mark = _LENGTHS.unpack_from(self._data)
            if len(self._data) < 4 + length:
                return
            header_end = _LENGTHS.size + (mark & 0xFFFFFF)
            header = bytes(self._data[_LENGTHS.size : header_end])
            if _NOTICE in header:
                self._members.notices += 1
                self.write(self._members.ask)
            elif _LIST in header:
                self._members.lists += 1
                self.known = self._data.count(b'","', header_end, 4 + length) + 1
            else:
                self._members.answers += 1
            del self._data[: 4 + length]


class Members:
    """The members of the group at the broker at `addr`."""

    def __init__(self, addr: str) -> None:
        self._host, _, port = addr.rpartition(":")
        self._port = int(port)
        self.all: list[ScaleMember] = []
        self.notices = self.lists = self.answers = 0
        ask = RemotingCommand.request(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerGroupHeader(GROUP).encode()
        )
        ask.opaque = LIST_OPAQUE
        self.ask = encode(ask)

    async def connect(self, count: int) -> None:
        loop = asyncio.get_running_loop()
        for first in range(0, count, CONNECTING):
            numbers = range(first, min(first + CONNECTING, count))
            made = await asyncio.gather(
                *(
                    loop.create_connection(partial(ScaleMember, self, number), self._host, self._port)
                    for number in numbers
                )
            )
            self.all += [member for _, member in made]

    async def beat(self) -> None:
        """One heartbeat of each; returns when all are answered."""
        wanted = self.answers + len(self.all)
        frames = [member.heartbeat() for member in self.all]
        for member, frame in zip(self.all, frames, strict=True):
            member.write(frame)
        await until(lambda: self.answers >= wanted, "heartbeats answered")

    async def settled(self) -> None:
        """Returns when each one's last list had all of them."""
        await until(
            lambda: all(member.known == len(self.all) for member in self.all), "every member knows all"
        )

    def end(self, count: int) -> None:
        """So many of them die."""
        gone, self.all = self.all[:count], self.all[count:]
        for member in gone:
            member.end()


async def until(condition: Callable[[], bool], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + PATIENCE_S
    while not condition():
        if asyncio.get_running_loop().time() > deadline:
            raise HAServiceError(f"not within {PATIENCE_S:g} s: {what}")
        await asyncio.sleep(0.01)
