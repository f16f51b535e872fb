"""What a nameserver answers: request → table → answer.

It runs on the loop's thread, which owns the table.  Only changes of the key-value file run in the pool: they
wait for the disk.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from collections.abc import Callable

from haservice.errors import RequestError
from haservice.nameserver.kv_config import ORDER_TOPIC_CONFIG, KvConfig
from haservice.nameserver.route_table import RouteTable
from haservice.remoting.bodies.clients import (
    KVTable,
    TopicList,
)
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers.admin import (
    KVConfigHeader,
    KVValueResponseHeader,
    NamespaceHeader,
    PutKVConfigHeader,
)
from haservice.remoting.headers.clients import (
    AddWritePermResponseHeader,
    BrokerNameHeader,
    ClusterHeader,
    DeleteTopicInNamesrvHeader,
    RouteHeader,
    WipeWritePermResponseHeader,
)
from haservice.remoting.workers import Offload

logger = logging.getLogger(__name__)

# Clients from 4.9.4 on read standard JSON; older ones, and every Go client, the dialect with unquoted keys.
STANDARD_JSON_VERSION = 401
# Brokers before 3.0.11 send the topic table bare.
REGISTER_BODY_VERSION = 37

# A topic's sys flag: the topic belongs to a unit, or a group of a unit consumes it.
UNIT = 1
UNIT_SUB = 2

# Two masters that claim one id do so with every registration.
WARN_INTERVAL_S = 5.0

Answer = RemotingCommand | asyncio.Future[RemotingCommand]


class RouteProcessors:
    """105, 106 and the lists: what clients and tools ask, and the three changes that tools make."""

    def __init__(self, table: RouteTable, kv: KvConfig, *, order_message_enable: bool) -> None:
        self._table = table
        self._kv = kv
        self._order_message_enable = order_message_enable

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.GET_ROUTEINFO_BY_TOPIC: self.route,
            RequestCode.GET_BROKER_CLUSTER_INFO: self.cluster_info,
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: self.all_topics,
            RequestCode.GET_TOPICS_BY_CLUSTER: self.topics_of_cluster,
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: self.system_topics,
            RequestCode.GET_UNIT_TOPIC_LIST: self._listed(lambda flag: bool(flag & UNIT)),
            RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST: self._listed(lambda flag: bool(flag & UNIT_SUB)),
            RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST: self._listed(
                lambda flag: bool(flag & UNIT_SUB) and not flag & UNIT
            ),
            RequestCode.WIPE_WRITE_PERM_OF_BROKER: self.wipe_write_perm,
            RequestCode.ADD_WRITE_PERM_OF_BROKER: self.add_write_perm,
            RequestCode.DELETE_TOPIC_IN_NAMESRV: self.delete_topic,
        }

    def route(self, connection: Connection, request: RemotingCommand) -> Answer:
        header = RouteHeader.decode(request.ext)
        route = self._table.route(header.topic)
        if route is None:
            raise RequestError(
                ResponseCode.TOPIC_NOT_EXIST,
                f"No topic route info in name server for the topic: {header.topic}",
            )
        if self._order_message_enable:
            order = self._kv.get(ORDER_TOPIC_CONFIG, header.topic)
            route = dataclasses.replace(route, order_topic_conf=order)
        standard = header.accept_standard_json_only or request.version >= STANDARD_JSON_VERSION
        return request.answer(body=route.encode(standard=standard))

    def cluster_info(self, connection: Connection, request: RemotingCommand) -> Answer:
        return request.answer(body=self._table.cluster_info().encode())

    def all_topics(self, connection: Connection, request: RemotingCommand) -> Answer:
        return request.answer(body=TopicList(self._table.topics()).encode())

    def topics_of_cluster(self, connection: Connection, request: RemotingCommand) -> Answer:
        header = ClusterHeader.decode(request.ext)
        return request.answer(body=TopicList(self._table.topics_of_cluster(header.cluster)).encode())

    def system_topics(self, connection: Connection, request: RemotingCommand) -> Answer:
        """Every cluster and broker has a topic of its name; the client then asks the broker named here."""
        names = [name for cluster, brokers in self._table.clusters().items() for name in (cluster, *brokers)]
        return request.answer(body=TopicList(list(dict.fromkeys(names)), self._table.some_addr()).encode())

    def configure(self, *, order_message_enable: bool) -> None:
        """Decides whether routes carry the configuration of ordered topics from now on."""
        self._order_message_enable = order_message_enable

    def _listed(self, is_wanted: Callable[[int], bool]) -> Processor:
        """Answers with the topics whose sys flag is wanted."""

        def answer(connection: Connection, request: RemotingCommand) -> Answer:
            return request.answer(body=TopicList(self._table.topics_with(is_wanted)).encode())

        return answer

    def wipe_write_perm(self, connection: Connection, request: RemotingCommand) -> Answer:
        header = BrokerNameHeader.decode(request.ext)
        count = self._table.wipe_write_perm(header.broker_name)
        logger.info(
            "write permission wiped name=%s topics=%s by=%s", header.broker_name, count, connection.peer
        )
        return request.answer(ext=WipeWritePermResponseHeader(count).encode())

    def add_write_perm(self, connection: Connection, request: RemotingCommand) -> Answer:
        header = BrokerNameHeader.decode(request.ext)
        count = self._table.add_write_perm(header.broker_name)
        logger.info(
            "write permission added name=%s topics=%s by=%s", header.broker_name, count, connection.peer
        )
        return request.answer(ext=AddWritePermResponseHeader(count).encode())

    def delete_topic(self, connection: Connection, request: RemotingCommand) -> Answer:
        header = DeleteTopicInNamesrvHeader.decode(request.ext)
        self._table.delete_topic(header.topic, header.cluster_name or None)
        logger.info("topic deleted topic=%s by=%s", header.topic, connection.peer)
        return request.answer()


class KvProcessors:
    """100, 101, 102, 219: the key-value configuration."""

    def __init__(self, kv: KvConfig, offload: Offload) -> None:
        self._kv = kv
        self._offload = offload

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.PUT_KV_CONFIG: self.put,
            RequestCode.GET_KV_CONFIG: self.get,
            RequestCode.DELETE_KV_CONFIG: self.delete,
            RequestCode.GET_KVLIST_BY_NAMESPACE: self.namespace,
        }

    def put(self, connection: Connection, request: RemotingCommand) -> Answer:
        return self._offload(self._put, request, PutKVConfigHeader.decode(request.ext))

    def _put(self, request: RemotingCommand, header: PutKVConfigHeader) -> RemotingCommand:
        self._kv.put(header.namespace, header.key, header.value)
        return request.answer()

    def delete(self, connection: Connection, request: RemotingCommand) -> Answer:
        return self._offload(self._delete, request, KVConfigHeader.decode(request.ext))

    def _delete(self, request: RemotingCommand, header: KVConfigHeader) -> RemotingCommand:
        self._kv.delete(header.namespace, header.key)
        return request.answer()

    def get(self, connection: Connection, request: RemotingCommand) -> Answer:
        header = KVConfigHeader.decode(request.ext)
        value = self._kv.get(header.namespace, header.key)
        if value is None:
            raise RequestError(
                ResponseCode.QUERY_NOT_FOUND, f"namespace {header.namespace} has no key {header.key}"
            )
        return request.answer(ext=KVValueResponseHeader(value).encode())

    def namespace(self, connection: Connection, request: RemotingCommand) -> Answer:
        header = NamespaceHeader.decode(request.ext)
        values = self._kv.namespace(header.namespace)
        if values is None:
            raise RequestError(ResponseCode.QUERY_NOT_FOUND, f"there is no namespace {header.namespace}")
        return request.answer(body=KVTable(values).encode())
