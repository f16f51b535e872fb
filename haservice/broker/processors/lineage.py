"""Lineage and roles, by requests of our own.

    40001 GET_LINEAGE   who we are, what our log is, who wrote it
    40002 READ_LOG      bytes of the log, never beyond a segment
    40003 PROMOTE       a slave becomes the master
    40004 FOLLOW        a master gives way to a newer one, a slave notes where it is
    40005 SWITCHOVER    a master hands over to a slave
    40006 REINIT        a slave begins anew

A broker that turns does so after its answer has gone out.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Protocol

from commitlog.errors import CommitLogError
from haservice.broker.role_changes import RoleChanges
from haservice.errors import RequestError
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers import ExtHeader
from haservice.remoting.json_body import JSONBody
from haservice.remoting.lineage_headers import (
    READ_BYTES_MAX,
    FollowHeader,
    PromoteHeader,
    ReadLogHeader,
    ReadLogResponseHeader,
    ReinitHeader,
    SwitchoverHeader,
)
from haservice.remoting.workers import Offload

logger = logging.getLogger(__name__)

# The answer is in the socket by then; whoever did not get it asks again.
ANSWER_SECONDS = 0.02


class Log(Protocol):
    segment_bytes: int
    end: int

    @property
    def start(self) -> int: ...

    def read(self, offset: int, size: int) -> bytes: ...


class LineageProcessor:
    """All but the first run in a work thread."""

    def __init__(self, roles: RoleChanges, log: Log, offload: Offload) -> None:
        self._roles = roles
        self._log = log
        self._offload = offload
        self._emptying: asyncio.Task[None] | None = None

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.GET_LINEAGE: self.get_lineage,
            RequestCode.READ_LOG: self.read_log,
            RequestCode.PROMOTE: self.promote,
            RequestCode.FOLLOW: self.follow,
            RequestCode.SWITCHOVER: self.switch_over,
            RequestCode.REINIT: self.reinit,
        }

    def get_lineage(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(body=self._roles.describe().encode())

    def read_log(self, connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        return self._offload(self._read_log, request, ReadLogHeader.decode(request.ext))

    def promote(self, connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        header = PromoteHeader.decode(request.ext)
        return self._changed(connection, request, header, lambda: self._roles.promote(header))

    def follow(self, connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        header = FollowHeader.decode(request.ext)
        return self._changed(connection, request, header, lambda: self._roles.follow(header))

    def switch_over(
        self, connection: Connection, request: RemotingCommand
    ) -> asyncio.Future[RemotingCommand]:
        header = SwitchoverHeader.decode(request.ext)
        return self._changed(connection, request, header, lambda: self._roles.switch_over(header))

    def reinit(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        header = ReinitHeader.decode(request.ext)
        self._roles.check_reinit()
        logger.warning("asked to begin anew keep=%s peer=%s", header.keep, connection.peer)
        self._emptying = asyncio.ensure_future(self._empty(header.keep))
        return request.answer()

    def _read_log(self, request: RemotingCommand, header: ReadLogHeader) -> RemotingCommand:
        log = self._log
        start, end, offset = log.start, log.end, header.offset
        if not start <= offset <= end or header.size <= 0:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"{header.size} bytes at {offset}: the log has {start} to {end}"
            )
        segment_end = offset - offset % log.segment_bytes + log.segment_bytes
        size = min(header.size, READ_BYTES_MAX, end - offset, segment_end - offset)
        try:
            data = log.read(offset, size) if size else b""
        except (CommitLogError, OSError) as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"cannot be read: {error}") from error
        return request.answer(ext=ReadLogResponseHeader(end).encode(), body=data)

    def _changed(
        self,
        connection: Connection,
        request: RemotingCommand,
        header: ExtHeader,
        change: Callable[[], JSONBody],
    ) -> asyncio.Future[RemotingCommand]:
        logger.warning("role change asked for peer=%s what=%s", connection.peer, header)
        self._roles.asked += 1
        return asyncio.ensure_future(self._change(request, change))

    async def _empty(self, keep: bool) -> None:
        await asyncio.sleep(ANSWER_SECONDS)
        try:
            await self._offload(self._roles.empty, keep)
        except RequestError as error:
            logger.warning("not begun anew reason=%s", error)

    async def _change(self, request: RemotingCommand, change: Callable[[], JSONBody]) -> RemotingCommand:
        try:
            body = await self._offload(change)
        finally:
            self._roles.asked -= 1
            if self._roles.turning:
                asyncio.get_running_loop().call_later(ANSWER_SECONDS, self._roles.turn)
        return request.answer(body=body.encode())
