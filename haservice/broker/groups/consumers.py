"""ClientTable: who is connected, as producers or as members of consumer groups.

A client is known by its heartbeats.  It leaves when it says so, when its connection closes, or after 120 s
without a heartbeat.  When a group's members or their subscriptions change, the broker tells all its members,
so that they share out the queues anew (RocketMQ's request 40).

The loop's thread only; no lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from haservice.broker.pull.consumer_filters import ConsumerFilters
from haservice.broker.pull.tag_filter import ALL, TAG, ExpressionFault, TagCodes, tag_codes
from haservice.remoting.bodies.clients import ConsumerData, HeartbeatData, SubscriptionData

logger = logging.getLogger(__name__)

EXPIRE_SECONDS = 120.0
BROADCASTING = "BROADCASTING"


class Peer(Protocol):
    """The parts of a connection that are used here."""

    @property
    def closed(self) -> bool: ...

    peer: str
    on_close: Any

    def close(self, reason: str) -> None: ...


@dataclass(slots=True)
class Client:
    """One client on one connection, as its last heartbeat described it."""

    client_id: str
    language: str
    version: int
    last_heard_s: float


@dataclass(slots=True)
class Subscription:
    """What a group wants from one topic.  `codes` is None for everything; `data` is the client's own."""

    topic: str
    expression: str
    expression_type: str
    version: int
    codes: TagCodes
    data: SubscriptionData | None = field(default=None, compare=False)


@dataclass(slots=True)
class ConsumerGroup:
    """The members of a group that are online, and what they agreed on (the last heartbeat wins)."""

    name: str
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""
    members: dict[Peer, Client] = field(default_factory=dict)
    subscriptions: dict[str, Subscription] = field(default_factory=dict)

    @property
    def is_broadcasting(self) -> bool:
        return self.message_model == BROADCASTING

    def client_ids(self) -> list[str]:
        return list(dict.fromkeys(client.client_id for client in self.members.values()))


