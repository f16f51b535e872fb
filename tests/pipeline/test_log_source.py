"""The format rocketmq-log as a batch: what a user gives, what comes out, nothing skipped silently."""

from __future__ import annotations

import datetime
import json
import os
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    LessThan,
    LessThanOrEqual,
    Not,
)
from pyspark.sql.functions import udf
from pyspark.sql.types import LongType, StructField, StructType

from commitlog.kernel.records import StoredMessage, decode_properties
from commitlog.store import Store
from haservice.errors import ConfigError
from haservice.pipeline.cli import words_of
from haservice.pipeline.decode import reading
from haservice.pipeline.decode.by_queue import EntryRange
from haservice.pipeline.decode.reading import DamagedLog
from haservice.pipeline.decode.schema import CORRUPT, NAMES, SPARK_SCHEMA, spark_schema
from haservice.pipeline.sources import log_source
from haservice.pipeline.sources.log_segments import SegmentGone
from haservice.pipeline.sources.log_source import LogReader, LogSource
from haservice.pipeline.sources.options import LogSourceOptions, read_options
from haservice.pipeline.sources.store_view import StoreView
from tests.pipeline.filled import SEGMENT_BYTES, close, fill, flip, options
from tests.support.messages import STORE_HOST, Clock, message

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

COUNT = 400


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[StoredMessage]]:
    """Messages of every kind over several segments, stored over three days."""
    root = tmp_path_factory.mktemp("broker-a")
    return root, fill(root, COUNT)


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_source, "RANGE_BYTES_MIN", 1000)


def reader(path: object, columns: Iterable[str] = NAMES, **given: object) -> LogReader:
    texts = {"path": str(path), **{name: str(value) for name, value in given.items()}}
    return LogReader(read_options(LogSourceOptions, "rocketmq-log", texts), spark_schema(list(columns)))


def rows(source: LogReader) -> list[dict[str, Any]]:
    """What all its partitions hold, in the order of the log."""
    found = [row for part in source.partitions() for batch in source.read(part) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: (row.get("brokerName", ""), row.get("physicalOffset", 0)))


def offsets(source: LogReader) -> list[int]:
    return [row["physicalOffset"] for row in rows(source)]


# -- what is planned -----------------------------------------------------------------------------------


