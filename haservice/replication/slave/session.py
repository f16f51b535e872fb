"""SlaveSession: how a slave follows its masters, over all its connections.  Pure: events in, actions out.

    told → dial → greet → rejoin → report our end → check → store → report → …   trouble: close, pause, again

The slave greets a master of ours first, and makes its log one with the master's: greeting.py, rejoin.py.  One
that stays silent is a stock master, and the classic rules hold.  A report names the end of the whole records
that the log holds when the report is sent, never more.

Every timer of a slave's connection is here; states.py has the table of its states and moves.  Nothing here
touches a socket, a thread, a file or a clock.  Times are seconds of one clock, handed in with the events.
Greetings and checks read the log with functions of their own; only actions (actions.py) change it.

An event that raises ends the connection, as a failed action does: lost() has to be told.  Each of these
actions is answered once it is done: Dial by reached() and connected(), Store by stored(), Flush by flushed(),
Rejoin by rejoined().  When `wake_s` has come and nothing else has, tick() is due.
"""

from __future__ import annotations

import errno
import logging
from collections.abc import Callable, Sequence
from socket import gaierror

from commitlog.errors import CommitLogError
from haservice.configuration.settings import ReplicationConfig
from haservice.errors import ProtocolError
from haservice.log_throttle import LogThrottle
from haservice.replication.lineage.epochs import Step
from haservice.replication.rates_and_backoff import Backoff, silence_s
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
    RejoinMaster,
    Send,
    StoreArrivals,
    StoreRuns,
)
from haservice.replication.slave.dial import AGAIN_S
from haservice.replication.slave.record_check import BadRecord
from haservice.replication.slave.rejoin import IncomingCheck
from haservice.replication.slave.states import LINKED, SHOWN, TRANSITIONS, Event, State
from haservice.replication.wire.greeting import GreetedLog, GreetingRefused, SlaveGreeting
from haservice.replication.wire.hello import HELLO_OFFSET, VERDICT_OFFSET, MasterHello
from haservice.replication.wire.protocol import (
    REPORT,
    REPORT_NOT_YET,
    LateHello,
    Run,
    SlaveState,
    TransferReader,
)

# Bytes flow again within 100 ms of a cut.  A master that takes a connection and ends it is asked ever less
# often.  One that is unreachable costs a packet, so it is asked on and on, to be found as soon as it is back.
# One of ours that ends without a word may be a proxy that waits for the master: it is asked as soon again,
# this often.
RETRY_FIRST_S = 0.05
RETRY_MAX_S = 5.0
WORDLESS_MAX = 600
# A master not known to be ours has so long to answer a call; one known to be ours may be busy.
STRANGER_S = 0.2
KNOWN_S = 3.0
# The master reads the digest's bytes from its disk.
VERDICT_S = 5.0
# What cannot be reconciled does not change within a second; what a master is repairing does.
REFUSED_PAUSE_S, AGAIN_PAUSE_S = 5.0, 1.0
_TRANSFER = State.TRANSFER  # to look it up for each transfer takes ten times as long
STOCK_MASTER = "a stock master: offsets are compared, nothing else"
REFUSED, OBJECTION = "refused: ", "OBJECTION"
# So many addresses of our masters are remembered.
OURS_MAX = 64
# A connection that lasted so long, or brought bytes, was a good one: the next try comes soon.
GOOD_LIFE_S = 1.0
# The log tells one cause of trouble this often at most.
TELL_S = 10.0
# A master that turns into a slave, or stops and starts again, refuses connections for a moment: no trouble yet.
TURN_S = 3.0


class MasterClosed(ConnectionError):
    """The master ended the connection."""


class OwnLogDamaged(ProtocolError):
    """We hold bytes that we cannot serve: if we acked more, others would rely on us."""


