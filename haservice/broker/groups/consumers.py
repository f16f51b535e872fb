"""ClientTable: who is connected, as producers or as members of consumer groups.

A client is known by its heartbeats.  It leaves when it says so, when its connection closes, or after 120 s
without a heartbeat.  When a group's members or their subscriptions change, the broker tells all its members,
so that they share out the queues anew (RocketMQ's request 40).

Nearly every heartbeat says what the one before it said.  It is recognised by its digest, and then only sets
the time: `repeat`.  It says nothing new as long as nobody else has changed what its groups agreed on.

The loop's thread only; no lock.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from haservice.access.rules import Requester
from haservice.broker.pull.consumer_filters import ConsumerFilters
from haservice.broker.pull.tag_filter import ALL, TAG, ExpressionFault, TagCodes, tag_codes
from haservice.remoting.bodies.clients import (
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    SubscriptionData,
)

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
    requester: Requester | None = None
    """Who signed the heartbeat; None without access control."""
    first_heard_s: float = 0.0
    """When this connection named this client for this group first, with the same account."""
    unanswered: int = 0
    """Questions about transactions since its last answer to one."""

    def goes_on(self, before: Client | None) -> None:
        """Takes over what lasts from what the same connection said of the same group before."""
        if before is None:
            return
        self.unanswered = before.unanswered
        if (before.client_id, before.requester) == (self.client_id, self.requester):
            self.first_heard_s = before.first_heard_s


@dataclass(slots=True)
class GroupSubscription:
    """What a group wants from one topic.  `codes` is None for everything; `data` is the client's own."""

    topic: str
    expression: str
    expression_type: str
    version: int
    codes: TagCodes
    data: SubscriptionData | None = field(default=None, compare=False)


@dataclass(slots=True, eq=False)
class ConsumerGroup:
    """The members of a group that are online, and what they agreed on (the last heartbeat wins).

    `agreements` counts the changes of what they agreed on.
    """

    name: str
    consume_type: str = ""
    message_model: str = ""
    consume_from_where: str = ""
    members: dict[Peer, Client] = field(default_factory=dict)
    subscriptions: dict[str, GroupSubscription] = field(default_factory=dict)
    agreements: int = 0
    _listed: bytes = b""

    @property
    def is_broadcasting(self) -> bool:
        return self.message_model == BROADCASTING

    def client_ids(self) -> list[str]:
        return list(dict.fromkeys(client.client_id for client in self.members.values()))

    def id_list(self) -> bytes:
        """The answer to request 38: made once for all members that ask, until the members change."""
        if not self._listed:
            self._listed = ConsumerIdList(self.client_ids()).encode()
        return self._listed

    def put(self, connection: Peer, client: Client) -> bool:
        """Takes a member, or what it says of itself now; True if the client ids are others than before."""
        known = self.members.get(connection)
        self.members[connection] = client
        if known is not None and known.client_id == client.client_id:
            return False
        self._listed = b""
        return True

    def pop(self, connection: Peer) -> bool:
        """Drops a member; False if it was none."""
        self._listed = b""
        return self.members.pop(connection, None) is not None

    def agree(self, data: ConsumerData) -> bool:
        """Makes what one member says the whole group's; True if its topics are others than before."""
        said = data.consume_type, data.message_model, data.consume_from_where
        if said != (self.consume_type, self.message_model, self.consume_from_where):
            self.consume_type, self.message_model, self.consume_from_where = said
            self.agreements += 1
        changed = _subscribe(self, data.subscription_data_set)
        self.agreements += changed
        return changed


@dataclass(slots=True)
class _Connected:
    """A connection with heartbeats: the groups it belongs to, and what its last heartbeat was."""

    producing: set[str] = field(default_factory=set)
    consuming: set[str] = field(default_factory=set)
    digest: object = None
    """Of the last heartbeat; None if it has to be read again."""
    clients: tuple[Client, ...] = ()
    agreed: tuple[tuple[ConsumerGroup, int], ...] = ()
    """The consumer groups it named, and their `agreements` after it."""


