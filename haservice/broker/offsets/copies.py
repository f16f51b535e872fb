"""OffsetCopies: what request 43 is answered, by change for our slaves and whole for stock ones.

    our slave                   our master
      part=0              ──▶
      ◀── version=RUN.41, copy=7, more=true     the first megabyte of the table
      part=1 copy=7       ──▶                   … until an answer says more=false
      part=0 since=RUN.41 ──▶
      ◀── version=RUN.57, changes=true          what changed from 42 to 57, or an empty body

RUN names one run of the master.  It answers a version that it does not know, from another run or from too long
ago, with the whole table.  Parts are made when they are asked for, so a large table costs no memory.

A stock slave sends no ext field and wants the table in one body.  That body is made once per version: while
nothing changes, an answer costs nothing.  A stock slave takes none of more than 16 MiB.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from itertools import count
from typing import NamedTuple

from haservice.broker.offsets.changes import merged
from haservice.broker.offsets.consumer_offsets import ConsumerOffsets
from haservice.errors import RequestError
from haservice.remoting.bodies.offset_text import encode_changes, encode_offsets
from haservice.remoting.codes import ResponseCode
from haservice.remoting.headers.copies import CopyOffsetsHeader, OffsetsCopyHeader

PART_BYTES = 1024 * 1024
# Copies under way; an older one is given up, and its slave begins again.
COPIES_MAX = 16

_Slices = Iterator[list[tuple[str, dict[int, int]]]]


class CopyAnswer(NamedTuple):
    header: OffsetsCopyHeader
    body: bytes | bytearray


class _Copy:
    """A table on its way to one slave."""

    def __init__(self, name: str, version: str, slices: _Slices) -> None:
        self._name = name
        self._version = version
        self._slices = slices
        self._next = 0

    def part(self, number: int) -> CopyAnswer | None:
        """None for a part that is not the next one."""
        if number != self._next:
            return None
        self._next += 1
        some: list[list[tuple[str, dict[int, int]]]] = []
        size = 0
        for members in self._slices:
            some.append(members)
            size += sum(len(key) + 16 + 12 * len(queues) for key, queues in members)
            if size >= PART_BYTES:
                break
        body = encode_offsets(some)
        return CopyAnswer(OffsetsCopyHeader(self._version, copy=self._name, more=size >= PART_BYTES), body)


class OffsetCopies:
    """`quick` is for the loop; the others make bodies, in a work thread."""

    def __init__(self, offsets: ConsumerOffsets) -> None:
        self._offsets = offsets
        # Held while a body is made: two stock slaves that ask at once share it.
        self._making = threading.Lock()
        self._whole: tuple[int, bytearray] = (-1, bytearray())
        self._copies: dict[str, _Copy] = {}
        self._names = count(1)

    def quick(self, header: CopyOffsetsHeader) -> CopyAnswer | None:
        """The answer if nothing changed since the version that the slave has."""
        now = self._version(self._offsets.close_changes())
        if header.part == 0 and header.since == now:
            return CopyAnswer(OffsetsCopyHeader(now, changes=True), b"")
        return None

    def whole(self) -> bytearray:
        """The table in one body."""
        with self._making:
            number = self._offsets.close_changes()
            if self._whole[0] != number:
                self._whole = (-1, bytearray())  # the old one's memory goes first
                self._whole = (number, self._offsets.encode())
            return self._whole[1]

    def answer(self, header: CopyOffsetsHeader) -> CopyAnswer:
        """Raises RequestError for a part of a copy that is not kept any more."""
        if header.part == 0:
            changes = self._changes(header.since)
            if changes is not None:
                return changes
        with self._making:
            name = self._begin() if header.part == 0 else header.copy
            copy = self._copies.get(name)
            answer = None if copy is None else copy.part(header.part or 0)
            if answer is None:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR,
                    f"part {header.part} of copy {name[:20]!r} of the consumer offsets is not kept: begin with 0",
                )
            if not answer.header.more:
                del self._copies[name]
            return answer

    def _begin(self) -> str:
        assert self._making.locked()
        if len(self._copies) >= COPIES_MAX:
            del self._copies[next(iter(self._copies))]
        name = str(next(self._names))
        version = self._version(self._offsets.close_changes())
        self._copies[name] = _Copy(name, version, self._offsets.slices())
        return name

    def _changes(self, since: str) -> CopyAnswer | None:
        run, _, number = since.rpartition(".")
        if run != self._offsets.run or not (number.isascii() and number.isdecimal()):
            return None
        batches = self._offsets.changes_after(int(number))
        if batches is None:
            return None
        last = batches[-1].number if batches else int(number)
        body = encode_changes(merged(batches).items()) if batches else b""
        return CopyAnswer(OffsetsCopyHeader(self._version(last), changes=True), body)

    def _version(self, number: int) -> str:
        return f"{self._offsets.run}.{number}"
