"""HAClient: the slave's thread, ha-client.  Follows one master: READY ⇄ TRANSFER → SHUTDOWN.

    connect → report our end → receive → check → append → report → …    anything wrong: close, pause, again

What arrives is received into one buffer, checked frame by frame, and appended with one write per segment and
read; no byte is copied twice.  A report says what the log holds when it is sent, never more.
"""

from __future__ import annotations

import errno
import logging
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from commitlog.errors import CommitLogError
from commitlog.log import wall_clock_ms
from commitlog.record import BLANK as SIZE_AND_MAGIC
from commitlog.record import BLANK_MAGIC, MESSAGE_MAGIC, MESSAGE_MAGIC_V2, PATCH, PATCH_AT, RECORD_BYTES_MIN
from haservice.errors import ProtocolError
from haservice.replication.pace import Backoff, RateMeter, Seldom
from haservice.replication.protocol import REPORT, REPORT_NOT_YET, Run, SlaveState, TransferReader
from haservice.replication.status import MasterLinkStatus
from haservice.replication.wakeup import Wakeup, set_receive_timeout, set_send_timeout, shut_down
from haservice.settings import ReplicationConfig

logger = logging.getLogger(__name__)

# One recv takes up to this much: large enough that the cost per call vanishes, small enough for the caches.
RECEIVE_BYTES = 1024 * 1024
CONNECT_SECONDS = 5.0
# Bytes flow again within 100 ms of a cut; a dead master is asked every few seconds.
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 5.0
# A connection that lived this long, or brought bytes, was a good one: the next try comes soon.
GOOD_LIFE_S = 1.0
NO_MASTER = "no master known: no name server has named one, and haMasterAddress is not set"
# One cause of trouble is told this often at most.
TELL_S = 10.0


class ReplicaLog(Protocol):
    """The log as a slave's client uses it."""

    segment_bytes: int
    end: int

    def append_replica(self, offset: int, buffers: Sequence[memoryview]) -> int: ...


class MasterClosed(ConnectionError):
    """The master ended the connection."""


class Damaged(ProtocolError):
    """We hold bytes that we cannot serve: acks of more would make others rely on us."""


class Diverged(ProtocolError):
    """What the master sends does not continue our log: the two hold different bytes below."""


def parse_address(address: str) -> tuple[str, int]:
    """`host:port` as two.  Raises ValueError."""
    host, colon, port = address.rpartition(":")
    if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
        raise ValueError(f"{address!r} is no host:port")
    return host.strip("[]"), int(port)