def test_bytes_that_are_planned_grow_with_what_is_asked_for_and_not_with_the_log(
    store: tuple[Path, list[StoredMessage]],
) -> None:
    root, records = store
    for first in (0, 7, COUNT // 2, COUNT - 3):
        low, high = records[first].physical_offset, records[-1].physical_offset + records[-1].size
        source = reader(root, ["physicalOffset"], minPartitions=5)
        kept = source.pushFilters(
            [GreaterThanOrEqual(("physicalOffset",), low), LessThan(("physicalOffset",), high)]
        )
        assert list(kept) == []
        assert sum(part.end - part.begin for part in source.partitions()) <= high - low
        assert offsets(source) == [one.physical_offset for one in records[first:]]


# -- rows --------------------------------------------------------------------------------------------


def test_through_spark_each_record_is_a_row_and_each_of_its_fields_a_column(
    spark: SparkSession, store: tuple[Path, list[StoredMessage]]
) -> None:
    root, records = store
    frame = spark.read.format("rocketmq-log").option("minPartitions", 7).load(str(root))
    assert frame.schema == SPARK_SCHEMA
    found = sorted(frame.collect(), key=lambda row: row["physicalOffset"])
    assert len(found) == len(records) == COUNT
    for row, record in zip(found, records, strict=True):
        properties = decode_properties(record.properties)
        stored = datetime.datetime.fromtimestamp(record.store_timestamp_ms / 1000)
        assert row["topic"] == record.topic
        assert row["queueId"] == record.queue_id
        assert row["queueOffset"] == record.queue_offset
        assert row["physicalOffset"] == record.physical_offset
        assert row["storeSize"] == record.size
        assert row["msgId"] == record.message_id
        assert bytes(row["body"]) == record.body
        assert row["properties"] == properties
        assert (row["tags"], row["keys"]) == (properties.get("TAGS"), properties.get("KEYS"))
        assert row["uniqKey"] == properties.get("UNIQ_KEY")
        assert row["sysFlag"] == record.sys_flag
        assert abs(row["storeTimestamp"] - stored) < datetime.timedelta(milliseconds=1)
        assert row["bornHost"] == "10.1.2.3:54321"
        assert row["storeHost"] == "192.168.1.9:10911"
        assert row["bodyCrcOk"] is True
        assert row["brokerName"] == root.name
        assert row[CORRUPT] is None


def test_a_schema_or_columns_say_what_is_read_and_in_which_order(
    spark: SparkSession, store: tuple[Path, list[StoredMessage]]
) -> None:
    root, records = store
    read = spark.read.format("rocketmq-log")
    by_schema = read.schema("body binary, topic string").load(str(root))
    by_option = spark.read.format("rocketmq-log").option("columns", "body, topic").load(str(root))
    expected = sorted((record.body, record.topic) for record in records)
    assert by_schema.columns == by_option.columns == ["body", "topic"]
    for frame in (by_schema, by_option):
        assert sorted((bytes(row[0]), row[1]) for row in frame.collect()) == expected


def test_what_spark_pushes_down_is_held_here_and_not_looked_at_again(
    spark: SparkSession, store: tuple[Path, list[StoredMessage]]
) -> None:
    root, records = store
    frame = spark.read.format("rocketmq-log").option("pushFilters", "true").load(str(root))
    moment = datetime.datetime.fromtimestamp(records[200].store_timestamp_ms / 1000, datetime.UTC)
    wanted = frame.where(
        (frame.topic.isin("Orders", "2024"))
        & (frame.queueId == 1)
        & (frame.queueOffset >= 3)
        & (frame.physicalOffset < records[350].physical_offset)
        & (frame.storeTimestamp <= moment)
        & (frame.tags == "TagA")
    )
    expected = [
        record.physical_offset
        for record in records[:350]
        if record.topic in ("Orders", "2024")
        and record.queue_id == 1
        and record.queue_offset >= 3
        and record.store_timestamp_ms <= records[200].store_timestamp_ms
        and decode_properties(record.properties).get("TAGS") == "TagA"
    ]
    assert expected
    assert sorted(row["physicalOffset"] for row in wanted.collect()) == expected
    plan = wanted._jdf.queryExecution().executedPlan().toString()
    held = plan.split("Filter")[1].split("\n")[0]
    assert "tags" in held
    assert not any(f"({column}#" in held.replace("isnotnull(", "") for column in ("queueOffset", "topic"))


def test_a_table_that_is_asked_again_gives_each_query_its_own_rows(
    spark: SparkSession, store: tuple[Path, list[StoredMessage]]
) -> None:
    """Which Spark spoils for tables with pushed filters, so that those have to be asked for."""
    root, records = store
    frame = spark.read.format("rocketmq-log").option("columns", "topic").load(str(root))
    orders = frame.where(frame.topic == "Orders")
    assert orders.count() == sum(record.topic == "Orders" for record in records)
    assert frame.count() == len(records)


def test_several_stores_are_told_by_their_broker_names(
    tmp_path: Path, store: tuple[Path, list[StoredMessage]], spark: SparkSession
) -> None:
    root, records = store
    copy = shutil.copytree(root, tmp_path / "broker-a-s")
    frame = (
        spark.read.format("rocketmq-log")
        .option("brokerNames", "master,slave")
        .load([str(root), str(copy)])
        .select("brokerName", "physicalOffset")
    )
    found = sorted((row[0], row[1]) for row in frame.collect())
    expected = [record.physical_offset for record in records]
    assert found == [(name, offset) for name in ("master", "slave") for offset in expected]
    names = {row["brokerName"] for row in rows(reader(f"{root},file:{copy}", ["brokerName"]))}
    assert names == {root.name, "broker-a-s"}


@pytest.mark.parametrize("parts", [1, 3, 10, 1000])
def test_each_record_is_read_once_by_however_many_tasks(
    store: tuple[Path, list[StoredMessage]], parts: int
) -> None:
    root, records = store
    source = reader(root, ["physicalOffset"], minPartitions=parts)
    count = len(source.partitions())
    assert count >= min(parts, 40)
    assert offsets(source) == [record.physical_offset for record in records]


# -- filters --------------------------------------------------------------------------------------------

UTC = datetime.UTC


def at(ms: float) -> datetime.datetime:
    return datetime.datetime(1970, 1, 1, tzinfo=UTC) + datetime.timedelta(microseconds=round(ms * 1000))


Test = Callable[[StoredMessage], bool]


def any_filter(rng: random.Random, records: list[StoredMessage]) -> tuple[Filter, Test]:
    """A filter, and what it means."""
    column, take, noise = rng.choice(
        (
            ("queueId", lambda record: record.queue_id, 1),
            ("queueOffset", lambda record: record.queue_offset, 1),
            ("physicalOffset", lambda record: record.physical_offset, 1),
            ("storeTimestamp", lambda record: at(record.store_timestamp_ms), at(0.001) - at(0)),
        )
    )
    some = [take(record) + noise * rng.choice((0, 0, -1, 1)) for record in rng.sample(records, 3)]
    kind: Any = rng.choice((EqualTo, GreaterThan, GreaterThanOrEqual, LessThan, LessThanOrEqual, In))
    if kind is In:
        return In((column,), tuple(some)), lambda record: take(record) in some
    value = some[0]
    tests: dict[Any, Test] = {
        EqualTo: lambda record: take(record) == value,
        GreaterThan: lambda record: take(record) > value,
        GreaterThanOrEqual: lambda record: take(record) >= value,
        LessThan: lambda record: take(record) < value,
        LessThanOrEqual: lambda record: take(record) <= value,
    }
    return kind((column,), value), tests[kind]


@pytest.mark.parametrize("seed", range(60))
def test_filters_choose_exactly_the_rows_that_they_say(
    store: tuple[Path, list[StoredMessage]], seed: int
) -> None:
    """With every part of what skips at work: segments by time, bytes by offset, topics by queue."""
    root, records = store
    rng = random.Random(seed)
    pairs = [any_filter(rng, records) for _ in range(rng.randrange(1, 4))]
    if rng.random() < 0.6:
        # Records that are in no queue, as this store has some of, are found without queues only.
        topics = rng.sample(("Orders", "Payments", "2024", "none"), rng.randrange(1, 3))
        pairs.append((In(("topic",), tuple(topics)), lambda record: record.topic in topics))
    source = reader(root, ["physicalOffset"], minPartitions=rng.choice((1, 9)), useConsumeQueue="false")
    assert list(source.pushFilters([one for one, _ in pairs])) == []
    expected = [record.physical_offset for record in records if all(test(record) for _, test in pairs)]
    assert offsets(source) == expected


def test_filters_of_other_kinds_stay_with_spark(store: tuple[Path, list[StoredMessage]]) -> None:
    root, _ = store
    others: list[Filter] = [
        IsNotNull(("topic",)),
        Not(EqualTo(("topic",), "Orders")),
        EqualTo(("tags",), "TagA"),
        EqualTo(("properties", "TAGS"), "TagA"),
        GreaterThan(("topic",), "A"),
        EqualTo(("queueId",), None),
        In(("queueId",), (1, None)),
    ]
    source = reader(root, ["physicalOffset"])
    assert list(source.pushFilters([*others, EqualTo(("queueId",), 1)])) == others


def test_filters_by_time_and_offset_leave_segments_out(store: tuple[Path, list[StoredMessage]]) -> None:
    root, records = store
    whole = len(reader(root).partitions())
    for one in (
        LessThan(("storeTimestamp",), at(records[20].store_timestamp_ms)),
        GreaterThan(("storeTimestamp",), at(records[-20].store_timestamp_ms)),
    ):
        source = reader(root)
        list(source.pushFilters([one]))
        assert len(source.partitions()) <= 2 < whole


# -- where to begin and end --------------------------------------------------------------------------------


def test_offsets_of_queues_are_where_a_read_begins_and_ends(store: tuple[Path, list[StoredMessage]]) -> None:
    """As rocketmq-spark and Kafka's source take them; queues that are not named are read whole."""
    root, records = store
    begins = {("Orders", 0): 5, ("Payments", 2): 3}
    ends = {("Orders", 0): 12, ("2024", 1): 0}
    source = reader(
        root,
        ["physicalOffset"],
        startingOffsets='{"Orders": {"0": 5, "1": -2}, "Payments": {"broker-a": {"2": 3}}}',
        brokerNames="broker-a",
        endingOffsets='{"Orders": {"0": 12, "1": -1}, "2024": {"1": 0}}',
    )
    assert offsets(source) == [
        record.physical_offset
        for record in records
        if begins.get((record.topic, record.queue_id), 0)
        <= record.queue_offset
        < ends.get((record.topic, record.queue_id), 1 << 60)
    ]


@pytest.mark.parametrize("columns", [["brokerName", "queueOffset"], ["queueOffset", "brokerName", "body"]])
@pytest.mark.parametrize("topic", [None, "2024"])  # in the log, and by the queues of a rare topic
def test_offsets_of_a_broker_are_for_its_stores_only(
    store: tuple[Path, list[StoredMessage]], columns: list[str], topic: str | None
) -> None:
    root, records = store
    numbers = [
        record.queue_offset for record in records if (record.topic, record.queue_id) == (topic or "Orders", 1)
    ]
    assert len(numbers) > 4
    source = reader(
        f"{root},{root}",
        [*columns, "topic", "queueId"],
        brokerNames="a,b",
        startingOffsets=json.dumps({topic or "Orders": {"1": 1, "b": {"1": 3}}}),
        endingOffsets=json.dumps({topic or "Orders": {"a": {"1": 4}}}),
        **({} if topic is None else {"topic": topic}),
    )
    found = [
        (row["brokerName"], row["queueOffset"])
        for row in rows(source)
        if (row["topic"], row["queueId"]) == (topic or "Orders", 1)
    ]
    assert sorted(found) == [("a", number) for number in numbers if 1 <= number < 4] + [
        ("b", number) for number in numbers if number >= 3
    ]


def test_offsets_that_no_queue_has_come_to_are_refused_unless_loss_is_fine(
    store: tuple[Path, list[StoredMessage]],
) -> None:
    root, records = store
    end = 1 + max(one.queue_offset for one in records if (one.topic, one.queue_id) == ("Orders", 1))
    at_end, behind = (f'{{"Orders": {{"1": {offset}}}}}' for offset in (end, end + 1))
    others = [row["physicalOffset"] for row in rows(reader(root, startingOffsets=at_end))]
    assert 0 < len(others) < len(records)
    with pytest.raises(
        ConfigError, match=f"startingOffsets: {end + 1} of topic Orders queue 1, .* at {end};"
    ):
        reader(root, startingOffsets=behind).partitions()
    assert offsets(reader(root, startingOffsets=behind, failOnDataLoss="false")) == others


def test_times_are_where_a_read_begins_and_ends(store: tuple[Path, list[StoredMessage]]) -> None:
    root, records = store
    begin, end = records[100].store_timestamp_ms, records[300].store_timestamp_ms
    source = reader(root, ["physicalOffset"], startingTimestamp=begin, endingTimestamp=end)
    found = [record.physical_offset for record in records if begin <= record.store_timestamp_ms < end]
    assert offsets(source) == found
    assert len(found) >= 200


def test_a_batch_neither_begins_at_the_latest_nor_ends_at_the_earliest(
    store: tuple[Path, list[StoredMessage]],
) -> None:
    root, _ = store
    for given in (
        {"startingOffsets": "latest"},
        {"startingOffsets": '{"Orders": {"0": -1}}'},
        {"endingOffsets": "earliest"},
        {"endingOffsets": '{"Orders": {"0": -2}}'},
    ):
        with pytest.raises(ConfigError, match="a batch cannot"):
            reader(root, **given)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (
            {"startingOffsets": '{"Odrers": {"0": 5}}'},
            r"startingOffsets: no store has a topic Odrers; there are Orders, .*2024",
        ),
        (
            {"endingOffsets": '{"Orders": {"broker-a": {"7": 5}}}', "brokerNames": "broker-a"},
            r"endingOffsets: no store has a queue 7 of topic Orders; there are 0, 1, 2; ",
        ),
        (
            {"topic": "Orders", "startingOffsets": '{"Payments": {"0": 5}}'},
            "startingOffsets: Payments is not in topic=Orders",
        ),
        ({"topic": "Orders,Odrers"}, "topic: no store has a topic Odrers; .*useConsumeQueue=false seeks"),
        (
            {"startingTimestamp": 1_700_000_000_001, "endingTimestamp": 1_700_000_000_000},
            "startingTimestamp=1700000000001: lies after endingTimestamp=1700000000000",
        ),
        (
            {"startingOffsets": '{"Orders": {"0": 9, "1": 4}}', "endingOffsets": '{"Orders": {"0": 8}}'},
            "startingOffsets: 9 of topic Orders queue 0 lies behind its 8 in endingOffsets",
        ),
    ],
)
def test_what_no_store_has_or_what_is_turned_around_is_refused(
    store: tuple[Path, list[StoredMessage]], tmp_path: Path, given: dict[str, object], said: str
) -> None:
    """A topic without messages, that the broker's configuration has, is one, too."""
    bare = shutil.copytree(store[0] / "commitlog", tmp_path / "bare" / "commitlog").parent
    configured = shutil.copytree(store[0], tmp_path / "configured")
    (configured / "config").mkdir(exist_ok=True)
    (configured / "config" / "topics.json").write_text(
        '{"topicConfigTable": {"Odrers": {"readQueueNums": 1}, "Orders": {"writeQueueNums": 8}}}'
    )
    with pytest.raises(ConfigError, match=f"rocketmq-log: {said}"):
        reader(store[0], **given).partitions()
    if "no store" not in said:
        return
    for root, more in ((bare, {}), (configured, {}), (store[0], {"useConsumeQueue": False})):
        assert reader(root, **given, **more).partitions()


