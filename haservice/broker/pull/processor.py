"""PULL_MESSAGE: a consumer takes messages of one queue from an offset on.

    check ─▶ scan ─┬─ messages ──────────▶ load (on the loop, or by a work thread when cold) ─▶ 0
                   ├─ nothing new ──▶ hold, if the client said it may be, else ───────────────▶ 19
                   ├─ none matched, or just removed ──────────────────────────────────────────▶ 20
                   └─ outside of the queue ── on a slave 20 with the same offset, else ───────▶ 21

Checks, their order and their codes are RocketMQ's (broker-flows §9.1), and so is what the answer says of
offsets (§9.2).  A slave serves pulls whatever slaveReadEnable says.  A held pull that is woken runs through
everything again, so that a topic deleted meanwhile answers its error then.

A pull with a selector, which looks at messages and not only at their index, is scanned and loaded by a work
thread.  When it is held, what has arrived is looked at once, on the loop, and not again by the next arrival.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from commitlog.errors import BadEntry, CommitLogError, CorruptRecord, OffsetNotFound
from haservice.broker.dispatch_barrier import DispatchBarrier
from haservice.broker.groups.consumer_offsets import ConsumerOffsets
from haservice.broker.groups.subscription_groups import GroupConfig, Groups
from haservice.broker.metadata.readable_topics import Topics
from haservice.broker.metadata.topics import PERM_READ
from haservice.broker.pull.long_polling import HeldPull, LongPolling
from haservice.broker.pull.message_filter import MessageFilters
from haservice.broker.pull.offset_moved import OffsetMoved
from haservice.broker.pull.reader import WARN_AGAIN_S, QueueReader, Selector
from haservice.broker.pull.scan import PullStatus, Scan
from haservice.broker.pull.tag_filter import TagCodes
from haservice.broker.stats.counters import Stats
from haservice.configuration.settings import BrokerConfig
from haservice.errors import RequestError
from haservice.log_throttle import LogThrottle
from haservice.remoting.bodies.clients import MASTER_ID
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection
from haservice.remoting.headers.clients import PullMessageHeader
from haservice.remoting.headers.pull_texts import pull_answer, read_pull
from haservice.remoting.server import Processor
from haservice.remoting.workers import Offload

logger = logging.getLogger(__name__)

# The request's sysFlag.
FLAG_COMMIT_OFFSET = 0x1
FLAG_SUSPEND = 0x2

# To held pulls, in the end.
STOPPING = "the broker is shutting down"

# Nothing at the wanted offset.
_OUTSIDE = frozenset(
    {
        PullStatus.OFFSET_OVERFLOW_ONE,
        PullStatus.OFFSET_OVERFLOW_BADLY,
        PullStatus.NO_MATCHED_LOGIC_QUEUE,
        PullStatus.NO_MESSAGE_IN_QUEUE,
    }
)

# As they are written: an enumeration's member takes longer.
_SUCCESS, _FOUND = int(ResponseCode.SUCCESS), PullStatus.FOUND.value

# So many messages that have just arrived a held pull looks at on the loop; the rest is a work thread's.
HELD_ENTRIES = 32

_CODE_OF = {
    PullStatus.FOUND: ResponseCode.SUCCESS,
    PullStatus.NO_MATCHED_MESSAGE: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.MESSAGE_WAS_REMOVING: ResponseCode.PULL_RETRY_IMMEDIATELY,
    PullStatus.OFFSET_FOUND_NULL: ResponseCode.PULL_NOT_FOUND,
    PullStatus.OFFSET_OVERFLOW_ONE: ResponseCode.PULL_NOT_FOUND,
    PullStatus.OFFSET_OVERFLOW_BADLY: ResponseCode.PULL_OFFSET_MOVED,
    PullStatus.OFFSET_TOO_SMALL: ResponseCode.PULL_OFFSET_MOVED,
    # These two are "nothing yet" for who asks for the queue's first message.
    PullStatus.NO_MATCHED_LOGIC_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
    PullStatus.NO_MESSAGE_IN_QUEUE: ResponseCode.PULL_OFFSET_MOVED,
}
_EMPTY = (PullStatus.NO_MATCHED_LOGIC_QUEUE, PullStatus.NO_MESSAGE_IN_QUEUE)


@dataclass(slots=True)
class _Pull:
    """One request that passed the checks."""

    connection: Connection
    command: RemotingCommand
    header: PullMessageHeader
    group: GroupConfig
    codes: TagCodes
    selector: Selector | None
    mended: bool = False
    """An entry that did not fit the log was looked at for it once."""


class PullProcessor:
    """Answers PULL_MESSAGE.  `on_offset_moved` hears of every consumer that a master had to move."""

    def __init__(
        self,
        config: BrokerConfig,
        topics: Topics,
        groups: Groups,
        filters: MessageFilters,
        offsets: ConsumerOffsets,
        reader: QueueReader,
        long_polling: LongPolling,
        barrier: DispatchBarrier,
        stats: Stats,
        offload: Offload,
        on_offset_moved: Callable[[OffsetMoved], None] | None = None,
        mend: Callable[[str, int, int], bool] = lambda topic, queue_id, offset: False,
    ) -> None:
        """`mend` looks, in a work thread, at an entry that does not fit the log: True if it fits now."""
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
        self._on_offset_moved = on_offset_moved
        self._mend = mend
        self._is_slave = config.role.is_slave
        self._keeps_offset = keeps_offset(config)
        self._throttle = LogThrottle(WARN_AGAIN_S)

    def handlers(self) -> dict[int, Processor]:
        return {RequestCode.PULL_MESSAGE: self.pull}

    def configure(self, config: BrokerConfig) -> None:
        """Other settings, from the next pull on."""
        self._config = config
        self._keeps_offset = keeps_offset(config)

    def pull(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | asyncio.Future[RemotingCommand]:
        header = read_pull(command.ext)
        pull = self._checked(connection, command, header)
        if header.sys_flag & FLAG_COMMIT_OFFSET and not self._is_slave:
            self._offsets.commit(header.consumer_group, header.topic, header.queue_id, header.commit_offset)
        if pull.selector is not None:
            outside = self._reader.outside(header.topic, header.queue_id, header.queue_offset)
            if outside is None:
                return asyncio.ensure_future(self._selected(pull))
            scan = outside
        else:
            scan = self._scan(pull)
            if scan.entries:
                return self._answer(pull, scan)
        if header.sys_flag & FLAG_SUSPEND and self._code(scan, header) is ResponseCode.PULL_NOT_FOUND:
            held = self._hold(pull, scan)
            if held is not None:
                return held
        if scan.status in _OUTSIDE and not self._barrier.reached:
            return asyncio.ensure_future(self._answered_behind_barrier(pull))
        return self._answer(pull, scan)

    async def _answered_behind_barrier(self, pull: _Pull) -> RemotingCommand:
        """What was sent before is there, if it is wanted: the queue may only be not so far yet."""
        await self._barrier.reach()
        if pull.selector is not None:
            return await self._selected(pull)
        answer = self._answer(pull, self._scan(pull))
        return await answer if isinstance(answer, asyncio.Future) else answer

    # Checks

    def _checked(self, connection: Connection, command: RemotingCommand, header: PullMessageHeader) -> _Pull:
        """The request, if it may be served; raises RequestError with the code that says why not."""
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
        return _Pull(connection, command, header, group, *self._filters.of(header, group))

    # Holding

    def _hold(self, pull: _Pull, scan: Scan) -> asyncio.Future[RemotingCommand] | None:
        """Keeps the pull until there is something for it; None when it has to be answered now."""
        header = pull.header
        future: asyncio.Future[RemotingCommand] = asyncio.get_running_loop().create_future()
        if self._config.long_polling_enable:
            seconds = header.suspend_timeout_millis / 1000
        else:
            seconds = self._config.short_polling_ms / 1000

        def attempt(final: bool) -> bool:
            return self._attempt(held, pull, future, final)

        def refuse() -> None:
            if not future.done():
                future.set_result(pull.command.answer(ResponseCode.SERVICE_NOT_AVAILABLE, STOPPING))

        key = (header.topic, header.queue_id)
        held = HeldPull(pull.connection, key, header.queue_offset, pull.codes, attempt, refuse)
        held.below_mark = scan.below_mark
        # What may be held for long keeps none of the bytes that came with it.
        pull.command.ext = {}
        pull.command.body = b""
        return future if self._long_polling.hold(held, seconds) else None

    def _attempt(
        self, held: HeldPull, first: _Pull, future: asyncio.Future[RemotingCommand], final: bool
    ) -> bool:
        """Runs a held pull again; True when `future` has, or will get, its answer."""
        if future.done():
            return True
        header = first.header
        if not final and not self._reader.indexed_beyond(header.topic, header.queue_id, held.wanted):
            return False
        answer: RemotingCommand | asyncio.Future[RemotingCommand] | None
        try:
            pull = self._checked(first.connection, first.command, header)
            if pull.selector is None:
                answer = self._scan_again(held, pull, final)
            else:
                answer = self._select_again(held, pull, pull.selector, final)
            if answer is None:
                return False
        except RequestError as error:
            future.set_result(first.command.answer(error.code, error.remark))
            return True
        except BadEntry:
            answer = asyncio.ensure_future(self._selected(first))
        except CommitLogError as error:
            future.set_result(self._damaged(first, error))
            return True
        except Exception as error:
            logger.exception("waiting pull failed topic=%s queue=%d", header.topic, header.queue_id)
            text = f"{type(error).__name__}: {error}"
            future.set_result(first.command.answer(ResponseCode.SYSTEM_ERROR, text))
            return True
        if isinstance(answer, RemotingCommand):
            future.set_result(answer)
        else:
            answer.add_done_callback(lambda done: _pass_on(done, future))
        return True

    def _scan_again(
        self, held: HeldPull, pull: _Pull, final: bool
    ) -> RemotingCommand | asyncio.Future[RemotingCommand] | None:
        """The answer to a held pull; None when it is to be held on."""
        scan = self._scan(pull)
        if not final and self._code(scan, pull.header) is ResponseCode.PULL_NOT_FOUND:
            held.below_mark = scan.below_mark
            return None
        return self._answer(pull, scan)

    def _select_again(
        self, held: HeldPull, pull: _Pull, selector: Selector, final: bool
    ) -> RemotingCommand | None:
        """As `_scan_again`; what was looked at in vain is remembered in `held`, and answered in the end."""
        header = pull.header
        begun_s = time.perf_counter()
        scan, body = self._reader.select(
            header.topic,
            header.queue_id,
            held.wanted,
            header.max_msg_nums,
            pull.codes,
            selector,
            HELD_ENTRIES,
        )
        if scan.entries:
            return self._selected_answer(pull, scan, body, begun_s)
        nothing_new = self._code(scan, header) is ResponseCode.PULL_NOT_FOUND
        if not final and nothing_new:
            held.below_mark = scan.below_mark
            return None
        if not final and scan.status is PullStatus.NO_MATCHED_MESSAGE and scan.next_offset >= scan.max_offset:
            held.wanted = scan.next_offset
            held.below_mark = False
            return None
        if nothing_new and held.wanted > header.queue_offset:
            scan = scan._replace(status=PullStatus.NO_MATCHED_MESSAGE)
        self._stats.get(0, 0)
        return self._nothing(pull, scan)

    # Answering

    def _scan(self, pull: _Pull, count: int | None = None) -> Scan:
        header = pull.header
        count = header.max_msg_nums if count is None else count
        return self._reader.scan(header.topic, header.queue_id, header.queue_offset, count, pull.codes)

    def _code(self, scan: Scan, header: PullMessageHeader) -> ResponseCode:
        if scan.status in _EMPTY and header.queue_offset == 0:
            return ResponseCode.PULL_NOT_FOUND
        return _CODE_OF[scan.status]

    def _answer(self, pull: _Pull, scan: Scan) -> RemotingCommand | asyncio.Future[RemotingCommand]:
        if scan.impossible >= 0:
            header = pull.header
            place = header.topic, header.queue_id, scan.impossible
            error = BadEntry(scan.impossible, "the queue has no place of the log there", *place)
            return self._unreadable(pull, scan, error)
        if scan.cold:
            return asyncio.ensure_future(self._answer_cold(pull, scan))
        if scan.entries:
            begun_s = time.perf_counter()
            try:
                body = self._reader.load(scan.entries, scan.places)
            except CommitLogError as error:
                before = self._before(pull, scan, error)
                return self._unreadable(pull, scan, error) if before is None else self._answer(pull, before)
            return self._found(pull, scan, body, time.perf_counter() - begun_s)
        self._stats.get(0, 0)
        return self._nothing(pull, scan)

    async def _answer_cold(self, pull: _Pull, scan: Scan) -> RemotingCommand:
        begun_s = time.perf_counter()
        try:
            body = await self._offload(self._reader.load, scan.entries, scan.places)
        except CommitLogError as error:
            before = self._before(pull, scan, error)
            if before is not None and before.entries:
                return await self._answer_cold(pull, before)
            answer = self._unreadable(pull, scan, error)
            return await answer if isinstance(answer, asyncio.Future) else answer
        return self._found(pull, scan, body, time.perf_counter() - begun_s)

    async def _selected(self, pull: _Pull) -> RemotingCommand:
        """Looks at messages in a work thread; holds the pull when they are not readable yet."""
        header = pull.header
        begun_s = time.perf_counter()
        try:
            scan, body = await self._offload(
                self._reader.select,
                header.topic,
                header.queue_id,
                header.queue_offset,
                header.max_msg_nums,
                pull.codes,
                pull.selector,
            )
        except CommitLogError as error:
            if await self._is_mended(pull, error):
                return await self._selected(pull)
            return self._damaged(pull, error)
        if scan.entries:
            return self._selected_answer(pull, scan, body, begun_s)
        if header.sys_flag & FLAG_SUSPEND and self._code(scan, header) is ResponseCode.PULL_NOT_FOUND:
            held = self._hold(pull, scan)
            if held is not None:
                return await held
        self._stats.get(0, 0)
        return self._nothing(pull, scan)

    def _selected_answer(self, pull: _Pull, scan: Scan, body: bytes, begun_s: float) -> RemotingCommand:
        return self._found(pull, scan, body, time.perf_counter() - begun_s)

    def _found(self, pull: _Pull, scan: Scan, body: bytes, seconds: float) -> RemotingCommand:
        header, count, size = pull.header, len(scan.entries), len(body)
        self._stats.get(count, size, seconds)
        self._stats.traffic.got(header.topic, header.queue_id, header.consumer_group, count, size, seconds)
        ext = self._ext(scan, self._suggested(pull.group, scan))
        return pull.command.answer(_SUCCESS, _FOUND, ext, body)

    def _nothing(self, pull: _Pull, scan: Scan) -> RemotingCommand:
        header = pull.header
        code = self._code(scan, header)
        suggested = self._suggested(pull.group, scan)
        if code is ResponseCode.PULL_OFFSET_MOVED:
            if self._keeps_offset:
                code, suggested = ResponseCode.PULL_RETRY_IMMEDIATELY, pull.group.broker_id
            elif self._on_offset_moved is not None:
                self._on_offset_moved(
                    OffsetMoved(
                        header.consumer_group,
                        header.topic,
                        header.queue_id,
                        header.queue_offset,
                        scan.next_offset,
                    )
                )
        return pull.command.answer(code, scan.status.value, self._ext(scan, suggested))

    def _before(self, pull: _Pull, scan: Scan, error: CommitLogError) -> Scan | None:
        """As `scan`, of what comes before the damaged message; None if it is the first."""
        if not isinstance(error, CorruptRecord):
            return None
        if isinstance(error, BadEntry) and scan.places is not None:
            count = sum(offset < error.queue_offset for offset in scan.places.offsets)
        else:
            count = sum(entry.physical_offset < error.offset for entry in scan.entries)
        return self._scan(pull, count) if 0 < count < len(scan.entries) else None

    def _unreadable(
        self, pull: _Pull, scan: Scan, error: CommitLogError
    ) -> RemotingCommand | asyncio.Future[RemotingCommand]:
        """Retention was quicker than we: the client asks again.  Damage is an error, and said loudly, unless
        it is the queue's, which is mended.
        """
        header = pull.header
        if isinstance(error, BadEntry) and not pull.mended:
            return asyncio.ensure_future(self._answer_mended(pull, error))
        if not isinstance(error, OffsetNotFound):
            return self._damaged(pull, error)
        self._stats.get(0, 0)
        again = scan._replace(
            status=PullStatus.MESSAGE_WAS_REMOVING, next_offset=header.queue_offset, entries=()
        )
        return self._nothing(pull, again)

    async def _is_mended(self, pull: _Pull, error: CommitLogError) -> bool:
        """Whether it is worth looking again; once for each pull."""
        if pull.mended or not isinstance(error, BadEntry):
            return False
        pull.mended = True
        mended: bool = await self._offload(self._mend, error.topic, error.queue_id, error.queue_offset)
        return mended

    async def _answer_mended(self, pull: _Pull, error: BadEntry) -> RemotingCommand:
        if not await self._is_mended(pull, error):
            return self._damaged(pull, error)
        answer = self._answer(pull, self._scan(pull))
        return await answer if isinstance(answer, asyncio.Future) else answer

    def _damaged(self, pull: _Pull, error: CommitLogError) -> RemotingCommand:
        header = pull.header
        self._stats.get(0, 0)
        if self._throttle.ready():
            logger.error(
                "message cannot be served topic=%s queue=%d offset=%d reason=%s",
                header.topic,
                header.queue_id,
                header.queue_offset,
                error,
            )
        return pull.command.answer(ResponseCode.SYSTEM_ERROR, str(error))

    def _suggested(self, group: GroupConfig, scan: Scan) -> int:
        """Which broker of the pair the client should ask next."""
        if not self._config.slave_read_enable:
            return MASTER_ID
        return group.which_broker_when_consume_slowly if scan.slow else group.broker_id

    def _ext(self, scan: Scan, suggested: int) -> dict[str, str]:
        return pull_answer(suggested, scan.next_offset, scan.min_offset, scan.max_offset)


def keeps_offset(config: BrokerConfig) -> bool:
    """Whether this broker leaves a consumer's offset alone because its master knows better."""
    return config.role.is_slave and not config.offset_check_in_slave


def _pass_on(done: asyncio.Future[RemotingCommand], future: asyncio.Future[RemotingCommand]) -> None:
    if future.done():
        return
    if done.cancelled():
        future.cancel()
    elif (error := done.exception()) is not None:
        future.set_exception(error)
    else:
        future.set_result(done.result())
