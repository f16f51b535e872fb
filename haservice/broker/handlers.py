"""What a broker answers: every processor of its clients' ports, built from the parts it uses.

`Parts` is what the node has made by then; `processors_of` is the one place to see who uses what.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from commitlog.dispatch import parse_delay_levels
from commitlog.store import Store
from haservice.broker.acl_files import AclFiles
from haservice.broker.admission import Admission, Limits
from haservice.broker.consumer_filters import ConsumerFilters
from haservice.broker.consumer_offsets import ConsumerOffsets
from haservice.broker.consumers import ClientTable
from haservice.broker.durability import Durability, Wait
from haservice.broker.groups import Groups
from haservice.broker.long_polling import LongPolling
from haservice.broker.message_filter import MessageFilters
from haservice.broker.offset_moved import OffsetMovedEvents
from haservice.broker.processors.acl import AclProcessor
from haservice.broker.processors.broker_state import StateProcessor
from haservice.broker.processors.connections import ConnectionsProcessor
from haservice.broker.processors.groups import GroupsProcessor
from haservice.broker.processors.client_config import ClientConfigProcessor
from haservice.broker.processors.heartbeat import HeartbeatProcessor
from haservice.broker.processors.locks import LockProcessor
from haservice.broker.processors.offsets import OffsetsProcessor
from haservice.broker.processors.pull import PullProcessor, keeps_offset
from haservice.broker.processors.query import QueryProcessor
from haservice.broker.processors.reply import ReplyProcessor
from haservice.broker.processors.send import Gates, SendProcessor
from haservice.broker.processors.topic_admin import TopicProcessor
from haservice.broker.processors.transactions import TransactionProcessor
from haservice.broker.queue_locks import QueueLocks
from haservice.broker.readable_topics import ReadableTopics, Topics
from haservice.broker.reader import QueueReader, ReadLimits
from haservice.broker.stats import Stats
from haservice.broker.store_view import StoreView
from haservice.broker.topics import TopicTable
from haservice.broker.transactions import Ends
from haservice.remoting.codes import RequestCode
from haservice.remoting.server import BatchProcessor, Processor, RemotingServer
from haservice.replication.service import HAService
from haservice.settings import BrokerConfig, NodeConfig

Processors = dict[int, Processor | BatchProcessor]


@dataclass(frozen=True, slots=True)
class Parts:
    """What answers are made from.  `gauges` are entries of request 28 that the node knows."""

    config: NodeConfig
    store: Store
    store_host: bytes
    topics: TopicTable
    groups: Groups
    clients: ClientTable
    filters: ConsumerFilters
    offsets: ConsumerOffsets
    stats: Stats
    server: RemotingServer
    ha: HAService[Wait]
    durability: Durability
    long_polling: LongPolling
    transaction_ends: Ends
    gauges: Callable[[], Mapping[str, str]]
    acl: AclFiles | None = None

    @property
    def is_slave(self) -> bool:
        return self.config.broker.role.is_slave


def sends_of(parts: Parts) -> SendProcessor:
    return SendProcessor(
        _gates(parts.config.broker),
        _admission(parts),
        parts.store.log,
        parts.durability,
        parts.stats,
        store_host=parts.store_host,
    )


def processors_of(parts: Parts, sends: SendProcessor) -> Processors:
    """Request code → processor, for the main port."""
    config, broker, store = parts.config, parts.config.broker, parts.store
    offload = parts.server.offload
    reader = QueueReader(
        store.log,
        store.queues.get,
        ReadLimits.of(broker),
        keeps_offset=keeps_offset(broker),
        file_entries=config.log.queue_file_size // 20,
        readable_end=parts.ha.readable_end,
    )
    view = StoreView(store.queues, store.log)
    filters = MessageFilters(broker, parts.clients, parts.filters)
    processors: Processors = {}
    for part in (
        sends,
        PullProcessor(
            broker,
            _readable_topics(parts),
            parts.groups,
            filters,
            parts.offsets,
            reader,
            parts.long_polling,
            parts.stats,
            offload,
            None
            if parts.is_slave
            else OffsetMovedEvents(store.log.append, broker.broker_name, parts.store_host),
        ),
        ClientConfigProcessor(filters),
        OffsetsProcessor(parts.offsets, store.log, store.queues.get, reader, offload),
        HeartbeatProcessor(parts.clients, parts.groups, parts.topics, creates_topics=not parts.is_slave),
        ConnectionsProcessor(parts.clients),
        GroupsProcessor(parts.groups, parts.offsets, offload, is_slave=parts.is_slave),
        LockProcessor(QueueLocks()),
        AclProcessor(
            parts.acl,
            offload,
            cluster_name=broker.cluster_name,
            broker_name=broker.broker_name,
            broker_addr=config.broker_addr,
        ),
        TransactionProcessor(
            store.log,
            parts.durability,
            parts.transaction_ends,
            offload,
            store_host=parts.store_host,
            is_slave=parts.is_slave,
            unwritable=lambda: sends.refuse_all,
        ),
        ReplyProcessor(
            _gates(broker),
            _admission(parts),
            parts.clients,
            store.log,
            store_host=parts.store_host,
            stores=broker.store_reply_message_enable,
            unwritable=lambda: sends.refuse_all,
        ),
        QueryProcessor(
            store.log,
            store.index if config.log.index_enabled else None,
            offload,
            broker.default_query_max_num,
        ),
        TopicProcessor(
            parts.topics,
            store.queues,
            view,
            offload,
            broker_name=broker.broker_name,
            is_slave=parts.is_slave,
        ),
        StateProcessor(
            parts.stats,
            store.log,
            offload,
            log_path=config.log.log_path,
            queue_path=config.log.root / "consumequeue",
            gauges=parts.gauges,
            ha_status=parts.ha.status,
        ),
    ):
        processors.update(part.handlers())
    return processors


def vip_processors_of(processors: Processors) -> Processors:
    """RocketMQ's second port serves everything but pulls."""
    return {code: one for code, one in processors.items() if code != RequestCode.PULL_MESSAGE}


def _readable_topics(parts: Parts) -> Topics:
    if not parts.is_slave:
        return parts.topics
    queues = parts.store.queues
    return ReadableTopics(parts.topics, lambda: (key for key, _ in queues.items()))


def _admission(parts: Parts) -> Admission:
    config, broker = parts.config, parts.config.broker
    limits = Limits(
        broker.cluster_name,
        broker.permission,
        config.log.max_message_bytes,
        len(parse_delay_levels(config.log.message_delay_levels)),
        broker.reject_transaction_message,
    )
    return Admission(limits, parts.topics, parts.groups.find)


def _gates(broker: BrokerConfig) -> Gates:
    return Gates(
        region_id=broker.region_id,
        trace_on=broker.trace_on,
        start_accept_timestamp_ms=broker.start_accept_send_timestamp_ms,
        page_cache_busy_s=broker.page_cache_busy_ms / 1000,
        max_pending_sends=broker.max_pending_sends,
        is_slave=broker.role.is_slave,
    )
