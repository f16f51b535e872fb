"""Fetches another broker's consumer offsets by request 43: by change from ours, whole from a stock one.

A stock master does not say that nothing changed.  So its answer is compared, by a digest, with the one before: a
whole look at a table takes a hundred times as long.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable
from itertools import count
from typing import NamedTuple

from haservice.broker.offsets.changes import Changed
from haservice.broker.offsets.table import ShardedTable
from haservice.deadline import Deadline
from haservice.remoting.bodies.clients import ConsumerOffsetWrapper
from haservice.remoting.bodies.offset_text import TREE_BYTES_MAX, decode_changes
from haservice.remoting.client import RemotingClient, expect
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import Body, RemotingCommand
from haservice.remoting.frame import ANSWER_FRAME_BYTES_MAX
from haservice.remoting.headers.copies import CopyOffsetsHeader, OffsetsCopyHeader

# The memory that trees may take, a byte of text: 300 bytes for a queue alone under its key.
_TREE_BYTES = 8


class Fetched(NamedTuple):
    """`changes` since the version that was asked for, or, if that is None, the whole `table`.

    `version` is the master's now; of a stock master it is the answer's digest.
    """

    version: str
    table: ShardedTable
    changes: Changed | None


async def fetch_offsets(
    client: RemotingClient,
    addr: str,
    timeout_s: float,
    *,
    since: str = "",
    text_bytes_max: int,
    on_part: Callable[[], None] = lambda: None,
) -> Fetched:
    """Raises RemotingError; ValueError for what cannot be read, or is larger than `text_bytes_max`.

    `on_part` is called for each part of a table that has come.
    """
    deadline = Deadline(timeout_s)
    body, told = await _ask(client, addr, CopyOffsetsHeader(part=0, since=since), deadline)
    version = told.version
    if version is None:
        version = await asyncio.to_thread(digest_of, body)
        if version == since:
            return Fetched(version, ShardedTable(), {})
    if told.changes:
        changes = await asyncio.to_thread(decode_changes, body) if body else {}
        return Fetched(version, ShardedTable(), changes)
    reading = _Reading(addr, text_bytes_max)
    for part in count(1):
        # In a thread: half a million offsets would block the loop for half a second.
        taking = asyncio.ensure_future(asyncio.to_thread(reading.take, body))
        try:
            on_part()
            if not told.more:
                break
            header = CopyOffsetsHeader(part=part, copy=told.copy)
            body, told = await _ask(client, addr, header, deadline)
        finally:
            await taking
    return Fetched(version, reading.table, None)


def digest_of(body: Body) -> str:
    return "=" + hashlib.blake2b(body, digest_size=16).hexdigest()


async def _ask(
    client: RemotingClient, addr: str, header: CopyOffsetsHeader, deadline: Deadline
) -> tuple[Body, OffsetsCopyHeader]:
    request = RemotingCommand.request(RequestCode.GET_ALL_CONSUMER_OFFSET, header.encode())
    answer = expect(addr, await client.invoke(addr, request, deadline.remaining))
    return answer.body, OffsetsCopyHeader.decode(answer.ext)


class _Reading:
    """Puts the parts of a table together."""

    def __init__(self, addr: str, text_bytes_max: int) -> None:
        self.table = ShardedTable()
        self._addr = addr
        self._max = max(text_bytes_max, ANSWER_FRAME_BYTES_MAX)
        self._bytes = 0

    def take(self, body: Body) -> None:
        self._bytes += len(body)
        if self._bytes > self._max:
            raise ValueError(
                f"the consumer offsets of {self._addr} have more than {self._max} bytes; "
                "maxConsumerOffsetBytes here allows no more"
            )
        budget = max(TREE_BYTES_MAX, _TREE_BYTES * len(body))
        for part in ConsumerOffsetWrapper.decode_slices(body, tree_bytes_max=budget):
            self.table.put_all(part.items())
