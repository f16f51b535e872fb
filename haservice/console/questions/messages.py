"""Messages: found by id, by key, by time or by place; what a page shows of them, and who has consumed one."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from commitlog.kernel import records
from commitlog.kernel.records import StoredMessage, decode_properties
from haservice.admin.calls import Broker, MQAdmin
from haservice.admin.commands.messages.queries import MATCHES_MAX, query_each
from haservice.admin.commands.messages.tracking import Track, tracks
from haservice.admin.commands.topics.routing import readable_queues
from haservice.admin.many import Call
from haservice.client.admin import TOOLS_GROUP
from haservice.client.message import decode_all, host_text
from haservice.client.raw_sends import SendQueue
from haservice.client.reading import PULL_COUNT
from haservice.console.questions import bodies
from haservice.console.questions.many import Notes, ask_many, first_of_each_name, readable
from haservice.errors import AnswerError, HAServiceError, RemotingError
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.headers.clients import OffsetResponseHeader, QueueHeader, SearchOffsetHeader
from haservice.terminal.explain import ACL_REFUSAL
from haservice.terminal.output import preview

ROWS_MAX = 100
# A page of messages takes at most so many pulls and so long; the next page goes on where it ended.
PULLS_MAX = 100
PULLING_S = 6.0
PORT_MAX = 65535
# Groups that a message's page asks about.
TRACKS_MAX = 20


class NothingThere(HAServiceError):
    """No such message; the text says what to look for."""


class QueuePlace(NamedTuple):
    """A message's place in a queue, by the broker's name: it holds after a failover, too."""

    broker: str
    queue_id: int
    offset: int


class MessageRow(NamedTuple):
    """A message in a list."""

    place: QueuePlace
    topic: str
    message_id: str
    stored_ms: int
    tags: str
    keys: str
    bytes: int
    start: str
    physical_offset: int


@dataclass(slots=True)
class MessageFacts:
    broker: str
    message: StoredMessage
    properties: Mapping[str, str]
    body: bodies.BodyView
    notes: Notes = field(default_factory=Notes)

    @property
    def place(self) -> QueuePlace:
        return QueuePlace(self.broker, self.message.queue_id, self.message.queue_offset)

    @property
    def born_host(self) -> str:
        return host_text(self.message.born_host)

    @property
    def store_host(self) -> str:
        return host_text(self.message.store_host)


class Stored(NamedTuple):
    """Where an offset message id says that a message lies; `name` is "" if no such broker is registered."""

    addr: str
    name: str
    physical_offset: int


class QueueSpan(NamedTuple):
    """The part of a queue that a time range covers, about; `end` is exclusive."""

    queue: SendQueue
    begin: int
    end: int
    is_known: bool = True


@dataclass(slots=True)
class Range:
    """Messages of a time range; nothing is known of `unknown` queues.

    `next_queue` and `next_offset` say where the next page goes on.
    """

    rows: Sequence[MessageRow]
    about: int
    queues: int
    unknown: int
    next_queue: int = -1
    next_offset: int = -1
    notes: Notes = field(default_factory=Notes)

    @property
    def more(self) -> bool:
        return self.next_queue >= 0


def row_of(message: StoredMessage, broker: str) -> MessageRow:
    properties = decode_properties(message.properties)
    return MessageRow(
        QueuePlace(broker, message.queue_id, message.queue_offset),
        message.topic,
        properties.get("UNIQ_KEY", message.message_id),
        message.store_timestamp_ms,
        properties.get("TAGS", ""),
        properties.get("KEYS", ""),
        len(message.body),
        preview(bodies.start(message.body, message.sys_flag)),
        message.physical_offset,
    )


# -- one message -----------------------------------------------------------------------------------


def stored_at(brokers: Sequence[Broker], text: str) -> Stored | None:
    """Where an offset message id points to; None for a text that is none.

    An address is only asked if a nameserver knows it: an id can hold any.
    """
    try:
        ip, port, offset = records.parse_message_id(text)
    except ValueError:
        return None
    if not 0 < port <= PORT_MAX or offset < 0:
        return None
    addr = f"{ip}:{port}"
    return Stored(addr, next((one.name for one in brokers if one.addr == addr), ""), offset)


def by_offset_id(admin: MQAdmin, text: str) -> Stored | None:
    return stored_at(admin.brokers(), text)


def at_place(admin: MQAdmin, topic: str, place: QueuePlace) -> MessageFacts:
    """The message at a place of a queue.  Raises NothingThere."""
    addr = readable(admin.route(topic)).get(place.broker)
    if addr is None:
        raise NothingThere(f"Topic {topic} is not at a broker {place.broker} that is up.")
    pulled = admin.pull(addr, topic, place.queue_id, place.offset, 1, TOOLS_GROUP)
    found = next(decode_all(pulled.records), None) if pulled.code == ResponseCode.SUCCESS else None
    if found is None or found.queue_offset != place.offset:
        raise NothingThere(
            f"Queue {place.queue_id} of {topic} on {place.broker} has no message {place.offset}: it is not there"
            " yet, or no longer."
        )
    return _facts(found, place.broker)


def at_offset(admin: MQAdmin, name: str, physical_offset: int) -> MessageFacts:
    """The message at a physical offset of the broker's log.  Raises NothingThere."""
    brokers = first_of_each_name(admin.brokers(), lambda one: one.name == name)
    if name not in brokers:
        raise NothingThere(f"No broker {name} is registered.")
    try:
        record = admin.view(brokers[name].addr, physical_offset)
        return _facts(records.decode(record), name)
    except AnswerError as error:
        if error.code != ResponseCode.SYSTEM_ERROR or ACL_REFUSAL in (error.remark or ""):
            raise
        raise NothingThere(
            f"{name} has no message that begins at offset {physical_offset} of its log: {error}"
        ) from None


