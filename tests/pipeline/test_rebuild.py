"""rebuild: byte for byte what a broker builds from the same log, and a store that stays one."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st

from commitlog.disk.store_lock import StoreLock
from commitlog.kernel.keys import index_hash
from commitlog.kernel.records import encode, java_hash, stamp
from commitlog.store import Store
from tests.pipeline.filled import close, copied, derived_files, fill, flip, options
from tests.support.messages import STORE_HOST, Clock, message

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.spark, pytest.mark.timeout(600)]

SIZES = ("--queue-file-bytes", "400", "--index-slots", "61", "--index-entries", "97")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("filled") / "store"
    fill(root, 400)
    return root


def run(*arguments: str | Path) -> tuple[int, str]:
    """The command as a user runs it, in the session that the tests have."""
    from haservice.pipeline.cli import main
    from haservice.pipeline.jobs import job

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(job.Job, "spark", lambda _: _spark())
        done = CliRunner().invoke(main, ["-f", "json", *map(str, arguments)])
    return done.exit_code, done.output


def _spark() -> SparkSession:
    from pyspark.sql import SparkSession

    active = SparkSession.getActiveSession()
    assert active is not None
    return active


def test_every_file_is_byte_for_byte_the_brokers(filled: Path, spark: SparkSession, tmp_path: Path) -> None:
    code, output = run("rebuild", filled, "--to", tmp_path / "new", *SIZES)
    assert code == 0, output
    built, theirs = derived_files(tmp_path / "new"), derived_files(filled)
    assert built.keys() == theirs.keys()
    assert [name for name in theirs if built[name] != theirs[name]] == []
    result = json.loads(output)
    assert (result["queueFiles"], result["indexFiles"]) == (
        sum(name.startswith("consumequeue") for name in theirs),
        sum(name.startswith("index") for name in theirs),
    )


def test_in_place_a_store_without_queues_and_index_opens_as_if_nothing_had_happened(
    filled: Path, spark: SparkSession, tmp_path: Path
) -> None:
    root = copied(filled, tmp_path / "store")
    before = derived_files(root)
    shutil.rmtree(root / "consumequeue")
    code, output = run("rebuild", root, *SIZES)
    assert code == 0, output
    assert derived_files(root) == before
    (aside,) = root.glob("replaced-*")
    assert [path.name for path in aside.iterdir()] == ["index"]
    assert not (root / "rebuilding").exists()
    store = Store.open(options(root), store_host=STORE_HOST, clock_ms=Clock())
    assert store.recovery.clean
    assert store.dispatcher.behind == 0
    close(store)
    assert derived_files(root) == before


def renumbered(root: Path) -> None:
    """A topic was deleted twice, a queue begins late, and numbers are missing: the log alone knows."""
    numbers = {
        0: [0, 1, 2, 3, 4, 5, 0, 1, 2, 20, 21, 22, 21, 22, 23, 25, 45, 47],
        1: [53, 54, 55, 60],
        2: [53, 54, 41, 42],
        3: [70, 71, 5, 6],
    }
    clock = Clock()
    store = Store.open(options(root, replica=True), store_host=STORE_HOST, clock_ms=clock)
    for queue_id, queue_offsets in numbers.items():
        for queue_offset in queue_offsets:
            record = encode(message(b"x" * 20, "Orders", queue_id), STORE_HOST)
            stamp(record, queue_offset, store.log.end, clock.now_ms)
            store.log.append_replica(store.log.end, [record])
            store.dispatcher.step()
    close(store)


def test_queues_that_begin_anew_late_or_with_holes(spark: SparkSession, tmp_path: Path) -> None:
    renumbered(tmp_path / "store")
    code, output = run("rebuild", tmp_path / "store", "--to", tmp_path / "new", *SIZES)
    assert code == 0, output
    assert derived_files(tmp_path / "new") == derived_files(tmp_path / "store")


def test_a_log_with_damage_is_refused_by_its_place(filled: Path, spark: SparkSession, tmp_path: Path) -> None:
    root = copied(filled, tmp_path / "store")
    flip(root, 4)
    before = derived_files(root)
    code, output = run("rebuild", root, *SIZES)
    assert code == 3
    assert "record at 0:" in output
    assert derived_files(root) == before
    assert not (root / "rebuilding").exists()


def test_a_store_in_use_is_refused_unless_the_files_go_elsewhere(
    filled: Path, spark: SparkSession, tmp_path: Path
) -> None:
    lock = StoreLock(filled)
    try:
        code, output = run("rebuild", filled, *SIZES)
        assert code == 3
        assert "locked by another process" in output
        assert "stop its broker, or build elsewhere by --to DIR" in output
        code, output = run("rebuild", filled, "--to", tmp_path / "new", "--only", "consumequeue", *SIZES)
        assert code == 0, output
    finally:
        lock.release()
    assert not (tmp_path / "new" / "index").exists()


def test_files_of_other_sizes_than_the_brokers_are_refused(filled: Path, spark: SparkSession) -> None:
    code, output = run("rebuild", filled, "--queue-file-bytes", "4000", *SIZES[2:])
    assert code == 3
    assert "--queue-file-bytes 400" in output
    for place in ((), ("--to", filled / "new")):
        code, output = run("rebuild", filled, *place)
        assert code == 3
        assert "--index-slots" in output
    assert not (filled / "new").exists()
    code, output = run(
        "rebuild", filled, "--to", filled / "new", "--index-slots", "7", "--index-entries", "99"
    )
    assert code == 0, "whoever says other sizes wants them"


def test_delays_that_are_none_are_a_wrong_command_line(filled: Path) -> None:
    code, output = run("rebuild", filled, "--delay-levels", "1x")
    assert code == 2
    assert "'1x' is no delay" in output


@given(st.lists(st.one_of(st.none(), st.text(max_size=40)), max_size=30), st.integers(0, 3))
def test_hashes_of_a_column_are_javas(texts: list[str | None], skipped: int) -> None:
    from haservice.pipeline.derived.entries import _index_hashes, java_hashes

    texts = [text and text.encode("utf-8", "replace").decode() for text in texts]
    column = pa.array(["before"] * skipped + texts, pa.string()).slice(skipped)
    assert java_hashes(column).tolist() == [java_hash(text or "") for text in texts]
    assert _index_hashes(column).to_pylist() == [index_hash(java_hash(text or "")) for text in texts]


def test_what_a_killed_rebuild_of_an_older_version_left_in_the_store_goes(tmp_path: Path) -> None:
    """It had no lock of its own there, but that of the store."""
    from haservice.pipeline.jobs.rebuild import in_place

    (tmp_path / "rebuilding" / "consumequeue").mkdir(parents=True)
    with in_place(tmp_path, ()) as directory:
        assert directory == tmp_path / "rebuilding"
        assert not (directory / "consumequeue").exists()
    assert not directory.exists()
