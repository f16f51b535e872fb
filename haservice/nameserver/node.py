"""NameserverNode: builds, starts and stops the table, its processors and the server.  Nothing else."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from haservice import __version__
from haservice.access.files import AclFiles, rules_files
from haservice.access.guard import AclGuard
from haservice.certificates import RenewedCertificates
from haservice.configuration.live_settings import ConfigChange, LiveSettings, file_of
from haservice.configuration.settings import EXPIRE_MS, ROUTES, NameserverConfig
from haservice.deadline import Deadline
from haservice.nameserver.broker_requests import BrokerProcessors
from haservice.nameserver.change_rights import ChangeRights, allowed_of
from haservice.nameserver.kv_config import KvConfig
from haservice.nameserver.monitoring import open_monitoring
from haservice.nameserver.processors import KvProcessors, RouteProcessors
from haservice.nameserver.route_table import RouteTable
from haservice.observability.server import MonitoringServer
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.config import ConfigProcessor
from haservice.remoting.server import Listener, RemotingServer
from haservice.remoting.tls import server_tls
from haservice.supervisor import Supervisor, ThreadEnded
from haservice.watched_files import read_again

logger = logging.getLogger(__name__)

# RocketMQ's rhythm of looking for silent brokers.
FIRST_SCAN_S = 5.0
SCAN_INTERVAL_S = 10.0
# A scan that comes so much later than planned judges nobody: words that came meanwhile may not be read yet.
LATE_S = 2.0


class NameserverNode:
    """One nameserver.  `start` raises ConfigError if a port is taken or a file cannot be read as a table."""

    def __init__(self, config: NameserverConfig) -> None:
        # Of a daemon's nodes; a nameserver never takes another role.
        self.on_restart: Callable[[], None] = lambda: None
        self._config = config
        kv = KvConfig(config.kv_config_path)
        table = self._table = RouteTable(time.monotonic, EXPIRE_MS / 1000)
        self._brokers = BrokerProcessors(table, kv)
        self._supervisor = Supervisor()
        self._server = RemotingServer(
            [],
            config.idle_seconds,
            on_close=self._brokers.connection_closed,
            on_failure=self._supervisor.never,
            unread_bytes_max=config.unread_bytes_max,
        )
        routes = RouteProcessors(table, kv, order_message_enable=config.order_message_enable)
        values = KvProcessors(kv, self._server.offload)
        self._acl = rules_files(config.acl, config.source)
        changes = ChangeRights(self._acl, allowed_of(config))
        # A nameserver without a file of its own stores where RocketMQ's does.
        self._was_late = False
        self._live = live = LiveSettings[NameserverConfig](
            config,
            path=file_of(config.source) or config.config_store_path,
            black_list=config.config_black_list,
            open_to_all=not changes.guarded,
        )
        live.follow(
            {ROUTES},
            lambda changed: routes.configure(order_message_enable=changed.order_message_enable),
        )
        settings = ConfigProcessor(
            live,
            self._server.offload,
            update_code=RequestCode.UPDATE_NAMESRV_CONFIG,
            get_code=RequestCode.GET_NAMESRV_CONFIG,
        )
        processors = {
            **self._brokers.handlers(),
            **routes.handlers(),
            **values.handlers(),
            **settings.handlers(),
        }
        # Of all these it is decided whether they are changes.
        self.served_codes = frozenset(processors)
        self._monitoring: MonitoringServer | None = None
        self._tls = server_tls(config.tls, config.source)
        guard = AclGuard(changes.check) if changes.guarded else None
        self._listener = Listener(
            config.bind_address, config.listen_port, processors, guard=guard, tls=self._tls
        )

    @property
    def port(self) -> int:
        """The port in use, from `start` on; a free one where the configuration says 0."""
        return self._server.ports[0]

    @property
    def failed(self) -> ThreadEnded | None:
        """Why the process has to end, if a thread has ended for good."""
        return self._supervisor.fatal

    def start(self) -> None:
        self._server.start([self._listener])
        self._open_monitoring()
        self._server.call_soon(self._scan_after, FIRST_SCAN_S)
        logger.info(
            "nameserver started version=%s addr=%s:%s", __version__, self._config.bind_address, self.port
        )
        # The line that RocketMQ's users and scripts wait for.
        print("The Name Server boot success. serializeType=JSON", flush=True)

    def stop(self, deadline: Deadline | float = 5.0) -> None:
        """Ends everything; may be called twice.  Logs every thread that still runs at the deadline."""
        left = deadline if isinstance(deadline, Deadline) else Deadline(deadline)
        if self._monitoring is not None:
            self._monitoring.stop(left)
        self._server.stop(left)

    def _open_monitoring(self) -> None:
        addr, source = self._config.metrics_addr, self._config.source
        if addr is None:
            return
        try:
            self._monitoring = open_monitoring(
                addr, self._table, self._server, source, self._supervisor.never
            )
        except BaseException:
            self._server.stop()
            raise

    def reload(self) -> ConfigChange:
        """Takes what the file says by now, of the keys that change while it runs.  Raises ConfigError."""
        change = self._live.reread()
        if change.live:
            self._server.call_soon(self._live.apply, change)
        return change

    def read_files_again(self) -> str:
        """Accounts and certificates, at once; says what was read.  Waits for the disk."""
        return read_again(self._watched())

    def _watched(self) -> list[AclFiles | RenewedCertificates[Any]]:
        parts = (self._acl, None if self._tls is None else self._tls.renewed)
        return [part for part in parts if part is not None]

    def successor(self) -> None:
        """Nobody."""

    def again(self) -> NameserverNode:
        return NameserverNode(self._config)

    def _scan_after(self, seconds: float) -> None:
        loop = self._server.loop
        loop.call_later(seconds, self._scan, loop.time() + seconds)

    def _scan(self, due_s: float) -> None:
        self._scan_after(SCAN_INTERVAL_S)  # first: what fails below fails once
        if self._server.loop.time() <= due_s + LATE_S or self._was_late:
            self._was_late = False
            self._brokers.expire()
        else:  # this process stood still: what brokers said meanwhile is not read yet
            self._was_late = True
        for watched in self._watched():
            self._server.offload_quietly(watched.poll)
