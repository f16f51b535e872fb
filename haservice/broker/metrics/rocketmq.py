"""Samples under the names of RocketMQ's own monitoring, for the boards that people have.  Pure.

    exporter     rocketmq-exporter: gauges by cluster, brokerIP, broker, topic, group
    broker_5x    a broker of RocketMQ 5.x: by cluster, node_type, node_id, topic, consumer_group

Only what means the same here has such a name.
"""

from __future__ import annotations

from haservice.broker.metrics.facts import BrokerFacts, GroupFacts, TopicFacts
from haservice.observability.exposition import Exposition
from haservice.remoting.command import VERSION

RETRY_PREFIX, DLQ_PREFIX = "%RETRY%", "%DLQ%"
VERSION_TEXT = "V4_9_8"
# The exporter's names of PUT_BOUNDS_MS' classes.
PUT_CLASSES = (
    *("0ms", "0to10ms", "10to50ms", "50to100ms", "100to200ms", "200to500ms", "500to1s"),
    *("1to2s", "2to3s", "3to4s", "4to5s", "5to10s", "10stomore"),
)
WINDOWS = ("10", "60", "600")
RATES = {
    "put": "puts",
    "getfound": "found",
    "getmiss": "missed",
    "gettotal": "total",
    "gettransfered": "transferred",
}


def exporter(out: Exposition, facts: BrokerFacts) -> None:
    who, traffic = facts.who, facts.traffic
    with out.labelled({"cluster": who.cluster, "brokerIP": who.addr, "broker": who.broker}):
        out.gauge("rocketmq_broker_tps", "Messages stored per second.", traffic.rates.get("puts", (0, 0))[1])
        out.gauge(
            "rocketmq_broker_qps", "Messages got per second.", traffic.rates.get("transferred", (0, 0))[1]
        )
    with out.labelled(
        {
            "cluster": who.cluster,
            "brokerIP": who.addr,
            "brokerHost": "",
            "des": VERSION_TEXT,
            "boottime": str(who.boot_ms),
            "broker_version": str(VERSION),
        }
    ):
        for name, value in _runtime(facts).items():
            out.gauge(f"rocketmq_brokeruntime_{name}", f"{name} of request 28.", value)
    if facts.is_slave:
        return
    for topic in facts.topics:
        with out.labelled({"cluster": who.cluster, "broker": who.broker, "topic": topic.topic}):
            _exporter_topic(out, topic)
    for group in facts.groups:
        with out.labelled(
            {"cluster": who.cluster, "broker": who.broker, "topic": group.topic, "group": group.group}
        ):
            _exporter_group(out, group)
        with out.labelled({}):
            _exporter_lag(out, group)


def _runtime(facts: BrokerFacts) -> dict[str, float]:
    traffic, status = facts.traffic, facts.status
    found: dict[str, float] = {
        "msg_put_total_today_now": traffic.puts,
        "msg_gettotal_today_now": traffic.transferred,
        "dispatch_behind_bytes": facts.dispatch_behind,
        "put_message_size_total": traffic.put_bytes,
        "put_message_average_size": traffic.put_bytes / max(1, traffic.puts),
        "putmessage_times_total": traffic.puts,
        "putmessage_entire_time_max": int(traffic.put_time_max_s * 1000),
        "getmessage_entire_time_max": int(traffic.get_time_max_s * 1000),
        "pagecache_lock_time_mills": facts.lock_held_ms,
        "commitlog_maxoffset": status.log_end,
        "commitlog_minoffset": status.log_start,
        "remain_howmanydata_toflush": max(0, status.log_end - facts.flushed),
        "send_threadpool_queue_size": facts.pending_sends,
        "send_threadpoolqueue_capacity": facts.max_pending_sends,
        "put_latency_99": traffic.put_p99_ms,
        "put_latency_999": traffic.put_p999_ms,
    }
    for name, rate in RATES.items():
        for window, value in zip(WINDOWS, traffic.rates.get(rate, ()), strict=False):
            found[f"{name}_tps{window}"] = value
    for name, count in zip(PUT_CLASSES, traffic.put_classes, strict=False):
        found[f"pmdt_{name}"] = count
    for disk in facts.disks:
        if disk.name == "log":
            found["commitlog_disk_ratio"] = disk.used_ratio
            found["commitlogdir_capacity_total"] = disk.size
            found["commitlogdir_capacity_free"] = disk.free
        else:
            found["consumequeue_disk_ratio"] = disk.used_ratio
    return found


