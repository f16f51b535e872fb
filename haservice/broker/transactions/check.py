"""The transaction check: the thread that asks producers about half messages, on masters only.

Every transactionCheckInterval the thread makes one round of its `CheckRound` over the half queue, by the rules of
transactions/check_round.py.  It carries out the walk's decisions: it appends copies, and hands questions to the
loop, which knows the producers' connections.

The progress enters the table of consumer offsets, and with it the disk and the slaves, once the log up to
there is on the disk and every connected slave has it.  So after a power cut or a change of master, producers
may be asked again, but no message is passed whose copy no log has.  (RocketMQ writes it at once.)
"""

from __future__ import annotations

import logging
import threading
import time
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple

from commitlog.errors import (
    CommitLogError,
    CorruptRecord,
    MessageBeyondLimits,
    OffsetNotFound,
    is_of_one_message,
)
from commitlog.kernel.layout import PROPERTIES_BYTES_MAX
from commitlog.kernel.records import (
    StoredMessage,
    decode,
    decode_properties,
    encode,
    encode_properties,
    offset_message_id,
    stamp,
)
from commitlog.log.log import wall_clock_ms
from commitlog.queues.consume_queue import ConsumeQueue
from commitlog.store import Store
from commitlog.upkeep.unstepped_clock import UnsteppedClock
from haservice.broker.delay.redirect import restored
from haservice.broker.offsets.consumer_offsets import ConsumerOffsets
from haservice.broker.topics.table import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, TopicTable
from haservice.broker.transactions.check_round import (
    Check,
    CheckRound,
    Discard,
    Limits,
    Op,
    Step,
    TransactionRules,
)
from haservice.broker.transactions.half_messages import (
    ENDED_TAG,
    GROUP,
    PRODUCER_GROUP,
    QUEUE_ID,
    UNIQUE_KEY,
    Ends,
    discarded,
    number_of,
)
from haservice.log_throttle import LogThrottle
from haservice.remoting.headers.transactions import CheckTransactionStateHeader

logger = logging.getLogger(__name__)

# Questions that the loop gets at a time: so many, or with so many bytes of bodies in all.
QUESTIONS_MAX = 64
QUESTION_BYTES_MAX = 1024 * 1024
HAND_OVER_SECONDS = 5.0
# Op records that a start reads, to recognise repeated requests.
ENDS_LOADED = 4096
# How often unsafe progress is checked, and for how many rounds it is kept.
SETTLE_SECONDS = 1.0
UNSAFE_MAX = 100


# Offsets in half and op queue; None for one that was never stored.
Progress = tuple[int | None, int | None]


class RoundPlace(NamedTuple):
    """Where a half message lies, and since when."""

    queue_offset: int
    physical_offset: int
    store_timestamp_ms: int


class Question(NamedTuple):
    """Request 39 for any producer of `group` that may send to `topic`; `body` is the encoded message."""

    group: str
    topic: str
    header: CheckTransactionStateHeader
    body: bytes


