"""What brokers hold back: delayed messages by level, and transactions that nobody has ended yet.

    delayed        SCHEDULE_TOPIC_XXXX, a queue for each level, and how far each is delivered (45)
    transactions   the half messages from where the check stands on, without those that have an op record

Stock brokers have the same topics and answer the same requests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from commitlog.kernel import records
from commitlog.kernel.records import StoredMessage, decode_properties
from haservice.admin.calls import Broker, MQAdmin
from haservice.admin.many import Call
from haservice.broker.delay.redirect import CHECK_TIMES, REAL_TOPIC
from haservice.broker.topics.table import CHECK_MAX_TIME_TOPIC, HALF_TOPIC, OP_HALF_TOPIC, SCHEDULE_TOPIC
from haservice.broker.transactions.half_messages import (
    GROUP,
    PRODUCER_GROUP,
    QUEUE_ID,
    number_of,
    original_of,
)
from haservice.client.admin import TOOLS_GROUP
from haservice.client.message import decode_all
from haservice.client.reading import PULL_COUNT
from haservice.console.questions.many import Notes, ask_many, first_of_each_name
from haservice.console.questions.messages import MessageRow, row_of
from haservice.errors import AnswerError, RemotingError
from haservice.remoting.bodies.admin import ConsumeQueueBody
from haservice.remoting.bodies.clients import DelayOffsetWrapper, TopicOffset, TopicStatsTable
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.headers.admin import ConsumeQueueHeader
from haservice.remoting.headers.clients import (
    OffsetResponseHeader,
    QueryConsumerOffsetHeader,
    QueueHeader,
    TopicHeader,
    ViewMessageHeader,
)

LEVELS_KEY = "messageDelayLevel"
# Half messages that a page reads of one broker, and op records.
HALVES_MAX = 200
OPS_MAX = 3200
# Read one by one.
ENTRIES_MAX = 200
# The most that are listed.
LISTED_MAX = 100


class Level(NamedTuple):
    """`waiting` is None if the broker does not tell how far the level is delivered, `stored` if not what it holds."""

    level: int
    delay: str
    waiting: int | None
    stored: int | None
    last_ms: int


class Open(NamedTuple):
    """A transaction that its producer has neither committed nor rolled back."""

    row: MessageRow
    topic: str
    group: str
    checks: int


@dataclass(slots=True)
class Waiting:
    """Of one broker.  `read_all`: all half messages that may be open were looked at."""

    broker: Broker
    levels: Sequence[Level] = ()
    transactions: Sequence[Open] = ()
    transactions_known: bool = False
    read_all: bool = True
    discarded: int | None = None
    notes: Notes = field(default_factory=Notes)

    @property
    def delayed(self) -> int:
        return sum(one.waiting or 0 for one in self.levels)


def names(admin: MQAdmin) -> list[str]:
    return sorted({one.name for one in admin.brokers()})


def waiting(admin: MQAdmin, name: str) -> Waiting | None:
    """What the master of that name holds back, or else its first slave; None if there is none."""
    brokers = first_of_each_name(admin.brokers(), lambda one: one.name == name)
    if name not in brokers:
        return None
    found = Waiting(brokers[name])
    _delayed(admin, found)
    _transactions(admin, found)
    return found


def _delayed(admin: MQAdmin, found: Waiting) -> None:
    addr = found.broker.addr
    calls = [
        Call(addr, RequestCode.GET_TOPIC_STATS_INFO, TopicHeader(SCHEDULE_TOPIC), TopicStatsTable),
        Call(addr, RequestCode.GET_ALL_DELAY_OFFSET, into=DelayOffsetWrapper),
    ]
    stats, offsets = ask_many(admin, calls, found.notes, fine=[ResponseCode.TOPIC_NOT_EXIST])
    is_unknown = stats is None and bool(found.notes.unheard)
    try:
        delays = admin.broker_config(addr).get(LEVELS_KEY, "").split()
    except RemotingError as error:
        found.notes.failed(error)
        delays = []
    queues = {} if stats is None else {queue.queue_id: one for queue, one in stats.offset_table.items()}
    if is_unknown:
        found.levels = [Level(level, delay, None, None, 0) for level, delay in enumerate(delays, 1)]
    else:
        found.levels = levels_of(delays, queues, None if offsets is None else offsets.offset_table)


def levels_of(
    delays: Sequence[str], queues: Mapping[int, TopicOffset], delivered: Mapping[int, int] | None
) -> list[Level]:
    """The levels that had messages, and all that the broker names.  Pure."""
    levels = []
    for level in range(1, max([len(delays), *(number + 1 for number in queues)], default=0) + 1):
        queue = queues.get(level - 1, TopicOffset())
        left = None
        if delivered is not None:
            done = max(delivered.get(level, 0), queue.min_offset)
            left = max(0, queue.max_offset - done)
        delay = delays[level - 1] if level <= len(delays) else ""
        levels.append(Level(level, delay, left, queue.max_offset, queue.last_update_timestamp))
    return levels


def _transactions(admin: MQAdmin, found: Waiting) -> None:
    """Asks for ends and offsets by queue: a stock broker has no topic of that name before its first check."""
    addr = found.broker.addr
    halves, ops, discarded = (
        _bounds(admin, addr, topic, found.notes)
        for topic in (HALF_TOPIC, OP_HALF_TOPIC, CHECK_MAX_TIME_TOPIC)
    )
    found.discarded = None if discarded is None else discarded[1] - discarded[0]
    if halves is None or ops is None:
        return
    calls = [
        Call(addr, RequestCode.QUERY_CONSUMER_OFFSET, QueryConsumerOffsetHeader(GROUP, topic, QUEUE_ID))
        for topic in (HALF_TOPIC, OP_HALF_TOPIC)
    ]
    checked, ended = (
        0 if one is None else OffsetResponseHeader.decode(one.ext).offset
        for one in ask_many(admin, calls, found.notes, fine=[ResponseCode.QUERY_NOT_FOUND])
    )
    try:
        half, all_halves = _from(admin, addr, HALF_TOPIC, (max(checked, halves[0]), halves[1]), HALVES_MAX)
        op, all_ops = _from(admin, addr, OP_HALF_TOPIC, (max(ended, ops[0]), ops[1]), OPS_MAX)
    except RemotingError as error:
        found.notes.failed(error)
        return
    found.transactions = open_ones(half, op, found.broker.name)[:LISTED_MAX]
    found.transactions_known, found.read_all = True, all_halves
    if not all_ops:
        found.notes.add("Not all op records were read: some of these transactions may have ended.")


def open_ones(half: Sequence[StoredMessage], op: Sequence[StoredMessage], broker: str) -> list[Open]:
    """Those that no op record ends, each once: the check puts copies behind.  Pure."""
    ended = {
        number_of(part, -1) for one in op for part in one.body.decode(errors="replace").split(",") if part
    }
    latest: dict[int, Open] = {}
    for message in half:
        properties = decode_properties(message.properties)
        original = original_of(message, properties)
        if message.queue_offset in ended or original in ended:
            latest.pop(original, None)
            continue
        latest[original] = Open(
            row_of(message, broker),
            properties.get(REAL_TOPIC, ""),
            properties.get(PRODUCER_GROUP, ""),
            number_of(properties.get(CHECK_TIMES, ""), 0),
        )
    return list(latest.values())


def _bounds(admin: MQAdmin, addr: str, topic: str, notes: Notes) -> tuple[int, int] | None:
    """The first offset of queue 0, and its end."""
    codes = (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
    answers = ask_many(admin, [Call(addr, code, QueueHeader(topic, QUEUE_ID)) for code in codes], notes)
    if None in answers:
        return None
    first, end = (OffsetResponseHeader.decode(one.ext).offset for one in answers)
    return max(0, first), max(0, end)


def _from(
    admin: MQAdmin, addr: str, topic: str, bounds: tuple[int, int], most: int
) -> tuple[list[StoredMessage], bool]:
    """At most so many messages of queue 0, and whether these are all between the bounds."""
    begin, end = bounds[0], min(bounds[1], bounds[0] + most)
    found: list[StoredMessage] = []
    while begin < end:
        count = min(PULL_COUNT, end - begin)
        try:
            pulled = admin.pull(addr, topic, QUEUE_ID, begin, count, TOOLS_GROUP)
        except AnswerError as error:
            if error.code != ResponseCode.TOPIC_NOT_EXIST:
                raise
            end = min(end, begin + ENTRIES_MAX)
            return [*found, *_by_entries(admin, addr, topic, begin, end)], end == bounds[1]
        if pulled.code == ResponseCode.SUCCESS:
            found += [one for one in decode_all(pulled.records) if one.queue_offset < end]
        if pulled.next_offset <= begin:
            break
        begin = pulled.next_offset
    return found, begin >= bounds[1]


def _by_entries(admin: MQAdmin, addr: str, topic: str, begin: int, end: int) -> list[StoredMessage]:
    """The messages that the queue's entries name, for a queue whose topic the broker does not know."""
    header = ConsumeQueueHeader(topic, QUEUE_ID, begin, end - begin)
    body = admin.ask(addr, RequestCode.QUERY_CONSUME_QUEUE, header, into=ConsumeQueueBody)
    calls = [
        Call(addr, RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageHeader(entry.physic_offset))
        for entry in body.queue_data[: end - begin]
    ]
    answers = admin.call_many(calls)
    return [records.decode(one.body) for one in answers if not isinstance(one, RemotingError)]
