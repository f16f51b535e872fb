"""All topics, and all groups, with their traffic and what is left to consume: for tools, a page in each answer.

    40009 GET_TOPICS_OVERVIEW    each topic's traffic; each group that consumes it, and how far it is behind
    40010 GET_GROUPS_OVERVIEW    each group's members, traffic, and how far it is behind

The figures and rules are those of the requests 300, 315, 208 and 203, which ask about one topic or one group.
The loop finds out who is online; the rest runs in a work thread, and reads no disk.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence

from haservice.broker.groups.consumers import ClientTable
from haservice.broker.metadata.store_queues import StoreQueues
from haservice.broker.offsets.consumer_offsets import ConsumerOffsets
from haservice.broker.stats.traffic import Rate, Traffic
from haservice.broker.topics.table import TopicTable
from haservice.remoting.codes import RequestCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers.overview import (
    PAGE_MAX,
    GroupInTopic,
    GroupOverview,
    GroupsOverview,
    PageHeader,
    TopicOverview,
    TopicsOverview,
    TrafficBody,
)
from haservice.remoting.owed import Make

# Topics that a group subscribes; None: no member is online, or says what it subscribes.
Subscribed = Mapping[str, object] | None


class OverviewProcessor:
    """Answers from the counters, the queues, the offsets and the clients that are online."""

    def __init__(
        self,
        topics: TopicTable,
        clients: ClientTable,
        offsets: ConsumerOffsets,
        view: StoreQueues,
        traffic: Traffic,
        make: Make,
    ) -> None:
        self._topics = topics
        self._clients = clients
        self._offsets = offsets
        self._view = view
        self._traffic = traffic
        self._make = make

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.GET_TOPICS_OVERVIEW: self.topics,
            RequestCode.GET_GROUPS_OVERVIEW: self.groups,
        }

    def topics(self, connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        """40009."""
        header = PageHeader.decode(request.ext)
        self._traffic.settle()
        return self._make(connection, self._topics_page, request, header, self._clients.by_topic())

    def groups(self, connection: Connection, request: RemotingCommand) -> asyncio.Future[RemotingCommand]:
        """40010."""
        header = PageHeader.decode(request.ext)
        self._traffic.settle()
        return self._make(connection, self._groups_page, request, header)

    # In a work thread

    def _topics_page(
        self, request: RemotingCommand, header: PageHeader, online: Mapping[str, Sequence[str]]
    ) -> RemotingCommand:
        names, more = _page((topic.topic_name for topic in self._topics), header)
        found = [self._topic(name, online.get(name, ())) for name in names]
        body = TopicsOverview(found, more, self._traffic.left_out)
        return request.answer(body=body.encode())

    def _topic(self, topic: str, online: Iterable[str]) -> TopicOverview:
        groups = [
            GroupInTopic(
                group,
                self._behind(group, topic, self._subscribed(group)),
                _body(self._traffic.rate(topic, group)),
            )
            for group in sorted({*online, *self._offsets.groups_of(topic)})
        ]
        return TopicOverview(topic, _body(self._traffic.rate(topic)), groups)

    def _groups_page(self, request: RemotingCommand, header: PageHeader) -> RemotingCommand:
        names, more = _page({*self._offsets.groups(), *list(self._clients.consumers)}, header)
        body = GroupsOverview([self._group(name) for name in names], more)
        return request.answer(body=body.encode())

    def _group(self, name: str) -> GroupOverview:
        subscribed = self._subscribed(name)
        topics = [
            topic for topic in self._offsets.topics_of(name) if subscribed is None or topic in subscribed
        ]
        behind = sum(self._behind(name, topic, None) for topic in topics)
        tps = sum(self._traffic.consumed_per_second(topic, name) for topic in topics)
        online = self._clients.group(name)
        members = list(online.members.values()) if online is not None else []
        if online is None or not members:
            return GroupOverview(name, tps=tps, behind=behind)
        return GroupOverview(
            name,
            len(members),
            min(member.version for member in members),
            online.consume_type,
            online.message_model,
            tps,
            behind,
        )

    def _subscribed(self, group: str) -> Subscribed:
        online = self._clients.group(group)
        return online.subscriptions or None if online is not None else None

    def _behind(self, group: str, topic: str, subscribed: Subscribed) -> int:
        """Messages that the group has not consumed; 0 if it is online and does not subscribe the topic."""
        config = self._topics.get(topic)
        if config is None or (subscribed is not None and topic not in subscribed):
            return 0
        consumed = self._offsets.queues_of(group, topic)
        return sum(
            max(0, self._view.end(topic, queue_id) - max(0, consumed.get(queue_id, 0)))
            for queue_id in range(config.read_queue_nums)
        )


def _page(names: Iterable[str], header: PageHeader) -> tuple[list[str], bool]:
    """The names of a page, and whether there are more."""
    count = max(1, min(header.count, PAGE_MAX))
    if header.only is not None:
        names = (name for name in names if name == header.only)
    found = sorted(name for name in names if name > header.after)
    return found[:count], len(found) > count


def _body(rate: Rate | None) -> TrafficBody | None:
    return None if rate is None else TrafficBody(round(rate.per_second, 6), rate.of_day)
