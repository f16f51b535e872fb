"""MonitoringServer: the HTTP port of a node, on a loop and a thread of its own.

Bounded: CONNECTIONS_MAX at once, one more is told so at once; each has DEADLINE_S for its request and its answer
together, and is cut then.  A scraper that does not read holds its own answer in memory and nothing else.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Mapping

from haservice.deadline import Deadline
from haservice.errors import ConfigError
from haservice.observability.http import HEAD_BYTES_MAX, Page, Request, encode, line, parse
from haservice.remoting.loop_thread import LoopThread
from haservice.remoting.server import bind_port
from haservice.service import OnFailure

logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 32
DEADLINE_S = 10.0
BACKLOG = 128

KEY = "metricsListenAddr"


class MonitoringServer:
    """Runs from construction on; `stop` ends the port, its connections and the thread.

    `answer` is called on the loop, with a path.  Raises ConfigError for an address that cannot be had.
    """

    def __init__(
        self,
        addr: str,
        answer: Callable[[str], Awaitable[Page]],
        *,
        source: str = "",
        on_failure: OnFailure | None = None,
        deadline_s: float = DEADLINE_S,
        connections_max: int = CONNECTIONS_MAX,
    ) -> None:
        self._answer = answer
        self._deadline_s = deadline_s
        self._connections_max = connections_max
        self._open = 0
        self._refused = dict.fromkeys(("busy", "garbage", "slow"), 0)
        listening = _bind(addr, source)
        self.port: int = listening.getsockname()[1]
        self._thread = LoopThread("metrics-http", on_failure)
        self._server = self._thread.call(
            asyncio.start_server(self._serve, sock=listening, limit=HEAD_BYTES_MAX, backlog=BACKLOG)
        )
        logger.info("monitoring port open addr=%s", addr)

    @property
    def refused(self) -> Mapping[str, int]:
        """Connections that got no page, by reason: too many at once, no HTTP, slower than the deadline."""
        return dict(self._refused)

    @property
    def open(self) -> int:
        return self._open

    def stop(self, deadline: Deadline) -> bool:
        """May be called twice.  False if the thread still runs."""
        if self._thread.open:
            self._thread.loop.call_soon_threadsafe(self._server.close)
        return self._thread.close(deadline)

    # On the loop

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        transport = writer.transport
        if self._open >= self._connections_max:
            self._refused["busy"] += 1
            writer.write(encode(line(503, f"{self._open} others are being answered")))
            writer.close()  # what does not fit into the socket now is not sent
            return
        self._open += 1
        try:
            async with asyncio.timeout(self._deadline_s):
                await self._exchange(reader, writer)
        except TimeoutError:
            self._refused["slow"] += 1
            transport.abort()
        except ConnectionError:
            transport.abort()
        finally:
            self._open -= 1
            writer.close()

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        answer, with_body = await self._respond(reader)
        writer.transport.set_write_buffer_limits(0)  # so that drain() waits until the kernel has all
        writer.write(encode(answer, body=with_body))
        await writer.drain()
        writer.write_eof()

    async def _respond(self, reader: asyncio.StreamReader) -> tuple[Page, bool]:
        """The answer to the request that comes, and whether its body is sent."""
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.LimitOverrunError:
            self._refused["garbage"] += 1
            return line(431, f"a request has at most {HEAD_BYTES_MAX} bytes"), True
        except asyncio.IncompleteReadError as error:
            head = error.partial
        request = parse(head)
        if not isinstance(request, Request):
            self._refused["garbage"] += 1
            return request, True
        return await self._answer(request.path), request.method != "HEAD"


def check_addr(addr: str, source: str) -> None:
    """Raises ConfigError for an address that a server could not get now."""
    _bind(addr, source).close()


def _bind(addr: str, source: str) -> socket.socket:
    host, _, port = addr.rpartition(":")
    return bind_port(
        host.strip("[]"), int(port), BACKLOG, lambda reason: ConfigError(source, 0, KEY, reason, addr)
    )
