"""The format rocketmq-log as a stream: each record once, through restarts, rolls, retention and limits."""

from __future__ import annotations

import json
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows

from commitlog.store import Store
from haservice.errors import ConfigError
from haservice.pipeline.decode.schema import CORRUPT, spark_schema
from haservice.pipeline.sources import log_source
from haservice.pipeline.sources.log_offsets import place_of
from haservice.pipeline.sources.log_source import DataLoss, LogSource, LogStreamReader, Offsets
from haservice.pipeline.sources.options import LogSourceOptions, read_options
from haservice.pipeline.sources.store_view import StoreView
from haservice.pipeline.sources.stream_begin import split
from tests.pipeline.filled import any_message, flip, options
from tests.pipeline.logs import record, write_log
from tests.support.messages import STORE_HOST, STORE_MS, Clock, message, records_of
from tests.support.waiting import wait_until

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming import StreamingQuery

pytestmark = pytest.mark.spark

COLUMNS = ("topic", "physicalOffset", "storeSize", CORRUPT)
ALL = ReadAllAvailable()
SEGMENT_BYTES = 8192


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """Open, as a broker has it."""
    opened = open_store(tmp_path / "broker-a")
    yield opened
    opened.close()


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_source, "RANGE_BYTES_MIN", 1000)


def open_store(root: Path) -> Store:
    return Store.open(options(root, segment_bytes=SEGMENT_BYTES), store_host=STORE_HOST, clock_ms=Clock())


def append(store: Store, count: int, seed: int = 1) -> None:
    rng = random.Random(seed)
    for number in range(count):
        store.log.append(any_message(rng, number))
    while store.dispatcher.step():
        pass


def reader(path: object, **given: object) -> LogStreamReader:
    texts = {"path": str(path), **{name: str(value) for name, value in given.items()}}
    return LogStreamReader(read_options(LogSourceOptions, "rocketmq-log", texts), spark_schema(COLUMNS))


def rows(stream: LogStreamReader, start: Offsets, end: Offsets) -> list[dict[str, Any]]:
    found = [
        row
        for part in stream.partitions(start, end)
        for batch in stream.read(part)
        for row in batch.to_pylist()
    ]
    return sorted(found, key=lambda row: row["physicalOffset"])


def offsets(stream: LogStreamReader, start: Offsets, end: Offsets) -> list[int]:
    return [row["physicalOffset"] for row in rows(stream, start, end)]


def places(offsets: Offsets) -> dict[str, int]:
    return {name: place_of(offset) for name, offset in split(offsets)[1].items()}


def stored(store: Store) -> list[int]:
    return [record.physical_offset for record in records_of(store.log)]


# -- offsets -------------------------------------------------------------------------------------------


def test_a_new_stream_begins_at_the_latest_unless_told_otherwise(store: Store) -> None:
    append(store, 50)
    root = store.options.root
    assert places(reader(root).initialOffset()) == {"broker-a": store.log.end}
    assert places(reader(root, startingOffsets="earliest").initialOffset()) == {"broker-a": 0}
    assert places(reader(root, startingOffsets='{"Orders": {"0": 3}}').initialOffset()) == {"broker-a": 0}
    assert places(reader(root, startingTimestamp=1).initialOffset()) == {"broker-a": 0}
    assert places(reader(root, brokerNames="b").initialOffset()) == {"b": store.log.end}


START = (
    {"startingTimestamp": 1},
    {"startingTimestamp": STORE_MS + 10**9},
    {"startingOffsets": "earliest"},
    {"startingOffsets": "latest"},
    {"startingOffsets": '{"Orders": {"0": 5}}'},
    {"startingOffsets": '{"Orders": {"0": 20, "1": 1}, "2024": {"0": -2}}'},
)


