"""Reads and changes the configuration of a running node: 25 and 26 of a broker, 318 and 319 of a nameserver.

The body is `key=value` lines both ways, UTF-8.  The remark of the answer to a change says what it did; its
ext fields also name the keys that count from the next start on.  A broker of ours also tells what its file says
otherwise than is in force (40012).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from commitlog.log.log import wall_clock_ms
from haservice.configuration.live_settings import KeyForbidden, LiveSettings
from haservice.errors import ConfigError, RequestError
from haservice.remoting.bodies.admin import FileConfigBody
from haservice.remoting.bodies.clients import DataVersion
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers.admin import BrokerConfigResponseHeader, ConfigChangedHeader
from haservice.remoting.workers import Offload

logger = logging.getLogger(__name__)

TEXT_BYTES_MAX = 64 * 1024


class ConfigProcessor:
    """Answers for one node."""

    def __init__(
        self,
        settings: LiveSettings[Any],
        offload: Offload,
        *,
        update_code: RequestCode,
        get_code: RequestCode,
        file_code: RequestCode | None = None,
        fixed: Mapping[str, str] = MappingProxyType({}),
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """`fixed` are keys that are not served, with their actual values: tools read them."""
        self._settings = settings
        self._offload = offload
        self._update_code = update_code
        self._get_code = get_code
        self._file_code = file_code
        self._fixed = "".join(f"{key}={value}\n" for key, value in fixed.items())
        self._clock_ms = clock_ms
        self._version = DataVersion(0, clock_ms())
        # One change at a time, so that the values in force are those that the file got last.
        self._one_at_a_time = asyncio.Lock()

    def handlers(self) -> dict[int, Processor]:
        own: dict[int, Processor] = {} if self._file_code is None else {self._file_code: self.file}
        return {self._update_code: self.update, self._get_code: self.get, **own}

    def get(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """26 also gives the version of the configuration; a tool that does not expect it ignores it."""
        ext = BrokerConfigResponseHeader(self._version.encode().decode()).encode()
        return request.answer(ext=ext, body=(self._settings.lines() + self._fixed).encode())

    def file(self, connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        """A file that a start would refuse is told as the body's `trouble`."""

        def read() -> RemotingCommand:
            try:
                change, values = self._settings.unlike_file()
            except ConfigError as error:
                return request.answer(body=FileConfigBody(error.source, trouble=str(error)).encode())
            later = [key for key in change.later if key in values]
            path = "" if change.path is None else str(change.path)
            return request.answer(body=FileConfigBody(path, values, later).encode())

        return self._offload(read)

    def update(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | asyncio.Future[RemotingCommand]:
        """Answers 16 for a key of the black list, 1 for what a start would refuse, and changes nothing."""
        if len(request.body) > TEXT_BYTES_MAX:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"more than {TEXT_BYTES_MAX} bytes")
        try:
            text = bytes(request.body).decode()
        except UnicodeDecodeError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"the body is not UTF-8: {error.reason}") from None
        if not text.strip():
            return request.answer()
        return asyncio.ensure_future(self._update(connection, request, text))

    async def _update(self, connection: Connection, request: RemotingCommand, text: str) -> RemotingCommand:
        async with self._one_at_a_time:
            try:
                change = await self._offload(self._settings.change, text)
            except KeyForbidden as error:
                raise RequestError(ResponseCode.NO_PERMISSION, error.reason) from None
            except ConfigError as error:
                raise RequestError(ResponseCode.SYSTEM_ERROR, str(error)) from None
            self._settings.apply(change)
        self._version = DataVersion(self._version.counter + 1, self._clock_ms())
        logger.info("configuration update by=%s %s", connection.peer, change.told())
        ext = ConfigChangedHeader(",".join(change.later) or None).encode()
        return request.answer(ResponseCode.SUCCESS, change.told(), ext=ext)
