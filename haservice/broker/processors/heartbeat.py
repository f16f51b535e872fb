"""Membership: heartbeats, leaving, who is in a group, and telling a group that it has changed.

34 HEART_BEAT                    a client's producers, consumers and their subscriptions
35 UNREGISTER_CLIENT             it leaves one group of each kind
38 GET_CONSUMER_LIST_BY_GROUP    client ids, which the clients share the queues out by
46 CHECK_CLIENT_CONFIG           whether a subscription would be served; asked for SQL92 ones
201 GET_ALL_SUBSCRIPTIONGROUP_CONFIG    the groups known now, which a stock slave asks for every 10 s
40 NOTIFY_CONSUMER_IDS_CHANGED   ours to them, oneway
"""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Callable, Iterable

from commitlog.log import wall_clock_ms
from haservice.broker.consumers import ClientTable, Peer
from haservice.broker.groups import SYSTEM_GROUPS, Groups
from haservice.broker.processors.pull import not_filtered
from haservice.broker.tag_filter import TAG
from haservice.broker.topics import RETRY_PREFIX, TOPIC_LENGTH_MAX, TopicTable, name_fault
from haservice.errors import RequestError
from haservice.remoting.bodies import (
    CheckClientRequestBody,
    ConsumerIdList,
    DataVersion,
    HeartbeatData,
    SubscriptionGroupConfig,
    SubscriptionGroupWrapper,
)
from haservice.remoting.codes import LanguageCode, RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers import (
    ConsumerGroupHeader,
    UnregisterClientHeader,
)

logger = logging.getLogger(__name__)

# More than any real client names at once.
GROUPS_MAX = 1024
SUBSCRIPTIONS_MAX = 4096


class HeartbeatProcessor:
    """Keeps `clients`.  `creates_topics` is false on a slave, whose topics are its master's."""

    def __init__(
        self,
        clients: ClientTable,
        groups: Groups,
        topics: TopicTable,
        *,
        creates_topics: bool,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._clients = clients
        self._groups = groups
        self._topics = topics
        self._creates_topics = creates_topics
        self._clock_s = clock_s
        # What was told last, and its version: a slave takes the table when the version is another one.
        self._told: frozenset[str] = frozenset()
        self._version = DataVersion(counter=0, timestamp=wall_clock_ms())

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
            RequestCode.CHECK_CLIENT_CONFIG: self.check_client,
            RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: self.all_groups,
        }

    def heartbeat(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        try:
            data = HeartbeatData.decode(command.body)
        except ValueError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"heartbeat cannot be read: {error}") from None
        named = len(data.consumer_data_set) + len(data.producer_data_set)
        if named > GROUPS_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"heartbeat names {named} groups, at most {GROUPS_MAX} are kept"
            )
        for consumer in data.consumer_data_set:
            wanted = len(consumer.subscription_data_set)
            if wanted > SUBSCRIPTIONS_MAX:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR,
                    f"group {consumer.group_name} subscribes {wanted} topics,"
                    f" at most {SUBSCRIPTIONS_MAX} are kept",
                )
            self._make_retry_topic(consumer.group_name)
        self._clients.heartbeat(
            connection, data, self._clock_s(), _language_name(command.language), command.version
        )
        return command.answer()

    def _make_retry_topic(self, name: str) -> None:
        """Messages that a consumer sends back come to `%RETRY%group`, which it subscribes by itself."""
        if not self._creates_topics:
            return
        group = self._groups.find(name)
        topic = RETRY_PREFIX + name
        if group is None or len(topic) > TOPIC_LENGTH_MAX or name_fault(topic) is not None:
            return
        if self._topics.get(topic) is None:
            self._topics.find_or_create(topic, group.retry_queue_nums)

    def unregister(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = UnregisterClientHeader.decode(command.ext)
        self._clients.unregister(connection, header.producer_group, header.consumer_group)
        return command.answer()

    def consumer_list(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = ConsumerGroupHeader.decode(command.ext).consumer_group
        client_ids = self._clients.consumer_ids(name)
        if not client_ids:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"no consumer of group {name!r} is online")
        return command.answer(body=ConsumerIdList(client_ids).encode())

    def check_client(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        try:
            asked = CheckClientRequestBody.decode(command.body)
        except ValueError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"body cannot be read: {error}") from None
        subscription = asked.subscription_data
        if subscription is not None and subscription.expression_type not in (None, "", TAG):
            raise not_filtered(subscription.expression_type)
        return command.answer()

    def all_groups(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        """RocketMQ's own groups, and those with a consumer online: no others are remembered yet."""
        names = SYSTEM_GROUPS.union(self._clients.consumers)
        if names != self._told:
            self._told = names
            self._version = dataclasses.replace(self._version, counter=self._version.counter + 1)
        found = ((name, self._groups.find(name)) for name in sorted(names))
        table = {
            name: SubscriptionGroupConfig(name, **dataclasses.asdict(grants))
            for name, grants in found
            if grants is not None
        }
        return command.answer(body=SubscriptionGroupWrapper(self._version, table).encode())


def _language_name(language: int) -> str:
    """A newer client may speak a language that has no name here yet."""
    try:
        return LanguageCode(language).name
    except ValueError:
        return LanguageCode.OTHER.name


def notify_members(groups: Groups) -> Callable[[str, Iterable[Peer]], None]:
    """What ClientTable calls on a change: tells every member, unless its group wants no notice."""

    def notify(name: str, members: Iterable[Peer]) -> None:
        group = groups.find(name)
        if group is not None and not group.notify_consumer_ids_changed_enable:
            return
        for member in members:
            if isinstance(member, Connection):
                ext = ConsumerGroupHeader(name).encode()
                member.send(
                    RemotingCommand.request(RequestCode.NOTIFY_CONSUMER_IDS_CHANGED, ext, oneway=True)
                )

    return notify
