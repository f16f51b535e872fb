"""TableCopies: how a table that slaves copy whole is answered: its body is made once per version.

A slave of ours says which version it has; if that is the present one, the answer has no body.  A stock slave
says nothing and gets the body.  Either way an answer costs nothing while the table stays as it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

from haservice.remoting.bodies.clients import DataVersion
from haservice.remoting.command import RemotingCommand
from haservice.remoting.headers.copies import KnownVersionHeader, TableCopyHeader
from haservice.remoting.workers import Offload


class Wrapper(Protocol):
    """A table with its version."""

    @property
    def data_version(self) -> DataVersion: ...

    def encode(self) -> bytes: ...


class CopiedTable(Protocol):
    @property
    def data_version(self) -> DataVersion: ...

    def wrapper(self) -> Wrapper: ...


class TableCopies:
    """Answers for one table.  On the loop."""

    def __init__(
        self, table: CopiedTable, offload: Offload, on_held: Callable[[str], None] = lambda slave: None
    ) -> None:
        """`on_held` is told of each slave of ours that has the present version."""
        self._on_held = on_held
        self._table = table
        self._offload = offload
        self._made: tuple[DataVersion, bytes] | None = None

    def answer(self, request: RemotingCommand) -> RemotingCommand | asyncio.Future[RemotingCommand]:
        known = KnownVersionHeader.decode(request.ext)
        now = self._table.data_version
        if (known.known_counter, known.known_timestamp) == (now.counter, now.timestamp):
            if known.known_by:
                self._on_held(known.known_by)
            return request.answer(ext=TableCopyHeader(unchanged=True).encode())
        if self._made is not None and self._made[0] == now:
            return request.answer(body=self._made[1])
        return asyncio.ensure_future(self._answer(request))

    async def _answer(self, request: RemotingCommand) -> RemotingCommand:
        self._made = await self._offload(self._make)
        return request.answer(body=self._made[1])

    def _make(self) -> tuple[DataVersion, bytes]:
        wrapper = self._table.wrapper()
        return wrapper.data_version, wrapper.encode()
