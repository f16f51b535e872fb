"""Topics: names, routes, queues, and who consumes them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from haservice.admin.calls import MQAdmin
from haservice.admin.commands.topics.topic_list import masters_first
from haservice.admin.many import Call
from haservice.broker.send.retries import DLQ_PREFIX
from haservice.broker.topics.table import REPLY_SUFFIX, RETRY_PREFIX, SYSTEM_PREFIX, SYSTEM_TOPICS
from haservice.console.questions.many import Notes, ask_many, readable
from haservice.console.questions.paging import ListPage, cut, matching
from haservice.remoting.bodies.admin import ConsumeStats, GroupList
from haservice.remoting.bodies.clients import MessageQueue, TopicOffset, TopicRouteData, TopicStatsTable
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.headers.admin import ConsumeStatsHeader
from haservice.remoting.headers.clients import TopicHeader

# Groups of one topic whose lag is asked for; the others are named.
GROUPS_ASKED_MAX = 50
# Shorter than a page may take; a broker goes through every queue of a group.
STATS_TIMEOUT_S = 8.0


class TopicKind(Enum):
    USER = "topics"
    RETRY = "retry topics"
    DEAD = "dead letters"
    SYSTEM = "system topics"
    ALL = "all"


class TopicRow(NamedTuple):
    """`route` is None if the nameserver told none."""

    name: str
    kind: TopicKind
    route: TopicRouteData | None

    @property
    def queues(self) -> tuple[int, int]:
        """To read, to write."""
        datas = self.route.queue_datas if self.route is not None else ()
        return sum(one.read_queue_nums for one in datas), sum(one.write_queue_nums for one in datas)


class GroupLag(NamedTuple):
    """`lag` is None if it is unknown; `last_ms` is when the last message was stored that it consumed."""

    group: str
    lag: int | None
    last_ms: int = 0
    tps: float = 0.0


@dataclass(slots=True)
class TopicSeen:
    """Not `complete`: some broker did not tell of its queues; not `groups_known`: of the groups."""

    name: str
    kind: TopicKind
    route: TopicRouteData
    queues: ListPage[tuple[MessageQueue, TopicOffset]]
    messages: int
    complete: bool
    groups: Sequence[GroupLag]
    groups_known: bool
    notes: Notes = field(default_factory=Notes)


def kind_of(name: str, system: Collection[str] = ()) -> TopicKind:
    """`system` are names of clusters and brokers, which have topics of their own.  Pure."""
    if name.startswith(RETRY_PREFIX):
        return TopicKind.RETRY
    if name.startswith(DLQ_PREFIX):
        return TopicKind.DEAD
    of_system = name in SYSTEM_TOPICS or name in system or name.startswith(SYSTEM_PREFIX)
    return TopicKind.SYSTEM if of_system or name.endswith(REPLY_SUFFIX) else TopicKind.USER


def topic_list(admin: MQAdmin, text: str, kind: TopicKind, number: int) -> ListPage[TopicRow]:
    """The topics with `text` in their names; routes of those that are shown."""
    brokers = admin.brokers()
    system = {one.cluster for one in brokers} | {one.name for one in brokers}
    kinds = {name: kind_of(name, system) for name in matching(admin.topics(), text)}
    names = [name for name, one in kinds.items() if kind in (one, TopicKind.ALL)]
    page = cut(names, number)
    routes = admin.routes(page.rows)
    rows = [TopicRow(name, kinds[name], routes.get(name)) for name in page.rows]
    return ListPage(rows, page.total, page.number, page.size)


def topic_facts(admin: MQAdmin, name: str, number: int) -> TopicSeen:
    """Raises RouteUnknown for a topic that no nameserver knows."""
    route = masters_first(admin.route(name))
    notes = Notes()
    addrs = list(readable(route).values())
    code = RequestCode.GET_TOPIC_STATS_INFO
    tables = ask_many(admin, [Call(addr, code, TopicHeader(name), TopicStatsTable) for addr in addrs], notes)
    offsets = {
        queue: one for table in tables if table is not None for queue, one in table.offset_table.items()
    }
    known, groups = _groups(admin, name, addrs, notes)
    return TopicSeen(
        name,
        kind_of(name),
        route,
        cut(sorted(offsets.items(), key=lambda item: item[0]), number),
        sum(one.max_offset - one.min_offset for one in offsets.values()),
        None not in tables,
        groups,
        known,
        notes,
    )


def _groups(admin: MQAdmin, name: str, addrs: Sequence[str], notes: Notes) -> tuple[bool, list[GroupLag]]:
    """(whether all brokers told, the groups that consume the topic)."""
    code = RequestCode.QUERY_TOPIC_CONSUME_BY_WHO
    lists = ask_many(admin, [Call(addr, code, TopicHeader(name), GroupList) for addr in addrs], notes)
    groups = sorted({group for one in lists if one is not None for group in one.group_list})
    asked = groups[:GROUPS_ASKED_MAX]
    calls = [
        Call(addr, RequestCode.GET_CONSUME_STATS, ConsumeStatsHeader(group, name), ConsumeStats)
        for group in asked
        for addr in addrs
    ]
    # A broker answers code 1 for a group that has no offset there.
    answers = iter(ask_many(admin, calls, notes, STATS_TIMEOUT_S, [ResponseCode.SYSTEM_ERROR]))
    found = [_lag(group, [next(answers) for _ in addrs], bool(notes.unheard)) for group in asked]
    found += [GroupLag(group, None) for group in groups[GROUPS_ASKED_MAX:]]
    return None not in lists, found


def _lag(group: str, answers: Sequence[ConsumeStats | None], is_partial: bool) -> GroupLag:
    known = [one for one in answers if one is not None]
    queues = [progress for one in known for progress in one.offset_table.values()]
    if not queues or is_partial:
        return GroupLag(group, None)
    last_ms = max(one.last_timestamp for one in queues)
    return GroupLag(group, sum(one.lag for one in queues), last_ms, sum(one.consume_tps for one in known))