def test_offsets_of_a_broker_that_no_store_is_of_are_refused(
    store: tuple[Path, list[StoredMessage]],
) -> None:
    given = {"endingOffsets": '{"Orders": {"b": {"0": 5}}}', "brokerNames": "broker-a"}
    with pytest.raises(ConfigError, match="endingOffsets: no store is of b; brokerNames are broker-a"):
        reader(store[0], **given).partitions()


# -- rare topics -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def rare(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[StoredMessage]]:
    """One message in a hundred is of a topic of its own; some of the last are in no queue yet."""
    root = tmp_path_factory.mktemp("rare")
    opened = Store.open(options(root, segment_bytes=1 << 16), store_host=STORE_HOST, clock_ms=Clock())
    for number in range(1500):
        topic = "rare" if number % 100 == 99 else "plenty"
        opened.log.append(message(bytes(120), topic, number % 4 // 2))
        if number == 1350:
            while opened.dispatcher.step():
                pass
    shutil.copytree(root, root.parent / f"{root.name}-copy")
    records = close(opened)
    (root.parent / f"{root.name}-copy" / "abort").unlink()
    return root.parent / f"{root.name}-copy", records


def test_a_rare_topic_is_found_by_its_queues_and_the_log_behind_them(
    rare: tuple[Path, list[StoredMessage]], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, records = rare
    expected = [record.physical_offset for record in records if record.topic == "rare"]
    assert len(expected) == 15
    read: list[int] = []
    pread = reading.OpenSegment.read

    def counted(log: Any, offset: int, size: int) -> bytes:
        read.append(size)
        return pread(log, offset, size)

    source = reader(root, topic="rare")
    parts = source.partitions()
    assert any(isinstance(part, EntryRange) for part in parts)
    monkeypatch.setattr(reading.OpenSegment, "read", counted)
    assert offsets(source) == expected
    by_queues = sum(read)
    read.clear()
    assert offsets(reader(root, topic="rare", useConsumeQueue="false")) == expected
    assert by_queues < sum(read) / 2


@pytest.mark.parametrize("seed", range(20))
def test_filters_hold_for_what_queues_find(rare: tuple[Path, list[StoredMessage]], seed: int) -> None:
    root, records = rare
    rng = random.Random(seed)
    pairs = [any_filter(rng, records) for _ in range(rng.randrange(3))]
    pairs.append((EqualTo(("topic",), "rare"), lambda record: record.topic == "rare"))
    source = reader(root, ["physicalOffset"], minPartitions=rng.choice((1, 5)))
    assert list(source.pushFilters([one for one, _ in pairs])) == []
    expected = [record.physical_offset for record in records if all(test(record) for _, test in pairs)]
    assert offsets(source) == expected


def test_after_a_crash_queues_are_not_believed(
    rare: tuple[Path, list[StoredMessage]], tmp_path: Path
) -> None:
    root = shutil.copytree(rare[0], tmp_path / "store")
    (root / "abort").touch()
    assert not any(isinstance(part, EntryRange) for part in reader(root, topic="rare").partitions())


def test_damage_where_a_queue_points_is_told(rare: tuple[Path, list[StoredMessage]], tmp_path: Path) -> None:
    source_root, records = rare
    root = shutil.copytree(source_root, tmp_path / "store")
    hurt = next(record for record in records if record.topic == "rare")
    flip(root, hurt.physical_offset + 4, 1 << 16)
    source = reader(root, topic="rare")
    assert any(isinstance(part, EntryRange) for part in source.partitions())
    (row,) = [row for row in rows(source) if row[CORRUPT] is not None]
    assert row["physicalOffset"] == hurt.physical_offset
    with pytest.raises(DamagedLog, match=f"record at {hurt.physical_offset}"):
        rows(reader(root, topic="rare", mode="FAILFAST"))


# -- damage ---------------------------------------------------------------------------------------------


@pytest.fixture
def hurt(
    tmp_path: Path, store: tuple[Path, list[StoredMessage]]
) -> tuple[Path, list[StoredMessage], list[int]]:
    """A copy with two damaged records, one of them a segment's last."""
    root, records = store
    copy = shutil.copytree(root, tmp_path / "hurt")
    last = max(n for n, record in enumerate(records) if record.physical_offset < SEGMENT_BYTES)
    for number in (50, last):
        flip(copy, records[number].physical_offset + 5)
    return copy, records, [50, last]


def test_damage_is_a_row_of_its_own(hurt: tuple[Path, list[StoredMessage], list[int]]) -> None:
    root, records, numbers = hurt
    found = rows(reader(root, minPartitions=20))
    damaged = [row for row in found if row[CORRUPT] is not None]
    assert [row["physicalOffset"] for row in damaged] == [records[n].physical_offset for n in numbers]
    for row, number in zip(damaged, numbers, strict=True):
        record, behind = records[number], records[number + 1]
        assert row["topic"] is None
        assert row["brokerName"] == "hurt"
        assert len(row["body"]) == row["storeSize"]
        assert str(root) in row[CORRUPT]
        assert f"record at {record.physical_offset}: magic" in row[CORRUPT]
        if number == 50:
            assert row["storeSize"] == behind.physical_offset - record.physical_offset
    sound = [row["physicalOffset"] for row in found if row[CORRUPT] is None]
    assert sound == [r.physical_offset for n, r in enumerate(records) if n not in numbers]


def test_a_body_of_damage_is_bounded(hurt: tuple[Path, list[StoredMessage], list[int]]) -> None:
    root, records, _ = hurt
    with open(root / "commitlog" / f"{SEGMENT_BYTES:020d}", "r+b") as file:
        file.write(b"x" * SEGMENT_BYTES)
    reading_max = reading.CORRUPT_BODY_BYTES_MAX
    assert SEGMENT_BYTES < reading_max == 64 << 10
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reading, "CORRUPT_BODY_BYTES_MAX", 100)
        found = [row for row in rows(reader(root)) if row["physicalOffset"] == SEGMENT_BYTES]
    assert [(row["body"], row["storeSize"]) for row in found] == [(b"x" * 100, SEGMENT_BYTES)]
    assert sum(row[CORRUPT] is None for row in rows(reader(root))) < len(records)


def test_damage_can_be_dropped_and_is_told_in_the_log(
    hurt: tuple[Path, list[StoredMessage], list[int]], caplog: pytest.LogCaptureFixture
) -> None:
    root, records, numbers = hurt
    found = offsets(reader(root, mode="DROPMALFORMED"))
    assert found == [r.physical_offset for n, r in enumerate(records) if n not in numbers]
    dropped = [one.getMessage() for one in caplog.records if "damaged bytes dropped" in one.getMessage()]
    assert len(dropped) == 2
    assert f"record at {records[50].physical_offset}" in dropped[0]


def test_damage_can_end_a_read(
    hurt: tuple[Path, list[StoredMessage], list[int]], spark: SparkSession
) -> None:
    root, records, _ = hurt
    frame = spark.read.format("rocketmq-log").option("mode", "failfast").load(str(root))
    with pytest.raises(
        Exception, match=rf"{root}/commitlog/0+: record at {records[50].physical_offset}: magic"
    ):
        frame.collect()


@pytest.fixture
def flipped(tmp_path: Path, store: tuple[Path, list[StoredMessage]]) -> tuple[Path, StoredMessage]:
    """A copy with one bit of one body turned over."""
    root, records = store
    copy = shutil.copytree(root, tmp_path / "flipped")
    one = next(record for record in records[60:] if record.body)
    flip(copy, one.physical_offset + one.size - len(one.properties) - 2 - len(one.topic.encode()) - 2)
    return copy, one


def test_a_body_that_is_not_what_its_sum_is_of_is_told_by_each_mode_that_sums(
    flipped: tuple[Path, StoredMessage], caplog: pytest.LogCaptureFixture
) -> None:
    root, one = flipped
    told = f"record at {one.physical_offset}: its body does not match its CRC; {one.size} bytes"
    wrong = [row for row in rows(reader(root)) if not row["bodyCrcOk"]]
    assert [(row["physicalOffset"], row["topic"]) for row in wrong] == [(one.physical_offset, one.topic)]
    with pytest.raises(DamagedLog, match=rf"{root}/commitlog/0+: {told}"):
        rows(reader(root, mode="FAILFAST"))
    with caplog.at_level("WARNING"):
        sound = offsets(reader(root, mode="DROPMALFORMED"))
    assert told in caplog.text
    assert len(sound) == COUNT - 1
    assert one.physical_offset not in sound
    unsummed = reader(root, columns=["physicalOffset"], mode="FAILFAST")
    assert one.physical_offset in offsets(unsummed)


def test_filters_that_damage_cannot_fulfil_leave_it_out_as_sql_does(
    hurt: tuple[Path, list[StoredMessage], list[int]],
) -> None:
    root, records, _ = hurt
    kept = reader(root)
    list(kept.pushFilters([LessThanOrEqual(("physicalOffset",), records[50].physical_offset)]))
    assert [row[CORRUPT] is None for row in rows(kept)] == [True] * 50 + [False]
    left = reader(root)
    list(left.pushFilters([EqualTo(("topic",), "Orders")]))
    assert all(row[CORRUPT] is None for row in rows(left))
    assert any(row[CORRUPT] is not None for row in rows(reader(root, topic="Orders")))


def test_a_torn_tail_is_a_row(tmp_path: Path, store: tuple[Path, list[StoredMessage]]) -> None:
    root, records = store
    copy = shutil.copytree(root, tmp_path / "torn")
    last = records[-1]
    start = last.physical_offset - last.physical_offset % SEGMENT_BYTES
    with open(copy / "commitlog" / f"{start:020d}", "r+b") as file:
        file.seek(last.physical_offset - start + 60)
        file.write(bytes(last.size - 60))
    *whole, torn = rows(reader(copy))
    assert [row["physicalOffset"] for row in whole] == [record.physical_offset for record in records[:-1]]
    assert torn["physicalOffset"] == last.physical_offset
    assert torn[CORRUPT] is not None
    with pytest.raises(DamagedLog):
        rows(reader(copy, mode="FAILFAST"))


# -- what goes away ------------------------------------------------------------------------------------


def test_a_segment_that_goes_after_planning_is_an_error_unless_loss_is_fine(
    tmp_path: Path, store: tuple[Path, list[StoredMessage]]
) -> None:
    root, records = store
    copy = shutil.copytree(root, tmp_path / "store")
    strict, lax = reader(copy), reader(copy, failOnDataLoss="false")
    parts = strict.partitions()
    StoreView(copy).segments()[0].path.unlink()
    with pytest.raises(SegmentGone, match=f"{copy}.*fileReservedTime.*failOnDataLoss=false"):
        [batch for part in parts for batch in strict.read(part)]
    found = sum(batch.num_rows for part in parts for batch in lax.read(part))
    assert found == sum(record.physical_offset >= SEGMENT_BYTES for record in records)


# -- counts ---------------------------------------------------------------------------------------------


def counts(frame: DataFrame, *keys: str) -> dict[tuple[Any, ...], tuple[int, ...]]:
    """By keys what a user makes of the parts."""
    summed = frame.groupBy(*keys).sum("count", "bodyBytes", "storeBytes").collect()
    return {tuple(row[: len(keys)]): tuple(row[len(keys) :]) for row in summed}


def test_counts_are_those_of_the_rows_and_far_fewer_leave_the_workers(
    spark: SparkSession, store: tuple[Path, list[StoredMessage]]
) -> None:
    root, records = store
    expected: dict[tuple[Any, ...], tuple[int, ...]] = {}
    for record in records:
        key = (record.topic, record.queue_id, decode_properties(record.properties).get("TAGS"))
        count, body_bytes, store_bytes = expected.get(key, (0, 0, 0))
        expected[key] = (count + 1, body_bytes + len(record.body), store_bytes + record.size)
    read = spark.read.format("rocketmq-log").option("minPartitions", 3)
    by_key = read.option("countBy", "topic, queueId, tags").load(str(root))
    assert by_key.columns == ["topic", "queueId", "tags", "count", "bodyBytes", "storeBytes"]
    assert counts(by_key, "topic", "queueId", "tags") == expected
    by_topic = read.option("countBy", "topic").option("topic", "Orders").load(str(root))
    of_orders = [value for (topic, *_), value in expected.items() if topic == "Orders"]
    assert counts(by_topic, "topic") == {("Orders",): tuple(map(sum, zip(*of_orders, strict=True)))}
    segments = len(StoreView(root).segments())
    assert by_topic.count() < 4 * segments < counts(by_topic, "topic")["Orders",][0]


def test_damage_counts_as_the_row_that_it_is(hurt: tuple[Path, list[StoredMessage], list[int]]) -> None:
    root, records, gone = hurt
    found: dict[str | None, list[dict[str, Any]]] = {}
    source = LogSource({"path": str(root), "countBy": "topic"})
    for row in rows(source.reader(source.schema())):
        found.setdefault(row["topic"], []).append(row)
    damages = [row for row in rows(reader(root)) if row[CORRUPT]]
    of_damage = found.pop(None)
    assert sum(row["count"] for row in of_damage) == len(damages) > 0
    assert sum(row["storeBytes"] for row in of_damage) == sum(row["storeSize"] for row in damages)
    assert {row["bodyBytes"] for row in of_damage} == {0}
    assert sum(row["count"] for parts in found.values() for row in parts) == len(records) - len(gone)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"countBy": "topics"}, "topics: no such column; there are topic"),
        ({"countBy": "topic,properties"}, "countBy: properties: a map: nothing can be grouped by it"),
        ({"countBy": "topic", "columns": "topic"}, "countBy: says what the columns are; leave out columns"),
    ],
)
def test_counts_by_what_is_no_key_are_refused(
    store: tuple[Path, list[StoredMessage]], given: dict[str, str], said: str
) -> None:
    source = LogSource({"path": str(store[0]), **given})
    with pytest.raises(ConfigError, match=said):
        source.reader(source.schema())


