"""The JSON bodies of requests by tools, and by brokers to clients; clients.py has the others.

The members are those of RocketMQ 4.9.8's classes in common.protocol.body.  Times are milliseconds since 1970,
offsets are queue offsets, unless a class says otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from haservice.remoting.bodies.clients import MessageQueue, SubscriptionData
from haservice.remoting.json_body import JSONBody, named

# Who is connected


@dataclass(frozen=True, slots=True)
class ClientConnection(JSONBody):
    client_id: str
    client_addr: str = ""  # ip:port
    language: str = "JAVA"
    version: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerConnection(JSONBody):
    """203."""

    connection_set: Sequence[ClientConnection] = ()
    subscription_table: Mapping[str, SubscriptionData] = field(default_factory=dict)
    consume_type: str | None = None
    message_model: str | None = None
    consume_from_where: str | None = None


@dataclass(frozen=True, slots=True)
class ProducerConnection(JSONBody):
    """204."""

    connection_set: Sequence[ClientConnection] = ()


@dataclass(frozen=True, slots=True)
class ProducerInfo(JSONBody):
    client_id: str
    remote_ip: str = field(default="", metadata=named("remoteIP"))  # /ip:port
    language: str = "JAVA"
    version: int = 0
    last_update_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class ProducerTableInfo(JSONBody):
    """328, by producer group."""

    data: Mapping[str, Sequence[ProducerInfo]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class GroupList(JSONBody):
    """300."""

    group_list: Sequence[str] = ()


# Progress


@dataclass(frozen=True, slots=True)
class QueueProgress(JSONBody):
    """One queue's end and how far a group has read; `last_timestamp` is when the last message that it
    read was stored.
    """

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0

    @property
    def lag(self) -> int:
        """Never below 0: a topic that was deleted and made again may have fewer messages than were consumed of it."""
        return max(0, self.broker_offset - self.consumer_offset)


@dataclass(frozen=True, slots=True)
class ConsumeStats(JSONBody):
    """208.  `consume_tps` is of all the group's topics together."""

    consume_tps: float = 0.0
    offset_table: Mapping[MessageQueue, QueueProgress] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ConsumeStatsList(JSONBody):
    """317: mappings with one group each, as stock brokers write them."""

    broker_addr: str | None = None
    total_diff: int = 0
    consume_stats_list: Sequence[Mapping[str, Sequence[ConsumeStats]]] = ()


@dataclass(frozen=True, slots=True)
class QueueTimeSpan(JSONBody):
    message_queue: MessageQueue
    min_time_stamp: int = 0
    max_time_stamp: int = 0
    consume_time_stamp: int = 0
    delay_time: int = 0
    min_time_stamp_str: str | None = None
    max_time_stamp_str: str | None = None
    consume_time_stamp_str: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumeTimeSpans(JSONBody):
    """303."""

    consume_time_span_set: Sequence[QueueTimeSpan] = ()


@dataclass(frozen=True, slots=True)
class CorrectionOffsets(JSONBody):
    """308, by queue id."""

    correction_offsets: Mapping[int, int] = field(default_factory=dict)


# Offsets of a group's members


@dataclass(frozen=True, slots=True)
class ResetOffsetBody(JSONBody):
    """222's answer, and 220 to the clients."""

    offset_table: Mapping[MessageQueue, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class QueueOffset(JSONBody):
    topic: str
    broker_name: str
    queue_id: int
    offset: int


@dataclass(frozen=True, slots=True)
class ResetOffsetBodyForC(JSONBody):
    """220 if the tool that asked has language CPP."""

    offset_table: Sequence[QueueOffset] = ()


@dataclass(frozen=True, slots=True)
class ConsumerStatusBody(JSONBody):
    """223's answer has `consumer_table` by client id; a client's, to 221, has `message_queue_table`."""

    message_queue_table: Mapping[MessageQueue, int] = field(default_factory=dict)
    consumer_table: Mapping[str, Mapping[MessageQueue, int]] = field(default_factory=dict)


# What a consumer tells of itself


@dataclass(frozen=True, slots=True)
class ProcessQueueInfo(JSONBody):
    """A queue in a consumer's memory."""

    commit_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_count: int = 0
    cached_msg_size_in_mib: int = field(default=0, metadata=named("cachedMsgSizeInMiB"))
    transaction_msg_min_offset: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_count: int = 0
    locked: bool = False
    try_unlock_times: int = 0
    last_lock_timestamp: int = 0
    droped: bool = False
    last_pull_timestamp: int = 0
    last_consume_timestamp: int = 0


@dataclass(frozen=True, slots=True)
class ConsumeStatus(JSONBody):
    """A topic's rates in a consumer: times in ms, rates per second."""

    pull_rt: float = field(default=0.0, metadata=named("pullRT"))
    pull_tps: float = field(default=0.0, metadata=named("pullTPS"))
    consume_rt: float = field(default=0.0, metadata=named("consumeRT"))
    consume_ok_tps: float = field(default=0.0, metadata=named("consumeOKTPS"))
    consume_failed_tps: float = field(default=0.0, metadata=named("consumeFailedTPS"))
    consume_failed_msgs: int = 0


@dataclass(frozen=True, slots=True)
class ConsumerRunningInfo(JSONBody):
    """307."""

    properties: Mapping[str, str] = field(default_factory=dict)
    subscription_set: Sequence[SubscriptionData] = ()
    mq_table: Mapping[MessageQueue, ProcessQueueInfo] = field(default_factory=dict)
    status_table: Mapping[str, ConsumeStatus] = field(default_factory=dict)
    jstack: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumeDirectlyResult(JSONBody):
    """309; `consume_result` is CR_SUCCESS, CR_LATER, CR_ROLLBACK, CR_COMMIT, CR_THROW_EXCEPTION or
    CR_RETURN_NULL.
    """

    consume_result: str | None = None
    order: bool = False
    auto_commit: bool = True
    remark: str | None = None
    spent_time_mills: int = 0


# Statistics and queues of a broker


@dataclass(frozen=True, slots=True)
class StatsItem(JSONBody):
    """Over a minute, an hour or a day: events and their sum, per second, and the average of one."""

    sum: int = 0
    tps: float = 0.0
    avgpt: float = 0.0


@dataclass(frozen=True, slots=True)
class BrokerStatsData(JSONBody):
    """315."""

    stats_minute: StatsItem = StatsItem()
    stats_hour: StatsItem = StatsItem()
    stats_day: StatsItem = StatsItem()


@dataclass(frozen=True, slots=True)
class ConsumeQueueEntry(JSONBody):
    """One entry of a consume queue: a physical offset, bytes, and the tag's code."""

    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0
    extend_data_json: str | None = None
    bit_map: str | None = None
    eval: bool = False
    msg: str | None = None


@dataclass(frozen=True, slots=True)
class ConsumeQueueBody(JSONBody):
    """321; the indexes are queue offsets, `max_queue_index` is exclusive."""

    queue_data: Sequence[ConsumeQueueEntry] = ()
    min_queue_index: int = 0
    max_queue_index: int = 0
    subscription_data: SubscriptionData | None = None
    filter_data: str | None = None


@dataclass(frozen=True, slots=True)
class FileConfigBody(JSONBody):
    """40012, ours: keys that the node's file has another value for than is in force, with that value.

    `later` are those that count from the next start on; the others count once the file is read again (SIGHUP).
    `path` is "" for a node without a file.  With a `trouble` the file would not be taken.
    """

    path: str = ""
    values: Mapping[str, str] = field(default_factory=dict)
    later: Sequence[str] = ()
    trouble: str = ""