@pytest.mark.parametrize("before", range(len(START)))
def test_start_options_are_for_new_queries_only(store: Store, before: int) -> None:
    """A query that goes on with other ones, also amid its first batch, has the rows that it would have had."""
    append(store, 120)
    root = store.options.root
    new = reader(root, **START[before])
    start = json.loads(json.dumps(new.initialOffset()))
    append(store, 60, 2)
    middle = new.latestOffset(start, ReadMaxRows(50))
    end = new.latestOffset(middle, ALL)
    wanted = offsets(new, start, end)
    for after in START:
        again = reader(root, **after)
        first = again.initialOffset()
        assert again.latestOffset(middle, ALL) == end
        assert offsets(again, first, middle) + offsets(again, middle, end) == wanted


def test_a_checkpoint_that_does_not_say_how_it_began_leaves_nothing_out(store: Store) -> None:
    append(store, 60)
    old = {"broker-a": 0}
    stream = reader(store.options.root, startingTimestamp=STORE_MS + 10**9)
    end = stream.latestOffset(old, ALL)
    assert set(end) == {"broker-a"}
    assert offsets(stream, old, end) == stored(store)


def test_a_stream_may_wait_for_a_broker_that_has_stored_nothing(tmp_path: Path) -> None:
    opened = open_store(tmp_path / "broker-a")
    stream = reader(tmp_path / "broker-a")
    start = stream.initialOffset()
    assert stream.latestOffset(start, ALL) == start
    assert places(start) == {"broker-a": 0}
    assert stream.partitions(start, start) == []
    append(opened, 5)
    assert offsets(stream, start, stream.latestOffset(start, ALL)) == stored(opened)
    opened.close()


