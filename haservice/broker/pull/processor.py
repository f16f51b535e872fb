"""PULL_MESSAGE: a consumer takes messages of one queue from an offset on.

    check ─▶ look ─▶ decide (decision.py) ─┬─ found, told, damaged ───────────────────────────▶ the answer
              ▲                            ├─ hold ─▶ woken by an arrival, the mark or its time ─▶ check
              └────────────────────────────┴─ read, mend, await the dispatch, look again

Checks, their order and their codes are those of RocketMQ's PullMessageProcessor, and so are the offsets in the
answer.  A slave serves pulls whatever slaveReadEnable says.  A held pull that wakes runs through everything
again; if its topic was deleted meanwhile, or its account may not read it any more, it then gets that error.

A selector looks at messages and not only at their index, so a work thread looks for its pull.  While such
pulls are held, judging.py tries each message that arrives once for each expression.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from sys import intern
from weakref import WeakValueDictionary

from commitlog.errors import BadEntry, CommitLogError
from haservice.access.rules import Requester
from haservice.broker.acl.recipients import Recipients
from haservice.broker.dispatch_barrier import DispatchBarrier
from haservice.broker.groups.subscription_groups import Groups
from haservice.broker.offsets.consumer_offsets import ConsumerOffsets
from haservice.broker.pull.consumer_filters import compile_all, expressions
from haservice.broker.pull.decision import (
    Damaged,
    Decision,
    Hold,
    LookAgain,
    Mend,
    PullLook,
    PullQuestion,
    PullRules,
    PullStep,
    Tell,
    decide,
    suggested,
)
from haservice.broker.pull.judging import Judging
from haservice.broker.pull.long_polling import HeldPull, LongPolling, QueueKey
from haservice.broker.pull.message_filter import FLAG_SUBSCRIPTION, MessageFilters
from haservice.broker.pull.offset_moved import OffsetMoved
from haservice.broker.pull.read_result import PullStatus, Scan
from haservice.broker.pull.reader import WARN_AGAIN_S, PullReader, Selector
from haservice.broker.pull.tag_filter import SQL92, TagCodes
from haservice.broker.stats.counters import Stats
from haservice.broker.topics.readable import Topics
from haservice.broker.topics.table import PERM_READ
from haservice.configuration.settings import BrokerConfig
from haservice.errors import RequestError
from haservice.log_throttle import LogThrottle
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.headers.clients import PullMessageHeader
from haservice.remoting.headers.pull_texts import pull_answer, read_pull
from haservice.remoting.owed import Make, pass_on
from haservice.remoting.server import Processor
from haservice.remoting.workers import Offload

logger = logging.getLogger(__name__)

# The request's sysFlag.
FLAG_COMMIT_OFFSET = 0x1
FLAG_SUSPEND = 0x2

# What the subscription of a held pull takes for each letter: tags of two letters, with their codes in a set; an
# expression as it is compiled, which takes some more however short it is.
TAG_BYTES, SQL_BYTES, SQL_BYTES_MIN = 32, 75, 1500
_NO_EXT: dict[str, str] = {}

# The answer to held pulls when the broker stops.
STOPPING = "the broker is shutting down"

# Plain values: to look up an enumeration's member takes longer.
_SUCCESS, _FOUND_REMARK, _FOUND = int(ResponseCode.SUCCESS), PullStatus.FOUND.value, PullStep.FOUND

Answer = RemotingCommand | Awaitable[RemotingCommand]


@dataclass(slots=True)
class _Pull(PullQuestion):
    """One request that passed the checks."""

    connection: Connection
    command: RemotingCommand
    header: PullMessageHeader
    codes: TagCodes
    selector: Selector | None


class PullProcessor:
    """Answers PULL_MESSAGE.  `on_offset_moved` is called for every consumer that a master had to move."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        groups: Groups,
        filters: MessageFilters,
        offsets: ConsumerOffsets,
        reader: PullReader,
        long_polling: LongPolling,
        barrier: DispatchBarrier,
        stats: Stats,
        offload: Offload,
        make: Make,
        judge: Offload,
        on_offset_moved: Callable[[OffsetMoved], None] | None = None,
        mend: Callable[[str, int, int], bool] = lambda topic, queue_id, offset: False,
        recipients: Recipients | None = None,
    ) -> None:
        """`judge` tries messages for held pulls with a selector.  `mend` checks, in a work thread, an entry that
        does not fit the log; True if it fits now.  `recipients` says who may still have messages when a held
        pull wakes.
        """
        self._recipients = recipients if recipients is not None else Recipients(None)
        self._config = config
        self._topics = topics
        self._groups = groups
        self._filters = filters
        self._offsets = offsets
        self._reader = reader
        self._long_polling = long_polling
        self._barrier = barrier
        self._stats = stats
        self._offload = offload
        self._make = make
        self._on_offset_moved = on_offset_moved
        self._mend = mend
        self._is_slave = config.role.is_slave
        self._rules = _rules_of(config)
        self._throttle = LogThrottle(WARN_AGAIN_S)
        # Of the expressions that held pulls brought: equal ones have one.
        self._selectors: WeakValueDictionary[str, Selector] = WeakValueDictionary()
        long_polling.judging = Judging(reader, judge, self._selector_of, long_polling.wake, self._depends)

    def handlers(self) -> dict[int, Processor]:
        return {RequestCode.PULL_MESSAGE: self.pull}

    def configure(self, config: BrokerConfig) -> None:
        """Sets other settings from the next pull on."""
        self._config = config
        self._rules = _rules_of(config)

    def pull(self, connection: Connection, command: RemotingCommand) -> Answer:
        header = read_pull(command.ext)
        if header.expression_type == SQL92 and header.sys_flag & FLAG_SUBSCRIPTION:
            slow = self._filters.slow(SQL92, header.subscription)
            if slow:
                return self._compiled(connection, command, header, slow)
        return self._pulled(connection, command, header)

    async def _compiled(
        self, connection: Connection, command: RemotingCommand, header: PullMessageHeader, slow: list[str]
    ) -> RemotingCommand:
        """As pull(), once a work thread has compiled the expression that the pull brings."""
        expressions.keep(await self._make(connection, compile_all, slow))
        outcome = self._pulled(connection, command, header)
        return outcome if isinstance(outcome, RemotingCommand) else await outcome

    def _pulled(self, connection: Connection, command: RemotingCommand, header: PullMessageHeader) -> Answer:
        pull = self._checked(connection, command, header)
        if header.sys_flag & FLAG_COMMIT_OFFSET and not self._is_slave:
            where = header.consumer_group, header.topic, header.queue_id
            if not self._offsets.commit(*where, header.commit_offset):
                raise self._offsets.refusal(*where)
        if pull.selector is None:
            return self._answer(pull, self._look(pull))
        outside = self._reader.outside(header.topic, header.queue_id, header.queue_offset)
        return self._selected(pull) if outside is None else self._answer(pull, PullLook(outside))

    # Checks

    def _checked(
        self,
        connection: Connection,
        command: RemotingCommand,
        header: PullMessageHeader,
        own: Selector | None = None,
    ) -> _Pull:
        """The request as a pull; raises RequestError with the code that says why it is refused.  `own`: the selector
        of its own expression, if that was compiled before.
        """
        if not self._config.permission & PERM_READ:
            raise RequestError(ResponseCode.NO_PERMISSION, "this broker may not be read: brokerPermission")
        name = header.consumer_group
        group = self._groups.find(name)
        if group is None:
            raise RequestError(
                ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"consumer group {name!r} does not exist"
            )
        if not group.consume_enable:
            raise RequestError(ResponseCode.NO_PERMISSION, f"consumer group {name} may not consume")
        topic = self._topics.get(header.topic)
        if topic is None:
            raise RequestError(ResponseCode.TOPIC_NOT_EXIST, f"topic {header.topic!r} does not exist here")
        if not topic.perm & PERM_READ:
            raise RequestError(ResponseCode.NO_PERMISSION, f"topic {header.topic} may not be read")
        if not 0 <= header.queue_id < topic.read_queue_nums:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"queueId {header.queue_id} is none of topic {header.topic},"
                f" which has {topic.read_queue_nums} queues to read",
            )
        codes, selector = (None, own) if own is not None else self._filters.of(header, group)
        offset, may_be_held = header.queue_offset, header.sys_flag & FLAG_SUSPEND != 0
        asked = group, offset, offset, selector is not None, may_be_held
        return _Pull(*asked, connection, command, header, codes, selector)

    # Looking

    def _look(self, pull: _Pull, count: int | None = None) -> PullLook:
        """Looks at the index, and reads the messages unless they have to come from the disk."""
        header = pull.header
        topic, queue_id = header.topic, header.queue_id
        count = header.max_msg_nums if count is None else count
        scan = self._reader.scan(topic, queue_id, header.queue_offset, count, pull.codes)
        if scan.entries:
            return self._load(scan, here=True)
        if scan.impossible >= 0:
            number, why = scan.impossible, "the queue has no place of the log there"
            return PullLook(scan, error=BadEntry(number, why, topic, queue_id, number))
        return PullLook(scan)

    def _load(self, scan: Scan, here: bool = False) -> PullLook:
        begun_s = time.perf_counter()
        try:
            body = self._reader.load_here(scan) if here else self._reader.load_from_disk(scan)
        except CommitLogError as error:
            return PullLook(scan, error=error)
        return PullLook(scan, body, time.perf_counter() - begun_s)

    def _select(self, pull: _Pull) -> PullLook:
        """As _look(), for a pull with a selector: the messages found are read already."""
        header, selector, begun_s = pull.header, pull.selector, time.perf_counter()
        assert selector is not None
        place = header.topic, header.queue_id, pull.wanted
        try:
            scan, body = self._reader.select(*place, header.max_msg_nums, pull.codes, selector)
        except CommitLogError as error:
            return PullLook(Scan(PullStatus.NO_MATCHED_MESSAGE, pull.wanted, 0, 0), error=error)
        return PullLook(scan, body if scan.entries else None, time.perf_counter() - begun_s)

    async def _selected(self, pull: _Pull) -> RemotingCommand:
        pull.may_await_dispatch = False
        outcome = self._answer(pull, await self._make(pull.connection, self._select, pull))
        return outcome if isinstance(outcome, RemotingCommand) else await outcome

    # Answering

    def _answer(self, pull: _Pull, look: PullLook) -> Answer:
        return self._carry_out(pull, look, decide(look, pull, self._rules))

    def _carry_out(self, pull: _Pull, look: PullLook, decision: Decision) -> Answer:
        """The one place where a decision becomes an answer."""
        header, scan = pull.header, look.scan
        if decision is _FOUND:
            count, size, seconds = len(scan.entries), len(look.body or b""), look.seconds
            self._stats.get(count, size, seconds)
            self._stats.traffic.got(
                header.topic, header.queue_id, header.consumer_group, count, size, seconds
            )
            broker_id = suggested(pull, scan, self._rules)
            ext = pull_answer(broker_id, scan.next_offset, scan.min_offset, scan.max_offset)
            return pull.command.answer(_SUCCESS, _FOUND_REMARK, ext, look.body or b"")
        if type(decision) is Hold:
            held = self._hold(pull, decision)
            pull.may_be_held = False
            if held is None:
                return self._answer(pull, look)
            self._stats.get(0, 0)  # as RocketMQ counts it: a miss now, and its answer later
            return held
        if decision is PullStep.AWAIT_DISPATCH and self._barrier.reached:
            pull.may_await_dispatch = False
            return self._answer(pull, look)
        if type(decision) is LookAgain:
            return self._answer(pull, self._look(pull, decision.most))
        if isinstance(decision, Tell | Damaged):
            return self._told(pull, scan, decision)
        return self._later(pull, look, decision)

    async def _later(self, pull: _Pull, look: PullLook, decision: Decision) -> RemotingCommand:
        """Awaits what the decision asks for, and decides again."""
        if decision is PullStep.READ:
            scan = look.scan
            look = await self._make(pull.connection, self._load, scan, size=scan.size_bytes)
        elif isinstance(decision, Mend):
            pull.mended, error = True, decision.error
            if await self._offload(self._mend, error.topic, error.queue_id, error.queue_offset):
                return await self._again(pull)
        else:
            assert decision is PullStep.AWAIT_DISPATCH
            await self._barrier.reach()
            pull.may_await_dispatch = False
            pull.may_be_held = pull.may_be_held and pull.selects
            return await self._again(pull)
        outcome = self._answer(pull, look)
        return outcome if isinstance(outcome, RemotingCommand) else await outcome

    async def _again(self, pull: _Pull) -> RemotingCommand:
        if pull.selector is not None:
            return await self._selected(pull)
        outcome = self._answer(pull, self._look(pull))
        return outcome if isinstance(outcome, RemotingCommand) else await outcome

    def _told(self, pull: _Pull, scan: Scan, decision: Tell | Damaged) -> RemotingCommand:
        header = pull.header
        self._stats.get(0, 0)
        if isinstance(decision, Damaged):
            if self._throttle.ready():
                logger.error(
                    "message cannot be served topic=%s queue=%d offset=%d reason=%s",
                    *(header.topic, header.queue_id, header.queue_offset, decision.error),
                )
            return pull.command.answer(ResponseCode.SYSTEM_ERROR, str(decision.error))
        if decision.moved and self._on_offset_moved is not None:
            place = header.consumer_group, header.topic, header.queue_id
            self._on_offset_moved(OffsetMoved(*place, header.queue_offset, decision.next_offset))
        ext = pull_answer(decision.suggested, decision.next_offset, scan.min_offset, scan.max_offset)
        return pull.command.answer(decision.code, decision.status.value, ext)

    # Holding

    def _hold(self, pull: _Pull, decision: Hold) -> asyncio.Future[RemotingCommand] | None:
        """Holds the pull until there is something for it; None if it has to be answered now."""
        header = pull.header
        future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        if self._config.long_polling_enable:
            seconds = header.suspend_timeout_millis / 1000
        else:
            seconds = self._config.short_polling_ms / 1000
        _keep_once(header)
        key = (header.topic, header.queue_id)
        requester = self._recipients.requester(pull.connection, pull.command)
        judged_by = self._filters.judged_by(pull.selector, header)
        if pull.selector is not None and judged_by is not None and not judged_by[1]:
            pull.selector = self._selectors.setdefault(judged_by[0], pull.selector)
        held = _Held(self, pull, future, key, decision.wanted, judged_by, requester)
        held.below_mark = decision.below_mark
        # A pull may be held for long: it keeps none of the bytes that came with it but its subscription.
        pull.command.ext, pull.command.body, pull.command.remark = _NO_EXT, b"", None
        return future if self._long_polling.hold(held, seconds) else None

    def _attempt_selected(self, pull: _Pull) -> Answer:
        """For a held pull whose selector takes a message, or whose time is up."""
        outside = self._reader.outside(pull.header.topic, pull.header.queue_id, pull.wanted)
        return self._selected(pull) if outside is None else self._answer(pull, PullLook(outside))

    def _selector_of(self, held: HeldPull) -> Selector | None:
        """The selector of a held pull as it is now.  Raises RequestError if it gets none."""
        assert isinstance(held, _Held)
        header = held.pull.header
        if self._judges_by_itself(held):
            return held.pull.selector
        group = self._groups.find(header.consumer_group)
        return None if group is None else self._filters.of(header, group)[1]

    def _depends(self) -> object:
        """What `_selector_of` depends on: it gives the same for a pull as long as this is equal."""
        return self._filters.depends(), self._groups.data_version

    def _judges_by_itself(self, held: HeldPull) -> bool:
        """Whether it brought the expression, which stays what it is, and filters are on."""
        return held.judged_by is not None and not held.judged_by[1] and self._filters.enabled

    def attempt(self, held: _Held, final: bool) -> bool:
        """Runs a held pull again; True if its future has its answer, or will get it."""
        first, future = held.pull, held.future
        if future.done():
            return True
        command, header = first.command, first.header
        beyond = held.judged_by is not None or self._reader.indexed_beyond(*held.key, held.wanted)
        if not final and not beyond:
            return False
        try:
            self._recipients.check_read(held.requester, header.topic, header.consumer_group)
            own = first.selector if self._judges_by_itself(held) else None
            pull = self._checked(first.connection, command, header, own)
            pull.wanted, pull.held = held.wanted, not final
            pull.may_be_held = pull.may_await_dispatch = False
            if pull.selector is None:
                look = self._look(pull)
                decision = decide(look, pull, self._rules)
                if type(decision) is Hold:
                    held.wanted, held.below_mark = decision
                    return False
                pull.held = False
                answer = self._carry_out(pull, look, decision)
            else:
                pull.held = False
                answer = self._attempt_selected(pull)
        except RequestError as error:
            answer = command.answer(error.code, error.remark)
        except Exception as error:
            logger.exception("held pull failed topic=%s queue=%d", header.topic, header.queue_id)
            answer = command.answer(ResponseCode.SYSTEM_ERROR, f"{type(error).__name__}: {error}")
        if isinstance(answer, RemotingCommand):
            future.set_result(answer)
            first.connection.deliver(future)
        else:
            asyncio.ensure_future(answer).add_done_callback(partial(pass_on, future))
        return True


