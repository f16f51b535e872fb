"""Dead letters: which groups have some, what they are, and sending them again.

    to the retry topic      %RETRY%group: the group alone gets them, as if it tried once more
    to the original topic   all groups that consume it get them

A message is sent as it is stored, with its keys, tags and properties, and with none that would delay it, make it
half a transaction, or count its former tries.  The dead letter itself stays where it is.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from commitlog.kernel import layout
from commitlog.kernel.records import StoredMessage, decode_properties
from haservice.admin.calls import MQAdmin
from haservice.admin.many import Call
from haservice.broker.delay.redirect import DELAY, REAL_QUEUE_ID, REAL_TOPIC, TRANSACTION_PREPARED, WAIT
from haservice.broker.send.retries import (
    DLQ_PREFIX,
    ORIGIN_MESSAGE_ID,
    RETRY_TOPIC,
    dead_letter_topic,
    retry_topic,
)
from haservice.client.admin import TOOLS_GROUP
from haservice.client.message import SYS_COMPRESSION_MASK, decode_all
from haservice.client.raw_sends import (
    NO_ANSWER,
    STORED,
    RawMessage,
    SendQueue,
    Sent,
    send_one,
    writable_queues,
)
from haservice.client.reading import PULL_COUNT
from haservice.console.questions.groups import check_group
from haservice.console.questions.many import Notes, ask_many, readable
from haservice.console.questions.messages import MessageRow, NothingThere, QueuePlace, row_of
from haservice.console.questions.paging import ListPage, cut, matching
from haservice.remoting.bodies.clients import TopicStatsTable
from haservice.remoting.client import RemotingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.headers.clients import TopicHeader

GROUPS_MAX = 100
# Of one page, and of one sending.
LETTERS_MAX = 50
SENDS_AT_ONCE = 8
SENDING_S = 15.0

NOT_SENT_AGAIN = frozenset(
    {
        DELAY,
        REAL_TOPIC,
        REAL_QUEUE_ID,
        TRANSACTION_PREPARED,
        WAIT,
        "RECONSUME_TIME",
        "MAX_RECONSUME_TIMES",
        "CONSUME_START_TIME",
        "MIN_OFFSET",
        "MAX_OFFSET",
    }
)


class Where(Enum):
    """Where dead letters are sent."""

    RETRY = "retry"
    ORIGINAL = "original"


class DeadQueue(NamedTuple):
    broker: str
    queue_id: int
    min_offset: int
    max_offset: int
    last_ms: int

    @property
    def messages(self) -> int:
        return self.max_offset - self.min_offset


class DeadGroup(NamedTuple):
    """`queues` is empty if no broker told of them."""

    group: str
    queues: Sequence[DeadQueue]

    @property
    def messages(self) -> int:
        return sum(one.messages for one in self.queues)

    @property
    def last_ms(self) -> int:
        return max((one.last_ms for one in self.queues), default=0)


@dataclass(slots=True)
class Letters:
    """Some dead letters of one queue, the newest first; older ones begin before `older`, -1 if there are none."""

    group: str
    queues: Sequence[DeadQueue]
    shown: DeadQueue | None
    rows: Sequence[MessageRow] = ()
    older: int = -1
    notes: Notes = field(default_factory=Notes)


class Letter(NamedTuple):
    """One that is to be sent again; with a `trouble` it cannot be."""

    row: MessageRow
    topic: str
    message: RawMessage
    trouble: str = ""


class Outcome(NamedTuple):
    letter: Letter
    status: str
    remark: str
    queue_offset: int | None

    @property
    def is_stored(self) -> bool:
        return self.status in STORED


def dead_groups(admin: MQAdmin, text: str, number: int) -> tuple[ListPage[DeadGroup], Notes]:
    names = [name.removeprefix(DLQ_PREFIX) for name in admin.topics() if name.startswith(DLQ_PREFIX)]
    page, notes = cut(matching(names, text), number, GROUPS_MAX), Notes()
    return ListPage(_queues(admin, page.rows, notes), page.total, page.number, page.size), notes


def letters(admin: MQAdmin, group: str, broker: str, queue_id: int, before: int) -> Letters:
    """The newest of that queue before that offset (-1: its end); without a broker, of the first with any.

    Raises NothingThere if there is no such group.
    """
    notes = Notes()
    (dead,) = _queues(admin, [group], notes)
    if not dead.queues:
        check_group(admin, group, notes)
    chosen = [one for one in dead.queues if (one.broker, one.queue_id) == (broker, queue_id)]
    chosen += [one for one in dead.queues if one.messages and not broker]
    found = Letters(group, dead.queues, chosen[0] if chosen else None, notes=notes)
    if found.shown is None:
        return found
    queue = found.shown
    end = queue.max_offset if before < 0 else min(before, queue.max_offset)
    begin = max(queue.min_offset, end - LETTERS_MAX)
    stored = _read(admin, dead_letter_topic(group), queue.broker, queue.queue_id, begin, end)
    found.rows = [row_of(one, queue.broker) for one in reversed(stored)]
    found.older = begin if begin > queue.min_offset else -1
    return found


def to_send(admin: MQAdmin, group: str, places: Sequence[QueuePlace], where: Where) -> list[Letter]:
    """These dead letters, made ready.  Raises NothingThere if one is gone."""
    topic = dead_letter_topic(group)
    found = []
    for place in places:
        stored = _read(admin, topic, place.broker, place.queue_id, place.offset, place.offset + 1)
        if not stored:
            raise NothingThere(
                f"{topic} has no message {place.offset} in queue {place.queue_id} of {place.broker}."
            )
        found.append(_letter(stored[0], place.broker, group, where))
    there = admin.routes({one.topic for one in found if not one.trouble})
    gone = "there is no topic {} (any more)"
    return [
        one if one.trouble or one.topic in there else one._replace(trouble=gone.format(one.topic))
        for one in found
    ]


def _letter(stored: StoredMessage, broker: str, group: str, where: Where) -> Letter:
    """Pure."""
    properties = decode_properties(stored.properties)
    original = properties.get(RETRY_TOPIC, "")
    kept = {name: value for name, value in properties.items() if name not in NOT_SENT_AGAIN}
    trouble = ""
    if not original:
        trouble = "it does not say from which topic it came"
    if where is Where.ORIGINAL:
        kept = {name: value for name, value in kept.items() if name not in (RETRY_TOPIC, ORIGIN_MESSAGE_ID)}
    flags = stored.sys_flag & (layout.SYS_COMPRESSED | SYS_COMPRESSION_MASK)
    topic = original if where is Where.ORIGINAL else retry_topic(group)
    message = RawMessage(bytes(stored.body), kept, stored.flag, flags)
    return Letter(row_of(stored, broker), topic, message, trouble)


def send_again(admin: MQAdmin, ready: Sequence[Letter]) -> list[Outcome]:
    """Sends each once, some at a time, and says what became of it.  Raises RouteUnknown."""
    topics = {one.topic for one in ready if not one.trouble}
    queues = {topic: writable_queues(admin, topic) for topic in topics}
    pairs = [(one, queues.get(one.topic, [])) for one in ready]
    return admin.use(lambda client: _send_all(client, pairs))


async def _send_all(client: RemotingClient, pairs: Sequence[tuple[Letter, list[SendQueue]]]) -> list[Outcome]:
    turn = asyncio.Semaphore(SENDS_AT_ONCE)

    async def send(at: int, letter: Letter, queues: list[SendQueue]) -> Outcome:
        if letter.trouble:
            return Outcome(letter, "NOT_SENT", letter.trouble, None)
        async with turn:
            sent: Sent = await send_one(client, letter.topic, queues[at % len(queues)], letter.message)
        return Outcome(letter, sent.status, sent.remark or "", sent.queue_offset)

    tasks = [asyncio.ensure_future(send(at, *pair)) for at, pair in enumerate(pairs)]
    done, late = await asyncio.wait(tasks, timeout=SENDING_S)
    for task in late:
        task.cancel()
    await asyncio.gather(*late, return_exceptions=True)
    said = "no answer in time: it may be stored"
    return [
        task.result() if task in done else Outcome(letter, NO_ANSWER, said, None)
        for task, (letter, _) in zip(tasks, pairs, strict=True)
    ]


def _queues(admin: MQAdmin, groups: Sequence[str], notes: Notes) -> list[DeadGroup]:
    routes = admin.routes([dead_letter_topic(group) for group in groups])
    asked = [
        (group, addr)
        for group in groups
        if (route := routes.get(dead_letter_topic(group))) is not None
        for addr in readable(route).values()
    ]
    code = RequestCode.GET_TOPIC_STATS_INFO
    calls = [
        Call(addr, code, TopicHeader(dead_letter_topic(group)), TopicStatsTable) for group, addr in asked
    ]
    found: dict[str, list[DeadQueue]] = {group: [] for group in groups}
    for (group, _), table in zip(asked, ask_many(admin, calls, notes), strict=True):
        for queue, one in table.offset_table.items() if table is not None else ():
            found[group].append(
                DeadQueue(
                    queue.broker_name,
                    queue.queue_id,
                    one.min_offset,
                    one.max_offset,
                    one.last_update_timestamp,
                )
            )
    return [DeadGroup(group, sorted(queues)) for group, queues in found.items()]


def _read(
    admin: MQAdmin, topic: str, broker: str, queue_id: int, begin: int, end: int
) -> list[StoredMessage]:
    """The messages of a queue from `begin` on, before `end`."""
    addr = readable(admin.route(topic)).get(broker)
    if addr is None:
        raise NothingThere(f"Topic {topic} is not at a broker {broker} that is up.")
    found: list[StoredMessage] = []
    while begin < end:
        count = min(PULL_COUNT, end - begin)
        pulled = admin.pull(addr, topic, queue_id, begin, count, TOOLS_GROUP)
        if pulled.code == ResponseCode.SUCCESS:
            found += [one for one in decode_all(pulled.records) if begin <= one.queue_offset < end]
        if pulled.next_offset <= begin:
            break
        begin = pulled.next_offset
    return found
