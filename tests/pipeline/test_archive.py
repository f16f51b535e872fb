"""archive: Parquet that equals the log row for row, however often and wherever its making was killed."""

from __future__ import annotations

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from commitlog.kernel.records import StoredMessage, decode_properties
from commitlog.store import Store
from tests.pipeline.filled import SEGMENT_BYTES, any_message, close, copied, fill, flip, options
from tests.support.messages import STORE_HOST, STORE_MS, Clock

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(1800)]

# 20 for a night.  Killed between any two changes of files it is in every run, below, in one process.
KILLS = int(os.environ.get("ARCHIVE_KILLS", "0"))
Row = tuple[Any, ...]


def row_of(record: StoredMessage) -> Row:
    return (
        record.topic,
        record.queue_id,
        record.queue_offset,
        record.physical_offset,
        record.size,
        record.message_id,
        record.body,
        tuple(sorted(decode_properties(record.properties).items())),
        record.flag,
        record.sys_flag,
        record.born_timestamp_ms,
        record.store_timestamp_ms,
        record.reconsume_times,
        record.crc_ok,
        f"{datetime.fromtimestamp(record.store_timestamp_ms / 1000, UTC):%Y-%m-%d}",
    )


def rows_of(archive: Path) -> Counter[Row]:
    """What any reader of Parquet finds, here one without Spark."""
    found: Counter[Row] = Counter()
    for path in archive.glob("topic=*/day=*/*.parquet"):
        topic, day = (part.partition("=")[2].replace("%25", "%") for part in path.parts[-3:-1])
        for one in pq.ParquetFile(path).read().to_pylist():
            found[
                topic,
                one["queueId"],
                one["queueOffset"],
                one["physicalOffset"],
                one["storeSize"],
                one["msgId"],
                one["body"],
                tuple(sorted(one["properties"])),
                one["flag"],
                one["sysFlag"],
                int(one["bornTimestamp"].timestamp() * 1000 + 0.5),
                int(one["storeTimestamp"].timestamp() * 1000 + 0.5),
                one["reconsumeTimes"],
                one["bodyCrcOk"],
                day,
            ] += 1
    return found


def more(root: Path, count: int, seed: int) -> list[StoredMessage]:
    """The broker goes on; the whole log."""
    rng, clock = random.Random(seed), Clock(STORE_MS + 4 * 86_400_000)
    store = Store.open(options(root), store_host=STORE_HOST, clock_ms=clock)
    for number in range(count):
        store.log.append(any_message(rng, seed * 1000 + number))
        clock.now_ms += 1000
    return close(store)


Archive = Callable[..., Any]


@pytest.fixture(scope="module")
def archive(spark: SparkSession) -> Archive:
    from haservice.pipeline.hadoop_files import HadoopDirectory
    from haservice.pipeline.jobs.archive import archive as run
    from haservice.pipeline.sources.store_view import StoreView

    def once(root: Path, dest: Path, place: type[HadoopDirectory] = HadoopDirectory, **asked: Any) -> Any:
        small = {"slice_bytes": SEGMENT_BYTES, "merged_files_min": 2}
        return run(spark, StoreView(root), place(spark, str(dest)), **{**small, **asked})

    return once


def test_a_run_plans_only_the_part_of_the_log_that_it_archives(spark: SparkSession, tmp_path: Path) -> None:
    from haservice.pipeline.jobs.archive import part_of_log
    from haservice.pipeline.sources.store_view import StoreView

    records = fill(tmp_path / "broker-a", 600)
    last = records[-1]
    end = last.physical_offset + last.size
    assert end > 2 * SEGMENT_BYTES
    rows = part_of_log(spark, StoreView(tmp_path / "broker-a"), "a", last.physical_offset, end)
    assert rows.rdd.getNumPartitions() == 1
    assert [row.physicalOffset for row in rows.collect()] == [last.physical_offset]


