"""HAClient: the slave's thread, ha-client.  It carries out what its SlaveSession wants, and reports back.

    news (another master, stop) → else: wait for bytes or time → event → actions → …

HAClient receives into one buffer, checks transfer by transfer and record by record, and appends with one
write per segment and read; no byte is copied twice.
"""

from __future__ import annotations

import errno
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress

from commitlog.errors import CommitLogError
from commitlog.kernel import native
from commitlog.log.log import wall_clock_ms
from haservice.configuration.settings import ReplicationConfig
from haservice.errors import ProtocolError
from haservice.replication.rates_and_backoff import Backoff, RateMeter
from haservice.replication.slave.actions import (
    Action,
    Break,
    Close,
    Cut,
    Dial,
    EndAt,
    FlushLog,
    ForgetEpochs,
    LogLine,
    Send,
    StoreArrivals,
    StoreRuns,
)
from haservice.replication.slave.actions import RejoinMaster as DoRejoin
from haservice.replication.slave.arrivals import ArrivalsReader
from haservice.replication.slave.dial import dial, parse_address
from haservice.replication.slave.record_check import RecordCheck, first_bytes
from haservice.replication.slave.rejoin import IncomingCheck, Rejoin, ReplicaLog
from haservice.replication.slave.session import OBJECTION, OwnLogDamaged, SlaveSession
from haservice.replication.slave.shown_end import ShownEnd
from haservice.replication.slave.states import LINKED, State
from haservice.replication.status import MasterHeard, MasterLinkStatus
from haservice.replication.wire.hello import MasterHello
from haservice.replication.wire.protocol import Run, TransferReader
from haservice.replication.wire.secure import SecureDoors
from haservice.replication.wire.transport import PlainTransport, Transport
from haservice.replication.wire.wakeup import Wakeup

logger = logging.getLogger(__name__)

# What is received is metered this often.
METER_S = 0.02
# What our own disk says; all other errors of the system are the network's.
DISK = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)
NO_MASTER = "no master known: no nameserver has named one, and haMasterAddress is not set"