def test_a_schema_of_ones_own_and_counts_are_refused(store: tuple[Path, list[StoredMessage]]) -> None:
    with pytest.raises(ConfigError, match=r"countBy: says what the columns are; .* a schema"):
        LogSource({"path": str(store[0]), "countBy": "topic"}).reader(spark_schema(["topic"]))


# -- options --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"minPartition": "3"}, r"minPartition=3: no such option; did you mean minPartitions\?"),
        ({"nonsense": "3"}, r"nonsense=3: no such option; There are path, .*columns"),
        ({"minPartitions": "many"}, "minPartitions=many: not a whole number from 1 on"),
        ({"minPartitions": "0"}, "minPartitions=0: not a whole number from 1 on"),
        ({"mode": "lenient"}, "mode=lenient: allowed are PERMISSIVE, DROPMALFORMED, FAILFAST"),
        ({"failOnDataLoss": "no"}, "failOnDataLoss=no: allowed are true and false"),
        ({"startingOffsets": "first"}, "startingOffsets=first: allowed are earliest, latest, and JSON"),
        ({"startingOffsets": '{"t": {"0": "x"}}'}, "startingOffsets=.*offset 'x' of topic t queue 0"),
        ({"startingOffsets": '{"t": 5}'}, "startingOffsets=.*allowed are earliest"),
        ({"startingTimestamp": "2024-01-01"}, "startingTimestamp=2024-01-01: not a whole number"),
        ({"columns": "topic,bodi"}, "columns: bodi: no such column; there are topic"),
        ({"brokerNames": "a,b"}, "brokerNames=a,b: 2 names for 1 stores"),
        ({"paths": "/else"}, "paths: the stores are given as path, too"),
        ({"path": "hdfs://node/store"}, "path=hdfs://node/store: .*read from disks or mounts"),
        ({"path": " "}, "path= : is empty"),
    ],
)
def test_a_wrong_option_is_refused_by_name_with_what_is_allowed(
    store: tuple[Path, list[StoredMessage]], given: dict[str, str], said: str
) -> None:
    source = LogSource({"path": str(store[0]), **given})
    with pytest.raises(ConfigError, match=f"rocketmq-log: {said}" if "columns: bodi" not in said else said):
        source.reader(source.schema()).partitions()