def _exporter_topic(out: Exposition, topic: TopicFacts) -> None:
    out.gauge("rocketmq_producer_tps", "Messages stored per second.", topic.per_second)
    out.gauge("rocketmq_producer_message_size", "Bytes stored per second.", topic.bytes_per_second)
    out.gauge("rocketmq_producer_offset", "The ends of the topic's queues, added up.", topic.end)


def _exporter_group(out: Exposition, group: GroupFacts) -> None:
    out.gauge("rocketmq_consumer_tps", "Messages got per second.", group.per_second)
    out.gauge("rocketmq_consumer_message_size", "Bytes got per second.", group.bytes_per_second)
    out.gauge("rocketmq_consumer_offset", "The ends of the topic's queues, added up.", group.end)
    out.gauge("rocketmq_group_consume_total_offset", "Consumer offsets, added up.", group.consumed)
    out.gauge("rocketmq_send_back_nums", "Messages sent back per second.", group.sent_back_per_second)


def _exporter_lag(out: Exposition, group: GroupFacts) -> None:
    name = "rocketmq_group_diff"
    if group.topic.startswith(RETRY_PREFIX):
        name = "rocketmq_group_retrydiff"
    elif group.topic.startswith(DLQ_PREFIX):
        name = "rocketmq_group_dlqdiff"
    out.gauge(
        name,
        "Messages that the group has not consumed.",
        group.lag,
        group=group.group,
        topic=group.topic,
        countOfOnlineConsumers=str(group.online),
        msgModel="0" if group.is_broadcasting else "1",
    )


def broker_5x(out: Exposition, facts: BrokerFacts) -> None:
    who, status = facts.who, facts.status
    node = {"cluster": who.cluster, "node_type": "broker", "node_id": who.broker}
    with out.labelled({**node, "storage_type": "local", "storage_medium": "disk"}):
        out.gauge("rocketmq_storage_size", "Bytes of the log.", status.log_end - status.log_start)
        out.gauge(
            "rocketmq_storage_flush_behind_bytes", "Not flushed.", max(0, status.log_end - facts.flushed)
        )
        out.gauge("rocketmq_storage_dispatch_behind_bytes", "Not dispatched.", facts.dispatch_behind)
    with out.labelled(node):
        out.gauge("rocketmq_broker_permission", "brokerPermission.", facts.permission)
        out.gauge(
            "rocketmq_processor_watermark", "Requests that wait.", facts.pending_sends, processor="send"
        )
        if facts.is_slave:
            return
        for topic in facts.topics:
            out.counter("rocketmq_messages_in_total", "Messages stored.", topic.messages, topic=topic.topic)
            out.counter("rocketmq_throughput_in_total", "Bytes stored.", topic.size, topic=topic.topic)
        for group in facts.groups:
            of = {"topic": group.topic, "consumer_group": group.group}
            out.counter("rocketmq_messages_out_total", "Messages got.", group.messages, **of)
            out.counter("rocketmq_throughput_out_total", "Bytes got.", group.size, **of)
            out.gauge("rocketmq_consumer_lag_messages", "Messages not consumed.", group.lag, **of)
    for family, count in (
        ("rocketmq_messages_in", facts.topics_left_out),
        ("rocketmq_producer_tps", facts.topics_left_out),
        ("rocketmq_consumer_lag_messages", facts.groups_left_out),
        ("rocketmq_group_diff", facts.groups_left_out),
    ):
        out.left_out(family, count)