def test_each_run_adds_what_is_new_and_small_files_are_merged(
    archive: Archive, spark: SparkSession, tmp_path: Path
) -> None:
    from haservice.pipeline.jobs.archive import read_archive

    root, dest = tmp_path / "broker-a", tmp_path / "archive"
    records = fill(root, 200)
    done = archive(root, dest)
    assert (done.rows, done.corrupt, done.through) == (200, 0, records[-1].physical_offset + records[-1].size)
    assert done.commits > 1
    assert done.merged_files > 0
    assert rows_of(dest) == Counter(map(row_of, records))

    assert archive(root, dest).rows == 0
    records = more(root, 30, 2)
    assert archive(root, dest, merged_files_min=100).rows == 30
    assert rows_of(dest) == Counter(map(row_of, records))

    rows = read_archive(spark, str(dest))
    assert rows.count() == len(records)
    assert {row.topic for row in rows.select("topic").distinct().collect()} == {one.topic for one in records}
    assert {row[0] for row in rows.select("brokerName").distinct().collect()} == {"broker-a"}


def test_damage_is_a_row_and_is_told(archive: Archive, spark: SparkSession, tmp_path: Path) -> None:
    from haservice.pipeline.jobs.archive import read_archive

    records = fill(tmp_path / "a", 60)
    victim = records[20]
    flip(tmp_path / "a", victim.physical_offset + 4)
    done = archive(tmp_path / "a", tmp_path / "archive")
    assert (done.rows, done.corrupt) == (60, 1)
    (row,) = read_archive(spark, str(tmp_path / "archive")).filter("_corrupt is not null").collect()
    assert (row.physicalOffset, row.storeSize, len(row.body)) == (victim.physical_offset, *[victim.size] * 2)


def test_a_segment_of_garbage_is_no_empty_log(archive: Archive, tmp_path: Path) -> None:
    from haservice.pipeline.jobs.archive import ArchiveRefused

    for content, is_refused in ((os.urandom(SEGMENT_BYTES), True), (bytes(SEGMENT_BYTES), False)):
        root = tmp_path / str(is_refused)
        segment = root / "commitlog" / f"{0:020d}"
        segment.parent.mkdir(parents=True)
        segment.write_bytes(content)
        dest = tmp_path / f"archive-{is_refused}"
        if is_refused:
            with pytest.raises(ArchiveRefused, match=re.escape(f"{segment}: holds data and no record")):
                archive(root, dest)
        else:
            assert archive(root, dest).rows == 0


