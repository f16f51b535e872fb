"""Our own requests of tools about all topics and all groups of a broker, a page at a time.

    40009 GET_TOPICS_OVERVIEW    after, count, only    → TopicsOverview
    40010 GET_GROUPS_OVERVIEW    after, count, only    → GroupsOverview

RocketMQ's tools ask several times for each topic and each group.  A stock broker does not know these requests
(REQUEST_CODE_NOT_SUPPORTED): it is asked RocketMQ's way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from haservice.remoting.headers.clients import I32, ExtHeader
from haservice.remoting.json_body import JSONBody

# The most of one answer.
PAGE_MAX = 1000


@dataclass(frozen=True, slots=True)
class PageHeader(ExtHeader):
    """The names behind `after` in the order of their characters, `count` of them at most; or `only` this one."""

    after: str = ""
    count: I32 = PAGE_MAX
    only: str | None = None


@dataclass(frozen=True, slots=True)
class TrafficBody(JSONBody):
    """Messages per second in the last minute, and messages in the last day."""

    tps: float = 0.0
    sum: int = 0


@dataclass(frozen=True, slots=True)
class GroupInTopic(JSONBody):
    """`behind`: how many messages of the topic are not consumed.  Without `gets` there is no counter."""

    group: str
    behind: int = 0
    gets: TrafficBody | None = None


@dataclass(frozen=True, slots=True)
class TopicOverview(JSONBody):
    """Without `puts` there is no counter."""

    topic: str
    puts: TrafficBody | None = None
    groups: Sequence[GroupInTopic] = ()


@dataclass(frozen=True, slots=True)
class TopicsOverview(JSONBody):
    """40009.  With `more` there are names behind the last one.

    `left_out` says what has no counters; while it says nothing, who has no counter had no messages.
    """

    topics: Sequence[TopicOverview] = ()
    more: bool = False
    left_out: str = ""


@dataclass(frozen=True, slots=True)
class GroupOverview(JSONBody):
    """A group's members that are online, and all of its topics together.

    `version` is the lowest of its members; the consume type and the message model are what they agreed on.
    """

    group: str
    members: int = 0
    version: int = 0
    consume_type: str | None = None
    message_model: str | None = None
    tps: float = 0.0
    behind: int = 0


@dataclass(frozen=True, slots=True)
class GroupsOverview(JSONBody):
    """40010.  With `more` there are names behind the last one."""

    groups: Sequence[GroupOverview] = ()
    more: bool = False
