"""The JSON bodies of requests and answers, one dataclass each.

Member names and quirks are RocketMQ 4.9.8's; a class's `encode` gives the form that stock peers read
(fastjson's dialect where a table has keys that are no text).  `decode` raises BodyUnreadable.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

from haservice.bounds import BrokerName, ClientId, Expression, GroupName, Offset, ShortText, TopicName
from haservice.remoting.bodies.offset_text import decode_offsets, plain_offsets
from haservice.remoting.fastjson import REQUEST_TREE_BYTES_MAX
from haservice.remoting.json_body import JSONBody, named

# The brokerId of a master, in routes and everywhere else.
MASTER_ID = 0


@dataclass(frozen=True, slots=True)
class DataVersion(JSONBody):
    """The version of a table.  Only compared for equality; the timestamp is in milliseconds."""

    TREE_BYTES_MAX: ClassVar[int] = REQUEST_TREE_BYTES_MAX

    counter: int = 0
    timestamp: int = 0

    @property
    def text(self) -> str:
        return f"{self.counter}-{self.timestamp}"


@dataclass(frozen=True, slots=True, order=True)
class MessageQueue(JSONBody):
    """One queue of a topic on one broker.  Tables are keyed by it."""

    topic: TopicName
    broker_name: BrokerName
    queue_id: int


# Routes


@dataclass(frozen=True, slots=True)
class QueueData(JSONBody):
    """How many queues a broker has of a topic."""

    broker_name: str
    read_queue_nums: int = 0
    write_queue_nums: int = 0
    perm: int = 0
    topic_sys_flag: int = field(default=0, metadata=named("topicSysFlag", "topicSynFlag"))  # until 4.8


@dataclass(frozen=True, slots=True)
class BrokerData(JSONBody):
    """A broker's addresses by broker id; 0 is the master."""

    broker_name: str
    cluster: str = ""
    broker_addrs: Mapping[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TopicRouteData(JSONBody):
    """105.  `encode(standard=True)` is for clients from version 401 on, and for those that ask for it."""

    queue_datas: Sequence[QueueData] = ()
    broker_datas: Sequence[BrokerData] = ()
    filter_server_table: Mapping[str, Sequence[str]] = field(default_factory=dict)
    order_topic_conf: str | None = None


@dataclass(frozen=True, slots=True)
class ClusterInfo(JSONBody):
    """106; always in the dialect."""

    broker_addr_table: Mapping[str, BrokerData] = field(default_factory=dict)
    cluster_addr_table: Mapping[str, Sequence[str]] = field(default_factory=dict)


# Topics


@dataclass(frozen=True, slots=True)
class TopicConfig(JSONBody):
    topic_name: str
    read_queue_nums: int = 16
    write_queue_nums: int = 16
    perm: int = 6
    topic_filter_type: str = "SINGLE_TAG"
    topic_sys_flag: int = 0
    order: bool = False

    @property
    def queue_nums(self) -> int:
        """How many queues may have messages: one number was larger before the topic was changed."""
        return max(self.read_queue_nums, self.write_queue_nums)

    def tree(self) -> dict[str, Any]:
        """Written out: a table may have a hundred thousand topics."""
        return {
            "order": self.order,
            "perm": self.perm,
            "readQueueNums": self.read_queue_nums,
            "topicFilterType": self.topic_filter_type,
            "topicName": self.topic_name,
            "topicSysFlag": self.topic_sys_flag,
            "writeQueueNums": self.write_queue_nums,
        }


@dataclass(frozen=True, slots=True)
class TopicConfigWrapper(JSONBody):
    """21, part of 103, and `config/topics.json`.

    `deleted_topics` is ours: in what says only how a table changed.  So is `floors`, in the answer to 21: topics that
    were deleted, each with the end of the log at that time.
    """

    data_version: DataVersion = DataVersion()
    topic_config_table: Mapping[str, TopicConfig] = field(default_factory=dict)
    deleted_topics: Sequence[str] | None = None
    floors: Mapping[str, Offset] | None = None

    def with_perm(self, perm: int) -> TopicConfigWrapper:
        """The same table with those of every topic's permissions that `perm` has, too."""
        table = {
            name: dataclasses.replace(topic, perm=topic.perm & perm)
            for name, topic in self.topic_config_table.items()
        }
        return TopicConfigWrapper(self.data_version, table, self.deleted_topics)


NO_TOPICS = TopicConfigWrapper()


@dataclass(frozen=True, slots=True)
class TopicList(JSONBody):
    topic_list: Sequence[str] = ()
    broker_addr: str | None = None


@dataclass(frozen=True, slots=True)
class TopicOffset(JSONBody):
    """One queue's bounds; `max_offset` is exclusive, the timestamp is in milliseconds."""

    min_offset: int = 0
    max_offset: int = 0
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class TopicStatsTable(JSONBody):
    """202."""

    offset_table: Mapping[MessageQueue, TopicOffset] = field(default_factory=dict)


# Groups and offsets


@dataclass(frozen=True, slots=True)
class SubscriptionGroupConfig(JSONBody):
    """200, and what a broker keeps of a group."""

    TREE_BYTES_MAX: ClassVar[int] = REQUEST_TREE_BYTES_MAX

    group_name: str
    consume_enable: bool = True
    consume_from_min_enable: bool = True
    consume_broadcast_enable: bool = True
    notify_consumer_ids_changed_enable: bool = True
    retry_queue_nums: int = 1
    retry_max_times: int = 16
    broker_id: int = 0
    which_broker_when_consume_slowly: int = 1


@dataclass(frozen=True, slots=True)
class SubscriptionGroupWrapper(JSONBody):
    """201, and `config/subscriptionGroup.json`."""

    data_version: DataVersion = DataVersion()
    subscription_group_table: Mapping[str, SubscriptionGroupConfig] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsumerOffsetWrapper(JSONBody):
    """43, and `config/consumerOffset.json`: `topic@group` → queue id → queue offset.  See offset_text."""

    offset_table: Mapping[str, Mapping[int, int]] = field(default_factory=dict)

    @classmethod
    def decode(cls, data: bytes | memoryview | str) -> Self:
        table: dict[str, Mapping[int, int]] = {}
        for part in cls.decode_slices(data.encode() if isinstance(data, str) else data):
            table.update(part)
        return cls(table)

    @classmethod
    def decode_slices(
        cls, data: bytes | memoryview, *, tree_bytes_max: int = 0
    ) -> Iterator[Mapping[str, Mapping[int, int]]]:
        """As decode(), slice by slice: a table with a million keys is never one dict.  See decode_offsets."""
        for tree in decode_offsets(data, tree_bytes_max=tree_bytes_max):
            plain = plain_offsets(tree)
            yield cls.from_tree({"offsetTable": tree}).offset_table if plain is None else plain


@dataclass(frozen=True, slots=True)
class DelayOffsetWrapper(JSONBody):
    """45, which a stock slave asks for: delay level → queue offset."""

    offset_table: Mapping[int, int] = field(default_factory=dict)


# Membership


@dataclass(frozen=True, slots=True)
class SubscriptionData(JSONBody):
    """What a consumer wants of a topic.  `sub_version` is in milliseconds (nanoseconds from Go clients)."""

    topic: TopicName
    sub_string: Expression | None = None
    expression_type: ShortText | None = None
    sub_version: int = 0
    tags_set: Sequence[Expression] = ()
    code_set: Sequence[int] = ()
    class_filter_mode: bool = False


@dataclass(frozen=True, slots=True)
class ConsumerData(JSONBody):
    group_name: GroupName
    consume_type: ShortText = "CONSUME_PASSIVELY"
    message_model: ShortText = "CLUSTERING"
    consume_from_where: ShortText = "CONSUME_FROM_LAST_OFFSET"
    subscription_data_set: Sequence[SubscriptionData] = ()
    unit_mode: bool = False


@dataclass(frozen=True, slots=True)
class ProducerData(JSONBody):
    group_name: GroupName


@dataclass(frozen=True, slots=True)
class HeartbeatData(JSONBody):
    """34."""

    TREE_BYTES_MAX: ClassVar[int] = REQUEST_TREE_BYTES_MAX

    client_id: ClientId = field(metadata=named("clientID"))
    producer_data_set: Sequence[ProducerData] = ()
    consumer_data_set: Sequence[ConsumerData] = ()


@dataclass(frozen=True, slots=True)
class ConsumerIdList(JSONBody):
    """38."""

    consumer_id_list: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class CheckClientRequestBody(JSONBody):
    """46."""

    TREE_BYTES_MAX: ClassVar[int] = REQUEST_TREE_BYTES_MAX

    client_id: ClientId | None = None
    group: GroupName | None = None
    subscription_data: SubscriptionData | None = None


# Tables and status


@dataclass(frozen=True, slots=True)
class KVTable(JSONBody):
    """28, 219, and the order topics in the answer to 103."""

    table: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class HAConnectionRuntimeInfo(JSONBody):
    """One slave as its master sees it.  Members from `lag_seconds` on are ours; 5.x tools ignore them."""

    addr: str = ""
    slave_ack_offset: int = 0
    diff: int = 0  # bytes the slave is behind
    in_sync: bool = False
    transferred_byte_in_second: int = 0
    transfer_from_where: int = 0
    lag_seconds: float | None = None
    reason: str | None = None  # why it is not in sync
    replica_id: str | None = None  # of a slave that greeted; a stock one does not
    broker_addr: str | None = None  # where its clients reach it
    haservice_version: str | None = None


@dataclass(frozen=True, slots=True)
class HAClientRuntimeInfo(JSONBody):
    """The slave's own side.  Timestamps are in milliseconds; members from `state` on are ours."""

    master_addr: str = ""
    transferred_byte_in_second: int = 0
    max_offset: int = 0
    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    master_flush_offset: int = 0
    state: str | None = None
    last_error: str | None = None
    master_end: int | None = None  # the furthest end of the master's log that was heard of
    lineage: str | None = None  # how the two logs were found to be one
    haservice_version: str | None = None  # of the master


@dataclass(frozen=True, slots=True)
class HAAbsentInfo(JSONBody):
    """A slave that is not connected, and why; ours."""

    addr: str = ""
    reason: str = ""
    reported: int = -1  # the offset that it reported last; -1 if none
    timestamp: int = 0  # ms


@dataclass(frozen=True, slots=True)
class HARuntimeInfo(JSONBody):
    """907, as RocketMQ 5's `mqadmin haStatus` reads it; `absent_slaves` and `epoch` are ours."""

    master: bool = True
    master_commit_log_max_offset: int = 0
    in_sync_slave_nums: int = 0
    ha_connection_info: Sequence[HAConnectionRuntimeInfo] = ()
    ha_client_runtime_info: HAClientRuntimeInfo | None = None
    absent_slaves: Sequence[HAAbsentInfo] = ()
    epoch: int | None = None
