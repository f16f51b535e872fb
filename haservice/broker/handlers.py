"""What a broker answers: every processor of its clients' ports, built from the parts it uses.

`Parts` is what is built by then (assembly.py); `processors_of` is the one place that shows who uses what.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from commitlog.dispatch.dispatcher import parse_delay_levels
from commitlog.kernel.records import NewMessage
from commitlog.options import TRANSACTION_CHECKS
from commitlog.store import Store
from haservice.access.files import AclFiles
from haservice.broker.acl.message_rights import MessageRights
from haservice.broker.acl.processor import AclProcessor
from haservice.broker.acl.recipients import Recipients
from haservice.broker.delay.offsets import DelayOffsets
from haservice.broker.delay.processor import DelayOffsetsProcessor, replicated_end
from haservice.broker.dispatch_barrier import DispatchBarrier
from haservice.broker.groups.client_calls import ClientCallsProcessor
from haservice.broker.groups.client_config import ClientConfigProcessor
from haservice.broker.groups.connection_requests import ConnectionsProcessor
from haservice.broker.groups.consume_stats import ConsumeStatsProcessor
from haservice.broker.groups.consumers import ClientTable
from haservice.broker.groups.heartbeat import HeartbeatProcessor
from haservice.broker.groups.lock_requests import LockProcessor
from haservice.broker.groups.offset_requests import OffsetsProcessor
from haservice.broker.groups.processor import GroupsProcessor
from haservice.broker.groups.queue_locks import QueueLocks
from haservice.broker.groups.reset_offsets import ResetOffsetsProcessor
from haservice.broker.groups.subscription_groups import Groups
from haservice.broker.lease.keeper import LeaseKeeper
from haservice.broker.lease.requests import CoordinatedRoles, LeaveLeaseProcessor
from haservice.broker.metadata.broker_state import StateProcessor
from haservice.broker.metadata.cleanup_requests import HousekeepingProcessor
from haservice.broker.metadata.store_queues import StoreQueues
from haservice.broker.metadata.tool_queries import QueueInspectionProcessor
from haservice.broker.offsets.consumer_offsets import ConsumerOffsets
from haservice.broker.pull.consumer_filters import ConsumerFilters
from haservice.broker.pull.long_polling import LongPolling
from haservice.broker.pull.message_filter import MessageFilters
from haservice.broker.pull.offset_moved import OffsetMovedEvents
from haservice.broker.pull.processor import PullProcessor, keeps_offset
from haservice.broker.pull.query import QueryProcessor
from haservice.broker.pull.read_result import ReadLimits
from haservice.broker.pull.reader import PullReader
from haservice.broker.roles.processor import LineageProcessor, Roles
from haservice.broker.send.admission import Admission, SendRules
from haservice.broker.send.durability import Durability, PutStatus
from haservice.broker.send.fast_sends import fast_sends
from haservice.broker.send.processor import SendLimits, SendProcessor, trace_of
from haservice.broker.send.reply import ReplyProcessor
from haservice.broker.send.send_back import SendBackProcessor
from haservice.broker.stats.counted_log import CountedLog
from haservice.broker.stats.counters import Stats
from haservice.broker.stats.overview import OverviewProcessor
from haservice.broker.topics.admin import TopicProcessor
from haservice.broker.topics.deleted import DeletedTopics
from haservice.broker.topics.readable import ReadableTopics, Topics
from haservice.broker.topics.table import SCHEDULE_TOPIC, TRACE_TOPIC, TopicTable
from haservice.broker.transactions.check import TransactionCheck, load_ends
from haservice.broker.transactions.check_round import TransactionRules
from haservice.broker.transactions.half_messages import Ends
from haservice.broker.transactions.processor import ProducerQuestions, TransactionProcessor
from haservice.configuration.live_settings import LiveSettings
from haservice.configuration.settings import (
    DELAY_STATS,
    FILTERS,
    PERMISSION,
    PULLS,
    QUERIES,
    REPLIES,
    SENDS,
    BrokerConfig,
    NodeConfig,
)
from haservice.remoting.codes import RequestCode
from haservice.remoting.headers.config import ConfigProcessor
from haservice.remoting.server import BatchProcessor, Processor, RemotingServer
from haservice.replication.service import HAService

Processors = dict[int, Processor | BatchProcessor]


class HasHandlers(Protocol):
    def handlers(self) -> Mapping[int, Processor | BatchProcessor]: ...


# Their answers depend on the ends of queues, or on the index.
ASKS_ABOUT_QUEUES = frozenset(
    {
        RequestCode.QUERY_MESSAGE,
        RequestCode.SEARCH_OFFSET_BY_TIMESTAMP,
        RequestCode.GET_MAX_OFFSET,
        RequestCode.GET_TOPIC_STATS_INFO,
        RequestCode.GET_CONSUME_STATS,
        RequestCode.INVOKE_BROKER_TO_RESET_OFFSET,
        RequestCode.QUERY_CONSUME_TIME_SPAN,
        RequestCode.GET_BROKER_CONSUME_STATS,
        RequestCode.QUERY_CONSUME_QUEUE,
        RequestCode.GET_TOPICS_OVERVIEW,
        RequestCode.GET_GROUPS_OVERVIEW,
    }
)


@dataclass(frozen=True, slots=True)
class Parts:
    """What answers are made from."""

    config: NodeConfig
    store: Store
    store_host: bytes
    topics: TopicTable
    groups: Groups
    clients: ClientTable
    filters: ConsumerFilters
    offsets: ConsumerOffsets
    delays: DelayOffsets
    stats: Stats
    server: RemotingServer
    ha: HAService
    durability: Durability
    long_polling: LongPolling
    transaction_ends: Ends
    # Done when the nameservers know the present topics.
    told: Callable[[], Future[None]]
    live: LiveSettings[NodeConfig]
    roles: Roles
    rights: MessageRights
    recipients: Recipients
    acl: AclFiles | None = None
    lease: LeaseKeeper | None = None

    @property
    def is_slave(self) -> bool:
        return self.config.broker.role.is_slave


def sends_of(parts: Parts) -> SendProcessor:
    admission, send_limits, log = _admission(parts), _send_limits(parts.config.broker), parts.store.log
    fast = fast_sends(admission, log, parts.stats, store_host=parts.store_host, trace=trace_of(send_limits))
    sends = SendProcessor(
        send_limits,
        admission,
        log,
        parts.durability,
        parts.stats,
        store_host=parts.store_host,
        fast=fast,
        on_half=parts.rights.half_sent,
        why_shut=parts.lease.gate.why if parts.lease is not None else _never,
    )
    parts.live.follow({SENDS}, lambda config: sends.configure(_send_limits(config.broker)))
    parts.live.follow({SENDS}, lambda config: admission.configure(_limits(config)))
    return sends


def _roles(parts: Parts) -> Roles:
    if parts.lease is None:
        return parts.roles
    return CoordinatedRoles(parts.roles, parts.lease, is_slave=parts.is_slave)


def _safe_end(parts: Parts) -> int:
    """Up to where the log is at every broker that may be the next master; -1 without a slave."""
    return parts.store.log.end if parts.config.dledger.enabled else replicated_end(parts.ha.status())


def _slaves_in_sync(ha: HAService) -> int:
    """How many slaves of ours."""
    return len({one.replica_id for one in ha.status().slaves if one.in_sync and one.replica_id})


async def _agreed(parts: Parts, end: int) -> bool:
    """In a group what is not committed may become another leader's; a pair's master has the log."""
    return not parts.config.dledger.enabled or await parts.durability.proof(end) is PutStatus.PUT_OK


def _never() -> str:
    return ""


def processors_of(parts: Parts, sends: SendProcessor, gauges: Callable[[], Mapping[str, str]]) -> Processors:
    """Request code → processor, for the main port.  `gauges` gives entries of request 28."""
    config, broker, store = parts.config, parts.config.broker, parts.store
    offload, make = parts.server.offload, parts.server.make
    reader = PullReader(
        store.log,
        store.queues.get,
        ReadLimits.of(broker),
        keeps_offset=keeps_offset(broker),
        file_entries=config.log.queue_file_size // 20,
        readable_end=parts.ha.readable_end,
    )
    filters = MessageFilters(broker, parts.clients, parts.filters)
    counted_log = CountedLog(store.log, parts.stats)
    barrier = DispatchBarrier(store.log, store.dispatcher, parts.server.call_soon)
    pulls = PullProcessor(
        broker,
        _readable_topics(parts),
        parts.groups,
        filters,
        parts.offsets,
        reader,
        parts.long_polling,
        barrier,
        parts.stats,
        offload,
        make,
        parts.server.offload_aside,
        None
        if parts.is_slave
        else OffsetMovedEvents(counted_log.append, broker.broker_name, parts.store_host),
        store.mender.mend,
        parts.recipients,
    )
    queries = QueryProcessor(
        store.log,
        store.index if config.log.index_enabled else None,
        make,
        parts.rights,
        broker.default_query_max_num,
        store.index_mender.suspect,
        lambda: store.index_mender.busy,
        store.queues.floors.of,
    )
    live = parts.live
    live.follow({DELAY_STATS}, lambda config: _count_delivered(parts.stats, config))
    _count_delivered(parts.stats, config)
    live.follow({PULLS}, lambda config: pulls.configure(config.broker))
    live.follow({FILTERS}, lambda config: filters.configure(config.broker))
    live.follow({PULLS}, lambda config: reader.configure(ReadLimits.of(config.broker)))
    live.follow({QUERIES}, lambda config: queries.configure(config.broker.default_query_max_num))
    processors: Processors = {}
    parts_with_handlers: tuple[HasHandlers, ...] = (
        sends,
        pulls,
        queries,
        *admin_processors(parts, gauges),
        ClientConfigProcessor(filters, make),
        OffsetsProcessor(parts.offsets, store.log, store.queues.get, reader, offload, make),
        DelayOffsetsProcessor(parts.delays, partial(_safe_end, parts)),
        _send_back(parts, sends),
        HeartbeatProcessor(
            parts.clients,
            parts.groups,
            parts.topics,
            parts.filters,
            make,
            creates_topics=not parts.is_slave,
            requester_of=parts.recipients.requester,
        ),
        ConnectionsProcessor(parts.clients),
        GroupsProcessor(
            parts.groups,
            parts.offsets,
            offload,
            is_slave=parts.is_slave,
            on_deleted=parts.stats.traffic.forget_group,
        ),
        LockProcessor(QueueLocks()),
        LineageProcessor(_roles(parts), store.log, offload, make),
        *([LeaveLeaseProcessor(parts.lease, offload)] if parts.lease is not None else []),
        AclProcessor(
            parts.acl,
            offload,
            cluster_name=broker.cluster_name,
            broker_name=broker.broker_name,
            broker_addr=config.broker_addr,
        ),
        TransactionProcessor(
            counted_log,
            parts.durability,
            parts.transaction_ends,
            offload,
            parts.rights,
            store_host=parts.store_host,
            is_slave=parts.is_slave,
            unwritable=lambda: sends.refuse_all,
            queue_to_deliver=parts.topics.queue_to_deliver,
            on_answer=parts.clients.answered,
        ),
        _replies_of(parts, sends),
    )
    for part in parts_with_handlers:
        processors.update(part.handlers())
    for code in ASKS_ABOUT_QUEUES & processors.keys():
        processor = processors[code]
        assert callable(processor)
        processors[code] = barrier.before(processor)
    return processors


def admin_processors(parts: Parts, gauges: Callable[[], Mapping[str, str]]) -> Iterable[HasHandlers]:
    """The processors for people and their tools."""
    config, store, offload, make = parts.config, parts.store, parts.server.offload, parts.server.make
    topics, clients, offsets, traffic = parts.topics, parts.clients, parts.offsets, parts.stats.traffic
    name, is_slave = config.broker.broker_name, parts.is_slave
    view, deleted = StoreQueues(store.queues, store.log), DeletedTopics(store)
    return (
        TopicProcessor(
            topics,
            deleted,
            view,
            offload,
            broker_name=name,
            is_slave=is_slave,
            told=parts.told,
            on_deleted=partial(_forget_topic, parts),
            slaves_in_sync=partial(_slaves_in_sync, parts.ha),
            agreed=partial(_agreed, parts),
        ),
        StateProcessor(
            parts.stats,
            store.log,
            offload,
            log_path=config.log.log_path,
            queue_path=config.log.root / "consumequeue",
            gauges=gauges,
            ha_status=parts.ha.status,
            role_in_file=parts.live.role_in_file,
        ),
        ConfigProcessor(
            parts.live,
            offload,
            update_code=RequestCode.UPDATE_BROKER_CONFIG,
            get_code=RequestCode.GET_BROKER_CONFIG,
            file_code=RequestCode.GET_FILE_CONFIG,
            fixed={
                "filterServerNums": "0",
                "msgTraceTopicName": TRACE_TOPIC,
                "useTLS": "true" if config.tls.calls else "false",
            },
        ),
        ConsumeStatsProcessor(
            topics,
            clients,
            offsets,
            view,
            traffic,
            make,
            broker_name=name,
            broker_addr=config.broker_addr,
        ),
        OverviewProcessor(topics, clients, offsets, view, traffic, make),
        ResetOffsetsProcessor(topics, clients, offsets, view, offload, broker_name=name),
        ClientCallsProcessor(clients, store.log, offload, parts.recipients.may_consume, broker_name=name),
        QueueInspectionProcessor(topics, clients, offsets, view, traffic, offload, make, is_slave=is_slave),
        HousekeepingProcessor(
            topics,
            offsets,
            store.queues,
            store.index,
            view,
            lambda: store.log.start,
            store.retention.order_passes,
            offload,
            delete=deleted.drop_queues if is_slave else deleted.delete,
            on_deleted=partial(_forget_topic, parts),
            is_slave=is_slave,
        ),
    )


def transaction_check_of(
    parts: Parts, sends: SendProcessor, on_progress: Callable[[], None]
) -> TransactionCheck:
    """The task that asks producers about half messages; a slave never runs its own."""
    if not parts.is_slave:
        load_ends(parts.store, parts.transaction_ends)
    questions = ProducerQuestions(parts.clients, parts.recipients)
    check = TransactionCheck(
        parts.store,
        parts.offsets,
        parts.topics,
        TransactionRules.of(parts.config),
        ends=parts.transaction_ends,
        interval_s=parts.config.broker.transaction_check_interval_ms / 1000,
        hand_over=lambda some, asked: parts.server.call_soon(questions.ask, some, asked),
        held=lambda: sends.refuse_all or parts.store.log.writable,
        replicated_end=partial(_safe_end, parts),
        on_progress=on_progress,
    )
    parts.live.follow(
        {TRANSACTION_CHECKS},
        lambda config: check.configure(
            TransactionRules.of(config), config.broker.transaction_check_interval_ms / 1000
        ),
    )
    return check


def _replies_of(parts: Parts, sends: SendProcessor) -> ReplyProcessor:
    admission = _admission(parts)
    replies = ReplyProcessor(
        _send_limits(parts.config.broker),
        admission,
        parts.clients,
        parts.recipients,
        CountedLog(parts.store.log, parts.stats),
        store_host=parts.store_host,
        stores=parts.config.broker.store_reply_message_enable,
        unwritable=lambda: sends.refuse_all,
    )
    parts.live.follow(
        {SENDS, REPLIES},
        lambda config: replies.configure(
            _send_limits(config.broker), config.broker.store_reply_message_enable
        ),
    )
    parts.live.follow({SENDS}, lambda config: admission.configure(_limits(config)))
    return replies


def _forget_topic(parts: Parts, topic: str) -> None:
    """A topic of that name is a new one: its queues begin at 0 after a restart, and groups with their first message.

    A slave gets all this from its master; there only queues that were left have gone.
    """
    parts.stats.traffic.forget_topic(topic)
    if not parts.is_slave:
        parts.topics.note_deleted(topic)  # slaves that asked meanwhile ask again, and hear of it
        parts.offsets.remove_topic(topic)


def vip_processors_of(processors: Processors) -> Processors:
    """RocketMQ's second port serves everything but pulls."""
    return {code: one for code, one in processors.items() if code != RequestCode.PULL_MESSAGE}


