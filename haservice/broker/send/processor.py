"""Sending: requests 10, 310 and 320, from the bytes of a read to the answers.

    sends of one read, or of one turn of the loop ─▶ admission ─▶ one append ─▶ one wait for proofs ─▶ answers

The processor handles all sends of one read together: one lock, one write, one wake-up of those who follow
the log, and one wait for all of them if the mode asks for proofs.  When several connections send at the same
time, it gathers their sends for one turn of the loop and handles them together as well: 64 clients with one
message each cost little more than one with 64.  A single sender does not pay for that: the processor handles
its sends where they were read.

Most sends are plain.  With the native code (fast_sends.py) they go a shorter way: `take` gathers them as
bytes, with the same limits, turns and waits.  In each turn the short way's sends are stored first.  To keep
the order within a connection, `take` takes none of a connection that has others gathered.

Everything runs on the remoting loop.  An error of one message answers only that message.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from commitlog.errors import CommitLogError, LogNotWritable, MessageBeyondLimits
from commitlog.kernel.records import NewMessage
from commitlog.log.log import Appended, BatchAppended, wall_clock_ms
from haservice.broker.delay.redirect import Redirected
from haservice.broker.send.admission import Admission
from haservice.broker.send.durability import Durability, PutStatus, Wait
from haservice.broker.send.fast_sends import NOT_YET, FastSends, as_request
from haservice.broker.send.fast_sends import AppendAnswers as RunAnswers
from haservice.broker.stats.counters import Stats
from haservice.broker.topics.table import HALF_TOPIC
from haservice.errors import RequestError
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.dispatch import FastPath

logger = logging.getLogger(__name__)

BUSY_REMARK = "[REJECTREQUEST]system busy, start flow control for a while"
OVERLOAD_REMARK = "[OVERLOAD]system busy, start flow control for a while"

# Two connections that send within this time send at the same time: a turn of the loop takes as long.
CROWD_S = 0.0002
# After so many turns with one connection alone, its sends are no longer gathered.
CROWD_TURNS = 16

# Looked up for each turn otherwise, which takes ten times as long.
_PUT_OK = PutStatus.PUT_OK

# (place among the answers, request, message, whether its answer waits for proofs)
Send = tuple[int, RemotingCommand, NewMessage, bool]
Answers = list[RemotingCommand | None]


class Log(Protocol):
    """The commit log, as far as sends use it."""

    def append_many(self, messages: Sequence[NewMessage]) -> Sequence[Appended | CommitLogError]: ...

    def append_batch(self, message: NewMessage) -> BatchAppended: ...

    @property
    def lock_held_since(self) -> float: ...

    @property
    def writable(self) -> str | None: ...


class SendLimits(NamedTuple):
    """When the broker takes no sends at all, and what every answer tells clients besides."""

    region_id: str
    trace_on: bool
    start_accept_timestamp_ms: int
    page_cache_busy_s: float
    max_pending_sends: int
    is_slave: bool


def trace_of(send_limits: SendLimits) -> dict[str, str]:
    """The fields of every answer to a send, errors included."""
    return {"MSG_REGION": send_limits.region_id, "TRACE_ON": "true" if send_limits.trace_on else "false"}


class SendProcessor:
    """Answers sends; `refuse_all` is the reason to take none, or None."""

    def __init__(
        self,
        send_limits: SendLimits,
        admission: Admission,
        log: Log,
        durability: Durability,
        stats: Stats,
        *,
        store_host: bytes,
        fast: FastSends | None = None,
        on_half: Callable[[int, RemotingCommand], None] = lambda queue_offset, request: None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        why_shut: Callable[[], str] = lambda: "",
    ) -> None:
        """`fast` is the short way, for the same log, if there is one.

        `on_half` is called with each half message that was stored, and with the request that brought it.
        `why_shut` says why a master takes no message at this moment; "" if it does.
        """
        self._send_limits = send_limits
        self._admission = admission
        self._log = log
        self._durability = durability
        self._stats = stats
        self._fast = fast
        self._on_half = on_half
        self._clock_ms = clock_ms
        self._why_shut = why_shut
        self._id_prefix = store_host.hex().upper()
        self._trace = trace_of(send_limits)
        self.refuse_all: str | None = None
        # Sends whose answer waits for a proof.
        self.pending = 0
        # Gathered in this turn of the loop, by connection, in the order of arrival; the connections of these
        # requests; and all connections that have sent, the short way or this one.
        self._gathered: list[tuple[Connection, Sequence[RemotingCommand]]] = []
        self._requesters: set[Connection] = set()
        self._senders: set[Connection] = set()
        # Turns left in which sends are gathered; 0 while there is one sender at a time.
        self._crowd = 0
        self._last_connection: Connection | None = None
        self._last_s = float("-inf")

    def handlers(self) -> dict[int, SendProcessor]:
        return dict.fromkeys(
            (RequestCode.SEND_MESSAGE, RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE), self
        )

    def configure(self, send_limits: SendLimits) -> None:
        """Sets other limits from the next send on."""
        self._send_limits = send_limits
        self._trace = trace_of(send_limits)
        if self._fast is not None:
            self._fast.answer_with(self._trace)

    def refuse(self, reason: str | None) -> None:
        """Takes no send from now on, for that reason; None ends it.  Any thread."""
        self.refuse_all = reason

    def settled(self, status: PutStatus, sends: int) -> None:
        """So many waiting sends have this status now."""
        self.pending -= sends
        if status:
            self._stats.lack_proof(status, sends)

    @property
    def fast_path(self) -> FastPath | None:
        """This processor itself, if there is a short way."""
        return self if self._fast is not None else None

    def take(self, connection: Connection, data: bytes) -> int:
        """Gathers or stores the plain sends that `data` begins with; returns how many bytes they are."""
        fast = self._fast
        if fast is None or connection in self._requesters:
            return 0
        run = fast.run
        taken = 0
        while run.count or self._begin_run(fast):
            taken = fast.take(connection, data, taken)
            if not run.full:
                break
            self._append_run()
        if taken and run.count:
            if self._crowded(connection):
                self._gather(connection)
            else:  # nothing was gathered: these passed the limits just now
                self._answer_run(*fast.append())
                if self.pending == 1:
                    self._durability.await_ack()
        return taken

    def _begin_run(self, fast: FastSends) -> bool:
        """Whether the short way is open for this turn.  What it gathers meets the limits again before it is
        stored."""
        limits = self._send_limits
        most = limits.max_pending_sends - self.pending
        if most <= 0 or self._unwritable() is not None:
            return False
        if (self._log.lock_held_since or limits.start_accept_timestamp_ms) and self._busy(1) is not None:
            return False
        fast.begin(most)
        return True

    def process_batch(self, connection: Connection, requests: Sequence[RemotingCommand]) -> Answers:
        """The answers to these sends, in their order; None for an answer that is sent later, or never."""
        if not self._crowded(connection):
            return self._handle([(connection, request) for request in requests])
        self._gather(connection)
        self._requesters.add(connection)
        self._gathered.append((connection, requests))
        return [None] * len(requests)

    # One sender or many

    def _crowded(self, connection: Connection) -> bool:
        now_s = time.monotonic()
        if connection is not self._last_connection:
            if now_s - self._last_s < CROWD_S:
                self._crowd = CROWD_TURNS
            self._last_connection = connection
        self._last_s = now_s
        return self._crowd > 0

    def _gather(self, connection: Connection) -> None:
        if not self._senders:
            asyncio.get_running_loop().call_soon(self._handle_turn)
        self._senders.add(connection)

    def _handle_turn(self) -> None:
        """Runs before the loop reads again, so no connection's sends overtake its earlier ones."""
        senders, self._senders, self._requesters = self._senders, set(), set()
        gathered, self._gathered = self._gathered, []
        if len(senders) == 1:
            self._crowd -= 1
        try:
            self._append_run()
        finally:  # a mistake of ours in those is none of these
            if gathered:
                self._handle_gathered(gathered)

    def _handle_gathered(self, gathered: list[tuple[Connection, Sequence[RemotingCommand]]]) -> None:
        sends = [(connection, request) for connection, requests in gathered for request in requests]
        try:
            answers = self._handle(sends)
        except Exception as error:
            logger.exception("sends failed count=%d", len(sends))
            fault = RequestError(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
            answers = [self._refuse(request, fault) for _, request in sends]
        for (connection, request), answer in zip(sends, answers, strict=True):
            if answer is not None and not request.is_oneway:
                connection.send(answer)

    # From requests to answers

    def _handle(self, sends: Sequence[tuple[Connection, RemotingCommand]]) -> Answers:
        refused = self._busy(len(sends))
        if refused is not None:
            return [self._refuse(request, refused) for _, request in sends]
        answers: Answers = [None] * len(sends)
        unwritable = self._unwritable()
        admit = self._admission.message
        stored = _Stored(answers)
        singles: list[Send] = []
        for index, (connection, request) in enumerate(sends):
            try:
                message, wait, batch = admit(connection.peer_host, request, unwritable)
            except RequestError as error:
                answers[index] = self._refuse(request, error)
                continue
            if batch:
                # Messages before a batch must be before it in the log, too.
                self._append_singles(singles, stored)
                singles = []
                self._append_batch((index, request, message, wait), stored)
            else:
                singles.append((index, request, message, wait))
        self._append_singles(singles, stored)
        if stored.waiting:
            self._seek_proofs(stored, sends)
        if status := self._durability.released(_PUT_OK):
            for answer in answers:
                if answer is not None and answer.code == PutStatus.PUT_OK:
                    answer.code = status
        return answers

    def _append_run(self) -> None:
        """Stores and answers what went the short way."""
        fast = self._fast
        if fast is None or not fast.run.count:
            return
        refused = self._busy(fast.run.count)
        unwritable = self._unwritable()
        if refused is None and unwritable is not None:
            refused = RequestError(
                ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {unwritable}"
            )
        self._answer_run(*fast.append(refused))

    def _lost(self, error: Exception | None) -> RequestError:
        if isinstance(error, RequestError):
            return error
        if isinstance(error, CommitLogError):
            return self._put_failed(error)
        return RequestError(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")

    def _answer_run(
        self, answers: RunAnswers, lost: list[tuple[Connection, RemotingCommand]], error: Exception | None
    ) -> None:
        """Answers at once the sends that wait for no proof, and the others when they have theirs."""
        status: PutStatus | None = _PUT_OK
        if answers.waiting:
            status = self._durability.put_status(answers.waiting_end, _RunWait(self, answers))
        if status is None:
            self.pending += answers.waiting
        elif status:
            self._stats.lack_proof(status, answers.waiting)
        if answers.prompt or status is not None:
            # Who wants no proof gets an OK, unless it must not go out.
            now = self._durability.released(_PUT_OK)
            for connection, encoded in answers.render(now, NOT_YET if status is None else status):
                connection.send_encoded(encoded)
        for connection, request in lost:
            answer = self._refuse(request, self._lost(error))
            if not request.is_oneway:
                connection.send(answer)

    def _busy(self, count: int) -> RequestError | None:
        """Why the broker refuses sends before it looks at a message; None if it does not."""
        send_limits = self._send_limits
        held_since = self._log.lock_held_since
        if held_since and time.monotonic() - held_since > send_limits.page_cache_busy_s:
            return RequestError(ResponseCode.SYSTEM_BUSY, BUSY_REMARK)
        if self.pending + count > send_limits.max_pending_sends:
            return RequestError(ResponseCode.SYSTEM_BUSY, OVERLOAD_REMARK)
        start = send_limits.start_accept_timestamp_ms
        if start and self._clock_ms() < start:
            return RequestError(ResponseCode.SYSTEM_ERROR, f"broker unable to service, until {start}")
        return None

    def _unwritable(self) -> str | None:
        if self._send_limits.is_slave:
            return "this broker is a slave; send to its master"
        return self.refuse_all or self._why_shut() or self._log.writable

    # From messages to the log

    def _append_singles(self, singles: Sequence[Send], stored: _Stored) -> None:
        if not singles:
            return
        began = time.monotonic()
        outcomes = self._log.append_many([message for _, _, message, _ in singles])
        count = size = 0
        count_put = self._stats.traffic.put
        for (index, request, message, wait), outcome in zip(singles, outcomes, strict=True):
            if isinstance(outcome, CommitLogError):
                stored.answers[index] = self._refuse(request, self._put_failed(outcome))
                continue
            count += 1
            if message.topic == HALF_TOPIC:
                self._on_half(outcome.queue_offset, request)
            stored_bytes = outcome.end - outcome.physical_offset
            size += stored_bytes
            count_put(message.topic, message.queue_id, 1, stored_bytes)
            answer = request.answer(
                0,
                None,
                {
                    **self._trace,
                    "msgId": f"{self._id_prefix}{outcome.physical_offset:016X}",
                    # For a message that goes elsewhere first: the queue that it will come to.
                    "queueId": str(
                        message.queue_id if type(message) is NewMessage else _asked_queue_id(message)
                    ),
                    "queueOffset": str(outcome.queue_offset),
                },
            )
            stored.add(index, request, answer, outcome.end, wait)
        self._stats.put(count, size, time.monotonic() - began)

    def _append_batch(self, batch: Send, stored: _Stored) -> None:
        index, request, message, wait = batch
        began = time.monotonic()
        try:
            outcome = self._log.append_batch(message)
        except CommitLogError as error:
            stored.answers[index] = self._refuse(request, self._put_failed(error))
            return
        size = outcome.end - outcome.physical_offset
        self._stats.put(outcome.count, size, time.monotonic() - began)
        self._stats.traffic.put(message.topic, message.queue_id, outcome.count, size)
        answer = request.answer(
            0,
            None,
            {
                **self._trace,
                "msgId": ",".join(f"{self._id_prefix}{offset:016X}" for offset in outcome.offsets),
                "queueId": str(message.queue_id),
                "queueOffset": str(outcome.queue_offset),
            },
        )
        stored.add(index, request, answer, outcome.end, wait)

    def _put_failed(self, error: CommitLogError) -> RequestError:
        self._stats.puts_failed += 1
        if isinstance(error, MessageBeyondLimits):
            return RequestError(ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}")
        if isinstance(error, LogNotWritable):
            return RequestError(ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error}")
        logger.error("append failed reason=%s", error)
        return RequestError(ResponseCode.SYSTEM_ERROR, f"store error: {error}")

    # Answers

    def _refuse(self, request: RemotingCommand, error: RequestError) -> RemotingCommand:
        self._stats.refuse(error.code)
        return request.answer(error.code, error.remark, dict(self._trace))

    def _seek_proofs(self, stored: _Stored, sends: Sequence[tuple[Connection, RemotingCommand]]) -> None:
        """Makes one wait for all stored sends that want one, up to the end of the last of them."""
        waiting = [(sends[index][0], answer) for index, answer in stored.waiting]
        status = self._durability.put_status(stored.end, _AnswersWait(self, waiting))
        if status is None:
            self.pending += len(waiting)
            return
        if status:
            self._stats.lack_proof(status, len(waiting))
        for index, answer in stored.waiting:
            answer.code = status
            stored.answers[index] = answer


def _asked_queue_id(message: NewMessage) -> int:
    return message.asked_queue_id if isinstance(message, Redirected) else message.queue_id


class _RunWait(Wait):
    """The wait of sends that went the short way, with their answers."""

    __slots__ = ("answers", "sends")

    def __init__(self, sends: SendProcessor, answers: RunAnswers) -> None:
        self.sends = sends
        self.answers: RunAnswers | None = answers

    def settled(self, status: PutStatus) -> None:
        answers, self.answers = self.answers, None
        assert answers is not None
        self.sends.settled(status, answers.waiting)
        if status.remark:
            for connection, request in (as_request(*each) for each in answers.waiters()):
                connection.send(request.answer(status, status.remark))
            return
        for connection, encoded in answers.render(NOT_YET, status):
            connection.send_encoded(encoded)


class _AnswersWait(Wait):
    """The wait of sends that went the long way, with their answers by connection."""

    __slots__ = ("answers", "sends")

    def __init__(self, sends: SendProcessor, answers: list[tuple[Connection, RemotingCommand]]) -> None:
        self.sends = sends
        self.answers = answers

    def settled(self, status: PutStatus) -> None:
        answers, self.answers = self.answers, []
        self.sends.settled(status, len(answers))
        for connection, answer in answers:
            answer.code, answer.remark = status, status.remark
            connection.send(answer)


class _Stored:
    """What one pass has stored: `answers` can go now, those in `waiting` later."""

    __slots__ = ("answers", "end", "waiting")

    def __init__(self, answers: Answers) -> None:
        self.answers = answers
        self.waiting: list[tuple[int, RemotingCommand]] = []
        self.end = 0

    def add(
        self, index: int, request: RemotingCommand, answer: RemotingCommand, end: int, wait: bool
    ) -> None:
        """Adds one send, which ends at `end` in the log, beyond every earlier one."""
        if not wait:
            self.answers[index] = answer
        elif not request.is_oneway:
            self.waiting.append((index, answer))
            self.end = end
