"""The sink: what a row becomes, what is sent again and what is a failure, and that nothing is lost."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest
from pyspark.sql.types import IntegerType, StringType, StructType

from haservice.configuration.settings import BrokerRole
from haservice.errors import ConfigError
from haservice.pipeline.sources.broker_source import BrokerSource
from haservice.pipeline.sources.options import read_options
from haservice.pipeline.sources.sink import Sending, SinkFailed, SinkOptions, message_of, send
from haservice.remoting.codes import ResponseCode
from tests.pipeline.brokers import Cluster, ScriptedBroker, properties_of, scripted, stored
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUSY, TIMEOUT = int(ResponseCode.SYSTEM_BUSY), int(ResponseCode.FLUSH_SLAVE_TIMEOUT)
ILLEGAL, GONE = int(ResponseCode.MESSAGE_ILLEGAL), int(ResponseCode.SERVICE_NOT_AVAILABLE)
BODIES = pa.schema([("topic", pa.string()), ("body", pa.binary()), ("queueId", pa.int32())])


def rows(count: int, queues: int | None = None) -> pa.RecordBatch:
    return pa.RecordBatch.from_pylist(
        [
            {
                "topic": "T",
                "body": str(number).encode(),
                "queueId": None if queues is None else number % queues,
            }
            for number in range(count)
        ],
        BODIES,
    )


def options(broker: ScriptedBroker, **fields: Any) -> SinkOptions:
    return replace(SinkOptions(), name_servers=(broker.addr,), **fields)


# ---- rows


def test_a_row_becomes_a_message_with_its_tags_keys_and_properties() -> None:
    row = {
        "topic": "Orders",
        "body": b"\0\1",
        "tags": "TagA",
        "keys": ["k1", "k2"],
        "properties": [("UNIQ_KEY", "u"), ("colour", "blue"), ("nothing", None)],
        "flag": 5,
        "queueId": 3,
        "delayLevel": 2,
    }
    found = message_of(row, None)
    assert (found.topic, found.queue_id) == ("Orders", 3)
    assert (found.outgoing.body, found.outgoing.flag) == (b"\0\1", 5)
    assert found.outgoing.properties == {
        "UNIQ_KEY": "u",
        "colour": "blue",
        "TAGS": "TagA",
        "KEYS": "k1 k2",
        "DELAY": "2",
    }


def test_a_body_that_is_compressed_is_sent_as_that_and_as_nothing_else() -> None:
    """Bits of transactions and of IPv6 hosts are those of the broker that had it."""
    row = {"topic": "T", "body": b"x", "sysFlag": 0x301 | 0x8 | 0x30}
    assert message_of(row, None).outgoing.sys_flag == 0x301


def test_body_and_topic_are_enough_and_an_option_goes_before_the_column() -> None:
    found = message_of({"topic": "Orders", "body": "größe"}, "Payments")
    assert found.topic == "Payments"
    assert found.outgoing == ("größe".encode(), {}, 0, 0)
    assert found.queue_id is None


def test_what_a_broker_once_noted_on_a_message_is_not_sent() -> None:
    """With TRAN_MSG a broker would take it for half of a transaction, which nobody ever ends."""
    properties = {"TRAN_MSG": "true", "PGROUP": "g", "REAL_TOPIC": "T", "REAL_QID": "1", "mine": "1"}
    assert message_of({"topic": "T", "body": b"", "properties": properties}, None).outgoing.properties == {
        "mine": "1"
    }


@pytest.mark.parametrize(
    ("row", "said"),
    [
        ({"topic": "T", "body": None}, "a row for topic T has no body"),
        ({"topic": None, "body": b"x"}, "no topic"),
        ({"topic": "T", "body": b"x", "delayLevel": 19}, "delayLevel 19 .* 1 ... 18"),
        ({"topic": "T", "body": b"x", "properties": {"a": "b\x01c"}}, "property 'a'"),
    ],
)
def test_a_row_that_cannot_be_a_message_is_named(row: Mapping[str, Any], said: str) -> None:
    with pytest.raises(SinkFailed, match=said):
        message_of(row, None)


# ---- options


def schema(**columns: Any) -> StructType:
    made = StructType()
    for name, kind in columns.items():
        made = made.add(name, kind)
    return made


@pytest.mark.parametrize(
    ("given", "columns", "said"),
    [
        ({"topic": "T"}, {"body": StringType()}, "nameServer: has to be given"),
        ({"nameServer": "a:1"}, {"body": StringType()}, "topic: neither an option nor a column"),
        (
            {"nameServer": "a:1", "topic": "T"},
            {"text": StringType()},
            "body: there is no such column, but text",
        ),
        (
            {"nameServer": "a:1", "topic": "T"},
            {"body": IntegerType()},
            "body: is a column of int, not binary",
        ),
        ({"nameServer": "a"}, {}, "nameServer=a: 'a' is not host:port"),
        ({"nameserver": "a:1", "topik": "T"}, {}, "no such option; did you mean topic"),
        ({"nameServer": "a:1", "acceptStatuses": "OK"}, {}, "allowed are SEND_OK, FLUSH_DISK_TIMEOUT"),
        ({"nameServer": "a:1", "maxInFlight": "0"}, {}, "maxInFlight=0: not a whole number from 1"),
    ],
)
def test_options_and_columns_that_do_not_fit_are_named(
    given: dict[str, str], columns: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        read_options(SinkOptions, "rocketmq", given).check(schema(**columns))


def test_a_topic_is_never_overwritten() -> None:
    source = BrokerSource({"nameServer": "a:1", "topic": "T"})
    with pytest.raises(ConfigError, match="mode append"):
        source.writer(schema(body=StringType()), overwrite=True)


# ---- answers


def test_every_row_is_sent_once_and_its_answer_counted() -> None:
    with scripted([]) as broker:
        done = send(options(broker), iter([rows(300), rows(0), rows(50)]))
        assert broker.counts == {str(n).encode(): 2 if n < 50 else 1 for n in range(300)}
    assert (done.messages, done.body_bytes) == (350, sum(len(str(n)) for n in [*range(300), *range(50)]))
    assert done.statuses == {"SEND_OK": 350}


def test_busy_is_tried_again_until_it_passes() -> None:
    with scripted([BUSY, GONE, BUSY]) as broker:
        done = send(options(broker), iter([rows(1)]))
        assert broker.counts == {b"0": 4}
    assert done.statuses == {"SEND_OK": 1, "SYSTEM_BUSY": 2, "SERVICE_NOT_AVAILABLE": 1}


def test_busy_for_too_long_is_a_failure_that_says_so() -> None:
    with scripted([BUSY] * 1000) as broker, pytest.raises(SinkFailed, match=r"SYSTEM_BUSY: as the test says"):
        send(options(broker, patience_ms=1), iter([rows(1)]))


def test_what_a_broker_will_never_take_is_not_tried_again() -> None:
    with scripted([ILLEGAL]) as broker:
        with pytest.raises(SinkFailed, match=r"topic T, queue . of broker-a at .*: MESSAGE_ILLEGAL"):
            send(options(broker, in_flight=1), iter([rows(1)]))
        assert broker.counts == {b"0": 1}


def test_stored_less_safely_than_promised_is_tried_again_and_then_a_failure() -> None:
    with scripted([TIMEOUT]) as broker:
        assert send(options(broker), iter([rows(1)])).statuses == {"SEND_OK": 1, "FLUSH_SLAVE_TIMEOUT": 1}
    with scripted([TIMEOUT] * 9) as broker:
        with pytest.raises(SinkFailed, match="acceptStatuses=FLUSH_SLAVE_TIMEOUT takes that for good"):
            send(options(broker), iter([rows(1)]))
        assert broker.counts == {b"0": 3}, "each try stores it once more"


def test_a_status_that_is_accepted_is_good_and_counted() -> None:
    with scripted([TIMEOUT] * 5) as broker:
        accepting = options(broker, accepted=frozenset({"FLUSH_SLAVE_TIMEOUT"}))
        assert send(accepting, iter([rows(7)])).statuses == {"FLUSH_SLAVE_TIMEOUT": 5, "SEND_OK": 2}


def test_one_failure_ends_the_task_and_sends_no_more_than_was_in_flight() -> None:
    with scripted([ILLEGAL]) as broker:
        with pytest.raises(SinkFailed):
            send(options(broker, in_flight=4), iter([rows(10_000)]))
        assert len(broker.sent) < 100


# ---- in flight


def test_no_more_than_so_many_are_in_flight() -> None:
    with scripted([]) as broker:
        broker.hold.clear()
        done: list[Sending] = []
        task = threading.Thread(
            target=lambda: done.append(send(options(broker, in_flight=5), iter([rows(40)])))
        )
        task.start()
        wait_until(lambda: len(broker.sent) == 5, "the first five are sent")
        broker.release()
        task.join()
        assert broker.most == 5
    assert done[0].messages == 40


def test_messages_of_one_queue_keep_their_order_whatever_happens_to_one() -> None:
    with scripted([BUSY] * 20) as broker:
        send(options(broker, in_flight=8), iter([rows(200, queues=3)]))
        arrived: dict[int, list[int]] = {}
        for header, body in broker.sent:
            arrived.setdefault(header.queue_id, []).append(int(body))
    for queue_id, bodies in arrived.items():
        first_seen = list(dict.fromkeys(bodies))
        assert first_seen == [number for number in range(200) if number % 3 == queue_id]
        assert bodies == sorted(bodies), "none goes before one that is tried again"


def test_a_queue_that_the_topic_does_not_have_is_named() -> None:
    with (
        scripted([], queues=2) as broker,
        pytest.raises(SinkFailed, match="topic T has no queue 2 to write to"),
    ):
        send(options(broker), iter([rows(3, queues=3)]))


def test_a_number_means_the_brokers_queue_whatever_the_order_configuration_names() -> None:
    with scripted([], queues=3) as broker:
        broker.order_conf = "broker-a:1"
        send(options(broker), iter([rows(30), rows(30, queues=3)]))
        sent = [header.queue_id for header, _ in broker.sent]
    assert {number: sent.count(number) for number in range(3)} == {0: 40, 1: 10, 2: 10}


def test_rows_come_no_faster_than_they_are_sent() -> None:
    taken = 0

    def batches() -> Iterator[pa.RecordBatch]:
        nonlocal taken
        for _ in range(50):
            taken += 1
            yield rows(100)

    with scripted([]) as broker:
        broker.hold.clear()
        task = threading.Thread(target=lambda: send(options(broker, in_flight=2), batches()))
        task.start()
        wait_until(lambda: len(broker.sent) == 2, "two are in flight")
        assert taken == 1, "a batch is taken when the one before is sent"
        broker.release()
        task.join()
        assert len(broker.sent) == 5000


# ---- brokers


def test_a_broker_that_restarts_costs_no_message(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, "T", count=1)
    port = node.config.remoting.listen_port
    restarted = threading.Event()

    def batches() -> Iterator[pa.RecordBatch]:
        yield rows(200)
        wait_until(lambda: len(stored(node, "T")) > 50, "the broker has taken some")
        node.stop()
        thread = threading.Thread(target=lambda: (cluster.start(port=port), restarted.set()))
        thread.start()
        yield rows(200)
        thread.join()

    done = send(SinkOptions(name_servers=(cluster.namesrv,)), batches())
    assert restarted.is_set()
    assert done.messages == 400
    kept = [one.body for one in stored(cluster.nodes[-1], "T")]
    assert {str(n).encode() for n in range(200)} == set(kept)
    assert len(kept) >= 401


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_a_table_is_written_with_all_that_its_rows_say(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    node = cluster.start()
    frame = spark.range(100, numPartitions=3).selectExpr(
        "'Orders' topic",
        "cast(id as string) body",
        "'TagA' tags",
        "array('k1', concat('k', id)) keys",
        "map('colour', 'blue') properties",
        "id ignored",
    )
    report = tmp_path / "counts.jsonl"
    writer = frame.write.format("rocketmq").mode("append")
    writer.option("nameServer", cluster.namesrv).option("reportFile", str(report)).save()
    found = stored(node, "Orders")
    assert sorted(int(one.body) for one in found) == list(range(100))
    first = properties_of(found[0])
    assert first["TAGS"] == "TagA"
    assert first["KEYS"] == f"k1 k{found[0].body.decode()}"
    assert first["colour"] == "blue"
    assert len(first["UNIQ_KEY"]) == 32
    (line,) = [json.loads(line) for line in report.read_text().splitlines()]
    assert (line["messages"], line["statuses"], line["batchId"]) == (100, {"SEND_OK": 100}, None)

    bad = tmp_path / "none" / "counts.jsonl"
    with pytest.raises(Exception, match=f"reportFile: {bad}: No such file or directory; nothing was sent"):
        writer.option("reportFile", str(bad)).save()
    assert len(stored(node, "Orders")) == 100


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_a_master_without_its_slave_is_a_failure_unless_that_is_accepted(
    spark: SparkSession, cluster: Cluster
) -> None:
    node = cluster.start(role=BrokerRole.SYNC_MASTER)
    writer = spark.range(10).selectExpr("'T' topic", "cast(id as string) body").write.format("rocketmq")
    writer = writer.mode("append").option("nameServer", cluster.namesrv)
    with pytest.raises(
        Exception, match=r"(?s)SLAVE_NOT_AVAILABLE.*acceptStatuses=SLAVE_NOT_AVAILABLE"
    ) as failed:
        writer.save()
    assert "SinkFailed" in str(failed.value)
    before = len(stored(node, "T"))
    writer.option("acceptStatuses", "SLAVE_NOT_AVAILABLE").save()
    assert len(stored(node, "T")) == before + 10


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_a_stream_is_written_and_each_of_its_batches_counted(
    spark: SparkSession, cluster: Cluster, tmp_path: Path
) -> None:
    node = cluster.start()
    lines = tmp_path / "lines"
    lines.mkdir()
    for number in range(3):
        (lines / f"{number}.txt").write_text(f"{number}\n")
    source = spark.readStream.format("text").option("maxFilesPerTrigger", 1).load(str(lines))
    report = tmp_path / "counts.jsonl"
    query = (
        source.selectExpr("value body")
        .writeStream.format("rocketmq")
        .option("nameServer", cluster.namesrv)
        .option("topic", "Lines")
        .option("reportFile", str(report))
        .option("checkpointLocation", str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    query.awaitTermination()
    assert sorted(one.body for one in stored(node, "Lines")) == [b"0", b"1", b"2"]
    counts = [json.loads(line) for line in report.read_text().splitlines()]
    assert [(one["batchId"], one["messages"]) for one in counts] == [(0, 1), (1, 1), (2, 1)]