class SlaveSession:
    """Owned by one thread; any thread may read the attributes without an underscore.

    `greet` makes the greeting of a new connection; without it nobody is greeted.  `boundary` says up to where
    the log is known to be whole records.  With `flushes`, reports speak of flushed bytes.  `damage` says what
    is wrong with us, if anything: then nothing is stored or reported.

    `objection(hello)` says why this master (None: a stock one) may not be followed, or "".  The session asks
    it once the verdict is there, then before everything that it stores or reports, and last right before a
    report goes out, after all that the report covers.  So whoever makes it object, and then reads the log's
    end, knows every byte that this slave will ever have acknowledged to that master.
    """

    def __init__(
        self,
        config: ReplicationConfig,
        log: GreetedLog,
        check: IncomingCheck,
        *,
        boundary: Callable[[], int],
        greet: Callable[[], SlaveGreeting] | None = None,
        flushes: bool = False,
        damage: Callable[[], str | None] = lambda: None,
        objection: Callable[[MasterHello | None], str] = lambda _: "",
        backoff: Backoff | None = None,
        reader: TransferReader | None = None,
    ) -> None:
        self.state = State.IDLE
        self.address: str | None = None
        """The master that it follows, or tries to."""
        self.reported = REPORT_NOT_YET
        self.last_error = ""
        self.connects = 0
        self.lineage = ""
        """The outcome of the last greeting, for people."""
        self.master_end = -1
        """The furthest end of its log that the master has told or sent; -1 if unknown."""
        self.followed_end = -1
        """The same, only for a log that is one with ours; else -1."""
        self.last_read_s = 0.0
        self._log = log
        self._check = check
        self._boundary = boundary
        self._greet = greet
        self._report = self._flush_first if flushes else self.flushed
        self._damage = damage
        self._objection = objection
        self._heartbeat_s = config.heartbeat_interval_ms / 1000
        self._housekeeping_s = config.housekeeping_interval_ms / 1000
        self._backoff = backoff if backoff is not None else Backoff(RETRY_FIRST_S, RETRY_MAX_S)
        self._reader = reader if reader is not None else TransferReader(log.segment_bytes)
        self.space = self._reader.space
        """space(): where to receive next; what was received stays in place until then."""
        self._throttle = LogThrottle(TELL_S)
        # Masters that have greeted us, newest last; why greetings were refused since the last good one.
        self._ours: dict[str, None] = {}
        self.refusals: set[tuple[str, str]] = set()
        self._unanswered = 0  # connections in a row that the master ended without a word
        self._away_s: float | None = None  # since when the master has ended its link, or refuses one
        self._until_s = 0.0  # when a pause is over, or what a greeting waits for is due
        # For the present connection.
        self._greeting: SlaveGreeting | None = None
        self._started_end = 0
        self._connected_s: float | None = None
        self._heard = False
        self._unfollowed = False  # nothing from a stock master was stored yet
        self._last_write_s = 0.0
        self._silence_s = self._housekeeping_s
        self._bad: tuple[BadRecord, Run] | None = None

    @property
    def greeted_by(self) -> str:
        """The broker address of the master of ours whose log is coming; "" if none is, or a stock one's."""
        return master.broker_addr if (master := self._master) is not None else ""

    @property
    def master_software(self) -> str:
        """Its version of haservice; "" if it does not say one."""
        return master.software if (master := self._master) is not None else ""

    @property
    def _master(self) -> MasterHello | None:
        greeting = self._greeting  # once, as by who asks: for other threads it may be gone a moment later
        return greeting.master if greeting is not None and self.state is State.TRANSFER else None

    @property
    def shown(self) -> SlaveState:
        return SHOWN[self.state]

    @property
    def whole(self) -> int:
        """Where the last whole record ends; reports go up to there."""
        return self._check.whole

    @property
    def wake_s(self) -> float | None:
        """When tick() is due; None if an event has to come first."""
        if self.state is State.TRANSFER:
            report_s, silent_s = self._last_write_s + self._heartbeat_s, self.last_read_s + self._silence_s
            return report_s if report_s < silent_s else silent_s
        return self._until_s if self.state in (State.PAUSE, State.GREETING, State.VERDICT) else None

    def _move(self, event: Event) -> None:
        self.state = TRANSITIONS[self.state][event]

    # -- whom to follow -----------------------------------------------------------------------------

    def told(self, address: str) -> Sequence[Action]:
        """Follows `address` from now on.  Any present link ends, even one to the same address."""
        ending = self._leave()
        self._move(Event.TOLD)
        if address != self.address:
            self.address, self._away_s = address, None
        self._backoff.succeeded()
        return [*ending, *self._dial()]

    def stop(self) -> Sequence[Action]:
        ending = self._leave()
        self._move(Event.STOP)
        return ending

    def _leave(self) -> Sequence[Action]:
        if self.state not in LINKED:
            return ()
        ended = LogLine(logging.INFO, "link to master ended addr=%s offset=%d", (self.address, self._log.end))
        return (ended, Close())

    def _dial(self) -> Sequence[Action]:
        assert self.address is not None
        self._started_end, self._connected_s = self._log.end, None
        return (Dial(self.address),)

    # -- a connection begins ------------------------------------------------------------------------

    def reached(self) -> None:
        """The connection is made; a later failure has another cause than an unreachable master."""
        self._move(Event.REACHED)

    def connected(self, now_s: float) -> Sequence[Action]:
        """Bytes may go both ways.  Raises what ends the connection."""
        self._move(Event.CONNECTED)
        self.connects += 1
        self._connected_s = self.last_read_s = now_s
        self._away_s = None
        self._silence_s = self._housekeeping_s
        self._heard, self._unfollowed, self._bad = False, True, None
        self._reader.reset()
        self._check_sound()
        cut = self._stand()
        self._greeting = self._greet() if self._greet is not None else None
        if self._greeting is None:
            self._move(Event.NO_HELLO)
            return [*cut, *self._begin(now_s)]
        self._until_s = now_s + (KNOWN_S if self.address in self._ours else STRANGER_S)
        return [*cut, Send(self._greeting.call())]

    def _stand(self) -> Sequence[Action]:
        """Cuts our log to its last whole record, and sets the check there: the rest is sent again."""
        whole = self._check.connect(self._log.end, self._boundary(), self._log.read)
        if whole == self._log.end:
            return ()
        self._check.stand_at(whole)
        return (Cut(whole),)

    def _begin(self, now_s: float) -> Sequence[Action]:
        """The first report; bytes of the log are expected from here."""
        self.last_read_s = now_s  # the master's silence counts from here
        return self._report(now_s)

    # -- greeting -----------------------------------------------------------------------------------

    def _hear_greeting(self, now_s: float) -> Sequence[Action]:
        greeting, heard = self._greeting, self._reader.greeting()
        assert greeting is not None
        if heard is None:
            return self._no_word(now_s) if self._reader.is_transfer or now_s >= self._until_s else ()
        if self.state is State.VERDICT:
            return self._settle(greeting, _body(heard, VERDICT_OFFSET))
        self._note_ours()
        self._move(Event.HELLO)
        self._until_s = now_s + VERDICT_S
        try:
            answer = greeting.on_hello(_body(heard, HELLO_OFFSET))
        finally:
            if greeting.master is not None:
                self.followed_end = -1
                self.master_end = greeting.master.log.end
                self._silence_s = silence_s(greeting.master.heartbeat_ms, self._housekeeping_s)
        return (Send(answer), *self._hear_greeting(now_s))

    def _no_word(self, now_s: float) -> Sequence[Action]:
        """Something else came, or nothing whole came in time."""
        if self.state is State.VERDICT:
            raise TimeoutError(errno.ETIMEDOUT, "the master greets, but gives no verdict")
        assert self.address is not None
        stands_still = self._ours.pop(self.address, False) is None and not self._reader.is_transfer
        self.followed_end, self.master_end = -1, self.master_end if stands_still else -1
        self.lineage = STOCK_MASTER
        self._move(Event.NO_HELLO)
        return [*self._stand(), *self._begin(now_s)]

    def _settle(self, greeting: SlaveGreeting, verdict: bytes) -> Sequence[Action]:
        greeting.on_verdict(verdict)
        self._check_welcome()
        self._move(Event.ACCEPTED)
        return (RejoinMaster(greeting),)

    def rejoined(self, now_s: float) -> Sequence[Action]:
        """Our log is now one with the master's.  Raises what ends the connection."""
        greeting = self._greeting
        assert greeting is not None
        assert greeting.plan is not None
        self._move(Event.REJOINED)
        self._heard, self.last_error, self._unfollowed = True, "", False
        self._unanswered = 0
        self.refusals.clear()
        self.lineage = f"one log with epoch {greeting.epoch} up to {greeting.plan.position}"
        self.followed_end = self.master_end
        return [*self._stand(), *self._begin(now_s)]

    def _note_ours(self) -> None:
        assert self.address is not None
        self._ours.pop(self.address, None)
        self._ours[self.address] = None
        if len(self._ours) > OURS_MAX:
            del self._ours[next(iter(self._ours))]

    # -- what comes ---------------------------------------------------------------------------------

    def received(self, count: int, now_s: float) -> Sequence[Action]:
        """`count` bytes were received into the space.  Raises what ends the connection."""
        self.last_read_s = now_s
        if self.state is not _TRANSFER:
            self._reader.received(count)
            return self._hear_greeting(now_s)
        if not self._heard:
            self._heard, self.last_error, self._unanswered = True, "", 0
        if self._reader.writes and not self._unfollowed:
            self._check_allowed()
            self._reader.received(count)
            return (StoreArrivals(self._check.whole),)
        end = self._log.end
        runs = self._reader.runs(end, count, self._check.whole == end)
        return self._take(runs) if runs else self.stored(now_s)

    def taken(self, begin: int, end: int, now_s: float) -> Sequence[Action]:
        """The log took what was sound of the arrivals, from `begin` to `end`.  Raises what ends the connection."""
        if end != begin:
            self._check.passed(self._check.whole, end)
        runs = [] if self._reader.is_empty else self._reader.runs(end)
        return self._take(runs) if runs else self.stored(now_s)

    def _take(self, runs: Sequence[Run]) -> Sequence[Action]:
        """Stores what is sound in the runs."""
        self._check_allowed()
        passed, feed = self._check.passed, self._check.feed
        for number, run in enumerate(runs):
            offset, bodies, end, whole = run
            if whole == end and passed(offset, end):
                continue
            try:
                feed(offset, bodies)
            except BadRecord as bad:
                self._bad = (bad, run)
                runs = runs[:number]
                break
        if not self._unfollowed:
            return (StoreRuns(runs),)
        self._unfollowed = False
        return (ForgetEpochs(), StoreRuns(runs)) if self._greet is not None else (StoreRuns(runs),)

    def stored(self, now_s: float) -> Sequence[Action]:
        """Everything that was to be stored is stored.  Raises what ends the connection."""
        if self._bad is not None:
            bad, run = self._bad
            return (EndAt(bad.offset, run), Break(bad))
        end = self._log.end
        self.master_end = max(self.master_end, end)
        if self.followed_end >= 0:
            self.followed_end = self.master_end
        due = self._check.whole > self.reported or now_s >= self._last_write_s + self._heartbeat_s
        return self._report(now_s) if due else ()

    # -- what goes ----------------------------------------------------------------------------------

    def _flush_first(self, now_s: float) -> Sequence[Action]:
        self._check_sound()
        return (FlushLog(),)

    def flushed(self, now_s: float) -> Sequence[Action]:
        """What is stored is flushed, too.  Raises what ends the connection."""
        self._check_allowed()
        self.reported = self._check.whole
        self._last_write_s = now_s
        return (Send(REPORT.pack(self.reported)),)

    def tick(self, now_s: float) -> Sequence[Action]:
        """Time has passed.  Raises what ends the connection."""
        if self.state is State.PAUSE and now_s >= self._until_s:
            self._move(Event.PAUSED)
            return self._dial()
        if self.state in (State.GREETING, State.VERDICT):
            return self._hear_greeting(now_s)
        if self.state is not State.TRANSFER:
            return ()
        if now_s >= self.last_read_s + self._silence_s:
            silent = f"the master said nothing for {now_s - self.last_read_s:.1f} s"
            raise TimeoutError(errno.ETIMEDOUT, silent)
        return self._report(now_s) if now_s >= self._last_write_s + self._heartbeat_s else ()

    def _check_allowed(self) -> None:
        """Raises Damaged if we are damaged, GreetingRefused if this master may not be followed."""
        if self._damage() is not None:
            self._check_sound()
        greeting = self._greeting
        if self._objection(greeting.master if greeting is not None else None):
            self._check_welcome()

    def _check_sound(self) -> None:
        damage = self._damage()
        if damage is not None:
            raise OwnLogDamaged(f"this slave is damaged and follows no further: {damage}")

    def _check_welcome(self) -> None:
        """Raises GreetingRefused if this master may not be followed."""
        reason = self._objection(self._greeting.master if self._greeting is not None else None)
        if reason:
            raise GreetingRefused(OBJECTION, reason, again=True)

    # -- what went wrong ----------------------------------------------------------------------------

    def closed(self, now_s: float) -> Sequence[Action]:
        """The master has ended the link."""
        return self.lost(MasterClosed(self._why_closed()), now_s)

    def _why_closed(self) -> str:
        if self._heard:
            return "closed by the master"
        self._unanswered += 1
        first = f"first report of {self.reported}" if self.state is State.TRANSFER else "call"
        return (
            f"closed by the master in answer to our {first}: this is not its HA port (haListenPort, or listenPort + 1),"
            " it does not admit this address, or our log is no part of its own (ahead of its end, or below its start);"
            " see its log"
        )

    def lost(self, error: Exception, now_s: float) -> Sequence[Action]:
        """The connection, or the try to make one, has failed: the next try comes after a pause."""
        assert self.address is not None
        pause_s = self._pause_of(error)
        lived_s = now_s - self._connected_s if self._connected_s is not None else 0.0
        if self._log.end > self._started_end or lived_s >= GOOD_LIFE_S:
            self._backoff.succeeded()
        self._until_s = now_s + (pause_s if pause_s is not None else self._backoff.next_s())
        self._move(Event.LOST)
        self.last_error = (error.strerror if isinstance(error, OSError) else None) or str(error)
        if isinstance(error, LateHello):
            self._note_ours()
        if isinstance(error, GreetingRefused):
            return (*self._refused(error), Close())
        return (*self._told_trouble(error, now_s), Close())

    def _pause_of(self, error: Exception) -> float | None:
        """The pause that this error asks for; None: as the backoff says."""
        if isinstance(error, GreetingRefused):
            return AGAIN_PAUSE_S if error.again else REFUSED_PAUSE_S
        if self.state is State.DIALLING:
            return AGAIN_S if isinstance(error, OSError) and not isinstance(error, gaierror) else None
        ended = isinstance(error, (MasterClosed, ConnectionResetError, BrokenPipeError))
        wordless = ended and not self._heard and self.address in self._ours
        return AGAIN_S if wordless and self._unanswered <= WORDLESS_MAX else None

    def _told_trouble(self, error: Exception, now_s: float) -> Sequence[Action]:
        # The first end without a word may be a cut; by the second one the master refuses us, which is told once.
        grave = isinstance(error, (ProtocolError, CommitLogError)) or self._unanswered > 1
        level = logging.ERROR if grave else logging.WARNING
        if isinstance(error, MasterClosed) and self._heard:
            self._away_s, level = now_s, logging.INFO
        elif isinstance(error, ConnectionRefusedError):
            self._away_s = now_s if self._away_s is None else self._away_s
            if now_s < self._away_s + TURN_S:
                return ()
        is_told = isinstance(error, MasterClosed) and self._unanswered > 2
        if is_told or not self._throttle.ready(f"{self.address} {level} {type(error).__name__}", now_s):
            return ()
        text = "link to master lost, trying again addr=%s offset=%d reason=%s"
        return (LogLine(level, text, (self.address, self._log.end, self.last_error)),)

    def _refused(self, error: GreetingRefused) -> Sequence[Action]:
        """Says so once, until a greeting succeeds again; as a WARNING what passes by itself."""
        assert self.address is not None
        self.lineage, told = f"{REFUSED}{error}", (self.address, error.cause)
        if told in self.refusals or len(self.refusals) >= OURS_MAX:
            return ()
        self.refusals.add(told)
        level = logging.WARNING if error.again or error.cause == Step.AHEAD.name else logging.ERROR
        text = "the master's log and ours do not go together, nothing is taken addr=%s offset=%d reason=%s"
        return (LogLine(level, text, (self.address, self._log.end, error)),)


def _body(heard: tuple[int, bytes], mark: int) -> bytes:
    """The body of what was heard.  Raises ProtocolError if it is not what `mark` stands for."""
    if heard[0] != mark:
        raise ProtocolError(f"a greeting {heard[0]}, expected was {mark}")
    return heard[1]
