"""What brokers tell a nameserver: request → table → answer, in order for each connection.

It runs on the loop's thread, which owns the table.  A table of fifty thousand topics is read and learned in steps of
about half a millisecond, between which the loop answers others.  While it is learned for the first time, clients find
the part that is known.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Generator, Mapping
from itertools import islice
from typing import Any
from zlib import crc32

from haservice.configuration.texts import check_address
from haservice.errors import RequestError
from haservice.log_throttle import LogThrottle
from haservice.nameserver.epochs import KnownEpoch
from haservice.nameserver.kv_config import ORDER_TOPIC_CONFIG, KvConfig
from haservice.nameserver.registration import BrokerAnnouncement, Registered
from haservice.nameserver.request_turns import Answer, ReadingTurns, Steps
from haservice.nameserver.route_table import RouteTable
from haservice.nameserver.topic_queues import QueuesOfTopic
from haservice.remoting.bodies.clients import MASTER_ID, DataVersion, KVTable, TopicConfig
from haservice.remoting.bodies.registration import PART_BYTES, CompressedRegistration, PlainRegistration
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from haservice.remoting.connection import Connection, Processor
from haservice.remoting.headers.clients import (
    BrokerHeader,
    BrokerNameHeader,
    QueryDataVersionResponseHeader,
    RegisterBrokerHeader,
    RegisterBrokerResponseHeader,
)
from haservice.remoting.headers.lineage import (
    KnownTopicsHeader,
    NewerMasterHeader,
    NewestEpochBody,
    ToldTopicsHeader,
)

logger = logging.getLogger(__name__)

# Brokers before 3.0.11 send the topic table bare.
REGISTER_BODY_VERSION = 37

# Two masters that claim one id do so with every registration.
WARN_INTERVAL_S = 5.0

# Topics put into the table in one step.
LEARNED_AT_ONCE = 1000
# Topics of one registration that are told as left out.
LEFT_OUT_MAX = 10
# Bytes of a body that are summed in one step.
SUMMED_AT_ONCE = 1024 * 1024


class BrokerProcessors:
    """103, 104, 322: what brokers tell; also the end of their connections.  40001, ours: the newest epoch
    that they told of.
    """

    def __init__(self, table: RouteTable, kv: KvConfig) -> None:
        self._table = table
        self._kv = kv
        self._turns = ReadingTurns()
        self._throttle = LogThrottle(WARN_INTERVAL_S)
        self._told_left_out = LogThrottle(math.inf)
        table.on_restored = self._say_restored

    def handlers(self) -> dict[int, Processor]:
        return {
            RequestCode.REGISTER_BROKER: self.register,
            RequestCode.UNREGISTER_BROKER: self.unregister,
            RequestCode.QUERY_DATA_VERSION: self.query_data_version,
            RequestCode.GET_LINEAGE: self.newest_epoch,
        }

    def register(self, connection: Connection, request: RemotingCommand) -> Answer:
        """103.  A large table is read and learned in steps; the whole table that comes next replaces one that waits."""
        if len(request.body) > PART_BYTES:
            for earlier in self._turns.waiting(connection):
                same = earlier.ext.get("brokerAddr") == request.ext.get("brokerAddr")
                if same and len(earlier.body) > PART_BYTES:
                    earlier.body, earlier.ext = b"", {**earlier.ext, "bodyCrc32": "0"}
        return self._turns.take(connection, request, self._register(connection, request))

    def _register(self, connection: Connection, request: RemotingCommand) -> Steps:
        header = RegisterBrokerHeader.decode(request.ext)
        yield from _check_sum(request, header.body_crc32)
        _check_address("brokerAddr", header.broker_addr)
        _check_address("haServerAddr", header.ha_server_addr)
        told = _told(header, ToldTopicsHeader.decode(request.ext))
        self._table.check(told)
        if len(request.body):
            told = yield from self._read(told, request, header)
        registered = self._table.enlist(told, connection)
        if registered.learns:
            yield from self._learn(told, connection)
        self._say(told, registered, connection)
        return self._answer(request, told, registered)

    def _read(
        self, told: BrokerAnnouncement, request: RemotingCommand, header: RegisterBrokerHeader
    ) -> Generator[None, None, BrokerAnnouncement]:
        """`told` with what the body says; raises BodyUnreadable, and RequestError for impossible numbers."""
        body: PlainRegistration | CompressedRegistration
        if request.version < REGISTER_BODY_VERSION:
            body = PlainRegistration(request.body, bare=True)
        elif header.compressed:
            body = CompressedRegistration(request.body)
        else:
            body = PlainRegistration(request.body)
        told = told._replace(data_version=body.version, deleted=body.deleted)
        # A slave's table is a copy of the master's; it is not kept.  Neither is one that is known.
        topics: dict[str, QueuesOfTopic] | None = {} if told.broker_id == MASTER_ID else None
        if topics is not None and self._table.wants_topics(told):
            new = 0
            left_out: dict[str, str] = {}
            for part in body.parts():
                queues = _queues_of(part)
                unfit = self._table.unfit(told.broker_name, queues)
                for name in unfit:
                    del queues[name]
                left_out.update(islice(unfit.items(), max(0, LEFT_OUT_MAX - len(left_out))))
                new += self._table.new_topics(told.broker_name, queues)
                self._table.check_room(told.broker_name, new)
                topics.update(queues)
                if len(request.body) > PART_BYTES:
                    yield
            self._say_left_out(told, left_out)
        elif header.compressed:
            return told._replace(topics=topics)  # the filter servers stand behind the topics
        return told._replace(
            topics=topics,
            filter_servers=None if request.version < REGISTER_BODY_VERSION else tuple(body.filter_servers),
        )

    def _learn(self, told: BrokerAnnouncement, connection: Connection) -> Generator[None, None, None]:
        topics = told.topics or {}
        if len(topics) <= LEARNED_AT_ONCE:
            self._table.learn(told, connection, topics)
        else:
            items = iter(topics.items())
            while part := dict(islice(items, LEARNED_AT_ONCE)):
                if not self._table.learn(told, connection, part):
                    return
                yield
        self._table.learned(told, connection, topics)

    def _say(self, told: BrokerAnnouncement, registered: Registered, connection: Connection) -> None:
        newer = registered.newer
        if registered.other_clusters and self._throttle.ready(("clusters", told.broker_name)):
            logger.warning(
                "two clusters have a broker of one name, clients find only one of them: set another brokerName"
                " name=%s addr=%s cluster=%s others=%s",
                told.broker_name,
                told.addr,
                told.cluster,
                ",".join(registered.other_clusters),
            )
        if newer is not None and told.broker_id == MASTER_ID:
            self._warn_old(told, newer)
        elif registered.replaced_addr is not None:
            self._warn_moved(told, registered.replaced_addr)
        elif registered.new:
            logger.info(
                "broker registered name=%s id=%s addr=%s cluster=%s topics=%s peer=%s",
                told.broker_name,
                told.broker_id,
                told.addr,
                told.cluster,
                len(told.topics or ()),
                connection.peer,
            )

    def _answer(
        self, request: RemotingCommand, told: BrokerAnnouncement, registered: Registered
    ) -> RemotingCommand:
        order = self._kv.namespace(ORDER_TOPIC_CONFIG)
        master, newer = registered.master, registered.newer
        ext = RegisterBrokerResponseHeader(
            ha_server_addr=master.ha_server_addr, master_addr=master.addr
        ).encode()
        if told.whole or told.base is not None:  # a stock broker would not ask
            known = self._table.topics_version(told.addr)
            ext.update(KnownTopicsHeader("" if known is None else known.text).encode())
        if newer is not None:
            ext.update(NewerMasterHeader(newer.epoch, newer.addr).encode())
        return request.answer(
            ext=ext,
            body=KVTable(order).encode() if order is not None else b"",
        )

    def unregister(self, connection: Connection, request: RemotingCommand) -> Answer:
        return self._turns.take(connection, request, self._unregister(connection, request))

    def _unregister(self, connection: Connection, request: RemotingCommand) -> Steps:
        yield from ()
        header = BrokerHeader.decode(request.ext)
        if self._table.unregister(header.broker_name, header.broker_addr, header.broker_id):
            logger.info(
                "broker unregistered name=%s id=%s addr=%s peer=%s",
                header.broker_name,
                header.broker_id,
                header.broker_addr,
                connection.peer,
            )
        return request.answer()

    def query_data_version(self, connection: Connection, request: RemotingCommand) -> Answer:
        return self._turns.take(connection, request, self._query_data_version(request))

    def _query_data_version(self, request: RemotingCommand) -> Steps:
        yield from ()
        header = BrokerHeader.decode(request.ext)
        told = DataVersion.decode(request.body)
        changed, known = self._table.data_version(header.broker_addr, told)
        return request.answer(
            ext=QueryDataVersionResponseHeader(changed).encode(),
            body=known.encode() if known is not None else b"",
        )

    def newest_epoch(self, connection: Connection, request: RemotingCommand) -> Answer:
        name = BrokerNameHeader.decode(request.ext).broker_name
        epoch = self._table.newest_epoch(name)
        body = NewestEpochBody(name) if epoch is None else NewestEpochBody(name, epoch.epoch, epoch.addr)
        return request.answer(body=body.encode())

    def connection_closed(self, connection: Connection) -> None:
        for addr in self._table.channel_closed(connection):
            logger.warning("broker removed, its connection ended addr=%s peer=%s", addr, connection.peer)

    def expire(self) -> None:
        """Removes brokers that said nothing for too long, and hangs up on them."""
        for addr, channel in self._table.expire():
            logger.warning("broker removed, it said nothing for too long addr=%s", addr)
            if isinstance(channel, Connection):
                channel.close("the broker said nothing for too long")

    def _warn_old(self, told: BrokerAnnouncement, newer: KnownEpoch) -> None:
        if self._throttle.ready((told.broker_name, told.addr)):
            logger.warning(
                "old master refused name=%s addr=%s epoch=%s newer=%s newer_epoch=%d",
                told.broker_name,
                told.addr,
                told.epoch,
                newer.addr,
                newer.epoch,
            )

    def _say_left_out(self, told: BrokerAnnouncement, left_out: Mapping[str, str]) -> None:
        """Once for a topic of a broker, though each registration brings it."""
        for topic, fault in left_out.items():
            if self._told_left_out.ready((told.broker_name, topic)):
                logger.error(
                    "topic left out, the rest of its broker is known name=%s addr=%s topic=%s: its name %s",
                    *(told.broker_name, told.addr, topic[:64], fault),
                )

    def _say_restored(self, name: str, addr: str) -> None:
        logger.warning(
            "master back in the route, the one that took its place is gone name=%s addr=%s", name, addr
        )

    def _warn_moved(self, told: BrokerAnnouncement, replaced: str) -> None:
        if self._throttle.ready():
            logger.warning(
                "broker id moved name=%s id=%s from=%s to=%s; if both run, they claim the same id",
                told.broker_name,
                told.broker_id,
                replaced,
                told.addr,
            )


def _told(header: RegisterBrokerHeader, topics: ToldTopicsHeader) -> BrokerAnnouncement:
    """A registration without a body."""
    return BrokerAnnouncement(
        header.cluster_name,
        header.broker_name,
        header.broker_id,
        header.broker_addr,
        header.ha_server_addr,
        data_version=None,
        topics=None,
        epoch=header.epoch,
        base=topics.topics_base,
        whole=bool(topics.topics_whole),
    )


def _queues_of(part: Mapping[str, Any]) -> dict[str, QueuesOfTopic]:
    """The queues of topics' trees; raises BodyUnreadable."""
    queues = {}
    for name, tree in part.items():
        if tree is None:
            continue
        numbers: tuple[Any, ...] = ()
        if type(tree) is dict:
            get = tree.get
            numbers = get("readQueueNums"), get("writeQueueNums"), get("perm"), get("topicSysFlag", 0)
        if not numbers or not all(type(number) is int for number in numbers) or "topicName" not in tree:
            topic = TopicConfig.from_tree(tree)
            numbers = topic.read_queue_nums, topic.write_queue_nums, topic.perm, topic.topic_sys_flag
        queues[name] = QueuesOfTopic._make(numbers)
    return queues


def _check_sum(request: RemotingCommand, told: int) -> Generator[None, None, None]:
    """A sum of 0 is not checked.  RocketMQ's brokers know the remark."""
    if not told:
        return
    body, found = memoryview(request.body), 0
    for begin in range(0, max(1, len(body)), SUMMED_AT_ONCE):
        if begin:
            yield
        found = crc32(body[begin : begin + SUMMED_AT_ONCE], found)
    if found & 0x7FFFFFFF != told:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR,
            f"crc32 not match: the body of {len(body)} bytes has {found & 0x7FFFFFFF}, the header says {told}",
        )


def _check_address(field: str, addr: str) -> None:
    try:
        check_address(addr)
    except ValueError as error:
        raise RequestError(
            ResponseCode.SYSTEM_ERROR, f"field {field} of the request header is no address: {error}"
        ) from None