def _readable_topics(parts: Parts) -> Topics:
    if not parts.is_slave:
        return parts.topics
    queues = parts.store.queues
    return ReadableTopics(
        parts.topics, lambda: (key for key, queue in queues.items() if not queue.is_deleted)
    )


def _send_back(parts: Parts, sends: SendProcessor) -> SendBackProcessor:
    broker, traffic = parts.config.broker, parts.stats.traffic

    def sent_back(topic: str, group: str, stored: NewMessage, size_bytes: int) -> None:
        traffic.sent_back(topic, group)
        if stored.topic == SCHEDULE_TOPIC:
            traffic.scheduled(stored.queue_id, size_bytes)

    send_back = SendBackProcessor(
        CountedLog(parts.store.log, parts.stats),
        parts.topics,
        parts.groups.find,
        parts.durability,
        parts.server.offload,
        parts.rights,
        permission=broker.permission,
        delay_level_max=len(parse_delay_levels(parts.config.log.message_delay_levels)),
        is_slave=parts.is_slave,
        unwritable=lambda: sends.refuse_all,
        on_sent_back=sent_back,
    )
    parts.live.follow({PERMISSION}, lambda config: send_back.configure(config.broker.permission))
    return send_back


def _count_delivered(stats: Stats, config: NodeConfig) -> None:
    stats.counts_delivered = config.broker.enable_schedule_message_stats


def _admission(parts: Parts) -> Admission:
    return Admission(_limits(parts.config), parts.topics, parts.groups.find)


def _limits(config: NodeConfig) -> SendRules:
    broker = config.broker
    return SendRules(
        broker.cluster_name,
        broker.permission,
        config.log.max_message_bytes,
        len(parse_delay_levels(config.log.message_delay_levels)),
        broker.reject_transaction_message,
    )


def _send_limits(broker: BrokerConfig) -> SendLimits:
    return SendLimits(
        region_id=broker.region_id,
        trace_on=broker.trace_on,
        start_accept_timestamp_ms=broker.start_accept_send_timestamp_ms,
        page_cache_busy_s=broker.page_cache_busy_ms / 1000,
        max_pending_sends=broker.max_pending_sends,
        is_slave=broker.role.is_slave,
    )
