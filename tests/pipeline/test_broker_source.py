"""Brokers as a table and as a stream: every message once, where options say, and none that may vanish."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from pyspark.sql.datasource import EqualTo, GreaterThanOrEqual, InputPartition, LessThan
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from commitlog.queues.readable_queue import ReadableQueue
from haservice.broker.node import BrokerNode
from haservice.configuration.security_settings import AclConfig
from haservice.configuration.settings import BrokerRole
from haservice.errors import ConfigError, HAServiceError
from haservice.pipeline.sources import queue_reading
from haservice.pipeline.sources.broker_queues import SourceQueue, limited, merged, missing, tree_of
from haservice.pipeline.sources.broker_source import BrokerReader, BrokerSource, BrokerStreamReader
from haservice.pipeline.sources.brokers import BrokerRefused
from haservice.pipeline.sources.queue_reading import NotReadable, OffsetsLost, QueueRange, records_of
from haservice.pipeline.sources.store_view import StoreView
from haservice.pipeline.sources.stream_begin import split
from haservice.remoting.codes import RequestCode, ResponseCode
from haservice.remoting.command import RemotingCommand
from tests.pipeline.brokers import Cluster, properties_of, stored
from tests.support.brokers import addr_of, node_config, send
from tests.support.replication import ScriptedSlave
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

Rows = list[dict[str, Any]]


def source(cluster: Cluster, **options: str) -> BrokerSource:
    return BrokerSource({"nameServer": cluster.namesrv, "topic": "Orders", **options})


def reader(cluster: Cluster, **options: str) -> BrokerReader:
    made = source(cluster, **options)
    return made.reader(made.schema())  # type: ignore[arg-type]


def streamed(cluster: Cluster, **options: str) -> BrokerStreamReader:
    made = source(cluster, **options)
    return made.streamReader(made.schema())  # type: ignore[arg-type]


def read(one: BrokerReader | BrokerStreamReader, parts: Sequence[InputPartition]) -> Rows:
    return [row for part in parts for batch in one.read(part) for row in batch.to_pylist()]


def rows_of(cluster: Cluster, **options: str) -> Rows:
    one = reader(cluster, **options)
    return read(one, one.partitions())


def numbers(rows: Rows) -> list[int]:
    return sorted(int(row["body"]) for row in rows)


# ---- batches


def test_each_message_is_a_row_that_says_all_that_is_stored_of_it(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=10)
    rows = sorted(rows_of(cluster), key=lambda row: row["physicalOffset"])
    messages = stored(node, "Orders")
    assert len(rows) == len(messages) == 10
    for row, message in zip(rows, messages, strict=True):
        properties = properties_of(message)
        assert (row["topic"], row["queueId"], row["queueOffset"]) == (
            "Orders",
            message.queue_id,
            message.queue_offset,
        )
        assert (row["physicalOffset"], row["storeSize"], row["msgId"]) == (
            message.physical_offset,
            message.size,
            message.message_id,
        )
        assert (row["body"], dict(row["properties"])) == (message.body, properties)
        assert (row["tags"], row["keys"], row["uniqKey"]) == (
            properties["TAGS"],
            properties["KEYS"],
            properties["UNIQ_KEY"],
        )
        assert int(row["storeTimestamp"].timestamp() * 1000) == message.store_timestamp_ms
        assert (row["bodyCrcOk"], row["brokerName"], row["_corrupt"]) == (True, "broker-a", None)


def test_a_brokers_port_is_told_from_a_nameservers(cluster: Cluster) -> None:
    node = cluster.start()
    with pytest.raises(BrokerRefused, match=f"nameServer {addr_of(node)} is none: it knows of no routes"):
        rows_of(cluster, nameServer=addr_of(node))


def test_a_queue_of_many_messages_is_read_by_several_tasks_each_message_once(cluster: Cluster) -> None:
    cluster.fill(cluster.start(), count=500, queues=2)
    one = reader(cluster, minPartitions="7")
    parts = one.partitions()
    assert len(parts) >= 7
    assert numbers(read(one, parts)) == list(range(500))
    assert len(reader(cluster).partitions()) == 2


def test_several_topics_and_only_the_columns_that_are_asked_for(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, "Orders", 3)
    cluster.fill(node, "Payments", 3, first=3)
    rows = rows_of(cluster, topic="Orders, Payments", columns="topic,body")
    assert sorted((row["topic"], row["body"]) for row in rows) == [
        ("Orders" if number < 3 else "Payments", str(number).encode()) for number in range(6)
    ]
    assert all(list(row) == ["topic", "body"] for row in rows)


def test_offsets_say_where_to_begin_and_to_end(cluster: Cluster) -> None:
    cluster.fill(cluster.start(), count=100, queues=2)  # queue 0 has the even numbers
    begin = json.dumps({"Orders": {"broker-a": {"0": 10, "1": -2}}})
    end = json.dumps({"Orders": {"0": 20}})  # of every broker, as the log's source takes it
    rows = rows_of(cluster, startingOffsets=begin, endingOffsets=end)
    assert numbers([row for row in rows if row["queueId"] == 0]) == list(range(20, 40, 2))
    assert numbers([row for row in rows if row["queueId"] == 1]) == list(range(1, 100, 2))


@pytest.mark.parametrize("is_stock", [False, True])
def test_times_say_where_to_begin_and_to_end_also_within_one_millisecond(
    cluster: Cluster, is_stock: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if is_stock:  # RocketMQ 4.9 answers the nearest, whatever is asked for
        monkeypatch.setattr(ReadableQueue, "first_stored_at", ReadableQueue.offset_by_time)
    node = cluster.start()
    cluster.fill(node, count=60, queues=2)
    times = sorted({message.store_timestamp_ms for message in stored(node, "Orders")})
    for begin, end in ((times[0], times[-1]), (times[len(times) // 2], times[-1] + 1), (times[-1] + 9, None)):
        options = {"startingTimestamp": str(begin)}
        if end is not None:
            options["endingTimestamp"] = str(end)
        expected = [
            int(message.body)
            for message in stored(node, "Orders")
            if begin <= message.store_timestamp_ms < (end or times[-1] + 1)
        ]
        assert numbers(rows_of(cluster, **options)) == sorted(expected)


def test_tags_are_told_apart_even_if_their_hashes_are_not(cluster: Cluster) -> None:
    node = cluster.start()
    for number, tag in enumerate(("Aa", "BB", "C", "Aa")):  # Java's hash of Aa is that of BB
        send(cluster.client, addr_of(node), "Orders", str(number).encode(), f"TAGS\1{tag}", queue_id=0)
    cluster.level(node)
    assert numbers(rows_of(cluster, subExpression="Aa")) == [0, 3]
    assert numbers(rows_of(cluster, subExpression="BB || C")) == [1, 2]


def test_filters_leave_out_queues_and_offsets_before_they_are_pulled(cluster: Cluster) -> None:
    cluster.fill(cluster.start(), count=100, queues=4)
    one = reader(cluster, pushFilters="true")
    wanted = [
        EqualTo(("queueId",), 1),
        GreaterThanOrEqual(("queueOffset",), 5),
        LessThan(("queueOffset",), 8),
        EqualTo(("tags",), "TagB"),
    ]
    assert list(one.pushFilters(wanted)) == wanted[3:]
    (part,) = one.partitions()
    assert isinstance(part, QueueRange)
    assert (part.queue_id, part.begin, part.end) == (1, 5, 8)
    assert numbers(read(one, [part])) == [21, 25, 29]


def test_what_consumers_may_not_read_yet_is_not_read(cluster: Cluster) -> None:
    node = cluster.start(role=BrokerRole.SYNC_MASTER, replication={"slave_timeout_ms": 50})
    cluster.fill(node, count=20, queues=1)
    with ScriptedSlave(node.ha.port) as slave:
        slave.report(0)
        slave.frames_to(node.store.log.end)
        slave.report(node.store.log.end)
        wait_until(lambda: node.ha.is_slave_ok(node.store.log.end), "the slave counts")
        for number in range(20, 27):
            answer = send(cluster.client, addr_of(node), "Orders", str(number).encode(), queue_id=0)
            assert answer.code == ResponseCode.FLUSH_SLAVE_TIMEOUT
        cluster.level(node)
        assert numbers(rows_of(cluster)) == list(range(20))
        stream = streamed(cluster)
        assert stream.initialOffset()["Orders"]["broker-a"]["0"] == 20
        slave.frames_to(node.store.log.end)
        slave.report(node.store.log.end)
        wait_until(lambda: node.ha.readable_end() == node.store.log.end, "the slave has them")
        assert numbers(rows_of(cluster)) == list(range(27))


def test_what_is_not_given_for_long_is_an_error(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.fill(cluster.start(), count=3, queues=1)
    monkeypatch.setattr(queue_reading, "PATIENCE_S", 0.1)
    one = reader(cluster)
    (part,) = one.partitions()
    assert isinstance(part, QueueRange)
    with pytest.raises(
        NotReadable, match="queue 0 of topic Orders on broker-a gives nobody the message at 3"
    ):
        read(one, [dataclasses.replace(part, end=4)])


# ---- masters and slaves


def pair(cluster: Cluster) -> tuple[BrokerNode, BrokerNode]:
    master = cluster.start(broker={"register_period_ms": 10_000})
    slave = cluster.start_slave(master)
    cluster.fill(master, count=50)
    wait_until(lambda: slave.store.log.end == master.store.log.end, "replicated")
    cluster.level(slave)
    return master, slave


def test_a_slave_is_read_when_that_is_asked_for(cluster: Cluster) -> None:
    master, slave = pair(cluster)
    addrs = {
        options.get("readFrom", "master"): {
            part.addrs[0] for part in reader(cluster, **options).partitions() if isinstance(part, QueueRange)
        }
        for options in ({}, {"readFrom": "slave"})
    }
    assert addrs == {"master": {addr_of(master)}, "slave": {addr_of(slave)}}
    rows = rows_of(cluster, readFrom="slave")
    assert numbers(rows) == list(range(50))
    assert {row["brokerName"] for row in rows} == {"broker-a"}


def test_a_slave_stands_in_for_a_master_that_goes_away_in_the_middle(cluster: Cluster) -> None:
    master, _ = pair(cluster)
    one = reader(cluster)
    parts = one.partitions()
    master.stop()
    assert numbers(read(one, parts)) == list(range(50))
    assert numbers(rows_of(cluster)) == list(range(50))


def test_without_a_slave_one_cannot_be_read(cluster: Cluster) -> None:
    cluster.fill(cluster.start(), count=1)
    with pytest.raises(BrokerRefused, match="topic Orders has no queue on a slave that is up"):
        rows_of(cluster, readFrom="slave")


# ---- what is gone


def shortened(cluster: Cluster) -> int:
    """A broker whose first segments have gone; the first offset that queue 0 has left."""
    node = cluster.start(log={"file_reserved_hours": 0, "delete_when": "", "clean_interval_ms": 3_600_000})
    for number in range(30):
        send(cluster.client, addr_of(node), "Orders", f"{number}".encode() + b" " * 8000, queue_id=0)
    cluster.level(node)
    cluster.client.call(addr_of(node), RemotingCommand.request(RequestCode.DELETE_EXPIRED_COMMITLOG))

    def first() -> int:
        queue = node.store.queues.get("Orders", 0)
        return 0 if queue is None else queue.min_offset

    wait_until(lambda: node.store.log.start > 0 and first() > 0, "retention took some")
    return first()


def test_offsets_that_retention_took_are_an_error_unless_losing_data_is_fine(cluster: Cluster) -> None:
    first = shortened(cluster)
    assert numbers(rows_of(cluster)) == list(range(first, 30)), "the earliest is what is there"
    zero = json.dumps({"Orders": {"broker-a": {"0": 0}}})
    with pytest.raises(OffsetsLost, match=f"holds {first} to 30, and not 0 any more.*failOnDataLoss=false"):
        rows_of(cluster, startingOffsets=zero)
    assert numbers(rows_of(cluster, startingOffsets=zero, failOnDataLoss="false")) == list(range(first, 30))


def test_what_goes_between_planning_and_reading_is_no_silent_loss(cluster: Cluster) -> None:
    first = shortened(cluster)
    addrs = (addr_of(cluster.nodes[0]),)
    part = QueueRange("Orders", "broker-a", 0, addrs, 0, 30)
    with pytest.raises(OffsetsLost):
        read(reader(cluster), [part])
    assert numbers(read(reader(cluster, failOnDataLoss="false"), [part])) == list(range(first, 30))


def test_an_answer_that_is_no_record_is_an_error() -> None:
    with pytest.raises(HAServiceError, match="no record at byte 0 of 200"):
        records_of(bytes(200))


# ---- options


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"topic": "T"}, "nameServer: has to be given"),
        ({"nameServer": "a:1"}, "topic: has to be given"),
        ({"nameServer": "a:1", "topics": "T"}, "topics=T: no such option; did you mean topic"),
        ({"nameServer": "a:1;b", "topic": "T"}, "nameServer=a:1;b: 'b' is not host:port"),
        ({"nameServer": "a:1", "topic": "T", "readFrom": "x"}, "readFrom=x: allowed are master, slave"),
        (
            {"nameServer": "a:1", "topic": "T", "startingOffsets": "first"},
            "allowed are earliest, latest, and JSON",
        ),
        (
            {"nameServer": "a:1", "topic": "T", "startingOffsets": '{"T": {"0": "1"}}'},
            "offset '1' of",
        ),
        ({"nameServer": "a:1", "topic": "T", "startingOffsets": '{"T": {"x": 1}}'}, "allowed are earliest"),
        (
            {"nameServer": "a:1", "topic": "T", "startingOffsets": "latest"},
            "a batch cannot begin at the latest",
        ),
        (
            {"nameServer": "a:1", "topic": "T", "endingOffsets": "earliest"},
            "a batch cannot end at the earliest",
        ),
        ({"nameServer": "a:1", "topic": "T", "columns": "bodi"}, "no such column"),
    ],
)
def test_options_that_do_not_fit_are_named(options: dict[str, str], said: str) -> None:
    made = BrokerSource(options)
    with pytest.raises(ConfigError, match=said):
        made.reader(made.schema())  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("offsets", "said"),
    [
        ({"Orders": {"0": 21}}, "21 of topic Orders queue 0 on broker-a, which ends at 20"),
        ({"Orders": {"9": 0}}, "no queue 9 of topic Orders may be read"),
        ({"Orders": {"broker-b": {"0": 0}}}, "no broker broker-b has the topics; there are broker-a"),
        ({"Odrers": {"0": 0}}, "Odrers is not in topic=Orders"),
    ],
)
def test_offsets_that_cannot_be_are_refused(cluster: Cluster, offsets: dict[str, Any], said: str) -> None:
    cluster.fill(cluster.start(), count=40, queues=2)
    given = json.dumps(offsets)
    with pytest.raises(ConfigError, match=f"startingOffsets: {said}"):
        rows_of(cluster, startingOffsets=given)
    with pytest.raises(ConfigError, match=f"startingOffsets: {said}"):
        streamed(cluster, startingOffsets=given).initialOffset()
    if "21" in said:
        assert len(rows_of(cluster, startingOffsets=given, failOnDataLoss="false")) == 20
    else:
        with pytest.raises(ConfigError, match=f"endingOffsets: {said}"):
            rows_of(cluster, endingOffsets=given)


def test_a_begin_behind_its_end_is_refused() -> None:
    for given, said in (
        (
            {"startingOffsets": '{"T": {"0": 5}}', "endingOffsets": '{"T": {"0": 4}}'},
            "5 of topic T queue 0 lies behind",
        ),
        ({"startingTimestamp": "5", "endingTimestamp": "4"}, "lies after endingTimestamp=4"),
    ):
        made = BrokerSource({"nameServer": "a:1", "topic": "T", **given})
        with pytest.raises(ConfigError, match=said):
            made.reader(made.schema())  # type: ignore[arg-type]


def test_a_stream_has_no_end() -> None:
    made = BrokerSource({"nameServer": "a:1", "topic": "T", "endingTimestamp": "1"})
    with pytest.raises(ConfigError, match="endingTimestamp: a stream has no end"):
        made.streamReader(made.schema()).initialOffset()  # type: ignore[arg-type]


def test_a_broker_with_access_control_is_read_with_the_keys_of_a_file(
    cluster: Cluster, tmp_path: Path
) -> None:
    rules = tmp_path / "plain_acl.yml"
    rules.write_text("accounts:\n  - {accessKey: readers-key, secretKey: secret-key, admin: true}\n")
    config = node_config(tmp_path / "acl", broker={"namesrv_addrs": (cluster.namesrv,)})
    node = BrokerNode(dataclasses.replace(config, acl=AclConfig(enabled=True, file=rules)))
    cluster.nodes.append(node)
    node.start()
    with pytest.raises(HAServiceError, match=r"AclException|accessKey"):
        rows_of(cluster, topic="broker-a")
    keys = tmp_path / "tools.yml"
    keys.write_text("accessKey: readers-key\nsecretKey: secret-key\n")
    assert rows_of(cluster, topic="broker-a", aclCredentialsFile=str(keys)) == []
    with pytest.raises(ConfigError, match=r"none\.yml"):
        rows_of(cluster, topic="broker-a", aclCredentialsFile=str(tmp_path / "none.yml"))


# ---- a stream's offsets

Q0, Q1, Q2 = (SourceQueue("T", "broker-a", number, ("a:1",)) for number in range(3))


def test_a_limit_is_shared_by_what_there_is_and_nobody_waits_for_ever() -> None:
    begins = {Q0: 0, Q1: 0, Q2: 0}
    ends = {Q0: 1000, Q1: 100, Q2: 3}
    assert limited(begins, ends, 110) == {Q0: 99, Q1: 9, Q2: 1}
    assert limited(begins, ends, 2) == {Q0: 1, Q1: 1, Q2: 0}
    assert limited(begins, ends, 5000) == ends
    read_up_to, rounds = dict(begins), 0
    while read_up_to != ends:
        after = limited(read_up_to, ends, 7)
        assert 0 < sum(after[queue] - read_up_to[queue] for queue in ends) <= 7
        read_up_to, rounds = after, rounds + 1
    assert rounds < 1103


def test_queues_that_are_away_keep_their_offsets_and_are_missed_if_they_have_some_to_read() -> None:
    old = tree_of([(Q0, 5), (Q1, 7)])
    new = merged(old, tree_of([(Q1, 9), (Q2, 1)]))
    assert new == {"T": {"broker-a": {"0": 5, "1": 9, "2": 1}}}
    assert missing(old, new, [Q1, Q2]) == ""
    assert missing(old, new, [Q2]) == "queue 1 of topic T on broker-a"


def test_a_stream_goes_on_from_its_offsets_and_never_back(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=40, queues=2)
    stream = streamed(cluster, startingOffsets="earliest", maxOffsetsPerTrigger="15")
    start = stream.initialOffset()
    assert split(start)[1] == {"Orders": {"broker-a": {str(number): 0 for number in range(4)}}}
    assert stream.getDefaultReadLimit() == ReadMaxRows(15)
    found: list[int] = []
    for _ in range(4):
        end = stream.latestOffset(start, ReadMaxRows(15))
        rows = read(stream, stream.partitions(start, end))
        assert len(rows) <= 15
        found += numbers(rows)
        start = end
    assert sorted(found) == list(range(40))
    assert stream.latestOffset(start, ReadAllAvailable()) == start
    ahead = {"Orders": {"broker-a": {"0": 10_000}}}
    assert stream.latestOffset(ahead, ReadAllAvailable())["Orders"]["broker-a"]["0"] == 10_000


def test_start_options_are_for_new_queries_only(cluster: Cluster) -> None:
    """Also if the query ended amid its first batch, and Spark asks for its first offset again."""
    node = cluster.start()
    cluster.fill(node, count=40, queues=2)
    times = sorted(one.store_timestamp_ms for one in stored(node, "Orders"))
    starts = (
        {"startingOffsets": "earliest"},
        {},
        {"startingTimestamp": "1"},
        {"startingTimestamp": str(times[-1])},
    )
    for before in starts:
        stream = streamed(cluster, **before)
        start = stream.initialOffset()
        middle = stream.latestOffset(start, ReadMaxRows(10))
        end = stream.latestOffset(middle, ReadAllAvailable())
        wanted = numbers(read(stream, stream.partitions(start, end)))
        for after in ({}, {"startingTimestamp": str(times[-1] + 10**9)}, {"startingOffsets": "earliest"}):
            again = streamed(cluster, **after)
            batches = [again.partitions(again.initialOffset(), middle), again.partitions(middle, end)]
            assert sorted(number for parts in batches for number in numbers(read(again, parts))) == wanted


def test_a_stream_that_begins_at_the_latest_has_only_what_comes_then(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=10)
    stream = streamed(cluster)
    start = stream.initialOffset()
    assert stream.partitions(start, stream.latestOffset(start, ReadAllAvailable())) == []
    cluster.fill(node, count=5, first=10)
    end = stream.latestOffset(start, ReadAllAvailable())
    assert numbers(read(stream, stream.partitions(start, end))) == list(range(10, 15))


def test_available_now_is_what_there_was_when_it_was_asked_for(cluster: Cluster) -> None:
    node = cluster.start()
    cluster.fill(node, count=10, queues=1)
    stream = streamed(cluster, startingOffsets="earliest")
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    cluster.fill(node, count=10, queues=1, first=10)
    end = stream.latestOffset(start, ReadAllAvailable())
    assert numbers(read(stream, stream.partitions(start, end))) == list(range(10))
    assert stream.latestOffset(end, ReadAllAvailable()) == end


def test_a_broker_that_is_away_with_messages_to_read_stops_the_stream(cluster: Cluster) -> None:
    cluster.fill(cluster.start(), count=4)
    stream = streamed(cluster)
    start = {"Orders": {"broker-b": {"0": 3}}}
    with pytest.raises(BrokerRefused, match="messages of queue 0 of topic Orders on broker-b are to be read"):
        stream.partitions(start, {"Orders": {"broker-b": {"0": 5}}})


# ---- with Spark


@pytest.fixture
def filled(cluster: Cluster) -> BrokerNode:
    node = cluster.start()
    cluster.fill(node, count=200)
    return node


def frame(spark: SparkSession, cluster: Cluster, **options: str) -> DataFrame:
    return spark.read.format("rocketmq").options(nameServer=cluster.namesrv, topic="Orders", **options).load()


@pytest.mark.spark
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("filled")
def test_spark_reads_a_topic_and_lets_the_source_filter(spark: SparkSession, cluster: Cluster) -> None:
    assert frame(spark, cluster, minPartitions="6").count() == 200
    found = frame(spark, cluster)
    per_tag = {row["tags"]: row["count"] for row in found.groupBy("tags").count().collect()}
    assert per_tag == {"TagA": 100, "TagB": 100}
    for pushed in ("false", "true"):
        some = frame(spark, cluster, pushFilters=pushed).where("queueId = 1 and queueOffset between 3 and 5")
        assert sorted(int(row.body) for row in some.collect()) == [13, 17, 21]
        plan = some._jdf.queryExecution().executedPlan().toString()
        assert bool(re.search(r"Filter .*queueId#\d+ = 1", plan)) == (pushed == "false"), "Spark looks itself"


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_a_table_may_be_asked_several_things(
    spark: SparkSession, cluster: Cluster, filled: BrokerNode
) -> None:
    """Spark keeps the filters that a source took with the table, and gives their rows to the next query."""
    root = cluster.root / "a"
    wait_until(lambda: StoreView(root).confirmed_end() == filled.store.log.end, "the samples say so")
    store = spark.read.format("rocketmq-log").load(str(root)).where("topic = 'Orders'")
    for table in (frame(spark, cluster), store):
        assert table.where("queueId = 1").count() == 50
        assert table.count() == 200
        both = table.where("queueId = 1").unionAll(table.where("queueId = 2"))
        assert sorted(row.queueId for row in both.select("queueId").collect()) == [1] * 50 + [2] * 50


@pytest.mark.spark
@pytest.mark.timeout(180)
@pytest.mark.usefixtures("filled")
def test_what_is_wrong_with_an_option_is_in_what_spark_says(spark: SparkSession, cluster: Cluster) -> None:
    with pytest.raises(
        Exception, match="startoffsets=latest: no such option; did you mean startingOffsets"
    ) as error:
        frame(spark, cluster, startOffsets="latest").count()
    assert "Traceback" not in str(error.value)


@pytest.mark.spark
@pytest.mark.timeout(180)
def test_a_stream_with_a_checkpoint_reads_every_message_once_through_restarts(
    spark: SparkSession, cluster: Cluster, filled: BrokerNode, tmp_path: Path
) -> None:
    def run() -> int:
        query = (
            spark.readStream.format("rocketmq")
            .options(
                nameServer=cluster.namesrv,
                topic="Orders",
                startingOffsets="earliest",
                maxOffsetsPerTrigger="70",
            )
            .load()
            .selectExpr("int(string(body)) n")
            .writeStream.format("parquet")
            .option("checkpointLocation", str(tmp_path / "checkpoint"))
            .trigger(availableNow=True)
            .start(str(tmp_path / "out"))
        )
        query.awaitTermination()
        return sum(1 for one in query.recentProgress if one.numInputRows)

    assert run() >= 3
    cluster.fill(filled, count=100, first=200)
    assert run() >= 2
    assert run() == 0
    found = [row.n for row in spark.read.parquet(str(tmp_path / "out")).collect()]
    assert sorted(found) == list(range(300))
