"""Consumer groups: their lag, their members, and what a reset of their offsets would do."""

from __future__ import annotations

import hashlib
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from haservice.admin.calls import MQAdmin
from haservice.admin.commands.groups.consumers import group_names, kind_of, overview_of
from haservice.admin.commands.groups.group_calls import consume_stats, consumer_connection, queue_owners
from haservice.admin.commands.groups.offsets import END, OffsetMove, moves_at, reset
from haservice.admin.many import Call
from haservice.broker.send.retries import dead_letter_topic, retry_topic
from haservice.console.questions.many import Notes, ask_many, first_of_each_name, readable
from haservice.console.questions.messages import NothingThere
from haservice.console.questions.paging import ListPage, cut, matching
from haservice.errors import AnswerError, RemotingError
from haservice.remoting.bodies.admin import ConsumerConnection, ConsumeStats, QueueProgress
from haservice.remoting.bodies.clients import MessageQueue, SubscriptionGroupWrapper
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.headers.overview import GroupOverview
from haservice.terminal.explain import ACL_REFUSAL

__all__ = ["END", "GroupSeen", "ResetPlan", "group_facts", "group_list", "reset", "reset_plan"]

GROUPS_MAX = 100


class GroupRow(NamedTuple):
    """Of all brokers together; None is unknown.  Not `complete`: a broker that did not tell may add to it."""

    group: str
    members: int | None
    version: int | None
    kind: str | None
    model: str | None
    tps: float | None
    behind: int | None
    complete: bool


class TopicLag(NamedTuple):
    topic: str
    queues: int
    lag: int
    last_ms: int


@dataclass(slots=True)
class GroupSeen:
    """`members` is None if nobody is online, or, without `members_known`, if a broker could not say.

    Not `complete`: a broker did not tell of its queues.
    """

    name: str
    members: ConsumerConnection | None
    members_known: bool
    complete: bool
    topics: Sequence[TopicLag]
    queues: ListPage[tuple[MessageQueue, QueueProgress]]
    owners: dict[tuple[str, str, int], str] | None
    tps: float
    lag: int
    notes: Notes = field(default_factory=Notes)


@dataclass(slots=True)
class ResetPlan:
    """What a reset would do, as of `at_ms`.  `online` are the broker names where members would be told."""

    group: str
    topic: str
    when_ms: int
    force: bool
    moves: Sequence[OffsetMove]
    online: Sequence[str]
    at_ms: int

    @property
    def facts(self) -> str:
        """What is agreed to, but for what goes on by itself: new messages, and members that consume."""
        known = [
            (
                one.queue,
                one.is_first,
                None if self.online else one.progress.consumer_offset,
                None if self.at_end else one.offset,
            )
            for one in self.moves
        ]
        return hashlib.sha256(repr((self.group, self.topic, tuple(self.online), known)).encode()).hexdigest()

    @property
    def position(self) -> int:
        """Where the group is, all queues together: members move it forward only."""
        return sum(_known(one) for one in self.moves)

    @property
    def without(self) -> list[str]:
        """The broker names where the group has no offset in the topic: brokers refuse to reset it then."""
        return sorted({one.queue.broker_name for one in self.moves if one.is_first})

    @property
    def needs_name(self) -> bool:
        """Whether messages may be skipped for good: then the group's name has to be typed."""
        return self.skipped > 0

    @property
    def does_something(self) -> bool:
        return bool(self.back or self.skipped) and not self.without

    @property
    def back(self) -> int:
        """How many messages would be consumed again, as far as they are still there."""
        return sum(max(0, _known(one) - one.offset) for one in self._moving)

    @property
    def skipped(self) -> int:
        """How many messages would not be consumed at all."""
        return sum(max(0, one.offset - _known(one)) for one in self._moving)

    @property
    def at_end(self) -> bool:
        return self.when_ms == END

    @property
    def _moving(self) -> list[OffsetMove]:
        return [one for one in self.moves if one.moves(self.force) and not one.is_first]


def _known(move: OffsetMove) -> int:
    return max(0, move.progress.consumer_offset)


def group_list(admin: MQAdmin, text: str, number: int) -> tuple[ListPage[GroupRow], Notes]:
    """The groups with `text` in their names."""
    page, notes = cut(matching(group_names(admin), text), number, GROUPS_MAX), Notes()
    if not page.rows:
        return ListPage([], page.total, page.number, page.size), notes
    found = overview_of(admin, page.rows)
    for addr, failure in found.failures.items():
        notes.failed(failure, addr)
    rows = [group_row(one, complete=not found.failures) for one in found.groups.values()]
    return ListPage(rows, page.total, page.number, page.size), notes