class TransactionCheck:
    """Task of the thread `transaction-check`."""

    def __init__(
        self,
        store: Store,
        offsets: ConsumerOffsets,
        topics: TopicTable,
        rules: TransactionRules,
        *,
        ends: Ends,
        interval_s: float,
        hand_over: Callable[[Sequence[Question], Callable[[], None]], None],
        held: Callable[[], str | None] = lambda: None,
        replicated_end: Callable[[], int] | None = None,
        on_progress: Callable[[], None] = lambda: None,
        clock_ms: Callable[[], int] = wall_clock_ms,
        unstepped_s: Callable[[], float] | None = None,
        limits: Limits = Limits(),  # noqa: B008
    ) -> None:
        """`hand_over` asks the questions on the loop's thread and then calls its second argument; `held` says
        why nothing can be stored now, or None; all connected slaves have the log up to `replicated_end`, -1
        without a slave.  `unstepped_s`: None for an UnsteppedClock.
        """
        self._store = store
        self._log = store.log
        self._offsets = offsets
        self._topics = topics
        self._rules = rules
        self._ends = ends
        self._interval_s = interval_s
        self._hand_over = hand_over
        self._held = held
        self._slaves_have = replicated_end
        self._on_progress = on_progress
        self._clock_ms = clock_ms
        self._unstepped_s = unstepped_s if unstepped_s is not None else UnsteppedClock()
        self._woken = threading.Event()
        self._questions: list[Question] = []
        self._question_bytes = 0
        self._throttle = LogThrottle()
        self._limits = limits
        # None before the first round, which begins at the offsets of the table.
        self._walk: CheckRound | None = None
        self._reached: Progress | None = None
        # Progress that is not in the table yet, each with the log's end at that time.
        self._unsafe: deque[tuple[Progress, int]] = deque()
        self._built_from = store.log.end

    def configure(self, rules: TransactionRules, interval_s: float) -> None:
        """Sets other rules from the next round on, another interval at once.  Any thread."""
        self._rules = rules
        self._interval_s = interval_s
        self._woken.set()

    def run(self, stop: threading.Event) -> None:
        last_s = time.monotonic()
        while not stop.is_set():
            pause_s = last_s + self._interval_s - time.monotonic()
            if self._unsafe:
                pause_s = min(pause_s, SETTLE_SECONDS)
            if self._woken.wait(max(0.0, pause_s)):
                self._woken.clear()  # woken to stop, or for another interval
                continue
            self.settle()
            if time.monotonic() - last_s >= self._interval_s:
                while not stop.is_set() and self._held() is None and self.round(stop):
                    pass
                last_s = time.monotonic()
        self._settle_at_end()

    def wake(self) -> None:
        self._woken.set()

    def round(self, stop: threading.Event) -> bool:
        """Makes one round; True if it ended only for lack of time.

        After a crash it makes none until the queues have caught up with the log as it was then: a message
        whose end is among the rest would count as open.
        """
        if self._store.dispatcher.position < self._built_from:
            return False
        halves = self._store.queues.get(HALF_TOPIC, QUEUE_ID)
        if halves is None:
            return False
        walk = self._walk
        if walk is None or walk.frontier > halves.max_offset:
            walk = self._walk = self._new_walk()
        walk.rules = self._rules
        before = self._reached
        try:
            for step in walk.steps():
                if stop.is_set():
                    break
                self._do(step)
            self._reached = walk.progress()
        except (CommitLogError, OSError) as error:
            self._warn("round", "transaction check stopped half_offset=%d reason=%s", walk.frontier, error)
        self._ask()
        if self._reached is not None and self._reached != before:
            if len(self._unsafe) >= UNSAFE_MAX:
                self._unsafe.pop()
            self._unsafe.append((self._reached, self._log.end))
        return walk.out_of_time

    def _new_walk(self) -> CheckRound:
        self._reached = self._progress(HALF_TOPIC), self._progress(OP_HALF_TOPIC)
        return CheckRound(
            _Halves(self._store),
            _Ops(self._store),
            self._rules,
            half_offset=self._reached[0],
            op_offset=self._reached[1],
            now_ms=self._clock_ms,
            unstepped_ms=lambda: int(self._unstepped_s() * 1000),
            has_ended=self._ends.__contains__,
            limits=self._limits,
        )

    def _do(self, step: Step) -> None:
        """Carries out `step`; raises CommitLogError and OSError if it cannot for now.

        What fails for this message alone counts as done: the others go on, and its checks are counted.
        """
        try:
            self._carry_out(step)
        except Exception as error:
            if not is_of_one_message(error):
                raise
            self._pass_over(step, error)

    def _pass_over(self, step: Step, error: Exception) -> None:
        logger.error(
            "half message passed over in this round half_offset=%d id=%s reason=%r",
            *(step.half.queue_offset, step.half.message_id, error),
        )

    def _carry_out(self, step: Step) -> None:
        if isinstance(step, Discard):
            self._discard(step)
            return
        half = step.half
        place = RoundPlace(half.queue_offset, half.physical_offset, half.store_timestamp_ms)
        if step.copy is not None:
            try:
                appended = self._log.append(step.copy)
            except MessageBeyondLimits as error:
                # With its marks it cannot be stored: it is too large for today's limits.
                self._discard(Discard(half, discarded(half), f"it cannot be put back: {error}"))
                return
            place = RoundPlace(appended.queue_offset, appended.physical_offset, appended.store_timestamp_ms)
        if isinstance(step, Check):
            self._gather(step, place)

    def _discard(self, step: Discard) -> None:
        half = step.half
        logger.error(
            "half message discarded, moved to %s half_offset=%d id=%s reason=%s",
            CHECK_MAX_TIME_TOPIC,
            half.queue_offset,
            half.message_id,
            step.reason,
        )
        self._topics.find_or_create(CHECK_MAX_TIME_TOPIC, 1)
        try:
            self._log.append(step.copy)
        except MessageBeyondLimits as error:
            logger.error(
                "half message not moved, it stays in the log id=%s reason=%s", half.message_id, error
            )

    # Questions

    def _gather(self, step: Check, place: RoundPlace) -> None:
        try:
            question = question_of(step, place)
        except ValueError as error:
            logger.error("producer not asked reason=%s", error)
            return
        self._questions.append(question)
        self._question_bytes += len(question.body)
        if len(self._questions) >= QUESTIONS_MAX or self._question_bytes >= QUESTION_BYTES_MAX:
            self._ask()

    def _ask(self) -> None:
        """Hands over the gathered questions, and waits until the loop has taken them."""
        if not self._questions:
            return
        questions, self._questions = self._questions, []
        self._question_bytes = 0
        taken = threading.Event()
        self._hand_over(questions, taken.set)
        if not taken.wait(HAND_OVER_SECONDS):
            self._warn("loop", "questions not taken in time count=%d", len(questions))

    # Progress

    def _replicated_end(self) -> int:
        end = self._slaves_have() if self._slaves_have is not None else -1
        return end if end >= 0 else self._log.end

    def _progress(self, topic: str) -> int | None:
        return self._offsets.query(GROUP, topic, QUEUE_ID)

    def settle(self) -> None:
        """Puts the progress that is safe now into the table."""
        if self._unsafe:
            self._settle(min(self._log.flushed, self._replicated_end()))

    def _settle_at_end(self) -> None:
        """Keeps all progress at a clean stop, so that nothing is done again."""
        if not self._unsafe:
            return
        try:
            self._settle(self._log.flush())
        except (CommitLogError, OSError) as error:
            logger.warning("progress of the transaction check not kept reason=%s", error)

    def _settle(self, safe_end: int) -> None:
        safe: Progress | None = None
        while self._unsafe and self._unsafe[0][1] <= safe_end:
            safe, _ = self._unsafe.popleft()
        if safe is None:
            return
        for topic, offset in zip((HALF_TOPIC, OP_HALF_TOPIC), safe, strict=True):
            if offset is not None and offset != self._progress(topic):
                self._offsets.commit(GROUP, topic, QUEUE_ID, offset, in_any_case=True)
        self._on_progress()

    def _warn(self, cause: str, text: str, *args: object) -> None:
        if self._throttle.ready(cause):
            logger.warning(text, *args)


