"""The HTTP server: uvicorn, with bounds of our own on connections and on the time that a request takes.

A connection has REQUEST_S for its request and the answer, and uvicorn's keep-alive time between two.  There are
CONNECTIONS_MAX at most: one more takes the place of the one that has waited longest without a whole request, so that
a stranger who only connects, or sends a part of a form, keeps nobody out.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import ssl
from collections.abc import Callable

import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from haservice.certificates import CertificateFile, RenewedCertificates, load_chain
from haservice.console.app import application
from haservice.console.console import Console
from haservice.console.settings import ConsoleSettings
from haservice.errors import ConfigError
from haservice.log_throttle import LogThrottle
from haservice.printable import escaped
from haservice.remoting.server import bind_port
from haservice.remoting.workers import end_without_hung_work
from haservice.terminal.output import shown_addr
from haservice.watched_files import read_again

logger = logging.getLogger(__name__)

CONNECTIONS_MAX = 256
REQUEST_S = 30.0
KEEP_ALIVE_S = 10
BACKLOG = 128
HEAD_BYTES_MAX = 32 * 1024
# A change of roles that is under way goes on in the brokers; pages need no longer.
GRACE_S = 5

SOURCE = "mqconsole"

# A stranger writes a line a minute.
BAD_REQUESTS = LogThrottle()


class BoundedProtocol(H11Protocol):
    """A connection that is cut when its request or answer takes too long, or gives way to a new one."""

    _deadline: asyncio.TimerHandle | None = None

    @property
    def _waits(self) -> bool:
        """Whether no request of it is being answered; one whose body has not all come is not."""
        return self.cycle is None or self.cycle.response_complete or self.cycle.more_body

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._arm()
        if len(self.connections) > CONNECTIONS_MAX:
            waiting = [one for one in self.connections if isinstance(one, BoundedProtocol) and one._waits]
            min(waiting, key=lambda one: one._until_s).transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._disarm()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self._deadline is None:
            self._arm()
        super().data_received(data)

    def send_400_response(self, msg: str) -> None:
        """What came is no HTTP.  In the middle of a request the page that is under way must not answer any more: h11
        takes one answer a request."""
        host = "" if self.client is None else str(self.client[0])
        if BAD_REQUESTS.ready(host):
            logger.warning("connection cut, what came is no HTTP peer=%s", escaped(host) or "-")
        cycle = self.cycle if self.cycle is not None and not self.cycle.response_complete else None
        if cycle is not None:
            cycle.disconnected = True
            cycle.message_event.set()
        if cycle is not None and cycle.response_started:
            self.transport.close()
        else:
            super().send_400_response(msg)

    def on_response_complete(self) -> None:
        self._disarm()
        super().on_response_complete()

    @property
    def _until_s(self) -> float:
        handle = self._deadline or self.timeout_keep_alive_task
        return 0.0 if handle is None else handle.when()

    def _arm(self) -> None:
        self._disarm()
        self._deadline = self.loop.call_later(REQUEST_S, self.transport.abort)

    def _disarm(self) -> None:
        if self._deadline is not None:
            self._deadline.cancel()
            self._deadline = None


def run(settings: ConsoleSettings, open_logs: Callable[[], None] = lambda: None) -> None:
    """Serves until SIGTERM or Ctrl-C.  SIGHUP opens logs and reads the certificate anew.  Raises ConfigError."""
    own = _certificate(settings)
    context = None if own is None else _newest(own)
    listening = bind(settings)
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)  # else each stranger writes lines
    config = uvicorn.Config(
        application(Console(settings)),
        http=BoundedProtocol,
        ws="none",
        lifespan="on",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=GRACE_S,
        h11_max_incomplete_event_size=HEAD_BYTES_MAX,
        backlog=BACKLOG,
        ssl_context_factory=None if context is None else lambda _, __: context,
    )

    watched = [
        one for one in (own, None if settings.tls is None else settings.tls.renewed) if one is not None
    ]

    def again(*_: object) -> None:
        try:
            open_logs()
        except (ConfigError, OSError) as error:
            logger.error("logs were not opened anew, and stay as they were reason=%s", error)
        logger.info("logs opened anew, certificates looked at again %s", read_again(watched))

    signal.signal(signal.SIGHUP, again)
    scheme = "https" if context is not None else "http"
    at = shown_addr(f"{settings.host}:{listening.getsockname()[1]}")
    logger.info(
        "console open url=%s://%s/ changes=%s namesrv=%s",
        *(scheme, at, "allowed" if settings.allow_changes else "refused", ";".join(settings.namesrv)),
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        # uvicorn stops by its own handlers, and then raises the signal once more for these.
        signal.signal(number, lambda *_: None)
    try:
        uvicorn.Server(config).run([listening])
    finally:
        listening.close()
    logger.info("stopped cleanly")
    end_without_hung_work()


def bind(settings: ConsoleSettings) -> socket.socket:
    """The listening socket.  Raises ConfigError."""

    def refused(reason: str) -> ConfigError:
        return ConfigError(SOURCE, 0, "--listen", reason, shown_addr(f"{settings.host}:{settings.port}"))

    return bind_port(settings.host, settings.port, BACKLOG, refused)


def _certificate(settings: ConsoleSettings) -> RenewedCertificates[ssl.SSLContext] | None:
    """What the console shows.  Raises ConfigError."""
    cert = settings.cert
    if cert is None:
        return None

    def make() -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        load_chain(context, ("--cert", "--key"), cert, settings.key or cert, None, SOURCE)
        return context

    files = [CertificateFile("--cert", cert)]
    return RenewedCertificates("certificate of the console", files, settings.key, make, SOURCE)


def _newest(own: RenewedCertificates[ssl.SSLContext]) -> ssl.SSLContext:
    """A context that each connection leaves for the one in force: uvicorn takes no other while it runs."""

    def to_newest(connection: ssl.SSLObject | ssl.SSLSocket, _: str | None, __: ssl.SSLContext) -> None:
        connection.context = own.made

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.sni_callback = to_newest
    return context