def group_row(group: GroupOverview, *, complete: bool) -> GroupRow:
    """Nothing counts as unknown while a broker has not told.  Pure."""
    kind, model = kind_of(group)
    is_online = bool(group.members)
    return GroupRow(
        group.group,
        group.members if complete or is_online else None,
        group.version if is_online else None,
        kind,
        model,
        group.tps if complete or group.tps else None,
        group.behind if complete or group.behind else None,
        complete,
    )


def group_facts(admin: MQAdmin, name: str, number: int, with_owners: bool) -> GroupSeen:
    """Raises NothingThere if there is no such group."""
    notes = Notes()
    with notes.hearing():
        members, members_known = _members(admin, name, notes)
        stats, complete = _stats(admin, name, notes)
        _check(admin, name, members, stats, notes)
        owners = queue_owners(admin, name) if with_owners else None
    by_topic: dict[str, list[QueueProgress]] = defaultdict(list)
    for queue, one in stats.offset_table.items():
        by_topic[queue.topic].append(one)
    topics = [
        TopicLag(topic, len(of), sum(one.lag for one in of), max(one.last_timestamp for one in of))
        for topic, of in sorted(by_topic.items())
    ]
    # Where most is left comes first.
    rows = sorted(stats.offset_table.items(), key=lambda item: (-item[1].lag, item[0]))
    return GroupSeen(
        name,
        members,
        members_known,
        complete,
        topics,
        cut(rows, number),
        owners,
        stats.consume_tps,
        sum(one.lag for one in topics),
        notes,
    )


def check_group(admin: MQAdmin, name: str, notes: Notes) -> None:
    """Raises NothingThere if no broker has anything of such a group."""
    with notes.hearing():
        _check(admin, name, _members(admin, name, notes)[0], _stats(admin, name, notes)[0], notes)


def _check(
    admin: MQAdmin, name: str, members: ConsumerConnection | None, stats: ConsumeStats, notes: Notes
) -> None:
    """Members, offsets, a retry topic, dead letters or a subscription: each makes a group.

    A broker that does not tell may have it.
    """
    if members is not None or stats.offset_table:
        return
    if admin.routes([retry_topic(name), dead_letter_topic(name)]):
        return
    code = RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG
    brokers = first_of_each_name(admin.brokers(), lambda _: True).values()
    tables = ask_many(admin, [Call(one.addr, code, into=SubscriptionGroupWrapper) for one in brokers], notes)
    if not any(table is None or name in table.subscription_group_table for table in tables):
        raise NothingThere(
            f"No broker knows a group {name}: it has no member, offset, retry topic, dead letter or"
            " subscription."
        )


def _members(admin: MQAdmin, name: str, notes: Notes) -> tuple[ConsumerConnection | None, bool]:
    """The members, None if there are none; and whether that is known."""
    try:
        return consumer_connection(admin, name), True
    except AnswerError as error:
        if error.code == ResponseCode.CONSUMER_NOT_ONLINE:
            return None, True
        notes.failed(error)
    except RemotingError as error:
        notes.failed(error)
    return None, False


def _stats(admin: MQAdmin, name: str, notes: Notes) -> tuple[ConsumeStats, bool]:
    """Its offsets, and whether all brokers told."""
    try:
        return consume_stats(admin, name)
    except AnswerError as error:  # a broker also answers so if the group has no offset there
        notes.failed(error)
        return ConsumeStats(), error.code == ResponseCode.SYSTEM_ERROR and ACL_REFUSAL not in str(error)
    except RemotingError as error:
        notes.failed(error)
        return ConsumeStats(), False


def reset_plan(admin: MQAdmin, group: str, topic: str, when_ms: int, force: bool) -> ResetPlan:
    """Asks what `reset` would ask and changes nothing.  Raises RemotingError."""
    moves: list[OffsetMove] = []
    online: list[str] = []
    for name, addr in readable(admin.route(topic)).items():
        moves += moves_at(admin, addr, group, topic, when_ms)
        try:
            consumer_connection(admin, group, addr)
            online.append(name)
        except RemotingError as error:
            if not isinstance(error, AnswerError) or error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
    return ResetPlan(group, topic, when_ms, force, moves, sorted(online), time.time_ns() // 1_000_000)
