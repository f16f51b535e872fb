"""Stores of a DLedger group's members: records in entries, behind a classic log or alone, up to what is committed."""

from __future__ import annotations

import json
import random
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("pyspark")

from commitlog.dledger.layout import HEAD_BYTES
from commitlog.dledger.reading import read_records
from commitlog.errors import StoreUnreadable
from commitlog.kernel.records import StoredMessage, decode
from haservice.pipeline.decode.scan import Damage, edge, last_record, pieces
from haservice.pipeline.decode.schema import CORRUPT, spark_schema
from haservice.pipeline.sources import log_source
from haservice.pipeline.sources.log_source import LogReader, LogStreamReader
from haservice.pipeline.sources.options import LogSourceOptions, read_options
from haservice.pipeline.sources.store_view import StoreView
from tests.commitlog.dledger.opened import Opened
from tests.pipeline.filled import SEGMENT_BYTES, any_message, copied, derived_files, fill, options
from tests.pipeline.test_rebuild import SIZES, run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

CLASSIC, ENTRIES, OPEN = 120, 300, 7
# What it holds: tests/compat/data/README.md.
STOCK = Path(__file__).parents[1] / "compat" / "data" / "dledger-broker-4.9.8.tar.xz"


def records_at(root: Path) -> list[StoredMessage]:
    return [decode(bytes(one.record)) for one in read_records(root)]


def opened_at(root: Path, **fields: Any) -> Opened:
    return Opened(root, options=replace(options(root), **fields))


def append(opened: Opened, count: int, *, seed: int = 1, committed: bool = True) -> None:
    rng = random.Random(seed)
    for number in range(count):
        opened.log.append(any_message(rng, number))
    if committed:
        opened.commit()


Member = tuple[Path, list[StoredMessage]]


def member_at(root: Path, *, classic: bool) -> Member:
    """A member's store over several files, closed; what is committed of it.  The last entries are not."""
    root.mkdir()
    if classic:
        fill(root, CLASSIC)
    opened = opened_at(root)
    append(opened, ENTRIES)
    committed = opened.entries.end_index
    append(opened, OPEN, committed=False)
    opened.entries.save_checkpoint(committed)
    opened.close()
    return root, records_at(root)[:-OPEN]


@pytest.fixture(scope="module")
def changed_over(tmp_path_factory: pytest.TempPathFactory) -> Member:
    """A member's whose classic log came first."""
    return member_at(tmp_path_factory.mktemp("changed") / "n0", classic=True)


@pytest.fixture(scope="module", params=["behind a classic log", "alone"])
def member(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Member:
    if request.param == "alone":
        return member_at(tmp_path_factory.mktemp("alone") / "n0", classic=False)
    changed: Member = request.getfixturevalue("changed_over")
    return changed


@pytest.fixture(autouse=True)
def _small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_source, "RANGE_BYTES_MIN", 1000)


def read_with(
    path: Path, columns: str = "physicalOffset,body,storeSize,_corrupt", **given: object
) -> LogReader:
    texts = {"path": str(path), **{name: str(value) for name, value in given.items()}}
    return LogReader(read_options(LogSourceOptions, "rocketmq-log", texts), spark_schema(columns.split(",")))


def rows(source: LogReader) -> list[dict[str, Any]]:
    found = [row for part in source.partitions() for batch in source.read(part) for row in batch.to_pylist()]
    return sorted(found, key=lambda row: row["physicalOffset"])


def placed(records: list[StoredMessage]) -> list[tuple[int, bytes]]:
    return [(one.physical_offset, one.body) for one in records]


def flip(root: Path, offset: int) -> None:
    """One bit of the entries turns over."""
    start = offset - offset % SEGMENT_BYTES
    path = root / "dledger-n0" / "data" / f"{start:020d}"
    data = bytearray(path.read_bytes())
    data[offset - start] ^= 1
    path.write_bytes(data)


# -- the source ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tasks", [1, 7, 60])
def test_what_is_committed_is_read_once_by_however_many_tasks(member: Member, tasks: int) -> None:
    root, records = member
    assert len(StoreView(root).segments()) >= 3
    found = rows(read_with(root, minPartitions=tasks))
    assert [(row["physicalOffset"], row["body"]) for row in found] == placed(records)
    assert all(row[CORRUPT] is None for row in found)


