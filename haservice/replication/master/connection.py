"""HAConnection: the master's side of one slave: who reads, who writes, and who ends it.

    ha-read:SLAVE    greets a slave of ours that calls, takes the first report, then reports in → acks → waiting
                     sends.  Its `finally` ends the connection, once
    remoting-loop    reads the reports after the first, while ha-read sleeps.  An appending thread pushes to a
                     slave that has caught up.  Only on a plain link without linger: incoming.py, outgoing.py
    ha-write:SLAVE   from the first report on: log → header and sendfile → slave, heartbeats between

To end the connection, anyone else shuts the link down.  On a plain link Python copies no byte of a body.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from commitlog.errors import CommitLogError, OffsetNotFound
from haservice.configuration.settings import ReplicationConfig
from haservice.deadline import Deadline
from haservice.errors import ProtocolError
from haservice.replication.lineage.membership import ReplicaList
from haservice.replication.master.group_transfer import GroupTransferService
from haservice.replication.master.incoming import RECEIVE_BYTES, Incoming, Loop
from haservice.replication.master.outgoing import Outgoing, SourceLog
from haservice.replication.master.progress import LogRange, Refusal, ReportRefused, SlaveProgress
from haservice.replication.rates_and_backoff import Growth, RateMeter, silence_s
from haservice.replication.wire.greeting import (
    GreetingAnswer,
    GreetingOutcome,
    GreetingRefused,
    MasterGreeting,
)
from haservice.replication.wire.hello import SlaveHello
from haservice.replication.wire.protocol import (
    BODY_BYTES_MAX,
    REPORT_NOT_YET,
    MasterState,
    ReportReader,
)
from haservice.replication.wire.transport import Transport
from haservice.service import Service

logger = logging.getLogger(__name__)

# A woken writer ends within microseconds; it gets as long as a stuck disk may take.
WRITER_STOP_SECONDS = 5.0
# Only the first report is compared with the log.
_NOT_ASKED = LogRange(0, 0)
# Looked up for each report otherwise, which takes ten times as long.
_WAIT_REPORT = MasterState.WAIT_REPORT


class PeerLogger(logging.LoggerAdapter[logging.Logger]):
    """Adds the peer to every line."""

    def __init__(self, peer: str) -> None:
        super().__init__(logger, {})
        self._peer = peer

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        return f"{msg} slave={self._peer}", kwargs


class SlowSlave(ProtocolError):
    """A slave that takes nothing, or says nothing, for too long."""


class HAConnection:
    """One slave.

    `on_closed(connection, why)` is called once, by the read thread; `why` is None for a plain end.
    `linger_s` is how long new bytes gather after a slave that has caught up was sent some.  With 0, appended
    bytes are pushed, and `loop`, if there is one, reads the reports.  With a `greeting`, a slave of ours may
    greet.  The read thread calls `on_greeted(connection, answer)` before the slave gets its answer, and
    `on_joined(connection)` after the first report of such a slave: the slave has written down what the answer
    said by then.  `acknowledged` gives up to where the log has the acks that an OK takes.
    """

    def __init__(
        self,
        transport: Transport,
        peer: str,
        identity: str,
        *,
        config: ReplicationConfig,
        log: SourceLog,
        group: GroupTransferService[Any],
        growth: Growth,
        on_closed: Callable[[HAConnection, Exception | None], None],
        linger_s: float = 0.0,
        loop: Loop | None = None,
        greeting: MasterGreeting | None = None,
        on_greeted: Callable[[HAConnection, GreetingAnswer], None] = lambda _, __: None,
        on_joined: Callable[[HAConnection], None] = lambda _: None,
        acknowledged: Callable[[], int] = lambda: 0,
    ) -> None:
        self.peer = peer
        self.spoke = False
        """Whether a whole report has come, with any offset."""
        self.slave: SlaveHello | None = None
        """What a slave of ours said, once its greeting was accepted."""
        self.listed = ReplicaList()
        """The list of replicas that the slave was given with the verdict."""
        self.incoming: Incoming | None = None
        """What the loop reads, while the read thread sleeps."""
        self.progress = SlaveProgress(identity, peer)
        self.connected_s = time.monotonic()
        self.heard_s = self.connected_s
        """When its last byte came."""
        self.outgoing = Outgoing(
            transport,
            log,
            self.progress,
            growth,
            batch_bytes=min(config.transfer_batch_bytes, BODY_BYTES_MAX),
            heartbeat_s=config.heartbeat_interval_ms / 1000,
            linger_s=linger_s,
        )
        self._loop = None if linger_s or transport.prompt is None else loop
        self._transport = transport
        self._greeting = greeting
        self._on_greeted = on_greeted
        self._on_joined = on_joined
        self._acknowledged = acknowledged
        self._log = log
        self._group = group
        self._housekeeping_s = config.housekeeping_interval_ms / 1000
        self._patience_s = self._housekeeping_s
        self._reports = ReportReader()
        self._on_closed = on_closed
        self._say = PeerLogger(peer)
        self._error: Exception | None = None
        self._reader = Service(f"ha-read:{peer}", _Task(self._read, self.shut_down))
        self._writer: Service | None = None  # until the first report a connection costs one thread, not two

    @property
    def rate(self) -> RateMeter:
        """Meters the bytes that the slave is sent."""
        return self.outgoing.rate

    @property
    def read_by_loop(self) -> bool:
        """Whether the loop takes the reports, while the read thread sleeps."""
        return self.incoming is not None

    @property
    def secured(self) -> bool:
        """Whether the slave has shown a certificate."""
        return self._transport.secured

    def start(self) -> None:
        """Raises OSError or RuntimeError if the connection cannot be served; then nothing of it is left."""
        try:
            self._transport.set_receive_timeout(self._housekeeping_s)
            self._transport.set_send_timeout(self._housekeeping_s)
            self._group.connected(self.progress)
            self._reader.start()
        except BaseException:
            self._group.disconnected(self.progress)
            self._transport.close()
            raise

    def shut_down(self) -> None:
        """Makes both threads end, and does not wait for them."""
        self._transport.shut_down()

    def stop(self, deadline: Deadline) -> bool:
        return self._reader.stop(deadline)

    # -- ha-read ------------------------------------------------------------------------------------

    def _read(self, stop: threading.Event) -> None:
        try:
            self._take_reports()
        except (OSError, ProtocolError) as error:
            self._error = self._error or error
        finally:
            self._end(stop.is_set())

    def _take_reports(self) -> None:
        """Returns when the slave is gone.  Raises ProtocolError or OSError."""
        while True:
            try:
                data = self._transport.recv(RECEIVE_BYTES)
            except BlockingIOError:
                raise self._silent() from None
            if not data:
                return
            self._take(data)
            if self._loop is not None and self._writer is not None:
                self._read_on(self._loop)

    def _read_on(self, loop: Loop) -> None:
        """Has `loop` read, until the link ends or the loop stops reading."""
        link = self._transport.prompt
        assert link is not None
        self.incoming = Incoming(
            loop, link, take=self._take, heard_s=lambda: self.heard_s, shut_down=self.shut_down
        )
        try:
            spoke = self.incoming.run(self._patience_s)
        finally:
            self.incoming = None
        if not spoke:
            raise self._silent()

    def _silent(self) -> SlowSlave:
        return SlowSlave(f"said nothing for {self._patience_s:g} s")

    def _take(self, data: bytes) -> None:
        """Takes bytes from the slave; called by whoever reads.  Raises ProtocolError or OSError."""
        self.heard_s = time.monotonic()
        log, progress = self._log, self.progress
        reports = self._reports.feed(data)
        if progress.state is not _WAIT_REPORT:
            if reports:
                self._group.reported(progress, reports, _NOT_ASKED)
            return
        self._greet(self._reports, reports)
        if reports:
            self._group.reported(progress, reports, LogRange(log.start, log.end))
            if progress.state is MasterState.TRANSFER:
                self._begin()

    def _begin(self) -> None:
        """The first report has been taken: bytes flow."""
        self._say.info(
            "slave connected reported=%d from=%d log_end=%d",
            self.progress.reported,
            self.progress.sent,
            self._log.end,
        )
        if self.slave is not None:
            self._on_joined(self)
            self._patience_s = silence_s(self.slave.heartbeat_ms, self._housekeeping_s)
            self._transport.set_receive_timeout(self._patience_s)
        self.outgoing.open()
        writer = Service(f"ha-write:{self.peer}", _Task(self._write, self._wake_writer))
        writer.start()
        self._writer = writer

    # -- greeting -----------------------------------------------------------------------------------

    @property
    def called(self) -> bool:
        """Whether the slave was told our epochs."""
        return self._greeting is not None and self._greeting.said is not None

    def _greet(self, reader: ReportReader, reports: Sequence[int]) -> None:
        """Takes what precedes the first report ≥ 0; nobody else writes.  Raises ProtocolError or OSError."""
        self.spoke = self.spoke or bool(reports)
        if self.slave is not None and reports:
            self._check_first_report(max(reports), self.slave.position)
        if self._greeting is None:
            return
        if REPORT_NOT_YET in reports:
            hello = self._greeting.hello()
            if hello:
                reader.expect_hello()
                self._send(hello)
        if reader.hello is not None:
            body, reader.hello = reader.hello, None
            self._answer(self._greeting.answer(body))

    def _answer(self, answer: GreetingAnswer) -> None:
        slave = answer.slave
        accepted = answer.outcome is GreetingOutcome.ACCEPTED
        self._on_greeted(self, answer)
        if accepted:
            starts_anew = not slave.log.start <= slave.position <= slave.log.end
            with self._group.lock:
                self.progress.verify(slave.replica_id, slave.position if starts_anew else slave.log.start)
            self.slave, self.listed = slave, answer.verdict.members
            self.outgoing.acknowledged = self._acknowledged if slave.takes_marks else None
        self._send(answer.encoded)
        if not accepted:
            verdict = answer.verdict
            raise GreetingRefused(answer.outcome.name, verdict.reason, again=verdict.again)

    def _check_first_report(self, reported: int, position: int) -> None:
        """The slave's bytes were compared with ours only up to `position`."""
        if reported > position:
            raise ReportRefused(
                Refusal.NOT_SENT,
                reported,
                position,
                f"first reports {reported}, but was to go on at {position}",
            )

    def _send(self, data: bytes) -> None:
        while data:
            data = data[self._transport.send(data) :]

    # -- the end ------------------------------------------------------------------------------------

    def _end(self, stopped: bool) -> None:
        self.shut_down()
        known = self.progress.state is MasterState.TRANSFER
        if self._writer is not None and not self._writer.stop(Deadline(WRITER_STOP_SECONDS)):
            # Another file must not get the link's number while the writer may still use it.
            self._say.error("the writer does not end; its link stays open")
        else:
            self.outgoing.close()
            self._transport.close()
        self._error = self._error or self.outgoing.failed
        # A slave that broke no rule and was not sent away may be back in a moment.
        self._group.disconnected(
            self.progress, cut=not stopped and not isinstance(self._error, ProtocolError)
        )
        self._tell(known, stopped)
        self._on_closed(self, None if stopped else self._error)

    def _tell(self, known: bool, stopped: bool) -> None:
        error = self._error
        if known:
            # A log that cannot be read needs somebody; a broken link mends itself.
            level = logging.ERROR if isinstance(error, CommitLogError) else logging.INFO
            self._say.log(
                level,
                "slave disconnected ack=%d sent=%d reason=%s",
                self.progress.reported,
                self.progress.sent,
                "we stop" if stopped else error or "it closed",
            )
        elif error is not None and not isinstance(error, ProtocolError):
            self._say.debug("connection ended before its first report reason=%s", error)

    # -- ha-write -----------------------------------------------------------------------------------

    def _wake_writer(self) -> None:
        self.shut_down()
        self._log.wake()

    def _write(self, stop: threading.Event) -> None:
        try:
            self.outgoing.run(stop)
        except BlockingIOError:
            self._error = SlowSlave(f"took nothing for {self._housekeeping_s:g} s")
        except OffsetNotFound as error:
            self._error = ReportRefused(
                Refusal.EXPIRED, self.progress.reported, error.start, f"is too far behind: {error}"
            )
        except (OSError, CommitLogError) as error:
            self._error = self._error or error
        finally:
            self.shut_down()


class _Task:
    """A method as a Service's task."""

    def __init__(self, run: Callable[[threading.Event], None], wake: Callable[[], None]) -> None:
        self.run = run
        self.wake = wake
