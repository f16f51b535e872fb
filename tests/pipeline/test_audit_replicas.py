"""audit-replicas: equal stores are equal, and whatever is not is named: record, store, and what of it."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from commitlog.kernel.layout import BLANK_MAGIC
from commitlog.kernel.records import StoredMessage
from commitlog.store import Store
from tests.pipeline.filled import DAY_MS, SEGMENT_BYTES, any_message, close, copied, fill, flip, options
from tests.support.messages import STORE_HOST, STORE_MS, Clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

Audit = Callable[..., Any]


@pytest.fixture(scope="module")
def master(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[StoredMessage]]:
    root = tmp_path_factory.mktemp("master") / "a"
    return root, fill(root, 300)


@pytest.fixture(scope="module")
def audit(spark: SparkSession) -> Audit:
    from haservice.pipeline.jobs.audit_replicas import AuditReplicasOptions
    from haservice.pipeline.jobs.audit_replicas import audit as run

    asked = AuditReplicasOptions(index_slots=61, index_entries=97)
    return lambda *roots, **more: run(spark, [str(root) for root in roots], replace(asked, **more))


def test_equal_stores_are_equal_whatever_lies_behind_a_blank(
    master: tuple[Path, list[StoredMessage]], audit: Audit, tmp_path: Path
) -> None:
    root, records = master
    other = copied(root, tmp_path / "b")
    first_of_second = next(one for one in records if one.physical_offset >= SEGMENT_BYTES)
    segment = other / "commitlog" / f"{0:020d}"
    data = bytearray(segment.read_bytes())
    blank = data.index((BLANK_MAGIC & 0xFFFFFFFF).to_bytes(4, "big")) + 4
    assert blank < first_of_second.physical_offset
    data[blank:] = b"\x55" * (len(data) - blank)
    segment.write_bytes(data)
    report = audit(root, other)
    assert report.exit_code == 0, report.as_text()
    assert report.verdict.startswith("Equal: ")
    assert all(one["equal"] for one in report.data["segments"])
    assert [one["queues"]["counts"] for one in report.data["stores"]] == [{}, {}]
    assert [one["index"]["counts"] for one in report.data["stores"]] == [{}, {}]
    assert "<svg" in report.as_html()


def test_one_flipped_bit_names_its_record_and_who_has_it_sound(
    master: tuple[Path, list[StoredMessage]], audit: Audit, tmp_path: Path
) -> None:
    root, records = master
    b, c = copied(root, tmp_path / "b"), copied(root, tmp_path / "c")
    victim = max(records[100:200], key=lambda one: len(one.body))
    place = victim.physical_offset + 88 + len(victim.body) // 2
    flip(c, place)
    report = audit(root, b, c, queues=False, index=False)
    assert report.exit_code == 1
    assert report.data["firstDifference"] == place
    (record,) = report.data["records"]["first"]
    assert (record["offset"], record["topic"], record["queueOffset"]) == (
        victim.physical_offset,
        victim.topic,
        victim.queue_offset,
    )
    assert record["store"] == str(c)
    assert record["differs"] == ["body", "bodyCrcOk"]
    assert (record["sound"], record["soundThere"]) == (False, True)
    segments = [one["segment"] for one in report.data["segments"] if not one["equal"]]
    assert segments == [f"{place - place % SEGMENT_BYTES:020d}"]


def test_a_log_that_went_another_way_differs_from_there_and_a_shorter_one_lacks_records(
    master: tuple[Path, list[StoredMessage]], audit: Audit, tmp_path: Path
) -> None:
    import random

    root, records = master
    b = copied(root, tmp_path / "b")
    cut = records[-40].physical_offset
    store = Store.open(options(b), store_host=STORE_HOST, clock_ms=Clock(STORE_MS + 10 * DAY_MS))
    store.rewind(cut)
    shorter = copied_closed(store, b, tmp_path / "short")
    store = Store.open(options(b), store_host=STORE_HOST, clock_ms=Clock(STORE_MS + 10 * DAY_MS))
    rng = random.Random(99)
    for number in range(10):
        store.log.append(any_message(rng, 10_000 + number))
    close(store)

    report = audit(root, shorter, queues=False, index=False)
    assert report.exit_code == 1
    assert [one["records"] for one in report.data["tails"]] == [40]
    assert audit(root, shorter, index=False, queues=False, prefix=True).exit_code == 0

    report = audit(root, b, queues=False, index=False)
    first = report.data["firstDifference"]
    assert cut <= first < cut + 88
    assert report.data["common"]["equalUpTo"] == first
    kinds = {one["kind"] for one in report.data["records"]["first"]}
    assert "different" in kinds
    assert kinds <= {"different", "missing", "extra"}


def copied_closed(store: Store, root: Path, target: Path) -> Path:
    close(store)
    return copied(root, target)


def test_a_log_that_begins_later_is_no_finding(
    master: tuple[Path, list[StoredMessage]], audit: Audit, tmp_path: Path
) -> None:
    root, _ = master
    b = copied(root, tmp_path / "b")
    (b / "commitlog" / f"{0:020d}").unlink()
    report = audit(root, b, index=False)
    assert report.exit_code == 0, report.as_text()
    assert report.data["common"]["start"] == SEGMENT_BYTES


def test_queues_and_index_that_do_not_fit_the_log_are_named(
    master: tuple[Path, list[StoredMessage]], audit: Audit, tmp_path: Path
) -> None:
    root, _ = master
    b = copied(root, tmp_path / "b")
    queue = b / "consumequeue" / "Orders" / "1" / f"{0:020d}"
    entries = np.fromfile(queue, np.dtype([("offset", ">i8"), ("size", ">i4"), ("tags", ">i8")]))
    entries["tags"][3] += 1
    entries["offset"][5] += 1
    queue.write_bytes(entries.tobytes())
    shutil.rmtree(b / "consumequeue" / "Payments" / "2")
    index = sorted((b / "index").iterdir())[1]
    data = bytearray(index.read_bytes())
    data[40 + 61 * 4 + 20 * 30] ^= 1  # the hash of entry 30
    data[40 + 61 * 4 + 20 * 50 + 19] ^= 64  # what entry 50 leads to
    index.write_bytes(data)
    report = audit(b)
    assert report.exit_code == 1
    (store,) = report.data["stores"]
    assert store["queues"]["counts"]["wrong"] == 2
    assert store["queues"]["counts"]["missing"] > 0
    named = {(one["topic"], one["queueId"], one["queueOffset"]) for one in store["queues"]["first"]}
    assert {("Orders", 1, 3), ("Orders", 1, 5)} <= named
    assert store["index"]["counts"]["missing"] == 1
    assert {one["number"] for one in store["index"]["first"] if one["kind"] == "chain"} >= {50}


def test_segments_of_different_sizes_are_no_replicas(
    master: tuple[Path, list[StoredMessage]], audit: Audit, tmp_path: Path
) -> None:
    from haservice.pipeline.jobs.replica_bytes import NotComparable

    fill(tmp_path / "other", 5, segment_bytes=8192)
    with pytest.raises(NotComparable, match="mappedFileSizeCommitLog"):
        audit(master[0], tmp_path / "other")


def test_runs_of_differences_are_told_apart_up_to_a_limit() -> None:
    from haservice.pipeline.jobs.replica_bytes import RUNS_MAX, runs_of

    first = bytes(100_000)
    other = bytearray(first)
    assert runs_of(first, bytes(other), 7) == []
    other[10] = other[12] = other[500] = 1
    assert runs_of(first, bytes(other), 1000) == [(1010, 1013), (1500, 1501)]
    other[0::100] = b"\1" * 1000
    runs = runs_of(first, bytes(other), 0)
    assert len(runs) == RUNS_MAX
    assert runs[-1][1] == 99_901


def test_logs_are_compared_where_two_of_them_overlap_and_apart_where_none_does() -> None:
    from haservice.pipeline.jobs.replica_bytes import Side, islands, shared

    def sides(*ranges: tuple[int, int]) -> list[Side]:
        return [Side(str(number), *one, 10, False) for number, one in enumerate(ranges)]

    nofirst, base, cut = (10, 40), (0, 40), (0, 5)
    assert shared(sides(nofirst, base, cut)) == [(0, 5), (10, 40)]
    assert islands(sides(nofirst, base, cut)) == [(0, 40)]
    assert islands(sides(nofirst, cut)) == [(0, 5), (10, 40)]
    assert shared(sides(base)) == [(0, 40)]


@pytest.mark.parametrize(
    ("options", "code", "words"),
    [
        (["--delay-levels", "1x"], 2, "Invalid value for '--delay-levels': '1x' is no delay"),
        (["--index-slots", "7"], 3, "say --index-slots and --index-entries as the broker has"),
    ],
)
def test_what_files_and_options_tell_is_told_without_spark(
    master: tuple[Path, list[StoredMessage]],
    monkeypatch: pytest.MonkeyPatch,
    options: list[str],
    code: int,
    words: str,
) -> None:
    from click.testing import CliRunner

    from haservice.pipeline.cli import main
    from haservice.pipeline.jobs.job import Job

    monkeypatch.setattr(Job, "spark", lambda _: pytest.fail("Spark was started"))
    done = CliRunner().invoke(main, ["audit-replicas", str(master[0]), *options])
    assert done.exit_code == code
    assert words in " ".join(done.output.split())


def test_an_index_entry_behind_the_log_is_dangling_and_a_missing_one_has_its_file(
    master: tuple[Path, list[StoredMessage]], audit: Audit, tmp_path: Path
) -> None:
    b = copied(master[0], tmp_path / "b")
    index = sorted((b / "index").iterdir())[1]
    data = bytearray(index.read_bytes())
    data[40 + 61 * 4 + 20 * 30 + 4] ^= 64  # the place of entry 30
    index.write_bytes(data)
    report = audit(b, queues=False)
    (store,) = report.data["stores"]
    found = {one["kind"]: one for one in store["index"]["first"]}
    assert (found["dangling"]["file"], found["dangling"]["number"]) == (index.name, 30)
    assert found["missing"]["file"] == index.name
    assert f"{b}: index entry dangling: " in report.as_text()
