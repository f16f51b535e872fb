"""A broker's metrics: facts in, samples out; then what a real pair answers to a scraper."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from commitlog.options import FlushDiskType
from haservice.admin.daemons import said_of
from haservice.broker.metrics import collect
from haservice.broker.metrics.facts import (
    BrokerFacts,
    BrokerIdentity,
    GroupFacts,
    Histogram,
    Refusals,
    TopicFacts,
    TrafficFacts,
)
from haservice.broker.metrics.families import buckets, exposition_of
from haservice.broker.node import BrokerNode
from haservice.configuration.settings import BrokerRole
from haservice.devtools.pair import free_port_block
from haservice.errors import ConfigError
from haservice.remoting.client import BlockingClient
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import VERSION, RemotingCommand
from haservice.remoting.headers.clients import UpdateConsumerOffsetHeader
from haservice.replication.status import AbsentSlave, HAStatus, Lack, MasterLinkStatus, NotInSync, SlaveStatus
from tests.support.brokers import LOOPBACK, addr_of, send
from tests.support.scraped import get, samples_of, value_of
from tests.support.waiting import wait_until

Start = Callable[..., BrokerNode]

WHO = BrokerIdentity("C", "broker-a", "10.0.0.1:10911", 0, "0.5.0", "native", 1_000)
SLAVE = SlaveStatus(
    addr="10.0.0.7:51234",
    state="transfer",
    position=900,
    ack=800,
    proven=800,
    sent_from=0,
    lag_bytes=200,
    lag_seconds=0.5,
    bytes_per_second=1024.0,
    lack=None,
    broker_addr="10.0.0.7:10911",
)
LINK = MasterLinkStatus(
    master_addr="10.0.0.1:10912",
    state="TRANSFER",
    offset=800,
    reported=800,
    last_read_timestamp_ms=0,
    last_write_timestamp_ms=0,
    seconds_since_read=0.25,
    bytes_per_second=5.0,
    connects=1,
    last_error="",
    master_end=1000,
)
STATUS = HAStatus("SYNC_MASTER", 100, 1000, in_sync_slaves=1, slaves=(SLAVE,), epoch=3)
FACTS = BrokerFacts(WHO, STATUS, needed=1, flushed=900, readable_end=800)


def text_of(facts: BrokerFacts) -> bytes:
    return exposition_of(facts).text()


def test_a_master_tells_each_replica_by_the_address_that_stays() -> None:
    """A port of its connection changes with each one: its series would be new ones each time."""
    late = replace(
        SLAVE,
        addr="10.0.0.9:40000",
        broker_addr="",
        lack=Lack(NotInSync.BYTES_BEHIND, (300, 256)),
    )
    absent = AbsentSlave("10.0.0.8:3", "timed out", 5, 1)
    text = text_of(replace(FACTS, status=replace(STATUS, slaves=(SLAVE, late), absent=(absent,))))
    assert value_of(text, "haservice_replica_ack_bytes", replica="10.0.0.7:10911", broker="broker-a") == 800
    assert value_of(text, "haservice_replica_lag_seconds", replica="10.0.0.7:10911") == 0.5
    assert value_of(text, "haservice_replica_in_sync", replica="10.0.0.9") == 0
    assert value_of(text, "haservice_replica_not_in_sync", replica="10.0.0.9", reason="bytes_behind") == 1
    assert value_of(text, "haservice_replica_connected", replica="10.0.0.8") == 0
    assert value_of(text, "haservice_in_sync_slaves") == 1
    assert value_of(text, "haservice_epoch") == 3
    assert value_of(text, "haservice_role", role="SYNC_MASTER") == 1
    assert value_of(text, "haservice_is_master") == 1


def test_two_connections_of_one_slave_are_one_replica() -> None:
    text = text_of(replace(FACTS, status=replace(STATUS, slaves=(SLAVE, replace(SLAVE, ack=810)))))
    assert value_of(text, "haservice_replica_ack_bytes", replica="10.0.0.7:10911") == 810


def test_a_slave_that_is_connected_again_is_not_told_as_absent() -> None:
    slave = replace(SLAVE, broker_addr="")
    absent = (AbsentSlave("10.0.0.7:1", "timed out", 5, 1), AbsentSlave("10.0.0.8:1", "gone", 5, 1)) * 2
    text = text_of(replace(FACTS, status=replace(STATUS, slaves=(slave,), absent=absent)))
    assert value_of(text, "haservice_replica_connected", replica="10.0.0.7") == 1
    assert value_of(text, "haservice_replica_connected", replica="10.0.0.8") == 0


def test_a_slave_tells_its_link_and_no_topics() -> None:
    status = replace(STATUS, role="SLAVE", slaves=(), master=LINK)
    topics = [TopicFacts("T", 1.0, 2.0, 3, 4, 5)]
    text = text_of(replace(FACTS, status=status, topics=topics))
    assert value_of(text, "haservice_is_master") == 0
    assert value_of(text, "haservice_link_up") == 1
    assert value_of(text, "haservice_link_lag_bytes") == 200
    assert value_of(text, "haservice_link_silence_seconds") == 0.25
    assert b"rocketmq_producer_tps" not in text
    assert b"rocketmq_messages_in" not in text
    down = replace(status, master=replace(LINK, state="READY", master_end=-1))
    assert value_of(text_of(replace(FACTS, status=down)), "haservice_link_up") == 0
    assert value_of(text_of(replace(FACTS, status=down)), "haservice_link_lag_bytes") == -1


@pytest.mark.parametrize(
    ("lack", "word", "text"),
    [
        (Lack(NotInSync.NO_REPORT), "no_report", "has not reported yet"),
        (Lack(NotInSync.BYTES_BEHIND, (9, 8)), "bytes_behind", "9 bytes behind, haSlaveFallbehindMax is 8"),
        (Lack(NotInSync.NOT_COUNTED, ("b has {}",)), "not_counted", "does not count yet: b has {}"),
        (
            Lack(NotInSync.SECONDS_BEHIND, (4.04, 3000)),
            "seconds_behind",
            "4.0 s behind, slaveTimeout is 3000 ms",
        ),
    ],
)
def test_why_a_slave_is_not_in_sync_is_a_word_for_metrics_and_a_text_for_people(
    lack: Lack, word: str, text: str
) -> None:
    slave = replace(SLAVE, lack=lack)
    status = replace(STATUS, slaves=(slave,))
    told = samples_of(text_of(replace(FACTS, status=status)))
    reasons = [labels for name, labels in told if name == "haservice_replica_not_in_sync"]
    assert [dict(labels)["reason"] for labels in reasons] == [word]
    assert (slave.in_sync, slave.reason) == (False, text)
    assert (SLAVE.in_sync, SLAVE.reason) == (True, "")


def test_what_is_refused_is_counted_by_reason_and_why_now_by_its_origin() -> None:
    facts = replace(
        FACTS,
        refusals=Refusals(log="the disk is 91 % full"),
        traffic=TrafficFacts(refused={"system_busy": 3}, unproven={"flush_slave_timeout": 4}),
        damaged=[(100, 150)],
        acknowledged_cut=70,
        failed_threads=["log-scrub"],
        next_segment_not_made="no space",
    )
    text = text_of(facts)
    assert value_of(text, "haservice_writes_refused", cause="log") == 1
    assert value_of(text, "haservice_writes_refused", cause="role") == 0
    assert value_of(text, "haservice_sends_refused_total", reason="system_busy") == 3
    assert value_of(text, "haservice_sends_unproven_total", status="flush_slave_timeout") == 4
    assert value_of(text, "haservice_damaged_ranges") == 1
    assert value_of(text, "haservice_damaged_bytes") == 50
    assert value_of(text, "haservice_acknowledged_cut_bytes") == 70
    assert value_of(text, "haservice_failed_threads") == 1
    assert value_of(text, "haservice_trouble", what="next_segment_not_made") == 1
    assert value_of(text, "haservice_trouble", what="not_registered") == 0


def test_a_histogram_loses_nothing_at_its_ends() -> None:
    counts = [0] * 33
    counts[0], counts[5], counts[6], counts[24], counts[25], counts[32] = 1, 2, 3, 4, 5, 6
    found = buckets(Histogram(counts, 1.0))
    assert found[0] == (32e-6, 3)
    assert found[1] == (64e-6, 3)
    assert found[-2] == (2**24 / 1e6, 4)
    assert found[-1] == (float("inf"), 11)
    assert sum(count for _, count in found) == sum(counts)


def test_rocketmqs_boards_find_their_names_and_labels() -> None:
    group = GroupFacts("g", "T", 2, False, 3.0, 4.0, 50, 60, 0.5, 70, 100, 30)
    facts = replace(
        FACTS,
        traffic=TrafficFacts(puts=9, rates={"puts": [1.0, 2.0, 3.0], "transferred": [4.0, 5.0, 6.0]}),
        topics=[TopicFacts("T", 1.5, 2.5, 9, 900, 100)],
        groups=[group, group._replace(topic="%RETRY%g", lag=7), group._replace(topic="%DLQ%g", lag=8)],
        dispatch_behind=11,
    )
    found = samples_of(text_of(facts))

    def value(name: str, **labels: str) -> float:
        return found[name, tuple(sorted(labels.items()))]

    assert value("rocketmq_broker_tps", cluster="C", brokerIP="10.0.0.1:10911", broker="broker-a") == 2.0
    assert value("rocketmq_broker_qps", cluster="C", brokerIP="10.0.0.1:10911", broker="broker-a") == 5.0
    assert value("rocketmq_producer_tps", cluster="C", broker="broker-a", topic="T") == 1.5
    assert value("rocketmq_producer_offset", cluster="C", broker="broker-a", topic="T") == 100
    assert value("rocketmq_consumer_tps", cluster="C", broker="broker-a", topic="T", group="g") == 3.0
    named = {"group": "g", "countOfOnlineConsumers": "2", "msgModel": "1"}
    assert value("rocketmq_group_diff", topic="T", **named) == 30
    assert value("rocketmq_group_retrydiff", topic="%RETRY%g", **named) == 7
    assert value("rocketmq_group_dlqdiff", topic="%DLQ%g", **named) == 8
    runtime = {
        "cluster": "C",
        "brokerIP": "10.0.0.1:10911",
        "brokerHost": "",
        "des": "V4_9_8",
        "boottime": "1000",
        "broker_version": str(VERSION),
    }
    assert found["rocketmq_brokeruntime_put_tps60", tuple(sorted(runtime.items()))] == 2.0
    assert found["rocketmq_brokeruntime_dispatch_behind_bytes", tuple(sorted(runtime.items()))] == 11
    node = {"cluster": "C", "node_type": "broker", "node_id": "broker-a"}
    assert value("rocketmq_messages_in_total", topic="T", **node) == 9
    assert value("rocketmq_consumer_lag_messages", topic="T", consumer_group="g", **node) == 30
    assert (
        value("rocketmq_storage_flush_behind_bytes", storage_type="local", storage_medium="disk", **node)
        == 100
    )


# A real pair


def port() -> int:
    return free_port_block(1)


def scrape(node: BrokerNode) -> bytes:
    addr = node.config.remoting.metrics_addr
    assert addr is not None
    found = get(int(addr.rpartition(":")[2]), "/metrics")
    assert found.status == 200, found.body
    return found.body


def monitored(start: Start, name: str = "a", **options: Any) -> BrokerNode:
    return start(name, metrics_addr=f"{LOOPBACK}:{port()}", **options)


def pages(node: BrokerNode) -> dict[str, int]:
    addr = node.config.remoting.metrics_addr
    assert addr is not None
    number = int(addr.rpartition(":")[2])
    return {
        path: get(number, path).status for path in ("/healthz", "/readyz", "/master", "/slave", "/in-sync")
    }


def test_a_pair_is_seen_from_both_sides(start: Start, client: BlockingClient) -> None:
    often = {"heartbeat_interval_ms": 100}
    master = monitored(start, "a", role=BrokerRole.SYNC_MASTER, replication=often)
    assert pages(master) == {"/healthz": 200, "/readyz": 200, "/master": 200, "/slave": 503, "/in-sync": 503}
    assert send(client, addr_of(master), "T").code == ResponseCode.SLAVE_NOT_AVAILABLE
    follows = {**often, "master_address": f"{LOOPBACK}:{master.config.replication.listen_port}"}
    slave = monitored(start, "b", role=BrokerRole.SLAVE, replication=follows)
    wait_until(lambda: master.ha.status().in_sync_slaves == 1, "the slave is in sync")
    assert send(client, addr_of(master), "T").code == ResponseCode.SUCCESS
    wait_until(lambda: slave.store.log.end == master.store.log.end, "the slave has it")
    wait_until(
        lambda: (
            pages(slave) == {"/healthz": 200, "/readyz": 200, "/master": 503, "/slave": 200, "/in-sync": 200}
        ),
        "the slave is ready",
    )
    assert pages(master)["/in-sync"] == 200
    end = master.store.log.end

    def shows_all() -> bool:
        text = scrape(master)
        return value_of(text, "haservice_replica_ack_bytes", replica=addr_of(slave)) == end

    wait_until(shows_all, "the master shows the ack")
    text = scrape(master)
    assert value_of(text, "haservice_log_end_bytes", broker="broker-a", addr=addr_of(master)) == end
    assert value_of(text, "haservice_in_sync_slaves") == 1
    assert value_of(text, "haservice_sends_unproven_total", status="slave_not_available") == 1
    assert value_of(text, "haservice_append_duration_seconds_count") == 2
    assert value_of(text, "haservice_disk_free_bytes", of="log")
    assert value_of(text, "process_resident_memory_bytes")
    wait_until(
        lambda: value_of(scrape(master), "rocketmq_messages_in_total", topic="T") == 2, "both count for T"
    )
    assert value_of(scrape(slave), "haservice_link_up") == 1
    assert value_of(scrape(slave), "haservice_log_end_bytes") == end
    master.stop()
    wait_until(lambda: pages(slave)["/slave"] == 503, "the slave has no link")


def test_each_flush_is_timed(start: Start, client: BlockingClient) -> None:
    node = monitored(start, log={"flush_disk_type": FlushDiskType.SYNC_FLUSH})
    assert send(client, addr_of(node), "T").code == ResponseCode.SUCCESS
    wait_until(
        lambda: (value_of(scrape(node), "haservice_flush_duration_seconds_count") or 0) >= 1, "it is timed"
    )


def test_a_refused_send_is_counted_on_either_path(start: Start, client: BlockingClient) -> None:
    node = monitored(start, broker={"auto_create_topic_enable": False})
    assert send(client, addr_of(node), "Nowhere").code == ResponseCode.TOPIC_NOT_EXIST
    node.sends.refuse("a test")
    assert send(client, addr_of(node), "broker-a").code == ResponseCode.SERVICE_NOT_AVAILABLE
    text = scrape(node)
    assert value_of(text, "haservice_sends_refused_total", reason="topic_not_exist") == 1
    assert value_of(text, "haservice_sends_refused_total", reason="service_not_available") == 1


def test_a_master_that_refuses_writes_is_no_master_to_a_load_balancer(start: Start) -> None:
    node = monitored(start)
    node.store.log.hold_appends("a test holds it", "test")
    addr = node.config.remoting.metrics_addr
    assert addr is not None
    found = get(int(addr.rpartition(":")[2]), "/master")
    assert found.status == 503
    assert b"refuses writes: a test holds it" in found.body
    assert value_of(scrape(node), "haservice_writes_refused", cause="log") == 1
    assert pages(node)["/healthz"] == 200


def test_a_thread_that_failed_makes_it_unhealthy(start: Start) -> None:
    node = monitored(start)
    node.health.supervisor.always("log-scrub", ValueError("a test says so"))
    assert pages(node)["/healthz"] == 503
    assert pages(node)["/readyz"] == 503
    assert value_of(scrape(node), "haservice_failed_threads") == 1
    assert value_of(scrape(node), "haservice_thread_failures_total", thread="log-scrub") == 1


def test_a_group_that_lags_is_shown_with_its_lag(start: Start, client: BlockingClient) -> None:
    node = monitored(start)
    for _ in range(3):
        assert send(client, addr_of(node), "T").code == ResponseCode.SUCCESS
    header = UpdateConsumerOffsetHeader("g", "T", 0, 1)
    code = RequestCode.UPDATE_CONSUMER_OFFSET
    assert (
        client.call(addr_of(node), RemotingCommand.request(code, header.encode()), timeout_s=10.0).code == 0
    )
    wait_until(lambda: node.store.dispatcher.behind == 0, "all is dispatched")
    wait_until(
        lambda: value_of(scrape(node), "rocketmq_group_diff", group="g", topic="T") == 2, "two are left"
    )
    assert value_of(scrape(node), "rocketmq_consumer_lag_messages", consumer_group="g") == 2


def test_topics_beyond_the_bound_are_counted_as_left_out(
    start: Start, client: BlockingClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    node = monitored(start)
    for number in range(4):
        send(client, addr_of(node), f"T{number}")
    collector = collect.BrokerCollector(
        node.parts, node.health, dict, collect.ProcessFacts(), topics_max=3, groups_max=1, queues_max=10_000
    )
    text = collector.text()
    shown = [key for key in samples_of(text) if key[0] == "rocketmq_producer_tps"]
    assert len(shown) == 3
    left_out = value_of(text, "haservice_metrics_left_out", family="rocketmq_producer_tps")
    assert left_out == len(node.topics) - 3
    few = replace(collector, topics_max=500, queues_max=0).text()
    assert value_of(few, "haservice_metrics_left_out", family="rocketmq_messages_in") is None
    assert b"rocketmq_messages_in_total{" not in few


def test_a_taken_monitoring_port_is_named_with_its_key(start: Start) -> None:
    """And as what may pass: a broker that restarts in its process tries again."""
    node = monitored(start)
    with pytest.raises(ConfigError, match=r"metricsListenAddr=.*already taken") as refused:
        start("b", metrics_addr=node.config.remoting.metrics_addr)
    assert said_of(refused.value, errno.EADDRINUSE)


def test_without_the_key_there_is_no_port_and_no_thread(start: Start) -> None:
    node = start()
    assert "monitoring" not in node._running.names