def tracks_of(admin: MQAdmin, message: StoredMessage) -> tuple[list[Track], Notes]:
    """Which groups have consumed it, and what could not be asked."""
    notes = Notes()
    with notes.hearing():
        return tracks(admin, message, TRACKS_MAX), notes


def _facts(message: StoredMessage, broker: str) -> MessageFacts:
    properties = decode_properties(message.properties)
    facts = MessageFacts(broker, message, properties, bodies.shown(message.body, message.sys_flag))
    if not message.crc_ok:
        facts.notes.add("The body does not match its checksum: these bytes are damaged.")
    return facts


# -- by key ----------------------------------------------------------------------------------------


def by_key(admin: MQAdmin, topic: str, key: str, unique: bool) -> tuple[list[MessageRow], Notes]:
    """The newest of each broker, 64 at most, the oldest first; `unique`: by the id its client gave it."""
    notes = Notes()
    names = {addr: name for name, addr in readable(admin.route(topic)).items()}
    with notes.hearing():
        found = query_each(admin, topic, key, MATCHES_MAX, unique=unique)
    return [row_of(one, names.get(addr, "")) for addr, one in found], notes


# -- by time ---------------------------------------------------------------------------------------


def in_range(
    admin: MQAdmin,
    topic: str,
    begin_ms: int | None,
    end_ms: int | None,
    broker: str | None,
    queue_id: int | None,
    from_queue: int = 0,
    from_offset: int = -1,
) -> Range:
    """A page of the messages that were stored from `begin_ms` on and before `end_ms`, queue by queue.

    Raises NothingThere, click.ClickException, RemotingError.
    """
    if broker is not None and ":" in broker:  # else it would be asked as an address
        raise NothingThere(f"No broker has the name {broker}.")
    notes = Notes()
    with notes.hearing():
        queues = readable_queues(admin, topic, broker, queue_id)
    spans = _spans(admin, topic, queues, begin_ms, end_ms, notes)
    lengths = [one.end - one.begin for one in spans if one.begin < one.end]
    unknown = sum(not one.is_known for one in spans)
    found = Range([], sum(lengths), len(lengths), unknown, notes=notes)
    rows: list[MessageRow] = []
    pages = _Pages(admin, topic, notes)
    for at, span in enumerate(spans[from_queue:], from_queue):
        begin = max(span.begin, from_offset) if at == from_queue else span.begin
        for message in pages.of(span, begin):
            if len(rows) == ROWS_MAX:
                found.next_queue, found.next_offset = at, message.queue_offset
                break
            stored = message.store_timestamp_ms
            if (begin_ms is None or stored >= begin_ms) and (end_ms is None or stored < end_ms):
                rows.append(row_of(message, span.queue.broker_name))
        if not found.more and pages.unread >= 0:
            found.next_queue, found.next_offset = at, pages.unread
        if found.more:
            break
    whole = from_queue == 0 and from_offset < 0 and not found.more
    found.rows = sorted(rows, key=lambda row: (row.stored_ms, row.place)) if whole else rows
    return found


