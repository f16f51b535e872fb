"""The configuration of a running node, asked for and changed: 25 and 26 of a broker, 318 and 319 of a name
server.

The body is `key=value` lines both ways, UTF-8.  What a change did stands in the remark of its answer;
which keys count from the next start on, in its ext fields, too.
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
        fixed: Mapping[str, str] = MappingProxyType({}),
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        """`fixed` are keys that are not served, with what is true of them all the same: tools read them."""
        self._settings = settings
        self._offload = offload
        self._update_code = update_code
        self._get_code = get_code
        self._fixed = "".join(f"{key}={value}\n" for key, value in fixed.items())
        self._clock_ms = clock_ms
        self._version = DataVersion(0, clock_ms())
        # What is in force last is what the file says last.
        self._one_at_a_time = asyncio.Lock()

    def handlers(self) -> dict[int, Processor]:
        return {self._update_code: self.update, self._get_code: self.get}

    def get(self, connection: Connection, request: RemotingCommand) -> RemotingCommand:
        """26 tells the version of the configuration as well; who does not expect it takes no notice."""
        ext = BrokerConfigResponseHeader(self._version.encode().decode()).encode()
        return request.answer(ext=ext, body=(self._settings.lines() + self._fixed).encode())

    def update(
        self, connection: Connection, request: RemotingCommand
    ) -> RemotingCommand | asyncio.Future[RemotingCommand]:
        """16 for a key of the black list, 1 for what a start would refuse; nothing has changed then."""
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
