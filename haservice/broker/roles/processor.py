"""Our own requests about lineage and roles.

    40001 GET_LINEAGE   who we are, what our log is, who wrote it
    40002 READ_LOG      bytes of the log, never beyond a segment
    40003 PROMOTE       a slave becomes the master
    40004 FOLLOW        a master gives way to a newer one, a slave notes where its master is
    40005 SWITCHOVER    a master hands over to a slave
    40006 REINIT        a slave begins anew
    40007 PLEDGE        a slave promises another one to follow no older master
    40008 FORGET        a replica is forgotten

A broker that turns does so after its answer has gone out.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol

from commitlog.errors import CommitLogError
from haservice.broker.roles.state import Order
from haservice.errors import RequestError
from haservice.printable import escaped
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers.clients import ExtHeader
from haservice.remoting.headers.lineage import (
    READ_BYTES_MAX,
    FollowHeader,
    ForgetHeader,
    LineageBody,
    PledgeHeader,
    PromoteHeader,
    ReadLogHeader,
    ReadLogResponseHeader,
    ReinitHeader,
    SwitchoverHeader,
)
from haservice.remoting.json_body import JSONBody
from haservice.remoting.owed import Make
from haservice.remoting.workers import Offload

logger = logging.getLogger(__name__)


class Roles(Protocol):
    """What role a broker has, and what changes it; see RoleKeeper."""

    def describe(self) -> LineageBody: ...

    def ask(self, header: ExtHeader | Order, /) -> JSONBody: ...


class Log(Protocol):
    segment_bytes: int
    end: int

    @property
    def start(self) -> int: ...

    def read(self, offset: int, size: int) -> bytes: ...


class LineageProcessor:
    """All requests but the first run in a work thread."""

    def __init__(self, roles: Roles, log: Log, offload: Offload, make: Make) -> None:
        self._roles = roles
        self._log = log
        self._offload = offload
        self._make = make

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.GET_LINEAGE: self.get_lineage,
            RequestCode.READ_LOG: self.read_log,
            RequestCode.PROMOTE: self._change_by(PromoteHeader),
            RequestCode.FOLLOW: self._change_by(FollowHeader),
            RequestCode.SWITCHOVER: self._change_by(SwitchoverHeader),
            RequestCode.REINIT: self._change_by(ReinitHeader),
            RequestCode.PLEDGE: self._change_by(PledgeHeader),
            RequestCode.FORGET: self._change_by(ForgetHeader),
        }

    def get_lineage(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        return request.answer(body=self._roles.describe().encode())

    def read_log(self, connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        return self._make(connection, self._read_log, request, ReadLogHeader.decode(request.ext))

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

    def _change_by(self, kind: type[ExtHeader]) -> Processor:
        """The processor of a change of role: it runs in a work thread, for as long as the change takes."""

        def change(connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
            header = kind.decode(request.ext)
            asked = " ".join(f"{name}={escaped(value)}" for name, value in header.encode().items())
            logger.info(
                "role change asked for peer=%s kind=%s %s",
                *(connection.peer, kind.__name__.removesuffix("Header"), asked),
            )
            return self._offload(self._changed, request, header)

        return change

    def _changed(self, request: RemotingCommand, header: ExtHeader) -> RemotingCommand:
        return request.answer(body=self._roles.ask(header).encode())