def question_of(step: Check, place: RoundPlace) -> Question:
    """The question to the producer, with the message as consumers would get it, and where it lies now."""
    half = step.half
    message = restored(half)
    marked = encode_properties(step.properties)
    if len(marked) <= PROPERTIES_BYTES_MAX:  # else it is asked about as it was sent
        message.properties = marked
    body = encode(message, half.store_host)
    stamp(body, *place)
    unique = step.properties.get(UNIQUE_KEY)
    header = CheckTransactionStateHeader(
        place.queue_offset,
        place.physical_offset,
        unique,
        unique,
        offset_message_id(half.store_host, place.physical_offset),
    )
    return Question(step.properties[PRODUCER_GROUP], message.topic, header, bytes(body))


def load_ends(store: Store, ends: Ends) -> None:
    """Adds the ends that the last op records name."""
    ops = _Ops(store)
    offset = max(ops.min_offset, ops.max_offset - ENDS_LOADED)
    while offset < ops.max_offset:
        for op in ops.read(offset, ENDS_LOADED):
            offset = op.offset + 1
            if op.half_offset is not None:
                ends.add(op.half_offset)


class _Halves:
    """The half queue as a CheckRound reads it."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def _queue(self) -> ConsumeQueue | None:
        return self._store.queues.get(HALF_TOPIC, QUEUE_ID)

    @property
    def min_offset(self) -> int:
        return 0 if self._queue is None else self._queue.min_offset

    @property
    def max_offset(self) -> int:
        return 0 if self._queue is None else self._queue.max_offset

    @property
    def log_end(self) -> int:
        return self._store.log.end

    def read(self, offset: int) -> StoredMessage | None:
        queue = self._queue
        return None if queue is None else _record(self._store, queue, offset)

    def physical_offset(self, offset: int) -> int:
        entries = () if self._queue is None else self._queue.read(offset, 1)
        return entries[0].physical_offset if entries else 0


class _Ops:
    """The op queue as a CheckRound reads it; there is none before the first end."""

    def __init__(self, store: Store) -> None:
        self._store = store

    @property
    def _queue(self) -> ConsumeQueue | None:
        return self._store.queues.get(OP_HALF_TOPIC, QUEUE_ID)

    @property
    def min_offset(self) -> int:
        return 0 if self._queue is None else self._queue.min_offset

    @property
    def max_offset(self) -> int:
        return 0 if self._queue is None else self._queue.max_offset

    def read(self, offset: int, count: int) -> Sequence[Op]:
        queue = self._queue
        entries = () if queue is None else queue.read(offset, count)
        if queue is None or not entries:  # truncated meanwhile
            return [Op(offset, None)]
        return [
            Op(offset + number, self._half_offset(queue, offset + number)) for number in range(len(entries))
        ]

    def first_behind(self, physical_offset: int) -> int:
        queue = self._queue
        if queue is None:
            return 0
        offsets = range(queue.min_offset, queue.max_offset)

        def place(offset: int) -> int:
            entries = queue.read(offset, 1)
            return entries[0].physical_offset if entries else physical_offset

        return queue.min_offset + bisect_left(offsets, physical_offset, key=place)

    def _half_offset(self, queue: ConsumeQueue, queue_offset: int) -> int | None:
        record = _record(self._store, queue, queue_offset)
        if record is None or decode_properties(record.properties).get("TAGS") != ENDED_TAG:
            return None
        half_offset = number_of(record.body.decode("ascii", "replace"), -1)
        return half_offset if half_offset >= 0 else None


def _record(store: Store, queue: ConsumeQueue, queue_offset: int) -> StoredMessage | None:
    """None if the record is gone or damaged, and nothing can be done for it.  Raises StoreUnreadable."""
    try:
        record = store.mender.read(queue, queue_offset)
    except OffsetNotFound:
        return None
    except CorruptRecord as error:
        logger.error("record of a transaction is damaged, passed over reason=%s", error)
        return None
    return None if record is None else decode(record)