class ClientTable:
    """Groups by name.  Calls `on_change(group)` when a consumer group that has members changes."""

    def __init__(
        self, on_change: Callable[[ConsumerGroup], None], filters: ConsumerFilters | None = None
    ) -> None:
        self._on_change = on_change
        self._filters = filters
        self.producers: dict[str, dict[Peer, Client]] = {}
        self.consumers: dict[str, ConsumerGroup] = {}
        self.changes = 0
        """Rises with whatever a heartbeat changes of any group's agreements, and when a group comes or goes."""
        # Topic → groups that subscribe it, made when asked for; None when a subscription has changed since.
        self._by_topic: dict[str, list[str]] | None = None
        # Every connection with a heartbeat.
        self._connected: dict[Peer, _Connected] = {}

    def group(self, name: str) -> ConsumerGroup | None:
        return self.consumers.get(name)

    def consumer_ids(self, name: str) -> list[str]:
        """The client ids of a group's members; empty when none is online."""
        group = self.consumers.get(name)
        return [] if group is None else group.client_ids()

    def memberships(self, connection: Peer) -> int:
        """How many groups, of both kinds, `connection` has named and not left."""
        seen = self._connected.get(connection)
        return 0 if seen is None else len(seen.producing) + len(seen.consuming)

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
        self,
        connection: Peer,
        data: HeartbeatData,
        now_s: float,
        language: str = "OTHER",
        version: int = 0,
        digest: object = None,
        requester: Requester | None = None,
    ) -> None:
        """Takes one heartbeat; several clients may share a connection's groups, and the last one wins.

        `digest`: what repeat() will recognise it by; another `requester` is another heartbeat.
        """
        seen = self._watch(connection)
        clients = []
        groups = []
        for producer in data.producer_data_set:
            client = Client(data.client_id, language, version, now_s, requester, now_s)
            clients.append(client)
            members = self.producers.setdefault(producer.group_name, {})
            client.goes_on(members.get(connection))
            members[connection] = client
            seen.producing.add(producer.group_name)
        for consumer in data.consumer_data_set:
            client = Client(data.client_id, language, version, now_s, requester, now_s)
            clients.append(client)
            seen.consuming.add(consumer.group_name)
            groups.append(self._consumer_heard(connection, client, consumer))
        seen.digest, seen.clients = digest, tuple(clients)
        seen.agreed = tuple((group, group.agreements) for group in groups)

    def repeat(self, connection: Peer, digest: object, now_s: float, is_made: Callable[[str], bool]) -> bool:
        """Takes a heartbeat that says what the last one of `connection` said; False if it has to be read.

        `is_made(group)`: whether a heartbeat that names this consumer group makes nothing.
        """
        seen = self._connected.get(connection)
        if seen is None or seen.digest != digest:
            return False
        for group, agreements in seen.agreed:
            if group.agreements != agreements or not is_made(group.name):
                return False
        for client in seen.clients:
            client.last_heard_s = now_s
        return True

    def _consumer_heard(self, connection: Peer, client: Client, data: ConsumerData) -> ConsumerGroup:
        group = self.consumers.get(data.group_name)
        if group is None:
            group = self.consumers[data.group_name] = ConsumerGroup(data.group_name)
        self.changes += 1  # a newer version of a subscription changes nobody's share, but what is meant
        client.goes_on(group.members.get(connection))
        changed = group.put(connection, client)
        if group.agree(data):
            changed = True
            self._by_topic = None
        if changed:
            self._on_change(group)
        if self._filters is not None:
            before = self._filters.changes
            self._filters.register(group.name, data.subscription_data_set)
            group.agreements += self._filters.changes != before
        return group

    def answered(self, connection: Peer, group: str) -> None:
        """A producer has answered a question about a transaction."""
        client = self.producers.get(group, {}).get(connection)
        if client is not None:
            client.unanswered = 0

    def unregister(self, connection: Peer, producer_group: str | None, consumer_group: str | None) -> None:
        """A client leaves these groups; unknown groups are no error."""
        if producer_group:
            self._leave_producers(connection, producer_group)
        if consumer_group:
            self._leave_consumers(connection, consumer_group)

    def connection_closed(self, connection: Peer) -> None:
        """Everybody on `connection` has left."""
        seen = self._connected.pop(connection, None)
        if seen is None:
            return
        for name in seen.producing:
            self._leave_producers(connection, name)
        for name in seen.consuming:
            self._leave_consumers(connection, name)

    def expire(self, now_s: float) -> int:
        """Ends memberships without a heartbeat for 120 s, and connections left without any; returns how many.

        A client that dropped one of its consumers without a word keeps its connection for the others.
        """
        oldest = now_s - EXPIRE_SECONDS
        ended = 0
        for connection, seen in list(self._connected.items()):
            producing, consuming = seen.producing, seen.consuming
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

    def _watch(self, connection: Peer) -> _Connected:
        seen = self._connected.get(connection)
        if seen is None:
            seen = self._connected[connection] = _Connected()
            connection.on_close.append(self.connection_closed)
        return seen

    def _leave_producers(self, connection: Peer, name: str) -> None:
        members = self.producers.get(name)
        if members is not None and members.pop(connection, None) is not None and not members:
            del self.producers[name]
        seen = self._connected.get(connection)
        if seen is not None:
            seen.digest = None
            seen.producing.discard(name)

    def _leave_consumers(self, connection: Peer, name: str) -> None:
        seen = self._connected.get(connection)
        if seen is not None:
            seen.digest = None
            seen.consuming.discard(name)
        group = self.consumers.get(name)
        if group is None or not group.pop(connection):
            return
        if not group.members:
            del self.consumers[name]
            self.changes += 1
            self._by_topic = None
            if self._filters is not None:
                self._filters.unregister(name)
        else:
            self._on_change(group)


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


def subscription_of(data: SubscriptionData) -> GroupSubscription:
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
    return GroupSubscription(data.topic, expression, expression_type, data.sub_version, codes, data)
