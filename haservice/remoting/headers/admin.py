"""The ext fields of requests by tools: groups, offsets, clients, statistics.

The fields are those of RocketMQ 4.9.8's classes in common.protocol.header.  The rules of clients.py hold here
too.  Other requests of tools have no ext fields, or share a header: 203 has ConsumerGroupHeader, 300 TopicHeader.
"""

from __future__ import annotations

from dataclasses import dataclass

from haservice.bounds import BrokerName, ClientId, GroupName, TopicName
from haservice.remoting.headers.clients import I32, I64, ExtHeader

# Groups


@dataclass(frozen=True, slots=True)
class DeleteSubscriptionGroupHeader(ExtHeader):
    """207; `remove_offset` deletes the group's consumer offsets, too."""

    group_name: GroupName
    remove_offset: bool = False


@dataclass(frozen=True, slots=True)
class ProducerGroupHeader(ExtHeader):
    """204."""

    producer_group: GroupName


# Progress and offsets


@dataclass(frozen=True, slots=True)
class ConsumeStatsHeader(ExtHeader):
    """208; without a topic, every topic in which the group has offsets."""

    consumer_group: GroupName
    topic: TopicName | None = None


@dataclass(frozen=True, slots=True)
class BrokerConsumeStatsHeader(ExtHeader):
    """317."""

    is_order: bool = False


@dataclass(frozen=True, slots=True)
class ResetOffsetHeader(ExtHeader):
    """222, and 220 to the clients; the timestamp is in milliseconds, -1 stands for the end."""

    topic: TopicName
    group: GroupName
    timestamp: I64
    is_force: bool = False


@dataclass(frozen=True, slots=True)
class ConsumerStatusHeader(ExtHeader):
    """223, and 221 to the clients; `client_addr` is a client id, or blank for all of the group."""

    topic: TopicName
    group: GroupName
    client_addr: ClientId | None = None


@dataclass(frozen=True, slots=True)
class ConsumeTimeSpanHeader(ExtHeader):
    """303."""

    topic: TopicName
    group: GroupName


@dataclass(frozen=True, slots=True)
class CorrectionOffsetHeader(ExtHeader):
    """308; `filter_groups` are joined by commas."""

    compare_group: GroupName
    topic: TopicName
    filter_groups: str | None = None


@dataclass(frozen=True, slots=True)
class CloneGroupOffsetHeader(ExtHeader):
    """314; without a topic, all in which the source group has offsets."""

    src_group: GroupName
    dest_group: GroupName
    topic: TopicName | None = None
    offline: bool = False


# Clients


@dataclass(frozen=True, slots=True)
class ConsumerRunningInfoHeader(ExtHeader):
    """307, to the broker and on to the client."""

    consumer_group: GroupName
    client_id: ClientId
    jstack_enable: bool = False


@dataclass(frozen=True, slots=True)
class ConsumeDirectlyHeader(ExtHeader):
    """309; `msg_id` is an offset message id, the broker adds its name on the way to the client."""

    consumer_group: GroupName
    client_id: ClientId | None = None
    msg_id: str | None = None
    broker_name: BrokerName | None = None


# Statistics, queues, configuration


@dataclass(frozen=True, slots=True)
class BrokerStatsHeader(ExtHeader):
    """315."""

    stats_name: str
    stats_key: str


@dataclass(frozen=True, slots=True)
class ConsumeQueueHeader(ExtHeader):
    """321: `count` entries from `index` on; if a group is named, its filter is tried on them."""

    topic: TopicName
    queue_id: I32
    index: I64
    count: I32
    consumer_group: GroupName | None = None


@dataclass(frozen=True, slots=True)
class ResumeHalfMessageHeader(ExtHeader):
    """323; an offset message id."""

    msg_id: str


@dataclass(frozen=True, slots=True)
class ConfigChangedHeader(ExtHeader):
    """25 and 318, ours: the stored keys that count from the next start on, separated by commas."""

    from_next_start: str | None = None


@dataclass(frozen=True, slots=True)
class BrokerConfigResponseHeader(ExtHeader):
    """26; the JSON of a DataVersion."""

    version: str


# What a nameserver keeps for others


@dataclass(frozen=True, slots=True)
class PutKVConfigHeader(ExtHeader):
    """100."""

    namespace: str
    key: str
    value: str


@dataclass(frozen=True, slots=True)
class KVConfigHeader(ExtHeader):
    """101 and 102."""

    namespace: str
    key: str


@dataclass(frozen=True, slots=True)
class KVValueResponseHeader(ExtHeader):
    """101."""

    value: str | None = None


@dataclass(frozen=True, slots=True)
class NamespaceHeader(ExtHeader):
    """219."""

    namespace: str