class ClientTable:
    """Groups by name.  Calls `on_change(group, members)` when a consumer group changes."""

    def __init__(
        self, on_change: Callable[[str, list[Peer]], None], filters: ConsumerFilters | None = None
    ) -> None:
        self._on_change = on_change
        self._filters = filters
        self.producers: dict[str, dict[Peer, Client]] = {}
        self.consumers: dict[str, ConsumerGroup] = {}
        # Every connection with a heartbeat, with the groups it belongs to.
        self._groups_of: dict[Peer, tuple[set[str], set[str]]] = {}
        # Topic → groups that subscribe it, made when asked for; None when a subscription has changed since.
        self._by_topic: dict[str, list[str]] | None = None

    def group(self, name: str) -> ConsumerGroup | None:
        return self.consumers.get(name)

    def consumer_ids(self, name: str) -> list[str]:
        """The client ids of a group's members; empty when none is online."""
        group = self.consumers.get(name)
        return [] if group is None else group.client_ids()

    def memberships(self, connection: Peer) -> int:
        """How many groups, of both kinds, `connection` has named and not left."""
        return sum(map(len, self._groups_of.get(connection, ())))

    def subscribers(self, topic: str) -> list[str]:
        """The groups that are online and subscribe `topic`."""
        return list(self.by_topic().get(topic, ()))

    def by_topic(self) -> Mapping[str, Sequence[str]]:
        """The groups that are online, by the topics that they subscribe.  It does not change any more."""
        if self._by_topic is None:
            self._by_topic = {}
            for name, group in self.consumers.items():
                for topic in group.subscriptions:
                    self._by_topic.setdefault(topic, []).append(name)
        return self._by_topic

    def heartbeat(
        self, connection: Peer, data: HeartbeatData, now_s: float, language: str = "OTHER", version: int = 0
    ) -> None:
        """Takes one heartbeat; several clients may share a connection's groups, and the last one wins."""
        producing, consuming = self._watch(connection)
        for producer in data.producer_data_set:
            members = self.producers.setdefault(producer.group_name, {})
            members[connection] = Client(data.client_id, language, version, now_s)
            producing.add(producer.group_name)
        for consumer in data.consumer_data_set:
            client = Client(data.client_id, language, version, now_s)
            consuming.add(consumer.group_name)
            self._consumer_heard(connection, client, consumer)

    def _consumer_heard(self, connection: Peer, client: Client, data: ConsumerData) -> None:
        group = self.consumers.get(data.group_name)
        if group is None:
            group = self.consumers[data.group_name] = ConsumerGroup(data.group_name)
        group.consume_type = data.consume_type
        group.message_model = data.message_model
        group.consume_from_where = data.consume_from_where
        known = group.members.get(connection)
        group.members[connection] = client
        changed = known is None or known.client_id != client.client_id
        if _subscribe(group, data.subscription_data_set):
            changed = True
            self._by_topic = None
        if changed:
            self._on_change(group.name, list(group.members))
        if self._filters is not None:
            self._filters.register(group.name, data.subscription_data_set)

    def unregister(self, connection: Peer, producer_group: str | None, consumer_group: str | None) -> None:
        """A client leaves these groups; unknown groups are no error."""
        if producer_group:
            self._leave_producers(connection, producer_group)
        if consumer_group:
            self._leave_consumers(connection, consumer_group)

    def connection_closed(self, connection: Peer) -> None:
        """Everybody on `connection` has left."""
        groups = self._groups_of.pop(connection, None)
        if groups is None:
            return
        producing, consuming = groups
        for name in list(producing):
            self._leave_producers(connection, name)
        for name in list(consuming):
            self._leave_consumers(connection, name)

    def expire(self, now_s: float) -> int:
        """Ends memberships without a heartbeat for 120 s, and connections left without any; returns how many.

        A client that dropped one of its consumers without a word keeps its connection for the others.
        """
        oldest = now_s - EXPIRE_SECONDS
        ended = 0
        for connection, (producing, consuming) in list(self._groups_of.items()):
            producers = [name for name in producing if self.producers[name][connection].last_heard_s < oldest]
            consumers = [
                name for name in consuming if self.consumers[name].members[connection].last_heard_s < oldest
            ]
            for name in producers:
                self._leave_producers(connection, name)
            for name in consumers:
                self._leave_consumers(connection, name)
            silent = len(producers) + len(consumers)
            ended += silent
            if silent and not producing and not consuming:
                connection.close(f"no heartbeat for {EXPIRE_SECONDS:g} s")
        return ended

    def _watch(self, connection: Peer) -> tuple[set[str], set[str]]:
        groups = self._groups_of.get(connection)
        if groups is None:
            groups = self._groups_of[connection] = (set(), set())
            connection.on_close.append(lambda *_: self.connection_closed(connection))
        return groups

    def _leave_producers(self, connection: Peer, name: str) -> None:
        members = self.producers.get(name)
        if members is not None and members.pop(connection, None) is not None and not members:
            del self.producers[name]
        if connection in self._groups_of:
            self._groups_of[connection][0].discard(name)

    def _leave_consumers(self, connection: Peer, name: str) -> None:
        if connection in self._groups_of:
            self._groups_of[connection][1].discard(name)
        group = self.consumers.get(name)
        if group is None or group.members.pop(connection, None) is None:
            return
        if not group.members:
            del self.consumers[name]
            self._by_topic = None
            if self._filters is not None:
                self._filters.unregister(name)
        else:
            self._on_change(name, list(group.members))


def _subscribe(group: ConsumerGroup, wanted: Iterable[SubscriptionData]) -> bool:
    """Makes a member's subscriptions the whole group's; True if that changes anything.

    This is RocketMQ's rule, with its known trap: topics missing here are dropped even if another member
    subscribes them, so the members of a group have to agree.
    """
    changed = False
    topics = set()
    for data in wanted:
        topics.add(data.topic)
        known = group.subscriptions.get(data.topic)
        if known is None or data.sub_version > known.version:
            # A newer version of the same topic changes nobody's share of the queues.
            group.subscriptions[data.topic] = subscription_of(data)
            changed |= known is None
    for topic in group.subscriptions.keys() - topics:
        del group.subscriptions[topic]
        changed = True
    return changed


def subscription_of(data: SubscriptionData) -> Subscription:
    """The subscription of one topic in a heartbeat.

    Its codes are the client's and ours, computed from the same text: some clients of other languages leave
    theirs out.
    """
    expression = data.sub_string or ALL
    expression_type = data.expression_type or TAG
    codes: TagCodes = None
    if expression_type == TAG and expression != ALL and not data.class_filter_mode:
        try:
            codes = (tag_codes(expression) or frozenset()) | frozenset(data.code_set)
        except ExpressionFault as fault:
            logger.warning("subscription names no tag topic=%s reason=%s", data.topic, fault)
            codes = frozenset(data.code_set)
    return Subscription(data.topic, expression, expression_type, data.sub_version, codes, data)