def test_bodies_that_do_not_match_their_sums_are_counted_and_the_exit_code_is_1(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from haservice.pipeline.cli import main
    from haservice.pipeline.jobs import job

    monkeypatch.setattr(job.Job, "spark", lambda _: spark)
    victim = max(fill(tmp_path / "a", 60), key=lambda one: len(one.body))
    segment = (tmp_path / "a" / "commitlog" / f"{0:020d}").read_bytes()
    flip(tmp_path / "a", segment.index(victim.body))
    arguments = ["-f", "json", "archive", str(tmp_path / "a"), str(tmp_path / "archive")]
    done = CliRunner().invoke(main, arguments)
    found = json.loads(done.stdout)
    assert (done.exit_code, found["ok"], found["crcWrong"], found["corrupt"]) == (1, False, 1, 0)
    done = CliRunner().invoke(main, arguments)
    assert (done.exit_code, json.loads(done.stdout)["crcWrong"]) == (0, 0)


def test_a_log_is_not_archived_again_under_another_name(archive: Archive, tmp_path: Path) -> None:
    from haservice.pipeline.jobs.archive import ArchiveRefused

    root, dest = tmp_path / "broker-a", tmp_path / "archive"
    records = fill(root, 60)
    archive(root, dest)
    slave = copied(root, tmp_path / "broker-a-s")
    more(slave, 20, 4)
    with pytest.raises(ArchiveRefused, match=r"--broker-name broker-a$"):
        archive(slave, dest)
    assert rows_of(dest) == Counter(map(row_of, records))
    assert archive(slave, dest, broker_name="broker-a").rows == 20
    fill(tmp_path / "broker-b", 50, seed=9)
    assert archive(tmp_path / "broker-b", dest).rows == 50


def test_a_store_that_does_not_go_on_where_the_archive_ends_is_refused(
    archive: Archive, tmp_path: Path
) -> None:
    from haservice.pipeline.jobs.archive import ArchiveRefused
    from haservice.pipeline.jobs.archive_journal import ArchiveUnreadable

    root, dest = tmp_path / "a", tmp_path / "archive"
    fill(root, 40)
    early = copied(root, tmp_path / "early")
    more(root, 150, 3)
    archive(early, dest, broker_name="a")
    (root / "commitlog" / f"{0:020d}").unlink()
    with pytest.raises(ArchiveRefused, match="retention took"):
        archive(root, dest)
    done = archive(root, dest, fail_on_data_loss=False)
    assert done.begin == SEGMENT_BYTES
    with pytest.raises(ArchiveRefused, match="--broker-name"):
        archive(early, dest, broker_name="a")
    fill(tmp_path / "another", 250, seed=7)
    with pytest.raises(ArchiveRefused, match="another record"):
        archive(tmp_path / "another", dest, broker_name="a")

    shutil.rmtree(dest / "_archive")
    with pytest.raises(ArchiveUnreadable, match="new directory"):
        archive(root, dest)


class Killed(BaseException):
    """The process ends here."""


def test_killed_before_or_after_any_change_of_files_the_next_run_makes_it_good(
    archive: Archive, tmp_path: Path
) -> None:
    from haservice.pipeline.hadoop_files import HadoopDirectory

    root = tmp_path / "a"
    records = fill(root, 150)
    wanted = Counter(map(row_of, records))

    class Counting(HadoopDirectory):
        """Dies before a change, when `left` were made."""

        left = 1 << 30
        seen = 0

        def _count(self) -> None:
            Counting.seen += 1
            if Counting.seen > Counting.left:
                raise Killed

        def make_directory(self, path: str) -> None:
            self._count()
            super().make_directory(path)

        def write_new(self, path: str, text: str) -> None:
            self._count()
            super().write_new(path, text)
            self._count()

        def rename(self, source: str, target: str) -> None:
            self._count()
            super().rename(source, target)

        def delete(self, path: str) -> None:
            self._count()
            super().delete(path)

    asked = {"place": Counting, "slice_bytes": 1, "merged_files_min": 2}
    archive(root, tmp_path / "whole", **asked)
    changes = Counting.seen
    assert rows_of(tmp_path / "whole") == wanted
    rng = random.Random(5)
    dest = tmp_path / "killed"
    kills = 0
    Counting.left = 0
    while True:
        Counting.seen, Counting.left = 0, Counting.left + rng.randrange(1, changes // 10)
        try:
            archive(root, dest, **asked)
        except Killed:
            kills += 1
            found = rows_of(dest)
            assert set(found) <= set(wanted)
            # Those that were merged may be there twice until the next run.
            assert max(found.values(), default=1) <= 2
            continue
        break
    assert kills > 3
    assert rows_of(dest) == wanted


PROGRAM = """
import sys
from haservice.pipeline.cli import main
main()
"""


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[bytes]]]:
    processes: list[subprocess.Popen[bytes]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_sigkill_of_all_its_processes_at_random_moments(
    tmp_path: Path, started: list[subprocess.Popen[bytes]]
) -> None:
    pytest.importorskip("pyspark")
    if not KILLS:
        pytest.skip("each kill costs a start of Spark: ARCHIVE_KILLS=20 asks for them")
    root, dest = tmp_path / "broker-a", tmp_path / "archive"
    records = fill(root, 4000)
    seed = int(os.environ.get("ARCHIVE_SEED", "1"))
    rng = random.Random(seed)
    command = [
        sys.executable,
        "-c",
        PROGRAM,
        "--master",
        "local[2]",
        "--conf",
        "spark.sql.shuffle.partitions=2",
    ]
    command += ["--conf", "spark.driver.bindAddress=127.0.0.1", "--conf", "spark.driver.host=127.0.0.1"]
    command += ["archive", str(root), str(dest), "--slice-mb", "1", "--merge-files", "2"]

    def start() -> subprocess.Popen[bytes]:
        process = subprocess.Popen(
            command, start_new_session=True, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE
        )
        started.append(process)
        return process

    killed = 0
    for number in range(KILLS):
        records = more(root, 20, 10 + number)
        process = start()
        before = snapshot(dest)
        deadline = time.monotonic() + 300
        while snapshot(dest) == before and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.02)
        try:
            process.wait(rng.uniform(0, 4))
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            killed += 1
        process.wait()
        assert set(rows_of(dest)) <= set(map(row_of, records)), f"seed {seed}, kill {number}"
    process = start()
    _, said = process.communicate(timeout=900)
    assert (process.returncode, said.decode()[-2000:]) == (0, ""), "cron mails whatever is said"
    assert killed > 0
    assert rows_of(dest) == Counter(map(row_of, records)), f"seed {seed}"


def snapshot(root: Path) -> frozenset[str]:
    return frozenset(str(path) for path in root.rglob("*"))
