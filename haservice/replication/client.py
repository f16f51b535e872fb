"""HAClient: the slave's thread, ha-client.  Follows one master: READY ⇄ TRANSFER → SHUTDOWN.

    connect → greet → report our end → receive → check → append → report → …   trouble: close, pause, again

A master of ours is greeted first, and our log made one with its own, see greeting.py and rejoin.py; one that
stays silent is a stock master, and the classic rules hold.  What arrives is received into one buffer,
checked frame by frame and record by record, and appended with one write per segment and read; no byte is
copied twice.  A report says which whole records the log holds when it is sent, never more.
"""

from __future__ import annotations

import errno
import logging
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress

from commitlog.errors import CommitLogError
from commitlog.log import wall_clock_ms
from haservice.errors import ProtocolError
from haservice.replication.dial import AGAIN_S, dial, parse_address
from haservice.replication.frame_check import BadRecord, RecordCheck, first_bytes
from haservice.replication.greeting import GreetingRefused
from haservice.replication.hello import HELLO_OFFSET, VERDICT_OFFSET
from haservice.replication.lineage import Step
from haservice.replication.pace import Backoff, RateMeter, Seldom, silence_s
from haservice.replication.protocol import (
    REPORT,
    REPORT_NOT_YET,
    LateHello,
    Run,
    SlaveState,
    TransferReader,
)
from haservice.replication.rejoin import Check, Rejoin, ReplicaLog
from haservice.replication.secure import SecureDoors
from haservice.replication.status import MasterHeard, MasterLinkStatus
from haservice.replication.transport import PlainTransport, Transport
from haservice.replication.wakeup import Wakeup
from haservice.settings import ReplicationConfig

logger = logging.getLogger(__name__)

# One recv takes up to this much: large enough that the cost per call vanishes, small enough for the caches.
RECEIVE_BYTES = 1024 * 1024
# Bytes flow again within 100 ms of a cut.  A master that takes a connection and ends it is asked ever less
# often; one that is not there costs a packet, so it is asked on and on, to be found as soon as it is back.
# One of ours that ends without a word may be a proxy that waits for it: so it is asked as soon, this often.
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 5.0
WORDLESS_MAX = 600
# A master that is not known to be ours has so long to answer a call; one that is, may be busy.
STRANGER_S = 0.2
KNOWN_S = 3.0
# It reads the digest's bytes from its disk.
VERDICT_S = 5.0
# What cannot be reconciled does not change by the second.
REFUSED_PAUSE_S = 5.0
# What a master is mending does.
AGAIN_PAUSE_S = 1.0
STOCK_MASTER = "a stock master: offsets are compared, nothing else"
# Addresses that are remembered as those of our masters.
OURS_MAX = 64
# A connection that lived this long, or brought bytes, was a good one: the next try comes soon.
GOOD_LIFE_S = 1.0
NO_MASTER = "no master known: no name server has named one, and haMasterAddress is not set"
# One cause of trouble is told this often at most.
TELL_S = 10.0


class MasterClosed(ConnectionError):
    """The master ended the connection."""


class Damaged(ProtocolError):
    """We hold bytes that we cannot serve: acks of more would make others rely on us."""


