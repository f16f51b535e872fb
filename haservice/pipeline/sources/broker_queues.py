"""The queues of topics: which brokers have them, their first and last offsets, and a stream's offsets.

A stream's offset is a tree in JSON: topic > broker > queue > offset.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

from haservice.broker.topics.table import PERM_READ
from haservice.client.admin import TOOLS_GROUP, Admin
from haservice.errors import AnswerError, RemotingTimeout, RemotingUnreachable
from haservice.pipeline.sources.broker_options import BrokerOptions, ReadFrom
from haservice.pipeline.sources.brokers import BrokerRefused
from haservice.remoting.bodies.clients import MASTER_ID, BrokerData, TopicRouteData
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.headers.clients import QueueHeader, SearchOffsetHeader

T = TypeVar("T")
Tree = dict[str, dict[str, dict[str, int]]]


class SourceQueue(NamedTuple):
    """One queue, and the addresses of who has it; the first is asked first."""

    topic: str
    broker_name: str
    queue_id: int
    addrs: tuple[str, ...]


class Span(NamedTuple):
    """Offsets of a queue: from the first that it holds to behind the last that consumers may read."""

    low: int
    high: int


class SourceTopics:
    """The queues of some topics, and their bounds.  Asks the brokers each time; for one thread only."""

    def __init__(self, admin: Admin, options: BrokerOptions) -> None:
        self._admin = admin
        self._options = options

    def queues(self) -> list[SourceQueue]:
        """Raises BrokerRefused for a topic without a queue, RemotingError or AnswerError."""
        found = []
        for topic in self._options.topics:
            route = self._route(topic)
            brokers = {data.broker_name: self._addrs(data) for data in route.broker_datas}
            of_topic = [
                SourceQueue(topic, data.broker_name, number, brokers[data.broker_name])
                for data in route.queue_datas
                if data.perm & PERM_READ and brokers.get(data.broker_name)
                for number in range(data.read_queue_nums)
            ]
            if not of_topic:
                wanted = "slave" if self._options.read_from is ReadFrom.SLAVE else "broker"
                raise BrokerRefused(
                    f"topic {topic} has no queue on a {wanted} that is up\n"
                    f"  mqadmin topicRoute -t {topic} shows where it is"
                )
            found += of_topic
        return sorted(found)

    def _route(self, topic: str) -> TopicRouteData:
        try:
            return self._admin.route(topic)
        except AnswerError as error:
            if error.code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise
            raise BrokerRefused(
                f"nameServer {error.addr} is none: it knows of no routes; a broker's?"
            ) from None

    def _addrs(self, data: BrokerData) -> tuple[str, ...]:
        slave = self._options.read_from is ReadFrom.SLAVE
        return tuple(
            addr
            for broker_id, addr in sorted(data.broker_addrs.items())
            if not (slave and broker_id == MASTER_ID)
        )

    def span(self, queue: SourceQueue) -> Span:
        """Asks the broker.  If it holds messages back for its slaves, finds out how far it gives messages."""
        low, high = (
            self._offset(queue, code, QueueHeader(queue.topic, queue.queue_id))
            for code in (RequestCode.GET_MIN_OFFSET, RequestCode.GET_MAX_OFFSET)
        )
        if high <= low or self._is_given(queue, high - 1):
            return Span(low, max(low, high))
        given, held = low, high - 1  # all below `given` is given; what is at `held` is not
        while given < held:
            middle = (given + held) // 2
            given, held = (middle + 1, held) if self._is_given(queue, middle) else (given, middle)
        return Span(low, given)

    def at_time(self, queue: SourceQueue, stored_ms: int) -> int:
        """The offset of the first message stored at or after a time; a stock 4.9 broker's nearest to it."""
        header = SearchOffsetHeader(queue.topic, queue.queue_id, stored_ms, SearchOffsetHeader.LOWER)
        return self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    def _offset(self, queue: SourceQueue, code: RequestCode, header: QueueHeader | SearchOffsetHeader) -> int:
        return self._first_that_answers(queue, lambda addr: self._admin.offset(addr, code, header))

    def _is_given(self, queue: SourceQueue, offset: int) -> bool:
        pulled = self._first_that_answers(
            queue,
            lambda addr: self._admin.pull(addr, queue.topic, queue.queue_id, offset, 1, TOOLS_GROUP),
        )
        return pulled.code != ResponseCode.PULL_NOT_FOUND or pulled.next_offset > offset

    def _first_that_answers(self, queue: SourceQueue, ask: Callable[[str], T]) -> T:
        failures: list[RemotingUnreachable | RemotingTimeout] = []
        for addr in queue.addrs:
            try:
                return ask(addr)
            except (RemotingUnreachable, RemotingTimeout) as error:
                failures.append(error)
        raise failures[0]


# -- offsets of a stream -------------------------------------------------------------------------------


def tree_of(offsets: Iterable[tuple[SourceQueue, int]]) -> Tree:
    tree: Tree = {}
    for queue, offset in offsets:
        brokers = tree.setdefault(queue.topic, {})
        brokers.setdefault(queue.broker_name, {})[str(queue.queue_id)] = offset
    return tree


def offset_in(tree: Tree, queue: SourceQueue) -> int | None:
    return tree.get(queue.topic, {}).get(queue.broker_name, {}).get(str(queue.queue_id))


def merged(old: Tree, new: Tree) -> Tree:
    """The offsets of `new`, and those of `old` for all other queues."""
    offsets = {**_flat(old), **_flat(new)}
    return tree_of((SourceQueue(*key, ()), offset) for key, offset in sorted(offsets.items()))


def missing(start: Tree, end: Tree, queues: Iterable[SourceQueue]) -> str:
    """Names a queue with messages between two offsets that is not among `queues`; "" if there is none."""
    begins, there = _flat(start), {queue[:3] for queue in queues}
    for key, offset in _flat(end).items():
        if key not in there and begins.get(key, 0) < offset:
            topic, broker, queue_id = key
            return f"queue {queue_id} of topic {topic} on {broker}"
    return ""


def _flat(tree: Tree) -> dict[tuple[str, str, int], int]:
    return {
        (topic, broker, int(queue_id)): offset
        for topic, brokers in tree.items()
        for broker, queues in brokers.items()
        for queue_id, offset in queues.items()
    }


def limited(
    begins: Mapping[SourceQueue, int], ends: Mapping[SourceQueue, int], most: int
) -> dict[SourceQueue, int]:
    """At most `most` offsets on from `begins`: each queue gets its share of the messages there are.

    A share is at least one while any are left; the queue that is furthest behind comes first.
    """
    counts = {queue: end - begins[queue] for queue, end in ends.items()}
    total = sum(counts.values())
    left, found = most, dict(begins)
    for queue in sorted(counts, key=lambda one: (-counts[one], one)):
        share = min(left, counts[queue], max(1, most * counts[queue] // max(total, 1)))
        found[queue] += share
        left -= share
    return found
