"""HAService: builds the parts of replication that a role has, starts and stops them, and tells how they are.

    master    ha-accept → ha-read, ha-write per slave     ha-group-transfer for the waits of SYNC_MASTER
    slave     ha-client

Unlike RocketMQ, a slave opens no HA port and a master runs no idle client.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

from commitlog.errors import CommitLogError
from commitlog.log import wall_clock_ms
from commitlog.record import PATCH, PATCH_AT, RECORD_BYTES_MIN, store_timestamp_ms
from haservice.deadline import Deadline
from haservice.replication.accept import AcceptSocketService, Identify, address_of
from haservice.replication.client import HAClient, ReplicaLog
from haservice.replication.connection import HAConnection, SourceLog
from haservice.replication.group_transfer import GroupTransferService
from haservice.replication.pace import Growth, Seldom
from haservice.replication.progress import AckTable, Refusal, ReportRefused
from haservice.replication.protocol import MasterState, NotAReport
from haservice.replication.read_mark import HighWaterMark
from haservice.replication.status import AbsentSlave, HAStatus, SlaveStatus
from haservice.service import Service
from haservice.settings import BrokerRole, ReplicationConfig

logger = logging.getLogger(__name__)

T = TypeVar("T")

# Absent slaves that status shows, one of each address.
ABSENT_MAX = 16
# One cause of one slave is told this often at most.
TELL_S = 10.0
# These say that two logs have parted, or that a slave needs a new store: somebody has to decide.
_GRAVE = (Refusal.AHEAD, Refusal.DIVERGED, Refusal.EXPIRED)


# Nobody waits for an ASYNC_MASTER's acks: to a slave that is level, what comes within this time goes in one
# frame, instead of a wake-up of four threads on two machines for each message.
ASYNC_LINGER_S = 0.001


class Log(SourceLog, ReplicaLog, Protocol):
    """The log as either role uses it."""

    segment_bytes: int
    end: int

    def read(self, offset: int, size: int) -> bytes: ...


def _stored_ms(log: Log, position: int) -> int | None:
    """When the record at `position` was stored, by the wall clock; None if none begins there."""
    try:
        head = log.read(position, RECORD_BYTES_MIN)
    except CommitLogError:
        return None
    if len(head) < RECORD_BYTES_MIN or PATCH.unpack_from(head, PATCH_AT)[1] != position:
        return None
    return store_timestamp_ms(head)


class HAService(Generic[T]):
    """Replication of one broker.  `on_acked(waiters, ok)` gets the waits of submit() back, in batches.

    `flush`, on a slave: called before each report, so that acks speak of flushed bytes.  `boundary`, on a
    slave: up to where its log is known to be whole records (where dispatch is).  `identify` turns a slave's
    address into what it is known by.  `on_failure(thread, error)` is told of a thread that died.
    """

    def __init__(
        self,
        config: ReplicationConfig,
        log: Log,
        *,
        role: BrokerRole,
        bind_address: str,
        on_acked: Callable[[list[T], bool], None],
        on_mark: Callable[[], None] = lambda: None,
        damage: Callable[[], str | None] = lambda: None,
        flush: Callable[[], object] | None = None,
        boundary: Callable[[], int] | None = None,
        identify: Identify = address_of,
        on_failure: Callable[[str, BaseException], None] | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
    ) -> None:
        self._config = config
        self._log = log
        self._role = role
        self._bind_address = bind_address
        self._identify = identify
        self._on_failure = on_failure
        self._clock_ms = clock_ms
        self._table = AckTable(log.segment_bytes, log.end)
        self._group: GroupTransferService[T] = GroupTransferService(self._table, on_acked, on_mark)
        self._mark = HighWaterMark(config.read_mark, config.fallbehind_max_bytes, log.end)
        self._growth = Growth()
        self._fallbehind_max_bytes = config.fallbehind_max_bytes
        self._accept: AcceptSocketService | None = None
        self._client: HAClient | None = None
        self._services: list[Service] = []
        self._absent_lock = threading.Lock()  # guards _absent and _seldom
        self._absent: OrderedDict[str, tuple[float, AbsentSlave]] = OrderedDict()
        self._seldom = Seldom(TELL_S)
        if role.is_slave:
            self._client = HAClient(
                config, log, damage=damage, flush=flush, boundary=boundary, clock_ms=clock_ms
            )
            self._client.set_master_address(config.master_address)

    # -- life ---------------------------------------------------------------------------------------

    def start(self) -> None:
        """Raises OSError naming the address if the HA port is taken."""
        if self._client is not None:
            self._run("ha-client", self._client)
            return
        self._accept = AcceptSocketService(
            self._bind_address,
            self._config.listen_port,
            connect=self._connection,
            refused=self._note_absent,
            allowed=self._config.allowed_slaves,
            max_connections=self._config.max_connections,
            identify=self._identify,
        )
        self._run("ha-group-transfer", self._group)
        self._run("ha-accept", self._accept)
        logger.info("ha port open addr=%s:%d role=%s", self._bind_address, self.port, self._role.value)

    def stop(self, deadline: Deadline) -> bool:
        """Ends every thread; waits that are left fail.  May be called twice.  False if something is left."""
        ended = True
        while self._services:
            service = self._services.pop()
            if service.name == "ha-accept" and self._accept is not None:
                ended &= service.stop(deadline)
                ended &= self._accept.close(deadline)
            else:
                ended &= service.stop(deadline)
        return ended

    def _run(self, name: str, task: GroupTransferService[T] | AcceptSocketService | HAClient) -> None:
        service = Service(name, task, self._on_failure)
        self._services.append(service)
        service.start()

    # -- what brokers ask ---------------------------------------------------------------------------

    @property
    def port(self) -> int:
        """The HA port: the one that is open, or would be."""
        return self._accept.port if self._accept is not None else self._config.listen_port

    @property
    def push2slave_max_offset(self) -> int:
        """The furthest true ack of any slave in this life of the master."""
        return self._table.proven

    @property
    def connected(self) -> bool:
        """On a slave: whether the link to the master is up."""
        return self._client is not None and self._client.connected

    def is_slave_ok(self, end: int) -> bool:
        """Whether a slave that has reported lags less than haSlaveFallbehindMax behind `end`.

        It is connected, or was cut off less than a moment ago.
        """
        furthest = self._group.furthest()
        return furthest >= 0 and end - furthest < self._fallbehind_max_bytes

    def readable_end(self) -> int:
        """Up to where consumers may read: the high-water mark of a SYNC_MASTER, the log's end for all others.

        `on_mark` is called whenever a slave's report may have moved it.
        """
        end = self._log.end
        if self._role is not BrokerRole.SYNC_MASTER:
            return end
        return self._mark.readable_end(self._group.furthest(), end)

    def submit(self, end: int, deadline_s: float, waiter: T) -> bool:
        """True if a slave is known to hold `end`; else `waiter` comes back through on_acked, by `deadline_s`
        (time.monotonic()) at the latest."""
        return self._group.submit(end, deadline_s, waiter)

    def set_master_address(self, address: str | None) -> None:
        """On a slave: whom to follow.  None, or an address that is none, changes nothing."""
        if self._client is None:
            return
        try:
            self._client.set_master_address(address)
        except ValueError as error:
            logger.warning("master address ignored reason=%s", error)

    # -- connections --------------------------------------------------------------------------------

    def _connection(self, connection: socket.socket, peer: str, identity: str) -> HAConnection:
        return HAConnection(
            connection,
            peer,
            identity,
            config=self._config,
            log=self._log,
            group=self._group,
            growth=self._growth,
            on_closed=self._closed,
            linger_s=0.0 if self._role is BrokerRole.SYNC_MASTER else ASYNC_LINGER_S,
        )

    def _closed(self, connection: HAConnection, error: Exception | None) -> None:
        assert self._accept is not None
        self._accept.ended(connection)
        if isinstance(error, ReportRefused):
            level = logging.ERROR if error.refusal in _GRAVE else logging.WARNING
            self._tell_refused(connection, error, level, error.reported, error.refusal.value)
        elif isinstance(error, NotAReport):
            self._tell_refused(connection, error, logging.WARNING, -1, "no report")
        elif connection.progress.reported >= 0:
            why = error or "closed by the slave"
            self._note_absent(connection.peer, f"disconnected: {why}", connection.progress.reported)
        elif error is not None:
            logger.debug("connection ended before its first report peer=%s reason=%s", connection.peer, error)

    def _tell_refused(
        self, connection: HAConnection, error: Exception, level: int, reported: int, cause: str
    ) -> None:
        self._note_absent(connection.peer, str(error), reported)
        with self._absent_lock:
            ready = self._seldom.ready(f"{connection.progress.identity} {cause}", time.monotonic())
        if ready:
            logger.log(level, "slave refused, closed peer=%s reason=%s", connection.peer, error)

    def _note_absent(self, peer: str, reason: str, reported: int = -1) -> None:
        absent = AbsentSlave(peer, reason, reported, self._clock_ms())
        host = peer.rpartition(":")[0]
        with self._absent_lock:
            self._absent.pop(host, None)
            self._absent[host] = (time.monotonic(), absent)
            if len(self._absent) > ABSENT_MAX:
                self._absent.popitem(last=False)

    # -- status -------------------------------------------------------------------------------------

    def status(self) -> HAStatus:
        now_s, end = time.monotonic(), self._log.end
        connections = self._accept.connections if self._accept is not None else []
        back_s: dict[str, float] = {}
        for connection in connections:
            if connection.progress.state is MasterState.TRANSFER:
                host = connection.peer.rpartition(":")[0]
                back_s[host] = max(back_s.get(host, 0.0), connection.connected_s)
        with self._absent_lock:
            absent = [one for host, (at_s, one) in self._absent.items() if at_s > back_s.get(host, 0.0)]
        lacks = {connection: self._lack(connection, end, now_s) for connection in connections}
        return HAStatus(
            role=self._role.value,
            log_start=self._log.start,
            log_end=end,
            push2slave_max_offset=self.push2slave_max_offset,
            in_sync_slaves=len({one.progress.identity for one, lack in lacks.items() if not lack}),
            waiting_sends=len(self._group),
            slaves=tuple(self._slave_status(one, end, now_s, lack) for one, lack in lacks.items()),
            absent=tuple(absent),
            master=self._client.status() if self._client is not None else None,
        )

    def _slave_status(self, connection: HAConnection, end: int, now_s: float, lack: str) -> SlaveStatus:
        progress = connection.progress
        known = progress.state is MasterState.TRANSFER
        return SlaveStatus(
            addr=connection.peer,
            state=progress.state.value,
            position=progress.sent if known else -1,
            ack=progress.reported,
            proven=progress.acked if progress.acked is not None else -1,
            sent_from=progress.sent_from if known else -1,
            lag_bytes=max(0, end - max(progress.reported, 0)),
            lag_seconds=self._lag_s(progress.reported, end, now_s) if known else 0.0,
            bytes_per_second=connection.rate.rate(now_s),
            in_sync=not lack,
            reason=lack,
        )

    def _lag_s(self, position: int, end: int, now_s: float) -> float:
        """Since when the slave lacks something: as it was watched, else by the record that it lacks first."""
        if position < end and not self._growth.covers(position):
            stored_ms = _stored_ms(self._log, max(position, self._log.start))
            if stored_ms is not None:
                return max(0.0, (self._clock_ms() - stored_ms) / 1000)
        return self._growth.behind_s(position, end, now_s)

    def _lack(self, connection: HAConnection, end: int, now_s: float) -> str:
        """Why the slave is not in sync; empty when it is."""
        progress = connection.progress
        if progress.state is not MasterState.TRANSFER:
            return "has not reported yet"
        lag_bytes = end - progress.reported
        if lag_bytes >= self._fallbehind_max_bytes:
            return f"{lag_bytes} bytes behind, haSlaveFallbehindMax is {self._fallbehind_max_bytes}"
        behind_s = self._lag_s(progress.reported, end, now_s)
        if behind_s * 1000 > self._config.slave_timeout_ms:
            return f"{behind_s:.1f} s behind, slaveTimeout is {self._config.slave_timeout_ms} ms"
        return ""