def test_a_copy_of_the_entries_alone_is_read_too(member: Member, tmp_path: Path) -> None:
    """Of data files alone nobody knows what is committed: all of it is read."""
    root, _ = member
    begin = next(one.start for one in StoreView(root).segments() if one.head_bytes)
    entries = [one for one in records_at(root) if one.physical_offset >= begin]
    shutil.copytree(root / "dledger-n0", tmp_path / "broker" / "dledger-n0")
    shutil.copytree(root / "dledger-n0" / "data", tmp_path / "copy")
    alone = rows(read_with(tmp_path / "broker"))
    assert [row["body"] for row in alone] == [one.body for one in entries[:-OPEN]]
    assert [row["body"] for row in rows(read_with(tmp_path / "copy"))] == [one.body for one in entries]
    shutil.copytree(root / "dledger-n0", tmp_path / "broker" / "dledger-n1")
    with pytest.raises(StoreUnreadable, match="several members"):
        StoreView(tmp_path / "broker")


def test_a_rare_topic_is_found_by_its_queues(tmp_path: Path) -> None:
    root = tmp_path / "n0"
    root.mkdir()
    fill(root, 3, seed=4)
    opened = opened_at(root)
    rng = random.Random(3)
    for number in range(600):
        message = any_message(rng, number)
        opened.log.append(replace(message, topic="Rare", sys_flag=0) if number % 200 == 7 else message)
    opened.commit()
    opened.close()
    expected = [one for one in records_at(root) if one.topic == "Rare"]
    by_queue, by_log = (rows(read_with(root, topic="Rare", useConsumeQueue=way)) for way in ("true", "false"))
    assert (
        [row["body"] for row in by_queue] == [row["body"] for row in by_log] == [one.body for one in expected]
    )


def test_edges_are_where_entries_begin(member: Member) -> None:
    root, _ = member
    segment = next(one for one in StoreView(root).segments() if one.head_bytes)
    with segment.open() as log:
        begins = [
            int(offset) - HEAD_BYTES
            for piece in pieces(log, segment.start, segment.end)
            if not isinstance(piece, Damage)
            for offset in piece.physical_offsets
        ]
        ends = [*begins[1:], begins[-1] + int.from_bytes(log.read(begins[-1] + 4, 4), "big")]
        for place in range(segment.start, begins[-1] + 1, 37):
            assert edge(log, place, ends[-1]) == min(one for one in begins if one >= place)
        for begin, end in zip(begins, ends, strict=True):
            assert last_record(log, end) == begin


@pytest.mark.parametrize("at", [3, 30, 44, HEAD_BYTES + 5, HEAD_BYTES + 30, HEAD_BYTES + 85])
def test_damage_in_head_or_record_is_a_row_and_what_follows_is_read(
    member: Member, tmp_path: Path, at: int
) -> None:
    """Magic, position, size of the body; the record's magic, its offset, the size of its body."""
    root, records = member
    damaged = copied(root, tmp_path / "n0")
    victim, following = records[-40], records[-39]
    begin = victim.physical_offset - HEAD_BYTES
    flip(damaged, begin + at)
    found = rows(read_with(damaged, minPartitions=20))
    bad = [row for row in found if row[CORRUPT] is not None]
    assert [(row["physicalOffset"], row["storeSize"]) for row in bad] == [
        (begin, following.physical_offset - HEAD_BYTES - begin)
    ]
    good = [(row["physicalOffset"], row["body"]) for row in found if row[CORRUPT] is None]
    assert good == placed([one for one in records if one is not victim])


def test_an_entry_without_a_body_is_passed(tmp_path: Path) -> None:
    """A node of DLedger 0.4 writes some."""
    opened = opened_at(tmp_path)
    append(opened, 5)
    opened.entries.append(1, [b"", b""])
    append(opened, 5, seed=2)
    opened.entries.append(1, [b""])
    opened.commit()
    opened.close()
    found = rows(read_with(tmp_path))
    assert [(row["physicalOffset"], row["body"]) for row in found] == placed(records_at(tmp_path))