class HAClient:
    """The task of ha-client.  Anyone may set_master_address() and status(); the rest belongs to its thread.

    `damage` says what is wrong with us, if anything: we neither append nor report then.  `flush`, if given,
    is called before every report, so that a report speaks of flushed bytes.  `boundary` says up to where our
    log is known to be whole records; a connection that resumes there is checked to continue with one.
    """

    def __init__(
        self,
        config: ReplicationConfig,
        log: ReplicaLog,
        *,
        damage: Callable[[], str | None] = lambda: None,
        flush: Callable[[], object] | None = None,
        boundary: Callable[[], int] | None = None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        backoff: Backoff | None = None,
    ) -> None:
        recovered_end = log.end
        self.state = SlaveState.READY
        self._log = log
        self._damage = damage
        self._flush = flush
        self._boundary = boundary if boundary is not None else lambda: recovered_end
        self._clock_ms = clock_ms
        self._heartbeat_s = config.heartbeat_interval_ms / 1000
        self._housekeeping_s = config.housekeeping_interval_ms / 1000
        self._backoff = backoff if backoff is not None else Backoff(RETRY_FIRST_S, RETRY_MAX_S)
        self._reader = TransferReader(log.segment_bytes, RECEIVE_BYTES)
        self._seldom = Seldom(TELL_S)
        self._wakeup = Wakeup()
        self._lock = (
            threading.Lock()
        )  # guards _address, _socket, _stopping: a socket that is there can be shut
        self._address: str | None = None
        self._socket: socket.socket | None = None
        self._stopping = False
        # For status(); written by ha-client only.
        self._rate = RateMeter(time.monotonic())
        self._reported = REPORT_NOT_YET
        self._last_read_s = self._last_write_s = 0.0
        self._last_read_ms = self._last_write_ms = 0
        self._connects = 0
        self._last_error = ""
        # Of the present connection; ha-client only.
        self._connected_s: float | None = None
        self._unchecked = False
        self._heard = False
        self._timeout_s = 0.0
        # Connections in a row that the master ended without a word.
        self._unanswered = 0

    # -- for others ---------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self.state is SlaveState.TRANSFER

    def set_master_address(self, address: str | None) -> None:
        """Follows `address` from now on; a link to another one is cut.  None changes nothing: a name server
        that has lost the master for a while does not take it from us.  Raises ValueError."""
        if address is None:
            return
        parse_address(address)
        with self._lock:
            if address == self._address:
                return
            self._address = address
            if self._socket is not None:
                shut_down(self._socket)
        self._wakeup.set()

    def status(self) -> MasterLinkStatus:
        now_s = time.monotonic()
        return MasterLinkStatus(
            master_addr=self._address or "",
            state=self.state.value,
            offset=self._log.end,
            reported=self._reported,
            last_read_timestamp_ms=self._last_read_ms,
            last_write_timestamp_ms=self._last_write_ms,
            seconds_since_read=now_s - self._last_read_s if self._last_read_ms else -1.0,
            bytes_per_second=self._rate.rate(now_s),
            connects=self._connects,
            last_error=self._last_error or ("" if self._address else NO_MASTER),
        )

    def wake(self) -> None:
        """For the owner that has set the stop flag: ends whatever the thread waits for."""
        with self._lock:
            self._stopping = True
            if self._socket is not None:
                shut_down(self._socket)
        self._wakeup.set()

    # -- the thread ---------------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        try:
            while not stop.is_set():
                address = self._address
                if address is None:
                    self._wakeup.wait(None)
                    continue
                self._follow(address)
                if address != self._address:
                    self._backoff.succeeded()
                elif not stop.is_set():
                    self._wakeup.wait(self._backoff.next_s())
        finally:
            self.state = SlaveState.SHUTDOWN
            self._wakeup.close()

    def _follow(self, address: str) -> None:
        """One connection, from its beginning to its end."""
        started_end, self._connected_s = self._log.end, None
        try:
            self._converse(address)
        except (OSError, ProtocolError, CommitLogError) as error:
            self._lost(address, error)
        finally:
            self.state = SlaveState.READY
            with self._lock:
                connection, self._socket = self._socket, None
                if connection is not None:
                    connection.close()
        lived_s = time.monotonic() - self._connected_s if self._connected_s is not None else 0.0
        if self._log.end > started_end or lived_s >= GOOD_LIFE_S:
            self._backoff.succeeded()

    def _converse(self, address: str) -> None:
        connection = self._connect(address)
        if connection is None:
            return
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        set_send_timeout(connection, self._housekeeping_s)
        self._timeout_s = 0.0
        self._heard = False
        self._reader.reset()
        self._connects += 1
        self.state = SlaveState.TRANSFER
        end = self._log.end
        self._unchecked = end > 0 and end == self._boundary()
        logger.info("connected to master addr=%s offset=%d", address, end)
        self._connected_s = self._last_read_s = time.monotonic()  # the master's silence counts from here
        self._last_read_ms = self._clock_ms()
        self._report(connection)
        self._transfer(connection)

    def _transfer(self, connection: socket.socket) -> None:
        """Never returns.  Raises what ends the connection."""
        reader, log = self._reader, self._log
        while True:
            self._set_timeout(connection)
            try:
                count = connection.recv_into(reader.space())
            except BlockingIOError:
                count = -1
            except ConnectionResetError:
                count = 0
            now_s = time.monotonic()
            if count == 0:
                raise MasterClosed(self._why_closed())
            if count > 0:
                self._received(count, now_s)
                reader.received(count)
                for run in reader.runs(log.end):
                    self._append(run)
            if log.end > self._reported or now_s - self._last_write_s >= self._heartbeat_s:
                self._report(connection)
            if now_s - self._last_read_s > self._housekeeping_s:
                raise TimeoutError(
                    errno.ETIMEDOUT, f"the master said nothing for {now_s - self._last_read_s:.1f} s"
                )

    def _append(self, run: Run) -> None:
        self._check_sound()
        if self._unchecked and run.bodies:
            self._check_continues(run)
            self._unchecked = False
        end = self._log.append_replica(run.offset, run.bodies)
        assert end == run.end, (end, run.end)

    def _check_continues(self, run: Run) -> None:
        """Our log ends between two records, so the master must go on with one of this offset, or a blank.

        Only then the logs can be the same below; a master that lost its tail and wrote on is found so.
        """
        head = bytes(run.bodies[0][:RECORD_BYTES_MIN])
        if len(head) < RECORD_BYTES_MIN:
            return  # a blank, or a frame too small to tell
        size, magic = SIZE_AND_MAGIC.unpack_from(head)
        if magic == BLANK_MAGIC and size == self._log.segment_bytes - run.offset % self._log.segment_bytes:
            return
        _, physical_offset = PATCH.unpack_from(head, PATCH_AT)
        if magic not in (MESSAGE_MAGIC, MESSAGE_MAGIC_V2) or physical_offset != run.offset:
            raise Diverged(
                f"our log ends with a whole record at {run.offset}, and the master has none beginning there: "
                "the two logs differ below, nothing is appended; one of them has to be given up"
            )

    # -- the socket ---------------------------------------------------------------------------------

    def _connect(self, address: str) -> socket.socket | None:
        """A connected socket, which wake() and a new address shut down; None when one of them came first."""
        host, port = parse_address(address)
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        connection = socket.socket(family, kind, protocol)
        try:
            connection.setblocking(False)
            self._wakeup.clear()
            if self._stopping or address != self._address:
                connection.close()
                return None
            code = connection.connect_ex(target)
            if code == errno.EINPROGRESS:
                if not self._wakeup.wait_for(connection, select.POLLOUT, CONNECT_SECONDS):
                    if self._stopping or address != self._address:
                        connection.close()
                        return None
                    raise TimeoutError(errno.ETIMEDOUT, f"no connection within {CONNECT_SECONDS:g} s")
                code = connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
            if code:
                raise OSError(code, os.strerror(code))
            connection.setblocking(True)
        except BaseException:
            connection.close()
            raise
        with self._lock:
            if self._stopping or address != self._address:
                connection.close()
                return None
            self._socket = connection
        return connection

    def _check_sound(self) -> None:
        damage = self._damage()
        if damage is not None:
            raise Damaged(f"this slave is damaged and follows no further: {damage}")

    def _report(self, connection: socket.socket) -> None:
        self._check_sound()
        if self._flush is not None:
            self._flush()
        end = self._log.end
        if connection.send(REPORT.pack(end)) != REPORT.size:
            raise TimeoutError(errno.ETIMEDOUT, "the master takes no reports")
        self._reported = end
        self._last_write_s = time.monotonic()
        self._last_write_ms = self._clock_ms()

    def _set_timeout(self, connection: socket.socket) -> None:
        """Until the next report is due.  While bytes flow it stays as it is, which spares a call."""
        due_s = self._last_write_s + self._heartbeat_s - time.monotonic()
        wanted_s = min(due_s, self._housekeeping_s)
        if wanted_s < self._timeout_s * 0.9 or self._timeout_s < wanted_s * 0.9:
            set_receive_timeout(connection, wanted_s)
            self._timeout_s = wanted_s

    def _received(self, count: int, now_s: float) -> None:
        if not self._heard:
            self._heard, self._last_error = True, ""
        self._unanswered = 0
        self._last_read_s = now_s
        self._last_read_ms = self._clock_ms()
        self._rate.add(count, now_s)

    # -- what went wrong ----------------------------------------------------------------------------

    def _why_closed(self) -> str:
        if self._heard:
            return "closed by the master"
        self._unanswered += 1
        return (
            f"closed by the master in answer to our first report of {self._reported}: it does not admit this "
            "address, or our log is no part of its own (ahead of its end, or below its start); see its log"
        )

    def _lost(self, address: str, error: Exception) -> None:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if self._stopping or address != self._address:
            logger.info("link to master ended addr=%s offset=%d", address, self._log.end)
            return
        self._last_error = text
        # Once, it may have been cut; twice, the master will not have us.
        grave = isinstance(error, (ProtocolError, CommitLogError)) or self._unanswered > 1
        level = logging.ERROR if grave else logging.WARNING
        if not self._seldom.ready(f"{address} {level} {type(error).__name__}", time.monotonic()):
            return
        logger.log(
            level,
            "link to master lost, trying again addr=%s offset=%d reason=%s",
            address,
            self._log.end,
            text,
        )