def test_a_store_must_be_given_and_a_column_be_of_its_type(store: tuple[Path, list[StoredMessage]]) -> None:
    with pytest.raises(ConfigError, match=r"path: missing; give store directories, as load\('/data/store'\)"):
        LogSource({}).reader(SPARK_SCHEMA).partitions()
    wrong = StructType([StructField("storeTimestamp", LongType())])
    with pytest.raises(ConfigError, match="storeTimestamp: is a timestamp, cannot be read as bigint"):
        LogSource({"path": str(store[0])}).reader(wrong)


def test_errors_reach_the_user_through_spark(spark: SparkSession, tmp_path: Path) -> None:
    with pytest.raises(Exception, match="holds no commitlog; give a broker's storePathRootDir") as no_store:
        spark.read.format("rocketmq-log").load(str(tmp_path)).count()
    with pytest.raises(Exception, match="did you mean failOnDataLoss") as wrong_name:
        spark.read.format("rocketmq-log").option("failOnLoss", "true").load(str(tmp_path))
    for error in (no_store, wrong_name):
        assert "Traceback" not in str(error.value)
    assert words_of(no_store.value) == (
        f"{tmp_path}: holds no commitlog; give a broker's storePathRootDir, or its commitlog"
    )
    # A mistake of somebody's program keeps its traceback.
    broken = udf(lambda _: 1 // 0, "int")
    with pytest.raises(Exception, match="Traceback"):
        spark.range(1).select(broken("id")).collect()


def test_names_of_options_may_be_written_in_any_case(store: tuple[Path, list[StoredMessage]]) -> None:
    assert len(reader(store[0], MINPARTITIONS="5").partitions()) >= 5


def test_a_log_is_cut_so_that_every_core_has_something_to_do(
    store: tuple[Path, list[StoredMessage]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_source, "CORE_BYTES_MIN", 1000)
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    segments = len(StoreView(store[0]).segments())
    assert len(reader(store[0]).partitions()) == segments
    monkeypatch.setattr(os, "cpu_count", lambda: 4 * segments)
    assert len(reader(store[0]).partitions()) >= 4 * segments - 1


def test_batches_are_bounded_by_the_bytes_that_they_take(
    store: tuple[Path, list[StoredMessage]], monkeypatch: pytest.MonkeyPatch
) -> None:
    root, records = store
    source = reader(root)
    monkeypatch.setattr(reading, "WINDOW_BYTES", 2000)
    batches = [batch for part in source.partitions() for batch in source.read(part)]
    assert sum(batch.num_rows for batch in batches) == len(records)
    for batch in batches:
        assert sum(batch.column(batch.schema.get_field_index("storeSize")).to_pylist()) <= 2000
