"""All topics, or all groups, of all brokers together.

    every broker is ours     40009, 40010: a few answers from each
    a broker is stock        RocketMQ's requests for each topic and each group (asked_apart.py)

A broker that does not answer adds nothing; `failures` has the reason.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from haservice.admin.calls import Broker, MQAdmin
from haservice.errors import AnswerError, RemotingError
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.headers.overview import (
    GroupOverview,
    GroupsOverview,
    PageHeader,
    TopicsOverview,
    TrafficBody,
)

# A page of a thousand groups, each with thousands of topics.
PAGE_TIMEOUT_S = 15.0

Page = TypeVar("Page", TopicsOverview, GroupsOverview)


@dataclass(slots=True)
class Rates:
    """Messages per second in the last minute, and messages of the last day, of all brokers together.

    Not `counted`: some broker has no counter for it, and had none to give.
    """

    tps: float = 0.0
    messages: int = 0
    counted: bool = True

    def add(self, body: TrafficBody | None, left_out: str = "") -> None:
        if body is not None:
            self.tps += body.tps
            self.messages += body.sum
        elif left_out:
            self.counted = False


@dataclass(slots=True)
class GroupOfTopic:
    behind: int = 0
    gets: Rates = field(default_factory=Rates)


@dataclass(slots=True)
class TopicFound:
    clusters: set[str] = field(default_factory=set)
    puts: Rates = field(default_factory=Rates)
    groups: dict[str, GroupOfTopic] = field(default_factory=dict)

    def group(self, name: str) -> GroupOfTopic:
        return self.groups.setdefault(name, GroupOfTopic())


class NotAllOurs(Exception):
    """A stock broker is among them."""


@dataclass(slots=True)
class Overview:
    """Topics and groups by name; by address who did not answer, and what has no counters."""

    topics: dict[str, TopicFound] = field(default_factory=dict)
    groups: dict[str, GroupOverview] = field(default_factory=dict)
    failures: dict[str, RemotingError] = field(default_factory=dict)
    left_out: dict[str, str] = field(default_factory=dict)

    def topic(self, name: str) -> TopicFound:
        return self.topics.setdefault(name, TopicFound())

    def fail(self, error: RemotingError, addr: str) -> None:
        self.failures.setdefault(addr, error)


def topics_of_brokers(admin: MQAdmin, only: str | None = None) -> Overview:
    """All topics, or that one alone.  Raises NotAllOurs."""
    found = Overview()
    for broker, page in _pages(admin, RequestCode.GET_TOPICS_OVERVIEW, TopicsOverview, found, only):
        if page.left_out and broker.is_master:
            found.left_out[broker.addr] = page.left_out
        for one in page.topics:
            topic = found.topic(one.topic)
            topic.clusters.add(broker.cluster)
            for group in one.groups:
                in_topic = topic.group(group.group)
                in_topic.behind += group.behind
                if broker.is_master:
                    in_topic.gets.add(group.gets, page.left_out)
            if broker.is_master:
                topic.puts.add(one.puts, page.left_out)
    return found


def groups_of_brokers(admin: MQAdmin, names: Sequence[str] = ()) -> Overview:
    """All groups; with `names`, which are in order, those from the first to the last.  Raises NotAllOurs.

    A member is connected to each broker: the largest number of members counts.
    """
    found = Overview()
    between = (names[0], names[-1]) if names else ("", "")
    for _, page in _pages(admin, RequestCode.GET_GROUPS_OVERVIEW, GroupsOverview, found, between=between):
        for one in page.groups:
            known = found.groups.get(one.group)
            found.groups[one.group] = one if known is None else _together(known, one)
    return found


def _together(one: GroupOverview, other: GroupOverview) -> GroupOverview:
    more, fewer = (one, other) if one.members >= other.members else (other, one)
    version = min(more.version, fewer.version) if fewer.members else more.version
    return GroupOverview(
        more.group,
        more.members,
        version,
        more.consume_type,
        more.message_model,
        one.tps + other.tps,
        one.behind + other.behind,
    )


def _pages(
    admin: MQAdmin,
    code: RequestCode,
    body: type[Page],
    found: Overview,
    only: str | None = None,
    between: tuple[str, str] = ("", ""),
) -> Iterator[tuple[Broker, Page]]:
    """Of each broker name from its master, or else from its first slave."""
    for broker in readable_brokers(admin):
        try:
            for page in _of_broker(admin, broker, code, body, only, between):
                yield broker, page
        except AnswerError as error:
            if error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                raise NotAllOurs from None
            found.fail(error, broker.addr)
        except RemotingError as error:
            found.fail(error, broker.addr)


def _of_broker(
    admin: MQAdmin,
    broker: Broker,
    code: RequestCode,
    body: type[Page],
    only: str | None,
    between: tuple[str, str],
) -> Iterator[Page]:
    """Begins with a name before the first of `between`, and ends behind its last, if there is one."""
    (first, last), more = between, True
    after = first[:-1]
    while more:
        page: Any = admin.ask(
            broker.addr, code, PageHeader(after, only=only), into=body, timeout_s=PAGE_TIMEOUT_S
        )
        yield page
        names = _NAMES[body](page)
        more = page.more and bool(names) and names[-1] > after and not (last and names[-1] >= last)
        after = names[-1] if names else after


_NAMES: dict[type, Callable[[Any], list[str]]] = {
    TopicsOverview: lambda page: [one.topic for one in page.topics],
    GroupsOverview: lambda page: [one.group for one in page.groups],
}


def readable_brokers(admin: MQAdmin) -> list[Broker]:
    """Of each broker name the one to read from: the master, or else the first slave."""
    first: dict[tuple[str, str], Broker] = {}
    for broker in admin.brokers():  # by name, the master first
        first.setdefault((broker.cluster, broker.name), broker)
    return list(first.values())