class HAClient:
    """The task of ha-client.  Any thread may call set_master_address(), regreet() and status(); the rest
    belongs to its thread.

    `damage` says what is wrong with us, if anything: then we neither append nor report.  `flush`, if given,
    is called before every report, so that reports speak of flushed bytes.  `boundary` says up to where our
    log is known to be whole records.  With a `rejoin`, masters of ours are greeted.  `objection` says why a
    master may not be followed, see SlaveSession.  `on_greeted` gets the address for clients of a master of ours once
    our log is one with its own; `on_lost` is called when the link to it has ended.
    `shown` is told what a master says to be acknowledged.
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
        check: IncomingCheck | None = None,
        objection: Callable[[MasterHello | None], str] = lambda _: "",
        on_lost: Callable[[], None] = lambda: None,
        on_greeted: Callable[[str], None] = lambda _: None,
        shown: ShownEnd | None = None,
    ) -> None:
        recovered_end = log.end
        boundary = boundary if boundary is not None else lambda: recovered_end
        self._arrivals = ArrivalsReader(log.segment_bytes) if native.core is not None else None
        self._reader = self._arrivals or TransferReader(log.segment_bytes)
        self._shown = shown
        self._session = SlaveSession(
            config,
            log,
            check if check is not None else RecordCheck(log.segment_bytes, boundary()),
            boundary=boundary,
            greet=rejoin.greeting if rejoin is not None else None,
            flushes=flush is not None,
            damage=damage,
            objection=objection,
            backoff=backoff,
            reader=self._reader,
        )
        self._log = log
        self._flush = flush
        self._rejoin = rejoin
        self._on_lost = on_lost
        self._on_greeted = on_greeted
        self._greeted = False  # by a master of ours, over the present link
        self._agreed = False  # the two logs were one, and since then nothing but our own log stood in the way
        self._apart = ""
        self._doors = doors
        self._clock_ms = clock_ms
        self._housekeeping_s = config.housekeeping_interval_ms / 1000
        self._wakeup = Wakeup()
        # Guards _address, _news, _stopping, _left and _link: whoever has news can shut a present link down.
        self._lock = threading.Lock()
        self._address: str | None = None
        self._news = False  # the session has to be told of _address
        self._stopping = False
        self._left = False  # set by _news or _stopping: how the link ends says nothing about the master
        self._link: Transport | None = None
        self._look_s = 0.0  # when the present link's receive timeout has to be set again
        self._now_s = time.monotonic()  # when something last happened
        # For status(); written by ha-client only.
        self._rate = RateMeter(time.monotonic())
        self._unmetered, self._meter_s = 0, 0.0
        self._last_read_s = self._last_write_s = 0.0  # 0: never

    # -- for others ---------------------------------------------------------------------------------

    @property
    def connected(self) -> bool:
        return self._session.state is State.TRANSFER

    @property
    def follows(self) -> bool:
        """Whether the master's log comes, or would if ours took it: the two logs are one."""
        return self._greeted or self.connected or self._agreed

    @property
    def why_apart(self) -> str:
        """Why the master's log does not come, if that is not the network's affair; else ""."""
        return "" if self.follows else self._apart

    @property
    def is_refused(self) -> bool:
        """Whether the master's log and ours were found not to be one, and have not been one since."""
        here = self._session.address
        return any(addr == here and why != OBJECTION for addr, why in tuple(self._session.refusals))

    @property
    def greeted_by(self) -> str:
        return self._session.greeted_by

    def set_master_address(self, address: str | None) -> None:
        """Follows `address` from now on; a link to another one is cut.  None changes nothing: a nameserver
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
            self._leave()
        self._wakeup.set()

    def regreet(self) -> None:
        """Leaves the present link and dials again: `objection` may have changed by now."""
        with self._lock:
            if self._address is not None:
                self._leave()
        self._wakeup.set()

    def _leave(self) -> None:
        assert self._lock.locked()
        self._news = self._left = True
        if self._link is not None:
            self._link.shut_down()

    @property
    def heard(self) -> MasterHeard:
        """What was heard of the master whose log is, or was, one with ours."""
        end = self._session.followed_end
        return MasterHeard(end, self._wall_ms(self._last_read_s)) if end >= 0 else MasterHeard()

    def status(self) -> MasterLinkStatus:
        now_s, session = time.monotonic(), self._session
        return MasterLinkStatus(
            master_addr=self._address or "",
            state=session.shown.value,
            offset=self._log.end,
            reported=session.reported,
            last_read_timestamp_ms=self._wall_ms(self._last_read_s),
            last_write_timestamp_ms=self._wall_ms(self._last_write_s),
            seconds_since_read=now_s - session.last_read_s if self._last_read_s else -1.0,
            bytes_per_second=self._rate.rate(now_s),
            connects=session.connects,
            last_error=session.last_error or ("" if self._address else NO_MASTER),
            master_end=session.master_end,
            lineage=session.lineage,
            software=session.master_software,
        )

    def _wall_ms(self, then_s: float) -> int:
        """When that was; 0 for never.  A read and a report on each message need no look at a second clock."""
        return self._clock_ms() - round((time.monotonic() - then_s) * 1000) if then_s else 0

    def wake(self) -> None:
        """For the owner that has set the stop flag: ends any wait of the thread."""
        with self._lock:
            self._stopping = self._left = True
            if self._link is not None:
                self._link.shut_down()
        self._wakeup.set()

    # -- the thread ---------------------------------------------------------------------------------

    def run(self, stop: threading.Event) -> None:
        session = self._session
        try:
            while not self._stopping:
                try:
                    if self._link is not None and not self._news:
                        self._do_all(self._receive(self._link))
                    else:
                        self._do_all(self._next_event())
                except (OSError, ProtocolError, CommitLogError) as error:
                    if not self._left:
                        self._note_lost(error)
                        self._do_all(session.lost(error, time.monotonic()))
        except Exception as error:
            self._broke_off(error)
            raise
        finally:
            if self._stopping:
                self._end()

    def _note_lost(self, error: Exception) -> None:
        """A disk that is full, or a log that is damaged, says nothing against the master.  After any other end there
        may be another one at its address.
        """
        is_network = isinstance(error, OSError) and error.errno not in DISK
        is_ours = not is_network and isinstance(error, (OSError, OwnLogDamaged, CommitLogError))
        self._agreed = self.follows and is_ours
        self._apart = "" if is_network else str(error)

    def _broke_off(self, error: Exception) -> None:
        """A mistake of ours ends the thread.  When it runs again, it dials again."""
        if self._session.state in (State.DIALLING, *LINKED):
            self._do_all(self._session.lost(error, time.monotonic()))
        self._close()

    def _end(self) -> None:
        try:
            self._do_all(self._session.stop())
        finally:
            self._close()
            self._wakeup.close()

    def _next_event(self) -> Sequence[Action]:
        """Without a link, or with news: waits for the next event, and tells the session."""
        if self._news:
            return self._told()
        wake_s = self._session.wake_s
        self._wakeup.wait(None if wake_s is None else wake_s - time.monotonic())
        return self._session.tick(time.monotonic())

    def _told(self) -> Sequence[Action]:
        with self._lock:
            self._news, self._left, address = False, self._stopping, self._address
        self._agreed, self._apart = False, ""
        assert address is not None
        return self._session.told(address)

    # -- what is to be done -------------------------------------------------------------------------

    def _do_all(self, actions: Sequence[Action]) -> None:
        """Carries out an event's actions, and what follows from them.  Raises what ends the connection."""
        while actions:
            following: Sequence[Action] = ()
            for action in actions:
                if type(action) is Send:
                    self._send(action.data)
                elif type(action) is StoreArrivals:
                    following = self._store_arrivals(action.whole)
                elif type(action) is StoreRuns:
                    following = self._store(action.runs)
                else:
                    following = self._do(action)
            actions = following

    def _store(self, runs: Sequence[Run]) -> Sequence[Action]:
        append = self._log.append_replica
        for offset, bodies, end, _ in runs:
            appended_to = append(offset, bodies)
            assert appended_to == end, (appended_to, end)
        self._now_s = now_s = time.monotonic()
        return self._session.stored(now_s)

    def _store_arrivals(self, whole: int) -> Sequence[Action]:
        arrivals, begin = self._arrivals, self._log.end
        assert arrivals is not None
        before = arrivals.received_bytes
        end = self._log.append_arrivals(arrivals, whole)
        self._unmetered += arrivals.received_bytes - before
        self._now_s = now_s = time.monotonic()
        return self._session.taken(begin, end, now_s)

    def _do(self, action: Action) -> Sequence[Action]:
        """Carries out an action, except those of every turn; returns what the session wants done next."""
        session, log = self._session, self._log
        match action:
            case FlushLog():
                assert self._flush is not None
                self._flush()
                self._now_s = now_s = time.monotonic()
                return session.flushed(now_s)
            case Dial(address):
                return self._dial(address)
            case Close():
                self._close()
                if self._greeted:
                    self._greeted = False
                    self._on_lost()
            case Cut(offset):
                log.truncate(offset)
            case EndAt(offset, run):
                self._end_at(offset, run)
            case ForgetEpochs():
                assert self._rejoin is not None
                self._rejoin.follow_stock()
                if self._shown is not None:
                    self._shown.untold()
            case DoRejoin():
                return self._do_rejoin(action)
            case Break(error):
                raise error
            case LogLine(level, text, values):
                logger.log(level, text, *values)
        return ()

    def _end_at(self, offset: int, run: Run) -> None:
        with suppress(CommitLogError):
            if offset < self._log.end:
                self._log.truncate(offset)
            elif offset > run.offset:
                self._log.append_replica(run.offset, first_bytes(run.bodies, offset - run.offset))

    def _do_rejoin(self, action: DoRejoin) -> Sequence[Action]:
        assert self._rejoin is not None
        if self._left:
            return ()
        plan, master = action.greeting.plan, action.greeting.master
        assert plan is not None
        assert master is not None
        self._agreed = True
        self._rejoin.carry_out(action.greeting)
        self._greeted = True
        if self._shown is not None:
            self._shown.rejoined(plan.position, master.acknowledged)
            self._reader.on_mark = self._shown.told
        self._on_greeted(master.broker_addr)
        logger.info(
            "greeted by master addr=%s plan=%s offset=%d",
            *(self._session.address, plan.step.name, plan.position),
        )
        return self._session.rejoined(time.monotonic())

    # -- the socket ---------------------------------------------------------------------------------

    def _dial(self, address: str) -> Sequence[Action]:
        """Makes a link that wake() and a new address can shut down; none if one of them came first."""
        connection = dial(address, self._wakeup, lambda: self._left)
        if connection is None:
            return ()
        link = PlainTransport(connection) if self._doors is None else self._doors.connected(connection)
        with self._lock:
            if self._left:
                link.close()
                return ()
            self._link, self._look_s = link, 0.0
        if self._arrivals is not None:
            self._arrivals.socket = link.prompt.fileno() if link.prompt is not None else None
        self._session.reached()
        link.set_send_timeout(self._housekeeping_s)
        link.handshake()
        logger.info("connected to master addr=%s offset=%d", link.peer_name, self._log.end)
        self._last_read_s = time.monotonic()
        return self._session.connected(time.monotonic())

    def _receive(self, link: Transport) -> Sequence[Action]:
        session = self._session
        if self._now_s >= self._look_s:
            self._set_timeout(link)
        try:
            count = link.recv_into(session.space())
        except BlockingIOError:
            self._now_s = now_s = time.monotonic()
            return session.tick(now_s)
        except ConnectionResetError:
            count = 0
        self._now_s = now_s = time.monotonic()
        if self._left:
            return ()
        if count == 0:
            return session.closed(now_s)
        self._last_read_s = now_s
        self._unmetered += count
        if now_s >= self._meter_s:
            self._rate.add(self._unmetered, now_s)
            self._meter_s, self._unmetered = now_s + METER_S, 0
        return session.received(count, now_s)

    def _set_timeout(self, link: Transport) -> None:
        """Until the session wants to be woken.  While bytes flow, that is no sooner than a tenth later."""
        wake_s = self._session.wake_s
        assert wake_s is not None
        self._now_s = now_s = time.monotonic()
        timeout_s = wake_s - now_s
        flows = self._session.state is State.TRANSFER
        self._look_s = now_s + timeout_s / 10 if flows else 0.0
        link.set_receive_timeout(timeout_s)

    def _send(self, data: bytes) -> None:
        assert self._link is not None
        try:
            while data:
                data = data[self._link.send(data) :]
        except BlockingIOError:
            raise TimeoutError(errno.ETIMEDOUT, "the master reads no reports") from None
        self._last_write_s = self._now_s

    def _close(self) -> None:
        with self._lock:
            link, self._link = self._link, None
            if link is not None:
                link.close()