def test_a_stream_may_wait_for_a_topic_and_begins_at_no_queue_that_is_not_there(
    store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    append(store, 20)
    stream = reader(store.options.root, topic="Later")
    position = stream.initialOffset()
    assert "no store has the topic yet topic=Later" in caplog.text
    store.log.append(message(b"at last", "Later"))
    assert len(offsets(stream, position, stream.latestOffset(position, ALL))) == 1
    with pytest.raises(ConfigError, match="startingOffsets: no store has a topic Odrers; there are Orders"):
        reader(store.options.root, startingOffsets='{"Odrers": {"0": 3}}').initialOffset()


def test_batches_follow_a_log_that_grows_and_rolls(store: Store) -> None:
    """Each ends at a record's end, and what they hold together is the log."""
    stream = reader(store.options.root, startingOffsets="earliest", minPartitions=3)
    position, found = stream.initialOffset(), []
    for number in range(30):
        append(store, number % 7 * 3, number)
        end = stream.latestOffset(position, ALL)
        assert places(end) == {"broker-a": store.log.end}
        found += offsets(stream, position, end)
        position = end
    assert found == stored(store)
    assert len(store.log.segments.items) > 2


@pytest.mark.parametrize("limit", [1, 7, 100, 10_000])
def test_a_limit_bounds_each_batch_and_all_of_it_comes(store: Store, limit: int) -> None:
    append(store, 200)
    stream = reader(store.options.root, startingOffsets="earliest", maxOffsetsPerTrigger=limit)
    assert stream.getDefaultReadLimit() == ReadMaxRows(limit)
    position, found = stream.initialOffset(), []
    while (end := stream.latestOffset(position, ReadMaxRows(limit))) != position:
        batch = offsets(stream, position, end)
        assert 0 < len(batch) <= limit
        found += batch
        position = end
    assert found == stored(store)
    assert isinstance(reader(store.options.root).getDefaultReadLimit(), ReadAllAvailable)


def test_counts_of_a_stream_are_of_its_batches(store: Store) -> None:
    append(store, 60)
    source = LogSource({"path": str(store.options.root), "startingOffsets": "earliest", "countBy": "topic"})
    stream = source.streamReader(source.schema())
    start = stream.initialOffset()
    end = stream.latestOffset(start, ReadMaxRows(20))
    parts = [
        row for p in stream.partitions(start, end) for batch in stream.read(p) for row in batch.to_pylist()
    ]
    first = [record for record in records_of(store.log) if record.physical_offset < place_of(end["broker-a"])]
    assert sum(row["count"] for row in parts) == len(first) == 20
    assert sum(row["storeBytes"] for row in parts) == sum(record.size for record in first)


def test_a_limit_is_shared_by_stores_as_they_have_to_be_read(tmp_path: Path) -> None:
    opened = [open_store(tmp_path / name) for name in ("a", "b", "c")]
    for one, count in zip(opened, (300, 30, 0), strict=True):
        append(one, count)
    stream = reader(",".join(str(one.options.root) for one in opened), startingOffsets="earliest")
    position, batches = stream.initialOffset(), []
    while (end := stream.latestOffset(position, ReadMaxRows(33))) != position:
        batches.append(
            [len(offsets(stream, {name: position[name]}, {name: end[name]})) for name in ("a", "b", "c")]
        )
        position = end
    assert all(sum(batch) <= 33 for batch in batches)
    assert all(a > 0 and b > 0 for a, b, _ in batches[:5])
    assert [sum(counts) for counts in zip(*batches, strict=True)] == [300, 30, 0]
    for one in opened:
        one.close()


def test_what_is_available_now_is_all_that_comes(store: Store) -> None:
    append(store, 40)
    stream = reader(store.options.root, startingOffsets="earliest")
    stream.prepareForTriggerAvailableNow()
    before = stored(store)
    append(store, 40, 2)
    position = stream.initialOffset()
    found = []
    while (end := stream.latestOffset(position, ReadMaxRows(13))) != position:
        found += offsets(stream, position, end)
        position = end
    assert found == before
    assert stream.reportLatestOffset() == {"broker-a": store.log.end}


def test_an_offset_of_a_batch_that_was_planned_is_never_taken_back(store: Store) -> None:
    """After a restart the target may lie before what was planned: that batch is run, and no other."""
    append(store, 10)
    stream = reader(store.options.root)
    stream.prepareForTriggerAvailableNow()
    planned = reader(store.options.root).initialOffset()
    append(store, 10)
    later: Offsets = {"broker-a": store.log.end}
    assert stream.latestOffset(later, ALL) == later
    assert stream.latestOffset(planned, ALL) == planned


def test_what_is_not_confirmed_is_left_for_later(store: Store) -> None:
    append(store, 20)
    root = store.options.root
    confirmed = stored(store)[12]
    say(root, confirmed + 1)
    stream = reader(root, startingOffsets="earliest")
    start = stream.initialOffset()
    end = stream.latestOffset(start, ALL)
    assert places(end) == {"broker-a": confirmed}
    assert offsets(stream, start, end) == stored(store)[:12]
    say(root, store.log.end)
    assert offsets(stream, end, stream.latestOffset(end, ALL)) == stored(store)[12:]


def say(root: Path, confirmed: int) -> None:
    (root / "hasamples").mkdir(exist_ok=True)
    line = json.dumps({"ts": int(time.time() * 1000), "confirmed": confirmed})
    (root / "hasamples" / "ha.jsonl").write_text(line + "\n")


def test_damage_is_passed_once_as_a_row(store: Store) -> None:
    append(store, 30)
    places = stored(store)
    flip(store.options.root, places[10] + 4, SEGMENT_BYTES)
    stream = reader(store.options.root, startingOffsets="earliest")
    position, found = stream.initialOffset(), []
    while (end := stream.latestOffset(position, ReadMaxRows(4))) != position:
        found += rows(stream, position, end)
        position = end
    assert [row["physicalOffset"] for row in found] == places
    assert [row["physicalOffset"] for row in found if row[CORRUPT] is not None] == [places[10]]


# -- what goes away --------------------------------------------------------------------------------------


def test_what_retention_took_is_an_error_unless_loss_is_fine(store: Store) -> None:
    append(store, 200)
    root = store.options.root
    start = reader(root, startingOffsets="earliest").initialOffset()
    store.log.segments.drop_oldest()
    store.log.segments.drop_oldest()
    strict, lax = reader(root), reader(root, failOnDataLoss="false")
    end = lax.latestOffset(start, ALL)
    said = rf"holds {2 * SEGMENT_BYTES} to {store.log.end}, and not 0 .*retention.*failOnDataLoss=false"
    with pytest.raises(DataLoss, match=said):
        strict.latestOffset(start, ALL)
    with pytest.raises(DataLoss, match=said):
        strict.partitions(start, end)
    assert offsets(lax, start, end) == stored(store)
    limited = lax.latestOffset(start, ReadMaxRows(5))
    assert offsets(lax, start, limited) == stored(store)[:5]


def cut(root: Path, end: int) -> None:
    """The log ends at a record's end: zeros behind it, and no further segments, as a slave cuts it."""
    for path in (root / "commitlog").iterdir():
        start = int(path.name)
        if start >= end:
            path.unlink()
        elif end < start + SEGMENT_BYTES:
            os.truncate(path, end - start)
            os.truncate(path, SEGMENT_BYTES)


@pytest.mark.parametrize("old", [False, True], ids=["", "checkpoint of old"])
@pytest.mark.parametrize("segments", [0, 1, 3])
def test_a_log_that_was_cut_below_what_was_read_is_an_error_unless_loss_is_fine(
    tmp_path: Path, old: bool, segments: int
) -> None:
    """Within the last segment, or by several; all that is stored later is read where loss is fine."""
    root = tmp_path / "broker-a"
    opened = open_store(root)
    append(opened, 200)
    read, kept = reader(root).initialOffset(), stored(opened)
    opened.close()
    if old:
        read = dict(places(read))
    position = place_of(read["broker-a"])
    at = (
        position - position % SEGMENT_BYTES - (segments - 1) * SEGMENT_BYTES - 500
        if segments
        else position - 500
    )
    end = max(offset for offset in kept if offset <= at)
    cut(root, end)
    strict, lax = reader(root), reader(root, failOnDataLoss="false", maxOffsetsPerTrigger=7)
    strict.prepareForTriggerAvailableNow()
    for limit in (ALL, ReadMaxRows(3)):
        with pytest.raises(
            DataLoss, match=rf"holds 0 to {end}, and not {position} any more: the log was cut"
        ):
            strict.latestOffset(read, limit)
    with pytest.raises(DataLoss, match=f"holds 0 to {end}, "):
        strict.partitions({"broker-a": 0}, read)
    assert offsets(lax, {"broker-a": 0}, read) == [offset for offset in kept if offset < end]
    back = lax.latestOffset(read, ReadMaxRows(7))
    assert places(back) == {"broker-a": end}
    assert offsets(lax, read, back) == []
    assert lax.latestOffset(back, ALL) == back
    opened = open_store(root)
    append(opened, 50, 3)
    found = []
    while (following := lax.latestOffset(back, ReadMaxRows(7))) != back:
        found += offsets(lax, back, following)
        back = following
    assert found == [offset for offset in stored(opened) if offset >= end]
    opened.close()


def test_of_a_cut_log_that_grows_again_meanwhile_nothing_is_missed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = tmp_path / "broker-a"
    opened = open_store(root)
    append(opened, 50)
    read, kept = reader(root).initialOffset(), stored(opened)
    opened.close()
    cut(root, kept[30])
    opened = open_store(root)
    confirmed_end = StoreView.confirmed_end

    def growing(view: StoreView, begin: int | None = None) -> int:
        end = confirmed_end(view, begin)
        append(opened, 1)
        return end

    monkeypatch.setattr(StoreView, "confirmed_end", growing)
    lax = reader(root, failOnDataLoss="false")
    found = []
    for _ in range(3):
        end = lax.latestOffset(read, ALL)
        found += offsets(lax, read, end)
        read = end
    assert found == [offset for offset in stored(opened) if kept[30] <= offset < place_of(read["broker-a"])]
    assert found
    opened.close()


def test_a_log_whose_confirmed_end_lies_below_what_was_read_is_no_loss(store: Store) -> None:
    """A restarted broker's sample may be a moment behind, and a slave's read mark goes back."""
    append(store, 30)
    root = store.options.root
    stream = reader(root)
    for read in (stream.initialOffset(), {"broker-a": store.log.end}):
        say(root, stored(store)[10])
        assert stream.latestOffset(read, ALL) == read
        assert stream.latestOffset(read, ReadMaxRows(5)) == read


@pytest.mark.parametrize("gone_bytes", [60, 95])
def test_a_log_that_was_cut_and_grew_otherwise_is_an_error_unless_loss_is_fine(
    tmp_path: Path, gone_bytes: int
) -> None:
    """As that of a slave that rejoins a master with another history, of the same sizes even."""
    common, gone, other = (
        [record(message(bytes([number]) * size, "Orders")) for number in range(40, 80)]
        for size in (10, gone_bytes, 95)
    )
    other = [record(message(b"x" * 95, "Orders")) for _ in other] if gone_bytes == 95 else other
    root = tmp_path / "broker-a"
    placed = write_log(root, [*common, *gone], 1 << 15)
    start: Offsets = {"broker-a": 0}
    read = reader(root).initialOffset()
    position = place_of(read["broker-a"])
    assert position == max(placed) + len(placed[max(placed)])
    shutil.rmtree(root)
    placed = write_log(root, [*common, *other, *other], 1 << 15)
    strict, lax = reader(root), reader(root, failOnDataLoss="false")
    end = lax.latestOffset(read, ALL)
    for ask in (
        lambda: strict.latestOffset(read, ALL),
        lambda: strict.partitions(read, end),
        lambda: strict.partitions(start, read),
    ):
        with pytest.raises(DataLoss, match=f"and not {position} any more: .* has other records there now"):
            ask()
    behind = offsets(lax, read, end)
    assert behind == [offset for offset in placed if offset >= position]
    assert offsets(lax, start, read) + behind == list(placed)
    assert lax.latestOffset(end, ALL) == end


def test_with_a_checkpoint_of_old_another_log_is_told_where_no_record_ends(tmp_path: Path) -> None:
    root = tmp_path / "broker-a"
    placed = write_log(root, [record(message(bytes(60), "Orders"))] * 40, 1 << 15)
    read: Offsets = dict(places(reader(root).initialOffset()))
    assert reader(root).latestOffset(read, ALL) == read
    shutil.rmtree(root)
    placed = write_log(root, [record(message(bytes(95), "Orders"))] * 80, 1 << 15)
    with pytest.raises(DataLoss, match="has other records there now"):
        reader(root).latestOffset(read, ALL)
    lax = reader(root, failOnDataLoss="false")
    end = lax.latestOffset(read, ALL)
    position = place_of(read["broker-a"])
    assert offsets(lax, read, end) == [offset for offset in placed if offset > position]


def test_retention_of_all_that_was_read_is_no_loss(store: Store) -> None:
    """Of the record before an offset nothing can be said then."""
    append(store, 200)
    stream = reader(store.options.root, startingOffsets="earliest")
    read = stream.latestOffset(stream.initialOffset(), ALL)
    append(store, 200, 2)
    while store.log.segments.items[1].start < place_of(read["broker-a"]):
        store.log.segments.drop_oldest()
    end = stream.latestOffset(read, ALL)
    assert offsets(stream, read, end) == [
        offset for offset in stored(store) if offset >= place_of(read["broker-a"])
    ]


def test_an_offset_survives_the_checkpoint(store: Store) -> None:
    """As JSON; what it holds of the record before it does not depend on how the place was reached."""
    append(store, 100)
    root = store.options.root
    stream = reader(root, startingOffsets="earliest", maxOffsetsPerTrigger=7)
    position = stream.initialOffset()
    while (end := stream.latestOffset(position, ReadMaxRows(7))) != position:
        position = json.loads(json.dumps(end))
    assert split(position)[1] == split(reader(root).initialOffset())[1]
    (offset,) = split(position)[1].values()
    assert offset == {"offset": store.log.end, "record": stored(store)[-1], "digest": offset["digest"]}


def test_a_store_that_comes_later_is_read_from_its_begin_and_one_that_goes_is_missed(tmp_path: Path) -> None:
    opened = [open_store(tmp_path / name) for name in ("a", "b")]
    for one in opened:
        append(one, 20)
    a, b = (one.options.root for one in opened)
    position = reader(a).initialOffset()
    both = reader(f"{a},{b}")
    end = both.latestOffset(position, ALL)
    assert offsets(both, position, end) == stored(opened[1])
    with pytest.raises(ConfigError, match="the checkpoint knows a store b, give it again"):
        reader(a).partitions({"a": 0, "b": 0}, end)
    assert reader(a).latestOffset(end, ALL) == end
    for one in opened:
        one.close()


def test_what_makes_no_sense_for_a_stream_is_refused(tmp_path: Path) -> None:
    for given, said in (
        ({"endingOffsets": "latest"}, "endingOffsets: a stream has no end"),
        ({"endingTimestamp": 5}, "endingTimestamp: a stream has no end"),
        ({"startingOffsets": '{"t": {"0": -1}}'}, "all queues or none"),
    ):
        with pytest.raises(ConfigError, match=said):
            reader(tmp_path, **given)
    for name in ("x/store", "y/store"):
        open_store(tmp_path / name).close()
    with pytest.raises(ConfigError, match="brokerNames=store,store: a stream tells stores by these names"):
        reader(f"{tmp_path}/x/store,{tmp_path}/y/store").initialOffset()


# -- with Spark ------------------------------------------------------------------------------------------


def stream_of(spark: SparkSession, root: Path, **given: str) -> DataFrame:
    read = spark.readStream.format("rocketmq-log").option("startingOffsets", "earliest")
    for name, value in {"columns": ",".join(COLUMNS), **given}.items():
        read = read.option(name, value)
    return read.load(str(root))


def to_files(frame: DataFrame, target: Path, *, now: bool) -> StreamingQuery:
    """Files, which Spark writes exactly once, as long as the source gives a batch the same rows again."""
    write = frame.writeStream.format("parquet").option("checkpointLocation", str(target / "checkpoint"))
    write = write.trigger(availableNow=True) if now else write.trigger(processingTime="0 seconds")
    return write.start(str(target / "rows"))


def written(spark: SparkSession, target: Path) -> list[int]:
    frame = spark.read.parquet(str(target / "rows"))
    assert frame.where(frame[CORRUPT].isNotNull()).count() == 0
    return sorted(row[0] for row in frame.select("physicalOffset").collect())


def test_each_record_is_written_once_through_restarts_rolls_and_retention(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    """Two runs of one checkpoint; the log grows before each, and loses what was read behind it."""
    found: set[int] = set()
    for number in range(2):
        append(store, 150, number)
        found |= set(stored(store))
        query = to_files(stream_of(spark, store.options.root, maxOffsetsPerTrigger="100"), tmp_path, now=True)
        assert query.awaitTermination(120)
        assert query.exception() is None
        batches = [one["numInputRows"] for one in query.recentProgress]
        assert max(batches) <= 100
        store.log.segments.drop_oldest()
    assert written(spark, tmp_path) == sorted(found)
    assert len(found) == 300


def test_a_query_that_is_stopped_amid_appends_goes_on_where_it_was(
    spark: SparkSession, store: Store, tmp_path: Path
) -> None:
    """A broker goes on appending while it is stopped; then it is left to finish."""
    done = threading.Event()

    def produce() -> None:
        number = 0
        while not done.is_set():
            store.log.append(message(bytes(number % 300), "Orders", number % 3))
            number += 1
            done.wait(0.01)

    producer = threading.Thread(target=produce)
    producer.start()
    try:
        query = to_files(stream_of(spark, store.options.root, topic="Orders"), tmp_path, now=False)
        wait_until(lambda: len(query.recentProgress) > 1, "batches", 90)
        query.stop()
        assert query.exception() is None
    finally:
        done.set()
        producer.join()
    last = to_files(stream_of(spark, store.options.root, topic="Orders"), tmp_path, now=True)
    assert last.awaitTermination(120)
    assert written(spark, tmp_path) == stored(store)