def test_a_stream_follows_what_is_committed(tmp_path: Path) -> None:
    opened = opened_at(tmp_path)
    append(opened, 50)
    texts = {"path": str(tmp_path), "startingOffsets": "earliest", "columns": "physicalOffset"}
    asked = read_options(LogSourceOptions, "rocketmq-log", texts)
    stream = LogStreamReader(asked, spark_schema(["physicalOffset"]))

    def batch(start: Any) -> tuple[Any, list[int]]:
        end = stream.latestOffset(start, stream.getDefaultReadLimit())
        parts = stream.partitions(start, end) if end != start else []
        return end, sorted(
            row["physicalOffset"] for part in parts for some in stream.read(part) for row in some.to_pylist()
        )

    offset, first = batch(stream.initialOffset())
    append(opened, 20, seed=2, committed=False)
    unchanged, nothing = batch(offset)
    opened.commit()
    _, second = batch(unchanged)
    opened.close()
    expected = [one.physical_offset for one in records_at(tmp_path)]
    assert (first, nothing, second) == (expected[:50], [], expected[50:])


# -- the jobs --------------------------------------------------------------------------------------------


def test_rebuild_writes_what_the_broker_wrote(
    changed_over: Member, spark: SparkSession, tmp_path: Path
) -> None:
    root, _ = changed_over
    code, output = run("rebuild", root, "--to", tmp_path / "new", *SIZES)
    assert code == 0, output
    built, theirs = derived_files(tmp_path / "new"), derived_files(root)
    assert built.keys() == theirs.keys()
    assert [name for name in theirs if built[name] != theirs[name]] == []


def test_replicas_are_equal_and_a_flipped_bit_names_its_record(
    changed_over: Member, spark: SparkSession, tmp_path: Path
) -> None:
    root, records = changed_over
    other = copied(root, tmp_path / "other")
    sizes = SIZES[2:]
    code, output = run("audit-replicas", root, other, *sizes)
    assert code == 0, output
    victim = next(one for one in records[-60:] if one.body)
    flip(other, victim.physical_offset + 88)
    code, output = run("audit-replicas", root, other, *sizes)
    assert code == 1, output
    (record,) = json.loads(output)["records"]["first"]
    assert (record["offset"], record["differs"]) == (victim.physical_offset, ["body", "bodyCrcOk"])


def test_gaps_are_looked_for_and_an_archive_goes_on_where_it_ended(
    spark: SparkSession, tmp_path: Path
) -> None:
    root = tmp_path / "n0"
    root.mkdir()
    fill(root, 20)
    opened = opened_at(root)
    append(opened, 60)
    opened.close()
    for count in (80, 110):
        code, output = run("archive", root, tmp_path / "archive")
        assert code == 0, output
        assert spark.read.parquet(str(tmp_path / "archive")).count() == count
        opened = opened_at(root)
        append(opened, 30, seed=count)
        opened.close()
    code, output = run("audit-loss", root)
    assert code == 0, output


def test_the_store_of_a_stock_broker_that_changed_over_is_read_and_rebuilt(
    spark: SparkSession, tmp_path: Path
) -> None:
    with tarfile.open(STOCK) as archive:
        archive.extractall(tmp_path, filter="data")
    root = tmp_path / "dledger-broker"
    found = rows(read_with(root, minPartitions=9))
    names = [row["body"].split(b" x")[0].rstrip().decode() for row in found]
    sent = (
        [f"classic {number}" for number in range(60)]
        + ["first"]
        + [f"entries {number}" for number in range(60)]
    )
    assert names == sent
    assert [row["physicalOffset"] for row in found] == [one.offset for one in read_records(root)]
    code, output = run("rebuild", root, "--to", tmp_path / "new", "--only", "consumequeue")
    assert code == 0, output
    built, theirs = queue_files(tmp_path / "new"), queue_files(root)
    assert len(theirs) == 4
    assert built == theirs


def queue_files(root: Path) -> dict[str, bytes]:
    files = [path for path in sorted((root / "consumequeue").rglob("*")) if path.is_file()]
    return {str(path.relative_to(root)): path.read_bytes() for path in files}
