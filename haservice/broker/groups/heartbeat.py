"""Membership: heartbeats, leaving, and who is in a group; notices.py tells a group that it has changed.

34 HEART_BEAT                    a client's producers, consumers and their subscriptions
35 UNREGISTER_CLIENT             it leaves one group of each kind
38 GET_CONSUMER_LIST_BY_GROUP    client ids, by which the clients share out the queues
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial

from haservice.access.rules import Requester
from haservice.broker.groups.consumers import ClientTable
from haservice.broker.groups.subscription_groups import GROUP_LENGTH_MAX, Groups
from haservice.broker.pull.consumer_filters import ConsumerFilters, compile_all, expressions
from haservice.broker.send.retries import retry_topic
from haservice.broker.topics.table import SYS_FLAG_UNIT_SUB, TopicsFull, TopicTable, name_fault
from haservice.errors import RequestError
from haservice.remoting.bodies.clients import ConsumerData, HeartbeatData
from haservice.remoting.codes import LanguageCode, RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers.clients import ConsumerGroupHeader, UnregisterClientHeader
from haservice.remoting.owed import ANSWERS_BYTES_MAX, Make

# More than any real client names at once.
GROUPS_MAX = 1024
SUBSCRIPTIONS_MAX = 4096
# For one connection, in all its heartbeats: clients of one process may share it.
MEMBERSHIPS_MAX = 4 * GROUPS_MAX
# For one connection: new SQL92 expressions that work threads compile, in characters.
COMPILED_CHARS_MAX = 256 * 1024
COMPILED_CHARS_A_SECOND = 4096


class _Budget:
    """How many characters may be compiled for a connection now."""

    def __init__(self, now_s: float) -> None:
        self._left: float = COMPILED_CHARS_MAX
        self._at_s = now_s
        self.turn = 0
        """Counts what the connection says of its groups; the last word stands."""

    def spend(self, chars: int, now_s: float) -> bool:
        """False if that is more than is left; then nothing is spent.  One large heartbeat may owe the rest."""
        earned = (now_s - self._at_s) * COMPILED_CHARS_A_SECOND
        self._left, self._at_s = min(COMPILED_CHARS_MAX, self._left + earned), now_s
        if chars > self._left < COMPILED_CHARS_MAX:
            return False
        self._left -= chars
        return True


class HeartbeatProcessor:
    """Keeps `clients`.  `creates_topics` is false on a slave, whose topics are its master's."""

    def __init__(
        self,
        clients: ClientTable,
        groups: Groups,
        topics: TopicTable,
        filters: ConsumerFilters,
        make: Make,
        *,
        creates_topics: bool,
        requester_of: Callable[[Connection, RemotingCommand], Requester | None] = lambda _, __: None,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """`requester_of`: who has signed a heartbeat."""
        self._clients = clients
        self._groups = groups
        self._topics = topics
        self._filters = filters
        self._make = make
        self._budgets: dict[Connection, _Budget] = {}
        self._creates_topics = creates_topics
        self._requester_of = requester_of
        self._clock_s = clock_s

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.HEART_BEAT: self.heartbeat,
            RequestCode.UNREGISTER_CLIENT: self.unregister,
            RequestCode.GET_CONSUMER_LIST_BY_GROUP: self.consumer_list,
        }

    def heartbeat(
        self, connection: Connection, command: RemotingCommand
    ) -> RemotingCommand | Awaitable[RemotingCommand]:
        requester = self._requester_of(connection, command)
        body = hashlib.blake2b(command.body, digest_size=16).digest()
        digest = body, command.language, command.version, requester
        if self._clients.repeat(connection, digest, self._clock_s(), self._is_made):
            return command.answer()
        data = self._checked(connection, command)
        self._next_turn(connection)
        slow = self._filters.slow(
            (consumer.group_name, consumer.subscription_data_set) for consumer in data.consumer_data_set
        )
        take = partial(self._taken, connection, command, data, digest, requester)
        if slow:
            self._spend(connection, sum(map(len, slow)))
            return self._taken_later(connection, command, take, slow)
        return take()

    async def _taken_later(
        self,
        connection: Connection,
        command: RemotingCommand,
        take: Callable[[], RemotingCommand],
        slow: list[str],
    ) -> RemotingCommand:
        """Once a work thread has compiled its expressions; those of one connection one after the other.  What the
        connection has said meanwhile stands.
        """
        budget = self._budgets[connection]
        turn = budget.turn
        expressions.keep(await self._make(connection, compile_all, slow, size=ANSWERS_BYTES_MAX))
        if connection.closed or budget.turn != turn:
            return command.answer()
        return take()

    def _next_turn(self, connection: Connection) -> None:
        if (budget := self._budgets.get(connection)) is not None:
            budget.turn += 1

    def _spend(self, connection: Connection, chars: int) -> None:
        """Raises RequestError if the connection brings more expressions than work threads may compile for it."""
        budget, now_s = self._budgets.get(connection), self._clock_s()
        if budget is None:
            budget = self._budgets[connection] = _Budget(now_s)
            connection.on_close.append(self._budgets.__delitem__)
        if not budget.spend(chars, now_s):
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"heartbeat brings new SQL92 expressions of {chars} characters; a connection may bring"
                f" {COMPILED_CHARS_MAX}, and {COMPILED_CHARS_A_SECOND} more each second",
            )

    def _taken(
        self,
        connection: Connection,
        command: RemotingCommand,
        data: HeartbeatData,
        digest: object,
        requester: Requester | None,
    ) -> RemotingCommand:
        for consumer in data.consumer_data_set:
            self._make_group(consumer)
        language = _language_name(command.language)
        self._clients.heartbeat(
            connection, data, self._clock_s(), language, command.version, digest, requester
        )
        return command.answer()

    def _checked(self, connection: Connection, command: RemotingCommand) -> HeartbeatData:
        """What the heartbeat says; raises RequestError if that is too much, or cannot be read."""
        try:
            data = HeartbeatData.decode(command.body)
        except ValueError as error:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"heartbeat cannot be read: {error}") from None
        names = [one.group_name for one in data.consumer_data_set]
        names += [one.group_name for one in data.producer_data_set]
        named = len(names)
        if named > GROUPS_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR, f"heartbeat names {named} groups, at most {GROUPS_MAX} are kept"
            )
        longest = max(map(len, names), default=0)
        if longest > GROUP_LENGTH_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"heartbeat names a group of {longest} characters, at most {GROUP_LENGTH_MAX} are kept",
            )
        known = self._clients.memberships(connection)
        if known + named > MEMBERSHIPS_MAX:
            raise RequestError(
                ResponseCode.SYSTEM_ERROR,
                f"this connection is in {known} groups and names {named}, at most {MEMBERSHIPS_MAX} are kept",
            )
        for consumer in data.consumer_data_set:
            wanted = len(consumer.subscription_data_set)
            if wanted > SUBSCRIPTIONS_MAX:
                raise RequestError(
                    ResponseCode.SYSTEM_ERROR,
                    f"group {consumer.group_name} subscribes {wanted} topics,"
                    f" at most {SUBSCRIPTIONS_MAX} are kept",
                )
        return data

    def _is_made(self, name: str) -> bool:
        """Whether the group is there with its retry topic, so that _make_group() has nothing to do."""
        if self._groups.get(name) is None:
            return False
        topic = retry_topic(name)
        return (
            not self._creates_topics or self._topics.get(topic) is not None or name_fault(topic) is not None
        )

    def _make_group(self, consumer: ConsumerData) -> None:
        """Makes the group, if allowed, and its `%RETRY%group`, which consumers subscribe by themselves.

        A consumer whose group may not be made is still a member, as in RocketMQ; its pulls are refused.
        """
        name = consumer.group_name
        group = self._groups.find(name)
        topic = retry_topic(name)
        # A group that is served but not kept gets no topic, or the topics would grow without bound instead.
        if group is None or not self._creates_topics or self._groups.get(name) is None:
            return
        if self._topics.get(topic) is None and name_fault(topic) is None:
            flags = SYS_FLAG_UNIT_SUB if consumer.unit_mode else 0
            with suppress(TopicsFull):  # the group consumes all the same; what it sends back is refused
                self._topics.find_or_create(topic, max(0, group.retry_queue_nums), topic_sys_flag=flags)

    def unregister(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        header = UnregisterClientHeader.decode(command.ext)
        self._next_turn(connection)
        self._clients.unregister(connection, header.producer_group, header.consumer_group)
        return command.answer()

    def consumer_list(self, connection: Connection, command: RemotingCommand) -> RemotingCommand:
        name = ConsumerGroupHeader.decode(command.ext).consumer_group
        group = self._clients.group(name)
        if group is None:
            raise RequestError(ResponseCode.SYSTEM_ERROR, f"no consumer for this group, {name}")
        return command.answer(body=group.id_list())


def _language_name(language: int) -> str:
    """A newer client may speak a language that has no name here yet."""
    try:
        return LanguageCode(language).name
    except ValueError:
        return LanguageCode.OTHER.name