class HAClient:
    """The task of ha-client.  Anyone may set_master_address() and status(); the rest belongs to its thread.

    `damage` says what is wrong with us, if anything: we neither append nor report then.  `flush`, if given,
    is called before every report, so that a report speaks of flushed bytes.  `boundary` says up to where our
    log is known to be whole records.  With a `rejoin` masters of ours are greeted.
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
        rejoin: Rejoin | None = None,
        doors: SecureDoors | None = None,
        check: Check | None = None,
    ) -> None:
        recovered_end = log.end
        self.state = SlaveState.READY
        self._log = log
        self._damage = damage
        self._flush = flush
        self._boundary = boundary if boundary is not None else lambda: recovered_end
        self._check = check if check is not None else RecordCheck(log.segment_bytes, self._boundary())
        self._rejoin = rejoin
        self._doors = doors
        self._clock_ms = clock_ms
        self._heartbeat_s = config.heartbeat_interval_ms / 1000
        self._housekeeping_s = config.housekeeping_interval_ms / 1000
        self._backoff = backoff if backoff is not None else Backoff(RETRY_FIRST_S, RETRY_MAX_S)
        self._reader = TransferReader(log.segment_bytes, RECEIVE_BYTES)
        self._seldom = Seldom(TELL_S)
        self._wakeup = Wakeup()
        self._lock = threading.Lock()  # guards _address, _link, _stopping: a link that is there can be shut
        self._address: str | None = None
        self._link: Transport | None = None
        self._stopping = False
        # For status(); written by ha-client only.
        self._rate = RateMeter(time.monotonic())
        self._reported = REPORT_NOT_YET
        self._last_read_s = self._last_write_s = 0.0
        self._last_read_ms = self._last_write_ms = 0
        self._connects = 0
        self._last_error = ""
        self._master_end = -1
        self._followed = False  # _master_end is of the log that we are one with
        self._lineage = ""
        # Addresses that have greeted us, newest last; why greetings were refused since the last good one.
        self._ours: dict[str, None] = {}
        self._refusals: set[tuple[str, str]] = set()
        # Of the present connection; ha-client only.
        self._connected_s: float | None = None
        self._heard = False
        self._pause_s: float | None = None
        self._unfollowed = False  # of a stock master nothing was appended yet
        self._timeout_s = 0.0
        self._silence_s = self._housekeeping_s
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
        if self._doors is not None:
            address = self._doors.address(address)
        parse_address(address)
        with self._lock:
            if address == self._address:
                return
            self._address = address
            if self._link is not None:
                self._link.shut_down()
        self._wakeup.set()

    @property
    def heard(self) -> MasterHeard:
        """Of the master that we are, or were, one with."""
        heard = MasterHeard(self._master_end, self._last_read_ms)
        return heard if self._followed else MasterHeard()

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
            master_end=self._master_end,
            lineage=self._lineage,
        )

    def wake(self) -> None:
        """For the owner that has set the stop flag: ends whatever the thread waits for."""
        with self._lock:
            self._stopping = True
            if self._link is not None:
                self._link.shut_down()
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
                    pause_s = self._pause_s if self._pause_s is not None else self._backoff.next_s()
                    self._wakeup.wait(pause_s)
        finally:
            self.state = SlaveState.SHUTDOWN
            self._wakeup.close()

    def _follow(self, address: str) -> None:
        """One connection, from its beginning to its end."""
        started_end, self._connected_s, self._pause_s = self._log.end, None, None
        try:
            self._converse(address)
        except (OSError, ProtocolError, CommitLogError) as error:
            self._lost(address, error)
        finally:
            self.state = SlaveState.READY
            with self._lock:
                link, self._link = self._link, None
                if link is not None:
                    link.close()
        lived_s = time.monotonic() - self._connected_s if self._connected_s is not None else 0.0
        if self._log.end > started_end or lived_s >= GOOD_LIFE_S:
            self._backoff.succeeded()

    def _converse(self, address: str) -> None:
        try:
            link = self._connect(address)
        except socket.gaierror:
            raise
        except OSError:
            self._pause_s = AGAIN_S
            raise
        if link is None:
            return
        link.set_send_timeout(self._housekeeping_s)
        self._timeout_s, self._silence_s = 0.0, self._housekeeping_s
        self._heard = False
        self._unfollowed = True
        self._reader.reset()
        link.handshake()
        self._connects += 1
        logger.info("connected to master addr=%s offset=%d", link.peer_name, self._log.end)
        self._connected_s = self._last_read_s = time.monotonic()
        self._last_read_ms = self._clock_ms()
        self._check_sound()
        self._stand()
        if self._rejoin is not None:
            self._greet(link, address, self._rejoin)
            self._stand()
        self._last_read_s = time.monotonic()  # the master's silence counts from here
        self.state = SlaveState.TRANSFER
        self._report(link)
        self._transfer(link)

    def _stand(self) -> None:
        """Our log ends with a whole record, and the check stands there: what is unfinished is sent again."""
        whole = self._check.connect(self._log.end, self._boundary(), self._log.read)
        if whole < self._log.end:
            self._log.truncate(whole)
            self._check.stand_at(whole)

    # -- greeting -----------------------------------------------------------------------------------

    def _greet(self, link: Transport, address: str, rejoin: Rejoin) -> None:
        """Our log is one with the master's when it returns; or the master is a stock one, and stays silent.

        Raises GreetingRefused, or whatever else ends the connection.
        """
        greeting = rejoin.greeting()
        self._send(link, greeting.call())
        hello = self._peer_frame(link, KNOWN_S if address in self._ours else STRANGER_S)
        if hello is None:
            self._ours.pop(address, None)
            self._followed, self._lineage, self._master_end = False, STOCK_MASTER, -1
            return
        self._note_ours(address)
        try:
            answer = greeting.heed(_body(hello, HELLO_OFFSET))
            verdict = self._answered(link, answer)
            plan = greeting.settle(verdict)
        finally:
            if greeting.master is not None:
                self._followed = False
                self._master_end = greeting.master.log.end
                self._silence_s = silence_s(greeting.master.heartbeat_ms, self._housekeeping_s)
        if self._stopping or address != self._address:
            raise MasterClosed("we leave it")
        rejoin.carry_out(greeting)
        self._heard, self._last_error, self._unfollowed, self._followed = True, "", False, True
        self._unanswered = 0
        self._refusals.clear()
        self._lineage = f"one log with term {greeting.term} up to {plan.position}"
        logger.info("greeted by master addr=%s plan=%s offset=%d", address, plan.step.name, plan.position)

    def _answered(self, link: Transport, hello: bytes) -> bytes:
        self._send(link, hello)
        verdict = self._peer_frame(link, VERDICT_S)
        if verdict is None:
            raise TimeoutError(errno.ETIMEDOUT, "the master greets, but gives no verdict")
        return _body(verdict, VERDICT_OFFSET)

    def _peer_frame(self, link: Transport, patience_s: float) -> tuple[int, bytes] | None:
        """The next hello or verdict; None when something else comes, or nothing whole in time."""
        reader, until_s = self._reader, time.monotonic() + patience_s
        while True:
            frame = reader.peer_frame()
            left_s = until_s - time.monotonic()
            if frame is not None or reader.is_transfer or left_s <= 0:
                self._timeout_s = 0.0
                return frame
            link.set_receive_timeout(left_s)
            count = self._receive(link)
            if count == 0:
                raise MasterClosed(self._why_closed())
            if count > 0:
                self._last_read_s, self._last_read_ms = time.monotonic(), self._clock_ms()
                reader.received(count)

    def _note_ours(self, address: str) -> None:
        self._ours.pop(address, None)
        self._ours[address] = None
        if len(self._ours) > OURS_MAX:
            del self._ours[next(iter(self._ours))]

    # -- transfer -----------------------------------------------------------------------------------

    def _transfer(self, link: Transport) -> None:
        """Never returns.  Raises what ends the connection."""
        reader, log, check = self._reader, self._log, self._check
        while True:
            self._set_timeout(link)
            count = self._receive(link)
            now_s = time.monotonic()
            if count == 0:
                raise MasterClosed(self._why_closed())
            if count > 0:
                self._received(count, now_s)
                reader.received(count)
                for run in reader.runs(log.end):
                    self._append(run)
                self._master_end = max(self._master_end, log.end)
            if check.whole > self._reported or now_s - self._last_write_s >= self._heartbeat_s:
                self._report(link)
            if now_s - self._last_read_s > self._silence_s:
                raise TimeoutError(
                    errno.ETIMEDOUT, f"the master said nothing for {now_s - self._last_read_s:.1f} s"
                )

    def _receive(self, link: Transport) -> int:
        """How many bytes came into the reader's space: 0 at the end, -1 if none came in time."""
        try:
            return link.recv_into(self._reader.space())
        except BlockingIOError:
            return -1
        except ConnectionResetError:
            return 0

    def _append(self, run: Run) -> None:
        self._check_sound()
        if self._unfollowed and self._rejoin is not None:
            self._rejoin.follow_stock()
        self._unfollowed = False
        try:
            self._check.feed(run.offset, run.bodies)
        except BadRecord as bad:
            self._keep_up_to(bad.offset, run)
            raise
        end = self._log.append_replica(run.offset, run.bodies)
        assert end == run.end, (end, run.end)

    def _keep_up_to(self, offset: int, run: Run) -> None:
        """Ends the log where a bad record begins; what is whole before it stays, or is stored."""
        with suppress(CommitLogError):  # then the check finds the log elsewhere, and looks at it again
            if offset < self._log.end:
                self._log.truncate(offset)
            elif offset > run.offset:
                self._log.append_replica(run.offset, first_bytes(run.bodies, offset - run.offset))

    # -- the socket ---------------------------------------------------------------------------------

    def _connect(self, address: str) -> Transport | None:
        """A link that wake() and a new address shut down; None when one of them came first."""
        connection = dial(address, self._wakeup, lambda: self._stopping or address != self._address)
        if connection is None:
            return None
        link = PlainTransport(connection) if self._doors is None else self._doors.connected(connection)
        with self._lock:
            if self._stopping or address != self._address:
                link.close()
                return None
            self._link = link
        return link

    def _check_sound(self) -> None:
        damage = self._damage()
        if damage is not None:
            raise Damaged(f"this slave is damaged and follows no further: {damage}")

    def _report(self, link: Transport) -> None:
        self._check_sound()
        if self._flush is not None:
            self._flush()
        whole = self._check.whole
        self._send(link, REPORT.pack(whole))
        self._reported = whole
        self._last_write_s = time.monotonic()
        self._last_write_ms = self._clock_ms()

    def _send(self, link: Transport, data: bytes) -> None:
        try:
            while data:
                data = data[link.send(data) :]
        except BlockingIOError:
            raise TimeoutError(errno.ETIMEDOUT, "the master takes no reports") from None

    def _set_timeout(self, link: Transport) -> None:
        """Until a report is due, or a word of the master.  While bytes flow it stays, which spares a call."""
        due_s = min(self._last_write_s + self._heartbeat_s, self._last_read_s + self._silence_s)
        wanted_s = due_s - time.monotonic()
        if wanted_s < self._timeout_s * 0.9 or self._timeout_s < wanted_s * 0.9:
            link.set_receive_timeout(wanted_s)
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
        first = "call" if self.state is SlaveState.READY else f"first report of {self._reported}"
        return (
            f"closed by the master in answer to our {first}: it does not admit this "
            "address, or our log is no part of its own (ahead of its end, or below its start); see its log"
        )

    def _lost(self, address: str, error: Exception) -> None:
        text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        if self._stopping or address != self._address:
            logger.info("link to master ended addr=%s offset=%d", address, self._log.end)
            return
        self._last_error = text
        if isinstance(error, LateHello):
            self._note_ours(address)
        if isinstance(error, GreetingRefused):
            self._refused(address, error)
            return
        ended = isinstance(error, (MasterClosed, ConnectionResetError, BrokenPipeError))
        if ended and not self._heard and address in self._ours and self._unanswered <= WORDLESS_MAX:
            self._pause_s = AGAIN_S
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

    def _refused(self, address: str, error: GreetingRefused) -> None:
        """Told once, until a greeting succeeds again; an end that the master lost it takes back by itself."""
        self._lineage = f"refused: {error}"
        self._pause_s = AGAIN_PAUSE_S if error.again else REFUSED_PAUSE_S
        if (address, error.cause) not in self._refusals and len(self._refusals) < OURS_MAX:
            self._refusals.add((address, error.cause))
            logger.log(
                logging.WARNING if error.cause == Step.AHEAD.name else logging.ERROR,
                "the master's log and ours do not go together, nothing is taken addr=%s offset=%d reason=%s",
                *(address, self._log.end, error),
            )


def _body(frame: tuple[int, bytes], mark: int) -> bytes:
    """Raises ProtocolError if it is another frame."""
    if frame[0] != mark:
        raise ProtocolError(f"a greeting {frame[0]}, expected was {mark}")
    return frame[1]