class _Held(HeldPull):
    """A pull that `processor` holds; `future` gets its answer."""

    __slots__ = ("future", "processor", "pull", "requester")

    def __init__(
        self,
        processor: PullProcessor,
        pull: _Pull,
        future: asyncio.Future[RemotingCommand],
        key: QueueKey,
        wanted: int,
        judged_by: tuple[str, str] | None,
        requester: Requester | None,
    ) -> None:
        text = pull.header.subscription or ""
        takes = TAG_BYTES * len(text) if judged_by is None else SQL_BYTES_MIN + SQL_BYTES * len(text)
        super().__init__(pull.connection, key, wanted, pull.codes, judged_by, text, takes)
        self.requester = requester
        self.processor = processor
        self.pull = pull
        self.future = future

    def attempt(self, final: bool) -> bool:
        return self.processor.attempt(self, final)

    def drop(self) -> None:
        self.future.cancel()

    def refuse(self) -> None:
        if not self.future.done():
            self.future.set_result(self.pull.command.answer(ResponseCode.SERVICE_NOT_AVAILABLE, STOPPING))


def keeps_offset(config: BrokerConfig) -> bool:
    """Whether this broker never corrects a consumer's offset, because its master knows better."""
    return config.role.is_slave and not config.offset_check_in_slave


def _keep_once(header: PullMessageHeader) -> None:
    """The texts that many held pulls have in common are in memory once."""
    header.topic, header.consumer_group = intern(header.topic), intern(header.consumer_group)
    header.subscription = header.subscription and intern(header.subscription)
    header.expression_type = header.expression_type and intern(header.expression_type)


def _rules_of(config: BrokerConfig) -> PullRules:
    return PullRules(config.slave_read_enable, keeps_offset(config))