class _Pages:
    """Pulls, as many as one page of the console may take.  `unread` is where the last queue was left, or -1."""

    def __init__(self, admin: MQAdmin, topic: str, notes: Notes) -> None:
        self._admin = admin
        self._topic = topic
        self._notes = notes
        self._pulls = 0
        self._until_s = time.monotonic() + PULLING_S
        self.unread = -1

    def of(self, span: QueueSpan, offset: int) -> Iterator[StoredMessage]:
        """The messages of the span from `offset` on; it ends before a message that is damaged."""
        queue = span.queue
        while offset < span.end:
            if self._pulls >= PULLS_MAX or time.monotonic() > self._until_s:
                self.unread = offset
                return
            self._pulls += 1
            count = min(PULL_COUNT, span.end - offset)
            try:
                pulled = self._admin.pull(queue.addr, self._topic, queue.queue_id, offset, count, TOOLS_GROUP)
            except RemotingError as error:
                self._notes.add(f"queue {queue.queue_id} of {queue.broker_name}: {error}")
                return
            if pulled.code == ResponseCode.SUCCESS:
                for message in decode_all(pulled.records):
                    if message.queue_offset < span.end:
                        yield message
            if pulled.next_offset <= offset:
                return
            offset = pulled.next_offset


def _spans(
    admin: MQAdmin,
    topic: str,
    queues: Sequence[SendQueue],
    begin_ms: int | None,
    end_ms: int | None,
    notes: Notes,
) -> list[QueueSpan]:
    """Of each queue; one that nothing is known of is empty.

    A stock 4.9 broker finds the message nearest to a time, and any of one millisecond: so each has a margin.
    """
    firsts = _offsets(admin, topic, queues, RequestCode.GET_MIN_OFFSET, None, notes)
    lasts = _offsets(admin, topic, queues, RequestCode.GET_MAX_OFFSET, None, notes)
    search = RequestCode.SEARCH_OFFSET_BY_TIMESTAMP
    begins, ends = firsts, lasts
    if begin_ms is not None:
        begins = _offsets(admin, topic, queues, search, max(0, begin_ms - 1), notes)
    if end_ms is not None:
        ends = _offsets(admin, topic, queues, search, end_ms, notes)
    spans = []
    for queue, first, last, begin, end in zip(queues, firsts, lasts, begins, ends, strict=True):
        if first is None or last is None or begin is None or end is None:
            spans.append(QueueSpan(queue, 0, 0, is_known=False))
        else:
            spans.append(QueueSpan(queue, max(first, begin), min(last, end + 1)))
    return spans


def _offsets(
    admin: MQAdmin,
    topic: str,
    queues: Sequence[SendQueue],
    code: RequestCode,
    when_ms: int | None,
    notes: Notes,
) -> list[int | None]:
    calls = []
    for queue in queues:
        header: QueueHeader | SearchOffsetHeader = QueueHeader(topic, queue.queue_id)
        if when_ms is not None:
            header = SearchOffsetHeader(topic, queue.queue_id, when_ms, SearchOffsetHeader.LOWER)
        calls.append(Call(queue.addr, code, header))
    answers = ask_many(admin, calls, notes)
    return [None if one is None else OffsetResponseHeader.decode(one.ext).offset for one in answers]
